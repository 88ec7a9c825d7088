//! One thread of the generator: its connections, what is outstanding on each, and what became of it.
//!
//! The time comes from the caller's clock, in ns, and the datagrams from a [`DatagramSet`], so that the same code
//! runs against a server and in tests without either. Invariant: every request that was sent is, in the end,
//! answered (rightly, with a miss, or wrongly) or lost; one that is answered after it was given up counts as lost,
//! and its response as late.

use std::collections::VecDeque;
use std::time::Duration;

use softnet_testkit::datagrams::{DatagramSet, Outbox};

use super::arrivals::Arrivals;
use super::random::Random;
use super::tally::{Progress, Tally};
use super::wire::{Op, Part, Parts, Verdict, Wire};
use super::{Config, Load, Transport};

/// Most requests that are outstanding on one connection. Ids have 16 bits; half of them stay free, so that a response
/// that comes late is not taken for another's.
const MAX_WINDOW: usize = 1 << 15;
/// Requests that are outstanding on one connection while the records are stored.
const PRELOAD_WINDOW: usize = 16;
/// When a record is stored once more that the server has not confirmed, if it is not sooner that requests are given up. Many
/// requests to a neighbour that is not known yet are lost.
const STORE_AGAIN: u64 = 500_000_000;
/// A server that says nothing for so long while records are stored is not there.
const SILENCE: u64 = 5_000_000_000;

/// A request on its way.
struct Pending {
    /// When it should have been sent.
    due: u64,
    record: u32,
    op: Op,
    /// Its response, if that comes in several datagrams.
    parts: Option<Box<Parts>>,
}

/// A connection: places for requests, which are taken in turn, so that an id comes again as late as possible.
struct Flow {
    /// As many as a power of two.
    places: Box<[Place]>,
    free: VecDeque<u16>,
}

#[derive(Default)]
struct Place {
    /// How often it was used. Its lower bits are the upper ones of the request's id, the place's number the lower
    /// ones.
    uses: u32,
    pending: Option<Pending>,
}

impl Flow {
    fn new(window: usize) -> Self {
        let window = window.next_power_of_two().min(MAX_WINDOW);
        Flow { places: (0..window).map(|_| Place::default()).collect(), free: (0..window as u16).collect() }
    }

    /// A place for a request, and its id.
    fn begin(&mut self, pending: Pending) -> Option<(u16, u16)> {
        let at = self.free.pop_front()?;
        let bits = self.places.len().ilog2();
        let place = &mut self.places[usize::from(at)];
        place.uses = place.uses.wrapping_add(1);
        place.pending = Some(pending);
        Some((at, (place.uses << bits) as u16 | at))
    }

    /// The place of the outstanding request that has this id.
    fn find(&self, id: u16) -> Option<u16> {
        let at = id & (self.places.len() - 1) as u16;
        let place = &self.places[usize::from(at)];
        let same = (place.uses << self.places.len().ilog2()) as u16 | at == id;
        (same && place.pending.is_some()).then_some(at)
    }

    fn place(&mut self, at: u16) -> &mut Place {
        &mut self.places[usize::from(at)]
    }

    /// Ends the request at a place.
    fn finish(&mut self, at: u16) -> Option<Pending> {
        let pending = self.place(at).pending.take();
        if pending.is_some() {
            self.free.push_back(at);
        }
        pending
    }
}

/// When a request was sent, for the time when it is given up.
struct Sent {
    at: u64,
    flow: usize,
    place: u16,
    uses: u32,
}

/// When a run measures: requests that are due then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// When requests begin.
    pub(super) start: u64,
    pub(super) from: u64,
    pub(super) until: u64,
}

/// What requests are made of.
enum Work {
    /// Any record, now and then a new value.
    Any { random: Random, update: f64 },
    /// A value for each record once.
    Each { left: std::ops::Range<u32>, again: Vec<u32> },
}

impl Work {
    fn next(&mut self, records: u32) -> Option<(Op, u32)> {
        match self {
            Work::Any { random, update } => {
                let op = if random.share() < *update { Op::Set } else { Op::Get };
                Some((op, random.below(records)))
            }
            Work::Each { left, again } => again.pop().or_else(|| left.next()).map(|record| (Op::Set, record)),
        }
    }
}

/// One thread's part of the load.
pub(super) struct Client<'a, S> {
    set: S,
    config: &'a Config,
    wire: Wire<'a>,
    flows: Vec<Flow>,
    timeout: u64,
    longest_wait: u64,
    work: Work,
    /// Requests that are to be sent now: when they were due, and by which connection.
    queue: Vec<(u64, usize)>,
    outbox: Outbox,
    ready: Vec<usize>,
    /// What was sent, in that order, whether or not it was answered.
    sent: VecDeque<Sent>,
    outstanding: u64,
    /// When something was last received.
    heard: u64,
    progress: &'a Progress,
    tally: Tally,
    span: Span,
}

