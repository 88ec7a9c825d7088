//! Connections where memory is scarce, or room before the device.

use super::*;

/// Connections whose readers are slow hold less where memory is scarce; where there is none the segment is
/// dropped and counted, what it acknowledges has been acknowledged, and the window that is told is closed.
#[test]
fn memory_that_is_scarce_is_shared() {
    let held = |pressed: bool| {
        let mut world = World::new();
        let of = world.listen(5);
        let [client, server] = world.pair(of, 1000);
        world.pressed = pressed;
        let (mut sent, data) = (0, vec![1; 60_000]);
        for _ in 0..300 {
            sent += world.write(client, &data).unwrap_or(0);
            // It reads half of what comes.
            let _ = world.read(server, 700);
            world.wait(1_000_000);
        }
        let info = enter!(&mut world, |shard, _ctx, env, _listeners, _out| shard.info(env, server).unwrap());
        assert!(sent > 0);
        world.end();
        info.info.rcv_ssthresh
    };
    let (ample, scarce) = (held(false), held(true));
    assert!(scarce <= 64 << 10 && ample > scarce, "{ample}, {scarce}");

    let mut world = World::new();
    let of = world.listen(5);
    let [client, server] = world.pair(of, 1000);
    world.lose = |_| true;
    world.write(server, b"to be acknowledged").unwrap();
    world.lose = |_| false;
    world.wait(300_000_000);
    assert_eq!(world.read(client, 100).unwrap().len(), 18);
    world.write(client, b"waits").unwrap();
    // One frame: the writer's.
    (world.shard.taken, world.room) = (0, SockMem::new(4096).room(2047));
    world.write(client, b"is too much").unwrap();
    let counters = world.shard.counters;
    assert_eq!((counters.rcv_q_drop, counters.to_zero_window_adv), (1, 1));
    world.room = SockMem::new(1 << 20).room(0);
    world.wait(3_000_000_000);
    assert_eq!(world.read(server, 100).unwrap(), b"waitsis too much");
    world.end();
}

/// Writers have their part of memory used up: they wait, and what arrives is taken as before.
#[test]
fn writers_leave_memory_to_what_arrives() {
    let mut world = World::new();
    let of = world.listen(5);
    let [client, server] = world.pair(of, 1000);
    let memory = SockMem::new(4096);
    let queued = memory.shared() / 2;
    (world.room, world.send_room) = (memory.room(queued), memory.send_room(queued));
    world.lose = |_| true;
    assert!(world.write(client, &[0; 10_000]).unwrap() <= 2 * 2048, "a frame or two");
    assert!(!world.ready(client)[1], "a short write says that it has to wait");
    assert_eq!(world.write(client, &[0; 10_000]), Err(CallError::WouldBlock));
    let (frames, queued_now) = world.shard.frames();
    assert!(
        frames == queued_now && (1..=3).contains(&frames),
        "{frames} frames, {queued_now} of them to be sent"
    );
    world.lose = |_| false;
    world.wait(1_000_000_000);
    assert!(world.ready(client)[1], "its own are acknowledged");
    // The peer has room to write.
    world.send_room = memory.send_room(0);
    let data = vec![7; 30_000];
    assert_eq!(world.write(server, &data), Ok(data.len()));
    world.send_room = memory.send_room(queued);
    world.wait(1_000_000_000);
    assert_eq!(world.read(client, data.len()).unwrap(), data);
    assert_eq!(world.shard.counters.rcv_q_drop, 0);
    let _ = world.read(server, 10_000);
    world.end();
}

