//! `softnet reload`, SIGHUP, and changes in `ip`'s words, of an instance on real interfaces.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::{VlanEnd, VlanPort};

use super::process::{Process, World, host, until};

/// Runs a command on the instance: what it printed of errors, and its exit code.
fn command(world: &World, words: &str) -> (Option<i32>, String) {
    let (code, _, errors) = world.ask(words);
    (Some(code), errors)
}

fn addresses(world: &World) -> Vec<String> {
    let own = world.show("dev")[0]["addresses"].clone();
    serde_json::from_value(own).unwrap()
}

fn routes(world: &World, prefix: &str) -> Vec<String> {
    let rows = world.show("route");
    let rows = rows.as_array().unwrap().iter().filter(|row| row["prefix"] == prefix);
    rows.map(|row| row["source"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_configuration_is_read_again_and_what_differs_is_applied() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    let mut process = world.running(&config);
    let old = std::fs::read_to_string(&config).unwrap();
    let write = |text: &str| std::fs::write(&config, text).unwrap();
    let done = (Some(0), String::new());
    assert_eq!(command(&world, "route add 10.9.0.0/16 via 10.1.0.2"), done);
    let (code, error) = command(&world, "route add 10.9.0.0/16 via 10.1.0.2");
    assert_eq!((code, error.contains("10.9.0.0/16 exists already")), (Some(1), true), "{error}");
    // Another address, a route, and the second device not any more.
    let second = old.rfind("[[device]]").unwrap();
    let new = old[..second].replace("\"10.0.0.1/24\"", "\"10.0.0.1/24\", \"10.5.0.1/24\"");
    write(&format!("{new}\n[[route]]\nto = \"10.8.0.0/16\"\nvia = \"10.5.0.9\"\n"));
    assert_eq!(command(&world, "reload"), done);
    assert_eq!(addresses(&world), ["10.0.0.1/24", "10.5.0.1/24"]);
    assert_eq!(
        (routes(&world, "10.8.0.0/16"), routes(&world, "10.9.0.0/16")),
        (vec!["static".into()], vec!["manual".to_string()])
    );
    assert_eq!(world.show("dev")[1]["link"], "gone");
    // Wrong as a whole: nothing of it is applied, and its line is named.
    write(&old.replace("10.1.0.1/24", "10.1.0.1/240"));
    let (code, error) = command(&world, "reload");
    assert!(code == Some(1) && error.contains("r.toml:14:14: device.addresses"), "{code:?} {error}");
    assert_eq!(addresses(&world), ["10.0.0.1/24", "10.5.0.1/24"]);
    write(&old.replace("frames = 4096", "frames = 8192"));
    let (code, error) = command(&world, "reload");
    assert!(code == Some(1) && error.contains("stack.frames can't be changed while it runs"), "{error}");
    // And back, by SIGHUP, which tells of it.
    write(&old);
    process.signal(Signal::HUP);
    until("the device", || process.said().contains("s1: is back"));
    assert_eq!((addresses(&world), routes(&world, "10.8.0.0/16")), (vec!["10.0.0.1/24".into()], vec![]));
    world.assert_forwards();
    process.signal(Signal::TERM);
    assert_eq!(process.end().code(), Some(0));
}

/// One that both had would take what is sent to the kernel away from it.
#[test]
fn an_address_that_the_kernel_has_is_refused() {
    let Some(world) = World::new() else { return };
    let mut process = world.running(&world.config("r.toml", ""));
    let own = Ipv4Addr::new(10, 0, 0, 77);
    world.middle().run(|| Netlink::new().unwrap().add_address("s0", own, 24).unwrap()).unwrap();
    let (code, error) = command(&world, "addr add 10.0.0.77/24 dev s0");
    assert!(code == Some(1) && error.contains("s0: the kernel has 10.0.0.77, too, on s0"), "{error}");
    assert_eq!(addresses(&world), ["10.0.0.1/24"]);
    assert_eq!(command(&world, "addr add 10.0.0.78/24 dev s0"), (Some(0), String::new()));
    assert_eq!(addresses(&world), ["10.0.0.1/24", "10.0.0.78/24"]);
    // A neighbour gets an answer from it, which what the device claims from its interface is about.
    let client = world.hosts[0].run(|| UdpSocket::bind((host(0), 0)).unwrap()).unwrap();
    client.connect("10.0.0.78:9").unwrap();
    until("an ICMP port unreachable from the new address", || {
        client.send(b"?").is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    });
    process.signal(Signal::TERM);
    assert_eq!(process.end().code(), Some(0));
}

/// What would keep a device from being opened anew is seen before it is closed.
#[test]
fn a_device_stays_open_whose_new_keys_are_refused() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    let old = std::fs::read_to_string(&config).unwrap();
    let with = |keys: &str| {
        let text = old.replacen("name = \"s0\"\n", &format!("name = \"s0\"\n{keys}\n"), 1);
        assert_ne!(text, old);
        std::fs::write(&config, text).unwrap();
    };
    with("shared = true");
    let own = Ipv4Addr::new(10, 0, 0, 1);
    world.middle().run(|| Netlink::new().unwrap().add_address("s0", own, 24).unwrap()).unwrap();
    let mut process = world.running(&config);
    for (keys, why) in [
        ("shared = false", "the kernel has 10.0.0.1, too, on s0"),
        ("driver = \"packet\"", "the kernel has 10.0.0.1 on it"),
        ("shared = true\nxps_rxqs = [\"\", \"\", \"\", \"0\"]", "s0: "),
    ] {
        with(keys);
        let (code, error) = command(&world, "reload");
        assert!(code == Some(1) && error.contains(why), "{keys}: {error}");
        let shown = &world.show("dev")[0];
        assert_eq!((&shown["link"], &shown["reopened"]), (&"up".into(), &0.into()), "{shown}");
    }
    process.signal(Signal::TERM);
    assert_eq!(process.end().code(), Some(0));
}

#[test]
fn links_are_set_while_it_runs() {
    let Some(world) = World::new() else { return };
    let mut process = world.running(&world.config("r.toml", ""));
    let done = (Some(0), String::new());
    let link = || {
        let row = world.show("dev")[1].clone();
        (row["link"].as_str().unwrap().to_owned(), row["mtu"].as_u64().unwrap())
    };
    assert_eq!(command(&world, "link set s1 mtu 1400"), done);
    assert_eq!(link().1, 1400);
    assert_eq!(command(&world, "link set dev s1 down"), done);
    assert_eq!(link(), ("down".into(), 0));
    let (code, error) = command(&world, "link set s2 up");
    assert!(code == Some(1) && error.contains("no device \"s2\"; there are: s0, s1"), "{error}");
    let (code, error) = command(&world, "link set s1 sideways");
    assert!(code == Some(2) && error.contains("expected up, down or mtu, found \"sideways\""), "{error}");
    assert_eq!(command(&world, "link set s1 up"), done);
    assert_eq!(command(&world, "link show dev s1"), done);
    assert_eq!(link().1, 1400);
    world.assert_forwards();
    process.signal(Signal::TERM);
    assert_eq!(process.end().code(), Some(0));
}

/// A change of state is one line, with the instance's name, unless its level is left out.
#[test]
fn a_change_is_told_once_and_by_its_level() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    let route = |via: &str, metric: u32| {
        format!("\n[[route]]\nto = \"192.0.2.0/24\"\nvia = \"{via}\"\nmetric = {metric}\n")
    };
    let routes = route("10.1.0.2", 10) + &route("10.0.0.2", 20);
    let text = std::fs::read_to_string(&config).unwrap() + &routes;
    std::fs::write(&config, text).unwrap();
    let link = |up: bool| {
        let set = || {
            let mut netlink = Netlink::new().unwrap();
            if up { netlink.set_up("s1").unwrap() } else { netlink.set_down("s1").unwrap() }
        };
        world.middle().run(set).unwrap();
        let used = || {
            let rows = world.show("route");
            let by_it = |row: &serde_json::Value| (row["dev"] == "s1") == (row["used"] == true);
            let mut rows = rows.as_array().unwrap().iter().filter(|row| row["prefix"] == "192.0.2.0/24");
            rows.all(by_it)
        };
        until("routes by it", || used() == up);
    };
    for level in ["info", "warn", "error"] {
        let mut process = world.running_with(&config, &["--log-level", level]);
        link(false);
        link(true);
        process.signal(Signal::TERM);
        assert_eq!(process.end().code(), Some(0));
        let errors = process.errors();
        let count = |line: &str| errors.lines().filter(|told| told.starts_with(line)).count();
        let (down, up) =
            (count("process-test: s1: the link is down"), count("process-test: s1: the link is up"));
        let expected = [("info", (1, 1)), ("warn", (1, 0)), ("error", (0, 0))];
        assert!(expected.contains(&(level, (down, up))), "{level}: {errors}");
    }
}

