//! The table itself: entries, their deadlines, and the transitions between their states.
//!
//! One owner. Invariants: an entry's deadline is in `deadlines` exactly while it is not [`NEVER`]; only
//! incomplete entries have a queue; `held` is the sum of all queues.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::super::{MacAddr, is_group};
use super::{Action, Actions, Heard, NeighEntry, NeighParams, NeighState};
use crate::skb::{DropReason, Skb, SkbList};

/// Device and address.
type Key = (u16, IpAddr);

/// The deadline of an entry that has none.
const NEVER: u64 = u64::MAX;

/// A full table may not be searched for room at packet rate: at most once in this time (ns).
const FORCED_GC_INTERVAL: u64 = 1_000_000_000;

/// A stale entry younger than this (ns) is not thrown out even of a full table, as in `neigh_forced_gc`.
const FORCED_GC_AGE: u64 = 5_000_000_000;

/// Shortest time between two requests (ns), as in `__neigh_event_send`.
const MIN_RETRANS: u64 = 10_000_000;

struct Entry {
    state: NeighState,
    mac: MacAddr,
    /// Requests sent in this state.
    probes: u32,
    /// When the state was entered.
    since: u64,
    /// When the binding was last heard to change; for `locktime`.
    updated: u64,
    /// In `Failed`: until when packets fail without a new request.
    hold_until: u64,
    deadline: u64,
    queue: SkbList,
}

impl Entry {
    fn new(now: u64) -> Self {
        Entry {
            state: NeighState::None,
            mac: [0; 6],
            probes: 0,
            since: now,
            updated: now,
            hold_until: now,
            deadline: NEVER,
            queue: SkbList::new(),
        }
    }

    fn valid_mac(&self) -> Option<MacAddr> {
        self.state.is_valid().then_some(self.mac)
    }
}

/// Deadlines of all entries, and what it takes to set them.
struct Timers {
    params: NeighParams,
    deadlines: BTreeSet<(u64, Key)>,
    rng: u64,
}

impl Timers {
    fn arm(&mut self, key: Key, entry: &mut Entry, at: u64) {
        if entry.deadline != NEVER {
            self.deadlines.remove(&(entry.deadline, key));
        }
        entry.deadline = at;
        if at != NEVER {
            self.deadlines.insert((at, key));
        }
    }

    fn retrans_time(&self) -> u64 {
        self.params.retrans_time.max(MIN_RETRANS)
    }

    /// `base_reachable_time` times 0.5 to 1.5, so that entries made together do not expire together
    /// (RFC 4861 section 6.3.2).
    fn reachable_time(&mut self) -> u64 {
        // splitmix64.
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.rng ^ self.rng >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let base = u128::from(self.params.base_reachable_time);
        (base / 2 + ((base * u128::from(z >> 32)) >> 32)).min(u128::from(NEVER - 1)) as u64
    }

    /// Puts `entry` into `state`, sets its deadline, publishes it, and sends the first request where the state
    /// begins with one.
    fn enter(&mut self, now: u64, key: Key, entry: &mut Entry, state: NeighState, actions: &mut Actions) {
        use NeighState::*;
        let wait = match state {
            None | Permanent => NEVER,
            Incomplete | Probe => self.retrans_time(),
            Reachable => self.reachable_time(),
            Stale | Failed => self.params.gc_stale_time,
            Delay => self.params.delay_first_probe_time,
        };
        entry.state = state;
        entry.since = now;
        entry.probes = 0;
        self.arm(key, entry, now.saturating_add(wait));
        let (dev, ip) = key;
        actions.push(Action::Publish { dev, ip, state, mac: entry.valid_mac() });
        if matches!(state, Incomplete | Probe) {
            self.solicit(key, entry, actions);
        }
    }

    fn solicit(&mut self, (dev, target): Key, entry: &mut Entry, actions: &mut Actions) {
        entry.probes += 1;
        actions.push(Action::Solicit { dev, target, unicast_to: entry.valid_mac() });
    }
}

