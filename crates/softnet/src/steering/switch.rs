//! Changes of steering while packets come. For the housekeeper, which may wait.

use std::io;
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::steer::{Plan, Workers};
use softnet_core::sync::Ordering;

use crate::napi::{Home, NapiInstance, PAUSE, WorkerShared};
use crate::stack::StackInner;
use crate::util::warn;

impl StackInner {
    /// Gives `instance` another plan. It is not polled meanwhile: its packets wait in the device's
    /// ring until those that it put on backlogs, or left to other threads, have been processed. So
    /// none overtakes another.
    pub(crate) fn set_plan(&self, ctx: &mut SoftnetData, instance: &Arc<NapiInstance>, plan: Plan) {
        if instance.steering.plan() == plan {
            return;
        }
        let (disabled, home) = instance.evict();
        self.wait(ctx, || instance.steering.is_done(&Running(self)) && !instance.left.any());
        instance.steering.replace(plan, self.workers.len());
        let worker = || Home::Worker(self.workers[instance.worker].clone());
        let home = match home {
            Some(Home::Pool(pool)) => match pool.reserve(instance) {
                Ok(()) => Home::Pool(pool),
                Err(error) => {
                    note_home(instance, &error);
                    worker()
                }
            },
            Some(home) => home,
            None => worker(),
        };
        instance.attach(&home, disabled);
    }

    /// Waits until nothing that is on a backlog now is there any more: of a device that was closed,
    /// whose packets are dropped as their turn comes.
    pub(crate) fn flush_backlogs(&self, ctx: &mut SoftnetData) {
        let instances = self.backlogs.instances();
        let tails: Vec<u64> = instances.iter().map(|instance| instance.backlog.tail()).collect();
        let is_done = |worker: usize| Running(self).is_done(worker as u16, tails[worker]);
        self.wait(ctx, || (0..instances.len()).all(is_done));
    }

    fn wait(&self, ctx: &mut SoftnetData, done: impl Fn() -> bool) {
        while !done() {
            // Some of it may be left to this thread.
            self.handle_left(ctx);
            std::thread::sleep(PAUSE);
        }
    }
}

/// The workers, of which those that have ended are waited for no longer: what waits there is freed
/// when their backlogs are closed, and workers end before the housekeeper does.
struct Running<'a>(&'a StackInner);

impl Workers for Running<'_> {
    fn is_done(&self, worker: u16, tail: u64) -> bool {
        let has_ended = |worker: &Arc<WorkerShared>| !worker.alive.load(Ordering::Acquire);
        self.0.backlogs.is_done(worker, tail) || self.0.workers.get(usize::from(worker)).is_none_or(has_ended)
    }

    fn wanted(&self, hash: u32) -> Option<u16> {
        self.0.backlogs.wanted(hash)
    }
}

fn note_home(instance: &NapiInstance, error: &io::Error) {
    warn(format_args!("{}: polled in softirq, for want of descriptors: {error}", instance.napi.name));
}
