//! Every packet ends in exactly one place, whatever comes, however many send, and when it all stops.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use softnet::internals::{TxHint, dev_queue_xmit};
use softnet_core::skb::Batch;

use super::frames::{Rng, arp_answer, host, number_of, numbered, random};
use super::world::{Lane, Setup, of_port, on_all, until};

/// A host's life: `rounds` times sends up to 64 random frames, and takes what comes.
fn chatter(lane: &mut Lane, ports: usize, rounds: usize, goes_on: impl Fn() -> bool) {
    let mut rng = Rng((lane.port * 8 + lane.queue) as u64);
    for _ in 0..rounds {
        if !goes_on() {
            return;
        }
        let frames: Vec<_> = (0..rng.below(64)).map(|_| random(&mut rng, lane.port, ports)).collect();
        lane.send(&frames);
        listen(lane);
    }
}

/// Takes what is on the wire and answers ARP.
fn listen(lane: &mut Lane) {
    let port = lane.port;
    let mut answers = Vec::new();
    lane.receive(|frame| answers.extend(arp_answer(port, host(port), frame)));
    lane.send(&answers);
}

fn sum(lanes: &[Lane]) -> (u64, u64) {
    lanes.iter().map(Lane::counts).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

#[test]
fn random_traffic_is_accounted_for() {
    // Port 1 has one queue, which both workers send by.
    let ports = [2, 1, 2];
    let (world, lanes) = Setup { ports: &ports, workers: 2, known: false, ..Setup::default() }.start();
    let mut lanes = on_all(lanes, |lane| chatter(lane, ports.len(), 300, || true));
    world.settle(sum(&lanes).0);
    until("no packet waits before a full ring", || {
        lanes.iter_mut().for_each(|lane| while lane.receive(|_| ()) > 0 {});
        world.view.qdiscs().iter().all(|row| row.qlen == 0)
    });
    lanes.iter_mut().for_each(|lane| while lane.receive(|_| ()) > 0 {});
    let stats = world.view.stats();
    assert_eq!(stats.transmitted, sum(&lanes).1);
    assert!(stats.dropped > 0 && stats.delivered > 0 && stats.originated > 0, "{stats:?}");
    // By device and reason is the same as in all.
    let drops: u64 = world.view.drops().iter().map(|row| row.packets).sum();
    assert_eq!(stats.dropped, drops);
    for reason in ["ip_inhdr", "ip_csum", "ip_ttl", "ip_options", "otherhost", "ip_outnoroutes"] {
        assert!(world.view.drops().iter().any(|row| row.reason == reason), "no {reason}");
    }
    world.end(lanes);
}

#[test]
fn stopping_under_load_loses_nothing() {
    for round in 0..10 {
        let ports = [2, 1];
        let (mut world, lanes) =
            Setup { ports: &ports, workers: 2, known: round % 2 == 0, ..Setup::default() }.start();
        let stopped = AtomicBool::new(false);
        let lanes = std::thread::scope(|scope| {
            let chatting = scope.spawn(|| {
                on_all(lanes, |lane| {
                    chatter(lane, ports.len(), usize::MAX, || !stopped.load(Ordering::Relaxed));
                })
            });
            until("traffic flows", || world.view.stats().transmitted > 500 * round);
            world.stop();
            stopped.store(true, Ordering::Relaxed);
            chatting.join().unwrap()
        });
        world.end(lanes);
    }
}

#[test]
fn many_threads_send_by_one_queue() {
    const SENDERS: u32 = 3;
    const EACH: u32 = 10_000;
    let (world, mut lanes) = Setup { ports: &[2, 1], workers: 2, known: true, ..Setup::default() }.start();
    let mut sink = of_port(&mut lanes, 1).remove(0);
    // Sent, less arrived, is what may be on the way: never so much that a ring runs over.
    let arrived = AtomicU64::new(0);
    let sent = AtomicU64::new(0);
    let may_send = |n: u64| {
        let fits = |sent: u64| (sent + n <= arrived.load(Ordering::Acquire) + 256).then_some(sent + n);
        until("room", || sent.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits).is_ok());
    };
    let lanes = std::thread::scope(|scope| {
        for flow in 0..SENDERS {
            let (world, may_send) = (&world, &may_send);
            scope.spawn(move || {
                let mut ctx = world.shared.context();
                for first in (0..EACH).step_by(10) {
                    may_send(10);
                    let mut batch = Batch::new();
                    for number in first..first + 10 {
                        let frame = numbered(1, host(1), flow, number);
                        let mut skb = ctx.alloc_skb().unwrap();
                        skb.put(frame.len()).unwrap().copy_from_slice(&frame);
                        ctx.originate();
                        batch.push(skb).unwrap();
                    }
                    dev_queue_xmit(
                        &mut ctx,
                        &world.shared.netdevs[1],
                        world.shared.clock.now(),
                        TxHint::forwarded(flow as u16),
                        &mut batch,
                    );
                    assert!(batch.is_empty());
                }
            });
        }
        // Meanwhile both workers forward.
        let forwarded = scope.spawn(|| {
            on_all(std::mem::take(&mut lanes), |lane| {
                let flow = SENDERS + lane.queue as u32;
                for number in 0..EACH {
                    may_send(1);
                    assert_eq!(lane.send(&[numbered(0, host(1), flow, number)]), 1);
                }
            })
        });
        let mut next = [0; SENDERS as usize + 2];
        until("all packets", || {
            let n = sink.receive(|frame| {
                let (flow, number) = number_of(frame).expect("nothing else is sent");
                assert_eq!(number, next[flow as usize], "flow {flow}");
                next[flow as usize] += 1;
            });
            arrived.fetch_add(n as u64, Ordering::Release);
            next.iter().all(|n| *n == EACH)
        });
        forwarded.join().unwrap()
    });
    assert_eq!(world.view.stats().dropped, 0);
    world.end(lanes.into_iter().chain([sink]).collect());
}
