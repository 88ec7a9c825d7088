//! What was published of polling in threads (Wei Wang, "implement kthread based napi poll", v9 and v10, netdev, January and
//! February 2021), beside what this run found.

use softnet_dev::sched::Policy;

use super::setup::Setup;
use super::{WORKS, params};
use crate::bench::report::{Published, Report};

const SOURCE: &str = "Wei Wang et al., \"implement kthread based napi poll\" (netdev, 2021): 1000 flows \
    request/response, 56 hardware threads, 100 Gbit/s, 8 RX queues, unpinned. The last columns are this run's \
    ratios, of contended with 1 µs of work, for 1 B and, beside 5 KB, 1400 B";
const SSD: &str = "The same: remote SSD at a fixed rate, pollers pinned to a few CPUs, application threads busy; not \
    measured here";

/// Context here, its name there, requests a second, p50, p90, p99 and p99.9 in µs.
type Line = (&'static str, &'static str, f64, [f64; 4]);

const SMALL: [Line; 3] = [
    ("softirq", "softirq", 2.75e6, [337.0, 376.0, 1040.0, 3690.0]),
    ("threaded", "kthread", 2.67e6, [371.0, 408.0, 455.0, 550.0]),
    ("workqueue", "workqueue", 2.56e6, [384.0, 435.0, 673.0, 822.0]),
];
const LARGE: [Line; 3] = [
    ("softirq", "softirq", 1.46e6, [678.0, 750.0, 969.0, 2780.0]),
    ("threaded", "kthread", 1.44e6, [695.0, 789.0, 891.0, 1060.0]),
    ("workqueue", "workqueue", 1.34e6, [720.0, 905.0, 1060.0, 1570.0]),
];
const FIGURES: [&str; 5] = ["qps", "p50_us", "p90_us", "p99_us", "p999_us"];

/// Published figures, with the ratios to `softirq` (the row with this policy) that `report` has.
pub(super) fn tables(report: &Report, softirq: Policy) -> Vec<Published> {
    let mut rows = Vec::new();
    for (lines, bytes, size) in [(SMALL, "1 B", 1), (LARGE, "5 KB", 1400)] {
        let by = params(Setup::Contended, softirq, WORKS[0], size);
        for (case, name, qps, us) in lines {
            let (_, _, base_qps, base_us) = lines[0];
            let mut cells = vec![name.into(), bytes.into(), format!("{:.2}", qps / 1e6)];
            cells.extend(us.map(|us| format!("{us:.0}")));
            cells.push(format!("{:.3}", qps / base_qps));
            cells.extend([0, 2, 3].map(|at| format!("{:.3}", us[at] / base_us[at])));
            let policy = if case == "softirq" { softirq } else { Policy::Other };
            let own = params(Setup::Contended, policy, WORKS[0], size);
            for figure in [FIGURES[0], FIGURES[1], FIGURES[3], FIGURES[4]] {
                let ratio = report.ratio_where((case, &own), ("softirq", &by), figure);
                cells.push(if ratio > 0.0 { format!("{ratio:.3}") } else { "–".into() });
            }
            rows.push(cells);
        }
    }
    let columns = &[
        "context",
        "size",
        "M qps",
        "p50 µs",
        "p90 µs",
        "p99 µs",
        "p99.9 µs",
        "qps ÷",
        "p50 ÷",
        "p99 ÷",
        "p99.9 ÷",
        "here: qps ÷",
        "here: p50 ÷",
        "here: p99 ÷",
        "here: p99.9 ÷",
    ];
    vec![Published { source: SOURCE, columns, rows }, ssd()]
}

fn ssd() -> Published {
    let lines = [
        ("softirq", "4 K", "572.6", ["385", "1500", "3160", "6410"]),
        ("kthread", "4 K", "572.6", ["390", "803", "2210", "6830"]),
        ("workqueue", "4 K", "572.6", ["384", "763", "3120", "6870"]),
        ("softirq", "64 K", "157.9", ["736", "1170", "3400", "13750"]),
        ("kthread", "64 K", "157.9", ["745", "1230", "2760", "9870"]),
        ("workqueue", "64 K", "157.9", ["746", "1230", "2760", "9960"]),
        ("softirq", "1 M", "10.98", ["2030", "3100", "3700", "11560"]),
        ("kthread", "1 M", "10.98", ["2130", "3210", "4020", "13300"]),
        ("workqueue", "1 M", "10.98", ["2130", "3200", "3990", "14120"]),
    ];
    let row = |(context, op, qps, us): (&str, &str, &str, [&str; 4])| {
        [context, op, qps].into_iter().chain(us).map(String::from).collect()
    };
    let columns = &["context", "operation", "k qps", "p50 µs", "p95 µs", "p99 µs", "p99.9 µs"];
    Published { source: SSD, columns, rows: lines.into_iter().map(row).collect() }
}
