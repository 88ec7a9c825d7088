//! One place for a socket: its key, its inbox, and the state that other threads may read.
//!
//! A slot is never freed, only reused, so a poller needs neither lock nor reference count to touch
//! one: the slot's *generation* shows whether it was closed or reused meanwhile. An even generation
//! is stable; it is odd while the table's one writer writes the key. A packet carries the
//! generation that it was meant for, and the receiver compares it.
//!
//! Invariant: a key that was read between two looks at the same even generation is that
//! generation's key.

use super::key::{Addr, Flow, Key, is_v4};
use super::wait::{Readiness, Wait};
use crate::skb::{Batch, Closed, Region, SkbInbox};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutant, Ordering, fence, mutated};

/// The families that a wildcard socket receives, whether it is connected, its protocol, and its
/// reuseport group: the word that says how a slot is used. 0: unused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct BindFlags(pub(super) u32);

impl BindFlags {
    pub(super) const V4: u32 = 1 << 0;
    pub(super) const V6: u32 = 1 << 1;
    /// The key is that of a [connected](Key::is_connected) socket.
    const CONNECTED: u32 = 1 << 2;
    /// Where the protocol is, and the group.
    const PROTOCOL: u32 = 8;
    const GROUP: u32 = 16;

    pub(super) fn new(protocol: u8, v4: bool, v6: bool) -> Self {
        let families = if v4 { Self::V4 } else { 0 } | if v6 { Self::V6 } else { 0 };
        BindFlags(families | u32::from(protocol) << Self::PROTOCOL)
    }

    /// Those of a socket that is connected from `local`.
    pub(super) fn connected(protocol: u8, local: Addr) -> Self {
        let v4 = is_v4(local);
        BindFlags(BindFlags::new(protocol, v4, !v4).0 | Self::CONNECTED)
    }

    /// Its protocol.
    pub(super) fn protocol(self) -> u8 {
        (self.0 >> Self::PROTOCOL) as u8
    }

    pub(super) fn in_group(self, group: Option<u32>) -> Self {
        BindFlags(self.0 & ((1 << Self::GROUP) - 1) | group.map_or(0, |group| group + 1) << Self::GROUP)
    }

    /// Its reuseport group.
    #[inline(always)]
    pub(super) fn group(self) -> Option<u32> {
        (self.0 >> Self::GROUP).checked_sub(1)
    }

    /// Whether both receive packets of one family and protocol.
    pub(super) fn overlaps(self, other: BindFlags) -> bool {
        self.0 & other.0 & (Self::V4 | Self::V6) != 0 && self.protocol() == other.protocol()
    }

    /// Whether it is that of a socket with such a `key`, and receives packets of a family.
    #[inline(always)]
    pub(super) fn takes(self, key: &Key, v4: bool) -> bool {
        let family = if v4 { Self::V4 } else { Self::V6 };
        let connected = if key.is_connected() { Self::CONNECTED } else { 0 };
        let mask = family | Self::CONNECTED | 0xff << Self::PROTOCOL;
        self.0 & mask == family | connected | u32::from(key.flow.protocol) << Self::PROTOCOL
    }
}

/// A pending error, for the socket's next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SocketError {
    /// The port is closed (`ECONNREFUSED`).
    ConnectionRefused = 1,
    /// The destination does not answer the last router (`EHOSTUNREACH`).
    HostUnreachable = 2,
    /// No route (`ENETUNREACH`).
    NetUnreachable = 3,
    /// Too long for the path (`EMSGSIZE`).
    MessageSize = 4,
}

impl SocketError {
    const ALL: [SocketError; 4] =
        [Self::ConnectionRefused, Self::HostUnreachable, Self::NetUnreachable, Self::MessageSize];
}

