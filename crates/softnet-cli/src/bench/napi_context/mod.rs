//! `softnet bench napi-context`: what the polling context means to applications that others compete with.
//!
//! In the kernel, softirq preempts whatever runs on its CPU and does not show as a thread, so the scheduler leaves
//! user threads on CPUs that are busy with it; polling in threads lets it see, and move, all of them. Here
//! responders answer a closed loop of 1000 flows, in each context in turn.
//!
//! How it is set up, and why:
//!
//! - *No client thread.* The emulated NIC turns each response into its flow's next request ([`wire`]). A client that
//!   spins would take half of a machine of two CPUs, and leave one, among which a scheduler has nothing to choose.
//! - *`contended`*, the likeness of the published experiment: unpinned responders and as many hungry threads as there
//!   are CPUs. Two RX queues with one responder each, and the interrupts of both go to the same CPU. That is what it comes
//!   to on two CPUs: 8 queues, so that 8 of 56 CPUs do all softirq, and the rest none. With one queue (`one-queue`) its
//!   only responder has the other CPU to go to; with a worker on either CPU (`spread`), softirq takes as much from both.
//!   These are the controls.
//! - *`hog`*: hungry threads bound to the worker's CPU, as a service with a CPU affinity is, or a neighbour in a container
//!   with a cpuset; one queue, and an unpinned responder. Where threads go is then hardly left to chance: a worker of the
//!   ordinary policy can't leave, and now and then waits for a slice of each, while a poller that is not pinned goes to the
//!   responder's CPU. So the tail that is published (work in softirq is bound to a CPU that others want) shows in every
//!   run, unless other programs crowd the responder's CPU; but it is the poller that waits, not the application. The
//!   bounds are for the policy that a worker has unless it is given another: with `fifo` it does not wait.
//! - *The worker's policy.* A worker is a thread like any other unless it is given a real-time policy; with SCHED_FIFO it
//!   preempts, as softirq does. Both are measured; the bounds of `contended` are for `fifo`, the likeness of the kernel.
//!   What it takes is still a thread's time, which the scheduler sees: the kernel's softirq does more harm.
//! - *Afresh each time.* Each measurement is of several runs, and each run starts a stack and all threads ([`rig`]), since
//!   where the scheduler puts threads lasts longer than a run.
//!
//! What makes the difference (`perf sched timehist`): with polling in threads, the scheduler comes to put the hungry
//! threads together on one CPU, and what sleeps and wakes, pollers and responders, on the other, where they alternate
//! in less than a millisecond. A pinned worker's load keeps a hungry thread beside a responder on either CPU, which waits
//! for whole slices, of one tick or more (4 ms at 250 Hz). But with any poller it is a matter of chance and of some
//! 100 ms whether the threads get sorted, and then p99.9 is 2 ms with each of them. So a measurement takes the percentiles
//! of several runs together; the median of single runs' would be that of the mode that happens to be the more frequent.
//!
//! Nothing is repeated because the CPU was wanted by others, since here others always want it; what other programs used
//! is a figure (`others_cpu_percent`): a few slices of theirs decide a p99.9.

pub(super) mod hungry;
mod published;
mod rig;
mod setup;
mod tcp;
#[cfg(test)]
mod tests;
mod wire;

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use softnet::config::Context;
use softnet_dev::sched::{Policy, set_policy};

use super::Common;
use super::harness::{Case, alternate};
use super::report::plot::{Plot, Series};
use super::report::{Bound, Report, Row};
use rig::{Load, PREEMPTS};
use setup::Setup;

/// Of all queues together.
const FLOWS: usize = 1000;
/// Of each run: until it is measured, and for how long it is.
const WARM_UP: Duration = Duration::from_millis(250);
const MEASURE: Duration = Duration::from_millis(250);
/// Bytes of a payload.
const SIZES: [usize; 2] = [1, 1400];
/// What a request costs the application, in µs.
const WORKS: [u64; 2] = [1, 5];
/// Measured unless the user says which.
const USUAL: [Setup; 3] = [Setup::Contended, Setup::Hog, Setup::Pinned];

