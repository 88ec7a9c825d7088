//! Epoll sets of softnet's sockets and the kernel's descriptors: what is told, how often, and what polls meanwhile.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use softnet::net::{Epoll, EpollParams, Event, Handle, Interest, ReadyFd, UdpSocket};

use super::frames::own;
use super::poller::{mem0, set_knobs};
use super::udp::{datagram, start};
use super::world::{Lane, World, until};

pub(crate) const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
pub(crate) const HOUR: u64 = 3_600_000_000_000;
pub(crate) const PREFER: EpollParams =
    EpollParams { busy_poll_usecs: 0, busy_poll_budget: 8, prefer_busy_poll: true };

pub(crate) fn bind(handle: &Handle, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind(handle, (own(0), port)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

pub(crate) fn send(lane: &mut Lane, port: u16) {
    assert_eq!(lane.send(&[datagram(0, own(0), (999, port), b"epoll")]), 1);
}

/// Sends one and waits until it is in the socket's queue, and its waiters were told.
pub(crate) fn deliver(world: &World, lane: &mut Lane, socket: &UdpSocket) {
    send(lane, socket.local_addr().unwrap().port());
    until("it is delivered", || socket.readiness().readable);
    until("all is quiet", || world.shared.workers.iter().all(|worker| worker.is_sleeping()));
}

pub(crate) fn drain(socket: &UdpSocket) -> usize {
    std::iter::from_fn(|| socket.recv(&mut [0; 64]).ok()).count()
}

/// Tokens of what is ready now, and whether it can be read and written.
pub(crate) fn now(epoll: &mut Epoll, max: usize) -> Vec<(u64, bool, bool)> {
    let mut events = Vec::new();
    epoll.wait(&mut events, max, AT_ONCE).unwrap();
    events.iter().map(|event| (event.token, event.is_readable(), event.is_writable())).collect()
}

#[test]
fn level_edge_and_one_shot_are_told_as_often_as_they_say() {
    let (world, mut lanes, handle) = start(&[1], true);
    let [level, edge, once] = [7, 8, 9].map(|port| bind(&handle, port));
    let mut epoll = Epoll::new(&handle).unwrap();
    epoll.ctl().add(&level, Interest::IN, 1).unwrap();
    epoll.ctl().add(&edge, Interest::IN | Interest::EDGE, 2).unwrap();
    epoll.ctl().add(&once, Interest::IN | Interest::ONE_SHOT, 3).unwrap();
    assert_eq!(now(&mut epoll, 9), []);
    [&level, &edge, &once].iter().for_each(|socket| deliver(&world, &mut lanes[0], socket));
    assert_eq!(now(&mut epoll, 9), [(1, true, false), (2, true, false), (3, true, false)]);
    assert_eq!(now(&mut epoll, 9), [(1, true, false)]);
    assert_eq!((drain(&level), now(&mut epoll, 9)), (1, vec![]));
    // Its reader took what there was.
    assert_eq!(drain(&edge), 1);
    deliver(&world, &mut lanes[0], &edge);
    assert_eq!(now(&mut epoll, 9), [(2, true, false)]);
    assert_eq!(drain(&once), 1);
    deliver(&world, &mut lanes[0], &once);
    assert_eq!(now(&mut epoll, 9), []);
    epoll.ctl().modify(&once, Interest::IN | Interest::OUT, 4).unwrap();
    assert_eq!(now(&mut epoll, 9), [(4, true, true)]);
    assert_eq!((drain(&edge), drain(&once), now(&mut epoll, 9)), (1, 1, vec![(4, false, true)]));
    drop((epoll, level, edge, once));
    world.end(lanes);
}

#[test]
fn with_more_ready_than_asked_for_all_get_their_turn() {
    let (world, mut lanes, handle) = start(&[1], true);
    let sockets: Vec<_> = (100..200).map(|port| bind(&handle, port)).collect();
    let mut epoll = Epoll::new(&handle).unwrap();
    for (token, socket) in sockets.iter().enumerate() {
        epoll.ctl().add(socket, Interest::IN, token as u64).unwrap();
        deliver(&world, &mut lanes[0], socket);
    }
    let mut seen = vec![0; 100];
    for _ in 0..20 {
        let told = now(&mut epoll, 10);
        assert_eq!(told.len(), 10);
        told.iter().for_each(|(token, ..)| seen[*token as usize] += 1);
    }
    assert_eq!(seen, [2; 100]);
    drop((epoll, sockets));
    world.end(lanes);
}

#[test]
fn what_is_closed_is_gone_and_wrong_calls_are_told() {
    let (world, mut lanes, handle) = start(&[1], true);
    let (kept, closed) = (bind(&handle, 7), bind(&handle, 8));
    let mut epoll = Epoll::new(&handle).unwrap();
    let ctl = epoll.ctl().clone();
    let kind = |result: std::io::Result<()>| result.unwrap_err().kind();
    ctl.add(&kept, Interest::IN, 1).unwrap();
    assert_eq!(kind(ctl.add(&kept, Interest::IN, 1)), ErrorKind::AlreadyExists);
    assert_eq!(kind(ctl.modify(&closed, Interest::IN, 1)), ErrorKind::NotFound);
    assert_eq!(kind(ctl.delete(&closed)), ErrorKind::NotFound);
    ctl.add(&closed, Interest::IN, 2).unwrap();
    [&kept, &closed].iter().for_each(|socket| deliver(&world, &mut lanes[0], socket));
    drop(closed);
    assert_eq!(now(&mut epoll, 9), [(1, true, false)]);
    // It may have the slot of the one before.
    let anew = bind(&handle, 8);
    ctl.add(&anew, Interest::IN, 3).unwrap();
    deliver(&world, &mut lanes[0], &anew);
    assert_eq!(now(&mut epoll, 9), [(1, true, false), (3, true, false)]);
    ctl.delete(&kept).unwrap();
    assert_eq!(now(&mut epoll, 9), [(3, true, false)]);
    drop(epoll);
    // A set that is gone is no trouble to the sockets that were in it.
    deliver(&world, &mut lanes[0], &kept);
    drop((kept, anew));
    world.end(lanes);
}

#[test]
fn descriptors_of_the_kernel_are_told_beside_sockets() {
    let (world, mut lanes, handle) = start(&[1], true);
    let socket = bind(&handle, 7);
    let fd = || eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let (level, edge) = (fd(), fd());
    let mut epoll = Epoll::new(&handle).unwrap();
    epoll.ctl().add_fd(&level, Interest::IN, 10).unwrap();
    epoll.ctl().add_fd(&edge, Interest::IN | Interest::EDGE, 11).unwrap();
    epoll.ctl().add(&socket, Interest::IN, 1).unwrap();
    assert_eq!(now(&mut epoll, 9), []);
    let ring = |fd| assert_eq!(rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap(), 8);
    [&level, &edge].into_iter().for_each(ring);
    let mut told = now(&mut epoll, 9);
    told.sort_unstable();
    assert_eq!(told, [(10, true, false), (11, true, false)]);
    assert_eq!(now(&mut epoll, 9), [(10, true, false)]);
    // While a socket is always ready.
    deliver(&world, &mut lanes[0], &socket);
    let mut both = 0;
    until("the descriptor gets its turn", || {
        let told = now(&mut epoll, 9);
        assert!(told.contains(&(1, true, false)));
        both += usize::from(told.contains(&(10, true, false)));
        both > 3
    });
    assert_eq!(drain(&socket), 1);
    epoll.ctl().delete_fd(&level).unwrap();
    assert_eq!(now(&mut epoll, 9), []);
    // A sleeper is woken by one that was added meanwhile.
    let ctl = epoll.ctl().clone();
    std::thread::scope(|scope| {
        scope.spawn(|| ctl.add_fd(&level, Interest::IN, 12).unwrap());
        let mut events: Vec<Event> = Vec::new();
        assert_eq!(epoll.wait(&mut events, 9, None).unwrap(), 1);
        assert_eq!(events[0].token, 12);
    });
    drop((epoll, socket));
    world.end(lanes);
}

/// Waits by `epoll` and receives from `socket` until `done`.
fn serve(epoll: &mut Epoll, sockets: &[UdpSocket], received: &AtomicUsize, done: &AtomicBool) {
    let mut events = Vec::new();
    while !done.load(Ordering::Relaxed) {
        epoll.wait(&mut events, 4, Some(Duration::from_millis(1))).unwrap();
        for event in &events {
            received.fetch_add(drain(&sockets[event.token as usize]), Ordering::Relaxed);
        }
    }
}

#[test]
fn threads_with_sets_of_their_own_miss_nothing_whichever_thread_polls() {
    let (world, mut lanes, handle) = start(&[1], true);
    let params = [
        EpollParams::default(),
        PREFER,
        EpollParams { busy_poll_usecs: 50, ..PREFER },
        EpollParams { busy_poll_usecs: 50, busy_poll_budget: 64, prefer_busy_poll: false },
    ];
    for (n, t, s) in [(0, 0, 0), (10, 20_000, 0), (10, 20_000, 20_000_000)] {
        set_knobs(&world.view, n, t, s);
        for interest in [Interest::IN, Interest::IN | Interest::EDGE, Interest::IN | Interest::EXCLUSIVE] {
            // Every set watches every socket.
            let sockets: Vec<_> = (7..10).map(|port| bind(&handle, port)).collect();
            let (received, done) = (AtomicUsize::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                for params in params {
                    let mut epoll = Epoll::new(&handle).unwrap();
                    epoll.set_params(params).unwrap();
                    for (token, socket) in sockets.iter().enumerate() {
                        epoll.ctl().add(socket, interest, token as u64).unwrap();
                    }
                    let (sockets, received, done) = (&sockets, &received, &done);
                    scope.spawn(move || serve(&mut epoll, sockets, received, done));
                }
                for i in 0..300 {
                    send(&mut lanes[0], 7 + i % 3);
                    if i % 7 == 0 {
                        until("all are received", || received.load(Ordering::Relaxed) == i as usize + 1);
                    }
                }
                until("all are received", || received.load(Ordering::Relaxed) == 300);
                done.store(true, Ordering::Relaxed);
            });
        }
    }
    assert!(mem0(&world.view).busy_polls > 0);
    world.end(lanes);
}

#[test]
fn a_set_that_prefers_to_poll_suspends_resumes_and_gives_back() {
    let (world, mut lanes, handle) = start(&[1], true);
    set_knobs(&world.view, 10, HOUR, HOUR);
    let socket = bind(&handle, 7);
    let mut epoll = Epoll::new(&handle).unwrap();
    epoll.set_params(PREFER).unwrap();
    epoll.ctl().add(&socket, Interest::IN, 1).unwrap();
    assert!(mem0(&world.view).warning.is_some(), "nothing makes use of irq_suspend_timeout yet");
    // The doorbell rings for the first; which tells of the instance.
    deliver(&world, &mut lanes[0], &socket);
    assert_eq!(now(&mut epoll, 9), [(1, true, false)]);
    drain(&socket);
    assert_eq!(epoll.params(), PREFER);
    // From now on only the set polls.
    for _ in 0..10 {
        send(&mut lanes[0], 7);
        let mut events = Vec::new();
        let before = mem0(&world.view);
        assert_eq!(epoll.wait(&mut events, 9, None).unwrap(), 1);
        let after = mem0(&world.view);
        assert!(after.busy_polls > before.busy_polls && after.suspensions > before.suspensions);
        assert_eq!(drain(&socket), 1);
    }
    let before = mem0(&world.view);
    let mut events = Vec::new();
    assert_eq!(epoll.wait(&mut events, 9, Some(Duration::from_micros(1))).unwrap(), 0);
    assert!(mem0(&world.view).resumptions > before.resumptions, "nothing is ready: it gave way");
    assert_eq!(mem0(&world.view).warning, None, "the set made use of it");
    let wrong = epoll.set_params(EpollParams { busy_poll_budget: 65, ..PREFER }).unwrap_err();
    assert_eq!(wrong.to_string(), "busy_poll_budget: 65 is out of range, 1 to 64 expected");
    // A set that goes has the instance polled by its context, which is not for the timers to do.
    send(&mut lanes[0], 7);
    drop(epoll);
    until("it is delivered", || socket.readiness().readable);
    drop(socket);
    world.end(lanes);
}

#[test]
fn a_descriptor_tells_the_event_loops_of_others() {
    let (world, mut lanes, handle) = start(&[1], true);
    let ready = ReadyFd::new(bind(&handle, 7)).unwrap();
    let mut epoll = Epoll::new(&handle).unwrap();
    epoll.ctl().add_fd(&ready, Interest::IN | Interest::EDGE, 5).unwrap();
    assert_eq!(now(&mut epoll, 9), [(5, true, false)], "it might be ready at first");
    ready.clear();
    assert_eq!(now(&mut epoll, 9), []);
    for _ in 0..3 {
        deliver(&world, &mut lanes[0], ready.socket());
        let mut told = vec![];
        until("it is told", || {
            told = now(&mut epoll, 9);
            !told.is_empty()
        });
        assert_eq!((told, drain(ready.socket())), (vec![(5, true, false)], 1));
    }
    drop((epoll, ready));
    world.end(lanes);
}

/// Whatever is in the set, and however it waits.
#[test]
fn every_sleeper_learns_that_the_stack_stopped() {
    let (mut world, lanes, handle) = start(&[1], true);
    let (socket, fd) = (bind(&handle, 7), eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let sets: Vec<Epoll> = (0..8)
        .map(|i| {
            let mut epoll = Epoll::new(&handle).unwrap();
            if i & 1 != 0 {
                epoll.ctl().add(&socket, Interest::IN, 1).unwrap();
            }
            if i & 2 != 0 {
                epoll.ctl().add_fd(&fd, Interest::IN, 2).unwrap();
            }
            if i & 4 != 0 {
                epoll.set_params(EpollParams { busy_poll_usecs: 50, ..PREFER }).unwrap();
            }
            epoll
        })
        .collect();
    let waiting = AtomicUsize::new(0);
    let sets: Vec<Epoll> = std::thread::scope(|scope| {
        let wait = |mut epoll: Epoll| {
            waiting.fetch_add(1, Ordering::Relaxed);
            let error = epoll.wait(&mut Vec::new(), 1, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NetworkDown);
            epoll
        };
        let threads: Vec<_> = sets.into_iter().map(|epoll| scope.spawn(move || wait(epoll))).collect();
        until("all wait", || waiting.load(Ordering::Relaxed) == 8);
        world.stop();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // From then on, but for what is ready.
    rustix::io::write(&fd, &1u64.to_ne_bytes()).unwrap();
    for (i, mut epoll) in sets.into_iter().enumerate() {
        let mut events = Vec::new();
        // However short ago it was looked for.
        for _ in 0..3 {
            let result = epoll.wait(&mut events, 9, None);
            match i & 2 {
                0 => assert_eq!(result.unwrap_err().kind(), ErrorKind::NetworkDown),
                _ => assert_eq!((result.unwrap(), events[0].token), (1, 2)),
            }
        }
    }
    let mut epoll = Epoll::new(&handle).unwrap();
    assert_eq!(epoll.wait(&mut Vec::new(), 1, None).unwrap_err().kind(), ErrorKind::NetworkDown);
    drop((epoll, socket));
    world.end(lanes);
}

#[test]
fn a_set_is_of_one_stack_and_takes_nothing_when_it_is_gone() {
    let (world, lanes, handle) = start(&[1], true);
    let (other_world, other_lanes, other) = start(&[1], true);
    let (socket, foreign) = (bind(&handle, 7), bind(&other, 7));
    let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let epoll = Epoll::new(&handle).unwrap();
    let ctl = epoll.ctl().clone();
    assert_eq!(ctl.add(&foreign, Interest::IN, 1).unwrap_err().kind(), ErrorKind::InvalidInput);
    ctl.add(&socket, Interest::IN, 1).unwrap();
    drop(epoll);
    let bad = |result: std::io::Result<()>| result.unwrap_err().raw_os_error() == Some(9);
    assert!(bad(ctl.add(&socket, Interest::IN, 1)) && bad(ctl.modify(&socket, Interest::IN, 1)));
    assert!(bad(ctl.delete(&socket)) && bad(ctl.add_fd(&fd, Interest::IN, 1)));
    drop((ctl, socket, foreign));
    world.end(lanes);
    other_world.end(other_lanes);
}
