//! Sockets of a stack, in the manner of `std::net`.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let config = softnet::config::Config::default();
//! let stack = softnet::Stack::start(config)?;
//! let socket = softnet::net::UdpSocket::bind(&stack.handle(), "10.0.0.1:7")?;
//! let mut buffer = [0; 2048];
//! let (n, from) = socket.recv_from(&mut buffer)?;
//! socket.send_to(&buffer[..n], from)?;
//! // One that is bound to no address answers from that which was asked.
//! let any = softnet::net::UdpSocket::bind(&stack.handle(), "[::]:7")?;
//! let (n, from, info) = any.recv_msg(&mut buffer)?;
//! any.send_msg(&buffer[..n], (from, info))?;
//! # Ok(())
//! # }
//! ```
//!
//! Any thread may use any socket. A thread's first call gives it a context on the stack, which it
//! keeps until it ends. Errors are those of the kernel's sockets.
//!
//! A thread that polls an instance hands datagrams over to their sockets without a lock and never
//! waits for a receiver; datagrams that do not fit are dropped and counted. A sender that is held
//! back before a TX queue blocks, or gets `EAGAIN`.

mod busy_poll;
mod epoll;
pub(crate) mod groups;
#[cfg(feature = "mio")]
mod mio;
mod msg;
mod multicast;
mod multicast4;
mod options;
mod ready_fd;
mod recv;
mod scope;
mod send;
mod send_batch;
mod socket;
mod tcp;
#[cfg(test)]
mod tests;
#[cfg(feature = "tokio")]
pub mod tokio;
mod udp;

pub use crate::app::{EpollParams, MAX_BUSY_POLL_USECS, OutOfRange};
pub use crate::stack::Handle;
pub use softnet_core::sock::Readiness;

pub use epoll::{Epoll, EpollCtl, Event, Interest};
pub use msg::{MsgHdr, PktInfo};
pub use options::MtuDiscover;
pub use ready_fd::ReadyFd;
pub use recv::{Received, RecvBatch};
pub use send_batch::SendBatch;
pub use socket::Socket;
pub use tcp::{Incoming, TcpBuilder, TcpInfo, TcpListener, TcpReader, TcpStream};
pub use udp::{UdpBuilder, UdpSocket};
