//! Text for people: aligned tables, and numbers with units.

use std::io::{ErrorKind, Write};

use serde::Serialize;

use crate::Failure;

/// Writes to standard output at once.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::PipeClosed),
        Err(error) => Err(Failure::of("writing to standard output", error)),
        Ok(()) => Ok(()),
    }
}

/// Writes a value as JSON.
pub(crate) fn print_json<T: Serialize + ?Sized>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::of("writing JSON", error))?;
    print(&format!("{text}\n"))
}

/// Which side of its column a cell stands on.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A table: headers with their alignment, then rows of as many cells.
pub(crate) fn table(headers: &[(String, Align)], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).chain([&headers[column].0]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headers.len()).map(width).collect();
    let titles: Vec<String> = headers.iter().map(|(title, _)| title.to_uppercase()).collect();
    let mut text = String::new();
    for row in std::iter::once(&titles).chain(rows) {
        let mut line = String::new();
        for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(headers) {
            match align {
                Align::Left => line += &format!("{cell:<width$}  "),
                Align::Right => line += &format!("{cell:>width$}  "),
            }
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three digits and the unit that suits: each of `units` is `step` of the one before.
fn scaled(value: f64, step: f64, units: [&str; 5]) -> String {
    let (mut value, mut unit) = (value, 0);
    // What would be rounded up to the next unit belongs there.
    while value >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let decimals = match value {
        v if unit == 0 && v.fract() == 0.0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{}", units[unit])
}

/// Events per second: `12.3 k/s`.
pub(crate) fn rate(per_second: f64) -> String {
    scaled(per_second, 1000.0, ["/s", " k/s", " M/s", " G/s", " T/s"])
}

/// `1.32 Gbit/s`.
pub(crate) fn bit_rate(bytes_per_second: f64) -> String {
    scaled(bytes_per_second * 8.0, 1000.0, [" bit/s", " kbit/s", " Mbit/s", " Gbit/s", " Tbit/s"])
}

/// `12.3 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, [" B", " KiB", " MiB", " GiB", " TiB"])
}

/// A duration of some nanoseconds: `85.0 µs`.
pub(crate) fn nanos(ns: u64) -> String {
    scaled(ns as f64, 1000.0, [" ns", " µs", " ms", " s", " ks"])
}

/// A duration of some seconds: `3 s`, `4 min 5 s`, `2 d 3 h`.
pub(crate) fn seconds(seconds: f64) -> String {
    let s = seconds as u64;
    match s {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86400 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0.0, 7.0, 0.4, 1234.0, 999_999.0].map(rate),
            ["0/s", "7/s", "0.40/s", "1.23 k/s", "1.00 M/s"]
        );
        assert_eq!([0.0, 125.0, 165e6].map(bit_rate), ["0 bit/s", "1.00 kbit/s", "1.32 Gbit/s"]);
        assert_eq!([0, 1023, 1024, 1 << 30].map(bytes), ["0 B", "1023 B", "1.00 KiB", "1.00 GiB"]);
        assert_eq!(
            [12, 85_000, 1_500_000, 2_000_000_000].map(nanos),
            ["12 ns", "85.0 µs", "1.50 ms", "2.00 s"]
        );
        let shown = [3.25, 245.0, 7500.0, 183_600.0].map(seconds);
        assert_eq!(shown, ["3.2 s", "4 min 5 s", "2 h 5 min", "2 d 3 h"]);
    }

    #[test]
    fn tables_are_aligned_and_end_without_blanks() {
        let headers =
            [("name".into(), Align::Left), ("packets".into(), Align::Right), ("mode".into(), Align::Left)];
        let row = |a: &str, b: &str, c: &str| vec![a.into(), b.into(), c.into()];
        let shown = table(&headers, &[row("µ", "1", "native"), row("eth1", "12,345,678", "")]);
        assert_eq!(shown, "NAME     PACKETS  MODE\nµ              1  native\neth1  12,345,678\n");
    }
}
