//! Sending: from bytes to packets on a TX queue, or to a socket here.
//!
//! Datagrams go out in a batch for each device, in order. Those whose neighbour is not known go by the slow path, which
//! holds them until it is.

use std::io;
use std::net::Ipv6Addr;
use std::sync::Arc;

use rustix::io::Errno;
use softnet_core::SoftnetData;
use softnet_core::ip::ETH_LEN;
use softnet_core::ip::pmtu::MIN_PMTU;
use softnet_core::ip::v6::addr::group_scope;
use softnet_core::skb::{Batch, DropReason};
use softnet_core::sock::key::{ANY, Addr, is_v4};
use softnet_core::sock::output::{UdpHead, destination};
use softnet_core::sock::scope::{device, is_link_local, scoped};
use softnet_core::sock::{Flow, SocketError};
use softnet_core::sync::Ordering;
use softnet_dev::xdp::LocalEnd;

use super::msg::source;
use super::options::{Options, errno, timeout};
use super::route::{Next, Way, find};
use super::scope::To;
use super::table::is_group;
use super::thread::AppThread;
use crate::sender::{FOR_EVER, LocalSender, WouldBlock};
use crate::shared::Shared;

/// The sending side of a socket.
pub(super) struct Tx {
    pub(super) sender: LocalSender,
    pub(super) ends: Ends,
    /// What devices were told that it has.
    pub(super) told: Option<LocalEnd>,
}

/// Where a socket's datagrams come from, and go to.
pub(super) struct Ends {
    /// What it is bound to.
    pub(super) local: Addr,
    pub(super) lport: u16,
    /// Bound to a group of one link: the device there.
    pub(super) group_dev: Option<u16>,
    /// What it is connected to.
    pub(super) peer: Option<To>,
    /// Where multicast of IPv4 leaves, if that was chosen.
    pub(super) multicast_dev: Option<u16>,
    /// The same of IPv6.
    pub(super) multicast_dev6: Option<u16>,
}

impl Tx {
    pub(super) fn new(local: Addr, lport: u16, group_dev: Option<u16>) -> Self {
        let ends = Ends { local, lport, group_dev, peer: None, multicast_dev: None, multicast_dev6: None };
        Tx { sender: LocalSender::default(), ends, told: None }
    }
}

impl Ends {
    /// Our address, if it is bound to one that packets may come from.
    pub(super) fn source(&self) -> Option<Addr> {
        (self.local != ANY && !is_group(self.local)).then_some(self.local)
    }

    /// The device that it is bound to, by an address that is on one link only.
    pub(super) fn device(&self) -> Option<u16> {
        self.group_dev.or(device(self.local))
    }

    /// `to` with its device, if it is link-local and did not say.
    #[cold]
    pub(super) fn complete(&self, to: To) -> Result<To, Errno> {
        if !is_link_local(to.addr) || device(to.addr).is_some() {
            return Ok(to);
        }
        let dev = self.device().ok_or(Errno::INVAL)?;
        Ok(To { addr: scoped(to.addr, dev), ..to })
    }
}

