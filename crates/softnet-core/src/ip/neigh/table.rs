//! The table itself: entries, their deadlines, and the transitions between their states.
//!
//! One owner. Invariants: each entry has a timer in the wheel, which is removed with it; only
//! incomplete entries have a queue; `waiting` has those whose queue is not empty; `held` and
//! `frames` are the sums of all queues; an entry's `published` is the MAC address that the fast
//! path was last told.

mod gateways;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::super::{MacAddr, is_group};
use super::gc::Gc;
use super::newcomers::Newcomers;
use super::{Action, Actions, Heard, NeighEntry, NeighParams, NeighState};
use crate::skb::{DropReason, Flags, Skb, SkbList};
use crate::time::{Timer, TimerWheel};

/// Device and address.
pub(super) type Key = (u16, IpAddr);

/// The deadline of a state that does not end by itself.
const NEVER: u64 = u64::MAX;

/// Shortest time between two requests (ns), as in `__neigh_event_send`.
const MIN_RETRANS: u64 = 10_000_000;

struct Entry {
    state: NeighState,
    mac: MacAddr,
    /// Whether a route leads by way of it. Such an entry is never collected.
    gateway: bool,
    /// Whether it was ever heard, or is configured.
    heard: bool,
    /// Requests sent in this state.
    probes: u32,
    /// When the state or the MAC address changed last; the kernel's `updated`.
    since: u64,
    /// What the fast path was told, and when it was told a MAC address last.
    published: Option<MacAddr>,
    published_at: Option<u64>,
    /// In `Failed`: until when packets fail without a new request.
    hold_until: u64,
    timer: Timer,
    queue: SkbList,
    /// Frames of the packets in the queue.
    queued_frames: usize,
}

impl Entry {
    fn new(now: u64, gateway: bool, timer: Timer) -> Self {
        Entry {
            state: NeighState::None,
            mac: [0; 6],
            gateway,
            heard: false,
            probes: 0,
            since: now,
            published: None,
            published_at: None,
            hold_until: now,
            timer,
            queue: SkbList::new(),
            queued_frames: 0,
        }
    }

    fn valid_mac(&self) -> Option<MacAddr> {
        self.state.is_valid().then_some(self.mac)
    }

    /// Whether it counts towards the limits, and may be collected.
    fn is_counted(&self) -> bool {
        !self.gateway && self.state != NeighState::Permanent
    }

    /// What it counts as.
    fn counts_as(&self) -> (NeighState, u64) {
        (if self.is_counted() { self.state } else { NeighState::None }, self.since)
    }

    /// What the fast path is to be told now, if that is news. `used`: there are packets for it.
    ///
    /// A publication costs a copy of the tables, and any host on the link can make an entry change. So a MAC address is
    /// not published before it is used, and not sooner than `locktime` after the last one was: until then packets come by
    /// the slow path, which has the right one. What is wrong is withdrawn at once.
    fn publish(&mut self, now: u64, used: bool, locktime: u64) -> Option<Option<MacAddr>> {
        // A stale entry's next packet must come by the slow path, to start the probe.
        let usable = self.valid_mac().filter(|_| self.state != NeighState::Stale);
        if usable == self.published {
            return None;
        }
        let rested = self.published_at.is_none_or(|at| now >= at.saturating_add(locktime));
        let used = used || self.published.is_some();
        let publish = self.state == NeighState::Permanent || used && rested;
        let told = usable.filter(|_| publish);
        let news = (told != self.published).then_some(told);
        if told.is_some() {
            self.published_at = Some(now);
        }
        self.published = told;
        news
    }
}

/// The timers of all entries, and what it takes to arm them.
struct Timers {
    params: NeighParams,
    wheel: TimerWheel<Key>,
    gc: Gc,
    rng: u64,
}

