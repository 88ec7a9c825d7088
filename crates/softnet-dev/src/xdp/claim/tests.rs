//! The rule by examples, and the program against the rule.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use softnet_core::ip::v6::addr::solicited_node;

use super::*;
use crate::testing::net_allowed;

const MAC: [u8; 6] = [0x02, 0, 0, 0, 0xfe, 0x01];
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const BOTH: Ipv4Addr = Ipv4Addr::new(192, 168, 255, 255);
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(8, 8, 8, 8);

const OURS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const KERNEL6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const BOTH6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 2);
const ELSEWHERE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const GROUP: [u8; 6] = [0x33, 0x33, 0xff, 0, 0, 1];
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

fn filter() -> ClaimFilter {
    let ours = [OURS.into(), BOTH.into(), OURS6.into(), BOTH6.into()];
    let kernel = [BOTH.into(), KERNEL.into(), BOTH6.into(), KERNEL6.into()];
    ClaimFilter::new(MAC, &Claim { addresses: ours.to_vec() }, &kernel)
}

fn ipv4_only() -> ClaimFilter {
    ClaimFilter::new(MAC, &Claim { addresses: vec![OURS.into()] }, &[KERNEL.into(), KERNEL6.into()])
}

/// An IPv6 frame to `address`; to a group, the question for it.
fn frame6(dst: [u8; 6], address: Ipv6Addr) -> Vec<u8> {
    let mut frame = vec![0; ND_END + 8];
    frame[..6].copy_from_slice(&dst);
    frame[ETHERTYPE..ETH_HLEN].copy_from_slice(&IPV6);
    frame[ETH_HLEN] = 0x60;
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
    let mut frame = vec![0; 60];
    frame[..6].copy_from_slice(&dst);
    frame[ETHERTYPE..ETH_HLEN].copy_from_slice(&ethertype);
    if ethertype == ARP {
        frame[ARP_FORMAT..ARP_OPERATION + 2].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
        frame[ARP_TARGET..ARP_END].copy_from_slice(&address.octets());
    } else {
        frame[ETH_HLEN] = 0x45;
        frame[IPV4_DST..IPV4_END].copy_from_slice(&address.octets());
    }
    frame
}

#[test]
fn takes_what_is_softnets_and_leaves_the_rest() {
    let filter = filter();
    let claims = |dst, ethertype, address| filter.claims(&frame(dst, ethertype, address), &GROUPS);
    assert!(claims(MAC, IPV4, OURS));
    assert!(claims(MAC, IPV4, BOTH), "softnet wins");
    assert!(claims(MAC, IPV4, ELSEWHERE), "to be forwarded");
    assert!(!claims(MAC, IPV4, KERNEL));
    assert!(!claims([0xff; 6], IPV4, OURS), "broadcast");
    assert!(!claims([1, 0, 0x5e, 0, 0, 1], IPV4, ELSEWHERE), "multicast");
    assert!(!claims([2, 9, 9, 9, 9, 9], IPV4, OURS), "another MAC");
    for dst in [MAC, [0xff; 6]] {
        assert!(claims(dst, ARP, OURS));
        assert!(claims(dst, ARP, BOTH));
        assert!(!claims(dst, ARP, KERNEL));
        assert!(!claims(dst, ARP, ELSEWHERE));
    }
    assert!(!claims([2, 9, 9, 9, 9, 9], ARP, OURS));
    assert!(!claims(MAC, [0x81, 0x00], OURS), "VLAN");

    let mut reply = frame(MAC, ARP, OURS);
    reply[ARP_OPERATION + 1] = 2;
    assert!(filter.claims(&reply, &GROUPS), "the answer to our request");
    reply[ARP_OPERATION + 1] = 3;
    assert!(!filter.claims(&reply, &GROUPS), "reverse ARP");
    assert!(!filter.claims(&frame(MAC, ARP, OURS)[..ARP_END - 1], &GROUPS));
    assert!(!filter.claims(&frame(MAC, IPV4, OURS)[..IPV4_END - 1], &GROUPS));
    assert!(!filter.claims(&[], &GROUPS));
}

