//! The client in an open loop: requests at a rate, whatever becomes of those before.
//!
//! A request goes by a connection that has none outstanding; while there is none it waits, and its
//! latency counts from when it was due. So a server that is too slow shows in the latency, and in
//! how many of the requests were answered.

use std::time::{Duration, Instant};

use super::client::{Client, Outcome, PATIENCE, SHIFT, Span, TURN};
use super::host::{Host, Set};
use crate::bench::latency::Latency;
use crate::bench::text;

impl<H: Host> Client<H> {
    /// Sends `rate` requests a second of `size` bytes for `warm_up` and then for `time`, which `look`
    /// frames; and waits for the last responses. Counted are responses to what was due within the time.
    pub(super) fn run_at(
        &mut self,
        size: usize,
        rate: f64,
        (warm_up, time): (Duration, Duration),
        look: &mut dyn FnMut(),
    ) -> Result<Outcome, String> {
        self.prepare(size);
        let begin = Instant::now();
        let now = || begin.elapsed().as_nanos() as u64;
        let gap = 1e9 / rate;
        let due = |k: u64| (k as f64 * gap) as u64;
        let (from, to) = (warm_up.as_nanos() as u64, (warm_up + time).as_nanos() as u64);
        let mut idle: Vec<usize> = (0..self.lanes.len()).rev().collect();
        let (mut next, mut outstanding, mut answered) = (0, 0, 0);
        let mut latency = Latency::new();
        let mut span = Span::default();
        let mut heard = now();
        while span.seconds.is_none() || outstanding > 0 {
            let at = span.pass(&now, (from, to), look);
            while span.seconds.is_none()
                && due(next) <= at
                && let Some(i) = idle.pop()
            {
                let lane = &mut self.lanes[i];
                (lane.at, lane.from) = (due(next), (lane.from + 13) % SHIFT);
                next += 1;
                outstanding += 1;
                self.send(i, size)?;
            }
            let pause = if idle.is_empty() || span.seconds.is_some() {
                TURN
            } else {
                TURN.min(Duration::from_nanos(due(next).saturating_sub(now())))
            };
            let mut ready = std::mem::take(&mut self.ready);
            self.set.wait(&mut ready, pause).map_err(text)?;
            let at = now();
            if !ready.is_empty() || outstanding == 0 {
                heard = at;
            } else if at - heard > PATIENCE.as_nanos() as u64 {
                return Err(format!("{outstanding} responses did not come"));
            }
            for token in &ready {
                let i = *token as usize;
                if !self.receive(i, size)? {
                    continue;
                }
                let since = std::mem::replace(&mut self.lanes[i].at, u64::MAX);
                if span.began.is_some_and(|began| since >= began) {
                    latency.record(now() - since);
                    answered += u64::from(span.seconds.is_none());
                }
                outstanding -= 1;
                idle.push(i);
            }
            self.ready = ready;
        }
        Ok(Outcome { answered, seconds: span.seconds.unwrap_or(0.0), latency })
    }
}
