//! A region: one mapping that holds frames, then heads, and the pools of both.
//!
//! Regions are registered in a process-wide table, so that an eight-byte handle suffices to find its memory.
//! A region whose frames or heads are not all home when it is dropped leaves its mapping in place for ever (a
//! device or a leaked handle may still point there).

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::cache::CacheSizes;
use super::handle::Frame;
use super::head::RawHead;
use crate::sync::{Homes, Pool, model_failed};

/// Bytes of a frame; a power of two, so that two frames fill a page (AF_XDP's aligned mode).
pub const FRAME_SIZE: usize = 2048;

/// Bytes before the packet in a frame of a freshly received or built packet (AF_XDP's own headroom).
pub const HEADROOM: usize = 256;

/// Regions that may exist at a time.
const MAX_REGIONS: usize = 64;

/// The memory a region is laid out in.
///
/// # Safety
/// `base` must point to `len` initialised bytes, aligned to 4096, readable and writable, that stay
/// where they are until the value is dropped and that no other code touches while a handle refers
/// to them. Those behind the frames, and of a [new](Region::new) region all of them, must be zero.
pub unsafe trait RegionMemory: Send + Sync {
    /// First byte.
    fn base(&self) -> *mut u8;
    /// Size in bytes.
    fn len(&self) -> usize;
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Region memory from the heap: for tests, and for stacks without devices that share memory.
pub struct HeapMemory {
    base: *mut u8,
    layout: std::alloc::Layout,
}

// SAFETY: the pointer is owned, and what it points to is only handed out through handles.
unsafe impl Send for HeapMemory {}
// SAFETY: as above; `&HeapMemory` gives only the address.
unsafe impl Sync for HeapMemory {}

impl HeapMemory {
    /// `len` zeroed bytes.
    pub fn new(len: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(len.max(4096), 4096).expect("region size");
        // SAFETY: the layout has a size above 0.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        if base.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        HeapMemory { base, layout }
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.base, self.layout) }
    }
}

// SAFETY: `alloc_zeroed` with alignment 4096 gives exactly that, and it is freed on drop only.
unsafe impl RegionMemory for HeapMemory {
    fn base(&self) -> *mut u8 {
        self.base
    }
    fn len(&self) -> usize {
        self.layout.size()
    }
}

/// Why a region could not be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RegionError {
    /// The memory is too small.
    #[error("region memory has {have} bytes, {want} are needed")]
    TooSmall {
        /// Bytes given.
        have: usize,
        /// Bytes needed.
        want: usize,
    },
    /// The table of regions is full.
    #[error("more than {MAX_REGIONS} regions")]
    TooMany,
    /// A count of 0 or above the limit.
    #[error("frames and heads of a region: expected 1 to 1048575, got {0}")]
    Count(u32),
}

/// What the table holds of a region: enough to turn a handle into an address. Aligned so that its index is a shift.
#[repr(align(32))]
struct Slot {
    heads: AtomicPtr<RawHead>,
    frames: AtomicPtr<u8>,
}

static SLOTS: [Slot; MAX_REGIONS] = [const {
    Slot { heads: AtomicPtr::new(std::ptr::null_mut()), frames: AtomicPtr::new(std::ptr::null_mut()) }
}; MAX_REGIONS];
static REGISTER: Mutex<[Weak<Region>; MAX_REGIONS]> = Mutex::new([const { Weak::new() }; MAX_REGIONS]);

/// Address of head `index` of region `id`.
#[inline(always)]
pub(super) fn head_ptr(id: u32, index: u32) -> *mut RawHead {
    // Relaxed: a handle reaches a thread only by something that already orders it after the registration.
    SLOTS[id as usize % MAX_REGIONS].heads.load(Ordering::Relaxed).wrapping_add(index as usize)
}

/// Address of the first byte of frame `index` of region `id`.
#[inline(always)]
pub(super) fn frame_ptr(id: u32, index: u32) -> *mut u8 {
    SLOTS[id as usize % MAX_REGIONS].frames.load(Ordering::Relaxed).wrapping_add(index as usize * FRAME_SIZE)
}

