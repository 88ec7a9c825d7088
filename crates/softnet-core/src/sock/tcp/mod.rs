//! TCP: the host of the engine, [`softnet_tcp`].
//!
//! The engine works on sequence numbers; here are its packets, queues, tables and timers.
//!
//! * A [`Shard`] holds the connections, requests and TIME-WAIT objects of a part of all flows, which
//!   [`Parting`] chooses by a keyed hash, and their timers. The runtime keeps each behind a lock.
//! * [`packet`] reads segments, [`output`] writes them, [`queue`] keeps bytes in packet memory.
//! * [`ListenState`] is a listener with its accept queue. The [table of sockets](super::Sockets) finds
//!   it, as it finds sockets of UDP; connections are in no chain of that table, and have a slot there
//!   only for their readiness, once an application has them.
//!
//! Invariant: a packet that came for a connection is read by the engine in the order of arrival, and
//! ends delivered, or freed with its reason.

mod calls;
mod ends;
mod env;
mod flows;
mod host;
mod icmp;
mod input;
mod listen;
pub mod output;
pub mod packet;
pub mod queue;
#[cfg(all(test, not(feature = "loom")))]
mod readiness_tests;
mod settle;
mod shard;
#[cfg(all(test, not(feature = "loom")))]
mod sizes;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub use calls::{CallError, ConnInfo, Open};
pub use ends::End;
pub use env::Env;
pub use icmp::{News, Told};
pub use listen::{Child, ListenState, Listeners, tuple};
pub use output::{Effects, Marks};
pub use packet::Packet;
pub use queue::Piece;
pub use shard::{ConnId, Shard};

use super::inbox::Message;
use super::key::Flow;
use crate::fold::FoldKey;
use crate::ip::v4::header::protocol;
use crate::skb::Skb;
use crate::steer::scale;

/// Which shard a flow is of.
#[derive(Clone, Copy, Debug)]
pub struct Parting {
    key: FoldKey,
    shards: u32,
}

impl Parting {
    /// Among so many shards, by a secret key.
    pub fn new(key: FoldKey, shards: u32) -> Self {
        Parting { key, shards: shards.max(1) }
    }

    /// The number of the shard that `flow` belongs to.
    #[inline]
    pub fn shard(&self, flow: &Flow) -> usize {
        scale(flow.secret_hash(&self.key), self.shards as usize)
    }
}

/// What waits in the inbox of a TCP socket: nothing. Listeners have connections to be accepted, and
/// connections have bytes.
pub struct NoMessage(Flow);

impl Message for NoMessage {
    const PROTOCOL: u8 = protocol::TCP;

    fn read(skb: Skb) -> Result<Self, Skb> {
        Err(skb)
    }

    fn flow(&self) -> &Flow {
        &self.0
    }

    fn into_skb(self) -> Skb {
        unreachable!("there is none")
    }
}

/// The inbox of a TCP socket, which holds its slot.
pub type TcpInbox = super::Inbox<NoMessage>;
