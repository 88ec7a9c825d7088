//! Routes that are added and removed by hand.
//!
//! They are kept apart from those of the configuration, and go before them at the same metric, so
//! that what was done by hand holds until it is undone. Invariant: of a prefix there is at most one
//! route by hand of each metric.

use std::net::IpAddr;

use softnet_core::ip::adjacency::Kind;
use softnet_core::ip::{IpPrefix, Prefix};

use super::{LiveError, device, networks};
use crate::config::{Config, is_link_local, never_a_host};
use crate::control::{LiveAction, NextHop, RouteType, SetRoute};
use crate::stack::StackInner;
use crate::stack::rib::{Hop, Path, Place, Route, Source};

/// Most next hops of a route.
const MAX_HOPS: usize = 64;
/// The highest weight of one, as in the kernel.
const MAX_WEIGHT: u16 = 256;

/// Makes the change. Returns how many routes were added or removed.
pub(crate) fn change(shared: &StackInner, config: &Config, set: &SetRoute) -> Result<u64, LiveError> {
    match set.action {
        LiveAction::Add | LiveAction::Replace => insert(shared, config, set),
        LiveAction::Del => remove(shared, config, set),
        LiveAction::Flush => flush(shared, config, set),
    }
}

fn insert(shared: &StackInner, config: &Config, set: &SetRoute) -> Result<u64, LiveError> {
    let (prefix, metric) = (prefix(set)?, set.metric.unwrap_or(0));
    let path = path(config, set, prefix)?;
    let mut rib = shared.routes.read();
    let there = rib.routes_of(prefix);
    let same = |source: Source| there.iter().any(|route| (route.source, route.metric) == (source, metric));
    if same(Source::OWN) {
        return Err(LiveError::Connected(prefix));
    }
    if set.action == LiveAction::Add && (same(Source::MANUAL) || same(Source::STATIC)) {
        return Err(LiveError::RouteExists(prefix));
    }
    rib.insert(&Route { prefix, path, metric, source: Source::MANUAL, protocol: 0 }, Place::Replace);
    rib.remove(prefix, |of, source, _| (of, source) == (metric, Source::STATIC));
    shared.publish_routes(&mut rib)?;
    Ok(1)
}

fn remove(shared: &StackInner, config: &Config, set: &SetRoute) -> Result<u64, LiveError> {
    let prefix = prefix(set)?;
    let hops = set.nexthops.iter().map(|hop| asked_hop(config, hop)).collect::<Result<Vec<_>, _>>()?;
    let leads = |path: &Path| match (special(set.kind), path) {
        (Some(kind), Path::Hop(hop)) => hop.kind == kind,
        (Some(_), Path::Group(_)) => false,
        (None, Path::Hop(hop)) => hops.iter().all(|asked| asked.is(hop)),
        (None, Path::Group(members)) => hops.is_empty() || is_all(&hops, members),
    };
    let fits = |metric: u32, path: &Path| set.metric.is_none_or(|asked| asked == metric) && leads(path);
    let mut rib = shared.routes.read();
    if rib.remove(prefix, |metric, source, path| source.is_configured() && fits(metric, path)) {
        shared.publish_routes(&mut rib)?;
        return Ok(1);
    }
    // Of IPv6 each next hop is a route of its own to the kernel, and to `ip`.
    let some = rib.routes_of(prefix).into_iter().find_map(|route| {
        let asked = route.source.is_configured() && set.metric.is_none_or(|asked| asked == route.metric);
        let path = without(&hops, &route.path).filter(|_| asked && prefix.addr().is_ipv6())?;
        Some(Route { path, ..route })
    });
    if let Some(left) = some {
        rib.insert(&left, Place::Replace);
        shared.publish_routes(&mut rib)?;
        return Ok(1);
    }
    let there = rib.routes_of(prefix);
    let other = there.iter().find(|route| fits(route.metric, &route.path)).map(|route| route.source);
    Err(match other {
        Some(Source::OWN) => {
            LiveError::NotOurs { to: prefix, owner: "that of an own address, and there as long as that is" }
        }
        Some(_) => LiveError::NotOurs { to: prefix, owner: "the kernel's: `ip route del` removes it" },
        None => LiveError::NoRoute(prefix),
    })
}

