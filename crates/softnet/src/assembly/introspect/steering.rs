//! What RX queues steer, and to which workers.

use softnet_core::steer::Plan;
use softnet_core::steer::policy::{Decision, Why};
use softnet_core::sync::Ordering;

use crate::control::show::{FlowFilterRow, SteeredRow, SteeringRow};
use crate::napi::Chosen;
use crate::stack::StackInner;
use crate::util::lock;

/// What there is to say of a queue before the first choice.
fn not_yet(shared: &StackInner) -> Chosen {
    let (why, otherwise) = match shared.workers.len() {
        0 | 1 => (Why::OneWorker.to_string(), Decision { plan: Plan::None, why: Why::OneWorker }.otherwise()),
        _ => ("no poll has brought as much as it might".into(), "looked at when one does".into()),
    };
    Chosen { why, otherwise }
}

/// One row for each RX queue of the devices that are open.
pub(super) fn rows(shared: &StackInner) -> Vec<SteeringRow> {
    let mut rows = Vec::new();
    for instance in shared.napis() {
        let Some(dev) = shared.devices.get(usize::from(instance.napi.dev)) else { continue };
        let knobs = lock(&dev.steering).get(instance.napi.queue);
        let (backlogs, steering) = (&shared.backlogs, &instance.steering);
        let automatic = knobs.is_automatic();
        let chosen = automatic.then(|| lock(&steering.chosen).clone().unwrap_or_else(|| not_yet(shared)));
        let worker = |(number, counts): (usize, &crate::napi::SteerCounts)| SteeredRow {
            worker: shared.workers[number].thread.name.clone(),
            packets: counts.packets.get(),
            wakeups: counts.wakeups.get(),
            dropped: counts.dropped.get(),
            no_memory: counts.no_memory.get(),
            flow_limited: counts.flow_limited.get(),
            held: counts.held.get(),
            backlog: backlogs.instances()[number].backlog.len() as u64,
            backlog_frames: backlogs.instances()[number].backlog.frames() as u64,
        };
        let workers = steering.counts().iter().enumerate().map(worker);
        rows.push(SteeringRow {
            name: instance.napi.name.clone(),
            id: instance.napi.id,
            dev: dev.name.clone(),
            queue: instance.napi.queue,
            mode: knobs.mode(&steering.plan()),
            why: chosen.as_ref().map(|chosen| chosen.why.clone()),
            otherwise: chosen.map(|chosen| chosen.otherwise),
            moves: steering.moves.get(),
            filters: steering.source().map(|_| FlowFilterRow {
                now: steering.filters.now.load(Ordering::Relaxed),
                set: steering.filters.set.get(),
                expired: steering.filters.expired.get(),
                refused: steering.filters.refused.get(),
                late: steering.filters.late.get(),
            }),
            workers: workers
                .filter(|row| row.packets + row.dropped + row.no_memory + row.flow_limited > 0)
                .collect(),
            warning: knobs.warning(backlogs.sockets.is_some()).map(String::from),
            wake_ns: shared.auto.wake_ns(),
            odd_samples: instance.samples.odd.load(Ordering::Relaxed),
            processing_cpu: knobs.processing_cpu,
            rps_cpus: knobs.rps_cpus,
            rps_flow_cnt: knobs.rps_flow_cnt,
        });
    }
    rows
}
