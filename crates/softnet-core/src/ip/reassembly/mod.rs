//! Reassembly: fragments in, whole datagrams out (RFC 791, RFC 815; RFC 8200 section 4.5).
//!
//! Called by the slow path, with fragments addressed to softnet. [`Reassembly`] holds them until their datagram is
//! whole, which it then hands out as one packet: the first fragment, with the IP header of the whole, and the payload of
//! the others as its [chain](Skb::append). [`ipv4`](Reassembly::ipv4) and [`ipv6`](Reassembly::ipv6) read and mend the
//! headers; what is here is of both families.
//!
//! What a sender of fragments cannot get at:
//!
//! * **Memory.** All fragments held are bounded, each at the frames it takes whatever its size; at the bound the oldest
//!   datagram goes, as one that was not whole by now mostly never will be. The kernel refuses new ones instead: then
//!   a sender that fills the table once keeps all others out for as long as fragments may wait.
//! * **Time.** A datagram is in at most [`MAX_FRAGMENTS`] pieces, so that the list of its fragments may be searched from
//!   one end (CVE-2018-5391). Tables are hashed with a secret key.
//! * **What others see.** Overlapping fragments are refused with all of their datagram (RFC 5722): what two overlaps
//!   mean differs from host to host, and filters in between see something else again. The datagram stays known, so
//!   that those of its fragments that are yet to come go the same way. A fragment that came before, to the last byte,
//!   is ignored (RFC 8200); networks duplicate packets. A first fragment must hold what filters look at (RFC 1858,
//!   RFC 7112), and none may begin inside of that (RFC 3128).
//!
//! Invariant: every packet handed in comes out as one or as part of one, is freed with its reason, or is
//! [`held`](Reassembly::held). Those that come out as part of another are counted as
//! [`merged`](crate::softnet_data::ContextStats::merged).

#[cfg(all(any(test, fuzzing), not(feature = "loom")))]
pub(crate) mod fuzz;
mod ipv4;
mod ipv6;
mod queue;
#[cfg(all(any(test, fuzzing), not(feature = "loom")))]
#[cfg_attr(not(test), allow(dead_code))]
mod rig;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{Ipv4Addr, Ipv6Addr};

pub use ipv6::{AsItCame, apart, parameter_problem};
use queue::{Insert, Queue, Slab};

use crate::SoftnetData;
use crate::siphash::SipKey;
use crate::skb::{DropReason, FRAME_SIZE, MAX_FRAMES, Skb, SkbList};

/// Fragments of one datagram at the most: enough for 65,535 bytes at an MTU of 1280, and 35,000 at one of 576.
pub const MAX_FRAGMENTS: usize = 64;

const _: () = assert!(MAX_FRAGMENTS <= MAX_FRAMES);

/// What each frame of a fragment counts for, whatever its size: itself and a head.
const TRUESIZE: usize = FRAME_SIZE + 128;

/// The kernel's knobs of `net.ipv4.ipfrag_*` and `net.ipv6.ip6frag_*`, with its names and defaults. Times in ns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragParams {
    /// Bytes of packet memory that fragments of both families may hold, [`FRAME_SIZE`] and a head for each frame. Never more
    /// than a quarter of the region's frames.
    pub ipfrag_high_thresh: usize,
    /// How long an IPv4 datagram may take to become whole.
    pub ipfrag_time: u64,
    /// How long an IPv6 datagram may take (RFC 8200 section 4.5).
    pub ip6frag_time: u64,
    /// Fragments of other datagrams that may come from an IPv4 source between two of one datagram. With more the 16
    /// bits of the identification may have come round (RFC 4963), so what is there is not mixed with what comes.
    pub ipfrag_max_dist: u32,
}

impl Default for FragParams {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        FragParams {
            ipfrag_high_thresh: 4 << 20,
            ipfrag_time: 30 * SECOND,
            ip6frag_time: 60 * SECOND,
            ipfrag_max_dist: 64,
        }
    }
}

