//! Accelerated RFS: flows get filters that have them arrive at a queue of the worker near their
//! consumer, follow it in order when it moves, and lose them when they have gone quiet.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use softnet::config::{PerQueue, available_cpus};
use softnet::control::show::{FlowFilterRow, NtupleRow};
use softnet::control::{SetNtuple, SetSteering, Target};
use softnet::net::{Handle, RecvBatch, UdpSocket};

use super::frames::own;
use super::udp::datagram;
use super::world::{Lane, Setup, World, until};

const QUEUES: usize = 4;
/// Packets that may be on the way.
const WINDOW: u64 = 256;

/// Two workers, on CPUs of their own if there are, and a device with RSS.
fn start() -> (World, Vec<Lane>) {
    Setup { ports: &[QUEUES], workers: 2, known: true, rss: true, ..Setup::default() }.start_with(|config| {
        config.stack.rps_sock_flow_entries = 32768;
        let workers = config.stack.workers.clone();
        config.devices[0].rps_cpus = PerQueue::All(softnet::config::CpuList(workers));
        config.devices[0].rps_flow_cnt = PerQueue::All(4096);
    })
}

fn pin(cpu: u32) {
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    sched_setaffinity(None, &set).unwrap();
}

/// Two CPUs, with a worker on each, or none to test on.
fn two_cpus() -> Option<[u32; 2]> {
    let cpus = available_cpus();
    if cpus.len() < 2 {
        println!("skipped: one CPU, so consumers can't move");
        return None;
    }
    Some([cpus[0], cpus[1]])
}

/// Filters, summed over the queues.
fn filters(world: &World) -> FlowFilterRow {
    let rows = world.view.steering();
    let mut sum = FlowFilterRow::default();
    for row in rows.iter().map(|row| row.filters.as_ref().expect("the device takes filters")) {
        sum.now += row.now;
        sum.set += row.set;
        sum.expired += row.expired;
        sum.refused += row.refused;
        sum.late += row.late;
    }
    sum
}

/// Filters of RFS that are set.
fn of_rfs(world: &World) -> Vec<NtupleRow> {
    world.view.ntuples().into_iter().filter(|row| row.rfs).collect()
}

/// The queue that each filter sends its flow to, by the flow's source port.
fn led_to(world: &World) -> BTreeMap<u16, usize> {
    let of = |row: &NtupleRow| {
        let words: Vec<&str> = row.rule.split_whitespace().collect();
        let behind = |name| words[words.iter().position(|word| *word == name).unwrap() + 1];
        (behind("src-port").parse().unwrap(), behind("action").parse().unwrap())
    };
    of_rfs(world).iter().map(of).collect()
}

/// The worker that polls queue `queue`: they are dealt in turn.
fn polled_by(queue: usize) -> usize {
    queue % 2
}

/// What sender and consumer share.
#[derive(Default)]
struct Flows {
    sent: AtomicU64,
    received: AtomicU64,
    over: AtomicBool,
    /// The sender has sent its last.
    all_sent: AtomicBool,
    /// Which of the two CPUs the consumer is on.
    on: AtomicUsize,
    /// Times that the consumer moved.
    moved: AtomicU32,
}

impl Flows {
    /// Sends the flows with these source ports in turn, until it is over. Each datagram has its
    /// number within the flow.
    fn send(&self, lane: &mut Lane, ports: std::ops::Range<u16>) {
        let mut number = 0u32;
        while !self.over.load(Ordering::Relaxed) {
            for some in ports.clone().collect::<Vec<_>>().chunks(32) {
                let frames: Vec<_> =
                    some.iter().map(|port| datagram(0, own(0), (*port, 7), &number.to_le_bytes())).collect();
                until("what was sent arrives", || {
                    let away = self.sent.load(Ordering::Relaxed) - self.received.load(Ordering::Relaxed);
                    away <= WINDOW - frames.len() as u64
                });
                self.sent.fetch_add(frames.len() as u64, Ordering::Relaxed);
                assert_eq!(lane.send(&frames), frames.len());
            }
            number += 1;
        }
        self.all_sent.store(true, Ordering::Release);
    }

