//! `softnet bench irq-suspend`: what it gains to leave a queue's doorbell masked while an application keeps taking its
//! packets.
//!
//! The kernel's own experiment, with softnet's names for its parts: one worker (softirq) and one application on the same
//! CPU, requests from another. Cases are how the queue's doorbell is deferred or suspended and how the application waits
//! ([`cases`]); each is measured under open loads that are shares of what `base` can do, and with as many requests as it
//! takes (`MAX`, closed).
//!
//! **The worker preempts the application**, as the kernel's softirq does: where we may, it runs under SCHED_FIFO. The
//! row's `worker_policy` says what it ran under. `base-fair` is `base` with a worker that the scheduler treats as it does
//! the application; on a kernel there is no such thing.
//!
//! **All rates are relative to the round**: what `base` does at MAX is measured first in each, and the round's loads are
//! shares of that, since the machine's speed changes from minute to minute. Measured once more at the end, it says by how
//! much.
//!
//! **The client is on another CPU** and does there what a network interface does. Ringing a doorbell is a system call of
//! several µs to it where raising an interrupt costs a NIC nothing; requests that are due meanwhile leave late, and that
//! is part of their latency. `late_percent` says how many.

mod bounds;
mod cases;
mod figures;
mod kv;
mod load;
mod measure;
mod published;
mod sleeps;
mod tcp;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;
use softnet::config::Context;
use softnet_dev::sched::Policy;

use super::device::Device;
use super::echo::{Bed, Load, Setup};
use super::harness::{self, alternate};
use super::report::{Bound, Report, Row, Sample, value};
use super::tcp::Cpus;
use super::{Common, pin};
use cases::{CASES, Case};
use load::load_value;
use measure::{Application, Times, measure};

pub(crate) const HELP: &str = "\
An application answers UDP requests (with --app tcp, TCP's), after some computing on each; it shares a CPU with the \
worker that polls the queue, and a client on another CPU sends them. N is napi_defer_hard_irqs, T gro_flush_timeout, S irq_suspend_timeout.

  base           N 0, T 0: the doorbell rings, the worker polls, the application is woken
  base-fair      the same, but the worker does not preempt the application
  deferX         N 100, T X µs: while packets come, a timer polls in place of the doorbell
  napibusy       N 100, T 200 µs; the application polls for 64 µs before it sleeps
  fullbusy       N 100, T 5 ms; the application always polls
  suspendX       N 100, T X µs, S 20 ms: while the application finds packets no other thread polls; suspend0: N 0, T 0
  coalesceX      base, and the NIC gathers packets for X µs (rx-usecs) or 128 of them (rx-frames); adaptive: it chooses

Each case runs under open loads (requests at random times) of 20 to 102 % of what base can do, and with 500 requests \
always outstanding (MAX).

  qps, *_us            requests answered a second; latency from when a request was due
  sustained_percent    qps by what was offered
  cpu_percent          worker and application together, of one core
  packets_per_poll     of polls that found any
  requests_per_wait    that the application was handed at once
  effective_timeout_us how long T took in fact
  late_percent         requests that the client sent more than 10 µs after they were due: then it is a limit

