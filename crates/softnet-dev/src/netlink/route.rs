//! Addresses, routes and neighbours.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::socket::{Netlink, attributes_of, number};
use crate::sys_error::SysResult;

const IFADDR_HEADER_LEN: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
const ROUTE_HEADER_LEN: usize = 12;
const RTA_OIF: u16 = 4;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTN_UNICAST: u8 = 1;
const RT_TABLE_LOCAL: u32 = 255;
const NEXTHOP_HEADER_LEN: usize = 8;

/// An address of an interface, as it was when asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface's index.
    pub index: u32,
    /// The interface's own address.
    pub addr: IpAddr,
    /// Bits of its network. All of them on a link to one peer, whose network it is.
    pub len: u8,
}

impl InterfaceAddress {
    /// Reads an `RTM_NEWADDR`; `None` of one that is not good yet, or will never be.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let (header, attributes) = payload.split_at_checked(IFADDR_HEADER_LEN)?;
        let addr = local_address(attributes)?;
        let (mut flags, mut peer) = (u32::from(header[2]), None);
        for (kind, value) in attributes_of(attributes) {
            match kind {
                IFA_FLAGS => flags = number(&value, 0)?,
                IFA_ADDRESS => peer = Some(value),
                _ => {}
            }
        }
        let own = match addr {
            IpAddr::V4(addr) => addr.octets().to_vec(),
            IpAddr::V6(addr) => addr.octets().to_vec(),
        };
        let len = if peer.is_none_or(|peer| peer == own) { header[1] } else { own.len() as u8 * 8 };
        let good = flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED) == 0;
        good.then_some(InterfaceAddress { index: number(header, 4)?, addr, len })
    }
}

impl Netlink {
    /// Gives `ip` with a prefix of `len` bits to the interface called `name`. One of IPv6 is good at once: no host is
    /// asked whether he has it.
    ///
    /// # Errors
    /// EEXIST if it has it already; ENODEV if there is no such interface.
    pub fn add_address(&mut self, name: &str, ip: impl Into<IpAddr>, len: u8) -> SysResult<()> {
        let ip = ip.into();
        let mut message = AddressMessage::default();
        message.header.family = family(ip);
        if ip.is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        message.header.prefix_len = len;
        message.header.index = self.existing_link(name)?.index;
        message.attributes.push(AddressAttribute::Address(ip));
        message.attributes.push(AddressAttribute::Local(ip));
        let request = RouteNetlinkMessage::NewAddress(message);
        self.change(request, NLM_F_CREATE | NLM_F_EXCL, &format!("add address {ip}/{len} to {name}"))
    }

    /// The addresses of the interface with index `ifindex`, of both families; none if there is no such interface.
    pub fn addresses(&mut self, ifindex: u32) -> SysResult<Vec<IpAddr>> {
        let all = self.all_addresses()?;
        Ok(all.into_iter().filter(|(index, _)| *index == ifindex).map(|(_, address)| address).collect())
    }

