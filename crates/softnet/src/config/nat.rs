//! `[nat]`: whose sources are hidden behind which addresses, and what is let in.

use std::net::{Ipv4Addr, SocketAddrV4};

use softnet_core::conntrack::Timeouts;
use softnet_core::ip::v4::header::protocol;
use softnet_core::ip::{Family, IpPrefix};
use softnet_core::nat::{Blocks, Filtering, NatRules, OneToOne, PortForward, PrefixNat, SourceNat};

use super::{Config, DeviceConfig};

/// `[nat]`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NatConfig {
    /// Connections that there can be.
    pub connections: u32,
    /// What mappings let in.
    pub filtering: Filtering,
    /// Connections that one host inside may have; `None`: as many as there is room for.
    pub connlimit: Option<u32>,
    /// The prefix under which hosts of IPv6 reach those of IPv4: NAT64.
    pub pool6: Option<IpPrefix>,
    /// Seconds without a packet after which connections expire.
    pub timeouts: Timeouts,
    /// Devices that sources are hidden behind: `[[nat.source]]`.
    pub source: Vec<NatSourceConfig>,
    /// Forwarded ports: `[[nat.forward]]`.
    pub forward: Vec<NatForwardConfig>,
    /// Addresses that stand for one another: `[[nat.one_to_one]]`.
    pub one_to_one: Vec<NatOneToOneConfig>,
    /// Prefixes of IPv6 that stand for one another: `[[nat.prefix]]`.
    pub prefix: Vec<NatPrefixConfig>,
}

impl Default for NatConfig {
    fn default() -> Self {
        NatConfig {
            connections: 262_144,
            filtering: Filtering::default(),
            connlimit: None,
            pool6: None,
            timeouts: Timeouts::default(),
            source: Vec::new(),
            forward: Vec::new(),
            one_to_one: Vec::new(),
            prefix: Vec::new(),
        }
    }
}

/// `[[nat.source]]`: sources of what leaves by a device are hidden.
#[derive(Clone, Debug, PartialEq)]
pub struct NatSourceConfig {
    /// The device.
    pub dev: String,
    /// The addresses that they are hidden behind. Empty: the device's first one (masquerading).
    pub addresses: Vec<Ipv4Addr>,
    /// The sources, of which each has ports of its own that its address tells (RFC 7422); `None`: any
    /// source has any.
    pub deterministic: Option<IpPrefix>,
}

impl NatSourceConfig {
    /// Of all that leaves by `dev`, behind its own address: masquerading.
    pub fn new(dev: impl Into<String>) -> Self {
        NatSourceConfig { dev: dev.into(), addresses: Vec::new(), deterministic: None }
    }
}

/// `[[nat.forward]]`: what comes to a port goes to a host inside.
#[derive(Clone, Debug, PartialEq)]
pub struct NatForwardConfig {
    /// The device that it comes to.
    pub dev: String,
    /// The address there; `None`: the device's first one.
    pub address: Option<Ipv4Addr>,
    /// The protocol.
    pub protocol: NatProtocol,
    /// The port.
    pub port: u16,
    /// The host inside, and the port there.
    pub to: SocketAddrV4,
}

/// `[[nat.one_to_one]]`: an address outside stands for one host.
#[derive(Clone, Debug, PartialEq)]
pub struct NatOneToOneConfig {
    /// The device that the outer address is behind.
    pub dev: String,
    /// The outer address.
    pub external: Ipv4Addr,
    /// The host.
    pub internal: Ipv4Addr,
}

/// `[[nat.prefix]]`: a prefix of IPv6 outside stands for one inside.
#[derive(Clone, Debug, PartialEq)]
pub struct NatPrefixConfig {
    /// The device that the outer prefix is behind.
    pub dev: String,
    /// The prefix inside.
    pub internal: IpPrefix,
    /// The one outside, of the same length.
    pub external: IpPrefix,
}

/// A protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl NatProtocol {
    /// IANA's number of it.
    pub fn number(self) -> u8 {
        match self {
            NatProtocol::Tcp => protocol::TCP,
            NatProtocol::Udp => protocol::UDP,
        }
    }
}

impl DeviceConfig {
    /// Its first IPv4 address.
    pub(crate) fn first_address4(&self) -> Option<Ipv4Addr> {
        self.addresses.iter().find_map(|own| Ipv4Addr::of(own.addr()))
    }
}

impl NatConfig {
    /// The rules as the hooks take them. Those of devices or addresses that `config`, which was
    /// checked, does not have are left out.
    pub(crate) fn rules(&self, config: &Config) -> NatRules {
        let device = |name: &str| {
            let at = config.devices.iter().position(|device| device.name == name)?;
            Some((at as u16, config.devices[at].first_address4()))
        };
        let source = |rule: &NatSourceConfig| {
            let (dev, own) = device(&rule.dev)?;
            let addresses =
                if rule.addresses.is_empty() { own.into_iter().collect() } else { rule.addresses.clone() };
            let hosts = rule.deterministic.and_then(IpPrefix::of);
            let deterministic = hosts.and_then(|hosts| Blocks::new(hosts, addresses.len()));
            Some(SourceNat { dev, addresses, deterministic })
        };
        let forward = |rule: &NatForwardConfig| {
            let external = SocketAddrV4::new(rule.address.or(device(&rule.dev)?.1)?, rule.port);
            Some(PortForward { protocol: rule.protocol.number(), external, internal: rule.to })
        };
        let one_to_one = |rule: &NatOneToOneConfig| {
            let NatOneToOneConfig { external, internal, .. } = *rule;
            Some(OneToOne { dev: device(&rule.dev)?.0, external, internal })
        };
        let prefix = |rule: &NatPrefixConfig| {
            let (internal, external) = (rule.internal.of()?, rule.external.of()?);
            Some(PrefixNat { dev: device(&rule.dev)?.0, internal, external })
        };
        NatRules {
            source: self.source.iter().filter_map(source).collect(),
            forward: self.forward.iter().filter_map(forward).collect(),
            one_to_one: self.one_to_one.iter().filter_map(one_to_one).collect(),
            filtering: self.filtering,
            connlimit: self.connlimit,
            prefix: self.prefix.iter().filter_map(prefix).collect(),
            pool6: self.pool6.and_then(IpPrefix::of),
        }
    }
}
