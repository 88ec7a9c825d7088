//! Why a change of routes, neighbours or addresses was refused.

use std::net::IpAddr;

use softnet_core::ip::{FibError, IpPrefix};

use crate::config::ConfigErrors;

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
    /// A device has that address already.
    #[error("{dev} has {addr} already")]
    AddrExists {
        /// The address.
        addr: IpAddr,
        /// The device that has it.
        dev: String,
    },
    /// A device does not have that address.
    #[error("{dev} does not have {addr}; {there}")]
    NoAddr {
        /// The address asked for.
        addr: String,
        /// The device.
        dev: String,
        /// Those that it has.
        there: String,
    },
    /// The kernel has the address, too.
    #[error(
        "{dev}: the kernel has {addr}, too, on {holder}: what is sent there would reach softnet alone. Remove it \
         there, or set `shared = true` in its [[device]], which shares it, or `force = true`"
    )]
    KernelHas {
        /// The address.
        addr: IpAddr,
        /// The device.
        dev: String,
        /// The interface that has it.
        holder: String,
    },
    /// The configuration would be wrong with that.
    #[error("nothing was changed: {0}")]
    Config(#[source] ConfigErrors),
    /// What a new configuration says otherwise can't be changed while the stack runs.
    #[error("nothing was changed: {} can't be changed while it runs; restart for that", .0.join(", "))]
    Restart(Vec<String>),
    /// The stack was not started from a configuration file.
    #[error("there is no configuration to read again: the instance was not started from a file")]
    NoFile,
    /// Something of a new configuration is impossible here.
    #[error("nothing was changed: {0}")]
    Impossible(String),
    /// There is no memory for the forwarding table: the change is made with the next one.
    #[error("noted, but not in force before there is memory for the forwarding table: {0}")]
    Fib(#[from] FibError),
}
