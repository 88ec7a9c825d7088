//! From configuration to forwarding tables: connected, local and static routes, and what their next hops mean
//! while devices come and go and neighbours change.
//!
//! Called by the control side only (start, link changes, the slow path); workers see the published result. Link-local
//! networks have no routes: they are on every link, and the slow path knows them by the device.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use softnet_core::fold::FoldKey;
use softnet_core::ip::adjacency::{Adjacency, Kind, Routing, Tables};
use softnet_core::ip::slow::Iface;
use softnet_core::ip::{Family, FibError, IpPrefix, LongestMatch, Prefix};
use softnet_dev::hugepage::huge_vec;

use crate::config::{Config, RouteTarget, is_link_local};

/// One route as it was put into the FIB, for display.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    /// Destinations.
    pub prefix: IpPrefix,
    /// What becomes of them.
    pub hop: Hop,
}

/// What becomes of destinations, unresolved: few of these serve many routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// What is done with a packet.
    pub kind: Kind,
    /// The device it leaves by, if it does.
    pub dev: u16,
    /// By way of whom, if [`Kind::Resolve`].
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
pub struct Rib {
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
        tables.fib = Arc::new(A::Fib::build_in(&self.entries, huge_vec)?);
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
    pub fn len(&self) -> usize {
        self.v4.entries.len() + self.v6.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The gateways, by device and address.
    pub fn gateways(&self) -> impl Iterator<Item = (u16, IpAddr)> {
        let hops = self.v4.hops.iter().chain(&self.v6.hops);
        hops.filter_map(|hop| Some((hop.dev, hop.gateway?)))
    }

    /// All of them, first those of IPv4.
    pub fn iter(&self) -> impl Iterator<Item = Route> {
        self.v4.iter().chain(self.v6.iter())
    }
}

/// All routes that `config` means: connected networks, static routes, own addresses.
pub fn routes(config: &Config) -> Rib {
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
pub fn compile(rib: &Rib, key: FoldKey) -> Result<Tables, FibError> {
    let mut tables = Tables::new(key);
    rib.v4.lay(Arc::make_mut(&mut tables.v4))?;
    rib.v6.lay(Arc::make_mut(&mut tables.v6))?;
    Ok(tables)
}

/// Brings MTUs up to date after a device came or went, and forgets all neighbours of devices that are gone.
pub fn set_ifaces(tables: &mut Tables, ifaces: &[Option<Iface>]) {
    tables.ifaces = ifaces.into();
    set_ifaces_of(Arc::make_mut(&mut tables.v4), ifaces);
    set_ifaces_of(Arc::make_mut(&mut tables.v6), ifaces);
}

fn set_ifaces_of<A: Family>(tables: &mut Routing<A>, ifaces: &[Option<Iface>]) {
    let iface = |dev: u16| ifaces.get(usize::from(dev)).and_then(Option::as_ref);
    for hop in &mut tables.next_hops {
        if !matches!(hop.kind, Kind::Rewrite | Kind::Connected | Kind::Resolve) {
            continue;
        }
        match iface(hop.dev) {
            Some(iface) => hop.mtu = iface.mtu,
            None if hop.kind == Kind::Rewrite => hop.kind = Kind::Resolve,
            None => {}
        }
    }
    tables.hosts.retain(|_, hop| iface(hop.dev).is_some());
}

/// What the slow path published of a neighbour: its device, address, and the MAC address that may be used, if one may.
pub type Neighbour = (u16, IpAddr, Option<[u8; 6]>);

/// What `changes`, in the order in which they happened, come to: of each neighbour the last one, if that is not what
/// `tables` have already.
pub fn neighbour_news(tables: &Tables, changes: impl IntoIterator<Item = Neighbour>) -> Vec<Neighbour> {
    let last: HashMap<_, _> = changes.into_iter().map(|(dev, ip, mac)| ((dev, ip), mac)).collect();
    let news = last.into_iter().map(|((dev, ip), mac)| (dev, ip, mac));
    news.filter(|&(dev, ip, mac)| neighbour_changes(tables, dev, ip, mac)).collect()
}

/// Whether [`set_neighbour`] with these arguments would change anything.
fn neighbour_changes(tables: &Tables, dev: u16, ip: IpAddr, mac: Option<[u8; 6]>) -> bool {
    match ip {
        IpAddr::V4(ip) => neighbour_changes_of(&tables.v4, dev, ip, mac),
        IpAddr::V6(ip) => neighbour_changes_of(&tables.v6, dev, ip, mac),
    }
}

fn neighbour_changes_of<A: Family>(tables: &Routing<A>, dev: u16, ip: A, mac: Option<[u8; 6]>) -> bool {
    match (tables.hosts.get(&A::host_key(dev, ip)), mac) {
        (Some(host), Some(mac)) => host.rewrite[..6] != mac,
        (None, None) => {
            let uses = |hop: &Adjacency<A>| hop.kind == Kind::Rewrite && hop.dev == dev && hop.gateway == ip;
            tables.next_hops.iter().any(uses)
        }
        _ => true,
    }
}

/// Notes that neighbour `ip` on `dev` is usable with this MAC, or (`None`) that it must be asked for.
pub fn set_neighbour(tables: &mut Tables, iface: &Iface, dev: u16, ip: IpAddr, mac: Option<[u8; 6]>) {
    match ip {
        IpAddr::V4(ip) => set_neighbour_of(Arc::make_mut(&mut tables.v4), iface, dev, ip, mac),
        IpAddr::V6(ip) => set_neighbour_of(Arc::make_mut(&mut tables.v6), iface, dev, ip, mac),
    }
}

fn set_neighbour_of<A: Family>(
    tables: &mut Routing<A>,
    iface: &Iface,
    dev: u16,
    ip: A,
    mac: Option<[u8; 6]>,
) {
    for hop in &mut tables.next_hops {
        if hop.dev == dev && hop.gateway == ip && matches!(hop.kind, Kind::Rewrite | Kind::Resolve) {
            match mac {
                Some(mac) => *hop = hop.resolved(iface.mac, mac),
                None => hop.kind = Kind::Resolve,
            }
        }
    }
    match mac {
        Some(mac) => {
            let hop = Adjacency::gateway(dev, iface.mtu, ip).resolved(iface.mac, mac);
            tables.hosts.insert(A::host_key(dev, ip), hop);
        }
        None => {
            tables.hosts.remove(&A::host_key(dev, ip));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];

    fn tables() -> (Tables, Iface) {
        let config = Config::parse(
            "[[device]]\nname = \"a\"\naddresses = [\"10.0.0.1/24\", \"fd00::1/64\"]",
            "test.toml",
            &[0],
        );
        let config = config.unwrap();
        let mut tables = compile(&routes(&config), FoldKey::new([1, 2])).unwrap();
        let device = &config.devices[0];
        let (addresses, addresses6) = (device.addresses4(), device.addresses6(A));
        let iface = Iface {
            mac: A,
            mtu: 1500,
            addresses,
            addresses6,
            send_redirects: true,
            rp_filter: softnet_core::ip::source::RpFilter::Off,
        };
        set_ifaces(&mut tables, &[Some(iface.clone())]);
        (tables, iface)
    }

    /// A neighbour that is withdrawn and told again in one batch is what it was.
    #[test]
    fn the_last_word_on_a_neighbour_counts() {
        let (mut tables, iface) = tables();
        let [one, two]: [IpAddr; 2] = ["10.0.0.2", "fd00::2"].map(|ip| ip.parse().unwrap());
        let news = neighbour_news(&tables, [(0, one, Some(A)), (0, one, None), (0, two, None)]);
        assert_eq!(news, [], "nothing is what there was");
        let news = neighbour_news(&tables, [(0, one, None), (0, one, Some(A))]);
        assert_eq!(news, [(0, one, Some(A))]);
        set_neighbour(&mut tables, &iface, 0, one, Some(A));
        assert_eq!(neighbour_news(&tables, [(0, one, None), (0, one, Some(A))]), []);
        assert_eq!(neighbour_news(&tables, [(0, one, Some(A)), (0, one, Some(B))]), [(0, one, Some(B))]);
        assert_eq!(neighbour_news(&tables, [(0, one, Some(A)), (0, one, None)]), [(0, one, None)]);
    }

    /// What changed of one family costs no copy of the other's tables.
    #[test]
    fn a_change_copies_the_tables_of_its_family_only() {
        let (before, iface) = tables();
        let mut after = before.clone();
        set_neighbour(&mut after, &iface, 0, "10.0.0.2".parse().unwrap(), Some(A));
        assert!(Arc::ptr_eq(&before.v6, &after.v6) && !Arc::ptr_eq(&before.v4, &after.v4));
        assert!(Arc::ptr_eq(&before.v4.fib, &after.v4.fib));
        assert_eq!((before.v4.hosts.len(), after.v4.hosts.len()), (0, 1));
    }
}
