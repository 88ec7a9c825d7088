//! The load, whatever it passes by: one thread sends, one receives, the caller switches.
//!
//! Packets carry their flow, their number in it and when they were sent. What finds no room at the sender is skipped and was
//! not sent; numbers may be missing at the receiver, but never go back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use softnet::Introspect;
use softnet::config::Context;
use softnet::control::{Set, Target};

use super::machine::{Control, Machine, stolen};
use crate::bench::templates::Random;
use crate::bench::text;

/// Flows; those with the same remainder by the number of queues share one.
pub(super) const FLOWS: usize = 32;
/// Of what passes at most.
const LOAD: f64 = 0.7;
/// Packets that may be on their way while that is measured, and that may be due at once afterwards.
const WINDOW: u64 = 256;
/// How long that is measured.
const CAPACITY_TIME: Duration = Duration::from_millis(500);
/// How often something is switched.
const EVERY: Duration = Duration::from_millis(1);
/// How long the last packets get to arrive.
const DRAIN: Duration = Duration::from_secs(10);

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) flow: u32,
    pub(super) number: u32,
    /// ns since the load began.
    pub(super) at: u64,
}

impl Packet {
    /// Bytes it takes.
    pub(super) const LEN: usize = 16;

    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.flow.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..].copy_from_slice(&self.at.to_be_bytes());
        bytes
    }

    /// `None`: it is none of the load's.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Packet> {
        let flow = u32::from_be_bytes(*bytes.first_chunk()?);
        let number = u32::from_be_bytes(*bytes.get(4..)?.first_chunk()?);
        let at = u64::from_be_bytes(*bytes.get(8..)?.first_chunk()?);
        ((flow as usize) < FLOWS).then_some(Packet { flow, number, at })
    }
}

/// Where packets are sent.
pub(super) trait Source: Send {
    /// Sends one packet of each flow, in that order. Returns for how many there was room.
    fn send(&mut self, packets: &[Packet; FLOWS]) -> Result<usize, String>;
}

/// Where they arrive.
pub(super) trait Sink: Send {
    /// Gives what has arrived to `each`, or some of it. Returns how many that were.
    fn receive(&mut self, each: &mut dyn FnMut(Packet)) -> Result<usize, String>;
}

/// A running stack between a source and a sink.
pub(super) trait Wires {
    type Source: Source;
    type Sink: Sink;

    fn view(&self) -> &Introspect;
    /// Names of its devices.
    fn devices(&self) -> [&'static str; 2];
    /// Packets lost so far, as counted where there was no room for them.
    fn lost(&self) -> Result<u64, String>;
    /// The two ends, once.
    fn ends(&mut self) -> Result<(Self::Source, Self::Sink), String>;
    /// Ends the stack and checks its books.
    fn end(self, source: Self::Source, sink: Self::Sink) -> Result<(), String>;
}

/// What a run found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// How long each switch took.
    pub(super) switches: Vec<Duration>,
    /// How long it was switched.
    pub(super) time: Duration,
    /// Packets a second in the window.
    pub(super) capacity: f64,
    /// Packets while it was switched, that there was room for.
    pub(super) sent: u64,
    /// Packets that were counted as lost.
    pub(super) lost: u64,
    pub(super) reordered: u64,
    /// The longest time without a packet at the sink.
    pub(super) longest_stall: Duration,
    /// The longest that a packet took.
    pub(super) longest_latency: Duration,
    /// The longest time in which the source offered nothing.
    pub(super) source_stall: Duration,
    pub(super) machine: Machine,
}

/// What the threads share.
struct Load {
    begin: Instant,
    sent: AtomicU64,
    arrived: AtomicU64,
    /// Packets a second; 0: as many as arrive.
    rate: AtomicU64,
    /// Whether what happens now counts.
    counts: AtomicBool,
    over: AtomicBool,
    done: AtomicBool,
}

/// The longest time between two of a kind, while that counts.
#[derive(Default)]
struct Gap {
    last: Option<Instant>,
    longest: Duration,
}

impl Gap {
    fn at(&mut self, now: Instant, counts: bool) {
        if let Some(last) = self.last.filter(|_| counts) {
            self.longest = self.longest.max(now - last);
        }
        self.last = counts.then_some(now);
    }
}

impl Load {
    fn missing(&self) -> u64 {
        self.sent.load(Ordering::Acquire).saturating_sub(self.arrived.load(Ordering::Acquire))
    }

