//! What can be hung into an instance: receive offload. Called by the instance's owner only.

use crate::SoftnetData;
use crate::gro::{GroParams, GroStats};
use crate::skb::{Batch, FrameBatch};

/// Generic receive offload: merges packets of a flow, and may hold some back for more to come.
pub trait Gro: Send {
    /// Takes packets out of `batch` to hold them, or merges them; what is in `batch` then goes on
    /// at once, and after it what there is [more](Self::more).
    fn receive(&mut self, ctx: &mut SoftnetData, stats: &GroStats, params: &GroParams, batch: &mut Batch);
    /// The same of packets that have no heads yet: `batch`, which is empty, gets what goes on.
    fn receive_frames(
        &mut self,
        ctx: &mut SoftnetData,
        stats: &GroStats,
        params: &GroParams,
        frames: &mut FrameBatch,
        batch: &mut Batch,
    );
    /// Appends to `out`, which is empty, what goes on as well. To be called after each
    /// [`receive`](Self::receive), and each [`receive_frames`](Self::receive_frames).
    fn more(&mut self, out: &mut Batch);
    /// It is `now`, in ns, and nothing came.
    fn tick(&mut self, now: u64);
    /// Appends held packets to `out`, oldest of each flow first, until none is left to give up or
    /// `out` is full. With `old_only` it keeps those that have not been held for long.
    fn flush(&mut self, stats: &GroStats, out: &mut Batch, old_only: bool);
    /// Packets held now.
    fn held(&self) -> usize;
}
