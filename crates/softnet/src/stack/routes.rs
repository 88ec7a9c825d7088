//! The stack's routes, behind their lock, and how changes of them get to the forwarding tables:
//! connected, local and static routes at the start, others while it runs. How the tables follow
//! neighbours is the core's, see [`Tables`].
//!
//! Called by the control side only; workers see what is published. A batch of changes is published
//! at once. Link-local networks have no routes: they are on every link, and the slow path knows
//! them by the device.
//!
//! Lock order: the routes' lock, then the slow path's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use softnet_core::fold::FoldKey;
use softnet_core::ip::adjacency::Kind;
use softnet_core::ip::iface::Iface;
use softnet_core::ip::tables::{Routing, Tables};
use softnet_core::ip::{Family, FibError, IpPrefix, Prefix};

use super::StackInner;
use super::rib::{Gateways, Hop, Path, Place, Rib, RibOf, Route, Source};
use crate::config::{Config, RouteTarget, is_link_local};
use crate::util::lock;

/// See the [module](self).
pub(crate) struct Routes(Mutex<Rib>);

impl Routes {
    /// Those of a stack that starts, which are in its tables.
    pub(crate) fn new(rib: Rib) -> Self {
        Routes(Mutex::new(rib))
    }

    /// To look at them.
    pub(crate) fn read(&self) -> MutexGuard<'_, Rib> {
        lock(&self.0)
    }
}

impl StackInner {
    /// Makes changes of the routes, and publishes them.
    pub(crate) fn change_routes(&self, change: impl FnOnce(&mut Rib)) -> Result<(), FibError> {
        let mut rib = self.routes.read();
        change(&mut rib);
        self.publish_routes(&mut rib)
    }

    /// Publishes what was changed.
    pub(crate) fn publish_routes(&self, rib: &mut Rib) -> Result<(), FibError> {
        if !rib.v4.is_changed() && !rib.v6.is_changed() {
            return Ok(());
        }
        // If there is no memory for one, the other's changes are made nevertheless.
        let (fib4, fib6) = (rib.v4.next_fib(), rib.v6.next_fib());
        let mut result = Ok(());
        let mut control = self.control();
        let mut gateways = Gateways::default();
        control.replace_tables(self, |tables| {
            let Tables { v4, v6, ifaces, .. } = tables;
            let of4 = publish(&mut rib.v4, fib4, v4, ifaces, &mut gateways);
            let of6 = publish(&mut rib.v6, fib6, v6, ifaces, &mut gateways);
            result = of4.and(of6);
        });
        control.slow.add_gateways(gateways.come);
        control.slow.remove_gateways(&gateways.gone);
        result
    }
}

/// Publishes what was changed of a family, with its next FIB; adds which gateways came and went.
fn publish<A: Family>(
    rib: &mut RibOf<A>,
    fib: Result<Option<Arc<A::Fib>>, FibError>,
    routing: &mut Arc<Routing<A>>,
    ifaces: &[Option<Iface>],
    gateways: &mut Gateways,
) -> Result<(), FibError> {
    let fib = fib?;
    if fib.is_some() || rib.is_changed() {
        let routing = Arc::make_mut(routing);
        if let Some(fib) = fib {
            routing.fib = fib;
        }
        gateways.extend(rib.publish(routing, ifaces));
    }
    Ok(())
}

/// All routes that `config` means: connected networks, static routes, own addresses.
pub(crate) fn routes(config: &Config) -> Rib {
    let mut rib = Rib::default();
    for route in configured(config) {
        rib.insert(&route, Place::Replace);
    }
    change_own(&mut rib, &BTreeMap::new(), &own(config));
    rib.tidy();
    rib
}

/// The routes that `config` has as such.
pub(crate) fn configured(config: &Config) -> impl Iterator<Item = Route> {
    let dev_of = |name: &str| config.devices.iter().position(|d| d.name == name).map(|dev| dev as u16);
    let gateway_dev = |via: IpAddr| {
        let on = |d: &crate::config::DeviceConfig| d.addresses.iter().any(|a| a.has_host(via));
        config.devices.iter().position(on).map(|dev| dev as u16)
    };
    let hop = move |target: &RouteTarget| {
        let unreachable = Hop::special(Kind::Unreachable);
        // The configuration was checked: a gateway or device that is not there can't come this far, nor can
        // several next hops within one.
        match target {
            RouteTarget::Via(via) => gateway_dev(*via).map_or(unreachable, |dev| Hop::via(dev, *via)),
            RouteTarget::ViaLinkLocal(via, name) => {
                dev_of(name).map_or(unreachable, |dev| Hop::via(dev, IpAddr::V6(*via)))
            }
            RouteTarget::Dev(name) => dev_of(name).map_or(unreachable, Hop::connected),
            RouteTarget::Blackhole => Hop::special(Kind::Blackhole),
            RouteTarget::Prohibit => Hop::special(Kind::Prohibit),
            RouteTarget::Unreachable | RouteTarget::NextHops(_) => unreachable,
        }
    };
    config.routes.iter().map(move |route| {
        let path = match &route.target {
            RouteTarget::NextHops(hops) => {
                Path::Group(hops.iter().map(|one| (hop(&one.target), one.weight)).collect())
            }
            one => Path::Hop(hop(one)),
        };
        Route { prefix: route.to, path, metric: route.metric, source: Source::STATIC, protocol: 0 }
    })
}

/// What follows from the addresses that `config` has.
pub(crate) fn own(config: &Config) -> BTreeMap<IpPrefix, Hop> {
    let own = config.devices.iter().enumerate().flat_map(|(dev, device)| {
        let routed = device.addresses.iter().filter(|own| !is_link_local(own.addr()));
        routed.map(move |own| (dev as u16, *own))
    });
    let mut all = BTreeMap::new();
    // The last one of a prefix stays: an address goes before what its network says of it.
    for (dev, address) in own.clone() {
        let net = address.network();
        all.insert(net, Hop::connected(dev));
        if net.addr().is_ipv4() && net.len() <= 30 {
            let hosts = [net.addr(), net.last()].map(Prefix::host);
            all.extend(hosts.map(|host| (host, Hop::special(Kind::Broadcast))));
        }
    }
    for addr in config.devices.iter().flat_map(|device| device.anycast6()) {
        all.insert(Prefix::host(IpAddr::V6(addr)), Hop::special(Kind::Local));
    }
    for (_, address) in own {
        all.insert(Prefix::host(address.addr()), Hop::special(Kind::Local));
    }
    all
}

/// Has what follows from own addresses be `now` in place of `before`.
pub(crate) fn change_own(rib: &mut Rib, before: &BTreeMap<IpPrefix, Hop>, now: &BTreeMap<IpPrefix, Hop>) {
    for (prefix, hop) in now.iter().filter(|(prefix, hop)| before.get(prefix) != Some(hop)) {
        let path = Path::Hop(*hop);
        let route = Route { prefix: *prefix, path, metric: 0, source: Source::OWN, protocol: 0 };
        rib.insert(&route, Place::Replace);
    }
    for prefix in before.keys().filter(|prefix| !now.contains_key(prefix)) {
        rib.remove(*prefix, |_, source, _| source == Source::OWN);
    }
}

/// Tables for `rib`, with every next hop unresolved and no device there yet. `key`: see [`Tables::new`].
pub(crate) fn compile(rib: &mut Rib, key: FoldKey) -> Result<Tables, FibError> {
    let mut tables = Tables::new(key);
    rib.v4.build(Arc::make_mut(&mut tables.v4))?;
    rib.v6.build(Arc::make_mut(&mut tables.v6))?;
    Ok(tables)
}
