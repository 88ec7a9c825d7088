//! The two owned handles: [`Skb`] (a head with its frame) and [`Frame`] (a frame alone, as device rings hold).

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use super::head::{Head, RawHead};
use super::region::{FRAME_SIZE, frame_ptr, head_ptr};

static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Handles that were dropped instead of freed, since the process started. Always 0 unless there is a bug.
pub fn leaked() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

#[cold]
#[inline(never)]
pub(super) fn leak(what: &str, region: u32, index: u32) {
    LEAKED.fetch_add(1, Ordering::Relaxed);
    if cfg!(debug_assertions) && !std::thread::panicking() {
        eprintln!("softnet: {what} {index} of region {region} was dropped without free(skb, reason)");
        std::process::abort();
    }
}

macro_rules! handle {
    ($name:ident, $what:literal) => {
        impl $name {
            #[inline(always)]
            pub(crate) fn new(region: u32, index: u32) -> Self {
                debug_assert!(region != 0);
                // SAFETY: a region's number is never 0 (slot 0 of the table stays empty), so neither is the word.
                $name(unsafe { NonZeroU64::new_unchecked(u64::from(region) << 32 | u64::from(index)) })
            }

            /// Number of the region it belongs to.
            #[inline(always)]
            pub fn region(&self) -> u32 {
                (self.0.get() >> 32) as u32
            }

            /// Index within the region.
            #[inline(always)]
            pub fn index(&self) -> u32 {
                self.0.get() as u32
            }

            /// Gives up the handle for its index, for a device ring to carry.
            #[inline(always)]
            pub fn into_raw(self) -> u32 {
                let index = self.index();
                std::mem::forget(self);
                index
            }
        }

        impl Drop for $name {
            #[inline]
            fn drop(&mut self) {
                leak($what, self.region(), self.index());
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({}:{})"), self.region(), self.index())
            }
        }
    };
}

/// A frame without a head: what device rings hold.
#[repr(transparent)]
pub struct Frame(NonZeroU64);
handle!(Frame, "frame");

/// An owned packet: a head and the frame attached to it, and the [chain](Self::append) of further ones, if there is one.
#[repr(transparent)]
pub struct Skb(NonZeroU64);
handle!(Skb, "skb");

impl Frame {
    /// Takes back a frame that went through a device ring as its index.
    ///
    /// # Safety
    /// `index` must have come from [`into_raw`](Self::into_raw) of a frame of `region`, and this must be its
    /// only way back.
    #[inline(always)]
    pub unsafe fn from_raw(region: &super::Region, index: u32) -> Self {
        debug_assert!(index < region.frame_count());
        Frame::new(region.id(), index)
    }

    /// All bytes of the frame.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8; FRAME_SIZE] {
        #[cfg(feature = "debug-poison")]
        super::poison::frame_in_use(self);
        // SAFETY: the handle owns the frame, and a registered region outlives its frames' handles.
        unsafe { &*frame_ptr(self.region(), self.index()).cast() }
    }

    /// All bytes of the frame, to write.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> &mut [u8; FRAME_SIZE] {
        #[cfg(feature = "debug-poison")]
        super::poison::frame_in_use(self);
        // SAFETY: as in `bytes`, and `&mut self` is the only handle.
        unsafe { &mut *frame_ptr(self.region(), self.index()).cast() }
    }
}

impl Skb {
    /// Takes back an skb that went through a list as its index.
    ///
    /// # Safety
    /// `index` must have come from [`into_raw`](Self::into_raw) of an skb of `region`, and this must be its
    /// only way back.
    #[inline(always)]
    pub unsafe fn from_raw(region: u32, index: u32) -> Self {
        Skb::new(region, index)
    }

    #[inline(always)]
    pub(super) fn raw(&self) -> &RawHead {
        #[cfg(feature = "debug-poison")]
        super::poison::head_in_use(self);
        // SAFETY: the handle owns the head, and a registered region outlives its heads' handles.
        unsafe { &*head_ptr(self.region(), self.index()) }
    }

    #[inline(always)]
    pub(super) fn raw_mut(&mut self) -> &mut RawHead {
        #[cfg(feature = "debug-poison")]
        super::poison::head_in_use(self);
        // SAFETY: as in `raw`, and `&mut self` is the only handle.
        unsafe { &mut *head_ptr(self.region(), self.index()) }
    }

    /// The metadata.
    #[inline(always)]
    pub fn head(&self) -> &Head {
        &self.raw().head
    }

    /// The metadata, to write.
    #[inline(always)]
    pub fn head_mut(&mut self) -> &mut Head {
        &mut self.raw_mut().head
    }

    /// Bytes of the packet, those of its chain included.
    #[inline(always)]
    pub fn len(&self) -> usize {
        let raw = self.raw();
        usize::from(raw.head_len) + raw.head.frag_len as usize
    }

    /// Whether there are no packet bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the packet in its first frame.
    #[inline(always)]
    pub fn head_len(&self) -> usize {
        usize::from(self.raw().head_len)
    }

    /// Segments that the packet counts for, where the kernel counts these (`qdisc_bstats_update`).
    #[inline(always)]
    pub fn segments(&self) -> usize {
        usize::from(self.head().gso_segs).max(1)
    }

