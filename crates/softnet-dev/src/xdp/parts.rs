//! The queues of a device that is being opened.
//!
//! Called by the thread that opens it. Invariant: what was added is closed again, or becomes the
//! device's.

use std::sync::Arc;

use softnet_core::SoftnetData;

use super::aggregates::Aggregates;
use super::attach::Attachment;
use super::kernel_irq::KernelNapis;
use super::rx::XdpRx;
use super::socket::{Bound, Xsk};
use super::tx::XdpTx;
use super::umem::{Binding, Umem};
use crate::device::{RxQueue, TxQueue};
use crate::sys_error::SysResult;

/// How a queue sends.
#[derive(Clone, Copy)]
pub(super) struct Transmit {
    /// See [`XdpConfig::tso`](super::XdpConfig::tso).
    pub(super) tso: bool,
}

/// The queues of a device in the making.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) rx: Vec<Box<dyn RxQueue>>,
    pub(super) tx: Vec<Box<dyn TxQueue>>,
    pub(super) sockets: Vec<Arc<Xsk>>,
}

impl Parts {
    /// Opens a queue, fills its ring, and leads the program to it. Returns how many frames were
    /// posted.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn add_queue(
        &mut self,
        umem: &Arc<Umem>,
        (attachment, napis): (&Arc<Attachment>, &Arc<KernelNapis>),
        to: Binding,
        ring: u32,
        transmit: Option<Transmit>,
        dev: u16,
        ctx: &mut SoftnetData,
    ) -> SysResult<usize> {
        let Bound { xsk, fill, rx, tx } = Xsk::open(umem, attachment, napis, to, ring, transmit.is_some())?;
        let mut half = XdpRx::new(xsk.clone(), fill, rx, dev, to.queue as u16);
        half.refill(ctx);
        let posted = half.held();
        self.rx.push(Box::new(half));
        if let Some(rings) = tx {
            self.tx.push(Box::new(XdpTx::new(xsk.clone(), dev, rings, aggregates(&xsk, to, transmit, dev)?)));
        }
        attachment.lead(to.queue, xsk.fd())?;
        self.sockets.push(xsk);
        Ok(posted)
    }

    /// Adds a queue that another process has open. The program of this process leads to it, once it
    /// is attached.
    pub(super) fn add_handed(
        &mut self,
        (attachment, bound): (&Arc<Attachment>, Bound),
        to: Binding,
        transmit: Option<Transmit>,
        dev: u16,
    ) -> SysResult<()> {
        let Bound { xsk, fill, rx, tx } = bound;
        let half = XdpRx::new(xsk.clone(), fill, rx, dev, to.queue as u16);
        self.rx.push(Box::new(half.elsewhere()));
        if let Some(rings) = tx {
            let half = XdpTx::new(xsk.clone(), dev, rings, aggregates(&xsk, to, transmit, dev)?);
            self.tx.push(Box::new(half.elsewhere()));
        }
        attachment.lead(to.queue, xsk.fd())?;
        self.sockets.push(xsk);
        Ok(())
    }

    pub(super) fn close(self, ctx: &mut SoftnetData) {
        self.tx.into_iter().for_each(|half| half.close(ctx));
        self.rx.into_iter().for_each(|half| half.close(ctx));
    }
}

/// What segments leave by that are not cut, if the queue is to have that.
fn aggregates(xsk: &Xsk, to: Binding, transmit: Option<Transmit>, dev: u16) -> SysResult<Option<Aggregates>> {
    let tso = transmit.is_some_and(|half| half.tso) && !xsk.zero_copy();
    if tso { Aggregates::new(to.ifindex, dev).map(Some) } else { Ok(None) }
}
