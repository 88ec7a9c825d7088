//! `softnet bench forward --device xdp`: forwarding between two veth pairs by AF_XDP, beside the kernel's.
//!
//! Cases, all measured in turn in one run, each between wires of its own:
//! * `softnet`: one worker on `--cpu`, routing;
//! * `plain`: the same worker and driver, but what comes in by one interface goes out by the other unseen: what
//!   AF_XDP on veth costs as such;
//! * `kernel`: IPv4 forwarding in softirq, which on veth runs within the sender's system call, on its CPU;
//! * `kernel-threaded`: the same by the kernel's NAPI thread, on `--cpu`.
//!
//! **Load.** Raw 64-byte UDP packets (256 destinations in one route) from another CPU. Each case is measured flat out,
//! and (`-half`) at half of what `plain` forwarded flat out in the warm-up, the same rate for all. Both are open loads:
//! the generator does not wait for the forwarder.
//!
//! **The generator is a limit, and says so.** On veth the sender's CPU also does the receiver's softirq: for the AF_XDP
//! cases the XDP program and the copy into packet memory. That takes about as long as the forwarder's own work, so flat
//! out both CPUs are about full. A sender flat out is never idle: all these rows are marked `generator-bound`, and
//! their loss tells whether the forwarder was at its limit too. As the generator may hide a difference between `softnet`
//! and `plain` in packets a second, the CPU time that the forwarder's own thread takes for a packet
//! (`worker_ns_per_packet`) is held against the same bound. In the `-half` rows the generator has time left, and CPU
//! shares compare at equal work.
//!
//! The softirq could be given to a NAPI thread on the forwarder's CPU, as in `kernel-threaded`. But then kernel and worker
//! take turns of milliseconds under overload: the thread copies packets into a ring that is not emptied meanwhile, most of
//! which are lost, and the figure says more about the scheduler than about either. So it is not done.
//!
//! **CPU time** is all that forwarding takes, on whichever CPU, counted alike for all: that of the forwarder's threads, with
//! the softirqs that run within them (the sink's among them, in all cases; the kernel's thread does the driver's
//! receiving), and that of softirqs on the generator's CPU, where it is the AF_XDP cases' receiving (veth, XDP program,
//! copy) and all that `kernel` does. The second is sampled by the timer tick, 10 ms at a time: over a second it is
//! right to about two points of a hundred.
//!
//! **Verified**: before anything is timed, each forwarder's packets byte for byte ([`check`]); after each
//! measurement, that every packet sent is accounted for ([`rig`]). A measurement during which others used the CPUs is
//! repeated; what could not be repeated often enough is noted.

mod check;
mod rig;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::time::Duration;

use serde_json::json;
use softnet_testkit::KernelNapi;

use super::Common;
use super::harness::{Case, alternate};
use super::report::{Bound, REFERENCE, Report, Row, Sample};
use rig::{Rig, Trial, Way};

/// Bytes of a packet, as in the rows of the emulated device.
const SIZE: u16 = super::templates::SIZE as u16;
/// A row whose generator had less of its time left than this is marked.
const IDLE_PERCENT: f64 = 20.0;
/// What threads may have waited for a CPU in a measurement that counts, as a share of its time: others had it.
const WAITED: f64 = 0.05;
/// Undisturbed measurements in the warm-up that find what `plain` can do, and measurements in all to get them.
const PROBES: usize = 3;
const MAX_PROBES: usize = 15;

/// How long measurements take.
#[derive(Clone, Copy)]
struct Times {
    warm: Duration,
    time: Duration,
}

/// One row: the forwarder, and the load.
struct Setup<'a> {
    case: &'static str,
    rig: &'a Rig,
    rate: Option<u64>,
}

impl Setup<'_> {
    fn row(&self) -> Row {
        let napi = match self.rig.way {
            Way::Kernel(KernelNapi::Threaded { .. }) => "threaded",
            _ => "softirq",
        };
        let load = self.rate.map_or(json!("MAX"), |_| json!(50));
        Row::new(
            self.case,
            vec![
                ("device", json!("xdp")),
                ("size", json!(SIZE)),
                ("context", json!(napi)),
                ("load", load),
                ("pinned", json!(true)),
            ],
        )
    }
}

/// Repeats what others disturbed, as long as there are repetitions left.
struct Patience {
    left: Cell<usize>,
    used: Cell<usize>,
}

impl Patience {
    fn measure(&self, setup: &Setup<'_>, times: Times) -> Result<Trial, String> {
        loop {
            let trial = setup.rig.measure(setup.rate, times.warm, times.time)?;
            if trial.waited <= WAITED || self.left.get() == 0 {
                return Ok(trial);
            }
            self.left.set(self.left.get() - 1);
            self.used.set(self.used.get() + 1);
        }
    }
}

