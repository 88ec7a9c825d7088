//! What sockets of all protocols have in common, as [`Epoll`](super::Epoll) and [`ReadyFd`](super::ReadyFd) see them.
//!
//! A socket is a place in the stack's table, with readiness and waiters, whatever its protocol does with packets.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;
use softnet_core::sock::key::Addr;
use softnet_core::sock::{Inbox, Message, Readiness, Slot, SlotRef};

use super::busy_poll::{BusyPollOption, poll_or_block};
use super::groups;
use super::options::errno;
use crate::stack::{StackInner, before_wait, with};

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

/// Makes `$handle` a [`Socket`]: a handle, by its field 0, of an `Arc` of `$inner`, which has the fields `shared`, `slot` and
/// `options`.
macro_rules! is_socket {
    ($handle:ty, $inner:ty) => {
        impl crate::net::socket::sealed::Shared for $inner {
            fn stack(&self) -> &std::sync::Arc<crate::stack::StackInner> {
                &self.shared
            }

            fn slot(&self) -> &softnet_core::sock::SlotRef {
                &self.slot
            }

            fn set_nonblocking(&self, nonblocking: bool) {
                self.options.nonblocking.store(nonblocking, softnet_core::sync::Ordering::Relaxed);
            }
        }

        impl crate::net::socket::sealed::Sealed for $handle {
            fn shared(&self) -> std::sync::Arc<dyn crate::net::socket::sealed::Shared> {
                self.0.clone()
            }
        }
    };
}
pub(super) use is_socket;

/// The socket in slot `index` was removed from the table, with the memberships `joined`: what waits for it learns of that, what
/// waits in it is freed and counted, and its slot is another's.
pub(super) fn closed<M: Message>(
    shared: &Arc<StackInner>,
    index: u32,
    joined: &[(Addr, u16)],
    inbox: Option<Inbox<M>>,
) {
    groups::left(shared, joined);
    unwatched(shared, index);
    if let Some(inbox) = inbox {
        let gone = with(shared, |thread| inbox.close(&mut thread.ctx));
        shared.sockets.gone(gone);
        shared.sockets.binder().release(index);
    }
}

/// The socket in slot `index` is closed: what watches it learns of that, and watches it no more.
pub(super) fn unwatched(shared: &Arc<StackInner>, index: u32) {
    shared.sockets.notifier.watchers.forget(index);
}

/// Waits until the socket in `slot` is `ready`, the stack stops, or it is `until`: then the error
/// is `EAGAIN`. Polls meanwhile as `busy_poll` says.
pub(super) fn wait(
    shared: &Arc<StackInner>,
    slot: &Slot,
    busy_poll: &BusyPollOption,
    until: Option<Instant>,
    ready: impl Fn(&Readiness) -> bool,
) -> io::Result<()> {
    let params = busy_poll.get();
    if params.polls() {
        return poll_or_block(shared, slot, params, until, ready);
    }
    before_wait(shared);
    match until.map(|until| until.saturating_duration_since(Instant::now())) {
        Some(Duration::ZERO) if !ready(&slot.readiness()) && !shared.sockets.is_stopped() => {
            Err(errno(Errno::AGAIN))
        }
        left => {
            block(shared, slot, left, ready);
            Ok(())
        }
    }
}

/// Blocks once, unless the socket in `slot` is `ready` or the stack has stopped, for at most `left`.
pub(super) fn block(
    shared: &StackInner,
    slot: &Slot,
    left: Option<Duration>,
    ready: impl Fn(&Readiness) -> bool,
) {
    let ticket = slot.wait().ticket();
    if ready(&slot.readiness()) || shared.sockets.is_stopped() {
        return;
    }
    let left = left.map(|left| Timespec {
        tv_sec: left.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: left.subsec_nanos().into(),
    });
    // Whatever ends it, a look says what there is.
    let _ = futex::wait(slot.wait().word(), futex::Flags::PRIVATE, ticket.value(), left.as_ref());
}
