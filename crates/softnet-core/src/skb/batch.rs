//! A batch: up to 64 skbs, the unit in which packets travel through every stage.

use std::mem::{ManuallyDrop, MaybeUninit};

use super::handle::Skb;

/// Skbs a batch holds at the most; also NAPI's weight.
pub const BATCH: usize = 64;

/// Up to [`BATCH`] owned skbs, in order.
pub struct Batch {
    len: usize,
    slots: [MaybeUninit<Skb>; BATCH],
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Batch {
    /// An empty batch.
    #[inline]
    pub const fn new() -> Self {
        Batch { len: 0, slots: [const { MaybeUninit::uninit() }; BATCH] }
    }

    /// How many skbs it holds.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Frames of all packets it holds: what they take of packet memory.
    #[inline]
    pub fn frames(&self) -> usize {
        self.as_slice().iter().map(Skb::frame_count).sum()
    }

    /// Skbs that still fit.
    #[inline(always)]
    pub fn room(&self) -> usize {
        BATCH - self.len
    }

    /// Appends `skb`, or hands it back if the batch is full.
    #[inline(always)]
    pub fn push(&mut self, skb: Skb) -> Result<(), Skb> {
        match self.slots.get_mut(self.len) {
            Some(slot) => {
                slot.write(skb);
                self.len += 1;
                Ok(())
            }
            None => Err(skb),
        }
    }

    /// Appends up to `n` of what `next` gives, as long as there is room and it gives any. Returns how many.
    #[inline(always)]
    pub(super) fn extend(&mut self, n: usize, mut next: impl FnMut() -> Option<Skb>) -> usize {
        let from = self.len;
        let to = from + n.min(BATCH - from);
        let mut at = from;
        while at < to
            && let Some(skb) = next()
        {
            self.slots[at].write(skb);
            at += 1;
        }
        self.len = at;
        at - from
    }

    /// Takes the last skb.
    #[inline]
    pub fn pop(&mut self) -> Option<Skb> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: slots below the old length are initialised; the new length gives this one up.
        Some(unsafe { self.slots[self.len].assume_init_read() })
    }

    /// The skbs.
    #[inline(always)]
    pub fn as_slice(&self) -> &[Skb] {
        // SAFETY: slots below `len` are initialised.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr().cast(), self.len) }
    }

    /// The skbs, to write.
    #[inline(always)]
    pub fn as_mut_slice(&mut self) -> &mut [Skb] {
        // SAFETY: slots below `len` are initialised.
        unsafe { std::slice::from_raw_parts_mut(self.slots.as_mut_ptr().cast(), self.len) }
    }

    /// Gives up every skb: the caller sees to their heads and frames.
    #[inline(always)]
    pub(super) fn give_up(&mut self) -> &[ManuallyDrop<Skb>] {
        let len = std::mem::take(&mut self.len);
        // SAFETY: slots below the old length are initialised, and `ManuallyDrop` has the layout of what it holds.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr().cast(), len) }
    }

    /// Takes out every skb, first to last. What the iterator has not yielded when it is dropped stays in
    /// the batch, in order.
    #[inline]
    pub fn drain(&mut self) -> Drain<'_> {
        let len = std::mem::take(&mut self.len);
        Drain { batch: self, at: 0, len }
    }

    /// Moves as many skbs of `other` as fit to the end of this batch, first ones first.
    #[inline]
    pub fn append(&mut self, other: &mut Batch) {
        let mut from = other.drain();
        let n = from.len().min(BATCH - self.len);
        // SAFETY: the first `n` slots of `other` are initialised, and as many are free here; the drain counts them as yielded.
        unsafe {
            let free = self.slots.as_mut_ptr().add(self.len);
            std::ptr::copy_nonoverlapping(from.batch.slots.as_ptr(), free, n);
        }
        from.at = n;
        self.len += n;
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        while let Some(skb) = self.pop() {
            drop(skb);
        }
    }
}

/// A batch of one.
impl From<Skb> for Batch {
    #[inline]
    fn from(skb: Skb) -> Self {
        let mut batch = Batch::new();
        batch.slots[0].write(skb);
        batch.len = 1;
        batch
    }
}

/// See [`Batch::drain`].
pub struct Drain<'a> {
    batch: &'a mut Batch,
    at: usize,
    len: usize,
}

impl Drain<'_> {
    /// Gives up the next `n` skbs, or as many as are left: the caller sees to their heads and frames.
    #[inline(always)]
    pub(super) fn give_up(&mut self, n: usize) -> &[ManuallyDrop<Skb>] {
        let from = self.at;
        self.at += n.min(self.len - from);
        // SAFETY: slots in `at..len` were initialised when the drain began, and `ManuallyDrop` has the layout of what it holds.
        unsafe { std::slice::from_raw_parts(self.batch.slots.as_ptr().add(from).cast(), self.at - from) }
    }

    /// The skb that will come after `n` others, if there are so many.
    #[inline(always)]
    pub(crate) fn ahead(&self, n: usize) -> Option<&Skb> {
        // SAFETY: slots in `at..len` were initialised when the drain began, and are not read yet.
        (n < self.len - self.at).then(|| unsafe { self.batch.slots[self.at + n].assume_init_ref() })
    }

    /// Takes back the last `n` skbs that were given up, of which nothing has been done.
    #[inline(always)]
    pub(super) fn take_back(&mut self, n: usize) {
        self.at -= n;
    }
}

impl Iterator for Drain<'_> {
    type Item = Skb;

    #[inline(always)]
    fn next(&mut self) -> Option<Skb> {
        if self.at == self.len {
            return None;
        }
        // SAFETY: slots in `at..len` were initialised when the drain began, and each is read once.
        let skb = unsafe { self.batch.slots.get_unchecked(self.at).assume_init_read() };
        self.at += 1;
        Some(skb)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len - self.at, Some(self.len - self.at))
    }
}

impl ExactSizeIterator for Drain<'_> {}

impl Drop for Drain<'_> {
    #[inline]
    fn drop(&mut self) {
        let left = self.len - self.at;
        if left > 0 {
            // SAFETY: both ranges lie within the array; the moved slots become the batch's again.
            unsafe {
                let slots = self.batch.slots.as_mut_ptr();
                std::ptr::copy(slots.add(self.at), slots, left);
            }
            self.batch.len = left;
        }
    }
}
