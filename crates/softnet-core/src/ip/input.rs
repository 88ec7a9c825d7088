//! Input and forwarding of a batch: the fast path. [`ip_input`] takes whatever came; IPv4 is done here, IPv6 in
//! `v6::input`.
//!
//! Called by whoever polls, with the batch of one RX queue. It does what nearly every packet needs (validate,
//! look up, TTL, rewrite) and sorts the rest out: packets to send per device, drops (freed here, counted), datagrams
//! for sockets, and exceptions for [`slow`](super::slow). Every packet of the input ends in exactly one of the four.
//! Neither lock nor clock nor allocation.

use std::net::Ipv4Addr;

use super::ETH_LEN;
use super::adjacency::{Adjacency, Kind, Routing, Tables, host_key};
use super::checksum::{ipv4_header_sum, ttl_decremented};
use super::header::{
    Ipv4Header, is_link_local, is_martian_destination, is_martian_source, is_multicast, protocol,
};
use super::source::{RpFilter, reverse_path};
use super::{redirect, v6};
use crate::SoftnetData;
use crate::skb::{BATCH, Batch, DropReason, Skb};
use crate::softnet_data::MAX_DEVICES;

const IPV4_LEN: usize = 20;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// VLAN tags of customers and of providers. One of VLAN 0 has only a priority (IEEE 802.1Q section 6.9).
const ETHERTYPE_TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
const TAG_LEN: usize = 4;
/// Smallest Ethernet frame without its check sequence: shorter packets are padded to this on the wire.
pub(super) const ETH_MIN: usize = 60;

/// Why a packet needs more than the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exception {
    /// An ARP packet.
    Arp,
    /// A broadcast or multicast, an IPv4 header with options, an IPv6 packet with hop-by-hop options or an address that is
    /// not plainly global: validate step by step.
    Unusual,
    /// TTL, or hop limit, ran out.
    Ttl,
    /// The look-up's result is not a plain rewrite: local, unresolved, no route, …
    NextHop,
    /// Larger than the outgoing MTU.
    TooBig,
    /// A datagram to softnet itself that no socket is bound to.
    NoSocket,
}

/// The device a batch came by.
#[derive(Clone, Copy, Debug)]
pub struct Ingress {
    /// Device index.
    pub dev: u16,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Whether partial L4 checksums may arrive and are to be completed.
    pub partial_csum: bool,
    /// Whether sources are asked for their way back.
    pub rp_filter: RpFilter,
}

/// Packets that need the slow path, each with the reason, and those that are for sockets.
pub struct Exceptions {
    /// The packets.
    pub batch: Batch,
    kinds: [u8; BATCH],
    /// UDP to softnet itself, whole datagrams: not for the slow path, unless nobody wants them.
    pub local: Batch,
    /// A packet that goes back to the link it came from, for the slow path to tell its sender.
    pub redirect: redirect::Candidate,
}

impl Default for Exceptions {
    fn default() -> Self {
        let redirect = redirect::Candidate::default();
        Exceptions { batch: Batch::new(), kinds: [0; BATCH], local: Batch::new(), redirect }
    }
}

impl Exceptions {
    /// Adds a packet.
    pub fn push(&mut self, ctx: &mut SoftnetData, skb: Skb, kind: Exception) {
        if let Some(slot) = self.kinds.get_mut(self.batch.len()) {
            *slot = kind as u8;
        }
        // An input batch has no more packets than an exception batch has places.
        if let Err(skb) = self.batch.push(skb) {
            ctx.free(skb, DropReason::Shutdown);
        }
    }

    /// Takes the packets out, each with its reason.
    pub fn drain(&mut self) -> impl Iterator<Item = (Skb, Exception)> {
        let kinds = self.kinds;
        self.batch.drain().zip(kinds).map(|(skb, kind)| {
            let kind = match kind {
                k if k == Exception::Arp as u8 => Exception::Arp,
                k if k == Exception::Unusual as u8 => Exception::Unusual,
                k if k == Exception::Ttl as u8 => Exception::Ttl,
                k if k == Exception::TooBig as u8 => Exception::TooBig,
                k if k == Exception::NoSocket as u8 => Exception::NoSocket,
                _ => Exception::NextHop,
            };
            (skb, kind)
        })
    }
}

/// Packets to send: one batch per device, and which of them are not empty.
pub struct TxBatches {
    batches: Box<[Batch]>,
    used: u64,
}

