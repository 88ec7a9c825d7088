//! Timers, and the end of a batch: what connections owe leaves, their timers are armed, and readiness is
//! told.
//!
//! Called by the holder of a shard. Invariant: after [`finish`](Shard::finish) a connection's node is armed
//! no later than its next deadline, and its socket's readiness is as it says.

use softnet_tcp::Config;
use softnet_tcp::conn::{Conn, Events, State};
use softnet_tcp::listen::{ListenCx, Timeout};

use super::super::slot::stream;
use super::env::Env;
use super::host::nanos;
use super::listen::Listeners;
use super::output::Effects;
use super::shard::{NO_SLOT, Object, Payload, Shard, Short};
use crate::SoftnetData;
use crate::skb::DropReason;

/// When a connection looks again that waits for less before the device, or has nothing queued and no memory to
/// queue anything, in ns, if no ACK has it look before.
const LOOKS_AGAIN: u64 = 10_000_000;
/// How much later it does so for each that waits for memory, and at the most (Linux: 2 to 202 ms), in ns.
const STARVED_EACH: u64 = 64_000;
const STARVED_MOST: u64 = 200_000_000;

impl Shard {
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
            match self.wheel.expire(env.now).map(Object::from) {
                None => return true,
                Some(Object::Conn(index)) => {
                    self.enter(ctx, env, out, index, |conn, cx| {
                        conn.on_time(cx);
                        // A deadline that was put off finds a connection that is idle by then.
                        conn.release_memory();
                    });
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
        out.free.extend(self.ends.take_free());
    }

    /// What [`finish`](Self::finish) had leave is on the TX queues: connections that found too much waiting
    /// there look again. Returns whether more is to leave.
    pub fn ask_again(&mut self, ctx: &mut SoftnetData, env: &Env<'_>, out: &mut Effects) -> bool {
        while let Some(index) = self.asks.pop() {
            if let Some(sock) = self.conns.get_mut(index as usize)
                && !std::mem::replace(&mut sock.touched, true)
            {
                self.touched.push(index);
            }
        }
        if !self.touched.is_empty() {
            self.finish(ctx, env, out);
        }
        let more = !out.send.is_empty();
        if !more {
            // Those that still can't send wait for an ACK, or for their time.
            self.asks.clear();
        }
        more
    }

    fn settle(&mut self, ctx: &mut SoftnetData, env: &Env<'_>, index: u32, out: &mut Effects) {
        let closed = self.unlist_closed(index);
        let Some(sock) = self.conns.get_mut(index as usize) else { return };
        sock.touched = false;
        let events = sock.conn.take_events();
        let acknowledged = events.any(Events::WRITABLE);
        let before = std::mem::replace(&mut sock.short, Short::No);
        sock.short = match (before, sock.tx.frames()) {
            _ if closed => Short::No,
            (Short::New, 0) => Short::Starves,
            (Short::New, _) => Short::Yes,
            (Short::Yes, 1..) if !acknowledged => Short::Yes,
            (Short::Yes | Short::Starves, 0) if env.room.allows(self.taken, 0) == 0 => Short::Starves,
            _ => Short::No,
        };
        let starves = sock.short == Short::Starves;
        self.starving = self.starving + usize::from(starves) - usize::from(before == Short::Starves);
        if closed {
            self.wheel.cancel(&sock.timer);
            sock.tx.clear(ctx);
        } else {
            let mut due = nanos(sock.conn.next_deadline());
            if std::mem::take(&mut sock.throttled) {
                due = due.min(env.now + LOOKS_AGAIN);
            }
            if starves {
                // The more there are, the later: they are to leave time for those that free memory.
                let pause = self.starving as u64 * STARVED_EACH;
                due = due.min(env.now + pause.clamp(LOOKS_AGAIN, STARVED_MOST));
            }
            if due < self.wheel.deadline(&sock.timer).unwrap_or(u64::MAX) {
                self.wheel.arm(&sock.timer, env.now, due);
            }
        }
        let frames = (sock.tx.frames() + sock.rx.frames()) as u32 + sock.ooo + sock.lent;
        self.frames = self.frames + frames as usize - std::mem::replace(&mut sock.frames, frames) as usize;
        let queued = sock.tx.frames() as u32;
        self.queued = self.queued + queued as usize - std::mem::replace(&mut sock.queued, queued) as usize;
        if sock.slot != NO_SLOT {
            if let Some(slot) = env.sockets.slot(sock.slot) {
                slot.set_napi_id(sock.napi_id);
                let bits = ready(&sock.conn, env.cfg);
                let short = if sock.short == Short::No { 0 } else { stream::WRITABLE };
                let more = slot.set_stream(bits & !short);
                if more || tells_again(events, &sock.conn) {
                    out.wake.push(sock.slot);
                }
            }
        } else if closed && sock.orphan {
            let mut sock = self.conns.remove(index as usize);
            self.orphans -= 1;
            self.frames -= sock.frames as usize;
            self.queued -= sock.queued as usize;
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
        self.ends.clear();
        for list in [&mut out.send, &mut out.loose] {
            while let Some(skb) = list.pop_front() {
                ctx.free_skb(skb);
            }
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
