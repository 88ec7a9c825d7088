//! The instance's side of the control socket: one thread, some clients, everything bounded.
//!
//! The thread sleeps until a client can be served, and none waits for another that is silent: there is room for
//! `MAX_CLIENTS`, and one more takes the place of the one that has asked nothing for longest, which is told. Only if all
//! of them wait for answers it is refused. Answers that are not taken are bounded too, see `MAX_PENDING`.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use softnet_dev::process::{peer_uid, trim_heap};

use super::capture::SetCapture;
use super::listener::Listener;
use super::{MAX_REQUEST, Request, Response, TakeOver};
use crate::util::{fail, spawn};

/// Answers requests. Called by the control thread, one request at a time; it may take locks of the control
/// plane, and must not make a worker wait.
pub trait Handler: Send + Sync {
    /// The answer, or why there is none.
    fn request(&self, request: Request) -> Result<serde_json::Value, String>;

    /// The same as text, for answers that are too large to be built as values first.
    fn answer(&self, request: Request) -> Result<String, String> {
        serde_json::to_string(&self.request(request)?).map_err(|error| error.to_string())
    }

    /// Starts a capture whose answer, and all that follows on this connection, comes from elsewhere.
    fn capture(&self, _: &SetCapture, _: &UnixStream) -> Result<(), String> {
        Err("this instance captures nothing".into())
    }

    /// Another process wants to take over, by this connection, which is its from then on.
    fn take_over(&self, _: &TakeOver, _: &UnixStream) -> Result<(), String> {
        Err("this instance can't be taken over".into())
    }

    /// Whether another process answers on the socket from now on.
    fn is_handed_over(&self) -> bool {
        false
    }
}

/// Clients at a time.
const MAX_CLIENTS: usize = 64;

/// How long a client may take to send a request, and to take some of its answer.
const IDLE: Duration = Duration::from_secs(10);

/// Bytes of answers that are not taken yet, of all clients, from which on no other answer is made.
const MAX_PENDING: usize = 64 << 20;

/// Bytes of an answer whose memory is not kept for the next.
const LARGE: usize = 1 << 20;

/// How long a client may take nothing of its answer while others get none because of that.
const STALLED: Duration = Duration::from_secs(1);

/// How long no connection is accepted after that failed for want of descriptors or memory.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

impl Listener {
    /// Starts to answer with `handler`, on a thread of its own that sleeps while there are no requests.
    pub fn serve(self, handler: Arc<dyn Handler>) -> io::Result<Server> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let service =
            Loop { listener: self, stop: stop.clone(), handler, clients: Vec::new(), mute_until: None };
        let thread = spawn("softnet-control", Box::new(move || service.run()))?;
        Ok(Server { stop, thread: Some(thread) })
    }
}

/// A control socket in service. Dropping it ends the thread and removes the socket.
#[derive(Debug)]
pub struct Server {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
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

struct Loop {
    listener: Listener,
    stop: Arc<OwnedFd>,
    handler: Arc<dyn Handler>,
    clients: Vec<Client>,
    /// Until when nothing is accepted.
    mute_until: Option<Instant>,
}

impl Loop {
    fn run(mut self) {
        loop {
            match self.round() {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => return fail(format_args!("the control socket is closed: {error}")),
            }
        }
    }

    /// Blocks until there is something to do, and does it. Says whether to stop.
    fn round(&mut self) -> io::Result<bool> {
        let (stop, knocked) = self.wait()?;
        if !stop {
            let now = Instant::now();
            self.serve(now);
            if knocked {
                self.accept(now);
            }
        }
        Ok(stop)
    }

    /// Blocks until there is something to do. Returns whether to stop, and whether a client wants to connect.
    fn wait(&mut self) -> io::Result<(bool, bool)> {
        let now = Instant::now();
        self.mute_until = self.mute_until.filter(|until| *until > now);
        let listen = if self.mute_until.is_none() && !self.handler.is_handed_over() {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut fds =
            vec![PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&self.listener.socket, listen)];
        fds.extend(
            self.clients.iter().map(|client| PollFd::from_borrowed_fd(client.stream.as_fd(), client.wants())),
        );
        let is_held = self.clients.iter().any(|client| client.is_held);
        let due = self.clients.iter().map(|client| client.due(is_held)).chain(self.mute_until).min();
        let timeout = due.map(|at| at.saturating_duration_since(now) + Duration::from_millis(1));
        let timeout = timeout
            .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let events: Vec<_> = fds.iter().map(PollFd::revents).collect();
        // One that is held asks for no events, but is told of a hang-up all the same, at once and each time: it goes, unheard.
        let mut hung_up = events[2..].iter().map(|events| events.intersects(PollFlags::HUP | PollFlags::ERR));
        self.clients.retain(|client| !(hung_up.next().unwrap_or(false) && client.is_held));
        Ok((!events[0].is_empty(), !events[1].is_empty()))
    }

