//! The table of differences, `differences.md`: which there are, how each looks, and why.
//!
//! A heading of the third level and the text below it are a reason, for the rows of the table that follows. A row names cases
//! that all differ in the same way, and says that way in full, for either router.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::decode::Said;

const FILE: &str = include_str!("differences.md");
/// What stands in a row for a router that sent nothing that the other did not.
const NOTHING: &str = "nothing";
const LETTER: [char; 3] = ['a', 'b', 'c'];

/// How two routers differ in a case: what one sent and the other did not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Difference {
    pub(crate) kernel: String,
    pub(crate) softnet: String,
}

/// A difference that is known, and the heading of its reason.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) difference: Difference,
    pub(crate) reason: String,
}

/// The table, by case.
pub(crate) fn known() -> BTreeMap<String, Known> {
    parse(FILE).unwrap_or_else(|error| panic!("differences.md: {error}"))
}

fn parse(text: &str) -> Result<BTreeMap<String, Known>, String> {
    let mut known = BTreeMap::new();
    let (mut reason, mut why) = (String::new(), false);
    for (number, line) in text.lines().enumerate() {
        let wrong = |what: &str| Err(format!("line {}: {what}", number + 1));
        if let Some(heading) = line.strip_prefix("### ") {
            (reason, why) = (heading.trim().to_owned(), false);
        } else if line.starts_with('#') {
            reason.clear();
        } else if !line.starts_with('|') {
            why |= !line.trim().is_empty();
        } else {
            let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
            let &[cases, kernel, softnet] = &cells[..] else { return wrong("expected three cells") };
            if cases == "case" || cases.starts_with("--") {
                continue;
            }
            if reason.is_empty() || !why {
                return wrong("expected a heading `### …` and a reason above the table");
            }
            let difference = Difference { kernel: kernel.to_owned(), softnet: softnet.to_owned() };
            for case in cases.split_whitespace() {
                let row = Known { difference: difference.clone(), reason: reason.clone() };
                if known.insert(case.to_owned(), row).is_some() {
                    return wrong(&format!("{case} is there twice"));
                }
            }
        }
    }
    Ok(known)
}

/// How they differ; `None` if they do not. Of frames of the same kind on the same link only the fields are said that differ.
pub(crate) fn difference(kernel: &[Said], softnet: &[Said]) -> Option<Difference> {
    let (mut theirs, mut ours) = (kernel.to_vec(), softnet.to_vec());
    theirs.retain(|said| match ours.iter().position(|other| other == said) {
        Some(at) => {
            ours.remove(at);
            false
        }
        None => true,
    });
    if theirs.is_empty() && ours.is_empty() {
        return None;
    }
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for said in theirs {
        let alike = |other: &Said| other.link == said.link && other.kind == said.kind;
        match ours.iter().position(alike).map(|at| ours.remove(at)) {
            Some(other) => {
                let (one, two) = fields(&said, &other);
                left.push(one);
                right.push(two);
            }
            None => left.push(said.line()),
        }
    }
    right.extend(ours.iter().map(Said::line));
    let cell = |lines: Vec<String>| if lines.is_empty() { NOTHING.to_owned() } else { lines.join("; ") };
    Some(Difference { kernel: cell(left), softnet: cell(right) })
}

/// The fields of two frames of a kind that only one of them has, or that differ.
fn fields(one: &Said, two: &Said) -> (String, String) {
    let only = |this: &Said, that: &Said| {
        let mut said = format!("{} {}:", LETTER[this.link], this.kind);
        let mut plain = true;
        for field in this.fields.iter().filter(|field| !that.fields.contains(field)) {
            plain = false;
            said.extend([" ", field.0, if field.0.is_empty() { "" } else { " " }, &field.1]);
        }
        if plain { said + " not so" } else { said }
    };
    (only(one, two), only(two, one))
}

/// Rows as the table has them, cases with the same difference together.
pub(crate) fn rows(found: &[(String, Difference)]) -> String {
    let mut by_difference: BTreeMap<&Difference, Vec<&str>> = BTreeMap::new();
    for (case, difference) in found {
        by_difference.entry(difference).or_default().push(case);
    }
    let mut rows: Vec<_> = by_difference
        .into_iter()
        .map(|(difference, cases)| {
            format!("| {} | {} | {} |\n", cases.join(" "), difference.kernel, difference.softnet)
        })
        .collect();
    rows.sort();
    rows.concat()
}

