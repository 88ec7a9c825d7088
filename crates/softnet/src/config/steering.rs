//! What is set for RX queues, by the kernel's names, and the plans that follow from it.
//!
//! Remembered for a device while its interface comes and goes.

use std::collections::BTreeMap;

use softnet_core::steer::Plan;

use super::{CpuList, DeviceConfig, SteeringMode};

/// What is set for an RX queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueKnobs {
    /// The CPU whose worker all is handed off to.
    pub(crate) processing_cpu: Option<u32>,
    /// The CPUs over whose workers flows are spread.
    pub(crate) rps_cpus: Vec<u32>,
    /// Entries of the queue's flow table; 0: flows do not follow their consumers.
    pub(crate) rps_flow_cnt: u32,
    /// Whether a plan is chosen automatically, if the two above set none.
    pub(crate) steering: SteeringMode,
}

/// Why knobs make no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KnobError {
    /// No worker is on a CPU.
    #[error("{knob}: expected CPUs that have a worker ({workers}), found {cpu}")]
    NoWorker {
        /// The knob.
        knob: &'static str,
        /// The CPU.
        cpu: u32,
        /// Those that have one.
        workers: String,
    },
    /// Two that exclude each other.
    #[error(
        "expected one of processing_cpu and rps_cpus, found both: packets go to one worker or to several"
    )]
    Both,
    /// Not a list of CPUs, or not a CPU.
    #[error("{knob}: {why}")]
    Value {
        /// The knob.
        knob: &'static str,
        /// What is wrong.
        why: String,
    },
}

impl QueueKnobs {
    /// What `device` has for RX queue `queue`.
    pub(crate) fn of(device: &DeviceConfig, queue: u16) -> Self {
        QueueKnobs {
            processing_cpu: device.processing_cpu.get(queue).copied(),
            rps_cpus: device.rps_cpus.get(queue).map_or_else(Vec::new, |CpuList(cpus)| cpus.clone()),
            rps_flow_cnt: device.rps_flow_cnt.get(queue).copied().unwrap_or(0),
            steering: device.steering,
        }
    }

    /// Whether the plan is chosen automatically.
    pub(crate) fn is_automatic(&self) -> bool {
        self.steering == SteeringMode::Auto && self.processing_cpu.is_none() && self.rps_cpus.is_empty()
    }

    /// The plan, for workers on these CPUs.
    pub(crate) fn plan(&self, workers: &[u32]) -> Result<Plan, KnobError> {
        let worker = |knob: &'static str, cpu: u32| {
            let at = workers.iter().position(|of| *of == cpu).map(|worker| worker as u16);
            at.ok_or_else(|| {
                let workers = workers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                KnobError::NoWorker { knob, cpu, workers }
            })
        };
        match self.processing_cpu {
            Some(_) if !self.rps_cpus.is_empty() => Err(KnobError::Both),
            Some(cpu) => Ok(Plan::HandOff(worker("processing_cpu", cpu)?)),
            None if self.rps_cpus.is_empty() => Ok(Plan::None),
            None => {
                let mut to: Vec<u16> =
                    self.rps_cpus.iter().map(|cpu| worker("rps_cpus", *cpu)).collect::<Result<_, _>>()?;
                to.sort_unstable();
                to.dedup();
                Ok(Plan::Rps { workers: to.into(), flows: self.rps_flow_cnt })
            }
        }
    }

    /// How a queue with `plan` is steered, as `softnet show steering` has it.
    pub(crate) fn mode(&self, plan: &Plan) -> String {
        let mode = match plan {
            Plan::None => "none",
            Plan::HandOff(_) => "hand-off",
            Plan::Rps { flows: 0, .. } => "rps",
            Plan::Rps { .. } => "rps+rfs",
        };
        if self.is_automatic() { format!("auto: {mode}") } else { mode.into() }
    }

    /// What keeps a knob that is set from acting; `rfs`: sockets note where flows are consumed.
    pub(crate) fn warning(&self, rfs: bool) -> Option<&'static str> {
        let spreads = !self.rps_cpus.is_empty() || self.is_automatic();
        match (self.rps_flow_cnt > 0, !spreads, rfs) {
            (true, true, _) => Some("rps_flow_cnt has no effect without rps_cpus"),
            (true, false, false) => {
                Some("rps_flow_cnt has no effect while rps_sock_flow_entries of the stack is 0")
            }
            _ => None,
        }
    }
}

