//! Chains of which one head stands for eight frames, as GRO makes them: whatever is done to such a
//! packet, its bytes are those of one with a head for each frame, and all memory comes home.

use super::*;

/// Frames of a full aggregate of segments of 1448 bytes.
const TRAIN: usize = 45;
/// Frames a head stands for.
const EACH: usize = 8;

struct Rig {
    region: Arc<Region>,
    ctx: SoftnetData,
}

impl Rig {
    fn new(frames: u32, heads: u32) -> Self {
        let region = region(frames, heads);
        let ctx = context(&region);
        Rig { region, ctx }
    }

    /// Heads and frames that are in packets.
    fn in_use(&self) -> (usize, usize) {
        let (heads, frames) = self.ctx.cached();
        let of = |total: u32, free: u64, cached: usize| total as usize - free as usize - cached;
        (
            of(self.region.head_count(), self.region.heads_free(), heads),
            of(self.region.frame_count(), self.region.frames_free(), frames),
        )
    }

    /// A batch of frames of `lens` bytes, each behind `headers` bytes of 0xee; their bytes count on
    /// from `from`.
    fn batch(&mut self, headers: usize, lens: &[usize], mut from: usize) -> FrameBatch {
        let mut batch = FrameBatch::new(&self.region);
        for len in lens {
            let mut frame = self.ctx.alloc_frame_bulk(1).next().expect("a frame");
            let bytes = &mut frame.bytes_mut()[HEADROOM..][..headers + len];
            bytes[..headers].fill(0xee);
            bytes[headers..].iter_mut().zip(from..).for_each(|(byte, n)| *byte = n as u8);
            from += len;
            batch.push(frame, HEADROOM, headers + len).expect("there is room");
        }
        batch
    }

    /// A packet of frames of `lens` bytes, which count on: the first with a head of its own, the
    /// others packed, by several calls of `by` frames.
    fn packet(&mut self, lens: &[usize], by: usize) -> Skb {
        let mut skb = self.ctx.alloc_skb().expect("memory");
        let first = skb.put(lens[0]).expect("it fits");
        first.iter_mut().enumerate().for_each(|(n, byte)| *byte = n as u8);
        let (mut chain, mut from) = (FrameChain::new(), lens[0]);
        for lens in lens[1..].chunks(by) {
            let mut batch = self.batch(54, lens, from);
            assert_eq!(self.ctx.chain_frames(&mut chain, &mut batch, lens.len(), 54), lens.len());
            from += lens.iter().sum::<usize>();
        }
        skb.append_chain(chain).unwrap_or_else(|_| panic!("it is of the region"));
        skb
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.in_use(), (0, 0));
        }
    }
}

fn bytes(skb: &Skb) -> Vec<u8> {
    assert_eq!(skb.frames().count(), skb.frame_count());
    let bytes: Vec<u8> = skb.frames().flatten().copied().collect();
    assert_eq!(bytes.len(), skb.len());
    bytes
}

fn row(len: usize) -> Vec<u8> {
    (0..len).map(|n| n as u8).collect()
}

/// Trains whose last head is full, has one frame, or is the only one, packed at once and by pieces
/// that end within a head.
fn trains() -> impl Iterator<Item = (Vec<usize>, usize)> {
    [2, 9, 10, 17, TRAIN, 64].into_iter().flat_map(|frames| {
        let lens: Vec<usize> = (0..frames).map(|n| 20 + n % 7).collect();
        [1, 3, 8, 63].map(|by| (lens.clone(), by))
    })
}

#[test]
fn a_head_stands_for_eight_frames() {
    let mut rig = Rig::new(128, 128);
    for (lens, by) in trains() {
        let skb = rig.packet(&lens, by);
        let heads = 1 + (lens.len() - 1).div_ceil(EACH);
        assert_eq!((rig.in_use(), skb.frame_count()), ((heads, lens.len()), lens.len()));
        assert_eq!(bytes(&skb), row(lens.iter().sum()));
        let mut parts = Vec::new();
        skb.each_part(|part| {
            // What was in front of the bytes is there still.
            assert_eq!((part.pulled(54), part.headroom()), (Some(&[0xee; 54][..]), HEADROOM + 54));
            parts.push(part.len());
        });
        assert_eq!(parts, lens[1..]);
        rig.ctx.free_skb(skb);
    }
}

/// What is shorter than the headers that are taken off leaves nothing; and no length is taken off a
/// neighbour's.
#[test]
fn headers_longer_than_the_frame_leave_nothing() {
    let mut rig = Rig::new(32, 32);
    let mut skb = rig.ctx.alloc_skb().unwrap();
    let mut chain = FrameChain::new();
    let mut batch = rig.batch(0, &[60, 60, 10, 0, 40, 41], 0);
    assert_eq!(rig.ctx.chain_frames(&mut chain, &mut batch, 6, 40), 6);
    assert_eq!((chain.len(), chain.bytes(), batch.len()), (6, 41, 0));
    skb.append_chain(chain).unwrap_or_else(|_| panic!("it is of the region"));
    let lens: Vec<usize> = skb.frames().map(<[u8]>::len).collect();
    assert_eq!(lens, [0, 20, 20, 0, 0, 0, 1]);
    assert_eq!(bytes(&skb)[..40], [&row(60)[40..], &row(120)[100..]].concat());
    rig.ctx.free_skb(skb);
}

