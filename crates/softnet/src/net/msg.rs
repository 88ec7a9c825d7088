//! What goes with a datagram beside its bytes, as the kernel's `recvmsg` and `sendmsg` have it: the
//! other end, and our own address with the device (`IP_PKTINFO`, `IPV6_PKTINFO`).
//!
//! A socket that is bound to no address is asked at any of the stack's, and must answer from that
//! one, or who asked will not know the answer for one:
//! [`UdpSocket::recv_msg`](super::UdpSocket::recv_msg), a batch's [`Received`](super::Received),
//! tell it, and whatever sends takes it back.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use softnet_core::ip::adjacency::{Kind, Tables};
use softnet_core::ip::header::is_multicast;
use softnet_core::sock::Datagram;
use softnet_core::sock::key::{ANY, Addr, socket_addr, unmapped};
use softnet_core::sock::scope::{device, index_of, is_link_local, scope_id, scoped};

use super::options::errno;
use super::route::{is_loopback, is_own};
use super::scope::To;
use super::send::Ends;
use super::table::is_group;
use super::udp::{UdpSocket, copy};
use crate::shared::Shared;

/// Our end of a datagram (the kernel's `in_pktinfo` and `in6_pktinfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PktInfo {
    /// Received: the address that it was sent to, one of ours, a group, or that of all on a link.
    /// To send: the one of ours that it is to come from; a group or a broadcast address, or the
    /// unspecified one, stands for what the socket is bound to, or routing chooses.
    pub addr: IpAddr,
    /// Received: the index of the device that it came by, 0 if it was sent here. To send: on which
    /// device a link-local address is; for any other it makes no difference, the datagram leaves as
    /// it is routed.
    pub if_index: u32,
}

impl PktInfo {
    /// That of a datagram, for a socket that sees addresses as IPv4 ones or not.
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

    /// The address as sockets have it: [`ANY`] if it says none.
    pub(super) fn source(&self, shared: &Shared) -> Result<Addr, Errno> {
        To::new(shared, self.addr, 0, self.if_index).map(|to| to.addr)
    }
}

/// Where a datagram is to go, and where it is to come from (the kernel's `msghdr`, without the
/// bytes). An address alone, or none for the peer's, can be turned into it; and what
/// [`recv_msg`](super::UdpSocket::recv_msg) said, which is a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MsgHdr {
    /// The other end; that which the socket is connected to if there is none.
    pub name: Option<SocketAddr>,
    /// Ours; what the socket is bound to, or routing chooses, if there is none.
    pub info: Option<PktInfo>,
}

impl From<SocketAddr> for MsgHdr {
    #[inline]
    fn from(name: SocketAddr) -> Self {
        MsgHdr { name: Some(name), info: None }
    }
}

impl From<Option<SocketAddr>> for MsgHdr {
    #[inline]
    fn from(name: Option<SocketAddr>) -> Self {
        MsgHdr { name, info: None }
    }
}

impl From<(SocketAddr, PktInfo)> for MsgHdr {
    #[inline]
    fn from((name, info): (SocketAddr, PktInfo)) -> Self {
        MsgHdr { name: Some(name), info: Some(info) }
    }
}

impl UdpSocket {
    /// As [`recv_from`](Self::recv_from); also which of our addresses it was sent to, and the device that it came by, as
    /// `recvmsg` with `IP_PKTINFO`. What is bound to no address answers from there: [`send_msg`](Self::send_msg).
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

    /// Sends a datagram to the address and from that of ours which `to` says, as `sendmsg` with
    /// `IP_PKTINFO`: with what [`recv_msg`](Self::recv_msg) told of a request, it answers that.
    /// Returns its length.
    ///
    /// # Errors
    /// `EINVAL`: the address that it is to come from is none of ours.
    pub fn send_msg(&self, payload: &[u8], to: impl Into<MsgHdr>) -> io::Result<usize> {
        let (to, from) = self.ways(to.into())?;
        self.send_one(payload, (to.as_ref(), from.as_ref()))
    }

    /// What it takes to send to `to`.
    #[inline]
    pub(super) fn ways(&self, to: MsgHdr) -> io::Result<(Option<To>, Option<Addr>)> {
        let from = to.info.map(|info| info.source(&self.inner().shared)).transpose().map_err(errno)?;
        Ok((to.name.map(|name| self.destination(name)).transpose()?, from))
    }
}

/// What a datagram from a socket with these `ends` to `to` comes from, if `from` was asked for:
/// `None` if that names no host. One that is not ours is refused, as the kernel does.
#[cold]
#[inline(never)]
pub(super) fn source(tables: &Tables, ends: &Ends, to: Addr, from: Addr) -> Result<Option<Addr>, Errno> {
    let from = match is_link_local(from) && device(from).is_none() {
        // It is on the link where the datagram goes.
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
