//! The multicast groups in which others look for softnet's IPv6 addresses (RFC 4861 section 7.2.1).
//!
//! The program takes their frames, but only those that get as far: interfaces filter by MAC address, and switches by what
//! listeners report. So the kernel is asked to join the groups, which sees to both, for as long as the device is open.

use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_ipv6_add_membership;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use softnet_core::ip::v6::addr::solicited_node;

use crate::sys_error::{SysError, SysResult};

/// Membership in the groups, which ends with it.
pub(super) struct Groups {
    _socket: OwnedFd,
}

impl Groups {
    /// Joins the groups of `addresses` on the interface with index `ifindex`, in the calling thread's network namespace.
    pub(super) fn join(ifindex: u32, addresses: &[Ipv6Addr]) -> SysResult<Self> {
        let join = || -> rustix::io::Result<Self> {
            let socket = socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
            let mut groups: Vec<Ipv6Addr> = addresses.iter().map(|addr| solicited_node(*addr)).collect();
            groups.sort_unstable();
            groups.dedup();
            groups.iter().try_for_each(|group| set_ipv6_add_membership(&socket, group, ifindex))?;
            Ok(Groups { _socket: socket })
        };
        join().map_err(|errno| SysError::new("join the groups of IPv6 addresses", errno.into()))
    }
}
