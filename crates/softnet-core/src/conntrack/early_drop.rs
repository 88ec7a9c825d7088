//! What is done when the table is full: a connection that is not
//! [assured](super::State::is_assured) is ended for the new one, as the kernel does
//! (`early_drop_list`). An assured one never is, so that neither a scan from inside nor a flood from
//! outside ends what both sides use. One whose time is over goes first, whatever it was: the sweep has
//! not come to it yet.
//!
//! Called by the thread that makes the new connection. The entry stays on the list of the wheel that
//! it is on, and is filled anew there. Invariant: the entry is in the hands of the thread that
//! exchanged its life word; the sweep leaves one alone that is not alive.

use super::entry::Holds;
use super::table::Conntrack;
use crate::sync::Ordering;

/// Connections that are looked at for one: a flood must not make each of its packets dear.
#[cfg(not(feature = "loom"))]
const LOOKS: u32 = 16;
#[cfg(feature = "loom")]
const LOOKS: u32 = 1;

/// Entries from one to the next that is looked at: neighbours were often made together, and are
/// alike. A prime, so that all have their turn.
const STRIDE: u64 = 2_654_435_761;

impl Conntrack {
    /// Ends the oldest of a few connections that are over at `now`, or else of those that are not assured;
    /// `released` gets what it held.
    /// Returns the index of its entry, which is the caller's to fill.
    #[cold]
    pub(super) fn drop_early(&self, now: u32, mut released: impl FnMut(Holds)) -> Option<u32> {
        let used = self.free.used();
        let looks = LOOKS.min(used);
        let first = self.turn.fetch_add(looks, Ordering::Relaxed);
        let at = |n: u32| (u64::from(first.wrapping_add(n)) * STRIDE % u64::from(used.max(1))) as u32;
        let some = (0..looks).map(at).filter_map(|index| {
            let entry = self.entries.get(index as usize)?;
            let life = entry.life();
            let over = life.is_over(now);
            let may = life.is_live() && (over || !life.state().is_assured());
            may.then(|| (!over, entry.contents().created, index, life))
        });
        let first = some.min_by(|a, b| a.0.cmp(&b.0).then((a.1.wrapping_sub(b.1) as i32).cmp(&0)));
        let (before, _, index, life) = first?;
        let entry = &self.entries[index as usize];
        // A packet may have moved it on meanwhile.
        entry.exchange(life, life.ended()).ok()?;
        let contents = entry.contents();
        self.unlink(index, &contents.tuples);
        let counter = if before { &self.early_drop } else { &self.expired };
        counter.fetch_add(1, Ordering::Relaxed);
        released(contents.holds);
        Some(index)
    }
}
