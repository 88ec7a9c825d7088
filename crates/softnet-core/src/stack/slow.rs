//! The slow path, and what becomes of its [`Effects`].
//!
//! One owner at a time: the runtime keeps a [`SlowPathState`] behind a lock, a test or a simulation in a field. Invariant: when
//! [`run`](SlowPathState::run) returns, what the slow path wanted sent is sent, and what it learned of neighbours is published
//! after that: so packets that were held leave before any that the fast path forwards to the same neighbour.

use std::sync::Arc;

use super::sockets::{self, SocketHost};
use crate::SoftnetData;
use crate::ip::slow::{Effects, RouteSnapshot, SlowPath};
use crate::ip::tables::Tables;
use crate::qdisc::Origin;
use crate::skb::{Batch, DropReason, Flags, Head};
use crate::steer::TxChoice;

/// What the slow path asks of its owner.
pub trait SlowHost {
    /// The time, in ns of the stack's clock.
    fn now(&self) -> u64;

    /// The forwarding tables now.
    fn tables(&self) -> Arc<Tables>;

    /// Replaces the forwarding tables, and returns the old ones, which other threads may still use.
    fn replace(&self, tables: Arc<Tables>) -> Arc<Tables>;

    /// Sends `batch` out of device `dev` and leaves it empty (the kernel's `dev_queue_xmit`).
    fn xmit(&self, ctx: &mut SoftnetData, dev: u16, choice: TxChoice, origin: Origin, batch: &mut Batch);

    /// The sockets.
    fn sockets(&self) -> &impl SocketHost;
}

/// See the [module](self).
pub struct SlowPathState {
    /// Neighbours, fragments and ICMP.
    pub slow: SlowPath,
    /// When [`SlowPath::poll`] is to be called, in ns of the clock, as its owner knows it.
    pub deadline: u64,
    /// Times that the slow path was entered.
    pub entered: u64,
    effects: Effects,
    /// Tables that were replaced, until no thread uses them: so that none is freed between two packets.
    retired: Vec<Arc<Tables>>,
}

impl SlowPathState {
    /// Of a stack that starts.
    pub fn new(slow: SlowPath) -> Self {
        SlowPathState {
            slow,
            deadline: u64::MAX,
            entered: 0,
            effects: Effects::default(),
            retired: Vec::new(),
        }
    }

    /// Runs `f` on the slow path, then sends, delivers and publishes what came of it. Returns whether
    /// [`deadline`](Self::deadline) is earlier since.
    pub fn run(
        &mut self,
        ctx: &mut SoftnetData,
        host: &impl SlowHost,
        f: impl FnOnce(&mut SlowPath, &mut SoftnetData, RouteSnapshot<'_>, &mut Effects),
    ) -> bool {
        self.entered += 1;
        let tables = host.tables();
        let SlowPathState { slow, effects, .. } = self;
        let view = RouteSnapshot { now: host.now(), tables: &tables };
        f(slow, ctx, view, effects);
        if effects.is_for_sockets() {
            sockets::hand_over(ctx, slow, view, effects, host.sockets());
        }
        drop(tables);
        send(ctx, host, effects);
        self.publish(host);
        let next = self.slow.next_deadline().unwrap_or(u64::MAX);
        let sooner = next < self.deadline;
        self.deadline = self.deadline.min(next);
        sooner
    }

    /// Publishes what was learned of neighbours.
    fn publish(&mut self, host: &impl SlowHost) {
        if self.effects.publish.is_empty() {
            return;
        }
        // A sender that can make softnet hear ARP must not make it copy tables for nothing.
        let changes = host.tables().neighbour_news(self.effects.publish.drain(..));
        if changes.is_empty() {
            return;
        }
        self.replace_tables(host, |tables| {
            changes.into_iter().for_each(|change| tables.set_neighbour(change));
        });
    }

    /// Publishes a changed copy of the tables.
    pub fn replace_tables(&mut self, host: &impl SlowHost, change: impl FnOnce(&mut Tables)) {
        let mut tables = Tables::clone(&host.tables());
        change(&mut tables);
        self.retired.push(host.replace(Arc::new(tables)));
        self.forget_retired();
    }

    /// Whether any thread still reads tables that were replaced.
    pub fn has_retired(&mut self) -> bool {
        self.forget_retired();
        !self.retired.is_empty()
    }

    /// Lets go of tables that were replaced, and that no thread reads any more.
    pub fn forget_retired(&mut self) {
        self.retired.retain(|old| Arc::strong_count(old) > 1);
    }
}

/// How a packet of the slow path gets to a TX queue: by that which its flow leaves by, and even if too many are pending there, if the
/// neighbour table bounds how many such there are.
fn hint(head: &Head) -> (TxChoice, Origin) {
    let origin = if head.flags & Flags::HELD == 0 { Origin::Forwarded } else { Origin::Held };
    (TxChoice::of(head), origin)
}

/// Sends what `effects` hold, in order; neighbouring packets of one device and TX queue together.
fn send(ctx: &mut SoftnetData, host: &impl SlowHost, effects: &mut Effects) {
    let mut batch = Batch::new();
    let mut to = None;
    let flush = |ctx: &mut SoftnetData, to: Option<(u16, (TxChoice, Origin))>, batch: &mut Batch| {
        if let Some((dev, (choice, origin))) = to {
            host.xmit(ctx, dev, choice, origin, batch);
        }
    };
    for (dev, skb) in effects.send.drain(..) {
        let next = (dev, hint(skb.head()));
        if to != Some(next) || batch.room() == 0 {
            flush(ctx, to, &mut batch);
            to = Some(next);
        }
        if let Err(skb) = batch.push(skb) {
            ctx.free_at(skb, dev, DropReason::DevReady);
        }
    }
    flush(ctx, to, &mut batch);
}
