//! Threads that are blocked on one socket: which of them is woken, and that none is forgotten.

use std::sync::atomic::{AtomicUsize, Ordering};

use softnet::net::UdpSocket;

use super::frames::own;
use super::udp::{datagram, start};
use super::world::until;

/// How often the calling thread has let go of its CPU because it had to wait.
fn waits() -> usize {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn one_waiter_is_woken_for_a_datagram_and_all_by_the_end() {
    const THREADS: usize = 8;
    const N: usize = 100;
    let (mut world, mut lanes, handle) = start(&[1], true);
    let socket = UdpSocket::bind(&handle, (own(0), 7)).unwrap();
    let got = AtomicUsize::new(0);
    let waited: usize = std::thread::scope(|scope| {
        let receive = || {
            let before = waits();
            while socket.recv(&mut [0; 9]).is_ok() {
                got.fetch_add(1, Ordering::Relaxed);
            }
            waits() - before
        };
        let threads = [(); THREADS].map(|()| scope.spawn(receive));
        for i in 1..=N {
            lanes[0].send(&[datagram(0, own(0), (999, 7), b"x")]);
            until("one receives it", || got.load(Ordering::Relaxed) == i);
        }
        world.stop();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(waited < N * THREADS / 2, "{waited} times a thread slept for {N} datagrams");
    drop(socket);
    world.end(lanes);
}

/// Many come at once, and are told as few: each thread gets one.
#[test]
fn a_woken_thread_wakes_the_next() {
    const THREADS: usize = 8;
    let (world, mut lanes, handle) = start(&[1], true);
    let socket = UdpSocket::bind(&handle, (own(0), 7)).unwrap();
    for _ in 0..200 {
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| socket.recv(&mut [0; 9]).unwrap());
            }
            let frames = [(); THREADS].map(|()| datagram(0, own(0), (999, 7), b"x"));
            assert_eq!(lanes[0].send(&frames), THREADS);
        });
    }
    drop(socket);
    world.end(lanes);
}
