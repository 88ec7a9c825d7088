//! [`UdpSocket`]: a UDP socket whose calls are `async`.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::task::{Context, Poll};

use super::io::Io;
use crate::net::{self, Handle, MsgHdr, PktInfo, RecvBatch};

/// A UDP socket whose calls are `async`, as `tokio::net::UdpSocket`'s.
///
/// Any number of tasks may share one, such as by an `Arc`. Every call may be cancelled: what it
/// would have received stays in the socket, and what it would have sent is not sent.
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
pub struct UdpSocket(Io<net::UdpSocket>);

impl UdpSocket {
    /// Opens a socket that is bound to `addr`, as [`net::UdpSocket::bind`](net::UdpSocket::bind) does.
    ///
    /// # Panics
    /// Outside a runtime, or in one without I/O.
    pub fn bind(on: &Handle, addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::new(net::UdpSocket::bind(on, addr)?)
    }

    /// Of a socket, which is non-blocking from now on, as are its clones.
    ///
    /// # Panics
    /// Outside a runtime, or in one without I/O.
    pub fn new(socket: net::UdpSocket) -> io::Result<Self> {
        Ok(UdpSocket(Io::new(socket)?))
    }

    /// The socket, for all calls that do not wait.
    pub fn get_ref(&self) -> &net::UdpSocket {
        self.0.get_ref()
    }

    /// Receives a datagram: how many of its bytes fit `buffer`, and the address it came from. The
    /// rest of it is lost.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.0.receive(|socket| socket.recv_from(buffer)).await
    }

    /// The same without the address.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.receive(|socket| socket.recv(buffer)).await
    }

    /// The same with what an answer is to be sent by, see
    /// [`net::UdpSocket::recv_msg`](net::UdpSocket::recv_msg).
    pub async fn recv_msg(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr, PktInfo)> {
        self.0.receive(|socket| socket.recv_msg(buffer)).await
    }

    /// Receives up to `max` datagrams where they lie, see
    /// [`net::UdpSocket::recv_batch`](net::UdpSocket::recv_batch).
    pub async fn recv_batch(&self, batch: &mut RecvBatch, max: usize) -> io::Result<usize> {
        self.0.receive(|socket| socket.recv_batch(batch, max)).await
    }

    /// The same for those that implement a `poll`: one task at a time is woken, the last one.
    pub fn poll_recv_batch(
        &self,
        cx: &mut Context<'_>,
        batch: &mut RecvBatch,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        self.0.poll_receive(cx, |socket| socket.recv_batch(batch, max))
    }

    /// Waits until a socket that was held back ([`WouldBlock`](io::ErrorKind::WouldBlock)) may send
    /// again.
    pub async fn writable(&self) -> io::Result<()> {
        let held_back = || Err(io::ErrorKind::WouldBlock.into());
        self.0.send_by(|socket| if socket.readiness().writable { Ok(()) } else { held_back() }).await
    }

    /// Sends a datagram to `addr`.
    pub async fn send_to(&self, payload: &[u8], addr: SocketAddr) -> io::Result<usize> {
        self.0.send_by(|socket| socket.send_to(payload, addr)).await
    }

    /// Sends a datagram to the address that the socket is connected to.
    pub async fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.0.send_by(|socket| socket.send(payload)).await
    }

    /// Sends a datagram as `to` says, see [`net::UdpSocket::send_msg`](net::UdpSocket::send_msg).
    pub async fn send_msg(&self, payload: &[u8], to: impl Into<MsgHdr>) -> io::Result<usize> {
        let to = to.into();
        self.0.send_by(|socket| socket.send_msg(payload, to)).await
    }

    /// Sends a datagram for each `segment` bytes, see
    /// [`net::UdpSocket::send_segments`](net::UdpSocket::send_segments).
    pub async fn send_segments(
        &self,
        payload: &[u8],
        segment: usize,
        to: impl Into<MsgHdr>,
    ) -> io::Result<usize> {
        let to = to.into();
        self.0.send_by(|socket| socket.send_segments(payload, segment, to)).await
    }
}

impl std::fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get_ref().fmt(f)
    }
}
