//! NAT44 and NAT64 at their hooks, with connection tracking, on frames that strangers make up: on both sides, ICMP errors
//! that quote what passed, and time.
//!
//! Invariant: after each step the books balance, and in the end all memory is at home (`World` asserts both); the table of
//! connections has no more than it has room for.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::sync::Arc;

use super::{Nat, NatRules, NatState, PortForward, SourceNat, seconds};
use crate::conntrack::Timeouts;
use crate::fuzz::Script;
use crate::ip::slow::world::{SECOND, Sent, TestFamily, World, icmp, packet, v4};
use crate::ip::v4::header::protocol;
use crate::ip::{ETH_LEN, Family, LongestMatch};
use crate::memory::Heap;

/// Connections: few, so that the table is full soon.
const ROOM: u32 = 8;
/// Bytes of payload, or of a message.
const MOST: usize = 1400;

const CLIENT: Ipv4Addr = Ipv4Addr::CLIENT;
const SERVER: Ipv4Addr = Ipv4Addr::SERVER;
const OUTSIDE: Ipv4Addr = Ipv4Addr::OWN[1];
/// Under which hosts of IPv6 reach those of IPv4.
const POOL: &str = "2001:db8:64::/96";

fn rules() -> NatRules {
    NatRules { source: vec![SourceNat::new(1, vec![OUTSIDE])], ..NatRules::default() }
}

/// A router with NAT, and what it last sent by each device.
struct Router<F: TestFamily> {
    world: World<F>,
    state: Arc<NatState>,
    sent: [Vec<u8>; 2],
}

impl<F: TestFamily> Router<F> {
    fn new(mut world: World<F>, rules: &NatRules) -> Self {
        let state = Arc::new(NatState::new(ROOM, [1, 2, 3, 4], &Timeouts::default(), &Heap));
        world.tracked = true;
        let nat = Arc::new(Nat::new(state.clone(), rules).expect("few addresses"));
        nat.clone().install(&mut world.tables);
        nat.end_others(seconds(world.now));
        Router { world, state, sent: Default::default() }
    }

    fn input(&mut self, dev: u16, frame: Vec<u8>) {
        let sent = self.world.one(dev, frame);
        self.remember(sent);
    }

    fn remember(&mut self, sent: Sent) {
        for (dev, frame) in sent {
            self.sent[usize::from(dev)] = frame;
        }
        let counts = self.state.conntrack().counts();
        assert!(counts.entries <= u64::from(counts.capacity), "{counts:?}");
    }

    /// What was last sent by device `dev`, from its IP header on, with a few bytes changed: for an error to quote.
    fn quote(&self, dev: u16, script: &mut Script<'_>) -> Vec<u8> {
        let frame = &self.sent[usize::from(dev)];
        let mut quote = frame.get(ETH_LEN..).unwrap_or_default().to_vec();
        for change in script.bytes().chunks_exact(2).take(8) {
            if let Some(byte) = quote.get_mut(usize::from(change[0])) {
                *byte = change[1];
            }
        }
        quote
    }
}

/// Time, or an ICMP error of IPv4; otherwise `None`.
fn common<F: TestFamily>(router: &mut Router<F>, op: u8, script: &mut Script<'_>) -> Option<()> {
    let dev = u16::from(op & 1);
    match op >> 1 & 7 {
        0 => {
            let sent = router.world.pass(u64::from(script.byte().unwrap_or(0)) * 4 * SECOND);
            router.remember(sent);
        }
        1 => {
            let [kind, code, a, b] = std::array::from_fn(|_| script.byte().unwrap_or(0));
            let quote = router.quote(dev, script);
            let message = [&[kind, code, 0, 0, 0, 0, a, b], &quote[..]].concat();
            let (src, dst) = if dev == 0 { (CLIENT, SERVER) } else { (SERVER, OUTSIDE) };
            router.input(dev, icmp(dev, src, dst, 64, &message[..message.len().min(MOST)]));
        }
        _ => return None,
    }
    Some(())
}

