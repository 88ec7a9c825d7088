//! [`TcpBuilder`]: what a TCP socket is to be before it listens or connects.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use softnet_core::ip::v4::header::protocol;
use softnet_core::sock::key::{ANY, Addr, is_v4};
use softnet_core::sock::route::{Dest, Endpoints, find_route, is_group, is_own};
use softnet_core::sock::tcp::{
    ConnId, Effects, End, ListenState, Marks, Open, Shard, TcpInbox, output, tuple,
};
use softnet_core::sock::{Bind, Flow, Key};
use softnet_dev::xdp::LocalEnd;
use softnet_tcp::ConnOptions;
use softnet_tcp::conn::SockOpt;
use softnet_tcp::listen::Listener;

use super::super::Handle;
use super::super::options::{Options, errno, of_bind, route_errno};
use super::super::scope::{destination, local_end, scope_id};
use super::super::socket::closed;
use super::super::udp::first;
use super::listener::{Inner as ListenerInner, TcpListener};
use super::on_shard;
use super::options::{congestion, recv_buffer, send_buffer};
use super::stream::TcpStream;
use crate::stack::tcp::{self, Listening};
use crate::stack::{StackInner, with};
use crate::util::lock;

/// What a TCP socket is to be before it listens or connects. What a listener is told here its
/// connections begin with.
#[derive(Debug, Clone)]
pub struct TcpBuilder {
    on: Handle,
    local: Option<SocketAddr>,
    backlog: i32,
    reuse_port: bool,
    only_v6: bool,
    defer_accept: u32,
    options: ConnOptions,
}

impl TcpBuilder {
    /// Of a stack's socket.
    pub fn new(on: &Handle) -> Self {
        TcpBuilder {
            on: on.clone(),
            local: None,
            backlog: 1024,
            reuse_port: false,
            only_v6: false,
            defer_accept: 0,
            options: ConnOptions::default(),
        }
    }

    /// The end that a connection is to begin at; port 0: any that is free.
    pub fn local_addr(mut self, local: SocketAddr) -> Self {
        self.local = Some(local);
        self
    }

    /// How many connections may wait to be accepted (`listen`'s `backlog`).
    pub fn backlog(mut self, backlog: i32) -> Self {
        self.backlog = backlog;
        self
    }

    /// Whether to share address and port with other listeners that say so (`SO_REUSEPORT`): a
    /// connection is for one of them, by its flow.
    pub fn reuse_port(mut self, reuse: bool) -> Self {
        self.reuse_port = reuse;
        self
    }

    /// Whether a listener of IPv6 has nothing to do with IPv4 (`IPV6_V6ONLY`).
    pub fn only_v6(mut self, only: bool) -> Self {
        self.only_v6 = only;
        self
    }

    /// Connections are accepted when they have data, or so many seconds old (`TCP_DEFER_ACCEPT`).
    pub fn defer_accept(mut self, seconds: u32) -> Self {
        self.defer_accept = seconds;
        self
    }

    /// Bytes of packet memory that may wait to be read (`SO_RCVBUF`); ends autotuning.
    pub fn recv_buffer_size(self, bytes: u32) -> Self {
        let bytes = recv_buffer(&self.on.shared().sockets.tcp.cfg, bytes);
        self.set(SockOpt::RcvBuf(bytes))
    }

    /// Bytes that may be queued (`SO_SNDBUF`); ends autotuning.
    pub fn send_buffer_size(self, bytes: u32) -> Self {
        let bytes = send_buffer(&self.on.shared().sockets.tcp.cfg, bytes);
        self.set(SockOpt::SndBuf(bytes))
    }

    /// The congestion control, by its name (`TCP_CONGESTION`): `cubic`, `reno` or `dctcp`.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound): there is none of that name.
    pub fn congestion(self, name: &str) -> io::Result<Self> {
        Ok(self.set(SockOpt::Congestion(congestion(name)?)))
    }

    /// The longest segment that is announced and sent, in bytes of payload and TCP's options (`TCP_MAXSEG`), if the path
    /// carries as much.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput): not from 88 to 32,767.
    pub fn max_segment_size(mut self, bytes: u16) -> io::Result<Self> {
        self.options.set(SockOpt::MaxSeg(bytes)).map_err(|_| errno(Errno::INVAL))?;
        Ok(self)
    }

    /// Streams are readable only from so many bytes on (`SO_RCVLOWAT`).
    pub fn recv_lowat(self, bytes: u32) -> Self {
        self.set(SockOpt::RcvLowat(bytes))
    }

    /// Streams are writable only while less than so many bytes were not sent (`TCP_NOTSENT_LOWAT`).
    pub fn notsent_lowat(self, bytes: u32) -> Self {
        self.set(SockOpt::NotsentLowat(bytes))
    }

    /// Whether small segments leave at once (`TCP_NODELAY`).
    pub fn nodelay(self, nodelay: bool) -> Self {
        self.set(SockOpt::NoDelay(nodelay))
    }

