//! What leaves: segments of the engine, written into packets with their headers and route.
//!
//! Called by the holder of a shard. A packet is built whole, link header included, where the
//! neighbour is known; what leaves then is up to the runtime, in the order of [`Effects`]. Payload
//! is copied: a frame that a ring may hold is never changed. A run of segments is one packet, which
//! the TX queue or the device cuts (TSO), its checksum left to that.

use softnet_tcp::Emit;
use softnet_tcp::wire::MAX_HEADER;

use super::super::key::{Addr, Flow, is_v4, unmapped};
use super::super::route::{Dest, Endpoints, NextHop, Route, RouteError, find_route};
use super::super::scope::{device, unscoped};
use super::queue::SendQueue;
use crate::SoftnetData;
use crate::gso;
use crate::ip::tables::Tables;
use crate::ip::v4::header::{Ipv4Header, MIN_LEN, protocol};
use crate::ip::v6::header::{Ipv6Header, LEN as IPV6_LEN};
use crate::ip::{ETH_LEN, checksum};
use crate::skb::{Csum, DropReason, Flags, GsoType, Skb, SkbList};

/// Bytes of a TCP header without options.
const TCP_LEN: u16 = 20;

/// What a shard wants done, in order.
#[derive(Default)]
pub struct Effects {
    /// Packets that leave, each by the device that its head names.
    pub send: SkbList,
    /// Bytes in `send` that others know of, by device, to be given up when they have left `send`.
    pub reserved: Vec<(u16, u64)>,
    /// Packets of no connection, whose order does not matter: answers to SYNs, resets, what TIME-WAIT
    /// says. They may wait until no shard is held, and leave together.
    pub loose: SkbList,
    /// Packets whose neighbour is not known: the slow path sends them.
    pub unresolved: SkbList,
    /// Packets to sockets of this stack.
    pub local: SkbList,
    /// Slots of sockets whose readiness changed.
    pub wake: Vec<u32>,
    /// Slots of listeners that got a connection.
    pub arrived: Vec<u32>,
    /// Ends that were [held](super::Shard::hold_end) and that nothing has any more.
    pub free: Vec<super::End>,
}

/// How a connection's packets are marked.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class, without ECN.
    pub tos: u8,
}

impl Default for Marks {
    fn default() -> Self {
        Marks { ttl: 64, tos: 0 }
    }
}

/// The route from one end of `flow` to the other.
///
/// # Errors
/// Why there is none.
pub fn route(tables: &Tables, flow: &Flow) -> Result<Route, RouteError> {
    let to = Dest { addr: flow.remote, port: flow.rport, dev: None };
    find_route(tables, &to, &Endpoints::new(flow.local, flow.lport, None), Some(flow.local), false)
}

/// The MSS that a path of `mtu` bytes carries to `remote`: less the headers without options.
pub fn mss_of(mtu: u16, remote: Addr) -> u16 {
    let ip = if is_v4(remote) { MIN_LEN } else { IPV6_LEN };
    mtu.saturating_sub(ip as u16 + TCP_LEN)
}

/// Writes the segment, with payload from `queue`, and puts it where `route` leads; without a queue it is
/// of no connection. `false`: there is no memory, or no way, and nothing was done.
pub fn send(
    ctx: &mut SoftnetData,
    route: &Route,
    (flow, marks): (&Flow, Marks),
    emit: &Emit,
    queue: Option<&SendQueue>,
    out: &mut Effects,
) -> bool {
    let Some(mut skb) = ctx.alloc_skb() else { return false };
    let link = match route.next {
        NextHop::Device(_, link) => link,
        _ => no_link(flow),
    };
    if write(ctx, &mut skb, &link, (flow, marks), emit, queue).is_none() {
        ctx.free_skb(skb);
        return false;
    }
    let dev = device(flow.remote).or(device(flow.local)).unwrap_or(route.device());
    skb.head_mut().dev = dev;
    let list = match route.next {
        NextHop::Device(..) if queue.is_none() => &mut out.loose,
        NextHop::Device(..) => &mut out.send,
        NextHop::Resolve(_) => &mut out.unresolved,
        NextHop::Local => &mut out.local,
        NextHop::Broadcast(..) | NextHop::Multicast(..) => {
            ctx.free_skb(skb);
            return false;
        }
    };
    if route.next == NextHop::Local || matches!(route.next, NextHop::Resolve(_)) {
        ctx.originated(1);
    }
    if let Err(skb) = list.push_back(skb) {
        // Lists hold packets of the one region.
        ctx.free(skb, DropReason::DevReady);
    }
    true
}

/// A link header without addresses.
fn no_link(flow: &Flow) -> [u8; ETH_LEN] {
    let mut link = [0; ETH_LEN];
    link[12..].copy_from_slice(if is_v4(flow.remote) { &[0x08, 0x00] } else { &[0x86, 0xdd] });
    link
}

