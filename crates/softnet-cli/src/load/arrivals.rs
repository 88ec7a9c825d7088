//! When requests are due in an open loop. It reads no clock: times are ns of whatever clock the caller has.
//!
//! Each connection has arrivals of its own, independent of the others', as if each were another machine. What is
//! due does not depend on what was answered.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::dist::Dist;
use super::random::Random;

/// The arrivals of some connections.
pub(super) struct Arrivals {
    /// When the next request of each connection is due.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    /// Between two requests of one connection, in ns.
    gap: Dist,
    random: Random,
}

impl Arrivals {
    /// Of `connections` from `start` on, with `rate` requests a second together, and gaps of the kind of `gap`.
    ///
    /// # Errors
    /// There are no gaps of that kind with that mean.
    pub(super) fn new(
        start: u64,
        connections: usize,
        rate: f64,
        gap: &Dist,
        seed: u64,
    ) -> Result<Self, String> {
        let mean = connections as f64 * 1e9 / rate;
        let gap = gap.with_mean(mean)?;
        let mut random = Random::new(seed);
        // Not all at once: where gaps are all alike they would stay in step.
        let first = (0..connections).map(|c| Reverse((start + (random.share() * mean) as u64, c)));
        let next = first.collect();
        Ok(Arrivals { next, gap, random })
    }

    /// When the next request is due.
    pub(super) fn next_due(&self) -> u64 {
        self.next.peek().map_or(u64::MAX, |Reverse((due, _))| *due)
    }

    /// The next request that is due at `now` or was before, and its connection.
    pub(super) fn take(&mut self, now: u64) -> Option<(u64, usize)> {
        let mut top = self.next.peek_mut()?;
        let Reverse((due, connection)) = *top;
        if due > now {
            return None;
        }
        let gap = self.gap.quantile(self.random.share()).round() as u64;
        *top = Reverse((due.saturating_add(gap), connection));
        Some((due, connection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn arrivals(connections: usize, rate: f64, gap: &str) -> Arrivals {
        Arrivals::new(5 * SECOND, connections, rate, &gap.parse().unwrap(), 1).unwrap()
    }

    fn of(connections: usize, rate: f64, gap: &str, seconds: u64) -> Vec<(u64, usize)> {
        let mut arrivals = arrivals(connections, rate, gap);
        std::iter::from_fn(|| arrivals.take((5 + seconds) * SECOND)).collect()
    }

    #[test]
    fn the_rate_is_kept_in_order_and_by_all_connections() {
        for gap in ["exponential", "fb_ia", "fixed", "uniform"] {
            let taken = of(8, 20_000.0, gap, 10);
            assert!((198_000..202_000).contains(&taken.len()), "{gap}: {}", taken.len());
            assert!(taken.is_sorted_by_key(|(due, _)| *due));
            for connection in 0..8 {
                let n = taken.iter().filter(|(_, c)| *c == connection).count();
                assert!((24_000..26_000).contains(&n), "{gap}: connection {connection} has {n}");
            }
        }
    }

    #[test]
    fn nothing_is_due_before_its_time() {
        let mut arrivals = arrivals(1, 10.0, "fixed");
        let first = arrivals.next_due();
        assert!((5 * SECOND..5 * SECOND + SECOND / 10).contains(&first));
        assert_eq!(arrivals.take(first - 1), None);
        assert_eq!(arrivals.take(first), Some((first, 0)));
        assert_eq!(arrivals.take(first), None);
        assert_eq!(arrivals.next_due(), first + SECOND / 10);
        // A caller that is late finds all that was due meanwhile, each with the time at which it was.
        let late: Vec<_> =
            std::iter::from_fn(|| arrivals.take(first + SECOND)).map(|(due, _)| due - first).collect();
        assert_eq!(late, (1..=10).map(|i| i * SECOND / 10).collect::<Vec<_>>());
    }

    /// Variance of the gaps by the square of their mean: 1 for a Poisson process, however many connections make it
    /// up; 1 / (1 - 2 · 0.154971) for one connection of fb_ia; 0 for fixed.
    #[test]
    fn gaps_are_spread_as_they_should_be() {
        for (connections, gap, expected) in [
            (1, "exponential", 1.0),
            (16, "exponential", 1.0),
            (1, "fb_ia", 1.449),
            (1, "fixed", 0.0),
            (1, "uniform", 1.0 / 3.0),
        ] {
            let taken = of(connections, 10_000.0, gap, 20);
            let gaps: Vec<f64> = taken.windows(2).map(|pair| (pair[1].0 - pair[0].0) as f64).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            let spread = variance / (mean * mean);
            assert!((spread - expected).abs() < 0.05, "{connections} × {gap}: {spread}, not {expected}");
        }
    }

    #[test]
    fn what_cannot_have_a_mean_is_refused() {
        let of = |gap: &str| Arrivals::new(0, 1, 1.0, &gap.parse().unwrap(), 1).err();
        assert!(of("fb_key").unwrap().contains("fb_key"));
        assert_eq!(of("exponential"), None);
    }
}
