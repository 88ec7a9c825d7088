//! How every bench measures: all cases of a comparison in one process run, alternating, at least five rounds
//! after a warm-up; median, minimum and maximum. A round that other programs disturbed is repeated.

use std::io::IsTerminal;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::report::{Report, Row, Sample, distinguishing};

/// Tells whether anything else ran on this CPU: time the hypervisor took (steal), and times this thread was
/// put off it though it wanted to go on.
struct Disturbance {
    steal: u64,
    cpu: usize,
    switches: i64,
    waited: u64,
    since: Instant,
}

impl Disturbance {
    /// Starts to watch the calling thread on `cpu`.
    fn watch(cpu: usize) -> Self {
        let (switches, waited) = preempted();
        Disturbance { steal: steal_ticks(cpu), cpu, switches, waited, since: Instant::now() }
    }

    /// Whether more than two per cent of the time since went elsewhere.
    fn disturbed(&self) -> bool {
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

/// Tells on a terminal how far a bench is, in one line that is written over.
struct Progress {
    bench: &'static str,
    rounds: usize,
    started: Instant,
    /// Measurements that count or warm up: those there will be, and those made.
    all: usize,
    made: usize,
    terminal: bool,
}

impl Progress {
    fn show(&self, round: usize, case: &str) {
        if self.terminal {
            let left = remaining(self.started.elapsed(), self.made, self.all);
            eprint!("\r\x1b[K{}: {}", self.bench, progress(round, self.rounds, case, left));
        }
    }

    fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

/// What is left of `all` measurements when `made` of them took so long; unknown before the first.
fn remaining(elapsed: Duration, made: usize, all: usize) -> Option<Duration> {
    let each = elapsed.as_secs_f64() / made as f64;
    Duration::try_from_secs_f64(each * all.saturating_sub(made) as f64).ok()
}

/// `round 2/5: suspend20 at 60 % (about 3 min left)`.
fn progress(round: usize, rounds: usize, case: &str, left: Option<Duration>) -> String {
    let round = if round == 0 { "warm-up".into() } else { format!("round {round}/{rounds}") };
    let left = match left.map(|left| left.as_secs_f64()) {
        None => String::new(),
        Some(s) if s < 55.0 => format!(" (about {} s left)", 5 * (s / 5.0).ceil() as u64),
        Some(s) => format!(" (about {} min left)", (s / 60.0).ceil() as u64),
    };
    format!("{round}: {case}{left}")
}

/// Those of `all` rows that `--case` asked for: all, if it did not. Refuses one that there is not.
pub(in crate::bench) fn wanted(asked: &[String], all: &[&'static str]) -> Result<Vec<&'static str>, String> {
    if let Some(unknown) = asked.iter().find(|case| !all.contains(&case.as_str())) {
        return Err(format!("--case {unknown}: there are {}", all.join(", ")));
    }
    let is_wanted = |case: &&&str| asked.is_empty() || asked.iter().any(|asked| asked == **case);
    Ok(all.iter().filter(is_wanted).copied().collect())
}

/// Runs `cases` in turn: one warm-up round, then `rounds` that count. A measurement during which others used `cpu`, on
/// which the calling thread runs, is repeated, of each case at most twice as often as there are rounds; what is disturbed
/// then is noted in its row. Without a `cpu` nothing is watched: for a bench whose own threads compete. Progress goes to
/// standard error.
pub(crate) fn alternate(
    bench: &'static str,
    cpu: Option<usize>,
    count: usize,
    cases: Vec<Case<'_>>,
) -> Result<Report, String> {
    rounds(bench, cpu, 0..=count, cases)
}

/// The same for cases that need no warm-up, if the first round is 1: those that count are numbered from 1 on.
pub(crate) fn rounds(
    bench: &'static str,
    cpu: Option<usize>,
    numbers: RangeInclusive<usize>,
    mut cases: Vec<Case<'_>>,
) -> Result<Report, String> {
    let rounds = *numbers.end();
    let mut repeated = 0;
    // By case: repeats left, and disturbed measurements that count all the same.
    let mut left = vec![2 * rounds; cases.len()];
    let mut disturbed = vec![0; cases.len()];
    let keys = distinguishing(cases.iter().map(|case| &case.row));
    let terminal = std::io::stderr().is_terminal();
    let all = numbers.clone().count() * cases.len();
    let mut progress = Progress { bench, rounds, started: Instant::now(), all, made: 0, terminal };
    for round in numbers {
        for (i, case) in cases.iter_mut().enumerate() {
            let label = case.row.label(&keys);
            progress.show(round, &label);
            loop {
                let watch = cpu.map(Disturbance::watch);
                let sample = (case.measure)().map_err(|e| format!("{label}: {e}"))?;
                let spoilt = round > 0 && watch.is_some_and(|watch| watch.disturbed());
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
            progress.made += 1;
        }
    }
    progress.clear();
    for (case, n) in cases.iter_mut().zip(disturbed).filter(|(_, n)| *n > 0) {
        case.row.notes.push(format!("{n} of {rounds} rounds disturbed by other programs"));
    }
    let rows = cases.into_iter().map(|c| c.row).collect();
    Ok(Report::new(bench, rows, cpu.map(|_| repeated)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        let report = alternate("t", Some(0), 2, cases).unwrap();
        let rounds = |case| report.row(case).unwrap().summary("x").unwrap().n;
        assert_eq!((rounds("a"), rounds("b")), (2, 2));
        assert!(report.repeated.is_some());
        // Those that were repeated because of other programs count once.
        let mut order = order.borrow().clone();
        order.dedup();
        assert_eq!(order, ["a", "b"].repeat(3));
        assert_eq!(report.ratio("a", "b", "x"), 0.75);
    }

    #[test]
    fn without_a_cpu_nothing_is_watched() {
        let mut measured = 0;
        // Blocks and is switched away from: no matter.
        let measure = || {
            measured += 1;
            std::thread::yield_now();
            Ok(vec![("x", f64::from(measured))])
        };
        let cases = vec![Case { row: Row::new("a", vec![]), measure: Box::new(measure) }];
        let report = alternate("t", None, 3, cases).unwrap();
        assert_eq!(report.repeated, None);
        assert_eq!(report.rows[0].median("x"), 3.0);
        assert!(report.render(false, false).contains("they were not watched for other programs"));
        assert_eq!(measured, 4);
    }

    #[test]
    fn an_error_names_the_case_and_its_parameters() {
        let case = |load: i32| Case {
            row: Row::new("a", vec![("size", json!(64)), ("load", json!(load))]),
            measure: Box::new(move || if load == 40 { Err("lost".into()) } else { Ok(vec![("x", 1.0)]) }),
        };
        let error = alternate("t", None, 1, vec![case(20), case(40)]).err().unwrap();
        assert_eq!(error, "a at 40 %: lost");
    }

    #[test]
    fn progress_estimates_what_is_left() {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        assert_eq!(remaining(Duration::ZERO, 0, 10), None);
        assert_eq!(remaining(minutes(4), 8, 10), Some(minutes(1)));
        assert_eq!(remaining(minutes(4), 10, 10), Some(Duration::ZERO));
        let line = progress(2, 5, "suspend20 at 60 %", Some(Duration::from_secs(170)));
        assert_eq!(line, "round 2/5: suspend20 at 60 % (about 3 min left)");
        assert_eq!(progress(1, 5, "a", Some(Duration::from_secs(12))), "round 1/5: a (about 15 s left)");
        assert_eq!(progress(0, 5, "a", None), "warm-up: a");
    }
}
