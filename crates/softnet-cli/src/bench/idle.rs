//! `softnet bench idle`: what a running router costs while nothing happens, and how long the first packet then takes.
//!
//! The router of the demo, over AF_XDP between two namespaces, with all its threads. Cost is what the kernel accounts to
//! those threads: CPU time, and how often they blocked (each wake-up ends in one more).

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use softnet::internals::thread_cpu_ns;

use super::harness::{Case, alternate};
use super::report::{Bound, Report, Row, Sample};
use super::{Common, pin};
use crate::demo::topology::{self, CLIENT, SERVER, Taken, Topology};
use crate::instance::{self, Instance};

/// How long nothing happens before the packet.
const IDLE: Duration = Duration::from_secs(10);
/// How long a packet may take before it counts as lost.
const LOST: Duration = Duration::from_secs(5);

#[derive(Args, Debug)]
pub(crate) struct Idle {
    #[command(flatten)]
    pub(super) common: Common,
}

/// CPU time in ns and voluntary context switches of every thread but the calling one.
fn usage() -> (u64, u64) {
    let me = rustix::thread::gettid().as_raw_pid();
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return (0, 0) };
    let (mut cpu, mut switches) = (0, 0);
    for tid in tasks.flatten().filter_map(|t| t.file_name().to_str()?.parse::<i32>().ok()) {
        if tid == me {
            continue;
        }
        cpu += thread_cpu_ns(tid);
        let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        switches += line.and_then(|l| l.trim().parse::<u64>().ok()).unwrap_or(0);
    }
    (cpu, switches)
}

impl Idle {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let said = |e: std::io::Error| e.to_string();
        if !super::cpus().contains(&self.common.cpu) {
            return Err(format!("--cpu {}: there are {} CPUs", self.common.cpu, super::cpus().len()));
        }
        let topology = Topology::build(Taken::Xdp).map_err(|e| format!("making the network: {e}"))?;
        let mut config = topology::config(Taken::Xdp).map_err(|e| format!("{e:?}"))?;
        config.stack.workers = vec![self.common.cpu as u32];
        let router = topology.router.run(|| instance::start(config)).map_err(said)??;
        // Away from the router's worker; now, so that the router's threads are not pinned along.
        let cpu = pin((self.common.cpu + 1) % super::cpus().len().max(1))?;
        let bind = |ip| {
            let socket = UdpSocket::bind((ip, 0))?;
            socket.set_read_timeout(Some(LOST))?;
            Ok(socket)
        };
        let client = topology.client.run(|| bind(CLIENT)).map_err(said)?.map_err(said)?;
        let server = topology.server.run(|| bind(SERVER)).map_err(said)?.map_err(said)?;
        let to = server.local_addr().map_err(said)?;
        let one = |tag: u8| -> Result<f64, String> {
            let start = Instant::now();
            client.send_to(&[tag; 64], to).map_err(said)?;
            let mut buf = [0; 128];
            let (n, _) = server.recv_from(&mut buf).map_err(|e| format!("the packet did not arrive: {e}"))?;
            let took = start.elapsed().as_nanos() as f64 / 1000.0;
            if buf[..n] != [tag; 64] {
                return Err("the packet arrived damaged".into());
            }
            Ok(took)
        };
        one(0)?;
        let measure = move || -> Result<Sample, String> {
            one(1)?;
            std::thread::sleep(Duration::from_millis(200));
            let (before, start) = (usage(), Instant::now());
            std::thread::sleep(IDLE);
            let (after, elapsed) = (usage(), start.elapsed());
            let first = one(2)?;
            let busy = one(3)?;
            Ok(vec![
                ("cpu_percent", 100.0 * (after.0 - before.0) as f64 / elapsed.as_nanos() as f64),
                ("wakeups_per_s", (after.1 - before.1) as f64 / elapsed.as_secs_f64()),
                ("first_packet_us", first),
                ("next_packet_us", busy),
            ])
        };
        let params =
            vec![("device", json!("xdp")), ("context", json!("softirq")), ("idle_s", json!(IDLE.as_secs()))];
        let cases = vec![Case { row: Row::new("idle", params), measure: Box::new(measure) }];
        let mut report = alternate("idle", Some(cpu), self.common.rounds_or(5, 2), cases)?;
        router.stop();
        report
            .bound("idle", "cpu_percent", Bound::AtMost(0.5))
            .meaning("A router without traffic leaves the CPUs to others.");
        report
            .bound("idle", "wakeups_per_s", Bound::AtMost(20.0))
            .meaning("Its threads stay asleep, so that the CPUs can save power.");
        Ok(report)
    }
}
