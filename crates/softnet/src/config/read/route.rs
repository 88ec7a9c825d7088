//! Reads `[[route]]` and `[[neighbour]]`. Next hops of a route are told by its place.

use std::net::IpAddr;

use softnet_core::ip::PrefixError;

use super::{Read, Table};
use crate::config::check::{METRIC, WEIGHT};
use crate::config::value::{parse_mac, shown};
use crate::config::{NeighbourConfig, NextHopConfig, RouteConfig, RouteTarget};

impl Read {
    pub(super) fn route(&mut self, table: Table<'_>) -> Option<RouteConfig> {
        let problems = self.found.len();
        self.known_keys(
            table,
            &["to", "via", "dev", "nexthops", "blackhole", "unreachable", "prohibit", "metric"],
        );
        let to = self.required_string(table, "to").and_then(|text| {
            let value = table.get("to")?;
            let read = text.parse().map_err(|error: PrefixError| error.to_string());
            self.parsed(table.section.key("to"), value, read)
        });
        let mut targets = self.hop(table);
        if table.get("nexthops").is_some() {
            targets.push(RouteTarget::NextHops(self.next_hops(table)));
        }
        for (key, target) in [
            ("blackhole", RouteTarget::Blackhole),
            ("unreachable", RouteTarget::Unreachable),
            ("prohibit", RouteTarget::Prohibit),
        ] {
            match self.boolean(table, key) {
                Some(true) => targets.push(target),
                Some(false) => self.wrong(table, key, "expected true, or no such key"),
                None => {}
            }
        }
        let metric = self.integer(table, "metric", &METRIC).unwrap_or(0);
        if targets.len() != 1 && self.found.len() == problems {
            let which = if targets.is_empty() { "none" } else { "several" };
            let message = format!(
                "expected one of via, dev, nexthops, blackhole, unreachable and prohibit, found {which}"
            );
            self.problem(table.section.itself(), table.span.0..table.span.1, message);
        }
        (self.found.len() == problems).then_some(())?;
        Some(RouteConfig { to: to?, target: targets.pop()?, metric })
    }

    /// Where `via` and `dev` lead.
    fn hop(&mut self, table: Table<'_>) -> Vec<RouteTarget> {
        match (self.address(table, "via"), self.string(table, "dev")) {
            // It is on every link; which one is meant must be said.
            (Some(IpAddr::V6(via)), Some(dev)) if via.is_unicast_link_local() => {
                vec![RouteTarget::ViaLinkLocal(via, dev)]
            }
            (via, dev) => via.map(RouteTarget::Via).into_iter().chain(dev.map(RouteTarget::Dev)).collect(),
        }
    }

    fn next_hops(&mut self, table: Table<'_>) -> Vec<NextHopConfig> {
        let items = self.items(table, "nexthops", "a list, such as [{ via = \"10.0.0.1\", weight = 2 }]");
        let mut hops = Vec::new();
        for (item, value) in items {
            let (place, problems) = (table.section.item("nexthops", item), self.found.len());
            let Some(entries) = value.get_ref().as_table() else {
                self.problem(place, value.span(), format!("expected a table, found {}", shown(value)));
                continue;
            };
            let span = value.span();
            let of_hop = Table { section: table.section, span: (span.start, span.end), entries };
            self.known_keys(of_hop, &["via", "dev", "weight"]);
            let mut targets = self.hop(of_hop);
            let weight = self.integer(of_hop, "weight", &WEIGHT).unwrap_or(1);
            match targets.pop() {
                Some(target) if targets.is_empty() => hops.push(NextHopConfig { target, weight }),
                _ if self.found.len() > problems => {}
                target => {
                    let which = if target.is_some() { "both" } else { "none" };
                    self.problem(place, span, format!("expected one of via and dev, found {which}"));
                }
            }
        }
        hops
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
