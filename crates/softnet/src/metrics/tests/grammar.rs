//! The text format of OpenMetrics 1.0 as its specification has it, read independently of what writes it.

use std::collections::{BTreeMap, HashSet};

fn is_name(name: &str, colon: bool) -> bool {
    let mut chars = name.chars();
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || colon && c == ':';
    chars.next().is_some_and(first) && chars.all(|c| first(c) || c.is_ascii_digit())
}

/// An escaped string up to its end, which is the closing quote or, without `quoted`, the end of the text. Returns what is
/// behind it.
fn string(text: &str, quoted: bool) -> Option<&str> {
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' if quoted => return Some(&text[at + 1..]),
            '"' | '\n' => return None,
            '\\' => {
                let escaped = chars.next()?.1;
                if !matches!(escaped, '\\' | '"' | 'n') {
                    return None;
                }
            }
            _ => {}
        }
    }
    (!quoted).then_some("")
}

/// The labels of a sample and what is behind them.
fn labels(mut text: &str) -> Option<(Vec<&str>, &str)> {
    let Some(rest) = text.strip_prefix('{') else { return Some((vec![], text)) };
    let mut all = Vec::new();
    text = rest;
    loop {
        let (name, rest) = text.split_once("=\"")?;
        if !is_name(name, false) {
            return None;
        }
        let behind = string(rest, true)?;
        all.push(&text[..text.len() - behind.len()]);
        match behind.chars().next()? {
            ',' => text = &behind[1..],
            '}' => return Some((all, &behind[1..])),
            _ => return None,
        }
    }
}

/// A family that is being read.
struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    unit: bool,
    help: bool,
    samples: HashSet<Vec<&'a str>>,
}

impl Family<'_> {
    /// The sample's value may be this.
    fn takes(&self, value: &str) -> bool {
        let number = value.parse::<f64>().is_ok_and(f64::is_finite);
        match self.kind {
            "counter" => number && !value.starts_with('-'),
            "info" => value == "1",
            _ => number,
        }
    }
}

/// The families of an exposition, each with the number of its samples.
pub(super) fn check(text: &str) -> Result<BTreeMap<String, usize>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("does not end in # EOF")?;
    let mut all = BTreeMap::new();
    let mut open: Option<Family<'_>> = None;
    for line in body.lines() {
        let error = |why: &str| format!("{line}: {why}");
        if let Some(meta) = line.strip_prefix("# ") {
            let mut words = meta.splitn(3, ' ');
            let (word, name, rest) = (words.next(), words.next().unwrap_or(""), words.next().unwrap_or(""));
            if word == Some("TYPE") {
                if !["counter", "gauge", "info"].contains(&rest) || !is_name(name, true) {
                    return Err(error("no name, or no type that is used here"));
                }
                if ["_total", "_created", "_info", "_count", "_sum", "_bucket"]
                    .iter()
                    .any(|s| name.ends_with(s))
                {
                    return Err(error("a suffix that is reserved"));
                }
                if all.insert(name.to_owned(), 0).is_some() {
                    return Err(error("opened twice"));
                }
                open = Some(Family { name, kind: rest, unit: false, help: false, samples: HashSet::new() });
                continue;
            }
            let family = open.as_mut().filter(|family| family.name == name && family.samples.is_empty());
            let family = family.ok_or_else(|| error("not at the head of its family"))?;
            match word {
                Some("UNIT") if !family.unit && name.ends_with(&format!("_{rest}")) => family.unit = true,
                Some("HELP") if !family.help && !rest.is_empty() && string(rest, false).is_some() => {
                    family.help = true;
                }
                _ => return Err(error("not UNIT or HELP as they may be")),
            }
            continue;
        }
        let family = open.as_mut().ok_or_else(|| error("of no family"))?;
        let end = line.find(['{', ' ']).ok_or_else(|| error("no value"))?;
        let suffix = match family.kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        if line[..end].strip_prefix(family.name) != Some(suffix) || !family.help {
            return Err(error("not of the family above it"));
        }
        let (mut labels, value) = labels(&line[end..]).ok_or_else(|| error("labels"))?;
        let value = value.strip_prefix(' ').ok_or_else(|| error("no blank before the value"))?;
        if !family.takes(value) {
            return Err(error("not a value of its type"));
        }
        labels.sort_unstable();
        let label_names: HashSet<_> = labels.iter().filter_map(|label| label.split('=').next()).collect();
        if label_names.len() != labels.len() || !family.samples.insert(labels) {
            return Err(error("a label, or all labels, twice"));
        }
        *all.entry(family.name.to_owned()).or_default() += 1;
    }
    Ok(all)
}

/// The check finds what is wrong.
#[test]
fn what_is_no_exposition_is_refused() {
    let good = "# TYPE a counter\n# HELP a b\na_total{x=\"1\\n\"} 2\na_total{x=\"2\"} 2.5\n# EOF\n";
    assert_eq!(check(good), Ok(BTreeMap::from([("a".into(), 2)])));
    for (from, to) in [
        ("# EOF\n", ""),
        ("a_total{x=\"2\"}", "a{x=\"2\"}"),
        ("x=\"2\"", "x=\"1\\n\""),
        ("x=\"2\"", "x=\"2\",x=\"3\""),
        ("\\n", "\\t"),
        ("\\n", "\""),
        ("x=\"2\"", "0x=\"2\""),
        ("2.5", "-1"),
        ("2.5", "NaN"),
        ("} 2.5", "}2.5"),
        ("# HELP a b\n", ""),
        ("# HELP a b\n", "# HELP a b\n# UNIT a bytes\n"),
        ("# EOF", "# HELP a b\n# EOF"),
        ("# EOF", "# TYPE a counter\n# EOF"),
        ("counter", "meter"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert!(bad != good && check(&bad).is_err(), "{bad}");
    }
}
