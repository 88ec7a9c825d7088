//! Two stacks with a wire between them, which the test carries frames over, and loses some of.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use softnet::config::{Config, CongestionControl, InterfaceAddr, NeighbourConfig};
use softnet::net::{TcpListener, TcpStream};
use softnet_core::ip::checksum;
use softnet_core::ip::v4::header::{Ipv4Header, protocol};

use super::frames::{host, host_mac, own, own_mac};
use super::tcp::{LIMIT, byte, read, write};
use super::world::{Lane, Setup, World, until};

fn addresses(side: usize) -> [IpAddr; 2] {
    let v6: Ipv6Addr = ["fd00::1", "fd00::2"][side].parse().unwrap();
    [[own(0), host(0)][side].into(), v6.into()]
}

/// Two stacks, each the other's neighbour.
struct Pair {
    worlds: [World; 2],
    wire: JoinHandle<Vec<Lane>>,
    cut: Arc<AtomicBool>,
}

impl Pair {
    /// Of TCP's segments the wire loses every `lose`th; 0: none.
    fn start(lose: usize) -> Pair {
        Pair::start_with(lose, |_| {})
    }

    /// The same; `change` is made of both stacks' configuration.
    fn start_with(lose: usize, change: fn(&mut Config)) -> Pair {
        let config = |side: usize| {
            move |config: &mut Config| {
                change(config);
                config.routes.clear();
                let [v4, v6] = addresses(side);
                config.devices[0].addresses =
                    vec![InterfaceAddr::new(v4, 24).unwrap(), InterfaceAddr::new(v6, 64).unwrap()];
                let neighbour = |addr| NeighbourConfig::new("mem0", addr, host_mac(0));
                config.neighbours = addresses(1 - side).into_iter().map(neighbour).collect();
            }
        };
        let mut lanes = Vec::new();
        let worlds = [0, 1].map(|side| {
            let setup = Setup { ports: &[1], workers: 1, known: true, ..Setup::default() };
            let (world, mut lane) = setup.start_with(config(side));
            lanes.append(&mut lane);
            world
        });
        let cut = Arc::new(AtomicBool::new(false));
        let until = cut.clone();
        let wire = std::thread::spawn(move || {
            carry(&mut lanes, lose, &until);
            lanes
        });
        Pair { worlds, wire, cut }
    }

    fn end(self) {
        self.cut.store(true, Ordering::Relaxed);
        let lanes = self.wire.join().unwrap();
        for (world, lane) in self.worlds.into_iter().zip(lanes) {
            world.end(vec![lane]);
        }
    }
}

/// Takes frames from one end to the other, until the wire is cut.
fn carry(lanes: &mut [Lane], lose: usize, cut: &AtomicBool) {
    let (mut segments, mut frames) = (0, Vec::new());
    while !cut.load(Ordering::Relaxed) {
        let mut idle = true;
        for side in [0, 1] {
            lanes[side].receive(|frame| frames.push(frame.to_vec()));
            for mut frame in frames.drain(..) {
                let is_tcp = match frame[12..14] {
                    [0x08, 0x00] => frame[23] == 6,
                    [0x86, 0xdd] => frame[20] == 6,
                    _ => false,
                };
                assert!(frame.len() <= 1514, "a frame of {} bytes", frame.len());
                segments += usize::from(is_tcp);
                if !is_tcp || lose > 0 && segments % lose == 0 {
                    continue;
                }
                frame[..6].copy_from_slice(&own_mac(0));
                frame[6..12].copy_from_slice(&host_mac(0));
                // One for which there is no room is lost, as on any wire.
                lanes[1 - side].send(&[frame]);
                idle = false;
            }
        }
        if idle {
            std::thread::yield_now();
        }
    }
}

/// Both directions at once, of connections that either stack opens.
fn talk(pair: &Pair, len: usize) -> u32 {
    let mut retransmitted = 0;
    for (from, family) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let [client_on, server_on] = [from, 1 - from].map(|side| pair.worlds[side].handle());
        let at = SocketAddr::from((addresses(1 - from)[family], 80));
        let listener = TcpListener::bind(&server_on, at).unwrap();
        let client = TcpStream::connect(&client_on, at).unwrap();
        let (server, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), addresses(from)[family]);
        std::thread::scope(|scope| {
            for end in [&client, &server] {
                end.set_read_timeout(LIMIT).unwrap();
                scope.spawn(move || {
                    write(end, len);
                    end.shutdown(Shutdown::Write).unwrap();
                });
                scope.spawn(move || read(end, len));
            }
        });
        retransmitted +=
            [client, server].map(|end| end.info().unwrap().send.total_retrans).iter().sum::<u32>();
    }
    retransmitted
}

#[test]
fn two_stacks_exchange_bytes_over_a_wire() {
    let pair = Pair::start(0);
    [0, 1, 1448, 1_000_000].into_iter().for_each(|len| _ = talk(&pair, len));
    pair.end();
}

