//! IPv6 multicast, as `std` and the kernel's sockets have it (RFC 3493 section 5.2): which sockets
//! receive datagrams to a group, and by which device a socket sends there.
//!
//! A membership belongs to one socket on one device. A socket that is no member receives nothing
//! (as with `IPV6_MULTICAST_ALL` off), except datagrams to all nodes on a link (ff02::1): these
//! reach every socket that is bound to the port and to no other address, as in the kernel. An
//! AF_XDP device leaves datagrams to all nodes to the kernel, though, until a socket joins that
//! group.
//!
//! The kernel lets a `scope_id` choose the device for groups of one link only; here it does so for
//! any group.

use std::io;
use std::net::Ipv6Addr;

use rustix::io::Errno;
use softnet_core::sock::key::Addr;
use softnet_core::sock::route::{default_device6, speaks6};
use softnet_core::sock::scope::index_of;
use softnet_core::sync::Ordering;

use super::groups;
use super::options::errno;
use super::scope::device;
use super::udp::UdpSocket;
use crate::stack::with;
use crate::util::lock;

impl UdpSocket {
    /// Makes the socket a member of `group` on the device with this index (see
    /// [`if_nametoindex`](super::Handle::if_nametoindex)); 0: on the first device that speaks IPv6.
    /// For the device the same holds as in [`join_multicast_v4`](Self::join_multicast_v4), with MLD
    /// in the place of IGMP.
    ///
    /// # Errors
    /// As there, and `EINVAL`: the address is no group. `ENODEV`: there is no such device, or the
    /// device has no IPv6 address now. `EADDRINUSE`: the socket is a member already. `ENOBUFS`: it
    /// has as many memberships as are allowed. `ENOPROTOOPT`: it is an IPv4 socket.
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

    /// Ends a membership; with an interface of 0, any membership of that group.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`: the socket is no member. Otherwise as
    /// [`join_multicast_v6`](Self::join_multicast_v6).
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

    /// Whether members on this stack receive the IPv6 multicast datagrams that the socket sends, as
    /// they do by default.
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

    /// Sets the hop limit of IPv6 multicast datagrams that the socket sends, 0 to 255; 1 by
    /// default. With 0 they reach members on this stack alone.
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

    /// IPv6 multicast leaves by the device with this index, unless the destination's `scope_id`
    /// names another (`IPV6_MULTICAST_IF`); 0: by the device that has the address which the socket
    /// is bound to, or by the first.
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

    /// An error if the socket is an IPv4 one.
    fn of_ipv6(&self) -> io::Result<()> {
        if self.inner().v4 { Err(errno(Errno::NOPROTOOPT)) } else { Ok(()) }
    }
}
