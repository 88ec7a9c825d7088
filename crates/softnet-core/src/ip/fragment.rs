//! Fragmentation: of packets on their way (RFC 791 section 2.3), and of datagrams that are sent here.
//!
//! [`split`] cuts an IPv4 packet that does not fit the next link; [`emit`] writes a datagram of either family from its
//! payload, as one packet or several. Both are all or nothing: if memory runs out, nothing has been sent.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::ETH_LEN;
use super::checksum;
use super::v4::header::{Ipv4Header, MIN_LEN, validate_part};
use crate::skb::{DropReason, FRAME_SIZE, Flags, HEADROOM, Skb, SkbList, Store};

/// Bytes of an IPv6 header.
const IPV6_LEN: usize = 40;
/// Bytes of an IPv6 Fragment header.
const FRAGMENT_LEN: usize = 8;
/// Its next-header value.
const FRAGMENT: u8 = 44;
/// Largest payload of an IPv4 datagram.
pub const MAX_PAYLOAD_V4: usize = 65_535 - MIN_LEN;
/// Largest payload of an IPv6 datagram.
pub const MAX_PAYLOAD_V6: usize = 65_535;

/// A datagram to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Its addresses, of one family.
    pub addresses: Addresses,
    /// Protocol (IPv6: next header) of its payload.
    pub protocol: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// Identification, see [`Idents`](super::ident::Idents).
    pub id: u32,
    /// Whether it must be one packet all the way. (IPv6 routers never fragment; the sender must not, either.)
    pub dont_fragment: bool,
}

/// Source and destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Of IPv4.
    V4 {
        /// From.
        src: Ipv4Addr,
        /// To.
        dst: Ipv4Addr,
    },
    /// Of IPv6.
    V6 {
        /// From.
        src: Ipv6Addr,
        /// To.
        dst: Ipv6Addr,
        /// The device whose link `dst` is on, if that is link-local.
        dev: u16,
    },
}

/// Writes `datagram` to L3 packets of `mtu` bytes at the most. Its payload are the next `len` bytes of `pieces`; missing
/// ones are zero. Each skb of the result is a packet of its own, made here, with room for the link header in front at
/// offset 0 and its EtherType in place; the caller fills in the rest and the device.
///
/// The reason is [`PktTooBig`](DropReason::PktTooBig) if it does not fit a datagram, or the MTU and must not be cut, or if
/// the MTU is none; [`NoFrame`](DropReason::NoFrame) if memory ran out.
pub fn emit<'a>(
    store: &mut Store,
    datagram: &Datagram,
    mtu: usize,
    len: usize,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<SkbList, DropReason> {
    let (most, fixed, extra) = match datagram.addresses {
        Addresses::V4 { .. } => (MAX_PAYLOAD_V4, MIN_LEN, 0),
        Addresses::V6 { .. } => (MAX_PAYLOAD_V6, IPV6_LEN, FRAGMENT_LEN),
    };
    // What an skb has room for is a limit of its own.
    let mtu = mtu.min(FRAME_SIZE - HEADROOM - ETH_LEN);
    let whole = len <= most && fixed + len <= mtu;
    let header = if whole { fixed } else { fixed + extra };
    // All but the last carry a multiple of 8 bytes.
    let room = if whole { len } else { mtu.saturating_sub(header) & !7 };
    if len > most || (!whole && (datagram.dont_fragment || room == 0)) {
        return Err(DropReason::PktTooBig);
    }
    let mut payload = Gather { pieces: pieces.into_iter(), rest: &[] };
    let mut list = SkbList::new();
    let mut at = 0;
    loop {
        let n = room.min(len - at);
        let Some(mut skb) = blank(store, header + n) else {
            give_back(store, list);
            return Err(DropReason::NoFrame);
        };
        let packet = skb.data_mut().get_mut(ETH_LEN..).unwrap_or_default();
        let (head, body) = packet.split_at_mut(header.min(packet.len()));
        payload.fill(body);
        let part = (!whole).then_some((at, at + n < len));
        write_header(head, datagram, n, part);
        let ethertype = match datagram.addresses {
            Addresses::V4 { .. } => [0x08, 0x00],
            Addresses::V6 { .. } => [0x86, 0xdd],
        };
        if let Some(eth) = skb.data_mut().get_mut(12..ETH_LEN) {
            eth.copy_from_slice(&ethertype);
        }
        skb.head_mut().flags = Flags::ORIGINATED;
        // Of one store, so of one region.
        list.push_back(skb).map_err(drop).ok();
        at += n;
        if at >= len {
            return Ok(list);
        }
    }
}

