//! Time as the host tells it: the engine reads no clock.
//!
//! [`Instant`] counts microseconds of a monotonic clock since any start; the zero is a legal
//! instant. [`Span`] is a difference of at most 71 minutes in four bytes, which is what round-trip
//! times and retransmission time-outs need; longer limits (keepalive, user time-out) are added in
//! milliseconds.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// Microseconds of the host's monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

/// Microseconds between two instants, saturating at 2³² − 1 (71 minutes).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub u32);

impl Instant {
    /// The instant that never comes: a deadline that is not armed.
    pub const NEVER: Instant = Instant(u64::MAX);

    /// The time since `earlier`; zero if that lies in the future.
    #[inline]
    pub const fn since(self, earlier: Instant) -> Span {
        let far = self.0.saturating_sub(earlier.0);
        Span(if far > u32::MAX as u64 { u32::MAX } else { far as u32 })
    }

    /// The milliseconds since `earlier`; zero if that lies in the future.
    #[inline]
    pub const fn millis_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0) / 1000
    }

    /// `millis` milliseconds later.
    #[inline]
    pub const fn plus_millis(self, millis: u64) -> Instant {
        Instant(self.0.saturating_add(millis.saturating_mul(1000)))
    }

    /// Whether a deadline at this instant is armed.
    #[inline]
    pub const fn is_armed(self) -> bool {
        self.0 != u64::MAX
    }
}

impl Span {
    /// No time.
    pub const ZERO: Span = Span(0);
    /// The longest span.
    pub const MAX: Span = Span(u32::MAX);

    /// A span of `n` milliseconds.
    #[inline]
    pub const fn from_millis(n: u32) -> Span {
        Span(n.saturating_mul(1000))
    }

    /// Whole milliseconds.
    #[inline]
    pub const fn as_millis(self) -> u32 {
        self.0 / 1000
    }

    /// `n` times as long, saturating.
    #[inline]
    pub const fn times(self, n: u32) -> Span {
        Span(self.0.saturating_mul(n))
    }

    /// Twice as long, `n` times over, saturating.
    #[inline]
    pub const fn doubled(self, n: u32) -> Span {
        let wide = (self.0 as u64) << if n > 32 { 32 } else { n };
        Span(if wide > u32::MAX as u64 { u32::MAX } else { wide as u32 })
    }
}

impl Add<Span> for Instant {
    type Output = Instant;
    #[inline]
    fn add(self, span: Span) -> Instant {
        Instant(self.0.saturating_add(span.0 as u64))
    }
}

impl AddAssign<Span> for Instant {
    #[inline]
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

/// Saturates at the clock's start.
impl Sub<Span> for Instant {
    type Output = Instant;
    #[inline]
    fn sub(self, span: Span) -> Instant {
        Instant(self.0.saturating_sub(span.0 as u64))
    }
}

/// Saturates.
impl Add for Span {
    type Output = Span;
    #[inline]
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

/// Saturates at zero.
impl Sub for Span {
    type Output = Span;
    #[inline]
    fn sub(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_armed() {
            write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
        } else {
            f.write_str("never")
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_saturate() {
        let (a, b) = (Instant(5), Instant(2_000_005));
        assert_eq!((b.since(a), a.since(b)), (Span(2_000_000), Span::ZERO));
        assert_eq!(Instant(u64::MAX).since(a), Span::MAX);
        assert_eq!(a + Span::MAX + Span::MAX, Instant(5 + 2 * u64::from(u32::MAX)));
        assert_eq!((a - Span(6), b.millis_since(a)), (Instant(0), 2000));
        assert_eq!(a.plus_millis(7_200_000), Instant(7_200_000_005));
        assert!(!Instant::NEVER.is_armed() && (Instant::NEVER + Span(9)) == Instant::NEVER);
        assert_eq!(Span::from_millis(200).doubled(3), Span(1_600_000));
        assert_eq!((Span(1).doubled(40), Span(3).times(u32::MAX)), (Span::MAX, Span::MAX));
    }
}
