//! [`ReadyFd`]: a descriptor by which other event loops learn of a socket's readiness, for programs
//! built on `mio`, `tokio` and the like.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use super::UdpSocket;
use super::socket::Socket;
use crate::notify::Watch;

/// A descriptor that becomes *readable* when a socket becomes ready to receive or to send, when a
/// listener has a connection, when the peer of a stream sends no more, when an error is pending, and
/// when the stack stops.
///
/// It is for edge-triggered waiting (`mio`'s `SourceFd`, `tokio`'s `AsyncFd`). Make the call first;
/// only when it returns [`WouldBlock`](io::ErrorKind::WouldBlock), wait for the descriptor, and
/// then make the call again. The call may return `WouldBlock` once more, since an event says that
/// something changed, not what. A level-triggered loop [clears](Self::clear) the descriptor after
/// each event, before the call.
///
/// The descriptor stays the same, and open, for as long as the `ReadyFd` lives. One task waits for
/// it, since a second would lose events to the first. Two tasks that use one socket, such as one
/// that receives and one that sends, each make a `ReadyFd` from a clone of the socket.
///
/// ```no_run
/// use std::io::{ErrorKind, Result};
/// use softnet::net::{ReadyFd, UdpSocket};
/// use tokio::io::unix::AsyncFd;
///
/// async fn until_done<R>(fd: &AsyncFd<ReadyFd>, mut call: impl FnMut(&UdpSocket) -> Result<R>) -> Result<R> {
///     loop {
///         match call(fd.get_ref().socket()) {
///             Err(error) if error.kind() == ErrorKind::WouldBlock => fd.readable().await?.clear_ready(),
///             done => return done,
///         }
///     }
/// }
///
/// async fn echo(fd: AsyncFd<ReadyFd>) -> Result<()> {
///     let mut buffer = [0; 2048];
///     loop {
///         let (n, from, info) = until_done(&fd, |socket| socket.recv_msg(&mut buffer)).await?;
///         // An answer that cannot be sent, such as one to port 0, is the asker's loss.
///         let _ = until_done(&fd, |socket| socket.send_msg(&buffer[..n], (from, info))).await;
///     }
/// }
/// ```
///
/// Waiting in this way does not poll the NAPI instance, as an [`Epoll`](super::Epoll) does: each
/// change from not ready to ready costs the poller a system call.
pub struct ReadyFd<S: Socket = UdpSocket> {
    socket: S,
    fd: Arc<OwnedFd>,
}

impl<S: Socket> ReadyFd<S> {
    /// Makes one for a socket, which is non-blocking from now on, as are its clones.
    pub fn new(socket: S) -> io::Result<Self> {
        let shared = socket.shared();
        shared.set_nonblocking(true);
        // Readable at first: the socket may be ready.
        let fd = Arc::new(eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        shared.stack().sockets.notifier.watchers.add(shared.slot().index(), Watch::Fd(fd.clone()));
        Ok(ReadyFd { socket, fd })
    }

    /// The socket.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// Makes the descriptor unreadable until the next change.
    pub fn clear(&self) {
        let _ = rustix::io::read(&*self.fd, &mut [0; 8]);
    }
}

impl<S: Socket> AsFd for ReadyFd<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<S: Socket> AsRawFd for ReadyFd<S> {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl<S: Socket> Drop for ReadyFd<S> {
    fn drop(&mut self) {
        let shared = self.socket.shared();
        shared.stack().sockets.notifier.watchers.remove(shared.slot().index(), &Watch::Fd(self.fd.clone()));
    }
}
