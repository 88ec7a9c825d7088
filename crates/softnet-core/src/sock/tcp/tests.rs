//! Connections from one end of a shard to another, in virtual time: each packet is read, its books
//! are kept, and all memory goes home.

use std::collections::HashMap;

use softnet_tcp::conn::{Error, Shutdown, SockOpt};
use softnet_tcp::listen::Listener;
use softnet_tcp::{Config, ConnOptions};

use super::*;
use crate::SoftnetData;
use crate::ip::pmtu::{PmtuCache, PmtuParams};
use crate::ip::tables::Tables;
use crate::ip::testing::context;
use crate::siphash::SipKey;
use crate::skb::{DropReason, Skb};
use crate::sock::key::mapped;
use crate::sock::{Bind, Binder, Room, SendRoom, SockMem, Sockets, stream};

const SERVER: u128 = mapped(0x7f00_0001);
const CLIENT: u128 = mapped(0x7f00_0002);
const PORT: u16 = 80;

/// The listeners of a world, by slot.
#[derive(Default)]
struct Table(HashMap<(u32, u32), ListenState>);

impl Listeners for Table {
    fn with<R>(&mut self, listener: (u32, u32), f: impl FnOnce(&mut ListenState) -> R) -> Option<R> {
        self.0.get_mut(&listener).map(f)
    }
}

struct World {
    ctx: SoftnetData,
    cfg: Config,
    tables: Tables,
    pmtu: PmtuCache,
    binder: Binder,
    inboxes: Vec<TcpInbox>,
    listeners: Table,
    shard: Shard,
    now: u64,
    napi_id: u32,
    room: Room,
    send_room: SendRoom,
    pressed: bool,
    /// What the client's path carries.
    path_mss: u16,
    /// Packets that are lost, by number.
    lose: fn(usize) -> bool,
    /// Their connection is told, as a TX queue does that has no room.
    tells: bool,
    sent: usize,
    out: Effects,
}

/// Every entry, with its surroundings made of the world's fields.
macro_rules! enter {
    ($world:expr, |$shard:ident, $ctx:ident, $env:ident, $listeners:ident, $out:ident| $body:expr) => {{
        let world = &mut *$world;
        let sockets: &Sockets = world.binder.sockets();
        let key = SipKey::new([1, 2]);
        let $env = &Env {
            now: world.now,
            cfg: &world.cfg,
            tables: &world.tables,
            key: &key,
            paths: world.pmtu.paths(),
            sockets,
            napi_id: world.napi_id,
            room: world.room,
            send_room: world.send_room,
            backlog: &|_| 0,
            reserve: &|_, _| false,
            pressed: world.pressed,
            max_time_waits: 2,
            max_orphans: 2,
        };
        let (ctx, shard, out) = (&mut world.ctx, &mut world.shard, &mut world.out);
        let $listeners = &mut world.listeners;
        let ($shard, $ctx, $out) = (&mut *shard, &mut *ctx, &mut *out);
        let result = $body;
        shard.finish(ctx, $env, out);
        result
    }};
}

mod scarce;

impl World {
    fn new() -> Self {
        let ctx = context();
        let binder = Binder::new(ctx.region().clone(), 64, 7);
        let key = FoldKey::new([3, 4]);
        World {
            cfg: Config::default(),
            tables: Tables::new(key),
            pmtu: PmtuCache::new(PmtuParams::default(), key),
            binder,
            inboxes: Vec::new(),
            listeners: Table::default(),
            shard: Shard::new(key),
            now: 1_000_000_000,
            napi_id: 0,
            room: SockMem::new(1 << 20).room(0),
            send_room: SockMem::new(1 << 20).send_room(0),
            pressed: false,
            path_mss: 1460,
            lose: |_| false,
            tells: false,
            sent: 0,
            out: Effects::default(),
            ctx,
        }
    }

    fn listen(&mut self, backlog: i32) -> (u32, u32) {
        let bind =
            Bind { local: SERVER, port: PORT, v4: true, v6: false, dev: None, reuseport: false, limit: 0 };
        let inbox: TcpInbox = self.binder.open(&bind).unwrap();
        let of = (inbox.slot().index(), inbox.slot().slot().generation());
        let engine = Listener::new(&self.cfg, backlog, ConnOptions::default());
        self.listeners.0.insert(of, ListenState::new(engine));
        self.inboxes.push(inbox);
        of
    }

