//! The rule by examples.

mod program;

use std::cell::RefCell;

use softnet_core::ip::v6::addr::{ALL_ROUTERS, solicited_node};
use softnet_core::sock::key::{ANY, Addr};
use softnet_core::sock::scope::scoped;

use super::layout::*;
use super::model::{Sockets, Verdict};
use super::*;
use crate::xdp::ports::{ANY4, Port};

const MAC: [u8; 6] = [0x02, 0, 0, 0, 0xfe, 0x01];
const DEV: u16 = 4;
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const BOTH: Ipv4Addr = Ipv4Addr::new(192, 168, 255, 255);
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(8, 8, 8, 8);

const OURS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const KERNEL6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const BOTH6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 2);
const ELSEWHERE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// A link-local address that the kernel is about to take.
const TENTATIVE: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x77);
const GROUP: [u8; 6] = [0x33, 0x33, 0xff, 0, 0, 1];
const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const JOINED: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const OTHER: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 4);
const JOINED6: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 0x1234);
const OTHER6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x1234);
const GROUPS: [IpAddr; 2] = [IpAddr::V4(JOINED), IpAddr::V6(JOINED6)];
/// MAC addresses of both.
const JOINED_MAC: [u8; 6] = [0x01, 0, 0x5e, 1, 2, 3];
const JOINED6_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0x12, 0x34];
/// Of all routers.
const ROUTERS_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 2];
const STRANGER: [u8; 6] = [2, 9, 9, 9, 9, 9];

/// Open on the shared address; on that of no family's; on another; on the link-local one; on none.
/// Those of TCP are as many higher.
const OF_TCP: u16 = 1000;
const HERE: u16 = 53;
const ANYWHERE: u16 = 5353;
const ELSE: u16 = 123;
const ON_LINK: u16 = 546;
const CLOSED: u16 = 7;

fn ports() -> Vec<Port> {
    let both = |v4: Ipv4Addr, v6: Ipv6Addr, port| [(addr_of(v4.into()), port), (addr_of(v6.into()), port)];
    let mut all: Vec<(Addr, u16)> =
        [both(BOTH, BOTH6, HERE), [(ANY4, ANYWHERE), (ANY, ANYWHERE)], both(KERNEL, KERNEL6, ELSE)].concat();
    all.push((scoped(link_local(MAC).to_bits(), DEV), ON_LINK));
    // That of another link.
    all.push((scoped(link_local(MAC).to_bits(), DEV + 1), CLOSED));
    let of = |protocol, more| move |&(addr, number)| Port { protocol, addr, number: number + more };
    all.iter().map(of(UDP, 0)).chain(all.iter().map(of(TCP, OF_TCP))).collect()
}

fn rule(shared: bool) -> ClaimFilter {
    let ours = [OURS.into(), BOTH.into(), OURS6.into(), BOTH6.into()];
    let kernel = [BOTH.into(), KERNEL.into(), BOTH6.into(), KERNEL6.into(), link_local(MAC).into()];
    let kernel = if shared { &kernel[..] } else { &kernel[..4] };
    ClaimFilter::new(MAC, DEV, &Claim { addresses: ours.to_vec(), shared, ..Claim::default() }, kernel)
}

fn filter() -> ClaimFilter {
    rule(false)
}

fn ipv4_only() -> ClaimFilter {
    let claim = Claim { addresses: vec![OURS.into()], ..Claim::default() };
    ClaimFilter::new(MAC, DEV, &claim, &[KERNEL.into(), KERNEL6.into()])
}

/// VLAN 5 of either kind, beside an address or alone.
fn with_vlans(addresses: Vec<IpAddr>) -> ClaimFilter {
    let vlan = |proto| ClaimedVlan { proto, id: 5, addresses: vec![OURS.into()] };
    let vlans = vec![vlan(VlanProto::Dot1q), vlan(VlanProto::Dot1ad)];
    ClaimFilter::new(MAC, DEV, &Claim { addresses, vlans, ..Claim::default() }, &[KERNEL.into()])
}

