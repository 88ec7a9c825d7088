//! Input and forwarding of a batch: the fast path. [`ip_input`] takes whatever came by a device; the three passes are written
//! once, and what differs between the families is a `FastPath`.
//!
//! Called by the poller that owns the RX queue, with the batch of one poll. It does what nearly every packet needs (validate,
//! look up, TTL or hop limit, new link header) and sorts the rest out: every packet of the input ends freed here for a counted
//! reason, or in exactly one place of the [`Outcome`]. Neither lock nor clock nor allocation.

#[cfg(all(test, not(feature = "loom")))]
mod bench;
mod outcome;
mod v4;
mod v6;

pub use outcome::{Exception, Exceptions, Outcome, TxBatches};

use std::net::{Ipv4Addr, Ipv6Addr};

use super::adjacency::{Adjacency, Kind};
use super::ethernet::{EthHeader, ethertype};
use super::family::{Family, LongestMatch};
use super::hooks::{HookContext, Passage, Slot, set_offsets};
use super::source::{RpFilter, reverse_path};
use super::tables::{Routing, Tables};
use super::{ETH_LEN, MacAddr};
use crate::SoftnetData;
use crate::gso;
use crate::skb::{BATCH, Batch, DropReason, Skb, VlanProto};
use crate::sock::Transport;
use crate::steer::skb_get_hash;
use crate::tap::trace::{Step, is_traced};
use crate::vlan;

/// Smallest Ethernet frame without its check sequence: shorter packets are padded to this on the wire.
const ETH_MIN: usize = 60;

/// The device a batch came by.
#[derive(Clone, Copy, Debug)]
pub struct Ingress {
    /// Device index.
    pub dev: u16,
    /// Its MAC address.
    pub mac: MacAddr,
    /// Whether partial L4 checksums may arrive and are to be completed.
    pub partial_csum: bool,
    /// Whether sources are asked for their way back.
    pub rp_filter: RpFilter,
}

/// What the header of a packet says: the destination to look up, or why it is not simply forwarded.
enum Verdict<A> {
    Forward(A),
    Exception(Exception),
    Drop(DropReason),
    /// It has a tag without a VLAN, and is to be looked at without.
    Untag,
    /// It is for the other family's input.
    Other,
}

/// What the passes ask of a family.
trait FastPath: Family {
    /// Bytes of the IP header of a frame that was classified.
    const HEADER_LEN: usize;

    /// Looks at a packet of `len` bytes, those in `frame` first, that came to the station `mac`. The common case falls straight
    /// through.
    fn classify(frame: &[u8], len: usize, mac: &MacAddr) -> Verdict<Self::Bits>;

    /// Makes of a frame that was classified as one to forward what leaves towards `hop`: one hop less, and the new link header.
    /// Returns the bytes of the frame, without link-layer padding. The frame is as it was if that can't be.
    fn forward(frame: &mut [u8], hop: &Adjacency<Self>) -> Result<usize, Exception>;

    /// Source address of a frame that was classified.
    fn source(frame: &[u8]) -> Option<Self>;

    /// Destination of a frame that was classified; `None` if a hook made it of the other family.
    fn destination(frame: &[u8]) -> Option<Self::Bits>;

    /// IANA's number of the protocol that a frame for softnet itself carries; `None` if it is only a piece of a packet.
    fn protocol(frame: &[u8]) -> Option<u8>;
}

/// Processes `batch`, which came by `ingress` at `now`, and leaves it empty.
pub fn ip_input(
    ctx: &mut SoftnetData,
    tables: &Tables,
    (ingress, now): (&Ingress, u64),
    batch: &mut Batch,
    out: &mut Outcome,
) {
    if ingress.partial_csum {
        for skb in batch.as_mut_slice() {
            super::partial::complete(skb);
        }
    }
    families_input(ctx, tables, (ingress, now), batch, out);
    let dev = ingress.dev;
    tx_hook(ctx, tables, (Slot::Forward, dev, now), out);
    // Of what may go on, before its source may be another.
    let back = out.tx.of(dev);
    if !back.is_empty() {
        out.slow.redirect.look(tables, dev, back);
    }
    tx_hook(ctx, tables, (Slot::Postrouting, dev, now), out);
    if tables.hooks.is_set(Slot::Input) {
        let Outcome { local, slow, .. } = out;
        let mut cx = HookContext::new(ctx, now, tables, &mut slow.made);
        for transport in Transport::ALL {
            cx.run(Passage::new(Slot::Input, Some(dev), None), &mut local[transport]);
        }
    }
}