/// What fragments of one datagram have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// RFC 791 section 3.2. `zone` is the device of what is to many, whose members on each are to get it, else 0.
    V4 { src: Ipv4Addr, dst: Ipv4Addr, id: u16, protocol: u8, zone: u16 },
    /// RFC 8200 section 4.5. `zone` is the device if the addresses are one link's, or of many, else 0.
    V6 { src: Ipv6Addr, dst: Ipv6Addr, id: u32, zone: u16 },
}

impl Key {
    /// The source, if what else comes from there matters: identifications of IPv6 do not come round in time.
    fn peer(&self) -> Option<Ipv4Addr> {
        match *self {
            Key::V4 { src, .. } => Some(src),
            Key::V6 { .. } => None,
        }
    }
}

/// A fragment as its headers describe it.
struct Fragment {
    key: Key,
    /// Offset of its payload in the datagram's, in bytes.
    start: u32,
    /// Whether others follow.
    more: bool,
    /// Where its payload begins in the skb, which ends with it.
    payload: usize,
    /// The last two bits of its type of service or traffic class.
    ecn: u8,
}

/// A whole datagram, whose first header is to be mended by its family.
struct Whole {
    first: Skb,
    /// The others, with payload only.
    rest: SkbList,
    /// Bytes of payload.
    len: u32,
    /// Where it begins in the first skb.
    payload: usize,
    /// What the ECN field of the whole is, if not that of the first fragment.
    ecn: Option<u8>,
}

impl Whole {
    /// The datagram, once its header was mended: the fragments become one packet. `None` if that can't be, which was
    /// counted.
    fn into_packet(self, ctx: &mut SoftnetData) -> Option<Skb> {
        let Whole { mut first, mut rest, .. } = self;
        // That of a fragment, if any; the ports are known only now.
        first.head_mut().hash = 0;
        let mut merged = 0;
        while let Some(skb) = rest.pop_front() {
            if let Err(skb) = first.append(skb) {
                // In more frames than a packet may have: its fragments were such packets themselves.
                ctx.free(skb, DropReason::FragLimit);
                ctx.free_list(rest, DropReason::FragLimit);
                ctx.free(first, DropReason::FragLimit);
                ctx.merged(merged);
                return None;
            }
            merged += 1;
        }
        ctx.merged(merged);
        Some(first)
    }

    /// Frees the fragments: the datagram is too long, since the first one has more headers than the others.
    fn refuse(self, ctx: &mut SoftnetData) {
        ctx.free(self.first, DropReason::FragInvalid);
        ctx.free_list(self.rest, DropReason::FragInvalid);
    }
}

/// The end of a datagram that did not become whole in time.
pub struct Expired {
    /// Its first fragment, as it came in but for padding, if that is there: there may be an error about it.
    pub first: Option<Skb>,
    /// The others.
    pub rest: SkbList,
}

/// An IPv4 source of datagrams that are not whole.
struct Peer {
    /// Fragments that came from it while there were any.
    rid: u32,
    /// How many these are.
    datagrams: u32,
}

/// See the [module](self).
pub struct Reassembly {
    params: FragParams,
    slab: Slab,
    index: HashMap<Key, u32, SipKey>,
    queues: Vec<Queue>,
    free: Option<u32>,
    peers: HashMap<Ipv4Addr, Peer, SipKey>,
    /// Queues by age, of IPv4 and IPv6: each family's oldest is the next to be late.
    ages: [Ages; 2],
    reassembled: u64,
}

/// The ends of a list of queues, oldest first.
#[derive(Clone, Copy, Default)]
struct Ages {
    oldest: Option<u32>,
    newest: Option<u32>,
}

impl Reassembly {
    /// Nothing held. `key` hashes the tables.
    pub fn new(params: FragParams, key: SipKey) -> Self {
        Reassembly {
            params,
            slab: Slab::default(),
            index: HashMap::with_hasher(key),
            queues: Vec::new(),
            free: None,
            peers: HashMap::with_hasher(key),
            ages: [Ages::default(); 2],
            reassembled: 0,
        }
    }

