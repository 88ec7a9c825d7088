use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::super::testing::context;
use super::*;
use crate::SoftnetData;
use crate::skb::Skb;

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
const IP4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const IP: IpAddr = IpAddr::V4(IP4);
const A: MacAddr = [2, 0, 0, 0, 0, 0xa];
const B: MacAddr = [2, 0, 0, 0, 0, 0xb];

/// The kernel's defaults, but that few entries are collected as many are.
pub(super) fn eager() -> NeighParams {
    NeighParams { gc_thresh1: 0, ..NeighParams::default() }
}

/// A table and what it wanted, in words.
pub(super) struct Bench {
    pub(super) table: NeighTable,
    pub(super) actions: Actions,
    ctx: SoftnetData,
    /// Packets made so far; each carries its number.
    made: u32,
    /// What the fast path was told, in order.
    pub(super) told: Vec<(u16, IpAddr, Option<MacAddr>)>,
}

impl Bench {
    pub(super) fn new(params: NeighParams) -> Self {
        Bench {
            table: NeighTable::new(params, 1),
            actions: Actions::new(),
            ctx: context(),
            made: 0,
            told: vec![],
        }
    }

    /// The next packet in so many frames.
    fn chain(&mut self, frames: usize) -> Skb {
        let mut skb = self.skb();
        for _ in 1..frames {
            let more = self.ctx.alloc_skb().unwrap();
            skb.append(more).unwrap();
        }
        skb
    }

    pub(super) fn skb(&mut self) -> Skb {
        let mut skb = self.ctx.alloc_skb().unwrap();
        skb.put(4).unwrap().copy_from_slice(&self.made.to_be_bytes());
        self.made += 1;
        skb
    }

    /// Carries the actions out: one line for each.
    pub(super) fn log(&mut self) -> Vec<String> {
        let (ctx, all_told) = (&mut self.ctx, &mut self.told);
        let mut numbers = |mut skbs: SkbList| {
            let mut all = vec![];
            while let Some(skb) = skbs.pop_front() {
                all.push(u32::from_be_bytes(skb.data().try_into().unwrap()));
                ctx.deliver(skb);
            }
            format!("{all:?}")
        };
        let last = |mac: MacAddr| format!("{:x}", mac[5]);
        let lines = self.actions.drain().map(|action| match action {
            Action::Solicit { unicast_to: None, .. } => "ask all".to_owned(),
            Action::Solicit { unicast_to: Some(mac), .. } => format!("ask {}", last(mac)),
            Action::Publish { dev, ip, state, mac, told } => {
                assert_eq!(mac.is_some(), state.is_valid());
                all_told.extend(told.map(|mac| (dev, ip, mac)));
                format!("{}{}", state.name(), mac.map(|m| format!(" {}", last(m))).unwrap_or_default())
            }
            Action::Transmit { mac, skbs, .. } => format!("send {} {}", last(mac), numbers(skbs)),
            Action::Fail { reason, skbs, .. } => format!("{} {}", reason.name(), numbers(skbs)),
        });
        lines.collect()
    }

    pub(super) fn resolve(&mut self, now: u64) -> Vec<String> {
        self.resolve_ip(now, IP)
    }

    pub(super) fn resolve_ip(&mut self, now: u64, ip: IpAddr) -> Vec<String> {
        let skb = self.skb();
        self.table.resolve(now, 1, ip, skb, &mut self.actions);
        self.log()
    }

    pub(super) fn hear(&mut self, now: u64, mac: MacAddr, heard: Heard) -> Vec<String> {
        self.table.input(now, 1, IP, mac, heard, &mut self.actions);
        self.log()
    }

    fn used(&mut self, now: u64) -> Vec<String> {
        self.table.used(now, 1, IP, &mut self.actions);
        self.log()
    }

    pub(super) fn poll(&mut self, now: u64) -> Vec<String> {
        self.table.poll(now, &mut self.actions);
        self.log()
    }

    /// Everything that happens by itself up to `until`, each with its time in ms after `from`.
    pub(super) fn run(&mut self, from: u64, until: u64) -> Vec<String> {
        let mut all = vec![];
        while let Some(at) = self.table.next_deadline().filter(|at| *at <= until) {
            all.extend(self.poll(at).into_iter().map(|line| format!("{}: {line}", (at - from) / MS)));
        }
        all
    }

