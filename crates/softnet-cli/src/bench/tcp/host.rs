//! The sockets that servers and clients are written for, once: softnet's and the kernel's, by the
//! calls that both have.
//!
//! Streams do not block. A [`Set`] tells what is ready for as long as it is (level-triggered),
//! which is how most servers wait.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_reuseaddr, set_tcp_congestion};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};
use softnet::net::{self, Epoll, Event, Handle, Interest, TcpBuilder};
use softnet_dev::netns::NetNs;
use softnet_testkit::InlineNapi;

#[cfg(doc)]
use super::parked::MOST;
use super::parked::Parked;
use super::ways::Way;
use crate::connected;

/// What a listener takes that is not yet accepted.
const BACKLOG: i32 = 4096;
/// Events that one wait may return.
pub(super) const MAX_EVENTS: usize = 64;

/// What a stream is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    In,
    InOut,
}

/// A stack with sockets.
pub(super) trait Host: Clone + Send + 'static {
    type Listener: Send;
    type Stream: Read + Write + Send;
    type Set: Set<Self>;
    /// Idle streams that take few of the process' descriptors.
    type Parked;

    /// Parks streams, [`MOST`] at the most, that no set has.
    fn park(streams: Vec<Self::Stream>) -> io::Result<Self::Parked>;
    /// The streams again, in the same order.
    fn unpark(parked: Self::Parked) -> io::Result<Vec<Self::Stream>>;
    /// The calling thread's sockets are of this stack from now on, which
    /// [`begin_connect`](Self::begin_connect) relies on.
    fn enter(&self) -> io::Result<()>;
    /// A listener that does not block.
    fn listen(&self, at: SocketAddr) -> io::Result<Self::Listener>;
    /// A connection that waits, if one does.
    fn accept(listener: &Self::Listener) -> io::Result<Self::Stream>;
    /// Begins a connection, which [`connected`](Self::connected) then asks about.
    fn begin_connect(&self, to: SocketAddr) -> io::Result<Self::Stream>;
    fn connected(stream: &Self::Stream) -> io::Result<bool>;
    /// The next close is a reset, which leaves nothing behind in either stack.
    fn reset_on_close(stream: &Self::Stream) -> io::Result<()>;
    /// The stream's calls wait from now on, as `way` says, and no longer than `limit`.
    fn block(stream: &Self::Stream, way: &Way, limit: Duration) -> io::Result<()>;
    /// Ends the sending direction.
    fn shut(stream: &Self::Stream) -> io::Result<()>;
    /// An empty set, which waits as `way` says.
    fn set(&self, way: &Way) -> io::Result<Self::Set>;
}

/// What is waited for by one thread.
pub(super) trait Set<H: Host> {
    fn add_listener(&mut self, listener: &H::Listener, token: u64) -> io::Result<()>;
    fn add(&mut self, stream: &H::Stream, token: u64) -> io::Result<()>;
    fn modify(&mut self, stream: &H::Stream, what: For, token: u64) -> io::Result<()>;
    /// Waits from now on as `way` says.
    fn wait_as(&mut self, way: &Way) -> io::Result<()>;
    /// Replaces `ready` by the tokens of what is ready, after `timeout` by none.
    fn wait(&mut self, ready: &mut Vec<u64>, timeout: Duration) -> io::Result<()>;
}

/// softnet.
#[derive(Clone)]
pub(super) struct Softnet(pub(super) Handle);

pub(super) struct SoftnetSet {
    epoll: Epoll,
    events: Vec<Event>,
}

impl Host for Softnet {
    type Listener = net::TcpListener;
    type Stream = net::TcpStream;
    type Set = SoftnetSet;
    type Parked = Vec<net::TcpStream>;

    fn park(streams: Vec<net::TcpStream>) -> io::Result<Self::Parked> {
        Ok(streams)
    }

    fn unpark(parked: Self::Parked) -> io::Result<Vec<net::TcpStream>> {
        Ok(parked)
    }

    fn enter(&self) -> io::Result<()> {
        Ok(())
    }

    fn listen(&self, at: SocketAddr) -> io::Result<Self::Listener> {
        let listener = TcpBuilder::new(&self.0).backlog(BACKLOG).listen(at)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    fn accept(listener: &Self::Listener) -> io::Result<Self::Stream> {
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn begin_connect(&self, to: SocketAddr) -> io::Result<Self::Stream> {
        let stream = TcpBuilder::new(&self.0).nodelay(true).begin_connect(&to)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    fn connected(stream: &Self::Stream) -> io::Result<bool> {
        connected::softnet(stream)
    }

    fn reset_on_close(stream: &Self::Stream) -> io::Result<()> {
        stream.set_linger(Some(Duration::ZERO))
    }

    fn block(stream: &Self::Stream, way: &Way, limit: Duration) -> io::Result<()> {
        stream.set_busy_poll(way.params()).map_err(io::Error::other)?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))
    }

    fn shut(stream: &Self::Stream) -> io::Result<()> {
        stream.shutdown(std::net::Shutdown::Write)
    }

    fn set(&self, way: &Way) -> io::Result<Self::Set> {
        let mut set = SoftnetSet { epoll: Epoll::new(&self.0)?, events: Vec::new() };
        set.wait_as(way)?;
        Ok(set)
    }
}

impl Set<Softnet> for SoftnetSet {
    fn add_listener(&mut self, listener: &net::TcpListener, token: u64) -> io::Result<()> {
        self.epoll.ctl().add(listener, Interest::IN, token)
    }

