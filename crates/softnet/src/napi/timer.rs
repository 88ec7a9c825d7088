//! The timer of a NAPI instance, the kernel's `napi->timer`: a timerfd in the epoll set of the thread that polls the instance.
//!
//! Any thread may arm it, with one system call and without waking a thread: so an application that polls by itself leaves
//! a timer behind for the instance's context. Where the descriptor will fire soon enough anyway, and not much too soon, not
//! even that call is made: the thread it wakes then sets it for the rest. An application that suspends again and again so
//! pays for one call in half a millisecond at the most.
//!
//! Invariant: while a deadline is set, the descriptor fires at it or before.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use softnet_core::softnet_data::Counter;
use softnet_core::sync::{AtomicU32, AtomicU64, Ordering::Relaxed};
use softnet_dev::PiMutex;

use crate::util::timespec;

/// A descriptor that fires no sooner than this may do so for nothing, in ns: it costs less than to set it each time.
const SOON: u64 = 500_000;

/// What a timer was armed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Timeout {
    /// `gro_flush_timeout`: the next poll of a deferred instance.
    GroFlush,
    /// `irq_suspend_timeout`: the poll that frees an instance whose application does not come back.
    IrqSuspend,
    /// The poll that looks for packet memory, since the queue has none posted and so can't ring.
    Refill,
}

impl Timeout {
    const ALL: [Timeout; 3] = [Self::GroFlush, Self::IrqSuspend, Self::Refill];

    fn of(word: &AtomicU32) -> Self {
        let number = word.load(Relaxed);
        Self::ALL.into_iter().find(|known| *known as u32 == number).unwrap_or(Self::GroFlush)
    }
}

/// See the module. Times are ns of the stack's clock.
pub struct NapiTimer {
    fd: OwnedFd,
    /// When the descriptor fires; 0: it does not. Held while any of the rest is changed.
    set: PiMutex<u64>,
    /// When the instance is to be polled; 0: not armed.
    deadline: AtomicU64,
    armed_at: AtomicU64,
    /// A [`Timeout`].
    timeout: AtomicU32,
    /// Its counters.
    pub stats: TimerStats,
}

/// Counters of a timer, written by the thread that it made owner of the instance.
#[derive(Debug, Default)]
pub struct TimerStats {
    /// Times that `gro_flush_timeout` ran out.
    pub deferrals: Counter,
    /// ns that these took, from arming to poll.
    pub deferral_ns: Counter,
    /// Times that `irq_suspend_timeout` ran out.
    pub rescues: Counter,
    /// Times that it was polled to look for packet memory.
    pub refills: Counter,
}

fn spec(ns: u64) -> Itimerspec {
    let zero = timespec(0);
    let value = timespec(ns);
    Itimerspec { it_interval: zero, it_value: value }
}

impl NapiTimer {
    /// Not armed.
    pub fn new() -> io::Result<Self> {
        Ok(NapiTimer {
            fd: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?,
            set: PiMutex::new(0),
            deadline: AtomicU64::new(0),
            armed_at: AtomicU64::new(0),
            timeout: AtomicU32::new(Timeout::GroFlush as u32),
            stats: TimerStats::default(),
        })
    }

    /// Fires when the instance may have to be polled: then call [`fired`](Self::fired). Never read: wait for it
    /// edge-triggered.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Arms it, in place of what it was armed with. For the instance's owner, or the thread that released it last.
    pub fn arm(&self, now: u64, ns: NonZeroU64, timeout: Timeout) {
        self.set_deadline(&mut self.set.lock(), now, ns.get(), timeout);
    }

    /// Arms it, unless it is armed and due no later: for a thread after which another may have owned the instance, and
    /// armed the timer for what it does.
    pub fn arm_at_latest(&self, now: u64, ns: NonZeroU64, timeout: Timeout) {
        let mut set = self.set.lock();
        let deadline = self.deadline.load(Relaxed);
        if deadline == 0 || deadline > now.saturating_add(ns.get()) {
            self.set_deadline(&mut set, now, ns.get(), timeout);
        }
    }

