//! The local ends that a shard's connections have: for a runtime that has to say of a port when the last
//! connection has left it, since it shares addresses with the kernel, which may have it then.
//!
//! Called by the holder of the shard. Where none asks for it nothing is counted. Connections and
//! TIME-WAIT objects count; requests end with their listener, which has the port itself. An end may
//! be *held*: the runtime has claimed it, and is told once, when nothing has it any more.
//!
//! Invariant: an end is known exactly while something in the shard has it.

use std::collections::HashMap;

use super::super::key::{Addr, Flow};

/// An address and a port of ours.
pub type End = (Addr, u16);

#[derive(Debug, Default)]
struct Count {
    users: u32,
    held: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// [`None`]: they are not counted.
    counts: Option<HashMap<End, Count>>,
    /// Held ends that nothing has any more.
    free: Vec<End>,
}

impl Ends {
    /// From now on they are counted.
    pub(super) fn count(&mut self) {
        self.counts.get_or_insert_default();
    }

    /// Something more has the near end of `flow`.
    pub(super) fn add(&mut self, flow: &Flow) {
        if let Some(counts) = &mut self.counts {
            counts.entry((flow.local, flow.lport)).or_default().users += 1;
        }
    }

    /// Something has it no more.
    pub(super) fn remove(&mut self, flow: &Flow) {
        let Some(counts) = &mut self.counts else { return };
        let end = (flow.local, flow.lport);
        if let Some(count) = counts.get_mut(&end) {
            count.users -= 1;
            if count.users == 0 {
                self.free.extend(count.held.then_some(end));
                counts.remove(&end);
            }
        }
    }

    /// Holds an end that something has. Returns whether it was not held before: then the caller's
    /// claim to it is what is told of when it is free.
    pub(super) fn hold(&mut self, end: End) -> bool {
        let count = self.counts.as_mut().and_then(|counts| counts.get_mut(&end));
        count.is_some_and(|count| !std::mem::replace(&mut count.held, true))
    }

    /// Those that are not held.
    pub(super) fn not_held(&self) -> impl Iterator<Item = End> {
        self.counts.iter().flatten().filter(|(_, count)| !count.held).map(|(end, _)| *end)
    }

    /// Those that were held, and are free since it was asked last.
    pub(super) fn take_free(&mut self) -> std::vec::Drain<'_, End> {
        self.free.drain(..)
    }

    /// Forgets all: those that are held are free.
    pub(super) fn clear(&mut self) {
        for (end, count) in self.counts.take().into_iter().flatten() {
            self.free.extend(count.held.then_some(end));
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::ip::v4::header::protocol;

    fn flow(lport: u16, rport: u16) -> Flow {
        Flow { local: 1, remote: 2, lport, rport, protocol: protocol::TCP }
    }

    #[test]
    fn a_held_end_is_told_of_when_nothing_has_it() {
        let mut ends = Ends::default();
        ends.add(&flow(80, 1));
        assert!(!ends.hold((1, 80)), "nothing is counted");
        ends.count();
        for rport in [1, 2] {
            ends.add(&flow(80, rport));
            ends.add(&flow(81, rport));
        }
        assert!(ends.hold((1, 80)) && !ends.hold((1, 80)) && !ends.hold((1, 82)));
        ends.remove(&flow(80, 1));
        ends.remove(&flow(81, 1));
        ends.remove(&flow(81, 2));
        assert_eq!(ends.take_free().count(), 0, "one has it; the other is not held");
        ends.remove(&flow(80, 2));
        assert_eq!(ends.take_free().collect::<Vec<_>>(), [(1, 80)]);
        assert_eq!(ends.take_free().count(), 0);
        // What is not known is no user.
        ends.remove(&flow(80, 2));
        // The next user of the end has to claim it anew.
        ends.add(&flow(80, 3));
        assert_eq!(ends.not_held().collect::<Vec<_>>(), [(1, 80)]);
        assert!(ends.hold((1, 80)));
        assert_eq!(ends.not_held().count(), 0);
        ends.clear();
        assert_eq!(ends.take_free().collect::<Vec<_>>(), [(1, 80)]);
    }
}
