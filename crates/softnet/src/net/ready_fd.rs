//! [`ReadyFd`]: a descriptor that tells other event loops of a socket's readiness, for programs built on `mio`, `tokio` and the like.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use super::udp::UdpSocket;
use super::watch::Watch;

/// A descriptor that becomes readable when something can be done with a socket that could not be done before. It is for
/// edge-triggered waiting (`mio`'s `SourceFd`, `tokio`'s `AsyncFd`): after an event the socket, which must not block, is used until it says
/// [`WouldBlock`](io::ErrorKind::WouldBlock). Whoever waits level-triggered [clears](Self::clear) it first.
///
/// Waiting in this way does not poll: each change from nothing to something costs the poller a system call. An
/// [`Epoll`](super::Epoll) does.
pub struct ReadyFd {
    socket: UdpSocket,
    fd: Arc<OwnedFd>,
}

impl ReadyFd {
    /// For a socket, which is not to block from now on.
    pub fn new(socket: UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        // Readable at first: the socket may be ready.
        let fd = Arc::new(eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let inner = socket.inner();
        inner.shared.sockets.told.watchers.add(inner.slot.index(), Watch::Fd(fd.clone()));
        Ok(ReadyFd { socket, fd })
    }

    /// The socket.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Not readable any more, until something changes.
    pub fn clear(&self) {
        let _ = rustix::io::read(&*self.fd, &mut [0; 8]);
    }
}

impl AsFd for ReadyFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for ReadyFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for ReadyFd {
    fn drop(&mut self) {
        let inner = self.socket.inner();
        inner.shared.sockets.told.watchers.remove(inner.slot.index(), &Watch::Fd(self.fd.clone()));
    }
}