/// Bits by which the owner of a stream, or of a listener, says what can be done with it.
pub mod stream {
    /// It is a stream or a listener.
    pub(super) const STREAM: u32 = 1 << 0;
    /// Bytes, the end, or a connection to be accepted are there.
    pub const READABLE: u32 = 1 << 1;
    /// There is room to write.
    pub const WRITABLE: u32 = 1 << 2;
    /// An error is pending.
    pub const ERROR: u32 = 1 << 3;
    /// The peer sends no more (`EPOLLRDHUP`).
    pub const PEER_CLOSED: u32 = 1 << 4;
    /// Neither end sends any more (`EPOLLHUP`).
    pub const HUNG_UP: u32 = 1 << 5;
}

/// One place for a socket, reused and never freed: a line that look-ups read, and one that each packet
/// and each call writes. There may be a million.
#[repr(C, align(64))]
pub struct Slot {
    /// The next slot of its chain.
    pub(super) next: AtomicU32,
    generation: AtomicU32,
    ports: AtomicU32,
    flags: AtomicU32,
    local: [AtomicU64; 2],
    remote: [AtomicU64; 2],
    limit: AtomicU32,
    napi_id: AtomicU32,
    drops: AtomicU64,
    pub(super) inbox: SkbInbox,
    /// Frames of the packets in the inbox, and of those that the receiver took: the number that is
    /// limited.
    queued: AtomicU32,
    error: AtomicU32,
    tid: AtomicU32,
    /// Of a stream or a listener: what its owner says of its readiness, as bits of [`stream`].
    stream: AtomicU32,
    wait: Wait,
    /// Whether the receiver has packets that it took and has not handed out.
    held: AtomicBool,
    held_back: AtomicBool,
    /// See [`watch_exclusively`](Slot::watch_exclusively).
    exclusive: AtomicBool,
}

#[cfg(not(feature = "loom"))]
const _: () = assert!(size_of::<Slot>() == 128);

/// The outcome of pushing a run of packets to one socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pushed {
    /// Packets that were queued.
    pub(super) queued: usize,
    /// Their frames.
    pub(super) frames: usize,
    /// Whether the socket was empty: the caller notifies its waiters.
    pub(super) first: bool,
    /// Whether waiters are notified although the socket was not empty, once for all packets of a
    /// poll.
    pub(super) again: bool,
    /// Why the packets that are left in the batch were refused.
    pub(super) refused: Option<Refusal>,
}

/// Why a socket refused packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The limit on queued frames is reached.
    Full,
    /// The socket was closed.
    Closed,
}

impl Slot {
    pub(super) fn new(region: &Region) -> Self {
        let word = || AtomicU32::new(0);
        let addr = || [AtomicU64::new(0), AtomicU64::new(0)];
        Slot {
            next: AtomicU32::new(super::table::NIL),
            generation: word(),
            ports: word(),
            flags: word(),
            local: addr(),
            remote: addr(),
            inbox: SkbInbox::new(region),
            queued: word(),
            held: AtomicBool::new(false),
            limit: word(),
            napi_id: word(),
            error: word(),
            drops: AtomicU64::new(0),
            tid: word(),
            held_back: AtomicBool::new(false),
            stream: word(),
            exclusive: AtomicBool::new(false),
            wait: Wait::default(),
        }
    }

    /// The generation, if it is stable.
    #[inline(always)]
    pub(super) fn stable(&self) -> Option<u32> {
        // Acquire: with the even number of a writer comes the key that it wrote before.
        let generation = self.generation.load(Ordering::Acquire);
        (generation & 1 == 0).then_some(generation)
    }

    /// Whether the slot is still of `generation`, after its key was read.
    #[inline(always)]
    pub(super) fn is_still(&self, generation: u32) -> bool {
        fence(Ordering::Acquire);
        mutated(Mutant::GenerationNotChecked) || self.generation.load(Ordering::Relaxed) == generation
    }

