//! What is said of rows, each text once, with a number that the rows refer to.

use std::ops::RangeInclusive;

use super::Report;

/// Notes that differ only in numbers are one, with the range of each of these.
struct Note {
    pieces: Vec<String>,
    ranges: Vec<RangeInclusive<f64>>,
}

impl Note {
    fn new(text: &str) -> Self {
        let (mut pieces, mut ranges, mut rest) = (Vec::new(), Vec::new(), text);
        let is_digit = |c: char| c.is_ascii_digit();
        while let Some(from) = rest.find(is_digit) {
            let len = rest[from..].find(|c: char| !is_digit(c) && c != '.').unwrap_or(rest.len() - from);
            let Ok(value) = rest[from..from + len].trim_end_matches('.').parse::<f64>() else { break };
            let len = rest[from..from + len].trim_end_matches('.').len();
            pieces.push(rest[..from].to_string());
            ranges.push(value..=value);
            rest = &rest[from + len..];
        }
        pieces.push(rest.to_string());
        Note { pieces, ranges }
    }

    fn widen(&mut self, other: &Note) {
        for (range, other) in self.ranges.iter_mut().zip(&other.ranges) {
            *range = range.start().min(*other.start())..=range.end().max(*other.end());
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (i, piece) in self.pieces.iter().enumerate() {
            text += piece;
            match self.ranges.get(i).map(|range| (*range.start(), *range.end())) {
                Some((from, to)) if from == to => text += &from.to_string(),
                Some((from, to)) => text += &format!("{from} to {to}"),
                None => {}
            }
        }
        text
    }
}

impl Report {
    /// For each row the numbers of its notes; and the notes.
    pub(super) fn footnotes(&self) -> (Vec<String>, Vec<String>) {
        let mut notes: Vec<Note> = Vec::new();
        let mut number = |text: &String| {
            let note = Note::new(text);
            match notes.iter().position(|known| known.pieces == note.pieces) {
                Some(at) => {
                    notes[at].widen(&note);
                    at + 1
                }
                None => {
                    notes.push(note);
                    notes.len()
                }
            }
        };
        let mut marks = Vec::new();
        for row in &self.rows {
            let numbers: Vec<String> = row.notes.iter().map(|note| number(note).to_string()).collect();
            marks.push(if numbers.is_empty() { String::new() } else { format!("[{}]", numbers.join(",")) });
        }
        (marks, notes.iter().map(Note::text).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Row;
    use super::*;

    #[test]
    fn notes_that_differ_in_numbers_are_one() {
        let mut report = Report::new("forward", vec![Row::new("a", vec![]), Row::new("b", vec![])], None);
        report.rows[0].notes.extend(["late with 8 % of 2.5.".to_string(), "bound".to_string()]);
        report.rows[1].notes.push("late with 98 % of 2.5.".into());
        let (marks, notes) = report.footnotes();
        assert_eq!(marks, ["[1,2]", "[1]"]);
        assert_eq!(notes, ["late with 8 to 98 % of 2.5.", "bound"]);
    }
}
