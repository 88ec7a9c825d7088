//! What does not go on, what is said about that, and from which address.

use super::*;
use crate::ip::ETH_LEN;
use crate::ip::icmp_limit::IcmpParams;
use crate::ip::v4::header::protocol;
use crate::ip::v6::addr::is_link_local;
use crate::skb::DropReason::{self, *};

for_each_family! {
    errors_about_what_cannot_go_on,
    packets_to_softnet_itself,
    errors_come_from_where_they_leave,
    errors_are_limited_for_each_host,
    tcp_is_a_protocol_that_is_not_served,
}

/// UDP from `src` to `dst`, not to be cut, that is too long for the server's link.
fn too_long<F: TestFamily>(src: F, dst: F) -> Vec<u8> {
    F::whole(udp(0, src, dst, 64, fitting::<F>() + 1))
}

/// The most that UDP carries there in one packet.
fn fitting<F: TestFamily>() -> usize {
    usize::from(F::MTUS[1]) - F::HEADER - 8
}

fn errors_about_what_cannot_go_on<F: TestFamily>() {
    let mut world = World::<F>::acquainted();
    let mut refused = |dst, ttl, reason: DropReason, answer| {
        world.refused(udp(0, F::CLIENT, dst, ttl, 10), reason, answer);
    };
    refused(F::SERVER, 1, IpTtl, Some(F::TTL_EXCEEDED));
    refused(F::FAR, 0, IpTtl, Some(F::TTL_EXCEEDED));
    refused(F::NOWHERE, 64, IpNoRoute, Some(F::NET_UNREACHABLE));
    refused(F::NOWHERE, 1, IpNoRoute, Some(F::NET_UNREACHABLE));
    refused(F::BLACKHOLE, 64, IpBlackhole, None);
    refused(F::UNREACHABLE, 64, IpNoRoute, Some(F::HOST_UNREACHABLE));
    world.refused(too_long(F::CLIENT, F::FAR), PktTooBig, Some(F::too_big(F::MTUS[1])));
    // One byte less fits.
    let fits = udp(0, F::CLIENT, F::FAR, 64, fitting::<F>());
    F::assert_forwarded(&world.one(0, fits.clone())[0], &fits, 1, SERVER_MAC);
}

fn packets_to_softnet_itself<F: TestFamily>() {
    let mut world = World::<F>::acquainted();
    let own = F::OWN[0];
    world.refused(udp(0, F::CLIENT, own, 1, 10), IpNoProto, Some(F::PORT_UNREACHABLE));
    world.refused(udp(0, F::CLIENT, F::OWN[1], 64, 10), IpNoProto, Some(F::PORT_UNREACHABLE));
    let sctp = F::ip(0, F::CLIENT, own, 64, 132, &[0; 20]);
    world.refused(sctp, IpNoProto, Some(F::PROTOCOL_UNREACHABLE));
    world.refused(echo_like(F::ECHO_REPLY, own, 64), IcmpIgnored, None);
    let mut damaged = echo(own, 64);
    damaged[ETH_LEN + F::HEADER + 10] ^= 1;
    world.refused(damaged, IcmpCsum, None);
    world.refused(F::ip(0, F::CLIENT, own, 64, F::ICMP, &[F::ECHO_REQUEST, 0]), IcmpMalformed, None);
}

/// An error about a packet to softnet comes from the address it was to; any other from the link that it leaves by, which
/// need not be the one that the packet came by (RFC 1812 section 4.3.2.4, RFC 4443 section 2.2).
fn errors_come_from_where_they_leave<F: TestFamily>() {
    let source_of = |sent: &Sent| (sent[0].0, F::header(packet(&sent[0].1)).src);
    let mut world = World::<F>::acquainted();
    // By the client's link to the address of the other.
    assert_eq!(source_of(&world.one(0, udp(0, F::CLIENT, F::OWN[1], 64, 10))), (0, F::OWN[1]));
    // By the client's link, from a host behind the server's: it is there that the answer goes.
    for dst in [F::SERVER, F::NOWHERE, F::UNREACHABLE] {
        assert_eq!(source_of(&world.one(0, udp(0, F::FAR, dst, 1, 10))), (1, F::OWN[1]), "{dst}");
        assert_eq!(source_of(&world.one(1, udp(1, F::CLIENT, dst, 1, 10))), (0, F::OWN[0]), "{dst}");
    }
    assert_eq!(source_of(&world.one(0, too_long(F::FAR, F::SERVER))), (1, F::OWN[1]));
    // A link without an address of its own, or with none that means anything to the other end, borrows one.
    world.reconfigure(1, |iface| {
        iface.addresses.clear();
        iface.addresses6.retain(|(own, _)| is_link_local(*own));
    });
    assert_eq!(source_of(&world.one(0, udp(0, F::FAR, F::SERVER, 1, 10))), (1, F::OWN[0]));
    // To where there is no way, nothing is said, and nothing is paid.
    let originated = world.ctx.stats().originated.get();
    assert!(world.one(0, udp(0, F::NOWHERE, F::SERVER, 1, 10)).is_empty());
    assert_eq!(world.ctx.stats().originated.get(), originated);
}