#[test]
fn takes_ipv6_in_the_same_way_where_it_has_an_address_of_it() {
    let filter = filter();
    let claims = |dst, address| filter.claims(&frame6(dst, address), &GROUPS);
    let derived: Ipv6Addr = "fe80::ff:fe00:fe01".parse().unwrap();
    for (address, unicast, asked_for) in [
        (OURS6, true, true),
        (BOTH6, true, true),
        (derived, true, true),
        (KERNEL6, false, false),
        (ELSEWHERE6, true, false),
    ] {
        assert_eq!((claims(MAC, address), claims(GROUP, address)), (unicast, asked_for), "{address}");
        assert!(!claims([0x33, 0x33, 0, 0, 0, 1], address), "all nodes");
        assert!(!claims([2, 9, 9, 9, 9, 9], address), "another MAC");
        assert!(!ipv4_only().claims(&frame6(MAC, address), &GROUPS));
        assert!(!ipv4_only().claims(&frame6(GROUP, address), &GROUPS));
    }
    assert!(!filter.claims(&frame6(MAC, OURS6)[..IPV6_END - 1], &GROUPS));
    assert!(!filter.claims(&frame6(GROUP, OURS6)[..ND_END - 1], &GROUPS));
    for (group, ours) in [(ALL_ROUTERS[0], true), (ALL_ROUTERS[1], true), (OTHER6, false)] {
        let mut ping = frame6(ROUTERS_MAC, group);
        assert!(!filter.claims(&ping, &GROUPS), "what routers tell each other");
        ping[ND_TYPE] = ECHO_REQUEST;
        assert_eq!(filter.claims(&ping, &GROUPS), ours);
        assert!(!ipv4_only().claims(&ping, &GROUPS) && !filter.claims(&ping[..ND_TYPE], &GROUPS));
    }
    for (at, value) in [(IPV6_NEXT, 17), (ND_TYPE, 136)] {
        let mut other = frame6(GROUP, OURS6);
        other[at] = value;
        assert!(!filter.claims(&other, &GROUPS), "{at}");
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
    // A group of softnet's, whose MAC address is that of those who look for an address, too.
    let looked_for = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0xff00, 1);
    let groups = [GROUPS[0], GROUPS[1], looked_for.into()];
    for filter in [filter(), ipv4_only()] {
        for (frame, ours, why) in [
            (v4(JOINED_MAC, JOINED, UDP), true, "a datagram, or a fragment of one"),
            (v4([0xff; 6], JOINED, UDP), true, "to all, as far as Ethernet knows"),
            (v4(JOINED_MAC, JOINED, 2), false, "IGMP"),
            (v4(JOINED_MAC, OTHER, UDP), false, "to another group"),
            (v4([0xff; 6], Ipv4Addr::BROADCAST, UDP), false, "broadcast"),
            (v4([2, 9, 9, 9, 9, 9], JOINED, UDP), false, "in another's frame"),
            (v6(JOINED6_MAC, JOINED6, UDP), true, "a datagram"),
            (v6(JOINED6_MAC, JOINED6, FRAGMENT), true, "a fragment"),
            (v6(JOINED6_MAC, JOINED6, ICMPV6), false, "MLD"),
            (v6(JOINED6_MAC, JOINED6, 0), false, "MLD, as it is sent"),
            (v6(JOINED6_MAC, OTHER6, UDP), false, "the same MAC address, another group"),
            (v6(GROUP, looked_for, UDP), true, "not all that is sent there is discovery"),
            (v6([2, 9, 9, 9, 9, 9], JOINED6, UDP), false, "in another's frame"),
            (v6(JOINED6_MAC, JOINED.to_ipv6_mapped(), UDP), false, "no group of IPv6"),
        ] {
            assert_eq!(filter.claims(&frame, &groups), ours, "{why}");
            assert!(!filter.claims(&frame, &[]), "none was joined: {why}");
        }
    }
}

