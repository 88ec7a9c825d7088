//! The hand-over primitive for skbs, linked through their heads, with state that only the word's owner may touch.
//!
//! Any thread may enter with a batch. It becomes the owner and keeps its batch, or its packets go to the pending list
//! in one compare-exchange, for the owner to take. It is [`Handover`] with two things made safe: an element is
//! an owned [`Skb`] (its index on the way in, the handle on the way out), and ownership gives `&mut` to the body.
//!
//! Invariant: a packet is with its sender, on the list, or with the owner, and only that one touches its head.

use super::batch::Batch;
use super::handle::Skb;
use super::region::{Region, head_ptr};
use crate::sync::{Handover, Links, NIL, OwnLine, Owner, Refused, UnsafeCell, model_failed};

/// Links in the heads of a region. Of this module alone: only the holder of a packet may touch its head.
pub(super) struct HeadLinks(u32);

impl HeadLinks {
    /// Of the region with number `region`.
    #[inline(always)]
    pub(super) fn of(region: u32) -> Self {
        HeadLinks(region)
    }

    /// Links packets of the region as a pending list does: each to the one before it.
    #[inline(always)]
    pub(super) fn link(&self, skbs: &[Skb]) {
        for pair in skbs.windows(2) {
            self.set_next(pair[1].index(), pair[0].index());
        }
    }

    /// Undoes that.
    pub(super) fn unlink(&self, skbs: &[Skb]) {
        skbs.iter().for_each(|skb| self.set_next(skb.index(), NIL));
    }
}

impl Links for HeadLinks {
    #[inline(always)]
    fn set_next(&self, i: u32, next: u32) {
        // SAFETY: by the trait's contract the caller holds packet `i`, so no other code touches its head.
        unsafe { (*head_ptr(self.0, i)).next = next }
    }

    #[inline(always)]
    fn next(&self, i: u32) -> u32 {
        // SAFETY: as above.
        unsafe { (*head_ptr(self.0, i)).next }
    }
}

/// A word that one thread at a time owns, the packets that wait for the owner, and the body that is the owner's.
pub struct SkbHandover<B> {
    handover: OwnLine<Handover>,
    links: HeadLinks,
    body: UnsafeCell<B>,
}

// SAFETY: `&mut B` goes to the one owner of the word, whichever thread that is, and `&B` is never given out.
unsafe impl<B: Send> Sync for SkbHandover<B> {}

/// What [`SkbHandover::enter`] came to.
pub enum SkbEntered<'a, B> {
    /// The caller owns the word, and still has its packets.
    Owner {
        /// Its ownership.
        owner: SkbOwner<'a, B>,
        /// It was parked: what is pending came before the caller's packets.
        parked: bool,
    },
    /// The packets were handed over to the owner.
    Pending,
    /// Too many are pending, or one of the caller's is of another region, whose heads the list cannot link. The
    /// caller still has its packets.
    Full,
}

impl<B> SkbHandover<B> {
    /// A free word for packets of `region`, with room for `limit` pending ones beyond the first batch (see
    /// [`Handover::with_limit`]), and its body.
    pub fn new(region: &Region, limit: u32, body: B) -> Self {
        SkbHandover {
            handover: OwnLine(Handover::with_limit(limit)),
            links: HeadLinks(region.id()),
            body: UnsafeCell::new(body),
        }
    }

