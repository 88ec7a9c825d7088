//! An axis of a plot: where its values stand, and its ticks. Made of finite values only.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// Linear or logarithmic; in the latter case, of values above 0.
pub(super) struct Axis {
    /// Ends, and ticks between them; as logarithms, if it is logarithmic.
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    log: bool,
}

impl Axis {
    /// An x axis: its ticks are the `values` themselves if they are few and apart. None without values.
    pub(super) fn x(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let (low, high) = widened(*values.first()?, *values.last()?, 0.03);
        let apart = values.windows(2).all(|pair| pair[1] - pair[0] >= (high - low) / 16.0);
        let ticks = if apart && values.len() <= 12 { values } else { ticks(low, high) };
        Some(Axis { low, high, ticks, log: false })
    }

    /// A y axis: a linear one has its 0, with some room above.
    pub(super) fn y(values: impl Iterator<Item = f64>, log: bool) -> Option<Self> {
        let ends = |seen: Option<(f64, f64)>, v: f64| {
            let (low, high) = seen.unwrap_or((v, v));
            Some((low.min(v), high.max(v)))
        };
        let (low, high) = values.fold(None, ends)?;
        if log {
            let (low, high) = widened(low.log10(), high.log10(), 0.05);
            return Some(Axis { low, high, ticks: log_ticks(low, high), log });
        }
        let (low, high) = widened(low.min(0.0), high.max(0.0), 0.0);
        let high = high + 0.05 * (high - low);
        Some(Axis { low, high, ticks: ticks(low, high), log })
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let value = if self.log { value.log10() } else { *value };
        // All values are between the ends, unless that is too far for a number.
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        let value = |tick: &f64| if self.log { 10f64.powf(*tick) } else { *tick };
        self.ticks.iter().map(value).collect()
    }

    fn range(&self) -> Range<f64> {
        if self.log { 10f64.powf(self.low)..10f64.powf(self.high) } else { self.low..self.high }
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        tick(*value)
    }
}

/// The range with a `share` of it added at both ends, and never empty.
fn widened(low: f64, high: f64, share: f64) -> (f64, f64) {
    if high > low {
        let more = share * (high - low);
        return (low - more, high + more);
    }
    let more = if low == 0.0 { 1.0 } else { 0.1 * low.abs() };
    (low - more, high + more)
}

/// Up to eight multiples of 1, 2 or 5 and a power of ten.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let power = 10f64.powf(((high - low) / 7.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| (high - low) / s <= 7.0);
    let Some(step) = step.filter(|s| s.is_normal()) else { return vec![] };
    let first = (low / step).ceil();
    // `+ 0.0`: no negative zero.
    (0..8).map(|i| (first + f64::from(i)) * step + 0.0).take_while(|t| *t <= high).collect()
}

/// Powers of ten within a range of exponents; with multiples if there are few.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let within = |multiples: &[f64]| -> Vec<f64> {
        let powers = low.floor() as i32..=high.ceil() as i32;
        let step = ((high - low) / 8.0).ceil().max(1.0) as usize;
        let all = powers.step_by(step).flat_map(|p| multiples.iter().map(move |m| f64::from(p) + m.log10()));
        all.filter(|t| (low..=high).contains(t)).collect()
    };
    match high - low {
        decades if decades > 3.0 => within(&[1.0]),
        decades if decades > 1.0 => within(&[1.0, 2.0, 5.0]),
        decades if decades > 0.2 => within(&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]),
        _ => ticks(10f64.powf(low), 10f64.powf(high)).into_iter().map(f64::log10).collect(),
    }
}

/// A tick's number: no more digits than it has.
fn tick(x: f64) -> String {
    if x.abs() >= 1e15 || (x != 0.0 && x.abs() < 1e-3) {
        return format!("{x:.2e}");
    }
    let sign = if x < 0.0 { "−" } else { "" };
    if x.abs() >= 1000.0 {
        return format!("{sign}{}", crate::text::grouped(x.abs().round() as u64));
    }
    let text = format!("{:.3}", x.abs());
    format!("{sign}{}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.key_points(plotters::coord::ranged1d::BoldPoints(10)).into_iter().map(tick).collect()
    }

    #[test]
    fn ticks_are_round_or_the_values_themselves() {
        let x = |values: &[f64]| labels(&Axis::x(values.iter().copied()).unwrap());
        assert_eq!(x(&[20.0, 60.0, 40.0, 80.0, 20.0]), ["20", "40", "60", "80"]);
        assert_eq!(x(&[16.0, 10_000.0, 1_000_000.0])[..3], ["0", "200,000", "400,000"]);
        assert_eq!(x(&[3.0]), ["3"]);
        assert!(Axis::x([].into_iter()).is_none());
        let y = |values: &[f64], log| labels(&Axis::y(values.iter().copied(), log).unwrap());
        assert_eq!(y(&[0.12, 0.31], false), ["0", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3"]);
        assert_eq!(y(&[-1.5, -0.5], false), ["−1.5", "−1", "−0.5", "0"]);
        assert_eq!(y(&[113.0, 7611.0], true), ["100", "200", "500", "1,000", "2,000", "5,000"]);
        assert_eq!(y(&[1.0, 1e5], true).len(), 6);
        assert_eq!(y(&[2.0, 9.0], true), ["2", "3", "4", "5", "6", "8"]);
        assert!(y(&[100.0, 110.0], true).len() > 3);
    }

    #[test]
    fn extremes_have_a_place() {
        for values in [[0.0, 0.0], [f64::MIN, f64::MAX], [5e-324, 1e-323], [f64::MAX, f64::MAX]] {
            for log in [false, true] {
                let usable = values.iter().copied().filter(|v| !log || *v > 0.0);
                let Some(axis) = Axis::y(usable, log) else { continue };
                assert!(axis.key_points(plotters::coord::ranged1d::BoldPoints(10)).len() <= 24);
                values.iter().for_each(|v| assert!(axis.map(v, (400, 10)) <= 400));
            }
        }
        let axis = Axis::y([1.0, 100.0].into_iter(), true).unwrap();
        let place = |v: f64| axis.map(&v, (1000, 0));
        assert!(place(1.0) > place(10.0) && place(10.0) > place(100.0));
        assert_eq!(place(1.0) - place(10.0), place(10.0) - place(100.0));
    }
}
