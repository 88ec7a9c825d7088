//! Orders in words, as `ethtool` takes them: read one after the other, with what was expected told.

use std::fmt;
use std::str::{FromStr, SplitWhitespace};

/// What is wrong with an order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}expected {expected}, found {}", In(.of), found.as_ref().map_or("nothing".into(), |word| format!("{word:?}")))]
pub struct WordError {
    /// The word whose value it is; empty for a word of its own.
    pub of: String,
    /// What could have been there.
    pub expected: String,
    /// What was.
    pub found: Option<String>,
}

struct In<'a>(&'a str);

impl fmt::Display for In<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}

/// The words that are still to be read.
pub(super) struct Words<'a>(std::iter::Peekable<SplitWhitespace<'a>>);

impl<'a> Words<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Words(text.split_whitespace().peekable())
    }

    pub(super) fn next(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    /// Takes the next word if it is `word`.
    pub(super) fn takes(&mut self, word: &str) -> bool {
        self.0.next_if_eq(&word).is_some()
    }

    /// The value of `of`: the next word as `read` has it.
    pub(super) fn value<T>(
        &mut self,
        of: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, WordError> {
        let found = self.0.next();
        found.and_then(read).ok_or_else(|| wrong(of, expected, found))
    }

    /// A number up to `max`, decimal or, with `0x` before it, hexadecimal.
    pub(super) fn number(&mut self, of: &str, max: u32) -> Result<u32, WordError> {
        self.value(of, &format!("a number from 0 to {max}"), |word| {
            number(word).filter(|number| *number <= u64::from(max)).map(|number| number as u32)
        })
    }

    /// Anything that can be read from text.
    pub(super) fn parsed<T: FromStr>(&mut self, of: &str, expected: &str) -> Result<T, WordError> {
        self.value(of, expected, |word| word.parse().ok())
    }

    /// The numbers that follow, as many as there are.
    pub(super) fn numbers(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| self.0.next_if(|word| word.parse::<u32>().is_ok())?.parse().ok()).collect()
    }
}

fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}

pub(super) fn wrong(of: &str, expected: &str, found: Option<&str>) -> WordError {
    WordError { of: of.into(), expected: expected.into(), found: found.map(Into::into) }
}
