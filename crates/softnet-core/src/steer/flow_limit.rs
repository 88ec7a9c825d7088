//! Flow limit: when a backlog is half full, packets of a flow that has more than its share of the
//! last ones are dropped, so that small flows get through beside a large one (`skb_flow_limit` of
//! the kernel's `net/core/dev.c`).
//!
//! Each thread that pushes has one of its own, for all backlogs. Invariant: a bucket counts how
//! often it is in the history.

/// Packets that are remembered (the kernel's `FLOW_LIMIT_HISTORY`).
pub const HISTORY: usize = 128;

/// In the place of a packet that has not been yet: of no bucket.
const NONE: u32 = u32::MAX;

/// A thread's history of packets, and how often each flow is in it.
pub struct FlowLimit {
    /// Of the last packets the buckets, in a ring.
    history: [u32; HISTORY],
    at: usize,
    /// How often each is in there.
    buckets: Box<[u8]>,
    mask: u32,
}

impl FlowLimit {
    /// The most buckets.
    pub const MAX_BUCKETS: u32 = 1 << 16;

    /// An empty history, with so many buckets, rounded up to a power of two
    /// (`flow_limit_table_len`); `None`: with 0, flows are not limited.
    pub fn new(buckets: u32) -> Option<Self> {
        let n = buckets.min(Self::MAX_BUCKETS).next_power_of_two();
        (buckets > 0).then(|| FlowLimit {
            history: [NONE; HISTORY],
            at: 0,
            buckets: vec![0; n as usize].into(),
            mask: n - 1,
        })
    }

    /// Whether a packet with the flow hash `hash` is to be dropped, if it is to go to a backlog of
    /// `len` packets that takes `max`.
    #[inline]
    pub fn exceeds(&mut self, hash: u32, len: usize, max: usize) -> bool {
        if len < max / 2 {
            return false;
        }
        let new = hash & self.mask;
        let old = std::mem::replace(&mut self.history[self.at], new);
        self.at = (self.at + 1) % HISTORY;
        if let Some(old) = self.buckets.get_mut(old as usize) {
            *old -= 1;
        }
        let new = &mut self.buckets[new as usize];
        *new += 1;
        usize::from(*new) > HISTORY / 2
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_elephant_is_limited_from_half_a_backlog_on_and_mice_are_not() {
        let mut limit = FlowLimit::new(4096).unwrap();
        assert!((0..1000).all(|_| !limit.exceeds(7, 499, 1000)), "less than half");
        // One of ten packets is a mouse's.
        let mut dropped = [0; 2];
        for i in 0..10_000u32 {
            let (mouse, hash) = if i % 10 == 0 { (1, 1000 + i / 10 % 100) } else { (0, 7) };
            dropped[mouse] += u32::from(limit.exceeds(hash, 500, 1000));
        }
        assert!(dropped[0] > 8_000 && dropped[1] == 0, "{dropped:?}");
    }

    #[test]
    fn a_flow_alone_gets_half_of_its_history() {
        let mut limit = FlowLimit::new(4096).unwrap();
        assert_eq!((0..200).position(|_| limit.exceeds(7, 500, 1000)), Some(64));
        assert!(FlowLimit::new(0).is_none());
    }

    proptest! {
        #[test]
        fn a_bucket_counts_what_the_history_has_of_it(hashes in prop::collection::vec(0u32..12, 0..600)) {
            let mut limit = FlowLimit::new(5).unwrap();
            prop_assert_eq!(limit.mask, 7);
            for (i, hash) in hashes.iter().enumerate() {
                let last = &hashes[(i + 1).saturating_sub(HISTORY)..=i];
                let same = last.iter().filter(|h| **h & 7 == hash & 7).count();
                prop_assert_eq!(limit.exceeds(*hash, 1, 2), same > 64);
            }
        }
    }
}
