//! The softirq loop (`net_rx_action`): polls the instances of one worker's poll list within a budget.
//!
//! Called by the worker's thread only. One run takes the list as it is, polls each instance once with a
//! weight of [`WEIGHT`], and stops when the list is empty, the packet budget is used or the time is up; the
//! latter two are a *time squeeze*. An instance that used its whole weight waits on the repoll list for the next
//! run, so that it cannot starve the others. What is left goes back to the list: first those the run did not get to,
//! then those scheduled meanwhile, then those to repoll. As long as the list is not empty, the worker runs again.
//!
//! Invariant: an instance is polled at most once per run, and none leaves without having been completed.

use std::collections::VecDeque;
use std::sync::Arc;

use super::instance::{Body, NapiInfo};
use super::scheduled::{Completion, Released, Scheduled};
use crate::skb::{BATCH, Batch};
use crate::softnet_data::Counter;

/// Packets that one poll may receive.
pub const WEIGHT: usize = BATCH;

/// How much one run may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// `netdev_budget`: packets.
    pub packets: u32,
    /// `netdev_budget_usecs`: microseconds.
    pub usecs: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { packets: 300, usecs: 2000 }
    }
}

/// What the loop needs of its worker.
pub trait Driver<Q> {
    /// Receives up to `weight` packets from the queue in `body`, processes them, and returns how many there were.
    /// Instances that this schedules on the same worker go to `list`.
    fn poll(&mut self, napi: &NapiInfo, body: &mut Body<Q>, weight: usize, list: &mut PollList<Q>) -> usize;

    /// Processes all packets of `batch`, which GRO held until now.
    fn deliver(&mut self, napi: &NapiInfo, batch: &mut Batch);

    /// Does as `released` says. If packets turn up after the unmasking, masks the doorbell again, and schedules the
    /// instance to `list`.
    fn released(&mut self, released: Released<Q>, list: &mut PollList<Q>);

    /// The time in ns. Called at most once per poll, after it.
    fn now(&mut self) -> u64;
}

/// Scheduled instances that wait for a worker's poll, first in, first out.
pub struct PollList<Q>(VecDeque<Scheduled<Q>>);

impl<Q> PollList<Q> {
    fn new() -> Self {
        PollList(VecDeque::with_capacity(16))
    }

    /// Appends an instance.
    #[inline]
    pub fn push(&mut self, napi: Scheduled<Q>) {
        self.0.push_back(napi);
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Counters of a worker's loop.
#[derive(Default)]
pub struct NetRxStats {
    /// Runs.
    pub runs: Counter,
    /// Runs that ended because the budget or the time was used up.
    pub time_squeeze: Counter,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Polls.
    pub polls: usize,
    /// Packets they received.
    pub work: usize,
    /// Whether it ended because the budget or the time was used up.
    pub squeezed: bool,
}

/// The poll list of a worker, and the loop over it.
pub struct NetRx<Q> {
    list: PollList<Q>,
    current: VecDeque<Scheduled<Q>>,
    repoll: VecDeque<Scheduled<Q>>,
    budget: Budget,
    run: u64,
    stats: Arc<NetRxStats>,
}

impl<Q> NetRx<Q> {
    /// With an empty list.
    pub fn new(budget: Budget) -> Self {
        NetRx {
            list: PollList::new(),
            current: VecDeque::with_capacity(16),
            repoll: VecDeque::with_capacity(16),
            budget,
            run: 0,
            stats: Arc::new(NetRxStats::default()),
        }
    }

    /// Its counters, for others to read.
    pub fn stats(&self) -> &Arc<NetRxStats> {
        &self.stats
    }

    /// Sets the budget of the runs to come.
    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Appends an instance to the poll list.
    #[inline]
    pub fn schedule(&mut self, napi: Scheduled<Q>) {
        self.list.push(napi);
    }

    /// Whether no instance waits, so that there is nothing to run.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.list.is_empty()
    }

    /// One run, beginning at `now` (ns, of the same clock as the driver's).
    pub fn run(&mut self, now: u64, driver: &mut impl Driver<Q>) -> Run {
        let deadline = now.saturating_add(u64::from(self.budget.usecs) * 1000);
        let budget = self.budget.packets as usize;
        let mut done = Run::default();
        self.run += 1;
        std::mem::swap(&mut self.list.0, &mut self.current);
        loop {
            let Some(napi) = self.current.pop_front() else {
                if self.repoll.is_empty() && self.start_over() {
                    continue;
                }
                break;
            };
            done.work += self.poll(napi, driver);
            done.polls += 1;
            if done.work >= budget || driver.now() >= deadline {
                done.squeezed = true;
                self.stats.time_squeeze.add(1);
                break;
            }
        }
        self.current.append(&mut self.list.0);
        self.current.append(&mut self.repoll);
        std::mem::swap(&mut self.list.0, &mut self.current);
        self.stats.runs.add(1);
        done
    }

    /// Goes on with the instances that were scheduled since the run began and that it has not polled yet.
    fn start_over(&mut self) -> bool {
        for _ in 0..self.list.len() {
            let Some(mut napi) = self.list.0.pop_front() else { break };
            let fresh = napi.body().run != self.run;
            if fresh { &mut self.current } else { &mut self.list.0 }.push_back(napi);
        }
        !self.current.is_empty()
    }

    /// One poll of one instance, and what follows from it.
    fn poll(&mut self, mut napi: Scheduled<Q>, driver: &mut impl Driver<Q>) -> usize {
        let (info, body) = napi.parts();
        body.run = self.run;
        let work = driver.poll(info, body, WEIGHT, &mut self.list);
        info.stats.polls.add(1);
        info.stats.packets.add(work as u64);
        info.stats.empty_polls.add((work == 0).into());
        info.stats.full_polls.add((work >= WEIGHT).into());
        info.stats.over_weight.add((work > WEIGHT).into());
        if work >= WEIGHT && !napi.disable_pending() {
            napi.flush_gro(true, |info, batch| driver.deliver(info, batch));
            self.repoll.push_back(napi);
        } else {
            match napi.complete(work, |info, batch| driver.deliver(info, batch)) {
                Completion::Released(released) => driver.released(released, &mut self.list),
                Completion::Again(napi) => self.list.push(napi),
            }
        }
        work
    }
}
