//! Resilient hashing: how the flows of a route with several next hops are spread over them.
//!
//! A group has many buckets, and each bucket a next hop. When a next hop comes or goes, buckets
//! change hands only as far as the shares ask for it (the kernel's resilient next-hop groups,
//! without their timers): flows of all other buckets stay.

/// Buckets for each next hop, so that shares are even to some percent; and the fewest and the most
/// that a group has.
const EACH: usize = 32;
const FEWEST: usize = 128;
const MOST: usize = 4096;

/// Which next hop each bucket has, of `members` with their weights; `before` is what it was. Never
/// empty if there is a member.
pub(super) fn fill(members: &[(u32, u16)], before: &[u32]) -> Vec<u32> {
    let n = (members.len() * EACH).next_power_of_two().clamp(FEWEST, MOST).max(before.len());
    let mut quotas = quotas(members, n);
    // A group that has grown has each of its buckets in several parts.
    let old = |i: usize| before.get(i * before.len() / n).copied();
    let kept: Vec<Option<usize>> = (0..n)
        .map(|i| {
            let member = members.iter().position(|(member, _)| Some(*member) == old(i))?;
            (quotas[member] > 0).then(|| {
                quotas[member] -= 1;
                member
            })
        })
        .collect();
    let mut next = (0..members.len()).cycle();
    let buckets = kept.into_iter().filter_map(|kept| {
        let member = kept.or_else(|| {
            // In turn, so that what is free is spread.
            let member = next.by_ref().take(members.len()).find(|member| quotas[*member] > 0)?;
            quotas[member] -= 1;
            Some(member)
        });
        member.map(|member| members[member].0)
    });
    buckets.collect()
}

/// How many of `n` buckets each member gets: by weight, and what is left over to those that are
/// furthest below their share.
fn quotas(members: &[(u32, u16)], n: usize) -> Vec<usize> {
    let all: usize = members.iter().map(|(_, weight)| usize::from(*weight).max(1)).sum();
    let share = |weight: u16| usize::from(weight).max(1) * n;
    let mut quotas: Vec<usize> = members.iter().map(|(_, weight)| share(*weight) / all.max(1)).collect();
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(share(members[*i].1) % all));
    let left = n - quotas.iter().sum::<usize>();
    order.into_iter().take(left).for_each(|i| quotas[i] += 1);
    quotas
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn count(buckets: &[u32], member: u32) -> usize {
        buckets.iter().filter(|bucket| **bucket == member).count()
    }

    #[test]
    fn shares_are_by_weight() {
        let buckets = fill(&[(7, 1), (8, 3)], &[]);
        assert_eq!((buckets.len(), count(&buckets, 7), count(&buckets, 8)), (128, 32, 96));
        let many: Vec<_> = (0..200).map(|n| (n, 1)).collect();
        assert_eq!(fill(&many, &[]).len(), MOST);
        assert!((0..200).all(|n| count(&fill(&many, &[]), n) >= MOST / 200));
    }

    /// Of four next hops one goes: its flows move, and no other; and when it is back, a quarter does.
    #[test]
    fn few_flows_move() {
        let four: Vec<_> = (1..=4).map(|n| (n, 1)).collect();
        let before = fill(&four, &[]);
        let without = fill(&four[..3], &before);
        let moved = |a: &[u32], b: &[u32]| a.iter().zip(b).filter(|(a, b)| a != b).count();
        assert_eq!(moved(&before, &without), count(&before, 4));
        let again = fill(&four, &without);
        assert_eq!(moved(&without, &again), count(&again, 4));
        assert_eq!(count(&again, 4), 32);
    }

    proptest! {
        #[test]
        fn each_member_has_its_share(
            weights in prop::collection::vec(1u16..=256, 1..40),
            before in prop::collection::vec(0u32..50, 0..300),
        ) {
            let members: Vec<_> = (0..).zip(weights).collect();
            let buckets = fill(&members, &before);
            let all: usize = members.iter().map(|(_, weight)| usize::from(*weight)).sum();
            for (member, weight) in members {
                let (share, has) = (usize::from(weight) * buckets.len() / all, count(&buckets, member));
                prop_assert!(has == share || has == share + 1);
            }
        }
    }
}
