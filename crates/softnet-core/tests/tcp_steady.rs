//! What a TCP transfer costs once it is under way: no allocation, and how many instructions.
//!
//! A client and a server in one shard; the segments of the one are handed to the other by this
//! program, without a device. [`receive_data`] and [`receive_ack`] are functions of their own, so
//! that callgrind can count what is executed in them: the chapter on benchmarks has the command.
//!
//! Invariant: only the thread of the one test allocates while allocations are counted.

// Loom's atomics exist only inside a model.
#![cfg(not(feature = "loom"))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use softnet_core::SoftnetData;
use softnet_core::fold::FoldKey;
use softnet_core::ip::pmtu::{PmtuCache, PmtuParams};
use softnet_core::ip::tables::Tables;
use softnet_core::siphash::SipKey;
use softnet_core::skb::{CacheSizes, HeapMemory, Region, Skb};
use softnet_core::sock::key::mapped;
use softnet_core::sock::tcp::{
    CallError, ConnId, Effects, Env, ListenState, Listeners, Marks, Open, Shard, TcpInbox, packet,
};
use softnet_core::sock::{Bind, Binder, Flow, SockMem};
use softnet_tcp::conn::SockOpt;
use softnet_tcp::listen::Listener;
use softnet_tcp::{Config, ConnOptions};

/// Counts allocations; memory is the system's.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: each call is handed on as it is to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller's contract, which is the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, len) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const SERVER: u128 = mapped(0x7f00_0001);
const CLIENT: u128 = mapped(0x7f00_0002);
/// Payload of a segment, of an MSS of 1460 with timestamps.
const MSS: usize = 1448;
/// Segments between two acknowledgements.
const PER_ACK: usize = 2;
/// Rounds until buffers, queues and windows have the size that they keep, and rounds that count.
const WARM: usize = 20_000;
const ROUNDS: usize = 10_000;

/// The one listener.
struct One(ListenState);

impl Listeners for One {
    fn with<R>(&mut self, _: (u32, u32), f: impl FnOnce(&mut ListenState) -> R) -> Option<R> {
        Some(f(&mut self.0))
    }
}

struct World {
    ctx: SoftnetData,
    cfg: Config,
    tables: Tables,
    pmtu: PmtuCache,
    binder: Binder,
    listener: One,
    shard: Shard,
    now: u64,
    out: Effects,
}

