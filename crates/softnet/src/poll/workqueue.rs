//! The context `workqueue`: a pool of threads that poll whichever instance is ready.
//!
//! All of them wait for one epoll set. It holds the doorbells of the pool's instances, each for one shot, and armed again
//! by whoever released the instance: epoll then looks at the descriptor, so that a ring which came before is not missed.
//! Instances that others scheduled, and those with more packets than one poll may bring, wait in a shared queue. A thread
//! that finds the queue empty counts itself as idle under the queue's lock; who appends while somebody is idle wakes one.
//!
//! Called by the pool's threads and by the housekeeper; [`Pool::schedule`] by anybody.
//!
//! Invariants: whoever has the `Scheduled` of an instance polls it, so that no two do. A thread touches an instance's
//! doorbell only while it holds the list of instances that it found it in; so an instance is forgotten as soon as
//! nobody holds a list with it any more.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use softnet_core::napi::{NetRx, Scheduled};
use softnet_core::sync::{AtomicBool, Ordering, Ready, ReadyQueue, fence};
use softnet_dev::PiMutex;

use super::worker::TIMER;
use super::{OnRelease, PollContext};
use crate::napi::{NapiInstance, PollThread, Rx, ring_shared};
use crate::stack::StackInner;

/// Marks the pool's own descriptor among the doorbells.
const WAKE: u64 = u64::MAX;
/// More wake-ups than there are threads: each takes one.
const ALL: u64 = 1 << 20;

type Instances = Arc<Vec<Arc<NapiInstance>>>;

/// See the module.
pub struct Pool {
    epoll: OwnedFd,
    /// A semaphore: one unit wakes one thread.
    bell: OwnedFd,
    /// Workers with a real-time policy push to it, while a thread without one may hold it.
    ready: ReadyQueue<Scheduled<Rx>, PiMutex<Ready<Scheduled<Rx>>>>,
    /// By NAPI id, ascending.
    instances: ArcSwap<Vec<Arc<NapiInstance>>>,
    stop: AtomicBool,
}

/// A list that an instance was removed from.
pub struct Removed(Instances);

impl Removed {
    /// Whether no thread works by that list any more. Then none will touch the instance's doorbell.
    pub fn is_forgotten(&self) -> bool {
        let forgotten = Arc::strong_count(&self.0) == 1;
        // What the threads did before they let go of it has happened.
        fence(Ordering::Acquire);
        forgotten
    }
}

impl Pool {
    /// A pool without threads or instances.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let bell = eventfd(0, flags)?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let (ready, instances) = (ReadyQueue::new(), ArcSwap::default());
        Ok(Pool { epoll, bell, ready, instances, stop: AtomicBool::new(false) })
    }

    /// Makes room for an instance that is to be [added](Self::add): the part that can fail.
    pub fn reserve(&self, instance: &NapiInstance) -> io::Result<()> {
        let data = |mark: u64| epoll::EventData::new_u64(mark | u64::from(instance.napi.id));
        epoll::add(&self.epoll, instance.doorbell.fd(), data(0), epoll::EventFlags::ONESHOT)?;
        let timer = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, instance.timer.fd(), data(TIMER), timer)
            .inspect_err(|_| self.release(instance))?;
        Ok(())
    }

    /// Takes back what was reserved.
    pub fn release(&self, instance: &NapiInstance) {
        let _ = epoll::delete(&self.epoll, instance.doorbell.fd());
        let _ = epoll::delete(&self.epoll, instance.timer.fd());
    }

    /// Adds an instance that is still disabled, and for which there is room.
    pub fn add(&self, instance: Arc<NapiInstance>) {
        let mut list = Vec::clone(&self.instances.load());
        list.push(instance);
        list.sort_by_key(|i| i.napi.id);
        self.instances.store(Arc::new(list));
    }

    /// Removes an instance, which has been disabled.
    pub fn remove(&self, instance: &NapiInstance) -> Removed {
        let mut list = Vec::clone(&self.instances.load());
        list.retain(|i| i.napi.id != instance.napi.id);
        let removed = Removed(self.instances.swap(Arc::new(list)));
        self.release(instance);
        removed
    }

    /// Whether it has no instances.
    pub fn is_empty(&self) -> bool {
        self.instances.load().is_empty()
    }

    /// Hands a scheduled instance to the pool, from any thread.
    pub fn schedule(&self, napi: Scheduled<Rx>) {
        if self.ready.push(napi) {
            self.wake(1);
        }
    }

    /// Ends the pool's threads.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake(ALL);
    }

    fn wake(&self, threads: u64) {
        // Can fail only if the counter is full, and then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.bell, &threads.to_ne_bytes());
    }

    /// From now on a ring of the instance's doorbell, which is unmasked, wakes one thread, even if it came before. `false`:
    /// it will not, and the instance must be polled in another way.
    pub(crate) fn arm(&self, instance: &NapiInstance) -> bool {
        let data = epoll::EventData::new_u64(instance.napi.id.into());
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::modify(&self.epoll, instance.doorbell.fd(), data, flags).is_ok()
    }
}

