//! How every bench measures: all cases of a comparison in one process run, alternating, at least five rounds
//! after a warm-up; median, minimum and maximum. A round that other programs disturbed is repeated.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

/// What one measurement of one case gave: named figures.
pub(crate) type Sample = Vec<(&'static str, f64)>;

/// A row of a report: the case, its parameters, and what was measured.
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) params: Vec<(&'static str, Value)>,
    samples: Vec<Sample>,
    /// Said of the row as a whole, such as that its generator was the limit.
    pub(crate) notes: Vec<String>,
}

impl Row {
    pub(crate) fn new(case: impl Into<String>, params: Vec<(&'static str, Value)>) -> Self {
        Row { case: case.into(), params, samples: Vec::new(), notes: Vec::new() }
    }

    pub(crate) fn push(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    /// Names of the figures, in the order of the first sample.
    fn figures(&self) -> Vec<&'static str> {
        self.samples.first().map(|s| s.iter().map(|(name, _)| *name).collect()).unwrap_or_default()
    }

    /// All values of a figure, sorted.
    fn values(&self, figure: &str) -> Vec<f64> {
        let all = self.samples.iter().flatten();
        let mut values: Vec<f64> = all.filter(|(name, _)| *name == figure).map(|(_, v)| *v).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    /// Median of a figure; 0 if it was not measured.
    pub(crate) fn median(&self, figure: &str) -> f64 {
        median(&self.values(figure))
    }

    fn to_json(&self) -> Value {
        let mut row = Map::new();
        row.insert("case".into(), json!(self.case));
        for (key, value) in &self.params {
            row.insert((*key).into(), value.clone());
        }
        for name in self.figures() {
            let v = self.values(name);
            let figure = json!({
                "median": round(median(&v)),
                "min": round(v.first().copied().unwrap_or(0.0)),
                "max": round(v.last().copied().unwrap_or(0.0)),
                "n": v.len(),
            });
            row.insert(name.into(), figure);
        }
        if !self.notes.is_empty() {
            row.insert("notes".into(), json!(self.notes));
        }
        Value::Object(row)
    }
}

/// Four significant digits are more than these machines repeat.
fn round(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powi(3 - x.abs().log10().floor() as i32);
    (x * scale).round() / scale
}

fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// What a figure's median must keep to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    /// No less.
    AtLeast(f64),
    /// No more.
    AtMost(f64),
}

/// A bound that was stated, and how it came out.
struct Checked {
    what: String,
    measured: f64,
    bound: Bound,
}

impl Checked {
    fn holds(&self) -> bool {
        match self.bound {
            Bound::AtLeast(b) => self.measured >= b,
            Bound::AtMost(b) => self.measured <= b,
        }
    }

    fn to_json(&self) -> Value {
        let (kind, bound) = match self.bound {
            Bound::AtLeast(b) => ("at_least", b),
            Bound::AtMost(b) => ("at_most", b),
        };
        json!({ "what": self.what, kind: bound, "measured": round(self.measured), "holds": self.holds() })
    }
}

impl std::fmt::Display for Checked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sign, bound) = match self.bound {
            Bound::AtLeast(b) => ("≥", b),
            Bound::AtMost(b) => ("≤", b),
        };
        let verdict = if self.holds() { "ok    " } else { "MISSED" };
        write!(f, "{verdict}  {}: {} {sign} {}", self.what, number(self.measured), number(bound))
    }
}

/// A finished bench.
pub(crate) struct Report {
    checks: Vec<Checked>,
    pub(crate) bench: &'static str,
    pub(crate) rows: Vec<Row>,
    /// Rounds that were repeated because of foreign load.
    pub(crate) repeated: usize,
}

impl Report {
    /// The row of `case`.
    pub(crate) fn row(&self, case: &str) -> Option<&Row> {
        self.rows.iter().find(|r| r.case == case)
    }

    /// Median over the rounds of `figure` of the row `case`, divided by that of the row `by` in the same round: what
    /// slows or speeds a whole round does not show in it. 0 if one of them was not measured.
    pub(crate) fn ratio(&self, case: &str, by: &str, figure: &str) -> f64 {
        let value =
            |sample: &Sample| sample.iter().find(|(name, _)| *name == figure).map(|(_, value)| *value);
        let (Some(row), Some(by)) = (self.row(case), self.row(by)) else { return 0.0 };
        let pairs = row.samples.iter().zip(&by.samples);
        let mut ratios: Vec<f64> = pairs.filter_map(|(a, b)| Some(value(a)? / value(b)?)).collect();
        ratios.sort_by(f64::total_cmp);
        median(&ratios)
    }

