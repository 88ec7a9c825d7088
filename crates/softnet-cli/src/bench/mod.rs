//! `softnet bench`: measurements that anyone can repeat.

mod forward;
mod forward_xdp;
mod harness;
mod idle;
mod skb_cache;
mod templates;

use clap::{Args, Subcommand};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::Failure;
use harness::Report;

/// What every bench takes.
#[derive(Args, Debug, Clone)]
pub(crate) struct Common {
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Fewer and shorter rounds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Exit with 1 if a stated bound is missed
    #[arg(long)]
    pub(crate) check: bool,
    /// Rounds to take the median of [default: 7, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// CPU to measure on
    #[arg(long, default_value_t = 0)]
    pub(crate) cpu: usize,
}

impl Common {
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.map_or(if self.quick { 3 } else { 7 }, usize::from)
    }
}

/// The benches.
#[derive(Subcommand, Debug)]
pub(crate) enum Bench {
    /// Packets per second that one worker forwards, by size of the routing table
    Forward(forward::Forward),
    /// What a router costs while nothing happens
    Idle(idle::Idle),
    /// Cost of allocating and freeing packet buffers
    SkbCache(skb_cache::SkbCache),
}

impl Bench {
    /// Runs the bench and prints its report.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if cfg!(debug_assertions) {
            eprintln!("softnet: this is a debug build; its figures mean nothing (use cargo run --release)");
        }
        let (common, report): (&Common, Report) = match self {
            Bench::Forward(b) => (&b.common, b.run().map_err(Failure::Run)?),
            Bench::Idle(b) => (&b.common, b.run().map_err(Failure::Run)?),
            Bench::SkbCache(b) => (&b.common, b.run().map_err(Failure::Run)?),
        };
        report.print(common.json);
        if common.check && !report.holds() { Err(Failure::Told) } else { Ok(()) }
    }
}

/// CPUs that are online.
pub(crate) fn cpus() -> usize {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    info.lines().filter(|line| line.starts_with("processor")).count()
}

/// Pins the calling thread to `cpu` and returns it.
pub(crate) fn pin(cpu: usize) -> Result<usize, String> {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(format!("--cpu {cpu}: there are {} CPUs", cpus()));
    }
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|e| format!("--cpu {cpu}: {e}; there are {} CPUs", cpus()))?;
    Ok(cpu)
}
