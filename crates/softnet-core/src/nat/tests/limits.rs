//! What is not translated, and why: no room, no ports, no way to tell what it is.

use super::*;

/// Connections that were answered stay; there is no room for others, then.
#[test]
fn a_full_table_keeps_the_connections_that_were_answered() {
    let mut router = Router::with(&masquerade(), 4);
    let first: Vec<_> = (0..4).map(|n| router.out(udp(0, (CLIENT, 5000 + n), (SERVER, 53))).src).collect();
    for external in &first {
        router.back(udp(1, (SERVER, 53), *external));
    }
    for n in 10..20 {
        router.dropped(0, udp(0, (CLIENT, 5000 + n), (SERVER, 53)), DropReason::ConntrackFull);
    }
    let again: Vec<_> = (0..4).map(|n| router.out(udp(0, (CLIENT, 5000 + n), (SERVER, 53))).src).collect();
    assert_eq!(first, again);
    let counts = router.state.conntrack().counts();
    assert_eq!((counts.full, counts.early_drop, counts.entries), (10, 0, 4));
    // To another server: the mapping is there, but no room for the connection. The mapping stays
    // the first ones'.
    router.dropped(0, udp(0, (CLIENT, 5000), (FAR, 53)), DropReason::ConntrackFull);
    assert_eq!(router.back(udp(1, (SERVER, 53), first[0])).dst, (CLIENT, 5000));
    assert_eq!(router.state.mapping_counts().mappings, 4);
}

/// A host inside asks all 65,536 addresses of a /16 through a table that has room for few: what
/// others have open stays, with the ports that it has, and all that the scan held comes back.
#[test]
fn a_scan_of_a_16_bit_network_ends_no_established_connection() {
    let mut router = Router::with(&masquerade(), 256);
    let tcp = |dev, src, dst, flags| frame(dev, protocol::TCP, src, dst, flags, b"");
    let mut used = Vec::new();
    for n in 0..50 {
        let client = (CLIENT, 5000 + n);
        let outside = router.out(udp(0, client, (SERVER, 53))).src;
        router.back(udp(1, (SERVER, 53), outside));
        let stream = router.out(tcp(0, client, (SERVER, 80), SYN)).src;
        router.back(tcp(1, (SERVER, 80), stream, SYN | ACK));
        router.out(tcp(0, client, (SERVER, 80), ACK));
        used.push((client, outside, stream));
    }
    let scanner = Ipv4Addr::host(0, 66);
    for n in 0..=u16::MAX {
        let target = (Ipv4Addr::from_bits(FAR.to_bits() & 0xffff_0000 | u32::from(n)), 22);
        let syn = match n % 2 {
            0 => tcp(0, (scanner, 40_000 + n % 5000), target, SYN),
            _ => udp(0, (scanner, 40_000 + n % 5000), target),
        };
        router.world.input(0, &[syn]);
    }
    let counts = router.state.conntrack().counts();
    assert!(counts.early_drop > 60_000 && counts.full < 100, "{counts:?}");
    // Each was tried for, and opened one, or was refused as the search found none that may end.
    assert_eq!(counts.created + counts.full, 100 + 65_536, "{counts:?}");
    for (client, outside, stream) in used {
        assert_eq!(router.back(udp(1, (SERVER, 53), outside)).dst, client);
        assert_eq!(router.out(tcp(0, client, (SERVER, 80), ACK)).src, stream);
        assert_eq!(router.back(tcp(1, (SERVER, 80), stream, ACK)).dst, client);
    }
    let held = router.state.mapping_counts().mappings;
    assert!(held <= 256, "{held} mappings");
    for _ in 0..10_000 {
        router.state.sweep(1_000_000, 64);
    }
    assert_eq!((router.state.mapping_counts().mappings, router.state.conntrack().counts().entries), (0, 0));
    assert_eq!(router.state.ports_in_use(OUTSIDE, protocol::TCP), Some(0));
}

