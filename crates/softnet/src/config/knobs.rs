//! Knobs of interrupt mitigation, as a configuration sets them and as `softnet set` changes them.

use serde::{Deserialize, Serialize};

/// Knobs of mitigation, those that are given; the others stay as they are, which is 0 at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Knobs {
    /// Completions without work that leave the doorbell masked, at most 2147483647.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub napi_defer_hard_irqs: Option<u64>,
    /// ns until a masked queue is polled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gro_flush_timeout: Option<u64>,
    /// ns for which an application that receives may leave a masked queue alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub irq_suspend_timeout: Option<u64>,
}

impl Knobs {
    /// The same, changed by `change`: as a struct expression, which other crates can't write, for fields are added now and then.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// These, and where one is not given that of `old`.
    pub(crate) fn over(self, old: Knobs) -> Knobs {
        Knobs {
            napi_defer_hard_irqs: self.napi_defer_hard_irqs.or(old.napi_defer_hard_irqs),
            gro_flush_timeout: self.gro_flush_timeout.or(old.gro_flush_timeout),
            irq_suspend_timeout: self.irq_suspend_timeout.or(old.irq_suspend_timeout),
        }
    }
}
