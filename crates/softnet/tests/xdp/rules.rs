//! Filter rules between kernels, without NAT: what clients see of them, over both families.

use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::io::Errno;
use softnet::config::{Config, FilterConfig};
use softnet::control::show::RuleRow;

use super::hosts::{Icmp, ask, tcp};
use super::nat::{PATIENCE, received, talk};
use super::world::{World, host, host6, interface, softnet, softnet6, until};

/// Where the server listens: what passes, what is dropped, what is rejected.
const PASSES: u16 = 7000;
const DROPPED: u16 = 7001;
const REJECTED: u16 = 7002;
/// Of the echo servers.
const ECHO: u16 = 7;

/// `[filter]`, rules and sets of a file whose devices are those of `world`.
fn filter(world: &World, text: &str) -> FilterConfig {
    let device =
        |i| format!("[[device]]\nname = \"{}\"\naddresses = [\"{}/24\"]\n", interface(i), softnet(i));
    let devices = (0..world.hosts.len()).map(device);
    let all = devices.collect::<String>() + text;
    Config::parse(&all, "rules.toml", &[0]).unwrap().filter
}

/// Two hosts, or more, between which these rules are.
fn world(hosts: usize, text: &str) -> Option<World> {
    let mut world = World::dual(hosts)?;
    let mut config = world.config_dual();
    config.filter = filter(&world, text);
    world.start_with(config);
    Some(world)
}

fn rule(world: &World, name: &str) -> RuleRow {
    let rows = world.view().rules();
    rows.iter().find(|row| row.name.as_deref() == Some(name)).cloned().unwrap()
}

fn drops(world: &World, reason: &str) -> u64 {
    world.view().drops().iter().filter(|row| row.reason == reason).map(|row| row.packets).sum()
}

