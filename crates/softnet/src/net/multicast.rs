//! Multicast of IPv6, as `std` and the kernel's sockets have it (RFC 3493 section 5.2): who gets what is sent to a group, and
//! by which device a socket sends there.
//!
//! A membership is one socket's on one device. Who is no member gets nothing, but of what is sent to all nodes on a link
//! (ff02::1), which every socket is a member of that is bound to its port, and to no other address. (An AF_XDP device leaves
//! that to the kernel until somebody has joined the group on it.)

use std::io;
use std::net::Ipv6Addr;

use rustix::io::Errno;
use softnet_core::sock::key::Addr;
use softnet_core::sock::scope::index_of;
use softnet_core::sync::Ordering;

use super::groups;
use super::options::errno;
use super::route::{default_device6, speaks6};
use super::scope::device;
use super::thread::with;
use super::udp::UdpSocket;
use crate::shared::lock;

impl UdpSocket {
    /// Makes it a member of `group` on the device with this index (see [`if_nametoindex`](super::Handle::if_nametoindex)); 0: on the
    /// first that speaks IPv6.
    ///
    /// # Errors
    /// `EINVAL`: it is no group. `ENODEV`: there is no such device, or it has no IPv6 address now. `EADDRINUSE`: it is a
    /// member. `ENOBUFS`: it has as many memberships as it may. `ENOPROTOOPT`: it is a socket of IPv4.
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        let (inner, group) = (self.inner(), self.group6(group)?);
        let dev = with(&inner.shared, |thread| {
            let tables = thread.tables.load();
            match interface {
                0 => default_device6(tables, None).map(|(dev, _)| dev),
                index => device(&inner.shared, index).filter(|dev| speaks6(tables, *dev)),
            }
        });
        let dev = dev.ok_or_else(|| errno(Errno::NODEV))?;
        groups::join(&inner.shared, inner.slot.index(), group, dev)
    }

    /// Ends a membership; with an interface of 0, whichever it has of that group.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`: it is no member. Else as [`join_multicast_v6`](Self::join_multicast_v6).
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        let (inner, group) = (self.inner(), self.group6(group)?);
        let index = inner.slot.index();
        let dev = match interface {
            0 => inner.shared.sockets.binder().joined(index, group),
            interface => device(&inner.shared, interface),
        };
        groups::leave(&inner.shared, index, group, dev.ok_or_else(|| errno(Errno::ADDRNOTAVAIL))?)
    }

    fn group6(&self, group: &Ipv6Addr) -> io::Result<Addr> {
        self.of_ipv6()?;
        if group.is_multicast() { Ok(group.to_bits()) } else { Err(errno(Errno::INVAL)) }
    }

    /// Whether members here get the IPv6 multicast datagrams that it sends, as they do by default.
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        self.of_ipv6()?;
        self.inner().options.multicast_loop6.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// See [`set_multicast_loop_v6`](Self::set_multicast_loop_v6).
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        self.of_ipv6()?;
        Ok(self.inner().options.multicast_loop6.load(Ordering::Relaxed))
    }

    /// Sets the hop limit of IPv6 multicast datagrams that it sends, 0 to 255; 1 by default. With 0 they are for members here
    /// alone.
    pub fn set_multicast_hops_v6(&self, hops: u32) -> io::Result<()> {
        self.of_ipv6()?;
        if hops > 255 {
            return Err(errno(Errno::INVAL));
        }
        self.inner().options.multicast_hops.store(hops, Ordering::Relaxed);
        Ok(())
    }

    /// See [`set_multicast_hops_v6`](Self::set_multicast_hops_v6).
    pub fn multicast_hops_v6(&self) -> io::Result<u32> {
        self.of_ipv6()?;
        Ok(self.inner().options.multicast_hops.load(Ordering::Relaxed))
    }

    /// IPv6 multicast leaves by the device with this index, unless the `scope_id` that it is sent to says another
    /// (`IPV6_MULTICAST_IF`); 0: by the first.
    ///
    /// # Errors
    /// `ENODEV`: there is no such device. `EINVAL`: the socket is bound to an address on another.
    pub fn set_multicast_if_v6(&self, interface: u32) -> io::Result<()> {
        self.of_ipv6()?;
        let dev = match interface {
            0 => None,
            index => Some(device(&self.inner().shared, index).ok_or_else(|| errno(Errno::NODEV))?),
        };
        let ends = &mut lock(&self.inner().tx).ends;
        if dev.is_some_and(|dev| ends.device().is_some_and(|bound| bound != dev)) {
            return Err(errno(Errno::INVAL));
        }
        ends.multicast_dev6 = dev;
        Ok(())
    }

    /// See [`set_multicast_if_v6`](Self::set_multicast_if_v6).
    pub fn multicast_if_v6(&self) -> io::Result<u32> {
        self.of_ipv6()?;
        Ok(lock(&self.inner().tx).ends.multicast_dev6.map_or(0, |dev| index_of(dev).into()))
    }

    /// An error, if it is a socket of IPv4.
    fn of_ipv6(&self) -> io::Result<()> {
        if self.inner().v4 { Err(errno(Errno::NOPROTOOPT)) } else { Ok(()) }
    }
}
