//! Threads that poll: what others may see of them, and how they set themselves up.

use arc_swap::ArcSwap;
use rustix::io::Errno;
use softnet_core::napi::NetRxStats;
use softnet_core::softnet_data::Counter;
use softnet_core::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use softnet_dev::sched::{self, Policy};

use crate::config::Context;
use crate::util::{current_tid, warn};

/// Counters of a polling thread, written by it.
#[derive(Debug, Default)]
pub struct PollStats {
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
    /// Times the timer of an instance woke it.
    pub woken_by_timer: Counter,
    /// Times it was about to block, and found work at the second look.
    pub rechecks: Counter,
    /// Heads in its cache.
    pub cached_heads: AtomicU64,
    /// Frames in its cache.
    pub cached_frames: AtomicU64,
}

/// What others see of a polling thread.
pub struct PollThread {
    /// Its name in `/proc/<pid>/task/<tid>/comm`.
    pub name: String,
    /// What it polls in.
    pub context: Context,
    /// The CPU it is pinned to, if it is.
    pub cpu: Option<u32>,
    /// The scheduling policy it gives itself; `None`: the one it was started with.
    pub policy: Option<Policy>,
    /// When it was made, in ns of the stack's clock.
    pub since: u64,
    /// Its thread id once it runs.
    pub tid: AtomicU32,
    /// Whether it blocks, or is about to; for display.
    pub asleep: AtomicBool,
    /// Its counters.
    pub stats: PollStats,
    /// Those of its softirq loop.
    pub net_rx: ArcSwap<NetRxStats>,
}

impl PollThread {
    /// A thread to be.
    pub fn new(name: String, context: Context, cpu: Option<u32>, since: u64) -> Self {
        PollThread {
            name,
            context,
            cpu,
            policy: None,
            since,
            tid: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            stats: PollStats::default(),
            net_rx: ArcSwap::default(),
        }
    }

    /// Called by the thread itself, first: pins it to its CPU and gives it its scheduling policy, if it has one (the others
    /// are the user's to place), and publishes its id.
    pub fn enter(&self) {
        if let Some(cpu) = self.cpu {
            let mut cpus = rustix::thread::CpuSet::new();
            cpus.set(cpu as usize);
            if let Err(error) = rustix::thread::sched_setaffinity(None, &cpus) {
                // Of the systemd unit that softnet comes with.
                let filtered = match error {
                    Errno::PERM => "; under systemd, SystemCallFilter=sched_setaffinity allows it",
                    _ => "",
                };
                warn(format_args!("{} runs unpinned: CPU {cpu}: {error}{filtered}", self.name));
            }
        }
        if let Some(policy) = self.policy
            && let Err(error) = sched::set_policy(policy)
        {
            warn(format_args!("{} keeps the policy it was started with: {error}", self.name));
        }
        // Timers of a polling thread must not be rounded up to the default slack of 50 µs.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        self.tid.store(current_tid(), Ordering::Release);
    }
}
