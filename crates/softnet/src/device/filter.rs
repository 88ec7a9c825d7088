//! Filters: what is done to the packets of a device before softnet gets them (ingress) or its TX queues do (egress).
//!
//! What there is of `tc filter`: each device has one hook for either direction (`clsact`), which holds one filter that
//! matches all (`matchall`), with the action [`mirred`](softnet_core::qdisc::Mirred). Hooks are set by the control side;
//! any thread that receives or sends acts, by the snapshot it finds, and holds no lock meanwhile. A hook that is not set
//! costs a load.
//!
//! To egress of a device the packets go at once, nested in what the thread does; to ingress, by the
//! [backlog](crate::napi) of the instance that polls the RX queue of the same number.
//!
//! Invariants: a filter outlives the interfaces of both devices. Each packet that a filter gets goes on, is sent or
//! received elsewhere, or is freed with a reason; each copy made is counted as originated.

use std::sync::{Arc, Mutex, Weak};

use arc_swap::ArcSwapOption;
use softnet_core::SoftnetData;
use softnet_core::qdisc::{Mirred, MirredOutcome};
use softnet_core::skb::{Batch, DropReason};
use softnet_core::sync::{AtomicBool, AtomicU64, Ordering};

use super::{Netdev, TxHint, dev_queue_xmit, find_netdev};
use crate::control::{self, ControlError, Direction, MirredAction, SetFilter, SetMirred};
use crate::util::{Appended, lock};

/// Counters of an action, which any thread writes, once for a batch.
#[derive(Debug, Default)]
pub struct ActionStats {
    /// Packets it was applied to.
    pub packets: AtomicU64,
    /// Their bytes, from the Ethernet header on.
    pub bytes: AtomicU64,
    /// Packets that were not sent: too many redirects, no memory for the copy, the other device is not open.
    pub drops: AtomicU64,
    /// Packets that were not sent since they would come back.
    pub overlimits: AtomicU64,
}

/// The action of a filter.
#[derive(Debug)]
pub struct Action {
    /// What it does.
    pub mirred: Mirred,
    /// Counters.
    pub stats: ActionStats,
    /// The other device. Weak, for it may lead back to the device whose hook this is in.
    to: Weak<Netdev>,
}

/// The place in a device where packets of one direction pass, and the filter there.
#[derive(Debug, Default)]
pub struct Hook {
    is_set: AtomicBool,
    action: ArcSwapOption<Action>,
    /// Held while it is changed.
    changing: Mutex<()>,
}

impl Hook {
    /// Whether there is a filter: one load. A thread that sees it late lets a few packets more pass, or finds none.
    #[inline(always)]
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// The action of its filter, if there is one.
    pub fn action(&self) -> Option<Arc<Action>> {
        self.action.load_full()
    }

    /// Applies the filter to `batch`, which passes device `dev` in the direction that this hook is for: sends by
    /// TX queue `queue`, or has the RX queue of that number receive. What goes on stays in `batch`.
    #[cold]
    pub(crate) fn act(
        &self,
        ctx: &mut SoftnetData,
        dev: u16,
        direction: Direction,
        now: u64,
        queue: usize,
        batch: &mut Batch,
    ) {
        let action = self.action.load();
        let Some(action) = &*action else { return };
        action.stats.count(batch);
        let mut goes_on = Batch::new();
        while !batch.is_empty() {
            // What is decided depends on a packet's depth only, and the packets of a batch nearly always share it.
            let mut same = take_same_depth(batch);
            action.run(ctx, (dev, direction), now, queue, &mut same);
            goes_on.append(&mut same);
        }
        batch.append(&mut goes_on);
    }

    fn change(
        &self,
        action: control::Action,
        next: Option<Action>,
        place: String,
    ) -> Result<(), ControlError> {
        let _changing = lock(&self.changing);
        let is_set = self.action.load().is_some();
        match action {
            control::Action::Add if is_set => return Err(ControlError::FilterExists(place)),
            control::Action::Del if !is_set => return Err(ControlError::NoFilter(place)),
            _ => {}
        }
        self.is_set.store(next.is_some(), Ordering::Relaxed);
        self.action.store(next.map(Arc::new));
        Ok(())
    }
}