--device xdp: over a veth pair, by AF_XDP. Needs root. The client polls its end of the wire itself, so that no response \
wakes anything, however it is sent. What a NIC's driver does at the server's end (here: the veth's poll, the XDP program, \
the copy) is done by the client's CPU.

--app tcp: the application is a server of 500 TCP connections, which sends requests of 64 bytes back; the cases are \
those above but base-fair and those of the NIC. Server and client are those of tcp-rr, and open loads are of requests at \
equal intervals. Over an emulated wire the client is a second stack of softnet. Over veth it is the kernel, and what the \
server sends is received in softirq on the server's CPU, unless --inline-client has the client poll for it.

--app kv: the application is udp-kv, with 512 sockets of softnet in an epoll set, asked by memcached's get; a second \
application with a thread and a socket of its own is asked 1000 times a second by the same queue, and is woken. maxevents \
is how many sockets the server serves between two waits. Over veth in two set-ups:

  rx_cpu server        the driver's receiving is done by a thread of the kernel's on the server's CPU, as a NIC's is by \
its interrupt, and counted as the server's; veth_timeout_us is gro_flush_timeout of the kernel's NAPI instance there \
(napi_defer_hard_irqs 100), 0: it is woken for what comes
  rx_cpu client        it is done by softirq on the CPU that sends, as veth has it of itself, and is not counted

  load_of              whose MAX the load is a share of: own, of base of the same host; kernel, of the kernel's best row, the \
same rate for all
  second_*_us          latency of the second application

--peer kernel: the same server on the kernel's sockets, over a veth pair of the same kind, by the same client, in turns \
with softnet's and counted alike. Where its NAPI instance has a thread it is measured as base, defer100, and with epoll's \
own busy polling (fullbusy) and suspension (suspend20); bounds are against the best of these. With --app tcp its cases are:

  base                 it sleeps in epoll_wait; what comes is received in softirq on the CPU that sends, and not counted
  spin                 the same, and it asks epoll_wait again and again
  threaded             it sleeps; a thread of the kernel's on its CPU receives, and is counted

Without the privilege to preempt (CAP_SYS_NICE) base is what base-fair is. Two CPUs are needed.";

/// A row whose client sent more than this share of its requests late says so.
const LATE_PERCENT: f64 = 5.0;
/// Flows of the closed load.
const FLOWS: usize = 500;
/// Bytes of payload of a request.
const PAYLOAD: usize = 64;
/// What comes to each measurement: starting and stopping the application, waiting for the last responses.
const OVERHEAD: Duration = Duration::from_millis(40);

#[derive(Args, Debug)]
pub(crate) struct IrqSuspend {
    #[command(flatten)]
    pub(super) common: Common,
    /// What the requests come by
    #[arg(long, value_enum, default_value = "both")]
    device: Device,
    /// What answers
    #[arg(long, value_enum, default_value = "echo")]
    app: What,
    /// Most sockets that the server serves between two waits (may be repeated: base and suspend20 are measured with each, all
    /// cases with the first) [kv]
    #[arg(long, value_name = "N", default_values_t = [64, 8], value_parser = clap::value_parser!(u16).range(1..=64))]
    maxevents: Vec<u16>,
    /// Measure the same server on the kernel's sockets too, over a veth pair [kv, tcp]
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// Over veth, the client's thread polls the kernel's NAPI instance at its end itself: what the server sends costs the
    /// server no softirq of the client's [tcp]
    #[arg(long)]
    inline_client: bool,
    /// Microseconds of computing on each request [echo]
    #[arg(long, value_name = "US", default_value_t = 1, value_parser = clap::value_parser!(u16).range(..=1000))]
    work_us: u16,
    /// Only this case beside base (may be repeated)
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<String>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
enum What {
    /// It sends packets back, without sockets
    Echo,
    /// udp-kv, on sockets
    Kv,
    /// A server of 500 TCP connections, which sends requests back
    Tcp,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
enum Peer {
    /// The kernel
    Kernel,
}

/// How much is offered: as much as possible, or percent of what `base` answered.
const FULL: [Option<u32>; 7] = [None, Some(20), Some(40), Some(60), Some(80), Some(100), Some(102)];
const QUICK: [Option<u32>; 5] = [None, Some(20), Some(60), Some(80), Some(102)];

/// A device with the stacks that its cases need, and what `base` could do when it was measured last.
struct Rig {
    device: &'static str,
    beds: Vec<(Setup, RefCell<Bed>)>,
    capacity: Cell<f64>,
}

impl Rig {
    fn new(device: &'static str, cases: &[&Case], cpu: usize) -> Result<Self, String> {
        let mut rig = Rig { device, beds: Vec::new(), capacity: Cell::new(0.0) };
        for case in cases.iter().filter(|case| rig_has(device, case)) {
            let policy = if case.fair { Policy::Other } else { Policy::Fifo(1) };
            let setup = Setup {
                cpu,
                policy: Some(policy),
                payload: PAYLOAD,
                context: Context::Softirq,
                coalesce: case.coalesce,
            };
            if rig.bed(case).is_none() {
                let bed = if device == "mem" { Bed::mem(&setup) } else { Bed::xdp(&setup) };
                rig.beds.push((setup, RefCell::new(bed.map_err(|e| format!("{device}: {e}"))?)));
            }
        }
        Ok(rig)
    }

    fn bed(&self, case: &Case) -> Option<&RefCell<Bed>> {
        let fits = |setup: &Setup| {
            setup.coalesce == case.coalesce && (setup.policy == Some(Policy::Other)) == case.fair
        };
        self.beds.iter().find(|(setup, _)| fits(setup)).map(|(_, bed)| bed)
    }

    fn measure(
        &self,
        case: &Case,
        application: Application,
        load: Option<u32>,
        times: Times,
    ) -> Result<Sample, String> {
        let bed = self.bed(case).ok_or("no such bed")?;
        let offered = match load {
            None => Load::Closed { flows: FLOWS },
            Some(percent) => Load::Open { rate: self.capacity.get() * f64::from(percent) / 100.0 },
        };
        let sample = measure(&mut bed.borrow_mut(), case, application, offered, times)?;
        if case.name == "base" && load.is_none() {
            let qps = value(&sample, "qps").unwrap_or(0.0);
            if qps < 1.0 {
                return Err("no request was answered".into());
            }
            self.capacity.set(qps);
        }
        Ok(sample)
    }
}

/// Whether a case can be measured on `device`.
fn rig_has(device: &str, case: &Case) -> bool {
    device == "mem" || !case.coalesces()
}

impl IrqSuspend {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let cpus = Cpus::new(self.common.cpu)?;
        match self.app {
            What::Tcp => tcp::run(self, cpus),
            _ if self.inline_client => Err("--inline-client is for --app tcp".into()),
            What::Kv => kv::run(self, cpus.server, cpus.client),
            What::Echo if self.peer.is_some() => Err("--peer is for --app kv and --app tcp".into()),
            What::Echo => self.run_echo(cpus.server, cpus.client),
        }
    }

    fn run_echo(&self, cpu: usize, client: usize) -> Result<Report, String> {
        let cases = self.chosen()?;
        let devices = self.device.names();
        let mut rigs = Vec::new();
        for device in devices {
            rigs.push(Rig::new(device, &cases, cpu)?);
        }
        // Now, so that the stacks' threads are not pinned along.
        pin(client)?;
        let times = self.times();
        let application = Application { work: Duration::from_micros(self.work_us.into()), cpu };
        let rounds = self.common.rounds_or(7, 3);
        let loads: &[Option<u32>] = if self.common.quick { &QUICK } else { &FULL };
        let mut measured = Vec::new();
        for rig in &rigs {
            for load in loads {
                for case in cases.iter().filter(|case| rig_has(rig.device, case)) {
                    let row = self.row(rig, case, *load)?;
                    let measure = Box::new(move || rig.measure(case, application, *load, times));
                    measured.push(harness::Case { row, measure });
                }
            }
        }
        self.announce(measured.len(), rounds, times);
        let capacity = |rig: &Rig| -> Result<f64, String> {
            rig.measure(&CASES[0], application, None, times)?;
            Ok(rig.capacity.get())
        };
        let first = rigs.iter().map(capacity).collect::<Result<Vec<_>, _>>()?;
        let mut report = alternate("irq-suspend", None, rounds, measured)?;
        for (rig, first) in rigs.iter().zip(first) {
            let last = capacity(rig)?;
            let base = |row: &&mut Row| {
                row.case == "base"
                    && row.param("device") == Some(&json!(rig.device))
                    && row.param("load") == Some(&json!("MAX"))
            };
            if let Some(row) = report.rows.iter_mut().find(base) {
                row.notes.push(format!("{first:.0} qps before the first round, {last:.0} after the last"));
            }
        }
        annotate(&mut report);
        devices.iter().for_each(|device| state_bounds(&mut report, device));
        let wires: Vec<_> = devices.iter().map(|device| published::Wire { device, rx_cpu: None }).collect();
        published::add(&mut report, &wires);
        Ok(report)
    }

    fn times(&self) -> Times {
        match self.common.quick {
            true => Times { warm_up: Duration::from_millis(50), measure: Duration::from_millis(500) },
            false => Times { warm_up: Duration::from_millis(200), measure: Duration::from_millis(1500) },
        }
    }

    /// Says how long it will take.
    fn announce(&self, rows: usize, rounds: usize, times: Times) {
        let each = times.warm_up + times.measure + OVERHEAD;
        let seconds = (each * ((rounds + 1) * rows) as u32).as_secs();
        eprintln!("{rows} rows, {rounds} rounds: about {} min", seconds.div_ceil(60));
    }

    /// The cases to measure, `base` first.
    fn chosen(&self) -> Result<Vec<&'static Case>, String> {
        if let Some(unknown) = self.cases.iter().find(|name| CASES.iter().all(|case| case.name != **name)) {
            let names: Vec<_> = CASES.iter().map(|case| case.name).collect();
            return Err(format!("--case {unknown}: there are {}", names.join(", ")));
        }
        let wanted = |case: &&Case| match self.cases.is_empty() {
            true => case.quick || !self.common.quick,
            false => case.name == "base" || self.cases.iter().any(|name| name == case.name),
        };
        Ok(CASES.iter().filter(wanted).collect())
    }

    fn row(&self, rig: &Rig, case: &Case, load: Option<u32>) -> Result<Row, String> {
        let bed = rig.bed(case).ok_or("no such bed")?.borrow();
        let workers = bed.stack.view().workers();
        let policy = workers.first().map_or("-", |worker| &worker.policy);
        let params = vec![
            ("device", json!(rig.device)),
            ("load", load_value(load)),
            ("worker_policy", json!(policy)),
            ("context", json!("softirq")),
            ("work_us", json!(self.work_us)),
            ("size", json!(PAYLOAD)),
            ("pinned", json!(true)),
        ];
        Ok(Row::new(case.name, params))
    }
}

fn annotate(report: &mut Report) {
    for row in &mut report.rows {
        let late = row.median("late_percent");
        if late > LATE_PERCENT {
            row.notes.push(format!("the client was late with {late:.0} % of the requests"));
        }
    }
}

/// What a ratio of `figure` says, in a sentence.
fn meaning(figure: &str) -> &'static str {
    match figure {
        "qps" => "How many requests a second it answers at most, against the other.",
        "p99_us" => {
            "How long the slowest hundredth of its requests takes at the same load, against the other."
        }
        _ => "How much CPU time it takes for the same load, against the other.",
    }
}

