//! Instances are switched between polling contexts while packets pass: nothing is lost or reordered, no wake-up is
//! missed, no queue has two pollers, and threads go when nothing needs them any more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use softnet::Stack;
use softnet::config::Context;
use softnet::control::{Set, Target};
use softnet::internals::{Body, StackInner, spawn};

use super::frames::{Rng, host, number_of, numbered};
use super::world::{Lane, Setup, World, of_port, on_all, ping, until};

/// Packets that may be on the way while the wires are measured, so that no ring runs over.
const WINDOW: u64 = 256;

/// How long to go on: a few seconds, or as many as the environment says.
fn duration() -> Duration {
    let seconds = std::env::var("SOFTNET_SWITCH_SECONDS").ok().and_then(|s| s.parse().ok());
    Duration::from_secs(seconds.unwrap_or(3))
}

/// The name of a thread of this process, if there is one.
fn comm(tid: i32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/self/task/{tid}/comm")).ok().map(|s| s.trim_end().into())
}

/// Threads that poll, beside the workers.
fn others(world: &World) -> Vec<(String, i32)> {
    let rows = world.view.workers().into_iter().filter(|row| row.context != Context::Softirq);
    rows.map(|row| (row.name, row.tid)).collect()
}

/// How long the load goes on before any switch: long enough to know how much it may be.
const CAPACITY_TIME: Duration = Duration::from_millis(300);

/// What sources and sinks tell each other.
#[derive(Default)]
struct Load {
    /// Accepted by the wires.
    sent: AtomicU64,
    /// Taken from the wires at the far side.
    arrived: AtomicU64,
    /// Packets a second; 0: as many as arrive.
    rate: AtomicU64,
    over: AtomicBool,
    all_sent: AtomicBool,
}

const QUEUES: usize = 4;
const FLOWS: u32 = 32;

impl Load {
    fn on_the_way(&self) -> u64 {
        self.sent.load(Ordering::Relaxed) - self.arrived.load(Ordering::Acquire)
    }

