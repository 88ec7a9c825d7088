//! From configuration to forwarding tables: connected, local and static routes. How the tables follow devices and
//! neighbours later is the core's, see [`Tables`].
//!
//! Called by the control side only, at the start; workers see the published result. Link-local networks have no routes:
//! they are on every link, and the slow path knows them by the device.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use softnet_core::fold::FoldKey;
use softnet_core::ip::adjacency::{Adjacency, Kind};
use softnet_core::ip::tables::{Routing, Tables};
use softnet_core::ip::{Family, FibError, IpPrefix, LongestMatch, Prefix};
use softnet_dev::hugepage::HugePages;

use crate::config::{Config, RouteTarget, is_link_local};

/// One route as it was put into the FIB, for display.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Route {
    /// Destinations.
    pub prefix: IpPrefix,
    /// What becomes of them.
    pub hop: Hop,
}

/// What becomes of destinations, unresolved: few of these serve many routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hop {
    /// What is done with a packet.
    pub kind: Kind,
    /// The device it leaves by, if it does.
    pub dev: u16,
    /// The router that they are sent to, if [`Kind::Resolve`].
    pub gateway: Option<IpAddr>,
}

impl Hop {
    fn special(kind: Kind) -> Hop {
        Hop { kind, dev: 0, gateway: None }
    }

    fn connected(dev: usize) -> Hop {
        Hop { kind: Kind::Connected, dev: dev as u16, gateway: None }
    }

    fn via(dev: usize, gateway: IpAddr) -> Hop {
        Hop { kind: Kind::Resolve, dev: dev as u16, gateway: Some(gateway) }
    }

    fn adjacency<A: Family>(&self) -> Adjacency<A> {
        let gateway = self.gateway.and_then(A::of).unwrap_or(A::UNSPECIFIED);
        Adjacency { dev: self.dev, gateway, ..Adjacency::special(self.kind) }
    }
}

/// The routes: what a FIB is built from, and what is shown. A route of IPv4 takes 12 bytes and one of IPv6 24, so that a
/// million of them take less than their FIB.
#[derive(Debug)]
pub(crate) struct Rib {
    v4: RibOf<Ipv4Addr>,
    v6: RibOf<Ipv6Addr>,
}

/// Those of one family, in the order in which they are laid into the FIB: a later one of the same prefix wins.
#[derive(Debug)]
struct RibOf<A> {
    /// Prefixes, and which of `hops` they have.
    entries: Vec<(Prefix<A>, u32)>,
    /// The FIB's next hops; 0 is that of no route.
    hops: Vec<Hop>,
    numbers: HashMap<Hop, u32>,
}

const _: () =
    assert!(size_of::<(Prefix<Ipv4Addr>, u32)>() == 12 && size_of::<(Prefix<Ipv6Addr>, u32)>() == 24);

impl<A: Family> RibOf<A> {
    fn with_room(routes: usize) -> Self {
        let no_route = Hop::special(Kind::NoRoute);
        RibOf { entries: Vec::with_capacity(routes), hops: vec![no_route], numbers: HashMap::new() }
    }

    fn push(&mut self, prefix: Prefix<A>, hop: Hop) {
        let hops = &mut self.hops;
        let number = *self.numbers.entry(hop).or_insert_with(|| {
            hops.push(hop);
            hops.len() as u32 - 1
        });
        self.entries.push((prefix, number));
    }

    fn iter(&self) -> impl Iterator<Item = Route> {
        self.entries.iter().map(|(prefix, hop)| Route { prefix: prefix.any(), hop: self.hops[*hop as usize] })
    }

    fn lay(&self, tables: &mut Routing<A>) -> Result<(), FibError> {
        tables.next_hops = self.hops.iter().map(Hop::adjacency).collect();
        tables.fib = Arc::new(A::Fib::build_in(&self.entries, &HugePages)?);
        Ok(())
    }
}

impl Rib {
    fn push(&mut self, prefix: IpPrefix, hop: Hop) {
        match prefix.of() {
            Some(prefix) => self.v4.push(prefix, hop),
            None => prefix.of().into_iter().for_each(|prefix| self.v6.push(prefix, hop)),
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.v4.entries.len() + self.v6.entries.len()
    }

    /// The gateways, by device and address.
    pub(crate) fn gateways(&self) -> impl Iterator<Item = (u16, IpAddr)> {
        let hops = self.v4.hops.iter().chain(&self.v6.hops);
        hops.filter_map(|hop| Some((hop.dev, hop.gateway?)))
    }

    /// All of them, first those of IPv4.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Route> {
        self.v4.iter().chain(self.v6.iter())
    }
}

/// All routes that `config` means: connected networks, static routes, own addresses.
pub(crate) fn routes(config: &Config) -> Rib {
    let dev_of = |name: &str| config.devices.iter().position(|d| d.name == name);
    let gateway_dev = |via: IpAddr| {
        let on = |d: &crate::config::DeviceConfig| d.addresses.iter().any(|a| a.has_host(via));
        config.devices.iter().position(on)
    };
    let own = config.devices.iter().enumerate().flat_map(|(dev, device)| {
        let routed = device.addresses.iter().filter(|own| !is_link_local(own.addr()));
        routed.map(move |own| (dev, *own))
    });
    // Each own address has up to four routes.
    let (more, all) = (4 * own.clone().count(), config.routes.len());
    let of_v4 = config.routes.iter().filter(|route| route.to.addr().is_ipv4()).count();
    let mut rib = Rib { v4: RibOf::with_room(of_v4 + more), v6: RibOf::with_room(all - of_v4 + more) };
    for (dev, address) in own.clone() {
        let net = address.network();
        rib.push(net, Hop::connected(dev));
        if net.addr().is_ipv4() && net.len() <= 30 {
            let hosts = [net.addr(), net.last()].map(Prefix::host);
            hosts.into_iter().for_each(|host| rib.push(host, Hop::special(Kind::Broadcast)));
        }
    }
    for route in &config.routes {
        let unreachable = Hop::special(Kind::Unreachable);
        // The configuration was checked: a gateway or device that is not there can't come this far.
        let hop = match &route.target {
            RouteTarget::Via(via) => gateway_dev(*via).map_or(unreachable, |dev| Hop::via(dev, *via)),
            RouteTarget::ViaLinkLocal(via, name) => {
                dev_of(name).map_or(unreachable, |dev| Hop::via(dev, IpAddr::V6(*via)))
            }
            RouteTarget::Dev(name) => dev_of(name).map_or(unreachable, Hop::connected),
            RouteTarget::Blackhole => Hop::special(Kind::Blackhole),
            RouteTarget::Unreachable => unreachable,
        };
        rib.push(route.to, hop);
    }
    for addr in config.devices.iter().flat_map(|device| device.anycast6()) {
        rib.push(Prefix::host(IpAddr::V6(addr)), Hop::special(Kind::Local));
    }
    for (_, address) in own {
        rib.push(Prefix::host(address.addr()), Hop::special(Kind::Local));
    }
    rib
}

/// Tables for `rib`, with every next hop unresolved and no device there yet. `key`: see [`Tables::new`].
pub(crate) fn compile(rib: &Rib, key: FoldKey) -> Result<Tables, FibError> {
    let mut tables = Tables::new(key);
    rib.v4.lay(Arc::make_mut(&mut tables.v4))?;
    rib.v6.lay(Arc::make_mut(&mut tables.v6))?;
    Ok(tables)
}
