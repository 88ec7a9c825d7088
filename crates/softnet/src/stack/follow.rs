//! What the thread that follows the kernel's routes shares with others: how it is asked to list
//! them again, how it is ended, and what it counts.
//!
//! Made with the stack, if [`StackConfig::follow`](crate::config::StackConfig::follow) is set; the
//! thread itself is [`Follower`](crate::assembly::Follower). Any thread may use it.

use std::io;
use std::time::{Duration, Instant};

use softnet_core::sync::{AtomicBool, AtomicU64, Ordering};
use softnet_dev::netlink::FpmState;

use crate::config::FollowConfig;
use crate::util::Waker;

/// How often it is looked whether routes were listed.
const LOOK: Duration = Duration::from_millis(1);

/// See the [module](self).
pub(crate) struct Follow {
    /// Wakes the thread.
    pub waker: Waker,
    again: AtomicBool,
    stop: AtomicBool,
    /// All routes were listed, and are in effect.
    complete: AtomicBool,
    /// What it counts.
    pub stats: FollowCounters,
    /// What it is told by FPM, if it is.
    pub fpm: Option<FpmCounters>,
}

/// What zebra tells, written by the thread that follows.
#[derive(Default)]
pub(crate) struct FpmCounters {
    /// zebra is connected.
    pub connected: AtomicBool,
    /// Connections that there were.
    pub connections: AtomicU64,
    /// Messages.
    pub messages: AtomicU64,
    /// Connections that were no FPM.
    pub malformed: AtomicU64,
    /// Routes.
    pub routes: AtomicU64,
    /// Routes of earlier connections.
    pub stale: AtomicU64,
}

impl FpmCounters {
    /// Takes over what is so now.
    pub(crate) fn set(&self, state: &FpmState) {
        self.connected.store(state.connected, Ordering::Relaxed);
        for (counter, now) in [
            (&self.connections, state.connections),
            (&self.messages, state.messages),
            (&self.malformed, state.malformed),
            (&self.routes, state.routes as u64),
            (&self.stale, state.stale as u64),
        ] {
            counter.store(now, Ordering::Relaxed);
        }
    }
}

/// Counters, written by the thread that follows.
#[derive(Default)]
pub(crate) struct FollowCounters {
    /// Changes of routes that it was told.
    pub events: AtomicU64,
    /// Times that it listed all routes.
    pub lists: AtomicU64,
    /// Times that the kernel dropped notifications.
    pub overruns: AtomicU64,
    /// Routes whose interface softnet has not taken.
    pub other_interface: AtomicU64,
    /// Routes with something that softnet does not do.
    pub unsupported: AtomicU64,
    /// Batches of changes that were published.
    pub published: AtomicU64,
    /// Times that the kernel could not be asked or heard, and all was begun again.
    pub errors: AtomicU64,
    /// ns that the last list took.
    pub list_ns: AtomicU64,
    /// All routes are to be listed again, or are being listed.
    pub list_due: AtomicBool,
}

impl Follow {
    pub(crate) fn new(settings: &FollowConfig) -> io::Result<Self> {
        let waker = Waker::new()?;
        let [again, stop, complete] = [(); 3].map(|()| AtomicBool::new(false));
        let fpm = settings.fpm.map(|_| FpmCounters::default());
        Ok(Follow { waker, again, stop, complete, stats: FollowCounters::default(), fpm })
    }

    /// Has all routes listed again: what an interface means to softnet is another thing than before.
    pub(crate) fn list_again(&self) {
        self.again.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether that was asked for since the last time.
    pub(crate) fn take_again(&self) -> bool {
        self.again.swap(false, Ordering::AcqRel)
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// All routes were listed once, and are in effect.
    pub(crate) fn set_complete(&self) {
        self.complete.store(true, Ordering::Release);
    }

    /// Waits until that is so, no longer than for `patience`; or why it is not.
    pub(crate) fn wait_complete(&self, patience: Duration) -> Result<(), &'static str> {
        let until = Instant::now() + patience;
        while !self.complete.load(Ordering::Acquire) {
            match Instant::now() < until {
                _ if self.stats.errors.load(Ordering::Relaxed) > 0 => return Err("could not be read"),
                true => std::thread::sleep(LOOK),
                false => return Err("are not all in effect yet"),
            }
        }
        Ok(())
    }

    /// Whether it is to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}
