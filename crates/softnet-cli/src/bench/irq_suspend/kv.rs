//! `--app kv`: the same cases by sockets and epoll. `udp-kv` serves on softnet's sockets, and on the kernel's beside it.
//!
//! softnet and the kernel take turns in one run, over veth pairs of the same kind and asked by the same client. They are
//! compared within a [`Group`]: in each, the driver's receiving work at the server's end is done on the same CPU, by the
//! same means, and counted alike for both. The kernel is measured in every way that might be its best.

use std::cell::{Cell, RefCell};
use std::sync::PoisonError;
use std::time::Instant;

use serde_json::json;
use softnet::control::show::{NapiRow, Stats};
use softnet::control::{SetKnobs, Target};
use softnet_dev::netlink::NapiKnobs;
use softnet_dev::sched::Policy;
use udp_kv::Waiting;

use super::bounds::state_bounds;
use super::cases::{self, CASES, Case};
use super::figures::{self, Polled};
use super::load::{Asked, load_value};
use super::measure::Times;
use super::{FLOWS, IrqSuspend, published, sleeps};
use crate::bench::cpu::Used;
use crate::bench::echo::{Load, Usage};
use crate::bench::harness::{self, alternate};
use crate::bench::kv::{App, Bed, Receive, Side};
use crate::bench::pin;
use crate::bench::report::{Report, Row, Sample, value};
use crate::bench::text;

/// Cases of the kernel's that are always measured where its NAPI instance has a thread and knobs: one of them is its best.
const KERNEL: [&str; 4] = ["base", "defer100", "fullbusy", "suspend20"];
/// Cases that are measured with every `maxevents`; the others with the first.
const VARIED: [&str; 2] = ["base", "suspend20"];
/// Cases of softnet's that are also measured with the kernel's NAPI instance deferred as in the kernel's `defer100`.
const DEFERRED: [&str; 3] = ["base", "fullbusy", "suspend20"];

/// Whose sockets serve, over which wire.
struct Host {
    device: &'static str,
    bed: RefCell<Bed>,
    /// What its `base` did at most in this round, in requests a second.
    capacity: Cell<f64>,
}

/// What is compared with each other.
struct Group {
    /// Where the driver's receiving work at the server's end is done.
    rx_cpu: &'static str,
    /// The kernel first, if it is asked for.
    hosts: Vec<Host>,
    /// What the best of the kernel's cases did at most in this round, in requests a second.
    kernel: Cell<f64>,
}

/// A row: the stack that serves, how, how much is asked.
#[derive(Clone, Copy)]
struct Entry<'a> {
    host: &'a Host,
    case: &'static Case,
    /// Of the kernel's NAPI instance at the server's end.
    knobs: NapiKnobs,
    max_events: u16,
    asked: Asked,
    /// The first of the group in a round.
    first: bool,
}

impl Group {
    fn mem(cpu: usize) -> Result<Self, String> {
        let bed = Bed::mem(cpu, policy()).map_err(|e| format!("mem: {e}"))?;
        Ok(Group::of("-", vec![Host::new("mem", bed)]))
    }

    fn veth(kernel: bool, cpu: usize, receive: Receive) -> Result<Self, String> {
        let mut hosts = Vec::new();
        if kernel {
            hosts.push(Host::new("kernel", Bed::kernel(receive).map_err(|e| format!("kernel: {e}"))?));
        }
        hosts.push(Host::new("xdp", Bed::xdp(cpu, policy(), receive).map_err(|e| format!("xdp: {e}"))?));
        let rx_cpu = if receive == Receive::Client { "client" } else { "server" };
        Ok(Group::of(rx_cpu, hosts))
    }

    fn of(rx_cpu: &'static str, hosts: Vec<Host>) -> Self {
        Group { rx_cpu, hosts, kernel: Cell::new(0.0) }
    }

