//! What becomes of senders while too many packets are pending before their TX queue: which of them
//! wait, which do not, and how they are told of room.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use softnet::WouldBlock;
use softnet::control::{Action, Direction, MirredAction, SetFilter, SetMirred};
use softnet::net::{Epoll, Interest, SendBatch, UdpSocket};
use softnet_core::qdisc::Verdict;

use super::frames::{host, number_of, own};
use super::sender::{Gate, packet, root, start};
use super::world::until;

/// Each of the sockets whose datagrams wait in a batch is told when the batch may be sent.
#[test]
fn a_send_batch_that_is_held_back_makes_its_sockets_wait_for_room() {
    const BURST: usize = 8;
    let gate = Gate::default();
    let (world, stack, lane) = start("pfifo limit 1000", BURST as u32, &gate);
    let sockets = [7, 8, 9].map(|port| UdpSocket::bind(&stack.handle(), (own(0), port)).unwrap());
    let writable =
        |n: usize| sockets.each_ref().map(|socket| socket.readiness().writable) == [n > 0, n > 1, n > 2];
    let mut set = Epoll::new(&stack.handle()).unwrap();
    set.ctl().add(&sockets[1], Interest::OUT | Interest::EDGE, 1).unwrap();
    let mut events = Vec::new();
    let mut out = SendBatch::new(&stack.handle());
    std::thread::scope(|scope| {
        let shut = gate.shut(scope, stack.sender("mem0").unwrap());
        set.wait(&mut events, 8, Some(Duration::ZERO)).unwrap();
        sockets[0].set_nonblocking(true).unwrap();
        // Fills the list; this socket is not held back itself.
        for _ in 0..BURST {
            sockets[0].send_to(b"x", (host(0), 9)).unwrap();
        }
        for socket in &sockets[1..] {
            out.push(socket, b"y", Some((host(0), 9).into())).unwrap();
        }
        assert!(writable(3));
        assert_eq!(out.flush(Duration::ZERO).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(writable(1), "those whose datagrams wait are held back");
        drop(shut);
        until("they may send again", || writable(3));
        assert_eq!(set.wait(&mut events, 8, Some(Duration::from_secs(60))).unwrap(), 1);
        assert!(events[0].token == 1 && events[0].is_writable());
        out.flush(Duration::from_secs(60)).unwrap();
    });
    drop((set, out, sockets, stack));
    world.end(vec![lane]);
}

/// What a filter or hook has had cannot be given back: it is taken although the queue is full by
/// then.
#[test]
fn a_sender_that_does_not_block_does_not_wait_behind_a_filter() {
    let gate = Gate::default();
    let (world, stack, mut lane) = start("pfifo limit 1000", 1, &gate);
    // The copy of a packet fills the list before the packet itself comes there.
    let mirred = SetMirred { direction: Direction::Egress, action: MirredAction::Mirror, dev: "mem0".into() };
    let filter = |action, mirred| SetFilter { dev: "mem0".into(), parent: Direction::Egress, action, mirred };
    let mut sender = stack.sender("mem0").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let shut = gate.shut(scope, stack.sender("mem0").unwrap());
        stack.view().set_filter(&filter(Action::Add, Some(mirred))).unwrap();
        let send = scope.spawn(|| {
            let mut batch = packet(sender.ctx(), 1, 0);
            let first = sender.try_send(&mut batch);
            let mut next = packet(sender.ctx(), 1, 1);
            let second = sender.try_send(&mut next);
            sender.ctx().free_skbs(&mut next, |_| {});
            done.store(true, Ordering::Release);
            (first, second)
        });
        until("the sender is not blocked", || done.load(Ordering::Acquire));
        assert_eq!(send.join().unwrap(), (Ok(Verdict::Success), Err(WouldBlock)));
        stack.view().set_filter(&filter(Action::Del, None)).unwrap();
        drop(shut);
    });
    let mut of_sender = 0;
    until("both are sent", || {
        lane.receive(|frame| of_sender += usize::from(number_of(frame) == Some((1, 0))));
        of_sender == 2
    });
    drop((sender, stack));
    world.end(vec![lane]);
}

/// A socket tells of its addresses while another thread is held back in it.
#[test]
fn a_socket_whose_sender_waits_tells_its_addresses() {
    let gate = Gate::default();
    let (world, stack, lane) = start("pfifo limit 1000", 1, &gate);
    let socket = UdpSocket::bind(&stack.handle(), (own(0), 7)).unwrap();
    socket.connect((host(0), 9)).unwrap();
    let told = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let shut = gate.shut(scope, stack.sender("mem0").unwrap());
        let send = scope.spawn(|| (0..2).map(|_| socket.send(b"x").unwrap()).sum::<usize>());
        until("the sender waits", || root(&world).tx.unwrap().held_back == 1);
        let ask = scope.spawn(|| {
            let told_of = (socket.local_addr().unwrap(), socket.peer_addr().unwrap(), format!("{socket:?}"));
            told.store(true, Ordering::Release);
            told_of
        });
        until("the socket tells of itself", || told.load(Ordering::Acquire));
        let (local, peer) = (SocketAddr::from((own(0), 7)), SocketAddr::from((host(0), 9)));
        let debug = format!("UdpSocket {{ local: Some({local:?}), peer: Some({peer:?}) }}");
        assert_eq!(ask.join().unwrap(), (local, peer, debug));
        drop(shut);
        assert_eq!(send.join().unwrap(), 2);
    });
    drop((socket, stack));
    world.end(vec![lane]);
}
