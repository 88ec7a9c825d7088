//! What a run counts.

use softnet_core::softnet_data::Counter;

use super::wire::{Op, Verdict};
use crate::bench::latency::Latency;

/// A request that was sent so much after it was due, in ns, was late.
pub(super) const LATE: u64 = 100_000;

/// How far a thread is, for others to see. Written by that thread.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) answered: Counter,
    pub(super) lost: Counter,
}

/// What happened to the requests that were due while it measured, whenever they were answered.
pub(crate) struct Tally {
    pub(crate) sent: u64,
    /// Sent more than 100 µs after they were due.
    pub(crate) sent_late: u64,
    /// Due and not sent, since as many were outstanding as can be.
    pub(crate) not_sent: u64,
    /// Not answered within the time-out.
    pub(crate) lost: u64,
    /// Reads that the server had no value for.
    pub(crate) misses: u64,
    /// Answered with something else than what was stored.
    pub(crate) wrong: u64,
    /// One of these, in words.
    pub(super) wrong_example: Option<String>,
    /// Responses that came while it measured, to whichever requests.
    pub(crate) in_time: u64,
    /// Datagrams that came when their request had been given up, or was answered already; at any time of the run.
    pub(crate) late: u64,
    /// Datagrams that are no responses; at any time.
    pub(crate) strange: u64,
    /// Requests that the socket did not take; at any time. They count as sent, and as lost.
    pub(crate) refused: u64,
    /// From when a request was due to its response: of reads, of updates.
    pub(crate) reads: Latency,
    pub(crate) updates: Latency,
}

impl Tally {
    pub(super) fn new() -> Self {
        Tally {
            sent: 0,
            sent_late: 0,
            not_sent: 0,
            lost: 0,
            misses: 0,
            wrong: 0,
            wrong_example: None,
            in_time: 0,
            late: 0,
            strange: 0,
            refused: 0,
            reads: Latency::new(),
            updates: Latency::new(),
        }
    }

    /// A request was sent, `delay` after it was due.
    pub(super) fn sent(&mut self, delay: u64) {
        self.sent += 1;
        self.sent_late += u64::from(delay > LATE);
    }

    pub(super) fn answered(&mut self, op: Op, verdict: &Verdict, latency: u64) {
        match verdict {
            Verdict::Right => {}
            Verdict::Miss => self.misses += 1,
            Verdict::Wrong => self.wrong += 1,
        }
        match op {
            Op::Get => self.reads.record(latency),
            Op::Set => self.updates.record(latency),
        }
    }

    /// Responses to the requests that were due while it measured.
    pub(crate) fn received(&self) -> u64 {
        self.reads.count() + self.updates.count()
    }

    /// Adds what another thread counted.
    pub(super) fn add(&mut self, other: Tally) {
        self.sent += other.sent;
        self.sent_late += other.sent_late;
        self.not_sent += other.not_sent;
        self.lost += other.lost;
        self.misses += other.misses;
        self.wrong += other.wrong;
        self.wrong_example = self.wrong_example.take().or(other.wrong_example);
        self.in_time += other.in_time;
        self.late += other.late;
        self.strange += other.strange;
        self.refused += other.refused;
        self.reads.add(&other.reads);
        self.updates.add(&other.updates);
    }
}
