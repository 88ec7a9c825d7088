//! The program against the rule.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::super::program::*;
use super::*;
use crate::bpf::{LruMap, Map, Program, Set, XdpAction};
use crate::xdp::ports::KEY_LEN;
use softnet_testkit::net_allowed;

/// Frames that are near the rule's edges more often than chance would have them.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let mac = prop_oneof![
        6 => Just(MAC),
        2 => Just([0xff; 6]),
        1 => Just([0xff, 0xff, 0xff, 0xff, 0xfe, 0x01]),
        1 => Just([MAC[0], MAC[1], MAC[2], MAC[3], 0xff, 0xff]),
        2 => Just(JOINED_MAC),
        1 => any::<[u8; 6]>(),
    ];
    let ethertype = prop_oneof![6 => Just(IPV4), 4 => Just(ARP), 8 => Just(IPV6), 1 => any::<[u8; 2]>()];
    let group = prop_oneof![
        3 => Just(None),
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
            BOTH6,
            ELSEWHERE6,
            TENTATIVE,
            link_local(MAC),
            JOINED6,
            JOINED6,
            OTHER6,
            ALL_ROUTERS[0],
            ALL_ROUTERS[1],
            solicited_node(OURS6),
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
        2 => Just(OURS),
        1 => Just(KERNEL),
        4 => Just(BOTH),
        1 => Just(JOINED),
        1 => Just(Ipv4Addr::BROADCAST),
        2 => any::<u32>().prop_map(Ipv4Addr::from)
    ];
    // What may be behind the IP header.
    let next = prop_oneof![
        2 => Just(None),
        3 => Just(Some(UDP)),
        2 => Just(Some(TCP)),
        2 => Just(Some(ICMP)),
        1 => Just(Some(FRAGMENT)),
        1 => any::<u8>().prop_map(Some)
    ];
    let port = prop::sample::select(vec![HERE, ANYWHERE, ELSE, ON_LINK, CLOSED, 68]);
    let shape = (0u8..8, port, prop::sample::select(vec![0u8, 1, 3, 4, 11, 12, 128, 134, 135, 135, 136]));
    let tag = prop_oneof![
        4 => Just(None),
        1 => (prop::sample::select(TAGS.to_vec()), prop::sample::select(vec![[0, 0], [0xe0, 0], [0, 5], [1, 0]])).prop_map(Some),
    ];
    let flaw = prop_oneof![3 => Just(None), 1 => (0usize..110, any::<u8>()).prop_map(Some)];
    let cut = prop_oneof![2 => Just(None), 1 => (14usize..=124).prop_map(Some)];
    (mac, ethertype, (address, address6, group, next), shape, tag, (0u8..4, cut), flaw).prop_map(
        |(
            mac,
            ethertype,
            (address, address6, group, next),
            (form, port, kind),
            tag,
            (operation, cut),
            flaw,
        )| {
            let mut frame = match (ethertype, form) {
                (IPV6, 0) => udp6(address6, port),
                (IPV6, 1) => error6(address6, port),
                (IPV6, 6) => tcp6(address6, port),
                (IPV6, 7) => tcp_error6(address6, port),
                (IPV4, 6) => tcp4(address, port),
                (IPV4, 7) => with(tcp_error4(address, port), &[(IPV4_END, &[kind])]),
                (IPV6, 4 | 5) => fragment6(port, u16::from(operation), form == 4),
                (IPV4, 4 | 5) => fragment4(port, u16::from(operation), form == 4),
                (IPV6, _) => with(frame6(group.unwrap_or(mac), address6), &[(ND_TYPE, &[kind])]),
                (IPV4, 0) => udp4(address, port),
                (IPV4, 1) => with(error4(address, port), &[(IPV4_END, &[kind])]),
                (IPV4, 2) => dhcp(MAC, address),
                _ => frame(mac, ethertype, address),
            };
            match (ethertype, next) {
                (ARP, _) => frame[ARP_OPERATION + 1] = operation,
                (IPV4, Some(next)) if form == 3 => frame[IPV4_PROTOCOL] = next,
                (IPV6, Some(next)) if (2..4).contains(&form) => frame[IPV6_NEXT] = next,
                _ => {}
            }
            if let Some((byte, value)) = flaw.and_then(|(at, value)| Some((frame.get_mut(at)?, value))) {
                *byte = value;
            }
            if let Some((tag, tci)) = tag {
                frame = tagged(&frame, tag, tci);
            }
            frame.truncate(cut.unwrap_or(frame.len()));
            frame
        },
    )
}

