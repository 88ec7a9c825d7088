//! The table against a list of all routes, and how changes get to the forwarding tables.

use proptest::prelude::*;
use softnet_core::fold::FoldKey;
use softnet_core::ip::adjacency::Kind;
use softnet_core::ip::tables::Tables;

use super::*;

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn via(dev: u16, last: u8) -> Path {
    Path::Hop(Hop::via(dev, IpAddr::from([10, 0, dev as u8, last])))
}

fn route(to: &str, path: Path, metric: u32) -> Route<Prefix> {
    Route { prefix: prefix(to), path, metric, source: Source::kernel(0), protocol: 3 }
}

/// A table whose FIB was built, and what is published of it.
struct World {
    rib: RibOf<Ipv4Addr>,
    tables: Tables,
}

impl World {
    fn new() -> Self {
        let (mut rib, mut tables) = (RibOf::default(), Tables::new(FoldKey::new([1, 2])));
        (0..4).for_each(|dev| rib.set_open(dev, true));
        rib.build(Arc::make_mut(&mut tables.v4)).unwrap();
        World { rib, tables }
    }

    fn publish(&mut self) -> Gateways {
        let routing = Arc::make_mut(&mut self.tables.v4);
        if let Some(fib) = self.rib.next_fib().unwrap() {
            routing.fib = fib;
        }
        let gateways = self.rib.publish(routing, &[]);
        assert!(!self.rib.is_changed());
        gateways
    }

    /// Device and last byte of the gateway that packets to `addr` go by, for each of some flows.
    fn ways(&self, addr: &str) -> Vec<(u16, u8)> {
        let addr = addr.parse().unwrap();
        let flows = (0..64u32).map(|i| i << 26);
        let hops = flows.map(|hash| self.tables.v4.route_flow(addr, || hash));
        let mut ways: Vec<_> = hops
            .filter(|hop| hop.kind == Kind::Resolve)
            .map(|hop| (hop.dev, hop.gateway.octets()[3]))
            .collect();
        ways.sort_unstable();
        ways.dedup();
        ways
    }
}

#[test]
fn the_lowest_metric_is_used_and_the_next_one_takes_over() {
    let mut world = World::new();
    for (metric, dev) in [(20, 2), (10, 1), (30, 3)] {
        world.rib.insert(&route("10.9.0.0/16", via(dev, 2), metric), Place::First);
    }
    world.publish();
    assert_eq!(world.ways("10.9.0.1"), [(1, 2)]);
    world.rib.set_open(1, false);
    world.publish();
    assert_eq!(world.ways("10.9.0.1"), [(2, 2)]);
    assert!(world.rib.remove(prefix("10.9.0.0/16"), |metric, _, _| metric == 20));
    world.publish();
    assert_eq!(world.ways("10.9.0.1"), [(3, 2)]);
    world.rib.set_open(1, true);
    world.publish();
    assert_eq!(world.ways("10.9.0.1"), [(1, 2)]);
    let used: Vec<_> = world.rib.rows(None, 10).into_iter().map(|(row, used)| (row.metric, used)).collect();
    assert_eq!(used, [(10, true), (30, false)]);
}

#[test]
fn an_own_address_goes_before_any_metric() {
    let mut world = World::new();
    world.rib.insert(&route("10.9.0.1/32", via(1, 2), 0), Place::First);
    let own = Route {
        source: Source::OWN,
        path: Path::Hop(Hop::special(Kind::Local)),
        ..route("10.9.0.1/32", via(1, 2), 7)
    };
    world.rib.insert(&own, Place::Last);
    world.publish();
    assert_eq!(world.tables.v4.route("10.9.0.1".parse().unwrap()).kind, Kind::Local);
}

/// As the kernel's list of routes with one metric is.
#[test]
fn routes_of_one_metric_have_an_order() {
    let mut world = World::new();
    let order = |world: &World| -> Vec<Path> {
        world.rib.rows(None, 10).into_iter().map(|(row, _)| row.path).collect()
    };
    let to = "10.9.0.0/16";
    world.rib.insert(&route(to, via(1, 2), 5), Place::First);
    world.rib.insert(&route(to, via(1, 3), 5), Place::Last);
    world.rib.insert(&route(to, via(1, 4), 5), Place::First);
    assert_eq!(order(&world), [via(1, 4), via(1, 2), via(1, 3)]);
    // Told again, in whichever way: it is the same route.
    world.rib.insert(&route(to, via(1, 3), 5), Place::First);
    assert_eq!(order(&world), [via(1, 4), via(1, 2), via(1, 3)]);
    world.rib.insert(&route(to, via(1, 5), 5), Place::Replace);
    assert_eq!(order(&world), [via(1, 5), via(1, 2), via(1, 3)]);
    assert_eq!(world.rib.routes, 3);
}

