//! `softnet bench conntrack`: what the table of connections costs.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use softnet_core::conntrack::{Conntrack, New, State, Timeouts, Tuple};
use softnet_core::fold::FoldKey;
use softnet_core::nat::NatState;
use softnet_core::skb::BATCH;
use softnet_dev::hugepage::HugePages;

use super::harness::{Case, alternate};
use super::report::{Bound, REFERENCE, Report, Row, Sample};
use super::templates::Random;
use super::{Common, pin};

pub(super) const HELP: &str = "\
The table of connections by itself, one thread, 64 packets at a time.

  lookup       packets whose connections are there, drawn at random; by the number of connections
  churn        a million connections are made, and then all expire in the same second

  ns_per_lookup          a packet's share, its hash included
  new_per_s              connections made a second
  expired_per_s          connections freed a second, while they expire
  longest_sweep_us       longest time that the receive path would spend on that for one batch
  bytes_per_connection   memory of the table for each connection that it has room for, a mapping of NAT included";

/// Connections of the row `churn`, and the most that are looked up.
const MILLION: u32 = 1_000_000;
/// Entries that are looked at for each batch, as by the hooks of NAT.
const SWEEP: usize = 2 * BATCH;

#[derive(Args, Debug)]
pub(crate) struct ConntrackBench {
    #[command(flatten)]
    pub(super) common: Common,
}

fn table() -> Conntrack {
    Conntrack::new(
        MILLION + MILLION / 16,
        FoldKey::new([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344]),
        &Timeouts::default(),
        &HugePages,
    )
}

/// That of connection `n`.
fn tuple(n: u32) -> Tuple {
    Tuple::new(17, (0x0a00_0000 + n / 16, (1024 + n % 16 * 2003) as u16), (0x0808_0808 + n % 251, 443))
}

/// Makes connections `0..n` at `now`.
fn fill(table: &Conntrack, n: u32, now: u32) -> Result<(), String> {
    for n in 0..n {
        table
            .insert(now, &New::plain(tuple(n), State::UdpNew))
            .map_err(|why| format!("connection {n}: {why:?}"))?;
    }
    Ok(())
}

/// ns for a look-up of those in `order`, again and again.
fn look_up(table: &Conntrack, order: &[Tuple], rounds: usize) -> Result<f64, String> {
    let (mut lost, start) = (0, Instant::now());
    for _ in 0..rounds {
        for chunk in order.chunks_exact(BATCH) {
            let packets: [(Tuple, u8); BATCH] = std::array::from_fn(|i| (chunk[i], 0));
            let mut found = [None; BATCH];
            table.find_batch(1, &packets, &mut found);
            lost += found.iter().filter(|found| found.is_none()).count();
        }
    }
    let ns = start.elapsed().as_nanos() as f64 / (rounds * (order.len() / BATCH * BATCH)) as f64;
    if lost == 0 { Ok(ns) } else { Err(format!("{lost} packets did not find their connection")) }
}

/// Makes a million connections at `now`, and has them expire.
fn churn(table: &Conntrack, now: u32) -> Result<Sample, String> {
    let start = Instant::now();
    fill(table, MILLION, now)?;
    let made = start.elapsed();
    let before = table.counts().expired;
    let (start, mut longest) = (Instant::now(), Duration::ZERO);
    loop {
        let sweep = Instant::now();
        let looked = table.sweep(now + 1000, SWEEP);
        longest = longest.max(sweep.elapsed());
        if looked == 0 {
            break;
        }
    }
    let freed = start.elapsed();
    let expired = table.counts().expired - before;
    if expired != u64::from(MILLION) {
        return Err(format!("{expired} of {MILLION} connections expired"));
    }
    let per_s = |took: Duration| f64::from(MILLION) / took.as_secs_f64();
    Ok(vec![
        ("new_per_s", per_s(made)),
        ("expired_per_s", per_s(freed)),
        ("longest_sweep_us", longest.as_secs_f64() * 1e6),
    ])
}

impl ConntrackBench {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let cpu = pin(self.common.cpu)?;
        let lookups = if self.common.quick { 4_000_000 } else { 20_000_000 };
        let mut cases = Vec::new();
        for n in [1_000, 10_000, 100_000, MILLION] {
            let table = table();
            fill(&table, n, 0)?;
            let mut random = Random::new(u64::from(n));
            // As many in each row: reading them costs the same, and only the table differs.
            let order: Vec<_> = (0..MILLION).map(|_| tuple(random.below(n as usize) as u32)).collect();
            let rounds = (lookups / order.len()).max(1);
            let measure = move || Ok(vec![("ns_per_lookup", look_up(&table, &order, rounds)?)]);
            let row = Row::new("lookup", vec![("threads", json!(1)), ("connections", json!(n))]);
            cases.push(Case { row, measure: Box::new(measure) });
        }
        let (churned, mut now) = (table(), 0);
        let bytes = NatState::new(MILLION, [11, 12, 13, 14], &Timeouts::default(), &HugePages).bytes();
        let measure = move || {
            now += 10_000;
            let mut sample = churn(&churned, now)?;
            sample.push(("bytes_per_connection", bytes as f64 / f64::from(MILLION)));
            Ok(sample)
        };
        let row = Row::new("churn", vec![("threads", json!(1)), ("connections", json!(MILLION))]);
        cases.push(Case { row, measure: Box::new(measure) });
        let mut report = alternate("conntrack", Some(cpu), self.common.rounds(), cases)?;
        let row = |n: u32| ("lookup", [("connections", json!(n))]);
        let ((_, many), (_, few)) = (row(MILLION), row(1_000));
        let flat = report.ratio_where(("lookup", &many), ("lookup", &few), "ns_per_lookup");
        report
            .bound_value("lookup 1,000,000 / 1,000 ns_per_lookup".into(), flat, Bound::AtMost(2.0))
            .meaning("A connection among a million is found nearly as fast as one among a thousand.");
        report
            .bound("churn", "longest_sweep_us", Bound::AtMost(1000.0))
            .on(&REFERENCE)
            .meaning("A million connections that expire at once stop the traffic no longer than this.");
        report
            .bound("churn", "bytes_per_connection", Bound::AtMost(128.0))
            .meaning("A connection takes no more memory than this, all in.");
        Ok(report)
    }
}
