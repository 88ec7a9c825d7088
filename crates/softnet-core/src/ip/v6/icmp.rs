//! ICMPv6 (RFC 4443): errors about packets that can't go on, and answers to echo requests.
//!
//! Packets have the shape that [`v4::icmp`](super::super::v4::icmp) has, and the rate limit is the same bucket. Invariant: nothing is
//! ever sent in answer to an ICMPv6 error or redirect, to a group, or to an address that is not a single node's; about a
//! packet to a group only what path MTU discovery and option processing need (RFC 4443 section 2.4(e)).

use std::net::Ipv6Addr;

use super::super::icmp_limit::IcmpLimit;
use super::super::reassembly::AsItCame;
use super::super::{ETH_LEN, Family, checksum, is_group};
use super::addr::is_unicast;
use super::header::{Ipv6Header, LEN, next, upper, validate, validate_part};
use crate::skb::{DropReason, Flags, Skb, Store};

/// Hop limit of what is made here.
pub(in crate::ip) const HOP_LIMIT: u8 = 64;
/// An error message is no longer than the smallest MTU there may be, from its IPv6 header on (RFC 4443 section 2.4(c)).
const ERROR_MAX: usize = 1280;
/// Bytes of an ICMPv6 header with the four that depend on the message.
pub(in crate::ip) const ICMP_LEN: usize = 8;
pub(in crate::ip) const ECHO_REQUEST: u8 = 128;
pub(in crate::ip) const ECHO_REPLY: u8 = 129;
const REDIRECT: u8 = 137;

/// What there is to complain about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmp6Error {
    /// No route to the destination (1/0).
    NoRoute,
    /// A filter does not let it pass (1/1).
    AdminProhibited,
    /// The source means nothing on the link where the packet would go on (1/2).
    BeyondScope,
    /// The last router's neighbour does not answer (1/3).
    AddressUnreachable,
    /// This port is not served here (1/4).
    PortUnreachable,
    /// Too long for the way on (2/0).
    PacketTooBig {
        /// What would fit, in bytes from the IPv6 header on.
        mtu: u16,
    },
    /// The hop limit ran out on the way (3/0).
    TimeExceeded,
    /// Fragments of a datagram to softnet did not come in time (3/1).
    ReassemblyTimeExceeded,
    /// Something in the header (4).
    ParameterProblem {
        /// What is wrong with it.
        code: u8,
        /// Where, from the first byte of the IPv6 header.
        pointer: u32,
    },
}

impl Icmp6Error {
    /// The first eight bytes of the message, without checksum.
    fn header(self) -> [u8; ICMP_LEN] {
        let (kind, code, rest) = match self {
            Icmp6Error::NoRoute => (1, 0, 0),
            Icmp6Error::AdminProhibited => (1, 1, 0),
            Icmp6Error::BeyondScope => (1, 2, 0),
            Icmp6Error::AddressUnreachable => (1, 3, 0),
            Icmp6Error::PortUnreachable => (1, 4, 0),
            Icmp6Error::PacketTooBig { mtu } => (2, 0, mtu.into()),
            Icmp6Error::TimeExceeded => (3, 0, 0),
            Icmp6Error::ReassemblyTimeExceeded => (3, 1, 0),
            Icmp6Error::ParameterProblem { code, pointer } => (4, code, pointer),
        };
        let [a, b, c, d] = u32::to_be_bytes(rest);
        [kind, code, 0, 0, a, b, c, d]
    }

    /// Whether a packet to a group may cause it.
    fn about_group(self) -> bool {
        matches!(self, Icmp6Error::PacketTooBig { .. } | Icmp6Error::ParameterProblem { code: 2, .. })
    }
}

/// Builds the error message about `packet`, which stays with the caller (to be freed for its own
/// reason), from `source`, an address of softnet's. A datagram that came in fragments is quoted by
/// its first one, as that came.
///
/// `None` if there may be no error about this packet, `limit` does not allow one at `now` (ns), or
/// no memory is left. A packet that there may be no error about is not charged for.
pub fn build_error(
    store: &mut Store,
    packet: &Skb,
    error: Icmp6Error,
    source: Ipv6Addr,
    limit: &mut IcmpLimit,
    now: u64,
) -> Option<Skb> {
    if packet.head().flags & Flags::ORIGINATED != 0 {
        // It would come to ourselves, and nothing here would read it.
        return None;
    }
    let (eth, offending) = packet.data().split_first_chunk::<ETH_LEN>()?;
    let total = validate_part(offending, packet.len() - ETH_LEN).ok()?;
    // In case there is link-layer padding. (The upper-layer header is in the first frame.)
    let offending = &offending[..total.min(offending.len())];
    let header = Ipv6Header::new(offending)?;
    let group = eth.first_chunk().is_some_and(is_group) || header.dst().is_multicast();
    let came = AsItCame::of(packet);
    let error = match (error, &came) {
        (Icmp6Error::ParameterProblem { code, pointer }, Some(came)) => {
            Icmp6Error::ParameterProblem { code, pointer: came.pointer(pointer) }
        }
        _ => error,
    };
    let words = error.header();
    if group && !error.about_group() || !may_report(offending) || !limit.allow6(now, words[0], header.src()) {
        return None;
    }
    let quoted = came.map_or(total, |_| offending.len() + AsItCame::MISSING);
    let mut skb = store.alloc_skb()?;
    let frame = skb.put(ETH_LEN + LEN + ICMP_LEN + quoted.min(ERROR_MAX - LEN - ICMP_LEN));
    let message = frame.and_then(|frame| begin(frame, next::ICMPV6, HOP_LIMIT, source, header.src()));
    let Some(message) = message else {
        store.free_skb(skb);
        return None;
    };
    message[..ICMP_LEN].copy_from_slice(&words);
    let quote = &mut message[ICMP_LEN..];
    match came {
        Some(came) => came.write(offending, quote),
        None => packet.copy_bits(ETH_LEN, quote),
    }
    finish(message, source, header.src());
    let head = skb.head_mut();
    head.l3 = ETH_LEN as u16;
    (head.dev, head.queue) = (packet.head().dev, packet.head().queue);
    head.flags = Flags::ORIGINATED;
    Some(skb)
}