/// Removes what was added by hand, by one device or all.
fn flush(shared: &StackInner, config: &Config, set: &SetRoute) -> Result<u64, LiveError> {
    let of = match &set.nexthops[..] {
        [] => None,
        [NextHop { via: None, dev: Some(name), .. }] => Some(device(config, name)?.0),
        _ => return Err(LiveError::Expected("nothing but a device beside flush".into())),
    };
    let to = set.to.as_ref().map(|_| prefix(set)).transpose()?;
    let by = |path: &Path, dev: u16| match path {
        Path::Hop(hop) => hop.is_sent() && hop.dev == dev,
        Path::Group(members) => members.iter().any(|(hop, _)| hop.dev == dev),
    };
    let mut rib = shared.routes.read();
    let gone: Vec<Route> = rib.routes_from(Source::MANUAL).collect();
    let within = |route: &&Route| {
        of.is_none_or(|dev| by(&route.path, dev))
            && to.is_none_or(|to| to.len() <= route.prefix.len() && to.contains(route.prefix.addr()))
    };
    let gone: Vec<&Route> = gone.iter().filter(within).collect();
    for route in &gone {
        rib.remove(route.prefix, |metric, source, _| (metric, source) == (route.metric, Source::MANUAL));
    }
    shared.publish_routes(&mut rib)?;
    Ok(gone.len() as u64)
}

/// The destinations.
fn prefix(set: &SetRoute) -> Result<IpPrefix, LiveError> {
    let text = set.to.as_deref().ok_or_else(|| LiveError::Expected("the destinations".into()))?;
    let prefix = match text.parse::<IpAddr>() {
        Ok(addr) => Prefix::host(addr),
        Err(_) => {
            text.parse().map_err(|error: softnet_core::ip::PrefixError| LiveError::To(error.to_string()))?
        }
    };
    let addr: IpAddr = prefix.addr();
    if addr.is_multicast() || prefix.len() > 0 && is_link_local(addr) {
        let why = if addr.is_multicast() { "multicast addresses" } else { "link-local addresses" };
        return Err(LiveError::To(format!("{why} have no routes, each is on its link")));
    }
    Ok(prefix)
}

/// What is done with packets, if they are sent nowhere.
fn special(kind: RouteType) -> Option<Kind> {
    match kind {
        RouteType::Unicast => None,
        RouteType::Blackhole => Some(Kind::Blackhole),
        RouteType::Unreachable => Some(Kind::Unreachable),
        RouteType::Prohibit => Some(Kind::Prohibit),
    }
}

fn path(config: &Config, set: &SetRoute, to: IpPrefix) -> Result<Path, LiveError> {
    let v4 = to.addr().is_ipv4();
    match (special(set.kind), &set.nexthops[..]) {
        (Some(kind), []) => Ok(Path::Hop(Hop::special(kind))),
        (Some(_), _) => Err(LiveError::Expected("no next hop of a route that sends packets nowhere".into())),
        (None, []) => Err(LiveError::Expected("via ADDR, dev DEV, or several nexthops".into())),
        (None, [one]) => next_hop(config, one, v4).map(Path::Hop),
        (None, several) if several.len() > MAX_HOPS => {
            Err(LiveError::Expected(format!("at most {MAX_HOPS} next hops, found {}", several.len())))
        }
        (None, several) => {
            let mut members: Vec<(Hop, u16)> = Vec::new();
            for one in several {
                let hop = next_hop(config, one, v4)?;
                if members.iter().any(|(other, _)| *other == hop) {
                    return Err(LiveError::Expected("each next hop once".into()));
                }
                members.push((hop, one.weight));
            }
            Ok(Path::Group(members))
        }
    }
}

