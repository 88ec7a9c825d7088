//! Sending: from bytes to packets on a TX queue, or to a socket of this stack.
//!
//! Datagrams leave in a batch for each device, in order. Those with an unresolved neighbour take
//! the slow path, which holds them until the neighbour is known.

use std::io;
use std::net::Ipv6Addr;
use std::sync::Arc;

use rustix::io::Errno;
use softnet_core::SoftnetData;
use softnet_core::ip::ETH_LEN;
use softnet_core::ip::hooks::{HookContext, Made, Passage, Slot};
use softnet_core::ip::pmtu::MIN_PMTU;
use softnet_core::ip::slow::{Effects, RouteSnapshot, SlowPath};
use softnet_core::ip::tables::Tables;
use softnet_core::ip::v6::addr::group_scope;
use softnet_core::skb::{Batch, DropReason, Skb, SkbList};
use softnet_core::sock::key::{Addr, is_v4};
use softnet_core::sock::route::{Dest, Endpoints, NextHop, Route, find_route};
use softnet_core::sock::scope::is_link_local;
use softnet_core::sock::udp::output::{UdpHead, destination};
use softnet_core::sock::{SocketError, Transport};
use softnet_core::steer::{TxChoice, skb_get_hash};
use softnet_core::sync::Ordering;
use softnet_dev::xdp::LocalEnd;

use super::msg::source;
use super::options::{MtuDiscover, Options, errno, route_errno, timeout};
use crate::app::{FOR_EVER, LocalSender, WouldBlock};
use crate::stack::{AppThread, StackInner};

/// The sending side of a socket.
pub(super) struct Tx {
    pub(super) sender: LocalSender,
    pub(super) ends: Endpoints,
    /// The memberships that devices were told of.
    pub(super) open_port: Option<LocalEnd>,
}

impl Tx {
    pub(super) fn new(local: Addr, lport: u16, group_dev: Option<u16>) -> Self {
        let ends = Endpoints::new(local, lport, group_dev);
        Tx { sender: LocalSender::default(), ends, open_port: None }
    }
}

/// Packets that leave together by one device.
pub(super) struct Outgoing {
    pub(super) batch: Batch,
    pub(super) dev: u16,
    /// Copies of multicast and broadcast packets, for sockets of this stack. A packet that is given
    /// back to its sender leaves no copy behind.
    loops: Batch,
    /// Whether any packet may exceed a path MTU.
    long: bool,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Outgoing { batch: Batch::new(), dev: 0, loops: Batch::new(), long: false }
    }

    /// Sends the packets. A sender that is held back blocks until `wait` at the latest; the packets
    /// then stay. The caller [notifies](tell) the sockets of this stack that received something.
    pub(super) fn flush(
        &mut self,
        shared: &StackInner,
        thread: &mut AppThread,
        sender: &mut LocalSender,
        wait: Option<u64>,
    ) -> Result<(), WouldBlock> {
        if !self.batch.is_empty() {
            let now = shared.clock.now();
            if self.long {
                self.note(shared, now);
            }
            let tables = thread.tables.load();
            if [Slot::Output, Slot::Postrouting].iter().any(|slot| tables.hooks.is_set(*slot)) {
                let tables = tables.clone();
                self.send_by_hooks(shared, thread, sender, wait, &tables)?;
            } else {
                sender.send(shared, &mut thread.ctx, now, (self.dev, None), &mut self.batch, wait)?;
            }
            if !self.loops.is_empty() {
                self.loop_back(shared, thread);
            }
        }
        Ok(())
    }

    /// Sends the packets that the hook slots let pass. Packets that have been there are not given back to their sender, so it
    /// is held back before.
    #[cold]
    fn send_by_hooks(
        &mut self,
        shared: &StackInner,
        thread: &mut AppThread,
        sender: &mut LocalSender,
        wait: Option<u64>,
        tables: &Tables,
    ) -> Result<(), WouldBlock> {
        let (dev, now, ctx) = (self.dev, shared.clock.now(), &mut thread.ctx);
        let first = self.batch.as_mut_slice().first_mut();
        let choice = first.and_then(|first| sender.choose(shared, now, dev, || skb_get_hash(first)));
        if let Some(choice) = choice {
            sender.wait_for_room(shared, ctx, (dev, choice), wait)?;
        }
        ctx.originated(self.batch.len() as u64);
        // What a slot drops is counted against the device that it would have left by.
        self.batch.as_mut_slice().iter_mut().for_each(|skb| skb.head_mut().dev = dev);
        let mut made = Made::default();
        let mut cx = HookContext::new(ctx, now, tables, &mut made);
        for slot in [Slot::Output, Slot::Postrouting] {
            cx.run(Passage::new(slot, None, Some(dev)), &mut self.batch);
        }
        sender.send_counted(shared, ctx, dev, &mut self.batch);
        if !made.is_empty() {
            shared.slow_path(ctx, |slow, ctx, view, out| {
                made.drain().for_each(|(skb, what)| slow.handle(ctx, view, skb, what, out));
            });
        }
        Ok(())
    }

    /// Remembers the destinations of long packets before they leave, since an ICMP error may arrive
    /// at once.
    #[inline(never)]
    fn note(&mut self, shared: &StackInner, now: u64) {
        let mut last = None;
        for skb in self.batch.as_slice() {
            let dst = destination(skb).filter(|_| skb.len() > ETH_LEN + usize::from(MIN_PMTU));
            if dst != last
                && let Some(dst) = dst
            {
                shared.sockets.udp.recent.note(dst, now);
                last = Some(dst);
            }
        }
        self.long = false;
    }

    #[cold]
    fn loop_back(&mut self, shared: &StackInner, thread: &mut AppThread) {
        for skb in self.loops.drain() {
            loop_back(shared, thread, self.dev, skb);
        }
    }

    /// Frees the unsent packets, which never left and are not counted. Returns the number of
    /// datagrams.
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

    /// Sockets of this stack receive no copy of a packet that does not leave.
    pub(super) fn free_loops(&mut self, ctx: &mut SoftnetData) {
        ctx.free_skbs(&mut self.loops, |_| {});
    }
}

