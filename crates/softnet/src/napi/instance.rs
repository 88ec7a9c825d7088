//! A NAPI instance as the runtime has it, and its home: the thread or threads that poll it.
//!
//! Only the housekeeper gives an instance a home, and only while it is disabled. Invariant: an instance is in the list
//! of one home at most, and only threads of that home wait for its doorbell and its timer. Applications that poll it may
//! unmask the one and arm the other.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use softnet_core::SoftnetData;
use softnet_core::ip::input::Ingress;
use softnet_core::napi::{Disabled, Napi, Scheduled};
use softnet_core::skb::Batch;
use softnet_core::steer::Backlog;
use softnet_core::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use softnet_dev::{Doorbell, PiMutex};

use super::{
    Apps, Input, LeftOf, NapiTimer, Phase, Pool, QueueSteering, Residency, Samples, Timeout, WorkerShared,
    backlog,
};
use crate::config::Context;

/// How long to wait between two looks at whether an instance's owner is done (the kernel's `napi_disable` sleeps as
/// long).
pub(crate) const PAUSE: Duration = Duration::from_micros(50);

/// After how many ns an instance without memory is polled again.
const REFILL_AFTER: NonZeroU64 = NonZeroU64::new(1_000_000).unwrap();

/// What NAPI instances poll; `None` once the queue was closed.
pub(crate) type Rx = Option<Input>;

/// What becomes of the packets of a device.
#[derive(Clone, Copy, Debug)]
pub enum RxHandler {
    /// IPv4 routing.
    Ip(Ingress),
    /// Out of this device as they are: a cross-connect.
    Patch(u16),
    /// That of the device and the RX queue that they came by: they were steered here.
    Steered,
}

/// A NAPI instance and what its pollers need to know of it.
pub struct NapiInstance {
    /// The instance.
    pub napi: Napi<Rx>,
    /// Its queue's doorbell.
    pub doorbell: Arc<dyn Doorbell>,
    /// Packets that it is to receive beside those of its queue.
    pub backlog: Arc<Backlog>,
    /// Its timer.
    pub timer: NapiTimer,
    /// Applications that get some of its packets.
    pub apps: Apps,
    /// To which workers the rest goes.
    pub(crate) steering: QueueSteering,
    /// What its packets cost.
    pub(crate) samples: Samples,
    /// Its exceptions that are left to another thread.
    pub(crate) left: Arc<LeftOf>,
    /// What it spends its time in.
    pub residency: Residency,
    /// Counters beside those of the instance itself.
    pub stats: InstanceStats,
    /// Index of the worker that polls it in the context `softirq`.
    pub worker: usize,
    /// What becomes of its packets.
    pub handler: RxHandler,
    /// Whether the doorbell is unmasked.
    pub armed: AtomicBool,
    /// Thread of the application that polled or suspended it last; for display.
    pub(crate) poller: AtomicU32,
    /// When that application polls next, in its context's place; 0: it does not wait for a timer. For display.
    pub(crate) polls_at: AtomicU64,
    home: PiMutex<Option<Home>>,
    /// Held while the doorbell is masked or unmasked.
    watch: PiMutex<Watch>,
    closed: AtomicBool,
}

/// The thread that waits for a doorbell in an epoll set of its own, and whether that set watches it now.
#[derive(Default)]
struct Watch {
    by: Option<Arc<WorkerShared>>,
    watching: bool,
}

/// Counters of an instance, which any thread may write.
#[derive(Debug, Default)]
pub struct InstanceStats {
    /// Times its doorbell rang and led to a poll.
    pub doorbells: AtomicU64,
    /// Times an application took it to poll by itself.
    pub busy_polls: AtomicU64,
    /// Times an application wanted that, and another thread had it.
    pub busy_poll_lost: AtomicU64,
    /// Times an application suspended its doorbell, or went on doing so.
    pub suspensions: AtomicU64,
    /// Times an application gave it back before it slept or went away.
    pub resumptions: AtomicU64,
}