    /// Sends until it is over. Returns the longest time without.
    fn offer(&self, source: &mut impl Source) -> Result<Duration, String> {
        let (mut number, mut due, mut from, mut gap) = (0, 0.0, Instant::now(), Gap::default());
        while !self.over.load(Ordering::Relaxed) {
            let rate = self.rate.load(Ordering::Relaxed) as f64;
            let since = from.elapsed();
            from += since;
            if rate == 0.0 {
                // What is lost meanwhile does not come any more; measuring goes on.
                let give_up = Instant::now() + Duration::from_millis(20);
                while self.missing() > WINDOW && Instant::now() < give_up {
                    std::thread::yield_now();
                }
                due = FLOWS as f64;
            } else {
                // A sender that was away for long does not catch up all at once.
                due = (due + rate * since.as_secs_f64()).min(WINDOW as f64);
            }
            while due >= FLOWS as f64 {
                due -= FLOWS as f64;
                let at = self.begin.elapsed().as_nanos() as u64;
                let packets = std::array::from_fn(|flow| Packet { flow: flow as u32, number, at });
                // Before they are on their way, lest more arrive than were sent.
                self.sent.fetch_add(FLOWS as u64, Ordering::Release);
                let refused = FLOWS - source.send(&packets)?;
                self.sent.fetch_sub(refused as u64, Ordering::Release);
                gap.at(Instant::now(), self.counts.load(Ordering::Relaxed));
                number += 1;
            }
            if rate > 0.0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(gap.longest)
    }

    /// Receives until all is done. Returns the longest time without, the longest latency, and what came too late.
    fn take(&self, sink: &mut impl Sink) -> Result<(Duration, Duration, u64), String> {
        let (mut gap, mut slowest, mut reordered) = (Gap::default(), 0, 0);
        let mut last = [None; FLOWS];
        while !self.done.load(Ordering::Relaxed) {
            let counts = self.counts.load(Ordering::Relaxed);
            let mut oldest = u64::MAX;
            let n = sink.receive(&mut |packet| {
                let before = last[packet.flow as usize].replace(packet.number);
                reordered += u64::from(before >= Some(packet.number));
                oldest = oldest.min(packet.at);
            })?;
            if n == 0 {
                std::thread::sleep(Duration::from_micros(50));
                continue;
            }
            let now = Instant::now();
            gap.at(now, counts);
            if counts {
                slowest = slowest.max(((now - self.begin).as_nanos() as u64).saturating_sub(oldest));
            }
            self.arrived.fetch_add(n as u64, Ordering::Release);
        }
        Ok((gap.longest, Duration::from_nanos(slowest), reordered))
    }
}

/// Switches a device or a queue, at random, every millisecond for `time`. Returns how long each switch took.
fn switch(view: &Introspect, devices: [&str; 2], time: Duration) -> Result<Vec<Duration>, String> {
    let ids: Vec<u32> = view.napis().iter().map(|row| row.id).collect();
    let (mut random, mut took) = (Random::new(7), Vec::new());
    let start = Instant::now();
    while start.elapsed() < time {
        let threaded = Context::ALL[random.below(4)];
        let target = match random.below(3) {
            0 => Target::Dev(devices[random.below(2)].into()),
            _ => Target::Napi(ids[random.below(ids.len())]),
        };
        let begin = Instant::now();
        view.set(Set { target, threaded }).map_err(text)?;
        let elapsed = begin.elapsed();
        took.push(elapsed);
        std::thread::sleep(EVERY.saturating_sub(elapsed));
    }
    Ok(took)
}

/// Measures what passes, and then switches for `time`.
pub(super) fn run<W: Wires>(mut wires: W, time: Duration) -> Result<Found, String> {
    let (mut source, mut sink) = wires.ends()?;
    let before = wires.lost()?;
    let load = Load {
        begin: Instant::now(),
        sent: AtomicU64::new(0),
        arrived: AtomicU64::new(0),
        rate: AtomicU64::new(0),
        counts: AtomicBool::new(false),
        over: AtomicBool::new(false),
        done: AtomicBool::new(false),
    };
    let control = Control::default();
    let found = std::thread::scope(|scope| {
        let sending = scope.spawn(|| load.offer(&mut source));
        let receiving = scope.spawn(|| load.take(&mut sink));
        crate::bench::cpus().into_iter().for_each(|cpu| {
            let control = &control;
            scope.spawn(move || control.watch(cpu));
        });
        let mut found = Found::default();
        let switched = (|| {
            // The first packets find out the way.
            std::thread::sleep(CAPACITY_TIME / 4);
            let (arrived, start) = (load.arrived.load(Ordering::Relaxed), Instant::now());
            std::thread::sleep(CAPACITY_TIME);
            let passed = load.arrived.load(Ordering::Relaxed) - arrived;
            found.capacity = passed as f64 / start.elapsed().as_secs_f64();
            if passed == 0 {
                return Err("no packet passes".to_owned());
            }
            load.rate.store((LOAD * found.capacity).max(1.0) as u64, Ordering::Relaxed);
            std::thread::sleep(CAPACITY_TIME / 4);
            load.counts.store(true, Ordering::Relaxed);
            control.start();
            let (sent, steal, start) = (load.sent.load(Ordering::Relaxed), stolen(), Instant::now());
            found.switches = switch(wires.view(), wires.devices(), time)?;
            found.time = start.elapsed();
            load.counts.store(false, Ordering::Relaxed);
            found.machine = Machine { stall: control.latest(), steal: stolen().saturating_sub(steal) };
            found.sent = load.sent.load(Ordering::Relaxed) - sent;
            Ok(())
        })();
        load.over.store(true, Ordering::Relaxed);
        control.stop();
        let source = sending.join().map_err(|_| "the source panicked".to_owned())?;
        let accounted = switched.and_then(|()| {
            let give_up = Instant::now() + DRAIN;
            loop {
                let (missing, lost) = (load.missing(), wires.lost()? - before);
                if missing <= lost {
                    return Ok(missing);
                }
                if Instant::now() > give_up {
                    let drops = wires.view().drops();
                    return Err(format!(
                        "{missing} packets are missing, {lost} were counted; drops {drops:?}"
                    ));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        load.done.store(true, Ordering::Relaxed);
        let sink = receiving.join().map_err(|_| "the sink panicked".to_owned())?;
        (found.source_stall, found.lost) = (source?, accounted?);
        (found.longest_stall, found.longest_latency, found.reordered) = sink?;
        Ok::<_, String>(found)
    })?;
    wires.end(source, sink)?;
    Ok(found)
}
