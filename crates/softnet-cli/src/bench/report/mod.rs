//! What a bench found: rows of figures, bounds they keep to, plots, published figures. Filled by the bench, shown as a
//! table ([`text`]), JSON ([`json`]) or a page ([`html`]); none of these changes it.

mod axis;
mod baseline;
mod bound;
mod explained;
mod html;
mod json;
mod machine;
mod notes;
pub(crate) mod plot;
mod row;
mod table;
mod text;

pub(crate) use baseline::Baseline;
pub(crate) use bound::{Bound, Checked, REFERENCE};
pub(crate) use html::PageFile;
pub(crate) use row::{Row, Sample, distinguishing, value};

use bound::Verdict;
use machine::Hardware;
use plot::Plot;
use row::label;
use serde_json::Value;

/// Figures that others published of what the bench measures, shown below ours.
pub(crate) struct Published {
    /// Authors, machine, and where it can be read.
    pub(crate) source: &'static str,
    pub(crate) columns: &'static [&'static str],
    /// As many cells in each as there are columns.
    pub(crate) rows: Vec<Vec<String>>,
}

/// A case and some of its parameters: the first row that has them all.
pub(crate) type Which<'a> = (&'a str, &'a [(&'a str, Value)]);

/// A finished bench.
pub(crate) struct Report {
    pub(crate) bench: &'static str,
    pub(crate) rows: Vec<Row>,
    /// Rounds that were repeated because of foreign load; none if the bench does not look for it.
    pub(crate) repeated: Option<usize>,
    /// Figures that tell most, the first most of all: what a narrow table has. Without any, those that come first.
    pub(crate) leading: &'static [&'static str],
    /// Shown on the page; without any, it has bars of each row's first figure.
    pub(crate) plots: Vec<Plot>,
    pub(crate) published: Vec<Published>,
    /// What its rows and figures are, as the command's help has it.
    pub(crate) explained: &'static str,
    checks: Vec<Checked>,
    /// Said of the comparison with an earlier run.
    notes: Vec<String>,
    /// What that earlier run was read from.
    baseline: Option<String>,
}

impl Report {
    /// A report of `rows`, with nothing stated yet.
    pub(crate) fn new(bench: &'static str, rows: Vec<Row>, repeated: Option<usize>) -> Self {
        let (plots, published, checks, notes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Report {
            bench,
            rows,
            repeated,
            leading: &[],
            plots,
            published,
            explained: "",
            checks,
            notes,
            baseline: None,
        }
    }

    /// The row of `case`; the first, if it has several.
    pub(crate) fn row(&self, case: &str) -> Option<&Row> {
        self.row_where(case, &[])
    }

    /// The row of `case` that has these parameters.
    pub(crate) fn row_where(&self, case: &str, params: &[(&str, Value)]) -> Option<&Row> {
        let has = |row: &Row, (key, value): &(&str, Value)| row.param(key) == Some(value);
        self.rows.iter().find(|row| row.case == case && params.iter().all(|param| has(row, param)))
    }

    /// Median over the rounds of `figure` of the row `case`, divided by that of the row `by` in the same round: what
    /// slows or speeds a whole round does not show in it. 0 if one of them was not measured.
    pub(crate) fn ratio(&self, case: &str, by: &str, figure: &str) -> f64 {
        self.ratio_where((case, &[]), (by, &[]), figure)
    }

    /// The same of rows chosen by parameters too.
    pub(crate) fn ratio_where(&self, row: Which<'_>, by: Which<'_>, figure: &str) -> f64 {
        match (self.row_where(row.0, row.1), self.row_where(by.0, by.1)) {
            (Some(row), Some(by)) => row.ratio(by, figure),
            _ => 0.0,
        }
    }

    /// States that the median of `figure` of the row `case` keeps to `bound`.
    pub(crate) fn bound(&mut self, case: &str, figure: &str, bound: Bound) -> &mut Checked {
        self.bound_where((case, &[]), figure, bound)
    }

    /// The same of a row chosen by parameters too.
    pub(crate) fn bound_where(&mut self, row: Which<'_>, figure: &str, bound: Bound) -> &mut Checked {
        let measured = self.row_where(row.0, row.1).map_or(0.0, |r| r.median(figure));
        let params = row.1.iter().map(|(key, value)| (*key, value));
        self.bound_value(format!("{} {figure}", label(row.0, params)), measured, bound)
    }

    /// States that `measured` keeps to `bound`.
    pub(crate) fn bound_value(&mut self, what: String, measured: f64, bound: Bound) -> &mut Checked {
        let at = self.checks.len();
        self.checks.push(Checked::new(what, measured, bound));
        &mut self.checks[at]
    }

    /// Whether no bound that was judged here is missed.
    pub(crate) fn holds(&self) -> bool {
        self.checks.iter().all(|check| check.verdict() != Verdict::Missed)
    }

    /// The machine that bounds are stated for which are not judged here.
    fn other_machine(&self) -> Option<&'static Hardware> {
        self.checks
            .iter()
            .filter(|check| check.verdict() == Verdict::NotJudged)
            .find_map(|check| check.stated_for)
    }

