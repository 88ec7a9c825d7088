//! The senders' threads: each writes a frame and sends it, again and again, as fast as it may.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use softnet_core::SoftnetData;
use softnet_core::qdisc::{Sent, ToFree};
use softnet_core::skb::Batch;

use super::queue::TxQueue;
use super::wire::{Accounts, WINDOW, write};
use super::worker::Worker;
use crate::bench::echo::Usage;
use crate::bench::latency::Latency;

/// Calls of which one is timed: a look at the clock costs as much as a part of the call.
pub(super) const SAMPLED: u64 = 8;

/// What senders are to do: [`WARM_UP`], [`MEASURE`], [`STOP`].
pub(super) const WARM_UP: u8 = 0;
/// Send, and record latencies.
pub(super) const MEASURE: u8 = 1;
/// End.
pub(super) const STOP: u8 = 2;

/// What all senders of a measurement share.
pub(super) struct Shared<'a> {
    pub(super) queues: &'a [Box<dyn TxQueue>],
    pub(super) worker: &'a Worker,
    pub(super) accounts: &'a Accounts,
    pub(super) phase: &'a AtomicU8,
    pub(super) epoch: Instant,
    /// How many packets each sends, unless it is told to stop before.
    pub(super) packets: u64,
}

/// What a sender did.
pub(super) struct Done {
    pub(super) sent: u64,
    /// Of one call in [`SAMPLED`], from when it was made until the packet was taken.
    pub(super) latency: Latency,
    /// Calls that were told to hold back.
    pub(super) held_back: u64,
    /// From the thread's start to its end.
    pub(super) usage: Usage,
}

impl Shared<'_> {
    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Sends as `sender`, to the queue of its flow, until told to stop.
    pub(super) fn send(&self, sender: usize, mut ctx: SoftnetData) -> Done {
        let index = sender % self.queues.len();
        let queue = &*self.queues[index];
        let (mut batch, mut to_free) = (Batch::new(), ToFree::new());
        let mut latency = Latency::new();
        let (mut sent, mut held_back, mut done) = (0, 0, 0);
        self.accounts.sign(sender);
        loop {
            let phase = self.phase.load(Ordering::Relaxed);
            if phase == STOP || sent == self.packets {
                break;
            }
            if sent - done == WINDOW {
                done = self.accounts.done(sender);
                if sent - done == WINDOW {
                    done = self.accounts.wait(sender, sent);
                }
            }
            let Some(mut skb) = ctx.alloc_skb() else {
                // There is enough for all windows, but others' caches may hold it for a moment.
                std::thread::yield_now();
                continue;
            };
            write(&mut skb, sender, sent);
            if let Err(skb) = batch.push(skb) {
                ctx.free_skb(skb);
            }
            let called = self.now();
            let mut now = called;
            loop {
                match queue.send(&mut ctx, now, &mut batch, &mut to_free) {
                    Sent::Owned { next_run, .. } => {
                        self.worker.see_to(index, next_run);
                        break;
                    }
                    Sent::Deferred => break,
                    Sent::Full => {
                        held_back += 1;
                        std::thread::yield_now();
                        now = self.now();
                    }
                }
            }
            sent += 1;
            if phase == MEASURE && sent % SAMPLED == 0 {
                latency.record(self.now() - called);
            }
            if !to_free.is_empty() {
                self.accounts.free(&mut ctx, &mut to_free);
            }
        }
        let me = rustix::thread::gettid().as_raw_pid();
        Done { sent, latency, held_back, usage: Usage::of(&[me]) }
    }
}