/// An IPv4 packet between hosts whose packets are translated: of which protocol, and what is behind its header, the script
/// says.
fn frame4(dev: u16, op: u8, script: &mut Script<'_>) -> Vec<u8> {
    let kind = script.byte().unwrap_or(0);
    let number = [protocol::UDP, protocol::TCP, protocol::ICMP, kind][usize::from(kind & 3)];
    let (src, dst) = match (dev, op >> 4 & 3) {
        (0, 0 | 1) => (CLIENT, SERVER),
        // A hairpin.
        (0, _) => (CLIENT, OUTSIDE),
        (_, 0) => (SERVER, CLIENT),
        _ => (SERVER, OUTSIDE),
    };
    let bytes = script.bytes();
    let mut frame = Ipv4Addr::ip(dev, src, dst, 64, number, &bytes[..bytes.len().min(MOST)]);
    if op >> 6 == 1 {
        // A fragment.
        frame[ETH_LEN + 6..ETH_LEN + 8].copy_from_slice(&[kind >> 2 & 0x20, kind >> 3]);
        frame = v4::mend(frame);
    }
    frame
}

/// NAT of IPv4: mappings, forwarded ports, hairpins, fragments, a table that is full, errors of all kinds.
pub fn nat(data: &[u8]) {
    let mut script = Script::new(data);
    let mut rules = rules();
    let (external, internal) = (SocketAddrV4::new(OUTSIDE, 8080), SocketAddrV4::new(CLIENT, 80));
    rules.forward = vec![PortForward { protocol: protocol::TCP, external, internal }];
    rules.connlimit = script.byte().filter(|limit| *limit != 0).map(u32::from);
    let mut router = Router::<Ipv4Addr>::new(World::acquainted(), &rules);
    while let Some(op) = script.byte() {
        if common(&mut router, op, &mut script).is_none() {
            let dev = u16::from(op & 1);
            let frame = frame4(dev, op, &mut script);
            router.input(dev, frame);
        }
    }
}

/// NAT64: packets of IPv6 inside, of IPv4 outside, and errors of both.
pub fn nat64(data: &[u8]) {
    let mut script = Script::new(data);
    let mut world = World::<Ipv6Addr>::acquainted();
    let routes = Ipv4Addr::routes();
    let routing = Ipv4Addr::routing_mut(&mut world.tables);
    routing.next_hops.extend(routes.iter().map(|(_, hop)| *hop));
    let fib: Vec<_> = (1..).zip(&routes).map(|(i, (p, _))| (p.parse().expect("a prefix"), i)).collect();
    routing.fib =
        Arc::new(<Ipv4Addr as Family>::Fib::build_in(&fib, &crate::memory::Heap).expect("few routes"));
    for dev in 0..2 {
        let addresses = Ipv4Addr::iface(dev).addresses;
        world.reconfigure(dev, |iface| (iface.addresses, iface.mtu) = (addresses, 1500));
    }
    let rules = NatRules { pool6: Some(POOL.parse().expect("a prefix")), ..rules() };
    let mut router = Router::new(world, &rules);
    let under = |addr: Ipv4Addr| Ipv6Addr::from_bits(0x2001_0db8_0064 << 80 | u128::from(addr.to_bits()));
    while let Some(op) = script.byte() {
        let dev = u16::from(op & 1);
        if common(&mut router, op, &mut script).is_some() {
            continue;
        }
        let frame = match (dev, op >> 1 & 7) {
            // An error about what came back.
            (0, 2) => {
                let [kind, code, a, b] = std::array::from_fn(|_| script.byte().unwrap_or(0));
                let quote = router.quote(0, &mut script);
                let message = [&[kind, code, 0, 0, 0, 0, a, b], &quote[..]].concat();
                icmp(0, Ipv6Addr::CLIENT, under(SERVER), 64, &message[..message.len().min(MOST)])
            }
            (0, _) => {
                let kind = script.byte().unwrap_or(0);
                let number = [17, 6, 58, kind][usize::from(kind & 3)];
                let bytes = script.bytes();
                let payload = &bytes[..bytes.len().min(MOST)];
                Ipv6Addr::ip(0, Ipv6Addr::CLIENT, under(SERVER), kind >> 2, number, payload)
            }
            _ => frame4(1, op, &mut script),
        };
        router.input(dev, frame);
    }
    for frame in &router.sent {
        assert!(frame.is_empty() || !packet(frame).is_empty());
    }
}
