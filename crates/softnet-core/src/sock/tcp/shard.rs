//! A shard: the connections, requests and TIME-WAIT objects of a part of all flows, and their timers.
//!
//! Packets, calls and timers are three kinds of message to a shard's holder. The runtime keeps each
//! shard behind a lock: a thread that polls tries it, and *leaves* its packets to the holder if that
//! is another; a call waits. So a connection has one owner at a time, accept, close and TIME-WAIT
//! take no lock that all share, and one run of output ends each batch.
//!
//! Invariants: a flow of the table leads to exactly one object; a connection has one node in the
//! wheel, armed no later than its next deadline; when [`finish`](Shard::finish) returns no connection
//! has output to decide on, and each socket's readiness is as its connection says.

use std::collections::HashMap;

use slab::Slab;
use softnet_tcp::conn::{Conn, Cx, Events, Output, State};
use softnet_tcp::listen::{Accepted, ListenCx, Request, RequestVerdict, Timeout, Verdict};
use softnet_tcp::reset::reset_for;
use softnet_tcp::timewait::{self, TimeWait};
use softnet_tcp::{Config, ConnOptions, Counters, DropReason as Why, Emit, Instant, Seq};

use super::super::key::Flow;
use super::super::route::Route;
use super::super::slot::stream;
use super::super::table::{Found, Sockets};
use super::calls::ConnInfo;
use super::listen::{Listeners, tuple};
use super::output::{Effects, Marks, mss_of, route, send};
use super::packet::Packet;
use super::queue::{RecvQueue, SendQueue, TRUESIZE};
use crate::SoftnetData;
use crate::fold::FoldKey;
use crate::ip::pmtu::PathMtus;
use crate::ip::tables::Tables;
use crate::siphash::SipKey;
use crate::skb::{DropReason, FRAME_SIZE, Skb};
use crate::time::{Timer, TimerWheel};

/// What surrounds a shard for the time of one entry.
pub struct Env<'a> {
    /// ns of the stack's clock.
    pub now: u64,
    /// Knobs.
    pub cfg: &'a Config,
    /// Routes.
    pub tables: &'a Tables,
    /// The secret of initial numbers and cookies.
    pub key: &'a SipKey,
    /// Paths that take less than their first link.
    pub paths: &'a PathMtus,
    /// All sockets: listeners are found there, and readiness is written there.
    pub sockets: &'a Sockets,
    /// The NAPI instance that packets came by; 0: none.
    pub napi_id: u32,
    /// Frames that sockets may hold beside what they hold.
    pub room: usize,
    /// The shard's part of `tcp_max_tw_buckets`.
    pub max_time_waits: usize,
}

impl Env<'_> {
    /// The engine's clock.
    pub(super) fn instant(&self) -> Instant {
        Instant(self.now / 1000)
    }

    /// The MSS on the way to the far end of `flow`, whose first link takes `mtu` bytes.
    fn mss(&self, mtu: u16, flow: &Flow) -> u16 {
        mss_of(self.paths.limit(flow.remote).map_or(mtu, |path| path.min(mtu)), flow.remote)
    }

    pub(super) fn hash(&self) -> impl Fn(&[u64]) -> u64 {
        |words| self.key.hash(words)
    }
}

/// A connection's place in its shard, and which of those that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnId {
    /// Place.
    pub index: u32,
    /// The connection's number: unlike that of others that had the place.
    pub serial: u32,
}

/// A received packet as the engine's handle: where its payload begins.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) skb: Skb,
    pub(super) at: usize,
}

/// No slot.
pub(super) const NO_SLOT: u32 = u32::MAX;

/// A connection, and what its host keeps of it.
pub(super) struct Sock {
    pub(super) conn: Conn<Payload>,
    pub(super) flow: Flow,
    pub(super) tx: SendQueue,
    pub(super) rx: RecvQueue,
    timer: Timer,
    /// When the node expires, in ns of the clock; [`u64::MAX`]: it is not armed.
    armed: u64,
    serial: u32,
    /// Where readiness is told; [`NO_SLOT`] until the application has it.
    pub(super) slot: u32,
    pub(super) napi_id: u32,
    /// Frames in `rx`, in `tx`, beyond holes, and lent to the application.
    frames: usize,
    ooo: usize,
    pub(super) lent: usize,
    touched: bool,
    /// The application has let go.
    pub(super) orphan: bool,
    /// The table has it.
    listed: bool,
    /// A write found no memory: writable again when something was acknowledged.
    pub(super) short: bool,
    pub(super) marks: Marks,
}

