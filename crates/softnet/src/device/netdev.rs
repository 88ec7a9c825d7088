//! What routes and addresses name: a netdev, which sends by a device. [`dev_queue_xmit`] does so from any thread.
//!
//! Each device has one netdev with its own index, which its packets come in by; a device may carry others, such as its
//! [VLANs](super::vlan).
//!
//! Invariant: what is set for a netdev (filters) holds for its device's next life too.

use std::ops::Deref;
use std::sync::Arc;

use arc_swap::{ArcSwapOption, Cache};
use softnet_core::SoftnetData;
use softnet_core::qdisc::Origin;
use softnet_core::skb::{Batch, DropReason};
use softnet_core::steer::TxChoice;
use softnet_core::vlan::VlanGroup;

use super::filter::Hook;
use super::vlan::VlanNetdev;
use super::{OpenParts, StackDevice};
use crate::control::{ControlError, Direction};
use crate::util::Appended;

/// A netdev of the stack.
pub struct Netdev {
    /// Its index in the stack.
    pub index: u16,
    /// Its name.
    pub name: String,
    /// What it sends by.
    pub device: Arc<StackDevice>,
    /// Where what it received passes first, and what it is to send.
    pub(crate) ingress: Hook,
    pub(crate) egress: Hook,
    /// The VLANs that are over it; more may come.
    pub(crate) vlans: VlanGroup,
    /// If it is one itself.
    pub(crate) vlan: Option<VlanNetdev>,
}

impl Netdev {
    /// A netdev on `device`, without filters and VLANs.
    pub fn new(index: u16, name: String, device: Arc<StackDevice>) -> Self {
        let [ingress, egress] = [(); 2].map(|()| Hook::default());
        Netdev { index, name, device, ingress, egress, vlans: VlanGroup::new(), vlan: None }
    }

    /// Whether what it sends [passes anything](Self::to_link) before its device's queue.
    #[inline(always)]
    pub(crate) fn alters_tx(&self) -> bool {
        self.egress.is_set() || self.vlan.is_some()
    }

    /// The hook of one direction.
    pub fn hook(&self, direction: Direction) -> &Hook {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// The netdev called `name`.
pub(crate) fn find_netdev<'a>(
    netdevs: &'a Appended<Arc<Netdev>>,
    name: &str,
) -> Result<&'a Arc<Netdev>, ControlError> {
    netdevs.iter().find(|dev| dev.name == name).ok_or_else(|| {
        let mut exist: Vec<_> = netdevs.iter().map(|dev| dev.name.clone()).collect();
        exist.sort();
        ControlError::NoDevice { name: name.into(), exist }
    })
}

/// The open parts of all devices as a thread saw them last, so that a batch it sends costs no reference count. They are kept
/// until it looks again, which it must do now and then, and before it sleeps.
pub(crate) struct OpenCache {
    devices: Arc<Appended<Arc<StackDevice>>>,
    /// Of the first of them: one that was added lately is missing until it is asked for.
    lives: Vec<Cache<OpenPartsOf, Option<Arc<OpenParts>>>>,
    /// The device to be [reaped](Self::reap_idle) next.
    next: usize,
}

/// Devices that an idle poll takes frames back from: all, where there are few.
const REAPED: usize = 8;

/// See [`OpenCache`].
struct OpenPartsOf(Arc<StackDevice>);

impl Deref for OpenPartsOf {
    type Target = ArcSwapOption<OpenParts>;

    fn deref(&self) -> &Self::Target {
        &self.0.live
    }
}

impl OpenCache {
    pub(crate) fn new(devices: &Arc<Appended<Arc<StackDevice>>>) -> Self {
        let mut cache = OpenCache { devices: devices.clone(), lives: Vec::new(), next: 0 };
        cache.grow();
        cache
    }

    /// Takes in devices that were added.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let more = self.devices.iter().skip(self.lives.len());
        self.lives.extend(more.map(|dev| Cache::new(OpenPartsOf(dev.clone()))));
    }

    /// Lets go of what was closed.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        if self.lives.len() < self.devices.len() {
            self.grow();
        }
        for live in &mut self.lives {
            live.load();
        }
    }

    /// The open parts of the device with index `dev`.
    #[inline]
    pub(crate) fn get(&mut self, dev: u16) -> Option<&OpenParts> {
        let at = usize::from(dev);
        if at >= self.lives.len() {
            // What led here may be younger than the last look.
            self.grow();
        }
        self.lives.get_mut(at)?.load().as_deref()
    }

    /// As [`dev_queue_xmit`].
    #[inline(always)]
    pub(crate) fn xmit(
        &mut self,
        ctx: &mut SoftnetData,
        dev: &Netdev,
        now: u64,
        to: TxHint,
        batch: &mut Batch,
    ) {
        let live = self.get(dev.device.index);
        xmit(ctx, dev, live, now, to, batch);
    }

    /// Takes back frames that devices sent by TX queue `queue` (modulo how many there are): what a poller does when it has
    /// nothing to send, so that frames do not lie in a silent device's ring while others starve. Of many devices a few at a
    /// time, in turn: there are as many idle polls.
    pub(crate) fn reap_idle(&mut self, ctx: &mut SoftnetData, now: u64, queue: usize) {
        for _ in 0..self.lives.len().min(REAPED) {
            if let Some(live) = self.lives[self.next].load() {
                live.tx.reap(ctx, now, queue);
            }
            self.next = (self.next + 1) % self.lives.len();
        }
    }
}

/// How packets get to a TX queue of a device.
#[derive(Debug, Clone, Copy)]
pub struct TxHint {
    /// By which queue.
    pub choice: TxChoice,
    /// What happens when too many packets are pending there.
    pub origin: Origin,
}

impl TxHint {
    /// Of packets that came by an RX queue and are sent on.
    #[inline(always)]
    pub fn forwarded(rx_queue: u16) -> Self {
        TxHint { choice: TxChoice::RxQueue(rx_queue), origin: Origin::Forwarded }
    }
}

/// Sends `batch` out of `dev` at `now` and leaves it empty. Any thread with a context may call it, unless it owns a TX queue.
/// Packets that can't be sent are freed and counted against `dev`. The filter at its egress, if there is one, may lead them
/// elsewhere first.
pub fn dev_queue_xmit(ctx: &mut SoftnetData, dev: &Netdev, now: u64, to: TxHint, batch: &mut Batch) {
    xmit(ctx, dev, dev.device.live.load().as_deref(), now, to, batch);
}

#[inline(always)]
fn xmit(
    ctx: &mut SoftnetData,
    dev: &Netdev,
    live: Option<&OpenParts>,
    now: u64,
    to: TxHint,
    batch: &mut Batch,
) {
    if dev.alters_tx() {
        dev.to_link(ctx, now, to.choice.number().into(), batch);
        if batch.is_empty() {
            return;
        }
    }
    match live {
        Some(live) if !live.tx.queues.is_empty() => {
            live.tx.xmit(ctx, now, to.choice, to.origin, current_cpu, batch);
        }
        _ => ctx.free_batch_at(batch, dev.index, DropReason::DevReady),
    }
}

/// The calling thread's CPU.
pub(crate) fn current_cpu() -> u32 {
    rustix::thread::sched_getcpu() as u32
}
