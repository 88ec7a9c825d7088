//! Fragments, where rules ask for states: they are seen as the datagrams that they are of.

use super::super::{Action, Chain, FlowState, Rule};
use super::hook::{Router, for_both, forward, frame};
use super::track::{CLOSED, stateful};
use crate::ip::ETH_LEN;
use crate::ip::slow::world::v4::mend;
use crate::ip::slow::world::{SERVER_MAC, TestFamily, packet, set};
use crate::ip::v4::header::protocol;
use crate::ip::v6::header::next;
use crate::skb::DropReason;
use crate::sock::key::addr_of;
use crate::sock::udp::output::UdpHead;

for_both! {
    what_is_new_is_refused_in_fragments,
    fragments_of_a_connection_pass,
    fragments_to_softnet_are_of_its_connections,
    what_is_not_whole_does_not_pass,
}

/// A datagram between these ports, with `len` bytes of payload.
fn datagram<F: TestFamily>((src, sport): (F, u16), (dst, dport): (F, u16), len: usize) -> Vec<u8> {
    let total = 8 + len as u16;
    let ports = [sport.to_be_bytes(), dport.to_be_bytes(), total.to_be_bytes(), [0; 2]].concat();
    let mut l4: Vec<u8> = ports.into_iter().chain((0..len).map(|n| n as u8)).collect();
    let check = !F::sum(protocol::UDP, src, dst, &l4);
    l4[6..8].copy_from_slice(&check.to_be_bytes());
    l4
}

/// A Fragment header of IPv6.
fn header6(next: u8, at: usize, more: bool) -> [u8; 8] {
    let [a, b] = (at as u16 | u16::from(more)).to_be_bytes();
    [next, 0, a, b, 0, 0, 0, 5]
}

/// The frames by device `dev` of the datagram in `l4`, cut after each `room` bytes.
fn parts<F: TestFamily>(dev: u16, src: F, dst: F, l4: &[u8], room: usize) -> Vec<Vec<u8>> {
    let piece = |(n, piece): (usize, &[u8])| {
        let (at, more) = (n * room, (n + 1) * room < l4.len());
        match F::HEADER {
            20 => {
                let word = (at / 8) as u16 | u16::from(more) << 13;
                let frame = F::ip(dev, src, dst, 9, protocol::UDP, piece);
                mend(set(set(frame, 20, &word.to_be_bytes()), 18, &[0, 5]))
            }
            _ => {
                let header = header6(protocol::UDP, at, more);
                F::ip(dev, src, dst, 9, next::FRAGMENT, &[&header[..], piece].concat())
            }
        }
    };
    l4.chunks(room).enumerate().map(piece).collect()
}

/// What is sent of these frames by device `dev`.
fn sent<F: TestFamily>(router: &mut Router<F>, dev: u16, frames: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
    frames.iter().flat_map(|frame| router.world.one(dev, frame.clone())).collect()
}

fn what_is_new_is_refused_in_fragments<F: TestFamily>() {
    let rule = Rule { input: vec![1], state: vec![FlowState::New], ..forward(Action::Drop) };
    let l4 = datagram::<F>((F::SERVER, 53), (F::CLIENT, 5001), 100);
    for order in 0..3 {
        let mut router = Router::<F>::new(vec![rule.clone()], [Action::Allow; 3]);
        let mut frames = parts(1, F::SERVER, F::CLIENT, &l4, 40);
        frames.rotate_left(order);
        assert!(sent(&mut router, 1, &frames).is_empty(), "{order}");
        assert_eq!((router.count(0), router.world.drops(DropReason::NetfilterDrop)), (1, 1));
        // From the other side it opens a connection.
        let ask = datagram::<F>((F::CLIENT, 5001), (F::SERVER, 53), 100);
        assert!(!sent(&mut router, 0, &parts(0, F::CLIENT, F::SERVER, &ask, 40)).is_empty());
        assert_eq!(router.conntrack.connections(0).count(), 1);
        assert!(!sent(&mut router, 1, &frames).is_empty(), "an answer");
    }
}

/// Those of IPv6 leave as they came, one hop older.
fn fragments_of_a_connection_pass<F: TestFamily>() {
    let l4 = datagram::<F>((F::SERVER, 53), (F::CLIENT, 5001), 2000);
    for order in 0..3 {
        let mut router = Router::<F>::new(stateful(), CLOSED);
        let ask = frame::<F>(0, protocol::UDP, (F::CLIENT, 5001), (F::SERVER, 53), 0);
        assert_eq!(router.world.one(0, ask).len(), 1);
        let whole = parts(1, F::SERVER, F::CLIENT, &l4, 800);
        let mut frames = whole.clone();
        frames.rotate_left(order);
        let out = sent(&mut router, 1, &frames);
        assert!(out.iter().all(|(dev, _)| *dev == 0), "{order}");
        let header = if F::HEADER == 20 { 20 } else { 48 };
        let bytes: Vec<_> = out.iter().flat_map(|(_, frame)| packet(frame)[header..].to_vec()).collect();
        assert_eq!(bytes, l4);
        if F::HEADER == 40 {
            assert_eq!(out.len(), whole.len());
            for (frame, original) in out.iter().zip(&whole) {
                assert_eq!(packet(&frame.1), packet(&F::hop(original.clone())));
            }
        }
        assert_eq!((router.count(0), router.policy(Chain::Forward)), (1, 0));
    }
}

