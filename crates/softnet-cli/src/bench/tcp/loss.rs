//! `softnet bench tcp-loss`: what a sender makes of a path that loses or reorders packets.

use std::cell::Cell as Counter;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use super::Cpus;
use super::host::{For, Host, Kernel, Set, Softnet};
use super::path::{Path, Sender, Weather};
use super::rr::set_knobs;
use super::ways::{BASE, SUSPEND20};
use crate::bench::Common;
use crate::bench::harness::{Case, rounds};
use crate::bench::report::{Bound, Report, Row, Sample};
use crate::bench::{pin, text};

/// What `softnet bench tcp-loss --help` ends with.
pub(in crate::bench) const HELP: &str = "\
Bulk transfers from softnet by AF_XDP (case softnet) and from the kernel (kernel, with cubic) to the kernel, by way of a \
router whose netem delays, loses or reorders: the same discipline and seeds for both, another seed each round. Data suffers, \
ACKs are only late. softnet's writer polls its queue while there is work (suspend20 of tcp-rr); the kernel's, to which veth offers \
nothing to poll, does its TCP where the ACK comes in. Every byte is compared; a transfer counts from its first byte on. Needs \
root and two CPUs.

  loss, reorder    percent of the packets of data that are lost, or ahead of others by half of the round trip
  rtt              round trip of the path, ms
  flows            connections that share it: more where each is slow, so that there are enough losses to compare
  goodput          what the receiver read, Mbit/s, of all connections; the path carries 500 with headers
  retrans          segments that were sent again
  spurious         segments that the receiver had already, as its kernel counts them

The slow cells see few losses in a short run, and differ from seed to seed: compare medians of many rounds. Bounds: in each \
cell goodput at least 0.95 x kernel, over all that lose 1.0 x (geometric mean); spurious at most 1.5 x kernel where packets \
are reordered.";

/// The figures that decide.
pub(in crate::bench) const LEADING: &[&str] = &["goodput", "retrans", "spurious"];

/// What the path carries, Mbit/s: less than the router and the receiver can do on one CPU.
const RATE: u32 = 500;
const LOSS: [f64; 4] = [0.1, 1.0, 3.0, 5.0];
const REORDER: [f64; 3] = [1.0, 10.0, 30.0];
const RTT: [u32; 3] = [1, 20, 100];
/// The stream repeats after so many bytes: no power of two, so that a part out of place is seen.
const PERIOD: usize = 65_521;
/// Bytes of one call.
const CALL: usize = 64 << 10;
/// How long anything may take that is not measured.
const PATIENCE: Duration = Duration::from_secs(30);
/// A wait that finds nothing.
const TURN: Duration = Duration::from_millis(10);

#[derive(Args, Debug)]
pub(crate) struct TcpLoss {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Only paths of these round trips, ms
    #[arg(long, value_name = "MS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1000))]
    rtt: Vec<u32>,
    /// Only paths that lose so many percent
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = percent)]
    loss: Vec<f64>,
    /// Only paths that reorder so many percent
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = percent)]
    reorder: Vec<f64>,
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().map_err(|error| format!("{error}"))?;
    if (0.0..=50.0).contains(&percent) { Ok(percent) } else { Err("0 to 50".into()) }
}

/// One path, and how it is measured.
#[derive(Clone, Copy, Debug)]
struct Cell {
    weather: Weather,
    flows: usize,
    time: Duration,
}

impl Cell {
    fn new(weather: Weather, quick: bool) -> Cell {
        let lossy = weather.loss > 0.0;
        let flows = match weather.rtt {
            _ if !lossy => 1,
            ..10 => 1,
            10..50 => 8,
            50.. => 32,
        };
        let seconds = match (weather.rtt, quick) {
            (..10, true) => 1.5,
            (10..50, true) => 2.5,
            (50.., true) => 4.0,
            (..10, false) => 4.0,
            (10..50, false) => 8.0,
            (50.., false) => 15.0,
        };
        Cell { weather, flows, time: Duration::from_secs_f64(seconds) }
    }

    fn params(&self) -> Vec<(&'static str, Value)> {
        let Weather { loss, reorder, rtt } = self.weather;
        vec![
            ("loss", json!(loss)),
            ("reorder", json!(reorder)),
            ("rtt", json!(rtt)),
            ("flows", json!(self.flows)),
        ]
    }
}

