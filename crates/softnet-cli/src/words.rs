//! The words of a command, read one by one, with errors that say what was expected.
//!
//! For commands in the words of `tc` and `ip`, which clap does not read.

use std::net::IpAddr;
use std::slice::Iter;

/// The words that are still to be read.
pub(crate) struct Words<'a>(Iter<'a, String>);

impl<'a> Words<'a> {
    /// All of a command's.
    pub(crate) fn new(words: &'a [String]) -> Self {
        Words(words.iter())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }

    pub(crate) fn next(&mut self, expected: &str) -> Result<&'a str, String> {
        self.0.next().map(String::as_str).ok_or_else(|| format!("expected {expected} next, found nothing"))
    }

    /// The next one, if it is `word`.
    pub(crate) fn skip(&mut self, word: &str) -> bool {
        let is = self.0.as_slice().first().is_some_and(|next| next == word);
        if is {
            self.0.next();
        }
        is
    }

    pub(crate) fn exactly(&mut self, word: &str) -> Result<(), String> {
        match self.next(word)? {
            found if found == word => Ok(()),
            found => Err(format!("expected {word}, found {found:?}")),
        }
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choice: &[(&str, T)]) -> Result<T, String> {
        let names: Vec<&str> = choice.iter().map(|(name, _)| *name).collect();
        let expected = match names.split_last() {
            Some((last, [])) => (*last).into(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => String::new(),
        };
        let found = self.next(&expected)?;
        let chosen = choice.iter().find(|(name, _)| *name == found);
        chosen.map(|(_, value)| *value).ok_or_else(|| format!("expected {expected}, found {found:?}"))
    }

    /// `dev DEV`.
    pub(crate) fn dev(&mut self) -> Result<String, String> {
        self.exactly("dev")?;
        self.next("the name of a device").map(Into::into)
    }

    /// An IP address.
    pub(crate) fn address(&mut self, what: &str) -> Result<IpAddr, String> {
        let found = self.next(what)?;
        found.parse().map_err(|_| format!("expected {what}, found {found:?}"))
    }

    /// A number.
    pub(crate) fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T, String> {
        let found = self.next(what)?;
        found.parse().map_err(|_| format!("expected {what}, found {found:?}"))
    }

    /// Refuses words that are left.
    pub(crate) fn end(mut self) -> Result<(), String> {
        match self.0.next() {
            Some(word) => Err(format!("expected nothing more, found {word:?}")),
            None => Ok(()),
        }
    }
}