    /// Bytes of answers that are not taken yet.
    fn pending(&self) -> usize {
        self.clients.iter().map(|client| client.output.len()).sum()
    }

    /// Gives every client its turn, and those another that are held although there is room meanwhile.
    fn serve(&mut self, now: Instant) {
        loop {
            let (handler, mut pending) = (&*self.handler, self.pending());
            self.clients.retain_mut(|client| {
                pending -= client.output.len();
                let stays = client.turn(handler, now, pending < MAX_PENDING);
                pending += if stays { client.output.len() } else { 0 };
                stays
            });
            if self.clients.iter().any(|client| client.is_held) {
                self.clients.retain(|client| client.output.is_empty() || now < client.since + STALLED);
            } else {
                return;
            }
            if self.pending() >= MAX_PENDING {
                return;
            }
        }
    }

    fn accept(&mut self, now: Instant) {
        // As many as there may be, then those that are there get their turn.
        for _ in 0..MAX_CLIENTS {
            if self.handler.is_handed_over() {
                return;
            }
            let stream = match self.listener.socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) if would_block(&error) => return,
                Err(_) => {
                    // The client still waits, and must not make this thread spin. Perhaps a descriptor helps.
                    self.make_room();
                    self.mute_until = Some(now + ACCEPT_AGAIN);
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() >= MAX_CLIENTS && !self.make_room() {
                refuse(&stream, &format!("busy: {MAX_CLIENTS} clients wait for answers; try again"));
                continue;
            }
            let mut client = Client::new(stream, now);
            if !is_own(&client.stream) {
                let Some(group) = self.listener.group.clone() else {
                    // It may have connected when the socket was open for a group.
                    refuse(&client.stream, "refused: the user that runs the instance may ask it, and root");
                    continue;
                };
                client.looks_only = Some(group);
            }
            let may_answer = self.pending() < MAX_PENDING;
            if client.turn(&*self.handler, now, may_answer) {
                self.clients.push(client);
            }
        }
    }

