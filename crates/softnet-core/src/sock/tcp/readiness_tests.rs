//! Both ends of connections in one shard, without threads: what a poller is told in each state.

use std::sync::Arc;

use softnet_tcp::conn::{Error, Shutdown, SockOpt};
use softnet_tcp::listen::Listener;
use softnet_tcp::{Config, ConnOptions};

use super::super::key::addr_of;
use super::super::{Bind, Binder, Slot, SlotRef, SockMem, stream};
use super::*;
use crate::SoftnetData;
use crate::ip::Prefix;
use crate::ip::adjacency::{Adjacency, Kind};
use crate::ip::iface::Iface;
use crate::ip::pmtu::{PmtuCache, PmtuParams};
use crate::ip::source::RpFilter;
use crate::ip::tables::Tables;
use crate::ip::testing::context;
use crate::ip::v4::fib::Fib;
use crate::siphash::SipKey;

/// The one listener of a world.
struct Listening {
    inbox: TcpInbox,
    state: ListenState,
}

impl Listeners for Listening {
    fn with<R>(
        &mut self,
        (slot, generation): (u32, u32),
        f: impl FnOnce(&mut ListenState) -> R,
    ) -> Option<R> {
        let place = self.inbox.slot();
        let is_it = (slot, generation) == (place.index(), place.slot().generation());
        let result = is_it.then(|| f(&mut self.state));
        place.slot().set_stream(if self.state.is_empty() { 0 } else { stream::READABLE });
        result
    }
}

/// An end of a connection, with its place in the table.
struct End {
    id: ConnId,
    place: SlotRef,
}

impl End {
    fn slot(&self) -> &Slot {
        self.place.slot()
    }

    /// What a poller is told.
    fn told(&self) -> String {
        told(self.slot())
    }
}

fn told(slot: &Slot) -> String {
    let now = slot.readiness();
    let bits = [
        (now.readable, "IN"),
        (now.writable, "OUT"),
        (now.peer_closed, "RDHUP"),
        (now.hung_up, "HUP"),
        (now.error, "ERR"),
    ];
    bits.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect::<Vec<_>>().join(" ")
}

/// A host that talks to itself.
struct World {
    ctx: SoftnetData,
    tables: Tables,
    cfg: Config,
    key: SipKey,
    binder: Binder,
    shard: Shard,
    listening: Listening,
    out: Effects,
    now: u64,
}

const PORT: u16 = 80;

fn own() -> std::net::Ipv4Addr {
    [10, 0, 0, 1].into()
}

impl World {
    fn new() -> World {
        let ctx = context();
        let mut tables = Tables::new(FoldKey::new([1, 2]));
        let routing = Arc::make_mut(&mut tables.v4);
        routing.fib = Arc::new(Fib::build(&[(Prefix::host(own()), 1)]).unwrap());
        routing.next_hops.push(Adjacency::special(Kind::Local));
        let iface = Iface {
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            addresses: vec![(own(), Prefix::new([10, 0, 0, 0].into(), 24).unwrap())],
            addresses6: Vec::new(),
            send_redirects: true,
            rp_filter: RpFilter::Off,
        };
        tables.set_ifaces(&[Some(iface)]);
        let mut binder = Binder::new(ctx.region().clone(), 64, 7);
        let bind = Bind {
            local: addr_of(own().into()),
            port: PORT,
            v4: true,
            v6: false,
            dev: None,
            reuseport: false,
            limit: 0,
        };
        let inbox: TcpInbox = binder.open(&bind).unwrap();
        inbox.slot().slot().set_stream(0);
        let cfg = Config::default();
        let state = ListenState::new(Listener::new(&cfg, 8, ConnOptions::default()));
        World {
            ctx,
            tables,
            cfg,
            key: SipKey::new([1, 2]),
            binder,
            shard: Shard::new(FoldKey::new([3, 4])),
            listening: Listening { inbox, state },
            out: Effects::default(),
            now: 1_000_000_000,
        }
    }

