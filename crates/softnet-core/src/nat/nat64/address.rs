//! IPv4 addresses in IPv6 addresses (RFC 6052).
//!
//! Plain values that any code may make. Invariant: [`Pool6::extract`] undoes [`Pool6::embed`].

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::ip::Prefix6;
use crate::ip::v4::header::{is_link_local, is_unicast};

/// Lengths that a prefix may have (RFC 6052 section 2.2).
pub const POOL6_LENGTHS: [u8; 6] = [32, 40, 48, 56, 64, 96];
/// 64:ff9b::/96, of all translators (RFC 6052 section 2.1).
const WELL_KNOWN: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);
/// Bits 64 to 71 are zeros (RFC 6052 section 2.2).
const RESERVED: usize = 8;

/// The prefix under which hosts of IPv6 see those of IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nat) struct Pool6(Prefix6);

impl Pool6 {
    /// `None` if `prefix` can't be one.
    pub(in crate::nat) fn new(prefix: Prefix6) -> Option<Self> {
        let zeros = prefix.addr().octets()[RESERVED] == 0;
        (POOL6_LENGTHS.contains(&prefix.len()) && zeros).then_some(Pool6(prefix))
    }

    pub(in crate::nat) fn prefix(self) -> Prefix6 {
        self.0
    }

    pub(in crate::nat) fn contains(self, addr: Ipv6Addr) -> bool {
        self.0.contains(addr)
    }

    /// Where the four bytes of an IPv4 address are.
    fn places(self) -> impl Iterator<Item = usize> {
        let first = usize::from(self.0.len() / 8);
        (first..).filter(|at| *at != RESERVED).take(4)
    }

    /// The IPv6 address of `addr`.
    pub(in crate::nat) fn embed(self, addr: u32) -> Ipv6Addr {
        let mut bytes = self.0.addr().octets();
        for (at, byte) in self.places().zip(addr.to_be_bytes()) {
            bytes[at] = byte;
        }
        bytes.into()
    }

    /// The IPv4 address in `addr`; `None` if that is not of the prefix. What comes after it is not
    /// looked at ("the suffix ... must be ignored").
    pub(in crate::nat) fn extract(self, addr: Ipv6Addr) -> Option<u32> {
        let bytes = addr.octets();
        let mut of_v4 = [0; 4];
        self.places().zip(&mut of_v4).for_each(|(at, byte)| *byte = bytes[at]);
        self.contains(addr).then_some(u32::from_be_bytes(of_v4))
    }

    /// Whether packets to or from the host `addr` of IPv4 are translated: it is one host's, and "the
    /// Well-Known Prefix MUST NOT be used to represent non-global IPv4 addresses" (RFC 6052 section
    /// 3.1).
    pub(in crate::nat) fn may_stand_for(self, addr: u32) -> bool {
        is_unicast(addr) && !is_link_local(addr) && (self.0.addr() != WELL_KNOWN || is_global(addr))
    }
}

/// Whether `addr` means the same everywhere, as far as RFC 5735 says.
fn is_global(addr: u32) -> bool {
    let addr = Ipv4Addr::from_bits(addr);
    let [a, b, c, _] = addr.octets();
    let special = matches!((a, b, c), (192, 0, 0) | (192, 88, 99) | (198, 18 | 19, _) | (100, 64..=127, _));
    !(addr.is_private() || addr.is_documentation() || special)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pool(text: &str) -> Pool6 {
        Pool6::new(text.parse().unwrap()).unwrap()
    }

    /// The table of RFC 6052 section 2.4.
    #[test]
    fn the_examples_of_the_rfc() {
        let addr = Ipv4Addr::new(192, 0, 2, 33).to_bits();
        for (prefix, expected) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
            ("64:ff9b::/96", "64:ff9b::192.0.2.33"),
        ] {
            let expected: Ipv6Addr = expected.parse().unwrap();
            assert_eq!(pool(prefix).embed(addr), expected, "{prefix}");
            assert_eq!(pool(prefix).extract(expected), Some(addr), "{prefix}");
        }
    }

    #[test]
    fn prefixes_that_are_none() {
        for text in ["2001:db8::/33", "2001:db8::/128", "::/0", "2001:db8:0:0:100::/96"] {
            assert_eq!(Pool6::new(text.parse().unwrap()), None, "{text}");
        }
    }

    #[test]
    fn hosts_that_a_prefix_may_stand_for() {
        let may = |prefix: &str, addr: &str| {
            pool(prefix).may_stand_for(addr.parse::<Ipv4Addr>().unwrap().to_bits())
        };
        for addr in ["10.0.0.1", "192.168.7.7", "198.51.100.1", "100.64.0.1"] {
            assert!(may("2001:db8:64::/96", addr) && !may("64:ff9b::/96", addr), "{addr}");
        }
        assert!(may("64:ff9b::/96", "8.8.8.8"));
        for addr in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "169.254.1.1"] {
            assert!(!may("2001:db8:64::/96", addr), "{addr}");
        }
    }

    proptest! {
        #[test]
        fn what_is_embedded_is_extracted(bits: u128, addr: u32, len in prop::sample::select(POOL6_LENGTHS.to_vec())) {
            let bits = bits & !(0xff << 56);
            let pool = Pool6::new(Prefix6::containing(Ipv6Addr::from_bits(bits), len).unwrap()).unwrap();
            let whole = pool.embed(addr);
            prop_assert_eq!((pool.extract(whole), whole.octets()[RESERVED]), (Some(addr), 0));
        }
    }
}
