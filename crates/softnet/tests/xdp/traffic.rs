//! Kernel traffic through softnet, to softnet, and past it.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use softnet::config::Context;
use softnet::control::{Set, Target};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;

use super::hosts::{Echo, Icmp, Message, ask, tcp};
use super::world::{World, host, interface, kernel, softnet, until};

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + len) as u8).collect()
}

/// Pings `to` until the reply comes.
fn assert_ping(icmp: &Icmp, to: Ipv4Addr, len: usize) {
    let to = IpAddr::V4(to);
    until(&format!("a ping of {to}"), || {
        let reply = icmp.ping(to, 64, &payload(len));
        icmp.receive(|message| message.from == to && message.kind == (0, 0))
            .is_some_and(|message| message.bytes == reply)
    });
}

#[test]
fn ping_udp_and_tcp_pass_intact() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let _echoes = world.echoes();
    for (from, to) in [(0, 1), (1, 0)] {
        let icmp = Icmp::new(&world.hosts[from]);
        for len in [0, 1, 56, 1472] {
            assert_ping(&icmp, host(to), len);
            assert_ping(&icmp, softnet(from), len);
            assert_ping(&icmp, softnet(to), len);
        }
        for len in [0, 1, 18, 700, 1472] {
            until("an echo", || world.hosts[from].run(|| ask(host(to), &payload(len))).unwrap());
        }
        tcp(&world.hosts[from], &world.hosts[to], host(to), 500_000);
    }
    let drops = world.view().drops();
    assert!(drops.iter().all(|row| row.reason == "qdisc_overlimit"), "{drops:?}");
    world.end();
}

/// Each millisecond another context, while the kernels talk: UDP arrives intact, and TCP too.
#[test]
fn contexts_are_switched_under_traffic() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let _echoes = world.echoes();
    world.assert_connected();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (view, over) = (world.view().clone(), &over);
        let switches = scope.spawn(move || {
            let mut n = 0;
            while !over.load(Ordering::Relaxed) {
                // Both devices go round, in different steps.
                for (dev, threaded) in [(0, Context::ALL[n % 4]), (1, Context::ALL[n / 3 % 4])] {
                    let set = Set { target: Target::Dev(interface(dev)), threaded };
                    let rows = view.set(set).unwrap();
                    assert!(rows.iter().all(|row| row.context == threaded));
                }
                n += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            n
        });
        for len in 0..100 {
            until("an echo", || world.hosts[0].run(|| ask(host(1), &payload(len))).unwrap());
        }
        tcp(&world.hosts[0], &world.hosts[1], host(1), 5_000_000);
        tcp(&world.hosts[1], &world.hosts[0], host(0), 5_000_000);
        over.store(true, Ordering::Relaxed);
        assert!(switches.join().unwrap() > 1);
    });
    let drops = world.view().drops();
    assert!(drops.iter().all(|row| row.reason == "qdisc_overlimit"), "{drops:?}");
    world.end();
}

#[test]
fn softnet_says_what_is_wrong() {
    let Some(mut world) = World::new(2) else { return };
    for (ns, name) in [(&world.middle, interface(1)), (&world.hosts[1], "eth0".into())] {
        ns.run(|| Netlink::new().unwrap().set_mtu(&name, 1400).unwrap()).unwrap();
    }
    world.start();
    let _echoes = world.echoes();
    let client = &world.hosts[0];
    let icmp = Icmp::new(client);
    assert_ping(&icmp, host(1), 10);
    // Traceroute: the first hop is softnet, the second is there.
    let says = |message: &Message, kind| message.from == IpAddr::V4(softnet(0)) && message.kind == kind;
    until("time exceeded", || {
        icmp.ping(host(1), 1, b"how far?");
        icmp.receive(|message| says(message, (11, 0))).is_some_and(|message| {
            assert!(message.bytes.ends_with(b"how far?"));
            true
        })
    });
    until("the second hop", || {
        icmp.ping(host(1), 2, b"how far?");
        icmp.receive(|message| message.from == IpAddr::V4(host(1)) && message.kind == (0, 0)).is_some()
    });
    // No socket serves UDP here.
    until("port unreachable", || {
        let socket = client.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.connect((softnet(0), 9)).unwrap();
        let _ = socket.send(b"anybody?");
        socket.recv(&mut [0; 9]).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    // Nor TCP.
    until("a reset", || {
        let connected = client.run(|| TcpStream::connect((softnet(0), 9))).unwrap();
        connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    until("net unreachable", || {
        icmp.ping(Ipv4Addr::new(172, 16, 0, 1), 64, b"");
        icmp.receive(|message| says(message, (3, 0))).is_some()
    });
    until("host unreachable", || {
        icmp.ping(Ipv4Addr::new(10, 1, 0, 77), 64, b"");
        icmp.receive(|message| says(message, (3, 1))).is_some()
    });
    // The kernel sends with don't-fragment set, is told what fits, and sends fragments from then on.
    until("path MTU discovery", || client.run(|| ask(host(1), &payload(1450))).unwrap());
    let drops = world.view().drops();
    assert!(drops.iter().any(|row| row.reason == "pkt_too_big"), "{drops:?}");
    tcp(client, &world.hosts[1], host(1), 100_000);
    world.end();
}

/// What the kernel in `ns` counted as ICMP with a wrong checksum.
fn icmp_checksum_errors(ns: &NetNs) -> u64 {
    let snmp = ns.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap()).unwrap();
    let mut lines = snmp.lines().filter(|line| line.starts_with("Icmp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|name| name == "InCsumErrors").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// The reply to an echo request of nothing but zeros has a checksum that the kernel takes: the one by
/// difference is 0, which it does not.
#[test]
fn the_kernel_takes_an_echo_of_zeros() {
    let Some(mut world) = World::new(1) else { return };
    world.start();
    let icmp = Icmp::new(&world.hosts[0]);
    let zeros = [&[8, 0, 0xf7, 0xff][..], &[0; 60]].concat();
    until("the reply", || {
        icmp.send(softnet(0), &zeros);
        let from_softnet =
            |message: &Message| message.from == IpAddr::V4(softnet(0)) && message.kind == (0, 0);
        icmp.receive(from_softnet).is_some_and(|reply| {
            assert_eq!(reply.bytes, [&[0, 0, 0xff, 0xff][..], &[0; 60]].concat());
            true
        })
    });
    assert_eq!(icmp_checksum_errors(&world.hosts[0]), 0);
    world.end();
}

/// The interface is softnet's and the kernel's: what is addressed to the kernel there goes to the kernel.
#[test]
fn the_kernel_keeps_its_own_address() {
    let Some(mut world) = World::new(2) else { return };
    let _kernels = Echo::start(&world.middle);
    world.start();
    let _echoes = world.echoes();
    for i in [0, 1] {
        assert_ping(&Icmp::new(&world.hosts[i]), kernel(i), 100);
        until("an echo of the kernel", || world.hosts[i].run(|| ask(kernel(i), &payload(900))).unwrap());
        tcp(&world.hosts[i], &world.middle, kernel(i), 100_000);
    }
    world.assert_connected();
    // softnet had no part in it.
    let stats = world.view().stats();
    assert!(stats.received < 100, "{stats:?}");
    world.end();
}
