//! `softnet bench rx-handoff`: one RX queue brings more than one CPU can carry.
//!
//! A router forwards between two emulated NICs, and each packet costs a fixed computation on its
//! way. Four routers take turns: one worker alone, hand-off to a second worker, flows spread over
//! both (RPS), and the automatic choice. The load is a share of what the one worker alone carried
//! in the warm-up, the same for all.
//!
//! **Verified**: every packet offered is accounted for, and none comes out behind a later one of its flow.

mod kernel;
mod rig;
mod service;
mod wire;

use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::Common;
use super::harness::{Case, alternate};
use super::offer::Pace;
use super::report::{Bound, Published, Report, Row, Sample};
use kernel::{Kernel, Steer};
use rig::{FILL, Rig, Trial, Way};
use service::Service;

pub(super) const HELP: &str = "\
What each packet costs is computed: --receive for what a driver does to collect it, --service for its way, like the look-ups
and changes of a router with connection tracking. What softnet itself does comes on top.

  single    one worker does everything
  handoff   one worker only collects, and hands whole lists to another (processing_cpu)
  rps       flows are spread over both workers by their hash (rps_cpus)
  auto      softnet chooses (steering = \"auto\"): it should be as good as the best of the others, at every load

With --peer kernel, at MAX, also the kernel's own router, packets brought to it as a driver's poll brings them, with the same
costs (by BPF programs) and nothing to transmit to: kernel-single; kernel-handoff, its RPS to the other CPU; kernel-rps, to
both. Its backlogs are as long as net.core.netdev_max_backlog says.

steered_percent says how many packets went to a worker's backlog, so what `auto` chose. load is a share of what `single` carries. idle_percent is the collecting worker's idle time; latency counts from when a packet
should have come, and says nothing where loss_percent is not 0: then it is that of a full ring.

Hand-off to one worker gains at most (receive + service) / max(receive, service): little where service is dear, and then RPS
gains more. The thread that offers packets takes its time from both CPUs, from the second one's mostly idle time with `single`;
with load MAX it takes next to none: the ring is always full, and what one worker collects and the other can't take is lost.

Examples:
  softnet bench rx-handoff --quick                       a minute
  softnet bench rx-handoff --service 200 --service 2000 --report handoff.html
  softnet bench rx-handoff --json | jq '.rows[] | {case, load, mpps, p99_us}'";

#[derive(Args, Debug)]
pub(crate) struct RxHandoff {
    #[command(flatten)]
    pub(super) common: Common,
    /// What a packet costs on its way, in ns (may be repeated) [default: 200, 1000; with --quick 200]
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u32).range(10..=100_000))]
    service: Vec<u32>,
    /// What a driver does for each packet that it collects, in ns
    #[arg(long, value_name = "NS", default_value_t = 150, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    receive: u32,
    /// Only this load, in percent of what one worker carries, or MAX (may be repeated)
    #[arg(long, value_name = "PERCENT")]
    load: Vec<Load>,
    /// Compare with another router beside it
    #[arg(long)]
    peer: Option<Peer>,
}

/// What it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    /// The kernel's, with its own RPS (needs root)
    Kernel,
}

/// How much comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Percent of what one worker carries.
    Percent(u32),
    /// The ring is always full.
    Max,
}

const LOADS: [Load; 7] = [
    Load::Percent(10),
    Load::Percent(50),
    Load::Percent(75),
    Load::Percent(90),
    Load::Percent(110),
    Load::Percent(150),
    Load::Max,
];
const QUICK_LOADS: [Load; 4] = [Load::Percent(50), Load::Percent(90), Load::Percent(150), Load::Max];

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(percent @ 1..=400) => Ok(Load::Percent(percent)),
            _ if text.eq_ignore_ascii_case("max") => Ok(Load::Max),
            _ => Err("expected 1 to 400 percent, or MAX".into()),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Percent(percent) => write!(f, "{percent}"),
            Load::Max => f.write_str("MAX"),
        }
    }
}

impl Load {
    fn json(self) -> Value {
        match self {
            Load::Percent(percent) => json!(percent),
            Load::Max => json!("MAX"),
        }
    }

    /// This load where one worker carries `capacity` packets a second.
    fn pace(self, capacity: f64) -> Pace {
        match self {
            Load::Percent(percent) => Pace::Pps(capacity * f64::from(percent) / 100.0),
            Load::Max => Pace::Full(FILL),
        }
    }
}

/// What was given, or what is usual.
fn or<T: Clone>(given: &[T], usual: &[T]) -> Vec<T> {
    if given.is_empty() { usual.to_vec() } else { given.to_vec() }
}

fn sample(trial: &Trial) -> Sample {
    let ns = trial.seconds * 1e9;
    let came = (trial.offered + trial.refused).max(1) as f64;
    let cpu: u64 = trial.cpu_ns.iter().sum();
    let collector = trial.cpu_ns.first().copied().unwrap_or(0) as f64;
    let mut sample = vec![
        ("mpps", trial.out as f64 / trial.seconds / 1e6),
        ("loss_percent", (100.0 * (1.0 - trial.out as f64 / came)).max(0.0)),
    ];
    let latency = trial.latency.figures();
    sample.extend(latency.into_iter().filter(|(name, _)| ["p50_us", "p99_us", "p999_us"].contains(name)));
    sample.extend([
        ("cpu_percent", 100.0 * cpu as f64 / ns),
        ("idle_percent", (100.0 * (1.0 - collector / ns)).max(0.0)),
        ("wakeups_per_s", trial.wakeups as f64 / trial.seconds),
        ("steered_percent", 100.0 * trial.steered as f64 / trial.offered.max(1) as f64),
    ]);
    sample
}

