//! Sequence numbers: arithmetic modulo 2³² (RFC 9293 3.4).
//!
//! "All arithmetic dealing with sequence numbers must be performed modulo 2³²." A comparison is
//! the sign of the difference, and means something only while two numbers are less than 2³¹ apart;
//! windows of at most 2³⁰ (RFC 7323 2.3) keep that true. So there is no `Ord`: it would not be a
//! total order.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// A sequence or acknowledgement number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// Whether `self` comes before `other`.
    #[inline]
    pub const fn before(self, other: Seq) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Whether `self` comes after `other`.
    #[inline]
    pub const fn after(self, other: Seq) -> bool {
        other.before(self)
    }

    /// Whether `self` comes before `other` or is the same.
    #[inline]
    pub const fn at_or_before(self, other: Seq) -> bool {
        !other.before(self)
    }

    /// Whether `self` comes after `other` or is the same.
    #[inline]
    pub const fn at_or_after(self, other: Seq) -> bool {
        !self.before(other)
    }

    /// Whether `low ≤ self ≤ high`, in one comparison.
    #[inline]
    pub const fn between(self, low: Seq, high: Seq) -> bool {
        high.0.wrapping_sub(low.0) >= self.0.wrapping_sub(low.0)
    }

    /// The later of two numbers.
    #[inline]
    pub const fn max(self, other: Seq) -> Seq {
        if self.before(other) { other } else { self }
    }

    /// The earlier of two numbers.
    #[inline]
    pub const fn min(self, other: Seq) -> Seq {
        if other.before(self) { other } else { self }
    }

    /// How far `self` lies past `other`; 0 if it does not.
    #[inline]
    pub const fn past(self, other: Seq) -> u32 {
        let far = self.0.wrapping_sub(other.0);
        if (far as i32) > 0 { far } else { 0 }
    }
}

impl Add<u32> for Seq {
    type Output = Seq;
    #[inline]
    fn add(self, n: u32) -> Seq {
        Seq(self.0.wrapping_add(n))
    }
}

impl AddAssign<u32> for Seq {
    #[inline]
    fn add_assign(&mut self, n: u32) {
        *self = *self + n;
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;
    #[inline]
    fn sub(self, n: u32) -> Seq {
        Seq(self.0.wrapping_sub(n))
    }
}

impl SubAssign<u32> for Seq {
    #[inline]
    fn sub_assign(&mut self, n: u32) {
        *self = *self - n;
    }
}

/// How far two numbers are apart, modulo 2³²: for numbers whose order is known.
impl Sub for Seq {
    type Output = u32;
    #[inline]
    fn sub(self, other: Seq) -> u32 {
        self.0.wrapping_sub(other.0)
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_across_the_wrap() {
        for base in [0, 1, 0x7fff_fff0, 0x8000_0000, u32::MAX - 5, u32::MAX] {
            let (a, b) = (Seq(base), Seq(base) + 10);
            assert!(a.before(b) && !b.before(a) && b.after(a));
            assert!(a.at_or_before(a) && a.at_or_after(a) && !a.before(a));
            assert_eq!((a.max(b), a.min(b)), (b, a));
            assert_eq!((b.past(a), a.past(b), b - a), (10, 0, 10));
            assert!((a + 3).between(a, b) && a.between(a, b) && b.between(a, b));
            assert!(!(b + 1).between(a, b) && !(a - 1).between(a, b));
        }
    }
}