/// A writer that has nothing queued waits for memory that others hold, and is told of it although no ACK comes.
#[test]
fn a_writer_without_memory_is_told_when_there_is_some() {
    let mut world = World::new();
    let of = world.listen(5);
    let [client, server] = world.pair(of, 1000);
    let (none, some) = (SockMem::new(4096).room(2048), SockMem::new(4096).room(2047));
    world.room = none;
    assert_eq!(world.write(client, b"late"), Err(CallError::WouldBlock));
    assert!(!world.ready(client)[1]);
    assert_eq!(world.write(client, b"late"), Err(CallError::WouldBlock));
    world.wait(100_000_000);
    assert!(!world.ready(client)[1], "others hold all of it still");
    assert_eq!(world.shard.starving, 1);
    world.room = some;
    world.wait(10_000_000);
    assert!(world.ready(client)[1]);
    assert_eq!(world.shard.starving, 0);
    assert_eq!(world.write(client, b"late"), Ok(4));
    world.room = SockMem::new(1 << 20).room(0);
    world.wait(1_000_000_000);
    assert_eq!(world.read(server, 9).unwrap(), b"late");

    // One that ends meanwhile is counted no more, and its end is seen.
    world.room = none;
    assert_eq!(world.write(client, b"late"), Err(CallError::WouldBlock));
    enter!(&mut world, |shard, ctx, env, _listeners, out| {
        shard.enter(ctx, env, out, client.index, |conn, cx| conn.abort(cx, Some(Error::ConnectionReset)));
    });
    world.deliver();
    assert!(world.ready(client)[1]);
    assert_eq!(world.shard.starving, 0);
    world.room = SockMem::new(1 << 20).room(0);
    world.end();
}

/// The last packets of each burst find no room before the device: they go again within the 10 ms in which
/// a connection looks again, and none waits for a time-out.
#[test]
fn what_a_queue_drops_its_connection_sends_again() {
    let mut world = World::new();
    let of = world.listen(5);
    let [client, server] = world.pair(of, 1000);
    world.tells = true;
    world.lose = |n| n % 3 == 0;
    let data: Vec<u8> = (0..200_000).map(byte).collect();
    let (mut written, mut read) = (0, Vec::new());
    for _ in 0..2000 {
        if let Ok(n) = world.write(client, &data[written..data.len().min(written + 30_000)]) {
            written += n;
        }
        match world.read(server, 100_000) {
            Ok(bytes) => read.extend(bytes),
            Err(error) => assert_eq!(error, CallError::WouldBlock),
        }
        if read.len() == data.len() {
            break;
        }
        world.wait(1_000_000);
    }
    assert_eq!(read, data);
    let send = world.shard.counters.send;
    assert!(send.retrans_segs > 0, "{send:?}");
    assert_eq!(send.tcp_timeouts, 0, "{send:?}");
    world.lose = |_| false;
    world.end();
}

/// Of a packet that is dropped a connection is told what it numbers, if it would send that again, and
/// that is the discipline's doing, or the ring's.
#[test]
fn what_is_told_of_a_drop() {
    let mut world = World::new();
    let of = world.listen(5);
    let [client, _] = world.pair(of, 1000);
    let una = world.shard.sock(client).unwrap().tx_base();
    enter!(&mut world, |shard, ctx, env, _listeners, out| {
        shard.write(ctx, env, client, (&[7; 5000], false), out).unwrap();
    });
    let skb = world.out.local.pop_front().unwrap();
    let told = |reason| Told::dropped(&skb, reason);
    let mut first = told(DropReason::QdiscOverlimit).unwrap();
    let News::Dropped { len } = first.what else { panic!("{first:?}") };
    assert_eq!((first.flow.lport, first.seq), (1000, una));
    assert!(len >= 1448, "a run, or its first segment: {len}");
    assert_eq!(told(DropReason::QdiscLoss), None, "that is a network's loss");
    assert_eq!(told(DropReason::Shutdown), None);
    // What follows is taken in, what does not is not.
    let next = Told { seq: una + len, ..first };
    assert!(first.extend(&next) && first.what == News::Dropped { len: 2 * len });
    assert!(!first.extend(&next));
    world.ctx.free(skb, DropReason::FullRing);
    world.deliver();
    // An ACK is not sent again.
    world.wait(1_000_000_000);
    let ack = enter!(&mut world, |shard, ctx, env, _listeners, out| {
        shard.read(ctx, env, client, &mut [0; 1], out).unwrap_err()
    });
    assert_eq!(ack, CallError::WouldBlock);
    world.close(client);
    world.end();
}