impl Default for TxBatches {
    fn default() -> Self {
        Self::new()
    }
}

impl TxBatches {
    /// Empty batches for every possible device.
    pub fn new() -> Self {
        TxBatches { batches: (0..MAX_DEVICES).map(|_| Batch::new()).collect(), used: 0 }
    }

    /// Appends `skb` to the batch of `dev`, or hands it back if that is full or there is no such device.
    #[inline(always)]
    pub fn push(&mut self, dev: u16, skb: Skb) -> Result<(), Skb> {
        match self.batches.get_mut(usize::from(dev)) {
            Some(batch) => {
                self.used |= 1 << (dev % 64);
                batch.push(skb)
            }
            None => Err(skb),
        }
    }

    /// The packets for `dev` so far.
    #[inline(always)]
    fn of(&self, dev: u16) -> &[Skb] {
        match self.used & 1 << (dev % 64) {
            0 => &[],
            _ => self.batches.get(usize::from(dev)).map_or(&[], |batch| batch.as_slice()),
        }
    }

    /// Hands every batch that is not empty to `send`, and expects it empty afterwards.
    #[inline]
    pub fn flush(&mut self, mut send: impl FnMut(u16, &mut Batch)) {
        while self.used != 0 {
            let dev = self.used.trailing_zeros() as u16;
            self.used &= self.used - 1;
            send(dev, &mut self.batches[usize::from(dev)]);
        }
    }
}

const _: () = assert!(MAX_DEVICES <= 64);

/// What an address may be by its first octet: RFC 1812 section 5.3.7, RFC 6890.
static MARTIAN: [u8; 256] = {
    let mut table = [0; 256];
    let mut first = 0;
    while first < 256 {
        let addr = (first as u32) << 24;
        table[first] = if is_martian_source(addr) { MARTIAN_SOURCE } else { 0 }
            | if is_martian_destination(addr) { MARTIAN_DEST } else { 0 }
            | if is_multicast(addr) { GROUP } else { 0 }
            | if first == 169 { LINK_LOCAL } else { 0 };
        first += 1;
    }
    table
};

/// It can't be a source.
const MARTIAN_SOURCE: u8 = 1 << 0;
/// It can't be a destination.
const MARTIAN_DEST: u8 = 1 << 1;
/// It is a group.
const GROUP: u8 = 1 << 2;
/// It may be link-local.
const LINK_LOCAL: u8 = 1 << 3;

/// What the header of a packet says: the destination to look up, or why it is not simply forwarded.
pub(super) enum Verdict<A> {
    Forward(A),
    Exception(Exception),
    Drop(DropReason),
    /// It has a tag without a VLAN, and is to be looked at without.
    Untag,
    /// It is for the other family's input.
    Other,
}

#[inline(always)]
fn be32(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..at + 4) {
        Some(b) => u32::from_be_bytes([b[0], b[1], b[2], b[3]]),
        None => 0,
    }
}

/// Looks at one packet. The common case falls straight through.
#[inline(always)]
fn classify(packet: &[u8], mac: &[u8; 6]) -> Verdict<u32> {
    let Some(header) = packet.first_chunk::<{ ETH_LEN + IPV4_LEN }>() else {
        return short(packet, mac);
    };
    // One compare each for the addresses and for EtherType, version and header length.
    if header[..6] != mac[..] || header[12..15] != [0x08, 0x00, 0x45] {
        return unusual(packet, mac);
    }
    let ip: &[u8; IPV4_LEN] = match header[ETH_LEN..].first_chunk() {
        Some(ip) => ip,
        None => return Verdict::Drop(DropReason::PktTooSmall),
    };
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    if total < IPV4_LEN || total > packet.len() - ETH_LEN {
        return Verdict::Drop(DropReason::IpInHdr);
    }
    if ipv4_header_sum(ip) != 0xffff {
        return Verdict::Drop(DropReason::IpCsum);
    }
    let suspect = MARTIAN[usize::from(ip[12])] & (MARTIAN_SOURCE | LINK_LOCAL)
        | MARTIAN[usize::from(ip[16])] & (MARTIAN_DEST | GROUP | LINK_LOCAL);
    if suspect != 0
        && let Some(verdict) = judge(suspect, be32(ip, 12), be32(ip, 16))
    {
        return verdict;
    }
    Verdict::Forward(be32(ip, 16))
}

