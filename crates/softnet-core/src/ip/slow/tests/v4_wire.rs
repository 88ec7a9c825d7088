//! What passes a router and what does not, what it says about that, and from which address.

use super::*;
use crate::ip::checksum::{self, pseudo_header_sum};
use crate::ip::icmp_limit::IcmpParams;
use crate::ip::source::RpFilter;
use crate::ip::v4::header::is_link_local;

fn source_of((dev, frame): &(u16, Vec<u8>)) -> (u16, Ipv4Addr) {
    (*dev, Ipv4Header::new(&frame[ETH_LEN..]).unwrap().src().into())
}

/// An error about a packet to softnet comes from the address it was to; any other from the link
/// that it leaves by, which need not be the one that the packet came by (RFC 1812 section 4.3.2.4).
#[test]
fn errors_come_from_where_they_leave() {
    let mut world = World::acquainted();
    // By the client's link to the address of the other.
    assert_eq!(source_of(&world.one(0, udp(0, CLIENT, OWN[1], 64, 10))[0]), (0, OWN[1]));
    // By the client's link, from a host behind the server's: it is there that the answer goes.
    for dst in [SERVER, Ipv4Addr::new(172, 16, 0, 1), Ipv4Addr::new(10, 67, 1, 1)] {
        assert_eq!(source_of(&world.one(0, udp(0, FAR, dst, 1, 10))[0]), (1, OWN[1]), "{dst}");
        assert_eq!(source_of(&world.one(1, udp(1, CLIENT, dst, 1, 10))[0]), (0, OWN[0]), "{dst}");
    }
    let long = set(udp(0, FAR, SERVER, 64, 600), ETH_LEN + 6, &[0x40]);
    assert_eq!(source_of(&world.one(0, mend(long))[0]), (1, OWN[1]));
    assert_eq!(source_of(&world.one(0, with_options(FAR, 9, &[7, 0, 4, 0]))[0]), (0, OWN[0]));
    // A link without an address of its own borrows one.
    world.ifaces[1].as_mut().unwrap().addresses.clear();
    assert_eq!(source_of(&world.one(0, udp(0, FAR, SERVER, 1, 10))[0]), (1, OWN[0]));
    // To where there is no way, nothing is said, and nothing is paid.
    let nowhere = Ipv4Addr::new(172, 16, 0, 1);
    let originated = world.ctx.stats().originated.get();
    assert!(world.one(0, udp(0, nowhere, SERVER, 1, 10)).is_empty());
    assert_eq!(world.ctx.stats().originated.get(), originated);
}

/// Of a sender whose packets all run out of hops, the others and path MTU discovery notice nothing.
#[test]
fn errors_are_limited_for_each_host() {
    let mut world = World::acquainted();
    world.slow.configure(IcmpParams::default(), Default::default());
    let dead = udp(0, CLIENT, SERVER, 1, 10);
    let errors: usize = (0..20).map(|_| world.input(0, &vec![dead.clone(); 20]).len()).sum();
    assert_eq!((errors, world.slow.icmp_limited()), (6, (0, 394)));
    let long = mend(set(udp(0, CLIENT, SERVER, 64, 600), ETH_LEN + 6, &[0x40]));
    for _ in 0..10 {
        let sent = world.input(0, &vec![long.clone(); 60]);
        assert_eq!(sent.len(), 60);
        assert_eq!(error(&sent[0], &long), (3, 4, MTUS[1]));
        assert!(world.input(0, &vec![dead.clone(); 20]).is_empty());
    }
    // Another host behind the same link.
    let other = Ipv4Addr::new(10, 0, 0, 10);
    world.tables.set_neighbour((0, other.into(), Some(CLIENT_MAC)));
    assert_eq!(world.input(0, &vec![udp(0, other, SERVER, 1, 10); 20]).len(), 6);
    world.pass(2 * SECOND);
    let answers = world.input(0, &vec![dead.clone(); 20]);
    assert_eq!(answers.iter().filter(|(_, frame)| frame[12..14] == [8, 0]).count(), 2);
    // Answers to echo are not errors.
    assert_eq!(world.input(0, &vec![echo(OWN[0], 64, ECHO_REQUEST); 60]).len(), 60);
    // Unless they are said to be limited, too.
    let params = IcmpParams { icmp_ratemask: 1, ..IcmpParams::default() };
    world.slow.configure(params, Default::default());
    world.pass(60 * SECOND);
    world.one(0, request(0, CLIENT, CLIENT_MAC));
    assert_eq!(world.input(0, &vec![echo(OWN[0], 64, ECHO_REQUEST); 60]).len(), 6);
    assert_eq!(world.input(0, &vec![dead; 60]).len(), 60);
}

