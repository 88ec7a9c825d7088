//! What users of `epoll(7)` rely on in the odd cases: which waiters are told, how often, and which are told
//! no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::dup2;
use softnet::net::{Epoll, EpollParams, Event, Interest};

use super::epoll::{AT_ONCE, HOUR, PREFER, bind, deliver, drain, now, send};
use super::poller::{mem0, set_knobs};
use super::udp::start;
use super::world::until;

fn rung() -> std::os::fd::OwnedFd {
    eventfd(1, EventfdFlags::NONBLOCK).unwrap()
}

fn tokens(epoll: &mut Epoll, max: usize) -> Vec<u64> {
    now(epoll, max).into_iter().map(|(token, ..)| token).collect()
}

#[test]
fn a_one_shot_socket_stays_silent_however_often_it_becomes_ready() {
    let (world, mut lanes, handle) = start(&[1], true);
    let socket = bind(&handle, 7);
    let mut epoll = Epoll::new(&handle).unwrap();
    epoll.ctl().add(&socket, Interest::IN | Interest::ONE_SHOT, 1).unwrap();
    for round in 0..4 {
        deliver(&world, &mut lanes[0], &socket);
        assert_eq!(tokens(&mut epoll, 9), if round == 0 { vec![1] } else { vec![] }, "round {round}");
        assert_eq!(drain(&socket), 1);
    }
    drop((epoll, socket));
    world.end(lanes);
}

#[test]
fn descriptors_and_sockets_take_turns_when_only_one_may_be_told() {
    let (world, lanes, handle) = start(&[1], true);
    let socket = bind(&handle, 7);
    let fds: Vec<_> = (0..3).map(|_| rung()).collect();
    let mut epoll = Epoll::new(&handle).unwrap();
    // Both always ready.
    epoll.ctl().add(&socket, Interest::OUT, 0).unwrap();
    for (token, fd) in (1..).zip(&fds) {
        epoll.ctl().add_fd(fd, Interest::IN, token).unwrap();
    }
    let mut seen = [0; 4];
    for _ in 0..200 {
        let told = tokens(&mut epoll, 1);
        assert_eq!(told.len(), 1);
        seen[told[0] as usize] += 1;
        // As a server that works for each.
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(seen.iter().all(|n| *n >= 20), "{seen:?}");
    drop((epoll, socket));
    world.end(lanes);
}

#[test]
fn a_descriptor_that_was_deleted_is_not_told_any_more() {
    let (world, lanes, handle) = start(&[1], true);
    let fds: Vec<_> = (0..3).map(|_| rung()).collect();
    let mut epoll = Epoll::new(&handle).unwrap();
    for (token, fd) in (0..).zip(&fds) {
        epoll.ctl().add_fd(fd, Interest::IN, token).unwrap();
    }
    let first = tokens(&mut epoll, 1)[0];
    let [gone, changed] = [1, 2].map(|n| (first + n) % 3);
    epoll.ctl().delete_fd(&fds[gone as usize]).unwrap();
    epoll.ctl().modify_fd(&fds[changed as usize], Interest::OUT, 7).unwrap();
    epoll.ctl().delete_fd(&fds[first as usize]).unwrap();
    assert_eq!(now(&mut epoll, 9), [(7, false, true)]);
    drop(epoll);
    world.end(lanes);
}

/// The kernel tells of a file that was closed as long as another descriptor has it open: that event is of no item,
/// and does not keep a thread beyond its time-out.
#[test]
fn what_is_told_in_vain_does_not_prolong_a_wait() {
    let (world, lanes, handle) = start(&[1], true);
    let (mut fd, silent) = (rung(), eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let still_open = fd.try_clone().unwrap();
    for params in [EpollParams::default(), PREFER, EpollParams { busy_poll_usecs: 100, ..PREFER }] {
        let mut epoll = Epoll::new(&handle).unwrap();
        epoll.set_params(params).unwrap();
        epoll.ctl().add_fd(&fd, Interest::IN, 1).unwrap();
        dup2(&silent, &mut fd).unwrap();
        epoll.ctl().add_fd(&fd, Interest::IN, 2).unwrap();
        let waits = std::thread::spawn(move || {
            let n = epoll.wait(&mut Vec::new(), 9, Some(Duration::from_millis(5))).unwrap();
            (epoll, n)
        });
        until("the time is over", || waits.is_finished());
        let (mut epoll, n) = waits.join().unwrap();
        assert_eq!(n, 0);
        rustix::io::write(&silent, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(tokens(&mut epoll, 9), [2]);
        rustix::io::read(&silent, &mut [0; 8]).unwrap();
        dup2(&still_open, &mut fd).unwrap();
    }
    world.end(lanes);
}

/// The doorbell stays masked and the timer has an hour to go: what comes is found by a poll of the set, or not at all.
#[test]
fn a_set_that_prefers_to_poll_does_so_in_each_call() {
    let (world, mut lanes, handle) = start(&[1], true);
    set_knobs(&world.view, 100, HOUR, 0);
    let socket = bind(&handle, 7);
    let mut epoll = Epoll::new(&handle).unwrap();
    epoll.set_params(EpollParams { busy_poll_usecs: 50, ..PREFER }).unwrap();
    epoll.ctl().add(&socket, Interest::IN, 1).unwrap();
    // Which tells of the instance.
    deliver(&world, &mut lanes[0], &socket);
    assert_eq!((tokens(&mut epoll, 9), drain(&socket)), (vec![1], 1));
    let (mut events, short) = (Vec::new(), Some(Duration::from_millis(1)));
    for _ in 0..3 {
        assert_eq!(epoll.wait(&mut events, 9, short).unwrap(), 0, "nothing came for longer than it polls");
        let before = mem0(&world.view).busy_polls;
        send(&mut lanes[0], 7);
        until("it is found", || epoll.wait(&mut events, 9, short).unwrap() == 1);
        assert!(mem0(&world.view).busy_polls > before);
        assert_eq!(drain(&socket), 1);
    }
    drop((epoll, socket));
    world.end(lanes);
}

/// Threads add one socket and take it out again, each as often as it is let. What was added last is told of.
#[test]
fn a_socket_is_watched_after_threads_fought_over_it() {
    let (world, mut lanes, handle) = start(&[1], true);
    let socket = bind(&handle, 7);
    let mut epoll = Epoll::new(&handle).unwrap();
    for _ in 0..1000 {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (ctl, socket) = (epoll.ctl(), &socket);
                scope.spawn(move || {
                    for _ in 0..4 {
                        let _ = ctl.add(socket, Interest::IN, 1);
                        let _ = ctl.delete(socket);
                    }
                    let _ = ctl.add(socket, Interest::IN, 1);
                });
            }
        });
        assert_eq!(now(&mut epoll, 9), []);
        deliver(&world, &mut lanes[0], &socket);
        assert_eq!(tokens(&mut epoll, 9), [1]);
        assert_eq!(drain(&socket), 1);
    }
    drop((epoll, socket));
    world.end(lanes);
}

