//! All sockets of a stack, of all protocols: a slab of slots, and the hash table by which pollers find a packet's
//! socket.
//!
//! Pollers look up without a lock. Chains are linked by slot index, and the one writer
//! ([`Binder`](super::Binder), behind a lock of the runtime) changes them while they are read: it
//! adds at a chain's head, and a removed slot keeps pointing to its successor. A reused slot may
//! lead a reader to another chain, and a socket that connects is in no chain for an instant. So a
//! reader trusts a match after a second look at the slot's generation; it trusts a miss only if the
//! table's *version* has not changed, and otherwise looks again, a few times. (The kernel's
//! `hlist_nulls` lists detect a wrong chain by its end, which is not enough where a key changes.)
//!
//! Of the three kinds of keys (connected, bound to an address, bound to none) only those that exist
//! are looked for, the most specific first. Invariant: if a look-up finds nothing, there was an
//! instant during it at which there was nothing.

use std::sync::OnceLock;

use super::group::{Group, MAX_GROUPS};
use super::key::{ANY, Flow, Key, Match};
use super::slot::{Slot, family};
use crate::fold::FoldKey;
use crate::siphash::SipKey;
use crate::skb::Region;
use crate::sync::{AtomicU32, Mutant, Ordering, fence, mutated};

/// No index: the end of a chain.
pub(super) const NIL: u32 = u32::MAX;

/// Slots per chunk; chunks are never freed.
const CHUNK: usize = if cfg!(feature = "loom") { 2 } else { 512 };

/// Attempts of a reader that finds nothing while the table keeps changing.
const TRIES: usize = if cfg!(feature = "loom") { 2 } else { 8 };

/// Steps along a chain after which a reader assumes that it is in a wrong one.
const MAX_STEPS: usize = 1 << 12;

/// Protocols whose sockets are counted apart.
const PROTOCOLS: usize = 8;

/// The most sockets a table can be made for.
pub const MAX_SOCKETS: u32 = 1 << 22;

/// A look-up's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A socket: its slot, and the generation that was seen.
    Socket(Hit),
    /// There is no socket.
    None,
    /// The table kept changing.
    Contended,
}

/// A socket that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Its slot.
    pub slot: u32,
    /// The slot's generation.
    pub generation: u32,
}

impl Match {
    const ALL: [Match; 3] = [Match::Flow, Match::Local, Match::Port];

    /// The key that matches so much of a packet's `flow`.
    #[inline(always)]
    fn key(self, flow: &Flow) -> Key {
        match self {
            Match::Flow => Key::connected(*flow),
            Match::Local => Key { matches: self, ..Key::bound(flow.protocol, flow.local, flow.lport) },
            Match::Port => Key::bound(flow.protocol, ANY, flow.lport),
        }
    }
}

/// The start of a look-up. It stays valid whatever changes meanwhile, since the table's buckets
/// never move.
pub(super) struct Probe<'a> {
    kind: Match,
    bucket: &'a AtomicU32,
}

/// All sockets of a stack: slots, and the table that pollers look up in.
pub struct Sockets {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    buckets: Box<[AtomicU32]>,
    groups: Box<[OnceLock<Box<Group>>]>,
    /// Odd while the table is being changed.
    version: AtomicU32,
    /// Sockets of each [`Match`], by the last bits of the protocol's number. Where two protocols
    /// share these, each looks for the other's kinds, in vain.
    kinds: [[AtomicU32; 3]; PROTOCOLS],
    seed: u64,
    /// The hash key by which a flow's member of a reuseport group is chosen.
    choice: FoldKey,
    max: u32,
}