struct Asked {
    request: Request,
    flow: Flow,
    timer: Timer,
    /// Slot and generation of the listener.
    listener: (u32, u32),
}

struct Waiting {
    time_wait: TimeWait,
    flow: Flow,
    timer: Timer,
}

/// What a flow leads to, and what a timer is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    Conn(u32),
    Request(u32),
    TimeWait(u32),
}

/// A flow as a key of the table.
#[derive(PartialEq, Eq)]
struct FlowKey(Flow);

impl std::hash::Hash for FlowKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let Flow { local, remote, .. } = self.0;
        state.write_u128(remote);
        state.write_u128(local);
        state.write_u64(self.0.ports().into());
    }
}

/// See the module.
pub struct Shard {
    flows: HashMap<FlowKey, Object, FoldKey>,
    // Boxed: a slab moves what it holds when it grows, and connections are large.
    conns: Slab<Box<Sock>>,
    requests: Slab<Asked>,
    time_waits: Slab<Waiting>,
    wheel: TimerWheel<Object>,
    touched: Vec<u32>,
    serial: u32,
    frames: usize,
    /// Resets that may be sent in the present second.
    resets: (u64, u32),
    /// What its connections counted.
    pub counters: Counters,
}

/// Resets to strangers that a shard sends in a second (`icmp_msgs_per_sec`, of all shards).
const RESETS: u32 = 1000;

/// The engine's output, into packets and queues.
pub(super) struct Host<'a> {
    ctx: &'a mut SoftnetData,
    env: &'a Env<'a>,
    out: &'a mut Effects,
    flow: Flow,
    marks: Marks,
    tx: &'a mut SendQueue,
    rx: &'a mut RecvQueue,
    ooo: &'a mut usize,
    route: Option<Route>,
    pub(super) time_wait: Option<TimeWait>,
}

impl Output for Host<'_> {
    type Handle = Payload;

    fn send(&mut self, emit: &Emit) -> bool {
        if self.route.is_none() {
            self.route = route(self.env.tables, &self.flow).ok();
        }
        let Some(way) = &self.route else { return false };
        send(self.ctx, way, (&self.flow, self.marks), emit, Some(self.tx), self.out)
    }

    fn deliver(&mut self, Payload { skb, at }: Payload, front: u32, len: u32) {
        *self.ooo -= skb.frame_count();
        self.rx.push(self.ctx, skb, at + front as usize, len as usize);
    }

    fn discard(&mut self, Payload { skb, .. }: Payload, why: Why) {
        *self.ooo -= skb.frame_count();
        self.ctx.stats().sk_taken.add(1);
        self.ctx.free(skb, reason(why));
    }

    fn acked(&mut self, bytes: u32) {
        self.tx.acked(self.ctx, bytes);
    }

    fn time_wait(&mut self, time_wait: TimeWait) {
        self.time_wait = Some(time_wait);
    }
}

impl Shard {
    /// An empty one, whose table is keyed by `key`.
    pub fn new(key: FoldKey) -> Self {
        Shard {
            flows: HashMap::with_hasher(key),
            conns: Slab::new(),
            requests: Slab::new(),
            time_waits: Slab::new(),
            wheel: TimerWheel::new(),
            touched: Vec::new(),
            serial: 0,
            frames: 0,
            resets: (0, 0),
            counters: Counters::default(),
        }
    }

    /// Frames that its connections hold.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Connections, requests and TIME-WAIT objects.
    pub fn len(&self) -> [usize; 3] {
        [self.conns.len(), self.requests.len(), self.time_waits.len()]
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == [0; 3]
    }

    /// When [`on_time`](Self::on_time) is to be called, in ns of the clock. It may be before the first
    /// deadline, once: each packet and each call asks, and must not search.
    pub fn next_deadline(&self) -> u64 {
        self.wheel.quiet_until().unwrap_or(u64::MAX)
    }

    /// Whether a flow is in use, by a connection, a request, or one that is remembered.
    pub fn contains(&self, flow: &Flow) -> bool {
        self.flows.contains_key(&FlowKey(*flow))
    }

