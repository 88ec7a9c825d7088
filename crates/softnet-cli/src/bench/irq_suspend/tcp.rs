//! `--app tcp`: the same cases by TCP, as they were published. A server of 500 connections sends
//! requests back, on softnet's sockets and, over veth, on the kernel's beside it.
//!
//! Servers, clients and wires are those of [`bench tcp-rr`](crate::bench::tcp). Invariant: the
//! loads of a host are shares of what its `base` did at MAX in the same round, or, the same rate
//! for all, of what the kernel did at its best.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use serde_json::json;
use softnet::control::show::NapiRow;

use super::cases::Case;
use super::figures::{Polled, share};
use super::load::{Asked, load_value};
use super::measure::Times;
use super::{FLOWS, IrqSuspend, PAYLOAD, published, state_bounds};
use crate::bench::echo::Usage;
use crate::bench::harness::{self, alternate};
use crate::bench::pin;
use crate::bench::report::{Report, Row, Sample, value};
use crate::bench::tcp::rig::{Rig, over_veth};
use crate::bench::tcp::rr::{Bed, Load};
use crate::bench::tcp::ways::{BASE, KERNEL, KERNEL_SPIN, KERNEL_XDP_THREADED, Side, Way};
use crate::bench::tcp::wire::RING;
use crate::bench::tcp::{Cpus, raise_file_limit};

/// The kernel's cases: the names of their rows, and ways.
const PEERS: [(&str, Way); 3] = [("base", KERNEL), ("spin", KERNEL_SPIN), ("threaded", KERNEL_XDP_THREADED)];

/// Whose sockets serve, over which wire.
struct Host {
    device: &'static str,
    /// Over veth, the client polls its end itself.
    inline: bool,
    beds: Vec<(Side, RefCell<Bed>)>,
    /// By the names of their rows, `base` first.
    ways: Vec<(&'static str, Way)>,
    /// What its `base` did at most in this round, in requests a second.
    capacity: Cell<f64>,
}

/// What is compared with each other.
struct Group {
    /// The kernel first, if it is asked for.
    hosts: Vec<Host>,
    /// What the best of the kernel's cases did at most in this round, in requests a second.
    kernel: Cell<f64>,
}

/// A row: the host that serves, in which way, how much is asked.
#[derive(Clone, Copy)]
struct Entry<'a> {
    group: &'a Group,
    host: &'a Host,
    name: &'static str,
    way: &'a Way,
    asked: Asked,
}

impl Host {
    fn new(
        device: &'static str,
        ways: Vec<(&'static str, Way)>,
        (cpus, inline): (Cpus, bool),
    ) -> Result<Self, String> {
        let mut host = Host { device, inline, beds: Vec::new(), ways, capacity: Cell::new(0.0) };
        for (_, way) in &host.ways {
            if host.beds.iter().any(|(side, _)| *side == way.server) {
                continue;
            }
            let rig = match device {
                "mem" => Rig::mem(cpus.server, cpus.client, true, RING),
                _ => over_veth(way.server, cpus.server, inline),
            };
            let first = if way.server == Side::Softnet { &BASE } else { way };
            let bed = rig.and_then(|rig| Bed::new(rig, cpus, first)).map_err(|e| format!("{device}: {e}"))?;
            host.beds.push((way.server, RefCell::new(bed)));
        }
        Ok(host)
    }

    fn bed(&self, way: &Way) -> Result<&RefCell<Bed>, String> {
        let bed = self.beds.iter().find(|(side, _)| *side == way.server);
        bed.map(|(_, bed)| bed).ok_or_else(|| "no such bed".into())
    }
}

impl Group {
    fn of(hosts: Vec<Host>) -> Self {
        Group { hosts, kernel: Cell::new(0.0) }
    }

    fn device(&self) -> &'static str {
        self.hosts.last().map_or("-", |host| host.device)
    }

