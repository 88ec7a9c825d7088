//! Mitigation in virtual time: a ring, a doorbell, a timer, a worker and applications that poll.

mod examples;
mod hung;
mod random;

use std::num::NonZeroU64;

use super::BusyPolling;
use crate::napi::{
    Body, Budget, Completion, Disabled, Driver, Napi, NapiInfo, NetRx, PollList, Released, Scheduled,
};
use crate::skb::Batch;

const US: u64 = 1000;
const MS: u64 = 1_000_000;

/// Everything around the instance.
#[derive(Default)]
struct Env {
    now: u64,
    ring: usize,
    unmasked: bool,
    timer: Option<u64>,
    /// Doorbells that rang.
    rung: u32,
    /// Packets delivered that the application has not been handed.
    ready: usize,
    /// Polls by the worker: when, how many packets, and the deferral counter before.
    polls: Vec<(u64, usize, u32)>,
    /// Whether packets come faster than they are polled.
    flood: bool,
}

impl Env {
    fn receive(&mut self, budget: usize) -> usize {
        let work = if self.flood { budget } else { self.ring.min(budget) };
        self.ring = self.ring.saturating_sub(work);
        self.ready += work;
        work
    }

    fn arm(&mut self, released: &Released<()>) {
        if let Some(timer) = released.timer {
            self.timer = Some(self.now.saturating_add(timer.get()));
        }
    }

    /// Does as `released` says, and takes the instance up again if packets came before the unmasking.
    fn apply(&mut self, released: Released<()>) -> Option<Scheduled<()>> {
        self.arm(&released);
        self.unmasked |= released.unmask;
        if !released.unmask || self.ring == 0 {
            return None;
        }
        self.unmasked = false;
        released.napi.schedule_prep()
    }
}

impl Driver<()> for Env {
    fn poll(&mut self, _: &NapiInfo, body: &mut Body<()>, weight: usize, _: &mut PollList<()>) -> usize {
        let work = self.receive(weight);
        self.polls.push((self.now, work, body.mitigation.left()));
        work
    }

    fn deliver(&mut self, _: &NapiInfo, _: &mut Batch) {
        unreachable!("no GRO");
    }

    fn released(&mut self, released: Released<()>, list: &mut PollList<()>) {
        self.apply(released).into_iter().for_each(|napi| list.push(napi));
    }

    fn now(&mut self) -> u64 {
        self.now
    }
}

struct World {
    napi: Napi<()>,
    rx: NetRx<()>,
    env: Env,
    poller: Option<BusyPolling<()>>,
    disabled: Option<Disabled<()>>,
}

impl World {
    /// In IRQ mode, with these knobs.
    fn new(n: u64, t: u64, s: u64) -> World {
        let (napi, disabled) = Napi::new("t", 0, 0, ());
        let rx = NetRx::new(Budget { usecs: u32::MAX, ..Budget::default() });
        let mut world = World { napi, rx, env: Env::default(), poller: None, disabled: None };
        world.knobs(n, t, s);
        world.rx.schedule(disabled.enable());
        world.softirq();
        world.env.polls.clear();
        assert_eq!(world.state(), (true, None));
        world
    }

    fn knobs(&self, n: u64, t: u64, s: u64) {
        self.napi.mitigation.set_defer_hard_irqs(n).unwrap();
        self.napi.mitigation.set_gro_flush_timeout(t);
        self.napi.mitigation.set_irq_suspend_timeout(s);
    }

    /// Doorbell unmasked, and when the timer fires.
    fn state(&self) -> (bool, Option<u64>) {
        (self.env.unmasked, self.env.timer)
    }

    fn polls(&mut self) -> Vec<(u64, usize, u32)> {
        std::mem::take(&mut self.env.polls)
    }

    /// The worker runs until it has nothing to do.
    fn softirq(&mut self) {
        for _ in 0..1000 {
            if self.rx.is_idle() {
                return;
            }
            self.rx.run(self.env.now, &mut self.env);
        }
        panic!("the worker never comes to rest");
    }

    fn schedule(&mut self, napi: Option<Scheduled<()>>) {
        napi.into_iter().for_each(|napi| self.rx.schedule(napi));
    }

