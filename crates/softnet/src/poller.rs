//! The application as poller: [`NapiPoller`] waits for packets of one NAPI instance, and polls it itself where that is
//! better than being woken.
//!
//! One call of [`wait`](NapiPoller::wait) goes as the kernel's `epoll_wait` does (`fs/eventpoll.c`, `ep_poll`):
//!
//! 1. What is ready is handed over. If that is anything, the instance's doorbell is *suspended*, that is its timer is armed
//!    with `irq_suspend_timeout`, and nobody else polls as long as the application comes back in time.
//! 2. With a time-out of 0 that was all.
//! 3. With `busy_poll_usecs` or `prefer_busy_poll` the application takes the instance, if nobody has it, and polls
//!    until something is ready or the time is over. One pass, if it only prefers.
//! 4. If there is still nothing, it *resumes* the instance (only with `prefer_busy_poll`): that is polled once more, and
//!    then its doorbell is masked for `gro_flush_timeout` or unmasked, as after any poll. The application sleeps.
//!
//! While it sleeps, and the instance is polled by a worker otherwise (context `softirq`), the application waits for
//! `gro_flush_timeout` itself and polls when it is over, so that one thread is woken and not two; it then sleeps on,
//! unless something came for it. The instance's timer is armed for a little longer meanwhile.
//!
//! The timer belongs to the instance and is waited for by its context, so an application that hangs, or whose thread
//! ends, keeps the queue for `irq_suspend_timeout` at most. Packets that the application does not want take the way they
//! always take, whoever polls.
//!
//! Any thread may make one and use it; a second one on the same instance sleeps while the first one polls, and is
//! woken when something came for it.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnet_core::SoftnetData;
use softnet_core::napi::{Completion, Scheduled, WEIGHT};
use softnet_core::qdisc::Verdict;
use softnet_core::skb::{Batch, DropReason, SkbList};
use softnet_core::sync::{Ordering, Receiver, mailbox};

use crate::app::{App, Filter};
use crate::context::Context;
use crate::control::Target;
use crate::instance::{NapiInstance, Rx, ring_shared};
use crate::polling::{Env, OnRelease};
use crate::residency::Phase;
use crate::sender::{FOR_EVER, LocalSender, WouldBlock};
use crate::shared::Shared;
use crate::timer::Timeout;

/// The largest `busy_poll_usecs`: the kernel's `S32_MAX`.
pub const MAX_BUSY_POLL_USECS: u32 = i32::MAX as u32;

/// How much later than `gro_flush_timeout` the instance's context polls, should the application that sleeps fail to: about
/// what a scheduler takes to bring a thread to the CPU that others want as well.
const GRACE: u64 = 1_000_000;

/// How an application polls (the kernel's `struct epoll_params`), and how much may wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerParams {
    /// For how many µs it polls before it sleeps, at most [`MAX_BUSY_POLL_USECS`]. 0: not at all, or, with
    /// `prefer_busy_poll`, once.
    pub busy_poll_usecs: u32,
    /// Packets that one poll may receive, 1 to 64.
    pub busy_poll_budget: u16,
    /// Whether it would rather poll than have others do so: the doorbell stays masked between its polls, if
    /// `napi_defer_hard_irqs` and `gro_flush_timeout` are set.
    pub prefer_busy_poll: bool,
    /// Packets that may wait for it; more are dropped.
    pub rx_queue_len: usize,
}

impl Default for PollerParams {
    /// Does not poll: it is woken.
    fn default() -> Self {
        PollerParams { busy_poll_usecs: 0, busy_poll_budget: 8, prefer_busy_poll: false, rx_queue_len: 1024 }
    }
}

impl PollerParams {
    /// Whether those that may change are in range.
    fn check(&self) -> Result<(), PollerError> {
        in_range("busy_poll_usecs", self.busy_poll_usecs.into(), 0, MAX_BUSY_POLL_USECS.into())?;
        in_range("busy_poll_budget", self.busy_poll_budget.into(), 1, WEIGHT as u64)
    }
}

