//! The second application's requests: few, at regular times, whatever else goes on.
//!
//! Used by a wire, from within the client's calls. Invariant: each request that left is answered, counted as lost, or
//! outstanding.

use std::sync::{Arc, Mutex, PoisonError};

use super::packet::number;
use crate::bench::latency::Latency;

/// Requests a second.
const RATE: u64 = 1000;
const GAP: u64 = 1_000_000_000 / RATE;
/// Requests that may be outstanding.
const OUTSTANDING: u64 = 1024;
/// An answer that takes longer, in ns, does not come any more.
const SILENCE: u64 = 2_000_000_000;

/// What was found while it was measured.
pub(crate) struct Second {
    /// From when a request was due to its response.
    pub(crate) latency: Latency,
    /// Requests that were not answered.
    pub(crate) lost: u64,
}

/// See the [module](self).
pub(super) struct Light {
    /// When the next is due, in ns of the client's clock; `None`: none is.
    due: Option<u64>,
    next: u64,
    oldest: u64,
    /// When requests were due, by number.
    times: Box<[u64]>,
    found: Arc<Mutex<Second>>,
}

impl Light {
    pub(super) fn new() -> (Self, Arc<Mutex<Second>>) {
        let found = Arc::new(Mutex::new(Second { latency: Latency::new(), lost: 0 }));
        let times = vec![0; OUTSTANDING as usize].into();
        (Light { due: None, next: 0, oldest: 0, times, found: found.clone() }, found)
    }

    fn found(&self, then: impl FnOnce(&mut Second)) {
        then(&mut self.found.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Requests begin at a time, with nothing found yet, or end.
    pub(super) fn measure(&mut self, begins: Option<u64>) {
        self.due = begins;
        if begins.is_some() {
            self.oldest = self.next;
            self.found(|second| *second = Second { latency: Latency::new(), lost: 0 });
        }
    }

    /// The request that is due, if one is: it leaves now.
    #[inline]
    pub(super) fn take_due(&mut self, now: u64) -> Option<u64> {
        let due = self.due.filter(|due| *due <= now && self.next - self.oldest < OUTSTANDING)?;
        self.due = Some(due + GAP);
        self.times[(self.next % OUTSTANDING) as usize] = due;
        self.next += 1;
        Some(self.next - 1)
    }

    /// The request that was taken last could not leave, and is due still.
    pub(super) fn put_back(&mut self) {
        self.next -= 1;
        self.due = Some(self.times[(self.next % OUTSTANDING) as usize]);
    }

    /// The response to the request with that id came.
    pub(super) fn answered(&mut self, id: u16, now: u64) -> Result<(), String> {
        let number = number(id, self.next);
        if !(self.oldest..self.next).contains(&number) {
            return Err(format!("request {id} to the second application was answered out of order"));
        }
        let (lost, due) = (number - self.oldest, self.times[(number % OUTSTANDING) as usize]);
        self.oldest = number + 1;
        self.found(|second| {
            second.lost += lost;
            second.latency.record(now.saturating_sub(due));
        });
        Ok(())
    }

    /// Whether requests are outstanding, with none to come. Those that are for too long are lost.
    pub(super) fn is_busy(&self) -> bool {
        self.due.is_none() && self.oldest < self.next
    }

    /// Gives up what is outstanding for too long.
    pub(super) fn give_up(&mut self, now: u64) {
        if self.oldest < self.next
            && now.saturating_sub(self.times[(self.oldest % OUTSTANDING) as usize]) > SILENCE
        {
            self.oldest += 1;
            self.found(|second| second.lost += 1);
        }
    }
}
