//! Reservations of ports: sockets of the kernel's, bound to an address that it shares with softnet
//! and to a port that softnet has open there, so that no other of its sockets has the port, or gets
//! it.
//!
//! They are never read, and must receive nothing: what is sent there by the device is softnet's,
//! and what comes another way (from the kernel's own programs, by another interface) is to be
//! refused as it would be without them. TCP that is bound and does not listen refuses. With UDP,
//! once the kernel has found no other socket in the way, a reservation is bound to the loopback
//! interface as well: no datagram comes to an address of another interface by that, as sockets see
//! it, not even one that was sent here. Sockets that are bound to no interface still collide with
//! it; one that a program has bound to an interface may take the port later. A link-local address
//! is on its own interface: what the kernel's programs send there is lost on the reservation, which
//! keeps a packet or two.
//!
//! Any thread may call it, whichever network namespace it is in.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use softnet_core::ip::v4::header::protocol;
use softnet_core::ip::v6::addr::is_link_local;
use softnet_core::sock::key::{is_v4, socket_addr};

use super::ports::Port;
use crate::netns::NetNs;
use crate::sys_error::{SysError, SysResult};

/// Index of the loopback interface, in every network namespace.
const LOOPBACK: i32 = 1;

/// Where addresses are that softnet and the kernel share.
#[derive(Debug)]
pub(super) struct Place {
    /// Where the interface is.
    pub(super) netns: NetNs,
    /// The interface, and what it is a port of, which may have the addresses in its stead.
    pub(super) interfaces: Vec<u32>,
}

/// Reserves `port` on its address; `None`: the kernel does not have that (any more).
///
/// # Errors
/// EADDRINUSE: the kernel has the port. EACCES: it is one for which it takes CAP_NET_BIND_SERVICE.
pub(super) fn reserve(place: &Place, port: Port) -> SysResult<Option<OwnedFd>> {
    let Port { protocol, addr, number } = port;
    let ip = socket_addr(addr, 0, is_v4(addr)).ip();
    let is_tcp = protocol == protocol::TCP;
    let bound = |index: &u32| bound(*index, is_tcp, ip, number).transpose();
    let work = || place.interfaces.iter().find_map(bound).transpose();
    let reserved = match place.netns.is_current() {
        Ok(true) => work(),
        Ok(false) => place.netns.run(work).and_then(|reserved| reserved),
        Err(error) => Err(error),
    };
    let name = if is_tcp { "TCP" } else { "UDP" };
    reserved.map_err(|error| SysError::new(format!("reserve {name} port {number} of {ip}"), error))
}

/// A socket that is bound to the address, if need be on the interface with index `ifindex`, and the port; `None`: there is no such
/// address.
fn bound(ifindex: u32, is_tcp: bool, ip: IpAddr, port: u16) -> io::Result<Option<OwnedFd>> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kind = if is_tcp { SocketType::STREAM } else { SocketType::DGRAM };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if !is_tcp {
        set_socket_recv_buffer_size(&socket, 0)?;
    }
    let of_link = matches!(ip, IpAddr::V6(ip) if is_link_local(ip));
    let to = match ip {
        IpAddr::V6(ip) if of_link => SocketAddrV6::new(ip, port, 0, ifindex).into(),
        ip => SocketAddr::new(ip, port),
    };
    match bind(&socket, &to) {
        Ok(()) if of_link || is_tcp => Ok(Some(socket)),
        Ok(()) => bind_to_loopback(&socket).map(|()| Some(socket)),
        Err(Errno::ADDRNOTAVAIL | Errno::NODEV) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn bind_to_loopback(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: a live value of the stated length, which the kernel copies.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTOIFINDEX,
            std::ptr::from_ref(&LOOPBACK).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