/// What is set for the RX queues of a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct SteeringSettings {
    /// For queues that nothing else is set for while softnet runs.
    config: Option<Box<DeviceConfig>>,
    all: Option<QueueKnobs>,
    queues: BTreeMap<u16, QueueKnobs>,
}

impl SteeringSettings {
    /// As configured.
    pub(crate) fn new(device: &DeviceConfig) -> Self {
        SteeringSettings { config: Some(Box::new(device.clone())), ..SteeringSettings::default() }
    }

    /// Whether a plan may be chosen automatically.
    pub(crate) fn may_be_automatic(&self) -> bool {
        self.config.as_ref().is_none_or(|config| config.steering == SteeringMode::Auto)
    }

    /// What is set for RX queue `queue`.
    pub(crate) fn get(&self, queue: u16) -> QueueKnobs {
        let set = self.queues.get(&queue).or(self.all.as_ref()).cloned();
        set.or_else(|| Some(QueueKnobs::of(self.config.as_deref()?, queue))).unwrap_or_default()
    }

    /// Changes it for one queue, or for all, of which there are `queues` now. Others that there may
    /// be in another life get what the first has.
    pub(crate) fn change(
        &mut self,
        queue: Option<u16>,
        queues: u16,
        change: impl Fn(QueueKnobs) -> Result<QueueKnobs, KnobError>,
    ) -> Result<(), KnobError> {
        let Some(queue) = queue else {
            let of = |queue| Ok((queue, change(self.get(queue))?));
            let all = change(self.get(0))?;
            self.queues = (0..queues).map(of).collect::<Result<_, _>>()?;
            self.all = Some(all);
            return Ok(());
        };
        let knobs = change(self.get(queue))?;
        self.queues.insert(queue, knobs);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PerQueue;

    fn knobs(rps_cpus: &[u32], rps_flow_cnt: u32) -> QueueKnobs {
        QueueKnobs { rps_cpus: rps_cpus.to_vec(), rps_flow_cnt, ..QueueKnobs::default() }
    }

    #[test]
    fn what_is_set_for_a_device_changes_each_queue() {
        let device = DeviceConfig {
            rps_cpus: PerQueue::Each(vec![CpuList(vec![3]), CpuList(vec![4])]),
            ..DeviceConfig::new("d")
        };
        let mut settings = SteeringSettings::new(&device);
        let flows = |n| move |old: QueueKnobs| Ok(QueueKnobs { rps_flow_cnt: n, ..old });
        settings.change(Some(1), 3, flows(8)).unwrap();
        assert_eq!(
            [0, 1, 2].map(|queue| settings.get(queue)),
            [knobs(&[3], 0), knobs(&[4], 8), knobs(&[], 0)]
        );
        settings.change(None, 3, flows(16)).unwrap();
        let all = [knobs(&[3], 16), knobs(&[4], 16), knobs(&[], 16), knobs(&[3], 16)];
        assert_eq!([0, 1, 2, 3].map(|queue| settings.get(queue)), all);
        assert_eq!(settings.change(None, 3, |_| Err(KnobError::Both)), Err(KnobError::Both));
        assert_eq!([0, 1, 2, 3].map(|queue| settings.get(queue)), all);
    }

    #[test]
    fn plans() {
        let plan = |processing_cpu, rps_cpus: &[u32]| {
            QueueKnobs { processing_cpu, ..knobs(rps_cpus, 16) }.plan(&[5, 7, 9])
        };
        assert_eq!(plan(None, &[]), Ok(Plan::None));
        assert_eq!(plan(Some(9), &[]), Ok(Plan::HandOff(2)));
        assert_eq!(plan(None, &[9, 5, 9]), Ok(Plan::Rps { workers: [0, 2].into(), flows: 16 }));
        assert_eq!(plan(Some(9), &[5]), Err(KnobError::Both));
        let none = |knob, cpu| KnobError::NoWorker { knob, cpu, workers: "5, 7, 9".into() };
        assert_eq!(plan(Some(6), &[]), Err(none("processing_cpu", 6)));
        assert_eq!(plan(None, &[5, 6]), Err(none("rps_cpus", 6)));
    }
}
