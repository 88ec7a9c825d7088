//! UDP input (RFC 768, RFC 1122 section 4.1): verifies a batch of datagrams, finds their sockets,
//! and hands the datagrams over.
//!
//! Called by polling threads, with whole packets (no fragments) of IPv4 or IPv6 that are addressed
//! to this host and whose headers are at [`l3`](crate::skb::Head::l3) and
//! [`l4`](crate::skb::Head::l4). It takes no lock, reads no clock and allocates nothing. Every packet ends in an inbox, in the batch of those
//! without a socket, or freed with its reason.

use std::net::Ipv6Addr;

use super::key::{ANY, Addr, Flow, is_v4, mapped};
use super::memory::Room;
use super::scope::scoped;
use super::slot::{Refusal, Slot, split_off};
use super::table::{Found, Hit, Sockets};
use crate::SoftnetData;
use crate::ip::checksum;
use crate::ip::v4::header::{Ipv4Header, protocol};
use crate::ip::v6::header::{Ipv6Header, LEN as IPV6_LEN};
use crate::skb::{BATCH, Batch, DropReason, Skb};

/// Bytes of a UDP header.
pub const UDP_LEN: usize = 8;

/// The headers of a datagram.
#[derive(Clone, Copy)]
pub(super) struct Parsed {
    pub(super) flow: Flow,
    l3: usize,
    l4: usize,
    /// Bytes of UDP header and payload.
    len: usize,
}

impl Parsed {
    /// Offset of the payload in the packet.
    pub(super) fn payload_at(&self) -> usize {
        self.l4 + UDP_LEN
    }

    /// Bytes of the payload.
    pub(super) fn payload_len(&self) -> usize {
        self.len - UDP_LEN
    }
}

/// Our end and the remote end of an IP packet received by device `dev`, and its length.
#[inline(always)]
pub(super) fn ends(packet: &[u8], dev: u16) -> Result<(Addr, Addr, usize), DropReason> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => {
            let ip = Ipv4Header::new(packet).ok_or(DropReason::PktTooSmall)?;
            Ok((mapped(ip.dst()), mapped(ip.src()), usize::from(ip.total_len())))
        }
        Some(6) => {
            let ip = Ipv6Header::new(packet).ok_or(DropReason::PktTooSmall)?;
            let addr = |addr: Ipv6Addr| scoped(addr.to_bits(), dev);
            Ok((addr(ip.dst()), addr(ip.src()), IPV6_LEN + usize::from(ip.payload_len())))
        }
        _ => Err(DropReason::PktTooSmall),
    }
}

/// Reads the headers of a datagram.
#[inline(always)]
pub(super) fn parse(skb: &Skb) -> Result<Parsed, DropReason> {
    let (data, head) = (skb.data(), skb.head());
    let (l3, l4) = (usize::from(head.l3), usize::from(head.l4));
    let (local, remote, total) = ends(data.get(l3..).unwrap_or_default(), head.dev)?;
    let udp: &[u8; UDP_LEN] =
        data.get(l4..).and_then(|udp| udp.first_chunk()).ok_or(DropReason::PktTooSmall)?;
    let word = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
    let len = usize::from(word(4));
    if len < UDP_LEN || l4 + len > l3 + total || head.protocol != protocol::UDP {
        return Err(DropReason::PktTooSmall);
    }
    let flow = Flow { local, remote, lport: word(2), rport: word(0) };
    Ok(Parsed { flow, l3, l4, len })
}

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
    let (_, sum) = checksum::sum_pieces(skb.pieces(parsed.l4, parsed.len));
    if checksum::add(head, sum) == 0xffff { Ok(()) } else { Err(DropReason::UdpCsum) }
}

/// The origin of a batch of datagrams, and the outcome.
pub struct Arrivals<'a> {
    /// The sockets.
    pub sockets: &'a Sockets,
    /// Id of the NAPI instance that they came by; 0: sent on this stack.
    pub napi_id: u32,
    /// The room in packet memory.
    pub room: Room,
    /// Frames of the packets that the sockets accepted.
    pub queued: usize,
    /// Slots of the sockets that were empty, or that notify of every arrival: the caller notifies
    /// their waiters.
    pub ready: &'a mut Vec<u32>,
}

/// Hands the datagrams of `local` over to their sockets, and leaves it empty. Those without a socket come out in `unserved`,
/// not counted.
pub fn udp_input(ctx: &mut SoftnetData, to: &mut Arrivals<'_>, local: &mut Batch, unserved: &mut Batch) {
    let sockets = to.sockets;
    // First pass: verify, and prefetch the buckets of the look-ups. Flows stay where they are
    // written: moving one would stall on its words, which were stored one by one.
    let mut flows = [Flow::bound(ANY, 0); BATCH];
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

impl Arrivals<'_> {
    /// Hands the packets of `run` over to a socket, and leaves it empty.
    #[inline]
    pub fn hand_over(&mut self, ctx: &mut SoftnetData, hit: Hit, run: &mut Batch) {
        if run.is_empty() {
            return;
        }
        let Some(slot) = self.sockets.slot(hit.slot) else {
            return ctx.free_batch(run, DropReason::SocketClose);
        };
        if !self.room.has(self.queued + run.frames()) {
            self.squeeze(ctx, slot, run);
            if run.is_empty() {
                return;
            }
        }
        let pushed = slot.push(run, hit.generation, self.napi_id);
        ctx.stats().sk_queued.add(pushed.queued as u64);
        self.queued += pushed.frames;
        if pushed.first || pushed.again && !self.ready.contains(&hit.slot) {
            self.ready.push(hit.slot);
        }
        match pushed.refused {
            None => {}
            Some(Refusal::Full) => ctx.free_batch(run, DropReason::SocketRcvbuff),
            Some(Refusal::Closed) => ctx.free_batch(run, DropReason::SocketClose),
        }
    }

    /// Memory is short: keeps in `run` the first datagrams for which there is room, in the shared
    /// part or below the socket's minimum.
    #[cold]
    fn squeeze(&self, ctx: &mut SoftnetData, slot: &Slot, run: &mut Batch) {
        let queued = slot.queued();
        if queued >= slot.limit() {
            // The socket itself refuses them.
            return;
        }
        let mut room = self.room.allows(self.queued, queued as usize);
        let fits = run.as_slice().iter().take_while(|skb| {
            let fits = skb.frame_count() <= room;
            room = room.saturating_sub(skb.frame_count());
            fits
        });
        let fits = fits.count();
        if fits < run.len() {
            let mut rest = split_off(run, fits);
            slot.dropped(rest.len() as u64);
            ctx.free_batch(&mut rest, DropReason::ProtoMem);
        }
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
    let mut flow = Flow::bound(ANY, 0);
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
