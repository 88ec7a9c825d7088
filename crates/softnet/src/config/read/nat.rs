//! `[nat]` and its lists.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use softnet_core::ip::IpPrefix;
use softnet_core::nat::Filtering;

use super::super::check;
use super::super::errors::Section;
use super::super::nat::{
    NatConfig, NatForwardConfig, NatOneToOneConfig, NatPrefixConfig, NatProtocol, NatSourceConfig,
};
use super::super::value::Value;
use super::{Read, Table, set};

/// What an IPv4 address looks like.
const ADDRESS: &str = "an IPv4 address, such as \"192.0.2.1\"";

impl Read {
    pub(super) fn nat(&mut self, table: Table<'_>) -> NatConfig {
        self.known_keys(
            table,
            &[
                "connections",
                "filtering",
                "connlimit",
                "pool6",
                "udp_timeout",
                "udp_timeout_stream",
                "icmp_timeout",
                "tcp_timeout_established",
                "tcp_timeout_transitory",
                "source",
                "forward",
                "one_to_one",
                "prefix",
            ],
        );
        let mut nat = NatConfig::default();
        set(&mut nat.connections, self.integer(table, "connections", &check::NAT_CONNECTIONS));
        let filterings = [
            ("address-and-port-dependent", Filtering::AddressAndPortDependent),
            ("endpoint-independent", Filtering::EndpointIndependent),
        ];
        set(&mut nat.filtering, self.choice(table, "filtering", &filterings));
        nat.connlimit = self.integer(table, "connlimit", &check::NAT_CONNECTIONS);
        nat.pool6 = self.prefix6(table, "pool6");
        let timeouts = &mut nat.timeouts;
        for (key, slot) in [
            ("udp_timeout", &mut timeouts.udp),
            ("udp_timeout_stream", &mut timeouts.udp_stream),
            ("icmp_timeout", &mut timeouts.icmp),
            ("tcp_timeout_established", &mut timeouts.tcp_established),
            ("tcp_timeout_transitory", &mut timeouts.tcp_transitory),
        ] {
            set(slot, self.integer(table, key, &check::NAT_TIMEOUT));
        }
        for value in self.nat_list(table, "source") {
            let section = Section::NatSource(nat.source.len());
            match self.table(section, value).and_then(|table| self.nat_source(table)) {
                Some(rule) => nat.source.push(rule),
                None => self.forget(section),
            }
        }
        for value in self.nat_list(table, "forward") {
            let section = Section::NatForward(nat.forward.len());
            match self.table(section, value).and_then(|table| self.nat_forward(table)) {
                Some(rule) => nat.forward.push(rule),
                None => self.forget(section),
            }
        }
        for value in self.nat_list(table, "one_to_one") {
            let section = Section::NatOneToOne(nat.one_to_one.len());
            match self.table(section, value).and_then(|table| self.nat_one_to_one(table)) {
                Some(rule) => nat.one_to_one.push(rule),
                None => self.forget(section),
            }
        }
        for value in self.nat_list(table, "prefix") {
            let section = Section::NatPrefix(nat.prefix.len());
            match self.table(section, value).and_then(|table| self.nat_prefix(table)) {
                Some(rule) => nat.prefix.push(rule),
                None => self.forget(section),
            }
        }
        nat
    }

