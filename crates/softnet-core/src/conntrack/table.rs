//! The table: look-up, use and insertion of connections.

use super::entry::{Contents, Entry, Holds, Life, NIL, UNCONFIRMED};
use super::state::{State, Timeouts};
use super::wheel::Wheel;
use super::{Carried, Direction, FreeList, Index, Tuple};
use crate::fold::FoldKey;
use crate::memory::TableMemory;
use crate::siphash::SipKey;
use crate::skb::{BATCH, prefetch};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

use std::hash::Hasher;
use std::net::Ipv6Addr;

/// Seconds by which a connection may seem older than it is, so that not each packet writes to its
/// entry.
const SLACK: u32 = 4;
/// Seconds that a connection which is not confirmed is kept: longer than any packet is on its way
/// from the slot where it opens one to the last, and long enough for an ICMP error about it.
const UNCONFIRMED_FOR: u32 = 2;
/// Seconds of the wheel: an entry is looked at once in so many at least.
#[cfg(not(feature = "loom"))]
const ROUND: u32 = 256;
#[cfg(feature = "loom")]
const ROUND: u32 = 4;
/// Words whose owners may insert connections, by the endpoint that opens them.
#[cfg(not(feature = "loom"))]
const STRIPES: usize = 256;
#[cfg(feature = "loom")]
const STRIPES: usize = 1;

/// See the [module](super).
pub struct Conntrack {
    pub(super) entries: Box<[Entry]>,
    index: Index,
    pub(super) free: FreeList,
    pub(super) wheel: Wheel,
    stripes: Box<[AtomicU32]>,
    key: FoldKey,
    /// Of addresses of IPv6.
    key6: SipKey,
    /// Source and destination of the first packet of each connection of IPv6, for display. Empty if
    /// there are none.
    ends6: Box<[[AtomicU64; 4]]>,
    /// Seconds by the numbers of states.
    timeouts: [AtomicU32; 16],
    created: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) early_drop: AtomicU64,
    pub(super) ended: AtomicU64,
    full: AtomicU64,
    /// Where the next search for a connection to be dropped early begins.
    pub(super) turn: AtomicU32,
}

/// What was counted, for others to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Connections that there can be.
    pub capacity: u32,
    /// Entries in use.
    pub entries: u64,
    /// Connections that were made.
    pub created: u64,
    /// Those that expired.
    pub expired: u64,
    /// Those that were ended before; they expire, too.
    pub ended: u64,
    /// Those that were not assured, and were ended for others when the table was full (the kernel's
    /// `early_drop`).
    pub early_drop: u64,
    /// Those that there was no room for.
    pub full: u64,
}

/// A connection to be made.
#[derive(Clone, Copy, Debug)]
pub struct New {
    /// The tuples of both directions.
    pub tuples: [Tuple; 2],
    /// Its first state.
    pub state: State,
    /// [`SNAT`](super::entry::SNAT), [`DNAT`](super::entry::DNAT).
    pub flags: u8,
    pub(crate) holds: Holds,
    pub(crate) ends6: [u128; 2],
}

impl New {
    /// Of which nothing is translated.
    pub fn plain(tuple: Tuple, state: State) -> Self {
        New { tuples: [tuple, tuple.inverse()], state, flags: 0, holds: Holds::NOTHING, ends6: [0; 2] }
    }
}

/// A connection that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Twice the index of its entry, and one more if the packet is a reply.
    pub id: u32,
    /// Its life word.
    pub life: Life,
}

impl Found {
    /// The direction of the packet.
    #[inline(always)]
    pub fn direction(self) -> Direction {
        Direction::of(self.id)
    }

    /// What the head of a packet carries: identifier plus one, and above it as much of the
    /// generation as there is room for.
    #[inline(always)]
    pub(crate) fn word(self) -> u32 {
        u32::from(self.life.generation()) << 24 | (self.id + 1)
    }
}

