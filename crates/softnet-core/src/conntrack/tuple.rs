//! What the packets of one direction of a connection have in common: addresses, ports and protocol.
//!
//! Plain values that any code may make; [`Tuple::of`] reads one from a packet. ICMP queries have
//! their identifier for the port of the side that asked, and 0 for that of the other (RFC 5508
//! section 3): so the answer's tuple is the inverse of the question's.
//!
//! Those of IPv6 have keyed hashes in the place of addresses, see `Tuple::folded`; they are made by
//! the table, which has the key.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::ip::ETH_LEN;
use crate::ip::v4::header::{MIN_LEN, protocol};
use crate::skb::Skb;

/// Bytes of an L4 header that must be there: all of UDP's and ICMP's.
pub(crate) const L4_MIN: usize = 8;
/// Of TCP's: without options.
const TCP_MIN: usize = 20;

/// Marks the tuple of an IPv6 packet.
const IPV6: u64 = 1 << 8;
/// Bits of `rest` that such a tuple has for both addresses together, and where.
const BOTH: u64 = (1 << 23) - 1;
const BOTH_AT: u32 = 9;

/// Addresses, ports and protocol of a packet, in two words.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source address in the upper half, destination address in the lower.
    pub(super) addrs: u64,
    /// Source port, destination port (16 bits each), then the protocol in the lowest byte. Never 0
    /// in a tuple of a packet.
    pub(super) rest: u64,
}

impl Tuple {
    /// From `src` to `dst`, by `protocol`.
    #[inline(always)]
    pub fn new(protocol: u8, src: (u32, u16), dst: (u32, u16)) -> Self {
        Tuple {
            addrs: u64::from(src.0) << 32 | u64::from(dst.0),
            rest: u64::from(src.1) << 48 | u64::from(dst.1) << 32 | u64::from(protocol),
        }
    }

    /// The same between socket addresses.
    pub fn between(protocol: u8, src: SocketAddrV4, dst: SocketAddrV4) -> Self {
        let end = |addr: SocketAddrV4| (addr.ip().to_bits(), addr.port());
        Tuple::new(protocol, end(src), end(dst))
    }

    /// That of a TCP or UDP packet, or of an ICMP query, over IPv4, whose head says where its L4
    /// header is. `None` of a fragment, any other packet, or one whose L4 header is not whole in
    /// its first frame.
    #[inline(always)]
    pub fn of(skb: &Skb) -> Option<Self> {
        let (head, data) = skb.parts();
        let (l4, number) = (usize::from(head.l4), head.protocol);
        // Nearly all are without options.
        if l4 == ETH_LEN + MIN_LEN {
            let (_, rest) = data.split_first_chunk::<ETH_LEN>()?;
            let (header, rest) = rest.split_first_chunk::<MIN_LEN>()?;
            return Self::read(header, number, rest.first_chunk()?, rest.len());
        }
        let header = data.get(ETH_LEN..)?.first_chunk()?;
        let rest = data.get(l4..).filter(|_| l4 != 0)?;
        Self::read(header, number, rest.first_chunk()?, rest.len())
    }

    /// That of the packet that an ICMP error quotes, which begins at its IPv4 header; with where
    /// its L4 header begins.
    pub fn quoted(packet: &[u8]) -> Option<(Self, usize)> {
        let header: &[u8; MIN_LEN] = packet.first_chunk()?;
        let at = usize::from(header[0] & 15) * 4;
        // Of a later fragment there are no ports.
        if at < MIN_LEN || header[6] & 0x1f != 0 || header[7] != 0 {
            return None;
        }
        // Eight bytes of the L4 header are all that must be quoted (RFC 792).
        let tuple = Self::read(header, header[9], packet.get(at..)?.first_chunk()?, TCP_MIN)?;
        Some((tuple, at))
    }

    #[inline(always)]
    fn read(header: &[u8; MIN_LEN], number: u8, l4: &[u8; L4_MIN], len: usize) -> Option<Self> {
        let [first, .., a, b, c, d, e, f, g, h] = *header;
        let addrs = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let [s0, s1, d0, d1, i0, i1, ..] = *l4;
        let ports = match number {
            protocol::UDP => u32::from_be_bytes([s0, s1, d0, d1]),
            protocol::TCP if len >= TCP_MIN => u32::from_be_bytes([s0, s1, d0, d1]),
            protocol::ICMP => query_ports(s0, u16::from_be_bytes([i0, i1]))?,
            _ => return None,
        };
        (first >> 4 == 4).then_some(Tuple { addrs, rest: u64::from(ports) << 32 | u64::from(number) })
    }

    /// That of packets in the other direction.
    #[inline(always)]
    pub fn inverse(self) -> Self {
        Tuple {
            addrs: self.addrs.rotate_left(32),
            rest: self.rest << 16 & 0xffff << 48 | self.rest >> 16 & 0xffff << 32 | self.rest & 0xffff_ffff,
        }
    }

    /// That of an IPv6 packet between addresses with the keyed hashes `src` and `dst`. Of each it
    /// has the upper half, and 23 bits of the lower halves of both: for a packet to be taken for
    /// one of a connection that it is not of, its sender must find an address of which 55 bits of a
    /// hash with a secret key are right.
    #[inline]
    pub(crate) fn folded(protocol: u8, ports: u32, src: u64, dst: u64) -> Self {
        let both = (src ^ dst) & BOTH;
        Tuple {
            addrs: src & 0xffff_ffff << 32 | dst >> 32,
            rest: u64::from(ports) << 32 | both << BOTH_AT | IPV6 | u64::from(protocol),
        }
    }

    /// Whether it is of IPv6: then its addresses are no addresses.
    #[inline(always)]
    pub fn is_ipv6(self) -> bool {
        self.rest & IPV6 != 0
    }

    /// IANA's number of the protocol.
    #[inline(always)]
    pub fn protocol(self) -> u8 {
        self.rest as u8
    }

    /// Address and port of the source.
    #[inline(always)]
    pub fn src(self) -> (u32, u16) {
        ((self.addrs >> 32) as u32, (self.rest >> 48) as u16)
    }

    /// Address and port of the destination.
    #[inline(always)]
    pub fn dst(self) -> (u32, u16) {
        (self.addrs as u32, (self.rest >> 32) as u16)
    }
}

impl std::fmt::Debug for Tuple {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [src, dst] =
            [self.src(), self.dst()].map(|(addr, port)| SocketAddrV4::new(Ipv4Addr::from_bits(addr), port));
        write!(f, "{src}>{dst}/{}", self.protocol())
    }
}

/// The ports that stand for the identifier `id` of an ICMP message of type `kind`; `None` if that
/// is not of a query.
#[inline(always)]
pub(crate) fn query_ports(kind: u8, id: u16) -> Option<u32> {
    match kind {
        // Echo, timestamp, information, address mask: the questions.
        8 | 13 | 15 | 17 => Some(u32::from(id) << 16),
        // And their answers.
        0 | 14 | 16 | 18 => Some(u32::from(id)),
        _ => None,
    }
}
