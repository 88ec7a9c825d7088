//! What it costs to wake a thread on another CPU.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::CpuSet;
use softnet_core::sync::{AtomicBool, Ordering};

use crate::util::Waker;

/// Wake-ups that are measured.
const ROUNDS: usize = 15;
/// How long the other thread is left alone before each, so that it sleeps, and its CPU with it.
const REST: Duration = Duration::from_micros(200);
/// Taken for the cost if it can't be measured.
const GUESS_NS: u64 = 8000;
/// How long it may take. A thread with a real-time policy may keep the CPUs to itself meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);

/// ns that a thread on CPU `from` spends on waking one that sleeps on CPU `to`: the median of a
/// few. Takes some milliseconds, and never much more.
pub(crate) fn measure(from: u32, to: u32) -> u64 {
    within(PATIENCE, move || rounds(from, to)).unwrap_or(GUESS_NS)
}

/// What `measured` comes to on a thread of its own, since the caller is not to stay on the CPU that
/// is measured; `None` if it can't be, or not in this time: the thread then ends when it can.
fn within<T: Send + 'static>(
    patience: Duration,
    measured: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    let (tell, told) = sync_channel(1);
    let thread = std::thread::Builder::new().name("softnet-wake".into());
    thread.spawn(move || tell.send(measured())).ok()?;
    told.recv_timeout(patience).ok().flatten()
}

fn pin(cpu: u32) -> Option<()> {
    let mut set = CpuSet::new();
    // It panics otherwise.
    if cpu as usize >= CpuSet::MAX_CPU {
        return None;
    }
    set.set(cpu as usize);
    rustix::thread::sched_setaffinity(None, &set).ok()
}

fn rounds(from: u32, to: u32) -> Option<u64> {
    pin(from)?;
    let waker = Arc::new(Waker::new().ok()?);
    let done = Arc::new(AtomicBool::new(false));
    let sleeper = {
        let (waker, done) = (waker.clone(), done.clone());
        let sleep = move || {
            pin(to);
            while !done.load(Ordering::Acquire) {
                let mut fds = [PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN)];
                let _ = poll(&mut fds, None);
                waker.clear();
            }
        };
        std::thread::Builder::new().name("softnet-woken".into()).spawn(sleep).ok()?
    };
    let mut ns: Vec<u64> = (0..ROUNDS)
        .map(|_| {
            std::thread::sleep(REST);
            let start = Instant::now();
            waker.wake_now();
            start.elapsed().as_nanos() as u64
        })
        .collect();
    done.store(true, Ordering::Release);
    waker.wake_now();
    let _ = sleeper.join();
    ns.sort_unstable();
    ns.get(ROUNDS / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_costs_something_also_on_one_cpu() {
        assert!(measure(0, 0) > 0);
        // No such CPU.
        assert_eq!(measure(100_000, 0), GUESS_NS);
    }

    #[test]
    fn what_takes_for_ever_is_not_waited_for() {
        let (open, gate) = sync_channel::<()>(0);
        let never = move || gate.recv().ok();
        assert_eq!(within(Duration::from_millis(1), never), None);
        drop(open);
    }
}
