//! Programs at the tc hooks of an interface (`tcx`): behind RPS on the way in, before the queueing discipline on the way
//! out.
//!
//! Control-path code; any thread may call it. An attachment is a descriptor, and vanishes with it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::sys::{LINK_CREATE, LinkCreateAttr, Program, bpf_fd};
use crate::sys_error::{SysError, SysResult};

/// Where the program stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcxHook {
    /// Sees what came in (`BPF_TCX_INGRESS`).
    Ingress,
    /// Sees what goes out (`BPF_TCX_EGRESS`).
    Egress,
}

/// What a program says there (`enum tcx_action_base`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum TcxAction {
    Next = -1,
    Pass = 0,
    Drop = 2,
}

/// A program attached to an interface. Dropping it, or the end of the process, detaches it.
#[derive(Debug)]
pub struct TcxLink {
    _fd: OwnedFd,
}

impl TcxLink {
    /// Attaches `program` to the interface `ifindex` of the calling thread's network namespace, behind those that are
    /// there.
    ///
    /// # Errors
    /// EINVAL before Linux 6.6, and where the program is of another kind; ENODEV where there is no such interface.
    pub fn attach(program: &Program, ifindex: u32, hook: TcxHook) -> SysResult<Self> {
        let mut attr = LinkCreateAttr {
            prog_fd: program.as_fd().as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type: match hook {
                TcxHook::Ingress => 46,
                TcxHook::Egress => 47,
            },
            flags: 0,
        };
        let fd = bpf_fd(LINK_CREATE, &mut attr).map_err(|error| {
            let what = format!("attach a BPF program to interface {ifindex} ({hook:?})");
            SysError::new(what, error).needs("CAP_BPF,CAP_NET_ADMIN")
        })?;
        Ok(TcxLink { _fd: fd })
    }
}
