//! Packets that come by one RX queue are processed by several workers: handed off to one, or spread
//! over several. Each flow stays in order, whatever is changed while packets come, and each packet
//! is counted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use softnet::config::{Config, Context, PerQueue, available_cpus};
use softnet::control::show::SteeringRow;
use softnet::control::{SetSteering, Target};
use softnet::internals::{Assembly, Worker};
use softnet::net::UdpSocket;
use softnet::{NapiPoller, PacketFilter};
use softnet_core::skb::Batch;

use super::frames::{Rng, host, number_of, numbered, own, to_port};
use super::poller::{PREFER, numbers};
use super::udp::datagram;
use super::world::{Lane, Setup, World, until};

/// Packets that may be on the way, so that no ring runs over.
const WINDOW: u64 = 256;
const FLOWS: u32 = 32;

/// How long cases go on.
const TIME: Duration = Duration::from_secs(3);

/// Two ports of one queue each, and four workers, whatever CPUs there are.
fn start(more: impl FnOnce(&mut Config)) -> (World, Vec<Lane>) {
    Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start_with(|config| {
        config.stack.workers = vec![0, 1, 2, 3];
        more(config);
    })
}

/// A packet from port 0 of the flow `flow`, to the host at port 1.
fn packet(flow: u32, number: u32) -> Vec<u8> {
    to_port(numbered(0, host(1), flow, number), 1000 + flow as u16)
}

/// Sends all flows by `source`, packet by packet in turn, until `over`, and checks at `sink` that
/// nothing is lost or overtaken.
fn load(source: Lane, sink: Lane, over: &AtomicBool) -> (Vec<Lane>, u64) {
    let (sent, arrived, all_sent) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let source = scope.spawn(|| {
            let (mut lane, mut number) = (source, 0);
            while !over.load(Ordering::Relaxed) {
                let frames: Vec<_> = (0..FLOWS).map(|flow| packet(flow, number)).collect();
                until("room", || {
                    sent.load(Ordering::Relaxed) - arrived.load(Ordering::Acquire)
                        <= WINDOW - u64::from(FLOWS)
                });
                sent.fetch_add(u64::from(FLOWS), Ordering::Relaxed);
                assert_eq!(lane.send(&frames), frames.len());
                number += 1;
            }
            all_sent.store(true, Ordering::Release);
            lane
        });
        let sink = scope.spawn(|| {
            let (mut lane, mut next) = (sink, [0; FLOWS as usize]);
            until("all packets", || {
                let last = all_sent.load(Ordering::Acquire);
                let n = lane.receive(|frame| {
                    let (flow, number) = number_of(frame).expect("nothing else is sent");
                    assert_eq!(number, next[flow as usize], "flow {flow}");
                    next[flow as usize] += 1;
                });
                arrived.fetch_add(n as u64, Ordering::Release);
                last && arrived.load(Ordering::Relaxed) == sent.load(Ordering::Relaxed)
            });
            lane
        });
        let lanes = vec![source.join().unwrap(), sink.join().unwrap()];
        (lanes, sent.load(Ordering::Relaxed))
    })
}

/// The row of port 0.
fn row(world: &World) -> SteeringRow {
    world.view.steering().remove(0)
}

/// What `softnet set dev mem0 …` asks for.
fn set(knobs: [Option<&str>; 2], rps_flow_cnt: Option<u32>) -> SetSteering {
    let [processing_cpu, rps_cpus] = knobs.map(|text| text.map(String::from));
    SetSteering { target: Target::Dev("mem0".into()), steering: None, processing_cpu, rps_cpus, rps_flow_cnt }
}

fn send_for(world: &World, mut lanes: Vec<Lane>, time: Duration) -> (Vec<Lane>, u64) {
    let (sink, source) = (lanes.remove(1), lanes.remove(0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| load(source, sink, &over));
        std::thread::sleep(time);
        over.store(true, Ordering::Relaxed);
        let (lanes, sent) = load.join().unwrap();
        world.settle(sent);
        (lanes, sent)
    })
}

#[test]
fn a_queue_is_handed_off_to_one_worker() {
    let (world, lanes) = start(|config| config.devices[0].processing_cpu = PerQueue::All(2));
    let (lanes, sent) = send_for(&world, lanes, Duration::from_millis(300));
    let row = row(&world);
    assert_eq!((&row.mode[..], row.processing_cpu), ("hand-off", Some(2)));
    let [to] = &row.workers[..] else { panic!("{row:?}") };
    assert_eq!((&to.worker[..], to.packets, to.dropped, to.backlog), ("softnet/2", sent, 0, 0));
    assert!(to.wakeups > 0 && to.wakeups <= to.packets, "{to:?}");
    let backlogs = world.view.backlogs();
    assert_eq!(backlogs[2].packets, sent, "{backlogs:?}");
    assert_eq!((backlogs.len(), backlogs[0].packets, &backlogs[2].name[..]), (4, 0, "backlog-2"));
    assert_eq!(world.view.drops(), []);
    world.end(lanes);
}

