//! The threads that serve, each with a set of sockets of its own.
//!
//! A thread waits for its sockets, takes one batch of each that can be read, answers it, and sends the answers,
//! before it takes the next: that is the longest that anything waits for something else here. Invariant: every
//! datagram that was received is answered, counted as refused, or asked for no answer.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::thread::gettid;
use softnet_core::softnet_data::Counter;
use softnet_testkit::datagrams::{DatagramSet, Endpoints, Outbox, Stop};

use crate::answer::Desk;
use crate::store::Store;

/// Answers that are sent before the rest of a batch is served.
const ENOUGH: usize = 256;

/// What a thread counts. Written by that thread only.
#[derive(Default)]
pub struct Counters {
    /// Datagrams received.
    pub received: Counter,
    /// Requests in them; those that are none, but were answered with an error, included.
    pub requests: Counter,
    /// Datagrams sent.
    pub sent: Counter,
    /// Answers that the socket did not take.
    pub not_sent: Counter,
    /// Datagrams without a frame header, or that end within a request.
    pub malformed: Counter,
    /// Datagrams that belong to a request of several.
    pub multi_packet: Counter,
    /// Datagrams with so many requests that not all were served.
    pub cut: Counter,
    /// Errors that a socket told.
    pub socket_errors: Counter,
    /// Id of the NAPI instance by which packets for the first socket come; 0 if that is not known.
    napi_id: AtomicU32,
}

impl Counters {
    /// What they are called in `stats`.
    pub(crate) const NAMES: [&str; 8] = [
        "udp_received",
        "udp_requests",
        "udp_sent",
        "udp_not_sent",
        "udp_malformed",
        "udp_multi_packet",
        "udp_cut",
        "udp_socket_errors",
    ];

    /// Id of the NAPI instance by which packets for the thread's first socket come; 0 if that is not known.
    pub fn napi_id(&self) -> u32 {
        self.napi_id.load(Relaxed)
    }

    /// Their values, in the order of their names.
    pub(crate) fn values(&self) -> [u64; Self::NAMES.len()] {
        let Counters {
            received, requests, sent, not_sent, malformed, multi_packet, cut, socket_errors, ..
        } = self;
        [received, requests, sent, not_sent, malformed, multi_packet, cut, socket_errors].map(Counter::get)
    }
}

/// A running server. Dropping it stops it.
pub struct Server {
    threads: Vec<(u32, JoinHandle<io::Result<()>>)>,
    counters: Arc<[Counters]>,
    stop: Arc<Stop>,
}

impl Server {
    /// Serves `store`, with a thread for each of `sets`, each of which has a socket at least, until `stop` is told.
    /// The sets' waits must end then, too.
    ///
    /// # Errors
    /// A thread can't be made; none runs then.
    pub fn start<S>(sets: Vec<S>, store: &Arc<Store>, stop: &Arc<Stop>) -> io::Result<Server>
    where
        S: DatagramSet + Send + 'static,
    {
        let counters: Arc<[Counters]> = sets.iter().map(|_| Counters::default()).collect();
        let mut server = Server { threads: Vec::new(), counters: counters.clone(), stop: stop.clone() };
        let started = Instant::now();
        for (i, mut set) in sets.into_iter().enumerate() {
            let (tell, told) = mpsc::channel();
            let (store, stop, counters) = (store.clone(), stop.clone(), counters.clone());
            // If it fails, dropping `server` ends those that were made.
            let thread = std::thread::Builder::new().name(format!("udp-kv/{i}")).spawn(move || {
                let _ = tell.send(gettid().as_raw_nonzero().get().cast_unsigned());
                let served = serve(&mut set, &store, &stop, started, &counters, i);
                // Only its clients would notice that one of several is gone.
                stop.stop();
                served
            })?;
            let tid = told.recv().unwrap_or(0);
            server.threads.push((tid, thread));
        }
        Ok(server)
    }

    /// Ids of the threads, to see what they use.
    pub fn threads(&self) -> Vec<u32> {
        self.threads.iter().map(|(tid, _)| *tid).collect()
    }

    /// What each thread counted so far.
    pub fn counters(&self) -> &[Counters] {
        &self.counters
    }

