//! TCP as the runtime has it: the shards behind their locks, and who is at them.
//!
//! A thread that polls tries a shard's lock; if another thread has it, its packets are *left* to that
//! one, which sees to them before it lets go. A call of an application waits for the lock, whose holder
//! has its priority meanwhile ([`PiMutex`]). What a shard sends is put on the TX queues under its lock,
//! so that the packets of a connection leave in the order in which they were made; what belongs to no
//! connection, what has to go by the slow path, or to another socket of this stack, follows when the
//! lock has been let go.
//!
//! Lock order: an application thread's context, then a shard, then a listener, then a TX queue. The
//! slow path's lock is taken with no shard held; a shard may be taken under it.
//!
//! Invariant: when no thread holds a shard nothing is left in it, and its first deadline is one that the
//! timer thread knows.

mod drops;
mod listeners;
mod timer;
mod tx;

use std::hash::{BuildHasher, RandomState};
use std::num::NonZero;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::thread::available_parallelism;

use softnet_core::SoftnetData;
use softnet_core::fold::FoldKey;
use softnet_core::ip::slow::{Effects as SlowEffects, TooBig};
use softnet_core::ip::tables::Tables;
use softnet_core::ip::v4::header::protocol;
use softnet_core::siphash::SipKey;
use softnet_core::skb::{BATCH, Batch, Csum, DropReason, Skb, SkbList};
use softnet_core::sock::tcp::{ConnInfo, Effects, End, Env, News, Packet, Parting, Shard, Told, packet};
use softnet_core::sock::{Flow, Pressed};
use softnet_core::sync::{AbortOnPanic, Deadline, Left, Receiver, left};
use softnet_dev::xdp::LocalEnd;
use softnet_dev::{PiGuard, PiMutex};
use softnet_tcp::ports::PortWalker;
use softnet_tcp::{Config, Counters};

use super::StackInner;
use crate::util::lock;
pub(crate) use drops::LocalDrops;
pub(crate) use listeners::Listening;
use listeners::{Finder, ListenTable};
use timer::Timers;

/// Shards for each CPU: enough that threads seldom meet at one, and so few that what belongs to the
/// shards stays in the CPU's caches.
const SHARDS_PER_CPU: u32 = 16;
/// The least and the most.
const SHARDS: RangeInclusive<u32> = 32..=256;
/// Packets that may be left to a shard's holder (the kernel's backlog of a socket).
const ROOM: u32 = 256;

/// Times that a holder takes a shard again for others before it leaves that to the timer thread.
const ROUNDS: u32 = 4;

/// A packet that is left.
struct LeftSkb {
    skb: Skb,
    napi_id: u32,
}

struct Guarded {
    shard: Shard,
    left: Receiver<LeftSkb>,
}

struct ShardLock {
    guarded: PiMutex<Guarded>,
    left: Left<LeftSkb>,
    /// Its first deadline.
    due: Deadline,
}

/// The thread at a shard, and when.
pub(crate) struct Caller<'a> {
    pub(crate) shared: &'a StackInner,
    pub(crate) tables: &'a Tables,
    pub(crate) now: u64,
    /// The instance that packets came by; 0: none.
    pub(crate) napi_id: u32,
}

/// See the module.
pub(crate) struct TcpTable {
    shards: Box<[ShardLock]>,
    parting: Parting,
    /// Knobs.
    pub(crate) cfg: Config,
    /// A shard's share of the TIME-WAIT objects and orphans that they allow.
    max_time_waits: usize,
    max_orphans: usize,
    pub(crate) key: SipKey,
    /// Where searches for a free port begin.
    pub(crate) walker: Mutex<PortWalker>,
    listeners: ListenTable,
    timers: Timers,
    drops: Arc<LocalDrops>,
    /// What came by the slow path, whose lock is not held by a thread that takes a shard's.
    late: Mutex<Late>,
}

/// What the slow path leaves to the timer thread.
#[derive(Default)]
struct Late {
    packets: SkbList,
    unresolved: SkbList,
    told: Vec<Told>,
}

