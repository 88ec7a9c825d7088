//! `softnet bench tcp-rr`: requests and responses over TCP, by number of connections and size.

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::thread::{CpuSet, Pid, sched_setaffinity};
use serde_json::json;
use softnet::config::Context;
use softnet::control::{Set, SetKnobs, Target};

use super::client::{AT_ONCE, Client, Outcome};
use super::host::{Host, Kernel, Softnet};
use super::rig::{Ends, Rig, addresses, over_veth};
use super::server::Server;
use super::ways::{
    BASE, FULLBUSY, KERNEL, KERNEL_SPIN, KERNEL_XDP, KERNEL_XDP_THREADED, SUSPEND20, Side, THREADED,
    WORKQUEUE, Way,
};
use super::wire::RING;
use super::{Cpus, raise_file_limit};
use crate::bench::Common;
use crate::bench::device::Device;
use crate::bench::echo::Usage;
use crate::bench::harness::{Case, alternate};
use crate::bench::report::{Bound, Report, Row, Sample};
use crate::bench::{pin, text};

/// What `softnet bench tcp-rr --help` ends with.
pub(in crate::bench) const HELP: &str = "\
A server on one CPU sends requests back, to a client on another that never sleeps and has one request outstanding on each \
active connection; at 10,000 connections and more, one in a hundred is active. Every byte is compared. Needs two CPUs, and \
root for all but --device mem.

  base, suspend20, fullbusy    softnet's server, which is woken; polls while it has work, and else is woken; polls
  threaded, workqueue          as base, but threads of the ordinary policy poll instead of the worker; only where --case asks
  kernel, kernel-spin          the same server on the kernel's sockets, which sleeps in epoll_wait; which asks it again and \
again
  kernel-xdp                   `kernel` behind an XDP program that lets all pass, so that veth does what it does for AF_XDP
  kernel-xdp-threaded          the same, and a thread of the kernel's on the server's CPU receives, and is counted
  device mem                   two stacks of softnet joined by an emulated wire
  device xdp                   softnet's server by AF_XDP on a veth pair, the kernel's client at the other end; beside it \
the kernel's server over a veth pair with all offloads
  cpu_percent                  the server's threads: application, worker, timers

Congestion control is cubic at all ends. On veth, the CPU that sends does the other end's softirq, so each server's CPU does \
the client's receiving as well.";

/// The figures that decide.
pub(in crate::bench) const LEADING: &[&str] = &["qps", "p50_us", "p99_us", "p999_us", "cpu_percent"];

#[derive(Args, Debug)]
pub(crate) struct TcpRr {
    #[command(flatten)]
    pub(crate) common: Common,
    /// What the requests come by
    #[arg(long, value_enum, default_value = "both")]
    device: Device,
    /// Connections (may be repeated) [default: 1, 50, 1000, 10000, 100000; with --quick 1, 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=200_000))]
    connections: Vec<u32>,
    /// Bytes of request and response (may be repeated) [default: 1, 64, 5120, 1048576; with --quick 64]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    size: Vec<u32>,
    /// Over veth, the client's thread polls the kernel's NAPI instance at its end itself: what the server
    /// sends costs the server no softirq of the client's
    #[arg(long)]
    inline_client: bool,
    /// Only these cases (may be repeated)
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<String>,
}

const CONNECTIONS: [u32; 5] = [1, 50, 1000, 10_000, 100_000];
const SIZES: [u32; 4] = [1, 64, 5 << 10, 1 << 20];
/// Bytes that all active connections together may have outstanding: the server has each of them in memory.
const OUTSTANDING: u64 = 2 << 30;
/// So many more of them have a measurement take a second longer: each connection is to be answered several times.
const A_SECOND: u64 = 128 << 20;
const WAYS: [&Way; 9] = [
    &BASE,
    &SUSPEND20,
    &FULLBUSY,
    &THREADED,
    &WORKQUEUE,
    &KERNEL,
    &KERNEL_SPIN,
    &KERNEL_XDP,
    &KERNEL_XDP_THREADED,
];

/// Connections that are reset before the server is asked whether it knows: their packets fit the ring of a veth
/// pair (256).
const RESETS: usize = 128;