    pub(super) fn sock(&self, id: ConnId) -> Option<&Sock> {
        self.conns.get(id.index as usize).map(|sock| &**sock).filter(|sock| sock.serial == id.serial)
    }

    /// The connection of a flow.
    pub(super) fn conn_of(&self, flow: &Flow) -> Option<u32> {
        match self.flows.get(&FlowKey(*flow)) {
            Some(Object::Conn(index)) => Some(*index),
            _ => None,
        }
    }

    pub(super) fn sock_mut(&mut self, id: ConnId) -> Option<&mut Sock> {
        let sock = self.conns.get_mut(id.index as usize).map(|sock| &mut **sock);
        sock.filter(|sock| sock.serial == id.serial)
    }

    pub(super) fn serial_of(&self, index: u32) -> Option<u32> {
        Some(self.conns.get(index as usize)?.serial)
    }

    pub(super) fn socks(&self) -> impl Iterator<Item = &Sock> {
        self.conns.iter().map(|(_, sock)| &**sock)
    }

    /// Runs `f` on a connection with its context; afterwards [`finish`](Self::finish) sees to it.
    pub(super) fn enter<R>(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        out: &mut Effects,
        index: u32,
        f: impl FnOnce(&mut Conn<Payload>, &mut Cx<'_, Host<'_>>) -> R,
    ) -> Option<R> {
        let sock = self.conns.get_mut(index as usize)?;
        if !std::mem::replace(&mut sock.touched, true) {
            self.touched.push(index);
        }
        let Sock { conn, flow, tx, rx, ooo, marks, .. } = &mut **sock;
        let mut host =
            Host { ctx, env, out, flow: *flow, marks: *marks, tx, rx, ooo, route: None, time_wait: None };
        let mut cx = Cx { now: env.instant(), cfg: env.cfg, counters: &mut self.counters, out: &mut host };
        let result = f(conn, &mut cx);
        let (time_wait, flow) = (host.time_wait, *flow);
        if let Some(time_wait) = time_wait {
            self.remember(env, flow, time_wait);
        }
        Some(result)
    }

    /// A packet that was [read](super::packet::read).
    pub fn input<L: Listeners>(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        listeners: &mut L,
        (packet, skb): (Packet, Skb),
        out: &mut Effects,
    ) {
        match self.flows.get(&FlowKey(packet.flow)) {
            Some(Object::Conn(index)) => {
                let index = *index;
                if self.unlist_closed(index) {
                    return self.listener_input(ctx, env, listeners, (packet, skb), None, out);
                }
                self.conn_input(ctx, env, index, (packet, skb), out);
            }
            Some(Object::TimeWait(index)) => {
                let index = *index;
                self.time_wait_input(ctx, env, listeners, index, (packet, skb), out);
            }
            Some(Object::Request(index)) => {
                let index = *index;
                self.request_input(ctx, env, listeners, index, (packet, skb), out);
            }
            None => self.listener_input(ctx, env, listeners, (packet, skb), None, out),
        }
    }

    /// Takes a connection that has ended in this batch out of the table. Returns whether it has.
    fn unlist_closed(&mut self, index: u32) -> bool {
        let Some(sock) = self.conns.get_mut(index as usize) else { return true };
        let closed = sock.conn.state() == State::Closed;
        if closed && std::mem::take(&mut sock.listed) {
            self.flows.remove(&FlowKey(sock.flow));
        }
        closed
    }

    fn conn_input(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        index: u32,
        (packet, skb): (Packet, Skb),
        out: &mut Effects,
    ) {
        let Packet { segment, payload_at, .. } = packet;
        let Some(sock) = self.conns.get_mut(index as usize) else {
            return ctx.free(skb, DropReason::SocketClose);
        };
        if env.napi_id != 0 {
            sock.napi_id = env.napi_id;
        }
        let frames = skb.frame_count();
        let charge = frames as u32 * TRUESIZE;
        if segment.len == 0 {
            let taken = self.enter(ctx, env, out, index, |conn, cx| conn.input(cx, &segment, None, charge));
            return match taken {
                Some(Err(why)) => ctx.free(skb, reason(why)),
                _ => {
                    ctx.delivered(1);
                    ctx.free_skb(skb);
                }
            };
        }
        // All sockets together hold as much as they may: one that holds nothing gets on all the same.
        if env.room < frames && !sock.rx.is_empty() {
            return ctx.free(skb, DropReason::ProtoMem);
        }
        sock.ooo += frames;
        ctx.stats().sk_queued.add(1);
        let handle = Payload { skb, at: payload_at };
        // What is refused was discarded, and counted, already.
        let _ = self.enter(ctx, env, out, index, |conn, cx| conn.input(cx, &segment, Some(handle), charge));
    }