/// Maps without a socket, with the groups and ports of these tests.
struct TestMaps {
    sockets: Map,
    groups: Set,
    ports: Set<KEY_LEN>,
    fragments: LruMap<FRAGMENT_KEY_LEN>,
    vlans: VlanSet,
    too_long: Map,
}

impl TestMaps {
    fn new() -> Self {
        let groups = Set::new("test_groups", 2).unwrap();
        GROUPS.iter().for_each(|group| groups.insert(&group_key(*group)).unwrap());
        let open = Set::new("test_ports", 32).unwrap();
        ports().iter().for_each(|port| open.insert(&port.key()).unwrap());
        let (sockets, too_long) = (Map::xsk(64).unwrap(), Map::percpu_counters("test_long", 1).unwrap());
        let fragments = LruMap::new("test_frags", 1024).unwrap();
        let vlans = VlanSet::new("test_vlans", 2).unwrap();
        with_vlans(vec![]).vlans().iter().for_each(|vlan| vlans.insert(vlan).unwrap());
        TestMaps { sockets, groups, ports: open, fragments, vlans, too_long }
    }

    fn maps(&self) -> Maps<'_> {
        let TestMaps { sockets, groups, ports, fragments, vlans, too_long } = self;
        Maps { sockets, groups, ports, fragments, vlans, too_long }
    }
}

#[test]
fn the_program_does_what_the_model_says() {
    if !net_allowed() {
        return;
    }
    let nothing = ClaimFilter::new(MAC, DEV, &Claim::default(), &[]);
    let vlans = [with_vlans(vec![OURS.into(), OURS6.into()]), with_vlans(vec![])];
    for filter in [rule(false), rule(true), ipv4_only(), nothing].into_iter().chain(vlans) {
        // No socket is bound here, so what is claimed shows by the fallback action.
        let (maps, fragments) = (TestMaps::new(), RefCell::default());
        let program =
            filter.assemble(maps.maps(), XdpAction::Drop, None).load_xdp("softnet_claim", 0).unwrap();
        let mut runner = TestRunner::new(ProptestConfig { cases: 3000, ..ProptestConfig::default() });
        runner
            .run(&frames(), |frame| {
                let (action, after) = program.test_run(&frame).unwrap();
                let verdict = filter
                    .verdict(&frame, Sockets { groups: &GROUPS, ports: &ports(), fragments: &fragments });
                let want = if verdict == Verdict::Claim { XdpAction::Drop } else { XdpAction::Pass };
                prop_assert_eq!(action, want as u32);
                let mut untagged = frame.clone();
                let is_tagged = TAGS.contains(&[frame[ETHERTYPE], frame[ETHERTYPE + 1]]);
                if verdict == Verdict::Claim
                    && is_tagged
                    && (frame[ETH_LEN] & 0x0f, frame[ETH_LEN + 1]) == (0, 0)
                {
                    untagged.drain(ETHERTYPE..ETHERTYPE + TAG_LEN);
                }
                prop_assert_eq!(after, untagged);
                Ok(())
            })
            .unwrap();
        assert_eq!(maps.too_long.sum(0).unwrap(), 0);
        // What is longer than there is room for is counted, if it is softnet's.
        for (len, address) in [(MAX_LEN, OURS), (MAX_LEN + 1, OURS), (3000, OURS), (3000, KERNEL)] {
            let mut frame = frame(MAC, IPV4, address);
            frame.resize(len, 0);
            let verdict =
                filter.verdict(&frame, Sockets { groups: &GROUPS, ports: &ports(), fragments: &fragments });
            let before = maps.too_long.sum(0).unwrap();
            let (action, _) = program.test_run(&frame).unwrap();
            assert_eq!(action == XdpAction::Pass as u32, verdict == Verdict::Pass);
            assert_eq!(verdict == Verdict::TooLong, verdict != Verdict::Pass && len > MAX_LEN);
            assert_eq!(maps.too_long.sum(0).unwrap() - before, u64::from(verdict == Verdict::TooLong));
        }
        let filter = filter.clone().with_longest(2900);
        let program = filter.load(maps.maps()).unwrap();
        for len in [MAX_LEN + 1, 2900, 2901, 3000] {
            let mut frame = frame(MAC, IPV4, OURS);
            frame.resize(len, 0);
            let verdict =
                filter.verdict(&frame, Sockets { groups: &GROUPS, ports: &ports(), fragments: &fragments });
            let before = maps.too_long.sum(0).unwrap();
            program.test_run(&frame).unwrap();
            assert_eq!(verdict == Verdict::TooLong, verdict != Verdict::Pass && len > 2900);
            assert_eq!(maps.too_long.sum(0).unwrap() - before, u64::from(verdict == Verdict::TooLong));
        }
    }
}