/// What a new network begins with, and the host there.
const THIRD: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 2);

/// Gives `ns` an interface `eth0` with the address [`THIRD`], and a route to the others.
fn third(ns: &NetNs) {
    let up = || {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_address("eth0", THIRD, 24).unwrap();
        netlink.set_up("eth0").unwrap();
        netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, Ipv4Addr::new(10, 2, 0, 1)).unwrap();
    };
    ns.run(up).unwrap();
}

/// Datagrams from one host to another, each sent when the one before it has arrived.
struct Flow(Arc<AtomicBool>, JoinHandle<u32>);

impl Flow {
    /// Between the first two, of which each is known by now.
    fn start(world: &World) -> Flow {
        world.assert_forwards();
        let from = world.hosts[0].run(|| UdpSocket::bind((host(0), 0)).unwrap()).unwrap();
        let to = world.hosts[1].run(|| UdpSocket::bind((host(1), 8)).unwrap()).unwrap();
        to.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let end = Arc::new(AtomicBool::new(false));
        let ends = end.clone();
        let flow = move || {
            let mut number = 0u32;
            while !ends.load(Ordering::Relaxed) {
                from.send_to(&number.to_be_bytes(), (host(1), 8)).unwrap();
                let mut buffer = [0; 8];
                let n = to.recv(&mut buffer).unwrap_or_else(|error| panic!("{number} is lost: {error}"));
                assert_eq!(buffer[..n], number.to_be_bytes());
                number += 1;
                std::thread::sleep(Duration::from_micros(200));
            }
            number
        };
        Flow(end, std::thread::spawn(flow))
    }

