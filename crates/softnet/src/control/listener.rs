//! The control socket's place in the file system: which users may have it, and that there is only one.
//!
//! Called at the start of an instance and when its server ends. Two instances that start at once are kept apart by a lock
//! on a file that only their user can open, in a directory that only their user (or root) can write to: so no other user
//! can hold the lock, put something in the way, or take the name. The directory is opened once, checked, and from then on
//! meant by its descriptor: others may have a say in what its path leads to. Invariant: the socket never is open to others,
//! not even between its creation and the next call; to those of a group only if that is asked for.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Gid, Pid};
use softnet_dev::process::peer_pid;

/// The lock, beside the socket. It stays: to remove what another instance may be about to lock is a race.
const LOCK: &str = ".softnet.lock";

/// This process's descriptors, as names.
const OPEN_FILES: &str = "/proc/self/fd";

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// How long the socket of a process that has ended is waited for: tries, and the pause between them.
const CLOSING_TRIES: u32 = 100;
const CLOSING_PAUSE: Duration = Duration::from_millis(5);

/// Why a control socket could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    /// Other users could put something in its place.
    #[error(
        "control socket {path}: its directory {why}, so that others could take its place: set stack.control to a path \
         in a directory that only this user may write to, such as /run/softnet"
    )]
    Directory {
        /// The socket.
        path: String,
        /// What is wrong with the directory.
        why: String,
    },
    /// The group that may look is not known.
    #[error(
        "control.group: there is no group {0:?} in /etc/group: make it (groupadd --system {0}), or give a number"
    )]
    Group(String),
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

/// A bound control socket that is not answered on yet. Removes the socket when dropped.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: UnixListener,
    /// The group whose members may look, and change nothing.
    pub(super) group: Option<String>,
    /// Its number, until the socket is given to it.
    gid: Option<Gid>,
    /// Held for its drop.
    _file: SocketFile,
}

/// The socket's name in the file system, removed on drop if it is still ours.
#[derive(Debug)]
struct SocketFile {
    directory: OwnedFd,
    name: PathBuf,
    identity: (u64, u64),
    /// Another process answers on it still.
    elsewhere: bool,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.elsewhere {
            return;
        }
        // Another instance may have replaced it, even just now: then it is not ours to remove.
        let _lock = lock(&self.directory);
        if look(&self.directory, &self.name).is_ok_and(|meta| identity(&meta) == self.identity) {
            let _ = rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// The number of `group`, which is one, or a name that `groups` has, in the form of `/etc/group`.
fn group_id(group: &str, groups: &str) -> Option<Gid> {
    let number = group.parse().ok().or_else(|| {
        let mut lines = groups.lines().map(|line| line.split(':'));
        // NAME:PASSWORD:NUMBER:MEMBERS
        lines.find_map(|mut fields| (fields.next()? == group).then(|| fields.nth(1)?.parse().ok())?)
    })?;
    // The last one means none.
    (number != u32::MAX).then(|| Gid::from_raw(number))
}

/// The same, by the machine's file.
fn known_group(group: &str) -> Result<Gid, BindError> {
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    group_id(group, &groups).ok_or_else(|| BindError::Group(group.into()))
}

/// A path to `name` in `directory`, for calls that take nothing but paths.
fn inside(directory: &OwnedFd, name: &Path) -> PathBuf {
    Path::new(OPEN_FILES).join(directory.as_raw_fd().to_string()).join(name)
}

/// Whether `listed`, the name that a socket was bound by, may be `path`: its directory is not in what [`inside`] makes.
pub(super) fn may_be(listed: &Path, path: &Path) -> bool {
    let by_descriptor = listed.parent().and_then(Path::parent) == Some(Path::new(OPEN_FILES));
    listed == path || by_descriptor && listed.file_name() == path.file_name()
}

/// What has this name, itself and not what it may point to.
fn look(directory: &OwnedFd, name: &Path) -> io::Result<Stat> {
    Ok(rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn identity(meta: &Stat) -> (u64, u64) {
    (meta.st_dev, meta.st_ino)
}

/// Why a directory is not safe: another user owns it, or may write to it.
fn unsafe_directory(meta: &Stat) -> Option<String> {
    let (owner, me) = (meta.st_uid, rustix::process::geteuid().as_raw());
    if owner != 0 && owner != me {
        return Some(format!("belongs to user {owner}"));
    }
    let others = meta.st_mode & 0o022;
    (others != 0).then(|| format!("may be written to by others (mode {:04o})", meta.st_mode & 0o7777))
}

/// Keeps other instances from changing what is in `directory`, while the result lives.
fn lock(directory: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, LOCK, flags, Mode::RUSR | Mode::WUSR)?;
    // It may be there with another mode; a user that can open it can lock it.
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    // It is held for a few calls, by instances of the same user: one that is stopped meanwhile is not waited for long.
    for _ in 0..40 {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(25)),
            result => return Ok(result.map(|()| file)?),
        }
    }
    Err(io::Error::other("another program of this user holds it"))
}

/// What became of an attempt to connect.
pub(crate) enum Probe {
    /// A process listens. There is no stream if too many others wait.
    Listens(Option<UnixStream>),
    /// No process does, or there is no such socket.
    Gone,
    /// It is another user's.
    Denied,
}

/// Whether a process listens on the socket at `path`. Does not wait.
pub(crate) fn probe(path: &Path) -> io::Result<Probe> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(Probe::Listens(Some(socket.into()))),
        Err(Errno::AGAIN) => Ok(Probe::Listens(None)),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(Probe::Gone),
        Err(Errno::ACCESS | Errno::PERM) => Ok(Probe::Denied),
        Err(error) => Err(error.into()),
    }
}