/// Answers to what its sockets sent.
fn fragments_to_softnet_are_of_its_connections<F: TestFamily>() {
    let rule = Rule {
        chains: vec![Chain::Input],
        state: vec![FlowState::Established],
        action: Action::Allow,
        ..Rule::default()
    };
    let mut router = Router::<F>::new(vec![rule], [Action::Drop, Action::Allow, Action::Allow]);
    let own = (F::OWN[1], 5001);
    let l4 = datagram::<F>((F::SERVER, 53), own, 2000);
    let answer = parts(1, F::SERVER, own.0, &l4, 800);
    assert!(sent(&mut router, 1, &answer).is_empty());
    assert_eq!((router.count(0), router.policy(Chain::Input)), (0, 1), "nothing asked for it");
    let [src, dst] = [own.0, F::SERVER].map(|addr| addr_of(addr.into()));
    let head = UdpHead { src, dst, sport: own.1, dport: 53, ttl: 64, tos: 0 };
    assert_eq!(router.world.send(&head, b"data").len(), 1);
    sent(&mut router, 1, &answer);
    assert_eq!((router.count(0), router.policy(Chain::Input)), (1, 1));
}

fn what_is_not_whole_does_not_pass<F: TestFamily>() {
    let mut router =
        Router::<F>::new(vec![Rule { input: vec![0], ..stateful()[1].clone() }], [Action::Allow; 3]);
    let l4 = datagram::<F>((F::CLIENT, 5001), (F::SERVER, 53), 100);
    let frames = parts(0, F::CLIENT, F::SERVER, &l4, 40);
    assert!(sent(&mut router, 0, &frames[1..]).is_empty());
    assert_eq!(router.world.held(), 2);
    router.world.pass(120 * crate::ip::slow::world::SECOND);
    assert_eq!((router.world.held(), router.world.drops(DropReason::FragReasmTimeout)), (0, 2));
}

type A = std::net::Ipv6Addr;

/// A packet that is its only fragment is what it would be without the header, and keeps that.
#[test]
fn an_atomic_fragment_has_the_state_of_its_packet() {
    let atomic = |dev: u16, src: A, dst: A, l4: &[u8], headers: &[u8]| {
        A::ip(dev, src, dst, 9, next::FRAGMENT, &[headers, l4].concat())
    };
    let one = header6(protocol::UDP, 0, false);
    let answer = datagram((A::SERVER, 53), (A::CLIENT, 5001), 30);
    let mut router = Router::<A>::new(stateful(), CLOSED);
    let back = atomic(1, A::SERVER, A::CLIENT, &answer, &one);
    assert!(router.world.one(1, back.clone()).is_empty(), "nothing asked for it");
    let ask = datagram((A::CLIENT, 5001), (A::SERVER, 53), 30);
    let out = atomic(0, A::CLIENT, A::SERVER, &ask, &one);
    A::assert_forwarded(&router.world.one(0, out.clone())[0], &out, 1, SERVER_MAC);
    let sent = router.world.one(1, back.clone());
    assert_eq!(packet(&sent[0].1), packet(&A::hop(back)));
    assert_eq!([0, 1].map(|rule| router.count(rule)), [1, 1]);
    // Two such headers hide what is behind them from some, and are refused.
    let two = [header6(next::FRAGMENT, 0, false), one].concat();
    let rule = Rule { input: vec![1], state: vec![FlowState::New], ..forward(Action::Drop) };
    let mut router = Router::<A>::new(vec![rule], [Action::Allow; 3]);
    let sent = router.world.one(1, atomic(1, A::SERVER, A::CLIENT, &answer, &two));
    assert!(sent.iter().all(|(dev, _)| *dev == 1), "{sent:x?}");
    assert_eq!(router.world.drops(DropReason::FragInvalid), 1);
}

/// Its sender is told of the fragment that does not fit.
#[test]
fn a_fragment_that_is_too_long_is_reported() {
    let mut router = Router::<A>::new(stateful(), CLOSED);
    let l4 = datagram((A::CLIENT, 5001), (A::SERVER, 53), 2000);
    let frames = parts(0, A::CLIENT, A::SERVER, &l4, 1400);
    let sent = sent(&mut router, 0, &frames);
    assert_eq!(sent.len(), 1);
    assert_eq!(A::error(&sent[0], &frames[0]), A::too_big(1280));
    assert_eq!((router.world.drops(DropReason::PktTooBig), packet(&sent[0].1).len() > ETH_LEN), (1, true));
}
