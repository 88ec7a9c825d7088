//! The result table, as cells for whoever draws it, and as text for a terminal.

use super::Report;
use super::machine::machine;
use super::row::{Summary, number, parameters, plain};

/// A cell of the result table.
pub(super) enum Cell {
    Text(String),
    Figure(Option<Summary>),
    /// Against the baseline.
    Ratio(Option<f64>),
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Figure(Some(s)) if s.n > 1 => {
                format!("{} ({}–{})", number(s.median), number(s.min), number(s.max))
            }
            Cell::Figure(Some(s)) => number(s.median),
            Cell::Ratio(Some(ratio)) => format!("{ratio:.3}"),
            Cell::Figure(None) | Cell::Ratio(None) => "–".into(),
        }
    }

    /// Whether it is a number, which stands on the right of its column.
    pub(super) fn is_number(&self) -> bool {
        !matches!(self, Cell::Text(_))
    }
}

impl Report {
    /// Headings and rows of the result table, all of the same length: the case, the parameters that differ between
    /// rows, the figures, the ratio to the baseline if there is one, and notes if there are any.
    pub(super) fn table(&self) -> (Vec<String>, Vec<Vec<Cell>>) {
        let (keys, _) = parameters(self.rows.iter());
        let mut figures: Vec<&str> = Vec::new();
        for figure in self.rows.iter().flat_map(|row| row.figures()) {
            if !figures.contains(&figure) {
                figures.push(figure);
            }
        }
        let noted = self.rows.iter().any(|row| !row.notes.is_empty());
        let mut headings: Vec<String> =
            ["case"].iter().chain(&keys).chain(&figures).map(|s| s.to_string()).collect();
        headings.extend(self.baseline.is_some().then(|| "vs baseline".into()));
        headings.extend(noted.then(|| "notes".into()));
        let row = |row: &super::Row| {
            let mut cells = vec![Cell::Text(row.case.clone())];
            cells.extend(keys.iter().map(|key| Cell::Text(row.param(key).map(plain).unwrap_or_default())));
            cells.extend(figures.iter().map(|figure| Cell::Figure(row.summary(figure))));
            if self.baseline.is_some() {
                let first = row.figures().first().copied();
                let ratio = row.to_baseline.iter().find(|(figure, _)| Some(*figure) == first);
                cells.push(Cell::Ratio(ratio.map(|(_, ratio)| *ratio)));
            }
            cells.extend(noted.then(|| Cell::Text(row.notes.join("; "))));
            cells
        };
        (headings, self.rows.iter().map(row).collect())
    }

    /// The report for a terminal.
    pub(super) fn to_text(&self) -> String {
        let m = machine();
        let (cpu, cpus, kernel) = (plain(&m["cpu"]), &m["cpus"], plain(&m["kernel"]));
        let mut text = format!("{} on {cpu} ({cpus} CPUs, Linux {kernel})\n\n", self.bench);
        let (headings, rows) = self.table();
        let cells: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect();
        for line in std::iter::once(&headings).chain(&cells) {
            let mut out = String::new();
            for (c, cell) in line.iter().enumerate() {
                let column = cells.iter().map(|line| &line[c]).chain([&headings[c]]);
                let width = column.map(|cell| cell.chars().count()).max().unwrap_or(0);
                let right = rows.first().is_some_and(|row| row[c].is_number());
                out += &if right { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
            }
            text += out.trim_end();
            text.push('\n');
        }
        text += &format!("\n{}\n", self.method());
        for line in self.comparison() {
            text += &format!("{line}\n");
        }
        for check in &self.checks {
            let (sign, bound) = check.limit();
            let verdict = if check.holds() { "ok    " } else { "MISSED" };
            let (measured, bound) = (number(check.measured), number(bound));
            text += &format!("{verdict}  {}: {measured} {sign} {bound}\n", check.what);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample_report;
    use super::super::{Bound, Row};

    #[test]
    fn text_is_aligned_and_leaves_out_what_never_varies() {
        let mut report = sample_report();
        report.rows.truncate(2);
        report.rows[1].notes.push("generator-bound".into());
        report.bound("slow", "ns", Bound::AtLeast(19.0));
        report.bound("slow", "mpps", Bound::AtLeast(60.0));
        let text = report.to_text();
        let (_, text) = text.split_once("\n\n").unwrap();
        let expected = "\
case  load                ns               mpps  notes
slow  20    20.0 (10.0–30.0)  50.0 (33.3–100.0)
slow  40    40.0 (20.0–60.0)   25.0 (16.7–50.0)  generator-bound

median (min–max) of the rounds; 1 disturbed rounds were repeated
ok      slow ns: 20.0 ≥ 19.0
MISSED  slow mpps: 50.0 ≥ 60.0
";
        assert_eq!(text, expected);
    }

    #[test]
    fn rows_need_not_have_the_same_figures() {
        let mut report = sample_report();
        report.rows.push(Row::new("idle", vec![]));
        report.rows[4].push(vec![("wakeups_per_s", 3.0)]);
        let (headings, rows) = report.table();
        assert_eq!(headings, ["case", "device", "load", "ns", "mpps", "wakeups_per_s"]);
        assert!(rows.iter().all(|row| row.len() == headings.len()));
        let last: Vec<String> = rows[4].iter().map(|cell| cell.text()).collect();
        assert_eq!(last, ["idle", "", "", "–", "–", "3.00"]);
    }
}
