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
//! A hook may make packets, such as the answer to one that it refuses. They leave like all that is
//! made here: the slow path routes them, and leads them through `output` and `postrouting`. Packets
//! made in answer to those may follow, but not for ever.
//!
//! Invariants: a packet passes each slot on its way once, wherever it waits in between. At a slot
//! in which a hook stands, the heads of packets say where their L3 and L4 headers are.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::input::Exception;
use super::tables::Tables;
use super::v4::header::{Ipv4Header, MIN_LEN};
use super::v6::header::{next, upper};
use super::{ETH_LEN, Prefix, Prefix6};
use crate::SoftnetData;
use crate::skb::{Batch, DropReason, Flags, Skb};
use crate::tap::trace::{Ends, Step, is_traced};

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

impl Slot {
    /// All of them, in their order.
    pub const ALL: [Slot; 5] =
        [Slot::Prerouting, Slot::Input, Slot::Forward, Slot::Output, Slot::Postrouting];
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

impl Passage {
    /// At `slot`, of packets that came by device `input` and leave by `output`.
    pub fn new(slot: Slot, input: Option<u16>, output: Option<u16>) -> Self {
        Passage { slot, input, output }
    }
}

/// Packets that hooks left to the slow path, each with what it is to do with it: those that they
/// [made](Exception::Made), [refused](Exception::Rejected) or took to see them whole. Its owner must
/// [drain](Self::drain) it.
#[derive(Default)]
pub struct Made(VecDeque<(Skb, Exception)>);

impl Made {
    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes over those of `other`.
    pub fn append(&mut self, other: &mut Made) {
        self.0.append(&mut other.0);
    }

    /// Takes them out, in order, each with what it is. What the iterator has not yielded stays.
    pub fn drain(&mut self) -> impl Iterator<Item = (Skb, Exception)> {
        std::iter::from_fn(|| self.0.pop_front())
    }
}

/// What a hook works with.
pub struct HookContext<'a> {
    /// The thread's memory and counters.
    pub ctx: &'a mut SoftnetData,
    /// Time, in ns of the stack's clock.
    pub now: u64,
    /// Routes, interfaces and addresses: the version that the hook is part of.
    pub tables: &'a Tables,
    made: &'a mut Made,
    redirected: bool,
}

/// What stands in a slot.
pub trait Hook: Send + Sync {
    /// Sees the packets of `batch`, of which there is one at least, and may change them: addresses
    /// only in [`Prerouting`](Slot::Prerouting), where it [says so](HookContext::redirect) of
    /// destinations, and [`Postrouting`](Slot::Postrouting), their family
    /// only in the first; such a packet is [marked](Flags::CROSSED) and goes through the slots of its
    /// new family, that one included. All packets of a batch there are of one family. Each has its
    /// Ethernet header first, whose addresses mean nothing in [`Output`](Slot::Output) and
    /// [`Postrouting`](Slot::Postrouting); its head says where the L3 header is, and the L4 header
    /// with its protocol, unless it is a fragment.
    ///
    /// Packets that are not to go on it takes out of the batch and frees with a reason; the order
    /// of the others stays. It adds none: packets that it makes it [emits](HookContext::emit).
    /// Called by any thread with a context, and must not wait.
    fn run(&self, cx: &mut HookContext<'_>, passage: Passage, batch: &mut Batch);
}

/// One hook behind the other in a slot.
struct Then(Arc<dyn Hook>, Arc<dyn Hook>);

impl Hook for Then {
    fn run(&self, cx: &mut HookContext<'_>, passage: Passage, batch: &mut Batch) {
        self.0.run(cx, passage, batch);
        if !batch.is_empty() {
            self.1.run(cx, passage, batch);
        }
    }
}

impl<'a> HookContext<'a> {
    /// For the hooks of `tables`; what they make comes out in `made`.
    pub fn new(ctx: &'a mut SoftnetData, now: u64, tables: &'a Tables, made: &'a mut Made) -> Self {
        HookContext { ctx, now, tables, made, redirected: false }
    }

    /// Says that packets may have other destinations, or be of the other family, so that their routes are
    /// looked up by those. To be called by a hook in [`Prerouting`](Slot::Prerouting) that changes one.
    #[inline(always)]
    pub fn redirect(&mut self) {
        self.redirected = true;
    }

    /// Whether a hook [said](Self::redirect) so.
    #[inline(always)]
    pub(super) fn is_redirected(&self) -> bool {
        self.redirected
    }

