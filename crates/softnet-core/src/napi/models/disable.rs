//! An instance is disabled and enabled again, whichever thread polls it and in whichever state it is, while packets
//! arrive.
//!
//! Once a disable was asked for no thread becomes the owner any more; it succeeds at the latest when the thread that
//! owns the instance has ended; no thread touches a disabled instance, not even a timer that fires late; and the poll
//! that follows the enabling sees whatever came meanwhile.

use std::sync::Arc;

use super::queue::{Queue, deferring, idle};
use crate::napi::{Body, Budget, Driver, Napi, NapiInfo, NetRx, PollList, Released};
use crate::skb::Batch;
use crate::sync::{AtomicBool, Mutant, Ordering, check, must_fail};

/// From the state that `start` leads to, while `poller` does what it does and a packet arrives.
fn disable(napi: fn() -> Napi<u32>, start: fn(&Queue), poller: fn(&Queue)) {
    let queue = Queue::new(napi());
    start(&queue);
    let threads = [queue.spawn(Queue::arrive), queue.spawn(poller)];
    queue.napi.disable();
    assert!(queue.napi.schedule_prep().is_none(), "scheduled after a disable was asked for");
    assert!(queue.napi.busy_poll(false).is_none(), "busy polled after a disable was asked for");
    let early = queue.napi.try_disable().map(|mut disabled| {
        let seen = queue.hold(&mut disabled);
        queue.enable(disabled, seen);
    });
    threads.into_iter().for_each(|t| t.join().unwrap());
    if early.is_none() {
        let mut disabled = queue.napi.try_disable().expect("its owner has ended");
        assert!(queue.napi.schedule_prep().is_none() && queue.napi.busy_poll(true).is_none());
        assert!(queue.napi.watchdog().is_none());
        let seen = queue.hold(&mut disabled);
        queue.enable(disabled, seen);
    }
    queue.at_rest();
}

/// In IRQ mode, from the doorbell's poll.
fn irq_mode() {
    disable(idle, |_| (), Queue::arrive);
}

/// The timer is armed, and may fire before, while or after the instance is disabled.
fn deferred() {
    disable(deferring, Queue::arrive, Queue::fire);
}

/// An application polls and suspends.
fn busy_polled() {
    disable(deferring, |_| (), Queue::application);
}

/// An application has suspended and comes back.
fn suspended() {
    let suspend = |queue: &Queue| {
        queue.arrive();
        queue.arrive();
        assert!(queue.poll_and_suspend(), "a packet was found at the masked doorbell");
    };
    disable(deferring, suspend, Queue::application);
}

#[test]
fn disable_succeeds_in_irq_mode() {
    check(2, irq_mode);
    for m in [
        Mutant::AcquireNotAtomic,
        Mutant::ReleaseNotFolded,
        Mutant::ReleaseRelaxed,
        Mutant::NoSecondLook,
        Mutant::DisableNotRefused,
        Mutant::RefusalOnlyLooks,
        Mutant::EnabledUnpolled,
    ] {
        must_fail(m, 2, irq_mode);
    }
}

#[test]
fn disable_succeeds_while_a_timer_is_armed() {
    check(2, deferred);
    for m in [Mutant::AcquireNotAtomic, Mutant::ReleaseNotFolded, Mutant::EnabledUnpolled] {
        must_fail(m, 2, deferred);
    }
}

#[test]
fn disable_succeeds_under_a_busy_poll() {
    check(2, busy_polled);
    for m in [Mutant::AcquireNotAtomic, Mutant::ReleaseNotFolded, Mutant::DisableNotRefused] {
        must_fail(m, 2, busy_polled);
    }
}

#[test]
fn disable_succeeds_while_suspended() {
    check(2, suspended);
    for m in [Mutant::AcquireNotAtomic, Mutant::DisableNotRefused, Mutant::EnabledUnpolled] {
        must_fail(m, 2, suspended);
    }
}

/// A driver whose queue never runs dry.
struct Flood {
    asked: Arc<AtomicBool>,
    /// Whether the last poll began after a disable had been asked for.
    late: bool,
    released: bool,
}

impl Driver<u32> for Flood {
    fn poll(&mut self, _: &NapiInfo, body: &mut Body<u32>, weight: usize, _: &mut PollList<u32>) -> usize {
        assert_ne!(body.rx, u32::MAX, "polled while disabled");
        body.rx += 1;
        assert!(!self.late, "polled again, after a poll that should have been the last");
        self.late = self.asked.load(Ordering::Acquire);
        weight
    }

    fn deliver(&mut self, _: &NapiInfo, _: &mut Batch) {}

    fn released(&mut self, _: Released<u32>, _: &mut PollList<u32>) {
        self.released = true;
    }

    fn now(&mut self) -> u64 {
        0
    }
}

/// A thread that polls without end, for its queue is always full, is disabled: it ends with the poll that it is at.
fn endless() {
    let napi = idle();
    let asked = Arc::new(AtomicBool::new(false));
    let mut rx = NetRx::new(Budget::default());
    rx.schedule(napi.schedule_prep().expect("idle"));
    let poller = loom::thread::spawn({
        let asked = asked.clone();
        move || {
            let mut flood = Flood { asked, late: false, released: false };
            for _ in 0..3 {
                if rx.is_idle() {
                    break;
                }
                rx.run(0, &mut flood);
            }
            assert_eq!(flood.released, rx.is_idle());
            assert!(flood.released || !flood.late, "asked, and did not end");
            // It would go on; that it does not is for the model's sake.
            rx.drain().for_each(drop);
        }
    });
    napi.disable();
    asked.store(true, Ordering::Release);
    let early = napi.try_disable().map(|mut disabled| {
        disabled.body().rx = u32::MAX;
        disabled
    });
    poller.join().unwrap();
    let mut disabled = early.or_else(|| napi.try_disable()).expect("the poller has ended");
    assert!(disabled.body().rx > 0 && napi.schedule_prep().is_none());
}

#[test]
fn disable_ends_a_poll_without_end() {
    check(3, endless);
    for m in [Mutant::DisableNotSeen, Mutant::ReleaseRelaxed] {
        must_fail(m, 3, endless);
    }
}