/// Leads what is to leave, and came by device `dev` at `now`, through `slot`.
#[inline(always)]
fn tx_hook(ctx: &mut SoftnetData, tables: &Tables, (slot, dev, now): (Slot, u16, u64), out: &mut Outcome) {
    if tables.hooks.is_set(slot) {
        let Outcome { tx, slow, .. } = out;
        let mut cx = HookContext::new(ctx, now, tables, &mut slow.made);
        // What passed the first slot says where its headers are.
        let prepared = tables.hooks.is_set(Slot::Prerouting);
        tx.each(|to, batch| {
            let passage = Passage::new(slot, Some(dev), Some(to));
            if prepared { cx.run_prepared(passage, batch) } else { cx.run(passage, batch) }
        });
    }
}

#[inline(always)]
fn families_input(
    ctx: &mut SoftnetData,
    tables: &Tables,
    ingress: (&Ingress, u64),
    batch: &mut Batch,
    out: &mut Outcome,
) {
    // Most batches are of one family: the first packet's goes first, and hands over what is not its own.
    let mut other = Batch::new();
    let first = batch.as_slice().first().and_then(|skb| EthHeader::new(skb.data()));
    if first.is_some_and(|eth| eth.ethertype() == ethertype::IPV6) {
        family_input::<Ipv6Addr>(ctx, tables, ingress, batch, &mut other, out);
        if other.is_empty() {
            return;
        }
        std::mem::swap(batch, &mut other);
    }
    family_input::<Ipv4Addr>(ctx, tables, ingress, batch, &mut other, out);
    if !other.is_empty() {
        family_input::<Ipv6Addr>(ctx, tables, ingress, &mut other, batch, out);
        // No hook makes of a packet what it was before.
        ctx.free_batch(batch, DropReason::NetfilterDrop);
    }
}

/// Processes the packets of `batch` that are of family `F`, and leaves the others in `other`. What is of neither is IPv4's to
/// drop.
// Not inlined: its loops have the registers to themselves.
#[inline(never)]
fn family_input<F: FastPath>(
    ctx: &mut SoftnetData,
    all: &Tables,
    (ingress, now): (&Ingress, u64),
    batch: &mut Batch,
    other: &mut Batch,
    out: &mut Outcome,
) {
    let tables = F::routing(all);
    // First pass: validate. The packets that go on stay in `batch`, in order.
    let mut dst = [F::Bits::default(); BATCH];
    let hooked = all.hooks.is_set(Slot::Prerouting);
    let (mut n, mut odd) = match hooked {
        true => classify_all::<F, true>(ingress, batch, &mut dst),
        false => classify_all::<F, false>(ingress, batch, &mut dst),
    };
    if odd {
        n = sort_out::<F>(ctx, ingress, batch, &mut dst, other, (&mut out.slow, Exception::Unusual));
    }
    // Before hooks see it: what a packet does to its connection is done by one that may come.
    if ingress.rp_filter != RpFilter::Off {
        n = reverse_path(ctx, tables, ingress, batch, &mut dst, F::source);
    }
    if hooked {
        let mut cx = HookContext::new(ctx, now, all, &mut out.slow.made);
        let passage = Passage::new(Slot::Prerouting, Some(ingress.dev), None);
        if odd {
            cx.run(passage, batch)
        } else {
            cx.run_prepared(passage, batch)
        }
        let may_redirect = cx.is_redirected();
        debug_assert!(
            may_redirect || batch.len() != n || all_to::<F>(batch, &dst),
            "a hook changes a destination, and does not say so"
        );
        let redirected = batch.len() != n || may_redirect && !all_to::<F>(batch, &dst);
        // What the slow path validates step by step passes the slot there, and this has.
        odd = false;
        if redirected {
            (n, odd) = classify_all::<F, true>(ingress, batch, &mut dst);
        }
        if odd {
            n = sort_out::<F>(ctx, ingress, batch, &mut dst, other, (&mut out.slow, Exception::NextHop));
        }
    }
    // Second pass: look up.
    let mut hops = [0; BATCH];
    tables.fib.lookup_batch(&dst[..n], &mut hops[..n]);
    // Third pass: rewrite. Most batches leave by one device, and need no sorting then.
    let first = hops[..n].first().map_or(0, |hop| tables.next_hop(*hop).dev);
    let mut fates = [Fate::to(first); BATCH];
    let mut same = true;
    let packets = batch.as_mut_slice().iter_mut().zip(&mut fates);
    for ((skb, fate), (&hop, &dst)) in packets.zip(hops.iter().zip(&dst)) {
        *fate = rewrite(tables.resolve(hop, dst, || skb_get_hash(skb)), skb);
        same &= *fate == Fate::to(first);
    }
    if ctx.may_trace() {
        trace_routes(ctx, tables, now, batch, (&dst, &hops));
    }
    if same && out.tx.append(first, batch) {
        return;
    }
    // Fourth pass: sort by device.
    for ((skb, fate), (&hop, &dst)) in batch.drain().zip(fates).zip(hops.iter().zip(&dst)) {
        if let Some(dev) = fate.device() {
            if let Err(skb) = out.tx.push(dev, skb) {
                ctx.free(skb, DropReason::DevReady);
            }
            continue;
        }
        match fate.exception() {
            Some(why) => out.slow.push(ctx, skb, why),
            // What is for softnet is so by whichever next hop.
            None => deliver(ctx, tables, skb, tables.resolve(hop, dst, || 0), out),
        }
    }
}

