//! A packet of one family becomes one of the other: header, length, and the checksums that cover
//! addresses (RFC 7915 sections 4 and 5).
//!
//! Called by the hooks of [`nat64`](super) with whole packets, aggregates included. Which address
//! stands for which, the caller says. Checksums change by difference, so that one which was wrong
//! stays wrong; the time to live stays, as who forwards it takes one off. On an error the packet is
//! to be dropped.

use std::net::Ipv6Addr;

use super::errors;
use crate::ip::ETH_LEN;
use crate::ip::checksum::{add, pseudo_header_sum6, sum, sum_skb};
use crate::ip::ethernet::ethertype;
use crate::ip::v4::header::{Ipv4Header, MIN_LEN, protocol};
use crate::ip::v6::header::{Ipv6Header, LEN, next, upper};
use crate::nat::rewrite::{mended, mended_udp, summed};
use crate::skb::{Csum, DropReason, Flags, GsoType, Skb};

/// Bytes of the largest IPv4 packet that any router on the way may cut (RFC 7915 section 5.1): what
/// was made for IPv6's smallest MTU must get through.
const MAY_FRAGMENT: usize = 1260;
/// Bytes of a Fragment header.
const FRAGMENT_LEN: usize = 8;

/// Addresses that stand for one another: source, then destination.
pub(super) struct Ends {
    pub(super) v4: [u32; 2],
    pub(super) v6: [Ipv6Addr; 2],
}

impl Ends {
    /// Sum of the addresses of either family.
    pub(super) fn sum4(&self) -> u16 {
        self.v4.iter().fold(0, |all, addr| add(all, sum(&addr.to_be_bytes())))
    }

    pub(super) fn sum6(&self) -> u16 {
        self.v6.iter().fold(0, |all, addr| add(all, sum(&addr.octets())))
    }
}

/// What a checksum field gains when it covers `new` in place of `old`, both sums.
fn difference(old: u16, new: u16) -> u64 {
    u64::from(!old) + u64::from(new)
}

/// An IPv4 header.
pub(super) struct Header4 {
    pub(super) tos: u8,
    pub(super) total: u16,
    pub(super) id: u16,
    pub(super) dont_fragment: bool,
    pub(super) ttl: u8,
    pub(super) protocol: u8,
    pub(super) ends: [u32; 2],
}

impl Header4 {
    pub(super) fn write(&self, to: &mut [u8]) {
        if let Some(mut header) = Ipv4Header::new_mut(to) {
            let [src, dst] = self.ends;
            header.fill(self.total, self.id, self.ttl, self.protocol, src, dst);
            header.set_tos(self.tos);
            header.set_dont_fragment(self.dont_fragment);
            header.renew_check();
        }
    }
}

/// Writes an IPv6 header.
pub(super) fn write6(to: &mut [u8], (class, hops): (u8, u8), len: u16, next: u8, ends: [Ipv6Addr; 2]) {
    if let Some(mut header) = Ipv6Header::new_mut(to) {
        header.fill(len, next, hops, ends[0], ends[1]);
        header.set_traffic_class(class);
    }
}

/// Puts `front` in place of the first `old` bytes behind the link header, whose EtherType becomes
/// `ethertype`.
pub(super) fn reframe(skb: &mut Skb, old: usize, front: &[u8], ethertype: u16) -> Result<(), DropReason> {
    let mut eth: [u8; ETH_LEN] = *skb.data().first_chunk().ok_or(DropReason::PktTooSmall)?;
    eth[12..].copy_from_slice(&ethertype.to_be_bytes());
    if skb.head_len() < ETH_LEN + old {
        return Err(DropReason::PktTooSmall);
    }
    match front.len().checked_sub(old) {
        Some(more) => skb.push(more).map(drop).ok_or(DropReason::NoHeadroom)?,
        None => skb.pull(old - front.len()).ok_or(DropReason::PktTooSmall)?,
    }
    let data = skb.data_mut();
    data[..ETH_LEN].copy_from_slice(&eth);
    data[ETH_LEN..ETH_LEN + front.len()].copy_from_slice(front);
    Ok(())
}

/// Brings the head up to date: the packet's header has `header` bytes, and behind it is `protocol`.
fn renew_head(skb: &mut Skb, header: usize, protocol: u8, tcp: GsoType) {
    let head = skb.head_mut();
    let at = (ETH_LEN + header) as u16;
    (head.l3, head.l4, head.protocol) = (ETH_LEN as u16, at, protocol);
    head.hash = 0;
    // How it came in fragments says nothing of what it is now.
    head.flags = head.flags & !Flags::FRAG | Flags::CROSSED;
    match head.csum {
        Csum::Partial { offset, .. } => head.csum = Csum::Partial { start: at, offset },
        Csum::Complete { .. } => head.csum = Csum::None,
        Csum::None | Csum::Unnecessary => {}
    }
    if matches!(head.gso_type, GsoType::TcpV4 | GsoType::TcpV6) {
        head.gso_type = tcp;
    }
}

