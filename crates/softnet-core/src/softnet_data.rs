//! The thread context: what any thread that touches packets owns. Only that thread writes it; any thread may
//! read its counters.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use crate::qdisc::MirredStack;
use crate::skb::{Batch, CacheSizes, CacheStats, DropReason, Frame, Region, Skb, SkbList, Store};
use crate::tap::trace::Step;
use crate::tap::{Tap, Taps};

/// Devices of a stack at the most. Drop counters are kept for so many; one with a higher index is counted under the last.
pub const MAX_DEVICES: usize = 4096;

/// Devices whose drop counters are made together.
const CHUNK: usize = 64;

/// A counter with one writer and any number of readers: no read-modify-write, so it costs as much as a plain
/// one.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl std::fmt::Debug for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

impl Counter {
    /// Adds `n`. Only the owning thread may call it.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Sets it, for what goes up and down. Only the owning thread may call it.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// The value now.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of filter rules that a context has: as many as [`filter`](crate::filter) has numbers.
const RULES: usize = crate::filter::NUMBERS;

/// Drops of [`CHUNK`] devices, by reason.
type Drops = Box<[[Counter; DropReason::COUNT]]>;

/// The counters of one thread context.
pub struct ContextStats {
    /// The first is there from the start; each of the others is made by the context's thread, at the first drop of one of its
    /// devices. So a thread that few of many devices drop at takes little memory.
    drops: [OnceLock<Drops>; MAX_DEVICES / CHUNK],
    /// Packets and bytes by the numbers of filter rules; made when the first one matches.
    rules: OnceLock<Box<[[Counter; 2]]>>,
    /// Packets that reached a receiver here (ARP, ICMP, later sockets).
    pub delivered: Counter,
    /// Packets made here.
    pub originated: Counter,
    /// Packets that became part of another here: of the fragments of a datagram that is whole now, all but one. (The kernel's
    /// `ReasmReqds` less `ReasmOKs`, for those that came to anything.)
    pub merged: Counter,
    /// Packets put into sockets here.
    pub sk_queued: Counter,
    /// Packets taken out of sockets here, to be delivered or dropped.
    pub sk_taken: Counter,
    /// Of its caches of heads and of frames.
    pub caches: [Arc<CacheStats>; 2],
    /// Name of its thread, if that was told.
    pub name: OnceLock<String>,
}

impl Default for ContextStats {
    /// All zero.
    fn default() -> Self {
        let drops = [const { OnceLock::new() }; MAX_DEVICES / CHUNK];
        drops[0].get_or_init(no_drops);
        ContextStats {
            drops,
            rules: OnceLock::new(),
            delivered: Counter::default(),
            originated: Counter::default(),
            merged: Counter::default(),
            sk_queued: Counter::default(),
            sk_taken: Counter::default(),
            caches: Default::default(),
            name: OnceLock::new(),
        }
    }
}

impl ContextStats {
    /// Adds what `other` counted, whose thread ended. Only the thread that counts here may call it.
    pub fn absorb(&self, other: &ContextStats) {
        for (mine, theirs) in self.drops.iter().zip(&other.drops) {
            let Some(theirs) = theirs.get() else { continue };
            let mine = mine.get_or_init(no_drops).iter().flatten();
            mine.zip(theirs.iter().flatten()).for_each(|(drops, more)| drops.add(more.get()));
        }
        if let Some(theirs) = other.rules.get() {
            let mine = self.rules.get_or_init(no_rules).iter().flatten();
            mine.zip(theirs.iter().flatten()).for_each(|(count, more)| count.add(more.get()));
        }
        self.delivered.add(other.delivered.get());
        self.originated.add(other.originated.get());
        self.merged.add(other.merged.get());
        self.sk_queued.add(other.sk_queued.get());
        self.sk_taken.add(other.sk_taken.get());
        self.caches.iter().zip(&other.caches).for_each(|(caches, other)| caches.absorb(other));
    }

