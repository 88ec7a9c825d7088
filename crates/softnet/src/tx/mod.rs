//! The way out: TX queues with their disciplines, and local senders that are held back before them.
//!
//! Any thread with a context sends through a [`NetdevQueue`]; the housekeeper makes and closes queues and changes disciplines.

mod backpressure;
mod due;
pub(crate) mod qdisc;
mod queue;

pub(crate) use backpressure::TxBackpressure;
pub(crate) use due::TxDue;
pub(crate) use queue::{NEVER, NetdevQueue, QueueWake, xmit_waiting};
