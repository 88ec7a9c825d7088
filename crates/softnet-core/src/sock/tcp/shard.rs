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

use slab::Slab;
use softnet_tcp::conn::{Conn, Cx};
use softnet_tcp::listen::Request;
use softnet_tcp::timewait::TimeWait;
use softnet_tcp::{Counters, Seq};

use super::super::key::Flow;
use super::calls::ConnInfo;
use super::ends::{End, Ends};
use super::env::Env;
pub(super) use super::flows::Object;
use super::flows::{Flows, Packed};
use super::host::{Host, nanos};
use super::output::{Effects, Marks};
use super::queue::{RecvQueue, SendQueue};
use crate::SoftnetData;
use crate::fold::FoldKey;
use crate::skb::{FRAME_SIZE, Skb};
use crate::time::{Timer, TimerWheel};

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

/// Whether a writer waits for memory. What was acknowledged before it found none is no news to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Short {
    No,
    /// Since this run.
    New,
    /// Until what it has queued is acknowledged.
    Yes,
    /// It has nothing queued, and no ACK will tell it of memory.
    Starves,
}

/// No slot.
pub(super) const NO_SLOT: u32 = u32::MAX;

/// A connection, and what its host keeps of it.
pub(super) struct Sock {
    pub(super) conn: Conn<Payload>,
    pub(super) flow: Flow,
    pub(super) tx: SendQueue,
    pub(super) rx: RecvQueue,
    pub(super) timer: Timer,
    pub(super) serial: u32,
    /// Where readiness is told; [`NO_SLOT`] until the application has it.
    pub(super) slot: u32,
    pub(super) napi_id: u32,
    /// Frames in `rx`, in `tx`, beyond holes, and lent to the application, as the shard counts them.
    pub(super) frames: u32,
    /// Those of them in `tx`.
    pub(super) queued: u32,
    pub(super) ooo: u32,
    pub(super) lent: u32,
    pub(super) touched: bool,
    /// Too much waits before the device for it to send: it looks again soon.
    pub(super) throttled: bool,
    /// The application has let go.
    pub(super) orphan: bool,
    /// The table has it.
    pub(super) listed: bool,
    /// A write found no memory: writable again when something was acknowledged.
    pub(super) short: Short,
    pub(super) marks: Marks,
}

pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) flow: Flow,
    pub(super) timer: Timer,
    /// Slot and generation of the listener.
    pub(super) listener: (u32, u32),
}

pub(super) struct Waiting {
    pub(super) time_wait: TimeWait,
    pub(super) flow: Flow,
    pub(super) timer: Timer,
}

/// See the module.
pub struct Shard {
    pub(super) flows: Flows,
    // Boxed: a slab moves what it holds when it grows, and connections are large.
    pub(super) conns: Slab<Box<Sock>>,
    pub(super) requests: Slab<Asked>,
    pub(super) time_waits: Slab<Waiting>,
    pub(super) wheel: TimerWheel<Packed>,
    pub(super) touched: Vec<u32>,
    /// Those that wait for something to leave.
    pub(super) asks: Vec<u32>,
    pub(super) serial: u32,
    /// Connections that no application has any more.
    pub(super) orphans: usize,
    pub(super) frames: usize,
    /// Those of them that are queued to be sent.
    pub(super) queued: usize,
    /// The latest time that a holder came with.
    now: u64,
    /// Frames that connections took since the holder came, and those of the packet that arrives.
    pub(super) taken: usize,
    /// Those of them that writers took.
    wrote: usize,
    /// Connections that [starve](Short::Starves).
    pub(super) starving: usize,
    pub(super) arriving: usize,
    /// Resets that may be sent in the present second.
    pub(super) resets: (u64, u32),
    /// Our ends of its connections.
    pub(super) ends: Ends,
    /// What its connections counted.
    pub counters: Counters,
}

