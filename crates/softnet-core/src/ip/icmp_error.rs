//! ICMP errors that come in (RFC 792, RFC 4443): what they complain about, and about which packet.
//!
//! For the sender of that packet. An error may come from any host, so nothing vouches for it but the quote: it
//! is to be believed only if the packet quoted is one that was really sent, and that is the sender's to say. The quote
//! is what the network made of the packet, so its checksums are not looked at.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::checksum;
use super::v4::header::Ipv4Header;

/// Bytes of an ICMP header.
const ICMP_LEN: usize = 8;

/// What went wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No route to it, or no entry for it.
    NetUnreachable,
    /// Its host does not answer, or can't be reached for whatever reason.
    HostUnreachable,
    /// Its host does not serve the protocol.
    ProtocolUnreachable,
    /// Its host does not serve the port.
    PortUnreachable,
    /// A filter does not let it pass.
    Prohibited,
    /// It was too long.
    PacketTooBig {
        /// What would have fitted, from the IP header on; 0 if it was not said (RFC 1191 section 5).
        mtu: u32,
    },
    /// Its time to live ran out on the way.
    TimeExceeded,
    /// Its fragments did not all arrive.
    ReassemblyTimeExceeded,
    /// Its header could not be understood.
    ParameterProblem,
}

/// What an error says of the packet it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quote {
    /// Its source: an address of ours, if the error is meant for us.
    pub src: IpAddr,
    /// Its destination.
    pub dst: IpAddr,
    /// Its protocol.
    pub protocol: u8,
    /// Its length in bytes, from the IP header on.
    pub len: u16,
    /// The first eight bytes behind its IP header. `None` if it was not the first fragment.
    pub transport: Option<[u8; 8]>,
}

impl Quote {
    /// Its source and destination port, if it was of a protocol that has them.
    pub fn ports(&self) -> Option<(u16, u16)> {
        let [a, b, c, d, ..] = self.transport.filter(|_| matches!(self.protocol, 6 | 17))?;
        Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
    }
}

/// What the ICMP `message` complains about. `None` if it is no error, is damaged, or quotes too little.
pub fn icmp_error(message: &[u8]) -> Option<(Problem, Quote)> {
    let (&[kind, code, _, _, _, _, high, low], quoted) = message.split_first_chunk::<ICMP_LEN>()?;
    let problem = match (kind, code) {
        (3, 0 | 6 | 11) => Problem::NetUnreachable,
        (3, 2) => Problem::ProtocolUnreachable,
        (3, 3) => Problem::PortUnreachable,
        (3, 4) => Problem::PacketTooBig { mtu: u16::from_be_bytes([high, low]).into() },
        (3, 9 | 10 | 13) => Problem::Prohibited,
        (3, _) => Problem::HostUnreachable,
        (11, 0) => Problem::TimeExceeded,
        (11, 1) => Problem::ReassemblyTimeExceeded,
        (12, _) => Problem::ParameterProblem,
        _ => return None,
    };
    if checksum::sum(message) != 0xffff {
        return None;
    }
    let header = Ipv4Header::new(quoted)?;
    let transport = quoted.get(header.header_len()..).filter(|_| header.header_len() >= 20)?;
    let quote = Quote {
        src: Ipv4Addr::from(header.src()).into(),
        dst: Ipv4Addr::from(header.dst()).into(),
        protocol: header.protocol(),
        len: header.total_len(),
        transport: match header.fragment_offset() {
            0 => Some(*transport.first_chunk()?),
            _ => None,
        },
    };
    (header.version() == 4).then_some((problem, quote))
}

