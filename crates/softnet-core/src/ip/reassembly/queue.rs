//! The fragments of one datagram, in order, and the places that all fragments are kept in.
//!
//! Private to [`Reassembly`](super::Reassembly). Invariant: the fragments of a queue do not overlap and none ends
//! behind the datagram's end, once that is known; so as soon as they are together as long as the datagram, it is whole.

use super::{Fragment, Key, MAX_FRAGMENTS};
use crate::skb::{DropReason, Skb, SkbList};

/// A fragment that is held.
struct Held {
    skb: Option<Skb>,
    /// Its range of the datagram's payload, in bytes.
    start: u32,
    end: u32,
    /// Where its payload begins in the skb: behind the headers in the datagram's first, at 0 in the others.
    payload: u16,
    /// The next of its queue, or of the free places.
    next: Option<u32>,
}

/// Places for fragments. They are made as they are needed, up to what all may hold, and used again.
#[derive(Default)]
pub(super) struct Slab {
    places: Vec<Held>,
    free: Option<u32>,
    held: usize,
    /// Frames of all that are held.
    frames: usize,
    /// Region of all that are held: a datagram is a list until it is whole, and a list is of one region.
    region: u32,
}

impl Slab {
    /// How many fragments there are.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// How many frames they have together.
    pub(super) fn frames(&self) -> usize {
        self.frames
    }

    fn get(&self, at: u32) -> Option<&Held> {
        self.places.get(at as usize)
    }

    /// Keeps `held`, or hands the skb back if it is of another region than the others.
    fn add(&mut self, held: Held) -> Result<u32, Held> {
        let region = held.skb.as_ref().map_or(0, Skb::region);
        if self.held > 0 && region != self.region {
            return Err(held);
        }
        self.region = region;
        self.held += 1;
        self.frames += held.skb.as_ref().map_or(0, Skb::frame_count);
        let free = self.free.and_then(|at| Some((at, self.places.get_mut(at as usize)?)));
        Ok(match free {
            Some((at, place)) => {
                self.free = place.next;
                *place = held;
                at
            }
            None => {
                self.places.push(held);
                self.places.len() as u32 - 1
            }
        })
    }

    /// Takes all fragments of `queue`, in order. The caller forgets them in the queue.
    pub(super) fn take(&mut self, queue: &Queue) -> SkbList {
        let mut list = SkbList::new();
        let mut next = queue.first;
        while let Some(at) = next
            && let Some(place) = self.places.get_mut(at as usize)
        {
            next = std::mem::replace(&mut place.next, self.free);
            self.free = Some(at);
            self.held -= 1;
            let Some(skb) = place.skb.take() else { continue };
            self.frames -= skb.frame_count();
            // All are of one region, see `add`.
            if let Err(skb) = list.push_back(skb) {
                drop(skb);
            }
        }
        list
    }
}

/// What became of a fragment.
pub(super) enum Insert {
    /// It waits.
    Held,
    /// It was the last that was missing, and is held with the others.
    Whole,
    /// It alone is to be freed.
    Refused(Skb, DropReason),
    /// It is to be freed with all of its datagram.
    Ruined(Skb, DropReason),
}

/// A datagram that is not whole.
pub(super) struct Queue {
    pub(super) key: Key,
    /// When its first fragment came, ns.
    pub(super) since: u64,
    /// What its source had sent when its last fragment came, see [`FragParams`](super::FragParams::ipfrag_max_dist).
    pub(super) rid: u32,
    /// Neighbours in the list by age; `newer` also links the free places of queues.
    pub(super) older: Option<u32>,
    pub(super) newer: Option<u32>,
    first: Option<u32>,
    last: Option<u32>,
    count: usize,
    /// Bytes of payload that are here.
    bytes: u32,
    /// Where the fragments end that are here.
    end: u32,
    /// Where the datagram ends, once its last fragment has come.
    total: Option<u32>,
    /// ECN fields that came, a bit for each.
    ecn: u8,
    /// Why nothing more is wanted of it, if so.
    ruined: Option<DropReason>,
}

impl Queue {
    /// Without fragments.
    pub(super) fn new(key: Key, since: u64, rid: u32) -> Self {
        Queue {
            key,
            since,
            rid,
            older: None,
            newer: None,
            first: None,
            last: None,
            count: 0,
            bytes: 0,
            end: 0,
            total: None,
            ecn: 0,
            ruined: None,
        }
    }

    /// Bytes of payload of the whole datagram.
    pub(super) fn total(&self) -> u32 {
        self.total.unwrap_or(self.end)
    }

    /// Whether the datagram's first fragment is here.
    pub(super) fn starts_at_zero(&self, slab: &Slab) -> bool {
        self.first.and_then(|at| slab.get(at)).is_some_and(|held| held.start == 0)
    }