/// As the kernel's: with no thread waiting, whichever set's comes finds it, and nothing is kept from any.
#[test]
fn exclusive_sets_find_what_is_there_whichever_comes() {
    let (world, mut lanes, handle) = start(&[1], true);
    let socket = bind(&handle, 7);
    let sets = [
        Interest::OUT | Interest::EXCLUSIVE | Interest::EDGE,
        Interest::IN | Interest::EXCLUSIVE | Interest::ONE_SHOT,
        Interest::IN | Interest::EXCLUSIVE,
        Interest::IN | Interest::EXCLUSIVE,
    ];
    let mut sets = sets.map(|interest| {
        let mut epoll = Epoll::new(&handle).unwrap();
        epoll.ctl().add(&socket, interest, 1).unwrap();
        now(&mut epoll, 9);
        epoll
    });
    for round in 0..3 {
        deliver(&world, &mut lanes[0], &socket);
        let told = sets.each_mut().map(|epoll| now(epoll, 9).iter().any(|(_, readable, _)| *readable));
        assert_eq!(told, [false, round == 0, true, true], "round {round}");
        assert_eq!(drain(&socket), 1);
        let told = sets.each_mut().map(|epoll| now(epoll, 9).iter().any(|(_, readable, _)| *readable));
        assert_eq!(told, [false; 4], "round {round}: it was taken");
    }
    drop((sets, socket));
    world.end(lanes);
}

