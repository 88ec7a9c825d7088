//! Whether a connection that is being made without waiting is made: on the kernel's sockets, and on
//! softnet's. For `load` and the benches.
//!
//! # Errors
//! Why it is not made.

use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_error;

/// One of the kernel's.
pub(crate) fn kernel(stream: &std::net::TcpStream) -> io::Result<bool> {
    let mut fds = [PollFd::new(stream, PollFlags::OUT)];
    if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
        return Ok(false);
    }
    socket_error(stream)??;
    Ok(true)
}

/// One of softnet's.
pub(crate) fn softnet(stream: &softnet::net::TcpStream) -> io::Result<bool> {
    // An error comes before the readiness that tells of it.
    let writable = stream.readiness().writable;
    stream.take_error()?.map_or(Ok(writable), Err)
}