    fn slot(&mut self) -> u32 {
        self.binder.open_unlisted().unwrap().index()
    }

    fn connect(&mut self, lport: u16) -> ConnId {
        let slot = self.slot();
        let flow = Flow { local: CLIENT, remote: SERVER, lport, rport: PORT, protocol: 6 };
        let path_mss = self.path_mss;
        let id = enter!(self, |shard, ctx, env, _listeners, out| {
            let (marks, options) = (Marks::default(), &ConnOptions::default());
            shard.connect(ctx, env, &Open { flow, marks, options, path_mss, slot }, out).unwrap()
        });
        self.deliver();
        id
    }

    fn accept(&mut self, of: (u32, u32)) -> Option<ConnId> {
        let child = self.listeners.with(of, ListenState::pop)??;
        let slot = self.slot();
        enter!(self, |shard, _ctx, _env, _listeners, _out| assert!(shard.attach(child.id, slot)));
        Some(child.id)
    }

    /// Delivers what was sent, and what is sent in answer, until nothing is.
    fn deliver(&mut self) {
        assert!(self.out.send.is_empty() && self.out.unresolved.is_empty(), "all is local");
        while let Some(skb) = self.out.local.pop_front() {
            self.sent += 1;
            if (self.lose)(self.sent) {
                let told = Told::dropped(&skb, DropReason::FullRing).filter(|_| self.tells);
                if self.tells && told.is_none() {
                    // An ACK gets through: it is not sent again.
                    self.input(skb);
                    continue;
                }
                self.ctx.free(skb, DropReason::FullRing);
                if let Some(told) = told {
                    enter!(self, |shard, ctx, env, _listeners, out| shard.told(ctx, env, &told, out));
                }
                continue;
            }
            self.input(skb);
        }
        self.out.wake.clear();
        self.out.arrived.clear();
    }

    fn input(&mut self, skb: Skb) {
        let packet = packet::read(&skb).unwrap();
        enter!(self, |shard, ctx, env, listeners, out| {
            shard.input(ctx, env, listeners, (packet, skb), out)
        });
    }

    /// Lets time pass to the next deadline, at most `ns`.
    fn wait(&mut self, ns: u64) {
        let until = self.now + ns;
        loop {
            self.now = self.shard.next_deadline().clamp(self.now, until);
            enter!(self, |shard, ctx, env, listeners, out| shard.on_time(ctx, env, listeners, 64, out));
            self.deliver();
            if self.now == until {
                return;
            }
        }
    }

    fn write(&mut self, id: ConnId, data: &[u8]) -> Result<usize, CallError> {
        let written =
            enter!(self, |shard, ctx, env, _listeners, out| shard.write(ctx, env, id, (data, false), out));
        self.deliver();
        written
    }

    fn read(&mut self, id: ConnId, most: usize) -> Result<Vec<u8>, CallError> {
        let mut buffer = vec![0; most];
        let read =
            enter!(self, |shard, ctx, env, _listeners, out| shard.read(ctx, env, id, &mut buffer, out));
        self.deliver();
        read.map(|n| buffer[..n].to_vec())
    }

    fn close(&mut self, id: ConnId) {
        enter!(self, |shard, ctx, env, _listeners, out| shard.close(ctx, env, id, out));
        self.deliver();
    }

    fn shutdown(&mut self, id: ConnId) {
        enter!(self, |shard, ctx, env, _listeners, out| {
            shard.shutdown(ctx, env, id, Shutdown::Write, out).unwrap();
        });
        self.deliver();
    }

    fn ready(&self, id: ConnId) -> [bool; 5] {
        let slot = self.shard.sock(id).unwrap().slot;
        let now = self.binder.sockets().slot(slot).unwrap().readiness();
        [now.readable, now.writable, now.error, now.peer_closed, now.hung_up]
    }

    /// A connection, its client first.
    fn pair(&mut self, of: (u32, u32), lport: u16) -> [ConnId; 2] {
        let client = self.connect(lport);
        [client, self.accept(of).expect("accepted")]
    }

