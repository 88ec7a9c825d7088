//! Routes by FPM: from a client that a test makes by hand, and from FRR's zebra.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use softnet::StartError;
use softnet::config::{Config, FollowConfig, FpmConfig};
use softnet::control::show::FpmStats;
use softnet_dev::netlink::Netlink;
use softnet_testkit::fpm::{KERNEL, STATIC, To, delete, delete_object, frame, group, object, route};

use super::daemons::{Frr, has_frr};
use super::follow::{asking, give, ip, reaches};
use super::world::{World, host, host6, interface, until};

/// zebra's default.
const ADDRESS: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 2620);

fn follows(config: Config, hold: u64) -> Config {
    let fpm = FpmConfig::new(ADDRESS.into()).hold(Duration::from_secs(hold));
    let mut follow = FollowConfig::fpm();
    follow.fpm = Some(fpm);
    config.with(|config| config.stack.follow = Some(follow))
}

/// Prefix and next hops of the routes from `source`.
fn routes(world: &World, source: &str) -> BTreeSet<(String, String)> {
    let rows = world.view().routes().into_iter().filter(|row| row.source == source);
    rows.map(|row| {
        let gateway = |via: Option<IpAddr>| via.map_or_else(|| "link".into(), |via| via.to_string());
        let mut hops: Vec<String> = row.hops.iter().map(|hop| gateway(hop.via)).collect();
        match (row.dev, row.kind) {
            (Some(_), _) => hops.push(gateway(row.via)),
            (None, kind) if hops.is_empty() => hops.push(kind),
            _ => hops.sort(),
        }
        (row.prefix, hops.join(" "))
    })
    .collect()
}

fn stats(world: &World) -> FpmStats {
    world.view().stats().follow.unwrap().fpm.unwrap()
}

fn until_routes(world: &World, expected: &[(&str, String)]) {
    let expected: BTreeSet<_> = expected.iter().map(|(to, by)| ((*to).to_owned(), by.clone())).collect();
    let mut last = BTreeSet::new();
    until(&format!("{expected:?}"), || {
        last = routes(world, "fpm");
        last == expected
    });
}

fn index(world: &World, i: usize) -> u32 {
    world.middle.run(|| Netlink::new().unwrap().link(&interface(i)).unwrap().unwrap().index).unwrap()
}

fn connect(world: &World) -> TcpStream {
    world.middle.run(|| TcpStream::connect(ADDRESS).unwrap()).unwrap()
}

fn net(n: u8) -> (IpAddr, u8) {
    ([198, 51, n, 0].into(), 24)
}

