//! Distributions of sizes and of the time between requests, with the names that mutilate gave them.
//!
//! Each is given by its quantiles: a number between 0 and 1 becomes a value. The `fb_…` ones are fitted to what was
//! seen of a pool of memcached servers (Atikoglu et al., "Workload analysis of a large-scale key-value store",
//! SIGMETRICS 2012, tables 4 and 5).

use std::fmt;
use std::str::FromStr;

/// A distribution of non-negative values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dist {
    shape: Shape,
    /// What it was called.
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Fixed(f64),
    /// Evenly from 0 to this.
    Uniform(f64),
    /// So many a unit.
    Exponential(f64),
    /// Generalised Pareto.
    Pareto {
        loc: f64,
        scale: f64,
        shape: f64,
    },
    /// Generalised extreme value.
    Gev {
        loc: f64,
        scale: f64,
        shape: f64,
    },
    /// Pareto above 14, and shares of their own for the values below.
    FbValue,
}

/// How often values of 0, 1, 2, … bytes were seen.
const SMALL: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837,
    0.08989, 0.00092, 0.00326, 0.01980,
];
const FB_KEY: Shape = Shape::Gev { loc: 30.7984, scale: 8.20449, shape: 0.078688 };
const FB_LARGE_VALUE: Shape = Shape::Pareto { loc: 15.0, scale: 214.476, shape: 0.348238 };
const FB_IA: Shape = Shape::Pareto { loc: 0.0, scale: 16.0292, shape: 0.154971 };

impl Shape {
    fn quantile(self, u: f64) -> f64 {
        match self {
            Shape::Fixed(value) => value,
            Shape::Uniform(most) => most * u,
            Shape::Exponential(lambda) => -(1.0 - u).ln() / lambda,
            Shape::Pareto { loc, scale, shape } => loc + scale * power(1.0 - u, shape),
            Shape::Gev { loc, scale, shape } => loc + scale * power(-u.ln(), shape),
            Shape::FbValue => {
                let mut below = 0.0;
                for (value, share) in SMALL.iter().enumerate() {
                    below += share;
                    if u < below {
                        return value as f64;
                    }
                }
                FB_LARGE_VALUE.quantile((u - below) / (1.0 - below))
            }
        }
    }
}

/// `(x^-k - 1) / k`, and what that comes to where `k` is 0.
fn power(x: f64, k: f64) -> f64 {
    if k == 0.0 { -x.ln() } else { (x.powf(-k) - 1.0) / k }
}

impl Dist {
    /// The value that a share `u` of all (between 0 and 1) does not exceed; no less than 0.
    pub(crate) fn quantile(&self, u: f64) -> f64 {
        self.shape.quantile(u).max(0.0)
    }

    /// The distribution of the same kind whose mean is `mean`.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn with_mean(&self, mean: f64) -> Result<Dist, String> {
        let shape = match self.shape {
            Shape::Fixed(_) => Shape::Fixed(mean),
            Shape::Uniform(_) => Shape::Uniform(2.0 * mean),
            Shape::Exponential(_) => Shape::Exponential(1.0 / mean),
            Shape::Pareto { loc, shape, .. } if shape < 1.0 && loc < mean => {
                Shape::Pareto { loc, scale: (1.0 - shape) * (mean - loc), shape }
            }
            _ => return Err(format!("{self} is not for times between requests")),
        };
        Ok(Dist { shape, name: self.name.clone() })
    }
}

impl fmt::Display for Dist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// `30`, `fixed:30`, `uniform:60`, `exponential:0.1`, `pareto:LOC,SCALE,SHAPE`, `gev:LOC,SCALE,SHAPE`, `fb_key`,
/// `fb_value`, `fb_ia`; where the mean is given otherwise, the numbers may be left out (`uniform`, `exponential`,
/// `fixed`).
impl FromStr for Dist {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, numbers) = text.split_once(':').unwrap_or((text, ""));
        let numbers: Vec<f64> = numbers
            .split(',')
            .filter(|number| !number.is_empty())
            .map(|number| number.trim().parse().ok().filter(|number: &f64| number.is_finite()))
            .collect::<Option<_>>()
            .ok_or_else(|| format!("{text:?}: expected numbers after the colon"))?;
        let shape = match (kind, &numbers[..]) {
            ("fb_key", []) => FB_KEY,
            ("fb_value", []) => Shape::FbValue,
            ("fb_ia", []) => FB_IA,
            ("fixed", []) => Shape::Fixed(1.0),
            ("fixed", &[value]) if value >= 0.0 => Shape::Fixed(value),
            ("uniform", []) => Shape::Uniform(2.0),
            ("uniform", &[most]) if most >= 0.0 => Shape::Uniform(most),
            ("exponential", []) => Shape::Exponential(1.0),
            ("exponential", &[lambda]) if lambda > 0.0 => Shape::Exponential(lambda),
            ("pareto", &[loc, scale, shape]) if scale >= 0.0 => Shape::Pareto { loc, scale, shape },
            ("gev", &[loc, scale, shape]) if scale >= 0.0 => Shape::Gev { loc, scale, shape },
            (number, []) => match number.parse::<f64>() {
                Ok(value) if value.is_finite() && value >= 0.0 => Shape::Fixed(value),
                _ => return Err(format!("{text:?}: {EXPECTED}")),
            },
            _ => return Err(format!("{text:?}: {EXPECTED}")),
        };
        Ok(Dist { shape, name: text.into() })
    }
}

