//! `[[route]]`: what is refused.

use super::tests::each_is_told;

#[test]
fn one_error_each() {
    each_is_told(&[
        (
            "[[route]]\nto = \"10.5.0.1/16\"\nvia = \"10.0.0.2\"",
            "r.toml:5:6: route.to: 10.5.0.1/16 has host bits set: expected 10.5.0.0/16",
        ),
        (
            "[[route]]\nto = \"default\"\nvia = \"10.0.0.2\"",
            "r.toml:5:6: route.to: 'default' is not a prefix: expected ADDRESS/LENGTH, such as 10.0.0.0/8 or 2001:db8::/32",
        ),
        ("[[route]]\nvia = \"10.0.0.2\"", "r.toml:4:1: route.to: expected the key \"to\", which is missing"),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\nvia = \"10.0.9.2\"",
            "r.toml:6:7: route.via: expected a host on a connected network (10.0.0.0/24), found 10.0.9.2",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\nvia = \"10.0.0.255\"",
            "r.toml:6:7: route.via: expected a host on a connected network (10.0.0.0/24), found 10.0.0.255",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\nvia = \"10.0.0.1\"",
            "r.toml:6:7: route.via: expected another host, but 10.0.0.1 is softnet's own address",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\nvia = \"gw\"",
            "r.toml:6:7: route.via: expected an IP address, such as \"10.0.0.1\", found \"gw\"",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\ndev = \"eth9\"",
            "r.toml:6:7: route.dev: expected the name of a [[device]] (eth1), found \"eth9\"",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"",
            "r.toml:4:1: route: expected one of via, dev, nexthops, blackhole, unreachable and prohibit, found none",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\nvia = \"10.0.0.2\"\nblackhole = true",
            "r.toml:4:1: route: expected one of via, dev, nexthops, blackhole, unreachable and prohibit, found several",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\nblackhole = false",
            "r.toml:6:13: route.blackhole: expected true, or no such key",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\nblackhole = true\n[[route]]\nto = \"10.5.0.0/16\"\nunreachable = true",
            "r.toml:8:6: route.to: there are two routes to 10.5.0.0/16",
        ),
        (
            "[[route]]\nto = \"10.0.0.0/24\"\nblackhole = true",
            "r.toml:5:6: route.to: 10.0.0.0/24 is the connected network of \"eth1\" already",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\nblackhole = true\nmetric = 3\n[[route]]\nto = \"10.5.0.0/16\"\nprohibit = true\nmetric = 3",
            "r.toml:9:6: route.to: there are two routes to 10.5.0.0/16 of metric 3",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\nnexthops = [{ via = \"10.0.0.2\" }]",
            "r.toml:6:12: route.nexthops: expected 2 to 64 next hops, found 1",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\nnexthops = [{ via = \"10.0.0.2\" }, { via = \"10.0.9.2\" }]",
            "r.toml:6:35: route.nexthops: expected a host on a connected network (10.0.0.0/24), found 10.0.9.2",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\nnexthops = [{ via = \"10.0.0.2\" }, { via = \"10.0.0.2\", weight = 2 }]",
            "r.toml:6:12: route.nexthops: expected each next hop once",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\nnexthops = [{ via = \"10.0.0.2\", weight = 257 }, { dev = \"eth1\" }]",
            "r.toml:6:12: route.nexthops: weight: expected a number from 1 to 256, found 257",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\nnexthops = [{ weight = 2 }, { dev = \"eth1\" }]",
            "r.toml:6:13: route.nexthops: expected one of via and dev, found none",
        ),
        (
            "[[route]]\nto = \"10.5.0.0/16\"\nnexthops = \"10.0.0.2\"",
            "r.toml:6:12: route.nexthops: expected a list, such as [{ via = \"10.0.0.1\", weight = 2 }], found \"10.0.0.2\"",
        ),
    ]);
}
