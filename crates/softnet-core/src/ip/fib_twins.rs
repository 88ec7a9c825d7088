//! A FIB that changes while packets are looked up in it: two copies, one of which is published and
//! never touched, while the other one is brought up to date.
//!
//! For the owner of the routes, one thread at a time. [`FibTwins::apply`] takes changes in batches.
//! It writes them to the copy that is not published, which becomes the published one; so a reader
//! sees all of a batch or nothing of it, and look-ups cost what they cost in a table that never
//! changes. A change is written twice, once to each copy, and a table takes twice its memory once
//! it was changed.
//!
//! Invariant: a copy is written to only while the twins alone hold it. If readers still have the
//! one that was published before, it is left to them, and the published one is copied. So a reader that
//! does not let go of what it has costs one copy once, and the memory of one table until it does: with
//! `n` readers there are `n + 2` tables at the most.

use std::sync::Arc;

use super::family::{Family, FibError, LongestMatch};
use super::prefix::Prefix;
use crate::memory::TableMemory;

/// A change of what a prefix leads to, see [`LongestMatch::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<A> {
    /// The prefix.
    pub prefix: Prefix<A>,
    /// How long the prefix is whose next hop this is: the same one, or one that it is in.
    pub of_len: u8,
    /// The next hop.
    pub nexthop: u32,
}

/// Changes that a list of them keeps room for.
const KEPT: usize = 1 << 14;

/// See the [module](self).
pub struct FibTwins<A: Family> {
    published: Arc<A::Fib>,
    other: Option<Arc<A::Fib>>,
    /// What the other one lacks.
    behind: Vec<Change<A>>,
    copies: u64,
}

impl<A: Family> FibTwins<A> {
    /// Of a FIB that was published.
    pub fn new(published: Arc<A::Fib>) -> Self {
        FibTwins { published, other: None, behind: Vec::new(), copies: 0 }
    }

    /// Whether the next changes cost no copy of the whole table.
    pub fn is_ready(&self) -> bool {
        self.other.as_ref().is_some_and(|other| Arc::strong_count(other) == 1)
    }

    /// Times that the whole table was copied.
    pub fn copies(&self) -> u64 {
        self.copies
    }

    /// Bytes of both.
    pub fn bytes(&self) -> usize {
        self.published.bytes() + self.other.as_ref().map_or(0, |other| other.bytes())
    }

    /// Makes a FIB in which `changes` have been made, in their order, which the caller publishes.
    /// They are taken out. Those that do not fit are left out, and handed to `refused`.
    ///
    /// # Errors
    /// There is no memory for another copy. Nothing has changed then, and `changes` are as they were.
    pub fn apply(
        &mut self,
        changes: &mut Vec<Change<A>>,
        memory: &impl TableMemory,
        mut refused: impl FnMut(Change<A>, FibError),
    ) -> Result<Arc<A::Fib>, FibError> {
        let mut next = match self.other.take().and_then(|other| self.caught_up(other, memory)) {
            Some(next) => next,
            None => {
                self.copies += 1;
                Arc::new(self.published.copy_in(memory)?)
            }
        };
        // Both lists keep their memory, but for that of a first load.
        std::mem::swap(&mut self.behind, changes);
        changes.clear();
        changes.shrink_to(KEPT);
        if let Some(fib) = Arc::get_mut(&mut next) {
            self.behind.retain(|change| match put(fib, change, memory) {
                Ok(()) => true,
                Err(error) => {
                    refused(*change, error);
                    false
                }
            });
        }
        self.other = Some(std::mem::replace(&mut self.published, next.clone()));
        Ok(next)
    }

    /// Whether [`tidy`](Self::tidy) has anything to do.
    pub fn is_loose(&self) -> bool {
        self.behind.capacity() > KEPT
    }

