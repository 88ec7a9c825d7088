//! Reads `[[route]]` and `[[neighbour]]`.

use std::net::IpAddr;

use softnet_core::ip::PrefixError;

use super::{Read, Table};
use crate::config::value::parse_mac;
use crate::config::{NeighbourConfig, RouteConfig, RouteTarget};

impl Read {
    pub(super) fn route(&mut self, table: Table<'_>) -> Option<RouteConfig> {
        let problems = self.found.len();
        self.known_keys(table, &["to", "via", "dev", "blackhole", "unreachable"]);
        let to = self.required_string(table, "to").and_then(|text| {
            let value = table.get("to")?;
            let read = text.parse().map_err(|error: PrefixError| error.to_string());
            self.parsed(table.section.key("to"), value, read)
        });
        let mut targets = Vec::new();
        match (self.address(table, "via"), self.string(table, "dev")) {
            // It is on every link; which one is meant must be said.
            (Some(IpAddr::V6(via)), Some(dev)) if via.is_unicast_link_local() => {
                targets.push(RouteTarget::ViaLinkLocal(via, dev));
            }
            (via, dev) => {
                targets.extend(via.map(RouteTarget::Via));
                targets.extend(dev.map(RouteTarget::Dev));
            }
        }
        for (key, target) in
            [("blackhole", RouteTarget::Blackhole), ("unreachable", RouteTarget::Unreachable)]
        {
            match self.boolean(table, key) {
                Some(true) => targets.push(target),
                Some(false) => self.wrong(table, key, "expected true, or no such key"),
                None => {}
            }
        }
        if targets.len() != 1 && self.found.len() == problems {
            let which = if targets.is_empty() { "none" } else { "several" };
            let message = format!("expected one of via, dev, blackhole and unreachable, found {which}");
            self.problem(table.section.itself(), table.span.0..table.span.1, message);
        }
        (self.found.len() == problems).then_some(())?;
        Some(RouteConfig { to: to?, target: targets.pop()? })
    }

    pub(super) fn neighbour(&mut self, table: Table<'_>) -> Option<NeighbourConfig> {
        self.known_keys(table, &["dev", "address", "mac"]);
        let dev = self.required_string(table, "dev");
        let address = self.required_string(table, "address").and_then(|_| self.address(table, "address"));
        let mac = self
            .required_string(table, "mac")
            .and_then(|text| self.parsed(table.section.key("mac"), table.get("mac")?, parse_mac(&text)));
        Some(NeighbourConfig { dev: dev?, address: address?, mac: mac? })
    }
}
