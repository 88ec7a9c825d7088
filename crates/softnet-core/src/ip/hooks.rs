//! The five places on the way of an IP packet where filter rules, connection tracking and NAT stand, with netfilter's names.
//!
//! The slots and their order are compiled in, there is no graph. What stands in a slot is part of the forwarding tables'
//! snapshot, so that a batch sees one version of all of it; an empty slot costs a load for each batch. `tc`'s filters are not
//! here: they see every frame of a device, before and after IP.
//!
//! | slot | packets | where |
//! |---|---|---|
//! | `prerouting` | all that came by a device, header sound | before the route is looked up |
//! | `input` | those for softnet itself, reassembled | before their protocol gets them |
//! | `forward` | those for others, one hop less | before `postrouting` |
//! | `output` | those made here: by sockets and by the slow path | after the route is known |
//! | `postrouting` | all that leave by a device | before a neighbour is looked for |
//!
//! What softnet sends of ARP and neighbour discovery keeps the link going, and passes none. Datagrams that a socket sends to one of
//! this stack pass none either, as they never leave it. Long datagrams that are made here pass `output` and `postrouting` in
//! fragments.
//!
//! Invariant: a packet passes each slot on its way once, wherever it waits in between.

use std::sync::Arc;

use crate::SoftnetData;
use crate::skb::{Batch, DropReason, Skb};

/// The slots, in the order of netfilter's hook numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Slot {
    /// `NF_INET_PRE_ROUTING`.
    Prerouting = 0,
    /// `NF_INET_LOCAL_IN`.
    Input,
    /// `NF_INET_FORWARD`.
    Forward,
    /// `NF_INET_LOCAL_OUT`.
    Output,
    /// `NF_INET_POST_ROUTING`.
    Postrouting,
}

/// Where the packets of a batch are on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The slot.
    pub slot: Slot,
    /// The device they came by, unless they were made here.
    pub input: Option<u16>,
    /// The device they leave by, if it is known yet.
    pub output: Option<u16>,
}

/// What stands in a slot.
pub trait Hook: Send + Sync {
    /// Sees the packets of `batch`, of which there is one at least, and may change them: addresses only in
    /// [`Prerouting`](Slot::Prerouting) and [`Postrouting`](Slot::Postrouting), and never their family or length. Each has its
    /// Ethernet header first, whose addresses mean nothing in [`Output`](Slot::Output) and [`Postrouting`](Slot::Postrouting).
    /// Packets that are not to go on it takes out of the batch and frees with a reason; the order of the others stays. Called by
    /// any thread with a context, and must not wait.
    fn run(&self, ctx: &mut SoftnetData, passage: Passage, batch: &mut Batch);
}

/// What stands in each slot: part of [`Tables`](super::tables::Tables).
#[derive(Clone, Default)]
pub struct Hooks([Option<Arc<dyn Hook>>; 5]);

impl Hooks {
    /// Puts `hook` in `slot`, or (`None`) leaves it empty.
    pub fn set(&mut self, slot: Slot, hook: Option<Arc<dyn Hook>>) {
        self.0[slot as usize] = hook;
    }

    /// Whether anything stands in `slot`.
    #[inline(always)]
    pub fn is_set(&self, slot: Slot) -> bool {
        self.0[slot as usize].is_some()
    }

    /// Leads the packets of `batch` through `slot`: those that go on stay.
    #[inline(always)]
    pub fn run(
        &self,
        ctx: &mut SoftnetData,
        slot: Slot,
        (input, output): (Option<u16>, Option<u16>),
        batch: &mut Batch,
    ) {
        if let Some(hook) = &self.0[slot as usize]
            && !batch.is_empty()
        {
            hook.run(ctx, Passage { slot, input, output }, batch);
        }
    }

    /// The same of one packet; `None` if it does not go on.
    pub fn pass(
        &self,
        ctx: &mut SoftnetData,
        slot: Slot,
        devices: (Option<u16>, Option<u16>),
        skb: Skb,
    ) -> Option<Skb> {
        if !self.is_set(slot) {
            return Some(skb);
        }
        let mut batch = Batch::new();
        if let Err(skb) = batch.push(skb) {
            // A new batch has room.
            ctx.free(skb, DropReason::Shutdown);
        }
        self.run(ctx, slot, devices, &mut batch);
        batch.pop()
    }
}