impl Shard {
    /// An empty one, whose table is keyed by `key`.
    pub fn new(key: FoldKey) -> Self {
        Shard {
            flows: Flows::new(key),
            conns: Slab::new(),
            requests: Slab::new(),
            time_waits: Slab::new(),
            wheel: TimerWheel::new(),
            touched: Vec::new(),
            asks: Vec::new(),
            serial: 0,
            orphans: 0,
            frames: 0,
            queued: 0,
            now: 0,
            taken: 0,
            wrote: 0,
            starving: 0,
            arriving: 0,
            resets: (0, 0),
            ends: Ends::default(),
            counters: Counters::default(),
        }
    }

    /// A holder has come at `now`. The time for it: it may have waited for the shard while others, that
    /// came later, had it. For the engine and the wheel time never runs backwards.
    pub fn begin(&mut self, now: u64) -> u64 {
        (self.taken, self.wrote) = (0, 0);
        self.now = self.now.max(now);
        self.now
    }

    /// From now on it knows which [ends](End) of ours its connections have.
    pub fn count_ends(&mut self) {
        self.ends.count();
    }

    /// Holds an end that a connection has: it comes out in [`Effects::free`] when nothing has it any
    /// more. Returns whether it was not held before.
    pub fn hold_end(&mut self, end: End) -> bool {
        self.ends.hold(end)
    }

    /// The ends that its connections have and that are not held.
    pub fn ends_not_held(&self) -> impl Iterator<Item = End> {
        self.ends.not_held()
    }

    /// Frames that its connections hold, and those of them that are queued to be sent.
    pub fn frames(&self) -> (usize, usize) {
        (self.frames, self.queued)
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
        self.find(flow).is_some()
    }

    pub(super) fn sock(&self, id: ConnId) -> Option<&Sock> {
        self.conns.get(id.index as usize).map(|sock| &**sock).filter(|sock| sock.serial == id.serial)
    }

    /// The connection of a flow.
    pub(super) fn conn_of(&self, flow: &Flow) -> Option<u32> {
        match self.find(flow) {
            Some(Object::Conn(index)) => Some(index),
            _ => None,
        }
    }

    /// What a flow leads to.
    #[inline]
    pub(super) fn find(&self, flow: &Flow) -> Option<Object> {
        let Shard { conns, requests, time_waits, .. } = self;
        self.flows.get(flow, |object| {
            let of = match object {
                Object::Conn(at) => conns.get(at as usize).map(|sock| &sock.flow),
                Object::Request(at) => requests.get(at as usize).map(|asked| &asked.flow),
                Object::TimeWait(at) => time_waits.get(at as usize).map(|waiting| &waiting.flow),
            };
            of == Some(flow)
        })
    }

    pub(super) fn sock_mut(&mut self, id: ConnId) -> Option<&mut Sock> {
        let sock = self.conns.get_mut(id.index as usize).map(|sock| &mut **sock);
        sock.filter(|sock| sock.serial == id.serial)
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
        let Sock { conn, flow, tx, rx, ooo, marks, throttled, .. } = &mut **sock;
        let mut host = Host {
            ctx,
            env,
            out,
            flow: *flow,
            marks: *marks,
            tx,
            rx,
            ooo,
            route: None,
            throttled: false,
            asks: false,
            arriving: self.arriving,
            taken: self.taken,
            freed: 0,
            time_wait: None,
        };
        let mut cx = Cx { now: env.instant(), cfg: env.cfg, counters: &mut self.counters, out: &mut host };
        let result = f(conn, &mut cx);
        *throttled |= host.throttled;
        if host.asks {
            self.asks.push(index);
        }
        self.taken = (self.taken + self.arriving).saturating_sub(host.freed);
        if let Some(time_wait) = host.time_wait {
            self.remember(env, index, time_wait);
        }
        Some(result)
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
    ) -> ConnId {
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
            throttled: false,
            asks: false,
            arriving: 0,
            taken: self.taken,
            freed: 0,
            time_wait: None,
        };
        let conn =
            make(&mut Cx { now: env.instant(), cfg: env.cfg, counters: &mut self.counters, out: &mut host });
        self.ends.add(&flow);
        self.serial = self.serial.wrapping_add(1);
        let entry = self.conns.vacant_entry();
        let index = entry.key() as u32;
        let sock = Sock {
            conn,
            flow,
            tx,
            rx,
            timer: self.wheel.add(Object::Conn(index).into()),
            serial: self.serial,
            slot: NO_SLOT,
            napi_id: env.napi_id,
            frames: 0,
            queued: 0,
            ooo,
            lent: 0,
            touched: true,
            throttled: false,
            orphan: false,
            listed: true,
            short: Short::No,
            marks,
        };
        entry.insert(Box::new(sock));
        self.touched.push(index);
        self.flows.insert(&flow, Object::Conn(index));
        ConnId { index, serial: self.serial }
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

