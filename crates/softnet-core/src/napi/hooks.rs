//! What can be hung into an instance: receive offload and interrupt mitigation. Called by the instance's owner only.

use std::num::NonZeroU64;

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

/// Decides, when a poll comes to its end, whether the doorbell stays masked and for how long
/// (`napi_defer_hard_irqs`, `gro_flush_timeout`).
pub trait Mitigation: Send {
    /// Called once per completion, for no work as well: `work` packets were received, and GRO holds some or not.
    fn complete(&mut self, work: usize, gro_holds: bool) -> Deferral;
}

/// What is to become of the doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deferral {
    /// The timer to arm, in ns from now. While it runs GRO may hold packets. A timer alone does not keep the doorbell
    /// masked.
    pub timer: Option<NonZeroU64>,
    /// Whether the doorbell stays masked until the timer fires; without a timer it is unmasked all the same.
    pub masked: bool,
}