/// Why there is no connection for a packet that would open one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The table is full, and no connection was found that may be dropped early.
    Full,
    /// Another thread makes one for the same endpoint at this moment.
    Busy,
}

/// A connection, as it was when it was looked at.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    /// The tuples of both directions.
    pub tuples: [Tuple; 2],
    /// Source and destination of the first packet, if that was of IPv6.
    pub ends6: Option<[Ipv6Addr; 2]>,
    /// Its state.
    pub state: State,
    /// [`SNAT`](super::entry::SNAT), [`DNAT`](super::entry::DNAT).
    pub flags: u8,
    /// Seconds until it expires.
    pub left: u32,
    /// Seconds since it was made.
    pub age: u32,
}

/// The right to make connections of an endpoint.
pub(crate) struct Stripe<'a>(&'a AtomicU32);

impl Drop for Stripe<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Conntrack {
    /// The most connections that a table can have.
    pub const MAX: u32 = super::index::MAX_IDS / 2 - 1;

    /// A table for `capacity` connections, [`MAX`](Self::MAX) at the most; `key` hashes them, and
    /// must be random.
    pub fn new(capacity: u32, key: FoldKey, timeouts: &Timeouts, memory: &impl TableMemory) -> Self {
        let capacity = capacity.clamp(1, Self::MAX);
        let table = Conntrack {
            entries: memory.filled(capacity as usize, Entry::new),
            index: Index::new(2 * capacity, memory),
            free: FreeList::new(capacity),
            wheel: Wheel::new(ROUND),
            stripes: (0..STRIPES).map(|_| AtomicU32::new(0)).collect(),
            key,
            key6: SipKey::new([1, 2].map(|n| key.hash(|hasher| hasher.write_u64(n)))),
            ends6: Box::default(),
            timeouts: [0; 16].map(AtomicU32::new),
            created: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            early_drop: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            full: AtomicU64::new(0),
            turn: AtomicU32::new(0),
        };
        table.set_timeouts(timeouts);
        table
    }

    /// The same, of IPv6, too: 32 bytes more for each connection.
    pub fn with_ipv6(mut self) -> Self {
        self.ends6 = self.entries.iter().map(|_| [0; 4].map(AtomicU64::new)).collect();
        self
    }

    /// Whether connections of IPv6 are tracked.
    #[inline(always)]
    pub(super) fn tracks_ipv6(&self) -> bool {
        !self.ends6.is_empty()
    }

    /// The hash that stands for an address of IPv6 in tuples.
    #[inline]
    pub(super) fn hash6(&self, addr: u128) -> u64 {
        self.key6.hash(&[(addr >> 64) as u64, addr as u64])
    }

    /// Has connections expire after these times without a packet; those that there are, from their
    /// next packet on.
    pub fn set_timeouts(&self, timeouts: &Timeouts) {
        for (to, seconds) in self.timeouts.iter().zip(timeouts.table()) {
            to.store(seconds.max(SLACK).saturating_add(SLACK), Ordering::Relaxed);
        }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        let entries = size_of_val(&*self.entries) + size_of_val(&*self.ends6);
        entries + self.index.bytes() + size_of_val(&*self.stripes) + 4 * ROUND as usize
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        let [created, expired, early_drop, ended, full] =
            [&self.created, &self.expired, &self.early_drop, &self.ended, &self.full]
                .map(|counter| counter.load(Ordering::Relaxed));
        let capacity = self.entries.len() as u32;
        let entries = created.saturating_sub(expired + early_drop);
        Counts { capacity, entries, created, expired, ended, early_drop, full }
    }

    /// The hash of a tuple.
    #[inline(always)]
    pub(crate) fn hash(&self, tuple: &Tuple) -> u64 {
        self.key.hash(|hasher| {
            hasher.write_u64(tuple.addrs);
            hasher.write_u64(tuple.rest);
        })
    }

    #[inline(always)]
    pub(super) fn entry(&self, id: u32) -> Option<&Entry> {
        self.entries.get((id >> 1) as usize)
    }