    /// Takes ownership, unless a thread has it and has not parked it.
    #[inline]
    pub fn own(&self) -> Option<SkbOwner<'_, B>> {
        let owner = Handover::claim(&*self.handover).or_else(Handover::unpark).ok()?;
        Some(SkbOwner { cell: self, owner })
    }

    /// Becomes the owner, or hands the packets of `batch` over to the owner, and leaves it empty. Parked ownership is
    /// left to the thread that was told to take it up, as long as there is room on the list. The batch must not be
    /// empty.
    #[inline]
    pub fn enter(&self, batch: &mut Batch) -> SkbEntered<'_, B> {
        self.enter_within(batch, true)
    }

    /// As [`enter`](Self::enter), whatever the limit: for packets that another limit bounds. [`Full`](SkbEntered::Full) only
    /// if a packet is of another region.
    #[inline]
    pub fn enter_beyond(&self, batch: &mut Batch) -> SkbEntered<'_, B> {
        self.enter_within(batch, false)
    }

    #[inline(always)]
    fn enter_within(&self, batch: &mut Batch, limited: bool) -> SkbEntered<'_, B> {
        loop {
            if let Ok(owner) = Handover::claim(&*self.handover) {
                return SkbEntered::Owner { owner: SkbOwner { cell: self, owner }, parked: false };
            }
            match self.push(batch, limited) {
                Ok(_) => return SkbEntered::Pending,
                Err(Refused::Full) => {
                    return match Handover::unpark(&*self.handover) {
                        Ok(owner) => {
                            SkbEntered::Owner { owner: SkbOwner { cell: self, owner }, parked: true }
                        }
                        Err(_) => SkbEntered::Full,
                    };
                }
                Err(Refused::Unowned) => {}
            }
        }
    }

    /// Whether too many are pending.
    pub fn is_full(&self) -> bool {
        self.handover.is_full()
    }

    #[inline(always)]
    fn push(&self, batch: &mut Batch, limited: bool) -> Result<bool, Refused> {
        let skbs = batch.as_slice();
        let ([first, .., last] | [first @ last]) = skbs else { return Ok(false) };
        if skbs.iter().any(|skb| skb.region() != self.links.0) {
            return Err(Refused::Full);
        }
        self.links.link(skbs);
        let n = skbs.len() as u32;
        let (oldest, newest) = (first.index(), last.index());
        let pushed = match limited {
            true => self.handover.push_chain(&self.links, oldest, newest, n),
            false => self.handover.push_chain_beyond(&self.links, oldest, newest),
        };
        if pushed.is_ok() {
            // The packets are the owner's from now on; only the handles are left to be forgotten.
            batch.drain().for_each(|skb| _ = skb.into_raw());
        } else {
            self.links.unlink(skbs);
        }
        pushed
    }
}

impl<B> Drop for SkbHandover<B> {
    /// No thread will ever get what is still pending: it is dropped, which is a bug and is noticed as one.
    fn drop(&mut self) {
        if !model_failed()
            && let Some(mut owner) = self.own()
        {
            while owner.has_pending() {
                owner.drain(|_, skb| drop(skb));
            }
        }
    }
}

/// Ownership of an [`SkbHandover`]. It must end by [`work`](Self::work).
#[must_use = "an owner must drain and leave"]
pub struct SkbOwner<'a, B> {
    cell: &'a SkbHandover<B>,
    owner: Owner<&'a Handover>,
}

impl<B> SkbOwner<'_, B> {
    /// What only the owner may touch.
    #[inline(always)]
    pub fn body(&mut self) -> &mut B {
        // SAFETY: this is the only owner, and `&mut self` makes this the only reference from it.
        self.cell.body.with_mut(|body| unsafe { &mut *body })
    }

    /// Whether packets are pending.
    #[inline(always)]
    pub fn has_pending(&self) -> bool {
        self.owner.has_pending()
    }

    /// Detaches the pending list and hands all of it to `each`, first to last. Returns how many there were.
    #[inline]
    pub fn drain(&mut self, mut each: impl FnMut(&mut B, Skb)) -> usize {
        // SAFETY: as in `body`; the drain below touches the word and the links only.
        let body = self.cell.body.with_mut(|body| unsafe { &mut *body });
        let region = self.cell.links.0;
        let mut n = 0;
        for index in self.owner.drain(&self.cell.links) {
            // SAFETY: the index came from an skb of this region that `push` gave up, and the list yields it once.
            each(body, unsafe { Skb::from_raw(region, index) });
            n += 1;
        }
        n
    }

    /// Does rounds until one ends ownership; what that one came to. (One call for all of it: to move ownership about costs
    /// more than it looks.)
    #[inline(always)]
    pub fn work<T>(mut self, mut round: impl FnMut(&mut Self) -> Ending<T>) -> T {
        loop {
            match round(&mut self) {
                Ending::Leave(result) => {
                    if self.owner.try_leave() {
                        return result;
                    }
                }
                Ending::Park(result) => {
                    self.owner.park();
                    return result;
                }
            }
        }
    }
}

/// How a round of [`SkbOwner::work`] ends, with what it came to.
pub enum Ending<T> {
    /// By letting go if nothing is pending; otherwise there is another round.
    Leave(T),
    /// By leaving ownership to the thread that comes to own, or enters and finds no room to be pending. The caller must
    /// see to it that one does.
    Park(T),
}