/// Looks closer at addresses of which `suspect` says what they may be.
#[cold]
#[inline(never)]
fn judge(suspect: u8, src: u32, dst: u32) -> Option<Verdict<u32>> {
    if suspect & MARTIAN_SOURCE != 0 {
        return Some(Verdict::Drop(DropReason::IpInvalidSource));
    }
    if suspect & (MARTIAN_DEST | GROUP) != 0 {
        return Some(Verdict::Drop(DropReason::IpInvalidDest));
    }
    // They may be for softnet, but go no further.
    (is_link_local(src) || is_link_local(dst)).then_some(Verdict::Exception(Exception::Unusual))
}

#[cold]
#[inline(never)]
fn short(packet: &[u8], mac: &[u8; 6]) -> Verdict<u32> {
    match packet.get(..ETH_LEN) {
        Some(eth) if eth[..6] != mac[..] && eth[0] & 1 == 0 => Verdict::Drop(DropReason::OtherHost),
        Some(eth) if eth[12..14] == ETHERTYPE_ARP => Verdict::Exception(Exception::Arp),
        Some(eth) if eth[12..14] == ETHERTYPE_IPV6 => Verdict::Other,
        Some(eth) if eth[12..14] != ETHERTYPE_IPV4 => Verdict::Drop(DropReason::UnhandledProto),
        _ => Verdict::Drop(DropReason::PktTooSmall),
    }
}

#[cold]
#[inline(never)]
fn unusual(packet: &[u8], mac: &[u8; 6]) -> Verdict<u32> {
    let to_us = packet[..6] == mac[..];
    if !to_us && packet[0] & 1 == 0 {
        return Verdict::Drop(DropReason::OtherHost);
    }
    let ethertype = [packet[12], packet[13]];
    if ethertype == ETHERTYPE_ARP {
        return Verdict::Exception(Exception::Arp);
    }
    if ethertype == ETHERTYPE_IPV6 {
        return Verdict::Other;
    }
    if ETHERTYPE_TAGS.contains(&ethertype) && (packet[14] & 0x0f, packet[15]) == (0, 0) {
        return Verdict::Untag;
    }
    if ethertype != ETHERTYPE_IPV4 {
        return Verdict::Drop(DropReason::UnhandledProto);
    }
    Verdict::Exception(Exception::Unusual)
}

/// Processes `batch`, which came by `ingress`, and leaves it empty.
pub fn ip_input(
    ctx: &mut SoftnetData,
    tables: &Tables,
    ingress: &Ingress,
    batch: &mut Batch,
    tx: &mut TxBatches,
    exceptions: &mut Exceptions,
) {
    if ingress.partial_csum {
        for skb in batch.as_mut_slice() {
            super::partial::complete(skb.data_mut());
        }
    }
    families_input(ctx, tables, ingress, batch, tx, exceptions);
    let back = tx.of(ingress.dev);
    if !back.is_empty() {
        exceptions.redirect.look(tables, ingress.dev, back);
    }
}

#[inline(always)]
fn families_input(
    ctx: &mut SoftnetData,
    tables: &Tables,
    ingress: &Ingress,
    batch: &mut Batch,
    tx: &mut TxBatches,
    exceptions: &mut Exceptions,
) {
    // Most batches are of one family: the first packet's goes first, and hands over what is not its own.
    let mut other = Batch::new();
    let v6 = batch.as_slice().first().is_some_and(|skb| skb.data().get(12..14) == Some(&ETHERTYPE_IPV6));
    if v6 {
        v6::input::ipv6_input(ctx, &tables.v6, ingress, batch, &mut other, tx, exceptions);
        if other.is_empty() {
            return;
        }
        std::mem::swap(batch, &mut other);
    }
    ipv4_input(ctx, &tables.v4, ingress, batch, &mut other, tx, exceptions);
    if !other.is_empty() {
        v6::input::ipv6_input(ctx, &tables.v6, ingress, &mut other, batch, tx, exceptions);
    }
}