#[test]
fn flows_are_spread_over_workers() {
    let (world, lanes) = start(|config| config.devices[0].rps_cpus = PerQueue::All("1-3".parse().unwrap()));
    let (lanes, sent) = send_for(&world, lanes, Duration::from_millis(300));
    let row = row(&world);
    assert_eq!((&row.mode[..], &row.rps_cpus[..]), ("rps", &[1, 2, 3][..]));
    let names: Vec<_> = row.workers.iter().map(|to| &to.worker[..]).collect();
    assert_eq!(names, ["softnet/1", "softnet/2", "softnet/3"], "every one has flows of {FLOWS}");
    assert_eq!(row.workers.iter().map(|to| to.packets).sum::<u64>(), sent, "{row:?}");
    assert_eq!(world.view.drops(), []);
    world.end(lanes);
}

/// Each millisecond another plan or another context, of which some steer from threads that are no
/// workers.
#[test]
fn steering_is_changed_under_traffic() {
    let (world, mut lanes) = start(|config| config.stack.rps_sock_flow_entries = 256);
    let (sink, source) = (lanes.remove(1), lanes.remove(0));
    let over = AtomicBool::new(false);
    let mut modes = std::collections::BTreeSet::new();
    let (lanes, sent) = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(source, sink, &over));
        let (mut rng, start) = (Rng(11), Instant::now());
        while start.elapsed() < TIME && !load.is_finished() {
            let cpu = rng.below(4).to_string();
            let cpus = ["0", "1-3", "0-3", "2,3"][rng.below(4)];
            let asked = match rng.below(8) {
                0 | 1 => set([Some("none"), Some("none")], None),
                2 | 3 => set([Some(&cpu), Some("")], None),
                4..7 => set([Some("none"), Some(cpus)], Some(rng.below(2) as u32 * 8)),
                _ => {
                    world.set(0, Context::ALL[rng.below(4)]);
                    continue;
                }
            };
            let rows = world.view.set_steering(asked).unwrap();
            modes.insert(rows[0].mode.clone());
            std::thread::sleep(Duration::from_millis(1));
        }
        over.store(true, Ordering::Relaxed);
        load.join().unwrap()
    });
    world.settle(sent);
    assert_eq!(modes.len(), 4, "{modes:?}");
    assert!(sent > 1000 && world.view.drops().is_empty(), "{sent}: {:?}", world.view.drops());
    world.end(lanes);
}

#[test]
fn what_can_not_be_is_refused_and_changes_nothing() {
    let (world, lanes) = start(|_| {});
    let refused = |asked: SetSteering| world.view.set_steering(asked).unwrap_err().to_string();
    assert_eq!(
        refused(set([Some("7"), None], None)),
        "processing_cpu: expected CPUs that have a worker (0, 1, 2, 3), found 7"
    );
    assert_eq!(
        refused(set([None, Some("1,9")], None)),
        "rps_cpus: expected CPUs that have a worker (0, 1, 2, 3), found 9"
    );
    assert!(refused(set([Some("x"), None], None)).starts_with("processing_cpu: expected a CPU or none"));
    assert!(refused(set([None, Some("3-1")], None)).starts_with("rps_cpus: expected"));
    assert!(refused(set([Some("1"), Some("2")], None)).starts_with("expected one of"));
    let unknown = SetSteering { target: Target::Dev("mem9".into()), ..set([Some("1"), None], None) };
    assert!(refused(unknown).starts_with("no device"));
    assert_eq!((&row(&world).mode[..], row(&world).processing_cpu), ("auto: none", None));
    let rows = world.view.set_steering(set([None, Some("1")], Some(16))).unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(
        rows[0].warning.as_deref(),
        Some("rps_flow_cnt has no effect while rps_sock_flow_entries of the stack is 0")
    );
    world.end(lanes);
}

