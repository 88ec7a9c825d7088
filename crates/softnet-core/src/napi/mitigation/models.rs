//! Loom models of mitigation, each with the faults that it must notice.

use std::sync::Arc;

use loom::thread;

use crate::napi::{
    Body, Budget, Completion, Driver, Napi, NapiInfo, NetRx, PollList, Released, Scheduled, WEIGHT,
};
use crate::skb::Batch;
use crate::sync::{AtomicBool, AtomicU32, Mutant, Ordering, check, fence, must_fail, mutated};

/// An idle instance. Its body is the number of packets that polls have seen; loom reports a second owner.
fn idle() -> Napi<u32> {
    let (napi, disabled) = Napi::new("model", 0, 0, 0);
    let Completion::Released(_) = disabled.enable().complete(0, |_, _| ()) else { panic!("nobody else") };
    napi.mitigation.set_defer_hard_irqs(1).unwrap();
    napi.mitigation.set_gro_flush_timeout(1);
    napi.mitigation.set_irq_suspend_timeout(1);
    napi
}

/// The instance with a ring (how many packets have ever arrived), a doorbell and a timer.
struct Queue {
    napi: Napi<u32>,
    ring: AtomicU32,
    unmasked: AtomicBool,
    armed: AtomicBool,
}

impl Queue {
    fn new() -> Arc<Queue> {
        let (ring, unmasked, armed) = (AtomicU32::new(0), AtomicBool::new(true), AtomicBool::new(false));
        Arc::new(Queue { napi: idle(), ring, unmasked, armed })
    }

    fn arrive(&self) {
        self.ring.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.unmasked.swap(false, Ordering::Relaxed) {
            self.serve(self.napi.schedule_prep());
        }
    }

    fn arm(&self) {
        // Loom does not put a plain store after the exchange that did not read it.
        self.armed.swap(true, Ordering::Relaxed);
    }

    fn fire(&self) -> bool {
        let fired = self.armed.swap(false, Ordering::Relaxed);
        if fired {
            self.serve(self.napi.watchdog());
        }
        fired
    }

    /// Polls until completion releases, and sees to the timer and the doorbell.
    fn serve(&self, mut owned: Option<Scheduled<u32>>) {
        while let Some(mut scheduled) = owned.take() {
            let seen = self.ring.load(Ordering::Relaxed);
            let work = seen - std::mem::replace(&mut scheduled.body().rx, seen);
            if mutated(Mutant::ArmedTooEarly) {
                self.arm();
            }
            match scheduled.complete(work as usize, |_, _| ()) {
                Completion::Again(again) => owned = Some(again),
                Completion::Released(released) => owned = self.released(released, seen),
            }
        }
    }