/// What an overrun hid is mended by the list: also that a route was put before another one.
#[test]
fn a_list_restores_the_order() {
    let mut world = World::new();
    let order = |world: &World| -> Vec<Path> {
        world.rib.rows(None, 10).into_iter().map(|(row, _)| row.path).collect()
    };
    let to = "10.9.0.0/16";
    for last in [2, 3, 4] {
        world.rib.insert(&route(to, via(1, last), 5), Place::Last);
    }
    world.rib.insert(&route(to, via(1, 9), 7), Place::Last);
    world.publish();
    world.rib.begin_dump();
    for (last, metric) in [(4, 5), (5, 5), (2, 5), (9, 7)] {
        world.rib.insert(&route(to, via(1, last), metric), Place::Listed { siblings: false });
        assert_ne!(world.rib.first_usable(&world.rib.table[&prefix(to)]), 0, "it is never missing");
    }
    world.rib.sweep();
    world.publish();
    assert_eq!(order(&world), [via(1, 4), via(1, 5), via(1, 2), via(1, 9)]);
    assert_eq!((world.rib.routes, world.ways("10.9.0.1")), (4, vec![(1, 4)]));
}

/// IPv6 joins next hops of one metric that have a gateway, and leaves others of that metric alone.
#[test]
fn siblings_replace_siblings_only() {
    let mut world = World::new();
    let order = |world: &World| -> Vec<Path> {
        world.rib.rows(None, 10).into_iter().map(|(row, _)| row.path).collect()
    };
    let to = "10.9.0.0/16";
    let group = Path::Group([2, 3].map(|last| (Hop::via(1, IpAddr::from([10, 0, 1, last])), 1)).into());
    let siblings = Place::Siblings { replace: false };
    world.rib.insert(&route(to, via(2, 9), 5), Place::Last);
    world.rib.insert(&route(to, via(1, 2), 5), siblings);
    assert_eq!(order(&world), [via(2, 9), via(1, 2)]);
    world.rib.insert(&route(to, group.clone(), 5), siblings);
    world.rib.insert(&route(to, via(3, 9), 5), Place::Last);
    assert_eq!(order(&world), [via(2, 9), group.clone(), via(3, 9)]);
    // `ip route replace`: of one kind, whichever is first.
    world.rib.insert(&route(to, via(1, 7), 5), Place::Siblings { replace: true });
    world.rib.insert(&route(to, via(2, 8), 5), Place::Replace);
    assert_eq!(order(&world), [via(2, 8), via(1, 7), via(3, 9)]);
    assert!(world.rib.remove(prefix(to), |_, _, path| *path == via(1, 7)));
    world.rib.insert(&route(to, group.clone(), 5), Place::Siblings { replace: true });
    assert_eq!(order(&world), [group, via(3, 9)]);
    assert_eq!(world.rib.routes, 2);
}

#[test]
fn flows_are_spread_and_a_member_that_goes_takes_none_with_it() {
    let mut world = World::new();
    let group = |devs: &[u16]| {
        Path::Group(devs.iter().map(|dev| (Hop::via(*dev, IpAddr::from([10, 0, 0, 2])), 1)).collect())
    };
    world.rib.insert(&route("10.9.0.0/16", group(&[1, 2, 3]), 0), Place::First);
    world.publish();
    assert_eq!(world.ways("10.9.0.1"), [(1, 2), (2, 2), (3, 2)]);
    let by_flow = |world: &World| -> Vec<u16> {
        let addr = "10.9.0.1".parse().unwrap();
        (0..256u32).map(|i| world.tables.v4.route_flow(addr, || i << 24).dev).collect()
    };
    let before = by_flow(&world);
    world.rib.set_open(2, false);
    world.publish();
    let after = by_flow(&world);
    assert!(before.iter().zip(&after).all(|(a, b)| if *a == 2 { *b != 2 } else { a == b }));
    // The same by a route that was replaced.
    world.rib.set_open(2, true);
    world.publish();
    let before = by_flow(&world);
    world.rib.insert(&route("10.9.0.0/16", group(&[1, 3]), 0), Place::Replace);
    world.publish();
    assert!(before.iter().zip(by_flow(&world)).all(|(a, b)| if *a == 2 { b != 2 } else { *a == b }));
    assert_eq!(world.tables.v4.groups.iter().filter(|group| !group.is_empty()).count(), 1);
}

