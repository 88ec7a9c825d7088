//! What threads used of the machine, seen from outside: CPU time and context switches, as the kernel accounts them.

use std::iter::Sum;
use std::ops::{Add, Sub};

use crate::bench::cpu::Used;

/// What a thread, or some, used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// CPU time in ns.
    pub(crate) cpu_ns: u64,
    /// Times it blocked.
    pub(crate) blocked: u64,
    /// Times it was put off its CPU for another.
    pub(crate) preempted: u64,
}

impl Usage {
    /// Of threads, by their ids: of this process, or of the kernel. One that has ended used nothing.
    pub(crate) fn of(tids: &[i32]) -> Self {
        tids.iter().map(|tid| Usage::of_thread(*tid)).sum()
    }

    fn of_thread(tid: i32) -> Self {
        // What is below /proc/self/task has none of the kernel's threads.
        let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
        let [blocked, preempted] = switches(&status);
        Usage { cpu_ns: Used::of(&[tid.cast_unsigned()]).cpu_ns, blocked, preempted }
    }
}

fn switches(status: &str) -> [u64; 2] {
    ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    })
}

impl Add for Usage {
    type Output = Usage;

    fn add(self, other: Usage) -> Usage {
        Usage {
            cpu_ns: self.cpu_ns + other.cpu_ns,
            blocked: self.blocked + other.blocked,
            preempted: self.preempted + other.preempted,
        }
    }
}

impl Sub for Usage {
    type Output = Usage;

    /// What was used since `earlier`.
    fn sub(self, earlier: Usage) -> Usage {
        Usage {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            blocked: self.blocked.saturating_sub(earlier.blocked),
            preempted: self.preempted.saturating_sub(earlier.preempted),
        }
    }
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Usage>>(all: I) -> Usage {
        all.fold(Usage::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::cpu::ksoftirqd;

    #[test]
    fn reads_what_the_kernel_writes() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(switches(status), [12, 3]);
        assert_eq!(switches(""), [0, 0]);
        assert_eq!(Usage::of(&[-1]), Usage::default());
    }

    /// A poller of the kernel's counts where it serves. (In a container there may be none to see.)
    #[test]
    fn threads_of_the_kernel_count() {
        for tid in ksoftirqd(0) {
            assert!(Usage::of(&[tid.cast_signed()]).blocked > 0);
        }
    }

    #[test]
    fn a_thread_that_sleeps_blocks() {
        let me = [rustix::thread::gettid().as_raw_pid()];
        let before = Usage::of(&me);
        std::thread::sleep(std::time::Duration::from_millis(1));
        let used = Usage::of(&me) - before;
        assert!(used.blocked >= 1);
    }
}