    /// None was lost.
    fn end(self) {
        self.0.store(true, Ordering::Relaxed);
        assert!(self.1.join().unwrap() > 0);
    }
}

/// Waits until a datagram from the first host has reached [`THIRD`] in `ns`, and one from there it.
fn assert_reaches(world: &World, ns: &NetNs) {
    let first = world.hosts[0].run(|| UdpSocket::bind((host(0), 9)).unwrap()).unwrap();
    let there = ns.run(|| UdpSocket::bind((THIRD, 9)).unwrap()).unwrap();
    for socket in [&first, &there] {
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    }
    let mut buffer = [0; 8];
    until("a datagram to the new network", || {
        let _ = first.send_to(b"hello", (THIRD, 9));
        there.recv_from(&mut buffer).is_ok_and(|(_, from)| from.ip() == host(0))
    });
    until("a datagram from the new network", || {
        let _ = there.send_to(b"hello", (host(0), 9));
        first.recv_from(&mut buffer).is_ok_and(|(_, from)| from.ip() == THIRD)
    });
}

/// A device comes, is opened by other keys, goes and comes back while a flow between two others loses
/// nothing.
#[test]
fn devices_are_added_and_changed_while_packets_pass() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    let mut process = world.running(&config);
    let old = std::fs::read_to_string(&config).unwrap();
    let with = |keys: &str| {
        let s2 = format!("\n[[device]]\nname = \"s2\"\naddresses = [\"10.2.0.1/24\"]\n{keys}\n");
        let route = "\n[[route]]\nto = \"10.7.0.0/16\"\nvia = \"10.2.0.2\"\n";
        let rule = "\n[[rule]]\nname = \"telnet\"\nhook = \"forward\"\nout = \"s2\"\nprotocol = \"tcp\"\n\
                    destination_port = 23\naction = \"drop\"\n";
        std::fs::write(&config, format!("{old}{s2}{route}{rule}")).unwrap();
    };
    let reload = || {
        let (code, out, errors) = world.ask("reload");
        assert_eq!((code, &errors[..]), (0, ""), "{out}");
        out
    };
    let flow = Flow::start(&world);
    // It is not there: nothing is changed.
    with("ring = 256");
    let (code, error) = command(&world, "reload");
    assert!(code == Some(1) && error.contains("nothing was changed") && error.contains("s2"), "{error}");
    assert_eq!(world.show("dev").as_array().unwrap().len(), 2);
    let ns = NetNs::new().unwrap();
    let near = || {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_veth("s2", "eth0", (1, 1), Some(&ns)).unwrap();
        netlink.set_up("s2").unwrap();
    };
    world.middle().run(near).unwrap();
    third(&ns);
    let out = reload();
    assert!(out.contains("s2: added") && out.contains("filter: its rules"), "{out}");
    assert_reaches(&world, &ns);
    let shown = world.show("dev")[2].clone();
    assert_eq!((&shown["name"], &shown["link"]), (&"s2".into(), &"up".into()));
    assert_eq!(routes(&world, "10.7.0.0/16"), ["static"]);
    assert_eq!(world.show("napi").as_array().unwrap().iter().filter(|napi| napi["dev"] == "s2").count(), 1);
    for words in
        ["set dev s2 threaded=threaded", "set dev s2 threaded=softirq", "addr add 10.6.0.1/24 dev s2"]
    {
        assert_eq!(command(&world, words), (Some(0), String::new()), "{words}");
    }
    assert_eq!(reload(), "nothing to change\n");
    // Another ring, another driver.
    for keys in ["ring = 128", "driver = \"packet\""] {
        with(keys);
        let out = reload();
        assert!(out.contains("s2: opened anew"), "{keys}: {out}");
        assert_reaches(&world, &ns);
    }
    assert_eq!(world.show("dev")[2]["driver"], "packet");
    // Not any more, and by SIGHUP again, as it was first.
    std::fs::write(&config, &old).unwrap();
    assert!(reload().contains("s2: removed"));
    assert_eq!((&world.show("dev")[2]["link"], routes(&world, "10.7.0.0/16")), (&"gone".into(), vec![]));
    with("ring = 256");
    process.signal(Signal::HUP);
    until("the device", || process.said().contains("s2: is back"));
    assert_reaches(&world, &ns);
    assert_eq!(world.show("dev")[2]["driver"], "xdp");
    flow.end();
    let stats = world.show("stats");
    assert_eq!(stats["leaked"], 0, "{stats}");
    // Another process goes on with it, too.
    let take_over = || Process::start(&["run", &config, "--take-over"]);
    let mut next = world.middle().run(take_over).unwrap();
    next.line("running in the place of pid");
    assert_eq!(process.end().code(), Some(0));
    assert_reaches(&world, &ns);
    next.signal(Signal::TERM);
    assert_eq!(next.end().code(), Some(0));
}

