//! The threads that serve, each with listeners, connections and a wait of its own.
//!
//! A thread takes what a ready connection has, serves what is whole of it, and writes the answers
//! before it looks at the next one. Of a peer that does not take its answers no more is read.
//! Invariant: a connection is watched for room to write exactly while answers of it wait, or
//! requests that were read.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use softnet_core::softnet_data::Counter;
use softnet_testkit::datagrams::Stop;
use udp_kv::store::Store;

use crate::desk::{Desk, Served};
use crate::net::{Net, Ready};
use crate::redis::Args;

/// Bytes that are read at a time.
const CHUNK: usize = 64 << 10;
/// Chunks of one connection before the others have their turn.
const TURNS: usize = 4;
/// Connections that are accepted before the others have theirs.
const ACCEPTS: usize = 64;
/// How long nothing is accepted after there were no descriptors for it.
const PAUSE: Duration = Duration::from_millis(10);

/// What a thread counts. Written by that thread only.
#[derive(Default)]
pub struct Counters {
    /// Connections accepted.
    pub accepted: Counter,
    /// Of these, closed.
    pub closed: Counter,
    /// Connections that could not be accepted.
    pub refused: Counter,
    /// Requests served, those that were answered with an error included.
    pub requests: Counter,
    /// Connections closed for what they sent.
    pub malformed: Counter,
    /// Bytes received.
    pub bytes_read: Counter,
    /// Bytes sent.
    pub bytes_written: Counter,
}

impl Counters {
    /// What they are called in `stats`.
    pub(crate) const NAMES: [&str; 7] = [
        "total_connections",
        "closed_connections",
        "rejected_connections",
        "tcp_requests",
        "tcp_malformed",
        "bytes_read",
        "bytes_written",
    ];

    /// Their values, in the order of their names.
    pub(crate) fn values(&self) -> [u64; Self::NAMES.len()] {
        let Counters { accepted, closed, refused, requests, malformed, bytes_read, bytes_written } = self;
        [accepted, closed, refused, requests, malformed, bytes_read, bytes_written].map(Counter::get)
    }
}

/// A running server. Dropping it stops it.
pub struct Server {
    threads: Vec<JoinHandle<io::Result<()>>>,
    counters: Arc<[Counters]>,
    stop: Arc<Stop>,
}

