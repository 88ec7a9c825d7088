//! The result table, as cells, for what draws it.

use super::Report;
use super::row::{Summary, number, parameters, plain};

/// Heading of the last column, if there is one for what is said of rows.
pub(super) const NOTES: &str = "notes";

/// A cell of the result table.
pub(super) enum Cell {
    Text(String),
    Figure(Option<Summary>),
    /// Against the baseline.
    Ratio(Option<f64>),
}

impl Cell {
    /// With the range over the rounds.
    pub(super) fn text(&self) -> String {
        match self {
            Cell::Figure(Some(s)) if s.n > 1 => {
                format!("{} ({}–{})", number(s.median), number(s.min), number(s.max))
            }
            _ => self.median(),
        }
    }

    /// Without.
    pub(super) fn median(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
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
        headings.extend(noted.then(|| NOTES.into()));
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
}

#[cfg(test)]
mod tests {
    use super::super::Row;
    use super::super::tests::sample_report;

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
