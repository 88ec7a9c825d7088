//! Rules at the hooks of a router between two links, for both families.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::super::{Action, Addresses, Chain, Filter, Rule, Rules};
use crate::conntrack::{Conntrack, Timeouts};
use crate::fold::FoldKey;
use crate::ip::Prefix;
use crate::ip::hooks::{Hooks, Slot};
use crate::ip::slow::world::{SECOND, Sent, TestFamily, World, packet};
use crate::ip::v4::header::protocol;
use crate::skb::DropReason;

pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

/// The router, and the rules that it has.
pub(super) struct Router<F: TestFamily> {
    pub(super) world: World<F>,
    pub(super) conntrack: Arc<Conntrack>,
}

/// A rule of `forward`.
pub(super) fn forward(action: Action) -> Rule {
    Rule { chains: vec![Chain::Forward], action, ..Rule::default() }
}

impl<F: TestFamily> Router<F> {
    pub(super) fn new(rules: Vec<Rule>, policies: [Action; 3]) -> Self {
        let conntrack =
            Conntrack::new(1 << 10, FoldKey::new([1, 2]), &Timeouts::default(), &crate::memory::Heap)
                .with_ipv6();
        let mut router = Router { world: World::acquainted(), conntrack: Arc::new(conntrack) };
        router.configure(&Rules { rules, sets: vec![], policies });
        router
    }

    pub(super) fn configure(&mut self, rules: &Rules) {
        let tracked = rules.ask_for_states().then(|| (self.conntrack.clone(), None));
        self.world.tracked = tracked.is_some();
        self.world.tables.hooks = Hooks::default();
        Filter::new(rules, tracked).unwrap().stand(rules, &mut self.world.tables.hooks);
    }

    /// Packets that a rule, or policy, decided.
    pub(super) fn count(&self, number: usize) -> u64 {
        self.world.ctx.stats().rule(number)[0]
    }

    pub(super) fn policy(&self, chain: Chain) -> u64 {
        self.count(chain.policy_number().into())
    }
}

/// A segment or datagram, its checksum right.
pub(super) fn l4<F: TestFamily>(
    number: u8,
    (src, sport): (F, u16),
    (dst, dport): (F, u16),
    flags: u8,
) -> Vec<u8> {
    let ports = [sport.to_be_bytes(), dport.to_be_bytes()].concat();
    let (mut l4, at) = match number {
        protocol::UDP => ([&ports[..], &[0, 12, 0, 0], b"data"].concat(), 6),
        _ => {
            let rest = [0, 0, 0, 7, 0, 0, 0, 9, 0x50, flags, 0x10, 0, 0, 0, 0, 0, 1, 2, 3];
            ([&ports[..], &rest].concat(), 16)
        }
    };
    let check = !F::sum(number, src, dst, &l4);
    l4[at..at + 2].copy_from_slice(&check.to_be_bytes());
    l4
}

/// The same in a frame by device `dev`.
pub(super) fn frame<F: TestFamily>(dev: u16, number: u8, src: (F, u16), dst: (F, u16), flags: u8) -> Vec<u8> {
    F::ip(dev, src.0, dst.0, 9, number, &l4(number, src, dst, flags))
}

