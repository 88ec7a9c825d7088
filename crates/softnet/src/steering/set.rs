//! Settings of steering as users change them. For the housekeeper.

use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::steer::Plan;
use softnet_core::steer::rfs::FlowTable;

use crate::config::{CpuList, KnobError, QueueKnobs};
use crate::control::{ControlError, SetSteering, Target};
use crate::napi::NapiInstance;
use crate::stack::StackInner;
use crate::util::{lock, warn};

impl SetSteering {
    /// `knobs`, changed by this.
    fn over(&self, mut knobs: QueueKnobs) -> Result<QueueKnobs, KnobError> {
        let is_none = |text: &str| matches!(text.trim(), "" | "none");
        if let Some(text) = &self.processing_cpu {
            let knob = "processing_cpu";
            let cpu = || text.trim().parse().map_err(|_| format!("expected a CPU or none, found {text:?}"));
            let value = |why| KnobError::Value { knob, why };
            knobs.processing_cpu = if is_none(text) { None } else { Some(cpu().map_err(value)?) };
        }
        if let Some(text) = &self.rps_cpus {
            let list = if is_none(text) { Ok(CpuList::default()) } else { text.parse::<CpuList>() };
            let value =
                |why: crate::config::ParseError| KnobError::Value { knob: "rps_cpus", why: why.to_string() };
            knobs.rps_cpus = list.map_err(value)?.0;
        }
        if let Some(mode) = self.steering {
            knobs.steering = mode;
        }
        if let Some(flows) = self.rps_flow_cnt {
            let max = FlowTable::MAX;
            if flows > max {
                let why = format!("expected a number from 0 to {max}, found {flows}");
                return Err(KnobError::Value { knob: "rps_flow_cnt", why });
            }
            knobs.rps_flow_cnt = flows;
        }
        Ok(knobs)
    }
}

impl StackInner {
    /// Gives an instance that was not enabled yet the plan that was set for its queue.
    pub(crate) fn steer_as_set(&self, instance: &NapiInstance) {
        let Some(dev) = self.devices.get(usize::from(instance.napi.dev)) else { return };
        let knobs = lock(&dev.steering).get(instance.napi.queue);
        let plan = knobs.plan(self.backlogs.cpus()).unwrap_or_else(|error| {
            warn(format_args!("{} does not steer: {error}", instance.napi.name));
            Plan::None
        });
        instance.steering.replace(plan, self.workers.len());
    }

    /// Changes steering as `set` says, and remembers that. Returns the ids of the instances it was
    /// about. The error says what is wrong, and then nothing changed.
    pub(crate) fn set_steering(
        &self,
        ctx: &mut SoftnetData,
        set: &SetSteering,
    ) -> Result<Vec<u32>, ControlError> {
        let (dev, instances) = self.find(&set.target)?;
        let queue = match (&set.target, &instances[..]) {
            (Target::Napi(_), [instance]) => Some(instance.napi.queue),
            _ => None,
        };
        let cpus = self.backlogs.cpus();
        let plans = {
            let mut settings = lock(&dev.steering);
            let mut next = settings.clone();
            next.change(queue, instances.len() as u16, |knobs| {
                let knobs = set.over(knobs)?;
                knobs.plan(cpus).map(|_| knobs)
            })?;
            let before = std::mem::replace(&mut *settings, next);
            let plan = |instance: &Arc<NapiInstance>| {
                let (before, now) = (before.get(instance.napi.queue), settings.get(instance.napi.queue));
                // What was chosen stays, until the next look.
                let goes_on = before.is_automatic() && now.is_automatic();
                (!goes_on).then(|| now.plan(cpus).unwrap_or_default())
            };
            if instances.iter().any(|instance| settings.get(instance.napi.queue).is_automatic()) {
                self.enable_auto();
            }
            instances.iter().map(|instance| (instance, plan(instance))).collect::<Vec<_>>()
        };
        for (instance, plan) in plans {
            let plan = plan.unwrap_or_else(|| self.with_flows(instance, instance.steering.plan()));
            self.set_plan(ctx, instance, plan);
        }
        Ok(instances.iter().map(|instance| instance.napi.id).collect())
    }
}
