//! The world that speaks IPv6.

use std::net::Ipv6Addr;
use std::sync::Arc;

use super::{Answer, CLIENT_MAC, Frame, Header, MACS, SERVER_MAC, TestFamily, eth, icmp, packet};
use crate::ip::adjacency::{Adjacency, Kind};
use crate::ip::iface::Iface;
use crate::ip::source::RpFilter;
use crate::ip::tables::{Routing, Tables};
use crate::ip::v6::addr::{is_link_local, link_local, multicast_mac, solicited_node};
use crate::ip::v6::header::{Ipv6Header, next, validate};
use crate::ip::v6::icmp::message_sum;
use crate::ip::v6::nd::{self, Message};
use crate::ip::{ETH_LEN, Family, MacAddr, Prefix6, checksum};

names! { Ipv6Addr: CLIENT, SERVER, GATEWAY, FAR, NOWHERE }

/// On the client's link: leads to [`BEYOND`]. (Another one there has a global address, and leads to 2001:db8:7::/48.)
pub(crate) const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfd);
pub(crate) const BEYOND: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 8, 0, 0, 0, 0, 1);

pub(crate) const fn net(dev: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, dev, 0, 0, 0, host)
}

impl TestFamily for Ipv6Addr {
    const MTUS: [u16; 2] = [1500, 1280];
    const OWN: [Self; 2] = [net(0, 1), net(1, 1)];
    const CLIENT: Self = net(0, 9);
    const SERVER: Self = net(1, 9);
    const GATEWAY: Self = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfe);
    const FAR: Self = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 1);
    const NOWHERE: Self = net(0x77, 1);
    const BLACKHOLE: Self = Ipv6Addr::new(0x2001, 0xdb8, 0x66, 0, 0, 0, 0, 1);
    const UNREACHABLE: Self = Ipv6Addr::new(0x2001, 0xdb8, 0x67, 0, 0, 0, 0, 1);
    const WAYS: &'static [(Self, Self)] = &[(SERVER, SERVER), (FAR, GATEWAY)];

    const HEADER: usize = 40;
    const ICMP: u8 = next::ICMPV6;
    const ECHO_REQUEST: u8 = 128;
    const ECHO_REPLY: u8 = 129;
    const ERROR_MAX: usize = 1280;
    const TTL_EXCEEDED: Answer = (3, 0, 0);
    const REASSEMBLY_TIME_EXCEEDED: Answer = (3, 1, 0);
    const NET_UNREACHABLE: Answer = (1, 0, 0);
    const HOST_UNREACHABLE: Answer = (1, 3, 0);
    const PORT_UNREACHABLE: Answer = (1, 4, 0);
    const PROTOCOL_UNREACHABLE: Answer = (4, 1, 6);

    fn too_big(mtu: u16) -> Answer {
        (2, 0, mtu.into())
    }

    fn routes() -> Vec<(&'static str, Adjacency<Self>)> {
        vec![
            ("2001:db8::/64", Adjacency::connected(0, MTUS[0])),
            ("2001:db8:0:1::/64", Adjacency::connected(1, MTUS[1])),
            ("2001:db8:9::/48", Adjacency::gateway(1, MTUS[1], GATEWAY)),
            ("2001:db8:66::/48", Adjacency::special(Kind::Blackhole)),
            ("2001:db8:67::/48", Adjacency::special(Kind::Unreachable)),
            ("2001:db8::/128", Adjacency::special(Kind::Local)),
            ("2001:db8:0:1::/128", Adjacency::special(Kind::Local)),
            ("2001:db8:8::/48", Adjacency::gateway(0, MTUS[0], ROUTER)),
            ("2001:db8:7::/48", Adjacency::gateway(0, MTUS[0], net(0, 0xfe))),
            ("2001:db8::1/128", Adjacency::special(Kind::Local)),
            ("2001:db8:0:1::1/128", Adjacency::special(Kind::Local)),
        ]
    }

    fn routing_mut(tables: &mut Tables) -> &mut Routing<Self> {
        Arc::make_mut(&mut tables.v6)
    }

    fn iface(dev: u16) -> Iface {
        let dev = usize::from(dev);
        let own = [OWN[dev], link_local(MACS[dev])];
        Iface {
            mac: MACS[dev],
            mtu: MTUS[dev],
            addresses: vec![],
            addresses6: own.map(|own| (own, Prefix6::containing(own, 64).unwrap())).to_vec(),
            send_redirects: true,
            rp_filter: RpFilter::Off,
        }
    }

    fn host(dev: u16, n: u8) -> Self {
        net(dev, n.into())
    }

    fn ip(dev: u16, src: Self, dst: Self, ttl: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let from = if dev == 0 { CLIENT_MAC } else { SERVER_MAC };
        let to = if dst.is_multicast() { multicast_mac(dst) } else { MACS[usize::from(dev)] };
        let mut frame = eth(to, from, Self::ETHERTYPE);
        frame.resize(ETH_LEN + 40, 0);
        let len = payload.len() as u16;
        Ipv6Header::new_mut(&mut frame[ETH_LEN..]).unwrap().fill(len, protocol, ttl, src, dst);
        frame.extend(payload);
        frame
    }

    /// None may.
    fn whole(frame: Vec<u8>) -> Vec<u8> {
        frame
    }

    /// Hop-by-hop: router alert.
    fn with_options(mut frame: Vec<u8>) -> Vec<u8> {
        let at = ETH_LEN + 40;
        let following = std::mem::replace(&mut frame[ETH_LEN + 6], next::HOP_BY_HOP);
        frame.splice(at..at, [following, 0, 5, 2, 0, 0, 1, 0]);
        let len = (frame.len() - at) as u16;
        frame[ETH_LEN + 4..][..2].copy_from_slice(&len.to_be_bytes());
        frame
    }

    fn header(packet: &[u8]) -> Header<Self> {
        assert_eq!(validate(packet), Ok(packet.len()));
        let (src, dst) = Self::ends(packet).unwrap();
        let header = Ipv6Header::new(packet).unwrap();
        Header { src, dst, ttl: header.hop_limit(), protocol: header.next_header() }
    }

    fn hop(mut frame: Vec<u8>) -> Vec<u8> {
        frame[ETH_LEN + 7] -= 1;
        frame
    }

    fn sum(protocol: u8, src: Self, dst: Self, payload: &[u8]) -> u16 {
        let pseudo = checksum::pseudo_header_sum6(src, dst, protocol, payload.len() as u16);
        checksum::add(pseudo, checksum::sum(payload))
    }

    fn error_source(src: Self, dst: Self) -> Self {
        match dst {
            own if OWN.contains(&own) || own == link_local(MACS[0]) => own,
            _ if is_link_local(src) => link_local(MACS[0]),
            _ => OWN[0],
        }
    }

    fn rest(bytes: [u8; 4]) -> u32 {
        u32::from_be_bytes(bytes)
    }

    fn question(dev: u16, ip: Self, mac: MacAddr) -> Vec<u8> {
        solicitation(dev, ip, Some(mac), OWN[usize::from(dev)])
    }

    fn answer(dev: u16, ip: Self, mac: MacAddr) -> Vec<u8> {
        advert(dev, ip, mac, 0x60)
    }

    fn is_question(frame: &[u8]) -> bool {
        frame[ETH_LEN + 6] == next::ICMPV6 && frame[ETH_LEN + 40] == nd::SOLICITATION
    }

    fn assert_asked(sent: &Frame, dev: u16, target: Self, unicast_to: Option<MacAddr>) {
        let at = usize::from(dev);
        let source = if is_link_local(target) { link_local(MACS[at]) } else { OWN[at] };
        let group = solicited_node(target);
        let (mac, dst) = unicast_to.map_or((multicast_mac(group), group), |mac| (mac, target));
        let says = Message::Solicitation { target, mac: Some(MACS[at]) };
        assert_eq!(heard(sent), (dev, mac, source, dst, 0, says));
    }

    fn assert_answered(sent: &Frame, dev: u16, own: Self, (peer, mac): (Self, MacAddr)) {
        let ours = Some(MACS[usize::from(dev)]);
        let says = Message::Advertisement { target: own, mac: ours, solicited: true, overrides: true };
        assert_eq!(heard(sent), (dev, mac, own, peer, 0xe0, says));
    }
}

