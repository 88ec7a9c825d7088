//! The text format of OpenMetrics 1.0, written family by family.
//!
//! Called by `families`, which knows what is told. Invariant: what is written is a valid exposition
//! if names are: each family is opened once, its samples follow it, counters end in `_total`, units
//! in the family's name, labels are escaped, and the text ends with `# EOF`.

use std::fmt::Write;

/// What a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It is 1, and its labels tell.
    Info,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Info => "info",
        }
    }

    /// What the samples' name has behind the family's.
    const fn suffix(self) -> &'static str {
        match self {
            Kind::Counter => "_total",
            Kind::Gauge => "",
            Kind::Info => "_info",
        }
    }
}

/// Units that names end in.
const UNITS: [&str; 2] = ["seconds", "bytes"];

/// A text under way.
#[derive(Default)]
pub(super) struct Exposition {
    text: String,
}

/// The family that samples are written to.
pub(super) struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
    kind: Kind,
}

impl Exposition {
    /// Opens the family `name`, without the suffix of its samples.
    pub(super) fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        let text = &mut self.text;
        // A `String` takes all that is written to it.
        let _ = writeln!(text, "# TYPE {name} {}", kind.name());
        let unit = name.rsplit('_').next().filter(|last| UNITS.contains(last));
        if let Some(unit) = unit {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        let _ = write!(text, "# HELP {name} ");
        escape(text, help);
        text.push('\n');
        Family { text, name, kind }
    }

    /// The whole.
    pub(super) fn finish(mut self) -> String {
        self.text += "# EOF\n";
        self.text
    }
}

impl Family<'_> {
    fn open(&mut self, labels: &[(&str, &str)]) {
        *self.text += self.name;
        *self.text += self.kind.suffix();
        for (at, (label, value)) in labels.iter().enumerate() {
            self.text.push(if at == 0 { '{' } else { ',' });
            *self.text += label;
            *self.text += "=\"";
            escape(self.text, value);
            self.text.push('"');
        }
        *self.text += if labels.is_empty() { " " } else { "} " };
    }

    /// A sample with these labels.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: u64) {
        self.open(labels);
        let _ = writeln!(self.text, "{value}");
    }

    /// A sample in seconds, of so many ns: every digit, so that rates of small times are right.
    pub(super) fn nanos(&mut self, labels: &[(&str, &str)], ns: u64) {
        self.open(labels);
        let _ = writeln!(self.text, "{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    }
}

/// As strings of labels and help are written. (`\r` and the like stand for themselves.)
fn escape(text: &mut String, value: &str) {
    for char in value.chars() {
        match char {
            '\\' => *text += "\\\\",
            '"' => *text += "\\\"",
            '\n' => *text += "\\n",
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_written_as_the_format_has_them() {
        let mut out = Exposition::default();
        out.family("x_polls", Kind::Counter, "Polls.").sample(&[], 7);
        let mut times = out.family("x_cpu_seconds", Kind::Counter, "A \"quoted\" \\ help\nof two lines.");
        times.nanos(&[("thread", "a\"b\\c\nd"), ("cpu", "0")], 12_000_000_034);
        out.family("x", Kind::Info, "Labels tell.").sample(&[("name", "é")], 1);
        out.family("x_held_bytes", Kind::Gauge, "Empty.");
        let expected = r#"# TYPE x_polls counter
# HELP x_polls Polls.
x_polls_total 7
# TYPE x_cpu_seconds counter
# UNIT x_cpu_seconds seconds
# HELP x_cpu_seconds A \"quoted\" \\ help\nof two lines.
x_cpu_seconds_total{thread="a\"b\\c\nd",cpu="0"} 12.000000034
# TYPE x info
# HELP x Labels tell.
x_info{name="é"} 1
# TYPE x_held_bytes gauge
# UNIT x_held_bytes bytes
# HELP x_held_bytes Empty.
# EOF
"#;
        assert_eq!(out.finish(), expected);
    }
}