#[test]
fn a_vlan_is_added_over_a_device_whose_packets_pass() {
    let Some(world) = World::new() else { return };
    if !VlanEnd::is_possible() {
        return;
    }
    let config = world.config("r.toml", "");
    let mut process = world.running(&config);
    let ns = NetNs::new().unwrap();
    let port = || {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_veth("p0", "eth0", (1, 1), Some(&ns)).unwrap();
        netlink.set_up("p0").unwrap();
        let ports =
            [VlanPort { ifindex: netlink.existing_link("p0").unwrap().index, tags: vec![(0x8100, 5)] }];
        VlanEnd::attach(netlink.existing_link("eth0").unwrap().index, &ports).unwrap()
    };
    let _end = world.hosts[1].run(port).unwrap();
    third(&ns);
    let flow = Flow::start(&world);
    let old = std::fs::read_to_string(&config).unwrap();
    let vlan = "\n[[device]]\nname = \"s1.5\"\ndriver = \"vlan\"\nlink = \"s1\"\nid = 5\naddresses = [\"10.2.0.1/24\"]\n";
    std::fs::write(&config, old.clone() + vlan).unwrap();
    let (code, out, errors) = world.ask("reload");
    assert!(code == 0 && out.contains("s1.5: added"), "{out}{errors}");
    assert_reaches(&world, &ns);
    assert_eq!(world.show("dev")[2]["driver"], "vlan");
    for text in [&old, &(old.clone() + vlan)] {
        std::fs::write(&config, text).unwrap();
        assert_eq!(command(&world, "reload"), (Some(0), String::new()));
    }
    assert_reaches(&world, &ns);
    flow.end();
    process.signal(Signal::TERM);
    assert_eq!(process.end().code(), Some(0));
}
