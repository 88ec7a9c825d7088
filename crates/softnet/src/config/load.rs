//! Text to a checked [`Config`]: piece by piece, each value kept once and no piece longer than it is needed.
//!
//! Called by [`Config::load`] and [`Config::parse`]. Where a value is in the text is remembered for the rest, which is
//! small, but not for each of a million routes: when one of those turns out wrong beside the others, the text is read
//! once more to find its line. Invariant: every problem that is told has a line, as long as the text stays what it was.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::Config;
use super::check;
use super::errors::{At, ConfigErrors, Found, MAX_PROBLEMS, Place, Section};
use super::read::Read;
use super::sections::{MAX_PIECE, Piece, Source, SourceError};

/// Reads and checks `source`, which errors call `file`.
pub(super) fn config(mut source: Source<'_>, file: &str, cpus: &[u32]) -> Result<Config, ConfigErrors> {
    let unreadable = |error| ConfigErrors::unreadable(file, error);
    let directory = match source {
        Source::File(_) => Some(Path::new(file).parent().unwrap_or(Path::new("")).into()),
        Source::Text(_) => None,
    };
    let mut pass = Pass::over(&mut source, HashSet::new(), &directory).map_err(unreadable)?;
    let mut found = std::mem::take(&mut pass.read.found);
    if !pass.is_partial {
        check::check(&pass.read.config, cpus, pass.read.devices_complete, &mut found);
    }
    if found.is_empty() {
        return Ok(pass.read.config);
    }
    pass.read.config = Config::default();
    pass.locate(&mut found);
    let missing: HashSet<Section> =
        found.iter().filter(|found| found.at.is_none()).map(|found| found.place.section).collect();
    // What can't be read a second time is told without its line.
    if !missing.is_empty()
        && let Ok(again) = Pass::over(&mut source, missing, &directory)
    {
        again.locate(&mut found);
    }
    Err(ConfigErrors::in_file(file, found))
}

/// What reading brings, if there is no mistake. Checked by nothing else.
#[cfg(any(test, fuzzing))]
pub(super) fn read_pieces(mut source: Source<'_>) -> Option<Config> {
    let pass = Pass::over(&mut source, HashSet::new(), &None).ok()?;
    (pass.read.found.is_empty() && !pass.is_partial).then_some(pass.read.config)
}

/// What a way through the text brought.
struct Pass {
    read: Read,
    /// Whether not everything was read: after a syntax error, or too many others.
    is_partial: bool,
    rest: Rest,
    /// Entries whose values are to be located.
    wanted: HashSet<Section>,
    located: HashMap<Place, At>,
}

/// All that is no entry of its own.
#[derive(Default)]
struct Rest {
    text: String,
    /// For each piece the number of its first line, in `text` and in the file.
    lines: Vec<(usize, usize)>,
}

impl Rest {
    /// A line of `text` in the file.
    fn line(&self, line: usize) -> usize {
        let piece = self.lines.partition_point(|(first, _)| *first <= line);
        piece.checked_sub(1).map_or(line, |piece| {
            let (first, in_file) = self.lines[piece];
            in_file + (line - first)
        })
    }
}

impl Pass {
    fn over(
        source: &mut Source<'_>,
        wanted: HashSet<Section>,
        directory: &Option<PathBuf>,
    ) -> Result<Pass, SourceError> {
        let mut read = Read::default();
        read.directory.clone_from(directory);
        let mut pass =
            Pass { read, is_partial: false, rest: Rest::default(), wanted, located: HashMap::new() };
        let (mut syntax, mut lines) = (Vec::new(), 1);
        let mut sections = source.sections()?;
        let mut used = String::new();
        while let Some(piece) = sections.next(used)? {
            let Piece { text, first_line, is_entry } = piece;
            pass.read.is_entry = is_entry;
            if is_entry {
                pass.text(&text, |line| first_line + line - 1, &mut syntax);
                let spans = pass.read.spans.drain();
                for (place, span) in spans.filter(|(place, _)| pass.wanted.contains(&place.section)) {
                    pass.located.insert(place, At::new(&text, &span).moved(|line| first_line + line - 1));
                }
            } else if pass.rest.text.len() + text.len() > MAX_PIECE {
                return Err(SourceError::Piece(first_line));
            } else {
                pass.rest.lines.push((lines, first_line));
                lines += text.matches('\n').count();
                pass.rest.text.push_str(&text);
            }
            if pass.read.found.len() + syntax.len() >= MAX_PROBLEMS {
                pass.is_partial = true;
                break;
            }
            used = text;
        }
        // Last, so that what was noted of it stays.
        pass.read.is_entry = false;
        let rest = std::mem::take(&mut pass.rest);
        pass.text(&rest.text, |line| rest.line(line), &mut syntax);
        pass.rest = rest;
        // Keys may be in the wrong section then: whatever else were told could be the consequence.
        if !syntax.is_empty() {
            pass.read.found = syntax;
            pass.is_partial = true;
        }
        Ok(pass)
    }

    /// Reads `text`, whose lines are `line`s of the file.
    fn text(&mut self, text: &str, line: impl Fn(usize) -> usize, syntax: &mut Vec<Found>) {
        let before = self.read.found.len();
        let is_toml = self.read.text(text);
        for found in &mut self.read.found[before..] {
            found.at = found.span.take().map(|span| At::new(text, &span).moved(&line));
        }
        if !is_toml {
            syntax.extend(self.read.found.drain(before..));
        }
    }

    /// Finds the lines of those that have none yet. A value that is missing, or a default, is told at its section.
    fn locate(&self, found: &mut [Found]) {
        for found in found.iter_mut().filter(|found| found.at.is_none()) {
            let Place { section, key, .. } = found.place;
            let nearest = [found.place, section.key(key), section.itself()];
            let in_rest = |place: &Place| {
                let span = self.read.spans.get(place)?;
                Some(At::new(&self.rest.text, span).moved(|line| self.rest.line(line)))
            };
            let at = |place: &Place| self.located.get(place).cloned().or_else(|| in_rest(place));
            found.at = nearest.iter().find_map(at);
            let is_entry = matches!(section, Section::Route(_) | Section::Neighbour(_));
            if found.at.is_none() && !is_entry {
                found.at = Some(At::new(&self.rest.text, &(0..0)).moved(|_| 1));
            }
        }
    }
}
