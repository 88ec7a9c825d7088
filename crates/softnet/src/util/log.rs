//! Messages to the person that runs the stack: lines on standard error, which may be a pipe that is not read any more.
//!
//! Any thread may write one. Each has a [`Level`], and is left out if that is beyond what
//! [`set`] says; under journald the level is the line's priority (`sd-daemon(3)`). A line tells of
//! a change of state, once; what happens again and again is counted instead.

use std::fmt::{Arguments, Write as _};
use std::io::Write as _;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::config::ParseError;

/// How much a message matters; its number is syslog's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// Something does not work, and will not by itself.
    Error = 3,
    /// Something is not as it was meant to be.
    Warn = 4,
    /// A change of state: a link, a device, the configuration.
    Info = 6,
    /// What was done about it.
    Debug = 7,
}

impl Level {
    /// All there are, by how much they matter.
    pub const ALL: [Level; 4] = [Level::Error, Level::Warn, Level::Info, Level::Debug];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }
}

impl FromStr for Level {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let found = Level::ALL.into_iter().find(|level| level.name() == text);
        found.ok_or_else(|| ParseError::new("error, warn, info or debug", text))
    }
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);
static NAME: OnceLock<String> = OnceLock::new();
static JOURNAL: OnceLock<bool> = OnceLock::new();

/// Lines of this process begin with `name` from now on, and those beyond `level` are left out. Without it
/// the name is `softnet`, and the level [`Info`](Level::Info). The name of the first call stays.
pub fn set(name: &str, level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
    let _ = NAME.set(name.into());
}

/// Whether standard error is journald's, as `$JOURNAL_STREAM` says: a child's may be another file.
fn is_journal() -> bool {
    let look = || -> Option<bool> {
        let stream = std::env::var("JOURNAL_STREAM").ok()?;
        let (dev, inode) = stream.split_once(':')?;
        let file = rustix::fs::fstat(std::io::stderr()).ok()?;
        Some(dev.parse() == Ok(file.st_dev) && inode.parse() == Ok(file.st_ino))
    };
    *JOURNAL.get_or_init(|| look().unwrap_or(false))
}

/// The lines of a message. Each has the priority, since each is a message of its own to journald.
fn lines(level: Level, name: &str, journal: bool, message: Arguments<'_>) -> String {
    let mut text = String::new();
    for (at, line) in message.to_string().lines().enumerate() {
        // Writing to a `String` never fails.
        let _ = match journal {
            true => write!(text, "<{}>", level as u8),
            false => Ok(()),
        };
        let _ = match at {
            0 => writeln!(text, "{name}: {line}"),
            _ => writeln!(text, "{line}"),
        };
    }
    text
}

/// Says `message`. A failure to do so is no reason to stop.
pub fn say(level: Level, message: Arguments<'_>) {
    if level as u8 <= LEVEL.load(Ordering::Relaxed) {
        let name = NAME.get().map_or("softnet", String::as_str);
        // At once, so that lines of several threads do not mix.
        let _ = std::io::stderr().write_all(lines(level, name, is_journal(), message).as_bytes());
    }
}

/// Something does not work.
pub(crate) fn fail(message: Arguments<'_>) {
    say(Level::Error, message);
}

/// Something is not as it was meant to be.
pub(crate) fn warn(message: Arguments<'_>) {
    say(Level::Warn, message);
}

/// A change of state.
pub(crate) fn note(message: Arguments<'_>) {
    say(Level::Info, message);
}

/// What was done about it.
pub(crate) fn debug(message: Arguments<'_>) {
    say(Level::Debug, message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_name_and_under_journald_the_priority() {
        let warn = |journal, text: &str| lines(Level::Warn, "edge", journal, format_args!("{text}"));
        assert_eq!(warn(false, "eth1: gone"), "edge: eth1: gone\n");
        assert_eq!(warn(true, "eth1: gone"), "<4>edge: eth1: gone\n");
        assert_eq!(warn(true, "two:\n  lines\n"), "<4>edge: two:\n<4>  lines\n");
    }

    #[test]
    fn levels_are_known_by_their_names() {
        for level in Level::ALL {
            assert_eq!(level.name().parse(), Ok(level));
        }
        let error = "loud".parse::<Level>().unwrap_err().to_string();
        assert!(error.contains("expected error, warn, info or debug"), "{error}");
        assert!(Level::Error < Level::Debug);
    }
}