fn write(
    ctx: &mut SoftnetData,
    skb: &mut Skb,
    link: &[u8; ETH_LEN],
    (flow, marks): (&Flow, Marks),
    emit: &Emit,
    queue: Option<&SendQueue>,
) -> Option<()> {
    let mut tcp = [0; MAX_HEADER];
    let header = emit.write_header((flow.lport, flow.rport), &mut tcp);
    let len = header + emit.len as usize;
    let tos = marks.tos & !3 | if emit.ect { 2 } else { 0 };
    let v4 = unmapped(flow.local).zip(unmapped(flow.remote));
    let ip_len = if v4.is_some() { MIN_LEN } else { IPV6_LEN };
    let headers = ETH_LEN + ip_len + header;
    let data = skb.put(headers)?;
    data[..ETH_LEN].copy_from_slice(link);
    let (ip, to_tcp) = data[ETH_LEN..].split_at_mut(ip_len);
    let pseudo = match v4 {
        Some((src, dst)) => {
            let mut ip = Ipv4Header::new_mut(ip)?;
            // Never fragmented on the way, so the identification need not be unique (RFC 6864 4.1).
            ip.fill(u16::try_from(ip_len + len).ok()?, 0, marks.ttl, protocol::TCP, src, dst);
            ip.set_dont_fragment(true);
            ip.set_tos(tos);
            ip.renew_check();
            checksum::pseudo_header_sum(src, dst, protocol::TCP, len as u16)
        }
        None => {
            let [src, dst] = [flow.local, flow.remote].map(|addr| unscoped(addr).into());
            let mut header = Ipv6Header::new_mut(ip)?;
            header.fill(u16::try_from(len).ok()?, protocol::TCP, marks.ttl, src, dst);
            // Between version and flow label (RFC 8200 section 3).
            ip[0] = 0x60 | tos >> 4;
            ip[1] = tos << 4;
            checksum::pseudo_header_sum6(src, dst, protocol::TCP, len as u16)
        }
    };
    to_tcp.copy_from_slice(&tcp[..header]);
    // Only the pseudo-header's sum: the device, or the TX queue, adds the rest.
    to_tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
    if emit.len > 0 {
        copy_payload(ctx, skb, queue?, emit)?;
    }
    let l4 = (ETH_LEN + ip_len) as u16;
    let head = skb.head_mut();
    (head.l3, head.l4, head.protocol) = (ETH_LEN as u16, l4, protocol::TCP);
    head.flags = Flags::ORIGINATED;
    head.csum = Csum::Partial { start: l4, offset: 16 };
    if emit.segs() > 1 {
        head.gso_type = if v4.is_some() { GsoType::TcpV4 } else { GsoType::TcpV6 };
        (head.gso_size, head.gso_segs) = (emit.mss, emit.segs() as u16);
    }
    gso::announce();
    Some(())
}

/// Segments of a run above which they share frames: a peer with a small MSS must not have packets of
/// more frames than a chain holds.
const SEGMENT_FRAMES: u32 = 128;

/// Appends the payload of `emit` to the packet, in as many frames as it takes. Of a run each frame has
/// one segment, if that fits with its headers, and there are not very many: a device that takes no
/// runs has it cut where it lies.
fn copy_payload(ctx: &mut SoftnetData, skb: &mut Skb, queue: &SendQueue, emit: &Emit) -> Option<()> {
    let syn = u32::from(emit.flags.any(softnet_tcp::Flags::SYN));
    let mss = usize::from(emit.mss);
    let single = (2..=SEGMENT_FRAMES).contains(&emit.segs()) && mss <= skb.tailroom();
    let most = if single { mss } else { usize::MAX };
    let mut left = emit.len as usize;
    let (mut more, mut room): (Option<Skb>, _) = (None, skb.tailroom().min(most));
    for mut piece in queue.pieces(emit.seq + syn, left) {
        left -= piece.len();
        while !piece.is_empty() {
            if room == 0 {
                let next = ctx.alloc_skb();
                let full = std::mem::replace(&mut more, next);
                append(ctx, skb, full)?;
                room = more.as_ref()?.tailroom().min(most);
                continue;
            }
            let (now, later) = piece.split_at(room.min(piece.len()));
            more.as_mut().unwrap_or(&mut *skb).put(now.len())?.copy_from_slice(now);
            room -= now.len();
            piece = later;
        }
    }
    append(ctx, skb, more)?;
    (left == 0).then_some(())
}

fn append(ctx: &mut SoftnetData, skb: &mut Skb, more: Option<Skb>) -> Option<()> {
    let Some(more) = more else { return Some(()) };
    skb.append(more).map_err(|more| ctx.free_skb(more)).ok()
}
