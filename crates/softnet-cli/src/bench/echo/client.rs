//! The client: sends requests, closed or open loop, and takes the time until they are answered.
//!
//! It spins on the calling thread's CPU, and does there what other machines and their network interfaces would do.
//! Requests are numbered in the order in which they leave, and belong to lanes in turn: number modulo how many lanes there
//! are. Those of a lane are answered in their order; so a response that skips numbers says which requests were lost.
//! Invariant: every request that left is answered or counted as lost, or outstanding.

use std::time::{Duration, Instant};

use crate::bench::latency::Latency;
use crate::bench::templates::Random;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Load {
    /// Each flow sends its next request when the last one was answered, at once.
    Closed {
        /// How many flows there are, all of which start together.
        flows: usize,
    },
    /// At random times (a Poisson process), whatever becomes of those before. Latency counts from when a request was due.
    Open {
        /// Requests a second.
        rate: f64,
    },
}

/// What a run found. Requests are those that were sent while it measured, whenever they were answered.
pub(crate) struct Outcome {
    /// Requests sent, or refused by the wire.
    pub(crate) sent: u64,
    /// Of these, answered.
    pub(crate) received: u64,
    /// Of these, lost.
    pub(crate) lost: u64,
    /// Responses that came while it measured, whenever their requests were sent.
    pub(crate) answered: u64,
    /// How long it measured.
    pub(crate) elapsed: Duration,
    /// From when a request was due (open) or sent (closed) to its response.
    pub(crate) latency: Latency,
    /// Share of requests, 0 to 1, that left more than 10 µs after they were due: then the client is a limit.
    pub(crate) late: f64,
}

impl Outcome {
    /// Requests answered a second.
    pub(crate) fn qps(&self) -> f64 {
        self.answered as f64 / self.elapsed.as_secs_f64()
    }
}

/// What became of requests that were to leave; the others stay with the client.
pub(in crate::bench) struct Sent {
    /// They left, the first ones.
    pub(in crate::bench) left: u64,
    /// They left as well, but found no place at the other end: the last ones. Their numbers are given to others.
    pub(in crate::bench) lost: u64,
}

/// The way to the server and back.
pub(in crate::bench) trait Wire {
    /// `n` requests are to leave at `now` (ns of the client's clock), with the numbers from `first` on.
    fn send(&mut self, first: u64, n: u64, now: u64) -> Result<Sent, String>;
    /// Appends the numbers of some requests whose responses came, in that order. The error says what came instead.
    fn receive(&mut self, now: u64, answered: &mut Vec<u64>) -> Result<(), String>;
    /// Measuring begins at `now`, or (`None`) has ended.
    fn measure(&mut self, _begins: Option<u64>) {}
    /// Whether requests are outstanding that are not the client's but the wire's own.
    fn is_busy(&self) -> bool {
        false
    }
}

/// Requests that may be outstanding: no server holds as many.
const OUTSTANDING: u64 = 1 << 15;
/// [`Client::silence`] unless a test says otherwise: longer than any time-out of a poller that is measured, and than a busy
/// machine keeps a thread waiting.
const SILENCE: Duration = Duration::from_secs(2);
/// Later than this after it was due, a request is late.
const LATE: u64 = 10_000;

/// See the [module](self).
pub(crate) struct Client {
    wire: Box<dyn Wire>,
    epoch: Instant,
    random: Random,
    /// Number of the next request to leave.
    next: u64,
    /// Number of the oldest request that is outstanding.
    oldest: u64,
    /// By lane, the number of its oldest request that is outstanding.
    lanes: Box<[u64]>,
    /// Whether requests from `oldest` on have come to their end, by number.
    ended: Box<[bool]>,
    /// Requests that are due and have not left.
    due: u64,
    /// When the requests from `oldest` on were due, by number; those that have not left included.
    times: Box<[u64]>,
    /// When the last response came.
    heard: u64,
    answers: Vec<u64>,
    /// With no response for so long, what is outstanding is lost.
    pub(in crate::bench) silence: Duration,
}

