//! The automatic choice at work: from samples of what queues bring it has the [policy] choose, and carries that out.
//!
//! Part of the housekeeper. It looks at nothing until a poll was full, and again at nothing when
//! all queues have been quiet for a while: so it does not wake an idle machine.
//!
//! Invariant: it changes only queues for which nothing is set, each under the rule of
//! [`set_plan`](StackInner::set_plan).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use softnet_core::SoftnetData;
use softnet_core::steer::Plan;
use softnet_core::steer::policy::{Decision, Machine, Policy, QueueLoad, SLICES, Why, spent};
use softnet_core::sync::Ordering;
use softnet_dev::topology::places;

use super::wake_cost;
use crate::napi::{Chosen, Home, NapiInstance};
use crate::stack::StackInner;
use crate::util::{lock, thread_cpu_ns};

/// How often it looks, in ns.
const INTERVAL: u64 = Duration::from_millis(100).as_nanos() as u64;
/// Looks that find all queues quiet, after which it looks no more.
const QUIET: u32 = 10;
/// Share of its worker below which a queue is quiet.
const LITTLE: f64 = 0.3;
/// How much of an estimate each look replaces.
const NEW: f64 = 0.4;

/// Counters of an instance when it was last looked at.
#[derive(Clone, Copy)]
struct Seen {
    packets: u64,
    /// Packets that found no place in the device's ring.
    lost: u64,
    polls: u64,
    sampled: u64,
    receive_ns: u64,
    service_ns: u64,
    /// Packets that were sampled where they were steered to, and ns that they took there.
    steered: (u64, u64),
    slices: [u64; SLICES],
}

impl Seen {
    fn of(shared: &StackInner, instance: &NapiInstance) -> Self {
        let (stats, samples) = (&instance.napi.stats, &instance.samples);
        Seen {
            packets: stats.packets.get(),
            lost: shared.ring_drops(instance),
            polls: stats.polls.get().saturating_sub(stats.empty_polls.get()),
            sampled: samples.packets.get(),
            receive_ns: samples.receive_ns.get(),
            service_ns: samples.service_ns.get(),
            steered: samples.steered(),
            slices: samples.slices(),
        }
    }
}

/// Estimates for an instance.
#[derive(Clone, Copy, Default)]
struct Costs {
    receive_ns: f64,
    service_ns: f64,
}

impl Costs {
    /// Takes in what was measured since, as far as anything was, of a queue that was `steered`
    /// or not. What the queue's own thread spends on packets that are steered is for handing them
    /// over; their own cost arises where they go.
    fn update(&mut self, before: &Seen, now: &Seen, steered: bool) {
        let mix = |old: &mut f64, sum: u64, n: u64| {
            if n > 0 {
                let new = sum as f64 / n as f64;
                *old = if *old == 0.0 { new } else { *old + NEW * (new - *old) };
            }
        };
        let sampled = now.sampled.saturating_sub(before.sampled);
        mix(&mut self.receive_ns, now.receive_ns.saturating_sub(before.receive_ns), sampled);
        let ((n, ns), (n_before, ns_before)) = (now.steered, before.steered);
        match steered {
            true => mix(&mut self.service_ns, ns.saturating_sub(ns_before), n.saturating_sub(n_before)),
            false => mix(&mut self.service_ns, now.service_ns.saturating_sub(before.service_ns), sampled),
        }
    }
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Auto {
    machine: Option<Machine>,
    policy: Policy,
    /// By NAPI id.
    seen: BTreeMap<u32, (Seen, Costs)>,
    /// CPU time of each worker.
    cpu_ns: Vec<u64>,
    last: u64,
    next: Option<u64>,
    quiet: u32,
}

impl Auto {
    /// Before the first look: finds out where the workers are, and what a wake-up costs. Takes some
    /// milliseconds, so the housekeeper does it, while packets flow. Does nothing the second time.
    pub(crate) fn start(&mut self, shared: &StackInner) {
        let cpus = shared.backlogs.cpus();
        let wake_ns = match cpus {
            [from, to, ..] if shared.auto.samples() && self.machine.is_none() => {
                wake_cost::measure(*from, *to)
            }
            _ => return,
        };
        shared.auto.set_wake_ns(wake_ns);
        self.machine = Some(Machine { workers: places(cpus), wake_ns: wake_ns as f64 });
    }

    /// When it is to be called.
    pub(crate) fn next(&self, shared: &StackInner) -> Option<u64> {
        // At once, if a poll was full since it stopped looking.
        self.next.or_else(|| (shared.auto.is_going() && self.machine.is_some()).then_some(0))
    }

    /// Looks, if it is time to.
    pub(crate) fn run(&mut self, shared: &StackInner, ctx: &mut SoftnetData, now: u64) {
        let Some(machine) = self.machine.clone() else { return };
        match self.next {
            Some(at) if at <= now => self.look(&machine, shared, ctx, now),
            None if shared.auto.is_going() => {
                // Only what happens from now on counts.
                self.seen.clear();
                self.look(&machine, shared, ctx, now);
            }
            _ => {}
        }
    }

