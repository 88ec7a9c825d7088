//! Listeners: the engine's, and the queue of connections that wait to be accepted.
//!
//! A listener is shared by all shards: the runtime keeps each behind a lock of its own, held for a
//! SYN, for the end of a handshake, and for `accept`. The lock is taken under a shard's, never the
//! other way.

use std::collections::VecDeque;

use softnet_tcp::isn::Tuple;
use softnet_tcp::listen::Listener;

use super::super::key::{Flow, unmapped};
use super::super::scope::unscoped;
use super::shard::ConnId;

/// A connection that waits to be accepted.
#[derive(Clone, Copy, Debug)]
pub struct Child {
    /// Its place in its shard.
    pub id: ConnId,
    /// Its ends; the shard follows from them.
    pub flow: Flow,
}

/// A listener's state.
pub struct ListenState {
    /// The engine's.
    pub engine: Listener,
    queue: VecDeque<Child>,
}

impl ListenState {
    /// Of a listener with nothing in its queue.
    pub fn new(engine: Listener) -> Self {
        ListenState { engine, queue: VecDeque::new() }
    }

    pub(super) fn push(&mut self, id: ConnId, flow: Flow) {
        self.queue.push_back(Child { id, flow });
    }

    /// Takes the connection out that waits longest.
    pub fn pop(&mut self) -> Option<Child> {
        let child = self.queue.pop_front()?;
        self.engine.accepted();
        Some(child)
    }

    /// Connections that wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// How a shard gets at listeners.
pub trait Listeners {
    /// Runs `f` on the listener in this slot of this generation; `None` if it is closed.
    fn with<R>(&mut self, listener: (u32, u32), f: impl FnOnce(&mut ListenState) -> R) -> Option<R>;
}

/// The ends of a flow as the engine hashes them.
pub fn tuple(flow: &Flow) -> Tuple {
    let [local, remote] = [flow.local, flow.remote].map(|addr| match unmapped(addr) {
        Some(v4) => std::net::Ipv4Addr::from_bits(v4).into(),
        None => std::net::Ipv6Addr::from_bits(unscoped(addr)).into(),
    });
    Tuple { local, remote, local_port: flow.lport, remote_port: flow.rport }
}
