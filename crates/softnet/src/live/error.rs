//! Why a change of routes, neighbours or addresses was refused.

use std::net::IpAddr;

use softnet_core::ip::{FibError, IpPrefix};

/// See the module. Nothing was changed then, unless it says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The stack has no such device.
    #[error("dev: no device {name:?}; {}", if .exist.is_empty() { "there is none".into() } else { format!("there are: {}", .exist.join(", ")) })]
    NoDevice {
        /// The name asked for.
        name: String,
        /// Those that it has.
        exist: Vec<String>,
    },
    /// A part of the request is missing.
    #[error("expected {0}")]
    Expected(String),
    /// The destinations are no prefix.
    #[error("to: expected a prefix or an address, such as 10.0.0.0/8: {0}")]
    To(String),
    /// A gateway is on no network of the device, or of any.
    #[error("via: expected a host on a connected network ({networks}), found {via}")]
    Unreachable {
        /// The gateway, or neighbour.
        via: IpAddr,
        /// The networks that there are.
        networks: String,
    },
    /// An address can't be that of another host.
    #[error("{what}: expected another host, but {addr} {why}")]
    NoHost {
        /// The part of the request.
        what: &'static str,
        /// The address.
        addr: IpAddr,
        /// What it is.
        why: &'static str,
    },
    /// There is one already.
    #[error("{0} exists already: `replace` it, or give it another metric")]
    RouteExists(IpPrefix),
    /// It is a network of an own address, whose route goes before any other.
    #[error("{0} is the network of an own address, whose route has metric 0: expected a metric above that")]
    Connected(IpPrefix),
    /// There is no such route.
    #[error("no such route to {0}; `softnet show route` shows those that there are")]
    NoRoute(IpPrefix),
    /// The route is there because of something else.
    #[error("the route to {to} is {owner}")]
    NotOurs {
        /// The destinations.
        to: IpPrefix,
        /// What it is, and what to do.
        owner: &'static str,
    },
    /// There is one already.
    #[error("{0} is permanent already: `replace` it, or `del` it first")]
    NeighExists(IpAddr),
    /// There is no such neighbour.
    #[error("no neighbour {addr} on {dev}")]
    NoNeigh {
        /// The address asked for.
        addr: IpAddr,
        /// The device.
        dev: String,
    },
    /// A device has no IPv6 address, and speaks no IPv6.
    #[error("dev: {0} has no IPv6 address, so nothing of IPv6 leaves by it; give it one first")]
    NoIpv6(String),
    /// A device is closed at the moment.
    #[error("{0} is not open: its interface is gone")]
    NotOpen(String),
    /// There is no memory for the forwarding table: the change is made with the next one.
    #[error("noted, but not in force before there is memory for the forwarding table: {0}")]
    Fib(#[from] FibError),
}
