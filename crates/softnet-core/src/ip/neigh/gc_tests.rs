use std::net::{Ipv4Addr, Ipv6Addr};

use super::tests::{Bench, eager};
use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
const A: MacAddr = [2, 0, 0, 0, 0, 0xa];
const B: MacAddr = [2, 0, 0, 0, 0, 0xb];

fn host(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + n).into()
}

fn host6(n: u32) -> IpAddr {
    Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(n)).into()
}

fn bench(gc_thresh2: usize, gc_thresh3: usize) -> Bench {
    Bench::new(NeighParams { gc_thresh2, gc_thresh3, ..eager() })
}

impl Bench {
    /// `ip` asks for one of our addresses on device `dev`.
    fn asks(&mut self, now: u64, dev: u16, ip: IpAddr) -> Vec<String> {
        self.table.input(now, dev, ip, A, Heard::Request, &mut self.actions);
        self.log()
    }

    /// A packet to `ip` on device `dev`.
    fn packet(&mut self, now: u64, dev: u16, ip: IpAddr) -> Vec<String> {
        let skb = self.skb();
        self.table.resolve(now, dev, ip, skb, &mut self.actions);
        self.log()
    }

    fn state(&self, dev: u16, ip: IpAddr) -> NeighState {
        let found = self.table.entries().find(|e| (e.dev, e.ip) == (dev, ip));
        found.map_or(NeighState::None, |e| e.state)
    }
}

#[test]
fn the_oldest_unanswered_entry_makes_room() {
    let mut b = bench(2, 2);
    b.table.set_permanent(0, 1, host(9), B, &mut b.actions);
    b.log();
    b.packet(0, 1, host(1));
    b.packet(MS, 1, host(2));
    // Each has its time for an answer.
    assert_eq!(b.packet(100 * MS - 1, 1, host(3)), ["neigh_tablefull [2]"]);
    assert_eq!((b.table.table_fulls(), b.state(1, host(3))), (1, NeighState::None));
    assert_eq!(
        b.packet(100 * MS, 1, host(3)),
        ["NONE", "neigh_tablefull [0]", "INCOMPLETE", "ask all"],
        "and no search a second"
    );
    // A neighbour that speaks up need not wait for that.
    assert_eq!(b.asks(100 * MS, 1, host(4)), ["NONE", "neigh_tablefull [1]", "STALE a"]);
    assert_eq!(b.asks(100 * MS, 1, host(5)), ["NONE", "neigh_tablefull [3]", "STALE a"]);
    // Those that do not go for five seconds are no less worth.
    assert_eq!(b.asks(5 * S, 1, host(6)), [""; 0]);
    assert_eq!(b.asks(5 * S + 100 * MS, 1, host(6)), ["NONE", "STALE a"]);
    assert_eq!((b.state(1, host(4)), b.table.table_fulls()), (NeighState::None, 2));
    assert_eq!(b.state(1, host(9)), NeighState::Permanent);
}

#[test]
fn what_failed_goes_first() {
    let mut b = bench(3, 3);
    b.packet(0, 1, host(1));
    b.run(0, 3 * S);
    b.packet(3 * S, 1, host(2));
    b.asks(3 * S, 1, host(3));
    assert_eq!(b.packet(3 * S + 1, 1, host(4)), ["NONE", "INCOMPLETE", "ask all"]);
    assert_eq!(b.state(1, host(1)), NeighState::None);
}

/// A family on a device is a table of its own: a scan of one link costs the others nothing.
#[test]
fn a_scan_of_one_link_costs_the_others_nothing() {
    let mut b = bench(8, 16);
    b.packet(0, 0, host(1));
    b.packet(0, 1, host6(1));
    for n in 0..1000 {
        b.packet(u64::from(n) * MS, 1, host(n + 2));
    }
    for (dev, ip) in [(0, host(1)), (1, host6(1))] {
        assert_eq!(b.state(dev, ip), NeighState::Incomplete);
        b.table.input(S, dev, ip, A, Heard::Reply, &mut b.actions);
        assert_eq!(b.log().len(), 2, "the packet that waited leaves");
    }
}

/// A daemon changes its routes' gateways for years: those of old ones are neighbours as any other.
#[test]
fn what_is_no_gateway_any_more_counts_and_goes() {
    let params = NeighParams { gc_thresh1: 1, gc_thresh2: 2, gc_thresh3: 4, ..NeighParams::default() };
    let mut b = Bench::new(params);
    let old: Vec<(u16, IpAddr)> = (1..=10).map(|n| (1, host(n))).collect();
    b.table.add_gateways(old.iter().copied());
    for (dev, ip) in &old {
        b.packet(0, *dev, *ip);
        b.table.input(0, *dev, *ip, A, Heard::Reply, &mut b.actions);
    }
    b.log();
    assert_eq!(b.table.entries().count(), 10, "gateways count towards no limit");
    b.table.remove_gateways(&old[1..]);
    assert_eq!(b.table.entries().count(), 10, "their packets go on meanwhile");
    // Six seconds later none of them is too young to go.
    b.asks(6 * S, 1, host(50));
    assert_ne!(b.state(1, host(50)), NeighState::None);
    assert!(b.table.entries().count() <= 1 + 4, "the gateway, and as many as may be");
    assert_ne!(b.state(1, host(1)), NeighState::None, "it is one still");
    // One that comes again is one again.
    b.table.add_gateways([(1, host(60))]);
    b.table.remove_gateways(&[(1, host(60)), (1, host(61))]);
    b.table.add_gateways([(1, host(60))]);
    b.packet(7 * S, 1, host(60));
    b.table.input(7 * S, 1, host(60), A, Heard::Reply, &mut b.actions);
    (100..120).for_each(|n| _ = b.asks(20 * S, 1, host(n)));
    assert_ne!(b.state(1, host(60)), NeighState::None);
    b.log();
}