impl TcpTable {
    pub(crate) fn new() -> std::io::Result<Self> {
        let random = || RandomState::new().hash_one(0);
        let cpus = available_parallelism().map_or(1, NonZero::get) as u32;
        let shards = cpus.saturating_mul(SHARDS_PER_CPU).clamp(*SHARDS.start(), *SHARDS.end());
        let parting = Parting::new(FoldKey::new([random(), random()]), shards);
        let shards = (0..shards).map(|_| {
            let (sender, receiver) = left(ROOM);
            let shard = Shard::new(FoldKey::new([random(), random()]));
            let (guarded, due) = (PiMutex::new(Guarded { shard, left: receiver }), Deadline::default());
            ShardLock { guarded, left: sender, due }
        });
        let timers = Timers::new()?;
        let mut table = TcpTable {
            shards: shards.collect(),
            parting,
            cfg: Config::default(),
            max_time_waits: 0,
            max_orphans: 0,
            key: SipKey::new([random(), random()]),
            walker: Mutex::default(),
            listeners: ListenTable::default(),
            drops: Arc::new(LocalDrops::new(timers.alarm())),
            timers,
            late: Mutex::default(),
        };
        table.configure(Config::default());
        Ok(table)
    }

    /// Sets the knobs, before there is a connection.
    pub(crate) fn configure(&mut self, cfg: Config) {
        let share = |most: u32| (most as usize / self.shards.len()).max(1);
        self.max_time_waits = share(cfg.tcp_max_tw_buckets);
        self.max_orphans = share(cfg.tcp_max_orphans);
        self.cfg = cfg;
    }

    /// From now on shards know which ends of ours their connections have.
    pub(super) fn count_ends(&mut self) {
        self.shards.iter().for_each(|lock| lock.guarded.lock().shard.count_ends());
    }

    /// The number of the shard that has `flow`.
    pub(crate) fn shard_of(&self, flow: &Flow) -> usize {
        self.parting.shard(flow)
    }

    /// How many shards there are.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Where what TX queues dropped is told.
    pub(crate) fn drops(&self) -> &Arc<LocalDrops> {
        &self.drops
    }

    /// The listeners.
    pub(crate) fn listeners(&self) -> &ListenTable {
        &self.listeners
    }

    fn finder<'a>(&'a self, caller: &Caller<'a>) -> Finder<'a> {
        Finder { table: &self.listeners, sockets: &caller.shared.sockets.sockets }
    }

    /// Packets for TCP that a thread received. It never waits for a shard.
    pub(crate) fn input(&self, ctx: &mut SoftnetData, caller: &Caller<'_>, batch: &mut Batch) {
        let mut out = Effects::default();
        self.packets(ctx, caller, batch, &mut out);
        self.after(ctx, caller, out);
    }

    fn packets(&self, ctx: &mut SoftnetData, caller: &Caller<'_>, batch: &mut Batch, out: &mut Effects) {
        let mut packets = [const { None::<(Packet, Skb)> }; BATCH];
        let mut shards = [0; BATCH];
        let mut n = 0;
        for skb in batch.drain() {
            match packet::read(&skb) {
                Err(reason) => ctx.free(skb, reason),
                Ok(packet) => {
                    shards[n] = self.shard_of(&packet.flow);
                    packets[n] = Some((packet, skb));
                    n += 1;
                }
            }
        }
        for at in 0..n {
            if packets[at].is_some() {
                self.to_shard(ctx, caller, &mut packets[at..n], &shards[at..n], out);
            }
        }
    }

    /// Hands the packets of the first one's shard over to it, or leaves them to its holder.
    fn to_shard(
        &self,
        ctx: &mut SoftnetData,
        caller: &Caller<'_>,
        packets: &mut [Option<(Packet, Skb)>],
        shards: &[usize],
        out: &mut Effects,
    ) {
        let number = shards[0];
        let lock = &self.shards[number];
        let of_shard = |(packet, shard): (_, &usize)| (*shard == number).then_some(packet);
        let Some(guarded) = lock.guarded.try_lock() else {
            for (_, mut skb) in packets.iter_mut().zip(shards).filter_map(of_shard).filter_map(Option::take) {
                // It was verified here; the holder need not sum it again.
                skb.head_mut().csum = Csum::Unnecessary;
                let left = LeftSkb { skb, napi_id: caller.napi_id };
                if let Err(LeftSkb { skb, .. }) = lock.left.leave(left) {
                    ctx.free(skb, DropReason::SocketBacklog);
                }
            }
            lock.left.left();
            if let Some(guarded) = lock.guarded.try_lock() {
                self.hold(ctx, caller, (lock, guarded), out, |_, _, _, _| ());
            }
            return;
        };
        self.hold(ctx, caller, (lock, guarded), out, |shard, ctx, env, out| {
            let mut finder = self.finder(caller);
            if shards.iter().filter(|shard| **shard == number).nth(1).is_some() {
                let flows = packets.iter().zip(shards).filter(|(_, shard)| **shard == number);
                let flows = flows.flat_map(|(packet, _)| packet).map(|(packet, _)| &packet.flow);
                let mut before = None;
                flows.for_each(|flow| {
                    if before.replace(flow) != Some(flow) {
                        shard.foresee(flow);
                    }
                });
            }
            for packet in packets.iter_mut().zip(shards).filter_map(of_shard).filter_map(Option::take) {
                shard.input(ctx, env, &mut finder, packet, out);
            }
        });
    }

