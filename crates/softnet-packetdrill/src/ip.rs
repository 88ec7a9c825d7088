//! Packets as bytes: IPv4 and IPv6 headers, checksums, and what an ICMP error quotes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use softnet_tcp::isn::Tuple;
use softnet_tcp::{Emit, Flags, Segment, Seq};

const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// What a packet that came in holds.
#[derive(Debug)]
pub(crate) enum Packet {
    /// A segment, and its payload.
    Tcp(Tuple, Segment, Vec<u8>),
    /// An error about a segment that this end sent.
    Icmp(Tuple, Quoted),
}

/// An ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quoted {
    /// The sequence number in the segment that is quoted.
    pub(crate) seq: Seq,
    pub(crate) kind: IcmpKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpKind {
    /// The path carries packets of so many bytes.
    TooBig(u32),
    PortUnreachable,
    ProtocolUnreachable,
    NetUnreachable,
    HostUnreachable,
}

/// The packet of `emit`'s segment whose payload is `payload`.
pub(crate) fn build(tuple: &Tuple, emit: &Emit, payload: &[u8], tos: u8, ident: u16) -> Vec<u8> {
    let mut header = [0; softnet_tcp::wire::MAX_HEADER];
    let header_len = emit.write_header((tuple.local_port, tuple.remote_port), &mut header);
    let tcp_len = header_len + payload.len();
    let mut packet = Vec::with_capacity(40 + tcp_len);
    let tos = if emit.ect { (tos & !3) | 2 } else { tos & !3 };
    match (tuple.local, tuple.remote) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            packet.extend([0x45, tos]);
            packet.extend(((20 + tcp_len) as u16).to_be_bytes());
            packet.extend(ident.to_be_bytes());
            packet.extend([0x40, 0, 64, TCP, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            let sum = checksum(&packet, 0);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (from, to) => {
            packet.extend([0x60 | tos >> 4, tos << 4, 0, 0]);
            packet.extend((tcp_len as u16).to_be_bytes());
            packet.extend([TCP, 64]);
            packet.extend(v6(from).octets());
            packet.extend(v6(to).octets());
        }
    }
    let at = packet.len();
    packet.extend(&header[..header_len]);
    packet.extend(payload);
    let sum = checksum(&packet[at..], pseudo(tuple, tcp_len));
    packet[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// What the pseudo-header of a segment adds to its checksum. Both directions have the same.
fn pseudo(tuple: &Tuple, tcp_len: usize) -> u32 {
    let addresses = match (tuple.local, tuple.remote) {
        (IpAddr::V4(a), IpAddr::V4(b)) => [a.octets(), b.octets()].concat(),
        (a, b) => [v6(a).octets(), v6(b).octets()].concat(),
    };
    sum(&addresses) + u32::from(TCP) + tcp_len as u32
}

fn sum(bytes: &[u8]) -> u32 {
    let pairs = bytes.chunks(2);
    pairs.map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0))).sum()
}

fn checksum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = sum(bytes) + start;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The packet in `bytes`, seen from the end that it is for. `None`: it is damaged, or nothing that
/// TCP has to do with.
///
/// `gso_size`: larger packets stand for segments of this size, and leave the checksum to a device
/// that cuts them.
pub(crate) fn parse(bytes: &[u8], gso_size: Option<u16>) -> Option<Packet> {
    let (protocol, from, to, ce, body) = ip(bytes)?;
    match protocol {
        TCP => {
            let mut segment = Segment::parse(body).ok()?;
            let header_len = Segment::header_len(body).ok()?;
            segment.ce = ce;
            let tuple =
                Tuple { local: to, remote: from, local_port: be16(body, 2)?, remote_port: be16(body, 0)? };
            let size = gso_size.map_or(u32::MAX, u32::from).max(1);
            segment.segs = segment.len.div_ceil(size).max(1) as u16;
            let good = segment.segs > 1 || checksum(body, pseudo(&tuple, body.len())) == 0;
            good.then(|| Packet::Tcp(tuple, segment, body[header_len..].to_vec()))
        }
        ICMP | ICMPV6 => icmp(protocol, body),
        _ => None,
    }
}

/// Protocol, addresses, the congestion mark, and what follows the header.
fn ip(bytes: &[u8]) -> Option<(u8, IpAddr, IpAddr, bool, &[u8])> {
    match bytes.first()? >> 4 {
        4 => {
            let header_len = usize::from(bytes[0] & 15) * 4;
            let fixed: &[u8; 20] = bytes.first_chunk()?;
            let address =
                |at: usize| IpAddr::V4(Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]));
            let len = usize::from(be16(fixed, 2)?).min(bytes.len());
            Some((fixed[9], address(12), address(16), fixed[1] & 3 == 3, bytes.get(header_len..len)?))
        }
        6 => {
            let fixed: &[u8; 40] = bytes.first_chunk()?;
            let address = |at: usize| {
                let octets: [u8; 16] = fixed[at..at + 16].try_into().unwrap_or_default();
                IpAddr::V6(Ipv6Addr::from(octets))
            };
            let len = (40 + usize::from(be16(fixed, 4)?)).min(bytes.len());
            Some((fixed[6], address(8), address(24), (fixed[1] >> 4) & 3 == 3, bytes.get(40..len)?))
        }
        _ => None,
    }
}

