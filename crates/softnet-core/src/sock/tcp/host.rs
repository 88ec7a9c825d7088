//! The engine's output: into packets that leave, and into the queues of its connection.

use softnet_tcp::conn::Output;
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
        send(self.ctx, way, (&self.flow, self.marks), emit, Some(self.tx), self.out)
    }

    fn backlog(&mut self) -> u64 {
        match self.way() {
            Some(way) if matches!(way.next, NextHop::Device(..)) => {
                let dev = way.device();
                (self.env.backlog)(dev) + self.out.bytes
            }
            // Nothing waits before a device.
            _ => 0,
        }
    }

    fn throttled(&mut self) {
        self.throttled = true;
    }

    fn deliver(&mut self, Payload { skb, at }: Payload, front: u32, len: u32) {
        *self.ooo -= skb.frame_count() as u32;
        self.rx.push(self.ctx, skb, at + front as usize, len as usize);
    }

    fn discard(&mut self, Payload { skb, .. }: Payload, why: Why) {
        *self.ooo -= skb.frame_count() as u32;
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