    /// The books are in order, and nothing is held but what connections hold.
    fn end(mut self) {
        enter!(&mut self, |shard, ctx, env, _listeners, _out| shard.clear(ctx, env));
        assert_eq!(self.shard.frames(), (0, 0));
        for inbox in self.inboxes.drain(..) {
            inbox.close(&mut self.ctx);
        }
        let stats = self.ctx.stats();
        assert_eq!(stats.sk_queued.get(), stats.sk_taken.get());
        assert_eq!(stats.originated.get(), stats.delivered.get() + stats.dropped(), "each packet ends once");
        self.ctx.drain();
    }
}

fn byte(at: usize) -> u8 {
    (at * 31 % 251) as u8
}

/// Moves `len` bytes from `from` to `to`, and checks them.
fn transfer(world: &mut World, [from, to]: [ConnId; 2], len: usize) {
    let data: Vec<u8> = (0..len).map(byte).collect();
    let (mut written, mut read) = (0, Vec::new());
    for _ in 0..100_000 {
        if written < len {
            match world.write(from, &data[written..len.min(written + 30_000)]) {
                Ok(n) => written += n,
                Err(CallError::WouldBlock) => {}
                Err(error) => panic!("{error:?} after {written}"),
            }
        }
        match world.read(to, 10_000) {
            Ok(more) => read.extend(more),
            Err(CallError::WouldBlock) => world.wait(1_000_000_000),
            Err(error) => panic!("{error:?} after {}", read.len()),
        }
        if read.len() == len {
            break;
        }
    }
    assert!(read == data, "{} of {len} bytes", read.len());
}

#[test]
fn bytes_arrive_in_order_both_ways_and_both_ends_end() {
    let mut world = World::new();
    let of = world.listen(5);
    let [client, server] = world.pair(of, 1000);
    assert_eq!([world.ready(client), world.ready(server)], [[false, true, false, false, false]; 2]);
    transfer(&mut world, [client, server], 1_000_000);
    transfer(&mut world, [server, client], 300_000);
    world.shutdown(client);
    assert_eq!(world.read(server, 10), Ok(vec![]), "the end");
    assert_eq!(world.ready(server), [true, true, false, true, false]);
    transfer(&mut world, [server, client], 100_000);
    world.close(server);
    assert_eq!(world.read(client, 10), Ok(vec![]));
    world.close(client);
    assert_eq!(world.shard.len(), [0, 0, 1], "one is in TIME-WAIT");
    world.wait(61_000_000_000);
    assert!(world.shard.is_empty());
    world.end();
}

#[test]
fn what_is_lost_is_sent_again() {
    let mut world = World::new();
    let of = world.listen(5);
    let pair = world.pair(of, 1000);
    world.lose = |n| n % 7 == 3;
    transfer(&mut world, pair, 500_000);
    assert!(world.shard.counters.each().any(|(name, n)| name == "TcpRetransSegs" && n > 0));
    world.lose = |_| false;
    world.end();
}

#[test]
fn a_stranger_is_refused_and_a_client_learns_it() {
    let mut world = World::new();
    let client = world.connect(1000);
    assert_eq!(world.ready(client), [true, true, true, true, true]);
    assert_eq!(world.read(client, 1), Err(CallError::Ended(Error::ConnectionRefused)));
    assert_eq!(world.read(client, 1), Ok(vec![]), "it is told once");
    world.close(client);
    assert!(world.shard.is_empty());
    world.end();
}

/// Sixty small messages would use up the receive buffer if each had a frame of its own.
#[test]
fn small_messages_share_frames() {
    let mut world = World::new();
    let of = world.listen(5);
    let [client, server] = world.pair(of, 1000);
    enter!(&mut world, |shard, ctx, env, _listeners, out| {
        shard.set_option(ctx, env, client, SockOpt::NoDelay(true), out).unwrap();
    });
    for i in 0..1000 {
        assert_eq!(world.write(client, &[byte(i); 64]), Ok(64), "message {i}");
        world.wait(1_000_000);
    }
    let frames = world.shard.sock(server).unwrap().rx.frames();
    assert!((64_000 / 2048..60).contains(&frames), "{frames} frames");
    let read = world.read(server, 100_000).unwrap();
    assert_eq!(read.len(), 64_000);
    assert!(read.chunks(64).enumerate().all(|(i, message)| message == [byte(i); 64]));
    world.end();
}

#[test]
fn a_reader_that_has_left_resets() {
    let mut world = World::new();
    let of = world.listen(5);
    let [client, server] = world.pair(of, 1000);
    world.write(client, b"unread").unwrap();
    world.close(server);
    assert_eq!(world.write(client, b"more"), Err(CallError::Ended(Error::ConnectionReset)));
    assert_eq!(world.write(client, b"more"), Err(CallError::Shut));
    world.close(client);
    assert!(world.shard.is_empty());
    world.end();
}