    fn time_wait_input<L: Listeners>(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        listeners: &mut L,
        index: u32,
        (packet, skb): (Packet, Skb),
        out: &mut Effects,
    ) {
        let Some(waiting) = self.time_waits.get_mut(index as usize) else {
            return ctx.free(skb, DropReason::SocketClose);
        };
        let has_listener = matches!(env.sockets.lookup(&packet.flow, env.napi_id), Found::Socket(_));
        let verdict = waiting.time_wait.input(
            env.instant(),
            env.cfg,
            &mut self.counters,
            &packet.segment,
            has_listener,
        );
        // It may have begun anew.
        let deadline = nanos(waiting.time_wait.deadline());
        self.wheel.arm(&waiting.timer, env.now, deadline);
        match verdict {
            timewait::Verdict::Drop => ctx.free(skb, DropReason::TcpTimeWait),
            timewait::Verdict::Answer(emit) => {
                self.answer(ctx, env, &packet.flow, &emit, out);
                ctx.free(skb, DropReason::TcpTimeWait);
            }
            timewait::Verdict::Gone(emit) => {
                self.forget_time_wait(index);
                emit.into_iter().for_each(|emit| self.answer(ctx, env, &packet.flow, &emit, out));
                ctx.free(skb, DropReason::TcpTimeWait);
            }
            timewait::Verdict::NewConnection(iss) => {
                self.forget_time_wait(index);
                self.listener_input(ctx, env, listeners, (packet, skb), Some(iss), out);
            }
        }
    }

    fn request_input<L: Listeners>(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        listeners: &mut L,
        index: u32,
        (packet, skb): (Packet, Skb),
        out: &mut Effects,
    ) {
        let Some(asked) = self.requests.get_mut(index as usize) else {
            return ctx.free(skb, DropReason::SocketClose);
        };
        let (of, flow) = (asked.listener, asked.flow);
        let Shard { counters, .. } = self;
        let verdict = listeners.with(of, |listener| {
            let mut cx = ListenCx { now: env.instant(), cfg: env.cfg, counters };
            let options = listener.engine.options;
            (listener.engine.request_input(&mut cx, &mut asked.request, &packet.segment), options)
        });
        let Some((verdict, options)) = verdict else {
            // The listener was closed.
            self.forget_request(index);
            return self.listener_input(ctx, env, listeners, (packet, skb), None, out);
        };
        match verdict {
            RequestVerdict::Drop(why) => ctx.free(skb, reason(why)),
            RequestVerdict::Answer(emit) => {
                self.answer(ctx, env, &flow, &emit, out);
                ctx.free(skb, DropReason::TcpRequest);
            }
            RequestVerdict::Refuse(emit) => {
                emit.into_iter().for_each(|emit| self.answer(ctx, env, &flow, &emit, out));
                ctx.free(skb, DropReason::TcpRequest);
            }
            RequestVerdict::Gone(emit, why) => {
                self.forget_request(index);
                emit.into_iter().for_each(|emit| self.answer(ctx, env, &flow, &emit, out));
                ctx.free(skb, reason(why));
            }
            RequestVerdict::Accept(accepted) => {
                self.forget_request(index);
                self.accept(ctx, env, listeners, (of, &options, &accepted), (packet, skb), out);
            }
        }
    }

