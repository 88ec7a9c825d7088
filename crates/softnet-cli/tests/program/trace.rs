//! `softnet trace` on an instance that forwards and translates over veth pairs.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::process::{World, host, until};

const EXE: &str = env!("CARGO_BIN_EXE_softnet");

/// Starts `trace` with these arguments.
fn start(world: &World, args: &[&str]) -> Child {
    let socket = world.socket();
    let mut command = Command::new(EXE);
    command.args(["trace", "--name", socket.to_str().unwrap()]).args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs `trace` with these arguments, and sends datagrams with `ttl` to `to` until it ends.
fn trace(world: &World, args: &[&str], ttl: u32, to: SocketAddr) -> Output {
    let mut process = start(world, args);
    let client = world.hosts[0].run(|| UdpSocket::bind((host(0), 0)).unwrap()).unwrap();
    client.set_ttl(ttl).unwrap();
    until("the trace ends", || {
        // What cannot be sent, since the last one was refused, is sent again.
        let _ = client.send_to(b"hello", to);
        process.try_wait().unwrap().is_some()
    });
    process.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The packets that were shown.
fn packets(output: &Output) -> Vec<Value> {
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let mut rows = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    rows.by_ref().collect::<Result<_, _>>().unwrap()
}

/// Its stages, in order.
fn stages(packet: &Value) -> Vec<&str> {
    packet["steps"].as_array().unwrap().iter().map(|step| step["stage"].as_str().unwrap()).collect()
}

fn step<'a>(packet: &'a Value, stage: &str) -> &'a Value {
    let mut steps = packet["steps"].as_array().unwrap().iter();
    steps.find(|step| step["stage"] == stage).unwrap_or_else(|| panic!("no {stage}: {packet}"))
}

#[test]
fn what_stages_did_is_told_packet_by_packet() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    let nat =
        "\n[nat]\n[[nat.source]]\ndev = \"s1\"\n\n[[route]]\nto = \"198.51.100.0/24\"\nblackhole = true\n";
    let whole = std::fs::read_to_string(&config).unwrap() + nat;
    std::fs::write(&config, whole).unwrap();
    let _process = world.running(&config);
    // Both neighbours are known then. Sources are hidden, so only a request arrives.
    let (to, near) = (SocketAddr::from((host(1), 9)), Ipv4Addr::new(10, 0, 0, 1));
    trace(&world, &["s0", "-n", "1", "dst", "port", "9"], 64, to);
    std::thread::sleep(Duration::from_millis(50));

    // Forwarded and translated.
    let found = packets(&trace(&world, &["s0", "-n", "3", "--json", "udp dst port 9"], 64, to));
    assert_eq!(found.len(), 3);
    for packet in &found {
        assert_eq!((&packet["end"], &packet["dev"]), (&"sent".into(), &"s0".into()), "{packet}");
        assert_eq!(stages(packet), ["rx", "prerouting", "route", "postrouting", "queue", "tx"], "{packet}");
        let route = step(packet, "route");
        assert_eq!(
            (&route["prefix"], &route["kind"], &route["dev"]),
            (&"10.1.0.0/24".into(), &"connected".into(), &"s1".into())
        );
        let post = step(packet, "postrouting");
        assert!(post["before"].as_str().unwrap().starts_with("10.0.0.2."), "{packet}");
        assert!(post["after"].as_str().unwrap().starts_with("10.1.0.1."), "{packet}");
        assert!(post["conntrack"].is_u64(), "{packet}");
        let tx = step(packet, "tx");
        assert_eq!(tx["dev"], "s1");
        assert!(tx["packet"].as_str().unwrap().contains("IP 10.1.0.1."), "{packet}");
    }

    // As text.
    let output = trace(&world, &["s0", "-n", "1", "dst port 9"], 64, to);
    let shown = text(&output.stdout);
    let lines: Vec<_> = shown.lines().collect();
    assert!(lines[0].starts_with("1: ") && lines[0].contains(" IP 10.0.0.2."), "{shown}");
    for (line, expected) in lines[1..].iter().zip([
        " us  rx           s0 queue 0",
        " us  prerouting   10.0.0.2.",
        " us  route        10.1.0.0/24 connected dev s1 lladdr ",
        " becomes 10.1.0.1.",
        " us  queue        s1 queue 0",
        " us  tx           s1 queue 0: IP 10.1.0.1.",
    ]) {
        assert!(line.contains(expected), "{expected}: {shown}");
    }

    // Dropped, with the reason.
    for (ttl, to, reason) in [
        (1, SocketAddr::from((host(1), 10)), "ip_ttl"),
        (64, SocketAddr::from((near, 11)), "ip_noproto"),
        (64, SocketAddr::from(([198, 51, 100, 7], 12)), "ip_blackhole"),
        // A neighbour that there is not: it does not answer, or others that wait push the packet out.
        (64, SocketAddr::from(([10, 1, 0, 77], 13)), "neigh_"),
    ] {
        // Each by its port: of those before some may still be under way.
        let port = format!("dst port {}", to.port());
        let found = packets(&trace(&world, &["any", "-n", "1", "--json", &port], ttl, to));
        let packet = &found[0];
        assert_eq!(packet["end"], "dropped", "{packet}");
        assert!(step(packet, "drop")["reason"].as_str().unwrap().starts_with(reason), "{packet}");
        assert!(stages(packet).contains(&"route") && stages(packet).contains(&"slow path"), "{packet}");
        match reason {
            "ip_noproto" => assert_eq!(step(packet, "route")["kind"], "local"),
            "ip_blackhole" => assert_eq!(step(packet, "route")["prefix"], "198.51.100.0/24"),
            "neigh_" => assert_eq!(step(packet, "neighbour")["via"], "10.1.0.77"),
            _ => {}
        }
    }

    for (args, code, expected) in [
        (&["s7"][..], 1, "no device \"s7\"; there are: s0, s1"),
        (&["s0", "port", "http"], 2, "expected a port, 0 to 65535, found \"http\"\n  port http\n       ^"),
        (&["s0", "-n", "0"], 2, "0 is not in 1..=100000"),
    ] {
        let socket = world.socket();
        let output =
            Command::new(EXE).args(["trace", "--name", socket.to_str().unwrap()]).args(args).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(text(&output.stderr).contains(expected), "{output:?}");
    }
}

/// Traces at the same time: each shows its own packets, and those whole.
#[test]
fn traces_at_once_show_their_own_packets() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    let _process = world.running(&config);
    let to = [21, 22].map(|port| SocketAddr::from((host(1), port)));
    // The neighbour is known then.
    trace(&world, &["s0", "-n", "1", "dst port 21"], 64, to[0]);
    let args = ["dst port 21", "dst port 22"].map(|filter| ["s0", "-n", "3", "--json", filter]);
    let mut traces = args.map(|args| start(&world, &args));
    let client = world.hosts[0].run(|| UdpSocket::bind((host(0), 0)).unwrap()).unwrap();
    until("both end", || {
        to.iter().for_each(|to| _ = client.send_to(b"hello", to));
        traces.iter_mut().all(|trace| trace.try_wait().unwrap().is_some())
    });
    for (trace, port) in traces.into_iter().zip([21, 22]) {
        let found = packets(&trace.wait_with_output().unwrap());
        assert_eq!(found.len(), 3);
        for packet in &found {
            assert!(
                packet["packet"].as_str().unwrap().contains(&format!(" > 10.1.0.2.{port}: ")),
                "{packet}"
            );
            assert_eq!(
                (&packet["end"], stages(packet)),
                (&"sent".into(), vec!["rx", "route", "queue", "tx"])
            );
        }
    }
}
