//! What is not translated, and why: no room, no ports, no way to tell what it is.

use super::*;
use crate::ip::slow::world::set;

#[test]
fn a_full_table_keeps_the_connections_that_it_has() {
    let mut router = Router::with(&masquerade(), 4);
    let first: Vec<_> = (0..4).map(|n| router.out(udp(0, (CLIENT, 5000 + n), (SERVER, 53))).src).collect();
    for n in 10..20 {
        router.dropped(0, udp(0, (CLIENT, 5000 + n), (SERVER, 53)), DropReason::ConntrackFull);
    }
    let again: Vec<_> = (0..4).map(|n| router.out(udp(0, (CLIENT, 5000 + n), (SERVER, 53))).src).collect();
    assert_eq!(first, again);
    assert!(
        router.state.conntrack().counts().full + router.state.mapping_counts().exhausted >= 1
            || router.connections() == 4
    );
    // To another server: the mapping is there, but no room for the connection. The mapping stays
    // the first ones'.
    router.dropped(0, udp(0, (CLIENT, 5000), (FAR, 53)), DropReason::ConntrackFull);
    assert_eq!(router.back(udp(1, (SERVER, 53), first[0])).dst, (CLIENT, 5000));
    assert_eq!(router.state.mapping_counts().mappings, 4);
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
fn fragments_do_not_leave_with_their_source() {
    let mut router = Router::new(&masquerade());
    for flags in [[0x20, 0], [0x20, 1], [0, 1]] {
        let fragment = mend(set(udp(0, (CLIENT, 5000), (SERVER, 53)), ETH_LEN + 6, &flags));
        router.dropped(0, fragment, DropReason::NatFragment);
    }
    assert_eq!(router.connections(), 0);
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
