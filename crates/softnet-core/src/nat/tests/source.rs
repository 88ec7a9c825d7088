//! Sources that are hidden.

use super::*;
use crate::ip::slow::world::v4::insert_options;
use crate::sock::key::addr_of;
use crate::sock::udp::output::UdpHead;

#[test]
fn packets_go_out_by_the_routers_address_and_answers_come_back() {
    for number in PROTOCOLS {
        let mut router = Router::new(&masquerade());
        let (client, server) = ((CLIENT, 5001), service(number, SERVER));
        let out = router.out(frame(0, number, client, server, SYN, b"hello"));
        assert_eq!((out.src.0, out.dst, &out.payload[..]), (OUTSIDE, server, &b"hello"[..]));
        let back = router.back(frame(1, number, server, out.src, SYN | ACK, b"answer"));
        assert_eq!((back.src, back.dst, &back.payload[..]), (server, client, &b"answer"[..]));
        // The same on the slow path.
        let with_options = |frame| insert_options(frame, &[1, 1, 1, 1]);
        let sent = router.world.one(0, with_options(frame(0, number, client, server, ACK, b"more")));
        assert_eq!((sent[0].0, said(&sent[0].1).src), (1, out.src));
        let sent = router.world.one(1, with_options(frame(1, number, server, out.src, ACK, b"")));
        assert_eq!((sent[0].0, said(&sent[0].1).dst), (0, client));
        assert_eq!(router.connections(), 1);
    }
}

/// RFC 4787 REQ-1: whatever it speaks to. REQ-4: the port's parity. Two hosts with one port have
/// two.
#[test]
fn mappings_are_endpoint_independent() {
    let mut router = Router::new(&masquerade());
    let first = router.out(udp(0, (CLIENT, 5001), (SERVER, 53))).src;
    let other = router.out(udp(0, (CLIENT, 5001), (FAR, 123))).src;
    assert_eq!(first, other);
    assert_eq!(first.1 % 2, 1);
    let next = router.out(udp(0, (CLIENT, 5002), (SERVER, 53))).src;
    let neighbour = router.out(udp(0, (Ipv4Addr::host(0, 10), 5001), (SERVER, 53))).src;
    assert!(next.1.is_multiple_of(2) && neighbour != first);
    assert_eq!((router.connections(), router.state.mapping_counts().mappings), (4, 3));
    assert_eq!(router.state.ports_in_use(OUTSIDE, protocol::UDP), Some(3));
}

#[test]
fn strangers_are_let_in_only_if_that_is_configured() {
    let mut router = Router::new(&masquerade());
    let outside = router.out(udp(0, (CLIENT, 5001), (SERVER, 53))).src;
    // It is for softnet itself then, which has no socket there.
    let (dev, _) = router.one(1, udp(1, (FAR, 53), outside));
    assert_eq!(dev, 1, "port unreachable");
    router.one(1, udp(1, (SERVER, 54), outside));
    router.configure(&NatRules { filtering: Filtering::EndpointIndependent, ..masquerade() });
    let back = router.back(udp(1, (FAR, 53), outside));
    assert_eq!(back.dst, (CLIENT, 5001));
    let out = router.out(udp(0, (CLIENT, 5001), (FAR, 53)));
    assert_eq!(out.src, outside);
}

/// The first packets of a connection may come in one batch.
#[test]
fn one_batch_opens_one_connection() {
    for number in PROTOCOLS {
        let mut router = Router::new(&masquerade());
        let frames: Vec<_> = (0..6)
            .map(|n| frame(0, number, (CLIENT, 5000 + n / 3), service(number, SERVER), ACK, &[n as u8]))
            .collect();
        let sent = router.world.input(0, &frames);
        let out: Vec<_> = sent.iter().map(|(_, frame)| said(frame)).collect();
        assert!(out.iter().zip(0..).all(|(said, n)| said.payload == [n]), "in order");
        assert!(out.chunks(3).all(|three| three.iter().all(|said| said.src == three[0].src)));
        assert!(out[0].src != out[3].src);
        assert_eq!(router.connections(), 2);
    }
}

/// A datagram without a checksum has none afterwards (RFC 768).
#[test]
fn udp_without_a_checksum() {
    let mut router = Router::new(&masquerade());
    let mut bare = udp(0, (CLIENT, 5001), (SERVER, 53));
    bare[ETH_LEN + 26..][..2].fill(0);
    let sent = router.world.one(0, bare);
    assert_eq!(sent[0].1[ETH_LEN + 26..][..2], [0, 0]);
    assert_eq!(said(&sent[0].1).src.0, OUTSIDE);
}

#[test]
fn connections_expire_and_their_ports_are_free() {
    let mut router = Router::new(&masquerade());
    router.out(udp(0, (CLIENT, 5001), (SERVER, 53)));
    router.out(frame(0, protocol::TCP, (CLIENT, 5001), (SERVER, 80), SYN, b""));
    for (after, left, udp_ports) in [(100, 2, 1), (50, 1, 0), (200, 0, 0)] {
        router.world.now += after * SECOND;
        // Something comes, so that the wheel turns.
        for _ in 0..3 {
            router.world.one(0, udp(0, (CLIENT, 5001), (Ipv4Addr::BLACKHOLE, 53)));
        }
        assert_eq!(router.connections(), left);
        assert_eq!(router.state.ports_in_use(OUTSIDE, protocol::UDP), Some(udp_ports));
    }
    assert_eq!(router.state.mapping_counts().mappings, 0);
}

