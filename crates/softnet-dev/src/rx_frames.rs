//! Frames for packets that arrive by copy: as many as the packet takes, the first with headroom,
//! the others full.
//!
//! Called by the owner of an RX queue.

use softnet_core::SoftnetData;
use softnet_core::skb::{FRAME_SIZE, HEADROOM, Skb};

/// Bytes that a packet's first frame has room for.
pub(crate) const FIRST: usize = FRAME_SIZE - HEADROOM;

/// An Ethernet header, and two VLAN tags.
const LINK_HEADERS: usize = 14 + 4 + 4;

/// The longest frame of an interface that leaves segments uncut.
pub(crate) const LONGEST_OF_SEGMENTS: usize = u16::MAX as usize + LINK_HEADERS;

/// The longest frame of an interface with this MTU.
pub(crate) fn longest(mtu: u16) -> usize {
    usize::from(mtu) + LINK_HEADERS
}

/// Frames that a packet of `len` bytes takes.
pub(crate) fn frames_of(len: usize) -> usize {
    1 + len.saturating_sub(FIRST).div_ceil(FRAME_SIZE)
}

/// An skb that is all of a fresh frame from `off` on, to be written to.
#[inline]
pub(crate) fn blank(ctx: &mut SoftnetData, off: usize) -> Option<Skb> {
    let frame = ctx.alloc_frame()?;
    ctx.build_skb(frame, off, FRAME_SIZE - off).map_err(|frame| ctx.free_frame(frame)).ok()
}

/// A packet of the bytes of `pieces`, copied. `None`, and nothing has changed, if there is not the
/// memory for it.
#[inline]
pub(crate) fn copied(ctx: &mut SoftnetData, pieces: [&[u8]; 3]) -> Option<Skb> {
    let mut left: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut from = Pieces { pieces, at: 0 };
    let mut skb = ctx.alloc_skb()?;
    if let Some(to) = skb.put(left.min(FIRST)) {
        from.fill(to);
    }
    left -= skb.len();
    while left > 0 {
        let Some(mut part) = blank(ctx, 0) else {
            ctx.free_skb(skb);
            return None;
        };
        part.trim(left);
        from.fill(part.data_mut());
        left -= part.len();
        if let Err(part) = skb.append(part) {
            ctx.free_skb(part);
            ctx.free_skb(skb);
            return None;
        }
    }
    Some(skb)
}

/// Bytes in pieces, which are taken first to last.
struct Pieces<'a> {
    pieces: [&'a [u8]; 3],
    at: usize,
}

impl Pieces<'_> {
    #[inline]
    fn fill(&mut self, mut to: &mut [u8]) {
        while let Some(piece) = self.pieces.get_mut(self.at) {
            let n = piece.len().min(to.len());
            let (now, later) = std::mem::take(&mut to).split_at_mut(n);
            now.copy_from_slice(&piece[..n]);
            (to, *piece) = (later, &piece[n..]);
            if !piece.is_empty() {
                return;
            }
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use softnet_core::skb::{CacheSizes, HeapMemory, Region};

    use super::*;

    #[test]
    fn a_packet_is_copied_whole_or_not_at_all() {
        let region = Region::new(Box::new(HeapMemory::new(Region::bytes(8, 8))), 8, 8).unwrap();
        let mut ctx = SoftnetData::new(region.clone(), CacheSizes::default());
        let all: Vec<u8> = (0..20_000).map(|i| (i ^ i >> 8) as u8).collect();
        for (len, frames) in [(0, 1), (60, 1), (1792, 1), (1793, 2), (3840, 2), (3841, 3), (16_128, 8)] {
            for cut in [0, 12, len / 2, len] {
                let cut = cut.min(len);
                let (a, b) = all[..len].split_at(cut);
                let skb = copied(&mut ctx, [a, &[1, 2, 3, 4][..0], b]).unwrap();
                assert!(skb.frames().flatten().eq(&all[..len]), "{len} {cut}");
                assert_eq!((skb.frame_count(), frames_of(len)), (frames, frames), "{len}");
                ctx.free_skb(skb);
            }
        }
        assert!(copied(&mut ctx, [&all[..16_129], &[], &[]]).is_none());
        ctx.drain();
        assert_eq!((region.frames_free(), region.heads_free()), (8, 8));
    }
}
