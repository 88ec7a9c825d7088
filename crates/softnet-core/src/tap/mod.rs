//! Taps: copies of packets for captures, taken where packets come in, leave and are dropped.
//!
//! A [`Taps`] belongs to a stack; a capture is started on it by a control thread, and read out by
//! that through a [`TapReader`]. Each thread context has a `Tap`, which writes what a capture
//! wants to a ring of its own for that capture (`ring`): so threads share nothing
//! while they write. A full ring costs the capture a packet, which is counted, and the thread no
//! wait.
//!
//! Invariant: while nothing is captured a batch costs one relaxed load and a branch. A packet is
//! seen once on each side: as received after GRO, before the filter at ingress; as sent after the
//! discipline, before GSO; as dropped where it is freed. Its VLAN tag is in the copy as it is on
//! the wire.

pub mod filter;
mod ring;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
pub mod trace;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

pub use filter::{Filter, FilterError};
use ring::{RingReader, RingWriter, ring};
use trace::{Budget, Step};

use crate::skb::{Batch, DropReason, Flags, Skb, VlanProto};
use crate::sync::{AtomicU64, Ordering};
use crate::vlan;

/// Captures at a time.
pub const MAX_CAPTURES: usize = 4;

/// Words of a thread's ring for one capture: 1 MiB.
const RING: usize = 1 << 17;

/// Records of a thread that are read before it is looked what others have.
const RUN: usize = 64;

/// Bytes of a packet that can be captured at the most: those of the longest aggregate.
pub const MAX_SNAPLEN: usize = 65_536 + 64;

/// Bytes of a record before the packet's, see [`Record`].
pub const RECORD: usize = 8 * ring::HEADER;

/// Where a packet was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Seen {
    /// It came in.
    In,
    /// It is about to leave.
    Out,
    /// It was dropped.
    Drop,
    /// A stage did something with it, see [`trace`].
    Step,
}

/// What a capture takes.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Index of the netdev; `None`: of all.
    pub dev: Option<u16>,
    /// RX or TX queue; `None`: of all.
    pub queue: Option<u16>,
    /// By [`Seen`]. A trace has steps alone, of packets that come in.
    pub seen: [bool; 3],
    /// Bytes of each packet that are kept.
    pub snaplen: usize,
    /// Which packets.
    pub filter: Filter,
    /// Not packets, but what stages do with the first ones: a trace of so many.
    pub trace: Option<Arc<Budget>>,
}

impl Wanted {
    #[inline]
    fn concerns(&self, dev: u16, queue: u16) -> bool {
        self.dev.is_none_or(|one| one == dev) && self.queue.is_none_or(|one| one == queue)
    }
}

/// A packet that was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Where it was seen.
    pub seen: Seen,
    /// Why it was dropped: number of the [`DropReason`].
    pub reason: u8,
    /// Index of the netdev: the one it came by or leaves by; of a drop, the one that it counts against.
    pub dev: u16,
    /// RX queue or TX queue.
    pub queue: u16,
    /// ns of the stack's clock: when its batch was received or sent. Of a drop: when the thread
    /// last received or sent any.
    pub time: u64,
    /// Bytes that the packet had.
    pub len: u32,
    /// Its bytes, as many as were wanted.
    pub data: &'a [u8],
}

impl<'a> Record<'a> {
    /// The first record in `bytes`, and how many bytes it takes; `None` if it is not whole, or none.
    pub fn read(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(8 * at..)?.first_chunk()?));
        let (lens, time, place) = (word(0)?, word(1)?, word(2)?);
        let kept = kept(lens);
        let data = bytes.get(RECORD..)?.get(..kept)?;
        let seen = match place >> 32 & 0xff {
            0 => Seen::In,
            1 => Seen::Out,
            2 => Seen::Drop,
            3 => Seen::Step,
            _ => return None,
        };
        let (dev, queue, reason) = (place as u16, (place >> 16) as u16, (place >> 40) as u8);
        let record = Record { seen, reason, dev, queue, time, len: (lens >> 32) as u32, data };
        Some((record, 8 * ring::words_of(kept)))
    }
}

/// Bytes that are kept of a packet, of the first word of its record.
fn kept(lens: u64) -> usize {
    lens as u32 as usize
}

struct Capture {
    id: u64,
    /// A trace: its bit of [`Flags::TRACED`]; else 0.
    mark: u16,
    wanted: Arc<Wanted>,
    /// Those that the reader has not taken yet.
    readers: Vec<RingReader>,
}

