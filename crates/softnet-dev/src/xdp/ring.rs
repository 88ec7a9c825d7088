//! The four rings of an AF_XDP socket: single producer, single consumer, shared with the kernel
//! (Documentation/networking/af_xdp.rst, net/xdp/xsk_queue.h).
//!
//! A [`Producer`] or [`Consumer`] is owned by one queue and called only by it; the kernel is the other end. Each
//! end owns one index, publishes it with release after it touched the slots, and reads the other's with acquire
//! before it touches them; both keep a private copy, so that the shared line is read once per batch.
//!
//! The kernel's index is not trusted further than the size of the ring: slots are found by masking, and a
//! count is never more than the ring has. What stands in the slots is for the queues to check.

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::net::xdp::XdpRingOffset;

/// `XDP_RING_NEED_WAKEUP` of the flags word.
const NEED_WAKEUP: u32 = 1;

/// What a slot may hold: anything for which every bit pattern is a value.
///
/// # Safety
/// Every bit pattern must be valid, and there must be no padding.
pub(super) unsafe trait Slot: Copy {}
// SAFETY: an integer.
unsafe impl Slot for u64 {}
// SAFETY: a u64 and two u32, without padding.
unsafe impl Slot for libc::xdp_desc {}

/// A ring's memory: a mapping of the socket that holds two indices, flags, and the slots.
pub(super) struct RingMemory {
    base: NonNull<c_void>,
    len: usize,
    producer: usize,
    consumer: usize,
    flags: Option<usize>,
    slots: usize,
    size: u32,
}

// SAFETY: the mapping is owned; what threads share of it (`is_empty`) are atomics.
unsafe impl Send for RingMemory {}
// SAFETY: as above; slots are reached only through a `Producer` or `Consumer`, one per ring.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Maps the ring of `size` slots (a power of two) of type `T` at `offset` of the socket `fd`.
    pub(super) fn map<T: Slot>(
        fd: BorrowedFd<'_>,
        offset: u64,
        at: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        Self::new::<T>(at, size, |len| {
            // SAFETY: a fresh mapping at an address the kernel chooses.
            unsafe {
                mmap(
                    std::ptr::null_mut(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED | MapFlags::POPULATE,
                    fd,
                    offset,
                )
            }
        })
    }

    fn new<T: Slot>(
        at: &XdpRingOffset,
        size: u32,
        map: impl FnOnce(usize) -> rustix::io::Result<*mut c_void>,
    ) -> io::Result<Self> {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "ring layout that softnet does not know");
        let offset = |value: u64, align: usize| {
            usize::try_from(value).ok().filter(|v| *v < 1 << 20 && v % align == 0).ok_or_else(bad)
        };
        let slots = offset(at.desc, align_of::<T>())?;
        let word = |value| {
            offset(value, align_of::<AtomicU32>()).and_then(|v| {
                // The words lie before the slots, so that the slots' end is the mapping's.
                if v + size_of::<AtomicU32>() <= slots { Ok(v) } else { Err(bad()) }
            })
        };
        let (producer, consumer) = (word(at.producer)?, word(at.consumer)?);
        let flags = at.flags.map(word).transpose()?;
        if !size.is_power_of_two() {
            return Err(bad());
        }
        let len = slots + size as usize * size_of::<T>();
        let base = NonNull::new(map(len)?).ok_or_else(bad)?;
        Ok(RingMemory { base, len, producer, consumer, flags, slots, size })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the offset is aligned and within the mapping (checked in `new`), which lives as long as `self`;
        // the other end writes it only atomically.
        unsafe { self.base.byte_add(offset).cast::<AtomicU32>().as_ref() }
    }

    fn slot<T: Slot>(&self, index: u32) -> NonNull<T> {
        let at = (index & (self.size - 1)) as usize;
        // SAFETY: a masked index stays below `size`, and `new` mapped `size` slots of `T` from `slots` on.
        unsafe { self.base.byte_add(self.slots).cast::<T>().add(at) }
    }

    /// Whether the consumer has seen all that was produced. Any thread may ask.
    pub(super) fn is_empty(&self) -> bool {
        self.word(self.consumer).load(Ordering::Relaxed) == self.word(self.producer).load(Ordering::Acquire)
    }

    fn needs_wakeup(&self) -> bool {
        // The kernel sets the flag, then looks at the ring once more; we have written to the ring, now look at the flag.
        // Without a fence both could miss the other.
        fence(Ordering::SeqCst);
        self.flags.is_some_and(|at| self.word(at).load(Ordering::Relaxed) & NEED_WAKEUP != 0)
    }

    /// Puts zeroed memory in the place of the ring. A mapping holds a reference on its socket, so this has to go
    /// before the socket can be released; and the address stays good for those that still look at the ring
    /// (a doorbell), which finds it empty from now on.
    pub(super) fn detach(&self) -> io::Result<()> {
        // SAFETY: replaces exactly the mapping that `self` owns. The kernel swaps it in one step, so a thread that
        // reads meanwhile finds the old words or the new ones.
        unsafe {
            mmap_anonymous(
                self.base.as_ptr(),
                self.len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED,
            )?;
        }
        Ok(())
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and no reference to it is left.
        let _ = unsafe { munmap(self.base.as_ptr(), self.len) };
    }
}

