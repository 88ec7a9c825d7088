//! How a thread of an application polls a NAPI instance: what [`NapiPoller`](crate::app::NapiPoller) does for packets, and
//! an epoll set, or a call that blocks, for sockets.
//!
//! The caller goes through the steps of the kernel's `ep_poll` (see [`poller`](crate::app)); each step is a method here.
//! What is ready, and how to block, is the caller's: `Waits`.
//!
//! Used by one thread at a time, which may lose its CPU at any point, unlike the kernel's, which polls with softirqs and
//! preemption off. So timer and doorbell are seen to before the instance is released, and while the thread does not own the
//! instance the queue does not depend on it. While it does, the queue waits for the scheduler to bring it back. What keeps
//! that rare is that it owns the instance for `TURN` at the most, and then offers its CPU as the owner of nothing, as the
//! kernel does when it is to reschedule: a thread that yields before its time slice is used up is not preempted for that.
//!
//! Invariant: at every moment the instance's doorbell is unmasked, or its timer is armed and not longer than what the step
//! stands for, or it is owned.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use softnet_core::napi::{BusyPolling, Completion, Scheduled, WEIGHT};
use softnet_core::sync::{AbortOnPanic, Ordering};

use crate::config::Context;
use crate::napi::{NapiInstance, Phase, Rx, Timeout};
use crate::poll::{OnRelease, PollContext};
use crate::stack::StackInner;
use crate::util::current_tid;

/// The largest `busy_poll_usecs`: the kernel's `S32_MAX`.
pub const MAX_BUSY_POLL_USECS: u32 = i32::MAX as u32;

/// How much later than `gro_flush_timeout` the instance's context polls, should the application that sleeps fail to: about
/// what a scheduler takes to bring a thread to the CPU that others want as well.
const GRACE: u64 = 1_000_000;

/// For how many ns a thread owns an instance before it offers its CPU to others: a part of the shortest time slice that Linux
/// gives (0.7 ms and more), and long compared with what it costs to stop and to take the instance again.
const TURN: u64 = 500_000;

/// How an application polls: the kernel's `struct epoll_params`, of an epoll set, or of a socket for
/// its calls that block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollParams {
    /// For how many µs it polls before it sleeps, at most [`MAX_BUSY_POLL_USECS`]. 0: not at all, or, with
    /// `prefer_busy_poll`, once. Without `prefer_busy_poll` an epoll set that found nothing polls again when a packet has come.
    pub busy_poll_usecs: u32,
    /// Packets that one poll may receive, 1 to 64.
    pub busy_poll_budget: u16,
    /// Whether it would rather poll than have others do so: the doorbell stays masked between its polls, if
    /// `napi_defer_hard_irqs` and `gro_flush_timeout` are set.
    pub prefer_busy_poll: bool,
}

impl Default for EpollParams {
    /// Does not poll: it is woken.
    fn default() -> Self {
        EpollParams { busy_poll_usecs: 0, busy_poll_budget: 8, prefer_busy_poll: false }
    }
}

/// A parameter that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {value} is out of range, {min} to {max} expected")]
pub struct OutOfRange {
    /// The parameter.
    pub what: &'static str,
    /// What it was to be.
    pub value: u64,
    /// The smallest value.
    pub min: u64,
    /// The largest value.
    pub max: u64,
}

impl OutOfRange {
    pub(crate) fn check(what: &'static str, value: u64, min: u64, max: u64) -> Result<(), Self> {
        if (min..=max).contains(&value) { Ok(()) } else { Err(OutOfRange { what, value, min, max }) }
    }
}

impl EpollParams {
    /// Whether they are in range.
    pub(crate) fn check(&self) -> Result<(), OutOfRange> {
        OutOfRange::check("busy_poll_usecs", self.busy_poll_usecs.into(), 0, MAX_BUSY_POLL_USECS.into())?;
        OutOfRange::check("busy_poll_budget", self.busy_poll_budget.into(), 1, WEIGHT as u64)
    }

    /// Whether it polls at all.
    pub(crate) fn polls(&self) -> bool {
        self.busy_poll_usecs > 0 || self.prefer_busy_poll
    }
}

/// The caller's side of waiting.
pub(crate) trait Waits {
    /// Whether something is ready.
    fn is_ready(&mut self) -> bool;
    /// Looks for what no poll brings, if it is time. Called between two polls, at `now` by the stack's clock.
    fn between_polls(&mut self, _now: u64) {}
    /// Whether the thread is one of many that wait for packets of the instance, each in a call of
    /// its own. Then what a poll brought is likely another's, which gets the CPU; and the instance
    /// is never suspended, since the one whose call ends does not know that others wait.
    fn is_one_of_many(&self) -> bool {
        false
    }
    /// Offers the CPU to other threads. The caller owns nothing.
    fn offer_cpu(&mut self) {
        std::thread::yield_now();
    }
    /// Blocks once, unless something is ready, for at most `timeout`. Returns whether it was woken. Called while nothing is
    /// kept that must not be kept during sleep.
    fn wait(&mut self, timeout: Option<Duration>) -> bool;
}

