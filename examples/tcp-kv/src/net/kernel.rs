//! The kernel's sockets, by its epoll.

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use softnet_testkit::datagrams::Stop;

use super::{Net, Ready};

/// Stands for the [`Stop`].
const STOP: u64 = u64::MAX;
/// Most sockets that one wait tells of.
const MAX_EVENTS: usize = 64;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// See the module.
pub struct KernelNet {
    epoll: OwnedFd,
    listeners: Vec<TcpListener>,
}

impl KernelNet {
    /// Listens on `addresses`, which other threads may do as well (`SO_REUSEPORT`). `stop` ends a wait.
    ///
    /// # Errors
    /// An address in use, or none of this host.
    pub fn bound(addresses: &[SocketAddr], stop: &Stop) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, stop, EventData::new_u64(STOP), EventFlags::IN)?;
        let mut listeners = Vec::new();
        for (token, address) in addresses.iter().enumerate() {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(family, SocketType::STREAM, flags, None)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            sockopt::set_socket_reuseport(&socket, true)?;
            bind(&socket, address)?;
            listen(&socket, BACKLOG)?;
            epoll::add(&epoll, &socket, EventData::new_u64(token as u64), EventFlags::IN)?;
            listeners.push(socket.into());
        }
        Ok(KernelNet { epoll, listeners })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// None that is known.
    pub fn local_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }
}

impl Net for KernelNet {
    type Stream = TcpStream;

    fn wait(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; MAX_EVENTS];
        let events = match epoll::wait(&self.epoll, &mut events, None) {
            Ok((events, _)) => &*events,
            Err(Errno::INTR) => &[],
            Err(error) => return Err(error.into()),
        };
        let tokens = events.iter().map(|event| event.data.u64());
        ready.extend(tokens.filter(|token| *token != STOP).map(|token| Ready { token }));
        Ok(())
    }

    fn listeners(&self) -> usize {
        self.listeners.len()
    }

    fn accept(&mut self, listener: usize) -> io::Result<TcpStream> {
        let (stream, _) = self.listeners[listener].accept()?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn add(&mut self, stream: &TcpStream, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, stream, EventData::new_u64(token), EventFlags::IN)?)
    }

    fn watch(&mut self, stream: &TcpStream, token: u64, write: bool) -> io::Result<()> {
        let flags = if write { EventFlags::OUT } else { EventFlags::IN };
        Ok(epoll::modify(&self.epoll, stream, EventData::new_u64(token), flags)?)
    }

    fn remove(&mut self, stream: &TcpStream) {
        // It is closed next.
        let _ = epoll::delete(&self.epoll, stream.as_fd());
    }
}