/// The frames of a region that another process has used so far
/// ([`Region::handed_over`]): each is handed out once, and then is this process's.
#[derive(Debug)]
pub struct HandedFrames {
    region: u32,
    taken: Vec<bool>,
}

impl HandedFrames {
    /// Frame `index`; `None` if there is no such, or it was handed out before.
    pub fn take(&mut self, index: u32) -> Option<Frame> {
        let taken = self.taken.get_mut(index as usize)?;
        (!std::mem::replace(taken, true)).then(|| Frame::new(self.region, index))
    }

    /// All that were not handed out yet.
    pub fn rest(self) -> impl Iterator<Item = Frame> {
        let left = (0..).zip(self.taken).filter(|(_, taken)| !taken);
        left.map(move |(index, _)| Frame::new(self.region, index))
    }
}

/// A region of packet memory. Shared by every thread context and device that uses it.
pub struct Region {
    id: u32,
    memory: Option<Box<dyn RegionMemory>>,
    pub(crate) heads: Pool,
    pub(crate) frames: Pool,
    exhausted: AtomicU64,
    #[cfg(feature = "debug-poison")]
    pub(super) frame_states: Box<[std::sync::atomic::AtomicU8]>,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (frames, heads) = (self.frame_count(), self.head_count());
        f.debug_struct("Region").field("frames", &frames).field("heads", &heads).finish_non_exhaustive()
    }
}

impl Region {
    /// Bytes that `frames` frames and `heads` heads take.
    pub fn bytes(frames: u32, heads: u32) -> usize {
        frames as usize * FRAME_SIZE + heads as usize * size_of::<RawHead>()
    }

    /// Lays out and registers a region, without [remote free](crate::sync::Home).
    pub fn new(memory: Box<dyn RegionMemory>, frames: u32, heads: u32) -> Result<Arc<Self>, RegionError> {
        Self::with_defer(memory, frames, heads, 0)
    }

    /// Lays out and registers a region. What a thread frees that another took goes home to that
    /// one, unless `skb_defer_max` heads, or frames, are on their way there; 0: it stays with the
    /// thread that frees it.
    pub fn with_defer(
        memory: Box<dyn RegionMemory>,
        frames: u32,
        heads: u32,
        skb_defer_max: u32,
    ) -> Result<Arc<Self>, RegionError> {
        let pool = |n| Pool::full(n, CacheSizes::default().refill as u32);
        Self::register(memory, (pool, frames), heads, skb_defer_max)
    }

    /// As [`with_defer`](Self::with_defer), of frames that another process has used so far: none of
    /// them is free; each becomes so by what is returned beside the region.
    ///
    /// # Errors
    /// As there.
    pub fn handed_over(
        memory: Box<dyn RegionMemory>,
        frames: u32,
        heads: u32,
        skb_defer_max: u32,
    ) -> Result<(Arc<Self>, HandedFrames), RegionError> {
        let region = Self::register(memory, (Pool::empty, frames), heads, skb_defer_max)?;
        let handed = HandedFrames { region: region.id, taken: vec![false; frames as usize] };
        Ok((region, handed))
    }

    fn register(
        memory: Box<dyn RegionMemory>,
        (frame_pool, frames): (impl Fn(u32) -> Pool, u32),
        heads: u32,
        skb_defer_max: u32,
    ) -> Result<Arc<Self>, RegionError> {
        for n in [frames, heads] {
            if n == 0 || n > u32::MAX >> 12 {
                return Err(RegionError::Count(n));
            }
        }
        let (have, want) = (memory.len(), Self::bytes(frames, heads));
        if have < want {
            return Err(RegionError::TooSmall { have, want });
        }
        let mut register = REGISTER.lock().unwrap_or_else(|e| e.into_inner());
        // Slot 0 stays empty, so that a handle is never all zeroes.
        let id = (1..MAX_REGIONS)
            .find(|&i| SLOTS[i].heads.load(Ordering::Relaxed).is_null())
            .ok_or(RegionError::TooMany)?;
        let base = memory.base();
        let defer = |pool: Pool| match skb_defer_max {
            0 => pool,
            limit => pool.with_homes(limit),
        };
        let region = Arc::new(Region {
            id: id as u32,
            memory: Some(memory),
            heads: defer(Pool::full(heads, CacheSizes::default().refill as u32)),
            frames: defer(frame_pool(frames)),
            exhausted: AtomicU64::new(0),
            #[cfg(feature = "debug-poison")]
            frame_states: super::poison::frame_states(frames),
        });
        let heads = base.wrapping_add(frames as usize * FRAME_SIZE).cast();
        #[cfg(feature = "debug-poison")]
        super::poison::prepare(&region, base, heads);
        SLOTS[id].frames.store(base, Ordering::Relaxed);
        register[id] = Arc::downgrade(&region);
        SLOTS[id].heads.store(heads, Ordering::Release);
        Ok(region)
    }