    /// Skbs that wait for others of their datagrams.
    pub fn held(&self) -> usize {
        self.slab.held()
    }

    /// Datagrams that are not whole, those included of which nothing more is wanted.
    pub fn datagrams(&self) -> usize {
        self.index.len()
    }

    /// Datagrams that became whole.
    pub fn reassembled(&self) -> u64 {
        self.reassembled
    }

    /// When [`expire`](Self::expire) is to be called next.
    pub fn next_deadline(&self) -> Option<u64> {
        let of = |ages: &Ages| self.queues.get(ages.oldest? as usize).map(|queue| self.deadline(queue));
        self.ages.iter().filter_map(of).min()
    }

    /// Takes out one datagram that has waited for too long. Those that were given up before leave nothing to take.
    pub fn expire(&mut self, now: u64) -> Option<Expired> {
        loop {
            let late =
                |at: &u32| self.queues.get(*at as usize).is_some_and(|queue| self.deadline(queue) <= now);
            let at = self.ages.iter().filter_map(|ages| ages.oldest).find(late)?;
            let queue = self.remove(at);
            let whole_header = queue.starts_at_zero(&self.slab);
            let mut rest = self.slab.take(&queue);
            if !rest.is_empty() {
                let first = if whole_header { rest.pop_front() } else { None };
                return Some(Expired { first, rest });
            }
        }
    }

    /// Frees everything, for the stack ends.
    pub fn shutdown(&mut self, ctx: &mut SoftnetData) {
        while let Some(at) = self.oldest() {
            let queue = self.remove(at);
            ctx.free_list(self.slab.take(&queue), DropReason::Shutdown);
        }
    }

    fn deadline(&self, queue: &Queue) -> u64 {
        queue.since.saturating_add(match queue.key {
            Key::V4 { .. } => self.params.ipfrag_time,
            Key::V6 { .. } => self.params.ip6frag_time,
        })
    }

    /// Adds a fragment. Whatever it leads to beyond its own end (`Err`) is freed here.
    fn insert(
        &mut self,
        ctx: &mut SoftnetData,
        now: u64,
        fragment: &Fragment,
        skb: Skb,
    ) -> Result<Option<Whole>, (Skb, DropReason)> {
        let most = (self.params.ipfrag_high_thresh / TRUESIZE).min(ctx.region().frame_count() as usize / 4);
        let frames = skb.frame_count();
        if frames > most {
            // The others would go for nothing.
            return Err((skb, DropReason::FragEvicted));
        }
        // Datagrams without fragments, of which nothing is wanted any more, are bounded in the same way.
        while self.slab.frames() + frames > most || self.datagrams() >= most {
            let Some(at) = self.oldest() else { return Err((skb, DropReason::FragEvicted)) };
            let queue = self.remove(at);
            ctx.free_list(self.slab.take(&queue), DropReason::FragEvicted);
        }
        let at = match self.index.get(&fragment.key) {
            Some(at) => *at,
            None => self.add(fragment.key, now),
        };
        self.restart_if_far(ctx, now, at);
        let Some(queue) = self.queues.get_mut(at as usize) else { return Err((skb, DropReason::FragLimit)) };
        match queue.insert(&mut self.slab, fragment, skb) {
            Insert::Held => Ok(None),
            Insert::Refused(skb, reason) => Err((skb, reason)),
            Insert::Ruined(skb, reason) => {
                // The queue stays, without fragments, so that later ones end like these.
                ctx.free_list(self.slab.take(queue), reason);
                queue.give_up(reason);
                Err((skb, reason))
            }
            Insert::Whole => {
                let queue = self.remove(at);
                let payload = queue.payload_of_first(&self.slab);
                let (len, mut rest) = (queue.total(), self.slab.take(&queue));
                let ecn = match queue.ecn() {
                    Ok(ecn) => ecn,
                    Err(reason) => {
                        ctx.free_list(rest, reason);
                        return Ok(None);
                    }
                };
                self.reassembled += 1;
                Ok(rest.pop_front().map(|first| Whole { first, rest, len, payload, ecn }))
            }
        }
    }

