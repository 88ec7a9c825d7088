//! What the figures were measured on.

use serde_json::{Value, json};

/// CPU, memory, kernel and build of this run, under the keys that `--json` prints.
pub(super) fn machine() -> Value {
    let read = |p: &str| std::fs::read_to_string(p).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|l| l.starts_with(name));
        line.and_then(|l| l.split(':').nth(1)).map(|v| v.trim().to_string()).unwrap_or_default()
    };
    let memory = read("/proc/meminfo");
    let kib = memory.lines().find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    json!({
        "cpu": field("model name"),
        "mhz": field("cpu MHz").parse::<f64>().unwrap_or(0.0),
        "cpus": crate::bench::cpus().len(),
        "memory_mib": kib.and_then(|k| k.trim().parse::<u64>().ok()).unwrap_or(0) / 1024,
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "softnet": env!("CARGO_PKG_VERSION"),
        "debug_build": cfg!(debug_assertions),
    })
}
