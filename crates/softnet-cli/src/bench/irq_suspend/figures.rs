//! Figures that the measurements have of either application.

use softnet::control::show::NapiRow;

use crate::bench::echo::{Load, Outcome};
use crate::bench::report::Sample;

/// `a / b`, or 0 if that is of nothing.
pub(super) fn share(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// Requests that were answered, of those that `load` offered, and their latency.
pub(super) fn answered(load: &Load, outcome: &Outcome) -> Sample {
    let offered = match *load {
        Load::Open { rate } => rate,
        Load::Closed { .. } => outcome.qps(),
    };
    let mut sample = vec![
        ("qps", outcome.qps()),
        ("offered_qps", offered),
        ("sustained_percent", 100.0 * share(outcome.qps(), offered)),
    ];
    sample.extend(outcome.latency.figures());
    sample
}

/// CPU time in ns, of all threads and of the pollers among them, that `requests` took in `seconds`.
pub(super) fn cpu((all, worker): (u64, u64), seconds: f64, requests: u64) -> [(&'static str, f64); 3] {
    let percent = |ns: u64| 100.0 * ns as f64 / 1e9 / seconds;
    [
        ("cpu_percent", percent(all)),
        ("worker_cpu_percent", percent(worker)),
        ("cpu_ns_per_request", share(seconds * 10e6 * percent(all), requests as f64)),
    ]
}

/// Requests that were lost, and that the client sent late.
pub(super) fn missed(outcome: &Outcome) -> [(&'static str, f64); 2] {
    let lost = (outcome.sent - outcome.received) as f64;
    [("lost_percent", 100.0 * share(lost, outcome.sent as f64)), ("late_percent", 100.0 * outcome.late)]
}

/// An instance while it was measured.
pub(super) struct Polled<'a> {
    pub(super) begin: &'a NapiRow,
    pub(super) end: &'a NapiRow,
    pub(super) seconds: f64,
}

impl Polled<'_> {
    /// How often a second something was counted.
    pub(super) fn rate(&self, of: fn(&NapiRow) -> u64) -> f64 {
        of(self.end).saturating_sub(of(self.begin)) as f64 / self.seconds
    }

    /// Doorbells, and what polls found.
    pub(super) fn polls(&self) -> [(&'static str, f64); 4] {
        let (polls, empty) = (self.rate(|n| n.polls), self.rate(|n| n.empty_polls));
        [
            ("doorbells_per_s", self.rate(|n| n.doorbells)),
            ("polls_per_s", polls),
            ("empty_polls_percent", 100.0 * share(empty, polls)),
            ("packets_per_poll", share(self.rate(|n| n.packets), polls - empty)),
        ]
    }

    /// What applications polled themselves, and how often an instance was suspended for them.
    pub(super) fn waits(&self) -> [(&'static str, f64); 2] {
        [
            ("busy_polls_per_s", self.rate(|n| n.busy_polls)),
            ("suspensions_per_s", self.rate(|n| n.suspensions)),
        ]
    }
}
