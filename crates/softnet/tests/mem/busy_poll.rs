//! Calls that block and poll meanwhile: which thread polls, and that no packet waits for one that does not.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use softnet::net::{EpollParams, UdpSocket};

use super::epoll::{HOUR, PREFER, send};
use super::frames::own;
use super::poller::{mem0, set_knobs};
use super::tcp;
use super::udp::start;
use super::world::{Lane, World, until};

/// Polls for long.
const LONG: EpollParams = EpollParams { busy_poll_usecs: 30_000_000, ..PREFER };

fn bind(handle: &softnet::net::Handle, port: u16, params: EpollParams) -> UdpSocket {
    let socket = UdpSocket::bind(handle, (own(0), port)).unwrap();
    socket.set_busy_poll(params).unwrap();
    socket
}

/// Datagrams come to `socket` until a call polls for one.
fn poll_once(world: &World, lane: &mut Lane, socket: &UdpSocket) {
    let polled = mem0(&world.view).busy_polls;
    until("a call polls", || {
        send(lane, 7);
        recv(socket);
        mem0(&world.view).busy_polls > polled
    });
}

fn recv(socket: &UdpSocket) {
    assert_eq!(socket.recv(&mut [0; 64]).unwrap(), 5);
}

#[test]
fn a_call_polls_and_leaves_the_doorbell_masked() {
    let (world, mut lanes, handle) = start(&[1], true);
    set_knobs(&world.view, 10, HOUR, HOUR);
    let socket = bind(&handle, 7, PREFER);
    // The doorbell rings for the first, which tells of the instance.
    send(&mut lanes[0], 7);
    recv(&socket);
    // From now on only the thread polls.
    let first = mem0(&world.view);
    for _ in 0..100 {
        send(&mut lanes[0], 7);
        let before = mem0(&world.view);
        recv(&socket);
        let after = mem0(&world.view);
        assert!(after.busy_polls > before.busy_polls);
        assert_eq!((after.doorbell.as_str(), after.doorbells), ("masked", first.doorbells));
    }
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    assert_eq!(socket.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let last = mem0(&world.view);
    assert!(last.resumptions > first.resumptions, "nothing came: it gave way");
    assert_eq!(last.suspensions, first.suspensions, "that is for epoll sets");
    drop(socket);
    world.end(lanes);
}

/// Though the queue may be suspended for an hour: only epoll sets suspend it.
#[test]
fn what_waits_otherwise_need_not_wait_for_a_thread_that_is_elsewhere() {
    let (world, mut lanes, handle) = start(&[1], true);
    set_knobs(&world.view, 10, 100_000, HOUR);
    let polls = bind(&handle, 7, PREFER);
    let blocks = UdpSocket::bind(&handle, (own(0), 8)).unwrap();
    for _ in 0..20 {
        poll_once(&world, &mut lanes[0], &polls);
        // The thread that polled does nothing of the kind now.
        std::thread::scope(|scope| {
            scope.spawn(|| recv(&blocks));
            send(&mut lanes[0], 8);
        });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(1));
                send(&mut lanes[0], 8);
            });
            recv(&blocks);
        });
    }
    drop((polls, blocks));
    world.end(lanes);
}

/// One has the instance, the other waits beside it; the first is given a datagram, and does not come back.
#[test]
fn a_call_that_lost_the_instance_is_not_forgotten() {
    let (world, mut lanes, handle) = start(&[1], true);
    set_knobs(&world.view, 10, 100_000, HOUR);
    for busy_poll_usecs in [0, 50, 1000, 30_000_000].repeat(5) {
        let params = EpollParams { busy_poll_usecs, ..PREFER };
        let [a, b] = [bind(&handle, 7, LONG), bind(&handle, 8, params)];
        // Both know the instance.
        [7, 8].iter().for_each(|port| send(&mut lanes[0], *port));
        [&a, &b].iter().for_each(|socket| recv(socket));
        b.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| recv(&a));
            until("it polls", || mem0(&world.view).owner != "none");
            let second = scope.spawn(|| recv(&b));
            // It finds the instance taken, unless it comes in the moment in which that is offered.
            std::thread::sleep(Duration::from_millis(5));
            send(&mut lanes[0], 7);
            first.join().unwrap();
            send(&mut lanes[0], 8);
            second.join().unwrap();
        });
    }
    world.end(lanes);
}

#[test]
fn a_thread_that_ends_leaves_the_queue() {
    let (world, mut lanes, handle) = start(&[1], true);
    set_knobs(&world.view, 10, 100_000, HOUR);
    let [polls, other] = [bind(&handle, 7, PREFER), bind(&handle, 8, EpollParams::default())];
    for _ in 0..20 {
        std::thread::scope(|scope| {
            let end = scope.spawn(|| poll_once(&world, &mut lanes[0], &polls));
            end.join().unwrap();
        });
        send(&mut lanes[0], 8);
        recv(&other);
    }
    drop((polls, other));
    world.end(lanes);
}