/// Tells traces what was found for the packets of `batch` that they follow.
#[cold]
#[inline(never)]
fn trace_routes<F: FastPath>(
    ctx: &mut SoftnetData,
    tables: &Routing<F>,
    now: u64,
    batch: &mut Batch,
    (dst, hops): (&[F::Bits; BATCH], &[u32; BATCH]),
) {
    for (skb, (&dst, &hop)) in batch.as_mut_slice().iter_mut().zip(dst.iter().zip(hops)) {
        if is_traced(skb) {
            let hop = tables.resolve(hop, dst, || skb_get_hash(skb));
            let step = route_step(tables, F::from_bits(dst), hop);
            ctx.trace(now, skb, (hop.dev, skb.head().queue), step);
        }
    }
}

/// That `hop` was found for `dst`, for traces.
pub(in crate::ip) fn route_step<F: Family>(tables: &Routing<F>, dst: F, hop: &Adjacency<F>) -> Step {
    let by_gateway = matches!(hop.kind, Kind::Rewrite | Kind::Resolve) && hop.gateway != dst;
    Step::Route {
        dst: dst.into(),
        len: tables.fib.matched_len(dst),
        kind: hop.kind,
        gateway: by_gateway.then(|| hop.gateway.into()),
        mac: hop.rewrite.first_chunk().copied().filter(|_| hop.kind == Kind::Rewrite),
    }
}

/// Writes to `dst` where the packets of `batch` go, and (`HOOKED`) to the heads of those that are simply
/// forwarded where their headers are. Returns how many there are, and whether some are not simply forwarded.
#[inline(always)]
fn classify_all<F: FastPath, const HOOKED: bool>(
    ingress: &Ingress,
    batch: &mut Batch,
    dst: &mut [F::Bits; BATCH],
) -> (usize, bool) {
    let (mut n, mut odd) = (0, false);
    for (skb, dst) in batch.as_mut_slice().iter_mut().zip(dst) {
        // A packet of several frames looks as if it were cut off here, and is looked at again.
        let frame = skb.data();
        match F::classify(frame, frame.len(), &ingress.mac) {
            Verdict::Forward(d) => {
                *dst = d;
                if HOOKED {
                    set_offsets(skb);
                }
            }
            _ => odd = true,
        }
        n += 1;
    }
    (n, odd)
}

/// Whether the packets of `batch` go where `dst` says.
fn all_to<F: FastPath>(batch: &Batch, dst: &[F::Bits; BATCH]) -> bool {
    batch.as_slice().iter().zip(dst).all(|(skb, dst)| F::destination(skb.data()) == Some(*dst))
}

/// What the third pass made of a packet, in one word, so that those of a batch are quickly compared: the device that it leaves
/// by, or why it does not.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Fate(u32);

impl Fate {
    /// Its next hop is not one to rewrite it for.
    const DELIVER: Fate = Fate(1 << 16);

    #[inline(always)]
    fn to(dev: u16) -> Fate {
        Fate(dev.into())
    }

    fn slow(why: Exception) -> Fate {
        Fate(2 << 16 | why as u32)
    }

    #[inline(always)]
    fn device(self) -> Option<u16> {
        u16::try_from(self.0).ok()
    }

    fn exception(self) -> Option<Exception> {
        (self != Fate::DELIVER).then(|| Exception::of(self.0 as u8))
    }
}

