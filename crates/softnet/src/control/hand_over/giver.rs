//! The running instance's side of a take-over: from the request to the moment at which its queues
//! stop. What follows is the housekeeper's (`assembly/housekeeper/hand_over.rs`).
//!
//! A thread of its own for each request, one at a time. Invariant: until the housekeeper is told to
//! stop the queues, nothing has changed.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use softnet_core::sync::{AtomicBool, Ordering};

use super::channel::{Channel, Kind};
use super::message::{Connections, Offer, Stopped, VERSION};
use crate::control::Response;
use crate::control::commands::{Change, Commander};
use crate::stack::StackInner;
use crate::util::{lock, note, spawn, warn};

/// How long the successor may take to get ready: it reads routes, and maps memory.
const READY: Duration = Duration::from_secs(120);

/// How long all stands still at the most, until it has checked what it was told.
const TAKES: Duration = Duration::from_secs(1);

/// How long it may take to run.
const RUNS: Duration = Duration::from_secs(10);

/// How long a message to it may wait for room.
const PATIENCE: Duration = Duration::from_secs(5);

/// That a process wants to take this one's place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeOver {
    /// Of what is said from here on.
    pub version: u32,
    /// Of the program that asks.
    pub program: String,
}

impl TakeOver {
    /// As this program asks.
    pub(super) fn new() -> Self {
        TakeOver { version: VERSION, program: env!("CARGO_PKG_VERSION").into() }
    }
}

/// What is done when another process runs in this one's place: with an error, if it ended before it
/// said so.
type Hook = Box<dyn Fn(Result<(), String>) + Send + Sync>;

/// What a stack needs to be handed over.
#[derive(Default)]
pub(crate) struct Giving {
    /// The memory of frames.
    pub(crate) memory: OnceLock<OwnedFd>,
    /// The control socket.
    pub(crate) listener: OnceLock<OwnedFd>,
    hook: Mutex<Option<Hook>>,
    /// The connection by which an offer goes out, or went.
    out: Mutex<Option<UnixStream>>,
    busy: AtomicBool,
    given: AtomicBool,
}

impl fmt::Debug for Giving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Giving").field("given", &self.given).finish_non_exhaustive()
    }
}

impl Giving {
    /// The stack may be handed over; `hook` ends the process then, and closes nothing.
    pub(crate) fn allow(&self, hook: Hook) {
        *lock(&self.hook) = Some(hook);
    }