/// One thread of a pool: what it owns.
pub struct PoolThread {
    pool: Arc<Pool>,
    me: Arc<PollThread>,
    net_rx: NetRx<Rx>,
    /// What it works by while it is idle.
    none: Instances,
    env: PollContext,
}

impl PoolThread {
    /// A thread of `pool`, which others see as `me`.
    pub fn new(shared: &Arc<StackInner>, pool: &Arc<Pool>, me: Arc<PollThread>) -> Self {
        let net_rx = NetRx::new(shared.budget);
        me.net_rx.store(net_rx.stats().clone());
        let env = PollContext::new(shared, OnRelease::UnmaskFor(pool.clone()));
        PoolThread { pool: pool.clone(), me, net_rx, none: Arc::default(), env }
    }

    /// Works until the pool is stopped.
    pub fn run(mut self) {
        self.me.enter();
        let mut held = None;
        while !self.pool.stop.load(Ordering::Acquire) {
            let ready = match held.take() {
                Some(napi) => Some(self.pool.ready.exchange(napi)),
                None => self.pool.ready.take(),
            };
            let Some(napi) = ready.or_else(|| self.sleep()) else { continue };
            // Only now: an instance is added before it is scheduled.
            self.env.instances = self.pool.instances.load_full();
            // Whoever is always busy would not see what the others wait for.
            for other in self.env.instances.iter() {
                if other.armed.load(Ordering::Relaxed) && other.doorbell.pending() {
                    ring_shared(other).into_iter().for_each(|napi| self.pool.schedule(napi));
                }
            }
            self.env.fire(&mut self.net_rx);
            self.net_rx.drain().for_each(|napi| self.pool.schedule(napi));
            self.net_rx.schedule(napi);
            self.env.run(&mut self.net_rx, &self.me);
            held = self.net_rx.drain().next();
        }
    }

    /// Blocks until there may be something to do.
    fn sleep(&mut self) -> Option<Scheduled<Rx>> {
        self.env.rest(&self.me);
        self.env.instances = self.none.clone();
        self.me.asleep.store(true, Ordering::Relaxed);
        self.me.stats.sleeps.add(1);
        // One at a time: the rest is for the others.
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 1];
        let waited = epoll::wait(&self.pool.epoll, &mut events, None::<&Timespec>);
        self.me.asleep.store(false, Ordering::Relaxed);
        self.pool.ready.awake();
        // An interrupted wait is a wake-up without a cause.
        let data = waited.ok()?.0.first()?.data.u64();
        if data == WAKE {
            let _ = rustix::io::read(self.pool.bell.as_fd(), &mut [0; 8]);
            self.me.stats.woken_by_thread.add(1);
            return None;
        }
        self.env.instances = self.pool.instances.load_full();
        // One that was removed meanwhile is nobody's business here.
        let id = (data & !TIMER) as u32;
        let instance = self.env.instances.iter().find(|i| i.napi.id == id)?;
        if data & TIMER != 0 {
            self.me.stats.woken_by_timer.add(1);
            instance.timer.fired();
            let mut napi = None;
            instance.timer.if_due(self.env.shared.clock.now(), || {
                napi = instance.napi.watchdog();
                napi.is_some()
            });
            return napi;
        }
        self.me.stats.woken_by_doorbell.add(1);
        ring_shared(instance)
    }
}

#[cfg(test)]
mod tests {
    use softnet_dev::testing::lock_while_holder_is_hogged;

    use super::*;

    #[test]
    fn a_real_time_worker_lends_its_priority_to_the_holder_of_the_queue() {
        let pool = Pool::new().unwrap();
        let Some(got) = lock_while_holder_is_hogged(|| pool.ready.lock()) else {
            return eprintln!("skipped: no real-time threads for this user");
        };
        assert!(got, "the hog had to end first");
    }
}