/// What is being measured.
struct Window {
    since: u64,
    /// Number of the first request that counts.
    first: u64,
    /// And of the first that does not any more.
    end: u64,
    refused: u64,
    received: u64,
    /// Left, and was not answered.
    missed: u64,
    answered: u64,
    late: u64,
    latency: Latency,
}

impl Client {
    /// With requests in one lane.
    pub(super) fn new(wire: Box<dyn Wire>) -> Self {
        Self::with_lanes(wire, 1)
    }

    /// With requests in so many lanes.
    pub(in crate::bench) fn with_lanes(wire: Box<dyn Wire>, lanes: usize) -> Self {
        Client {
            wire,
            epoch: Instant::now(),
            random: Random::new(1),
            next: 0,
            oldest: 0,
            lanes: (0..lanes as u64).collect(),
            ended: vec![false; 2 * OUTSTANDING as usize].into(),
            due: 0,
            times: vec![0; 2 * OUTSTANDING as usize].into(),
            heard: 0,
            answers: Vec::with_capacity(1024),
            silence: SILENCE,
        }
    }

    /// Applies `load` for `warm_up`, and then for `measure` while it measures. Calls `edge` when measuring begins and when
    /// it ends, to look at counters. Returns when all requests are answered or lost.
    ///
    /// # Errors
    /// A response that is not what it should be, or not in order.
    pub(crate) fn run(
        &mut self,
        load: &Load,
        warm_up: Duration,
        measure: Duration,
        edge: &mut dyn FnMut(),
    ) -> Result<Outcome, String> {
        // What an earlier run that failed left behind is none of this one's.
        self.forget();
        let begin = self.now();
        let mut at = begin;
        if let Load::Closed { flows } = *load {
            self.add_due(begin, flows as u64);
        }
        let mut window: Option<Window> = None;
        self.heard = begin;
        loop {
            let mut now = self.now();
            match &mut window {
                None if now - begin >= warm_up.as_nanos() as u64 => {
                    edge();
                    // Nothing was due while it looked.
                    let looked = now;
                    now = self.now();
                    at += now - looked;
                    self.wire.measure(Some(now));
                    window = Some(Window::new(now, self.next + self.due));
                }
                Some(open) if now - open.since >= measure.as_nanos() as u64 => break,
                _ => {}
            }
            if let Load::Open { rate } = *load {
                while at <= now && self.due + self.next - self.oldest < OUTSTANDING {
                    self.add_due(at, 1);
                    at += self.gap(rate);
                }
            }
            let lost = self.send(now, &mut window)?;
            if let Load::Closed { .. } = load {
                // A flow tries again until its request has left.
                self.add_due(now, lost);
            }
            let done = self.receive(now, &mut window)?;
            if let Load::Closed { .. } = load
                && done > 0
            {
                self.add_due(self.heard, done);
            }
        }
        let mut window = window.ok_or("measured nothing")?;
        let elapsed = Duration::from_nanos(self.now() - window.since);
        edge();
        self.wire.measure(None);
        let answered = window.answered;
        // Those that have not left are not lost.
        (window.end, self.due) = (self.next, 0);
        let mut window = Some(window);
        while self.oldest < self.next || self.wire.is_busy() {
            let now = self.now();
            self.receive(now, &mut window)?;
        }
        let window = window.ok_or("measured nothing")?;
        let sent = window.end - window.first + window.refused;
        let (received, lost) = (window.received, window.missed + window.refused);
        if sent != received + lost || received != window.latency.count() {
            return Err(format!("{sent} requests were sent, {received} answered and {lost} lost"));
        }
        Ok(Outcome {
            sent,
            received,
            lost,
            answered,
            elapsed,
            latency: window.latency,
            late: window.late as f64 / sent.max(1) as f64,
        })
    }

