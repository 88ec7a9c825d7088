//! The instance's side of the control socket: one thread, a handful of clients, everything bounded.

#[cfg(any(test, fuzzing))]
pub mod fuzz;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FlockOperation, flock};
use softnet_dev::process::peer_pid;

use super::{Handler, MAX_REQUEST, Response};

/// Clients served at a time; more wait in the socket's backlog.
const MAX_CLIENTS: usize = 16;

/// How long a client may neither send nor take anything before it is disconnected.
const IDLE: Duration = Duration::from_secs(10);

/// Why a control socket could not be had.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another instance has it.
    #[error(
        "an instance with control socket {path} is already running, pid {}: stop it, or give this one another name \
         (stack.name)", pid.map_or("unknown".into(), |pid| pid.to_string())
    )]
    Running {
        /// The socket.
        path: String,
        /// Process id of the other one, if it can be seen from here.
        pid: Option<u32>,
    },
    /// Something that is no socket has its name.
    #[error("{0} exists and is not a socket: remove it, or set stack.control to another path")]
    NotASocket(String),
    /// The file system or the kernel refused.
    #[error("control socket {path}: {what}: {source}{}", hint(.source))]
    Io {
        /// The socket.
        path: String,
        /// What was tried.
        what: &'static str,
        /// What was said.
        source: io::Error,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (run as root, or set stack.control to a path that this user may write to)"
        }
        _ => "",
    }
}

/// A bound control socket that nobody answers on yet. Removes the socket when dropped.
pub struct Listener {
    socket: UnixListener,
    /// Held for its drop.
    _file: SocketFile,
}

/// The socket's name in the file system, removed on drop if it is still ours.
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another instance may have replaced it, even just now: then it is not ours to remove.
        let _lock = lock_directory(&self.path);
        if std::fs::symlink_metadata(&self.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Keeps other instances from changing what is in the directory of `path`, while the result lives.
fn lock_directory(path: &Path) -> io::Result<std::fs::File> {
    let lock = std::fs::File::open(directory(path))?;
    // Anybody who can read the directory can lock it, so nobody is waited for long.
    for _ in 0..40 {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(25)),
            result => return Ok(result.map(|()| lock)?),
        }
    }
    Err(io::Error::other("another program holds its lock"))
}

impl Listener {
    /// Binds `path`: makes its directory (mode 0755) if there is none, replaces the socket of an instance that is
    /// dead, refuses if it is alive. The socket gets mode 0600.
    pub fn bind(path: &Path) -> Result<Listener, BindError> {
        let shown = || path.display().to_string();
        let failed = |what| move |source: io::Error| BindError::Io { path: shown(), what, source };
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(directory(path));
        made.map_err(failed("making its directory"))?;
        // Two instances that start at once must not both find the same stale socket.
        let _lock = lock_directory(path).map_err(failed("locking its directory"))?;
        match std::fs::symlink_metadata(path) {
            Ok(meta) if !std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()) => {
                return Err(BindError::NotASocket(shown()));
            }
            Ok(_) => match UnixStream::connect(path) {
                Ok(peer) => return Err(BindError::Running { path: shown(), pid: peer_pid(&peer) }),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path).map_err(failed("removing the socket of a dead instance"))?;
                }
                Err(error) => return Err(failed("asking whether an instance is running")(error)),
            },
            Err(_) => {}
        }
        let socket = UnixListener::bind(path).map_err(failed("binding it"))?;
        let meta = std::fs::symlink_metadata(path).map_err(failed("looking at it"))?;
        let file = SocketFile { path: path.into(), identity: (meta.dev(), meta.ino()) };
        let only_owner = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(path, only_owner).map_err(failed("restricting it to its owner"))?;
        socket.set_nonblocking(true).map_err(failed("setting it up"))?;
        Ok(Listener { socket, _file: file })
    }

    /// Starts to answer with `handler`, on a thread of its own that sleeps while nobody asks.
    pub fn serve(self, handler: Arc<dyn Handler>) -> io::Result<Server> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let thread = std::thread::Builder::new().name("softnet-control".into()).spawn({
            let stop = stop.clone();
            move || Loop { listener: self, stop, handler, clients: Vec::new() }.run()
        })?;
        Ok(Server { stop, thread: Some(thread) })
    }
}

