//! What of an interface is softnet's, and what stays the kernel's, which lives on it as well.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::net::{UdpSocket as KernelSocket, UdpSocket};
use std::time::Duration;

use softnet::config::{Config, InterfaceAddr};
use softnet::driver::{Xdp, XdpMode};
use softnet::net;
use softnet_core::ip::checksum;
use softnet_core::ip::v6::addr::link_local;
use softnet_dev::netlink::{Link, Netlink};
use softnet_dev::netns::NetNs;
use softnet_dev::packet::PacketSocket;
use softnet_testkit::UdpFrame;

use super::hosts::{Icmp, ask};
use super::world::{World, host, host6, interface, kernel, softnet, until};

const RETRY: Duration = Duration::from_millis(200);
const MODES: [XdpMode; 2] = [XdpMode::Auto, XdpMode::Skb];

fn link(ns: &NetNs, name: &str) -> Link {
    ns.run(|| Netlink::new().unwrap().existing_link(name).unwrap()).unwrap()
}

fn packet_socket(ns: &NetNs, name: &str) -> PacketSocket {
    let index = link(ns, name).index;
    ns.run(|| PacketSocket::open(index, &[]).unwrap()).unwrap()
}

fn in_mode(mut config: Config, mode: XdpMode) -> Config {
    config.devices.iter_mut().for_each(|device| device.driver.get_mut::<Xdp>().unwrap().mode = mode);
    config
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + len) as u8).collect()
}

/// A datagram of host `i`'s to `dst` and `port`, in a frame to softnet's interface.
fn datagram(world: &World, i: usize, dst: Ipv4Addr, port: u16) -> Vec<u8> {
    let (src_mac, dst_mac) = (link(&world.hosts[i], "eth0").mac, link(&world.middle, &interface(i)).mac);
    let src = host(i);
    UdpFrame { src_mac, dst_mac, src, dst, src_port: 9, dst_port: port, len: 100 }.build()
}

#[test]
fn frames_with_a_priority_tag_are_received_and_forwarded() {
    for mode in MODES {
        let Some(mut world) = World::new(2) else { return };
        world.start_with(in_mode(world.config(), mode));
        let server = net::UdpSocket::bind(&world.handle(), "0.0.0.0:7").unwrap();
        server.set_read_timeout(Some(RETRY)).unwrap();
        let receiver = world.hosts[1].run(|| KernelSocket::bind((host(1), 7)).unwrap()).unwrap();
        receiver.set_read_timeout(Some(RETRY)).unwrap();
        let wire = packet_socket(&world.hosts[0], "eth0");
        let tagged = |dst, tci: [u8; 2]| {
            let frame = datagram(&world, 0, dst, 7);
            [&frame[..12], &[0x81, 0x00], &tci, &frame[12..]].concat()
        };
        let mut buffer = [0; 200];
        until("a datagram to softnet", || {
            wire.send(&tagged(softnet(0), [0xe0, 0])).unwrap();
            server.recv_from(&mut buffer).is_ok_and(|(_, from)| from == SocketAddr::from((host(0), 9)))
        });
        until("a datagram through softnet", || {
            wire.send(&tagged(host(1), [0, 0])).unwrap();
            receiver.recv_from(&mut buffer).is_ok_and(|(_, from)| from == SocketAddr::from((host(0), 9)))
        });
        drop(server);
        world.end();
    }
}

/// The answer of a DHCP server to a client that has no address yet.
fn dhcp_answer(world: &World, client: [u8; 6]) -> Vec<u8> {
    let mut message = vec![0; 300];
    (message[0], message[1], message[2]) = (2, 1, 6);
    message[28..34].copy_from_slice(&client);
    let mut frame = datagram(world, 0, Ipv4Addr::new(10, 0, 0, 77), 68);
    frame.truncate(42);
    frame[34..36].copy_from_slice(&67u16.to_be_bytes());
    frame[38..40].copy_from_slice(&308u16.to_be_bytes());
    frame[16..18].copy_from_slice(&328u16.to_be_bytes());
    frame[24..26].fill(0);
    let sum = !checksum::sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[40..42].fill(0);
    frame.extend(message);
    frame
}