    fn set(mut self, option: SockOpt) -> Self {
        // None of these is out of range.
        let _ = self.options.set(option);
        self
    }

    /// Listens on `addr`, the first of several that is possible.
    ///
    /// # Errors
    /// See [`TcpListener::bind`].
    pub fn listen(&self, addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
        first(addr, |addr| self.listen_one(addr))
    }

    fn listen_one(&self, addr: SocketAddr) -> io::Result<TcpListener> {
        let shared = self.on.shared();
        let local = self.own_end(shared, &addr)?;
        let v4 = addr.is_ipv4();
        let bind = Bind {
            local,
            port: addr.port(),
            v4: v4 || !self.only_v6,
            v6: !v4,
            dev: None,
            reuseport: self.reuse_port,
            limit: 0,
        };
        tcp::start(shared)?;
        let (inbox, open_port) = open(shared, &bind)?;
        let slot = inbox.slot().clone();
        slot.slot().set_stream(0);
        let table = &shared.sockets.tcp;
        let mut engine = Listener::new(&table.cfg, self.backlog, self.options);
        engine.set_defer_accept(&table.cfg, self.defer_accept);
        let state = ListenState::new(engine);
        let listening = Arc::new(Listening::new(slot.index(), slot.slot().generation(), state));
        table.listeners().add(&listening);
        Ok(TcpListener(Arc::new(ListenerInner {
            shared: shared.clone(),
            slot,
            v4,
            listening,
            options: Options::default(),
            inbox: Mutex::new(Some(inbox)),
            open_port,
        })))
    }

    /// The address of ours that `addr` is.
    fn own_end(&self, shared: &Arc<StackInner>, addr: &SocketAddr) -> io::Result<Addr> {
        if shared.sockets.is_stopped() {
            return Err(errno(Errno::NETDOWN));
        }
        let (local, _) = local_end(shared, addr).map_err(errno)?;
        let own = || with(shared, |thread| is_own(thread.tables.load(), local));
        match local != ANY && (is_group(local) || !own()) {
            true => Err(errno(Errno::ADDRNOTAVAIL)),
            false => Ok(local),
        }
    }

    /// Connects to `addr`, the first of several that answers.
    ///
    /// # Errors
    /// See [`TcpStream::connect`].
    pub fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<TcpStream> {
        first(addr, |addr| {
            let stream = self.begin_connect(&addr)?;
            stream.connected(None)?;
            Ok(stream)
        })
    }

    /// The same, of one address, and for no longer than `timeout`.
    ///
    /// # Errors
    /// See [`TcpStream::connect_timeout`].
    pub fn connect_timeout(&self, addr: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        let stream = self.begin_connect(addr)?;
        stream.connected(Some(timeout))?;
        Ok(stream)
    }

    /// Sends the SYN, and does not wait: the stream becomes writable once it is connected; then
    /// [`take_error`](TcpStream::take_error) says whether it is.
    ///
    /// # Errors
    /// Those that are known at once: no route, no port, no such address of ours.
    pub fn begin_connect(&self, addr: &SocketAddr) -> io::Result<TcpStream> {
        let shared = self.on.shared();
        let to = destination(shared, addr.ip(), addr.port(), scope_id(addr)).map_err(errno)?;
        if to.port == 0 || to.addr == ANY || is_group(to.addr) {
            return Err(errno(Errno::ADDRNOTAVAIL));
        }
        let (bound, port) = match &self.local {
            Some(local) => (self.own_end(shared, local)?, local.port()),
            None => (ANY, 0),
        };
        let (local, mtu) = self.way(shared, &to, bound)?;
        tcp::start(shared)?;
        let slot = shared.sockets.binder().open_unlisted().map_err(of_bind)?;
        slot.slot().set_stream(0);
        let flow = Flow { local, remote: to.addr, lport: port, rport: to.port, protocol: protocol::TCP };
        let begun = self.begin(shared, flow, output::mss_of(mtu, to.addr), slot.index());
        let (flow, shard, id) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                shared.sockets.binder().release(slot.index());
                return Err(errno(error));
            }
        };
        Ok(TcpStream::of(shared, slot, &flow, (shard, id), addr.is_ipv4()))
    }

    /// Our address on the way to `to`, and the path's MTU.
    fn way(&self, shared: &Arc<StackInner>, to: &Dest, bound: Addr) -> io::Result<(Addr, u16)> {
        if shared.sockets.is_stopped() {
            return Err(errno(Errno::NETDOWN));
        }
        let ends = Endpoints::new(bound, 0, None);
        let way = with(shared, |thread| {
            let to = ends.complete(*to)?;
            find_route(thread.tables.load(), &to, &ends, ends.source(), false)
        });
        let way = way.map_err(|error| errno(route_errno(error)))?;
        let path = shared.sockets.paths.limit(to.addr);
        Ok((way.src, path.map_or(way.mtu, |path| path.min(way.mtu))))
    }

    /// Begins the connection, at the port that `flow` has, or any that is free (RFC 6056, algorithm 4).
    fn begin(
        &self,
        shared: &Arc<StackInner>,
        flow: Flow,
        mss: u16,
        slot: u32,
    ) -> Result<(Flow, usize, ConnId), Errno> {
        let table = &shared.sockets.tcp;
        let asked = flow.lport != 0;
        let attempt = |lport: u16| {
            let flow = Flow { lport, ..flow };
            // Given back, if it is not used, when the shard is let go.
            let mut claim = Claim::new(shared, (flow.local, lport))?;
            let number = table.shard_of(&flow);
            let begun = on_shard(shared, number, |shard, ctx, env, out: &mut Effects| {
                let free = shard.is_free(env, &flow, asked);
                let marks = Marks::default();
                let mut options = self.options;
                options.ipv6 = !is_v4(flow.remote);
                let open = Open { flow, marks, options: &options, path_mss: mss, slot };
                if !free {
                    return Ok(None);
                }
                let id = shard.connect(ctx, env, &open, out).map_err(|_| Errno::MSGSIZE)?;
                claim.give(shard);
                Ok(Some(id))
            });
            begun.map(|begun| begun.map(|id| (flow, number, id)))
        };
        if flow.lport != 0 {
            return attempt(flow.lport)?.ok_or(Errno::ADDRNOTAVAIL);
        }
        let (words, seconds) = (tuple(&flow).words(), shared.clock.now() / 1_000_000_000);
        let key = |words: &[u64]| table.key.hash(words);
        // A port that was free may be another thread's by now, or is the kernel's.
        for _ in 0..ATTEMPTS {
            let is_free = |lport: u16| is_free(shared, &Flow { lport, ..flow });
            let range = table.cfg.ip_local_port_range;
            let port = lock(&table.walker).pick(&key, &words, seconds, range, is_free);
            match attempt(port.ok_or(Errno::ADDRNOTAVAIL)?) {
                Ok(Some(begun)) => return Ok(begun),
                Ok(None) | Err(Errno::ADDRINUSE) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::ADDRNOTAVAIL)
    }
}

