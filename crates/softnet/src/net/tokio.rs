//! Sockets for programs on `tokio`.
//!
//! A task waits for a [descriptor](super::ReadyFd) of its socket, in the runtime it was made in.
//! Receivers and senders have one each: an event says that something changed, not what, so one that
//! a sender takes must not be lost to a receiver. The descriptor for senders is made when one first
//! has to wait, for most never do.

mod io;
mod tcp;
mod udp;

pub use tcp::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, TcpListener, TcpStream, WriteHalf};
pub use udp::UdpSocket;
