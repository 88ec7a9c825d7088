//! Connections of one thread, on the kernel's sockets or on softnet's, and one wait for all.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_nodelay;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use softnet::net::{Epoll, EpollParams, Event, Handle, Interest, TcpBuilder, TcpStream};

use crate::connected;

/// Most connections that one wait tells of.
const MAX_EVENTS: usize = 64;

/// See the module. Connections never block, and are told of for as long as they are ready.
pub(in super::super) trait Net {
    type Stream: Read + Write;

    fn begin_connect(&self, to: SocketAddr) -> io::Result<Self::Stream>;

    /// Whether it is made, which is asked when there is room to write.
    ///
    /// # Errors
    /// Why it is not.
    fn is_connected(stream: &Self::Stream) -> io::Result<bool>;

    /// Watches a connection that is being made, for room to write.
    fn add(&mut self, stream: &Self::Stream, token: u64) -> io::Result<()>;

    /// Watches it for what comes, and, if `write`, for room as well.
    fn watch(&mut self, stream: &Self::Stream, token: u64, write: bool) -> io::Result<()>;

    /// Sets `tokens` to those that are ready, after `timeout` to none.
    fn wait(&mut self, timeout: Duration, tokens: &mut Vec<u64>) -> io::Result<()>;

    /// Id of the NAPI instance that its last packet came by; 0: not known.
    fn napi_id(stream: &Self::Stream) -> u32;
}

/// The kernel's.
pub(in super::super) struct KernelNet {
    epoll: OwnedFd,
}

impl KernelNet {
    pub(in super::super) fn new() -> io::Result<Self> {
        Ok(KernelNet { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }
}

impl Net for KernelNet {
    type Stream = std::net::TcpStream;

    fn begin_connect(&self, to: SocketAddr) -> io::Result<Self::Stream> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::STREAM, flags, None)?;
        set_tcp_nodelay(&fd, true)?;
        match connect(&fd, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(fd.into()),
            Err(error) => Err(error.into()),
        }
    }

    fn is_connected(stream: &Self::Stream) -> io::Result<bool> {
        connected::kernel(stream)
    }

    fn add(&mut self, stream: &Self::Stream, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, stream, EventData::new_u64(token), EventFlags::OUT)?)
    }

    fn watch(&mut self, stream: &Self::Stream, token: u64, write: bool) -> io::Result<()> {
        let out = if write { EventFlags::OUT } else { EventFlags::empty() };
        Ok(epoll::modify(&self.epoll, stream, EventData::new_u64(token), EventFlags::IN | out)?)
    }

    fn wait(&mut self, timeout: Duration, tokens: &mut Vec<u64>) -> io::Result<()> {
        let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos().into() };
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; MAX_EVENTS];
        let events = match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok((events, _)) => &*events,
            Err(Errno::INTR) => &[],
            Err(error) => return Err(error.into()),
        };
        tokens.clear();
        tokens.extend(events.iter().map(|event| event.data.u64()));
        Ok(())
    }

    fn napi_id(_: &Self::Stream) -> u32 {
        0
    }
}

/// softnet's.
pub(in super::super) struct SoftnetNet {
    on: Handle,
    epoll: Epoll,
    events: Vec<Event>,
}

impl SoftnetNet {
    /// Of a stack; `params` say whether and how the thread polls while it waits.
    pub(in super::super) fn new(on: &Handle, params: EpollParams) -> io::Result<Self> {
        let mut epoll = Epoll::new(on)?;
        epoll.set_params(params).map_err(io::Error::other)?;
        Ok(SoftnetNet { on: on.clone(), epoll, events: Vec::new() })
    }
}

impl Net for SoftnetNet {
    type Stream = TcpStream;

    fn begin_connect(&self, to: SocketAddr) -> io::Result<Self::Stream> {
        let stream = TcpBuilder::new(&self.on).nodelay(true).begin_connect(&to)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    fn is_connected(stream: &Self::Stream) -> io::Result<bool> {
        connected::softnet(stream)
    }

    fn add(&mut self, stream: &Self::Stream, token: u64) -> io::Result<()> {
        self.epoll.ctl().add(stream, Interest::OUT, token)
    }

    fn watch(&mut self, stream: &Self::Stream, token: u64, write: bool) -> io::Result<()> {
        let interest = if write { Interest::IN | Interest::OUT } else { Interest::IN };
        self.epoll.ctl().modify(stream, interest, token)
    }

    fn wait(&mut self, timeout: Duration, tokens: &mut Vec<u64>) -> io::Result<()> {
        self.epoll.wait(&mut self.events, MAX_EVENTS, Some(timeout))?;
        tokens.clear();
        tokens.extend(self.events.iter().map(|event| event.token));
        Ok(())
    }

    fn napi_id(stream: &Self::Stream) -> u32 {
        stream.incoming_napi_id()
    }
}
