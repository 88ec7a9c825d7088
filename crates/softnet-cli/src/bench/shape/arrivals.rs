//! What a receiver saw over time, and what follows for a rate and a burst. Pure: times and counts come in.
//!
//! A counter can't be read at an instant: the reading thread may be put off its CPU before or after. So each reading has
//! the times before and after it, and the bound of a token bucket is held against the longest time that may lie between
//! two of them: a burst may be found too small, never too large.

use std::time::Duration;

/// A counter of bytes, read at some moment between two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// Just before, since some start.
    pub(super) from: Duration,
    /// Just after.
    pub(super) to: Duration,
    pub(super) bytes: u64,
}

impl Reading {
    fn at(&self) -> f64 {
        (self.from + self.to).as_secs_f64() / 2.0
    }

    /// Bytes a second between `earlier` and this one.
    fn rate_since(&self, earlier: &Reading) -> f64 {
        let seconds = self.at() - earlier.at();
        if seconds > 0.0 { (self.bytes - earlier.bytes) as f64 / seconds } else { 0.0 }
    }
}

/// Readings in the order in which they were made, of a counter that only grows.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Vec<Reading>);

impl Arrivals {
    pub(super) fn push(&mut self, reading: Reading) {
        self.0.push(reading);
    }

    /// Bytes a second over all of it.
    pub(super) fn rate(&self) -> f64 {
        match &self.0[..] {
            [first, .., last] => last.rate_since(first),
            _ => 0.0,
        }
    }

    /// Bytes a second in the slowest and in the fastest of the windows that lie one after the other, each `length` long
    /// or as little longer as the readings allow; `None` if there is not one.
    pub(super) fn windows(&self, length: Duration) -> Option<(f64, f64)> {
        let mut begin = self.0.first()?;
        let mut found: Option<(f64, f64)> = None;
        for reading in &self.0 {
            if reading.from < begin.from + length {
                continue;
            }
            let rate = reading.rate_since(begin);
            let (slowest, fastest) = found.unwrap_or((rate, rate));
            found = Some((slowest.min(rate), fastest.max(rate)));
            begin = reading;
        }
        found
    }

    /// The most bytes that arrived, between any two readings, beyond what `rate` bytes a second bring in that time: what
    /// the burst of a token bucket must cover.
    pub(super) fn excess(&self, rate: f64) -> f64 {
        let mut most = 0.0f64;
        let mut least = f64::INFINITY;
        for reading in &self.0 {
            let bytes = reading.bytes as f64;
            most = most.max(bytes - rate * reading.to.as_secs_f64() - least);
            least = least.min(bytes - rate * reading.from.as_secs_f64());
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Bytes at a time in ms, read in no time.
    fn arrivals(seen: &[(u32, u64)]) -> Arrivals {
        Arrivals(
            seen.iter().map(|(at, bytes)| Reading { from: MS * *at, to: MS * *at, bytes: *bytes }).collect(),
        )
    }

    #[test]
    fn rates_over_all_and_by_window() {
        let seen = arrivals(&[(0, 1000), (50, 1060), (100, 1100), (160, 1150), (210, 1320), (250, 1330)]);
        assert_eq!(seen.rate(), 330.0 / 0.25);
        // 0 to 100, and 100 to 210: the last 40 ms are no window.
        let rounded = |(slowest, fastest): (f64, f64)| (slowest.round(), fastest.round());
        assert_eq!(seen.windows(100 * MS).map(rounded), Some((1000.0, 2000.0)));
        assert_eq!(seen.windows(300 * MS), None);
        assert_eq!((Arrivals::default().rate(), arrivals(&[(5, 7)]).rate()), (0.0, 0.0));
        assert_eq!(Arrivals::default().windows(MS), None);
    }

    #[test]
    fn excess_is_over_any_stretch_and_never_too_much() {
        // 1000 bytes a second; between 100 and 102 ms 50 bytes came, of which 2 were due.
        let seen = arrivals(&[(0, 0), (100, 100), (101, 130), (102, 150), (200, 160)]);
        assert_eq!(seen.excess(1000.0).round(), 48.0);
        assert_eq!(arrivals(&[(0, 0), (100, 50)]).excess(1000.0), 0.0);
        // They may have come before the last reading, which took 30 ms, was over.
        let late = Reading { from: 101 * MS, to: 131 * MS, bytes: 150 };
        let mut seen = arrivals(&[(0, 0), (100, 100)]);
        seen.push(late);
        assert_eq!(seen.excess(1000.0).round(), 19.0);
    }
}