    /// Runs `f` on the shard, as the runtime does.
    fn call<R>(
        &mut self,
        f: impl FnOnce(&mut Shard, &mut SoftnetData, &Env<'_>, &mut Listening, &mut Effects) -> R,
    ) -> R {
        let World { ctx, tables, cfg, key, binder, shard, listening, out, now } = self;
        let sockets = binder.sockets().clone();
        let pmtu = PmtuCache::new(PmtuParams::default(), FoldKey::new([5, 6]));
        let env = Env {
            now: *now,
            cfg,
            tables,
            key,
            paths: pmtu.paths(),
            sockets: &sockets,
            napi_id: 0,
            room: SockMem::new(16384).room(0),
            send_room: SockMem::new(16384).send_room(0),
            backlog: &|_| 0,
            reserve: &|_, _| false,
            pressed: false,
            max_time_waits: 64,
            max_orphans: 64,
        };
        let result = f(shard, ctx, &env, listening, out);
        shard.finish(ctx, &env, out);
        result
    }

    /// Delivers what was sent, until all is quiet. Returns how many packets that were.
    fn pump(&mut self) -> usize {
        let mut n = 0;
        while let Some(skb) = self.out.local.pop_front() {
            n += 1;
            let packet = packet::read(&skb).unwrap();
            self.call(|shard, ctx, env, listening, out| {
                shard.input(ctx, env, listening, (packet, skb), out);
            });
        }
        n
    }

    fn socket(&mut self) -> SlotRef {
        let place = self.binder.open_unlisted().unwrap();
        place.slot().set_stream(0);
        place
    }

    /// Sends a SYN.
    fn connect(&mut self, from: u16, to: u16) -> End {
        let place = self.socket();
        let (local, slot) = (addr_of(own().into()), place.index());
        let flow = Flow { local, remote: local, lport: from, rport: to, protocol: protocol::TCP };
        let id = self.call(|shard, ctx, env, _, out| {
            let (marks, options) = (Marks::default(), &ConnOptions::default());
            shard.connect(ctx, env, &Open { flow, marks, options, path_mss: 1460, slot }, out).unwrap()
        });
        End { id, place }
    }

    fn accept(&mut self) -> End {
        let (place, generation) =
            (self.listening.inbox.slot().index(), self.listening.inbox.slot().slot().generation());
        let child = self.listening.with((place, generation), ListenState::pop).unwrap().unwrap();
        let place = self.socket();
        let slot = place.index();
        assert!(self.call(|shard, _, _, _, _| shard.attach(child.id, slot)));
        End { id: child.id, place }
    }

    /// Both ends of a connection.
    fn pair(&mut self, from: u16) -> [End; 2] {
        let client = self.connect(from, PORT);
        self.pump();
        let server = self.accept();
        self.out.wake.clear();
        [client, server]
    }

    fn write(&mut self, end: &End, len: usize) -> Result<usize, CallError> {
        self.call(|shard, ctx, env, _, out| shard.write(ctx, env, end.id, (&vec![7; len], false), out))
    }

    fn read(&mut self, end: &End, len: usize) -> Result<usize, CallError> {
        self.call(|shard, ctx, env, _, out| shard.read(ctx, env, end.id, &mut vec![0; len], out))
    }

    fn shutdown(&mut self, end: &End, how: Shutdown) {
        self.call(|shard, ctx, env, _, out| shard.shutdown(ctx, env, end.id, how, out)).unwrap();
    }

    fn set(&mut self, end: &End, option: SockOpt) {
        self.call(|shard, ctx, env, _, out| shard.set_option(ctx, env, end.id, option, out)).unwrap();
    }

    fn close(&mut self, end: End) {
        self.call(|shard, ctx, env, _, out| shard.close(ctx, env, end.id, out));
    }

    /// How often waiters of `end` were woken since this was asked last.
    fn woken(&mut self, end: &End) -> usize {
        let index = end.place.index();
        let n = self.out.wake.iter().filter(|slot| **slot == index).count();
        self.out.wake.retain(|slot| *slot != index);
        n
    }

    /// The stack stops: nothing is held.
    fn end(mut self, ends: impl IntoIterator<Item = End>) {
        ends.into_iter().for_each(|end| self.close(end));
        self.pump();
        self.call(|shard, ctx, env, _, _| shard.clear(ctx, env));
        assert_eq!(self.shard.frames(), (0, 0));
        self.listening.inbox.close(&mut self.ctx);
        let stats = self.ctx.stats();
        assert_eq!(stats.sk_queued.get(), stats.sk_taken.get());
        self.ctx.drain();
    }
}

/// Linux's `tcp_poll`, state by state.
#[test]
fn pollers_are_told_what_linux_tells() {
    let mut world = World::new();
    let listener = |world: &World| told(world.listening.inbox.slot().slot());
    assert_eq!(listener(&world), "");
    // The handshake: nothing, until it is done or has failed.
    let client = world.connect(1000, PORT);
    assert_eq!((client.told().as_str(), listener(&world)), ("", String::new()));
    world.pump();
    assert_eq!((client.told().as_str(), listener(&world).as_str()), ("OUT", "IN"));
    let server = world.accept();
    assert_eq!((server.told().as_str(), listener(&world).as_str()), ("OUT", ""));
    let refused = world.connect(1001, PORT + 1);
    world.pump();
    assert_eq!(refused.told(), "IN OUT RDHUP HUP ERR");
    assert_eq!(world.read(&refused, 9), Err(CallError::Ended(Error::ConnectionRefused)));
    assert_eq!(refused.told(), "IN OUT RDHUP HUP");
    assert_eq!(world.read(&refused, 9), Ok(0));
    // An attempt that is given up is as a socket that was never connected.
    let given_up = world.connect(1002, PORT);
    assert_eq!(world.read(&given_up, 9), Err(CallError::WouldBlock));
    world.shutdown(&given_up, Shutdown::Read);
    assert_eq!(given_up.told(), "OUT HUP");
    assert_eq!(world.read(&given_up, 9), Err(CallError::NotConnected));
    assert_eq!(world.write(&given_up, 9), Err(CallError::Shut));
    // Data, from the low-water mark on, and room.
    world.write(&client, 10).unwrap();
    world.pump();
    assert_eq!((client.told().as_str(), server.told().as_str()), ("OUT", "IN OUT"));
    world.set(&server, SockOpt::RcvLowat(11));
    assert_eq!(server.told(), "OUT");
    world.write(&client, 1).unwrap();
    world.pump();
    assert_eq!(server.told(), "IN OUT");
    assert_eq!(world.read(&server, 99), Ok(11));
    assert_eq!(server.told(), "OUT");
    world.set(&server, SockOpt::RcvLowat(1));
    while world.write(&client, 1 << 20).is_ok() {}
    assert_eq!(client.told(), "");
    while world.pump() > 0 {
        while world.read(&server, 1 << 20).is_ok() {}
    }
    assert_eq!((client.told().as_str(), server.told().as_str()), ("OUT", "OUT"));
    // One direction after the other.
    world.shutdown(&client, Shutdown::Write);
    world.pump();
    assert_eq!((client.told().as_str(), server.told().as_str()), ("OUT", "IN OUT RDHUP"));
    assert_eq!(world.write(&client, 1), Err(CallError::Shut));
    world.shutdown(&server, Shutdown::Write);
    world.pump();
    assert_eq!((client.told().as_str(), server.told().as_str()), ("IN OUT RDHUP HUP", "IN OUT RDHUP HUP"));
    assert_eq!((world.read(&client, 9), world.read(&server, 9)), (Ok(0), Ok(0)));
    // Reading alone is ended without the peer's knowledge.
    let [one, other] = world.pair(2000);
    world.shutdown(&one, Shutdown::Read);
    world.pump();
    assert_eq!((one.told().as_str(), other.told().as_str()), ("IN OUT RDHUP", "OUT"));
    world.shutdown(&one, Shutdown::Write);
    assert_eq!(one.told(), "IN OUT RDHUP HUP");
    // A reset: what is not read makes one.
    let [one, reset] = world.pair(3000);
    world.write(&reset, 5).unwrap();
    world.pump();
    world.close(one);
    world.pump();
    assert_eq!(reset.told(), "IN OUT RDHUP HUP ERR");
    assert_eq!(world.write(&reset, 9), Err(CallError::Ended(Error::ConnectionReset)));
    assert_eq!(world.write(&reset, 9), Err(CallError::Shut));
    assert_eq!((world.read(&reset, 9), reset.told().as_str()), (Ok(0), "IN OUT RDHUP HUP"));
    world.end([client, server, refused, given_up, other, reset]);
}

/// Edges: one for each arrival, one for room after there was none, and none for what a reader does.
#[test]
fn waiters_are_woken_for_news_alone() {
    let mut world = World::new();
    let [client, server] = world.pair(1000);
    for _ in 0..3 {
        world.write(&client, 10).unwrap();
        world.pump();
        assert_eq!((world.woken(&server), world.woken(&client)), (1, 0));
    }
    assert_eq!((world.read(&server, 15), world.woken(&server)), (Ok(15), 0));
    assert_eq!((world.read(&server, 99), world.woken(&server)), (Ok(15), 0));
    while world.write(&client, 1 << 20).is_ok() {}
    let mut edges = 0;
    while world.pump() > 0 {
        edges += world.woken(&client);
        while world.read(&server, 1 << 20).is_ok() {}
    }
    assert_eq!((edges, client.told().as_str()), (1, "OUT"));
    world.woken(&server);
    world.set(&client, SockOpt::NoDelay(true));
    // Below the low-water mark nothing has come.
    world.set(&server, SockOpt::RcvLowat(5));
    world.write(&client, 3).unwrap();
    world.pump();
    assert_eq!(world.woken(&server), 0);
    world.write(&client, 3).unwrap();
    world.pump();
    assert_eq!(world.woken(&server), 1);
    world.shutdown(&client, Shutdown::Write);
    world.pump();
    assert_eq!((world.woken(&server), server.told().as_str()), (1, "IN OUT RDHUP"));
    world.end([client, server]);
}

/// A read that blocks waits for the low-water mark, or for as much as it asks for, and for no more at the end.
#[test]
fn a_read_that_blocks_waits_for_enough() {
    let mut world = World::new();
    let [client, server] = world.pair(1000);
    world.set(&client, SockOpt::NoDelay(true));
    let may = |world: &mut World, len| {
        world.call(|shard, ctx, env, _, out| shard.may_read(ctx, env, server.id, len, out))
    };
    assert_eq!(may(&mut world, 9), Ok(()), "without a mark, reading says whether there is something");
    world.set(&server, SockOpt::RcvLowat(10));
    assert_eq!(may(&mut world, 99), Err(CallError::WouldBlock));
    world.write(&client, 4).unwrap();
    world.pump();
    assert_eq!((may(&mut world, 99), server.told().as_str()), (Err(CallError::WouldBlock), "OUT"));
    assert_eq!((may(&mut world, 4), server.told().as_str()), (Ok(()), "OUT"));
    // One that waits for six is woken for six.
    assert_eq!(may(&mut world, 6), Err(CallError::WouldBlock));
    world.write(&client, 1).unwrap();
    world.pump();
    assert_eq!((server.told().as_str(), world.woken(&server)), ("OUT", 0));
    world.write(&client, 1).unwrap();
    world.pump();
    assert_eq!((server.told().as_str(), world.woken(&server)), ("IN OUT", 1));
    assert_eq!((may(&mut world, 6), world.read(&server, 6)), (Ok(()), Ok(6)));
    world.write(&client, 6).unwrap();
    world.pump();
    assert_eq!(server.told(), "OUT", "the mark is what it was");
    world.shutdown(&client, Shutdown::Write);
    world.pump();
    assert_eq!((may(&mut world, 99), world.read(&server, 99)), (Ok(()), Ok(6)));
    assert_eq!((may(&mut world, 99), world.read(&server, 99)), (Ok(()), Ok(0)));
    world.end([client, server]);
}

/// Beyond the low-water mark of what is not sent a writer waits, and learns of room below half of it.
#[test]
fn a_writer_waits_at_the_low_water_mark() {
    let mut world = World::new();
    let [client, server] = world.pair(1000);
    world.set(&client, SockOpt::NotsentLowat(50_000));
    world.set(&client, SockOpt::SndBuf(4 << 20));
    let mut queued = 0;
    while let Ok(n) = world.write(&client, 1 << 20) {
        queued += n;
    }
    // What is in flight fits the first windows; the mark, and a run beyond it, is the rest.
    assert!((50_000..350_000).contains(&queued), "{queued}");
    assert_eq!(client.told(), "");
    let mut got = 0;
    while world.pump() > 0 {
        while let Ok(n) = world.read(&server, 1 << 20) {
            got += n;
        }
    }
    assert_eq!((got, client.told().as_str(), world.woken(&client)), (queued, "OUT", 1));
    world.end([client, server]);
}

/// A connection from here may succeed one in TIME-WAIT: after a second, or at once by a port that was
/// asked for; its number is beyond all that the old one sent.
#[test]
fn a_connection_succeeds_one_in_time_wait() {
    let mut world = World::new();
    let [client, server] = world.pair(1000);
    let local = addr_of(own().into());
    let flow = Flow { local, remote: local, lport: 1000, rport: PORT, protocol: protocol::TCP };
    let free = |world: &mut World, asked| world.call(|shard, _, env, _, _| shard.is_free(env, &flow, asked));
    assert_eq!((free(&mut world, false), free(&mut world, true)), (false, false));
    world.write(&client, 1000).unwrap();
    world.pump();
    assert_eq!(world.read(&server, 2000), Ok(1000));
    world.close(client);
    world.pump();
    world.close(server);
    world.pump();
    assert_eq!(world.shard.len(), [0, 0, 1], "it is remembered");
    assert_eq!((free(&mut world, false), free(&mut world, true)), (false, true));
    world.now += 1_000_000_000;
    assert!(!free(&mut world, false), "one second is not more than one");
    world.now += 100_000_000;
    assert!(free(&mut world, false), "on the loopback");
    for reuse in [0, 1] {
        world.cfg.tcp_tw_reuse = reuse;
        assert_eq!(free(&mut world, false), reuse == 1);
    }
    let [client, server] = world.pair(1000);
    assert_eq!(world.shard.len(), [2, 0, 0], "it has taken its place");
    assert_eq!(world.shard.counters.tw_recycled, 1);
    world.write(&client, 10).unwrap();
    world.pump();
    assert_eq!(world.read(&server, 99), Ok(10));
    world.end([client, server]);
}

/// Lent memory is charged until it comes back, and then the window opens.
#[test]
fn lent_memory_is_charged_until_it_is_given_back() {
    let mut world = World::new();
    let [client, server] = world.pair(1000);
    world.set(&server, SockOpt::RcvBuf(64 << 10));
    world.set(&client, SockOpt::NoDelay(true));
    let mut lent = std::collections::VecDeque::new();
    let mut all = 0;
    loop {
        let wrote = world.write(&client, 1 << 16).unwrap_or(0);
        let sent = world.pump();
        let got = world.call(|shard, ctx, env, _, out| shard.lend(ctx, env, server.id, &mut lent, out));
        all += got.unwrap_or(0);
        if (wrote, sent, got) == (0, 0, Err(CallError::WouldBlock)) {
            break;
        }
    }
    assert_eq!(all, lent.iter().map(Piece::len).sum::<usize>());
    assert!(lent.iter().flat_map(Piece::parts).flatten().all(|byte| *byte == 7));
    assert!((20_000..70_000).contains(&all), "{all} bytes fit a buffer of 64 KiB");
    assert_eq!(server.told(), "OUT", "what is lent does not wait");
    let (frames, _) = world.shard.frames();
    assert!(frames * queue::TRUESIZE as usize >= all, "{frames} frames are charged");
    world.call(|shard, ctx, env, _, out| {
        shard.give_back(ctx, env, server.id, lent.into_iter(), out);
    });
    assert!(world.pump() > 0, "the peer is told that the window is open");
    assert_eq!(server.told(), "IN OUT");
    assert!(world.shard.frames().0 < frames);
    world.end([client, server]);
}
