//! What the figures were measured on, with which build, and when.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// What decides how fast a machine is, as far as it tells.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hardware {
    /// As /proc/cpuinfo has it.
    pub(super) cpu: &'static str,
    pub(super) mhz: u32,
    pub(super) cpus: usize,
}

impl Hardware {
    /// Whether this machine is like it: the same CPUs, as many, at a clock within a tenth.
    pub(super) fn is_this(&self) -> bool {
        let (cpu, mhz) = cpu();
        let near = (mhz - f64::from(self.mhz)).abs() <= 0.1 * f64::from(self.mhz);
        cpu == self.cpu && near && crate::bench::cpus().len() == self.cpus
    }
}

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} MHz, {} CPUs", self.cpu, self.mhz, self.cpus)
    }
}

/// Name and clock in MHz of the first CPU; empty and 0 where they are not told.
fn cpu() -> (String, f64) {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|l| l.starts_with(name));
        line.and_then(|l| l.split(':').nth(1)).map(|v| v.trim().to_string()).unwrap_or_default()
    };
    (field("model name"), field("cpu MHz").parse().unwrap_or(0.0))
}

/// CPU, memory, kernel and build of this run, under the keys that `--json` prints.
pub(super) fn machine() -> Value {
    let read = |p: &str| std::fs::read_to_string(p).unwrap_or_default();
    let (cpu, mhz) = cpu();
    let memory = read("/proc/meminfo");
    let kib = memory.lines().find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    json!({
        "cpu": cpu,
        "mhz": mhz,
        "cpus": crate::bench::cpus().len(),
        "memory_mib": kib.and_then(|k| k.trim().parse::<u64>().ok()).unwrap_or(0) / 1024,
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "softnet": env!("CARGO_PKG_VERSION"),
        "commit": commit(),
        "debug_build": cfg!(debug_assertions),
    })
}

/// The commit that the program was built from, if the build was told: `SOFTNET_COMMIT=$(git describe --always --dirty)`.
pub(super) fn commit() -> &'static str {
    option_env!("SOFTNET_COMMIT").filter(|commit| !commit.is_empty()).unwrap_or("unknown")
}

/// Today, in UTC: `2026-11-22`.
pub(super) fn today() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    date(now.as_secs() / 86_400)
}

/// The date so many days after 1970-01-01, in the Gregorian calendar.
fn date(days: u64) -> String {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        for (days, expected) in [
            (0, "1970-01-01"),
            (364, "1970-12-31"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_513, "2026-03-01"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
    }

    #[test]
    fn this_machine_is_like_itself() {
        let (cpu, mhz) = cpu();
        let cpus = crate::bench::cpus().len();
        let this = Hardware { cpu: cpu.leak(), mhz: mhz as u32, cpus };
        assert!(this.is_this());
        assert!(!Hardware { cpus: cpus + 1, ..this }.is_this());
    }
}
