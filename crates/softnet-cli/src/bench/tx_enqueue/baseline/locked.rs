//! A TX queue behind a lock, as the kernel's `__dev_xmit_skb` and `__qdisc_run` had it until 6.18: a sender takes the
//! lock and queues its packet; if no thread runs the queue, it does, and gives the lock away while a batch is on its way to
//! the ring.
//!
//! Called by any thread. Where the kernel takes another lock for the ring, the thread that runs the queue has taken it out
//! of the root: there is nothing to wait for, and nothing to pay. Packets that pass by the discipline are not counted by
//! it. Both are to the baselines' advantage.
//!
//! Invariant: the ring is in the root exactly while no thread runs the queue.

use std::sync::atomic::{AtomicBool, Ordering};

use softnet_core::SoftnetData;
use softnet_core::qdisc::{NextRun, Qdisc, Quota, Ring, Sent, ToFree, Verdict};
use softnet_core::skb::{BATCH, Batch, DropReason};

use super::super::queue::TxQueue;
use super::super::wire::Wire;
use super::RootLock;

/// What the lock guards.
pub(in super::super) struct Root {
    qdisc: Box<dyn Qdisc>,
    wire: Option<Box<Wire>>,
}

/// See the [module](self).
pub(in super::super) struct Locked<L> {
    root: L,
    /// Whether a thread runs the queue: `qdisc_is_running`. Written under the lock, read without it; if the lock asks.
    running: AtomicBool,
}

impl Root {
    /// Takes the next batch out. Without one: what has to happen next.
    fn dequeue(&mut self, now: u64, budget: usize, out: &mut Batch, to_free: &mut ToFree) -> Option<NextRun> {
        if self.qdisc.is_empty() {
            return Some(NextRun::Idle);
        }
        if budget == 0 {
            return Some(NextRun::Again);
        }
        self.qdisc.dequeue(now, &mut Quota { packets: budget, ..Quota::BATCH }, out, to_free);
        if !out.is_empty() {
            return None;
        }
        Some(match self.qdisc.next_event(now) {
            _ if self.qdisc.is_empty() => NextRun::Idle,
            Some(at) => NextRun::Watchdog(at),
            None => NextRun::Again,
        })
    }
}

/// What a sender, or a run, found under the lock.
enum Found {
    /// Another thread runs the queue, or there is nothing to send yet.
    Done(NextRun),
    /// This one does; its first batch is taken out.
    Runs(Box<Wire>),
}

impl<L: RootLock<Root>> Locked<L> {
    pub(in super::super) fn new(qdisc: Box<dyn Qdisc>, wire: Wire) -> Self {
        let root = L::new(Root { qdisc, wire: Some(Box::new(wire)) });
        Locked { root, running: AtomicBool::new(false) }
    }

    /// Under the lock: runs the queue, if no thread does and something may leave.
    fn begin(&self, root: &mut Root, now: u64, out: &mut Batch, to_free: &mut ToFree) -> Found {
        if root.wire.is_none() {
            return Found::Done(NextRun::Idle);
        }
        match root.dequeue(now, BATCH, out, to_free) {
            Some(next_run) => Found::Done(next_run),
            None => self.runs(root),
        }
    }

    fn runs(&self, root: &mut Root) -> Found {
        if L::ASKS {
            self.running.store(true, Ordering::Relaxed);
        }
        root.wire.take().map_or(Found::Done(NextRun::Idle), Found::Runs)
    }

    /// Sends `out`, which was taken out, and what else may leave.
    fn go_on(
        &self,
        mut wire: Box<Wire>,
        ctx: &mut SoftnetData,
        now: u64,
        out: &mut Batch,
        to_free: &mut ToFree,
    ) -> NextRun {
        // The kernel's dev_tx_weight.
        let mut budget = BATCH;
        loop {
            budget = budget.saturating_sub(out.len());
            wire.xmit(ctx, out);
            let next = self.root.with(|root| match root.dequeue(now, budget, out, to_free) {
                None => Ok(wire),
                Some(next_run) => {
                    root.wire = Some(wire);
                    if L::ASKS {
                        self.running.store(false, Ordering::Relaxed);
                    }
                    Err(next_run)
                }
            });
            match next {
                Ok(again) => wire = again,
                Err(next_run) => return next_run,
            }
        }
    }
}

impl<L: RootLock<Root>> TxQueue for Locked<L> {
    fn send(&self, ctx: &mut SoftnetData, now: u64, batch: &mut Batch, to_free: &mut ToFree) -> Sent {
        let busy = (L::ASKS && self.running.load(Ordering::Relaxed)).then(|| self.root.contended());
        let mut out = Batch::new();
        let (verdict, found) = self.root.with(|root| {
            let qdisc = &mut root.qdisc;
            if qdisc.can_bypass() && qdisc.is_empty() && root.wire.is_some() {
                out.append(batch);
                return (Verdict::Success, self.runs(root));
            }
            let verdicts = batch.drain().map(|skb| qdisc.enqueue(skb, now, to_free));
            let verdict = verdicts.max().unwrap_or_default();
            (verdict, self.begin(root, now, &mut out, to_free))
        });
        drop(busy);
        let next_run = match found {
            Found::Done(next_run) => next_run,
            Found::Runs(wire) => self.go_on(wire, ctx, now, &mut out, to_free),
        };
        Sent::Owned { verdict, next_run, drained: false }
    }

    fn run(&self, ctx: &mut SoftnetData, now: u64, to_free: &mut ToFree) -> Option<NextRun> {
        let mut out = Batch::new();
        let found = self.root.with(|root| {
            let is_idle = root.wire.is_some();
            is_idle.then(|| self.begin(root, now, &mut out, to_free))
        })?;
        Some(match found {
            Found::Done(next_run) => next_run,
            Found::Runs(wire) => self.go_on(wire, ctx, now, &mut out, to_free),
        })
    }

    fn close(&self, _: &mut SoftnetData, to_free: &mut ToFree) {
        self.root.with(|root| root.qdisc.reset(DropReason::Shutdown, to_free));
    }
}
