//! IPv4 multicast, as `std` and the kernel's sockets have it: which sockets receive datagrams to a
//! group, and by which device a socket sends there. A device is named by one of its addresses.
//!
//! A membership belongs to one socket on one device. A socket that is no member receives nothing
//! (as with `IP_MULTICAST_ALL` off).

use std::io;
use std::net::Ipv4Addr;

use rustix::io::Errno;
use softnet_core::sock::key::{Addr, mapped};
use softnet_core::sock::route::default_device;
use softnet_core::sync::Ordering;

use super::groups;
use super::options::errno;
use super::udp::UdpSocket;
use crate::stack::with;
use crate::util::lock;

impl UdpSocket {
    /// Whether members on this stack receive the multicast datagrams that the socket sends, as they
    /// do by default.
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.inner().options.multicast_loop.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// See [`set_multicast_loop_v4`](Self::set_multicast_loop_v4).
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        Ok(self.inner().options.multicast_loop.load(Ordering::Relaxed))
    }

    /// Sets the time to live of IPv4 multicast datagrams that the socket sends, 0 to 255; 1 by
    /// default. With 0 they reach members on this stack alone.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        if ttl > 255 {
            return Err(errno(Errno::INVAL));
        }
        self.inner().options.multicast_ttl.store(ttl, Ordering::Relaxed);
        Ok(())
    }

    /// See [`set_multicast_ttl_v4`](Self::set_multicast_ttl_v4).
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        Ok(self.inner().options.multicast_ttl.load(Ordering::Relaxed))
    }

    /// Multicast leaves by the device that has `interface` as an address (`IP_MULTICAST_IF`); with
    /// `0.0.0.0`, by the device of the address that the socket is bound to, or by the first.
    pub fn set_multicast_if_v4(&self, interface: &Ipv4Addr) -> io::Result<()> {
        let dev = if interface.is_unspecified() { None } else { Some(self.device_of(interface)?) };
        lock(&self.inner().tx).ends.multicast_dev = dev;
        Ok(())
    }

    /// Makes the socket a member of `group` on the device that has `interface` as an address; with
    /// `0.0.0.0`, on the first. The membership stays while the device's interface is away. On an
    /// AF_XDP device the kernel joins the group, and speaks IGMP, for softnet; the kernel's own
    /// members receive nothing by that interface meanwhile. Joining costs a descriptor for each
    /// group with members, and waits for the kernel, as the end of the last membership does; a
    /// thread in another network namespace than the interface needs CAP_SYS_ADMIN for it.
    ///
    /// # Errors
    /// Those of the kernel, and those of opening a socket. The socket is no member then.
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        let group = group4(group)?;
        groups::join(&self.inner().shared, self.inner().slot.index(), group, self.device_of(interface)?)
    }

    /// Ends a membership; with `0.0.0.0`, any membership of that group, also on a device whose
    /// interface is away.
    pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        let (index, group) = (self.inner().slot.index(), group4(group)?);
        let dev = match interface.is_unspecified() {
            true => self.inner().shared.sockets.binder().joined(index, group),
            false => Some(self.device_of(interface)?),
        };
        groups::leave(&self.inner().shared, index, group, dev.ok_or_else(|| errno(Errno::ADDRNOTAVAIL))?)
    }

    fn device_of(&self, interface: &Ipv4Addr) -> io::Result<u16> {
        let of = (!interface.is_unspecified()).then(|| interface.to_bits());
        with(&self.inner().shared, |thread| {
            let tables = thread.tables.load();
            let (dev, iface) = default_device(tables, of)?;
            let is_its = of.is_none_or(|of| iface.addresses.iter().any(|(own, _)| own.to_bits() == of));
            is_its.then_some(dev)
        })
        .ok_or_else(|| errno(Errno::NODEV))
    }
}

/// An IPv4 group in the form that sockets use.
fn group4(group: &Ipv4Addr) -> io::Result<Addr> {
    if group.is_multicast() { Ok(mapped(group.to_bits())) } else { Err(errno(Errno::INVAL)) }
}