    /// The link of an entry on the list that it is on.
    pub(super) fn link(&self, index: u32) -> &AtomicU32 {
        &self.entries[index as usize].next
    }

    /// Looks up what the packets of a batch belong to, at `now`: of each its tuple (the default one
    /// for none) and its TCP flags (0 if it is not TCP). What is found is a packet's that keeps its
    /// connection alive, and moves it on.
    #[inline]
    #[allow(clippy::needless_range_loop, reason = "several arrays go by one index")]
    pub fn find_batch(&self, now: u32, packets: &[(Tuple, u8)], found: &mut [Option<Found>; BATCH]) {
        let n = packets.len().min(BATCH);
        let packets = &packets[..n];
        let mut hashes = [0; BATCH];
        for i in 0..n {
            hashes[i] = self.hash(&packets[i].0);
            self.index.prefetch(hashes[i]);
        }
        let mut ids = [NIL; BATCH];
        for i in 0..n {
            if let Some(first) = self.index.first(hashes[i])
                && let Some(entry) = self.entry(first)
            {
                prefetch(std::ptr::from_ref(entry).cast());
                ids[i] = first;
            }
        }
        for i in 0..n {
            let ((tuple, flags), id) = (&packets[i], ids[i]);
            // Each is written where it belongs: by way of the stack it would be read back in other
            // widths than it is written, which waits for the store.
            if let Some(life) = self.hit(id, tuple, *flags, now) {
                found[i] = Some(Found { id, life });
            } else if tuple.rest == 0 {
                found[i] = None;
            } else {
                found[i] = self.find_hashed(hashes[i], tuple, *flags, now);
            }
        }
    }

    /// Looks up the connection of a packet, which keeps it alive and moves it on.
    pub fn find(&self, now: u32, tuple: &Tuple, tcp_flags: u8) -> Option<Found> {
        self.find_hashed(self.hash(tuple), tuple, tcp_flags, now)
    }

    #[inline(never)]
    fn find_hashed(&self, hash: u64, tuple: &Tuple, tcp_flags: u8, now: u32) -> Option<Found> {
        let mut life = None;
        let id = self.index.find(hash, |id| {
            life = self.hit(id, tuple, tcp_flags, now);
            life.is_some()
        })?;
        life.map(|life| Found { id, life })
    }

    /// Looks up a connection without using it: packets about it do not keep it alive.
    pub(crate) fn peek(&self, now: u32, tuple: &Tuple) -> Option<Found> {
        let mut found = None;
        self.index.find(self.hash(tuple), |id| {
            let Some(entry) = self.entry(id) else { return false };
            let life = entry.life();
            let is = entry.is(id, tuple) && life.is_live() && !life.is_over(now) && entry.is_still(life);
            found = is.then_some(Found { id, life });
            is
        });
        found
    }

    /// The life word of `id`, if that is of a connection with `tuple`; a packet keeps it alive and
    /// moves it on.
    #[inline(always)]
    fn hit(&self, id: u32, tuple: &Tuple, tcp_flags: u8, now: u32) -> Option<Life> {
        let entry = self.entry(id)?;
        let life = entry.life();
        if !entry.is(id, tuple) || !life.is_live() {
            return None;
        }
        let next = State::next(life.state_number(), Direction::of(id), tcp_flags);
        // Near enough to what it would be: nothing is written.
        if next == life.state_number() && self.deadline(next, now).wrapping_sub(life.expires()) < SLACK {
            return entry.is_still(life).then_some(life);
        }
        self.refresh(entry, Found { id, life }, tcp_flags, now)
    }

    #[inline(always)]
    fn deadline(&self, state: u8, now: u32) -> u32 {
        now.wrapping_add(self.time_of(state))
    }

    /// Seconds without a packet after which a connection in `state` expires.
    #[inline(always)]
    pub(super) fn time_of(&self, state: u8) -> u32 {
        self.timeouts[usize::from(state & 15)].load(Ordering::Relaxed)
    }

