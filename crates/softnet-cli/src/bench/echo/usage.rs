//! What threads used of the machine, seen from outside: CPU time and context switches, as the kernel accounts them.

use std::iter::Sum;
use std::ops::{Add, Sub};

use softnet::internals::thread_cpu_ns;

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
    /// Of threads of this process, by their ids. One that has ended used nothing.
    pub(crate) fn of(tids: &[i32]) -> Self {
        tids.iter().map(|tid| Usage::of_thread(*tid)).sum()
    }

    fn of_thread(tid: i32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap_or_default();
        let [blocked, preempted] = switches(&status);
        Usage { cpu_ns: thread_cpu_ns(tid), blocked, preempted }
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

    #[test]
    fn reads_what_the_kernel_writes() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(switches(status), [12, 3]);
        assert_eq!(switches(""), [0, 0]);
        assert_eq!(Usage::of(&[-1]), Usage::default());
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
