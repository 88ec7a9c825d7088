//! `softnet bench tx-enqueue`: many senders and few TX queues, by how a packet gets into its queue.
//!
//! Senders write a frame and send it, one in a call, as fast as their window allows ([`sender`], [`wire`]); the wire takes
//! whatever it is given at once, and counts. What differs is the queue ([`queue`]): deferred enqueue, or one of three locks
//! around the same discipline before the same wire, used as the kernel used its own until 6.18 ([`baseline`]). A run that
//! used up its share is continued by one worker thread ([`worker`]), for every case alike.
//!
//! *The discipline never limits.* It holds the windows of all senders, and `tbf` has a rate that cannot be reached. So a
//! drop is a fault of the way of sending, and senders wait for nothing but their windows and each other.
//!
//! *The call* is timed from its begin until the packet was taken: by a lock's owner or on the pending list. A sender that
//! is told to hold back, because too many are pending, yields its CPU and tries again; all of that is within the call.
//! Waiting for the window is not: it comes before the call, in all cases.
//!
//! *What two CPUs show.* With a sender on each CPU, locks are at their worst, and deferring is worth what was published.
//! With many more senders than CPUs it is not, by the throughput of one queue: a thread that waits for a lock gives its CPU away, so
//! that in effect one sender at a time goes on for a whole slice, with everything in its own cache. A packet that is handed
//! over moves from CPU to CPU, with its head and its memory, and costs three times as much as one that is not. (A lock
//! whose waiters keep their CPUs, as the kernel's do, falls behind by far then.) What remains is the call: its 99th
//! percentile is a tenth of a lock's. What is above it is senders that are held back.
//!
//! *All threads compete*, the senders with the worker and with each other; that is what is measured. What other programs
//! took meanwhile is watched from outside: a measurement in which it was too much is repeated.

mod baseline;
mod kernel;
mod published;
mod queue;
mod rig;
mod sender;
#[cfg(test)]
mod tests;
mod wire;
mod worker;

use std::cell::Cell;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use softnet_core::qdisc::Spec;

use super::harness::{Case, alternate};
use super::report::plot::{Plot, Series};
use super::report::{Bound, Report, Row, Sample, value};
use super::{Common, cpus};
use kernel::Kernel;
use queue::Way;
use rig::{Load, OTHERS, Times};

pub(crate) const HELP: &str = "\
Senders put 120-byte UDP frames, one in a call, into one TX queue with the discipline tbf or pfifo, or into four with mq; \
none of the disciplines limits. A device takes all frames at once, looks at the order of all and at each byte of one in 16, and counts them.

  deferred     a sender that finds the queue taken leaves its packet on a lock-free list and goes on; the owner sends for all
  busylock     a spin lock, and a second for senders that see the queue running: the kernel until 6.18
  mcs          a queue lock, first come, first served
  parking_lot  parking_lot's mutex
  kernel       with --peer kernel: the same senders on UDP sockets, tbf on an ifb interface (root; ip and tc)

  mpps                 packets that arrived
  p50_us … max_us      duration of one call in eight; that of the kernel is send(2) with all it does
  switches_per_s       context switches of the senders and of the thread that continues what a sender began
  held_back_percent    calls that found too many packets pending, and tried again
  others_cpu_percent   what other programs used meanwhile, of one CPU";

#[derive(Args, Debug)]
pub(crate) struct TxEnqueue {
    #[command(flatten)]
    pub(super) common: Common,
    /// Only this case beside deferred (may be repeated)
    #[arg(long = "case", value_enum, value_name = "CASE")]
    ways: Vec<Way>,
    /// Only with this discipline (may be repeated)
    #[arg(long = "qdisc", value_enum, value_name = "QDISC")]
    qdiscs: Vec<Discipline>,
    /// Only with so many senders (may be repeated) [default: 1, 2, 4, 8, 16 and 64]
    #[arg(long = "threads", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Vec<u16>,
    /// Another stack to compare with
    #[arg(long, value_enum, value_name = "PEER")]
    peer: Option<Peer>,
}

/// Disciplines, and over how many queues.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Discipline {
    /// One queue, a token bucket with a rate that does not limit
    Tbf,
    /// One queue, first in, first out
    Pfifo,
    /// Four queues, each with a pfifo
    Mq,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// The kernel's UDP sockets, on an interface in a namespace of its own
    Kernel,
}

/// Senders.
const THREADS: [u16; 6] = [1, 2, 4, 8, 16, 64];
/// From how many senders on the bounds are stated.
const MANY: u16 = 8;
/// A measurement during which other programs used more than this of the CPUs that the senders need, in percent of one, is
/// repeated.
const DISTURBED: f64 = 10.0;