    /// Requests that have left, or are due, are not counted any more.
    fn forget(&mut self) {
        (self.oldest, self.due) = (self.next, 0);
        self.wire.measure(None);
        self.ended.fill(false);
        let (next, n) = (self.next, self.lanes.len() as u64);
        for (lane, oldest) in self.lanes.iter_mut().enumerate() {
            // The next number that is the lane's.
            *oldest = next + (lane as u64 + n - next % n) % n;
        }
    }

    /// The requests of `lane` that are outstanding up to number `until` are lost. Returns how many those were.
    fn miss(&mut self, lane: usize, until: u64, window: &mut Option<Window>) -> u64 {
        let mut missed = 0;
        while self.lanes[lane] < until {
            let number = self.lanes[lane];
            if let Some(window) = window {
                window.missed += u64::from((window.first..window.end).contains(&number));
            }
            self.end(lane);
            missed += 1;
        }
        missed
    }

    /// The oldest request of `lane` has come to its end.
    fn end(&mut self, lane: usize) {
        let place = self.place(self.lanes[lane]);
        self.ended[place] = true;
        self.lanes[lane] += self.lanes.len() as u64;
        while self.oldest < self.next && {
            let place = self.place(self.oldest);
            std::mem::take(&mut self.ended[place])
        } {
            self.oldest += 1;
        }
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Time to the next request of a Poisson process, in ns.
    fn gap(&mut self, rate: f64) -> u64 {
        // 53 bits, and never 0.
        let uniform = ((self.random.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        (-uniform.ln() * 1e9 / rate) as u64
    }

    fn place(&self, number: u64) -> usize {
        number as usize & (self.times.len() - 1)
    }

    /// `n` more requests are due at `at`.
    fn add_due(&mut self, at: u64, n: u64) {
        for i in 0..n {
            self.times[self.place(self.next + self.due + i)] = at;
        }
        self.due += n;
    }

    /// Sends what is due. Returns how many requests were lost at once.
    fn send(&mut self, now: u64, window: &mut Option<Window>) -> Result<u64, String> {
        if self.due == 0 {
            return Ok(0);
        }
        let Sent { left, lost } = self.wire.send(self.next, self.due, now)?;
        if let Some(window) = window {
            window.refused += lost;
            for number in self.next..self.next + left {
                window.late += u64::from(now.saturating_sub(self.times[self.place(number)]) > LATE);
            }
        }
        if self.oldest == self.next {
            // The silence begins with the first request.
            self.heard = now;
        }
        self.next += left;
        self.due -= left + lost;
        Ok(lost)
    }

    /// Takes note of responses. Returns how many requests came to their end, lost ones included.
    fn receive(&mut self, now: u64, window: &mut Option<Window>) -> Result<u64, String> {
        self.answers.clear();
        self.wire.receive(now, &mut self.answers)?;
        let mut ended = 0;
        if self.answers.is_empty() {
            let silent = now.saturating_sub(self.heard);
            if self.oldest < self.next && silent > self.silence.as_nanos() as u64 {
                for lane in 0..self.lanes.len() {
                    ended += self.miss(lane, self.next, window);
                }
            }
            std::hint::spin_loop();
            return Ok(ended);
        }
        let now = self.now();
        self.heard = now;
        for at in 0..self.answers.len() {
            let number = self.answers[at];
            let lane = (number % self.lanes.len() as u64) as usize;
            if !(self.lanes[lane]..self.next).contains(&number) {
                return Err(format!(
                    "request {number} was answered out of order: {} to {} were outstanding",
                    self.lanes[lane], self.next
                ));
            }
            ended += self.miss(lane, number, window) + 1;
            if let Some(window) = window {
                window.answered += 1;
                if (window.first..window.end).contains(&number) {
                    window.received += 1;
                    window.latency.record(now.saturating_sub(self.times[self.place(number)]));
                }
            }
            self.end(lane);
        }
        Ok(ended)
    }
}

impl Window {
    fn new(since: u64, first: u64) -> Self {
        Window {
            since,
            first,
            end: u64::MAX,
            refused: 0,
            received: 0,
            missed: 0,
            answered: 0,
            late: 0,
            latency: Latency::new(),
        }
    }
}
