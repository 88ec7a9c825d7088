//! What is told of routes, as the RIB has it: the routes that are followed, and what becomes of
//! them.

use std::collections::HashMap;
use std::net::IpAddr;

use softnet_core::ip::adjacency::Kind;
use softnet_core::ip::v6::addr::is_link_local;
use softnet_core::ip::{IpPrefix, Prefix};
use softnet_core::sync::{AtomicU64, Ordering};
use softnet_dev::netlink::{KernelHop, KernelRoute, RouteKind, RoutePlace};

use crate::config::FollowConfig;
use crate::stack::follow::Follow;
use crate::stack::rib::{Hop, Path, Place, Rib, Route, Source};

pub(super) type Settings<'a> = (&'a FollowConfig, &'a Follow);

/// What told a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feed {
    Kernel,
    Fpm,
}

impl Feed {
    fn source(self, table: usize) -> Source {
        match self {
            Feed::Kernel => Source::kernel(table),
            Feed::Fpm => Source::fpm(table),
        }
    }
}

/// The route as softnet has it; `None` if it is not followed. Without a path if it leads nowhere
/// that softnet has.
fn read(
    ((settings, _), feed): (Settings<'_>, Feed),
    devices: &HashMap<u32, u16>,
    route: &KernelRoute,
) -> Option<(IpPrefix, Source, Option<Path>)> {
    let table = settings.tables.iter().position(|table| *table == route.table)?;
    let (addr, len) = route.to;
    let of_link = match addr {
        IpAddr::V4(addr) => addr.is_multicast(),
        IpAddr::V6(addr) => is_link_local(addr) || addr.is_multicast(),
    };
    // Those of the link have no routes here.
    let prefix: IpPrefix = Prefix::containing(addr, len).ok().filter(|_| !of_link || len == 0)?;
    let hop = |hop: &KernelHop| {
        let dev = *devices.get(&hop.ifindex)?;
        Some((hop.gateway.map_or(Hop::connected(dev), |gateway| Hop::via(dev, gateway)), hop.weight))
    };
    let mut hops: Vec<(Hop, u16)> = route.hops.iter().filter_map(hop).collect();
    if addr.is_ipv6() {
        // The kernel tells them now in this order, now in that one.
        hops.sort_by_key(|(hop, weight)| (hop.dev, hop.gateway, *weight));
    }
    let path = match route.kind {
        _ if route.unsupported => None,
        RouteKind::Blackhole => Some(Path::Hop(Hop::special(Kind::Blackhole))),
        RouteKind::Unreachable => Some(Path::Hop(Hop::special(Kind::Unreachable))),
        RouteKind::Prohibit => Some(Path::Hop(Hop::special(Kind::Prohibit))),
        RouteKind::Unicast if hops.len() > 1 => Some(Path::Group(hops)),
        RouteKind::Unicast => hops.pop().map(|(hop, _)| Path::Hop(hop)),
    };
    Some((prefix, feed.source(table), path))
}

/// What counts routes that are left out for this one's reason.
fn left_out<'a>(((_, follow), _): (Settings<'a>, Feed), kernel: &KernelRoute) -> &'a AtomicU64 {
    if kernel.unsupported { &follow.stats.unsupported } else { &follow.stats.other_interface }
}

pub(super) fn insert(
    rib: &mut Rib,
    follower: (Settings<'_>, Feed),
    devices: &HashMap<u32, u16>,
    kernel: &KernelRoute,
    place: RoutePlace,
    listed: bool,
) {
    let Some((prefix, source, path)) = read(follower, devices, kernel) else { return };
    let Some(path) = path else {
        left_out(follower, kernel).fetch_add(1, Ordering::Relaxed);
        if place == RoutePlace::Replace {
            rib.remove(prefix, |metric, of, _| (metric, of) == (kernel.metric, source));
        }
        return;
    };
    let KernelRoute { metric, protocol, siblings, .. } = *kernel;
    let place = match place {
        _ if listed => Place::Listed { siblings },
        place if siblings => Place::Siblings { replace: place == RoutePlace::Replace },
        RoutePlace::Replace => Place::Replace,
        // IPv6 has no other place for one that comes.
        RoutePlace::Last => Place::Last,
        RoutePlace::First if prefix.addr().is_ipv6() => Place::Last,
        RoutePlace::First => Place::First,
    };
    let route = Route { prefix, path, metric, source, protocol };
    rib.insert(&route, place);
    if let (Path::Group(members), true) = (&route.path, siblings) {
        // A daemon's route may say that it is of an advertisement. Alone it was taken for such.
        let alone =
            |has: &Path| matches!(has, Path::Hop(hop) if members.iter().any(|(member, _)| member == hop));
        while rib.remove(prefix, |of, from, has| (of, from) == (metric, source) && alone(has)) {}
    }
}

/// A route of zebra's was as `before`, and is as `now`.
pub(super) fn change(
    rib: &mut Rib,
    follower: Settings<'_>,
    devices: &HashMap<u32, u16>,
    before: Option<&KernelRoute>,
    now: Option<&KernelRoute>,
) {
    let follower = (follower, Feed::Fpm);
    if let Some(before) = before {
        // In its place, if it has one that the other can take.
        let path = read(follower, devices, before).and_then(|(_, _, path)| path);
        if path.is_none() || now.is_none_or(|now| now.metric != before.metric) {
            remove(rib, follower, devices, before);
        }
    }
    if let Some(now) = now {
        insert(rib, follower, devices, now, RoutePlace::Replace, false);
    }
}

pub(super) fn remove(
    rib: &mut Rib,
    follower: (Settings<'_>, Feed),
    devices: &HashMap<u32, u16>,
    kernel: &KernelRoute,
) {
    let Some((prefix, source, path)) = read(follower, devices, kernel) else { return };
    let Some(path) = path else {
        let counter = left_out(follower, kernel);
        let less = counter.load(Ordering::Relaxed).saturating_sub(1);
        counter.store(less, Ordering::Relaxed);
        return;
    };
    let alike = |metric: u32, of: Source| (metric, of) == (kernel.metric, source);
    if rib.remove(prefix, |metric, of, has| alike(metric, of) && *has == path) {
        return;
    }
    // Of IPv6 one next hop may go, and the others stay.
    let Path::Hop(gone) = path else { return };
    rib.replace_path(prefix, |metric, of, has| match has {
        Path::Group(members) if alike(metric, of) && members.iter().any(|(hop, _)| *hop == gone) => {
            let mut left: Vec<_> = members.iter().filter(|(hop, _)| *hop != gone).copied().collect();
            match left.len() {
                0 | 1 => left.pop().map(|(hop, _)| Path::Hop(hop)),
                _ => Some(Path::Group(left)),
            }
        }
        _ => None,
    });
}
