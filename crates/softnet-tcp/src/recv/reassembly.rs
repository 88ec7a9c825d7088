//! Data beyond a hole (RFC 9293 3.10.7.4: "segments with higher beginning sequence numbers SHOULD
//! be held for later processing", SHLD-31).
//!
//! Pieces are kept in order, disjoint, behind `RCV.NXT`. A piece is a part of one arrived segment,
//! whose handle the host gave; a segment that overlaps pieces is trimmed to what is new, and pieces
//! that it covers whole give way. The common places of insertion are the two ends, both in constant
//! time; the search is binary. The queue exists only while there is a hole.

use std::collections::VecDeque;

use super::sack::SackList;
use crate::seq::Seq;
use crate::wire::SackRange;

/// Most pieces. With fewer bytes a piece than a window of [`MAX_PIECES`] segments, memory runs out
/// first.
const MAX_PIECES: usize = 8192;

/// A part of an arrived segment.
#[derive(Debug)]
pub(crate) struct Piece<H> {
    pub(crate) start: Seq,
    pub(crate) end: Seq,
    /// Bytes of the segment's payload before `start`.
    pub(crate) front: u32,
    /// Bytes of memory that the segment holds.
    pub(crate) charge: u32,
    pub(crate) handle: H,
}

/// What is held beyond the hole, and what is told of it.
#[derive(Debug)]
pub(crate) struct Reassembly<H> {
    pieces: VecDeque<Piece<H>>,
    pub(crate) sacks: SackList,
    /// The number of a FIN that arrived beyond the hole.
    pub(crate) fin: Option<Seq>,
    /// Duplicate ACKs sent for this `RCV.NXT`, up to three.
    pub(crate) dup_acks: u8,
    /// Duplicate ACKs that were left out.
    pub(crate) compressed: u8,
    pub(crate) compressed_rcv_nxt: Seq,
}

/// What became of a segment beyond the hole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inserted<H> {
    /// The part that was there before.
    pub(crate) dup: Option<SackRange>,
    /// The handle, if nothing of it was new or there is no room for more pieces.
    pub(crate) rejected: Option<H>,
}

impl<H> Default for Reassembly<H> {
    fn default() -> Self {
        Reassembly {
            pieces: VecDeque::new(),
            sacks: SackList::default(),
            fin: None,
            dup_acks: 0,
            compressed: 0,
            compressed_rcv_nxt: Seq(0),
        }
    }
}

