//! [`UdpSocket`]: a datagram socket, as `std::net::UdpSocket` is, on a stack of this process.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::io::Errno;
use softnet_core::ip::v4::header::protocol;
use softnet_core::sock::key::{ANY, Addr, addr_of, socket_addr, unmapped};
use softnet_core::sock::route::{Dest, Endpoints, find_route, is_group, is_own};
use softnet_core::sock::udp::{Datagram, UdpInbox};
use softnet_core::sock::{Bind, Readiness, Slot, SlotRef};
use softnet_core::sync::Ordering;
use softnet_dev::xdp::LocalEnd;

use super::Handle;
use super::msg::MsgHdr;
use super::options::{Options, errno, of_bind, of_socket, packets, route_errno, timeout};
use super::recv::RecvBatch;
use super::scope::{destination, local_end, on_device, scope_id};
use super::send::{Outgoing, Sending, Tx, Ways, wait_of};
use super::socket::{closed, is_socket, wait};
use crate::app::LocalSender;
use crate::notify::wake_blocked;
use crate::stack::{AppThread, StackInner, with};
use crate::steering::SockRps;
use crate::util::lock;

/// A UDP socket. Clones ([`try_clone`](Self::try_clone)) are the same socket; any number of threads may use it. It is closed with its
/// last clone; what waits in it then is freed and counted.
#[derive(Clone)]
pub struct UdpSocket(Arc<Inner>);

pub(super) struct Inner {
    pub(super) shared: Arc<StackInner>,
    pub(super) slot: SlotRef,
    /// It sees addresses as IPv4 ones.
    pub(super) v4: bool,
    /// It has nothing to do with IPv4.
    only_v6: bool,
    pub(super) options: Options,
    /// `None` once it is closed.
    rx: Mutex<Option<UdpInbox>>,
    pub(super) tx: Mutex<Tx>,
    /// What [`Tx`] has of them, too; by itself, since a sender that is held back has `tx` locked
    /// while it waits.
    names: Mutex<Names>,
    /// Where its flows are consumed; there is one if RFS is on.
    rps: Option<SockRps>,
}

/// What a socket tells of its ends.
struct Names {
    local: Addr,
    lport: u16,
    group_dev: Option<u16>,
    peer: Option<Dest>,
}

is_socket!(UdpSocket, Inner);

/// What a socket is to be before it is bound.
#[derive(Debug, Clone)]
pub struct UdpBuilder {
    on: Handle,
    reuse_port: bool,
    only_v6: bool,
    recv_buffer: Option<usize>,
}

impl UdpBuilder {
    /// Whether to share address and port with other sockets that say so (`SO_REUSEPORT`): a flow's datagrams go to one of
    /// them.
    pub fn reuse_port(mut self, reuse: bool) -> Self {
        self.reuse_port = reuse;
        self
    }

    /// Whether a socket of IPv6 has nothing to do with IPv4 (`IPV6_V6ONLY`).
    pub fn only_v6(mut self, only: bool) -> Self {
        self.only_v6 = only;
        self
    }

    /// Bytes of packet memory that may wait (`SO_RCVBUF`); see [`UdpSocket::set_recv_buffer_size`].
    pub fn recv_buffer_size(mut self, bytes: usize) -> Self {
        self.recv_buffer = Some(bytes);
        self
    }

    /// Opens the socket. Of several addresses, it is bound to the first that is possible.
    pub fn bind(&self, addr: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        first(addr, |addr| self.bind_one(addr))
    }