/// One call that sends.
pub(super) struct Sending<'a> {
    pub(super) shared: &'a Arc<StackInner>,
    pub(super) options: &'a Options,
    /// Deadline for a sender that is held back, in ns of the stack's clock.
    pub(super) wait: Option<u64>,
    /// Slot of the socket.
    pub(super) slot: u32,
    pub(super) out: &'a mut Outgoing,
    pub(super) sender: &'a mut LocalSender,
}

/// Deadline of a call that is held back, by the socket's options.
pub(super) fn wait_of(shared: &StackInner, options: &Options) -> Option<u64> {
    let until = || timeout(&options.write_timeout).map_or(FOR_EVER, |timeout| shared.clock.after(timeout));
    (!options.nonblocking.load(Ordering::Relaxed)).then(until)
}

/// Destination of a datagram, by default the peer, and what the caller chose beside it: source, type of
/// service, time to live. By reference: copying a value that was just written in halves waits for the
/// store buffer.
#[derive(Clone, Copy, Default)]
pub(super) struct Ways<'a> {
    pub(super) to: Option<&'a Dest>,
    pub(super) from: Option<&'a Addr>,
    pub(super) tos: Option<u8>,
    pub(super) ttl: Option<u8>,
}

impl Sending<'_> {
    /// Sends the datagrams that `messages` adds by [`one`](Self::one); it returns how many, and the
    /// outcome. Returns how many were accepted; an error only if none was.
    pub(super) fn all(
        mut self,
        thread: &mut AppThread,
        messages: impl FnOnce(&mut Self, &mut AppThread) -> (usize, io::Result<()>),
    ) -> io::Result<usize> {
        let (mut taken, result) = messages(&mut self, thread);
        let flushed = self.flush(thread).map_err(errno);
        // Messages that are held back were not accepted.
        taken -= self.out.give_up(&mut thread.ctx);
        wake_arrived(self.shared, thread);
        match (taken, result.and(flushed)) {
            (0, Err(error)) => Err(error),
            (taken, _) => Ok(taken),
        }
    }

    /// Accepts one more datagram, which leaves when `out` is flushed.
    pub(super) fn one_more(
        mut self,
        thread: &mut AppThread,
        ends: &Endpoints,
        payload: &[u8],
        ways: Ways<'_>,
    ) -> Result<(), Errno> {
        let result = self.one(thread, ends, payload, ways);
        wake_arrived(self.shared, thread);
        result
    }

    /// Accepts one datagram, which leaves when `out` is flushed at the latest.
    pub(super) fn one(
        &mut self,
        thread: &mut AppThread,
        ends: &Endpoints,
        payload: &[u8],
        ways: Ways<'_>,
    ) -> Result<(), Errno> {
        let mut to = ways.to.or(ends.peer.as_ref()).ok_or(Errno::DESTADDRREQ)?;
        if to.port == 0 {
            return Err(Errno::INVAL);
        }
        let complete;
        if is_link_local(to.addr) {
            complete = ends.complete(*to).map_err(route_errno)?;
            to = &complete;
        }
        let broadcast = self.options.broadcast.load(Ordering::Relaxed);
        let src = match ways.from {
            None => ends.source(),
            Some(from) => source(thread.tables.load(), ends, to.addr, *from)?,
        };
        let way = find_route(thread.tables.load(), to, ends, src, broadcast).map_err(route_errno)?;
        let ttl = match way.next {
            NextHop::Multicast(..) if is_v4(to.addr) => &self.options.multicast_ttl,
            NextHop::Multicast(..) => &self.options.multicast_hops,
            _ => &self.options.ttl,
        };
        let head = UdpHead {
            src: way.src,
            dst: to.addr,
            sport: ends.lport,
            dport: to.port,
            ttl: ways.ttl.unwrap_or(ttl.load(Ordering::Relaxed) as u8),
            tos: ways.tos.unwrap_or(self.options.tos.load(Ordering::Relaxed) as u8),
        };
        if matches!(way.next, NextHop::Multicast(..)) && (head.ttl == 0 || is_of_interface(head.dst)) {
            return self.keep_here(thread, &way, &head, payload);
        }
        let len = payload.len() + head.header_len();
        if len > usize::from(way.mtu) || self.shared.sockets.paths.is_too_long(head.dst, len) {
            return self.put_in_pieces(thread, &way, &head, payload);
        }
        self.out.long |= len > head.least_mtu();
        self.put(thread, &way, &head, payload)
    }

    /// A datagram to a group with hop limit 0 or of interface scope: only members on this stack
    /// receive it.
    #[cold]
    fn keep_here(
        &mut self,
        thread: &mut AppThread,
        way: &Route,
        head: &UdpHead,
        payload: &[u8],
    ) -> Result<(), Errno> {
        if payload.len() > head.most() {
            return Err(Errno::MSGSIZE);
        }
        // Earlier datagrams are received first.
        self.flush(thread)?;
        if let Some(dev) = self.loops_back(way, head) {
            let skb = head.write_chain(&mut thread.ctx, payload).ok_or(Errno::NOBUFS)?;
            loop_back(self.shared, thread, dev, skb);
        }
        Ok(())
    }

    /// A datagram that may need fragmentation, which the slow path does.
    #[cold]
    fn put_in_pieces(
        &mut self,
        thread: &mut AppThread,
        way: &Route,
        head: &UdpHead,
        payload: &[u8],
    ) -> Result<(), Errno> {
        if payload.len() > head.most() {
            return Err(Errno::MSGSIZE);
        }
        // A path MTU is no limit for datagrams to all on a link, or to this stack itself.
        let fits = payload.len() + head.header_len() <= usize::from(way.mtu);
        match self.options.mtu_discover() {
            _ if way.next == NextHop::Local => {}
            MtuDiscover::Want => {}
            MtuDiscover::Probe if fits => {
                self.out.long = true;
                return self.put(thread, way, head, payload);
            }
            MtuDiscover::Do | MtuDiscover::Probe => return Err(Errno::MSGSIZE),
        }
        if fits && !matches!(way.next, NextHop::Device(..) | NextHop::Resolve(_)) {
            return self.put(thread, way, head, payload);
        }
        if way.next == NextHop::Local {
            // Earlier datagrams leave first.
            self.flush(thread)?;
            let skb = head.write_chain(&mut thread.ctx, payload).ok_or(Errno::NOBUFS)?;
            self.deliver(thread, &mut Batch::from(skb), head);
            return Ok(());
        }
        let (datagram, udp) = head.datagram(payload);
        let pieces = (udp.len() + payload.len(), [&udp[..], payload]);
        let mut result = Ok(());
        self.by_slow_path(thread, way.device(), head, |slow, ctx, view, choice, out| {
            result = match way.next {
                NextHop::Broadcast(dev, link) | NextHop::Multicast(dev, link) => {
                    let to = link.first_chunk().copied().unwrap_or_default();
                    slow.send_datagram_to_many(ctx, view, datagram, (choice, dev, to), pieces, out)
                }
                _ => slow.send_datagram(ctx, view, datagram, choice, pieces, out),
            };
        })?;
        result.map_err(|reason| match reason {
            DropReason::PktTooBig => Errno::MSGSIZE,
            DropReason::NoFrame => Errno::NOBUFS,
            DropReason::DevReady => Errno::NETDOWN,
            _ => Errno::NETUNREACH,
        })?;
        if let Some(dev) = self.loops_back(way, head)
            && let Some(skb) = head.write_chain(&mut thread.ctx, payload)
        {
            loop_back(self.shared, thread, dev, skb);
        }
        Ok(())
    }

    /// The device by which sockets of this stack receive a copy of a multicast or broadcast
    /// datagram, if any want it: the group's members unless the sender turned that off, and all
    /// sockets that listen to broadcasts, as in the kernel's `ip_mc_output`.
    #[inline(always)]
    fn loops_back(&self, way: &Route, head: &UdpHead) -> Option<u16> {
        match way.next {
            NextHop::Multicast(..) | NextHop::Broadcast(..) => self.loops_to_many(way, head),
            _ => None,
        }
    }

    #[cold]
    fn loops_to_many(&self, way: &Route, head: &UdpHead) -> Option<u16> {
        let flow = head.received();
        let (dev, wanted) = match way.next {
            NextHop::Multicast(dev, _) => {
                let Options { multicast_loop, multicast_loop6, .. } = self.options;
                let on = if is_v4(head.dst) { multicast_loop } else { multicast_loop6 };
                let members = || self.shared.sockets.binder().members(&flow, dev).next().is_some();
                (dev, on.load(Ordering::Relaxed) && members())
            }
            NextHop::Broadcast(dev, _) => {
                (dev, self.shared.sockets.binder().listeners(&flow).next().is_some())
            }
            _ => return None,
        };
        wanted.then_some(dev)
    }

    /// Has `send` make packets of one datagram that leave by device `dev`, by the TX queue that the socket keeps to. Those whose
    /// neighbour is known are sent, after the earlier datagrams; the slow path holds the others.
    fn by_slow_path(
        &mut self,
        thread: &mut AppThread,
        dev: u16,
        head: &UdpHead,
        send: impl FnOnce(&mut SlowPath, &mut SoftnetData, RouteSnapshot<'_>, TxChoice, &mut Effects),
    ) -> Result<(), Errno> {
        self.flush(thread)?;
        let shared = self.shared;
        let choice = self.sender.choose(shared, shared.clock.now(), dev, || head.flow_hash());
        // While the device is not open its packets are dropped, whatever their queue.
        let choice = choice.unwrap_or(TxChoice::Queue(0));
        // Not later: what the slow path made is sent.
        let room = self.sender.wait_for_room(shared, &mut thread.ctx, (dev, choice), self.wait);
        room.map_err(|full| self.held_back(full))?;
        let mut ready = SkbList::new();
        shared.slow_path(&mut thread.ctx, |slow, ctx, view, out| {
            // Before it leaves, since an ICMP error may arrive at once.
            shared.sockets.udp.recent.note(head.dst, view.now);
            let from = out.send.len();
            send(slow, ctx, view, choice, out);
            for skb in out.take_sent(from) {
                // Of one store, so of one region.
                ready.push_back(skb).unwrap_or_else(|skb| ctx.free_at(skb, dev, DropReason::DevReady));
            }
        });
        let mut batch = Batch::new();
        while !ready.is_empty() {
            while batch.room() > 0
                && let Some(skb) = ready.pop_front()
            {
                batch.push(skb).unwrap_or_else(|skb| thread.ctx.free_at(skb, dev, DropReason::DevReady));
            }
            self.sender.send_counted(shared, &mut thread.ctx, dev, &mut batch);
        }
        Ok(())
    }

    fn put(
        &mut self,
        thread: &mut AppThread,
        way: &Route,
        head: &UdpHead,
        payload: &[u8],
    ) -> Result<(), Errno> {
        // A datagram to this stack is sent at once, after the accepted messages: these are always the first ones. Flushed before
        // a packet exists that would have to be freed.
        let (NextHop::Device(dev, _)
        | NextHop::Broadcast(dev, _)
        | NextHop::Multicast(dev, _)
        | NextHop::Resolve(dev)) = way.next
        else {
            self.flush(thread)?;
            let mut local = Batch::new();
            write(&mut thread.ctx, &mut local, &head.no_link(), head, payload)?;
            self.deliver(thread, &mut local, head);
            return Ok(());
        };
        let (NextHop::Device(_, link) | NextHop::Broadcast(_, link) | NextHop::Multicast(_, link)) = way.next
        else {
            return self.put_unresolved(thread, dev, head, payload);
        };
        if dev != self.out.dev || self.out.batch.room() == 0 {
            self.flush(thread)?;
        }
        write(&mut thread.ctx, &mut self.out.batch, &link, head, payload)?;
        self.out.dev = dev;
        if self.loops_back(way, head).is_some() {
            // There is room: at most one copy for each packet of the batch. Without memory the copy is lost, as in the kernel.
            let _ = write(&mut thread.ctx, &mut self.out.loops, &link, head, payload);
        }
        Ok(())
    }

    /// A datagram whose neighbour is not known: the slow path holds it, unless it has been found meanwhile.
    #[cold]
    fn put_unresolved(
        &mut self,
        thread: &mut AppThread,
        dev: u16,
        head: &UdpHead,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let mut written = Ok(());
        self.by_slow_path(thread, dev, head, |slow, ctx, view, choice, out| {
            let mut batch = Batch::new();
            written = write(ctx, &mut batch, &head.no_link(), head, payload);
            for mut skb in batch.drain() {
                ctx.originated(1);
                choice.mark(skb.head_mut());
                slow.send(ctx, view, skb, out);
            }
        })?;
        written
    }

    /// Delivers to a socket of this stack. If there is none, the sender gets the error that ICMP
    /// would bring.
    fn deliver(&self, thread: &mut AppThread, local: &mut Batch, head: &UdpHead) {
        let AppThread { ctx, ready, .. } = thread;
        let mut unserved = Batch::new();
        ctx.originated(local.len() as u64);
        self.shared.sockets.input(ctx, (0, Transport::Udp), local, &mut unserved, ready);
        if !unserved.is_empty() {
            ctx.free_batch(&mut unserved, DropReason::IpNoProto);
            let flow = head.sent();
            self.shared.sockets.report(&flow, SocketError::ConnectionRefused);
        }
    }

    /// Sends the gathered packets. If the sender is held back for too long they stay, and the
    /// socket becomes writable later.
    fn flush(&mut self, thread: &mut AppThread) -> Result<(), Errno> {
        let flushed = self.out.flush(self.shared, thread, self.sender, self.wait);
        flushed.map_err(|full| self.held_back(full))
    }

    fn held_back(&self, _: WouldBlock) -> Errno {
        if self.wait.is_none() {
            self.sender.wake_when_room(self.shared, self.slot);
        }
        Errno::AGAIN
    }
}

/// Whether `addr` is an IPv6 group of interface scope (RFC 4291 section 2.7).
fn is_of_interface(addr: Addr) -> bool {
    !is_v4(addr) && group_scope(Ipv6Addr::from_bits(addr)) == 1
}

/// Notifies the sockets of this stack that received something.
pub(super) fn wake_arrived(shared: &StackInner, thread: &mut AppThread) {
    thread.ready.drain(..).for_each(|slot| shared.sockets.arrived(slot));
}

/// Delivers a multicast or broadcast datagram to the sockets of this stack that want it.
fn loop_back(shared: &StackInner, thread: &mut AppThread, dev: u16, skb: Skb) {
    thread.ctx.originated(1);
    shared.sockets.to_many(&mut thread.ctx, Transport::Udp, dev, skb, &mut thread.ready);
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
