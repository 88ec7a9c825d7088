//! The routes that zebra has told by FPM, with the next-hop objects that they name: what a list of
//! the kernel's is for the kernel's routes.
//!
//! zebra has one route for each prefix of a table: a new one is in the place of that before. Each
//! connection is a session: zebra tells everything anew, and numbers objects as it likes, so that
//! objects of one session mean nothing in the next. Routes of earlier sessions, which are stale,
//! keep the next hops that they had.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use libc::{RTM_DELROUTE, RTM_NEWROUTE, RTN_THROW};

use super::super::fib::{
    KernelHop, KernelRoute, Object, RTM_DELNEXTHOP, RTM_NEWNEXTHOP, RTPROT_KERNEL, RouteKind, by_object,
    object, object_id, route_and_object,
};

/// What a route is of: a table and a prefix.
type Key = (u32, (IpAddr, u8));

/// Where a route leads. Many routes share one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ways {
    kind: RouteKind,
    hops: Vec<KernelHop>,
    unsupported: bool,
}

#[derive(Clone, Debug)]
struct Told {
    ways: Arc<Ways>,
    metric: u32,
    /// The next-hop object that it names.
    object: Option<u32>,
    session: u32,
    protocol: u8,
}

impl Told {
    fn route(&self, (table, to): Key) -> KernelRoute {
        let Told { ways, metric, protocol, .. } = self;
        let Ways { kind, unsupported, .. } = **ways;
        let (metric, protocol, hops) = (*metric, *protocol, ways.hops.clone());
        KernelRoute { to, table, metric, protocol, kind, hops, siblings: false, unsupported }
    }

    /// Whether packets notice no difference.
    fn is_like(&self, other: &Told) -> bool {
        (self.metric, self.protocol, &self.ways) == (other.metric, other.protocol, &other.ways)
    }
}

