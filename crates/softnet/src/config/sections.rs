//! A configuration in pieces, so that a file of a million routes never is in memory as a whole: each `[[route]]` and
//! `[[neighbour]]` is a piece by itself, and all other tables are pieces of the rest.
//!
//! Called by `load`, which has every piece read as TOML of its own. Only lines are told apart here: what is in a string
//! of several lines or in an open bracket begins no table. Invariant: the pieces, one behind the other, are the text,
//! and none is larger than [`MAX_PIECE`].

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Seek};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use toml::de::DeTable;

/// Bytes of the longest configuration: some four million routes.
pub(super) const MAX_BYTES: u64 = 256 << 20;
/// Bytes that are read as TOML at a time. The values take many times as much.
pub(super) const MAX_PIECE: usize = 16 << 20;

/// Where a configuration comes from; can be read again from its beginning.
pub(super) enum Source<'a> {
    Text(&'a str),
    File(File),
}

/// Why a configuration could not be read to its end.
#[derive(Debug)]
pub(super) enum SourceError {
    /// The file system refused.
    Io(io::Error),
    /// Not a regular file: that has no end, or blocks.
    Kind,
    /// It is longer than [`MAX_BYTES`].
    Bytes,
    /// What begins in this line is longer than [`MAX_PIECE`].
    Piece(usize),
    /// This line is not UTF-8.
    Encoding(usize),
}

impl From<io::Error> for SourceError {
    fn from(error: io::Error) -> Self {
        SourceError::Io(error)
    }
}

impl Source<'_> {
    /// The file at `path`, if it is one: a device or a pipe may have no end, and opening it may block.
    pub(super) fn open(path: &Path) -> Result<Self, SourceError> {
        let regular = |meta: std::fs::Metadata| match meta {
            meta if !meta.is_file() => Err(SourceError::Kind),
            meta if meta.len() > MAX_BYTES => Err(SourceError::Bytes),
            _ => Ok(()),
        };
        // Before it is opened, since that alone makes some devices act; and after, since the name may have been given to
        // something else meanwhile.
        regular(std::fs::metadata(path)?)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?);
        regular(file.metadata()?)?;
        Ok(Source::File(file))
    }

    /// Its pieces, from the beginning.
    pub(super) fn sections(&mut self) -> io::Result<Sections<'_>> {
        let reader: Box<dyn BufRead + '_> = match self {
            Source::Text(text) => Box::new(text.as_bytes()),
            Source::File(file) => {
                file.rewind()?;
                Box::new(BufReader::with_capacity(1 << 16, file))
            }
        };
        Ok(Sections {
            reader,
            left: MAX_BYTES,
            line: Vec::new(),
            lines: 0,
            lexer: Lexer::default(),
            is_over: false,
        })
    }
}

/// Part of a configuration: whole lines, of which the first opens a table, unless they are the first of the text.
pub(super) struct Piece {
    pub(super) text: String,
    /// The number of its first line, from 1.
    pub(super) first_line: usize,
    /// Whether it is a `[[route]]` or `[[neighbour]]`.
    pub(super) is_entry: bool,
}

/// The pieces of a configuration, in order.
pub(super) struct Sections<'a> {
    reader: Box<dyn BufRead + 'a>,
    /// Bytes that may still come.
    left: u64,
    /// The line that the next piece begins with.
    line: Vec<u8>,
    /// Lines read so far.
    lines: usize,
    lexer: Lexer,
    is_over: bool,
}

