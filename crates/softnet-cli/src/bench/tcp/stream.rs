//! `softnet bench tcp-stream`: bytes that flow one way over TCP.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::ceiling::copies_gbit_s;
use super::host::Host;
use super::rig::{Ends, Rig, addresses};
use super::rr::set_knobs;
use super::ways::{BASE, BUSY, KERNEL, Way};
use super::wire::STREAM_RING;
use super::{Cpus, stack_threads};
use crate::bench::Common;
use crate::bench::device::Device;
use crate::bench::echo::Usage;
use crate::bench::harness::{Case, alternate, wanted};
use crate::bench::report::{Bound, REFERENCE, Report, Row, Sample};
use crate::bench::{pin, text};

/// What `softnet bench tcp-stream --help` ends with.
pub(in crate::bench) const HELP: &str = "\
Streams from writers on one CPU to readers on another, each with a thread of its own that blocks in its calls. Every byte is \
compared. Needs two CPUs, and root for all but --device mem.

  softnet         softnet at one end (--device xdp: the other is the kernel's), or at both (--device mem). Runs of segments
                  leave uncut: to the kernel (`tso = true`), or over a wire like that between two virtual machines.
                  A worker polls, and wakes the threads that block
  softnet-busy    the same, and a call that would block polls the queue itself for 200 µs first (SO_BUSY_POLL,
                  SO_PREFER_BUSY_POLL; N 100, T 200 µs: the doorbell stays masked between two calls)
  ...-plain       the same with packets of the MTU: by AF_XDP alone, or cut by the emulated NIC
  kernel-plain    the kernel at both ends of a veth pair without TSO and GSO, as AF_XDP has it: packets of the MTU
  kernel          the same with all offloads: segments of 64 KiB are handed over by reference
  direction       send: softnet writes, or the server's end does; recv: it reads
  cpu_percent     of the threads of the server's end, stack included; on veth the CPU that sends does the other end's softirq
  copies_gbit_s   what two threads on these CPUs moved just before without any stack, one copying into memory, the other
                  out of it: hosts of virtual machines move CPUs about, and between cores that share no cache it is a
                  third or a quarter of what it is between near ones";

/// The figures that decide.
pub(in crate::bench) const LEADING: &[&str] = &["gbit_s", "cpu_percent", "gbit_s_per_cpu", "copies_gbit_s"];

/// Bytes of one call.
const CALL: usize = 128 << 10;
/// The stream repeats after so many bytes: no power of two, so that a part out of place is seen.
const PERIOD: usize = 65_521;
/// How long a stream may stand still.
const STILL: Duration = Duration::from_secs(20);

/// Cases that are bounded together.
struct Bounded {
    names: [&'static str; 2],
    /// What is on the wire of AF_XDP.
    wire: &'static str,
}

const CASES: [Bounded; 2] = [
    Bounded {
        names: ["softnet", "softnet-busy"],
        wire: "What softnet sends goes to the kernel in runs of segments; all else are packets of the MTU.",
    },
    Bounded {
        names: ["softnet-plain", "softnet-busy-plain"],
        wire: "Packets of the MTU on the wire of both.",
    },
];

#[derive(Args, Debug)]
pub(crate) struct TcpStreams {
    #[command(flatten)]
    pub(crate) common: Common,
    /// What the streams go by
    #[arg(long, value_enum, default_value = "both")]
    device: Device,
    /// Only this row (may be repeated), as for a profile: `perf record -a softnet bench tcp-stream --case softnet`
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<String>,
    /// Only with so many streams
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    streams: Option<u16>,
    /// Only in this direction
    #[arg(long, value_enum)]
    direction: Option<Direction>,
}

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
pub(super) enum Direction {
    Send,
    Recv,
}

impl Direction {
    fn name(self) -> &'static str {
        if self == Direction::Send { "send" } else { "recv" }
    }
}

/// The stream, one period and a call long: what follows any place in it is in one piece.
fn pattern() -> Arc<[u8]> {
    (0..PERIOD + CALL).map(|at| at % PERIOD).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

/// Streams that run.
struct Streams {
    stop: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    tids: Arc<Mutex<Vec<i32>>>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

impl Streams {
    /// Starts `n` streams; the threads of the server's end are counted.
    fn start<S: Host, C: Host>(
        (server, client): (&S, &C),
        direction: Direction,
        n: usize,
        way: &Way,
        cpus: Cpus,
    ) -> Result<Streams, String> {
        let mut streams = Streams {
            stop: Arc::default(),
            bytes: Arc::default(),
            tids: Arc::default(),
            threads: Vec::new(),
        };
        let at: SocketAddr = addresses()[0];
        let listener = server.listen(at).map_err(|e| format!("listen: {e}"))?;
        let data = pattern();
        client.enter().map_err(text)?;
        for _ in 0..n {
            let far = client.begin_connect(at).map_err(|e| format!("connect: {e}"))?;
            let until = Instant::now() + STILL;
            let near = loop {
                match S::accept(&listener) {
                    Ok(near) => break near,
                    Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(error) => return Err(format!("accept: {error}")),
                }
            };
            while !C::connected(&far).map_err(text)? {
                std::thread::sleep(Duration::from_millis(1));
            }
            S::block(&near, way, STILL).map_err(text)?;
            C::block(&far, way, STILL).map_err(text)?;
            match direction {
                Direction::Send => {
                    streams.writes::<S>(near, &data, cpus.server, true);
                    streams.reads(far, &data, cpus.client, false);
                }
                Direction::Recv => {
                    streams.writes::<C>(far, &data, cpus.client, false);
                    streams.reads(near, &data, cpus.server, true);
                }
            }
        }
        Ok(streams)
    }

    fn writes<H: Host>(&mut self, mut to: H::Stream, data: &Arc<[u8]>, cpu: usize, counts: bool)
    where
        H::Stream: 'static,
    {
        let (stop, data, tids) = (self.stop.clone(), data.clone(), self.tids.clone());
        self.threads.push(std::thread::spawn(move || {
            enter(cpu, counts, &tids)?;
            let mut at = 0;
            while !stop.load(Ordering::Relaxed) {
                let n = to.write(&data[at..at + CALL]).map_err(|e| format!("write: {e}"))?;
                at = (at + n) % PERIOD;
            }
            H::shut(&to).map_err(|e| format!("shutdown: {e}"))?;
            // The reader closes when it has all.
            match to.read(&mut [0; 1]) {
                Ok(0) => Ok(()),
                Ok(_) => Err("something came from the reader".into()),
                Err(error) => Err(format!("after the last write: {error}")),
            }
        }));
    }

    fn reads<S: Read + Send + 'static>(&mut self, mut from: S, data: &Arc<[u8]>, cpu: usize, counts: bool) {
        let (bytes, data, tids) = (self.bytes.clone(), data.clone(), self.tids.clone());
        self.threads.push(std::thread::spawn(move || {
            enter(cpu, counts, &tids)?;
            let (mut at, mut buffer) = (0, vec![0; CALL]);
            loop {
                let n = from.read(&mut buffer).map_err(|e| format!("read: {e}"))?;
                if n == 0 {
                    return Ok(());
                }
                if buffer[..n] != data[at..at + n] {
                    return Err("what was read differs from what was written".into());
                }
                at = (at + n) % PERIOD;
                bytes.fetch_add(n as u64, Ordering::Relaxed);
            }
        }));
    }

    fn end(&mut self) -> Result<(), String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            result = result.and(thread.join().unwrap_or_else(|_| Err("a stream's thread panicked".into())));
        }
        result
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // `end` is the call that returns how they ended.
        let _ = self.end();
    }
}

