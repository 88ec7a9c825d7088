//! SPDX licence expressions (SPDX 2.3, annex D): whether licences that are allowed satisfy one.

/// Whether `expression` can be satisfied with licences in `allowed`. What is no expression can't; an exception
/// (`WITH`) only grants more than its licence does. `/` stands for `OR`, as older manifests have it.
pub(crate) fn satisfied(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    either(&mut rest, allowed).is_some_and(|satisfied| satisfied && rest.is_empty())
}

/// Alternatives; `AND` binds closer than `OR`.
fn either(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut satisfied = both(words, allowed)?;
    while taken(words, "OR") {
        satisfied |= both(words, allowed)?;
    }
    Some(satisfied)
}

fn both(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut satisfied = one(words, allowed)?;
    while taken(words, "AND") {
        satisfied &= one(words, allowed)?;
    }
    Some(satisfied)
}

fn one(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    if taken(words, "(") {
        let satisfied = either(words, allowed)?;
        return taken(words, ")").then_some(satisfied);
    }
    let (licence, rest) = words.split_first()?;
    *words = rest;
    if taken(words, "WITH") {
        *words = words.split_first()?.1;
    }
    Some(allowed.iter().any(|a| a == licence))
}

fn taken(words: &mut &[&str], word: &str) -> bool {
    match words.split_first() {
        Some((first, rest)) if *first == word => {
            *words = rest;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_evaluated() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"].map(String::from);
        for (expression, expected) in [
            ("MIT", true),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("MIT AND GPL-3.0 OR Apache-2.0", true),
            ("(MIT OR GPL-3.0) AND (BSD-3-Clause OR GPL-3.0)", false),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
            ("", false),
            ("(MIT", false),
            ("MIT Apache-2.0", false),
            ("OR MIT", false),
        ] {
            assert_eq!(satisfied(expression, &allowed), expected, "{expression}");
        }
    }
}