    /// Receives all of it on the CPU that it is told, in order, and until all that was sent has come.
    fn consume(&self, handle: &Handle, cpus: [u32; 2], bound: &AtomicBool) {
        let socket = UdpSocket::bind(handle, (own(0), 7)).unwrap();
        bound.store(true, Ordering::Release);
        let mut batch = RecvBatch::new();
        let (mut on, mut next) = (usize::MAX, BTreeMap::<u16, u32>::new());
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        loop {
            let wanted = self.on.load(Ordering::Relaxed) % 2;
            if wanted != on {
                pin(cpus[wanted]);
                on = wanted;
                self.moved.fetch_add(1, Ordering::Relaxed);
            }
            batch.clear();
            let n = socket.recv_batch(&mut batch, 64).unwrap_or(0);
            for datagram in batch.iter() {
                let number = u32::from_le_bytes(datagram.data().unwrap().try_into().unwrap());
                let port = datagram.from.port();
                let expected = next.entry(port).or_default();
                assert_eq!(number, *expected, "flow {port}");
                *expected += 1;
            }
            let received = self.received.fetch_add(n as u64, Ordering::Relaxed) + n as u64;
            if self.all_sent.load(Ordering::Acquire) && received == self.sent.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// Runs `steps` beside a sender of the flows `ports` and their consumer.
fn with_traffic(
    world: World,
    mut lanes: Vec<Lane>,
    cpus: [u32; 2],
    ports: std::ops::Range<u16>,
    steps: impl FnOnce(&World, &Flows),
) -> (World, Vec<Lane>) {
    let (flows, handle, bound) = (Flows::default(), world.handle(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| flows.consume(&handle, cpus, &bound));
        until("the consumer", || bound.load(Ordering::Acquire));
        let (lane, sent_by) = (&mut lanes[0], &flows);
        let sender = scope.spawn(move || sent_by.send(lane, ports));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| steps(&world, &flows)));
        flows.over.store(true, Ordering::Relaxed);
        sender.join().unwrap();
        consumer.join().unwrap();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let sent = flows.sent.load(Ordering::Relaxed);
    assert_eq!(flows.received.load(Ordering::Relaxed), sent);
    (world, lanes)
}

#[test]
fn flows_arrive_by_a_queue_of_their_consumers_worker() {
    let Some(cpus) = two_cpus() else { return };
    const PORTS: std::ops::Range<u16> = 1000..1016;
    let (world, lanes) = start();
    assert_eq!((filters(&world), of_rfs(&world).len()), (FlowFilterRow::default(), 0));
    assert!(world.view.napis().iter().enumerate().all(|(queue, row)| row.worker == polled_by(queue)));
    let (world, lanes) = with_traffic(world, lanes, cpus, PORTS, |world, flows| {
        for on in [0, 1, 0] {
            flows.on.store(on, Ordering::Relaxed);
            // Where RSS does not send them anyway.
            let mut away = BTreeMap::new();
            until("all flows arrive there", || {
                away = led_to(world);
                let all_there = away.values().all(|queue| polled_by(*queue) == on);
                let before = by_queue(world);
                let sent = flows.sent.load(Ordering::Relaxed) + 10 * WINDOW;
                until("more", || flows.received.load(Ordering::Relaxed) >= sent);
                let after = by_queue(world);
                let elsewhere =
                    (0..QUEUES).any(|queue| polled_by(queue) != on && after[queue] > before[queue]);
                all_there && !elsewhere
            });
            assert!(on == 0 || !away.is_empty(), "some had to be sent there");
        }
        let sum = filters(world);
        assert!(sum.set > 0 && sum.now == led_to(world).len() as u64, "{sum:?}");
        assert_eq!(sum.refused, 0, "{sum:?}");
        // Of RFS, and not the user's to delete.
        let row = &of_rfs(world)[0];
        assert!((1024..1280).contains(&row.location) && row.packets.is_some(), "{row:?}");
        let set = SetNtuple { dev: "mem0".into(), change: format!("delete {}", row.location) };
        let error = world.view.set_ntuple(&set).unwrap_err().to_string();
        assert!(error.contains("is RFS's"), "{error}");
    });
    // They are quiet now.
    until("the filters are deleted", || of_rfs(&world).is_empty());
    let sum = filters(&world);
    assert_eq!((sum.now, sum.set > 0, sum.expired > 0), (0, true, true), "{sum:?}");
    world.end(lanes);
}

/// Packets that each queue received.
fn by_queue(world: &World) -> Vec<u64> {
    world.view.napis().iter().filter(|row| row.dev == "mem0").map(|row| row.packets).collect()
}

/// The consumer moves every millisecond, at full rate: filters come and go meanwhile, and no packet
/// overtakes another or is lost.
#[test]
fn flows_keep_their_order_while_their_consumer_moves() {
    let Some(cpus) = two_cpus() else { return };
    let (world, lanes) = start();
    let (world, lanes) = with_traffic(world, lanes, cpus, 1000..1032, |world, flows| {
        let start = Instant::now();
        // Fast, and then slowly enough for each move to be followed.
        for (time, pause) in [(1000, 1), (3000, 80)] {
            let end = start.elapsed() + Duration::from_millis(time);
            while start.elapsed() < end {
                flows.on.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(pause));
            }
        }
        assert!(flows.moved.load(Ordering::Relaxed) > 20);
        let sum = filters(world);
        assert!(sum.set > 0, "{sum:?}");
    });
    assert_eq!(world.view.drops(), []);
    world.end(lanes);
}

/// More flows than there are places for filters: the others stay with RFS.
#[test]
fn flows_without_a_filter_stay_with_rfs() {
    let Some(cpus) = two_cpus() else { return };
    const PLACES: u64 = 256;
    let (world, lanes) = start();
    let (world, lanes) = with_traffic(world, lanes, cpus, 1000..2200, |world, _| {
        until("all places are taken", || {
            let sum = filters(world);
            sum.now == PLACES && sum.refused > 0
        });
        assert_eq!(of_rfs(world).len() as u64, PLACES);
        let moves = || world.view.steering().iter().map(|row| row.moves).sum::<u64>();
        assert!(moves() > PLACES);
    });
    assert_eq!(world.view.drops(), []);
    world.end(lanes);
}

/// A queue whose flows do not follow their consumers any more is not asked for, and its filters go.
#[test]
fn without_rfs_there_are_no_filters() {
    let Some(cpus) = two_cpus() else { return };
    let (world, lanes) = start();
    let (world, lanes) = with_traffic(world, lanes, cpus, 1000..1016, |world, flows| {
        until("filters", || filters(world).now > 0);
        let set = |rps_flow_cnt| SetSteering {
            target: Target::Dev("mem0".into()),
            steering: None,
            processing_cpu: None,
            rps_cpus: None,
            rps_flow_cnt: Some(rps_flow_cnt),
        };
        world.view.set_steering(set(0)).unwrap();
        until("they are gone", || filters(world).now == 0);
        let sent = flows.sent.load(Ordering::Relaxed) + 100 * WINDOW;
        until("more", || flows.received.load(Ordering::Relaxed) >= sent);
        assert_eq!(of_rfs(world), []);
        world.view.set_steering(set(4096)).unwrap();
        until("filters again", || filters(world).now > 0);
    });
    world.end(lanes);
}