    /// A segment of a flow that the table does not have.
    fn listener_input<L: Listeners>(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        listeners: &mut L,
        (packet, skb): (Packet, Skb),
        initial: Option<Seq>,
        out: &mut Effects,
    ) {
        let flow = packet.flow;
        let of = match env.sockets.lookup(&flow, env.napi_id) {
            Found::Socket(hit) => Some((hit.slot, hit.generation)),
            Found::None => None,
            // The sender repeats it.
            Found::Contended => return ctx.free(skb, DropReason::SocketClose),
        };
        let mss = route(env.tables, &flow).map_or(536, |way| env.mss(way.mtu, &flow));
        let Shard { counters, .. } = self;
        let verdict = of.and_then(|of| {
            listeners.with(of, |listener| {
                let mut cx = ListenCx { now: env.instant(), cfg: env.cfg, counters };
                let options = listener.engine.options;
                let (key, tuple) = (env.hash(), tuple(&flow));
                let verdict = listener.engine.input(&mut cx, &key, &tuple, &packet.segment, mss, initial);
                (of, options, verdict)
            })
        });
        let Some((of, options, verdict)) = verdict else {
            return self.refuse(ctx, env, &packet, skb, out);
        };
        match verdict {
            Verdict::Drop(why) => ctx.free(skb, reason(why)),
            Verdict::Answer(emit) => {
                self.answer(ctx, env, &flow, &emit, out);
                ctx.free(skb, DropReason::TcpRequest);
            }
            Verdict::Request(request, emit) => {
                ctx.delivered(1);
                ctx.free_skb(skb);
                self.ask(env, flow, request, of);
                self.answer(ctx, env, &flow, &emit, out);
            }
            Verdict::Accept(accepted) => {
                self.accept(ctx, env, listeners, (of, &options, &accepted), (packet, skb), out);
            }
        }
    }

    fn ask(&mut self, env: &Env<'_>, flow: Flow, request: Request, listener: (u32, u32)) {
        let entry = self.requests.vacant_entry();
        let object = Object::Request(entry.key() as u32);
        let timer = self.wheel.add(object);
        self.wheel.arm(&timer, env.now, nanos(request.deadline()));
        entry.insert(Asked { request, flow, timer, listener });
        self.flows.insert(FlowKey(flow), object);
    }

    /// A handshake is done: there is a connection, which gets the segment that ended it.
    fn accept<L: Listeners>(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        listeners: &mut L,
        (of, options, accepted): ((u32, u32), &ConnOptions, &Accepted),
        (packet, skb): (Packet, Skb),
        out: &mut Effects,
    ) {
        let flow = packet.flow;
        let index = self.insert(ctx, env, flow, accepted.iss + 1, Marks::default(), out, |cx| {
            Conn::accept(cx, options, accepted)
        });
        self.conn_input(ctx, env, index, (packet, skb), out);
        let Some(sock) = self.conns.get(index as usize) else { return };
        let id = ConnId { index, serial: sock.serial };
        match listeners.with(of, |listener| listener.push(id, flow)) {
            Some(()) => out.arrived.push(of.0),
            None => {
                self.enter(ctx, env, out, index, |conn, cx| conn.kill(cx));
                self.let_go(index);
            }
        }
    }

    /// Adds a connection, which `make` makes, whose first byte has number `first`.
    #[expect(clippy::too_many_arguments, reason = "all that a connection begins with")]
    pub(super) fn insert(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        flow: Flow,
        first: Seq,
        marks: Marks,
        out: &mut Effects,
        make: impl FnOnce(&mut Cx<'_, Host<'_>>) -> Conn<Payload>,
    ) -> u32 {
        let (mut tx, mut rx, mut ooo) = (SendQueue::new(first), RecvQueue::default(), 0);
        let mut host = Host {
            ctx,
            env,
            out,
            flow,
            marks,
            tx: &mut tx,
            rx: &mut rx,
            ooo: &mut ooo,
            route: None,
            time_wait: None,
        };
        let conn =
            make(&mut Cx { now: env.instant(), cfg: env.cfg, counters: &mut self.counters, out: &mut host });
        self.serial = self.serial.wrapping_add(1);
        let entry = self.conns.vacant_entry();
        let index = entry.key() as u32;
        let sock = Sock {
            conn,
            flow,
            tx,
            rx,
            timer: self.wheel.add(Object::Conn(index)),
            armed: u64::MAX,
            serial: self.serial,
            slot: NO_SLOT,
            napi_id: env.napi_id,
            frames: 0,
            ooo,
            lent: 0,
            touched: true,
            orphan: false,
            listed: true,
            short: false,
            marks,
        };
        entry.insert(Box::new(sock));
        self.touched.push(index);
        self.flows.insert(FlowKey(flow), Object::Conn(index));
        index
    }

    /// The application has the connection: its readiness is told in this slot.
    pub fn attach(&mut self, id: ConnId, slot: u32) -> bool {
        let Some(sock) = self.conns.get_mut(id.index as usize).filter(|sock| sock.serial == id.serial) else {
            return false;
        };
        sock.slot = slot;
        if !std::mem::replace(&mut sock.touched, true) {
            self.touched.push(id.index);
        }
        true
    }