/// Why there is no poller, or no packets.
#[derive(Debug, thiserror::Error)]
pub enum PollerError {
    /// No instance has that id now; the text says which there are.
    #[error("{0}")]
    NoSuchNapi(String),
    /// A parameter is out of range.
    #[error("{what}: {value} is out of range, {min} to {max} expected")]
    OutOfRange {
        /// The parameter.
        what: &'static str,
        /// What it was to be.
        value: u64,
        /// The smallest value.
        min: u64,
        /// The largest value.
        max: u64,
    },
    /// The instance is gone with its interface. When that is back it has a new one.
    #[error("{0} is closed: its interface went away, or the stack was stopped")]
    Closed(String),
    /// Packets that wait for applications might take more than half of packet memory, and RX rings would run dry.
    #[error(
        "rx_queue_len: {wanted} packets, but applications may hold {left} more of the {frames} frames; \
         expected less, or more stack.frames"
    )]
    NoRoom {
        /// What was asked for.
        wanted: usize,
        /// What there is left.
        left: usize,
        /// Frames of packet memory.
        frames: u32,
    },
    /// The operating system refused.
    #[error("descriptors for a poller: {0}")]
    System(#[from] io::Error),
}

/// See the [module](self).
pub struct NapiPoller {
    _held: Held,
    instance: Arc<NapiInstance>,
    app: Arc<App>,
    receiver: Option<Receiver<SkbList>>,
    /// The timer that it waits for in its context's place: since when, and until when.
    timer: Option<(u64, u64)>,
    /// Of what was received, what did not fit the caller's batch.
    pending: SkbList,
    env: Env,
    sender: LocalSender,
    params: PollerParams,
    entered: bool,
    /// A stop left the doorbell masked and asked for this timer, in ns, which a suspension is to replace.
    deferred: Option<NonZeroU64>,
}

/// What packets that wait for an application may take of packet memory, as long as it is there.
struct Held {
    shared: Arc<Shared>,
    packets: usize,
}

impl Held {
    fn new(shared: &Arc<Shared>, packets: usize, most: usize) -> Result<Self, PollerError> {
        let held = &shared.app_packets;
        let reserve = |held: usize| held.checked_add(packets).filter(|sum| *sum <= most);
        match held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve) {
            Ok(_) => Ok(Held { shared: shared.clone(), packets }),
            Err(held) => Err(PollerError::NoRoom {
                wanted: packets,
                left: most.saturating_sub(held),
                frames: shared.region.frame_count(),
            }),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.app_packets.fetch_sub(self.packets, Ordering::Relaxed);
    }
}

fn in_range(what: &'static str, value: u64, min: u64, max: u64) -> Result<(), PollerError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(PollerError::OutOfRange { what, value, min, max })
}

impl NapiPoller {
    /// A poller of instance `napi` of a stack, that is given the packets that `filter` wants and no poller before it
    /// did. `name` is for display.
    pub fn new(
        shared: &Arc<Shared>,
        napi: u32,
        name: &str,
        filter: Filter,
        params: PollerParams,
    ) -> Result<Self, PollerError> {
        params.check()?;
        in_range("rx_queue_len", params.rx_queue_len as u64, 1, 1 << 20)?;
        let half = shared.region.frame_count() as usize / 2;
        let held = Held::new(shared, params.rx_queue_len, half)?;
        let (_, found) = shared.find(&Target::Napi(napi)).map_err(PollerError::NoSuchNapi)?;
        let [instance] =
            <[_; 1]>::try_from(found).unwrap_or_else(|_| unreachable!("an id is of one instance"));
        // Every list that waits holds a packet at least, and each poller adds one poll's worth at the most.
        let (ready, receiver) = mailbox((params.rx_queue_len + 2 * WEIGHT) as u32);
        let app = Arc::new(App::new(name.into(), filter, params.rx_queue_len, ready)?);
        let mut env = Env::new(shared, OnRelease::Unmask);
        env.instances = Arc::new(vec![instance.clone()]);
        instance.apps.add(&app);
        let pending = SkbList::new();
        let (receiver, entered, deferred) = (Some(receiver), false, None);
        Ok(NapiPoller {
            _held: held,
            timer: None,
            instance,
            app,
            receiver,
            pending,
            env,
            sender: LocalSender::default(),
            params,
            entered,
            deferred,
        })
    }

    /// The NAPI instance.
    pub fn napi_id(&self) -> u32 {
        self.instance.napi.id
    }

    /// Packet memory of the calling thread: to make packets, and to free received ones.
    pub fn ctx(&mut self) -> &mut SoftnetData {
        &mut self.env.ctx
    }

