//! `softnet load`: requests to a server that speaks memcached's text protocol over UDP or TCP, whichever it is.
//!
//! ```text
//!  Arrivals (open) ─┐
//!  answers (closed) ┴► Client: what is due ─► Wire ─► DatagramSet ─► server
//!                       │ latency from when it was due ◄─ check ◄───────┘
//!                       ▼
//!                     Tally of each thread ─► sum ─► table, JSON
//! ```
//!
//! Over TCP, [`stream`] has connections in the place of a `DatagramSet`'s sockets. [`run`] is for
//! the command, on the kernel's sockets or on those of a stack of its own ([`stack`]), and for
//! benches, which may call it in a network namespace, with a look at the server's counters when
//! measuring begins and ends. Threads share nothing while they measure.

mod arrivals;
mod client;
mod command;
mod dist;
mod random;
mod record;
mod report;
mod stack;
mod stream;
mod tally;
#[cfg(test)]
mod tests;
mod wire;

use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use softnet_testkit::datagrams::DatagramSet;

use crate::bench::pin;
use client::{Client, Span};
pub(crate) use command::{HELP, LoadArgs, load};
pub(crate) use dist::Dist;
pub(crate) use record::Records;
use tally::Progress;
pub(crate) use tally::Tally;

/// How requests come.
#[derive(Clone, Debug)]
pub(crate) enum Load {
    /// Each connection has so many outstanding, and sends another when one is answered or given up.
    Closed {
        /// How many.
        in_flight: u16,
    },
    /// By the clock, whatever becomes of those before.
    Open {
        /// Requests a second, of all connections of all threads.
        rate: f64,
        /// Between two requests of a connection.
        gaps: Dist,
    },
}

/// What requests go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

/// What to do.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) server: SocketAddr,
    pub(crate) transport: Transport,
    pub(crate) threads: usize,
    /// Of each thread.
    pub(crate) connections: usize,
    /// CPUs for the threads, in turn; none: wherever they run.
    pub(crate) cpus: Vec<usize>,
    pub(crate) load: Load,
    pub(crate) records: Records,
    /// Share of requests that store a value, 0 to 1.
    pub(crate) update: f64,
    /// Whether to store all records first.
    pub(crate) preload: bool,
    pub(crate) warm_up: Duration,
    /// Zero: store the records, and nothing else.
    pub(crate) measure: Duration,
    /// When a request is given up.
    pub(crate) timeout: Duration,
    /// For how long a thread lets its sockets wait when there is nothing to do, before it looks at what has to be given up. Whether
    /// it sleeps meanwhile is theirs; zero: it only looks.
    pub(crate) longest_wait: Duration,
}

/// What a caller of [`run`] is told while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Moment {
    /// All records are stored; so many times by all threads.
    Loaded,
    /// Measuring begins.
    Begin,
    /// It goes on: responses and lost requests since the run began.
    Progress {
        /// Time since measuring began.
        since: Duration,
        answered: u64,
        lost: u64,
    },
    /// Measuring ends.
    End,
}

/// Longest wait without a look at what has to be given up.
const LONGEST_WAIT: Duration = Duration::from_millis(10);
/// How long a connection may take to be made.
const CONNECTING: Duration = Duration::from_secs(10);
/// How often a caller is told how far it is.
const TELL: Duration = Duration::from_secs(1);
/// From when all threads are ready to their first requests.
const HEAD_START: Duration = Duration::from_millis(5);

/// Applies `config.load`. Each thread sends by the set that `open` makes, in that thread, of its number; `tell`
/// hears of each moment on the calling thread.
///
/// # Errors
/// The server is not there, or sockets fail, in words for the user.
pub(crate) fn run<S: DatagramSet>(
    config: &Config,
    open: impl Fn(usize) -> std::io::Result<S> + Sync,
    mut tell: impl FnMut(Moment),
) -> Result<Tally, String> {
    let progress: Vec<Progress> = (0..config.threads).map(|_| Progress::default()).collect();
    let epoch = Instant::now();
    std::thread::scope(|scope| {
        let (done, results) = mpsc::channel();
        let mut starts = Vec::new();
        for (thread, progress) in progress.iter().enumerate() {
            let (start, started) = mpsc::channel();
            starts.push(start);
            let (open, done) = (&open, done.clone());
            let work = move || {
                let result = work(config, thread, open, progress, epoch, &started, &done);
                // The receiver is gone if another thread has failed.
                let _ = done.send(result.map(Some));
            };
            let name = format!("load/{thread}");
            std::thread::Builder::new()
                .name(name)
                .spawn_scoped(scope, work)
                .map_err(|error| format!("threads: {error}"))?;
        }
        drop(done);
        coordinate(config, &progress, epoch, starts, &results, &mut tell)
    })
}