    fn entry(&self) -> NeighEntry {
        self.table.entries().next().unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.table.shutdown(&mut self.actions);
        self.log();
        assert_eq!((self.table.held(), self.table.next_deadline()), (0, None));
    }
}

#[test]
fn an_answer_lets_the_packets_go() {
    let mut b = Bench::new(NeighParams::default());
    assert_eq!(b.resolve(0), ["INCOMPLETE", "ask all"]);
    assert_eq!(b.resolve(1), [""; 0]);
    assert_eq!((b.table.held(), b.entry().queued), (2, 2));
    assert_eq!(b.poll(S - 1), [""; 0]);
    assert_eq!(b.poll(S), ["ask all"]);
    assert_eq!(b.hear(S + 1, A, Heard::Reply), ["REACHABLE a", "send a [0, 1]"]);
    assert_eq!(b.resolve(S + 2), ["send a [2]"]);
    assert_eq!(b.used(S + 2), [""; 0]);
    assert_eq!(b.table.held(), 0);
}

#[test]
fn silence_fails_them_and_the_next_ones_at_once() {
    let mut b = Bench::new(eager());
    b.resolve(0);
    b.resolve(0);
    assert_eq!(
        b.run(0, 3 * S),
        ["1000: ask all", "2000: ask all", "3000: FAILED", "3000: neigh_failed [0, 1]"]
    );
    assert_eq!(b.resolve(3 * S + 1), ["neigh_failed [2]"]);
    assert_eq!(b.resolve(4 * S - 1), ["neigh_failed [3]"]);
    assert_eq!(b.resolve(4 * S), ["INCOMPLETE", "ask all"]);
    // No packet needs it any more: the entry goes a minute after it failed.
    assert_eq!(
        b.run(4 * S, u64::MAX - 1),
        ["1000: ask all", "2000: ask all", "3000: FAILED", "3000: neigh_failed [4]", "63000: NONE"]
    );
    assert_eq!(b.table.entries().len(), 0);
}

#[test]
fn a_late_poll_does_not_catch_up_in_a_burst() {
    let mut b = Bench::new(NeighParams::default());
    b.resolve(0);
    assert_eq!(b.poll(100 * S), ["ask all"]);
    assert_eq!(b.table.next_deadline(), Some(101 * S));
}

#[test]
fn stale_delay_probe_and_back() {
    let mut b = Bench::new(NeighParams::default());
    b.resolve(0);
    b.hear(0, A, Heard::Reply);
    let expiry = b.table.next_deadline().unwrap();
    assert!((15 * S..=45 * S).contains(&expiry));
    assert_eq!(b.poll(expiry), ["STALE a"]);
    assert_eq!(b.used(expiry + S), ["DELAY a"]);
    assert_eq!(b.used(expiry + 2 * S), [""; 0]);
    assert_eq!(b.poll(expiry + 6 * S), ["PROBE a", "ask a"]);
    assert_eq!(b.poll(expiry + 7 * S), ["ask a"]);
    assert_eq!(b.hear(expiry + 7 * S, A, Heard::Reply), ["REACHABLE a"]);
    // A confirmation while reachable is no news, but it moves the end.
    let expiry = b.table.next_deadline().unwrap();
    assert_eq!(b.hear(expiry - 1, A, Heard::Reply), [""; 0]);
    assert!(b.table.next_deadline().unwrap() >= expiry - 1 + 15 * S);
    assert_eq!(b.poll(expiry), [""; 0]);
}

#[test]
fn a_dead_neighbour_is_found_out_and_asked_for_anew_at_once() {
    let mut b = Bench::new(NeighParams::default());
    b.hear(0, A, Heard::Request);
    assert_eq!(b.resolve(S), ["DELAY a", "send a [0]"]);
    assert_eq!(
        b.run(S, 9 * S),
        ["5000: PROBE a", "5000: ask a", "6000: ask a", "7000: ask a", "8000: FAILED"]
    );
    assert_eq!(b.resolve(9 * S), ["INCOMPLETE", "ask all"]);
    assert_eq!(b.hear(9 * S, B, Heard::Reply), ["REACHABLE b", "send b [1]"]);
}