/// What each thread of a stream begins with.
fn enter(cpu: usize, counts: bool, tids: &Mutex<Vec<i32>>) -> Result<(), String> {
    pin(cpu)?;
    if counts {
        let tid = rustix::thread::gettid().as_raw_pid();
        tids.lock().unwrap_or_else(PoisonError::into_inner).push(tid);
    }
    Ok(())
}

pub(super) fn measure(
    rig: &Rig,
    direction: Direction,
    n: usize,
    way: &Way,
    cpus: Cpus,
    (warm, time): (Duration, Duration),
) -> Result<Sample, String> {
    rig.stacks.iter().try_for_each(|stack| set_knobs(stack, way))?;
    let ceiling = copies_gbit_s(cpus)?;
    let mut streams = match &rig.ends {
        Ends::Mem { server, client } => Streams::start((server, client), direction, n, way, cpus),
        Ends::Xdp { server, client } => Streams::start((server, client), direction, n, way, cpus),
        Ends::Kernel { server, client } => Streams::start((server, client), direction, n, way, cpus),
    }?;
    std::thread::sleep(warm);
    let mut tids = streams.tids.lock().unwrap_or_else(PoisonError::into_inner).clone();
    tids.extend(stack_threads(rig.server_stack()));
    let (from, begin, used) = (streams.bytes.load(Ordering::Relaxed), Instant::now(), Usage::of(&tids));
    std::thread::sleep(time);
    let (moved, took) = (streams.bytes.load(Ordering::Relaxed) - from, begin.elapsed().as_secs_f64());
    let cpu = (Usage::of(&tids) - used).cpu_ns as f64 / 1e9 / took;
    streams.end()?;
    let gbit_s = moved as f64 * 8.0 / took / 1e9;
    Ok(vec![
        ("gbit_s", gbit_s),
        ("cpu_percent", 100.0 * cpu),
        ("gbit_s_per_cpu", gbit_s / cpu.max(0.01)),
        ("copies_gbit_s", ceiling),
    ])
}

