//! `softnet bench shape`: whether a router that shapes with `tbf` keeps to the rate it was given, between a kernel
//! sender that offers half as much again and a kernel receiver.
//!
//! The receiver's own counter is what is measured ([`rig`]), so that all is in it which keeps packets from leaving in
//! time: a worker that is woken late, a ring that is full, packets that the device gives back. A bucket forgives being
//! late by its depth ([`cases`]): tokens that come while it is full are lost, and with them rate. So a worker that other
//! programs keep from its CPU for longer costs rate; `waited_percent` says how long it waited. A measurement in which it
//! waited for more than [a share](WAITED) of the time, or in which the generator could not offer enough, is repeated.
//!
//! `kernel-tbf` is the control: the kernel routes between wires like these, shaped by its own `tbf` with the same
//! parameters. It needs no thread, and other programs disturb it only by way of the generator.

mod arrivals;
mod cases;
mod kernel;
mod rig;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::harness::{Case, alternate};
use super::report::{Bound, Report, Row, Sample};
use super::{Common, cpus};
use cases::{ALL, Shaping};
use rig::{Rig, Trial};

pub(crate) const HELP: &str = "\
A router between two veth pairs; tbf shapes what leaves by the second. A kernel sender offers 1.5 times the rate in \
UDP packets; what arrives is counted by the receiver's interface over ten seconds (with --quick two), in bytes from \
the Ethernet header on, without FCS, which is what tbf counts. Bursts are what the rate brings in 10 ms. Needs root \
and two CPUs.

  tbf                    softnet routes and shapes
  kernel-tbf             the kernel does; left out where there is no `tc`, or no tbf in the kernel

  mbit, ratio            what arrived, and that by the rate (bound: 0.98 to 1.02)
  window_min, _max       the same of the slowest and the fastest 100 ms
  burst_percent          most that came beyond rate x time in any stretch, by the burst: 100 at most, and a little more
                         if packets left in time and were delivered late; at 100 the bucket was full, and rate was lost
  offered_ratio          what was sent, by the rate
  drops_per_s            packets that the discipline dropped, since more came than may leave
  overlimits_per_s       times a packet had to wait for its rate
  requeues_per_s         packets that the device gave back
  cpu_percent            of softnet's worker and of softirqs on the generator's CPU, in which the kernel hands it the
                         packets; of all softirqs where the kernel routes (bound: twice the kernel's, where 10,000 packets a
                         second and more pass)
  wakeups_per_s          times that softnet's worker was woken; where the kernel routes, runs of the softirqs NET_RX and
                         NET_TX (bound: twice the kernel's)
  timer_wakeups_per_s    those by the worker's timers; NET_TX, which the kernel's watchdog raises (bound: likewise)
  waited_percent         time that the worker was ready to run and had no CPU";

/// What a ratio may be off.
const TOLERANCE: f64 = 0.02;
/// Length of the windows.
const WINDOW: Duration = Duration::from_millis(100);
/// What the generator must have sent, by the rate: with less it is no measurement of the router.
const OFFERED: f64 = 1.1;
/// What softnet may use, and how often it may be woken, by what the kernel's own does for the same.
const BY_KERNEL: f64 = 2.0;
/// Packets a second that pass, from which on that holds for CPU time too: with fewer each packet is an event of its own to
/// either, which costs softnet a switch of threads and the kernel none.
const MANY: f64 = 10_000.0;
/// How long the worker may have waited for its CPU, as a share of the time: others had it.
const WAITED: f64 = 0.05;

#[derive(Args, Debug)]
pub(crate) struct Shape {
    #[command(flatten)]
    pub(super) common: Common,
}

impl Shape {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let (cpu, all) = (self.common.cpu, cpus());
        if !all.contains(&cpu) {
            return Err(format!("--cpu {cpu}: CPUs here: {all:?}"));
        }
        let source_cpu = all.into_iter().find(|other| *other != cpu);
        let source_cpu = source_cpu.ok_or("shape needs two CPUs: one shapes, one generates")?;
        let (warm, time) = match self.common.quick {
            true => (Duration::from_millis(200), Duration::from_secs(2)),
            false => (Duration::from_millis(500), Duration::from_secs(10)),
        };
        let shapings: Vec<Shaping> =
            ALL.into_iter().filter(|shaping| shaping.quick || !self.common.quick).collect();
        let softnet = Rig::softnet(cpu, source_cpu)?;
        let kernel = Rig::kernel(source_cpu)?;
        let mut rigs = vec![("tbf", &softnet)];
        match kernel.shape(&ALL[0]) {
            Ok(()) => rigs.push(("kernel-tbf", &kernel)),
            Err(error) => eprintln!("without kernel-tbf: {error}"),
        }
        for (case, rig) in &rigs {
            rig.check(&ALL[0]).map_err(|error| format!("{case}: {error}"))?;
        }
        let rounds = self.common.rounds_or(5, 2);
        let patience = Patience { left: Cell::new(rounds * shapings.len() * rigs.len()), used: Cell::new(0) };
        let rows = shapings.iter().flat_map(|shaping| rigs.iter().map(move |rig| (shaping, *rig)));
        let cases = rows.map(|(shaping, (case, rig))| Case {
            row: row(case, shaping),
            measure: Box::new(|| Ok(sample(shaping, &patience.measure(rig, shaping, warm, time)?))),
        });
        let mut report = alternate("shape", None, rounds, cases.collect())?;
        report.repeated = Some(patience.used.get());
        annotate(&mut report);
        state_bounds(&mut report);
        Ok(report)
    }
}

