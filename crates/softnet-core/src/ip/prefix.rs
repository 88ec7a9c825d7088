//! Prefixes: `10.0.0.0/8`, `2001:db8::/32`, as configuration, routes and displays name them.
//!
//! Any code may call it. A `Prefix` alone is of IPv4; [`IpPrefix`] is of either family. Invariant: the length is at
//! most the address's width and no bit behind it is set.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::family::{Address, Family};

/// An address and how many of its leading bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix<A = Ipv4Addr> {
    addr: A,
    len: u8,
}

/// A prefix of IPv6.
pub type Prefix6 = Prefix<Ipv6Addr>;

/// A prefix of either family.
pub type IpPrefix = Prefix<IpAddr>;

/// Why something is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// Not of the form at all.
    #[error("'{0}' is not a prefix: expected ADDRESS/LENGTH, such as 10.0.0.0/8 or 2001:db8::/32")]
    Syntax(String),
    /// More bits than an address has.
    #[error("prefix length {len}: expected 0 to {max}")]
    Length {
        /// The length given.
        len: u8,
        /// Bits of the address.
        max: u8,
    },
    /// Bits set behind the length.
    #[error("{addr}/{} has host bits set: expected {right}", right.len())]
    HostBits {
        /// The address given.
        addr: IpAddr,
        /// The prefix that this address is in.
        right: IpPrefix,
    },
}

/// The mask of a prefix of `len` bits of an address that has `width`.
#[inline]
const fn mask(width: u8, len: u8) -> u128 {
    let all = u128::MAX >> (128 - width as u32);
    match all.checked_shr(len as u32) {
        Some(host) => all & !host,
        None => all,
    }
}

impl<A: Family> Prefix<A> {
    /// Everything: 0.0.0.0/0, ::/0.
    pub const DEFAULT: Self = Prefix { addr: A::UNSPECIFIED, len: 0 };
}

impl<A: Address> Prefix<A> {
    /// The prefix `addr/len`; refuses host bits.
    pub fn new(addr: A, len: u8) -> Result<Self, PrefixError> {
        let right = Self::containing(addr, len)?;
        match right.addr == addr {
            true => Ok(right),
            false => Err(PrefixError::HostBits { addr: addr.into(), right: right.any() }),
        }
    }

    /// The prefix of length `len` that `addr` is in: the subnet of an interface address.
    pub fn containing(addr: A, len: u8) -> Result<Self, PrefixError> {
        let width = addr.width();
        if len > width {
            return Err(PrefixError::Length { len, max: width });
        }
        Ok(Prefix { addr: addr.with_bits(addr.bits() & mask(width, len)), len })
    }

    /// The prefix of `addr` alone: a /32, or /128.
    pub fn host(addr: A) -> Self {
        Prefix { addr, len: addr.width() }
    }

    /// Its first address.
    #[inline]
    pub fn addr(self) -> A {
        self.addr
    }

    /// How many bits count.
    #[expect(clippy::len_without_is_empty, reason = "a length in bits, not a count of elements")]
    #[inline]
    pub fn len(self) -> u8 {
        self.len
    }

    /// Whether `addr` is in it.
    #[inline]
    pub fn contains(self, addr: A) -> bool {
        let width = self.addr.width();
        addr.width() == width && addr.bits() & mask(width, self.len) == self.addr.bits()
    }

    /// Its last address: the directed broadcast of an IPv4 subnet of up to 30 bits.
    #[inline]
    pub fn last(self) -> A {
        self.addr.with_bits(self.addr.bits() | !mask(self.addr.width(), self.len))
    }

    /// As one of either family.
    pub fn any(self) -> IpPrefix {
        Prefix { addr: self.addr.into(), len: self.len }
    }
}

impl IpPrefix {
    /// As one of family `A`, if it is.
    pub fn of<A: Family>(self) -> Option<Prefix<A>> {
        A::of(self.addr).map(|addr| Prefix { addr, len: self.len })
    }
}

impl<A: Address> FromStr for Prefix<A> {
    type Err = PrefixError;

    fn from_str(s: &str) -> Result<Self, PrefixError> {
        let syntax = || PrefixError::Syntax(s.to_owned());
        let (addr, len) = s.split_once('/').ok_or_else(syntax)?;
        // `u8::from_str` alone would take a plus sign.
        if len.is_empty() || !len.bytes().all(|b| b.is_ascii_digit()) {
            return Err(syntax());
        }
        Prefix::new(addr.parse().map_err(|_| syntax())?, len.parse().map_err(|_| syntax())?)
    }
}

