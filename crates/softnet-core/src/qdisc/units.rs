//! `tc`'s units: what `10mbit`, `15kb` and `5ms` mean, and how such values are written.
//!
//! Everything `tc` reads is read here, in any case, with decimals. What is written can be read again and is exactly
//! the same value; `tc` itself rounds. (In `tc`, rates count in steps of 1000, sizes in steps of 1024, and `kbps` is
//! kilobytes.)

use std::fmt;
use std::str::FromStr;

use softnet_netem::Chance;

/// A text that is not a value of its unit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, got `{got}`")]
pub struct UnitError {
    expected: &'static str,
    got: String,
}

/// Bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u32);

/// Nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

/// A unit's names, and its value as numerator and denominator.
type Unit = (&'static [&'static str], u128, u128);

const RATES: &[Unit] = &[
    (&["", "bit"], 1, 8),
    (&["kbit"], 1_000, 8),
    (&["mbit"], 1_000_000, 8),
    (&["gbit"], 1_000_000_000, 8),
    (&["tbit"], 1_000_000_000_000, 8),
    (&["kibit"], 1 << 10, 8),
    (&["mibit"], 1 << 20, 8),
    (&["gibit"], 1 << 30, 8),
    (&["tibit"], 1 << 40, 8),
    (&["bps"], 1, 1),
    (&["kbps"], 1_000, 1),
    (&["mbps"], 1_000_000, 1),
    (&["gbps"], 1_000_000_000, 1),
    (&["tbps"], 1_000_000_000_000, 1),
    (&["kibps"], 1 << 10, 1),
    (&["mibps"], 1 << 20, 1),
    (&["gibps"], 1 << 30, 1),
    (&["tibps"], 1 << 40, 1),
];

const SIZES: &[Unit] = &[
    (&["", "b"], 1, 1),
    (&["k", "kb"], 1 << 10, 1),
    (&["m", "mb"], 1 << 20, 1),
    (&["g", "gb"], 1 << 30, 1),
    (&["kbit"], 1 << 10, 8),
    (&["mbit"], 1 << 20, 8),
    (&["gbit"], 1 << 30, 8),
];

const TIMES: &[Unit] = &[
    (&["", "us", "usec", "usecs"], 1_000, 1),
    (&["ns", "nsec", "nsecs"], 1, 1),
    (&["ms", "msec", "msecs"], 1_000_000, 1),
    (&["s", "sec", "secs"], 1_000_000_000, 1),
];

/// `text` in the units of `units`, fractions of the smallest unit cut off. `None` if it is none, or above `u64`.
fn parse(text: &str, units: &[Unit]) -> Option<u64> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, name) = text.split_at(unit_at);
    let (_, times, by) =
        units.iter().find(|(names, ..)| names.iter().any(|n| n.eq_ignore_ascii_case(name)))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // More decimals than that make no difference to any unit here, and might not fit.
    let fraction = fraction.get(..fraction.len().min(12))?;
    let digits: u128 = [whole, fraction].concat().parse().ok()?;
    let value = digits.checked_mul(*times)? / by / 10u128.pow(fraction.len() as u32);
    value.try_into().ok()
}

/// A probability in percent, with or without the sign.
pub(super) fn chance(text: &str) -> Result<Chance, UnitError> {
    // A millionth of a percent is the smallest unit.
    let percent: &[Unit] = &[(&["", "%"], 1_000_000, 1)];
    let parts = parse(text, percent).and_then(|parts| u32::try_from(parts).ok());
    let parts = parts.filter(|parts| *parts <= Chance::ALWAYS.0);
    parts.map(Chance).ok_or_else(|| UnitError { expected: "a percentage up to 100%", got: text.into() })
}

/// A number without a unit.
pub(super) fn number<T: FromStr>(text: &str) -> Result<T, UnitError> {
    text.parse().map_err(|_| UnitError { expected: "a number", got: text.into() })
}