/// A route may come by way of a host that was a neighbour as any other before.
#[test]
fn a_neighbour_that_becomes_a_gateway_counts_no_more_and_stays() {
    let params = NeighParams { gc_thresh1: 1, gc_thresh2: 2, gc_thresh3: 4, ..NeighParams::default() };
    let mut b = Bench::new(params);
    b.asks(0, 1, host(1));
    b.table.add_gateways([(1, host(1))]);
    // Its place is free for another.
    (2..=5).for_each(|n| _ = b.asks(0, 1, host(n)));
    assert_eq!(b.table.entries().count(), 5, "the gateway, and as many as may be");
    // It is the oldest, and others come once all may go.
    (100..120).for_each(|n| _ = b.asks(20 * S, 1, host(n)));
    assert_ne!(b.state(1, host(1)), NeighState::None);
    assert_eq!(b.table.entries().count(), 5);
    // Its own deadline has come, too.
    b.run(0, 1000 * S);
    assert_ne!(b.state(1, host(1)), NeighState::None);
    b.table.remove_gateways(&[(1, host(1))]);
    (200..220).for_each(|n| _ = b.asks(1100 * S, 1, host(n)));
    assert_eq!(b.state(1, host(1)), NeighState::None, "a neighbour as any other again");
}

/// RFC 6583: gateways, and those that are heard, keep their places while an address range is scanned at any rate, and new
/// ones get theirs.
#[test]
fn a_scan_evicts_no_gateway_and_lets_new_neighbours_in() {
    for gap in [MS / 1000, MS / 10, MS] {
        let mut b = Bench::new(NeighParams::default());
        let gateway = host(1);
        b.table.set_gateways([(1, gateway)]);
        b.packet(0, 1, gateway);
        b.table.input(0, 1, gateway, A, Heard::Reply, &mut b.actions);
        // Six hundred hosts talk to us.
        (2..602).for_each(|n| _ = b.asks(0, 1, host(n)));
        let (mut now, mut answered, mut heard) = (6 * S, 0, 0);
        // Less than the minute after which those that are not used go.
        for n in 0..40_000u32 {
            now += gap;
            b.table.poll(now, &mut b.actions);
            b.log();
            b.packet(now, 1, host(0x1_0000 + n));
            if n % 1600 == 1599 {
                // One is new here, and speaks first. The other is spoken to, and answers the first question it gets a
                // millisecond later.
                let (speaks, answers) = (host(2000 + n / 1600), host(3000 + n / 1600));
                b.asks(now, 1, speaks);
                heard += u32::from(b.state(1, speaks) == NeighState::Stale);
                for attempt in 0..200u64 {
                    let said = b.packet(now + attempt * MS, 1, answers);
                    if said.contains(&"ask all".to_owned()) {
                        let at = now + (attempt + 1) * MS;
                        b.table.input(at, 1, answers, B, Heard::Reply, &mut b.actions);
                        answered += u32::from(b.log().iter().any(|line| line.starts_with("send b")));
                        now = at;
                        break;
                    }
                }
            }
        }
        assert_eq!((heard, answered), (25, 25), "a scan with {gap} ns between two addresses");
        assert_ne!(b.state(1, gateway), NeighState::None);
        // Room for half as many as there is room for in all.
        let confirmed = b.table.entries().filter(|e| e.mac.is_some() && e.ip != gateway).count();
        assert!(confirmed >= 512, "{confirmed} confirmed entries are left");
        assert!(b.table.entries().len() <= 1025);
    }
}

#[test]
fn six_hundred_hosts_of_both_families_fit() {
    let mut b = Bench::new(NeighParams::default());
    for n in 0..600 {
        for ip in [host(n + 2), host6(n + 2)] {
            assert_eq!(b.asks(u64::from(n) * MS, 1, ip), ["STALE a"]);
            assert_eq!(b.packet(u64::from(n) * MS, 1, ip)[0], "DELAY a");
        }
    }
    assert_eq!((b.table.entries().len(), b.table.table_fulls()), (1200, 0));
    // So do as many that are used, which the kernel's limit would not let in.
    let mut b = bench(2, 4);
    for n in 0..8u32 {
        let now = u64::from(n) * 10 * S;
        b.asks(now, 1, host(n));
        b.packet(now, 1, host(n));
        b.table.input(now, 1, host(n), A, Heard::Reply, &mut b.actions);
        b.log();
        assert_eq!(b.state(1, host(n)), NeighState::Reachable, "{n}");
    }
}

