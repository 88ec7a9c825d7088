//! IPv4 prefixes: `10.0.0.0/8`, as configuration, routes and displays name them.
//!
//! Anybody may call it. Invariant: the length is at most 32 and no bit behind it is set.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// An address and how many of its leading bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    addr: Ipv4Addr,
    len: u8,
}

/// Why something is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// Not of the form at all.
    #[error("'{0}' is not a prefix: expected ADDRESS/LENGTH, such as 10.0.0.0/8")]
    Syntax(String),
    /// More bits than an address has.
    #[error("prefix length {0}: expected 0 to 32")]
    Length(u8),
    /// Bits set behind the length.
    #[error("{addr}/{} has host bits set: expected {right}", right.len())]
    HostBits {
        /// The address given.
        addr: Ipv4Addr,
        /// The prefix that this address is in.
        right: Prefix,
    },
}

/// The mask of a prefix length; longer than 32 counts as 32.
#[inline]
pub const fn mask(len: u8) -> u32 {
    match u32::MAX.checked_shr(len as u32) {
        Some(host) => !host,
        None => u32::MAX,
    }
}

impl Prefix {
    /// Everything: 0.0.0.0/0.
    pub const DEFAULT: Prefix = Prefix { addr: Ipv4Addr::UNSPECIFIED, len: 0 };

    /// The prefix `addr/len`; refuses host bits.
    pub fn new(addr: Ipv4Addr, len: u8) -> Result<Self, PrefixError> {
        let right = Self::containing(addr, len)?;
        if right.addr == addr { Ok(right) } else { Err(PrefixError::HostBits { addr, right }) }
    }

    /// The prefix of length `len` that `addr` is in: the subnet of an interface address.
    pub fn containing(addr: Ipv4Addr, len: u8) -> Result<Self, PrefixError> {
        if len > 32 {
            return Err(PrefixError::Length(len));
        }
        Ok(Prefix { addr: Ipv4Addr::from_bits(addr.to_bits() & mask(len)), len })
    }

    /// The /32 of `addr`.
    pub const fn host(addr: Ipv4Addr) -> Self {
        Prefix { addr, len: 32 }
    }

    /// Its first address.
    #[inline]
    pub const fn addr(self) -> Ipv4Addr {
        self.addr
    }

    /// How many bits count, 0 to 32.
    #[expect(clippy::len_without_is_empty, reason = "a length in bits, not a count of elements")]
    #[inline]
    pub const fn len(self) -> u8 {
        self.len
    }

    /// The mask, in host order.
    #[inline]
    pub const fn mask(self) -> u32 {
        mask(self.len)
    }

    /// Whether `addr` is in it.
    #[inline]
    pub const fn contains(self, addr: Ipv4Addr) -> bool {
        addr.to_bits() & self.mask() == self.addr.to_bits()
    }

    /// Its last address: the directed broadcast of a subnet of up to 30 bits.
    #[inline]
    pub const fn last(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.addr.to_bits() | !self.mask())
    }
}

impl FromStr for Prefix {
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

impl fmt::Display for Prefix {
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
        assert_eq!((p.addr(), p.len(), p.mask()), (Ipv4Addr::new(10, 0, 0, 0), 8, 0xff00_0000));
        assert!(p.contains(Ipv4Addr::new(10, 255, 0, 1)) && !p.contains(Ipv4Addr::new(11, 0, 0, 0)));
        assert_eq!(p.last(), Ipv4Addr::new(10, 255, 255, 255));
        assert_eq!("0.0.0.0/0".parse(), Ok(Prefix::DEFAULT));
        assert!(Prefix::DEFAULT.contains(Ipv4Addr::BROADCAST));
        for bad in
            ["", "10.0.0.0", "10.0.0.0/", "10.0.0.0/+8", "10.0.0/8", "a/8", "10.0.0.0/8/8", "10.0.0.0/999"]
        {
            assert_eq!(bad.parse::<Prefix>(), Err(PrefixError::Syntax(bad.to_owned())));
        }
        assert_eq!("10.0.0.0/33".parse::<Prefix>(), Err(PrefixError::Length(33)));
        let error = "10.0.0.1/8".parse::<Prefix>().unwrap_err();
        assert_eq!(error.to_string(), "10.0.0.1/8 has host bits set: expected 10.0.0.0/8");
        assert_eq!(format!("{p:>12}|"), "  10.0.0.0/8|");
    }

    proptest! {
        #[test]
        fn displays_what_it_parses(addr: u32, len in 0u8..=32) {
            let p = Prefix::containing(Ipv4Addr::from_bits(addr), len).unwrap();
            prop_assert_eq!(p.to_string().parse(), Ok(p));
            prop_assert!(p.contains(p.addr()) && p.contains(p.last()) && p.contains(Ipv4Addr::from_bits(addr)));
            let below = p.addr().to_bits().checked_sub(1).map(Ipv4Addr::from_bits);
            let above = p.last().to_bits().checked_add(1).map(Ipv4Addr::from_bits);
            prop_assert!(below.into_iter().chain(above).all(|a| !p.contains(a)));
        }

        #[test]
        fn any_string_is_answered(s in "\\PC*") {
            let _ = s.parse::<Prefix>();
        }
    }
}
