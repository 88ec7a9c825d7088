//! A worker: a thread pinned to a CPU that runs the `softirq` context. It polls the instances scheduled on it, and
//! blocks when every input is idle.
//!
//! Its inputs are the doorbells of its instances, its mailbox (instances that others scheduled) and changes of its
//! instance list. To sleep it announces it, looks at every input once more, and blocks on all their descriptors;
//! whoever adds an input makes it visible first and then wakes it if it announced. So no wake-up is lost.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, Cache};
use rustix::event::{Timespec, epoll};
use softnet_core::SoftnetData;
use softnet_core::ip::adjacency::Tables;
use softnet_core::ip::input::{Exceptions, Ingress, TxBatches, ipv4_input};
use softnet_core::napi::{
    Body, Completion, Driver, Napi, NapiInfo, NetRx, NetRxStats, PollList, Released, Scheduled,
};
use softnet_core::skb::{BATCH, Batch, DropReason};
use softnet_core::softnet_data::Counter;
use softnet_core::sync::{AtomicBool, AtomicU32, AtomicU64, Mailbox, Ordering, PushError, Receiver, mailbox};
use softnet_dev::{Doorbell, RxQueue};

use crate::log::note;
use crate::netdev::{dev_queue_xmit, reap_idle};
use crate::shared::{Shared, lock};
use crate::wake::Waker;

/// What NAPI instances poll; `None` once the queue was closed.
pub type Rx = Option<Box<dyn RxQueue>>;

/// Messages that may wait for a worker: each of its instances at most once, so that this is never the limit.
const MAILBOX: u32 = 4096;
/// Marks the worker's own descriptor among those it waits for.
const WAKE: u64 = u64::MAX;

/// What becomes of the packets of a device.
#[derive(Clone, Copy, Debug)]
pub enum RxHandler {
    /// IPv4 routing.
    Ipv4(Ingress),
    /// Out of this device as they are: a cross-connect.
    Patch(u16),
}

/// A NAPI instance and what its worker needs to know of it.
pub struct NapiInstance {
    /// The instance.
    pub napi: Napi<Rx>,
    /// Its queue's doorbell.
    pub doorbell: Arc<dyn Doorbell>,
    /// Index of the worker that polls it.
    pub worker: usize,
    /// What becomes of its packets.
    pub handler: RxHandler,
    /// Whether the doorbell is unmasked.
    pub armed: AtomicBool,
}

/// Counters of a worker, written by its thread.
#[derive(Default)]
pub struct WorkerStats {
    /// Rounds of its loop.
    pub rounds: Counter,
    /// Packets polled.
    pub packets: Counter,
    /// Times it blocked.
    pub sleeps: Counter,
    /// Times a doorbell woke it.
    pub woken_by_doorbell: Counter,
    /// Times another thread woke it.
    pub woken_by_thread: Counter,
    /// Times it was about to block, and found work at the second look.
    pub rechecks: Counter,
    /// Heads in its cache.
    pub cached_heads: AtomicU64,
    /// Frames in its cache.
    pub cached_frames: AtomicU64,
}

/// The side of a worker that others see.
pub struct WorkerShared {
    /// Its index.
    pub index: usize,
    /// The CPU it is pinned to.
    pub cpu: u32,
    /// Its thread id once it runs.
    pub tid: AtomicU32,
    /// Its counters.
    pub stats: WorkerStats,
    /// Those of its softirq loop.
    pub net_rx: ArcSwap<NetRxStats>,
    /// Wakes it.
    pub waker: Waker,
    mailbox: Mailbox<Scheduled<Rx>>,
    receiver: Mutex<Option<Receiver<Scheduled<Rx>>>>,
    instances: Mutex<Vec<Arc<NapiInstance>>>,
    /// Number of the instance list; and the one the worker has seen.
    wanted: AtomicU64,
    seen: AtomicU64,
    stop: AtomicBool,
    /// There is a [`Worker`].
    alive: AtomicBool,
}