impl Discipline {
    fn name(self) -> &'static str {
        match self {
            Discipline::Tbf => "tbf",
            Discipline::Pfifo => "pfifo",
            Discipline::Mq => "mq",
        }
    }

    fn queues(self) -> usize {
        if self == Discipline::Mq { 4 } else { 1 }
    }

    /// What each queue has: room for the windows of all senders, by packets or bytes.
    fn spec(self) -> Result<Spec, String> {
        let text = match self {
            Discipline::Tbf => "tbf rate 1tbit burst 64mb limit 64mb",
            Discipline::Pfifo | Discipline::Mq => "pfifo limit 20000",
        };
        text.parse().map_err(|e| format!("{text}: {e}"))
    }
}

/// Repeats what others disturbed, as long as there are repetitions left.
struct Patience {
    left: Cell<usize>,
    used: Cell<usize>,
}

impl Patience {
    fn measure(&self, threads: u16, once: impl Fn() -> Result<Sample, String>) -> Result<Sample, String> {
        loop {
            let sample = once()?;
            let others = value(&sample, OTHERS).unwrap_or(0.0);
            if others <= bearable(threads) || self.left.get() == 0 {
                return Ok(sample);
            }
            self.left.set(self.left.get() - 1);
            self.used.set(self.used.get() + 1);
        }
    }
}

/// What other programs may use, in percent of one CPU, while so many senders are measured.
fn bearable(threads: u16) -> f64 {
    DISTURBED + 100.0 * cpus().len().saturating_sub(threads.into()) as f64
}

/// Parameters of a row.
pub(super) fn params(qdisc: Discipline, threads: u16, pinned: bool) -> Vec<(&'static str, Value)> {
    vec![("qdisc", json!(qdisc.name())), ("threads", json!(threads)), ("pinned", json!(pinned))]
}

impl TxEnqueue {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let quick = self.common.quick;
        let ms = Duration::from_millis;
        let (warm_up, measure) = if quick { (ms(50), ms(200)) } else { (ms(100), ms(500)) };
        let times = Times { warm_up, measure };
        let (region, kernel) =
            (rig::region(wire::SENDERS)?, self.peer.map(|Peer::Kernel| Kernel::new()).transpose()?);
        let (region, kernel) = (&region, kernel.as_ref());
        let patience = Patience { left: Cell::new(0), used: Cell::new(0) };
        let wanted = |way: &Way| *way == Way::Deferred || self.ways.is_empty() || self.ways.contains(way);
        let mut cases = Vec::new();
        for (qdisc, threads, pinned) in self.loads() {
            for way in Way::ALL.into_iter().filter(wanted) {
                let senders = usize::from(threads);
                let load = Load { way, qdisc: qdisc.spec()?, queues: qdisc.queues(), senders, pinned };
                let mut all = params(qdisc, threads, pinned);
                all.extend([
                    ("queues", json!(load.queues)),
                    ("device", json!("mem")),
                    ("size", json!(wire::SIZE)),
                ]);
                let patience = &patience;
                let measure = move || patience.measure(threads, || load.measure(region, times));
                cases.push(Case { row: Row::new(way.name(), all), measure: Box::new(measure) });
            }
            if let Some(kernel) = kernel.filter(|_| qdisc == Discipline::Tbf) {
                let mut all = params(qdisc, threads, pinned);
                all.extend([("queues", json!(1)), ("device", json!("ifb")), ("size", json!(wire::SIZE))]);
                let patience = &patience;
                let measure =
                    move || patience.measure(threads, || kernel.measure(threads.into(), pinned, times));
                cases.push(Case { row: Row::new("kernel", all), measure: Box::new(measure) });
            }
        }
        let rounds = self.common.rounds();
        patience.left.set(rounds * cases.len() / 4);
        let mut report = alternate("tx-enqueue", None, rounds, cases)?;
        report.repeated = Some(patience.used.get());
        for row in &mut report.rows {
            let threads = row.param("threads").and_then(Value::as_u64).unwrap_or(0);
            if row.median(OTHERS) > bearable(threads as u16) {
                row.notes.push("disturbed by other programs".into());
            }
        }
        self.conclude(&mut report);
        Ok(report)
    }

    /// Disciplines, numbers of senders, and whether these are pinned.
    fn loads(&self) -> Vec<(Discipline, u16, bool)> {
        let qdiscs = if self.qdiscs.is_empty() { Discipline::value_variants() } else { &self.qdiscs };
        let threads = if self.threads.is_empty() { &THREADS[..] } else { &self.threads };
        let mut loads = Vec::new();
        for qdisc in qdiscs {
            for threads in threads {
                loads.extend([false, true].map(|pinned| (*qdisc, *threads, pinned)));
            }
        }
        loads
    }

    /// Bounds, plots and published figures.
    fn conclude(&self, report: &mut Report) {
        for (qdisc, threads, pinned) in self.loads() {
            if qdisc != Discipline::Mq && !pinned {
                bounds(report, qdisc, threads);
            }
        }
        let mut done = Vec::new();
        for (qdisc, _, pinned) in self.loads() {
            if !done.contains(&(qdisc, pinned)) {
                done.push((qdisc, pinned));
                report.plots.extend([
                    plot(report, (qdisc, pinned), "mpps", "Mpps", false),
                    plot(report, (qdisc, pinned), "cpu_ns_per_packet", "ns of CPU time for a packet", true),
                    plot(report, (qdisc, pinned), "p999_us", "99.9th percentile of the call, µs", true),
                ]);
            }
        }
        report.published.push(published::table(report));
    }
}