    /// Disconnects the client that has asked nothing for longest. Says whether there was one.
    fn make_room(&mut self) -> bool {
        let silent = self.clients.iter().enumerate().filter(|(_, client)| client.is_silent());
        let Some((longest, _)) = silent.min_by_key(|(_, client)| client.since) else { return false };
        let client = self.clients.remove(longest);
        refuse(
            &client.stream,
            "disconnected, having asked nothing: there are other clients, and only room for so many",
        );
        true
    }
}

/// Whether the client at the other end of `stream` is of the user that runs this, or of root.
fn is_own(stream: &UnixStream) -> bool {
    let own = [0, rustix::process::geteuid().as_raw()];
    peer_uid(stream).is_some_and(|uid| own.contains(&uid))
}

/// Says why before the connection is closed, if that can be said without waiting.
fn refuse(mut stream: &UnixStream, why: &str) {
    let _ = stream.write(&line(&Response::Error(why.into())));
}

fn line(response: &Response) -> Vec<u8> {
    let mut line = serde_json::to_vec(response)
        .unwrap_or_else(|error| format!(r#"{{"error":"answer cannot be written: {error:?}"}}"#).into_bytes());
    line.push(b'\n');
    line
}

struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
    /// Nothing is read any more: goodbye once the output is written.
    last: bool,
    /// It may look, and change nothing, as a member of this group.
    looks_only: Option<String>,
    /// Its request waits until others have taken their answers.
    is_held: bool,
    /// When it connected, or last was answered or took some of an answer. Bytes that are no request yet do not count.
    since: Instant,
}

impl Client {
    fn new(stream: UnixStream, now: Instant) -> Self {
        Client {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            last: false,
            looks_only: None,
            is_held: false,
            since: now,
        }
    }

    /// Whether `input` holds all of a request, or too much for one.
    fn asked(&self) -> bool {
        self.input.contains(&b'\n') || self.input.len() > MAX_REQUEST
    }

    /// Whether it has nothing to get.
    fn is_silent(&self) -> bool {
        self.output.is_empty() && !self.asked()
    }

    fn wants(&self) -> PollFlags {
        match () {
            () if self.is_held => PollFlags::empty(),
            () if self.is_silent() => PollFlags::IN,
            () => PollFlags::OUT,
        }
    }

    /// When to look at it again, whether it does anything or not.
    fn due(&self, others_are_held: bool) -> Instant {
        let stalls = others_are_held && !self.output.is_empty();
        self.since + if stalls { STALLED } else { IDLE }
    }

    /// Reads, answers (once, so that the others get their turn) and writes what can be without blocking. Says
    /// whether the client stays.
    fn turn(&mut self, handler: &dyn Handler, now: Instant, may_answer: bool) -> bool {
        match self.step(handler, may_answer) {
            Ok(true) => self.since = now,
            Ok(false) => {}
            Err(_) => return false,
        }
        now < self.since + IDLE && !(self.last && self.is_silent())
    }

    /// Says whether it was answered, or took something, or could have been.
    fn step(&mut self, handler: &dyn Handler, may_answer: bool) -> io::Result<bool> {
        let mut progress = self.write()?;
        self.is_held = false;
        // A client that does not take its answer is not read from.
        if self.output.is_empty() {
            if !self.asked() && !self.last {
                self.read()?;
            }
            if self.asked() {
                progress = true;
                self.is_held = !may_answer;
                if may_answer {
                    self.answer(handler);
                    self.write()?;
                }
            }
        }
        Ok(progress)
    }

    fn read(&mut self) -> io::Result<()> {
        let mut chunk = [0; MAX_REQUEST];
        match self.stream.read(&mut chunk) {
            Ok(0) => self.last = true,
            Ok(n) => self.input.extend_from_slice(&chunk[..n]),
            Err(error) if would_block(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn answer(&mut self, handler: &dyn Handler) {
        let answer = match self.input.iter().position(|&byte| byte == b'\n') {
            Some(end) if end <= MAX_REQUEST => {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                match (serde_json::from_slice(&line), &self.looks_only) {
                    (Ok(request), Some(group)) if !Request::only_looks(&request) => Err(format!(
                        "refused: members of the group {group} may look (show, top), and neither change nor capture \
                         anything: that is for the user that runs the instance, and for root; use sudo"
                    )),
                    (Ok(request @ (Request::Capture(_) | Request::TakeOver(_))), _) => {
                        let begun = match &request {
                            Request::Capture(set) => handler.capture(set, &self.stream),
                            Request::TakeOver(ask) => handler.take_over(ask, &self.stream),
                            _ => Ok(()),
                        };
                        match begun {
                            // It is served by another thread from now on.
                            Ok(()) => {
                                self.last = true;
                                self.input.clear();
                                return;
                            }
                            Err(error) => Err(error),
                        }
                    }
                    (Ok(request), _) => handler.answer(request),
                    (Err(error), _) => Err(format!("not a request: {error}")),
                }
            }
            _ => {
                self.last = true;
                self.input.clear();
                Err(format!("a request takes at most {MAX_REQUEST} bytes"))
            }
        };
        self.output = match answer {
            // As `Response::Ok` would be written, whose value this is already.
            Ok(json) => {
                let mut line = json.into_bytes();
                line.splice(0..0, *b"{\"ok\":");
                line.extend_from_slice(b"}\n");
                line
            }
            Err(error) => line(&Response::Error(error)),
        };
        self.written = 0;
    }

    fn write(&mut self) -> io::Result<bool> {
        let before = self.written;
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(n) => self.written += n,
                Err(error) if would_block(&error) => return Ok(self.written > before),
                Err(error) => return Err(error),
            }
        }
        let progress = self.written > before;
        let was_large = self.output.len() > LARGE;
        self.output = Vec::new();
        self.written = 0;
        if was_large {
            trim_heap();
        }
        Ok(progress)
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
