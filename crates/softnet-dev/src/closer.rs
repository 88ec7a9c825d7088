//! Has what a process leaves behind when it is killed closed at once, by a process beside it.
//!
//! The kernel closes the files of a process that is killed one after another, before its parent hears of its
//! end; and of an AF_XDP socket, a packet socket, or an XDP program's attachment each takes a grace period of
//! RCU, 10 to 20 ms. So a supervisor would start a router with 16 queues again half a second late. A second
//! process that shares the table of open files (`CLONE_FILES`) keeps them open beyond the end of the first,
//! which is therefore heard of within a few milliseconds, and closes them then: those that others wait for
//! first, those that take long all at the same time. Meanwhile the next instance is being loaded (under systemd
//! it waits for that, too).
//!
//! * **Callers.** `main`, once, before it makes other threads, opens anything, or uses much memory, of which the
//!   second process keeps a copy.
//! * **Invariant.** The second process touches no file before the first has ended, whatever that ended by.

use std::fs::DirEntry;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, sockopt};
use rustix::process::{DumpableBehavior, PidfdFlags, WaitOptions, getpid, pidfd_open, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::confine;
#[cfg(doc)]
use crate::process::raise_files_limit;

/// Processes that close at the same time, at the most.
const AT_ONCE: usize = 32;

/// Makes that process. It has the caller's files, blocks and ignores the signals that the caller does, and ends
/// after it. Without it all works as well, and ends later. How many files there may be ([`raise_files_limit`]) is
/// to be settled before.
///
/// # Errors
/// Where there may be no other process, and on kernels before 5.3.
pub fn start() -> io::Result<()> {
    let first = pidfd_open(getpid(), PidfdFlags::empty())?;
    // SAFETY: no other thread is, by the module's rule, whose locks the copy would find held; and the copy
    // goes on as the original does, with a stack of its own at the same address.
    match unsafe { clone_with_files() }? {
        Copy::Original => {
            // It is the other's, in the table that both have.
            std::mem::forget(first);
            Ok(())
        }
        Copy::Copied => wait_and_close(first),
    }
}

enum Copy {
    Original,
    Copied,
}

/// As fork(2), but that both processes have one table of open files.
///
/// # Safety
/// As of fork(2): the copy has this thread alone. Neither may close a file that the other has to do with.
unsafe fn clone_with_files() -> io::Result<Copy> {
    // SAFETY: no stack is told, so that the copy has a copy of this one; no other argument has a meaning.
    match unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0) } {
        0 => Ok(Copy::Copied),
        pid if pid > 0 => Ok(Copy::Original),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What the second process does.
fn wait_and_close(first: OwnedFd) -> ! {
    // It has the first one's files, and soon none of the capabilities that keep others of its user from these.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // It needs none of what it could do; if that is refused, it is as confined as the first was here.
    let none = CapabilitySet::empty();
    let _ = set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none });
    let _ = confine::filter_system_calls();
    let _ = rustix::thread::set_name(c"softnet-closer");
    while poll(&mut [PollFd::new(&first, PollFlags::IN)], None).is_err() {}
    // Its number is free for the directory below, should all others be taken.
    drop(first);
    let Ok(files) = open_files() else {
        // One after another, then. SAFETY: as in `close`.
        unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
        exit()
    };
    let of = |kind| files.iter().filter(move |(_, of)| *of == kind).map(|(fd, _)| *fd);
    of(Kind::Quick).for_each(close);
    of(Kind::Control).for_each(close);
    let slow: Vec<RawFd> = of(Kind::Slow).collect();
    // Its own copies are not waited for by number.
    // SAFETY: SIG_IGN runs no code, and this process has no other children.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let each = slow.len().div_ceil(AT_ONCE).max(1);
    for some in slow.chunks(each) {
        // SAFETY: this process has one thread, and closes only files of one that has ended.
        match unsafe { clone_with_files() } {
            Ok(Copy::Original) => {}
            copied_or_failed => {
                some.iter().copied().for_each(close);
                if copied_or_failed.is_ok() {
                    exit();
                }
            }
        }
    }
    // Until none is left.
    while rustix::process::wait(WaitOptions::empty()).is_ok() {}
    exit()
}

/// Without what a program does at its end, which is the first process's to do.
fn exit() -> ! {
    // SAFETY: it ends this process, and runs no code of it.
    unsafe { libc::_exit(0) }
}

fn close(fd: RawFd) {
    // SAFETY: the number was read from the table of files. The process that owned it has ended, and this one uses
    // none of them.
    unsafe { libc::close(fd) };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Closing it takes no time.
    Quick,
    /// Nor this; by the control socket, one of these, the next instance sees whether this one is gone, so that
    /// ports and locks are free by then.
    Control,
    /// Closing it takes a grace period, or frees much memory.
    Slow,
}

/// All open files.
fn open_files() -> io::Result<Vec<(RawFd, Kind)>> {
    // What is read here is closed when it was read, and its number free again.
    let entries: Vec<_> = std::fs::read_dir("/proc/self/fd")?.collect();
    let number = |entry: io::Result<DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(entries.into_iter().filter_map(number).map(|fd| (fd, kind(fd))).collect())
}

fn kind(fd: RawFd) -> Kind {
    // SAFETY: the number was read from the table of files, which no other thread or process changes now; were it
    // no file any more, the calls would say so.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    if let Ok(family) = sockopt::socket_domain(file) {
        return match family {
            AddressFamily::UNIX => Kind::Control,
            AddressFamily::XDP | AddressFamily::PACKET => Kind::Slow,
            _ => Kind::Quick,
        };
    }
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    let path = path.to_string_lossy();
    let slow = ["bpf_link", "bpf-link", "/dev/net/tun", "/memfd:"];
    if slow.iter().any(|of| path.contains(of)) { Kind::Slow } else { Kind::Quick }
}