    /// Packets and bytes that the filter rule with this number decided here.
    pub fn rule(&self, number: usize) -> [u64; 2] {
        let counts = self.rules.get().and_then(|rules| rules.get(number));
        counts.map_or([0; 2], |counts| counts.each_ref().map(Counter::get))
    }

    /// Packets of device `dev` dropped for `reason`.
    pub fn drops(&self, dev: usize, reason: DropReason) -> u64 {
        let dev = dev.min(MAX_DEVICES - 1);
        self.drops[dev / CHUNK].get().map_or(0, |of| of[dev % CHUNK][reason as usize].get())
    }

    /// All drops there were: device, reason and number.
    pub fn all_drops(&self) -> impl Iterator<Item = (usize, DropReason, u64)> {
        let chunks = self.drops.iter().enumerate().filter_map(|(at, of)| Some((at * CHUNK, of.get()?)));
        let devices =
            chunks.flat_map(|(first, of)| of.iter().enumerate().map(move |(at, of)| (first + at, of)));
        let drops = devices
            .flat_map(|(dev, of)| of.iter().zip(DropReason::ALL).map(move |(n, why)| (dev, *why, n.get())));
        drops.filter(|(_, _, n)| *n > 0)
    }

    /// Packets dropped for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.all_drops().map(|(_, _, n)| n).sum()
    }

    /// As [`count`](Self::count), out of the way of a loop that rarely counts.
    #[cold]
    #[inline(never)]
    fn count_run(&self, dev: u16, reason: DropReason, n: u64) {
        self.count(dev, reason, n);
    }

    #[inline(always)]
    fn count(&self, dev: u16, reason: DropReason, n: u64) {
        let dev = usize::from(dev).min(MAX_DEVICES - 1);
        // Never contended: only the context's thread makes them.
        self.drops[dev / CHUNK].get_or_init(no_drops)[dev % CHUNK][reason as usize].add(n);
    }
}

#[cold]
fn no_drops() -> Drops {
    (0..CHUNK).map(|_| std::array::from_fn(|_| Counter::default())).collect()
}

#[cold]
fn no_rules() -> Box<[[Counter; 2]]> {
    (0..RULES).map(|_| Default::default()).collect()
}

/// A thread's context: its caches of packet memory ([`Store`], to which it dereferences), its counters, and the
/// redirects it is in.
pub struct SoftnetData {
    store: Store,
    stats: Arc<ContextStats>,
    mirred: MirredStack,
    tap: Tap,
}

impl std::fmt::Debug for SoftnetData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoftnetData").finish_non_exhaustive()
    }
}

impl SoftnetData {
    /// A context on `region`, with empty caches of one size.
    pub fn new(region: Arc<Region>, sizes: CacheSizes) -> Self {
        SoftnetData::with_caches(region, sizes, sizes)
    }

    /// A context on `region`, with empty caches of these sizes for heads and for frames.
    pub fn with_caches(region: Arc<Region>, heads: CacheSizes, frames: CacheSizes) -> Self {
        let store = Store::with_caches(region, heads, frames);
        let stats = ContextStats { caches: store.stats(), ..ContextStats::default() };
        SoftnetData {
            store,
            stats: Arc::new(stats),
            mirred: MirredStack::default(),
            tap: Tap::new(Arc::default()),
        }
    }

    /// From now on captures that are started on `taps` see its packets.
    pub fn set_taps(&mut self, taps: &Arc<Taps>) {
        self.tap = Tap::new(taps.clone());
    }

    /// Before the thread sleeps: lets go of captures that ended.
    #[inline(always)]
    pub fn leave_taps(&mut self) {
        self.tap.let_go();
    }

    /// Shows captures `batch`, which came in by `queue` of netdev `dev` at `now`.
    #[inline(always)]
    pub fn tap_in(&mut self, now: u64, dev: u16, queue: u16, batch: &mut Batch) {
        if self.tap.is_on() {
            self.tap.came_in(now, dev, queue, batch);
        }
    }

