//! [`TcpListener`] and [`TcpStream`]: TCP sockets whose calls are `async`.

use std::fmt;
use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use rustix::io::Errno;

use super::io::Io;
use crate::net::options::errno;
use crate::net::{self, Handle, TcpBuilder};

/// A TCP socket that listens, and accepts by `async` calls, as `tokio::net::TcpListener` does.
///
/// Any number of tasks may share one, such as by an [`Arc`].
///
/// ```no_run
/// use softnet::Handle;
/// use softnet::net::tokio::TcpListener;
///
/// async fn echo(stack: &Handle) -> std::io::Result<()> {
///     let listener = TcpListener::bind(stack, "0.0.0.0:7")?;
///     loop {
///         let (mut stream, _) = listener.accept().await?;
///         tokio::spawn(async move {
///             let (mut from, mut to) = stream.split();
///             tokio::io::copy(&mut from, &mut to).await
///         });
///     }
/// }
/// ```
pub struct TcpListener(Io<net::TcpListener>);

impl TcpListener {
    /// A listener that is bound to `addr`, as [`net::TcpListener::bind`] does it.
    ///
    /// # Panics
    /// Outside a runtime, or in one without I/O.
    pub fn bind(on: &Handle, addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::new(net::TcpListener::bind(on, addr)?)
    }

    /// Of a listener, which is non-blocking from now on, as are its clones.
    ///
    /// # Panics
    /// Outside a runtime, or in one without I/O.
    pub fn new(listener: net::TcpListener) -> io::Result<Self> {
        Ok(TcpListener(Io::new(listener)?))
    }

    /// The listener, for all calls that do not wait.
    pub fn get_ref(&self) -> &net::TcpListener {
        self.0.get_ref()
    }

    /// Waits for a connection, and returns it with its peer's address. May be cancelled: the
    /// connection then waits for the next call.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, from) = self.0.receive(net::TcpListener::accept).await?;
        Ok((TcpStream::new(stream)?, from))
    }

    /// The same as a poll. Of the tasks that poll, the last one is woken.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let (stream, from) = ready!(self.0.poll_receive(cx, net::TcpListener::accept))?;
        Poll::Ready(Ok((TcpStream::new(stream)?, from)))
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get_ref().fmt(f)
    }
}

/// A TCP connection that is an [`AsyncRead`] and an [`AsyncWrite`], as `tokio::net::TcpStream` is.
///
/// One task reads and one writes, by its halves ([`split`](Self::split),
/// [`into_split`](Self::into_split)). A write is done when the bytes are queued, so flushing does
/// nothing; [`poll_shutdown`](AsyncWrite::poll_shutdown) ends the sending direction.
pub struct TcpStream(Io<net::TcpStream>);

impl TcpStream {
    /// Opens a connection to `addr`, the first of several that answers.
    ///
    /// # Errors
    /// As [`net::TcpStream::connect`]'s.
    ///
    /// # Panics
    /// Outside a runtime, or in one without I/O.
    pub async fn connect(on: &Handle, addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_by(&TcpBuilder::new(on), addr).await
    }

    /// The same, as `builder` says.
    pub async fn connect_by(builder: &TcpBuilder, addr: impl ToSocketAddrs) -> io::Result<Self> {
        let addrs: Vec<_> = addr.to_socket_addrs()?.collect();
        drop(addr);
        let mut last = None;
        for addr in addrs {
            match Self::connect_one(builder, &addr).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| errno(Errno::INVAL)))
    }

    async fn connect_one(builder: &TcpBuilder, addr: &SocketAddr) -> io::Result<Self> {
        let stream = Self::new(builder.begin_connect(addr)?)?;
        let done =
            |stream: &net::TcpStream| stream.is_connected().unwrap_or_else(|| Err(errno(Errno::AGAIN)));
        stream.0.send_by(done).await?;
        Ok(stream)
    }

    /// Of a connection, which is non-blocking from now on, as are its clones.
    ///
    /// # Panics
    /// Outside a runtime, or in one without I/O.
    pub fn new(stream: net::TcpStream) -> io::Result<Self> {
        Ok(TcpStream(Io::new(stream)?))
    }

    /// The connection, for all calls that do not wait.
    pub fn get_ref(&self) -> &net::TcpStream {
        self.0.get_ref()
    }

    /// Copies what has arrived to `buffer` and leaves it to be read; waits for the first byte.
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.receive(|stream| stream.peek(buffer)).await
    }

    /// Halves to read and write by, for one task.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf(self), WriteHalf(self))
    }

    /// Halves to read and write by, each for a task of its own. The sending direction ends when its
    /// half is dropped.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let stream = Arc::new(self);
        (OwnedReadHalf(stream.clone()), OwnedWriteHalf(stream))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let to = buffer.initialize_unfilled();
        let n = ready!(self.0.poll_receive(cx, |stream| stream.recv(to)))?;
        buffer.advance(n);
        Poll::Ready(Ok(()))
    }

    fn poll_send(&self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_send(cx, |stream| stream.send(data))
    }

    fn poll_send_vectored(&self, cx: &mut Context<'_>, data: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.0.poll_send(cx, |mut stream| stream.write_vectored(data))
    }

    fn end(&self) -> io::Result<()> {
        match self.get_ref().shutdown(Shutdown::Write) {
            // The peer has ended it already.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get_ref().fmt(f)
    }
}

/// The reading half of a [`TcpStream`], see [`TcpStream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a>(&'a TcpStream);

/// The writing half of a [`TcpStream`], see [`TcpStream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a>(&'a TcpStream);

/// The reading half of a [`TcpStream`], see [`TcpStream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf(Arc<TcpStream>);

/// The writing half of a [`TcpStream`], see [`TcpStream::into_split`].
#[derive(Debug)]
pub struct OwnedWriteHalf(Arc<TcpStream>);

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        // What is wrong with the connection its reader learns.
        let _ = self.0.end();
    }
}

macro_rules! halves {
    ($($type:ty),*) => {$(
        impl AsRef<TcpStream> for $type {
            fn as_ref(&self) -> &TcpStream {
                &self.0
            }
        }
    )*};
}

halves!(ReadHalf<'_>, WriteHalf<'_>, OwnedReadHalf, OwnedWriteHalf);

impl AsRef<TcpStream> for TcpStream {
    fn as_ref(&self) -> &TcpStream {
        self
    }
}

macro_rules! reads {
    ($($type:ty),*) => {$(
        impl AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                AsRef::<TcpStream>::as_ref(&*self).poll_recv(cx, buffer)
            }
        }
    )*};
}

macro_rules! writes {
    ($($type:ty),*) => {$(
        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                data: &[u8],
            ) -> Poll<io::Result<usize>> {
                AsRef::<TcpStream>::as_ref(&*self).poll_send(cx, data)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                data: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                AsRef::<TcpStream>::as_ref(&*self).poll_send_vectored(cx, data)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(AsRef::<TcpStream>::as_ref(&*self).end())
            }
        }
    )*};
}

reads!(TcpStream, ReadHalf<'_>, OwnedReadHalf);
writes!(TcpStream, WriteHalf<'_>, OwnedWriteHalf);
