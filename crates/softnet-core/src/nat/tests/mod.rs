//! NAT between the client's link, which is inside, and the server's, which is outside: packets in,
//! packets out, each checked by sums computed afresh.

mod change;
mod dropped;
mod errors;
mod forward;
mod fragments;
mod limits;
mod merged;
mod prefix;
mod random;
mod source;

use std::net::Ipv4Addr;

use super::*;
use crate::conntrack::Timeouts;
use crate::ip::checksum;
use crate::ip::slow::world::v4::mend;
use crate::ip::slow::world::{SECOND, TestFamily, World, packet};
use crate::ip::v4::header::validate;

const CLIENT: Ipv4Addr = Ipv4Addr::CLIENT;
const SERVER: Ipv4Addr = Ipv4Addr::SERVER;
const INSIDE: Ipv4Addr = Ipv4Addr::OWN[0];
const OUTSIDE: Ipv4Addr = Ipv4Addr::OWN[1];
const FAR: Ipv4Addr = Ipv4Addr::FAR;

const ACK: u8 = 16;
const SYN: u8 = 2;

type End4 = (Ipv4Addr, u16);

/// What a packet says.
#[derive(Clone, Debug, PartialEq)]
struct Said {
    protocol: u8,
    src: End4,
    dst: End4,
    payload: Vec<u8>,
}

/// A packet that comes by device `dev`. The ports of ICMP are its identifier: of a request, that of
/// the source.
fn frame(dev: u16, protocol: u8, src: End4, dst: End4, flags: u8, payload: &[u8]) -> Vec<u8> {
    let ports = [src.1.to_be_bytes(), dst.1.to_be_bytes()].concat();
    let (mut l4, at) = match protocol {
        protocol::UDP => {
            let len = (8 + payload.len() as u16).to_be_bytes();
            ([&ports[..], &len, &[0, 0]].concat(), 6)
        }
        protocol::TCP => {
            let rest = [0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0x10, 0, 0, 0, 0, 0];
            ([&ports[..], &rest].concat(), 16)
        }
        _ => {
            let (kind, id) = if src.1 != 0 { (8, src.1) } else { (0, dst.1) };
            let [a, b] = id.to_be_bytes();
            (vec![kind, 0, 0, 0, a, b, 0, 1], 2)
        }
    };
    l4.extend(payload);
    let check = !Ipv4Addr::sum(protocol, src.0, dst.0, &l4);
    l4[at..at + 2].copy_from_slice(&check.to_be_bytes());
    Ipv4Addr::ip(dev, src.0, dst.0, 9, protocol, &l4)
}

fn udp(dev: u16, src: End4, dst: End4) -> Vec<u8> {
    frame(dev, protocol::UDP, src, dst, 0, b"a datagram")
}

/// What a frame says, all of whose checksums are right.
fn said(frame: &[u8]) -> Said {
    said_by(packet(frame))
}

fn said_by(packet: &[u8]) -> Said {
    let lengths = validate(packet).expect("a sound header");
    let (src, dst) = Ipv4Addr::ends(packet).unwrap();
    let (protocol, l4) = (packet[9], &packet[lengths.header..lengths.total]);
    if protocol != protocol::UDP || l4[6..8] != [0, 0] {
        assert_eq!(Ipv4Addr::sum(protocol, src, dst, l4), 0xffff, "{packet:x?}");
    }
    let port = |at: usize| u16::from_be_bytes([l4[at], l4[at + 1]]);
    let (sport, dport, header) = match protocol {
        protocol::UDP => (port(0), port(2), 8),
        protocol::TCP => (port(0), port(2), 20),
        _ if l4[0] == 8 => (port(4), 0, 8),
        _ => (0, port(4), 8),
    };
    Said { protocol, src: (src, sport), dst: (dst, dport), payload: l4[header..].to_vec() }
}

/// A world with NAT.
struct Router {
    world: World<Ipv4Addr>,
    state: Arc<NatState>,
}

fn masquerade() -> NatRules {
    NatRules { source: vec![SourceNat::new(1, vec![OUTSIDE])], ..NatRules::default() }
}

impl Router {
    fn new(rules: &NatRules) -> Self {
        Self::with(rules, 1 << 12)
    }

    fn with(rules: &NatRules, capacity: u32) -> Self {
        let state =
            Arc::new(NatState::new(capacity, [1, 2, 3, 4], &Timeouts::default(), &crate::memory::Heap));
        let mut router = Router { world: World::acquainted(), state };
        router.world.tracked = true;
        router.configure(rules);
        router
    }

    /// New rules, with the connections that there are.
    fn configure(&mut self, rules: &NatRules) {
        let nat = Arc::new(Nat::new(self.state.clone(), rules).unwrap());
        nat.clone().install(&mut self.world.tables);
        nat.end_others(seconds(self.world.now));
    }

    /// The one packet that comes of `frame`, and the device that it leaves by.
    fn one(&mut self, dev: u16, frame: Vec<u8>) -> (u16, Said) {
        let sent = self.world.one(dev, frame);
        assert_eq!(sent.len(), 1, "{sent:x?}");
        (sent[0].0, said(&sent[0].1))
    }

    /// What a packet from inside is outside.
    fn out(&mut self, frame: Vec<u8>) -> Said {
        let (dev, out) = self.one(0, frame);
        assert_eq!(dev, 1);
        out
    }

    /// What a packet from outside is inside.
    fn back(&mut self, frame: Vec<u8>) -> Said {
        let (dev, back) = self.one(1, frame);
        assert_eq!(dev, 0);
        back
    }

    /// `frame` is dropped for `reason`.
    fn dropped(&mut self, dev: u16, frame: Vec<u8>, reason: DropReason) {
        let before = self.world.drops(reason);
        let sent = self.world.one(dev, frame);
        assert_eq!((sent.len(), self.world.drops(reason)), (0, before + 1), "{reason:?}");
    }

    fn connections(&self) -> usize {
        self.state.conntrack().connections(seconds(self.world.now)).count()
    }
}

const PROTOCOLS: [u8; 3] = [protocol::UDP, protocol::TCP, protocol::ICMP];

/// The far end's port, which ICMP has none of.
fn service(number: u8, addr: Ipv4Addr) -> End4 {
    (addr, if number == protocol::ICMP { 0 } else { 53 })
}
