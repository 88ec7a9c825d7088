//! ARP (RFC 826) for IPv4 over Ethernet: packets in, packets out.
//!
//! What to learn from a packet is the neighbour table's business ([`neigh`](super::super::neigh)). Invariant: a parsed
//! packet has a sender that could be written to, a unicast MAC and a unicast IP address (0.0.0.0 in a probe).

use std::net::Ipv4Addr;

use super::super::{ETH_LEN, MacAddr, is_group};
use super::header::is_unicast;
use crate::skb::{DropReason, Skb};

/// EtherType of ARP.
pub const ETHERTYPE: u16 = 0x0806;
/// Bytes of an ARP packet.
pub const LEN: usize = 28;
/// Hardware type Ethernet, protocol type IPv4, and their address lengths: what every packet begins with.
const PREAMBLE: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];
/// To all stations on the link.
pub const BROADCAST: MacAddr = [0xff; 6];

/// What an ARP packet wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Which station has the target address?
    Request,
    /// The sender has the sender address.
    Reply,
}

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// Request or reply.
    pub operation: Operation,
    /// `ar$sha`.
    pub sender_mac: MacAddr,
    /// `ar$spa`.
    pub sender_ip: Ipv4Addr,
    /// `ar$tha`; means nothing in a request.
    pub target_mac: MacAddr,
    /// `ar$tpa`.
    pub target_ip: Ipv4Addr,
}

impl ArpPacket {
    /// Parses what follows the Ethernet header; padding behind is ignored. Anything that is not a request or
    /// reply for IPv4 over Ethernet by a sender with unicast addresses is
    /// [`ArpMalformed`](DropReason::ArpMalformed).
    pub fn parse(data: &[u8]) -> Result<Self, DropReason> {
        let malformed = DropReason::ArpMalformed;
        let data = data.first_chunk::<LEN>().ok_or(malformed)?;
        if data[..6] != PREAMBLE {
            return Err(malformed);
        }
        let operation = match data[6..8] {
            [0, 1] => Operation::Request,
            [0, 2] => Operation::Reply,
            _ => return Err(malformed),
        };
        let mac = |at: usize| std::array::from_fn(|i| data[at + i]);
        let ip = |at: usize| Ipv4Addr::new(data[at], data[at + 1], data[at + 2], data[at + 3]);
        let packet = ArpPacket {
            operation,
            sender_mac: mac(8),
            sender_ip: ip(14),
            target_mac: mac(18),
            target_ip: ip(24),
        };
        let sender = packet.sender_ip;
        if is_group(&packet.sender_mac)
            || packet.sender_mac == [0; 6]
            || !(is_unicast(sender.to_bits()) || packet.is_probe())
        {
            return Err(malformed);
        }
        Ok(packet)
    }

    /// Writes the packet.
    pub fn write(&self, out: &mut [u8; LEN]) {
        out[..6].copy_from_slice(&PREAMBLE);
        out[6..8].copy_from_slice(match self.operation {
            Operation::Request => &[0, 1],
            Operation::Reply => &[0, 2],
        });
        out[8..14].copy_from_slice(&self.sender_mac);
        out[14..18].copy_from_slice(&self.sender_ip.octets());
        out[18..24].copy_from_slice(&self.target_mac);
        out[24..28].copy_from_slice(&self.target_ip.octets());
    }

    /// Turns `skb`, whatever it held, into an Ethernet frame with this packet, to `to`. `None`, and the skb as
    /// it was, if the frame has no room behind the skb's first byte. Device and flags are left to the caller.
    pub fn write_frame(&self, skb: &mut Skb, to: MacAddr) -> Option<()> {
        let room = skb.len() + skb.tailroom();
        if room < ETH_LEN + LEN {
            return None;
        }
        skb.trim(0);
        let (eth, arp) = skb.put(ETH_LEN + LEN)?.split_at_mut(ETH_LEN);
        eth[..6].copy_from_slice(&to);
        eth[6..12].copy_from_slice(&self.sender_mac);
        eth[12..].copy_from_slice(&ETHERTYPE.to_be_bytes());
        self.write(arp.first_chunk_mut()?);
        skb.head_mut().l3 = ETH_LEN as u16;
        Some(())
    }

    /// A question for `target`, from `ip` at `mac`.
    pub fn request(mac: MacAddr, ip: Ipv4Addr, target: Ipv4Addr) -> Self {
        ArpPacket {
            operation: Operation::Request,
            sender_mac: mac,
            sender_ip: ip,
            target_mac: [0; 6],
            target_ip: target,
        }
    }

    /// A question whether any station has `ip`, by one that would like to (RFC 5227 section 2.1.1).
    pub fn probe(mac: MacAddr, ip: Ipv4Addr) -> Self {
        Self::request(mac, Ipv4Addr::UNSPECIFIED, ip)
    }

    /// The statement that `ip` is at `mac` (RFC 5227 section 2.3).
    pub fn announcement(mac: MacAddr, ip: Ipv4Addr) -> Self {
        Self::request(mac, ip, ip)
    }

