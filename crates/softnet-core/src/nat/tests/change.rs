//! Connections outlive a change of configuration, as far as it has their rules still.

use super::*;

fn pool(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(203, 0, 113, n)
}

/// Routes, devices and neighbours change: what is open goes on, by the same port.
#[test]
fn connections_outlive_other_tables() {
    let mut router = Router::new(&masquerade());
    let outside = router.out(udp(0, (CLIENT, 5001), (SERVER, 53))).src;
    router.world.vanish(1);
    router.world.appear(1);
    // The server is asked for anew.
    router.world.one(0, udp(0, (CLIENT, 5001), (SERVER, 53)));
    router.world.one(1, Ipv4Addr::answer(1, SERVER, crate::ip::slow::world::SERVER_MAC));
    assert_eq!(router.out(udp(0, (CLIENT, 5001), (SERVER, 53))).src, outside);
    assert_eq!(router.back(udp(1, (SERVER, 53), outside)).dst, (CLIENT, 5001));
    // Rules that say the same.
    router.configure(&NatRules { connlimit: Some(10), ..masquerade() });
    assert_eq!(router.back(udp(1, (SERVER, 53), outside)).dst, (CLIENT, 5001));
    assert_eq!(router.state.conntrack().counts().ended, 0);
}

/// An address that is no more an external one ends its connections, which begin anew by another; a
/// forwarded port those that came by it.
#[test]
fn connections_end_with_their_rules() {
    let source = |addresses: &[Ipv4Addr]| SourceNat { dev: 1, addresses: addresses.to_vec() };
    let forward = |port| PortForward {
        protocol: protocol::UDP,
        external: std::net::SocketAddrV4::new(OUTSIDE, port),
        internal: std::net::SocketAddrV4::new(CLIENT, 80),
    };
    let mut rules = NatRules {
        source: vec![source(&[pool(1), OUTSIDE])],
        forward: vec![forward(8080), forward(8081)],
        ..NatRules::default()
    };
    let mut router = Router::new(&rules);
    let hosts: Vec<_> = (10..40).map(|n| Ipv4Addr::host(0, n)).collect();
    let first: Vec<_> = hosts.iter().map(|own| router.out(udp(0, (*own, 5001), (SERVER, 53))).src).collect();
    let of = |addr: Ipv4Addr| first.iter().filter(|external| external.0 == addr).count();
    assert!(of(pool(1)) > 0 && of(OUTSIDE) > 0, "{first:?}");
    for port in [8080, 8081] {
        assert_eq!(router.back(udp(1, (SERVER, port - 2000), (OUTSIDE, port))).dst, (CLIENT, 80));
    }
    let before = router.connections() as u64;
    rules.source = vec![source(&[OUTSIDE])];
    rules.forward.remove(1);
    router.configure(&rules);
    let counts = router.state.conntrack().counts();
    assert_eq!(counts.ended, of(pool(1)) as u64 + 1);
    assert_eq!(router.connections() as u64, before - counts.ended);
    for (own, before) in hosts.iter().zip(&first) {
        let again = router.out(udp(0, (*own, 5001), (SERVER, 53))).src;
        assert_eq!(again.0, OUTSIDE);
        assert!(before.0 != OUTSIDE || again == *before);
    }
    assert_eq!(router.back(udp(1, (SERVER, 6080), (OUTSIDE, 8080))).dst, (CLIENT, 80));
    assert!(router.world.one(1, udp(1, (SERVER, 6081), (OUTSIDE, 8081))).iter().all(|(dev, _)| *dev == 1));
    // What they held is given back in time.
    router.world.now += 1000 * SECOND;
    (0..100).for_each(|_| _ = router.state.sweep(seconds(router.world.now), 64));
    assert_eq!((router.connections(), router.state.mapping_counts().mappings), (0, 0));
    assert_eq!(router.state.ports_in_use(pool(1), protocol::UDP), Some(0));
}