/// Waits by `epoll` on a thread of its own, and gives the set back when it was told.
fn wait_apart(mut epoll: Epoll) -> std::thread::JoinHandle<Epoll> {
    let tid = Arc::new(AtomicU32::new(0));
    let thread = {
        let tid = tid.clone();
        std::thread::spawn(move || {
            tid.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
            let mut events: Vec<Event> = Vec::new();
            assert_eq!(epoll.wait(&mut events, 9, None).unwrap(), 1);
            epoll
        })
    };
    // By then it has announced that it waits: there is nothing else to sleep for.
    until("it sleeps", || {
        let status = format!("/proc/self/task/{}/status", tid.load(Ordering::Relaxed));
        std::fs::read_to_string(status).is_ok_and(|status| status.contains("State:\tS"))
    });
    thread
}

/// The first is told and hangs. What comes next wakes the other, which finds all that is there.
#[test]
fn an_exclusive_set_whose_thread_hangs_keeps_nothing_from_the_others() {
    let (world, mut lanes, handle) = start(&[1], true);
    for edge in [Interest::IN, Interest::IN | Interest::EDGE] {
        let socket = bind(&handle, 7);
        let [hangs, serves] = [(), ()].map(|()| {
            let mut epoll = Epoll::new(&handle).unwrap();
            epoll.ctl().add(&socket, edge | Interest::EXCLUSIVE, 1).unwrap();
            now(&mut epoll, 9);
            epoll
        });
        let (hangs, serves) = (wait_apart(hangs), wait_apart(serves));
        deliver(&world, &mut lanes[0], &socket);
        until("the first is told", || hangs.is_finished());
        deliver(&world, &mut lanes[0], &socket);
        until("the other is told", || serves.is_finished());
        assert_eq!(drain(&socket), 2);
        drop((hangs.join().unwrap(), serves.join().unwrap()));
    }
    world.end(lanes);
}

/// One that was told goes away, and leaves what it was told of: another is told. So does one that watches no more.
#[test]
fn an_exclusive_set_that_goes_leaves_what_it_was_told_of_to_the_others() {
    let (world, mut lanes, handle) = start(&[1], true);
    let socket = bind(&handle, 7);
    let [goes, deletes, stays] = [(), (), ()].map(|()| {
        let mut epoll = Epoll::new(&handle).unwrap();
        epoll.ctl().add(&socket, Interest::IN | Interest::EXCLUSIVE, 1).unwrap();
        now(&mut epoll, 9);
        wait_apart(epoll)
    });
    deliver(&world, &mut lanes[0], &socket);
    until("the first is told", || goes.is_finished());
    drop(goes.join().unwrap());
    until("the second is told", || deletes.is_finished());
    let deletes = deletes.join().unwrap();
    deletes.ctl().delete(&socket).unwrap();
    until("the third is told", || stays.is_finished());
    assert_eq!(drain(&socket), 1);
    drop((deletes, stays.join().unwrap(), socket));
    world.end(lanes);
}

/// A set that gave its instance back suspends it only after packets came by it again, whatever else it is told of.
#[test]
fn an_instance_that_was_forgotten_is_not_suspended() {
    let (world, mut lanes, handle) = start(&[1], true);
    set_knobs(&world.view, 10, HOUR, HOUR);
    let (socket, fd) = (bind(&handle, 7), eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let mut epoll = Epoll::new(&handle).unwrap();
    epoll.set_params(PREFER).unwrap();
    epoll.ctl().add(&socket, Interest::IN, 1).unwrap();
    epoll.ctl().add_fd(&fd, Interest::IN, 2).unwrap();
    deliver(&world, &mut lanes[0], &socket);
    assert_eq!(tokens(&mut epoll, 9), [1]);
    assert_eq!((drain(&socket), mem0(&world.view).suspensions), (1, 1));
    let mut events: Vec<Event> = Vec::new();
    assert_eq!(epoll.wait(&mut events, 9, Some(Duration::from_micros(1))).unwrap(), 0);
    rustix::io::write(&fd, &1u64.to_ne_bytes()).unwrap();
    until("it is told", || epoll.wait(&mut events, 9, AT_ONCE).unwrap() == 1);
    assert_eq!((events[0].token, mem0(&world.view).suspensions), (2, 1));
    drop((epoll, socket));
    world.end(lanes);
}
