//! Changes of routes, neighbours, addresses and links that are asked of a running instance, and a look-up of
//! a route, as plain data in the words of `ip`.
//!
//! Only types: [`live`](crate::live) says what they mean and carries them out.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::show::RouteRow;
use crate::driver::LinkChange;

/// What to do to a route, a neighbour or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LiveAction {
    /// Add one that is not there yet.
    Add,
    /// Add it, or have it take the place of the one that is there.
    Replace,
    /// Remove one.
    Del,
    /// Remove all that fit.
    Flush,
}

/// What a route does with packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteType {
    /// Sends them to its next hops.
    #[default]
    Unicast,
    /// Discards them without a word.
    Blackhole,
    /// Discards them and answers with an ICMP host unreachable, or address unreachable.
    Unreachable,
    /// Discards them and answers that it is prohibited.
    Prohibit,
}

/// A next hop: a gateway, a device, or both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextHop {
    /// The gateway, on a network of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<IpAddr>,
    /// The device. It can be left out beside a gateway that is on the network of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<String>,
    /// Its share of the flows, from 1 to 256.
    #[serde(default = "one")]
    pub weight: u16,
}

fn one() -> u16 {
    1
}

/// A change of routes: `{"action": "add", "to": "10.9.0.0/16", "nexthops": [{"via": "10.0.0.9"}]}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetRoute {
    /// What to do.
    pub action: LiveAction,
    /// Destinations: a prefix or an address. Needed by all but a flush.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// What it does with packets.
    #[serde(default)]
    pub kind: RouteType,
    /// Where it leads. To delete a route they need not be given; to flush, one device alone may be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nexthops: Vec<NextHop>,
    /// Lower ones go first; 0 if it is left out, and any to delete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
}

/// A change of neighbours: `{"action": "add", "dev": "eth1", "to": "10.0.0.9", "lladdr": "02:00:00:00:00:09"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetNeigh {
    /// What to do.
    pub action: LiveAction,
    /// The device.
    pub dev: String,
    /// The neighbour's address. Needed by all but a flush.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<IpAddr>,
    /// Its MAC address, to add or replace it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lladdr: Option<String>,
}

/// A change of a device's addresses: `{"action": "add", "dev": "eth1", "addr": "10.0.0.5/24"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetAddr {
    /// What to do.
    pub action: LiveAction,
    /// The device.
    pub dev: String,
    /// The address with the length of its network. Needed by all but a flush.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addr: Option<String>,
}

/// A change of a device's link: `{"dev": "eth1", "change": "down"}`, or `{"dev": "eth1", "change": {"mtu": 1400}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetLink {
    /// The device.
    pub dev: String,
    /// What to change.
    pub change: LinkChange,
}

/// What became of a configuration that was read again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// What was changed, a line for each thing; none if the configuration says what it said.
    pub changes: Vec<String>,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveAnswer {
    /// Routes, neighbours or addresses that were added or removed, or links that were changed.
    pub changed: u64,
}

/// Which way packets to an address go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RouteLookup {
    /// The address.
    pub addr: IpAddr,
    /// The routes of the longest prefix that it is in; none if there is no route.
    pub routes: Vec<RouteRow>,
    /// The next hops of the one that is used, if packets leave by a device.
    pub hops: Vec<LookupHop>,
}

/// A next hop of a [`RouteLookup`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LookupHop {
    /// The neighbour that packets are sent to: the gateway, or the destination itself.
    pub neighbour: IpAddr,
    /// The device that they leave by.
    pub dev: String,
    /// Its share of the flows.
    pub weight: u16,
    /// Whether the device is open.
    pub open: bool,
    /// State of the neighbour, as in `show neigh`; `none` if nothing is known of it yet.
    pub state: String,
    /// Its MAC address, once that is known.
    pub mac: Option<String>,
}
