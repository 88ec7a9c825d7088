//! Workers sleep when there is nothing to do, and no wake-up is lost.

use std::sync::Arc;
use std::time::Duration;

use softnet::internals::{Input, NapiInstance, NapiTimer, RxHandler, StackInner};
use softnet_core::napi::Napi;
use softnet_core::sync::Ordering;

use super::frames::{Rng, host, numbered};
use super::world::{Setup, of_port, ping, until, wire};

fn all_sleep(shared: &StackInner) -> bool {
    shared.workers.iter().all(|worker| worker.is_sleeping())
}

/// Sleeps, and attempts that found work at the last look.
fn attempts(shared: &StackInner) -> u64 {
    shared.workers.iter().map(|w| w.thread.stats.sleeps.get() + w.thread.stats.rechecks.get()).sum()
}

#[test]
fn no_wake_up_is_lost() {
    let (world, mut lanes) = Setup { ports: &[3, 2], workers: 2, known: true, ..Setup::default() }.start();
    let mut sinks = of_port(&mut lanes, 1);
    let mut rng = Rng(1);
    let mut slept = 0;
    let before = attempts(&world.shared);
    for number in 0..6000 {
        match rng.below(3) {
            0 => {
                until("sleep", || all_sleep(&world.shared));
                slept += 1;
            }
            // Meet the worker anywhere on its way to sleep.
            1 => (0..rng.below(3000)).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
        let lane = rng.below(lanes.len());
        ping(&mut lanes[lane], &mut sinks, number);
    }
    assert!(attempts(&world.shared) - before >= slept);
    lanes.append(&mut sinks);
    world.end(lanes);
}

/// A worker that was woken once too often may be woken once; one that does not find back to sleep burns a core.
#[test]
fn idle_workers_stay_asleep() {
    let (world, mut lanes) = Setup { ports: &[4, 4], workers: 2, known: true, ..Setup::default() }.start();
    for round in 0..100 {
        for lane in &mut lanes {
            let to = host(1 - lane.port);
            lane.send(&[numbered(lane.port, to, 0, round)]);
        }
        lanes.iter_mut().for_each(|lane| _ = lane.receive(|_| ()));
        until("sleep", || all_sleep(&world.shared));
    }
    until("rest", || {
        let before = attempts(&world.shared);
        std::thread::sleep(Duration::from_millis(20));
        attempts(&world.shared) == before && all_sleep(&world.shared)
    });
    world.end(lanes);
}

/// An instance that is added to a worker while that is busy is polled, its doorbell works, and it can be removed again.
#[test]
fn instances_come_and_go_while_their_worker_is_busy() {
    let (world, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    let worker = &world.shared.workers[0];
    let mut ctx = world.shared.context();
    let mut busy = of_port(&mut lanes, 0).remove(0);
    let mut kept_busy = 0;
    for round in 0..1000 {
        let (mut near, mut far) = wire(&world.shared.region, 7, 1);
        let mut lane = far.remove(0);
        let rx = near.rx.remove(0);
        let (doorbell, stats) = (rx.doorbell(), rx.stats());
        let rx = Input::new(&world.shared.region, rx);
        let backlog = rx.backlog().clone();
        let (napi, guard) = Napi::new("extra", 7, 0, Some(rx));
        // There is no such device to patch to: packets are dropped.
        let instance = Arc::new(NapiInstance::new(
            napi,
            doorbell,
            backlog,
            NapiTimer::new().unwrap(),
            0,
            RxHandler::Patch(u16::MAX),
            0,
        ));
        kept_busy += busy.send(&vec![numbered(0, host(1), 0, round); 8]) as u64;
        worker.add(instance.clone());
        worker.schedule(guard.enable());
        until("the doorbell is unmasked", || instance.armed.load(Ordering::Relaxed));
        lane.send(&[numbered(7, host(1), 0, round)]);
        until("the packet is polled", || stats.packets.get() == 1);
        // No device of the stack received it.
        ctx.originate();
        instance.napi.disable();
        let mut disabled = None;
        until("disabled", || {
            disabled = instance.napi.try_disable();
            disabled.is_some()
        });
        let number = worker.remove(instance.napi.id);
        until("forgotten", || worker.has_seen(number));
        disabled.unwrap().body().rx.take().unwrap().close(&mut ctx);
        near.tx.remove(0).close(&mut ctx);
        lane.close();
        while lanes[0].receive(|_| ()) > 0 {}
    }
    world.settle(kept_busy);
    lanes.push(busy);
    world.end(lanes);
}
