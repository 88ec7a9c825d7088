//! A row of a report, and the numbers in it. Its samples are in the order of the rounds, those of all rows alike.

use std::fmt::Write;

use serde_json::Value;

/// What one measurement of one case gave: named figures, each with its unit in its name.
pub(crate) type Sample = Vec<(&'static str, f64)>;

/// A row of a report: the case, its parameters, and what was measured.
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) params: Vec<(&'static str, Value)>,
    samples: Vec<Sample>,
    /// Said of the row as a whole, such as that its generator was the limit.
    pub(crate) notes: Vec<String>,
    /// By figure: its median divided by that of the same row in an earlier run.
    pub(super) to_baseline: Vec<(&'static str, f64)>,
}

/// A figure over all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// Rounds.
    pub(crate) n: usize,
}

impl Row {
    pub(crate) fn new(case: impl Into<String>, params: Vec<(&'static str, Value)>) -> Self {
        Row { case: case.into(), params, samples: Vec::new(), notes: Vec::new(), to_baseline: Vec::new() }
    }

    pub(crate) fn push(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    /// The parameter `key`.
    pub(crate) fn param(&self, key: &str) -> Option<&Value> {
        self.params.iter().find(|p| p.0 == key).map(|p| &p.1)
    }

    /// Names of the figures, in the order of the first sample.
    pub(super) fn figures(&self) -> Vec<&'static str> {
        self.samples.first().map(|s| s.iter().map(|(name, _)| *name).collect()).unwrap_or_default()
    }

    /// A figure over all rounds, if it was measured.
    pub(crate) fn summary(&self, figure: &str) -> Option<Summary> {
        let mut values: Vec<f64> = self.samples.iter().filter_map(|s| value(s, figure)).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        Some(Summary { median: median(&values), min, max, n: values.len() })
    }

    /// Median of a figure; 0 if it was not measured.
    pub(crate) fn median(&self, figure: &str) -> f64 {
        self.summary(figure).map_or(0.0, |s| s.median)
    }

    /// Median of the ratios to `by`, round by round; 0 if there are none.
    pub(crate) fn ratio(&self, by: &Row, figure: &str) -> f64 {
        let pairs = self.samples.iter().zip(&by.samples);
        let ratios = pairs.filter_map(|(a, b)| Some(value(a, figure)? / value(b, figure)?));
        let mut ratios: Vec<f64> = ratios.filter(|r| r.is_finite()).collect();
        ratios.sort_by(f64::total_cmp);
        median(&ratios)
    }

    /// The case with those of its parameters that are among `keys`.
    pub(crate) fn label(&self, keys: &[&str]) -> String {
        let wanted = self.params.iter().filter(|(key, _)| keys.contains(key));
        label(&self.case, wanted.map(|(key, value)| (*key, value)))
    }
}

/// A figure of a measurement, if it was measured.
pub(crate) fn value(sample: &Sample, figure: &str) -> Option<f64> {
    sample.iter().find(|(name, _)| *name == figure).map(|(_, value)| *value)
}

/// A case with parameters: `suspend20 at 60 %`, `softnet at MAX, threads 2`.
pub(super) fn label<'a>(case: &str, params: impl Iterator<Item = (&'a str, &'a Value)>) -> String {
    let mut text = case.to_string();
    for (key, value) in params {
        // Writing into a string does not fail.
        let _ = match key {
            "load" if value.is_number() => write!(text, " at {value} %"),
            "load" => write!(text, " at {}", plain(value)),
            _ => write!(text, ", {key} {}", plain(value)),
        };
    }
    text
}

/// Parameters by key, in the order of their first appearance: those that differ between rows, and those that do not,
/// with their value.
pub(super) fn parameters<'a>(
    rows: impl Iterator<Item = &'a Row> + Clone,
) -> (Vec<&'static str>, Vec<(&'static str, Value)>) {
    let mut keys: Vec<&'static str> = Vec::new();
    for (key, _) in rows.clone().flat_map(|row| &row.params) {
        if !keys.contains(key) {
            keys.push(key);
        }
    }
    let (mut varying, mut common) = (Vec::new(), Vec::new());
    for key in keys {
        let first = rows.clone().next().and_then(|row| row.param(key));
        match first.filter(|_| rows.clone().all(|row| row.param(key) == first)) {
            Some(value) => common.push((key, value.clone())),
            None => varying.push(key),
        }
    }
    (varying, common)
}

/// Keys of the parameters in which rows of the same case differ: with these, [`Row::label`] names each row.
pub(crate) fn distinguishing<'a>(rows: impl Iterator<Item = &'a Row> + Clone) -> Vec<&'static str> {
    let (mut keys, _) = parameters(rows.clone());
    let differ = |a: &Row, b: &Row, key| a.case == b.case && a.param(key) != b.param(key);
    keys.retain(|key| rows.clone().any(|a| rows.clone().any(|b| differ(a, b, key))));
    keys
}

/// Median of sorted values; 0 of none.
pub(super) fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Four significant digits are more than these machines repeat.
pub(super) fn round(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powi(3 - x.abs().log10().floor() as i32);
    let rounded = (x * scale).round() / scale;
    if rounded.is_finite() { rounded } else { x }
}

/// A number with the digits that mean something.
pub(super) fn number(x: f64) -> String {
    match x.abs() {
        a if a >= 1000.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        a if a >= 1.0 || a == 0.0 => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}

/// A parameter's value without quotes.
pub(super) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn medians_and_rounding() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
        assert_eq!(round(123456.0), 123500.0);
        assert_eq!(round(0.00123456), 0.001235);
        assert_eq!([f64::NAN, f64::INFINITY, 0.0].map(round), [0.0; 3]);
        assert_eq!(round(5e-324), 5e-324);
    }

    #[test]
    fn a_figure_over_the_rounds() {
        let mut row = Row::new("a", vec![]);
        assert_eq!((row.summary("x"), row.median("x")), (None, 0.0));
        [4.0, 1.0, 2.0].iter().for_each(|x| row.push(vec![("x", *x), ("y", 0.0)]));
        assert_eq!(row.summary("x"), Some(Summary { median: 2.0, min: 1.0, max: 4.0, n: 3 }));
        assert_eq!(row.figures(), ["x", "y"]);
    }

    #[test]
    fn rows_are_named_by_what_tells_them_apart() {
        let row =
            |load, threads| Row::new("a", vec![("size", json!(64)), ("load", load), ("threads", threads)]);
        let mut rows =
            [row(json!(60), json!(1)), row(json!("MAX"), json!(2)), Row::new("a", vec![("size", json!(64))])];
        let (varying, common) = parameters(rows.iter());
        assert_eq!(varying, ["load", "threads"]);
        assert_eq!(common, [("size", json!(64))]);
        let labels = |rows: &[Row; 3]| rows.each_ref().map(|row| row.label(&distinguishing(rows.iter())));
        assert_eq!(labels(&rows), ["a at 60 %, threads 1", "a at MAX, threads 2", "a"]);
        // A case that has one row is named by itself.
        rows[1].case = "b".into();
        assert_eq!(labels(&rows), ["a at 60 %, threads 1", "b at MAX, threads 2", "a"]);
        rows[2].case = "c".into();
        assert_eq!(labels(&rows), ["a", "b", "c"]);
        assert_eq!(parameters(rows[..1].iter()).0, [""; 0]);
    }
}
