//! What is wrong with a configuration, and how it is told: every problem with its place, its key and what was
//! expected, and the line it stands in.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use super::sections::{MAX_BYTES, MAX_PIECE, SourceError};

/// Problems that are looked for. A list of more of them would not be read.
pub(super) const MAX_PROBLEMS: usize = 1000;
/// Characters of a line that are shown.
const MAX_SHOWN: usize = 1000;

/// A section of the configuration; indices are those of its `Vec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Section {
    Root,
    Stack,
    SkbCache,
    Follow,
    Device(usize),
    Route(usize),
    Neighbour(usize),
    Tcp,
    Nat,
    NatSource(usize),
    NatForward(usize),
    NatOneToOne(usize),
    NatPrefix(usize),
    Filter,
    Rule(usize),
    Set(usize),
    Control,
    Metrics,
}

/// A value in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) section: Section,
    /// Empty for the section itself.
    pub(super) key: &'static str,
    /// The element, if the value is an array.
    pub(super) item: Option<usize>,
}

impl Section {
    /// The section as a whole.
    pub(super) fn itself(self) -> Place {
        self.key("")
    }

    /// The value of `key`.
    pub(super) fn key(self, key: &'static str) -> Place {
        Place { section: self, key, item: None }
    }

    /// Element `item` of the array `key`.
    pub(super) fn item(self, key: &'static str, item: usize) -> Place {
        Place { section: self, key, item: Some(item) }
    }
}

impl Place {
    /// How errors call it: `device.ring`, or `device[1].ring` if there is no line to tell which device it is.
    fn name(self, indexed: bool) -> String {
        let (section, index) = match self.section {
            Section::Root => ("", None),
            Section::Stack => ("stack", None),
            Section::SkbCache => ("stack.skb_cache", None),
            Section::Follow => ("stack.follow", None),
            Section::Device(i) => ("device", Some(i)),
            Section::Route(i) => ("route", Some(i)),
            Section::Neighbour(i) => ("neighbour", Some(i)),
            Section::Tcp => ("tcp", None),
            Section::Nat => ("nat", None),
            Section::NatSource(i) => ("nat.source", Some(i)),
            Section::NatForward(i) => ("nat.forward", Some(i)),
            Section::NatOneToOne(i) => ("nat.one_to_one", Some(i)),
            Section::NatPrefix(i) => ("nat.prefix", Some(i)),
            Section::Filter => ("filter", None),
            Section::Rule(i) => ("rule", Some(i)),
            Section::Set(i) => ("set", Some(i)),
            Section::Control => ("control", None),
            Section::Metrics => ("metrics", None),
        };
        let mut name = section.to_string();
        if let Some(i) = index.filter(|_| indexed) {
            name += &format!("[{i}]");
        }
        if !name.is_empty() && !self.key.is_empty() {
            name.push('.');
        }
        name += self.key;
        if let Some(i) = self.item.filter(|_| indexed) {
            name += &format!("[{i}]");
        }
        name
    }
}

/// Where in the text each value is.
pub(super) type Spans = HashMap<Place, Range<usize>>;

/// A problem before its line is looked up.
pub(super) struct Found {
    pub(super) place: Place,
    /// Where it is in the piece that is being read, if that is not where `place` is (an unknown key, a syntax error).
    pub(super) span: Option<Range<usize>>,
    /// Its line, once that was looked up.
    pub(super) at: Option<At>,
    pub(super) message: String,
}

impl Found {
    pub(super) fn new(place: Place, message: impl Into<String>) -> Found {
        Found { place, span: None, at: None, message: message.into() }
    }