/// The captures of a stack.
#[derive(Default)]
pub struct Taps {
    /// Number of the last change; 0 while there is no capture.
    on: AtomicU64,
    /// A coarse clock, for drops: ns of the stack's.
    clock: AtomicU64,
    /// Packets that a thread could not look at, since captures were being changed.
    missed: AtomicU64,
    /// The time of the last step of a trace, see [`trace`].
    told: AtomicU64,
    /// How often threads got to know of captures. A reader looks at the state only when this or `on` is another: it
    /// is not in the way of a thread then, which can't wait.
    joins: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    captures: Vec<Capture>,
    /// Readers that there are: of these captures, and of some that have ended and are still read out.
    readers: usize,
    /// Changes so far.
    changes: u64,
    /// The mark of the last trace.
    mark: u16,
    closed: bool,
}

impl State {
    /// A mark for a trace. That of a trace that ended may still be on packets that wait somewhere: so
    /// the marks take turns.
    fn take_mark(&mut self) -> u16 {
        let mut mark = self.mark;
        for _ in 0..MAX_CAPTURES {
            mark = (mark << 1) & Flags::TRACED;
            if mark == 0 {
                mark = Flags::TRACED & Flags::TRACED.wrapping_neg();
            }
            if self.captures.iter().all(|capture| capture.mark != mark) {
                break;
            }
        }
        self.mark = mark;
        mark
    }
}

// Then a trace finds a free mark.
const _: () = assert!(MAX_CAPTURES <= Flags::TRACED.count_ones() as usize);

/// Why no capture was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TapError {
    /// There are enough.
    #[error("{MAX_CAPTURES} captures and traces are running already, and there may be no more")]
    TooMany,
    /// The stack is stopping.
    #[error("the instance is stopping")]
    Closed,
}

impl std::fmt::Debug for Taps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taps").field("on", &self.is_on()).finish_non_exhaustive()
    }
}

impl Taps {
    /// Whether anything is captured.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed) != 0
    }

    /// Starts a capture, from about now on; it ends when the reader is dropped, and until then no
    /// other one has its place.
    pub fn start(self: &Arc<Self>, wanted: Wanted) -> Result<TapReader, TapError> {
        let mut state = self.lock();
        if state.closed {
            return Err(TapError::Closed);
        }
        if state.readers >= MAX_CAPTURES {
            return Err(TapError::TooMany);
        }
        state.readers += 1;
        let id = state.changes + 1;
        let mark = if wanted.trace.is_some() { state.take_mark() } else { 0 };
        state.captures.push(Capture { id, mark, wanted: Arc::new(wanted), readers: Vec::new() });
        self.changed(&mut state);
        drop(state);
        let missed = self.missed.load(Ordering::Relaxed);
        let (seen, goes_on) = ((0, 0), true);
        Ok(TapReader { taps: self.clone(), id, rings: Vec::new(), missed, ended: 0, seen, goes_on })
    }

    /// Ends all captures; there will be no more. For the end of the stack.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.captures.clear();
        self.changed(&mut state);
    }

    fn changed(&self, state: &mut State) {
        state.changes += 1;
        let on = if state.captures.is_empty() { 0 } else { state.changes };
        self.on.store(on, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a capture out. Dropping it ends the capture.
pub struct TapReader {
    taps: Arc<Taps>,
    id: u64,
    rings: Vec<RingReader>,
    /// What [`Taps::missed`] was before.
    missed: u64,
    /// Records that rings lost whose threads ended.
    ended: u64,
    /// [`Taps::on`] and [`Taps::joins`] when it looked at the state.
    seen: (u64, u64),
    /// Whether the capture was there then.
    goes_on: bool,
}

impl std::fmt::Debug for TapReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TapReader").field("id", &self.id).finish_non_exhaustive()
    }
}

impl TapReader {
    /// Appends records of up to the time `till` to `out`, in the order of their times, until that
    /// has `most` bytes or more, or there are none. `now` is the time in ns of the stack's clock.
    /// Says whether the capture goes on: the stack may have ended it.
    ///
    /// A thread may be at work on a batch that has its time already. So the order is right if no
    /// batch takes longer than from `till` to `now`, and each thread's own order always. Records of
    /// a ring that is half full do not wait: better out of order than lost.
    pub fn read(&mut self, (now, till): (u64, u64), most: usize, out: &mut Vec<u8>) -> bool {
        self.taps.clock.store(now, Ordering::Relaxed);
        let seen = (self.taps.on.load(Ordering::Acquire), self.taps.joins.load(Ordering::Acquire));
        if seen != self.seen {
            let mut state = self.taps.lock();
            let mine = state.captures.iter_mut().find(|capture| capture.id == self.id);
            self.goes_on = mine.map(|capture| self.rings.append(&mut capture.readers)).is_some();
            self.seen = seen;
        }
        while out.len() < most && self.pop_first(till, most, out) {}
        let ended = &mut self.ended;
        self.rings.retain(|ring| {
            let stays = !ring.is_over();
            *ended += if stays { 0 } else { ring.lost() };
            stays
        });
        self.goes_on
    }