    fn look(&mut self, machine: &Machine, shared: &StackInner, ctx: &mut SoftnetData, now: u64) {
        let seconds = now.saturating_sub(std::mem::replace(&mut self.last, now)) as f64 / 1e9;
        self.next = Some(now + INTERVAL);
        let cpu_ns: Vec<u64> = shared
            .workers
            .iter()
            .map(|worker| thread_cpu_ns(worker.thread.tid.load(Ordering::Relaxed) as i32))
            .collect();
        let before = std::mem::replace(&mut self.cpu_ns, cpu_ns);
        let automatic = |instance: &Arc<NapiInstance>| shared.is_automatic(instance);
        let instances: Vec<_> = shared.napis().into_iter().filter(automatic).collect();
        self.seen.retain(|id, _| instances.iter().any(|instance| instance.napi.id == *id));
        let loads: Vec<Option<QueueLoad>> =
            instances.iter().map(|instance| self.load(shared, instance, seconds)).collect();
        let Some(loads) = loads.into_iter().collect::<Option<Vec<_>>>() else {
            // Some were not looked at before.
            return;
        };
        let expected = spent(machine, &loads);
        let busy = |(worker, expected): (usize, &f64)| {
            let ns = self.cpu_ns[worker].saturating_sub(before.get(worker).copied().unwrap_or(0));
            (ns as f64 / 1e9 / seconds.max(1e-3) - expected).clamp(0.0, 1.0)
        };
        let others: Vec<f64> = expected.iter().enumerate().map(busy).collect();
        let decisions = self.policy.decide(machine, &loads, &others);
        let is_quiet = |decision: &Decision| match decision.why {
            Why::Fits(busy) => busy < LITTLE && decision.plan.workers().is_empty(),
            Why::Elsewhere | Why::OneWorker => true,
            _ => false,
        };
        self.quiet = if decisions.iter().all(is_quiet) { self.quiet + 1 } else { 0 };
        for (instance, decision) in instances.iter().zip(decisions) {
            *lock(&instance.steering.chosen) =
                Some(Chosen { why: decision.why.to_string(), otherwise: decision.otherwise() });
            if decision.plan.workers() != instance.steering.plan().workers() {
                shared.set_plan(ctx, instance, shared.with_flows(instance, decision.plan));
            }
        }
        if self.quiet >= QUIET {
            (self.quiet, self.next) = (0, None);
            shared.auto.stop();
        }
    }

    /// What `instance` brought since the last look; `None` if there was none.
    fn load(&mut self, shared: &StackInner, instance: &NapiInstance, seconds: f64) -> Option<QueueLoad> {
        let now = Seen::of(shared, instance);
        let Some((seen, costs)) = self.seen.get_mut(&instance.napi.id) else {
            self.seen.insert(instance.napi.id, (now, Costs::default()));
            return None;
        };
        let plan = instance.steering.plan();
        costs.update(seen, &now, !plan.workers().is_empty());
        let since = |field: fn(&Seen) -> u64| field(&now).saturating_sub(field(seen)) as f64;
        let (packets, polls) = (since(|seen| seen.packets), since(|seen| seen.polls));
        // What was lost was to be carried, too.
        let came = packets + since(|seen| seen.lost);
        let slices = std::array::from_fn(|at| now.slices[at].saturating_sub(seen.slices[at]) as u32);
        *seen = now;
        let home = matches!(instance.home(), Some(Home::Worker(_))).then_some(instance.worker as u16);
        Some(QueueLoad {
            id: instance.napi.id,
            plan,
            home,
            pps: came / seconds.max(1e-3),
            receive_ns: costs.receive_ns,
            service_ns: costs.service_ns,
            batch: packets / polls.max(1.0),
            slices,
        })
    }
}

impl StackInner {
    /// Whether the steering of an instance's queue is chosen automatically.
    pub(crate) fn is_automatic(&self, instance: &NapiInstance) -> bool {
        let dev = self.devices.get(usize::from(instance.napi.dev));
        self.auto.samples()
            && dev.is_some_and(|dev| lock(&dev.steering).get(instance.napi.queue).is_automatic())
    }

    /// There is a queue to choose for: from now on what queues bring is measured. One worker has
    /// nothing to choose.
    pub(crate) fn enable_auto(&self) {
        if self.workers.len() > 1 {
            self.auto.enable();
        }
    }

    /// Packets that found no place in the ring of an instance's queue.
    fn ring_drops(&self, instance: &NapiInstance) -> u64 {
        let live = self.devices.get(usize::from(instance.napi.dev)).and_then(|dev| dev.live.load_full());
        let stats = live.as_ref().and_then(|live| live.rx_stats.get(usize::from(instance.napi.queue)));
        stats.map_or(0, |stats| stats.ring_drops.get())
    }

    /// A plan that was chosen, with the table of flows that is set for the queue.
    pub(super) fn with_flows(&self, instance: &NapiInstance, plan: Plan) -> Plan {
        let Plan::Rps { workers, .. } = plan else { return plan };
        let dev = self.devices.get(usize::from(instance.napi.dev));
        let set = dev.map_or(0, |dev| lock(&dev.steering).get(instance.napi.queue).rps_flow_cnt);
        Plan::Rps { workers, flows: if self.backlogs.sockets.is_some() { set } else { 0 } }
    }
}

#[cfg(test)]
#[path = "auto_tests.rs"]
mod tests;
