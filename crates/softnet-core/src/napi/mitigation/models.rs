//! Loom models of mitigation, each with the faults that it must notice.

use std::sync::Arc;

use loom::thread;

use crate::napi::models::queue::{Queue, deferring};
use crate::napi::{Body, Budget, Completion, Driver, NapiInfo, NetRx, PollList, Released, WEIGHT};
use crate::skb::Batch;
use crate::sync::{AtomicBool, Mutant, Ordering, check, must_fail};

/// A packet arrives and rings, the timer fires, an application polls, suspends and leaves; in any order.
fn no_wake_up_is_lost() {
    let queue = Queue::new(deferring());
    let threads = [queue.spawn(Queue::arrive), queue.spawn(Queue::application)];
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

/// The same with an application that hangs after it has polled, before it suspends or resumes.
fn hangs_when_stopped() {
    let queue = Queue::new(deferring());
    let threads = [queue.spawn(Queue::arrive), queue.spawn(Queue::poll_and_hang)];
    queue.fire();
    threads.into_iter().for_each(|t| t.join().unwrap());
    queue.at_rest();
}

/// The timer, armed by a poll, fires while an application stops.
fn fires_at_the_stop() {
    let queue = Queue::new(deferring());
    queue.arrive();
    let threads = [queue.spawn(Queue::fire), queue.spawn(Queue::poll_and_hang)];
    queue.fire();
    threads.into_iter().for_each(|t| t.join().unwrap());
    queue.at_rest();
}

/// The same while it finds nothing, completes a poll, and goes to sleep.
fn fires_before_sleep() {
    let queue = Queue::new(deferring());
    // So that the timer is armed once more, and the doorbell is not unmasked at once.
    queue.napi.mitigation.set_defer_hard_irqs(2).unwrap();
    queue.arrive();
    let threads = [queue.spawn(Queue::fire), queue.spawn(Queue::sleep)];
    queue.fire();
    threads.into_iter().for_each(|t| t.join().unwrap());
    queue.at_rest();
}

#[test]
fn an_application_applies_its_deferral_before_it_releases() {
    for model in [hangs_when_stopped, fires_at_the_stop, fires_before_sleep] {
        check(2, model);
    }
    must_fail(Mutant::StopNotArmed, 2, hangs_when_stopped);
    must_fail(Mutant::FiredNotSeen, 2, fires_at_the_stop);
    must_fail(Mutant::FiredNotSeen, 2, fires_before_sleep);
}

/// A packet arrives at a deferred queue, whose timer fires meanwhile and finds the deferral exhausted.
fn deferral() {
    let queue = Queue::new(deferring());
    queue.arrive();
    let other = queue.spawn(Queue::arrive);
    queue.fire();
    let timer = queue.spawn(Queue::fire);
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
    let napi = deferring();
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
            let mut armed = false;
            let Completion::Released(_) = poller.stop(true, |_, _| (), |_| armed = true) else {
                panic!("deferral is configured")
            };
            armed
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
    assert!(state.is_scheduled() || flood.armed, "masked, no timer, and no thread owns it");
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
