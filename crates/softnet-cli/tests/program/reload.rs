//! `softnet reload`, SIGHUP, and changes in `ip`'s words, of an instance on real interfaces.

use rustix::process::Signal;
use softnet_dev::netlink::Netlink;

use super::process::{World, until};

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
    let own = std::net::Ipv4Addr::new(10, 0, 0, 77);
    world.middle().run(|| Netlink::new().unwrap().add_address("s0", own, 24).unwrap()).unwrap();
    let (code, error) = command(&world, "addr add 10.0.0.77/24 dev s0");
    assert!(code == Some(1) && error.contains("s0: the kernel has 10.0.0.77, too, on s0"), "{error}");
    assert_eq!(addresses(&world), ["10.0.0.1/24"]);
    assert_eq!(command(&world, "addr add 10.0.0.78/24 dev s0"), (Some(0), String::new()));
    assert_eq!(addresses(&world), ["10.0.0.1/24", "10.0.0.78/24"]);
    // A neighbour gets an answer from it, which what the device claims from its interface is about.
    let client =
        world.hosts[0].run(|| std::net::UdpSocket::bind((super::process::host(0), 0)).unwrap()).unwrap();
    client.connect("10.0.0.78:9").unwrap();
    until("an ICMP port unreachable from the new address", || {
        client.send(b"?").is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    });
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