    /// Changes how it polls, from the next call on. (`rx_queue_len` stays as it was.)
    pub fn set_params(&mut self, params: PollerParams) -> Result<(), PollerError> {
        params.check()?;
        if self.params.prefer_busy_poll && !params.prefer_busy_poll {
            // It will not come back as one that prefers.
            self.resume();
        }
        self.params = params;
        Ok(())
    }

    /// Appends packets to `into` as soon as there are any, and returns how many. 0 after `timeout` (`None`: never), or if
    /// there is no room. See the [module](self) for what it does meanwhile.
    pub fn wait(&mut self, into: &mut Batch, timeout: Option<Duration>) -> Result<usize, PollerError> {
        if !self.entered {
            self.entered = true;
            self.app.enter();
        }
        let mut deadline = None;
        loop {
            let n = self.take(into);
            if n > 0 {
                self.suspend(n);
                return Ok(n);
            }
            if self.instance.is_closed() {
                return Err(PollerError::Closed(self.instance.napi.name.clone()));
            }
            if into.room() == 0 || timeout == Some(Duration::ZERO) {
                return Ok(0);
            }
            // Of the whole call, busy polling included. One beyond the end of time is none.
            let until = *deadline.get_or_insert_with(|| timeout.and_then(|t| Instant::now().checked_add(t)));
            if self.params.busy_poll_usecs > 0 || self.params.prefer_busy_poll {
                self.busy_loop(until);
                if self.is_ready() {
                    continue;
                }
            }
            if self.params.prefer_busy_poll {
                self.resume();
                if self.is_ready() {
                    continue;
                }
            }
            if !self.sleep(until) {
                return Ok(0);
            }
        }
    }

    /// Sends `batch` out of the instance's device, by the TX queue with the number of its RX queue unless the device's maps
    /// say another, and leaves it empty. Blocks while too many packets are pending there. What can't be sent is dropped and
    /// counted; says the worst that became of it, as far as that is known by then.
    pub fn send(&mut self, batch: &mut Batch) -> Verdict {
        self.send_or(batch, true).unwrap_or(Verdict::Drop)
    }

    /// The same without blocking: the batch stays as it is if it would have to.
    pub fn try_send(&mut self, batch: &mut Batch) -> Result<Verdict, WouldBlock> {
        self.send_or(batch, false)
    }

    fn send_or(&mut self, batch: &mut Batch, wait: bool) -> Result<Verdict, WouldBlock> {
        let Env { ctx, shared, .. } = &mut self.env;
        let napi = &self.instance.napi;
        if self.instance.is_closed() {
            ctx.originated(batch.len() as u64);
            ctx.free_batch_at(batch, napi.dev, DropReason::DevReady);
            return Ok(Verdict::Drop);
        }
        self.sender.send(shared, ctx, (napi.dev, Some(napi.queue)), batch, wait.then_some(FOR_EVER))
    }

    fn is_ready(&self) -> bool {
        !self.pending.is_empty() || self.receiver.as_ref().is_some_and(Receiver::has_pending)
    }

    /// Hands over what is ready.
    fn take(&mut self, into: &mut Batch) -> usize {
        let (before, Some(receiver)) = (into.len(), &mut self.receiver) else { return 0 };
        while into.room() > 0 {
            if let Some(skb) = self.pending.pop_front() {
                let Err(skb) = into.push(skb) else { continue };
                // There was room, so this does not happen.
                self.env.ctx.free_skb(skb);
            } else if let Some(list) = receiver.drain().next() {
                self.pending = list;
            } else {
                break;
            }
        }
        let n = into.len() - before;
        if n > 0 {
            self.app.took(n);
        }
        n
    }

    /// `n` packets were handed over: the application is expected back.
    fn suspend(&mut self, n: usize) {
        if !self.params.prefer_busy_poll {
            return;
        }
        let (instance, deferred) = (&self.instance, self.deferred.take());
        let now = self.env.shared.clock.now();
        let Some(ns) = instance.napi.suspend(n) else {
            // `irq_suspend_timeout` was set to 0 since the stop, or the instance is just being switched.
            return deferred.into_iter().for_each(|ns| instance.timer.arm(now, ns, Timeout::GroFlush));
        };
        instance.timer.arm(now, ns, Timeout::IrqSuspend);
        instance.stats.suspensions.fetch_add(1, Ordering::Relaxed);
        instance.poller.store(self.app.tid.load(Ordering::Relaxed), Ordering::Relaxed);
        if !instance.residency.is(Phase::Polled) {
            let rings = instance.armed.load(Ordering::Relaxed);
            instance.residency.enter(if rings { Phase::Irq } else { Phase::Suspended }, now);
        }
    }

