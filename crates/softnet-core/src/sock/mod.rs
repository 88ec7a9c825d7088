//! Sockets: finds the socket of a datagram, and carries the datagram from pollers to receiving
//! threads.
//!
//! * [`Sockets`] is the table that pollers read without a lock, [`Binder`] its one writer, behind a
//!   lock of the runtime. A socket lives in a [`Slot`], in a slab that only grows.
//! * [`udp_input`] verifies a batch of received datagrams, and pushes them to their sockets in
//!   runs. Pollers never wait.
//! * [`UdpMem`] limits the packet memory of sockets, each and all together.
//! * [`Inbox`] is the receiving side of a socket: its holder detaches the pushed packets and hands
//!   them out.
//! * [`Wait`] tells threads that block on a socket of changes. A thread that changes a socket's
//!   [`Readiness`] calls [`Wait::notify`].
//! * [`ReadyList`] tells an epoll set which of its sockets changed; of several sets that share a
//!   socket, [`notify_exclusive`] wakes one.
//! * [`scope`] puts the device of a link-local address into the address.
//! * [`output`] builds what sockets send; [`error`] finds the socket that a received ICMP error is
//!   about.
//!
//! A datagram is one packet, in however many frames: it is pushed, received and dropped as a whole.
//! Limits on packet memory count its frames (the kernel's `truesize`).
//!
//! Invariant: a packet that came for a socket is in its inbox, held by the thread that received it,
//! or freed with a reason, even if the socket is closed meanwhile and its slot reused.

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
pub mod route;
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