/// A peer with a small MSS gets as much in a run as any, in no more frames than a chain holds.
#[test]
fn runs_of_very_small_segments_are_sent() {
    let mut world = World::new();
    world.path_mss = 150;
    let of = world.listen(5);
    let [client, server] = world.pair(of, 1000);
    let before = world.now;
    transfer(&mut world, [client, server], 2_000_000);
    assert!(world.now - before < 3_000_000_000, "{} ns", world.now - before);
    world.end();
}

/// All sockets together hold as much as they may: a connection with nothing queued gets on, and
/// others wait for what they have queued.
#[test]
fn without_room_a_connection_gets_on_frame_by_frame() {
    let mut world = World::new();
    let of = world.listen(5);
    let [client, server] = world.pair(of, 1000);
    // The shared part is used up, and the reserve is there.
    world.room = SockMem::new(4096).room(1536);
    transfer(&mut world, [client, server], 50_000);
    // Nothing is acknowledged meanwhile.
    world.lose = |_| true;
    assert!(world.write(client, &[0; 10_000]).unwrap() <= 2 * 2048);
    assert_eq!(world.write(client, &[0; 10_000]), Err(CallError::WouldBlock));
    assert!(!world.ready(client)[1], "it is told when it may write");
    world.lose = |_| false;
    world.wait(1_000_000_000);
    assert!(world.ready(client)[1]);
    world.end();
}

#[test]
fn a_full_accept_queue_makes_clients_wait() {
    let mut world = World::new();
    let of = world.listen(0);
    let clients: Vec<ConnId> = (0..3).map(|i| world.connect(1000 + i)).collect();
    assert_eq!(world.listeners.0[&of].len(), 1);
    let first = world.accept(of).unwrap();
    world.wait(4_000_000_000);
    let second = world.accept(of).expect("the SYN came again");
    for id in clients.into_iter().chain([first, second]) {
        world.close(id);
    }
    world.end();
}

#[test]
fn a_listener_is_polled_by_what_brings_it_connections() {
    let mut world = World::new();
    let of = world.listen(8);
    let listener = |world: &World| world.binder.sockets().slot(of.0).unwrap().napi_id();
    // Of the handshake, the SYN and the SYN-ACK arrive, but not what ends it.
    (world.napi_id, world.lose) = (8193, |number| number == 3);
    let client = world.connect(1000);
    assert_eq!((listener(&world), world.accept(of)), (0, None), "a SYN is no event of it");
    world.lose = |_| false;
    world.write(client, b"request").unwrap();
    assert_eq!(listener(&world), 8193);
    let server = world.accept(of).expect("accepted");
    // What was sent here came by no instance.
    world.napi_id = 0;
    let [_, other] = world.pair(of, 1001);
    assert_eq!(listener(&world), 8193, "the last that is known");
    for id in [client, server, other] {
        world.close(id);
    }
    world.end();
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut world = World::new();
    let of = world.listen(5);
    for lport in 1000..1005 {
        let [client, server] = world.pair(of, lport);
        world.close(client);
        world.close(server);
    }
    assert_eq!(world.shard.len(), [0, 0, 2], "as many as max_time_waits says");
    assert!(!world.shard.contains(&Flow {
        local: CLIENT,
        remote: SERVER,
        lport: 1004,
        rport: PORT,
        protocol: 6
    }));
    world.end();
}

/// What a connection took to send it gives back when it has been idle for a while.
#[test]
fn an_idle_connection_holds_no_memory() {
    let mut world = World::new();
    let of = world.listen(5);
    let [client, server] = world.pair(of, 1000);
    assert_eq!(world.write(client, b"a request"), Ok(9));
    assert!(world.shard.sock(client).unwrap().conn.memory() > 0);
    world.wait(1_000_000_000);
    assert_eq!(world.shard.sock(client).unwrap().conn.memory(), 0);
    for id in [client, server] {
        world.close(id);
    }
    world.end();
}