    /// Sends the flows of a lane: at first as much as the window has room for; then, open, what is due by the clock. What
    /// finds the wire full is skipped.
    fn offer(&self, lane: &mut Lane) {
        let flows: Vec<u32> = (0..FLOWS).filter(|f| *f as usize % QUEUES == lane.queue).collect();
        let (mut number, mut due, mut from) = (0, 0.0, Instant::now());
        while !self.over.load(Ordering::Relaxed) {
            let rate = self.rate.load(Ordering::Relaxed) as f64 / QUEUES as f64;
            let since = from.elapsed();
            from += since;
            if rate == 0.0 {
                // What is lost once the load is open stays on the way for ever.
                let open = || self.rate.load(Ordering::Relaxed) > 0;
                until("room", || open() || self.on_the_way() <= WINDOW / 2);
                due = flows.len() as f64;
            } else {
                // A thread that was away for long does not catch up all at once.
                due = (due + rate * since.as_secs_f64()).min(WINDOW as f64);
            }
            while due >= flows.len() as f64 {
                due -= flows.len() as f64;
                let frames: Vec<_> = flows.iter().map(|f| numbered(0, host(1), *f, number)).collect();
                // Before they are on their way, lest more arrive than were sent.
                self.sent.fetch_add(frames.len() as u64, Ordering::Relaxed);
                let refused = frames.len() - lane.send(&frames);
                self.sent.fetch_sub(refused as u64, Ordering::Relaxed);
                number += 1;
            }
            if rate > 0.0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// Takes what arrives at a lane; no flow may go back. `lost`: what softnet says it dropped.
    fn take(&self, lane: &mut Lane, lost: impl Fn() -> u64) {
        let mut last = [None; FLOWS as usize];
        let mut give_up = None;
        loop {
            let last_look = self.all_sent.load(Ordering::Acquire);
            let n = lane.receive(|frame| {
                let (flow, number) = number_of(frame).expect("nothing else is sent");
                let before = last[flow as usize].replace(number);
                assert!(before < Some(number), "flow {flow}: {before:?}, then {number}");
            });
            self.arrived.fetch_add(n as u64, Ordering::Release);
            if last_look && n == 0 {
                if self.on_the_way() == lost() {
                    return;
                }
                let give_up = *give_up.get_or_insert_with(|| Instant::now() + Duration::from_secs(30));
                assert!(Instant::now() < give_up, "{} are missing, {} dropped", self.on_the_way(), lost());
            }
            if n == 0 {
                std::thread::yield_now();
            }
        }
    }
}

/// Each millisecond another context, of a device or of a queue, under an open load of 70 % of what passes at most.
#[test]
fn switching_under_traffic_loses_and_reorders_nothing() {
    let (world, mut sources) =
        Setup { ports: &[QUEUES, 2], workers: 2, known: true, ..Setup::default() }.start();
    let sinks = of_port(&mut sources, 1);
    let load = Load::default();
    let lost = || world.view.stats().dropped;
    let lanes = std::thread::scope(|scope| {
        let sources = scope.spawn(|| {
            let lanes = on_all(sources, |lane| load.offer(lane));
            load.all_sent.store(true, Ordering::Release);
            lanes
        });
        let sinks = scope.spawn(|| on_all(sinks, |lane| load.take(lane, lost)));
        std::thread::sleep(CAPACITY_TIME);
        let capacity = load.arrived.load(Ordering::Relaxed) as f64 / CAPACITY_TIME.as_secs_f64();
        load.rate.store((0.7 * capacity).max(1000.0) as u64, Ordering::Relaxed);
        let (mut rng, start) = (Rng(7), Instant::now());
        let ids: Vec<u32> = world.view.napis().iter().map(|row| row.id).collect();
        while start.elapsed() < duration() {
            let before = load.arrived.load(Ordering::Relaxed);
            let threaded = Context::ALL[rng.below(4)];
            match rng.below(3) {
                0 => _ = world.set(rng.below(2), threaded),
                _ => {
                    let target = Target::Napi(ids[rng.below(ids.len())]);
                    let rows = world.view.set(Set { target, threaded }).unwrap();
                    assert_eq!((rows.len(), rows[0].context), (1, threaded));
                }
            }
            std::thread::sleep(Duration::from_millis(1));
            // Now and then a rest, so that the next one is sure to switch what works.
            if rng.below(64) == 0 {
                until("packets pass", || load.arrived.load(Ordering::Relaxed) > before + 2 * WINDOW);
            }
        }
        load.over.store(true, Ordering::Relaxed);
        [sources.join().unwrap(), sinks.join().unwrap()].into_iter().flatten().collect()
    });
    // Lost is at most what a full TX queue had no room for, and each such packet is counted.
    let drops = world.view.drops();
    let full = |reason: &str| matches!(reason, "qdisc_overlimit" | "qdisc_burst_drop");
    assert!(drops.iter().all(|row| full(&row.reason)), "{drops:?}");
    let stats = world.view.stats();
    let (sent, arrived) = (load.sent.into_inner(), load.arrived.into_inner());
    assert_eq!((stats.received, stats.transmitted, stats.dropped), (sent, arrived, sent - arrived));
    world.set(0, Context::Softirq);
    world.set(1, Context::Softirq);
    assert_eq!(others(&world), []);
    // Contexts that ended are kept as one.
    drop(world.shared.context());
    assert!(world.shared.contexts().len() < 16);
    world.end(lanes);
}

#[test]
fn threads_have_names_and_end_with_their_mode() {
    let (world, lanes) = Setup { ports: &[2, 1], workers: 2, known: true, ..Setup::default() }.start();
    let mut before = Vec::new();
    for threaded in [Context::Threaded, Context::BusyPoll, Context::Workqueue, Context::Softirq] {
        let rows = world.set(0, threaded);
        assert!(rows.len() == 2 && rows.iter().all(|row| row.context == threaded));
        let threads = others(&world);
        for row in &rows {
            let name = match threaded {
                Context::Softirq => format!("softnet/{}", row.worker),
                Context::Workqueue => "napi-wq".into(),
                _ => format!("napi/mem0-{}", row.id),
            };
            assert_eq!(row.thread, name);
            assert!(row.tid == 0 || comm(row.tid).as_deref() == Some(&name));
        }
        assert!(threads.iter().all(|(name, tid)| comm(*tid).as_deref() == Some(name)), "{threads:?}");
        let cpus = softnet::config::available_cpus().len();
        let expected = [0, 2, cpus, 2][threaded as usize];
        assert_eq!(threads.len(), expected);
        for (name, tid) in std::mem::replace(&mut before, threads) {
            assert!(comm(tid) != Some(name), "it still runs");
        }
    }
    // One queue for itself; then the device overrides it.
    let id = world.view.napis()[1].id;
    world.view.set(Set { target: Target::Napi(id), threaded: Context::Workqueue }).unwrap();
    let contexts = || world.view.napis().iter().map(|row| row.context).collect::<Vec<_>>();
    assert_eq!(contexts(), [Context::Softirq, Context::Workqueue, Context::Softirq]);
    world.set(0, Context::Threaded);
    assert_eq!(contexts(), [Context::Threaded, Context::Threaded, Context::Softirq]);
    world.end(lanes);
}

fn all_sleep(shared: &StackInner) -> bool {
    shared.threads().iter().all(|thread| thread.asleep.load(Ordering::Relaxed))
}

#[test]
fn no_wake_up_is_lost_in_any_context() {
    let (world, mut lanes) = Setup { ports: &[3, 2], workers: 2, known: true, ..Setup::default() }.start();
    let mut sinks = of_port(&mut lanes, 1);
    let mut rng = Rng(3);
    for threaded in [Context::Threaded, Context::Workqueue, Context::BusyPoll, Context::Softirq] {
        world.set(0, threaded);
        for number in 0..2000 {
            match rng.below(3) {
                0 if threaded != Context::BusyPoll => until("sleep", || all_sleep(&world.shared)),
                // Meet the thread anywhere on its way to sleep.
                1 => (0..rng.below(3000)).for_each(|_| std::hint::spin_loop()),
                _ => {}
            }
            let lane = rng.below(lanes.len());
            ping(&mut lanes[lane], &mut sinks, number);
        }
    }
    lanes.append(&mut sinks);
    world.end(lanes);
}

/// More busy queues than threads: each gets its turn.
#[test]
fn a_saturated_pool_serves_all() {
    let (world, mut lanes) = Setup { ports: &[6, 1], workers: 1, known: true, ..Setup::default() }.start();
    let mut sink = of_port(&mut lanes, 1).remove(0);
    world.set(0, Context::Workqueue);
    let over = AtomicBool::new(false);
    let mut lanes = std::thread::scope(|scope| {
        let sources = scope.spawn(|| {
            on_all(lanes, |lane| {
                let frames: Vec<_> = (0..64).map(|n| numbered(0, host(1), lane.queue as u32, n)).collect();
                while !over.load(Ordering::Relaxed) {
                    lane.send(&frames);
                    std::thread::yield_now();
                }
            })
        });
        let mut seen = [0u64; 6];
        until("packets of each queue", || {
            sink.receive(|frame| seen[number_of(frame).unwrap().0 as usize] += 1);
            seen.iter().all(|n| *n > 5000)
        });
        over.store(true, Ordering::Relaxed);
        sources.join().unwrap()
    });
    lanes.push(sink);
    world.end(lanes);
}

#[test]
fn a_thread_that_cannot_be_made_changes_nothing() {
    let (mut assembly, lanes) =
        Setup { ports: &[4, 1], workers: 1, known: true, ..Setup::default() }.assemble(Context::Threaded);
    let (shared, view) = (assembly.shared.clone(), assembly.view.clone());
    let names = || -> Vec<_> { shared.threads().iter().map(|thread| thread.name.clone()).collect() };
    let before = names();
    assert_eq!(before.len(), 1 + 5, "a worker, and a thread for each queue");
    let housekeeper = assembly.housekeeper().unwrap();
    let target = || Target::Dev("mem0".into());
    for (threaded, good) in [(Context::BusyPoll, 2), (Context::BusyPoll, 0), (Context::Workqueue, 0)] {
        let mut left: u32 = good;
        let mut failing = |name: &str, body: Body| {
            left =
                left.checked_sub(1).ok_or(std::io::ErrorKind::OutOfMemory).map_err(std::io::Error::from)?;
            spawn(name, body)
        };
        let error =
            housekeeper.set(&Set { target: target(), threaded }, &mut failing).unwrap_err().to_string();
        assert!(error.starts_with("nothing was changed: "), "{error}");
        assert_eq!(names(), before);
        assert!(view.napis().iter().all(|row| row.context == Context::Threaded));
    }
    // What is so already needs no thread.
    let mut never = |_: &str, _: Body| panic!("made a thread");
    housekeeper.set(&Set { target: target(), threaded: Context::Threaded }, &mut never).unwrap();
    housekeeper.set(&Set { target: target(), threaded: Context::BusyPoll }, &mut spawn).unwrap();
    assert!(view.napis()[..4].iter().all(|row| row.context == Context::BusyPoll));
    World::of(Stack::run(assembly).unwrap()).end(lanes);
}

#[test]
fn what_is_not_there_is_told_with_what_is() {
    let (world, lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    let error = |target| world.view.set(Set { target, threaded: Context::Threaded }).unwrap_err().to_string();
    assert_eq!(error(Target::Dev("eth9".into())), "no device \"eth9\"; there are: mem0, mem1");
    let ids: Vec<u32> = world.view.napis().iter().map(|row| row.id).collect();
    let expected = format!("no NAPI instance 7; there are: {} (mem0-0), {} (mem1-0)", ids[0], ids[1]);
    assert_eq!(error(Target::Napi(7)), expected);
    let (view, target) = (world.view.clone(), Target::Dev("mem0".into()));
    world.end(lanes);
    let error = view.set(Set { target, threaded: Context::Threaded }).unwrap_err().to_string();
    assert_eq!(error, "the instance is stopping");
}
