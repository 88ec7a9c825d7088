//! The knobs of mitigation. Any thread may read and set them at any time; each use reads each knob once, and so takes
//! effect with the next completion, stop, suspension or resumption. A timer that is armed already runs on.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The largest `napi_defer_hard_irqs`: the kernel's `S32_MAX`.
pub const MAX_DEFER_HARD_IRQS: u32 = i32::MAX as u32;

/// A value that a knob does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{knob}: {value} is out of range, 0 to {max} expected")]
pub struct OutOfRange {
    /// The knob's name.
    pub knob: &'static str,
    /// What it was to be set to.
    pub value: u64,
    /// The largest value it takes.
    pub max: u64,
}

/// The knobs of one instance, all 0 at first: no mitigation.
//
// They order nothing, hence are plain relaxed atomics.
#[derive(Debug, Default)]
pub struct MitigationConfig {
    defer_hard_irqs: AtomicU32,
    gro_flush_timeout: AtomicU64,
    irq_suspend_timeout: AtomicU64,
}

impl MitigationConfig {
    /// N, `napi_defer_hard_irqs`: completions without work that leave the doorbell masked.
    pub fn defer_hard_irqs(&self) -> u32 {
        self.defer_hard_irqs.load(Relaxed)
    }

    /// T, `gro_flush_timeout`: ns until a masked instance is polled, and for which GRO may hold packets.
    pub fn gro_flush_timeout(&self) -> u64 {
        self.gro_flush_timeout.load(Relaxed)
    }

    /// S, `irq_suspend_timeout`: ns for which an application that receives may leave the instance alone.
    pub fn irq_suspend_timeout(&self) -> u64 {
        self.irq_suspend_timeout.load(Relaxed)
    }

    /// Whether completions leave the doorbell masked: it takes N and T.
    pub fn defers(&self) -> bool {
        self.defer_hard_irqs() > 0 && self.gro_flush_timeout() > 0
    }

    /// Sets N, at most [`MAX_DEFER_HARD_IRQS`].
    pub fn set_defer_hard_irqs(&self, value: u64) -> Result<(), OutOfRange> {
        let max = MAX_DEFER_HARD_IRQS;
        let n = u32::try_from(value).ok().filter(|n| *n <= max);
        let refused = OutOfRange { knob: "napi_defer_hard_irqs", value, max: max.into() };
        self.defer_hard_irqs.store(n.ok_or(refused)?, Relaxed);
        Ok(())
    }

    /// Sets T, in ns. Every value is valid.
    pub fn set_gro_flush_timeout(&self, ns: u64) {
        self.gro_flush_timeout.store(ns, Relaxed);
    }

    /// Sets S, in ns. Every value is valid.
    pub fn set_irq_suspend_timeout(&self, ns: u64) {
        self.irq_suspend_timeout.store(ns, Relaxed);
    }

    /// What keeps a knob that is set from having its effect, to be shown as a warning.
    pub fn warning(&self) -> Option<&'static str> {
        match (self.defer_hard_irqs() > 0, self.gro_flush_timeout() > 0, self.irq_suspend_timeout() > 0) {
            (false, false, true) => {
                Some("irq_suspend_timeout has no effect without napi_defer_hard_irqs and gro_flush_timeout")
            }
            (false, true, true) => Some("irq_suspend_timeout has no effect without napi_defer_hard_irqs"),
            (true, false, true) => {
                Some("irq_suspend_timeout and napi_defer_hard_irqs have no effect without gro_flush_timeout")
            }
            (true, false, false) => Some("napi_defer_hard_irqs has no effect without gro_flush_timeout"),
            (true, true, _) | (false, _, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_the_kernel_takes() {
        let config = MitigationConfig::default();
        assert_eq!(
            (config.defer_hard_irqs(), config.gro_flush_timeout(), config.irq_suspend_timeout()),
            (0, 0, 0)
        );
        config.set_defer_hard_irqs((1 << 31) - 1).unwrap();
        for value in [1 << 31, 1 << 32, u64::MAX] {
            let why = config.set_defer_hard_irqs(value).unwrap_err().to_string();
            let expected = format!("napi_defer_hard_irqs: {value} is out of range, 0 to 2147483647 expected");
            assert_eq!(why, expected);
        }
        assert_eq!(config.defer_hard_irqs(), 2147483647, "a refused value changes nothing");
        config.set_gro_flush_timeout(u64::MAX);
        config.set_irq_suspend_timeout(20_000_000);
        assert_eq!((config.gro_flush_timeout(), config.irq_suspend_timeout()), (u64::MAX, 20_000_000));
    }

    #[test]
    fn warns_of_knobs_that_cannot_act_and_names_what_is_missing() {
        let warning = |n, t, s| {
            let config = MitigationConfig::default();
            config.set_defer_hard_irqs(n).unwrap();
            config.set_gro_flush_timeout(t);
            config.set_irq_suspend_timeout(s);
            config.warning().map(|why| why.split_once(" without ").expect("says what is missing"))
        };
        for fine in [(0, 0, 0), (0, 1, 0), (1, 1, 0), (1, 1, 1)] {
            assert_eq!(warning(fine.0, fine.1, fine.2), None);
        }
        assert_eq!(warning(0, 0, 1).unwrap().1, "napi_defer_hard_irqs and gro_flush_timeout");
        assert_eq!(warning(0, 1, 1).unwrap().1, "napi_defer_hard_irqs");
        assert_eq!(warning(1, 0, 1).unwrap().1, "gro_flush_timeout");
        assert_eq!(warning(1, 0, 0).unwrap(), ("napi_defer_hard_irqs has no effect", "gro_flush_timeout"));
    }
}
