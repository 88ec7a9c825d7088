//! `--app kv`: the same cases by sockets and epoll. `udp-kv` serves on softnet's sockets, and on the kernel's beside it.
//!
//! softnet and the kernel take turns in one run, over veth pairs of the same kind and asked by the same client. Where the
//! kernel is measured too, loads over veth are shares of what it does at most, for both, so that rows of one load compare.

use std::cell::{Cell, RefCell};
use std::sync::PoisonError;
use std::time::Instant;

use serde_json::json;
use softnet::control::{SetKnobs, Target};
use softnet::show::{NapiRow, Stats};
use softnet_dev::sched::Policy;
use udp_kv::Waiting;

use super::cases::{CASES, Case};
use super::figures::{self, Polled};
use super::measure::Times;
use super::{FLOWS, FULL, IrqSuspend, QUICK, load_value, published, sleeps};
use crate::bench::cpu::Used;
use crate::bench::echo::{Load, Usage};
use crate::bench::harness::{self, alternate};
use crate::bench::kv::{App, Bed, Side};
use crate::bench::pin;
use crate::bench::report::{Bound, Report, Row, Sample};

/// What serves on the kernel's sockets: name of the case, context of the NAPI instance.
const KERNEL: [(&str, &str); 2] = [("base", "threaded"), ("base-softirq", "softirq")];
/// Cases that are measured with every `maxevents`; the others with the first.
const VARIED: [&str; 2] = ["base", "suspend20"];

/// One bed, and what it is called in rows.
struct Host {
    device: &'static str,
    bed: RefCell<Bed>,
}

/// What is compared with each other: one wire, softnet, and the kernel if it is asked for.
struct Group {
    softnet: Host,
    kernel: Vec<Host>,
    /// What all loads are shares of: whose maximum it is, and the requests a second that it was when last measured.
    load_of: &'static str,
    capacity: Cell<f64>,
}

/// A row: who serves, how, under what load.
#[derive(Clone, Copy)]
struct Entry<'a> {
    host: &'a Host,
    name: &'static str,
    context: &'static str,
    case: &'static Case,
    max_events: u16,
    load: Option<u32>,
    /// It tells the group's capacity.
    leads: bool,
}

impl Group {
    fn new(device: &'static str, kernel: bool, cpu: usize, client: usize) -> Result<Self, String> {
        // It preempts the application, as softirq does.
        let policy = Some(Policy::Fifo(1));
        let bed = if device == "mem" { Bed::mem(cpu, policy) } else { Bed::xdp(cpu, policy, client) };
        let softnet = Host { device, bed: RefCell::new(bed.map_err(|e| format!("{device}: {e}"))?) };
        let mut group = Group { softnet, kernel: Vec::new(), load_of: "base", capacity: Cell::new(0.0) };
        if kernel && device == "xdp" {
            group.load_of = "kernel";
            for (_, context) in KERNEL {
                let bed = Bed::kernel((context == "threaded").then_some(cpu), client);
                let bed = RefCell::new(bed.map_err(|e| format!("kernel: {e}"))?);
                group.kernel.push(Host { device: "kernel", bed });
            }
        }
        Ok(group)
    }

    /// The rows under `load`; the first tells the capacity, if that is the maximum.
    fn entries<'a>(
        &'a self,
        cases: &[&'static Case],
        maxevents: &[u16],
        load: Option<u32>,
    ) -> Vec<Entry<'a>> {
        let first = maxevents[0];
        let mut entries = Vec::new();
        for (host, (name, context)) in self.kernel.iter().zip(KERNEL) {
            let leads = load.is_none() && name == "base";
            entries.push(Entry { host, name, context, case: &CASES[0], max_events: first, load, leads });
        }
        for case in cases.iter().copied().filter(|case| !case.fair && !case.coalesces()) {
            let varied = VARIED.contains(&case.name);
            for &max_events in maxevents.iter().filter(|n| varied || **n == first) {
                let leads = entries.is_empty() && load.is_none();
                let (host, name) = (&self.softnet, case.name);
                entries.push(Entry { host, name, context: "softirq", case, max_events, load, leads });
            }
        }
        entries
    }

    fn measure(&self, entry: Entry<'_>, cpu: usize, times: Times) -> Result<Sample, String> {
        let load = match entry.load {
            None => Load::Closed { flows: FLOWS },
            Some(percent) => Load::Open { rate: self.capacity.get() * f64::from(percent) / 100.0 },
        };
        let sample =
            measure(&mut entry.host.bed.borrow_mut(), entry.case, entry.max_events, cpu, load, times)?;
        if entry.leads {
            let qps = sample.iter().find(|(figure, _)| *figure == "qps").map_or(0.0, |(_, qps)| *qps);
            if qps < 1.0 {
                return Err("no request was answered".into());
            }
            self.capacity.set(qps);
        }
        Ok(sample)
    }

    fn row(&self, entry: Entry<'_>) -> Row {
        let bed = entry.host.bed.borrow();
        let params = vec![
            ("app", json!("kv")),
            ("device", json!(entry.host.device)),
            ("load", load_value(entry.load)),
            ("maxevents", json!(entry.max_events)),
            ("load_of", json!(self.load_of)),
            ("worker_policy", json!(bed.side.policy())),
            ("context", json!(entry.context)),
            ("pinned", json!(true)),
        ];
        Row::new(entry.name, params)
    }
}