    /// Moves the connection on, unless it expired.
    #[inline(never)]
    fn refresh(&self, entry: &Entry, found: Found, tcp_flags: u8, now: u32) -> Option<Life> {
        let mut life = found.life;
        loop {
            if life.is_over(now) {
                return None;
            }
            let next = State::next(life.state_number(), found.direction(), tcp_flags);
            let new = match (life.flags() & UNCONFIRMED, found.direction()) {
                (0, _) => life.with(next, self.deadline(next, now)),
                (_, Direction::Original) => life.with(next, now.wrapping_add(UNCONFIRMED_FOR)),
                // There is no answer to what was dropped.
                (_, Direction::Reply) => life.confirmed().with(next, self.deadline(next, now)),
            };
            match entry.exchange(life, new) {
                Ok(()) => return Some(new),
                // Another packet of the same connection.
                Err(other) if other.generation() == life.generation() && other.is_live() => life = other,
                Err(_) => return None,
            }
        }
    }

    /// The packet that opened the connection which was found has passed: from now on it stays as long
    /// as its state says.
    #[cold]
    pub(crate) fn confirm(&self, now: u32, found: Found) {
        let (Some(entry), mut life) = (self.entry(found.id), found.life) else { return };
        // Another packet may move it on meanwhile.
        while life.is_live() && life.flags() & UNCONFIRMED != 0 {
            let state = life.state_number();
            match entry.exchange(life, life.confirmed().with(state, self.deadline(state, now))) {
                Err(other) if other.generation() == life.generation() => life = other,
                Ok(()) | Err(_) => return,
            }
        }
    }

    /// What a packet's head says of its connection, see [`Found::word`]; `None` if that has ended
    /// since.
    #[inline(always)]
    pub(crate) fn of_word(&self, word: u32) -> Option<Found> {
        let id = (word & 0xff_ffff).wrapping_sub(1);
        let life = self.entry(id)?.life();
        let same = u32::from(life.generation()) << 24 == word & 0xff << 24;
        (same && life.is_live()).then_some(Found { id, life })
    }

    /// The tuple of packets in the other direction than the one found; `None` if the connection has
    /// ended since.
    #[inline(always)]
    pub(crate) fn peer(&self, found: Found) -> Option<Tuple> {
        let entry = self.entry(found.id)?;
        let tuple = entry.tuple(!found.id);
        entry.is_still(found.life).then_some(tuple)
    }

