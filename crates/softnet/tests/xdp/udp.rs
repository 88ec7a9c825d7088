//! softnet's UDP sockets, and the kernel's at the other end of the wire.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as KernelSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use softnet::config::{InterfaceAddr, RouteConfig, RouteTarget};
use softnet::net::{Received, RecvBatch, UdpSocket};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;

use super::hosts::{Echo, ask};
use super::world::{World, host, host6, softnet, softnet6, until};

const RETRY: Duration = Duration::from_millis(200);

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + len) as u8).collect()
}

/// Ends what runs until then, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends back what comes, until `over`.
fn echo(socket: &UdpSocket, over: &AtomicBool) {
    socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let mut batch = RecvBatch::new();
    while !over.load(Ordering::Relaxed) {
        if socket.recv_batch(&mut batch, 64).is_err() {
            continue;
        }
        // One that came in fragments is in pieces.
        let whole = |r: Received<'_>| (r.parts().collect::<Vec<_>>().concat(), r.reply());
        let answers: Vec<_> = batch.iter().map(whole).collect();
        // What cannot be sent now is asked for again.
        let messages: Vec<_> = answers.iter().map(|(data, to)| (&data[..], *to)).collect();
        let _ = socket.send_batch(&messages);
    }
}

#[test]
fn kernel_sockets_are_answered_and_asked() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let _echoes = world.echoes();
    let handle = world.handle();
    let server = UdpSocket::bind(&handle, "0.0.0.0:7").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| echo(&server, &over));
        for len in [0, 1, 2, 17, 18, 19, 500, 1471, 1472] {
            for i in [0, 1] {
                until("softnet answers", || world.hosts[i].run(|| ask(softnet(i), &payload(len))).unwrap());
                // The other way round, connected and not.
                let socket = UdpSocket::bind(&handle, "0.0.0.0:0").unwrap();
                socket.set_read_timeout(Some(RETRY)).unwrap();
                let mut buffer = [0; 2048];
                let peer = SocketAddr::from((host(i), 7));
                until("the kernel answers", || {
                    socket.send_to(&payload(len), peer).unwrap();
                    let Ok((n, from)) = socket.recv_from(&mut buffer) else { return false };
                    assert_eq!((&buffer[..n], from), (&payload(len)[..], peer));
                    true
                });
                socket.connect(peer).unwrap();
                assert_eq!(socket.local_addr().unwrap().ip(), softnet(i));
                until("the kernel answers", || {
                    socket.send(&payload(len)).unwrap();
                    socket.recv(&mut buffer).is_ok_and(|n| buffer[..n] == payload(len))
                });
            }
        }
    });
    assert!(server.incoming_napi_id() >= 8193);
    drop(server);
    world.end();
}

/// A socket that is connected, as a resolver's, takes no answer from another address than it asked.
#[test]
fn an_answer_comes_from_the_address_that_was_asked() {
    let Some(mut world) = World::dual(2) else { return };
    let second = (Ipv4Addr::new(10, 0, 0, 9), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9));
    let mut config = world.config_dual();
    let more = [InterfaceAddr::new(second.0, 24), InterfaceAddr::new(second.1, 64)];
    config.devices[0].addresses.extend(more.map(Result::unwrap));
    world.start_with(config);
    let handle = world.handle();
    let server = UdpSocket::bind(&handle, "[::]:7").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| echo(&server, &over));
        // Those of the device by which it comes, and one of the other.
        let asked: [IpAddr; 6] = [
            softnet(0).into(),
            second.0.into(),
            softnet(1).into(),
            softnet6(0).into(),
            second.1.into(),
            softnet6(1).into(),
        ];
        for asked in asked {
            let any = if asked.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = world.hosts[0].run(|| KernelSocket::bind(any).unwrap()).unwrap();
            socket.set_read_timeout(Some(RETRY)).unwrap();
            socket.connect((asked, 7)).unwrap();
            // The last one in fragments.
            for len in [9, 1400, 5000] {
                let mut buffer = [0; 6000];
                until(&format!("{asked} answers"), || {
                    socket.send(&payload(len)).unwrap();
                    socket.recv(&mut buffer).is_ok_and(|n| buffer[..n] == payload(len))
                });
            }
        }
    });
    drop(server);
    world.end();
}

