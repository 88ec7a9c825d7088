//! States of connections, for both families, with NAT and without.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use super::super::{Action, Chain, Filter, FlowState, Rule, Rules};
use super::hook::{ACK, RST, Router, SYN, for_both, forward, frame};

use crate::conntrack::{State, Timeouts};
use crate::ip::hooks::{Hooks, Slot};
use crate::ip::slow::world::{SECOND, TestFamily, packet};
use crate::ip::source::RpFilter;
use crate::ip::v4::header::protocol;
use crate::ip::{Family, checksum};
use crate::nat::{Nat, NatRules, NatState, PortForward, SourceNat};
use crate::skb::DropReason;
use crate::sock::key::addr_of;
use crate::sock::udp::output::UdpHead;

for_both! {
    answers_come_in_and_nothing_else,
    errors_about_a_connection_are_related,
    what_opens_no_connection_is_invalid,
    what_is_dropped_opens_nothing,
    what_is_made_here_is_tracked,
    a_full_table_refuses_new_connections,
    connections_expire,
    a_spoofed_answer_changes_nothing,
}

/// TCP's flag.
const FIN: u8 = 1;

/// From inside (device 0) all may go, from outside only what belongs to it.
pub(super) fn stateful() -> Vec<Rule> {
    vec![
        Rule { state: vec![FlowState::Established, FlowState::Related], ..forward(Action::Allow) },
        Rule { input: vec![0], state: vec![FlowState::New], ..forward(Action::Allow) },
    ]
}

pub(super) const CLOSED: [Action; 3] = [Action::Allow, Action::Drop, Action::Allow];

fn answers_come_in_and_nothing_else<F: TestFamily>() {
    for number in [protocol::UDP, protocol::TCP] {
        let mut router = Router::<F>::new(stateful(), CLOSED);
        let (client, server) = ((F::CLIENT, 5001), (F::SERVER, 53));
        let mut pass =
            |dev, src, dst, flags| router.world.one(dev, frame(dev, number, src, dst, flags)).len();
        assert_eq!(pass(1, server, client, SYN | ACK), 0, "nothing asked for it");
        assert_eq!(pass(0, client, server, SYN), 1);
        assert_eq!(pass(0, client, server, SYN), 1, "again");
        assert_eq!(pass(1, server, client, SYN | ACK), 1);
        assert_eq!(pass(0, client, server, ACK), 1);
        assert_eq!(pass(1, server, client, ACK), 1);
        // Another port, another host, the other way.
        assert_eq!(pass(1, (F::SERVER, 54), client, SYN | ACK), 0);
        assert_eq!(pass(1, server, (F::CLIENT, 5002), SYN | ACK), 0);
        assert_eq!(pass(1, (F::FAR, 53), client, SYN | ACK), 0);
        assert_eq!(router.world.drops(DropReason::NetfilterDrop), 4);
        assert_eq!([0, 1].map(|rule| router.count(rule)), [3, 2]);
        let shown: Vec<_> = router.conntrack.connections(0).collect();
        assert_eq!(shown.len(), 1);
        let state = if number == protocol::UDP { State::Udp } else { State::Established };
        assert_eq!((shown[0].state, shown[0].flags), (state, 0));
        if let Some(ends) = shown[0].ends6 {
            assert_eq!(ends.map(std::net::IpAddr::from), [F::CLIENT.into(), F::SERVER.into()]);
        } else {
            assert_eq!(F::HEADER, 20);
        }
    }
}

/// A message of ICMP from `src` to `dst`.
fn icmp<F: TestFamily>(dev: u16, src: F, dst: F, mut message: Vec<u8>) -> Vec<u8> {
    message[2..4].fill(0);
    let check = match F::ICMP {
        protocol::ICMP => checksum::checksum(&message),
        _ => !F::sum(F::ICMP, src, dst, &message),
    };
    message[2..4].copy_from_slice(&check.to_be_bytes());
    F::ip(dev, src, dst, 9, F::ICMP, &message)
}

/// That a packet was too long, or (IPv6) did not get there.
fn error<F: TestFamily>(dev: u16, src: F, dst: F, about: &[u8]) -> Vec<u8> {
    let kind = if F::ICMP == protocol::ICMP { 3 } else { 1 };
    icmp(dev, src, dst, [&[kind, 1, 0, 0, 0, 0, 0, 0][..], packet(about)].concat())
}

