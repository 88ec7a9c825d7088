//! The sockets of a stack as the runtime has them, of all protocols: the table that pollers read, its writer behind a lock, how
//! threads that wait are woken, and the contexts of application threads. What is [UDP's](super::udp) alone is beside it.
//!
//! Lock order: an application thread's context, then a socket's inbox or its sending side, then the slow path's lock,
//! then the table's writer. Pollers take none of them for a datagram to one socket; the slow path takes the writer's lock for one to many.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};

use softnet_core::SoftnetData;
use softnet_core::fold::FoldKey;
use softnet_core::ip::pmtu::{PathMtus, RecentPeers};
use softnet_core::skb::{Batch, Region, Skb};
use softnet_core::sock::route::is_group;
use softnet_core::sock::tcp::Told;
use softnet_core::sock::{
    Arrivals, Binder, Flow, Hit, Key, Pressed, Pressure, Room, SendRoom, SockMem, SocketError, Sockets,
    Transport,
};
use softnet_core::stack::sockets::SocketHost;
use softnet_core::sync::{AtomicBool, AtomicUsize, Ordering};
use softnet_dev::xdp::Ports;
use softnet_dev::{PiGuard, PiMutex};

use super::AppThread;
use super::ports::SharedPorts;
use super::tcp::TcpTable;
use super::udp::UdpTable;
use crate::notify::{ReadinessNotifier, Set};
use crate::util::lock;

/// The sockets of a stack, their writer's lock, and the contexts of application threads.
pub struct SocketTable {
    /// What pollers read.
    pub sockets: Arc<Sockets>,
    binder: PiMutex<Binder>,
    /// What sockets may hold, each and all together.
    pub(crate) memory: SockMem,
    /// Frames that wait for applications, of sockets and of those that poll.
    held: Arc<AtomicUsize>,
    /// Those of them that streams have queued to be sent.
    queued: AtomicUsize,
    /// Whether what arrived takes so many that connections are to hold back.
    pressure: Pressure,
    threads: Mutex<Vec<Arc<Mutex<AppThread>>>>,
    /// Epoll sets: a thread that waits in one is woken at the stack's end.
    sets: Mutex<Vec<Arc<Set>>>,
    /// Wakes what waits for sockets.
    pub(crate) notifier: Arc<ReadinessNotifier>,
    stopped: AtomicBool,
    /// Paths that take less than their first link.
    pub(crate) paths: Arc<PathMtus>,
    /// What devices know of ports.
    ports: SharedPorts,
    /// What is UDP's alone.
    pub(crate) udp: UdpTable,
    /// What is TCP's alone.
    pub(crate) tcp: TcpTable,
}

impl SocketTable {
    /// Without sockets; `max_sockets` at the most. They count what they hold in `held`. `paths`: the slow path's.
    pub(crate) fn new(
        region: &Arc<Region>,
        max_sockets: u32,
        held: Arc<AtomicUsize>,
        paths: Arc<PathMtus>,
    ) -> std::io::Result<Self> {
        let random = || RandomState::new().hash_one(region.id());
        let seed = random();
        let binder = Binder::new(region.clone(), max_sockets, seed);
        let notifier = Arc::new(ReadinessNotifier::new(binder.sockets().clone(), max_sockets));
        Ok(SocketTable {
            notifier,
            sockets: binder.sockets().clone(),
            binder: PiMutex::new(binder),
            memory: SockMem::new(region.frame_count()),
            held,
            queued: AtomicUsize::new(0),
            pressure: Pressure::default(),
            threads: Mutex::default(),
            sets: Mutex::default(),
            stopped: AtomicBool::new(false),
            paths,
            ports: SharedPorts::default(),
            udp: UdpTable::new(FoldKey::new([random(), random()])),
            tcp: TcpTable::new()?,
        })
    }