#[test]
fn unused_stale_entries_go() {
    let mut b = Bench::new(eager());
    assert_eq!(b.hear(7, A, Heard::Request), ["STALE a"]);
    assert_eq!(b.poll(7 + 60 * S - 1), [""; 0]);
    assert_eq!(b.poll(7 + 60 * S), ["NONE"]);
    assert_eq!(b.table.entries().len(), 0);
}

#[test]
fn which_packets_make_an_entry_and_which_change_it() {
    let mut b = Bench::new(NeighParams::default());
    for heard in [Heard::Reply, Heard::Gratuitous, Heard::Other] {
        assert_eq!(b.hear(0, A, heard), [""; 0]);
    }
    assert_eq!(b.table.entries().len(), 0);
    assert_eq!(b.hear(0, [3, 0, 0, 0, 0, 1], Heard::Request), [""; 0]);
    assert_eq!(b.hear(0, A, Heard::Request), ["STALE a"]);
    // Within locktime plain packets change nothing, announcements and requests to us do.
    assert_eq!(b.hear(S - 1, B, Heard::Reply), [""; 0]);
    assert_eq!(b.hear(S - 1, B, Heard::Other), [""; 0]);
    assert_eq!(b.hear(S - 1, B, Heard::Gratuitous), ["STALE b"]);
    assert_eq!(b.hear(S - 1, A, Heard::Request), ["STALE a"]);
    assert_eq!(b.hear(2 * S - 1, B, Heard::Other), ["STALE b"]);
    assert_eq!(b.hear(3 * S, A, Heard::Reply), ["REACHABLE a"]);
    // The same again from a neighbour that is reachable does not make it stale.
    for heard in [Heard::Request, Heard::Gratuitous, Heard::Other] {
        assert_eq!(b.hear(5 * S, A, heard), [""; 0]);
    }
    assert_eq!(b.hear(5 * S, B, Heard::Gratuitous), ["STALE b"]);
}

/// RFC 4861 section 7.2.5, and its appendix C.
#[test]
fn what_an_advertisement_changes() {
    const ADVERTS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];
    for (solicited, overrides) in ADVERTS {
        let advert = Heard::Advert { solicited, overrides };
        let confirms = |mac| format!("{} {mac}", if solicited { "REACHABLE" } else { "STALE" });
        // No request was sent: nothing to know.
        let mut b = Bench::new(NeighParams::default());
        assert_eq!(b.hear(0, A, advert), [""; 0]);
        assert_eq!(b.table.entries().len(), 0);
        // The answer: what waits was the use of it, if it does not confirm.
        b.resolve(0);
        let answered = if solicited { "REACHABLE a" } else { "DELAY a" };
        assert_eq!(b.hear(1, A, advert), [answered, "send a [0]"]);
        // The same address again is news only if it confirms.
        let mut b = Bench::new(NeighParams::default());
        b.hear(0, A, Heard::Request);
        assert_eq!(b.hear(1, A, advert), if solicited { vec!["REACHABLE a"] } else { vec![] });
        // Another address, also right after the last change.
        let mut b = Bench::new(NeighParams::default());
        b.hear(0, A, Heard::Request);
        let changed = if overrides { vec![confirms("b")] } else { vec![] };
        assert_eq!(b.hear(1, B, advert), changed);
        let mut b = Bench::new(NeighParams::default());
        b.resolve(0);
        b.hear(0, A, Heard::Advert { solicited: true, overrides: true });
        let doubted = if overrides { confirms("b") } else { "STALE a".into() };
        assert_eq!(b.hear(1, B, advert), [doubted]);
    }
}

#[test]
fn a_request_from_the_wanted_neighbour_answers_too() {
    let mut b = Bench::new(NeighParams::default());
    b.resolve(0);
    assert_eq!(b.hear(1, A, Heard::Request), ["DELAY a", "send a [0]"]);
    let mut b = Bench::new(NeighParams::default());
    b.resolve(0);
    b.run(0, 3 * S);
    assert_eq!(b.hear(3 * S, A, Heard::Gratuitous), ["STALE a"]);
}

