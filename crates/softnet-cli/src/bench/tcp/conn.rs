//! `softnet bench tcp-conn`: connections that are accepted, asked once, and closed; beside a flood of
//! SYNs too.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::churn::Churn;
use super::client::Outcome;
use super::host::Host;
use super::idle::resident;
use super::rig::{Ends, Rig, addresses, over_veth};
use super::rr::set_knobs;
use super::server::Server;
use super::ways::{
    BASE, FULLBUSY, KERNEL, KERNEL_SPIN, KERNEL_XDP, KERNEL_XDP_THREADED, SUSPEND20, Side, Way,
};
use super::wire::RING;
use super::{Cpus, raise_file_limit};
use crate::bench::Common;
use crate::bench::device::Device;
use crate::bench::echo::Usage;
use crate::bench::harness::{Case, alternate};
use crate::bench::pin;
use crate::bench::report::{Bound, Report, Row, Sample};

/// What `softnet bench tcp-conn --help` ends with.
pub(in crate::bench) const HELP: &str = "\
A client on one CPU makes connections, 64 at a time, sends a request of 64 bytes on each, and compares the response; the \
server on another CPU accepts, answers, and closes first, so that it has the TIME-WAIT. Needs two CPUs, and root for all \
but --device mem.

  base, suspend20, fullbusy    softnet's server: woken; polls while it has work; polls
  kernel, kernel-spin          the same server on the kernel's sockets: sleeps in epoll_wait; asks again and again
  kernel-xdp                   `kernel` behind an XDP program that lets all pass, so that veth does what it does for AF_XDP
  kernel-xdp-threaded          the same, and a thread of the kernel's on the server's CPU receives, and is counted
  device mem                   two stacks of softnet joined by an emulated wire
  device xdp                   softnet's server by AF_XDP on a veth pair, the kernel's client at the other end; beside it \
the kernel's server over a veth pair
  syn_pps                      SYNs a second, each from another address that does not answer, which are sent beside the \
connections by the client's thread; what answers them goes to a gateway, and is received by neither end
  pace                         connections that the client begins in a second; 0: the next one whenever one ends
  syns_per_s                   SYNs that were sent: for what comes too late, or finds no room, none is made up
  lost_per_s                   packets that found no room in the ring of the server's NIC (mem)
  conns_per_s                  connections from begin to end
  conns_per_cpu_s              the same, by the CPU time of the server's threads: what one CPU would do, were there \
clients enough
  requests                     handshakes that were kept when the flood ended, of all listeners
  grown_mib                    growth of the process's resident set during the flood

Over veth, the CPU that sends does the other end's softirq: whatever the server sends is received by the client's kernel on \
the server's CPU. The kernel's server makes its SYN-ACKs in the softirq of the client that sent the SYN, on the client's \
CPU, which no row counts; softnet makes them by its own threads. A server that polls uses its CPU whole, so that \
conns_per_cpu_s is compared of those that sleep.";

/// The figures that decide.
pub(in crate::bench) const LEADING: &[&str] = &[
    "conns_per_s",
    "conns_per_cpu_s",
    "p50_us",
    "p99_us",
    "cpu_percent",
    "syns_per_s",
    "lost_per_s",
    "requests",
    "grown_mib",
];

/// Connections at a time.
const AT_ONCE: usize = 64;
const SIZE: usize = 64;
/// SYNs a second of the flood.
const FLOOD: u64 = 500_000;
/// Connections a second that are well below what either end can.
const PACE: u64 = 5000;
const WAYS: [&Way; 7] =
    [&BASE, &SUSPEND20, &FULLBUSY, &KERNEL, &KERNEL_SPIN, &KERNEL_XDP, &KERNEL_XDP_THREADED];

#[derive(Args, Debug)]
pub(crate) struct TcpConn {
    #[command(flatten)]
    pub(crate) common: Common,
    /// What the connections come by
    #[arg(long, value_enum, default_value = "both")]
    device: Device,
    /// Over veth, the client's thread polls the kernel's NAPI instance at its end itself: what the server
    /// sends costs the server no softirq of the client's
    #[arg(long)]
    inline_client: bool,
    /// Only these cases (may be repeated)
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<String>,
}

/// What comes.
#[derive(Clone, Copy)]
pub(super) struct Load {
    /// SYNs of the flood, a second.
    pub(super) syns: u64,
    /// New connections a second; 0: as many as there can be.
    pub(super) pace: u64,
}