/// Where rows go that have no reason yet.
const NEW: &str =
    "### To be judged\n\nWhich of the headings above is it?\n\n| case | kernel | softnet |\n|---|---|---|\n";

/// The table `text` without the rows of the cases `gone`, and with those of `new`, to be judged, at its end.
fn amended(text: &str, gone: &BTreeSet<String>, new: &[(String, Difference)]) -> String {
    let mut amended = String::new();
    for line in text.lines() {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let (true, &[cases, kernel, softnet]) = (line.starts_with('|'), &cells[..]) {
            let stay: Vec<_> = cases.split_whitespace().filter(|case| !gone.contains(*case)).collect();
            if stay.len() < cases.split_whitespace().count() {
                if !stay.is_empty() {
                    amended += &format!("| {} | {kernel} | {softnet} |\n", stay.join(" "));
                }
                continue;
            }
        }
        amended += line;
        amended.push('\n');
    }
    if !new.is_empty() {
        if !amended.contains(NEW) {
            amended += &format!("\n{NEW}");
        }
        amended += &rows(new);
    }
    amended
}

/// Writes the table anew: cases that no longer differ, or otherwise, lose their rows, and new rows are at its end. Areas that run
/// at once take turns.
pub(crate) fn amend(mut gone: BTreeSet<String>, new: &[(String, Difference)]) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wire/differences.md");
    gone.extend(new.iter().map(|(case, _)| case.clone()));
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, amended(&text, &gone, new)).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(kind: &str, fields: &[(&'static str, &str)]) -> Said {
        let fields = fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Said { link: 1, kind: kind.into(), fields }
    }

    #[test]
    fn only_what_differs_is_said() {
        let udp = |ttl| said("udp", &[("", "x>y"), ("ttl", ttl)]);
        assert_eq!(difference(&[udp("63"), udp("62")], &[udp("62"), udp("63")]), None);
        let found = difference(&[udp("63"), udp("1")], &[udp("63"), udp("2"), said("tcp", &[])]).unwrap();
        assert_eq!((&found.kernel[..], &found.softnet[..]), ("b udp: ttl 1", "b udp: ttl 2; b tcp"));
        let found = difference(&[udp("63")], &[]).unwrap();
        assert_eq!((&found.kernel[..], &found.softnet[..]), ("b udp x>y ttl 63", "nothing"));
        assert_eq!(rows(&[("x/y".into(), found)]), "| x/y | b udp x>y ttl 63 | nothing |\n");
    }

    #[test]
    fn rows_have_reasons() {
        let table = "## Intended\n### Why\nSo.\n| case | kernel | softnet |\n|---|---|---|\n| a/b a/c | x | nothing |\n";
        let known = parse(table).unwrap();
        assert_eq!(known.len(), 2);
        assert_eq!((&known["a/c"].reason[..], &known["a/c"].difference.softnet[..]), ("Why", "nothing"));
        for wrong in [
            "| a | b | c |",
            "### Why\n| a | b | c |",
            "### Why\nSo.\n| a | b |",
            "### Why\nSo.\n| a a | b | c |",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rows_go_and_come() {
        let row = |cases: &str| format!("| {cases} | x | nothing |\n");
        let table = |rows: &str| format!("### Why\nSo.\n| case | kernel | softnet |\n|---|---|---|\n{rows}");
        let gone = |cases: &[&str]| cases.iter().map(|case| (*case).to_owned()).collect();
        let text = table(&(row("a/b a/c") + &row("a/d")));
        assert_eq!(amended(&text, &gone(&["a/b", "a/d"]), &[]), table(&row("a/c")));
        let new = [("a/e".to_owned(), Difference { kernel: "y".into(), softnet: "z".into() })];
        let once = amended(&text, &gone(&[]), &new);
        assert_eq!(once, format!("{text}\n{NEW}| a/e | y | z |\n"));
        assert_eq!(parse(&once).unwrap().len(), 4);
        assert_eq!(amended(&once, &gone(&["a/e"]), &new), once);
    }
}
