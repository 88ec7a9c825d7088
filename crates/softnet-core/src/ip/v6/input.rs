//! IPv6 input and forwarding of a batch, in the same three passes as IPv4's.
//!
//! Called by [`ip_input`](super::super::input::ip_input). Every packet of the input ends in a batch to send, freed for a
//! counted reason, among the exceptions, or in the other family's batch. Neither lock nor clock nor allocation.

use std::net::Ipv6Addr;

use super::super::ETH_LEN;
use super::super::adjacency::{Adjacency, Kind, Routing};
use super::super::family::Family;
use super::super::input::{ETH_MIN, Exception, Exceptions, Ingress, TxBatches, Verdict, sort_out};
use super::super::source::{RpFilter, reverse_path};
use super::header::{Ipv6Header, LEN, next};
use crate::SoftnetData;
use crate::skb::{BATCH, Batch, DropReason, Skb};

/// Looks at one packet. The common case falls straight through.
#[inline(always)]
fn classify(packet: &[u8], mac: &[u8; 6]) -> Verdict<u128> {
    let Some(header) = packet.first_chunk::<{ ETH_LEN + LEN }>() else {
        return short(packet, mac);
    };
    let ip = &header[ETH_LEN..];
    // Addresses that are not plainly global begin with 0 (::, ::1, IPv4 in disguise), 0xfe (link-local) or 0xff (groups).
    let special = |first: u8| first.wrapping_add(2) < 3;
    let odd = special(ip[8]) | special(ip[24]) | (ip[6] == next::HOP_BY_HOP);
    if header[..6] != mac[..] || header[12..14] != [0x86, 0xdd] || ip[0] >> 4 != 6 || odd {
        return unusual(header, mac);
    }
    let total = LEN + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    if total > packet.len() - ETH_LEN {
        return Verdict::Drop(DropReason::IpInHdr);
    }
    Verdict::Forward(u128::from_be_bytes(std::array::from_fn(|i| ip[24 + i])))
}

/// The source address of a packet.
fn source(packet: &[u8]) -> Option<Ipv6Addr> {
    Some(Ipv6Header::new(packet.get(ETH_LEN..)?)?.src())
}

#[cold]
#[inline(never)]
fn short(packet: &[u8], mac: &[u8; 6]) -> Verdict<u128> {
    match packet.get(..ETH_LEN) {
        Some(eth) if eth[12..] != [0x86, 0xdd] => Verdict::Other,
        Some(eth) if eth[..6] != mac[..] && eth[0] & 1 == 0 => Verdict::Drop(DropReason::OtherHost),
        Some(_) => Verdict::Drop(DropReason::PktTooSmall),
        None => Verdict::Other,
    }
}

#[cold]
#[inline(never)]
fn unusual(header: &[u8; ETH_LEN + LEN], mac: &[u8; 6]) -> Verdict<u128> {
    if header[12..14] != [0x86, 0xdd] {
        return Verdict::Other;
    }
    if header[..6] != mac[..] && header[0] & 1 == 0 {
        return Verdict::Drop(DropReason::OtherHost);
    }
    Verdict::Exception(Exception::Unusual)
}

/// Processes the packets of `batch` that are IPv6, and leaves the others in `other`. Those that are neither are the
/// other family's to drop.
pub(in super::super) fn ipv6_input(
    ctx: &mut SoftnetData,
    tables: &Routing<Ipv6Addr>,
    ingress: &Ingress,
    batch: &mut Batch,
    other: &mut Batch,
    tx: &mut TxBatches,
    exceptions: &mut Exceptions,
) {
    // First pass: validate. The packets that go on stay in `batch`, in order.
    let mut dst = [0; BATCH];
    let mut n = 0;
    let mut odd = false;
    for (skb, dst) in batch.as_slice().iter().zip(&mut dst) {
        match classify(skb.data(), &ingress.mac) {
            Verdict::Forward(d) => *dst = d,
            _ => odd = true,
        }
        n += 1;
    }
    if odd {
        n = sort_out(ctx, |packet| classify(packet, &ingress.mac), batch, &mut dst, other, exceptions);
    }
    if ingress.rp_filter != RpFilter::Off {
        n = reverse_path(ctx, tables, ingress, batch, &mut dst, source);
    }
    // Second pass: look up.
    let mut hops = [0; BATCH];
    tables.fib.lookup_batch(&dst[..n], &mut hops[..n]);
    // Third pass: rewrite and sort by device.
    for ((mut skb, hop), dst) in batch.drain().zip(hops).zip(dst) {
        let mut hop = tables.next_hop(hop);
        if hop.kind == Kind::Connected
            && let Some(host) = tables.hosts.get(&Ipv6Addr::host_key(hop.dev, Ipv6Addr::from_bits(dst)))
        {
            hop = host;
        }
        if hop.kind != Kind::Rewrite {
            aside(ctx, tables, skb, hop, exceptions);
            continue;
        }
        let packet = skb.data_mut();
        let len = packet.len();
        let Some(header) = packet.first_chunk_mut::<{ ETH_LEN + LEN }>() else { continue };
        let total = LEN + usize::from(u16::from_be_bytes([header[18], header[19]]));
        if header[21] <= 1 || total > usize::from(hop.mtu) {
            let why = if header[21] <= 1 { Exception::Ttl } else { Exception::TooBig };
            exceptions.push(ctx, skb, why);
            continue;
        }
        header[..ETH_LEN].copy_from_slice(&hop.rewrite);
        header[21] -= 1;
        if len > ETH_MIN && len > ETH_LEN + total {
            skb.trim(ETH_MIN.max(ETH_LEN + total));
        }
        if let Err(skb) = tx.push(hop.dev, skb) {
            ctx.free(skb, DropReason::DevReady);
        }
    }
}

/// Sorts out a packet whose header is sound and plain, and which is not to be forwarded at once.
#[cold]
#[inline(never)]
fn aside(
    ctx: &mut SoftnetData,
    tables: &Routing<Ipv6Addr>,
    mut skb: Skb,
    hop: &Adjacency<Ipv6Addr>,
    exceptions: &mut Exceptions,
) {
    let datagram =
        skb.data().get(ETH_LEN..).and_then(Ipv6Header::new).filter(|ip| ip.next_header() == next::UDP);
    let (Kind::Local, Some(src)) = (hop.kind, datagram.map(|ip| ip.src())) else {
        return exceptions.push(ctx, skb, Exception::NextHop);
    };
    if tables.is_martian_source(src) {
        return ctx.free(skb, DropReason::IpInvalidSource);
    }
    skb.head_mut().l3 = ETH_LEN as u16;
    if let Err(skb) = exceptions.local.push(skb) {
        exceptions.push(ctx, skb, Exception::NextHop);
    }
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "input_tests.rs"]
mod tests;
