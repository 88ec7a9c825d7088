//! Destinations that are translated: forwarded ports, addresses one to one, and hairpins.

use super::*;

const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 10);

fn forwarding(number: u8) -> NatRules {
    let end = |(addr, port): End4| std::net::SocketAddrV4::new(addr, port);
    let forward =
        PortForward { protocol: number, external: end((OUTSIDE, 8080)), internal: end((CLIENT, 80)) };
    NatRules { forward: vec![forward], ..masquerade() }
}

#[test]
fn a_forwarded_port_is_reached_from_outside() {
    for number in [protocol::TCP, protocol::UDP] {
        let mut router = Router::new(&forwarding(number));
        let inward = router.back(frame(1, number, (SERVER, 3000), (OUTSIDE, 8080), SYN, b"get"));
        assert_eq!((inward.src, inward.dst), ((SERVER, 3000), (CLIENT, 80)));
        let answer = router.out(frame(0, number, (CLIENT, 80), (SERVER, 3000), SYN | ACK, b"ok"));
        assert_eq!((answer.src, answer.dst), ((OUTSIDE, 8080), (SERVER, 3000)));
        // What the server opens by itself is another connection, by another port.
        let other = router.out(frame(0, number, (CLIENT, 80), (FAR, 9), SYN, b""));
        assert!(other.src.0 == OUTSIDE && other.src.1 != 8080);
        assert_eq!(router.connections(), 2);
    }
}

/// Of another protocol, or port, nothing is forwarded; and no host inside gets that port.
#[test]
fn a_forwarded_port_is_reserved() {
    let mut router = Router::new(&forwarding(protocol::UDP));
    let (dev, _) = router.one(1, udp(1, (SERVER, 3000), (OUTSIDE, 8081)));
    assert_eq!(dev, 1, "port unreachable");
    assert_eq!(router.state.ports_in_use(OUTSIDE, protocol::UDP), Some(1));
    router.configure(&masquerade());
    assert_eq!(router.state.ports_in_use(OUTSIDE, protocol::UDP), Some(0));
}

/// RFC 4787 REQ-9: a host inside reaches another by the address that it has outside, and is seen by
/// its own there.
#[test]
fn hairpins() {
    let mut router = Router::new(&forwarding(protocol::UDP));
    let to_host = Ipv4Addr::answer(0, HOST, crate::ip::slow::world::CLIENT_MAC);
    router.world.one(1, udp(1, (SERVER, 1), (HOST, 1)));
    router.world.one(0, to_host);
    // By a forwarded port.
    let (dev, inward) = router.one(0, udp(0, (HOST, 4000), (OUTSIDE, 8080)));
    assert_eq!((dev, inward.src.0, inward.dst), (0, OUTSIDE, (CLIENT, 80)));
    let (dev, back) = router.one(0, udp(0, (CLIENT, 80), inward.src));
    assert_eq!((dev, back.src, back.dst), (0, (OUTSIDE, 8080), (HOST, 4000)));
    // By mappings: each has spoken to a third, which told them of each other.
    let client = router.out(udp(0, (CLIENT, 5000), (SERVER, 53))).src;
    let host = router.out(udp(0, (HOST, 6000), (SERVER, 53))).src;
    let (dev, hello) = router.one(0, udp(0, (CLIENT, 5000), host));
    assert_eq!((dev, hello.src, hello.dst), (0, client, (HOST, 6000)));
    let (dev, answer) = router.one(0, udp(0, (HOST, 6000), client));
    assert_eq!((dev, answer.src, answer.dst), (0, host, (CLIENT, 5000)));
}

#[test]
fn an_address_stands_for_another() {
    let external = Ipv4Addr::new(203, 0, 113, 77);
    let rule = OneToOne { dev: 1, external, internal: CLIENT };
    for number in PROTOCOLS {
        let mut router = Router::new(&NatRules { one_to_one: vec![rule], ..masquerade() });
        let server = service(number, SERVER);
        let out = router.out(frame(0, number, (CLIENT, 5001), server, SYN, b""));
        assert_eq!(out.src, (external, 5001));
        assert_eq!(router.back(frame(1, number, server, out.src, ACK, b"")).dst, (CLIENT, 5001));
        let inward = router.back(frame(1, number, (FAR, 6001), service(number, external), SYN, b""));
        assert_eq!((inward.src, inward.dst), ((FAR, 6001), service(number, CLIENT)));
        let answer = router.out(frame(0, number, service(number, CLIENT), (FAR, 6001), ACK, b""));
        assert_eq!((answer.src, answer.dst), (service(number, external), (FAR, 6001)));
        // Others are hidden behind the device's own.
        assert_eq!(router.out(frame(0, number, (HOST, 5001), server, SYN, b"")).src.0, OUTSIDE);
    }
}