    fn entries<'a>(&'a self, chosen: &[&'static Case], maxevents: &[u16], asked: Asked) -> Vec<Entry<'a>> {
        let mut entries: Vec<Entry<'a>> = Vec::new();
        for host in &self.hosts {
            for (case, knobs) in host.cases(self.rx_cpu, chosen) {
                let varied = host.device != "kernel" && VARIED.contains(&case.name);
                for &max_events in maxevents.iter().filter(|n| varied || **n == maxevents[0]) {
                    let first = entries.is_empty();
                    entries.push(Entry { host, case, knobs, max_events, asked, first });
                }
            }
        }
        entries
    }

    fn measure(&self, entry: Entry<'_>, cpu: usize, times: Times) -> Result<Sample, String> {
        let Entry { host, case, knobs, max_events, asked, first } = entry;
        let load = match asked.rate(host.capacity.get(), self.kernel.get()) {
            None => Load::Closed { flows: FLOWS },
            Some(rate) => Load::Open { rate },
        };
        let mut bed = host.bed.borrow_mut();
        bed.side.set_kernel_knobs(knobs)?;
        let sample = measure(&mut bed, case, max_events, cpu, load, times)?;
        if asked == Asked::Max {
            let qps = value(&sample, "qps").unwrap_or(0.0);
            if qps < 1.0 {
                return Err("no request was answered".into());
            }
            if first {
                self.kernel.set(0.0);
            }
            if host.device == "kernel" {
                self.kernel.set(self.kernel.get().max(qps));
            }
            if case.name == "base" && knobs == NapiKnobs::default() {
                host.capacity.set(qps);
            }
        }
        Ok(sample)
    }

    fn row(&self, entry: Entry<'_>) -> Row {
        let bed = entry.host.bed.borrow();
        let params = vec![
            ("app", json!("kv")),
            ("device", json!(entry.host.device)),
            ("rx_cpu", json!(self.rx_cpu)),
            ("load", load_value(entry.asked.percent())),
            ("load_of", json!(entry.asked.load_of())),
            ("veth_timeout_us", json!(entry.knobs.gro_flush_timeout / 1000)),
            ("maxevents", json!(entry.max_events)),
            ("worker_policy", json!(bed.side.policy())),
            ("pinned", json!(true)),
        ];
        Row::new(entry.case.name, params)
    }
}

impl Host {
    fn new(device: &'static str, bed: Bed) -> Self {
        Host { device, bed: RefCell::new(bed), capacity: Cell::new(0.0) }
    }

    /// The cases to measure, `base` first, and the knobs of the kernel's NAPI instance in each.
    fn cases(&self, rx_cpu: &str, chosen: &[&'static Case]) -> Vec<(&'static Case, NapiKnobs)> {
        let measured = chosen.iter().copied().filter(|case| !case.fair && !case.coalesces());
        let none = NapiKnobs::default();
        match (self.device, rx_cpu) {
            // By softirq on the client's CPU it has neither a thread nor knobs.
            ("kernel", "client") => vec![(&CASES[0], none)],
            ("kernel", _) => {
                let of_its_own = CASES.iter().filter(|case| KERNEL.contains(&case.name));
                of_its_own.map(|case| (case, kernel_knobs(case))).collect()
            }
            (_, "server") => {
                let measured = measured.collect::<Vec<_>>();
                let deferred = measured.iter().filter(|case| DEFERRED.contains(&case.name));
                let deferred = deferred.map(|case| (*case, kernel_knobs(cases::named("defer100"))));
                measured.iter().map(|case| (*case, none)).chain(deferred).collect()
            }
            _ => measured.map(|case| (case, none)).collect(),
        }
    }
}

/// It preempts the application, as softirq does.
fn policy() -> Option<Policy> {
    Some(Policy::Fifo(1))
}

/// The knobs of `case`, of the kernel's instance.
fn kernel_knobs(case: &Case) -> NapiKnobs {
    NapiKnobs {
        defer_hard_irqs: case.napi_defer_hard_irqs as u32,
        gro_flush_timeout: case.gro_flush_timeout * 1000,
        irq_suspend_timeout: case.irq_suspend_timeout * 1_000_000,
    }
}

/// Measures on CPU `cpu`, with the client on `client`.
pub(super) fn run(bench: &IrqSuspend, cpu: usize, client: usize) -> Result<Report, String> {
    let chosen = bench.chosen()?;
    let devices = bench.device.names();
    let (kernel, times, quick) = (bench.peer.is_some(), bench.times(), bench.common.quick);
    let mut groups = Vec::new();
    for device in devices {
        if *device == "mem" {
            groups.push(Group::mem(cpu)?);
        } else {
            groups.push(Group::veth(kernel, cpu, Receive::Server { cpu })?);
            groups.push(Group::veth(kernel, cpu, Receive::Client)?);
        }
    }
    // Now, so that the stacks' threads are not pinned along.
    pin(client)?;
    let mut measured = Vec::new();
    for group in &groups {
        let entries = |load| group.entries(&chosen, &bench.maxevents, load);
        for entry in Asked::all(quick, group.hosts.len() > 1).into_iter().flat_map(entries) {
            let measure = Box::new(move || group.measure(entry, cpu, times));
            measured.push(harness::Case { row: group.row(entry), measure });
        }
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
    for group in &groups {
        let device = group.hosts.last().map_or("-", |host| host.device);
        state_bounds(&mut report, device, group.rx_cpu, bench.maxevents[0]);
    }
    let wire = |group: &Group| {
        let device = group.hosts.last().map_or("-", |host| host.device);
        published::Wire { device, rx_cpu: Some(group.rx_cpu) }
    };
    published::add(&mut report, &groups.iter().map(wire).collect::<Vec<_>>());
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
        stack
            .view()
            .set_knobs(&SetKnobs { target: Target::Napi(napi), knobs: case.knobs() })
            .map_err(text)?;
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
        let latency = second.latency.figures();
        let of = |figure| value(&latency, figure).unwrap_or(0.0);
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
        sample.extend(polled.waits());
    }
    Ok(sample)
}

fn stats(side: &Side) -> Option<Stats> {
    side.stack().map(|(stack, _)| stack.view().stats())
}