/// Frames that are near the rule's edges more often than chance would have them.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let mac = prop_oneof![
        4 => Just(MAC),
        2 => Just([0xff; 6]),
        1 => Just([0xff, 0xff, 0xff, 0xff, 0xfe, 0x01]),
        1 => Just([MAC[0], MAC[1], MAC[2], MAC[3], 0xff, 0xff]),
        2 => Just(JOINED_MAC),
        1 => any::<[u8; 6]>(),
    ];
    let ethertype = prop_oneof![4 => Just(IPV4), 4 => Just(ARP), 6 => Just(IPV6), 1 => any::<[u8; 2]>()];
    let group = prop_oneof![
        2 => Just(None),
        1 => Just(Some(GROUP)),
        1 => Just(Some(JOINED6_MAC)),
        1 => Just(Some(ROUTERS_MAC)),
        1 => any::<[u8; 2]>().prop_map(|[a, b]| Some([0x33, 0x33, a, b, 0, 1])),
    ];
    // Like one of softnet's or the kernel's, or with a byte of it changed.
    let address6 = (
        prop::sample::select(vec![
            OURS6,
            KERNEL6,
            BOTH6,
            ELSEWHERE6,
            link_local(MAC),
            JOINED6,
            JOINED6,
            OTHER6,
            ALL_ROUTERS[0],
            ALL_ROUTERS[1],
            JOINED.to_ipv6_mapped(),
        ]),
        prop_oneof![2 => Just(None), 1 => (0usize..16, any::<u8>()).prop_map(Some)],
    );
    let address6 = address6.prop_map(|(address, change)| {
        let mut octets = address.octets();
        if let Some((at, value)) = change {
            octets[at] = value;
        }
        Ipv6Addr::from(octets)
    });
    let address = prop_oneof![
        Just(OURS),
        Just(KERNEL),
        Just(BOTH),
        Just(JOINED),
        any::<u32>().prop_map(Ipv4Addr::from)
    ];
    // What may be behind the IP header.
    let next = prop_oneof![2 => Just(None), 2 => Just(Some(UDP)), 1 => Just(Some(FRAGMENT)), 1 => any::<u8>().prop_map(Some)];
    let flaw = prop_oneof![3 => Just(None), 1 => (0usize..78, any::<u8>()).prop_map(Some)];
    (mac, ethertype, (address, address6, group, next), 0u8..4, 14usize..=86, any::<bool>(), flaw).prop_map(
        |(mac, ethertype, (address, address6, group, next), operation, len, whole, flaw)| {
            let mut frame = match ethertype {
                IPV6 => frame6(group.unwrap_or(mac), address6),
                _ => frame(mac, ethertype, address),
            };
            match (ethertype, next) {
                (ARP, _) => frame[ARP_OPERATION + 1] = operation,
                (IPV4, Some(next)) => frame[IPV4_PROTOCOL] = next,
                // Half of them are echo requests, if they are of ICMPv6.
                (IPV6, _) if operation < 2 => frame[ND_TYPE] = ECHO_REQUEST,
                (IPV6, Some(next)) => frame[IPV6_NEXT] = next,
                _ => {}
            }
            if let Some((byte, value)) = flaw.and_then(|(at, value)| Some((frame.get_mut(at)?, value))) {
                *byte = value;
            }
            if !whole {
                frame.truncate(len);
            }
            frame
        },
    )
}

#[test]
fn the_program_does_what_the_model_says() {
    if !net_allowed() {
        return;
    }
    for filter in [filter(), ipv4_only(), ClaimFilter::new(MAC, &Claim::default(), &[])] {
        // No socket is bound here, so what is claimed shows by the fallback action.
        let sockets = Map::xsk(1).unwrap();
        let groups = Set::new("test_groups", 2).unwrap();
        GROUPS.iter().for_each(|group| groups.insert(&group_key(*group)).unwrap());
        let program =
            filter.assemble(&sockets, &groups, XdpAction::Drop).load_xdp("softnet_claim", 0).unwrap();
        let mut runner = TestRunner::new(ProptestConfig { cases: 2000, ..ProptestConfig::default() });
        runner
            .run(&frames(), |frame| {
                let (action, _) = program.test_run(&frame).unwrap();
                let want = if filter.claims(&frame, &GROUPS) { XdpAction::Drop } else { XdpAction::Pass };
                prop_assert_eq!(action, want as u32);
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn many_addresses_load() {
    if !net_allowed() {
        return;
    }
    let many = (0..1000u32).flat_map(|i| {
        let v6 = Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(i) << 64 | u128::from(i));
        [IpAddr::V4(i.into()), v6.into()]
    });
    let addresses: Vec<IpAddr> = many.collect();
    let filter = ClaimFilter::new(MAC, &Claim { addresses: addresses.clone() }, &addresses);
    filter.load(&Map::xsk(64).unwrap(), &Set::new("test_groups", 1).unwrap()).unwrap();
}