    /// Shows captures `batch`, which a VLAN's netdev `dev` hands to its link at `now`, for queue `queue`.
    #[inline(always)]
    pub fn tap_to_link(&mut self, now: u64, dev: u16, queue: u16, batch: &Batch) {
        if self.tap.is_on() {
            self.tap.sent(now, dev, queue, batch);
        }
    }

    /// Shows captures `batch`, which is about to leave by `queue` of netdev `dev` at `now`.
    #[inline(always)]
    pub fn tap_out(&mut self, now: u64, dev: u16, queue: u16, batch: &mut Batch) {
        if self.tap.is_on() {
            self.tap.leave(now, dev, queue, batch);
        }
    }

    /// Whether there may be a trace, to which a stage is to say what it does.
    #[inline(always)]
    pub(crate) fn may_trace(&self) -> bool {
        self.tap.is_on()
    }

    /// Says to a trace what is done with `skb` at `now`, on queue `at.1` of netdev `at.0`.
    #[inline(always)]
    pub(crate) fn trace(&mut self, now: u64, skb: &Skb, at: (u16, u16), step: Step) {
        if self.tap.is_on() {
            self.tap.step(now, skb, at, step);
        }
    }

    /// The same of all packets of `batch`.
    #[inline(always)]
    pub(crate) fn trace_all(&mut self, now: u64, batch: &Batch, at: (u16, u16), step: Step) {
        if self.tap.is_on() {
            self.tap.steps(now, batch, at, step);
        }
    }

    /// Its counters, for others to read.
    pub fn stats(&self) -> &Arc<ContextStats> {
        &self.stats
    }

    /// The devices that this thread is redirecting a packet to at this moment.
    #[inline(always)]
    pub fn mirred(&mut self) -> &mut MirredStack {
        &mut self.mirred
    }

    /// Frees a packet that reaches no receiver, and counts why, against the device it came in by.
    #[inline]
    pub fn free(&mut self, skb: Skb, reason: DropReason) {
        if self.tap.is_on() {
            self.tap.dropped(std::slice::from_ref(&skb), None, reason);
        }
        self.stats.count(skb.head().dev, reason, 1);
        self.store.free_skb(skb);
    }

    /// Frees every packet of `batch`, and counts why, each against the device it came in by.
    #[inline]
    pub fn free_batch(&mut self, batch: &mut Batch, reason: DropReason) {
        if self.tap.is_on() {
            self.tap.dropped(batch.as_slice(), None, reason);
        }
        // Runs of packets of one device, as nearly every batch is, count at once.
        let (mut dev, mut run) = (0, 0);
        let stats = &self.stats;
        self.store.free_skbs(batch, |head| {
            if head.dev != dev {
                stats.count_run(dev, reason, run);
                (dev, run) = (head.dev, 0);
            }
            run += 1;
        });
        stats.count(dev, reason, run);
    }

    /// Like [`free_batch`](Self::free_batch), but counts against device `dev`: the one that could not send them.
    pub fn free_batch_at(&mut self, batch: &mut Batch, dev: u16, reason: DropReason) {
        if self.tap.is_on() {
            self.tap.dropped(batch.as_slice(), Some(dev), reason);
        }
        self.stats.count(dev, reason, batch.len() as u64);
        self.store.free_skbs(batch, |_| {});
    }

    /// Like [`free`](Self::free), but counts against device `dev`: the one that could not send it.
    #[inline]
    pub fn free_at(&mut self, skb: Skb, dev: u16, reason: DropReason) {
        if self.tap.is_on() {
            self.tap.dropped(std::slice::from_ref(&skb), Some(dev), reason);
        }
        self.stats.count(dev, reason, 1);
        self.store.free_skb(skb);
    }

    /// As [`Store::take_frames`]; packets of several frames that can't be sent in one are freed and
    /// counted against device `dev`: the one that could not send them.
    #[inline(always)]
    pub fn take_frames(
        &mut self,
        dev: u16,
        batch: &mut Batch,
        n: usize,
        take: impl FnMut(Frame, usize, usize),
    ) {
        let stats = &self.stats;
        self.store.take_frames(batch, n, take, |_| stats.count(dev, DropReason::Nonlinear, 1));
    }

