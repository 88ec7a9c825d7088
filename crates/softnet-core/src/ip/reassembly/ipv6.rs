//! Fragments of IPv6 datagrams (RFC 8200 section 4.5): finding the Fragment header, and taking it out again.
//!
//! Fragments that are not the last may be smaller than 1280 bytes: RFC 8200 lets a sender cut as it likes, and what
//! many small ones could cost is bounded by [`MAX_FRAGMENTS`](super::MAX_FRAGMENTS) already.

use std::net::Ipv6Addr;

use super::{Fragment, Key, Reassembly, Whole};
use crate::SoftnetData;
use crate::ip::v6::header::{next, upper};
use crate::skb::{Csum, DropReason, Flags, Skb, SkbList, Store};

/// Bytes of the fixed header.
const IPV6_LEN: usize = 40;
/// Bytes of a Fragment header.
const FRAGMENT_LEN: usize = 8;
/// Largest payload of the fixed header.
const MAX_PAYLOAD: usize = u16::MAX as usize;
/// Extension headers that are walked through at the most.
const MAX_HEADERS: usize = 8;

/// Next-header value of an Authentication header (RFC 4302), which is known for its length only.
const AUTHENTICATION: u8 = 51;

impl Reassembly {
    /// Takes a packet with a Fragment header, whose IPv6 header is at [`l3`](crate::skb::Head::l3), at `now` (ns). Hands
    /// out the datagram that it completes, if it does, without the Fragment header; a fragment that is no use, for its
    /// reason. One that is a whole datagram has nothing to do with others (RFC 6946).
    pub fn ipv6(
        &mut self,
        ctx: &mut SoftnetData,
        now: u64,
        mut skb: Skb,
    ) -> Result<Option<Skb>, (Skb, DropReason)> {
        // Errors quote the first fragment from one frame, whatever it came in.
        if !ctx.linearize(&mut skb) {
            return Err((skb, DropReason::Nonlinear));
        }
        let fragment = match describe(&mut skb) {
            Ok(fragment) => fragment,
            Err(reason) => return Err((skb, reason)),
        };
        let whole = if fragment.start == 0 && !fragment.more {
            let len = skb.len().saturating_sub(fragment.payload) as u32;
            Whole { first: skb, rest: SkbList::new(), len, payload: fragment.payload, ecn: None }
        } else {
            let Some(whole) = self.insert(ctx, now, &fragment, skb)? else { return Ok(None) };
            whole
        };
        Ok(mend(ctx, whole))
    }
}

/// Reads and checks the headers, and cuts off link-layer padding.
fn describe(skb: &mut Skb) -> Result<Fragment, DropReason> {
    let l3 = usize::from(skb.head().l3);
    let packet = skb.data().get(l3..).ok_or(DropReason::PktTooSmall)?;
    let header: &[u8; IPV6_LEN] = packet.first_chunk().ok_or(DropReason::PktTooSmall)?;
    let total = IPV6_LEN + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let packet = packet.get(..total).ok_or(DropReason::PktTooSmall)?;
    let (_, at) = fragment_header(packet).filter(|_| header[0] >> 4 == 6).ok_or(DropReason::FragInvalid)?;
    // A header before it may say that it is longer than the packet.
    let behind = packet.get(at..).and_then(|rest| rest.split_first_chunk::<FRAGMENT_LEN>());
    let (fragment, payload) = behind.ok_or(DropReason::PktTooSmall)?;
    let word = u16::from_be_bytes([fragment[2], fragment[3]]);
    let (start, more) = (usize::from(word & !7), word & 1 != 0);
    let id = u32::from_be_bytes([fragment[4], fragment[5], fragment[6], fragment[7]]);
    // A whole datagram may be empty, a part of one may not.
    let empty = payload.is_empty() && (start > 0 || more);
    if empty || problem(at, (start, more), fragment[0], payload).is_some() {
        return Err(DropReason::FragInvalid);
    }
    let address = |at: usize| {
        Ipv6Addr::from(header[at..].first_chunk().map_or(0, |bytes: &[u8; 16]| u128::from_be_bytes(*bytes)))
    };
    let (src, dst) = (address(8), address(24));
    // Link-local addresses are of their link only, and groups have members on each.
    let of_link = src.is_unicast_link_local() || dst.is_unicast_link_local() || dst.is_multicast();
    let zone = if of_link { skb.head().dev.saturating_add(1) } else { 0 };
    let described = Fragment {
        key: Key::V6 { src, dst, id, zone },
        start: start as u32,
        more,
        payload: l3 + at + FRAGMENT_LEN,
        ecn: header[1] >> 4 & 3,
    };
    skb.trim(l3 + total);
    Ok(described)
}

