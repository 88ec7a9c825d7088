//! Goodput of one bulk transfer over loss and round-trip times, and over reordering: an early
//! warning for what is measured against the kernel's over real devices.
//!
//! The yardstick is the response function of a sender that halves (RFC 5348 3.1, with b = 1 and
//! RTO = RTT + 200 ms), which CUBIC is to exceed where its growth is that of Reno (RFC 9438 5.1),
//! and by much where the round trip is long.

use softnet_netem::{Chance, Loss, Params, Random};

use super::plan::{App, Dice, Ending, Plan, Side};
use super::world::{Report, World};
use crate::Config;
use crate::conn::ConnOptions;

const MSS: u64 = 1448;

/// One transfer of `bytes`, `rtt` microseconds, over links of 1 Gbit/s, or of 100 Mbit/s where the
/// round trip is long: tests look at every packet in flight at each step.
fn transfer(seed: u64, bytes: u64, rtt: u64, change: impl Fn(&mut Params)) -> Report {
    let app = |send| App {
        send,
        chunk: 64 << 10,
        write_every: 0,
        more: 0,
        read_max: u32::MAX,
        read_every: 0,
        ending: Ending::Shutdown,
    };
    let cfg = Config { tcp_timestamps: 2, ..Config::default() };
    let side =
        |send| Side { cfg: cfg.clone(), options: ConnOptions::default(), path_mss: 1460, app: app(send) };
    let mut dice = Dice::new(seed);
    let mut link = || Params {
        delay: rtt * 500,
        rate: if rtt <= 1000 { 125_000_000 } else { 12_500_000 },
        limit: 20_000,
        seed: dice.below(1 << 40),
        ..Params::default()
    };
    let mut links = [link(), link()];
    // Only data suffers: what ACKs suffer hardly matters, and the response function has none of it.
    change(&mut links[0]);
    let sides = [side(bytes), side(0)];
    World::new(&Plan { seed, sides, links, mark_from: usize::MAX, gro: true, refuse: 0 }).run()
}

/// Bytes a second, of the response function.
fn response(p: f64, rtt: f64) -> f64 {
    let rto = rtt + 0.2;
    let lost = rto * 3.0 * (3.0 * p / 8.0).sqrt() * p * (1.0 + 32.0 * p * p);
    MSS as f64 / (rtt * (2.0 * p / 3.0).sqrt() + lost)
}

/// The median goodput of `seeds` transfers, bytes a second, and what the run of it came to.
fn goodput(seeds: u64, bytes: u64, rtt: u64, change: impl Fn(&mut Params)) -> (f64, Report) {
    let mut runs: Vec<_> = (0..seeds).map(|seed| transfer(seed, bytes, rtt, &change)).collect();
    runs.sort_by_key(|report| report.delivered_at[0]);
    let median = runs[runs.len() / 2];
    (bytes as f64 / (median.delivered_at[0] as f64 / 1e6), median)
}

fn lossy(permille: u32) -> impl Fn(&mut Params) {
    move |link| link.loss = Loss::Random(Random::of(Chance(permille * 100_000)))
}

fn reordering(percent: u32) -> impl Fn(&mut Params) {
    move |link| link.reorder = Random::of(Chance::percent(percent))
}

#[test]
fn loss_costs_what_it_must() {
    for (permille, rtt, bytes) in [(1, 20_000, 6_000_000), (10, 20_000, 2_000_000), (50, 20_000, 400_000)] {
        let (got, report) = goodput(3, bytes, rtt, lossy(permille));
        let share = got / response(f64::from(permille) / 1000.0, rtt as f64 / 1e6);
        assert!((0.7..4.0).contains(&share), "{permille}‰, {rtt} us: {share:.2} {report:?}");
    }
}

#[test]
fn reordering_alone_costs_little() {
    let (straight, _) = goodput(1, 4_000_000, 20_000, |_| {});
    for percent in [1, 30] {
        let (got, report) = goodput(3, 4_000_000, 20_000, reordering(percent));
        // One needless copy tells how late packets are; the reordering window takes some round
        // trips to grow (RFC 8985 6.2).
        assert!(got > 0.5 * straight, "{percent}%: {got:.0} of {straight:.0}, {report:?}");
        assert!(report.spurious < 60, "{percent}%: {report:?}");
        assert_eq!(report.timeouts, 0, "{percent}%: {report:?}");
    }
}

/// `cargo test --release -p softnet-tcp sim::goodput::table -- --ignored --nocapture`.
#[test]
#[ignore = "prints a table"]
fn table() {
    eprintln!("loss  RTT ms  Mbit/s  of response  resent%  spurious  RTOs");
    for permille in [1, 10, 30, 50] {
        for rtt in [1_000, 20_000, 100_000] {
            let bytes = 20_000_000 / u64::from(permille).min(10);
            let (got, report) = goodput(9, bytes, rtt, lossy(permille));
            let share = got / response(f64::from(permille) / 1000.0, rtt as f64 / 1e6);
            row(&format!("{:>3.1}%", f64::from(permille) / 10.0), rtt, got, share, bytes, &report);
        }
    }
    eprintln!("ahead RTT ms  Mbit/s  of straight  resent%  spurious  RTOs");
    for rtt in [1_000, 20_000, 100_000] {
        let (straight, _) = goodput(1, 20_000_000, rtt, |_| {});
        for percent in [0, 1, 5, 10, 30] {
            let (got, report) = goodput(9, 20_000_000, rtt, reordering(percent));
            row(&format!("{percent:>3}%"), rtt, got, got / straight, 20_000_000, &report);
        }
    }
}

fn row(what: &str, rtt: u64, got: f64, share: f64, bytes: u64, report: &Report) {
    let resent = report.retransmitted as f64 * 100.0 / (bytes / MSS) as f64;
    eprintln!(
        "{what:>5} {:>6} {:>7.1} {share:>12.2} {resent:>8.2} {:>9} {:>5}",
        rtt / 1000,
        got * 8.0 / 1e6,
        report.spurious,
        report.timeouts
    );
}