#[test]
fn the_kernel_hears_dhcp_servers() {
    for mode in MODES {
        let Some(mut world) = World::new(1) else { return };
        world.start_with(in_mode(world.config(), mode));
        let (server, client) = (packet_socket(&world.hosts[0], "eth0"), packet_socket(&world.middle, "s0"));
        let answer = dhcp_answer(&world, link(&world.middle, "s0").mac);
        let mut buffer = [0; 2048];
        until("the answer", || {
            server.send(&answer).unwrap();
            std::iter::from_fn(|| client.recv(&mut buffer).unwrap().map(|len| buffer[..len] == answer))
                .any(|is_it| is_it)
        });
        world.end();
    }
}

/// A router that has ff02::… to say to one, says it to one: to an address that softnet has, too.
fn router_advertisement(from: [u8; 6], to: [u8; 6], prefix: Ipv6Addr) -> Vec<u8> {
    let (src, dst) = (link_local(from), link_local(to));
    let option = [&[3, 4, 64, 0xc0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], &prefix.octets()].concat();
    let mut message = [&[134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0][..], &option].concat();
    let pseudo = checksum::pseudo_header_sum6(src, dst, 58, message.len() as u16);
    let sum = !checksum::add(pseudo, checksum::sum(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let header = [&[0x60, 0, 0, 0, 0, message.len() as u8, 58, 255][..], &src.octets(), &dst.octets()];
    [&to[..], &from, &[0x86, 0xdd], &header.concat(), &message].concat()
}

#[test]
fn the_kernel_speaks_by_its_link_local_address() {
    for mode in MODES {
        let Some(mut world) = World::dual(1) else { return };
        world.middle.run(|| std::fs::write("/proc/sys/net/ipv6/conf/s0/accept_ra", "2").unwrap()).unwrap();
        world.start_with(in_mode(world.config_dual(), mode));
        let _echoes = world.echoes();
        let (theirs, ours) = (link(&world.hosts[0], "eth0"), link(&world.middle, "s0"));
        // It asks for its neighbour, hears the answer, and then that of the echo.
        let to = SocketAddrV6::new(link_local(theirs.mac), 7, 0, ours.index);
        let socket = world.middle.run(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap()).unwrap();
        socket.set_read_timeout(Some(RETRY)).unwrap();
        until("an echo of a link-local address", || {
            let _ = socket.send_to(b"anybody there?", to);
            socket.recv_from(&mut [0; 99]).is_ok_and(|(_, from)| from == SocketAddr::V6(to))
        });
        // softnet does not lose it by that.
        let own = net::UdpSocket::bind(&world.handle(), "[::]:0").unwrap();
        own.set_read_timeout(Some(RETRY)).unwrap();
        let to =
            SocketAddrV6::new(link_local(theirs.mac), 7, 0, world.handle().if_nametoindex("s0").unwrap());
        until("an echo of it for softnet", || {
            let _ = own.send_to(b"anybody there?", to);
            own.recv_from(&mut [0; 99]).is_ok_and(|(_, from)| from == SocketAddr::V6(to))
        });
        // And it takes an address from a router.
        let prefix = Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 0);
        let router = packet_socket(&world.hosts[0], "eth0");
        let said = router_advertisement(theirs.mac, ours.mac, prefix);
        until("an address of the advertised network", || {
            router.send(&said).unwrap();
            let addresses =
                world.middle.run(|| Netlink::new().unwrap().addresses(ours.index).unwrap()).unwrap();
            let is_in = |addr: &IpAddr| matches!(addr, IpAddr::V6(addr) if addr.segments()[..4] == prefix.segments()[..4]);
            addresses.iter().any(is_in)
        });
        drop(own);
        world.end();
    }
}

/// Every configuration in which softnet has the address that the kernel has on the interface.
fn shared(world: &World, mode: XdpMode) -> Config {
    let mut config = in_mode(world.config(), mode);
    config.devices[0].addresses = vec![InterfaceAddr::new(kernel(0), 24).unwrap()];
    config.devices[0].driver.get_mut::<Xdp>().unwrap().shared = true;
    config
}

/// Sends what comes back, if it is something.
fn serve(socket: &net::UdpSocket, buffer: &mut [u8]) {
    if let Ok((n, from)) = socket.recv_from(buffer) {
        let _ = socket.send_to(&buffer[..n], from);
    }
}

#[test]
fn an_address_of_the_kernels_is_refused() {
    let Some(world) = World::new(1) else { return };
    let mut config = shared(&world, XdpMode::Auto);
    config.devices[0].driver.get_mut::<Xdp>().unwrap().shared = false;
    let error = world.try_start(config.clone()).expect_err("refused").to_string();
    assert!(error.contains("10.0.0.3") && error.contains("shared = true"), "{error}");
    config.devices[0].force = true;
    drop(world.try_start(config).unwrap());
}

#[test]
fn an_address_is_shared_with_the_kernel() {
    for mode in MODES {
        let Some(mut world) = World::new(1) else { return };
        world.start_with(shared(&world, mode));
        let _echoes = world.echoes();
        let handle = world.handle();
        let client = |to: u16| {
            let socket = world.hosts[0].run(|| KernelSocket::bind((host(0), 0)).unwrap()).unwrap();
            socket.set_read_timeout(Some(RETRY)).unwrap();
            socket.connect((kernel(0), to)).unwrap();
            socket
        };
        // TCP is the kernel's, and so is ping.
        let listener = world.middle.run(|| TcpListener::bind((kernel(0), 0)).unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut stream = world.hosts[0].run(|| TcpStream::connect((kernel(0), port)).unwrap()).unwrap();
        stream.write_all(b"SSH").unwrap();
        let mut said = [0; 3];
        listener.accept().unwrap().0.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"SSH");
        let icmp = Icmp::new(&world.hosts[0]);
        until("a ping", || {
            icmp.ping(kernel(0), 64, b"there?");
            icmp.receive(|message| message.from == IpAddr::from(kernel(0)) && message.kind == (0, 0))
                .is_some()
        });
        // Ports of UDP are softnet's as long as it has them, whole and in fragments, and the kernel's then.
        let ours = net::UdpSocket::bind(&handle, (kernel(0), 0)).unwrap();
        ours.set_read_timeout(Some(RETRY)).unwrap();
        let port = ours.local_addr().unwrap().port();
        let (socket, mut buffer, mut answer) = (client(port), vec![0; 1 << 16], vec![0; 1 << 16]);
        for len in [1, 1472, 1473, 20_000] {
            until("softnet's answer", || {
                let _ = socket.send(&payload(len));
                serve(&ours, &mut buffer);
                socket.recv(&mut answer).is_ok_and(|n| answer[..n] == payload(len))
            });
        }
        drop(ours);
        let theirs = world.middle.run(|| KernelSocket::bind((kernel(0), port)).unwrap()).unwrap();
        theirs.set_nonblocking(true).unwrap();
        for len in [1, 1473, 20_000] {
            until("the kernel's answer", || {
                let _ = socket.send(&payload(len));
                if let Ok((n, from)) = theirs.recv_from(&mut buffer) {
                    let _ = theirs.send_to(&buffer[..n], from);
                }
                socket.recv(&mut answer).is_ok_and(|n| answer[..n] == payload(len))
            });
        }
        // A port of no address in particular, a connected one, and an error about what that sent.
        let any = net::UdpSocket::bind(&handle, "0.0.0.0:0").unwrap();
        any.set_read_timeout(Some(RETRY)).unwrap();
        let socket = client(any.local_addr().unwrap().port());
        until("an answer", || {
            let _ = socket.send(b"there?");
            serve(&any, &mut buffer);
            socket.recv(&mut answer).is_ok()
        });
        any.connect((host(0), 7)).unwrap();
        assert_eq!(any.local_addr().unwrap().ip(), IpAddr::from(kernel(0)));
        until("an echo", || {
            any.send(b"there?").unwrap();
            any.recv(&mut buffer).is_ok()
        });
        any.connect((host(0), 9)).unwrap();
        until("softnet is refused", || {
            let refused = |e: std::io::Error| e.kind() == ErrorKind::ConnectionRefused;
            any.send(b"there?").is_err_and(refused) || any.recv(&mut buffer).is_err_and(refused)
        });
        // The kernel asks from there, too, and is refused.
        until("an echo for the kernel", || world.middle.run(|| ask(host(0), b"there?")).unwrap());
        let socket = world.middle.run(|| KernelSocket::bind((kernel(0), 0)).unwrap()).unwrap();
        socket.set_read_timeout(Some(RETRY)).unwrap();
        socket.connect((host(0), 9)).unwrap();
        until("the kernel is refused", || {
            let refused = |e: std::io::Error| e.kind() == ErrorKind::ConnectionRefused;
            socket.send(b"there?").is_err_and(refused) || socket.recv(&mut buffer).is_err_and(refused)
        });
        drop(any);
        world.end();
    }
}

/// The same with IPv6, whose neighbours both ask from the address.
#[test]
fn an_address_of_ipv6_is_shared_with_the_kernel() {
    let Some(mut world) = World::dual(1) else { return };
    let mut config = shared(&world, XdpMode::Auto);
    let own = super::world::kernel6(0);
    config.devices[0].addresses.push(InterfaceAddr::new(own, 64).unwrap());
    world.start_with(config);
    let _echoes = world.echoes();
    until("an echo for the kernel", || world.middle.run(|| ask(host6(0), b"there?")).unwrap());
    let ours = net::UdpSocket::bind(&world.handle(), (own, 0)).unwrap();
    ours.set_read_timeout(Some(RETRY)).unwrap();
    let mut buffer = vec![0; 1 << 16];
    for len in [1, 1453, 20_000] {
        until("an echo for softnet", || {
            let _ = ours.send_to(&payload(len), (host6(0), 7));
            ours.recv_from(&mut buffer).is_ok_and(|(n, _)| buffer[..n] == payload(len))
        });
        until("an echo for the kernel", || world.middle.run(|| ask(host6(0), &payload(len))).unwrap());
    }
    ours.connect((host6(0), 9)).unwrap();
    until("softnet is refused", || {
        let refused = |e: std::io::Error| e.kind() == ErrorKind::ConnectionRefused;
        ours.send(b"there?").is_err_and(refused) || ours.recv(&mut buffer).is_err_and(refused)
    });
    drop(ours);
    world.end();
}

/// The kernel answers by whatever interface for what it has on any, also if it has it only now.
#[test]
fn an_address_of_the_kernels_elsewhere_stays_its() {
    let Some(mut world) = World::new(1) else { return };
    world.start();
    let elsewhere = Ipv4Addr::new(10, 77, 0, 1);
    let icmp = Icmp::new(&world.hosts[0]);
    let is_answered = |payload: &[u8]| {
        icmp.ping(elsewhere, 64, payload);
        icmp.receive(|message| message.from == IpAddr::from(elsewhere) && message.kind == (0, 0)).is_some()
    };
    assert!(!is_answered(b"nobody there"));
    let add = || {
        let mut netlink = Netlink::new().unwrap();
        netlink.set_up("lo").unwrap();
        netlink.add_address("lo", elsewhere, 32).unwrap();
    };
    world.middle.run(add).unwrap();
    until("a ping", || is_answered(b"there?"));
    world.end();
}
