//! The help of a bench as blocks, so that a page can lay it out: paragraphs, and lists of names with their meanings.
//!
//! A list is a run of lines that begin with two spaces: a name, two spaces or more (one, after a name that fills its
//! column), and its meaning. Further lines of a meaning begin with more spaces, or with none.

/// A piece of help.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Block {
    Paragraph(String),
    /// Names and their meanings.
    List(Vec<(String, String)>),
}

/// The blocks of `help`, which blank lines part.
pub(super) fn blocks(help: &str) -> Vec<Block> {
    let paragraphs = help.split("\n\n").filter(|text| !text.trim().is_empty());
    paragraphs
        .map(|text| if text.starts_with("  ") { Block::List(list(text)) } else { paragraph(text) })
        .collect()
}

fn paragraph(text: &str) -> Block {
    Block::Paragraph(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn list(text: &str) -> Vec<(String, String)> {
    let mut entries: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        let entry = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '));
        match (entry, entries.last_mut()) {
            (None, Some((_, meaning))) => {
                meaning.push(' ');
                meaning.push_str(line.trim());
            }
            _ => {
                let line = line.trim();
                let (name, meaning) =
                    line.split_once("  ").or_else(|| line.split_once(' ')).unwrap_or((line, ""));
                entries.push((name.into(), meaning.trim().into()));
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_paragraphs_and_lists() {
        let help =
            "One\ntwo.\n\n  a, b  first\n        and more\n  name_that_fills second,\nwrapped\n\nThree.";
        let entry = |name: &str, meaning: &str| (name.to_string(), meaning.to_string());
        let expected = [
            Block::Paragraph("One two.".into()),
            Block::List(vec![entry("a, b", "first and more"), entry("name_that_fills", "second, wrapped")]),
            Block::Paragraph("Three.".into()),
        ];
        assert_eq!(blocks(help), expected);
        assert_eq!(blocks(""), []);
        assert_eq!(blocks("  a"), [Block::List(vec![entry("a", "")])]);
    }
}