impl<'a, S: DatagramSet> Client<'a, S> {
    /// Thread `thread` of the load, with a set of `config.connections` sockets.
    pub(super) fn new(set: S, config: &'a Config, thread: usize, progress: &'a Progress) -> Self {
        let window = match config.load {
            Load::Closed { in_flight } => in_flight.into(),
            // All that can be sent before the first is given up, were nothing answered, and as much again.
            Load::Open { rate, .. } => {
                let each = rate / (config.threads * config.connections) as f64;
                (2.0 * each * config.timeout.as_secs_f64()) as usize + 64
            }
        };
        let flows = (0..config.connections).map(|_| Flow::new(window.max(PRELOAD_WINDOW))).collect();
        Client {
            set,
            config,
            wire: Wire::new(&config.records),
            flows,
            timeout: config.timeout.as_nanos() as u64,
            longest_wait: config.longest_wait.as_nanos() as u64,
            work: Work::Any { random: Random::new(thread as u64), update: config.update },
            queue: Vec::new(),
            outbox: Outbox::default(),
            ready: Vec::new(),
            sent: VecDeque::new(),
            outstanding: 0,
            heard: 0,
            progress,
            tally: Tally::new(),
            span: Span { start: 0, from: 0, until: 0 },
        }
    }

    /// Stores the records of `range`, each until the server says that it has it.
    ///
    /// # Errors
    /// The server is not there, or refuses a value.
    pub(super) fn preload(
        &mut self,
        range: std::ops::Range<u32>,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), String> {
        let work = Work::Each { left: range, again: Vec::new() };
        let load = std::mem::replace(&mut self.work, work);
        let timeout = self.timeout;
        self.timeout = match self.config.transport {
            Transport::Udp => timeout.min(STORE_AGAIN),
            // Nothing is lost, and what comes late is waited for.
            Transport::Tcp => u64::MAX,
        };
        self.heard = clock();
        // A stream keeps what the server does not take yet: one value for each is enough of that.
        let window = if self.config.transport == Transport::Tcp { 1 } else { PRELOAD_WINDOW };
        for flow in 0..self.flows.len() {
            self.queue.extend((0..window).map(|_| (self.heard, flow)));
        }
        while !self.queue.is_empty() || self.outstanding > 0 {
            let now = clock();
            self.send(now)?;
            self.receive(self.longest_wait, clock)?;
            if let Some(what) = self.tally.wrong_example.take() {
                return Err(format!("a value was refused: {what}"));
            }
            if clock().saturating_sub(self.heard) > SILENCE {
                return Err(format!("{} does not answer", self.config.server));
            }
        }
        // What was late for this is late for nothing.
        self.tally = Tally::new();
        (self.work, self.timeout) = (load, timeout);
        Ok(())
    }

