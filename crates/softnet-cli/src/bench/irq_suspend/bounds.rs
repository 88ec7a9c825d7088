//! The bounds of `--app kv`: what softnet's suspension must gain over softnet's own interrupts, and over the best that the
//! kernel does in the same set-up.

use serde_json::{Value, json};

use super::load::load_value;
use super::meaning;
use crate::bench::report::Bound::{self, AtLeast, AtMost};
use crate::bench::report::{Report, Row};

/// A row counts as one that carries its load if it answers this share of it, in percent.
const SUSTAINED: f64 = 97.0;

/// A figure: its name, whether more is better, the load, and whose maximum that is a share of.
type Figure = (&'static str, Option<u32>, &'static str);

/// Against softnet's own: case, case, figure, bound.
const OWN: [(&str, &str, Figure, Bound); 4] = [
    ("suspend20", "base", ("qps", None, "own"), AtLeast(1.10)),
    ("suspend20", "fullbusy", ("qps", None, "own"), AtLeast(0.95)),
    ("suspend20", "base", ("p99_us", Some(80), "own"), AtMost(1.0)),
    ("suspend20", "base", ("cpu_percent", Some(20), "own"), AtMost(1.15)),
];

/// Against the best of the kernel's rows.
const KERNEL: [(&str, Figure, Bound); 4] = [
    ("base", ("qps", None, "own"), AtLeast(0.9)),
    ("suspend20", ("qps", None, "own"), AtLeast(1.3)),
    ("suspend20", ("p99_us", Some(80), "kernel"), AtMost(1.0)),
    ("suspend20", ("cpu_percent", Some(20), "kernel"), AtMost(1.1)),
];

/// States the bounds whose cases and loads were measured on `device`.
pub(super) fn state_bounds(report: &mut Report, device: &str, rx_cpu: &str, max_events: u16) {
    let mut found = Vec::new();
    let rows = Rows { report, rx_cpu, max_events };
    let wire = if rx_cpu == "-" { device.into() } else { format!("{device}, {rx_cpu}'s CPU receives") };
    for (case, by, figure, bound) in OWN {
        let (case, by) = (rows.best(device, Some(case), figure), rows.best(device, Some(by), figure));
        found.extend(rows.checked(&wire, case, by, figure, bound));
    }
    for (case, figure, bound) in KERNEL.into_iter().filter(|_| device != "mem") {
        let (case, by) = (rows.best(device, Some(case), figure), rows.best("kernel", None, figure));
        found.extend(rows.checked(&wire, case, by, figure, bound));
    }
    for (what, figure, ratio, bound) in found {
        report.bound_value(what, ratio, bound).meaning(meaning(figure));
    }
}

struct Rows<'a> {
    report: &'a Report,
    rx_cpu: &'a str,
    max_events: u16,
}

impl<'a> Rows<'a> {
    /// Of the rows of `device` (of one case or of any) under the figure's load, the one with the best median; one that does
    /// not carry the load only if none does.
    fn best(&self, device: &str, case: Option<&str>, (figure, load, load_of): Figure) -> Option<&'a Row> {
        let wanted: [(&str, Value); 5] = [
            ("device", json!(device)),
            ("rx_cpu", json!(self.rx_cpu)),
            ("load", load_value(load)),
            ("load_of", json!(load_of)),
            ("maxevents", json!(self.max_events)),
        ];
        let is_it = |row: &&Row| {
            case.is_none_or(|case| row.case == case)
                && wanted.iter().all(|(key, value)| row.param(key) == Some(value))
        };
        let value = |row: &Row| {
            let worth = if figure == "qps" { -row.median(figure) } else { row.median(figure) };
            (load.is_some() && row.median("sustained_percent") < SUSTAINED, worth)
        };
        let rows = self.report.rows.iter().filter(is_it);
        rows.min_by(|a, b| {
            let ((a_late, a), (b_late, b)) = (value(a), value(b));
            a_late.cmp(&b_late).then(a.total_cmp(&b))
        })
    }

    fn checked(
        &self,
        wire: &str,
        row: Option<&Row>,
        by: Option<&Row>,
        (figure, load, load_of): Figure,
        bound: Bound,
    ) -> Option<(String, &'static str, f64, Bound)> {
        let (row, by) = row.zip(by)?;
        let ratio = row.ratio(by, figure);
        let name = |row: &Row| {
            let whose = if row.param("device") == Some(&json!("kernel")) { "kernel's " } else { "" };
            let timeout = row.param("veth_timeout_us").and_then(Value::as_u64).unwrap_or(0);
            let deferred = if whose.is_empty() && timeout > 0 {
                format!(" (veth {timeout} µs)")
            } else {
                String::new()
            };
            format!("{whose}{}{deferred}", row.case)
        };
        let load = match load {
            None => "MAX".into(),
            Some(percent) if load_of == "own" => format!("{percent} % of their own MAX"),
            Some(percent) => format!("{percent} % of the {load_of}'s MAX"),
        };
        let what = format!("{wire}: {} / {} {figure} at {load}, by round", name(row), name(by));
        (ratio > 0.0).then_some((what, figure, ratio, bound))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, device: &str, (figure, load, load_of): Figure, x: f64, sustained: f64) -> Row {
        let params = vec![
            ("device", json!(device)),
            ("rx_cpu", json!("server")),
            ("load", load_value(load)),
            ("load_of", json!(load_of)),
            ("veth_timeout_us", json!(0)),
            ("maxevents", json!(64)),
        ];
        let mut row = Row::new(case, params);
        row.push(vec![(figure, x), ("sustained_percent", sustained)]);
        row
    }

    const MAX: Figure = ("qps", None, "own");
    const P99: Figure = ("p99_us", Some(80), "kernel");

    #[test]
    fn the_kernel_is_compared_at_its_best() {
        let report = |suspend20: f64, p99: f64| {
            let rows = vec![
                row("base", "kernel", MAX, 60.0, 100.0),
                row("defer100", "kernel", MAX, 100.0, 100.0),
                row("base", "kernel", P99, 100.0, 100.0),
                row("fullbusy", "kernel", P99, 10.0, 50.0),
                row("suspend20", "xdp", MAX, suspend20, 100.0),
                row("suspend20", "xdp", P99, p99, 100.0),
            ];
            let mut report = Report::new("irq-suspend", rows, None);
            state_bounds(&mut report, "xdp", "server", 64);
            report
        };
        assert!(report(130.0, 100.0).holds());
        assert!(!report(129.0, 100.0).holds(), "the best of its maxima");
        assert!(!report(130.0, 101.0).holds(), "the best of those that carry the load");
    }

    #[test]
    fn softnet_is_compared_with_itself_too() {
        let report = |suspend20: f64| {
            let rows =
                vec![row("base", "xdp", MAX, 100.0, 100.0), row("suspend20", "xdp", MAX, suspend20, 100.0)];
            let mut report = Report::new("irq-suspend", rows, None);
            state_bounds(&mut report, "xdp", "server", 64);
            state_bounds(&mut report, "xdp", "client", 64);
            report
        };
        assert!(report(110.0).holds());
        assert!(!report(109.0).holds());
    }
}