/// What is wrong with a fragment whose header is at `at`, as a parameter problem says it: its code, and where the fault is
/// in the packet. (RFC 8200 section 4.5; RFC 7112 section 5.)
fn problem(at: usize, (start, more): (usize, bool), next: u8, payload: &[u8]) -> Option<(u8, u32)> {
    if more && !payload.len().is_multiple_of(8) {
        // The payload length.
        return Some((0, 4));
    }
    if at - IPV6_LEN + start + payload.len() > MAX_PAYLOAD {
        // The fragment offset.
        return Some((0, at as u32 + 2));
    }
    if start == 0 && next == next::HOP_BY_HOP {
        // They come in front or not at all; anywhere else they are an unrecognized header (RFC 8200
        // section 4.1).
        return Some((1, at as u32));
    }
    (start == 0 && !holds_header_chain(next, payload)).then_some((3, 0))
}

/// What the sender of `packet`, a fragment that was refused, is to be told by a parameter problem: its code, and where the
/// fault is. `None` if it is nothing that it should know.
pub fn parameter_problem(packet: &[u8]) -> Option<(u8, u32)> {
    let (_, at) = fragment_header(packet)?;
    let (fragment, payload) = packet.get(at..)?.split_first_chunk::<FRAGMENT_LEN>()?;
    let word = u16::from_be_bytes([fragment[2], fragment[3]]);
    problem(at, (usize::from(word & !7), word & 1 != 0), fragment[0], payload)
}

/// Where the byte is that announces the Fragment header of `packet`, and where that header is.
fn fragment_header(packet: &[u8]) -> Option<(usize, usize)> {
    let upper = upper(packet).ok().filter(|upper| upper.protocol == next::FRAGMENT)?;
    Some((upper.said_at, upper.at))
}

/// Whether `payload`, which begins with a header of this kind, holds every header up to that of the upper layer
/// (RFC 7112 section 5), the latter as far as it always goes.
fn holds_header_chain(mut kind: u8, mut payload: &[u8]) -> bool {
    for _ in 0..MAX_HEADERS {
        let len = match kind {
            next::TCP => return payload.len() >= 20,
            next::UDP | next::ICMPV6 => return payload.len() >= 8,
            // A fragment of fragments says nothing that could not be said without.
            next::FRAGMENT => return false,
            next::ROUTING | next::DESTINATION => payload.get(1).map(|len| (usize::from(*len) + 1) * 8),
            AUTHENTICATION => payload.get(1).map(|len| (usize::from(*len) + 2) * 4),
            _ => return true,
        };
        let Some(rest) = len.and_then(|len| payload.get(len..)) else { return false };
        kind = payload[0];
        payload = rest;
    }
    false
}

/// Takes a datagram that goes on into the fragments that it came in, each as long as it was: a router cuts
/// none (RFC 8200 section 4.5), and longer ones might not get through where these did. What was changed
/// in the headers since is so in all of them. Those that are packets more than there were are all but the
/// first of the list. Hands back a datagram that came in none, and one whose headers have no room in each.
pub fn apart(store: &mut Store, mut skb: Skb) -> Result<SkbList, (Skb, DropReason)> {
    let l3 = usize::from(skb.head().l3);
    let Some(came) = AsItCame::of(&skb) else { return Err((skb, DropReason::FragInvalid)) };
    let Some(mut chain) = store.take_chain(&mut skb) else { return Err((skb, DropReason::NoHead)) };
    let mut rest = SkbList::new();
    let mut at = skb.head_len().saturating_sub(l3 + came.at);
    let mut whole = came.put_back(&mut skb, l3, !chain.is_empty()).is_some();
    while let Some(mut part) = chain.pop_front() {
        let len = part.head_len();
        whole = whole && came.put_before(&mut part, &skb, (at, !chain.is_empty())).is_some();
        at += len;
        // Of one region all of them.
        rest.push_back(part).map_err(|part| store.free_skb(part)).ok();
    }
    let pushed = match whole {
        true => rest.push_front(skb),
        false => Err(skb),
    };
    match pushed {
        Ok(()) => Ok(rest),
        Err(skb) => {
            while let Some(part) = rest.pop_front() {
                store.free_skb(part);
            }
            Err((skb, DropReason::NoHeadroom))
        }
    }
}

