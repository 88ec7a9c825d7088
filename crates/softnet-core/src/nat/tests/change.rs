//! Connections outlive a change of configuration, as far as it has their rules still.

use super::*;
use crate::conntrack::Conntrack;
use crate::filter::{Action, Filter, FlowState, Rule, Rules};
use crate::fold::FoldKey;
use crate::nat::mapping::Pool;
use crate::sock::key::addr_of;
use crate::sock::udp::output::UdpHead;

fn pool(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(203, 0, 113, n)
}

/// Routes, devices and neighbours change: what is open goes on, by the same port.
#[test]
fn connections_outlive_other_tables() {
    let mut router = Router::new(&masquerade());
    let outside = router.out(udp(0, (CLIENT, 5001), (SERVER, 53))).src;
    router.world.vanish(1);
    router.world.appear(1);
    // The server is asked for anew.
    router.world.one(0, udp(0, (CLIENT, 5001), (SERVER, 53)));
    router.world.one(1, Ipv4Addr::answer(1, SERVER, crate::ip::slow::world::SERVER_MAC));
    assert_eq!(router.out(udp(0, (CLIENT, 5001), (SERVER, 53))).src, outside);
    assert_eq!(router.back(udp(1, (SERVER, 53), outside)).dst, (CLIENT, 5001));
    // Rules that say the same.
    router.configure(&NatRules { connlimit: Some(10), ..masquerade() });
    assert_eq!(router.back(udp(1, (SERVER, 53), outside)).dst, (CLIENT, 5001));
    assert_eq!(router.state.conntrack().counts().ended, 0);
}

/// An address that is no more an external one ends its connections, which begin anew by another; a
/// forwarded port those that came by it.
#[test]
fn connections_end_with_their_rules() {
    let source = |addresses: &[Ipv4Addr]| SourceNat::new(1, addresses.to_vec());
    let forward = |port| PortForward {
        protocol: protocol::UDP,
        external: std::net::SocketAddrV4::new(OUTSIDE, port),
        internal: std::net::SocketAddrV4::new(CLIENT, 80),
    };
    let mut rules = NatRules {
        source: vec![source(&[pool(1), OUTSIDE])],
        forward: vec![forward(8080), forward(8081)],
        ..NatRules::default()
    };
    let mut router = Router::new(&rules);
    let hosts: Vec<_> = (10..40).map(|n| Ipv4Addr::host(0, n)).collect();
    let first: Vec<_> = hosts.iter().map(|own| router.out(udp(0, (*own, 5001), (SERVER, 53))).src).collect();
    let of = |addr: Ipv4Addr| first.iter().filter(|external| external.0 == addr).count();
    assert!(of(pool(1)) > 0 && of(OUTSIDE) > 0, "{first:?}");
    for port in [8080, 8081] {
        assert_eq!(router.back(udp(1, (SERVER, port - 2000), (OUTSIDE, port))).dst, (CLIENT, 80));
    }
    let before = router.connections() as u64;
    rules.source = vec![source(&[OUTSIDE])];
    rules.forward.remove(1);
    router.configure(&rules);
    let counts = router.state.conntrack().counts();
    assert_eq!(counts.ended, of(pool(1)) as u64 + 1);
    assert_eq!(router.connections() as u64, before - counts.ended);
    for (own, before) in hosts.iter().zip(&first) {
        let again = router.out(udp(0, (*own, 5001), (SERVER, 53))).src;
        assert_eq!(again.0, OUTSIDE);
        assert!(before.0 != OUTSIDE || again == *before);
    }
    assert_eq!(router.back(udp(1, (SERVER, 6080), (OUTSIDE, 8080))).dst, (CLIENT, 80));
    assert!(router.world.one(1, udp(1, (SERVER, 6081), (OUTSIDE, 8081))).iter().all(|(dev, _)| *dev == 1));
    // What they held is given back in time.
    router.world.now += 1000 * SECOND;
    (0..100).for_each(|_| _ = router.state.sweep(seconds(router.world.now), 64));
    assert_eq!((router.connections(), router.state.mapping_counts().mappings), (0, 0));
    assert_eq!(router.state.ports_in_use(pool(1), protocol::UDP), Some(0));
}

