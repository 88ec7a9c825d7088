//! A worker in real time that does not get to sleep gives up its policy until it does, as the
//! kernel hands softirqs that do not end over to `ksoftirqd`, a thread of `SCHED_OTHER`:
//! applications on its CPU get their share of it then, and take from their sockets what the worker
//! brings.
//!
//! For the worker's own thread alone. Invariants: a worker that blocks has the policy that it was
//! given; if it can't take that back, it says so, and never gives it up again.

use softnet_dev::sched::{self, Policy};

use crate::napi::PollThread;
use crate::util::note;

/// For how long a worker may be awake in real time, in ns (the kernel's `MAX_SOFTIRQ_TIME`).
const LIMIT: u64 = 2_000_000;

/// See the module.
pub(super) struct StepDown {
    /// The policy that the worker has in real time; `None`: it has none to give up.
    policy: Option<Policy>,
    /// When it woke; 0 while it sleeps.
    since: u64,
    down: bool,
}

impl StepDown {
    /// For a worker that was given `policy`.
    pub(super) fn new(policy: Option<Policy>) -> Self {
        let policy = policy.filter(|policy| matches!(policy, Policy::Fifo(_) | Policy::Rr(_)));
        StepDown { policy, since: 0, down: false }
    }

    /// After a round that found something; it is `now`, in ns.
    #[inline(always)]
    pub(super) fn worked(&mut self, now: u64, thread: &PollThread) {
        if self.policy.is_none() || self.down {
            return;
        }
        if self.since == 0 {
            self.since = now;
        } else if now.saturating_sub(self.since) >= LIMIT {
            self.step_down(thread);
        }
    }

    #[cold]
    #[inline(never)]
    fn step_down(&mut self, thread: &PollThread) {
        match sched::set_policy(Policy::Other) {
            Ok(()) => {
                self.down = true;
                thread.stats.step_downs.add(1);
            }
            Err(error) => {
                note(format_args!("{} stays in real time: {error}", thread.name));
                self.policy = None;
            }
        }
    }

    /// Before the worker blocks.
    #[inline(always)]
    pub(super) fn sleeps(&mut self, thread: &PollThread) {
        self.since = 0;
        if self.down {
            self.step_up(thread);
        }
    }

    #[cold]
    #[inline(never)]
    fn step_up(&mut self, thread: &PollThread) {
        self.down = false;
        if let Some(policy) = self.policy
            && let Err(error) = sched::set_policy(policy)
        {
            note(format_args!("{} does not get back into real time: {error}", thread.name));
            self.policy = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Context;
    use crate::util::current_tid;

    /// On a thread of its own, whose policy does not matter.
    fn on_a_thread(policy: Policy, work: impl FnOnce(StepDown, &PollThread) + Send) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let thread = PollThread::new("softnet/0".into(), Context::Softirq, None, 0);
                // Needs the privilege.
                if sched::set_policy(policy).is_ok() {
                    work(StepDown::new(Some(policy)), &thread);
                }
            });
        });
    }

    fn own() -> Policy {
        sched::policy(current_tid()).unwrap()
    }

    #[test]
    fn a_worker_that_stays_awake_gives_up_its_policy_until_it_sleeps() {
        for policy in [Policy::Fifo(1), Policy::Rr(2)] {
            on_a_thread(policy, |mut step, thread| {
                for begin in [5, 5 * LIMIT] {
                    let before = thread.stats.step_downs.get();
                    step.worked(begin, thread);
                    step.worked(begin + LIMIT - 1, thread);
                    assert_eq!((own(), thread.stats.step_downs.get()), (policy, before));
                    step.worked(begin + LIMIT, thread);
                    step.worked(begin + 2 * LIMIT, thread);
                    assert_eq!((own(), thread.stats.step_downs.get()), (Policy::Other, before + 1));
                    step.sleeps(thread);
                    assert_eq!(own(), policy);
                }
            });
        }
    }

    #[test]
    fn sleep_begins_the_time_anew() {
        on_a_thread(Policy::Fifo(1), |mut step, thread| {
            for now in (1..10).map(|i| i * LIMIT / 2) {
                step.worked(now, thread);
                step.worked(now + LIMIT / 4, thread);
                step.sleeps(thread);
            }
            assert_eq!((own(), thread.stats.step_downs.get()), (Policy::Fifo(1), 0));
        });
    }

    #[test]
    fn other_policies_are_kept() {
        on_a_thread(Policy::Batch, |mut step, thread| {
            [1, 2 * LIMIT, 4 * LIMIT].into_iter().for_each(|now| step.worked(now, thread));
            step.sleeps(thread);
            assert_eq!((own(), thread.stats.step_downs.get()), (Policy::Batch, 0));
        });
    }
}
