//! Ports of addresses that softnet shares with the kernel: none is both's.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as KernelSocket};
use std::net::{TcpListener as KernelListener, TcpStream as KernelStream};
use std::time::Duration;

use softnet::config::InterfaceAddr;
use softnet::driver::Xdp;
use softnet::net::{TcpBuilder, TcpListener, TcpStream, UdpSocket};
use softnet_dev::netlink::Netlink;

use super::world::{World, host, interface, kernel, kernel6, until};

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

/// A listener of the kernel's in the middle.
fn their_listener(world: &World, addr: impl Into<SocketAddr>) -> Result<KernelListener> {
    let addr = addr.into();
    world.middle.run(|| KernelListener::bind(addr)).unwrap()
}

/// A connection of host 0 to `addr`.
fn client(world: &World, addr: impl Into<SocketAddr>) -> KernelStream {
    let (addr, limit) = (addr.into(), Duration::from_secs(10));
    let client = world.hosts[0].run(|| KernelStream::connect_timeout(&addr, limit)).unwrap().unwrap();
    client.set_read_timeout(Some(limit)).unwrap();
    client
}

/// A line goes to `server`, and comes back.
fn echo(mut client: &KernelStream, mut server: impl Read + Write) {
    client.write_all(b"anybody there?").unwrap();
    let mut heard = [0; 14];
    server.read_exact(&mut heard).unwrap();
    server.write_all(&heard).unwrap();
    client.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"anybody there?");
}

#[test]
fn listeners_of_both_are_served_on_one_address() {
    let Some(world) = shared() else { return };
    // Other ports for each family: of those of IPv4 the kernel remembers connections meanwhile.
    for (own, all, port) in [
        (IpAddr::from(kernel(0)), IpAddr::from(Ipv4Addr::UNSPECIFIED), 7001),
        (kernel6(0).into(), Ipv6Addr::UNSPECIFIED.into(), 7101),
    ] {
        let [at_kernel, at_none] = [port - 1, port + 1];
        let theirs = their_listener(&world, (own, at_kernel)).unwrap();
        assert!(in_use(TcpListener::bind(&world.handle(), (own, at_kernel))), "the kernel has it");
        // Each protocol has ports of its own.
        drop(UdpSocket::bind(&world.handle(), (own, at_kernel)).unwrap());
        let ours = TcpListener::bind(&world.handle(), (all, port)).unwrap();
        assert!(in_use(their_listener(&world, (own, port))), "softnet has it");
        let to_kernel = client(&world, (own, at_kernel));
        echo(&to_kernel, &theirs.accept().unwrap().0);
        let to_softnet = client(&world, (own, port));
        let (accepted, from) = ours.accept().unwrap();
        assert_eq!(from, to_softnet.local_addr().unwrap());
        echo(&to_softnet, &accepted);
        // What neither has the kernel refuses.
        let closed = world.hosts[0].run(|| KernelStream::connect((own, at_none))).unwrap();
        assert_eq!(closed.unwrap_err().kind(), ErrorKind::ConnectionRefused);

        // The connection that was accepted has the port still.
        drop(ours);
        assert!(in_use(their_listener(&world, (own, port))));
        echo(&to_softnet, &accepted);
        // Its peer closes it first: then nothing has to be remembered here.
        drop(to_softnet);
        assert_eq!((&accepted).read(&mut [0; 9]).unwrap(), 0);
        drop(accepted);
        let mut heir = None;
        until("the port is given back", || {
            heir = their_listener(&world, (own, port)).ok();
            heir.is_some()
        });
        echo(&client(&world, (own, port)), &heir.unwrap().accept().unwrap().0);
    }
    world.end();
}

#[test]
fn a_connection_from_here_has_its_port_for_itself() {
    let Some(world) = shared() else { return };
    let own = IpAddr::from(kernel(0));
    let there = world.hosts[0].run(|| KernelListener::bind((host(0), 7000))).unwrap().unwrap();
    // What the kernel has is not chosen, and not to be had.
    let theirs: Vec<_> = (0..200).map(|_| their_listener(&world, (own, 0)).unwrap()).collect();
    let taken: Vec<u16> = theirs.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
    let builder = TcpBuilder::new(&world.handle()).local_addr((own, taken[0]).into());
    assert!(in_use(builder.connect((host(0), 7000))));
    let streams: Vec<_> = (0..100)
        .map(|_| {
            let stream = TcpStream::connect(&world.handle(), (host(0), 7000)).unwrap();
            let port = stream.local_addr().unwrap().port();
            assert!(!taken.contains(&port));
            assert!(in_use(their_listener(&world, (own, port))), "port {port}");
            let (peer, _) = there.accept().unwrap();
            echo(&peer, &stream);
            (stream, peer, port)
        })
        .collect();
    for (stream, peer, port) in streams {
        drop(peer);
        assert_eq!((&stream).read(&mut [0; 9]).unwrap(), 0);
        drop(stream);
        until("the port is given back", || their_listener(&world, (own, port)).is_ok());
    }
    // One that is closed here first is remembered here, and its port with it.
    let stream = TcpStream::connect(&world.handle(), (host(0), 7000)).unwrap();
    let (mut peer, _) = there.accept().unwrap();
    let port = stream.local_addr().unwrap().port();
    drop(stream);
    assert_eq!(peer.read(&mut [0; 9]).unwrap(), 0);
    drop(peer);
    until("TIME-WAIT", || world.view().tcp().summary.time_wait == 1);
    assert!(in_use(their_listener(&world, (own, port))));
    world.end();
}