    /// The application, or a listener, has let go of the connection.
    pub(super) fn let_go(&mut self, index: u32) {
        if let Some(sock) = self.conns.get_mut(index as usize) {
            (sock.orphan, sock.slot) = (true, NO_SLOT);
            if !std::mem::replace(&mut sock.touched, true) {
                self.touched.push(index);
            }
        }
    }

    /// For an application that has let go: what it had not read is not needed.
    pub(super) fn drop_unread(&mut self, ctx: &mut SoftnetData, index: u32) {
        if let Some(sock) = self.conns.get_mut(index as usize) {
            sock.rx.clear(ctx);
        }
    }

    /// Queues as much of `data` as there is memory for.
    pub(super) fn queue(&mut self, ctx: &mut SoftnetData, env: &Env<'_>, index: u32, data: &[u8]) -> usize {
        let Some(sock) = self.conns.get_mut(index as usize) else { return 0 };
        // All sockets together hold as much as they may: one that has nothing queued gets on.
        let most = if env.room > sock.tx.frames() || sock.tx.len() == 0 {
            data.len().min(env.room.max(1).saturating_mul(FRAME_SIZE))
        } else {
            0
        };
        let queued = sock.tx.push(ctx, &data[..most]);
        sock.short = queued == 0 && !data.is_empty() && sock.tx.frames() > 0;
        queued
    }

    /// Copies received bytes to `to`. Returns how many, and the memory that went back.
    pub(super) fn take(&mut self, ctx: &mut SoftnetData, index: u32, to: &mut [u8]) -> (usize, u32) {
        self.conns.get_mut(index as usize).map_or((0, 0), |sock| sock.rx.read(ctx, to))
    }

    /// A segment that nothing is there for is answered by a reset, at a bounded rate.
    fn refuse(&mut self, ctx: &mut SoftnetData, env: &Env<'_>, packet: &Packet, skb: Skb, out: &mut Effects) {
        self.counters.in_segs += u64::from(packet.segment.segs);
        let second = env.now / 1_000_000_000;
        if self.resets.0 != second {
            self.resets = (second, 0);
        }
        if self.resets.1 < RESETS
            && let Some(emit) = reset_for(&packet.segment)
        {
            self.resets.1 += 1;
            self.answer(ctx, env, &packet.flow, &emit, out);
        }
        ctx.free(skb, DropReason::IpNoProto);
    }

    /// Sends a segment without payload that is of no connection.
    fn answer(&mut self, ctx: &mut SoftnetData, env: &Env<'_>, flow: &Flow, emit: &Emit, out: &mut Effects) {
        self.counters.out_segs += 1;
        if let Ok(way) = route(env.tables, flow) {
            send(ctx, &way, (flow, Marks::default()), emit, None, out);
        }
    }

    fn remember(&mut self, env: &Env<'_>, flow: Flow, time_wait: TimeWait) {
        if self.time_waits.len() >= env.max_time_waits {
            return;
        }
        let entry = self.time_waits.vacant_entry();
        let object = Object::TimeWait(entry.key() as u32);
        let timer = self.wheel.add(object);
        self.wheel.arm(&timer, env.now, nanos(time_wait.deadline()));
        entry.insert(Waiting { time_wait, flow, timer });
        if let Some(Object::Conn(index)) = self.flows.insert(FlowKey(flow), object)
            && let Some(sock) = self.conns.get_mut(index as usize)
        {
            sock.listed = false;
        }
    }

    fn forget_time_wait(&mut self, index: u32) {
        if let Some(Waiting { flow, timer, .. }) = self.time_waits.try_remove(index as usize) {
            self.wheel.remove(timer);
            self.flows.remove(&FlowKey(flow));
        }
    }

    fn forget_request(&mut self, index: u32) {
        if let Some(Asked { flow, timer, .. }) = self.requests.try_remove(index as usize) {
            self.wheel.remove(timer);
            self.flows.remove(&FlowKey(flow));
        }
    }