    /// Has `skb` sent to the destination that it says, as a packet that was made here: one with an
    /// Ethernet header, whatever that says but for the EtherType, before its IP header. The device
    /// in its head is that of a link-local destination, and the queue that of the packet it
    /// answers. It counts as one more; what was received and becomes its own answer [turns
    /// around](crate::skb::Head::turn_around), and counts as delivered.
    pub fn emit(&mut self, mut skb: Skb) {
        skb.head_mut().flags |= Flags::ORIGINATED;
        self.ctx.originate();
        self.made.0.push_back((skb, Exception::Made));
    }

    /// Has `skb`, a fragment that a hook took out of its batch in
    /// [`Prerouting`](Slot::Prerouting), wait for the others of its datagram, as those to softnet
    /// itself do (the kernel's `nf_ct_defrag`). When the datagram is whole it comes to that slot. It leaves
    /// cut to the next link's MTU, or (IPv6) in the fragments that it came in.
    pub fn gather(&mut self, skb: Skb) {
        self.made.0.push_back((skb, Exception::Fragment));
    }

    /// Has `skb`, which a hook took out of its batch in [`Prerouting`](Slot::Prerouting), come to that
    /// slot anew, as a packet by itself that the slow path handles: an aggregate in its segments.
    pub fn again(&mut self, skb: Skb) {
        self.made.0.push_back((skb, Exception::Unusual));
    }

    /// Has `skb`, which was made here and that a hook took out of its batch in
    /// [`Output`](Slot::Output), sent to the other destination that it says now, see
    /// [`emit`](Self::emit).
    pub fn resend(&mut self, skb: Skb) {
        self.made.0.push_back((skb, Exception::Made));
    }

    /// Drops `skb`, and has its sender told that it is not to pass: by a reset, if it is TCP,
    /// otherwise by an ICMP error. The slow path does that, within its limits.
    pub fn reject(&mut self, skb: Skb) {
        self.made.0.push_back((skb, Exception::Rejected));
    }

    /// Leads the packets of `batch` through the slot of `passage`: those that go on stay.
    #[inline(always)]
    pub fn run(&mut self, passage: Passage, batch: &mut Batch) {
        if self.tables.hooks.is_set(passage.slot) {
            batch.as_mut_slice().iter_mut().for_each(set_offsets);
            self.run_prepared(passage, batch);
        }
    }

    /// The same of packets whose heads [say](set_offsets) where their headers are.
    #[inline(always)]
    pub(super) fn run_prepared(&mut self, passage: Passage, batch: &mut Batch) {
        if let Some(hook) = &self.tables.hooks.slots[passage.slot as usize]
            && !batch.is_empty()
        {
            self.call(&**hook, passage, batch);
        }
    }

    #[cold]
    #[inline(never)]
    fn call(&mut self, hook: &dyn Hook, passage: Passage, batch: &mut Batch) {
        debug_assert!(batch.as_slice().iter().all(|skb| skb.head().l3 != 0));
        match self.ctx.may_trace() && batch.as_slice().iter().any(is_traced) {
            false => hook.run(self, passage, batch),
            true => self.call_traced(hook, passage, batch),
        }
    }

    /// The same, and tells traces what became of the packets that they follow.
    fn call_traced(&mut self, hook: &dyn Hook, passage: Passage, batch: &mut Batch) {
        let ends = |skb: &Skb| Ends::of(skb.data(), skb.len());
        let number = |skb: &Skb| (skb.region(), skb.index());
        let traced = batch.as_slice().iter().filter(|skb| is_traced(skb));
        let before: Vec<_> = traced.map(|skb| (number(skb), ends(skb))).collect();
        let made = self.made.len();
        hook.run(self, passage, batch);
        let HookContext { ctx, now, made: all_made, .. } = self;
        let slot = passage.slot;
        for skb in batch.as_slice() {
            if let Some((_, before)) = before.iter().find(|(one, _)| is_traced(skb) && *one == number(skb)) {
                let step = Step::Passed {
                    slot,
                    ends: (*before).zip(ends(skb)).map(|(before, behind)| [before, behind]),
                    conntrack: skb.head().conntrack,
                };
                ctx.trace(*now, skb, (skb.head().dev, skb.head().queue), step);
            }
        }
        // Those that are dropped say so themselves.
        for (skb, _) in all_made.0.iter().skip(made) {
            if before.iter().any(|(one, _)| *one == number(skb)) {
                ctx.trace(*now, skb, (skb.head().dev, skb.head().queue), Step::Taken(slot));
            }
        }
    }