impl Sections<'_> {
    /// The next piece, in the memory of `used`; `None` at the end.
    pub(super) fn next(&mut self, used: String) -> Result<Option<Piece>, SourceError> {
        let mut text = used.into_bytes();
        text.clear();
        text.append(&mut self.line);
        let is_entry = is_entry(&text);
        let first_line = self.lines.max(1);
        while !self.is_over {
            let line_start = text.len();
            if !self.read_line(&mut text, first_line)? {
                self.is_over = true;
            } else if self.lexer.opens_table(&text[line_start..]) && line_start > 0 {
                self.line.extend_from_slice(&text[line_start..]);
                text.truncate(line_start);
                break;
            }
        }
        if text.is_empty() {
            return Ok(None);
        }
        let is_entry = is_entry || first_line == 1 && is_entry_at_start(&text);
        let encoding = |error: std::string::FromUtf8Error| {
            let good = error.utf8_error().valid_up_to();
            let lines = error.as_bytes()[..good].iter().filter(|byte| **byte == b'\n').count();
            SourceError::Encoding(first_line + lines)
        };
        Ok(Some(Piece { text: String::from_utf8(text).map_err(encoding)?, first_line, is_entry }))
    }

    /// Appends a line to `text`, the piece that begins in line `first_line`. Says whether there was one.
    fn read_line(&mut self, text: &mut Vec<u8>, first_line: usize) -> Result<bool, SourceError> {
        let room = MAX_PIECE - text.len();
        let read = (&mut self.reader).take(room as u64 + 1).read_until(b'\n', text)?;
        self.left = self.left.checked_sub(read as u64).ok_or(SourceError::Bytes)?;
        if read > room {
            return Err(SourceError::Piece(first_line));
        }
        self.lines += usize::from(read > 0);
        Ok(read > 0)
    }
}

/// Whether the first line of a piece is `[[route]]` or `[[neighbour]]`, however it is written.
fn is_entry(piece: &[u8]) -> bool {
    let line = piece.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    if let b"[[route]]" | b"[[neighbour]]" = line {
        return true;
    }
    if !line.starts_with(b"[") {
        return false;
    }
    let table = std::str::from_utf8(line).ok().and_then(|line| DeTable::parse(line).ok());
    table.is_some_and(|table| {
        let key = |key| table.get_ref().get(key).and_then(|value| value.get_ref().as_array());
        ["route", "neighbour"].into_iter().any(|name| key(name).is_some())
    })
}

/// The same of the first piece, which may begin with a byte order mark.
fn is_entry_at_start(piece: &[u8]) -> bool {
    is_entry(without_mark(piece))
}

fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text)
}

/// What is open at the end of a line.
#[derive(Default)]
struct Lexer {
    /// The quote of a string of several lines.
    string: Option<u8>,
    /// Brackets and braces.
    depth: usize,
}

impl Lexer {
    /// Takes the next line. Says whether it opens a table: `[stack]`, `[[device]]`.
    fn opens_table(&mut self, line: &[u8]) -> bool {
        let text = without_mark(line).trim_ascii_start();
        if self.depth == 0 && self.string.is_none() && text.starts_with(b"[") {
            // One that is not closed is wrong, and the next line is a line of its own all the same.
            return true;
        }
        self.scan(line);
        false
    }

    fn scan(&mut self, mut line: &[u8]) {
        loop {
            line = match self.string {
                Some(quote) => match string_end(line, quote, 3) {
                    Some(end) => {
                        // Up to two quotes may be the last characters of the string itself.
                        let own = line[end..].iter().take(2).take_while(|byte| **byte == quote).count();
                        self.string = None;
                        &line[end + own..]
                    }
                    None => return,
                },
                None => match line {
                    [] | [b'#', ..] => return,
                    [quote @ (b'"' | b'\''), rest @ ..] => match rest {
                        [a, b, rest @ ..] if a == quote && b == quote => {
                            self.string = Some(*quote);
                            rest
                        }
                        _ => match string_end(rest, *quote, 1) {
                            Some(end) => &rest[end..],
                            None => return,
                        },
                    },
                    [byte, rest @ ..] => {
                        match byte {
                            b'[' | b'{' => self.depth += 1,
                            b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                            _ => {}
                        }
                        rest
                    }
                },
            };
        }
    }
}

/// Behind the `n` quotes that end a string within `text`.
fn string_end(text: &[u8], quote: u8, n: usize) -> Option<usize> {
    let mut i = 0;
    while i + n <= text.len() {
        if text[i] == b'\\' && quote == b'"' {
            i += 2;
        } else if text[i..i + n].iter().all(|byte| *byte == quote) {
            return Some(i + n);
        } else {
            i += 1;
        }
    }
    None
}
