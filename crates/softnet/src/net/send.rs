//! Sending: from bytes to packets on a TX queue, or to a socket here.
//!
//! Datagrams go out in a batch for each device, in order. Those whose neighbour is not known go by the slow path, which
//! holds them until it is.

use std::sync::Arc;

use rustix::io::Errno;
use softnet_core::SoftnetData;
use softnet_core::skb::{Batch, DropReason};
use softnet_core::sock::key::{ANY, Addr};
use softnet_core::sock::output::UdpHead;
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
        let head = UdpHead {
            src: way.src,
            dst,
            sport: tx.lport,
            dport,
            ttl: ttl.load(Ordering::Relaxed) as u8,
            tos: self.options.tos.load(Ordering::Relaxed) as u8,
        };
        let len = payload.len() + head.header_len();
        let may_be_too_long = len > head.least_mtu() && self.shared.sockets.path_mtus_known();
        if len > usize::from(way.mtu) || may_be_too_long {
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
        head: &UdpHead,
        payload: &[u8],
    ) -> Result<(), Errno> {
        if payload.len() > head.most() {
            return Err(Errno::MSGSIZE);
        }
        match way.next {
            Next::Device(..) | Next::Resolve => {}
            // To ourselves, or to many: of one piece only.
            _ if payload.len() + head.header_len() > usize::from(way.mtu) => return Err(Errno::MSGSIZE),
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

    fn put(
        &mut self,
        thread: &mut AppThread,
        tx: &mut Tx,
        way: &Way,
        head: &UdpHead,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let (link, dev) = match way.next {
            Next::Device(dev, link) | Next::Broadcast(dev, link) | Next::Multicast(dev, link) => {
                (link, Some(dev))
            }
            Next::Local | Next::Resolve => (head.no_link(), None),
        };
        let link = &link;
        // Before there is a packet that would have to be given up; and before one that is as good as sent, since what was
        // taken are the first ones.
        if dev != Some(self.dev) || self.batch.room() == 0 {
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
    fn deliver(&self, thread: &mut AppThread, local: &mut Batch, head: &UdpHead) {
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
    head: &UdpHead,
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