fn claims_with(filter: &ClaimFilter, frame: &[u8], groups: &[IpAddr]) -> bool {
    let fragments = RefCell::default();
    filter.verdict(frame, Sockets { groups, ports: &ports(), fragments: &fragments }) == Verdict::Claim
}

fn claims(filter: &ClaimFilter, frame: &[u8]) -> bool {
    claims_with(filter, frame, &GROUPS)
}

/// An IPv6 frame to `address`; to a group, the question for it.
fn frame6(dst: [u8; 6], address: Ipv6Addr) -> Vec<u8> {
    let mut frame = vec![0; 120];
    frame[..6].copy_from_slice(&dst);
    frame[ETHERTYPE..ETH_LEN].copy_from_slice(&IPV6);
    frame[ETH_LEN] = 0x60;
    frame[IPV6_NEXT] = ICMPV6;
    frame[ND_TYPE] = SOLICITATION;
    let asked_for = dst != MAC && !address.is_multicast() && address.to_ipv4_mapped().is_none();
    if asked_for {
        frame[ND_TARGET..ND_END].copy_from_slice(&address.octets());
    }
    let to = if asked_for { solicited_node(address) } else { address };
    frame[IPV6_DST..IPV6_END].copy_from_slice(&to.octets());
    frame
}

fn frame(dst: [u8; 6], ethertype: [u8; 2], address: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0; 90];
    frame[..6].copy_from_slice(&dst);
    frame[ETHERTYPE..ETH_LEN].copy_from_slice(&ethertype);
    if ethertype == ARP {
        frame[ARP_FORMAT..ARP_OPERATION + 2].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
        frame[ARP_TARGET..ARP_END].copy_from_slice(&address.octets());
    } else {
        frame[ETH_LEN] = 0x45;
        frame[IPV4_DST..IPV4_END].copy_from_slice(&address.octets());
    }
    frame
}

fn with(mut frame: Vec<u8>, changes: &[(usize, &[u8])]) -> Vec<u8> {
    changes.iter().for_each(|(at, bytes)| frame[*at..at + bytes.len()].copy_from_slice(bytes));
    frame
}

fn tagged(frame: &[u8], tag: [u8; 2], tci: [u8; 2]) -> Vec<u8> {
    [&frame[..ETHERTYPE], &tag, &tci, &frame[ETHERTYPE..]].concat()
}

/// A datagram to `address`.
fn udp4(address: Ipv4Addr, port: u16) -> Vec<u8> {
    let port_at = IPV4_END + PORT_DST;
    with(frame(MAC, IPV4, address), &[(IPV4_PROTOCOL, &[UDP]), (port_at, &port.to_be_bytes())])
}

fn udp6(address: Ipv6Addr, port: u16) -> Vec<u8> {
    let port_at = IPV6_END + PORT_DST;
    with(frame6(MAC, address), &[(IPV6_NEXT, &[UDP]), (port_at, &port.to_be_bytes())])
}

/// The same as a segment of TCP, to the port that is as much higher.
fn tcp4(address: Ipv4Addr, port: u16) -> Vec<u8> {
    with(udp4(address, port + OF_TCP), &[(IPV4_PROTOCOL, &[TCP])])
}

fn tcp6(address: Ipv6Addr, port: u16) -> Vec<u8> {
    with(udp6(address, port + OF_TCP), &[(IPV6_NEXT, &[TCP])])
}

/// An ICMP error about a datagram that was sent from `port`.
fn error4(address: Ipv4Addr, port: u16) -> Vec<u8> {
    let quote = IPV4_END + QUOTE;
    let plain = frame(MAC, IPV4, address);
    let quoted = [(IPV4_PROTOCOL, &[ICMP][..]), (IPV4_END, &[3]), (quote, &[PLAIN]), (quote + 9, &[UDP])];
    with(with(plain, &quoted), &[(quote + 20, &port.to_be_bytes())])
}

fn error6(address: Ipv6Addr, port: u16) -> Vec<u8> {
    let quote = IPV6_END + QUOTE;
    let quoted = [(ND_TYPE, &[1][..]), (quote + 6, &[UDP]), (quote + 40, &port.to_be_bytes())];
    with(frame6(MAC, address), &quoted)
}