impl Timers {
    /// The state of `entry` is to end in `wait` ns, or not by itself if that is [`NEVER`].
    fn arm(&mut self, now: u64, entry: &Entry, wait: u64) {
        match now.saturating_add(wait) {
            NEVER => self.wheel.cancel(&entry.timer),
            at => self.wheel.arm(&entry.timer, now, at),
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
    /// begins with one. `used`: there are packets for it.
    fn enter(
        &mut self,
        now: u64,
        key: Key,
        entry: &mut Entry,
        (state, used): (NeighState, bool),
        actions: &mut Actions,
    ) {
        use NeighState::*;
        let wait = match state {
            None | Permanent => NEVER,
            Incomplete | Probe => self.retrans_time(),
            Reachable => self.reachable_time(),
            Stale | Failed => self.params.gc_stale_time,
            Delay => self.params.delay_first_probe_time,
        };
        let before = entry.counts_as();
        entry.state = state;
        entry.since = now;
        entry.probes = 0;
        self.gc.change(key, before, entry.counts_as());
        self.arm(now, entry, wait);
        let (dev, ip) = key;
        let told = entry.publish(now, used, self.params.locktime);
        actions.push(Action::Publish { dev, ip, state, mac: entry.valid_mac(), told });
        if matches!(state, Incomplete | Probe) {
            self.solicit(key, entry, actions);
        }
    }

    fn solicit(&mut self, (dev, target): Key, entry: &mut Entry, actions: &mut Actions) {
        entry.probes += 1;
        actions.push(Action::Solicit { dev, target, unicast_to: entry.valid_mac() });
    }
}

/// The packets that wait for neighbours, all together.
#[derive(Default)]
struct Waiting {
    held: usize,
    /// Their frames, which are what the limits count.
    frames: usize,
    /// The entries with a queue, by the time at which they became incomplete.
    entries: BTreeSet<(u64, Key)>,
}

impl Waiting {
    /// Takes all that waits for `entry`.
    fn take(&mut self, key: Key, entry: &mut Entry) -> SkbList {
        let skbs = std::mem::take(&mut entry.queue);
        self.held -= skbs.len();
        self.frames -= std::mem::take(&mut entry.queued_frames);
        if !skbs.is_empty() {
            self.entries.remove(&(entry.since, key));
        }
        skbs
    }

    /// Takes what waits for `entry` longest.
    fn pop(&mut self, key: Key, entry: &mut Entry) -> Option<Skb> {
        let skb = entry.queue.pop_front()?;
        self.held -= 1;
        let frames = skb.frame_count();
        (self.frames, entry.queued_frames) = (self.frames - frames, entry.queued_frames - frames);
        if entry.queue.is_empty() {
            self.entries.remove(&(entry.since, key));
        }
        Some(skb)
    }

    /// Lets `skb` wait for `entry`.
    fn push(&mut self, key: Key, entry: &mut Entry, mut skb: Skb) -> Result<(), Skb> {
        skb.head_mut().flags |= Flags::HELD;
        let frames = skb.frame_count();
        entry.queue.push_back(skb)?;
        self.held += 1;
        (self.frames, entry.queued_frames) = (self.frames + frames, entry.queued_frames + frames);
        self.entries.insert((entry.since, key));
        Ok(())
    }
}

/// The neighbour table of all devices.
pub struct NeighTable {
    entries: BTreeMap<Key, Entry>,
    timers: Timers,
    gateways: HashSet<Key>,
    newcomers: Newcomers,
    waiting: Waiting,
    table_fulls: u64,
}

impl NeighTable {
    /// An empty table. `seed` starts the sequence of random factors.
    pub fn new(params: NeighParams, seed: u64) -> Self {
        NeighTable {
            entries: BTreeMap::new(),
            newcomers: Newcomers::new(&params),
            timers: Timers { params, wheel: TimerWheel::new(), gc: Gc::default(), rng: seed },
            gateways: HashSet::new(),
            waiting: Waiting::default(),
            table_fulls: 0,
        }
    }

    /// The entry of `key`, which is made if there is none and room for it.
    fn entry(&mut self, now: u64, key: Key, confirmed: bool, actions: &mut Actions) -> bool {
        if self.entries.contains_key(&key) {
            return true;
        }
        let gateway = self.gateways.contains(&key);
        if !gateway && !self.make_room(now, key, confirmed, actions) {
            return false;
        }
        self.entries.insert(key, Entry::new(now, gateway, self.timers.wheel.add(key)));
        true
    }

    /// Whether a packet to `key` may have that asked for, which is not being asked for. `false` for one that was never
    /// heard, while too many such are.
    fn may_ask(&self, now: u64, key: Key) -> bool {
        let known = self.entries.get(&key).map(|entry| entry.heard || entry.gateway);
        known.unwrap_or_else(|| self.gateways.contains(&key)) || self.newcomers.may_ask(now, key)
    }

    /// `skb` is to go to `ip` (a unicast address on the link of `dev`) and the fast path has no MAC address for
    /// that. It comes out at once if the table has one, the neighbour failed just now, or too many new ones are being
    /// asked for; otherwise it waits, and if too many frames do, the oldest packets for the same neighbour are failed, or
    /// if too many do for all of them, those whose neighbour has been silent for the longest time.
    pub fn resolve(&mut self, now: u64, dev: u16, ip: IpAddr, skb: Skb, actions: &mut Actions) {
        let key = (dev, ip);
        let may_ask = self.may_ask(now, key);
        // Before anything makes room for it.
        if !may_ask && !self.entries.contains_key(&key) {
            return fail(key, DropReason::NeighQueueFull, skb, actions);
        }
        if !self.entry(now, key, false, actions) {
            return fail(key, DropReason::NeighTableFull, skb, actions);
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return fail(key, DropReason::NeighTableFull, skb, actions);
        };
        match entry.state {
            NeighState::Incomplete => {}
            NeighState::Failed if now < entry.hold_until => {
                return fail(key, DropReason::NeighFailed, skb, actions);
            }
            NeighState::Failed if !may_ask => {
                return fail(key, DropReason::NeighQueueFull, skb, actions);
            }
            NeighState::None | NeighState::Failed => {
                if !entry.heard && !entry.gateway {
                    self.newcomers.asked(now, key);
                }
                self.timers.enter(now, key, entry, (NeighState::Incomplete, true), actions);
            }
            state => {
                let skbs = one(skb);
                if state == NeighState::Stale {
                    self.timers.enter(now, key, entry, (NeighState::Delay, true), actions);
                } else if let Some(told) = entry.publish(now, true, self.timers.params.locktime) {
                    let (mac, told) = (entry.valid_mac(), Some(told));
                    actions.push(Action::Publish { dev, ip, state, mac, told });
                }
                return actions.push(Action::Transmit { dev, mac: entry.mac, skbs });
            }
        }
        let may_wait = self.make_room_to_wait(key, skb.frame_count(), actions).is_some();
        let waits = match self.entries.get_mut(&key) {
            // A list links skbs of one region only.
            Some(entry) if may_wait => self.waiting.push(key, entry, skb),
            _ => Err(skb),
        };
        if let Err(skb) = waits {
            fail(key, DropReason::NeighQueueFull, skb, actions);
        }
    }

    /// Fails packets until one of so many frames may wait for `key`; `None` if none may. Those that
    /// fail have waited longest, for the same neighbour or for the one that is silent longest.
    fn make_room_to_wait(&mut self, key: Key, frames: usize, actions: &mut Actions) -> Option<()> {
        let NeighParams { unres_qlen, unres_total, .. } = self.timers.params;
        if frames > unres_qlen.min(unres_total) {
            // The others would go for nothing.
            return None;
        }
        loop {
            let of = match self.entries.get(&key)?.queued_frames {
                queued if queued + frames > unres_qlen => key,
                _ if self.waiting.frames + frames > unres_total => self.waiting.entries.first()?.1,
                _ => return Some(()),
            };
            let oldest = self.waiting.pop(of, self.entries.get_mut(&of)?)?;
            fail(of, DropReason::NeighQueueFull, oldest, actions);
        }
    }

    /// A packet went to the MAC address of `ip` while that was stale: it gets
    /// `delay_first_probe_time` to show that it is alive. Nothing happens in any other state.
    pub fn used(&mut self, now: u64, dev: u16, ip: IpAddr, actions: &mut Actions) {
        let key = (dev, ip);
        if let Some(entry) = self.entries.get_mut(&key)
            && entry.state == NeighState::Stale
        {
            self.timers.enter(now, key, entry, (NeighState::Delay, true), actions);
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
        if heard == Heard::Request && !self.entry(now, key, true, actions) {
            return;
        }
        let Some(entry) = self.entries.get_mut(&key) else { return };
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
                    self.timers.arm(now, entry, wait);
                }
                (true, _) => self.timers.enter(now, key, entry, (NeighState::Reachable, false), actions),
            }
            return;
        }
        let locked = now < entry.since.saturating_add(self.timers.params.locktime);
        if known && locked && matches!(heard, Heard::Reply | Heard::Other) {
            return;
        }
        if known && matches!(heard, Heard::Advert { overrides: false, .. }) {
            // Another host claims the address, without the override flag: the old one is verified when it is next used.
            if entry.state == NeighState::Reachable {
                self.timers.enter(now, key, entry, (NeighState::Stale, false), actions);
            }
            return;
        }
        (entry.mac, entry.heard) = (mac, true);
        let skbs = self.waiting.take(key, entry);
        let state = match confirmed {
            true => NeighState::Reachable,
            // The packets that waited are the use that a stale entry waits for.
            false if !skbs.is_empty() => NeighState::Delay,
            false => NeighState::Stale,
        };
        self.timers.enter(now, key, entry, (state, !skbs.is_empty()), actions);
        if !skbs.is_empty() {
            actions.push(Action::Transmit { dev, mac, skbs });
        }
    }

