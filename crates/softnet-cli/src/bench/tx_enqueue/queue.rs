//! What all ways of sending have in common, as the senders of this bench see it. A queue is called by any thread.

use clap::ValueEnum;
use softnet_core::SoftnetData;
use softnet_core::qdisc::{DeferList, NextRun, Origin, Qdisc, Sent, ToFree};
use softnet_core::skb::{Batch, Region};

use super::baseline::{BusyLock, Locked, Mcs, ParkingLot};
use super::wire::Wire;

/// A TX queue with its discipline and its wire.
pub(super) trait TxQueue: Sync {
    /// Sends `batch` at `now`, in ns. [`Sent::Full`] leaves it to the caller, which waits.
    fn send(&self, ctx: &mut SoftnetData, now: u64, batch: &mut Batch, to_free: &mut ToFree) -> Sent;

    /// Runs the queue, as [`NextRun`] asked for. `None`: another thread does.
    fn run(&self, ctx: &mut SoftnetData, now: u64, to_free: &mut ToFree) -> Option<NextRun>;

    /// No more is sent: what is queued is dropped.
    fn close(&self, ctx: &mut SoftnetData, to_free: &mut ToFree);
}

/// Pending packets of a [`DeferList`], the kernel's default (`net.core.qdisc_max_burst`).
const QDISC_MAX_BURST: u32 = 1000;

/// A way of sending.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A pending list, whose owner sends for all
    Deferred,
    /// Two spin locks, as in the kernel until 6.18
    #[value(name = "busylock")]
    BusyLock,
    /// A queue lock
    Mcs,
    /// A mutex
    #[value(name = "parking_lot")]
    ParkingLot,
}

impl Way {
    pub(super) const ALL: [Way; 4] = [Way::Deferred, Way::BusyLock, Way::Mcs, Way::ParkingLot];

    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Deferred => "deferred",
            Way::BusyLock => "busylock",
            Way::Mcs => "mcs",
            Way::ParkingLot => "parking_lot",
        }
    }

    /// A TX queue for packets of `region`.
    pub(super) fn queue(self, region: &Region, qdisc: Box<dyn Qdisc>, wire: Wire) -> Box<dyn TxQueue> {
        match self {
            Way::Deferred => Box::new(DeferList::new(region, Some(qdisc), wire, QDISC_MAX_BURST)),
            Way::BusyLock => Box::new(Locked::<BusyLock<_>>::new(qdisc, wire)),
            Way::Mcs => Box::new(Locked::<Mcs<_>>::new(qdisc, wire)),
            Way::ParkingLot => Box::new(Locked::<ParkingLot<_>>::new(qdisc, wire)),
        }
    }
}

impl TxQueue for DeferList<Wire> {
    fn send(&self, ctx: &mut SoftnetData, now: u64, batch: &mut Batch, to_free: &mut ToFree) -> Sent {
        DeferList::send(self, ctx, now, Origin::Local, batch, to_free)
    }

    fn run(&self, ctx: &mut SoftnetData, now: u64, to_free: &mut ToFree) -> Option<NextRun> {
        DeferList::run(self, ctx, now, to_free)
    }

    fn close(&self, ctx: &mut SoftnetData, to_free: &mut ToFree) {
        self.deactivate();
        while let Some(guard) = self.own() {
            if guard.finish(ctx, 0, to_free) == NextRun::Idle {
                return;
            }
        }
    }
}
