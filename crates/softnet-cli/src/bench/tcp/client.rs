//! The client: one thread that has all connections, and never sleeps.
//!
//! Of its connections some are *active*: each has one request outstanding at most, and sends the next
//! when the response to the last is there (closed loop), or when the clock says so and it has none
//! (open loop, in [`super::paced`]). Every byte of every response is compared with its request.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::host::{For, Host, Set};
use super::parked::MOST;
use super::ways::KERNEL_SPIN;
use crate::bench::latency::Latency;
use crate::bench::text;

/// How long anything may take that is not measured.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Connections that are begun at once. Those of them that are idle make one lot.
pub(super) const AT_ONCE: usize = 250;
/// A wait of softnet's; the kernel is asked again and again.
pub(super) const TURN: Duration = Duration::from_millis(1);
/// Where requests begin differs by so much at the most.
pub(super) const SHIFT: usize = 4096;

/// What came of a run.
pub(super) struct Outcome {
    /// Responses within the time.
    pub(super) answered: u64,
    pub(super) seconds: f64,
    pub(super) latency: Latency,
}

pub(super) struct Lane<S> {
    /// `None`: it is parked.
    stream: Option<S>,
    /// Where its request begins in the pattern.
    pub(super) from: usize,
    sent: usize,
    got: usize,
    /// When it was sent, or was to be, ns since the run began; [`u64::MAX`]: none is outstanding.
    pub(super) at: u64,
    waits: bool,
}

/// See the module.
pub(super) struct Client<H: Host> {
    host: H,
    pub(super) set: H::Set,
    addresses: Vec<SocketAddr>,
    pub(super) lanes: Vec<Lane<H::Stream>>,
    /// Those that are idle, and the places of each lot, in their order.
    parked: Vec<(Vec<usize>, H::Parked)>,
    pattern: Vec<u8>,
    scratch: Vec<u8>,
    pub(super) ready: Vec<u64>,
}

/// The time that is measured, as a client comes upon its ends.
#[derive(Default)]
pub(super) struct Span {
    /// When it began, in ns of the client's clock.
    pub(super) began: Option<u64>,
    /// How long it was, once it is over.
    pub(super) seconds: Option<f64>,
}

impl Span {
    /// Whether it has begun, and is not over.
    pub(super) fn is_measured(&self) -> bool {
        self.began.is_some() && self.seconds.is_none()
    }

    /// Begins and ends it, each with a `look`, where the times `from` and `to` have come. Returns the time.
    pub(super) fn pass(
        &mut self,
        now: &impl Fn() -> u64,
        (from, to): (u64, u64),
        look: &mut dyn FnMut(),
    ) -> u64 {
        let mut at = now();
        if self.began.is_none() && at >= from {
            look();
            at = now();
            self.began = Some(at);
        }
        // On a busy machine both times may have passed in one wait.
        if let Some(began) = self.began.filter(|began| self.seconds.is_none() && at >= to.max(began + 1)) {
            self.seconds = Some((at - began) as f64 / 1e9);
            look();
        }
        at
    }
}

impl<H: Host> Client<H> {
    /// Of the servers at `addresses`.
    pub(super) fn new(host: &H, addresses: &[SocketAddr]) -> Result<Self, String> {
        let set = host.set(&KERNEL_SPIN).map_err(text)?;
        Ok(Client {
            host: host.clone(),
            set,
            addresses: addresses.to_vec(),
            lanes: Vec::new(),
            parked: Vec::new(),
            pattern: Vec::new(),
            scratch: vec![0; 256 << 10],
            ready: Vec::new(),
        })
    }

    /// Resets those beyond `n`, at once, or opens as many as are missing. Only every `stride`th has to be there for
    /// [`run`](Self::run).
    pub(super) fn resize(&mut self, n: usize, stride: usize) -> Result<(), String> {
        if self.lanes.len() > n {
            self.unpark(n)?;
            for lane in self.lanes.drain(n..) {
                lane.stream.iter().for_each(|stream| drop(H::reset_on_close(stream)));
            }
        }
        if stride == 1 {
            self.unpark(0)?;
        }
        if self.lanes.len() < n {
            self.host.enter().map_err(text)?;
        }
        while self.lanes.len() < n {
            let first = self.lanes.len();
            for i in first..n.min(first + AT_ONCE) {
                let to = self.addresses[i % self.addresses.len()];
                let stream = self.host.begin_connect(to).map_err(|e| format!("connection {i}: {e}"))?;
                let stream = Some(stream);
                self.lanes.push(Lane { stream, from: 0, sent: 0, got: 0, at: u64::MAX, waits: false });
            }
            let until = Instant::now() + PATIENCE;
            for i in first..self.lanes.len() {
                let Some(stream) = &self.lanes[i].stream else { continue };
                while !H::connected(stream).map_err(|e| format!("connection {i}: {e}"))? {
                    if Instant::now() > until {
                        return Err(format!("connection {i} of {n} was not made"));
                    }
                    // The other end of an emulated wire may be polled by this thread.
                    self.set.wait(&mut self.ready, TURN).map_err(text)?;
                }
                if i % stride == 0 {
                    self.set.add(stream, i as u64).map_err(text)?;
                }
            }
            self.park(first, stride)?;
        }
        Ok(())
    }

