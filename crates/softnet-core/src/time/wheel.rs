//! A timer wheel: timers that are armed, put off and cancelled far more often than they expire.
//!
//! Its owner adds a [`Timer`] for each thing that may wait, with what it wants to be told when that expires; arms and
//! cancels it, both O(1) and without allocation; and takes what is due out with [`TimerWheel::expire`], until there is no
//! more. It may arm, cancel and remove timers in between, those included that are due by then. Before it sleeps it asks
//! [`TimerWheel::next_deadline`].
//!
//! **Filing.** Time is counted in ticks of about a millisecond, and a tick's number is read as eight digits of six bits.
//! Each digit has a level of 64 slots. A timer is filed under the highest digit in which its tick differs from the
//! wheel's present one: so all that is filed under a digit is due before all that is filed under a higher one, the first
//! timer is in the first slot that is not empty, and eight digits hold every time there is. When the wheel reaches a slot of
//! a higher digit, what is in there is filed anew, under lower ones: at most seven times for a timer, once or twice
//! for those of some seconds. Slots that are empty are not looked at, however far the time has come.
//!
//! **Lazily.** A timer that is put off stays where it is filed: that costs two stores, and touches no other timer. When its
//! slot is reached it is filed anew. One that is to expire earlier than its slot is moved at once.
//!
//! **Precision.** Deadlines are kept in nanoseconds. No timer expires early. A timer expires when `expire` is called at its
//! deadline or later; and `next_deadline` is the first of all deadlines. That takes a look at the timers of the first slot. If
//! there are more than [`CROWD`], both go by the end of that slot's first tick. So many timers of one tick expire together, a
//! tick late at the most, and for so many of a slot of a higher digit the owner wakes up once in vain. Timers of different
//! ticks expire in the order of these, and those of one tick in no order.
//!
//! Invariants: digits above the one that a timer is filed under are those of the present tick, and its slot's is larger (at
//! the lowest level: not smaller); its slot begins no later than its deadline, but where that has passed already. No timer
//! has a deadline before `due`, but for those of a crowd, which `due` is a tick behind at the most.

use crate::skb::prefetch_whole;

/// Nanoseconds of a tick.
pub(super) const TICK: u64 = 1 << TICK_SHIFT;
const TICK_SHIFT: u32 = 20;

/// Timers of a slot that are looked at one by one to find which of them is the first.
pub(super) const CROWD: usize = 16;

const DIGIT: u32 = 6;
const SLOTS: usize = 1 << DIGIT;
/// Enough for all ticks of 64 bits of nanoseconds.
const LEVELS: usize = (u64::BITS - TICK_SHIFT).div_ceil(DIGIT) as usize;

/// A deadline that never comes.
const NEVER: u64 = u64::MAX;
/// No node.
const NIL: u32 = u32::MAX;

/// The lists of nodes: those of all slots, level by level, and that of the timers that are due.
const DUE: u16 = (LEVELS * SLOTS) as u16;
const LISTS: usize = DUE as usize + 1;
/// The place of a timer that is not armed.
const NOWHERE: u16 = u16::MAX;

/// A timer of one [`TimerWheel`], to be given back to it with [`remove`](TimerWheel::remove).
#[derive(Debug)]
pub struct Timer(u32);

struct Node<T> {
    deadline: u64,
    /// The others in its list, which is a ring. Of a node that is free: the next one.
    prev: u32,
    next: u32,
    /// Which list it is in.
    place: u16,
    data: T,
}

/// See the module.
pub struct TimerWheel<T> {
    /// The present tick.
    tick: u64,
    /// Before then no timer expires.
    due: u64,
    /// Whether `due` is when the first timer expires.
    settled: bool,
    armed: usize,
    /// Which slots of each level are not empty.
    occupied: [u64; LEVELS],
    heads: [u32; LISTS],
    nodes: Vec<Node<T>>,
    free: u32,
}

impl<T: Copy> Default for TimerWheel<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy> TimerWheel<T> {
    /// No timers.
    pub const fn new() -> Self {
        TimerWheel {
            tick: 0,
            due: NEVER,
            settled: true,
            armed: 0,
            occupied: [0; LEVELS],
            heads: [NIL; LISTS],
            nodes: Vec::new(),
            free: NIL,
        }
    }

