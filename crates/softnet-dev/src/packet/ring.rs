//! The receive ring of a packet socket (`PACKET_RX_RING`, `TPACKET_V2`,
//! Documentation/networking/packet_mmap.rst): slots that the kernel fills in turn, shared with it.
//!
//! Owned by one RX queue, which alone takes slots; its doorbell looks at the next one from any
//! thread. Each slot begins with a word that says which side has it: it is read with acquire before the
//! rest, and written with release after it. (`TPACKET_V3` would keep a single packet back until its
//! block is full or late.)
//!
//! Invariant: whatever a slot says, what is read of it lies in it.

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::PacketSocket;
use crate::sys_error::{SysError, SysResult};
use crate::vnet;

/// Bytes in front of a frame in its slot at the most: its header, an address, the header of `vnet`,
/// each aligned.
const OVERHEAD: usize = 128;
const ALIGN: usize = 16;
const SMALL_BLOCK: usize = 1 << 16;
const LARGE_BLOCK: usize = 1 << 20;
/// Bytes of a ring: fewer slots if these are large.
const MAX_BYTES: usize = 1 << 24;

/// The layout of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    slot: usize,
    block: usize,
    blocks: usize,
}

impl Layout {
    /// For at least `slots` frames of up to `longest` bytes each, or as many as are not too large
    /// together.
    pub(super) fn new(slots: usize, longest: usize) -> Self {
        let slot = match (longest + OVERHEAD).next_multiple_of(ALIGN) {
            // So that they fill their pages.
            slot if slot <= SMALL_BLOCK / 4 => slot.next_power_of_two(),
            slot => slot,
        };
        let block = if slot <= SMALL_BLOCK / 4 { SMALL_BLOCK } else { LARGE_BLOCK };
        let blocks = slots.div_ceil(block / slot).clamp(1, MAX_BYTES / block);
        Layout { slot, block, blocks }
    }

    fn per_block(self) -> usize {
        self.block / self.slot
    }

    pub(super) fn slots(self) -> usize {
        self.per_block() * self.blocks
    }

    fn bytes(self) -> usize {
        self.block * self.blocks
    }

    /// Where slot `at` begins.
    fn offset(self, at: usize) -> usize {
        at / self.per_block() * self.block + at % self.per_block() * self.slot
    }
}

pub(super) struct Ring {
    base: NonNull<c_void>,
    layout: Layout,
    /// The slot that is filled next, for the doorbell.
    next: AtomicU32,
}

// SAFETY: the mapping is owned; what threads share of it (`is_ready`) are atomics.
unsafe impl Send for Ring {}
// SAFETY: as above; slots are taken by the RX queue alone.
unsafe impl Sync for Ring {}

/// A frame in its slot.
pub(super) struct Slot<'a> {
    /// The header of `vnet`.
    pub(super) vnet: [u8; vnet::LEN],
    /// The tag that was taken out of it: its EtherType, and its control information.
    pub(super) tag: Option<(u16, u16)>,
    /// The frame, as much of it as is in the slot.
    pub(super) data: &'a [u8],
    /// Whether that is all of it.
    pub(super) is_whole: bool,
}

impl Ring {
    /// Has `socket`, which is not bound yet, receive by a ring.
    pub(super) fn new(socket: &PacketSocket, layout: Layout) -> SysResult<Self> {
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        let request = libc::tpacket_req {
            tp_block_size: layout.block as libc::c_uint,
            tp_block_nr: layout.blocks as libc::c_uint,
            tp_frame_size: layout.slot as libc::c_uint,
            tp_frame_nr: layout.slots() as libc::c_uint,
        };
        let failed = |error| SysError::new("make the ring of a packet socket", error);
        socket.set_option(libc::SOL_PACKET, libc::PACKET_VERSION, &version).map_err(failed)?;
        socket.set_option(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32).map_err(failed)?;
        socket.set_option(libc::SOL_PACKET, libc::PACKET_RX_RING, &request).map_err(failed)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a fresh mapping at an address the kernel chooses, as long as the ring that was
        // just made.
        let base =
            unsafe { mmap(std::ptr::null_mut(), layout.bytes(), protection, flags, socket.as_fd(), 0) };
        let base = base.map_err(|errno| failed(errno.into()))?;
        let base = NonNull::new(base).ok_or_else(|| failed(std::io::ErrorKind::InvalidData.into()))?;
        Ok(Ring { base, layout, next: AtomicU32::new(0) })
    }

