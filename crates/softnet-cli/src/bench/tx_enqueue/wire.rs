//! The far end: a device whose wire takes every frame at once, and what senders and the wire know of each other.
//!
//! A [`Wire`] is called by the thread that owns the ring of its queue. It looks whether each sender's frames come in order,
//! compares one frame in so many to the last byte, and frees them: the sink at which packets are counted. A NIC reads
//! frames itself; a wire that compared all of them would move each to the cache of the thread that sends for others, and measure that.
//! So sender and number of a packet are also in its head, which its sender reads anyway.
//!
//! A sender may have [`WINDOW`] packets on their way, as a socket with the kernel's default send buffer has; then it sleeps
//! until half of them are through (`sock_writeable`). Neither looks at the other's line more often than that: the wire
//! writes how many it has seen, the sender reads it when its window seems full.
//!
//! Invariant: what a sender sent is seen by one wire, or dropped and counted, once; a sender that sleeps is woken by the
//! thread that counts the packet it waits for.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread::Thread;

use softnet_core::SoftnetData;
use softnet_core::qdisc::{Quota, Ring, ToFree};
use softnet_core::skb::{Batch, Skb};

/// Bytes of a frame.
pub(super) const SIZE: usize = 120;
/// Packets of a sender that may be on their way: those of 120 bytes that the kernel's default send buffer holds.
pub(super) const WINDOW: u64 = 277;
/// Of so many frames the wire compares one.
pub(super) const COMPARED: u64 = 16;
/// Senders there may be.
pub(super) const SENDERS: usize = 64;
/// Where the packet's number and its sender's are, behind Ethernet, IPv4 and UDP headers.
const NUMBER: usize = 14 + 20 + 8;
const SENDER: usize = NUMBER + 8;
const REST: usize = SENDER + 2;
/// A sender that does not sleep.
const AWAKE: u64 = u64::MAX;

/// What the frames of all senders have in common; the rest is 0.
const TEMPLATE: [u8; SIZE] = {
    let mut frame = [0; SIZE];
    #[rustfmt::skip]
    let headers = [
        2, 0, 0, 0, 9, 0,  2, 0, 0, 0, 1, 0,  8, 0,
        0x45, 0, 0, (SIZE - 14) as u8,  0, 0, 0x40, 0,  64, 17, 0, 0,  198, 18, 0, 1,  198, 18, 0, 2,
        0x13, 0x88, 0, 9,  0, (SIZE - 34) as u8, 0, 0,
    ];
    let mut i = 0;
    while i < SIZE {
        // Behind what is different in every frame, bytes that are all different.
        frame[i] = if i < NUMBER {
            headers[i]
        } else if i < REST {
            0
        } else {
            (31 * i) as u8
        };
        i += 1;
    }
    frame
};

/// Writes packet `number` of `sender` into `skb`, which is empty.
#[inline]
pub(super) fn write(skb: &mut Skb, sender: usize, number: u64) {
    let head = skb.head_mut();
    (head.queue, head.hash) = (sender as u16, number as u32);
    if let Some(frame) = skb.put(SIZE) {
        frame.copy_from_slice(&TEMPLATE);
        frame[NUMBER..SENDER].copy_from_slice(&number.to_ne_bytes());
        frame[SENDER..REST].copy_from_slice(&(sender as u16).to_ne_bytes());
    }
}

/// Whether `frame` is packet `number` of `sender`, to the last byte.
fn is_whole(frame: &[u8], sender: usize, number: u64) -> bool {
    frame.len() == SIZE
        && frame[..NUMBER] == TEMPLATE[..NUMBER]
        && frame[NUMBER..SENDER] == number.to_ne_bytes()
        && frame[SENDER..REST] == (sender as u16).to_ne_bytes()
        && frame[REST..] == TEMPLATE[REST..]
}

/// What became of one sender's packets. On lines of its own.
#[repr(align(128))]
pub(super) struct Account {
    /// Packets that the wire saw. Written by the owner of its queue's ring.
    seen: AtomicU64,
    /// The number of the next packet, at least. The same.
    next: AtomicU64,
    /// The count of [`done`](Self::done) at which the sender is to be woken, or [`AWAKE`].
    wake_at: AtomicU64,
    dropped: AtomicU64,
    thread: OnceLock<Thread>,
}

impl Account {
    /// Packets that are on their way no more.
    fn done(&self) -> u64 {
        self.seen.load(Ordering::Relaxed) + self.dropped.load(Ordering::Relaxed)
    }

