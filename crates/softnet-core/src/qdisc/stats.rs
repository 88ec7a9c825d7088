//! The counters of a discipline, as `tc -s qdisc` shows them.
//!
//! The thread that owns the TX queue writes them, one thread at a time; any thread may read them.

use crate::skb::DropReason;
use crate::softnet_data::Counter;

/// Counters of one discipline.
#[derive(Default)]
pub struct QdiscStats {
    bytes: Counter,
    packets: Counter,
    overlimits: Counter,
    requeues: Counter,
    qlen: Counter,
    backlog: Counter,
    drops: Drops,
}

/// A counter for each reason.
struct Drops([Counter; DropReason::COUNT]);

impl Default for Drops {
    fn default() -> Self {
        Drops(std::array::from_fn(|_| Counter::default()))
    }
}

/// Values of a discipline's counters, or sums of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QdiscTotals {
    /// Bytes that left.
    pub bytes: u64,
    /// Packets that left.
    pub packets: u64,
    /// Packets dropped, for whatever reason.
    pub drops: u64,
    /// Times a packet had to wait for its rate.
    pub overlimits: u64,
    /// Packets that the device gave back.
    pub requeues: u64,
    /// Packets queued now.
    pub qlen: u64,
    /// Bytes queued now.
    pub backlog: u64,
}

impl QdiscStats {
    /// Packets queued now.
    #[inline(always)]
    pub fn qlen(&self) -> usize {
        self.qlen.get() as usize
    }

    /// Bytes queued now.
    #[inline(always)]
    pub fn backlog(&self) -> u64 {
        self.backlog.get()
    }

    /// Packets dropped for `reason`.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.0[reason as usize].get()
    }

    /// All values now.
    pub fn totals(&self) -> QdiscTotals {
        QdiscTotals {
            bytes: self.bytes.get(),
            packets: self.packets.get(),
            drops: self.drops.0.iter().map(Counter::get).sum(),
            overlimits: self.overlimits.get(),
            requeues: self.requeues.get(),
            qlen: self.qlen.get(),
            backlog: self.backlog.get(),
        }
    }

    /// A packet of `len` bytes is queued.
    #[inline(always)]
    pub(super) fn queued(&self, len: usize) {
        self.qlen.add(1);
        self.backlog.add(len as u64);
    }

    /// A packet of `len` bytes is queued no more.
    #[inline(always)]
    pub(super) fn unqueued(&self, len: usize) {
        // Counters wrap, so this subtracts.
        self.qlen.add(1u64.wrapping_neg());
        self.backlog.add((len as u64).wrapping_neg());
    }

    /// `n` packets of `bytes` in all leave.
    #[inline(always)]
    pub(super) fn sent(&self, n: usize, bytes: u64) {
        self.packets.add(n as u64);
        self.bytes.add(bytes);
    }

    /// A packet was dropped.
    pub(super) fn dropped(&self, reason: DropReason) {
        self.drops.0[reason as usize].add(1);
    }

    /// A packet has to wait for its rate.
    pub(super) fn overlimit(&self) {
        self.overlimits.add(1);
    }

    /// The device gave back a packet of `len` bytes, which is queued again.
    pub(super) fn requeued(&self, len: usize) {
        self.requeues.add(1);
        self.queued(len);
    }
}

impl std::ops::AddAssign for QdiscTotals {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.packets += other.packets;
        self.drops += other.drops;
        self.overlimits += other.overlimits;
        self.requeues += other.requeues;
        self.qlen += other.qlen;
        self.backlog += other.backlog;
    }
}