    /// States that the median of `figure` of the row `case` keeps to `bound`.
    pub(crate) fn bound(&mut self, case: &str, figure: &str, bound: Bound) {
        let measured = self.row(case).map_or(0.0, |r| r.median(figure));
        self.bound_value(format!("{case} {figure}"), measured, bound);
    }

    /// States that `measured` keeps to `bound`.
    pub(crate) fn bound_value(&mut self, what: String, measured: f64, bound: Bound) {
        self.checks.push(Checked { what, measured, bound });
    }

    /// Whether every stated bound was kept.
    pub(crate) fn holds(&self) -> bool {
        self.checks.iter().all(Checked::holds)
    }

    /// The report as text: one JSON object, or an aligned table.
    pub(crate) fn render(&self, as_json: bool) -> String {
        if as_json {
            let rows: Vec<Value> = self.rows.iter().map(Row::to_json).collect();
            let report = json!({
                "bench": self.bench,
                "machine": machine(),
                "repeated_rounds": self.repeated,
                "rows": rows,
                "bounds": self.checks.iter().map(Checked::to_json).collect::<Vec<_>>(),
            });
            return format!("{report:#}\n");
        }
        let m = machine();
        let mut text = format!(
            "{} on {} ({} CPUs, Linux {})\n\n",
            self.bench,
            str_of(&m["cpu"]),
            m["cpus"],
            str_of(&m["kernel"])
        );
        let mut figures: Vec<&str> = Vec::new();
        let mut keys: Vec<&str> = Vec::new();
        for row in &self.rows {
            figures.extend(row.figures().iter().filter(|f| !figures.contains(f)).collect::<Vec<_>>());
            keys.extend(row.params.iter().map(|p| p.0).filter(|k| !keys.contains(k)).collect::<Vec<_>>());
        }
        // A parameter that never varies says nothing in a column.
        keys.retain(|k| {
            let value = |r: &Row| r.params.iter().find(|p| p.0 == *k).map(|p| p.1.clone());
            self.rows.iter().any(|r| value(r) != value(&self.rows[0]))
        });
        let mut table: Vec<Vec<String>> = vec![
            std::iter::once("case")
                .chain(keys.iter().copied())
                .chain(figures.iter().copied())
                .map(String::from)
                .collect(),
        ];
        for row in &self.rows {
            let mut line = vec![row.case.clone()];
            for key in &keys {
                let value = row.params.iter().find(|p| p.0 == *key).map(|p| &p.1);
                line.push(value.map(str_of).unwrap_or_default());
            }
            for figure in &figures {
                let v = row.values(figure);
                line.push(match v.len() {
                    0 => "–".into(),
                    1 => number(v[0]),
                    n => format!("{} ({}–{})", number(median(&v)), number(v[0]), number(v[n - 1])),
                });
            }
            if !row.notes.is_empty() {
                line.push(row.notes.join("; "));
            }
            table.push(line);
        }
        let columns = table.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |c: usize| table.iter().filter_map(|l| l.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for line in &table {
            let mut out = String::new();
            for (c, cell) in line.iter().enumerate() {
                let pad = " ".repeat(widths[c] - cell.chars().count());
                let right = c > keys.len() && c <= keys.len() + figures.len();
                out += &if right { format!("{pad}{cell}  ") } else { format!("{cell}{pad}  ") };
            }
            text += out.trim_end();
            text.push('\n');
        }
        text +=
            &format!("\nmedian (min–max) of the rounds; {} disturbed rounds were repeated\n", self.repeated);
        for check in &self.checks {
            text += &format!("{check}\n");
        }
        text
    }
}

fn str_of(v: &Value) -> String {
    v.as_str().map(String::from).unwrap_or_else(|| v.to_string())
}

fn number(x: f64) -> String {
    match x.abs() {
        a if a >= 1000.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        a if a >= 1.0 || a == 0.0 => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}

/// What the figures were measured on.
pub(crate) fn machine() -> Value {
    let read = |p: &str| std::fs::read_to_string(p).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|l| l.starts_with(name));
        line.and_then(|l| l.split(':').nth(1)).map(|v| v.trim().to_string()).unwrap_or_default()
    };
    let memory = read("/proc/meminfo");
    let kib = memory.lines().find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    json!({
        "cpu": field("model name"),
        "mhz": field("cpu MHz").parse::<f64>().unwrap_or(0.0),
        "cpus": crate::bench::cpus().len(),
        "memory_mib": kib.and_then(|k| k.trim().parse::<u64>().ok()).unwrap_or(0) / 1024,
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "softnet": env!("CARGO_PKG_VERSION"),
        "debug_build": cfg!(debug_assertions),
    })
}

