//! Packets in: to the connection, the request, the TIME-WAIT object or the listener of their flow.
//!
//! Called by the holder of the flow's shard. Invariant: a packet ends delivered, in its connection's
//! queues, or freed with its reason.

use softnet_tcp::conn::{Conn, State};
use softnet_tcp::listen::{Accepted, ListenCx, Request, RequestVerdict, Verdict};
use softnet_tcp::reset::reset_for;
use softnet_tcp::{ConnOptions, Emit, Seq, timewait};

use super::super::key::{Flow, is_v4};
use super::super::route::Route;
use super::super::scope::unscoped;
use super::super::table::Found;
use super::env::Env;
use super::host::{nanos, reason};
use super::listen::{Listeners, tuple};
use super::output::{Effects, Marks, route, send};
use super::packet::Packet;
use super::queue::TRUESIZE;
use super::shard::{Asked, Object, Payload, Shard};
use crate::SoftnetData;
use crate::skb::{DropReason, Skb, prefetch_whole};

/// Resets to strangers that a shard sends in a second (`icmp_msgs_per_sec`, of all shards).
const RESETS: u32 = 1000;

/// Whether a flow is to an address that several hosts have: a reset from there would end what another
/// of them has.
fn is_anycast(env: &Env<'_>, flow: &Flow) -> bool {
    let local = std::net::Ipv6Addr::from_bits(unscoped(flow.local));
    let mut ifaces = env.tables.ifaces.iter().flatten();
    !is_v4(flow.local) && ifaces.any(|iface| iface.is_anycast6(local) && !iface.owns6(local))
}

impl Shard {
    /// Starts to load what [`input`](Self::input) will look at for a packet of this flow. With many
    /// connections, each of which is seldom asked, that is in no cache; of several flows it is loaded at
    /// the same time.
    pub fn foresee(&self, flow: &Flow) {
        // Whether it is this flow's, or another's with its hash, `input` sees.
        if let Some(Object::Conn(index)) = self.flows.get(flow, |_| true)
            && let Some(sock) = self.conns.get(index as usize)
        {
            prefetch_whole(&**sock);
        }
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
        match self.find(&packet.flow) {
            Some(Object::Conn(index)) if !self.unlist_closed(index) => {
                self.conn_input(ctx, env, index, (packet, skb), out);
            }
            Some(Object::TimeWait(index)) => {
                self.time_wait_input(ctx, env, listeners, index, (packet, skb), out);
            }
            Some(Object::Request(index)) => {
                self.request_input(ctx, env, listeners, index, (packet, skb), out);
            }
            Some(Object::Conn(_)) | None => {
                self.listener_input(ctx, env, listeners, (packet, skb), None, out);
            }
        }
    }

    /// Takes a connection that has ended out of the table. Returns whether it has.
    pub(super) fn unlist_closed(&mut self, index: u32) -> bool {
        let Some(sock) = self.conns.get_mut(index as usize) else { return true };
        let closed = sock.conn.state() == State::Closed;
        if closed && std::mem::take(&mut sock.listed) {
            self.ends.remove(&sock.flow);
            self.flows.remove(&sock.flow, Object::Conn(index));
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
        // The end of the batch looks at them.
        env.sockets.slot(sock.slot).into_iter().for_each(prefetch_whole);
        self.wheel.prefetch(&sock.timer);
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
        sock.ooo += frames as u32;
        self.arriving = frames;
        ctx.stats().sk_queued.add(1);
        let handle = Payload { skb, at: payload_at };
        // The engine asks whether there is memory, when it has seen what the segment acknowledges. What is refused was
        // discarded, and counted, already.
        let _ = self.enter(ctx, env, out, index, |conn, cx| conn.input(cx, &segment, Some(handle), charge));
        self.arriving = 0;
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
        let Shard { counters, .. } = self;
        // Looked for once: of the work for a SYN of a flood it is a good part.
        let way = of.and_then(|_| route(env.tables, &flow).ok());
        let verdict = of.and_then(|of| {
            let mss = way.as_ref().map_or(536, |way| env.mss(way.mtu, &flow));
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
                self.answer_by(ctx, way.as_ref(), &flow, &emit, out);
                ctx.free(skb, DropReason::TcpRequest);
            }
            Verdict::Request(request, emit) => {
                ctx.delivered(1);
                ctx.free_skb(skb);
                self.ask(env, flow, request, of);
                self.answer_by(ctx, way.as_ref(), &flow, &emit, out);
            }
            Verdict::Accept(accepted) => {
                self.accept(ctx, env, listeners, (of, &options, &accepted), (packet, skb), out);
            }
        }
    }

    fn ask(&mut self, env: &Env<'_>, flow: Flow, request: Request, listener: (u32, u32)) {
        let entry = self.requests.vacant_entry();
        let object = Object::Request(entry.key() as u32);
        let timer = self.wheel.add(object.into());
        self.wheel.arm(&timer, env.now, nanos(request.deadline()));
        entry.insert(Asked { request, flow, timer, listener });
        self.flows.insert(&flow, object);
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
        let id = self.insert(ctx, env, flow, accepted.iss + 1, Marks::default(), out, |cx| {
            Conn::accept(cx, options, accepted)
        });
        self.conn_input(ctx, env, id.index, (packet, skb), out);
        match listeners.with(of, |listener| listener.push(id, flow)) {
            Some(()) => {
                // A thread that waits for the listener polls what brings it connections (Linux's
                // `sk_mark_napi_id`). Not for each SYN: those of a flood are no event of it.
                if env.napi_id != 0
                    && let Some(slot) = env.sockets.slot(of.0)
                {
                    slot.set_napi_id(env.napi_id);
                }
                out.arrived.push(of.0);
            }
            None => {
                self.enter(ctx, env, out, id.index, |conn, cx| conn.kill(cx));
                self.let_go(ctx, id.index);
            }
        }
    }

    /// A segment that nothing is there for is answered by a reset, at a bounded rate.
    fn refuse(&mut self, ctx: &mut SoftnetData, env: &Env<'_>, packet: &Packet, skb: Skb, out: &mut Effects) {
        self.counters.in_segs += u64::from(packet.segment.segs);
        let second = env.now / 1_000_000_000;
        if self.resets.0 != second {
            self.resets = (second, 0);
        }
        if self.resets.1 < RESETS
            && !is_anycast(env, &packet.flow)
            && let Some(emit) = reset_for(&packet.segment)
        {
            self.resets.1 += 1;
            self.answer(ctx, env, &packet.flow, &emit, out);
        }
        ctx.free(skb, DropReason::IpNoProto);
    }

    /// Sends a segment without payload that is of no connection.
    pub(super) fn answer(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        flow: &Flow,
        emit: &Emit,
        out: &mut Effects,
    ) {
        let way = route(env.tables, flow).ok();
        self.answer_by(ctx, way.as_ref(), flow, emit, out);
    }

    /// The same by a route that is known; `None`: there is none.
    fn answer_by(
        &mut self,
        ctx: &mut SoftnetData,
        way: Option<&Route>,
        flow: &Flow,
        emit: &Emit,
        out: &mut Effects,
    ) {
        self.counters.out_segs += 1;
        if let Some(way) = way {
            send(ctx, way, (flow, Marks::default()), emit, None, out);
        }
    }
}