/// Bytes that lie in pieces.
struct Gather<'a, I> {
    pieces: I,
    /// What is left of the piece taken last.
    rest: &'a [u8],
}

impl<'a, I: Iterator<Item = &'a [u8]>> Gather<'a, I> {
    /// Copies the next bytes to `to`, and zeros when there are no more.
    fn fill(&mut self, mut to: &mut [u8]) {
        while !to.is_empty() {
            if self.rest.is_empty() {
                match self.pieces.next() {
                    Some(piece) => self.rest = piece,
                    None => break,
                }
            }
            let n = to.len().min(self.rest.len());
            let (now, later) = to.split_at_mut(n);
            let (taken, rest) = self.rest.split_at(n);
            now.copy_from_slice(taken);
            (to, self.rest) = (later, rest);
        }
        to.fill(0);
    }
}

/// An skb with a zeroed link header, and an L3 packet of `len` bytes behind it, whatever these are.
fn blank(store: &mut Store, len: usize) -> Option<Skb> {
    let mut skb = store.alloc_skb()?;
    match skb.put(ETH_LEN + len) {
        Some(data) => data[..ETH_LEN].fill(0),
        None => {
            store.free_skb(skb);
            return None;
        }
    }
    skb.head_mut().l3 = ETH_LEN as u16;
    Some(skb)
}

fn give_back(store: &mut Store, mut list: SkbList) {
    while let Some(skb) = list.pop_front() {
        store.free_skb(skb);
    }
}

/// Writes the header of a packet with `n` bytes of payload: of all of `datagram`, or of the `part` that begins at an
/// offset and that others follow or not.
fn write_header(header: &mut [u8], datagram: &Datagram, n: usize, part: Option<(usize, bool)>) {
    let (offset, more) = part.unwrap_or((0, false));
    match datagram.addresses {
        Addresses::V4 { src, dst } => {
            let total = (header.len() + n) as u16;
            let Some(mut fields) = Ipv4Header::new_mut(header) else { return };
            let (src, dst) = (src.to_bits(), dst.to_bits());
            fields.fill(total, datagram.id as u16, datagram.ttl, datagram.protocol, src, dst);
            fields.set_tos(datagram.tos);
            fields.set_fragment(datagram.dont_fragment, more, (offset / 8) as u16);
            fields.renew_check();
        }
        Addresses::V6 { src, dst, .. } => {
            let payload = (header.len() - IPV6_LEN + n) as u16;
            let class = u32::from(datagram.tos) << 20;
            header[..4].copy_from_slice(&(0x6000_0000 | class).to_be_bytes());
            header[4..6].copy_from_slice(&payload.to_be_bytes());
            header[6] = if part.is_some() { FRAGMENT } else { datagram.protocol };
            header[7] = datagram.ttl;
            header[8..24].copy_from_slice(&src.octets());
            header[24..IPV6_LEN].copy_from_slice(&dst.octets());
            if part.is_some() {
                header[IPV6_LEN..IPV6_LEN + 2].copy_from_slice(&[datagram.protocol, 0]);
                let word = offset as u16 | u16::from(more);
                header[IPV6_LEN + 2..IPV6_LEN + 4].copy_from_slice(&word.to_be_bytes());
                header[IPV6_LEN + 4..].copy_from_slice(&datagram.id.to_be_bytes());
            }
        }
    }
}

/// Cuts the IPv4 packet in `skb`, whose header is at its [`l3`](crate::skb::Head::l3), into
/// fragments of `mtu` bytes at the most. The first is in `skb` still; the others have its
/// [metadata](crate::skb::Head::copy_metadata), and are packets more than there were: all but the
/// first of the list. What was a fragment before is cut further.
///
/// Hands `skb` back, unchanged, for the reason that [`emit`] would have.
pub fn split(store: &mut Store, mut skb: Skb, mtu: usize) -> Result<SkbList, (Skb, DropReason)> {
    let mut rest = SkbList::new();
    match write_rest(store, &skb, mtu, &mut rest) {
        Ok((first, last_more)) => {
            let l3 = usize::from(skb.head().l3);
            skb.trim(l3 + first);
            // Of several frames those that are left empty are of no use.
            store.linearize(&mut skb);
            // Code that looks at ports must not take them for those of the whole.
            let head = skb.head_mut();
            (head.hash, head.l4, head.protocol) = (0, 0, 0);
            if let Some(packet) = skb.data_mut().get_mut(l3..) {
                renew(packet, last_more || !rest.is_empty(), None);
            }
            match rest.push_front(skb) {
                Ok(()) => Ok(rest),
                Err(skb) => {
                    // Of another region than this store's.
                    give_back(store, rest);
                    Err((skb, DropReason::NoFrame))
                }
            }
        }
        Err(reason) => {
            give_back(store, rest);
            Err((skb, reason))
        }
    }
}

