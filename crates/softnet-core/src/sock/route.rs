//! Routes a packet that a socket sends: by which device, from which address, and with which link header.
//!
//! For the sending thread, which reads one snapshot of the tables, without a lock. Invariant: the route is looked up here and
//! nowhere else for a packet whose neighbour is known.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::key::{ANY, Addr, is_v4, mapped, unmapped};
use super::scope::{device, is_link_local, scoped, unscoped};
use crate::ip::adjacency::Kind;
use crate::ip::iface::Iface;
use crate::ip::tables::Tables;
use crate::ip::v4::header::{is_multicast, is_unicast};
use crate::ip::v6::addr::{group_scope, multicast_mac};
use crate::ip::{ETH_LEN, Family, MacAddr};

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dest {
    /// Its address, with its device in it if it is link-local.
    pub addr: Addr,
    /// Its port.
    pub port: u16,
    /// For an IPv6 group: the device to leave by, if the caller named one.
    pub dev: Option<u16>,
}

/// Source and destination of a socket's datagrams.
pub struct Endpoints {
    /// The address that it is bound to.
    pub local: Addr,
    /// The port that it is bound to.
    pub lport: u16,
    /// If it is bound to a group of one link: the device.
    pub group_dev: Option<u16>,
    /// The peer that it is connected to.
    pub peer: Option<Dest>,
    /// The device for IPv4 multicast, if one was chosen.
    pub multicast_dev: Option<u16>,
    /// The same for IPv6.
    pub multicast_dev6: Option<u16>,
}

impl Endpoints {
    /// Of a socket that is bound to `local`, port `lport`, and to nothing else.
    pub fn new(local: Addr, lport: u16, group_dev: Option<u16>) -> Self {
        Endpoints { local, lport, group_dev, peer: None, multicast_dev: None, multicast_dev6: None }
    }

    /// Our address, if the socket is bound to one that may be a source.
    pub fn source(&self) -> Option<Addr> {
        (self.local != ANY && !is_group(self.local)).then_some(self.local)
    }

    /// The device that the socket is bound to by an address of one link.
    pub fn device(&self) -> Option<u16> {
        self.group_dev.or(device(self.local))
    }

    /// `to`, with its device added if it is link-local and has none.
    ///
    /// # Errors
    /// [`Invalid`](RouteError::Invalid): there is no device to add.
    #[cold]
    pub fn complete(&self, to: Dest) -> Result<Dest, RouteError> {
        if !is_link_local(to.addr) || device(to.addr).is_some() {
            return Ok(to);
        }
        let dev = self.device().ok_or(RouteError::Invalid)?;
        Ok(Dest { addr: scoped(to.addr, dev), ..to })
    }
}

/// Why a datagram can't be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// No route leads there (`ENETUNREACH`).
    #[error("no route to the network")]
    NetUnreachable,
    /// A route says that there is no way (`EHOSTUNREACH`).
    #[error("no route to the host")]
    HostUnreachable,
    /// The device is not there (`ENETDOWN`).
    #[error("the device is down")]
    NetDown,
    /// There is no address of ours to send from (`EADDRNOTAVAIL`).
    #[error("no address to send from")]
    AddrNotAvailable,
    /// To all on a link, which the socket was not allowed (`EACCES`).
    #[error("broadcasts are not allowed for this socket")]
    Access,
    /// The addresses do not go together (`EINVAL`).
    #[error("invalid argument")]
    Invalid,
}

/// Whether `addr` is a multicast group.
#[inline]
pub fn is_group(addr: Addr) -> bool {
    unmapped(addr).map_or(Ipv6Addr::from_bits(addr).is_multicast(), is_multicast)
}

