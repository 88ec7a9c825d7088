//! From configuration to forwarding tables: connected, local and static routes, and what their next hops mean
//! while devices come and go and neighbours change.
//!
//! Called by the control side only (start, link changes, the slow path); workers see the published result.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use softnet_core::ip::adjacency::{Adjacency, Kind, Tables, host_key};
use softnet_core::ip::slow::Iface;
use softnet_core::ip::{Fib, FibError, Prefix};
use softnet_dev::hugepage::huge_vec;

use crate::config::{Config, RouteTarget};

/// One route as it was put into the FIB, for display.
#[derive(Clone, Debug)]
pub struct Route {
    /// Destinations.
    pub prefix: Prefix,
    /// What becomes of them, unresolved.
    pub hop: Adjacency,
}

/// All routes that `config` means, in the order in which they are laid into the FIB (a later one of the same
/// prefix wins): connected networks, static routes, own addresses.
pub fn routes(config: &Config) -> Vec<Route> {
    let mut routes = Vec::new();
    let mut add = |addr: Ipv4Addr, len: u8, hop| {
        if let Ok(prefix) = Prefix::containing(addr, len) {
            routes.push(Route { prefix, hop });
        }
    };
    let dev_of = |name: &str| config.devices.iter().position(|d| d.name == name).map(|i| i as u16);
    let gateway_dev = |via: Ipv4Addr| {
        let on = |d: &crate::config::DeviceConfig| d.addresses.iter().any(|a| a.has_host(via));
        config.devices.iter().position(on).map(|i| i as u16)
    };
    for (dev, device) in config.devices.iter().enumerate() {
        for address in &device.addresses {
            let net = address.network();
            add(net.addr(), net.len(), Adjacency::connected(dev as u16, 0));
            if net.len() <= 30 {
                add(net.addr(), 32, Adjacency::special(Kind::Broadcast));
                add(net.last(), 32, Adjacency::special(Kind::Broadcast));
            }
        }
    }
    for route in &config.routes {
        let hop = match &route.target {
            RouteTarget::Via(via) => gateway_dev(*via).map(|dev| Adjacency::gateway(dev, 0, *via)),
            RouteTarget::Dev(name) => dev_of(name).map(|dev| Adjacency::connected(dev, 0)),
            RouteTarget::Blackhole => Some(Adjacency::special(Kind::Blackhole)),
            RouteTarget::Unreachable => Some(Adjacency::special(Kind::Unreachable)),
        };
        // The configuration was checked: a gateway or device that is not there can't come this far.
        add(route.to.addr(), route.to.len(), hop.unwrap_or(Adjacency::special(Kind::Unreachable)));
    }
    for device in &config.devices {
        for address in &device.addresses {
            add(address.addr(), 32, Adjacency::special(Kind::Local));
        }
    }
    routes
}

/// Tables for `routes`, with every next hop unresolved and no device there yet.
pub fn compile(routes: &[Route]) -> Result<Tables, FibError> {
    let mut tables = Tables::empty();
    let mut indices = HashMap::new();
    let mut entries = Vec::with_capacity(routes.len());
    for route in routes {
        let key = (route.hop.kind, route.hop.dev, route.hop.gateway);
        let index = *indices.entry(key).or_insert_with(|| {
            tables.next_hops.push(route.hop);
            tables.next_hops.len() as u32 - 1
        });
        entries.push((route.prefix, index));
    }
    tables.fib = Arc::new(Fib::build_in(&entries, huge_vec)?);
    Ok(tables)
}

/// Brings MTUs up to date after a device came or went, and forgets all neighbours of devices that are gone.
pub fn set_ifaces(tables: &mut Tables, ifaces: &[Option<Iface>]) {
    tables.ifaces = ifaces.into();
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

/// Whether [`set_neighbour`] with these arguments would change anything.
pub fn neighbour_changes(tables: &Tables, dev: u16, ip: Ipv4Addr, mac: Option<[u8; 6]>) -> bool {
    let ip = u32::from(ip);
    match (tables.hosts.get(&host_key(dev, ip)), mac) {
        (Some(host), Some(mac)) => host.rewrite[..6] != mac,
        (None, None) => {
            let uses = |hop: &Adjacency| hop.kind == Kind::Rewrite && hop.dev == dev && hop.gateway == ip;
            tables.next_hops.iter().any(uses)
        }
        _ => true,
    }
}

/// Notes that neighbour `ip` on `dev` is usable with this MAC, or (`None`) that it must be asked for.
pub fn set_neighbour(tables: &mut Tables, iface: &Iface, dev: u16, ip: Ipv4Addr, mac: Option<[u8; 6]>) {
    let ip = u32::from(ip);
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
            let hop = Adjacency::gateway(dev, iface.mtu, ip.into()).resolved(iface.mac, mac);
            tables.hosts.insert(host_key(dev, ip), hop);
        }
        None => {
            tables.hosts.remove(&host_key(dev, ip));
        }
    }
}
