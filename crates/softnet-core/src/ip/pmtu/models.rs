//! Loom models of the set of paths: a sender that looks while the writer puts paths in, and gives
//! one up for another.

use loom::thread;

use super::*;
use crate::sock::key::mapped;
use crate::sync::{Mutant, check, must_fail};

fn cache() -> PmtuCache {
    PmtuCache::new(PmtuParams::default(), FoldKey::new([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344]))
}

const A: Addr = mapped(0x0a00_0001);

/// A sender that finds that there is a path which takes less finds that path.
fn lowered_under_a_sender() {
    let mut cache = cache();
    let paths = cache.paths().clone();
    let sender = thread::spawn(move || {
        if paths.is_for_some(1200) {
            assert_eq!(paths.limit(A), Some(1000));
        }
    });
    assert!(cache.update(0, A, (1500, 1500), 1000));
    sender.join().unwrap();
}

/// The place of a path is another's: a sender finds the one or the other, each with its own limit,
/// and after that is gone it looks for none.
fn replaced_under_a_sender() {
    let mut cache = cache();
    let paths = cache.paths().clone();
    // The next that has the same, only place.
    let of = |dst| cache.paths().places(dst).0;
    let b = (2..).map(|i| mapped(0x0a00_0000 + i)).find(|b| of(*b) == of(A)).unwrap();
    assert!(cache.update(0, A, (1500, 1500), 1000));
    let sender = thread::spawn(move || {
        let (first, second) = (paths.limit(A), paths.limit(b));
        assert!(matches!(first, Some(1000) | None) && matches!(second, Some(1400) | None));
        assert!(first.is_some() || second.is_some());
        assert!(paths.is_for_some(1401));
    });
    assert!(cache.update(1, b, (1500, 1500), 1400));
    sender.join().unwrap();
    assert!(!cache.paths().is_for_some(1400) && cache.paths().limit(A).is_none());
    cache.poll(u64::MAX);
    assert!(!cache.paths().is_for_some(65_535) && cache.is_empty());
}

#[test]
fn a_sender_finds_the_path_that_it_was_told_of() {
    check(3, lowered_under_a_sender);
    for m in [Mutant::PathRelaxed, Mutant::PathLate] {
        must_fail(m, 3, lowered_under_a_sender);
    }
    check(3, replaced_under_a_sender);
}