/// The same. One that belonged to a process which has ended is waited for: another process is about to close it
/// ([`softnet_dev::closer`]).
fn probe_patiently(path: &Path) -> io::Result<Probe> {
    for _ in 0..CLOSING_TRIES {
        match probe(path)? {
            Probe::Listens(Some(stream)) if peer_pid(&stream).is_some_and(|pid| !exists(pid)) => {
                std::thread::sleep(CLOSING_PAUSE);
            }
            other => return Ok(other),
        }
    }
    probe(path)
}

fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// Where a control socket is to be: a directory that only its user, or root, can write to.
struct Place<'a> {
    path: &'a Path,
    directory: OwnedFd,
    name: PathBuf,
}

fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> BindError {
    move |source| BindError::Io { path: path.display().to_string(), what, source }
}

fn refused(path: &Path, what: &'static str) -> impl FnOnce(Errno) -> BindError {
    move |error| failed(path, what)(error.into())
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Listener {
    /// Binds `path`: makes its directory (mode 0755) if there is none, replaces the socket of an instance that is
    /// dead, refuses if it is alive. The socket has mode 0600 from its first moment.
    pub fn bind(path: &Path) -> Result<Listener, BindError> {
        Place::open(path)?.bind()
    }

    /// The same; members of `group`, a name or a number, may connect to look, and change nothing.
    /// The socket has mode 0660 then, from when it is the group's.
    pub fn bind_for(path: &Path, group: Option<&str>) -> Result<Listener, BindError> {
        let Some(name) = group else { return Self::bind(path) };
        let gid = known_group(name)?;
        let mut listener = Place::open(path)?.bind()?;
        listener.give_to(path, name, gid)?;
        Ok(listener)
    }

    /// The socket of another process at `path`, which that hands over: it is this one's when
    /// [`taken_over`](Self::taken_over) is called, and until then nothing becomes of it.
    pub(crate) fn handed_over(
        socket: OwnedFd,
        path: &Path,
        group: Option<&str>,
    ) -> Result<Listener, BindError> {
        // Here, since one that is not known is refused before the other process stops.
        let gid = group.map(known_group).transpose()?;
        let Place { path, directory, name } = Place::open(path)?;
        let meta = look(&directory, &name).map_err(failed(path, "looking at it"))?;
        let file = SocketFile { directory, name, identity: identity(&meta), elsewhere: true };
        Ok(Listener { socket: socket.into(), group: group.map(String::from), gid, _file: file })
    }

    /// It is this process's: what connects is told so, and the file is removed when it is dropped.
    pub(crate) fn taken_over(&mut self, path: &Path) -> Result<(), BindError> {
        self._file.elsewhere = false;
        // By this the kernel notes which process listens.
        rustix::net::listen(self.socket.as_fd(), BACKLOG).map_err(refused(path, "listening on it"))?;
        let (Some(name), Some(gid)) = (self.group.clone(), self.gid.take()) else {
            let (directory, file) = (&self._file.directory, &self._file.name);
            return rustix::fs::chmodat(directory, file, Mode::RUSR | Mode::WUSR, AtFlags::empty())
                .map_err(refused(path, "restricting it to its owner"));
        };
        self.give_to(path, &name, gid)
    }

    /// Has members of the group connect, too.
    fn give_to(&mut self, path: &Path, name: &str, gid: Gid) -> Result<(), BindError> {
        let os = |what| refused(path, what);
        let (directory, file) = (&self._file.directory, &self._file.name);
        rustix::fs::chownat(directory, file, None, Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(os("giving it to the group of control.group"))?;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
        rustix::fs::chmodat(directory, file, mode, AtFlags::empty())
            .map_err(os("opening it for the group of control.group"))?;
        self.group = Some(name.into());
        Ok(())
    }
}

impl<'a> Place<'a> {
    /// Opens the directory of `path`, which is made if there is none, and checks it.
    fn open(path: &'a Path) -> Result<Self, BindError> {
        let io = |what| failed(path, what);
        let os = |what| refused(path, what);
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Some(name) = path.file_name().map(PathBuf::from) else {
            return Err(io("its path")(io::Error::from(io::ErrorKind::InvalidInput)));
        };
        let made = std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o755)
            .create(parent);
        made.map_err(io("making its directory"))?;
        // What follows is about this directory, whatever its path leads to later. (A link is followed, as /var/run is one:
        // where it leads is what is checked.)
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory =
            rustix::fs::open(parent, flags, Mode::empty()).map_err(os("opening its directory"))?;
        let meta = rustix::fs::fstat(&directory).map_err(os("looking at its directory"))?;
        if let Some(why) = unsafe_directory(&meta) {
            return Err(BindError::Directory { path: path.display().to_string(), why });
        }
        // One that is too long for clients is too long here.
        SocketAddrUnix::new(path).map_err(os("binding it"))?;
        Ok(Place { path, directory, name })
    }

    /// Binds the socket there.
    fn bind(self) -> Result<Listener, BindError> {
        let Place { path, directory, name } = self;
        let shown = || path.display().to_string();
        let io = |what| failed(path, what);
        let os = |what| refused(path, what);
        let here = inside(&directory, &name);
        // Two instances that start at once must not both find the same stale socket.
        let _lock = lock(&directory).map_err(io("locking .softnet.lock beside it"))?;
        match look(&directory, &name) {
            Ok(meta) if FileType::from_raw_mode(meta.st_mode) != FileType::Socket => {
                return Err(BindError::NotASocket(shown()));
            }
            Ok(_) => match probe_patiently(&here).map_err(io("asking whether an instance is running"))? {
                Probe::Listens(peer) => {
                    return Err(BindError::Running { path: shown(), pid: peer.as_ref().and_then(peer_pid) });
                }
                Probe::Gone => rustix::fs::unlinkat(&directory, &name, AtFlags::empty())
                    .map_err(os("removing the socket of a dead instance"))?,
                Probe::Denied => {
                    return Err(os("asking whether an instance is running")(Errno::ACCESS));
                }
            },
            Err(_) => {}
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.map_err(os("making it"))?;
        // The file gets the mode that the socket has, less the umask: no other user ever finds it open.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(os("restricting it to its owner"))?;
        let addr = SocketAddrUnix::new(&here).map_err(os("binding it"))?;
        rustix::net::bind(&socket, &addr).map_err(os("binding it"))?;
        let meta = look(&directory, &name).map_err(io("looking at it"))?;
        // From here on it is removed if anything fails.
        let file = SocketFile { directory, name, identity: identity(&meta), elsewhere: false };
        if meta.st_mode & 0o077 != 0 {
            let source = io::Error::other("its file system gave it to others too");
            return Err(io("restricting it to its owner")(source));
        }
        rustix::net::listen(socket.as_fd(), BACKLOG).map_err(os("listening on it"))?;
        Ok(Listener { socket: socket.into(), group: None, gid: None, _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another user owns a directory further up and, after the check, puts something else in this one's place.
    #[test]
    fn the_directory_that_was_checked_is_the_one_bound_in() {
        let dir = tempfile::tempdir().unwrap();
        let (checked, moved) = (dir.path().join("checked"), dir.path().join("moved"));
        let path = checked.join("x.sock");
        let place = Place::open(&path).unwrap();
        std::fs::rename(&checked, &moved).unwrap();
        std::fs::create_dir(&checked).unwrap();
        let listener = place.bind().unwrap();
        assert!(!path.exists() && moved.join("x.sock").exists());
        // Nor is another instance in the other's way.
        let other = Listener::bind(&path).unwrap();
        let again = Place { path: &path, directory: open(&moved), name: "x.sock".into() };
        assert!(matches!(again.bind().map(drop), Err(BindError::Running { .. })));
        drop((listener, other));
        assert!(!path.exists() && !moved.join("x.sock").exists());
    }

    fn open(directory: &Path) -> OwnedFd {
        rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn groups_are_known_by_name_and_number() {
        let groups = "root:x:0:\n# a comment\nbad\nadm:x:4:syslog\nodd:x:many:\n";
        let id = |group| group_id(group, groups).map(|gid| gid.as_raw());
        assert_eq!([id("root"), id("adm"), id("4711")], [Some(0), Some(4), Some(4711)]);
        assert_eq!([id("bad"), id("odd"), id("none"), id(""), id("4294967295")], [None; 5]);
        let dir = tempfile::tempdir().unwrap();
        let error = Listener::bind_for(&dir.path().join("x.sock"), Some("no such group")).unwrap_err();
        assert!(error.to_string().contains("there is no group \"no such group\" in /etc/group"), "{error}");
    }

    #[test]
    fn a_socket_that_was_bound_by_descriptor_is_known_by_its_name() {
        let path = Path::new("/run/softnet/a.sock");
        for (listed, known) in [
            ("/run/softnet/a.sock", true),
            ("/proc/self/fd/12/a.sock", true),
            ("/proc/self/fd/12/b.sock", false),
            ("/tmp/a.sock", false),
        ] {
            assert_eq!(may_be(Path::new(listed), path), known, "{listed}");
        }
    }
}