/// Where a datagram goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// To a socket here.
    Local,
    /// Out of this device with this link header.
    Device(u16, [u8; ETH_LEN]),
    /// Out of this device, once the slow path has found the neighbour.
    Resolve(u16),
    /// To all hosts on this device's link: sockets of this stack that listen receive a copy, too.
    Broadcast(u16, [u8; ETH_LEN]),
    /// To the group's members on this device's link: members on this stack receive a copy, too.
    Multicast(u16, [u8; ETH_LEN]),
}

/// The route of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where it goes.
    pub next: NextHop,
    /// Our address.
    pub src: Addr,
    /// Bytes of the largest packet, from its IP header on.
    pub mtu: u16,
}

impl Route {
    /// The device that it leaves by; meaningless if it leads to a socket here.
    pub fn device(&self) -> u16 {
        match self.next {
            NextHop::Local => 0,
            NextHop::Device(dev, _)
            | NextHop::Resolve(dev)
            | NextHop::Broadcast(dev, _)
            | NextHop::Multicast(dev, _) => dev,
        }
    }
}

/// Largest packet in one piece to a socket of this stack: what fits a frame beside the headroom and
/// a link header.
const LOCAL_MTU: u16 = 1700;

const LOCALHOST6: Addr = Ipv6Addr::LOCALHOST.to_bits();

/// Whether `addr` is a loopback address, which leads to this stack whatever the routes say.
pub fn is_loopback(addr: u32) -> bool {
    addr >> 24 == 127
}

/// Whether `addr` is one of our own addresses; for a link-local one, on its device.
pub fn is_own(tables: &Tables, addr: Addr) -> bool {
    let Some(addr) = unmapped(addr) else {
        let v6 = Ipv6Addr::from_bits(addr);
        if let Some(dev) = device(addr) {
            return iface(tables, dev).is_some_and(|iface| iface.owns6(wire(addr)));
        }
        return v6.is_loopback() || tables.v6.next_hop(tables.v6.fib.lookup(addr)).kind == Kind::Local;
    };
    is_loopback(addr) || tables.v4.next_hop(tables.v4.fib.lookup(addr)).kind == Kind::Local
}

/// An IPv6 address in its form on the wire.
fn wire(addr: Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(unscoped(addr))
}

/// Device `dev`, if its interface is there.
fn iface(tables: &Tables, dev: u16) -> Option<&Iface> {
    tables.ifaces.get(usize::from(dev))?.as_ref()
}

/// The devices whose interfaces are there.
fn there(tables: &Tables) -> impl Iterator<Item = (u16, &Iface)> {
    tables.ifaces.iter().zip(0u16..).filter_map(|(iface, dev)| Some((dev, iface.as_ref()?)))
}

fn link<A: Family>(to: MacAddr, iface: &Iface) -> [u8; ETH_LEN] {
    let mut link = [0; ETH_LEN];
    link[..6].copy_from_slice(&to);
    link[6..12].copy_from_slice(&iface.mac);
    link[12..].copy_from_slice(&A::ETHERTYPE.to_be_bytes());
    link
}

/// The MAC address of an IPv4 multicast group (RFC 1112 section 6.4).
fn group_mac(group: u32) -> MacAddr {
    let [_, b, c, d] = group.to_be_bytes();
    [0x01, 0x00, 0x5e, b & 0x7f, c, d]
}

/// The device by which packets to many hosts leave by default: that of `src`, else the first that
/// speaks IPv4, else the first that is there.
pub fn default_device(tables: &Tables, src: Option<u32>) -> Option<(u16, &Iface)> {
    let of_src = |(_, iface): &(u16, &Iface)| {
        src.is_some_and(|src| iface.addresses.iter().any(|(own, _)| own.to_bits() == src))
    };
    let speaks4 = |(_, iface): &(u16, &Iface)| !iface.addresses.is_empty();
    there(tables).find(of_src).or_else(|| there(tables).find(speaks4)).or_else(|| there(tables).next())
}