    fn add(&mut self, stream: &net::TcpStream, token: u64) -> io::Result<()> {
        self.epoll.ctl().add(stream, Interest::IN, token)
    }

    fn modify(&mut self, stream: &net::TcpStream, what: For, token: u64) -> io::Result<()> {
        let interest = if what == For::In { Interest::IN } else { Interest::IN | Interest::OUT };
        self.epoll.ctl().modify(stream, interest, token)
    }

    fn wait_as(&mut self, way: &Way) -> io::Result<()> {
        self.epoll.set_params(way.params()).map_err(io::Error::other)
    }

    fn wait(&mut self, ready: &mut Vec<u64>, timeout: Duration) -> io::Result<()> {
        self.epoll.wait(&mut self.events, MAX_EVENTS, Some(timeout))?;
        ready.clear();
        ready.extend(self.events.iter().map(|event| event.token));
        Ok(())
    }
}

/// The kernel, in a namespace.
#[derive(Clone)]
pub(super) struct Kernel {
    ns: Arc<NetNs>,
    /// What its threads that wait poll themselves, each time.
    napi: Option<Arc<InlineNapi>>,
}

impl Kernel {
    pub(super) fn new(ns: &NetNs) -> io::Result<Self> {
        Ok(Kernel { ns: Arc::new(ns.try_clone()?), napi: None })
    }

    /// Threads that wait poll `napi` first.
    pub(super) fn polls(&mut self, napi: InlineNapi) {
        self.napi = Some(Arc::new(napi));
    }
}

pub(super) struct KernelSet {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    /// It asks again and again instead of sleeping.
    spins: bool,
    napi: Option<Arc<InlineNapi>>,
}

/// Streams of both are compared with the same congestion control.
fn prepare(stream: &std::net::TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)
}

impl Host for Kernel {
    type Listener = std::net::TcpListener;
    type Stream = std::net::TcpStream;
    type Set = KernelSet;
    type Parked = Parked;

    fn park(streams: Vec<std::net::TcpStream>) -> io::Result<Parked> {
        Parked::new(&streams)
    }

    fn unpark(parked: Parked) -> io::Result<Vec<std::net::TcpStream>> {
        parked.unpark()
    }

    fn enter(&self) -> io::Result<()> {
        self.ns.enter()
    }

    fn listen(&self, at: SocketAddr) -> io::Result<Self::Listener> {
        self.ns.run(|| {
            let fd = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            set_socket_reuseaddr(&fd, true)?;
            bind(&fd, &at)?;
            // What is accepted inherits it.
            set_tcp_congestion(&fd, "cubic")?;
            listen(&fd, BACKLOG)?;
            let listener = std::net::TcpListener::from(fd);
            listener.set_nonblocking(true)?;
            Ok(listener)
        })?
    }

    fn accept(listener: &Self::Listener) -> io::Result<Self::Stream> {
        let (stream, _) = listener.accept()?;
        prepare(&stream)?;
        Ok(stream)
    }

    fn begin_connect(&self, to: SocketAddr) -> io::Result<Self::Stream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        set_tcp_congestion(&fd, "cubic")?;
        match connect(&fd, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = std::net::TcpStream::from(fd);
        prepare(&stream)?;
        Ok(stream)
    }

    fn connected(stream: &Self::Stream) -> io::Result<bool> {
        connected::kernel(stream)
    }

    fn reset_on_close(stream: &Self::Stream) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO))?)
    }

    /// `SO_BUSY_POLL` changes nothing: veth pairs have no NAPI instance that a socket could poll.
    fn block(stream: &Self::Stream, _: &Way, limit: Duration) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))
    }

    fn shut(stream: &Self::Stream) -> io::Result<()> {
        stream.shutdown(std::net::Shutdown::Write)
    }

    fn set(&self, way: &Way) -> io::Result<Self::Set> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut set = KernelSet {
            epoll,
            events: Vec::with_capacity(MAX_EVENTS),
            spins: false,
            napi: self.napi.clone(),
        };
        set.wait_as(way)?;
        Ok(set)
    }
}

impl Set<Kernel> for KernelSet {
    fn add_listener(&mut self, listener: &std::net::TcpListener, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, listener, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?)
    }

    fn add(&mut self, stream: &std::net::TcpStream, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, stream, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?)
    }

    fn modify(&mut self, stream: &std::net::TcpStream, what: For, token: u64) -> io::Result<()> {
        let out = if what == For::In { epoll::EventFlags::empty() } else { epoll::EventFlags::OUT };
        let flags = epoll::EventFlags::IN | out;
        Ok(epoll::modify(&self.epoll, stream, epoll::EventData::new_u64(token), flags)?)
    }

    fn wait_as(&mut self, way: &Way) -> io::Result<()> {
        self.spins = way.spins();
        Ok(())
    }

    fn wait(&mut self, ready: &mut Vec<u64>, timeout: Duration) -> io::Result<()> {
        let timeout = if self.spins { Duration::ZERO } else { timeout };
        let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos().into() };
        self.napi.iter().for_each(|napi| napi.poll());
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        ready.clear();
        ready.extend(self.events.iter().map(|event| event.data.u64()));
        Ok(())
    }
}
