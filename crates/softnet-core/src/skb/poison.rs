//! The checks of the feature `debug-poison`: code that frees twice, uses what is free, or frees what is not its own.
//!
//! A free head carries a mark where a live one carries another; a free frame is filled with a pattern, which
//! must still be there when it is next handed out.

use std::sync::atomic::{AtomicU8, Ordering};

use super::handle::{Frame, Skb};
use super::head::RawHead;
use super::region::{FRAME_SIZE, Region, frame_ptr, head_ptr};

const LIVE: u32 = 0x11fe_11fe;
const FREE: u32 = 0xdead_f4ee;
const FRAME_FREE: u8 = 0;
const FRAME_USED: u8 = 1;
const PATTERN: u8 = 0x6b;

#[cold]
fn caught(what: &str, region: u32, index: u32) -> ! {
    panic!("debug-poison: {what}, index {index} of region {region}")
}

/// What is known of each frame of a region in the making.
pub(super) fn frame_states(frames: u32) -> Box<[AtomicU8]> {
    (0..frames).map(|_| AtomicU8::new(FRAME_USED)).collect()
}

/// Marks all heads of a new region free, and the frames that are in its pool.
pub(super) fn prepare(region: &Region, base: *mut u8, heads: *mut RawHead) {
    let all_free = region.frames_free() == u64::from(region.frame_count());
    // SAFETY: called once by `Region::register` on memory that is not yet handed out; frames of
    // another process are left alone.
    unsafe {
        if all_free {
            base.write_bytes(PATTERN, region.frame_bytes());
            region.frame_states.iter().for_each(|state| state.store(FRAME_FREE, Ordering::Relaxed));
        }
        for i in 0..region.head_count() as usize {
            (*heads.add(i)).poison = FREE;
        }
    }
}

pub(super) fn head_in_use(skb: &Skb) {
    // SAFETY: reads the mark of a head of a registered region; a wrong index is within the table or caught.
    let mark = unsafe { (*head_ptr(skb.region(), skb.index())).poison };
    if mark != LIVE {
        caught("use of a freed head", skb.region(), skb.index());
    }
}

pub(super) fn frame_in_use(frame: &Frame) {
    let region = Region::by_id(frame.region());
    let state = region.as_ref().and_then(|r| r.frame_states.get(frame.index() as usize));
    if state.map(|s| s.load(Ordering::Relaxed)) != Some(FRAME_USED) {
        caught("use of a freed or foreign frame", frame.region(), frame.index());
    }
}

/// A head leaves the pool or a cache.
pub(super) fn head_taken(region: &Region, index: u32) {
    // SAFETY: the index came from this region's pool.
    let mark = unsafe { &mut (*head_ptr(region.id(), index)).poison };
    if std::mem::replace(mark, LIVE) != FREE {
        caught("a head in the cache was in use", region.id(), index);
    }
}

/// A head goes back.
pub(super) fn head_freed(region: &Region, index: u32) {
    if index >= region.head_count() {
        caught("foreign free of a head", region.id(), index);
    }
    // SAFETY: the index lies within the region.
    let mark = unsafe { &mut (*head_ptr(region.id(), index)).poison };
    if std::mem::replace(mark, FREE) != LIVE {
        caught("double free of a head", region.id(), index);
    }
}

/// A frame leaves the pool or a cache.
pub(super) fn frame_taken(region: &Region, index: u32) {
    if region.frame_states[index as usize].swap(FRAME_USED, Ordering::AcqRel) != FRAME_FREE {
        caught("a frame in the cache was in use", region.id(), index);
    }
    // SAFETY: the frame is ours from here on.
    let bytes = unsafe { std::slice::from_raw_parts(frame_ptr(region.id(), index), FRAME_SIZE) };
    if let Some(at) = bytes.iter().position(|b| *b != PATTERN) {
        caught(&format!("write to a freed frame at byte {at}"), region.id(), index);
    }
}

/// A frame goes back.
pub(super) fn frame_freed(region: &Region, index: u32) {
    let Some(state) = region.frame_states.get(index as usize) else {
        caught("foreign free of a frame", region.id(), index)
    };
    if state.swap(FRAME_FREE, Ordering::AcqRel) != FRAME_USED {
        caught("double free of a frame", region.id(), index);
    }
    // SAFETY: the frame was ours until now; no other code can take it before this returns to the cache's owner.
    unsafe { frame_ptr(region.id(), index).write_bytes(PATTERN, FRAME_SIZE) }
}
