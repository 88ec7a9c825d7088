//! Region memory backed by a memfd, so that a fork does not copy it and AF_XDP can register it.
//!
//! A thread faults its pages in, while what uses them is set up: for large memories that takes
//! longer than all the rest of a start. What is used earlier faults in then.
//!
//! On machines of several NUMA nodes its pages are on the nodes of the threads that use it: on the one, or by turns on
//! each. Without that all of them would be on the node of the thread that happened to start the stack.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use softnet_core::skb::RegionMemory;

/// NUMA nodes that a policy can name, as many as Linux has at most.
const NODES: usize = 1024;
/// Bytes that are faulted in by one call.
const PIECE: usize = 4 << 20;

/// A shared mapping of a memfd.
#[derive(Debug)]
pub struct MemfdMemory {
    fd: OwnedFd,
    base: *mut c_void,
    len: usize,
    /// Faults its pages in, until it is told to stop.
    faults_in: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

// SAFETY: the mapping is owned, and what it holds is only handed out through handles.
unsafe impl Send for MemfdMemory {}
// SAFETY: as above; `&MemfdMemory` gives only the address.
unsafe impl Sync for MemfdMemory {}

impl MemfdMemory {
    /// `len` zeroed bytes, rounded up to whole pages.
    pub fn new(len: usize) -> std::io::Result<Self> {
        Self::on_nodes(len, &[])
    }

    /// The same on NUMA `nodes`, as mbind(2) has it: with one it is preferred, with several the pages take turns, with
    /// none they are on those of the CPUs that the caller may run on. A node without memory left, or a kernel without NUMA, is no error: pages
    /// are where the kernel puts them then.
    pub fn on_nodes(len: usize, nodes: &[u16]) -> std::io::Result<Self> {
        let mut memory = Self::mapped(len, nodes)?;
        memory.fault_in(0);
        Ok(memory)
    }

    fn mapped(len: usize, nodes: &[u16]) -> std::io::Result<Self> {
        let len = len.next_multiple_of(4096);
        let fd = memfd_create("softnet-region", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, len as u64)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, &fd, 0)? };
        let memory = MemfdMemory { fd, base, len, faults_in: None, stop: Arc::default() };
        memory.prefer(nodes);
        Ok(memory)
    }

    /// The same, but the first `shared` bytes, whole pages, are those of `fd`, the memory of
    /// another process: what that wrote there is there.
    ///
    /// # Errors
    /// InvalidInput if `fd` has fewer bytes, or `shared` is no number of pages.
    pub fn handed_over(fd: OwnedFd, shared: usize, len: usize, nodes: &[u16]) -> std::io::Result<Self> {
        let bytes = rustix::fs::fstat(&fd)?.st_size;
        if shared > len
            || !shared.is_multiple_of(4096)
            || u64::try_from(bytes).is_ok_and(|have| have < shared as u64)
        {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        // What the other's pages take the place of takes no memory.
        let mut memory = Self::mapped(len, nodes)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        // SAFETY: replaces the first pages of the mapping that `memory` owns and nothing refers to
        // yet; the file has as many bytes.
        unsafe { mmap(memory.base, shared, ProtFlags::READ | ProtFlags::WRITE, flags, &fd, 0)? };
        memory.fd = fd;
        memory.fault_in(shared);
        Ok(memory)
    }

    fn prefer(&self, nodes: &[u16]) {
        let mut mask = [0u64; NODES / 64];
        for node in nodes.iter().map(|node| usize::from(*node)).filter(|node| *node < NODES) {
            mask[node / 64] |= 1 << (node % 64);
        }
        let mode = match mask.iter().map(|word| word.count_ones()).sum::<u32>() {
            0 => return,
            1 => libc::MPOL_PREFERRED,
            _ => libc::MPOL_INTERLEAVE,
        };
        // SAFETY: the range is this mapping, the mask has the bits that are told (and one more, as the kernel counts),
        // and no byte of either changes.
        let _ =
            unsafe { libc::syscall(libc::SYS_mbind, self.base, self.len, mode, mask.as_ptr(), NODES + 1, 0) };
    }

    /// Has the pages from the byte `from` on, which is at most the length, faulted in (Linux 5.14:
    /// before it they are when they are used).
    fn fault_in(&mut self, from: usize) {
        let from = from.min(self.len);
        let range = SendRange(self.base.wrapping_byte_add(from), self.len - from);
        let thread = std::thread::Builder::new().name("softnet-memory".into());
        let stop = self.stop.clone();
        let populate = move || {
            let SendRange(base, len) = { range };
            // Piece by piece, since other threads map nothing meanwhile.
            for at in (0..len).step_by(PIECE).take_while(|_| !stop.load(Ordering::Relaxed)) {
                let (at, len) = (base.wrapping_byte_add(at), PIECE.min(len - at));
                // SAFETY: the mapping lives until this thread has been joined; the call changes
                // no byte.
                let _ = unsafe { madvise(at, len, Advice::LinuxPopulateWrite) };
            }
        };
        // Without a thread they fault in when they are used.
        self.faults_in = thread.spawn(populate).ok();
    }

    /// Waits until they are.
    fn wait(&mut self) {
        if let Some(thread) = self.faults_in.take() {
            let _ = thread.join();
        }
    }
}

