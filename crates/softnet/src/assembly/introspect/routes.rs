//! Rows of routes.

use std::sync::Arc;

use softnet_core::ip::adjacency::Kind;
use softnet_core::ip::{Family, Prefix};
use softnet_core::sync::Ordering;

use super::Introspect;
use crate::control::show::{FollowStats, HopRow, RouteRow};
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

    fn hop_row(&self, hop: &Hop, weight: u16) -> HopRow {
        HopRow { via: hop.gateway, dev: self.dev_name(hop.dev), weight }
    }

    fn source(&self, source: Source) -> String {
        match source {
            Source::OWN => "own".into(),
            Source::STATIC => "static".into(),
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

/// What the thread that follows the kernel's routes counts, if there is one.
pub(super) fn follow(shared: &Arc<StackInner>) -> Option<FollowStats> {
    let stats = &shared.follow.as_ref()?.stats;
    let [fib_copies, fib_refused] = shared.routes.read().fib_counters();
    let get = |counter: &softnet_core::sync::AtomicU64| counter.load(Ordering::Relaxed);
    Some(FollowStats {
        events: get(&stats.events),
        published: get(&stats.published),
        lists: get(&stats.lists),
        list_ns: get(&stats.list_ns),
        overruns: get(&stats.overruns),
        errors: get(&stats.errors),
        other_interface: get(&stats.other_interface),
        unsupported: get(&stats.unsupported),
        fib_copies,
        fib_refused,
    })
}