impl Server {
    /// Serves `store`, with a thread for each of `nets`, until `stop` is told; it must end the
    /// nets' waits, too.
    ///
    /// # Errors
    /// A thread can't be made; none runs then.
    pub fn start<N>(nets: Vec<N>, store: &Arc<Store>, stop: &Arc<Stop>) -> io::Result<Server>
    where
        N: Net + Send + 'static,
    {
        let counters: Arc<[Counters]> = nets.iter().map(|_| Counters::default()).collect();
        let mut server = Server { threads: Vec::new(), counters: counters.clone(), stop: stop.clone() };
        let started = Instant::now();
        for (me, net) in nets.into_iter().enumerate() {
            let (store, stop, counters) = (store.clone(), stop.clone(), counters.clone());
            // If it fails, dropping `server` ends those that were made.
            let thread = std::thread::Builder::new().name(format!("tcp-kv/{me}")).spawn(move || {
                let mut thread = Thread {
                    net,
                    conns: Vec::new(),
                    free: Vec::new(),
                    chunk: vec![0; CHUNK].into(),
                    out: Vec::new(),
                    args: Args::new(),
                };
                let served = thread.run(&store, &stop, started, &counters, me);
                // Only its clients would notice that one of several is gone.
                stop.stop();
                served
            })?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// What each thread counted so far.
    pub fn counters(&self) -> &[Counters] {
        &self.counters
    }

    /// Waits until all threads have ended, which they do when told to stop, or when one fails.
    ///
    /// # Errors
    /// Why one failed.
    pub fn join(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            result = result.and(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        result
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.stop();
        for thread in self.threads.drain(..) {
            // `join` is the call that returns how it ended.
            let _ = thread.join();
        }
    }
}

struct Conn<S> {
    stream: S,
    /// Part of a request, or requests that wait until answers were sent.
    input: Vec<u8>,
    /// Bytes that come next and are thrown away.
    skip: usize,
    /// Answers that the socket did not take, and how much of them it has.
    output: Vec<u8>,
    written: usize,
    /// `input` may have whole requests.
    more: bool,
    /// No more is read, and it is closed once the answers are sent.
    last: bool,
}

struct Thread<N: Net> {
    net: N,
    conns: Vec<Option<Conn<N::Stream>>>,
    free: Vec<usize>,
    // Shared by all connections: what is left of either is the connection's own.
    chunk: Box<[u8]>,
    out: Vec<u8>,
    args: Args,
}

impl<N: Net> Thread<N> {
    fn run(
        &mut self,
        store: &Store,
        stop: &Stop,
        started: Instant,
        threads: &[Counters],
        me: usize,
    ) -> io::Result<()> {
        let mut ready: Vec<Ready> = Vec::new();
        while !stop.told() {
            self.net.wait(&mut ready)?;
            let now = u32::try_from(started.elapsed().as_secs()).unwrap_or(u32::MAX);
            store.advance(now);
            let desk = Desk { store, now, counters: &threads[me], threads, stop };
            for Ready { token } in ready.iter().copied() {
                let token = token as usize;
                match token.checked_sub(self.net.listeners()) {
                    None => self.accept(token, desk.counters),
                    Some(at) => self.turn(at, &desk),
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, listener: usize, counters: &Counters) {
        for _ in 0..ACCEPTS {
            match self.net.accept(listener) {
                Ok(stream) => {
                    counters.accepted.add(1);
                    let at = self.free.pop().unwrap_or(self.conns.len());
                    let token = (self.net.listeners() + at) as u64;
                    if self.net.add(&stream, token).is_err() {
                        counters.refused.add(1);
                        counters.closed.add(1);
                        self.free.push(at);
                        continue;
                    }
                    if at == self.conns.len() {
                        self.conns.push(None);
                    }
                    self.conns[at] = Some(Conn {
                        stream,
                        input: Vec::new(),
                        skip: 0,
                        output: Vec::new(),
                        written: 0,
                        more: false,
                        last: false,
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    // It still waits, and must not make this thread spin.
                    counters.refused.add(1);
                    std::thread::sleep(PAUSE);
                    return;
                }
            }
        }
    }

    /// A connection is ready.
    fn turn(&mut self, at: usize, desk: &Desk<'_>) {
        let Some(mut conn) = self.conns.get_mut(at).and_then(Option::take) else { return };
        let waited = conn.waits();
        let stays = self.converse(&mut conn, desk).is_ok_and(|ends| !ends);
        let waits = conn.waits();
        let token = (self.net.listeners() + at) as u64;
        if stays && (waits == waited || self.net.watch(&conn.stream, token, waits).is_ok()) {
            self.conns[at] = Some(conn);
            return;
        }
        self.net.remove(&conn.stream);
        self.free.push(at);
        desk.counters.closed.add(1);
    }

    /// Writes, reads and serves what there is. Whether the connection has ended.
    fn converse(&mut self, conn: &mut Conn<N::Stream>, desk: &Desk<'_>) -> io::Result<bool> {
        let counters = desk.counters;
        for _ in 0..TURNS {
            // Answers first.
            while conn.written < conn.output.len() {
                match conn.stream.write(&conn.output[conn.written..]) {
                    Ok(n) => {
                        counters.bytes_written.add(n as u64);
                        conn.written += n;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            (conn.output, conn.written) = (Vec::new(), 0);
            if conn.last {
                return Ok(true);
            }
            self.out.clear();
            if conn.more {
                let served = desk.serve(&conn.input, &mut self.args, &mut self.out);
                conn.input.drain(..served.taken);
                conn.note(served);
            } else {
                let n = match conn.stream.read(&mut self.chunk) {
                    Ok(0) => return Ok(true),
                    Ok(n) => n,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                counters.bytes_read.add(n as u64);
                let skipped = n.min(conn.skip);
                conn.skip -= skipped;
                conn.serve(&self.chunk[skipped..n], desk, &mut self.args, &mut self.out);
            }
            if conn.input.is_empty() {
                conn.input = Vec::new();
            }
            let mut written = 0;
            while written < self.out.len() {
                match conn.stream.write(&self.out[written..]) {
                    Ok(n) => {
                        counters.bytes_written.add(n as u64);
                        written += n;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        conn.output.extend_from_slice(&self.out[written..]);
                        return Ok(false);
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            if conn.last {
                return Ok(true);
            }
        }
        // Others first.
        Ok(false)
    }
}

impl<S> Conn<S> {
    /// Whether it has its turn when there is room to write: answers wait, or requests that were read.
    fn waits(&self) -> bool {
        self.more || !self.output.is_empty()
    }

    /// Serves what came, behind what was there.
    fn serve(&mut self, came: &[u8], desk: &Desk<'_>, args: &mut Args, out: &mut Vec<u8>) {
        let served = if self.input.is_empty() {
            let served = desk.serve(came, args, out);
            self.input.extend_from_slice(&came[served.taken..]);
            served
        } else {
            self.input.extend_from_slice(came);
            let served = desk.serve(&self.input, args, out);
            self.input.drain(..served.taken);
            served
        };
        self.note(served);
    }

    fn note(&mut self, served: Served) {
        self.skip += served.skip;
        self.more = served.more;
        self.last |= served.close;
    }
}