/// The ratio of `deferred` to the baseline that does best, by the median of rounds: the lowest (`best` of two) of all.
fn to_best(
    report: &Report,
    params: &[(&str, Value)],
    figure: &str,
    best: fn(f64, f64) -> f64,
) -> Option<f64> {
    let baselines = Way::ALL.into_iter().filter(|way| *way != Way::Deferred);
    let ratio = |way: Way| {
        let by = (way.name(), params);
        report.row_where(by.0, by.1)?;
        Some(report.ratio_where((Way::Deferred.name(), params), by, figure))
    };
    baselines.filter_map(ratio).reduce(best)
}

/// States, of unpinned senders and one queue, that deferring is worth it where many contend, and costs nothing where
/// none do. It is stated of as many senders as there are CPUs, too: with one for each, as in the published
/// experiment, a sender that waits for a lock spins on a CPU that no other thread wants, and a lock is at its worst.
fn bounds(report: &mut Report, qdisc: Discipline, threads: u16) {
    let params = params(qdisc, threads, false);
    let busylock = |figure| {
        let by = (Way::BusyLock.name(), &params[..]);
        report.row_where(by.0, by.1)?;
        Some(report.ratio_where((Way::Deferred.name(), &params), by, figure))
    };
    let stated = match threads {
        1 => vec![("best mpps", to_best(report, &params, "mpps", f64::min), Bound::AtLeast(0.97))],
        n if n >= MANY || usize::from(n) == cpus().len() => vec![
            ("busylock mpps", busylock("mpps"), Bound::AtLeast(1.8)),
            ("best mpps", to_best(report, &params, "mpps", f64::min), Bound::AtLeast(1.2)),
            ("busylock cpu_ns_per_packet", busylock("cpu_ns_per_packet"), Bound::AtMost(0.5)),
            ("best p999_us", to_best(report, &params, "p999_us", f64::max), Bound::AtMost(0.1)),
        ],
        _ => Vec::new(),
    };
    for (what, measured, bound) in stated {
        if let Some(measured) = measured {
            let what = format!("deferred / {what}, {}, {threads} threads", qdisc.name());
            let meaning = match threads {
                1 => "Deferring costs a single sender next to nothing.",
                _ => "Where many senders contend, deferring gains this over waiting for a lock.",
            };
            report.bound_value(what, measured, bound).meaning(meaning);
        }
    }
    report
        .bound_where((Way::Deferred.name(), &params), "drops_percent", Bound::AtMost(0.1))
        .meaning("Senders are held back before packets are dropped.");
}

/// A figure by number of senders, a curve for each case.
fn plot(
    report: &Report,
    (qdisc, pinned): (Discipline, bool),
    figure: &str,
    y_label: &str,
    log_y: bool,
) -> Plot {
    let mut names: Vec<&str> = Vec::new();
    for row in &report.rows {
        if !names.contains(&row.case.as_str()) {
            names.push(&row.case);
        }
    }
    let series = names.into_iter().map(|name| {
        let is_on_it = |row: &&Row| {
            row.case == name
                && row.param("qdisc") == Some(&json!(qdisc.name()))
                && row.param("pinned") == Some(&json!(pinned))
        };
        let point = |row: &Row| {
            let threads = row.param("threads").and_then(Value::as_f64).unwrap_or(0.0);
            (threads.log2(), row.median(figure))
        };
        let points = report.rows.iter().filter(is_on_it).map(point).collect();
        Series { name: name.into(), points, dashed: false }
    });
    Plot {
        title: format!("{}, {}", qdisc.name(), if pinned { "pinned" } else { "unpinned" }),
        x_label: "log2 of the number of senders".into(),
        y_label: y_label.into(),
        log_y,
        series: series.filter(|series| !series.points.is_empty()).collect(),
    }
}
