//! The addresses that the kernel has, which softnet leaves to it.
//!
//! The kernel answers for each of its addresses by whatever interface it is asked: one of a
//! loopback, of a bridge, or of an interface that is made from this one counts like one on the
//! interface itself. A link-local one is of its link alone: that of the interface, or of what that
//! is a port of.

use std::collections::BTreeSet;
use std::net::IpAddr;

use softnet_core::ip::v6::addr::link_local;

use crate::netlink::Netlink;
use crate::sys_error::SysResult;

/// The kernel's addresses at one time, as far as they matter to one interface.
pub(crate) struct Theirs {
    /// The interface, and what it is a port of.
    interfaces: Vec<u32>,
    /// With the index of the interface that has it.
    found: Vec<(u32, IpAddr)>,
}

/// An address that softnet has as well as the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The address.
    pub address: IpAddr,
    /// The interface on which the kernel has it, by name.
    pub holder: String,
}

impl Theirs {
    /// Of the namespace of `netlink`, for the interface with index `ifindex`.
    pub(crate) fn now(netlink: &mut Netlink, ifindex: u32) -> SysResult<Self> {
        let interfaces = netlink.with_masters(ifindex)?;
        let mut found = netlink.all_addresses()?;
        found.retain(|(holder, address)| match address {
            IpAddr::V6(address) if address.is_unicast_link_local() => interfaces.contains(holder),
            address => !address.is_loopback(),
        });
        Ok(Theirs { interfaces, found })
    }

    /// The interface, and what it is a port of, by index.
    pub(crate) fn interfaces(&self) -> &[u32] {
        &self.interfaces
    }

    /// In an order that says nothing of the kernel's, each once: equal lists make equal programs.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let all: BTreeSet<_> = self.found.iter().map(|(_, address)| *address).collect();
        all.into_iter().collect()
    }

    /// The first of `own` that the kernel has, too; but for the link-local one that both derive
    /// from the MAC address.
    pub(crate) fn conflict(&self, mac: [u8; 6], own: &[IpAddr], netlink: &mut Netlink) -> Option<Conflict> {
        let derived = IpAddr::from(link_local(mac));
        let holder = |own: &IpAddr| self.found.iter().find(|(_, theirs)| theirs == own);
        let (index, address) = own.iter().filter(|own| **own != derived).find_map(holder)?;
        let link = netlink.links().ok()?.into_iter().find(|link| link.index == *index);
        let holder = link.map_or_else(|| format!("interface {index}"), |link| link.name);
        Some(Conflict { address: *address, holder })
    }
}