/// Reads a route, without what the object leads to that it names. `None` also for one that is by
/// more than the destination: another of the same prefix may be beside it.
fn read(payload: &[u8]) -> Option<(KernelRoute, Option<u32>)> {
    // Lengths of the prefixes, type of service, ..., what it does.
    let [_, _, 0, 0, _, _, _, kind, ..] = *payload else { return None };
    route_and_object(payload, &HashMap::new()).filter(|_| kind != RTN_THROW)
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Routes {
    routes: HashMap<Key, Told>,
    objects: HashMap<u32, Object>,
    /// How many routes of this session name an object.
    uses: HashMap<u32, u32>,
    /// Objects that changed since routes were looked at for that.
    changed: HashSet<u32>,
    /// Where objects lead, of those that are used.
    resolved: HashMap<(u32, bool), Arc<Ways>>,
    /// Where the last route without an object leads: that of the next is often the same.
    last: Option<Arc<Ways>>,
    /// What was before, of prefixes that were touched since changes were taken.
    before: HashMap<Key, Option<Told>>,
    session: u32,
    /// Routes of earlier sessions.
    stale: usize,
}

impl Routes {
    /// How many there are, and how many of them are stale.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.routes.len(), self.stale)
    }

    /// A connection begins to tell.
    pub(super) fn begin_session(&mut self) {
        self.look_at_objects();
        self.session = self.session.wrapping_add(1);
        self.objects.clear();
        self.uses.clear();
        self.resolved.clear();
        self.stale = self.routes.len();
    }

    /// Takes a message; others than of routes and next-hop objects say nothing here.
    pub(super) fn message(&mut self, kind: u16, payload: &[u8]) {
        match kind {
            RTM_NEWROUTE => {
                let Some((route, object)) = read(payload) else { return };
                let key = (route.table, route.to);
                if route.protocol == RTPROT_KERNEL {
                    // The network of an address, or what zebra has read from the kernel's table, is
                    // in the place of zebra's own. The kernel tells of it; zebra, from FRR 10 on,
                    // does not when it goes.
                    return self.remove(key);
                }
                let KernelRoute { to, metric, protocol, kind, hops, unsupported, .. } = route;
                let object = object.filter(|_| hops.is_empty() && kind == RouteKind::Unicast);
                let ways = match object {
                    Some(id) => self.resolve(id, to.0.is_ipv4()),
                    None => self.share(Ways { kind, hops, unsupported }),
                };
                self.insert(key, Told { ways, metric, object, session: self.session, protocol });
            }
            RTM_DELROUTE => {
                if let Some((route, _)) = read(payload) {
                    self.remove((route.table, route.to));
                }
            }
            RTM_NEWNEXTHOP => {
                let Some((id, object)) = object(payload) else { return };
                if self.objects.get(&id) != Some(&object) {
                    self.objects.insert(id, object);
                    self.changed.insert(id);
                    self.resolved.clear();
                }
            }
            RTM_DELNEXTHOP => {
                if let Some(id) = object_id(payload)
                    && self.objects.remove(&id).is_some()
                {
                    self.changed.insert(id);
                    self.resolved.clear();
                }
            }
            _ => {}
        }
    }

    fn share(&mut self, ways: Ways) -> Arc<Ways> {
        let shared = self.last.take().filter(|last| **last == ways).unwrap_or_else(|| Arc::new(ways));
        self.last = Some(shared.clone());
        shared
    }

    /// Where an object leads, for routes of IPv4 or of IPv6.
    fn resolve(&mut self, id: u32, v4: bool) -> Arc<Ways> {
        let objects = &self.objects;
        let resolve = || {
            let ways = by_object(id, objects);
            let odd = |hop: &KernelHop| hop.gateway.is_some_and(|gateway| gateway.is_ipv4() != v4);
            let unsupported = ways.unsupported || ways.hops.iter().any(odd);
            Arc::new(Ways { kind: ways.kind, hops: ways.hops, unsupported })
        };
        self.resolved.entry((id, v4)).or_insert_with(resolve).clone()
    }

    fn insert(&mut self, key: Key, told: Told) {
        if let Some(id) = told.object {
            *self.uses.entry(id).or_default() += 1;
        }
        let old = self.routes.insert(key, told);
        self.replaced(key, old);
    }

    fn remove(&mut self, key: Key) {
        if let Some(old) = self.routes.remove(&key) {
            self.replaced(key, Some(old));
        }
    }

    /// Notes that `old` was there before, and is not any more.
    fn replaced(&mut self, key: Key, old: Option<Told>) {
        match &old {
            Some(old) if old.session != self.session => self.stale -= 1,
            Some(Told { object: Some(id), .. }) => {
                if let Some(uses) = self.uses.get_mut(id) {
                    *uses -= 1;
                    if *uses == 0 {
                        self.uses.remove(id);
                    }
                }
            }
            _ => {}
        }
        self.before.entry(key).or_insert(old);
    }

    /// Takes away what is stale. How many that were.
    pub(super) fn expire(&mut self) -> usize {
        let session = self.session;
        let stale: Vec<Key> =
            self.routes.iter().filter(|(_, told)| told.session != session).map(|(key, _)| *key).collect();
        stale.iter().for_each(|key| self.remove(*key));
        stale.len()
    }

    /// Has routes lead where the objects that they name lead now. Those of an object that is gone
    /// are gone with it, as in the kernel.
    fn look_at_objects(&mut self) {
        let changed = std::mem::take(&mut self.changed);
        let concerns = |id: &u32| match self.objects.get(id) {
            _ if changed.contains(id) => true,
            Some(Object::Group(members)) => members.iter().any(|(id, _)| changed.contains(id)),
            _ => false,
        };
        let used: HashSet<u32> = self.uses.keys().filter(|id| concerns(id)).copied().collect();
        if used.is_empty() {
            return;
        }
        let of = |told: &Told| told.object.filter(|id| told.session == self.session && used.contains(id));
        let routes: Vec<(Key, u32)> =
            self.routes.iter().filter_map(|(key, told)| Some((*key, of(told)?))).collect();
        for (key, id) in routes {
            if !self.objects.contains_key(&id) {
                self.remove(key);
                continue;
            }
            let ways = self.resolve(id, key.1.0.is_ipv4());
            if let Some(told) = self.routes.get_mut(&key)
                && told.ways != ways
            {
                let old = std::mem::replace(told, Told { ways, ..told.clone() });
                self.before.entry(key).or_insert(Some(old));
            }
        }
    }

    /// Hands over what was and what is of each prefix that changed since the last time.
    pub(super) fn take_changes(&mut self, mut told: impl FnMut(Option<KernelRoute>, Option<KernelRoute>)) {
        self.look_at_objects();
        for (key, before) in std::mem::take(&mut self.before) {
            let now = self.routes.get(&key);
            match (&before, now) {
                (None, None) => {}
                (Some(before), Some(now)) if before.is_like(now) => {}
                _ => told(before.map(|old| old.route(key)), now.map(|now| now.route(key))),
            }
        }
    }

    /// All there are.
    pub(super) fn all(&self) -> impl Iterator<Item = KernelRoute> {
        self.routes.iter().map(|(key, told)| told.route(*key))
    }
}

#[cfg(any(test, fuzzing))]
impl Routes {
    /// Counts agree with what there is.
    pub(super) fn check(&self) {
        let fresh = self.routes.values().filter(|told| told.session == self.session);
        assert_eq!(self.routes.len() - fresh.clone().count(), self.stale);
        let mut uses = HashMap::new();
        fresh.filter_map(|told| told.object).for_each(|id| *uses.entry(id).or_default() += 1);
        assert_eq!(uses, self.uses);
    }
}