#[test]
fn a_port_that_is_not_served_is_an_error_on_either_side() {
    let Some(mut world) = World::new(1) else { return };
    world.start();
    let handle = world.handle();
    let socket = UdpSocket::bind(&handle, (softnet(0), 0)).unwrap();
    socket.set_read_timeout(Some(RETRY)).unwrap();
    socket.connect((host(0), 9)).unwrap();
    until("the kernel refuses", || {
        let sent = socket.send(b"anybody there?");
        let refused = |kind| kind == ErrorKind::ConnectionRefused;
        sent.is_err_and(|e| refused(e.kind())) || socket.recv(&mut [0; 9]).is_err_and(|e| refused(e.kind()))
    });
    // No host is at that address: the neighbour does not answer.
    socket.connect((Ipv4Addr::new(10, 0, 0, 77), 9)).unwrap();
    until("the host is unreachable", || {
        let sent = socket.send(b"anybody there?");
        sent.is_err_and(|error| error.kind() == ErrorKind::HostUnreachable)
    });
    // And softnet refuses, once the socket is closed.
    let local = socket.local_addr().unwrap();
    drop(socket);
    let kernel = world.hosts[0].run(|| KernelSocket::bind((host(0), 0)).unwrap()).unwrap();
    kernel.set_read_timeout(Some(RETRY)).unwrap();
    kernel.connect(local).unwrap();
    until("softnet refuses", || {
        let _ = kernel.send(b"anybody there?");
        kernel.recv(&mut [0; 9]).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    world.end();
}

#[test]
fn kernel_flows_spread_over_sockets_that_share_a_port() {
    let Some(mut world) = World::new(1) else { return };
    world.start();
    let handle = world.handle();
    let open = || UdpSocket::builder(&handle).reuse_port(true).bind((softnet(0), 7)).unwrap();
    let sockets: Vec<UdpSocket> = (0..4).map(|_| open()).collect();
    let counts = std::sync::Mutex::new([0; 4]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for (member, socket) in sockets.iter().enumerate() {
            let (over, counts) = (&over, &counts);
            scope.spawn(move || {
                socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
                let mut buffer = [0; 64];
                while !over.load(Ordering::Relaxed) {
                    if let Ok((n, from)) = socket.recv_from(&mut buffer) {
                        counts.lock().unwrap()[member] += 1;
                        let _ = socket.send_to(&buffer[..n], from);
                    }
                }
            });
        }
        for _ in 0..100 {
            until("one of them answers", || world.hosts[0].run(|| ask(softnet(0), b"who are you?")).unwrap());
        }
    });
    let counts = counts.into_inner().unwrap();
    assert!(counts.iter().all(|n| *n >= 5) && counts.iter().sum::<i32>() >= 100, "{counts:?}");
    drop(sockets);
    world.end();
}

/// The interface goes away under the sockets, and comes back.
#[test]
fn sockets_outlive_their_interface() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let handle = world.handle();
    let server = UdpSocket::bind(&handle, (softnet(0), 7)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| echo(&server, &over));
        for _ in 0..2 {
            until("softnet answers", || world.hosts[0].run(|| ask(softnet(0), b"before")).unwrap());
            world.unplug(0);
            until("there is no way any more", || server.send_to(b"x", (host(0), 9)).is_err());
            world.plug(0);
        }
        until("softnet answers again", || world.hosts[0].run(|| ask(softnet(0), b"after")).unwrap());
    });
    drop(server);
    world.end();
}

/// From one byte to the longest that there is, cut into fragments by one end and put together by the other, in both families
/// by one socket.
#[test]
fn datagrams_of_any_size_are_answered_in_both_families() {
    let Some(mut world) = World::dual(1) else { return };
    world.start_with(world.config_dual());
    let handle = world.handle();
    let server = UdpSocket::bind(&handle, "[::]:7").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| echo(&server, &over));
        for len in [0, 1, 1232, 1452, 1453, 1472, 1473, 2959, 2960, 2961, 20_000, 65_506, 65_507] {
            for to in [IpAddr::V4(softnet(0)), IpAddr::V6(softnet6(0))] {
                until("softnet answers", || world.hosts[0].run(|| ask(to, &payload(len))).unwrap());
            }
        }
    });
    let too_long = |to: IpAddr, len| {
        let socket = UdpSocket::bind(&handle, "[::]:0").unwrap();
        socket.send_to(&payload(len), (to, 9)).unwrap_err().raw_os_error() == Some(90)
    };
    assert!(too_long(host(0).to_ipv6_mapped().into(), 65_508) && too_long(host6(0).into(), 65_528));
    drop(server);
    world.end();
}

