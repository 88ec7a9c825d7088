//! The stack that scripts talk to: sockets, a table of connections, a clock, one device.
//!
//! It is the engine's host in its simplest form. Time is virtual: nothing happens between two
//! calls, and [`Stack::run_until`] goes through what is due in order.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use softnet_tcp::conn::{Conn, Cx, Error, Events, PathFloor};
use softnet_tcp::isn::{self, Tuple};
use softnet_tcp::listen::{Accepted, ListenCx, Request, RequestVerdict, Timeout, Verdict};
use softnet_tcp::reset::reset_for;
use softnet_tcp::timewait::{self, TimeWait};
use softnet_tcp::{Config, Counters, Emit, Instant, Segment, Seq};

use crate::epoll::Epoll;
use crate::ip::{self, IcmpKind, Packet, Quoted};
use crate::settings::Settings;
use crate::sock::{Body, Data, Host, Live, Payload, Sock, SockId};

/// The device, and what leaves through it.
pub(crate) struct Net {
    pub(crate) settings: Settings,
    now: Instant,
    out: VecDeque<(Vec<u8>, Instant)>,
    ident: u16,
}

impl Net {
    /// Sends the packets of a segment whose payload `bytes` gives. Returns whether the device took
    /// them.
    pub(crate) fn transmit(
        &mut self,
        tuple: &Tuple,
        emit: &Emit,
        tos: u8,
        depart: impl FnOnce(Instant) -> Instant,
        bytes: impl Fn(Range<u32>) -> Vec<u8>,
    ) -> bool {
        if self.settings.device_is_full() {
            return false;
        }
        let at = depart(self.now);
        if self.settings.whole_segments() {
            self.push(tuple, emit, tos, &bytes(0..emit.len), at);
            return true;
        }
        for (part, range) in ip::cut(emit) {
            self.push(tuple, &part, tos, &bytes(range), at);
        }
        true
    }

    fn push(&mut self, tuple: &Tuple, emit: &Emit, tos: u8, payload: &[u8], at: Instant) {
        self.ident = self.ident.wrapping_add(1);
        let behind = self.out.partition_point(|&(_, other)| other <= at);
        self.out.insert(behind, (ip::build(tuple, emit, payload, tos, self.ident), at));
    }

    /// The next packet that has left by `now`, and when.
    pub(crate) fn take(&mut self, now: Instant) -> Option<(Vec<u8>, Instant)> {
        if self.departure() <= now { self.out.pop_front() } else { None }
    }

    /// When the next packet leaves.
    pub(crate) fn departure(&self) -> Instant {
        self.out.front().map_or(Instant::NEVER, |&(_, at)| at)
    }
}

/// What a descriptor stands for.
pub(crate) enum File {
    Sock { id: SockId, nonblock: bool },
    Epoll(Epoll),
}

/// What the table holds under a connection's numbers.
enum Entry {
    Conn(SockId),
    Request(SockId, Request),
    TimeWait(TimeWait),
}

pub(crate) struct Stack {
    pub(crate) now: Instant,
    pub(crate) cfg: Config,
    pub(crate) counters: Counters,
    pub(crate) net: Net,
    pub(crate) socks: BTreeMap<SockId, Sock>,
    pub(crate) files: BTreeMap<i32, File>,
    table: HashMap<Tuple, Entry>,
    next_id: SockId,
    next_port: u16,
}

/// The hash that numbers are made with. A test wants the same numbers every time.
fn key(words: &[u64]) -> u64 {
    let mut hasher = DefaultHasher::new();
    words.hash(&mut hasher);
    hasher.finish()
}

/// Packet memory of a payload, as Linux counts it for what a tunnel device makes: the block that
/// holds headroom, packet and shared info, and the `skb`.
fn charge_of(len: usize) -> u32 {
    ((len + 40 + 64 + 320).next_power_of_two().max(512) + 256) as u32
}

impl Stack {
    pub(crate) fn new(settings: Settings) -> Stack {
        // Scripts assert Linux's windows.
        let net = Net { settings, now: Instant(0), out: VecDeque::new(), ident: 0 };
        let mut stack = Stack {
            now: Instant(1_000_000_000),
            cfg: Config::default(),
            counters: Counters::default(),
            net,
            socks: BTreeMap::new(),
            files: BTreeMap::new(),
            table: HashMap::new(),
            next_id: 0,
            next_port: 0,
        };
        stack.refresh();
        stack
    }

