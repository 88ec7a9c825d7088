//! Applications that poll, on threads of their own, beside the stack's: they hang, they are killed, they compete, the stack
//! ends under them, and no packet is stranded.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use softnet::config::Context;
use softnet::control::{Set, Target};
use softnet::{Introspect, NapiPoller, PacketFilter, PollerError, PollerParams};
use softnet_core::skb::Batch;

use super::frames::{Rng, host, number_of, numbered, to_port};
use super::poller::{PORT, PREFER, mem0, numbers, set_knobs};
use super::world::{Lane, Setup, World, of_port, until};

/// To fail instead of to hang.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));
const MS: u64 = 1_000_000;
const US: u64 = 1000;

fn poller(world: &World, port: u16, params: PollerParams) -> NapiPoller {
    NapiPoller::new(&world.handle(), mem0(&world.view).id, "test", PacketFilter::UdpPort(port), params)
        .unwrap()
}

/// A stack with one queue from the host at port 0 (the lane), and one to the host at port 1 (the sink).
fn start() -> (World, Lane, Lane) {
    let setup = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() };
    // For two applications with long queues.
    let (world, mut lanes) = setup.start_with(|config| config.stack.frames = 32768);
    let sink = of_port(&mut lanes, 1).remove(0);
    until("the first poll", || mem0(&world.view).doorbell == "unmasked");
    (world, lanes.remove(0), sink)
}

fn send(lane: &mut Lane, port: u16, number: u32) {
    assert_eq!(lane.send(&[to_port(numbered(0, host(1), 0, number), port)]), 1);
}

fn arrives(sink: &mut Lane, number: u32) {
    let mut got = None;
    until("a packet that is routed", || {
        sink.receive(|frame| got = number_of(frame));
        got.is_some()
    });
    assert_eq!(got, Some((0, number)));
}

/// Packets until one is handed over while the doorbell is masked: now the queue is suspended. (Not if a thread has just
/// been woken by the doorbell, and is about to poll.)
fn suspend(view: &Introspect, lane: &mut Lane, poller: &mut NapiPoller) {
    let (mut batch, mut number) = (Batch::new(), 0);
    until("suspended", || {
        send(lane, PORT, number);
        number += 1;
        let n = poller.wait(&mut batch, PATIENCE).unwrap();
        numbers(poller, &mut batch);
        until("sleep", || view.workers().iter().all(|thread| thread.state == "sleeping"));
        let row = mem0(view);
        assert_eq!(n, 1, "{row:?}");
        row.doorbell == "masked" && row.timer.is_some_and(|timer| timer.knob == "irq_suspend_timeout")
    });
}

/// It computes instead of waiting, for as long as it takes: what others are to get comes all the same, by the timer.
#[test]
fn others_need_not_wait_for_an_application_that_hangs() {
    let (world, mut lane, mut sink) = start();
    set_knobs(&world.view, 10, 100 * US, 50 * MS);
    let mut hung = poller(&world, PORT, PREFER);
    let mut other = poller(&world, PORT + 1, PollerParams::default());
    let mut batch = Batch::new();
    for context in [Context::Softirq, Context::Threaded, Context::Workqueue, Context::BusyPoll] {
        world.set(0, context);
        let rescues = mem0(&world.view).rescues;
        until("the timer frees the queue", || {
            if context != Context::BusyPoll {
                suspend(&world.view, &mut lane, &mut hung);
            }
            for number in 0..3 {
                send(&mut lane, PORT + 2, number);
                send(&mut lane, PORT + 1, number);
                assert_eq!(other.wait(&mut batch, PATIENCE).unwrap(), 1);
                assert_eq!(numbers(&mut other, &mut batch), [number]);
                arrives(&mut sink, number);
            }
            context == Context::BusyPoll || mem0(&world.view).rescues > rescues
        });
        // Back at last: what came for it waits.
        send(&mut lane, PORT, 99);
        assert_eq!(hung.wait(&mut batch, PATIENCE).unwrap(), 1);
        assert_eq!(numbers(&mut hung, &mut batch), [99]);
    }
    drop((hung, other));
    world.end(vec![lane, sink]);
}

