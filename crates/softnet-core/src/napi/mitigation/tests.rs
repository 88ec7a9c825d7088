//! Mitigation in virtual time: a ring, a doorbell, a timer, a worker and applications that poll.

use proptest::prelude::*;

use super::BusyPolling;
use crate::napi::{
    Body, Budget, Completion, Disabled, Driver, Gro, Napi, NapiInfo, NetRx, PollList, Released, Scheduled,
};
use crate::skb::{Batch, CacheSizes, HeapMemory, Region, Store};

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
    fn settle(&mut self, released: Released<()>) -> Option<Scheduled<()>> {
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
        self.settle(released).into_iter().for_each(|napi| list.push(napi));
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
        match poller.stop(prefer, |_, _| unreachable!("no GRO")) {
            Completion::Released(released) => {
                assert!(!released.unmask && released.timer.is_some());
                self.env.arm(&released);
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
            match napi.complete(work, |_, _| unreachable!("no GRO")) {
                Completion::Again(again) => napi = again,
                Completion::Released(released) => match self.env.settle(released) {
                    Some(again) => napi = again,
                    None => return,
                },
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

/// N = 2, T = 20 µs: one interrupt, three polls, masked for N × T after the last work; a packet meanwhile starts over.
#[test]
fn deferral_example() {
    let mut world = World::new(2, 20 * US, 0);
    world.interrupt(5);
    assert_eq!(world.state(), (false, Some(20 * US)));
    world.run_to(20 * US);
    assert_eq!(world.state(), (false, Some(40 * US)));
    world.run_to(MS);
    assert_eq!(world.polls(), [(0, 5, 0), (20 * US, 0, 1), (40 * US, 0, 0)]);
    assert_eq!((world.state(), world.env.rung), ((true, None), 1));

    let mut world = World::new(2, 20 * US, 0);
    world.interrupt(5);
    world.run_to(25 * US);
    world.interrupt(1);
    assert_eq!(world.polls().len(), 2, "the doorbell is masked");
    world.run_to(79 * US);
    assert!(!world.state().0);
    world.run_to(MS);
    assert_eq!(world.polls(), [(40 * US, 1, 0), (60 * US, 0, 1), (80 * US, 0, 0)]);
    assert_eq!((world.state(), world.env.rung), ((true, None), 1));
}

fn suspended() -> World {
    let mut world = World::new(100, 20 * US, 20 * MS);
    assert_eq!(world.epoll_wait(3), 3);
    assert_eq!(world.state(), (false, Some(20 * MS)));
    world
}

/// N = 100, T = 20 µs, S = 20 ms: neither polls nor interrupts while the application works; when it runs dry, deferral.
#[test]
fn suspension_example() {
    let mut world = suspended();
    world.run_to(3 * MS);
    world.interrupt(40);
    assert_eq!((world.polls(), world.env.rung), (vec![], 1), "the one that came in IRQ mode");
    assert_eq!(world.epoll_wait(0), 40);
    assert_eq!(world.state(), (false, Some(23 * MS)), "S starts over");
    world.run_to(4 * MS);
    assert_eq!(world.epoll_wait(0), 0);
    assert_eq!(world.state(), (false, Some(4 * MS + 20 * US)));
    world.run_to(4 * MS + 50 * US);
    world.interrupt(1);
    world.run_to(4 * MS + 60 * US);
    let start = 4 * MS;
    let expected =
        [(0, 0, 100), (20, 0, 99), (40, 0, 98), (60, 1, 97)].map(|(t, w, c)| (start + t * US, w, c));
    assert_eq!(world.polls(), expected);
    assert_eq!(world.epoll_wait(0), 1, "what the timer's poll found is ready");
    assert_eq!(world.state(), (false, Some(start + 60 * US + 20 * MS)), "suspended again");
    assert_eq!(world.env.rung, 1);

    let mut world = suspended();
    world.run_to(10 * MS);
    world.interrupt(7);
    world.run_to(20 * MS + 70 * US);
    let expected =
        [(0, 7, 100), (20, 0, 99), (40, 0, 98), (60, 0, 97)].map(|(t, w, c)| (20 * MS + t * US, w, c));
    assert_eq!(world.polls(), expected, "the application computes for 30 ms");
    assert_eq!(world.epoll_wait(0), 7);
    assert_eq!(world.state(), (false, Some(40 * MS + 70 * US)));
}

#[test]
fn a_timeout_or_a_counter_alone_masks_nothing() {
    for (n, t) in [(0, 20 * US), (3, 0), (0, 0)] {
        let mut world = World::new(n, t, 20 * MS);
        for round in 1..5 {
            world.interrupt(2);
            assert_eq!((world.state(), world.env.rung), ((true, None), round));
            world.run_to(u64::from(round) * MS);
        }
        let left: Vec<_> = world.polls().into_iter().map(|(_, work, left)| (work, left)).collect();
        assert_eq!(left.last(), Some(&(2, n.saturating_sub(1) as u32)), "the counter runs all the same");

        // A poller's stop does not keep it masked either.
        world.env.ready = 0;
        let poller = world.napi.busy_poll(true).expect("idle");
        world.arrive(1);
        assert!(!world.state().0);
        world.stop(poller, true);
        assert_eq!((world.state(), world.env.ready), ((true, None), 1), "one more poll, which unmasks");
    }
}

#[test]
fn an_idle_link_is_unmasked_and_one_interrupt_restarts_the_sequence() {
    let mut world = World::new(3, 10 * US, 0);
    for round in 1..4 {
        world.interrupt(1);
        world.run_to(u64::from(round) * MS);
        assert_eq!((world.polls().len(), world.env.rung), (4, round));
        assert_eq!(world.state(), (true, None));
    }
}

/// Every way out of "suspended", and that each leads to deferral.
#[test]
fn leaving_suspension() {
    let deferred = |world: &World| world.state() == (false, Some(world.env.now + 20 * US));

    let mut world = suspended();
    world.run_to(MS);
    world.leave(); // runs dry, sleeps; or is destroyed
    assert!(deferred(&world));
    assert_eq!(world.polls(), [(MS, 0, 100)]);
    world.run_to(10 * MS);
    assert_eq!((world.state(), world.polls().len()), ((true, None), 100), "then IRQ mode");

    let mut world = suspended(); // does not own the instance when it runs dry
    world.run_to(MS);
    let other = world.napi.busy_poll(true).expect("free");
    assert_eq!(world.epoll_wait(0), 0);
    assert_eq!(world.napi.state().to_string(), "sched|missed|in-busy-poll|prefer-busy-poll");
    world.stop(other, true);
    assert!(deferred(&world));
    assert_eq!(world.napi.state().to_string(), "prefer-busy-poll");

    let mut world = suspended(); // S expires
    let poller = world.napi.busy_poll(true).expect("free");
    assert!(world.napi.busy_poll(true).is_none());
    world.stop(poller, true);
    world.env.ready = 1;
    assert_eq!(world.hand_over(), 1);
    assert!(world.napi.state().prefers_busy_poll());
    world.arrive(70);
    world.fire();
    assert!(!world.napi.state().prefers_busy_poll(), "the worker is not to give way to who failed to come");
    world.softirq();
    assert!(deferred(&world));
    assert_eq!(world.polls().iter().map(|p| p.1).collect::<Vec<_>>(), [64, 6]);
}

#[test]
fn zeroing_the_suspend_timeout_leaves_the_armed_timer() {
    let mut world = suspended();
    world.run_to(MS);
    world.napi.mitigation.set_irq_suspend_timeout(0);
    world.leave();
    assert_eq!(world.state(), (false, Some(20 * MS)), "no resumption");
    assert!(world.polls().is_empty());
    world.env.ready = 1;
    assert_eq!(world.hand_over(), 1);
    assert_eq!(world.state(), (false, Some(20 * MS)), "no new suspension");
    world.run_to(20 * MS);
    assert_eq!(world.state(), (false, Some(20 * MS + 20 * US)), "rescued");
}

#[test]
fn only_deliveries_suspend() {
    let mut world = World::new(100, 20 * US, 20 * MS);
    world.interrupt(1);
    assert_eq!(world.hand_over(), 1);
    assert_eq!(world.state(), (false, Some(20 * MS)));
    world.run_to(MS);
    assert_eq!(world.hand_over(), 0);
    assert_eq!(world.state(), (false, Some(20 * MS)), "an empty hand-over changes nothing");
}

/// Disabled in IRQ mode, deferred, suspended, and during a busy poll: at once, or when the owner has stopped.
#[test]
fn disable_in_each_state() {
    let mut irq_mode = World::new(100, 20 * US, 20 * MS);
    assert!(irq_mode.try_disable());
    let mut deferred = World::new(100, 20 * US, 20 * MS);
    deferred.interrupt(1);
    assert!(!deferred.state().0 && deferred.try_disable());
    let mut asleep = suspended();
    assert!(asleep.try_disable());
    let mut polled = suspended();
    let poller = polled.napi.busy_poll(true).expect("free");
    assert!(!polled.try_disable() && poller.disable_pending());
    assert!(polled.napi.busy_poll(true).is_none() && !polled.napi.state().prefers_busy_poll());
    polled.stop(poller, true);
    assert!(polled.napi.busy_poll(true).is_none(), "the disable comes first");
    assert!(polled.try_disable());
    for mut world in [irq_mode, deferred, asleep, polled] {
        world.polls();
        assert!(world.napi.busy_poll(true).is_none() && world.napi.watchdog().is_none());
        assert!(world.napi.resume().is_none() && world.napi.suspend(1).is_none());
        assert!(world.napi.state().is_disabled());
        world.interrupt(2);
        let disabled = world.disabled.take().expect("disabled");
        assert!(world.polls().is_empty());
        world.rx.schedule(disabled.enable());
        world.softirq();
        assert_eq!((world.env.ring, world.state()), (0, (false, Some(world.env.now + 20 * US))));
    }
}

/// A worker that receives without end gives way to a poller that asks, whether or not deferral is configured.
#[test]
fn a_saturated_worker_gives_way() {
    for (n, t) in [(100, 20 * US), (0, 0), (0, 20 * US)] {
        let mut world = World::new(n, t, 20 * MS);
        world.env.flood = true;
        world.arrive(1);
        for _ in 0..3 {
            world.rx.run(0, &mut world.env);
        }
        assert!(world.napi.busy_poll(false).is_none());
        world.rx.run(0, &mut world.env);
        assert!(!world.rx.is_idle(), "no preference, no way given");
        assert!(world.napi.busy_poll(true).is_none());
        world.rx.run(0, &mut world.env);
        assert!(!world.napi.state().prefers_busy_poll());
        world.check();
        assert_eq!((world.env.unmasked, world.polls().len()), (false, 5));
        if n > 0 {
            assert!(world.rx.is_idle());
            let poller = world.napi.busy_poll(true).expect("it gave way");
            world.stop(poller, true);
        } else {
            assert!(!world.rx.is_idle(), "no timer: scheduled again");
        }
        world.env.flood = false;
        world.env.ring = 0;
        world.run_to(30 * MS);
        world.softirq();
        assert!(world.state().0);
    }
}

/// Holds whatever it gets.
struct Hold(Batch);

impl Gro for Hold {
    fn receive(&mut self, batch: &mut Batch) {
        self.0.append(batch);
    }

    fn flush(&mut self, out: &mut Batch, old_only: bool) {
        if !old_only {
            out.append(&mut self.0);
        }
    }

    fn held(&self) -> usize {
        self.0.len()
    }
}

/// A poller that stops gives up what GRO holds while it still is the owner.
#[test]
fn gro_is_flushed_before_the_release() {
    let memory = Box::new(HeapMemory::new(Region::bytes(64, 64)));
    let mut store = Store::new(Region::new(memory, 64, 64).unwrap(), CacheSizes::default());
    let world = World::new(100, 20 * US, 20 * MS);
    let mut poller = world.napi.busy_poll(true).expect("idle");
    let body = poller.parts().1;
    let mut held = Hold(Batch::new());
    (0..3).for_each(|_| held.0.push(store.alloc_skb().unwrap()).unwrap());
    body.gro = Some(Box::new(held));
    poller.flush_gro(true, |_, _| panic!("none is old"));
    let mut flushed = 0;
    let stopped = poller.stop(true, |info, batch| {
        assert!(world.napi.busy_poll(true).is_none(), "released before {} was flushed", info.name);
        flushed += batch.len();
        batch.drain().for_each(|skb| store.free_skb(skb));
    });
    assert!(matches!(stopped, Completion::Released(_)));
    assert_eq!(flushed, 3);
}

#[derive(Clone, Debug)]
enum Event {
    Arrive(usize),
    Fire,
    Worker,
    Take(bool),
    Poll(usize),
    Stop(bool),
    HandOver,
    Leave,
    Knobs(u64, u64, u64),
    Disable,
    Enable,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let knob = |value| prop_oneof![Just(0), Just(value)];
    let event = prop_oneof![
        3 => prop_oneof![Just(1usize), Just(5), Just(100)].prop_map(Event::Arrive),
        3 => Just(Event::Fire),
        3 => Just(Event::Worker),
        2 => any::<bool>().prop_map(Event::Take),
        2 => (1usize..=64).prop_map(Event::Poll),
        2 => any::<bool>().prop_map(Event::Stop),
        2 => Just(Event::HandOver),
        1 => Just(Event::Leave),
        1 => (0u64..4, knob(20 * US), knob(20 * MS)).prop_map(|(n, t, s)| Event::Knobs(n, t, s)),
        1 => Just(Event::Disable),
        1 => Just(Event::Enable),
    ];
    prop::collection::vec(event, 0..80)
}

impl World {
    fn step(&mut self, event: Event) {
        match event {
            Event::Arrive(packets) => self.arrive(packets),
            Event::Fire => self.fire(),
            Event::Worker => {
                self.rx.run(self.env.now, &mut self.env);
            }
            Event::Take(prefer) => {
                let owned = self.napi.state().is_scheduled();
                let poller = self.napi.busy_poll(prefer);
                assert!(!(owned && poller.is_some()), "two owners");
                self.poller = self.poller.take().or(poller);
            }
            Event::Poll(budget) => {
                if self.poller.is_some() {
                    self.env.receive(budget);
                }
            }
            Event::Stop(prefer) => {
                if let Some(poller) = self.poller.take() {
                    self.stop(poller, prefer);
                }
            }
            Event::HandOver => {
                self.hand_over();
            }
            Event::Leave => {
                let napi = self.napi.resume();
                self.schedule(napi);
            }
            Event::Knobs(n, t, s) => self.knobs(n, t, s),
            Event::Disable => {
                if self.disabled.is_none() {
                    self.try_disable();
                }
            }
            Event::Enable => {
                if let Some(disabled) = self.disabled.take() {
                    self.rx.schedule(disabled.enable());
                }
            }
        }
    }

    /// The applications are gone, and a pending disable comes to its end.
    fn wind_up(&mut self) {
        self.step(Event::Stop(true));
        self.softirq();
        if self.napi.state().is_disable_pending() {
            assert!(self.try_disable(), "nobody owns it");
        }
        self.step(Event::Enable);
        self.softirq();
    }
}

proptest! {
    /// Whatever happens, in whatever order: nobody is forgotten, and after the last event everything is received and
    /// the doorbell unmasked within S and N × T.
    #[test]
    fn no_wake_up_is_lost(knobs in (0u64..4, 0u64..2, 0u64..2), events in events()) {
        let mut world = World::new(knobs.0, knobs.1 * 20 * US, knobs.2 * 20 * MS);
        for event in events {
            world.step(event);
            world.check();
        }
        world.wind_up();
        world.check();
        let end = world.env.now + 20 * MS + 5 * 20 * US;
        world.run_to(end);
        world.check();
        prop_assert_eq!((world.env.ring, world.state()), (0, (true, None)));
    }
}