#[test]
fn gateways_come_and_go_with_their_routes() {
    let mut world = World::new();
    let key = |last: u8| (1u16, IpAddr::from([10, 0, 1, last]));
    world.rib.insert(&route("10.1.0.0/16", via(1, 2), 0), Place::First);
    world.rib.insert(&route("10.2.0.0/16", via(1, 2), 0), Place::First);
    world.rib.insert(&route("10.3.0.0/16", via(1, 3), 0), Place::First);
    let both = Path::Group([2, 4].map(|last| (Hop::via(1, key(last).1), 1)).into());
    world.rib.insert(&route("10.4.0.0/16", both, 0), Place::First);
    let first = world.publish();
    assert_eq!((first.come, first.gone), (vec![key(2), key(3), key(4)], vec![]));
    for to in ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"] {
        world.rib.remove(prefix(to), |_, _, _| true);
    }
    // One comes again before anything is published.
    world.rib.remove(prefix("10.4.0.0/16"), |_, _, _| true);
    world.rib.insert(&route("10.5.0.0/16", via(1, 4), 0), Place::First);
    let second = world.publish();
    let mut gone = second.gone;
    gone.sort_unstable();
    gone.dedup();
    assert_eq!((second.come, gone), (vec![key(4)], vec![key(2), key(3)]));
}

/// No route that the list has is touched, and no other one stays.
#[test]
fn a_list_is_compared() {
    let mut world = World::new();
    for (i, to) in ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"].into_iter().enumerate() {
        world.rib.insert(&route(to, via(1, i as u8), 0), Place::First);
    }
    world.rib.insert(&Route { source: Source::STATIC, ..route("10.4.0.0/16", via(1, 9), 0) }, Place::First);
    world.publish();
    world.rib.begin_dump();
    let listed = Place::Listed { siblings: false };
    world.rib.insert(&route("10.1.0.0/16", via(1, 0), 0), listed);
    world.rib.insert(&route("10.3.0.0/16", via(2, 7), 0), listed);
    let changed: Vec<_> = world.rib.changes.iter().map(|change| change.prefix).collect();
    assert_eq!(changed, [prefix("10.3.0.0/16")], "nothing is missing while the list is read");
    world.publish();
    assert_eq!([world.ways("10.2.0.1"), world.ways("10.3.0.1")], [vec![(1, 1)], vec![(2, 7)]]);
    world.rib.sweep();
    world.publish();
    let all = ["10.1.0.1", "10.2.0.1", "10.3.0.1", "10.4.0.1"].map(|addr| world.ways(addr));
    assert_eq!(all, [vec![(1, 0)], vec![], vec![(2, 7)], vec![(1, 9)]]);
}

#[test]
fn a_lookup_finds_the_longest_prefix() {
    let mut world = World::new();
    for to in ["0.0.0.0/0", "10.0.0.0/8", "10.9.0.0/16", "10.8.0.0/16", "10.9.9.9/32"] {
        world.rib.insert(&route(to, via(1, 2), 0), Place::First);
    }
    let found = |addr: &str| world.rib.lookup(addr.parse().unwrap())[0].0.prefix.to_string();
    let all = ["10.9.9.9", "10.9.9.8", "10.10.0.1", "11.0.0.1", "10.255.255.255"].map(found);
    assert_eq!(all, ["10.9.9.9/32", "10.9.0.0/16", "10.0.0.0/8", "0.0.0.0/0", "10.0.0.0/8"]);
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Prefix, u8, u32, Place),
    Remove(Prefix, u32),
    Open(u16, bool),
    Publish,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let addr = prop::collection::vec(prop::sample::select(vec![0u8, 10, 128]), 4)
        .prop_map(|b| Ipv4Addr::new(b[0], b[1], b[2], b[3]));
    let prefix = (addr, 0u8..=32).prop_map(|(addr, len)| Prefix::containing(addr, len).unwrap());
    let place = prop::sample::select(vec![Place::Replace, Place::First, Place::Last]);
    let step = prop_oneof![
        6 => (prefix.clone(), 0u8..8, 0u32..3, place).prop_map(|(p, way, metric, place)| Step::Insert(p, way, metric, place)),
        3 => (prefix, 0u32..3).prop_map(|(p, metric)| Step::Remove(p, metric)),
        1 => (0u16..4, any::<bool>()).prop_map(|(dev, open)| Step::Open(dev, open)),
        2 => Just(Step::Publish),
    ];
    prop::collection::vec(step, 0..80)
}

