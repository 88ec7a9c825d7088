//! A thread that polls a fixed list of instances: a worker, pinned to a CPU, which runs the context `softirq`, or an
//! instance's own thread (contexts `threaded` and `busy-poll`). It blocks when every input is idle, except in `busy-poll`,
//! where an instance that was released is scheduled again at once.
//!
//! A worker also runs the TX queues that are its own when they are due (see `net_tx`).
//!
//! Its inputs are the doorbells of its instances, its mailbox (instances that others scheduled), TX queues that fall due,
//! and changes of its lists. To sleep it announces that, looks at every input once more, and blocks on all their descriptors;
//! a thread that adds an input makes it visible first and then wakes the worker if that announced its sleep. So no wake-up is lost.

use std::sync::Arc;

use rustix::event::epoll;
use softnet_core::napi::{NetRx, Scheduled};
use softnet_core::sync::{Kick, Ordering, Receiver};

use super::net_tx::NetTx;
use super::{OnRelease, PollContext};
use crate::config::Context;
use crate::napi::{NapiInstance, Rx, TIMER, WAKE, WorkerShared, ring};
use crate::stack::StackInner;
use crate::util::{fail, lock};

/// Rounds in a row that found nothing, after which a thread that never sleeps offers its CPU to others.
const YIELD_AFTER: u32 = 32;

/// The worker itself: what its thread owns.
pub struct Worker {
    me: Arc<WorkerShared>,
    receiver: Receiver<Scheduled<Rx>>,
    net_rx: NetRx<Rx>,
    net_tx: NetTx,
    /// Rounds in a row that found nothing.
    empty: u32,
    env: PollContext,
}

impl Worker {
    /// The worker of `me`; there can be one.
    pub fn new(shared: &Arc<StackInner>, me: &Arc<WorkerShared>) -> std::io::Result<Self> {
        let receiver =
            lock(&me.receiver).take().ok_or_else(|| std::io::Error::other("worker exists already"))?;
        let net_rx = NetRx::new(shared.budget);
        me.thread.net_rx.store(net_rx.stats().clone());
        // Last, since nothing takes it back but the drop of what is returned.
        me.alive.store(true, Ordering::Release);
        let on_release = match me.thread.context {
            Context::BusyPoll => OnRelease::Again,
            _ => OnRelease::Unmask,
        };
        let (net_tx, env) = (NetTx::default(), PollContext::new(shared, on_release));
        env.ctx.stats().name.get_or_init(|| me.thread.name.clone());
        let waker = me.waker.clone();
        let kick: Kick = Arc::new(move || waker.wake());
        env.ctx.set_kick(&kick);
        Ok(Worker { receiver, net_rx, net_tx, empty: 0, env, me: me.clone() })
    }

    /// Works until it is stopped.
    pub fn run(mut self) {
        self.me.thread.enter();
        while !self.me.stop.load(Ordering::Acquire) {
            if !self.round() {
                self.sleep();
            } else if self.empty >= YIELD_AFTER && self.me.thread.context == Context::BusyPoll {
                self.empty = 0;
                self.env.rest(&self.me.thread);
                std::thread::yield_now();
            }
        }
    }

    /// One round: takes note of what was scheduled, runs TX queues that are due, and the softirq loop once. Returns whether it did anything.
    pub fn round(&mut self) -> bool {
        for napi in self.receiver.drain() {
            self.net_rx.schedule(napi);
        }
        if self.me.has_overflow() {
            self.me.take_overflow(false).into_iter().for_each(|napi| self.net_rx.schedule(napi));
        }
        // Only now: an instance is added before it is scheduled, so that all that were drained are in the list. One
        // that is not would be polled once, its packets dropped, and its doorbell never unmasked.
        if self.me.wanted.load(Ordering::Relaxed) != self.env_seen() {
            self.take_lists();
        }
        let sent = self.me.tx_due.is_set() && self.net_tx.run(&self.me, &mut self.env);
        for instance in self.env.instances.iter() {
            if instance.armed.load(Ordering::Relaxed) && instance.doorbell.pending() {
                ring(instance, |napi| self.net_rx.schedule(napi));
            }
        }
        self.env.fire(&mut self.net_rx);
        if self.net_rx.is_idle() {
            return sent;
        }
        let work = self.env.run(&mut self.net_rx, &self.me.thread);
        self.empty = if work > 0 { 0 } else { self.empty.saturating_add(1) };
        true
    }

