//! What a NAPI instance spends its time in: for `softnet show napi` and `softnet top`.
//!
//! Written by the thread that owns the instance, and by an application that suspends it. Two that write at once (an application
//! suspends what a worker has just taken) may book some time to the wrong phase; nothing depends on it.

use softnet_core::sync::{AtomicU64, Ordering::Relaxed};

/// What an instance is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// It is not polled, the doorbell can ring.
    Irq,
    /// The doorbell is masked, the timer polls next.
    Deferred,
    /// The doorbell is masked as long as the application comes back.
    Suspended,
    /// Its context polls it, or is about to.
    Polled,
    /// An application polls it.
    Application,
}

impl Phase {
    /// All, in the order of their numbers.
    pub const ALL: [Phase; 5] =
        [Phase::Irq, Phase::Deferred, Phase::Suspended, Phase::Polled, Phase::Application];

    /// Its name in tables and JSON.
    pub const fn name(self) -> &'static str {
        ["irq", "deferred", "suspended", "polled", "application"][self as usize]
    }
}

/// Time spent in each phase; times are ns of the stack's clock.
#[derive(Default)]
pub struct Residency {
    phase: AtomicU64,
    since: AtomicU64,
    ns: [AtomicU64; Phase::ALL.len()],
}

impl Residency {
    /// In [`Phase::Irq`] from `now` on.
    pub fn new(now: u64) -> Self {
        Residency { since: AtomicU64::new(now), ..Residency::default() }
    }

    /// The phase now, and since when.
    pub fn phase(&self) -> (Phase, u64) {
        (Phase::ALL[self.phase.load(Relaxed) as usize % Phase::ALL.len()], self.since.load(Relaxed))
    }

    /// Whether it is in `phase`: one load.
    #[inline(always)]
    pub fn is(&self, phase: Phase) -> bool {
        self.phase.load(Relaxed) == phase as u64
    }

    /// From `now` on the instance is in `phase`.
    #[inline]
    pub fn enter(&self, phase: Phase, now: u64) {
        let (old, since) = self.phase();
        let spent = &self.ns[old as usize];
        spent.store(spent.load(Relaxed).wrapping_add(now.saturating_sub(since)), Relaxed);
        self.phase.store(phase as u64, Relaxed);
        self.since.store(now, Relaxed);
    }

    /// ns in each phase until `now`.
    pub fn totals(&self, now: u64) -> [u64; Phase::ALL.len()] {
        let (phase, since) = self.phase();
        let mut ns = std::array::from_fn(|at| self.ns[at].load(Relaxed));
        ns[phase as usize] += now.saturating_sub(since);
        ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_adds_up() {
        let residency = Residency::new(100);
        residency.enter(Phase::Polled, 150);
        assert!(residency.is(Phase::Polled) && !residency.is(Phase::Irq));
        residency.enter(Phase::Deferred, 170);
        residency.enter(Phase::Polled, 200);
        assert_eq!(residency.phase(), (Phase::Polled, 200));
        assert_eq!(residency.totals(205), [50, 30, 0, 25, 0]);
        assert_eq!(Phase::Suspended.name(), "suspended");
    }
}
