//! Connection tracking: which packets belong to one connection, in either direction, and what state
//! that is in.
//!
//! [`Conntrack`] is one table for all threads, without locks; its memory is allocated when it is
//! made. An [`entry`] is one cache line, found from both of its [tuples](Tuple) by an
//! index of tags. It expires without scans: entries stand in a wheel of lists, one for
//! each second, of which the receive path [sweeps](Conntrack::sweep) a bounded number for each
//! batch. Time is in seconds of the stack's clock.
//!
//! Called by the hooks of [`nat`](crate::nat) and [`filter`](crate::filter), by any thread with a
//! context. Invariants: a packet that finds a connection finds all of one and the same, however
//! often the entry was used before; a connection that a packet kept alive does not expire for what
//! was true before; an entry is free, on one list of the wheel, or in the hands of one thread. The
//! [life word](entry::Life) carries the first two, and is all that is ever compared and exchanged
//! for a packet.

mod carry;
mod early_drop;
pub mod entry;
mod expiry;
#[cfg(all(any(test, fuzzing), not(feature = "loom")))]
pub(crate) mod fuzz;
mod index;
#[cfg(all(test, feature = "loom"))]
mod models;
pub(crate) mod packet;
mod state;
mod table;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
pub mod tuple;
mod wheel;

pub use carry::Carried;
pub(crate) use index::{FreeList, Index};
pub use state::{State, Timeouts};
pub use table::{Conntrack, Counts, Found, New, Refused, Snapshot};
pub use tuple::Tuple;

/// Which of the two tuples of a connection a packet has: that of the packet that opened it, or the
/// reply's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// That of the first packet.
    Original = 0,
    /// The other one.
    Reply,
}

impl Direction {
    /// The direction of an identifier, which is twice the entry's index, and one more for the
    /// reply.
    #[inline(always)]
    pub(crate) fn of(id: u32) -> Self {
        if id & 1 == 0 { Direction::Original } else { Direction::Reply }
    }
}