/// Measures on CPU `cpu`, with the client on `client`.
pub(super) fn run(bench: &IrqSuspend, cpu: usize, client: usize) -> Result<Report, String> {
    let cases = bench.chosen()?;
    let devices = bench.device.names();
    let (kernel, times) = (bench.peer.is_some(), bench.times());
    let groups = devices.iter().map(|device| Group::new(device, kernel, cpu, client));
    let groups = groups.collect::<Result<Vec<_>, _>>()?;
    // Now, so that the stacks' threads are not pinned along.
    pin(client)?;
    let loads: &[Option<u32>] = if bench.common.quick { &QUICK } else { &FULL };
    let mut measured = Vec::new();
    for group in &groups {
        for entry in loads.iter().flat_map(|load| group.entries(&cases, &bench.maxevents, *load)) {
            let measure = Box::new(move || group.measure(entry, cpu, times));
            measured.push(harness::Case { row: group.row(entry), measure });
        }
        // Shares are of something in the warm-up already.
        let first = group.entries(&cases, &bench.maxevents, None);
        group.measure(first[0], cpu, times)?;
    }
    if kernel {
        measured.push(harness::Case {
            row: sleeps::row(),
            measure: Box::new(move || sleeps::measure(cpu, times)),
        });
    }
    let rounds = bench.common.rounds_or(7, 3);
    bench.announce(measured.len(), rounds, times);
    let mut report = alternate("irq-suspend", None, rounds, measured)?;
    super::annotate(&mut report);
    devices.iter().for_each(|device| state_bounds(&mut report, device, bench.maxevents[0]));
    published::add(&mut report, devices);
    Ok(report)
}

/// Counters at some moment.
struct Snapshot {
    at: Instant,
    napi: Option<NapiRow>,
    worker: Usage,
    application: Usage,
    kernel: Used,
}

impl Snapshot {
    fn take(side: &Side, app: &[i32]) -> Self {
        let view = side.stack().map(|(stack, _)| stack.view());
        let tids: Vec<i32> = view.iter().flat_map(|view| view.workers()).map(|worker| worker.tid).collect();
        let (worker, application) = (Usage::of(&tids), Usage::of(app));
        let kernel = Used::of(side.kernel_threads());
        let napi = view.and_then(|view| view.napis().into_iter().next());
        Snapshot { at: Instant::now(), napi, worker, application, kernel }
    }
}