/// Files that a run has open beside connections.
const OTHER_FILES: u64 = 200;

/// What the client asks.
#[derive(Clone, Copy)]
pub(in crate::bench) struct Load {
    pub(in crate::bench) connections: u32,
    /// Bytes of a request.
    pub(in crate::bench) size: u32,
    /// Requests a second, by the clock; without, each active connection asks when it was answered.
    pub(in crate::bench) rate: Option<f64>,
}

impl Load {
    /// What all active connections together have outstanding, in bytes.
    fn outstanding(&self) -> u64 {
        u64::from(self.connections) / stride(self.connections) as u64 * u64::from(self.size)
    }

    /// Warm-up and measured time, where the usual ones are `times`.
    fn times(&self, (warm_up, time): (Duration, Duration)) -> (Duration, Duration) {
        let more = Duration::from_secs(self.outstanding() / A_SECOND);
        (warm_up + more / 2, time + more)
    }
}

/// Every so many connections one is active.
fn stride(connections: u32) -> usize {
    if connections >= 10_000 { ONE_IN } else { 1 }
}

/// Of many connections one in so many is active.
const ONE_IN: usize = 100;

/// A client of either kind.
trait Asks {
    fn resize(&mut self, n: usize, stride: usize) -> Result<(), String>;
    fn run(
        &mut self,
        load: Load,
        times: (Duration, Duration),
        look: &mut dyn FnMut(),
    ) -> Result<Outcome, String>;
}

impl<H: Host> Asks for Client<H> {
    fn resize(&mut self, n: usize, stride: usize) -> Result<(), String> {
        Client::resize(self, n, stride)
    }
    fn run(
        &mut self,
        Load { connections, size, rate }: Load,
        times: (Duration, Duration),
        look: &mut dyn FnMut(),
    ) -> Result<Outcome, String> {
        match rate {
            Some(rate) => self.run_at(size as usize, rate, times, look),
            None => Client::run(self, size as usize, stride(connections), times, look),
        }
    }
}

/// A server and its client.
pub(in crate::bench) struct Bed {
    client: Box<dyn Asks>,
    server: Server,
    rig: Rig,
    cpus: Cpus,
    /// In which context the server's stack polls.
    context: Context,
}

impl Bed {
    pub(in crate::bench) fn new(rig: Rig, cpus: Cpus, way: &Way) -> Result<Self, String> {
        let at = addresses();
        let server = match &rig.ends {
            Ends::Mem { server, .. } | Ends::Xdp { server, .. } => {
                Server::start::<Softnet>(server, &at, way, cpus.server)
            }
            Ends::Kernel { server, .. } => Server::start::<Kernel>(server, &at, way, cpus.server),
        }?;
        let client: Box<dyn Asks> = match &rig.ends {
            Ends::Mem { client, .. } => Box::new(Client::new(client, &at)?),
            Ends::Xdp { client, .. } | Ends::Kernel { client, .. } => Box::new(Client::new(client, &at)?),
        };
        if let Ends::Mem { .. } = rig.ends {
            // The client polls its instance itself.
            set_knobs(&rig.stacks[0], &FULLBUSY)?;
        }
        Ok(Bed { client, server, rig, cpus, context: Context::Softirq })
    }

    pub(in crate::bench) fn measure(
        &mut self,
        way: &Way,
        load: Load,
        times: (Duration, Duration),
    ) -> Result<Sample, String> {
        self.measure_framed(way, load, times, &mut |_| ())
    }

    /// The same; `look` sees the rig when the measured time begins, and when it ends.
    pub(in crate::bench) fn measure_framed(
        &mut self,
        way: &Way,
        load: Load,
        times: (Duration, Duration),
        look: &mut dyn FnMut(&Rig),
    ) -> Result<Sample, String> {
        let measured = self.try_measure(way, load, times, look);
        self.server.rest();
        measured.map_err(|error| self.server.explain(error))
    }

    /// Where server and client are.
    pub(in crate::bench) fn rig(&self) -> &Rig {
        &self.rig
    }