    /// Polls until something is ready or the time is over, if nobody else has the instance. The thread of the context
    /// `busy-poll` always has it, as the kernel's has; it only lets go of it between two polls.
    fn busy_loop(&mut self, until: Option<Instant>) {
        let instance = self.instance.clone();
        let prefer = self.params.prefer_busy_poll;
        let polled = instance.home().is_some_and(|home| home.context() == Context::BusyPoll);
        let mut owned = if polled { None } else { instance.napi.busy_poll(prefer) };
        if owned.is_none() {
            instance.stats.busy_poll_lost.fetch_add(1, Ordering::Relaxed);
            let usecs = self.params.busy_poll_usecs;
            if polled || usecs == 0 {
                return;
            }
            // Not to spin beside whoever has it. If that was asked to give way, it has by then.
            let soon = Instant::now() + Duration::from_micros(usecs.into());
            self.sleep(Some(until.map_or(soon, |until| until.min(soon))));
            if !self.is_ready() {
                owned = instance.napi.busy_poll(prefer);
            }
        }
        let Some(mut owned) = owned else { return };
        instance.poller.store(self.app.tid.load(Ordering::Relaxed), Ordering::Relaxed);
        instance.stats.busy_polls.fetch_add(1, Ordering::Relaxed);
        let budget = usize::from(self.params.busy_poll_budget);
        let mut now = self.env.shared.clock.now();
        instance.residency.enter(Phase::Application, now);
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let ns = left.map_or(u64::MAX, |left| left.as_nanos().try_into().unwrap_or(u64::MAX));
        let end = now.saturating_add(ns.min(u64::from(self.params.busy_poll_usecs) * 1000));
        loop {
            let (info, body) = owned.parts();
            self.env.now = now;
            let n = self.env.poll_once(info, body, budget);
            info.stats.polled(n, budget);
            // Other applications, each time: this one may go on for long.
            self.env.wake_apps();
            let over = now >= end;
            now = self.env.shared.clock.now();
            if over || self.is_ready() || owned.disable_pending() {
                break;
            }
        }
        if prefer && instance.napi.mitigation.defers() && instance.armed.load(Ordering::Relaxed) {
            // It has not rung, or whom it woke found the instance owned. From now on it is the timer that matters.
            instance.mask();
        }
        let env = &mut self.env;
        match owned.stop(prefer, |info, batch| env.receive(info, batch)) {
            Completion::Released(released) => {
                // What follows, a suspension or a resumption, comes with a timer that replaces this one.
                if instance.napi.mitigation.irq_suspend_timeout() > 0 {
                    self.deferred = released.timer;
                    instance.residency.enter(Phase::Deferred, now);
                } else {
                    self.env.settle(&instance, &released, now, 0);
                }
            }
            Completion::Again(napi) => self.finish(napi, 0),
        }
        self.env.wake_apps();
    }

    /// Polls once as anybody would, and completes. What is not done with that is for the instance's context. With a `grace`
    /// this thread waits for the timer that follows, and the instance's is armed for so much longer.
    fn finish(&mut self, mut napi: Scheduled<Rx>, grace: u64) {
        let (info, body) = napi.parts();
        self.env.now = self.env.shared.clock.now();
        let n = self.env.poll_once(info, body, WEIGHT);
        info.stats.polled(n, WEIGHT);
        if n >= WEIGHT && !napi.disable_pending() {
            return self.instance.hand_over(napi);
        }
        let env = &mut self.env;
        match napi.complete(n, |info, batch| env.receive(info, batch)) {
            Completion::Released(released) => {
                let now = env.shared.clock.now();
                let timer = released.timer.filter(|_| grace > 0);
                self.timer = timer.map(|ns| (now, now.saturating_add(ns.get())));
                let polls_at = self.timer.map_or(0, |(_, due)| due);
                self.instance.polls_at.store(polls_at, Ordering::Relaxed);
                if !env.settle(&self.instance, &released, now, grace) {
                    ring_shared(&self.instance).into_iter().for_each(|napi| self.instance.hand_over(napi));
                }
            }
            Completion::Again(napi) => self.instance.hand_over(napi),
        }
    }

