//! Sockets for programs on `tokio`.
//!
//! A task waits for a [descriptor](ReadyFd) of its socket, in the runtime it was made in. Receivers and senders have one each:
//! an event says that something changed, not what, so one that a sender takes must not be lost to a receiver. The descriptor
//! for senders is made when one first has to wait, for most never do.
//!
//! Invariant: readiness is taken back only after a call found nothing, never before.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::OnceLock;

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime;
use ::tokio::task::coop;

use super::{Handle, MsgHdr, PktInfo, ReadyFd, RecvBatch};

/// A descriptor for one direction, watched by the runtime.
fn register(socket: super::UdpSocket) -> io::Result<AsyncFd<ReadyFd>> {
    // It takes any `AsRawFd`, some of which may close or change their descriptors while they are registered; hence its
    // replacement is unsafe. A `ReadyFd` keeps the same one open for as long as it lives.
    #[allow(deprecated)]
    AsyncFd::with_interest(ReadyFd::new(socket)?, Interest::READABLE)
}

/// A UDP socket whose calls are `async`, as `tokio::net::UdpSocket`'s.
///
/// Any number of tasks may share one, such as by an `Arc`. Every call may be cancelled: what it would have received stays in the
/// socket, and what it would have sent is not sent.
///
/// ```no_run
/// use softnet::Handle;
/// use softnet::net::tokio::UdpSocket;
///
/// async fn echo(stack: &Handle) -> std::io::Result<()> {
///     let socket = UdpSocket::bind(stack, "0.0.0.0:7")?;
///     let mut buffer = [0; 2048];
///     loop {
///         let (n, from, asked) = socket.recv_msg(&mut buffer).await?;
///         // An answer that cannot be sent, such as one to port 0, is the asker's loss.
///         let _ = socket.send_msg(&buffer[..n], (from, asked)).await;
///     }
/// }
/// ```
pub struct UdpSocket {
    receivers: AsyncFd<ReadyFd>,
    senders: OnceLock<AsyncFd<ReadyFd>>,
    /// The runtime that it was made in, and which watches both.
    runtime: runtime::Handle,
}

impl UdpSocket {
    /// Opens a socket that is bound to `addr`, as [`net::UdpSocket::bind`](super::UdpSocket::bind) does.
    ///
    /// # Panics
    /// Outside a runtime, or in one without I/O.
    pub fn bind(on: &Handle, addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::new(super::UdpSocket::bind(on, addr)?)
    }

    /// Of a socket, which is non-blocking from now on, as are its clones.
    ///
    /// # Panics
    /// Outside a runtime, or in one without I/O.
    pub fn new(socket: super::UdpSocket) -> io::Result<Self> {
        let runtime = runtime::Handle::current();
        Ok(UdpSocket { receivers: register(socket)?, senders: OnceLock::new(), runtime })
    }

    /// The socket, for all calls that do not wait.
    pub fn get_ref(&self) -> &super::UdpSocket {
        self.receivers.get_ref().socket()
    }

    /// Receives a datagram: how many of its bytes fit `buffer`, and the address it came from. The rest of it is lost.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(|socket| socket.recv_from(buffer)).await
    }

    /// The same without the address.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(|socket| socket.recv(buffer)).await
    }

    /// The same with what an answer is to be sent by, see [`net::UdpSocket::recv_msg`](super::UdpSocket::recv_msg).
    pub async fn recv_msg(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr, PktInfo)> {
        self.receive(|socket| socket.recv_msg(buffer)).await
    }

    /// Receives up to `max` datagrams where they lie, see [`net::UdpSocket::recv_batch`](super::UdpSocket::recv_batch).
    pub async fn recv_batch(&self, batch: &mut RecvBatch, max: usize) -> io::Result<usize> {
        self.receive(|socket| socket.recv_batch(batch, max)).await
    }

    /// Sends a datagram to `addr`.
    pub async fn send_to(&self, payload: &[u8], addr: SocketAddr) -> io::Result<usize> {
        self.send_by(|socket| socket.send_to(payload, addr)).await
    }

    /// Sends a datagram to the address that the socket is connected to.
    pub async fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.send_by(|socket| socket.send(payload)).await
    }

    /// Sends a datagram as `to` says, see [`net::UdpSocket::send_msg`](super::UdpSocket::send_msg).
    pub async fn send_msg(&self, payload: &[u8], to: impl Into<MsgHdr>) -> io::Result<usize> {
        let to = to.into();
        self.send_by(|socket| socket.send_msg(payload, to)).await
    }

    async fn receive<R>(&self, mut call: impl FnMut(&super::UdpSocket) -> io::Result<R>) -> io::Result<R> {
        self.receivers.async_io(Interest::READABLE, |fd| call(fd.socket())).await
    }

    async fn send_by<R>(&self, mut call: impl FnMut(&super::UdpSocket) -> io::Result<R>) -> io::Result<R> {
        // A sender that is never held back waits for no descriptor, where it would let other tasks
        // run.
        coop::consume_budget().await;
        match call(self.get_ref()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return sent,
        }
        let senders = match self.senders.get() {
            Some(senders) => senders,
            None => {
                // Readable at first, so that the call is made once more: the sender may have been able to go on since.
                let socket = self.get_ref().try_clone()?;
                let _runtime = self.runtime.enter();
                let made = register(socket)?;
                self.senders.get_or_init(|| made)
            }
        };
        senders.async_io(Interest::READABLE, |fd| call(fd.socket())).await
    }
}

impl std::fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get_ref().fmt(f)
    }
}