    /// The report as text: one JSON object, or an aligned table, which is `wide` or fits a terminal.
    pub(crate) fn render(&self, as_json: bool, wide: bool) -> String {
        if as_json { format!("{:#}\n", self.to_json()) } else { self.to_text(wide) }
    }

    /// How the figures came about, in a line; whether they are shown with their `ranges`.
    fn method(&self, ranges: bool) -> String {
        let median = if ranges { "median (min–max)" } else { "median" };
        match self.repeated {
            Some(n) => format!("{median} of the rounds; {n} disturbed rounds were repeated"),
            None => format!("{median} of the rounds; they were not watched for other programs"),
        }
    }

    /// What the comparison with an earlier run shows, and what it cannot, in lines.
    fn comparison(&self) -> Vec<String> {
        let Some(file) = &self.baseline else { return Vec::new() };
        let figure = self.rows.first().and_then(|r| r.figures().first().copied()).unwrap_or("first figure");
        let mut lines = vec![format!("vs baseline: {figure}, divided by that of the same row in {file}")];
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Two loads of two cases, three rounds; `fast` takes a tenth of the time in every round.
    pub(super) fn sample_report() -> Report {
        let rows = [("slow", 20, 10.0), ("slow", 40, 20.0), ("fast", 20, 1.0), ("fast", 40, 2.0)];
        let row = |(case, load, ns): (&str, i32, f64)| {
            let mut row = Row::new(case, vec![("device", json!("mem")), ("load", json!(load))]);
            for round in [1.0, 3.0, 2.0] {
                row.push(vec![("ns", ns * round), ("mpps", 1000.0 / (ns * round))]);
            }
            row
        };
        Report::new("forward", rows.map(row).into(), Some(1))
    }

    #[test]
    fn rows_are_chosen_by_parameters() {
        let mut report = sample_report();
        let at = |load: i32| [("load", json!(load))];
        assert_eq!(report.row("slow").unwrap().median("ns"), 20.0);
        assert_eq!(report.row_where("slow", &at(40)).unwrap().median("ns"), 40.0);
        assert!(report.row_where("slow", &at(60)).is_none());
        assert!(report.row_where("slow", &[("load", json!(40)), ("device", json!("xdp"))]).is_none());
        assert_eq!(report.ratio("fast", "slow", "ns"), 0.1);
        assert_eq!(report.ratio_where(("fast", &at(40)), ("slow", &at(20)), "ns"), 0.2);
        assert_eq!(report.ratio_where(("fast", &at(60)), ("slow", &at(20)), "ns"), 0.0);
        report.bound_where(("fast", &at(40)), "ns", Bound::AtMost(4.0));
        assert!(report.holds());
        report.bound_where(("slow", &at(20)), "ns", Bound::AtMost(19.0));
        assert!(!report.holds());
        assert_eq!(report.checks[1].what, "slow at 20 % ns");
    }

    #[test]
    fn a_ratio_is_taken_round_by_round() {
        let mut rows = [Row::new("a", vec![]), Row::new("b", vec![])];
        // The second round was slower for both, and would swap the medians of an uneven number of them.
        for (a, b) in [(3.0, 4.0), (30.0, 40.0), (6.0, 8.0)] {
            rows[0].push(vec![("x", a)]);
            rows[1].push(vec![("x", b), ("y", 0.0)]);
        }
        let report = Report::new("t", rows.into(), None);
        assert_eq!(report.ratio("a", "b", "x"), 0.75);
        assert_eq!(report.ratio("a", "c", "x"), 0.0);
        assert_eq!(report.ratio("b", "b", "y"), 0.0);
    }
}