impl Sockets {
    /// An empty table for up to `max` sockets. `seed` varies the hashes.
    pub(crate) fn new(max: u32, seed: u64) -> Self {
        let max = max.clamp(1, MAX_SOCKETS);
        let buckets = max.next_power_of_two();
        let choice = SipKey::new([seed, 0]);
        Sockets {
            chunks: (0..(max as usize).div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            buckets: (0..buckets).map(|_| AtomicU32::new(NIL)).collect(),
            groups: (0..MAX_GROUPS).map(|_| OnceLock::new()).collect(),
            version: AtomicU32::new(0),
            kinds: [[0; 3]; PROTOCOLS].map(|kinds| kinds.map(AtomicU32::new)),
            seed,
            choice: FoldKey::new([choice.hash(&[0]), choice.hash(&[1])]),
            max,
        }
    }

    /// A slot that holds or held a socket.
    #[inline(always)]
    pub fn slot(&self, index: u32) -> Option<&Slot> {
        let index = index as usize;
        self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)
    }

    /// Makes slot `index` if there is none; `None` if it is beyond the limit.
    pub(super) fn make(&self, index: u32, region: &Region) -> Option<&Slot> {
        if index >= self.max {
            return None;
        }
        let chunk = self.chunks.get(index as usize / CHUNK)?;
        chunk.get_or_init(|| (0..CHUNK).map(|_| Slot::new(region)).collect());
        self.slot(index)
    }

    /// All slots that hold or held a socket.
    pub fn slots(&self) -> impl Iterator<Item = (u32, &Slot)> {
        self.chunks
            .iter()
            .map_while(|chunk| chunk.get())
            .flatten()
            .enumerate()
            .map(|(i, slot)| (i as u32, slot))
    }

    #[inline(always)]
    fn bucket(&self, key: &Key) -> &AtomicU32 {
        // There is at least one bucket, and their number is a power of two.
        &self.buckets[key.hash(self.seed) as usize & (self.buckets.len() - 1)]
    }

    /// Sockets of a kind and protocol.
    #[inline(always)]
    fn count(&self, protocol: u8, kind: Match) -> &AtomicU32 {
        &self.kinds[usize::from(protocol) % PROTOCOLS][kind as usize]
    }

    #[inline(always)]
    fn has(&self, protocol: u8, kind: Match) -> bool {
        self.count(protocol, kind).load(Ordering::Relaxed) > 0
    }

