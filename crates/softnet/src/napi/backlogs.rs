//! The workers' backlogs, each with the NAPI instance that polls it.
//!
//! Any thread pushes to them; the instances are their workers' from start to end, and no other
//! thread can take them. The housekeeper closes them when the workers are gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use softnet_core::SoftnetData;
use softnet_core::napi::Napi;
use softnet_core::skb::Region;
use softnet_core::steer::{Backlog, SockFlowTable, Workers};
use softnet_dev::Doorbell;

use super::{Home, Input, NapiInstance, NapiTimer, RxHandler, WorkerShared};
use crate::config::StackConfig;

/// Stands for a device where there is none.
pub(crate) const NO_DEV: u16 = u16::MAX;

const NO_WORKER: u16 = u16::MAX;

/// See the [module](self).
pub(crate) struct Backlogs {
    /// One for each worker.
    instances: Vec<Arc<NapiInstance>>,
    /// The CPU of each worker.
    cpus: Vec<u32>,
    /// By CPU the worker there, [`NO_WORKER`] if there is none.
    near: Box<[u16]>,
    /// Buckets of each steering thread's flow limit.
    pub(super) flow_limit_table_len: u32,
    /// Which worker is near each flow's consumer; `None`: RFS is off.
    pub(crate) sockets: Option<SockFlowTable>,
}

/// The doorbell of an instance that has no queue: it never rings.
struct NoDoorbell(OwnedFd);

impl Doorbell for NoDoorbell {
    fn pending(&self) -> bool {
        false
    }

    fn mask(&self) {}

    fn unmask(&self) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Backlogs {
    /// Empty ones, each polled by its worker from now on.
    pub(crate) fn new(
        region: &Region,
        stack: &StackConfig,
        workers: &[Arc<WorkerShared>],
    ) -> io::Result<Self> {
        let instance = |(number, worker): (usize, &Arc<WorkerShared>)| {
            let (backlog, queue) = Backlog::new(region, stack.netdev_max_backlog as usize);
            let rx = Some(Input::steered(queue));
            let (napi, disabled) = Napi::new(format!("backlog-{number}"), NO_DEV, number as u16, rx);
            let doorbell = Arc::new(NoDoorbell(eventfd(0, EventfdFlags::CLOEXEC)?));
            let timer = NapiTimer::new()?;
            let handler = RxHandler::Steered;
            let instance = NapiInstance::new(napi, doorbell, backlog, timer, number, handler, 0);
            let instance = Arc::new(instance);
            instance.attach(&Home::Worker(worker.clone()), disabled);
            Ok::<_, io::Error>(instance)
        };
        // In one that is dropped if any of them can't be made.
        let mut backlogs = Backlogs {
            instances: Vec::with_capacity(workers.len()),
            near: by_cpu(&stack.workers),
            cpus: stack.workers.clone(),
            flow_limit_table_len: stack.flow_limit_table_len,
            sockets: SockFlowTable::new(stack.rps_sock_flow_entries, workers.len()),
        };
        for of in workers.iter().enumerate() {
            backlogs.instances.push(instance(of)?);
        }
        Ok(backlogs)
    }

    /// The instances, by the workers' numbers.
    pub(crate) fn instances(&self) -> &[Arc<NapiInstance>] {
        &self.instances
    }

    /// The CPUs of the workers.
    pub(crate) fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// The worker on `cpu`: what is near to a thread that runs there.
    #[inline]
    pub(crate) fn worker_on(&self, cpu: u32) -> Option<u16> {
        self.near.get(cpu as usize).copied().filter(|worker| *worker != NO_WORKER)
    }

    /// Packets in all of them.
    pub(crate) fn len(&self) -> usize {
        self.instances.iter().map(|instance| instance.backlog.len()).sum()
    }

    /// The backlog of `worker` was empty before something was pushed to it: has it polled.
    pub(super) fn notify(&self, worker: u16) {
        let Some(instance) = self.instances.get(usize::from(worker)) else { return };
        if let Some(napi) = instance.napi.schedule_prep() {
            instance.hand_over(napi);
        }
    }

    /// Closes them when the workers are gone, and drops what is in them.
    pub(crate) fn close(&self, ctx: &mut SoftnetData) {
        for instance in &self.instances {
            if instance.is_closed() {
                continue;
            }
            instance.close();
            let (mut disabled, _) = instance.evict();
            if let Some(rx) = disabled.body().rx.take() {
                rx.close(ctx);
            }
        }
    }
}

impl Drop for Backlogs {
    /// A start that fails leaves some that were not closed.
    fn drop(&mut self) {
        self.instances.iter().for_each(|instance| instance.forget_home());
    }
}

/// The workers by their CPUs.
fn by_cpu(cpus: &[u32]) -> Box<[u16]> {
    let n = cpus.iter().max().map_or(0, |highest| *highest as usize + 1);
    let mut near = vec![NO_WORKER; n];
    (0u16..).zip(cpus).for_each(|(worker, cpu)| near[*cpu as usize] = worker);
    near.into()
}

impl Workers for Backlogs {
    #[inline]
    fn is_done(&self, worker: u16, tail: u64) -> bool {
        // Exceptions were left before the head was moved.
        self.instances
            .get(usize::from(worker))
            .is_none_or(|instance| instance.backlog.is_done(tail) && !instance.left.any())
    }

    #[inline]
    fn wanted(&self, hash: u32) -> Option<u16> {
        self.sockets.as_ref()?.wanted(hash)
    }
}