    /// The registered region `id`, unless it is gone or going.
    pub(super) fn by_id(id: u32) -> Option<Arc<Region>> {
        let register = REGISTER.lock().unwrap_or_else(|e| e.into_inner());
        register[id as usize % MAX_REGIONS].upgrade()
    }

    /// Number of the region, never 0.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// First byte of the frames: what a device registers as its packet memory.
    pub fn base(&self) -> *mut u8 {
        self.memory.as_ref().map_or(std::ptr::null_mut(), |m| m.base())
    }

    /// Bytes of all frames, from [`base`](Self::base).
    pub fn frame_bytes(&self) -> usize {
        self.frames.size() as usize * FRAME_SIZE
    }

    /// Frames in all.
    pub fn frame_count(&self) -> u32 {
        self.frames.size()
    }

    /// Heads in all.
    pub fn head_count(&self) -> u32 {
        self.heads.size()
    }

    /// Frames in the shared pool (not in caches, rings or packets).
    pub fn frames_free(&self) -> u64 {
        self.frames.free()
    }

    /// Heads in the shared pool.
    pub fn heads_free(&self) -> u64 {
        self.heads.free()
    }

    /// Homes of heads and of frames, if what others free goes home.
    pub fn homes(&self) -> [Option<&Homes>; 2] {
        [self.heads.homes(), self.frames.homes()]
    }

    /// How often an allocation found neither cache nor pool filled.
    pub fn exhausted(&self) -> u64 {
        self.exhausted.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn note_exhausted(&self) {
        self.exhausted.fetch_add(1, Ordering::Relaxed);
    }

    fn all_home(&self) -> bool {
        self.heads.free() == u64::from(self.heads.size())
            && self.frames.free() == u64::from(self.frames.size())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _guard = REGISTER.lock().unwrap_or_else(|e| e.into_inner());
        let slot = &SLOTS[self.id as usize];
        if !model_failed() && self.all_home() {
            slot.frames.store(std::ptr::null_mut(), Ordering::Relaxed);
            slot.heads.store(std::ptr::null_mut(), Ordering::Relaxed);
        } else {
            std::mem::forget(self.memory.take());
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_does_not_fit() {
        let memory = || Box::new(HeapMemory::new(4096));
        assert!(matches!(Region::new(memory(), 2, 1), Err(RegionError::TooSmall { want: 4224, .. })));
        assert!(matches!(Region::new(memory(), 0, 1), Err(RegionError::Count(0))));
        let region = Region::new(memory(), 1, 4).unwrap();
        assert_eq!((region.frames_free(), region.heads_free()), (1, 4));
    }

    #[test]
    fn handed_frames_are_handed_out_once_and_the_rest_becomes_free() {
        let memory = Box::new(HeapMemory::new(Region::bytes(70, 4)));
        let (region, mut handed) = Region::handed_over(memory, 70, 4, 0).unwrap();
        let mut store = super::super::Store::new(region.clone(), CacheSizes::default());
        assert!(store.alloc_frame().is_none(), "none is free");
        let of_ring = handed.take(69).unwrap();
        assert!(handed.take(69).is_none() && handed.take(70).is_none());
        assert_eq!(of_ring.index(), 69);
        store.free_frames(handed.rest());
        store.drain();
        assert_eq!(region.frames_free(), 69);
        store.free_frame(of_ring);
        store.drain();
        assert_eq!(region.frames_free(), 70);
    }
}