/// `gc_thresh1` and `gc_thresh2`, as ip-sysctl has them.
#[test]
fn few_entries_stay_and_many_are_collected() {
    let params = NeighParams { gc_thresh1: 3, gc_thresh2: 5, gc_thresh3: 100, ..NeighParams::default() };
    let mut b = Bench::new(params);
    b.asks(0, 1, host(1));
    b.asks(S, 1, host(2));
    assert_eq!(b.poll(1000 * S), [""; 0]);
    assert_eq!((b.table.entries().len(), b.table.next_deadline()), (2, None), "nothing to wake for");
    // As a third one and a fourth one come, the first two have been unused for long.
    assert_eq!(b.asks(1000 * S, 1, host(3)), ["STALE a"]);
    assert_eq!(b.asks(1000 * S, 1, host(4)), ["NONE", "STALE a"]);
    assert_eq!(b.state(1, host(1)), NeighState::None);
    // Above the second threshold five seconds are long enough.
    (5..8).for_each(|n| _ = b.asks(1001 * S, 1, host(n)));
    assert_eq!(b.table.entries().len(), 5);
    assert_eq!(b.asks(1005 * S - 1, 1, host(8)), ["STALE a"]);
    assert_eq!(b.asks(1005 * S, 1, host(9)), ["NONE", "NONE", "STALE a"]);
    assert_eq!(b.asks(1005 * S, 1, host(10)), ["STALE a"]);
    assert_eq!(b.table.entries().len(), 6);
}

/// Any host on the link can say anything, at any rate: a publication costs a copy of the tables.
#[test]
fn churn_from_the_wire_is_not_published_per_packet() {
    let mut b = Bench::new(NeighParams::default());
    b.resolve(0);
    b.hear(0, A, Heard::Reply);
    assert_eq!(b.told.len(), 1);
    // Without a packet to the neighbour, hardly anything: it is withdrawn once.
    for n in 1..10_000 {
        let mac = if n % 4 < 2 { A } else { B };
        let heard = if n % 2 == 0 { Heard::Gratuitous } else { Heard::Reply };
        b.hear(S + n * MS, mac, heard);
    }
    assert_eq!(b.told.len(), 2, "{:?}", b.told);
    // With packets in between, each of which leaves with the address that was heard last, twice a second.
    for (heard, per_second) in [
        ([Heard::Gratuitous, Heard::Reply], 2),
        ([Heard::Request, Heard::Gratuitous], 2),
        ([Heard::Advert { solicited: true, overrides: true }; 2], 2),
    ] {
        let mut b = Bench::new(NeighParams::default());
        b.resolve(0);
        b.hear(0, A, Heard::Reply);
        b.told.clear();
        let mut fast = Some(A);
        for n in 1..=10_000u64 {
            let now = S + n * MS;
            b.hear(now, if n % 4 < 2 { A } else { B }, heard[n as usize % 2]);
            fast = b.told.last().map_or(fast, |(_, _, mac)| *mac);
            let mac = b.table.mac(1, "10.0.0.2".parse().unwrap());
            assert!(fast.is_none() || fast == mac, "a stale address is in use");
            if fast.is_none() {
                let sent = b.resolve(now);
                assert_eq!(sent.last().unwrap()[..6], format!("send {:x}", mac.unwrap()[5]), "{sent:?}");
                fast = b.told.last().and_then(|(_, _, mac)| *mac);
            }
        }
        assert!(b.told.len() <= 11 * per_second, "{} publications in ten seconds", b.told.len());
        // When it is quiet, the fast path gets it back.
        b.resolve(13 * S);
        assert!(b.told.last().unwrap().2.is_some());
    }
}

/// A neighbour that fails over to another machine is followed at once.
#[test]
fn a_move_is_followed_at_once() {
    let mut b = Bench::new(NeighParams::default());
    b.resolve(0);
    b.hear(0, A, Heard::Reply);
    assert_eq!(b.hear(2 * S, B, Heard::Gratuitous), ["STALE b"]);
    assert_eq!(b.resolve(2 * S), ["DELAY b", "send b [1]"]);
    let macs: Vec<_> = b.told.iter().map(|(_, _, mac)| *mac).collect();
    assert_eq!(macs, [Some(A), None, Some(B)]);
    // Advertised with the override flag, it never leaves the fast path.
    b.told.clear();
    b.hear(4 * S, A, Heard::Advert { solicited: true, overrides: true });
    assert_eq!(b.told, [(1, "10.0.0.2".parse().unwrap(), Some(A))]);
}

/// As in the kernel, whose `updated` is also that of the state.
#[test]
fn locktime_counts_from_any_change() {
    let mut b = Bench::new(NeighParams::default());
    b.hear(0, A, Heard::Request);
    assert_eq!(b.hear(2 * S, A, Heard::Reply), ["REACHABLE a"]);
    assert_eq!(b.hear(3 * S - 1, B, Heard::Reply), [""; 0]);
    assert_eq!(b.hear(3 * S, B, Heard::Reply), ["REACHABLE b"]);
}