/// Writes an empty link header and an IPv6 header into `frame`. Returns what is behind them: all of the payload.
pub(in crate::ip) fn begin(
    frame: &mut [u8],
    next: u8,
    hop_limit: u8,
    src: Ipv6Addr,
    dst: Ipv6Addr,
) -> Option<&mut [u8]> {
    let (eth, packet) = frame.split_first_chunk_mut::<ETH_LEN>()?;
    eth[..12].fill(0);
    eth[12..].copy_from_slice(&Ipv6Addr::ETHERTYPE.to_be_bytes());
    let len = packet.len().checked_sub(LEN)?;
    Ipv6Header::new_mut(packet)?.fill(u16::try_from(len).ok()?, next, hop_limit, src, dst);
    packet.get_mut(LEN..)
}

/// Puts the checksum into an ICMPv6 `message` that has 0 there.
pub(in crate::ip) fn finish(message: &mut [u8], src: Ipv6Addr, dst: Ipv6Addr) {
    let check = !message_sum(message, src, dst);
    message[2..4].copy_from_slice(&check.to_be_bytes());
}

/// Sum of an ICMPv6 `message` with its pseudo-header: 0xffff if its checksum is right.
pub(in crate::ip) fn message_sum(message: &[u8], src: Ipv6Addr, dst: Ipv6Addr) -> u16 {
    let pseudo = checksum::pseudo_header_sum6(src, dst, next::ICMPV6, message.len() as u16);
    checksum::add(pseudo, checksum::sum(message))
}

/// Whether an error about `packet` may be sent to its source.
fn may_report(packet: &[u8]) -> bool {
    let Some(header) = Ipv6Header::new(packet) else { return false };
    if !is_unicast(header.src()) {
        return false;
    }
    let Ok(mut upper) = upper(packet) else { return true };
    let rest = packet.get(upper.at..).unwrap_or_default();
    let mut message = rest;
    if let (next::FRAGMENT, &[following, _, high, low, ..]) = (upper.protocol, rest) {
        // A later piece does not say what message it is of; but no error is as long as to need
        // pieces.
        if u16::from_be_bytes([high, low]) & 0xfff8 != 0 {
            return true;
        }
        upper.protocol = following;
        message = rest.get(8..).unwrap_or_default();
    }
    // Informational messages are those from 128 on (RFC 4443 section 2.1).
    upper.protocol != next::ICMPV6 || message.first().is_some_and(|kind| *kind >= 128 && *kind != REDIRECT)
}

/// Turns an echo request that `skb` holds, whose message begins at `at` of its IPv6 packet, into
/// the reply, in place; link-layer padding is cut off and extension headers are left out. The
/// reply's traffic class is the request's. The checksum was found right.
///
/// An `Err` says what to free the skb for: [`IcmpIgnored`](DropReason::IcmpIgnored) for a request
/// from or to anything that is no single node's address.
pub fn echo_reply(skb: &mut Skb, at: usize) -> Result<(), DropReason> {
    let packet = skb.data().get(ETH_LEN..).ok_or(DropReason::PktTooSmall)?;
    let total = validate(packet)?;
    let header = Ipv6Header::new(packet).ok_or(DropReason::PktTooSmall)?;
    let (src, dst, class) = (header.src(), header.dst(), header.traffic_class());
    let message = packet.get(at..total).ok_or(DropReason::PktTooSmall)?;
    let Some(&[ECHO_REQUEST, code, high, low]) = message.first_chunk() else {
        return Err(DropReason::IcmpIgnored);
    };
    if !is_unicast(src) || !is_unicast(dst) {
        return Err(DropReason::IcmpIgnored);
    }
    let (old, new) = ([ECHO_REQUEST, code], [ECHO_REPLY, code]);
    let check = u16::from_be_bytes([high, low]);
    let check = checksum::update16(check, u16::from_be_bytes(old), u16::from_be_bytes(new));

    skb.trim(ETH_LEN + total);
    let extensions = at.checked_sub(LEN).ok_or(DropReason::PktTooSmall)?;
    if extensions > 0 {
        // Up to the last extension header everything moves towards the message.
        skb.data_mut().copy_within(..ETH_LEN + LEN, extensions);
        skb.pull(extensions).ok_or(DropReason::PktTooSmall)?;
    }
    let packet = skb.data_mut().get_mut(ETH_LEN..).ok_or(DropReason::PktTooSmall)?;
    let len = packet.len().saturating_sub(LEN) as u16;
    let mut header = Ipv6Header::new_mut(packet).ok_or(DropReason::PktTooSmall)?;
    header.fill(len, next::ICMPV6, HOP_LIMIT, dst, src);
    header.set_traffic_class(class);
    let message =
        packet.get_mut(LEN..).and_then(|m| m.first_chunk_mut::<4>()).ok_or(DropReason::PktTooSmall)?;
    message[0] = ECHO_REPLY;
    message[2..].copy_from_slice(&check.to_be_bytes());
    // It is of the flow in the other direction.
    skb.head_mut().turn_around();
    Ok(())
}

/// Whether an ICMPv6 message of type `kind` is an echo request.
pub(in crate::ip) fn is_echo_request(kind: u8) -> bool {
    kind == ECHO_REQUEST
}
