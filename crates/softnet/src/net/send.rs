//! Sending: from bytes to packets on a TX queue, or to a socket here.
//!
//! Datagrams go out in a batch for each device, in order. Those whose neighbour is not known go by the slow path, which
//! holds them until it is.

use std::sync::Arc;

use rustix::io::Errno;
use softnet_core::SoftnetData;
use softnet_core::skb::Batch;
use softnet_core::sock::key::{ANY, Addr, mapped, unmapped};
use softnet_core::sock::output::{HEADERS, Udp4, write_udp4};
use softnet_core::sock::{Flow, SocketError};
use softnet_core::sync::Ordering;

use super::options::{Options, timeout};
use super::route::{Next, Way, find};
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
    pub(super) fn source(&self) -> Option<u32> {
        unmapped(self.local).filter(|addr| !softnet_core::ip::header::is_multicast(*addr))
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
        // There is no IPv6 to send by.
        let dst = unmapped(dst).ok_or(if dst == ANY { Errno::INVAL } else { Errno::NETUNREACH })?;
        if dport == 0 {
            return Err(Errno::INVAL);
        }
        let broadcast = self.options.broadcast.load(Ordering::Relaxed);
        let way = find(thread.tables.load(), dst, tx.source(), tx.multicast_dev, broadcast)?;
        if payload.len() + HEADERS > usize::from(way.mtu) {
            // This is where it would be cut into fragments.
            return Err(Errno::MSGSIZE);
        }
        let to_group = matches!(way.next, Next::Multicast(..));
        let ttl = if to_group { &self.options.multicast_ttl } else { &self.options.ttl };
        let head = Udp4 {
            src: way.src,
            dst,
            sport: tx.lport,
            dport,
            ttl: ttl.load(Ordering::Relaxed) as u8,
            tos: self.options.tos.load(Ordering::Relaxed) as u8,
        };
        self.put(thread, tx, &way, &head, payload)
    }

    fn put(
        &mut self,
        thread: &mut AppThread,
        tx: &mut Tx,
        way: &Way,
        head: &Udp4,
        payload: &[u8],
    ) -> Result<(), Errno> {
        const NO_LINK: [u8; 14] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x08, 0];
        let (link, dev) = match &way.next {
            Next::Device(dev, link) | Next::Multicast(dev, link) => (link, Some(*dev)),
            Next::Local | Next::Resolve => (&NO_LINK, None),
        };
        // Before there is a packet that would have to be given up.
        if dev.is_some_and(|dev| dev != self.dev) || self.batch.room() == 0 {
            self.flush(&mut thread.ctx, tx)?;
        }
        if let Next::Multicast(dev, _) = way.next
            && self.options.multicast_loop.load(Ordering::Relaxed)
            && self.shared.sockets.binder().has_members(mapped(head.dst), dev)
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
    fn deliver(&self, thread: &mut AppThread, local: &mut Batch, head: &Udp4) {
        let AppThread { ctx, ready, .. } = thread;
        let mut nobody = Batch::new();
        ctx.originated(local.len() as u64);
        self.shared.sockets.udp_input(ctx, 0, local, &mut nobody, ready);
        if !nobody.is_empty() {
            ctx.free_batch(&mut nobody, softnet_core::skb::DropReason::IpNoProto);
            let (local, remote) = (mapped(head.src), mapped(head.dst));
            let flow = Flow { local, remote, lport: head.sport, rport: head.dport };
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
    head: &Udp4,
    payload: &[u8],
) -> Result<(), Errno> {
    let mut skb = ctx.alloc_skb().ok_or(Errno::NOBUFS)?;
    if write_udp4(&mut skb, link, head, payload).is_none() {
        ctx.free_skb(skb);
        return Err(Errno::MSGSIZE);
    }
    batch.push(skb).map_err(|skb| {
        ctx.free_skb(skb);
        Errno::NOBUFS
    })
}