/// Brings the length of a fragment up to date, whose IPv6 header is at `l3`; and the offset and the flag in
/// its Fragment header, which is at the first of `word`.
fn renew(part: &mut Skb, l3: usize, word: Option<(usize, u16)>) -> Option<()> {
    let payload = u16::try_from(part.head_len().checked_sub(l3 + IPV6_LEN)?).ok()?;
    let data = part.data_mut();
    data.get_mut(l3 + 4..l3 + 6)?.copy_from_slice(&payload.to_be_bytes());
    if let Some((at, word)) = word {
        data.get_mut(at + 2..at + 4)?.copy_from_slice(&word.to_be_bytes());
    }
    Some(())
}

/// Takes the Fragment header out of the first fragment, and makes the headers before it those of the whole. `None`:
/// it is too long, and was freed.
fn mend(ctx: &mut SoftnetData, mut whole: Whole) -> Option<Skb> {
    let Whole { len, payload, ecn, .. } = whole;
    match mend_first(&mut whole.first, len, payload, ecn) {
        Some(()) => whole.into_packet(ctx),
        None => {
            whole.refuse(ctx);
            None
        }
    }
}

/// See [`mend`]; no change if the datagram is too long.
fn mend_first(first: &mut Skb, len: u32, payload: usize, ecn: Option<u8>) -> Option<()> {
    let l3 = usize::from(first.head().l3);
    let at = payload.checked_sub(l3 + FRAGMENT_LEN)?;
    let total = u16::try_from(at.checked_sub(IPV6_LEN)? + len as usize).ok()?;
    let data = first.data_mut();
    let packet = data.get_mut(l3..)?;
    let (announced, _) = fragment_header(packet)?;
    let came = AsItCame {
        at,
        said_at: announced,
        payload_len: u16::from_be_bytes([packet[4], packet[5]]),
        ecn: packet[1] >> 4 & 3,
        more: packet.get(at + 3)? & 1 != 0,
        id: u32::from_be_bytes(*packet.get(at + 4..)?.first_chunk()?),
    };
    packet[announced] = *packet.get(at)?;
    packet.get_mut(4..6)?.copy_from_slice(&total.to_be_bytes());
    if let Some(ecn) = ecn {
        packet[1] = packet[1] & !0x30 | ecn << 4;
    }
    // All that is before the Fragment header moves over it.
    data.copy_within(..l3 + at, FRAGMENT_LEN);
    first.pull(FRAGMENT_LEN)?;
    let head = first.head_mut();
    head.frag = came.to_bits();
    head.flags |= Flags::FRAG;
    Some(())
}

/// The first fragment of a datagram as it came, for the error about it quotes it so (RFC 4443
/// section 2.4(c)): what was mended in its headers. It is kept in [`frag`](crate::skb::Head::frag)
/// of the skb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsItCame {
    /// Where its Fragment header was, from the first byte of the IPv6 header, and where the byte
    /// that announced it.
    at: usize,
    said_at: usize,
    payload_len: u16,
    ecn: u8,
    /// Whether others followed.
    more: bool,
    id: u32,
}

impl AsItCame {
    /// Bytes that were taken out.
    pub const MISSING: usize = FRAGMENT_LEN;

    fn to_bits(self) -> u64 {
        let flags = u64::from(self.ecn) | u64::from(self.more) << 2 | ((self.at / 8) as u64) << 3;
        u64::from(self.id) << 32 | u64::from(self.payload_len) << 16 | flags
    }

