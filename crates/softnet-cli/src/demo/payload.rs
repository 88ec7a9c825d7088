//! Payloads that can be made again from a seed: every byte follows from it and its offset, so that the receiver checks
//! the content itself, and says which byte is wrong.

/// SplitMix64's finaliser (Steele, Lea and Flood 2014): every bit of the input changes half of the output's.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A source of bytes: an endless sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(u64);

impl Seed {
    /// The seed of `what` number `n`.
    pub(crate) fn new(what: &str, n: u64) -> Seed {
        Seed(
            what.bytes()
                .fold(mix(n.wrapping_add(0x9e37_79b9_7f4a_7c15)), |seed, byte| mix(seed ^ u64::from(byte))),
        )
    }

    fn word(self, index: u64) -> [u8; 8] {
        mix(self.0.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
    }

    /// A number from `min` to `max`, the same every time.
    pub(crate) fn number(self, min: usize, max: usize) -> usize {
        min + (mix(self.0) % (max - min + 1) as u64) as usize
    }

    /// Writes the bytes from `offset` on.
    pub(crate) fn fill(self, offset: u64, out: &mut [u8]) {
        self.pieces(offset, out.len(), |at, piece| {
            out[at..at + piece.len()].copy_from_slice(piece);
            true
        });
    }

    /// The first place in `data` where it differs from the bytes from `offset` on.
    pub(crate) fn difference(self, offset: u64, data: &[u8]) -> Option<usize> {
        let mut found = None;
        self.pieces(offset, data.len(), |at, piece| {
            if data[at..at + piece.len()] != *piece {
                found = piece.iter().zip(&data[at..]).position(|(a, b)| a != b).map(|i| at + i);
            }
            found.is_none()
        });
        found
    }

    /// Calls `each` with the place and the bytes of every piece, until it says stop.
    fn pieces(self, offset: u64, len: usize, mut each: impl FnMut(usize, &[u8]) -> bool) {
        let mut at = 0;
        while at < len {
            let position = offset + at as u64;
            let word = self.word(position / 8);
            let piece = &word[(position % 8) as usize..];
            let piece = &piece[..piece.len().min(len - at)];
            if !each(at, piece) {
                return;
            }
            at += piece.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_gives_the_same_sequence() {
        let seed = Seed::new("x", 7);
        let mut whole = [0; 100];
        seed.fill(0, &mut whole);
        for (from, to) in [(0, 1), (3, 4), (5, 8), (8, 16), (13, 99), (50, 50)] {
            let mut part = vec![0; to - from];
            seed.fill(from as u64, &mut part);
            assert_eq!(part, whole[from..to]);
            assert_eq!(seed.difference(from as u64, &part), None);
        }
        assert_ne!(Seed::new("x", 8), seed);
        assert_ne!(Seed::new("y", 7), seed);
    }

    #[test]
    fn a_changed_byte_is_found() {
        let seed = Seed::new("x", 7);
        let mut data = [0; 50];
        seed.fill(1003, &mut data);
        for at in 0..data.len() {
            let mut damaged = data;
            damaged[at] ^= 0x10;
            assert_eq!(seed.difference(1003, &damaged), Some(at));
        }
    }

    #[test]
    fn numbers_cover_their_range() {
        let numbers: Vec<usize> = (0..200).map(|n| Seed::new("n", n).number(1, 4)).collect();
        assert!((1..=4).all(|n| numbers.contains(&n)) && numbers.iter().all(|n| (1..=4).contains(n)));
    }
}
