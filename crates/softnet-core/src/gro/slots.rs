//! Where the packets that are held lie: each in a slot, named by number, and by flow hash in a
//! bucket, oldest first. A slot has besides what is [foreseen](Run) of the flow that it was last of.
//!
//! Used by the table alone.
//!
//! Invariants: a slot that holds a packet is in one bucket, that of the packet's hash, once. Of a
//! flow there is one slot at the most that holds a packet, or waits for one.

use super::arrived::Arrived;
use super::merge::Held;
use super::run::{Foreseen, Run};
use super::{BUCKETS, MAX_HELD};
use crate::gso::layout::Layout;
use crate::skb::Skb;

const SLOTS: usize = BUCKETS * MAX_HELD;
const _: () = assert!(SLOTS == u64::BITS as usize);

#[derive(Default)]
struct Slot {
    held: Option<Held>,
    run: Option<Run>,
}

/// Numbers of slots, oldest packet first.
#[derive(Clone, Copy, Default)]
struct Bucket {
    len: u8,
    slots: [u8; MAX_HELD],
}

impl Bucket {
    #[inline(always)]
    fn slots(&self) -> &[u8] {
        self.slots.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// There is room.
    fn push(&mut self, number: u8) {
        if let Some(slot) = self.slots.get_mut(usize::from(self.len)) {
            *slot = number;
            self.len += 1;
        }
    }

    fn remove(&mut self, number: u8) {
        if let Some(at) = self.slots().iter().position(|slot| *slot == number) {
            self.slots.copy_within(at + 1..usize::from(self.len), at);
            self.len -= 1;
        }
    }
}

/// See the [module](self).
pub(super) struct Slots {
    all: Box<[Slot]>,
    buckets: [Bucket; BUCKETS],
    /// A bit for each slot that holds a packet; for each that holds none, and waits for the first
    /// of its flow's next aggregate.
    holding: u64,
    waiting: u64,
    /// By slot: the one that was found when the packet after one of it was not of it.
    then: [u8; SLOTS],
    /// That of the packet before.
    last: u8,
}

impl Slots {
    pub(super) fn new() -> Self {
        Slots {
            all: (0..SLOTS).map(|_| Slot::default()).collect(),
            buckets: Default::default(),
            holding: 0,
            waiting: 0,
            then: [0; SLOTS],
            last: 0,
        }
    }

    /// Packets held.
    #[inline(always)]
    pub(super) fn held(&self) -> usize {
        self.holding.count_ones() as usize
    }

    /// The likely two slots: that of the packet before, and the one that followed it the last time.
    #[inline(always)]
    pub(super) fn likely(&self) -> [u8; 2] {
        [self.last, self.then.get(usize::from(self.last)).copied().unwrap_or_default()]
    }

    /// A packet was of the flow of slot `number`, one of the [likely](Self::likely).
    #[inline(always)]
    pub(super) fn found(&mut self, number: u8) {
        self.last = number;
    }

    /// What the packet is, if it is the next segment of one of the likely two flows: that of the
    /// packet before, or the one that followed it the last time.
    #[inline(always)]
    pub(super) fn foresee(&mut self, packet: &impl Arrived) -> Option<(u8, Foreseen)> {
        if let Some(foreseen) = self.is_next(self.last, packet) {
            return Some((self.last, foreseen));
        }
        let then = *self.then.get(usize::from(self.last))?;
        let foreseen = self.is_next(then, packet)?;
        self.last = then;
        Some((then, foreseen))
    }

    #[inline(always)]
    fn is_next(&self, number: u8, packet: &impl Arrived) -> Option<Foreseen> {
        let slot = self.all.get(usize::from(number))?;
        slot.run.as_ref()?.is_next(slot.held.as_ref(), packet)
    }

    /// What slot `number` holds, and what is foreseen of it.
    #[inline(always)]
    pub(super) fn get(&mut self, number: u8) -> Option<(&mut Held, &mut Option<Run>)> {
        let Slot { held, run } = self.all.get_mut(usize::from(number))?;
        held.as_mut().map(|held| (held, run))
    }

