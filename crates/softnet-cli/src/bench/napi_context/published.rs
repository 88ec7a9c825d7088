//! What was published of polling in threads (Wei Wang, "implement kthread based napi poll", v9 and v10, netdev, January and
//! February 2021), beside what this run found.

use serde_json::json;
use softnet_dev::sched::Policy;

use super::setup::Setup;
use super::{WORKS, params};
use crate::bench::report::{Published, Report};

const SOURCE: &str = "Wei Wang et al., \"implement kthread based napi poll\" (netdev, 2021): 1000 flows \
    request/response, 56 hardware threads, 100 Gbit/s, 8 RX queues, unpinned. The last columns are this run's \
    ratios, of contended with 1 µs of work, for 1 B and, beside 5 KB, 1400 B";
const SOURCE_TCP: &str = "Wei Wang et al., \"implement kthread based napi poll\" (netdev, 2021): 1000 flows \
    request/response, 56 hardware threads, 100 Gbit/s, 8 RX queues, unpinned. The last columns are this run's \
    ratios over TCP, of one poller and one server on the same CPU (by set-up, in the order of the rows)";
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
const HUGE: [Line; 3] = [
    ("softirq", "softirq", 11.0e3, [79e3, 166e3, 306e3, 630e3]),
    ("threaded", "kthread", 11.0e3, [75e3, 177e3, 303e3, 596e3]),
    ("workqueue", "workqueue", 11.0e3, [79e3, 180e3, 303e3, 587e3]),
];
/// What ratios are made of, and which of a line's latencies that is.
const FIGURES: [(&str, Option<usize>); 4] =
    [("qps", None), ("p50_us", Some(0)), ("p99_us", Some(2)), ("p999_us", Some(3))];

const COLUMNS: &[&str] = &[
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

/// Published figures, with the ratios to `softirq` (the row with this policy) that `report` has.
pub(super) fn tables(report: &Report, softirq: Policy) -> Vec<Published> {
    let groups = [(SMALL, "1 B", 1), (LARGE, "5 KB", 1400)];
    let rows = rows(&groups, |case, size, figure| {
        let policy = if case == "softirq" { softirq } else { Policy::Other };
        let own = params(Setup::Contended, policy, WORKS[0], size);
        let by = params(Setup::Contended, softirq, WORKS[0], size);
        vec![report.ratio_where((case, &own), ("softirq", &by), figure)]
    });
    vec![Published { source: SOURCE, columns: COLUMNS, rows }, ssd()]
}

/// The same, of rows of `--app tcp` in these set-ups.
pub(super) fn tcp_table(report: &Report, setups: &[Setup]) -> Published {
    let groups = [(SMALL, "1 B", 1), (LARGE, "5 KB", 5 << 10), (HUGE, "1 MB", 1 << 20)];
    let rows = rows(&groups, |case, size, figure| {
        let ratio = |setup: &Setup| {
            let at = [("setup", json!(setup.name())), ("size", json!(size))];
            report.ratio_where((case, &at), ("softirq", &at), figure)
        };
        setups.iter().map(ratio).collect()
    });
    Published { source: SOURCE_TCP, columns: COLUMNS, rows }
}

/// Lines as they were published, their ratios to the first of their size, and those that were
/// measured `here`, by case, size and figure.
fn rows(
    groups: &[([Line; 3], &str, usize)],
    here: impl Fn(&str, usize, &str) -> Vec<f64>,
) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (lines, bytes, size) in groups {
        let (_, _, base_qps, base_us) = lines[0];
        for (case, name, qps, us) in lines {
            let millions = qps / 1e6;
            let millions = if millions < 0.1 { format!("{millions:.3}") } else { format!("{millions:.2}") };
            let mut cells: Vec<String> = vec![(*name).into(), (*bytes).into(), millions];
            cells.extend(us.map(|us| format!("{us:.0}")));
            cells.extend(
                FIGURES.map(|(_, at)| format!("{:.3}", at.map_or(qps / base_qps, |at| us[at] / base_us[at]))),
            );
            for (figure, _) in FIGURES {
                let ratios = here(case, *size, figure).into_iter();
                let cell = |ratio: f64| if ratio > 0.0 { format!("{ratio:.3}") } else { "–".into() };
                cells.push(ratios.map(cell).collect::<Vec<_>>().join(" / "));
            }
            rows.push(cells);
        }
    }
    rows
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::Row;

    #[test]
    fn measured_and_published_stand_side_by_side() {
        let row = |case: &str, setup: Setup, qps: f64| {
            let params = vec![("setup", json!(setup.name())), ("size", json!(5 << 10))];
            let mut row = Row::new(case, params);
            row.push(vec![("qps", qps), ("p50_us", 1.0 / qps)]);
            row
        };
        let rows = vec![
            row("softirq", Setup::Pinned, 1.0),
            row("threaded", Setup::Pinned, 0.5),
            row("softirq", Setup::Hog, 1.0),
            row("threaded", Setup::Hog, 0.25),
        ];
        let table = tcp_table(&Report::new("napi-context", rows, None), &[Setup::Pinned, Setup::Hog]);
        assert!(table.rows.iter().all(|row| row.len() == COLUMNS.len()));
        let threaded = &table.rows[4];
        assert_eq!(threaded[..3], ["kthread", "5 KB", "1.44"]);
        assert_eq!(
            threaded[7..],
            ["0.986", "1.025", "0.920", "0.381", "0.500 / 0.250", "2.000 / 4.000", "– / –", "– / –"]
        );
        assert_eq!(table.rows[6][..4], ["softirq", "1 MB", "0.011", "79000"]);
        assert_eq!(table.rows[1][11], "– / –", "not measured");
    }
}