/// Mends the checksum of a TCP or UDP header for a pseudo-header that changed by `delta`.
fn mend_ports(l4: &mut [u8], number: u8, partial: bool, delta: u64) {
    let at = if number == protocol::TCP { 16 } else { 6 };
    let Some([a, b]) = l4.get_mut(at..at + 2) else { return };
    [*a, *b] = match (partial, number) {
        (true, _) => summed([*a, *b], delta),
        (false, protocol::UDP) => mended_udp([*a, *b], delta),
        (false, _) => mended([*a, *b], delta),
    };
}

/// An echo message of `from` becomes one of `to`: types, and what of a pseudo-header the checksum
/// covers, as sums.
fn mend_echo(l4: &mut [u8], to: u8, delta: u64) -> Result<(), DropReason> {
    let [kind, _, a, b, ..] = l4 else { return Err(DropReason::PktTooSmall) };
    let delta = delta + difference(u16::from(*kind) << 8, u16::from(to) << 8);
    *kind = to;
    [*a, *b] = mended([*a, *b], delta);
    Ok(())
}

/// Which family a packet becomes one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    V4,
    V6,
}

/// Makes of an L4 header what it is in the other family: of `len` bytes between `ends`, its protocol as
/// IPv4 has it. `partial`: its checksum field has only the sum of the pseudo-header.
pub(super) fn cross(
    l4: &mut [u8],
    (number, len): (u8, u16),
    partial: bool,
    ends: &Ends,
    to: To,
) -> Result<(), DropReason> {
    match number {
        protocol::ICMP => {
            // Echo requests and replies, which have the pseudo-header in one family only.
            let kind = match (to, l4.first()) {
                (To::V4, Some(128)) => 8,
                (To::V4, Some(129)) => 0,
                (To::V6, Some(8)) => 128,
                (To::V6, Some(0)) => 129,
                _ => return Err(DropReason::Nat64),
            };
            let pseudo = add(add(ends.sum6(), len), next::ICMPV6.into());
            let delta = match to {
                To::V4 => difference(pseudo, 0),
                To::V6 => difference(0, pseudo),
            };
            mend_echo(l4, kind, delta)
        }
        protocol::TCP | protocol::UDP => {
            let delta = match to {
                To::V4 => difference(ends.sum6(), ends.sum4()),
                To::V6 => difference(ends.sum4(), ends.sum6()),
            };
            mend_ports(l4, number, partial, delta);
            Ok(())
        }
        _ => Err(DropReason::Nat64),
    }
}

/// Makes of the IPv6 packet in `skb` one of IPv4 between `ends`; `id` is an identification for it.
pub(super) fn to_v4(
    skb: &mut Skb,
    ends: &Ends,
    id: u16,
    inner: &errors::Inner<'_>,
) -> Result<(), DropReason> {
    let packet = skb.data().get(ETH_LEN..).ok_or(DropReason::PktTooSmall)?;
    let header = Ipv6Header::new(packet).ok_or(DropReason::PktTooSmall)?;
    let upper = upper(packet)?;
    let (at, class, hops) = (upper.at, header.traffic_class(), header.hop_limit());
    let len = (LEN + usize::from(header.payload_len())).checked_sub(at).ok_or(DropReason::Ipv6BadExthdr)?;
    let number = match upper.protocol {
        next::ICMPV6 => protocol::ICMP,
        protocol::TCP | protocol::UDP => upper.protocol,
        _ => return Err(DropReason::Nat64),
    };
    let is_error = number == protocol::ICMP && packet.get(at).is_some_and(|kind| *kind < 128);
    if is_error {
        return errors::to_v4(skb, ends, (at, len), (class, hops), inner);
    }
    let total = u16::try_from(MIN_LEN + len).map_err(|_| DropReason::PktTooBig)?;
    let partial = matches!(skb.head().csum, Csum::Partial { .. });
    let l4 = skb.data_mut().get_mut(ETH_LEN + at..).unwrap_or_default();
    cross(l4, (number, len as u16), partial, ends, To::V4)?;
    // What is to be cut into segments is as long as those are.
    let longest = match skb.head().gso_size {
        0 => total.into(),
        size => MIN_LEN + 20 + usize::from(size),
    };
    // "If the size of the translated IPv4 packet is less than or equal to 1260 bytes, it is set to
    // zero; otherwise, it is set to one." What came in fragments may be cut again.
    let dont_fragment = longest > MAY_FRAGMENT && !(skb.is_chained() && skb.head().gso_size == 0);
    let mut front = [0; MIN_LEN];
    let id = if dont_fragment { 0 } else { id };
    Header4 { tos: class, total, id, dont_fragment, ttl: hops, protocol: number, ends: ends.v4 }
        .write(&mut front);
    reframe(skb, at, &front, ethertype::IPV4)?;
    renew_head(skb, MIN_LEN, number, GsoType::TcpV4);
    Ok(())
}