/// Searches for a port of one connect: enough where the kernel has a good part of them.
const ATTEMPTS: u32 = 256;

/// Opens a listener's socket, and its port with devices that share addresses with the kernel.
fn open(shared: &Arc<StackInner>, bind: &Bind) -> io::Result<(TcpInbox, Option<LocalEnd>)> {
    let sockets = &shared.sockets;
    // Ports that the kernel has.
    let mut taken = BTreeSet::new();
    loop {
        let inbox: TcpInbox = sockets.binder().open_beside(bind, &taken).map_err(of_bind)?;
        if !sockets.ports().matter() {
            return Ok((inbox, None));
        }
        let index = inbox.slot().index();
        let port = inbox.slot().slot().key().map_or(0, |(key, _)| key.flow.lport);
        let end = LocalEnd { families: (bind.v4, bind.v6), ..tcp::local_end((bind.local, port)) };
        match sockets.ports().opened(&end) {
            Ok(()) => return Ok((inbox, Some(end))),
            Err(error) => {
                let joined = sockets.binder().close(index);
                closed(shared, index, &joined, Some(inbox));
                match error {
                    Errno::ADDRINUSE if bind.port == 0 => _ = taken.insert(port),
                    error => return Err(errno(error)),
                }
            }
        }
    }
}

/// An end that a connection is about to have is open meanwhile with devices that share addresses with
/// the kernel: its first answer may come before its shard holds the end.
struct Claim<'a> {
    shared: &'a StackInner,
    end: Option<End>,
}

impl<'a> Claim<'a> {
    fn new(shared: &'a StackInner, end: End) -> Result<Self, Errno> {
        let matter = shared.sockets.ports().matter();
        if matter {
            shared.sockets.ports().opened(&tcp::local_end(end))?;
        }
        Ok(Claim { shared, end: matter.then_some(end) })
    }

    /// The shard has a connection with the end, and holds it from now on.
    fn give(&mut self, shard: &mut Shard) {
        if self.end.is_some_and(|end| shard.hold_end(end)) {
            self.end = None;
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.end.iter().for_each(|end| self.shared.sockets.ports().closed(&tcp::local_end(*end)));
    }
}

/// Whether a connection may begin as `flow`: neither is it in use, nor does a listener have its
/// end, which a connection from here to that listener would meet instead.
fn is_free(shared: &Arc<StackInner>, flow: &Flow) -> bool {
    let bound = |local: Addr| Key::bound(protocol::TCP, local, flow.lport);
    let listens = |local: Addr| shared.sockets.sockets.find_exact(&bound(local)).is_some();
    let number = shared.sockets.tcp.shard_of(flow);
    let free = || on_shard(shared, number, |shard, _, env, _| shard.is_free(env, flow, false));
    !listens(flow.local) && !listens(ANY) && free()
}
