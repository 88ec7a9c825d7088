//! What passes a router and what does not, what it says about that, and from which address.

use super::*;
use crate::ip::icmp_limit::IcmpParams;
use crate::ip::source::RpFilter;
use crate::skb::DropReason::*;

fn source_of((dev, frame): &(u16, Vec<u8>)) -> (u16, Ipv6Addr) {
    (*dev, Ipv6Header::new(&frame[ETH_LEN..]).unwrap().src())
}

/// RFC 4443 section 2.2: from the address that the packet was to, else from one of the link that
/// the error leaves by.
#[test]
fn errors_come_from_where_they_leave() {
    let mut world = World::acquainted();
    assert_eq!(source_of(&world.one(0, udp(0, CLIENT, OWN[1], 64, 10))[0]), (0, OWN[1]));
    for dst in [SERVER, net(0x77, 1), "2001:db8:67::1".parse().unwrap()] {
        assert_eq!(source_of(&world.one(0, udp(0, FAR, dst, 1, 10))[0]), (1, OWN[1]), "{dst}");
        assert_eq!(source_of(&world.one(1, udp(1, CLIENT, dst, 1, 10))[0]), (0, OWN[0]), "{dst}");
    }
    // Not from that of a link of which the other end knows nothing.
    let far = world.ifaces[1].as_mut().unwrap();
    far.addresses6.retain(|(own, _)| is_link_local(*own));
    assert_eq!(source_of(&world.one(0, udp(0, FAR, SERVER, 1, 10))[0]), (1, OWN[0]));
    // To where there is no way, nothing is said.
    let originated = world.ctx.stats().originated.get();
    assert!(world.one(0, udp(0, net(0x77, 1), SERVER, 1, 10)).is_empty());
    assert_eq!(world.ctx.stats().originated.get(), originated);
}

#[test]
fn errors_are_limited_for_each_host() {
    let mut world = World::acquainted();
    world.slow.configure(IcmpParams::default(), Default::default());
    let dead = udp(0, CLIENT, SERVER, 1, 10);
    let errors: usize = (0..20).map(|_| world.input(0, &vec![dead.clone(); 20]).len()).sum();
    assert_eq!((errors, world.slow.icmp_limited()), (6, (0, 394)));
    let long = udp(0, CLIENT, SERVER, 64, 1300);
    for _ in 0..10 {
        let sent = world.input(0, &vec![long.clone(); 60]);
        assert_eq!(sent.len(), 60);
        assert_eq!(error(&sent[0], &long), (2, 0, MTUS[1].into()));
    }
    // Answers are not errors.
    assert_eq!(world.input(0, &vec![echo(OWN[0], 64); 60]).len(), 60);
    assert_eq!(world.input(0, &vec![solicitation(0, CLIENT, None, OWN[0]); 60]).len(), 60);
}