impl WorkerShared {
    /// A worker without instances, for `cpu`.
    pub fn new(index: usize, cpu: u32) -> std::io::Result<Self> {
        let (mailbox, receiver) = mailbox(MAILBOX);
        Ok(WorkerShared {
            index,
            cpu,
            tid: AtomicU32::new(0),
            stats: WorkerStats::default(),
            net_rx: ArcSwap::default(),
            waker: Waker::new()?,
            mailbox,
            receiver: Mutex::new(Some(receiver)),
            instances: Mutex::default(),
            wanted: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            alive: AtomicBool::new(false),
        })
    }

    /// Hands a scheduled instance to the worker, from any thread.
    pub fn schedule(&self, mut napi: Scheduled<Rx>) {
        loop {
            match self.mailbox.push(napi) {
                Ok(true) => return self.waker.wake(),
                Ok(false) | Err(PushError::Closed(_)) => return,
                // More instances than the mailbox has room for, all scheduled at once: it is being drained.
                Err(PushError::Full(back)) => napi = back,
            }
            std::thread::yield_now();
        }
    }

    /// Makes the worker watch `instance`, which is still disabled.
    pub fn add(&self, instance: Arc<NapiInstance>) {
        lock(&self.instances).push(instance);
        self.changed();
    }

    /// Makes the worker forget an instance, which has been disabled. When it [has seen](Self::has_seen) the number
    /// that this returns, it will not touch the doorbell again.
    pub fn remove(&self, id: u32) -> u64 {
        lock(&self.instances).retain(|i| i.napi.id != id);
        self.changed()
    }

    fn changed(&self) -> u64 {
        let number = self.wanted.fetch_add(1, Ordering::Release) + 1;
        self.waker.wake();
        number
    }

    /// Whether the worker works on instance list `number` or a later one, or does not work any more.
    pub fn has_seen(&self, number: u64) -> bool {
        self.seen.load(Ordering::Acquire) >= number || !self.alive.load(Ordering::Acquire)
    }

    /// Ends the worker's thread at its next quiescent point.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether it blocks, or is about to.
    pub fn is_sleeping(&self) -> bool {
        self.waker.sleeper.is_announced()
    }
}

/// The worker itself: what its thread owns.
pub struct Worker {
    me: Arc<WorkerShared>,
    receiver: Receiver<Scheduled<Rx>>,
    net_rx: NetRx<Rx>,
    epoll: OwnedFd,
    env: Env,
}

/// What polling needs beside the poll list.
struct Env {
    shared: Arc<Shared>,
    ctx: SoftnetData,
    tables: Cache<Arc<ArcSwap<Tables>>, Arc<Tables>>,
    /// By NAPI id, ascending.
    instances: Vec<Arc<NapiInstance>>,
    tx: TxBatches,
    exceptions: Exceptions,
    index: usize,
    now: u64,
}

impl Worker {
    /// The worker of `me`; there can be one.
    pub fn new(shared: &Arc<Shared>, me: &Arc<WorkerShared>) -> std::io::Result<Self> {
        let receiver =
            lock(&me.receiver).take().ok_or_else(|| std::io::Error::other("worker exists already"))?;
        let net_rx = NetRx::new(shared.budget);
        me.net_rx.store(net_rx.stats().clone());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, me.waker.fd(), epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        // Last, since nothing takes it back but the drop of what is returned.
        me.alive.store(true, Ordering::Release);
        Ok(Worker {
            receiver,
            net_rx,
            epoll,
            env: Env {
                ctx: shared.context(),
                tables: Cache::new(shared.tables.clone()),
                shared: shared.clone(),
                instances: Vec::new(),
                tx: TxBatches::new(),
                exceptions: Exceptions::default(),
                index: me.index,
                now: 0,
            },
            me: me.clone(),
        })
    }

