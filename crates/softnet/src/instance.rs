//! A NAPI instance as the runtime has it, and its home: the thread or threads that poll it.
//!
//! Only the housekeeper gives an instance a home, and only while it is disabled. Invariant: an instance is in the list
//! of one home at most, and only threads of that home touch its doorbell.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use softnet_core::ip::input::Ingress;
use softnet_core::napi::{Disabled, Napi, Scheduled};
use softnet_core::sync::{AtomicBool, Ordering};
use softnet_dev::{Doorbell, RxQueue};

use crate::context::Context;
use crate::pool::Pool;
use crate::shared::lock;
use crate::worker::WorkerShared;

/// How long to wait between two looks at whether an instance's owner is done (the kernel's `napi_disable` sleeps as
/// long).
pub const PAUSE: Duration = Duration::from_micros(50);

/// What NAPI instances poll; `None` once the queue was closed.
pub type Rx = Option<Box<dyn RxQueue>>;

/// What becomes of the packets of a device.
#[derive(Clone, Copy, Debug)]
pub enum RxHandler {
    /// IPv4 routing.
    Ipv4(Ingress),
    /// Out of this device as they are: a cross-connect.
    Patch(u16),
}

/// A NAPI instance and what its pollers need to know of it.
pub struct NapiInstance {
    /// The instance.
    pub napi: Napi<Rx>,
    /// Its queue's doorbell.
    pub doorbell: Arc<dyn Doorbell>,
    /// Index of the worker that polls it in the context `softirq`.
    pub worker: usize,
    /// What becomes of its packets.
    pub handler: RxHandler,
    /// Whether the doorbell is unmasked.
    pub armed: AtomicBool,
    home: Mutex<Option<Home>>,
}

impl NapiInstance {
    /// An instance that is disabled and has no home.
    pub fn new(napi: Napi<Rx>, doorbell: Arc<dyn Doorbell>, worker: usize, handler: RxHandler) -> Self {
        NapiInstance {
            napi,
            doorbell,
            worker,
            handler,
            armed: AtomicBool::new(false),
            home: Mutex::default(),
        }
    }

    /// Who polls it.
    pub fn home(&self) -> Option<Home> {
        lock(&self.home).clone()
    }

    /// Takes a disabled instance home, and enables it there.
    pub fn settle(self: &Arc<Self>, home: &Home, disabled: Disabled<Rx>) {
        *lock(&self.home) = Some(home.clone());
        match home {
            Home::Worker(worker) => {
                worker.add(self.clone());
                worker.schedule(disabled.enable());
            }
            Home::Pool(pool) => {
                pool.add(self.clone());
                pool.schedule(disabled.enable());
            }
        }
    }

    /// Disables the instance and takes it away from its home, whose threads touch it no more when this returns. Whoever
    /// polls it now finishes that first. Sleeps meanwhile.
    pub fn evict(&self) -> (Disabled<Rx>, Option<Home>) {
        self.napi.disable();
        let disabled = loop {
            match self.napi.try_disable() {
                Some(disabled) => break disabled,
                None => std::thread::sleep(PAUSE),
            }
        };
        let home = lock(&self.home).take();
        match &home {
            Some(Home::Worker(worker)) => {
                let number = worker.remove(self.napi.id);
                while !worker.has_seen(number) {
                    std::thread::sleep(PAUSE);
                }
            }
            Some(Home::Pool(pool)) => {
                let removed = pool.remove(self);
                while !removed.is_forgotten() {
                    std::thread::sleep(PAUSE);
                }
            }
            None => {}
        }
        self.armed.store(false, Ordering::Relaxed);
        self.doorbell.mask();
        (disabled, home)
    }
}

/// Who polls an instance.
#[derive(Clone)]
pub enum Home {
    /// One thread: a worker, or the instance's own.
    Worker(Arc<WorkerShared>),
    /// Any thread of the pool.
    Pool(Arc<Pool>),
}

impl Home {
    /// In which context it polls.
    pub fn context(&self) -> Context {
        match self {
            Home::Worker(worker) => worker.thread.context,
            Home::Pool(_) => Context::Workqueue,
        }
    }
}

/// An instance's doorbell rang: masks it and schedules the instance. For the one thread that watches it.
pub(crate) fn ring(instance: &NapiInstance, schedule: impl FnOnce(Scheduled<Rx>)) {
    instance.armed.store(false, Ordering::Relaxed);
    instance.doorbell.mask();
    if let Some(napi) = instance.napi.schedule_prep() {
        schedule(napi);
    }
}

/// As [`ring`], where several threads watch: only the one that becomes the owner masks the doorbell, so that no two do.
/// For the others, the owner will unmask it when it is done.
pub(crate) fn ring_shared(instance: &NapiInstance) -> Option<Scheduled<Rx>> {
    let napi = instance.napi.schedule_prep()?;
    instance.armed.store(false, Ordering::Relaxed);
    instance.doorbell.mask();
    Some(napi)
}