/// The thread that receives goes to another CPU every millisecond, and its flows after it.
#[test]
fn flows_follow_their_consumer_and_stay_in_order() {
    const SOCKETS: u16 = 8;
    let cpus = available_cpus();
    let (world, mut lanes) = start(|config| {
        config.stack.workers = cpus.iter().copied().chain([60, 61]).take(2).collect();
        config.stack.rps_sock_flow_entries = 1024;
        let list = config.stack.workers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        config.devices[0].rps_cpus = PerQueue::All(list.parse().unwrap());
        config.devices[0].rps_flow_cnt = PerQueue::All(256);
    });
    let handle = world.handle();
    let socket = |n: u16| {
        let socket = UdpSocket::bind(&handle, (own(0), 7000 + n)).unwrap();
        // The last has no peer, as a server's has none.
        if n + 1 < SOCKETS {
            socket.connect((host(0), 900 + n)).unwrap();
        }
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let sockets: Vec<_> = (0..SOCKETS).map(socket).collect();
    let (sent, arrived) = (AtomicU64::new(0), AtomicU64::new(0));
    let over = AtomicBool::new(false);
    let mut source = lanes.remove(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0u32;
            while !over.load(Ordering::Relaxed) {
                until("room", || {
                    sent.load(Ordering::Relaxed) - arrived.load(Ordering::Acquire) <= WINDOW / 2
                });
                let frame = |n| datagram(0, own(0), (900 + n, 7000 + n), &number.to_be_bytes());
                let frames: Vec<_> = (0..SOCKETS).map(frame).collect();
                sent.fetch_add(frames.len() as u64, Ordering::Relaxed);
                assert_eq!(source.send(&frames), frames.len());
                number += 1;
            }
        });
        scope.spawn(|| {
            let (mut next, mut moved, mut at) = ([0; SOCKETS as usize], Instant::now(), 0);
            let start = Instant::now();
            loop {
                let stopped = over.load(Ordering::Relaxed);
                let before = arrived.load(Ordering::Relaxed);
                for (socket, next) in sockets.iter().zip(&mut next) {
                    let mut buffer = [0; 4];
                    while socket.recv_from(&mut buffer).is_ok() {
                        let number = u32::from_be_bytes(buffer);
                        if number != *next {
                            over.store(true, Ordering::Relaxed);
                        }
                        assert_eq!(number, *next, "{:?}", socket.local_addr());
                        *next += 1;
                        arrived.fetch_add(1, Ordering::Release);
                    }
                }
                if start.elapsed() > TIME {
                    over.store(true, Ordering::Relaxed);
                }
                if stopped && arrived.load(Ordering::Relaxed) == sent.load(Ordering::Relaxed) {
                    return;
                }
                assert!(start.elapsed() < TIME * 20, "some are lost: {:?}", world.view.drops());
                if moved.elapsed() > Duration::from_millis(1) {
                    (moved, at) = (Instant::now(), (at + 1) % cpus.len());
                    let mut set = rustix::thread::CpuSet::new();
                    set.set(cpus[at] as usize);
                    let _ = rustix::thread::sched_setaffinity(None, &set);
                } else if arrived.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
            }
        });
    });
    let row = row(&world);
    assert_eq!((&row.mode[..], row.warning.as_deref()), ("rps+rfs", None));
    // With one CPU there is nowhere to go.
    assert!(cpus.len() == 1 || row.moves > 10, "{row:?}");
    assert_eq!(world.view.drops(), []);
    drop(sockets);
    lanes.push(source);
    world.end(lanes);
}

/// Rounds of `worker` until it has nothing to do.
fn work(worker: &mut Worker) {
    until("rest", || !worker.round());
}

/// A worker that does not keep up, with an elephant and 100 mice on its backlog.
#[test]
fn only_the_elephant_is_dropped() {
    let (mut assembly, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }
        .assemble_with(|config| {
            config.stack.workers = vec![0, 1];
            config.stack.netdev_max_backlog = 400;
            config.devices[0].rps_cpus = PerQueue::All("1".parse().unwrap());
        });
    let mut workers = std::mem::take(&mut assembly.workers);
    workers.iter_mut().for_each(work);
    let (mut sent, mut arrived) = ([0u64; 2], [0u64; 2]);
    let mut send = |flows: &[u32]| {
        let frames: Vec<_> = flows.iter().map(|flow| packet(*flow, 0)).collect();
        assert_eq!(lanes[0].send(&frames), frames.len());
        flows.iter().for_each(|flow| sent[usize::from(*flow > 0)] += 1);
        work(&mut workers[0]);
    };
    // Up to the half of it one flow may have all.
    (0..4).for_each(|_| send(&[0; 50]));
    (1..=100).for_each(|mouse| send(&[0, 0, 0, 0, mouse, 0, 0, 0, 0, 0]));
    let row = assembly.view.steering().remove(0);
    let to = &row.workers[0];
    assert_eq!((to.dropped, to.packets + to.flow_limited), (0, sent[0] + sent[1]), "{row:?}");
    assert!(to.flow_limited > 500, "{row:?}");
    assert_eq!((to.backlog, to.wakeups), (to.packets, 1), "told once, since it took nothing");
    work(&mut workers[1]);
    until("all arrive", || {
        lanes[1].receive(|frame| arrived[usize::from(number_of(frame).unwrap().0 > 0)] += 1);
        work(&mut workers[1]);
        arrived.iter().sum::<u64>() == to.packets
    });
    assert_eq!(arrived[1], 100, "every mouse passes");
    let drops = assembly.view.drops();
    let [drop] = &drops[..] else { panic!("{drops:?}") };
    assert_eq!((&drop.dev[..], &drop.reason[..], drop.packets), ("mem0", "flow_limit", to.flow_limited));
    drop_all(assembly, workers, lanes);
}

