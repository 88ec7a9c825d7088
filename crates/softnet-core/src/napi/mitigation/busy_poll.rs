//! The application as poller: how it takes an instance and stops, and how it suspends and resumes its doorbell.
//!
//! Any thread may try to poll; one at a time does. One call of an application that waits for packets goes: hand
//! over what is ready and [`suspend`](Napi::suspend); if nothing is, [`busy_poll`](Napi::busy_poll), poll until
//! something is ready or the time is up, [`stop`](BusyPolling::stop), and look again; before it sleeps, and when it goes
//! away for good, [`resume`](Napi::resume).
//!
//! Invariant: a poller that stops leaves the doorbell unmasked, the timer armed, or a poll to do, and it does so before it
//! releases the instance.

use std::num::NonZeroU64;
use std::ops::Deref;

use crate::napi::instance::{Body, Napi, NapiInfo};
use crate::napi::scheduled::{Completion, Released, Scheduled};
use crate::napi::state;
use crate::skb::Batch;
use crate::sync::Owned;

/// An instance that an application polls. It cannot be completed, only [stopped](Self::stop). Dropping it is as for
/// [`Scheduled`]: the timer may have fired meanwhile and be spent, so the thread that cleans up after an application
/// that failed while it polled must [schedule](Napi::schedule_prep) the instance.
#[must_use = "a busy poll must be stopped"]
pub struct BusyPolling<Q>(Scheduled<Q>);

impl<Q> Napi<Q> {
    /// Takes the instance for busy polling. `None`: another thread owns it, or it is being disabled. With `prefer` an
    /// owner that receives without end is then asked to give way (PREFER_BUSY_POLL).
    pub fn busy_poll(&self, prefer: bool) -> Option<BusyPolling<Q>> {
        let guard = Owned::acquire(&self.0, |word| state::busy_poll(word, prefer))?;
        Some(BusyPolling(Scheduled(guard)))
    }

    /// The application was handed `delivered` packets or events, and is expected back: restart the timer
    /// with what this returns, in ns from now. Errors are not deliveries; after none, nothing is suspended, and neither
    /// is with `irq_suspend_timeout` 0, without deferral (there is nothing to prolong then), or while the instance is
    /// disabled.
    ///
    /// This does not mask the doorbell: the stop before it did not unmask it.
    pub fn suspend(&self, delivered: usize) -> Option<NonZeroU64> {
        let knobs = &self.mitigation;
        if delivered == 0 || !knobs.defers() || self.state().is_disabled() {
            return None;
        }
        NonZeroU64::new(knobs.irq_suspend_timeout())
    }

    /// The application found nothing and goes to sleep, or goes away: the instance is to be polled now, as after
    /// [`schedule_prep`](Self::schedule_prep). With `irq_suspend_timeout` 0 nothing happens: a timer armed before it was
    /// set to 0 still fires.
    pub fn resume(&self) -> Option<Scheduled<Q>> {
        if self.mitigation.irq_suspend_timeout() == 0 {
            return None;
        }
        self.schedule_prep()
    }
}

impl<Q> BusyPolling<Q> {
    /// What any thread may read, and the body.
    #[inline(always)]
    pub fn parts(&mut self) -> (&NapiInfo, &mut Body<Q>) {
        self.0.parts()
    }

    /// Whether a thread waits to disable the instance: stop soon.
    #[inline(always)]
    pub fn disable_pending(&self) -> bool {
        self.0.disable_pending()
    }

    /// As [`Scheduled::flush_gro`].
    pub fn flush_gro(&mut self, old_only: bool, deliver: impl FnMut(&NapiInfo, &mut Batch)) {
        self.0.flush_gro(old_only, deliver);
    }

    /// Ends the busy poll (`busy_poll_stop`).
    ///
    /// With `prefer`, and if deferral is configured, `arm` is called, which arms the timer with (at least) the ns it is given;
    /// then the instance is released, its doorbell as it is (masked). The caller looks at what is ready once more, since GRO
    /// gives up all it holds into `deliver`. Otherwise, or if the timer fired between the two, ownership stays: poll once more
    /// and [complete](Scheduled::complete_applied), which unmasks the doorbell; if that poll uses its whole budget, hand the
    /// instance to a worker instead.
    ///
    /// The timer is armed before the release, unlike a worker's: between the two an application may lose its CPU.
    pub fn stop(
        self,
        prefer: bool,
        deliver: impl FnMut(&NapiInfo, &mut Batch),
        arm: impl FnOnce(NonZeroU64),
    ) -> Completion<Q> {
        let mut scheduled = self.0;
        let (info, body) = scheduled.parts();
        let timer = if prefer { body.mitigation.stop(&info.mitigation) } else { None };
        let next = match timer {
            Some(timer) => {
                // Before the release, for afterwards GRO is another owner's. All of it, for a suspension may follow, and
                // what were still held would wait for the long time-out.
                scheduled.flush_gro(false, deliver);
                scheduled = scheduled.rearm();
                arm(timer);
                state::stop_deferred
            }
            None => state::stop_to_poll,
        };
        match scheduled.0.release(next) {
            Ok(cell) => Completion::Released(Released { napi: Napi(cell), timer: None, unmask: false }),
            Err(guard) => Completion::Again(Scheduled(guard)),
        }
    }
}

impl<Q> Deref for BusyPolling<Q> {
    type Target = NapiInfo;

    #[inline(always)]
    fn deref(&self) -> &NapiInfo {
        &self.0
    }
}
