//! `softnet bench rfs`: what it is worth that packets go to the CPU of the thread that consumes them,
//! and whether they stay in order when that moves.
//!
//! Two workers share the packets of one RX queue: by their hash (RPS), or after their consumers (RFS).
//! **Verified**: every datagram is received or counted as dropped, and with the consumers pinned none
//! comes behind a later one of its flow; with consumers that move, bounds say so.

mod consumer;
mod rig;
mod wire;

use std::cell::RefCell;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::Common;
use super::harness::{Case, alternate};
use super::offer::{Pace, TICK};
use super::report::{Bound, Published, Report, Row, Sample};
use rig::{Rig, Trial};
use wire::FLOWS;

/// As many datagrams as there is room for.
const FULL: Pace = Pace::Full(TICK);

pub(super) const HELP: &str = "\
Datagrams of 64 flows come by the one queue of an emulated NIC. Two workers process them, and two threads receive them by a
socket each, half of the flows each; a worker and such a consumer are on each of two CPUs.

  rps       flows are spread over the workers by their hash (rps_cpus): half of them are processed away from their consumers
  rfs       flows go to the worker on their consumer's CPU (rps_flow_cnt)
  migrate   as rfs; the consumers change places every millisecond, at MAX, for ten seconds (with --quick for one)

load is a share of what `rps` lets consumers receive at MAX, which is as many datagrams as the ring has room for; then
loss_percent and latency are those of full queues. Latency counts from when a datagram should have come. cpu_percent is of
workers and consumers, not of the thread that offers datagrams, which takes its time from both CPUs. moves are flows that
went to another worker.

Bounds: at MAX `rfs` lets consumers receive at least 1.1 times what `rps` does, with no more p99. With consumers that move, no
datagram comes behind a later one of its flow, and none is missing that was not counted as dropped.

Examples:
  softnet bench rfs --quick --check
  softnet bench rfs --json | jq '.rows[] | {case, load, mpps, p99_us}'";

/// The figures that decide.
pub(super) const LEADING: &[&str] =
    &["mpps", "loss_percent", "p50_us", "p99_us", "cpu_percent", "wakeups_per_s", "moves", "reordered"];

#[derive(Args, Debug)]
pub(crate) struct Rfs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Only this load, in percent of what RPS carries (may be repeated) [default: 25, 50, 75; with --quick 50; and MAX]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=400))]
    load: Vec<u32>,
}

fn sample(trial: &Trial) -> Sample {
    let came = trial.came.max(1) as f64;
    let mut sample = vec![
        ("mpps", trial.received as f64 / trial.seconds / 1e6),
        ("loss_percent", (100.0 * (1.0 - trial.received as f64 / came)).max(0.0)),
    ];
    let latency = trial.latency.figures();
    sample.extend(latency.into_iter().filter(|(name, _)| ["p50_us", "p99_us", "p999_us"].contains(name)));
    sample.extend([
        ("cpu_percent", 100.0 * trial.cpu_ns as f64 / (trial.seconds * 1e9)),
        ("wakeups_per_s", trial.wakeups as f64 / trial.seconds),
        ("moves", trial.moves as f64),
    ]);
    sample
}

fn params(load: &Value) -> Vec<(&'static str, Value)> {
    vec![("load", load.clone()), ("flows", json!(FLOWS)), ("device", json!("mem"))]
}

impl Rfs {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let (cpus, cpu) = (super::cpus(), self.common.cpu);
        let other = cpus.iter().copied().find(|other| *other != cpu);
        let Some(other) = other.filter(|_| cpus.contains(&cpu)) else {
            return Err(format!("rfs needs two CPUs, one of them --cpu {cpu}; CPUs here: {cpus:?}"));
        };
        let quick = self.common.quick;
        let cpus = [cpu as u32, other as u32];
        let ms = |quick_ms, usual| Duration::from_millis(if quick { quick_ms } else { usual });
        let times = [ms(200, 300), ms(500, 1000)];
        let start = |rfs| Rig::start(rfs, cpus).map(RefCell::new);
        let ways = [("rps", start(false)?), ("rfs", start(true)?)];
        let migrating = start(true)?;
        let warm = ways[0].1.borrow_mut().measure(FULL, times, false)?;
        let capacity = warm.received as f64 / warm.seconds;
        let loads = match (&self.load[..], quick) {
            ([], true) => vec![json!(50), json!("MAX")],
            ([], false) => vec![json!(25), json!(50), json!(75), json!("MAX")],
            (loads, _) => loads.iter().map(|load| json!(load)).collect(),
        };
        let mut cases = Vec::new();
        for load in &loads {
            let pace = load.as_f64().map_or(FULL, |percent| Pace::Pps(capacity * percent / 100.0));
            for (name, rig) in &ways {
                let measure =
                    move || rig.borrow_mut().measure(pace, times, false).map(|trial| sample(&trial));
                cases.push(Case { row: Row::new(*name, params(load)), measure: Box::new(measure) });
            }
        }
        let rig = &migrating;
        let migrate = move || {
            let mut rig = rig.borrow_mut();
            let before = rig.reordered();
            let trial = rig.measure(FULL, [times[0], ms(1000, 10_000)], true)?;
            let mut sample = sample(&trial);
            sample.extend([
                ("reordered", (rig.reordered() - before) as f64),
                ("missing", rig.settle()? as f64),
                ("migrations", trial.migrations as f64),
            ]);
            Ok(sample)
        };
        cases.push(Case { row: Row::new("migrate", params(&json!("MAX"))), measure: Box::new(migrate) });
        let mut report = alternate("rfs", None, self.common.rounds_or(5, 3), cases)?;
        for (name, rig) in ways {
            let rig = rig.into_inner();
            let reordered = rig.reordered();
            rig.end().map_err(|error| format!("{name}: {error}"))?;
            if reordered > 0 {
                return Err(format!("{name}: {reordered} datagrams came behind later ones of their flows"));
            }
        }
        migrating.into_inner().end().map_err(|error| format!("migrate: {error}"))?;
        for (figure, meaning) in [
            ("reordered", "However often consumers move, no flow overtakes itself."),
            ("missing", "What is not received is counted as dropped."),
        ] {
            let summary = report.row("migrate").and_then(|row| row.summary(figure));
            let most = summary.map_or(f64::NAN, |summary| summary.max);
            report
                .bound_value(format!("migrate: {figure}, at most in a round"), most, Bound::AtMost(0.0))
                .meaning(meaning);
        }
        let most = [("load", json!("MAX"))];
        if loads.contains(&json!("MAX")) {
            let ratio = |figure| report.ratio_where(("rfs", &most), ("rps", &most), figure);
            let (mpps, p99) = (ratio("mpps"), ratio("p99_us"));
            report.bound_value("rfs ÷ rps, load MAX: mpps".into(), mpps, Bound::AtLeast(1.1)).meaning(
                "Consumers receive this many times what they do of packets that are spread by their hash.",
            );
            report
                .bound_value("rfs ÷ rps, load MAX: p99_us".into(), p99, Bound::AtMost(1.0))
                .meaning("And sooner, since none waits for another CPU's worker.");
        }
        report.published.push(Published {
            source: "Herbert, \"rfs: Receive Flow Steering\" (Linux fec5e652e58f, 2010): RPC of 100 threads a host",
            columns: &["case", "transactions/s", "CPU", "p99"],
            rows: [["rps", "174 k", "73 %", "2468 µs"], ["rfs", "223 k (1.28)", "73 %", "1382 µs (0.56)"]]
                .map(|row| row.map(String::from).to_vec())
                .to_vec(),
        });
        Ok(report)
    }
}