    /// The ports that sockets have are to be known to `ports`, before there is a socket.
    pub(crate) fn tell_ports(&mut self, ports: Option<Arc<dyn Ports>>) {
        self.ports = SharedPorts::new(ports);
        if self.ports.matter() {
            self.tcp.count_ends();
        }
    }

    /// What devices know of ports.
    pub(crate) fn ports(&self) -> &SharedPorts {
        &self.ports
    }

    /// What sockets may hold beside what they hold now.
    pub(crate) fn room(&self) -> Room {
        self.memory.room(self.held.load(Ordering::Relaxed))
    }

    /// What streams may queue to be sent beside what they have queued.
    pub(crate) fn send_room(&self) -> SendRoom {
        self.memory.send_room(self.queued.load(Ordering::Relaxed))
    }

    /// Whether memory is scarce for all sockets together, at `now`.
    pub(crate) fn pressure(&self, now: u64) -> Pressed {
        let [held, queued] = [&*self.held, &self.queued].map(|count| count.load(Ordering::Relaxed));
        self.pressure.look(&self.memory, (held, queued), now)
    }

    /// Connections that held `before` frames, some of them queued to be sent, hold `now`.
    pub(crate) fn holds(&self, before: (usize, usize), now: (usize, usize)) {
        // What is queued is never less than it seems to another thread, or it would pass for what arrived.
        if now.1 > before.1 {
            self.queued.fetch_add(now.1 - before.1, Ordering::Relaxed);
        }
        if now.0 > before.0 {
            self.held.fetch_add(now.0 - before.0, Ordering::Relaxed);
        } else {
            self.gone(before.0 - now.0);
        }
        if now.1 < before.1 {
            self.queued.fetch_sub(before.1 - now.1, Ordering::Relaxed);
        }
    }