/// What a thread tells: that it is ready (`None`), what it counted, or why it failed.
type Told = Result<Option<Tally>, String>;

/// One thread.
fn work<S: DatagramSet>(
    config: &Config,
    thread: usize,
    open: &(impl Fn(usize) -> std::io::Result<S> + Sync),
    progress: &Progress,
    epoch: Instant,
    started: &Receiver<Span>,
    ready: &Sender<Told>,
) -> Result<Tally, String> {
    if !config.cpus.is_empty() {
        pin(config.cpus[thread % config.cpus.len()])?;
    }
    let set = open(thread).map_err(|error| not_open(config, &error))?;
    let mut clock = || epoch.elapsed().as_nanos() as u64;
    let mut client = Client::new(set, config, thread, progress);
    if config.preload {
        let part = |i: usize| (u64::from(config.records.count) * i as u64 / config.threads as u64) as u32;
        client.preload(part(thread)..part(thread + 1), &mut clock)?;
    }
    let _ = ready.send(Ok(None));
    match started.recv() {
        Ok(span) => client.run(span, thread, &mut clock),
        // Another thread has failed, or there is nothing to measure.
        Err(_) => Ok(Tally::new()),
    }
}

/// Why there are no sockets, and what to do about it.
fn not_open(config: &Config, error: &std::io::Error) -> String {
    use std::io::ErrorKind::{AddrNotAvailable, ConnectionRefused, TimedOut};
    let Config { server, transport, .. } = config;
    let (all, each) = (config.threads * config.connections, config.connections);
    match (transport, error.kind()) {
        (Transport::Tcp, ConnectionRefused) => {
            format!(
                "no server answers at {server} by TCP: its port is closed; without --tcp it is asked by UDP"
            )
        }
        (Transport::Tcp, TimedOut) => format!(
            "{server} makes no connection within {} s; is it there, and does a filter drop what goes there?",
            CONNECTING.as_secs()
        ),
        (Transport::Tcp, AddrNotAvailable) => format!(
            "{all} connections to {server}: there is no port left; ask for fewer (--connections), or widen \
             net.ipv4.ip_local_port_range"
        ),
        (Transport::Tcp, _) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => format!(
            "{each} connections in each thread: {error}; each takes one; ask for fewer (--connections), or raise the \
             limit (ulimit -n)"
        ),
        _ => format!("sockets for {server}: {error}"),
    }
}

/// The calling thread's part: waits until all are ready, says when to start, and adds up.
fn coordinate(
    config: &Config,
    progress: &[Progress],
    epoch: Instant,
    starts: Vec<Sender<Span>>,
    results: &Receiver<Told>,
    tell: &mut impl FnMut(Moment),
) -> Result<Tally, String> {
    let gone = |_| "a thread of the generator ended before its time".to_string();
    for _ in 0..config.threads {
        // If this returns, the senders of `starts` go, and the other threads end.
        results.recv().map_err(gone)??;
    }
    if config.preload {
        tell(Moment::Loaded);
    }
    if config.measure.is_zero() {
        return Ok(Tally::new());
    }
    let start = epoch.elapsed() + HEAD_START;
    let from = start + config.warm_up;
    let until = from + config.measure;
    let [start, from, until] = [start, from, until].map(|time| time.as_nanos() as u64);
    for sender in starts {
        sender.send(Span { start, from, until }).map_err(|_| gone(mpsc::RecvError))?;
    }
    let at = |ns: u64| epoch + Duration::from_nanos(ns);
    let sleep_until = |time: Instant| std::thread::sleep(time.saturating_duration_since(Instant::now()));
    sleep_until(at(from));
    tell(Moment::Begin);
    for second in 1u32.. {
        let next = at(from) + TELL * second;
        if next >= at(until) {
            break;
        }
        sleep_until(next);
        let answered = progress.iter().map(|p| p.answered.get()).sum();
        let lost = progress.iter().map(|p| p.lost.get()).sum();
        tell(Moment::Progress { since: TELL * second, answered, lost });
    }
    sleep_until(at(until));
    tell(Moment::End);
    let mut sum = Tally::new();
    for _ in 0..config.threads {
        if let Some(tally) = results.recv().map_err(gone)?? {
            sum.add(tally);
        }
    }
    let received = sum.received();
    if sum.sent != received + sum.lost {
        return Err(format!("{} requests were sent, {received} answered and {} lost", sum.sent, sum.lost));
    }
    Ok(sum)
}
