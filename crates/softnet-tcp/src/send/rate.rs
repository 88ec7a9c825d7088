//! Delivery rate (draft-cheng-iccrg-delivery-rate-estimation; Linux `tcp_rate.c`).
//!
//! Each record remembers what was delivered when it was sent. When it is delivered, the packets
//! delivered since, over the longer of the time to send them and the time to have them
//! acknowledged, is a sample. Times are microseconds modulo 2³²: a flight is shorter than that.

use super::ring::{APP_LIMITED, Record};
use crate::{Instant, Span};

/// The connection's part.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rate {
    /// Packets delivered, modulo 2³².
    pub(super) delivered: u32,
    /// Packets delivered with ECE, modulo 2³².
    pub(super) delivered_ce: u32,
    /// When `delivered` last grew.
    delivered_at: u32,
    /// When the first packet of the current sampling interval was sent.
    first_tx: u32,
    /// Samples are limited by the application until this many packets are delivered; 0 never.
    app_limited: u32,
    /// The last sample: packets, and [`LIMITED`] if the application limited it,
    sample: u32,
    /// and microseconds.
    interval: u32,
}

/// The bit of a sample that the application limited.
const LIMITED: u32 = 1 << 31;

/// What the most recently sent of the packets that an ACK delivers says.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RateSample {
    /// Packets delivered when it was sent.
    pub(super) prior_delivered: Option<u32>,
    prior_at: u32,
    sent_for: u32,
    xmit: Instant,
    app_limited: bool,
}

impl RateSample {
    /// `record` was delivered.
    pub(super) fn delivered(&mut self, record: &Record) {
        if self.prior_delivered.is_none() || record.xmit >= self.xmit {
            self.prior_delivered = Some(record.delivered);
            self.prior_at = record.delivered_at;
            self.sent_for = micros(record.xmit).wrapping_sub(record.first_tx);
            self.xmit = record.xmit;
            self.app_limited = record.is(APP_LIMITED);
        }
    }
}

#[inline]
fn micros(at: Instant) -> u32 {
    at.0 as u32
}

impl Rate {
    /// Something is sent after nothing was in flight.
    pub(super) fn begin(&mut self, now: Instant) {
        self.first_tx = micros(now);
        self.delivered_at = micros(now);
    }

    /// Writes into a record, about to be sent, what its sample will need.
    pub(super) fn stamp(&self, record: &mut Record) {
        record.delivered = self.delivered;
        record.delivered_at = self.delivered_at;
        record.first_tx = self.first_tx;
        record.tags &= !APP_LIMITED;
        if self.app_limited != 0 {
            record.tags |= APP_LIMITED;
        }
    }

    /// Everything was sent and the window has room: what is measured until it is delivered is the
    /// application's rate.
    pub(super) fn note_app_limited(&mut self, in_flight: u32) {
        self.app_limited = self.delivered.wrapping_add(in_flight).max(1);
    }

    /// Ends an ACK that delivered `delivered` packets.
    pub(super) fn take(&mut self, sample: &RateSample, now: Instant, delivered: u32, min_rtt: Option<Span>) {
        if self.app_limited != 0 && (self.delivered.wrapping_sub(self.app_limited) as i32) > 0 {
            self.app_limited = 0;
        }
        if delivered > 0 {
            self.delivered_at = micros(now);
        }
        let Some(prior) = sample.prior_delivered else { return };
        self.first_tx = micros(sample.xmit);
        let packets = self.delivered.wrapping_sub(prior) & !LIMITED;
        let interval = sample.sent_for.max(micros(now).wrapping_sub(sample.prior_at));
        // A sample over less than the least RTT is of ACKs that came in a bunch.
        if interval == 0 || min_rtt.is_some_and(|least| interval < least.0) {
            return;
        }
        let faster = u64::from(packets) * u64::from(self.interval)
            >= u64::from(self.sample & !LIMITED) * u64::from(interval);
        if !sample.app_limited || faster {
            self.sample = packets | if sample.app_limited { LIMITED } else { 0 };
            self.interval = interval;
        }
    }

    /// Whether the application limited the last sample.
    pub(super) fn is_app_limited(&self) -> bool {
        self.sample & LIMITED != 0
    }

    /// The last sample in bytes a second; 0 if there is none.
    pub(super) fn bytes_per_second(&self, mss: u32) -> u64 {
        let bytes = u64::from(self.sample & !LIMITED) * u64::from(mss);
        (bytes * 1_000_000).checked_div(u64::from(self.interval)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_what_was_delivered_over_the_longer_interval() {
        let mut rate = Rate::default();
        rate.begin(Instant(1000));
        let mut records = [Record::default(); 4];
        for (i, record) in records.iter_mut().enumerate() {
            record.xmit = Instant(1000 + i as u64 * 100);
            rate.stamp(record);
        }
        let mut sample = RateSample::default();
        for record in &records {
            rate.delivered += 1;
            sample.delivered(record);
        }
        rate.take(&sample, Instant(11_000), 4, Some(Span(9_700)));
        // Four packets of 1000 bytes in 10 ms.
        assert_eq!(rate.bytes_per_second(1000), 400_000);
        assert_eq!(rate.first_tx, 1300);
    }

    #[test]
    fn bunched_acks_and_slow_applications_do_not_lower_it() {
        let mut rate = Rate::default();
        let take = |rate: &mut Rate, begin: u64, now: u64| {
            rate.begin(Instant(begin));
            let mut record = Record { xmit: Instant(begin), ..Record::default() };
            rate.stamp(&mut record);
            let mut sample = RateSample::default();
            rate.delivered += 1;
            sample.delivered(&record);
            rate.take(&sample, Instant(now), 1, Some(Span(1000)));
        };
        take(&mut rate, 0, 1000);
        assert_eq!(rate.bytes_per_second(1000), 1_000_000);
        take(&mut rate, 1000, 1500);
        assert_eq!(rate.bytes_per_second(1000), 1_000_000);
        rate.note_app_limited(0);
        take(&mut rate, 2000, 6000);
        assert!(!rate.is_app_limited());
        assert_eq!(rate.bytes_per_second(1000), 1_000_000);
        take(&mut rate, 6000, 10_000);
        assert_eq!(rate.bytes_per_second(1000), 250_000);
    }

    #[test]
    fn a_burst_sent_slowly_is_measured_by_its_sending() {
        let mut rate = Rate::default();
        rate.begin(Instant(0));
        let mut record = Record { xmit: Instant(8000), ..Record::default() };
        rate.stamp(&mut record);
        // Something was delivered at 7 ms: the ACK side saw 2 ms, the sending side 8.
        record.delivered_at = 7000;
        let mut sample = RateSample::default();
        rate.delivered += 1;
        sample.delivered(&record);
        rate.take(&sample, Instant(9000), 1, Some(Span(1000)));
        assert_eq!(rate.bytes_per_second(1000), 125_000);
    }
}