/// A thread suspends the queue and ends, with its poller or without. Packets are routed all the same, and in the end the
/// doorbell is unmasked. Returns whether it took the timer.
fn kill(world: &World, lane: &mut Lane, sink: &mut Lane, killed: bool) -> bool {
    let rescues = mem0(&world.view).rescues;
    let dead = std::thread::scope(|scope| {
        let end = scope.spawn(|| {
            let mut poller = poller(world, PORT, PREFER);
            suspend(&world.view, lane, &mut poller);
            // What `mem::forget` leaves behind, but its memory can be looked for at the end.
            killed.then_some(poller)
        });
        end.join().unwrap()
    });
    for number in 0..3 {
        send(lane, PORT + 1, number);
        arrives(sink, number);
    }
    // Its own are no socket's, or wait for it till its queue is full.
    send(lane, PORT, 3);
    match killed {
        false => arrives(sink, 3),
        true => until("one more waits", || mem0(&world.view).applications[0].queued == 1),
    }
    until("unmasked", || mem0(&world.view).doorbell == "unmasked");
    let row = mem0(&world.view);
    assert_eq!(row.applications.len(), usize::from(killed), "{row:?}");
    drop(dead);
    row.rescues > rescues
}

#[test]
fn the_queue_of_an_application_that_is_killed_is_polled_and_unmasked_in_the_end() {
    let (world, mut lane, mut sink) = start();
    for context in [Context::Softirq, Context::Threaded, Context::Workqueue] {
        world.set(0, context);
        set_knobs(&world.view, 10, 100 * US, 50 * MS);
        until("the timer frees the queue", || kill(&world, &mut lane, &mut sink, true));
        // An orderly end needs no timer.
        set_knobs(&world.view, 10, 100 * US, 3_600_000 * MS);
        (0..10).for_each(|_| assert!(!kill(&world, &mut lane, &mut sink, false), "{context}"));
    }
    world.end(vec![lane, sink]);
}

/// One polls without end and gets nothing. What it finds for the other wakes that at once.
#[test]
fn the_thread_that_polls_wakes_the_others() {
    let (world, mut lane, sink) = start();
    let mut busy = poller(&world, PORT, PollerParams { busy_poll_usecs: i32::MAX as u32, ..PREFER });
    let mut other = poller(&world, PORT + 1, PREFER);
    std::thread::scope(|scope| {
        let end = scope.spawn(|| {
            let mut batch = Batch::new();
            assert_eq!(busy.wait(&mut batch, PATIENCE).unwrap(), 1);
            assert_eq!(numbers(&mut busy, &mut batch), [0]);
        });
        until("it polls", || mem0(&world.view).busy_polls == 1);
        let mut batch = Batch::new();
        let mut number = 0;
        let mut exchange = || {
            send(&mut lane, PORT + 1, number);
            assert_eq!(other.wait(&mut batch, PATIENCE).unwrap(), 1);
            assert_eq!(numbers(&mut other, &mut batch), [number]);
            number += 1;
        };
        (0..1000).for_each(|_| exchange());
        // Both may have it, for its owner lets go now and then to offer its CPU. One that finds it taken sleeps.
        until("the loser sleeps", || {
            exchange();
            let row = mem0(&world.view);
            row.busy_poll_lost > 0 && row.applications[1].sleeps > 0
        });
        send(&mut lane, PORT, 0);
        end.join().unwrap();
    });
    drop((busy, other));
    world.end(vec![lane, sink]);
}

/// A switch takes the instance from an application that polls without end, and the application is woken in its new context.
#[test]
fn an_application_that_polls_lets_go_for_a_switch() {
    let (world, mut lane, sink) = start();
    let mut busy = poller(&world, PORT, PollerParams { busy_poll_usecs: i32::MAX as u32, ..PREFER });
    for (number, context) in (0..).zip(Context::ALL.into_iter().cycle().skip(1).take(8)) {
        std::thread::scope(|scope| {
            let busy = &mut busy;
            let end = scope.spawn(move || {
                let mut batch = Batch::new();
                assert_eq!(busy.wait(&mut batch, PATIENCE).unwrap(), 1);
                assert_eq!(numbers(busy, &mut batch), [number]);
            });
            let polls = || mem0(&world.view).busy_polls + mem0(&world.view).busy_poll_lost;
            until("it polls", || polls() > u64::from(number));
            world.set(0, context);
            send(&mut lane, PORT, number);
            end.join().unwrap();
        });
    }
    drop(busy);
    world.end(vec![lane, sink]);
}

