//! Routes: that each leads somewhere, and no two of a metric to the same destinations.

use std::net::IpAddr;

use super::super::errors::{Found, MAX_PROBLEMS, Place, Section};
use super::super::{Config, NextHopConfig, RouteConfig, RouteTarget, is_link_local};
use super::{known_device, never_a_host};
use crate::util::{Limit, range};

pub(in super::super) const METRIC: Limit = range(0, u32::MAX as u64);
/// As in the kernel.
pub(in super::super) const WEIGHT: Limit = range(1, 256);
/// Most next hops of a route.
const MAX_HOPS: usize = 64;

/// Adds what is wrong with routes to `found`. Without `devices_complete`, what they refer to is not checked.
pub(super) fn check(config: &Config, devices_complete: bool, found: &mut Vec<Found>) {
    let mut repeated = repeated(&config.routes).into_iter().peekable();
    for (i, route) in config.routes.iter().enumerate() {
        if found.len() >= MAX_PROBLEMS {
            return;
        }
        let at = Section::Route(i);
        if repeated.next_if_eq(&i).is_some() {
            let metric = match route.metric {
                0 => String::new(),
                metric => format!(" of metric {metric}"),
            };
            found.push(Found::new(at.key("to"), format!("there are two routes to {}{metric}", route.to)));
        }
        for device in config.devices.iter().filter(|_| route.metric == 0) {
            if device.addresses.iter().any(|own| own.network() == route.to) {
                let message = format!("{} is the connected network of {:?} already", route.to, device.name);
                found.push(Found::new(at.key("to"), message));
            }
        }
        match &route.target {
            RouteTarget::NextHops(hops) => next_hops(config, at, route, hops, devices_complete, found),
            one => target(config, (at.key("via"), at.key("dev")), route, one, devices_complete, found),
        }
    }
}

fn next_hops(
    config: &Config,
    at: Section,
    route: &RouteConfig,
    hops: &[NextHopConfig],
    devices_complete: bool,
    found: &mut Vec<Found>,
) {
    let mut wrong = |message: String| found.push(Found::new(at.key("nexthops"), message));
    if !(2..=MAX_HOPS).contains(&hops.len()) {
        wrong(format!("expected 2 to {MAX_HOPS} next hops, found {}", hops.len()));
    }
    let hops = &hops[..hops.len().min(MAX_HOPS)];
    for (i, hop) in hops.iter().enumerate() {
        if let Some(why) = WEIGHT.wrong(hop.weight.into()) {
            wrong(format!("weight: {why}"));
        }
        if hops[..i].iter().any(|other| other.target == hop.target) {
            wrong("expected each next hop once".into());
        }
        if !matches!(hop.target, RouteTarget::Via(_) | RouteTarget::ViaLinkLocal(..) | RouteTarget::Dev(_)) {
            wrong("expected gateways and devices".into());
        }
    }
    for (i, hop) in hops.iter().enumerate() {
        let place = at.item("nexthops", i);
        target(config, (place, place), route, &hop.target, devices_complete, found);
    }
}

/// Checks what a route, or a next hop of it, leads to, whose gateway and device are said at these places.
fn target(
    config: &Config,
    (at_via, at_dev): (Place, Place),
    route: &RouteConfig,
    target: &RouteTarget,
    devices_complete: bool,
    found: &mut Vec<Found>,
) {
    if let RouteTarget::ViaLinkLocal(gateway, _) = target
        && let Some(why) = never_a_host((*gateway).into())
    {
        let message = format!("expected the address of a host, but {gateway} {why}");
        found.push(Found::new(at_via, message));
    }
    match target {
        RouteTarget::Via(gateway) if gateway.is_ipv4() != route.to.addr().is_ipv4() => {
            let message = format!("expected a gateway of the family of {}, found {gateway}", route.to);
            found.push(Found::new(at_via, message));
        }
        RouteTarget::Via(gateway) if is_link_local(*gateway) => {
            let message = format!("expected dev = \"…\" beside it: {gateway} may be on any link");
            found.push(Found::new(at_via, message));
        }
        RouteTarget::Via(gateway) if devices_complete => via(config, at_via, *gateway, found),
        RouteTarget::ViaLinkLocal(gateway, _) if route.to.addr().is_ipv4() => {
            let message = format!("expected a gateway of the family of {}, found {gateway}", route.to);
            found.push(Found::new(at_via, message));
        }
        RouteTarget::ViaLinkLocal(_, dev) | RouteTarget::Dev(dev) if devices_complete => {
            if let Some(device) = known_device(config, at_dev, dev, found)
                && route.to.addr().is_ipv6()
                && !device.speaks_ipv6()
            {
                let message = format!("expected a device with an IPv6 address, but {dev:?} has none");
                found.push(Found::new(at_dev, message));
            }
        }
        _ => {}
    }
}

/// Which of `routes` are to prefixes that an earlier one of the same metric is to, in order. A table
/// of those seen would take more memory than the forwarding tables of a million routes.
fn repeated(routes: &[RouteConfig]) -> Vec<usize> {
    let key = |i: u32| (routes[i as usize].to, routes[i as usize].metric);
    let mut order: Vec<u32> = (0..routes.len() as u32).collect();
    order.sort_unstable_by_key(|&i| (key(i), i));
    let pairs = order.windows(2).filter(|pair| key(pair[0]) == key(pair[1]));
    let mut repeated: Vec<usize> = pairs.map(|pair| pair[1] as usize).collect();
    repeated.sort_unstable();
    repeated
}

fn via(config: &Config, place: Place, gateway: IpAddr, found: &mut Vec<Found>) {
    let own = || config.devices.iter().flat_map(|device| &device.addresses);
    if own().any(|own| own.addr() == gateway) {
        found.push(Found::new(
            place,
            format!("expected another host, but {gateway} is softnet's own address"),
        ));
    } else if !own().any(|own| own.has_host(gateway)) {
        let family = own().filter(|own| own.addr().is_ipv4() == gateway.is_ipv4());
        let connected: Vec<String> = family.map(|own| own.network().to_string()).collect();
        let message = format!(
            "expected a host on a connected network ({}), found {gateway}",
            if connected.is_empty() { "there is none".into() } else { connected.join(", ") }
        );
        found.push(Found::new(place, message));
    }
}
