//! TCP (RFC 9293) as a pure state machine, without I/O, clock, threads or payload.
//!
//! Segments, calls and time come in; segments, readiness and deadlines come out. The engine works
//! on sequence space: bytes stay with its host, which keeps what is sent by offset from `SND.UNA`
//! and hands in what is received as opaque handles. Constants, the order of options, the names of
//! knobs and counters are those of Linux.
#![forbid(unsafe_code)]

pub mod config;
pub mod conn;
pub mod counters;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod isn;
pub mod listen;
pub mod ports;
mod recv;
pub mod reset;
pub mod send;
pub mod seq;
#[cfg(any(test, fuzzing))]
mod testing;
#[cfg(test)]
mod tests;
pub mod time;
pub mod timewait;
pub mod wire;

pub use config::Config;
pub use conn::{Conn, ConnOptions, Cx, Events, Output, State};
pub use counters::{Counters, DropReason};
pub use seq::Seq;
pub use time::{Instant, Span};
pub use wire::{Emit, Flags, Options, Segment};
