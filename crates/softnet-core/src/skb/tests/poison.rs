//! Bugs that are planted, and caught by `debug-poison`, wherever the memory lies that they are
//! about: in a thread's caches, in the pool, or on a defer list.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

const N: u32 = 8;

/// Runs `bug` and returns what it was caught with.
fn caught(bug: impl FnOnce()) -> String {
    let error = catch_unwind(AssertUnwindSafe(bug)).expect_err("the bug was not caught");
    *error.downcast::<String>().expect("a message")
}

/// Where what was freed lies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// In the caches of the thread that freed it.
    Cache,
    /// In the pool.
    Pool,
    /// On the list of what goes home to the thread that took it.
    DeferList,
}

/// Each kind of cache; places, as far as they are others in it. (Of what goes home to the thread
/// that took it there is no second array, so those are never separate.)
///
/// No more than are of use: after a bug a rig is leaked, and regions are few.
const PLACES: [(CacheSizes, Place); 8] = [
    (TODAY, Place::Cache),
    (TODAY, Place::Pool),
    (TODAY, Place::DeferList),
    (CacheSizes::unified(64, 16, 32), Place::Cache),
    (CacheSizes::SEPARATE, Place::Cache),
    (CacheSizes::SEPARATE, Place::Pool),
    (CacheSizes::OFF, Place::Cache),
    (CacheSizes::OFF, Place::Pool),
];
const TODAY: CacheSizes = CacheSizes::unified(128, 32, 32);

/// One of each kind.
fn kinds() -> impl Iterator<Item = (CacheSizes, Place)> {
    PLACES.into_iter().filter(|(_, place)| *place == Place::Cache)
}

/// Two contexts of one region. After a bug they are not to be trusted with their ends.
struct Rig {
    region: Arc<Region>,
    a: ManuallyDrop<SoftnetData>,
    b: ManuallyDrop<SoftnetData>,
}

impl Rig {
    /// Contexts with caches of those sizes, where freed memory gets to that place.
    fn of((sizes, place): (CacheSizes, Place)) -> Self {
        let memory = Box::new(HeapMemory::new(Region::bytes(N, N)));
        // With homes there is but one array.
        let homes = !sizes.separate || place == Place::DeferList;
        let region = if homes { Region::with_defer(memory, N, N, 128) } else { Region::new(memory, N, N) };
        let region = region.unwrap();
        let context = || ManuallyDrop::new(SoftnetData::new(region.clone(), sizes));
        let (a, b) = (context(), context());
        Rig { region, a, b }
    }

    /// Frees `skb`, which `a` took, so that it lies in `place`.
    fn free(&mut self, skb: Skb, place: Place) {
        match place {
            Place::DeferList => {
                self.b.free_skb(skb);
                self.b.trim(0);
                assert_eq!(self.region.homes().map(|homes| homes.unwrap().pending(1)), [1, 1]);
            }
            Place::Cache => self.a.free_skb(skb),
            Place::Pool => {
                self.a.free_skb(skb);
                self.a.trim(0);
                assert_eq!((self.region.heads_free(), self.region.frames_free()), (N.into(), N.into()));
            }
        }
    }
}

/// A second handle to the same memory, as a bug in a driver would make one.
fn copy_of(skb: &Skb) -> ManuallyDrop<Skb> {
    // SAFETY: not safe at all; that is what these tests are about.
    ManuallyDrop::new(unsafe { Skb::from_raw(skb.region(), skb.index()) })
}

fn frame(region: &Region, index: u32) -> Frame {
    // SAFETY: not safe at all; that is what these tests are about.
    unsafe { Frame::from_raw(region, index) }
}

#[test]
fn catches_use_after_free() {
    for caches in PLACES {
        let (mut rig, (_, place)) = (Rig::of(caches), caches);
        let mut skb = rig.a.alloc_skb().unwrap();
        skb.put(10).unwrap().fill(1);
        let (mut stale, index) = (copy_of(&skb), skb.raw().frame);
        let late_write = skb.data_mut().as_mut_ptr();
        rig.free(skb, place);
        assert!(caught(|| assert_eq!(stale.len(), 0)).contains("use of a freed head"), "{caches:?}");
        assert!(caught(|| stale.data_mut()[0] = 1).contains("use of a freed head"), "{caches:?}");
        let mut bytes = ManuallyDrop::new(frame(&rig.region, index));
        assert!(caught(|| bytes.bytes_mut()[0] = 1).contains("freed or foreign frame"), "{caches:?}");
        // SAFETY: the memory is there; the write is the bug (a device that kept the frame).
        unsafe { late_write.write(1) };
        let all = || (0..N).for_each(|_| std::mem::forget(rig.a.alloc_frame()));
        let message = caught(all);
        assert!(
            message.contains(&format!("write to a freed frame at byte {HEADROOM}")),
            "{caches:?}: {message}"
        );
    }
}

#[test]
fn catches_double_frees() {
    for caches in PLACES {
        for by_other in [false, true] {
            if by_other && caches.0 != TODAY {
                continue;
            }
            // A packet, then a head and a frame by themselves.
            let (mut rig, (_, place)) = (Rig::of(caches), caches);
            let skb = rig.a.alloc_skb().unwrap();
            let (again, head, index) = (copy_of(&skb), skb.index(), skb.raw().frame);
            rig.free(skb, place);
            let region = rig.region.clone();
            let by = if by_other { &mut rig.b } else { &mut rig.a };
            let heads = HeadBulk { region: region.id(), len: 1, heads: [head; HeadBulk::SIZE] };
            assert!(
                caught(|| by.free_heads(heads)).contains("double free of a head"),
                "{caches:?} {by_other}"
            );
            let again_frame = frame(&region, index);
            let message = caught(|| by.free_frame(again_frame));
            assert!(message.contains("double free of a frame"), "{caches:?} {by_other}: {message}");
            // The mark says free again now.
            let message = caught(|| by.free_skb(ManuallyDrop::into_inner(again)));
            assert!(message.contains("freed head"), "{caches:?} {by_other}: {message}");
        }
    }
}

#[test]
fn catches_a_double_free_within_a_bulk() {
    for caches in kinds() {
        let mut rig = Rig::of(caches);
        let heads = rig.a.alloc_heads();
        let again = HeadBulk { region: heads.region, len: heads.len, heads: heads.heads };
        rig.a.free_heads(heads);
        assert!(caught(|| rig.a.free_heads(again)).contains("double free of a head"), "{caches:?}");
    }
}

#[test]
fn catches_foreign_frees() {
    // What is none of the region's, whether the region's thread frees it or another's, home or not.
    let other = region(2, 2);
    let mut alien = ManuallyDrop::new(context(&other));
    for mut rig in kinds().map(Rig::of) {
        let id = rig.region.id();
        for by in [&mut rig.a, &mut rig.b, &mut alien] {
            let frame = Frame::new(id, N);
            assert!(caught(|| by.free_frame(frame)).contains("foreign free of a frame"));
            let heads = HeadBulk { region: id, len: 1, heads: [N; HeadBulk::SIZE] };
            assert!(caught(|| by.free_heads(heads)).contains("foreign free of a head"));
            let frames = [Frame::new(id, N)];
            assert!(caught(|| by.free_frames(frames.into_iter())).contains("foreign free of a frame"));
        }
    }
}