    fn released(&self, released: Released<u32>, seen: u32) -> Option<Scheduled<u32>> {
        if released.timer.is_some() && !mutated(Mutant::ArmedTooEarly) {
            self.arm();
        }
        if !released.unmask {
            return None;
        }
        self.unmasked.swap(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if mutated(Mutant::NoSecondLook) || self.ring.load(Ordering::Relaxed) == seen {
            return None;
        }
        self.unmasked.swap(false, Ordering::Relaxed);
        self.napi.schedule_prep()
    }

    /// An application waits for packets once, and goes away.
    fn application(&self) {
        let mut work = 0;
        if let Some(mut poller) = self.napi.busy_poll(true) {
            let seen = self.ring.load(Ordering::Relaxed);
            work = seen - std::mem::replace(&mut poller.parts().1.rx, seen);
            match poller.stop(true, |_, _| ()) {
                Completion::Released(released) => drop(self.released(released, seen)),
                Completion::Again(_) => panic!("deferral is configured"),
            }
        }
        if self.napi.suspend(work as usize).is_some() {
            self.arm();
        }
        self.serve(self.napi.resume());
    }

    /// Everybody is done: the queue is unmasked or its timer armed. Once that has run down, every packet was seen.
    fn at_rest(&self) {
        let state = self.napi.state();
        assert!(!state.is_scheduled() && !state.is_missed() && !state.is_busy_polling(), "{state}");
        let (unmasked, armed) = (self.unmasked.load(Ordering::Relaxed), self.armed.load(Ordering::Relaxed));
        assert!(unmasked || armed, "masked, no timer, and nobody owns it");
        for _ in 0..4 {
            if !self.fire() {
                break;
            }
        }
        assert!(self.unmasked.load(Ordering::Relaxed), "deferral comes to an end");
        let mut scheduled = self.napi.schedule_prep().expect("idle");
        assert_eq!(scheduled.body().rx, self.ring.load(Ordering::Relaxed), "a packet waits");
    }
}

/// A packet arrives and rings, the timer fires, an application polls, suspends and leaves; in any order.
fn no_wake_up_is_lost() {
    let queue = Queue::new();
    let spawn = |f: fn(&Queue)| {
        let queue = queue.clone();
        thread::spawn(move || f(&queue))
    };
    let threads = [spawn(Queue::arrive), spawn(Queue::application)];
    queue.fire();
    threads.into_iter().for_each(|t| t.join().unwrap());
    queue.at_rest();
}

#[test]
fn unmasked_or_armed_or_owned() {
    check(2, no_wake_up_is_lost);
    for m in [Mutant::AcquireNotAtomic, Mutant::ReleaseNotFolded, Mutant::ReleaseRelaxed] {
        must_fail(m, 2, no_wake_up_is_lost);
    }
}

/// A packet arrives at a deferred queue, whose timer fires meanwhile and finds the deferral exhausted.
fn deferral() {
    let queue = Queue::new();
    queue.arrive();
    let other = thread::spawn({
        let queue = queue.clone();
        move || queue.arrive()
    });
    queue.fire();
    let timer = thread::spawn({
        let queue = queue.clone();
        move || {
            queue.fire();
        }
    });
    other.join().unwrap();
    timer.join().unwrap();
    queue.at_rest();
}

#[test]
fn the_timer_is_armed_after_the_release() {
    check(3, deferral);
    for m in [Mutant::ArmedTooEarly, Mutant::WatchdogOnlyLooks, Mutant::NoSecondLook] {
        must_fail(m, 3, deferral);
    }
}

/// A driver whose queue never runs dry.
struct Flood {
    armed: bool,
    lost: Arc<AtomicBool>,
    asked: bool,
}

impl Driver<u32> for Flood {
    fn poll(&mut self, _: &NapiInfo, body: &mut Body<u32>, weight: usize, _: &mut PollList<u32>) -> usize {
        body.rx += 1;
        self.asked = self.lost.load(Ordering::Acquire);
        weight
    }

    fn deliver(&mut self, _: &NapiInfo, _: &mut Batch) {}

    fn released(&mut self, released: Released<u32>, _: &mut PollList<u32>) {
        assert!(!released.unmask && released.timer.is_some(), "packets wait");
        self.armed = true;
    }

    fn now(&mut self) -> u64 {
        0
    }
}

/// A worker polls a queue that never runs dry, twice, while an application tries to have it, twice. The worker gives
/// way at the end of the poll that sees the wish; then that is forgotten, and the application can have it.
fn preference() {
    let napi = idle();
    let lost = Arc::new(AtomicBool::new(false));
    let mut rx = NetRx::new(Budget { weight: WEIGHT as u32, ..Budget::default() });
    rx.schedule(napi.schedule_prep().expect("idle"));
    let application = thread::spawn({
        let (napi, lost) = (napi.clone(), lost.clone());
        move || {
            assert!(napi.busy_poll(true).is_none(), "the worker leaves only if asked to");
            lost.store(true, Ordering::Release);
            let Some(mut poller) = napi.busy_poll(true) else { return false };
            poller.parts().1.rx += 1;
            let Completion::Released(released) = poller.stop(true, |_, _| ()) else {
                panic!("deferral is configured")
            };
            released.timer.is_some()
        }
    });
    let mut flood = Flood { armed: false, lost, asked: false };
    for _ in 0..2 {
        if rx.is_idle() {
            break;
        }
        rx.run(0, &mut flood);
        if flood.asked {
            assert!(flood.armed, "asked, and did not give way");
        }
    }
    let polled = application.join().unwrap();
    let state = napi.state();
    assert_eq!(state.is_scheduled(), !rx.is_idle());
    assert!(state.is_scheduled() || flood.armed, "masked, no timer, and nobody owns it");
    assert!(state.is_scheduled() || !state.prefers_busy_poll(), "way given, and still asked for");
    assert!(!polled || flood.armed, "two owners");
    if flood.armed {
        let mut poller = napi.busy_poll(true).expect("way was given");
        assert!(poller.parts().1.rx > 0);
        drop(poller);
    }
    rx.drain().for_each(drop);
}

#[test]
fn a_worker_gives_way_to_a_poller() {
    check(3, preference);
    for m in [Mutant::PreferNotSet, Mutant::PreferNotConsumed, Mutant::ReleaseRelaxed] {
        must_fail(m, 3, preference);
    }
}
