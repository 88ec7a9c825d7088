//! What was published of deferred enqueue in the kernel, beside what this run found.

use super::queue::Way;
use super::{Discipline, MANY, params};
use crate::bench::report::{Published, Report};

const SOURCE: &str = "Eric Dumazet, \"net: dev_queue_xmit() llist adoption\" (netdev, October 2025): 240 threads send 120-byte \
    UDP messages on 480 hardware threads, 100 Gbit/s, 30 TX queues with fq, so 8 senders on each. The last columns are \
    this run's ratios deferred / busylock with 8 senders on one queue with tbf";

/// What, before, after, their ratio, and the figure of ours that it is to be held against, with pinned senders or without.
type Line = (&'static str, &'static str, &'static str, &'static str, Option<(&'static str, bool)>);

const LINES: [Line; 12] = [
    ("throughput, unpinned", "16 Mpps", "29 Mpps", "1.81", Some(("mpps", false))),
    ("throughput, pinned", "41 Mpps", "57 Mpps", "1.39", Some(("mpps", true))),
    (
        "CPU time for a packet",
        "1 / 0.308 Mpps per %",
        "1 / 1.26 Mpps per %",
        "0.24",
        Some(("cpu_ns_per_packet", false)),
    ),
    ("call, most frequent", "8–16 µs", "256–512 ns", "1/32", Some(("p50_us", false))),
    ("call, p99", "128–256 µs", "8–16 µs", "1/16", Some(("p99_us", false))),
    ("context switches a second", "10–46 k", "280–300 k", "×10", Some(("switches_per_s", false))),
    ("system CPU", "52 %", "23 %", "0.44", None),
    ("spinning, 8 CPUs in 1 s, unpinned", "6.8 s", "0.243 s", "0.036", None),
    ("contended acquisitions, unpinned", "448,329", "11,772", "0.026", None),
    ("longest wait for a lock, unpinned", "162.5 ms", "0.487 ms", "0.003", None),
    ("spinning, 8 CPUs in 1 s, pinned", "7.10 s", "0.432 s", "0.061", None),
    ("longest wait for a lock, pinned", "147 ms", "0.215 ms", "0.0015", None),
];

/// The published figures, with the ratios that `report` has.
pub(super) fn table(report: &Report) -> Published {
    let here = |(figure, pinned): (&str, bool)| {
        let params = params(Discipline::Tbf, MANY, pinned);
        let ratio =
            report.ratio_where((Way::Deferred.name(), &params), (Way::BusyLock.name(), &params), figure);
        (ratio > 0.0).then(|| format!("{ratio:.3}"))
    };
    let row = |(what, before, after, ratio, figure): Line| {
        let here = figure.and_then(here).unwrap_or_else(|| "–".into());
        [what, before, after, ratio, &here].map(String::from).into()
    };
    let columns = &["what", "before", "after", "after / before", "here"];
    Published { source: SOURCE, columns, rows: LINES.into_iter().map(row).collect() }
}