    /// The right to make connections that the source of `tuple` opens.
    pub(crate) fn own(&self, tuple: &Tuple) -> Result<Stripe<'_>, Refused> {
        let (addr, port) = tuple.src();
        let hash = self.key.hash(|hasher| hasher.write_u64(u64::from(addr) << 16 | u64::from(port)));
        let stripe = &self.stripes[(hash as usize) % self.stripes.len()];
        match stripe.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Stripe(stripe)),
            Err(_) => Err(Refused::Busy),
        }
    }

    /// Makes a connection at `now`, by [dropping another early](Self::drop_early) if the table is
    /// full; `released` gets what that held. The caller has looked that there is none; threads that
    /// may make the same one do it in turn.
    pub(crate) fn insert_with(
        &self,
        now: u32,
        new: &New,
        released: impl FnMut(Holds),
    ) -> Result<Found, Refused> {
        let (index, filed) = match self.free.pop(|i| self.link(i)) {
            Some(index) => (index, false),
            None => match self.drop_early(now, released) {
                Some(index) => (index, true),
                None => {
                    self.full.fetch_add(1, Ordering::Relaxed);
                    return Err(Refused::Full);
                }
            },
        };
        let entry = &self.entries[index as usize];
        let expires = match new.flags & UNCONFIRMED {
            0 => self.deadline(new.state as u8, now),
            _ => now.wrapping_add(UNCONFIRMED_FOR),
        };
        let life = Life::new(entry.life().generation(), new.state, new.flags, expires);
        if let Some(to) = self.ends6.get(index as usize) {
            // As with what the entry is filled with: a thread that sees it sees that the last use ended.
            fence(Ordering::Release);
            let words = new.ends6.map(|addr| [(addr >> 64) as u64, addr as u64]);
            to.iter().zip(words.as_flattened()).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
        }
        entry.fill(&Contents { tuples: new.tuples, holds: new.holds, created: now }, life);
        let hashes = new.tuples.map(|tuple| self.hash(&tuple));
        let id = 2 * index;
        // Replies are found as soon as the first packet may be.
        if !self.index.insert(hashes[1], id + 1) || !self.index.insert(hashes[0], id) {
            self.index.remove(hashes[1], id + 1);
            self.full.fetch_add(1, Ordering::Relaxed);
            // What it was to hold is the caller's still.
            entry.let_go();
            if filed {
                // The sweep frees it: it is over, in a state that any packet leaves as it is.
                self.created.fetch_add(1, Ordering::Relaxed);
                entry.set(Life::new(life.ended().generation(), State::Icmp, 0, now.wrapping_sub(1)));
            } else {
                entry.set(life.ended());
                self.free.push(index, |i| self.link(i));
            }
            return Err(Refused::Full);
        }
        self.created.fetch_add(1, Ordering::Relaxed);
        if !filed {
            self.wheel.file(index, expires.wrapping_add(1), &entry.next);
        }
        Ok(Found { id, life })
    }

    /// The same of a table without mappings.
    pub fn insert(&self, now: u32, new: &New) -> Result<Found, Refused> {
        self.insert_with(now, new, |_| {})
    }

    /// Has the connection be in the state that `carried` says, and expire when that does.
    pub(super) fn expire_in(&self, now: u32, found: Found, carried: &Carried) {
        let (Some(entry), mut life) = (self.entry(found.id), found.life) else { return };
        let state = carried.state as u8;
        // Not later than by itself.
        let longest = self.time_of(state);
        let expires = now.wrapping_add(carried.left.min(longest));
        while life.is_live() {
            match entry.exchange(life, life.with(state, expires)) {
                Err(other) if other.generation() == life.generation() => life = other,
                Ok(()) | Err(_) => return,
            }
        }
    }

    /// Takes both tuples of an entry out of the index. Only for the thread that ended it.
    pub(super) fn unlink(&self, index: u32, tuples: &[Tuple; 2]) {
        for (tuple, id) in tuples.iter().zip([2 * index, 2 * index + 1]) {
            self.index.remove(self.hash(tuple), id);
        }
    }

    /// The connections that there are at `now`, each as it is when it is looked at; others may come
    /// and go meanwhile. Those whose first packet has not passed are not told.
    pub fn connections(&self, now: u32) -> impl Iterator<Item = Snapshot> {
        self.entries[..self.free.used() as usize].iter().enumerate().filter_map(move |(at, entry)| {
            let life = entry.life();
            let Contents { tuples, created, .. } = entry.contents();
            let ends6 = self.ends6_of(at).filter(|_| tuples[0].is_ipv6());
            let is = life.is_live() && life.flags() & UNCONFIRMED == 0;
            let is = is && !life.is_over(now) && entry.is_still(life);
            is.then(|| Snapshot {
                tuples,
                ends6,
                state: life.state(),
                flags: life.flags(),
                left: life.expires().wrapping_sub(now),
                age: now.wrapping_sub(created),
            })
        })
    }

    pub(super) fn ends6_of(&self, at: usize) -> Option<[Ipv6Addr; 2]> {
        let words = self.ends6.get(at)?.each_ref().map(|word| u128::from(word.load(Ordering::Relaxed)));
        let [a, b, c, d] = words;
        Some([a << 64 | b, c << 64 | d].map(Ipv6Addr::from_bits))
    }

    #[cfg(all(test, feature = "loom"))]
    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    #[cfg(all(test, feature = "loom"))]
    pub(super) fn is_live(&self, id: u32) -> bool {
        self.entries[(id >> 1) as usize].life().is_live()
    }
}