/// The same for IPv6, among the devices that speak it.
pub fn default_device6(tables: &Tables, src: Option<Addr>) -> Option<(u16, &Iface)> {
    let of_src = |(_, iface): &(u16, &Iface)| src.is_some_and(|src| iface.owns6(Ipv6Addr::from_bits(src)));
    there(tables).find(of_src).or_else(|| there(tables).find(|(_, iface)| !iface.addresses6.is_empty()))
}

/// Whether device `dev` is there and has an IPv6 address.
pub fn speaks6(tables: &Tables, dev: u16) -> bool {
    iface(tables, dev).is_some_and(|iface| !iface.addresses6.is_empty())
}

/// The device on whose network `broadcast` is the last address.
fn device_of_broadcast(tables: &Tables, broadcast: u32) -> Option<(u16, &Iface)> {
    let on = |(_, iface): &(u16, &Iface)| {
        iface.addresses.iter().any(|(_, net)| net.contains(Ipv4Addr::from_bits(broadcast)))
    };
    there(tables).find(on)
}

/// The route from a socket with these `ends` to `to` (which has its device in it if it is
/// link-local), from our address `src` if the caller chose one. `broadcast`: the socket may send to
/// broadcast addresses.
// Inlined: a result that is written piece by piece and then copied as a whole waits for the store
// buffer.
#[inline(always)]
pub fn find_route(
    tables: &Tables,
    to: &Dest,
    ends: &Endpoints,
    src: Option<Addr>,
    broadcast: bool,
) -> Result<Route, RouteError> {
    let dst = to.addr;
    if src.is_some_and(|src| is_v4(src) != is_v4(dst)) {
        return Err(RouteError::NetUnreachable);
    }
    let way = match unmapped(dst) {
        Some(dst) => find4(tables, dst, src.and_then(unmapped), ends.multicast_dev, broadcast),
        None => find6(tables, to, ends, src),
    }?;
    // A loopback address must not be seen on any wire (RFC 1122 section 3.2.1.3(g), RFC 4291
    // section 2.5.3).
    let from_loopback = unmapped(way.src).map_or(way.src == LOCALHOST6, is_loopback);
    if way.next != NextHop::Local && from_loopback { Err(RouteError::Invalid) } else { Ok(way) }
}

/// The same of IPv6.
fn find6(tables: &Tables, to: &Dest, ends: &Endpoints, src: Option<Addr>) -> Result<Route, RouteError> {
    let bound = match (ends.device(), src.and_then(device)) {
        (Some(bound), Some(dev)) if bound != dev => return Err(RouteError::Invalid),
        (bound, dev) => bound.or(dev),
    };
    match to.addr {
        ANY => Err(RouteError::Invalid),
        dst if is_group(dst) => find_group6(tables, to, (src, bound), ends.multicast_dev6),
        dst => find_host6(tables, dst, src, bound),
    }
}

/// The same, to one host. A socket that is `bound` to a device sends by no other: its address means
/// nothing there.
fn find_host6(
    tables: &Tables,
    dst: Addr,
    src: Option<Addr>,
    bound: Option<u16>,
) -> Result<Route, RouteError> {
    let here = Route { next: NextHop::Local, src: src.unwrap_or(dst), mtu: LOCAL_MTU };
    let elsewhere = |dev: u16| bound.is_some_and(|bound| bound != dev);
    if dst == LOCALHOST6 {
        return if bound.is_some() { Err(RouteError::NetUnreachable) } else { Ok(here) };
    }
    let hop = match device(dst) {
        Some(dev) if elsewhere(dev) => return Err(RouteError::Invalid),
        Some(dev) => {
            let iface = iface(tables, dev).ok_or(RouteError::NetDown)?;
            if iface.owns6(wire(dst)) {
                return Ok(here);
            }
            tables.v6.on_link(dev, iface.mtu, wire(dst))
        }
        None => tables.v6.route(Ipv6Addr::from_bits(dst)),
    };
    let next = match hop.kind {
        Kind::Local => return Ok(here),
        Kind::Rewrite => NextHop::Device(hop.dev, hop.rewrite),
        Kind::Connected | Kind::Resolve => NextHop::Resolve(hop.dev),
        Kind::Unreachable | Kind::Prohibit => return Err(RouteError::HostUnreachable),
        Kind::Blackhole => return Err(RouteError::Invalid),
        Kind::NoRoute | Kind::Broadcast | Kind::Multipath => return Err(RouteError::NetUnreachable),
    };
    if elsewhere(hop.dev) {
        return Err(RouteError::NetUnreachable);
    }
    let iface = iface(tables, hop.dev).ok_or(RouteError::NetDown)?;
    let src = src.or_else(|| source6(iface, hop.dev, wire(dst))).ok_or(RouteError::AddrNotAvailable)?;
    Ok(Route { next, src, mtu: hop.mtu })
}

