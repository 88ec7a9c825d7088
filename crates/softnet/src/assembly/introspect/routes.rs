//! Rows of routes.

use std::net::IpAddr;
use std::sync::Arc;

use softnet_core::ip::adjacency::Kind;
use softnet_core::ip::{Family, Prefix};
use softnet_core::sync::Ordering;

use super::Introspect;
use crate::config::format_mac;
use crate::control::show::{FollowStats, FpmStats, HopRow, RouteRow};
use crate::control::{LookupHop, RouteLookup};
use crate::stack::StackInner;
use crate::stack::rib::{Hop, Path, Rib, RibOf, Route, Source};

/// Prefixes that are looked at under one hold of the routes' lock: there may be a million.
const PART: usize = 1024;

impl Introspect {
    /// Hands over the routes, one by one, first those of IPv4. What changes meanwhile is there or not.
    pub(super) fn each_route(&self, mut each: impl FnMut(RouteRow)) {
        self.each_of(|rib| &rib.v4, &mut each);
        self.each_of(|rib| &rib.v6, &mut each);
    }

    fn each_of<A: Family>(&self, of: impl Fn(&Rib) -> &RibOf<A>, each: &mut impl FnMut(RouteRow)) {
        let mut after: Option<Prefix<A>> = None;
        loop {
            let rows = of(&self.shared.routes.read()).rows(after, PART);
            let Some((last, _)) = rows.last() else { return };
            after = Some(last.prefix);
            rows.into_iter().for_each(|(route, used)| each(self.route_row(&route, used)));
        }
    }

    fn route_row<A: Family>(&self, route: &Route<Prefix<A>>, used: bool) -> RouteRow {
        let one = match &route.path {
            Path::Hop(hop) => Some(hop),
            Path::Group(_) => None,
        };
        let hops = match &route.path {
            Path::Hop(_) => Vec::new(),
            Path::Group(members) => members.iter().map(|(hop, weight)| self.hop_row(hop, *weight)).collect(),
        };
        RouteRow {
            prefix: route.prefix.to_string(),
            kind: one.map_or("multipath", |hop| kind(hop.kind)).into(),
            via: one.and_then(|hop| hop.gateway),
            dev: one.filter(|hop| hop.is_sent()).map(|hop| self.dev_name(hop.dev)),
            metric: route.metric,
            source: self.source(route.source),
            hops,
            used,
        }
    }

    /// Which way packets to `addr` go.
    pub fn lookup(&self, addr: IpAddr) -> RouteLookup {
        let found = {
            let rib = self.shared.routes.read();
            match addr {
                IpAddr::V4(addr) => self.looked_up(rib.v4.lookup(addr)),
                IpAddr::V6(addr) => self.looked_up(rib.v6.lookup(addr)),
            }
        };
        let control = self.shared.control();
        let neighbours = control.slow.neighbours();
        let hop = |(hop, weight): (Hop, u16)| {
            let neighbour = hop.gateway.unwrap_or(addr);
            let known = neighbours.entries().find(|entry| (entry.dev, entry.ip) == (hop.dev, neighbour));
            LookupHop {
                neighbour,
                dev: self.dev_name(hop.dev),
                weight,
                open: self.shared.devices[usize::from(hop.dev)].live.load().is_some(),
                state: known.as_ref().map_or("none".into(), |entry| entry.state.name().to_lowercase()),
                mac: known.and_then(|entry| entry.mac).map(format_mac),
            }
        };
        RouteLookup { addr, routes: found.0, hops: found.1.into_iter().map(hop).collect() }
    }

    /// Rows, and the next hops of the route that is used.
    fn looked_up<A: Family>(&self, rows: Vec<(Route<Prefix<A>>, bool)>) -> (Vec<RouteRow>, Vec<(Hop, u16)>) {
        let path = rows.iter().find(|(_, used)| *used).map(|(route, _)| route.path.clone());
        let hops = match path {
            Some(Path::Hop(hop)) if hop.is_sent() => vec![(hop, 1)],
            Some(Path::Group(members)) => members,
            _ => Vec::new(),
        };
        (rows.iter().map(|(route, used)| self.route_row(route, *used)).collect(), hops)
    }

    fn hop_row(&self, hop: &Hop, weight: u16) -> HopRow {
        HopRow { via: hop.gateway, dev: self.dev_name(hop.dev), weight }
    }

    fn source(&self, source: Source) -> String {
        match source {
            Source::OWN => "own".into(),
            Source::MANUAL => "manual".into(),
            Source::STATIC => "static".into(),
            zebra if zebra.is_fpm() => "fpm".into(),
            _ => "kernel".into(),
        }
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Resolve | Kind::Rewrite => "via",
        Kind::Connected => "connected",
        Kind::Local => "local",
        Kind::Broadcast => "broadcast",
        Kind::Blackhole => "blackhole",
        Kind::Prohibit => "prohibit",
        Kind::Multipath => "multipath",
        Kind::Unreachable | Kind::NoRoute => "unreachable",
    }
}

/// What the thread that follows routes counts, if there is one.
pub(super) fn follow(shared: &Arc<StackInner>) -> Option<FollowStats> {
    let follow = shared.follow.as_ref()?;
    let stats = &follow.stats;
    let [fib_copies, fib_refused] = shared.routes.read().fib_counters();
    let get = |counter: &softnet_core::sync::AtomicU64| counter.load(Ordering::Relaxed);
    Some(FollowStats {
        events: get(&stats.events),
        published: get(&stats.published),
        lists: get(&stats.lists),
        list_ns: get(&stats.list_ns),
        list_due: stats.list_due.load(Ordering::Relaxed),
        overruns: get(&stats.overruns),
        errors: get(&stats.errors),
        other_interface: get(&stats.other_interface),
        unsupported: get(&stats.unsupported),
        fib_copies,
        fib_refused,
        fpm: follow.fpm.as_ref().map(|fpm| FpmStats {
            connected: fpm.connected.load(Ordering::Relaxed),
            connections: get(&fpm.connections),
            messages: get(&fpm.messages),
            malformed: get(&fpm.malformed),
            routes: get(&fpm.routes),
            stale: get(&fpm.stale),
        }),
    })
}
