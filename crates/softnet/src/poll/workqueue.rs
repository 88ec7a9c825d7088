//! The threads of the context `workqueue`, which poll whichever instance of their [`Pool`] is ready.
//!
//! All of them wait for one epoll set. It holds the doorbells of the pool's instances, each for one shot. The thread that
//! releases an instance arms its doorbell again: epoll then looks at the descriptor, so that a ring which came before is not
//! missed. Instances that other threads scheduled, and those with more packets than one poll may bring, wait in a shared queue.
//!
//! Started by the housekeeper. Invariant: the thread that has the `Scheduled` of an instance polls it, so that no two do.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{Timespec, epoll};
use softnet_core::napi::{NetRx, Scheduled};
use softnet_core::sync::Ordering;

use super::{OnRelease, PollContext};
use crate::napi::{Instances, PollThread, Pool, Rx, TIMER, WAKE, ring_shared};
use crate::stack::StackInner;

/// One thread of a pool: what it owns.
pub(crate) struct PoolThread {
    pool: Arc<Pool>,
    me: Arc<PollThread>,
    net_rx: NetRx<Rx>,
    /// What it works by while it is idle.
    none: Instances,
    env: PollContext,
}

impl PoolThread {
    /// A thread of `pool`, which others see as `me`.
    pub(crate) fn new(shared: &Arc<StackInner>, pool: &Arc<Pool>, me: Arc<PollThread>) -> Self {
        let net_rx = NetRx::new(shared.budget);
        me.net_rx.store(net_rx.stats().clone());
        let env = PollContext::new(shared, OnRelease::UnmaskFor(pool.clone()));
        PoolThread { pool: pool.clone(), me, net_rx, none: Arc::default(), env }
    }

    /// Works until the pool is stopped.
    pub(crate) fn run(mut self) {
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
            // A thread that is always busy would not see what the others wait for.
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
            let _ = rustix::io::read(self.pool.wake_fd.as_fd(), &mut [0; 8]);
            self.me.stats.woken_by_thread.add(1);
            return None;
        }
        self.env.instances = self.pool.instances.load_full();
        // One that was removed meanwhile is left alone.
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