    /// Reads the settings again, and tells the counters.
    pub(crate) fn refresh(&mut self) {
        self.net.now = self.now;
        self.net.settings.refresh(&mut self.cfg);
        self.net.settings.tell(&self.counters);
    }

    pub(crate) fn add_sock(&mut self, sock: Sock) -> SockId {
        self.next_id += 1;
        self.socks.insert(self.next_id, sock);
        self.next_id
    }

    /// The socket behind a descriptor.
    pub(crate) fn sock_id(&self, fd: i32) -> Result<SockId, i32> {
        match self.files.get(&fd) {
            Some(File::Sock { id, .. }) => Ok(*id),
            Some(_) => Err(libc::ENOTSOCK),
            None => Err(libc::EBADF),
        }
    }

    pub(crate) fn sock(&mut self, id: SockId) -> Result<&mut Sock, i32> {
        self.socks.get_mut(&id).ok_or(libc::EBADF)
    }

    /// Runs `entry` on a connection, and then what has to follow.
    pub(crate) fn enter<R>(
        &mut self,
        id: SockId,
        entry: impl FnOnce(&mut Conn<Payload>, &mut Cx<'_, Host<'_>>) -> R,
    ) -> Option<R> {
        self.net.now = self.now;
        let sock = self.socks.get_mut(&id)?;
        let tos = sock.tos();
        let Body::Live(live) = &mut sock.body else { return None };
        let Live { conn, data, tuple, .. } = &mut **live;
        let cfg = &self.cfg;
        let rate = |conn: &Conn<Payload>| cfg.pacing.then(|| conn.info(cfg).send.pacing_rate);
        let mut host = Host { net: &mut self.net, data, tuple: *tuple, tos, rate: rate(conn) };
        let cx = &mut Cx { now: self.now, cfg: &self.cfg, counters: &mut self.counters, out: &mut host };
        let result = entry(conn, cx);
        cx.out.rate = rate(conn);
        conn.flush(cx);
        self.after(id);
        Some(result)
    }

    /// What a connection reports.
    fn after(&mut self, id: SockId) {
        let Some(live) = self.socks.get_mut(&id).and_then(Sock::live_mut) else { return };
        let events = live.conn.take_events();
        let tuple = live.tuple;
        live.connected |= events.any(Events::CONNECTED);
        live.done |= events.any(Events::PEER_FIN) && !live.conn.send_ended();
        if events.any(Events::CLOSED) {
            match live.data.time_wait.take() {
                Some(time_wait) => drop(self.table.insert(tuple, Entry::TimeWait(time_wait))),
                None if matches!(self.table.get(&tuple), Some(Entry::Conn(of)) if *of == id) => {
                    self.table.remove(&tuple);
                }
                None => {}
            }
        }
        self.wake(id, events);
        if events.any(Events::CLOSED) && self.socks.get(&id).is_some_and(|sock| !sock.held) {
            self.socks.remove(&id);
        }
    }

    /// When time matters next.
    pub(crate) fn deadline(&self) -> Instant {
        let conns = self.socks.values().filter_map(|sock| Some(sock.live()?.conn.next_deadline()));
        let others = self.table.values().map(|entry| match entry {
            Entry::Conn(_) => Instant::NEVER,
            Entry::Request(_, request) => request.deadline(),
            Entry::TimeWait(time_wait) => time_wait.deadline(),
        });
        conns.chain(others).min().unwrap_or(Instant::NEVER)
    }

