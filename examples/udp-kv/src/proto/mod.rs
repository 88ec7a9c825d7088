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
pub use request::{Arith, Expire, Parsed, Request, Storage, Verb, parse};

/// Longest key, in bytes (KEY_MAX_LENGTH).
pub const MAX_KEY: usize = 250;