    /// The application, or a listener, has let go of the connection: what was not read is not needed.
    pub(super) fn let_go(&mut self, ctx: &mut SoftnetData, index: u32) {
        if let Some(sock) = self.conns.get_mut(index as usize) {
            sock.rx.clear(ctx);
            sock.slot = NO_SLOT;
            if !std::mem::replace(&mut sock.orphan, true) {
                self.orphans += 1;
            }
            if !std::mem::replace(&mut sock.touched, true) {
                self.touched.push(index);
            }
        }
    }

    /// Queues as much of `data` as there is memory for.
    pub(super) fn queue(&mut self, ctx: &mut SoftnetData, env: &Env<'_>, index: u32, data: &[u8]) -> usize {
        let Some(sock) = self.conns.get_mut(index as usize) else { return 0 };
        // All sockets together hold as much as they may: one that has nothing queued gets on.
        let held = sock.tx.frames();
        let most = env.room.allows(self.taken, held).min(env.send_room.allows(self.wrote, held));
        let queued = sock.tx.push(ctx, &data[..data.len().min(most.saturating_mul(FRAME_SIZE))]);
        let took = sock.tx.frames() - held;
        (self.taken, self.wrote) = (self.taken + took, self.wrote + took);
        // A writer may take a short write for a sign that it has to wait.
        if queued < data.len() {
            let before = std::mem::replace(&mut sock.short, Short::New);
            self.starving -= usize::from(before == Short::Starves);
        }
        queued
    }

    /// Copies received bytes to `to`. Returns how many, and the memory that went back.
    pub(super) fn take(&mut self, ctx: &mut SoftnetData, index: u32, to: &mut [u8]) -> (usize, u32) {
        self.conns.get_mut(index as usize).map_or((0, 0), |sock| sock.rx.read(ctx, to))
    }

    /// Connection `index` has ended, but for its numbers.
    fn remember(&mut self, env: &Env<'_>, index: u32, time_wait: TimeWait) {
        let Some(flow) = self.conns.get(index as usize).map(|sock| sock.flow) else { return };
        if self.time_waits.len() >= env.max_time_waits {
            return;
        }
        self.ends.add(&flow);
        let entry = self.time_waits.vacant_entry();
        let object = Object::TimeWait(entry.key() as u32);
        let timer = self.wheel.add(object.into());
        self.wheel.arm(&timer, env.now, nanos(time_wait.deadline()));
        entry.insert(Waiting { time_wait, flow, timer });
        // It takes the place of its connection.
        if let Some(sock) = self.conns.get_mut(index as usize)
            && std::mem::take(&mut sock.listed)
        {
            self.ends.remove(&flow);
            self.flows.remove(&flow, Object::Conn(index));
        }
        self.flows.insert(&flow, object);
    }

    pub(super) fn forget_time_wait(&mut self, index: u32) {
        if let Some(Waiting { flow, timer, .. }) = self.time_waits.try_remove(index as usize) {
            self.ends.remove(&flow);
            self.wheel.remove(timer);
            self.flows.remove(&flow, Object::TimeWait(index));
        }
    }

    pub(super) fn forget_request(&mut self, index: u32) {
        if let Some(Asked { flow, timer, .. }) = self.requests.try_remove(index as usize) {
            self.wheel.remove(timer);
            self.flows.remove(&flow, Object::Request(index));
        }
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