/// The same about a segment.
fn tcp_error4(address: Ipv4Addr, port: u16) -> Vec<u8> {
    with(error4(address, port + OF_TCP), &[(IPV4_END + QUOTE + 9, &[TCP])])
}

fn tcp_error6(address: Ipv6Addr, port: u16) -> Vec<u8> {
    with(error6(address, port + OF_TCP), &[(IPV6_END + QUOTE + 6, &[TCP])])
}

/// A fragment of datagram `id` to `port`, the first or a later one.
fn fragment4(port: u16, id: u16, first: bool) -> Vec<u8> {
    let offset = if first { [0x20, 0] } else { [0x00, 185] };
    with(udp4(BOTH, port), &[(IPV4_ID, &id.to_be_bytes()), (IPV4_FRAGMENT, &offset)])
}

fn fragment6(port: u16, id: u16, first: bool) -> Vec<u8> {
    let offset = if first { [0, 1] } else { [0x05, 0xc8] };
    let header = [(IPV6_NEXT, &[FRAGMENT][..]), (IPV6_END, &[UDP]), (IPV6_FRAGMENT, &offset)];
    let port_at = FRAGMENT_END + PORT_DST;
    with(with(frame6(MAC, BOTH6), &header), &[(IPV6_ID, &id.to_be_bytes()), (port_at, &port.to_be_bytes())])
}

/// What a DHCP server sends to the client with this MAC address.
fn dhcp(client: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let answer = with(udp4(address, 68), &[(IPV4_END, &[0, 67]), (BOOTP, &[BOOTREPLY])]);
    with(answer, &[(BOOTP_CHADDR, &client)])
}

#[test]
fn takes_what_is_softnets_and_leaves_the_rest() {
    let filter = filter();
    let claims_it = |dst, ethertype, address| claims(&filter, &frame(dst, ethertype, address));
    assert!(claims_it(MAC, IPV4, OURS));
    assert!(claims_it(MAC, IPV4, BOTH), "softnet wins");
    assert!(claims_it(MAC, IPV4, ELSEWHERE), "to be forwarded");
    assert!(!claims_it(MAC, IPV4, KERNEL));
    assert!(!claims_it([0xff; 6], IPV4, OURS), "broadcast");
    assert!(!claims_it([1, 0, 0x5e, 0, 0, 1], IPV4, ELSEWHERE), "multicast");
    assert!(!claims_it(STRANGER, IPV4, OURS), "another MAC");
    for dst in [MAC, [0xff; 6]] {
        assert!(claims_it(dst, ARP, OURS));
        assert!(claims_it(dst, ARP, BOTH));
        assert!(!claims_it(dst, ARP, KERNEL));
        assert!(!claims_it(dst, ARP, ELSEWHERE));
    }
    assert!(!claims_it(STRANGER, ARP, OURS));

    let mut reply = frame(MAC, ARP, OURS);
    reply[ARP_OPERATION + 1] = 2;
    assert!(claims(&filter, &reply), "the answer to our request");
    reply[ARP_OPERATION + 1] = 3;
    assert!(!claims(&filter, &reply), "reverse ARP");
    assert!(!claims(&filter, &frame(MAC, ARP, OURS)[..ARP_END - 1]));
    assert!(!claims(&filter, &frame(MAC, IPV4, OURS)[..IPV4_END - 1]));
    assert!(!claims(&filter, &[]));
}

/// A tag without a VLAN says nothing of where a frame belongs.
#[test]
fn priority_tags_are_none() {
    let filter = filter();
    for (frame, ours) in [
        (frame(MAC, IPV4, OURS), true),
        (frame(MAC, IPV4, KERNEL), false),
        (frame([0xff; 6], ARP, OURS), true),
        (frame6(MAC, OURS6), true),
        (frame6(GROUP, OURS6), true),
    ] {
        for tag in TAGS {
            // The highest priority, and "drop first".
            for tci in [[0, 0], [0xe0, 0], [0x10, 0]] {
                assert_eq!(claims(&filter, &tagged(&frame, tag, tci)), ours);
            }
            for tci in [[0, 1], [0x01, 0], [0xe0, 5], [0x0f, 0xff]] {
                assert!(!claims(&filter, &tagged(&frame, tag, tci)), "a VLAN");
            }
            let twice = tagged(&tagged(&frame, tag, [0, 0]), tag, [0, 0]);
            assert!(!claims(&filter, &twice));
            assert!(!claims(&filter, &tagged(&frame, tag, [0, 0])[..IPV4_END]));
        }
    }
}

