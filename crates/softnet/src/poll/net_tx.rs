//! A worker's TX queues, and when they are to be run: the kernel's `net_tx_action` with the output list and the qdisc
//! watchdogs behind it.
//!
//! Any thread may set when a queue is due, then lowers the time of its worker, and wakes that if it announced its sleep. The
//! worker looks at its own time in each round; if that is set, it forgets it, looks at all queues' and sets it anew. After it
//! announced its sleep it looks at those again; the earliest is how long it sleeps.

use std::sync::Arc;

use rustix::event::Timespec;

use super::PollContext;
use crate::napi::WorkerShared;
use crate::tx::{NEVER, NetdevQueue};
use crate::util::{Clock, timespec};

/// See the module.
#[derive(Default)]
pub(crate) struct NetTx {
    queues: Vec<Arc<NetdevQueue>>,
}

impl NetTx {
    /// Takes over the queues of `worker`.
    pub(crate) fn take(&mut self, worker: &WorkerShared, queues: Vec<Arc<NetdevQueue>>) {
        self.queues = queues;
        self.look(worker);
    }

    /// Sets the worker's time by those of its queues, and returns the latter.
    fn look(&self, worker: &WorkerShared) -> u64 {
        let next = self.next_due();
        worker.tx_due.lower(next);
        next
    }

    /// Runs the queues of `worker` that are due. Returns whether there were any.
    #[cold]
    pub(crate) fn run(&mut self, worker: &WorkerShared, env: &mut PollContext) -> bool {
        worker.tx_due.forget();
        let now = env.shared.clock.now();
        let mut ran = false;
        for queue in &self.queues {
            ran |= queue.run(&mut env.ctx, now);
        }
        self.look(worker);
        ran
    }

    /// Whether one is due. If so, the worker's time says so too, whatever happened to the thread that was to lower it.
    pub(crate) fn is_due(&self, worker: &WorkerShared, clock: &Clock) -> bool {
        let next = self.look(worker);
        next != NEVER && next <= clock.now()
    }

    /// How long to sleep until one is due; `None`: none will be.
    pub(crate) fn timeout(&self, clock: &Clock) -> Option<Timespec> {
        let next = self.next_due();
        (next != NEVER).then(|| timespec(next.saturating_sub(clock.now())))
    }

    #[inline(always)]
    fn next_due(&self) -> u64 {
        self.queues.iter().map(|queue| queue.next_due()).min().unwrap_or(NEVER)
    }
}
