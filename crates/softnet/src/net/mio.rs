//! Sockets for programs on `mio`: a [`ReadyFd`] is an event source.

use std::io;
use std::os::fd::AsRawFd;

use ::mio::event::Source;
use ::mio::unix::SourceFd;
use ::mio::{Interest, Registry, Token};

use super::{ReadyFd, Socket};

/// Its events are *readable*, whatever it was registered for: they say that the socket became ready
/// to receive, to send or to accept, or that an error is pending. As with all sources, the call is
/// made until it would block.
///
/// ```no_run
/// use mio::{Events, Interest, Poll, Token};
/// use softnet::net::{ReadyFd, UdpSocket};
///
/// fn echo(socket: UdpSocket) -> std::io::Result<()> {
///     let mut poll = Poll::new()?;
///     let mut socket = ReadyFd::new(socket)?;
///     poll.registry().register(&mut socket, Token(0), Interest::READABLE)?;
///     let (mut events, mut buffer) = (Events::with_capacity(64), [0; 2048]);
///     loop {
///         poll.poll(&mut events, None)?;
///         loop {
///             match socket.socket().recv_msg(&mut buffer) {
///                 // An answer that cannot be sent now is the asker's loss.
///                 Ok((n, from, asked)) => _ = socket.socket().send_msg(&buffer[..n], (from, asked)),
///                 Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
///                 Err(error) => return Err(error),
///             }
///         }
///     }
/// }
/// ```
impl<S: Socket> Source for ReadyFd<S> {
    fn register(&mut self, registry: &Registry, token: Token, _: Interest) -> io::Result<()> {
        SourceFd(&self.as_raw_fd()).register(registry, token, Interest::READABLE)
    }

    fn reregister(&mut self, registry: &Registry, token: Token, _: Interest) -> io::Result<()> {
        SourceFd(&self.as_raw_fd()).reregister(registry, token, Interest::READABLE)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        SourceFd(&self.as_raw_fd()).deregister(registry)
    }
}