impl TcpStreams {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let cpus = Cpus::new(self.common.cpu)?;
        let all: Vec<_> = CASES.iter().flat_map(|of| of.names).chain(["kernel-plain", "kernel"]).collect();
        let wanted = wanted(&self.cases, &all)?;
        let (mem, xdp) = (self.device.mem(), self.device.xdp());
        // Cases of a rig, with the way in which its threads wait.
        let runs = || vec![("softnet", &BASE), ("softnet-busy", &BUSY)];
        let packets = || vec![("softnet-plain", &BASE), ("softnet-busy-plain", &BUSY)];
        let mut rigs = Vec::new();
        if mem {
            rigs.push((runs(), "mem", Rig::mem(cpus.server, cpus.client, true, STREAM_RING)?));
            rigs.push((packets(), "mem", Rig::mem(cpus.server, cpus.client, false, STREAM_RING)?));
        }
        if xdp {
            rigs.push((runs(), "xdp", Rig::xdp(cpus.server, true)?));
            rigs.push((packets(), "xdp", Rig::xdp(cpus.server, false)?));
            rigs.push((vec![("kernel-plain", &KERNEL)], "xdp", Rig::kernel(false)?));
            rigs.push((vec![("kernel", &KERNEL)], "xdp", Rig::kernel(true)?));
        }
        let times = match self.common.quick {
            true => (Duration::from_millis(200), Duration::from_millis(500)),
            false => (Duration::from_millis(500), Duration::from_secs(2)),
        };
        let mut cases = Vec::new();
        let asked = |direction: &Direction| self.direction.is_none_or(|only| only == *direction);
        for n in self.streams.map_or(vec![1, 4], |n| vec![usize::from(n)]) {
            for direction in [Direction::Send, Direction::Recv].into_iter().filter(asked) {
                // With `mem` both ends are the same kind.
                for (of, device, rig) in
                    rigs.iter().filter(|(_, device, _)| direction == Direction::Send || *device != "mem")
                {
                    for (case, way) in of.iter().filter(|(case, _)| wanted.contains(case)) {
                        let params = vec![
                            ("device", json!(device)),
                            ("streams", json!(n)),
                            ("direction", json!(direction.name())),
                        ];
                        let measure = move || measure(rig, direction, n, way, cpus, times);
                        cases.push(Case { row: Row::new(*case, params), measure: Box::new(measure) });
                    }
                }
            }
        }
        let mut report = alternate("tcp-stream", None, self.common.rounds_or(5, 3), cases)?;
        for (case, n) in CASES.iter().flat_map(|case| [(case, 1), (case, 4)]) {
            case.state_bounds(&mut report, n);
        }
        Ok(report)
    }
}

impl Bounded {
    /// softnet is at its best with threads that are woken, or that poll; the better one counts.
    fn state_bounds(&self, report: &mut Report, n: usize) {
        let best = |of: &dyn Fn(&str) -> f64| self.names.map(of).into_iter().fold(0.0, f64::max);
        let names = self.names.join(" or ");
        let mem = [("device", json!("mem")), ("streams", json!(n))];
        let gbit_s = best(&|name| report.row_where(name, &mem).map_or(0.0, |row| row.median("gbit_s")));
        if gbit_s > 0.0 {
            let what = format!("mem: {names}, gbit_s, {n} streams");
            report.bound_value(what, gbit_s, Bound::AtLeast(20.0)).on(&REFERENCE);
        }
        for direction in [Direction::Send, Direction::Recv] {
            let direction = direction.name();
            let xdp = [("device", json!("xdp")), ("streams", json!(n)), ("direction", json!(direction))];
            let ratio = best(&|name| report.ratio_where((name, &xdp), ("kernel-plain", &xdp), "gbit_s"));
            if ratio > 0.0 {
                let what = format!("xdp: {names} / kernel-plain gbit_s, {n} streams, {direction}");
                report.bound_value(what, ratio, Bound::AtLeast(1.0)).meaning(self.wire);
            }
        }
    }
}
