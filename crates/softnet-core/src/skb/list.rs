//! A list of skbs of one region, linked through their heads: for queues whose length no array bounds.

use super::chain::linked;
use super::handle::Skb;
use super::head::NONE;
use crate::gso::pkt_len;

/// First in, first out.
pub struct SkbList {
    region: u32,
    first: u32,
    last: u32,
    len: usize,
}

impl Default for SkbList {
    fn default() -> Self {
        Self::new()
    }
}

impl SkbList {
    /// An empty list. It takes the region of the first skb pushed.
    pub const fn new() -> Self {
        SkbList { region: 0, first: NONE, last: NONE, len: 0 }
    }

    /// How many skbs it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `skb`, or hands it back if it is of another region than those already here.
    #[inline]
    pub fn push_back(&mut self, mut skb: Skb) -> Result<(), Skb> {
        if self.len > 0 && self.region != skb.region() {
            return Err(skb);
        }
        skb.raw_mut().next = NONE;
        self.region = skb.region();
        let index = skb.into_raw();
        if self.len == 0 {
            self.first = index;
        } else {
            // SAFETY: `last` is an skb that this list owns.
            unsafe { linked(self.region, self.last) }.raw_mut().next = index;
        }
        self.last = index;
        self.len += 1;
        Ok(())
    }

    /// Prepends `skb`, or hands it back if it is of another region than those already here.
    pub fn push_front(&mut self, mut skb: Skb) -> Result<(), Skb> {
        if self.len == 0 {
            *self = SkbList::from(skb);
            return Ok(());
        }
        if self.region != skb.region() {
            return Err(skb);
        }
        skb.raw_mut().next = self.first;
        self.first = skb.into_raw();
        self.len += 1;
        Ok(())
    }

    /// Length of the first packet in bytes, [all that leaves](pkt_len) counted.
    pub fn front_len(&self) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        // SAFETY: `first` is an skb that this list owns.
        let first = unsafe { linked(self.region, self.first) };
        Some(pkt_len(&first))
    }

    /// The bytes that are in each packet's first frame, first packet to last.
    pub fn data(&self) -> impl Iterator<Item = &[u8]> {
        let (region, mut at) = (self.region, self.first);
        (0..self.len).map(move |_| {
            // SAFETY: `at` is an skb that this list owns.
            let skb = unsafe { linked(region, at) };
            at = skb.raw().next;
            let data = skb.data();
            // SAFETY: the bytes are the list's as long as the skb is on it, and that cannot change while the list is
            // borrowed, as it is by the iterator and what it yields.
            unsafe { std::slice::from_raw_parts(data.as_ptr(), data.len()) }
        })
    }

    /// A list of the `len` skbs of `region` that are linked from `first` to `last`.
    ///
    /// # Safety
    /// They are, there is at least one, and nothing else owns them.
    pub(super) unsafe fn from_ends(region: u32, first: u32, last: u32, len: usize) -> Self {
        SkbList { region, first, last, len }
    }

    /// Takes the first skb.
    pub fn pop_front(&mut self) -> Option<Skb> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: `first` is an skb that this list owns, and it is unlinked here.
        let mut skb = unsafe { Skb::from_raw(self.region, self.first) };
        self.first = std::mem::replace(&mut skb.raw_mut().next, NONE);
        Some(skb)
    }
}

/// A list of one.
impl From<Skb> for SkbList {
    fn from(mut skb: Skb) -> Self {
        skb.raw_mut().next = NONE;
        let (region, index) = (skb.region(), skb.into_raw());
        SkbList { region, first: index, last: index, len: 1 }
    }
}

impl Drop for SkbList {
    fn drop(&mut self) {
        while let Some(skb) = self.pop_front() {
            drop(skb);
        }
    }
}
