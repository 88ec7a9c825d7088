//! Interrupt mitigation: what becomes of a doorbell when a poll ends, and which thread polls next.
//!
//! An instance is in one of three states. None is stored; each follows from whether its doorbell is masked and from what
//! its timer was armed with:
//!
//! | state | doorbell | timer | what polls next |
//! |---|---|---|---|
//! | IRQ mode | unmasked | – | the instance's context, by the doorbell |
//! | deferred | masked | T, `gro_flush_timeout` | the timer, or an application |
//! | suspended | masked | S, `irq_suspend_timeout` | the application; the timer only if it fails to come back |
//!
//! * [`Scheduled::complete`](super::Scheduled::complete) leads from IRQ mode to deferred, and after N
//!   (`napi_defer_hard_irqs`) completions without work back.
//! * [`BusyPolling::stop`] leads to deferred as well, [`Napi::suspend`](super::Napi::suspend) from there to suspended,
//!   and [`Napi::resume`](super::Napi::resume) or the timer back.
//!
//! There is one timer per instance, kept by the runtime. Arming it replaces what it was armed with; a release
//! that asks for no timer leaves it as it is, and it then polls once for nothing. The instance's own context arms it *after*
//! it released ownership: a timer that finds the instance owned is spent, because the owner arms it again or unmasks. An
//! application's thread may lose its CPU between the two, and then the queue would wait for it: it arms, or unmasks,
//! *before* it releases, and stays the owner if the timer fired in between (FIRED).
//!
//! Invariant: at every moment an enabled instance's doorbell is unmasked, or its timer is armed, or a thread owns it,
//! or a disable waits to take it over.
//!
//! The semantics are those of `napi_complete_done`, `busy_poll_stop`, `napi_suspend_irqs` and `napi_resume_irqs` in
//! the kernel's `net/core/dev.c`.

use std::num::NonZeroU64;

use crate::sync::{Mutant, mutated};

mod busy_poll;
mod config;
#[cfg(all(test, feature = "loom"))]
mod models;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub use busy_poll::BusyPolling;
pub use config::{MAX_DEFER_HARD_IRQS, MitigationConfig, OutOfRange};

/// The deferral counter of an instance, for its owner.
#[derive(Debug, Default)]
pub struct Mitigation {
    left: u32,
    /// See [`hold`](Self::hold).
    held: Option<NonZeroU64>,
}

/// What is to become of the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deferral {
    /// The timer to arm, in ns from now. While it runs GRO may hold packets.
    pub(super) timer: Option<NonZeroU64>,
    /// Whether the doorbell stays masked until the timer fires. Only with a timer.
    pub(super) masked: bool,
}

impl Mitigation {
    /// How many more completions leave the doorbell masked, if none of them has work.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// The poll collects nothing, although packets may wait, since those that are to process them have no room: when it
    /// is completed the doorbell stays masked, and the timer polls again in so many ns. `None`: it collects.
    #[inline(always)]
    pub fn hold(&mut self, ns: Option<NonZeroU64>) {
        self.held = ns;
    }

    /// A completion, for no work as well: `work` packets were received, and GRO holds some or not.
    pub(super) fn complete(&mut self, config: &MitigationConfig, work: usize, gro_holds: bool) -> Deferral {
        if let Some(held) = self.held.take() {
            let timer = Some(held).filter(|_| !mutated(Mutant::HoldUntimed));
            return Deferral { timer, masked: true };
        }
        // Read once, so that a change meanwhile cannot leave the doorbell masked without a timer.
        let timeout = NonZeroU64::new(config.gro_flush_timeout());
        if work > 0 {
            self.left = config.defer_hard_irqs();
        }
        let masked = self.left > 0 && timeout.is_some();
        self.left = self.left.saturating_sub(1);
        Deferral { timer: timeout.filter(|_| masked || work > 0 && gro_holds), masked }
    }

    /// A busy poller that prefers to poll again stops: the counter starts afresh. `Some`: the doorbell stays masked, and
    /// this timer is to be armed.
    fn stop(&mut self, config: &MitigationConfig) -> Option<NonZeroU64> {
        self.left = config.defer_hard_irqs();
        NonZeroU64::new(config.gro_flush_timeout()).filter(|_| self.left > 0)
    }
}