impl<A: Address> fmt::Display for Prefix<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Through a string, so that a width in the format holds for the whole.
        f.pad(&format!("{}/{}", self.addr, self.len))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parses_and_refuses() {
        let p: Prefix = "10.0.0.0/8".parse().unwrap();
        assert_eq!((p.addr(), p.len()), (Ipv4Addr::new(10, 0, 0, 0), 8));
        assert!(p.contains(Ipv4Addr::new(10, 255, 0, 1)) && !p.contains(Ipv4Addr::new(11, 0, 0, 0)));
        assert_eq!(p.last(), Ipv4Addr::new(10, 255, 255, 255));
        assert_eq!("0.0.0.0/0".parse(), Ok(Prefix::<Ipv4Addr>::DEFAULT));
        assert!(Prefix::DEFAULT.contains(Ipv4Addr::BROADCAST));
        for bad in
            ["", "10.0.0.0", "10.0.0.0/", "10.0.0.0/+8", "10.0.0/8", "a/8", "10.0.0.0/8/8", "10.0.0.0/999"]
        {
            assert_eq!(bad.parse::<Prefix>(), Err(PrefixError::Syntax(bad.to_owned())));
            assert_eq!(bad.parse::<IpPrefix>(), Err(PrefixError::Syntax(bad.to_owned())));
        }
        assert_eq!("10.0.0.0/33".parse::<Prefix>(), Err(PrefixError::Length { len: 33, max: 32 }));
        let error = "10.0.0.1/8".parse::<Prefix>().unwrap_err();
        assert_eq!(error.to_string(), "10.0.0.1/8 has host bits set: expected 10.0.0.0/8");
        assert_eq!(format!("{p:>12}|"), "  10.0.0.0/8|");
    }

    #[test]
    fn ipv6_too() {
        let p: Prefix6 = "2001:db8::/32".parse().unwrap();
        let addr = |s: &str| s.parse::<Ipv6Addr>().unwrap();
        assert!(p.contains(addr("2001:db8:ffff::1")) && !p.contains(addr("2001:db9::")));
        assert_eq!(p.last(), addr("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"));
        assert_eq!("::/0".parse(), Ok(Prefix6::DEFAULT));
        assert_eq!("::1/129".parse::<Prefix6>(), Err(PrefixError::Length { len: 129, max: 128 }));
        assert_eq!(Prefix6::host(addr("::1")).to_string(), "::1/128");
        let error = "2001:db8::1/32".parse::<IpPrefix>().unwrap_err();
        assert_eq!(error.to_string(), "2001:db8::1/32 has host bits set: expected 2001:db8::/32");
    }

    #[test]
    fn of_either_family() {
        let p: IpPrefix = "10.0.0.0/8".parse().unwrap();
        assert_eq!((p.of::<Ipv4Addr>().map(Prefix::any), p.of::<Ipv6Addr>()), (Some(p), None));
        // The same bits in the other family are not in it.
        assert!(!"::/0".parse::<IpPrefix>().unwrap().contains(Ipv4Addr::LOCALHOST.into()));
        assert!(!"0.0.0.0/0".parse::<IpPrefix>().unwrap().contains(Ipv6Addr::LOCALHOST.into()));
    }

    proptest! {
        #[test]
        fn displays_what_it_parses(v6: bool, bits: u128, len: u8) {
            let addr = match v6 {
                true => IpAddr::V6(Ipv6Addr::from_bits(bits)),
                false => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
            };
            let p = Prefix::containing(addr, len % (addr.width() + 1)).unwrap();
            prop_assert_eq!(p.to_string().parse(), Ok(p));
            prop_assert!(p.contains(p.addr()) && p.contains(p.last()) && p.contains(addr));
            let all = u128::MAX >> (128 - u32::from(addr.width()));
            let below = p.addr().bits().checked_sub(1);
            let above = p.last().bits().checked_add(1).filter(|bits| *bits <= all);
            prop_assert!(below.into_iter().chain(above).all(|bits| !p.contains(addr.with_bits(bits))));
        }

        #[test]
        fn any_string_is_answered(s in "\\PC*") {
            let _ = s.parse::<Prefix>();
            let _ = s.parse::<IpPrefix>();
        }
    }
}
