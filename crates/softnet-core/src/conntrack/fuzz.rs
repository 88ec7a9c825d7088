//! Connection tracking behind rules that let in only what was asked for, held against a list of
//! what was.
//!
//! Invariants: a packet from outside gets in only if one that it answers, or quotes, went out no longer
//! ago than connections live; the answer to a datagram that went out just now gets in
//! if there is room for all connections; the table has no more than it has room for.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::{Conntrack, Timeouts};
use crate::filter::{Action, Chain, Filter, FlowState, Rule, Rules};
use crate::fold::FoldKey;
use crate::fuzz::Script;
use crate::ip::slow::world::{SECOND, Sent, TestFamily, World, icmp, packet};
use crate::ip::v4::header::protocol;
use crate::ip::v6::header::next;
use crate::skb::DropReason;

/// Connections that there can be, of the 24 that hosts open: of a table that is full soon, and of one
/// that never is.
const ROOM: [u32; 2] = [4, 64];
/// A protocol, a port (of ICMP: an identifier) inside, and a server with its port.
type Flow = (u8, u8, u8, u8);

struct Router<F: TestFamily> {
    world: World<F>,
    conntrack: Arc<Conntrack>,
    /// When a packet of each last went out, in seconds.
    asked: HashMap<Flow, u64>,
    /// What last went out.
    sent: Vec<u8>,
}

impl<F: TestFamily> Router<F> {
    fn new(room: u32) -> Self {
        let table = Conntrack::new(room, FoldKey::new([1, 2]), &Timeouts::default(), &crate::memory::Heap);
        let conntrack = Arc::new(table.with_ipv6());
        let forward = |rule: Rule| Rule { chains: vec![Chain::Forward], action: Action::Allow, ..rule };
        let rules = Rules {
            rules: vec![
                forward(Rule { state: vec![FlowState::Established, FlowState::Related], ..Rule::default() }),
                forward(Rule { input: vec![0], ..Rule::default() }),
            ],
            sets: vec![],
            policies: [Action::Allow, Action::Drop, Action::Allow],
        };
        let mut world = World::acquainted();
        let filter = Filter::new(&rules, Some((conntrack.clone(), None))).expect("few rules");
        filter.stand(&rules, &mut world.tables.hooks);
        world.tracked = true;
        Router { world, conntrack, asked: HashMap::new(), sent: vec![] }
    }

    fn now(&self) -> u64 {
        self.world.now / SECOND
    }

    fn input(&mut self, dev: u16, frame: Vec<u8>) -> Sent {
        let sent = self.world.one(dev, frame);
        let counts = self.conntrack.counts();
        assert!(counts.entries <= u64::from(counts.capacity), "{counts:?}");
        sent
    }

    /// A packet of `flow` from inside, or one that answers it.
    fn frame(&self, dev: u16, flow: Flow, flags: u8) -> Vec<u8> {
        let (number, inside, server, port) = flow;
        let server = [F::SERVER, F::FAR][usize::from(server)];
        let (src, dst) = if dev == 0 { (F::CLIENT, server) } else { (server, F::CLIENT) };
        let ends = if dev == 0 { [0x13, inside, 0x14, port] } else { [0x14, port, 0x13, inside] };
        match number {
            protocol::UDP => F::ip(dev, src, dst, 9, number, &[&ends[..], &[0, 9, 0, 0, 7]].concat()),
            protocol::TCP => {
                let rest = [0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 1, 0, 0, 0, 0, 0];
                F::ip(dev, src, dst, 9, number, &[&ends[..], &rest].concat())
            }
            _ => {
                let kind = if dev == 0 { F::ECHO_REQUEST } else { F::ECHO_REPLY };
                icmp(dev, src, dst, 9, &[kind, 0, 0, 0, inside, port, 0, 1])
            }
        }
    }

    /// How long a connection of that protocol lives without packets.
    fn lives(number: u8) -> u64 {
        let timeouts = Timeouts::default();
        u64::from(match number {
            protocol::UDP => timeouts.udp_stream,
            protocol::TCP => timeouts.tcp_established,
            _ => timeouts.icmp,
        })
    }

    /// Packets that rules, or the table, refused. What waits for a neighbour's address was not.
    fn refused(&self) -> u64 {
        use DropReason::{ConntrackFull, ConntrackInvalid, NetfilterDrop};
        [NetfilterDrop, ConntrackFull, ConntrackInvalid].map(|reason| self.world.drops(reason)).iter().sum()
    }

    fn asks(&mut self, flow: Flow, flags: u8) {
        let before = self.refused();
        let sent = self.input(0, self.frame(0, flow, flags));
        if self.refused() == before {
            self.asked.insert(flow, self.now());
        }
        if let Some((1, frame)) = sent.into_iter().next() {
            self.sent = frame;
        }
    }