    fn entries(&self, asked: Asked) -> Vec<Entry<'_>> {
        let of = |host| move |(name, way)| Entry { group: self, host, name, way, asked };
        self.hosts
            .iter()
            .flat_map(|host| host.ways.iter().map(|(name, way)| (*name, way)).map(of(host)))
            .collect()
    }
}

impl Entry<'_> {
    fn measure(self, times: Times) -> Result<Sample, String> {
        let Entry { group, host, name, way, asked } = self;
        let rate = asked.rate(host.capacity.get(), group.kernel.get());
        let sample = measure(&mut host.bed(way)?.borrow_mut(), way, rate, times)?;
        if asked == Asked::Max {
            let qps = value(&sample, "qps").unwrap_or(0.0);
            if qps < 1.0 {
                return Err("no request was answered".into());
            }
            if name == "base" {
                host.capacity.set(qps);
            }
            if host.device == "kernel" {
                // Its base is the first of a round.
                let best = if name == "base" { 0.0 } else { group.kernel.get() };
                group.kernel.set(best.max(qps));
            }
        }
        Ok(sample)
    }

    fn row(self) -> Result<Row, String> {
        let bed = self.host.bed(self.way)?.borrow();
        let workers = bed.rig().server_stack().map_or_else(Vec::new, |stack| stack.view().workers());
        let mut params = vec![
            ("app", json!("tcp")),
            ("device", json!(self.host.device)),
            ("load", load_value(self.asked.percent())),
        ];
        if self.group.hosts.len() > 1 {
            params.push(("load_of", json!(self.asked.load_of())));
        }
        params.extend([
            ("worker_policy", json!(workers.first().map_or("-", |worker| &worker.policy))),
            ("context", json!("softirq")),
            ("size", json!(PAYLOAD)),
            ("connections", json!(FLOWS)),
            ("inline_client", json!(self.host.inline)),
            ("pinned", json!(true)),
        ]);
        Ok(Row::new(self.name, params))
    }
}