    /// Id of the server's application thread.
    pub(in crate::bench) fn application(&self) -> i32 {
        self.server.tid
    }

    fn try_measure(
        &mut self,
        way: &Way,
        load: Load,
        times: (Duration, Duration),
        look: &mut dyn FnMut(&Rig),
    ) -> Result<Sample, String> {
        if let Some(stack) = self.rig.server_stack() {
            if self.context != way.context {
                poll_in(stack, way.context, self.cpus.server)?;
                self.context = way.context;
            }
            set_knobs(stack, way)?;
        }
        self.server.wait_as(way);
        self.server.orders.size.store(load.size as usize, Ordering::Relaxed);
        self.resize(load)?;
        let threads = self.rig.server_threads(self.server.tid);
        let mut usage = Vec::with_capacity(2);
        let rig = &self.rig;
        let mut frame = || {
            usage.push(Usage::of(&threads));
            look(rig);
        };
        let outcome = self.client.run(load, times, &mut frame)?;
        let [begin, end] = usage[..] else { return Err("it was not measured".into()) };
        let cpu = (end - begin).cpu_ns as f64;
        let qps = outcome.answered as f64 / outcome.seconds;
        let mut sample = vec![("qps", qps)];
        sample.extend(outcome.latency.figures());
        sample.extend([
            ("cpu_percent", cpu / outcome.seconds / 1e7),
            ("cpu_ns_per_request", if outcome.answered > 0 { cpu / outcome.answered as f64 } else { 0.0 }),
        ]);
        Ok(sample)
    }

    /// Makes it so many connections at both ends. Resets are not sent again: if the server stands still for a while, no
    /// more of them are on the way than the wire holds.
    fn resize(&mut self, load: Load) -> Result<(), String> {
        let connections = load.connections as usize;
        if self.server.orders.open.load(Ordering::Relaxed) > connections {
            // The kernel's delayed ACKs of the last responses leave in one burst, which fills a ring.
            std::thread::sleep(Duration::from_millis(100));
        }
        loop {
            let open = self.server.orders.open.load(Ordering::Relaxed);
            let next = connections.max(open.saturating_sub(RESETS));
            // On the way down none is asked; by the clock all are.
            let stride = match load.rate {
                _ if next != connections => ONE_IN,
                Some(_) => 1,
                None => stride(load.connections),
            };
            self.client.resize(next, stride)?;
            self.is_open(next)?;
            if next == connections {
                return Ok(());
            }
        }
    }