    fn bind_one(&self, addr: SocketAddr) -> io::Result<UdpSocket> {
        let shared = self.on.shared();
        if shared.sockets.is_stopped() {
            return Err(errno(Errno::NETDOWN));
        }
        let (local, group_dev) = local_end(shared, &addr).map_err(errno)?;
        let own = || with(shared, |thread| is_own(thread.tables.load(), local));
        if local != ANY && !is_group(local) && !own() {
            return Err(errno(Errno::ADDRNOTAVAIL));
        }
        let v4 = addr.is_ipv4();
        let options = || {
            let options = Options::default();
            if let Some(bytes) = self.recv_buffer {
                options.recv_buffer.store(u32::try_from(bytes).unwrap_or(u32::MAX), Ordering::Relaxed);
            }
            options
        };
        let bind = Bind {
            local,
            port: addr.port(),
            v4: v4 || !self.only_v6,
            v6: !v4,
            dev: group_dev,
            reuseport: self.reuse_port,
            limit: packets(options().recv_buffer.load(Ordering::Relaxed) as usize),
        };
        // Ports that the kernel has.
        let mut taken = BTreeSet::new();
        loop {
            let mut inbox = shared.sockets.binder().open_beside(&bind, &taken).map_err(of_bind)?;
            let slot = inbox.slot().clone();
            let lport = slot.slot().key().map_or(0, |(key, _)| key.flow.lport);
            let socket = UdpSocket(Arc::new(Inner {
                shared: shared.clone(),
                slot,
                v4,
                only_v6: !v4 && self.only_v6,
                options: options(),
                rps: SockRps::new(shared, &mut inbox),
                rx: Mutex::new(Some(inbox)),
                tx: Mutex::new(Tx::new(local, lport, group_dev)),
                names: Mutex::new(Names { local, lport, group_dev, peer: None }),
            }));
            let opened = socket.0.open_port(&lock(&socket.0.tx), local);
            match opened {
                Ok(end) => {
                    socket.0.has_port(&mut lock(&socket.0.tx), end);
                    return Ok(socket);
                }
                Err(Errno::ADDRINUSE) if bind.port == 0 => _ = taken.insert(lport),
                Err(error) => return Err(errno(error)),
            }
        }
    }
}

/// Tries the addresses that `addr` stands for, one after the other.
pub(super) fn first<T>(
    addr: impl ToSocketAddrs,
    mut f: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for addr in addr.to_socket_addrs()? {
        match f(addr) {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| errno(Errno::INVAL)))
}

impl UdpSocket {
    /// A socket on a stack, bound to `addr`: one of the stack's own addresses, `0.0.0.0`, `::` (both families), or a
    /// multicast group. Port 0 stands for any that is free. A link-local address, or group of one link, needs a `scope_id`,
    /// which is an index of the stack's ([`if_nametoindex`](Handle::if_nametoindex)); the socket sends by that device alone.
    ///
    /// On addresses that a device shares with the kernel the port is the kernel's no more as long as the socket has it. That waits
    /// for the kernel, and costs a descriptor; a thread in another network namespace than the interface needs CAP_SYS_ADMIN for it.
    ///
    /// # Errors
    /// As the kernel's. `EADDRINUSE`: another socket has address and port, one of the kernel's for one, if it shares the address.
    pub fn bind(on: &Handle, addr: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        Self::builder(on).bind(addr)
    }

    /// A socket that is to be more than [`bind`](Self::bind) makes it.
    pub fn builder(on: &Handle) -> UdpBuilder {
        UdpBuilder { on: on.clone(), reuse_port: false, only_v6: false, recv_buffer: None }
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    fn slot(&self) -> &Slot {
        self.0.slot.slot()
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let Names { local, lport, group_dev, .. } = *lock(&self.0.names);
        Ok(on_device(local, lport, group_dev, self.0.v4))
    }

    /// The address that it is connected to.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = lock(&self.0.names).peer.ok_or_else(|| errno(Errno::NOTCONN))?;
        Ok(on_device(peer.addr, peer.port, peer.dev, self.0.v4))
    }

    /// Another handle on the same socket.
    pub fn try_clone(&self) -> io::Result<UdpSocket> {
        Ok(self.clone())
    }