#[test]
fn a_filter_forwards_nothing_that_says_it_is_from_softnet() {
    let mut world = World::acquainted();
    world.ifaces[0].as_mut().unwrap().rp_filter = RpFilter::Loose;
    for src in [OWN[0], OWN[1], link_local(MACS[0])] {
        for (dst, hops) in [(SERVER, 64), (FAR, 64), (SERVER, 1), (net(0x77, 1), 64)] {
            world.refused(udp(0, src, dst, hops, 10), IpInvalidSource, None);
        }
        let hop_by_hop =
            ip(0, src, SERVER, 9, next::HOP_BY_HOP, &[17, 0, 5, 2, 0, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let reason = if src == link_local(MACS[0]) { IpInvalidSource } else { IpRpFilter };
        world.refused(hop_by_hop, reason, None);
    }
    // What comes with it passes.
    let frames =
        [udp(0, CLIENT, SERVER, 64, 10), udp(0, OWN[1], SERVER, 64, 10), udp(0, FAR, SERVER, 64, 10)];
    let sent = world.input(0, &frames);
    assert_eq!(sent.len(), 2);
    assert_forwarded(&sent[1], &frames[2], 1, SERVER_MAC);
}

#[test]
fn a_source_is_asked_for_its_way_back() {
    let [nowhere, hole] = ["2001:db8:77::1", "2001:db8:66::1"].map(|addr| addr.parse().unwrap());
    let all = [CLIENT, SERVER, FAR, nowhere, hole];
    for (filter, allowed) in
        [(RpFilter::Off, &all[..]), (RpFilter::Loose, &[CLIENT, SERVER, FAR]), (RpFilter::Strict, &[CLIENT])]
    {
        let mut world = World::acquainted();
        world.ifaces[0].as_mut().unwrap().rp_filter = filter;
        let frames: Vec<_> = all.iter().map(|src| udp(0, *src, FAR, 64, 10)).collect();
        let sent: Vec<_> = world.input(0, &frames).iter().map(|sent| source_of(sent).1).collect();
        assert_eq!(sent, allowed);
        // Behind options the slow path asks.
        let chain = [17, 0, 5, 2, 0, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let frames: Vec<_> = all.iter().map(|src| ip(0, *src, FAR, 64, next::HOP_BY_HOP, &chain)).collect();
        let sent: Vec<_> = world.input(0, &frames).iter().map(|sent| source_of(sent).1).collect();
        assert_eq!(sent, allowed);
        assert_eq!(world.drops(IpRpFilter), 2 * (all.len() - allowed.len()) as u64);
        // What is of the link comes from there.
        let theirs = link_local(CLIENT_MAC);
        assert_eq!(world.one(0, solicitation(0, theirs, Some(CLIENT_MAC), OWN[0])).len(), 1);
        assert_eq!(world.one(0, solicitation(0, Ipv6Addr::UNSPECIFIED, None, OWN[0])).len(), 1);
    }
}

/// A TCP segment from the client to softnet, behind `chain`, whose first header is `first`.
fn segment(flags: u8, len: usize) -> Vec<u8> {
    let mut segment = vec![0x21; len];
    (segment[12], segment[13]) = (0x50, flags);
    segment[16..18].fill(0);
    let pseudo = checksum::pseudo_header_sum6(CLIENT, OWN[0], next::TCP, len as u16);
    let check = !checksum::add(pseudo, checksum::sum(&segment));
    segment[16..18].copy_from_slice(&check.to_be_bytes());
    segment
}

#[test]
fn tcp_is_a_header_that_nobody_knows() {
    let mut world = World::acquainted();
    let tcp = |segment: &[u8]| ip(0, CLIENT, OWN[0], 64, next::TCP, segment);
    for (flags, len) in [(0x02, 20), (0x10, 27), (0x12, 500)] {
        world.refused(tcp(&segment(flags, len)), IpNoProto, Some((4, 1, 6)));
    }
    let behind = [&[next::TCP, 0, 1, 4, 0, 0, 0, 0][..], &segment(2, 20)].concat();
    world.refused(ip(0, CLIENT, OWN[0], 64, next::DESTINATION, &behind), IpNoProto, Some((4, 1, 40)));
    world.refused(tcp(&segment(0x04, 20)), IpNoProto, None);
    world.refused(tcp(&segment(0x14, 31)), IpNoProto, None);
    let mut damaged = segment(2, 31);
    damaged[30] ^= 1;
    world.refused(tcp(&damaged), TcpCsum, None);
    world.refused(tcp(&segment(2, 20)[..19]), PktTooSmall, None);
    world.refused(tcp(&[]), PktTooSmall, None);
}

/// A message has eight bytes, or is none.
#[test]
fn short_messages_are_not_answered() {
    let mut world = World::acquainted();
    for len in 4..8 {
        let message = &[128, 0, 0, 0, 1, 2, 3][..len];
        world.refused(icmp(0, CLIENT, OWN[0], 64, message), IcmpMalformed, None);
    }
    assert_eq!(world.one(0, icmp(0, CLIENT, OWN[0], 64, &[128, 0, 0, 0, 0, 0, 0, 0])).len(), 1);
}

#[test]
fn an_echo_reply_has_the_traffic_class_of_the_request() {
    let mut world = World::acquainted();
    for class in [0, 0x28, 0xb8, 0xff] {
        let mut question = echo(OWN[0], 64);
        Ipv6Header::new_mut(&mut question[ETH_LEN..]).unwrap().set_traffic_class(class);
        // The flow label is not the answer's.
        question[ETH_LEN + 3] = 0x77;
        let sent = world.one(0, question);
        let header = Ipv6Header::new(&sent[0].1[ETH_LEN..]).unwrap();
        assert_eq!((header.version(), header.traffic_class()), (6, class));
        assert_eq!(sent[0].1[ETH_LEN + 3], 0);
    }
}