const EXPECTED: &str = "expected a number, fixed:VALUE, uniform:MOST, exponential:LAMBDA, pareto:LOC,SCALE,SHAPE, \
                        gev:LOC,SCALE,SHAPE, fb_key, fb_value or fb_ia";

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;

    fn dist(text: &str) -> Dist {
        text.parse().unwrap()
    }

    /// Mean, variance and median of many values.
    fn moments(dist: &Dist) -> [f64; 3] {
        let mut random = Random::new(1);
        let mut values: Vec<f64> = (0..400_000).map(|_| dist.quantile(random.share())).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        values.sort_by(f64::total_cmp);
        [mean, variance, values[values.len() / 2]]
    }

    fn assert_close(what: &str, found: f64, expected: f64, tolerance: f64) {
        assert!((found - expected).abs() <= tolerance * expected.abs(), "{what}: {found}, not {expected}");
    }

    #[test]
    fn moments_are_those_of_the_formulas() {
        // Mean and variance of the generalised Pareto: loc + s/(1-k), s²/((1-k)²(1-2k)).
        let (s, k) = (16.0292, 0.154971);
        let pareto = [s / (1.0 - k), s * s / ((1.0f64 - k).powi(2) * (1.0 - 2.0 * k))];
        // Those of the extreme value: loc + s(Γ(1-k) - 1)/k, s²(Γ(1-2k) - Γ(1-k)²)/k².
        let gev = [36.2231, 139.451];
        for (name, [mean, variance]) in [
            ("fixed:3", [3.0, 0.0]),
            ("uniform:60", [30.0, 300.0]),
            ("exponential:0.1", [10.0, 100.0]),
            ("fb_ia", pareto),
            ("fb_key", gev),
        ] {
            let [found, spread, _] = moments(&dist(name));
            assert_close(name, found, mean, 0.01);
            assert_close(name, spread, variance, 0.04);
        }
    }

    #[test]
    fn quantiles_are_those_of_the_formulas() {
        for (name, u, expected) in [
            ("exponential:1", 0.5, std::f64::consts::LN_2),
            ("pareto:1,2,0.5", 0.75, 1.0 + 2.0 * (2.0 - 1.0) / 0.5),
            ("pareto:0,2,0", 0.5, 2.0 * std::f64::consts::LN_2),
            ("gev:5,2,0.5", (-1.0f64).exp(), 5.0),
            ("gev:5,2,0", (-1.0f64).exp(), 5.0),
            ("fb_key", (-1.0f64).exp(), 30.7984),
            ("42", 0.9, 42.0),
        ] {
            assert_close(name, dist(name).quantile(u), expected, 1e-9);
        }
        assert_eq!(dist("gev:0,1,0.1").quantile(0.01), 0.0, "sizes are not negative");
    }

    #[test]
    fn facebooks_values_are_short_and_some_are_long() {
        let value = dist("fb_value");
        let mut random = Random::new(2);
        let n = 400_000;
        let mut values: Vec<f64> = (0..n).map(|_| value.quantile(random.share())).collect();
        for (size, share) in SMALL.iter().enumerate() {
            let found = values.iter().filter(|v| **v == size as f64).count() as f64 / f64::from(n);
            assert!((found - share).abs() < 0.002, "{size}: {found}, not {share}");
        }
        let small: f64 = SMALL.iter().sum();
        assert_close("shares", small, 0.44155, 1e-9);
        // The median of those above 14: 15 + 214.476 (2^0.348238 - 1) / 0.348238 = 183.2.
        values.retain(|v| *v >= 15.0);
        values.sort_by(f64::total_cmp);
        assert_close("large", values.len() as f64 / f64::from(n), 1.0 - small, 0.01);
        assert_close("median", values[values.len() / 2], 183.2, 0.02);
    }

    #[test]
    fn a_mean_can_be_given() {
        for name in ["fixed", "uniform", "exponential", "fb_ia", "7", "pareto:100,1,0.2"] {
            let scaled = dist(name).with_mean(500.0).unwrap();
            assert_close(name, moments(&scaled)[0], 500.0, 0.01);
            assert_eq!(scaled.to_string(), name);
        }
        for name in ["fb_key", "fb_value", "pareto:0,1,1.5", "pareto:900,1,0.1"] {
            assert!(dist(name).with_mean(500.0).is_err(), "{name}");
        }
    }

    #[test]
    fn what_is_no_distribution_is_refused() {
        for text in [
            "",
            "fb",
            "-1",
            "nan",
            "fixed:-1",
            "pareto:1,2",
            "uniform:x",
            "exponential:0",
            "gev:1,2,3,4",
            "30,1",
        ] {
            assert!(text.parse::<Dist>().is_err(), "{text}");
        }
    }
}