    /// Lets everything happen that is due, up to `budget` objects. Returns whether that was all.
    pub fn on_time<L: Listeners>(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        listeners: &mut L,
        budget: usize,
        out: &mut Effects,
    ) -> bool {
        for _ in 0..budget {
            match self.wheel.expire(env.now) {
                None => return true,
                Some(Object::Conn(index)) => {
                    if let Some(sock) = self.conns.get_mut(index as usize) {
                        sock.armed = u64::MAX;
                    }
                    self.enter(ctx, env, out, index, |conn, cx| conn.on_time(cx));
                }
                Some(Object::Request(index)) => self.request_due(ctx, env, listeners, index, out),
                Some(Object::TimeWait(index)) => self.forget_time_wait(index),
            }
        }
        false
    }

    fn request_due<L: Listeners>(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        listeners: &mut L,
        index: u32,
        out: &mut Effects,
    ) {
        let Some(asked) = self.requests.get_mut(index as usize) else { return };
        let (of, flow) = (asked.listener, asked.flow);
        let Shard { counters, .. } = self;
        let timeout = listeners.with(of, |listener| {
            let mut cx = ListenCx { now: env.instant(), cfg: env.cfg, counters };
            listener.engine.request_timeout(&mut cx, &mut asked.request)
        });
        let deadline = nanos(asked.request.deadline());
        match timeout {
            Some(Timeout::Gone) | None => return self.forget_request(index),
            Some(Timeout::Resend(emit)) => {
                self.answer(ctx, env, &flow, &emit, out);
            }
            Some(Timeout::Wait) => {}
        }
        if let Some(asked) = self.requests.get(index as usize) {
            self.wheel.arm(&asked.timer, env.now, deadline);
        }
    }

    /// The end of a batch: what connections owe leaves, timers are armed, readiness is told.
    pub fn finish(&mut self, ctx: &mut SoftnetData, env: &Env<'_>, out: &mut Effects) {
        let mut at = 0;
        while let Some(&index) = self.touched.get(at) {
            at += 1;
            let saved = self.conns.get_mut(index as usize).map_or(0, |sock| sock.rx.saved());
            self.enter(ctx, env, out, index, |conn, cx| {
                if saved > 0 {
                    conn.read(cx, 0, saved);
                }
                conn.flush(cx);
            });
            self.settle(ctx, env, index, out);
        }
        self.touched.clear();
    }

    fn settle(&mut self, ctx: &mut SoftnetData, env: &Env<'_>, index: u32, out: &mut Effects) {
        let Some(sock) = self.conns.get_mut(index as usize) else { return };
        sock.touched = false;
        let events = sock.conn.take_events();
        sock.short &= !events.any(Events::WRITABLE) && sock.tx.frames() > 0;
        let closed = sock.conn.state() == State::Closed;
        if closed {
            self.wheel.cancel(&sock.timer);
            sock.armed = u64::MAX;
            sock.tx.clear(ctx);
            if std::mem::take(&mut sock.listed) {
                self.flows.remove(&FlowKey(sock.flow));
            }
        } else {
            let due = nanos(sock.conn.next_deadline());
            if due < sock.armed {
                self.wheel.arm(&sock.timer, env.now, due);
                sock.armed = due;
            }
        }
        let frames = sock.tx.frames() + sock.rx.frames() + sock.ooo + sock.lent;
        self.frames = self.frames + frames - std::mem::replace(&mut sock.frames, frames);
        if sock.slot != NO_SLOT {
            if let Some(slot) = env.sockets.slot(sock.slot) {
                slot.set_napi_id(sock.napi_id);
                let bits = ready(&sock.conn, env.cfg);
                let short = if sock.short { stream::WRITABLE } else { 0 };
                let more = slot.set_stream(bits & !short);
                if more || tells_again(events, &sock.conn) {
                    out.wake.push(sock.slot);
                }
            }
        } else if closed && sock.orphan {
            let mut sock = self.conns.remove(index as usize);
            self.frames -= sock.frames;
            sock.rx.clear(ctx);
            self.wheel.remove(sock.timer);
        }
    }

