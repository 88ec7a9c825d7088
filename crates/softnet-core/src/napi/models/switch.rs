//! An instance is switched from one home to another while the first polls it.
//!
//! No two poll at once; the first never touches the body after the switch, not even when a timer that it armed, or a ring
//! of the doorbell that it had unmasked, comes late; and nothing is stranded.

use loom::thread;

use super::home::World;
use crate::sync::{Mutant, check, must_fail, mutated};

/// What the housekeeper does, as `NapiInstance::evict` and `attach` in the crate `softnet`.
fn housekeeper(world: &World) {
    world.napi.disable();
    let mut disabled = loop {
        if let Some(disabled) = world.napi.try_disable() {
            break disabled;
        }
        thread::yield_now();
    };
    let number = world.homes[0].list(false);
    while !mutated(Mutant::NotForgotten) && !world.homes[0].has_seen(number) {
        thread::yield_now();
    }
    world.mask();
    disabled.body().rx.home = 1;
    world.homes[1].list(true);
    let scheduled = disabled.enable();
    if !mutated(Mutant::EnabledUnpolled) {
        world.homes[1].schedule(scheduled);
    }
}

/// A packet comes before, while or after the instance is switched; home 0 owns it at first, and finds `packets`.
fn switch(deferral: bool, packets: u32) {
    let world = World::new(deferral, packets);
    let old = world.spawn(|world| world.run(0));
    let packets = world.spawn(|world| {
        world.arrive();
        world.homes[1].stop();
    });
    housekeeper(&world);
    world.homes[0].stop();
    world.run(1);
    packets.join().unwrap();
    old.join().unwrap();
    world.at_rest(1);
}

/// The first home unmasks the doorbell, unless the disable comes before.
fn polled() {
    switch(false, 0);
}

/// Its poll brings a packet and arms the timer.
fn deferred() {
    switch(true, 1);
}

#[test]
fn a_switch_strands_nothing() {
    // Every fault shows with one preemption; two take half a minute, and the next model has them.
    check(1, polled);
    for m in [
        Mutant::NotForgotten,
        Mutant::EnabledUnpolled,
        Mutant::NoSecondLook,
        Mutant::AcquireNotAtomic,
        Mutant::WakeNoFence,
    ] {
        must_fail(m, 1, polled);
    }
}

#[test]
fn a_switch_outlives_timers() {
    check(2, deferred);
    for m in [Mutant::NotForgotten, Mutant::EnabledUnpolled] {
        must_fail(m, 2, deferred);
    }
}
