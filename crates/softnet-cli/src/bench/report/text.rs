//! The report for a terminal. The table fits [`WIDTH`] columns with the figures that tell most; `--wide` has them all.
//!
//! What does not fit goes in this order: the range of each figure over the rounds, then figures from the last on; a line says
//! what is left out. Notes stand below the table, each once.

use super::Report;
use super::bound::Verdict;
use super::machine::machine;
use super::row::{number, plain};
use super::table::{Cell, NOTES};

/// Columns of a terminal that people read reports in.
const WIDTH: usize = 120;
/// Columns between two cells.
const GAP: usize = 2;

/// A table of texts.
struct Text {
    headings: Vec<[String; 2]>,
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Text {
    fn column_width(&self, c: usize) -> usize {
        let cells = self.rows.iter().map(|row| &row[c]).chain(&self.headings[c]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    fn width(&self) -> usize {
        (0..self.headings.len()).map(|c| self.column_width(c) + GAP).sum::<usize>().saturating_sub(GAP)
    }

    fn draw(&self) -> String {
        let widths: Vec<usize> = (0..self.headings.len()).map(|c| self.column_width(c)).collect();
        let line = |cells: &mut dyn Iterator<Item = &String>| {
            let mut out = String::new();
            for ((cell, right), width) in cells.zip(&self.right).zip(&widths) {
                out += &if *right { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
            }
            format!("{}\n", out.trim_end())
        };
        let mut text = String::new();
        if self.headings.iter().any(|[above, _]| !above.is_empty()) {
            text += &line(&mut self.headings.iter().map(|[above, _]| above));
        }
        text += &line(&mut self.headings.iter().map(|[_, below]| below));
        self.rows.iter().for_each(|row| text += &line(&mut row.iter()));
        text
    }
}

/// A heading in one line if that is no wider than `width`, else in two, broken where its words allow.
fn heading(name: &str, width: usize) -> [String; 2] {
    let breaks = name.match_indices('_').map(|(at, _)| at + 1);
    let longest = |at: &usize| (*at).max(name.len() - at);
    match breaks.min_by_key(longest).filter(|_| name.chars().count() > width) {
        Some(at) => [name[..at].into(), name[at..].into()],
        None => [String::new(), name.into()],
    }
}

impl Report {
    /// The report for a terminal; `wide`: with all figures, whatever its width.
    pub(super) fn to_text(&self, wide: bool) -> String {
        let m = machine();
        let (cpu, cpus, kernel) = (plain(&m["cpu"]), &m["cpus"], plain(&m["kernel"]));
        let mut text = format!("{} on {cpu} ({cpus} CPUs, Linux {kernel})\n\n", self.bench);
        let (marks, notes) = self.footnotes();
        // What is said of rows stands below.
        let (headings, rows) = self.table();
        let columns = headings.iter().filter(|heading| *heading != NOTES).count();
        let figures: Vec<usize> =
            (0..columns).filter(|c| rows.iter().any(|row| matches!(row[*c], Cell::Figure(_)))).collect();
        // The most telling first, then the others in their order.
        let mut order: Vec<usize> = self
            .leading
            .iter()
            .filter_map(|name| figures.iter().copied().find(|c| headings[*c] == *name))
            .collect();
        order.extend(figures.iter().filter(|c| !order.contains(c)).copied().collect::<Vec<_>>());
        let lay = |shown: &[usize], ranges: bool| {
            let is_shown = |c: &usize| !figures.contains(c) || shown.contains(c);
            let columns: Vec<usize> = (0..columns).filter(is_shown).collect();
            let cell = |cell: &Cell| if ranges { cell.text() } else { cell.median() };
            let row = |(row, mark): (&Vec<Cell>, &String)| {
                let mut cells: Vec<String> = columns.iter().map(|c| cell(&row[*c])).collect();
                cells.extend((!notes.is_empty()).then(|| mark.clone()));
                cells
            };
            let rows_text: Vec<Vec<String>> = rows.iter().zip(&marks).map(row).collect();
            let widest = |i: usize| rows_text.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
            let mut headings: Vec<[String; 2]> =
                columns.iter().enumerate().map(|(i, c)| heading(&headings[*c], widest(i))).collect();
            let mut right: Vec<bool> =
                columns.iter().map(|c| rows.first().is_some_and(|row| row[*c].is_number())).collect();
            if !notes.is_empty() {
                headings.push([String::new(), "notes".into()]);
                right.push(false);
            }
            Text { headings, rows: rows_text, right }
        };
        let (mut shown, mut ranges) = (order.len(), true);
        let mut table = lay(&order, ranges);
        while !wide && table.width() > WIDTH && (ranges || shown > 1) {
            if ranges {
                ranges = false
            } else {
                shown -= 1
            }
            table = lay(&order[..shown], ranges);
        }
        text += &table.draw();
        notes.iter().zip(1..).for_each(|(note, i): (&String, usize)| text += &format!("[{i}] {note}\n"));
        text += &format!("\n{}\n", self.method(ranges));
        if shown < order.len() || !ranges {
            let left = match order.len() - shown {
                0 => "the ranges".to_string(),
                1 => "one more figure, and the ranges".to_string(),
                n => format!("{n} more figures, and the ranges"),
            };
            text += &format!("{left}: --wide, --json, or --report FILE.html\n");
        }
        for line in self.comparison() {
            text += &format!("{line}\n");
        }
        for check in &self.checks {
            let (sign, bound) = check.limit();
            let (what, measured, bound) = (&check.what, number(check.measured), number(bound));
            text += &match check.verdict() {
                Verdict::Kept => format!("ok      {what}: {measured} {sign} {bound}\n"),
                Verdict::Missed => format!("MISSED  {what}: {measured} {sign} {bound}\n"),
                Verdict::NotJudged => {
                    format!("        {what}: {measured}, not judged here ({sign} {bound})\n")
                }
            };
        }
        if let Some(hardware) = self.other_machine() {
            text += &format!("bounds that are not judged here are stated for {hardware}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample_report;
    use super::super::{Bound, Row};
    use super::*;

    #[test]
    fn text_is_aligned_and_leaves_out_what_never_varies() {
        let mut report = sample_report();
        report.rows.truncate(2);
        report.rows[1].notes.push("generator-bound".into());
        report.bound("slow", "ns", Bound::AtLeast(19.0));
        report.bound("slow", "mpps", Bound::AtLeast(60.0));
        let text = report.to_text(false);
        let (_, text) = text.split_once("\n\n").unwrap();
        let expected = "\
case  load                ns               mpps  notes
slow  20    20.0 (10.0–30.0)  50.0 (33.3–100.0)
slow  40    40.0 (20.0–60.0)   25.0 (16.7–50.0)  [1]
[1] generator-bound

median (min–max) of the rounds; 1 disturbed rounds were repeated
ok      slow ns: 20.0 ≥ 19.0
MISSED  slow mpps: 50.0 ≥ 60.0
";
        assert_eq!(text, expected);
    }

    /// Rows of so many figures, each with a long name.
    fn crowded(figures: &[&'static str]) -> Report {
        let row = |case: &str| {
            let mut row = Row::new(case, vec![]);
            for x in [1.0, 2.0, 3.0] {
                row.push(figures.iter().map(|name| (*name, 1000.0 * x)).collect());
            }
            row
        };
        Report::new("forward", vec![row("a"), row("b")], None)
    }

    #[test]
    fn a_table_fits_a_terminal() {
        const NAMES: [&str; 24] = [
            "a_first_figure_us",
            "b_us",
            "c_us",
            "d_us",
            "e_us",
            "f_us",
            "g_us",
            "h_us",
            "i_us",
            "j_us",
            "k_us",
            "l_us",
            "m_us",
            "n_us",
            "o_us",
            "p_us",
            "q_us",
            "r_us",
            "s_us",
            "t_us",
            "u_us",
            "v_us",
            "w_us",
            "the_one_that_counts",
        ];
        for n in 1..=NAMES.len() {
            let mut report = crowded(&NAMES[NAMES.len() - n..]);
            report.leading = &["the_one_that_counts"];
            let text = report.to_text(false);
            assert!(text.lines().skip(2).all(|line| line.chars().count() <= WIDTH), "{text}");
            assert!(text.contains("the_one_\n") || text.contains("the_one_that_counts"), "{text}");
            let said = text.lines().find(|line| line.contains("--wide"));
            match n {
                1..=5 => assert!(said.is_none() && text.contains("2000 (1000–3000)"), "{text}"),
                24 => assert!(said.is_some_and(|line| line.contains("more figures")), "{text}"),
                _ => {}
            }
            let wide = report.to_text(true);
            assert!(!wide.contains("--wide") && wide.matches("2000 (1000–3000)").count() == 2 * n, "{wide}");
        }
    }

    #[test]
    fn headings_break_where_words_end() {
        assert_eq!(heading("wakeups_per_s", 5), ["wakeups_", "per_s"]);
        assert_eq!(heading("qps", 1), ["", "qps"]);
        assert_eq!(heading("p99_us", 6), ["", "p99_us"]);
    }
}