    /// Lets go of memory that a first load took, once no reader has the copy that lacks it: the other
    /// one catches up. Without many changes that wait for it, nothing is done.
    pub fn tidy(&mut self, memory: &impl TableMemory) {
        if !self.is_loose() || !self.is_ready() {
            return;
        }
        // What can't catch up is copied anew when there are changes.
        self.other = self.other.take().and_then(|other| self.caught_up(other, memory));
        self.behind = Vec::new();
    }

    /// The other one with all that the published one has, if no reader has it.
    fn caught_up(&self, mut other: Arc<A::Fib>, memory: &impl TableMemory) -> Option<Arc<A::Fib>> {
        let fib = Arc::get_mut(&mut other)?;
        // What fitted one of them may not fit the other: they have free places of their own.
        self.behind.iter().try_for_each(|change| put(fib, change, memory)).ok()?;
        Some(other)
    }
}

fn put<A: Family>(fib: &mut A::Fib, change: &Change<A>, memory: &impl TableMemory) -> Result<(), FibError> {
    fib.put(change.prefix, change.of_len, change.nexthop, memory)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::ip::family::{MAX_NEXT_HOPS, NO_ROUTE};
    use crate::ip::v4::fib::Fib;
    use crate::memory::Heap;

    fn change(to: &str, nexthop: u32) -> Change<Ipv4Addr> {
        let prefix: Prefix = to.parse().unwrap();
        Change { prefix, of_len: prefix.len(), nexthop }
    }

    fn apply(twins: &mut FibTwins<Ipv4Addr>, changes: &[Change<Ipv4Addr>]) -> Arc<Fib> {
        twins.apply(&mut changes.to_vec(), &Heap, |_, error| panic!("{error}")).unwrap()
    }

    const TEN: u32 = 0x0a00_0001;

    /// Batch after batch, each copy gets what it missed, and none is copied again.
    #[test]
    fn copies_take_turns() {
        let mut twins = FibTwins::new(Arc::new(Fib::default()));
        for n in 1..10 {
            let more = change(&format!("10.{n}.0.0/25"), n);
            let fib = apply(&mut twins, &[change("10.0.0.0/8", n), more]);
            assert_eq!(fib.lookup(TEN), n);
            for before in 1..=n {
                assert_eq!(fib.lookup(TEN | before << 16), before, "of batch {before}, after {n}");
            }
            drop(fib);
            assert_eq!((twins.copies(), twins.is_ready()), (1, true));
        }
    }

    /// What a reader has does not change under it, however many batches come.
    #[test]
    fn a_reader_keeps_what_it_has() {
        let mut twins = FibTwins::new(Arc::new(Fib::default()));
        let held = apply(&mut twins, &[change("10.0.0.0/8", 1)]);
        for n in 2..6 {
            assert_eq!(apply(&mut twins, &[change("10.0.0.0/8", n)]).lookup(TEN), n);
            assert_eq!(held.lookup(TEN), 1);
        }
        // The first made the twin; then the held one came to be the other, and was left to its reader.
        assert_eq!(twins.copies(), 2);
    }

    /// What a reader or the owner does.
    #[derive(Clone, Debug)]
    enum Step {
        /// Some changes: each the number of a prefix, and what it leads to.
        Apply(Vec<(usize, u32)>),
        /// A reader takes what is published.
        Take(usize),
        /// A reader lets go.
        Leave(usize),
    }

    const READERS: usize = 3;
    /// None is in another one: which next hop is that of an address needs no longest match here.
    const PREFIXES: [&str; 5] =
        ["10.0.0.0/9", "10.128.0.0/16", "10.129.7.0/24", "10.129.8.0/25", "10.129.9.1/32"];

    fn step() -> impl Strategy<Value = Step> {
        let changes = prop::collection::vec((0..PREFIXES.len(), 0u32..4), 0..6);
        prop_oneof![
            changes.prop_map(Step::Apply),
            (0..READERS).prop_map(Step::Take),
            (0..READERS).prop_map(Step::Leave),
        ]
    }

    proptest! {
        /// Whatever readers hold, each of them sees the table as it was when it took it, the
        /// published one has all changes, and there are as many copies as readers made necessary.
        #[test]
        fn no_reader_sees_a_change(steps in prop::collection::vec(step(), 0..60)) {
            let prefixes = PREFIXES.map(|to| to.parse::<Prefix>().unwrap());
            let mut published = Arc::new(Fib::default());
            let mut twins = FibTwins::new(published.clone());
            let mut now = [NO_ROUTE; PREFIXES.len()];
            let mut readers: [Option<(Arc<Fib>, [u32; PREFIXES.len()])>; READERS] = Default::default();
            for step in steps {
                match step {
                    Step::Apply(changes) => {
                        let of = |&(i, nexthop): &(usize, u32)| {
                            let of_len = if nexthop == NO_ROUTE { 0 } else { prefixes[i].len() };
                            Change { prefix: prefixes[i], of_len, nexthop }
                        };
                        let mut list: Vec<_> = changes.iter().map(of).collect();
                        let (ready, copies) = (twins.is_ready(), twins.copies());
                        // What is published is let go of as it is replaced.
                        drop(published);
                        published = twins.apply(&mut list, &Heap, |_, error| panic!("{error}")).unwrap();
                        changes.iter().for_each(|(i, nexthop)| now[*i] = *nexthop);
                        prop_assert!(list.is_empty());
                        prop_assert_eq!(twins.copies() - copies, u64::from(!ready));
                    }
                    Step::Take(i) => readers[i] = Some((published.clone(), now)),
                    Step::Leave(i) => readers[i] = None,
                }
                let all = readers.iter().flatten().map(|(fib, then)| (fib, then)).chain([(&published, &now)]);
                for (fib, then) in all {
                    for (prefix, nexthop) in prefixes.iter().zip(then) {
                        prop_assert_eq!(fib.lookup(prefix.addr().to_bits()), *nexthop);
                        prop_assert_eq!(fib.lookup(prefix.last().to_bits()), *nexthop);
                    }
                }
            }
        }
    }

    /// After a large load the twin catches up at once, and the list of what it lacked takes no memory.
    #[test]
    fn a_twin_catches_up_when_it_is_quiet() {
        let mut twins = FibTwins::new(Arc::new(Fib::default()));
        let load: Vec<_> = (0..=KEPT as u32)
            .map(|n| Change { prefix: Prefix::host(Ipv4Addr::from(0x0a00_0000 + n)), of_len: 32, nexthop: 1 })
            .collect();
        drop(apply(&mut twins, &load));
        let held = apply(&mut twins, &[change("11.0.0.0/8", 2)]);
        twins.tidy(&Heap);
        assert!(twins.behind.capacity() <= KEPT, "few wait");
        let published = apply(&mut twins, &load);
        assert!(twins.behind.capacity() > KEPT && twins.other.is_some());
        twins.tidy(&Heap);
        assert!(twins.behind.capacity() > KEPT, "a reader has it");
        drop(held);
        twins.tidy(&Heap);
        assert_eq!((twins.behind.capacity(), twins.is_ready()), (0, true));
        drop(published);
        let fib = apply(&mut twins, &[change("12.0.0.0/8", 3)]);
        let hops = [0x0a00_0000, TEN, 0x0b00_0001, 0x0c00_0001].map(|addr| fib.lookup(addr));
        assert_eq!((hops, twins.copies()), ([1, 1, 2, 3], 1));
    }

    #[test]
    fn what_does_not_fit_is_left_out_of_both() {
        let mut twins = FibTwins::new(Arc::new(Fib::default()));
        let mut refused = Vec::new();
        for n in 1..4 {
            let mut all = vec![change("11.0.0.0/8", MAX_NEXT_HOPS), change("10.0.0.0/8", n)];
            let fib = twins.apply(&mut all, &Heap, |change, _| refused.push(change.nexthop)).unwrap();
            assert_eq!((fib.lookup(TEN), fib.lookup(0x0b00_0001)), (n, NO_ROUTE));
        }
        assert_eq!(refused, [MAX_NEXT_HOPS; 3]);
    }
}
