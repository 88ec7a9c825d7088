//! What a number of the configuration may be.

use std::fmt;

/// A range, or the powers of two in it.
pub(crate) struct Limit {
    min: u64,
    pub(crate) max: u64,
    power_of_two: bool,
}

/// From `min` to `max`.
pub(crate) const fn range(min: u64, max: u64) -> Limit {
    Limit { min, max, power_of_two: false }
}

/// A power of two from `min` to `max`.
pub(crate) const fn power(min: u64, max: u64) -> Limit {
    Limit { min, max, power_of_two: true }
}

impl Limit {
    /// What is wrong with `value`, if anything is.
    pub(crate) fn wrong(&self, value: u64) -> Option<String> {
        let fits = (self.min..=self.max).contains(&value) && (!self.power_of_two || value.is_power_of_two());
        (!fits).then(|| format!("expected {self}, found {value}"))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.power_of_two { "a power of two" } else { "a number" };
        write!(f, "{what} from {} to {}", self.min, self.max)
    }
}
