//! One place for a socket: its key, its inbox, and what others may know of it.
//!
//! A slot is never freed, only used anew, so a poller needs neither lock nor reference count to touch one: if it was
//! closed or used anew meanwhile, the slot's *generation* tells. Even generations are stable; it is odd while the key is
//! written, by the one writer there is. A packet carries the generation that it was meant for, and whoever takes it
//! from the inbox compares.
//!
//! Invariant: what matched a key under an even generation that is still there afterwards was that generation's key.

use super::key::{Addr, Flow, is_v4};
use super::wait::{Readiness, Wait};
use crate::skb::{Batch, Closed, Flags, Region, SkbInbox};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutant, Ordering, fence, mutated};

/// Families that a wildcard socket takes, and its reuseport group: the word that says how a slot is used. 0: not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct How(pub(super) u32);

impl How {
    pub(super) const V4: u32 = 1 << 0;
    pub(super) const V6: u32 = 1 << 1;
    const GROUP: u32 = 8;

    pub(super) fn new(v4: bool, v6: bool) -> Self {
        How(if v4 { Self::V4 } else { 0 } | if v6 { Self::V6 } else { 0 })
    }

    pub(super) fn in_group(self, group: Option<u32>) -> Self {
        How(self.0 & ((1 << Self::GROUP) - 1) | group.map_or(0, |group| group + 1) << Self::GROUP)
    }

    /// Its reuseport group.
    #[inline(always)]
    pub(super) fn group(self) -> Option<u32> {
        (self.0 >> Self::GROUP).checked_sub(1)
    }

    /// Whether both take packets of one family.
    pub(super) fn overlaps(self, other: How) -> bool {
        self.0 & other.0 & (Self::V4 | Self::V6) != 0
    }

    /// Whether it takes packets of a family.
    #[inline(always)]
    pub(super) fn takes(self, v4: bool) -> bool {
        self.0 & if v4 { Self::V4 } else { Self::V6 } != 0
    }
}

/// An error that waits for a socket's next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SocketError {
    /// Nobody serves the port (`ECONNREFUSED`).
    ConnectionRefused = 1,
    /// The last router's neighbour does not answer (`EHOSTUNREACH`).
    HostUnreachable = 2,
    /// No route (`ENETUNREACH`).
    NetUnreachable = 3,
    /// Too long for the way (`EMSGSIZE`).
    MessageSize = 4,
}

impl SocketError {
    const ALL: [SocketError; 4] =
        [Self::ConnectionRefused, Self::HostUnreachable, Self::NetUnreachable, Self::MessageSize];
}

/// One place for a socket, used anew and never freed.
#[repr(align(64))]
pub struct Slot {
    /// The next of its chain.
    pub(super) next: AtomicU32,
    generation: AtomicU32,
    ports: AtomicU32,
    how: AtomicU32,
    local: [AtomicU64; 2],
    remote: [AtomicU64; 2],
    pub(super) inbox: SkbInbox,
    /// Packets in the inbox, and those that the receiver took: what the bound is for.
    queued: AtomicU32,
    /// The receiver has packets that it took and has not handed out.
    held: AtomicBool,
    limit: AtomicU32,
    napi_id: AtomicU32,
    error: AtomicU32,
    drops: AtomicU64,
    tid: AtomicU32,
    held_back: AtomicBool,
    /// See [`watch_exclusively`](Slot::watch_exclusively).
    exclusive: AtomicBool,
    wait: Wait,
}

/// What became of a run of packets for one socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pushed {
    /// Packets that wait there now.
    pub(super) queued: usize,
    /// Whether nothing else waited: those who wait for the socket are to be told.
    pub(super) first: bool,
    /// Whether they are to be told although something else waited, once for all that one poll brings.
    pub(super) again: bool,
    /// Why the packets that are left in the batch were not taken.
    pub(super) refused: Option<Refusal>,
}

