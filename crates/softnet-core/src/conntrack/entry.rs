//! The entry of one connection: a cache line of atomics, and the word that says whether it is
//! alive.
//!
//! Read by any thread. Written only by the thread that took it from the free list, or that ended its
//! last use by exchanging the life word, before that says that it is alive again; but for the life
//! word itself, which is exchanged, and the link, which belongs to the list that it is on.

use super::state::State;
use super::tuple::Tuple;
use crate::sync::{AtomicU32, AtomicU64, Mutant, Ordering, fence, mutated, weakened};

/// The source of the original direction is translated.
pub const SNAT: u8 = 1 << 0;
/// The destination of the original direction is translated.
pub const DNAT: u8 = 1 << 1;
/// The packet that opened it is still on its way here, and may be dropped (the kernel's lack of
/// `IPS_CONFIRMED`).
pub(crate) const UNCONFIRMED: u8 = 1 << 2;

/// No entry, no mapping.
pub(crate) const NIL: u32 = u32::MAX;

/// What one word says of an entry: how often it was used before (16 bits), the [`State`], what is
/// translated (8 bits each), and the second in which it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life(pub(super) u64);

impl Life {
    pub(super) fn new(generation: u16, state: State, flags: u8, expires: u32) -> Self {
        let upper = u64::from(generation) << 48 | u64::from(state as u8) << 40 | u64::from(flags) << 32;
        Life(upper | u64::from(expires))
    }

    /// How often the entry was used before; wraps.
    #[inline(always)]
    pub(crate) fn generation(self) -> u16 {
        (self.0 >> 48) as u16
    }

    #[inline(always)]
    pub(super) fn state_number(self) -> u8 {
        (self.0 >> 40) as u8
    }

    /// Its state.
    pub fn state(self) -> State {
        State::from_number(self.state_number())
    }

    /// [`SNAT`], [`DNAT`].
    #[inline(always)]
    pub fn flags(self) -> u8 {
        (self.0 >> 32) as u8
    }

    /// Second in which it expires.
    #[inline(always)]
    pub fn expires(self) -> u32 {
        self.0 as u32
    }

    /// Whether it stands for a connection.
    #[inline(always)]
    pub(super) fn is_live(self) -> bool {
        self.state_number() != State::Dead as u8
    }

    /// Whether its time is over at `now`.
    #[inline(always)]
    pub(super) fn is_over(self, now: u32) -> bool {
        (self.expires().wrapping_sub(now) as i32) < 0
    }

    /// That of an entry whose use this one ended.
    pub(super) fn ended(self) -> Self {
        Life::new(self.generation().wrapping_add(1), State::Dead, 0, 0)
    }

    /// The same without [`UNCONFIRMED`].
    pub(super) fn confirmed(self) -> Self {
        Life(self.0 & !(u64::from(UNCONFIRMED) << 32))
    }

    #[inline(always)]
    pub(super) fn with(self, state: u8, expires: u32) -> Self {
        Life(self.0 & 0xffff_00ff_0000_0000 | u64::from(state) << 40 | u64::from(expires))
    }
}

/// See the [module](self).
#[repr(C, align(64))]
pub struct Entry {
    pub(super) life: AtomicU64,
    /// The two words of each tuple: of the original direction, then of the reply.
    tuples: [[AtomicU64; 2]; 2],
    /// The next one on the list that it is on.
    pub(super) next: AtomicU32,
    /// What it [holds](Holds).
    mapping: AtomicU32,
    host: AtomicU32,
    /// Second in which it began.
    created: AtomicU32,
}

#[cfg(not(feature = "loom"))]
const _: () = assert!(size_of::<Entry>() == 64);

/// What a connection holds of other tables until it ends; [`NIL`] for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holds {
    /// A mapping of NAT.
    pub(crate) mapping: u32,
    /// The count of the connections of its inside host.
    pub(crate) host: u32,
}

impl Holds {
    pub(crate) const NOTHING: Holds = Holds { mapping: NIL, host: NIL };
}

