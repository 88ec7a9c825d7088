//! What can be hung into an instance: receive offload. Called by the instance's owner only.

use crate::skb::Batch;

/// Generic receive offload: merges packets of a flow, and may hold some back for more to come.
pub trait Gro: Send {
    /// Takes packets out of `batch` to hold them, or merges them; what stays in `batch` goes on at once.
    fn receive(&mut self, batch: &mut Batch);
    /// Appends held packets to `out`, oldest first, until none is left to give up or `out` is full. With `old_only`
    /// it keeps those that have not been held for long.
    fn flush(&mut self, out: &mut Batch, old_only: bool);
    /// Packets held now.
    fn held(&self) -> usize;
}
