//! What a program asks of the system about processes: to be told of signals through a descriptor,
//! which process is at the other end of a socket, to take back memory that is free, and for as many
//! open files as there may be.
//!
//! [`Signals`] is for `main`: it must be made before other threads are, because they inherit which signals are
//! blocked, and a thread that does not block one may be killed by it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// SIGINT and SIGTERM as a descriptor that becomes readable (signalfd(2)).
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// From now on SIGINT and SIGTERM no longer end the process: code that waits for the descriptor does.
    pub fn new() -> io::Result<Self> {
        Self::of(&[libc::SIGINT, libc::SIGTERM])
    }

    /// The same, and SIGHUP too comes by the descriptor.
    pub fn with_hangup() -> io::Result<Self> {
        Self::of(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP])
    }

    fn of(signals: &[i32]) -> io::Result<Self> {
        // SAFETY: sigset_t is plain data for which all zeros is a value; sigemptyset then makes it a valid set.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a valid set that outlives the call.
        unsafe { libc::sigemptyset(&mut set) };
        for signal in signals {
            // SAFETY: `set` is a valid set that outlives the call, and all of these signals exist.
            unsafe { libc::sigaddset(&mut set, *signal) };
        }
        // SAFETY: `set` is a valid set; the old mask is not asked for.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: -1 asks for a new descriptor; `set` is a valid set.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor, and no other code has it.
        Ok(Signals { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Waits for a signal, at most for `timeout`: its number, if one came.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<i32> {
        let timeout = timeout
            .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        // A poll that fails or is interrupted has found nothing; without a time-out it is tried again.
        loop {
            let _ = poll(&mut [PollFd::new(self, PollFlags::IN)], timeout.as_ref());
            let came = self.taken();
            if came.is_some() || timeout.is_some() {
                return came;
            }
        }
    }

    /// The number of a signal that came, each once.
    pub fn taken(&self) -> Option<i32> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.fd, &mut info) {
            // ssi_signo is the first field.
            Ok(n) if n == info.len() => Some(u32::from_ne_bytes([info[0], info[1], info[2], info[3]]) as i32),
            _ => None,
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// From now on this process ignores SIGHUP, SIGUSR1, SIGUSR2 and SIGPIPE, each of which would end it at once. For a
/// daemon to which they mean nothing: none of them asks it to end, and what it has to give back would stay.
pub fn ignore_signals() {
    for signal in [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGPIPE] {
        // SAFETY: SIG_IGN runs no code of ours, and all of them may be ignored.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// The process at the other end of a connected Unix socket, if this PID namespace knows it.
pub fn peer_pid(stream: &UnixStream) -> Option<u32> {
    u32::try_from(peer(stream)?.pid).ok().filter(|&pid| pid != 0)
}

/// The effective user id of the process at the other end of a connected Unix socket, when it connected.
pub fn peer_uid(stream: &UnixStream) -> Option<u32> {
    peer(stream).map(|peer| peer.uid)
}

fn peer(stream: &UnixStream) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` and `len` are live, and `len` says how large `peer` is.
    let error = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut len,
        )
    };
    (error == 0).then_some(peer)
}

/// Raises how many files this process may have open at once to what the system allows it
/// (`RLIMIT_NOFILE`: the soft limit to the hard one). The soft limit is as low as 1024 for the sake
/// of select(2), which takes no larger descriptors.
pub fn raise_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // If it is refused, a device that does not find enough says so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

/// How many files this process may have open at once; `None`: any number.
pub(crate) fn files_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Gives memory that was freed back to the kernel. The allocator of glibc keeps what it expects to need again, which may
/// be all that was needed once, at the start; other allocators have ways of their own.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks, and touches only memory that is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// From now on pieces of memory from 256 KiB on go back to the kernel as soon as they are freed. The allocator of glibc
/// raises that limit with each larger piece, up to 32 MiB, and keeps what is below it. For programs that seldom need much.
pub fn return_large_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a parameter of the allocator, under the allocator's own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(peer_pid(&one), Some(std::process::id()));
        assert_eq!(peer_uid(&one), Some(rustix::process::geteuid().as_raw()));
    }

    #[test]
    fn the_soft_limit_of_open_files_becomes_the_hard_one() {
        let limit = getrlimit(Resource::Nofile);
        // One less than allowed does no harm to tests that run meanwhile.
        if let Some(maximum) = limit.maximum {
            setrlimit(Resource::Nofile, Rlimit { current: Some(maximum - 1), ..limit }).unwrap();
        }
        raise_files_limit();
        assert_eq!(files_limit(), limit.maximum);
    }

    /// On a thread of its own: the mask is the thread's, and the signal is sent to the thread alone.
    #[test]
    fn a_blocked_signal_is_told_once() {
        std::thread::spawn(|| {
            let signals = Signals::new().unwrap();
            assert_eq!(signals.taken(), None);
            // SAFETY: SIGTERM is blocked in this very thread.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) };
            assert_eq!(signals.taken(), Some(libc::SIGTERM));
            assert_eq!(signals.taken(), None);
        })
        .join()
        .unwrap();
    }
}
