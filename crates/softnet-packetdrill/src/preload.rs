//! Functions of the C library that packetdrill calls without asking the interface. The library is
//! preloaded, so that these come first.

use std::ffi::{c_int, c_long, c_void};

use libc::socklen_t;

use crate::{abi, world};

/// `getsockopt`: the code blocks of scripts ask for `TCP_INFO` by it. A descriptor that is none of
/// the run's is the kernel's.
///
/// # Safety
///
/// As of C's `getsockopt`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if world::is_running() && abi::owns(fd) {
        // SAFETY: as the caller promises.
        return unsafe { abi::option(fd, level, name, value, len) };
    }
    // SAFETY: as the caller promises.
    let result: c_long = unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) };
    result as c_int
}

/// `sched_setscheduler`: a real-time priority would starve the rest of the machine, and virtual
/// time needs none.
///
/// # Safety
///
/// None of its arguments is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sched_setscheduler(_: libc::pid_t, _: c_int, _: *const c_void) -> c_int {
    abi::fail(libc::EPERM)
}

/// `mlockall`: memory need not be locked, and a process without privileges may not.
#[unsafe(no_mangle)]
pub extern "C" fn mlockall(_: c_int) -> c_int {
    0
}