/// The stream, one period and a call long: what follows any place in it is in one piece.
fn pattern() -> Arc<[u8]> {
    (0..PERIOD + CALL).map(|at| at % PERIOD).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

/// Makes `n` connections to a listener at the sender's end. Returns the sender's ends, and the receiver's.
fn connect<S: Host>(
    path: &Path,
    sender: &S,
    n: usize,
) -> Result<(Vec<S::Stream>, Vec<std::net::TcpStream>), String> {
    let listener = sender.listen(path.address()).map_err(|e| format!("listen: {e}"))?;
    path.receiver.enter().map_err(text)?;
    let begin = |_| path.receiver.begin_connect(path.address()).map_err(|e| format!("connect: {e}"));
    let far: Vec<_> = (0..n).map(begin).collect::<Result<_, String>>()?;
    let (mut near, until) = (Vec::with_capacity(n), Instant::now() + PATIENCE);
    while near.len() < n {
        match S::accept(&listener) {
            Ok(stream) => near.push(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(format!("accept: {error}")),
        }
    }
    for stream in &far {
        while !Kernel::connected(stream).map_err(text)? {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok((near, far))
}

/// Writes to all `streams` as fast as they take it, until `stop`; returns them.
fn write<S: Host>(
    sender: &S,
    streams: Vec<S::Stream>,
    data: &[u8],
    stop: &AtomicBool,
) -> Result<Vec<S::Stream>, String> {
    let mut set = sender.set(&SUSPEND20).map_err(text)?;
    let mut lanes: Vec<_> = streams.into_iter().map(|stream| (stream, 0)).collect();
    for (i, (stream, _)) in lanes.iter().enumerate() {
        set.add(stream, i as u64).map_err(text)?;
        set.modify(stream, For::InOut, i as u64).map_err(text)?;
    }
    let mut ready = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        set.wait(&mut ready, TURN).map_err(text)?;
        for token in &ready {
            let (stream, at) = &mut lanes[*token as usize];
            match stream.write(&data[*at..*at + CALL]) {
                Ok(n) => *at = (*at + n) % PERIOD,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(format!("write: {error}")),
            }
        }
    }
    Ok(lanes.into_iter().map(|(stream, _)| stream).collect())
}

/// Reads what comes for all `streams` for `time`; returns the bytes.
fn read(
    receiver: &Kernel,
    streams: &mut [std::net::TcpStream],
    data: &[u8],
    time: Duration,
) -> Result<u64, String> {
    let mut set = receiver.set(&BASE).map_err(text)?;
    for (i, stream) in streams.iter().enumerate() {
        set.add(stream, i as u64).map_err(text)?;
    }
    let (mut at, mut buffer, mut ready) = (vec![0; streams.len()], vec![0; CALL], Vec::new());
    let (until, mut all) = (Instant::now() + time, 0);
    while Instant::now() < until {
        set.wait(&mut ready, TURN).map_err(text)?;
        for token in &ready {
            let i = *token as usize;
            match streams[i].read(&mut buffer) {
                Ok(0) => return Err("a stream ended".into()),
                Ok(n) => {
                    if buffer[..n] != data[at[i]..at[i] + n] {
                        return Err("what was read differs from what was written".into());
                    }
                    at[i] = (at[i] + n) % PERIOD;
                    all += n as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(format!("read: {error}")),
            }
        }
    }
    Ok(all)
}

/// Measures transfers from `sender`. `retransmitted` counts at the end.
fn transfer<S: Host + Sync>(
    path: &Path,
    sender: &S,
    cell: &Cell,
    (seed, cpu): (u64, usize),
    retransmitted: impl FnOnce(&[S::Stream]) -> Result<u64, String>,
) -> Result<Sample, String>
where
    S::Stream: 'static,
{
    path.lengthen(&cell.weather)?;
    let (near, mut far) = connect(path, sender, cell.flows)?;
    let duplicates = path.duplicates()?;
    path.impair(&cell.weather, RATE, seed)?;
    let (data, stop) = (pattern(), AtomicBool::new(false));
    let (bytes, near) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            pin(cpu)?;
            write(sender, near, &data, &stop)
        });
        let bytes = read(&path.receiver, &mut far, &data, cell.time);
        stop.store(true, Ordering::Relaxed);
        let near = writer.join().unwrap_or_else(|_| Err("the writer panicked".into()));
        bytes.and_then(|bytes| Ok((bytes, near?)))
    })?;
    let duplicates = path.duplicates()? - duplicates;
    let retransmitted = retransmitted(&near)?;
    // What is still queued is of no interest.
    near.iter().try_for_each(S::reset_on_close).map_err(text)?;
    far.iter().try_for_each(Kernel::reset_on_close).map_err(text)?;
    Ok(vec![
        ("goodput", bytes as f64 * 8.0 / cell.time.as_secs_f64() / 1e6),
        ("retrans", retransmitted as f64),
        ("spurious", duplicates as f64),
    ])
}