    /// Applies the load from `span.start` to `span.until`, and waits for the last responses.
    ///
    /// # Errors
    /// The sockets fail.
    pub(super) fn run(
        &mut self,
        span: Span,
        thread: usize,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<Tally, String> {
        self.span = span;
        let mut arrivals = None;
        match &self.config.load {
            Load::Closed { in_flight } => {
                for flow in 0..self.flows.len() {
                    self.queue.extend((0..*in_flight).map(|_| (span.start, flow)));
                }
            }
            Load::Open { rate, gaps } => {
                let rate = rate / self.config.threads as f64;
                let seed = thread as u64 ^ (1 << 32);
                arrivals = Some(Arrivals::new(span.start, self.flows.len(), rate, gaps, seed)?);
            }
        }
        loop {
            let now = clock();
            if let Some(arrivals) = &mut arrivals {
                while let Some(due) = arrivals.take(now.min(span.until.saturating_sub(1))) {
                    self.queue.push(due);
                }
            }
            if now >= span.until {
                // What open arrivals were due before is sent all the same: it is late, not lost.
                if arrivals.is_none() {
                    self.queue.clear();
                }
                if self.queue.is_empty() && self.outstanding == 0 {
                    break;
                }
            }
            self.send(now)?;
            let next = arrivals.as_ref().map_or(u64::MAX, Arrivals::next_due);
            let wait = match self.longest_wait {
                0 => 0,
                longest => next.saturating_sub(clock()).min(longest),
            };
            self.receive(wait, clock)?;
        }
        Ok(std::mem::replace(&mut self.tally, Tally::new()))
    }

    fn measured(&self, due: u64) -> bool {
        (self.span.from..self.span.until).contains(&due)
    }

    /// Sends what is in the queue.
    fn send(&mut self, now: u64) -> Result<(), String> {
        // A batch for each connection; those of one stay in order.
        self.queue.sort_by_key(|(_, flow)| *flow);
        let mut queue = std::mem::take(&mut self.queue);
        for requests in queue.chunk_by(|one, other| one.1 == other.1) {
            let flow = requests[0].1;
            for (due, _) in requests {
                self.issue(*due, flow, now);
            }
            if !self.outbox.is_empty() {
                // What the socket does not take is given up like what the network loses.
                let refused =
                    self.set.send(flow, &self.outbox).map_err(|error| self.failed("send to", &error))?;
                self.tally.refused += refused as u64;
                self.outbox.clear();
            }
        }
        queue.clear();
        self.queue = queue;
        Ok(())
    }

    /// Makes a request, or counts that there was no room for one.
    fn issue(&mut self, due: u64, flow: usize, now: u64) {
        let measured = self.measured(due);
        let connection = &mut self.flows[flow];
        if connection.free.is_empty() {
            self.tally.not_sent += u64::from(measured);
            return;
        }
        let Some((op, record)) = self.work.next(self.config.records.count) else { return };
        let Some((place, id)) = connection.begin(Pending { due, record, op, parts: None }) else { return };
        let uses = connection.place(place).uses;
        self.sent.push_back(Sent { at: now, flow, place, uses });
        self.wire.request(&mut self.outbox, self.config.server, id, op, record);
        self.outstanding += 1;
        if measured {
            self.tally.sent(now.saturating_sub(due));
        }
    }

    /// Takes what came, after having waited for it for up to `wait`, and gives up what did not.
    fn receive(&mut self, wait: u64, clock: &mut impl FnMut() -> u64) -> Result<(), String> {
        let mut ready = std::mem::take(&mut self.ready);
        let wait = Some(Duration::from_nanos(wait));
        self.set.wait(wait, &mut ready).map_err(|error| self.failed("wait for", &error))?;
        for flow in ready.iter().copied() {
            let taken = match self.set.recv(flow) {
                Ok(taken) => taken,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                    if let Work::Each { .. } = self.work {
                        return Err(format!(
                            "no server answers at {}: its port is closed; one that is there for TCP alone is asked with --tcp",
                            self.config.server
                        ));
                    }
                    // A request met a closed port; its time-out will tell which.
                    continue;
                }
                Err(error) => return Err(self.failed("receive from", &error)),
            };
            let now = clock();
            for i in 0..taken {
                self.datagram(flow, i, now);
            }
        }
        self.ready = ready;
        self.give_up(clock());
        Ok(())
    }

    fn failed(&self, what: &str, error: &std::io::Error) -> String {
        format!("cannot {what} {}: {error}", self.config.server)
    }

    /// Datagram `i` of those that were received last.
    fn datagram(&mut self, flow: usize, i: usize, now: u64) {
        self.heard = now;
        let (_, datagram) = self.set.datagram(i);
        let connection = &mut self.flows[flow];
        let Some(part) = Part::of(datagram) else { return self.tally.strange += 1 };
        let Some(place) = connection.find(part.id) else { return self.tally.late += 1 };
        let Some(pending) = &mut connection.place(place).pending else { return };
        let whole;
        let message = if part.total == 1 {
            part.payload
        } else {
            let parts = pending.parts.get_or_insert_with(|| Box::new(Parts::new(part.total)));
            let Some(message) = parts.add(&part) else { return };
            whole = message;
            &whole
        };
        let verdict = self.wire.check(pending.op, pending.record, message);
        if verdict == Verdict::Wrong && self.tally.wrong_example.is_none() {
            let text = String::from_utf8_lossy(&message[..message.len().min(80)]).into_owned();
            self.tally.wrong_example =
                Some(format!("{:?} of record {} gave {text:?}", pending.op, pending.record));
        }
        let Some(pending) = connection.finish(place) else { return };
        self.outstanding -= 1;
        self.progress.answered.add(1);
        self.tally.in_time += u64::from(self.measured(now));
        if self.measured(pending.due) {
            self.tally.answered(pending.op, &verdict, now.saturating_sub(pending.due));
        }
        self.go_on(flow, now);
    }

    /// A connection has room for another request.
    fn go_on(&mut self, flow: usize, now: u64) {
        if matches!((&self.work, &self.config.load), (Work::Each { .. }, _) | (_, Load::Closed { .. })) {
            self.queue.push((now, flow));
        }
    }

    /// Gives up what was sent too long ago.
    fn give_up(&mut self, now: u64) {
        while let Some(Sent { at, flow, place, uses }) = self.sent.front() {
            let (flow, place) = (*flow, *place);
            let connection = &mut self.flows[flow];
            let waits = connection.place(place).uses == *uses && connection.place(place).pending.is_some();
            if waits && now.saturating_sub(*at) < self.timeout {
                break;
            }
            self.sent.pop_front();
            let Some(pending) = waits.then(|| connection.finish(place)).flatten() else { continue };
            self.outstanding -= 1;
            if let Work::Each { again, .. } = &mut self.work {
                again.push(pending.record);
            } else {
                self.progress.lost.add(1);
                self.tally.lost += u64::from(self.measured(pending.due));
            }
            self.go_on(flow, now);
        }
    }
}
