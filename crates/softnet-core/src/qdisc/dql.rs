//! Byte queue limits: how many bytes a device's ring may hold, learnt from its completions.
//!
//! The limit should be just high enough that the ring never runs dry between two completions while packets wait. It
//! grows when the ring ran dry although it had been full, and shrinks by the smallest slack seen within the hold time.
//! The algorithm is that of the kernel's `lib/dynamic_queue_limits.c`; names are its own. Only the TX queue's owner
//! calls it.
//!
//! Invariant: `min <= limit <= max` after every completion, and a queue with nothing in flight is not stopped.

/// The kernel's `hold_time` in ns.
const HOLD_TIME: u64 = 1_000_000_000;

/// Limits of one TX queue. Bytes are counted since the queue was opened.
#[derive(Clone, Debug)]
pub struct Dql {
    num_queued: u64,
    num_completed: u64,
    limit: u64,
    min: u64,
    max: u64,
    /// `limit + num_completed`: what `num_queued` may be.
    adj_limit: u64,
    /// Bytes of the last call of [`sent`](Self::sent).
    last_obj: u64,
    /// As of the last completion: bytes above the limit, bytes queued, bytes of the last call.
    prev_ovlimit: u64,
    prev_num_queued: u64,
    prev_last_obj: u64,
    lowest_slack: u64,
    slack_start: u64,
}

impl Default for Dql {
    /// As the kernel starts: a limit of 0, which the first completion raises, and none to the limit.
    fn default() -> Self {
        Self::new(0, u64::MAX >> 2)
    }
}

impl Dql {
    /// A limit between `min` (`limit_min`) and `max` (`limit_max`, at least `min`) bytes.
    pub fn new(min: u64, max: u64) -> Self {
        let (limit, max) = (min, max.max(min).min(u64::MAX >> 2));
        Dql {
            num_queued: 0,
            num_completed: 0,
            limit: limit.min(max),
            min: min.min(max),
            max,
            adj_limit: limit.min(max),
            last_obj: 0,
            prev_ovlimit: 0,
            prev_num_queued: 0,
            prev_last_obj: 0,
            lowest_slack: u64::MAX,
            slack_start: 0,
        }
    }

    /// Bytes that still fit; the queue is stopped while this is below 0. The last packet sent may have exceeded it.
    #[inline(always)]
    pub fn avail(&self) -> i64 {
        self.adj_limit as i64 - self.num_queued as i64
    }

    /// The limit now.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes in the ring.
    pub fn inflight(&self) -> u64 {
        self.num_queued - self.num_completed
    }

    /// `bytes` were put on the ring.
    #[inline(always)]
    pub fn sent(&mut self, bytes: u64) {
        self.num_queued += bytes;
        self.last_obj = bytes;
    }

    /// `bytes` that were on the ring have left by `now`, in ns. More than were there counts as all of them: a device
    /// that completes what it was not given must not stop the queue.
    pub fn completed(&mut self, bytes: u64, now: u64) {
        let inflight = self.inflight();
        let completed = self.num_completed + bytes.min(inflight);
        let mut ovlimit = inflight.saturating_sub(self.limit);
        let in_progress = self.num_queued > completed;
        let prev_in_progress = self.prev_num_queued > self.num_completed;
        let all_prev_completed = completed >= self.prev_num_queued;

        let mut limit = self.limit;
        if ovlimit > 0 && !in_progress || self.prev_ovlimit > 0 && all_prev_completed {
            // It ran dry, or may have before any thread could send: what passed within the interval was too little.
            limit += completed.saturating_sub(self.prev_num_queued) + self.prev_ovlimit;
            (self.lowest_slack, self.slack_start) = (u64::MAX, now);
        } else if in_progress && prev_in_progress && !all_prev_completed {
            // Busy throughout. Twice of what completed is needed at the most; the rest is slack, and so is
            // what the last call of the interval before sent below the limit.
            let passed = 2 * (completed - self.num_completed);
            let slack = (limit + self.prev_ovlimit).saturating_sub(passed);
            let last =
                if self.prev_ovlimit > 0 { self.prev_last_obj.saturating_sub(self.prev_ovlimit) } else { 0 };
            self.lowest_slack = self.lowest_slack.min(slack.max(last));
            if now.saturating_sub(self.slack_start) > HOLD_TIME {
                limit = limit.saturating_sub(self.lowest_slack);
                (self.lowest_slack, self.slack_start) = (u64::MAX, now);
            }
        }
        limit = limit.clamp(self.min, self.max);
        if limit != self.limit {
            (self.limit, ovlimit) = (limit, 0);
        }
        self.adj_limit = limit + completed;
        self.prev_ovlimit = ovlimit;
        self.prev_last_obj = self.last_obj;
        self.num_completed = completed;
        self.prev_num_queued = self.num_queued;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_completion_sets_the_limit_and_then_two_may_be_in_flight() {
        let mut dql = Dql::default();
        assert_eq!(dql.avail(), 0, "the first packet is accepted");
        dql.sent(1514);
        assert!(dql.avail() < 0, "and stops the queue");
        dql.completed(1514, 0);
        assert_eq!((dql.limit(), dql.avail()), (1514, 1514));
        dql.sent(1514);
        assert_eq!(dql.avail(), 0, "a second may follow");
        dql.sent(1514);
        assert!(dql.avail() < 0);
    }

    #[test]
    fn the_limit_shrinks_by_the_smallest_slack_after_the_hold_time() {
        let mut dql = Dql::default();
        // Learnt in a burst: 10 packets at once, in flight beyond the limit each time.
        for _ in 0..4 {
            while dql.avail() >= 0 {
                dql.sent(1514);
            }
            dql.completed(dql.inflight(), 0);
        }
        let learnt = dql.limit();
        assert!(learnt >= 3 * 1514, "{learnt}");
        // From now on a packet completes at a time, and the ring is never empty.
        let mut now = 0;
        while now <= HOLD_TIME {
            while dql.avail() >= 0 {
                dql.sent(1514);
            }
            dql.completed(1514, now);
            assert_eq!(dql.limit(), learnt, "held");
            now += 100_000_000;
        }
        for _ in 0..200 {
            while dql.avail() >= 0 {
                dql.sent(1514);
            }
            dql.completed(1514.min(dql.inflight()), now);
            now += 100_000_000;
        }
        assert!(dql.limit() < learnt, "{} of {learnt}", dql.limit());
    }

    proptest! {
        #[test]
        fn stays_in_bounds_and_never_stops_an_empty_ring(
            min in 0u64..10_000,
            max in 0u64..100_000,
            steps in prop::collection::vec((0u64..20_000, 0u64..40_000, 0u64..2_000_000_000), 1..200),
        ) {
            let mut dql = Dql::new(min, max);
            let mut now = 0;
            for (send, complete, passed) in steps {
                // As a driver does: nothing is sent while the queue is stopped.
                if dql.avail() >= 0 {
                    dql.sent(send);
                }
                now += passed;
                dql.completed(complete, now);
                prop_assert!((min..=max.max(min)).contains(&dql.limit()));
                prop_assert!(dql.inflight() > 0 || dql.avail() >= 0, "stopped with an empty ring");
                prop_assert!(dql.inflight() <= dql.limit() + 20_000 || dql.avail() < 0);
            }
        }
    }
}
