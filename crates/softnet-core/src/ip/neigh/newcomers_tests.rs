use std::net::Ipv4Addr;

use super::tests::Bench;
use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
const A: MacAddr = [2, 0, 0, 0, 0, 0xa];

fn host(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + n).into()
}

fn requests(lines: &[String]) -> usize {
    lines.iter().filter(|line| line.starts_with("ask")).count()
}

/// A table that keeps what failed.
fn patient() -> Bench {
    Bench::new(NeighParams { gc_thresh1: 5000, gc_thresh2: 5000, ..NeighParams::default() })
}

impl Bench {
    /// Asks for as many neighbours at once as may be, and leaves room for one in the table, in which one is.
    fn use_up(&mut self, now: u64) {
        (0..1022).for_each(|n| assert_eq!(requests(&self.resolve_ip(now, host(100 + n))), 1));
        // These do not count.
        (100..102).for_each(|n| self.table.set_permanent(now, 1, host(n), A, &mut self.actions));
        self.log();
        (2000..2002).for_each(|n| assert_eq!(requests(&self.resolve_ip(now, host(n))), 1));
    }
}

/// However fast a link is scanned, about as many requests are sent on it as the kernel would send.
#[test]
fn a_scan_does_not_become_a_storm_of_requests() {
    for (gap, packets) in [(MS / 100, 500_000u32), (MS / 2, 10_000), (MS, 5_000)] {
        let mut b = Bench::new(NeighParams::default());
        let (mut asked, mut refused) = (vec![0; 50], 0);
        for n in 0..packets {
            let now = u64::from(n) * gap;
            let mut lines = b.poll(now);
            lines.extend(b.resolve_ip(now, host(n + 2)));
            asked[(now / (100 * MS)) as usize] += requests(&lines);
            refused += lines.iter().filter(|line| line.starts_with("neigh_queuefull")).count();
        }
        assert!(asked[0] <= 1024 + 103, "{asked:?}");
        for second in asked[10..].chunks(10) {
            assert!(second.iter().sum::<usize>() <= 2 * 1024 + 10, "{gap} ns apart: {asked:?}");
        }
        assert!(asked[20..].iter().all(|n| *n <= 300), "{gap} ns apart: {asked:?}");
        assert_eq!(refused == 0, gap >= MS, "{refused} refused, {gap} ns apart");
    }
}

#[test]
fn gateways_and_neighbours_that_were_heard_are_asked_for_meanwhile() {
    let mut b = patient();
    let (gateway, known, speaks) = (host(1), host(2), host(3));
    b.table.set_gateways([(1, gateway)]);
    // One that was heard, does not answer any more, and failed.
    b.resolve_ip(0, known);
    b.table.input(0, 1, known, A, Heard::Reply, &mut b.actions);
    b.log();
    b.run(0, 46 * S);
    b.resolve_ip(46 * S, known);
    b.run(46 * S, 60 * S);
    let now = 61 * S;
    b.use_up(now);
    assert_eq!(b.resolve_ip(now, host(5000)), ["neigh_queuefull [1026]"]);
    let failed = b.table.entries().find(|entry| entry.ip == known).map(|entry| entry.state);
    assert_eq!(failed, Some(NeighState::Failed));
    assert_eq!(b.resolve_ip(now, known)[..2], ["INCOMPLETE", "ask all"]);
    assert_eq!(b.resolve_ip(now, gateway)[..2], ["INCOMPLETE", "ask all"]);
    let heard_at = now + 100 * MS;
    b.run(now, heard_at);
    b.table.input(heard_at, 1, speaks, A, Heard::Request, &mut b.actions);
    assert_eq!(b.log().last().map(String::as_str), Some("STALE a"));
    // Another link, and another family, are others.
    let skb = b.skb();
    b.table.resolve(now, 0, host(5000), skb, &mut b.actions);
    assert_eq!(requests(&b.log()), 1);
    assert_eq!(requests(&b.resolve_ip(now, "fd00::1".parse().unwrap())), 1);
}

/// One that did not answer is new again.
#[test]
fn neighbours_that_failed_unheard_have_no_privilege() {
    let mut b = patient();
    b.resolve_ip(0, host(1));
    b.run(0, 10 * S);
    b.use_up(10 * S);
    assert_eq!(b.resolve_ip(10 * S, host(1)), ["neigh_queuefull [1025]"]);
    assert_eq!(b.resolve_ip(10 * S + MS, host(1))[..2], ["INCOMPLETE", "ask all"]);
}