/// A path for each number: single ones and groups.
fn path(way: u8) -> Path {
    let hop = |dev: u8| Hop::via(dev.into(), IpAddr::from([10, 0, dev, way]));
    match way {
        0..4 => Path::Hop(hop(way)),
        _ => Path::Group(vec![(hop(way % 4), 1), (hop((way + 1) % 4), 2)]),
    }
}

proptest! {
    /// Whatever was changed, in whichever batches: packets go as the routes say that are left.
    #[test]
    fn what_is_published_is_what_there_is(steps in steps()) {
        let mut world = World::new();
        let mut touched = Vec::new();
        for step in steps {
            match step {
                Step::Insert(prefix, way, metric, place) => {
                    let path = path(way);
                    let route = Route { prefix, path, metric, source: Source::kernel(0), protocol: 3 };
                    world.rib.insert(&route, place);
                    touched.push(prefix);
                }
                Step::Remove(prefix, metric) => {
                    world.rib.remove(prefix, |of, _, _| of == metric);
                    touched.push(prefix);
                }
                Step::Open(dev, open) => world.rib.set_open(dev, open),
                Step::Publish => _ = world.publish(),
            }
        }
        world.publish();
        let all = world.rib.rows(None, usize::MAX);
        prop_assert_eq!(all.len(), world.rib.routes);
        for addr in touched.iter().flat_map(|prefix| [prefix.addr(), prefix.last()]) {
            let rows = world.rib.lookup(addr);
            let longest = all.iter().filter(|(row, _)| row.prefix.contains(addr)).map(|(row, _)| row.prefix.len()).max();
            prop_assert_eq!(rows.first().map(|(row, _)| row.prefix.len()), longest);
            let used: Vec<_> = rows.iter().filter(|(_, used)| *used).collect();
            let hop = world.tables.v4.route_flow(addr, || 0);
            match used[..] {
                [] => prop_assert_eq!(hop.kind, Kind::NoRoute),
                [(route, _)] => {
                    let ways: Vec<_> = match &route.path {
                        Path::Hop(hop) => vec![*hop],
                        Path::Group(members) => members.iter().map(|(hop, _)| *hop).collect(),
                    };
                    prop_assert!(ways.contains(&Hop::via(hop.dev, hop.gateway.into())), "{:?} {:?}", hop, ways);
                }
                _ => prop_assert!(false, "two are used"),
            }
        }
    }
}

/// A table is packed once most of it is new, and stays what it is.
#[test]
fn a_table_that_grew_is_packed() {
    let mut rib = RibOf::<Ipv4Addr>::default();
    let via = |n: u32| Path::Hop(Hop::via(0, IpAddr::V4(Ipv4Addr::new(10, 0, 0, n as u8))));
    let route = |n: u32| Route {
        prefix: Prefix::host(Ipv4Addr::from(0x0a01_0000 + n)),
        path: via(n % 3 + 1),
        metric: 0,
        source: Source::kernel(0),
        protocol: 0,
    };
    let most = LOOSE as u32;
    (0..most).for_each(|n| rib.insert(&route(n), Place::Last));
    assert!(!rib.is_loose());
    rib.insert(&route(most), Place::Last);
    assert!(rib.is_loose());
    let before = rib.rows(None, usize::MAX);
    rib.tidy();
    assert!(!rib.is_loose() && rib.rows(None, usize::MAX) == before);
    // What is replaced is no other prefix; what goes counts as what comes.
    (0..most).for_each(|n| rib.insert(&route(n), Place::Replace));
    assert!(!rib.is_loose());
    for n in 0..most {
        assert!(rib.remove(route(n).prefix, |_, _, _| true));
    }
    rib.insert(&route(0), Place::Last);
    assert!(rib.is_loose());
    rib.tidy();
    assert_eq!(rib.rows(None, usize::MAX).len(), 2);
}
