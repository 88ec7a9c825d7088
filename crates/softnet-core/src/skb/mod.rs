//! Packet memory: a region of frames and heads, the [`Skb`] handle, and the caches each thread keeps of both.
//!
//! * A **frame** is a fixed-size piece of the region that packet bytes live in; a **head** is two cache lines
//!   of metadata. An skb is a head with a frame attached.
//! * A packet is one skb. If it needs more than one frame, the rest is the skb's **chain** (the kernel's `frag_list`):
//!   further frames, which belong to it, with a head for each or for [several](FrameChain).
//! * [`Skb`] and [`Frame`] are owned handles of eight bytes (region and index, never a pointer). The owner
//!   of the handle has the memory; no other code may touch it. That is the invariant every `unsafe` block in
//!   this module rests on.
//! * Handles come from and go back through a thread's [`SoftnetData`](crate::SoftnetData). Dropping one on the
//!   floor is a bug: it aborts in debug builds and is counted as leaked in release builds.
#![allow(unsafe_code)]

mod batch;
mod bulk;
mod bundle;
mod cache;
mod cache_stats;
mod chain;
mod fragment;
mod gfni;
mod handle;
mod handover;
mod head;
mod inbox;
mod list;
#[cfg(feature = "debug-poison")]
mod poison;
mod reason;
mod region;
mod store;
mod wide;

pub use batch::{BATCH, Batch};
pub use bulk::{FrameBulk, HeadBulk};
pub use cache::{CacheSizes, IndexCache};
pub use cache_stats::CacheStats;
pub use chain::MAX_FRAMES;
pub use fragment::{FrameBatch, FrameChain, Part};
pub(crate) use gfni::{Gfni, Input, KeyMatrices};
pub use handle::{Frame, Skb, leaked};
pub use handle::{prefetch, prefetch_whole};
pub use handover::{Ending, SkbEntered, SkbHandover, SkbOwner};
pub use head::{Csum, Flags, GsoType, Head, VlanProto};
pub use inbox::{Closed, SkbInbox, SkbReceiver};
pub use list::SkbList;
pub use reason::DropReason;
pub use region::{FRAME_SIZE, HEADROOM, HandedFrames, HeapMemory, Region, RegionError, RegionMemory};
pub use store::Store;
pub(crate) use wide::sum_words;

#[cfg(all(test, not(feature = "loom")))]
mod tests;