#[test]
fn what_the_wire_loses_is_sent_again() {
    let pair = Pair::start(50);
    assert!(talk(&pair, 500_000) > 0);
    pair.end();
}

/// What the discipline before the own device drops, a connection is told of: it sends that again, though no
/// ACK and no timer tells of it, and has slowed down.
#[test]
fn what_the_own_queue_drops_is_sent_again_unasked() {
    const LEN: usize = 14_000;
    let pair = Pair::start_with(0, |config| {
        config.tcp.tcp_congestion_control = CongestionControl::Reno;
        // Nothing but the host itself may tell of what is lost: no time-out and no probe of the tail comes
        // before the test gives up.
        (config.tcp.tcp_rto_min_us, config.tcp.tcp_early_retrans) = (120_000_000, 0);
        config.tcp.tcp_recovery = 0;
        // Room for the first segments of an initial window, and none for its end.
        config.devices[0].qdisc = Some("tbf rate 2mbit burst 3028 limit 4600".parse().unwrap());
    });
    let at = SocketAddr::from((addresses(1)[0], 80));
    let listener = TcpListener::bind(&pair.worlds[1].handle(), at).unwrap();
    let client = TcpStream::connect(&pair.worlds[0].handle(), at).unwrap();
    let (server, _) = listener.accept().unwrap();
    server.set_read_timeout(LIMIT).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| write(&client, LEN));
        scope.spawn(|| {
            let mut got = [0; LEN];
            (&server).read_exact(&mut got).unwrap();
            assert!(got.iter().enumerate().all(|(at, got)| *got == byte(at)));
        });
    });
    let rows = pair.worlds[0].view.qdiscs();
    let dropped: u64 = rows.iter().filter(|row| row.queue.is_none()).map(|row| row.drops).sum();
    let info = client.info().unwrap();
    assert!(dropped > 0, "{rows:?}");
    assert!(info.send.total_retrans > 0 && info.send.snd_ssthresh < 10, "{info:?}");
    drop((client, server, listener));
    pair.end();
}

/// A peer that is no longer there ends a connection by its options, and closing it in time leaves nothing.
#[test]
fn a_stack_that_stops_leaves_its_peer_alone() {
    let mut pair = Pair::start(0);
    let at = SocketAddr::from((addresses(1)[0], 80));
    let listener = TcpListener::bind(&pair.worlds[1].handle(), at).unwrap();
    let client = TcpStream::connect(&pair.worlds[0].handle(), at).unwrap();
    let (server, _) = listener.accept().unwrap();
    (&client).write_all(b"last words").unwrap();
    pair.worlds[1].stop();
    client.set_user_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
    client.set_read_timeout(LIMIT).unwrap();
    (&client).write_all(b"to nobody").unwrap();
    let error = client.recv(&mut [0; 9]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    drop((client, server, listener));
    pair.end();
}

/// A SYN from `port` of the host to port 80 of softnet.
fn syn(port: u16) -> Vec<u8> {
    let (mut frame, from, to) = (vec![0; 54], host(0).to_bits(), own(0).to_bits());
    frame[..6].copy_from_slice(&own_mac(0));
    frame[6..12].copy_from_slice(&host_mac(0));
    frame[12] = 8;
    Ipv4Header::new_mut(&mut frame[14..]).unwrap().fill(40, 0, 64, protocol::TCP, from, to);
    let tcp = &mut frame[34..];
    tcp[..2].copy_from_slice(&port.to_be_bytes());
    tcp[2..4].copy_from_slice(&80_u16.to_be_bytes());
    (tcp[12], tcp[13], tcp[14]) = (5 << 4, 2, 0x40);
    tcp[16..18].copy_from_slice(&checksum::pseudo_header_sum(from, to, protocol::TCP, 20).to_be_bytes());
    let check = checksum::checksum(tcp);
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
    frame
}

/// What answers SYNs is of no connection. They are of nearly as many shards as there are of them, and
/// their answers leave together all the same.
#[test]
fn a_burst_of_syns_is_answered_by_a_burst() {
    let (world, mut lanes, handle) = super::tcp::start();
    let listener = TcpListener::bind(&handle, (own(0), 80)).unwrap();
    let owned = || world.view.qdiscs().iter().filter_map(|row| Some(row.tx.as_ref()?.owned)).sum::<u64>();
    let before = owned();
    let syns: Vec<_> = (0..64).map(|n| syn(2000 + n)).collect();
    assert_eq!(lanes[0].send(&syns), syns.len());
    let mut answered = 0;
    until("each is answered", || {
        lanes[0].receive(|frame| answered += usize::from(frame[23] == protocol::TCP && frame[47] == 0x12));
        answered == syns.len()
    });
    let times = owned() - before;
    // The worker may have come upon them half-way, and has looked at what was sent.
    assert!(times <= 16, "the TX queue had {times} owners for {answered} answers");
    drop(listener);
    world.end(lanes);
}
