//! When a paced connection's segments leave: Linux's departure times (`tcp_update_skb_after_send`),
//! to which the `fq` queue keeps. Segments without payload are not paced.

use softnet_tcp::{Instant, Span};

/// Segments that leave unpaced after the handshake (`TCP_INIT_CWND`).
const UNPACED: u32 = 10;

/// The departures of one connection.
#[derive(Default)]
pub(crate) struct Pace {
    next: Instant,
    segments: u32,
}

impl Pace {
    /// When `bytes` of payload in `segments` leave that are sent at `now`, at `rate` bytes a second.
    pub(crate) fn departure(&mut self, now: Instant, rate: u64, bytes: u32, segments: u32) -> Instant {
        let at = self.next.max(now);
        // What was not used since the last departure makes up for half of this one's time.
        let credit = at.since(self.next);
        self.segments = self.segments.saturating_add(segments);
        self.next = at;
        if rate != u64::MAX && self.segments >= UNPACED {
            let takes = u64::from(bytes) * 1_000_000 / rate.max(1);
            let takes = u32::try_from(takes).unwrap_or(u32::MAX);
            self.next += Span(takes - (takes / 2).min(credit.0));
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn departures_keep_to_the_rate_after_ten_segments() {
        let mut pace = Pace::default();
        let start = Instant(1_000_000);
        // 2000 bytes take 10 ms; the first ten segments do not wait for one another.
        let mut send = |ms: u64, segments| {
            let at = pace.departure(start.plus_millis(ms), 200_000, 1000 * segments, segments);
            at.since(start).as_millis()
        };
        assert_eq!([send(0, 8), send(0, 2)], [0, 0]);
        // Behind the tenth.
        assert_eq!([send(0, 2), send(1, 2)], [10, 20]);
        // The time since 30 ms is credit, for half of what the next one would wait.
        assert_eq!([send(50, 2), send(50, 2), send(50, 2)], [50, 55, 65]);
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut pace = Pace::default();
        for ms in [5, 5, 7] {
            let now = Instant(0).plus_millis(ms);
            assert_eq!(pace.departure(now, u64::MAX, 20_000, 20), now);
        }
    }
}
