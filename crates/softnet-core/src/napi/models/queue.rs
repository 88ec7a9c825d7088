//! A queue as the models have it: the production instance, and around it what a device and a runtime are. A ring, of
//! which only the number of packets that ever arrived is kept; a doorbell; a timer; and the thread that schedules the
//! instance polls it on the spot.

use std::num::NonZeroU64;
use std::sync::Arc;

use loom::thread;

use crate::napi::{BusyPolling, Completion, Disabled, Napi, Released, Scheduled};
use crate::sync::{AtomicBool, AtomicU32, Mutant, Ordering, fence, mutated};

/// Stands in the body of a disabled instance: a poll would overwrite it.
const UNTOUCHED: u32 = u32::MAX;

/// An instance that is enabled and idle. Its body is the number of packets that polls have seen; loom reports a second
/// owner.
pub(in crate::napi) fn idle() -> Napi<u32> {
    let (napi, disabled) = Napi::new("model", 0, 0, 0);
    let Completion::Released(_) = disabled.enable().complete(0, |_, _| ()) else { panic!("no other thread") };
    napi
}

/// The same with all knobs set: the doorbell stays masked for the length of one timer.
pub(in crate::napi) fn deferring() -> Napi<u32> {
    let napi = idle();
    napi.mitigation.set_defer_hard_irqs(1).unwrap();
    napi.mitigation.set_gro_flush_timeout(1);
    napi.mitigation.set_irq_suspend_timeout(1);
    napi
}

/// See the [module](self).
pub(in crate::napi) struct Queue {
    pub(in crate::napi) napi: Napi<u32>,
    ring: AtomicU32,
    unmasked: AtomicBool,
    armed: AtomicBool,
}

impl Queue {
    /// An empty ring, the doorbell unmasked, the timer not armed.
    pub(in crate::napi) fn new(napi: Napi<u32>) -> Arc<Queue> {
        let (ring, unmasked, armed) = (AtomicU32::new(0), AtomicBool::new(true), AtomicBool::new(false));
        Arc::new(Queue { napi, ring, unmasked, armed })
    }

    pub(in crate::napi) fn spawn(self: &Arc<Self>, f: fn(&Queue)) -> thread::JoinHandle<()> {
        let queue = self.clone();
        thread::spawn(move || f(&queue))
    }

    /// A packet arrives; it rings if the doorbell is unmasked, which masks and schedules.
    pub(in crate::napi) fn arrive(&self) {
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

    /// The timer fires, if it is armed.
    pub(in crate::napi) fn fire(&self) {
        if self.armed.swap(false, Ordering::Relaxed) {
            self.serve(self.napi.watchdog());
        }
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

    /// An application polls once, and if it found packets suspends; returns whether it did.
    pub(in crate::napi) fn poll_and_suspend(&self) -> bool {
        let polled = self.napi.busy_poll(true).map_or(0, |poller| self.poll_and_stop(poller));
        let suspended = self.napi.suspend(polled as usize).is_some();
        if suspended {
            self.arm();
        }
        suspended
    }

    fn poll_and_stop(&self, mut poller: BusyPolling<u32>) -> u32 {
        let seen = self.ring.load(Ordering::Relaxed);
        let work = seen - std::mem::replace(&mut poller.parts().1.rx, seen);
        let arm = |_| {
            if !mutated(Mutant::StopNotArmed) {
                self.arm();
            }
        };
        match poller.stop(true, |_, _| (), arm) {
            Completion::Released(_) => {}
            Completion::Again(scheduled) => self.serve_applied(scheduled),
        }
        work
    }

    /// Polls as an application does: sees to the timer and the doorbell before it releases. What is left is for the
    /// instance's context.
    fn serve_applied(&self, mut scheduled: Scheduled<u32>) {
        let seen = self.ring.load(Ordering::Relaxed);
        let work = seen - std::mem::replace(&mut scheduled.body().rx, seen);
        let apply = |timer: Option<NonZeroU64>, unmask: bool| {
            if timer.is_some() {
                self.arm();
            }
            if !unmask {
                return true;
            }
            self.unmasked.swap(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if mutated(Mutant::NoSecondLook) || self.ring.load(Ordering::Relaxed) == seen {
                return true;
            }
            self.unmasked.swap(false, Ordering::Relaxed);
            false
        };
        if let Completion::Again(again) = scheduled.complete_applied(work as usize, |_, _| (), apply) {
            self.serve(Some(again));
        }
    }

    /// An application polls once, and its thread never comes back: it does not suspend, nor resume.
    pub(in crate::napi) fn poll_and_hang(&self) {
        if let Some(poller) = self.napi.busy_poll(true) {
            self.poll_and_stop(poller);
        }
    }

    /// An application finds nothing, and sleeps.
    pub(in crate::napi) fn sleep(&self) {
        self.napi.resume().into_iter().for_each(|scheduled| self.serve_applied(scheduled));
    }

    /// An application waits for packets once, and goes away.
    pub(in crate::napi) fn application(&self) {
        self.poll_and_suspend();
        self.sleep();
    }

    /// What a switch does to an instance that it has disabled: no thread touches it until it is
    /// [enabled](Self::enable).
    pub(in crate::napi) fn hold(&self, disabled: &mut Disabled<u32>) -> u32 {
        assert!(self.napi.state().is_disabled());
        self.armed.swap(false, Ordering::Relaxed);
        self.unmasked.swap(false, Ordering::Relaxed);
        std::mem::replace(&mut disabled.body().rx, UNTOUCHED)
    }

    /// Enables an instance that was [held](Self::hold), with what was in its body, and polls it.
    pub(in crate::napi) fn enable(&self, mut disabled: Disabled<u32>, seen: u32) {
        assert_eq!(std::mem::replace(&mut disabled.body().rx, seen), UNTOUCHED, "polled while disabled");
        let scheduled = disabled.enable();
        if !mutated(Mutant::EnabledUnpolled) {
            self.serve(Some(scheduled));
        }
    }

    /// All threads are done: the queue is unmasked or its timer armed. Once that has run down, every packet was seen.
    pub(in crate::napi) fn at_rest(&self) {
        let state = self.napi.state();
        assert!(!state.is_scheduled() && !state.is_missed() && !state.is_busy_polling(), "{state}");
        let (unmasked, armed) = (self.unmasked.load(Ordering::Relaxed), self.armed.load(Ordering::Relaxed));
        assert!(unmasked || armed, "masked, no timer, and no thread owns it");
        for _ in 0..4 {
            self.fire();
        }
        assert!(self.unmasked.load(Ordering::Relaxed), "deferral comes to an end");
        let mut scheduled = self.napi.schedule_prep().expect("idle");
        assert_eq!(scheduled.body().rx, self.ring.load(Ordering::Relaxed), "a packet waits");
    }
}
