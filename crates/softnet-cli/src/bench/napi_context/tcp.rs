//! `--app tcp`: the contexts by TCP, as they were published. A server of 1000 connections sends
//! requests back, in a closed loop.
//!
//! Server and client are those of [`bench tcp-rr`](crate::bench::tcp), over two stacks in this
//! process. The client has a CPU of its own; so what polls for the server and the server share the
//! other one, alone (`pinned`) or with hungry threads (`hog`).
//!
//! 1000 requests of 1 MB at a time were published. They are 64 here: the packet memory of each
//! stack has 128 MiB, and where more is asked for the windows of all connections close (some ten
//! requests a second).

use std::cell::RefCell;
use std::time::Duration;

use serde_json::{Value, json};
use softnet::config::Context;
use softnet_dev::sched::Policy;

use super::hungry::Hungry;
use super::setup::Setup;
use super::{FLOWS, NapiContext, published};
use crate::bench::harness::{Case, alternate};
use crate::bench::pin;
use crate::bench::report::{Bound, Report, Row, Sample};
use crate::bench::tcp::Cpus;
use crate::bench::tcp::rig::Rig;
use crate::bench::tcp::rr::{Bed, Load};
use crate::bench::tcp::ways::{BASE, THREADED, WORKQUEUE, Way};
use crate::bench::tcp::wire::RING;

/// Bytes of request and response.
const SIZES: [usize; 3] = [1, 5 << 10, 1 << 20];
const SETUPS: [Setup; 2] = [Setup::Pinned, Setup::Hog];
const KINDS: [(&str, &Way); 3] = [("softirq", &BASE), ("threaded", &THREADED), ("workqueue", &WORKQUEUE)];

/// What is asked in a row: bytes, connections, and hungry threads meanwhile.
#[derive(Clone, Copy)]
struct Asked {
    size: usize,
    connections: usize,
    hungry: usize,
}

pub(super) fn run(bench: &NapiContext) -> Result<Report, String> {
    let cpus = Cpus::new(bench.common.cpu)?;
    if let Some(other) = bench.setups.iter().find(|setup| !SETUPS.contains(setup)) {
        return Err(format!("--setup {}: --app tcp has pinned and hog", other.name()));
    }
    let wanted = |setup: &Setup| bench.setups.is_empty() || bench.setups.contains(setup);
    let setups: Vec<Setup> = SETUPS.into_iter().filter(wanted).collect();
    let sizes = bench.sizes(&SIZES)?;
    let bed = RefCell::new(bed(cpus)?);
    // Now, so that the stacks' threads are not pinned along.
    pin(cpus.client)?;
    let quick = bench.common.quick;
    let mut cases = Vec::new();
    for setup in &setups {
        for size in &sizes {
            let asked = Asked { size: *size, connections: connections(*size), hungry: bench.hungry(*setup) };
            for (name, way) in KINDS {
                let row = row(name, way, *setup, asked, &bed.borrow());
                let bed = &bed;
                let measure =
                    move || measure(&mut bed.borrow_mut(), way, asked, cpus, times(quick, asked.size));
                cases.push(Case { row, measure: Box::new(measure) });
            }
        }
    }
    let mut report = alternate("napi-context", None, bench.common.rounds(), cases)?;
    for setup in &setups {
        for size in &sizes {
            let curves = KINDS.map(|(name, _)| (name.into(), name, params(*setup, *size)));
            let title = format!("Latency over TCP, {}, {size} B", setup.name());
            report.plots.push(super::latency_plot(&report, title, curves));
        }
    }
    report.published = vec![published::tcp_table(&report, &setups)];
    let at = params(Setup::Pinned, SIZES[0]);
    let ratio = report.ratio_where(("threaded", &at), ("softirq", &at), "qps");
    if ratio > 0.0 {
        let what = "threaded / softirq qps, pinned, 1 B".into();
        report.bound_value(what, ratio, Bound::AtLeast(0.95)).meaning("Polling in threads keeps the rate.");
    }
    Ok(report)
}

fn bed(cpus: Cpus) -> Result<Bed, String> {
    Bed::new(Rig::mem(cpus.server, cpus.client, true, RING)?, cpus, &BASE)
}

/// How many connections ask at once. More bytes than these measure memory, not contexts.
fn connections(size: usize) -> usize {
    const BYTES: usize = 64 << 20;
    FLOWS.min(BYTES / size)
}

/// Warm-up and measured time: with large requests each connection is to be answered several times.
fn times(quick: bool, size: usize) -> (Duration, Duration) {
    let (warm_up, time) = if quick { (100, 400) } else { (300, 1500) };
    let longer = if size >= 1 << 20 { 4 } else { 1 };
    (Duration::from_millis(longer * warm_up), Duration::from_millis(longer * time))
}

/// Parameters that tell the rows of a case apart.
fn params(setup: Setup, size: usize) -> [(&'static str, Value); 2] {
    [("setup", json!(setup.name())), ("size", json!(size))]
}

fn row(name: &str, way: &Way, setup: Setup, asked: Asked, bed: &Bed) -> Row {
    let mut all = vec![("app", json!("tcp"))];
    all.extend(params(setup, asked.size));
    let workers = bed.rig().server_stack().map_or_else(Vec::new, |stack| stack.view().workers());
    let worker = workers.first().filter(|_| way.context == Context::Softirq);
    let policy = worker.map_or_else(|| Policy::Other.to_string(), |worker| worker.policy.clone());
    all.extend([
        ("worker_policy", json!(policy)),
        ("device", json!("mem")),
        ("context", json!(way.context.name())),
        ("load", json!("MAX")),
        ("connections", json!(asked.connections)),
        ("hungry", json!(asked.hungry)),
        ("pinned", json!(true)),
    ]);
    Row::new(name, all)
}

fn measure(
    bed: &mut Bed,
    way: &Way,
    asked: Asked,
    cpus: Cpus,
    times: (Duration, Duration),
) -> Result<Sample, String> {
    let _hungry = Hungry::start(asked.hungry, Some(cpus.server))?;
    let load = Load { connections: asked.connections as u32, size: asked.size as u32, rate: None };
    bed.measure(way, load, times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::cpus;

    #[test]
    fn what_is_asked_for_at_a_time_has_room() {
        assert_eq!(SIZES.map(connections), [FLOWS, FLOWS, 64]);
    }

    #[test]
    fn every_context_answers_beside_hungry_threads() {
        let all = cpus();
        let cpus = Cpus { server: all[0], client: all[all.len() - 1] };
        let mut bed = bed(cpus).unwrap();
        for (name, way) in KINDS {
            for (size, hungry) in [(1, 0), (5 << 10, 1)] {
                let asked = Asked { size, connections: 20, hungry };
                let times = (Duration::from_millis(10), Duration::from_millis(300));
                let sample = measure(&mut bed, way, asked, cpus, times)
                    .unwrap_or_else(|e| panic!("{name}, {size} B: {e}"));
                for figure in ["qps", "p50_us", "p999_us", "cpu_percent"] {
                    let (_, value) = sample.iter().find(|(name, _)| *name == figure).unwrap();
                    assert!(*value > 0.0, "{name}, {size} B: {sample:?}");
                }
            }
        }
    }
}
