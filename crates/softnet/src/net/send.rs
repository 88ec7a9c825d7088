//! Sending: from bytes to packets on a TX queue, or to a socket here.
//!
//! Datagrams go out in a batch for each device, in order. Those whose neighbour is not known go by the slow path, which
//! holds them until it is.

use std::net::Ipv6Addr;
use std::sync::Arc;

use rustix::io::Errno;
use softnet_core::SoftnetData;
use softnet_core::ip::fragment::{Addresses, Datagram, MAX_PAYLOAD_V4, MAX_PAYLOAD_V6};
use softnet_core::ip::header::protocol;
use softnet_core::ip::{ETH_LEN, checksum};
use softnet_core::skb::{Batch, DropReason, Skb};
use softnet_core::sock::key::{ANY, Addr, unmapped};
use softnet_core::sock::output::{
    HEADERS, HEADERS_6, UDP_LEN, Udp4, Udp6, pseudo_header_sum_6, udp_header, write_udp4, write_udp6,
};
use softnet_core::sock::{Flow, SocketError};
use softnet_core::sync::Ordering;

use super::options::{Options, timeout};
use super::route::{Next, Way, find};
use super::table::is_group;
use super::thread::AppThread;
use crate::sender::{FOR_EVER, LocalSender};
use crate::shared::Shared;

/// The sending side of a socket.
pub(super) struct Tx {
    sender: LocalSender,
    /// What it is bound to.
    pub(super) local: Addr,
    pub(super) lport: u16,
    /// What it is connected to.
    pub(super) peer: Option<(Addr, u16)>,
    /// Where multicast leaves.
    pub(super) multicast_dev: Option<u16>,
}

impl Tx {
    pub(super) fn new(local: Addr, lport: u16) -> Self {
        Tx { sender: LocalSender::default(), local, lport, peer: None, multicast_dev: None }
    }

    /// Our address, if it is bound to one that packets may come from.
    pub(super) fn source(&self) -> Option<Addr> {
        (self.local != ANY && !is_group(self.local)).then_some(self.local)
    }
}

/// The headers of a datagram.
#[derive(Clone, Copy)]
struct Head {
    src: Addr,
    dst: Addr,
    sport: u16,
    dport: u16,
    ttl: u8,
    tos: u8,
}

impl Head {
    /// Source and destination, if they are of IPv4.
    fn v4(&self) -> Option<(u32, u32)> {
        unmapped(self.src).zip(unmapped(self.dst))
    }

    /// Bytes of headers.
    fn len(&self) -> usize {
        if self.v4().is_some() { HEADERS } else { HEADERS_6 }
    }

    /// Bytes of payload at the most.
    fn most(&self) -> usize {
        let most = if self.v4().is_some() { MAX_PAYLOAD_V4 } else { MAX_PAYLOAD_V6 };
        most - UDP_LEN
    }

    /// A link header without addresses.
    fn no_link(&self) -> [u8; ETH_LEN] {
        let mut link = [0; ETH_LEN];
        link[12..].copy_from_slice(if self.v4().is_some() { &[0x08, 0x00] } else { &[0x86, 0xdd] });
        link
    }

    #[inline]
    fn write(&self, skb: &mut Skb, link: &[u8; ETH_LEN], payload: &[u8]) -> Option<()> {
        let Head { sport, dport, ttl, tos, .. } = *self;
        match self.v4() {
            Some((src, dst)) => write_udp4(skb, link, &Udp4 { src, dst, sport, dport, ttl, tos }, payload),
            None => {
                let (src, dst) = (Ipv6Addr::from_bits(self.src), Ipv6Addr::from_bits(self.dst));
                let to = Udp6 { src, dst, sport, dport, hop_limit: ttl, class: tos };
                write_udp6(skb, link, &to, payload)
            }
        }
    }

    /// The datagram as one that may be cut, and its UDP header. `payload` is not longer than may be.
    fn datagram(&self, payload: &[u8]) -> (Datagram, [u8; UDP_LEN]) {
        let len = (UDP_LEN + payload.len()) as u16;
        let (addresses, pseudo) = match self.v4() {
            Some((src, dst)) => {
                let pseudo = checksum::pseudo_header_sum(src, dst, protocol::UDP, len);
                (Addresses::V4 { src: src.into(), dst: dst.into() }, pseudo)
            }
            None => {
                let (src, dst) = (Ipv6Addr::from_bits(self.src), Ipv6Addr::from_bits(self.dst));
                (Addresses::V6 { src, dst, dev: 0 }, pseudo_header_sum_6(src, dst, len))
            }
        };
        let udp = udp_header((self.sport, self.dport), len, pseudo, payload);
        let Head { ttl, tos, .. } = *self;
        let datagram = Datagram { addresses, protocol: protocol::UDP, ttl, tos, id: 0, dont_fragment: false };
        (datagram, udp)
    }
}

