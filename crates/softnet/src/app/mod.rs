//! Applications that poll and send: a thread that takes packets of a NAPI instance, polls it itself where that is better
//! than being woken, and sends packets of its own.
//!
//! Used by programs that embed a stack, and by the epoll sets of [`net`](crate::net).

mod busy_poll;
mod poller;
mod sender;

pub(crate) use busy_poll::{BusyPoll, Waits};
pub use busy_poll::{EpollParams, MAX_BUSY_POLL_USECS, OutOfRange};
pub use poller::{NapiPoller, PollerError, PollerParams};
pub(crate) use sender::{FOR_EVER, LocalSender};
pub use sender::{RawSender, WouldBlock};