/// A message about `target`, with a link-layer address as an option of this type.
pub(crate) fn discovery(kind: u8, flags: u8, target: Ipv6Addr, option: Option<(u8, MacAddr)>) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0, flags, 0, 0, 0][..], &target.octets()].concat();
    if let Some((kind, mac)) = option {
        message.extend([kind, 1]);
        message.extend(mac);
    }
    message
}

/// `src` at `mac` asks for the MAC address of `target`, on the link of `dev`.
pub(crate) fn solicitation(dev: u16, src: Ipv6Addr, mac: Option<MacAddr>, target: Ipv6Addr) -> Vec<u8> {
    let message = discovery(nd::SOLICITATION, 0, target, mac.map(|mac| (1, mac)));
    icmp(dev, src, solicited_node(target), 255, &message)
}

/// `target` at `mac` answers softnet's question on `dev`.
pub(crate) fn advert(dev: u16, target: Ipv6Addr, mac: MacAddr, flags: u8) -> Vec<u8> {
    advert_to(dev, target, OWN[usize::from(dev)], mac, flags)
}

/// It tells `dst`.
pub(crate) fn advert_to(dev: u16, target: Ipv6Addr, dst: Ipv6Addr, mac: MacAddr, flags: u8) -> Vec<u8> {
    icmp(dev, target, dst, 255, &discovery(nd::ADVERTISEMENT, flags, target, Some((2, mac))))
}

/// The solicitation or advertisement that was sent: device, destination MAC, addresses, flags, and what it says.
pub(crate) fn heard((dev, frame): &Frame) -> (u16, MacAddr, Ipv6Addr, Ipv6Addr, u8, Message) {
    let packet = packet(frame);
    let Header { src, dst, ttl, protocol } = Ipv6Addr::header(packet);
    let link = eth(*frame.first_chunk().unwrap(), MACS[usize::from(*dev)], Ipv6Addr::ETHERTYPE);
    assert_eq!((&frame[..ETH_LEN], protocol), (&link[..], next::ICMPV6));
    let message = &packet[40..];
    assert_eq!(message_sum(message, src, dst), 0xffff);
    let said = nd::parse(message, ttl, src, dst).unwrap();
    (*dev, *frame.first_chunk().unwrap(), src, dst, message[4], said)
}