/// A host has no more connections than it may; others have theirs. What expires counts no more.
#[test]
fn hosts_are_limited() {
    let mut router = Router::new(&NatRules { connlimit: Some(5), ..masquerade() });
    let other = Ipv4Addr::host(0, 77);
    for n in 0..5 {
        router.out(udp(0, (CLIENT, 5000 + n), (SERVER, 53)));
    }
    router.dropped(0, udp(0, (CLIENT, 5010), (SERVER, 53)), DropReason::ConntrackLimit);
    router.dropped(
        0,
        frame(0, protocol::TCP, (CLIENT, 5000), (FAR, 53), SYN, b""),
        DropReason::ConntrackLimit,
    );
    // Those that there are go on.
    router.out(udp(0, (CLIENT, 5000), (SERVER, 53)));
    router.out(udp(0, (other, 5000), (SERVER, 53)));
    let counts = router.state.mapping_counts();
    assert_eq!((counts.connlimit, counts.hosts, counts.most), (2, 2, 5));
    // softnet itself, which shares the address, is not one of them.
    router.one(1, frame(1, protocol::ICMP, (SERVER, 77), (OUTSIDE, 0), 0, b"ping"));
    router.world.now += 1000 * SECOND;
    for _ in 0..10 {
        router.out(udp(0, (other, 5000), (SERVER, 53)));
    }
    for n in 0..5 {
        router.out(udp(0, (CLIENT, 6000 + n), (FAR, 53)));
    }
    router.dropped(0, udp(0, (CLIENT, 5010), (SERVER, 53)), DropReason::ConntrackLimit);
    assert_eq!(router.state.mapping_counts().hosts, 2);
}

#[test]
fn ports_run_out() {
    let mut router = Router::new(&masquerade());
    // From privileged ports, of which there are fewest.
    let host = |n: u16| Ipv4Addr::host(0, 10 + (n / 512) as u8);
    for n in 0..1023 {
        router.out(udp(0, (host(n), n % 512 + 1), (SERVER, 53)));
    }
    router.dropped(0, udp(0, (CLIENT, 1000), (SERVER, 53)), DropReason::NatPorts);
    assert_eq!(router.state.mapping_counts().exhausted, 1);
    // Others have theirs.
    router.out(udp(0, (CLIENT, 5000), (SERVER, 53)));
    router.out(frame(0, protocol::TCP, (CLIENT, 1000), (SERVER, 53), SYN, b""));
}

#[test]
fn what_cannot_be_translated_does_not_leave() {
    let mut router = Router::new(&masquerade());
    let gre = Ipv4Addr::ip(0, CLIENT, SERVER, 9, 47, &[0; 20]);
    router.dropped(0, gre, DropReason::ConntrackInvalid);
    let reset = frame(0, protocol::TCP, (CLIENT, 5000), (SERVER, 53), 4, b"");
    router.dropped(0, reset, DropReason::ConntrackInvalid);
    let answer = frame(0, protocol::ICMP, (CLIENT, 0), (SERVER, 9), 0, b"");
    router.dropped(0, answer, DropReason::ConntrackInvalid);
    let cut = Ipv4Addr::ip(0, CLIENT, SERVER, 9, protocol::TCP, &[0; 12]);
    router.dropped(0, cut, DropReason::ConntrackInvalid);
    // From outside all of it is as before.
    let gre = Ipv4Addr::ip(1, SERVER, CLIENT, 9, 47, &[0; 20]);
    assert_eq!(router.world.one(1, gre).len(), 1);
}

/// Answers of softnet itself leave as they are: to a ping, and that a port is unreachable.
#[test]
fn the_router_itself_can_be_reached() {
    let mut router = Router::new(&masquerade());
    let (dev, pong) = router.one(1, frame(1, protocol::ICMP, (SERVER, 77), (OUTSIDE, 0), 0, b"ping"));
    assert_eq!((dev, pong.src, pong.dst), (1, (OUTSIDE, 0), (SERVER, 77)));
    let (dev, _) = router.one(0, frame(0, protocol::ICMP, (CLIENT, 77), (INSIDE, 0), 0, b"ping"));
    assert_eq!((dev, router.connections()), (0, 0));
}
