//! As much of HTTP/1.1 (RFC 9112) as a scrape takes: one request on a connection, which is closed behind the answer.
//!
//! Everything is bounded: a request takes at most [`MAX_REQUEST`] bytes, a client at most
//! [`PATIENCE`] from its connection to the last byte of its answer however little it takes at a
//! time, [`MAX_CLIENTS`] are served at a time (one more takes the place of the one that came
//! first), and answers that are not taken yet [`MAX_PENDING`] bytes. Clients that ask at the same
//! time share one text.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, accept_with, recv, send, shutdown};

use crate::config::{MetricsConfig, MetricsListen};
use crate::control::{BindError, Listener};
use crate::util::{fail, spawn};

/// Bytes of the longest request.
const MAX_REQUEST: usize = 8192;

/// Clients at a time.
const MAX_CLIENTS: usize = 32;

/// Bytes of answers that are not taken yet from which on others are put off.
const MAX_PENDING: usize = 64 << 20;

/// How long a client may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How old a text may be that is told again.
const FRESH: Duration = Duration::from_millis(100);

/// How long no connection is accepted after that failed for want of descriptors or memory.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What answers are.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where metrics will be told: it listens, and is not answered on yet.
#[derive(Debug)]
pub(crate) enum Bound {
    Tcp(TcpListener),
    Unix(Listener),
}

impl AsFd for Bound {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Bound::Tcp(listener) => listener.as_fd(),
            Bound::Unix(listener) => listener.as_fd(),
        }
    }
}

impl Bound {
    /// Listens where `config` says, in the calling thread's network namespace. A Unix socket of a process that is dead
    /// is replaced, as a control socket is.
    pub(crate) fn new(config: &MetricsConfig) -> Result<Bound, String> {
        match &config.listen {
            MetricsListen::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(|error| error.to_string())?;
                listener.set_nonblocking(true).map_err(|error| error.to_string())?;
                Ok(Bound::Tcp(listener))
            }
            MetricsListen::Unix(path) => {
                let listener = Listener::bind(path).map_err(|error| match error {
                    BindError::Running { .. } => "another process listens there".into(),
                    BindError::NotASocket(_) => "exists and is not a socket".into(),
                    BindError::Directory { why, .. } => {
                        format!("its directory {why}, so that others could take its place")
                    }
                    BindError::Io { what, source, .. } => format!("{what}: {source}"),
                    error @ BindError::Group(_) => error.to_string(),
                })?;
                let flags = rustix::fs::fcntl_getfl(&listener).and_then(|flags| {
                    rustix::fs::fcntl_setfl(&listener, flags | rustix::fs::OFlags::NONBLOCK)
                });
                flags.map_err(|error| error.to_string())?;
                Ok(Bound::Unix(listener))
            }
        }
    }

    /// Answers with what `text` makes, on a thread of its own.
    pub(crate) fn serve(self, text: impl Fn() -> String + Send + 'static) -> io::Result<Server> {
        let address = match &self {
            Bound::Tcp(listener) => listener.local_addr().ok(),
            Bound::Unix(_) => None,
        };
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let service = Loop::new(self, stop.clone(), text);
        let thread = spawn("softnet-metrics", Box::new(move || service.run()))?;
        Ok(Server { stop, thread: Some(thread), address })
    }
}

/// Metrics in service. Dropping it ends the thread and removes a Unix socket.
#[derive(Debug)]
pub(crate) struct Server {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    address: Option<SocketAddr>,
}

impl Server {
    /// Where it listens, of TCP.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An eventfd takes a 1 unless it is about to overflow, and then it is readable anyhow.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's own.
struct Loop<F> {
    listener: Bound,
    stop: Arc<OwnedFd>,
    clients: Vec<Client>,
    source: Source<F>,
    /// Until when nothing is accepted.
    mute_until: Option<Instant>,
}

/// Makes texts.
pub(super) struct Source<F> {
    text: F,
    /// The last one, and when it was made.
    last: Option<(Instant, Arc<str>)>,
}

impl<F: Fn() -> String> Source<F> {
    pub(super) fn new(text: F) -> Self {
        Source { text, last: None }
    }

