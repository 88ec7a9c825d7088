//! What `[nat]` must be.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;

use softnet_core::nat::MAX_ADDRESSES;

use super::check::{NAT_CONNECTIONS, NAT_PORT, NAT_TIMEOUT, known_device, never_a_host};
use super::errors::{Found, Place, Section};
use super::nat::NatConfig;
use super::{Config, DeviceConfig};

/// Adds everything that is wrong with `nat`, which is that of `config`.
pub(super) fn check(config: &Config, nat: &NatConfig, devices_complete: bool, found: &mut Vec<Found>) {
    NAT_CONNECTIONS.check(Section::Nat.key("connections"), nat.connections, found);
    if let Some(connlimit) = nat.connlimit {
        NAT_CONNECTIONS.check(Section::Nat.key("connlimit"), connlimit, found);
    }
    let timeouts = &nat.timeouts;
    for (key, seconds) in [
        ("udp_timeout", timeouts.udp),
        ("udp_timeout_stream", timeouts.udp_stream),
        ("icmp_timeout", timeouts.icmp),
        ("tcp_timeout_established", timeouts.tcp_established),
        ("tcp_timeout_transitory", timeouts.tcp_transitory),
    ] {
        NAT_TIMEOUT.check(Section::Nat.key(key), seconds, found);
    }
    let mut external = HashSet::new();
    let mut devices = HashSet::new();
    for (i, rule) in nat.source.iter().enumerate() {
        let at = Section::NatSource(i);
        if !devices.insert(&rule.dev) {
            let message =
                format!("{:?} has a [[nat.source]] already; expected one for each device", rule.dev);
            found.push(Found::new(at.key("dev"), message));
        }
        let device = device(config, at.key("dev"), &rule.dev, devices_complete, found);
        if rule.addresses.is_empty()
            && let Some(device) = device
        {
            external.extend(own(device, at.key("dev"), found));
        }
        for (item, addr) in rule.addresses.iter().enumerate() {
            host(at.item("addresses", item), *addr, found);
            if !external.insert(*addr) {
                found.push(Found::new(at.item("addresses", item), format!("{addr} is there twice")));
            }
        }
    }
    let mut ports = HashMap::new();
    for (i, rule) in nat.forward.iter().enumerate() {
        let at = Section::NatForward(i);
        let device = device(config, at.key("dev"), &rule.dev, devices_complete, found);
        let own = match (rule.address, device) {
            (Some(addr), _) => {
                host(at.key("address"), addr, found);
                Some(addr)
            }
            (None, Some(device)) => own(device, at.key("dev"), found),
            (None, None) => None,
        };
        NAT_PORT.check(at.key("port"), rule.port, found);
        host(at.key("to"), *rule.to.ip(), found);
        NAT_PORT.check(at.key("to"), rule.to.port(), found);
        if let Some(own) = own {
            external.insert(own);
            if let Some(first) = ports.insert((own, rule.protocol.number(), rule.port), rule.to) {
                let message = format!("{own} port {} is forwarded to {first} already", rule.port);
                found.push(Found::new(at.key("port"), message));
            }
        }
    }
    let (mut outer, mut inner) = (HashSet::new(), HashSet::new());
    for (i, rule) in nat.one_to_one.iter().enumerate() {
        let at = Section::NatOneToOne(i);
        device(config, at.key("dev"), &rule.dev, devices_complete, found);
        for (key, addr, seen) in
            [("external", rule.external, &mut outer), ("internal", rule.internal, &mut inner)]
        {
            host(at.key(key), addr, found);
            if !seen.insert(addr) {
                found.push(Found::new(at.key(key), format!("{addr} is in an earlier [[nat.one_to_one]]")));
            }
        }
    }
    if external.len() > MAX_ADDRESSES {
        let message =
            format!("expected at most {MAX_ADDRESSES} external addresses, found {}", external.len());
        found.push(Found::new(Section::Nat.itself(), message));
    }
}

fn device<'a>(
    config: &'a Config,
    place: Place,
    name: &str,
    devices_complete: bool,
    found: &mut Vec<Found>,
) -> Option<&'a DeviceConfig> {
    if devices_complete { known_device(config, place, name, found) } else { None }
}

/// The device's own address, which it must have.
fn own(device: &DeviceConfig, place: Place, found: &mut Vec<Found>) -> Option<Ipv4Addr> {
    let own = device.first_address4();
    if own.is_none() {
        let message = format!("expected a device with an IPv4 address, but {:?} has none", device.name);
        found.push(Found::new(place, message));
    }
    own
}

fn host(place: Place, addr: Ipv4Addr, found: &mut Vec<Found>) {
    if let Some(why) = never_a_host(addr.into()) {
        found.push(Found::new(place, format!("expected the address of a host, but {addr} {why}")));
    }
}
