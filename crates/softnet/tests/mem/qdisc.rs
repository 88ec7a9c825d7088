//! Queueing disciplines before in-process wires: exchanged while packets pass, led by the thread that sends, and run by
//! a worker when none does.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use softnet::control::show::QdiscRow;
use softnet::control::{Action, SetQdisc};

use super::frames::{host, number_of, numbered};
use super::world::{Lane, Setup, World, of_port, on_all, until};

/// Bytes of a numbered frame.
const FRAME: u64 = 50;

/// Packets that a wire has room for.
const RING: u32 = 512;

/// Changes a discipline of `mem1`.
fn set(world: &World, action: Action, queue: Option<u16>, qdisc: &str) -> Result<Vec<QdiscRow>, String> {
    let qdisc = (!qdisc.is_empty()).then(|| qdisc.into());
    world
        .view
        .set_qdisc(SetQdisc { dev: "mem1".into(), queue, action, qdisc })
        .map_err(|error| error.to_string())
}

fn replace(world: &World, qdisc: &str) -> Vec<QdiscRow> {
    set(world, Action::Replace, None, qdisc).unwrap()
}

/// The discipline of `mem1`: its root, or that of a TX queue.
fn row(world: &World, queue: Option<u16>) -> QdiscRow {
    let mut rows = world.view.qdiscs().into_iter().filter(|row| row.dev == "mem1" && row.queue == queue);
    rows.next().expect("there is one")
}

/// Sends packets of `flow` to port 1 by `lane`, and waits until softnet has them.
fn send(world: &World, lane: &mut Lane, flow: u32, numbers: std::ops::Range<u32>) {
    let received = || world.view.stats().received;
    let before = received();
    let frames: Vec<_> = numbers.map(|number| numbered(0, host(1), flow, number)).collect();
    assert_eq!(lane.send(&frames), frames.len());
    world.settle(before + frames.len() as u64);
}

/// Waits until the packets of `flow` have come to `lane`, in order, and nothing else.
fn expect(lane: &mut Lane, flow: u32, numbers: std::ops::Range<u32>) {
    let mut next = numbers.start;
    until("all packets", || {
        lane.receive(|frame| {
            assert_eq!(number_of(frame), Some((flow, next)));
            next += 1;
        });
        next >= numbers.end
    });
    assert_eq!(next, numbers.end);
}

fn sleeps(world: &World) -> bool {
    world.shared.workers.iter().all(|worker| worker.is_sleeping())
}