/// Runs a test for both families.
macro_rules! for_both {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        mod v4 {
            $($(#[$doc])* #[test] fn $name() { super::$name::<std::net::Ipv4Addr>() })*
        }
        mod v6 {
            $($(#[$doc])* #[test] fn $name() { super::$name::<std::net::Ipv6Addr>() })*
        }
    };
}
pub(super) use for_both;

for_both! {
    the_first_rule_that_matches_decides,
    devices_and_addresses_are_asked,
    policies_of_each_hook,
    a_rejected_datagram_is_answered_by_an_error,
    a_rejected_segment_is_reset,
    resets_are_limited_as_errors_are,
    the_limit_is_asked_before_anything_is_built,
    later_fragments_have_no_ports,
    a_packet_cut_in_its_header_is_dropped,
}

fn the_first_rule_that_matches_decides<F: TestFamily>() {
    let port = |port: u16, action| Rule {
        protocol: vec![protocol::UDP],
        destination_port: vec![port..=port],
        ..forward(action)
    };
    let mut router = Router::<F>::new(
        vec![port(53, Action::Allow), port(54, Action::Drop), port(54, Action::Allow)],
        [Action::Allow, Action::Drop, Action::Allow],
    );
    for (dport, passes) in [(53, true), (54, false), (55, false), (53, true)] {
        let sent = router.world.one(0, frame(0, protocol::UDP, (F::CLIENT, 9), (F::SERVER, dport), 0));
        assert_eq!(sent.len(), usize::from(passes), "{dport}");
    }
    // Not UDP.
    assert!(router.world.one(0, frame(0, protocol::TCP, (F::CLIENT, 9), (F::SERVER, 53), SYN)).is_empty());
    assert_eq!([0, 1, 2].map(|rule| router.count(rule)), [2, 1, 0]);
    assert_eq!((router.policy(Chain::Forward), router.policy(Chain::Input)), (2, 0));
    assert_eq!(router.world.drops(DropReason::NetfilterDrop), 3);
    let bytes = F::HEADER as u64 + 12;
    assert_eq!(router.world.ctx.stats().rule(0), [2, 2 * bytes]);
}

fn devices_and_addresses_are_asked<F: TestFamily>() {
    let set = vec![Prefix::host(F::CLIENT.into()), Prefix::host(F::FAR.into())];
    let rules = vec![
        Rule { input: vec![1], output: vec![0], ..forward(Action::Drop) },
        Rule {
            source: vec![Addresses::Set(0)],
            destination: vec![Addresses::Set(0)],
            ..forward(Action::Drop)
        },
        Rule {
            source: vec![Addresses::Prefix(Prefix::host(F::host(0, 77).into()))],
            ..forward(Action::Drop)
        },
    ];
    let mut router = Router::<F>::new(vec![], [Action::Allow; 3]);
    router.configure(&Rules { rules, sets: vec![set], ..Rules::default() });
    let udp = |dev, src: F, dst: F| frame(dev, protocol::UDP, (src, 9), (dst, 9), 0);
    for (dev, src, dst, passes) in [
        (1, F::SERVER, F::CLIENT, false),
        (0, F::CLIENT, F::FAR, false),
        (0, F::CLIENT, F::SERVER, true),
        (0, F::host(0, 77), F::SERVER, false),
    ] {
        let sent = router.world.one(dev, udp(dev, src, dst));
        assert_eq!(sent.len(), usize::from(passes), "{src} {dst}");
    }
    assert_eq!([0, 1, 2].map(|rule| router.count(rule)), [1, 1, 1]);
    assert_eq!(router.policy(Chain::Forward), 1);
}

fn policies_of_each_hook<F: TestFamily>() {
    let ping = |world: &mut World<F>| {
        let mut echo = vec![F::ECHO_REQUEST, 0, 0, 0, 0, 1, 0, 1];
        let pseudo = if F::ICMP == protocol::ICMP {
            !crate::ip::checksum::sum(&echo)
        } else {
            !F::sum(F::ICMP, F::CLIENT, F::OWN[0], &echo)
        };
        echo[2..4].copy_from_slice(&pseudo.to_be_bytes());
        world.one(0, F::ip(0, F::CLIENT, F::OWN[0], 9, F::ICMP, &echo)).len()
    };
    let mut router = Router::<F>::new(vec![], [Action::Allow; 3]);
    for slot in [Slot::Prerouting, Slot::Input, Slot::Forward, Slot::Output, Slot::Postrouting] {
        assert!(!router.world.tables.hooks.is_set(slot), "a table without rules costs nothing");
    }
    assert_eq!(ping(&mut router.world), 1);
    for (policies, answers) in [
        ([Action::Drop, Action::Allow, Action::Allow], 0),
        ([Action::Allow, Action::Drop, Action::Allow], 1),
        ([Action::Allow, Action::Allow, Action::Drop], 0),
        // What is made here is not told of.
        ([Action::Allow, Action::Allow, Action::Reject], 0),
    ] {
        router.configure(&Rules { policies, ..Rules::default() });
        assert_eq!(ping(&mut router.world), answers, "{policies:?}");
    }
    // Neighbours are found, whatever the rules say.
    router.configure(&Rules { policies: [Action::Drop; 3], ..Rules::default() });
    let sent = router.world.one(0, F::question(0, F::CLIENT, crate::ip::slow::world::CLIENT_MAC));
    F::assert_answered(&sent[0], 0, F::OWN[0], (F::CLIENT, crate::ip::slow::world::CLIENT_MAC));
}

fn a_rejected_datagram_is_answered_by_an_error<F: TestFamily>() {
    let mut router = Router::<F>::new(vec![forward(Action::Reject)], [Action::Allow; 3]);
    let original = frame::<F>(0, protocol::UDP, (F::CLIENT, 9), (F::SERVER, 53), 0);
    let sent = router.world.one(0, original);
    assert_eq!((sent.len(), sent[0].0), (1, 0));
    let (error, at) = (packet(&sent[0].1), F::HEADER);
    let (src, dst) = F::ends(error).unwrap();
    assert_eq!((src, dst), (F::OWN[0], F::CLIENT));
    let prohibited = if F::ICMP == protocol::ICMP { [3, 13] } else { [1, 1] };
    assert_eq!(error[at..at + 2], prohibited);
    assert_eq!(router.world.drops(DropReason::NetfilterDrop), 1);
    // About what is softnet's, too.
    let rule = Rule { chains: vec![Chain::Input], ..forward(Action::Reject) };
    router.configure(&Rules { rules: vec![rule], ..Rules::default() });
    let sent = router.world.one(0, frame::<F>(0, protocol::UDP, (F::CLIENT, 9), (F::OWN[0], 53), 0));
    assert_eq!(packet(&sent[0].1)[at..at + 2], prohibited);
    assert_eq!((sent.len(), router.world.drops(DropReason::NetfilterDrop)), (1, 2));
}

/// What a reset says: its ports, sequence number, acknowledgement and flags; from and to where.
fn reset<F: TestFamily>(sent: &Sent) -> (F, F, u16, u16, u32, u32, u8) {
    assert_eq!((sent.len(), sent[0].0), (1, 0), "{sent:x?}");
    let reset = packet(&sent[0].1);
    let (src, dst) = F::ends(reset).unwrap();
    let segment = &reset[F::HEADER..F::HEADER + 20];
    assert_eq!(F::total_len(reset), Some(F::HEADER + 20));
    assert_eq!(F::sum(protocol::TCP, src, dst, segment), 0xffff);
    let port = |at: usize| u16::from_be_bytes([segment[at], segment[at + 1]]);
    let word = |at: usize| u32::from_be_bytes(*segment[at..].first_chunk().unwrap());
    (src, dst, port(0), port(2), word(4), word(8), segment[13])
}

fn a_rejected_segment_is_reset<F: TestFamily>() {
    let mut router = Router::<F>::new(vec![forward(Action::Reject)], [Action::Allow; 3]);
    let mut segment =
        |flags| router.world.one(0, frame(0, protocol::TCP, (F::CLIENT, 9), (F::SERVER, 80), flags));
    // As from the server: three bytes and a SYN.
    assert_eq!(reset::<F>(&segment(SYN)), (F::SERVER, F::CLIENT, 80, 9, 0, 7 + 4, RST | ACK));
    assert_eq!(reset::<F>(&segment(ACK)), (F::SERVER, F::CLIENT, 80, 9, 9, 0, RST));
    assert!(segment(RST).is_empty());
    let mut damaged = frame::<F>(0, protocol::TCP, (F::CLIENT, 9), (F::SERVER, 80), SYN);
    *damaged.last_mut().unwrap() ^= 1;
    assert!(router.world.one(0, damaged).is_empty());
    assert_eq!(router.world.drops(DropReason::NetfilterDrop), 4);
}

fn resets_are_limited_as_errors_are<F: TestFamily>() {
    let mut router = Router::<F>::new(vec![forward(Action::Reject)], [Action::Allow; 3]);
    router.world.control.slow.configure(Default::default(), Default::default());
    let mut told = 0;
    for n in 0..100 {
        told += router.world.one(0, frame(0, protocol::TCP, (F::CLIENT, n), (F::SERVER, 80), SYN)).len();
    }
    assert!((1..=10).contains(&told), "{told}");
    router.world.pass(10 * SECOND);
    assert_eq!(router.world.one(0, frame(0, protocol::TCP, (F::CLIENT, 9), (F::SERVER, 80), SYN)).len(), 1);
    assert_eq!(router.world.drops(DropReason::NetfilterDrop), 101);
}

/// Also about what is damaged, which is summed only after that.
fn the_limit_is_asked_before_anything_is_built<F: TestFamily>() {
    let mut router = Router::<F>::new(vec![forward(Action::Reject)], [Action::Allow; 3]);
    router.world.control.slow.configure(Default::default(), Default::default());
    let segment = |flags| frame::<F>(0, protocol::TCP, (F::CLIENT, 9), (F::SERVER, 80), flags);
    // What is never answered is not limited.
    (0..100).for_each(|_| assert!(router.world.one(0, segment(RST)).is_empty()));
    let limited = |router: &Router<F>| router.world.control.slow.icmp_limited();
    assert_eq!(limited(&router), (0, 0));
    let mut damaged = segment(SYN);
    *damaged.last_mut().unwrap() ^= 1;
    (0..100).for_each(|_| assert!(router.world.one(0, damaged.clone()).is_empty()));
    assert_ne!(limited(&router), (0, 0));
}

/// Fragments of a datagram to `dport`, by the client's device.
fn fragments<F: TestFamily>(dport: u16, first: usize) -> Vec<Vec<u8>> {
    let payload = l4(protocol::UDP, (F::CLIENT, 9), (F::SERVER, dport), 0);
    let piece = |offset: usize, more: bool, bytes: &[u8]| match F::HEADER {
        20 => {
            let mut frame = F::ip(0, F::CLIENT, F::SERVER, 9, protocol::UDP, bytes);
            let word = (offset / 8) as u16 | u16::from(more) << 13;
            frame[20..22].copy_from_slice(&word.to_be_bytes());
            crate::ip::slow::world::v4::mend(frame)
        }
        _ => {
            let word = offset as u16 | u16::from(more);
            let [a, b] = word.to_be_bytes();
            F::ip(0, F::CLIENT, F::SERVER, 9, 44, &[&[17, 0, a, b, 0, 0, 0, 5][..], bytes].concat())
        }
    };
    vec![piece(0, true, &payload[..first]), piece(8, false, &payload[8..])]
}

fn later_fragments_have_no_ports<F: TestFamily>() {
    let dport =
        |action| Rule { protocol: vec![protocol::UDP], destination_port: vec![53..=53], ..forward(action) };
    let mut router = Router::<F>::new(vec![dport(Action::Drop)], [Action::Allow; 3]);
    let passed = |router: &mut Router<F>| {
        let all = fragments::<F>(53, 8);
        all.into_iter().map(|frame| router.world.one(0, frame).len()).collect::<Vec<_>>()
    };
    // The rest of what is dropped is of no use.
    assert_eq!(passed(&mut router), [0, 1]);
    router.configure(&Rules {
        rules: vec![dport(Action::Allow)],
        policies: [Action::Drop; 3],
        ..Rules::default()
    });
    assert_eq!(passed(&mut router), [1, 0]);
    // By protocol and address they are matched.
    let udp = Rule { protocol: vec![protocol::UDP], ..forward(Action::Allow) };
    router.configure(&Rules { rules: vec![udp], policies: [Action::Drop; 3], ..Rules::default() });
    assert_eq!(passed(&mut router), [1, 1]);
}

fn a_packet_cut_in_its_header_is_dropped<F: TestFamily>() {
    let dport =
        Rule { protocol: vec![protocol::UDP], destination_port: vec![53..=53], ..forward(Action::Drop) };
    let mut router = Router::<F>::new(vec![dport], [Action::Allow; 3]);
    let short = F::ip(0, F::CLIENT, F::SERVER, 9, protocol::UDP, &[0, 9, 0, 53, 0, 0, 0]);
    let before = router.world.drops(DropReason::PktTooSmall);
    assert!(router.world.one(0, short).is_empty());
    assert_eq!(router.world.drops(DropReason::PktTooSmall), before + 1);
    assert_eq!((router.count(0), router.policy(Chain::Forward)), (0, 0));
}

/// Rules for one family do not match the other.
#[test]
fn addresses_of_one_family_are_none_of_the_other() {
    let source = vec![Addresses::Prefix(
        Prefix::<std::net::IpAddr>::containing(Ipv4Addr::UNSPECIFIED.into(), 0).unwrap(),
    )];
    let rules = vec![Rule { source, ..forward(Action::Drop) }];
    let mut four = Router::<Ipv4Addr>::new(rules.clone(), [Action::Allow; 3]);
    let mut six = Router::<Ipv6Addr>::new(rules, [Action::Allow; 3]);
    let udp = frame(0, protocol::UDP, (Ipv4Addr::CLIENT, 9), (Ipv4Addr::SERVER, 9), 0);
    assert!(four.world.one(0, udp).is_empty());
    let udp = frame(0, protocol::UDP, (Ipv6Addr::CLIENT, 9), (Ipv6Addr::SERVER, 9), 0);
    assert_eq!(six.world.one(0, udp).len(), 1);
}