    /// The answer to this request, by the target's owner at `mac`.
    pub fn reply(&self, mac: MacAddr) -> Self {
        ArpPacket {
            operation: Operation::Reply,
            sender_mac: mac,
            sender_ip: self.target_ip,
            target_mac: self.sender_mac,
            target_ip: self.sender_ip,
        }
    }

    /// Whether this is a probe: its sender has no address yet, so there is nothing to learn (RFC 5227).
    pub fn is_probe(&self) -> bool {
        self.operation == Operation::Request && self.sender_ip.is_unspecified()
    }

    /// Whether the sender speaks of itself only (RFC 5227 announcements, and replies of the same kind).
    pub fn is_gratuitous(&self) -> bool {
        self.sender_ip == self.target_ip
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::super::super::testing::context;
    use super::*;

    const A: MacAddr = [2, 0, 0, 0, 0, 1];
    const B: MacAddr = [2, 0, 0, 0, 0, 2];
    const IP_A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const IP_B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn bytes(packet: ArpPacket) -> [u8; LEN] {
        let mut out = [0; LEN];
        packet.write(&mut out);
        out
    }

    #[test]
    fn request_on_the_wire() {
        let want = [
            0, 1, 8, 0, 6, 4, 0, 1, // Ethernet, IPv4, request
            2, 0, 0, 0, 0, 1, 10, 0, 0, 1, // sender
            0, 0, 0, 0, 0, 0, 10, 0, 0, 2, // target
        ];
        assert_eq!(bytes(ArpPacket::request(A, IP_A, IP_B)), want);
    }

    #[test]
    fn kinds() {
        let request = ArpPacket::request(A, IP_A, IP_B);
        assert!(!request.is_probe() && !request.is_gratuitous());
        let reply = request.reply(B);
        assert_eq!((reply.sender_mac, reply.sender_ip), (B, IP_B));
        assert_eq!((reply.target_mac, reply.target_ip, reply.operation), (A, IP_A, Operation::Reply));
        assert!(ArpPacket::announcement(A, IP_A).is_gratuitous());
        let probe = ArpPacket::probe(A, IP_B);
        assert!(probe.is_probe());
        assert_eq!(ArpPacket::parse(&bytes(probe)), Ok(probe));
        assert_eq!(probe.reply(B).target_ip, Ipv4Addr::UNSPECIFIED);
    }

    #[test]
    fn refuses_what_is_not_ipv4_over_ethernet() {
        let good = bytes(ArpPacket::request(A, IP_A, IP_B));
        assert_eq!(ArpPacket::parse(&good[..LEN - 1]), Err(DropReason::ArpMalformed));
        // Hardware type, protocol type, lengths, operation 3 (RARP), a group and a zero sender MAC; a sender
        // that is multicast, loopback, or the limited broadcast.
        for (at, with) in [
            (1, &[6][..]),
            (2, &[0x86, 0xdd]),
            (4, &[8]),
            (5, &[16]),
            (7, &[3]),
            (7, &[0]),
            (8, &[3]),
            (8, &[0; 6]),
            (14, &[224]),
            (14, &[127]),
            (14, &[255; 4]),
        ] {
            let mut bad = good;
            bad[at..at + with.len()].copy_from_slice(with);
            assert_eq!(ArpPacket::parse(&bad), Err(DropReason::ArpMalformed), "{at}: {with:?}");
        }
        let mut reply = bytes(ArpPacket::request(A, IP_A, IP_B).reply(B));
        reply[14..18].fill(0);
        assert_eq!(ArpPacket::parse(&reply), Err(DropReason::ArpMalformed));
    }

    #[test]
    fn frames_fresh_and_in_place() {
        let mut ctx = context();
        let mut skb = ctx.alloc_skb().unwrap();
        let request = ArpPacket::request(A, IP_A, IP_B);
        request.write_frame(&mut skb, BROADCAST).unwrap();
        assert_eq!(skb.data()[..14], [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 8, 6]);
        assert_eq!((skb.len(), skb.head().l3), (42, 14));
        skb.put(18).unwrap().fill(0xaa);
        let heard = ArpPacket::parse(&skb.data()[14..]).unwrap();
        assert_eq!(heard, request);
        heard.reply(B).write_frame(&mut skb, heard.sender_mac).unwrap();
        assert_eq!((skb.len(), &skb.data()[..6]), (42, &A[..]));
        assert_eq!(ArpPacket::parse(&skb.data()[14..]), Ok(request.reply(B)));

        let tailroom = skb.tailroom();
        skb.put(tailroom).unwrap();
        let all = skb.len();
        skb.pull(all - 41).unwrap();
        assert_eq!(request.write_frame(&mut skb, BROADCAST), None);
        assert_eq!(skb.len(), 41);
        ctx.deliver(skb);
    }

    proptest! {
        #[test]
        fn what_parses_is_written_back(mut data in prop::collection::vec(any::<u8>(), 0..64), plausible: bool) {
            if plausible && data.len() >= 8 {
                data[..6].copy_from_slice(&PREAMBLE);
                data[6] = 0;
                data[7] = 1 + (data[7] & 1);
            }
            if let Ok(packet) = ArpPacket::parse(&data) {
                prop_assert_eq!(&bytes(packet)[..], &data[..LEN]);
            }
        }
    }
}
