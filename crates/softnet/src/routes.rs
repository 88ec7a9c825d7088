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
use softnet_core::ip::source::Sources;
use softnet_core::ip::{Family, FibError, IpPrefix, LongestMatch, Prefix};
use softnet_dev::hugepage::huge_vec;

use crate::config::{Config, RouteTarget, is_link_local};

/// One route as it was put into the FIB, for display.
#[derive(Clone, Debug)]
pub struct Route {
    /// Destinations.
    pub prefix: IpPrefix,
    /// What becomes of them, unresolved.
    pub kind: Kind,
    /// The device they leave by, if they do.
    pub dev: u16,
    /// By way of whom, if [`Kind::Resolve`].
    pub gateway: Option<IpAddr>,
}

impl Route {
    fn special(kind: Kind) -> impl Fn(IpPrefix) -> Route {
        move |prefix| Route { prefix, kind, dev: 0, gateway: None }
    }

    fn connected(dev: usize) -> impl Fn(IpPrefix) -> Route {
        move |prefix| Route { prefix, kind: Kind::Connected, dev: dev as u16, gateway: None }
    }

    fn via(dev: usize, gateway: IpAddr) -> impl Fn(IpPrefix) -> Route {
        move |prefix| Route { prefix, kind: Kind::Resolve, dev: dev as u16, gateway: Some(gateway) }
    }

    /// Its next hop.
    fn hop<A: Family>(&self) -> Adjacency<A> {
        let gateway = self.gateway.and_then(A::of).unwrap_or(A::UNSPECIFIED);
        Adjacency { dev: self.dev, gateway, ..Adjacency::special(self.kind) }
    }
}

/// All routes that `config` means, in the order in which they are laid into the FIB (a later one of the same
/// prefix wins): connected networks, static routes, own addresses.
pub fn routes(config: &Config) -> Vec<Route> {
    let mut routes = Vec::new();
    let dev_of = |name: &str| config.devices.iter().position(|d| d.name == name);
    let gateway_dev = |via: IpAddr| {
        let on = |d: &crate::config::DeviceConfig| d.addresses.iter().any(|a| a.has_host(via));
        config.devices.iter().position(on)
    };
    let own = config.devices.iter().enumerate().flat_map(|(dev, device)| {
        let routed = device.addresses.iter().filter(|own| !is_link_local(own.addr()));
        routed.map(move |own| (dev, *own))
    });
    for (dev, address) in own.clone() {
        let net = address.network();
        routes.push(Route::connected(dev)(net));
        if net.addr().is_ipv4() && net.len() <= 30 {
            routes.extend([net.addr(), net.last()].map(Prefix::host).map(Route::special(Kind::Broadcast)));
        }
    }
    for route in &config.routes {
        let unreachable = || Route::special(Kind::Unreachable)(route.to);
        // The configuration was checked: a gateway or device that is not there can't come this far.
        routes.push(match &route.target {
            RouteTarget::Via(via) => {
                gateway_dev(*via).map_or_else(unreachable, |dev| Route::via(dev, *via)(route.to))
            }
            RouteTarget::ViaLinkLocal(via, name) => {
                dev_of(name).map_or_else(unreachable, |dev| Route::via(dev, IpAddr::V6(*via))(route.to))
            }
            RouteTarget::Dev(name) => {
                dev_of(name).map_or_else(unreachable, |dev| Route::connected(dev)(route.to))
            }
            RouteTarget::Blackhole => Route::special(Kind::Blackhole)(route.to),
            RouteTarget::Unreachable => unreachable(),
        });
    }
    let anycast = config.devices.iter().flat_map(|device| device.anycast6());
    routes.extend(anycast.map(|addr| Route::special(Kind::Local)(Prefix::host(IpAddr::V6(addr)))));
    routes.extend(own.map(|(_, address)| Route::special(Kind::Local)(Prefix::host(address.addr()))));
    routes
}

/// Tables for `routes`, with every next hop unresolved and no device there yet. `key`: see [`Tables::new`].
pub fn compile(routes: &[Route], key: FoldKey) -> Result<Tables, FibError> {
    let mut tables = Tables::new(key);
    lay::<Ipv4Addr>(routes, Arc::make_mut(&mut tables.v4))?;
    lay::<Ipv6Addr>(routes, Arc::make_mut(&mut tables.v6))?;
    Ok(tables)
}

/// The part of it for one family.
fn lay<A: Family>(routes: &[Route], tables: &mut Routing<A>) -> Result<(), FibError> {
    let mut indices = HashMap::new();
    let mut entries = Vec::with_capacity(routes.len());
    for route in routes {
        let Some(prefix) = route.prefix.of::<A>() else { continue };
        let index = *indices.entry((route.kind, route.dev, route.gateway)).or_insert_with(|| {
            tables.next_hops.push(route.hop());
            tables.next_hops.len() as u32 - 1
        });
        entries.push((prefix, index));
    }
    tables.fib = Arc::new(A::Fib::build_in(&entries, huge_vec)?);
    let own = routes.iter().filter(|route| route.kind == Kind::Local);
    tables.sources = Arc::new(Sources::new(own.filter_map(|route| A::of(route.prefix.addr())).collect()));
    Ok(())
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

/// The gateways of `routes`, by device and address.
pub fn gateways(routes: &[Route]) -> impl Iterator<Item = (u16, IpAddr)> {
    routes.iter().filter_map(|route| Some((route.dev, route.gateway?)))
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