    /// A timer, not armed, that says `data` when it expires.
    pub fn add(&mut self, data: T) -> Timer {
        let node = Node { deadline: NEVER, prev: NIL, next: NIL, place: NOWHERE, data };
        let at = self.free;
        match self.nodes.get_mut(at as usize) {
            Some(free) => {
                self.free = free.next;
                *free = node;
                Timer(at)
            }
            None => {
                self.nodes.push(node);
                Timer(self.nodes.len() as u32 - 1)
            }
        }
    }

    /// Cancels `timer`, and makes room for another one.
    pub fn remove(&mut self, timer: Timer) {
        self.cancel(&timer);
        self.nodes[timer.0 as usize].next = self.free;
        self.free = timer.0;
    }

    /// `timer` is to expire at `at`, and not when it was to before. `now` keeps the wheel up to the time.
    pub fn arm(&mut self, timer: &Timer, now: u64, at: u64) {
        let node = &self.nodes[timer.0 as usize];
        if node.place == NOWHERE {
            self.armed += 1;
        } else {
            self.settled &= node.deadline > self.due;
            if node.place != DUE && tick_of(at) >= self.begin(node.place) {
                self.nodes[timer.0 as usize].deadline = at;
                self.due = self.due.min(at);
                return;
            }
            self.unlink(timer.0);
        }
        self.turn(tick_of(now));
        self.nodes[timer.0 as usize].deadline = at;
        self.due = self.due.min(at);
        self.file(timer.0);
    }

    /// `timer` is not to expire.
    pub fn cancel(&mut self, timer: &Timer) {
        let node = &self.nodes[timer.0 as usize];
        if node.place != NOWHERE {
            self.settled &= node.deadline > self.due;
            self.disarm(timer.0);
        }
    }

    /// When `timer` expires.
    pub fn deadline(&self, timer: &Timer) -> Option<u64> {
        let node = &self.nodes[timer.0 as usize];
        (node.place != NOWHERE).then_some(node.deadline)
    }

    /// Starts to load what there is of a timer.
    pub(crate) fn prefetch(&self, timer: &Timer) {
        self.nodes.get(timer.0 as usize).into_iter().for_each(prefetch_whole);
    }

    /// How many timers are armed.
    pub fn armed(&self) -> usize {
        self.armed
    }