#[test]
fn the_oldest_of_too_many_goes() {
    let mut b = Bench::new(NeighParams::default());
    b.resolve(0);
    for _ in 1..101 {
        assert_eq!(b.resolve(0), [""; 0]);
    }
    assert_eq!(b.resolve(0), ["neigh_queuefull [0]"]);
    assert_eq!(b.resolve(0), ["neigh_queuefull [1]"]);
    assert_eq!(b.table.held(), 101);
    let all: Vec<u32> = (2..103).collect();
    assert_eq!(b.hear(1, A, Heard::Reply), ["REACHABLE a".to_owned(), format!("send a {all:?}")]);

    let mut b = Bench::new(NeighParams { unres_qlen: 0, ..NeighParams::default() });
    assert_eq!(b.resolve(0), ["INCOMPLETE", "ask all", "neigh_queuefull [0]"]);

    let mut b = Bench::new(NeighParams { unres_total: 2, ..NeighParams::default() });
    b.resolve(0);
    b.resolve(0);
    assert_eq!(
        b.resolve_ip(0, Ipv4Addr::new(10, 0, 0, 3).into()),
        ["INCOMPLETE", "ask all", "neigh_queuefull [0]"],
        "of the neighbour that is silent for the longest time"
    );
    assert_eq!(b.resolve(0), ["neigh_queuefull [1]"]);
    let mut b = Bench::new(NeighParams { unres_total: 0, ..NeighParams::default() });
    assert_eq!(b.resolve(0), ["INCOMPLETE", "ask all", "neigh_queuefull [0]"]);
}

/// What waits is bounded by the frames that it takes, whatever number of packets that is.
#[test]
fn a_packet_of_several_frames_counts_for_each() {
    let wait = |b: &mut Bench, ip: IpAddr, frames: usize| {
        let skb = b.chain(frames);
        b.table.resolve(0, 1, ip, skb, &mut b.actions);
        b.log()
    };
    let mut b = Bench::new(NeighParams { unres_qlen: 4, unres_total: 6, ..NeighParams::default() });
    wait(&mut b, IP, 1);
    assert_eq!(wait(&mut b, IP, 3), [""; 0]);
    assert_eq!(wait(&mut b, IP, 1), ["neigh_queuefull [0]"]);
    assert_eq!(wait(&mut b, IP, 4), ["neigh_queuefull [1]", "neigh_queuefull [2]"]);
    // No room will do.
    assert_eq!(wait(&mut b, IP, 5), ["neigh_queuefull [4]"]);
    let other = Ipv4Addr::new(10, 0, 0, 3).into();
    assert_eq!(wait(&mut b, other, 2), ["INCOMPLETE", "ask all"]);
    assert_eq!(wait(&mut b, other, 1), ["neigh_queuefull [3]"], "of the silent one");
    assert_eq!(b.table.held(), 2);
    assert_eq!(b.hear(1, A, Heard::Reply), ["REACHABLE a"]);
}

#[test]
fn permanent_entries_stay() {
    let mut b = Bench::new(NeighParams::default());
    b.resolve(0);
    b.table.set_permanent(1, 1, IP, A, &mut b.actions);
    assert_eq!(b.log(), ["PERMANENT a", "send a [0]"]);
    assert_eq!(b.table.next_deadline(), None);
    assert_eq!(b.hear(2, B, Heard::Request), [""; 0]);
    assert_eq!(b.used(2), [""; 0]);
    assert_eq!(b.resolve(3), ["send a [1]"]);
    b.table.set_permanent(4, 1, IP, B, &mut b.actions);
    assert_eq!(b.log(), ["PERMANENT b"]);
}