/// Writes `value` in the largest of `units` that divides it.
fn print(f: &mut fmt::Formatter<'_>, value: u128, units: &[(u128, &str)]) -> fmt::Result {
    let (step, name) = units
        .iter()
        .find(|(step, _)| value >= *step && value.is_multiple_of(*step))
        .unwrap_or(&units[units.len() - 1]);
    write!(f, "{}{name}", value / step)
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let refused = || UnitError { expected: "a rate, such as 10mbit or 1.5gbit", got: text.into() };
        parse(text, RATES).map(Rate).ok_or_else(refused)
    }
}

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let refused = || UnitError { expected: "a size below 4gb, such as 1600 or 15kb", got: text.into() };
        parse(text, SIZES).and_then(|bytes| bytes.try_into().ok()).map(Size).ok_or_else(refused)
    }
}

impl FromStr for Time {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let refused = || UnitError { expected: "a time, such as 50ms or 200us", got: text.into() };
        parse(text, TIMES).map(Time).ok_or_else(refused)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = [
            (1_000_000_000_000, "Tbit"),
            (1_000_000_000, "Gbit"),
            (1_000_000, "Mbit"),
            (1000, "Kbit"),
            (1, "bit"),
        ];
        print(f, u128::from(self.0) * 8, &steps)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, self.0.into(), &[(1 << 20, "Mb"), (1 << 10, "Kb"), (1, "b")])
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, self.0.into(), &[(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us"), (1, "ns")])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_tc_reads() {
        let rates = [
            ("10mbit", 1_250_000),
            ("10Mbit", 1_250_000),
            ("8000", 1000),
            ("1bps", 1),
            ("1.5gbit", 187_500_000),
            ("1kibit", 128),
            ("2KBps", 2000),
            ("100.25kbit", 12531),
            ("0.0000000000001tbit", 0),
        ];
        for (text, value) in rates {
            assert_eq!(text.parse(), Ok(Rate(value)), "{text}");
        }
        let sizes = [("1600", 1600), ("15kb", 15360), ("15K", 15360), ("1.5mb", 1572864), ("8kbit", 1024)];
        for (text, value) in sizes {
            assert_eq!(text.parse(), Ok(Size(value)), "{text}");
        }
        let times =
            [("50ms", 50_000_000), ("200", 200_000), ("1.5s", 1_500_000_000), ("7ns", 7), ("3usec", 3000)];
        for (text, value) in times {
            assert_eq!(text.parse(), Ok(Time(value)), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest_and_says_what_it_expected() {
        for text in
            ["", "mbit", "10", "x", "10 mbit", "-1mbit", "1.2.3kbit", ".", "10parsec", "99999999999tbit"]
        {
            if text != "10" {
                let why = text.parse::<Rate>().unwrap_err().to_string();
                assert_eq!(why, format!("expected a rate, such as 10mbit or 1.5gbit, got `{text}`"));
            }
        }
        assert!("4gb".parse::<Size>().is_err() && "4294967295".parse::<Size>().is_ok());
        assert!("10mbit".parse::<Time>().is_err() && "1µs".parse::<Time>().is_err());
        assert!("340282366920938463463374607431768211455s".parse::<Time>().is_err());
    }

    #[test]
    fn writes_as_tc_does() {
        let text = |rate| Rate(rate).to_string();
        assert_eq!([1_250_000, 187_500, 1000, 1].map(text), ["10Mbit", "1500Kbit", "8Kbit", "8bit"]);
        assert_eq!([15360, 1600, 1 << 20, 0].map(|s| Size(s).to_string()), ["15Kb", "1600b", "1Mb", "0b"]);
        assert_eq!([50_000_000, 1_500_000, 7].map(|t| Time(t).to_string()), ["50ms", "1500us", "7ns"]);
    }

    proptest! {
        #[test]
        fn what_is_written_can_be_read_again(n: u64, size: u32, shift in 0..64) {
            let n = n >> shift;
            prop_assert_eq!(Rate(n).to_string().parse(), Ok(Rate(n)));
            prop_assert_eq!(Size(size).to_string().parse(), Ok(Size(size)));
            prop_assert_eq!(Time(n).to_string().parse(), Ok(Time(n)));
        }

        #[test]
        fn no_text_panics(text in "[0-9.]{0,50}[a-zA-Zµ]{0,6}") {
            let _ = (text.parse::<Rate>(), text.parse::<Size>(), text.parse::<Time>());
        }
    }
}