    /// Parks those from `first` on that are not every `stride`th.
    fn park(&mut self, first: usize, stride: usize) -> Result<(), String> {
        let idle: Vec<usize> = (first..self.lanes.len()).filter(|i| i % stride != 0).collect();
        for places in idle.chunks(MOST) {
            let streams = places.iter().filter_map(|i| self.lanes[*i].stream.take()).collect();
            let parked = H::park(streams).map_err(|e| format!("parking idle connections: {e}"))?;
            self.parked.push((places.to_vec(), parked));
        }
        Ok(())
    }

    /// Has all of those lots again of which a connection is in place `first` or behind it.
    fn unpark(&mut self, first: usize) -> Result<(), String> {
        while self.parked.last().is_some_and(|(places, _)| places.last() >= Some(&first)) {
            let Some((places, parked)) = self.parked.pop() else { break };
            let streams = H::unpark(parked).map_err(text)?;
            if streams.len() != places.len() {
                return Err(format!(
                    "of {} parked connections {} found a descriptor: the process has too many open files",
                    places.len(),
                    streams.len()
                ));
            }
            for (i, stream) in places.into_iter().zip(streams) {
                self.set.add(&stream, i as u64).map_err(text)?;
                self.lanes[i].stream = Some(stream);
            }
        }
        Ok(())
    }

    /// Sends requests of `size` bytes by every `stride`th connection, for `warm_up` and then for
    /// `time`, which `look` frames; and waits for the last responses.
    pub(super) fn run(
        &mut self,
        size: usize,
        stride: usize,
        (warm_up, time): (Duration, Duration),
        look: &mut dyn FnMut(),
    ) -> Result<Outcome, String> {
        self.prepare(size);
        let begin = Instant::now();
        let now = || begin.elapsed().as_nanos() as u64;
        let (from, to) = (warm_up.as_nanos() as u64, (warm_up + time).as_nanos() as u64);
        let mut latency = Latency::new();
        let (mut answered, mut outstanding) = (0, 0);
        for i in (0..self.lanes.len()).step_by(stride) {
            self.lanes[i].at = now();
            self.lanes[i].from = i * 61 % SHIFT;
            outstanding += 1;
            self.send(i, size)?;
        }
        let mut span = Span::default();
        let mut heard = now();
        while outstanding > 0 {
            let mut ready = std::mem::take(&mut self.ready);
            self.set.wait(&mut ready, TURN).map_err(text)?;
            let at = span.pass(&now, (from, to), look);
            if !ready.is_empty() {
                heard = at;
            } else if at - heard > PATIENCE.as_nanos() as u64 {
                return Err(format!("{outstanding} responses did not come"));
            }
            for token in &ready {
                let i = *token as usize;
                if !self.receive(i, size)? {
                    continue;
                }
                let at = now();
                let lane = &mut self.lanes[i];
                if span.is_measured() {
                    answered += 1;
                    latency.record(at - lane.at);
                }
                if span.seconds.is_some() {
                    outstanding -= 1;
                    lane.at = u64::MAX;
                    continue;
                }
                (lane.at, lane.from) = (at, (lane.from + 13) % SHIFT);
                self.send(i, size)?;
            }
            self.ready = ready;
        }
        Ok(Outcome { answered, seconds: span.seconds.unwrap_or(0.0), latency })
    }

    /// Makes requests of `size` bytes.
    pub(super) fn prepare(&mut self, size: usize) {
        if self.pattern.len() < size + SHIFT {
            self.pattern = (0..size + SHIFT).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
        }
    }

    /// Goes on sending the request of lane `i`.
    pub(super) fn send(&mut self, i: usize, size: usize) -> Result<(), String> {
        let Client { lanes, set, pattern, .. } = self;
        let lane = &mut lanes[i];
        let stream = lane.stream.as_mut().ok_or_else(|| format!("connection {i} is parked"))?;
        while lane.sent < size {
            match stream.write(&pattern[lane.from + lane.sent..lane.from + size]) {
                Ok(n) => lane.sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !std::mem::replace(&mut lane.waits, true) {
                        set.modify(stream, For::InOut, i as u64).map_err(text)?;
                    }
                    return Ok(());
                }
                Err(error) => return Err(format!("connection {i}, sending: {error}")),
            }
        }
        if std::mem::take(&mut lane.waits) {
            set.modify(stream, For::In, i as u64).map_err(text)?;
        }
        Ok(())
    }

    /// Reads what came for lane `i`. Whether that completes the response.
    pub(super) fn receive(&mut self, i: usize, size: usize) -> Result<bool, String> {
        if self.lanes[i].waits {
            self.send(i, size)?;
        }
        let Client { lanes, pattern, scratch, .. } = self;
        let lane = &mut lanes[i];
        let stream = lane.stream.as_mut().ok_or_else(|| format!("connection {i} is parked"))?;
        match stream.read(scratch) {
            Ok(0) => Err(format!("connection {i} ended")),
            Ok(n) => {
                let expected = pattern.get(lane.from + lane.got..lane.from + lane.got + n);
                if lane.at == u64::MAX || lane.got + n > size || expected != Some(&scratch[..n]) {
                    return Err(format!(
                        "connection {i}: what came after {} bytes was not asked for",
                        lane.got
                    ));
                }
                lane.got += n;
                let done = lane.got == size;
                if done {
                    (lane.sent, lane.got) = (0, 0);
                }
                Ok(done)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(format!("connection {i}, receiving: {error}")),
        }
    }
}
