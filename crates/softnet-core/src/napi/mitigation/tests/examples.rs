//! Each transition between IRQ mode, deferred and suspended, and the sequences they make.

use std::num::NonZeroU64;

use super::*;
use crate::SoftnetData;
use crate::gro::{GroParams, GroStats};
use crate::napi::Gro;
use crate::skb::{CacheSizes, HeapMemory, Region, Store};

/// N = 2, T = 20 µs: one interrupt, three polls, masked for N × T after the last work; a packet meanwhile starts over.
#[test]
fn deferral_example() {
    let mut world = World::new(2, 20 * US, 0);
    world.interrupt(5);
    assert_eq!(world.state(), (false, Some(20 * US)));
    world.run_to(20 * US);
    assert_eq!(world.state(), (false, Some(40 * US)));
    world.run_to(MS);
    assert_eq!(world.polls(), [(0, 5, 0), (20 * US, 0, 1), (40 * US, 0, 0)]);
    assert_eq!((world.state(), world.env.rung), ((true, None), 1));

    let mut world = World::new(2, 20 * US, 0);
    world.interrupt(5);
    world.run_to(25 * US);
    world.interrupt(1);
    assert_eq!(world.polls().len(), 2, "the doorbell is masked");
    world.run_to(79 * US);
    assert!(!world.state().0);
    world.run_to(MS);
    assert_eq!(world.polls(), [(40 * US, 1, 0), (60 * US, 0, 1), (80 * US, 0, 0)]);
    assert_eq!((world.state(), world.env.rung), ((true, None), 1));
}

fn suspended() -> World {
    let mut world = World::new(100, 20 * US, 20 * MS);
    assert_eq!(world.epoll_wait(3), 3);
    assert_eq!(world.state(), (false, Some(20 * MS)));
    world
}

/// N = 100, T = 20 µs, S = 20 ms: neither polls nor interrupts while the application works; when it runs dry, deferral.
#[test]
fn suspension_example() {
    let mut world = suspended();
    world.run_to(3 * MS);
    world.interrupt(40);
    assert_eq!((world.polls(), world.env.rung), (vec![], 1), "the one that came in IRQ mode");
    assert_eq!(world.epoll_wait(0), 40);
    assert_eq!(world.state(), (false, Some(23 * MS)), "S starts over");
    world.run_to(4 * MS);
    assert_eq!(world.epoll_wait(0), 0);
    assert_eq!(world.state(), (false, Some(4 * MS + 20 * US)));
    world.run_to(4 * MS + 50 * US);
    world.interrupt(1);
    world.run_to(4 * MS + 60 * US);
    let start = 4 * MS;
    let expected =
        [(0, 0, 100), (20, 0, 99), (40, 0, 98), (60, 1, 97)].map(|(t, w, c)| (start + t * US, w, c));
    assert_eq!(world.polls(), expected);
    assert_eq!(world.epoll_wait(0), 1, "what the timer's poll found is ready");
    assert_eq!(world.state(), (false, Some(start + 60 * US + 20 * MS)), "suspended again");
    assert_eq!(world.env.rung, 1);

    let mut world = suspended();
    world.run_to(10 * MS);
    world.interrupt(7);
    world.run_to(20 * MS + 70 * US);
    let expected =
        [(0, 7, 100), (20, 0, 99), (40, 0, 98), (60, 0, 97)].map(|(t, w, c)| (20 * MS + t * US, w, c));
    assert_eq!(world.polls(), expected, "the application computes for 30 ms");
    assert_eq!(world.epoll_wait(0), 7);
    assert_eq!(world.state(), (false, Some(40 * MS + 70 * US)));
}

#[test]
fn a_timeout_or_a_counter_alone_masks_nothing() {
    for (n, t) in [(0, 20 * US), (3, 0), (0, 0)] {
        let mut world = World::new(n, t, 20 * MS);
        for round in 1..5 {
            world.interrupt(2);
            assert_eq!((world.state(), world.env.rung), ((true, None), round));
            world.run_to(u64::from(round) * MS);
        }
        let left: Vec<_> = world.polls().into_iter().map(|(_, work, left)| (work, left)).collect();
        assert_eq!(left.last(), Some(&(2, n.saturating_sub(1) as u32)), "the counter runs all the same");

        // A poller's stop does not keep it masked either.
        world.env.ready = 0;
        let poller = world.napi.busy_poll(true).expect("idle");
        world.arrive(1);
        assert!(!world.state().0);
        world.stop(poller, true);
        assert_eq!((world.state(), world.env.ready), ((true, None), 1), "one more poll, which unmasks");
    }
}