/// What the ICMPv6 `message`, whose checksum is right, complains about. `None` if it is no error or quotes too little.
pub fn icmpv6_error(message: &[u8]) -> Option<(Problem, Quote)> {
    let (&[kind, code, _, _, a, b, c, d], quoted) = message.split_first_chunk::<ICMP_LEN>()?;
    let problem = match (kind, code) {
        (1, 0) => Problem::NetUnreachable,
        (1, 1 | 5 | 6) => Problem::Prohibited,
        (1, 4) => Problem::PortUnreachable,
        (1, _) => Problem::HostUnreachable,
        (2, _) => Problem::PacketTooBig { mtu: u32::from_be_bytes([a, b, c, d]) },
        (3, 0) => Problem::TimeExceeded,
        (3, 1) => Problem::ReassemblyTimeExceeded,
        // That the next header is none it knows.
        (4, 1) => Problem::ProtocolUnreachable,
        (4, _) => Problem::ParameterProblem,
        _ => return None,
    };
    let header: &[u8; 40] = quoted.first_chunk().filter(|header| header[0] >> 4 == 6)?;
    let address =
        |at: usize| header[at..].first_chunk().map(|bytes: &[u8; 16]| IpAddr::from(Ipv6Addr::from(*bytes)));
    let (protocol, at, first) = transport_of(quoted)?;
    let quote = Quote {
        src: address(8)?,
        dst: address(24)?,
        protocol,
        len: u16::from_be_bytes([header[4], header[5]]).saturating_add(40),
        transport: match first {
            true => Some(*quoted.get(at..)?.first_chunk()?),
            false => None,
        },
    };
    Some((problem, quote))
}