/// Our address on device `dev` from which to reach `peer`.
fn source6(iface: &Iface, dev: u16, peer: Ipv6Addr) -> Option<Addr> {
    iface.source_for6(peer).map(|own| scoped(own.to_bits(), dev))
}

/// The same, to a group: by the device named with the destination, else the one that the socket is
/// bound to, else the one chosen for multicast, else that of the socket's address, else the first.
fn find_group6(
    tables: &Tables,
    to: &Dest,
    (src, bound): (Option<Addr>, Option<u16>),
    chosen: Option<u16>,
) -> Result<Route, RouteError> {
    let group = Ipv6Addr::from_bits(to.addr);
    // Nothing may be sent to a group of scope 0 (RFC 4291 section 2.7).
    if group_scope(group) == 0 || to.dev.is_some_and(|dev| bound.is_some_and(|bound| bound != dev)) {
        return Err(RouteError::Invalid);
    }
    let (dev, iface) = match to.dev.or(bound).or(chosen) {
        Some(dev) => (dev, iface(tables, dev).ok_or(RouteError::NetDown)?),
        None => default_device6(tables, src).ok_or(RouteError::NetUnreachable)?,
    };
    let src = src.or_else(|| source6(iface, dev, group)).ok_or(RouteError::AddrNotAvailable)?;
    let link = link::<Ipv6Addr>(multicast_mac(group), iface);
    Ok(Route { next: NextHop::Multicast(dev, link), src, mtu: iface.mtu })
}