/// States the bounds whose cases and loads were measured.
fn state_bounds(report: &mut Report, device: &str) {
    use Bound::{AtLeast, AtMost};
    let bounds = [
        ("suspend20", "base", "qps", None, AtLeast(1.10)),
        ("suspend20", "fullbusy", "qps", None, AtLeast(0.95)),
        ("suspend0", "base", "qps", None, AtLeast(0.95)),
        ("suspend0", "base", "qps", None, AtMost(1.05)),
        ("suspend50", "fullbusy", "cpu_percent", Some(20), AtMost(0.45)),
        ("suspend200", "fullbusy", "cpu_percent", Some(20), AtMost(0.30)),
        ("suspend20", "base", "p99_us", Some(80), AtMost(0.5)),
    ];
    for (case, by, figure, load, bound) in bounds {
        let params = [("device", json!(device)), ("load", load_value(load))];
        let ratio = report.ratio_where((case, &params), (by, &params), figure);
        if ratio > 0.0 {
            let load = load.map_or("MAX".into(), |percent| format!("{percent} %"));
            report
                .bound_value(format!("{device}: {case} / {by} {figure} at {load}, by round"), ratio, bound)
                .meaning(meaning(figure));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(figures: &[(&str, Option<u32>, Sample)]) -> Report {
        let rows = figures.iter().map(|(case, load, sample)| {
            let mut row = Row::new(*case, vec![("device", json!("mem")), ("load", load_value(*load))]);
            row.push(sample.clone());
            row
        });
        Report::new("irq-suspend", rows.collect(), None)
    }

    #[test]
    fn bounds_are_of_what_was_measured() {
        let qps = |x| vec![("qps", x)];
        let mut all = report(&[("base", None, qps(100.0)), ("suspend20", None, qps(120.0))]);
        state_bounds(&mut all, "mem");
        assert!(all.holds());
        let mut slow = report(&[("base", None, qps(100.0)), ("suspend20", None, qps(109.0))]);
        state_bounds(&mut slow, "mem");
        assert!(!slow.holds());
        let cpu = |x| vec![("cpu_percent", x)];
        let mut hungry = report(&[("fullbusy", Some(20), cpu(100.0)), ("suspend200", Some(20), cpu(31.0))]);
        state_bounds(&mut hungry, "xdp");
        assert!(hungry.holds(), "another device");
        state_bounds(&mut hungry, "mem");
        assert!(!hungry.holds());
    }

    #[test]
    fn a_late_client_is_said_to_be() {
        let mut report = report(&[
            ("base", None, vec![("late_percent", 12.0)]),
            ("defer10", None, vec![("late_percent", 1.0)]),
        ]);
        annotate(&mut report);
        assert_eq!(report.rows[0].notes, ["the client was late with 12 % of the requests"]);
        assert!(report.rows[1].notes.is_empty());
    }
}
