//! The world that speaks IPv4.

use std::net::Ipv4Addr;
use std::sync::Arc;

use super::{Answer, CLIENT_MAC, Frame, Header, MACS, SERVER_MAC, TestFamily, eth, packet, set, udp};
use crate::ip::adjacency::{Adjacency, Kind};
use crate::ip::iface::Iface;
use crate::ip::source::RpFilter;
use crate::ip::tables::{Routing, Tables};
use crate::ip::v4::arp::{ArpPacket, BROADCAST, Operation};
use crate::ip::v4::header::{Ipv4Header, protocol, validate};
use crate::ip::{ETH_LEN, Family, MacAddr, Prefix, checksum};

names! { Ipv4Addr: CLIENT, SERVER, GATEWAY, FAR, NOWHERE }

/// On the client's link: leads to [`BEYOND`].
pub(crate) const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
pub(crate) const BEYOND: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
/// On the server's link by a route of its own, outside the network of our address there.
pub(crate) const STRANGER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);

impl TestFamily for Ipv4Addr {
    const MTUS: [u16; 2] = [1500, 600];
    const OWN: [Self; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 1, 0, 1)];
    const CLIENT: Self = Ipv4Addr::new(10, 0, 0, 9);
    const SERVER: Self = Ipv4Addr::new(10, 1, 0, 9);
    const GATEWAY: Self = Ipv4Addr::new(10, 1, 0, 254);
    const FAR: Self = Ipv4Addr::new(10, 9, 0, 1);
    const NOWHERE: Self = Ipv4Addr::new(172, 16, 0, 1);
    const BLACKHOLE: Self = Ipv4Addr::new(10, 66, 1, 1);
    const UNREACHABLE: Self = Ipv4Addr::new(10, 67, 1, 1);
    const WAYS: &'static [(Self, Self)] = &[(SERVER, SERVER), (FAR, GATEWAY), (STRANGER, STRANGER)];

    const HEADER: usize = 20;
    const ICMP: u8 = protocol::ICMP;
    const ECHO_REQUEST: u8 = 8;
    const ECHO_REPLY: u8 = 0;
    const ERROR_MAX: usize = 576;
    const TTL_EXCEEDED: Answer = (11, 0, 0);
    const REASSEMBLY_TIME_EXCEEDED: Answer = (11, 1, 0);
    const NET_UNREACHABLE: Answer = (3, 0, 0);
    const HOST_UNREACHABLE: Answer = (3, 1, 0);
    const PORT_UNREACHABLE: Answer = (3, 3, 0);
    const PROTOCOL_UNREACHABLE: Answer = (3, 2, 0);

    fn too_big(mtu: u16) -> Answer {
        (3, 4, mtu.into())
    }

    fn routes() -> Vec<(&'static str, Adjacency<Self>)> {
        vec![
            ("10.0.0.0/24", Adjacency::connected(0, MTUS[0])),
            ("10.1.0.0/24", Adjacency::connected(1, MTUS[1])),
            ("10.9.0.0/16", Adjacency::gateway(1, MTUS[1], GATEWAY)),
            ("10.8.0.0/16", Adjacency::gateway(0, MTUS[0], ROUTER)),
            ("203.0.113.0/24", Adjacency::connected(1, MTUS[1])),
            ("10.66.0.0/16", Adjacency::special(Kind::Blackhole)),
            ("10.67.0.0/16", Adjacency::special(Kind::Unreachable)),
            ("10.0.0.0/32", Adjacency::special(Kind::Broadcast)),
            ("10.0.0.255/32", Adjacency::special(Kind::Broadcast)),
            ("10.1.0.0/32", Adjacency::special(Kind::Broadcast)),
            ("10.1.0.255/32", Adjacency::special(Kind::Broadcast)),
            ("10.0.0.1/32", Adjacency::special(Kind::Local)),
            ("10.1.0.1/32", Adjacency::special(Kind::Local)),
        ]
    }

    fn routing_mut(tables: &mut Tables) -> &mut Routing<Self> {
        Arc::make_mut(&mut tables.v4)
    }

    fn iface(dev: u16) -> Iface {
        let dev = usize::from(dev);
        Iface {
            mac: MACS[dev],
            mtu: MTUS[dev],
            addresses: vec![(OWN[dev], Prefix::containing(OWN[dev], 24).unwrap())],
            addresses6: vec![],
            send_redirects: true,
            rp_filter: RpFilter::Off,
        }
    }

    fn host(dev: u16, n: u8) -> Self {
        Ipv4Addr::new(10, dev as u8, 0, n)
    }

    fn ip(dev: u16, src: Self, dst: Self, ttl: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let from = if dev == 0 { CLIENT_MAC } else { SERVER_MAC };
        let mut frame = eth(MACS[usize::from(dev)], from, Self::ETHERTYPE);
        frame.resize(ETH_LEN + 20, 0);
        let total = 20 + payload.len() as u16;
        let mut header = Ipv4Header::new_mut(&mut frame[ETH_LEN..]).unwrap();
        header.fill(total, 7, ttl, protocol, src.into(), dst.into());
        frame.extend(payload);
        frame
    }

    fn whole(frame: Vec<u8>) -> Vec<u8> {
        mend(set(frame, ETH_LEN + 6, &[0x40]))
    }

    fn with_options(frame: Vec<u8>) -> Vec<u8> {
        insert_options(frame, &[1, 1, 1, 1])
    }

    fn header(packet: &[u8]) -> Header<Self> {
        let lengths = validate(packet).unwrap();
        assert_eq!((lengths.header, lengths.total), (20, packet.len()));
        let (src, dst) = Self::ends(packet).unwrap();
        let header = Ipv4Header::new(packet).unwrap();
        Header { src, dst, ttl: header.ttl(), protocol: header.protocol() }
    }

    fn hop(mut frame: Vec<u8>) -> Vec<u8> {
        frame[ETH_LEN + 8] -= 1;
        mend(frame)
    }

    fn sum(protocol: u8, src: Self, dst: Self, payload: &[u8]) -> u16 {
        let pseudo = match protocol {
            protocol::ICMP => 0,
            _ => checksum::pseudo_header_sum(src.into(), dst.into(), protocol, payload.len() as u16),
        };
        checksum::add(pseudo, checksum::sum(payload))
    }

    fn error_source(_: Self, dst: Self) -> Self {
        if OWN.contains(&dst) { dst } else { OWN[0] }
    }

    /// A pointer is where nothing else is.
    fn rest([pointer, _, high, low]: [u8; 4]) -> u32 {
        u32::from(u16::from_be_bytes([high, low])) | u32::from(pointer)
    }

    fn question(dev: u16, ip: Self, mac: MacAddr) -> Vec<u8> {
        arp(BROADCAST, ArpPacket::request(mac, ip, OWN[usize::from(dev)]))
    }

    fn answer(dev: u16, ip: Self, mac: MacAddr) -> Vec<u8> {
        let dev = usize::from(dev);
        arp(MACS[dev], ArpPacket::request(MACS[dev], OWN[dev], ip).reply(mac))
    }

    fn is_question(frame: &[u8]) -> bool {
        frame[12..14] == [8, 6]
    }

    fn assert_asked(sent: &Frame, dev: u16, target: Self, unicast_to: Option<MacAddr>) {
        let at = usize::from(dev);
        let question = ArpPacket::request(MACS[at], OWN[at], target);
        assert_eq!(heard(sent), (dev, unicast_to.unwrap_or(BROADCAST), question));
    }

    fn assert_answered(sent: &Frame, dev: u16, own: Self, (peer, mac): (Self, MacAddr)) {
        let (by, to, answer) = heard(sent);
        assert_eq!((by, to, answer.operation), (dev, mac, Operation::Reply));
        assert_eq!((answer.sender_ip, answer.sender_mac), (own, MACS[usize::from(dev)]));
        assert_eq!((answer.target_ip, answer.target_mac), (peer, mac));
    }
}