/// The neighbour table of all devices.
pub struct NeighTable {
    entries: BTreeMap<Key, Entry>,
    timers: Timers,
    permanent: usize,
    held: usize,
    table_fulls: u64,
    next_forced_gc: u64,
}

impl NeighTable {
    /// An empty table. `seed` starts the sequence of random factors.
    pub fn new(params: NeighParams, seed: u64) -> Self {
        NeighTable {
            entries: BTreeMap::new(),
            timers: Timers { params, deadlines: BTreeSet::new(), rng: seed },
            permanent: 0,
            held: 0,
            table_fulls: 0,
            next_forced_gc: 0,
        }
    }

    /// `skb` is to go to `ip` (a unicast address on the link of `dev`) and the fast path has no MAC address for
    /// that. It comes out at once if the table has one or the neighbour failed just now; otherwise it waits,
    /// and if too many do, the oldest one for the same
    /// neighbour is failed.
    pub fn resolve(&mut self, now: u64, dev: u16, ip: IpAddr, skb: Skb, actions: &mut Actions) {
        let key = (dev, ip);
        if !self.entries.contains_key(&key) && !self.make_room(now, actions) {
            return fail(key, DropReason::NeighTableFull, skb, actions);
        }
        let entry = self.entries.entry(key).or_insert_with(|| Entry::new(now));
        match entry.state {
            NeighState::Incomplete => {}
            NeighState::Failed if now < entry.hold_until => {
                return fail(key, DropReason::NeighFailed, skb, actions);
            }
            NeighState::None | NeighState::Failed => {
                self.timers.enter(now, key, entry, NeighState::Incomplete, actions);
            }
            _ => {
                if entry.state == NeighState::Stale {
                    self.timers.enter(now, key, entry, NeighState::Delay, actions);
                }
                let (skbs, mac) = (one(skb), entry.mac);
                return actions.push(Action::Transmit { dev, mac, skbs });
            }
        }
        let params = &self.timers.params;
        if entry.queue.len() >= params.unres_qlen || self.held >= params.unres_total {
            let Some(oldest) = entry.queue.pop_front() else {
                return fail(key, DropReason::NeighQueueFull, skb, actions);
            };
            self.held -= 1;
            fail(key, DropReason::NeighQueueFull, oldest, actions);
        }
        match entry.queue.push_back(skb) {
            Ok(()) => self.held += 1,
            // A list links skbs of one region only.
            Err(skb) => fail(key, DropReason::NeighQueueFull, skb, actions),
        }
    }

    /// A packet went to the MAC address of `ip` while that was stale: it gets
    /// `delay_first_probe_time` to show that it is alive. Nothing happens in any other state.
    pub fn used(&mut self, now: u64, dev: u16, ip: IpAddr, actions: &mut Actions) {
        let key = (dev, ip);
        if let Some(entry) = self.entries.get_mut(&key)
            && entry.state == NeighState::Stale
        {
            self.timers.enter(now, key, entry, NeighState::Delay, actions);
        }
    }