fn errors_about_a_connection_are_related<F: TestFamily>() {
    let mut router = Router::<F>::new(stateful(), CLOSED);
    let (client, server) = ((F::CLIENT, 5001), (F::FAR, 53));
    let stray = frame::<F>(1, protocol::UDP, (F::CLIENT, 5002), server, 0);
    let sent = router.world.one(0, frame(0, protocol::UDP, client, server, 0));
    // From a router on the way.
    assert_eq!(router.world.one(1, error(1, F::SERVER, F::CLIENT, &sent[0].1)).len(), 1);
    assert_eq!(router.count(0), 1);
    assert_eq!(router.world.one(1, error(1, F::SERVER, F::CLIENT, &stray)).len(), 0);
    // It opened nothing, and kept nothing alive.
    assert_eq!(router.conntrack.connections(0).map(|c| c.state).collect::<Vec<_>>(), [State::UdpNew]);
}

fn echo<F: TestFamily>(dev: u16, kind: u8, src: F, dst: F, id: u8) -> Vec<u8> {
    icmp(dev, src, dst, vec![kind, 0, 0, 0, 0, id, 0, 1])
}

fn what_opens_no_connection_is_invalid<F: TestFamily>() {
    let rules = vec![
        Rule { state: vec![FlowState::Invalid], ..forward(Action::Drop) },
        Rule { state: vec![FlowState::New], ..forward(Action::Allow) },
    ];
    let mut router = Router::<F>::new(rules, [Action::Allow; 3]);
    let stray = frame::<F>(1, protocol::UDP, (F::CLIENT, 5002), (F::SERVER, 1), 0);
    for (frame, passes) in [
        (frame(0, protocol::TCP, (F::CLIENT, 1), (F::SERVER, 2), RST), false),
        (echo(0, F::ECHO_REPLY, F::CLIENT, F::SERVER, 1), false),
        (error(0, F::CLIENT, F::SERVER, &stray), false),
        (echo(0, F::ECHO_REQUEST, F::CLIENT, F::SERVER, 1), true),
        (frame(0, protocol::TCP, (F::CLIENT, 1), (F::SERVER, 2), SYN), true),
        // Not tracked: no rule for it.
        (F::ip(0, F::CLIENT, F::SERVER, 9, 47, &[0; 8]), true),
    ] {
        assert_eq!(router.world.one(0, frame.clone()).len(), usize::from(passes), "{frame:x?}");
    }
    assert_eq!([0, 1].map(|rule| router.count(rule)), [3, 2]);
    assert_eq!(router.policy(Chain::Forward), 1);
    // A ping's answer is the question's.
    assert_eq!(router.world.one(1, echo(1, F::ECHO_REPLY, F::SERVER, F::CLIENT, 1)).len(), 1);
    assert_eq!(router.world.one(1, echo(1, F::ECHO_REPLY, F::SERVER, F::CLIENT, 2)).len(), 0);
}

fn what_is_dropped_opens_nothing<F: TestFamily>() {
    let mut router = Router::<F>::new(stateful(), CLOSED);
    for n in 0..20 {
        let scan = frame::<F>(1, protocol::TCP, (F::SERVER, 53), (F::CLIENT, n), SYN);
        assert!(router.world.one(1, scan).is_empty());
    }
    assert_eq!(router.conntrack.connections(0).count(), 0);
}

/// Answers to what softnet sends come in, and its answers go out.
fn what_is_made_here_is_tracked<F: TestFamily>() {
    let on = |chain, state: &[FlowState]| Rule {
        chains: vec![chain],
        state: state.to_vec(),
        action: Action::Allow,
        ..Rule::default()
    };
    let belongs = [FlowState::Established, FlowState::Related];
    let rules =
        vec![on(Chain::Input, &belongs), on(Chain::Output, &[FlowState::New, FlowState::Established])];
    let mut router = Router::<F>::new(rules, [Action::Drop; 3]);
    let out = |router: &mut Router<F>, src: (F, u16), dst: (F, u16)| {
        let [from, to] = [src.0, dst.0].map(|addr| addr_of(addr.into()));
        let head = UdpHead { src: from, dst: to, sport: src.1, dport: dst.1, ttl: 64, tos: 0 };
        router.world.send(&head, b"data").len()
    };
    let own = (F::OWN[1], 5001);
    let answer = frame::<F>(1, protocol::UDP, (F::SERVER, 53), own, 0);
    router.world.one(1, answer.clone());
    assert_eq!((router.count(0), router.policy(Chain::Input)), (0, 1));
    assert_eq!(out(&mut router, own, (F::SERVER, 53)), 1);
    router.world.one(1, answer);
    assert_eq!((router.count(0), router.policy(Chain::Input), router.count(1)), (1, 1, 1));
    // softnet's own error about the answer, which no socket wanted, is neither new nor an answer.
    assert_eq!(router.policy(Chain::Output), 1);
}