impl ActionStats {
    fn count(&self, batch: &Batch) {
        let bytes = batch.as_slice().iter().map(|skb| skb.len() as u64).sum();
        self.packets.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Takes the packets out of `batch`, which must not be empty, that have been through as many redirects as the first one, up
/// to the next that has not.
fn take_same_depth(batch: &mut Batch) -> Batch {
    let depths = |at: usize| batch.as_slice().get(at).map(|skb| skb.head().tc_depth);
    let n = (1..batch.len()).take_while(|at| depths(*at) == depths(0)).count() + 1;
    let mut same = Batch::new();
    for skb in batch.drain().take(n) {
        // There is room: both are of one size.
        let _ = same.push(skb);
    }
    same
}

impl Action {
    /// Applies it to packets of one depth. What goes on stays in `batch`.
    fn run(
        &self,
        ctx: &mut SoftnetData,
        (dev, direction): (u16, Direction),
        now: u64,
        queue: usize,
        batch: &mut Batch,
    ) {
        let Some(first) = batch.as_slice().first() else { return };
        let outcome = self.mirred.enter(ctx.mirred(), first.head());
        match outcome {
            MirredOutcome::Go => {
                self.send(ctx, now, queue, batch);
                return self.mirred.leave(ctx.mirred());
            }
            MirredOutcome::Loop => &self.stats.overlimits,
            MirredOutcome::TooDeep => &self.stats.drops,
        }
        .fetch_add(batch.len() as u64, Ordering::Relaxed);
        if let Some(reason) = self.mirred.shot(outcome, direction == Direction::Ingress) {
            ctx.free_batch_at(batch, dev, reason);
        }
    }

    /// Sends the packets, or copies of them.
    fn send(&self, ctx: &mut SoftnetData, now: u64, queue: usize, batch: &mut Batch) {
        let to = self.to.upgrade();
        let Some(to) = to.filter(|to| to.device.live.load().is_some()) else {
            self.stats.drops.fetch_add(batch.len() as u64, Ordering::Relaxed);
            if !self.mirred.mirror {
                ctx.free_batch_at(batch, self.mirred.dev, DropReason::DevReady);
            }
            return;
        };
        let mut copies = Batch::new();
        let sent = if self.mirred.mirror {
            for skb in batch.as_slice() {
                // As many as there is memory for, and there is room for all.
                ctx.copy(skb).into_iter().for_each(|copy| _ = copies.push(copy));
            }
            ctx.originated(copies.len() as u64);
            let missing = batch.len() - copies.len();
            self.stats.drops.fetch_add(missing as u64, Ordering::Relaxed);
            &mut copies
        } else {
            batch
        };
        sent.as_mut_slice().iter_mut().for_each(|skb| self.mirred.mark(skb.head_mut()));
        match self.mirred.ingress {
            true => to.device.netif_rx(ctx, queue, sent),
            false => dev_queue_xmit(ctx, &to, now, TxHint::forwarded(queue as u16), sent),
        }
    }
}

/// Changes the filter of a hook, at once; batches that are being worked on may still pass by the old one. The error says
/// what is wrong with it, and then nothing changed.
pub(crate) fn set(netdevs: &Appended<Arc<Netdev>>, set: &SetFilter) -> Result<(), ControlError> {
    let dev = find_netdev(netdevs, &set.dev)?;
    let next = match (set.action, &set.mirred) {
        (control::Action::Del, _) => None,
        (_, Some(SetMirred { action, direction, dev })) => {
            let to = find_netdev(netdevs, dev)?;
            if let (Direction::Ingress, Some(vlan)) = (direction, &to.vlan) {
                return Err(ControlError::NoQueues { dev: to.name.clone(), link: vlan.link.name.clone() });
            }
            let mirred = Mirred {
                mirror: *action == MirredAction::Mirror,
                ingress: *direction == Direction::Ingress,
                dev: to.index,
            };
            let to = Arc::downgrade(to);
            Some(Action { mirred, stats: ActionStats::default(), to })
        }
        _ => {
            let example = "what to do, such as `action mirred egress redirect dev DEV`";
            return Err(ControlError::Missing(example));
        }
    };
    let place = format!("{} of {}", set.parent.name(), set.dev);
    dev.hook(set.parent).change(set.action, next, place)
}
