//! What the router is itself the other end of: TCP streams on softnet's sockets, at the addresses
//! that it has on the client's network. On the kernel's sockets in tests of the endpoints.

use std::io::{self, Read, Write};
use std::net::{self, Shutdown, SocketAddr};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_send_buffer_size;
use softnet::net::{Epoll, Handle, Interest, TcpListener, TcpStream};

use super::flow::Ip;
use super::topology;

const PORT: u16 = 7002;

/// Where the router listens.
pub(super) fn address(ip: Ip) -> SocketAddr {
    SocketAddr::new(topology::router(ip), PORT)
}

/// A connection of either stack, both directions of which are used at once.
pub(super) trait Stream: Send + Sync {
    /// Limits what may be on its way to so many bytes, and how long a call may take.
    fn limit(&self, send_buffer: usize, time: Duration) -> io::Result<()>;

    /// Reads what there is; 0 at the end.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes all.
    fn write_all(&self, data: &[u8]) -> io::Result<()>;

    /// Says that nothing follows.
    fn end(&self) -> io::Result<()>;
}

impl Stream for net::TcpStream {
    fn limit(&self, send_buffer: usize, time: Duration) -> io::Result<()> {
        set_socket_send_buffer_size(self, send_buffer)?;
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut &*self, buffer)
    }

    fn write_all(&self, data: &[u8]) -> io::Result<()> {
        Write::write_all(&mut &*self, data)
    }

    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for TcpStream {
    fn limit(&self, send_buffer: usize, time: Duration) -> io::Result<()> {
        self.set_send_buffer_size(u32::try_from(send_buffer).unwrap_or(u32::MAX))?;
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv(buffer)
    }

    fn write_all(&self, data: &[u8]) -> io::Result<()> {
        Write::write_all(&mut &*self, data)
    }

    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// A listener of either stack.
pub(super) trait Listen: Send {
    /// Takes a connection, if one comes in this time.
    fn accept(&mut self, within: Duration) -> io::Result<Option<Box<dyn Stream>>>;
}

impl Listen for net::TcpListener {
    fn accept(&mut self, within: Duration) -> io::Result<Option<Box<dyn Stream>>> {
        let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
        if poll(&mut [PollFd::new(&*self, PollFlags::IN)], Some(&within)) != Ok(1) {
            return Ok(None);
        }
        Ok(Some(Box::new(net::TcpListener::accept(self)?.0)))
    }
}

/// softnet's.
pub(super) struct Own {
    listener: TcpListener,
    epoll: Epoll,
}

impl Own {
    /// Listens on `stack`.
    pub(super) fn bind(stack: &Handle, ip: Ip) -> io::Result<Own> {
        let listener = TcpListener::bind(stack, address(ip))?;
        let epoll = Epoll::new(stack)?;
        epoll.ctl().add(&listener, Interest::IN, 0)?;
        Ok(Own { listener, epoll })
    }
}

impl Listen for Own {
    fn accept(&mut self, within: Duration) -> io::Result<Option<Box<dyn Stream>>> {
        if self.epoll.wait(&mut Vec::new(), 1, Some(within))? == 0 {
            return Ok(None);
        }
        Ok(Some(Box::new(self.listener.accept()?.0)))
    }
}
