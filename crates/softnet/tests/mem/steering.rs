//! Packets that come by one RX queue are processed by several workers: handed off to one, or spread over several. Each flow
//! stays in order, whatever is changed while packets come, and each packet is counted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use softnet::config::{Config, Context, PerQueue};
use softnet::control::show::SteeringRow;
use softnet::control::{SetSteering, Target};

use super::frames::{Rng, host, number_of, numbered, to_port};
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

/// Sends all flows by `source`, packet by packet in turn, until `over`, and checks at `sink` that nothing is lost or overtaken.
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
    SetSteering { target: Target::Dev("mem0".into()), processing_cpu, rps_cpus, rps_flow_cnt }
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

/// Each millisecond another plan or another context, of which some steer from threads that are no workers.
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
    assert!(sent > 1000 && world.view.drops() == [], "{sent}: {:?}", world.view.drops());
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
    assert_eq!((&row(&world).mode[..], row(&world).processing_cpu), ("none", None));
    let rows = world.view.set_steering(set([None, Some("1")], Some(16))).unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(
        rows[0].warning.as_deref(),
        Some("rps_flow_cnt has no effect while rps_sock_flow_entries of the stack is 0")
    );
    world.end(lanes);
}