/// What an entry said while its life word was the same.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    /// The tuples of both directions.
    pub tuples: [Tuple; 2],
    pub(crate) holds: Holds,
    pub(super) created: u32,
}

impl Entry {
    pub(super) fn new() -> Self {
        Entry {
            life: AtomicU64::new(0),
            tuples: std::array::from_fn(|_| [0; 2].map(AtomicU64::new)),
            next: AtomicU32::new(NIL),
            mapping: AtomicU32::new(NIL),
            host: AtomicU32::new(NIL),
            created: AtomicU32::new(0),
        }
    }

    /// The life word now, before anything else of the entry is read.
    #[inline(always)]
    pub(super) fn life(&self) -> Life {
        Life(self.life.load(Ordering::Acquire))
    }

    /// Whether the entry is still that of which `life` was read, so that what was read since is all
    /// of one connection.
    #[inline(always)]
    pub(super) fn is_still(&self, life: Life) -> bool {
        if mutated(Mutant::EntryNotRechecked) {
            return true;
        }
        fence(Ordering::Acquire);
        Life(self.life.load(Ordering::Relaxed)).generation() == life.generation()
    }

    /// Whether the tuple of the direction that `id` says is `tuple`.
    #[inline(always)]
    pub(super) fn is(&self, id: u32, tuple: &Tuple) -> bool {
        let [addrs, rest] = &self.tuples[(id & 1) as usize];
        addrs.load(Ordering::Relaxed) == tuple.addrs && rest.load(Ordering::Relaxed) == tuple.rest
    }

    /// The tuple of direction 0 or 1.
    #[inline(always)]
    pub(super) fn tuple(&self, direction: u32) -> Tuple {
        let [addrs, rest] = &self.tuples[(direction & 1) as usize];
        Tuple { addrs: addrs.load(Ordering::Relaxed), rest: rest.load(Ordering::Relaxed) }
    }

    /// All that it says. Of one connection only if it [is still](Self::is_still) that.
    pub(super) fn contents(&self) -> Contents {
        Contents {
            tuples: [self.tuple(0), self.tuple(1)],
            holds: Holds {
                mapping: self.mapping.load(Ordering::Relaxed),
                host: self.host.load(Ordering::Relaxed),
            },
            created: self.created.load(Ordering::Relaxed),
        }
    }

    /// Makes it that of a connection. Only for the thread that took it from the free list, or that
    /// ended its last use.
    pub(super) fn fill(&self, contents: &Contents, life: Life) {
        if !mutated(Mutant::EntryNotFenced) {
            // A thread that sees any of the following sees the life word that ended the last use.
            fence(Ordering::Release);
        }
        for (to, tuple) in self.tuples.iter().zip(&contents.tuples) {
            to[0].store(tuple.addrs, Ordering::Relaxed);
            to[1].store(tuple.rest, Ordering::Relaxed);
        }
        self.mapping.store(contents.holds.mapping, Ordering::Relaxed);
        self.host.store(contents.holds.host, Ordering::Relaxed);
        self.created.store(contents.created, Ordering::Relaxed);
        self.life.store(life.0, weakened(Mutant::EntryRelaxed, Ordering::Release));
    }

    /// Has it hold nothing. Only for the thread that filled it, and that no reader has found.
    pub(super) fn let_go(&self) {
        self.mapping.store(NIL, Ordering::Relaxed);
        self.host.store(NIL, Ordering::Relaxed);
    }

    /// Writes the life word. Only for the thread that filled the entry.
    pub(super) fn set(&self, life: Life) {
        self.life.store(life.0, Ordering::Release);
    }

    /// Exchanges the life word `from` for `to`; tells what it is, if it is another by now.
    #[inline(always)]
    pub(super) fn exchange(&self, from: Life, to: Life) -> Result<(), Life> {
        if mutated(Mutant::LifeNotExchanged) {
            self.life.store(to.0, Ordering::Release);
            return Ok(());
        }
        let done = self.life.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire);
        done.map(drop).map_err(Life)
    }
}