/// Runs the applications on a bed as `case` says, applies `load`, and returns the figures.
fn measure(
    Bed { client, side }: &mut Bed,
    case: &Case,
    max_events: u16,
    cpu: usize,
    load: Load,
    times: Times,
) -> Result<Sample, String> {
    if let Some((stack, napi)) = side.stack() {
        stack.view().set_knobs(&SetKnobs { target: Target::Napi(napi), knobs: case.knobs() })?;
    }
    let params = case.poller().epoll();
    let waiting = Waiting { params, max_events: max_events.into(), longest: case.wait, ..Waiting::default() };
    let (before, ring_drops) = (stats(side), side.lost_on_the_wire()?);
    let app = App::start(side, waiting, cpu)?;
    let threads = app.threads();
    let mut snapshots = Vec::with_capacity(2);
    let outcome = client
        .run(&load, times.warm_up, times.measure, &mut || snapshots.push(Snapshot::take(side, &threads)))?;
    let served = app.stop()?;
    let [begin, end] = &snapshots[..] else { return Err("it was not measured".into()) };
    let ring_drops = side.lost_on_the_wire()? - ring_drops;
    if served.received != served.sent + served.not_sent {
        return Err(format!("the server did not answer all that it received: {served:?}"));
    }
    if let Some((before, after)) = before.zip(stats(side)) {
        let dropped = after.dropped - before.dropped;
        let (received, sent) = (after.received - before.received, after.transmitted - before.transmitted);
        let lost = dropped + ring_drops + served.not_sent;
        // A client that is kept from its CPU lets the queues before its wire run full: then responses are dropped, too.
        let requests = received.checked_sub(served.received);
        let responses = served.sent.checked_sub(sent);
        if requests.zip(responses).map(|(a, b)| a + b) != Some(dropped) || outcome.lost > lost {
            return Err(format!(
                "{received} requests were received, {sent} responses sent, {dropped} dropped, {ring_drops} by the \
                 device; of the server {served:?}; the client missed {}",
                outcome.lost
            ));
        }
    }

    let seconds = (end.at - begin.at).as_secs_f64();
    let (worker, app) = (end.worker - begin.worker, end.application - begin.application);
    let kernel = end.kernel.since(begin.kernel).cpu_ns;
    let cpu_ns = worker.cpu_ns + app.cpu_ns + kernel;
    let mut sample = figures::answered(&load, &outcome);
    {
        let second = side.second.lock().unwrap_or_else(PoisonError::into_inner);
        let of =
            |figure| second.latency.figures().iter().find(|(name, _)| *name == figure).map_or(0.0, |f| f.1);
        sample.extend([
            ("second_avg_us", of("avg_us")),
            ("second_p99_us", of("p99_us")),
            ("second_max_us", of("max_us")),
            ("second_lost", second.lost as f64),
        ]);
    }
    sample.extend(figures::cpu((cpu_ns, worker.cpu_ns + kernel), seconds, outcome.answered));
    sample.extend([
        ("app_wakeups_per_s", app.blocked as f64 / seconds),
        ("app_preempted_per_s", app.preempted as f64 / seconds),
    ]);
    sample.extend(figures::missed(&outcome));
    if let (Some(begin), Some(end)) = (&begin.napi, &end.napi) {
        let polled = Polled { begin, end, seconds };
        sample.extend(polled.polls());
        sample.extend([
            ("busy_polls_per_s", polled.rate(|n| n.busy_polls)),
            ("suspensions_per_s", polled.rate(|n| n.suspensions)),
        ]);
    }
    Ok(sample)
}

fn stats(side: &Side) -> Option<Stats> {
    side.stack().map(|(stack, _)| stack.view().stats())
}

/// States the bounds whose cases and loads were measured on `device`.
fn state_bounds(report: &mut Report, device: &str, max_events: u16) {
    use Bound::{AtLeast, AtMost};
    let bounds = [
        (("base", device), ("base", "kernel"), "qps", None, AtLeast(0.9)),
        (("suspend20", device), ("base", device), "qps", None, AtLeast(1.10)),
        (("suspend20", device), ("fullbusy", device), "qps", None, AtLeast(0.95)),
        (("suspend20", device), ("base", "kernel"), "qps", None, AtLeast(1.3)),
        (("suspend20", device), ("base", "kernel"), "p99_us", Some(80), AtMost(0.7)),
        (("suspend20", device), ("base", "kernel"), "cpu_percent", Some(20), AtMost(1.1)),
    ];
    for ((case, on), (by, by_on), figure, load, bound) in bounds {
        if by_on == "kernel" && device != "xdp" {
            continue;
        }
        let params = |device: &str| {
            [("device", json!(device)), ("load", load_value(load)), ("maxevents", json!(max_events))]
        };
        let ratio = report.ratio_where((case, &params(on)), (by, &params(by_on)), figure);
        if ratio > 0.0 {
            let load = load.map_or("MAX".into(), |percent| format!("{percent} %"));
            let by = if by_on == on { by.into() } else { format!("{by_on}'s {by}") };
            report.bound_value(format!("{on}: {case} / {by} {figure} at {load}, by round"), ratio, bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_a_bound_over_the_same_wire_only() {
        let row = |case: &str, device: &str, figure, x: f64| {
            let load = if figure == "qps" { None } else { Some(80) };
            let params =
                vec![("device", json!(device)), ("load", load_value(load)), ("maxevents", json!(64))];
            let mut row = Row::new(case, params);
            row.push(vec![(figure, x)]);
            row
        };
        let report = |suspend20: f64, p99: f64| {
            let rows = vec![
                row("base", "kernel", "qps", 100.0),
                row("base", "kernel", "p99_us", 100.0),
                row("base", "xdp", "qps", 100.0),
                row("suspend20", "xdp", "qps", suspend20),
                row("suspend20", "xdp", "p99_us", p99),
                row("suspend20", "mem", "qps", 1.0),
            ];
            let mut report = Report::new("irq-suspend", rows, None);
            state_bounds(&mut report, "xdp", 64);
            state_bounds(&mut report, "mem", 64);
            report
        };
        assert!(report(130.0, 70.0).holds());
        assert!(!report(129.0, 70.0).holds());
        assert!(!report(130.0, 71.0).holds());
    }
}