fn measure(path: &Path, cell: &Cell, seed: u64, cpu: usize) -> Result<Sample, String> {
    match &path.sender {
        Sender::Softnet(sender, stack) => {
            set_knobs(stack, &SUSPEND20)?;
            let total = |streams: &[<Softnet as Host>::Stream]| {
                let infos = streams.iter().map(|stream| stream.info().map_err(text));
                infos.map(|info| Ok(u64::from(info?.send.total_retrans))).sum()
            };
            transfer(path, sender, cell, (seed, cpu), total)
        }
        Sender::Kernel(sender) => {
            let before = path.kernel_retransmitted()?;
            transfer(path, sender, cell, (seed, cpu), |_| Ok(path.kernel_retransmitted()? - before))
        }
    }
}

impl TcpLoss {
    fn cells(&self) -> Vec<Cell> {
        let all = self.loss.is_empty() && self.reorder.is_empty();
        let or = |given: &[f64], default: &[f64]| if all { default.to_vec() } else { given.to_vec() };
        let rtts = if self.rtt.is_empty() { RTT.to_vec() } else { self.rtt.clone() };
        let lossy = or(&self.loss, &LOSS).into_iter().map(|loss| (loss, 0.0));
        let kinds = lossy.chain(or(&self.reorder, &REORDER).into_iter().map(|reorder| (0.0, reorder)));
        let of = |(loss, reorder)| rtts.iter().map(move |&rtt| Weather { loss, reorder, rtt });
        kinds.flat_map(of).map(|weather| Cell::new(weather, self.common.quick)).collect()
    }

    pub(crate) fn run(&self) -> Result<Report, String> {
        let cpus = Cpus::new(self.common.cpu)?;
        let paths =
            [("softnet", Path::softnet(cpus.server, cpus.client)?), ("kernel", Path::kernel(cpus.client)?)];
        let cells = self.cells();
        let mut cases = Vec::new();
        for cell in &cells {
            for (case, path) in &paths {
                let round = Counter::new(0);
                let measure = move || {
                    round.set(round.get() + 1);
                    measure(path, cell, round.get(), cpus.server)
                };
                cases.push(Case { row: Row::new(*case, cell.params()), measure: Box::new(measure) });
            }
        }
        // Connections are new each time: nothing has to warm up.
        let mut report = rounds("tcp-loss", None, 1..=self.common.rounds_or(5, 1), cases)?;
        bounds(&mut report, &cells);
        Ok(report)
    }
}

fn bounds(report: &mut Report, cells: &[Cell]) {
    let (mut logs, mut lossy) = (0.0, 0);
    for cell in cells {
        let params: Vec<_> = cell.params();
        let ratio = |figure| report.ratio_where(("softnet", &params), ("kernel", &params), figure);
        let Weather { loss, reorder, rtt } = cell.weather;
        let (goodput, spurious) = (ratio("goodput"), ratio("spurious"));
        let path = if reorder > 0.0 { format!("{reorder} % ahead") } else { format!("{loss} % lost") };
        let what = format!("softnet / kernel goodput, {path}, {rtt} ms");
        report.bound_value(what, goodput, Bound::AtLeast(0.95));
        if reorder > 0.0 {
            let what = format!("softnet / kernel spurious, {path}, {rtt} ms");
            report.bound_value(what, spurious, Bound::AtMost(1.5));
        } else {
            logs += goodput.max(f64::MIN_POSITIVE).ln();
            lossy += 1;
        }
    }
    if lossy > 0 {
        let mean = (logs / f64::from(lossy)).exp();
        let what = "softnet / kernel goodput, geometric mean over loss".to_owned();
        report.bound_value(what, mean, Bound::AtLeast(1.0));
    }
}
