//! What it costs to wake a thread on another CPU.

use std::sync::Arc;
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

/// ns that a thread on CPU `from` spends on waking one that sleeps on CPU `to`: the median of a
/// few. Takes some milliseconds.
pub(crate) fn measure(from: u32, to: u32) -> u64 {
    // On a thread of its own, since the caller is not to stay on that CPU.
    let measured = std::thread::Builder::new().name("softnet-wake".into()).spawn(move || rounds(from, to));
    measured.ok().and_then(|thread| thread.join().ok().flatten()).unwrap_or(GUESS_NS)
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
}
