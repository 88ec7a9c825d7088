//! Ports of addresses that softnet shares with the kernel: none is both's.

use std::io::{ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket as KernelSocket};
use std::time::Duration;

use softnet::config::InterfaceAddr;
use softnet::driver::Xdp;
use softnet::net::UdpSocket;
use softnet_dev::netlink::Netlink;

use super::world::{World, interface, kernel, kernel6, until};

const LATER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 4);

/// A world of both families, whose addresses on host 0's link are the kernel's as well, but for one.
fn shared() -> Option<World> {
    let mut world = World::dual(1)?;
    let mut config = world.config_dual();
    let address = |ip: IpAddr, prefix| InterfaceAddr::new(ip, prefix).unwrap();
    let device = &mut config.devices[0];
    let (v4, v6) = (IpAddr::from(kernel(0)), IpAddr::from(kernel6(0)));
    device.addresses = vec![address(v4, 24), address(LATER.into(), 24), address(v6, 64)];
    device.driver.get_mut::<Xdp>().unwrap().shared = true;
    world.start_with(config);
    Some(world)
}

/// A socket of the kernel's in the middle.
fn theirs(world: &World, addr: impl Into<SocketAddr>) -> Result<KernelSocket> {
    let addr = addr.into();
    world.middle.run(|| KernelSocket::bind(addr)).unwrap()
}

fn in_use<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

#[test]
fn a_port_that_the_kernel_has_is_neither_chosen_nor_given() {
    let Some(world) = shared() else { return };
    let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    // A resolver's, those of a tunnel, and what programs were given.
    let their_own: Vec<_> = (0..300)
        .map(|n| theirs(&world, (if n % 2 == 0 { any } else { kernel(0).into() }, 0)).unwrap())
        .collect();
    let taken: Vec<u16> = their_own.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
    for port in &taken[..4] {
        for ours in ["0.0.0.0", "::", "10.0.0.3"] {
            let ours: IpAddr = ours.parse().unwrap();
            assert!(in_use(UdpSocket::bind(&world.handle(), (ours, *port))), "port {port} of {ours}");
        }
    }
    // One of these would be among so many.
    world
        .middle
        .run(|| {
            for n in 0..2000 {
                let ours = if n % 2 == 0 { any } else { kernel(0).into() };
                let socket = UdpSocket::bind(&world.handle(), (ours, 0)).unwrap();
                assert!(!taken.contains(&socket.local_addr().unwrap().port()));
            }
        })
        .unwrap();
    // What the kernel has elsewhere is not in the way.
    drop(their_own);
    let _elsewhere = theirs(&world, (Ipv4Addr::LOCALHOST, 5353)).unwrap();
    let _of_ipv6 = theirs(&world, (kernel6(0), 5354)).unwrap();
    let ours = [5353, 5354].map(|port| UdpSocket::bind(&world.handle(), (any, port)).unwrap());
    let six = IpAddr::from(kernel6(0));
    assert!(in_use(UdpSocket::bind(&world.handle(), (six, 5354))));
    drop(ours);
    world.end();
}

#[test]
fn a_port_that_softnet_has_is_not_the_kernels() {
    let Some(world) = shared() else { return };
    let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let builder = UdpSocket::builder(&world.handle()).reuse_port(true);
    let ours = [(); 2].map(|()| builder.bind("[::]:7000").unwrap());
    let refused = |port: u16| {
        let all = [any, kernel(0).into(), kernel6(0).into()];
        all.map(|addr| in_use(theirs(&world, (addr, port))))
    };
    assert_eq!(refused(7000), [true; 3]);
    // The port of a reservation is closed, as far as the kernel's own programs see.
    let asks = theirs(&world, (kernel(0), 0)).unwrap();
    asks.connect((kernel(0), 7000)).unwrap();
    asks.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    asks.send(b"anybody there?").unwrap();
    assert_eq!(asks.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    // It is softnet's as long as one of its sockets has it, and what is connected has it on one address.
    let [first, second] = ours;
    drop(first);
    assert_eq!(refused(7000), [true; 3]);
    second.connect("10.0.0.2:9").unwrap();
    assert_eq!(refused(7000), [true, true, false]);
    let six = theirs(&world, (kernel6(0), 7000)).unwrap();
    assert!(in_use(second.disconnect()));
    assert_eq!(second.peer_addr().unwrap(), "[::ffff:10.0.0.2]:9".parse().unwrap());
    drop(six);
    second.disconnect().unwrap();
    assert_eq!(refused(7000), [true; 3]);
    // The kernel gets another of softnet's addresses.
    let add = || Netlink::new().unwrap().add_address(&interface(0), LATER, 24).unwrap();
    world.middle.run(add).unwrap();
    until("a reservation of the new address", || in_use(theirs(&world, (LATER, 7000))));
    drop(second);
    assert_eq!(refused(7000), [false; 3]);
    theirs(&world, (LATER, 7000)).unwrap();
    world.end();
}
