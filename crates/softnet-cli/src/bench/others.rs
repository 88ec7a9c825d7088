//! What other programs used of the machine while a bench ran whose own threads compete for CPUs, so that it can't be watched
//! as others are.

use rustix::time::{ClockId, clock_gettime};

/// CPU time that this process used so far, ended threads included, in ns.
pub(crate) fn process_cpu_ns() -> u64 {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    own.tv_sec as u64 * 1_000_000_000 + own.tv_nsec as u64
}

/// CPU time that others than this process used on the whole machine, in ns; the hypervisor included.
#[derive(Clone, Copy)]
pub(crate) struct Others {
    machine: u64,
    own: u64,
}

impl Others {
    pub(crate) fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let cpu = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        let ticks: Vec<u64> = cpu.split_whitespace().map(|n| n.parse().unwrap_or(0)).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal (proc_stat(5)), in hundredths of a second.
        let busy = [0, 1, 2, 5, 6, 7].iter().filter_map(|at| ticks.get(*at)).sum::<u64>();
        Others { machine: busy * 10_000_000, own: process_cpu_ns() }
    }

    pub(crate) fn since(self, before: Others) -> u64 {
        (self.machine - before.machine).saturating_sub(self.own - before.own)
    }
}