/// Writes all fragments but the first. Returns how long that is, with its header, and whether the packet was a fragment
/// itself that others follow.
fn write_rest(
    store: &mut Store,
    skb: &Skb,
    mtu: usize,
    rest: &mut SkbList,
) -> Result<(usize, bool), DropReason> {
    let l3 = usize::from(skb.head().l3);
    let packet = skb.data().get(l3..).ok_or(DropReason::PktTooSmall)?;
    let lengths = validate_part(packet, skb.len() - l3)?;
    let fields = Ipv4Header::new(packet).ok_or(DropReason::PktTooSmall)?;
    let room = mtu.saturating_sub(lengths.header) & !7;
    if room == 0 || fields.dont_fragment() {
        return Err(DropReason::PktTooBig);
    }
    let (header, payload) = (&packet[..lengths.header], lengths.total - lengths.header);
    if usize::from(fields.fragment_offset()) * 8 + lengths.total > usize::from(u16::MAX) {
        // The offsets of its parts could not be written.
        return Err(DropReason::FragInvalid);
    }
    let mut copied = [0; 60];
    let len = copied_header(header, &mut copied);
    let (first_offset, last_more) = (usize::from(fields.fragment_offset()), fields.more_fragments());
    let mut at = room.min(payload);
    // Their headers may be shorter, but then there is little to gain from pieces of other sizes.
    while at < payload {
        let n = room.min(payload - at);
        let mut piece = blank(store, len + n).ok_or(DropReason::NoFrame)?;
        if let Some(data) = piece.data_mut().get_mut(ETH_LEN..) {
            data[..len].copy_from_slice(&copied[..len]);
            skb.copy_bits(l3 + lengths.header + at, &mut data[len..]);
            let more = last_more || at + n < payload;
            renew(data, more, Some((first_offset + at / 8) as u16));
        }
        piece.head_mut().copy_metadata(skb.head());
        rest.push_back(piece).map_err(drop).ok();
        at += n;
    }
    Ok((lengths.header + room.min(payload), last_more))
}

/// Brings a fragment's header up to date: its length is that of `packet`.
fn renew(packet: &mut [u8], more: bool, offset: Option<u16>) {
    let total = packet.len() as u16;
    let Some(mut fields) = Ipv4Header::new_mut(packet) else { return };
    let offset = offset.unwrap_or(fields.fragment_offset());
    fields.set_total_len(total);
    fields.set_fragment(false, more, offset);
    fields.set_check(0);
    let len = fields.header_len();
    let check = checksum::checksum(packet.get(..len).unwrap_or_default());
    if let Some(mut fields) = Ipv4Header::new_mut(packet) {
        fields.set_check(check);
    }
}

/// Writes what the header of a later fragment is to have of `header`: of the options those with the copied flag (RFC 791
/// section 3.1). Returns how long it is.
fn copied_header(header: &[u8], to: &mut [u8; 60]) -> usize {
    let (fixed, mut options) = header.split_at(MIN_LEN.min(header.len()));
    to[..fixed.len()].copy_from_slice(fixed);
    let mut len = fixed.len();
    while let [kind, more @ ..] = options {
        let size = match (kind, more) {
            (0, _) => break,
            (1, _) => 1,
            (_, [size, ..]) => usize::from(*size).max(2),
            (_, []) => break,
        };
        let Some((option, rest)) = options.split_at_checked(size) else { break };
        if kind & 0x80 != 0 {
            to[len..len + size].copy_from_slice(option);
            len += size;
        }
        options = rest;
    }
    // Padded with ends of options.
    let padded = len.next_multiple_of(4).min(to.len());
    to[len..padded].fill(0);
    to[0] = 0x40 | (padded / 4) as u8;
    padded
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "fragment_tests.rs"]
mod tests;