/// The protocol of an IPv6 packet behind those of its extension headers that a sender here may have put there, where its
/// header begins, and whether it is in this packet, as in the first of its fragments.
fn transport_of(packet: &[u8]) -> Option<(u8, usize, bool)> {
    let (mut kind, mut at, mut first) = (*packet.get(6)?, 40, true);
    for _ in 0..8 {
        let header = match kind {
            0 | 43 | 44 | 60 => packet.get(at..)?.first_chunk::<8>()?,
            _ => return Some((kind, at, first)),
        };
        let len = match kind {
            44 => {
                first = first && u16::from_be_bytes([header[2], header[3]]) & !7 == 0;
                8
            }
            _ => (usize::from(header[1]) + 1) * 8,
        };
        (kind, at) = (header[0], at + len);
        if !first {
            return Some((kind, at, first));
        }
    }
    None
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const THEM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);

    fn quoted(protocol: u8, word: u16, transport: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 20];
        let mut header = Ipv4Header::new_mut(&mut packet).unwrap();
        header.fill(1234, 7, 1, protocol, US.into(), THEM.into());
        header.set_fragment(word >> 14 & 1 != 0, word >> 13 & 1 != 0, word & 0x1fff);
        // What it came to on the way; and that is not checked.
        header.set_check(0xdead);
        packet.extend(transport);
        packet
    }

    fn error(kind: u8, code: u8, rest: u32, quoted: &[u8]) -> Vec<u8> {
        let mut message = [&[kind, code, 0, 0][..], &rest.to_be_bytes(), quoted].concat();
        let check = checksum::checksum(&message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        message
    }

    const TRANSPORT: [u8; 8] = [0x12, 0x34, 0, 53, 0, 20, 0, 0];

    #[test]
    fn every_kind() {
        for (kind, code, rest, want) in [
            (3, 0, 0, Some(Problem::NetUnreachable)),
            (3, 1, 0, Some(Problem::HostUnreachable)),
            (3, 2, 0, Some(Problem::ProtocolUnreachable)),
            (3, 3, 0, Some(Problem::PortUnreachable)),
            (3, 4, 1400, Some(Problem::PacketTooBig { mtu: 1400 })),
            (3, 4, 0xffff_0000, Some(Problem::PacketTooBig { mtu: 0 })),
            (3, 13, 0, Some(Problem::Prohibited)),
            (3, 99, 0, Some(Problem::HostUnreachable)),
            (11, 0, 0, Some(Problem::TimeExceeded)),
            (11, 1, 0, Some(Problem::ReassemblyTimeExceeded)),
            (12, 0, 0, Some(Problem::ParameterProblem)),
            (11, 2, 0, None),
            (0, 0, 0, None),
            (8, 0, 0, None),
            (5, 1, 0, None),
        ] {
            let said = icmp_error(&error(kind, code, rest, &quoted(17, 0, &TRANSPORT)));
            assert_eq!(said.map(|(problem, _)| problem), want, "{kind} {code}");
        }
    }

    #[test]
    fn the_quote() {
        let of = |quoted: &[u8]| icmp_error(&error(3, 3, 0, quoted)).map(|(_, quote)| quote);
        let quote = of(&quoted(17, 0x4000, &TRANSPORT)).unwrap();
        assert_eq!((quote.src, quote.dst, quote.protocol, quote.len), (US.into(), THEM.into(), 17, 1234));
        assert_eq!((quote.ports(), quote.transport), (Some((0x1234, 53)), Some(TRANSPORT)));
        assert_eq!(of(&quoted(1, 0, &TRANSPORT)).unwrap().ports(), None);
        // Of a later fragment, there is no transport header to be had.
        let later = of(&quoted(17, 9, &TRANSPORT)).unwrap();
        assert_eq!((later.ports(), later.transport), (None, None));
        assert_eq!(of(&quoted(17, 0, &TRANSPORT[..7])), None);
        assert_eq!(of(&quoted(17, 0, &[])[..19]), None);
        // Options are stepped over.
        let mut with_options = quoted(17, 0, &[[1, 1, 1, 1, 0, 0, 0, 0], TRANSPORT].concat());
        with_options[0] = 0x47;
        assert_eq!(of(&with_options).unwrap().transport, Some(TRANSPORT));
        for first in [0x44, 0x65, 0x4f] {
            with_options[0] = first;
            assert_eq!(of(&with_options), None);
        }
        let mut damaged = error(3, 3, 0, &quoted(17, 0, &TRANSPORT));
        damaged[30] ^= 1;
        assert_eq!(icmp_error(&damaged), None);
    }

    fn quoted6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 5, 0, next, 1];
        packet.extend([0xfd; 16]);
        packet.extend([0xfc; 16]);
        packet.extend(rest);
        packet
    }

    #[test]
    fn of_ipv6() {
        for (kind, code, rest, want) in [
            (1, 0, 0, Some(Problem::NetUnreachable)),
            (1, 1, 0, Some(Problem::Prohibited)),
            (1, 3, 0, Some(Problem::HostUnreachable)),
            (1, 4, 0, Some(Problem::PortUnreachable)),
            (2, 0, 1280, Some(Problem::PacketTooBig { mtu: 1280 })),
            (3, 0, 0, Some(Problem::TimeExceeded)),
            (3, 1, 0, Some(Problem::ReassemblyTimeExceeded)),
            (4, 0, 0, Some(Problem::ParameterProblem)),
            (4, 1, 0, Some(Problem::ProtocolUnreachable)),
            (128, 0, 0, None),
            (135, 0, 0, None),
        ] {
            let said = icmpv6_error(&error(kind, code, rest, &quoted6(17, &TRANSPORT)));
            assert_eq!(said.map(|(problem, _)| problem), want, "{kind} {code}");
        }
        let of = |quoted: &[u8]| icmpv6_error(&error(1, 4, 0, quoted)).map(|(_, quote)| quote);
        let quote = of(&quoted6(17, &TRANSPORT)).unwrap();
        assert_eq!((quote.src, quote.dst), ([0xfd; 16].into(), [0xfc; 16].into()));
        assert_eq!((quote.protocol, quote.len, quote.ports()), (17, 1320, Some((0x1234, 53))));
        // Behind headers; in the first fragment, and in a later one.
        let behind = [&[44, 0, 1, 4, 0, 0, 0, 0][..], &[17, 0, 0, 1, 0, 0, 0, 9], &TRANSPORT].concat();
        assert_eq!(of(&quoted6(0, &behind)).unwrap().ports(), Some((0x1234, 53)));
        let later = [&[17, 0, 0, 8, 0, 0, 0, 9][..], &TRANSPORT].concat();
        assert_eq!(of(&quoted6(44, &later)).unwrap().transport, None);
        assert_eq!(of(&quoted6(17, &TRANSPORT[..7])), None);
        assert_eq!(of(&quoted6(17, &TRANSPORT)[1..]), None);
    }

    proptest! {
        #[test]
        fn any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0u8..13, six: bool) {
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            if bytes.len() >= 4 {
                bytes[2..4].fill(0);
                let check = checksum::checksum(&bytes);
                bytes[2..4].copy_from_slice(&check.to_be_bytes());
            }
            let said = if six { icmpv6_error(&bytes) } else { icmp_error(&bytes) };
            if let Some((_, quote)) = said {
                prop_assert_eq!(quote.src.is_ipv6(), six);
            }
        }
    }
}