/// A time-out is one of the whole call, of its polling too; and a call that only prefers returns as well.
#[test]
fn a_call_without_packets_returns() {
    let (world, lane, sink) = start();
    set_knobs(&world.view, 2, 50 * US, 20 * MS);
    for busy_poll_usecs in [0, i32::MAX as u32] {
        for prefer_busy_poll in [false, true] {
            let params = PollerParams { busy_poll_usecs, prefer_busy_poll, ..PREFER };
            let mut poller = poller(&world, PORT, params);
            for _ in 0..10 {
                let n = poller.wait(&mut Batch::new(), Some(Duration::from_millis(1))).unwrap();
                assert_eq!(n, 0);
            }
        }
    }
    world.end(vec![lane, sink]);
}

#[test]
fn applications_are_told_that_the_stack_stopped() {
    for params in
        [PREFER, PollerParams::default(), PollerParams { busy_poll_usecs: i32::MAX as u32, ..PREFER }]
    {
        let (mut world, mut lane, sink) = start();
        let mut poller = poller(&world, PORT, params);
        send(&mut lane, PORT, 0);
        std::thread::scope(|scope| {
            let poller = &mut poller;
            let end = scope.spawn(move || {
                let mut batch = Batch::new();
                assert_eq!(poller.wait(&mut batch, PATIENCE).unwrap(), 1);
                assert_eq!(numbers(poller, &mut batch), [0]);
                poller.wait(&mut batch, None).err()
            });
            until("it waits", || mem0(&world.view).applications[0].packets == 1);
            world.stop();
            let error = end.join().unwrap().expect("closed");
            assert!(matches!(&error, PollerError::Closed(name) if name == "mem0-0"), "{error}");
        });
        drop(poller);
        world.end(vec![lane, sink]);
    }
}

/// What an application does between two calls, at random.
fn live(poller: &mut NapiPoller, rng: &mut Rng, seen: &AtomicU32, over: &AtomicBool) {
    let mut batch = Batch::new();
    while !over.load(Ordering::Relaxed) {
        let timeout = Duration::from_micros([0, 20, 500, 5000][rng.below(4)]);
        poller.wait(&mut batch, Some(timeout)).unwrap();
        if let Some(last) = numbers(poller, &mut batch).last() {
            seen.store(last + 1, Ordering::Release);
        }
        match rng.below(20) {
            0 => std::thread::sleep(Duration::from_micros(rng.below(3000) as u64)),
            1 => {
                let busy_poll_usecs = [0, 0, 50, 2000][rng.below(4)];
                let (prefer_busy_poll, busy_poll_budget) = (rng.below(4) > 0, 1 + rng.below(64) as u16);
                let params =
                    PollerParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll, rx_queue_len: 4096 };
                poller.set_params(params).unwrap();
            }
            _ => {}
        }
    }
}

/// Packets one by one, each waited for, to two applications and past them, while knobs and contexts change at random: a
/// lost wake-up strands one.
#[test]
fn no_packet_is_stranded_whatever_changes() {
    const PACKETS: u32 = 3000;
    let (world, mut lane, mut sink) = start();
    let (over, seen) = (AtomicBool::new(false), [const { AtomicU32::new(0) }; 2]);
    let apps = [0, 1].map(|app| poller(&world, PORT + app, PREFER));
    std::thread::scope(|scope| {
        for ((mut poller, seen), seed) in apps.into_iter().zip(&seen).zip(11..) {
            let over = &over;
            scope.spawn(move || live(&mut poller, &mut Rng(seed), seen, over));
        }
        scope.spawn(|| {
            let (mut rng, id) = (Rng(5), mem0(&world.view).id);
            while !over.load(Ordering::Relaxed) {
                let (n, t, s) = (rng.below(5) as u64, [0, 20, 100, 500][rng.below(4)], rng.below(4) as u64);
                set_knobs(&world.view, n, t * US, s * 7 * MS);
                if rng.below(3) == 0 {
                    let threaded = Context::ALL[rng.below(4)];
                    // On a machine that is busy otherwise it may not be done in time, but it will be.
                    let _ = world.view.set(Set { target: Target::Napi(id), threaded });
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut rng = Rng(9);
        for number in 0..PACKETS {
            let to = rng.below(3);
            send(&mut lane, PORT + to as u16, number);
            match to {
                2 => arrives(&mut sink, number),
                app => until("an application has it", || seen[app].load(Ordering::Acquire) == number + 1),
            }
            if rng.below(8) == 0 {
                std::thread::sleep(Duration::from_micros(rng.below(1000) as u64));
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    let stats = world.view.stats();
    assert_eq!((stats.dropped, stats.received), (0, u64::from(PACKETS)));
    world.end(vec![lane, sink]);
}