/// Whatever else is in a frame of a VLAN that is softnet's; and nothing else, without an address.
#[test]
fn takes_whole_vlans() {
    let (beside, alone) = (with_vlans(vec![OURS.into()]), with_vlans(vec![]));
    for frame in [frame(MAC, IPV4, KERNEL), frame(STRANGER, ARP, OURS), frame6(ALL_NODES, OURS6)] {
        for tag in TAGS {
            for (tci, ours) in [([0, 5], true), ([0xf0, 5], true), ([1, 5], false), ([0, 4], false)] {
                let frame = tagged(&frame, tag, tci);
                assert_eq!([claims(&beside, &frame), claims(&alone, &frame)], [ours; 2]);
            }
        }
    }
    let untagged = frame(MAC, IPV4, OURS);
    for frame in [&untagged, &tagged(&untagged, TAGS[0], [0xe0, 0])] {
        assert_eq!([claims(&beside, frame), claims(&alone, frame)], [true, false]);
    }
}

#[test]
fn takes_ipv6_in_the_same_way_where_it_has_an_address_of_it() {
    let filter = filter();
    let claims_it = |dst, address| claims(&filter, &frame6(dst, address));
    for (address, unicast, asked_for) in [
        (OURS6, true, true),
        (BOTH6, true, true),
        (link_local(MAC), true, true),
        (KERNEL6, false, false),
        (ELSEWHERE6, true, false),
        (TENTATIVE, false, false),
    ] {
        assert_eq!((claims_it(MAC, address), claims_it(GROUP, address)), (unicast, asked_for), "{address}");
        assert!(!claims_it(ALL_NODES, address), "all nodes");
        assert!(!claims_it(STRANGER, address), "another MAC");
        assert!(!claims(&ipv4_only(), &frame6(MAC, address)));
        assert!(!claims(&ipv4_only(), &frame6(GROUP, address)));
    }
    assert!(!claims(&filter, &frame6(MAC, OURS6)[..IPV6_END - 1]));
    assert!(!claims(&filter, &frame6(GROUP, OURS6)[..ND_END - 1]));
    for (group, ours) in [(ALL_ROUTERS[0], true), (ALL_ROUTERS[1], true), (OTHER6, false)] {
        let mut ping = frame6(ROUTERS_MAC, group);
        assert!(!claims(&filter, &ping), "what routers tell each other");
        ping[ND_TYPE] = ECHO_REQUEST;
        assert_eq!(claims(&filter, &ping), ours);
        assert!(!claims(&ipv4_only(), &ping) && !claims(&filter, &ping[..ND_TYPE]));
    }
    for (at, value) in [(IPV6_NEXT, 17), (ND_TYPE, 136)] {
        let mut other = frame6(GROUP, OURS6);
        other[at] = value;
        assert!(!claims(&filter, &other), "{at}");
    }
}

