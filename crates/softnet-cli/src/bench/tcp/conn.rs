//! `softnet bench tcp-conn`: connections that are accepted, asked once, and closed.

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::churn::Churn;
use super::rig::{Ends, Rig, addresses};
use super::rr::set_knobs;
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
A client of the kernel's on one CPU makes connections, 64 at a time, sends a request of 64 bytes on each, and compares the \
response; the server on another CPU accepts, answers, and closes first, so that it has the TIME-WAIT. Needs root, and two CPUs.

  base, suspend20, fullbusy    softnet's server by AF_XDP on a veth pair: woken; polls while it has work; polls
  kernel, kernel-spin          the same server on the kernel's sockets: sleeps in epoll_wait; asks again and again
  conns_per_s                  connections from begin to end
  conns_per_cpu_s              the same, by the CPU time of the server's threads: what one CPU would do, were there \
clients enough

Most of what a connection costs here is the client's, which is the kernel's in all rows. A server that polls uses its CPU \
whole, so that conns_per_cpu_s is compared of those that sleep.";

/// The figures that decide.
pub(in crate::bench) const LEADING: &[&str] =
    &["conns_per_s", "conns_per_cpu_s", "p50_us", "p99_us", "cpu_percent"];

/// Connections at a time.
const AT_ONCE: usize = 64;
const SIZE: usize = 64;
const WAYS: [&Way; 5] = [&BASE, &SUSPEND20, &FULLBUSY, &KERNEL, &KERNEL_SPIN];

#[derive(Args, Debug)]
pub(crate) struct TcpConn {
    #[command(flatten)]
    pub(crate) common: Common,
}

struct Bed {
    server: Server,
    rig: Rig,
}

impl Bed {
    fn new(rig: Rig, cpus: Cpus, way: &Way) -> Result<Self, String> {
        let at = addresses();
        let server = match &rig.ends {
            Ends::Mem { server, .. } | Ends::Xdp { server, .. } => {
                Server::start(server, &at, way, cpus.server)
            }
            Ends::Kernel { server, .. } => Server::start(server, &at, way, cpus.server),
        }?;
        server.orders.size.store(SIZE, Ordering::Relaxed);
        server.orders.closes.store(true, Ordering::Relaxed);
        Ok(Bed { server, rig })
    }

    fn measure(&mut self, way: &Way, times: (Duration, Duration)) -> Result<Sample, String> {
        let measured = self.try_measure(way, times);
        measured.map_err(|error| self.server.explain(error))
    }

    fn try_measure(&self, way: &Way, times: (Duration, Duration)) -> Result<Sample, String> {
        if let Some(stack) = self.rig.server_stack() {
            set_knobs(stack, way)?;
        }
        self.server.wait_as(way);
        let (Ends::Xdp { client, .. } | Ends::Kernel { client, .. }) = &self.rig.ends else {
            return Err("the client is the kernel's".into());
        };
        let threads = server_threads(self.rig.server_stack(), self.server.tid);
        let mut usage = Vec::with_capacity(2);
        let mut look = || usage.push((Usage::of(&threads), Instant::now()));
        let mut churn = Churn::new(client, &addresses(), SIZE)?;
        let outcome = churn.run(AT_ONCE, times, &mut look)?;
        let [(begin, _), (end, _)] = usage[..] else { return Err("it was not measured".into()) };
        let cpu = (end - begin).cpu_ns as f64 / 1e9;
        let mut sample = vec![
            ("conns_per_s", outcome.answered as f64 / outcome.seconds),
            ("conns_per_cpu_s", outcome.answered as f64 / cpu.max(0.001)),
        ];
        sample.extend(outcome.latency.figures());
        sample.push(("cpu_percent", 100.0 * cpu / outcome.seconds));
        Ok(sample)
    }
}

impl TcpConn {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let cpus = Cpus::new(self.common.cpu)?;
        raise_file_limit();
        let softnet = RefCell::new(Bed::new(Rig::xdp(cpus.server, true)?, cpus, &BASE)?);
        let kernel = RefCell::new(Bed::new(Rig::kernel(true)?, cpus, &KERNEL)?);
        // Now, so that the stacks' threads are not pinned along.
        pin(cpus.client)?;
        let times = match self.common.quick {
            true => (Duration::from_millis(100), Duration::from_millis(500)),
            false => (Duration::from_millis(500), Duration::from_secs(2)),
        };
        let cases = WAYS.map(|way| {
            let bed = if way.kernel { &kernel } else { &softnet };
            let params = vec![("device", json!("xdp")), ("size", json!(SIZE))];
            let measure = move || bed.borrow_mut().measure(way, times);
            Case { row: Row::new(way.name, params), measure: Box::new(measure) }
        });
        let mut report = alternate("tcp-conn", None, self.common.rounds_or(5, 3), cases.into())?;
        for case in ["base", "suspend20"] {
            let ratio = report.ratio(case, "kernel", "conns_per_cpu_s");
            report.bound_value(format!("{case} / kernel conns_per_cpu_s"), ratio, Bound::AtLeast(2.0));
        }
        Ok(report)
    }
}