    /// Frees every packet of `list`, and counts why, each against the device it came in by.
    pub fn free_list(&mut self, mut list: SkbList, reason: DropReason) {
        while let Some(skb) = list.pop_front() {
            self.free(skb, reason);
        }
    }

    /// Counts a packet that was made here.
    pub fn originate(&mut self) {
        self.stats.originated.add(1);
    }

    /// Counts `n` packets that were handed to their receiver here, with their buffers.
    pub fn delivered(&self, n: u64) {
        self.stats.delivered.add(n);
    }

    /// Counts `n` packets that come from a sender here.
    pub fn originated(&self, n: u64) {
        self.stats.originated.add(n);
    }

    /// Counts `n` packets that became part of another one here.
    pub fn merged(&self, n: u64) {
        self.stats.merged.add(n);
    }

    /// Counts a packet that reached its receiver here, which answers in the same buffer.
    pub fn turn_around(&mut self) {
        self.stats.delivered.add(1);
        self.stats.originated.add(1);
    }

    /// Counts packets and bytes that the filter rule with this number decided.
    #[inline(always)]
    pub(crate) fn count_rule(&self, number: u16, packets: u64, bytes: u64) {
        if let Some([p, b]) = self.stats.rules.get_or_init(no_rules).get(usize::from(number)) {
            p.add(packets);
            b.add(bytes);
        }
    }

    /// Counts drops of packets that never had an skb (no head, no frame).
    pub fn count_drops(&self, dev: u16, reason: DropReason, n: u64) {
        self.stats.count(dev, reason, n);
    }

    /// Frees a packet that reached its receiver here.
    #[inline]
    pub fn deliver(&mut self, skb: Skb) {
        if self.tap.is_on() {
            let at = (skb.head().dev, skb.head().queue);
            self.tap.step(0, &skb, at, Step::Delivered);
        }
        self.stats.delivered.add(1);
        self.store.free_skb(skb);
    }
}

impl Deref for SoftnetData {
    type Target = Store;
    #[inline(always)]
    fn deref(&self) -> &Store {
        &self.store
    }
}

impl DerefMut for SoftnetData {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Store {
        &mut self.store
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn drops_are_counted_for_each_of_many_devices() {
        let (a, b) = (ContextStats::default(), ContextStats::default());
        let last = MAX_DEVICES - 1;
        for (stats, dev, n) in
            [(&a, 3, 1), (&a, 150, 2), (&b, 150, 3), (&b, last as u16, 4), (&b, u16::MAX, 5)]
        {
            stats.count(dev, DropReason::IpTtl, n);
        }
        assert_eq!(
            (
                a.drops(150, DropReason::IpTtl),
                a.drops(151, DropReason::IpTtl),
                a.drops(last, DropReason::IpTtl)
            ),
            (2, 0, 0)
        );
        a.absorb(&b);
        let all: Vec<_> = a.all_drops().collect();
        assert_eq!(
            all,
            [3, 150, last]
                .into_iter()
                .zip([1, 5, 9])
                .map(|(dev, n)| (dev, DropReason::IpTtl, n))
                .collect::<Vec<_>>()
        );
        assert_eq!((a.dropped(), b.dropped()), (15, 12));
    }

    #[test]
    fn rules_are_counted_when_one_matches() {
        let (a, b) = (ContextStats::default(), ContextStats::default());
        a.absorb(&b);
        assert!(a.rules.get().is_none());
        b.rules.get_or_init(no_rules)[3][1].add(9);
        assert_eq!((a.rule(3), b.rule(3), b.rule(RULES)), ([0, 0], [0, 9], [0, 0]));
        a.absorb(&b);
        a.absorb(&b);
        assert_eq!(a.rule(3), [0, 18]);
    }
}
