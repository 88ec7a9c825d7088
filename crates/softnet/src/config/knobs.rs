//! Knobs of polling: interrupt mitigation and GRO, as a configuration sets them and as `softnet
//! set` changes them.

use serde::{Deserialize, Serialize};
use softnet_core::gro::GroMode;

/// Knobs of an instance, those that are given; the others stay as they are, which is 0, or off, at
/// first.
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
    /// What GRO does.
    #[serde(skip_serializing_if = "Option::is_none", with = "as_text")]
    pub gro: Option<GroMode>,
}

/// A [`GroMode`] as it is written.
mod as_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use softnet_core::gro::GroMode;

    pub(super) fn serialize<S: Serializer>(mode: &Option<GroMode>, serializer: S) -> Result<S::Ok, S::Error> {
        match mode {
            Some(mode) => serializer.serialize_str(mode.name()),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<GroMode>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse()).transpose().map_err(D::Error::custom)
    }
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
            gro: self.gro.or(old.gro),
        }
    }
}
