//! What goes with a datagram beside its bytes, as the kernel's `recvmsg` and `sendmsg` have it: the
//! other end, our own address with the device (`IP_PKTINFO`, `IPV6_PKTINFO`), type of service and
//! time to live.
//!
//! A socket that is bound to no address receives at any of the stack's, and must answer from the
//! address that was asked, or the client will not accept the answer.
//! [`UdpSocket::recv_msg`](super::UdpSocket::recv_msg) and a batch's [`Received`](super::Received)
//! return that address, and all calls that send accept it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use softnet_core::ip::adjacency::Kind;
use softnet_core::ip::tables::Tables;
use softnet_core::ip::v4::header::is_multicast;
use softnet_core::sock::key::{ANY, Addr, socket_addr, unmapped};
use softnet_core::sock::route::{Dest, Endpoints, is_group, is_loopback, is_own};
use softnet_core::sock::scope::{device, index_of, is_link_local, scope_id, scoped};
use softnet_core::sock::udp::Datagram;

use super::options::errno;
use super::scope::destination;
use super::send::Ways;
use super::udp::{UdpSocket, copy};
use crate::stack::StackInner;

/// Our end of a datagram (the kernel's `in_pktinfo` and `in6_pktinfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PktInfo {
    /// Received: the destination of the datagram: one of our addresses, a group, or a broadcast
    /// address. To send: which of our addresses is the source; a group, a broadcast address or the
    /// unspecified one stands for the address that the socket is bound to, or else for routing's
    /// choice.
    pub addr: IpAddr,
    /// Received: the index of the device that the datagram came by, 0 if it was sent here. To send:
    /// the device of a link-local address; for any other address it makes no difference, and the
    /// datagram leaves as it is routed.
    pub if_index: u32,
}

impl PktInfo {
    /// The packet information of a datagram, for a socket that sees addresses as IPv4 ones or not.
    #[inline]
    pub(super) fn of(datagram: &Datagram, v4: bool) -> Self {
        let local = datagram.flow().local;
        let by = || datagram.dev().map_or(0, index_of);
        let if_index = match scope_id(local) {
            0 => by(),
            index => index,
        };
        PktInfo { addr: socket_addr(local, 0, v4).ip(), if_index: if_index.into() }
    }

    /// The address in the form that sockets use: [`ANY`] if there is none.
    pub(super) fn source(&self, shared: &StackInner) -> Result<Addr, Errno> {
        destination(shared, self.addr, 0, self.if_index).map(|to| to.addr)
    }
}

/// Where a datagram goes, and with what (the kernel's `msghdr`, without the bytes). It is made from
/// an address alone, from `None` for the peer, or from what
/// [`recv_msg`](super::UdpSocket::recv_msg) returned, which makes the datagram a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MsgHdr {
    /// The other end; without one, the peer that the socket is connected to.
    pub name: Option<SocketAddr>,
    /// Our end; without one, the address that the socket is bound to, or routing's choice.
    pub info: Option<PktInfo>,
    /// Type of service or traffic class, DSCP and ECN (`IP_TOS`, `IPV6_TCLASS`); without one, the
    /// socket's.
    pub tos: Option<u8>,
    /// Time to live or hop limit (`IP_TTL`, `IPV6_HOPLIMIT`), at least 1; without one, the socket's.
    pub ttl: Option<u8>,
}

impl MsgHdr {
    /// To `name`, from our end `info`.
    #[inline]
    pub fn new(name: Option<SocketAddr>, info: Option<PktInfo>) -> Self {
        MsgHdr { name, info, ..MsgHdr::default() }
    }

    /// The same with type of service or traffic class `tos`.
    #[inline]
    pub fn with_tos(self, tos: u8) -> Self {
        MsgHdr { tos: Some(tos), ..self }
    }

    /// The same with time to live or hop limit `ttl`.
    #[inline]
    pub fn with_ttl(self, ttl: u8) -> Self {
        MsgHdr { ttl: Some(ttl), ..self }
    }
}

impl From<SocketAddr> for MsgHdr {
    #[inline]
    fn from(name: SocketAddr) -> Self {
        MsgHdr::new(Some(name), None)
    }
}

impl From<Option<SocketAddr>> for MsgHdr {
    #[inline]
    fn from(name: Option<SocketAddr>) -> Self {
        MsgHdr::new(name, None)
    }
}

impl From<(SocketAddr, PktInfo)> for MsgHdr {
    #[inline]
    fn from((name, info): (SocketAddr, PktInfo)) -> Self {
        MsgHdr::new(Some(name), Some(info))
    }
}