/// UDP from the client to `dst` with these options, padded to a multiple of 4 bytes.
pub(crate) fn with_options(dst: Ipv4Addr, ttl: u8, options: &[u8]) -> Vec<u8> {
    insert_options(udp(0, CLIENT, dst, ttl, 10), options)
}

/// A frame with these options, padded.
pub(crate) fn insert_options(mut frame: Vec<u8>, options: &[u8]) -> Vec<u8> {
    let mut padded = options.to_vec();
    padded.resize(options.len().next_multiple_of(4), 0);
    let at = ETH_LEN + 20;
    frame.splice(at..at, padded.iter().copied());
    frame[ETH_LEN] += padded.len() as u8 / 4;
    let total = packet(&frame).len() as u16;
    mend(set(frame, ETH_LEN + 2, &total.to_be_bytes()))
}

/// Puts the right header checksum in.
pub(crate) fn mend(mut frame: Vec<u8>) -> Vec<u8> {
    let len = usize::from(frame[ETH_LEN] & 15) * 4;
    frame[ETH_LEN + 10..][..2].fill(0);
    let check = checksum::checksum(&frame[ETH_LEN..][..len]);
    frame[ETH_LEN + 10..][..2].copy_from_slice(&check.to_be_bytes());
    frame
}

pub(crate) fn arp(to: MacAddr, packet: ArpPacket) -> Vec<u8> {
    let mut frame = eth(to, packet.sender_mac, 0x0806);
    frame.resize(ETH_LEN + 28, 0);
    packet.write(frame[ETH_LEN..].first_chunk_mut().unwrap());
    frame.resize(60, 0);
    frame
}

/// The ARP packet that was sent, and its device and destination MAC address.
pub(crate) fn heard((dev, frame): &Frame) -> (u16, MacAddr, ArpPacket) {
    assert_eq!(frame[12..14], [8, 6]);
    (*dev, *frame.first_chunk().unwrap(), ArpPacket::parse(packet(frame)).unwrap())
}