    /// Ends everything without a word to peers, as the stack stops.
    pub fn clear(&mut self, ctx: &mut SoftnetData, env: &Env<'_>) {
        // What the engine wants sent is not: the devices are gone.
        let mut out = Effects::default();
        let all: Vec<u32> = self.conns.iter().map(|(index, _)| index as u32).collect();
        for index in all {
            self.enter(ctx, env, &mut out, index, |conn, cx| conn.abort(cx, None));
            if let Some(sock) = self.conns.get_mut(index as usize) {
                sock.rx.clear(ctx);
            }
            self.settle(ctx, env, index, &mut out);
        }
        self.touched.clear();
        while let Some(skb) = out.send.pop_front() {
            ctx.free_skb(skb);
        }
        // These were counted as they were made.
        for list in [&mut out.unresolved, &mut out.local] {
            while let Some(skb) = list.pop_front() {
                ctx.free(skb, DropReason::Shutdown);
            }
        }
    }
}

/// What a poller is told of a connection, as bits of [`Slot`](super::super::Slot)'s readiness (Linux's
/// `tcp_poll`).
fn ready(conn: &Conn<Payload>, cfg: &Config) -> u32 {
    use stream::*;
    let (rx_ended, tx_ended) = (conn.receive_ended(), conn.send_ended());
    // Of a handshake only its end is told.
    let (shaking, closed) = match conn.state() {
        State::SynSent | State::SynReceived => (true, false),
        state => (false, state == State::Closed),
    };
    let bit = |on: bool, bit: u32| if on { bit } else { 0 };
    bit(rx_ended || !shaking && conn.is_readable(), READABLE)
        | bit(!shaking && conn.is_writable(cfg), WRITABLE)
        | bit(rx_ended, PEER_CLOSED)
        | bit(closed || rx_ended && tx_ended, HUNG_UP)
        | bit(conn.error().is_some(), ERROR)
}

/// Whether waiters are to be woken though no bit of readiness was set: for each arrival of data, as
/// edge-triggered waiting wants it, and for what happens once. Not for room, of which those learn
/// that found none.
fn tells_again(events: Events, conn: &Conn<Payload>) -> bool {
    let once = Events::CONNECTED.0 | Events::PEER_FIN.0 | Events::ERROR.0 | Events::CLOSED.0;
    events.any(Events(once)) || events.any(Events::READABLE) && conn.is_readable()
}

/// ns of the clock.
pub(super) fn nanos(at: Instant) -> u64 {
    if at.is_armed() { at.0.saturating_mul(1000) } else { u64::MAX }
}

/// The drop reason under which the stack counts what the engine refuses.
pub(super) fn reason(why: Why) -> DropReason {
    match why {
        Why::TcpFlags | Why::TcpInvalidSyn => DropReason::TcpFlags,
        Why::TcpOldSequence | Why::TcpOldData | Why::TcpOfoMerge => DropReason::TcpOldData,
        Why::TcpInvalidSequence | Why::TcpInvalidEndSequence | Why::TcpOverwindow => {
            DropReason::TcpOverwindow
        }
        Why::TcpZeroWindow => DropReason::TcpZeroWindow,
        Why::TcpRfc7323Paws | Why::TcpRfc7323PawsAck => DropReason::TcpPaws,
        Why::TcpReset => DropReason::TcpReset,
        Why::TcpOldAck | Why::TcpTooOldAck | Why::TcpNothingNew => DropReason::TcpOldAck,
        Why::TcpAckUnsentData | Why::TcpInvalidAckSequence => DropReason::TcpInvalidAck,
        Why::ProtoMem => DropReason::ProtoMem,
        Why::TcpOfoQueuePrune => DropReason::TcpOfoQueuePrune,
        Why::TcpAbortOnData => DropReason::TcpAbortOnData,
        Why::TcpClose => DropReason::SocketClose,
        Why::TcpListenOverflow => DropReason::TcpListenOverflow,
        Why::TcpReqQFullDrop => DropReason::TcpReqQFull,
        Why::TcpDeferAccept => DropReason::TcpRequest,
        Why::NoSocket => DropReason::IpNoProto,
    }
}

impl Sock {
    /// The number of the first byte that is not acknowledged.
    #[cfg(all(test, not(feature = "loom")))]
    pub(super) fn tx_base(&self) -> Seq {
        self.tx.base()
    }

    pub(super) fn info(&self, env: &Env<'_>) -> ConnInfo {
        ConnInfo {
            flow: self.flow,
            state: self.conn.state(),
            recv_q: self.conn.unread(),
            send_q: self.conn.unacked(),
            info: self.conn.info(env.cfg),
            slot: (self.slot != NO_SLOT).then_some(self.slot),
            napi_id: self.napi_id,
        }
    }
}