type Call<'a, R> = &'a mut dyn FnMut(&mut Shard, &mut SoftnetData, &Env<'_>, &mut One, &mut Effects) -> R;

impl World {
    fn new() -> Self {
        let (frames, heads) = (4096, 4096);
        let memory = Box::new(HeapMemory::new(Region::bytes(frames, heads)));
        let region = Region::new(memory, frames, heads).unwrap();
        let (cfg, key) = (Config::default(), FoldKey::new([1, 2]));
        World {
            ctx: SoftnetData::new(region.clone(), CacheSizes::default()),
            tables: Tables::new(key),
            pmtu: PmtuCache::new(PmtuParams::default(), key),
            binder: Binder::new(region, 64, 7),
            listener: One(ListenState::new(Listener::new(&cfg, 5, ConnOptions::default()))),
            shard: Shard::new(key),
            now: 1_000_000_000,
            out: Effects::default(),
            cfg,
        }
    }

    /// A call, and what a holder of the shard does at the end of each batch.
    #[inline(always)]
    fn enter<R>(&mut self, call: Call<'_, R>) -> R {
        let key = SipKey::new([3, 4]);
        let env = Env {
            now: self.now,
            cfg: &self.cfg,
            tables: &self.tables,
            key: &key,
            paths: self.pmtu.paths(),
            sockets: self.binder.sockets(),
            napi_id: 1,
            room: SockMem::new(1 << 20).room(0),
            send_room: SockMem::new(1 << 20).send_room(0),
            backlog: &|_| 0,
            reserve: &|_, _| false,
            pressed: false,
            max_time_waits: 1,
            max_orphans: 1,
        };
        let World { shard, ctx, listener, out, .. } = self;
        shard.begin(env.now);
        let result = call(shard, ctx, &env, listener, out);
        shard.finish(ctx, &env, out);
        result
    }

    /// Hands over what was sent, until nothing is.
    fn deliver(&mut self) {
        while let Some(skb) = self.out.local.pop_front() {
            receive(self, &mut [Some(skb)]);
        }
        self.out.wake.clear();
        self.out.arrived.clear();
    }

    /// A client's connection, and the server's end of it.
    fn pair(&mut self) -> [ConnId; 2] {
        let bind =
            Bind { local: SERVER, port: 80, v4: true, v6: false, dev: None, reuseport: false, limit: 0 };
        let inbox: TcpInbox = self.binder.open(&bind).unwrap();
        let slots = [(); 2].map(|()| self.binder.open_unlisted().unwrap().index());
        let flow = Flow { local: CLIENT, remote: SERVER, lport: 1000, rport: 80, protocol: 6 };
        let options = ConnOptions::default();
        let open = Open { flow, marks: Marks::default(), options: &options, path_mss: 1460, slot: slots[0] };
        let client = self.enter(&mut |shard, ctx, env, _, out| shard.connect(ctx, env, &open, out).unwrap());
        self.deliver();
        let server = self.listener.0.pop().expect("accepted").id;
        self.enter(&mut |shard, ctx, env, _, out| {
            assert!(shard.attach(server, slots[1]));
            shard.set_option(ctx, env, client, SockOpt::NoDelay(true), out).unwrap();
        });
        self.deliver();
        // It has served.
        inbox.close(&mut self.ctx);
        [client, server]
    }

    /// Full segments, each written by a call of its own, their acknowledgement, and a read.
    fn round(&mut self, [client, server]: [ConnId; 2], buffer: &mut [u8]) {
        self.now += 100_000;
        for _ in 0..PER_ACK {
            let written = self
                .enter(&mut |shard, ctx, env, _, out| shard.write(ctx, env, client, (&[7; MSS], false), out));
            assert_eq!(written, Ok(MSS));
        }
        let mut segments = [None, None];
        segments.iter_mut().for_each(|segment| *segment = self.out.local.pop_front());
        assert!(segments.iter().flatten().all(|skb| skb.len() > MSS && skb.head().gso_size == 0));
        receive_data(self, &mut segments);
        let mut acks = [self.out.local.pop_front()];
        assert!(acks[0].as_ref().is_some_and(|skb| skb.len() < 100), "one acknowledgement");
        receive_ack(self, &mut acks);
        let read = self.enter(&mut |shard, ctx, env, _, out| shard.read(ctx, env, server, buffer, out));
        assert_eq!(read, Ok(PER_ACK * MSS));
        self.deliver();
    }
}

/// A batch as it comes from the IP layer.
#[inline(always)]
fn receive(world: &mut World, batch: &mut [Option<Skb>]) {
    world.enter(&mut |shard, ctx, env, listeners, out| {
        for skb in batch.iter_mut().filter_map(Option::take) {
            match packet::read(&skb) {
                Ok(packet) => shard.input(ctx, env, listeners, (packet, skb), out),
                Err(reason) => ctx.free(skb, reason),
            }
        }
    });
}

/// Segments with data, in order, up to the acknowledgement that leaves.
#[inline(never)]
fn receive_data(world: &mut World, batch: &mut [Option<Skb>; PER_ACK]) {
    receive(black_box(world), batch);
}

/// An acknowledgement of [`PER_ACK`] segments.
#[inline(never)]
fn receive_ack(world: &mut World, batch: &mut [Option<Skb>; 1]) {
    receive(black_box(world), batch);
}

#[test]
fn a_steady_transfer_allocates_nothing() {
    let mut world = World::new();
    let pair = world.pair();
    let mut buffer = vec![0; 2 * PER_ACK * MSS];
    (0..WARM).for_each(|_| world.round(pair, &mut buffer));
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..ROUNDS).for_each(|_| world.round(pair, &mut buffer));
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert_eq!(after - before, 0, "of {} segments and {ROUNDS} acknowledgements", ROUNDS * PER_ACK);
    let refused = |call: Result<usize, CallError>| assert_eq!(call, Err(CallError::WouldBlock));
    refused(world.enter(&mut |shard, ctx, env, _, out| shard.read(ctx, env, pair[1], &mut buffer, out)));
    world.enter(&mut |shard, ctx, env, _, _| shard.clear(ctx, env));
    assert_eq!(world.shard.frames(), (0, 0));
    let stats = world.ctx.stats();
    assert_eq!(stats.originated.get(), stats.delivered.get() + stats.dropped(), "each packet ends once");
    world.ctx.drain();
}