/// Whole lists: one that finds more than the limit is dropped, one that finds less gets in.
#[test]
fn a_full_backlog_drops_whole_lists() {
    let (mut assembly, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }
        .assemble_with(|config| {
            config.stack.workers = vec![0, 1];
            (config.stack.netdev_max_backlog, config.stack.flow_limit_table_len) = (100, 0);
            // What is handed off would be held back before.
            config.devices[0].rps_cpus = PerQueue::All("1".parse().unwrap());
        });
    let mut workers = std::mem::take(&mut assembly.workers);
    workers.iter_mut().for_each(work);
    for (n, (packets, dropped)) in
        [(60, (60, 0)), (40, (100, 0)), (64, (164, 0)), (1, (164, 1)), (64, (164, 65))]
    {
        let frames: Vec<_> = (0..n).map(|n| packet(n, 0)).collect();
        assert_eq!(lanes[0].send(&frames), frames.len());
        work(&mut workers[0]);
        let row = assembly.view.steering().remove(0);
        let to = &row.workers[0];
        assert_eq!((to.packets, to.dropped, to.backlog), (packets, dropped, packets));
    }
    assert_eq!(assembly.view.stats().held, 164);
    let drops = assembly.view.drops();
    assert_eq!((&drops[0].reason[..], drops[0].packets), ("cpu_backlog", 65));
    // The worker never comes to it: what it has is dropped and counted when the stack stops.
    let view = assembly.view.clone();
    drop_all(assembly, workers, lanes);
    let stats = view.stats();
    assert_eq!((stats.held, stats.dropped, stats.leaked), (0, 65 + 164, 0));
}

fn drop_all(assembly: Assembly, workers: Vec<Worker>, lanes: Vec<Lane>) {
    let view = assembly.view.clone();
    drop((workers, assembly));
    lanes.into_iter().for_each(|lane| _ = lane.close());
    let stats = view.stats();
    assert_eq!((stats.frames_free, stats.heads_free), (stats.frames, stats.heads));
}

/// The application gets its own packets, and steers the others, for which a worker is woken.
#[test]
fn an_application_that_polls_steers_what_is_not_its_own() {
    let (mut assembly, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }
        .assemble_with(|config| {
            config.stack.workers = vec![0, 1];
            config.devices[0].rps_cpus = PerQueue::All("1".parse().unwrap());
        });
    let mut workers = std::mem::take(&mut assembly.workers);
    workers.iter_mut().for_each(work);
    let id = assembly.view.napis()[0].id;
    let filter = PacketFilter::UdpPort(1007);
    let mut poller = NapiPoller::new(&assembly.handle(), id, "app", filter, PREFER).unwrap();
    let frames: Vec<_> = (0..10).map(|flow| packet(flow, 0)).collect();
    assert_eq!(lanes[0].send(&frames), frames.len());
    let mut batch = Batch::new();
    until("its packet", || {
        let _ = poller.wait(&mut batch, Some(Duration::from_micros(1)));
        !batch.is_empty()
    });
    assert_eq!(numbers(&mut poller, &mut batch), [0]);
    let row = assembly.view.steering().remove(0);
    assert_eq!(row.workers[0].packets, 9, "{row:?}");
    assert!((1..=2).contains(&row.workers[0].wakeups), "{row:?}");
    let mut arrived = Vec::new();
    until("the others", || {
        work(&mut workers[1]);
        lanes[1].receive(|frame| arrived.push(number_of(frame).unwrap().0));
        arrived.len() == 9
    });
    assert_eq!(arrived, [0, 1, 2, 3, 4, 5, 6, 8, 9]);
    drop(poller);
    workers.iter_mut().for_each(work);
    drop_all(assembly, workers, lanes);
}
