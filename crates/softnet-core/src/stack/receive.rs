//! The receive path above L2: from a batch that came by a device to packets sent on, packets in
//! sockets, and exceptions for the slow path.
//!
//! Owned by the thread that polls, and empty between two batches. Invariant: every packet handed in is sent, in a socket, freed
//! with its reason, or with the [host](ReceiveHost) as an exception when [`Receive::ip`] returns.

use crate::SoftnetData;
use crate::gso;
use crate::ip::input::{Exception, Exceptions, Ingress, Outcome, ip_input};
use crate::ip::tables::Tables;
use crate::qdisc::Origin;
use crate::skb::Batch;
use crate::sock::Transport;
use crate::steer::TxChoice;
use crate::tap::trace::Step;

/// What the receive path asks of the thread that polls.
pub trait ReceiveHost {
    /// When the batch came, in ns of the stack's clock.
    fn now(&self) -> u64;

    /// Sends `batch` out of device `dev` and leaves it empty (the kernel's `dev_queue_xmit`).
    fn xmit(&mut self, ctx: &mut SoftnetData, dev: u16, choice: TxChoice, origin: Origin, batch: &mut Batch);

    /// Hands packets over to the sockets of `transport`, as [`Transport::input`] does; those
    /// without a socket come out in `unserved`.
    fn local_input(
        &mut self,
        ctx: &mut SoftnetData,
        transport: Transport,
        local: &mut Batch,
        unserved: &mut Batch,
    );

    /// Has the slow path handle `exceptions`, now or later, in order.
    fn exceptions(&mut self, ctx: &mut SoftnetData, exceptions: &mut Exceptions);
}

/// See the [module](self).
#[derive(Default)]
pub struct Receive {
    /// What became of the batch at hand.
    outcome: Outcome,
}

impl Receive {
    /// Receives `batch`, which came by RX queue `queue` of the device that `ingress` says, and leaves it empty.
    #[inline(always)]
    pub fn ip(
        &mut self,
        ctx: &mut SoftnetData,
        tables: &Tables,
        ingress: &Ingress,
        queue: u16,
        batch: &mut Batch,
        host: &mut impl ReceiveHost,
    ) {
        let Receive { outcome } = self;
        ip_input(ctx, tables, (ingress, host.now()), batch, outcome);
        let choice = TxChoice::RxQueue(queue);
        outcome.tx.flush(|dev, batch| host.xmit(ctx, dev, choice, Origin::Forwarded, batch));
        for transport in Transport::ALL {
            if !outcome.local[transport].is_empty() {
                local_input(ctx, transport, outcome, host);
            }
        }
        if !outcome.slow.is_empty() || outcome.slow.redirect.is_some() {
            host.exceptions(ctx, &mut outcome.slow);
        }
    }
}

#[inline(never)]
fn local_input(
    ctx: &mut SoftnetData,
    transport: Transport,
    outcome: &mut Outcome,
    host: &mut impl ReceiveHost,
) {
    let cut = match transport {
        Transport::Udp => gso::any_unfinished(&outcome.local[transport]),
        // The engine takes a run of segments as one, and leaves checksums that were verified alone.
        Transport::Tcp => gso::any_lists(&outcome.local[transport]),
    };
    if cut {
        return local_input_cut(ctx, transport, outcome, host);
    }
    let mut unserved = Batch::new();
    if ctx.may_trace() {
        trace_local(ctx, host.now(), transport, &outcome.local[transport]);
    }
    host.local_input(ctx, transport, &mut outcome.local[transport], &mut unserved);
    for skb in unserved.drain() {
        outcome.slow.push(ctx, skb, Exception::NoSocket);
    }
}

#[cold]
#[inline(never)]
fn trace_local(ctx: &mut SoftnetData, now: u64, transport: Transport, local: &Batch) {
    for skb in local.as_slice() {
        ctx.trace(now, skb, (skb.head().dev, skb.head().queue), Step::Socket(transport.number()));
    }
}

/// The same of packets among which there are aggregates, or such whose checksum was left: sockets get segments, each with its own.
#[cold]
#[inline(never)]
fn local_input_cut(
    ctx: &mut SoftnetData,
    transport: Transport,
    outcome: &mut Outcome,
    host: &mut impl ReceiveHost,
) {
    let Outcome { local, slow, .. } = outcome;
    gso::segment_batch(ctx, &mut local[transport], |ctx, segments| {
        let mut unserved = Batch::new();
        host.local_input(ctx, transport, segments, &mut unserved);
        for skb in unserved.drain() {
            // There may be more than exceptions have room for: they are the slow path's at once.
            if slow.batch.room() == 0 {
                host.exceptions(ctx, slow);
            }
            slow.push(ctx, skb, Exception::NoSocket);
        }
    });
}
