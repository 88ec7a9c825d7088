//! NPTv6: one prefix outside stands for one inside, host by host and without state (RFC 6296).
//!
//! Addresses are translated so that their sum in ones' complement stays (RFC 6296 section 3.1): no
//! checksum changes, of whatever protocol, nor of a packet that an ICMPv6 error quotes. So fragments
//! and packets without ports are translated like all others.
//!
//! Called by the hooks of [`nat`](super). Invariant: [`inward`](Pair::inward) undoes
//! [`outward`](Pair::outward), for each address that is translated at all.

use std::net::Ipv6Addr;

use crate::ip::v6::header::{Ipv6Header, LEN, next, upper};
use crate::ip::{ETH_LEN, Prefix6};
use crate::skb::{DropReason, Skb};

/// What comes to, and leaves by, a device has addresses of another prefix there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixNat {
    /// The device.
    pub dev: u16,
    /// The prefix inside.
    pub internal: Prefix6,
    /// The one outside, of the same length.
    pub external: Prefix6,
}

/// The longest prefix that leaves room for what keeps the sum: a word of 16 bits.
pub const MAX_PREFIX: u8 = 112;

/// One rule, as it is applied.
pub(super) struct Pair {
    pub(super) dev: u16,
    internal: Prefix6,
    external: Prefix6,
    /// What is added to a word on the way out: the sum of the internal prefix less that of the
    /// external one.
    adjustment: u16,
}

fn sum(words: [u16; 8]) -> u16 {
    words.into_iter().fold(0, add)
}

/// In ones' complement.
fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

impl Pair {
    pub(super) fn new(rule: &PrefixNat) -> Self {
        let of = |prefix: Prefix6| sum(prefix.addr().segments());
        Pair {
            dev: rule.dev,
            internal: rule.internal,
            external: rule.external,
            adjustment: add(of(rule.internal), !of(rule.external)),
        }
    }

    pub(super) fn is_internal(&self, addr: Ipv6Addr) -> bool {
        self.internal.contains(addr)
    }

    pub(super) fn is_external(&self, addr: Ipv6Addr) -> bool {
        self.external.contains(addr)
    }

    /// The address outside of host `addr` inside; `None` if it has none.
    pub(super) fn outward(&self, addr: Ipv6Addr) -> Option<Ipv6Addr> {
        map(addr, self.external, self.adjustment)
    }

    /// The reverse.
    pub(super) fn inward(&self, addr: Ipv6Addr) -> Option<Ipv6Addr> {
        map(addr, self.internal, !self.adjustment)
    }
}

/// `addr` with another prefix, and the word that keeps the sum.
fn map(addr: Ipv6Addr, prefix: Prefix6, adjustment: u16) -> Option<Ipv6Addr> {
    let host_bits = u128::MAX.checked_shr(prefix.len().into()).unwrap_or(0);
    let mut words = Ipv6Addr::from_bits(prefix.addr().to_bits() | addr.to_bits() & host_bits).segments();
    // "the subnet-router anycast address": an interface identifier of zeros is not translated.
    if words[4..] == [0; 4] {
        return None;
    }
    let at = match prefix.len() {
        // "/48 or shorter prefixes": the subnet, "the adjustment ... to bits 48 through 63" (RFC 6296
        // section 3.4).
        ..=48 => Some(3).filter(|at| words[*at] != 0xffff),
        // "/49 and longer": "the first of these words that is not 0xFFFF" (section 3.5).
        len => (usize::from(len).div_ceil(16).max(4)..8).find(|at| words[*at] != 0xffff),
    }?;
    // "If the result is 0xFFFF, it is overwritten as zero" (section 3.4): both are the same sum.
    words[at] = match add(words[at], adjustment) {
        0xffff => 0,
        word => word,
    };
    // What has none of them outside could not come back.
    (words[4..] != [0; 4]).then_some(words.into())
}

/// Which address of a header.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum At {
    Source = 8,
    Destination = 24,
}

fn read(packet: &[u8], at: At) -> Option<Ipv6Addr> {
    let bytes = packet.get(at as usize..)?.first_chunk::<16>()?;
    Some(Ipv6Addr::from(*bytes))
}

fn write(packet: &mut [u8], at: At, addr: Ipv6Addr) {
    if let Some(to) = packet.get_mut(at as usize..).and_then(|rest| rest.first_chunk_mut()) {
        *to = addr.octets();
    }
}

/// Where the packet begins that an ICMPv6 error quotes.
fn quoted(packet: &[u8]) -> Option<usize> {
    let upper = upper(packet).ok().filter(|upper| upper.protocol == next::ICMPV6)?;
    let kind = packet.get(upper.at)?;
    // Errors have the types below 128 (RFC 4443 section 2.1).
    (*kind < 128 && packet.len() >= upper.at + 8 + LEN).then_some(upper.at + 8)
}