    /// What is known of the first fragment in `first`, whose IPv6 header is at
    /// [`l3`](crate::skb::Head::l3); `None` if it is no fragment, or as it came.
    pub fn of(first: &Skb) -> Option<Self> {
        let head = first.head();
        if head.flags & Flags::FRAG == 0 {
            return None;
        }
        let bits = head.frag;
        let at = usize::from(bits as u16 >> 3) * 8;
        let packet = first.data().get(head.l3.into()..)?;
        // Along the headers that were before it.
        let (mut said_at, mut header) = (6, IPV6_LEN);
        while header < at {
            said_at = header;
            header += (usize::from(*packet.get(header + 1)?) + 1) * 8;
        }
        Some(AsItCame {
            at,
            said_at,
            payload_len: (bits >> 16) as u16,
            ecn: bits as u8 & 3,
            more: bits & 4 != 0,
            id: (bits >> 32) as u32,
        })
    }

    /// Bytes of the longest fragment of the datagram in `skb`, from the IPv6 header on; `None` if it came in
    /// none.
    pub fn longest(skb: &Skb) -> Option<usize> {
        let came = Self::of(skb)?;
        let mut longest = skb.head_len().saturating_sub(skb.head().l3.into()) + FRAGMENT_LEN;
        skb.each_part(|part| longest = longest.max(came.at + FRAGMENT_LEN + part.len()));
        Some(longest)
    }

    /// Puts the Fragment header back into the first fragment; its IPv6 header is at `l3`.
    fn put_back(&self, first: &mut Skb, l3: usize, more: bool) -> Option<()> {
        let front = l3 + self.at;
        first.push(FRAGMENT_LEN)?;
        let data = first.data_mut();
        data.get(..FRAGMENT_LEN + front)?;
        data.copy_within(FRAGMENT_LEN..FRAGMENT_LEN + front, 0);
        let said = std::mem::replace(data.get_mut(l3 + self.said_at)?, next::FRAGMENT);
        let [a, b, c, d] = self.id.to_be_bytes();
        data[front..front + FRAGMENT_LEN].copy_from_slice(&[said, 0, 0, more.into(), a, b, c, d]);
        renew(first, l3, None)
    }

    /// Puts the headers of the mended `first` before a later fragment, which begins at `at` of the
    /// datagram's payload; whether others follow it.
    fn put_before(&self, part: &mut Skb, first: &Skb, (at, more): (usize, bool)) -> Option<()> {
        let l3 = usize::from(first.head().l3);
        let headers = first.data().get(..l3 + self.at + FRAGMENT_LEN)?;
        part.push(headers.len())?.copy_from_slice(headers);
        let head = part.head_mut();
        head.copy_metadata(first.head());
        (head.l3, head.l4, head.hash, head.csum) = (l3 as u16, 0, 0, Csum::None);
        renew(part, l3, Some((l3 + self.at, at as u16 | u16::from(more))))
    }

    /// Where the byte was that is at `pointer` of the mended packet.
    pub fn pointer(&self, pointer: u32) -> u32 {
        match pointer as usize {
            // What it says was said by the Fragment header.
            said_at if said_at == self.said_at => self.at as u32,
            at if at >= self.at => pointer + FRAGMENT_LEN as u32,
            _ => pointer,
        }
    }

    /// Writes the fragment that `packet` is, mended, to `to`, as far as that goes.
    pub fn write(&self, packet: &[u8], to: &mut [u8]) {
        let (before, behind) = packet.split_at(self.at.min(packet.len()));
        let next = before.get(self.said_at).copied().unwrap_or(next::NONE);
        let [a, b, c, d] = self.id.to_be_bytes();
        let header = [next, 0, 0, self.more.into(), a, b, c, d];
        let whole = before.iter().chain(&header).chain(behind);
        for (i, (to, byte)) in to.iter_mut().zip(whole).enumerate() {
            *to = match i {
                1 => byte & !0x30 | self.ecn << 4,
                4 => (self.payload_len >> 8) as u8,
                5 => self.payload_len as u8,
                i if i == self.said_at => next::FRAGMENT,
                _ => *byte,
            };
        }
    }
}