/// Unanswered connections make room for new ones, answered ones do not.
fn a_full_table_refuses_new_connections<F: TestFamily>() {
    let mut router = Router::<F>::new(stateful(), CLOSED);
    let server = (F::SERVER, 53);
    let ask = |n: u16| frame::<F>(0, protocol::UDP, (F::CLIENT, n), server, 0);
    let answer = |n: u16| frame::<F>(1, protocol::UDP, server, (F::CLIENT, n), 0);
    let passed: usize = (2000..3030).map(|n| router.world.one(0, ask(n)).len()).sum();
    assert_eq!((passed, router.world.drops(DropReason::ConntrackFull)), (1030, 0));
    for n in 4000..5024 {
        assert_eq!(router.world.one(0, ask(n)).len(), 1);
        assert_eq!(router.world.one(1, answer(n)).len(), 1);
    }
    let passed: usize = (6000..6006).map(|n| router.world.one(0, ask(n)).len()).sum();
    assert_eq!((passed, router.world.drops(DropReason::ConntrackFull)), (0, 6));
    assert_eq!(router.world.one(0, ask(4003)).len(), 1, "what there is stays");
}

fn connections_expire<F: TestFamily>() {
    let mut router = Router::<F>::new(stateful(), CLOSED);
    let (client, server) = ((F::CLIENT, 5001), (F::SERVER, 53));
    router.world.one(0, frame(0, protocol::UDP, client, server, 0));
    router.world.pass(400 * SECOND);
    assert_eq!(router.world.one(1, frame(1, protocol::UDP, server, client, 0)).len(), 0);
    assert_eq!(router.conntrack.counts().entries, 0);
}

/// One that `rp_filter` drops does not make a connection an answered one.
fn a_spoofed_answer_changes_nothing<F: TestFamily>() {
    for (number, first) in [(protocol::UDP, State::UdpNew), (protocol::TCP, State::SynSent)] {
        let mut router = Router::<F>::new(stateful(), CLOSED);
        router.world.reconfigure(0, |iface| iface.rp_filter = RpFilter::Strict);
        let (client, server) = ((F::CLIENT, 5001), (F::SERVER, 53));
        assert_eq!(router.world.one(0, frame(0, number, client, server, SYN)).len(), 1);
        let answer = |dev| frame(dev, number, server, client, SYN | ACK);
        assert!(router.world.one(0, answer(0)).is_empty());
        assert_eq!(router.world.drops(DropReason::IpRpFilter), 1);
        let state = |router: &Router<F>| router.conntrack.connections(0).next().unwrap().state;
        assert_eq!(state(&router), first);
        assert_eq!(router.world.one(1, answer(1)).len(), 1);
        assert_ne!(state(&router), first);
    }
}

/// Behind NAT: what it looked up has its state, and rules see addresses inside.
#[test]
fn behind_nat() {
    type A = Ipv4Addr;
    let state = Arc::new(NatState::new(1 << 10, [1, 2, 3, 4], &Timeouts::default(), &crate::memory::Heap));
    let nat = NatRules { source: vec![SourceNat::new(1, vec![A::OWN[1]])], ..NatRules::default() };
    let hook = Arc::new(Nat::new(state.clone(), &nat).unwrap());
    let mut router = Router::<A>::new(vec![], [Action::Allow; 3]);
    let rules = Rules { rules: stateful(), sets: vec![], policies: CLOSED };
    let mut hooks = Hooks::default();
    hooks.set(Slot::Prerouting, Some(hook.clone()));
    hooks.set(Slot::Postrouting, Some(hook));
    Filter::new(&rules, Some((state.conntrack().clone(), Some(state.clone()))))
        .unwrap()
        .stand(&rules, &mut hooks);
    (router.world.tables.hooks, router.world.tracked) = (hooks, true);

    let (client, server) = ((A::CLIENT, 5001), (A::SERVER, 53));
    // By a route to what is inside.
    assert!(router.world.one(1, frame(1, protocol::UDP, server, client, 0)).is_empty());
    let sent = router.world.one(0, frame(0, protocol::UDP, client, server, 0));
    let hidden = packet(&sent[0].1);
    let (src, port) = (A::ends(hidden).unwrap().0, u16::from_be_bytes([hidden[20], hidden[21]]));
    assert_eq!(src, A::OWN[1]);
    let back = router.world.one(1, frame(1, protocol::UDP, server, (src, port), 0));
    assert_eq!(A::ends(packet(&back[0].1)).unwrap(), (A::SERVER, A::CLIENT));
    assert_eq!([0, 1].map(|rule| router.count(rule)), [1, 1]);
    // Still not by a route, and not to another port outside.
    assert!(router.world.one(1, frame(1, protocol::UDP, server, client, 0)).is_empty());
    assert_eq!(router.policy(Chain::Forward), 2);
    let error = error::<A>(1, A::SERVER, A::OWN[1], &sent[0].1);
    assert_eq!(router.world.one(1, error).len(), 1, "related");
    assert_eq!(router.conntrack.counts().entries, 0, "it is NAT's table");
}