    /// The application is about to sleep: from now on the instance's context polls, or its doorbell rings.
    fn resume(&mut self) {
        let instance = self.instance.clone();
        let deferred = self.deferred.take();
        // There is nothing to give back while the doorbell can ring.
        let rings = instance.armed.load(Ordering::Relaxed);
        let napi = if rings { None } else { instance.napi.resume() };
        let Some(napi) = napi else {
            // Somebody has it. Or `irq_suspend_timeout` was set to 0 since the stop.
            let now = self.env.shared.clock.now();
            return deferred.into_iter().for_each(|ns| instance.timer.arm(now, ns, Timeout::GroFlush));
        };
        instance.stats.resumptions.fetch_add(1, Ordering::Relaxed);
        // Like the kernel, which polls on the CPU that schedules unless threads do so: nobody need be woken for it.
        match instance.home().map(|home| home.context()) {
            Some(Context::Softirq) => self.finish(napi, GRACE),
            _ => instance.hand_over(napi),
        }
        self.env.wake_apps();
    }

    /// It is time to poll a deferred instance, if nobody does so.
    fn timer_expired(&mut self, armed_at: u64, now: u64) {
        let instance = self.instance.clone();
        if instance.home().is_none_or(|home| home.context() != Context::Softirq) {
            // It was switched meanwhile.
            return;
        }
        let Some(napi) = instance.napi.watchdog() else { return };
        instance.timer.deferred(now.saturating_sub(armed_at));
        instance.residency.enter(Phase::Application, now);
        self.finish(napi, GRACE);
        self.env.wake_apps();
    }

    /// Sleeps until something is ready, and polls meanwhile when the timer says so that it waits for in its context's place.
    /// `false`: that took until `until`. It may return early.
    fn sleep(&mut self, until: Option<Instant>) -> bool {
        let woken = self.sleep_and_poll(until);
        if self.timer.take().is_some() {
            self.instance.polls_at.store(0, Ordering::Relaxed);
        }
        woken
    }

    fn sleep_and_poll(&mut self, until: Option<Instant>) -> bool {
        loop {
            let woken = self.block(until);
            if let Some((armed_at, due)) = self.timer {
                let now = self.env.shared.clock.now();
                if due <= now {
                    self.timer = None;
                    self.instance.polls_at.store(0, Ordering::Relaxed);
                    self.timer_expired(armed_at, now);
                }
            }
            if woken || self.is_ready() {
                return true;
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return false;
            }
        }
    }

    /// Blocks once. Returns whether it was woken.
    fn block(&mut self, until: Option<Instant>) -> bool {
        self.env.let_go();
        let waker = &self.app.waker;
        let announced = waker.sleeper.announce();
        if self.is_ready() || self.instance.is_closed() {
            drop(announced);
            return true;
        }
        let mut left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if let Some((_, due)) = self.timer {
            let timer = Duration::from_nanos(due.saturating_sub(self.env.shared.clock.now()));
            left = Some(left.map_or(timer, |left| left.min(timer)));
        }
        self.app.sleeps.fetch_add(1, Ordering::Relaxed);
        let timeout = left.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        let mut fds = [PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN)];
        // An interrupted wait is a wake-up without a cause.
        let interrupted = poll(&mut fds, timeout.as_ref()).is_err();
        let woken = !fds[0].revents().is_empty();
        if announced.awake() || woken {
            waker.clear();
        }
        woken || interrupted
    }
}

impl Drop for NapiPoller {
    /// Goes away: what waits is freed, and the instance is polled by its context from now on.
    fn drop(&mut self) {
        self.instance.apps.remove(&self.app);
        if self.params.prefer_busy_poll || self.params.busy_poll_usecs > 0 {
            let napi = self.instance.napi.schedule_prep();
            napi.into_iter().for_each(|napi| self.instance.hand_over(napi));
        }
        let ctx = &mut self.env.ctx;
        let mut free = |mut list: SkbList| {
            while let Some(skb) = list.pop_front() {
                ctx.free_skb(skb);
            }
        };
        free(std::mem::take(&mut self.pending));
        // Whoever still polls with the old list of applications is refused from now on.
        if let Some(receiver) = self.receiver.take() {
            receiver.close(free);
        }
        self.env.ctx.drain();
    }
}

#[cfg(test)]
mod tests;