    /// Waits until all threads have ended, which they do when told to stop, or when one fails. What they counted stays.
    ///
    /// # Errors
    /// Why one failed.
    pub fn join(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for (_, thread) in self.threads.drain(..) {
            result = result.and(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        result
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.stop();
        for (_, thread) in self.threads.drain(..) {
            // `join` is the call that returns how it ended.
            let _ = thread.join();
        }
    }
}

/// The loop of thread `me`.
fn serve(
    set: &mut impl DatagramSet,
    store: &Store,
    stop: &Stop,
    started: Instant,
    threads: &[Counters],
    me: usize,
) -> io::Result<()> {
    let counters = &threads[me];
    let (mut ready, mut outbox) = (Vec::new(), Outbox::default());
    let mut before = u32::MAX;
    while !stop.told() {
        set.wait(None, &mut ready)?;
        let now = u32::try_from(started.elapsed().as_secs()).unwrap_or(u32::MAX);
        store.advance(now);
        if now != before {
            // Once a second: it costs a system call.
            counters.napi_id.store(set.napi_id(0), Relaxed);
            before = now;
        }
        let desk = Desk { store, now, counters, threads };
        for socket in ready.iter().copied() {
            let Ok(taken) = set.recv(socket) else {
                counters.socket_errors.add(1);
                continue;
            };
            counters.received.add(taken as u64);
            for i in 0..taken {
                let (peer, datagram) = set.datagram(i);
                desk.answer(Endpoints { peer, local: set.local(i) }, datagram, &mut outbox);
                if outbox.len() >= ENOUGH {
                    send(set, socket, &mut outbox, counters)?;
                }
            }
            send(set, socket, &mut outbox, counters)?;
        }
    }
    Ok(())
}

fn send(
    set: &mut impl DatagramSet,
    socket: usize,
    outbox: &mut Outbox,
    counters: &Counters,
) -> io::Result<()> {
    if !outbox.is_empty() {
        let refused = set.send(socket, outbox)? as u64;
        counters.sent.add(outbox.len() as u64 - refused);
        counters.not_sent.add(refused);
        outbox.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    /// Sockets whose datagrams are made up beforehand; it tells to stop when there are no more.
    struct Script {
        /// By socket: what each `recv` gives.
        batches: Vec<VecDeque<io::Result<Vec<Vec<u8>>>>>,
        taken: Vec<Vec<u8>>,
        stop: Arc<Stop>,
        /// Each `send`: by which socket, and to where how many bytes.
        sends: Arc<Mutex<Vec<Sent>>>,
    }

    type Sent = (usize, Vec<(SocketAddr, usize)>);

    fn peer(socket: usize, i: usize) -> SocketAddr {
        (Ipv4Addr::new(10, 0, 0, socket as u8), 1000 + i as u16).into()
    }

    impl DatagramSet for Script {
        fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<usize>) -> io::Result<()> {
            assert_eq!(timeout, None, "a thread without work sleeps");
            *ready = (0..self.batches.len()).filter(|socket| !self.batches[*socket].is_empty()).collect();
            if ready.is_empty() {
                self.stop.stop();
            }
            Ok(())
        }

        fn recv(&mut self, socket: usize) -> io::Result<usize> {
            // Their addresses say which socket.
            self.taken = self.batches[socket].pop_front().unwrap()?;
            self.taken.iter_mut().for_each(|datagram| datagram.push(socket as u8));
            Ok(self.taken.len())
        }

        fn datagram(&self, i: usize) -> (SocketAddr, &[u8]) {
            let (socket, datagram) = self.taken[i].split_last().unwrap();
            (peer(usize::from(*socket), i), datagram)
        }

        fn send(&mut self, socket: usize, outbox: &Outbox) -> io::Result<usize> {
            let sent = (0..outbox.len()).map(|i| outbox.get(i)).map(|(to, bytes)| (to, bytes.len()));
            self.sends.lock().unwrap().push((socket, sent.collect()));
            // The last one finds no room.
            Ok(1)
        }

        fn napi_id(&self, socket: usize) -> u32 {
            40 + socket as u32
        }
    }

    #[test]
    fn every_datagram_is_answered_by_its_socket_or_counted() {
        let request = |text: &str| [&[0, 1, 0, 0, 0, 1, 0, 0], text.as_bytes()].concat();
        let get = request("get a\r\n");
        let large = request(&format!("set a 0 0 50000\r\n{}\r\n", "x".repeat(50_000)));
        let (stop, sends) = (Arc::new(Stop::new().unwrap()), Arc::default());
        let set = Script {
            batches: vec![
                VecDeque::from([
                    Ok(vec![large]),
                    Err(io::ErrorKind::Other.into()),
                    Ok(vec![get.clone(); 20]),
                ]),
                VecDeque::from([Ok(vec![request("version\r\n"), b"short".to_vec(), get])]),
            ],
            taken: Vec::new(),
            stop: stop.clone(),
            sends: Arc::clone(&sends),
        };
        let mut server = Server::start(vec![set], &Arc::new(Store::new(0, 1)), &stop).unwrap();
        assert_ne!(server.threads(), [0]);
        let all = server.counters.clone();
        server.join().unwrap();
        let [counters] = &*all else { panic!("one thread, one set of counters") };
        assert_eq!((counters.received.get(), counters.requests.get()), (24, 23));
        assert_eq!((counters.malformed.get(), counters.socket_errors.get()), (1, 1));
        assert_eq!(counters.napi_id(), 40);
        let sends = sends.lock().unwrap();
        // 36 datagrams for each large value: a batch of twenty goes in pieces of seven or so.
        let counts: Vec<(usize, usize)> = sends.iter().map(|(socket, sent)| (*socket, sent.len())).collect();
        assert_eq!(counts, [(0, 1), (1, 37), (0, 288), (0, 288), (0, 144)]);
        for (socket, sent) in sends.iter() {
            assert!(
                sent.iter().all(|(to, len)| to.ip() == peer(*socket, 0).ip() && *len > 8 && *len <= 1400)
            );
        }
        let total: usize = counts.iter().map(|(_, n)| n).sum();
        assert_eq!(counters.sent.get() + counters.not_sent.get(), total as u64);
        assert_eq!(counters.not_sent.get(), sends.len() as u64);
    }

    /// A set that breaks.
    struct Broken;

    impl DatagramSet for Broken {
        fn wait(&mut self, _: Option<Duration>, _: &mut Vec<usize>) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn recv(&mut self, _: usize) -> io::Result<usize> {
            Ok(0)
        }
        fn datagram(&self, _: usize) -> (SocketAddr, &[u8]) {
            unreachable!("nothing was received")
        }
        fn send(&mut self, _: usize, _: &Outbox) -> io::Result<usize> {
            Ok(0)
        }
        fn napi_id(&self, _: usize) -> u32 {
            0
        }
    }

    #[test]
    fn a_thread_that_fails_ends_the_server() {
        let stop = Arc::new(Stop::new().unwrap());
        let mut server = Server::start(vec![Broken, Broken], &Arc::new(Store::new(0, 1)), &stop).unwrap();
        assert_eq!(server.join().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(stop.told());
    }
}