    /// Packets arrive; the worker has not run yet.
    fn arrive(&mut self, packets: usize) {
        self.env.ring += packets;
        if std::mem::take(&mut self.env.unmasked) {
            self.env.rung += 1;
            let napi = self.napi.schedule_prep();
            self.schedule(napi);
        }
    }

    /// Packets arrive, and the worker does what follows.
    fn interrupt(&mut self, packets: usize) {
        self.arrive(packets);
        self.softirq();
    }

    /// The timer fires, if it is armed; the worker has not run yet.
    fn fire(&mut self) {
        if let Some(at) = self.env.timer.take() {
            self.env.now = at;
            let napi = self.napi.watchdog();
            self.schedule(napi);
        }
    }

    /// Time passes, the timer fires, the worker polls.
    fn run_to(&mut self, until: u64) {
        while self.env.timer.is_some_and(|at| at <= until) {
            self.fire();
            self.softirq();
        }
        self.env.now = until;
    }

    fn stop(&mut self, poller: BusyPolling<()>, prefer: bool) {
        let (napi, env) = (self.napi.clone(), &mut self.env);
        let stopped = poller.stop(
            prefer,
            |_, _| unreachable!("no GRO"),
            |ns| {
                assert!(napi.state().is_scheduled(), "armed before the release");
                env.timer = Some(env.now.saturating_add(ns.get()));
            },
        );
        match stopped {
            Completion::Released(released) => {
                assert!(!released.unmask && released.timer.is_none() && self.env.timer.is_some());
            }
            Completion::Again(napi) => self.poll_once(napi),
        }
    }

    /// The poll after a stop that did not release, by the application's thread.
    fn poll_once(&mut self, mut napi: Scheduled<()>) {
        loop {
            let work = self.env.receive(8);
            if work == 8 {
                return self.rx.schedule(napi);
            }
            let env = &mut self.env;
            let apply = |timer: Option<NonZeroU64>, unmask: bool| {
                env.timer = timer.map(|ns| env.now.saturating_add(ns.get())).or(env.timer);
                env.unmasked |= unmask;
                let waits = unmask && env.ring > 0;
                env.unmasked &= !waits;
                !waits
            };
            match napi.complete_applied(work, |_, _| unreachable!("no GRO"), apply) {
                Completion::Again(again) => napi = again,
                Completion::Released(released) => {
                    return assert!(!released.unmask && released.timer.is_none());
                }
            }
        }
    }

    /// The application is handed what is ready.
    fn hand_over(&mut self) -> usize {
        let delivered = std::mem::take(&mut self.env.ready);
        if let Some(timer) = self.napi.suspend(delivered) {
            self.env.timer = Some(self.env.now + timer.get());
        }
        delivered
    }

    /// One `epoll_wait` of an application with prefer, up to where it sleeps; `coming` packets arrive during its busy
    /// loop.
    fn epoll_wait(&mut self, coming: usize) -> usize {
        if self.env.ready == 0 {
            let poller = self.napi.busy_poll(true);
            self.arrive(coming);
            if let Some(mut poller) = poller {
                let work = self.env.receive(64);
                poller.parts().0.stats.polled(work, 64);
                self.stop(poller, true);
            }
        }
        let delivered = self.hand_over();
        if delivered == 0 {
            self.leave();
        }
        delivered
    }

    fn leave(&mut self) {
        let napi = self.napi.resume();
        self.schedule(napi);
        self.softirq();
    }

    fn try_disable(&mut self) -> bool {
        self.napi.disable();
        match self.napi.try_disable() {
            Some(disabled) => {
                self.disabled = Some(disabled);
                self.env.timer = None;
                self.env.unmasked = false;
                true
            }
            None => false,
        }
    }

    fn check(&self) {
        let state = self.napi.state();
        let (unmasked, timer) = self.state();
        let owned = state.is_scheduled();
        assert!(unmasked || timer.is_some() || owned || state.is_disable_pending(), "lost: {state}");
        let waits = unmasked && self.env.ring > 0 && !owned && !state.is_disable_pending();
        assert!(!waits, "packets wait at an unmasked doorbell");
        let owners = [self.poller.is_some(), self.disabled.is_some(), !self.rx.is_idle()];
        assert_eq!(owners.into_iter().filter(|held| *held).count(), usize::from(owned), "{state}");
        assert_eq!(self.poller.is_some(), state.is_busy_polling());
    }
}