/// Part of a mapping.
struct SendRange(*mut c_void, usize);

// SAFETY: the address is only told to the kernel.
unsafe impl Send for SendRange {}

/// What another process maps to have the same frames.
impl AsFd for MemfdMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for MemfdMemory {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wait();
        // SAFETY: mapped in `mapped`; the region only drops it when every handle is home.
        let _ = unsafe { munmap(self.base, self.len) };
    }
}

// SAFETY: the mapping is page-aligned, `len` bytes, zeroed behind those that were handed over, and
// unmapped on drop only. The process that handed them over touches them no more.
unsafe impl RegionMemory for MemfdMemory {
    fn base(&self) -> *mut u8 {
        self.base.cast()
    }
    fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the kernel shows the mapping in `/proc/self/numa_maps`: its policy, and pages by node.
    fn numa_map(memory: &MemfdMemory) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
        let at = format!("{:x} ", memory.base as usize);
        maps.lines().find_map(|line| Some(line.trim_start_matches('0').strip_prefix(&at)?.to_string()))
    }

    #[test]
    fn what_is_handed_over_is_there_and_the_rest_is_new() {
        let old = MemfdMemory::new(4 * 4096).unwrap();
        // SAFETY: within the mapping, of which there is no reference.
        unsafe { old.base().write_bytes(7, 4 * 4096) };
        let fd = || old.as_fd().try_clone_to_owned().unwrap();
        let new = MemfdMemory::handed_over(fd(), 2 * 4096, 4 * 4096, &[]).unwrap();
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(new.base(), new.len()) };
        assert!(bytes[..2 * 4096].iter().all(|byte| *byte == 7));
        assert!(bytes[2 * 4096..].iter().all(|byte| *byte == 0));
        for (shared, len) in [(8 * 4096, 9 * 4096), (100, 4096), (8192, 4096)] {
            assert!(MemfdMemory::handed_over(fd(), shared, len, &[]).is_err(), "{shared} of {len}");
        }
    }

    /// A process that has taken over has the other's frames, and no memory for as many of its own.
    #[test]
    fn pages_that_others_take_the_place_of_take_no_memory() {
        let fd = MemfdMemory::new(6 * 4096).unwrap().as_fd().try_clone_to_owned().unwrap();
        for nodes in [&[][..], &[0]] {
            let mut memory = MemfdMemory::mapped(8 * 4096, nodes).unwrap();
            memory.fault_in(6 * 4096);
            memory.wait();
            let blocks = rustix::fs::fstat(&memory).unwrap().st_blocks;
            assert_eq!(blocks, 2 * 4096 / 512, "{nodes:?}");
            let fd = fd.try_clone().unwrap();
            let taken = MemfdMemory::handed_over(fd, 6 * 4096, 8 * 4096, nodes).unwrap();
            assert_eq!(taken.len(), 8 * 4096);
        }
    }

    #[test]
    fn pages_are_there_and_on_the_nodes_asked_for() {
        const PAGES: usize = 64;
        for (nodes, policy) in [(&[][..], "default"), (&[0][..], "prefer"), (&[5000][..], "default")] {
            let mut memory = MemfdMemory::on_nodes(PAGES * 4096 - 1, nodes).unwrap();
            memory.wait();
            assert_eq!(memory.len(), PAGES * 4096);
            // Kernels without NUMA have no such file, and ignore policies.
            let Some(map) = numa_map(&memory) else { continue };
            assert!(map.starts_with(policy), "{map}");
            assert!(map.contains(&format!(" N0={PAGES}")) || map.contains(" N1="), "all faulted in: {map}");
        }
    }
}
