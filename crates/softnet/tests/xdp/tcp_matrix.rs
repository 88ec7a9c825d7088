//! The kernel's TCP with each of its options on and off, and links of several sizes, against
//! softnet's sockets: both ways, in both families, every byte verified.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream};
use std::time::Duration;

use softnet::net::{TcpBuilder, TcpInfo};
use softnet_dev::netlink::Netlink;
use softnet_testkit::sysctl;

use super::follow::ip;
use super::world::{World, has_frags, host, host6, interface, softnet, softnet6};

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
const LEN: usize = 300_000;

/// Byte `at` of the stream that has this number.
fn byte(stream: usize, at: usize) -> u8 {
    (at * 31 % 251) as u8 ^ stream as u8
}

/// Writes a stream to its end, while the other one is read.
fn exchange<S>(end: &S, streams: [usize; 2], shutdown: impl Fn() + Sync)
where
    S: Sync,
    for<'a> &'a S: Read + Write,
{
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let data: Vec<u8> = (0..LEN).map(|at| byte(streams[0], at)).collect();
            let mut to = end;
            data.chunks(7001).for_each(|piece| to.write_all(piece).unwrap());
            shutdown();
        });
        let (mut from, mut got) = (end, Vec::new());
        from.read_to_end(&mut got).unwrap();
        assert_eq!(got.len(), LEN);
        let wrong = got.iter().enumerate().find(|(at, got)| **got != byte(streams[1], *at));
        assert_eq!(wrong, None, "place, and byte there");
    });
}

/// A connection from the kernel to softnet, and one back, in both families; softnet's view of both.
fn talk(world: &World, case: &str) -> Vec<TcpInfo> {
    let v6 = talk_as(world, case, true, &TcpBuilder::new(&world.handle()));
    [talk_as(world, case, false, &TcpBuilder::new(&world.handle())), v6].concat()
}

/// In one family, by softnet's sockets as `builder` has them.
fn talk_as(world: &World, case: &str, v6: bool, builder: &TcpBuilder) -> Vec<TcpInfo> {
    let mut infos = Vec::new();
    let (own, peer): (IpAddr, IpAddr) =
        if v6 { (softnet6(0).into(), host6(0).into()) } else { (softnet(0).into(), host(0).into()) };
    let (here, there) = (SocketAddr::from((own, 7)), SocketAddr::from((peer, 8080)));
    let listener = builder.listen(here).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let client = world.hosts[0].run(|| KernelStream::connect(here)).unwrap();
            let client = client.unwrap_or_else(|error| panic!("{case}, {here}: {error}"));
            client.set_read_timeout(LIMIT).unwrap();
            exchange(&client, [1, 2], || client.shutdown(Shutdown::Write).unwrap());
        });
        let (server, _) = listener.accept().unwrap();
        server.set_read_timeout(LIMIT).unwrap();
        exchange(&server, [2, 1], || server.shutdown(Shutdown::Write).unwrap());
        infos.push(server.info().unwrap());
    });
    let kernel = world.hosts[0].run(|| KernelListener::bind(there)).unwrap().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (server, _) = kernel.accept().unwrap();
            server.set_read_timeout(LIMIT).unwrap();
            exchange(&server, [3, 4], || server.shutdown(Shutdown::Write).unwrap());
        });
        let client = builder.connect(there);
        let client = client.unwrap_or_else(|error| panic!("{case}, {there}: {error}"));
        client.set_read_timeout(LIMIT).unwrap();
        exchange(&client, [4, 3], || client.shutdown(Shutdown::Write).unwrap());
        infos.push(client.info().unwrap());
    });
    infos
}

