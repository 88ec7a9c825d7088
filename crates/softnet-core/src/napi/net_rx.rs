//! The softirq loop (`net_rx_action`): polls the instances of one worker's poll list within a budget.
//!
//! Called by the worker's thread only. One run takes the list as it is, polls each instance once with the
//! configured weight, and stops when the list is empty, the packet budget is used or the time is up; the
//! latter two are a *time squeeze*. An instance that used its whole weight waits on the repoll list for the next
//! run, so that it cannot starve the others. What is left goes back to the list: first those the run did not get to,
//! then those scheduled meanwhile, then those to repoll. As long as the list is not empty, the worker runs again.
//!
//! An instance that a busy poller would rather have is completed even if it used its whole weight, so that the poller has
//! a chance to take it.
//!
//! Invariant: an instance is polled at most once per run, and none leaves without having been completed.

use std::collections::VecDeque;
use std::sync::Arc;

use super::instance::{Body, NapiInfo};
use super::scheduled::{Completion, Released, Scheduled};
use crate::skb::{BATCH, Batch};
use crate::softnet_data::Counter;

/// Packets that one poll may receive at the most.
pub const WEIGHT: usize = BATCH;

/// How much one run may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// `netdev_budget`: packets.
    pub packets: u32,
    /// `netdev_budget_usecs`: microseconds.
    pub usecs: u32,
    /// `dev_weight`: packets that one poll may receive, at most [`WEIGHT`].
    pub weight: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { packets: 300, usecs: 2000, weight: WEIGHT as u32 }
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

    /// Takes every instance off the list, for a worker that ends; each is still to be completed.
    pub fn drain(&mut self) -> impl Iterator<Item = Scheduled<Q>> {
        self.list.0.drain(..)
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
        move_behind(&mut self.current, &mut self.list.0);
        move_behind(&mut self.current, &mut self.repoll);
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
        let weight = (self.budget.weight as usize).clamp(1, WEIGHT);
        let work = driver.poll(info, body, weight, &mut self.list);
        info.stats.polled(work, weight);
        let full = work >= weight && !napi.disable_pending();
        let give_way = full && napi.prefers_busy_poll();
        if full && !give_way {
            napi.flush_gro(true, |info, batch| driver.deliver(info, batch));
            self.repoll.push_back(napi);
            return work;
        }
        match napi.complete(work, |info, batch| driver.deliver(info, batch)) {
            Completion::Released(released) if give_way && released.unmask => self.yielded(released, driver),
            Completion::Released(released) => driver.released(released, &mut self.list),
            Completion::Again(napi) => self.list.push(napi),
        }
        work
    }

    /// Gave way to a busy poller, but no deferral polls the instance if the poller does not come: since more packets wait
    /// the doorbell stays masked, and the instance is scheduled again.
    fn yielded(&mut self, released: Released<Q>, driver: &mut impl Driver<Q>) {
        let napi = released.napi.clone();
        driver.released(Released { unmask: false, ..released }, &mut self.list);
        if let Some(napi) = napi.schedule_prep() {
            self.list.push(napi);
        }
    }
}