    pub(super) fn get(&mut self, now: Instant) -> Arc<str> {
        match &self.last {
            Some((made, text)) if now < *made + FRESH => text.clone(),
            _ => {
                let text: Arc<str> = (self.text)().into();
                self.last = Some((now, text.clone()));
                text
            }
        }
    }
}

impl<F: Fn() -> String> Loop<F> {
    fn new(listener: Bound, stop: Arc<OwnedFd>, text: F) -> Self {
        Loop { listener, stop, clients: Vec::new(), source: Source::new(text), mute_until: None }
    }

    fn run(mut self) {
        loop {
            match self.round() {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => return fail(format_args!("metrics are told no more: {error}")),
            }
        }
    }

    /// Blocks until there is something to do, and does it. Says whether to stop.
    fn round(&mut self) -> io::Result<bool> {
        let now = Instant::now();
        self.mute_until = self.mute_until.filter(|until| *until > now);
        let listen = if self.mute_until.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&self.listener, listen)];
        fds.extend(self.clients.iter().map(|client| PollFd::new(&client.stream, client.wants())));
        let due = self.clients.iter().map(|client| client.due).chain(self.mute_until).min();
        let left = due.map(|at| at.saturating_duration_since(now) + Duration::from_millis(1));
        let left =
            left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [stop, knocked] = [0, 1].map(|at: usize| !fds[at].revents().is_empty());
        if stop {
            return Ok(true);
        }
        let now = Instant::now();
        let mut pending = self.pending();
        let source = &mut self.source;
        self.clients.retain_mut(|client| {
            pending -= client.unsent();
            let stays = client.turn(source, now, pending);
            pending += client.unsent();
            stays && now < client.due
        });
        if self.clients.is_empty() {
            // It may be large, and nothing says that there will be another.
            self.source.last = None;
        }
        if knocked {
            self.accept(now);
        }
        Ok(false)
    }

    /// Bytes of answers that are not taken yet.
    fn pending(&self) -> usize {
        self.clients.iter().map(Client::unsent).sum()
    }

    fn accept(&mut self, now: Instant) {
        // As many as there may be, then those that are there get their turn.
        for _ in 0..MAX_CLIENTS {
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(stream) => {
                    if self.clients.len() >= MAX_CLIENTS {
                        self.clients.remove(0);
                    }
                    self.clients.push(Client::new(stream, now));
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(_) => {
                    // The client still waits, and must not make this thread spin.
                    self.mute_until = Some(now + ACCEPT_AGAIN);
                    return;
                }
            }
        }
    }
}

/// A connection.
struct Client {
    stream: OwnedFd,
    request: Vec<u8>,
    answer: Option<Answer>,
    sent: usize,
    /// Whether the answer was sent: what still comes is read and forgotten until the client closes, since a connection that is
    /// closed with bytes unread is reset, and the answer may be lost with it (RFC 9112 section 9.6).
    is_over: bool,
    /// When it is closed whether it is done or not.
    due: Instant,
}

impl Client {
    fn new(stream: OwnedFd, now: Instant) -> Self {
        Client { stream, request: Vec::new(), answer: None, sent: 0, is_over: false, due: now + PATIENCE }
    }

    fn wants(&self) -> PollFlags {
        if self.answer.is_some() { PollFlags::OUT } else { PollFlags::IN }
    }

    fn unsent(&self) -> usize {
        self.answer.as_ref().map_or(0, |answer| answer.len().saturating_sub(self.sent))
    }