/// What the kernel needs to get an address by DHCP, or from a router.
#[test]
fn leaves_to_the_kernel_what_sets_it_up() {
    let (alone, together) = (rule(false), rule(true));
    for filter in [&alone, &together, &ipv4_only()] {
        assert!(!claims(filter, &dhcp(MAC, ELSEWHERE)), "for the address that is in it");
        assert!(!claims(filter, &dhcp(MAC, Ipv4Addr::BROADCAST)));
        assert!(claims(filter, &dhcp(STRANGER, ELSEWHERE)), "for a client of ours");
        assert!(claims(filter, &dhcp(MAC, OURS)));
        assert!(claims(filter, &with(dhcp(MAC, ELSEWHERE), &[(BOOTP, &[1])])), "a question");
        assert!(claims(filter, &with(dhcp(MAC, ELSEWHERE), &[(IPV4_END + 1, &[68])])));
        assert!(claims(filter, &dhcp(MAC, ELSEWHERE)[..BOOTP_END - 1]));
        for dst in [Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)] {
            assert!(!claims(filter, &frame(MAC, IPV4, dst)), "{dst} in a frame of ours");
        }
    }
    let advertisement = |dst: Ipv6Addr| with(frame6(MAC, dst), &[(ND_TYPE, &[134])]);
    assert!(!claims(&together, &advertisement(link_local(MAC))), "a router answers the kernel");
    assert!(!claims(&together, &advertisement(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1))), "RFC 6085");
    assert!(!claims(&together, &udp6(TENTATIVE, 546)), "DHCPv6");
    let asked = with(frame6(MAC, solicited_node(OURS6)), &[(ND_TARGET, &OURS6.octets())]);
    assert!(claims(&together, &asked), "RFC 6085");
}

#[test]
fn of_a_shared_address_takes_what_sockets_want() {
    let (alone, together) = (rule(false), rule(true));
    let derived = link_local(MAC);
    for (port, shared, on_link) in [
        (HERE, true, false),
        (ANYWHERE, true, true),
        (ELSE, false, false),
        (ON_LINK, false, true),
        (CLOSED, false, false),
    ] {
        for (frame, ours) in [
            (udp4(BOTH, port), shared),
            (error4(BOTH, port), shared),
            (udp6(BOTH6, port), shared),
            (error6(BOTH6, port), shared),
            (udp6(derived, port), on_link),
            (error6(derived, port), on_link),
            (tcp4(BOTH, port), shared),
            (tcp_error4(BOTH, port), shared),
            (tcp6(BOTH6, port), shared),
            (tcp_error6(BOTH6, port), shared),
            (tcp6(derived, port), on_link),
            (tcp_error6(derived, port), on_link),
        ] {
            assert_eq!(claims(&together, &frame), ours, "{port}: {frame:x?}");
            assert!(claims(&alone, &frame));
        }
        assert!(claims(&together, &udp4(OURS, port)) && claims(&together, &udp6(OURS6, port)));
    }
    let here = || udp4(BOTH, HERE);
    for (frame, why) in [
        (with(here(), &[(IPV4_PROTOCOL, &[TCP])]), "TCP, whose port is closed"),
        (with(tcp4(BOTH, HERE), &[(IPV4_PROTOCOL, &[UDP])]), "UDP, whose port is closed"),
        (with(tcp4(BOTH, HERE), &[(IPV4_PROTOCOL, &[132])]), "SCTP"),
        (tcp4(BOTH, HERE)[..IPV4_END + UDP_LEN - 1].to_vec(), "cut short"),
        (with(here(), &[(IPV4_FRAGMENT + 1, &[1])]), "a later fragment, of what is unknown"),
        (with(tcp4(BOTH, HERE), &[(IPV4_FRAGMENT, &[0x20])]), "a fragment of TCP"),
        (with(here(), &[(IPV4_VIHL, &[0x46])]), "options"),
        (here()[..IPV4_END + UDP_LEN - 1].to_vec(), "cut short"),
        (with(error4(BOTH, HERE), &[(IPV4_END, &[8])]), "a ping"),
        (with(error4(BOTH, HERE), &[(IPV4_END, &[5])]), "a redirect"),
        (with(error4(BOTH, HERE), &[(IPV4_END + QUOTE + 9, &[TCP])]), "about TCP, whose port is closed"),
        (with(error4(BOTH, HERE), &[(IPV4_END + QUOTE + 9, &[ICMP])]), "about a ping"),
        (with(frame(MAC, ARP, BOTH), &[(ARP_OPERATION + 1, &[2])]), "an answer, which both hear"),
        (with(udp6(BOTH6, HERE), &[(IPV6_NEXT, &[FRAGMENT])]), "a fragment of what is no datagram"),
        (with(frame6(MAC, BOTH6), &[(ND_TYPE, &[136])]), "an answer"),
        (with(frame6(MAC, BOTH6), &[(ND_TYPE, &[128])]), "a ping"),
        (with(frame6(MAC, BOTH6), &[(ND_TYPE, &[137])]), "a redirect"),
    ] {
        assert!(!claims(&together, &frame), "{why}");
    }
    assert!(claims(&together, &frame([0xff; 6], ARP, BOTH)), "it is softnet that answers");
    assert!(claims(&together, &frame6(GROUP, BOTH6)));
    assert!(claims(&together, &with(frame6(MAC, BOTH6), &[(ND_TARGET, &BOTH6.octets())])));
}

