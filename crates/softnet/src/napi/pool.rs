//! The shared part of the pool that polls instances in the context `workqueue`: the epoll set that its threads wait for, the
//! queue of instances that are ready, and the list of its instances. The threads are [`PoolThread`](crate::poll::PoolThread)s.
//!
//! Any thread may call [`Pool::schedule`]; the housekeeper adds and removes instances. A thread that finds the queue empty
//! counts itself as idle under the queue's lock, and a thread that appends while another is idle wakes one.
//!
//! Invariant: a thread touches an instance's doorbell only while it holds the list of instances that it found it in; so an
//! instance is forgotten as soon as no thread holds a list with it any more.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustix::event::{EventfdFlags, epoll, eventfd};
use softnet_core::napi::Scheduled;
use softnet_core::sync::{AtomicBool, Ordering, Ready, ReadyQueue, fence};
use softnet_dev::PiMutex;

use super::{NapiInstance, Rx, TIMER, WAKE};

/// More wake-ups than there are threads: each takes one.
const ALL: u64 = 1 << 20;

pub(crate) type Instances = Arc<Vec<Arc<NapiInstance>>>;

/// See the module.
pub struct Pool {
    pub(crate) epoll: OwnedFd,
    /// A semaphore: one unit wakes one thread.
    pub(crate) wake_fd: OwnedFd,
    /// Workers with a real-time policy push to it, while a thread without one may hold it.
    pub(crate) ready: ReadyQueue<Scheduled<Rx>, PiMutex<Ready<Scheduled<Rx>>>>,
    /// By NAPI id, ascending.
    pub(crate) instances: ArcSwap<Vec<Arc<NapiInstance>>>,
    pub(crate) stop: AtomicBool,
}

/// A list that an instance was removed from.
#[derive(Debug)]
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
        let wake_fd = eventfd(0, flags)?;
        epoll::add(&epoll, &wake_fd, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let (ready, instances) = (ReadyQueue::new(), ArcSwap::default());
        Ok(Pool { epoll, wake_fd, ready, instances, stop: AtomicBool::new(false) })
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
        let _ = rustix::io::write(&self.wake_fd, &threads.to_ne_bytes());
    }

    /// From now on a ring of the instance's doorbell, which is unmasked, wakes one thread, even if it came before. `false`:
    /// it will not, and the instance must be polled in another way.
    pub(crate) fn arm(&self, instance: &NapiInstance) -> bool {
        let data = epoll::EventData::new_u64(instance.napi.id.into());
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::modify(&self.epoll, instance.doorbell.fd(), data, flags).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use softnet_testkit::lock_while_holder_is_hogged;

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