impl NapiInstance {
    /// An instance that is disabled and has no home.
    pub fn new(
        napi: Napi<Rx>,
        doorbell: Arc<dyn Doorbell>,
        backlog: Arc<Backlog>,
        timer: NapiTimer,
        worker: usize,
        handler: RxHandler,
        now: u64,
    ) -> Self {
        NapiInstance {
            napi,
            doorbell,
            backlog,
            timer,
            apps: Apps::default(),
            steering: QueueSteering::default(),
            samples: Samples::default(),
            left: Arc::default(),
            residency: Residency::new(now),
            stats: InstanceStats::default(),
            worker,
            handler,
            armed: AtomicBool::new(false),
            poller: AtomicU32::new(0),
            polls_at: AtomicU64::new(0),
            home: PiMutex::default(),
            watch: PiMutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Its queue is being closed for good: tells applications so.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.apps.wake();
    }

    /// Whether its queue was closed for good.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Has the packets of `batch` received by it, and leaves it empty. Any thread may call it, whatever it holds.
    pub(crate) fn netif_rx(&self, ctx: &mut SoftnetData, batch: &mut Batch) {
        backlog::enqueue(&self.backlog, ctx, &self.napi, batch);
        if let Some(napi) = self.napi.schedule_prep() {
            self.hand_over(napi);
        }
    }

    /// Has it polled by its home.
    pub(crate) fn hand_over(&self, napi: Scheduled<Rx>) {
        match self.home() {
            Some(Home::Worker(worker)) => worker.schedule(napi),
            Some(Home::Pool(pool)) => pool.schedule(napi),
            // The housekeeper takes it away: it waits until no thread owns the instance, and then has it polled or closes it.
            None => drop(napi),
        }
    }

    /// Masks the doorbell; or, if it is masked already, takes back a ring that came late.
    pub(crate) fn mask(&self) {
        let _watch = self.watch.lock();
        self.armed.store(false, Ordering::Relaxed);
        self.doorbell.mask();
    }

    /// Unmasks the doorbell, unless it is: some must not be twice in a row. Then look at it again.
    pub(crate) fn set_unmasked(&self) {
        let _watch = self.watch.lock();
        if !self.armed.swap(true, Ordering::Relaxed) {
            self.doorbell.unmask();
        }
    }

    /// Unmasks its doorbell, for its home, from any thread. `false`: it must be polled, since packets wait already.
    pub(crate) fn unmask(&self) -> bool {
        self.set_unmasked();
        let heard = match self.home() {
            Some(Home::Pool(pool)) => pool.arm(self),
            _ => {
                self.update_watch();
                true
            }
        };
        heard && !self.doorbell.pending()
    }

    /// An application is about to release it: arms the timer, for `grace` ns longer than `timer`, and unmasks the doorbell if it
    /// is to. `false`: it must be polled, since packets wait already; the doorbell is masked again.
    pub(crate) fn apply_release(
        &self,
        timer: Option<NonZeroU64>,
        unmask: bool,
        now: u64,
        grace: u64,
    ) -> bool {
        // One that took it while its doorbell was unmasked leaves it so.
        let rings = unmask || self.armed.load(Ordering::Relaxed);
        self.residency.enter(if rings { Phase::Irq } else { Phase::Deferred }, now);
        if let Some(ns) = timer {
            self.timer.arm(now, ns.saturating_add(grace), Timeout::GroFlush);
        }
        // Without a new timer the old one runs on, and polls once for nothing.
        let applied = !unmask || self.unmask();
        if applied && rings && timer.is_none() {
            self.released_untimed(now);
        }
        if !applied {
            self.stats.doorbells.fetch_add(1, Ordering::Relaxed);
            self.mask();
        }
        applied
    }

    /// It was released without a timer, and its doorbell is unmasked. That can't ring if the queue has no memory: then a
    /// timer has it polled again. A timer that is due sooner does as well, and may be another owner's by now.
    pub(crate) fn released_untimed(&self, now: u64) {
        if self.doorbell.starved() {
            self.timer.arm_at_latest(now, REFILL_AFTER, Timeout::Refill);
        }
    }

    /// From now on `by` waits for the doorbell, and its epoll set watches it; `None`: no thread does.
    pub(crate) fn set_watcher(&self, by: Option<Arc<WorkerShared>>) {
        let watching = by.is_some();
        *self.watch.lock() = Watch { by, watching };
    }

    /// Has the epoll set listen to the doorbell if, and only if, that is unmasked: for doorbells that can't be masked by
    /// themselves. Called before the watcher sleeps, and by others after they unmask; so the last one sees what holds.
    pub(crate) fn update_watch(&self) {
        let mut watch = self.watch.lock();
        let wanted = self.armed.load(Ordering::Relaxed);
        if let Some(worker) = &watch.by
            && watch.watching != wanted
        {
            worker.watch(self, wanted);
            watch.watching = wanted;
        }
    }

    /// The thread or threads that poll it.
    pub fn home(&self) -> Option<Home> {
        self.home.lock().clone()
    }

    /// Takes a disabled instance home, and enables it there.
    pub fn attach(self: &Arc<Self>, home: &Home, disabled: Disabled<Rx>) {
        *self.home.lock() = Some(home.clone());
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

    /// Disables the instance where it is: a poll that runs now is finished first, and packets wait in
    /// the device's ring until it is [resumed](Self::resume). For the housekeeper. Sleeps meanwhile.
    pub(crate) fn pause(&self) -> Disabled<Rx> {
        let disabled = self.disable();
        self.mask();
        disabled
    }

    fn disable(&self) -> Disabled<Rx> {
        self.napi.disable();
        loop {
            match self.napi.try_disable() {
                Some(disabled) => return disabled,
                None => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Has a paused instance polled again.
    pub(crate) fn resume(&self, disabled: Disabled<Rx>) {
        self.hand_over(disabled.enable());
    }

    /// Its home and it forget each other, at the end of both: they hold each other otherwise.
    pub(crate) fn forget_home(&self) {
        if let Some(Home::Worker(worker)) = self.home.lock().take() {
            worker.instances.lock().retain(|other| other.napi.id != self.napi.id);
        }
    }

    /// Disables the instance and takes it away from its home, whose threads touch it no more when this returns. A poll that
    /// runs now is finished first. Sleeps meanwhile.
    pub fn evict(&self) -> (Disabled<Rx>, Option<Home>) {
        let disabled = self.disable();
        let home = self.home.lock().take();
        match &home {
            Some(Home::Worker(worker)) => {
                let number = worker.remove(self.napi.id);
                while !worker.has_seen(number) {
                    std::thread::sleep(PAUSE);
                }
                self.set_watcher(None);
            }
            Some(Home::Pool(pool)) => {
                let removed = pool.remove(self);
                while !removed.is_forgotten() {
                    std::thread::sleep(PAUSE);
                }
            }
            None => {}
        }
        self.timer.cancel();
        self.mask();
        (disabled, home)
    }
}

/// The thread or threads that poll an instance.
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
    instance.stats.doorbells.fetch_add(1, Ordering::Relaxed);
    instance.mask();
    if let Some(napi) = instance.napi.schedule_prep() {
        schedule(napi);
    }
}

/// As [`ring`], where several threads watch: only the one that becomes the owner masks the doorbell, so that no two do.
/// For the others, the owner will unmask it when it is done.
pub(crate) fn ring_shared(instance: &NapiInstance) -> Option<Scheduled<Rx>> {
    let napi = instance.napi.schedule_prep()?;
    instance.stats.doorbells.fetch_add(1, Ordering::Relaxed);
    instance.mask();
    Some(napi)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::testing::World;

    /// The doorbell of a queue that has no frame posted.
    struct Starved(OwnedFd);

    impl Doorbell for Starved {
        fn pending(&self) -> bool {
            false
        }

        fn starved(&self) -> bool {
            true
        }

        fn mask(&self) {}

        fn unmask(&self) {}

        fn fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    /// A thread releases a starved instance. Before it sees to that, another has had the instance, and armed the timer.
    #[test]
    fn the_timer_of_a_starved_queue_does_not_put_off_anothers() {
        let world = World::new(1);
        let other = world.instance(0);
        let (napi, _disabled) = Napi::new("t", 0, 0, None);
        let doorbell = Arc::new(Starved(eventfd(0, EventfdFlags::CLOEXEC).unwrap()));
        let timer = NapiTimer::new().unwrap();
        let instance = NapiInstance::new(napi, doorbell, other.backlog.clone(), timer, 0, other.handler, 0);
        instance.released_untimed(5);
        assert_eq!(instance.timer.armed(), Some((Timeout::Refill, 5, 5 + REFILL_AFTER.get())));
        instance.timer.arm(10, NonZeroU64::new(20_000).unwrap(), Timeout::GroFlush);
        instance.released_untimed(5);
        assert_eq!(instance.timer.armed(), Some((Timeout::GroFlush, 10, 20_010)));
        world.close();
    }
}
