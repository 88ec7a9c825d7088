//! What is told of connections and of NAT.

use std::net::{Ipv4Addr, SocketAddr};

use softnet_core::conntrack::Tuple;
use softnet_core::conntrack::entry::{DNAT, SNAT};
use softnet_core::ip::IpPrefix;
use softnet_core::ip::v4::header::protocol;
use softnet_core::ip::v6::header::next;
use softnet_core::nat::{embedded, seconds};

use super::Introspect;
use crate::control::show::{ConntrackRow, NatAddressRow, NatStats};

/// Connections that are told at a time: an answer must not take as much memory as the table.
const MAX_ROWS: usize = 65_536;

impl Introspect {
    /// The connections, the first 65,536 of them.
    pub fn connections(&self) -> Vec<ConntrackRow> {
        let now = seconds(self.shared.clock.now());
        let Some(conntrack) = &self.shared.conntrack else { return Vec::new() };
        let nat = self.shared.nat.as_ref();
        // A host of IPv6 that an address stands for is shown by its own.
        let host6 = |addr: u32| nat.and_then(|nat| nat.host6(addr));
        let host = |end: (u32, u16)| match host6(end.0) {
            Some(addr) => SocketAddr::new(addr.into(), end.1),
            None => socket(end),
        };
        let is_v6 = |tuple: Tuple| host6(tuple.src().0).is_some();
        let config = self.config.load();
        let pool6 = config.nat.as_ref().and_then(|nat| nat.pool6).and_then(IpPrefix::of);
        let under = |(addr, port): (u32, u16)| match pool6.and_then(|pool| embedded(pool, addr)) {
            Some(addr) => SocketAddr::new(addr.into(), port),
            None => socket((addr, port)),
        };
        let row = |connection: softnet_core::conntrack::Snapshot| {
            let [original, reply] = connection.tuples;
            let ends = match connection.ends6 {
                // Untranslated: the reply is the original, turned round.
                Some([from, to]) => {
                    let [from, to] = [(from, original.src().1), (to, original.dst().1)].map(SocketAddr::from);
                    [from, to, to, from]
                }
                None => [
                    host(original.src()),
                    if is_v6(original) { under(original.dst()) } else { host(original.dst()) },
                    if is_v6(reply.inverse()) { under(reply.src()) } else { host(reply.src()) },
                    host(reply.dst()),
                ],
            };
            let [src, dst, reply_src, reply_dst] = ends;
            ConntrackRow {
                protocol: protocol_name(original),
                state: connection.state.name().into(),
                src,
                dst,
                reply_src,
                reply_dst,
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
        let all = self.config.load();
        let (Some(nat), Some(config)) = (&self.shared.nat, &all.nat) else {
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
        let rules = config.rules(&all).source;
        NatStats {
            connections_max: counts.capacity.into(),
            connections: counts.entries,
            created: counts.created,
            expired: counts.expired,
            ended: counts.ended,
            early_drop: counts.early_drop,
            full: counts.full,
            connlimit: mappings.connlimit,
            hosts: mappings.hosts.into(),
            most_of_a_host: mappings.most.into(),
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

fn socket((addr, port): (u32, u16)) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from_bits(addr).into(), port)
}
