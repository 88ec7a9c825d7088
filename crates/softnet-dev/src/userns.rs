//! User namespaces: how a process without privileges becomes root of networks of its own.
//!
//! To be called before there are other threads: a namespace of users is a property of the process in Linux.

use std::fs;
use std::io;

use rustix::process::{getgid, getuid};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, unshare_unsafe};

use crate::sys_error::SysError;

/// Whether the process is in a user namespace that was made, and not in the one that the kernel
/// started with: root of such a one may have networks, but the kernel refuses it all of BPF.
pub fn is_inside() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    // Without /proc, or without user namespaces: in none.
    !map.is_empty() && map.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"]
}

/// Whether the calling thread may make network namespaces (CAP_SYS_ADMIN).
pub fn may_make_networks() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Makes the process root of a new user namespace, and no more than it was outside.
///
/// # Errors
/// EINVAL with other threads; EPERM, ENOSPC and others where user namespaces are not allowed.
pub fn enter() -> io::Result<()> {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    // SAFETY: a user namespace changes which credentials mean what; no descriptor table or memory is touched.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }
        .map_err(|errno| SysError::new("create a user namespace", errno.into()))?;
    for (file, text) in
        [("setgroups", "deny".into()), ("uid_map", format!("0 {uid} 1")), ("gid_map", format!("0 {gid} 1"))]
    {
        let path = format!("/proc/self/{file}");
        fs::write(&path, text).map_err(|error| SysError::new(format!("write {path}"), error))?;
    }
    Ok(())
}