/// Why a socket did not take packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// As many wait as may.
    Full,
    /// It was closed.
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
            how: word(),
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
            exclusive: AtomicBool::new(false),
            wait: Wait::default(),
        }
    }

    /// Its generation, if that is stable.
    #[inline(always)]
    pub(super) fn stable(&self) -> Option<u32> {
        // Acquire: with the even number of a writer comes the key that it wrote before.
        let generation = self.generation.load(Ordering::Acquire);
        (generation & 1 == 0).then_some(generation)
    }

    /// Whether `generation` is still the slot's, after its key was read.
    #[inline(always)]
    pub(super) fn is_still(&self, generation: u32) -> bool {
        fence(Ordering::Acquire);
        mutated(Mutant::GenerationNotChecked) || self.generation.load(Ordering::Relaxed) == generation
    }

    /// The generation now; for its receiver, whose socket it is.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn how(&self) -> How {
        How(self.how.load(Ordering::Relaxed))
    }

    /// Whether it is the socket of `key`, and takes packets of the family.
    #[inline(always)]
    pub(super) fn matches(&self, key: &Flow, v4: bool) -> bool {
        self.ports.load(Ordering::Relaxed) == key.ports()
            && load(&self.local) == key.local
            && load(&self.remote) == key.remote
            && self.how().takes(v4)
    }

    /// The socket's key, unless it is being changed or there is none. For display, and for who looks at several sockets.
    pub fn key(&self) -> Option<(Flow, bool)> {
        let generation = self.stable()?;
        let (ports, how) = (self.ports.load(Ordering::Relaxed), self.how());
        let flow = Flow {
            local: load(&self.local),
            remote: load(&self.remote),
            lport: (ports >> 16) as u16,
            rport: ports as u16,
        };
        let v4_only = how.0 & How::V6 == 0;
        (how != How(0) && self.is_still(generation)).then_some((flow, v4_only))
    }

    /// Writes a new key. Only the one writer may call it. Returns the new generation.
    pub(super) fn set_key(&self, key: &Flow, how: How) -> u32 {
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation.store(generation.wrapping_add(1), Ordering::Relaxed);
        // Before the key: whoever reads anything of the new one finds the odd generation, or a later one, at its second look.
        fence(Ordering::Release);
        self.ports.store(key.ports(), Ordering::Relaxed);
        store(&self.local, key.local);
        store(&self.remote, key.remote);
        self.how.store(how.0, Ordering::Relaxed);
        self.generation.store(generation.wrapping_add(2), Ordering::Release);
        generation.wrapping_add(2)
    }

    /// Made ready for a new socket, while nobody receives from its inbox.
    pub(super) fn reset(&self, limit: u32) {
        // What is queued stays: a poller may have yet to count what the last receiver took already.
        self.limit.store(limit, Ordering::Relaxed);
        self.drops.store(0, Ordering::Relaxed);
        self.held.store(false, Ordering::Relaxed);
        self.held_back.store(false, Ordering::Relaxed);
        self.exclusive.store(false, Ordering::Relaxed);
        for word in [&self.napi_id, &self.error, &self.tid] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Hands over the packets of `run`, whole datagrams that came by NAPI instance `napi_id` and are meant for
    /// `generation`; as many as there is room for. The rest stays in `run`.
    #[inline]
    pub(super) fn push(&self, run: &mut Batch, generation: u32, napi_id: u32) -> Pushed {
        let room = self.limit().saturating_sub(self.queued()) as usize;
        let mut rest = Batch::new();
        if run.len() > room {
            rest = split_off(run, whole_datagrams(run, room));
        }
        let (n, full) = (run.len(), !rest.is_empty());
        let mut pushed = Pushed { refused: full.then_some(Refusal::Full), ..Pushed::default() };
        if n > 0 {
            for skb in run.as_mut_slice() {
                skb.head_mut().sk_generation = generation;
            }
            match self.inbox.push(run) {
                Ok(first) => {
                    // The receiver may have taken them by now: nobody is to learn from this count whether there are any.
                    self.queued.fetch_add(n as u32, Ordering::Relaxed);
                    (pushed.queued, pushed.first, pushed.again) = (n, first, !first && self.tells_again());
                    if self.napi_id.load(Ordering::Relaxed) != napi_id && napi_id != 0 {
                        self.napi_id.store(napi_id, Ordering::Relaxed);
                    }
                }
                Err(Closed) => pushed.refused = Some(Refusal::Closed),
            }
        }
        if full {
            self.drops.fetch_add(datagrams(&rest), Ordering::Relaxed);
            run.append(&mut rest);
        }
        pushed
    }

    /// The receiver has packets that it took and has not handed out, or has none. That it has must be said before it takes
    /// them: those who wait look at the inbox first.
    pub(super) fn set_held(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
        if held && !mutated(Mutant::HeldNoFence) {
            // Whoever finds the inbox empty for it finds this.
            fence(Ordering::Release);
        }
    }

    /// `n` packets were handed out, or freed, by the receiver.
    pub(super) fn took(&self, n: u32) {
        self.queued.fetch_sub(n, Ordering::Relaxed);
    }

    /// Packets that wait.
    pub fn queued(&self) -> u32 {
        // Below 0 for an instant, if the receiver has taken packets before their poller counts them.
        (self.queued.load(Ordering::Relaxed) as i32).max(0) as u32
    }

    /// Datagrams that were dropped since as many waited as may, or all sockets together held too much.
    pub fn drops(&self) -> u64 {
        self.drops.load(Ordering::Relaxed)
    }

    /// Counts datagrams that could not even be offered to it.
    pub(super) fn dropped(&self, datagrams: u64) {
        self.drops.fetch_add(datagrams, Ordering::Relaxed);
    }

    /// Packets that may wait.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets how many packets may wait.
    pub fn set_limit(&self, packets: u32) {
        self.limit.store(packets, Ordering::Relaxed);
    }

    /// Id of the NAPI instance that its last packets came by; 0 if none did.
    pub fn napi_id(&self) -> u32 {
        self.napi_id.load(Ordering::Relaxed)
    }

    /// The thread that received from it last; 0 if none did.
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// The calling thread, with this id, receives from it.
    #[inline]
    pub fn set_tid(&self, tid: u32) {
        if self.tid.load(Ordering::Relaxed) != tid {
            self.tid.store(tid, Ordering::Relaxed);
        }
    }

    /// Leaves an error for its next call. Those who wait are to be told.
    pub fn set_error(&self, error: SocketError) {
        self.error.store(error as u32, Ordering::Release);
    }

    /// Takes the error that waits.
    #[inline]
    pub fn take_error(&self) -> Option<SocketError> {
        if self.error.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let error = self.error.swap(0, Ordering::Acquire);
        SocketError::ALL.into_iter().find(|known| *known as u32 == error)
    }

    /// A sender was told that it would have to wait, or may go on.
    pub fn set_held_back(&self, held_back: bool) {
        self.held_back.store(held_back, Ordering::Release);
    }

    /// What may be done now without waiting.
    pub fn readiness(&self) -> Readiness {
        let pending = self.inbox.has_pending();
        // What is not there any more was taken by the receiver, which said so before.
        fence(Ordering::Acquire);
        Readiness {
            readable: pending || self.held.load(Ordering::Relaxed),
            writable: !self.held_back.load(Ordering::Acquire),
            error: self.error.load(Ordering::Acquire) != 0,
        }
    }

    /// A thread that was woken for a datagram has taken what it wanted: whether it is to wake another that is blocked, since there is
    /// more. One notification may stand for several datagrams.
    pub fn pass_on(&self) -> bool {
        !mutated(Mutant::NotPassedOn) && self.readiness().readable && self.wait.notify()
    }

    /// From now on, as long as it is this socket's, those who wait are told whenever a poll brings datagrams, as the kernel
    /// has it of each datagram, and not only when one finds it empty: for sets of which one is told at a time. One that was
    /// told may have no use for it, or hang; then what comes next is told to another.
    pub fn watch_exclusively(&self) {
        // Relaxed: what misses this is behind something that those who wait were told of.
        self.exclusive.store(true, Ordering::Relaxed);
    }

    #[inline(always)]
    fn tells_again(&self) -> bool {
        self.exclusive.load(Ordering::Relaxed) && !mutated(Mutant::AgainNotTold)
    }

    /// Those who wait for it.
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

/// Packets of the first datagrams of `run` that get in if there is room for `room` packets: a datagram gets in if there
/// is room for one of its packets, as the kernel has it.
fn whole_datagrams(run: &Batch, room: usize) -> usize {
    let mut packets = run.as_slice().iter().enumerate();
    let first_after = packets.find(|(i, _)| {
        let begins = *i == 0 || run.as_slice()[*i - 1].head().flags & Flags::MORE == 0;
        begins && *i >= room
    });
    first_after.map_or(run.len(), |(i, _)| i)
}

/// How many datagrams `packets` holds.
pub(super) fn datagrams(packets: &Batch) -> u64 {
    packets.as_slice().iter().filter(|skb| skb.head().flags & Flags::MORE == 0).count() as u64
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
        // No batch holds more packets than another has room for.
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