    /// `ip` at `mac` was heard by `dev`; `ip` must be on that link and not ours. What that changes is, for ARP, as in the
    /// kernel's `arp_process` with `arp_accept` 0, and for advertisements as in RFC 4861 section 7.2.5.
    pub fn input(
        &mut self,
        now: u64,
        dev: u16,
        ip: IpAddr,
        mac: MacAddr,
        heard: Heard,
        actions: &mut Actions,
    ) {
        if is_group(&mac) {
            return;
        }
        let key = (dev, ip);
        if !self.entries.contains_key(&key) && (heard != Heard::Request || !self.make_room(now, actions)) {
            return;
        }
        let entry = self.entries.entry(key).or_insert_with(|| Entry::new(now));
        let known = entry.state.is_valid();
        let confirmed = matches!(heard, Heard::Reply | Heard::Advert { solicited: true, .. });
        if entry.state == NeighState::Permanent {
            return;
        }
        if known && entry.mac == mac {
            match (confirmed, entry.state) {
                // Hearing what is known already, without being heard, is no news.
                (false, _) => {}
                (true, NeighState::Reachable) => {
                    let wait = self.timers.reachable_time();
                    self.timers.arm(key, entry, now.saturating_add(wait));
                }
                (true, _) => self.timers.enter(now, key, entry, NeighState::Reachable, actions),
            }
            return;
        }
        let locked = now < entry.updated.saturating_add(self.timers.params.locktime);
        if known && locked && matches!(heard, Heard::Reply | Heard::Other) {
            return;
        }
        if known && matches!(heard, Heard::Advert { overrides: false, .. }) {
            // Somebody else says he has the address, and does not insist: it is asked again when it is used.
            if entry.state == NeighState::Reachable {
                self.timers.enter(now, key, entry, NeighState::Stale, actions);
            }
            return;
        }
        entry.mac = mac;
        entry.updated = now;
        let skbs = std::mem::take(&mut entry.queue);
        let state = match confirmed {
            true => NeighState::Reachable,
            // The packets that waited are the use that a stale entry waits for.
            false if !skbs.is_empty() => NeighState::Delay,
            false => NeighState::Stale,
        };
        self.timers.enter(now, key, entry, state, actions);
        self.held -= skbs.len();
        if !skbs.is_empty() {
            actions.push(Action::Transmit { dev, mac, skbs });
        }
    }

    /// Fixes the MAC address of `ip`. Counts towards no limit.
    pub fn set_permanent(&mut self, now: u64, dev: u16, ip: IpAddr, mac: MacAddr, actions: &mut Actions) {
        let key = (dev, ip);
        let entry = self.entries.entry(key).or_insert_with(|| Entry::new(now));
        self.permanent += usize::from(entry.state != NeighState::Permanent);
        entry.mac = mac;
        entry.updated = now;
        let skbs = std::mem::take(&mut entry.queue);
        self.timers.enter(now, key, entry, NeighState::Permanent, actions);
        self.held -= skbs.len();
        if !skbs.is_empty() {
            actions.push(Action::Transmit { dev, mac, skbs });
        }
    }

    /// Removes every entry of `dev`, permanent ones too, for the device is gone.
    pub fn remove_device(&mut self, dev: u16, actions: &mut Actions) {
        // All of IPv4 come before all of IPv6.
        let last = Ipv6Addr::from_bits(u128::MAX);
        let of_dev = (dev, Ipv4Addr::UNSPECIFIED.into())..=(dev, last.into());
        let keys: Vec<Key> = self.entries.range(of_dev).map(|(key, _)| *key).collect();
        for key in keys {
            self.remove(key, DropReason::NeighDead, actions);
        }
    }

    /// Removes everything, for the stack ends.
    pub fn shutdown(&mut self, actions: &mut Actions) {
        while let Some((&key, _)) = self.entries.first_key_value() {
            self.remove(key, DropReason::Shutdown, actions);
        }
    }

    /// Does what is due at `now`.
    pub fn poll(&mut self, now: u64, actions: &mut Actions) {
        while let Some(&(at, key)) = self.timers.deadlines.first()
            && at <= now
        {
            self.expire(now, key, actions);
        }
    }