    /// What was offered is not so any more: the process that got the offer learns that there is nothing for
    /// it. Does not wait.
    pub(crate) fn withdraw(&self) {
        if let Some(stream) = lock(&self.out).take() {
            // One that is closed needs none.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Whether it is another process's.
    pub(crate) fn is_given(&self) -> bool {
        self.given.load(Ordering::Acquire)
    }

    /// Another process runs in this one's place, or failed to. Does not return.
    fn end(&self, how: Result<(), String>) -> ! {
        let code = i32::from(how.is_err());
        if let Some(hook) = &*lock(&self.hook) {
            hook(how);
        }
        std::process::exit(code)
    }
}

/// An offer, and the descriptors that belong to it.
#[derive(Debug)]
pub(crate) struct Offered {
    pub(crate) offer: Offer,
    pub(crate) fds: Vec<OwnedFd>,
    pub(crate) connections: Connections,
}

/// Answers `ask`, which came by `stream`, from here on.
pub(crate) fn start(
    shared: &Arc<StackInner>,
    commander: &Commander,
    ask: &TakeOver,
    stream: &UnixStream,
) -> Result<(), String> {
    let giving = &shared.giving;
    if ask.version != VERSION {
        let (own, theirs) = (env!("CARGO_PKG_VERSION"), &ask.program);
        return Err(format!(
            "it is softnet {own} and hands over by version {VERSION}, softnet {theirs} takes over by version {}: stop this instance, and start the other",
            ask.version
        ));
    }
    if lock(&giving.hook).is_none() {
        return Err("it is part of a program of its own, and can't be taken over".into());
    }
    if giving.busy.swap(true, Ordering::AcqRel) {
        return Err("another process is taking over already".into());
    }
    let begin = || {
        let channel = Channel::new(stream.try_clone()?, PATIENCE)?;
        let (shared, commander) = (shared.clone(), commander.clone());
        let body = move || {
            serve(&shared, &commander, channel);
            *lock(&shared.giving.out) = None;
            shared.giving.busy.store(false, Ordering::Release);
        };
        spawn("softnet-giver", Box::new(body)).map(drop)
    };
    begin().map_err(|error: io::Error| {
        giving.busy.store(false, Ordering::Release);
        error.to_string()
    })
}

fn serve(shared: &StackInner, commander: &Commander, mut channel: Channel) {
    let slot = Arc::new(Mutex::new(None));
    match channel.handle() {
        Ok(stream) => *lock(&shared.giving.out) = Some(stream),
        Err(error) => return refuse(&mut channel, &error.to_string()),
    }
    let offered = commander.make(Change::Offer(slot.clone()));
    let offered = match (offered, lock(&slot).take()) {
        (Ok(_), Some(offered)) => offered,
        (Err(error), _) => return refuse(&mut channel, &error.to_string()),
        (Ok(_), None) => return refuse(&mut channel, "it has nothing to hand over"),
    };
    if let Err(error) = offer(shared, &offered, &mut channel) {
        return note(format_args!("another process asked to take over, and is gone: {error}"));
    }
    drop(offered);
    match channel.receive(READY) {
        Ok((Kind::Stop, _)) => {}
        // It failed, and has told its user why.
        _ => return note(format_args!("another process asked to take over, and did not")),
    }
    let channel = Arc::new(Mutex::new(channel));
    // Does not come back if all goes well.
    if let Err(error) = commander.make(Change::HandOver(channel.clone())) {
        warn(format_args!("another process could not take over: {error}"));
        let _ = lock(&channel).send(Kind::Refused, error.to_string().as_bytes());
    }
}

fn refuse(channel: &mut Channel, why: &str) {
    // One that is gone needs no answer.
    let line = serde_json::to_vec(&Response::Error(why.into())).unwrap_or_default();
    let _ = channel.send_line(&line);
}

fn offer(shared: &StackInner, offered: &Offered, channel: &mut Channel) -> io::Result<()> {
    let Giving { memory, listener, .. } = &shared.giving;
    let (Some(memory), Some(listener)) = (memory.get(), listener.get()) else {
        return Err(io::ErrorKind::NotConnected.into());
    };
    let value = serde_json::to_value(&offered.offer)?;
    channel.send_line(&serde_json::to_vec(&Response::Ok(value))?)?;
    let own = [memory.as_fd(), listener.as_fd()];
    let fds: Vec<BorrowedFd<'_>> = own.into_iter().chain(offered.fds.iter().map(AsFd::as_fd)).collect();
    channel.send_fds(&fds)?;
    offered.connections.iter().try_for_each(|some| channel.send(Kind::Connections, some))?;
    channel.send(Kind::Connections, &[])
}

/// With all standing still since `since`: tells the other process which connections changed since
/// the offer, and `stopped`. If it is the other's then, tells the user `totals`, and does not
/// return; else says why it is not.
pub(crate) fn hand_over(
    giving: &Giving,
    (channel, since): (&mut Channel, Instant),
    (changed, stopped): (&Connections, &Stopped),
    totals: &str,
) -> String {
    channel.set_deadline(Some(since + TAKES));
    let why = try_hand_over(giving, channel, (changed, stopped), totals);
    channel.set_deadline(None);
    why
}

fn try_hand_over(
    giving: &Giving,
    channel: &mut Channel,
    (changed, stopped): (&Connections, &Stopped),
    totals: &str,
) -> String {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => format!("it took nothing within {} ms", TAKES.as_millis()),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => "it has ended".into(),
        _ => error.to_string(),
    };
    let told = changed.iter().try_for_each(|some| channel.send(Kind::Connections, some));
    let told = told.and_then(|()| channel.send(Kind::Stopped, &stopped.encode()));
    let taken = told.and_then(|()| channel.receive(TAKES));
    match taken {
        Ok((Kind::Take, _)) => {}
        Ok(_) => return "it said something else than that it takes over".into(),
        Err(error) => return failed(error),
    }
    // If it has ended this fails: then it has touched nothing. Otherwise it may from here on.
    if let Err(error) = channel.send(Kind::Yours, &[]) {
        return failed(error);
    }
    giving.given.store(true, Ordering::Release);
    channel.set_deadline(None);
    note(format_args!("another process takes over: {totals}"));
    giving.end(match channel.receive(RUNS) {
        Ok((Kind::Done, _)) => Ok(()),
        Ok(_) => Err("it said something else than that it runs".into()),
        Err(error) => Err(failed(error)),
    })
}
