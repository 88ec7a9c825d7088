//! Packets that go to another thread in bundles: the first one leads, and its control block says which follow.
//!
//! A list that is linked through heads is walked from one cold cache line to the next, each of which another CPU wrote
//! last, and each load waits for the one before. With bundles only the leads are linked; the
//! receiver learns of the others by [`FOLLOWERS`] at a time, and loads their heads side by side.
//!
//! Only [`inbox`](super::inbox) uses it, between a sender and a receiver each of which owns the packets.
//! Invariant: `followers` of a head is not 0 only while its packet leads a bundle on a list, and then its control block
//! is the list's.

use super::handle::{Skb, prefetch};
use super::handover::HeadLinks;
use super::region::head_ptr;
use crate::sync::{Links, NIL};

/// Packets that a lead names: as many as its control block holds.
pub(super) const FOLLOWERS: usize = 12;

/// Makes bundles of packets of the region that `links` is of, and links their leads as a pending list does. Returns the first lead and the
/// last one; there is one packet at least.
#[inline]
pub(super) fn tie(links: &HeadLinks, skbs: &mut [Skb]) -> Option<(u32, u32)> {
    let mut ends = None;
    for bundle in skbs.chunks_mut(1 + FOLLOWERS) {
        let [lead, followers @ ..] = bundle else { continue };
        let index = lead.index();
        if !followers.is_empty() {
            let head = lead.head_mut();
            head.followers = followers.len() as u8;
            for (word, pair) in head.cb.iter_mut().zip(followers.chunks(2)) {
                let [low, high] = [pair.first(), pair.get(1)].map(|skb| skb.map_or(NIL, Skb::index));
                *word = u64::from(low) | u64::from(high) << 32;
            }
        }
        if let Some((_, last)) = ends {
            links.set_next(index, last);
        }
        ends = Some((ends.map_or(index, |(first, _)| first), index));
    }
    ends
}

/// Undoes that.
pub(super) fn untie(links: &HeadLinks, skbs: &mut [Skb]) {
    for lead in skbs.iter_mut().step_by(1 + FOLLOWERS) {
        lead.head_mut().followers = 0;
        links.set_next(lead.index(), NIL);
    }
}

/// Starts to load what [`Followers::of`] reads of the lead with this index.
#[inline(always)]
pub(super) fn expect(region: u32, lead: u32) {
    let head = head_ptr(region, lead).cast_const().cast::<u8>();
    prefetch(head);
    prefetch(head.wrapping_add(64));
}

/// The packets of a bundle behind its lead, which the receiver of the lead has.
pub(super) struct Followers {
    indices: [u32; FOLLOWERS],
    next: usize,
    end: usize,
}

impl Followers {
    /// None.
    pub(super) const NONE: Followers = Followers { indices: [NIL; FOLLOWERS], next: 0, end: 0 };

    /// Whether none is left.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.next == self.end
    }

    /// Those of `lead`, which is a packet like any other from now on. Their heads are being loaded.
    #[inline]
    pub(super) fn of(lead: &mut Skb) -> Self {
        let region = lead.region();
        let head = lead.head_mut();
        let end = usize::from(std::mem::take(&mut head.followers)).min(FOLLOWERS);
        let mut followers = Followers { end, ..Followers::NONE };
        if end > 0 {
            for (pair, word) in followers.indices.chunks_mut(2).zip(head.cb) {
                pair[0] = word as u32;
                pair[1] = (word >> 32) as u32;
            }
            for &index in &followers.indices[..end] {
                prefetch(head_ptr(region, index).cast_const().cast());
            }
        }
        followers
    }
}

impl Iterator for Followers {
    type Item = u32;

    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        let index = *self.indices[..self.end].get(self.next)?;
        self.next += 1;
        Some(index)
    }
}