/// A connection that hid nothing ends when its route leads by a device that hides sources: another one
/// begins, which does.
#[test]
fn a_source_is_hidden_once_its_route_leads_outside() {
    for number in PROTOCOLS {
        // What comes from a device that hides sources has its connection known, whatever way it goes.
        let inside = SourceNat::new(0, vec![INSIDE]);
        let mut router = Router::new(&NatRules { source: vec![inside], ..NatRules::default() });
        let (client, server) = ((CLIENT, 5001), service(number, SERVER));
        let ask = || frame(0, number, client, server, 0, b"some");
        assert_eq!((router.out(ask()).src, router.connections()), (client, 1));
        router.configure(&masquerade());
        assert_eq!(router.connections(), 1);
        let out = router.out(ask());
        assert_eq!((out.src.0, router.connections()), (OUTSIDE, 1));
        assert_eq!(router.state.conntrack().counts().ended, 1);
        let back = router.back(frame(1, number, server, out.src, ACK, b"back"));
        assert_eq!(back.dst, client);
        assert_eq!(router.out(ask()).src, out.src);
    }
}

/// A change of NAT's rules is NAT's alone: what others put in the slots stays there, and so do
/// connections of IPv6.
#[test]
fn a_change_of_rules_is_of_nothing_else() {
    let conntrack = Conntrack::new(64, FoldKey::new([5, 6]), &Timeouts::default(), &crate::memory::Heap);
    let conntrack = Arc::new(conntrack.with_ipv6());
    let state = Arc::new(NatState::on(conntrack.clone(), [1, 2, 3, 4], &crate::memory::Heap));
    let mut router = Router { world: World::acquainted(), state };
    router.world.tracked = true;
    // Its hashes look like an address that stands for a host of IPv6.
    let stand_in = u64::from(nat64::hosts::network().addr().to_bits() + 7) << 32;
    let tuple = Tuple::folded(protocol::UDP, 5 << 16 | 6, stand_in, stand_in);
    conntrack.insert(0, &New::plain(tuple, State::Udp)).unwrap();
    router.configure(&masquerade());
    assert_eq!(router.connections(), 1);
    router.out(udp(0, (CLIENT, 5001), (SERVER, 53)));
    let rules = Rules { policies: [Action::Allow, Action::Drop, Action::Allow], ..Rules::default() };
    Filter::new(&rules, None).unwrap().stand(&rules, &mut router.world.tables.hooks);
    router.dropped(0, udp(0, (CLIENT, 5001), (SERVER, 53)), DropReason::NetfilterDrop);
    for _ in 0..2 {
        router.configure(&masquerade());
        router.dropped(0, udp(0, (CLIENT, 5001), (SERVER, 53)), DropReason::NetfilterDrop);
    }
    Nat::uninstall(&mut router.world.tables);
    router.dropped(0, udp(0, (CLIENT, 5001), (SERVER, 53)), DropReason::NetfilterDrop);
    // The other way round.
    router.configure(&masquerade());
    let rules = Rules { policies: [Action::Drop, Action::Allow, Action::Allow], ..Rules::default() };
    for _ in 0..2 {
        Filter::new(&rules, None).unwrap().stand(&rules, &mut router.world.tables.hooks);
        assert_eq!(router.out(udp(0, (CLIENT, 5001), (SERVER, 53))).src.0, OUTSIDE);
    }
    assert_eq!((router.connections(), conntrack.counts().ended), (2, 0));
}

/// A forwarded port is no mapping's, however often the rules change, until it is forwarded no more.
#[test]
fn a_forwarded_port_stays_reserved() {
    let external = std::net::SocketAddrV4::new(OUTSIDE, 5001);
    let internal = std::net::SocketAddrV4::new(FAR, 80);
    let forward = PortForward { protocol: protocol::UDP, external, internal };
    let rules = NatRules { forward: vec![forward], ..masquerade() };
    let mut router = Router::new(&rules);
    let in_use = |router: &Router| router.state.ports_in_use(OUTSIDE, protocol::UDP);
    assert_eq!(in_use(&router), Some(1));
    for _ in 0..2 {
        router.configure(&rules);
        assert_eq!(in_use(&router), Some(1));
    }
    router.configure(&masquerade());
    assert_eq!(in_use(&router), Some(0));
}