/// Packets that are to leave together, by one device.
pub(super) struct Outgoing {
    pub(super) batch: Batch,
    pub(super) dev: u16,
    /// Copies of those to many, for sockets here: they get none of what is given back to its sender. There are none without
    /// what they are copies of.
    loops: Batch,
    /// Whether any of them is so long that a path may be too narrow for it.
    long: bool,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Outgoing { batch: Batch::new(), dev: 0, loops: Batch::new(), long: false }
    }

    /// Sends them. While the sender is held back it blocks, but no longer than until `wait`: then they stay. The sockets here that
    /// got something are to be [told](tell).
    pub(super) fn flush(
        &mut self,
        shared: &Shared,
        thread: &mut AppThread,
        sender: &mut LocalSender,
        wait: Option<u64>,
    ) -> Result<(), WouldBlock> {
        if !self.batch.is_empty() {
            let now = shared.clock.now();
            if self.long {
                self.note(shared, now);
            }
            sender.send(shared, &mut thread.ctx, now, (self.dev, None), &mut self.batch, wait)?;
            if !self.loops.is_empty() {
                self.loop_back(shared, thread);
            }
        }
        Ok(())
    }

    /// Remembers where long ones go, before they do: an error about one may come at once.
    #[inline(never)]
    fn note(&mut self, shared: &Shared, now: u64) {
        let mut last = None;
        for skb in self.batch.as_slice() {
            let dst = destination(skb).filter(|_| skb.len() > ETH_LEN + usize::from(MIN_PMTU));
            if dst != last
                && let Some(dst) = dst
            {
                shared.sockets.recent.note(dst, now);
                last = Some(dst);
            }
        }
        self.long = false;
    }

    #[cold]
    fn loop_back(&mut self, shared: &Shared, thread: &mut AppThread) {
        for skb in self.loops.drain() {
            let mut run = Batch::new();
            match run.push(skb) {
                Ok(()) => loop_back(shared, thread, self.dev, &mut run),
                Err(skb) => thread.ctx.free_skb(skb),
            }
        }
    }

    /// Gives up what is there, which was not sent: never seen outside, it counts nowhere. Returns how many datagrams that was.
    #[inline]
    fn give_up(&mut self, ctx: &mut SoftnetData) -> usize {
        let n = self.batch.len();
        if n > 0 {
            ctx.free_skbs(&mut self.batch, |_| {});
            self.free_loops(ctx);
            self.long = false;
        }
        n
    }

    /// Nobody here is to get what does not leave.
    pub(super) fn free_loops(&mut self, ctx: &mut SoftnetData) {
        ctx.free_skbs(&mut self.loops, |_| {});
    }
}

/// A call that sends.
pub(super) struct Sending<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) options: &'a Options,
    /// Until when to wait when held back, in ns of the stack's clock.
    pub(super) wait: Option<u64>,
    /// Slot of the socket.
    pub(super) slot: u32,
    pub(super) out: &'a mut Outgoing,
    pub(super) sender: &'a mut LocalSender,
}

/// Until when a call waits when held back, as a socket's options say.
pub(super) fn wait_of(shared: &Shared, options: &Options) -> Option<u64> {
    let until = || timeout(&options.write_timeout).map_or(FOR_EVER, |timeout| shared.clock.after(timeout));
    (!options.nonblocking.load(Ordering::Relaxed)).then(until)
}

/// Where a datagram goes, the peer if it does not say; and from which of our addresses, if that was chosen. By reference: copies
/// of what was written just now in halves wait for the store buffer.
pub(super) type Ways<'a> = (Option<&'a To>, Option<&'a Addr>);

