//! Sockets: which datagram is whose, and how it gets from pollers to the threads that receive.
//!
//! * [`Sockets`] is the table that pollers look up in without a lock, [`Binder`] its one writer, behind a lock of the
//!   runtime. A socket lives in a [`Slot`], of a slab that only grows.
//! * [`udp_input`] verifies a batch of received datagrams, and pushes them to their sockets in runs. Pollers never wait.
//! * [`UdpMem`] says what they may hold of packet memory, each and all together.
//! * [`Inbox`] is the receiving side of a socket: whoever has it detaches what was pushed and hands it out.
//! * [`Wait`] is what those who block on a socket learn of changes by. Whoever changes a socket's [`Readiness`] calls
//!   [`Wait::notify`].
//! * [`ReadyList`] is by what an epoll set learns which of its sockets changed; of several sets that share a socket
//!   [`notify_exclusive`] has one woken.
//! * [`scope`] has link-local addresses say which device's link they are on.
//! * [`output`] builds what sockets send; [`error`] finds the socket that a received ICMP error is about.
//!
//! A datagram that was put together from fragments is a *run* of skbs, all but the last flagged
//! [`MORE`](crate::skb::Flags::MORE): it is pushed, received and dropped as a whole.
//!
//! Invariant: a packet that came for a socket is in its inbox, with the thread that received it, or freed with a reason;
//! also if the socket is closed meanwhile, and its slot used anew.

mod binder;
pub mod error;
mod group;
mod inbox;
pub mod key;
mod memory;
#[cfg(all(test, feature = "loom"))]
mod models;
pub mod output;
mod ports;
mod ready;
pub mod scope;
mod slot;
mod table;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
mod udp;
mod wait;

pub use binder::{Bind, BindError, Binder, EPHEMERAL, MAX_MEMBERSHIPS};
pub use group::MAX_MEMBERS;
pub use inbox::{Datagram, Inbox, SlotRef};
pub use key::Flow;
pub use memory::{RMEM_MIN, Room, UdpMem};
pub use ready::{Exclusive, MAX_ITEMS, ReadyItems, ReadyList, notify_exclusive};
pub use slot::{Slot, SocketError};
pub use table::{Found, Hit, MAX_SOCKETS, Sockets};
pub use udp::{Arrivals, udp_input, udp_members};
pub use wait::{Readiness, Ticket, Wait};
