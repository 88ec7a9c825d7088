//! `[filter]`, `[[rule]]` and `[[set]]`: which packets pass, and which are dropped or rejected.

use std::fmt;
use std::ops::RangeInclusive;

use softnet_core::conntrack::Timeouts;
use softnet_core::filter::{Action, Addresses, Chain, FlowState, Rule, Rules};
use softnet_core::ip::v4::header::protocol;
use softnet_core::ip::v6::header::next;
use softnet_core::ip::{Address, IpPrefix};

use super::Config;

/// Protocols by name, with IANA's numbers.
pub(super) const PROTOCOLS: [(&str, u8); 9] = [
    ("tcp", protocol::TCP),
    ("udp", protocol::UDP),
    ("icmp", protocol::ICMP),
    ("icmpv6", next::ICMPV6),
    ("sctp", 132),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("igmp", 2),
];

/// Protocols that have ports.
pub(super) const WITH_PORTS: [u8; 5] = [protocol::TCP, protocol::UDP, 33, 132, 136];

/// `[filter]`, `[[rule]]` and `[[set]]`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FilterConfig {
    /// What becomes of packets that no rule matches, by [`Chain`].
    pub policies: [Action; 3],
    /// Connections that there can be, if rules ask for states and there is no `[nat]`, which has a
    /// number of its own.
    pub connections: u32,
    /// The rules, in order.
    pub rules: Vec<RuleConfig>,
    /// Sets of addresses.
    pub sets: Vec<SetConfig>,
}

impl Default for FilterConfig {
    fn default() -> Self {
        FilterConfig {
            policies: [Action::Allow; 3],
            connections: 262_144,
            rules: Vec::new(),
            sets: Vec::new(),
        }
    }
}

/// `[[rule]]`: conditions, all of which a packet meets, and what becomes of it then. A list that is
/// empty is no condition.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RuleConfig {
    /// What it is called in tables.
    pub name: Option<String>,
    /// Where it is asked.
    pub hook: Vec<Chain>,
    /// Devices that packets came by: `in`.
    pub input: Vec<String>,
    /// Devices that they leave by: `out`.
    pub output: Vec<String>,
    /// Sources.
    pub source: Vec<RuleAddresses>,
    /// Destinations.
    pub destination: Vec<RuleAddresses>,
    /// Protocols.
    pub protocol: Vec<u8>,
    /// Source ports.
    pub source_port: Vec<RangeInclusive<u16>>,
    /// Destination ports.
    pub destination_port: Vec<RangeInclusive<u16>>,
    /// Types of ICMP and ICMPv6.
    pub icmp_type: Vec<u8>,
    /// Only TCP that opens a connection.
    pub tcp_syn: bool,
    /// States of connections.
    pub state: Vec<FlowState>,
    /// What becomes of packets.
    pub action: Action,
}

/// Addresses that a rule names.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RuleAddresses {
    /// Those of a prefix.
    Prefix(IpPrefix),
    /// Those of a set, by its name: `"@name"`.
    Set(String),
}

/// `[[set]]`: addresses that rules name together.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SetConfig {
    /// What rules call it.
    pub name: String,
    /// The addresses; those of its file, too, if it has one.
    pub prefixes: Vec<IpPrefix>,
}

impl FilterConfig {
    /// Whether anything is filtered.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.policies == [Action::Allow; 3]
    }

    /// Whether rules ask for states.
    pub(crate) fn asks_for_states(&self) -> bool {
        self.rules.iter().any(|rule| !rule.state.is_empty())
    }

    /// The rules as the hook takes them. What `config`, which was checked, does not have is left out.
    pub(crate) fn rules(&self, config: &Config) -> Rules {
        let device = |name: &String| {
            let at = config.devices.iter().position(|device| device.name == *name)?;
            Some(at as u16)
        };
        let addresses = |named: &RuleAddresses| match named {
            RuleAddresses::Prefix(prefix) => Some(Addresses::Prefix(*prefix)),
            RuleAddresses::Set(name) => {
                self.sets.iter().position(|set| set.name == *name).map(Addresses::Set)
            }
        };
        let rule = |rule: &RuleConfig| Rule {
            chains: rule.hook.clone(),
            input: rule.input.iter().filter_map(device).collect(),
            output: rule.output.iter().filter_map(device).collect(),
            source: rule.source.iter().filter_map(addresses).collect(),
            destination: rule.destination.iter().filter_map(addresses).collect(),
            protocol: rule.protocol.clone(),
            source_port: rule.source_port.clone(),
            destination_port: rule.destination_port.clone(),
            icmp_type: rule.icmp_type.clone(),
            tcp_syn: rule.tcp_syn,
            state: rule.state.clone(),
            action: rule.action,
        };
        Rules {
            rules: self.rules.iter().map(rule).collect(),
            sets: self.sets.iter().map(|set| set.prefixes.clone()).collect(),
            policies: self.policies,
        }
    }
}

impl Config {
    /// Connections that there can be, and when they expire, if any are tracked.
    pub(crate) fn tracked(&self) -> Option<(u32, Timeouts)> {
        match &self.nat {
            Some(nat) => Some((nat.connections, nat.timeouts)),
            None => self.filter.asks_for_states().then(|| (self.filter.connections, Timeouts::default())),
        }
    }
}

/// The conditions, in the words of the configuration.
impl fmt::Display for RuleConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |range: &RangeInclusive<u16>| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        let addresses = |list: &[RuleAddresses]| -> Vec<String> {
            let one = |addresses: &RuleAddresses| match addresses {
                RuleAddresses::Prefix(prefix) if prefix.len() == prefix.addr().width() => {
                    prefix.addr().to_string()
                }
                RuleAddresses::Prefix(prefix) => prefix.to_string(),
                RuleAddresses::Set(name) => format!("@{name}"),
            };
            list.iter().map(one).collect()
        };
        let protocol = |number: &u8| {
            let named = PROTOCOLS.iter().find(|(_, known)| known == number);
            named.map_or(number.to_string(), |(name, _)| (*name).into())
        };
        let conditions: [(&str, Vec<String>); 10] = [
            ("in", self.input.clone()),
            ("out", self.output.clone()),
            ("source", addresses(&self.source)),
            ("destination", addresses(&self.destination)),
            ("protocol", self.protocol.iter().map(protocol).collect()),
            ("source_port", self.source_port.iter().map(range).collect()),
            ("destination_port", self.destination_port.iter().map(range).collect()),
            ("icmp_type", self.icmp_type.iter().map(u8::to_string).collect()),
            ("tcp_syn", self.tcp_syn.then(|| "true".into()).into_iter().collect()),
            ("state", self.state.iter().map(|state| state.name().into()).collect()),
        ];
        let told = conditions.iter().filter(|(_, values)| !values.is_empty());
        let told: Vec<String> = told.map(|(key, values)| format!("{key} {}", values.join(","))).collect();
        f.write_str(if told.is_empty() { "all" } else { "" })?;
        f.write_str(&told.join(" "))
    }
}
