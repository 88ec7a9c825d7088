//! UDP input (RFC 768, RFC 1122 section 4.1): verifies a batch of datagrams, finds their sockets,
//! and hands the datagrams over.
//!
//! Called by polling threads, with whole packets (no fragments) of IPv4 or IPv6 that are addressed
//! to this host and whose headers are at [`l3`](crate::skb::Head::l3) and
//! [`l4`](crate::skb::Head::l4). It takes no lock, reads no clock and allocates nothing. Every packet ends in an inbox, in the batch of those
//! without a socket, or freed with its reason.

use super::super::arrivals::Arrivals;
use super::super::key::{Flow, is_v4};
use super::super::table::{Found, Hit};
use super::datagram::{NO_FLOW, UDP_LEN, parse};
use crate::SoftnetData;
use crate::ip::checksum;
use crate::ip::v4::header::protocol;
use crate::skb::{BATCH, Batch, DropReason, Skb};

/// Reads and verifies a datagram, and writes its flow to `flow`.
#[inline(always)]
fn verify(skb: &Skb, flow: &mut Flow) -> Result<(), DropReason> {
    let parsed = parse(skb)?;
    *flow = parsed.flow;
    if parsed.l4 + parsed.len > skb.len() {
        return Err(DropReason::PktTooSmall);
    }
    let data = skb.data();
    let v4 = is_v4(parsed.flow.local);
    if data.get(parsed.l4 + 6..parsed.l4 + UDP_LEN) == Some(&[0, 0]) {
        // There is no checksum, which only IPv4 allows (RFC 768; RFC 8200 section 8.1).
        return if v4 { Ok(()) } else { Err(DropReason::UdpCsum) };
    }
    let addresses = if v4 { parsed.l3 + 12..parsed.l3 + 20 } else { parsed.l3 + 8..parsed.l3 + 40 };
    let pseudo = checksum::sum(data.get(addresses).unwrap_or_default());
    let head = checksum::add(pseudo, checksum::add(u16::from(protocol::UDP), parsed.len as u16));
    let (_, sum) = checksum::sum_skb(skb, parsed.l4, parsed.len);
    if checksum::add(head, sum) == 0xffff { Ok(()) } else { Err(DropReason::UdpCsum) }
}

/// Hands the datagrams of `local` over to their sockets, and leaves it empty. Those without a socket come out in `unserved`,
/// not counted.
pub fn udp_input(ctx: &mut SoftnetData, to: &mut Arrivals<'_>, local: &mut Batch, unserved: &mut Batch) {
    let sockets = to.sockets;
    // First pass: verify, and prefetch the buckets of the look-ups. Flows stay where they are
    // written: moving one would stall on its words, which were stored one by one.
    let mut flows = [NO_FLOW; BATCH];
    let mut refused = [None; BATCH];
    let mut probes = [const { None }; BATCH];
    let skbs = local.as_slice();
    for (at, skb) in skbs.iter().enumerate() {
        if let Some(next) = skbs.get(at + 1) {
            next.prefetch_data();
        }
        refused[at] = verify(skb, &mut flows[at]).err();
        if refused[at].is_none() {
            probes[at] = sockets.probe(&flows[at]);
        }
    }
    // Second pass: prefetch the first slot of each.
    probes[..skbs.len()].iter().flatten().for_each(|probe| sockets.prefetch_slot(probe));
    // Third pass: look up and hand over, in runs for one socket.
    let mut run = Batch::new();
    let mut whose: Option<Hit> = None;
    for (skb, ((flow, probe), refused)) in local.drain().zip(flows.iter().zip(&probes).zip(&refused)) {
        let found = match refused {
            None => sockets.lookup_from(probe.as_ref(), flow, to.napi_id),
            Some(reason) => {
                ctx.free(skb, *reason);
                continue;
            }
        };
        match found {
            Found::Socket(hit) => {
                if whose != Some(hit)
                    && let Some(before) = whose.replace(hit)
                {
                    // The run comes from one batch, and so fits another.
                    to.hand_over(ctx, before, &mut run);
                }
                keep(ctx, &mut run, skb);
            }
            Found::None => keep(ctx, unserved, skb),
            Found::Contended => ctx.free(skb, DropReason::SocketClose),
        }
    }
    if let Some(hit) = whose {
        to.hand_over(ctx, hit, &mut run);
    }
}

/// Has `deliver` hand a copy of the datagram `skb`, which is to many, [over](Arrivals::hand_over) to each of the `members`
/// for its flow. There is one copy at a time, so that what has to be reserved is no more than that.
pub fn udp_members(
    ctx: &mut SoftnetData,
    members: impl FnOnce(&Flow) -> Vec<Hit>,
    skb: Skb,
    mut deliver: impl FnMut(&mut SoftnetData, Hit, &mut Batch),
) {
    let mut flow = NO_FLOW;
    if let Err(reason) = verify(&skb, &mut flow) {
        return ctx.free(skb, reason);
    }
    let members = members(&flow);
    let Some((last, others)) = members.split_last() else {
        return ctx.free(skb, DropReason::IpNoProto);
    };
    for hit in others {
        // Without memory for a copy, that member does not get it.
        if let Some(copy) = ctx.copy(&skb) {
            ctx.originate();
            deliver(ctx, *hit, &mut Batch::from(copy));
        }
    }
    deliver(ctx, *last, &mut Batch::from(skb));
}

/// Appends a packet to a batch that has room for it.
#[inline(always)]
fn keep(ctx: &mut SoftnetData, batch: &mut Batch, skb: Skb) {
    if let Err(skb) = batch.push(skb) {
        ctx.free(skb, DropReason::SocketRcvbuff);
    }
}
