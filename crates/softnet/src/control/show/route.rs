//! Routes, and what became of the kernel's, as `show` tells of them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RouteRow {
    /// Destinations it is for: `10.0.0.0/8`.
    pub prefix: String,
    /// `connected`, `local`, `broadcast`, `via`, `multipath`, `blackhole`, `unreachable`, `prohibit`.
    pub kind: String,
    /// Gateway.
    pub via: Option<IpAddr>,
    /// Device.
    pub dev: Option<String>,
    /// Of the routes to a prefix the one with the lowest is used.
    #[serde(default)]
    pub metric: u32,
    /// Where it is from: `own` addresses, changes by hand (`manual`), the configuration
    /// (`static`), the `kernel`, zebra (`fpm`).
    #[serde(default)]
    pub source: String,
    /// The next hops of a `multipath` route.
    #[serde(default)]
    pub hops: Vec<HopRow>,
    /// Whether it is used, and no other route to the same prefix.
    #[serde(default)]
    pub used: bool,
}

/// One next hop of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HopRow {
    /// Gateway; none if destinations are on the device's link.
    pub via: Option<IpAddr>,
    /// Device.
    pub dev: String,
    /// Its share of the flows.
    pub weight: u16,
}

/// What became of the kernel's routes, if they are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FollowStats {
    /// Changes of routes that the kernel told.
    pub events: u64,
    /// Batches in which they were published.
    pub published: u64,
    /// Times that all routes were listed.
    pub lists: u64,
    /// ns that the last list took.
    pub list_ns: u64,
    /// All routes are to be listed again, or are being listed: until then some may be of before. Lists of
    /// many routes are some seconds apart.
    #[serde(default)]
    pub list_due: bool,
    /// Times that the kernel dropped notifications for want of buffer space, and all routes were
    /// listed for that.
    pub overruns: u64,
    /// Times that the kernel could not be asked or heard, and all routes were listed after a second.
    pub errors: u64,
    /// Routes that are not followed because softnet has not taken their interface.
    pub other_interface: u64,
    /// Routes that are not followed because they have what softnet does not do: encapsulation, a
    /// gateway of the other family, a type of service, a source prefix.
    pub unsupported: u64,
    /// Times that a FIB was copied as a whole, because a thread still read the copy that was to be changed.
    pub fib_copies: u64,
    /// Changes for which the FIB had no room.
    pub fib_refused: u64,
    /// What zebra tells, if routes come by FPM.
    #[serde(default)]
    pub fpm: Option<FpmStats>,
}

/// What zebra tells by FPM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FpmStats {
    /// zebra is connected.
    pub connected: bool,
    /// Connections that there were.
    pub connections: u64,
    /// Messages of rtnetlink that were told.
    pub messages: u64,
    /// Connections that were ended since what they told was no FPM.
    pub malformed: u64,
    /// Routes that zebra has told, and has not taken back.
    pub routes: u64,
    /// Those of them that an earlier connection told, and this one has not yet: they go after the
    /// hold time.
    pub stale: u64,
}