    /// The generation now, for the receiver of the slot's socket.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn flags(&self) -> BindFlags {
        BindFlags(self.flags.load(Ordering::Relaxed))
    }

    /// Whether the slot has this `key`, and receives packets of the family.
    #[inline(always)]
    pub(super) fn matches(&self, key: &Key, v4: bool) -> bool {
        self.ports.load(Ordering::Relaxed) == key.flow.ports()
            && load(&self.local) == key.flow.local
            && load(&self.remote) == key.flow.remote
            && self.flags().takes(key, v4)
    }

    /// The socket's key, unless it is being changed or there is none. For display, and for look-ups
    /// of several sockets.
    pub fn key(&self) -> Option<(Key, bool)> {
        let generation = self.stable()?;
        let (ports, flags) = (self.ports.load(Ordering::Relaxed), self.flags());
        let flow = Flow {
            local: load(&self.local),
            remote: load(&self.remote),
            lport: (ports >> 16) as u16,
            rport: ports as u16,
            protocol: flags.protocol(),
        };
        let v4_only = flags.0 & BindFlags::V6 == 0;
        let key = match flags.0 & BindFlags::CONNECTED {
            0 => Key::bound(flow.protocol, flow.local, flow.lport),
            _ => Key::connected(flow),
        };
        (flags != BindFlags(0) && self.is_still(generation)).then_some((key, v4_only))
    }

    /// Notes the ends of a connection that no look-up finds, for [`flow`](Self::flow). Only the holder of
    /// a slot without a key may call it.
    pub fn set_flow(&self, flow: &Flow) {
        // After the key of the slot's last socket was taken out: a look-up that reads any of this finds
        // another generation at its second look.
        fence(Ordering::Release);
        self.ports.store(flow.ports(), Ordering::Relaxed);
        store(&self.local, flow.local);
        store(&self.remote, flow.remote);
    }

    /// The ends that were noted, for the holder of the slot.
    pub fn flow(&self, protocol: u8) -> Flow {
        let ports = self.ports.load(Ordering::Relaxed);
        let (lport, rport) = ((ports >> 16) as u16, ports as u16);
        Flow { local: load(&self.local), remote: load(&self.remote), lport, rport, protocol }
    }

    /// Writes a new key. Only the one writer may call it. Returns the new generation.
    pub(super) fn set_key(&self, key: &Key, flags: BindFlags) -> u32 {
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation.store(generation.wrapping_add(1), Ordering::Relaxed);
        // Before the key: a thread that reads any part of the new key finds the odd generation, or
        // a later one, at its second look.
        fence(Ordering::Release);
        self.ports.store(key.flow.ports(), Ordering::Relaxed);
        store(&self.local, key.flow.local);
        store(&self.remote, key.flow.remote);
        self.flags.store(flags.0, Ordering::Relaxed);
        self.generation.store(generation.wrapping_add(2), Ordering::Release);
        generation.wrapping_add(2)
    }

    /// Prepares the slot for a new socket, while its inbox has no receiver.
    pub(super) fn reset(&self, limit: u32) {
        // The count of queued packets stays: a poller may not have counted yet what the last
        // receiver took.
        self.limit.store(limit, Ordering::Relaxed);
        self.drops.store(0, Ordering::Relaxed);
        self.held.store(false, Ordering::Relaxed);
        self.held_back.store(false, Ordering::Relaxed);
        self.exclusive.store(false, Ordering::Relaxed);
        for word in [&self.napi_id, &self.error, &self.tid, &self.stream] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Pushes the datagrams of `run`, which came by NAPI instance `napi_id` and are meant for
    /// `generation`, as far as there is room. The rest stays in `run`.
    #[inline]
    pub(super) fn push(&self, run: &mut Batch, generation: u32, napi_id: u32) -> Pushed {
        let room = self.limit().saturating_sub(self.queued()) as usize;
        // As in the kernel, a datagram is admitted if there is room for one of its frames.
        let (mut frames, mut fit) = (0, 0);
        for skb in run.as_mut_slice() {
            if frames >= room {
                break;
            }
            frames += skb.frame_count();
            fit += 1;
            skb.head_mut().sk_generation = generation;
        }
        let mut rest = Batch::new();
        if fit < run.len() {
            rest = split_off(run, fit);
        }
        let (n, full) = (run.len(), !rest.is_empty());
        let mut pushed = Pushed { refused: full.then_some(Refusal::Full), ..Pushed::default() };
        if n > 0 {
            match self.inbox.push(run) {
                Ok(first) => {
                    // The receiver may have taken them by now, so this count must not be used to
                    // tell whether there are any.
                    self.queued.fetch_add(frames as u32, Ordering::Relaxed);
                    (pushed.queued, pushed.frames) = (n, frames);
                    (pushed.first, pushed.again) = (first, !first && self.tells_again());
                    if self.napi_id.load(Ordering::Relaxed) != napi_id && napi_id != 0 {
                        self.napi_id.store(napi_id, Ordering::Relaxed);
                    }
                }
                Err(Closed) => pushed.refused = Some(Refusal::Closed),
            }
        }
        if full {
            self.drops.fetch_add(rest.len() as u64, Ordering::Relaxed);
            run.append(&mut rest);
        }
        pushed
    }

    /// Says whether the receiver has packets that it took and has not handed out. The receiver must
    /// set this before it takes them, since waiting threads look at the inbox first.
    pub(super) fn set_held(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
        if held && !mutated(Mutant::HeldNoFence) {
            // A thread that finds the inbox empty because of this take also finds the flag set.
            fence(Ordering::Release);
        }
    }

    /// The receiver handed out or freed packets of `n` frames.
    pub(super) fn took(&self, n: u32) {
        self.queued.fetch_sub(n, Ordering::Relaxed);
    }

    /// Frames of queued packets.
    pub fn queued(&self) -> u32 {
        // Negative for an instant if the receiver takes packets before their poller counts them.
        (self.queued.load(Ordering::Relaxed) as i32).max(0) as u32
    }

    /// Datagrams that were dropped because the socket, or all sockets together, had reached the
    /// limit.
    pub fn drops(&self) -> u64 {
        self.drops.load(Ordering::Relaxed)
    }

    /// Counts datagrams that could not even be offered to the socket.
    pub(super) fn dropped(&self, datagrams: u64) {
        self.drops.fetch_add(datagrams, Ordering::Relaxed);
    }

    /// The limit on the frames of queued packets.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit on the frames of queued packets.
    pub fn set_limit(&self, frames: u32) {
        self.limit.store(frames, Ordering::Relaxed);
    }

    /// Id of the NAPI instance by which its last packets came; 0: none.
    pub fn napi_id(&self) -> u32 {
        self.napi_id.load(Ordering::Relaxed)
    }

    /// The thread that received from it last; 0: none.
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// Records that the calling thread, with this id, receives from it.
    #[inline]
    pub fn set_tid(&self, tid: u32) {
        if self.tid.load(Ordering::Relaxed) != tid {
            self.tid.store(tid, Ordering::Relaxed);
        }
    }

    /// Leaves an error for the socket's next call. The caller notifies the waiters.
    pub fn set_error(&self, error: SocketError) {
        self.error.store(error as u32, Ordering::Release);
    }

    /// Takes the pending error.
    #[inline]
    pub fn take_error(&self) -> Option<SocketError> {
        if self.error.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let error = self.error.swap(0, Ordering::Acquire);
        SocketError::ALL.into_iter().find(|known| *known as u32 == error)
    }

    /// Records that a sender was held back, or may go on.
    pub fn set_held_back(&self, held_back: bool) {
        self.held_back.store(held_back, Ordering::Release);
    }

    /// What can be done now without blocking.
    pub fn readiness(&self) -> Readiness {
        let pending = self.inbox.has_pending();
        // Packets that are no longer there were taken by the receiver, which set the flag before.
        fence(Ordering::Acquire);
        let stream = self.stream.load(Ordering::Acquire);
        let (known, says) = (stream & stream::STREAM != 0, |bit: u32| stream & bit != 0);
        Readiness {
            readable: pending || self.held.load(Ordering::Relaxed) || says(stream::READABLE),
            writable: !self.held_back.load(Ordering::Acquire) && (!known || says(stream::WRITABLE)),
            error: self.error.load(Ordering::Acquire) != 0 || says(stream::ERROR),
            peer_closed: says(stream::PEER_CLOSED),
            hung_up: says(stream::HUNG_UP),
        }
    }

    /// Says what can be done with a stream or a listener, as bits of [`stream`]. Only the holder of its
    /// state may call it; it notifies the waiters if this returns that more can be done than before.
    pub fn set_stream(&self, bits: u32) -> bool {
        let (bits, before) = (bits | stream::STREAM, self.stream.load(Ordering::Relaxed));
        if before != bits {
            // Release: with the bits comes what they tell of.
            self.stream.store(bits, Ordering::Release);
        }
        bits & !before & !stream::STREAM != 0
    }

    /// Records by which NAPI instance its last packets came.
    #[inline]
    pub fn set_napi_id(&self, napi_id: u32) {
        if self.napi_id.load(Ordering::Relaxed) != napi_id {
            self.napi_id.store(napi_id, Ordering::Relaxed);
        }
    }

    /// A thread that was woken for a datagram has taken its share: returns whether it must wake
    /// another blocked thread, since there is more. One notification may stand for several
    /// datagrams.
    pub fn pass_on(&self) -> bool {
        !mutated(Mutant::NotPassedOn) && self.readiness().readable && self.wait.notify()
    }

    /// From now on, as long as the slot has this socket, waiters are notified whenever a poll
    /// brings datagrams (the kernel does so for each datagram), and not only when the socket was
    /// empty. It is for exclusive sets, of which one is notified at a time: a set that makes no use
    /// of its notification, or hangs, does not keep the next one from another set.
    pub fn watch_exclusively(&self) {
        // Relaxed: a push that misses this comes after another one of which waiters were notified.
        self.exclusive.store(true, Ordering::Relaxed);
    }

    #[inline(always)]
    fn tells_again(&self) -> bool {
        self.exclusive.load(Ordering::Relaxed) && !mutated(Mutant::AgainNotTold)
    }

    /// The socket's waiters.
    pub fn wait(&self) -> &Wait {
        &self.wait
    }
}