    fn env_seen(&self) -> u64 {
        self.me.seen.load(Ordering::Relaxed)
    }

    /// Blocks until there may be something to do.
    fn sleep(&mut self) {
        let thread = &*self.me.thread;
        self.env.rest(thread);
        let announced = self.me.waker.sleeper.announce();
        self.env.instances.iter().for_each(|instance| instance.update_watch());
        if self.has_input() {
            drop(announced);
            return thread.stats.rechecks.add(1);
        }
        thread.stats.sleeps.add(1);
        thread.asleep.store(true, Ordering::Relaxed);
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 16];
        let timeout = self.net_tx.timeout(&self.env.shared.clock);
        let waited = epoll::wait(&self.me.epoll, &mut events, timeout.as_ref());
        announced.awake();
        thread.asleep.store(false, Ordering::Relaxed);
        // An interrupted wait is a wake-up without a cause.
        let Ok((events, _)) = waited else { return };
        if events.is_empty() {
            thread.stats.woken_by_timer.add(1);
        }
        for event in &*events {
            let data = event.data.u64();
            if data == WAKE {
                self.me.waker.clear();
                thread.stats.woken_by_thread.add(1);
                continue;
            }
            let id = (data & !TIMER) as u32;
            let Some(instance) = self.env.instances.iter().find(|i| i.napi.id == id) else { continue };
            if data & TIMER != 0 {
                // The next round sees whether it is due.
                instance.timer.fired();
                thread.stats.woken_by_timer.add(1);
            } else {
                thread.stats.woken_by_doorbell.add(1);
                ring(instance, |napi| self.net_rx.schedule(napi));
            }
        }
    }

    /// The second look before sleep, at every input.
    fn has_input(&self) -> bool {
        self.me.stop.load(Ordering::Relaxed)
            || self.receiver.has_pending()
            || self.me.has_overflow()
            || self.me.wanted.load(Ordering::Relaxed) != self.env_seen()
            || self.net_tx.is_due(&self.me, &self.env.shared.clock)
            || self.env.instances.iter().any(|i| i.armed.load(Ordering::Relaxed) && i.doorbell.pending())
    }

    /// Takes over the lists as they are now.
    fn take_lists(&mut self) {
        let number = self.me.wanted.load(Ordering::Acquire);
        self.net_tx.take(&self.me, self.me.tx_queues.lock().clone());
        let mut wanted = self.me.instances.lock().clone();
        wanted.sort_by_key(|i| i.napi.id);
        let is_in = |list: &[Arc<NapiInstance>], id| list.binary_search_by_key(&id, |i| i.napi.id).is_ok();
        for old in self.env.instances.iter().filter(|i| !is_in(&wanted, i.napi.id)) {
            old.set_watcher(None);
            let _ = epoll::delete(&self.me.epoll, old.doorbell.fd());
            let _ = epoll::delete(&self.me.epoll, old.timer.fd());
        }
        for new in wanted.iter().filter(|i| !is_in(&self.env.instances, i.napi.id)) {
            let data = |mark: u64| epoll::EventData::new_u64(mark | u64::from(new.napi.id));
            let (doorbell, timer) = (epoll::EventFlags::IN, epoll::EventFlags::IN | epoll::EventFlags::ET);
            let added = epoll::add(&self.me.epoll, new.doorbell.fd(), data(0), doorbell)
                .and_then(|()| epoll::add(&self.me.epoll, new.timer.fd(), data(TIMER), timer));
            if let Err(error) = added {
                // Cannot be waited for: it is polled all the same whenever the worker is awake.
                fail(format_args!("{} can't wait for {}: {error}", self.me.thread.name, new.napi.name));
            }
            new.set_watcher(Some(self.me.clone()));
        }
        self.env.instances = Arc::new(wanted);
        self.me.seen.store(number, Ordering::Release);
    }
}

impl Drop for Worker {
    /// Completes what is scheduled without polling it, so that the housekeeper can disable the instances when it closes the devices.
    fn drop(&mut self) {
        for napi in self.receiver.drain() {
            self.net_rx.schedule(napi);
        }
        self.me.take_overflow(true).into_iter().for_each(|napi| self.net_rx.schedule(napi));
        self.env.give_up(&mut self.net_rx);
        self.me.alive.store(false, Ordering::Release);
    }
}
