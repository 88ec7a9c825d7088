//! A bounded ring of records from one thread that touches packets to one that reads them out.
//!
//! One writer, one reader, no lock: the writer copies a record, then publishes it; what does not
//! fit is not written, and counted. The memory is words of atomics, so that no `unsafe` is needed;
//! a relaxed store of a word costs what a plain one does. Invariant: a word is written only while
//! it is the writer's, between the reader's position plus the capacity and the writer's own.

use std::sync::Arc;

use crate::sync::{AtomicU64, Mutant, Ordering, weakened};

/// Bytes of a word.
const WORD: usize = 8;
/// Words before the bytes of a record.
pub(super) const HEADER: usize = 3;

struct Shared {
    /// A power of two of them.
    words: Box<[AtomicU64]>,
    /// Words read so far.
    head: AtomicU64,
    /// Words published so far.
    tail: AtomicU64,
    /// Records that did not fit.
    lost: AtomicU64,
    /// 1: the writer was dropped.
    gone: AtomicU64,
}

impl Drop for RingWriter {
    fn drop(&mut self) {
        self.shared.gone.store(1, Ordering::Release);
    }
}

impl Shared {
    #[inline(always)]
    fn word(&self, at: u64) -> &AtomicU64 {
        &self.words[at as usize & (self.words.len() - 1)]
    }
}

/// The writing end: of one thread.
pub(super) struct RingWriter {
    shared: Arc<Shared>,
    tail: u64,
    /// The reader's position when it was last looked at.
    head: u64,
}

/// The reading end.
pub(super) struct RingReader {
    shared: Arc<Shared>,
    head: u64,
}

/// Both ends of a ring of `words` words, a power of two.
pub(super) fn ring(words: usize) -> (RingWriter, RingReader) {
    let words: Box<[AtomicU64]> = (0..words.next_power_of_two()).map(|_| AtomicU64::new(0)).collect();
    let zero = || AtomicU64::new(0);
    let shared = Arc::new(Shared { words, head: zero(), tail: zero(), lost: zero(), gone: zero() });
    (RingWriter { shared: shared.clone(), tail: 0, head: 0 }, RingReader { shared, head: 0 })
}

/// Words that a record of `bytes` bytes takes.
pub(super) const fn words_of(bytes: usize) -> usize {
    HEADER + bytes.div_ceil(WORD)
}

impl RingWriter {
    /// Writes a record of this header and the `len` bytes that `pieces` have together. Says whether
    /// there was room; if not, it is counted as lost.
    pub(super) fn push<'a>(
        &mut self,
        header: [u64; HEADER],
        len: usize,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> bool {
        let capacity = self.shared.words.len() as u64;
        let end = self.tail + words_of(len) as u64;
        if end - self.head > capacity {
            // Acquire: what the reader read there, it has read. (Loom does not let a load see a
            // later store, so no model can miss this one.)
            self.head = self.shared.head.load(Ordering::Acquire);
            if end - self.head > capacity {
                self.lose(1);
                return false;
            }
        }
        for word in header {
            self.put(word);
        }
        let (mut partial, mut have) = ([0; WORD], 0);
        for mut piece in pieces {
            if have > 0 {
                let n = piece.len().min(WORD - have);
                partial[have..have + n].copy_from_slice(&piece[..n]);
                have += n;
                piece = &piece[n..];
                if have < WORD {
                    continue;
                }
                self.put(u64::from_le_bytes(partial));
            }
            let (words, rest) = piece.as_chunks::<WORD>();
            for word in words {
                self.put(u64::from_le_bytes(*word));
            }
            partial = [0; WORD];
            partial[..rest.len()].copy_from_slice(rest);
            have = rest.len();
        }
        if have > 0 {
            self.put(u64::from_le_bytes(partial));
        }
        debug_assert_eq!(self.tail, end, "a record of {len} bytes");
        // Whatever the pieces were: the reader goes by the length.
        self.tail = end;
        self.shared.tail.store(end, weakened(Mutant::TapTailRelaxed, Ordering::Release));
        true
    }

