//! Ephemeral ports (RFC 6056 3.3.4, algorithm 4: double-hash port selection), as Linux does it.
//!
//! The walk over the range starts at an offset that a keyed hash of the destination gives, plus an
//! entry of a table of counters which another part of the hash chooses: so an observer of one
//! destination learns nothing of the ports towards another. An entry moves past each port found,
//! by a step that is not predictable. `connect` walks the ports of the parity of the range's low
//! end first; the other half is left for `bind`.

use crate::isn::KeyedHash;

/// Entries of the table (CVE-2022-32296: 256 were too few).
const ENTRIES: usize = 1 << 16;

/// The table of counters, shared by all connections of a stack.
#[derive(Debug)]
pub struct PortWalker {
    perturb: Box<[u32]>,
}

impl Default for PortWalker {
    fn default() -> Self {
        PortWalker { perturb: vec![0; ENTRIES].into() }
    }
}

impl PortWalker {
    /// A port of `range` (both ends included) that `is_free` accepts: for the destination that
    /// `words` name (addresses and the remote port), at `seconds` of the clock. `None` if all are
    /// taken: `EADDRNOTAVAIL`.
    pub fn pick(
        &mut self,
        key: &impl KeyedHash,
        words: &[u64; 5],
        seconds: u64,
        range: [u16; 2],
        mut is_free: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let [low, high] = range.map(u32::from);
        // An even number of ports, so that both parities have as many; a range of one is walked.
        let all = (high + 1).saturating_sub(low);
        let remaining = if all > 1 { all & !1 } else { all };
        if remaining == 0 {
            return None;
        }
        let [a, b, c, d, ports] = *words;
        let hash = key.hash(&[a, b, c, d, ports & 0xffff, seconds / 10]);
        let entry = (hash as usize) & (ENTRIES - 1);
        let start = (hash >> 32) as u32;
        let offset = (start.wrapping_add(self.perturb[entry]) % remaining) & !1;
        for parity in [0, 1] {
            for step in (0..remaining).step_by(2) {
                let port = low + (offset + parity + step) % remaining;
                if is_free(port as u16) {
                    let jump = (hash >> 16) as u32 % 8 * 2;
                    self.perturb[entry] = self.perturb[entry].wrapping_add(step + jump + 2);
                    return Some(port as u16);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::test_hash;
    use std::collections::HashSet;

    #[test]
    fn ports_differ_keep_the_parity_and_run_out() {
        let mut walker = PortWalker::default();
        let mut used = HashSet::new();
        let words = [1, 2, 3, 4, 443];
        for n in 0..100 {
            let port = walker.pick(&test_hash, &words, 5, [40_000, 40_099], |p| !used.contains(&p)).unwrap();
            assert!((40_000..=40_099).contains(&port));
            assert_eq!(port % 2 == 0, n < 50, "{port}: the even ones first");
            assert!(used.insert(port));
        }
        assert_eq!(walker.pick(&test_hash, &words, 5, [40_000, 40_099], |p| !used.contains(&p)), None);
        assert_eq!(walker.pick(&test_hash, &words, 5, [7, 7], |_| true), Some(7));
        assert_eq!(walker.pick(&test_hash, &words, 5, [8, 7], |_| true), None);
    }

    #[test]
    fn the_next_port_is_not_the_last_one() {
        let mut walker = PortWalker::default();
        let pick = |walker: &mut PortWalker, dst| {
            walker.pick(&test_hash, &[1, 2, 3, 4, dst], 5, [32_768, 60_999], |_| true).unwrap()
        };
        let (a, b) = (pick(&mut walker, 443), pick(&mut walker, 443));
        assert!(a != b && a % 2 == b % 2);
        assert_ne!(pick(&mut walker, 444), pick(&mut walker, 445));
    }
}
