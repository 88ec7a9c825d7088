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
use super::world::until;

/// Polls for long.
const LONG: EpollParams = EpollParams { busy_poll_usecs: 30_000_000, ..PREFER };

fn bind(handle: &softnet::net::Handle, port: u16, params: EpollParams) -> UdpSocket {
    let socket = UdpSocket::bind(handle, (own(0), port)).unwrap();
    socket.set_busy_poll(params).unwrap();
    socket
}

fn recv(socket: &UdpSocket) {
    assert_eq!(socket.recv(&mut [0; 64]).unwrap(), 5);
}

#[test]
fn a_call_polls_suspends_and_resumes() {
    let (world, mut lanes, handle) = start(&[1], true);
    set_knobs(&world.view, 10, HOUR, HOUR);
    let socket = bind(&handle, 7, PREFER);
    // The doorbell rings for the first, which tells of the instance.
    send(&mut lanes[0], 7);
    recv(&socket);
    // From now on only the thread polls.
    for _ in 0..100 {
        send(&mut lanes[0], 7);
        let before = mem0(&world.view);
        recv(&socket);
        let after = mem0(&world.view);
        assert!(after.busy_polls > before.busy_polls && after.suspensions > before.suspensions);
        assert_eq!(after.doorbells, before.doorbells);
    }
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let before = mem0(&world.view);
    assert_eq!(socket.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(mem0(&world.view).resumptions > before.resumptions, "nothing came: it gave way");
    drop(socket);
    world.end(lanes);
}

#[test]
fn what_waits_otherwise_leaves_the_queue_to_its_context() {
    let (world, mut lanes, handle) = start(&[1], true);
    set_knobs(&world.view, 10, 100_000, HOUR);
    let polls = bind(&handle, 7, PREFER);
    let blocks = UdpSocket::bind(&handle, (own(0), 8)).unwrap();
    for _ in 0..20 {
        // Suspended for an hour,
        until("it is", || {
            send(&mut lanes[0], 7);
            recv(&polls);
            mem0(&world.view).timer.is_some_and(|timer| timer.knob == "irq_suspend_timeout")
        });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(1));
                send(&mut lanes[0], 8);
            });
            // and the same thread waits for what does not poll.
            recv(&blocks);
        });
    }
    drop((polls, blocks));
    world.end(lanes);
}

#[test]
fn a_thread_that_ends_gives_the_queue_back() {
    let (world, mut lanes, handle) = start(&[1], true);
    set_knobs(&world.view, 10, 100_000, HOUR);
    let [polls, other] = [bind(&handle, 7, PREFER), bind(&handle, 8, EpollParams::default())];
    for _ in 0..20 {
        std::thread::scope(|scope| {
            let end = scope.spawn(|| {
                until("it is suspended", || {
                    send(&mut lanes[0], 7);
                    recv(&polls);
                    mem0(&world.view).timer.is_some_and(|timer| timer.knob == "irq_suspend_timeout")
                });
            });
            end.join().unwrap();
        });
        send(&mut lanes[0], 8);
        recv(&other);
    }
    drop((polls, other));
    world.end(lanes);
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