/// Tells whether somebody else ran on this CPU: time the hypervisor took (steal), and times this thread was
/// put off it though it wanted to go on.
pub(crate) struct Disturbance {
    steal: u64,
    cpu: usize,
    switches: i64,
    waited: u64,
    since: Instant,
}

impl Disturbance {
    /// Starts to watch the calling thread on `cpu`.
    pub(crate) fn watch(cpu: usize) -> Self {
        let (switches, waited) = preempted();
        Disturbance { steal: steal_ticks(cpu), cpu, switches, waited, since: Instant::now() }
    }

    /// Whether more than two per cent of the time since went elsewhere.
    pub(crate) fn disturbed(&self) -> bool {
        let elapsed = self.since.elapsed();
        let bound = elapsed / 50;
        let steal = Duration::from_millis(10 * (steal_ticks(self.cpu).saturating_sub(self.steal)));
        let (switches, waited) = preempted();
        // One tick of steal is the resolution of the counter.
        let stolen = steal > bound.max(Duration::from_millis(10));
        stolen || (switches > self.switches && Duration::from_nanos(waited - self.waited) > bound)
    }
}

fn steal_ticks(cpu: usize) -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let name = format!("cpu{cpu} ");
    let line = stat.lines().find(|l| l.starts_with(&name));
    line.and_then(|l| l.split_whitespace().nth(8)?.parse().ok()).unwrap_or(0)
}

/// Involuntary switches of this thread, and ns it waited for a CPU while runnable.
fn preempted() -> (i64, u64) {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("nonvoluntary_ctxt_switches:"));
    let sched = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = sched.split_whitespace().nth(1).and_then(|w| w.parse().ok()).unwrap_or(0);
    (line.and_then(|l| l.trim().parse().ok()).unwrap_or(0), waited)
}

/// One case of a comparison.
pub(crate) struct Case<'a> {
    pub(crate) row: Row,
    pub(crate) measure: Box<dyn FnMut() -> Result<Sample, String> + 'a>,
}

/// Runs `cases` in turn: one warm-up round, then `rounds` that count. A disturbed measurement is repeated, of each
/// case at most twice as often as there are rounds; what is disturbed then is noted in its row. Progress goes to standard error.
pub(crate) fn alternate(
    bench: &'static str,
    cpu: usize,
    rounds: usize,
    mut cases: Vec<Case<'_>>,
) -> Result<Report, String> {
    let mut repeated = 0;
    // By case: repeats left, and disturbed measurements that count all the same.
    let mut left = vec![2 * rounds; cases.len()];
    let mut disturbed = vec![0; cases.len()];
    let tty = std::io::stderr().is_terminal();
    for round in 0..=rounds {
        for (i, case) in cases.iter_mut().enumerate() {
            if tty {
                eprint!("\r\x1b[K{bench}: round {round}/{rounds}: {} ", case.row.case);
            }
            loop {
                let watch = Disturbance::watch(cpu);
                let sample = (case.measure)().map_err(|e| format!("{}: {e}", case.row.case))?;
                let spoilt = watch.disturbed() && round > 0;
                if spoilt && left[i] > 0 {
                    left[i] -= 1;
                    repeated += 1;
                    continue;
                }
                if round > 0 {
                    disturbed[i] += usize::from(spoilt);
                    case.row.push(sample);
                }
                break;
            }
        }
    }
    if tty {
        eprint!("\r\x1b[K");
    }
    for (case, n) in cases.iter_mut().zip(disturbed).filter(|(_, n)| *n > 0) {
        case.row.notes.push(format!("{n} of {rounds} rounds disturbed by other programs"));
    }
    Ok(Report { bench, rows: cases.into_iter().map(|c| c.row).collect(), repeated, checks: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_rounding() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
        assert_eq!(round(123456.0), 123500.0);
        assert_eq!(round(0.00123456), 0.001235);
    }

    #[test]
    fn alternates_and_skips_the_warm_up() {
        let order = std::cell::RefCell::new(vec![]);
        let case = |name: &'static str| Case {
            row: Row::new(name, vec![]),
            measure: {
                let order = &order;
                Box::new(move || {
                    order.borrow_mut().push(name);
                    Ok(vec![("x", if name == "a" { 3.0 } else { 4.0 })])
                })
            },
        };
        let cases = vec![case("a"), case("b")];
        let report = alternate("t", 0, 2, cases).unwrap();
        assert_eq!(report.row("a").unwrap().values("x").len(), 2);
        // Those that were repeated because somebody else ran count once.
        let mut order = order.borrow().clone();
        order.dedup();
        assert_eq!(order, ["a", "b"].repeat(3));
        assert_eq!(report.ratio("a", "b", "x"), 0.75);
        assert_eq!(report.ratio("a", "c", "x"), 0.0);
    }
}
