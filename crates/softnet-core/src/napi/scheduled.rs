//! Ownership of an instance: scheduled (to be polled) or disabled.
//!
//! Each is held by one party at a time, wherever it runs, and gives it `&mut` to the body.

use std::num::NonZeroU64;
use std::ops::Deref;

use super::hooks::Deferral;
use super::instance::{Body, Napi, NapiInfo};
use super::state::{self, State};
use crate::skb::Batch;
use crate::sync::Guard;

/// An instance that its holder must poll and complete.
///
/// Dropping it gives ownership up without the completion protocol: the doorbell stays masked, and a wish for
/// another poll is forgotten. That is right only for a stack that is being taken down.
#[must_use = "a scheduled instance must be polled"]
pub struct Scheduled<Q>(pub(super) Guard<NapiInfo, Body<Q>>);

/// What a completion came to.
pub enum Completion<Q> {
    /// Ownership was released.
    Released(Released<Q>),
    /// The holder still owns the instance and must poll it once more: somebody scheduled it meanwhile.
    Again(Scheduled<Q>),
}

/// What to do about the doorbell of an instance that was released. By the time it is done somebody else may
/// own the instance; at the worst the doorbell then rings once for nothing.
pub struct Released<Q> {
    /// The instance.
    pub napi: Napi<Q>,
    /// Arm its timer, this many ns from now; when it fires, call [`Napi::watchdog`].
    pub timer: Option<NonZeroU64>,
    /// Unmask the doorbell, then look at the ring again: a packet that came before the unmasking does not ring.
    pub unmask: bool,
}

impl<Q> Scheduled<Q> {
    /// What everybody may read, and the body.
    #[inline(always)]
    pub fn parts(&mut self) -> (&NapiInfo, &mut Body<Q>) {
        self.0.parts()
    }

    /// The body.
    #[inline(always)]
    pub fn body(&mut self) -> &mut Body<Q> {
        self.0.parts().1
    }

    /// A handle of the instance.
    pub fn napi(&self) -> Napi<Q> {
        Napi(self.0.cell().clone())
    }

    /// Whether somebody waits to disable it: the poll must end soon.
    #[inline(always)]
    pub fn disable_pending(&self) -> bool {
        State(self.0.cell().word()).is_disable_pending()
    }

    /// Hands the packets that GRO gives up to `deliver`, which must take all it is given.
    pub fn flush_gro(&mut self, old_only: bool, mut deliver: impl FnMut(&NapiInfo, &mut Batch)) {
        let (info, body) = self.0.parts();
        let Some(gro) = &mut body.gro else { return };
        // A batch that `deliver` did not empty ends this: what is left in it goes on with the next poll.
        while gro.held() > 0 && body.batch.is_empty() {
            gro.flush(&mut body.batch, old_only);
            if body.batch.is_empty() {
                return;
            }
            deliver(info, &mut body.batch);
        }
    }

    /// Ends a poll that received `work` packets: asks the mitigation hook, lets GRO flush (into `deliver`, which must
    /// take all it is given), and releases ownership, all in the order of the kernel's `napi_complete_done`. Must be
    /// called for polls without work too.
    pub fn complete(mut self, work: usize, deliver: impl FnMut(&NapiInfo, &mut Batch)) -> Completion<Q> {
        if self.0.cell().word() & state::NPSVC != 0 {
            return Completion::Again(self);
        }
        let body = self.0.parts().1;
        let gro_holds = body.gro.as_ref().is_some_and(|gro| gro.held() > 0);
        let deferral = body.mitigation.as_mut().map_or(Deferral::default(), |m| m.complete(work, gro_holds));
        self.flush_gro(deferral.timer.is_some(), deliver);
        self.stats.completions.add(1);
        match self.0.release(state::complete) {
            Ok(cell) => Completion::Released(Released {
                napi: Napi(cell),
                timer: deferral.timer,
                unmask: !deferral.masked || deferral.timer.is_none(),
            }),
            Err(guard) => {
                guard.cell().shared().stats.missed.add(1);
                Completion::Again(Scheduled(guard))
            }
        }
    }
}

impl<Q> Deref for Scheduled<Q> {
    type Target = NapiInfo;

    #[inline(always)]
    fn deref(&self) -> &NapiInfo {
        self.0.cell().shared()
    }
}

/// An instance that is disabled. Its holder may change the body (replace the queue, install hooks), and alone can
/// enable it. Dropping it leaves the instance disabled for ever, as is right for one that is deleted.
pub struct Disabled<Q>(pub(super) Guard<NapiInfo, Body<Q>>);

impl<Q> Disabled<Q> {
    /// The body.
    pub fn body(&mut self) -> &mut Body<Q> {
        self.0.parts().1
    }

    /// A handle of the instance.
    pub fn napi(&self) -> Napi<Q> {
        Napi(self.0.cell().clone())
    }

    /// Enables the instance, scheduled: its doorbell is masked, and this first poll finds whatever has come and leads
    /// to the completion that unmasks it.
    pub fn enable(self) -> Scheduled<Q> {
        self.stats.schedules.add(1);
        match self.0.release(state::enable) {
            Err(guard) => Scheduled(guard),
            Ok(_) => unreachable!("enabling keeps SCHED"),
        }
    }
}

impl<Q> Deref for Disabled<Q> {
    type Target = NapiInfo;

    fn deref(&self) -> &NapiInfo {
        self.0.cell().shared()
    }
}
