//! A worker's TX queues, and when they are to be run: the kernel's `net_tx_action` with the output list and the qdisc
//! watchdogs behind it.
//!
//! Any thread may set when a queue is due, and then wakes the worker if that announced its sleep. The worker looks at all of
//! its queues' times in each round, and again after it announced its sleep; the earliest is how long it sleeps.

use std::sync::Arc;

use rustix::event::Timespec;

use crate::clock::{Clock, timespec};
use crate::polling::Env;
use crate::tx_queue::NetdevQueue;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct NetTx {
    queues: Vec<Arc<NetdevQueue>>,
}

impl NetTx {
    /// Takes over the queues.
    pub(crate) fn take(&mut self, queues: Vec<Arc<NetdevQueue>>) {
        self.queues = queues;
    }

    /// Runs the queues that are due. Returns whether there were any.
    pub(crate) fn run(&mut self, env: &mut Env) -> bool {
        if self.next_due() == u64::MAX {
            return false;
        }
        let now = env.shared.clock.now();
        let mut ran = false;
        for queue in &self.queues {
            ran |= queue.run(&mut env.ctx, now);
        }
        ran
    }

    /// Whether one is due.
    pub(crate) fn is_due(&self, clock: &Clock) -> bool {
        let next = self.next_due();
        next != u64::MAX && next <= clock.now()
    }

    /// How long to sleep until one is due; `None`: none will be.
    pub(crate) fn timeout(&self, clock: &Clock) -> Option<Timespec> {
        let next = self.next_due();
        (next != u64::MAX).then(|| timespec(next.saturating_sub(clock.now())))
    }

    #[inline(always)]
    fn next_due(&self) -> u64 {
        self.queues.iter().map(|queue| queue.next_due()).min().unwrap_or(u64::MAX)
    }
}