    /// Appends the record with the lowest time, and those that follow in its ring up to the next
    /// ring's, until `out` has `most` bytes. Whether there was one.
    fn pop_first(&mut self, till: u64, most: usize, out: &mut Vec<u8>) -> bool {
        let time = |ring: &RingReader| ring.second_word().filter(|time| *time <= till || ring.is_half_full());
        let mut first: Option<(usize, u64)> = None;
        let mut next = till;
        for (i, ring) in self.rings.iter().enumerate() {
            let Some(time) = time(ring) else { continue };
            match first {
                Some((_, lowest)) if lowest <= time => next = next.min(time),
                before => {
                    next = next.min(before.map_or(u64::MAX, |(_, lowest)| lowest));
                    first = Some((i, time));
                }
            }
        }
        let Some((i, _)) = first else { return false };
        let ring = &mut self.rings[i];
        ring.pop(kept, out);
        for _ in 1..RUN {
            if out.len() >= most || ring.second_word().is_none_or(|time| time > next) {
                break;
            }
            ring.pop(kept, out);
        }
        true
    }

    /// Packets that were wanted and lost, since they were not read out in time.
    pub fn lost(&self) -> u64 {
        let missed = self.taps.missed.load(Ordering::Relaxed) - self.missed;
        self.ended + missed + self.rings.iter().map(RingReader::lost).sum::<u64>()
    }

    /// Whether the stack has ended all captures.
    pub fn is_closed(&self) -> bool {
        self.taps.lock().closed
    }

    /// No more is captured; what was can still be read.
    pub fn stop(&mut self) {
        let mut state = self.taps.lock();
        for capture in state.captures.extract_if(.., |capture| capture.id == self.id) {
            self.rings.extend(capture.readers);
        }
        self.taps.changed(&mut state);
    }
}

impl Drop for TapReader {
    fn drop(&mut self) {
        self.stop();
        self.taps.lock().readers -= 1;
    }
}

/// A thread's part in captures.
pub(crate) struct Tap {
    taps: Arc<Taps>,
    /// [`Taps::on`] when `captures` was filled.
    joined: u64,
    captures: Vec<Joined>,
    /// The marks of those that are traces.
    traces: u16,
    /// When it last received or sent.
    now: u64,
    /// The time of the last step that it told.
    told: u64,
}

/// A capture that a thread writes to.
struct Joined {
    id: u64,
    mark: u16,
    wanted: Arc<Wanted>,
    ring: RingWriter,
}