    /// Fixes the MAC address of `ip`. Counts towards no limit.
    pub fn set_permanent(&mut self, now: u64, dev: u16, ip: IpAddr, mac: MacAddr, actions: &mut Actions) {
        let key = (dev, ip);
        let gateway = self.gateways.contains(&key);
        let wheel = &mut self.timers.wheel;
        let entry = self.entries.entry(key).or_insert_with(|| Entry::new(now, gateway, wheel.add(key)));
        let skbs = self.waiting.take(key, entry);
        (entry.mac, entry.heard) = (mac, true);
        self.timers.enter(now, key, entry, (NeighState::Permanent, true), actions);
        if !skbs.is_empty() {
            actions.push(Action::Transmit { dev, mac, skbs });
        }
    }

    /// Forgets a neighbour that is permanent: from now on it is asked for.
    pub fn remove_permanent(&mut self, dev: u16, ip: IpAddr, actions: &mut Actions) {
        if self.is_permanent(dev, ip) {
            self.remove((dev, ip), DropReason::NeighDead, actions);
        }
    }

    /// Forgets a neighbour, whatever is known of it.
    pub fn forget(&mut self, dev: u16, ip: IpAddr, actions: &mut Actions) {
        self.remove((dev, ip), DropReason::NeighDead, actions);
    }