impl Sending<'_> {
    /// Sends what `messages` takes with [`one`](Self::one): how many that were, and how it ended. Returns how many were taken; an
    /// error only if none was.
    pub(super) fn all(
        mut self,
        thread: &mut AppThread,
        messages: impl FnOnce(&mut Self, &mut AppThread) -> (usize, io::Result<()>),
    ) -> io::Result<usize> {
        let (mut taken, result) = messages(&mut self, thread);
        let flushed = self.flush(thread).map_err(errno);
        // What is held back was not taken.
        taken -= self.out.give_up(&mut thread.ctx);
        tell(self.shared, thread);
        match (taken, result.and(flushed)) {
            (0, Err(error)) => Err(error),
            (taken, _) => Ok(taken),
        }
    }

    /// Takes one more datagram, which leaves when `out` is flushed.
    pub(super) fn one_more(
        mut self,
        thread: &mut AppThread,
        ends: &Ends,
        payload: &[u8],
        ways: Ways<'_>,
    ) -> Result<(), Errno> {
        let result = self.one(thread, ends, payload, ways);
        tell(self.shared, thread);
        result
    }

    /// Takes one datagram, which leaves at the latest when `out` is flushed.
    pub(super) fn one(
        &mut self,
        thread: &mut AppThread,
        ends: &Ends,
        payload: &[u8],
        (to, from): Ways<'_>,
    ) -> Result<(), Errno> {
        let mut to = to.or(ends.peer.as_ref()).ok_or(Errno::DESTADDRREQ)?;
        if to.port == 0 {
            return Err(Errno::INVAL);
        }
        let complete;
        if is_link_local(to.addr) {
            complete = ends.complete(*to)?;
            to = &complete;
        }
        let broadcast = self.options.broadcast.load(Ordering::Relaxed);
        let src = match from {
            None => ends.source(),
            Some(from) => source(thread.tables.load(), ends, to.addr, *from)?,
        };
        let way = find(thread.tables.load(), to, ends, src, broadcast)?;
        let ttl = match way.next {
            Next::Multicast(..) if is_v4(to.addr) => &self.options.multicast_ttl,
            Next::Multicast(..) => &self.options.multicast_hops,
            _ => &self.options.ttl,
        };
        let head = UdpHead {
            src: way.src,
            dst: to.addr,
            sport: ends.lport,
            dport: to.port,
            ttl: ttl.load(Ordering::Relaxed) as u8,
            tos: self.options.tos.load(Ordering::Relaxed) as u8,
        };
        if matches!(way.next, Next::Multicast(..)) && (head.ttl == 0 || is_of_interface(head.dst)) {
            return self.keep_here(thread, &way, &head, payload);
        }
        let len = payload.len() + head.header_len();
        if len > usize::from(way.mtu) || self.shared.sockets.paths.is_too_long(head.dst, len) {
            return self.put_in_pieces(thread, &way, &head, payload);
        }
        self.out.long |= len > head.least_mtu();
        self.put(thread, &way, &head, payload)
    }

    /// One to a group that has no hops left, or is no further than the interface: it is for members here alone.
    #[cold]
    fn keep_here(
        &mut self,
        thread: &mut AppThread,
        way: &Way,
        head: &UdpHead,
        payload: &[u8],
    ) -> Result<(), Errno> {
        if payload.len() > head.most() {
            return Err(Errno::MSGSIZE);
        }
        // What was sent before is received before.
        self.flush(thread)?;
        if let Some(dev) = self.loops_back(way, head) {
            let mut run = head.write_run(&mut thread.ctx, payload).ok_or(Errno::NOBUFS)?;
            loop_back(self.shared, thread, dev, &mut run);
        }
        Ok(())
    }

    /// One that may have to be cut into fragments, which the slow path does.
    #[cold]
    fn put_in_pieces(
        &mut self,
        thread: &mut AppThread,
        way: &Way,
        head: &UdpHead,
        payload: &[u8],
    ) -> Result<(), Errno> {
        if payload.len() > head.most() {
            return Err(Errno::MSGSIZE);
        }
        // What may be too long for some path is not for a link, or for ourselves.
        let fits = payload.len() + head.header_len() <= usize::from(way.mtu);
        if fits && !matches!(way.next, Next::Device(..) | Next::Resolve) {
            return self.put(thread, way, head, payload);
        }
        // What was sent before leaves before.
        self.flush(thread)?;
        if way.next == Next::Local {
            let mut run = head.write_run(&mut thread.ctx, payload).ok_or(Errno::NOBUFS)?;
            self.deliver(thread, &mut run, head);
            return Ok(());
        }
        let (datagram, udp) = head.datagram(payload);
        let mut result = Ok(());
        let recent = &self.shared.sockets.recent;
        self.shared.slow_path(&mut thread.ctx, 0, |slow, ctx, view, out| {
            // Pieces of IPv6 may still be too long for a router.
            recent.note(head.dst, view.now);
            let pieces = (udp.len() + payload.len(), [&udp[..], payload]);
            result = match way.next {
                Next::Broadcast(dev, link) | Next::Multicast(dev, link) => {
                    let to = link.first_chunk().copied().unwrap_or_default();
                    slow.send_datagram_to_many(ctx, view, datagram, (dev, to), pieces, out)
                }
                _ => slow.send_datagram(ctx, view, datagram, pieces, out),
            };
        });
        result.map_err(|reason| match reason {
            DropReason::PktTooBig => Errno::MSGSIZE,
            DropReason::NoFrame => Errno::NOBUFS,
            DropReason::DevReady => Errno::NETDOWN,
            _ => Errno::NETUNREACH,
        })?;
        if let Some(dev) = self.loops_back(way, head)
            && let Some(mut run) = head.write_run(&mut thread.ctx, payload)
        {
            loop_back(self.shared, thread, dev, &mut run);
        }
        Ok(())
    }

    /// The device by which sockets here are to get a datagram to many, too, if any want it: members of the group unless the sender
    /// said no, and all that listen to broadcasts, as the kernel's `ip_mc_output` has it.
    #[inline(always)]
    fn loops_back(&self, way: &Way, head: &UdpHead) -> Option<u16> {
        match way.next {
            Next::Multicast(..) | Next::Broadcast(..) => self.loops_to_many(way, head),
            _ => None,
        }
    }

    #[cold]
    fn loops_to_many(&self, way: &Way, head: &UdpHead) -> Option<u16> {
        let flow = Flow { local: head.dst, remote: head.src, lport: head.dport, rport: head.sport };
        let (dev, wanted) = match way.next {
            Next::Multicast(dev, _) => {
                let Options { multicast_loop, multicast_loop6, .. } = self.options;
                let on = if is_v4(head.dst) { multicast_loop } else { multicast_loop6 };
                let members = || self.shared.sockets.binder().members(&flow, dev).next().is_some();
                (dev, on.load(Ordering::Relaxed) && members())
            }
            Next::Broadcast(dev, _) => (dev, self.shared.sockets.binder().listeners(&flow).next().is_some()),
            _ => return None,
        };
        wanted.then_some(dev)
    }

    fn put(
        &mut self,
        thread: &mut AppThread,
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
        // Before there is a packet that would have to be given up; and before one that is as good as sent, since what was
        // taken are the first ones.
        if dev != Some(self.out.dev) || self.out.batch.room() == 0 {
            self.flush(thread)?;
        }
        match (dev, way.next) {
            (Some(dev), _) => {
                write(&mut thread.ctx, &mut self.out.batch, &link, head, payload)?;
                self.out.dev = dev;
                if self.loops_back(way, head).is_some() {
                    // There is room: one for each of the batch at the most. Without memory it is lost, as the kernel's is.
                    let _ = write(&mut thread.ctx, &mut self.out.loops, &link, head, payload);
                }
            }
            (None, Next::Local) => {
                let mut local = Batch::new();
                write(&mut thread.ctx, &mut local, &link, head, payload)?;
                self.deliver(thread, &mut local, head);
            }
            (None, _) => {
                let mut held = Batch::new();
                write(&mut thread.ctx, &mut held, &link, head, payload)?;
                thread.ctx.originated(1);
                let recent = &self.shared.sockets.recent;
                self.shared.slow_path(&mut thread.ctx, 0, |slow, ctx, view, out| {
                    recent.note(head.dst, view.now);
                    held.drain().for_each(|skb| slow.send(ctx, view, skb, out));
                });
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

    /// Sends what is gathered. If it is held back for too long that stays, and the socket is told when it may go on.
    fn flush(&mut self, thread: &mut AppThread) -> Result<(), Errno> {
        self.out.flush(self.shared, thread, self.sender, self.wait).map_err(|WouldBlock| {
            if self.wait.is_none() {
                self.sender.tell(self.shared, self.slot);
            }
            Errno::AGAIN
        })
    }
}

/// Whether the group `addr` is one of IPv6 that has members on its interface only (RFC 4291 section 2.7).
fn is_of_interface(addr: Addr) -> bool {
    !is_v4(addr) && group_scope(Ipv6Addr::from_bits(addr)) == 1
}

/// Tells the sockets here that got something.
pub(super) fn tell(shared: &Shared, thread: &mut AppThread) {
    thread.ready.drain(..).for_each(|slot| shared.sockets.arrived(slot));
}

/// Hands a datagram to many over to the sockets here that want it.
fn loop_back(shared: &Shared, thread: &mut AppThread, dev: u16, run: &mut Batch) {
    thread.ctx.originated(run.len() as u64);
    shared.sockets.to_many(&mut thread.ctx, dev, run, &mut thread.ready);
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