impl<H> Reassembly<H> {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.fin.is_none()
    }

    /// Inserts a segment's payload. `freed` gets the pieces that it covers whole.
    pub(crate) fn insert(&mut self, mut piece: Piece<H>, mut freed: impl FnMut(Piece<H>)) -> Inserted<H> {
        let mut dup: Option<SackRange> = None;
        let mut seen = |start: Seq, end: Seq| {
            let first = dup.get_or_insert(SackRange { start, end });
            *first = SackRange { start: first.start.min(start), end: first.end.max(end) };
        };
        // The first piece that ends after this one's start.
        let mut at = match self.pieces.back() {
            Some(last) if last.end.after(piece.start) => {
                self.pieces.partition_point(|held| held.end.at_or_before(piece.start))
            }
            _ => self.pieces.len(),
        };
        if let Some(held) = self.pieces.get(at)
            && held.start.at_or_before(piece.start)
        {
            if held.end.at_or_after(piece.end) {
                seen(piece.start, piece.end);
                return Inserted { dup, rejected: Some(piece.handle) };
            }
            seen(piece.start, held.end);
            piece.front += held.end - piece.start;
            piece.start = held.end;
            at += 1;
        }
        // Those that it covers leave together: one by one, each would move all behind it.
        let mut behind = at;
        while let Some(held) = self.pieces.get(behind)
            && held.start.before(piece.end)
        {
            if held.end.after(piece.end) {
                seen(held.start, piece.end);
                piece.end = held.start;
                break;
            }
            seen(held.start, held.end);
            behind += 1;
        }
        self.pieces.drain(at..behind).for_each(&mut freed);
        if piece.start == piece.end || self.pieces.len() >= MAX_PIECES {
            return Inserted { dup, rejected: Some(piece.handle) };
        }
        self.pieces.insert(at, piece);
        Inserted { dup, rejected: None }
    }

    /// The first piece, if the hole before it is closed: trimmed to what is behind `rcv_nxt`. A
    /// piece wholly before it comes with an empty range.
    pub(crate) fn pop(&mut self, rcv_nxt: Seq) -> Option<Piece<H>> {
        if !self.pieces.front()?.start.at_or_before(rcv_nxt) {
            return None;
        }
        let mut piece = self.pieces.pop_front()?;
        let skip = rcv_nxt.past(piece.start).min(piece.end - piece.start);
        piece.start += skip;
        piece.front += skip;
        Some(piece)
    }

    /// The piece with the highest numbers, to be dropped for want of memory.
    pub(crate) fn pop_last(&mut self) -> Option<Piece<H>> {
        self.pieces.pop_back()
    }

    /// The piece with the highest numbers, if they are behind `start`.
    pub(crate) fn pop_last_behind(&mut self, start: Seq) -> Option<Piece<H>> {
        self.pieces.back()?.start.after(start).then(|| self.pieces.pop_back())?
    }

    /// Reports anew what is left.
    pub(crate) fn rebuild_sacks(&mut self) {
        self.sacks.clear();
        for piece in &self.pieces {
            self.sacks.add(piece.start, piece.end);
        }
    }

    /// Bytes from the first piece's start to the last one's end.
    pub(crate) fn span(&self) -> u32 {
        match (self.pieces.front(), self.pieces.back()) {
            (Some(first), Some(last)) => last.end - first.start,
            _ => 0,
        }
    }

    /// The end of a reported block that is exactly `edge`: a reset there is legal (RFC 5961 3.2 as
    /// Linux extends it).
    pub(crate) fn highest_sacked(&self) -> Option<Seq> {
        self.sacks.as_slice().iter().map(|range| range.end).reduce(Seq::max)
    }

    /// Whether pieces are in order, disjoint, and beyond `rcv_nxt`.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn is_sound(&self, rcv_nxt: Seq) -> bool {
        let mut edge = rcv_nxt;
        let mut first = true;
        self.pieces.iter().all(|piece| {
            let beyond = if first { piece.start.after(edge) } else { piece.start.at_or_after(edge) };
            first = false;
            edge = piece.end;
            beyond && piece.start.before(piece.end)
        })
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn charge(&self) -> u32 {
        self.pieces.iter().map(|piece| piece.charge).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Sut = Reassembly<(u32, u32)>;

    fn insert(queue: &mut Sut, start: u32, end: u32) -> (Option<(u32, u32)>, usize) {
        let mut freed = 0;
        let piece =
            Piece { start: Seq(start), end: Seq(end), front: 0, charge: 1, handle: (start, end - start) };
        let inserted = queue.insert(piece, |_| freed += 1);
        (inserted.dup.map(|d| (d.start.0, d.end.0)), freed + usize::from(inserted.rejected.is_some()))
    }

    fn ranges(queue: &Sut) -> Vec<(u32, u32)> {
        queue.pieces.iter().map(|p| (p.start.0, p.end.0)).collect()
    }

    #[test]
    fn overlaps_are_trimmed_and_reported() {
        let mut queue = Sut::default();
        assert_eq!(insert(&mut queue, 10, 20), (None, 0));
        assert_eq!(insert(&mut queue, 30, 40), (None, 0));
        assert_eq!(insert(&mut queue, 12, 18), (Some((12, 18)), 1), "nothing new");
        assert_eq!(insert(&mut queue, 15, 25), (Some((15, 20)), 0), "the front was there");
        assert_eq!(insert(&mut queue, 25, 35), (Some((30, 35)), 0), "the tail was there");
        assert_eq!(ranges(&queue), [(10, 20), (20, 25), (25, 30), (30, 40)]);
        assert_eq!(insert(&mut queue, 5, 50), (Some((10, 40)), 4), "all four are covered");
        assert_eq!(ranges(&queue), [(5, 50)]);
        assert_eq!(queue.span(), 45);
    }

    #[test]
    fn pieces_come_out_when_the_hole_is_closed() {
        let mut queue = Sut::default();
        insert(&mut queue, 10, 20);
        insert(&mut queue, 20, 30);
        assert!(queue.pop(Seq(9)).is_none());
        let piece = queue.pop(Seq(13)).unwrap();
        assert_eq!((piece.start.0, piece.end.0, piece.front), (13, 20, 3));
        let piece = queue.pop(Seq(40)).unwrap();
        assert_eq!((piece.start, piece.end), (Seq(30), Seq(30)), "wholly old");
        assert!(queue.is_empty());
    }

    proptest! {
        /// Whatever arrives in whatever order: what comes out is each byte once, from a segment
        /// that has it there.
        #[test]
        fn every_byte_comes_out_once(
            segments in prop::collection::vec((1u32..200, 1u32..40), 1..60),
            base in prop_oneof![Just(0u32), Just(u32::MAX - 100), any::<u32>()],
        ) {
            let mut queue = Sut::default();
            let mut want = std::collections::BTreeSet::new();
            let mut handles = 0;
            for (start, len) in &segments {
                want.extend(*start..start + len);
                let piece = Piece {
                    start: Seq(base) + *start, end: Seq(base) + (start + len),
                    front: 0, charge: 1, handle: (*start, *len),
                };
                let mut freed = 0;
                let inserted = queue.insert(piece, |_| freed += 1);
                handles = handles + 1 - freed - i32::from(inserted.rejected.is_some());
                prop_assert!(queue.is_sound(Seq(base)));
                prop_assert_eq!(queue.pieces.len() as i32, handles);
            }
            let mut got = std::collections::BTreeSet::new();
            for at in 0..300 {
                while let Some(piece) = queue.pop(Seq(base) + at) {
                    let from = piece.handle.0 + piece.front;
                    prop_assert_eq!(piece.start, Seq(base) + from);
                    for byte in from..from + (piece.end - piece.start) {
                        prop_assert!(byte < piece.handle.0 + piece.handle.1);
                        prop_assert!(got.insert(byte));
                    }
                }
            }
            prop_assert_eq!(got, want);
        }
    }
}