/// RFC 1812 section 5.3.8: on the fast path and on the slow one.
#[test]
fn a_filter_forwards_nothing_that_says_it_is_from_softnet() {
    let mut world = World::acquainted();
    world.ifaces[0].as_mut().unwrap().rp_filter = RpFilter::Loose;
    for src in OWN {
        for (dst, ttl) in [(SERVER, 64), (FAR, 64), (SERVER, 1), (Ipv4Addr::new(172, 16, 0, 1), 64)] {
            world.refused(udp(0, src, dst, ttl, 10), DropReason::IpInvalidSource, None);
        }
        let mut optioned = with_options(SERVER, 64, &[1, 1, 1, 1]);
        optioned[ETH_LEN + 12..][..4].copy_from_slice(&src.octets());
        world.refused(mend(optioned), DropReason::IpRpFilter, None);
    }
    // What comes with it passes.
    let frames =
        [udp(0, CLIENT, SERVER, 64, 10), udp(0, OWN[1], SERVER, 64, 10), udp(0, FAR, SERVER, 64, 10)];
    let sent = world.input(0, &frames);
    assert_eq!(sent.len(), 2);
    assert_forwarded(&sent[1], &frames[2], 1, SERVER_MAC);
}

/// RFC 3927 section 2.7. Softnet itself may have such an address.
#[test]
fn what_is_of_a_link_stays_there() {
    let mut world = World::acquainted();
    let (there, beside) = (Ipv4Addr::new(169, 254, 7, 7), Ipv4Addr::new(169, 253, 7, 7));
    assert!(is_link_local(there.into()) && !is_link_local(beside.into()));
    for ttl in [1, 64] {
        world.refused(udp(0, there, SERVER, ttl, 10), DropReason::IpInvalidSource, None);
        world.refused(udp(0, CLIENT, there, ttl, 10), DropReason::IpInvalidDest, None);
        world.refused(udp(0, there, there, ttl, 10), DropReason::IpInvalidSource, None);
    }
    // Even where there is a route, and where options take the packet aside.
    std::sync::Arc::make_mut(&mut world.tables.v4).next_hops[1] = Adjacency::connected(1, MTUS[1]);
    let hops = &world.tables.v4.next_hops;
    let local = hops.iter().position(|hop| hop.kind == Kind::Local).unwrap() as u32;
    let fib = [("0.0.0.0/0", 3), ("10.0.0.1/32", local), ("169.254.0.1/32", local)];
    let fib: Vec<_> = fib.into_iter().map(|(prefix, hop)| (prefix.parse().unwrap(), hop)).collect();
    std::sync::Arc::make_mut(&mut world.tables.v4).fib =
        std::sync::Arc::new(crate::ip::v4::fib::Fib::build(&fib).unwrap());
    world.refused(udp(0, CLIENT, there, 64, 10), DropReason::IpInvalidDest, None);
    world.refused(with_options(there, 64, &[1, 1, 1, 1]), DropReason::IpInvalidDest, None);
    let beside = udp(0, beside, beside, 64, 10);
    assert_forwarded(&world.one(0, beside.clone())[0], &beside, 1, SERVER_MAC);
    // To ourselves: a datagram for which there is no socket.
    let own = Ipv4Addr::new(169, 254, 0, 1);
    let before = world.drops(DropReason::IpNoProto);
    world.one(0, udp(0, there, own, 64, 10));
    assert_eq!(world.drops(DropReason::IpNoProto), before + 1);
    assert_eq!(world.drops(DropReason::IpInvalidDest), 4);
}