#[test]
fn a_pool_has_one_address_for_each_host() {
    let pool: Vec<_> = (1..5).map(|n| Ipv4Addr::new(192, 0, 2, n)).collect();
    let mut router = Router::new(&NatRules { source: vec![SourceNat::new(1, pool.clone())], ..masquerade() });
    let mut seen = std::collections::HashSet::new();
    for host in 10..30 {
        let src = Ipv4Addr::host(0, host);
        let out: Vec<_> = (0..4).map(|n| router.out(udp(0, (src, 5000 + n), (SERVER, 53))).src.0).collect();
        assert!(out.iter().all(|addr| *addr == out[0]) && pool.contains(&out[0]));
        seen.insert(out[0]);
    }
    assert!(seen.len() > 2);
}

/// Hosts of a prefix have blocks of ports (RFC 7422): all that leaves tells its host, whatever else is
/// open, and a host that has no port left takes none of another's.
#[test]
fn a_port_tells_its_host() {
    let pool: Vec<_> = (1..3).map(|n| Ipv4Addr::new(192, 0, 2, n)).collect();
    // 128 hosts: 64 behind each address.
    let blocks = Blocks::new("10.0.0.0/25".parse().unwrap(), pool.len()).unwrap();
    let source = SourceNat { deterministic: Some(blocks), ..SourceNat::new(1, pool.clone()) };
    let mut router = Router::new(&NatRules { source: vec![source], ..masquerade() });
    for (number, host) in (0..30).zip([3, 9, 63, 64, 127].into_iter().cycle()) {
        let (src, protocol) = (Ipv4Addr::host(0, host), PROTOCOLS[number as usize % 3]);
        let service = service(protocol, SERVER);
        let out = router.out(frame(0, protocol, (src, 5000 + number), service, SYN, b"hello"));
        let (address, ports) = blocks.of_host(src).unwrap();
        assert_eq!((out.src.0, address), (pool[address], usize::from(host / 64)));
        assert!(ports.contains(&out.src.1), "{out:?}");
        assert_eq!(blocks.host_of(address, out.src.1), Some(src));
        // Of the other hosts softnet does not know where they are.
        if src == CLIENT {
            let back = router.back(frame(1, protocol, service, out.src, SYN | ACK, b"hello"));
            assert_eq!(back.dst, (src, 5000 + number));
        }
    }
    // Outside of the prefix: no ports. What softnet sends stays as it is.
    let other = udp(0, (Ipv4Addr::host(0, 200), 5000), (SERVER, 53));
    assert_eq!(router.world.one(0, other), []);
    assert_eq!(router.world.drops(DropReason::NatPorts), 1);
    let [src, dst] = [OUTSIDE, SERVER].map(|addr| addr_of(addr.into()));
    let head = UdpHead { src, dst, sport: 68, dport: 67, ttl: 64, tos: 0 };
    let own = router.world.send(&head, b"any server there?");
    assert_eq!(said(&own[0].1).src, (OUTSIDE, 68));
    // Its block is all that a host has.
    let all = |router: &mut Router, host: u8| {
        let open = |port| udp(0, (Ipv4Addr::host(0, host), port), (SERVER, 53));
        (1024..4096).filter(|port| !router.world.one(0, open(*port)).is_empty()).count()
    };
    assert_eq!((all(&mut router, 20), all(&mut router, 21)), (blocks.ports(), blocks.ports()));
}

/// A change of rules leaves connections as they are, if their address is one still.
#[test]
fn connections_outlive_rules() {
    let mut router = Router::new(&masquerade());
    let outside = router.out(udp(0, (CLIENT, 5001), (SERVER, 53))).src;
    let pool = vec![Ipv4Addr::new(192, 0, 2, 1), OUTSIDE];
    let source = vec![SourceNat::new(1, pool.clone())];
    router.configure(&NatRules { source, ..masquerade() });
    assert_eq!(router.out(udp(0, (CLIENT, 5001), (SERVER, 53))).src, outside);
    assert_eq!(router.back(udp(1, (SERVER, 53), outside)).dst, (CLIENT, 5001));
    assert!(pool.contains(&router.out(udp(0, (CLIENT, 5002), (SERVER, 53))).src.0));
}

/// One that comes from outside to an inner address directly is answered by that address.
#[test]
fn what_is_routed_in_is_answered_untranslated() {
    let mut router = Router::new(&masquerade());
    let back = router.back(udp(1, (SERVER, 53), (CLIENT, 5001)));
    assert_eq!((back.src, back.dst), ((SERVER, 53), (CLIENT, 5001)));
    let out = router.out(udp(0, (CLIENT, 5001), (SERVER, 53)));
    assert_eq!(out.src, (CLIENT, 5001));
}
