//! Programs that are run by hand: to try them, to time them, and to let packets come in by an interface as if its driver had brought
//! them (`BPF_PROG_TEST_RUN`, the kernel's `Documentation/bpf/bpf_prog_run.rst`).
//!
//! For benches and tests; any thread may call it. The packets come on the CPU of the calling thread, and take the ways
//! that those of the driver's own poll take.

use std::os::fd::{AsFd, AsRawFd};

use super::sys::{Program, bpf};
use crate::sys_error::{SysError, SysResult};

const PROG_TEST_RUN: u32 = 10;

/// Run flag: what the program passes goes up the stack (`BPF_F_TEST_XDP_LIVE_FRAMES`).
const F_LIVE_FRAMES: u32 = 1 << 1;

/// As long as the kernel's, up to `batch_size`.
#[repr(C)]
#[derive(Default)]
struct RunAttr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    _pad: u32,
}

/// `struct xdp_md`.
#[repr(C)]
#[derive(Default)]
struct XdpMd {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

impl Program {
    fn run(&self, packet: &[u8], repeat: u32, rest: RunAttr) -> SysResult<RunAttr> {
        let mut attr = RunAttr {
            prog_fd: self.as_fd().as_raw_fd() as u32,
            data_size_in: packet.len() as u32,
            data_in: packet.as_ptr() as u64,
            repeat,
            ..rest
        };
        bpf(PROG_TEST_RUN, &mut attr)
            .map_err(|error| SysError::new("run a BPF program", error).needs("CAP_BPF,CAP_NET_ADMIN"))?;
        Ok(attr)
    }

    /// Runs the program once on `packet` without any interface: the action it returned and the packet after it.
    /// The kernel wants at least 14 bytes.
    pub fn test_run(&self, packet: &[u8]) -> SysResult<(u32, Vec<u8>)> {
        let mut out = vec![0u8; packet.len() + 256];
        let to = RunAttr {
            data_size_out: out.len() as u32,
            data_out: out.as_mut_ptr() as u64,
            ..RunAttr::default()
        };
        let attr = self.run(packet, 0, to)?;
        out.truncate(attr.data_size_out as usize);
        Ok((attr.retval, out))
    }

    /// Runs the program `repeat` times on `packet` without any interface: how long one run took, in ns.
    pub fn time(&self, packet: &[u8], repeat: u32) -> SysResult<u32> {
        Ok(self.run(packet, repeat, RunAttr::default())?.duration)
    }

    /// Lets `count` packets come in by queue 0 of the interface `ifindex` of the calling thread's namespace, in batches of
    /// 64: the XDP program runs on each, and what it passes goes up the stack. They begin as copies of `packet`, in memory
    /// that is used again and has what the program and the stack wrote into it.
    ///
    /// # Errors
    /// EINVAL where the interface has no native XDP program attached (on veth, which else has no queue for it).
    pub fn inject(&self, packet: &[u8], ifindex: u32, count: u32) -> SysResult<()> {
        let context = XdpMd { data_end: packet.len() as u32, ingress_ifindex: ifindex, ..XdpMd::default() };
        let attr = RunAttr {
            ctx_size_in: size_of::<XdpMd>() as u32,
            ctx_in: std::ptr::from_ref(&context) as u64,
            flags: F_LIVE_FRAMES,
            batch_size: 64,
            ..RunAttr::default()
        };
        self.run(packet, count, attr).map(drop)
    }
}