    /// Whether it is.
    pub fn is_permanent(&self, dev: u16, ip: IpAddr) -> bool {
        self.permanent(dev, ip).is_some()
    }

    /// The MAC address that a neighbour is fixed at.
    pub fn permanent(&self, dev: u16, ip: IpAddr) -> Option<MacAddr> {
        let entry = self.entries.get(&(dev, ip)).filter(|entry| entry.state == NeighState::Permanent)?;
        Some(entry.mac)
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
        while let Some(key) = self.timers.wheel.expire(now) {
            self.expire(now, key, actions);
        }
    }

    /// When [`poll`](Self::poll) is to be called next.
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.wheel.next_deadline()
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
        self.waiting.held
    }

    /// How often a new entry found the table full (the kernel's statistic of that name).
    pub fn table_fulls(&self) -> u64 {
        self.table_fulls
    }

    /// The deadline of `key` has come.
    fn expire(&mut self, now: u64, key: Key, actions: &mut Actions) {
        use NeighState::{Delay, Failed, Incomplete, None, Permanent, Probe, Reachable, Stale};
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let timers = &mut self.timers;
        let retrans = timers.retrans_time();
        let limit = match entry.state {
            Incomplete => timers.params.mcast_solicit,
            _ => timers.params.ucast_solicit,
        };
        match entry.state {
            Incomplete | Probe if entry.probes < limit => {
                timers.arm(now, entry, retrans);
                timers.solicit(key, entry, actions);
            }
            Incomplete => {
                entry.hold_until = now.saturating_add(retrans);
                let skbs = self.waiting.take(key, entry);
                timers.enter(now, key, entry, (Failed, false), actions);
                if !skbs.is_empty() {
                    let (dev, ip) = key;
                    actions.push(Action::Fail { dev, ip, reason: DropReason::NeighFailed, skbs });
                }
            }
            Probe => {
                // Its MAC address does not answer, but no packet has asked for a new one yet: the next one may.
                entry.hold_until = now;
                timers.enter(now, key, entry, (Failed, false), actions);
            }
            Reachable => timers.enter(now, key, entry, (Stale, false), actions),
            Delay => timers.enter(now, key, entry, (Probe, true), actions),
            // Few entries are no burden. Those that are collected are when more come.
            Stale | Failed if entry.gateway || timers.gc.entries(key) < timers.params.gc_thresh1 => {}
            Stale | Failed => self.remove(key, DropReason::NeighDead, actions),
            None | Permanent => {}
        }
    }

    fn remove(&mut self, key: Key, reason: DropReason, actions: &mut Actions) {
        let Some(mut entry) = self.entries.remove(&key) else { return };
        let gone = (NeighState::None, entry.since);
        self.timers.gc.change(key, entry.counts_as(), gone);
        let (dev, ip) = key;
        let told = entry.published.map(|_| Option::None);
        actions.push(Action::Publish { dev, ip, state: NeighState::None, mac: None, told });
        let skbs = self.waiting.take(key, &mut entry);
        if !skbs.is_empty() {
            actions.push(Action::Fail { dev, ip, reason, skbs });
        }
        self.timers.wheel.remove(entry.timer);
    }

    /// Sees to it that one more entry fits into the table of `key`; `confirmed`: its neighbour was heard.
    fn make_room(&mut self, now: u64, key: Key, confirmed: bool, actions: &mut Actions) -> bool {
        while let Some(victim) = self.timers.gc.victim(now, key, confirmed, &self.timers.params) {
            self.remove(victim, DropReason::NeighTableFull, actions);
        }
        let room = self.timers.gc.entries(key) < self.timers.params.gc_thresh3;
        self.table_fulls += u64::from(!room);
        room
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