/// Processes the packets of `batch` but those of IPv6, which it leaves in `other`.
// Not inlined: its loops have the registers to themselves.
#[inline(never)]
fn ipv4_input(
    ctx: &mut SoftnetData,
    tables: &Routing<Ipv4Addr>,
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
        let src =
            |packet: &[u8]| packet.len().checked_sub(ETH_LEN + 16).map(|_| be32(packet, ETH_LEN + 12).into());
        n = reverse_path(ctx, tables, ingress, batch, &mut dst, src);
    }
    // Second pass: look up.
    let mut hops = [0; BATCH];
    tables.fib.lookup_batch(&dst[..n], &mut hops[..n]);
    // Third pass: rewrite and sort by device.
    for ((mut skb, &hop), &dst) in batch.drain().zip(&hops).zip(&dst) {
        let mut hop = tables.next_hop(hop);
        if hop.kind == Kind::Connected
            && let Some(host) = tables.hosts.get(&host_key(hop.dev, dst))
        {
            hop = host;
        }
        let packet = skb.data_mut();
        if hop.kind != Kind::Rewrite {
            aside(ctx, tables, skb, hop, exceptions);
            continue;
        }
        let Some(header) = packet.first_chunk_mut::<{ ETH_LEN + IPV4_LEN }>() else { continue };
        let total = u16::from_be_bytes([header[16], header[17]]);
        if header[22] <= 1 || total > hop.mtu {
            let why = if header[22] <= 1 { Exception::Ttl } else { Exception::TooBig };
            exceptions.push(ctx, skb, why);
            continue;
        }
        forward_header(header, &hop.rewrite);
        let len = packet.len();
        if len > ETH_MIN && len > ETH_LEN + usize::from(total) {
            skb.trim(ETH_MIN.max(ETH_LEN + usize::from(total)));
        }
        if let Err(skb) = tx.push(hop.dev, skb) {
            ctx.free(skb, DropReason::DevReady);
        }
    }
}

/// Sorts out a packet whose header is sound and plain, and which is not to be forwarded at once. Cold only to keep it out of
/// the loop's way.
#[cold]
#[inline(never)]
fn aside(
    ctx: &mut SoftnetData,
    tables: &Routing<Ipv4Addr>,
    mut skb: Skb,
    hop: &Adjacency<Ipv4Addr>,
    exceptions: &mut Exceptions,
) {
    let ip = Ipv4Header::new(&skb.data()[ETH_LEN..]);
    let datagram = ip.filter(|ip| ip.protocol() == protocol::UDP && !ip.is_fragment());
    let (Kind::Local, Some(src)) = (hop.kind, datagram.map(|ip| ip.src())) else {
        return exceptions.push(ctx, skb, Exception::NextHop);
    };
    if tables.is_martian_source(src.into()) {
        return ctx.free(skb, DropReason::IpInvalidSource);
    }
    skb.head_mut().l3 = ETH_LEN as u16;
    if let Err(skb) = exceptions.local.push(skb) {
        exceptions.push(ctx, skb, Exception::NextHop);
    }
}

/// Takes one off the TTL, mends the checksum (RFC 1141), and puts the new link header in front.
#[inline(always)]
pub(super) fn forward_header(header: &mut [u8; ETH_LEN + IPV4_LEN], rewrite: &[u8; ETH_LEN]) {
    header[..ETH_LEN].copy_from_slice(rewrite);
    header[22] -= 1;
    let check = ttl_decremented(u16::from_be_bytes([header[24], header[25]]));
    header[24..26].copy_from_slice(&check.to_be_bytes());
}

/// Takes a tag off: the addresses move to where it ends.
fn untag(skb: &mut Skb) {
    if let Some(header) = skb.data_mut().get_mut(..ETH_LEN + TAG_LEN) {
        header.copy_within(..ETH_LEN - 2, TAG_LEN);
    }
    // It is that long: the tag was read.
    let _ = skb.pull(TAG_LEN);
}

/// Takes everything that is not to be forwarded out of `batch`; `other` gets the other family's. Returns how many packets
/// are left, whose destinations are then the first of `dst`.
#[cold]
#[inline(never)]
pub(super) fn sort_out<A>(
    ctx: &mut SoftnetData,
    classify: impl Fn(&[u8]) -> Verdict<A>,
    batch: &mut Batch,
    dst: &mut [A; BATCH],
    other: &mut Batch,
    exceptions: &mut Exceptions,
) -> usize {
    let mut good = Batch::new();
    for mut skb in batch.drain() {
        let mut verdict = classify(skb.data());
        if let Verdict::Untag = verdict {
            untag(&mut skb);
            verdict = classify(skb.data());
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
                exceptions.push(ctx, skb, kind);
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

#[cfg(all(test, not(feature = "loom")))]
#[path = "input_tests.rs"]
mod tests;
