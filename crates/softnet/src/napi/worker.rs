//! What other threads see of a thread that polls a fixed list of instances: a worker, or an instance's own thread. The thread
//! itself is [`Worker`](crate::poll::Worker).
//!
//! Any thread hands it instances and wakes it; the housekeeper changes its lists of instances and TX queues. A change is made
//! visible first, and then wakes the thread if that announced its sleep: so no wake-up is lost.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::event::epoll;
use softnet_core::napi::Scheduled;
use softnet_core::sync::{AtomicBool, AtomicU64, Mailbox, Ordering, PushError, Receiver, mailbox};
use softnet_dev::PiMutex;

use super::{NapiInstance, PollThread, Rx};
use crate::config::Context;
use crate::tx::{NetdevQueue, TxDue};
use crate::util::Waker;

/// Messages that may wait for a worker without a lock. An instance waits at most once; those of a
/// worker that has more go to its overflow list, which tests are to reach, too.
const MAILBOX: u32 = if cfg!(test) { 8 } else { 4096 };
/// The same for the thread of one instance.
const MAILBOX_OF_ONE: u32 = 4;
/// Marks the worker's own descriptor among those it waits for.
pub(crate) const WAKE: u64 = u64::MAX;
/// Marks timers among them.
pub(crate) const TIMER: u64 = 1 << 32;
/// The side of a worker that others see.
pub struct WorkerShared {
    /// The thread.
    pub thread: Arc<PollThread>,
    /// Wakes it.
    pub waker: Arc<Waker>,
    /// What it waits for: doorbells and timers of its instances, by id, and its own descriptor.
    pub(crate) epoll: OwnedFd,
    mailbox: Mailbox<Scheduled<Rx>>,
    overflow: PiMutex<Overflow>,
    /// Something is on the overflow list; written under its lock.
    overflows: AtomicBool,
    pub(crate) receiver: Mutex<Option<Receiver<Scheduled<Rx>>>>,
    pub(crate) instances: PiMutex<Vec<Arc<NapiInstance>>>,
    pub(crate) tx_queues: PiMutex<Vec<Arc<NetdevQueue>>>,
    /// When it is to run them.
    pub tx_due: Arc<TxDue>,
    /// Number of the two lists; and the one the worker has seen.
    pub(crate) wanted: AtomicU64,
    pub(crate) seen: AtomicU64,
    pub(crate) stop: AtomicBool,
    /// There is a [`Worker`].
    pub(crate) alive: AtomicBool,
}

/// Scheduled instances for which there was no room in a worker's mailbox.
#[derive(Default)]
struct Overflow {
    list: Vec<Scheduled<Rx>>,
    /// The worker is gone.
    closed: bool,
}

impl WorkerShared {
    /// A worker without instances.
    pub fn new(thread: PollThread) -> std::io::Result<Self> {
        let one = thread.context != Context::Softirq;
        let (mailbox, receiver) = mailbox(if one { MAILBOX_OF_ONE } else { MAILBOX });
        let (epoll, waker) = (epoll::create(epoll::CreateFlags::CLOEXEC)?, Arc::new(Waker::new()?));
        epoll::add(&epoll, waker.fd(), epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        Ok(WorkerShared {
            thread: Arc::new(thread),
            tx_due: Arc::new(TxDue::new(waker.clone())),
            waker,
            epoll,
            mailbox,
            overflow: PiMutex::default(),
            overflows: AtomicBool::new(false),
            receiver: Mutex::new(Some(receiver)),
            instances: PiMutex::default(),
            tx_queues: PiMutex::default(),
            wanted: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            alive: AtomicBool::new(false),
        })
    }

    /// Hands a scheduled instance to the worker, from any thread.
    pub fn schedule(&self, napi: Scheduled<Rx>) {
        match self.mailbox.push(napi) {
            Ok(true) => self.waker.wake(),
            Ok(false) | Err(PushError::Closed(_)) => {}
            Err(PushError::Full(napi)) => self.schedule_beyond(napi),
        }
    }

    /// More instances than the mailbox has room for are scheduled at once. The worker may not run
    /// yet, so that no room is waited for.
    #[cold]
    fn schedule_beyond(&self, napi: Scheduled<Rx>) {
        let mut overflow = self.overflow.lock();
        if !overflow.closed {
            overflow.list.push(napi);
            self.overflows.store(true, Ordering::Release);
            drop(overflow);
            self.waker.wake();
        }
    }

    /// Whether something is on the overflow list.
    #[inline(always)]
    pub(crate) fn has_overflow(&self) -> bool {
        self.overflows.load(Ordering::Acquire)
    }

    /// Takes what is on the overflow list. For the worker alone, which is `closing` when it ends:
    /// then nothing is taken any more.
    #[cold]
    pub(crate) fn take_overflow(&self, closing: bool) -> Vec<Scheduled<Rx>> {
        let mut overflow = self.overflow.lock();
        overflow.closed |= closing;
        self.overflows.store(false, Ordering::Relaxed);
        std::mem::take(&mut overflow.list)
    }

    /// Makes the worker watch `instance`, which is still disabled.
    pub fn add(&self, instance: Arc<NapiInstance>) {
        self.instances.lock().push(instance);
        self.changed();
    }

    /// Makes the worker forget an instance, which has been disabled. When it [has seen](Self::has_seen) the number
    /// that this returns, it will not touch the doorbell again.
    pub fn remove(&self, id: u32) -> u64 {
        self.instances.lock().retain(|i| i.napi.id != id);
        self.changed()
    }

    /// Makes the worker run `queue` when it is due.
    pub fn add_tx(&self, queue: Arc<NetdevQueue>) {
        self.tx_queues.lock().push(queue);
        self.changed();
    }

    /// Makes the worker forget a TX queue, which was closed.
    pub fn remove_tx(&self, queue: &Arc<NetdevQueue>) {
        self.tx_queues.lock().retain(|other| !Arc::ptr_eq(other, queue));
        self.changed();
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

    /// Listens to the doorbell of one of its instances, or does not. Any thread may call it.
    pub(crate) fn watch(&self, instance: &NapiInstance, wanted: bool) {
        let flags = if wanted { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(instance.napi.id.into());
        // Fails only for a doorbell that can't be waited for, which was said when it was added.
        let _ = epoll::modify(&self.epoll, instance.doorbell.fd(), data, flags);
    }

    /// Whether it blocks, or is about to.
    pub fn is_sleeping(&self) -> bool {
        self.waker.sleeper.is_announced()
    }
}
