//! The timer thread of TCP: sleeps until the first deadline of any shard.
//!
//! There is none until the first socket of TCP is opened. Invariant: `due` is no later than the first
//! deadline of any shard, or the thread is awake.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use softnet_core::ip::hooks::Made;
use softnet_core::sync::{AtomicBool, Due, Ordering};

use super::Caller;
use crate::stack::{CacheShare, StackInner};
use crate::util::{Waker, lock, spawn, timespec};

/// A deadline may be met by so much later, so that several are met at once, ns.
const SLACK: u64 = 500_000;

/// Packets that hooks made and that wait for the slow path.
const MADE: usize = 256;

/// Wakes the thread, wherever it is kept.
#[derive(Clone)]
pub(super) struct Alarm {
    due: Arc<Due>,
    waker: Arc<Waker>,
}

impl Alarm {
    pub(super) fn wake(&self) {
        self.due.now();
        self.waker.wake();
    }
}

/// See the module.
pub(super) struct Timers {
    due: Arc<Due>,
    waker: Arc<Waker>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: Arc<AtomicBool>,
    /// What hooks made of packets that left, for the slow path.
    made: Mutex<Made>,
}

impl Timers {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Timers {
            due: Arc::default(),
            waker: Arc::new(Waker::new()?),
            thread: Mutex::default(),
            stop: Arc::default(),
            made: Mutex::default(),
        })
    }

    /// A shard has a deadline at `at`.
    pub(super) fn lower(&self, at: u64) {
        if self.due.lower(at) {
            self.waker.wake();
        }
    }

    /// Wakes the thread for something else.
    pub(super) fn wake(&self) {
        self.alarm().wake();
    }

    pub(super) fn alarm(&self) -> Alarm {
        Alarm { due: self.due.clone(), waker: self.waker.clone() }
    }

    /// Keeps what hooks made for the slow path. Returns whether there is no room.
    pub(super) fn made(&self, made: &mut Made) -> bool {
        let mut all = lock(&self.made);
        let full = !self.is_running() || all.len() >= MADE;
        if !full {
            all.append(made);
            drop(all);
            self.wake();
        }
        full
    }

    pub(super) fn take_made(&self) -> Made {
        std::mem::take(&mut *lock(&self.made))
    }

    /// Starts the thread, unless it runs.
    pub(super) fn start(&self, shared: &Arc<StackInner>) -> io::Result<()> {
        let mut thread = lock(&self.thread);
        if thread.is_none() && !self.stop.load(Ordering::Acquire) {
            let (shared, waker, stop) = (shared.clone(), self.waker.clone(), self.stop.clone());
            *thread = Some(spawn("softnet-tcp", Box::new(move || run(&shared, &waker, &stop)))?);
        }
        Ok(())
    }

    /// Whether the thread runs.
    pub(super) fn is_running(&self) -> bool {
        lock(&self.thread).is_some()
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
        let thread = lock(&self.thread).take();
        thread.into_iter().for_each(|thread| _ = thread.join());
    }
}

fn run(shared: &Arc<StackInner>, waker: &Waker, stop: &AtomicBool) {
    let mut ctx = shared.context();
    while !stop.load(Ordering::Acquire) {
        let timers = &shared.sockets.tcp.timers;
        let now = shared.clock.now();
        // From here on shards say anew what they wait for.
        if timers.due.take(now) {
            let tables = shared.tables.load_full();
            let caller = Caller { shared, tables: &tables, now, napi_id: 0 };
            shared.sockets.tcp.on_time(&mut ctx, &caller);
        }
        CacheShare::before_sleep(&mut ctx);
        // Announced before the deadline is read: a thread that sets an earlier one then wakes this one.
        let announced = waker.sleeper.announce();
        let due = timers.due.get();
        let now = shared.clock.now();
        if due <= now || stop.load(Ordering::Acquire) {
            drop(announced);
            continue;
        }
        let timeout = (due != u64::MAX).then(|| timespec(due - now + SLACK));
        let mut fds = [PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN)];
        let _ = poll(&mut fds, timeout.as_ref());
        let woken = !fds[0].revents().is_empty();
        if announced.awake() || woken {
            waker.clear();
        }
    }
    ctx.drain();
}
