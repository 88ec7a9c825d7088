//! What packets leave in the table that rules, or their TTL, end behind `prerouting`: with the
//! kernel, too, one of a connection moves it on there (`nf_conntrack_in`), but one that would open
//! a connection opens none, as that is confirmed behind the rules (`__nf_conntrack_confirm`).

use super::*;
use crate::filter::{Action, Chain, Filter, Rule, Rules};

const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 10);

/// What comes to OUTSIDE, port 8080, goes to the client's port 80.
fn forwarding() -> NatRules {
    let end = |(addr, port): End4| std::net::SocketAddrV4::new(addr, port);
    let forward =
        |protocol| PortForward { protocol, external: end((OUTSIDE, 8080)), internal: end((CLIENT, 80)) };
    NatRules { forward: [protocol::TCP, protocol::UDP].map(forward).into(), ..masquerade() }
}

/// Has rules drop what is forwarded, or lets it pass.
fn filter(router: &mut Router, action: Action) {
    let rule = Rule { chains: vec![Chain::Forward], action, ..Rule::default() };
    let rules = Rules { rules: vec![rule], sets: vec![], policies: [Action::Allow; 3] };
    Filter::new(&rules, None).unwrap().stand(&rules, &mut router.world.tables.hooks);
}

/// `frame` with the TTL that no router passes on.
fn last_hop(mut frame: Vec<u8>) -> Vec<u8> {
    frame[ETH_LEN + 8] = 1;
    mend(frame)
}

/// States and seconds left of what is tracked.
fn tracked(router: &Router) -> Vec<(State, u32)> {
    let conntrack = router.state.conntrack();
    conntrack.connections(seconds(router.world.now)).map(|c| (c.state, c.left)).collect()
}

/// Seconds pass, and the table is swept in each.
fn wait(router: &mut Router, seconds_more: u64) {
    for _ in 0..seconds_more {
        router.world.now += SECOND;
        router.state.sweep(seconds(router.world.now), 1000);
    }
}

#[test]
fn what_is_dropped_opens_no_connection() {
    let timeouts = Timeouts::default();
    for (number, state, timeout) in [
        (protocol::TCP, State::SynSent, timeouts.tcp_transitory),
        (protocol::UDP, State::UdpNew, timeouts.udp),
    ] {
        let mut router = Router::new(&forwarding());
        let first = || frame(1, number, (SERVER, 3000), (OUTSIDE, 8080), SYN, b"");
        filter(&mut router, Action::Drop);
        // However often it comes.
        for _ in 0..10 {
            router.dropped(1, first(), DropReason::NetfilterDrop);
            wait(&mut router, 1);
        }
        assert_eq!(tracked(&router), []);
        // The error is about what was sent, not about what it was translated to.
        filter(&mut router, Action::Allow);
        let (dev, error) = router.one(1, last_hop(first()));
        assert_eq!((dev, error.protocol, error.dst.0), (1, protocol::ICMP, SERVER));
        assert_eq!(&error.payload[16..20], OUTSIDE.octets(), "{:x?}", error.payload);
        assert_eq!(tracked(&router), []);
        wait(&mut router, 5);
        assert_eq!(router.state.conntrack().counts().entries, 0, "seconds later");
        // What passes opens one, which stays as long as its state says.
        assert_eq!(router.back(first()).dst, (CLIENT, 80));
        let [(told, left)] = tracked(&router)[..] else { panic!("{:?}", tracked(&router)) };
        assert!(told == state && left >= timeout, "{told:?} {left}");
        wait(&mut router, u64::from(timeout) - 5);
        let answer = router.out(frame(0, number, (CLIENT, 80), (SERVER, 3000), SYN | ACK, b""));
        assert_eq!(answer.src, (OUTSIDE, 8080));
    }
}

/// What goes on to a socket here leaves by no device: its connection waits for the answer as long as its
/// state says, all the same.
#[test]
fn what_is_for_this_host_opens_one() {
    let end = |(addr, port): End4| std::net::SocketAddrV4::new(addr, port);
    let to =
        PortForward { protocol: protocol::UDP, external: end((OUTSIDE, 8080)), internal: end((INSIDE, 53)) };
    let mut router = Router::new(&NatRules { forward: vec![to], ..masquerade() });
    router.world.input(1, &[udp(1, (SERVER, 3000), (OUTSIDE, 8080))]);
    wait(&mut router, 5);
    let [(told, left)] = tracked(&router)[..] else { panic!("{:?}", tracked(&router)) };
    assert!(told == State::UdpNew && left + 5 >= Timeouts::default().udp, "{told:?} {left}");
}

/// The one packet of a batch that passes keeps the connection that others, dropped, are of, too.
#[test]
fn one_that_passes_is_enough() {
    let mut router = Router::new(&forwarding());
    let first = || udp(1, (SERVER, 3000), (OUTSIDE, 8080));
    let out = router.world.input(1, &[last_hop(first()), first(), last_hop(first())]);
    assert_eq!(out.iter().filter(|(dev, _)| *dev == 0).count(), 1);
    assert_eq!((tracked(&router).len(), router.state.conntrack().counts().created), (1, 1));
    wait(&mut router, 60);
    assert_eq!(router.connections(), 1);
}

/// What a hairpin's first packet took, it gives back: the mapping of its source, and the port.
#[test]
fn what_is_dropped_holds_no_port() {
    let mut router = Router::new(&forwarding());
    filter(&mut router, Action::Drop);
    let ports = |router: &Router| router.state.ports_in_use(OUTSIDE, protocol::UDP);
    let before = ports(&router);
    router.dropped(0, udp(0, (HOST, 4000), (OUTSIDE, 8080)), DropReason::NetfilterDrop);
    assert_eq!(router.state.mapping_counts().mappings, 1);
    wait(&mut router, 5);
    assert_eq!((router.state.mapping_counts().mappings, ports(&router)), (0, before));
}

/// What is of a connection moves it on, whatever becomes of it afterwards, as with the kernel: the
/// sender's end has moved on as well.
#[test]
fn what_is_dropped_moves_a_connection_on() {
    let mut router = Router::new(&forwarding());
    let to = |flags| frame(1, protocol::TCP, (SERVER, 3000), (OUTSIDE, 8080), flags, b"");
    router.back(to(SYN));
    router.out(frame(0, protocol::TCP, (CLIENT, 80), (SERVER, 3000), SYN | ACK, b""));
    router.back(to(ACK));
    assert_eq!(tracked(&router)[0].0, State::Established);
    filter(&mut router, Action::Drop);
    router.dropped(1, to(ACK | 1), DropReason::NetfilterDrop);
    assert_eq!(tracked(&router)[0].0, State::FinOriginal);
    filter(&mut router, Action::Allow);
    router.one(1, last_hop(to(4)));
    assert_eq!(tracked(&router)[0].0, State::Reset);
    // A reset is believed only until the connection goes on.
    router.back(to(ACK));
    assert_eq!(tracked(&router)[0].0, State::Established);
}