/// A call that sends.
pub(super) struct Sending<'a> {
    shared: &'a Arc<Shared>,
    options: &'a Options,
    /// Until when to wait when held back, in ns of the stack's clock.
    wait: Option<u64>,
    /// Slot of the socket.
    slot: u32,
    /// What is to leave by device `dev`.
    batch: Batch,
    dev: u16,
    /// Datagrams that were taken.
    sent: usize,
}

impl<'a> Sending<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, slot: u32, options: &'a Options) -> Self {
        let nonblocking = options.nonblocking.load(Ordering::Relaxed);
        let until = || match timeout(&options.write_timeout) {
            Some(timeout) => shared.clock.now().saturating_add(timeout.as_nanos() as u64),
            None => FOR_EVER,
        };
        let wait = (!nonblocking).then(until);
        Sending { shared, options, wait, slot, batch: Batch::new(), dev: 0, sent: 0 }
    }

    /// Sends `messages`, each to its address or to the peer. Returns how many were taken; an error only if none was.
    pub(super) fn run<'m>(
        mut self,
        thread: &mut AppThread,
        tx: &mut Tx,
        messages: impl Iterator<Item = (&'m [u8], Option<(Addr, u16)>)>,
    ) -> Result<usize, Errno> {
        let mut result = Ok(());
        for (payload, to) in messages {
            result = self.one(thread, tx, payload, to);
            if result.is_err() {
                break;
            }
        }
        let flushed = self.flush(&mut thread.ctx, tx);
        let sockets = &self.shared.sockets;
        thread.ready.drain(..).for_each(|slot| sockets.notify(slot));
        match (self.sent, result.and(flushed)) {
            (0, Err(error)) => Err(error),
            (sent, _) => Ok(sent),
        }
    }

    fn one(
        &mut self,
        thread: &mut AppThread,
        tx: &mut Tx,
        payload: &[u8],
        to: Option<(Addr, u16)>,
    ) -> Result<(), Errno> {
        let (dst, dport) = to.or(tx.peer).ok_or(Errno::DESTADDRREQ)?;
        if dport == 0 {
            return Err(Errno::INVAL);
        }
        let broadcast = self.options.broadcast.load(Ordering::Relaxed);
        let way = find(thread.tables.load(), dst, tx.source(), tx.multicast_dev, broadcast)?;
        let ttl = match way.next {
            Next::Multicast(..) => &self.options.multicast_ttl,
            _ => &self.options.ttl,
        };
        let head = Head {
            src: way.src,
            dst,
            sport: tx.lport,
            dport,
            ttl: ttl.load(Ordering::Relaxed) as u8,
            tos: self.options.tos.load(Ordering::Relaxed) as u8,
        };
        if payload.len() + head.len() > usize::from(way.mtu) || self.shared.sockets.path_mtus_known() {
            return self.put_in_pieces(thread, tx, &way, &head, payload);
        }
        self.put(thread, tx, &way, &head, payload)
    }

    /// One that may have to be cut into fragments, which the slow path does.
    #[cold]
    fn put_in_pieces(
        &mut self,
        thread: &mut AppThread,
        tx: &mut Tx,
        way: &Way,
        head: &Head,
        payload: &[u8],
    ) -> Result<(), Errno> {
        if payload.len() > head.most() {
            return Err(Errno::MSGSIZE);
        }
        match way.next {
            Next::Device(..) | Next::Resolve if self.is_unicast(thread, head) => {}
            // To ourselves, or to many: of one piece only.
            _ if payload.len() + head.len() > usize::from(way.mtu) => return Err(Errno::MSGSIZE),
            _ => return self.put(thread, tx, way, head, payload),
        }
        // What was sent before leaves before.
        self.flush(&mut thread.ctx, tx)?;
        let (datagram, udp) = head.datagram(payload);
        let mut result = Ok(());
        self.shared.slow_path(&mut thread.ctx, 0, |slow, ctx, view, out| {
            let pieces = (udp.len() + payload.len(), [&udp[..], payload]);
            result = slow.send_datagram(ctx, view, datagram, pieces, out);
        });
        result.map_err(|reason| match reason {
            DropReason::PktTooBig => Errno::MSGSIZE,
            DropReason::NoFrame => Errno::NOBUFS,
            _ => Errno::NETUNREACH,
        })?;
        self.sent += 1;
        Ok(())
    }

    /// Whether a datagram goes to one host, and not to all on a link.
    fn is_unicast(&self, thread: &mut AppThread, head: &Head) -> bool {
        match unmapped(head.dst) {
            Some(dst) => thread.tables.load().v4.route(dst.into()).is_reachable(),
            None => true,
        }
    }

    fn put(
        &mut self,
        thread: &mut AppThread,
        tx: &mut Tx,
        way: &Way,
        head: &Head,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let no_link = head.no_link();
        let (link, dev) = match &way.next {
            Next::Device(dev, link) | Next::Multicast(dev, link) => (link, Some(*dev)),
            Next::Local | Next::Resolve => (&no_link, None),
        };
        // Before there is a packet that would have to be given up.
        if dev.is_some_and(|dev| dev != self.dev) || self.batch.room() == 0 {
            self.flush(&mut thread.ctx, tx)?;
        }
        if let Next::Multicast(dev, _) = way.next
            && self.options.multicast_loop.load(Ordering::Relaxed)
            && self.shared.sockets.binder().has_members(head.dst, dev)
        {
            let mut run = Batch::new();
            write(&mut thread.ctx, &mut run, link, head, payload)?;
            thread.ctx.originate();
            self.shared.sockets.multicast(&mut thread.ctx, dev, &mut run, &mut thread.ready);
        }
        match (dev, way.next) {
            (Some(dev), _) => {
                write(&mut thread.ctx, &mut self.batch, link, head, payload)?;
                self.dev = dev;
            }
            (None, Next::Local) => {
                let mut local = Batch::new();
                write(&mut thread.ctx, &mut local, link, head, payload)?;
                self.deliver(thread, &mut local, head);
                self.sent += 1;
            }
            (None, _) => {
                let mut held = Batch::new();
                write(&mut thread.ctx, &mut held, link, head, payload)?;
                thread.ctx.originated(1);
                self.shared.slow_path(&mut thread.ctx, 0, |slow, ctx, view, out| {
                    held.drain().for_each(|skb| slow.send(ctx, view, skb, out));
                });
                self.sent += 1;
            }
        }
        Ok(())
    }

    /// To a socket here. If there is none, the sender is told as if by ICMP.
    fn deliver(&self, thread: &mut AppThread, local: &mut Batch, head: &Head) {
        let AppThread { ctx, ready, .. } = thread;
        let mut nobody = Batch::new();
        ctx.originated(local.len() as u64);
        self.shared.sockets.udp_input(ctx, 0, local, &mut nobody, ready);
        if !nobody.is_empty() {
            ctx.free_batch(&mut nobody, DropReason::IpNoProto);
            let flow = Flow { local: head.src, remote: head.dst, lport: head.sport, rport: head.dport };
            self.shared.sockets.report(&flow, SocketError::ConnectionRefused);
        }
    }

    /// Sends what is gathered. If it is held back and must not wait, that was not taken.
    fn flush(&mut self, ctx: &mut SoftnetData, tx: &mut Tx) -> Result<(), Errno> {
        let n = self.batch.len();
        if n == 0 {
            return Ok(());
        }
        let sent = tx.sender.send(self.shared, ctx, (self.dev, None), &mut self.batch, self.wait);
        if sent.is_err() {
            // Never seen outside of this call, so they count nowhere.
            ctx.free_skbs(&mut self.batch, |_| {});
            if self.wait.is_none() {
                tx.sender.tell(self.shared, self.slot);
            }
            return Err(Errno::AGAIN);
        }
        self.sent += n;
        Ok(())
    }
}

/// Appends a datagram to `batch`, which has room.
fn write(
    ctx: &mut SoftnetData,
    batch: &mut Batch,
    link: &[u8; 14],
    head: &Head,
    payload: &[u8],
) -> Result<(), Errno> {
    let mut skb = ctx.alloc_skb().ok_or(Errno::NOBUFS)?;
    if head.write(&mut skb, link, payload).is_none() {
        ctx.free_skb(skb);
        return Err(Errno::MSGSIZE);
    }
    batch.push(skb).map_err(|skb| {
        ctx.free_skb(skb);
        Errno::NOBUFS
    })
}