/// How an IPv4 packet becomes one of IPv6.
pub(super) enum To6 {
    /// It is.
    Done,
    /// It may be cut, and is too long for IPv6's smallest MTU: all but its header is as it is to be,
    /// and [`fragment_to_v6`] does that for each of its fragments.
    Cut,
}

/// Makes of the IPv4 packet in `skb` one of IPv6 between `ends`, which may be `least` bytes long
/// without the right not to be cut.
pub(super) fn to_v6(
    skb: &mut Skb,
    ends: &Ends,
    least: usize,
    inner: &errors::Inner<'_>,
) -> Result<To6, DropReason> {
    let packet = skb.data().get(ETH_LEN..).ok_or(DropReason::PktTooSmall)?;
    let header = Ipv4Header::new(packet).ok_or(DropReason::PktTooSmall)?;
    let (at, tos, ttl, number) = (header.header_len(), header.tos(), header.ttl(), header.protocol());
    let len = usize::from(header.total_len()).checked_sub(at).ok_or(DropReason::IpInHdr)?;
    if header.is_fragment() {
        return Err(DropReason::Nat64);
    }
    let may_fragment = !header.dont_fragment();
    let is_error =
        number == protocol::ICMP && packet.get(at).is_some_and(|kind| !matches!(kind, 0 | 8 | 13..=18));
    if is_error {
        return errors::to_v6(skb, ends, (at, len), (tos, ttl), inner).map(|()| To6::Done);
    }
    // "a translator receives an unfragmented UDP IPv4 packet and the checksum field is zero, the
    // translator SHOULD compute the missing UDP checksum" (RFC 7915 section 4.5).
    if number == protocol::UDP && packet.get(at + 6..at + 8) == Some(&[0, 0]) {
        let pseudo = pseudo_header_sum6(ends.v6[0], ends.v6[1], next::UDP, len as u16);
        let check = match !add(pseudo, sum_skb(skb, ETH_LEN + at, len).1) {
            0 => 0xffff,
            check => check,
        };
        skb.data_mut()[ETH_LEN + at + 6..ETH_LEN + at + 8].copy_from_slice(&check.to_be_bytes());
    } else {
        let partial = matches!(skb.head().csum, Csum::Partial { .. });
        let l4 = skb.data_mut().get_mut(ETH_LEN + at..).unwrap_or_default();
        cross(l4, (number, len as u16), partial, ends, To::V6)?;
    }
    if may_fragment && skb.head().gso_size == 0 && LEN + len > least {
        return Ok(To6::Cut);
    }
    let number = if number == protocol::ICMP { next::ICMPV6 } else { number };
    let mut front = [0; LEN];
    write6(&mut front, (tos, ttl), len as u16, number, ends.v6);
    reframe(skb, at, &front, ethertype::IPV6)?;
    renew_head(skb, LEN, number, GsoType::TcpV6);
    Ok(To6::Done)
}

/// Of a fragment of such a packet (RFC 7915 section 4.1).
pub(super) fn fragment_to_v6(skb: &mut Skb, ends: &Ends) -> Result<(), DropReason> {
    let packet = skb.data().get(ETH_LEN..).ok_or(DropReason::PktTooSmall)?;
    let header = Ipv4Header::new(packet).ok_or(DropReason::PktTooSmall)?;
    let (at, class) = (header.header_len(), (header.tos(), header.ttl()));
    let len = usize::from(header.total_len()).checked_sub(at).ok_or(DropReason::IpInHdr)?;
    let number = if header.protocol() == protocol::ICMP { next::ICMPV6 } else { header.protocol() };
    let mut front = [0; LEN + FRAGMENT_LEN];
    write6(&mut front, class, (len + FRAGMENT_LEN) as u16, next::FRAGMENT, ends.v6);
    let word = header.fragment_offset() << 3 | u16::from(header.more_fragments());
    front[LEN] = number;
    front[LEN + 2..LEN + 4].copy_from_slice(&word.to_be_bytes());
    // "The low-order 16 bits copied from the Identification field in the IPv4 header."
    front[LEN + 6..].copy_from_slice(&header.id().to_be_bytes());
    reframe(skb, at, &front, ethertype::IPV6)?;
    renew_head(skb, LEN, 0, GsoType::None);
    let head = skb.head_mut();
    head.l4 = 0;
    Ok(())
}
