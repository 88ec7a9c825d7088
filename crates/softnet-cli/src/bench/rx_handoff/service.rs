//! What each packet costs, in the driver and on its way: a computation of so long.

use std::hint::black_box;
use std::time::{Duration, Instant};

use softnet_core::ip::hooks::{Hook, HookContext, Passage};
use softnet_core::skb::Batch;

/// Computes a fixed number of steps for each packet, and does not watch a clock: a thread that was
/// put off its CPU meanwhile has not done its work. Stands in the slot `forward`, and in the wire.
#[derive(Clone, Copy)]
pub(super) struct Service {
    steps: u64,
}

/// Steps that depend on each other.
fn compute(steps: u64) -> u64 {
    (0..steps).fold(black_box(1), |value, _| value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(5))
}

impl Service {
    /// Costs `ns` a packet on this machine as it is now.
    pub(super) fn new(ns: f64) -> Self {
        const STEPS: u64 = 100_000;
        let time = || {
            let start = Instant::now();
            black_box(compute(STEPS));
            start.elapsed()
        };
        let fastest = (0..100).map(|_| time()).min().unwrap_or(Duration::from_micros(100));
        Service { steps: (ns * STEPS as f64 / fastest.as_nanos().max(1) as f64) as u64 }
    }
}

impl Service {
    /// The work for one packet.
    #[inline]
    pub(super) fn serve(&self) {
        black_box(compute(self.steps));
    }
}

impl Hook for Service {
    fn run(&self, _: &mut HookContext<'_>, _: Passage, batch: &mut Batch) {
        (0..batch.len()).for_each(|_| self.serve());
    }
}