#[test]
fn an_idle_link_is_unmasked_and_one_interrupt_restarts_the_sequence() {
    let mut world = World::new(3, 10 * US, 0);
    for round in 1..4 {
        world.interrupt(1);
        world.run_to(u64::from(round) * MS);
        assert_eq!((world.polls().len(), world.env.rung), (4, round));
        assert_eq!(world.state(), (true, None));
    }
}

/// Every way out of "suspended", and that each leads to deferral.
#[test]
fn leaving_suspension() {
    let deferred = |world: &World| world.state() == (false, Some(world.env.now + 20 * US));

    let mut world = suspended();
    world.run_to(MS);
    world.leave(); // runs dry, sleeps; or is destroyed
    assert!(deferred(&world));
    assert_eq!(world.polls(), [(MS, 0, 100)]);
    world.run_to(10 * MS);
    assert_eq!((world.state(), world.polls().len()), ((true, None), 100), "then IRQ mode");

    let mut world = suspended(); // does not own the instance when it runs dry
    world.run_to(MS);
    let other = world.napi.busy_poll(true).expect("free");
    assert_eq!(world.epoll_wait(0), 0);
    assert_eq!(world.napi.state().to_string(), "sched|missed|in-busy-poll|prefer-busy-poll");
    world.stop(other, true);
    assert!(deferred(&world));
    assert_eq!(world.napi.state().to_string(), "prefer-busy-poll");

    let mut world = suspended(); // S expires
    let poller = world.napi.busy_poll(true).expect("free");
    assert!(world.napi.busy_poll(true).is_none());
    world.stop(poller, true);
    world.env.ready = 1;
    assert_eq!(world.hand_over(), 1);
    assert!(world.napi.state().prefers_busy_poll());
    world.arrive(70);
    world.fire();
    assert!(
        !world.napi.state().prefers_busy_poll(),
        "the worker is not to give way to a poller that failed to come"
    );
    world.softirq();
    assert!(deferred(&world));
    assert_eq!(world.polls().iter().map(|p| p.1).collect::<Vec<_>>(), [64, 6]);
}

#[test]
fn zeroing_the_suspend_timeout_leaves_the_armed_timer() {
    let mut world = suspended();
    world.run_to(MS);
    world.napi.mitigation.set_irq_suspend_timeout(0);
    world.leave();
    assert_eq!(world.state(), (false, Some(20 * MS)), "no resumption");
    assert!(world.polls().is_empty());
    world.env.ready = 1;
    assert_eq!(world.hand_over(), 1);
    assert_eq!(world.state(), (false, Some(20 * MS)), "no new suspension");
    world.run_to(20 * MS);
    assert_eq!(world.state(), (false, Some(20 * MS + 20 * US)), "rescued");
}

#[test]
fn only_deliveries_suspend() {
    let mut world = World::new(100, 20 * US, 20 * MS);
    world.interrupt(1);
    assert_eq!(world.hand_over(), 1);
    assert_eq!(world.state(), (false, Some(20 * MS)));
    world.run_to(MS);
    assert_eq!(world.hand_over(), 0);
    assert_eq!(world.state(), (false, Some(20 * MS)), "an empty hand-over changes nothing");
}

/// Disabled in IRQ mode, deferred, suspended, and during a busy poll: at once, or when the owner has stopped.
#[test]
fn disable_in_each_state() {
    let mut irq_mode = World::new(100, 20 * US, 20 * MS);
    assert!(irq_mode.try_disable());
    let mut deferred = World::new(100, 20 * US, 20 * MS);
    deferred.interrupt(1);
    assert!(!deferred.state().0 && deferred.try_disable());
    let mut asleep = suspended();
    assert!(asleep.try_disable());
    let mut polled = suspended();
    let poller = polled.napi.busy_poll(true).expect("free");
    assert!(!polled.try_disable() && poller.disable_pending());
    assert!(polled.napi.busy_poll(true).is_none() && !polled.napi.state().prefers_busy_poll());
    polled.stop(poller, true);
    assert!(polled.napi.busy_poll(true).is_none(), "the disable comes first");
    assert!(polled.try_disable());
    for mut world in [irq_mode, deferred, asleep, polled] {
        world.polls();
        assert!(world.napi.busy_poll(true).is_none() && world.napi.watchdog().is_none());
        assert!(world.napi.resume().is_none() && world.napi.suspend(1).is_none());
        assert!(world.napi.state().is_disabled());
        world.interrupt(2);
        let disabled = world.disabled.take().expect("disabled");
        assert!(world.polls().is_empty());
        world.rx.schedule(disabled.enable());
        world.softirq();
        assert_eq!((world.env.ring, world.state()), (0, (false, Some(world.env.now + 20 * US))));
    }
}