/// A thread has one that polls for each stack.
#[test]
fn a_thread_polls_two_stacks_in_turn() {
    let stacks = [start(&[1], true), start(&[1], true)];
    let mut all = Vec::new();
    for (world, lanes, handle) in stacks {
        set_knobs(&world.view, 10, 100_000, HOUR);
        let socket = bind(&handle, 7, PREFER);
        all.push((world, lanes, socket));
    }
    for _ in 0..50 {
        for (_, lanes, socket) in &mut all {
            send(&mut lanes[0], 7);
            recv(socket);
        }
    }
    for (world, lanes, socket) in all {
        assert!(mem0(&world.view).busy_polls > 0);
        drop(socket);
        world.end(lanes);
    }
}

/// More threads than CPUs, one instance: whichever polls hands the others theirs.
#[test]
fn threads_share_an_instance() {
    const N: usize = 300;
    let (world, mut lanes, handle) = start(&[1], true);
    for (knobs, params) in [
        ((0, 0, 0), EpollParams { prefer_busy_poll: false, ..LONG }),
        ((10, 20_000, 20_000_000), PREFER),
        ((10, 20_000, 20_000_000), EpollParams { busy_poll_usecs: 50, ..PREFER }),
        ((10, 20_000, 20_000_000), LONG),
    ] {
        set_knobs(&world.view, knobs.0, knobs.1, knobs.2);
        let sockets: Vec<_> = (7..13).map(|port| bind(&handle, port, params)).collect();
        let (got, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for socket in &sockets {
                let (got, done) = (&got, &done);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        recv(socket);
                        got.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for i in 0..N {
                send(&mut lanes[0], 7 + (i % sockets.len()) as u16);
                if i % 17 == 0 {
                    until("all are received", || got.load(Ordering::Relaxed) == i + 1);
                }
            }
            until("all are received", || got.load(Ordering::Relaxed) == N);
            done.store(true, Ordering::Relaxed);
            (7..13).for_each(|port| send(&mut lanes[0], port));
        });
    }
    assert!(mem0(&world.view).busy_polls > 0);
    world.end(lanes);
}

#[test]
fn the_end_of_the_stack_ends_a_call_that_polls() {
    for params in [LONG, PREFER, EpollParams { prefer_busy_poll: false, ..LONG }] {
        let (mut world, mut lanes, handle) = start(&[1], true);
        let socket = bind(&handle, 7, params);
        let got = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let end = scope.spawn(|| {
                while socket.recv(&mut [0; 9]).is_ok() {
                    got.fetch_add(1, Ordering::Relaxed);
                }
                socket.recv(&mut [0; 9]).unwrap_err().kind()
            });
            for n in 1..4 {
                send(&mut lanes[0], 7);
                until("it is received", || got.load(Ordering::Relaxed) == n);
            }
            world.stop();
            assert_eq!(end.join().unwrap(), ErrorKind::NetworkDown);
        });
        drop(socket);
        world.end(lanes);
    }
}

#[test]
fn streams_begin_as_their_listener_polls() {
    let (world, lanes, handle) = tcp::start();
    let listener = tcp::listen(&handle);
    assert_eq!(listener.busy_poll(), EpollParams::default());
    listener.set_busy_poll(LONG).unwrap();
    let [client, server] = tcp::pair(&handle, &listener);
    assert_eq!((server.busy_poll(), client.busy_poll()), (LONG, EpollParams::default()));
    // No packet of theirs came by an instance: there is none to poll, and they wait as ever.
    client.set_busy_poll(LONG).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 9];
            while let Ok(n @ 1..) = server.recv(&mut buffer) {
                assert_eq!(server.send(&buffer[..n]).unwrap(), n);
            }
        });
        for _ in 0..100 {
            assert_eq!(client.send(b"ask").unwrap(), 3);
            assert_eq!(client.recv(&mut [0; 9]).unwrap(), 3);
        }
        client.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let wrong = client.set_busy_poll(EpollParams { busy_poll_budget: 65, ..LONG }).unwrap_err();
    assert_eq!(wrong.to_string(), "busy_poll_budget: 65 is out of range, 1 to 64 expected");
    let wrong = client.set_busy_poll(EpollParams { busy_poll_usecs: 1 << 25, ..LONG }).unwrap_err();
    assert_eq!(wrong.to_string(), "busy_poll_usecs: 33554432 is out of range, 0 to 33554431 expected");
    assert_eq!(client.busy_poll(), LONG);
    drop((client, server, listener));
    world.end(lanes);
}