    /// All addresses of the namespace, of both families, each with the index of its interface.
    pub fn all_addresses(&mut self) -> SysResult<Vec<(u32, IpAddr)>> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Unspec;
        let answers = self.dump(RouteNetlinkMessage::GetAddress(message), "list addresses")?;
        let address =
            |payload: &[u8]| Some((number(payload, 4)?, local_address(payload.get(IFADDR_HEADER_LEN..)?)?));
        Ok(answers.iter().filter_map(|(_, payload)| address(payload)).collect())
    }

    /// The same with their networks, but for those that may turn out to be another host's (tentative, or found to be so).
    pub fn interface_addresses(&mut self) -> SysResult<Vec<InterfaceAddress>> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Unspec;
        let answers = self.dump(RouteNetlinkMessage::GetAddress(message), "list addresses")?;
        Ok(answers.iter().filter_map(|(_, payload)| InterfaceAddress::parse(payload)).collect())
    }

    /// Adds a route for `dst` with a prefix of `len` bits by way of the gateway `via`, to the main table.
    ///
    /// # Errors
    /// EEXIST if the route is there; ENETUNREACH if `via` is not on a connected network.
    pub fn add_route<A: Into<IpAddr>>(&mut self, dst: A, len: u8, via: A) -> SysResult<()> {
        let (dst, via) = (dst.into(), via.into());
        let mut message = route(dst, len, RouteType::Unicast);
        message.attributes.push(RouteAttribute::Gateway(via.into()));
        let request = RouteNetlinkMessage::NewRoute(message);
        self.change(request, NLM_F_CREATE | NLM_F_EXCL, &format!("add route {dst}/{len} via {via}"))
    }

    /// The same for a gateway on the link of the interface called `name`, as one must be with a link-local address.
    ///
    /// # Errors
    /// EEXIST if the route is there; ENODEV if there is no such interface.
    pub fn add_route_on<A: Into<IpAddr>>(&mut self, name: &str, dst: A, len: u8, via: A) -> SysResult<()> {
        let (dst, via) = (dst.into(), via.into());
        let mut message = route(dst, len, RouteType::Unicast);
        message.attributes.push(RouteAttribute::Gateway(via.into()));
        message.attributes.push(RouteAttribute::Oif(self.existing_link(name)?.index));
        let request = RouteNetlinkMessage::NewRoute(message);
        let what = format!("add route {dst}/{len} via {via} on {name}");
        self.change(request, NLM_F_CREATE | NLM_F_EXCL, &what)
    }

    /// Adds a route that discards what is for `dst` with a prefix of `len` bits: with an ICMP error, or in silence.
    ///
    /// # Errors
    /// EEXIST if the route is there.
    pub fn add_reject_route(&mut self, dst: impl Into<IpAddr>, len: u8, with_error: bool) -> SysResult<()> {
        let dst = dst.into();
        let kind = if with_error { RouteType::Unreachable } else { RouteType::BlackHole };
        let request = RouteNetlinkMessage::NewRoute(route(dst, len, kind));
        self.change(request, NLM_F_CREATE | NLM_F_EXCL, &format!("add {kind:?} route {dst}/{len}"))
    }

    /// Indices of the interfaces that IPv4 and IPv6 default routes, of whatever table, go out by: those whose loss cuts the
    /// machine off.
    pub fn default_route_links(&mut self) -> SysResult<Vec<u32>> {
        let mut found = BTreeSet::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            let answers = self.dump(RouteNetlinkMessage::GetRoute(message), "list routes")?;
            found.extend(answers.iter().flat_map(|(_, payload)| default_route_outputs(payload)));
        }
        Ok(found.into_iter().collect())
    }

    /// Adds (or replaces) a permanent neighbour: `ip` has `mac`, on the interface called `name`.
    pub fn add_neighbour(&mut self, name: &str, ip: impl Into<IpAddr>, mac: [u8; 6]) -> SysResult<()> {
        let ip = ip.into();
        let mut message = NeighbourMessage::default();
        message.header.family = family(ip);
        message.header.ifindex = self.existing_link(name)?.index;
        message.header.state = NeighbourState::Permanent;
        message.attributes.push(NeighbourAttribute::Destination(match ip {
            IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
            IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
        }));
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        let request = RouteNetlinkMessage::NewNeighbour(message);
        self.change(request, NLM_F_CREATE | NLM_F_REPLACE, &format!("add neighbour {ip} on {name}"))
    }
}

/// The interface's own address: on a point-to-point link `IFA_ADDRESS` is the peer's.
pub(super) fn local_address(attributes: &[u8]) -> Option<IpAddr> {
    let find = |wanted| attributes_of(attributes).find(|(kind, _)| *kind == wanted);
    let (_, value) = find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS))?;
    let v4 = || <[u8; 4]>::try_from(&value[..]).map(IpAddr::from).ok();
    v4().or_else(|| <[u8; 16]>::try_from(&value[..]).map(IpAddr::from).ok())
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// A route of the main table, without where it leads.
fn route(dst: IpAddr, len: u8, kind: RouteType) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(dst);
    message.header.destination_prefix_length = len;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = RouteScope::Universe;
    message.header.kind = kind;
    message.attributes.push(RouteAttribute::Destination(dst.into()));
    message
}

/// Where a route goes out, if it is a default route.
pub(super) fn default_route_outputs(payload: &[u8]) -> Vec<u32> {
    let Some((header, attributes)) = payload.split_at_checked(ROUTE_HEADER_LEN) else { return Vec::new() };
    let mut table = u32::from(header[4]);
    let mut outputs = Vec::new();
    for (kind, value) in attributes_of(attributes) {
        match kind {
            RTA_TABLE => table = number(&value, 0).unwrap_or(table),
            RTA_OIF => outputs.extend(number(&value, 0)),
            RTA_MULTIPATH => outputs.extend(nexthop_outputs(&value)),
            _ => {}
        }
    }
    // 0/1 and 128/1 are a default route in two halves; other tables than main serve policy routing.
    let is_default = header[1] <= 1 && header[7] == RTN_UNICAST && table != RT_TABLE_LOCAL;
    if is_default { outputs } else { Vec::new() }
}

/// Interface of each next hop in a list of `struct rtnexthop`.
fn nexthop_outputs(mut hops: &[u8]) -> Vec<u32> {
    let mut outputs = Vec::new();
    while let Some(hop) = hops.get(..NEXTHOP_HEADER_LEN) {
        outputs.extend(number(hop, 4));
        let length = usize::from(u16::from_ne_bytes([hop[0], hop[1]])).max(NEXTHOP_HEADER_LEN);
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    outputs
}