#[test]
fn sockets_of_ipv6_ask_are_refused_and_bind_to_what_is_ours() {
    let Some(mut world) = World::dual(1) else { return };
    world.start_with(world.config_dual());
    let _echoes = world.echoes();
    let handle = world.handle();
    let socket = UdpSocket::bind(&handle, "[::]:0").unwrap();
    socket.set_read_timeout(Some(RETRY)).unwrap();
    let mut buffer = vec![0; 1 << 16];
    for (len, to) in [(5, host6(0)), (5000, host6(0)), (5, host(0).to_ipv6_mapped())] {
        let peer = SocketAddr::from((to, 7));
        until("the kernel answers", || {
            socket.send_to(&payload(len), peer).unwrap();
            let Ok((n, from)) = socket.recv_from(&mut buffer) else { return false };
            assert!(buffer[..n] == payload(len) && from == peer, "{n} bytes came from {from}");
            true
        });
    }
    let socket = UdpSocket::bind(&handle, (softnet6(0), 0)).unwrap();
    socket.set_read_timeout(Some(RETRY)).unwrap();
    socket.connect((host6(0), 9)).unwrap();
    assert_eq!(socket.local_addr().unwrap().ip(), softnet6(0));
    let refused = |kind| kind == ErrorKind::ConnectionRefused;
    until("the kernel refuses", || {
        let sent = socket.send(b"anybody there?");
        sent.is_err_and(|e| refused(e.kind())) || socket.recv(&mut [0; 9]).is_err_and(|e| refused(e.kind()))
    });
    // To ourselves, and to a port without a socket.
    let here = UdpSocket::bind(&handle, (softnet6(0), 7)).unwrap();
    let there = UdpSocket::bind(&handle, "[::]:0").unwrap();
    there.send_to(b"hello", (softnet6(0), 7)).unwrap();
    assert_eq!(here.recv_from(&mut buffer).unwrap().0, 5);
    let kind = |result: std::io::Result<usize>| result.unwrap_err().kind();
    // On whose link?
    assert_eq!(kind(there.send_to(b"x", "[fe80::1]:7")), ErrorKind::InvalidInput);
    assert_eq!(UdpSocket::bind(&handle, (host6(0), 7)).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
    drop((socket, here, there));
    world.end();
}

/// Behind a router of the kernel's is a link with a smaller MTU, which softnet's sockets learn of by what the router says.
#[test]
fn sockets_learn_what_the_path_takes() {
    const MTU: u32 = 1300;
    let Some(mut world) = World::dual(1) else { return };
    let far = NetNs::new().unwrap();
    let (near4, far4) = (Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2));
    let [near6, far6] = [1, 2].map(|end| Ipv6Addr::new(0xfd00, 0, 0, 9, 0, 0, 0, end));
    let end = |name: &str, four: Ipv4Addr, six: Ipv6Addr| {
        let mut netlink = Netlink::new().unwrap();
        netlink.set_mtu(name, MTU).unwrap();
        netlink.add_address(name, four, 24).unwrap();
        netlink.add_address(name, six, 64).unwrap();
        netlink.set_up(name).unwrap();
    };
    world.hosts[0]
        .run(|| {
            for knob in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                std::fs::write(format!("/proc/sys/net/{knob}"), "1").unwrap();
            }
            Netlink::new().unwrap().add_veth("far", "eth0", (1, 1), Some(&far)).unwrap();
            end("far", near4, near6);
        })
        .unwrap();
    far.run(|| {
        end("eth0", far4, far6);
        Netlink::new().unwrap().add_route(Ipv4Addr::UNSPECIFIED, 0, near4).unwrap();
        Netlink::new().unwrap().add_route(Ipv6Addr::UNSPECIFIED, 0, near6).unwrap();
    })
    .unwrap();
    let mut config = world.config_dual();
    for (to, gateway) in [("10.9.0.0/24", IpAddr::from(host(0))), ("fd00:0:0:9::/64", host6(0).into())] {
        config.routes.push(RouteConfig::new(to.parse().unwrap(), RouteTarget::Via(gateway)));
    }
    world.start_with(config);
    let _echo = Echo::start(&far);
    let handle = world.handle();
    for (own, to) in [(IpAddr::from(softnet(0)), IpAddr::from(far4)), (softnet6(0).into(), far6.into())] {
        let socket = UdpSocket::bind(&handle, (own, 0)).unwrap();
        socket.set_read_timeout(Some(RETRY)).unwrap();
        let mut buffer = [0; 4096];
        let mut asks = |len: usize| {
            let _ = socket.send_to(&payload(len), (to, 7));
            socket.recv_from(&mut buffer).is_ok_and(|(n, _)| buffer[..n] == payload(len))
        };
        until("the far end answers", || asks(100));
        assert!(!asks(1400), "in one piece it does not pass");
        until("fragments pass", || asks(1400));
        until("several of them", || asks(4000));
    }
    world.end();
}
