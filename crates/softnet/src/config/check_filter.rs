//! What `[filter]`, `[[rule]]` and `[[set]]` must be.

use std::collections::HashMap;

use softnet_core::filter::{Chain, MAX_RULES};
use softnet_core::ip::Address;
use softnet_core::ip::v4::header::protocol;
use softnet_core::ip::v6::header::next;

use super::Config;
use super::check::{NAT_CONNECTIONS, known_device};
use super::errors::{Found, Section};
use super::filter::{FilterConfig, RuleAddresses, RuleConfig, WITH_PORTS};

/// Sets that there can be, and prefixes in all of them together.
const MAX_SETS: usize = 1024;
const MAX_PREFIXES: usize = 1 << 20;

/// Adds everything that is wrong with `filter`, which is that of `config`.
pub(super) fn check(config: &Config, devices_complete: bool, found: &mut Vec<Found>) {
    let filter = &config.filter;
    NAT_CONNECTIONS.check(Section::Filter.key("connections"), filter.connections, found);
    sets(filter, found);
    if filter.rules.len() > MAX_RULES {
        let message = format!("expected at most {MAX_RULES} rules, found {}", filter.rules.len());
        found.push(Found::new(Section::Rule(MAX_RULES).itself(), message));
    }
    for (i, rule) in filter.rules.iter().enumerate() {
        check_rule(config, i, rule, devices_complete, found);
    }
}

fn sets(filter: &FilterConfig, found: &mut Vec<Found>) {
    let mut names = HashMap::new();
    for (i, set) in filter.sets.iter().enumerate() {
        let named = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let at = Section::Set(i);
        if set.name.is_empty() || set.name.len() > 64 || !set.name.chars().all(named) {
            let message = format!("expected 1 to 64 letters, digits, '-', '_' or '.', found {:?}", set.name);
            found.push(Found::new(at.key("name"), message));
        }
        if names.insert(&set.name, i).is_some() {
            found.push(Found::new(at.key("name"), format!("the set {:?} is there twice", set.name)));
        }
    }
    if filter.sets.len() > MAX_SETS {
        let message = format!("expected at most {MAX_SETS} sets, found {}", filter.sets.len());
        found.push(Found::new(Section::Set(MAX_SETS).itself(), message));
    }
    let prefixes: usize = filter.sets.iter().map(|set| set.prefixes.len()).sum();
    if prefixes > MAX_PREFIXES {
        let message =
            format!("expected at most {MAX_PREFIXES} prefixes in all sets together, found {prefixes}");
        found.push(Found::new(Section::Set(filter.sets.len() - 1).key("prefixes"), message));
    }
}

fn check_rule(config: &Config, i: usize, rule: &RuleConfig, devices_complete: bool, found: &mut Vec<Found>) {
    let at = Section::Rule(i);
    if rule.hook.is_empty() {
        found.push(Found::new(at.key("hook"), "expected one hook or more: input, forward, output"));
    }
    for (key, devices, never, why) in [
        ("in", &rule.input, Chain::Output, "what is made here came by none"),
        ("out", &rule.output, Chain::Input, "what is for softnet leaves by none"),
    ] {
        if !devices.is_empty() && rule.hook.contains(&never) {
            let message = format!("expected no such key with the hook {:?}: {why}", never.name());
            found.push(Found::new(at.key(key), message));
        }
        for device in devices.iter().filter(|_| devices_complete) {
            known_device(config, at.key(key), device, found);
        }
    }
    let unread = found.iter().any(|found| matches!(found.place.section, Section::Set(_)));
    // Of which family addresses are, IPv4 and IPv6.
    let mut families = [[false; 2]; 2];
    for ((key, addresses), families) in
        [("source", &rule.source), ("destination", &rule.destination)].into_iter().zip(&mut families)
    {
        for (item, addresses) in addresses.iter().enumerate() {
            let place = if item == 0 { at.key(key) } else { at.item(key, item) };
            match addresses {
                RuleAddresses::Prefix(prefix) => families[usize::from(prefix.addr().width() == 128)] = true,
                RuleAddresses::Set(name) => match config.filter.sets.iter().find(|set| set.name == *name) {
                    Some(_) => *families = [true; 2],
                    // One that can't be read is told already.
                    None if unread => *families = [true; 2],
                    None => {
                        *families = [true; 2];
                        let names: Vec<&str> =
                            config.filter.sets.iter().map(|set| set.name.as_str()).collect();
                        let names = if names.is_empty() { "there is none".into() } else { names.join(", ") };
                        let message = format!("expected the name of a [[set]] ({names}), found {name:?}");
                        found.push(Found::new(place, message));
                    }
                },
            }
        }
    }
    let [source, destination] = families;
    let both = !rule.source.is_empty() && !rule.destination.is_empty();
    if both && !(0..2).any(|family| source[family] && destination[family]) {
        let message = "expected addresses of the family of the sources: no packet is of both";
        found.push(Found::new(at.key("destination"), message));
    }
    let only =
        |of: &[u8]| !rule.protocol.is_empty() && rule.protocol.iter().all(|number| of.contains(number));
    for (key, ports) in [("source_port", &rule.source_port), ("destination_port", &rule.destination_port)] {
        if !ports.is_empty() && !only(&WITH_PORTS) {
            let message = "expected protocol = \"tcp\" or \"udp\" beside it: others have no ports";
            found.push(Found::new(at.key(key), message));
        }
    }
    if !rule.icmp_type.is_empty() && !only(&[protocol::ICMP, next::ICMPV6]) {
        let message = "expected protocol = \"icmp\" or \"icmpv6\" beside it";
        found.push(Found::new(at.key("icmp_type"), message));
    }
    if rule.tcp_syn && !only(&[protocol::TCP]) {
        found.push(Found::new(at.key("tcp_syn"), "expected protocol = \"tcp\" beside it"));
    }
}
