//! `softnet bench contexts-switch`: what it costs traffic that instances are switched between polling contexts.
//!
//! First as much as passes is sent, in a window, to know what that is; then 70 % of it, by the clock and whether it arrives
//! or not, while a queue or a device is switched every millisecond. [`load`] does that over [`mem`] or [`xdp`].
//!
//! **Verified** before a figure is printed: no flow goes back, and whatever is missing was counted by a ring or a socket
//! that had no room for it.

mod load;
mod machine;
mod mem;
#[cfg(test)]
mod tests;
mod xdp;

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::Common;
use super::harness::{Case, alternate};
use super::report::{Bound, Report, Row, Sample};
use load::Found;

/// The longest time for which no packet may come out while packets are offered.
const STALL_MS: f64 = 20.0;
/// A machine that lets a thread wait longer than this is said to have stalled.
const MACHINE_MS: f64 = 5.0;

#[derive(Args, Debug)]
pub(crate) struct ContextsSwitch {
    #[command(flatten)]
    pub(super) common: Common,
    /// What the packets come by and leave by
    #[arg(long, value_enum, default_value = "mem")]
    device: Device,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
enum Device {
    /// In-process wires
    Mem,
    /// AF_XDP on veth pairs, between kernel sockets (root)
    Xdp,
}

fn measure(device: Device, time: Duration) -> Result<Found, String> {
    match device {
        Device::Mem => load::run(mem::Mem::start()?, time),
        Device::Xdp => load::run(xdp::Xdp::start()?, time),
    }
}

fn sample(found: &Found) -> Sample {
    let mut took = found.switches.clone();
    took.sort();
    let us = |share: f64| {
        let at = (took.len() as f64 * share) as usize;
        took.get(at.min(took.len().saturating_sub(1))).map_or(0.0, |took| took.as_secs_f64() * 1e6)
    };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    vec![
        ("switches", took.len() as f64),
        ("switches_per_s", took.len() as f64 / found.time.as_secs_f64()),
        ("switch_p50_us", us(0.5)),
        ("switch_p99_us", us(0.99)),
        ("switch_max_us", us(1.0)),
        ("longest_stall_ms", ms(found.longest_stall)),
        ("longest_latency_ms", ms(found.longest_latency)),
        ("source_stall_ms", ms(found.source_stall)),
        ("machine_stall_ms", ms(found.machine.stall)),
        ("steal_ms", ms(found.machine.steal)),
        ("lost", found.lost as f64),
        ("reordered", found.reordered as f64),
        ("capacity_kpps", found.capacity / 1e3),
        ("load_kpps", found.sent as f64 / found.time.as_secs_f64() / 1e3),
    ]
}

impl ContextsSwitch {
    /// Runs the bench.
    pub(crate) fn run(&self) -> Result<Report, String> {
        let (device, common) = (self.device, &self.common);
        let time = Duration::from_secs(if common.quick { 3 } else { 10 });
        let name = if device == Device::Mem { "mem" } else { "xdp" };
        let params = vec![("device", json!(name)), ("load", json!(70)), ("seconds", json!(time.as_secs()))];
        let measure = Box::new(move || {
            let found = measure(device, time)?;
            if found.reordered > 0 {
                return Err(format!("{} packets came behind later ones of their flow", found.reordered));
            }
            Ok(sample(&found))
        });
        let cases = vec![Case { row: Row::new("switch", params), measure }];
        let mut report = alternate("contexts-switch", None, common.rounds_or(3, 1), cases)?;
        for row in &mut report.rows {
            let late = row.median("machine_stall_ms").max(row.median("steal_ms"));
            if late > MACHINE_MS {
                row.notes.push(format!("the machine let a thread that only sleeps wait for {late:.1} ms"));
            }
        }
        report
            .bound("switch", "longest_stall_ms", Bound::AtMost(STALL_MS))
            .meaning("Traffic goes on while queues are switched to another polling context.");
        Ok(report)
    }
}