    /// The same of one packet; `None` if it does not go on.
    pub fn pass(&mut self, passage: Passage, skb: Skb) -> Option<Skb> {
        if !self.tables.hooks.is_set(passage.slot) {
            return Some(skb);
        }
        let mut batch = Batch::from(skb);
        self.run(passage, &mut batch);
        let mut left = batch.drain();
        let skb = left.next();
        // A hook adds none.
        left.for_each(|skb| self.ctx.free(skb, DropReason::NetfilterDrop));
        skb
    }
}

/// Writes to the head of `skb` where its headers are, unless it says so: L3 always, L4 of all but
/// fragments.
#[inline(always)]
pub(super) fn set_offsets(skb: &mut Skb) {
    let (head, data) = skb.parts_mut();
    if head.l4 != 0 {
        return;
    }
    // Nearly all of IPv4 are without options, and no fragments.
    if let Some(both) = data.first_chunk::<{ ETH_LEN + MIN_LEN + 1 }>()
        && both[ETH_LEN] == 0x45
        && both[ETH_LEN + 6] & 0x3f | both[ETH_LEN + 7] == 0
    {
        let protocol = both[ETH_LEN + 9];
        (head.l3, head.l4, head.protocol) = (ETH_LEN as u16, (ETH_LEN + MIN_LEN) as u16, protocol);
        return;
    }
    find_offsets(skb);
}

#[cold]
#[inline(never)]
fn find_offsets(skb: &mut Skb) {
    let found = skb.data().get(ETH_LEN..).and_then(l4_of);
    let head = skb.head_mut();
    head.l3 = ETH_LEN as u16;
    if let Some((protocol, at)) = found {
        (head.protocol, head.l4) = (protocol, (ETH_LEN + at) as u16);
    }
}

/// Protocol of an IP packet, and where its header begins in the first frame, of which `packet` is
/// the rest from the L3 header on.
fn l4_of(packet: &[u8]) -> Option<(u8, usize)> {
    let (protocol, at) = match packet.first()? >> 4 {
        4 => Ipv4Header::new(packet)
            .filter(|header| !header.is_fragment())
            .map(|header| (header.protocol(), header.header_len())),
        _ => upper(packet)
            .ok()
            .filter(|upper| upper.protocol != next::FRAGMENT)
            .map(|upper| (upper.protocol, upper.at)),
    }?;
    (at < packet.len()).then_some((protocol, at))
}

/// Which part of a router a hook is of, in the order in which the hooks of a slot run (the kernel's
/// priorities). Each has one hook in a slot, and changes that alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Layer {
    /// What a program stands there itself.
    Program = 0,
    /// Translation of addresses.
    Nat,
    /// Filter rules.
    Filter,
}

/// How many there are.
const LAYERS: usize = 3;

/// What stands in each slot: part of [`Tables`].
#[derive(Clone, Default)]
pub struct Hooks {
    /// What runs: the layers of each slot, one behind the other.
    slots: [Option<Arc<dyn Hook>>; 5],
    layers: [[Option<Arc<dyn Hook>>; LAYERS]; 5],
    /// Destinations that the hook of [`Slot::Output`] makes others of, in the other family: so that
    /// what is made here for them gets there.
    pub crossing: Option<Crossing>,
}

/// See [`Hooks::crossing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// Of IPv4, which become hosts' of IPv6.
    pub v4: Prefix<Ipv4Addr>,
    /// Of IPv6, which become those of IPv4 that they contain.
    pub v6: Prefix6,
}

impl Crossing {
    /// Whether `addr` is one.
    pub(super) fn crosses(self, addr: IpAddr) -> bool {
        match addr {
            IpAddr::V4(addr) => self.v4.contains(addr),
            IpAddr::V6(addr) => self.v6.contains(addr),
        }
    }
}

impl Hooks {
    /// Puts `hook` in `slot` as that of the [program](Layer::Program), or (`None`) takes it out.
    pub fn set(&mut self, slot: Slot, hook: Option<Arc<dyn Hook>>) {
        self.set_layer(slot, Layer::Program, hook);
    }

    /// Puts `hook` in `slot` as that of `layer`, in place of the one that stands there, or (`None`) takes
    /// that out. Those of other layers stay.
    pub fn set_layer(&mut self, slot: Slot, layer: Layer, hook: Option<Arc<dyn Hook>>) {
        let layers = &mut self.layers[slot as usize];
        layers[layer as usize] = hook;
        let all = layers.iter().flatten().cloned();
        self.slots[slot as usize] = all.reduce(|first, then| Arc::new(Then(first, then)));
    }

    /// Takes the hooks of `layer` out of all slots.
    pub fn clear(&mut self, layer: Layer) {
        Slot::ALL.into_iter().for_each(|slot| self.set_layer(slot, layer, None));
    }

    /// Whether anything stands in `slot`.
    #[inline(always)]
    pub fn is_set(&self, slot: Slot) -> bool {
        self.slots[slot as usize].is_some()
    }
}
