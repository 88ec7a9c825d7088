//! What routes lead to, each thing once: a million routes have a handful of paths. Their numbers
//! are the FIB's next hops.
//!
//! Owned by the [table](super::RibOf). A path is counted for each route, and each group, that has
//! it, and its number is free when none has. Invariant: number 0 is that of no route; members of a
//! group are paths that are none.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use softnet_core::ip::Family;
use softnet_core::ip::adjacency::{Adjacency, Kind};
use softnet_core::ip::iface::Iface;
use softnet_core::ip::tables::Routing;

use super::buckets;

/// What becomes of destinations, unresolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hop {
    /// What is done with a packet.
    pub kind: Kind,
    /// The device it leaves by, if it does.
    pub dev: u16,
    /// The router that they are sent to, if [`Kind::Resolve`].
    pub gateway: Option<IpAddr>,
}

impl Hop {
    /// Sent to no neighbour.
    pub(crate) fn special(kind: Kind) -> Hop {
        Hop { kind, dev: 0, gateway: None }
    }

    /// The destination is on the link of `dev`.
    pub(crate) fn connected(dev: u16) -> Hop {
        Hop { kind: Kind::Connected, dev, gateway: None }
    }

    /// By `gateway` on the link of `dev`.
    pub(crate) fn via(dev: u16, gateway: IpAddr) -> Hop {
        Hop { kind: Kind::Resolve, dev, gateway: Some(gateway) }
    }

    /// Whether packets leave by a device.
    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.kind, Kind::Connected | Kind::Resolve)
    }

    fn adjacency<A: Family>(&self) -> Adjacency<A> {
        let gateway = self.gateway.and_then(A::of).unwrap_or(A::UNSPECIFIED);
        Adjacency { dev: self.dev, gateway, ..Adjacency::special(self.kind) }
    }
}

/// What a route leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Path {
    /// One next hop.
    Hop(Hop),
    /// Several, each with its weight.
    Group(Vec<(Hop, u16)>),
}

/// A path by the numbers of its parts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Parts {
    Free,
    Hop(Hop),
    Group(Box<[(u32, u16)]>),
}

struct Slot {
    parts: Parts,
    uses: u32,
    /// Whether packets can leave by it now.
    usable: bool,
    /// Of a group, which one it is of [`Routing::groups`].
    group: u32,
}

/// See the [module](self).
pub(super) struct Paths {
    slots: Vec<Slot>,
    numbers: HashMap<Parts, u32>,
    free: Vec<u32>,
    /// The groups' buckets, by number; empty of one that is free.
    groups: Vec<Arc<[u32]>>,
    free_groups: Vec<u32>,
    /// Those that were not published as they are now.
    changed: BTreeSet<u32>,
    /// Next hops that no route had any more, for a while at least, since they were published.
    gone: Vec<Hop>,
    groups_changed: bool,
    /// The devices that are there.
    open: Vec<bool>,
}

impl Default for Paths {
    fn default() -> Self {
        let no_route = Parts::Hop(Hop::special(Kind::NoRoute));
        let slot = Slot { parts: no_route.clone(), uses: 1, usable: true, group: 0 };
        Paths {
            slots: vec![slot],
            numbers: HashMap::from([(no_route, 0)]),
            free: Vec::new(),
            groups: Vec::new(),
            free_groups: Vec::new(),
            changed: BTreeSet::new(),
            gone: Vec::new(),
            groups_changed: false,
            open: Vec::new(),
        }
    }
}

