//! What comes of messages as zebra sends them, on a connection of loopback.

use std::io::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::*;
use softnet_testkit::fpm::{self, KERNEL, STATIC, To, delete_object, frame, group, route};

use super::super::fib::{KernelHop, RouteKind};
use super::*;

const HOLD: u64 = 60_000_000_000;

/// 198.51.`n`.0/24.
fn prefix(n: u8) -> (IpAddr, u8) {
    ([198, 51, n, 0].into(), 24)
}

fn by_object(n: u8, id: u32) -> Vec<u8> {
    route(prefix(n), STATIC, To::Object(id))
}

fn by_hop(n: u8, gateway: u8) -> Vec<u8> {
    route(prefix(n), STATIC, To::Via([10, 0, 0, gateway].into(), 3))
}

fn delete(n: u8) -> Vec<u8> {
    fpm::delete(prefix(n))
}

fn object(id: u32, gateway: u8) -> Vec<u8> {
    fpm::object(id, [10, 0, 0, gateway].into(), 3)
}

/// Last byte of each gateway of the route to 198.51.`n`.0.
type Ways = Option<Vec<u8>>;

fn ways(route: Option<KernelRoute>) -> Ways {
    let last = |hop: &KernelHop| match hop.gateway {
        Some(IpAddr::V4(gateway)) => gateway.octets()[3],
        _ => 0,
    };
    route.map(|route| route.hops.iter().map(last).collect())
}

/// The changes that come of frames, in the order of their prefixes.
fn changes(routes: &mut Routes, frames: &[Vec<u8>]) -> Vec<(u8, Ways, Ways)> {
    for frame in frames {
        take(routes, &frame[4..]).unwrap();
    }
    routes.check();
    let mut all = Vec::new();
    routes.take_changes(|before, now| {
        let IpAddr::V4(to) = before.as_ref().or(now.as_ref()).unwrap().to.0 else { panic!() };
        all.push((to.octets()[2], ways(before), ways(now)));
    });
    all.sort();
    all
}

#[test]
fn routes_come_change_and_go() {
    let mut routes = Routes::default();
    routes.begin_session();
    let mut tell = |frames: &[Vec<u8>]| changes(&mut routes, frames);
    assert_eq!(
        tell(&[frame(&[by_hop(1, 1), by_hop(2, 1)])]),
        [(1, None, Some(vec![1])), (2, None, Some(vec![1]))]
    );
    // As FRR replaces one: both in a frame.
    assert_eq!(tell(&[frame(&[delete(1), by_hop(1, 2)])]), [(1, Some(vec![1]), Some(vec![2]))]);
    assert_eq!(tell(&[frame(&[delete(1), by_hop(1, 2)])]), []);
    assert_eq!(tell(&[frame(&[by_hop(3, 1)]), frame(&[delete(3)]), frame(&[delete(7)])]), []);
    // The kernel has an address in that network now.
    let connected = route(prefix(2), KERNEL, To::Link(3));
    assert_eq!(tell(&[frame(&[connected])]), [(2, Some(vec![1]), None)]);
    assert_eq!(tell(&[frame(&[delete(1)])]), [(1, Some(vec![2]), None)]);
    let black = route(prefix(1), STATIC, To::Blackhole);
    assert_eq!(tell(&[frame(&[black])]), [(1, None, Some(vec![]))]);
    assert_eq!(routes.all().next().unwrap().kind, RouteKind::Blackhole);
}

#[test]
fn routes_follow_their_objects() {
    let mut routes = Routes::default();
    routes.begin_session();
    let mut tell = |messages: &[Vec<u8>]| changes(&mut routes, &[frame(messages)]);
    // In whichever order.
    assert_eq!(
        tell(&[by_object(1, 9), object(1, 1), object(2, 2), group(9, &[1, 2])]),
        [(1, None, Some(vec![1, 2]))]
    );
    assert_eq!(tell(&[by_object(2, 1)]), [(2, None, Some(vec![1]))]);
    assert_eq!(tell(&[object(2, 3)]), [(1, Some(vec![1, 2]), Some(vec![1, 3]))]);
    assert_eq!(tell(&[object(2, 3), group(9, &[1, 2]), by_object(2, 1)]), []);
    assert_eq!(tell(&[group(9, &[2])]), [(1, Some(vec![1, 3]), Some(vec![3]))]);
    assert_eq!(tell(&[delete_object(1)]), [(2, Some(vec![1]), None)]);
    // An object that is not there yet: the route waits for it.
    assert_eq!(tell(&[by_object(3, 5)]), [(3, None, Some(vec![]))]);
    assert_eq!(tell(&[object(5, 5)]), [(3, Some(vec![]), Some(vec![5]))]);
}