fn icmp(protocol: u8, body: &[u8]) -> Option<Packet> {
    let (kind, code) = (*body.first()?, *body.get(1)?);
    let kind = match (protocol, kind, code) {
        (ICMP, 3, 4) => IcmpKind::TooBig(u32::from(be16(body, 6)?)),
        (ICMP, 3, 3) | (ICMPV6, 1, 4) => IcmpKind::PortUnreachable,
        (ICMP, 3, 2) => IcmpKind::ProtocolUnreachable,
        (ICMP, 3, 0 | 6 | 11) | (ICMPV6, 1, 0) => IcmpKind::NetUnreachable,
        (ICMP, 3, _) | (ICMPV6, 1, _) => IcmpKind::HostUnreachable,
        (ICMPV6, 2, 0) => IcmpKind::TooBig(u32::from(be16(body, 4)?) << 16 | u32::from(be16(body, 6)?)),
        _ => return None,
    };
    // What is quoted is as this end sent it, and may end within the segment.
    let quoted = body.get(8..)?;
    let (header_len, protocol, from, to) = match quoted.first()? >> 4 {
        4 => {
            let address =
                |at: usize| Some(IpAddr::V4(Ipv4Addr::from(*quoted.get(at..at + 4)?.first_chunk::<4>()?)));
            (usize::from(quoted[0] & 15) * 4, *quoted.get(9)?, address(12)?, address(16)?)
        }
        _ => {
            let address =
                |at: usize| Some(IpAddr::V6(Ipv6Addr::from(*quoted.get(at..at + 16)?.first_chunk::<16>()?)));
            (40, *quoted.get(6)?, address(8)?, address(24)?)
        }
    };
    let tcp = quoted.get(header_len..).filter(|tcp| protocol == TCP && tcp.len() >= 8)?;
    let tuple = Tuple { local: from, remote: to, local_port: be16(tcp, 0)?, remote_port: be16(tcp, 2)? };
    let seq = Seq(u32::from(be16(tcp, 4)?) << 16 | u32::from(be16(tcp, 6)?));
    Some(Packet::Icmp(tuple, Quoted { seq, kind }))
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The packets of a super-segment: each of the segment size, PSH and FIN on the last of them, CWR
/// on the first.
pub(crate) fn cut(emit: &Emit) -> impl Iterator<Item = (Emit, std::ops::Range<u32>)> + use<> {
    let (emit, mss) = (*emit, u32::from(emit.mss.max(1)));
    let count = emit.segs();
    (0..count).map(move |i| {
        let range = i * mss..(i * mss + mss).min(emit.len);
        let mut part = emit;
        part.seq = emit.seq + if i == 0 { 0 } else { range.start + u32::from(emit.flags.any(Flags::SYN)) };
        part.len = range.end - range.start;
        if i + 1 < count {
            part.flags = part.flags.without(Flags::FIN | Flags::PSH);
        }
        if i > 0 {
            part.flags = part.flags.without(Flags::CWR);
        }
        (part, range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(v6: bool) -> Tuple {
        let [local, remote] = if v6 { ["fd::1", "fd::2"] } else { ["192.0.2.1", "192.0.2.2"] };
        Tuple {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
            local_port: 80,
            remote_port: 4000,
        }
    }

    fn turned(tuple: &Tuple) -> Tuple {
        Tuple {
            local: tuple.remote,
            remote: tuple.local,
            local_port: tuple.remote_port,
            remote_port: tuple.local_port,
        }
    }

    #[test]
    fn what_is_built_is_parsed() {
        for v6 in [false, true] {
            let tuple = tuple(v6);
            let emit =
                Emit { seq: Seq(7), ack: Seq(9), flags: Flags::ACK, len: 3, mss: 3, ..Emit::default() };
            let mut bytes = build(&tuple, &emit, b"abc", 0, 1);
            let Some(Packet::Tcp(read, segment, payload)) = parse(&bytes, None) else { panic!("a segment") };
            assert_eq!(read, turned(&tuple));
            assert_eq!((segment.seq, segment.ack, segment.len), (Seq(7), Seq(9), 3));
            assert_eq!(payload, b"abc");
            *bytes.last_mut().unwrap() ^= 1;
            assert!(parse(&bytes, None).is_none(), "a wrong checksum");
            let Some(Packet::Tcp(_, segment, _)) = parse(&bytes, Some(2)) else { panic!("a run") };
            assert_eq!(segment.segs, 2);
        }
    }

    #[test]
    fn a_run_is_cut_and_its_flags_are_where_they_belong() {
        let flags = Flags::ACK | Flags::PSH | Flags::CWR;
        let emit = Emit { seq: Seq(100), flags, len: 25, mss: 10, ..Emit::default() };
        let cut: Vec<_> = cut(&emit).map(|(part, range)| (part.seq.0, part.len, part.flags, range)).collect();
        assert_eq!(cut[0], (100, 10, Flags::ACK | Flags::CWR, 0..10));
        assert_eq!(cut[1], (110, 10, Flags::ACK, 10..20));
        assert_eq!(cut[2], (120, 5, Flags::ACK | Flags::PSH, 20..25));
    }

    #[test]
    fn an_error_names_the_segment_that_it_quotes() {
        let emit = Emit { seq: Seq(0x1234_5678), flags: Flags::ACK, ..Emit::default() };
        let sent = build(&tuple(false), &emit, b"", 0, 1);
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, ICMP, 0, 0, 10, 0, 0, 1, 192, 0, 2, 1];
        packet.extend([3, 4, 0, 0, 0, 0, 2, 88]);
        packet.extend(&sent[..28]);
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        let Some(Packet::Icmp(about, quoted)) = parse(&packet, None) else { panic!("an error") };
        assert_eq!(about, tuple(false));
        assert_eq!(quoted, Quoted { seq: Seq(0x1234_5678), kind: IcmpKind::TooBig(600) });
    }
}