#[test]
fn a_device_takes_its_neighbours_along() {
    let mut b = Bench::new(NeighParams::default());
    let last = Ipv6Addr::from_bits(u128::MAX).into();
    for (dev, ip) in [(0, IP), (1, last), (1, Ipv4Addr::UNSPECIFIED.into()), (2, IP)] {
        let skb = b.skb();
        b.table.resolve(0, dev, ip, skb, &mut b.actions);
    }
    b.table.set_permanent(0, 1, IP, A, &mut b.actions);
    b.log();
    b.table.remove_device(1, &mut b.actions);
    assert_eq!(b.log(), ["NONE", "neigh_dead [2]", "NONE", "NONE", "neigh_dead [1]"]);
    assert_eq!(b.table.entries().map(|e| e.dev).collect::<Vec<_>>(), [0, 2]);
    b.table.shutdown(&mut b.actions);
    assert_eq!(b.log(), ["NONE", "shutdown [0]", "NONE", "shutdown [3]"]);
}

#[test]
fn reachable_times_spread_evenly() {
    let mut b = Bench::new(NeighParams::default());
    let mut eighths = [0; 8];
    for n in 0..4000 {
        let ip = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n));
        b.table.input(0, n as u16, ip, A, Heard::Request, &mut b.actions);
        b.table.input(0, n as u16, ip, A, Heard::Reply, &mut b.actions);
        b.log();
        let at = b.table.next_deadline().unwrap();
        eighths[((at - 15 * S) * 8 / (30 * S)) as usize] += 1;
        b.table.remove_device(n as u16, &mut b.actions);
        b.log();
    }
    assert!(eighths.iter().all(|n| (400..600).contains(n)), "{eighths:?}");
}

#[test]
fn what_arp_packets_say() {
    let request = ArpPacket::request(A, IP4, Ipv4Addr::new(10, 0, 0, 1));
    let reply = ArpPacket { operation: Operation::Reply, ..request };
    assert_eq!(Heard::from_arp(&request, true, false), Some(Heard::Request));
    assert_eq!(Heard::from_arp(&request, false, false), Some(Heard::Other));
    assert_eq!(Heard::from_arp(&reply, true, true), Some(Heard::Reply));
    assert_eq!(Heard::from_arp(&reply, true, false), Some(Heard::Other));
    assert_eq!(Heard::from_arp(&ArpPacket::announcement(A, IP4), false, false), Some(Heard::Gratuitous));
    assert_eq!(Heard::from_arp(&ArpPacket::probe(A, IP4), true, false), None);
}

#[derive(Clone, Debug)]
enum Op {
    Resolve(u16, u8),
    Used(u16, u8),
    Input(u16, u8, u8, u8),
    Permanent(u16, u8),
    RemoveDevice(u16),
    Poll,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0u16..2, 0u8..6).prop_map(|(d, i)| Op::Resolve(d, i)),
        2 => (0u16..2, 0u8..6).prop_map(|(d, i)| Op::Used(d, i)),
        4 => (0u16..2, 0u8..6, 0u8..3, 0u8..8).prop_map(|(d, i, m, h)| Op::Input(d, i, m, h)),
        1 => (0u16..2, 0u8..6).prop_map(|(d, i)| Op::Permanent(d, i)),
        1 => (0u16..2).prop_map(Op::RemoveDevice),
        4 => Just(Op::Poll),
    ]
}

