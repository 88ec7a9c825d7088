//! How a wait on an epoll descriptor of the kernel's busy polls (`struct epoll_params`,
//! include/uapi/linux/eventpoll.h).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The kernel's `struct epoll_params`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BusyPoll {
    /// How long a wait polls before it sleeps, in µs; 0: once.
    pub usecs: u32,
    /// Packets that a poll takes at the most.
    pub budget: u16,
    /// Whether the instance's interrupt stays masked between polls (1) or not (0), as far as its knobs allow.
    pub prefer: u8,
    /// Must be 0.
    pub pad: u8,
}

/// `_IOW(0x8a, 1, struct epoll_params)`.
const EPIOCSPARAMS: libc::Ioctl =
    ((1 << 30) | ((size_of::<BusyPoll>() as u64) << 16) | (0x8a << 8) | 1) as libc::Ioctl;

pub(super) fn set_busy_poll(epoll: BorrowedFd<'_>, params: BusyPoll) -> io::Result<()> {
    // SAFETY: the argument is live and of the layout and size that the request's number says.
    let error = unsafe { libc::ioctl(epoll.as_raw_fd(), EPIOCSPARAMS, &raw const params) };
    if error == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::epoll::{self, CreateFlags};

    use super::*;

    /// `_IOR(0x8a, 2, struct epoll_params)`.
    const EPIOCGPARAMS: libc::Ioctl =
        ((2 << 30) | ((size_of::<BusyPoll>() as u64) << 16) | (0x8a << 8) | 2) as libc::Ioctl;

    #[test]
    fn the_kernel_tells_what_was_set() {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let params = BusyPoll { usecs: 64, budget: 17, prefer: 1, pad: 0 };
        match set_busy_poll(epoll.as_fd(), params) {
            // Before Linux 6.9.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => return,
            result => result.unwrap(),
        }
        let mut told = BusyPoll::default();
        // SAFETY: the argument is live, and of the size that the request's number says.
        assert_eq!(unsafe { libc::ioctl(epoll.as_raw_fd(), EPIOCGPARAMS, &raw mut told) }, 0);
        assert_eq!(told, params);
        let wrong = BusyPoll { pad: 1, ..params };
        assert_eq!(set_busy_poll(epoll.as_fd(), wrong).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