/// A client by hand: routes of all kinds come, change and go; they stay when it ends, until another
/// has told all of its own.
#[test]
fn routes_are_those_that_are_told() {
    let Some(mut world) = World::dual(3) else { return };
    ip(&world.middle, "link set lo up");
    let given = [1, 2].map(|i| give(&world, i, "198.51.1.1/32"));
    world.start_with(follows(world.config_dual(), 2));
    // What the kernel itself has, and what is to come, is no business of zebra's.
    ip(&world.middle, &format!("address add 203.0.113.1/24 dev {}", interface(1)));
    ip(&world.middle, &format!("route add 192.0.2.0/24 via {}", host(1)));
    until("the network of an address", || {
        routes(&world, "kernel").contains(&("203.0.113.0/24".into(), "link".into()))
    });

    let mut zebra = connect(&world);
    let (one, two) = (index(&world, 1), index(&world, 2));
    let mut tell = |messages: &[Vec<u8>]| zebra.write_all(&frame(messages)).unwrap();
    let via = |i: usize| To::Via(host(i).into(), [0, one, two][i]);
    tell(&[route(net(1), STATIC, via(1)), route(net(2), STATIC, To::Blackhole)]);
    tell(&[route(("2001:db8:7::".parse().unwrap(), 48), STATIC, To::Via(host6(1).into(), one))]);
    tell(&[route(("10.1.0.0".parse().unwrap(), 24), KERNEL, To::Link(one))]);
    let (by_one, by_two) = (host(1).to_string(), host(2).to_string());
    let (black, six) = ("blackhole".to_owned(), ("2001:db8:7::/48", host6(1).to_string()));
    until_routes(&world, &[("198.51.1.0/24", by_one.clone()), ("198.51.2.0/24", black.clone()), six.clone()]);
    until("an echo", || reaches(&world, 0, "198.51.1.1"));
    assert!(stats(&world).connected);

    // Replaced, and by a group of two, of which one changes.
    let (asked, answered) = asking(&world, "198.51.1.1", || {
        tell(&[delete(net(1)), route(net(1), STATIC, via(2))]);
        until_routes(&world, &[("198.51.1.0/24", by_two.clone()), ("198.51.2.0/24", black), six.clone()]);
        tell(&[object(1, host(1).into(), one), object(2, host(2).into(), two), group(9, &[1, 2])]);
        tell(&[route(net(1), STATIC, To::Object(9)), delete(net(2))]);
        let both = format!("{by_one} {by_two}");
        until_routes(&world, &[("198.51.1.0/24", both), six.clone()]);
        tell(&[group(9, &[1]), delete_object(2)]);
        until_routes(&world, &[("198.51.1.0/24", by_one.clone()), six.clone()]);
    });
    assert_eq!(asked, answered, "{:?}", world.view().drops());

    // An interface that softnet has not taken is counted, and its routes are there once it has.
    let other = || world.view().stats().follow.unwrap().other_interface;
    tell(&[route(net(3), STATIC, To::Via(host(2).into(), 999))]);
    until("one more", || other() == 1);
    tell(&[delete(net(3))]);
    until("one less", || other() == 0);

    // It ends, and its routes stay; another says nothing of one of them.
    drop(zebra);
    until("the end", || !stats(&world).connected);
    assert!(reaches(&world, 0, "198.51.1.1"));
    let mut zebra = connect(&world);
    zebra.write_all(&frame(&[route(net(1), STATIC, via(1))])).unwrap();
    until_routes(&world, &[("198.51.1.0/24", by_one.clone())]);
    assert_eq!(stats(&world).stale, 0);

    // Another connection is the one that counts from then on; what is no FPM is closed.
    let mut second = connect(&world);
    second.write_all(&frame(&[route(net(1), STATIC, via(2))])).unwrap();
    until_routes(&world, &[("198.51.1.0/24", by_two.clone())]);
    assert!(matches!(zebra.read(&mut [0; 1]), Ok(0) | Err(_)));
    second.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    until("it is closed", || stats(&world).malformed == 1);
    assert!(matches!(second.read(&mut [0; 1]), Ok(0) | Err(_)));
    until_routes(&world, &[("198.51.1.0/24", by_two)]);
    drop(given);
    world.end();
}

/// Routes by an interface that comes later are in effect then, without being told again.
#[test]
fn routes_by_an_interface_that_is_plugged_in_later_are_used() {
    let Some(mut world) = World::new(2) else { return };
    ip(&world.middle, "link set lo up");
    world.start_with(follows(world.config(), 60));
    world.unplug(1);
    let mut zebra = connect(&world);
    world.plug(1);
    zebra.write_all(&frame(&[route(net(1), STATIC, To::Via(host(1).into(), index(&world, 1)))])).unwrap();
    until_routes(&world, &[("198.51.1.0/24", host(1).to_string())]);
    world.end();
}

/// zebra is connected to one process: another is not to take its place.
#[test]
fn a_take_over_is_refused() {
    let config = follows(Config::default(), 60).with(|config| {
        config.devices.push(softnet::config::DeviceConfig::new("s0").with(|device| {
            device.addresses = vec!["10.0.0.1/24".parse().unwrap()];
        }));
    });
    let error = softnet::Stack::builder().config(config).take_over().start().unwrap_err();
    assert!(matches!(error, StartError::TakeOver(_)), "{error}");
    assert!(error.to_string().contains("stack.follow is \"fpm\""), "{error}");
}

