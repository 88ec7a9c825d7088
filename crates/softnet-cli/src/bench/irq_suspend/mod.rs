//! `softnet bench irq-suspend`: what it gains to leave a queue's doorbell masked while an application keeps taking its
//! packets.

mod cases;
mod measure;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use softnet::context::Context;
use softnet_dev::sched::Policy;

use super::echo::{Bed, Load, Setup};
use super::harness::{self, alternate};
use super::report::{Report, Row, Sample};
use super::{Common, cpus, pin};
use cases::{CASES, Case};
use measure::{Application, Times, measure};

pub(crate) const HELP: &str = "x";

#[derive(Args, Debug)]
pub(crate) struct IrqSuspend {
    #[command(flatten)]
    pub(super) common: Common,
    /// What the requests come by
    #[arg(long, value_enum, default_value = "mem")]
    device: Device,
    /// µs of computing on each request
    #[arg(long, value_name = "µs", default_value_t = 1.0)]
    work_us: f64,
    /// Only this case (may be repeated); base is always among them
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<String>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
enum Device {
    /// An emulated NIC
    Mem,
}

/// Flows of the closed load.
const FLOWS: usize = 500;
/// Bytes of payload.
const PAYLOAD: usize = 64;

/// Of base's maximum, in percent; or as much as possible.
#[derive(Clone, Copy, PartialEq)]
enum Offered {
    Max,
    Percent(u32),
}

impl Offered {
    fn value(self) -> Value {
        match self {
            Offered::Max => json!("MAX"),
            Offered::Percent(percent) => json!(percent),
        }
    }
}

impl IrqSuspend {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let cpu = self.common.cpu;
        let client_cpu = cpus().into_iter().find(|other| *other != cpu).ok_or("two CPUs are needed")?;
        let times = match self.common.quick {
            true => Times { warm_up: Duration::from_millis(50), measure: Duration::from_millis(300) },
            false => Times { warm_up: Duration::from_millis(200), measure: Duration::from_millis(1500) },
        };
        let wanted = |case: &&Case| {
            case.name == "base"
                || if self.cases.is_empty() {
                    case.quick || !self.common.quick
                } else {
                    self.cases.iter().any(|c| c == case.name)
                }
        };
        let cases: Vec<&Case> = CASES.iter().filter(wanted).collect();
        let mut beds: BTreeMap<String, RefCell<Bed>> = BTreeMap::new();
        let key = |case: &Case| format!("{:?} {}", case.coalesce, case.fair);
        for case in &cases {
            let policy = if case.fair { None } else { Some(Policy::Fifo(1)) };
            let setup =
                Setup { cpu, policy, payload: PAYLOAD, context: Context::Softirq, coalesce: case.coalesce };
            if !beds.contains_key(&key(case)) {
                beds.insert(key(case), RefCell::new(Bed::mem(&setup)?));
            }
        }
        pin(client_cpu)?;
        let application = Application { work: Duration::from_nanos((self.work_us * 1000.0) as u64), cpu };
        let loads: &[Offered] = &[
            Offered::Max,
            Offered::Percent(20),
            Offered::Percent(60),
            Offered::Percent(80),
            Offered::Percent(102),
        ];
        let capacity = Cell::new(0.0);
        let mut rows = Vec::new();
        for load in loads {
            for case in &cases {
                let bed = &beds[&key(case)];
                let row = Row::new(case.name, vec![("device", json!("mem")), ("load", load.value())]);
                let capacity = &capacity;
                let measure = Box::new(move || -> Result<Sample, String> {
                    let applied = match load {
                        Offered::Max => Load::Closed { flows: FLOWS },
                        Offered::Percent(percent) => {
                            Load::Open { rate: capacity.get() * f64::from(*percent) / 100.0 }
                        }
                    };
                    let sample = measure(&mut bed.borrow_mut(), case, application, applied, times)?;
                    if case.name == "base" && *load == Offered::Max {
                        capacity.set(sample[0].1);
                    }
                    Ok(sample)
                });
                rows.push(harness::Case { row, measure });
            }
        }
        alternate("irq-suspend", None, self.common.rounds_or(7, 3), rows)
    }
}
