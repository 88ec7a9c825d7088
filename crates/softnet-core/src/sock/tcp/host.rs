//! The engine's output: into packets that leave, and into the queues of its connection.

use softnet_tcp::conn::{Memory, Output};
use softnet_tcp::timewait::TimeWait;
use softnet_tcp::{DropReason as Why, Emit, Instant};

use super::super::key::Flow;
use super::super::route::{NextHop, Route};
use super::env::Env;
use super::output::{Effects, Marks, route, send};
use super::queue::{RecvQueue, SendQueue};
use super::shard::Payload;
use crate::SoftnetData;
use crate::skb::DropReason;

/// The engine's output, into packets and queues.
pub(super) struct Host<'a> {
    pub(super) ctx: &'a mut SoftnetData,
    pub(super) env: &'a Env<'a>,
    pub(super) out: &'a mut Effects,
    pub(super) flow: Flow,
    pub(super) marks: Marks,
    pub(super) tx: &'a mut SendQueue,
    pub(super) rx: &'a mut RecvQueue,
    pub(super) ooo: &'a mut u32,
    pub(super) route: Option<Route>,
    /// Too much waits before the device.
    pub(super) throttled: bool,
    /// It is to be asked again when something of that has left.
    pub(super) asks: bool,
    /// Frames of the packet that has arrived, which are in `ooo`, and those that others took since the shard's holder came.
    pub(super) arriving: usize,
    pub(super) taken: usize,
    /// Frames that were discarded.
    pub(super) freed: usize,
    pub(super) time_wait: Option<TimeWait>,
}

impl Host<'_> {
    /// The way to the peer, if there is one.
    fn way(&mut self) -> Option<&Route> {
        if self.route.is_none() {
            self.route = route(self.env.tables, &self.flow).ok();
        }
        self.route.as_ref()
    }
}

impl Output for Host<'_> {
    type Handle = Payload;

    fn send(&mut self, emit: &Emit) -> bool {
        self.way();
        let Some(way) = &self.route else { return false };
        let (dev, bytes) = (way.device(), u64::from(emit.len));
        let by_device = matches!(way.next, NextHop::Device(..));
        let sent = send(self.ctx, way, (&self.flow, self.marks), emit, Some(self.tx), self.out);
        // Another thread's connection that looks at this moment is not to find room that is taken.
        if sent && by_device && bytes > 0 && (self.env.reserve)(dev, bytes) {
            match self.out.reserved.last_mut() {
                Some((to, all)) if *to == dev => *all += bytes,
                _ => self.out.reserved.push((dev, bytes)),
            }
        }
        sent
    }

    fn memory(&mut self) -> Memory {
        // All sockets together hold as much as they may: one that holds nothing gets on all the same, a
        // frame or two at a time.
        let held = (self.rx.frames() + *self.ooo as usize).saturating_sub(self.arriving);
        let taken = self.taken.saturating_sub(self.freed);
        if self.arriving > 0 && self.env.room.allows(taken, held) < self.arriving {
            Memory::Exhausted
        } else if self.env.pressed {
            Memory::Scarce
        } else {
            Memory::Ample
        }
    }

    fn backlog(&mut self) -> u64 {
        let backlog = self.env.backlog;
        match self.way() {
            Some(way) if matches!(way.next, NextHop::Device(..)) => backlog(way.device()),
            // Nothing waits before a device.
            _ => 0,
        }
    }

    fn throttled(&mut self) {
        (self.throttled, self.asks) = (true, true);
    }

    fn held(&mut self) {
        self.throttled = true;
    }

    fn deliver(&mut self, Payload { skb, at }: Payload, front: u32, len: u32) {
        *self.ooo -= skb.frame_count() as u32;
        self.rx.push(self.ctx, skb, at + front as usize, len as usize);
    }

    fn discard(&mut self, Payload { skb, .. }: Payload, why: Why) {
        *self.ooo -= skb.frame_count() as u32;
        self.freed += skb.frame_count();
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

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::cell::Cell;

    use softnet_tcp::{Config, Seq};

    use super::*;
    use crate::fold::FoldKey;
    use crate::ip::pmtu::{PmtuCache, PmtuParams};
    use crate::ip::tables::Tables;
    use crate::ip::testing::context;
    use crate::siphash::SipKey;
    use crate::sock::key::mapped;
    use crate::sock::{Binder, SockMem};

    /// One connection has sent, and what it sent is not on the TX queue yet: another thread's connection
    /// finds it there all the same, until it was put there.
    #[test]
    fn what_is_about_to_wait_is_seen_by_others() {
        let mut ctx = context();
        let (cfg, key) = (Config::default(), FoldKey::new([1, 2]));
        let (tables, pmtu) = (Tables::new(key), PmtuCache::new(PmtuParams::default(), key));
        let (binder, secret) = (Binder::new(ctx.region().clone(), 4, 7), SipKey::new([3, 4]));
        let (queued, reserved) = (Cell::new(300), Cell::new(0));
        let shaped = Cell::new(true);
        let env = Env {
            now: 0,
            cfg: &cfg,
            tables: &tables,
            key: &secret,
            paths: pmtu.paths(),
            sockets: binder.sockets(),
            napi_id: 0,
            room: SockMem::new(1024).room(0),
            send_room: SockMem::new(1024).send_room(0),
            pressed: false,
            backlog: &|_| queued.get() + reserved.get(),
            reserve: &|_, bytes| {
                reserved.set(reserved.get() + if shaped.get() { bytes } else { 0 });
                shaped.get()
            },
            max_time_waits: 1,
            max_orphans: 1,
        };
        let (local, remote) = (mapped(0x0a00_0001), mapped(0x0a00_0002));
        let flow = Flow { local, remote, lport: 1, rport: 2, protocol: 6 };
        let route = Route { next: NextHop::Device(3, [0; 14]), src: local, mtu: 1500 };
        let mut outs = [Effects::default(), Effects::default()];
        let mut queues = [SendQueue::new(Seq(1)), SendQueue::new(Seq(1))];
        let mut run = |ctx: &mut SoftnetData, i: usize, sends: bool| {
            let (mut rx, mut ooo) = (RecvQueue::default(), 0);
            let mut host = Host {
                ctx,
                env: &env,
                out: &mut outs[i],
                flow,
                marks: Marks::default(),
                tx: &mut queues[i],
                rx: &mut rx,
                ooo: &mut ooo,
                route: Some(route),
                throttled: false,
                asks: false,
                arriving: 0,
                taken: 0,
                freed: 0,
                time_wait: None,
            };
            let emit = Emit { seq: Seq(1), len: 1000, mss: 1000, ..Emit::default() };
            if sends {
                host.tx.push(host.ctx, &[7; 1000]);
                assert!(host.send(&emit));
            }
            host.backlog()
        };
        assert_eq!(run(&mut ctx, 0, true), 1300, "its own");
        assert_eq!(run(&mut ctx, 1, false), 1300, "and another's");
        // Where nothing is shaped it leaves at once, and waits for nothing.
        shaped.set(false);
        assert_eq!(run(&mut ctx, 1, true), 1300);
        assert_eq!(run(&mut ctx, 0, false), 1300);
        assert_eq!(outs[0].reserved, [(3, 1000)]);
        assert_eq!(outs[1].reserved, []);
        for (out, queue) in outs.iter_mut().zip(&mut queues) {
            while let Some(skb) = out.send.pop_front() {
                ctx.free_skb(skb);
            }
            queue.clear(&mut ctx);
        }
        ctx.drain();
    }
}