/// Translates the address at `at` of a packet, if `belongs`; and, if the packet is an error, that of
/// the other end of the one that it quotes.
fn translate(
    skb: &mut Skb,
    at: At,
    belongs: impl Fn(Ipv6Addr) -> bool,
    to: impl Fn(Ipv6Addr) -> Option<Ipv6Addr>,
) -> Result<bool, DropReason> {
    let Some(packet) = skb.data_mut().get_mut(ETH_LEN..) else { return Ok(false) };
    let mut changed = false;
    if let Some(addr) = read(packet, at).filter(|addr| belongs(*addr)) {
        write(packet, at, to(addr).ok_or(DropReason::NatPrefix)?);
        changed = true;
    }
    if let Some(inner) = quoted(packet).and_then(|inner| packet.get_mut(inner..)) {
        let other = if at == At::Source { At::Destination } else { At::Source };
        if let Some(to) = read(inner, other).filter(|addr| belongs(*addr)).and_then(to) {
            write(inner, other, to);
            changed = true;
        }
    }
    if changed {
        skb.head_mut().hash = 0;
    }
    Ok(changed)
}

fn is_v6(skb: &Skb) -> bool {
    skb.data().get(ETH_LEN..).and_then(Ipv6Header::new).is_some_and(|header| header.version() == 6)
}

/// A packet that came by device `input`: translates its destination, if that is an address outside
/// of a host inside. From inside its source, too, so that the answer comes back here (RFC 6296
/// section 2.4, the hairpin). Returns whether it changed.
pub(super) fn came(pairs: &[Pair], input: Option<u16>, skb: &mut Skb) -> Result<bool, DropReason> {
    if !is_v6(skb) {
        return Ok(false);
    }
    let Some(dst) = skb.data().get(ETH_LEN..).and_then(|packet| read(packet, At::Destination)) else {
        return Ok(false);
    };
    let Some(pair) = pairs.iter().find(|pair| pair.is_external(dst)) else { return Ok(false) };
    let changed = translate(skb, At::Destination, |addr| pair.is_external(addr), |addr| pair.inward(addr))?;
    if input != Some(pair.dev) {
        translate(skb, At::Source, |addr| pair.is_internal(addr), |addr| pair.outward(addr))?;
    }
    Ok(changed)
}

/// A packet that leaves by device `output`: translates its source, if that is inside.
pub(super) fn leaves(pairs: &[Pair], output: Option<u16>, skb: &mut Skb) -> Result<(), DropReason> {
    if !is_v6(skb) {
        return Ok(());
    }
    for pair in pairs.iter().filter(|pair| Some(pair.dev) == output) {
        if translate(skb, At::Source, |addr| pair.is_internal(addr), |addr| pair.outward(addr))? {
            break;
        }
    }
    Ok(())
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair(internal: &str, external: &str) -> Pair {
        let prefix = |text: &str| text.parse().unwrap();
        Pair::new(&PrefixNat { dev: 1, internal: prefix(internal), external: prefix(external) })
    }

    fn addr(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    /// The example of RFC 6296 section 2.1 and appendix B.
    #[test]
    fn the_examples_of_the_rfc() {
        let pair = pair("fd01:203:405::/48", "2001:db8:1::/48");
        let inside = addr("fd01:203:405:1::1234");
        let outside = addr("2001:db8:1:d550::1234");
        assert_eq!(pair.outward(inside), Some(outside));
        assert_eq!(pair.inward(outside), Some(inside));
        // A subnet of all ones has no address outside, nor has an interface of all zeros.
        assert_eq!(pair.outward(addr("fd01:203:405:ffff::1")), None);
        assert_eq!(pair.outward(addr("fd01:203:405:1::")), None);
    }

    /// Longer prefixes: the first word of the interface identifier that is not all ones.
    #[test]
    fn long_prefixes_change_the_identifier() {
        let pair = pair("fd01:203:405:6::/64", "2001:db8:1:2::/64");
        let inside = addr("fd01:203:405:6:ffff:ffff:0:1");
        let outside = pair.outward(inside).unwrap();
        assert_eq!(outside.segments()[..6], [0x2001, 0xdb8, 1, 2, 0xffff, 0xffff]);
        assert_eq!(pair.inward(outside), Some(inside));
        assert_eq!(pair.outward(addr("fd01:203:405:6:ffff:ffff:ffff:ffff")), None);
    }

    proptest! {
        /// There and back, with the same sum, in the prefix of either side.
        #[test]
        fn addresses_go_there_and_back(internal: u128, external: u128, host: u128, len in 8u8..=MAX_PREFIX) {
            let prefix = |bits: u128| Prefix6::containing(Ipv6Addr::from_bits(bits), len).unwrap();
            let rule = PrefixNat { dev: 1, internal: prefix(internal), external: prefix(external) };
            let pair = Pair::new(&rule);
            let mask = u128::MAX >> len;
            let inside = Ipv6Addr::from_bits(rule.internal.addr().to_bits() | host & mask);
            if let Some(outside) = pair.outward(inside) {
                prop_assert!(pair.is_external(outside));
                prop_assert_eq!(sum(outside.segments()) % 0xffff, sum(inside.segments()) % 0xffff);
                // A word of all ones is one of all zeros on the way back: they are the same sum.
                let back = pair.inward(outside);
                prop_assert!(back == Some(inside), "{inside} {outside} {back:?}");
            }
        }
    }
}
