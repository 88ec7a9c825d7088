//! The keys of a `[[device]]` that are its driver's own.

use super::super::value::parse_mac;
use super::{Read, Table};
use crate::driver::Keys;
use crate::util::Limit;

/// A `[[device]]`, for its driver.
pub(super) struct DriverKeys<'a, 't> {
    pub(super) read: &'a mut Read,
    pub(super) table: Table<'t>,
}

impl Keys for DriverKeys<'_, '_> {
    fn boolean(&mut self, key: &'static str) -> Option<bool> {
        self.read.boolean(self.table, key)
    }

    fn integer(&mut self, key: &'static str, limit: &Limit) -> Option<u32> {
        self.read.integer(self.table, key, limit)
    }

    fn text(&mut self, key: &'static str) -> Option<String> {
        self.read.required_string(self.table, key)
    }

    fn mac(&mut self, key: &'static str) -> Option<[u8; 6]> {
        let text = self.read.string(self.table, key)?;
        let value = self.table.get(key)?;
        self.read.parsed(self.table.section.key(key), value, parse_mac(&text))
    }

    fn choice(&mut self, key: &'static str, names: &[&str]) -> Option<usize> {
        let choices: Vec<_> = names.iter().enumerate().map(|(at, name)| (*name, at)).collect();
        self.read.choice(self.table, key, &choices)
    }
}