    /// The tables of `[[nat.key]]`.
    fn nat_list<'a>(&mut self, nat: Table<'a>, key: &'static str) -> Vec<&'a Value<'a>> {
        match nat.get(key).map(|value| value.get_ref().as_array()) {
            None => Vec::new(),
            Some(Some(array)) => array.iter().collect(),
            Some(None) => {
                self.wrong(nat, key, &format!("expected a list of tables: write [[nat.{key}]]"));
                Vec::new()
            }
        }
    }

    fn nat_source(&mut self, table: Table<'_>) -> Option<NatSourceConfig> {
        self.known_keys(table, &["dev", "addresses", "deterministic"]);
        let dev = self.required_string(table, "dev");
        let (mut addresses, before) = (Vec::new(), self.found.len());
        for (item, value) in self.items(table, "addresses", "a list of addresses, such as [\"192.0.2.1\"]") {
            let place = table.section.item("addresses", item);
            if let Some(text) = self.as_string(place, value) {
                let read =
                    text.parse::<Ipv4Addr>().map_err(|_| format!("expected {ADDRESS}, found {text:?}"));
                addresses.extend(self.parsed(place, value, read));
            }
        }
        let deterministic = self.prefix4(table, "deterministic");
        (self.found.len() == before).then_some(())?;
        Some(NatSourceConfig { dev: dev?, addresses, deterministic })
    }

    fn nat_forward(&mut self, table: Table<'_>) -> Option<NatForwardConfig> {
        self.known_keys(table, &["dev", "address", "protocol", "port", "to"]);
        let before = self.found.len();
        let dev = self.required_string(table, "dev");
        let address = self.address4(table, "address");
        let protocols = [("tcp", NatProtocol::Tcp), ("udp", NatProtocol::Udp)];
        self.required_string(table, "protocol");
        let protocol = self.choice(table, "protocol", &protocols);
        let port = self.integer::<u16>(table, "port", &check::NAT_PORT);
        if table.get("port").is_none() {
            self.wrong(table, "port", "expected the key \"port\", which is missing");
        }
        let to = self.required_string(table, "to").and_then(|text| {
            let read = text.parse::<SocketAddrV4>();
            let expected = format!("expected a host and a port, such as \"192.168.1.10:80\", found {text:?}");
            self.parsed(table.section.key("to"), table.get("to")?, read.map_err(|_| expected))
        });
        (self.found.len() == before).then_some(())?;
        Some(NatForwardConfig { dev: dev?, address, protocol: protocol?, port: port?, to: to? })
    }

    fn nat_one_to_one(&mut self, table: Table<'_>) -> Option<NatOneToOneConfig> {
        self.known_keys(table, &["dev", "external", "internal"]);
        let dev = self.required_string(table, "dev");
        let mut address = |key| self.required_string(table, key).and_then(|_| self.address4(table, key));
        let (external, internal) = (address("external"), address("internal"));
        Some(NatOneToOneConfig { dev: dev?, external: external?, internal: internal? })
    }

    fn nat_prefix(&mut self, table: Table<'_>) -> Option<NatPrefixConfig> {
        self.known_keys(table, &["dev", "internal", "external"]);
        let dev = self.required_string(table, "dev");
        let mut prefix = |key| self.required_string(table, key).and_then(|_| self.prefix6(table, key));
        let (internal, external) = (prefix("internal"), prefix("external"));
        Some(NatPrefixConfig { dev: dev?, internal: internal?, external: external? })
    }

    fn prefix6(&mut self, table: Table<'_>, key: &'static str) -> Option<IpPrefix> {
        self.prefix_of(table, key, IpAddr::is_ipv6, "IPv6, such as \"2001:db8:64::/96\"")
    }

    fn prefix4(&mut self, table: Table<'_>, key: &'static str) -> Option<IpPrefix> {
        self.prefix_of(table, key, IpAddr::is_ipv4, "IPv4, such as \"100.64.0.0/22\"")
    }

    /// A prefix of the family that `is` is true of, which is called `family`.
    fn prefix_of(
        &mut self,
        table: Table<'_>,
        key: &'static str,
        is: fn(&IpAddr) -> bool,
        family: &str,
    ) -> Option<IpPrefix> {
        let (text, value) = (self.string(table, key)?, table.get(key)?);
        let read = match text.parse::<IpPrefix>() {
            Ok(prefix) if is(&prefix.addr()) => Ok(prefix),
            Ok(_) => Err(format!("expected a prefix of {family}, found {text:?}")),
            Err(error) => Err(error.to_string()),
        };
        self.parsed(table.section.key(key), value, read)
    }

    fn address4(&mut self, table: Table<'_>, key: &'static str) -> Option<Ipv4Addr> {
        self.value(table, key, ADDRESS, |value| match value.as_str()?.parse().ok()? {
            IpAddr::V4(addr) => Some(addr),
            IpAddr::V6(_) => None,
        })
    }
}