/// Repeats what others disturbed, as long as there are repetitions left.
struct Patience {
    left: Cell<usize>,
    used: Cell<usize>,
}

impl Patience {
    fn measure(&self, rig: &Rig, shaping: &Shaping, warm: Duration, time: Duration) -> Result<Trial, String> {
        loop {
            let trial = rig.measure(shaping, warm, time)?;
            let waited = trial.waited.unwrap_or_default();
            let undisturbed = trial.offered >= OFFERED * shaping.rate() && waited <= WAITED;
            if undisturbed || self.left.get() == 0 {
                return Ok(trial);
            }
            self.left.set(self.left.get() - 1);
            self.used.set(self.used.get() + 1);
        }
    }
}

fn row(case: &str, shaping: &Shaping) -> Row {
    let params = vec![
        ("device", json!("xdp")),
        ("qdisc", json!(shaping.tbf())),
        ("rate_mbit", json!(shaping.mbit)),
        ("size", json!(shaping.size)),
        ("pinned", json!(true)),
    ];
    Row::new(case, params)
}

fn sample(shaping: &Shaping, trial: &Trial) -> Sample {
    let (arrivals, rate) = (&trial.arrivals, shaping.rate());
    let (slowest, fastest) = arrivals.windows(WINDOW).unwrap_or_default();
    let mut sample = vec![
        ("mbit", arrivals.rate() * 8.0 / 1e6),
        ("ratio", arrivals.rate() / rate),
        ("window_min", slowest / rate),
        ("window_max", fastest / rate),
        ("burst_percent", 100.0 * arrivals.excess(rate) / shaping.burst() as f64),
        ("offered_ratio", trial.offered / rate),
        ("drops_per_s", trial.drops),
        ("overlimits_per_s", trial.overlimits),
        ("requeues_per_s", trial.requeues),
        ("cpu_percent", 100.0 * trial.cpu),
        ("wakeups_per_s", trial.wakeups),
        ("timer_wakeups_per_s", trial.timer_wakeups),
    ];
    sample.extend(trial.waited.map(|waited| ("waited_percent", 100.0 * waited)));
    sample
}

fn annotate(report: &mut Report) {
    for row in &mut report.rows {
        if row.median("offered_ratio") < OFFERED {
            row.notes.push("generator-bound".into());
        }
        if row.median("waited_percent") > 100.0 * WAITED {
            row.notes.push("disturbed by other programs".into());
        }
    }
}

fn state_bounds(report: &mut Report) {
    let which: Vec<_> = report.rows.iter().map(|row| (row.case.clone(), row.params.clone())).collect();
    // The kernel's own is there to compare with: what it misses says that the machine was not quiet.
    for (case, params) in which.into_iter().filter(|(case, _)| case == "tbf") {
        let params: Vec<_> =
            params.into_iter().filter(|(key, _)| ["rate_mbit", "size"].contains(key)).collect();
        report
            .bound_where((&case, &params), "ratio", Bound::AtLeast(1.0 - TOLERANCE))
            .meaning("The rate that was set is reached.");
        report
            .bound_where((&case, &params), "ratio", Bound::AtMost(1.0 + TOLERANCE))
            .meaning("The rate that was set is not exceeded.");
        if report.row_where("kernel-tbf", &params).is_none() {
            continue;
        }
        let number = |key: &str| {
            params.iter().find(|(name, _)| *name == key).and_then(|(_, value)| value.as_f64()).unwrap_or(0.0)
        };
        let many = number("rate_mbit") * 1e6 / 8.0 / number("size").max(1.0) >= MANY;
        let figures =
            ["wakeups_per_s", "timer_wakeups_per_s"].into_iter().chain(many.then_some("cpu_percent"));
        for figure in figures {
            let ratio = report.ratio_where((&case, &params), ("kernel-tbf", &params), figure);
            let mbit = params.first().map_or_else(String::new, |(_, mbit)| mbit.to_string());
            report
                .bound_value(
                    format!("{figure} by the kernel's, {mbit} Mbit/s"),
                    ratio,
                    Bound::AtMost(BY_KERNEL),
                )
                .meaning("Shaping costs no more than twice what the kernel's own tbf costs.");
        }
    }
}