impl Tap {
    pub(crate) fn new(taps: Arc<Taps>) -> Self {
        Tap { taps, joined: 0, captures: Vec::new(), traces: 0, now: 0, told: 0 }
    }

    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.taps.is_on()
    }

    /// Lets go of captures that ended.
    #[inline(always)]
    pub(crate) fn let_go(&mut self) {
        if self.joined != 0 && !self.taps.is_on() {
            self.captures.clear();
            self.joined = 0;
        }
    }

    /// Gets to know what is captured; says whether it does.
    fn join(&mut self) -> bool {
        let on = self.taps.on.load(Ordering::Relaxed);
        if on == self.joined {
            return on != 0;
        }
        let mut state = match self.taps.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        self.joined = if state.captures.is_empty() { 0 } else { state.changes };
        self.captures.retain(|one| state.captures.iter().any(|capture| capture.id == one.id));
        for &mut Capture { id, mark, ref wanted, ref mut readers } in &mut state.captures {
            if !self.captures.iter().any(|one| one.id == id) {
                let (writer, reader) = ring(RING);
                readers.push(reader);
                self.captures.push(Joined { id, mark, wanted: wanted.clone(), ring: writer });
            }
        }
        self.traces = self.captures.iter().fold(0, |marks, one| marks | one.mark);
        self.taps.joins.fetch_add(1, Ordering::Release);
        self.joined != 0
    }

    fn joined(&mut self, packets: usize) -> bool {
        let joined = self.join();
        if !joined && self.is_on() {
            self.taps.missed.fetch_add(packets as u64, Ordering::Relaxed);
        }
        joined
    }

    /// Packets that came in by `queue` of netdev `dev`.
    #[cold]
    #[inline(never)]
    pub(crate) fn came_in(&mut self, now: u64, dev: u16, queue: u16, batch: &mut Batch) {
        self.all(Seen::In, now, dev, queue, batch);
        if self.traces != 0 {
            batch.as_mut_slice().iter_mut().for_each(|skb| self.begin(skb, dev, queue));
        }
    }

    /// Packets that netdev `dev` hands to its link, for `queue`.
    #[cold]
    #[inline(never)]
    pub(crate) fn sent(&mut self, now: u64, dev: u16, queue: u16, batch: &Batch) {
        self.all(Seen::Out, now, dev, queue, batch);
        self.steps(now, batch, (dev, queue), Step::ToLink);
    }

    /// Packets with which a stage does the same, at `now`.
    #[cold]
    #[inline(never)]
    pub(crate) fn steps(&mut self, now: u64, batch: &Batch, (dev, queue): (u16, u16), step: Step) {
        batch.as_slice().iter().for_each(|skb| self.step(now, skb, (dev, queue), step));
    }

    fn all(&mut self, seen: Seen, now: u64, dev: u16, queue: u16, batch: &Batch) {
        self.now = now;
        if self.joined(batch.len()) {
            for skb in batch.as_slice() {
                self.see(skb, (seen, 0), dev, queue);
            }
        }
    }

    /// Packets that are about to leave by `queue` of netdev `dev`. Those that the ring has no room
    /// for come by again, and are known by a mark.
    #[cold]
    #[inline(never)]
    pub(crate) fn leave(&mut self, now: u64, dev: u16, queue: u16, batch: &mut Batch) {
        self.now = now;
        if !self.joined(batch.len()) {
            return;
        }
        for skb in batch.as_mut_slice() {
            if skb.head().flags & Flags::TAPPED == 0 {
                self.see(skb, (Seen::Out, 0), dev, queue);
                self.step(now, skb, (dev, queue), Step::Sent);
                skb.head_mut().flags |= Flags::TAPPED;
            }
        }
    }

    /// Packets that are about to be freed, counted against `dev`, or, without it, each against the
    /// one it came by.
    #[cold]
    #[inline(never)]
    pub(crate) fn dropped(&mut self, skbs: &[Skb], dev: Option<u16>, reason: DropReason) {
        if self.joined(skbs.len()) {
            self.now = self.now.max(self.taps.clock.load(Ordering::Relaxed));
            for skb in skbs {
                let (of, queue) = (skb.head().dev, skb.head().queue);
                let dev = dev.unwrap_or(of);
                self.see(skb, (Seen::Drop, reason as u8), dev, queue);
                self.step(0, skb, (dev, queue), Step::Dropped(reason as u8));
            }
        }
    }

    fn see(&mut self, skb: &Skb, (seen, reason): (Seen, u8), dev: u16, queue: u16) {
        let (frame, tag) = (skb.data(), vlan::get(skb.head()));
        for Joined { wanted, ring, .. } in &mut self.captures {
            if wanted.trace.is_some()
                || !wanted.seen.get(seen as usize).is_some_and(|seen| *seen)
                || !wanted.concerns(dev, queue)
                || !wanted.filter.matches(frame, skb.len(), tag.map(|(_, tci)| tci))
            {
                continue;
            }
            let place =
                u64::from(dev) | u64::from(queue) << 16 | (seen as u64) << 32 | u64::from(reason) << 40;
            // The tag is put back behind the addresses, as far as these are there.
            let (head, tag) = match tag.filter(|_| frame.len() >= ADDRESSES) {
                Some((proto, tci)) => (ADDRESSES, Some(in_frame(proto, tci))),
                None => (0, None),
            };
            let tag = tag.as_ref().map_or(&[][..], |tag| &tag[..]);
            let len = skb.len() + tag.len();
            let snap = len.min(wanted.snaplen).min(MAX_SNAPLEN);
            let head_kept = head.min(snap);
            let tag = &tag[..tag.len().min(snap - head_kept)];
            let rest = snap - head_kept - tag.len();
            let pieces = skb.pieces(0, head_kept).chain([tag]).chain(skb.pieces(head, rest));
            ring.push([snap as u64 | (len as u64) << 32, self.now, place], snap, pieces);
        }
    }
}

/// Bytes of the Ethernet addresses.
const ADDRESSES: usize = 12;

fn in_frame(proto: VlanProto, tci: u16) -> [u8; 4] {
    let [high, low] = tci.to_be_bytes();
    match proto {
        VlanProto::Dot1ad => [0x88, 0xa8, high, low],
        VlanProto::Dot1q | VlanProto::None => [0x81, 0x00, high, low],
    }
}