    /// What is due at `now` happens.
    pub(crate) fn on_time(&mut self) {
        self.net.now = self.now;
        let now = self.now;
        let due: Vec<SockId> = self
            .socks
            .iter()
            .filter(|(_, sock)| sock.live().is_some_and(|live| live.conn.next_deadline() <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.enter(id, |conn, cx| conn.on_time(cx));
        }
        let due: Vec<Tuple> = self
            .table
            .iter()
            .filter(|(_, entry)| match entry {
                Entry::Conn(_) => false,
                Entry::Request(_, request) => request.deadline() <= now,
                Entry::TimeWait(time_wait) => time_wait.deadline() <= now,
            })
            .map(|(tuple, _)| *tuple)
            .collect();
        for tuple in due {
            let Some(Entry::Request(id, mut request)) = self.table.remove(&tuple) else { continue };
            let Some(Sock { body: Body::Listener(listener, _), .. }) = self.socks.get_mut(&id) else {
                continue;
            };
            let mut cx = ListenCx { now, cfg: &self.cfg, counters: &mut self.counters };
            let timeout = listener.request_timeout(&mut cx, &mut request);
            if timeout != Timeout::Gone {
                self.table.insert(tuple, Entry::Request(id, request));
            }
            if let Timeout::Resend(emit) = timeout {
                self.answer(&tuple, &emit, id);
            }
        }
    }

    /// Sends a segment that no connection sends.
    fn answer(&mut self, tuple: &Tuple, emit: &Emit, of: SockId) {
        let tos = self.socks.get(&of).map_or(0, Sock::tos);
        self.net.transmit(tuple, emit, tos, |now| now, |_| Vec::new());
    }

    /// A packet arrives.
    pub(crate) fn packet(&mut self, bytes: &[u8]) {
        self.net.now = self.now;
        match ip::parse(bytes, self.net.settings.gso_size()) {
            Some(Packet::Tcp(tuple, segment, payload)) => self.segment(&tuple, &segment, payload),
            Some(Packet::Icmp(tuple, quoted)) => self.icmp(&tuple, &quoted),
            None => {}
        }
    }

    fn icmp(&mut self, tuple: &Tuple, quoted: &Quoted) {
        let Some(Entry::Conn(id)) = self.table.get(tuple) else { return };
        let (id, seq, v6) = (*id, quoted.seq, tuple.local.is_ipv6());
        let error = match quoted.kind {
            IcmpKind::TooBig(mtu) => {
                let (headers, floor) = if v6 { (60, PathFloor::Ipv6) } else { (40, PathFloor::Ipv4) };
                let path_mss = mtu.saturating_sub(headers).min(u32::from(u16::MAX)) as u16;
                self.enter(id, |conn, cx| conn.path_mss_changed(cx, seq, path_mss, floor));
                return;
            }
            IcmpKind::PortUnreachable => Error::ConnectionRefused,
            IcmpKind::ProtocolUnreachable => Error::Protocol,
            IcmpKind::NetUnreachable => Error::NetworkUnreachable,
            IcmpKind::HostUnreachable => Error::HostUnreachable,
        };
        self.enter(id, |conn, cx| conn.icmp_error(cx, seq, error));
    }

    fn segment(&mut self, tuple: &Tuple, segment: &Segment, payload: Vec<u8>) {
        match self.table.get_mut(tuple) {
            Some(Entry::Conn(id)) => {
                let id = *id;
                self.give_conn(id, segment, payload);
            }
            Some(Entry::TimeWait(time_wait)) => {
                let listener = self
                    .socks
                    .values()
                    .any(|sock| matches!(sock.body, Body::Listener(..)) && is_named(sock, tuple));
                let verdict = time_wait.input(self.now, &self.cfg, &mut self.counters, segment, listener);
                match verdict {
                    timewait::Verdict::Drop => {}
                    timewait::Verdict::Answer(emit) => self.answer(tuple, &emit, 0),
                    timewait::Verdict::Gone(reset) => {
                        self.table.remove(tuple);
                        reset.into_iter().for_each(|emit| self.answer(tuple, &emit, 0));
                    }
                    timewait::Verdict::NewConnection(iss) => {
                        self.table.remove(tuple);
                        self.give_listener(tuple, segment, payload, Some(iss));
                    }
                }
            }
            Some(Entry::Request(id, request)) => {
                let (id, request) = (*id, *request);
                self.give_request(tuple, id, request, segment, payload);
            }
            None => self.give_listener(tuple, segment, payload, None),
        }
    }

    fn give_conn(&mut self, id: SockId, segment: &Segment, bytes: Vec<u8>) {
        let charge = charge_of(bytes.len());
        let handle = (segment.len > 0).then_some(Payload { bytes, charge });
        self.enter(id, |conn, cx| {
            // The drop is counted, and that is all there is to it.
            let _ = conn.input(cx, segment, handle, charge);
        });
    }

    fn give_request(
        &mut self,
        tuple: &Tuple,
        id: SockId,
        mut request: Request,
        segment: &Segment,
        payload: Vec<u8>,
    ) {
        let Some(Sock { body: Body::Listener(listener, _), .. }) = self.socks.get_mut(&id) else {
            return;
        };
        let mut cx = ListenCx { now: self.now, cfg: &self.cfg, counters: &mut self.counters };
        let verdict = listener.request_input(&mut cx, &mut request, segment);
        self.table.insert(*tuple, Entry::Request(id, request));
        match verdict {
            RequestVerdict::Drop(_) => {}
            RequestVerdict::Answer(emit) => self.answer(tuple, &emit, id),
            RequestVerdict::Refuse(reset) => {
                reset.into_iter().for_each(|emit| self.answer(tuple, &emit, id));
            }
            RequestVerdict::Gone(reset, _) => {
                self.table.remove(tuple);
                reset.into_iter().for_each(|emit| self.answer(tuple, &emit, id));
            }
            RequestVerdict::Accept(accepted) => self.accept(tuple, id, &accepted, segment, payload),
        }
    }

    fn give_listener(&mut self, tuple: &Tuple, segment: &Segment, payload: Vec<u8>, iss: Option<Seq>) {
        let path_mss = self.path_mss(tuple);
        let found = self.socks.iter_mut().find_map(|(id, sock)| match is_named(sock, tuple) {
            true => match &mut sock.body {
                Body::Listener(listener, _) => Some((*id, listener)),
                _ => None,
            },
            false => None,
        });
        let Some((id, listener)) = found else {
            reset_for(segment).into_iter().for_each(|emit| self.answer(tuple, &emit, 0));
            return;
        };
        let mut cx = ListenCx { now: self.now, cfg: &self.cfg, counters: &mut self.counters };
        match listener.input(&mut cx, &key, tuple, segment, path_mss, iss) {
            Verdict::Drop(_) => {}
            Verdict::Answer(emit) => self.answer(tuple, &emit, id),
            Verdict::Request(request, emit) => {
                self.table.insert(*tuple, Entry::Request(id, request));
                self.answer(tuple, &emit, id);
            }
            Verdict::Accept(accepted) => self.accept(tuple, id, &accepted, segment, payload),
        }
    }

    /// A handshake is done: a connection begins, and waits to be accepted.
    fn accept(
        &mut self,
        tuple: &Tuple,
        of: SockId,
        accepted: &Accepted,
        segment: &Segment,
        payload: Vec<u8>,
    ) {
        let Some(parent) = self.socks.get(&of) else { return };
        let Body::Listener(listener, _) = &parent.body else { return };
        let mut data = Data::new(accepted.iss);
        let tos = parent.tos();
        let mut host = Host { net: &mut self.net, data: &mut data, tuple: *tuple, tos, rate: None };
        let cx = &mut Cx { now: self.now, cfg: &self.cfg, counters: &mut self.counters, out: &mut host };
        let conn = Conn::accept(cx, &listener.options, accepted);
        let mut sock = Sock::new(parent.v6);
        sock.local = Some(SocketAddr::new(tuple.local, tuple.local_port));
        sock.remote = Some(SocketAddr::new(tuple.remote, tuple.remote_port));
        sock.options = parent.options;
        sock.values = parent.values.clone();
        let live = Live { conn, data, tuple: *tuple, connected: true, told: true, done: false };
        sock.body = Body::Live(Box::new(live));
        let id = self.add_sock(sock);
        self.table.insert(*tuple, Entry::Conn(id));
        self.give_conn(id, segment, payload);
        if let Some(Sock { body: Body::Listener(_, queue), .. }) = self.socks.get_mut(&of) {
            queue.push_back(id);
        }
        self.wake(of, Events::READABLE);
    }

    /// The MTU of the path less the IP header and 20.
    pub(crate) fn path_mss(&self, tuple: &Tuple) -> u16 {
        let headers = if tuple.remote.is_ipv6() { 60 } else { 40 };
        self.net.settings.mtu(tuple.remote).saturating_sub(headers)
    }

    /// Opens a connection from a socket.
    pub(crate) fn open(&mut self, id: SockId, remote: SocketAddr) -> Result<(), i32> {
        let local = self.local_for(id, remote.ip())?;
        let tuple = Tuple {
            local: local.ip(),
            remote: remote.ip(),
            local_port: local.port(),
            remote_port: remote.port(),
        };
        let initial = isn::initial(&key, &tuple, self.now, self.cfg.tcp_timestamps == 1);
        let path_mss = self.path_mss(&tuple);
        let Stack { now, cfg, counters, net, socks, .. } = self;
        net.now = *now;
        let sock = socks.get_mut(&id).ok_or(libc::EBADF)?;
        let mut data = Data::new(initial.seq);
        let tos = sock.tos();
        let mut host = Host { net, data: &mut data, tuple, tos, rate: None };
        let cx = &mut Cx { now: *now, cfg, counters, out: &mut host };
        let conn = Conn::connect(cx, &sock.options, initial, path_mss).map_err(|_| libc::EMSGSIZE)?;
        sock.local = Some(local);
        sock.remote = Some(remote);
        let live = Live { conn, data, tuple, connected: false, told: false, done: false };
        sock.body = Body::Live(Box::new(live));
        self.table.insert(tuple, Entry::Conn(id));
        self.enter(id, |_, _| ());
        Ok(())
    }

    /// The name that a socket connects from.
    fn local_for(&mut self, id: SockId, remote: IpAddr) -> Result<SocketAddr, i32> {
        let bound = self.sock(id)?.local;
        let ip = match bound.map(|name| name.ip()).filter(|ip| !ip.is_unspecified()) {
            Some(ip) => ip,
            None => self.net.settings.local(remote.is_ipv6()),
        };
        let port = match bound.map_or(0, |name| name.port()) {
            0 => self.ephemeral(),
            port => port,
        };
        Ok(SocketAddr::new(ip, port))
    }

    /// A port that no socket has had.
    pub(crate) fn ephemeral(&mut self) -> u16 {
        let [low, high] = self.cfg.ip_local_port_range;
        let range = u32::from(high.saturating_sub(low)) + 1;
        let port = low + (u32::from(self.next_port) % range) as u16;
        self.next_port = self.next_port.wrapping_add(1);
        port
    }

    /// Closes a socket: its descriptor is gone.
    pub(crate) fn close(&mut self, id: SockId) {
        let Some(sock) = self.socks.get_mut(&id) else { return };
        sock.held = false;
        match &mut sock.body {
            Body::Fresh => drop(self.socks.remove(&id)),
            Body::Listener(_, queue) => {
                let children: Vec<SockId> = queue.drain(..).collect();
                self.table.retain(|_, entry| !matches!(entry, Entry::Request(of, _) if *of == id));
                self.socks.remove(&id);
                for child in children {
                    if let Some(sock) = self.socks.get_mut(&child) {
                        sock.held = false;
                    }
                    self.enter(child, |conn, cx| conn.kill(cx));
                }
            }
            Body::Live(live) => {
                let readable = live.data.readable();
                self.enter(id, |conn, cx| conn.close(cx));
                if let Some(live) = self.socks.get_mut(&id).and_then(Sock::live_mut) {
                    live.data.skip(readable);
                }
                let over = self.socks.get(&id).and_then(Sock::live);
                if over.is_some_and(|live| live.conn.state() == softnet_tcp::State::Closed) {
                    self.socks.remove(&id);
                }
            }
        }
    }

    /// Forgets a connection that has ended, so that its socket can be used again.
    pub(crate) fn forget(&mut self, id: SockId) {
        if let Some(sock) = self.socks.get_mut(&id) {
            sock.body = Body::Fresh;
            sock.remote = None;
        }
    }
}

/// Whether a socket is bound to the local end of `tuple`.
fn is_named(sock: &Sock, tuple: &Tuple) -> bool {
    let family = sock.v6 || tuple.local.is_ipv4();
    family
        && sock.local.is_some_and(|name| {
            name.port() == tuple.local_port && (name.ip() == tuple.local || name.ip().is_unspecified())
        })
}