    fn set_deadline(&self, set: &mut u64, now: u64, ns: u64, timeout: Timeout) {
        self.armed_at.store(now, Relaxed);
        self.timeout.store(timeout as u32, Relaxed);
        self.deadline.store(now.saturating_add(ns), Relaxed);
        let left = set.saturating_sub(now);
        if left < SOON.min(ns / 2) || left > ns || left == 0 {
            self.fire_in(set, now, ns);
        }
    }

    /// The instance needs no timer. The descriptor may still fire, for nothing.
    pub fn disarm(&self) {
        if self.is_armed() {
            let _set = self.set.lock();
            self.deadline.store(0, Relaxed);
        }
    }

    /// As [`disarm`](Self::disarm), and the descriptor does not fire.
    pub fn cancel(&self) {
        let mut set = self.set.lock();
        self.deadline.store(0, Relaxed);
        *set = 0;
        // Cannot fail: the value is valid.
        let _ = timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &spec(0));
    }

    /// Whether it is armed: one load.
    #[inline(always)]
    pub fn is_armed(&self) -> bool {
        self.deadline.load(Relaxed) != 0
    }

    /// What it was armed with, when, and when it is due; for display.
    pub fn armed(&self) -> Option<(Timeout, u64, u64)> {
        let deadline = self.deadline.load(Relaxed);
        (deadline != 0).then(|| (Timeout::of(&self.timeout), self.armed_at.load(Relaxed), deadline))
    }

    /// Takes note that the descriptor fired. The thread it woke calls this, and only then [`if_due`](Self::if_due): a
    /// thread that read the time before it fired, and arms the timer afterwards, would otherwise rely on it still to fire.
    pub fn fired(&self) {
        *self.set.lock() = 0;
    }

    /// Whether it is time: `poll` is called, which returns whether no other thread owned the instance. Else the
    /// descriptor fires when it will be time.
    pub fn if_due(&self, now: u64, poll: impl FnOnce() -> bool) {
        if !self.is_armed() {
            return;
        }
        let mut set = self.set.lock();
        let deadline = self.deadline.load(Relaxed);
        if deadline == 0 {
            return;
        }
        if deadline > now {
            if *set <= now {
                self.fire_in(&mut set, now, deadline - now);
            }
            return;
        }
        self.deadline.store(0, Relaxed);
        let (timeout, took) = (Timeout::of(&self.timeout), now.saturating_sub(self.armed_at.load(Relaxed)));
        drop(set);
        if !poll() {
            return;
        }
        match timeout {
            Timeout::GroFlush => self.deferred(took),
            Timeout::IrqSuspend => self.stats.rescues.add(1),
            Timeout::Refill => self.stats.refills.add(1),
        }
    }

    /// A `gro_flush_timeout` took `ns`, and made the caller owner of the instance.
    pub(crate) fn deferred(&self, ns: u64) {
        self.stats.deferrals.add(1);
        self.stats.deferral_ns.add(ns);
    }

    fn fire_in(&self, set: &mut u64, now: u64, ns: u64) {
        // No more than what the kernel's 64 bits of ns hold.
        let ns = ns.min(i64::MAX as u64 / 4);
        *set = now.saturating_add(ns);
        // Cannot fail: the value is valid.
        let _ = timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &spec(ns));
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    fn ns(ns: u64) -> NonZeroU64 {
        NonZeroU64::new(ns).unwrap()
    }

    fn due(timer: &NapiTimer, now: u64) -> bool {
        let mut due = false;
        timer.if_due(now, || {
            due = true;
            true
        });
        due
    }

    fn fires(timer: &NapiTimer, within: i64) -> bool {
        let wait = rustix::event::Timespec { tv_sec: within, tv_nsec: 0 };
        poll(&mut [PollFd::new(&timer.fd, PollFlags::IN)], Some(&wait)).unwrap() > 0
    }

    #[test]
    fn is_due_at_its_deadline_and_once() {
        let timer = NapiTimer::new().unwrap();
        assert!(!timer.is_armed() && !due(&timer, 1));
        timer.arm(1000, ns(500), Timeout::GroFlush);
        assert_eq!(timer.armed(), Some((Timeout::GroFlush, 1000, 1500)));
        assert!(!due(&timer, 1499) && due(&timer, 1530) && !due(&timer, 1600));
        assert_eq!((timer.stats.deferrals.get(), timer.stats.deferral_ns.get()), (1, 530));
        timer.arm(2000, ns(5000), Timeout::IrqSuspend);
        assert!(due(&timer, 7000));
        assert_eq!((timer.stats.deferrals.get(), timer.stats.rescues.get()), (1, 1));
    }

    /// One thread released the instance, another had it since and armed the timer, and then the first one goes on.
    #[test]
    fn what_is_due_sooner_stays() {
        let timer = NapiTimer::new().unwrap();
        timer.arm_at_latest(0, ns(1000), Timeout::Refill);
        assert_eq!(timer.armed(), Some((Timeout::Refill, 0, 1000)), "it was not armed");
        timer.arm(100, ns(20), Timeout::GroFlush);
        timer.arm_at_latest(90, ns(1000), Timeout::Refill);
        assert_eq!(timer.armed(), Some((Timeout::GroFlush, 100, 120)));
        timer.arm(200, ns(HOUR), Timeout::IrqSuspend);
        timer.arm_at_latest(200, ns(1000), Timeout::Refill);
        assert_eq!(timer.armed(), Some((Timeout::Refill, 200, 1200)));
        assert!(fires(&timer, 60) && due(&timer, 1200));
    }

    #[test]
    fn the_descriptor_is_set_anew_only_if_it_must() {
        let timer = NapiTimer::new().unwrap();
        let set = || *timer.set.lock();
        timer.arm(0, ns(HOUR), Timeout::IrqSuspend);
        assert_eq!(set(), HOUR);
        timer.arm(HOUR / 4, ns(HOUR), Timeout::IrqSuspend);
        assert_eq!(set(), HOUR, "soon enough, and not much too soon");
        assert!(!due(&timer, HOUR), "it fired early");
        assert_eq!(set(), HOUR + HOUR / 4, "and is set for the rest");
        timer.arm(HOUR, ns(100), Timeout::GroFlush);
        assert_eq!(set(), HOUR + 100, "sooner");
        timer.arm(HOUR + 10, ns(HOUR), Timeout::IrqSuspend);
        assert_eq!(set(), 2 * HOUR + 10, "much too soon");
        timer.disarm();
        assert!(!timer.is_armed() && !due(&timer, u64::MAX));
        timer.arm(5 * HOUR, ns(u64::MAX), Timeout::GroFlush);
        assert_eq!(timer.armed().unwrap().2, u64::MAX);
    }

    /// The thread that read the clock at 0 was off its CPU until the descriptor had fired, for nothing.
    #[test]
    fn a_late_thread_does_not_rely_on_what_fired() {
        let timer = NapiTimer::new().unwrap();
        timer.arm(0, ns(1000), Timeout::GroFlush);
        timer.disarm();
        assert!(fires(&timer, 60));
        timer.fired();
        assert!(!due(&timer, 1200));
        timer.arm(0, ns(1500), Timeout::GroFlush);
        assert_eq!(*timer.set.lock(), 1500, "set anew, though 1000 would have done");
        // And the other way round: it fires between the two.
        timer.arm(2000, ns(1000), Timeout::GroFlush);
        timer.arm(2100, ns(1000), Timeout::GroFlush);
        timer.fired();
        assert!(!due(&timer, 3050));
        assert_eq!(*timer.set.lock(), 3100, "for the rest");
        assert!(due(&timer, 3100));
    }

    #[test]
    fn the_descriptor_fires_and_a_cancelled_one_does_not() {
        let timer = NapiTimer::new().unwrap();
        timer.arm(0, ns(1000), Timeout::GroFlush);
        assert!(fires(&timer, 60));
        timer.arm(0, ns(HOUR), Timeout::GroFlush);
        assert!(!fires(&timer, 0), "arming takes back what fired");
        timer.arm(0, ns(1), Timeout::GroFlush);
        timer.cancel();
        assert!(!fires(&timer, 0) && !timer.is_armed());
    }
}