    /// The table's writer.
    pub(crate) fn binder(&self) -> PiGuard<'_, Binder> {
        self.binder.lock()
    }

    /// Sockets that are open.
    pub fn len(&self) -> usize {
        self.binder().len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Has `hand_over` hand packets of `frames` frames over to sockets; memory is reserved for them meanwhile.
    #[inline]
    pub(crate) fn hand_over(
        &self,
        napi_id: u32,
        frames: usize,
        ready: &mut Vec<u32>,
        hand_over: impl FnOnce(&mut Arrivals<'_>),
    ) {
        // Counted before, since receivers may take them at once.
        let room = self.memory.room(self.held.fetch_add(frames, Ordering::Relaxed));
        let mut to = Arrivals { sockets: &self.sockets, napi_id, room, queued: 0, ready };
        hand_over(&mut to);
        self.gone(frames - to.queued);
    }

    /// Hands the packets of `local`, which came by NAPI instance `napi_id` (0: were sent here),
    /// over to the sockets of `transport`; those for which there is no socket come out in
    /// `unserved`. What waits for the slots in `ready` is to be [woken](Self::arrived) when the
    /// caller has done its work.
    #[inline]
    pub(crate) fn input(
        &self,
        ctx: &mut SoftnetData,
        (napi_id, transport): (u32, Transport),
        local: &mut Batch,
        unserved: &mut Batch,
        ready: &mut Vec<u32>,
    ) {
        self.hand_over(napi_id, local.frames(), ready, |to| transport.input(ctx, to, local, unserved));
    }

    /// Hands the packet `skb` over to the members of its multicast group on device `dev`, or, if it
    /// is to all, to the sockets that listen; a copy for each. However many they are, no more
    /// memory is reserved than one of them takes, so that the rest is there for other packets
    /// meanwhile.
    pub(crate) fn to_many(
        &self,
        ctx: &mut SoftnetData,
        transport: Transport,
        dev: u16,
        skb: Skb,
        ready: &mut Vec<u32>,
    ) {
        let members = |flow: &Flow| {
            let binder = self.binder();
            match is_group(flow.local) {
                true => binder.members(flow, dev).collect(),
                false => binder.listeners(flow).collect::<Vec<Hit>>(),
            }
        };
        transport.input_to_many(ctx, members, skb, |ctx, hit, run| {
            self.hand_over(0, run.frames(), ready, |to| to.hand_over(ctx, hit, run));
        });
    }

    /// Leaves an error with the socket that is connected by `flow`, if there is one.
    pub(crate) fn report(&self, flow: &Flow, error: SocketError) {
        // Under the lock, so that the slot is not another's meanwhile.
        let _writer = self.binder();
        if let Some(hit) = self.sockets.find_exact(&Key::connected(*flow))
            && let Some(slot) = self.sockets.slot(hit.slot)
        {
            slot.set_error(error);
            self.wake(hit.slot);
        }
    }

    /// The readiness of the socket in slot `index` changed: wakes what waits for it.
    fn wake(&self, index: u32) {
        self.notifier.wake(index);
    }

    /// The socket in slot `index` was [handed](Self::input) something while it had nothing: wakes
    /// one of the threads that are blocked, and its watchers.
    pub(crate) fn arrived(&self, index: u32) {
        self.notifier.arrived(index);
    }

    /// Frames left sockets' inboxes.
    #[inline]
    pub(crate) fn gone(&self, frames: usize) {
        if frames > 0 {
            self.held.fetch_sub(frames, Ordering::Relaxed);
        }
    }

    /// Makes an application thread's context known, whose caches are emptied when the stack stops.
    pub(crate) fn add_thread(&self, thread: &Arc<Mutex<AppThread>>) {
        lock(&self.threads).push(thread.clone());
    }

    /// Forgets it.
    pub(crate) fn remove_thread(&self, thread: &Arc<Mutex<AppThread>>) {
        lock(&self.threads).retain(|other| !Arc::ptr_eq(other, thread));
    }

    /// Makes an epoll set known, whose thread is woken when the stack stops.
    pub(crate) fn add_set(&self, set: &Arc<Set>) {
        lock(&self.sets).push(set.clone());
    }

    /// Forgets it.
    pub(crate) fn remove_set(&self, set: &Arc<Set>) {
        lock(&self.sets).retain(|other| !Arc::ptr_eq(other, set));
    }

    /// Whether the stack has stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Frames that wait for applications, sets, watchers of sockets, and contexts of application threads.
    #[cfg(test)]
    pub(crate) fn tally(&self) -> [usize; 4] {
        let held = self.held.load(Ordering::Relaxed);
        [held, lock(&self.sets).len(), self.notifier.watchers.len(), lock(&self.threads).len()]
    }

    /// The stack has stopped: all threads that wait are woken, and what application threads have cached goes home.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        for (index, _) in self.sockets.slots() {
            self.wake(index);
        }
        // A set that is added later, its thread finds the stack stopped before it sleeps.
        lock(&self.sets).iter().for_each(|set| set.waker.wake());
        let threads = lock(&self.threads).clone();
        threads.iter().for_each(|thread| lock(thread).drain());
    }
}

impl SocketHost for SocketTable {
    fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    fn recent(&self) -> &RecentPeers {
        &self.udp.recent
    }

    fn local_input(
        &self,
        ctx: &mut SoftnetData,
        transport: Transport,
        local: &mut Batch,
        unserved: &mut Batch,
        ready: &mut Vec<u32>,
    ) {
        match transport {
            Transport::Tcp if self.tcp.is_running() => self.tcp.leave(ctx, local),
            _ => self.input(ctx, (0, transport), local, unserved, ready),
        }
    }

    fn input_to_many(
        &self,
        ctx: &mut SoftnetData,
        transport: Transport,
        dev: u16,
        skb: Skb,
        ready: &mut Vec<u32>,
    ) {
        self.to_many(ctx, transport, dev, skb, ready);
    }

    fn report(&self, flow: &Flow, error: SocketError) {
        self.report(flow, error);
    }

    fn told(&self, told: &Told) {
        self.tcp.told(told);
    }

    fn arrived(&self, slot: u32) {
        self.arrived(slot);
    }
}
