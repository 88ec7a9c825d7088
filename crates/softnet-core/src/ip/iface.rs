//! A device as IP knows it: its link and softnet's addresses there.
//!
//! Part of the forwarding tables' snapshot, see [`Tables::ifaces`](super::tables::Tables::ifaces); plain values that any code
//! may read.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::source::RpFilter;
use super::v6::addr::{is_group_of_link, is_link_local, solicited_node, subnet_router_anycast};
use super::{MacAddr, Prefix, Prefix6};

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Iface {
    /// Its MAC address.
    pub mac: MacAddr,
    /// Largest L3 packet in bytes.
    pub mtu: u16,
    /// softnet's IPv4 addresses on it, each with its connected network.
    pub addresses: Vec<(Ipv4Addr, Prefix)>,
    /// Its IPv6 addresses, link-local ones too; none if it does not speak IPv6.
    pub addresses6: Vec<(Ipv6Addr, Prefix6)>,
    /// Whether senders on its link are told of a better first hop there.
    pub send_redirects: bool,
    /// How sources of packets that come by it are asked for their way back.
    pub rp_filter: RpFilter,
}

/// IPv4.
impl Iface {
    /// Our address to speak to `peer` from: the one on its network, else the first.
    pub fn source_for(&self, peer: Ipv4Addr) -> Option<Ipv4Addr> {
        let on_link = self.addresses.iter().find(|(_, net)| net.contains(peer));
        on_link.or(self.addresses.first()).map(|(addr, _)| *addr)
    }

    /// Whether `addr` is one of ours on this device.
    pub(super) fn owns(&self, addr: Ipv4Addr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == addr)
    }

    /// Whether `addr` is on the link, as far as the addresses say.
    pub(super) fn on_link(&self, addr: Ipv4Addr) -> bool {
        self.addresses.iter().any(|(_, net)| net.contains(addr))
    }
}

/// IPv6.
impl Iface {
    /// Our address to speak to `peer` from (RFC 6724 in short): link-local to what is on the link only, else the one on its
    /// network, else the first that is not link-local, else what there is.
    pub fn source_for6(&self, peer: Ipv6Addr) -> Option<Ipv6Addr> {
        let all = || self.addresses6.iter();
        let of_link = is_link_local(peer) || is_group_of_link(peer);
        let same_scope = |own: &&(Ipv6Addr, _)| is_link_local(own.0) == of_link;
        let on_link = all().filter(same_scope).find(|(_, net)| net.contains(peer));
        on_link.or_else(|| all().find(same_scope)).or(self.addresses6.first()).map(|(own, _)| *own)
    }

    /// Whether `addr` is one of ours on this device.
    pub fn owns6(&self, addr: Ipv6Addr) -> bool {
        self.addresses6.iter().any(|(own, _)| *own == addr)
    }

    /// Whether `addr` is one that every router on a link of ours has, and so softnet too.
    pub fn is_anycast6(&self, addr: Ipv6Addr) -> bool {
        self.addresses6.iter().any(|(_, net)| subnet_router_anycast(*net) == Some(addr))
    }

    /// Whether we answer for `addr` on this device.
    pub(super) fn answers6(&self, addr: Ipv6Addr) -> bool {
        self.owns6(addr) || self.is_anycast6(addr)
    }

    /// Whether `group` is one of those in which others look for the addresses that we answer for.
    pub(super) fn is_looked_for_in(&self, group: Ipv6Addr) -> bool {
        let mut nets = self.addresses6.iter();
        let anycast = |net| subnet_router_anycast(net).is_some_and(|addr| solicited_node(addr) == group);
        nets.any(|(own, net)| solicited_node(*own) == group || anycast(*net))
    }

    /// Our link-local address.
    pub(super) fn link_local(&self) -> Option<Ipv6Addr> {
        self.addresses6.iter().map(|(own, _)| *own).find(|own| is_link_local(*own))
    }

    /// Whether `addr` is on the link, as far as the addresses say.
    pub(super) fn on_link6(&self, addr: Ipv6Addr) -> bool {
        self.addresses6.iter().any(|(_, net)| net.contains(addr))
    }
}
