//! ICMP errors (RFC 5508 section 4): for their receiver they are about the packet that it sent.

use super::*;
use crate::ip::slow::world::icmp;

/// An error from `src` to `dst` about the packet in `frame`, of which it quotes `len` bytes.
fn error(dev: u16, kind: u8, src: Ipv4Addr, dst: Ipv4Addr, frame: &[u8], len: usize) -> Vec<u8> {
    let about = packet(frame);
    let message = [&[kind, 1, 0, 0, 0, 0, 0, 0][..], &about[..len.min(about.len())]].concat();
    icmp(dev, src, dst, 9, &message)
}

/// What an error that was sent says: source, destination, and what it is about; all sums are right,
/// those of the quoted packet too, if all of it is quoted.
fn about(frame: &[u8]) -> (Ipv4Addr, Ipv4Addr, End4, End4) {
    let error = packet(frame);
    let (src, dst) = Ipv4Addr::ends(error).unwrap();
    validate(error).expect("a sound header");
    assert_eq!(checksum::sum(&error[20..]), 0xffff);
    let quote = &error[28..];
    assert_eq!(checksum::sum(&quote[..20]), 0xffff);
    let total = usize::from(u16::from_be_bytes([quote[2], quote[3]]));
    let Said { src: from, dst: to, .. } = match quote.len() >= total {
        true => said_by(&quote[..total]),
        false => {
            let port = |at: usize| u16::from_be_bytes([quote[at], quote[at + 1]]);
            let (a, b) = Ipv4Addr::ends(quote).unwrap();
            Said { protocol: quote[9], src: (a, port(20)), dst: (b, port(22)), payload: vec![] }
        }
    };
    (src, dst, from, to)
}

#[test]
fn errors_from_outside_reach_the_host_that_they_are_for() {
    for number in PROTOCOLS {
        for len in [1000, 28] {
            if number == protocol::ICMP && len == 28 {
                continue;
            }
            let mut router = Router::new(&masquerade());
            let (client, server) = ((CLIENT, 5001), service(number, FAR));
            let sent = router.world.one(0, frame(0, number, client, server, SYN, b"what it is about"));
            let before = router.state.conntrack().connections(0).next().unwrap();
            // From a router on the way.
            let sent = router.world.one(1, error(1, 11, SERVER, OUTSIDE, &sent[0].1, len));
            assert_eq!(sent[0].0, 0);
            assert_eq!(about(&sent[0].1), (SERVER, CLIENT, client, server));
            let after = router.state.conntrack().connections(0).next().unwrap();
            assert_eq!((before.state, before.left), (after.state, after.left));
        }
    }
}

#[test]
fn errors_from_inside_tell_nothing_of_it() {
    let mut router = Router::new(&masquerade());
    let outside = router.out(udp(0, (CLIENT, 5001), (SERVER, 53))).src;
    let back = router.world.one(1, udp(1, (SERVER, 53), outside));
    // The port is closed by now.
    let sent = router.world.one(0, error(0, 3, CLIENT, SERVER, &back[0].1, 1000));
    assert_eq!(sent[0].0, 1);
    assert_eq!(about(&sent[0].1), (OUTSIDE, SERVER, (SERVER, 53), outside));
    // From another inside, on the way to it.
    let sent = router.world.one(0, error(0, 3, Ipv4Addr::host(0, 77), SERVER, &back[0].1, 1000));
    assert_eq!(about(&sent[0].1), (OUTSIDE, SERVER, (SERVER, 53), outside));
}

/// softnet's own errors: about what comes back, and about what goes out.
#[test]
fn errors_that_are_made_here_are_about_what_was_sent() {
    let mut router = Router::new(&masquerade());
    let outside = router.out(udp(0, (CLIENT, 5001), (SERVER, 53))).src;
    let ttl_1 = |frame: Vec<u8>| mend(crate::ip::slow::world::set(frame, ETH_LEN + 8, &[1]));
    let sent = router.world.one(1, ttl_1(udp(1, (SERVER, 53), outside)));
    assert_eq!(sent[0].0, 1);
    let (src, dst, from, to) = about(&sent[0].1);
    assert_eq!((src, dst, from, to), (OUTSIDE, SERVER, (SERVER, 53), outside));
    let sent = router.world.one(0, ttl_1(udp(0, (CLIENT, 5001), (SERVER, 53))));
    assert_eq!(sent[0].0, 0);
    assert_eq!(about(&sent[0].1), (INSIDE, CLIENT, (CLIENT, 5001), (SERVER, 53)));
    // Path-MTU discovery through NAT: the server's link takes 600 bytes.
    let long = Ipv4Addr::whole(frame(0, protocol::UDP, (CLIENT, 5001), (SERVER, 53), 0, &[1; 700]));
    let sent = router.world.one(0, long);
    let (src, dst, from, _) = about(&sent[0].1);
    assert_eq!((src, dst, from), (INSIDE, CLIENT, (CLIENT, 5001)));
    assert_eq!(sent[0].1[ETH_LEN + 20..][..8][6..], 600u16.to_be_bytes());
}

/// An error about nothing that is known does not leak, and harms nothing.
#[test]
fn errors_about_nothing_known() {
    let mut router = Router::new(&masquerade());
    let never = udp(1, (SERVER, 53), (CLIENT, 5001));
    router.dropped(0, error(0, 3, CLIENT, SERVER, &never, 1000), DropReason::ConntrackInvalid);
    let never = udp(0, (OUTSIDE, 4000), (SERVER, 53));
    assert_eq!(router.world.one(1, error(1, 3, SERVER, OUTSIDE, &never, 1000)).len(), 0);
    assert_eq!(router.connections(), 0);
}