/// A next hop of a route of the family that `v4` says: its gateway must be on a connected network.
fn next_hop(config: &Config, hop: &NextHop, v4: bool) -> Result<Hop, LiveError> {
    if !(1..=MAX_WEIGHT).contains(&hop.weight) {
        return Err(LiveError::Expected(format!("a weight from 1 to {MAX_WEIGHT}, found {}", hop.weight)));
    }
    let dev = hop.dev.as_ref().map(|name| device(config, name)).transpose()?;
    if let Some((_, device)) = dev
        && !v4
        && !device.speaks_ipv6()
    {
        return Err(LiveError::NoIpv6(device.name.clone()));
    }
    let Some(via) = hop.via else {
        let (dev, _) = dev.ok_or_else(|| LiveError::Expected("via ADDR or dev DEV".into()))?;
        return Ok(Hop::connected(dev));
    };
    if via.is_ipv4() != v4 {
        return Err(LiveError::Expected(format!("a gateway of the destinations' family, found {via}")));
    }
    is_host(config, "via", via)?;
    if is_link_local(via) {
        let (dev, _) =
            dev.ok_or_else(|| LiveError::Expected(format!("dev DEV beside it: {via} may be on any link")))?;
        return Ok(Hop::via(dev, via));
    }
    let has = |device: &crate::config::DeviceConfig| device.addresses.iter().any(|own| own.has_host(via));
    let on = match dev {
        Some((dev, device)) => has(device).then_some(dev).ok_or_else(|| [device].to_vec()),
        None => {
            let at = config.devices.iter().position(has);
            at.map(|dev| dev as u16).ok_or_else(|| config.devices.iter().collect())
        }
    };
    match on {
        Ok(dev) => Ok(Hop::via(dev, via)),
        Err(asked) => Err(LiveError::Unreachable { via, networks: networks(asked.into_iter(), v4) }),
    }
}

/// Whether `addr` can be that of another host.
pub(super) fn is_host(config: &Config, what: &'static str, addr: IpAddr) -> Result<(), LiveError> {
    let own = config.devices.iter().flat_map(|device| &device.addresses).any(|own| own.addr() == addr);
    match never_a_host(addr).or(own.then_some("is softnet's own address")) {
        Some(why) => Err(LiveError::NoHost { what, addr, why }),
        None => Ok(()),
    }
}

/// Whether the next hops asked for are `members`, in whichever order: all of them, as `ip` has it of IPv4.
fn is_all(asked: &[Asked], members: &[(Hop, u16)]) -> bool {
    asked.iter().all(|asked| members.iter().any(|member| asked.is_member(member)))
        && members.iter().all(|member| asked.iter().any(|asked| asked.is_member(member)))
}

/// What is left of `path` without the next hops asked for, if it has each of them and others.
fn without(asked: &[Asked], path: &Path) -> Option<Path> {
    let Path::Group(members) = path else { return None };
    if asked.is_empty() || !asked.iter().all(|asked| members.iter().any(|member| asked.is_member(member))) {
        return None;
    }
    let stays = |member: &&(Hop, u16)| !asked.iter().any(|asked| asked.is_member(member));
    let left: Vec<_> = members.iter().filter(stays).copied().collect();
    match left[..] {
        [] => None,
        [(hop, _)] => Some(Path::Hop(hop)),
        _ => Some(Path::Group(left)),
    }
}

/// What is known of a next hop that is to go.
struct Asked {
    dev: Option<u16>,
    via: Option<IpAddr>,
    /// 1, which is also what it is if none was said, stands for any.
    weight: u16,
}

impl Asked {
    fn is(&self, hop: &Hop) -> bool {
        let fits = self.dev.is_none_or(|dev| hop.is_sent() && hop.dev == dev);
        fits && self.via.is_none_or(|via| hop.gateway == Some(via))
    }

    fn is_member(&self, (hop, weight): &(Hop, u16)) -> bool {
        self.is(hop) && (self.weight == 1 || self.weight == *weight)
    }
}

fn asked_hop(config: &Config, hop: &NextHop) -> Result<Asked, LiveError> {
    let dev = hop.dev.as_ref().map(|name| device(config, name)).transpose()?.map(|(dev, _)| dev);
    Ok(Asked { dev, via: hop.via, weight: hop.weight })
}