    fn answers(&mut self, flow: Flow, flags: u8, roomy: bool) {
        let before = self.refused();
        let sent = self.input(1, self.frame(1, flow, flags));
        let refused = self.refused() > before;
        let got_in = sent.iter().any(|(dev, _)| *dev == 0);
        let age = self.asked.get(&flow).map(|at| self.now() - at);
        if got_in {
            // The clock of the table counts in seconds, and a connection lives to the end of one.
            assert!(age.is_some_and(|age| age <= Self::lives(flow.0) + 1), "{flow:?} asked {age:?} s ago");
        }
        assert!(!refused || !roomy || flow.0 == protocol::TCP || age != Some(0), "{flow:?}");
        if !refused && age.is_some() {
            // It keeps the connection.
            self.asked.insert(flow, self.now());
        }
    }

    /// An error from outside that quotes what went out last, a few bytes of it changed; or an answer
    /// with the identifier 0.
    fn complains(&mut self, script: &mut Script<'_>) {
        let [kind, code] = [(); 2].map(|()| script.byte().unwrap_or(0));
        let mut quote = self.sent.get(crate::ip::ETH_LEN..).unwrap_or_default().to_vec();
        for change in script.bytes().chunks_exact(2).take(8) {
            if let Some(byte) = quote.get_mut(usize::from(change[0])) {
                *byte = change[1];
            }
        }
        let message = [&[kind, code, 0, 0, 0, 0, 0, 0], &quote[..]].concat();
        let sent = self.input(1, icmp(1, F::SERVER, F::CLIENT, 9, &message));
        if let Some((_, frame)) = sent.iter().find(|(dev, _)| *dev == 0) {
            // Connections of queries go by the identifier, whatever was asked.
            let answered = (F::ICMP, 0, 0, 0);
            let about = if is_answer(kind) { self.ends_of(answered) } else { ends(&quote) };
            let flow = Self::flows().find(|flow| self.ends_of(*flow) == about);
            match about {
                // Of other headers than packets here have, the model does not know what they are.
                None => assert!(!self.asked.is_empty(), "{:x?}", packet(frame)),
                Some(_) => {
                    let age = flow.and_then(|flow| Some((flow, self.now() - self.asked.get(&flow)?)));
                    let live = age.is_some_and(|(flow, age)| age <= Self::lives(flow.0) + 1);
                    assert!(live, "{age:?}: {:x?}", packet(frame));
                }
            }
        }
    }

    /// All that hosts open.
    fn flows() -> impl Iterator<Item = Flow> {
        let each = |number| (0..8).map(move |n| (number, n & 1, n >> 1 & 1, n >> 2 & 1));
        [protocol::UDP, protocol::TCP, F::ICMP].into_iter().flat_map(each)
    }

    /// The ends of what `flow` sends from inside.
    fn ends_of(&self, flow: Flow) -> Option<Ends> {
        ends(packet(&self.frame(0, flow, 0)))
    }
}

/// Whether ICMP's type `kind` answers a query, of either family.
fn is_answer(kind: u8) -> bool {
    matches!(kind, 0 | 14 | 16 | 18 | 129)
}

/// Protocol, addresses, and ports or identifier.
type Ends = (u8, Vec<u8>, Vec<u8>);

/// Those of a packet with a plain header, and a question if it is one of ICMP.
fn ends(packet: &[u8]) -> Option<Ends> {
    let (number, addrs, l4) = match packet.first()? {
        0x45 => (*packet.get(9)?, packet.get(12..20)?, packet.get(20..)?),
        first if first >> 4 == 6 => (*packet.get(6)?, packet.get(8..40)?, packet.get(40..)?),
        _ => return None,
    };
    let ports = match number {
        protocol::UDP | protocol::TCP => l4.get(..4)?,
        protocol::ICMP | next::ICMPV6 => l4.get(4..6)?,
        _ => return None,
    };
    Some((number, addrs.to_vec(), ports.to_vec()))
}

fn track<F: TestFamily>(script: &mut Script<'_>) {
    let roomy = script.byte().unwrap_or(0) & 1 == 1;
    let mut router = Router::<F>::new(ROOM[usize::from(roomy)]);
    while let Some(op) = script.byte() {
        let [which, flags] = [(); 2].map(|()| script.byte().unwrap_or(0));
        let number = [protocol::UDP, protocol::TCP, F::ICMP][usize::from(which & 3) % 3];
        let flow = (number, which >> 2 & 1, which >> 3 & 1, which >> 4 & 1);
        match op & 7 {
            0..=2 => router.asks(flow, flags),
            3 | 4 => router.answers(flow, flags, roomy),
            5 => router.complains(script),
            _ => {
                let seconds = u64::from(flags) << (which & 7);
                router.world.pass(seconds * SECOND);
            }
        }
    }
}

/// Packets both ways, errors and time, of IPv4 or IPv6.
pub fn conntrack(data: &[u8]) {
    let mut script = Script::new(data);
    match script.byte() {
        Some(family) if family & 1 == 1 => track::<Ipv6Addr>(&mut script),
        _ => track::<Ipv4Addr>(&mut script),
    }
}
