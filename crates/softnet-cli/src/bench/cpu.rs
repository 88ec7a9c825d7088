//! CPU time, seen from outside: what `/proc` says of threads and processors. Any thread may call it. It only reads.

use std::fs;

/// `/proc/stat` counts in hundredths of a second (USER_HZ), whatever the kernel's own tick is.
const TICK_NS: u64 = 10_000_000;

/// CPU time of threads, and time they were ready to run while something else had their CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) cpu_ns: u64,
    pub(super) waited_ns: u64,
}

impl Used {
    /// Of the threads (also the kernel's) with these ids, up to now. A thread that is gone counts nothing.
    pub(super) fn of(tids: &[u32]) -> Used {
        let texts = tids.iter().filter_map(|tid| fs::read_to_string(format!("/proc/{tid}/schedstat")).ok());
        texts.map(|text| Used::parse(&text)).fold(Used::default(), |sum, one| Used {
            cpu_ns: sum.cpu_ns + one.cpu_ns,
            waited_ns: sum.waited_ns + one.waited_ns,
        })
    }

    /// Reads a `schedstat`: ns on a CPU, ns waiting for one, slices.
    fn parse(text: &str) -> Used {
        let mut fields = text.split_whitespace().map(|field| field.parse().unwrap_or(0));
        Used { cpu_ns: fields.next().unwrap_or(0), waited_ns: fields.next().unwrap_or(0) }
    }

    pub(super) fn since(self, earlier: Used) -> Used {
        Used {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            waited_ns: self.waited_ns.saturating_sub(earlier.waited_ns),
        }
    }
}

/// Ids of the kernel's threads whose name begins with `prefix`.
pub(super) fn kernel_threads(prefix: &str) -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let named = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with(prefix))
    };
    pids.filter(named).collect()
}

/// The kernel's thread that runs softirqs on `cpu` when they become too many to run where they were raised.
pub(super) fn ksoftirqd(cpu: usize) -> Vec<u32> {
    let name = format!("ksoftirqd/{cpu}");
    let is_it =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name);
    kernel_threads(&name).into_iter().filter(is_it).collect()
}

/// Time that `cpu` spent in softirqs, as the timer tick sampled it.
pub(super) fn softirq_ns(cpu: usize) -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    softirq_ticks(&stat, cpu) * TICK_NS
}

/// Time that all CPUs together were not idle, as the timer tick sampled it: interrupts included.
pub(super) fn busy_ns() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_ticks(&stat) * TICK_NS
}

/// Times that softirqs of these kinds (`NET_RX`, `NET_TX`) ran, on all CPUs.
pub(super) fn softirq_runs(kinds: &[&str]) -> u64 {
    let text = fs::read_to_string("/proc/softirqs").unwrap_or_default();
    kinds.iter().map(|kind| runs_of(&text, kind)).sum()
}

fn runs_of(softirqs: &str, kind: &str) -> u64 {
    let line = softirqs.lines().find_map(|line| line.trim_start().strip_prefix(kind)?.strip_prefix(':'));
    line.map_or(0, |line| line.split_whitespace().filter_map(|runs| runs.parse::<u64>().ok()).sum())
}

fn softirq_ticks(stat: &str, cpu: usize) -> u64 {
    let name = format!("cpu{cpu}");
    let line = stat.lines().find(|line| line.split_whitespace().next() == Some(&name));
    line.and_then(|line| line.split_whitespace().nth(7)?.parse().ok()).unwrap_or(0)
}

/// What the first line says of user, nice, system, irq and softirq.
fn busy_ticks(stat: &str) -> u64 {
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1).enumerate();
    fields
        .filter(|(at, _)| ![3, 4, 7].contains(at) && *at < 8)
        .filter_map(|(_, n)| n.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(Used::parse("1234 56 7\n"), Used { cpu_ns: 1234, waited_ns: 56 });
        assert_eq!(Used::parse("nonsense"), Used::default());
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu1 1 2 3 4 5 6 70 8 0 0\ncpu10 1 2 3 4 5 6 71 8 0 0\n";
        assert_eq!(softirq_ticks(stat, 1), 70);
        assert_eq!(softirq_ticks(stat, 10), 71);
        assert_eq!(softirq_ticks(stat, 2), 0);
        assert_eq!(busy_ticks("cpu  1 2 4 800 900 8 16 700 5 6\ncpu0 1\n"), 31);
        let softirqs = "       CPU0   CPU1\n  NET_TX:    19  170\n  NET_RX:  1  2\n";
        assert_eq!(["NET_TX", "NET_RX", "NET"].map(|kind| runs_of(softirqs, kind)), [189, 3, 0]);
    }

    #[test]
    fn a_thread_that_works_uses_its_cpu() {
        let me = [rustix::thread::gettid().as_raw_nonzero().get() as u32];
        let before = Used::of(&me);
        let mut used = Used::default();
        while used.cpu_ns == 0 {
            used = Used::of(&me).since(before);
        }
        assert_eq!(Used::of(&[u32::MAX]), Used::default());
    }
}
