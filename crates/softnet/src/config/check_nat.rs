//! What `[nat]` must be.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use softnet_core::ip::IpPrefix;
use softnet_core::nat::{Blocks, MAX_ADDRESSES, MAX_PREFIX, POOL6_LENGTHS};

use super::check::{NAT_CONNECTIONS, NAT_PORT, NAT_TIMEOUT, known_device, never_a_host};
use super::errors::{Found, Place, Section};
use super::nat::{NatConfig, NatSourceConfig};
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
        if let Some(hosts) = rule.deterministic {
            deterministic(config, nat, rule, hosts, at, found);
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
    prefixes(config, nat, devices_complete, found);
    if external.len() > MAX_ADDRESSES {
        let message =
            format!("expected at most {MAX_ADDRESSES} external addresses, found {}", external.len());
        found.push(Found::new(Section::Nat.itself(), message));
    }
}

/// Blocks of ports for `hosts`, of addresses that have no other use.
fn deterministic(
    config: &Config,
    nat: &NatConfig,
    rule: &NatSourceConfig,
    hosts: IpPrefix,
    at: Section,
    found: &mut Vec<Found>,
) {
    let mut wrong = |message: String| found.push(Found::new(at.key("deterministic"), message));
    if rule.addresses.is_empty() {
        wrong("expected `addresses` of its own with it: those of a device serve softnet, too".into());
    } else if let Some(hosts) = hosts.of()
        && Blocks::new(hosts, rule.addresses.len()).is_none()
    {
        let (needed, have) = (Blocks::addresses_for(hosts), rule.addresses.len());
        wrong(format!(
            "expected 64 ports or more for each host: {hosts} needs {needed} addresses, found {have}"
        ));
    }
    if nat.pool6.is_some() {
        wrong("expected no `pool6` with it: hosts of IPv6 have no blocks of ports".into());
    }
    for addr in &rule.addresses {
        let is_own =
            |device: &&DeviceConfig| device.addresses.iter().any(|own| own.addr() == IpAddr::V4(*addr));
        if let Some(device) = config.devices.iter().find(is_own) {
            let name = &device.name;
            wrong(format!("expected other addresses than those of {name}: softnet needs ports of {addr}"));
        }
        if nat.one_to_one.iter().any(|other| other.external == *addr) {
            wrong(format!(
                "expected other addresses than {addr}, all ports of which a [[nat.one_to_one]] has"
            ));
        }
    }
}

/// Prefixes of IPv6: those that stand for one another, and that of NAT64.
fn prefixes(config: &Config, nat: &NatConfig, devices_complete: bool, found: &mut Vec<Found>) {
    for (i, rule) in nat.prefix.iter().enumerate() {
        let at = Section::NatPrefix(i);
        device(config, at.key("dev"), &rule.dev, devices_complete, found);
        if rule.internal.len() > MAX_PREFIX {
            let message = format!("expected a prefix of at most {MAX_PREFIX} bits, found {}", rule.internal);
            found.push(Found::new(at.key("internal"), message));
        }
        if rule.internal.len() != rule.external.len() {
            let message = format!("expected a prefix as long as {}, found {}", rule.internal, rule.external);
            found.push(Found::new(at.key("external"), message));
        }
        let overlaps = |prefix: IpPrefix| {
            nat.prefix[..i]
                .iter()
                .flat_map(|other| [other.internal, other.external])
                .find(|other| other.contains(prefix.addr()) || prefix.contains(other.addr()))
        };
        for (key, prefix) in [("internal", rule.internal), ("external", rule.external)] {
            if let Some(other) = overlaps(prefix) {
                let message = format!("{prefix} overlaps {other} of an earlier [[nat.prefix]]");
                found.push(Found::new(at.key(key), message));
            }
        }
    }
    if let Some(pool6) = nat.pool6 {
        let at = Section::Nat.key("pool6");
        // RFC 6052 section 2.2.
        let reserved = matches!(pool6.addr(), IpAddr::V6(addr) if addr.octets()[8] != 0);
        if !POOL6_LENGTHS.contains(&pool6.len()) || reserved {
            let lengths = POOL6_LENGTHS.map(|len| len.to_string()).join(", ");
            let message =
                format!("expected a prefix of {lengths} bits whose bits 64 to 71 are zeros, found {pool6}");
            found.push(Found::new(at, message));
        }
        if nat.source.is_empty() {
            let message = "expected a [[nat.source]] beside it: hosts of IPv6 have its address in IPv4";
            found.push(Found::new(at, message));
        }
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