const LOADS: [Load; 3] =
    [Load { syns: 0, pace: 0 }, Load { syns: FLOOD, pace: 0 }, Load { syns: FLOOD, pace: PACE }];

pub(super) struct Bed {
    server: Server,
    rig: Rig,
}

impl Bed {
    pub(super) fn new(rig: Rig, cpus: Cpus, way: &Way) -> Result<Self, String> {
        let at = addresses();
        let server = match &rig.ends {
            Ends::Mem { server, .. } | Ends::Xdp { server, .. } => {
                Server::start(server, &at, way, cpus.server)
            }
            Ends::Kernel { server, .. } => Server::start(server, &at, way, cpus.server),
        }?;
        server.orders.size.store(SIZE, Ordering::Relaxed);
        server.orders.closes.store(true, Ordering::Relaxed);
        if let Ends::Mem { .. } = rig.ends {
            // The client polls its instance itself.
            set_knobs(&rig.stacks[0], &FULLBUSY)?;
        }
        Ok(Bed { server, rig })
    }

    pub(super) fn measure(
        &mut self,
        way: &Way,
        load: Load,
        times: (Duration, Duration),
    ) -> Result<Sample, String> {
        let measured = self.try_measure(way, load, times);
        self.server.rest();
        measured.map_err(|error| self.server.explain(error))
    }

    fn try_measure(&self, way: &Way, load: Load, times: (Duration, Duration)) -> Result<Sample, String> {
        let syns = load.syns;
        if let Some(stack) = self.rig.server_stack() {
            set_knobs(stack, way)?;
        }
        self.server.wait_as(way);
        let mut flood = if syns > 0 { Some(self.rig.flood(syns)?) } else { None };
        let sent = Cell::new(0);
        let mut beside = |now: u64| {
            let Some(flood) = &mut flood else { return Ok(()) };
            flood.send(now)?;
            sent.set(flood.sent);
            Ok(())
        };
        let threads = self.rig.server_threads(self.server.tid);
        let (mut usage, mut memory) = (Vec::with_capacity(2), Vec::with_capacity(2));
        let (mut syns_at, mut refused) = (Vec::with_capacity(2), Vec::with_capacity(2));
        let mut look = || {
            usage.push(Usage::of(&threads));
            memory.push(resident());
            syns_at.push(sent.get());
            refused.push(self.rig.refused());
        };
        let outcome = match &self.rig.ends {
            Ends::Mem { client, .. } => churn(client, load, times, &mut look, &mut beside),
            Ends::Xdp { client, .. } | Ends::Kernel { client, .. } => {
                churn(client, load, times, &mut look, &mut beside)
            }
        }?;
        let [begin, end] = usage[..] else { return Err("it was not measured".into()) };
        let cpu = (end - begin).cpu_ns as f64 / 1e9;
        let mut sample = vec![
            ("conns_per_s", outcome.answered as f64 / outcome.seconds),
            ("conns_per_cpu_s", outcome.answered as f64 / cpu.max(0.001)),
        ];
        sample.extend(outcome.latency.figures());
        sample.push(("cpu_percent", 100.0 * cpu / outcome.seconds));
        if syns > 0 {
            sample.push(("syns_per_s", (syns_at[1] - syns_at[0]) as f64 / outcome.seconds));
            if let [Some(before), Some(after)] = refused[..] {
                sample.push(("lost_per_s", (after - before) as f64 / outcome.seconds));
            }
        }
        if let (true, Some(stack)) = (syns > 0, self.rig.server_stack()) {
            let [before, after] = [0, 1].map(|at| memory[at].clone());
            let grown = after?.saturating_sub(before?) as f64 / (1 << 20) as f64;
            let requests = stack.view().tcp().summary.syn_recv;
            sample.extend([("requests", requests as f64), ("grown_mib", grown)]);
        }
        Ok(sample)
    }
}

fn churn<H: Host>(
    client: &H,
    load: Load,
    times: (Duration, Duration),
    look: &mut dyn FnMut(),
    beside: &mut dyn FnMut(u64) -> Result<(), String>,
) -> Result<Outcome, String> {
    let begin = Instant::now();
    let mut churn = Churn::new(client, &addresses(), SIZE)?.may_fail(load.syns > 0);
    let outcome = churn.run((AT_ONCE, load.pace), times, look, beside)?;
    // What is left of it in the server is not to be in the next measurement.
    std::thread::sleep(Duration::from_millis(20).min(begin.elapsed()));
    Ok(outcome)
}