    /// Offset of the first packet byte in the frame: the headroom.
    #[inline(always)]
    pub fn headroom(&self) -> usize {
        usize::from(self.raw().off)
    }

    /// Bytes free behind the packet: none, if it has a chain.
    pub fn tailroom(&self) -> usize {
        if self.is_chained() { 0 } else { FRAME_SIZE - self.headroom() - self.head_len() }
    }

    /// The packet's bytes in its first frame, which are all of them if it has no chain. See [`frames`](Self::frames).
    #[inline(always)]
    pub fn data(&self) -> &[u8] {
        let head = self.raw();
        debug_assert!(usize::from(head.off) + usize::from(head.head_len) <= FRAME_SIZE);
        // SAFETY: the skb owns its frame; `off + head_len <= FRAME_SIZE` is kept by every writer of the two.
        unsafe {
            std::slice::from_raw_parts(
                frame_ptr(self.region(), head.frame).add(usize::from(head.off)),
                usize::from(head.head_len),
            )
        }
    }

    /// The packet's bytes in its first frame, to write.
    #[inline(always)]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let (frame, off, len) = {
            let head = self.raw();
            (head.frame, usize::from(head.off), usize::from(head.head_len))
        };
        debug_assert!(off + len <= FRAME_SIZE);
        // SAFETY: as in `data`, and `&mut self` is the only handle.
        unsafe { std::slice::from_raw_parts_mut(frame_ptr(self.region(), frame).add(off), len) }
    }

    /// The [metadata](Self::head) and the [bytes](Self::data): both at once are found once.
    #[inline(always)]
    pub fn parts(&self) -> (&Head, &[u8]) {
        (self.head(), self.data())
    }

    /// The same, to write: they lie in different memory.
    #[inline(always)]
    pub fn parts_mut(&mut self) -> (&mut Head, &mut [u8]) {
        let region = self.region();
        let raw = self.raw_mut();
        let (off, len) = (usize::from(raw.off), usize::from(raw.head_len));
        debug_assert!(off + len <= FRAME_SIZE);
        // SAFETY: as in `data_mut`; heads and frames do not overlap.
        let data = unsafe { std::slice::from_raw_parts_mut(frame_ptr(region, raw.frame).add(off), len) };
        (&mut raw.head, data)
    }

    /// The `n` bytes in front of those in the first frame, as they were when they were
    /// [pulled](Self::pull); `None` if there is not so much headroom.
    pub fn pulled(&self, n: usize) -> Option<&[u8]> {
        let head = self.raw();
        let at = usize::from(head.off).checked_sub(n)?;
        // SAFETY: the skb owns its frame, of which these are bytes: `off` is at most its size.
        Some(unsafe { std::slice::from_raw_parts(frame_ptr(self.region(), head.frame).add(at), n) })
    }

    /// Starts to load the packet's first line into the cache.
    #[inline(always)]
    pub fn prefetch_data(&self) {
        let head = self.raw();
        prefetch(frame_ptr(self.region(), head.frame).wrapping_add(usize::from(head.off)));
    }

    /// Starts to load the packet's first two lines, which have most headers.
    #[inline(always)]
    pub fn prefetch_headers(&self) {
        let head = self.raw();
        let data = frame_ptr(self.region(), head.frame).wrapping_add(usize::from(head.off));
        prefetch(data);
        prefetch(data.wrapping_add(64));
    }

    /// Grows the packet by `n` bytes at the front and returns them; `None` if there is no headroom.
    pub fn push(&mut self, n: usize) -> Option<&mut [u8]> {
        let head = self.raw_mut();
        let n16 = u16::try_from(n).ok()?;
        head.off = head.off.checked_sub(n16)?;
        head.head_len += n16;
        Some(&mut self.data_mut()[..n])
    }

    /// Takes `n` bytes off the front; `None` (and no change) if the first frame has fewer.
    pub fn pull(&mut self, n: usize) -> Option<()> {
        let head = self.raw_mut();
        let n = u16::try_from(n).ok()?;
        head.head_len = head.head_len.checked_sub(n)?;
        head.off += n;
        Some(())
    }

    /// Grows the packet by `n` bytes at the end and returns them; `None` if there is no [room](Self::tailroom).
    pub fn put(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.tailroom() {
            return None;
        }
        let old = self.head_len();
        self.raw_mut().head_len += n as u16;
        Some(&mut self.data_mut()[old..])
    }

    /// Cuts the packet to `len` bytes; longer than it is: no change.
    pub fn trim(&mut self, len: usize) {
        if self.is_chained() {
            return self.trim_chain(len);
        }
        let head = self.raw_mut();
        head.head_len = head.head_len.min(u16::try_from(len).unwrap_or(u16::MAX));
    }
}

/// Starts to load all cache lines of a value.
#[inline(always)]
pub fn prefetch_whole<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    let first = start.addr() % 64;
    (0..first + size_of::<T>())
        .step_by(64)
        .for_each(|at| prefetch(start.wrapping_sub(first).wrapping_add(at)));
}

/// Starts to load the line at `p`; harmless whatever `p` is.
#[inline(always)]
pub fn prefetch(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}