    pub(super) fn payload_of_first(&self, slab: &Slab) -> usize {
        self.first.and_then(|at| slab.get(at)).map_or(0, |held| held.payload.into())
    }

    /// Forgets its fragments, which the caller has taken; those that come from now on end for `reason`.
    pub(super) fn give_up(&mut self, reason: DropReason) {
        let fresh = Queue::new(self.key, self.since, self.rid);
        *self = Queue { older: self.older, newer: self.newer, ruined: Some(reason), ..fresh };
    }

    /// What the ECN field of the whole datagram is, if not that of its first fragment (RFC 3168 section 5.3; the
    /// kernel's `ip_frag_ecn_table`): congestion that one fragment saw is the datagram's, and fragments must not
    /// differ in whether they are of an ECN-capable transport.
    pub(super) fn ecn(&self) -> Result<Option<u8>, DropReason> {
        const NOT_ECT: u8 = 1 << 0;
        const CE: u8 = 1 << 3;
        match self.ecn {
            NOT_ECT => Ok(None),
            some if some & NOT_ECT != 0 => Err(DropReason::FragInvalid),
            some if some & CE != 0 => Ok(Some(3)),
            _ => Ok(None),
        }
    }

    /// Adds a fragment.
    pub(super) fn insert(&mut self, slab: &mut Slab, fragment: &Fragment, mut skb: Skb) -> Insert {
        if let Some(reason) = self.ruined {
            return Insert::Refused(skb, reason);
        }
        let start = fragment.start;
        let len = skb.len().saturating_sub(fragment.payload) as u32;
        let end = start + len;
        let beyond = match self.total {
            Some(total) => end > total || (!fragment.more && end != total),
            None => !fragment.more && end < self.end,
        };
        if beyond {
            return Insert::Ruined(skb, DropReason::FragInvalid);
        }
        // In order is common: look at the end first.
        let before = match self.last {
            Some(last) if start >= self.end => Some(last),
            _ => match self.place(slab, start, end) {
                Place::After(before) => before,
                Place::Overlap(at) => {
                    let same = slab.get(at).is_some_and(|held| held.is(start, end, &skb, fragment.payload));
                    return match same {
                        true => Insert::Refused(skb, DropReason::DupFrag),
                        false => Insert::Ruined(skb, DropReason::FragOverlap),
                    };
                }
            },
        };
        if self.count == MAX_FRAGMENTS {
            return Insert::Ruined(skb, DropReason::FragLimit);
        }
        // Only the first keeps its headers, for the whole datagram, and for an error if that does not come to be.
        let payload = if start == 0 { fragment.payload } else { 0 };
        if skb.pull(fragment.payload - payload).is_none() {
            return Insert::Refused(skb, DropReason::PktTooSmall);
        }
        let next = match before {
            Some(before) => slab.get(before).and_then(|held| held.next),
            None => self.first,
        };
        let held = Held { skb: Some(skb), start, end, payload: payload as u16, next };
        let at = match slab.add(held) {
            Ok(at) => at,
            Err(Held { skb: Some(skb), .. }) => return Insert::Refused(skb, DropReason::FragLimit),
            Err(_) => return Insert::Held,
        };
        match before.and_then(|before| slab.places.get_mut(before as usize)) {
            Some(before) => before.next = Some(at),
            None => self.first = Some(at),
        }
        if next.is_none() {
            self.last = Some(at);
        }
        self.count += 1;
        self.bytes += len;
        self.end = self.end.max(end);
        self.ecn |= 1 << (fragment.ecn & 3);
        if !fragment.more {
            self.total = Some(end);
        }
        if self.total == Some(self.bytes) { Insert::Whole } else { Insert::Held }
    }

    /// Where the range `start..end` goes.
    fn place(&self, slab: &Slab, start: u32, end: u32) -> Place {
        let mut before = None;
        let mut next = self.first;
        while let Some(at) = next
            && let Some(held) = slab.get(at)
        {
            if held.start >= end {
                break;
            }
            if held.end > start {
                return Place::Overlap(at);
            }
            before = Some(at);
            next = held.next;
        }
        Place::After(before)
    }
}

/// Where a fragment goes among the others.
enum Place {
    /// Behind this one; `None`: before all.
    After(Option<u32>),
    /// This one is there already, in part at least.
    Overlap(u32),
}

impl Held {
    /// Whether it is the fragment with this range and the payload that begins at `payload` of `skb`.
    fn is(&self, start: u32, end: u32, skb: &Skb, payload: usize) -> bool {
        let Some(own) = &self.skb else { return false };
        let (ours, others) = (own.pieces(self.payload.into(), usize::MAX), skb.pieces(payload, usize::MAX));
        (self.start, self.end) == (start, end) && ours.flatten().eq(others.flatten())
    }
}