/// External addresses may change as often as they like: what earlier rules had is free once their
/// connections have ended.
#[test]
fn external_addresses_are_given_back() {
    let mut router = Router::new(&masquerade());
    let addresses =
        |turn: u8| (0..crate::nat::MAX_ADDRESSES).map(move |n| Ipv4Addr::new(198, 18, turn, n as u8));
    let first = router.out(udp(0, (CLIENT, 5001), (SERVER, 53))).src;
    assert_eq!(first.0, OUTSIDE);
    for turn in 0..8 {
        let source = vec![SourceNat::new(1, addresses(turn).collect())];
        router.configure(&NatRules { source, ..NatRules::default() });
        let external = router.out(udp(0, (CLIENT, 5001), (SERVER, 53))).src;
        assert!(addresses(turn).any(|own| own == external.0), "{external:?}");
        assert_eq!(router.back(udp(1, (SERVER, 53), external)).dst, (CLIENT, 5001));
        // What was before ends, and is swept.
        router.world.now += 300 * SECOND;
        router.out(udp(0, (CLIENT, 5001), (SERVER, 53)));
        (0..200).for_each(|_| _ = router.state.sweep(seconds(router.world.now), 64));
        assert_eq!(router.state.mapping_counts().mappings, 1);
    }
    // Rules that are refused leave nothing behind.
    let many = (8..11).flat_map(addresses).collect();
    let refused = NatRules { source: vec![SourceNat::new(1, many)], ..NatRules::default() };
    for _ in 0..2 {
        assert!(Nat::new(router.state.clone(), &refused).is_err());
    }
    router.configure(&masquerade());
    assert_eq!(router.out(udp(0, (CLIENT, 5001), (SERVER, 53))).src.0, OUTSIDE);
}

/// Blocks of ports that come, or change, end what is open by ports of others' blocks: from then on a
/// port tells its host.
#[test]
fn ports_of_others_blocks_are_given_up() {
    let source = |blocks: &str| SourceNat {
        deterministic: Blocks::new(blocks.parse().unwrap(), 1),
        ..SourceNat::new(1, vec![pool(1)])
    };
    let mut router =
        Router::new(&NatRules { source: vec![SourceNat::new(1, vec![pool(1)])], ..masquerade() });
    let open = |n: u16| udp(0, (CLIENT, 5001), (SERVER, 53 + n));
    let any = router.out(open(0)).src;
    for prefix in ["10.0.0.0/24", "10.0.0.0/25"] {
        let rules = source(prefix);
        let blocks = rules.deterministic.unwrap();
        let before = router.connections();
        router.configure(&NatRules { source: vec![rules], ..masquerade() });
        assert_eq!((before > 0, router.connections()), (true, 0), "{prefix}");
        for n in 0..2 {
            let (addr, port) = router.out(open(n)).src;
            assert_eq!((addr, blocks.host_of(0, port)), (pool(1), Some(CLIENT)));
            assert_ne!((addr, port), any);
        }
    }
}

/// A mapping that goes on outside of its host's block is not what the next connection takes.
#[test]
fn a_mapping_outside_of_the_block_is_not_shared() {
    let plain = Pool { numbers: Box::new([0]), blocks: None };
    let blocks = Blocks::new("10.0.0.0/24".parse().unwrap(), 1).unwrap();
    let host = CLIENT.to_bits();
    let (_, ports) = blocks.of_host(CLIENT).unwrap();
    let some = Pool { numbers: Box::new([7]), blocks: Some(blocks) };
    assert!(plain.allows(0, host, 5) && !plain.allows(1, host, 5));
    assert!(some.allows(7, host, *ports.start()) && some.allows(7, host, *ports.end()));
    assert!(!some.allows(7, host, ports.end() + 1) && !some.allows(7, host, ports.start() - 1));
    assert!(!some.allows(0, host, *ports.start()) && !some.allows(7, SERVER.to_bits(), *ports.start()));
}

/// What softnet itself sends has no block, and stays of its connection, packet after packet.
#[test]
fn own_packets_beside_blocks_keep_their_connection() {
    let state = Arc::new(NatState::new(64, [1, 2, 3, 4], &Timeouts::default(), &crate::memory::Heap));
    let mut router = Router { world: World::acquainted(), state: state.clone() };
    router.world.tracked = true;
    let source = SourceNat {
        deterministic: Blocks::new("10.0.0.0/24".parse().unwrap(), 1),
        ..SourceNat::new(1, vec![pool(1)])
    };
    router.configure(&NatRules { source: vec![source], ..masquerade() });
    let open = Rule { state: vec![FlowState::Established], action: Action::Allow, ..Rule::default() };
    let rules = Rules { rules: vec![open], policies: [Action::Allow; 3], ..Rules::default() };
    let tracked = Some((state.conntrack().clone(), Some(state.clone())));
    Filter::new(&rules, tracked).unwrap().stand(&rules, &mut router.world.tables.hooks);
    let [src, dst] = [OUTSIDE, SERVER].map(|addr| addr_of(addr.into()));
    let head = UdpHead { src, dst, sport: 68, dport: 67, ttl: 64, tos: 0 };
    for _ in 0..4 {
        let own = router.world.send(&head, b"any server there?");
        assert_eq!(said(&own[0].1).src, (OUTSIDE, 68));
    }
    let counts = state.conntrack().counts();
    assert_eq!((counts.created, counts.ended), (1, 0));
}