/// The first fragment has the ports, and the others follow it.
#[test]
fn of_a_shared_address_fragments_stay_together() {
    let filter = rule(true);
    let fragments = RefCell::default();
    let claims = |frame: &[u8]| {
        filter.verdict(frame, Sockets { groups: &[], ports: &ports(), fragments: &fragments })
            == Verdict::Claim
    };
    for fragment in [fragment4 as fn(u16, u16, bool) -> Vec<u8>, fragment6] {
        let (ours, theirs) = (1, 2);
        assert!(!claims(&fragment(HERE, ours, false)), "before its first");
        assert!(claims(&fragment(HERE, ours, true)));
        assert!(claims(&fragment(0, ours, false)) && claims(&fragment(0, ours, false)));
        assert!(!claims(&fragment(CLOSED, theirs, true)));
        assert!(!claims(&fragment(HERE, theirs, false)));
        // The identification is used anew.
        assert!(!claims(&fragment(CLOSED, ours, true)));
        assert!(!claims(&fragment(0, ours, false)));
    }
}

#[test]
fn takes_datagrams_to_groups_that_were_joined() {
    let with = |mut frame: Vec<u8>, at: usize, value: u8| {
        frame[at] = value;
        frame
    };
    let v4 = |mac, to, proto| with(frame(mac, IPV4, to), IPV4_PROTOCOL, proto);
    let v6 = |mac, to, next| with(frame6(mac, to), IPV6_NEXT, next);
    // A group of softnet's, whose MAC address is that of hosts that look for an address, too.
    let looked_for = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0xff00, 1);
    let groups = [GROUPS[0], GROUPS[1], looked_for.into()];
    for filter in [filter(), ipv4_only()] {
        for (frame, ours, why) in [
            (v4(JOINED_MAC, JOINED, UDP), true, "a datagram, or a fragment of one"),
            (v4([0xff; 6], JOINED, UDP), true, "to all, as far as Ethernet knows"),
            (v4(MAC, JOINED, UDP), true, "to the interface, as far as Ethernet knows"),
            (v4(JOINED_MAC, JOINED, 2), false, "IGMP"),
            (v4(MAC, JOINED, 2), false, "IGMP"),
            (v4(JOINED_MAC, OTHER, UDP), false, "to another group"),
            (v4([0xff; 6], Ipv4Addr::BROADCAST, UDP), false, "broadcast"),
            (v4(STRANGER, JOINED, UDP), false, "in another's frame"),
            (v6(JOINED6_MAC, JOINED6, UDP), true, "a datagram"),
            (v6(JOINED6_MAC, JOINED6, FRAGMENT), true, "a fragment"),
            (v6(JOINED6_MAC, JOINED6, ICMPV6), false, "MLD"),
            (v6(JOINED6_MAC, JOINED6, 0), false, "MLD, as it is sent"),
            (v6(JOINED6_MAC, OTHER6, UDP), false, "the same MAC address, another group"),
            (v6(GROUP, looked_for, UDP), true, "not all that is sent there is discovery"),
            (v6(STRANGER, JOINED6, UDP), false, "in another's frame"),
            (v6(JOINED6_MAC, JOINED.to_ipv6_mapped(), UDP), false, "no group of IPv6"),
        ] {
            assert_eq!(claims_with(&filter, &frame, &groups), ours, "{why}");
            assert!(!claims_with(&filter, &frame, &[]), "none was joined: {why}");
        }
    }
}