    /// From now on it sends to `addr`, and receives from there alone; a socket that was bound to no address is bound to the one that leads
    /// there. It leaves its reuseport group.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<()> {
        first(addr, |addr| self.connect_one(addr))
    }

    fn connect_one(&self, addr: SocketAddr) -> io::Result<()> {
        let Inner { shared, rx, tx, options, .. } = &*self.0;
        let peer = self.destination(addr)?;
        if peer.port == 0 {
            return Err(errno(Errno::INVAL));
        }
        with(shared, |thread| {
            // In this order: a sender that is held back has the sending side locked, and receivers do not wait for that.
            let (mut tx, mut rx) = (lock(tx), lock(rx));
            let Some(inbox) = rx.as_mut() else { return Err(Errno::BADF) };
            let broadcast = options.broadcast.load(Ordering::Relaxed);
            let peer = tx.ends.complete(peer).map_err(route_errno)?;
            let way = find_route(thread.tables.load(), &peer, &tx.ends, tx.ends.source(), broadcast)
                .map_err(route_errno)?;
            // One that is bound to a group receives what is sent there, and sends from an address of ours.
            let local = if is_group(tx.ends.local) { tx.ends.local } else { way.src };
            let end = self.0.open_port(&tx, local)?;
            let generation =
                shared.sockets.binder().connect(self.0.slot.index(), local, peer.addr, peer.port);
            inbox.connected(&mut thread.ctx, (peer.addr, peer.port), generation);
            self.forget_flow();
            shared.sockets.gone(inbox.gone());
            self.0.rename(&mut tx, local, Some(peer));
            self.0.has_port(&mut tx, end);
            Ok(())
        })
        .map_err(errno)
    }

    /// Undoes [`connect`](Self::connect), as the kernel's to `AF_UNSPEC` does: it has no peer, receives from any address, and is bound to
    /// what it was before. Its port it keeps in any case, and in its reuseport group it is as one that has just come. If it is not
    /// connected, nothing changes.
    ///
    /// # Errors
    /// `EADDRINUSE`: what it was bound to is another socket's by now, or the kernel's, on an address that is shared with it.
    /// `ENOBUFS`: its reuseport group is full. It stays connected then.
    pub fn disconnect(&self) -> io::Result<()> {
        let Inner { shared, rx, tx, slot, .. } = &*self.0;
        let (mut tx, mut rx) = (lock(tx), lock(rx));
        let inbox = rx.as_mut().ok_or_else(|| errno(Errno::BADF))?;
        let local = shared.sockets.binder().bound(slot.index());
        let end = self.0.open_port(&tx, local).map_err(errno)?;
        let disconnected = shared.sockets.binder().disconnect(slot.index());
        let (generation, local) = disconnected.map_err(|error| {
            end.iter().for_each(|end| shared.sockets.ports().closed(end));
            of_bind(error)
        })?;
        inbox.disconnected(generation);
        self.forget_flow();
        self.0.rename(&mut tx, local, None);
        self.0.has_port(&mut tx, end);
        Ok(())
    }

    /// For RFS: the flow of the peer that it had is not its any more.
    fn forget_flow(&self) {
        if let Some(rps) = &self.0.rps {
            rps.reconnected();
        }
    }

    /// The address and port that datagrams to `addr` go to, if they may. The unspecified address stands for this host.
    #[inline]
    pub(super) fn destination(&self, addr: SocketAddr) -> io::Result<Dest> {
        let ip = addr.ip();
        let v4 = unmapped(addr_of(ip)).is_some() || addr.is_ipv4();
        let ip = match self.0.v4 {
            true if !v4 => return Err(errno(Errno::AFNOSUPPORT)),
            false if v4 && self.0.only_v6 => return Err(errno(Errno::NETUNREACH)),
            _ if !ip.is_unspecified() => ip,
            _ if v4 => Ipv4Addr::LOCALHOST.into(),
            _ => Ipv6Addr::LOCALHOST.into(),
        };
        destination(&self.0.shared, ip, addr.port(), scope_id(&addr)).map_err(errno)
    }

    /// Sends a datagram to `addr`. Returns its length. To a link-local address with a `scope_id` of 0, it goes by the device that
    /// the socket is bound to; if that is none, it is an error (`EINVAL`).
    pub fn send_to(&self, payload: &[u8], addr: impl ToSocketAddrs) -> io::Result<usize> {
        let addr = addr.to_socket_addrs()?.next().ok_or_else(|| errno(Errno::INVAL))?;
        let to = self.destination(addr)?;
        self.send_one(payload, Ways { to: Some(&to), ..Ways::default() })
    }

    /// Sends a datagram to the peer. Returns its length.
    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.send_one(payload, Ways::default())
    }

    /// Sends datagrams, each to its address or (`None`) to the peer, or as a [`MsgHdr`] says, as `sendmmsg` does: the headers once
    /// each, the TX queue once for all. Returns how many were taken; an error only if the first was not.
    pub fn send_batch<M: Into<MsgHdr> + Copy>(&self, messages: &[(&[u8], M)]) -> io::Result<usize> {
        self.send_all(|sending, thread, ends| {
            let mut taken = 0;
            for (payload, to) in messages {
                let sent = self
                    .ways(&(*to).into())
                    .and_then(|ways| sending.one(thread, ends, payload, ways.by_ref()).map_err(errno));
                if sent.is_err() {
                    return (taken, sent);
                }
                taken += 1;
            }
            (taken, Ok(()))
        })
    }

    /// Sends a datagram. Returns its length.
    #[inline(always)]
    pub(super) fn send_one(&self, payload: &[u8], ways: Ways<'_>) -> io::Result<usize> {
        self.send_all(|sending, thread, ends| match sending.one(thread, ends, payload, ways) {
            Ok(()) => (1, Ok(())),
            Err(error) => (0, Err(errno(error))),
        })
        .map(|_| payload.len())
    }

    /// Sends the datagrams that `messages` accepts. Returns how many; an error only if none was.
    #[inline(always)]
    pub(super) fn send_all(
        &self,
        messages: impl FnOnce(&mut Sending<'_>, &mut AppThread, &Endpoints) -> (usize, io::Result<()>),
    ) -> io::Result<usize> {
        let Inner { shared, options, tx, slot, .. } = &*self.0;
        self.check()?;
        let (slot, wait) = (slot.index(), wait_of(shared, options));
        with(shared, |thread| {
            let (tx, mut out) = (&mut *lock(tx), Outgoing::new());
            if let Some(rps) = &self.0.rps {
                rps.sends(shared);
            }
            let sending = Sending { shared, options, wait, slot, out: &mut out, sender: &mut tx.sender };
            sending.all(thread, |sending, thread| messages(sending, thread, &tx.ends))
        })
    }

    /// Makes a datagram of `payload` and leaves it in `out`, which is of the same stack.
    pub(super) fn gather(
        &self,
        out: &mut Outgoing,
        sender: &mut LocalSender,
        payload: &[u8],
        to: MsgHdr,
    ) -> io::Result<()> {
        let Inner { shared, options, tx, slot, .. } = &*self.0;
        let ways = self.ways(&to)?;
        self.check()?;
        let sending = Sending { shared, options, wait: None, slot: slot.index(), out, sender };
        with(shared, |thread| sending.one_more(thread, &lock(tx).ends, payload, ways.by_ref())).map_err(errno)
    }

    /// The error that waits, or that the stack has stopped.
    fn check(&self) -> io::Result<()> {
        if let Some(error) = self.slot().take_error() {
            return Err(of_socket(error));
        }
        if self.0.shared.sockets.is_stopped() { Err(errno(Errno::NETDOWN)) } else { Ok(()) }
    }

    /// Receives a datagram: how many of its bytes fit `buffer`, and the address it came from. The rest of it is lost.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (n, (addr, port)) = self.receive(|thread, inbox| {
            let datagram = inbox.next(&mut thread.ctx)?;
            let result = copy(&datagram, buffer);
            datagram.free(&mut thread.ctx);
            Some(result)
        })?;
        Ok((n, socket_addr(addr, port, self.0.v4)))
    }

    /// Receives a datagram from the peer.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buffer).map(|(n, _)| n)
    }

    /// As [`recv_from`](Self::recv_from); the datagram stays.
    pub fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (n, (addr, port)) =
            self.receive(|thread, inbox| Some(copy(inbox.peek(&mut thread.ctx)?, buffer)))?;
        Ok((n, socket_addr(addr, port, self.0.v4)))
    }

    /// As [`recv`](Self::recv); the datagram stays.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.peek_from(buffer).map(|(n, _)| n)
    }

    /// Receives up to `max` datagrams, and no more than [`RecvBatch::MAX`], where they lie: waits for the first, and takes
    /// what is there then. Returns how many; what `batch` held before is given back.
    pub fn recv_batch(&self, batch: &mut RecvBatch, max: usize) -> io::Result<usize> {
        batch.prepare(&self.0.shared, self.0.v4);
        let max = max.clamp(1, RecvBatch::MAX);
        self.receive(|thread, inbox| {
            while batch.len() < max
                && let Some(datagram) = inbox.next(&mut thread.ctx)
            {
                batch.push(datagram);
            }
            (!batch.is_empty()).then_some(batch.len())
        })
    }

    /// Runs `take` on the inbox until that finds something; waits in between, if the socket blocks.
    pub(super) fn receive<R>(
        &self,
        mut take: impl FnMut(&mut AppThread, &mut UdpInbox) -> Option<R>,
    ) -> io::Result<R> {
        let Inner { shared, rx, options, .. } = &*self.0;
        let mut until = None;
        loop {
            let taken = with(shared, |thread| {
                let mut rx = lock(rx);
                let inbox = rx.as_mut()?;
                let taken = take(thread, inbox);
                self.slot().set_tid(thread.tid);
                if let Some(rps) = &self.0.rps {
                    rps.received(shared, inbox);
                }
                let gone = inbox.gone();
                drop(rx);
                shared.sockets.gone(gone);
                taken
            });
            // What came before an error is received before it is told.
            if let Some(taken) = taken {
                // It may have been woken for more than it took.
                if until.is_some() && self.slot().pass_on() {
                    wake_blocked(self.slot(), 1);
                }
                return Ok(taken);
            }
            self.check()?;
            if options.nonblocking.load(Ordering::Relaxed) {
                return Err(errno(Errno::AGAIN));
            }
            let until = *until.get_or_insert_with(|| {
                timeout(&options.read_timeout).and_then(|timeout| Instant::now().checked_add(timeout))
            });
            self.wait_readable(until)?;
        }
    }

    /// Blocks until something waits, an error does, the stack stops, or it is `until`.
    fn wait_readable(&self, until: Option<Instant>) -> io::Result<()> {
        wait(&self.0.shared, self.slot(), &self.0.options.busy_poll, until, |now| now.readable || now.error)
    }

    /// What may be done with it now without waiting.
    pub fn readiness(&self) -> Readiness {
        self.slot().readiness()
    }

    /// The error that waits for the next call, which does not get it then: an ICMP error about what it sent, if it is connected.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.slot().take_error().map(of_socket))
    }

    /// Id of the NAPI instance that the last datagram came by (`SO_INCOMING_NAPI_ID`); 0 if none did.
    pub fn incoming_napi_id(&self) -> u32 {
        self.slot().napi_id()
    }

    /// In its reuseport group, it gets what comes by NAPI instance `napi_id`, whatever its flow; `None`: its share by flow.
    pub fn set_reuse_port_napi(&self, napi_id: Option<u32>) {
        self.0.shared.sockets.binder().set_napi(self.0.slot.index(), napi_id.unwrap_or(0));
    }
}

