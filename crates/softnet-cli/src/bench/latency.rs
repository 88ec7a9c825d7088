//! Latencies as a histogram (HDR: three digits at every scale), and the figures that every bench gives of them. For the
//! threads of a bench: each records into its own, and the figures are of their sum.

use hdrhistogram::Histogram;

use super::report::Sample;

/// Longest latency told apart, in ns: an hour. What is longer counts as this.
const LONGEST: u64 = 3_600_000_000_000;
/// Digits that are kept of each value.
const DIGITS: u8 = 3;

/// Recorded latencies. About 270 KiB, all of it allocated at once: recording allocates nothing.
pub(crate) struct Latency(Histogram<u64>);

impl Latency {
    pub(crate) fn new() -> Self {
        Latency(Histogram::new_with_max(LONGEST, DIGITS).expect("these bounds are valid"))
    }

    /// Records a latency of `ns`. In an open-loop run it counts from when the request should have been sent: counted
    /// from when it was, it leaves out the wait of all that a stall held up.
    pub(crate) fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds what `other` recorded.
    pub(crate) fn add(&mut self, other: &Latency) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// How many latencies were recorded.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Mean, percentiles and maximum, in µs; all 0 if nothing was recorded.
    pub(crate) fn figures(&self) -> Sample {
        let us = |quantile: f64| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        vec![
            ("avg_us", self.0.mean() / 1000.0),
            ("p50_us", us(0.5)),
            ("p90_us", us(0.9)),
            ("p95_us", us(0.95)),
            ("p99_us", us(0.99)),
            ("p999_us", us(0.999)),
            ("max_us", us(1.0)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether every figure is within the histogram's resolution of what is expected.
    fn assert_figures(latency: &Latency, expected: [f64; 7]) {
        for ((name, value), expected) in latency.figures().into_iter().zip(expected) {
            assert!((value - expected).abs() <= expected * 0.001, "{name}: {value} instead of {expected}");
        }
    }

    #[test]
    fn percentiles_of_a_uniform_distribution() {
        let mut latency = Latency::new();
        (1..=100_000).for_each(|us| latency.record(us * 1000));
        assert_eq!(latency.count(), 100_000);
        assert_figures(&latency, [50_000.5, 50_000.0, 90_000.0, 95_000.0, 99_000.0, 99_900.0, 100_000.0]);
    }

    #[test]
    fn one_outlier_in_a_thousand_shows_in_the_maximum_alone() {
        let mut latency = Latency::new();
        (0..999).for_each(|_| latency.record(20_000));
        latency.record(5_000_000_000);
        assert_figures(&latency, [5019.98, 20.0, 20.0, 20.0, 20.0, 20.0, 5_000_000.0]);
    }

    #[test]
    fn histograms_add_up() {
        let (mut sum, mut other) = (Latency::new(), Latency::new());
        (0..50).for_each(|_| sum.record(1_000));
        (0..50).for_each(|_| other.record(9_000));
        sum.add(&other);
        assert_eq!((sum.count(), other.count()), (100, 50));
        assert_figures(&sum, [5.0, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0]);
    }

    #[test]
    fn extremes_are_kept() {
        let mut latency = Latency::new();
        assert_figures(&latency, [0.0; 7]);
        latency.record(0);
        assert_figures(&latency, [0.0; 7]);
        latency.record(u64::MAX);
        assert_eq!(latency.count(), 2);
        let longest = LONGEST as f64 / 1000.0;
        assert!((latency.figures()[6].1 - longest).abs() <= longest * 0.001);
    }
}