/// What a packet that rules drop did to a connection that NAT opened before does not let others in: neither the opener's
/// FIN nor its reset makes it one that is established.
#[test]
fn a_forwarded_port_is_not_opened_by_what_was_dropped() {
    type A = Ipv4Addr;
    let state = Arc::new(NatState::new(1 << 10, [1, 2, 3, 4], &Timeouts::default(), &crate::memory::Heap));
    let (external, internal) = (SocketAddrV4::new(A::OWN[1], 8022), SocketAddrV4::new(A::CLIENT, 22));
    let nat = NatRules {
        source: vec![SourceNat::new(1, vec![A::OWN[1]])],
        forward: vec![PortForward { protocol: protocol::TCP, external, internal }],
        ..NatRules::default()
    };
    let hook = Arc::new(Nat::new(state.clone(), &nat).unwrap());
    for refusal in [Action::Drop, Action::Reject] {
        let mut router = Router::<A>::new(vec![], [Action::Allow; 3]);
        let policies = [Action::Allow, refusal, Action::Allow];
        let rules = Rules { rules: stateful(), sets: vec![], policies };
        let mut hooks = Hooks::default();
        hooks.set(Slot::Prerouting, Some(hook.clone()));
        hooks.set(Slot::Postrouting, Some(hook.clone()));
        Filter::new(&rules, Some((state.conntrack().clone(), Some(state.clone()))))
            .unwrap()
            .stand(&rules, &mut hooks);
        (router.world.tables.hooks, router.world.tracked) = (hooks, true);
        let to = (A::OWN[1], 8022);
        for flags in [SYN, FIN | ACK, SYN, ACK, RST, ACK, SYN] {
            let sent = router.world.one(1, frame(1, protocol::TCP, (A::SERVER, 4000), to, flags));
            assert!(sent.iter().all(|(dev, _)| *dev == 1), "{flags}: {sent:x?}");
        }
    }
}

/// A plain connection that takes the place of one of NAT has what that held given back.
#[test]
fn what_nat_held_is_given_back() {
    type A = Ipv4Addr;
    let state = Arc::new(NatState::new(16, [1, 2, 3, 4], &Timeouts::default(), &crate::memory::Heap));
    let nat = NatRules { source: vec![SourceNat::new(1, vec![A::OWN[1]])], ..NatRules::default() };
    let hook = Arc::new(Nat::new(state.clone(), &nat).unwrap());
    let mut router = Router::<A>::new(vec![], [Action::Allow; 3]);
    let mut new = forward(Action::Allow);
    new.state = vec![FlowState::New];
    let rules = Rules { rules: vec![new], sets: vec![], policies: CLOSED };
    let mut hooks = Hooks::default();
    hooks.set(Slot::Prerouting, Some(hook.clone()));
    hooks.set(Slot::Postrouting, Some(hook));
    Filter::new(&rules, Some((state.conntrack().clone(), Some(state.clone()))))
        .unwrap()
        .stand(&rules, &mut hooks);
    (router.world.tables.hooks, router.world.tracked) = (hooks, true);
    for port in 2000..2016 {
        let out = frame(0, protocol::UDP, (A::CLIENT, port), (A::SERVER, 53), 0);
        assert_eq!(router.world.one(0, out).len(), 1);
    }
    assert_eq!(state.mapping_counts().mappings, 16);
    for port in 3000..3016 {
        let came = frame(1, protocol::UDP, (A::SERVER, port), (A::CLIENT, 53), 0);
        assert_eq!(router.world.one(1, came).len(), 1);
    }
    let counts = state.conntrack().counts();
    assert!(counts.early_drop >= 16, "{counts:?}");
    assert!(state.mapping_counts().mappings <= counts.entries, "{:?} {counts:?}", state.mapping_counts());
    assert!(state.mapping_counts().mappings < 16);
}
