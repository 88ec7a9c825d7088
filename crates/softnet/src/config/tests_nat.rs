//! `[nat]`: what is read, and what is refused.

use std::net::Ipv4Addr;

use softnet_core::nat::{PortForward, PrefixNat, SourceNat};

use super::*;

const DEVICES: &str = r#"[[device]]
name = "lan"
addresses = ["192.168.1.1/24"]
[[device]]
name = "wan"
addresses = ["2001:db8::1/64", "203.0.113.5/24"]
[[device]]
name = "six"
addresses = ["2001:db8:1::1/64"]
"#;

fn parse(text: &str) -> Result<Config, ConfigErrors> {
    Config::parse(&format!("{DEVICES}{text}"), "r.toml", &[0])
}

#[test]
fn all_keys_are_read() {
    let text = r#"[stack]
frames = 65536
[nat]
connections = 1000
filtering = "endpoint-independent"
connlimit = 500
pool6 = "2001:db8:64::/96"
udp_timeout = 130
udp_timeout_stream = 310
icmp_timeout = 70
tcp_timeout_established = 8000
tcp_timeout_transitory = 250
[[nat.source]]
dev = "wan"
[[nat.source]]
dev = "lan"
addresses = ["192.0.2.1", "192.0.2.2"]
[[nat.forward]]
dev = "wan"
protocol = "tcp"
port = 8080
to = "192.168.1.10:80"
[[nat.forward]]
dev = "wan"
address = "203.0.113.6"
protocol = "udp"
port = 53
to = "192.168.1.11:53"
[[nat.one_to_one]]
dev = "wan"
external = "203.0.113.7"
internal = "192.168.1.7"
[[nat.prefix]]
dev = "six"
internal = "fd00:1::/48"
external = "2001:db8:e::/48"
"#;
    let config = parse(text).unwrap();
    let nat = config.nat.as_ref().unwrap();
    assert_eq!((nat.connections, nat.filtering), (1000, Filtering::EndpointIndependent));
    assert_eq!((nat.connlimit, NatConfig::default().connlimit), (Some(500), None));
    let timeouts =
        Timeouts { udp: 130, udp_stream: 310, icmp: 70, tcp_established: 8000, tcp_transitory: 250 };
    assert_eq!(nat.timeouts, timeouts);
    let rules = nat.rules(&config);
    let own = Ipv4Addr::new(203, 0, 113, 5);
    let pool = vec![Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
    let source = [SourceNat::new(1, vec![own]), SourceNat::new(0, pool)];
    assert_eq!((rules.source, rules.connlimit), (source.into(), Some(500)));
    let forward = |protocol, external: &str, internal: &str| PortForward {
        protocol,
        external: external.parse().unwrap(),
        internal: internal.parse().unwrap(),
    };
    let expected =
        [forward(6, "203.0.113.5:8080", "192.168.1.10:80"), forward(17, "203.0.113.6:53", "192.168.1.11:53")];
    assert_eq!(rules.forward, expected);
    let prefix = |text: &str| text.parse().unwrap();
    let expected = PrefixNat { dev: 2, internal: prefix("fd00:1::/48"), external: prefix("2001:db8:e::/48") };
    assert_eq!((rules.prefix, rules.pool6), (vec![expected], Some(prefix("2001:db8:64::/96"))));
    assert_eq!((rules.one_to_one.len(), rules.one_to_one[0].dev), (1, 1));
    assert_eq!(parse("[stack]\nframes = 65536\n[nat]").unwrap().nat, Some(NatConfig::default()));
    assert_eq!(parse("[stack]\nframes = 65536").unwrap().nat, None);
}

#[test]
fn hosts_have_blocks_of_ports() {
    let text = "[stack]\nframes = 65536\n[[nat.source]]\ndev = \"wan\"\naddresses = [\"192.0.2.1\"]\ndeterministic = \"100.64.0.0/24\"\n";
    let config = parse(text).unwrap();
    let rules = config.nat.as_ref().unwrap().rules(&config);
    assert_eq!(rules.source[0].deterministic.map(|blocks| blocks.ports()), Some(192));
}

#[test]
fn what_is_wrong_is_told_where_it_is() {
    let rule = |kind: &str, keys: &str| format!("[stack]\nframes = 65536\n[[nat.{kind}]]\n{keys}\n");
    let forward = "dev = \"wan\"\nprotocol = \"tcp\"\nport = 80\nto = \"192.168.1.9:80\"\n";
    for (text, expected) in [
        (
            "[stack]\nframes = 65536\n[nat]\nconnections = 0".into(),
            "r.toml:13:15: nat.connections: expected a number from 1 to 4194304, found 0",
        ),
        (
            "[stack]\nframes = 65536\n[nat]\nconnlimit = 0".into(),
            "r.toml:13:13: nat.connlimit: expected a number from 1 to 4194304, found 0",
        ),
        (
            "[stack]\nframes = 65536\n[nat]\nmasq = true".into(),
            "r.toml:13:1: nat: unknown key \"masq\"; expected one of connections, filtering, connlimit, pool6, udp_timeout, udp_timeout_stream, icmp_timeout, tcp_timeout_established, tcp_timeout_transitory, source, forward, one_to_one, prefix",
        ),
        (
            "[stack]\nframes = 65536\n[nat]\nsource = 1".into(),
            "r.toml:13:10: nat.source: expected a list of tables: write [[nat.source]]",
        ),
        (
            rule("source", "dev = \"wlan\""),
            "r.toml:13:7: nat.source.dev: expected the name of a [[device]] (lan, wan, six), found \"wlan\"",
        ),
        (
            rule("source", "dev = \"six\""),
            "r.toml:13:7: nat.source.dev: expected a device with an IPv4 address, but \"six\" has none",
        ),
        (
            rule("source", "dev = \"wan\"\naddresses = [\"::1\"]"),
            "r.toml:14:14: nat.source.addresses: expected an IPv4 address, such as \"192.0.2.1\", found \"::1\"",
        ),
        (
            rule("source", "dev = \"wan\"\naddresses = [\"224.0.0.1\"]"),
            "r.toml:14:14: nat.source.addresses: expected the address of a host, but 224.0.0.1 is a multicast address",
        ),
        (
            rule("source", "dev = \"wan\"\n[[nat.source]]\ndev = \"wan\"\naddresses = [\"192.0.2.1\"]"),
            "r.toml:15:7: nat.source.dev: \"wan\" has a [[nat.source]] already; expected one for each device",
        ),
        (
            rule("source", "dev = \"wan\"\ndeterministic = \"100.64.0.0/24\""),
            "r.toml:14:17: nat.source.deterministic: expected `addresses` of its own with it: those of a device serve softnet, too",
        ),
        (
            rule("source", "dev = \"wan\"\naddresses = [\"192.0.2.1\"]\ndeterministic = \"100.64.0.0/22\""),
            "r.toml:15:17: nat.source.deterministic: expected 64 ports or more for each host: 100.64.0.0/22 needs 2 addresses, found 1",
        ),
        (
            rule("source", "dev = \"wan\"\naddresses = [\"203.0.113.5\"]\ndeterministic = \"100.64.0.0/24\""),
            "r.toml:15:17: nat.source.deterministic: expected other addresses than those of wan: softnet needs ports of 203.0.113.5",
        ),
        (
            rule("source", "dev = \"wan\"\naddresses = [\"192.168.1.1\"]\ndeterministic = \"100.64.0.0/24\""),
            "r.toml:15:17: nat.source.deterministic: expected other addresses than those of lan: softnet needs ports of 192.168.1.1",
        ),
        (
            rule(
                "source",
                "dev = \"wan\"\naddresses = [\"192.0.2.1\"]\ndeterministic = \"100.64.0.0/24\"\n\
                 [[nat.one_to_one]]\ndev = \"wan\"\nexternal = \"192.0.2.1\"\ninternal = \"10.0.0.7\"",
            ),
            "r.toml:15:17: nat.source.deterministic: expected other addresses than 192.0.2.1, all ports of which a [[nat.one_to_one]] has",
        ),
        (
            rule("source", "dev = \"wan\"\naddresses = [\"192.0.2.1\"]\ndeterministic = \"fd00::/64\""),
            "r.toml:15:17: nat.source.deterministic: expected a prefix of IPv4, such as \"100.64.0.0/22\", found \"fd00::/64\"",
        ),
        (
            rule("forward", &forward.replace("80\nto", "0\nto")),
            "r.toml:15:8: nat.forward.port: expected a number from 1 to 65535, found 0",
        ),
        (
            rule("forward", &forward.replace("tcp", "sctp")),
            "r.toml:14:12: nat.forward.protocol: expected \"tcp\" or \"udp\", found \"sctp\"",
        ),
        (
            rule("forward", &forward.replace(":80", "")),
            "r.toml:16:6: nat.forward.to: expected a host and a port, such as \"192.168.1.10:80\", found \"192.168.1.9\"",
        ),
        (
            rule("forward", &format!("{forward}[[nat.forward]]\n{forward}")),
            "r.toml:20:8: nat.forward.port: 203.0.113.5 port 80 is forwarded to 192.168.1.9:80 already",
        ),
        (
            "[stack]\nframes = 65536\n[nat]\npool6 = \"64:ff9b::/95\"".into(),
            "r.toml:13:9: nat.pool6: expected a prefix of 32, 40, 48, 56, 64, 96 bits whose bits 64 to 71 are zeros, found 64:ff9b::/95",
        ),
        (
            "[stack]\nframes = 65536\n[nat]\npool6 = \"64:ff9b::/96\"".into(),
            "r.toml:13:9: nat.pool6: expected a [[nat.source]] beside it: hosts of IPv6 have its address in IPv4",
        ),
        (
            "[stack]\nframes = 65536\n[nat]\npool6 = \"10.0.0.0/8\"".into(),
            "r.toml:13:9: nat.pool6: expected a prefix of IPv6, such as \"2001:db8:64::/96\", found \"10.0.0.0/8\"",
        ),
        (
            rule("prefix", "dev = \"six\"\ninternal = \"fd00::/48\"\nexternal = \"2001:db8::/56\""),
            "r.toml:15:12: nat.prefix.external: expected a prefix as long as fd00::/48, found 2001:db8::/56",
        ),
        (
            rule("prefix", "dev = \"six\"\ninternal = \"fd00::1/128\"\nexternal = \"2001:db8::1/128\""),
            "r.toml:14:12: nat.prefix.internal: expected a prefix of at most 112 bits, found fd00::1/128",
        ),
        (
            rule("one_to_one", "dev = \"wan\"\nexternal = \"192.0.2.9\""),
            "r.toml:12:1: nat.one_to_one.internal: expected the key \"internal\", which is missing",
        ),
    ] {
        let shown = parse(&text).unwrap_err().to_string();
        assert_eq!(shown.lines().next(), Some(expected), "{shown}");
    }
}
