//! Sockets: finds the socket of a packet, and carries the packet from pollers to receiving threads.
//!
//! What is here is common to all protocols; each has a folder with what it does with packets: [`udp`]. The protocol is part of
//! a socket's key ([`Flow`]), so that each has ports of its own.
//!
//! * [`Sockets`] is the table that pollers read without a lock, [`Binder`] its one writer, behind a
//!   lock of the runtime. A socket lives in a [`Slot`], in a slab that only grows.
//! * [`Transport`] is the table of these protocols: its [`input`](Transport::input) verifies a batch of received packets, and
//!   hands them over to their sockets ([`Arrivals`]) in runs. Pollers never wait.
//! * [`SockMem`] limits the packet memory of sockets, each and all together.
//! * [`Inbox`] is the receiving side of a socket: its holder detaches the pushed packets and hands
//!   them out, each as a [`Message`] of the protocol.
//! * [`Wait`] tells threads that block on a socket of changes. A thread that changes a socket's
//!   [`Readiness`] calls [`Wait::notify`].
//! * [`ReadyList`] tells an epoll set which of its sockets changed; of several sets that share a
//!   socket, [`notify_exclusive`] wakes one.
//! * [`scope`] puts the device of a link-local address into the address.
//!
//! A packet is pushed, received and dropped as a whole, in however many frames it is.
//! Limits on packet memory count its frames (the kernel's `truesize`).
//!
//! Invariant: a packet that came for a socket is in its inbox, held by the thread that received it,
//! or freed with a reason, even if the socket is closed meanwhile and its slot reused.

mod arrivals;
mod binder;
mod group;
mod inbox;
pub mod key;
mod memory;
#[cfg(all(test, feature = "loom"))]
mod models;
mod ports;
mod ready;
pub mod route;
pub mod scope;
mod slot;
mod table;
pub mod tcp;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
mod transport;
pub mod udp;
mod wait;

pub use arrivals::Arrivals;
pub use binder::{Bind, BindError, Binder, EPHEMERAL, MAX_MEMBERSHIPS};
pub use group::MAX_MEMBERS;
pub use inbox::{Inbox, Message, SlotRef};
pub use key::{Flow, Key, Match};
pub use memory::{Pressed, Pressure, RMEM_MIN, Room, SendRoom, SockMem};
pub use ready::{Exclusive, MAX_ITEMS, ReadyItems, ReadyList, notify_exclusive};
pub use slot::{Slot, SocketError, stream};
pub use table::{Found, Hit, MAX_SOCKETS, Sockets};
pub use transport::{LocalBatches, Transport};
pub use wait::{Readiness, Ticket, Wait};