    /// A fragment of queue `at` has come: counts it for its source, and starts the queue again without what it holds if
    /// too many others came since its last (the kernel's `ip_frag_too_far`).
    fn restart_if_far(&mut self, ctx: &mut SoftnetData, now: u64, at: u32) {
        let Some(queue) = self.queues.get_mut(at as usize) else { return };
        let Some(peer) = queue.key.peer().and_then(|src| self.peers.get_mut(&src)) else { return };
        peer.rid = peer.rid.wrapping_add(1);
        let distance = peer.rid.wrapping_sub(std::mem::replace(&mut queue.rid, peer.rid));
        if distance > self.params.ipfrag_max_dist {
            ctx.free_list(self.slab.take(queue), DropReason::FragTooFar);
            let fresh = Queue::new(queue.key, now, queue.rid);
            // Its time starts again too.
            self.unlink(at);
            self.queues[at as usize] = fresh;
            self.link(at);
        }
    }

    fn add(&mut self, key: Key, now: u64) -> u32 {
        let rid = key.peer().map_or(0, |src| {
            let peer = self.peers.entry(src).or_insert(Peer { rid: 0, datagrams: 0 });
            peer.datagrams += 1;
            peer.rid
        });
        let queue = Queue::new(key, now, rid);
        let at = match self.free.and_then(|at| Some((at, self.queues.get_mut(at as usize)?))) {
            Some((at, slot)) => {
                self.free = slot.newer;
                *slot = queue;
                at
            }
            None => {
                self.queues.push(queue);
                self.queues.len() as u32 - 1
            }
        };
        self.index.insert(key, at);
        self.link(at);
        at
    }

    /// Takes a queue out, whose fragments the caller takes.
    fn remove(&mut self, at: u32) -> Queue {
        self.unlink(at);
        let slot = &mut self.queues[at as usize];
        let queue = std::mem::replace(slot, Queue::new(slot.key, 0, 0));
        slot.newer = self.free;
        self.free = Some(at);
        self.index.remove(&queue.key);
        if let Some(Entry::Occupied(mut peer)) = queue.key.peer().map(|src| self.peers.entry(src)) {
            peer.get_mut().datagrams -= 1;
            if peer.get().datagrams == 0 {
                peer.remove();
            }
        }
        queue
    }

    /// The oldest of all.
    fn oldest(&self) -> Option<u32> {
        let since = |at: &u32| self.queues.get(*at as usize).map_or(0, |queue| queue.since);
        self.ages.iter().filter_map(|ages| ages.oldest).min_by_key(since)
    }

    /// Appends a queue to its family's list, as the newest.
    fn link(&mut self, at: u32) {
        let ages = &mut self.ages[family(&self.queues[at as usize].key)];
        let before = ages.newest.replace(at);
        match before {
            Some(before) => self.queues[before as usize].newer = Some(at),
            None => ages.oldest = Some(at),
        }
        let queue = &mut self.queues[at as usize];
        (queue.older, queue.newer) = (before, None);
    }

    fn unlink(&mut self, at: u32) {
        let (key, older, newer) = {
            let queue = &self.queues[at as usize];
            (queue.key, queue.older, queue.newer)
        };
        let ages = &mut self.ages[family(&key)];
        match older {
            Some(older) => self.queues[older as usize].newer = newer,
            None => ages.oldest = newer,
        }
        match newer {
            Some(newer) => self.queues[newer as usize].older = older,
            None => ages.newest = older,
        }
    }
}

fn family(key: &Key) -> usize {
    match key {
        Key::V4 { .. } => 0,
        Key::V6 { .. } => 1,
    }
}