impl UdpSocket {
    /// As [`recv_from`](Self::recv_from); also returns which of our addresses the datagram was sent
    /// to, and the device that it came by, as `recvmsg` with `IP_PKTINFO`. A socket that is bound
    /// to no address answers from there by [`send_msg`](Self::send_msg).
    pub fn recv_msg(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr, PktInfo)> {
        let v4 = self.inner().v4;
        let (n, (addr, port), info) = self.receive(|thread, inbox| {
            let datagram = inbox.next(&mut thread.ctx)?;
            let ((n, from), info) = (copy(&datagram, buffer), PktInfo::of(&datagram, v4));
            datagram.free(&mut thread.ctx);
            Some((n, from, info))
        })?;
        Ok((n, socket_addr(addr, port, v4), info))
    }

    /// Sends a datagram to the destination and from the source that `to` says, as `sendmsg` with
    /// `IP_PKTINFO`. What [`recv_msg`](Self::recv_msg) returned of a request makes it the answer.
    /// Returns the datagram's length.
    ///
    /// # Errors
    /// `EINVAL`: the source is none of our addresses, or the time to live is 0.
    pub fn send_msg(&self, payload: &[u8], to: impl Into<MsgHdr>) -> io::Result<usize> {
        self.send_one(payload, self.ways(&to.into())?.by_ref())
    }

    /// Sends a datagram for each `segment` bytes of `payload`, the last one with what remains, as
    /// `sendmsg` with `UDP_SEGMENT`: QUIC's way to send many of a size in one call. Returns how many
    /// bytes of the payload were accepted, whole segments; an error only if none was.
    ///
    /// # Errors
    /// As [`send_msg`](Self::send_msg). `EINVAL`: `segment` is 0, or there would be more than
    /// [`MAX_SEGMENTS`](Self::MAX_SEGMENTS).
    pub fn send_segments(&self, payload: &[u8], segment: usize, to: impl Into<MsgHdr>) -> io::Result<usize> {
        if segment == 0 || payload.len().div_ceil(segment) > Self::MAX_SEGMENTS {
            return Err(errno(Errno::INVAL));
        }
        let ways = self.ways(&to.into())?;
        if payload.len() <= segment {
            return self.send_one(payload, ways.by_ref());
        }
        let sent = self.send_all(|sending, thread, ends| {
            let mut taken = 0;
            for piece in payload.chunks(segment) {
                if let Err(error) = sending.one(thread, ends, piece, ways.by_ref()) {
                    return (taken, Err(errno(error)));
                }
                taken += 1;
            }
            (taken, Ok(()))
        })?;
        Ok(payload.len().min(sent * segment))
    }

    /// Most datagrams of one [`send_segments`](Self::send_segments) (the kernel's `UDP_MAX_SEGMENTS`).
    pub const MAX_SEGMENTS: usize = softnet_core::skb::BATCH;

    /// Everything that sending to `to` needs.
    #[inline]
    pub(super) fn ways(&self, to: &MsgHdr) -> io::Result<OwnWays> {
        let from = to.info.map(|info| info.source(&self.inner().shared)).transpose().map_err(errno)?;
        if to.ttl == Some(0) {
            return Err(errno(Errno::INVAL));
        }
        let name = to.name.map(|name| self.destination(name)).transpose()?;
        Ok(OwnWays { to: name, from, tos: to.tos, ttl: to.ttl })
    }
}

/// What a [`Ways`] refers to.
pub(super) struct OwnWays {
    to: Option<Dest>,
    from: Option<Addr>,
    tos: Option<u8>,
    ttl: Option<u8>,
}

impl OwnWays {
    #[inline]
    pub(super) fn by_ref(&self) -> Ways<'_> {
        Ways { to: self.to.as_ref(), from: self.from.as_ref(), tos: self.tos, ttl: self.ttl }
    }
}

/// The source of a datagram from a socket with these `ends` to `to`, if `from` was asked for:
/// `None` if `from` names no host. An address that is not ours is refused, as by the kernel.
#[cold]
#[inline(never)]
pub(super) fn source(tables: &Tables, ends: &Endpoints, to: Addr, from: Addr) -> Result<Option<Addr>, Errno> {
    let from = match is_link_local(from) && device(from).is_none() {
        // The source is on the link where the datagram goes.
        true => scoped(from, device(to).or(ends.device()).ok_or(Errno::INVAL)?),
        false => from,
    };
    let names_none = match unmapped(from) {
        Some(v4) => {
            let kind = || tables.v4.next_hop(tables.v4.fib.lookup(v4)).kind;
            is_multicast(v4) || v4 == u32::MAX || !is_loopback(v4) && kind() == Kind::Broadcast
        }
        None => from == ANY || is_group(from),
    };
    match names_none {
        true => Ok(ends.source()),
        false if is_own(tables, from) => Ok(Some(from)),
        false => Err(Errno::INVAL),
    }
}