    /// Works until it is stopped, pinned to its CPU.
    pub fn run(mut self) {
        let mut cpus = rustix::thread::CpuSet::new();
        cpus.set(self.me.cpu as usize);
        if let Err(error) = rustix::thread::sched_setaffinity(None, &cpus) {
            note(format_args!("worker {} runs unpinned: CPU {}: {error}", self.me.index, self.me.cpu));
        }
        self.me.tid.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
        // Timers of a polling thread must not be rounded up to the default slack of 50 µs.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        while !self.me.stop.load(Ordering::Acquire) {
            if !self.round() {
                self.sleep();
            }
        }
    }

    /// One round: takes note of what was scheduled, and runs the softirq loop once. Returns whether it did anything.
    pub fn round(&mut self) -> bool {
        for napi in self.receiver.drain() {
            self.net_rx.schedule(napi);
        }
        // Only now: an instance is added before it is scheduled, so that all that were drained are in the list. One
        // that is not would be polled once, its packets dropped, and its doorbell never unmasked.
        if self.me.wanted.load(Ordering::Relaxed) != self.env_seen() {
            self.take_instances();
        }
        for instance in &self.env.instances {
            if instance.armed.load(Ordering::Relaxed) && instance.doorbell.pending() {
                ring(instance, |napi| self.net_rx.schedule(napi));
            }
        }
        if self.net_rx.is_idle() {
            return false;
        }
        if self.env.now == 0 {
            self.env.now = self.env.shared.clock.now();
        }
        let done = self.net_rx.run(self.env.now, &mut self.env);
        self.me.stats.rounds.add(1);
        self.me.stats.packets.add(done.work as u64);
        true
    }

    fn env_seen(&self) -> u64 {
        self.me.seen.load(Ordering::Relaxed)
    }

    /// Blocks until there may be something to do.
    fn sleep(&mut self) {
        let (heads, frames) = self.env.ctx.cached();
        self.me.stats.cached_heads.store(heads as u64, Ordering::Relaxed);
        self.me.stats.cached_frames.store(frames as u64, Ordering::Relaxed);
        // Not to keep an old snapshot alive while asleep.
        self.env.tables.load();
        self.env.now = 0;
        let announced = self.me.waker.sleeper.announce();
        if self.has_input() {
            drop(announced);
            return self.me.stats.rechecks.add(1);
        }
        self.me.stats.sleeps.add(1);
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 16];
        let waited = epoll::wait(&self.epoll, &mut events, None::<&Timespec>);
        announced.awake();
        // An interrupted wait is a wake-up without a cause.
        let Ok((events, _)) = waited else { return };
        for event in &*events {
            let data = event.data.u64();
            if data == WAKE {
                self.me.waker.clear();
                self.me.stats.woken_by_thread.add(1);
            } else if let Some(instance) = self.env.instances.iter().find(|i| u64::from(i.napi.id) == data) {
                self.me.stats.woken_by_doorbell.add(1);
                ring(instance, |napi| self.net_rx.schedule(napi));
            }
        }
    }

    /// The second look before sleep, at every input.
    fn has_input(&self) -> bool {
        self.me.stop.load(Ordering::Relaxed)
            || self.receiver.has_pending()
            || self.me.wanted.load(Ordering::Relaxed) != self.env_seen()
            || self.env.instances.iter().any(|i| i.armed.load(Ordering::Relaxed) && i.doorbell.pending())
    }

    /// Takes over the instance list as it is now.
    fn take_instances(&mut self) {
        let number = self.me.wanted.load(Ordering::Acquire);
        let mut wanted = lock(&self.me.instances).clone();
        wanted.sort_by_key(|i| i.napi.id);
        let is_in = |list: &[Arc<NapiInstance>], id| list.iter().any(|i| i.napi.id == id);
        for old in self.env.instances.iter().filter(|i| !is_in(&wanted, i.napi.id)) {
            let _ = epoll::delete(&self.epoll, old.doorbell.fd());
        }
        for new in wanted.iter().filter(|i| !is_in(&self.env.instances, i.napi.id)) {
            let data = epoll::EventData::new_u64(new.napi.id.into());
            if let Err(error) = epoll::add(&self.epoll, new.doorbell.fd(), data, epoll::EventFlags::IN) {
                // Cannot be waited for: it is polled all the same whenever the worker is awake.
                note(format_args!("worker {} can't wait for {}: {error}", self.me.index, new.napi.name));
            }
        }
        self.env.instances = wanted;
        self.me.seen.store(number, Ordering::Release);
    }

    /// The context, for whoever runs the worker on its own thread.
    pub fn context(&mut self) -> &mut SoftnetData {
        &mut self.env.ctx
    }
}