/// Connections that no application has any more end in their own time, but not any number of them.
#[test]
fn orphans_are_bounded() {
    let mut world = World::new();
    let of = world.listen(5);
    let pairs: Vec<_> = (1000..1004).map(|lport| world.pair(of, lport)).collect();
    // No segment gets through: what closes now can't end by itself.
    world.lose = |_| true;
    let resets = world.shard.counters.abort_on_memory;
    for [client, _] in &pairs {
        world.close(*client);
    }
    assert_eq!(world.shard.counters.abort_on_memory - resets, 2, "two, as max_orphans says, may stay");
    world.lose = |_| false;
    for [_, server] in pairs {
        world.close(server);
    }
    world.end();
}

/// A message about a segment in flight ends a connection that is being opened, and makes segments
/// shorter; others are not believed.
#[test]
fn icmp_is_believed_about_what_is_in_flight() {
    let mut world = World::new();
    world.lose = |_| true;
    let client = world.connect(1000);
    let flow = world.shard.sock(client).unwrap().flow;
    let seq = softnet_tcp::Seq(12345);
    let what = News::Error(Error::HostUnreachable);
    let told = |world: &mut World, seq, what| {
        let told = Told { flow, seq, what };
        enter!(world, |shard, ctx, env, _listeners, out| shard.told(ctx, env, &told, out))
    };
    told(&mut world, seq, what);
    assert!(!world.ready(client)[2], "a number that was never sent");
    world.lose = |_| false;
    world.close(client);
    let of = world.listen(5);
    let [client, server] = world.pair(of, 1001);
    let flow = world.shard.sock(client).unwrap().flow;
    world.lose = |_| true;
    world.write(client, &[1; 5000]).unwrap();
    let una = world.shard.sock(client).unwrap().tx_base();
    let big = News::TooBig { mtu: 600, len: 1500 };
    let told = Told { flow, seq: una, what: big };
    let shorter = enter!(&mut world, |shard, ctx, env, _listeners, out| shard.told(ctx, env, &told, out));
    assert!(shorter);
    world.lose = |_| false;
    world.wait(3_000_000_000);
    assert_eq!(world.read(server, 10_000).unwrap().len(), 5000);
    let info = enter!(&mut world, |shard, _ctx, env, _listeners, _out| shard.info(env, client).unwrap());
    assert!(info.info.send.snd_mss <= 560, "{:?}", info.info.send);
    world.end();
}

#[test]
fn readiness_is_that_of_a_stream() {
    // A slot that is no stream's says nothing of streams.
    let mut world = World::new();
    let slot = world.slot();
    let slot = world.binder.sockets().slot(slot).unwrap();
    assert!(slot.set_stream(stream::READABLE) && !slot.set_stream(stream::READABLE));
    let now = slot.readiness();
    assert!(now.readable && !now.writable && !now.hung_up);
    // Waiters are told of what they can do, not of what they can do no more.
    assert!(!slot.set_stream(0) && !slot.readiness().readable);
    assert!(slot.set_stream(stream::WRITABLE | stream::READABLE) && !slot.set_stream(stream::WRITABLE));
    world.end();
}

#[test]
fn a_held_end_is_free_when_its_connections_are_forgotten() {
    let mut world = World::new();
    world.shard.count_ends();
    let of = world.listen(5);
    let pairs = [1000, 1001].map(|lport| world.pair(of, lport));
    assert!(world.shard.hold_end((CLIENT, 1000)), "as one that connects does");
    // The listener goes; of other ends there is nothing to hold.
    let mut left: Vec<_> = world.shard.ends_not_held().collect();
    left.sort_unstable();
    assert_eq!(left, [(SERVER, PORT), (CLIENT, 1001)]);
    assert!(world.shard.hold_end((SERVER, PORT)));
    // The first client closes first: it is in TIME-WAIT, the server is gone.
    let [[client, server], other] = pairs;
    world.close(client);
    assert_eq!(world.read(server, 1), Ok(vec![]));
    world.close(server);
    assert_eq!(world.shard.len(), [2, 0, 1]);
    assert!(world.out.free.is_empty());
    world.wait(61_000_000_000);
    assert_eq!(std::mem::take(&mut world.out.free), [(CLIENT, 1000)]);
    // The other one ends by a reset.
    world.write(other[0], b"unread").unwrap();
    world.close(other[1]);
    assert_eq!(std::mem::take(&mut world.out.free), [(SERVER, PORT)]);
    world.close(other[0]);
    assert!(world.shard.is_empty() && world.out.free.is_empty(), "that end was not held");
    world.end();
}