/// Moves all of `from` to the end of `to`.
fn move_behind<T>(to: &mut VecDeque<T>, from: &mut VecDeque<T>) {
    if to.is_empty() {
        std::mem::swap(to, from);
    } else {
        to.append(from);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::napi::{Disabled, Napi};

    /// Queues are the number of packets that wait; `u32::MAX` never runs out.
    type Rx = u32;

    type OnPoll = Box<dyn FnMut(u16, &mut PollList<Rx>)>;

    /// Records which instance was polled, and unmasks nothing.
    #[derive(Default)]
    struct Log {
        polled: Vec<u16>,
        released: Vec<(u16, bool)>,
        clock: u64,
        reads: usize,
        ns_per_poll: u64,
        on_poll: Option<OnPoll>,
    }

    impl Log {
        fn polled(&mut self) -> Vec<u16> {
            std::mem::take(&mut self.polled)
        }
    }

    impl Driver<Rx> for Log {
        fn poll(
            &mut self,
            napi: &NapiInfo,
            body: &mut Body<Rx>,
            weight: usize,
            list: &mut PollList<Rx>,
        ) -> usize {
            self.polled.push(napi.queue);
            self.clock += self.ns_per_poll;
            if let Some(f) = &mut self.on_poll {
                f(napi.queue, list);
            }
            let work = (body.rx as usize).min(weight);
            if body.rx != u32::MAX {
                body.rx -= work as u32;
            }
            work
        }

        fn deliver(&mut self, _: &NapiInfo, _: &mut Batch) {
            unreachable!("nothing is held");
        }

        fn released(&mut self, released: Released<Rx>, _: &mut PollList<Rx>) {
            assert_eq!(released.timer, None);
            self.released.push((released.napi.queue, released.unmask));
        }

        fn now(&mut self) -> u64 {
            self.reads += 1;
            self.clock
        }
    }

    /// Instances with these queues, scheduled in order.
    fn scheduled(rx: &mut NetRx<Rx>, queues: &[Rx]) -> Vec<Napi<Rx>> {
        let enable = |(i, queue): (usize, &Rx)| {
            let (napi, disabled): (_, Disabled<Rx>) = Napi::new(format!("t-{i}"), 0, i as u16, *queue);
            rx.schedule(disabled.enable());
            napi
        };
        queues.iter().enumerate().map(enable).collect()
    }

    /// Six saturated instances: five are polled (320 packets reach the budget of 300), which is a squeeze. The next
    /// run begins with the sixth, then what was scheduled meanwhile, then the five.
    #[test]
    fn six_saturated_instances() {
        let (mut rx, mut log) = (NetRx::new(Budget::default()), Log::default());
        scheduled(&mut rx, &[u32::MAX; 6]);
        let mut late = Some(Napi::new("late", 0, 9, 1).1.enable());
        log.on_poll = Some(Box::new(move |_, list| late.take().into_iter().for_each(|l| list.push(l))));
        assert_eq!(rx.run(0, &mut log), Run { polls: 5, work: 320, squeezed: true });
        assert_eq!((log.polled(), rx.stats().time_squeeze.get()), (vec![0, 1, 2, 3, 4], 1));
        rx.set_budget(Budget { packets: 1000, ..Budget::default() });
        assert_eq!(rx.run(0, &mut log), Run { polls: 7, work: 385, squeezed: false });
        assert_eq!(log.polled(), [5, 9, 0, 1, 2, 3, 4]);
        assert!(!rx.is_idle());
    }

    /// A saturated and a light one: both are served each round, and nothing is squeezed.
    #[test]
    fn a_full_instance_does_not_starve_a_light_one() {
        let (mut rx, mut log) = (NetRx::new(Budget::default()), Log::default());
        let napis = scheduled(&mut rx, &[u32::MAX, 3]);
        for round in 0..5 {
            let work = if round == 0 { 67 } else { 64 + round };
            assert_eq!(rx.run(0, &mut log), Run { polls: 2, work, squeezed: false });
            assert_eq!(log.released, [(1, true)]);
            assert!(napis[0].state().is_scheduled() && !napis[1].state().is_scheduled());
            log.released.clear();
            let mut more = napis[1].schedule_prep().expect("released");
            more.body().rx = round as u32 + 1;
            rx.schedule(more);
        }
        assert_eq!(rx.stats().time_squeeze.get(), 0);
        assert_eq!(napis[0].stats.full_polls.get(), 5);
        assert_eq!((napis[1].stats.polls.get(), napis[1].stats.packets.get()), (5, 3 + 1 + 2 + 3 + 4));
    }

    #[test]
    fn squeezed_by_budget_or_time_but_not_by_an_empty_list() {
        let mut log = Log { ns_per_poll: 500_000, ..Log::default() };
        let mut rx = NetRx::new(Budget::default());
        scheduled(&mut rx, &[1, 1, 1]);
        assert_eq!(rx.run(0, &mut log), Run { polls: 3, work: 3, squeezed: false });
        assert_eq!((rx.stats().time_squeeze.get(), log.reads), (0, 3));
        assert!(rx.is_idle());

        scheduled(&mut rx, &[1; 6]);
        let now = log.clock;
        assert_eq!(rx.run(now, &mut log), Run { polls: 4, work: 4, squeezed: true });
        assert_eq!((rx.stats().time_squeeze.get(), log.reads), (1, 7));

        rx.set_budget(Budget { packets: 64, usecs: u32::MAX, ..Budget::default() });
        assert_eq!(rx.run(u64::MAX, &mut log).polls, 2, "a deadline past the end of time");
        scheduled(&mut rx, &[u32::MAX]);
        assert_eq!(rx.run(0, &mut log), Run { polls: 1, work: 64, squeezed: true });
        assert_eq!((rx.stats().time_squeeze.get(), rx.stats().runs.get()), (2, 4));
    }

    /// A lone saturated instance is polled once per run. One that was scheduled while it was polled waits for the
    /// next run, while one scheduled by another's poll is taken up in the same run.
    #[test]
    fn each_instance_once_per_run() {
        let (mut rx, mut log) = (NetRx::new(Budget::default()), Log::default());
        let lone = scheduled(&mut rx, &[u32::MAX]);
        for _ in 0..3 {
            assert_eq!(rx.run(0, &mut log), Run { polls: 1, work: 64, squeezed: false });
        }
        assert_eq!(lone[0].stats.schedules.get(), 1);
        drop((rx, log));

        let (mut rx, mut log) = (NetRx::new(Budget::default()), Log::default());
        let a = scheduled(&mut rx, &[1]).remove(0);
        let mut b = Some(Napi::new("b", 0, 1, 1).1.enable());
        let handle = a.clone();
        log.on_poll = Some(Box::new(move |queue, list| {
            if queue == 0 {
                assert!(handle.schedule_prep().is_none(), "it is being polled");
                b.take().into_iter().for_each(|b| list.push(b));
            }
        }));
        assert_eq!(rx.run(0, &mut log).polls, 2);
        assert_eq!(log.polled(), [0, 1]);
        assert_eq!((a.stats.missed.get(), log.released.as_slice()), (1, &[(1, true)][..]));
        log.on_poll = None;
        assert_eq!(rx.run(0, &mut log).polls, 1);
        assert_eq!(log.polled(), [0]);
        assert!(rx.is_idle() && !a.state().is_scheduled());
        assert_eq!(rx.run(0, &mut log), Run::default(), "nothing to do");
    }

    #[test]
    fn a_full_poll_completes_if_a_disable_waits() {
        let (mut rx, mut log) = (NetRx::new(Budget::default()), Log::default());
        let napi = scheduled(&mut rx, &[u32::MAX]).remove(0);
        rx.run(0, &mut log);
        napi.disable();
        assert!(napi.try_disable().is_none(), "it waits to be polled");
        assert_eq!(rx.run(0, &mut log).work, 64);
        assert!(rx.is_idle());
        let disabled = napi.try_disable().expect("completed in one poll");
        assert!(napi.schedule_prep().is_none() && napi.watchdog().is_none());
        rx.schedule(disabled.enable());
        assert_eq!(rx.run(0, &mut log).work, 64);
    }

    #[test]
    fn counts_a_driver_that_exceeds_its_weight() {
        struct Greedy;
        impl Driver<()> for Greedy {
            fn poll(&mut self, _: &NapiInfo, _: &mut Body<()>, n: usize, _: &mut PollList<()>) -> usize {
                n + 1
            }
            fn deliver(&mut self, _: &NapiInfo, _: &mut Batch) {}
            fn released(&mut self, _: Released<()>, _: &mut PollList<()>) {}
            fn now(&mut self) -> u64 {
                0
            }
        }
        let (napi, disabled) = Napi::new("greedy", 0, 0, ());
        let mut rx = NetRx::new(Budget::default());
        rx.schedule(disabled.enable());
        rx.run(0, &mut Greedy);
        assert_eq!((napi.stats.over_weight.get(), rx.is_idle()), (1, false));
    }
}
