//! A datagram in a packet: its headers, and its payload as sockets hand it out.
//!
//! Pure. Called by [input](super::input), and by the receiving side of sockets.

use std::net::Ipv6Addr;

use super::super::inbox::Message;
use super::super::key::{ANY, Addr, Flow, mapped};
use super::super::scope::scoped;
use crate::SoftnetData;
use crate::ip::v4::header::{Ipv4Header, protocol};
use crate::ip::v6::header::{Ipv6Header, LEN as IPV6_LEN};
use crate::skb::{DropReason, Flags, Skb};

/// Bytes of a UDP header.
pub const UDP_LEN: usize = 8;

/// What stands in for the flow of a datagram before it is read.
pub(super) const NO_FLOW: Flow =
    Flow { local: ANY, remote: ANY, lport: 0, rport: 0, protocol: protocol::UDP };

/// The headers of a datagram.
#[derive(Clone, Copy)]
pub(super) struct Parsed {
    pub(super) flow: Flow,
    pub(super) l3: usize,
    pub(super) l4: usize,
    /// Bytes of UDP header and payload.
    pub(super) len: usize,
}

impl Parsed {
    /// Offset of the payload in the packet.
    fn payload_at(&self) -> usize {
        self.l4 + UDP_LEN
    }

    /// Bytes of the payload.
    fn payload_len(&self) -> usize {
        self.len - UDP_LEN
    }
}

/// Our end and the remote end of an IP packet received by device `dev`, and its length.
#[inline(always)]
pub(in crate::sock) fn ends(packet: &[u8], dev: u16) -> Result<(Addr, Addr, usize), DropReason> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => {
            let ip = Ipv4Header::new(packet).ok_or(DropReason::PktTooSmall)?;
            Ok((mapped(ip.dst()), mapped(ip.src()), usize::from(ip.total_len())))
        }
        Some(6) => {
            let ip = Ipv6Header::new(packet).ok_or(DropReason::PktTooSmall)?;
            let addr = |addr: Ipv6Addr| scoped(addr.to_bits(), dev);
            Ok((addr(ip.dst()), addr(ip.src()), IPV6_LEN + usize::from(ip.payload_len())))
        }
        _ => Err(DropReason::PktTooSmall),
    }
}

/// Reads the headers of a datagram.
#[inline(always)]
pub(super) fn parse(skb: &Skb) -> Result<Parsed, DropReason> {
    let (data, head) = (skb.data(), skb.head());
    let (l3, l4) = (usize::from(head.l3), usize::from(head.l4));
    let (local, remote, total) = ends(data.get(l3..).unwrap_or_default(), head.dev)?;
    let udp: &[u8; UDP_LEN] =
        data.get(l4..).and_then(|udp| udp.first_chunk()).ok_or(DropReason::PktTooSmall)?;
    let word = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
    let len = usize::from(word(4));
    if len < UDP_LEN || l4 + len > l3 + total || head.protocol != protocol::UDP {
        return Err(DropReason::PktTooSmall);
    }
    let flow = Flow { local, remote, lport: word(2), rport: word(0), protocol: protocol::UDP };
    Ok(Parsed { flow, l3, l4, len })
}

/// A received datagram, and the place of its payload in the packet.
pub struct Datagram {
    skb: Skb,
    flow: Flow,
    at: usize,
    len: usize,
}

impl Datagram {
    /// Its source and destination.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// The device that it came by; `None` if it was sent here.
    pub fn dev(&self) -> Option<u16> {
        let head = self.skb.head();
        (head.flags & Flags::ORIGINATED == 0).then_some(head.dev)
    }

    /// Its IP packet; the first bytes of one that came in fragments.
    fn packet(&self) -> &[u8] {
        self.skb.data().get(usize::from(self.skb.head().l3)..).unwrap_or_default()
    }

    /// Type of service or traffic class that it came with: DSCP and ECN (`IP_TOS`, `IPV6_TCLASS`).
    #[inline]
    pub fn tos(&self) -> u8 {
        let packet = self.packet();
        match packet.first().map(|first| first >> 4) {
            Some(4) => Ipv4Header::new(packet).map_or(0, |ip| ip.tos()),
            _ => Ipv6Header::new(packet).map_or(0, |ip| ip.traffic_class()),
        }
    }

    /// Time to live or hop limit that it came with (`IP_TTL`, `IPV6_HOPLIMIT`).
    #[inline]
    pub fn ttl(&self) -> u8 {
        let packet = self.packet();
        match packet.first().map(|first| first >> 4) {
            Some(4) => Ipv4Header::new(packet).map_or(0, |ip| ip.ttl()),
            _ => Ipv6Header::new(packet).map_or(0, |ip| ip.hop_limit()),
        }
    }

    /// Index of its skb.
    #[cfg(all(test, feature = "loom"))]
    pub(in crate::sock) fn index(&self) -> u32 {
        self.skb.index()
    }

    /// Bytes of its payload.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no payload.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its payload, piece by piece. A datagram that fits a frame and was not fragmented is one
    /// piece.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.skb.pieces(self.at, self.len)
    }

    /// Copies as much of its payload as fits. Returns the number of bytes copied.
    #[inline]
    pub fn copy_to(&self, buffer: &mut [u8]) -> usize {
        let n = buffer.len().min(self.len);
        self.skb.copy_bits(self.at, &mut buffer[..n]);
        n
    }

    /// Frees it.
    #[inline]
    pub fn free(self, ctx: &mut SoftnetData) {
        ctx.free_skb(self.skb);
    }
}

impl Message for Datagram {
    const PROTOCOL: u8 = protocol::UDP;

    #[inline]
    fn read(skb: Skb) -> Result<Self, Skb> {
        match parse(&skb) {
            Ok(parsed) => {
                Ok(Datagram { flow: parsed.flow, at: parsed.payload_at(), len: parsed.payload_len(), skb })
            }
            Err(_) => Err(skb),
        }
    }

    #[inline]
    fn flow(&self) -> &Flow {
        &self.flow
    }

    #[inline]
    fn into_skb(self) -> Skb {
        self.skb
    }
}
