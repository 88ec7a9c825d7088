//! Applications that suspend a queue and then do not come back: how long the others on it wait.

use proptest::prelude::*;

use super::*;

const N: u64 = 5;
const T: u64 = 20 * US;
const S: u64 = 20 * MS;

/// Suspended at time 0 by an application that was handed packets.
fn suspended() -> World {
    let mut world = World::new(N, T, S);
    assert_eq!(world.epoll_wait(3), 3);
    assert_eq!(world.state(), (false, Some(S)));
    world
}

/// Has a packet arrive at each of these times, in ascending order, and returns when the worker received each.
fn received(world: &mut World, arrivals: &[u64]) -> Vec<u64> {
    for at in arrivals {
        world.run_to(*at);
        world.interrupt(1);
    }
    // The time-out, and as many empty polls as unmask the doorbell.
    let end = world.env.now + S + (N + 1) * T;
    world.run_to(end);
    world.polls().into_iter().flat_map(|(at, work, _)| std::iter::repeat_n(at, work)).collect()
}

proptest! {
    /// It computes for three times the time-out. Whatever came meanwhile, for others or to be routed, waits for the rest
    /// of the time-out and one timer at the most; what comes afterwards, for one timer.
    #[test]
    fn others_wait_for_the_timeout_and_one_timer(mut arrivals in prop::collection::vec(0..3 * S, 1..50)) {
        arrivals.sort();
        let mut world = suspended();
        let received = received(&mut world, &arrivals);
        prop_assert_eq!(received.len(), arrivals.len());
        for (arrived, received) in arrivals.into_iter().zip(received) {
            prop_assert!(received >= arrived && received <= arrived.max(S) + T, "{arrived}: {received}");
        }
        prop_assert_eq!((world.env.ring, world.state()), (0, (true, None)), "unmasked in the end");
    }

    /// A second application on the instance that waits at some time meanwhile: when it sleeps, the others wait no longer.
    #[test]
    fn one_that_sleeps_gives_back_what_another_suspended(at in 0..S, mut arrivals in prop::collection::vec(0..3 * S, 1..50)) {
        arrivals.sort();
        let mut world = suspended();
        let before: Vec<_> = arrivals.extract_if(.., |arrival| *arrival <= at).collect();
        for arrival in &before {
            world.run_to(*arrival);
            world.interrupt(1);
        }
        world.run_to(at);
        prop_assert_eq!(world.epoll_wait(0), before.len(), "polled by it");
        // It wanted one packet of them at the most, takes it, and comes back at once.
        prop_assert_eq!(world.epoll_wait(0), 0);
        prop_assert_eq!(world.state(), (false, Some(at + T)));
        world.polls();
        for (arrived, received) in arrivals.clone().into_iter().zip(received(&mut world, &arrivals)) {
            prop_assert!(received >= arrived && received <= arrived + T, "{arrived}: {received}");
        }
    }
}

/// It comes back late, and finds what the timer's polls received.
#[test]
fn the_hung_application_is_handed_what_came_and_suspends_again() {
    let mut world = suspended();
    world.run_to(S / 2);
    world.interrupt(2);
    world.run_to(3 * S);
    assert_eq!(world.polls().iter().map(|(.., work)| u64::from(*work)).sum::<u64>(), (1..=N).sum::<u64>());
    assert_eq!(world.state(), (true, None));
    assert_eq!(world.epoll_wait(0), 2);
    assert_eq!(world.state(), (true, Some(4 * S)), "the doorbell is unmasked until it has rung");
    world.interrupt(1);
    assert_eq!((world.state(), world.epoll_wait(0)), ((false, Some(3 * S + T)), 1));
    assert_eq!(world.state(), (false, Some(4 * S)));
}

/// Its thread is gone, and did not say so: the timer frees the queue, deferral runs down, interrupts go on.
#[test]
fn a_queue_whose_application_was_killed_is_freed_by_the_timer() {
    let mut world = suspended();
    world.run_to(S - 1);
    world.interrupt(4);
    assert!(world.polls().is_empty());
    world.run_to(S + N * T);
    let polls: Vec<_> = world.polls().into_iter().map(|(at, work, _)| (at - S, work)).collect();
    assert_eq!(polls[0], (0, 4));
    assert_eq!(polls[1..], [1, 2, 3, 4, 5].map(|i| (i * T, 0)));
    assert_eq!(world.state(), (true, None));
    let rung = world.env.rung;
    world.interrupt(1);
    assert_eq!((world.env.rung, world.polls().len()), (rung + 1, 1));
}

/// Its end is known: the queue is scheduled then, even if the time-out was set to 0 since.
#[test]
fn a_queue_whose_application_goes_away_is_freed_at_once() {
    for s in [S, 0] {
        let mut world = suspended();
        world.run_to(MS);
        world.interrupt(4);
        world.knobs(N, T, s);
        let napi = world.napi.schedule_prep();
        world.schedule(napi);
        world.softirq();
        assert_eq!(world.state(), (false, Some(MS + T)), "the timer is that of deferral again");
        world.run_to(MS + N * T);
        assert_eq!((world.env.ring, world.state()), (0, (true, None)));
    }
}
