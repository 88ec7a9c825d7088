//! An application's busy poller against the instance's own thread: one of them polls at a time, the other sleeps and is
//! woken; the poller may leave or die at any point, and the thread polls what comes then.

use super::home::{Rx, World};
use crate::napi::{BusyPolling, Completion};
use crate::sync::{Mutant, Ordering, check, must_fail, mutated};

const PACKETS: u32 = 1;

/// How an application ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// It has received all packets, and resumes.
    Leaves,
    /// It has stopped, and never comes back to suspend or to resume.
    DiesStopped,
    /// It has suspended, and never comes back.
    DiesSuspended,
    /// It owns the instance; what is left of it schedules the instance.
    DiesPolling,
}

/// An application that waits for packets, as [`Napi`](crate::napi::Napi) wants it.
fn application(world: &World, end: End) {
    let (napi, home) = (&world.napi, &world.homes[0]);
    let me = world.application.as_ref().expect("there is one");
    let mut received = 0;
    loop {
        let ready = me.ready.load(Ordering::Relaxed);
        if ready > received {
            if napi.suspend((ready - received) as usize).is_some() {
                home.arm();
            }
            received = ready;
            if end == End::DiesSuspended {
                return;
            }
            if received == PACKETS {
                return napi.resume().into_iter().for_each(|napi| home.schedule(napi));
            }
        }
        if let Some(mut poller) = napi.busy_poll(true) {
            let work = world.poll(&mut poller.parts().1.rx);
            me.ready.fetch_add(work, Ordering::Relaxed);
            if end == End::DiesPolling {
                return die(world, poller);
            }
            let arm = |_| {
                if !mutated(Mutant::StopNotArmed) {
                    home.arm();
                }
            };
            match poller.stop(true, |_, _| (), arm) {
                Completion::Released(_) => {}
                Completion::Again(scheduled) => home.schedule(scheduled),
            }
            if end == End::DiesStopped {
                return;
            }
            if work > 0 {
                continue;
            }
        }
        napi.resume().into_iter().for_each(|napi| home.schedule(napi));
        me.waker.sleep(|| me.ready.load(Ordering::Relaxed) != received, || false);
    }
}

/// The timer that it had armed may have found it polling, and be spent.
fn die(world: &World, poller: BusyPolling<Rx>) {
    drop(poller);
    if !mutated(Mutant::DeathUnnoticed) {
        world.napi.schedule_prep().into_iter().for_each(|napi| world.homes[0].schedule(napi));
    }
}

/// The thread owns the instance at first, and a packet comes at any time.
fn poll(end: End) {
    let world = World::with_application();
    let thread = world.spawn(|world| world.run(0));
    let application = world.spawn(move |world| application(world, end));
    world.arrive();
    application.join().unwrap();
    world.homes[0].stop();
    thread.join().unwrap();
    world.at_rest(0);
}

fn take_turns() {
    poll(End::Leaves);
}

fn dies_stopped() {
    poll(End::DiesStopped);
}

fn dies_suspended() {
    poll(End::DiesSuspended);
}

fn dies_polling() {
    poll(End::DiesPolling);
}

// With two preemptions this one takes minutes.
#[test]
fn a_poller_and_a_thread_take_turns() {
    check(1, take_turns);
    for m in [Mutant::AcquireNotAtomic, Mutant::NoSecondLook, Mutant::WakeNoFence] {
        must_fail(m, 1, take_turns);
    }
}

#[test]
fn a_dead_poller_strands_nothing() {
    check(1, dies_stopped);
    check(1, dies_suspended);
    check(1, dies_polling);
    // What these strand takes two preemptions, which take minutes to go through. (Those of a stop: `mitigation::models`.)
    must_fail(Mutant::DeathUnnoticed, 2, dies_polling);
    for m in [Mutant::StopNotArmed, Mutant::FiredNotSeen] {
        must_fail(m, 2, dies_stopped);
    }
}
