//! The server: reads requests of a known length and sends each back, from one thread that waits for
//! all its connections.
//!
//! The same code on softnet's sockets and on the kernel's. Invariant: a response is its request,
//! and is sent when that is there in whole.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::host::{For, Host, Set};
use super::ways::{BASE, Way};
use crate::bench::{pin, text};

/// What the server is to do, which may change while it runs.
pub(super) struct Orders {
    /// Bytes of a request.
    pub(super) size: AtomicUsize,
    /// Connections are closed when they were answered.
    pub(super) closes: AtomicBool,
    way: Mutex<(u64, Way)>,
    version: AtomicU64,
    stop: AtomicBool,
    /// Connections that it has.
    pub(super) open: AtomicUsize,
}

/// See the module. Dropping it stops it, and closes all its connections.
pub(super) struct Server {
    pub(super) orders: Arc<Orders>,
    pub(super) tid: i32,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Server {
    /// Serves at `addresses` on `cpu`.
    pub(super) fn start<H: Host>(
        host: &H,
        addresses: &[SocketAddr],
        way: &Way,
        cpu: usize,
    ) -> Result<Self, String> {
        let orders = Arc::new(Orders {
            size: AtomicUsize::new(1),
            closes: AtomicBool::new(false),
            way: Mutex::new((0, way.clone())),
            version: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            open: AtomicUsize::new(0),
        });
        let listeners = addresses.iter().map(|at| host.listen(*at)).collect::<Result<Vec<_>, _>>();
        let listeners = listeners.map_err(|e| format!("listen: {e}"))?;
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("tcp-server".into()).spawn({
            let (host, orders) = (host.clone(), orders.clone());
            move || {
                pin(cpu)?;
                // Without it the kernel adds 50 µs to the time-outs of its waits.
                let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
                let _ = ready.send(rustix::thread::gettid().as_raw_pid());
                serve(&host, &listeners, &orders)
            }
        });
        let mut server = Server { orders, tid: 0, thread: Some(thread.map_err(text)?) };
        match is_ready.recv() {
            Ok(tid) => server.tid = tid,
            Err(_) => return Err(server.end().err().unwrap_or_else(|| "the server ended".into())),
        }
        Ok(server)
    }

    /// Waits from now on as `way` says.
    pub(super) fn wait_as(&self, way: &Way) {
        let mut to = self.orders.way.lock().unwrap_or_else(PoisonError::into_inner);
        *to = (to.0 + 1, way.clone());
        self.orders.version.store(to.0, Ordering::Release);
    }

    /// Sleeps from now on while there is nothing to do: a server that polls on would take its CPU from
    /// the one that is measured next.
    pub(super) fn rest(&self) {
        self.wait_as(&BASE);
    }

    /// What a client found wrong, or why the server ended, which explains it.
    pub(super) fn explain(&mut self, error: String) -> String {
        match self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            true => self.end().err().map_or(error, |why| format!("the server: {why}")),
            false => error,
        }
    }

    fn end(&mut self) -> Result<(), String> {
        self.orders.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Why it ended early, `explain` tells.
        let _ = self.end();
    }
}

/// A connection.
struct Conn<S> {
    stream: S,
    /// What came of a request, or what is left to be sent of a response.
    bytes: Vec<u8>,
    /// How much of it was sent; the request is not there in whole before.
    sent: Option<usize>,
}

/// What became of a connection.
#[derive(PartialEq)]
enum Fate {
    Stays,
    Ends,
}