    /// When [`expire`](Self::expire) is to be called next.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.armed == 0 {
            return None;
        }
        Some(if self.settled { self.due } else { self.first_deadline().0.max(self.due) })
    }

    /// When [`expire`](Self::expire) is to be called next, as
    /// [`next_deadline`](Self::next_deadline) says, or earlier: when a timer would have expired
    /// that was cancelled or put off since the last call. Looks at no timer.
    #[inline]
    pub fn quiet_until(&self) -> Option<u64> {
        (self.armed > 0).then_some(self.due)
    }

    /// Takes out a timer that is due at `now`, which is not armed any more then. To be called until there is none.
    ///
    /// O(1) for each timer that expires, and as long as none does; a timer that the owner arms for `now` or earlier in
    /// between comes out too.
    pub fn expire(&mut self, now: u64) -> Option<T> {
        loop {
            let first = self.heads[DUE as usize];
            if first != NIL {
                self.disarm(first);
                return Some(self.nodes[first as usize].data);
            }
            if now < self.due {
                return None;
            }
            if !self.collect(now) {
                (self.due, self.settled) = self.first_deadline();
                return None;
            }
        }
    }

    /// Moves the timers of the first tick that has some which are due at `now` to the list of those. Whether there are any.
    fn collect(&mut self, now: u64) -> bool {
        loop {
            self.turn(tick_of(now));
            self.each_of((self.tick % SLOTS as u64) as u16, |wheel, at| {
                if wheel.nodes[at as usize].deadline <= now {
                    wheel.link(at, DUE);
                } else {
                    wheel.file(at);
                }
            });
            if self.heads[DUE as usize] != NIL {
                return true;
            }
            // Also where another thread's clock was ahead of this one's.
            if self.tick >= tick_of(now) {
                return false;
            }
        }
    }

    /// The present tick becomes `tick`, or the first one on the way there that has timers.
    fn turn(&mut self, tick: u64) {
        while self.tick < tick {
            let Some(place) = self.first_place(0) else {
                self.tick = tick;
                return;
            };
            let begin = self.begin(place);
            if begin > tick {
                self.tick = tick;
                return;
            }
            self.tick = begin;
            if usize::from(place) < SLOTS {
                return;
            }
            self.each_of(place, |wheel, at| wheel.file(at));
        }
    }

    /// When the first timer expires, and whether that is so. It may not be if there are too many to look at all of them: then
    /// it is the end of the first tick that one of them may be of.
    fn first_deadline(&self) -> (u64, bool) {
        if let Some(node) = self.nodes.get(self.heads[DUE as usize] as usize) {
            return (node.deadline, true);
        }
        let (mut first, mut looked_at, mut from) = (NEVER, 0, 0);
        while let Some(place) = self.first_place(from) {
            let begin = self.begin(place);
            // One that was put off may be behind others, in slots that come later.
            if tick_of(first) < begin {
                break;
            }
            let head = self.heads[usize::from(place)];
            let mut at = head;
            loop {
                if looked_at == CROWD {
                    return ((begin + 1).saturating_mul(TICK), false);
                }
                looked_at += 1;
                let node = &self.nodes[at as usize];
                first = first.min(node.deadline);
                at = node.next;
                if at == head {
                    break;
                }
            }
            from = place + 1;
        }
        (first, true)
    }

    /// The first slot from `from` on that is not empty.
    fn first_place(&self, from: u16) -> Option<u16> {
        let (level, slot) = (usize::from(from) / SLOTS, usize::from(from) % SLOTS);
        let of = |level: usize, slots: u64| {
            (slots != 0).then(|| (level * SLOTS) as u16 + slots.trailing_zeros() as u16)
        };
        let rest = *self.occupied.get(level)? & u64::MAX << slot;
        of(level, rest).or_else(|| (level + 1..LEVELS).find_map(|level| of(level, self.occupied[level])))
    }

    /// The first tick of a slot.
    fn begin(&self, place: u16) -> u64 {
        let (shift, slot) = (DIGIT * u32::from(place >> DIGIT), u64::from(place) % SLOTS as u64);
        (self.tick >> shift & !(SLOTS as u64 - 1) | slot) << shift
    }

    /// Puts a node into the slot of its deadline, or of the present tick if that has passed.
    fn file(&mut self, at: u32) {
        let tick = tick_of(self.nodes[at as usize].deadline).max(self.tick);
        let level = (tick ^ self.tick).checked_ilog2().unwrap_or(0) / DIGIT;
        let slot = tick >> (DIGIT * level) & (SLOTS as u64 - 1);
        self.link(at, (level << DIGIT) as u16 | slot as u16);
    }

    /// Appends a node, which is in no list, to one.
    fn link(&mut self, at: u32, place: u16) {
        let head = &mut self.heads[usize::from(place)];
        let (prev, next) = if *head == NIL {
            *head = at;
            if place != DUE {
                self.occupied[usize::from(place) / SLOTS] |= 1 << (usize::from(place) % SLOTS);
            }
            (at, at)
        } else {
            let next = *head;
            (std::mem::replace(&mut self.nodes[next as usize].prev, at), next)
        };
        let node = &mut self.nodes[at as usize];
        (node.prev, node.next, node.place) = (prev, next, place);
        self.nodes[prev as usize].next = at;
    }

    /// Takes a node out of its list.
    fn unlink(&mut self, at: u32) {
        let Node { prev, next, place, .. } = self.nodes[at as usize];
        if next == at {
            self.empty(place);
        } else {
            self.nodes[prev as usize].next = next;
            self.nodes[next as usize].prev = prev;
            let head = &mut self.heads[usize::from(place)];
            if *head == at {
                *head = next;
            }
        }
        self.nodes[at as usize].place = NOWHERE;
    }

    fn disarm(&mut self, at: u32) {
        self.unlink(at);
        self.armed -= 1;
    }

    /// Empties a list, and calls `f` with each node that was in it, which is to put that into one.
    fn each_of(&mut self, place: u16, mut f: impl FnMut(&mut Self, u32)) {
        let head = self.empty(place);
        let mut at = head;
        while at != NIL {
            let next = self.nodes[at as usize].next;
            f(self, at);
            at = if next == head { NIL } else { next };
        }
    }

    /// Takes the head of a list, which is empty then.
    fn empty(&mut self, place: u16) -> u32 {
        if place != DUE {
            self.occupied[usize::from(place) / SLOTS] &= !(1 << (usize::from(place) % SLOTS));
        }
        std::mem::replace(&mut self.heads[usize::from(place)], NIL)
    }
}

fn tick_of(ns: u64) -> u64 {
    ns >> TICK_SHIFT
}
