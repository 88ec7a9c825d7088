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
use super::rig::{Ends, Rig, addresses};
use super::rr::{Device, set_knobs};
use super::server::Server;
use super::ways::{BASE, FULLBUSY, KERNEL, KERNEL_SPIN, SUSPEND20, Way};
use super::{Cpus, raise_file_limit, server_threads};
use crate::bench::Common;
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
  device mem                   two stacks of softnet joined by an emulated wire
  device xdp                   softnet's server by AF_XDP on a veth pair, the kernel's client at the other end; beside it \
the kernel's server over a veth pair
  syn_pps                      SYNs a second, each from another address that does not answer, which are sent beside the \
connections by the client's thread; what answers them goes to a gateway, and is received by neither end
  syns_per_s                   those that were sent: for what comes too late, or finds no room, none is made up
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
pub(in crate::bench) const LEADING: &[&str] =
    &["conns_per_s", "conns_per_cpu_s", "p50_us", "p99_us", "cpu_percent", "syns_per_s", "requests", "grown_mib"];

/// Connections at a time.
const AT_ONCE: usize = 64;
const SIZE: usize = 64;
/// SYNs a second of the flood.
const FLOOD: u64 = 500_000;
const WAYS: [&Way; 5] = [&BASE, &SUSPEND20, &FULLBUSY, &KERNEL, &KERNEL_SPIN];

#[derive(Args, Debug)]
pub(crate) struct TcpConn {
    #[command(flatten)]
    pub(crate) common: Common,
    /// What the connections come by
    #[arg(long, value_enum, default_value = "both")]
    device: Device,
    /// Only these cases (may be repeated)
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<String>,
}

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
        syns: u64,
        times: (Duration, Duration),
    ) -> Result<Sample, String> {
        let measured = self.try_measure(way, syns, times);
        self.server.rest();
        measured.map_err(|error| self.server.explain(error))
    }

    fn try_measure(&self, way: &Way, syns: u64, times: (Duration, Duration)) -> Result<Sample, String> {
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
        let threads = server_threads(self.rig.server_stack(), self.server.tid);
        let (mut usage, mut memory, mut syns_at) =
            (Vec::with_capacity(2), Vec::with_capacity(2), Vec::with_capacity(2));
        let mut look = || {
            usage.push(Usage::of(&threads));
            memory.push(resident());
            syns_at.push(sent.get());
        };
        let outcome = match &self.rig.ends {
            Ends::Mem { client, .. } => churn(client, times, &mut look, &mut beside),
            Ends::Xdp { client, .. } | Ends::Kernel { client, .. } => {
                churn(client, times, &mut look, &mut beside)
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
    times: (Duration, Duration),
    look: &mut dyn FnMut(),
    beside: &mut dyn FnMut(u64) -> Result<(), String>,
) -> Result<Outcome, String> {
    let begin = Instant::now();
    let outcome = Churn::new(client, &addresses(), SIZE)?.run(AT_ONCE, times, look, beside)?;
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
        let (mut mem, mut xdp, mut kernel) = (None, None, None);
        if self.device != Device::Xdp {
            mem = Some(bed(Rig::mem(cpus.server, cpus.client, true), &BASE)?);
        }
        if self.device != Device::Mem {
            xdp = Some(bed(Rig::xdp(cpus.server, true), &BASE)?);
            kernel = Some(bed(Rig::kernel(true), &KERNEL)?);
        }
        // Now, so that the stacks' threads are not pinned along.
        pin(cpus.client)?;
        let times = match self.common.quick {
            true => (Duration::from_millis(100), Duration::from_millis(500)),
            false => (Duration::from_millis(500), Duration::from_secs(2)),
        };
        let mut cases = Vec::new();
        for way in WAYS.into_iter().filter(|way| wanted(way)) {
            let of = if way.kernel { &kernel } else { &xdp };
            for (device, bed, syns) in
                [("mem", &mem, 0), ("mem", &mem, FLOOD), ("xdp", of, 0), ("xdp", of, FLOOD)]
            {
                let Some(bed) = bed else { continue };
                if device == "mem" && way.kernel {
                    continue;
                }
                let row = Row::new(
                    way.name,
                    vec![("device", json!(device)), ("size", json!(SIZE)), ("syn_pps", json!(syns))],
                );
                let measure = move || bed.borrow_mut().measure(way, syns, times);
                cases.push(Case { row, measure: Box::new(measure) });
            }
        }
        let mut report = alternate("tcp-conn", None, self.common.rounds_or(5, 3), cases)?;
        bounds(&mut report);
        Ok(report)
    }
}

fn bounds(report: &mut Report) {
    let row = |device: &'static str, syns: u64| [("device", json!(device)), ("syn_pps", json!(syns))];
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
    }
}
