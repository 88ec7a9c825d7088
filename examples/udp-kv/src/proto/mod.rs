//! memcached's text protocol over UDP (`doc/protocol.txt` of memcached): frames, requests, responses.
//!
//! Pure: bytes come in, bytes go out. Nothing that a client sends makes it panic or allocate, but for the response.

mod frame;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use frame::{Frame, HEADER, PAYLOAD};
pub(crate) use reply::decimal;
pub use reply::{MAX_DATAGRAMS, Reply};
pub use request::{Arith, Expire, Length, Parsed, Request, Storage, Verb, length, parse};

/// Longest key, in bytes (KEY_MAX_LENGTH).
pub const MAX_KEY: usize = 250;

/// Where a response is written.
pub trait Response {
    /// Appends to it.
    fn put(&mut self, bytes: &[u8]);

    /// Whether what was put no longer fits.
    fn is_full(&self) -> bool;

    /// Takes back all that was written.
    fn clear(&mut self);

    /// Appends a number in decimal digits.
    fn number(&mut self, number: u64) {
        let mut digits = [0; 20];
        self.put(decimal(number, &mut digits));
    }
}