/// The kernel's `rp_filter`: strict asks for the device, loose for any way; blackholes and what is
/// unreachable are none.
#[test]
fn a_source_is_asked_for_its_way_back() {
    let nowhere = Ipv4Addr::new(172, 16, 0, 1);
    let hole = Ipv4Addr::new(10, 66, 0, 1);
    let unreachable = Ipv4Addr::new(10, 67, 0, 1);
    let broadcast = Ipv4Addr::new(10, 1, 0, 255);
    for (filter, allowed) in [
        (RpFilter::Off, &[CLIENT, SERVER, FAR, nowhere, hole, unreachable, broadcast][..]),
        (RpFilter::Loose, &[CLIENT, SERVER, FAR]),
        (RpFilter::Strict, &[CLIENT]),
    ] {
        let mut world = World::acquainted();
        world.ifaces[0].as_mut().unwrap().rp_filter = filter;
        let all = [CLIENT, SERVER, FAR, nowhere, hole, unreachable, broadcast];
        for src in all {
            let plain = udp(0, src, FAR, 64, 10);
            let mut optioned = with_options(FAR, 64, &[1, 1, 1, 1]);
            optioned[ETH_LEN + 12..][..4].copy_from_slice(&src.octets());
            for frame in [plain, mend(optioned)] {
                let refused = world.drops(DropReason::IpRpFilter);
                let sent = world.one(0, frame);
                assert_eq!(sent.len() == 1, allowed.contains(&src), "{filter:?} {src}");
                assert_eq!(world.drops(DropReason::IpRpFilter) - refused, 1 - sent.len() as u64);
            }
        }
        // Of a batch the others go on, in order.
        let frames: Vec<_> = all.iter().map(|src| udp(0, *src, FAR, 64, 10)).collect();
        let sent: Vec<_> = world.input(0, &frames).iter().map(|sent| source_of(sent).1).collect();
        assert_eq!(sent, allowed);
        // To softnet itself it is the same, and on the other device nothing is asked.
        let before = world.drops(DropReason::IpRpFilter);
        world.one(0, udp(0, FAR, OWN[0], 64, 10));
        assert_eq!(world.drops(DropReason::IpRpFilter) - before, u64::from(filter == RpFilter::Strict));
        assert_eq!(world.one(1, udp(1, nowhere, CLIENT, 64, 10)).len(), 1);
    }
}

/// A TCP segment from the client to softnet.
fn segment(flags: u8, len: usize) -> Vec<u8> {
    let mut segment = vec![0x21; len];
    (segment[12], segment[13]) = (0x50, flags);
    segment[16..18].fill(0);
    let pseudo = pseudo_header_sum(CLIENT.into(), OWN[0].into(), protocol::TCP, len as u16);
    let check = !checksum::add(pseudo, checksum::sum(&segment));
    segment[16..18].copy_from_slice(&check.to_be_bytes());
    ip(0, CLIENT, OWN[0], 64, protocol::TCP, &segment)
}

/// Its sender learns that TCP is not served, which is not a matter of ports; about a reset or a
/// damaged segment nothing is said.
#[test]
fn tcp_is_a_protocol_that_is_not_served() {
    let mut world = World::acquainted();
    use DropReason::*;
    for (flags, len) in [(0x02, 20), (0x10, 27), (0x12, 500), (0x11, 21)] {
        world.refused(segment(flags, len), IpNoProto, Some((3, 2, 0)));
        // Padding is no part of it.
        let mut padded = segment(flags, len);
        padded.extend([0xee; 7]);
        assert_eq!(world.one(0, padded).len(), 1);
    }
    world.refused(segment(0x04, 20), IpNoProto, None);
    world.refused(segment(0x14, 33), IpNoProto, None);
    let mut damaged = segment(0x02, 27);
    *damaged.last_mut().unwrap() ^= 1;
    world.refused(damaged, TcpCsum, None);
    world.refused(set(segment(0x02, 24), ETH_LEN + 32, &[0x40]), PktTooSmall, None);
    world.refused(set(segment(0x02, 24), ETH_LEN + 32, &[0x70]), PktTooSmall, None);
    world.refused(ip(0, CLIENT, OWN[0], 64, protocol::TCP, &[0x55; 19]), PktTooSmall, None);
    world.refused(ip(0, CLIENT, OWN[0], 64, protocol::TCP, &[]), PktTooSmall, None);
    // The kernel, too, answers what is of no protocol at all, whatever is in it.
    world.refused(ip(0, CLIENT, OWN[0], 64, 132, &[]), IpNoProto, Some((3, 2, 0)));
}
