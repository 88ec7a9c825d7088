//! What a configuration may say of IPv6.

use std::net::{IpAddr, Ipv6Addr};

use super::{Config, RouteTarget};

const CPUS: [u32; 1] = [0];
const DEVICE: &str = "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\", \"2001:db8::1/64\"]\n";

fn addr(s: &str) -> Ipv6Addr {
    s.parse().unwrap()
}

#[test]
fn addresses_routes_and_neighbours_of_both_families() {
    let text = DEVICE.to_owned()
        + r#"
[[device]]
name = "eth2"
addresses = ["fe80::1/64", "2001:db8:1::/127"]
[[device]]
name = "eth3"
addresses = ["10.0.3.1/24"]
[[route]]
to = "::/0"
via = "2001:db8::fe"
[[route]]
to = "fd00::/8"
via = "fe80::9"
dev = "eth2"
[[neighbour]]
dev = "eth2"
address = "fe80::9"
mac = "02:00:00:00:00:09"
"#;
    let config = Config::parse(&text, "r.toml", &CPUS).unwrap_or_else(|errors| panic!("{errors}"));
    let targets: Vec<_> = config.routes.iter().map(|route| &route.target).collect();
    let expected = [
        RouteTarget::Via(addr("2001:db8::fe").into()),
        RouteTarget::ViaLinkLocal(addr("fe80::9"), "eth2".into()),
    ];
    assert_eq!(targets, expected.iter().collect::<Vec<_>>());
    assert_eq!(config.neighbours[0].address, IpAddr::V6(addr("fe80::9")));
    // Each device that speaks IPv6 has the link-local address that follows from its MAC address.
    let mac = [2, 0, 0, 0, 0, 7];
    let shown = |i: usize| -> Vec<String> {
        let all = config.devices[i].addresses6(mac).into_iter();
        all.map(|(addr, net)| format!("{addr} in {net}")).collect()
    };
    assert_eq!(shown(0), ["2001:db8::1 in 2001:db8::/64", "fe80::ff:fe00:7 in fe80::/64"]);
    assert_eq!(shown(1)[..2], ["fe80::1 in fe80::/64", "2001:db8:1:: in 2001:db8:1::/127"]);
    assert_eq!((shown(1).len(), shown(2).len(), config.devices[2].addresses4().len()), (3, 0, 1));
}

#[test]
fn one_error_each() {
    for (address, why) in [
        ("::/64", "is the unspecified address"),
        ("::1/128", "is the loopback address"),
        ("ff02::1/64", "is a multicast address"),
        ("::ffff:10.0.0.1/120", "is an IPv4 address in disguise"),
        ("fe80:1::1/64", "has more than zeros behind fe80, where a link-local address has none"),
        ("2001:db8::/64", "is the address of any router of its network (subnet-router anycast)"),
    ] {
        let text = format!("[[device]]\nname = \"eth1\"\naddresses = [\"{address}\"]");
        let shown = Config::parse(&text, "r.toml", &CPUS).expect_err(address).to_string();
        let parsed: super::InterfaceAddr = address.parse().unwrap();
        let expected =
            format!("r.toml:3:14: device.addresses: expected the address of a host, but {parsed} {why}");
        assert_eq!(shown.lines().next(), Some(&expected[..]));
    }
    let more = "[[device]]\nname = \"eth2\"\naddresses = [\"10.0.2.1/24\"]\n";
    for (text, expected) in [
        (
            "[[route]]\nto = \"::/0\"\nvia = \"fe80::9\"",
            "route.via: expected dev = \"…\" beside it: fe80::9 may be on any link",
        ),
        (
            "[[route]]\nto = \"::/0\"\nvia = \"fe80:1::9\"\ndev = \"eth1\"",
            "route.via: expected the address of a host, but fe80:1::9 has more than zeros behind fe80, where a \
             link-local address has none",
        ),
        (
            "[[route]]\nto = \"::/0\"\nvia = \"10.0.0.9\"",
            "route.via: expected a gateway of the family of ::/0, found 10.0.0.9",
        ),
        (
            "[[route]]\nto = \"10.9.0.0/16\"\nvia = \"fe80::9\"\ndev = \"eth1\"",
            "route.via: expected a gateway of the family of 10.9.0.0/16, found fe80::9",
        ),
        (
            "[[route]]\nto = \"::/0\"\nvia = \"2001:db8::9\"\ndev = \"eth1\"",
            "route: expected one of via, dev, nexthops, blackhole, unreachable and prohibit, found several",
        ),
        (
            "[[route]]\nto = \"::/0\"\nvia = \"2001:db8:1::9\"",
            "route.via: expected a host on a connected network (2001:db8::/64), found 2001:db8:1::9",
        ),
        (
            "[[route]]\nto = \"::/0\"\ndev = \"eth2\"",
            "route.dev: expected a device with an IPv6 address, but \"eth2\" has none",
        ),
        (
            "[[route]]\nto = \"2001:db8::/129\"\nblackhole = true",
            "route.to: prefix length 129: expected 0 to 128",
        ),
        (
            "[[neighbour]]\ndev = \"eth2\"\naddress = \"fe80::9\"\nmac = \"02:00:00:00:00:09\"",
            "neighbour.address: expected a host on eth2 (10.0.2.0/24), found fe80::9",
        ),
        (
            "[[neighbour]]\ndev = \"eth1\"\naddress = \"fe80:1::9\"\nmac = \"02:00:00:00:00:09\"",
            "neighbour.address: expected a host on eth1 (10.0.0.0/24, 2001:db8::/64), found fe80:1::9",
        ),
        (
            "[[device]]\nname = \"eth3\"\naddresses = [\"2001:db8::3/65\"]",
            "device.addresses: 2001:db8::3/65 overlaps 2001:db8::1/64 of \"eth1\"; expected every network on one device only",
        ),
    ] {
        let shown =
            Config::parse(&format!("{DEVICE}{more}{text}"), "r.toml", &CPUS).expect_err(text).to_string();
        let first = shown.lines().next().unwrap_or_default();
        assert_eq!(first.splitn(4, ':').nth(3).map(str::trim_start), Some(expected), "{shown}");
        assert_eq!(shown.lines().count(), 3, "one problem, its line and its caret:\n{shown}");
    }
}
