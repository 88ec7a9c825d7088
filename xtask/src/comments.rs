//! How wide comments are: rustfmt leaves them as they are.
//!
//! They wrap at 100 columns (CONTRIBUTING.md). Many are older than that rule; so what is held to is
//! that no more become wider than [`WIDTH`]: a ratchet, to be lowered as files are edited anyway.

use std::fs;
use std::path::Path;

const WIDTH: usize = 120;

/// Lines that were wider when this was last looked at.
const KNOWN: usize = 856;

/// Folders with sources.
const FOLDERS: [&str; 4] = ["crates", "examples", "fuzz", "xtask"];

pub(crate) fn check(root: &Path) -> Result<(), String> {
    let mut found = 0;
    for folder in FOLDERS {
        found += count(&root.join(folder)).map_err(|error| format!("{folder}: {error}"))?;
    }
    if found <= KNOWN {
        return Ok(());
    }
    Err(format!(
        "{found} lines of comments are wider than {WIDTH} columns, {KNOWN} were: wrap new ones at 100 \
         (`git diff main | grep -E '^\\+ *//.{{{WIDTH}}}'`)"
    ))
}

/// In all sources below `path`.
fn count(path: &Path) -> std::io::Result<usize> {
    let mut found = 0;
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                found += count(&path)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found += wide(&fs::read_to_string(&path)?);
        }
    }
    Ok(found)
}

fn wide(source: &str) -> usize {
    let comments = source.lines().filter(|line| line.trim_start().starts_with("//"));
    comments.filter(|line| line.chars().count() > WIDTH).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_alone_are_measured_in_characters() {
        let line = |start: &str, c: &str, n: usize| format!("{start}{}\n", c.repeat(n));
        let source = [
            line("    //", "x", 114),
            line("    //", "x", 115),
            line("///", "µ", 117),
            line("let x = 1; //", "x", 150),
        ];
        assert_eq!(source.each_ref().map(|line| wide(line)), [0, 1, 0, 0]);
        assert_eq!(wide(&source.concat()), 1);
    }

    #[test]
    fn this_tree_passes() {
        check(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))).unwrap();
    }
}
