//! Packet memory that runs short: what full sockets leave to others, and what threads keep that do nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use softnet::net::{Epoll, EpollParams, Handle, Interest, RecvBatch, UdpSocket};

use super::epoll::bind;
use super::frames::{host, own};
use super::udp::{datagram, start};
use super::world::{Lane, Setup, World, until};

/// Frames of the world's packet memory.
const FRAMES: u64 = 16384;

fn deliver(world: &World, lane: &mut Lane, port: u16, n: usize) {
    let before = world.view.stats().received;
    let frames: Vec<_> = (0..n).map(|i| datagram(0, own(0), (999, port), &[i as u8])).collect();
    let mut sent = 0;
    until("they are on the wire", || {
        sent += lane.send(&frames[sent..]);
        sent == n
    });
    world.settle(before + n as u64);
}

/// Twenty sockets that are not read hold all that sockets may. One that is read gets what comes to it, and so does another
/// that had nothing yet.
#[test]
fn sockets_that_are_not_read_starve_none_that_is() {
    let (world, mut lanes, handle) = start(&[1], true);
    let hogs: Vec<_> = (0..20).map(|i| bind(&handle, 100 + i)).collect();
    let (reads, waits) = (bind(&handle, 7), bind(&handle, 8));
    for port in 100..120 {
        deliver(&world, &mut lanes[0], port, 481);
    }
    // To the brim.
    (0..64).for_each(|_| deliver(&world, &mut lanes[0], 119, 1));
    let held = world.view.stats().held;
    assert!(held <= FRAMES / 2, "{held} wait");
    let mut buffer = [0; 9];
    for round in 0..100 {
        deliver(&world, &mut lanes[0], 7, 1);
        assert_eq!(reads.recv(&mut buffer).ok(), Some(1), "round {round}");
    }
    deliver(&world, &mut lanes[0], 8, 5);
    let got = std::iter::from_fn(|| waits.recv(&mut buffer).ok()).count();
    assert_eq!(got, 2, "as many as any socket may hold");
    // Each that was refused is in the books, of its socket and of the stack.
    let refused: u64 = world.view.sockets().iter().map(|row| row.drops).sum();
    assert_eq!(refused, 20 * 481 + 64 - held + 3);
    drop((hogs, reads, waits));
    world.end(lanes);
}

/// What a thread does after it has used packet memory.
#[derive(Clone, Copy)]
enum Then {
    Receive,
    WaitForEvents,
    PollAndWait,
    Park,
}

/// A thread that sends to itself and receives until its caches are full, and then does `then`.
fn idler(handle: &Handle, then: Then, idle: &Arc<AtomicUsize>) -> (Arc<AtomicU32>, JoinHandle<()>) {
    let (handle, idle, tid) = (handle.clone(), idle.clone(), Arc::new(AtomicU32::new(0)));
    let of = tid.clone();
    let body = move || {
        let socket = UdpSocket::bind(&handle, (own(0), 0)).unwrap();
        let to = socket.local_addr().unwrap();
        let mut batch = RecvBatch::new();
        for _ in 0..3 {
            assert_eq!(socket.send_batch(&[(&b"idle"[..], Some(to)); 60]).unwrap(), 60);
            assert_eq!(socket.recv_batch(&mut batch, 60).unwrap(), 60);
            batch.clear();
        }
        let mut epoll = Epoll::new(&handle).unwrap();
        epoll.ctl().add(&socket, Interest::IN, 1).unwrap();
        of.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
        idle.fetch_add(1, Ordering::Relaxed);
        match then {
            Then::Receive => assert!(socket.recv(&mut [0; 9]).is_err()),
            Then::WaitForEvents | Then::PollAndWait => {
                let prefer_busy_poll = matches!(then, Then::PollAndWait);
                let params = EpollParams { prefer_busy_poll, ..EpollParams::default() };
                epoll.set_params(params).unwrap();
                assert!(epoll.wait(&mut Vec::new(), 1, None).is_err());
            }
            Then::Park => std::thread::park(),
        }
    };
    (tid, std::thread::spawn(body))
}

/// More threads than the caches of all of them would leave memory for. They block, or have ceased to call.
#[test]
fn threads_that_do_nothing_leave_packet_memory_to_others() {
    const THREADS: usize = 240;
    let (mut world, mut lanes, handle) = start(&[1], true);
    let idle = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|i| {
            let then = [Then::Receive, Then::WaitForEvents, Then::PollAndWait, Then::Park][i % 4];
            let thread = idler(&handle, then, &idle);
            // One after the other: the first ones are alone with all memory.
            until("it is idle", || idle.load(Ordering::Relaxed) == i + 1 || thread.1.is_finished());
            until("it sleeps", || {
                let status = format!("/proc/self/task/{}/status", thread.0.load(Ordering::Relaxed));
                std::fs::read_to_string(status).is_ok_and(|status| status.contains("State:\tS"))
            });
            thread.1
        })
        .collect();
    let stats = world.view.stats();
    assert_eq!(stats.held, 0);
    assert!(FRAMES - stats.frames_free <= FRAMES / 7, "{} of {FRAMES} frames are free", stats.frames_free);
    assert!(FRAMES - stats.heads_free <= FRAMES / 7, "{} of {FRAMES} heads are free", stats.heads_free);
    // The stack still has what it takes.
    let socket = bind(&handle, 7);
    for _ in 0..20 {
        deliver(&world, &mut lanes[0], 7, 64);
        assert_eq!(super::epoll::drain(&socket), 64);
        socket.send_to(b"answer", (host(0), 9)).unwrap();
        until("it leaves", || lanes[0].receive(|_| {}) > 0);
    }
    world.stop();
    threads.iter().for_each(|thread| thread.thread().unpark());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    drop(socket);
    world.end(lanes);
}

/// With remote free, the heads that a worker took and a socket's reader frees are the worker's
/// again.
#[test]
fn what_a_reader_frees_goes_home_to_the_worker() {
    for limit in [0, 128] {
        let setup = Setup { ports: &[1], workers: 1, known: true, ..Setup::default() };
        let (world, mut lanes) = setup.start_with(|config| config.stack.skb_defer_max = limit);
        let socket = bind(&world.handle(), 7);
        for _ in 0..50 {
            deliver(&world, &mut lanes[0], 7, 40);
            (0..40).for_each(|_| assert_eq!(socket.recv(&mut [0; 9]).ok(), Some(1)));
        }
        let skb = world.view.skb();
        assert_eq!((skb.skb_defer_max, skb.heads.total, skb.leaked), (limit.into(), FRAMES, 0));
        let worker = skb.contexts.iter().find(|context| context.thread == "softnet/0").expect("the worker's");
        let sent: u64 = skb.contexts.iter().map(|context| context.heads.remote_frees).sum();
        let kept: u64 = skb.contexts.iter().map(|context| context.heads.local_at_limit).sum();
        assert!(worker.heads.came_home <= sent, "{skb:?}");
        // All that the worker took, the reader freed; the last ones may be on their way.
        assert_eq!(worker.heads.came_home >= 1500, limit > 0, "{skb:?}");
        assert!(sent + kept <= 2000 && worker.heads.refills > 0, "{skb:?}");
        drop(socket);
        world.end(lanes);
    }
}