/// Copies a datagram to `buffer`: how many bytes that was, and where it is from.
pub(super) fn copy(datagram: &Datagram, buffer: &mut [u8]) -> (usize, (Addr, u16)) {
    (datagram.copy_to(buffer), (datagram.flow().remote, datagram.flow().rport))
}

impl Inner {
    /// It is about to have `local` and its port: opens that for devices that leave to the kernel what no socket here has. With
    /// what it had still open and, unless it is being bound, before it is found by the new one: then it misses nothing, and
    /// what follows cannot fail for want of it. `None`: it is what it has. Else [`has_port`](Self::has_port) is to be called, or it is to be closed.
    fn open_port(&self, tx: &Tx, local: Addr) -> Result<Option<LocalEnd>, Errno> {
        let families = (self.v4 || !self.only_v6, !self.v4);
        let end = LocalEnd { protocol: protocol::UDP, addr: local, families, port: tx.ends.lport };
        if tx.open_port == Some(end) {
            return Ok(None);
        }
        self.shared.sockets.ports().opened(&end)?;
        Ok(Some(end))
    }

    /// It is bound to `local` and connected to `peer` from now on.
    fn rename(&self, tx: &mut Tx, local: Addr, peer: Option<Dest>) {
        (tx.ends.local, tx.ends.peer) = (local, peer);
        let mut names = lock(&self.names);
        (names.local, names.peer) = (local, peer);
    }

    /// It has `end`, which was [opened](Self::open_port), in place of what it had.
    fn has_port(&self, tx: &mut Tx, end: Option<LocalEnd>) {
        if let Some(before) = end.and_then(|end| tx.open_port.replace(end)) {
            self.shared.sockets.ports().closed(&before);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (shared, index) = (&self.shared, self.slot.index());
        let joined = shared.sockets.binder().close(index);
        lock(&self.tx).open_port.iter().for_each(|end| shared.sockets.ports().closed(end));
        closed(shared, index, &joined, lock(&self.rx).take());
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("UdpSocket");
        debug.field("local", &self.local_addr().ok());
        debug.field("peer", &self.peer_addr().ok()).finish()
    }
}