    fn told(self, indexed: bool) -> Problem {
        Problem { key: self.place.name(indexed), message: self.message, at: self.at }
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Problem {
    /// The key: `device.ring`, or `device[0].ring` if there is no file; empty if the problem is not with one (syntax).
    pub key: String,
    /// What was expected and what was found.
    pub message: String,
    /// Where it is, if the configuration came from text.
    pub at: Option<At>,
}

/// A place in the text.
#[derive(Clone, Debug, PartialEq)]
pub struct At {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Characters of that line that the value takes.
    width: usize,
    /// The line, unless it is too long to be shown.
    text: Option<String>,
}

impl At {
    pub(super) fn new(text: &str, span: &Range<usize>) -> At {
        let mut start = span.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let line_start = text[..start].rfind('\n').map_or(0, |i| i + 1);
        let line = text[line_start..].lines().next().unwrap_or("");
        let column = text[line_start..start].chars().count();
        let length = line.chars().count().saturating_sub(column);
        let wanted = text.get(start..span.end.min(text.len())).map_or(1, |value| value.chars().count());
        At {
            line: text[..start].matches('\n').count() + 1,
            column: column + 1,
            width: wanted.min(length).max(1),
            text: (column + length <= MAX_SHOWN).then(|| line.replace('\t', " ")),
        }
    }

    /// The same in the line that is `to` of its own.
    pub(super) fn moved(self, to: impl FnOnce(usize) -> usize) -> At {
        At { line: to(self.line), ..self }
    }
}

/// Everything that is wrong with a configuration, in the order of the file.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ConfigErrors {
    /// The file, if there is one.
    pub file: Option<String>,
    /// The problems, at least one.
    pub problems: Vec<Problem>,
}

impl ConfigErrors {
    pub(super) fn unreadable(file: &str, error: SourceError) -> ConfigErrors {
        let mib = |bytes: u64| bytes >> 20;
        let message = match error {
            SourceError::Io(error) if error.kind() == std::io::ErrorKind::NotFound => "no such file".into(),
            SourceError::Io(error) => format!("cannot be read: {error}"),
            SourceError::Kind => "expected a regular file, found a directory, a device or a pipe".into(),
            SourceError::Bytes => format!("expected at most {} MiB, found more", mib(MAX_BYTES)),
            SourceError::Piece(line) => format!(
                "line {line}: expected at most {} MiB in one table, and in all together but [[route]] and [[neighbour]]; \
                 is a quote or a bracket not closed?",
                mib(MAX_PIECE as u64)
            ),
            SourceError::Encoding(line) => format!("line {line}: expected text in UTF-8"),
        };
        ConfigErrors {
            file: Some(file.into()),
            problems: vec![Problem { key: String::new(), message, at: None }],
        }
    }

    /// What was found in `file`, at least one.
    pub(super) fn in_file(file: &str, found: Vec<Found>) -> ConfigErrors {
        let mut problems: Vec<Problem> = found.into_iter().map(|found| found.told(false)).collect();
        problems.sort_by_key(|p| p.at.as_ref().map(|at| (at.line, at.column)));
        if problems.len() >= MAX_PROBLEMS {
            problems.truncate(MAX_PROBLEMS);
            let message = format!("these are the first {MAX_PROBLEMS} problems; there may be more");
            problems.push(Problem { key: String::new(), message, at: None });
        }
        ConfigErrors { file: Some(file.into()), problems }
    }

    /// Ok if nothing was found in a configuration that was built in code.
    pub(super) fn in_code(found: Vec<Found>) -> Result<(), ConfigErrors> {
        match found.is_empty() {
            true => Ok(()),
            false => Err(ConfigErrors {
                file: None,
                problems: found.into_iter().map(|found| found.told(true)).collect(),
            }),
        }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.as_deref().unwrap_or("configuration");
        for (i, Problem { key, message, at }) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            f.write_str(file)?;
            if let Some(At { line, column, .. }) = at {
                write!(f, ":{line}:{column}")?;
            }
            f.write_str(": ")?;
            if !key.is_empty() {
                write!(f, "{key}: ")?;
            }
            f.write_str(message)?;
            if let Some(At { line, column, width, text: Some(text) }) = at {
                let gutter = " ".repeat(line.to_string().len());
                let (pad, carets) = (" ".repeat(column - 1), "^".repeat(*width));
                write!(f, "\n {line} | {text}\n {gutter} | {pad}{carets}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Why a text is not the value it stands for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found {found:?}")]
pub struct ParseError {
    expected: &'static str,
    found: String,
}

impl ParseError {
    pub(crate) fn new(expected: &'static str, found: &str) -> Self {
        ParseError { expected, found: found.into() }
    }
}