impl Paths {
    /// The number of `path`, which has one more user. A group's flows stay where they were in the
    /// group `like`, as far as they can.
    pub(super) fn acquire(&mut self, path: &Path, like: Option<u32>) -> u32 {
        let parts = match path {
            Path::Hop(hop) => Parts::Hop(*hop),
            Path::Group(members) => {
                let number = |(hop, weight): &(Hop, u16)| (self.acquire(&Path::Hop(*hop), None), *weight);
                Parts::Group(members.iter().map(number).collect())
            }
        };
        if let Some(&number) = self.numbers.get(&parts) {
            self.slots[number as usize].uses += 1;
            self.release_members(&parts);
            return number;
        }
        let mut slot = Slot { parts: parts.clone(), uses: 1, usable: true, group: 0 };
        if let Parts::Group(_) = parts {
            let old = like.and_then(|like| self.buckets(like)).unwrap_or_else(|| Arc::from([]));
            slot.group = self.free_groups.pop().unwrap_or(self.groups.len() as u32);
            self.groups.resize(self.groups.len().max(slot.group as usize + 1), Arc::from([]));
            self.groups[slot.group as usize] = old;
            // Even if its buckets are as those that it begins with.
            self.groups_changed = true;
        }
        let number = match self.free.pop() {
            Some(number) => {
                self.slots[number as usize] = slot;
                number
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        };
        self.numbers.insert(parts, number);
        self.changed.insert(number);
        self.look_again(number);
        number
    }

    /// The path has one user less.
    pub(super) fn release(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        slot.uses -= 1;
        if slot.uses > 0 {
            return;
        }
        let parts = std::mem::replace(&mut slot.parts, Parts::Free);
        if let Parts::Group(_) = parts {
            let group = slot.group;
            self.groups[group as usize] = Arc::from([]);
            self.free_groups.push(group);
            self.groups_changed = true;
        }
        if let Parts::Hop(hop) = parts {
            self.gone.extend(hop.gateway.map(|_| hop));
        }
        self.numbers.remove(&parts);
        self.free.push(number);
        self.changed.insert(number);
        self.release_members(&parts);
    }

    fn release_members(&mut self, parts: &Parts) {
        if let Parts::Group(members) = parts {
            members.iter().for_each(|(member, _)| self.release(*member));
        }
    }

    /// Whether packets can leave by it now.
    pub(super) fn is_usable(&self, number: u32) -> bool {
        self.slots[number as usize].usable
    }

    /// What `number` stands for.
    pub(super) fn get(&self, number: u32) -> Path {
        let hop = |number: u32| match &self.slots[number as usize].parts {
            Parts::Hop(hop) => *hop,
            _ => Hop::special(Kind::NoRoute),
        };
        match &self.slots[number as usize].parts {
            Parts::Group(members) => Path::Group(members.iter().map(|(n, w)| (hop(*n), *w)).collect()),
            _ => Path::Hop(hop(number)),
        }
    }

    /// The gateways of all paths, by device and address.
    pub(super) fn gateways(&self) -> impl Iterator<Item = (u16, IpAddr)> {
        self.slots.iter().filter_map(gateway)
    }

    /// Takes note of a device that is there, or not any more. Whether that changed which paths can be used.
    pub(super) fn set_open(&mut self, dev: u16, open: bool) -> bool {
        let dev = usize::from(dev);
        self.open.resize(self.open.len().max(dev + 1), false);
        if std::mem::replace(&mut self.open[dev], open) == open {
            return false;
        }
        // First single next hops, then groups of them.
        let all = 1..self.slots.len() as u32;
        let is_group = |paths: &Self, n: u32| matches!(paths.slots[n as usize].parts, Parts::Group(_));
        let (groups, hops): (Vec<u32>, Vec<u32>) = all.partition(|n| is_group(self, *n));
        let mut changed = false;
        for number in hops.into_iter().chain(groups) {
            changed |= self.look_again(number);
        }
        changed
    }

    /// Finds out whether the path can be used, and how a group's flows are spread. Whether that is
    /// another answer than before.
    fn look_again(&mut self, number: u32) -> bool {
        let slot = &self.slots[number as usize];
        let usable = match &slot.parts {
            Parts::Free => return false,
            Parts::Hop(hop) => {
                !hop.is_sent() || self.open.get(usize::from(hop.dev)).copied().unwrap_or(false)
            }
            Parts::Group(members) => {
                let usable = |n: u32| self.slots[n as usize].usable;
                let some = members.iter().any(|(n, _)| usable(*n));
                // If none can be used, it is as if all could.
                let weights: Vec<_> = members.iter().filter(|(n, _)| !some || usable(*n)).copied().collect();
                let old = &self.groups[slot.group as usize];
                let new = buckets::fill(&weights, old);
                if new[..] != old[..] {
                    self.groups[slot.group as usize] = new.into();
                    self.groups_changed = true;
                }
                some
            }
        };
        std::mem::replace(&mut self.slots[number as usize].usable, usable) != usable
    }

    fn buckets(&self, number: u32) -> Option<Arc<[u32]>> {
        let slot = &self.slots[number as usize];
        matches!(slot.parts, Parts::Group(_)).then(|| self.groups[slot.group as usize].clone())
    }

    /// Whether anything is to be published.
    pub(super) fn is_changed(&self) -> bool {
        self.groups_changed || !self.changed.is_empty()
    }

    /// Brings `routing` up to date. Returns which gateways came and went.
    pub(super) fn publish<A: Family>(
        &mut self,
        routing: &mut Routing<A>,
        ifaces: &[Option<Iface>],
    ) -> Gateways {
        let mut gateways = Gateways::default();
        for hop in std::mem::take(&mut self.gone) {
            if !self.numbers.contains_key(&Parts::Hop(hop)) {
                gateways.gone.extend(hop.gateway.map(|gateway| (hop.dev, gateway)));
            }
        }
        for number in std::mem::take(&mut self.changed) {
            let slot = &self.slots[number as usize];
            gateways.come.extend(gateway(slot));
            let hop = match &slot.parts {
                Parts::Free => Adjacency::special(Kind::NoRoute),
                Parts::Hop(hop) => hop.adjacency(),
                Parts::Group(_) => Adjacency::multipath(slot.group),
            };
            routing.set_next_hop(number, hop, ifaces);
        }
        if std::mem::take(&mut self.groups_changed) {
            routing.groups.clone_from(&self.groups);
        }
        gateways
    }
}

/// What became of gateways, each known by device and address. One is in one list only.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Gateways {
    /// Routes lead by them; they may have before.
    pub come: Vec<(u16, IpAddr)>,
    /// None does any more.
    pub gone: Vec<(u16, IpAddr)>,
}

impl Gateways {
    /// Adds those of another family.
    pub(crate) fn extend(&mut self, other: Gateways) {
        self.come.extend(other.come);
        self.gone.extend(other.gone);
    }
}

fn gateway(slot: &Slot) -> Option<(u16, IpAddr)> {
    match &slot.parts {
        Parts::Hop(hop) => Some((hop.dev, hop.gateway?)),
        _ => None,
    }
}
