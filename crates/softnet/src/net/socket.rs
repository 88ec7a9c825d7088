//! What sockets of all protocols have in common, as [`Epoll`](super::Epoll) and [`ReadyFd`](super::ReadyFd) see them.
//!
//! A socket is a place in the stack's table, with readiness and waiters, whatever its protocol does with packets.

use std::sync::Arc;

use softnet_core::sock::key::Addr;
use softnet_core::sock::{Inbox, Message, SlotRef};

use super::groups;
use crate::stack::{StackInner, with};

/// A socket of any protocol. Implemented by the sockets of this crate alone.
pub trait Socket: sealed::Sealed {}

impl<S: sealed::Sealed> Socket for S {}

pub(crate) mod sealed {
    use super::*;

    /// What the handles of a socket share. It is gone when the socket is closed.
    pub trait Shared: Send + Sync {
        /// The stack that it is of.
        fn stack(&self) -> &Arc<StackInner>;
        /// Its place in the table.
        fn slot(&self) -> &SlotRef;
        /// Whether its calls block.
        fn set_nonblocking(&self, nonblocking: bool);
    }

    /// A handle of a socket.
    pub trait Sealed {
        /// What the handles share.
        fn shared(&self) -> Arc<dyn Shared>;
    }
}

/// The socket in slot `index` was removed from the table, with the memberships `joined`: what waits for it learns of that, what
/// waits in it is freed and counted, and its slot is another's.
pub(super) fn closed<M: Message>(
    shared: &Arc<StackInner>,
    index: u32,
    joined: &[(Addr, u16)],
    inbox: Option<Inbox<M>>,
) {
    groups::left(shared, joined);
    shared.sockets.notifier.watchers.forget(index);
    if let Some(inbox) = inbox {
        let gone = with(shared, |thread| inbox.close(&mut thread.ctx));
        shared.sockets.gone(gone);
        shared.sockets.binder().release(index);
    }
}
