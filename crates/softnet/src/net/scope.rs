//! Which device an address means: the `scope_id` of a socket address, and the indices by which
//! programs know devices.
//!
//! The indices are the stack's own, counted from 1 in the order of its configuration; they have
//! nothing to do with the kernel's interface indices. Inside the stack, a link-local address
//! contains its device ([`softnet_core::sock::scope`]).

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use softnet_core::ip::v6::addr::is_group_of_link;
use softnet_core::sock::key::{Addr, addr_of, is_v4, socket_addr};
use softnet_core::sock::route::{Dest, is_group};
use softnet_core::sock::scope::{self, index_of, is_link_local, scoped};

use super::Handle;
use super::options::errno;
use crate::stack::StackInner;

/// The destination that a program means by `ip` on the device with this index (0: no device is named). For an address that is
/// not tied to a link the index makes no difference.
#[inline]
pub(super) fn destination(shared: &StackInner, ip: IpAddr, port: u16, index: u32) -> Result<Dest, Errno> {
    let addr = addr_of(ip);
    let to = Dest { addr, port, dev: None };
    if index == 0 && !is_link_local(addr) { Ok(to) } else { on(to, shared, index) }
}

#[cold]
fn on(to: Dest, shared: &StackInner, index: u32) -> Result<Dest, Errno> {
    let Dest { addr, .. } = to;
    if scope::scope_id(addr) != 0 {
        return Err(Errno::NETUNREACH);
    }
    let (local, group) = (is_link_local(addr), !is_v4(addr) && is_group(addr));
    if index == 0 || !local && !group {
        return Ok(to);
    }
    let dev = device(shared, index).ok_or(Errno::NETUNREACH)?;
    Ok(if group { Dest { dev: Some(dev), ..to } } else { Dest { addr: scoped(addr, dev), ..to } })
}

/// As [`socket_addr`], for an address that does not contain its device.
pub(super) fn on_device(addr: Addr, port: u16, dev: Option<u16>, v4: bool) -> SocketAddr {
    let mut addr = socket_addr(addr, port, v4);
    if let (SocketAddr::V6(addr), Some(dev)) = (&mut addr, dev) {
        addr.set_scope_id(index_of(dev).into());
    }
    addr
}

/// The `scope_id` of `addr`; 0: none.
pub(super) fn scope_id(addr: &SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(addr) => addr.scope_id(),
    }
}

/// The local end of a socket that binds to `addr`, and its device if it is a group of one link.
pub(super) fn local_end(shared: &StackInner, addr: &SocketAddr) -> Result<(Addr, Option<u16>), Errno> {
    let local = addr_of(addr.ip());
    let group = matches!(addr, SocketAddr::V6(addr) if is_group_of_link(*addr.ip()));
    if !group && !is_link_local(local) {
        return Ok((local, None));
    }
    let dev = match scope_id(addr) {
        0 => return Err(Errno::INVAL),
        index => device(shared, index).ok_or(Errno::NODEV)?,
    };
    match scope::scope_id(local) {
        0 => Ok((scoped(local, dev), group.then_some(dev))),
        _ => Err(Errno::ADDRNOTAVAIL),
    }
}

/// The device with the index that programs use.
pub(super) fn device(shared: &StackInner, index: u32) -> Option<u16> {
    let dev = u16::try_from(index).ok()?.checked_sub(1)?;
    (usize::from(dev) < shared.netdevs.len()).then_some(dev)
}

impl Handle {
    /// The index of the device with this name, for the `scope_id` of a `SocketAddrV6`: 1 or more,
    /// the same for as long as the stack runs, whether the device's interface exists or not. It is
    /// not the kernel's index of the interface.
    ///
    /// # Errors
    /// `ENODEV`: the stack has no such device.
    pub fn if_nametoindex(&self, name: &str) -> io::Result<u32> {
        let mut netdevs = self.shared().netdevs.iter();
        let dev = netdevs.find(|dev| dev.name == name).ok_or_else(|| errno(Errno::NODEV))?;
        Ok(index_of(dev.index).into())
    }

    /// The name of the device with this index.
    ///
    /// # Errors
    /// `ENXIO`: the stack has no such device.
    pub fn if_indextoname(&self, index: u32) -> io::Result<&str> {
        let dev = device(self.shared(), index).ok_or_else(|| errno(Errno::NXIO))?;
        Ok(&self.shared().netdevs[usize::from(dev)].name)
    }
}
