//! The workers' backlogs, each with the NAPI instance that polls it.
//!
//! Any thread pushes to them; the instances are their workers' from start to end, and no other
//! thread can take them. The housekeeper closes them when the workers are gone.
//!
//! Invariant: together they hold no more than a quarter of packet memory, and a list for each thread
//! that pushes. So what workers have not come to does not take the frames that RX rings are to be
//! filled with, however high `netdev_max_backlog` is and however many frames packets have.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use softnet_core::SoftnetData;
use softnet_core::napi::Napi;
use softnet_core::skb::Region;
use softnet_core::steer::policy::Place;
use softnet_core::steer::{Backlog, SockFlowTable, Workers, nearest};
use softnet_dev::{Doorbell, topology};

use super::{FlowRequests, Home, Input, NapiInstance, NapiTimer, RxHandler, WorkerShared};
use crate::config::StackConfig;

/// Stands for a device where there is none.
pub(crate) const NO_DEV: u16 = u16::MAX;

const NO_WORKER: u16 = u16::MAX;

/// How much of packet memory backlogs may hold, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BacklogMem {
    /// All of them together.
    all: usize,
    /// Each, whatever the others hold.
    min: usize,
}

impl BacklogMem {
    /// Of so many `frames`, for the backlogs of so many workers.
    fn new(frames: u32, workers: usize) -> Self {
        let all = frames as usize / 4;
        // A quarter of it is kept, in equal parts.
        BacklogMem { all, min: all / 4 / workers.max(1) }
    }

    /// Whether a backlog that holds `own` may get another list, if all hold what `held` says.
    #[inline]
    fn has_room(self, own: usize, held: impl FnOnce() -> usize) -> bool {
        own <= self.min || held() <= self.all - self.all / 4
    }
}

/// See the [module](self).
pub(crate) struct Backlogs {
    /// One for each worker.
    instances: Vec<Arc<NapiInstance>>,
    memory: BacklogMem,
    /// The CPU of each worker.
    cpus: Vec<u32>,
    /// By CPU the worker that is near to it, [`NO_WORKER`] if there is none.
    near: Box<[u16]>,
    /// Buckets of each steering thread's flow limit.
    pub(super) flow_limit_table_len: u32,
    /// Which worker is near each flow's consumer; `None`: RFS is off.
    pub(crate) sockets: Option<SockFlowTable>,
    /// By which filters are asked for that have flows arrive near their consumers; with RFS only.
    pub(crate) requests: Option<FlowRequests>,
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
        let sockets = SockFlowTable::new(stack.rps_sock_flow_entries, workers.len());
        // Without RFS nothing asks for it.
        let cpus = if sockets.is_some() { topology::all() } else { Vec::new() };
        // In one that is dropped if any of them can't be made.
        let mut backlogs = Backlogs {
            instances: Vec::with_capacity(workers.len()),
            memory: BacklogMem::new(region.frame_count(), workers.len()),
            near: by_cpu(&cpus, &topology::places(&stack.workers)),
            cpus: stack.workers.clone(),
            flow_limit_table_len: stack.flow_limit_table_len,
            requests: sockets.is_some().then(FlowRequests::new),
            sockets,
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

    /// The worker that is near to a thread on `cpu`: the one there, else the nearest by what the two
    /// CPUs share.
    #[inline]
    pub(crate) fn worker_near(&self, cpu: u32) -> Option<u16> {
        self.near.get(cpu as usize).copied().filter(|worker| *worker != NO_WORKER)
    }

    /// Packets in all of them.
    pub(crate) fn len(&self) -> usize {
        self.instances.iter().map(|instance| instance.backlog.len()).sum()
    }

    /// Whether `backlog`, one of them, may get another list by what it and the others take of packet
    /// memory. Looks at the others only if it has much.
    #[inline]
    pub(super) fn have_memory(&self, backlog: &Backlog) -> bool {
        let all = || self.instances.iter().map(|instance| instance.backlog.frames()).sum();
        self.memory.has_room(backlog.frames(), all)
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

/// By CPU the worker that is near to it, of workers on CPUs that may not all be there.
fn by_cpu(cpus: &[Place], workers: &[Place]) -> Box<[u16]> {
    let highest = cpus.iter().chain(workers).map(|place| place.cpu).max();
    let mut near = vec![NO_WORKER; highest.map_or(0, |cpu| usize::from(cpu) + 1)];
    for (place, worker) in cpus.iter().zip(nearest(cpus, workers)) {
        near[usize::from(place.cpu)] = worker.unwrap_or(NO_WORKER);
    }
    (0u16..).zip(workers).for_each(|(worker, place)| near[usize::from(place.cpu)] = worker);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_and_each_has_its_part() {
        let memory = BacklogMem::new(16384, 4);
        assert_eq!(memory, BacklogMem { all: 4096, min: 256 });
        // One may have three quarters; whatever the others have, each has its part.
        for (own, all, room) in [
            (3072, 3072, true),
            (3073, 3073, false),
            (257, 3072, true),
            (257, 3073, false),
            (256, 4096, true),
            (0, 5000, true),
        ] {
            assert_eq!(memory.has_room(own, || all), room, "{own} of {all}");
        }
        assert!(BacklogMem::new(1024, 512).has_room(0, || panic!("not looked at")));
    }

    #[test]
    fn a_cpu_without_a_worker_has_the_nearest_one() {
        let place = |cpu, core, node| Place { cpu, core, llc: node, node };
        let machine = [place(0, 0, 0), place(1, 1, 0), place(2, 0, 0), place(3, 3, 1)];
        // The last worker is on a CPU that the machine does not have.
        let near = by_cpu(&machine, &[place(1, 1, 0), place(0, 0, 0), place(7, 7, 0)]);
        assert_eq!(near[..4], [1, 0, 1, NO_WORKER]);
        assert_eq!(near[4..], [NO_WORKER, NO_WORKER, NO_WORKER, 2]);
        assert!(by_cpu(&[], &[]).is_empty());
        assert_eq!(by_cpu(&[], &[place(1, 1, 0)])[..], [NO_WORKER, 0], "not looked at");
    }
}