fn serve<H: Host>(host: &H, listeners: &[H::Listener], orders: &Orders) -> Result<(), String> {
    let (mut version, mut way) = {
        let way = orders.way.lock().unwrap_or_else(PoisonError::into_inner);
        (way.0, way.1.clone())
    };
    let mut set = host.set(&way).map_err(text)?;
    for (i, listener) in listeners.iter().enumerate() {
        set.add_listener(listener, i as u64).map_err(text)?;
    }
    let first = listeners.len();
    let mut conns: Vec<Option<Conn<H::Stream>>> = Vec::new();
    let mut free = Vec::new();
    let (mut ready, mut scratch) = (Vec::new(), vec![0; 256 << 10]);
    while !orders.stop.load(Ordering::Relaxed) {
        if orders.version.load(Ordering::Acquire) != version {
            (version, way) = orders.way.lock().unwrap_or_else(PoisonError::into_inner).clone();
            set.wait_as(&way).map_err(text)?;
        }
        set.wait(&mut ready, way.wait()).map_err(text)?;
        let (size, closes) = (orders.size.load(Ordering::Relaxed), orders.closes.load(Ordering::Relaxed));
        for token in &ready {
            let token = *token as usize;
            if token < first {
                accept::<H>(&mut set, &listeners[token], &mut conns, &mut free, first, orders)?;
                continue;
            }
            let at = token - first;
            // It may have been closed by an earlier event of this wait.
            let Some(conn) = conns.get_mut(at).and_then(Option::as_mut) else { continue };
            if answer::<H>(&mut set, conn, token as u64, (size, closes), &mut scratch) == Fate::Ends {
                conns[at] = None;
                free.push(at);
                orders.open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

fn accept<H: Host>(
    set: &mut H::Set,
    listener: &H::Listener,
    conns: &mut Vec<Option<Conn<H::Stream>>>,
    free: &mut Vec<usize>,
    first: usize,
    orders: &Orders,
) -> Result<(), String> {
    // So many at a time that those which are there are served meanwhile.
    for _ in 0..64 {
        let stream = match H::accept(listener) {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            // It was reset before it was accepted.
            Err(error) if is_end(&error) => continue,
            Err(error) => return Err(format!("accept: {error}")),
        };
        let at = free.pop().unwrap_or_else(|| {
            conns.push(None);
            conns.len() - 1
        });
        set.add(&stream, (first + at) as u64).map_err(|e| format!("epoll: {e}"))?;
        conns[at] = Some(Conn { stream, bytes: Vec::new(), sent: None });
        orders.open.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Whether the error ends a connection, and nothing else.
pub(super) fn is_end(error: &std::io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected)
}

fn answer<H: Host>(
    set: &mut H::Set,
    conn: &mut Conn<H::Stream>,
    token: u64,
    (size, closes): (usize, bool),
    scratch: &mut [u8],
) -> Fate {
    let mut waits = conn.sent.is_some();
    if !waits {
        loop {
            let n = match conn.stream.read(scratch) {
                Ok(0) => return Fate::Ends,
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Fate::Stays,
                Err(_) => return Fate::Ends,
            };
            if conn.bytes.is_empty() && n == size {
                // The usual case: a whole request, and a whole response.
                match conn.stream.write(&scratch[..n]) {
                    Ok(sent) if sent == n => return if closes { Fate::Ends } else { Fate::Stays },
                    Ok(sent) => conn.bytes.extend_from_slice(&scratch[sent..n]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        conn.bytes.extend_from_slice(&scratch[..n]);
                    }
                    Err(_) => return Fate::Ends,
                }
                conn.sent = Some(0);
                break;
            }
            conn.bytes.extend_from_slice(&scratch[..n]);
            if conn.bytes.len() >= size {
                conn.sent = Some(0);
                break;
            }
            if n < scratch.len() {
                return Fate::Stays;
            }
        }
    }
    while let Some(sent) = conn.sent {
        if sent == conn.bytes.len() {
            conn.bytes.clear();
            conn.sent = None;
            break;
        }
        match conn.stream.write(&conn.bytes[sent..]) {
            Ok(n) => conn.sent = Some(sent + n),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if !waits && set.modify(&conn.stream, For::InOut, token).is_err() {
                    return Fate::Ends;
                }
                return Fate::Stays;
            }
            Err(_) => return Fate::Ends,
        }
    }
    if std::mem::take(&mut waits) && set.modify(&conn.stream, For::In, token).is_err() {
        return Fate::Ends;
    }
    if closes { Fate::Ends } else { Fate::Stays }
}