    fn slot(&self, at: u32) -> NonNull<c_void> {
        // SAFETY: `next` is below the number of slots, and each lies within the mapping.
        unsafe { self.base.byte_add(self.layout.offset(at as usize)) }
    }

    fn status(&self, at: u32) -> &AtomicU32 {
        // SAFETY: each slot begins with this word, and is aligned for it; the kernel writes it only
        // as a whole.
        unsafe { self.slot(at).cast::<AtomicU32>().as_ref() }
    }

    /// Whether a frame waits. Any thread may ask.
    #[inline(always)]
    pub(super) fn is_ready(&self) -> bool {
        self.status(self.next.load(Ordering::Relaxed)).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// The next frame, if one waits. It is the queue's until it is [released](Self::release). Only
    /// the queue may ask.
    #[inline]
    pub(super) fn peek(&self) -> Option<Slot<'_>> {
        let at = self.next.load(Ordering::Relaxed);
        if self.status(at).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let slot = self.slot(at);
        // SAFETY: the slot is ours, begins with this header, and is aligned for it; all of its bits
        // are numbers.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read_volatile() };
        let (from, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        // Not to be trusted further than the slot goes.
        let from = from.clamp(vnet::LEN, self.layout.slot);
        let len = len.min(self.layout.slot - from);
        // SAFETY: within the slot, which the kernel does not touch until it is released.
        let bytes = unsafe {
            std::slice::from_raw_parts(slot.cast::<u8>().add(from - vnet::LEN).as_ptr(), vnet::LEN + len)
        };
        let (vnet, data) = bytes.split_at(vnet::LEN);
        let is = |flag| header.tp_status & flag != 0;
        let tpid = match is(libc::TP_STATUS_VLAN_TPID_VALID) {
            true => header.tp_vlan_tpid,
            false => 0x8100,
        };
        Some(Slot {
            vnet: vnet.try_into().unwrap_or_default(),
            tag: is(libc::TP_STATUS_VLAN_VALID).then_some((tpid, header.tp_vlan_tci)),
            data,
            is_whole: len == header.tp_len as usize,
        })
    }

    /// Gives the slot of the next frame back to the kernel.
    #[inline]
    pub(super) fn release(&self) {
        let at = self.next.load(Ordering::Relaxed);
        self.status(at).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        let next = if at as usize + 1 == self.layout.slots() { 0 } else { at + 1 };
        self.next.store(next, Ordering::Relaxed);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing borrows it any more.
        let _ = unsafe { munmap(self.base.as_ptr(), self.layout.bytes()) };
    }
}

#[cfg(test)]
mod layouts {
    use super::*;

    #[test]
    fn slots_hold_the_longest_frame_and_lie_in_whole_blocks() {
        for (slots, longest) in [(128, 1522), (512, 1522), (512, 9022), (2048, 65_557), (32_768, 65_557)] {
            let layout = Layout::new(slots, longest);
            assert!(layout.slot >= longest + OVERHEAD && layout.slot % ALIGN == 0);
            assert!(layout.block % 4096 == 0 && layout.bytes() <= MAX_BYTES);
            assert!(layout.slots() >= slots || layout.bytes() + layout.block > MAX_BYTES, "{layout:?}");
            let mut end = 0;
            for at in 0..layout.slots() {
                let from = layout.offset(at);
                assert!(from >= end && from / layout.block == (from + layout.slot - 1) / layout.block);
                end = from + layout.slot;
            }
            assert!(end <= layout.bytes());
        }
    }
}
