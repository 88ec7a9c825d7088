//! The multicast groups of a device: those in which others look for softnet's IPv6 addresses (RFC 4861 section 7.2.1), those
//! of all routers, and those that softnet's sockets have joined.
//!
//! The program takes their frames, but only those that get as far: interfaces filter by MAC address, and switches by
//! what listeners report. So sockets of the kernel's join the groups, for as long as softnet is in them: the kernel
//! sets the filter, and speaks IGMP (RFC 3376) and MLD (RFC 3810) for softnet, from addresses of its own (0.0.0.0 and
//! :: if it has none). These sockets are bound to no port, and so receive nothing.
//!
//! Any thread may call it, whichever network namespace it is in. Invariant: while a group is in the map, a socket is a
//! member of it.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::sockopt::{set_ip_add_membership_with_ifindex, set_ipv6_add_membership};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use softnet_core::ip::v6::addr::{ALL_ROUTERS, solicited_node};

use super::attach::Attachment;
use super::claim::group_key;
use crate::netns::NetNs;
use crate::sys_error::{SysError, SysResult};

/// A socket that is a member of `groups`, all of one family.
fn member(ifindex: u32, family: AddressFamily, groups: &[IpAddr]) -> io::Result<OwnedFd> {
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    for group in groups {
        match group {
            IpAddr::V4(group) => {
                let any = Ipv4Addr::UNSPECIFIED;
                set_ip_add_membership_with_ifindex(&socket, group, &any, ifindex)?;
            }
            IpAddr::V6(group) => set_ipv6_add_membership(&socket, group, ifindex)?,
        }
    }
    Ok(socket)
}

/// The groups that softnet is in on one device.
pub(crate) struct Groups {
    ifindex: u32,
    /// Where the interface is: a socket joins in the namespace that it was made in.
    netns: io::Result<NetNs>,
    /// The program that is to take their frames, if there is one.
    attachment: Option<Arc<Attachment>>,
    /// Those that softnet's sockets have joined. A socket for each, since the kernel lets one be in few of them
    /// (`igmp_max_memberships`).
    members: Mutex<HashMap<IpAddr, OwnedFd>>,
    /// Those of softnet's own IPv6 addresses, and the one socket that is in them.
    solicited: Mutex<(Vec<IpAddr>, Option<OwnedFd>)>,
}

impl Groups {
    /// None, of the interface with index `ifindex` of the calling thread's namespace.
    pub(crate) fn new(ifindex: u32, attachment: Option<Arc<Attachment>>) -> Self {
        Groups {
            ifindex,
            netns: NetNs::current(),
            attachment,
            members: Mutex::default(),
            solicited: Mutex::default(),
        }
    }

    /// From now on neighbours look for softnet's IPv6 addresses `addresses` here, and softnet is in
    /// their groups and those of all routers. On an error it stays in those of before.
    pub(crate) fn solicit(&self, addresses: &[Ipv6Addr]) -> SysResult<()> {
        let routers = ALL_ROUTERS.into_iter().filter(|_| !addresses.is_empty());
        let mut groups: Vec<IpAddr> =
            addresses.iter().map(|addr| solicited_node(*addr)).chain(routers).map(IpAddr::V6).collect();
        groups.sort_unstable();
        groups.dedup();
        let mut now = self.solicited.lock().unwrap_or_else(PoisonError::into_inner);
        if now.0 != groups {
            let refused = |error| SysError::new("join the groups of IPv6 addresses", error);
            let socket = match groups.is_empty() {
                true => None,
                false => Some(self.member(AddressFamily::INET6, &groups).map_err(refused)?),
            };
            // Those that it stays in are not left in between.
            *now = (groups, socket);
        }
        Ok(())
    }

    /// A socket that is a member of `groups`, in the interface's namespace.
    fn member(&self, family: AddressFamily, groups: &[IpAddr]) -> io::Result<OwnedFd> {
        let netns = self.netns.as_ref().map_err(|error| io::Error::from(error.kind()))?;
        match netns.is_current()? {
            true => member(self.ifindex, family, groups),
            false => netns.run(|| member(self.ifindex, family, groups)).and_then(|socket| socket),
        }
    }

    fn members(&self) -> MutexGuard<'_, HashMap<IpAddr, OwnedFd>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on datagrams to `group` are softnet's. Without effect if they are already.
    pub(crate) fn join(&self, group: IpAddr) -> SysResult<()> {
        let mut members = self.members();
        if members.contains_key(&group) {
            return Ok(());
        }
        let refused = |error| SysError::new(format!("join multicast group {group}"), error);
        let family = if group.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = self.member(family, &[group]).map_err(refused)?;
        if let Some(attachment) = &self.attachment {
            attachment.groups().insert(&group_key(group)).map_err(|error| refused(error.into()))?;
        }
        members.insert(group, socket);
        Ok(())
    }

    /// They are the kernel's again, which leaves the group if no other socket of its own is in it.
    pub(crate) fn leave(&self, group: IpAddr) {
        if let Some(socket) = self.members().remove(&group) {
            if let Some(attachment) = &self.attachment {
                // It is in: see the invariant.
                let _ = attachment.groups().remove(&group_key(group));
            }
            drop(socket);
        }
    }
}
