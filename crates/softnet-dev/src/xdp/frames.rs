//! Which frames a queue has given to the kernel: one bit for each frame of the region.
//!
//! Owned by one queue, and touched only by it. The invariant that makes it worth its two bit operations per
//! packet: a frame's number is in at most one set, and only while the kernel holds the frame. So a number that
//! the kernel hands back is believed only if its bit is set (it comes back once), and whatever is still set
//! after a socket was closed is exactly what has to be brought home.

/// A set of frame numbers `0..n`.
pub(super) struct FrameSet {
    words: Box<[u64]>,
    len: usize,
}

impl FrameSet {
    /// An empty set that can hold the numbers `0..frames`.
    pub(super) fn new(frames: u32) -> Self {
        FrameSet { words: vec![0; (frames as usize).div_ceil(64)].into(), len: 0 }
    }

    /// How many numbers it holds.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds `index`; false, and no change, if it was there already or is out of range.
    #[inline(always)]
    pub(super) fn insert(&mut self, index: u32) -> bool {
        let bit = 1 << (index % 64);
        match self.words.get_mut(index as usize / 64) {
            Some(word) if *word & bit == 0 => {
                *word |= bit;
                self.len += 1;
                true
            }
            _ => false,
        }
    }

    /// Takes `index` out; false if it was not there.
    #[inline(always)]
    pub(super) fn remove(&mut self, index: u64) -> bool {
        let bit = 1 << (index % 64);
        match self.words.get_mut((index / 64) as usize) {
            Some(word) if *word & bit != 0 => {
                *word &= !bit;
                self.len -= 1;
                true
            }
            _ => false,
        }
    }

    /// All numbers in it.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let mut all = Vec::with_capacity(self.len);
        let mut copy = FrameSet { words: self.words.clone(), len: self.len };
        copy.drain(|index| all.push(index));
        all
    }

    /// Takes everything out, and hands each number to `take`.
    pub(super) fn drain(&mut self, mut take: impl FnMut(u32)) {
        self.len = 0;
        for (at, word) in self.words.iter_mut().enumerate() {
            let mut left = std::mem::take(word);
            while left != 0 {
                take((at * 64) as u32 + left.trailing_zeros());
                left &= left - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_back_once() {
        let mut set = FrameSet::new(130);
        assert!(set.insert(0) && set.insert(64) && set.insert(129));
        assert!(!set.insert(64), "the same frame posted twice");
        assert_eq!(set.len(), 3);
        assert!(set.remove(64) && !set.remove(64));
        assert!(!set.remove(1));
        assert!(!set.insert(192), "beyond the last word");
        assert!(!set.remove(1 << 40) && !set.remove(u64::MAX));
        assert_eq!(set.len(), 2);
        assert_eq!(set.numbers(), [0, 129]);
        let mut left = vec![];
        set.drain(|i| left.push(i));
        assert_eq!((left, set.len()), (vec![0, 129], 0));
    }
}
