//! softnet follows the routes of the middle's kernel: what is there at the end is what `ip` says,
//! and packets go by it.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use softnet::config::{Config, FollowConfig, RouteConfig, RouteTarget};
use softnet::driver::Xdp;
use softnet_dev::netns::NetNs;

use super::hosts::ask;
use super::world::{World, host, host6, interface, kernel, softnet, until};

/// Runs `ip` with these arguments in `ns`.
pub(crate) fn ip(ns: &NetNs, args: &str) -> String {
    let run = || Command::new("ip").args(args.split(' ')).output().unwrap();
    let output = ns.run(run).unwrap();
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The same for many lines at once.
fn batch(ns: &NetNs, lines: impl Iterator<Item = String> + Send) {
    let run = || {
        let mut child =
            Command::new("ip").args(["-force", "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        lines.for_each(|line| writeln!(stdin, "{line}").unwrap());
        drop(stdin);
        assert!(child.wait().unwrap().success());
    };
    ns.run(run).unwrap();
}

/// A route in words: prefix, metric, and what it leads to.
type Words = (String, u64, String);

fn words(prefix: String, metric: u64, mut hops: Vec<String>) -> Words {
    hops.sort();
    (prefix, metric, hops.join(" "))
}

/// The routes of the kernel's main table that lead to a device or nowhere.
fn of_the_kernel(ns: &NetNs) -> BTreeSet<Words> {
    let mut all = BTreeSet::new();
    for family in ["-4", "-6"] {
        let rows: Value =
            serde_json::from_str(&ip(ns, &format!("{family} -j -d route show table main"))).unwrap();
        for row in rows.as_array().unwrap() {
            let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
            let any = if family == "-4" { "0.0.0.0/0" } else { "::/0" };
            let prefix = match text(row, "dst") {
                all if all == "default" => any.into(),
                net if net.contains('/') => net,
                host if family == "-4" => format!("{host}/32"),
                host => format!("{host}/128"),
            };
            if prefix.starts_with("fe80:") {
                continue;
            }
            let kind = text(row, "type");
            let hop = |row: &Value| {
                let weight = row["weight"].as_u64().unwrap_or(1);
                format!("{}@{}*{weight}", text(row, "gateway"), text(row, "dev"))
            };
            let dead = |row: &Value| row["flags"].as_array().is_some_and(|all| all.contains(&"dead".into()));
            let hops = match (kind.as_str(), row["nexthops"].as_array()) {
                ("" | "unicast", Some(hops)) => hops.iter().filter(|hop| !dead(hop)).map(hop).collect(),
                ("" | "unicast", None) => vec![hop(row)],
                (kind, _) => vec![kind.to_owned()],
            };
            all.insert(words(prefix, row["metric"].as_u64().unwrap_or(0), hops));
        }
    }
    all
}

/// The kernel's routes as softnet has them.
pub(crate) fn followed(world: &World) -> BTreeSet<Words> {
    let rows = world.view().routes().into_iter().filter(|row| row.source == "kernel");
    rows.map(|row| {
        let gateway = |via: Option<IpAddr>| via.map_or_else(String::new, |via| via.to_string());
        let mut hops: Vec<_> =
            row.hops.iter().map(|hop| format!("{}@{}*{}", gateway(hop.via), hop.dev, hop.weight)).collect();
        if let Some(dev) = &row.dev {
            hops.push(format!("{}@{dev}*1", gateway(row.via)));
        }
        if hops.is_empty() {
            hops.push(row.kind);
        }
        words(row.prefix, row.metric.into(), hops)
    })
    .collect()
}

/// Waits until both say the same.
pub(crate) fn assert_equal(world: &World) {
    let mut last = (BTreeSet::new(), BTreeSet::new());
    let mut equal = || {
        last = (of_the_kernel(&world.middle), followed(world));
        last.0 == last.1
    };
    let give_up = std::time::Instant::now() + Duration::from_secs(60);
    while !equal() {
        if std::time::Instant::now() > give_up {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let differ: Vec<_> = last.0.symmetric_difference(&last.1).take(10).collect();
    assert!(differ.is_empty(), "{differ:?} of {} and {}", last.0.len(), last.1.len());
}

pub(crate) fn follows(config: Config) -> Config {
    config.with(|config| config.stack.follow = Some(FollowConfig::default()))
}

/// An address more of a host, from which it sends UDP datagrams back.
pub(crate) struct Given {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Given {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Gives host `i` another address.
pub(crate) fn give(world: &World, i: usize, address: &str) -> Given {
    ip(&world.hosts[i], "link set lo up");
    ip(
        &world.hosts[i],
        &format!("addr add {address} dev lo{}", if address.contains(':') { " nodad" } else { "" }),
    );
    let own: IpAddr = address.split('/').next().unwrap().parse().unwrap();
    let socket = world.hosts[i].run(|| UdpSocket::bind((own, 7)).unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while !stopped.load(Ordering::Relaxed) {
            // What cannot be received or answered now is asked again.
            if let Ok((n, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..n], from);
            }
        }
    });
    Given { stop, thread: Some(thread) }
}

pub(crate) fn reaches(world: &World, from: usize, to: &str) -> bool {
    let to: IpAddr = to.parse().unwrap();
    world.hosts[from].run(|| ask(to, b"which way?")).unwrap()
}

/// Host 0 asks `to` again and again while `meanwhile` runs: how often, and how many answers came.
pub(crate) fn asking(world: &World, to: &str, meanwhile: impl FnOnce()) -> (u32, u32) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let socket = world.hosts[0].run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
            socket.connect((to, 7)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let (mut asked, mut answered) = (0u32, 0);
            while !done.load(Ordering::Relaxed) {
                socket.send(&asked.to_ne_bytes()).unwrap();
                let mut buffer = [0; 8];
                // What is lost is not asked for again.
                answered +=
                    u32::from(socket.recv(&mut buffer).is_ok_and(|n| buffer[..n] == asked.to_ne_bytes()));
                asked += 1;
            }
            (asked, answered)
        });
        let meanwhile = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        // The traffic ends with a test that failed, too.
        done.store(true, Ordering::Relaxed);
        let counts = traffic.join().unwrap();
        meanwhile.unwrap_or_else(|cause| std::panic::resume_unwind(cause));
        counts
    })
}

/// Routes, in every way that they can be said, of both families; some of them from before softnet started.
#[test]
fn routes_are_the_kernels() {
    let Some(mut world) = World::dual(3) else { return };
    let all = [(1, "192.0.2.1/32"), (2, "192.0.2.1/32"), (1, "2001:db8:7::1/128"), (2, "198.51.100.1/32")];
    let given = all.map(|(i, address)| give(&world, i, address));
    let via = |i: usize| format!("via {} dev {}", host(i), interface(i));
    ip(&world.middle, &format!("route add 192.0.2.0/24 {}", via(1)));
    world.start_with(follows(world.config_dual()));
    let until_reached = |to: &str| until(&format!("an echo of {to}"), || reaches(&world, 0, to));
    until_reached("192.0.2.1");
    assert_equal(&world);

    ip(&world.middle, &format!("route add 2001:db8:7::/48 via {} dev {}", host6(1), interface(1)));
    ip(&world.middle, &format!("route replace 198.51.100.0/24 {}", via(2)));
    ["2001:db8:7::1", "198.51.100.1"].into_iter().for_each(until_reached);
    assert_equal(&world);

    // A lower metric takes over, and gives back.
    ip(&world.middle, "route add blackhole 198.51.100.0/24 metric 5");
    ip(&world.middle, &format!("route replace 198.51.100.0/24 {} metric 10", via(2)));
    ip(&world.middle, &format!("route del 198.51.100.0/24 {} metric 0", via(2)));
    assert_equal(&world);
    until("what is for the black hole goes there", || !reaches(&world, 0, "198.51.100.1"));
    assert!(world.view().drops().iter().any(|row| row.reason == "ip_blackhole"));
    ip(&world.middle, "route del blackhole 198.51.100.0/24 metric 5");
    until_reached("198.51.100.1");
    assert_equal(&world);

    // Several next hops, whole or in part, and what has none.
    let middle = &world.middle;
    let both = format!("nexthop {} weight 1 nexthop {} weight 3", via(1), via(2));
    ip(middle, &format!("route replace 192.0.2.0/24 {both}"));
    let via6 = |i: usize| format!("nexthop via {} dev {}", host6(i), interface(i));
    ip(middle, &format!("-6 route add 2001:db8:8::/48 {} {}", via6(1), via6(2)));
    ip(middle, &format!("-6 route append 2001:db8:8::/48 via {} dev {}", host6(0), interface(0)));
    ip(middle, "route add unreachable 203.0.113.0/24");
    ip(middle, "route add prohibit 203.0.113.0/25");
    ip(middle, &format!("route append 192.0.2.0/24 {}", via(0)));
    ip(middle, &format!("route prepend 192.0.2.0/24 {}", via(1)));
    until_reached("192.0.2.1");
    assert_equal(&world);
    ip(middle, &format!("route del 192.0.2.0/24 {}", via(1)));
    ip(middle, &format!("-6 route del 2001:db8:8::/48 via {} dev {}", host6(1), interface(1)));
    until_reached("192.0.2.1");
    assert_equal(&world);
    // All of many flows arrive, by whichever of both.
    for _ in 0..32 {
        until_reached("192.0.2.1");
    }

    // The same next hops in another order; and of IPv6 the kernel tells of both in the order that it likes.
    let other_way = format!("nexthop {} weight 3 nexthop {} weight 1", via(2), via(1));
    ip(middle, &format!("route add 198.18.0.0/24 {both}"));
    ip(middle, &format!("route replace 192.0.2.0/24 {other_way}"));
    ip(middle, &format!("-6 route add 2001:db8:9::/48 via {} dev {}", host6(1), interface(1)));
    ip(middle, &format!("-6 route append 2001:db8:9::/48 via {} dev {}", host6(2), interface(2)));
    assert_equal(&world);
    until_reached("192.0.2.1");
    ip(middle, "-6 route del 2001:db8:9::/48");
    assert_equal(&world);

    // Of IPv6 those with a gateway are one route, beside which others of that metric stay.
    let via6 = |i: usize| format!("via {} dev {}", host6(i), interface(i));
    for (words, path) in [
        ("add 2001:db8:a::/48", format!("dev {} metric 300", interface(1))),
        ("append 2001:db8:a::/48", format!("{} metric 300", via6(2))),
        ("append 2001:db8:a::/48", format!("{} metric 300", via6(1))),
        ("append 2001:db8:a::/48", format!("dev {} metric 300", interface(0))),
        ("replace 2001:db8:a::/48", format!("{} metric 300", via6(0))),
        ("replace 2001:db8:a::/48", format!("dev {} metric 300", interface(2))),
        ("add 2001:db8:b::/48", format!("{} metric 300 proto ra", via6(1))),
        ("append 2001:db8:b::/48", format!("{} metric 300", via6(2))),
        ("del 2001:db8:b::/48", format!("{} metric 300", via6(1))),
    ] {
        ip(middle, &format!("-6 route {words} {path}"));
        assert_equal(&world);
    }

    // Next-hop objects: a route says no more than a number, and follows when that is changed.
    ip(middle, &format!("nexthop add id 1 {}", via(1)));
    ip(middle, &format!("nexthop add id 2 {}", via(2)));
    ip(middle, "nexthop add id 9 group 1/2");
    ip(middle, "route replace 192.0.2.0/24 nhid 9");
    assert_equal(&world);
    ip(middle, &format!("nexthop replace id 2 {}", via(0)));
    assert_equal(&world);
    ip(middle, "nexthop del id 9");
    assert_equal(&world);

    // A fixed neighbour, at an address that no host has.
    let silent = Ipv4Addr::new(10, 1, 0, 77);
    ip(
        &world.middle,
        &format!("neigh replace {silent} lladdr 02:00:00:00:00:07 dev {} nud permanent", interface(1)),
    );
    let state = || world.view().neighbours().into_iter().find(|row| row.ip == silent).map(|row| row.state);
    until("a fixed neighbour", || state().as_deref() == Some("permanent"));
    ip(&world.middle, &format!("neigh del {silent} dev {}", interface(1)));
    until("it is let go", || state().as_deref() != Some("permanent"));
    drop(given);
    world.end();
}

/// A link that goes down takes routes with it that the kernel does not tell of; and what is by an
/// interface that softnet has not taken is counted.
#[test]
fn what_the_kernel_does_not_tell_is_found_out() {
    let Some(mut world) = World::new(3) else { return };
    ip(&world.middle, "link add other type veth peer name another");
    ip(&world.middle, "link set other up");
    ip(&world.middle, "link set another up");
    ip(&world.middle, "route add 203.0.113.0/24 dev other");
    world.start_with(follows(world.config()));
    ip(&world.middle, &format!("route add 192.0.2.0/24 via {} dev {}", host(2), interface(2)));
    until("both routes", || followed(&world).iter().any(|(to, _, _)| to == "192.0.2.0/24"));
    assert_eq!(world.view().stats().follow.unwrap().other_interface, 1);
    ip(&world.middle, "link del other");
    assert_equal(&world);
    until("none is counted", || world.view().stats().follow.unwrap().other_interface == 0);

    // One way of two goes with a link, and comes back with it.
    let ways = [1, 2].map(|i| format!("nexthop via {} dev {}", host(i), interface(i))).join(" ");
    ip(&world.middle, &format!("route add 198.18.0.0/24 {ways}"));
    assert_equal(&world);
    ip(&world.middle, &format!("link set {} down", interface(2)));
    assert_equal(&world);
    assert!(!followed(&world).iter().any(|(to, _, _)| to == "192.0.2.0/24"));
    ip(&world.middle, &format!("link set {} up", interface(2)));
    assert_equal(&world);
    assert!(followed(&world).iter().any(|(to, _, _)| to == "198.18.0.0/24"));
    world.unplug(2);
    assert_equal(&world);
    world.plug(2);
    ip(&world.middle, &format!("route add 192.0.2.0/24 via {} dev {}", host(2), interface(2)));
    assert_equal(&world);
    world.end();
}

/// The addresses that softnet has on device `i`, but for link-local ones.
fn addresses(world: &World, i: usize) -> BTreeSet<String> {
    let row = world.view().devs().into_iter().find(|row| row.name == interface(i)).unwrap();
    row.addresses.into_iter().filter(|own| !own.starts_with("fe80:")).collect()
}

/// A device that shares its interface's addresses has those that the kernel has, whenever they came; one that does
/// not leaves them to the kernel. What the configuration has stays softnet's.
#[test]
fn addresses_of_a_shared_device_are_the_kernels() {
    let Some(mut world) = World::new(2) else { return };
    let set = |all: &[String]| -> BTreeSet<String> { all.iter().cloned().collect() };
    let [own, kernels] = [softnet(0), kernel(0)].map(|addr| format!("{addr}/24"));
    let config = follows(world.config()).with(|config| {
        config.devices[0].driver = Xdp::default().with(|xdp| (xdp.ring, xdp.shared) = (512, true)).into();
    });
    world.start_with(config.clone());
    until("what the kernel has", || addresses(&world, 0) == set(&[own.clone(), kernels.clone()]));
    assert_eq!(addresses(&world, 1), set(&[format!("{}/24", softnet(1))]));

    let more = ["192.0.2.1/24", "198.51.100.1/32", "2001:db8::1/64"].map(str::to_owned);
    ip(&world.middle, &format!("addr add {} dev {}", more[0], interface(0)));
    ip(&world.middle, &format!("addr add 198.51.100.1 peer 198.51.100.2 dev {}", interface(0)));
    ip(&world.middle, &format!("addr add {} dev {}", more[2], interface(0)));
    let all: Vec<String> = [&own, &kernels].into_iter().chain(&more).cloned().collect();
    until("they come", || addresses(&world, 0) == set(&all));
    // softnet answers at one of them, by a port that it has open there.
    let socket = softnet::net::UdpSocket::bind(&world.handle(), (Ipv4Addr::new(192, 0, 2, 1), 4000)).unwrap();
    ip(&world.hosts[0], "route add 192.0.2.0/24 dev eth0");
    let client = world.hosts[0].run(|| UdpSocket::bind((host(0), 0)).unwrap()).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut buffer = [0; 16];
    until("a datagram", || {
        client.send_to(b"there?", "192.0.2.1:4000").unwrap();
        socket.recv_from(&mut buffer).is_ok_and(|(n, _)| buffer[..n] == *b"there?")
    });
    drop(socket);

    // A network that another device has is not given twice; the kernel has it alone.
    ip(&world.middle, &format!("addr add {}/24 dev {}", Ipv4Addr::new(10, 1, 0, 77), interface(0)));
    // A new configuration that names one of them keeps it from then on.
    let named = config.clone().with(|config| config.devices[0].addresses.push(more[0].parse().unwrap()));
    world.view().apply(named).unwrap();
    for address in [&more[0], "198.51.100.1 peer 198.51.100.2", &more[2]] {
        ip(&world.middle, &format!("addr del {address} dev {}", interface(0)));
    }
    until("they go", || addresses(&world, 0) == set(&[own.clone(), kernels.clone(), more[0].clone()]));
    // With the interface all go that are the kernel's, and come back with it.
    world.unplug(0);
    until("none is followed", || addresses(&world, 0) == set(&[own.clone(), more[0].clone()]));
    world.plug(0);
    until("it is back", || addresses(&world, 0) == set(&[own.clone(), more[0].clone(), kernels.clone()]));
    world.end();
}

/// A device that has no address but the kernel's loses the last of them, too, and gets the next.
#[test]
fn the_last_address_goes_with_the_kernels() {
    let Some(mut world) = World::new(1) else { return };
    let set = |all: &[&String]| -> BTreeSet<String> { all.iter().map(|&own| own.clone()).collect() };
    let config = follows(world.config()).with(|config| {
        config.devices[0].driver = Xdp::default().with(|xdp| (xdp.ring, xdp.shared) = (512, true)).into();
        config.devices[0].addresses = Vec::new();
    });
    world.start_with(config);
    let [first, next] = [format!("{}/24", kernel(0)), "192.0.2.1/24".to_owned()];
    until("what the kernel has", || addresses(&world, 0) == set(&[&first]));
    ip(&world.middle, &format!("addr del {first} dev {}", interface(0)));
    until("none", || addresses(&world, 0).is_empty());
    ip(&world.middle, &format!("addr add {next} dev {}", interface(0)));
    until("another", || addresses(&world, 0) == set(&[&next]));
    world.end();
}

/// Routes by a link that is down, on this side or on the other, give way to those of the next metric, until it is up.
#[test]
fn a_link_that_is_down_is_not_used() {
    let Some(mut world) = World::new(3) else { return };
    let given = [1, 2].map(|i| give(&world, i, "192.0.2.1/32"));
    let route = |i: usize, metric: u32| {
        let via = RouteTarget::Via(host(i).into());
        RouteConfig::new("192.0.2.0/24".parse().unwrap(), via).metric(metric)
    };
    let config = world.config().with(|config| config.routes = vec![route(1, 10), route(2, 20)]);
    world.start_with(config);
    let used = |world: &World| {
        let rows = world.view().routes().into_iter().filter(|row| row.prefix == "192.0.2.0/24" && row.used);
        rows.filter_map(|row| row.dev).collect::<Vec<_>>()
    };
    let link = |world: &World, i: usize| {
        world.view().devs().into_iter().find(|row| row.name == interface(i)).unwrap().link
    };
    let until_by = |world: &World, i: usize| {
        until(&format!("the route by {}", interface(i)), || used(world) == [interface(i)]);
        until("an echo", || reaches(world, 0, "192.0.2.1"));
    };
    until_by(&world, 1);
    for (ns, name) in [(&world.middle, interface(1)), (&world.hosts[1], "eth0".into())] {
        ip(ns, &format!("link set {name} down"));
        until_by(&world, 2);
        assert_eq!(link(&world, 1), "down");
        ip(ns, &format!("link set {name} up"));
        // What the kernel takes from a host with its link.
        if name == "eth0" {
            ip(ns, &format!("route replace default via {}", softnet(1)));
        }
        until_by(&world, 1);
        assert_eq!(link(&world, 1), "up");
    }
    drop(given);
    world.end();
}

/// Ten thousand routes come and go while packets pass by one that stays, more of them than the
/// kernel's buffer for notifications holds.
#[test]
fn no_packet_is_lost_by_a_route_that_stays() {
    let Some(mut world) = World::new(2) else { return };
    let given = give(&world, 1, "192.0.2.1/32");
    world.start_with(follows(world.config()));
    let via = format!("via {} dev {}", host(1), interface(1));
    ip(&world.middle, &format!("route add 192.0.2.0/24 {via}"));
    until("an echo", || reaches(&world, 0, "192.0.2.1"));

    const ROUTES: u32 = 10_000;
    let (asked, answered) = asking(&world, "192.0.2.1", || {
        let prefix = |i: u32| format!("100.{}.{}.0/24", 64 + i / 256 % 64, i % 256);
        for word in ["add", "replace", "del", "add"] {
            let metric = if word == "replace" { "mtu 1400" } else { "" };
            batch(&world.middle, (0..ROUTES).map(|i| format!("route {word} {} {via} {metric}", prefix(i))));
            // Those that were there before, too.
            batch(&world.middle, [format!("route replace 192.0.2.0/24 {via}")].into_iter());
        }
    });
    assert!(asked > 100, "{asked}");
    assert_eq!(asked, answered, "{:?}", world.view().drops());
    assert_equal(&world);
    let stats = world.view().stats();
    assert!(stats.routes > u64::from(ROUTES), "{stats:?}");
    let follow = stats.follow.unwrap();
    assert_eq!(follow.fib_refused, 0);
    // The two copies of the FIB take turns.
    assert!(follow.fib_copies * 4 <= follow.published, "{follow:?}");
    drop(given);
    world.end();
}
