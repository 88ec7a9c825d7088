//! The receiving half of a TAP's queue: a system call for each packet, straight into frames.
//!
//! Called by the owner of the queue's NAPI instance only. Invariant: `slots[used..]` are skbs whose
//! bytes `iov` names, of which the kernel has none while no call is under way; a packet is read
//! only if all slots are there, so that any fits.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnet_core::SoftnetData;
use softnet_core::skb::{Batch, DropReason, FRAME_SIZE, HEADROOM, Skb};

use super::TapQueues;
use crate::device::{Doorbell, QueueStats, RxQueue};
use crate::rx_frames::{FIRST, blank, frames_of};
use crate::sys_error::SysResult;
use crate::vnet::{self, VnetHdr};
use crate::watched_fd::WatchedFd;

/// Frames for packets of up to `longest` bytes, with a byte to spare: one that fills them all may
/// have been cut.
pub(super) fn slots_for(longest: usize) -> usize {
    frames_of(longest + 1)
}

pub(super) struct TapRx {
    bell: Arc<Bell>,
    queues: Arc<TapQueues>,
    /// Of the packet that is read: `iov[0]` names it.
    header: Box<[u8; vnet::LEN]>,
    /// The next packet goes here; those before `used` are gone.
    slots: Vec<Option<Skb>>,
    used: usize,
    /// The header, and then the bytes of each slot.
    iov: Vec<libc::iovec>,
    offloads: bool,
    stats: Arc<QueueStats>,
    dev: u16,
    queue: u16,
}

// SAFETY: what `iov` points to is the header and the skbs' frames, which this owns; they go where
// it goes.
unsafe impl Send for TapRx {}

impl TapRx {
    pub(super) fn new(
        fd: &Arc<OwnedFd>,
        queues: &Arc<TapQueues>,
        (dev, queue): (u16, u16),
        longest: usize,
        offloads: bool,
    ) -> SysResult<Self> {
        let mut header = Box::new([0; vnet::LEN]);
        let n = slots_for(longest);
        let mut iov = vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 1 + n];
        iov[0] = libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: vnet::LEN };
        Ok(TapRx {
            bell: Arc::new(Bell(WatchedFd::new(fd.clone())?)),
            queues: queues.clone(),
            header,
            slots: (0..n).map(|_| None).collect(),
            used: n,
            iov,
            offloads,
            stats: Arc::default(),
            dev,
            queue,
        })
    }

    /// Has all slots filled. Returns whether they are; otherwise the queue is starved.
    #[inline]
    pub(super) fn refill(&mut self, ctx: &mut SoftnetData) -> bool {
        while let Some(at) = self.used.checked_sub(1) {
            let off = if at == 0 { HEADROOM } else { 0 };
            let Some(skb) = blank(ctx, off) else { break };
            let skb = self.slots[at].insert(skb);
            let data = skb.data_mut();
            self.iov[1 + at] = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
            self.used = at;
        }
        self.bell.0.set_starved(self.used > 0);
        self.used == 0
    }

    /// Reads a packet into the slots, all of which must be there. Returns its bytes, if there is one.
    #[inline]
    fn read(&mut self) -> Option<usize> {
        debug_assert_eq!(self.used, 0);
        let fd = self.bell.0.inner().as_raw_fd();
        loop {
            // SAFETY: each piece is the header, or the bytes of an skb in a slot: live, ours alone,
            // and as long as stated.
            let n = unsafe { libc::readv(fd, self.iov.as_ptr(), self.iov.len() as libc::c_int) };
            match usize::try_from(n) {
                Ok(n) => return n.checked_sub(vnet::LEN),
                Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                // There is none, or the TAP is gone: then the housekeeper hears of it.
                Err(_) => return None,
            }
        }
    }

    /// The packet of `len` bytes that was read into the slots.
    #[inline]
    fn packet(&mut self, ctx: &mut SoftnetData, len: usize) -> Option<Skb> {
        let mut skb = self.slots.first_mut()?.take()?;
        self.used = 1;
        skb.trim(len);
        let mut left = len - skb.len();
        while left > 0 {
            let mut part = self.slots.get_mut(self.used)?.take()?;
            self.used += 1;
            part.trim(left);
            left -= part.len();
            if let Err(part) = skb.append(part) {
                // Can't be: of one region, and of no more frames than a packet may have.
                ctx.free_skb(part);
            }
        }
        Some(skb)
    }
}

/// Appends a packet to a batch that has room. Returns whether it did.
#[inline]
fn push(ctx: &mut SoftnetData, batch: &mut Batch, skb: Skb) -> bool {
    batch.push(skb).map_err(|skb| ctx.free(skb, DropReason::NoHead)).is_ok()
}

impl RxQueue for TapRx {
    fn rx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch, budget: usize) -> usize {
        let want = budget.min(batch.room());
        let longest = FIRST + (self.slots.len() - 1) * FRAME_SIZE;
        let (mut taken, mut packets, mut bytes) = (0, 0, 0);
        while taken < want && self.refill(ctx) {
            let Some(len) = self.read() else { break };
            let Some(mut skb) = self.packet(ctx, len) else { break };
            packets += 1;
            bytes += len as u64;
            (skb.head_mut().dev, skb.head_mut().queue) = (self.dev, self.queue);
            let told = match len < longest {
                true => vnet::receive(VnetHdr::from_bytes(*self.header), &mut skb, self.offloads),
                false => Err(DropReason::RxTooLong),
            };
            match told {
                Ok(()) => taken += usize::from(push(ctx, batch, skb)),
                Err(reason) => ctx.free(skb, reason),
            }
        }
        if packets > 0 {
            self.stats.packets.add(packets);
            self.stats.bytes.add(bytes);
        }
        taken
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.bell.clone()
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.stats.clone()
    }

    fn held(&self) -> usize {
        self.slots.len() - self.used
    }

    fn close(self: Box<Self>, ctx: &mut SoftnetData) {
        self.queues.set_carrier(false);
        self.slots.into_iter().flatten().for_each(|skb| ctx.free_skb(skb));
    }
}

/// The doorbell of a queue: readable while packets wait, so there is nothing to mask (see `Xsk`).
struct Bell(WatchedFd);

impl Doorbell for Bell {
    /// A TAP has no memory to look at: this is a system call, the only one of its kind.
    fn pending(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.0.inner(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !self.0.is_starved() && poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::IN)
    }

    fn starved(&self) -> bool {
        self.0.is_starved()
    }

    fn mask(&self) {}

    fn unmask(&self) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