fn sample(trial: &Trial) -> Sample {
    let per_packet = |cpu: f64| if trial.rate > 0.0 { 1e9 * cpu / trial.rate } else { 0.0 };
    let cpu = trial.worker + trial.softirq;
    vec![
        ("mpps", trial.rate / 1e6),
        ("offered_mpps", trial.offered / 1e6),
        ("loss_percent", 100.0 * trial.loss),
        ("generator_idle_percent", 100.0 * trial.idle),
        ("cpu_percent", 100.0 * cpu),
        ("softirq_percent", 100.0 * trial.softirq),
        ("cpu_ns_per_packet", per_packet(cpu)),
        ("worker_ns_per_packet", per_packet(trial.worker)),
        ("waited_percent", 100.0 * trial.waited),
    ]
}

/// Runs the bench.
pub(super) fn run(common: &Common) -> Result<Report, String> {
    let cpus = super::cpus();
    let cpu = common.cpu;
    if !cpus.contains(&cpu) {
        return Err(format!("--cpu {cpu}: CPUs here: {cpus:?}"));
    }
    let Some(source_cpu) = cpus.iter().copied().find(|other| *other != cpu) else {
        return Err("forward --device xdp needs two CPUs: one forwards, one generates".into());
    };
    let times = match common.quick {
        true => Times { warm: Duration::from_millis(60), time: Duration::from_millis(300) },
        false => Times { warm: Duration::from_millis(200), time: Duration::from_secs(1) },
    };
    let rig = |way| {
        let rig = Rig::new(way, cpu, source_cpu)?;
        check::check(&rig).map_err(|error| format!("{way:?}: {error}"))?;
        Ok::<_, String>(rig)
    };
    let softnet = rig(Way::Routed)?;
    let plain = rig(Way::Plain)?;
    let kernel = rig(Way::Kernel(KernelNapi::Softirq))?;
    let threaded = rig(Way::Kernel(KernelNapi::Threaded { cpu }))?;

    let half = Some(capacity(&plain, times)? / 2);
    let setup = |case, rig, rate| Setup { case, rig, rate };
    let setups = [
        setup("softnet", &softnet, None),
        setup("plain", &plain, None),
        setup("kernel", &kernel, None),
        setup("kernel-threaded", &threaded, None),
        setup("softnet-half", &softnet, half),
        setup("plain-half", &plain, half),
        setup("kernel-half", &kernel, half),
        setup("kernel-threaded-half", &threaded, half),
    ];
    let rounds = common.rounds();
    let patience = Patience { left: Cell::new(2 * rounds * setups.len()), used: Cell::new(0) };
    let cases = setups
        .iter()
        .map(|setup| Case {
            row: setup.row(),
            measure: Box::new(|| Ok(sample(&patience.measure(setup, times)?))),
        })
        .collect();
    let mut report = alternate("forward", Some(cpu), rounds, cases)?;
    report.repeated = report.repeated.map(|n| n + patience.used.get());
    annotate(&mut report);
    state_bounds(&mut report);
    Ok(report)
}

/// Packets a second that `plain` forwards flat out.
fn capacity(plain: &Rig, times: Times) -> Result<u64, String> {
    let mut best = 0.0f64;
    let mut undisturbed = 0;
    for _ in 0..MAX_PROBES {
        let trial = plain.measure(None, times.warm, times.time)?;
        best = best.max(trial.rate);
        undisturbed += usize::from(trial.waited <= WAITED);
        if undisturbed == PROBES {
            break;
        }
    }
    if best < 2.0 {
        return Err("plain: nothing was forwarded in the warm-up".into());
    }
    Ok(best as u64)
}

fn annotate(report: &mut Report) {
    for row in &mut report.rows {
        if row.median("generator_idle_percent") < IDLE_PERCENT {
            row.notes.push("generator-bound".into());
        }
        if row.median("waited_percent") > 100.0 * WAITED {
            row.notes.push("disturbed by other programs".into());
        }
    }
}

fn state_bounds(report: &mut Report) {
    report
        .bound("plain", "mpps", Bound::AtLeast(0.40))
        .on(&REFERENCE)
        .meaning("What AF_XDP carries over veth without routing: less means that the machine was not quiet.");
    let ratio = report.ratio("softnet", "plain", "mpps");
    report
        .bound_value("softnet / plain mpps, by round".into(), ratio, Bound::AtLeast(0.9))
        .meaning("Routing takes no more than a tenth of the rate.");
    // Packets by CPU time are the inverse of CPU time by packets.
    let ratio = report.ratio("plain", "softnet", "worker_ns_per_packet");
    report
        .bound_value(
            "softnet / plain packets per CPU time of the worker, by round".into(),
            ratio,
            Bound::AtLeast(0.9),
        )
        .meaning("Routing takes no more than a tenth of the worker's time.");
}
