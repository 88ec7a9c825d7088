//! Order within a flow: through several workers and queues, through a neighbour's queue, and while routes change.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use softnet_core::ip::Prefix;
use softnet_core::ip::v4::fib::Fib;

use super::frames::{arp_answer, host, number_of, numbered};
use super::world::{Lane, Setup, of_port, on_all, until};

/// Packets that may be on the way, so that no ring runs over.
const WINDOW: u64 = 256;

#[test]
fn flows_keep_their_order() {
    const QUEUES: u32 = 4;
    const FLOWS: u32 = 32;
    const EACH: u32 = 1000;
    let (world, mut sources) =
        Setup { ports: &[QUEUES as usize, 2], workers: 2, known: true, ..Setup::default() }.start();
    let sinks = of_port(&mut sources, 1);
    let (sent, arrived) = (AtomicU64::new(0), AtomicU64::new(0));
    let total = u64::from(FLOWS * EACH);
    let lanes = std::thread::scope(|scope| {
        // A flow has one queue, as a NIC would see to.
        let sources = scope.spawn(|| {
            on_all(sources, |lane| {
                for number in 0..EACH {
                    let flows = (0..FLOWS).filter(|flow| *flow as usize % QUEUES as usize == lane.queue);
                    let frames: Vec<_> = flows.map(|flow| numbered(0, host(1), flow, number)).collect();
                    let n = frames.len() as u64;
                    until("room", || {
                        sent.load(Ordering::Relaxed) <= arrived.load(Ordering::Acquire) + WINDOW / 2
                    });
                    sent.fetch_add(n, Ordering::Relaxed);
                    assert_eq!(lane.send(&frames) as u64, n);
                }
            })
        });
        let sinks = on_all(sinks, |lane| {
            let mut next = [0; FLOWS as usize];
            until("all packets", || {
                let n = lane.receive(|frame| {
                    let (flow, number) = number_of(frame).expect("nothing else is sent");
                    assert_eq!(number, next[flow as usize], "flow {flow}");
                    next[flow as usize] += 1;
                });
                arrived.fetch_add(n as u64, Ordering::Release);
                arrived.load(Ordering::Relaxed) == total
            });
        });
        [sources.join().unwrap(), sinks].into_iter().flatten().collect()
    });
    assert_eq!(world.view.stats().dropped, 0);
    world.end(lanes);
}

#[test]
fn packets_that_waited_for_their_neighbour_leave_first() {
    // Together no more than may wait for one neighbour.
    const WAITING: u32 = 40;
    const MORE: u32 = 60;
    let (world, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: false, ..Setup::default() }.start();
    let mut sink = lanes.remove(1);
    let mut source = lanes.remove(0);
    for i in 0..40 {
        let neighbour = Ipv4Addr::new(10, 1, 0, 10 + i);
        let packets = |range: std::ops::Range<u32>| -> Vec<_> {
            range.map(|number| numbered(0, neighbour, i.into(), number)).collect()
        };
        let mut answer = None;
        source.send(&packets(0..WAITING / 2));
        until("an ARP request", || {
            sink.receive(|frame| answer = arp_answer(1, neighbour, frame));
            answer.is_some()
        });
        source.send(&packets(WAITING / 2..WAITING));
        // The answer and more packets arrive at once, by different devices.
        std::thread::scope(|scope| {
            scope.spawn(|| source.send(&packets(WAITING..WAITING + MORE)));
            sink.send(&[answer.take().unwrap()]);
            let mut next = 0;
            until("all packets", || {
                sink.receive(|frame| {
                    if let Some((flow, number)) = number_of(frame) {
                        assert_eq!((flow, number), (i.into(), next));
                        next += 1;
                    }
                });
                next == WAITING + MORE || world.view.stats().dropped > 0
            });
        });
        assert_eq!(world.view.drops(), []);
    }
    world.end(vec![source, sink]);
}

/// Two prefixes change places between two devices, again and again, while packets to both pass.
#[test]
fn routes_change_under_traffic() {
    const PACKETS: u64 = 40_000;
    let prefixes: [Prefix; 2] = ["10.101.0.0/16", "10.102.0.0/16"].map(|p| p.parse().unwrap());
    let (world, mut sources) =
        Setup { ports: &[2, 1, 1], workers: 2, known: true, ..Setup::default() }.start();
    let sinks: Vec<Lane> = [1, 2].map(|port| of_port(&mut sources, port).remove(0)).into();
    let replace = |swap: bool| {
        let mut control = world.shared.control();
        control.replace_tables(&*world.shared, |tables| {
            let by = |port: u16| {
                tables.v4.next_hops.iter().position(|hop| hop.dev == port && !hop.gateway.is_unspecified())
            };
            let mut hops = [1, 2].map(|port| by(port).unwrap() as u32);
            if swap {
                hops.reverse();
            }
            let routes: Vec<_> = prefixes.into_iter().zip(hops).collect();
            Arc::make_mut(&mut tables.v4).fib = Arc::new(Fib::build(&routes).unwrap());
        });
    };
    // The routes hold the one before, too.
    replace(false);
    let first = Arc::downgrade(&world.shared.tables.load().v4.fib);
    let (sent, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let arrived = [AtomicU64::new(0), AtomicU64::new(0)];
    let all_arrived = || arrived.iter().map(|n| n.load(Ordering::Acquire)).sum::<u64>();
    let mut changes = 0;
    let lanes = std::thread::scope(|scope| {
        let sources = scope.spawn(|| {
            on_all(sources, |lane| {
                let flow = lane.queue as u32;
                let each = PACKETS as u32 / 2;
                for number in (0..each).step_by(8) {
                    until("room", || sent.load(Ordering::Relaxed) < all_arrived() + WINDOW);
                    let dst = |number: u32| Ipv4Addr::new(10, 101 + (number % 2) as u8, 0, 1);
                    let frames: Vec<_> = (number..number + 8).map(|n| numbered(0, dst(n), flow, n)).collect();
                    sent.fetch_add(8, Ordering::Relaxed);
                    assert_eq!(lane.send(&frames), 8);
                }
            })
        });
        let sinks = scope.spawn(|| {
            on_all(sinks, |lane| {
                let mut last = [None; 2];
                until("all packets", || {
                    let n = lane.receive(|frame| {
                        let (flow, number) = number_of(frame).expect("nothing else is sent");
                        let before = last[flow as usize].replace(number);
                        assert!(before < Some(number), "flow {flow}: {before:?} then {number}");
                    });
                    arrived[lane.port - 1].fetch_add(n as u64, Ordering::Release);
                    all_arrived() == PACKETS
                });
                done.store(true, Ordering::Relaxed);
            })
        });
        while !done.load(Ordering::Relaxed) && !sinks.is_finished() {
            changes += 1;
            replace(changes % 2 == 1);
            std::thread::yield_now();
        }
        [sources.join().unwrap(), sinks.join().unwrap()].into_iter().flatten().collect()
    });
    assert!(changes > 10, "{changes}");
    assert!(arrived.iter().all(|n| n.load(Ordering::Relaxed) > 0), "{arrived:?}");
    assert_eq!(world.view.drops(), []);
    // Workers that sleep use no old snapshot, so the next change frees them all.
    until("sleep", || world.shared.workers.iter().all(|worker| worker.is_sleeping()));
    replace(false);
    assert!(first.upgrade().is_none());
    world.end(lanes);
}
