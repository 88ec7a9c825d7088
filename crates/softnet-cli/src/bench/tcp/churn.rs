//! A client whose connections live for one request: makes one, asks, compares the response, sees
//! the server close it, and makes the next. One thread, which never sleeps.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::client::{Outcome, Span};
use super::host::{For, Host, Set};
use super::ways::KERNEL_SPIN;
use crate::bench::latency::Latency;
use crate::bench::text;

/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(20);

struct Lane<S> {
    stream: S,
    asked: bool,
    got: usize,
    /// When it was begun, ns since the run began.
    at: u64,
}

/// What became of a lane's connection.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Goes,
    Done,
    /// It was refused, reset, or ended too early.
    Failed,
}

/// See the module.
pub(super) struct Churn<H: Host> {
    host: H,
    set: H::Set,
    addresses: Vec<SocketAddr>,
    lanes: Vec<Option<Lane<H::Stream>>>,
    request: Vec<u8>,
    /// Connections so far.
    made: usize,
    /// One that comes to nothing is not counted, and is made anew: what is beside them takes its toll.
    may_fail: bool,
}

impl<H: Host> Churn<H> {
    /// Of the servers at `addresses`, which are sent `size` bytes on each connection.
    pub(super) fn new(host: &H, addresses: &[SocketAddr], size: usize) -> Result<Self, String> {
        Ok(Churn {
            host: host.clone(),
            set: host.set(&KERNEL_SPIN).map_err(text)?,
            addresses: addresses.to_vec(),
            lanes: Vec::new(),
            request: (0..size).map(|at| (at * 7 + 1) as u8).collect(),
            made: 0,
            may_fail: false,
        })
    }

    /// A connection that comes to nothing is made anew from now on, and is no error.
    pub(super) fn may_fail(mut self, may: bool) -> Self {
        self.may_fail = may;
        self
    }

    /// Has up to `n` connections at a time, `rate` new ones a second (0: as many as come to an end), for
    /// `warm_up`, and then for `time`, which `look` frames; `beside` is called again and again, with the
    /// ns since the run began. Latencies are from the beginning of a connection to its end.
    pub(super) fn run(
        &mut self,
        (n, rate): (usize, u64),
        (warm_up, time): (Duration, Duration),
        look: &mut dyn FnMut(),
        beside: &mut dyn FnMut(u64) -> Result<(), String>,
    ) -> Result<Outcome, String> {
        let begin = Instant::now();
        let now = || begin.elapsed().as_nanos() as u64;
        let (from, to) = (warm_up.as_nanos() as u64, (warm_up + time).as_nanos() as u64);
        let mut latency = Latency::new();
        self.host.enter().map_err(text)?;
        self.lanes.clear();
        self.lanes.resize_with(n, || None);
        let mut free: Vec<usize> = (0..n).collect();
        let (mut answered, mut made) = (0, 0);
        let (mut span, mut heard) = (Span::default(), now());
        let mut ready = Vec::new();
        while span.seconds.is_none() || free.len() < n {
            let at = now();
            while span.seconds.is_none()
                && (rate == 0 || u128::from(at) * u128::from(rate) / 1_000_000_000 > made)
                && let Some(i) = free.pop()
            {
                made += 1;
                self.begin(i, at)?;
            }
            self.set.wait(&mut ready, Duration::from_millis(1)).map_err(text)?;
            beside(now())?;
            let at = span.pass(&now, (from, to), look);
            if !ready.is_empty() || free.len() == n {
                heard = at;
            } else if at - heard > PATIENCE.as_nanos() as u64 {
                return Err(format!("{} connections came to nothing", n - free.len()));
            }
            for token in &ready {
                let i = *token as usize;
                let fate = self.turn(i)?;
                if fate == Fate::Goes {
                    continue;
                }
                free.push(i);
                if let Some(lane) = self.lanes[i].take().filter(|_| span.is_measured() && fate == Fate::Done)
                {
                    answered += 1;
                    latency.record(now() - lane.at);
                }
            }
        }
        Ok(Outcome { answered, seconds: span.seconds.unwrap_or(0.0), latency })
    }

    fn begin(&mut self, i: usize, at: u64) -> Result<(), String> {
        let to = self.addresses[self.made % self.addresses.len()];
        let stream = self.host.begin_connect(to).map_err(|e| format!("connection {}: {e}", self.made))?;
        self.made += 1;
        self.set.add(&stream, i as u64).map_err(text)?;
        self.set.modify(&stream, For::InOut, i as u64).map_err(text)?;
        self.lanes[i] = Some(Lane { stream, asked: false, got: 0, at });
        Ok(())
    }

    /// Goes on with a lane.
    fn turn(&mut self, i: usize) -> Result<Fate, String> {
        let Churn { set, lanes, request, may_fail, .. } = self;
        let Some(lane) = lanes[i].as_mut() else { return Ok(Fate::Goes) };
        let failed = |why: String| if *may_fail { Ok(Fate::Failed) } else { Err(why) };
        if !lane.asked {
            match H::connected(&lane.stream) {
                Ok(true) => {}
                Ok(false) => return Ok(Fate::Goes),
                Err(error) => return failed(format!("connect: {error}")),
            }
            match lane.stream.write(request) {
                Ok(n) if n == request.len() => lane.asked = true,
                Ok(n) => return Err(format!("{n} bytes of a request were taken")),
                Err(error) => return failed(format!("request: {error}")),
            }
            set.modify(&lane.stream, For::In, i as u64).map_err(text)?;
            return Ok(Fate::Goes);
        }
        let mut buffer = [0; 256];
        loop {
            match lane.stream.read(&mut buffer) {
                Ok(0) if lane.got == request.len() => return Ok(Fate::Done),
                Ok(0) => return failed(format!("a connection ended after {} bytes", lane.got)),
                Ok(n) if request.get(lane.got..lane.got + n) == Some(&buffer[..n]) => lane.got += n,
                Ok(_) => return Err("the response is not the request".into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Fate::Goes),
                Err(error) => return failed(format!("response: {error}")),
            }
        }
    }
}