/// Before one ring, whatever is replaced by whatever: what is lost is counted, and no flow goes back.
#[test]
fn all_kinds_in_turn_under_traffic() {
    const KINDS: [&str; 8] = [
        "pfifo limit 100",
        "tbf rate 100mbit burst 3kb latency 2ms",
        "noqueue",
        "tbf rate 1gbit burst 30kb limit 100kb",
        "tbf rate 200mbit burst 3kb limit 10kb peakrate 1gbit mtu 1600",
        "mq",
        "bfifo",
        "pfifo_fast",
    ];
    let (world, mut sources) = Setup { ports: &[2, 1], workers: 2, known: true, ..Setup::default() }.start();
    let sink = of_port(&mut sources, 1);
    let (sent, over, all_sent) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let arrived = AtomicU64::new(0);
    let lanes = std::thread::scope(|scope| {
        let sources = scope.spawn(|| {
            let lanes = on_all(sources, |lane| {
                let mut number = 0;
                while !over.load(Ordering::Relaxed) {
                    let frames: Vec<_> =
                        (0..32).map(|i| numbered(0, host(1), lane.queue as u32, number + i)).collect();
                    let took = lane.send(&frames) as u32;
                    sent.fetch_add(took.into(), Ordering::Relaxed);
                    number += took;
                    std::thread::yield_now();
                }
            });
            all_sent.store(true, Ordering::Release);
            lanes
        });
        let sink = scope.spawn(|| {
            on_all(sink, |lane| {
                let mut last = [None; 2];
                until("all packets", || {
                    let complete = all_sent.load(Ordering::Acquire)
                        && world.view.stats().received == sent.load(Ordering::Relaxed);
                    let n = lane.receive(|frame| {
                        let (flow, number) = number_of(frame).expect("nothing else is sent");
                        let before = last[flow as usize].replace(number);
                        assert!(before < Some(number), "flow {flow}: {before:?}, then {number}");
                    });
                    let arrived = arrived.fetch_add(n as u64, Ordering::Relaxed) + n as u64;
                    complete && arrived + world.view.stats().dropped == sent.load(Ordering::Relaxed)
                });
            })
        });
        for turn in 0..200 {
            let rows = replace(&world, KINDS[turn % KINDS.len()]);
            assert!(KINDS[turn % KINDS.len()].starts_with(&rows[0].kind), "{rows:?}");
            if turn % 10 == 0 {
                let before = arrived.load(Ordering::Relaxed);
                until("packets pass", || arrived.load(Ordering::Relaxed) > before + 100);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        over.store(true, Ordering::Relaxed);
        [sources.join().unwrap(), sink.join().unwrap()].into_iter().flatten().collect()
    });
    let (stats, drops) = (world.view.stats(), world.view.drops());
    let arrived = arrived.into_inner();
    assert_eq!((stats.transmitted, stats.held), (arrived, 0));
    assert_eq!((stats.received, stats.dropped), (sent.into_inner(), stats.received - arrived));
    // The last is of one worker while the other, the queue's owner, is kept from its CPU.
    let known = ["qdisc_overlimit", "qdisc_drop", "full_ring", "qdisc_burst_drop"];
    assert!(drops.iter().all(|row| row.dev == "mem1" && known.contains(&&row.reason[..])), "{drops:?}");
    world.end(lanes);
}

/// Each TX queue counts its own, and keeps to its own while another's discipline is changed.
#[test]
fn a_tx_queue_under_mq_has_its_own_discipline() {
    let (world, mut sources) = Setup { ports: &[2, 2], workers: 2, known: true, ..Setup::default() }.start();
    let mut sinks = of_port(&mut sources, 1);
    let kinds = |rows: &[QdiscRow]| rows.iter().map(|row| row.kind.clone()).collect::<Vec<_>>();
    assert_eq!(kinds(&world.view.qdiscs()[3..]), ["mq", "pfifo_fast", "pfifo_fast"]);
    for queue in 0..2 {
        send(&world, &mut sources[queue], queue as u32, 0..100);
        expect(&mut sinks[queue], queue as u32, 0..100);
    }
    let rows = set(&world, Action::Add, Some(1), "pfifo").unwrap();
    assert_eq!(kinds(&rows), ["mq", "pfifo_fast", "pfifo"]);
    assert_eq!(rows[2].options, "limit 1000p");
    for queue in 0..2 {
        send(&world, &mut sources[queue], queue as u32, 100..150);
        expect(&mut sinks[queue], queue as u32, 100..150);
    }
    let counts = |queue| {
        let row = row(&world, queue);
        (row.packets, row.bytes)
    };
    assert_eq!([Some(0), Some(1), None].map(counts), [150, 50, 200].map(|n| (n, n * FRAME)));
    // Parameters change, what it counted stays.
    set(&world, Action::Replace, Some(1), "pfifo limit 7").unwrap();
    assert_eq!((row(&world, Some(1)).options, counts(Some(1))), ("limit 7p".into(), (50, 50 * FRAME)));

    // One root: whatever queue packets came in by, they leave by the first.
    assert_eq!(kinds(&replace(&world, "pfifo")), ["pfifo"]);
    for (queue, source) in sources.iter_mut().enumerate() {
        send(&world, source, queue as u32, 150..200);
        expect(&mut sinks[0], queue as u32, 150..200);
    }
    assert_eq!(counts(None), (100, 100 * FRAME));
    let error = set(&world, Action::Replace, Some(1), "pfifo").unwrap_err();
    assert!(error.starts_with("parent: the root is not mq"), "{error}");

    assert_eq!(kinds(&set(&world, Action::Del, None, "").unwrap()), ["mq", "pfifo_fast", "pfifo_fast"]);
    for queue in 0..2 {
        send(&world, &mut sources[queue], queue as u32, 200..250);
        expect(&mut sinks[queue], queue as u32, 200..250);
    }
    assert_eq!(world.view.drops(), []);
    sources.append(&mut sinks);
    world.end(sources);
}

/// The sender is gone and nothing else comes: the worker's time is what sends the rest.
#[test]
fn a_token_bucket_sends_the_rest_by_its_watchdog() {
    let (world, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    replace(&world, "tbf rate 1mbit burst 1kb limit 1mb");
    send(&world, &mut lanes[0], 0, 0..200);
    expect(&mut lanes[1], 0, 0..200);
    let row = row(&world, None);
    assert_eq!((row.packets, row.bytes, row.drops, row.qlen, row.backlog), (200, 200 * FRAME, 0, 0, 0));
    assert!(row.overlimits > 0, "{row:?}");
    until("sleep", || sleeps(&world));
    world.end(lanes);
}

/// What is late leaves by the worker's time, and what is lost has a reason of its own.
#[test]
fn a_bad_network_is_late_and_loses() {
    let (world, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    replace(&world, "netem delay 5ms");
    send(&world, &mut lanes[0], 0, 0..100);
    expect(&mut lanes[1], 0, 0..100);
    assert_eq!(replace(&world, "netem loss 100%")[0].options, "limit 1000 loss 100%");
    send(&world, &mut lanes[0], 0, 100..150);
    until("all are lost", || row(&world, None).drops == 50);
    assert_eq!(row(&world, None).drops_by_reason, [("qdisc_loss".into(), 50)].into());
    let drops = world.view.drops();
    assert!(drops.iter().all(|row| row.dev == "mem1" && row.reason == "qdisc_loss"), "{drops:?}");
    let stats = world.view.stats();
    assert_eq!((stats.transmitted, stats.held, stats.dropped), (100, 0, 50));
    world.end(lanes);
}

/// So slow that nothing leaves but what fits the bucket: two packets.
const SLOW: &str = "tbf rate 8bit burst 100b limit 1000b";

#[test]
fn what_has_no_room_is_dropped_and_counted() {
    let (world, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    replace(&world, SLOW);
    send(&world, &mut lanes[0], 0, 0..100);
    expect(&mut lanes[1], 0, 0..2);
    let row = row(&world, None);
    assert_eq!((row.packets, row.qlen, row.backlog, row.drops), (2, 20, 20 * FRAME, 78));
    assert_eq!(row.drops_by_reason, [("qdisc_overlimit".into(), 78)].into());
    let stats = world.view.stats();
    assert_eq!((stats.transmitted, stats.held, stats.dropped), (2, 20, 78));
    // It stops with packets queued: they are counted too, as the end of the stack asserts.
    world.end(lanes);
}

#[test]
fn a_change_of_parameters_keeps_what_is_queued_and_another_kind_drops_it() {
    let (world, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    replace(&world, SLOW);
    send(&world, &mut lanes[0], 0, 0..12);
    expect(&mut lanes[1], 0, 0..2);
    let rows = replace(&world, "tbf rate 100mbit burst 15kb latency 50ms");
    assert_eq!((rows.len(), rows[0].drops), (1, 0));
    expect(&mut lanes[1], 0, 2..12);
    assert_eq!(row(&world, None).packets, 12);

    replace(&world, SLOW);
    send(&world, &mut lanes[0], 0, 12..24);
    expect(&mut lanes[1], 0, 12..14);
    let rows = replace(&world, "pfifo");
    assert_eq!((rows[0].qlen, rows[0].drops, rows[0].packets), (0, 0, 0), "of the new one");
    let drops = world.view.drops();
    assert_eq!(
        (drops.len(), &drops[0].dev[..], &drops[0].reason[..], drops[0].packets),
        (1, "mem1", "qdisc_drop", 10)
    );
    send(&world, &mut lanes[0], 0, 24..34);
    expect(&mut lanes[1], 0, 24..34);
    world.end(lanes);
}

/// The ring is not read, then it is: the worker sees it without a packet or a doorbell.
#[test]
fn a_full_ring_stops_the_discipline_until_it_is_read() {
    const MORE: u32 = 300;
    let (world, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    send(&world, &mut lanes[0], 0, 0..RING);
    send(&world, &mut lanes[0], 0, RING..RING + MORE);
    let waiting = || row(&world, None).qlen;
    until("a full ring", || waiting() == u64::from(MORE));
    let stats = world.view.stats();
    assert_eq!((stats.transmitted, stats.held, stats.dropped), (RING.into(), MORE.into(), 0));
    // As much goes on the ring as was taken from it.
    expect(&mut lanes[1], 0, 0..64);
    until("as many more", || waiting() == u64::from(MORE) - 64);
    expect(&mut lanes[1], 0, 64..RING + MORE);
    let row = row(&world, None);
    let all = u64::from(RING + MORE);
    assert_eq!((row.packets, row.bytes, row.drops, row.qlen), (all, all * FRAME, 0, 0));
    until("sleep", || sleeps(&world));
    world.end(lanes);
}

#[test]
fn what_makes_no_sense_is_told_and_changes_nothing() {
    let (world, lanes) = Setup { ports: &[1, 2], workers: 1, known: true, ..Setup::default() }.start();
    let before = world.view.qdiscs();
    for (action, queue, qdisc, expected) in [
        (
            Action::Replace,
            None,
            "codel",
            "expected noqueue, mq, pfifo_fast, pfifo, bfifo, tbf or netem, got `codel`",
        ),
        (Action::Replace, None, "tbf burst 1kb limit 1kb", "tbf: expected a rate, such as `rate 10mbit`"),
        (Action::Add, Some(2), "pfifo", "parent: no TX queue 2 (:3); there are 2, expected :1 to :2"),
        (Action::Add, Some(0), "mq", "mq is for devices, not for one of their TX queues"),
        (Action::Del, None, "", "the root has its default discipline, which can't be deleted"),
    ] {
        assert_eq!(set(&world, action, queue, qdisc), Err(expected.into()));
    }
    let missing =
        SetQdisc { dev: "eth9".into(), queue: None, action: Action::Add, qdisc: Some("pfifo".into()) };
    let refused = world.view.set_qdisc(missing).unwrap_err().to_string();
    assert_eq!(refused, "no device \"eth9\"; there are: mem0, mem1");
    assert_eq!(world.view.qdiscs(), before);
    set(&world, Action::Add, None, "pfifo").unwrap();
    let error = set(&world, Action::Add, None, "bfifo").unwrap_err();
    assert_eq!(error, "the root already has pfifo: `replace` it, or `del` it first");
    world.end(lanes);
}