fn find4(
    tables: &Tables,
    dst: u32,
    src: Option<u32>,
    multicast_dev: Option<u16>,
    broadcast: bool,
) -> Result<Route, RouteError> {
    if is_loopback(dst) {
        return Ok(Route { next: NextHop::Local, src: mapped(src.unwrap_or(dst)), mtu: LOCAL_MTU });
    }
    let to_many = |device: Option<(u16, &Iface)>, mac: MacAddr| {
        let (dev, iface) = device.ok_or(RouteError::NetUnreachable)?;
        let own = iface.source_for(Ipv4Addr::from_bits(dst)).map(Ipv4Addr::to_bits);
        let src = src.or(own).ok_or(RouteError::AddrNotAvailable)?;
        Ok((dev, link::<Ipv4Addr>(mac, iface), mapped(src), iface.mtu))
    };
    if is_multicast(dst) {
        let device = match multicast_dev {
            Some(dev) => Some((dev, iface(tables, dev).ok_or(RouteError::NetDown)?)),
            None => default_device(tables, src),
        };
        let (dev, link, src, mtu) = to_many(device, group_mac(dst))?;
        return Ok(Route { next: NextHop::Multicast(dev, link), src, mtu });
    }
    let hop = tables.v4.route(dst.into());
    if dst == u32::MAX || hop.kind == Kind::Broadcast {
        if !broadcast {
            return Err(RouteError::Access);
        }
        let device = match dst {
            u32::MAX => default_device(tables, src),
            _ => device_of_broadcast(tables, dst),
        };
        let (dev, link, src, mtu) = to_many(device, [0xff; 6])?;
        return Ok(Route { next: NextHop::Broadcast(dev, link), src, mtu });
    }
    let next = match hop.kind {
        Kind::Local => {
            return Ok(Route { next: NextHop::Local, src: mapped(src.unwrap_or(dst)), mtu: LOCAL_MTU });
        }
        Kind::Rewrite => NextHop::Device(hop.dev, hop.rewrite),
        Kind::Connected | Kind::Resolve => NextHop::Resolve(hop.dev),
        Kind::Unreachable | Kind::Prohibit => return Err(RouteError::HostUnreachable),
        Kind::Blackhole => return Err(RouteError::Invalid),
        Kind::NoRoute | Kind::Broadcast | Kind::Multipath => return Err(RouteError::NetUnreachable),
    };
    if !is_unicast(dst) {
        return Err(RouteError::NetUnreachable);
    }
    let iface =
        tables.ifaces.get(usize::from(hop.dev)).and_then(Option::as_ref).ok_or(RouteError::NetDown)?;
    let peer = if hop.gateway.is_unspecified() { dst } else { hop.gateway.to_bits() };
    let own = || iface.source_for(Ipv4Addr::from_bits(peer)).map(Ipv4Addr::to_bits);
    Ok(Route { next, src: mapped(src.or_else(own).ok_or(RouteError::AddrNotAvailable)?), mtu: hop.mtu })
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fold::FoldKey;
    use crate::ip::Prefix;
    use crate::ip::adjacency::Adjacency;
    use crate::ip::source::RpFilter;
    use crate::ip::v4::fib::Fib;

    /// On a device with several networks, the source is the address on the destination's network.
    #[test]
    fn sources_are_those_of_the_network() {
        let own = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 168, 1, 1)];
        let net = |own: Ipv4Addr| Prefix::new(Ipv4Addr::from_bits(own.to_bits() & !0xff), 24).unwrap();
        let mut tables = Tables::new(FoldKey::new([1, 2]));
        let routing = Arc::make_mut(&mut tables.v4);
        let hosts =
            |last: u32| own.map(|own| Prefix::host(Ipv4Addr::from_bits(own.to_bits() & !0xff | last)));
        let routes = own.map(|own| (net(own), 1)).into_iter().chain(hosts(255).map(|all| (all, 2)));
        routing.fib = Arc::new(Fib::build(&routes.collect::<Vec<_>>()).unwrap());
        routing.next_hops.extend([Adjacency::connected(0, 1500), Adjacency::special(Kind::Broadcast)]);
        let iface = Iface {
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            addresses: own.map(|own| (own, net(own))).to_vec(),
            addresses6: Vec::new(),
            send_redirects: true,
            rp_filter: RpFilter::Off,
        };
        tables.set_ifaces(&[Some(iface)]);
        let mut ends = Endpoints::new(ANY, 7, None);
        let source = |to: [u8; 4]| {
            let to = Dest { addr: mapped(Ipv4Addr::from(to).to_bits()), port: 9, dev: None };
            find_route(&tables, &to, &ends, None, true).map(|way| unmapped(way.src).map(Ipv4Addr::from_bits))
        };
        for to in [[10, 0, 0, 9], [10, 0, 0, 255], [255; 4], [239, 1, 2, 3]] {
            assert_eq!(source(to), Ok(Some(own[0])), "{to:?}");
        }
        for to in [[192, 168, 1, 9], [192, 168, 1, 255]] {
            assert_eq!(source(to), Ok(Some(own[1])), "{to:?}");
        }
        // The datagram leaves by the chosen device or not at all.
        let group = Dest { addr: mapped(0xef01_0203), port: 9, dev: None };
        for (chosen, found) in [(0, Ok(mapped(own[0].to_bits()))), (1, Err(RouteError::NetDown))] {
            ends.multicast_dev = Some(chosen);
            assert_eq!(find_route(&tables, &group, &ends, None, false).map(|way| way.src), found);
        }
    }
}
