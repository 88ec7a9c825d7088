//! A TCP segment in a packet: its flow, what the engine sees of it, and where its payload lies.
//!
//! Pure. A packet may be an aggregate of many segments (GRO): the engine gets it as one.

use softnet_tcp::{Segment, Seq};

use super::super::key::{Flow, is_v4};
use super::super::udp::datagram::ends;
use super::super::udp::error::flow_of_sent;
use crate::ip::checksum;
use crate::ip::v4::header::protocol;
use crate::skb::{Csum, DropReason, Skb};

/// The place of the checksum in a header.
const CHECK_AT: u16 = 16;

/// What the engine and the table are told of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Its flow, seen from this host.
    pub flow: Flow,
    /// The segment, or several that GRO made one.
    pub segment: Segment,
    /// Offset of its payload in the packet.
    pub payload_at: usize,
}

/// Reads and verifies a TCP packet, whose headers are in its first frame.
///
/// # Errors
/// Why it is to be dropped: headers that do not lie within the packet, or a wrong checksum.
pub fn read(skb: &Skb) -> Result<Packet, DropReason> {
    let (data, head) = (skb.data(), skb.head());
    let (l3, l4) = (usize::from(head.l3), usize::from(head.l4));
    if head.protocol != protocol::TCP {
        return Err(DropReason::PktTooSmall);
    }
    let ip = data.get(l3..).ok_or(DropReason::PktTooSmall)?;
    let (local, remote, total) = ends(ip, head.dev)?;
    let end = l3 + total;
    let bytes = data.get(l4..).ok_or(DropReason::PktTooSmall)?;
    if end > skb.len() || l4 > end {
        return Err(DropReason::PktTooSmall);
    }
    let header = Segment::header_len(bytes).map_err(|_| DropReason::PktTooSmall)?;
    let len = (end - l4).checked_sub(header).ok_or(DropReason::PktTooSmall)?;
    let v4 = is_v4(local);
    verify(skb, (l3, l4), end - l4, v4)?;
    let mut segment = Segment::parse(&bytes[..header]).map_err(|_| DropReason::PktTooSmall)?;
    segment.len = len as u32;
    segment.segs = skb.segments().max(1) as u16;
    segment.ce = traffic_class(ip, v4) & 3 == 3;
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let flow = Flow { local, remote, lport: port(2), rport: port(0), protocol: protocol::TCP };
    Ok(Packet { flow, segment, payload_at: l4 + header })
}

/// Type of service, or traffic class.
fn traffic_class(ip: &[u8], v4: bool) -> u8 {
    match v4 {
        true => ip.get(1).copied().unwrap_or(0),
        false => ip.first().zip(ip.get(1)).map_or(0, |(a, b)| a << 4 | b >> 4),
    }
}

/// Verifies the checksum of `len` bytes from the L4 header on, unless that was done before, or the
/// packet came from this host or its virtual wire, which leaves it to the receiver.
fn verify(skb: &Skb, (l3, l4): (usize, usize), len: usize, v4: bool) -> Result<(), DropReason> {
    match skb.head().csum {
        Csum::Unnecessary => return Ok(()),
        Csum::Partial { start, offset } if usize::from(start) == l4 && offset == CHECK_AT => return Ok(()),
        _ => {}
    }
    let addresses = if v4 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 };
    let pseudo = checksum::sum(skb.data().get(addresses).unwrap_or_default());
    let pseudo = checksum::add(pseudo, checksum::add(u16::from(protocol::TCP), len as u16));
    let (_, sum) = checksum::sum_skb(skb, l4, len);
    if checksum::add(pseudo, sum) == 0xffff { Ok(()) } else { Err(DropReason::TcpCsum) }
}

/// The flow of a segment that was sent by device `dev`, and its sequence number: `packet` is what an
/// ICMP error quotes of it, from the IP header on. `None` if that is no TCP, or not a first
/// fragment.
pub fn of_sent(packet: &[u8], dev: u16) -> Option<(Flow, Seq)> {
    let (flow, l4) = flow_of_sent(packet, dev, protocol::TCP)?;
    let &[_, _, _, _, a, b, c, d] = l4.first_chunk()?;
    Some((flow, Seq(u32::from_be_bytes([a, b, c, d]))))
}
