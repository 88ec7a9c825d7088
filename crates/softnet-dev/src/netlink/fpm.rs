//! Routes that FRR's zebra tells itself, by FPM (its module `dplane_fpm_nl`): zebra connects by
//! TCP, tells everything that it has, and from then on what changes. Its messages are the kernel's.
//!
//! Used by one thread. A connection that comes while another is open takes its place. When it ends,
//! what it told stays; the next one tells all anew, and what it has not told goes when it has told
//! none of those routes anew for a while. What makes no sense ends the connection.

mod frames;
mod routes;
#[cfg(test)]
mod tests;

use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};

use frames::Frames;
pub use frames::Malformed;
use routes::Routes;

use super::fib::KernelRoute;
use super::socket::{RECV_LEN, messages};
use crate::sys_error::{SysError, SysResult};

/// Times that is read before changes are told: some thousand routes.
const READS: usize = 8;
/// Connections that are accepted at once.
const ACCEPTS: usize = 16;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FpmEvent {
    /// A connection was made, perhaps in the place of one that was open.
    Connected(SocketAddr),
    /// It ended.
    Ended,
    /// It was ended since it is no FPM.
    Malformed(Malformed),
    /// So many routes were not told anew in time; their changes are told as well.
    Expired(usize),
    /// A route came, changed or went: as it was, and as it is.
    Changed(Option<KernelRoute>, Option<KernelRoute>),
}

/// Counters, and what is so now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FpmState {
    /// There is a connection.
    pub connected: bool,
    /// Connections that there were.
    pub connections: u64,
    /// Messages that were told.
    pub messages: u64,
    /// Connections that were ended since they were no FPM.
    pub malformed: u64,
    /// Routes there are.
    pub routes: usize,
    /// Those of them that were not told anew yet.
    pub stale: usize,
}

/// Listens for zebra. Used by one thread.
#[derive(Debug)]
pub struct FpmMonitor {
    listener: TcpListener,
    connection: Option<Connection>,
    routes: Routes,
    /// ns from the first message of a connection, and from the last that told a route anew, until
    /// those that it has not told go.
    hold: u64,
    buffer: Vec<u8>,
    state: FpmState,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    frames: Frames,
    /// When stale routes go.
    until: Option<u64>,
}

/// How a read ended.
enum Step {
    More,
    Blocked,
    Over(FpmEvent),
}

impl FpmMonitor {
    /// Listens on `address` in the calling thread's network namespace.
    pub fn listen(address: SocketAddr, hold: std::time::Duration) -> SysResult<Self> {
        let listen = || -> io::Result<TcpListener> {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener =
            listen().map_err(|error| SysError::new(format!("listen for FPM on {address}"), error))?;
        Ok(FpmMonitor {
            listener,
            connection: None,
            routes: Routes::default(),
            hold: u64::try_from(hold.as_nanos()).unwrap_or(u64::MAX),
            buffer: vec![0; RECV_LEN],
            state: FpmState::default(),
        })
    }

    /// What to wait for (readable) before calling [`next`](Self::next).
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let connection = self.connection.as_ref().map(|connection| connection.stream.as_fd());
        std::iter::once(self.listener.as_fd()).chain(connection)
    }

    /// When to call it although there is nothing to be read.
    pub fn due(&self) -> Option<u64> {
        let until = self.connection.as_ref()?.until;
        until.filter(|_| self.routes.len().1 > 0)
    }

    /// What is so now.
    pub fn state(&self) -> FpmState {
        let (routes, stale) = self.routes.len();
        FpmState { connected: self.connection.is_some(), routes, stale, ..self.state }
    }

    /// All routes that were told.
    pub fn routes(&self) -> impl Iterator<Item = KernelRoute> {
        self.routes.all()
    }

    /// Reads what was told until `now`, in ns, or a part of it, and hands over what came of it.
    /// Whether there may be more. Never blocks.
    pub fn next(&mut self, now: u64, mut told: impl FnMut(FpmEvent)) -> bool {
        for _ in 0..ACCEPTS {
            // An error is of the connection that was to be made, or there is one again later.
            let Ok((stream, peer)) = self.listener.accept() else { break };
            if stream.set_nonblocking(true).is_ok() {
                self.state.connections += 1;
                self.connection = Some(Connection { stream, frames: Frames::default(), until: None });
                told(FpmEvent::Connected(peer));
            }
        }
        let mut more = false;
        for _ in 0..READS {
            let step = self.read(now);
            more = matches!(step, Step::More);
            if let Step::Over(why) = step {
                self.connection = None;
                self.state.malformed += u64::from(matches!(why, FpmEvent::Malformed(_)));
                told(why);
            }
            if !more {
                break;
            }
        }
        // What is still to be read may tell them anew.
        if !more && self.due().is_some_and(|due| due <= now) {
            told(FpmEvent::Expired(self.routes.expire()));
        }
        self.routes.take_changes(|before, after| told(FpmEvent::Changed(before, after)));
        more
    }

    fn read(&mut self, now: u64) -> Step {
        let FpmMonitor { connection: Some(connection), buffer, routes, hold, state, .. } = self else {
            return Step::Blocked;
        };
        let Connection { stream, frames, until } = connection;
        let bytes = match stream.read(buffer) {
            Ok(0) => return Step::Over(FpmEvent::Ended),
            Ok(n) => &buffer[..n],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Step::Blocked,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Step::More,
            Err(_) => return Step::Over(FpmEvent::Ended),
        };
        let took = frames.push(bytes, |content| {
            if until.is_none() {
                *until = Some(now.saturating_add(*hold));
                routes.begin_session();
            }
            let (_, stale) = routes.len();
            state.messages += take(routes, content)?;
            if routes.len().1 < stale {
                // Routes of before are still being told anew.
                *until = Some(now.saturating_add(*hold));
            }
            Ok(())
        });
        match took {
            Ok(()) => Step::More,
            Err(why) => Step::Over(FpmEvent::Malformed(why)),
        }
    }
}

/// Takes the messages of a frame. How many.
fn take(routes: &mut Routes, content: &[u8]) -> Result<u64, Malformed> {
    let bad = |error: io::Error| Malformed::Message(error.to_string());
    let messages = messages(content, content.len()).map_err(bad)?;
    for message in &messages {
        routes.message(message.message_type(), message.payload());
    }
    Ok(messages.len() as u64)
}

/// What fuzzing runs: a stream, in pieces of which the first byte says how long they are; the
/// second begins another session now and then.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(data: &[u8]) {
    let [piece, session, stream @ ..] = data else { return };
    let (mut frames, mut routes) = (Frames::default(), Routes::default());
    for (at, bytes) in stream.chunks(usize::from(*piece) + 1).enumerate() {
        if at % (usize::from(*session) + 1) == 0 {
            routes.begin_session();
        }
        if frames.push(bytes, |content| take(&mut routes, content).map(drop)).is_err() {
            frames = Frames::default();
        }
        routes.check();
        routes.take_changes(|before, now| assert_ne!(before, now));
    }
    routes.begin_session();
    let (all, stale) = routes.len();
    assert_eq!((all, all), (stale, routes.expire()));
    assert_eq!(routes.len(), (0, 0));
}