/// A control socket in service. Dropping it ends the thread and removes the socket.
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
}

impl Loop {
    fn run(mut self) {
        loop {
            let Ok((stop, knocked)) = self.wait() else { return };
            if stop {
                return;
            }
            let now = Instant::now();
            let handler = &*self.handler;
            self.clients.retain_mut(|client| client.turn(handler, now));
            if knocked {
                self.accept(now);
            }
        }
    }

    /// Blocks until there is something to do. Says whether to stop, and whether somebody wants to connect.
    fn wait(&mut self) -> io::Result<(bool, bool)> {
        let listen = if self.clients.len() < MAX_CLIENTS { PollFlags::IN } else { PollFlags::empty() };
        let mut fds =
            vec![PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&self.listener.socket, listen)];
        fds.extend(
            self.clients.iter().map(|client| PollFd::from_borrowed_fd(client.stream.as_fd(), client.wants())),
        );
        let deadline = self.clients.iter().map(|client| client.deadline).min();
        let timeout =
            deadline.map(|at| at.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        let timeout = timeout
            .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok((!fds[0].revents().is_empty(), !fds[1].revents().is_empty()))
    }

    fn accept(&mut self, now: Instant) {
        while self.clients.len() < MAX_CLIENTS {
            let stream = match self.listener.socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) if would_block(&error) => return,
                // Out of descriptors or memory: whoever knocked still waits, and must not make us spin.
                Err(_) => return std::thread::sleep(Duration::from_millis(100)),
            };
            if stream.set_nonblocking(true).is_ok() {
                self.clients.push(Client {
                    stream,
                    input: Vec::new(),
                    output: Vec::new(),
                    written: 0,
                    last: false,
                    deadline: now + IDLE,
                });
            }
        }
    }
}

struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
    /// Nothing is read any more: goodbye once the output is written.
    last: bool,
    deadline: Instant,
}

impl Client {
    /// Whether `input` holds all of a request, or too much for one.
    fn asked(&self) -> bool {
        self.input.contains(&b'\n') || self.input.len() > MAX_REQUEST
    }

    fn wants(&self) -> PollFlags {
        if self.output.is_empty() && !self.asked() { PollFlags::IN } else { PollFlags::OUT }
    }

    /// Reads, answers (once, so that the others get their turn) and writes what can be without blocking. Says
    /// whether the client stays.
    fn turn(&mut self, handler: &dyn Handler, now: Instant) -> bool {
        match self.step(handler) {
            Ok(true) => self.deadline = now + IDLE,
            Ok(false) => {}
            Err(_) => return false,
        }
        now < self.deadline && !(self.last && self.output.is_empty() && !self.asked())
    }

    fn step(&mut self, handler: &dyn Handler) -> io::Result<bool> {
        let mut progress = self.write()?;
        // A client that does not take its answer is not read from.
        if self.output.is_empty() {
            if !self.asked() && !self.last {
                progress |= self.read()?;
            }
            if self.asked() {
                self.answer(handler);
                progress |= self.write()?;
            }
        }
        Ok(progress)
    }

    fn read(&mut self) -> io::Result<bool> {
        let mut chunk = [0; MAX_REQUEST];
        match self.stream.read(&mut chunk) {
            Ok(0) => {
                self.last = true;
                Ok(true)
            }
            Ok(n) => {
                self.input.extend_from_slice(&chunk[..n]);
                Ok(true)
            }
            Err(error) if would_block(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn answer(&mut self, handler: &dyn Handler) {
        let response = match self.input.iter().position(|&byte| byte == b'\n') {
            Some(end) if end <= MAX_REQUEST => {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                match serde_json::from_slice(&line) {
                    Ok(request) => handler.request(request).map_or_else(Response::Error, Response::Ok),
                    Err(error) => Response::Error(format!("not a request: {error}")),
                }
            }
            _ => {
                self.last = true;
                self.input.clear();
                Response::Error(format!("a request takes at most {MAX_REQUEST} bytes"))
            }
        };
        self.output = serde_json::to_vec(&response).unwrap_or_else(|error| {
            format!(r#"{{"error":"answer cannot be written: {error:?}"}}"#).into_bytes()
        });
        self.output.push(b'\n');
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
        self.output = Vec::new();
        self.written = 0;
        Ok(progress)
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