    /// Waits until the server has so many connections, as the client has.
    fn is_open(&self, connections: usize) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let open = self.server.orders.open.load(Ordering::Relaxed);
            if open == connections {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(self.differ(open, connections));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The server's application has `open` connections, and the client another number: what each of the layers between them
    /// knows.
    fn differ(&self, open: usize, connections: usize) -> String {
        let mut text = format!("the server has {open} connections, the client {connections}");
        for (i, stack) in self.rig.stacks.iter().enumerate() {
            let name = if i + 1 == self.rig.stacks.len() { "server" } else { "client" };
            let tcp = stack.view().tcp();
            let ready =
                tcp.sockets.iter().filter(|row| row.state == "LISTEN").map(|row| row.recv_q).sum::<u64>();
            text += &format!(
                "; in the {name}'s stack {} are established, {ready} wait to be accepted, {} requests, {} resets came, {} went",
                tcp.summary.estab,
                tcp.summary.syn_recv,
                tcp.counters.get("TcpEstabResets").copied().unwrap_or(0),
                tcp.counters.get("TcpOutRsts").copied().unwrap_or(0),
            );
            for row in stack.view().drops().iter().filter(|row| row.packets > 0) {
                text += &format!(", {} dropped ({})", row.packets, row.reason);
            }
        }
        if let Some(lost) = self.rig.refused() {
            text += &format!("; {lost} packets found no room in the ring of the server's NIC");
        }
        text
    }
}

pub(super) fn set_knobs(stack: &softnet::Stack, way: &Way) -> Result<(), String> {
    for napi in stack.view().napis() {
        let set = SetKnobs { target: Target::Napi(napi.id), knobs: way.knobs() };
        stack.view().set_knobs(&set).map_err(text)?;
    }
    Ok(())
}

/// Has the stack poll in `context`, by threads that are bound to `cpu`.
fn poll_in(stack: &softnet::Stack, context: Context, cpu: usize) -> Result<(), String> {
    let view = stack.view();
    for napi in view.napis() {
        view.set(Set { target: Target::Napi(napi.id), threaded: context }).map_err(text)?;
    }
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    let until = Instant::now() + Duration::from_secs(10);
    let workers = loop {
        let workers = view.workers();
        let there = workers.iter().any(|worker| worker.context == context);
        if there && workers.iter().all(|worker| worker.tid != 0) {
            break workers;
        }
        if Instant::now() > until {
            return Err(format!("no thread polls in the context {context}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    for worker in workers {
        // One that ended meanwhile polls no more.
        let _ = sched_setaffinity(Pid::from_raw(worker.tid), &cpus);
    }
    Ok(())
}

impl TcpRr {
    pub(in crate::bench) fn run(&self) -> Result<Report, String> {
        let cpus = Cpus::new(self.common.cpu)?;
        let mut files = Files { limit: raise_file_limit(), held: Vec::new() };
        let quick = self.common.quick;
        let or = |given: &[u32], quick_ones: &[u32], full: &[u32]| match given {
            [] if quick => quick_ones.to_vec(),
            [] => full.to_vec(),
            given => given.to_vec(),
        };
        let mut connections = or(&self.connections, &[1, 1000], &CONNECTIONS);
        connections.sort_unstable();
        let sizes = or(&self.size, &[64], &SIZES);
        if let Some(unknown) = self.cases.iter().find(|name| WAYS.iter().all(|way| way.name != **name)) {
            return Err(format!("--case {unknown}: there are {}", WAYS.map(|way| way.name).join(", ")));
        }
        let wanted = |way: &Way| match self.cases.is_empty() {
            true => way.context == Context::Softirq,
            false => self.cases.iter().any(|name| name == way.name),
        };
        let bed = |rig: Rig, way: &Way| Ok::<_, String>(RefCell::new(Bed::new(rig, cpus, way)?));
        let mut mem = None;
        if self.device.mem() && WAYS.iter().any(|way| !way.kernel() && wanted(way)) {
            mem = Some(bed(Rig::mem(cpus.server, cpus.client, true, RING)?, &BASE)?);
        }
        let mut beds: Vec<(Side, RefCell<Bed>)> = Vec::new();
        for way in WAYS.into_iter().filter(|way| self.device.xdp() && wanted(way)) {
            if beds.iter().all(|(side, _)| *side != way.server) {
                let rig = over_veth(way.server, cpus.server, self.inline_client)?;
                beds.push((way.server, bed(rig, if way.kernel() { way } else { &BASE })?));
            }
        }
        // Now, so that the stacks' threads are not pinned along.
        pin(cpus.client)?;
        let times = match quick {
            true => (Duration::from_millis(100), Duration::from_millis(400)),
            false => (Duration::from_millis(300), Duration::from_millis(1500)),
        };
        let mut cases = Vec::new();
        for device in self.device.names() {
            for n in &connections {
                for size in &sizes {
                    let load = Load { connections: *n, size: *size, rate: None };
                    if load.outstanding() > OUTSTANDING {
                        eprintln!(
                            "left out: {n} connections of {size} B have {} MiB outstanding, {} at the most",
                            load.outstanding() >> 20,
                            OUTSTANDING >> 20
                        );
                        continue;
                    }
                    let times = load.times(times);
                    for way in WAYS.into_iter().filter(|way| wanted(way)) {
                        let of = match *device {
                            "mem" => mem.as_ref().filter(|_| !way.kernel()),
                            _ => beds.iter().find(|(side, _)| *side == way.server).map(|(_, bed)| bed),
                        };
                        let Some(bed) = of else { continue };
                        let few = connections.iter().copied().filter(|n| stride(*n) == 1).max();
                        if let Err(needs) = files.admit(way, files_of(device, way, *n, few.unwrap_or(0))) {
                            eprintln!(
                                "left out: {} by {device} with {n} connections needs {needs} open files, of which this \
                                 process may have {} (ulimit -n)",
                                way.name, files.limit
                            );
                            continue;
                        }
                        let row = Row::new(
                            way.name,
                            vec![("device", json!(device)), ("connections", json!(n)), ("size", json!(size))],
                        );
                        let measure = move || bed.borrow_mut().measure(way, load, times);
                        cases.push(Case { row, measure: Box::new(measure) });
                    }
                }
            }
        }
        let mut report = alternate("tcp-rr", None, self.common.rounds_or(5, 3), cases)?;
        bounds(&mut report);
        Ok(report)
    }
}

/// What the process may have open, and what the cases will: a server's connections stay open until its next
/// case.
struct Files {
    limit: u64,
    /// The most that a case of each server has.
    held: Vec<(Side, u64)>,
}

impl Files {
    /// A case in which the server of `way` and its client have `own`. The error is what all would need.
    fn admit(&mut self, way: &Way, own: u64) -> Result<(), u64> {
        let before = self.held.iter().find(|(side, _)| *side == way.server);
        let own = before.map_or(0, |(_, files)| *files).max(own);
        let others = self.held.iter().filter(|(side, _)| *side != way.server);
        let needs = OTHER_FILES + own + others.map(|(_, files)| files).sum::<u64>();
        if needs > self.limit {
            return Err(needs);
        }
        self.held.retain(|(side, _)| *side != way.server);
        self.held.push((way.server, own));
        Ok(())
    }
}

/// Files that are open while `n` connections are: each end of the kernel's is one, but for what its clients
/// [park](super::parked).
///
/// Those of a case with `few` stay open.
fn files_of(device: &str, way: &Way, n: u32, few: u32) -> u64 {
    let at_once = AT_ONCE as u32;
    let client = match stride(n) {
        1 => n,
        // A pair of sockets for each lot, and one lot that is opened.
        stride => few + n.div_ceil(stride as u32) + 2 * n.div_ceil(at_once) + at_once,
    };
    let (n, client) = (u64::from(n), u64::from(client));
    match device {
        "mem" => 0,
        _ if way.kernel() => n + client,
        _ => client,
    }
}

/// The better of rows by the median of a figure.
fn best<'a>(
    report: &'a Report,
    kernel: bool,
    n: u32,
    size: u32,
    figure: &str,
    most: bool,
) -> Option<&'a Row> {
    let is_it = |row: &&Row| {
        row.case.starts_with("kernel") == kernel
            && row.param("device") == Some(&json!("xdp"))
            && row.param("connections") == Some(&json!(n))
            && row.param("size") == Some(&json!(size))
    };
    let rows = report.rows.iter().filter(is_it);
    let sign = if most { 1.0 } else { -1.0 };
    rows.max_by(|a, b| (sign * a.median(figure)).total_cmp(&(sign * b.median(figure))))
}

fn bounds(report: &mut Report) {
    let mut found = Vec::new();
    let pairs = [("qps", 1000, true, Bound::AtLeast(1.5)), ("p50_us", 1, false, Bound::AtMost(0.5))];
    for (figure, n, most, bound) in pairs {
        if let (Some(own), Some(kernel)) =
            (best(report, false, n, 64, figure, most), best(report, true, n, 64, figure, most))
        {
            let what = format!("xdp: {} / {} {figure} at {n} connections of 64 B", own.case, kernel.case);
            found.push((what, own.ratio(kernel, figure), bound));
        }
    }
    for case in ["base", "suspend20", "fullbusy"] {
        for device in ["mem", "xdp"] {
            let params = |n: u32| [("device", json!(device)), ("connections", json!(n)), ("size", json!(64))];
            let ratio = report.ratio_where((case, &params(100_000)), (case, &params(1000)), "qps");
            if ratio > 0.0 {
                let what = format!("{device}: {case} qps at 100000 connections / at 1000, of 64 B");
                found.push((what, ratio, Bound::AtLeast(0.8)));
            }
        }
    }
    for (what, ratio, bound) in found {
        report.bound_value(what, ratio, bound).meaning("The better of the cases of each is taken.");
    }
}
