//! How calls that would block wait in a runtime: for sockets of all protocols.
//!
//! Invariant: readiness is taken back only after a call found nothing, never before.

use std::io;
use std::sync::OnceLock;
use std::task::{Context, Poll, ready};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime;
use ::tokio::task::coop;

use crate::net::{ReadyFd, Socket};

/// A descriptor for one direction, watched by the runtime.
fn register<S: Socket>(socket: S) -> io::Result<AsyncFd<ReadyFd<S>>> {
    // It takes any `AsRawFd`, some of which may close or change their descriptors while they are
    // registered; hence its replacement is unsafe. A `ReadyFd` keeps the same one open for as long
    // as it lives.
    #[allow(deprecated)]
    AsyncFd::with_interest(ReadyFd::new(socket)?, Interest::READABLE)
}

fn would_block<R>(result: &io::Result<R>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// A socket, and what its tasks wait by. Of the `poll` calls of a direction, one task at a time is
/// woken: the last one.
pub(super) struct Io<S: Socket + Clone> {
    receivers: AsyncFd<ReadyFd<S>>,
    senders: OnceLock<AsyncFd<ReadyFd<S>>>,
    /// The runtime that it was made in, and which watches both.
    runtime: runtime::Handle,
}

impl<S: Socket + Clone> Io<S> {
    /// Of a socket, which is non-blocking from now on, as are its clones.
    ///
    /// # Panics
    /// Outside a runtime, or in one without I/O.
    pub(super) fn new(socket: S) -> io::Result<Self> {
        let runtime = runtime::Handle::current();
        Ok(Io { receivers: register(socket)?, senders: OnceLock::new(), runtime })
    }

    pub(super) fn get_ref(&self) -> &S {
        self.receivers.get_ref().socket()
    }

    pub(super) async fn receive<R>(&self, mut call: impl FnMut(&S) -> io::Result<R>) -> io::Result<R> {
        self.receivers.async_io(Interest::READABLE, |fd| call(fd.socket())).await
    }

    pub(super) fn poll_receive<R>(
        &self,
        cx: &mut Context<'_>,
        call: impl FnMut(&S) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        poll(&self.receivers, cx, call)
    }

    pub(super) async fn send_by<R>(&self, mut call: impl FnMut(&S) -> io::Result<R>) -> io::Result<R> {
        // A sender that is never held back waits for no descriptor, where it would let other tasks
        // run.
        coop::consume_budget().await;
        let sent = call(self.get_ref());
        if !would_block(&sent) {
            return sent;
        }
        self.senders()?.async_io(Interest::READABLE, |fd| call(fd.socket())).await
    }

    pub(super) fn poll_send<R>(
        &self,
        cx: &mut Context<'_>,
        mut call: impl FnMut(&S) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        if self.senders.get().is_none() {
            // As in `send_by`.
            let budget = ready!(coop::poll_proceed(cx));
            let sent = call(self.get_ref());
            if !would_block(&sent) {
                budget.made_progress();
                return Poll::Ready(sent);
            }
        }
        poll(self.senders()?, cx, call)
    }

    fn senders(&self) -> io::Result<&AsyncFd<ReadyFd<S>>> {
        Ok(match self.senders.get() {
            Some(senders) => senders,
            None => {
                // Readable at first, so that the call is made once more: the sender may have been
                // able to go on since.
                let _runtime = self.runtime.enter();
                let made = register(self.get_ref().clone())?;
                self.senders.get_or_init(|| made)
            }
        })
    }
}

fn poll<S: Socket, R>(
    fd: &AsyncFd<ReadyFd<S>>,
    cx: &mut Context<'_>,
    mut call: impl FnMut(&S) -> io::Result<R>,
) -> Poll<io::Result<R>> {
    loop {
        let mut ready = ready!(fd.poll_read_ready(cx))?;
        let done = call(fd.get_ref().socket());
        if !would_block(&done) {
            return Poll::Ready(done);
        }
        ready.clear_ready();
    }
}