/// The end that writes slots: of the fill and the transmit ring.
pub(super) struct Producer<T> {
    memory: RingMemory,
    /// Slots written so far; ahead of the shared index by what is staged.
    next: u32,
    submitted: u32,
    slots: PhantomData<T>,
}

impl<T: Slot> Producer<T> {
    /// The producing end of a fresh ring.
    pub(super) fn new(memory: RingMemory) -> Self {
        Producer { memory, next: 0, submitted: 0, slots: PhantomData }
    }

    /// Slots of the ring.
    pub(super) fn size(&self) -> u32 {
        self.memory.size
    }

    /// Goes on where another process stopped, which had staged nothing.
    pub(super) fn take_over(&mut self) {
        self.next = self.memory.word(self.memory.producer).load(Ordering::Acquire);
        self.submitted = self.next;
    }

    /// Writes the next slot. The caller knows that it is free: fewer things are on their way than the ring has
    /// slots, in whichever stage. (The shared index says so only later: the kernel publishes it once per batch, and
    /// may complete what it took before that.)
    #[inline(always)]
    pub(super) fn stage(&mut self, value: T) {
        // SAFETY: the slot lies in the ring, and the other end does not read it before `submit`.
        unsafe { self.memory.slot::<T>(self.next).write(value) };
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the other end what was staged. Returns how much that was.
    #[inline]
    pub(super) fn submit(&mut self) -> u32 {
        let staged = self.next.wrapping_sub(self.submitted);
        if staged > 0 {
            self.memory.word(self.memory.producer).store(self.next, Ordering::Release);
            self.submitted = self.next;
        }
        staged
    }

    /// How far the other end may go.
    pub(super) fn submitted(&self) -> u32 {
        self.submitted
    }

    /// The other end's index.
    pub(super) fn consumed(&self) -> u32 {
        self.memory.word(self.memory.consumer).load(Ordering::Acquire)
    }

    /// Whether the kernel sleeps until it is called (af_xdp.rst, `XDP_USE_NEED_WAKEUP`).
    #[inline(always)]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.memory.needs_wakeup()
    }
}

/// The end that reads slots: of the receive and the completion ring.
pub(super) struct Consumer<T> {
    memory: Arc<RingMemory>,
    next: u32,
    /// The producer's index when it was last looked at.
    seen: u32,
    slots: PhantomData<T>,
}

impl<T: Slot> Consumer<T> {
    /// The consuming end of a fresh ring.
    pub(super) fn new(memory: Arc<RingMemory>) -> Self {
        Consumer { memory, next: 0, seen: 0, slots: PhantomData }
    }

    /// Goes on where another process stopped, which had given back all that it had read.
    pub(super) fn take_over(&mut self) {
        self.next = self.memory.word(self.memory.consumer).load(Ordering::Acquire);
        self.seen = self.next;
    }

    /// How many slots, `want` at the most, can be read now.
    #[inline(always)]
    pub(super) fn available(&mut self, want: u32) -> u32 {
        let mut have = self.seen.wrapping_sub(self.next);
        if have < want {
            self.seen = self.memory.word(self.memory.producer).load(Ordering::Acquire);
            have = self.seen.wrapping_sub(self.next);
        }
        have.min(want).min(self.memory.size)
    }

    /// The slot `n` after the first unread one; `n` is below what [`available`](Self::available) said.
    #[inline(always)]
    pub(super) fn read(&self, n: u32) -> T {
        // SAFETY: the slot lies in the ring and holds plain data; `available` has seen it published.
        unsafe { self.memory.slot::<T>(self.next.wrapping_add(n)).read() }
    }

