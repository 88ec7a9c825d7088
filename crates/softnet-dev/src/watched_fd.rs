//! A descriptor that is readable while packets wait in the kernel, as what a sleeper waits for.
//!
//! An epoll set of its own stands between the two: a queue without packet memory must not be woken
//! by packets that it can't take, and the descriptor would be readable all the time. Such a queue
//! is polled again by a timer (see [`Doorbell::starved`](crate::Doorbell::starved)).
//!
//! Any thread may wait for it; only the owner of the queue says whether it is starved. Invariant:
//! the set listens exactly while the queue is not starved.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::epoll;

use crate::sys_error::{SysError, SysResult};

pub(crate) struct WatchedFd {
    epoll: OwnedFd,
    fd: Arc<OwnedFd>,
    starved: AtomicBool,
}

impl WatchedFd {
    pub(crate) fn new(fd: Arc<OwnedFd>) -> SysResult<Self> {
        let failed = |errno: rustix::io::Errno| SysError::new("make a doorbell", errno.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, &fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(failed)?;
        Ok(WatchedFd { epoll, fd, starved: AtomicBool::new(false) })
    }

    /// What is watched.
    pub(crate) fn inner(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    #[inline(always)]
    pub(crate) fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed)
    }

    /// Notes whether there is packet memory. A system call if that has changed.
    #[inline(always)]
    pub(crate) fn set_starved(&self, starved: bool) {
        if self.starved.load(Ordering::Relaxed) != starved {
            self.change(starved);
        }
    }

    #[cold]
    fn change(&self, starved: bool) {
        let events = if starved { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
        // Can't fail: the descriptor is in the set. Were it to, the queue would be polled for
        // nothing.
        let _ = epoll::modify(&self.epoll, &self.fd, epoll::EventData::new_u64(0), events);
        self.starved.store(starved, Ordering::Relaxed);
    }
}

impl AsFd for WatchedFd {
    /// What to wait for (readable).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_queue_without_memory_is_not_rung() {
        let (read, mut write) = std::io::pipe().unwrap();
        let watched = WatchedFd::new(Arc::new(read.into())).unwrap();
        let rings = || {
            let mut fds = [PollFd::new(&watched, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
        };
        assert!(!rings());
        write.write_all(&[1]).unwrap();
        assert!(rings() && !watched.is_starved());
        watched.set_starved(true);
        assert!(!rings() && watched.is_starved());
        watched.set_starved(false);
        assert!(rings());
    }
}