/// The first fragment decides for the others as long as a receiver waits for them, and no longer:
/// an identification comes again.
#[test]
fn a_first_fragment_is_forgotten_in_time() {
    if !net_allowed() {
        return;
    }
    let (filter, maps) = (rule(true), TestMaps::new());
    let program = filter.assemble(maps.maps(), XdpAction::Drop, None).load_xdp("softnet_claim", 0).unwrap();
    let is_ours = |frame: &[u8]| program.test_run(frame).unwrap().0 == XdpAction::Drop as u32;
    let v4 = fragment4(0, 1, false);
    let v6 = fragment6(0, 1, false);
    let mut keys = [[0; FRAGMENT_KEY_LEN]; 2];
    let parts = [&v4[IPV4_SRC..IPV4_END], &v4[IPV4_ID..IPV4_ID + 2]].concat();
    keys[0][..parts.len()].copy_from_slice(&parts);
    keys[1].copy_from_slice(&[&v6[IPV6_SRC..IPV6_END], &v6[IPV6_ID..FRAGMENT_END]].concat());
    let [first4, first6] = [fragment4(HERE, 1, true), fragment6(HERE, 1, true)];
    let second = 1_000_000_000;
    for (first, later, key, lifetime) in [(first4, v4, keys[0], LIFETIME4), (first6, v6, keys[1], LIFETIME6)]
    {
        let came = |ago: u64| {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let now = now.tv_sec as u64 * second + now.tv_nsec as u64;
            maps.fragments.put(&key, now.wrapping_sub(ago)).unwrap();
        };
        assert!(is_ours(&first) && is_ours(&later));
        came(lifetime - 5 * second);
        assert!(is_ours(&later));
        came(lifetime + 1);
        assert!(!is_ours(&later), "of another datagram");
        assert!(is_ours(&first) && is_ours(&later), "it is begun anew");
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
    for shared in [false, true] {
        let claim = Claim { addresses: addresses.clone(), shared, ..Claim::default() };
        let filter = ClaimFilter::new(MAC, DEV, &claim, &addresses);
        let maps = TestMaps::new();
        filter.load(maps.maps()).unwrap();
        // As it would be for a driver that tells of tags.
        let roomy = filter.assemble(maps.maps(), XdpAction::Pass, None).finish_with_room().unwrap();
        assert!(Program::load_xdp(&roomy, "test", 0).unwrap().len().unwrap() <= roomy.len());
    }
}