    /// First step of a look-up in advance: prefetches the bucket of `flow`.
    #[inline(always)]
    pub(super) fn probe(&self, flow: &Flow) -> Option<Probe<'_>> {
        let kind = Match::ALL.into_iter().find(|kind| self.has(flow.protocol, *kind))?;
        let bucket = self.bucket(&kind.key(flow));
        crate::skb::prefetch(std::ptr::from_ref(bucket).cast());
        Some(Probe { kind, bucket })
    }

    /// Second step: prefetches the first slot of the bucket.
    #[inline(always)]
    pub(super) fn prefetch_slot(&self, probe: &Probe<'_>) {
        self.slot(probe.bucket.load(Ordering::Relaxed)).into_iter().for_each(crate::skb::prefetch_whole);
    }

    /// The socket of a packet of `flow` that came by NAPI instance `napi_id` (0: by none).
    #[inline]
    pub fn lookup(&self, flow: &Flow, napi_id: u32) -> Found {
        self.lookup_from(None, flow, napi_id)
    }

    /// The same, from what [`probe`](Self::probe) found before.
    #[inline(always)]
    pub(super) fn lookup_from(&self, probe: Option<&Probe<'_>>, flow: &Flow, napi_id: u32) -> Found {
        let v4 = family(flow);
        for _ in 0..TRIES {
            // Acquire: makes visible what the writer did before an even version.
            let version = self.version.load(Ordering::Acquire);
            for kind in Match::ALL {
                if !self.has(flow.protocol, kind) {
                    continue;
                }
                let key = kind.key(flow);
                let bucket = match probe {
                    Some(probe) if probe.kind == kind => probe.bucket,
                    _ => self.bucket(&key),
                };
                if let Some(hit) = self.find(bucket, &key, v4, (flow, napi_id)) {
                    return Found::Socket(hit);
                }
            }
            fence(Ordering::Acquire);
            let stood_still = version & 1 == 0 && self.version.load(Ordering::Relaxed) == version;
            if stood_still || mutated(Mutant::VersionNotChecked) {
                return Found::None;
            }
        }
        Found::Contended
    }

    /// The socket with exactly this key.
    pub fn find_exact(&self, key: &Key) -> Option<Hit> {
        self.find(self.bucket(key), key, family(&key.flow), (&key.flow, 0))
    }

    #[inline(always)]
    fn find(&self, bucket: &AtomicU32, key: &Key, v4: bool, packet: (&Flow, u32)) -> Option<Hit> {
        let mut at = bucket.load(Ordering::Acquire);
        for _ in 0..MAX_STEPS {
            let slot = self.slot(at)?;
            if let Some(generation) = slot.stable()
                && slot.matches(key, v4)
                && slot.is_still(generation)
            {
                let hit = Hit { slot: at, generation };
                return match slot.flags().group() {
                    None => Some(hit),
                    Some(group) => Some(self.select(group, key, v4, packet).unwrap_or(hit)),
                };
            }
            at = slot.next.load(Ordering::Acquire);
        }
        None
    }

    /// The member of a group that receives a packet of `flow`; `None` if it left a moment ago. The
    /// hash has a secret key, as the kernel's `udp_ehashfn`: with the publicly known key of RSS, a
    /// sender could lead all its flows to one member.
    #[inline(never)]
    fn select(&self, group: u32, key: &Key, v4: bool, (flow, napi_id): (&Flow, u32)) -> Option<Hit> {
        let hash = || flow.secret_hash(&self.choice);
        let index = self.groups.get(group as usize)?.get()?.select(napi_id, hash)?;
        let slot = self.slot(index)?;
        let generation = slot.stable()?;
        (slot.matches(key, v4) && slot.is_still(generation)).then_some(Hit { slot: index, generation })
    }

    /// Runs `change` in such a way that look-ups notice it. Only the one writer may call it.
    pub(super) fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // Before the change: a look-up that sees any of it finds the odd version, or a later one,
        // at its second look.
        fence(Ordering::Release);
        let result = change();
        self.version.store(version.wrapping_add(2), Ordering::Release);
        result
    }

    /// Puts slot `index`, which is in no chain, in the chain of its key. Called within
    /// [`change`](Self::change).
    pub(super) fn link(&self, index: u32, key: &Key) {
        let Some(slot) = self.slot(index) else { return };
        let bucket = self.bucket(key);
        slot.next.store(bucket.load(Ordering::Relaxed), Ordering::Release);
        // Release: a reader that finds the slot also finds its link and key.
        bucket.store(index, Ordering::Release);
        let kind = self.count(key.flow.protocol, key.matches);
        kind.store(kind.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Takes slot `index` out of the chain of `key`; readers that stand at it go on from there.
    /// Called within [`change`](Self::change).
    pub(super) fn unlink(&self, index: u32, key: &Key) {
        let mut link = self.bucket(key);
        loop {
            let at = link.load(Ordering::Relaxed);
            // Not found: the slot was never linked.
            let Some(slot) = self.slot(at) else { return };
            if at == index {
                link.store(slot.next.load(Ordering::Relaxed), Ordering::Release);
                let kind = self.count(key.flow.protocol, key.matches);
                kind.store(kind.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
                return;
            }
            link = &slot.next;
        }
    }

    /// Whether slot `index` is in the chain of `key`. For the writer.
    pub(super) fn is_linked(&self, index: u32, key: &Key) -> bool {
        let mut at = self.bucket(key).load(Ordering::Relaxed);
        while let Some(slot) = self.slot(at) {
            if at == index {
                return true;
            }
            at = slot.next.load(Ordering::Relaxed);
        }
        false
    }

    /// A group that is or was in use.
    pub(super) fn group(&self, group: u32) -> Option<&Group> {
        Some(self.groups.get(group as usize)?.get()?)
    }

    /// Makes the group with this number if there is none; `None` if it is beyond the limit.
    pub(super) fn make_group(&self, group: u32) -> Option<&Group> {
        Some(self.groups.get(group as usize)?.get_or_init(|| Box::new(Group::new())))
    }
}