#[inline(always)]
fn load(addr: &[AtomicU64; 2]) -> Addr {
    u128::from(addr[0].load(Ordering::Relaxed)) << 64 | u128::from(addr[1].load(Ordering::Relaxed))
}

fn store(to: &[AtomicU64; 2], addr: Addr) {
    to[0].store((addr >> 64) as u64, Ordering::Relaxed);
    to[1].store(addr as u64, Ordering::Relaxed);
}

/// Takes the packets of `run` from number `at` on.
#[cold]
pub(super) fn split_off(run: &mut Batch, at: usize) -> Batch {
    let (mut first, mut rest) = (Batch::new(), Batch::new());
    let mut packets = run.drain();
    move_some(&mut packets, at, &mut first);
    move_some(&mut packets, usize::MAX, &mut rest);
    drop(packets);
    std::mem::swap(run, &mut first);
    rest
}

fn move_some(from: &mut impl Iterator<Item = crate::skb::Skb>, n: usize, to: &mut Batch) {
    for skb in from.take(n) {
        // No batch holds more packets than fit another one.
        if let Err(skb) = to.push(skb) {
            drop(skb);
        }
    }
}

/// Whether packets to `flow` are IPv4.
#[inline(always)]
pub(super) fn family(flow: &Flow) -> bool {
    is_v4(flow.local)
}