/// For want of a head the rest stays in the batch.
#[test]
fn frames_without_a_head_stay_in_the_batch() {
    let mut rig = Rig::new(32, 3);
    let mut skb = rig.ctx.alloc_skb().unwrap();
    let (mut chain, mut batch) = (FrameChain::new(), rig.batch(4, &[9; 20], 0));
    assert_eq!(rig.ctx.chain_frames(&mut chain, &mut batch, 20, 4), 2 * EACH);
    assert_eq!((chain.len(), batch.len()), (2 * EACH, 4));
    assert_eq!(batch.front().map(|bytes| &bytes[4..]), Some(&row(17 * 9)[16 * 9..]));
    while let Some((frame, ..)) = batch.pop() {
        rig.ctx.free_frame(frame);
    }
    skb.append_chain(chain).unwrap_or_else(|_| panic!("it is of the region"));
    assert_eq!((bytes(&skb), rig.in_use()), (row(2 * EACH * 9), (3, 1 + 2 * EACH)));
    rig.ctx.free_skb(skb);
}

/// A head for each frame: all get one, in order, or none does.
#[test]
fn a_train_is_split() {
    for (lens, by) in trains() {
        let (n, packed) = (lens.len(), 1 + (lens.len() - 1).div_ceil(EACH));
        for heads in [packed, n - 1, n, n + 5] {
            let heads = heads.max(packed);
            let mut rig = Rig::new(128, heads as u32);
            let mut skb = rig.packet(&lens, by);
            let chain = rig.ctx.take_chain(&mut skb);
            assert_eq!(chain.is_some(), heads >= n, "{n} frames, {heads} heads");
            let Some(mut chain) = chain else {
                assert_eq!(bytes(&skb), row(lens.iter().sum()));
                rig.ctx.free_skb(skb);
                continue;
            };
            assert_eq!((skb.len(), chain.len(), rig.in_use().0), (lens[0], n - 1, n));
            let mut from = lens[0];
            for len in &lens[1..] {
                let part = chain.pop_front().expect("one for each frame");
                assert_eq!((part.data(), part.is_chained()), (&row(from + len)[from..], false));
                from += len;
                rig.ctx.free_skb(part);
            }
            assert!(chain.pop_front().is_none());
            rig.ctx.free_skb(skb);
        }
    }
}

#[test]
fn half_of_a_train_is_cut_off() {
    let mut rig = Rig::new(256, 256);
    for (lens, by) in trains() {
        let all: usize = lens.iter().sum();
        for len in [all / 2, lens[0], lens[0] + 1, lens[0] - 1, all - 1, 0] {
            let mut skb = rig.packet(&lens, by);
            skb.trim(len);
            assert_eq!((bytes(&skb), skb.frame_count()), (row(len), lens.len()));
            // Half of the packet, whole, in front of another.
            let more = rig.packet(&lens, by);
            skb.append(more).unwrap_or_else(|_| panic!("there is room"));
            assert_eq!(bytes(&skb), [row(len), row(all)].concat());
            rig.ctx.free_skb(skb);
        }
    }
}

#[test]
fn a_train_is_copied_and_joined() {
    let mut rig = Rig::new(256, 256);
    for (lens, by) in trains() {
        let all: usize = lens.iter().sum();
        let mut skb = rig.packet(&lens, by);
        let copy = rig.ctx.copy(&skb).expect("memory");
        assert_eq!((bytes(&copy), copy.frame_count()), (row(all), lens.len()));
        skb.append(copy).unwrap_or_else(|_| panic!("there is room"));
        assert_eq!(bytes(&skb), [row(all), row(all)].concat());
        let mut taken = Vec::new();
        rig.ctx.take_all_frames(skb, |store, frame, off, len| {
            taken.extend_from_slice(&frame.bytes()[off..off + len]);
            store.free_frame(frame);
        });
        assert_eq!((taken, rig.in_use()), ([row(all), row(all)].concat(), (0, 0)));
    }
}

#[test]
fn a_train_that_fits_a_frame_is_linearized() {
    let mut rig = Rig::new(128, 128);
    for (lens, by) in trains() {
        let all: usize = lens.iter().sum();
        let mut skb = rig.packet(&lens, by);
        assert!(rig.ctx.linearize(&mut skb));
        assert_eq!((skb.data(), skb.frame_count(), rig.in_use()), (&row(all)[..], 1, (1, 1)));
        rig.ctx.free_skb(skb);
        // One that does not stays as it is.
        let long: Vec<usize> = lens.iter().map(|_| 1448).collect();
        let mut skb = rig.packet(&long, by);
        assert!(!rig.ctx.linearize(&mut skb));
        assert_eq!(bytes(&skb), row(1448 * long.len()));
        rig.ctx.free_skb(skb);
    }
}

/// Freed by a context of another region, which has no cache for it.
#[test]
fn a_train_is_freed_by_another() {
    let (mut rig, mut other) = (Rig::new(128, 128), Rig::new(4, 4));
    for (lens, by) in trains() {
        let skb = rig.packet(&lens, by);
        other.ctx.free_skb(skb);
        assert_eq!(rig.in_use(), (0, 0));
    }
}