/// Of a sender whose packets all run out of hops, the others and path MTU discovery notice nothing.
fn errors_are_limited_for_each_host<F: TestFamily>() {
    let mut world = World::<F>::acquainted();
    world.control.slow.configure(IcmpParams::default(), Default::default());
    let dead = udp(0, F::CLIENT, F::SERVER, 1, 10);
    let errors: usize = (0..20).map(|_| world.input(0, &vec![dead.clone(); 20]).len()).sum();
    assert_eq!((errors, world.control.slow.icmp_limited()), (6, (0, 394)));
    let long = too_long(F::CLIENT, F::SERVER);
    for _ in 0..10 {
        let sent = world.input(0, &vec![long.clone(); 60]);
        assert_eq!(sent.len(), 60);
        assert_eq!(F::error(&sent[0], &long), F::too_big(F::MTUS[1]));
        assert!(world.input(0, &vec![dead.clone(); 20]).is_empty());
    }
    // Another host behind the same link.
    let other = F::host(0, 10);
    world.tables.set_neighbour((0, other.into(), Some(CLIENT_MAC)));
    assert_eq!(world.input(0, &vec![udp(0, other, F::SERVER, 1, 10); 20]).len(), 6);
    // Answers are not errors.
    assert_eq!(world.input(0, &vec![echo(F::OWN[0], 64); 60]).len(), 60);
    assert_eq!(world.input(0, &vec![F::question(0, F::CLIENT, CLIENT_MAC); 60]).len(), 60);
}

/// A TCP segment from the client to softnet.
pub(super) fn segment<F: TestFamily>(flags: u8, len: usize) -> Vec<u8> {
    let mut segment = vec![0x21; len];
    (segment[12], segment[13]) = (0x50, flags);
    segment[16..18].fill(0);
    let check = !F::sum(protocol::TCP, F::CLIENT, F::OWN[0], &segment);
    segment[16..18].copy_from_slice(&check.to_be_bytes());
    segment
}

/// Its sender learns that TCP is not served, which is not a matter of ports; about a reset or a damaged segment nothing is
/// said.
fn tcp_is_a_protocol_that_is_not_served<F: TestFamily>() {
    let mut world = World::<F>::acquainted();
    let tcp = |segment: &[u8]| F::ip(0, F::CLIENT, F::OWN[0], 64, protocol::TCP, segment);
    for (flags, len) in [(0x02, 20), (0x10, 27), (0x12, 500), (0x11, 21)] {
        let frame = tcp(&segment::<F>(flags, len));
        world.refused(frame.clone(), IpNoProto, Some(F::PROTOCOL_UNREACHABLE));
        // Padding is no part of it.
        assert_eq!(world.one(0, [&frame[..], &[0xee; 7]].concat()).len(), 1);
    }
    world.refused(tcp(&segment::<F>(0x04, 20)), IpNoProto, None);
    for len in [31, 33] {
        world.refused(tcp(&segment::<F>(0x14, len)), IpNoProto, None);
    }
    for len in [27, 31] {
        let mut damaged = tcp(&segment::<F>(0x02, len));
        *damaged.last_mut().unwrap() ^= 1;
        world.refused(damaged, TcpCsum, None);
    }
    for words in [0x40, 0x70] {
        world.refused(tcp(&set(segment::<F>(0x02, 24), 12, &[words])), PktTooSmall, None);
    }
    world.refused(tcp(&[0x55; 19]), PktTooSmall, None);
    world.refused(tcp(&segment::<F>(2, 20)[..19]), PktTooSmall, None);
    world.refused(tcp(&[]), PktTooSmall, None);
    // The kernel, too, answers what is of no protocol at all, whatever is in it.
    let sctp = F::ip(0, F::CLIENT, F::OWN[0], 64, 132, &[]);
    world.refused(sctp, IpNoProto, Some(F::PROTOCOL_UNREACHABLE));
}
