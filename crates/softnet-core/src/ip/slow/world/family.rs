//! What the world and the tests ask of a family: which host is where, and what packets look like.

use std::fmt::Debug;

use super::{CLIENT_MAC, Frame, MACS, eth, packet};
use crate::ip::adjacency::Adjacency;
use crate::ip::iface::Iface;
use crate::ip::tables::{Routing, Tables};
use crate::ip::{ETH_LEN, Family, MacAddr};

/// What an ICMP error says: type, code, and the four bytes after the checksum, as a number.
pub(crate) type Answer = (u8, u8, u32);

/// What the IP header of a packet says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Header<F> {
    pub(crate) src: F,
    pub(crate) dst: F,
    pub(crate) ttl: u8,
    pub(crate) protocol: u8,
}

/// One of the two families, as it is spoken in the [world](super).
pub(crate) trait TestFamily: Family {
    /// Of softnet's devices.
    const MTUS: [u16; 2];
    /// softnet's addresses on them.
    const OWN: [Self; 2];
    const CLIENT: Self;
    const SERVER: Self;
    /// Leads to [`FAR`](Self::FAR), on the server's link.
    const GATEWAY: Self;
    const FAR: Self;
    /// No route leads there.
    const NOWHERE: Self;
    /// Routes say that what goes there is dropped, or answered.
    const BLACKHOLE: Self;
    const UNREACHABLE: Self;
    /// Destinations on or behind the server's link, each with its neighbour there.
    const WAYS: &'static [(Self, Self)];

    /// Bytes of a header.
    const HEADER: usize;
    /// Its protocol number of ICMP.
    const ICMP: u8;
    const ECHO_REQUEST: u8;
    const ECHO_REPLY: u8;
    /// Bytes of an ICMP error at the most.
    const ERROR_MAX: usize;
    const TTL_EXCEEDED: Answer;
    const REASSEMBLY_TIME_EXCEEDED: Answer;
    const NET_UNREACHABLE: Answer;
    const HOST_UNREACHABLE: Answer;
    const PORT_UNREACHABLE: Answer;
    /// Of a packet without options or extension headers.
    const PROTOCOL_UNREACHABLE: Answer;
    /// That a packet is too long for a link with this MTU.
    fn too_big(mtu: u16) -> Answer;

    fn routes() -> Vec<(&'static str, Adjacency<Self>)>;
    fn routing_mut(tables: &mut Tables) -> &mut Routing<Self>;
    fn iface(dev: u16) -> Iface;
    /// Host `n` on the link of device `dev`.
    fn host(dev: u16, n: u8) -> Self;

    /// A frame to softnet's device `dev`, or to the group that `dst` is, as the host (or router) there sends it.
    fn ip(dev: u16, src: Self, dst: Self, ttl: u8, protocol: u8, payload: &[u8]) -> Vec<u8>;
    /// A packet that routers may not cut.
    fn whole(frame: Vec<u8>) -> Vec<u8>;
    /// A frame with options that routers have to look at, and that change nothing.
    fn with_options(frame: Vec<u8>) -> Vec<u8>;
    /// Reads the header of a packet without options or extension headers, which has to be sound and as long as it says.
    fn header(packet: &[u8]) -> Header<Self>;
    /// What a router makes of a frame: one hop less.
    fn hop(frame: Vec<u8>) -> Vec<u8>;
    /// Sum of the payload of a packet, with its pseudo-header if `protocol` has one: 0xffff if its checksum is right.
    fn sum(protocol: u8, src: Self, dst: Self, payload: &[u8]) -> u16;
    /// The address that softnet sends an error about a packet of the client's link from.
    fn error_source(src: Self, dst: Self) -> Self;
    /// The number in an ICMP error.
    fn rest(bytes: [u8; 4]) -> u32;

    /// The neighbour `ip` at `mac` asks for softnet's address on `dev`.
    fn question(dev: u16, ip: Self, mac: MacAddr) -> Vec<u8>;
    /// It answers softnet's question.
    fn answer(dev: u16, ip: Self, mac: MacAddr) -> Vec<u8>;
    /// Whether a frame asks for a neighbour.
    fn is_question(frame: &[u8]) -> bool;
    /// Checks that softnet asks by `dev` for `target`: all stations, or only the one that is said to be that.
    fn assert_asked(sent: &Frame, dev: u16, target: Self, unicast_to: Option<MacAddr>);
    /// Checks that softnet answers the question for its address `own`.
    fn assert_answered(sent: &Frame, dev: u16, own: Self, asker: (Self, MacAddr));

    /// Checks that `sent` is `original`, forwarded by device `dev` to the host at `mac`.
    fn assert_forwarded((by, frame): &Frame, original: &[u8], dev: u16, mac: MacAddr) {
        let mut expected = eth(mac, MACS[usize::from(dev)], Self::ETHERTYPE);
        expected.extend(packet(&Self::hop(original.to_vec())));
        assert_eq!((*by, frame), (dev, &expected));
    }

    /// Checks that `sent` is an ICMP error about `original` from softnet to its sender, which is the client.
    fn error((dev, frame): &Frame, original: &[u8]) -> Answer {
        assert_eq!((*dev, &frame[..ETH_LEN]), (0, &eth(CLIENT_MAC, MACS[0], Self::ETHERTYPE)[..]));
        let original = packet(original);
        let ((src, dst), header) = (Self::ends(original).unwrap(), Self::header(packet(frame)));
        let expected = Header { src: Self::error_source(src, dst), dst: src, ttl: 64, protocol: Self::ICMP };
        assert_eq!(header, expected);
        let message = &packet(frame)[Self::HEADER..];
        assert_eq!(Self::sum(Self::ICMP, header.src, header.dst, message), 0xffff);
        // Quoted as it came, and as much as there is room for.
        assert_eq!(message[8..], original[..original.len().min(Self::ERROR_MAX - Self::HEADER - 8)]);
        (message[0], message[1], Self::rest(message[4..8].try_into().unwrap()))
    }
}