    /// Gives the first `n` slots back to the other end.
    #[inline(always)]
    pub(super) fn release(&mut self, n: u32) {
        if n > 0 {
            self.next = self.next.wrapping_add(n);
            self.memory.word(self.memory.consumer).store(self.next, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: XdpRingOffset = XdpRingOffset { producer: 0, consumer: 64, desc: 192, flags: Some(128) };

    /// Two mappings of the same pages, as we and the kernel have them.
    fn pair(size: u32) -> (RingMemory, RingMemory) {
        let fd = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 1 << 16).unwrap();
        let map = || RingMemory::map::<u64>(std::os::fd::AsFd::as_fd(&fd), 0, &AT, size).unwrap();
        (map(), map())
    }

    #[test]
    fn carries_in_order_across_every_wrap() {
        let (a, b) = pair(8);
        let (mut tx, mut rx) = (Producer::<u64>::new(a), Consumer::<u64>::new(Arc::new(b)));
        // The indices overflow on the way, too.
        let start = u32::MAX - 20;
        (tx.next, tx.submitted, rx.next, rx.seen) = (start, start, start, start);
        let (mut sent, mut got) = (0, 0);
        for round in 0..40 {
            while sent - got < 1 + round % 8 {
                tx.stage(sent);
                sent += 1;
            }
            tx.submit();
            let n = rx.available(1 + (round % 7) as u32);
            for i in 0..n {
                assert_eq!(rx.read(i), got);
                got += 1;
            }
            rx.release(n);
            assert_eq!(tx.consumed(), start.wrapping_add(got as u32));
        }
        assert!(got > 60, "{got}");
    }

    #[test]
    fn another_process_goes_on_where_one_stopped() {
        let fd = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 1 << 16).unwrap();
        let map = || RingMemory::map::<u64>(std::os::fd::AsFd::as_fd(&fd), 0, &AT, 8).unwrap();
        let (mut tx, mut rx) = (Producer::<u64>::new(map()), Consumer::<u64>::new(Arc::new(map())));
        (1..=6).for_each(|n| tx.stage(n));
        tx.submit();
        assert_eq!(rx.available(4), 4);
        rx.release(4);
        let (mut tx, mut rx) = (Producer::<u64>::new(map()), Consumer::<u64>::new(Arc::new(map())));
        tx.take_over();
        rx.take_over();
        assert_eq!((tx.submit(), tx.submitted(), tx.consumed()), (0, 6, 4));
        tx.stage(7);
        assert_eq!(tx.submit(), 1);
        assert_eq!(rx.available(8), 3);
        assert_eq!((0..3).map(|n| rx.read(n)).collect::<Vec<_>>(), [5, 6, 7]);
    }

    #[test]
    fn what_is_staged_is_not_seen_before_submit() {
        let (a, b) = pair(4);
        let (mut tx, mut rx) = (Producer::<u64>::new(a), Consumer::<u64>::new(Arc::new(b)));
        tx.stage(1);
        assert_eq!((rx.available(4), rx.memory.is_empty()), (0, true));
        assert_eq!((tx.submit(), tx.submit()), (1, 0));
        assert_eq!((rx.available(4), rx.memory.is_empty()), (1, false));
        rx.release(1);
        assert_eq!((tx.consumed(), rx.memory.is_empty()), (1, true));
    }

    #[test]
    fn an_index_from_nowhere_is_cut_to_the_ring() {
        let (a, b) = pair(4);
        let mut rx = Consumer::<u64>::new(Arc::new(b));
        a.word(a.producer).store(1 << 31, Ordering::Release);
        assert_eq!(rx.available(1000), 4);
    }

    #[test]
    fn the_kernels_wish_for_a_call_is_seen() {
        let (a, b) = pair(4);
        let tx = Producer::<u64>::new(a);
        assert!(!tx.needs_wakeup());
        b.word(b.flags.unwrap()).store(NEED_WAKEUP, Ordering::Relaxed);
        assert!(tx.needs_wakeup());
    }

    #[test]
    fn a_detached_ring_looks_empty() {
        let (a, b) = pair(4);
        let mut tx = Producer::<u64>::new(a);
        tx.stage(1);
        tx.submit();
        assert!(!b.is_empty());
        b.detach().unwrap();
        assert!(b.is_empty());
        assert_eq!(tx.consumed(), 0, "the other mapping is another's");
    }

    #[test]
    fn a_layout_that_does_not_fit_is_refused() {
        let fd = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let map = |at, size| RingMemory::map::<u64>(std::os::fd::AsFd::as_fd(&fd), 0, &at, size).is_err();
        assert!(map(AT, 3), "not a power of two");
        assert!(map(XdpRingOffset { desc: 190, ..AT }, 4), "slots not aligned");
        assert!(map(XdpRingOffset { consumer: 190, ..AT }, 4), "a word among the slots");
        assert!(map(XdpRingOffset { flags: Some(u64::MAX), ..AT }, 4));
    }
}
