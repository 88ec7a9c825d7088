//! What is told of connections and of NAT.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use softnet_core::conntrack::Tuple;
use softnet_core::conntrack::entry::{DNAT, SNAT};
use softnet_core::ip::v4::header::protocol;
use softnet_core::ip::v6::header::next;
use softnet_core::nat::seconds;

use super::Introspect;
use crate::control::show::{ConntrackRow, NatAddressRow, NatStats};

/// Connections that are told at a time: an answer must not take as much memory as the table.
const MAX_ROWS: usize = 65_536;

impl Introspect {
    /// The connections, the first 65,536 of them.
    pub fn connections(&self) -> Vec<ConntrackRow> {
        let now = seconds(self.shared.clock.now());
        let Some(conntrack) = &self.shared.conntrack else { return Vec::new() };
        let row = |connection: softnet_core::conntrack::Snapshot| {
            let [original, reply] = connection.tuples;
            let v4 = |tuple: Tuple| {
                [tuple.src().0, tuple.dst().0].map(|addr| IpAddr::V4(Ipv4Addr::from_bits(addr)))
            };
            // Nothing of IPv6 is translated.
            let ([src, dst], [reply_src, reply_dst]) = match connection.ends6 {
                Some(ends) => (ends.map(IpAddr::V6), [ends[1], ends[0]].map(IpAddr::V6)),
                None => (v4(original), v4(reply)),
            };
            ConntrackRow {
                protocol: protocol_name(original),
                state: connection.state.name().into(),
                src: SocketAddr::new(src, original.src().1),
                dst: SocketAddr::new(dst, original.dst().1),
                reply_src: SocketAddr::new(reply_src, reply.src().1),
                reply_dst: SocketAddr::new(reply_dst, reply.dst().1),
                snat: connection.flags & SNAT != 0,
                dnat: connection.flags & DNAT != 0,
                age_s: connection.age,
                expires_s: connection.left,
            }
        };
        conntrack.connections(now).take(MAX_ROWS).map(row).collect()
    }

    /// What NAT has.
    pub fn nat(&self) -> NatStats {
        let (Some(nat), Some(config)) = (&self.shared.nat, &self.config.nat) else {
            return NatStats::default();
        };
        let (counts, mappings) = (nat.conntrack().counts(), nat.mapping_counts());
        let address = |dev: u16, address: Ipv4Addr| {
            let in_use = |number| nat.ports_in_use(address, number).unwrap_or(0);
            NatAddressRow {
                dev: self.dev_name(dev),
                address,
                tcp: in_use(protocol::TCP),
                udp: in_use(protocol::UDP),
                icmp: in_use(protocol::ICMP),
            }
        };
        let rules = config.rules(&self.config).source;
        NatStats {
            connections_max: counts.capacity.into(),
            connections: counts.entries,
            created: counts.created,
            expired: counts.expired,
            full: counts.full,
            mappings: mappings.mappings,
            ports_exhausted: mappings.exhausted,
            bytes: nat.bytes() as u64,
            addresses: rules
                .iter()
                .flat_map(|rule| rule.addresses.iter().map(|own| address(rule.dev, *own)))
                .collect(),
        }
    }
}

fn protocol_name(tuple: Tuple) -> String {
    match tuple.protocol() {
        protocol::TCP => "tcp".into(),
        protocol::UDP => "udp".into(),
        protocol::ICMP => "icmp".into(),
        next::ICMPV6 => "icmpv6".into(),
        other => other.to_string(),
    }
}
