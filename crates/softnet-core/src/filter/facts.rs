//! What rules look at in a packet, but for addresses and devices.
//!
//! For the hook, whose packets have sound IP headers, and heads that say where the L4 header is,
//! unless they are fragments. Only the first frame is looked at.

use crate::ip::ETH_LEN;
use crate::ip::v4::header::{Ipv4Header, protocol};
use crate::ip::v6::header::{Ipv6Header, LEN, MAX_EXTENSIONS, next, upper};
use crate::skb::Skb;

/// Bytes that an L4 header has at the least.
const TCP_MIN: usize = 20;
const UDP_MIN: usize = 8;
const ICMP_MIN: usize = 8;
/// Bytes of an SCTP common header.
const SCTP_MIN: usize = 12;
const DCCP: u8 = 33;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;
/// TCP flags that are looked at, and the one of them that opens a connection.
const FLAGS: u8 = 0b1_0111;
const SYN: u8 = 0b0_0010;

/// What the L4 header says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum L4 {
    /// Nothing that rules ask for.
    #[default]
    Other,
    /// Source and destination port, and whether it is TCP that opens a connection.
    Ports(u16, u16, bool),
    /// The type of a message of ICMP or ICMPv6.
    Icmp(u8),
}

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) protocol: u8,
    pub(super) l4: L4,
}

/// The L4 header is cut off, or may be overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut;

impl Facts {
    /// Of the packet in `skb`.
    #[inline(always)]
    pub(super) fn of(skb: &Skb) -> Result<Facts, Cut> {
        let head = skb.head();
        match head.l4 {
            0 => Facts::odd(skb.data().get(ETH_LEN..).unwrap_or_default()),
            at => Facts::read(head.protocol, skb.data().get(usize::from(at)..).unwrap_or_default()),
        }
    }

    /// Of a packet of which nothing is known, which begins at its IP header.
    #[cfg(any(test, fuzzing))]
    pub(super) fn of_packet(packet: &[u8]) -> Result<Facts, Cut> {
        Facts::odd(packet)
    }

    /// Of a packet with an L4 header of this protocol.
    #[inline(always)]
    fn read(number: u8, header: &[u8]) -> Result<Facts, Cut> {
        let ports = |header: &[u8]| {
            let [a, b, c, d] = *header.first_chunk()?;
            Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
        };
        let l4 = match number {
            protocol::TCP => header.first_chunk::<TCP_MIN>().and_then(|header| {
                let (src, dst) = ports(header)?;
                Some(L4::Ports(src, dst, header[13] & FLAGS == SYN))
            }),
            protocol::UDP | UDP_LITE => header.first_chunk::<UDP_MIN>().and_then(|header| {
                let (src, dst) = ports(header)?;
                Some(L4::Ports(src, dst, false))
            }),
            SCTP | DCCP => header.first_chunk::<SCTP_MIN>().and_then(|header| {
                let (src, dst) = ports(header)?;
                Some(L4::Ports(src, dst, false))
            }),
            protocol::ICMP | next::ICMPV6 => {
                header.first_chunk::<ICMP_MIN>().map(|header| L4::Icmp(header[0]))
            }
            _ => Some(L4::Other),
        };
        l4.map(|l4| Facts { protocol: number, l4 }).ok_or(Cut)
    }

    /// Of a fragment, or of a packet that ends before its L4 header.
    #[cold]
    fn odd(packet: &[u8]) -> Result<Facts, Cut> {
        match packet.first().map(|first| first >> 4) {
            Some(6) => Facts::odd6(packet),
            _ => Facts::odd4(packet),
        }
    }

    fn odd4(packet: &[u8]) -> Result<Facts, Cut> {
        let header = Ipv4Header::new(packet).ok_or(Cut)?;
        let rest = packet.get(header.header_len()..).ok_or(Cut)?;
        match header.fragment_offset() {
            0 => Facts::read(header.protocol(), rest),
            // It could overwrite the flags of the first one's header (RFC 3128).
            1 if header.protocol() == protocol::TCP => Err(Cut),
            _ => Ok(Facts { protocol: header.protocol(), l4: L4::Other }),
        }
    }

    fn odd6(packet: &[u8]) -> Result<Facts, Cut> {
        let Ok(behind) = upper(packet) else { return Err(Cut) };
        let rest = packet.get(behind.at..).ok_or(Cut)?;
        if behind.protocol != next::FRAGMENT {
            return Facts::read(behind.protocol, rest);
        }
        let (&[number, _, high, low, ..], mut rest) = rest.split_first_chunk::<8>().ok_or(Cut)?;
        let mut number = number;
        match u16::from_be_bytes([high, low]) >> 3 {
            0 => {}
            1 if number == protocol::TCP => return Err(Cut),
            _ => return Ok(Facts { protocol: number, l4: L4::Other }),
        }
        // All headers must be in the first fragment (RFC 7112).
        for _ in 0..MAX_EXTENSIONS {
            if !matches!(number, next::DESTINATION | next::ROUTING) {
                return Facts::read(number, rest);
            }
            let (&[following, len], _) = rest.split_first_chunk::<2>().ok_or(Cut)?;
            (number, rest) = (following, rest.get((usize::from(len) + 1) * 8..).ok_or(Cut)?);
        }
        Err(Cut)
    }
}

/// Whether a packet is neighbour discovery that came from the link (RFC 4861).
#[inline(always)]
pub(super) fn is_discovery(skb: &Skb) -> bool {
    let head = skb.head();
    head.protocol == next::ICMPV6 && is_discovery_at(skb.data(), usize::from(head.l4))
}

#[cold]
fn is_discovery_at(data: &[u8], l4: usize) -> bool {
    let header = data.get(ETH_LEN..).and_then(Ipv6Header::new);
    let from_link = header.is_some_and(|header| header.version() == 6 && header.hop_limit() == 255);
    from_link && l4 >= ETH_LEN + LEN && matches!(data.get(l4), Some(133..=137))
}

/// Reads the facts of any bytes, for the fuzzer: ports come only of packets that have them.
#[cfg(any(test, fuzzing))]
pub fn fuzz(packet: &[u8]) {
    let Ok(facts) = Facts::of_packet(packet) else { return };
    match facts.l4 {
        L4::Ports(.., syn) => {
            assert!(matches!(facts.protocol, protocol::TCP | protocol::UDP | UDP_LITE | SCTP | DCCP));
            assert!(!syn || facts.protocol == protocol::TCP);
        }
        L4::Icmp(_) => assert!(matches!(facts.protocol, protocol::ICMP | next::ICMPV6)),
        L4::Other => {}
    }
    if packet[0] >> 4 != 6 {
        let later = Ipv4Header::new(packet).is_some_and(|header| header.fragment_offset() != 0);
        assert!(!later || facts.l4 == L4::Other);
    }
}