impl Drop for Worker {
    /// Completes what is scheduled without polling it, so that whoever closes the devices can disable the instances.
    fn drop(&mut self) {
        for napi in self.receiver.drain() {
            self.net_rx.schedule(napi);
        }
        for mut napi in self.net_rx.drain() {
            while let Completion::Again(again) = napi.complete(0, |napi, batch| self.env.receive(napi, batch))
            {
                napi = again;
            }
        }
        self.me.alive.store(false, Ordering::Release);
    }
}

/// An instance's doorbell rang: masks it and schedules the instance.
fn ring(instance: &NapiInstance, schedule: impl FnOnce(Scheduled<Rx>)) {
    instance.armed.store(false, Ordering::Relaxed);
    instance.doorbell.mask();
    if let Some(napi) = instance.napi.schedule_prep() {
        schedule(napi);
    }
}

impl Env {
    fn instance(&self, id: u32) -> Option<&Arc<NapiInstance>> {
        self.instances.binary_search_by_key(&id, |i| i.napi.id).ok().map(|at| &self.instances[at])
    }

    /// Processes the packets of one instance.
    fn receive(&mut self, napi: &NapiInfo, batch: &mut Batch) {
        let handler = self.instance(napi.id).map(|i| i.handler);
        let Env { ctx, shared, tx, index, .. } = self;
        match handler {
            Some(RxHandler::Ipv4(ingress)) => {
                ipv4_input(ctx, self.tables.load(), &ingress, batch, tx, &mut self.exceptions);
                tx.flush(|dev, batch| match shared.devices.get(usize::from(dev)) {
                    Some(dev) => dev_queue_xmit(ctx, dev, *index, batch),
                    None => ctx.free_batch(batch, DropReason::DevReady),
                });
                if !self.exceptions.batch.is_empty() {
                    self.exceptions();
                }
            }
            Some(RxHandler::Patch(dev)) if shared.devices.len() > usize::from(dev) => {
                dev_queue_xmit(ctx, &shared.devices[usize::from(dev)], *index, batch);
            }
            _ => ctx.free_batch(batch, DropReason::Shutdown),
        }
    }

    #[cold]
    fn exceptions(&mut self) {
        let (exceptions, worker) = (&mut self.exceptions, self.index as u16);
        self.shared.slow_path(&mut self.ctx, self.index, |slow, ctx, view, out| {
            for (mut skb, why) in exceptions.drain() {
                skb.head_mut().worker = worker;
                slow.handle(ctx, view, skb, why, out);
            }
        });
    }
}

impl Driver<Rx> for Env {
    fn poll(&mut self, napi: &NapiInfo, body: &mut Body<Rx>, weight: usize, _: &mut PollList<Rx>) -> usize {
        let weight = weight.min(BATCH);
        let Body { rx: Some(rx), gro, batch, .. } = body else { return 0 };
        let n = rx.rx_burst(&mut self.ctx, batch, weight);
        if n > 0 {
            if let Some(gro) = gro {
                gro.receive(batch);
            }
            self.receive(napi, batch);
        } else {
            for dev in &self.shared.devices {
                reap_idle(&mut self.ctx, dev, self.index);
            }
        }
        n
    }

    fn deliver(&mut self, napi: &NapiInfo, batch: &mut Batch) {
        self.receive(napi, batch);
    }

    fn released(&mut self, released: Released<Rx>, list: &mut PollList<Rx>) {
        let Some(instance) = self.instance(released.napi.id) else { return };
        if released.unmask {
            instance.doorbell.unmask();
            instance.armed.store(true, Ordering::Relaxed);
            if instance.doorbell.pending() {
                ring(instance, |napi| list.push(napi));
            }
        }
    }

    fn now(&mut self) -> u64 {
        self.now = self.shared.clock.now();
        self.now
    }
}