#[test]
fn the_kernels_options_are_agreed_on_or_done_without() {
    let Some(mut world) = World::dual(1) else { return };
    world.start_with(world.config_dual());
    const KNOBS: [&str; 3] = ["tcp_timestamps", "tcp_sack", "tcp_window_scaling"];
    for on in 0..1u8 << KNOBS.len() {
        for ecn in ["0", "1"] {
            world.hosts[0]
                .run(|| {
                    for (i, knob) in KNOBS.iter().enumerate() {
                        let value = if on >> i & 1 == 1 { "1" } else { "0" };
                        sysctl(&format!("ipv4/{knob}"), value).unwrap();
                    }
                    sysctl("ipv4/tcp_ecn", ecn).unwrap();
                })
                .unwrap();
            let case = format!("{KNOBS:?} {on:03b}, tcp_ecn {ecn}");
            // softnet agrees to ECN (`tcp_ecn` 2), and does not ask for it; its server's view comes first.
            for (i, info) in talk(&world, &case).into_iter().enumerate() {
                let has_ecn = i % 2 == 0 && ecn == "1";
                assert_eq!(info.options, on | u8::from(has_ecn) << 3, "{case}: {info:?}");
            }
        }
    }
    world.end();
}

/// Links of several sizes: segments are as long as fits, and none is longer.
#[test]
fn segments_fit_links_of_all_sizes() {
    for mtu in [1280, 1400, 1500, 3000, 9000] {
        if mtu > 1500 && !has_frags() {
            return;
        }
        let Some(mut world) = World::dual(1) else { return };
        let set = |name: &str| Netlink::new().unwrap().set_mtu(name, mtu).unwrap();
        world.middle.run(|| set(&interface(0))).unwrap();
        world.hosts[0].run(|| set("eth0")).unwrap();
        world.start_with(world.config_dual());
        for (i, info) in talk(&world, &format!("an MTU of {mtu}")).into_iter().enumerate() {
            let headers = if i < 2 { 40 } else { 60 };
            // Timestamps take 12 bytes of each segment.
            assert_eq!(info.send.snd_mss, mtu - headers - 12, "{info:?}");
        }
        world.end();
    }
}

/// The least that all hosts take (RFC 9293 3.7.1), with timestamps.
const MSS: u32 = 536;
const PAYLOAD: u32 = MSS - 12;

/// Small segments, where the kernel's route, softnet's sockets, or both announce that they take no others.
#[test]
fn small_segments_are_agreed_on_in_both_directions() {
    let Some(mut world) = World::dual(1) else { return };
    world.start_with(world.config_dual());
    let announce = || {
        for to in [format!("{}/32", softnet(0)), format!("{}/128", softnet6(0))] {
            ip(&world.hosts[0], &format!("route add {to} dev eth0 advmss {MSS}"));
        }
    };
    let small = || TcpBuilder::new(&world.handle()).max_segment_size(MSS as u16).unwrap();
    for case in ["softnet's sockets", "both", "the kernel's route"] {
        if case == "both" {
            announce();
        }
        let sockets = if case == "the kernel's route" { TcpBuilder::new(&world.handle()) } else { small() };
        for v6 in [false, true] {
            for info in talk_as(&world, case, v6, &sockets) {
                assert_eq!(info.send.snd_mss, PAYLOAD, "{case}: {info:?}");
                // What the kernel sends is short if softnet asks for it.
                assert!(info.rcv_mss <= PAYLOAD || case == "the kernel's route", "{case}: {info:?}");
            }
        }
    }
    world.end();
}

/// A link of 576 bytes, which IPv6 does not have.
#[test]
fn small_segments_fit_a_small_link() {
    let Some(mut world) = World::dual(1) else { return };
    let set = |name: &str| Netlink::new().unwrap().set_mtu(name, MSS + 40).unwrap();
    world.middle.run(|| set(&interface(0))).unwrap();
    world.hosts[0].run(|| set("eth0")).unwrap();
    world.start();
    for info in talk_as(&world, "a link of 576 bytes", false, &TcpBuilder::new(&world.handle())) {
        assert_eq!((info.send.snd_mss, info.rcv_mss), (PAYLOAD, PAYLOAD), "{info:?}");
    }
    world.end();
}