#[derive(Args, Debug)]
pub(crate) struct NapiContext {
    #[command(flatten)]
    pub(super) common: Common,
    /// What answers
    #[arg(long, value_enum, default_value = "echo")]
    app: What,
    /// Only this set-up (may be repeated) [default: contended, hog and pinned; with --app tcp pinned and hog, the only
    /// ones]
    #[arg(long = "setup", value_enum, value_name = "NAME")]
    setups: Vec<Setup>,
    /// Only payloads of this size, in bytes: 1 or 1400; with --app tcp requests of 1, 5120 or 1048576 [default: all,
    /// with --quick 1]
    #[arg(long, value_name = "BYTES")]
    size: Option<usize>,
    /// Hungry threads, where a set-up has any [default: as many as there are CPUs, in hog 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=256))]
    hungry: Option<u16>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A responder for each queue, which sends packets back, without sockets
    Echo,
    /// A server of 1000 TCP connections, which sends requests back
    Tcp,
}

/// Policies of workers that can be had: a real-time one needs a privilege.
fn policies() -> Vec<Policy> {
    let privileged = std::thread::scope(|scope| scope.spawn(|| set_policy(PREEMPTS)).join());
    match privileged {
        Ok(Ok(())) => vec![PREEMPTS, Policy::Other],
        refused => {
            if let Ok(Err(error)) = refused {
                eprintln!("softnet: workers will not preempt others, as the kernel's softirq does: {error}");
            }
            vec![Policy::Other]
        }
    }
}

/// Parameters that tell the rows of a case apart.
fn params(setup: Setup, policy: Policy, work: u64, size: usize) -> Vec<(&'static str, Value)> {
    vec![
        ("setup", json!(setup.name())),
        ("worker_policy", json!(policy.to_string())),
        ("work_us", json!(work)),
        ("size", json!(size)),
    ]
}

impl NapiContext {
    pub(crate) fn run(&self) -> Result<Report, String> {
        match self.app {
            What::Echo => self.run_echo(),
            What::Tcp => tcp::run(self),
        }
    }

    /// The sizes that are asked for, of those that the application has.
    fn sizes(&self, all: &[usize]) -> Result<Vec<usize>, String> {
        match self.size {
            Some(size) if all.contains(&size) => Ok(vec![size]),
            Some(size) => {
                let all: Vec<String> = all.iter().map(usize::to_string).collect();
                Err(format!("--size {size}: this application is asked with {} bytes", all.join(", ")))
            }
            None => Ok(all[..if self.common.quick { 1 } else { all.len() }].to_vec()),
        }
    }

    fn run_echo(&self) -> Result<Report, String> {
        let quick = self.common.quick;
        let setups = if self.setups.is_empty() { USUAL.to_vec() } else { self.setups.clone() };
        let sizes = self.sizes(&SIZES)?;
        let works = &WORKS[..if quick { 1 } else { WORKS.len() }];
        let runs = if quick { 2 } else { 5 };
        let policies = policies();
        let mut cases = Vec::new();
        let mut loads = Vec::new();
        for setup in &setups {
            loads.extend(works.iter().flat_map(|work| sizes.iter().map(|size| (*setup, *work, *size))));
        }
        for (setup, work, size) in loads.iter().copied() {
            for context in Context::ALL {
                // Workers that have nothing to poll have no use for a policy.
                let policies = if context == Context::Softirq { &policies[..] } else { &[Policy::Other] };
                for policy in policies {
                    let load = self.load(setup, context, *policy, work, size);
                    cases.push(case(setup, load, runs));
                }
            }
        }
        let mut report = alternate("napi-context", None, self.common.rounds(), cases)?;
        let softirq = policies[0];
        for (setup, work, size) in loads {
            report.plots.push(plot(&report, setup, work, size));
        }
        if setups.contains(&Setup::Contended) {
            report.published = published::tables(&report, softirq);
            bounds(&mut report, Setup::Contended, softirq);
        }
        if setups.contains(&Setup::Hog) {
            bounds(&mut report, Setup::Hog, Policy::Other);
        }
        Ok(report)
    }

