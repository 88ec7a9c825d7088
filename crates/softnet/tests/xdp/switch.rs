//! Queues are switched between contexts each millisecond, under an open load of 70 % of what passes at most.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use softnet::config::Context;
use softnet::control::{Set, Target};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::{Sink, SinkFilter};

use super::world::{World, host, interface, until};

/// Not the port of the echo servers.
const PORT: u16 = 9;
/// Flows, each from a port of its own; both queues get some.
const FLOWS: usize = 16;
/// Packets that may be on the way while capacity is measured.
const WINDOW: u64 = 128;
const CAPACITY_TIME: Duration = Duration::from_millis(300);

/// How long to go on: a few seconds, or as many as the environment says.
fn duration() -> Duration {
    let seconds = std::env::var("SOFTNET_SWITCH_SECONDS").ok().and_then(|s| s.parse().ok());
    Duration::from_secs(seconds.unwrap_or(3))
}

#[derive(Default)]
struct Load {
    sent: AtomicU64,
    arrived: AtomicU64,
    /// Packets a second; 0: as many as arrive.
    rate: AtomicU64,
    over: AtomicBool,
    /// Everything that could arrive has.
    done: AtomicBool,
}

impl Load {
    /// Sends numbered packets of all flows in turn.
    fn offer(&self) {
        let socket = || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            socket.connect((host(1), PORT)).unwrap();
            socket
        };
        let sockets: [UdpSocket; FLOWS] = std::array::from_fn(|_| socket());
        let (mut number, mut due, mut from) = (0u32, 0.0, Instant::now());
        while !self.over.load(Ordering::Relaxed) {
            let rate = self.rate.load(Ordering::Relaxed) as f64;
            let since = from.elapsed();
            from += since;
            if rate == 0.0 {
                let room =
                    || self.sent.load(Ordering::Relaxed) < self.arrived.load(Ordering::Acquire) + WINDOW;
                // A packet may be lost where the test cannot help it; measuring goes on.
                let give_up = Instant::now() + Duration::from_millis(20);
                while !room() && Instant::now() < give_up {
                    std::thread::yield_now();
                }
                due = FLOWS as f64;
            } else {
                due = (due + rate * since.as_secs_f64()).min(WINDOW as f64);
            }
            while due >= FLOWS as f64 {
                due -= FLOWS as f64;
                for (flow, socket) in sockets.iter().enumerate() {
                    let payload = [(flow as u32).to_be_bytes(), number.to_be_bytes()].concat();
                    // What the kernel has no room for was not sent.
                    self.sent.fetch_add(u64::from(socket.send(&payload).is_ok()), Ordering::Relaxed);
                }
                number += 1;
            }
            if rate > 0.0 {
                std::thread::sleep(Duration::from_micros(300));
            }
        }
    }

    /// Takes what arrives; no flow may go back.
    fn take(&self, socket: &UdpSocket) {
        let mut last = [None; FLOWS];
        let mut payload = [0; 64];
        while !self.done.load(Ordering::Relaxed) {
            let Ok(8) = socket.recv(&mut payload) else { continue };
            let word = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
            let (flow, number) = (word(0) as usize, word(4));
            let before = last[flow].replace(number);
            assert!(before < Some(number), "flow {flow}: {before:?}, then {number}");
            self.arrived.fetch_add(1, Ordering::Release);
        }
    }
}

/// Packets that something between the two sockets says it had no room for.
fn lost(world: &World) -> u64 {
    let counters =
        |ns: &NetNs, name: &str| ns.run(|| Netlink::new().unwrap().counters(name).unwrap()).unwrap();
    let (inward, outward) = (counters(&world.middle, &interface(0)), counters(&world.middle, &interface(1)));
    let udp = |name: &str| {
        let text =
            world.hosts[1].run(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap()).unwrap();
        let lines: Vec<Vec<&str>> =
            text.lines().filter(|l| l.starts_with("Udp:")).map(|l| l.split(' ').collect()).collect();
        lines[0].iter().position(|key| *key == name).map_or(0, |at| lines[1][at].parse::<u64>().unwrap())
    };
    let stats = world.view().stats();
    inward.rx_dropped
        + outward.tx_dropped
        + counters(&world.hosts[1], "eth0").rx_dropped
        + stats.dropped
        + udp("RcvbufErrors")
}

#[test]
fn switching_under_traffic_loses_and_reorders_nothing() {
    let Some(mut world) = World::new(2) else { return };
    // What a veth without an XDP program receives it puts on the backlog of the CPU that it was sent on, where packets of
    // threads on different CPUs pass each other. With one, which takes nothing of the load, they go through one ring.
    let in_order = world.hosts[1].run(|| {
        let link = Netlink::new().unwrap().existing_link("eth0").unwrap();
        Sink::attach(link.index, SinkFilter::UdpPort(PORT + 1)).unwrap()
    });
    world.start();
    let echoes = world.echoes();
    world.assert_connected();
    drop(echoes);
    let socket = world.hosts[1].run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap()).unwrap();
    set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (load, before) = (Load::default(), lost(&world));
    let mut switches = 0;
    std::thread::scope(|scope| {
        let sources = scope.spawn(|| world.hosts[0].run(|| load.offer()).unwrap());
        let sink = scope.spawn(|| load.take(&socket));
        std::thread::sleep(CAPACITY_TIME);
        let capacity = load.arrived.load(Ordering::Relaxed) as f64 / CAPACITY_TIME.as_secs_f64();
        load.rate.store((0.7 * capacity).max(1000.0) as u64, Ordering::Relaxed);
        let (view, start) = (world.view(), Instant::now());
        let ids: Vec<u32> = view.napis().iter().map(|row| row.id).collect();
        while start.elapsed() < duration() && !sink.is_finished() {
            // Devices and queues go round, in different steps.
            let threaded = Context::ALL[switches / 5 % 4];
            let target = match switches % 5 {
                dev @ (0 | 1) => Target::Dev(interface(dev)),
                other => Target::Napi(ids[other % ids.len()]),
            };
            assert!(view.set(Set { target, threaded }).unwrap().iter().all(|row| row.context == threaded));
            switches += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        load.over.store(true, Ordering::Relaxed);
        sources.join().unwrap();
        let missing = || load.sent.load(Ordering::Relaxed) - load.arrived.load(Ordering::Relaxed);
        until("every packet, or its loss", || sink.is_finished() || missing() <= lost(&world) - before);
        load.done.store(true, Ordering::Relaxed);
        sink.join().unwrap();
    });
    assert!(switches > 1);
    let drops = world.view().drops();
    let full = |reason: &str| matches!(reason, "qdisc_overlimit" | "qdisc_burst_drop");
    assert!(drops.iter().all(|row| full(&row.reason)), "{drops:?}");
    world.end();
    drop(in_order);
}