/// A worker that receives without end gives way to a poller that asks, whether or not deferral is configured.
#[test]
fn a_saturated_worker_gives_way() {
    for (n, t) in [(100, 20 * US), (0, 0), (0, 20 * US)] {
        let mut world = World::new(n, t, 20 * MS);
        world.env.flood = true;
        world.arrive(1);
        for _ in 0..3 {
            world.rx.run(0, &mut world.env);
        }
        assert!(world.napi.busy_poll(false).is_none());
        world.rx.run(0, &mut world.env);
        assert!(!world.rx.is_idle(), "no preference, no way given");
        assert!(world.napi.busy_poll(true).is_none());
        world.rx.run(0, &mut world.env);
        assert!(!world.napi.state().prefers_busy_poll());
        world.check();
        assert_eq!((world.env.unmasked, world.polls().len()), (false, 5));
        if n > 0 {
            assert!(world.rx.is_idle());
            let poller = world.napi.busy_poll(true).expect("it gave way");
            world.stop(poller, true);
        } else {
            assert!(!world.rx.is_idle(), "no timer: scheduled again");
        }
        world.env.flood = false;
        world.env.ring = 0;
        world.run_to(30 * MS);
        world.softirq();
        assert!(world.state().0);
    }
}

/// Holds whatever it gets.
struct Hold(Batch);

impl Gro for Hold {
    fn receive_frames(
        &mut self,
        _: &mut SoftnetData,
        _: &GroStats,
        _: &GroParams,
        _: &mut crate::skb::FrameBatch,
        _: &mut Batch,
    ) {
    }
    fn receive(&mut self, _: &mut SoftnetData, _: &GroStats, _: &GroParams, batch: &mut Batch) {
        self.0.append(batch);
    }

    fn more(&mut self, _: &mut Batch) {}

    fn tick(&mut self, _: u64) {}

    fn flush(&mut self, _: &GroStats, out: &mut Batch, old_only: bool) {
        if !old_only {
            out.append(&mut self.0);
        }
    }

    fn held(&self) -> usize {
        self.0.len()
    }
}

/// A poller that stops gives up what GRO holds while it still is the owner.
#[test]
fn gro_is_flushed_before_the_release() {
    let memory = Box::new(HeapMemory::new(Region::bytes(64, 64)));
    let mut store = Store::new(Region::new(memory, 64, 64).unwrap(), CacheSizes::default());
    let world = World::new(100, 20 * US, 20 * MS);
    let mut poller = world.napi.busy_poll(true).expect("idle");
    let body = poller.parts().1;
    let mut held = Hold(Batch::new());
    (0..3).for_each(|_| held.0.push(store.alloc_skb().unwrap()).unwrap());
    body.gro = Some(Box::new(held));
    poller.flush_gro(true, |_, _| panic!("none is old"));
    let mut flushed = 0;
    let mut armed = false;
    let stopped = poller.stop(
        true,
        |info, batch| {
            assert!(world.napi.busy_poll(true).is_none(), "released before {} was flushed", info.name);
            flushed += batch.len();
            batch.drain().for_each(|skb| store.free_skb(skb));
        },
        |_| armed = true,
    );
    assert!(matches!(stopped, Completion::Released(_)) && armed);
    assert_eq!(flushed, 3);
}

/// A poller that loses its CPU for so long, between arming and releasing, that the timer fires: it is spent, so the poller
/// stays the owner, polls once more, and arms again. A timer that fired before that is of no interest.
#[test]
fn a_timer_that_fires_before_the_release_is_noticed() {
    let world = World::new(100, 20 * US, 20 * MS);
    let poller = world.napi.busy_poll(true).expect("idle");
    assert!(world.napi.watchdog().is_none());
    let stopped = poller.stop(true, |_, _| (), |_| assert!(world.napi.watchdog().is_none()));
    let Completion::Again(mut napi) = stopped else { panic!("masked, no timer, and no thread owns it") };
    assert_eq!(world.napi.state().to_string(), "sched");
    for spent in [true, false] {
        let apply = |timer: Option<NonZeroU64>, unmask: bool| {
            assert!(timer.is_some() && !unmask);
            assert!(!spent || world.napi.watchdog().is_none());
            true
        };
        match napi.complete_applied(0, |_, _| (), apply) {
            Completion::Again(again) if spent => napi = again,
            Completion::Released(_) if !spent => return,
            _ => panic!("spent: {spent}"),
        }
    }
}
