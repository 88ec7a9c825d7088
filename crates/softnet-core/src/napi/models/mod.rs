//! Loom models of the instance's state word, each with the faults that it must notice.

use std::sync::Arc;

use loom::thread;

use self::queue::Queue;
use super::{Completion, Napi, Scheduled};
use crate::sync::{AtomicU32, Mutant, Ordering, check, must_fail};

mod disable;
mod home;
mod poller;
pub(super) mod queue;
mod switch;

/// An idle instance, and its ring: the number of packets that have ever arrived.
fn idle() -> (Napi<u32>, Arc<AtomicU32>) {
    (queue::idle(), Arc::new(AtomicU32::new(0)))
}

/// Polls until completion releases. The body is a plain value: loom reports a second owner.
fn poll(mut scheduled: Scheduled<u32>, ring: &AtomicU32) {
    loop {
        scheduled.body().rx = ring.load(Ordering::Relaxed);
        match scheduled.complete(1, |_, _| ()) {
            Completion::Again(again) => scheduled = again,
            Completion::Released(_) => return,
        }
    }
}

/// Three threads, each with a packet: it arrives, and the instance is scheduled. The thread that wins polls.
/// Afterwards the instance is idle, and a poll has seen every packet.
fn schedule() {
    let (napi, ring) = idle();
    let receive = || {
        let (napi, ring) = (napi.clone(), ring.clone());
        move || {
            ring.fetch_add(1, Ordering::Relaxed);
            if let Some(scheduled) = napi.schedule_prep() {
                poll(scheduled, &ring);
            }
        }
    };
    let threads = [thread::spawn(receive()), thread::spawn(receive())];
    receive()();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let mut scheduled = napi.schedule_prep().expect("idle");
    assert_eq!(scheduled.body().rx, 3, "a packet was left in the ring");
}

#[test]
fn one_owner_and_no_missed_packet() {
    check(3, schedule);
    for m in [
        Mutant::AcquireNotAtomic,
        Mutant::ReleaseNotFolded,
        Mutant::ReleaseRelaxed,
        Mutant::MissedIgnored,
        Mutant::MissedNotRewritten,
    ] {
        must_fail(m, 3, schedule);
    }
}

/// A timer that fires while another thread polls leaves it alone; one that fires when no thread does, polls.
fn watchdog() {
    let (napi, ring) = idle();
    let timer = thread::spawn({
        let (napi, ring) = (napi.clone(), ring.clone());
        move || napi.watchdog().map(|scheduled| poll(scheduled, &ring)).is_some()
    });
    let won = napi.schedule_prep().map(|scheduled| poll(scheduled, &ring)).is_some();
    assert!(timer.join().unwrap() | won);
    assert!(!napi.state().is_scheduled() && !napi.state().is_missed());
    let missed = napi.stats.missed.get();
    assert!(missed <= u64::from(!won), "only a schedule sets MISSED");
}

#[test]
fn the_timer_never_sets_missed() {
    check(3, watchdog);
    must_fail(Mutant::AcquireNotAtomic, 3, watchdog);
}

/// One thread schedules and polls, twice, while another disables. Once disabled the instance is not polled, and
/// belongs to the thread that disabled it; and a disable that finds it busy succeeds as soon as the poll has ended.
fn disable() {
    let (napi, ring) = idle();
    let poller = thread::spawn({
        let (napi, ring) = (napi.clone(), ring.clone());
        move || {
            for _ in 0..2 {
                ring.fetch_add(1, Ordering::Relaxed);
                if let Some(scheduled) = napi.schedule_prep() {
                    poll(scheduled, &ring);
                }
            }
        }
    });
    napi.disable();
    let mut early = napi.try_disable();
    if let Some(disabled) = &mut early {
        disabled.body().rx = 77;
    }
    poller.join().unwrap();
    let mut disabled = match early {
        Some(mut disabled) => {
            assert_eq!(disabled.body().rx, 77, "polled while disabled");
            disabled
        }
        None => napi.try_disable().expect("the poll has ended"),
    };
    assert!(napi.schedule_prep().is_none() && napi.state().is_disabled());
    disabled.body().rx = 0;
    poll(disabled.enable(), &ring);
    let mut scheduled = napi.schedule_prep().expect("idle");
    assert_eq!(scheduled.body().rx, 2, "the poll after enabling sees what came meanwhile");
}

#[test]
fn disable_takes_over_from_polls() {
    check(3, disable);
    for m in [Mutant::AcquireNotAtomic, Mutant::ReleaseNotFolded, Mutant::ReleaseRelaxed] {
        must_fail(m, 3, disable);
    }
}

/// Two packets arrive at an instance with a doorbell and without deferral.
fn doorbell() {
    let queue = Queue::new(queue::idle());
    let other = queue.spawn(Queue::arrive);
    queue.arrive();
    other.join().unwrap();
    queue.at_rest();
}

#[test]
fn a_queue_is_unmasked_or_owned_and_no_packet_waits() {
    check(3, doorbell);
    for m in [Mutant::NoSecondLook, Mutant::AcquireNotAtomic] {
        must_fail(m, 3, doorbell);
    }
}
