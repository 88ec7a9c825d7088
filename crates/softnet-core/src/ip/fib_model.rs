//! What the tests of both families' FIBs compare them with.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestCaseResult};

use super::family::{Family, LongestMatch, NO_ROUTE};
use super::prefix::Prefix;
use crate::memory::Heap;
use crate::skb::BATCH;

/// Longest match by looking at every route; the later of two equal prefixes wins.
fn naive<F: Family>(routes: &[(Prefix<F>, u32)], addr: F) -> u32 {
    routes.iter().filter(|(p, _)| p.contains(addr)).max_by_key(|(p, _)| p.len()).map_or(NO_ROUTE, |r| r.1)
}

/// A change of one route.
pub(super) enum Step<F> {
    Add(Prefix<F>, u32),
    Remove(Prefix<F>),
}

/// Changes `fib`, which was built of `routes`, as a table of routes would have it changed. Returns
/// what is left.
pub(super) fn run<F: Family>(
    fib: &mut F::Fib,
    routes: &[(Prefix<F>, u32)],
    steps: impl Iterator<Item = Step<F>>,
) -> Result<Vec<(Prefix<F>, u32)>, TestCaseError> {
    let mut left: BTreeMap<Prefix<F>, u32> = routes.iter().copied().collect();
    for step in steps {
        let (prefix, of_len, hop) = match step {
            Step::Add(prefix, hop) => {
                left.insert(prefix, hop);
                (prefix, prefix.len(), hop)
            }
            Step::Remove(prefix) => {
                left.remove(&prefix);
                let covers =
                    |(p, _): &(&Prefix<F>, &u32)| p.len() < prefix.len() && p.contains(prefix.addr());
                let cover = left.iter().filter(covers).max_by_key(|(p, _)| p.len());
                let (of_len, hop) = cover.map_or((0, NO_ROUTE), |(p, hop)| (p.len(), *hop));
                (prefix, of_len, hop)
            }
        };
        prop_assert_eq!(fib.put(prefix, of_len, hop, &Heap), Ok(()));
    }
    Ok(left.into_iter().collect())
}

/// Addresses at the edges of the routes.
fn edges<F: Family>(routes: &[(Prefix<F>, u32)]) -> impl Iterator<Item = F> {
    routes.iter().flat_map(|(p, _)| {
        let (addr, first, last) = (p.addr(), p.addr().bits(), p.last().bits());
        let all = [first, last, first.wrapping_sub(1), last.wrapping_add(1), first + (last - first) / 2];
        all.map(|bits| addr.with_bits(bits))
    })
}

/// Looks addresses up in `fib`, which was built of `routes`: those at their edges, and some at random.
pub(super) fn agrees<F: Family>(fib: &F::Fib, routes: &[(Prefix<F>, u32)], random: &[F]) -> TestCaseResult
where
    F::Bits: TryFrom<u128>,
{
    let ends = [0, u128::MAX].map(|bits| F::UNSPECIFIED.with_bits(bits));
    let addrs: Vec<F> = edges(routes).chain(random.iter().copied()).chain(ends).collect();
    for some in addrs.chunks(BATCH) {
        let bits: Vec<F::Bits> = some.iter().filter_map(|addr| addr.bits().try_into().ok()).collect();
        prop_assert_eq!(bits.len(), some.len());
        let mut out = [u32::MAX; BATCH];
        fib.lookup_batch(&bits, &mut out);
        for (addr, out) in some.iter().zip(out) {
            prop_assert_eq!(fib.longest_match(*addr), naive(routes, *addr), "{}", addr);
            prop_assert_eq!(out, naive(routes, *addr), "{}", addr);
        }
        prop_assert!(out[some.len()..].iter().all(|out| *out == u32::MAX));
    }
    Ok(())
}