#[test]
fn what_is_not_told_anew_goes() {
    let mut routes = Routes::default();
    routes.begin_session();
    let all = [object(1, 1), by_object(1, 1), by_object(2, 1), by_hop(3, 1)];
    changes(&mut routes, &[frame(&all)]);
    routes.begin_session();
    assert_eq!(routes.len(), (3, 3));
    // The same number, for another next hop: what is stale has nothing to do with it.
    let told = changes(&mut routes, &[frame(&[object(1, 2), object(2, 1), by_object(1, 1)])]);
    assert_eq!(told, [(1, Some(vec![1]), Some(vec![2]))]);
    assert_eq!(
        changes(&mut routes, &[frame(&[by_object(2, 2), delete_object(1)])]),
        [(1, Some(vec![2]), None)]
    );
    assert_eq!((routes.len(), routes.expire()), ((2, 1), 1));
    assert_eq!(changes(&mut routes, &[]), [(3, Some(vec![1]), None)]);
    assert_eq!(routes.len(), (1, 0));
}

/// What comes of it within a second.
fn next(monitor: &mut FpmMonitor, now: u64, n: usize) -> Vec<FpmEvent> {
    let mut all = Vec::new();
    for _ in 0..1000 {
        monitor.next(now, |event| all.push(event));
        if all.len() >= n {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(all.len(), n, "{all:?}");
    all
}

#[test]
fn connections_come_and_go_and_routes_stay_for_a_while() {
    let mut monitor = FpmMonitor::listen(([127, 0, 0, 1], 0).into(), Duration::from_nanos(HOLD)).unwrap();
    let address = monitor.listener.local_addr().unwrap();
    let connect = || TcpStream::connect(address).unwrap();
    let mut first = connect();
    assert!(matches!(next(&mut monitor, 0, 1)[..], [FpmEvent::Connected(_)]));
    let bytes = [frame(&[by_hop(1, 1), by_hop(2, 1)]), frame(&[by_hop(3, 1)])].concat();
    first.write_all(&bytes[..bytes.len() - 5]).unwrap();
    assert_eq!(next(&mut monitor, 0, 2).len(), 2);
    first.write_all(&bytes[bytes.len() - 5..]).unwrap();
    assert_eq!(next(&mut monitor, 0, 1).len(), 1);
    drop(first);
    assert_eq!(next(&mut monitor, 1, 1), [FpmEvent::Ended]);
    let state = FpmState { connections: 1, messages: 3, routes: 3, ..FpmState::default() };
    assert_eq!((monitor.state(), monitor.due()), (state, None));

    // The next one says nothing, and another takes its place.
    let silent = connect();
    assert!(matches!(next(&mut monitor, 2 * HOLD, 1)[..], [FpmEvent::Connected(_)]));
    let mut second = connect();
    assert!(matches!(next(&mut monitor, 2 * HOLD, 1)[..], [FpmEvent::Connected(_)]));
    drop(silent);
    second.write_all(&frame(&[by_hop(2, 1)])).unwrap();
    while monitor.due().is_none() {
        monitor.next(2 * HOLD, |event| panic!("{event:?}"));
    }
    assert_eq!((monitor.due(), monitor.state().stale), (Some(3 * HOLD), 2));
    let gone = next(&mut monitor, 3 * HOLD, 3);
    assert_eq!(gone[0], FpmEvent::Expired(2));
    assert_eq!((monitor.due(), monitor.state().routes), (None, 1));

    // What is no FPM ends its connection, whatever came before.
    second.write_all(&[&frame(&[by_hop(4, 1)])[..], b"GET / HTTP/1.1\r\n"].concat()).unwrap();
    let all = next(&mut monitor, 4 * HOLD, 2);
    assert_eq!(all[0], FpmEvent::Malformed(Malformed::Version(b'G')));
    let state = monitor.state();
    assert_eq!((state.connected, state.malformed, state.routes), (false, 1, 2));
}

proptest! {
    /// However the stream is cut, the same comes of it; garbage is no trouble.
    #[test]
    fn any_stream_is_taken(
        parts in prop::collection::vec(0u8..10, 0..40),
        piece in any::<u8>(),
        session in any::<u8>(),
        garbage in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let of = |part: &u8| match part {
            0 => by_hop(1, 1),
            1 => by_object(1, 9),
            2 => object(1, 1),
            3 => object(1, 2),
            4 => group(9, &[1, 2]),
            5 => delete_object(1),
            6 => delete_object(9),
            7 => delete(1),
            8 => by_object(2, 1),
            _ => object(2, 3),
        };
        let mut data = vec![piece, session];
        data.extend(parts.iter().flat_map(|part| frame(&[of(part)])));
        data.extend(garbage);
        super::fuzz(&data);
    }
}

/// Has the corpus of the fuzz target hold one stream with all of these: `SOFTNET_CORPUS=1`.
#[test]
fn the_corpus_has_all_messages() {
    let all = [
        frame(&[object(1, 1), object(2, 2), group(9, &[1, 2]), by_object(1, 9), by_hop(2, 1)]),
        frame(&[delete(2), by_object(2, 1)]),
        frame(&[object(2, 3), delete_object(9)]),
    ];
    let stream = [&[40, 5][..], &all.concat()].concat();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/fpm/routes");
    if std::env::var_os("SOFTNET_CORPUS").is_some() {
        std::fs::write(file, &stream).unwrap();
    }
    assert_eq!(std::fs::read(file).unwrap(), stream);
}
