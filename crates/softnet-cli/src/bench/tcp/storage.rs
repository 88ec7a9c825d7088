//! `softnet bench tcp-storage`: blocks by TCP at a rate that all ways are given alike, while the threads
//! that poll have a part of a CPU.
//!
//! The likeness of the published table of a remote SSD (blocks of 4 KB, 64 KB and 1 MB at a fixed number
//! of requests a second, polling threads bound to a few CPUs, user threads busy). What a disk takes is
//! left out: all of the latency is the network's, the server's, and the scheduler's.
//!
//! Invariant: at one device all cases of a size are asked at the same rate, a share of what the first of
//! them answers when it is asked as fast as it can.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::rig::{Rig, over_veth};
use super::rr::{Bed, Load};
use super::ways::{BASE, KERNEL, KERNEL_XDP_THREADED, Side, THREADED, WORKQUEUE, Way};
use super::wire::RING;
use super::{Cpus, raise_file_limit};
use crate::bench::Common;
use crate::bench::device::Device;
use crate::bench::harness::{Case, alternate};
use crate::bench::napi_context::hungry::Hungry;
use crate::bench::pin;
use crate::bench::report::{Bound, Report, Row, Sample, value};

/// What `softnet bench tcp-storage --help` ends with.
pub(in crate::bench) const HELP: &str = "\
A server stores nothing: it sends each block back. It, and all that polls for it, is bound to one CPU beside --hungry threads \
that only compute; the client has another CPU, compares every byte, and sends by the clock, whatever becomes of the requests \
before. Needs two CPUs, and root for all but --device mem.

  softirq               softnet's worker polls, with SCHED_FIFO, as the kernel's softirq does
  threaded, workqueue   threads of the ordinary policy poll, which share the CPU with the server and with what is hungry
  kernel                the kernel's server over veth, whose receiving the sending CPU does, outside of the bounds
  kernel-threaded       a thread of the kernel's receives for it, on that CPU
  offered_per_s         requests a second, of all cases of a device and size alike: --load per cent of what the first
                        of them answers when each connection asks again at once
  sustained_percent     how many of them were answered within the time; latency counts from when they were due";

/// The figures that decide.
pub(in crate::bench) const LEADING: &[&str] =
    &["offered_per_s", "sustained_percent", "p50_us", "p95_us", "p99_us", "p999_us", "cpu_percent"];

#[derive(Args, Debug)]
pub(crate) struct TcpStorage {
    #[command(flatten)]
    pub(crate) common: Common,
    /// What the blocks come by
    #[arg(long, value_enum, default_value = "both")]
    device: Device,
    /// Bytes of a block (may be repeated) [default: 4096, 65536, 1048576; with --quick 4096, 65536]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    size: Vec<u32>,
    /// Connections, each with one request outstanding at most
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: u32,
    /// Per cent of the requests that the first case could answer
    #[arg(long, value_name = "PERCENT", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=200))]
    load: u32,
    /// Threads that only compute on the server's CPU
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(0..=64))]
    hungry: u16,
}

const SIZES: [u32; 3] = [4 << 10, 64 << 10, 1 << 20];

/// What is compared: names, and ways.
type Kind = (&'static str, &'static Way);

const KINDS: [Kind; 5] = [
    ("softirq", &BASE),
    ("threaded", &THREADED),
    ("workqueue", &WORKQUEUE),
    ("kernel", &KERNEL),
    ("kernel-threaded", &KERNEL_XDP_THREADED),
];

impl TcpStorage {
    fn measure(
        &self,
        bed: &mut Bed,
        way: &Way,
        (size, rate): (u32, &Cell<f64>),
        cpu: usize,
        times: (Duration, Duration),
    ) -> Result<Sample, String> {
        let _hungry = Hungry::start(self.hungry.into(), Some(cpu))?;
        let mut load = Load { connections: self.connections, size, rate: None };
        if rate.get() == 0.0 {
            let most = bed.measure(way, load, times)?;
            let qps = value(&most, "qps").unwrap_or(0.0);
            rate.set((qps * f64::from(self.load) / 100.0).max(1.0));
        }
        load.rate = Some(rate.get());
        let mut sample = bed.measure(way, load, times)?;
        let qps = value(&sample, "qps").unwrap_or(0.0);
        sample.extend([("offered_per_s", rate.get()), ("sustained_percent", 100.0 * qps / rate.get())]);
        Ok(sample)
    }

    pub(in crate::bench) fn run(&self) -> Result<Report, String> {
        let cpus = Cpus::new(self.common.cpu)?;
        raise_file_limit();
        let quick = self.common.quick;
        let sizes = match &self.size[..] {
            [] => SIZES[..if quick { 2 } else { SIZES.len() }].to_vec(),
            given => given.to_vec(),
        };
        let bed = |rig: Rig, way: &Way| Ok::<_, String>(RefCell::new(Bed::new(rig, cpus, way)?));
        let mut mem = None;
        if self.device.mem() {
            mem = Some(bed(Rig::mem(cpus.server, cpus.client, true, RING)?, &BASE)?);
        }
        let mut beds: Vec<(Side, RefCell<Bed>)> = Vec::new();
        for (_, way) in KINDS.into_iter().filter(|_| self.device.xdp()) {
            if beds.iter().all(|(side, _)| *side != way.server) {
                beds.push((way.server, bed(over_veth(way.server, cpus.server, false)?, way)?));
            }
        }
        // Now, so that the stacks' threads are not pinned along.
        pin(cpus.client)?;
        let times = match quick {
            true => (Duration::from_millis(100), Duration::from_millis(400)),
            false => (Duration::from_millis(300), Duration::from_secs(2)),
        };
        let (mem_rates, xdp_rates) = (rates(&sizes), rates(&sizes));
        let mut cases = Vec::new();
        for (device, rates) in [("mem", &mem_rates), ("xdp", &xdp_rates)] {
            for (size, rate) in sizes.iter().zip(rates) {
                for (name, way) in KINDS {
                    let of = match device {
                        "mem" => mem.as_ref().filter(|_| !way.kernel()),
                        _ => beds.iter().find(|(side, _)| *side == way.server).map(|(_, bed)| bed),
                    };
                    let Some(bed) = of else { continue };
                    let row = Row::new(name, vec![("device", json!(device)), ("size", json!(size))]);
                    let measure =
                        move || self.measure(&mut bed.borrow_mut(), way, (*size, rate), cpus.server, times);
                    cases.push(Case { row, measure: Box::new(measure) });
                }
            }
        }
        let mut report = alternate("tcp-storage", None, self.common.rounds_or(5, 3), cases)?;
        for (device, size) in ["mem", "xdp"].into_iter().flat_map(|at| sizes.iter().map(move |s| (at, *s))) {
            let at = [("device", json!(device)), ("size", json!(size))];
            for (figure, bound) in
                [("sustained_percent", Bound::AtLeast(0.95)), ("p50_us", Bound::AtMost(1.1))]
            {
                let ratio = report.ratio_where(("threaded", &at), ("softirq", &at), figure);
                if ratio > 0.0 {
                    let what = format!("{device}: threaded / softirq {figure}, {size} B");
                    report.bound_value(what, ratio, bound);
                }
            }
        }
        Ok(report)
    }
}

/// A rate for each size, not known yet.
fn rates(sizes: &[u32]) -> Vec<Cell<f64>> {
    sizes.iter().map(|_| Cell::new(0.0)).collect()
}