impl RxHandoff {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let cpus = super::cpus();
        let cpu = self.common.cpu;
        let other = cpus.iter().copied().find(|other| *other != cpu);
        let Some(other) = other.filter(|_| cpus.contains(&cpu)) else {
            return Err(format!("rx-handoff needs two CPUs, one of them --cpu {cpu}; CPUs here: {cpus:?}"));
        };
        let quick = self.common.quick;
        let services = or(&self.service, if quick { &[200] } else { &[200, 1000] });
        let loads = or(&self.load, if quick { &QUICK_LOADS[..] } else { &LOADS });
        let ms = |quick_ms, usual| Duration::from_millis(if quick { quick_ms } else { usual });
        // Long enough for the automatic choice to have been made.
        let (warm, time) = (ms(600, 800), ms(500, 1000));
        let mut rigs = Vec::new();
        for ns in &services {
            let costs = [self.receive, *ns].map(|ns| Service::new(f64::from(ns)));
            let mut capacity = 0.0;
            for way in Way::ALL {
                let mut rig = Rig::start(way, [cpu as u32, other as u32], costs)?;
                if way == Way::Single {
                    let trial = rig.measure(Pace::Full(FILL), ms(300, 500), ms(500, 1000))?;
                    capacity = trial.out as f64 / trial.seconds;
                }
                rigs.push((way, *ns, capacity, RefCell::new(rig)));
            }
        }
        let mut kernels = Vec::new();
        if self.peer == Some(Peer::Kernel) {
            for ns in &services {
                for steer in Steer::ALL {
                    kernels.push((steer, *ns, Kernel::start(steer, [cpu, other], [self.receive, *ns])?));
                }
            }
        }
        let mut cases = Vec::new();
        for load in &loads {
            let row = |case: &'static str, ns: &u32, device: &str| {
                Row::new(
                    case,
                    vec![
                        ("receive_ns", json!(self.receive)),
                        ("service_ns", json!(ns)),
                        ("load", load.json()),
                        ("device", json!(device)),
                    ],
                )
            };
            for (steer, ns, kernel) in kernels.iter().filter(|_| *load == Load::Max) {
                let measure = move || kernel.measure(warm, time);
                cases.push(Case { row: row(steer.name(), ns, "veth"), measure: Box::new(measure) });
            }
            for (way, ns, capacity, rig) in &rigs {
                let row = row(way.name(), ns, "mem");
                let pace = load.pace(*capacity);
                let measure = move || rig.borrow_mut().measure(pace, warm, time).map(|trial| sample(&trial));
                cases.push(Case { row, measure: Box::new(measure) });
            }
        }
        let mut report = alternate("rx-handoff", None, self.common.rounds_or(5, 3), cases)?;
        for (way, ns, _, rig) in rigs {
            rig.into_inner().end().map_err(|error| format!("{}, {ns} ns: {error}", way.name()))?;
        }
        report.leading =
            &["mpps", "loss_percent", "p50_us", "p99_us", "cpu_percent", "idle_percent", "wakeups_per_s"];
        report.explained = HELP;
        for ns in &services {
            let which = |load: &Load| [("service_ns", json!(ns)), ("load", load.json())];
            for load in &loads {
                let params = which(load);
                let ratio = |by: &str| report.ratio_where(("auto", &params), (by, &params), "mpps");
                let worst = ["single", "handoff", "rps"].map(ratio).into_iter().fold(f64::INFINITY, f64::min);
                report
                    .bound_value(
                        format!("auto ÷ best, {ns} ns, load {load}: mpps"),
                        worst,
                        Bound::AtLeast(0.97),
                    )
                    .meaning("The automatic choice carries what the best fixed one does.");
            }
            // Elsewhere one other worker can't carry so much.
            let splits = *ns <= 2 * self.receive && self.receive <= 2 * *ns;
            if splits && loads.contains(&Load::Max) {
                let params = which(&Load::Max);
                let gain = report.ratio_where(("handoff", &params), ("single", &params), "mpps");
                report
                    .bound_value(format!("handoff ÷ single, {ns} ns, load MAX: mpps"), gain, Bound::AtLeast(1.43))
                    .meaning("A worker that only collects, and another one, carry this many times what one alone does.");
            }
        }
        report.published.push(Published {
            source: "Zhang, \"net: hand off skb list to other cpu\", netdev 2009: forwarding, 2 × 4 cores (Nehalem), 10 Gbit/s",
            columns: &["case", "forwarded", "collecting CPU idle"],
            rows: [["single", "1", "0 %"], ["handoff", "1.43", "50 %"]].map(|row| row.map(String::from).to_vec()).to_vec(),
        });
        Ok(report)
    }
}