    /// Reads, answers and writes what can be without blocking. Says whether there is more to do.
    fn turn(&mut self, source: &mut Source<impl Fn() -> String>, now: Instant, pending: usize) -> bool {
        if self.answer.is_none() {
            let mut chunk = [0; MAX_REQUEST];
            let read = match recv(&self.stream, &mut chunk[..], RecvFlags::empty()) {
                Ok((0, _)) => return false,
                Ok((read, _)) => read,
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            };
            if self.is_over {
                return true;
            }
            self.request.extend_from_slice(&chunk[..read]);
            self.answer = match parse(&self.request) {
                Parsed::Partial => return true,
                Parsed::Metrics { .. } if pending >= MAX_PENDING => Some(Answer::error(BUSY, false)),
                Parsed::Metrics { head } => Some(Answer::metrics(source.get(now), head)),
                Parsed::Error { status, head } => Some(Answer::error(status, head)),
            };
            self.request = Vec::new();
        }
        let Some(answer) = &self.answer else { return true };
        while self.sent < answer.len() {
            match send(&self.stream, answer.rest(self.sent), SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            }
        }
        (self.answer, self.sent, self.is_over) = (None, 0, true);
        shutdown(&self.stream, Shutdown::Write).is_ok()
    }
}

/// A status of HTTP, and what is told of it.
type Status = (&'static str, &'static str);

const BAD_REQUEST: Status = ("400 Bad Request", "not a request of HTTP/1.x\n");
const NOT_FOUND: Status = ("404 Not Found", "there is /metrics, and nothing else\n");
const NOT_ALLOWED: Status = ("405 Method Not Allowed", "only GET and HEAD\n");
const TOO_LARGE: Status = ("431 Request Header Fields Too Large", "a request takes at most 8192 bytes\n");
const BUSY: Status = ("503 Service Unavailable", "other clients are slow to take their answers\n");

struct Answer {
    head: String,
    body: Arc<str>,
}

impl Answer {
    fn metrics(body: Arc<str>, is_head: bool) -> Answer {
        Answer::new("200 OK", CONTENT_TYPE, "", body, is_head)
    }

    fn error(status: Status, is_head: bool) -> Answer {
        let allow = if status == NOT_ALLOWED { "Allow: GET, HEAD\r\n" } else { "" };
        Answer::new(status.0, "text/plain; charset=utf-8", allow, status.1.into(), is_head)
    }

    fn new(status: &str, content_type: &str, more: &str, body: Arc<str>, is_head: bool) -> Answer {
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{more}Cache-Control: \
             no-store\r\nConnection: close\r\n\r\n",
            body.len()
        );
        Answer { head, body: if is_head { "".into() } else { body } }
    }

    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// What of it is to be sent next, behind `sent` bytes.
    fn rest(&self, sent: usize) -> &[u8] {
        match sent.checked_sub(self.head.len()) {
            None => &self.head.as_bytes()[sent..],
            Some(sent) => &self.body.as_bytes()[sent..],
        }
    }
}

/// What a request is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// There is more to come.
    Partial,
    /// For metrics; or only for the head of the answer.
    Metrics { head: bool },
    /// For something else.
    Error { status: Status, head: bool },
}

/// Looks at what came so far.
pub(super) fn parse(request: &[u8]) -> Parsed {
    let error = |status| Parsed::Error { status, head: false };
    // Lines may end without CR, and empty ones before the request are skipped (RFC 9112 section 2.2).
    let start = request.iter().position(|byte| !b"\r\n".contains(byte)).unwrap_or(request.len());
    let lines = &request[start..];
    let ends = lines.windows(2).any(|end| end == b"\n\n") || lines.windows(4).any(|end| end == b"\r\n\r\n");
    match ends {
        _ if request.len() > MAX_REQUEST => return error(TOO_LARGE),
        false if request.len() == MAX_REQUEST => return error(TOO_LARGE),
        false => return Parsed::Partial,
        true => {}
    }
    let line = lines.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else { return error(BAD_REQUEST) };
    if !version.starts_with(b"HTTP/1.") {
        return error(BAD_REQUEST);
    }
    let head = match method {
        b"GET" => false,
        b"HEAD" => true,
        _ => return error(NOT_ALLOWED),
    };
    // The absolute form, as proxies are asked (RFC 9112 section 3.2.2).
    let target = target.strip_prefix(b"http://").map_or(target, |rest| {
        rest.iter().position(|byte| *byte == b'/').map_or(&b"/"[..], |path| &rest[path..])
    });
    match target.split(|byte| *byte == b'?').next() {
        Some(b"/metrics") => Parsed::Metrics { head },
        _ => Parsed::Error { status: NOT_FOUND, head },
    }
}