/// A socket of host `at`, of the family of `of`.
fn udp(world: &World, at: usize, of: IpAddr, port: u16) -> UdpSocket {
    let own: IpAddr = if of.is_ipv4() { host(at).into() } else { host6(at).into() };
    let socket = world.hosts[at].run(|| UdpSocket::bind((own, port)).unwrap()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// What an attempt of host 0 to connect ends with.
fn connect(world: &World, to: IpAddr, port: u16, patience: Duration) -> std::io::Error {
    world.hosts[0].run(|| TcpStream::connect_timeout(&(to, port).into(), patience)).unwrap().unwrap_err()
}

#[test]
fn clients_see_what_rules_do() {
    let text = r#"
        [[rule]]
        name = "dropped"
        hook = "forward"
        protocol = ["tcp", "udp"]
        destination_port = 7001
        action = "drop"
        [[rule]]
        name = "rejected"
        hook = "forward"
        in = "s0"
        out = "s1"
        protocol = ["tcp", "udp"]
        destination_port = "7002-7003"
        action = "reject"
        [[rule]]
        name = "to softnet"
        hook = "input"
        protocol = ["icmp", "icmpv6"]
        icmp_type = "echo-request"
        action = "drop"
    "#;
    let Some(world) = world(2, text) else { return };
    let echoes = world.echoes();
    for to in [IpAddr::from(host(1)), host6(1).into()] {
        until("an echo", || world.hosts[0].run(|| ask(to, b"anybody there?")).unwrap());
        // What no rule is about.
        let listener = world.hosts[1].run(|| TcpListener::bind((to, PASSES)).unwrap()).unwrap();
        talk(&world.hosts[0], (to, PASSES).into(), &listener, 100_000);
        // What is dropped: nothing comes.
        let listener = world.hosts[1].run(|| TcpListener::bind((to, DROPPED)).unwrap()).unwrap();
        listener.set_nonblocking(true).unwrap();
        let error = connect(&world, to, DROPPED, Duration::from_millis(300));
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        // What is rejected: a reset, or an error, as the kernel's own filter does it.
        let error = connect(&world, to, REJECTED, PATIENCE);
        assert_eq!(error.raw_os_error(), Some(Errno::CONNREFUSED.raw_os_error()), "{error}");
        let client = udp(&world, 0, to, 0);
        client.connect((to, REJECTED)).unwrap();
        client.send(b"let me in").unwrap();
        let error = client.recv(&mut [0; 10]).unwrap_err();
        let prohibited = if to.is_ipv4() { Errno::HOSTUNREACH } else { Errno::ACCESS };
        assert_eq!(error.raw_os_error(), Some(prohibited.raw_os_error()), "{error}");
    }
    let [dropped, rejected] = ["dropped", "rejected"].map(|name| rule(&world, name));
    assert!(dropped.packets >= 2 && rejected.packets >= 4, "{dropped:?} {rejected:?}");
    assert_eq!(drops(&world, "netfilter_drop"), dropped.packets + rejected.packets);
    assert_eq!(
        (rejected.rule.as_str(), rejected.action.as_str()),
        ("in s0 out s1 protocol tcp,udp destination_port 7002-7003", "reject")
    );
    // softnet itself is not to be pinged, its neighbours are found.
    let icmp = Icmp::new(&world.hosts[0]);
    icmp.ping(softnet(0), 64, b"there?");
    until("the ping", || rule(&world, "to softnet").packets > 0);
    let pings = Icmp::v6(&world.hosts[0]);
    pings.ping(softnet6(0), 64, b"there?");
    until("the other ping", || rule(&world, "to softnet").packets == 2);
    // The other way round the rule with devices says nothing.
    drop(echoes);
    tcp(&world.hosts[1], &world.hosts[0], host(0), 10_000);
    world.end();
}

/// The router of a network that is open outwards only, without NAT.
const STATEFUL: &str = r#"
    [filter]
    forward = "drop"
    connections = 1000
    [[rule]]
    name = "belongs"
    hook = "forward"
    state = ["established", "related"]
    action = "allow"
    [[rule]]
    name = "outwards"
    hook = "forward"
    in = "s0"
    state = "new"
    action = "allow"
"#;

#[test]
fn what_belongs_to_a_connection_comes_back_and_nothing_else() {
    let Some(world) = world(2, STATEFUL) else { return };
    for (inside, to) in [(IpAddr::from(host(0)), IpAddr::from(host(1))), (host6(0).into(), host6(1).into())] {
        let server = udp(&world, 1, to, PASSES);
        let client = udp(&world, 0, to, 5001);
        server.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut buffer = [0; 100];
        until("a datagram", || {
            client.send_to(b"hello", (to, PASSES)).unwrap();
            server.recv(&mut buffer).is_ok()
        });
        server.send_to(b"and back", (inside, 5001)).unwrap();
        assert_eq!(received(&client).0, b"and back");
        // Another port of the same host, and from another.
        let before = drops(&world, "netfilter_drop");
        server.send_to(b"let me in", (inside, 5002)).unwrap();
        udp(&world, 1, to, 6000).send_to(b"let me in", (inside, 5001)).unwrap();
        until("the drops", || drops(&world, "netfilter_drop") >= before + 2);
        client.set_nonblocking(true).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        let error = world.hosts[1].run(|| {
            let _open = world.hosts[0].run(|| TcpListener::bind((inside, DROPPED)).unwrap()).unwrap();
            TcpStream::connect_timeout(&(inside, DROPPED).into(), Duration::from_millis(300)).unwrap_err()
        });
        assert_eq!(error.unwrap().kind(), ErrorKind::TimedOut);
        // Streams, both ways within one connection.
        let listener = world.hosts[1].run(|| TcpListener::bind((to, PASSES)).unwrap()).unwrap();
        talk(&world.hosts[0], (to, PASSES).into(), &listener, 300_000);
        // An ICMP error about a datagram: its port is closed.
        let asks = udp(&world, 0, to, 5003);
        asks.connect((to, REJECTED)).unwrap();
        asks.send(b"anybody there?").unwrap();
        let error = asks.recv(&mut buffer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "related: {error}");
    }
    let rows = world.view().connections();
    let six = rows.iter().find(|row| row.src == (host6(0), 5001).into()).unwrap();
    assert_eq!((six.dst, six.state.as_str(), six.snat), ((host6(1), PASSES).into(), "assured", false));
    assert_eq!(six.reply_src, (host6(1), PASSES).into());
    assert!(rows.iter().any(|row| row.src == (host(0), 5001).into() && row.protocol == "udp"), "{rows:?}");
    assert!(rule(&world, "belongs").packets > 100 && rule(&world, "outwards").packets >= 6);
    let policy =
        world.view().rules().into_iter().find(|row| row.number.is_none() && row.hooks == ["forward"]);
    assert!(policy.unwrap().packets >= 6);
    world.end();
}

/// Hosts 0 and 2 ask host 1; host 0 is one of a hundred thousand that may not.
#[test]
fn a_hundred_thousand_prefixes() {
    let mut prefixes: String = (0..99_999u32)
        .map(|n| format!("\"{}/{}\",\n", std::net::Ipv4Addr::from(0x1400_0000 + n * 512), 24 + n % 9))
        .collect();
    prefixes += &format!("\"{}\", \"{}/128\"", host(0), host6(0));
    let text = format!(
        "[[set]]\nname = \"bad\"\nprefixes = [{prefixes}]\n\
         [[rule]]\nname = \"bad\"\nhook = \"forward\"\nsource = \"@bad\"\naction = \"drop\"\n"
    );
    let Some(world) = world(3, &text) else { return };
    let _echoes = world.echoes();
    for to in [IpAddr::from(host(1)), host6(1).into()] {
        until("an echo of another", || world.hosts[2].run(|| ask(to, b"anybody there?")).unwrap());
        let before = rule(&world, "bad").packets;
        let client = udp(&world, 0, to, 5001);
        client.send_to(b"let me in", (to, ECHO)).unwrap();
        until("the drop", || rule(&world, "bad").packets > before);
        client.set_nonblocking(true).unwrap();
        assert_eq!(client.recv(&mut [0; 10]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    world.end();
}