    /// After `done` was raised, and a full fence: wakes the sender if it waits for that.
    fn tell(&self) {
        let wake_at = self.wake_at.load(Ordering::Relaxed);
        if self.done() >= wake_at
            && self.wake_at.compare_exchange(wake_at, AWAKE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

/// The accounts of all senders.
pub(super) struct Accounts {
    of: Box<[Account]>,
    /// Frames that were damaged, or out of order.
    wrong: AtomicU64,
}

impl Accounts {
    /// For `n` senders, at most [`SENDERS`].
    pub(super) fn new(n: usize) -> Arc<Self> {
        let account = |_| Account {
            seen: AtomicU64::new(0),
            next: AtomicU64::new(0),
            wake_at: AtomicU64::new(AWAKE),
            dropped: AtomicU64::new(0),
            thread: OnceLock::new(),
        };
        Arc::new(Accounts { of: (0..n.min(SENDERS)).map(account).collect(), wrong: AtomicU64::new(0) })
    }

    /// Packets that arrived, of all senders.
    pub(super) fn seen(&self) -> u64 {
        self.of.iter().map(|account| account.seen.load(Ordering::Relaxed)).sum()
    }

    /// Packets that were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.of.iter().map(|account| account.dropped.load(Ordering::Relaxed)).sum()
    }

    /// Frames that were damaged or out of order.
    pub(super) fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    /// Packets of `sender` that are on their way no more.
    pub(super) fn done(&self, sender: usize) -> u64 {
        self.of[sender].done()
    }

    /// The calling thread is `sender`.
    pub(super) fn sign(&self, sender: usize) {
        let _ = self.of[sender].thread.set(std::thread::current());
    }

    /// Waits, as `sender`, which sent `sent` packets, until half of its window is free; returns how many are done.
    pub(super) fn wait(&self, sender: usize, sent: u64) -> u64 {
        let account = &self.of[sender];
        let wanted = sent - WINDOW / 2;
        account.wake_at.store(wanted, Ordering::Relaxed);
        // Between this and the look stands a fence, as between count and look of the thread that counts: one sees the other.
        fence(Ordering::SeqCst);
        loop {
            let done = account.done();
            if done >= wanted {
                account.wake_at.store(AWAKE, Ordering::Relaxed);
                return done;
            }
            std::thread::park();
        }
    }

    /// Frees what was dropped, and counts it.
    pub(super) fn free(&self, ctx: &mut SoftnetData, to_free: &mut ToFree) {
        while let Some((skb, reason)) = to_free.pop() {
            match self.of.get(usize::from(skb.head().queue)) {
                Some(account) => {
                    account.dropped.fetch_add(1, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    account.tell();
                }
                None => _ = self.wrong.fetch_add(1, Ordering::Relaxed),
            }
            ctx.free(skb, reason);
        }
    }
}

/// The device's end of a TX queue.
pub(super) struct Wire {
    accounts: Arc<Accounts>,
    /// Of so many frames it compares one.
    compared: u64,
    /// Frames it got.
    frames: u64,
}

impl Wire {
    pub(super) fn new(accounts: Arc<Accounts>, compared: u64) -> Self {
        Wire { accounts, compared, frames: 0 }
    }

    /// Looks at a packet; whose it is, if it is in order and, where it is compared, whole.
    #[inline]
    fn look(&mut self, skb: &Skb) -> Option<usize> {
        let head = skb.head();
        let sender = usize::from(head.queue);
        let account = self.accounts.of.get(sender)?;
        let next = account.next.load(Ordering::Relaxed);
        // There is a gap where packets were dropped; what is behind is more than half of all numbers ahead.
        let ahead = head.hash.wrapping_sub(next as u32);
        if ahead > u32::MAX / 2 {
            return None;
        }
        let number = next + u64::from(ahead);
        self.frames += 1;
        if self.frames.is_multiple_of(self.compared) && !is_whole(skb.data(), sender, number) {
            return None;
        }
        account.next.store(number + 1, Ordering::Relaxed);
        account.seen.store(account.seen.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Some(sender)
    }
}

impl Ring<SoftnetData> for Wire {
    fn avail(&mut self, _: &mut SoftnetData) -> Quota {
        Quota::BATCH
    }

    fn xmit(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> (usize, u64) {
        let (packets, mut senders, mut bytes) = (batch.len(), 0u64, 0);
        for skb in batch.as_slice() {
            bytes += skb.len() as u64;
            match self.look(skb) {
                Some(sender) => senders |= 1 << sender,
                None => _ = self.accounts.wrong.fetch_add(1, Ordering::Relaxed),
            }
        }
        ctx.free_skbs(batch, |_| {});
        fence(Ordering::SeqCst);
        while senders != 0 {
            self.accounts.of[senders.trailing_zeros() as usize].tell();
            senders &= senders - 1;
        }
        (packets, bytes)
    }
}