/// See the module.
pub(crate) struct BusyPoll {
    pub(crate) env: PollContext,
    pub(crate) params: EpollParams,
    instance: Option<Arc<NapiInstance>>,
    /// The thread.
    tid: u32,
    /// The timer that it waits for in its context's place: since when, and until when.
    timer: Option<(u64, u64)>,
}

impl BusyPoll {
    pub(crate) fn new(shared: &Arc<StackInner>, params: EpollParams) -> Self {
        let env = PollContext::new(shared, OnRelease::Unmask);
        BusyPoll { env, params, instance: None, tid: 0, timer: None }
    }

    /// The calling thread uses it from now on, and gets the timer slack of a thread that polls.
    pub(crate) fn enter(&mut self) {
        self.tid = current_tid();
        // Time-outs of its waits must not be rounded up to the default slack of 50 µs.
        let _ = rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN));
    }

    /// The thread that entered; 0 if none did.
    pub(crate) fn tid(&self) -> u32 {
        self.tid
    }

    /// The instance that it polls.
    pub(crate) fn instance(&self) -> Option<&Arc<NapiInstance>> {
        self.instance.as_ref()
    }

    /// Polls `instance` from now on, and gives the one before back to its context.
    pub(crate) fn set_instance(&mut self, instance: Option<Arc<NapiInstance>>) {
        self.give_back();
        self.turn_to(instance);
    }

    /// The same of an instance that is not suspended: it need not be given back.
    pub(crate) fn turn_to(&mut self, instance: Option<Arc<NapiInstance>>) {
        self.waits_no_more();
        self.env.instances = Arc::new(instance.iter().cloned().collect());
        self.instance = instance;
    }

    /// Changes how it polls.
    pub(crate) fn set_params(&mut self, params: EpollParams) -> Result<(), OutOfRange> {
        params.check()?;
        if self.params.prefer_busy_poll && !params.prefer_busy_poll {
            // It will not come back as one that prefers.
            self.resume();
        }
        self.params = params;
        Ok(())
    }

    /// It will not poll any more: the instance is polled by its context from now on.
    pub(crate) fn give_back(&mut self) {
        self.waits_no_more();
        if let Some(instance) = self.instance.take()
            && self.params.polls()
        {
            let napi = instance.napi.schedule_prep();
            napi.into_iter().for_each(|napi| instance.hand_over(napi));
        }
    }

    /// `n` packets were handed over: the application is expected back.
    pub(crate) fn suspend(&mut self, n: usize) {
        let Some(instance) = self.instance.as_ref().filter(|_| self.params.prefer_busy_poll) else { return };
        let now = self.env.shared.clock.now();
        let Some(ns) = instance.napi.suspend(n) else {
            // `irq_suspend_timeout` was set to 0 since the stop, which had armed the timer with it; or the instance is just
            // being switched.
            let deferral = NonZeroU64::new(instance.napi.mitigation.gro_flush_timeout());
            let suspended =
                instance.timer.armed().is_some_and(|(timeout, ..)| timeout == Timeout::IrqSuspend);
            return deferral
                .filter(|_| suspended)
                .into_iter()
                .for_each(|ns| instance.timer.arm(now, ns, Timeout::GroFlush));
        };
        instance.timer.arm(now, ns, Timeout::IrqSuspend);
        instance.stats.suspensions.fetch_add(1, Ordering::Relaxed);
        instance.poller.store(self.tid, Ordering::Relaxed);
        if !instance.residency.is(Phase::Polled) {
            let rings = instance.armed.load(Ordering::Relaxed);
            instance.residency.enter(if rings { Phase::Irq } else { Phase::Suspended }, now);
        }
    }

    /// Polls until something is ready or the time is over, if the instance has no other owner. The thread of the context
    /// `busy-poll` always has it, as the kernel's has; it only lets go of it between two polls.
    pub(crate) fn busy_loop(&mut self, waits: &mut impl Waits, until: Option<Instant>) {
        let Some(instance) = self.instance.clone() else { return };
        let prefer = self.params.prefer_busy_poll;
        let polled = instance.home().is_some_and(|home| home.context() == Context::BusyPoll);
        let mut owned = if polled { None } else { instance.napi.busy_poll(prefer) };
        if owned.is_none() {
            instance.stats.busy_poll_lost.fetch_add(1, Ordering::Relaxed);
            let usecs = self.params.busy_poll_usecs;
            if polled || usecs == 0 {
                return;
            }
            // Not to spin beside its owner. If that was asked to give way, it has by then.
            let soon = Instant::now() + Duration::from_micros(usecs.into());
            self.sleep(waits, Some(until.map_or(soon, |until| until.min(soon))));
            if !waits.is_ready() {
                owned = instance.napi.busy_poll(prefer);
            }
        }
        instance.poller.store(self.tid, Ordering::Relaxed);
        let mut now = self.env.shared.clock.now();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let ns = left.map_or(u64::MAX, |left| left.as_nanos().try_into().unwrap_or(u64::MAX));
        let end = now.saturating_add(ns.min(u64::from(self.params.busy_poll_usecs) * 1000));
        let mut turns = 0;
        while let Some(mut taken) = owned {
            if turns == 0 {
                instance.stats.busy_polls.fetch_add(1, Ordering::Relaxed);
            }
            turns += 1;
            let again = self.turn(&instance, &mut taken, waits, &mut now, end);
            self.stop(&instance, taken, waits, now, again);
            self.env.wake_apps();
            if !again {
                return;
            }
            waits.offer_cpu();
            owned = self.take_again(&instance, waits, until, end);
            now = self.env.shared.clock.now();
        }
    }

    /// Takes the instance after a moment in which others could. `None`: something is ready, the time is over, or the instance
    /// will not be free.
    fn take_again(
        &mut self,
        instance: &NapiInstance,
        waits: &mut impl Waits,
        until: Option<Instant>,
        end: u64,
    ) -> Option<BusyPolling<Rx>> {
        while !waits.is_ready() {
            let owned = instance.napi.busy_poll(self.params.prefer_busy_poll);
            if owned.is_some() {
                return owned;
            }
            instance.stats.busy_poll_lost.fetch_add(1, Ordering::Relaxed);
            let state = instance.napi.state();
            let for_long = state.is_disable_pending()
                || state.is_disabled()
                || instance.home().is_none_or(|home| home.context() == Context::BusyPoll);
            if for_long || self.env.shared.clock.now() >= end {
                return None;
            }
            // Not to spin beside its owner.
            let soon = Instant::now() + Duration::from_nanos(TURN);
            self.sleep(waits, Some(until.map_or(soon, |until| until.min(soon))));
        }
        None
    }

    /// Polls for as long as the thread may own the instance at a time. Returns whether it is to take it again.
    fn turn(
        &mut self,
        instance: &NapiInstance,
        owned: &mut BusyPolling<Rx>,
        waits: &mut impl Waits,
        now: &mut u64,
        end: u64,
    ) -> bool {
        let _owner = AbortOnPanic::new();
        let budget = usize::from(self.params.busy_poll_budget);
        let turn = now.saturating_add(TURN);
        instance.residency.enter(Phase::Application, *now);
        loop {
            let (info, body) = owned.parts();
            self.env.now = *now;
            let n = self.env.poll_once(info, body, budget);
            info.stats.polled(n, budget);
            // It may poll for long, and may wait for what is held: the end of a poll is that of the
            // context's.
            let env = &mut self.env;
            owned.flush_gro(n >= budget, |info, batch| env.receive(info, batch));
            // Other applications, each time: this one may go on for long.
            self.env.wake_apps();
            let over = *now >= end;
            *now = self.env.shared.clock.now();
            waits.between_polls(*now);
            if over || waits.is_ready() || owned.disable_pending() {
                return false;
            }
            if *now >= turn || n > 0 && waits.is_one_of_many() {
                return true;
            }
        }
    }

    /// Lets go of the instance, for a moment if it `goes_on`.
    fn stop(
        &mut self,
        instance: &NapiInstance,
        owned: BusyPolling<Rx>,
        waits: &mut impl Waits,
        now: u64,
        goes_on: bool,
    ) {
        let _owner = AbortOnPanic::new();
        let prefer = self.params.prefer_busy_poll;
        let knobs = &instance.napi.mitigation;
        if prefer && knobs.defers() && instance.armed.load(Ordering::Relaxed) {
            // It has not rung, or the thread that it woke found the instance owned. From now on it is the timer that
            // matters.
            instance.mask();
        }
        // What follows replaces the timer. It is armed here with what that will be, so that arming it then costs no system
        // call: suspended if there is something to hand over; else the application sleeps, and polls by itself in time.
        let arm = |deferral: NonZeroU64| {
            let suspension = NonZeroU64::new(knobs.irq_suspend_timeout()).filter(|_| !waits.is_one_of_many());
            let (ns, timeout) = match suspension {
                Some(ns) if !goes_on && waits.is_ready() => (ns, Timeout::IrqSuspend),
                None if !goes_on => (deferral, Timeout::GroFlush),
                _ => (deferral.saturating_add(GRACE), Timeout::GroFlush),
            };
            instance.residency.enter(Phase::Deferred, now);
            instance.timer.arm(now, ns, timeout);
        };
        let env = &mut self.env;
        if let Completion::Again(napi) = owned.stop(prefer, |info, batch| env.receive(info, batch), arm) {
            self.finish(instance, napi, 0);
        }
    }

    /// Polls once as any owner would, and completes. What is not done with that is for the instance's context. With a `grace`
    /// this thread waits for the timer that follows, and the instance's is armed for so much longer.
    fn finish(&mut self, instance: &NapiInstance, mut napi: Scheduled<Rx>, grace: u64) {
        let _owner = AbortOnPanic::new();
        let mut now = self.env.shared.clock.now();
        let (info, body) = napi.parts();
        self.env.now = now;
        let n = self.env.poll_once(info, body, WEIGHT);
        info.stats.polled(n, WEIGHT);
        if n >= WEIGHT && !napi.disable_pending() {
            return instance.hand_over(napi);
        }
        let env = &mut self.env;
        now = env.shared.clock.now();
        let mut timer = None;
        let apply = |ns: Option<NonZeroU64>, unmask: bool| {
            timer = ns.filter(|_| grace > 0);
            instance.apply_release(ns, unmask, now, grace)
        };
        match napi.complete_applied(n, |info, batch| env.receive(info, batch), apply) {
            Completion::Released(_) => {
                self.timer = timer.map(|ns| (now, now.saturating_add(ns.get())));
                let polls_at = self.timer.map_or(0, |(_, due)| due);
                instance.polls_at.store(polls_at, Ordering::Relaxed);
            }
            Completion::Again(napi) => instance.hand_over(napi),
        }
    }

    /// The application is about to sleep: from now on the instance's context polls, or its doorbell rings.
    pub(crate) fn resume(&mut self) {
        let Some(instance) = self.instance.clone() else { return };
        // There is nothing to give back while the doorbell can ring.
        let rings = instance.armed.load(Ordering::Relaxed);
        let napi = if rings { None } else { instance.napi.resume() };
        // It is owned, or `irq_suspend_timeout` was set to 0 since the stop, which left a timer.
        let Some(napi) = napi else { return };
        instance.stats.resumptions.fetch_add(1, Ordering::Relaxed);
        // Like the kernel, which polls on the CPU that schedules unless threads do so: no thread need be woken for it.
        match instance.home().map(|home| home.context()) {
            Some(Context::Softirq) => self.finish(&instance, napi, GRACE),
            _ => instance.hand_over(napi),
        }
        self.env.wake_apps();
    }

    /// It is time to poll a deferred instance, if no other thread does so.
    fn timer_expired(&mut self, armed_at: u64, now: u64) {
        let Some(instance) = self.instance.clone() else { return };
        if instance.home().is_none_or(|home| home.context() != Context::Softirq) {
            // It was switched meanwhile.
            return;
        }
        let Some(napi) = instance.napi.watchdog() else { return };
        instance.timer.deferred(now.saturating_sub(armed_at));
        instance.residency.enter(Phase::Application, now);
        self.finish(&instance, napi, GRACE);
        self.env.wake_apps();
    }

    /// Sleeps until something is ready, and polls meanwhile when the timer says so that it waits for in its context's place.
    /// `false`: that took until `until`. It may return early.
    pub(crate) fn sleep(&mut self, waits: &mut impl Waits, until: Option<Instant>) -> bool {
        let woken = self.sleep_and_poll(waits, until);
        self.waits_no_more();
        woken
    }

    /// It does not poll in its context's place any more: the instance's own timer is armed all the same.
    pub(crate) fn waits_no_more(&mut self) {
        if self.timer.take().is_some() {
            self.polls_at(0);
        }
    }

    fn sleep_and_poll(&mut self, waits: &mut impl Waits, until: Option<Instant>) -> bool {
        loop {
            self.env.before_wait();
            let mut left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if let Some((_, due)) = self.timer {
                let timer = Duration::from_nanos(due.saturating_sub(self.env.shared.clock.now()));
                left = Some(left.map_or(timer, |left| left.min(timer)));
            }
            let woken = waits.wait(left);
            if let Some((armed_at, due)) = self.timer {
                let now = self.env.shared.clock.now();
                if due <= now {
                    self.timer = None;
                    self.polls_at(0);
                    self.timer_expired(armed_at, now);
                }
            }
            if woken || waits.is_ready() {
                return true;
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return false;
            }
        }
    }

    /// When it polls in its context's place; 0: not.
    fn polls_at(&self, at: u64) {
        if let Some(instance) = &self.instance {
            instance.polls_at.store(at, Ordering::Relaxed);
        }
    }
}

impl Drop for BusyPoll {
    /// The instance is polled by its context from now on.
    fn drop(&mut self) {
        self.give_back();
        self.env.ctx.drain();
    }
}
