//! Region memory backed by a memfd, so that a fork does not copy it and AF_XDP can register it.

use std::ffi::c_void;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use softnet_core::skb::RegionMemory;

/// A shared mapping of a memfd.
#[derive(Debug)]
pub struct MemfdMemory {
    base: *mut c_void,
    len: usize,
}

// SAFETY: the mapping is owned, and what it holds is only handed out through handles.
unsafe impl Send for MemfdMemory {}
// SAFETY: as above; `&MemfdMemory` gives only the address.
unsafe impl Sync for MemfdMemory {}

impl MemfdMemory {
    /// `len` zeroed bytes, rounded up to whole pages, faulted in.
    pub fn new(len: usize) -> std::io::Result<Self> {
        let len = len.next_multiple_of(4096);
        let fd = memfd_create("softnet-region", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, len as u64)?;
        // SAFETY: a fresh mapping at an address the kernel chooses.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                &fd,
                0,
            )?
        };
        Ok(MemfdMemory { base, len })
    }
}

impl Drop for MemfdMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; the region only drops it when every handle is home.
        let _ = unsafe { munmap(self.base, self.len) };
    }
}

// SAFETY: the mapping is page-aligned, zeroed, `len` bytes, and unmapped on drop only.
unsafe impl RegionMemory for MemfdMemory {
    fn base(&self) -> *mut u8 {
        self.base.cast()
    }
    fn len(&self) -> usize {
        self.len
    }
}