    /// The slot of the held packet that one with this hash is of the same flow as.
    #[inline(always)]
    pub(super) fn of_flow(&self, hash: u32, skb: &Skb, layout: &Layout) -> Option<u8> {
        let is_of_flow = |number: &&u8| {
            let held = self.all.get(usize::from(**number)).and_then(|slot| slot.held.as_ref());
            held.is_some_and(|held| held.is_same_flow(hash, skb, layout))
        };
        self.buckets[hash as usize % BUCKETS].slots().iter().find(is_of_flow).copied()
    }

    /// The oldest packet of the bucket of `hash`, if that is full.
    pub(super) fn to_evict(&self, hash: u32) -> Option<u8> {
        let bucket = &self.buckets[hash as usize % BUCKETS];
        (bucket.slots().len() == MAX_HELD).then_some(bucket.slots[0])
    }

    /// Holds a packet, for which there is room in its bucket, and of whose flow none is held.
    pub(super) fn hold(&mut self, held: Held) {
        // No other slot may foresee its flow.
        let mut waiting = self.waiting;
        while waiting != 0 {
            let number = waiting.trailing_zeros();
            waiting &= waiting - 1;
            if let Some(slot) = self.all.get_mut(number as usize)
                && slot.run.as_ref().is_some_and(|run| run.hash == held.hash)
            {
                slot.run = None;
                self.waiting &= !(1 << number);
            }
        }
        let free = !(self.holding | self.waiting);
        let number = if free == 0 { self.waiting.trailing_zeros() } else { free.trailing_zeros() };
        self.waiting &= !1u64.wrapping_shl(number);
        if let Some(slot) = self.all.get_mut(number as usize) {
            slot.run = None;
        }
        self.put(number as u8, held);
    }

    /// Holds a packet in slot `number`, which holds none; there is room in its bucket.
    pub(super) fn put(&mut self, number: u8, held: Held) {
        let Some(slot) = self.all.get_mut(usize::from(number)) else { return };
        self.holding |= 1 << number;
        self.waiting &= !(1 << number);
        self.buckets[held.hash as usize % BUCKETS].push(number);
        slot.held = Some(held);
    }

    /// Takes the packet out of slot `number`; with `goes_on`, what is foreseen of its flow stays.
    pub(super) fn take(&mut self, number: u8, goes_on: bool) -> Option<Held> {
        let slot = self.all.get_mut(usize::from(number))?;
        let held = slot.held.take()?;
        self.holding &= !(1 << number);
        self.buckets[held.hash as usize % BUCKETS].remove(number);
        slot.run.take_if(|_| !goes_on);
        if slot.run.is_some() {
            self.waiting |= 1 << number;
        }
        Some(held)
    }

    /// The same of one that `which` is true of; what is foreseen of its flow stays.
    pub(super) fn take_if(&mut self, number: u8, which: impl FnOnce(&Held) -> bool) -> Option<Held> {
        let held = self.all.get(usize::from(number))?.held.as_ref()?;
        if which(held) { self.take(number, true) } else { None }
    }

    /// What slot `number` foresees, which holds nothing.
    #[inline(always)]
    pub(super) fn waiting(&mut self, number: u8) -> Option<&mut Run> {
        let slot = self.all.get_mut(usize::from(number))?;
        if slot.held.is_some() { None } else { slot.run.as_mut() }
    }

    /// Foresees what follows the packet in slot `number`, with which one was merged that had not
    /// been foreseen.
    pub(super) fn foresee_of(&mut self, number: u8) {
        let Some(Slot { held: Some(held), run }) = self.all.get_mut(usize::from(number)) else { return };
        match run {
            Some(run) => run.renew(held),
            None => *run = Run::of(held),
        }
        if let Some(then) = self.then.get_mut(usize::from(self.last)) {
            *then = number;
        }
        self.last = number;
    }

    /// The first packet by bucket, and by age in it, that `which` is true of.
    pub(super) fn first(&self, bucket: usize, mut which: impl FnMut(&Held) -> bool) -> Option<u8> {
        let held = |number: &u8| self.all.get(usize::from(*number)).and_then(|slot| slot.held.as_ref());
        let is = |number: &&u8| held(number).is_some_and(&mut which);
        self.buckets.get(bucket)?.slots().iter().find(is).copied()
    }

    /// Foresees nothing any more.
    pub(super) fn forget(&mut self) {
        self.all.iter_mut().for_each(|slot| slot.run = None);
        self.waiting = 0;
    }
}