proptest! {
    /// Whatever happens: every packet comes out once, those of one neighbour in order; what was published is
    /// what the table says; nothing is due after a poll; the limits hold.
    #[test]
    fn packets_and_publications_add_up(
        ops in prop::collection::vec((op(), prop::sample::select(vec![0, MS, S / 2, S, 7 * S, 61 * S])), 0..80),
    ) {
        let (gc_thresh1, gc_thresh2, gc_thresh3) = (1, 2, 2);
        let (unres_qlen, unres_total) = (3, 7);
        let defaults = NeighParams::default();
        let params = NeighParams { unres_qlen, unres_total, gc_thresh1, gc_thresh2, gc_thresh3, ..defaults };
        let mut b = Bench::new(params);
        let gateway = (1, IpAddr::V4(Ipv4Addr::new(10, 0, 0, 4)));
        b.table.set_gateways([gateway]);
        let (mut now, mut out, mut published, mut fast) = (0, vec![], HashMap::new(), HashMap::new());
        let frames = |number: u32| 1 + number as usize % 5 * usize::from(number % 3 == 2);
        let ip = |i: u8| match i % 2 {
            0 => IpAddr::V4(Ipv4Addr::new(10, 0, 0, i)),
            _ => IpAddr::V6(Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(i))),
        };
        for (op, wait) in ops {
            now += wait;
            let op_removes = matches!(op, Op::RemoveDevice(_));
            match op {
                Op::Resolve(dev, i) => {
                    let skb = b.chain(frames(b.made));
                    b.table.resolve(now, dev, ip(i), skb, &mut b.actions);
                }
                Op::Used(dev, i) => b.table.used(now, dev, ip(i), &mut b.actions),
                Op::Input(dev, i, mac, heard) => {
                    let advert = |solicited, overrides| Heard::Advert { solicited, overrides };
                    let heard = [
                        Heard::Request,
                        Heard::Reply,
                        Heard::Gratuitous,
                        Heard::Other,
                        advert(true, true),
                        advert(true, false),
                        advert(false, true),
                        advert(false, false),
                    ][usize::from(heard)];
                    b.table.input(now, dev, ip(i), [2, 0, 0, 0, 0, mac], heard, &mut b.actions);
                }
                Op::Permanent(dev, i) => b.table.set_permanent(now, dev, ip(i), A, &mut b.actions),
                Op::RemoveDevice(dev) => b.table.remove_device(dev, &mut b.actions),
                Op::Poll => {
                    b.table.poll(now, &mut b.actions);
                    prop_assert!(b.table.next_deadline().is_none_or(|at| at > now));
                }
            }
            for action in b.actions.drain() {
                if let Action::Publish { dev, ip, told: Some(told), .. } = action {
                    // It is news.
                    prop_assert_ne!(fast.insert((dev, ip), told).flatten(), told);
                }
                match action {
                    Action::Publish { dev, ip, state: NeighState::None, .. } => {
                        prop_assert!(published.remove(&(dev, ip)).is_some());
                        prop_assert!((dev, ip) != gateway || op_removes);
                    }
                    Action::Publish { dev, ip, state, mac, .. } => {
                        published.insert((dev, ip), (state, mac));
                    }
                    Action::Solicit { dev, target, unicast_to } => {
                        prop_assert_eq!(published[&(dev, target)].1, unicast_to);
                    }
                    Action::Transmit { mut skbs, .. } | Action::Fail { mut skbs, .. } => {
                        prop_assert!(!skbs.is_empty());
                        let mut previous = None;
                        while let Some(skb) = skbs.pop_front() {
                            let number = u32::from_be_bytes(skb.data().try_into().unwrap());
                            prop_assert_eq!(skb.frame_count(), frames(number));
                            assert!(previous.replace(number) < Some(number));
                            out.push(number);
                            b.ctx.deliver(skb);
                        }
                    }
                }
            }
            let table: HashMap<_, _> = b.table.entries().map(|e| ((e.dev, e.ip), (e.state, e.mac))).collect();
            prop_assert_eq!(&table, &published);
            let queued: usize = b.table.entries().map(|e| e.queued).sum();
            prop_assert_eq!(queued, b.table.held());
            prop_assert_eq!(out.len() + queued, b.made as usize);
            let waiting = (0..b.made).filter(|number| !out.contains(number));
            prop_assert!(waiting.map(frames).sum::<usize>() <= 7);
            prop_assert!(queued <= 7 && b.table.entries().all(|e| e.queued <= 3));
            // What the fast path uses is right, and needs no probe.
            for (key, mac) in &fast {
                let known = table.get(key).filter(|(state, _)| *state != NeighState::Stale);
                prop_assert!(mac.is_none() || known.is_some_and(|(_, now)| now == mac), "{:?}", key);
            }
            for (dev, v6) in [(0, false), (0, true), (1, false), (1, true)] {
                let limited = b.table.entries().filter(|e| {
                    let of_table = e.dev == dev && e.ip.is_ipv6() == v6;
                    of_table && e.state != NeighState::Permanent && (e.dev, e.ip) != gateway
                });
                prop_assert!(limited.count() <= 2);
            }
        }
        out.sort_unstable();
        out.dedup();
        prop_assert_eq!(out.len() + b.table.held(), b.made as usize);
    }
}