    /// Runs `f` on a shard, for threads that may wait for it.
    pub(crate) fn call<R>(
        &self,
        ctx: &mut SoftnetData,
        caller: &Caller<'_>,
        number: usize,
        f: impl FnOnce(&mut Shard, &mut SoftnetData, &Env<'_>, &mut Effects) -> R,
    ) -> R {
        let (lock, mut out) = (&self.shards[number], Effects::default());
        let result = self.hold(ctx, caller, (lock, lock.guarded.lock()), &mut out, f);
        self.after(ctx, caller, out);
        result
    }

    /// Under the lock: what was left, then `f`; sends what comes of it, and lets go.
    fn hold<'a, R>(
        &'a self,
        ctx: &mut SoftnetData,
        caller: &Caller<'_>,
        (lock, mut guarded): (&'a ShardLock, PiGuard<'a, Guarded>),
        out: &mut Effects,
        f: impl FnOnce(&mut Shard, &mut SoftnetData, &Env<'_>, &mut Effects) -> R,
    ) -> R {
        let _owner = AbortOnPanic::new();
        let mut result = None;
        self.run(ctx, (caller, caller.now), (lock, &mut guarded), out, |shard, ctx, env, out| {
            result = Some(f(shard, ctx, env, out));
        });
        for round in 0.. {
            drop(guarded);
            if !lock.left.any() {
                break;
            }
            if round == ROUNDS {
                // It has served others for long enough: what it has for waiting threads must go out.
                self.timers.wake();
                break;
            }
            let Some(again) = lock.guarded.try_lock() else { break };
            guarded = again;
            let now = caller.shared.clock.now();
            self.run(ctx, (caller, now), (lock, &mut guarded), out, |_, _, _, _| ());
        }
        result.unwrap_or_else(|| unreachable!("it ran in the first round"))
    }

    fn run(
        &self,
        ctx: &mut SoftnetData,
        (caller, now): (&Caller<'_>, u64),
        (lock, guarded): (&ShardLock, &mut Guarded),
        out: &mut Effects,
        f: impl FnOnce(&mut Shard, &mut SoftnetData, &Env<'_>, &mut Effects),
    ) {
        let Guarded { shard, left } = guarded;
        let sockets = &caller.shared.sockets;
        let backlog = |dev: u16| tx::backlog(caller.shared, dev);
        let reserve = |dev: u16, bytes: u64| tx::reserve(caller.shared, dev, bytes);
        let pressed = match sockets.pressure(now) {
            Pressed::Still(is) => is,
            Pressed::Entered => {
                shard.counters.memory_pressures += 1;
                true
            }
            Pressed::Left(ns) => {
                shard.counters.memory_pressures_chrono += ns / 1_000_000;
                false
            }
        };
        let mut env = Env {
            now: shard.begin(now),
            backlog: &backlog,
            reserve: &reserve,
            cfg: &self.cfg,
            tables: caller.tables,
            key: &self.key,
            paths: &sockets.paths,
            sockets: &sockets.sockets,
            napi_id: caller.napi_id,
            room: sockets.room(),
            send_room: sockets.send_room(),
            pressed,
            max_time_waits: self.max_time_waits,
            max_orphans: self.max_orphans,
        };
        let before = shard.frames();
        if left.has_pending() {
            let mut finder = self.finder(caller);
            for LeftSkb { skb, napi_id } in left.drain() {
                env.napi_id = napi_id;
                match packet::read(&skb) {
                    Ok(packet) => shard.input(ctx, &env, &mut finder, (packet, skb), out),
                    Err(reason) => ctx.free(skb, reason),
                }
            }
            env.napi_id = caller.napi_id;
        }
        f(shard, ctx, &env, out);
        shard.finish(ctx, &env, out);
        loop {
            self.transmit(ctx, caller, &mut out.send);
            tx::release(caller.shared, &mut out.reserved);
            // What left at once made room for the rest of a flight. Each time something is sent, as far as
            // windows go.
            if !shard.ask_again(ctx, &env, out) {
                break;
            }
        }
        sockets.holds(before, shard.frames());
        let due = shard.next_deadline();
        // Before the timer thread's deadline is looked at: that thread writes that one first, and then
        // looks at this one.
        lock.due.leave(due);
        self.timers.lower(due);
    }

    /// With no shard held: what belongs to no connection leaves, of all shards together; what has to go
    /// by the slow path, what is for sockets of this stack, and the threads that wait.
    fn after(&self, ctx: &mut SoftnetData, caller: &Caller<'_>, mut out: Effects) {
        let shared = caller.shared;
        ends_free(shared, &mut out);
        loop {
            self.transmit(ctx, caller, &mut out.loose);
            for slot in out.wake.drain(..) {
                shared.sockets.notifier.wake(slot);
            }
            for slot in out.arrived.drain(..) {
                shared.sockets.arrived(slot);
            }
            if !out.unresolved.is_empty() {
                let list = std::mem::take(&mut out.unresolved);
                // A thread that polls does not wait for the slow path, unless all that TCP does is to refuse.
                match caller.napi_id != 0 && self.timers.is_running() {
                    false => resolve(shared, ctx, list),
                    true => self.leave_unresolved(ctx, list),
                }
            }
            if out.local.is_empty() {
                return;
            }
            let mut local = std::mem::take(&mut out.local);
            let here = Caller { napi_id: 0, ..*caller };
            let mut batch = Batch::new();
            while !local.is_empty() {
                while batch.room() > 0
                    && let Some(skb) = local.pop_front()
                {
                    batch.push(skb).unwrap_or_else(|skb| ctx.free(skb, DropReason::SocketClose));
                }
                self.packets(ctx, &here, &mut batch, &mut out);
            }
        }
    }

    /// Whether there has been a socket.
    pub(crate) fn is_running(&self) -> bool {
        self.timers.is_running()
    }

    /// Packets that came by the slow path, whose lock the caller has: the timer thread hands them over.
    pub(crate) fn leave(&self, ctx: &mut SoftnetData, batch: &mut Batch) {
        {
            let mut late = lock(&self.late);
            for skb in batch.drain() {
                if late.packets.len() >= ROOM as usize {
                    ctx.free(skb, DropReason::SocketBacklog);
                } else if let Err(skb) = late.packets.push_back(skb) {
                    ctx.free(skb, DropReason::SocketBacklog);
                }
            }
        }
        self.timers.wake();
    }

    /// Packets whose neighbour is not known, of a thread that polls: the timer thread has the slow path
    /// send them.
    #[cold]
    fn leave_unresolved(&self, ctx: &mut SoftnetData, mut list: SkbList) {
        {
            let mut late = lock(&self.late);
            while let Some(skb) = list.pop_front() {
                if late.unresolved.len() >= ROOM as usize {
                    ctx.free(skb, DropReason::NeighQueueFull);
                } else if let Err(skb) = late.unresolved.push_back(skb) {
                    ctx.free(skb, DropReason::NeighQueueFull);
                }
            }
        }
        self.timers.wake();
    }

    /// What ICMP said of a segment, to the slow path, whose lock the caller has.
    pub(crate) fn told(&self, told: &Told) {
        if !self.timers.is_running() {
            return;
        }
        {
            let mut late = lock(&self.late);
            // Routers repeat themselves.
            if late.told.len() < ROOM as usize {
                late.told.push(*told);
            }
        }
        self.timers.wake();
    }

    /// Has connections take note of what ICMP said. A path that proves to take less is remembered for
    /// others.
    fn take_note(&self, ctx: &mut SoftnetData, caller: &Caller<'_>, told: Vec<Told>) {
        for told in told {
            let number = self.shard_of(&told.flow);
            let shorter =
                self.call(ctx, caller, number, |shard, ctx, env, out| shard.told(ctx, env, &told, out));
            if let (true, News::TooBig { mtu, len }) = (shorter, told.what) {
                let report = TooBig { flow: told.flow, len, mtu };
                caller.shared.slow_path(ctx, |slow, _, view, _| _ = slow.too_big(view, &report));
            }
        }
    }

    /// Hands over what the slow path left, and lets everything happen that is due. For the timer thread.
    fn on_time(&self, ctx: &mut SoftnetData, caller: &Caller<'_>) {
        let Late { packets: mut late, unresolved, told } = std::mem::take(&mut *lock(&self.late));
        if !unresolved.is_empty() {
            resolve(caller.shared, ctx, unresolved);
        }
        self.take_note(ctx, caller, told);
        self.take_note(ctx, caller, self.drops.take());
        let mut batch = Batch::new();
        while let Some(skb) = late.pop_front() {
            batch.push(skb).unwrap_or_else(|skb| ctx.free(skb, DropReason::SocketBacklog));
            if batch.room() == 0 || late.is_empty() {
                self.input(ctx, caller, &mut batch);
            }
        }
        let made = self.timers.take_made();
        if !made.is_empty() {
            let mut made = made;
            caller.shared.slow_path(ctx, |slow, ctx, view, out| {
                made.drain().for_each(|(skb, what)| slow.handle(ctx, view, skb, what, out));
            });
        }
        for lock in &self.shards {
            let mut out = Effects::default();
            // One that is changed at this moment says so to the thread itself.
            let due = lock.due.get();
            if due > caller.now && !lock.left.any() {
                self.timers.lower(due);
                continue;
            }
            self.hold(ctx, caller, (lock, lock.guarded.lock()), &mut out, |shard, ctx, env, out| {
                let mut finder = self.finder(caller);
                while !shard.on_time(ctx, env, &mut finder, BATCH, out) {
                    shard.finish(ctx, env, out);
                }
            });
            self.after(ctx, caller, out);
        }
    }

    /// Shows all connections to `see`, shard by shard, each under its lock: a million at once would take as
    /// much memory as the table.
    pub(crate) fn each_info(
        &self,
        ctx: &mut SoftnetData,
        caller: &Caller<'_>,
        mut see: impl FnMut(ConnInfo),
    ) {
        for number in 0..self.shards.len() {
            self.call(ctx, caller, number, |shard, _, env, _| shard.infos(env).for_each(&mut see));
        }
    }

    /// The counters of all connections together, and how many connections, requests and TIME-WAIT
    /// objects there are.
    pub(crate) fn counters(&self) -> (Counters, [usize; 3]) {
        let (mut all, mut len) = (Counters::default(), [0; 3]);
        for lock in &self.shards {
            let guarded = lock.guarded.lock();
            all.add(&guarded.shard.counters);
            len.iter_mut().zip(guarded.shard.len()).for_each(|(all, of)| *all += of);
        }
        (all, len)
    }

    /// The stack has stopped: connections end without a word, and their memory goes home.
    pub(crate) fn stop(&self, shared: &StackInner) {
        self.timers.stop();
        let mut ctx = shared.context();
        let tables = shared.tables.load_full();
        let caller = Caller { shared, tables: &tables, now: shared.clock.now(), napi_id: 0 };
        let mut late = std::mem::take(&mut *lock(&self.late));
        for list in [&mut late.packets, &mut late.unresolved] {
            while let Some(skb) = list.pop_front() {
                ctx.free(skb, DropReason::Shutdown);
            }
        }
        for lock in &self.shards {
            let mut out = Effects::default();
            self.hold(&mut ctx, &caller, (lock, lock.guarded.lock()), &mut out, |shard, ctx, env, _| {
                shard.clear(ctx, env);
            });
            ends_free(shared, &mut out);
            self.transmit(&mut ctx, &caller, &mut out.loose);
            for list in [&mut out.unresolved, &mut out.local] {
                while let Some(skb) = list.pop_front() {
                    ctx.free(skb, DropReason::Shutdown);
                }
            }
        }
        self.timers.take_made().drain().for_each(|(skb, _)| ctx.free(skb, DropReason::Shutdown));
        ctx.drain();
    }
}

/// An end of ours, as devices know it that share its address with the kernel.
pub(crate) fn local_end((addr, port): End) -> LocalEnd {
    LocalEnd { protocol: protocol::TCP, addr, families: (true, true), port }
}

/// Gives up the ends that no connection has any more.
fn ends_free(shared: &StackInner, out: &mut Effects) {
    out.free.drain(..).for_each(|end| shared.sockets.ports().closed(&local_end(end)));
}

/// Has the slow path send packets whose neighbour is not known.
#[cold]
fn resolve(shared: &StackInner, ctx: &mut SoftnetData, mut list: SkbList) {
    shared.slow_path(ctx, |slow, ctx, view, out: &mut SlowEffects| {
        while let Some(skb) = list.pop_front() {
            slow.send(ctx, view, skb, out);
        }
    });
}

/// Starts what TCP needs beside the threads that poll, unless it runs.
pub(crate) fn start(shared: &Arc<StackInner>) -> std::io::Result<()> {
    shared.sockets.tcp.timers.start(shared)
}
