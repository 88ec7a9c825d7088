//! One process of softnet takes another's place: `softnet run --take-over`.
//!
//! The successor connects to the control socket of the running instance, and asks
//! ([`Request::TakeOver`](crate::control::Request)). The rest goes over that connection:
//!
//! | from | what | what has happened by then |
//! |---|---|---|
//! | successor | the request | its configuration is read and checked |
//! | instance | the [`Offer`](message::Offer), descriptors, connections; or why not | nothing |
//! | successor | `STOP` | it has mapped all, loaded routes, opened devices; it touches nothing |
//! | instance | changed connections, `STOPPED` and the frames of rings; or why not | queues stand still |
//! | successor | `TAKE` | it has checked the frames |
//! | instance | `YOURS` | **it does not go on any more** |
//! | successor | `DONE` | it runs |
//!
//! * **Before `YOURS`** the instance goes on where it was when the connection ends, or nothing
//!   comes in
//!   time: no ring and no frame has been touched. The successor touches them when `YOURS` has come.
//! * **After it** the instance never goes on: it waits for `DONE`, and ends its process without
//!   closing
//!   anything, so that programs, sockets, offloads and the control socket stay as they are. If the
//!   successor ends before `DONE`, the instance fails.
//!
//! [`giver`] is the instance's side, [`taker`] the successor's; [`channel`] carries both, and
//! [`message`] is what they say. Invariant: whatever comes by the connection is checked, and what
//! is wrong is an error, never a panic.

mod channel;
pub(crate) mod giver;
pub(crate) mod message;
pub(crate) mod taker;

pub use taker::TakeOverError;

pub(crate) use channel::Channel;
pub(crate) use giver::{Giving, Offered};
pub(crate) use message::{Stopped, StoppedDevice};
pub(crate) use taker::Predecessor;