/// The module of zebra's.
const MODULE: &str = "/usr/lib/x86_64-linux-gnu/frr/modules/dplane_fpm_nl.so";

/// FRR, if it is there: zebra tells what staticd has, 500 routes, while packets pass by one that
/// stays, also when zebra is killed and comes again.
#[test]
fn frr_tells_its_routes_by_fpm() {
    let Some(mut world) = World::dual(3) else { return };
    if !has_frr() {
        return;
    }
    if !Path::new(MODULE).exists() {
        eprintln!("skipped: FRR's module dplane_fpm_nl is not installed");
        return;
    }
    const ROUTES: u32 = 500;
    ip(&world.middle, "link set lo up");
    let given = [1, 2].map(|i| give(&world, i, "198.51.1.1/32"));
    world.start_with(follows(world.config_dual(), 8));
    let directory = tempfile::tempdir().unwrap();
    let mut table = format!("ip route 198.51.1.0/24 {}\n", host(1));
    writeln!(table, "ipv6 route 2001:db8:7::/48 {}", host6(1)).unwrap();
    for n in 0..ROUTES {
        writeln!(table, "ip route {}/24 {}", Ipv4Addr::from((20 << 24) + (n << 8)), host(1)).unwrap();
    }
    let start = |world: &World, name: &str, table: &str| {
        let conf = "fpm address 127.0.0.1 port 2620\n";
        let options = ["-M", MODULE];
        Frr::start_with(&world.middle, directory.path().join(name), ("staticd", table), &options, conf)
    };
    let first = start(&world, "first", &table);
    let all = ROUTES as usize + 2;
    until("all routes", || routes(&world, "fpm").len() == all);
    until("an echo", || reaches(&world, 0, "198.51.1.1"));

    // Replaced by two next hops, one, and none.
    let (one, two) = (host(1).to_string(), host(2).to_string());
    let is = |to: &str, by: &str| routes(&world, "fpm").contains(&(to.to_owned(), by.to_owned()));
    first.configure(&[format!("ip route 198.51.1.0/24 {two}")]);
    until("both", || is("198.51.1.0/24", &format!("{one} {two}")));
    first.configure(&[format!("no ip route 198.51.1.0/24 {one}")]);
    until("the other", || is("198.51.1.0/24", &two));
    first.configure(&["no ip route 20.0.0.0/24 10.1.0.2".into(), "ip route 198.51.2.0/24 blackhole".into()]);
    until("one goes, one comes", || is("198.51.2.0/24", "blackhole") && !is("20.0.0.0/24", &one));
    until("an echo by the other", || reaches(&world, 0, "198.51.1.1"));

    let (asked, answered) = asking(&world, "198.51.1.1", || {
        drop(first);
        until("the end", || !stats(&world).connected);
        assert_eq!(routes(&world, "fpm").len(), all);
        // A zebra that was killed finds its routes in the kernel, and may tell them as its own.
        ip(&world.middle, "nexthop flush");
        ip(&world.middle, "route del blackhole 198.51.2.0/24");
        // Without the last hundred, and by the first host.
        let table: Vec<&str> = table.lines().take(all - 100).collect();
        let second = start(&world, "second", &table.join("\n"));
        until("what is not told again goes", || routes(&world, "fpm").len() == all - 100);
        until("the route of now", || is("198.51.1.0/24", &one));
        assert!(is("20.0.0.0/24", &one) && !is("198.51.2.0/24", "blackhole"));
        drop(second);
    });
    assert!(asked > 100, "{asked}");
    assert_eq!(asked, answered, "{:?}", world.view().drops());
    let stats = stats(&world);
    assert_eq!((stats.malformed, stats.connections, stats.stale), (0, 2, 0));
    drop(given);
    world.end();
}