/// Makes of a packet what leaves towards `hop`.
#[inline(always)]
fn rewrite<F: FastPath>(hop: &Adjacency<F>, skb: &mut Skb) -> Fate {
    if hop.kind != Kind::Rewrite {
        return Fate::DELIVER;
    }
    let frame = skb.data_mut();
    // A packet of several frames has no padding.
    let len = frame.len();
    match F::forward(frame, hop) {
        Ok(total) => {
            if len > ETH_MIN && len > total {
                skb.trim(ETH_MIN.max(total));
            }
            Fate::to(hop.dev)
        }
        Err(why) => rewrite_aggregate(hop, skb, why),
    }
}

/// The same of a packet that is not simply forwarded, for the reason `why`. One that is too long as
/// a whole is forwarded if its segments are not (the kernel's `skb_gso_validate_network_len`).
#[cold]
#[inline(never)]
fn rewrite_aggregate<F: FastPath>(hop: &Adjacency<F>, skb: &mut Skb, why: Exception) -> Fate {
    let fits = |skb: &Skb| gso::network_len(skb).is_some_and(|len| len <= hop.mtu.into());
    if why == Exception::TooBig && fits(skb) {
        let any_length = Adjacency { mtu: u16::MAX, ..*hop };
        if F::forward(skb.data_mut(), &any_length).is_ok() {
            return Fate::to(hop.dev);
        }
    }
    Fate::slow(why)
}

/// A packet whose header is sound and plain, and which is not to be forwarded at once: hands it to the protocol that takes it,
/// or to the slow path.
#[inline(never)]
fn deliver<F: FastPath>(
    ctx: &mut SoftnetData,
    tables: &Routing<F>,
    mut skb: Skb,
    hop: &Adjacency<F>,
    out: &mut Outcome,
) {
    let frame = skb.data();
    let transport = F::protocol(frame).and_then(|number| Some((number, Transport::of(number)?)));
    let (Kind::Local, Some((protocol, transport)), Some(src)) = (hop.kind, transport, F::source(frame))
    else {
        return out.slow.push(ctx, skb, Exception::NextHop);
    };
    if tables.is_martian_source(src) {
        return ctx.free(skb, DropReason::IpInvalidSource);
    }
    let head = skb.head_mut();
    (head.l3, head.l4) = (ETH_LEN as u16, (ETH_LEN + F::HEADER_LEN) as u16);
    head.protocol = protocol;
    out.deliver(ctx, skb, transport);
}

/// Takes everything that is not to be forwarded out of `batch`; `other` gets the other family's. What is unusual goes to the slow
/// path as `unusual`. Returns how many packets are left, whose destinations are then the first of `dst`.
#[cold]
#[inline(never)]
fn sort_out<F: FastPath>(
    ctx: &mut SoftnetData,
    ingress: &Ingress,
    batch: &mut Batch,
    dst: &mut [F::Bits; BATCH],
    other: &mut Batch,
    (slow, unusual): (&mut Exceptions, Exception),
) -> usize {
    let mut good = Batch::new();
    for mut skb in batch.drain() {
        let mut verdict = F::classify(skb.data(), skb.len(), &ingress.mac);
        if let Verdict::Untag = verdict {
            // Its priority is that of a link, and goes no further.
            vlan::take_out(&mut skb);
            skb.head_mut().vlan_proto = VlanProto::None;
            if ingress.partial_csum {
                // With the tag, its headers were not where they are looked for.
                super::partial::complete(&mut skb);
            }
            verdict = F::classify(skb.data(), skb.len(), &ingress.mac);
        }
        let kept = match verdict {
            Verdict::Forward(d) => {
                if let Some(slot) = dst.get_mut(good.len()) {
                    *slot = d;
                }
                good.push(skb)
            }
            Verdict::Other => other.push(skb),
            Verdict::Exception(kind) => {
                let kind = if kind == Exception::Unusual { unusual } else { kind };
                slow.push(ctx, skb, kind);
                Ok(())
            }
            Verdict::Drop(reason) => {
                ctx.free(skb, reason);
                Ok(())
            }
            // Nothing has two priorities.
            Verdict::Untag => {
                ctx.free(skb, DropReason::UnhandledProto);
                Ok(())
            }
        };
        // All batches have as many places.
        if let Err(skb) = kept {
            ctx.free(skb, DropReason::Shutdown);
        }
    }
    std::mem::swap(batch, &mut good);
    batch.len()
}