    /// When [`poll`](Self::poll) is to be called next.
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.deadlines.first().map(|(at, _)| *at)
    }

    /// The entries, by device and address.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = NeighEntry> {
        self.entries.iter().map(|(&(dev, ip), e)| NeighEntry {
            dev,
            ip,
            state: e.state,
            mac: e.valid_mac(),
            since: e.since,
            probes: e.probes,
            queued: e.queue.len(),
        })
    }

    /// The MAC address of `ip`, in the valid states.
    pub fn mac(&self, dev: u16, ip: IpAddr) -> Option<MacAddr> {
        self.entries.get(&(dev, ip))?.valid_mac()
    }

    /// Packets that wait, in all.
    pub fn held(&self) -> usize {
        self.held
    }

    /// How often a new entry found the table full (the kernel's statistic of that name).
    pub fn table_fulls(&self) -> u64 {
        self.table_fulls
    }

    /// The deadline of `key` has come.
    fn expire(&mut self, now: u64, key: Key, actions: &mut Actions) {
        use NeighState::*;
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let timers = &mut self.timers;
        let retrans = timers.retrans_time();
        let limit = match entry.state {
            Incomplete => timers.params.mcast_solicit,
            _ => timers.params.ucast_solicit,
        };
        match entry.state {
            Incomplete | Probe if entry.probes < limit => {
                timers.arm(key, entry, now.saturating_add(retrans));
                timers.solicit(key, entry, actions);
            }
            Incomplete => {
                entry.hold_until = now.saturating_add(retrans);
                let skbs = std::mem::take(&mut entry.queue);
                timers.enter(now, key, entry, Failed, actions);
                self.held -= skbs.len();
                if !skbs.is_empty() {
                    let (dev, ip) = key;
                    actions.push(Action::Fail { dev, ip, reason: DropReason::NeighFailed, skbs });
                }
            }
            Probe => {
                // Its MAC address does not answer, but nobody has asked for a new one yet: the next packet may.
                entry.hold_until = now;
                timers.enter(now, key, entry, Failed, actions);
            }
            Reachable => timers.enter(now, key, entry, Stale, actions),
            Delay => timers.enter(now, key, entry, Probe, actions),
            Stale | Failed => self.remove(key, DropReason::NeighDead, actions),
            None | Permanent => timers.arm(key, entry, NEVER),
        }
    }

    fn remove(&mut self, key: Key, reason: DropReason, actions: &mut Actions) {
        let Some(mut entry) = self.entries.remove(&key) else { return };
        self.timers.arm(key, &mut entry, NEVER);
        self.permanent -= usize::from(entry.state == NeighState::Permanent);
        let (dev, ip) = key;
        actions.push(Action::Publish { dev, ip, state: NeighState::None, mac: None });
        let skbs = std::mem::take(&mut entry.queue);
        self.held -= skbs.len();
        if !skbs.is_empty() {
            actions.push(Action::Fail { dev, ip, reason, skbs });
        }
    }

    /// Sees to it that one more entry fits. A full table throws out what failed, and what is stale for long.
    fn make_room(&mut self, now: u64, actions: &mut Actions) -> bool {
        let limit = self.timers.params.gc_thresh3;
        let full = |table: &Self| table.entries.len() - table.permanent >= limit;
        if !full(self) {
            return true;
        }
        if now >= self.next_forced_gc {
            self.next_forced_gc = now.saturating_add(FORCED_GC_INTERVAL);
            let old: Vec<Key> =
                self.entries.iter().filter(|(_, e)| is_dispensable(now, e)).map(|(k, _)| *k).collect();
            for key in old {
                self.remove(key, DropReason::NeighDead, actions);
            }
        }
        let room = !full(self);
        self.table_fulls += u64::from(!room);
        room
    }
}

fn is_dispensable(now: u64, entry: &Entry) -> bool {
    match entry.state {
        NeighState::Failed => now >= entry.hold_until,
        NeighState::Stale => now >= entry.since.saturating_add(FORCED_GC_AGE),
        _ => false,
    }
}

/// A list of one.
fn one(skb: Skb) -> SkbList {
    let mut skbs = SkbList::new();
    // An empty list takes any region, so nothing comes back.
    let refused = skbs.push_back(skb);
    debug_assert!(refused.is_ok());
    skbs
}

fn fail((dev, ip): Key, reason: DropReason, skb: Skb, actions: &mut Actions) {
    actions.push(Action::Fail { dev, ip, reason, skbs: one(skb) });
}
