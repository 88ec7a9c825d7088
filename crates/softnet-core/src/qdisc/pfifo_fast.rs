//! `pfifo_fast`: three bands in strict priority, each first in, first out (`net/sched/sch_generic.c`).

use std::sync::Arc;

use super::fifo::{append, purge, take};
use super::{DevParams, Qdisc, QdiscStats, Quota, Spec, SpecError, ToFree, Verdict};
use crate::skb::{Batch, DropReason, Skb, SkbList};

/// Priority (`TC_PRIO_*`) to band, the kernel's `sch_default_prio2band`.
const PRIO2BAND: [u8; 16] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

/// Priority of an IPv4 packet by its type of service, as the kernel gives it to packets that it forwards: best effort
/// 0, bulk 2, interactive bulk 4, interactive 6.
#[inline]
pub fn rt_tos2priority(tos: u8) -> u8 {
    // Of RFC 1349's four bits "minimise delay" and "maximise throughput" matter.
    [0, 2, 6, 4][usize::from(tos >> 3 & 3)]
}

/// The band of an Ethernet frame. What is not IPv4 is best effort.
fn band(skb: &Skb) -> usize {
    let priority = match skb.data() {
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x08, 0x00, _, tos, ..] => rt_tos2priority(*tos),
        _ => 0,
    };
    usize::from(PRIO2BAND[usize::from(priority & 15)])
}

/// A `pfifo_fast`.
pub struct PfifoFast {
    bands: [SkbList; 3],
    /// Packets in each band at the most: the device's `tx_queue_len`.
    limit: u32,
    stats: Arc<QdiscStats>,
}

impl PfifoFast {
    /// One that holds up to `limit` packets in each band.
    pub fn new(limit: u32) -> Self {
        PfifoFast { bands: [const { SkbList::new() }; 3], limit, stats: Arc::default() }
    }
}

impl Qdisc for PfifoFast {
    fn enqueue(&mut self, skb: Skb, _now: u64, to_free: &mut ToFree) -> Verdict {
        let band = &mut self.bands[band(&skb)];
        let room = band.len() < self.limit as usize;
        append(band, room, skb, &self.stats, to_free)
    }

    fn dequeue(&mut self, _now: u64, quota: &mut Quota, out: &mut Batch, _to_free: &mut ToFree) {
        self.bands.iter_mut().for_each(|band| take(band, quota, out, &self.stats));
    }

    fn next_event(&self, _now: u64) -> Option<u64> {
        None
    }

    fn can_bypass(&self) -> bool {
        true
    }

    fn reset(&mut self, reason: DropReason, to_free: &mut ToFree) {
        self.bands.iter_mut().for_each(|band| purge(band, reason, &self.stats, to_free));
    }

    fn change(&mut self, spec: &Spec, dev: &DevParams) -> Result<(), SpecError> {
        if !matches!(spec, Spec::PfifoFast) {
            return Err(SpecError::OtherKind { is: "pfifo_fast", asked: spec.kind() });
        }
        self.limit = dev.pfifo_limit();
        Ok(())
    }

    fn stats(&self) -> &Arc<QdiscStats> {
        &self.stats
    }
}