    /// Threads that compete.
    fn hungry(&self, setup: Setup) -> usize {
        match setup.hungry() {
            0 => 0,
            usual => self.hungry.map_or(usual, usize::from),
        }
    }

    fn load(&self, setup: Setup, context: Context, policy: Policy, work: u64, size: usize) -> Load {
        let cpu = self.common.cpu;
        Load {
            context,
            policy,
            workers: setup.workers(cpu),
            pins: setup.pins(cpu),
            hungry: self.hungry(setup),
            hungry_cpu: setup.hungry_cpu(cpu),
            flows: FLOWS,
            work: Duration::from_micros(work),
            size,
        }
    }
}

fn case(setup: Setup, load: Load, runs: usize) -> Case<'static> {
    let mut all = params(setup, load.policy, load.work.as_micros() as u64, load.size);
    all.extend([
        ("device", json!("mem")),
        ("context", json!(load.context.name())),
        ("load", json!("MAX")),
        ("flows", json!(load.flows)),
        ("queues", json!(load.workers.len())),
        ("hungry", json!(load.hungry)),
        ("pinned", json!(load.pins.is_some())),
    ]);
    let row = Row::new(load.context.name(), all);
    Case { row, measure: Box::new(move || load.measure(runs, WARM_UP, MEASURE)) }
}

/// States that polling in threads cuts the tail and keeps the rate, as published, for the smallest requests. `softirq` is
/// the policy of the workers that it is compared to.
fn bounds(report: &mut Report, setup: Setup, softirq: Policy) {
    let bounds = [
        (
            "p999_us",
            Bound::AtMost(0.5),
            "Polling in threads halves the tail of latency where CPUs are contended.",
        ),
        ("qps", Bound::AtLeast(0.95), "It keeps the rate."),
    ];
    for (figure, bound, meaning) in bounds {
        let of = |policy| params(setup, policy, WORKS[0], SIZES[0]);
        let (threaded, by) = (of(Policy::Other), of(softirq));
        if report.row_where("threaded", &threaded).is_none() {
            continue;
        }
        let ratio = report.ratio_where(("threaded", &threaded), ("softirq", &by), figure);
        let what = format!("threaded / softirq ({softirq}) {figure}, {}", setup.name());
        report.bound_value(what, ratio, bound).meaning(meaning);
    }
}

/// Latency by percentile, a curve for each context.
fn plot(report: &Report, setup: Setup, work: u64, size: usize) -> Plot {
    let policies = [Policy::Other, PREEMPTS];
    let curves = Context::ALL.into_iter().flat_map(|context| policies.map(|policy| (context, policy)));
    let curves = curves.map(|(context, policy)| {
        let name = match policy {
            Policy::Other => context.name().into(),
            policy => format!("{} ({policy})", context.name()),
        };
        (name, context.name(), params(setup, policy, work, size))
    });
    let title = format!("Latency, {}, {size} B, {work} µs of work", setup.name());
    latency_plot(report, title, curves)
}

/// Latency by percentile: of each curve its name, and the row that it is of by case and parameters.
fn latency_plot<'a, P: AsRef<[(&'static str, Value)]>>(
    report: &Report,
    title: String,
    curves: impl IntoIterator<Item = (String, &'a str, P)>,
) -> Plot {
    let mut series = Vec::new();
    for (name, case, params) in curves {
        let Some(row) = report.row_where(case, params.as_ref()) else { continue };
        let point = |(nines, figure): (f64, &str)| (nines, row.median(figure));
        let points = [(0.301, "p50_us"), (1.0, "p90_us"), (2.0, "p99_us"), (3.0, "p999_us")].map(point);
        series.push(Series { name, points: points.into(), dashed: false });
    }
    Plot {
        title,
        x_label: "nines of the percentile (1: p90, 2: p99, 3: p99.9)".into(),
        y_label: "µs".into(),
        log_y: true,
        series,
    }
}