    /// Counts `n` records that were not written.
    pub(super) fn lose(&mut self, n: u64) {
        let lost = &self.shared.lost;
        lost.store(lost.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    #[inline(always)]
    fn put(&mut self, word: u64) {
        self.shared.word(self.tail).store(word, Ordering::Relaxed);
        self.tail += 1;
    }
}

impl RingReader {
    /// Appends the next record's bytes, header first and all of it whole words in little-endian
    /// order, to `out`. Says whether there was one. `len` tells from the first word how many bytes
    /// follow the header.
    pub(super) fn pop(&mut self, len: impl Fn(u64) -> usize, out: &mut Vec<u8>) -> bool {
        // Acquire: with the position comes what was written before it.
        if self.shared.tail.load(Ordering::Acquire) == self.head {
            return false;
        }
        let first = self.shared.word(self.head).load(Ordering::Relaxed);
        let end = self.head + words_of(len(first)) as u64;
        for at in self.head..end {
            out.extend_from_slice(&self.shared.word(at).load(Ordering::Relaxed).to_le_bytes());
        }
        self.head = end;
        self.shared.head.store(end, Ordering::Release);
        true
    }

    /// The second word of the next record's header; `None` if there is none.
    pub(super) fn second_word(&self) -> Option<u64> {
        let some = self.shared.tail.load(Ordering::Acquire) != self.head;
        some.then(|| self.shared.word(self.head + 1).load(Ordering::Relaxed))
    }

    /// Whether half of the ring is in use, or more.
    pub(super) fn is_half_full(&self) -> bool {
        let used = self.shared.tail.load(Ordering::Relaxed).wrapping_sub(self.head);
        used >= self.shared.words.len() as u64 / 2
    }

    /// Whether the writer is gone, and everything was read.
    pub(super) fn is_over(&self) -> bool {
        // In this order: what it wrote last is seen once it is seen to be gone.
        let gone = self.shared.gone.load(Ordering::Acquire) != 0;
        gone && self.shared.tail.load(Ordering::Acquire) == self.head
    }

    /// Records that did not fit so far.
    pub(super) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, feature = "loom"))]
mod models {
    use loom::thread;

    use super::*;
    use crate::sync::{check, must_fail};

    /// Bytes of every record here: anything else was read before it was written.
    fn len(first: u64) -> usize {
        assert_eq!(first, 5);
        5
    }

    /// Three records through a ring that has room for one and a half: each that was written is
    /// read, whole and in order.
    fn whole_and_in_order() {
        let (mut writer, mut reader) = ring(8);
        let thread = thread::spawn(move || {
            let mut written = Vec::new();
            for n in 1..=3u64 {
                if writer.push([5, n, n], 5, [&[n as u8; 5][..]].into_iter()) {
                    written.push(n);
                }
            }
            written
        });
        let mut out = Vec::new();
        for _ in 0..2 {
            reader.pop(len, &mut out);
        }
        let written = thread.join().unwrap();
        while reader.pop(len, &mut out) {}
        let read: Vec<u64> = out
            .chunks(8 * words_of(5))
            .map(|record| {
                let word = |at: usize| u64::from_le_bytes(record[8 * at..8 * at + 8].try_into().unwrap());
                assert_eq!((word(0), word(1)), (5, word(2)));
                assert_eq!(record[8 * HEADER..8 * HEADER + 5], [word(1) as u8; 5]);
                word(1)
            })
            .collect();
        assert_eq!(read, written);
        assert_eq!(reader.lost() + read.len() as u64, 3);
    }

    #[test]
    fn records_are_whole_and_in_order() {
        check(3, whole_and_in_order);
        must_fail(Mutant::TapTailRelaxed, 3, whole_and_in_order);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Records of any pieces come out as they went in, or are counted as lost; the ring is never stuck.
        #[test]
        fn what_goes_in_comes_out(
            records in prop::collection::vec((prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..5), any::<bool>()), 0..60),
        ) {
            let (mut writer, mut reader) = ring(32);
            let (mut kept, mut lost) = (std::collections::VecDeque::<Vec<u8>>::new(), 0);
            let mut out = Vec::new();
            let mut read = |reader: &mut RingReader, kept: &mut std::collections::VecDeque<Vec<u8>>| {
                out.clear();
                let some = reader.pop(|len| len as usize, &mut out);
                let expected = kept.pop_front();
                assert_eq!(some, expected.is_some());
                if let Some(bytes) = expected {
                    assert_eq!(out.len(), 8 * words_of(bytes.len()));
                    assert_eq!(out[8 * HEADER..8 * HEADER + bytes.len()], bytes[..]);
                }
                some
            };
            for (pieces, reads) in records {
                let bytes = pieces.concat();
                let header = [bytes.len() as u64, 1, 2];
                match writer.push(header, bytes.len(), pieces.iter().map(|piece| &piece[..])) {
                    true => kept.push_back(bytes),
                    false => lost += 1,
                }
                if reads {
                    read(&mut reader, &mut kept);
                }
            }
            while read(&mut reader, &mut kept) {}
            prop_assert_eq!(reader.lost(), lost);
            prop_assert!(writer.push([0, 0, 0], 0, std::iter::empty()));
        }
    }
}