impl TcpConn {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let cpus = Cpus::new(self.common.cpu)?;
        raise_file_limit();
        if let Some(unknown) = self.cases.iter().find(|name| WAYS.iter().all(|way| way.name != **name)) {
            return Err(format!("--case {unknown}: there are {}", WAYS.map(|way| way.name).join(", ")));
        }
        let wanted = |way: &Way| self.cases.is_empty() || self.cases.iter().any(|name| name == way.name);
        let bed =
            |rig: Result<Rig, String>, way: &Way| Ok::<_, String>(RefCell::new(Bed::new(rig?, cpus, way)?));
        let mut mem = None;
        if self.device.mem() && WAYS.iter().any(|way| !way.kernel() && wanted(way)) {
            mem = Some(bed(Rig::mem(cpus.server, cpus.client, true, RING), &BASE)?);
        }
        let mut beds: Vec<(Side, RefCell<Bed>)> = Vec::new();
        for way in WAYS.into_iter().filter(|way| self.device.xdp() && wanted(way)) {
            if beds.iter().all(|(side, _)| *side != way.server) {
                let rig = over_veth(way.server, cpus.server, self.inline_client);
                beds.push((way.server, bed(rig, if way.kernel() { way } else { &BASE })?));
            }
        }
        // Now, so that the stacks' threads are not pinned along.
        pin(cpus.client)?;
        let times = match self.common.quick {
            true => (Duration::from_millis(100), Duration::from_millis(500)),
            false => (Duration::from_millis(500), Duration::from_secs(2)),
        };
        let mut cases = Vec::new();
        for way in WAYS.into_iter().filter(|way| wanted(way)) {
            let of = beds.iter().find(|(side, _)| *side == way.server).map(|(_, bed)| bed);
            let mem = mem.as_ref().filter(|_| !way.kernel());
            for (device, bed, load) in [("mem", mem), ("xdp", of)]
                .into_iter()
                .flat_map(|(device, bed)| LOADS.map(|load| (device, bed, load)))
            {
                let Some(bed) = bed else { continue };
                let Load { syns, pace } = load;
                if self.inline_client && syns > 0 && device == "xdp" {
                    // The client would have to receive what answers the flood.
                    continue;
                }
                let row = Row::new(
                    way.name,
                    vec![
                        ("device", json!(device)),
                        ("size", json!(SIZE)),
                        ("syn_pps", json!(syns)),
                        ("pace", json!(pace)),
                    ],
                );
                let measure = move || bed.borrow_mut().measure(way, load, times);
                cases.push(Case { row, measure: Box::new(measure) });
            }
        }
        let mut report = alternate("tcp-conn", None, self.common.rounds_or(5, 3), cases)?;
        bounds(&mut report);
        Ok(report)
    }
}

fn bounds(report: &mut Report) {
    let row = |device: &'static str, syns: u64| {
        [("device", json!(device)), ("syn_pps", json!(syns)), ("pace", json!(0))]
    };
    for case in ["base", "suspend20"] {
        let kernel = ("kernel", &row("xdp", 0)[..]);
        for device in ["xdp", "mem"] {
            let ratio = report.ratio_where((case, &row(device, 0)), kernel, "conns_per_cpu_s");
            if ratio > 0.0 {
                let what = format!("{device}: {case} / kernel conns_per_cpu_s");
                report.bound_value(what, ratio, Bound::AtLeast(2.0));
            }
        }
    }
    for case in ["base", "suspend20", "fullbusy"] {
        let (flooded, quiet) = (row("mem", FLOOD), row("mem", 0));
        let ratio = report.ratio_where((case, &flooded), (case, &quiet), "conns_per_s");
        if ratio > 0.0 {
            let what = format!("mem: {case} conns_per_s beside {FLOOD} SYNs a second / without");
            report.bound_value(what, ratio, Bound::AtLeast(0.9));
            report.bound_where((case, &flooded), "grown_mib", Bound::AtMost(64.0));
        }
        let paced = [("device", json!("mem")), ("syn_pps", json!(FLOOD)), ("pace", json!(PACE))];
        let kept = report.row_where(case, &paced).map(|row| row.median("conns_per_s") / PACE as f64);
        if let Some(kept) = kept {
            let what = format!("mem: {case} conns_per_s of {PACE} beside {FLOOD} SYNs a second");
            report.bound_value(what, kept, Bound::AtLeast(0.9));
        }
    }
}
