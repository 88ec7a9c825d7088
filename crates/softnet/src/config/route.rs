//! `[[route]]`: routes of the configuration.

use std::net::{IpAddr, Ipv6Addr};

use super::IpPrefix;

/// `[[route]]`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RouteConfig {
    /// Destinations it is for.
    pub to: IpPrefix,
    /// What becomes of them.
    pub target: RouteTarget,
    /// Among routes to the same destinations the lowest that can be used goes first.
    pub metric: u32,
}

impl RouteConfig {
    /// A route to `to`, with metric 0.
    pub fn new(to: IpPrefix, target: RouteTarget) -> Self {
        RouteConfig { to, target, metric: 0 }
    }

    /// The same with this metric.
    pub fn metric(self, metric: u32) -> Self {
        RouteConfig { metric, ..self }
    }
}

/// What a route does with a packet.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RouteTarget {
    /// To this gateway, which must be on a connected network.
    Via(IpAddr),
    /// To this gateway, whose link-local address is on this device's link.
    ViaLinkLocal(Ipv6Addr, String),
    /// Straight to the destination on this device's link.
    Dev(String),
    /// Discard without a word.
    Blackhole,
    /// Discard and answer with an ICMP host unreachable, or address unreachable.
    Unreachable,
    /// Discard and answer with an ICMP error that says that it is forbidden.
    Prohibit,
    /// By one of these, each flow by one.
    NextHops(Vec<NextHopConfig>),
}

/// One of several next hops of a route.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NextHopConfig {
    /// [`Via`](RouteTarget::Via), [`ViaLinkLocal`](RouteTarget::ViaLinkLocal) or [`Dev`](RouteTarget::Dev).
    pub target: RouteTarget,
    /// Its share of the flows, from 1 to 256.
    pub weight: u16,
}

impl NextHopConfig {
    /// Of so much `weight`.
    pub fn new(target: RouteTarget, weight: u16) -> Self {
        NextHopConfig { target, weight }
    }
}
