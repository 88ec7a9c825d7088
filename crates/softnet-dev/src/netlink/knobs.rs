//! Knobs of a link that rtnetlink does not have: offloads (ethtool ioctl) and `threaded` NAPI (sysfs).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{CpuSet, Pid, sched_setaffinity};

use crate::sys_error::{SysError, SysResult};

/// A software offload of a link that can be switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Offload {
    /// The kernel may leave L4 checksums of what it sends for the device to fill in. Off, it also sends no
    /// segments that are larger than the MTU.
    TxChecksum = 0x17,
    /// The kernel leaves cutting TCP segments that are larger than the MTU to the last moment
    /// before the device, if that does not cut by itself. Off, TCP sends packets of the MTU.
    Gso = 0x24,
    /// The kernel may send TCP segments that are larger than the MTU. On a veth with this on, frames forwarded
    /// into it bypass the peer's NAPI.
    Tso = 0x1f,
    /// The kernel merges received segments. A veth has a NAPI instance only with this on, or with XDP attached.
    Gro = 0x2c,
}

#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// `struct ifreq` with its union used as a pointer, and padded to the size of the real one.
#[repr(C)]
struct EthtoolRequest {
    name: [c_char; libc::IFNAMSIZ],
    data: *mut EthtoolValue,
    _rest: [u8; 16],
}

/// Switches an offload of the interface called `name` in the calling thread's namespace (ethtool's legacy
/// `ETHTOOL_S…` commands).
///
/// # Errors
/// ENODEV if there is no such interface; EOPNOTSUPP if it can't. Needs CAP_NET_ADMIN.
pub fn set_offload(name: &str, offload: Offload, on: bool) -> SysResult<()> {
    let what = format!("switch {offload:?} of {name} {}", if on { "on" } else { "off" });
    let name = interface_name(name).map_err(|error| SysError::new(what.as_str(), error))?;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| SysError::new(what.as_str(), errno.into()))?;
    let mut value = EthtoolValue { command: offload as u32, data: u32::from(on) };
    let mut request = EthtoolRequest { name, data: &raw mut value, _rest: [0; 16] };
    // SAFETY: the request is as large as the kernel's `struct ifreq` (40 bytes), and its pointer is to a live value
    // of the layout this command reads.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    if result < 0 { Err(SysError::last(what).needs("CAP_NET_ADMIN")) } else { Ok(()) }
}

fn interface_name(name: &str) -> io::Result<[c_char; libc::IFNAMSIZ]> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.bytes().any(|byte| byte == 0 || byte == b'/') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an interface name"));
    }
    let mut bytes = [0; libc::IFNAMSIZ];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    Ok(bytes)
}

/// Moves the kernel's own NAPI polling of the interface called `name`, in the calling thread's namespace, to kernel
/// threads (`/sys/class/net/<name>/threaded`), or back to softirq. Holds for NAPI instances it has and will have.
///
/// The `/sys` that is mounted shows the namespace of the thread that mounted it, so a sysfs of our own is made, which
/// is mounted nowhere and vanishes when this returns.
///
/// # Errors
/// ENOENT if there is no such interface, or a kernel before 5.12; EOPNOTSUPP if it has no NAPI instance now (a veth
/// has some only with GRO on or XDP attached). Needs CAP_SYS_ADMIN.
pub fn set_threaded(name: &str, on: bool) -> SysResult<()> {
    let what = format!("set threaded of {name} to {}", u8::from(on));
    let fail = |error: io::Error| SysError::new(what.as_str(), error).needs("CAP_SYS_ADMIN");
    interface_name(name).map_err(fail)?;
    let sysfs = detached_sysfs().map_err(fail)?;
    let knob =
        openat(&sysfs, format!("class/net/{name}/threaded"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| fail(errno.into()))?;
    std::fs::File::from(knob).write_all(if on { b"1" } else { b"0" }).map_err(fail)
}

/// Has the kernel process what the interface called `name`, in the calling thread's namespace, receives by its first
/// queue on one of `cpus` of the first 64 (`/sys/class/net/<name>/queues/rx-0/rps_cpus`); none: where it is polled.
///
/// # Errors
/// ENOENT if there is no such interface. Needs CAP_SYS_ADMIN: sysfs is mounted for the moment.
pub fn set_rps(name: &str, cpus: &[usize]) -> SysResult<()> {
    let what = format!("set rps_cpus of {name} to {cpus:?}");
    let fail = |error: io::Error| SysError::new(what.as_str(), error).needs("CAP_SYS_ADMIN");
    interface_name(name).map_err(fail)?;
    let sysfs = detached_sysfs().map_err(fail)?;
    let path = format!("class/net/{name}/queues/rx-0/rps_cpus");
    let knob = openat(&sysfs, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| fail(errno.into()))?;
    let mask = cpus.iter().filter(|cpu| **cpu < 64).fold(0u64, |mask, cpu| mask | 1 << cpu);
    // Groups of 32 CPUs, no more than there may be.
    let groups = match mask >> 32 {
        0 => format!("{mask:x}"),
        high => format!("{high:x},{:08x}", mask as u32),
    };
    std::fs::File::from(knob).write_all(groups.as_bytes()).map_err(fail)
}

/// Runs the NAPI threads of the interface called `name` on `cpu`; returns how many there are. They exist after
/// [`set_threaded`], for each NAPI instance of an interface that is up.
///
/// Threads carry the interface's name only (`napi/<name>-<id>`), so the name should be unique in the machine.
///
/// # Errors
/// EINVAL if there is no such CPU. Needs CAP_SYS_NICE.
pub fn pin_napi_threads(name: &str, cpu: usize) -> SysResult<usize> {
    let what = format!("run the NAPI threads of {name} on CPU {cpu}");
    let fail = |error: io::Error| SysError::new(what.as_str(), error).needs("CAP_SYS_NICE");
    if cpu >= CpuSet::MAX_CPU {
        return Err(fail(io::Error::from_raw_os_error(libc::EINVAL)));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    let prefix = format!("napi/{name}-");
    let mut pinned = 0;
    for process in std::fs::read_dir("/proc").map_err(fail)?.filter_map(Result::ok) {
        let Some(pid) =
            process.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw)
        else {
            continue;
        };
        let comm = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        if comm.starts_with(&prefix) {
            sched_setaffinity(Some(pid), &set).map_err(|errno| fail(errno.into()))?;
            pinned += 1;
        }
    }
    Ok(pinned)
}

const FSCONFIG_CMD_CREATE: c_uint = 6;
const FSOPEN_CLOEXEC: c_uint = 1;
const FSMOUNT_CLOEXEC: c_uint = 1;

/// A sysfs of the calling thread's network namespace, attached to no directory.
fn detached_sysfs() -> io::Result<OwnedFd> {
    let context = fsopen(c"sysfs")?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd())
}

fn fsopen(filesystem: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: a zero-terminated name and flags; returns a descriptor or -1.
    owned(unsafe { libc::syscall(libc::SYS_fsopen, filesystem.as_ptr(), FSOPEN_CLOEXEC) })
}

fn fsconfig_create(context: BorrowedFd<'_>) -> io::Result<()> {
    let none = std::ptr::null::<c_void>();
    // SAFETY: this command takes neither key nor value.
    let result = unsafe {
        libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CMD_CREATE, none, none, 0 as c_int)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn fsmount(context: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: a filesystem context and flags; returns a descriptor or -1.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0 as c_uint) })
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(result as c_int) })
}