/// The ways to measure, `base` first. A worker of the application's own policy, and what only an
/// emulated NIC of the other applications has, are not among them.
fn ways(chosen: &[&'static Case]) -> Vec<(&'static str, Way)> {
    let measured = chosen.iter().filter(|case| !case.fair && !case.coalesces());
    measured.map(|case| (case.name, case.way())).collect()
}

/// Measures with the server on one CPU and the client on another.
pub(super) fn run(bench: &IrqSuspend, cpus: Cpus) -> Result<Report, String> {
    let chosen = ways(&bench.chosen()?);
    let kernel = bench.peer.is_some();
    if kernel && !bench.device.xdp() {
        return Err("--peer kernel serves over veth: take --device xdp or --device both".into());
    }
    raise_file_limit();
    let at = (cpus, bench.inline_client);
    let mut groups = Vec::new();
    for device in bench.device.names() {
        let mut hosts = Vec::new();
        if kernel && *device == "xdp" {
            hosts.push(Host::new("kernel", PEERS.to_vec(), at)?);
        }
        hosts.push(Host::new(device, chosen.clone(), at)?);
        groups.push(Group::of(hosts));
    }
    // Now, so that the stacks' threads are not pinned along.
    pin(cpus.client)?;
    let (times, rounds) = (bench.times(), bench.common.rounds_or(7, 3));
    let mut measured = Vec::new();
    for group in &groups {
        let loads = Asked::all(bench.common.quick, group.hosts.len() > 1);
        for entry in loads.into_iter().flat_map(|asked| group.entries(asked)) {
            let measure = Box::new(move || entry.measure(times));
            measured.push(harness::Case { row: entry.row()?, measure });
        }
    }
    bench.announce(measured.len(), rounds, times);
    let mut report = alternate("irq-suspend", None, rounds, measured)?;
    let devices = groups.iter().map(Group::device);
    devices.clone().for_each(|device| state_bounds(&mut report, device));
    let wires: Vec<_> = devices.map(|device| published::Wire { device, rx_cpu: None }).collect();
    published::add(&mut report, &wires);
    Ok(report)
}

/// Counters at some moment.
struct Snapshot {
    at: Instant,
    napi: Option<NapiRow>,
    worker: Usage,
    application: Usage,
}

impl Snapshot {
    fn take(rig: &Rig, application: i32) -> Self {
        let mut threads = rig.server_threads(application);
        threads.retain(|tid| *tid != application);
        let (worker, application) = (Usage::of(&threads), Usage::of(&[application]));
        let napi = rig.server_stack().and_then(|stack| stack.view().napis().into_iter().next());
        Snapshot { at: Instant::now(), napi, worker, application }
    }
}

/// Has the server wait as `way` says, asks it `rate` requests a second or as many as it answers,
/// and returns the figures.
fn measure(bed: &mut Bed, way: &Way, rate: Option<f64>, times: Times) -> Result<Sample, String> {
    let load = Load { connections: FLOWS as u32, size: PAYLOAD as u32, rate };
    let application = bed.application();
    let mut snapshots = Vec::with_capacity(2);
    let mut look = |rig: &Rig| snapshots.push(Snapshot::take(rig, application));
    let mut sample = bed.measure_framed(way, load, (times.warm_up, times.measure), &mut look)?;
    let [begin, end] = &snapshots[..] else { return Err("it was not measured".into()) };
    let seconds = (end.at - begin.at).as_secs_f64();
    let (worker, app) = (end.worker - begin.worker, end.application - begin.application);
    let answered = value(&sample, "qps").unwrap_or(0.0);
    let offered = rate.unwrap_or(answered);
    sample.extend([
        ("offered_qps", offered),
        ("sustained_percent", 100.0 * share(answered, offered)),
        ("worker_cpu_percent", worker.cpu_ns as f64 / 1e7 / seconds),
        ("worker_wakeups_per_s", worker.blocked as f64 / seconds),
        ("app_wakeups_per_s", app.blocked as f64 / seconds),
        ("app_preempted_per_s", app.preempted as f64 / seconds),
    ]);
    if let (Some(begin), Some(end)) = (&begin.napi, &end.napi) {
        let polled = Polled { begin, end, seconds };
        sample.extend(polled.polls());
        sample.extend(polled.waits());
    }
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::cases::{CASES, named};
    use super::*;
    use crate::bench::cpus;

    const TIMES: Times = Times { warm_up: Duration::from_millis(10), measure: Duration::from_millis(200) };

    fn some_cpus() -> Cpus {
        let all = cpus();
        Cpus { server: all[0], client: all[all.len() - 1] }
    }

    #[test]
    fn each_case_answers_at_most_and_at_a_share_of_it() {
        let chosen = ["base", "suspend20", "fullbusy"].map(named);
        let group = Group::of(vec![Host::new("mem", ways(&chosen), (some_cpus(), false)).unwrap()]);
        for asked in [Asked::Max, Asked::OfOwn(20)] {
            for entry in group.entries(asked) {
                let row = entry.row().unwrap();
                assert_eq!((row.param("app"), row.param("load_of")), (Some(&json!("tcp")), None));
                let sample = entry.measure(TIMES).unwrap_or_else(|e| panic!("{}: {e}", entry.name));
                let figure = |name| sample.iter().find(|(figure, _)| *figure == name).unwrap().1;
                for name in ["qps", "p50_us", "cpu_percent", "sustained_percent", "polls_per_s"] {
                    assert!(figure(name) > 0.0, "{} of {}: {sample:?}", name, entry.name);
                }
            }
        }
        assert!(group.hosts[0].capacity.get() > 0.0);
    }

    #[test]
    fn what_tcp_has_no_likeness_of_is_left_out() {
        let all = ways(&CASES.iter().collect::<Vec<_>>());
        assert_eq!((all.len(), all[0].0), (CASES.len() - 4, "base"));
    }
}
