//! What softnet's TCP sends waits before the device, or in the connection: nothing of it is lost there.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener as KernelListener};
use std::time::Duration;

use softnet::config::CongestionControl;
use softnet::control::show::QdiscRow;
use softnet::driver::Xdp;
use softnet::net::{TcpInfo, TcpStream};

use super::world::{World, host, interface};

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

/// Byte `at` of the stream that has this number.
fn byte(stream: usize, at: usize) -> u8 {
    (at * 31 % 251) as u8 ^ stream as u8
}

/// Sends `len` bytes by each of `streams` connections at once to the kernel, which verifies them; what the
/// connections knew in the end.
fn send(world: &World, streams: usize, len: usize) -> Vec<TcpInfo> {
    let peer = SocketAddr::from((host(0), 8080));
    let listener = world.hosts[0].run(|| KernelListener::bind(peer)).unwrap().unwrap();
    let handle = world.handle();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            std::thread::scope(|scope| {
                for _ in 0..streams {
                    let (mut server, _) = listener.accept().unwrap();
                    server.set_read_timeout(LIMIT).unwrap();
                    scope.spawn(move || {
                        let mut got = Vec::new();
                        server.read_to_end(&mut got).unwrap();
                        let stream = usize::from(got[0]);
                        assert!(got.iter().enumerate().all(|(at, got)| *got == byte(stream, at)));
                        assert_eq!(got.len(), len);
                        server.write_all(b"all").unwrap();
                    });
                }
            });
        });
        let senders: Vec<_> = (0..streams)
            .map(|stream| {
                let handle = handle.clone();
                scope.spawn(move || {
                    let client = TcpStream::connect(&handle, peer).unwrap();
                    client.set_read_timeout(LIMIT).unwrap();
                    client.set_write_timeout(LIMIT).unwrap();
                    let data: Vec<u8> = (0..len).map(|at| byte(stream, at)).collect();
                    (&client).write_all(&data).unwrap();
                    client.shutdown(Shutdown::Write).unwrap();
                    let mut answer = [0; 3];
                    (&client).read_exact(&mut answer).unwrap();
                    client.info().unwrap()
                })
            })
            .collect();
        receiver.join().unwrap();
        senders.into_iter().map(|sender| sender.join().unwrap()).collect()
    })
}

fn discipline(world: &World) -> QdiscRow {
    let rows = world.view().qdiscs();
    rows.into_iter().find(|row| row.dev == interface(0) && row.queue.is_none()).unwrap()
}

/// At 40 Mbit/s Reno's slow start would put as much before the device as the peer's window takes, which is more than the
/// discipline has room for: what is beyond two of the longest runs the connection keeps.
#[test]
fn a_shaped_device_drops_nothing_of_its_own_connection() {
    let Some(mut world) = World::new(1) else { return };
    let mut config = world.config();
    config.tcp.tcp_congestion_control = CongestionControl::Reno;
    config.devices[0].qdisc = Some("tbf rate 40mbit burst 20000 limit 256000".parse().unwrap());
    world.start_with(config);
    let infos = send(&world, 1, 3_000_000);
    let row = discipline(&world);
    assert_eq!(row.drops, 0, "{row:?}, {infos:?}");
    assert!(row.overlimits > 0, "it was the bottleneck: {row:?}");
    world.end();
}

/// A ring of 128 frames takes what it has room for; the rest waits.
#[test]
fn a_small_ring_loses_nothing() {
    let Some(mut world) = World::new(1) else { return };
    let mut config = world.config();
    config.devices[0].driver = Xdp::default().with(|xdp| xdp.ring = 128).into();
    world.start_with(config);
    let infos = send(&world, 4, 3_000_000);
    let dropped: Vec<_> = world.view().drops().into_iter().filter(|row| row.packets > 0).collect();
    let of_tx = ["full_ring", "qdisc_drop", "qdisc_overlimit", "qdisc_burst_drop"];
    assert!(dropped.iter().all(|row| !of_tx.contains(&&*row.reason)), "{dropped:?}");
    assert!(infos.iter().all(|info| info.bytes_received == 3), "{infos:?}");
    world.end();
}
