//! How much packet memory sockets may hold: all together (the kernel's `udp_mem`), and each at
//! least (its `udp_rmem_min`).
//!
//! Half of the frames may wait for applications. The last part of that half is a reserve, which
//! serves only sockets that hold less than the minimum. So sockets that are not read fill the
//! shared part and no more, and an empty socket receives packets as long as fewer sockets than half
//! of the reserve hold any. Once half of the reserve is used the minimum is one frame, so that the
//! rest goes to sockets that hold none.
//!
//! Called by pollers, with the number of frames that applications hold; [`SockMem`] keeps no state.
//! Invariant: admitted frames never exceed the limit for all sockets.
//!
//! What streams [queue to be sent](SendRoom) takes half of the shared part, but for each stream's minimum: a
//! writer waits for room, while a segment that finds none is lost, so that writers must not take the room of
//! what arrives. Of the rest a connection is told by [`Pressure`] when two thirds are used, until no more than
//! half is: the marks of the kernel's `tcp_mem`, of which its limit is the third.

use crate::sync::{AtomicU64, Ordering};

/// Frames that a socket may hold although the shared part is used up: the 4096 bytes of the
/// kernel's `udp_rmem_min`, of which a frame and its head take 2176 each.
pub const RMEM_MIN: usize = 2;

/// The limits, in frames.
#[derive(Clone, Copy, Debug)]
pub struct SockMem {
    /// The shared part: what all sockets may hold together, in any distribution.
    shared: usize,
    /// The shared part and the reserve.
    all: usize,
}

/// Whether memory is scarce, which is more than a question of how much is used: it is until much less is.
#[derive(Default)]
pub struct Pressure {
    /// Since when, in ns of a clock; 0: it is not.
    since: AtomicU64,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressed {
    /// It is, or is not, as before.
    Still(bool),
    /// From now on it is.
    Entered,
    /// It was for so many ns.
    Left(u64),
}

impl Pressure {
    /// Looks at `now`, where sockets hold `held` frames, of which `queued` are to be sent. One caller alone
    /// hears of a change.
    #[inline]
    pub fn look(&self, memory: &SockMem, (held, queued): (usize, usize), now: u64) -> Pressed {
        let since = self.since.load(Ordering::Relaxed);
        let room = memory.shared - queued.min(memory.shared / 2);
        let arrived = held.saturating_sub(queued);
        let changes = match since {
            0 => arrived > room / 3 * 2,
            _ => arrived <= room / 2,
        };
        if changes { self.change(since, now.max(1)) } else { Pressed::Still(since != 0) }
    }

    #[cold]
    fn change(&self, since: u64, now: u64) -> Pressed {
        let next = if since == 0 { now } else { 0 };
        match self.since.compare_exchange(since, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(0) => Pressed::Entered,
            Ok(since) => Pressed::Left(now.saturating_sub(since)),
            // Another thread looked at the same time.
            Err(_) => Pressed::Still(since == 0),
        }
    }
}

/// The room at some moment.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    shared: usize,
    all: usize,
    reserve: usize,
}

impl SockMem {
    /// The limits for a region of `frames` frames.
    pub fn new(frames: u32) -> Self {
        let (all, reserve) = (frames as usize / 2, frames as usize / 8);
        SockMem { shared: all - reserve, all }
    }

    /// Frames that applications may hold, or set aside, without the sockets' reserve.
    pub fn shared(&self) -> usize {
        self.shared
    }

    /// The room for what streams queue to be sent, while they have `queued` frames.
    #[inline]
    pub fn send_room(&self, queued: usize) -> SendRoom {
        SendRoom((self.shared / 2).saturating_sub(queued))
    }

    /// The room while applications hold `held` frames.
    #[inline(always)]
    pub fn room(&self, held: usize) -> Room {
        let SockMem { shared, all } = *self;
        Room { shared: shared.saturating_sub(held), all: all.saturating_sub(held), reserve: all - shared }
    }
}

/// What streams may queue to be sent beside what they have queued, at some moment.
#[derive(Clone, Copy, Debug)]
pub struct SendRoom(usize);

impl SendRoom {
    /// Frames that a stream which has `queued` may queue, after `taken` of the room are used: as many as it
    /// leaves free, so that a few writers that are never done share the room with one that comes later
    /// (dynamic thresholds; Choudhury and Hahne 1998); and its minimum in any case.
    pub(super) fn allows(&self, taken: usize, queued: usize) -> usize {
        let free = self.0.saturating_sub(taken);
        (free.saturating_sub(queued) / 2).max(RMEM_MIN.saturating_sub(queued))
    }
}

impl Room {
    /// Whether `frames` more fit the shared part, for any sockets.
    #[inline(always)]
    pub(super) fn has(&self, frames: usize) -> bool {
        frames <= self.shared
    }

    /// Frames that a socket which holds `queued` may receive, after `taken` of the room are used.
    pub(super) fn allows(&self, taken: usize, queued: usize) -> usize {
        let (shared, all) = (self.shared.saturating_sub(taken), self.all.saturating_sub(taken));
        let min = if all > self.reserve / 2 { RMEM_MIN } else { 1 };
        shared.max(min.saturating_sub(queued).min(all))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn below_the_minimum_the_limit_does_not_refuse() {
        let memory = SockMem::new(16384);
        assert_eq!(memory.shared(), 6144);
        // Shared, but for the last packet; used up; the reserve half used; and all of it.
        for (held, expected) in [(6143, [2, 1, 1]), (6144, [2, 1, 0]), (7168, [1, 0, 0]), (8192, [0, 0, 0])] {
            assert_eq!([0, 1, 2].map(|queued| memory.room(held).allows(0, queued)), expected, "{held} held");
        }
        let room = memory.room(6140);
        assert!(room.has(4) && !room.has(5));
        assert_eq!((room.allows(0, 400), room.allows(3, 400), room.allows(4, 400)), (4, 1, 0));
    }

    #[test]
    fn pressure_ends_later_than_it_begins() {
        let (memory, pressure) = (SockMem::new(16384), Pressure::default());
        assert_eq!(memory.shared(), 6144);
        for (held, now, expected) in [
            (4096, 5, Pressed::Still(false)),
            (4097, 6, Pressed::Entered),
            (9000, 7, Pressed::Still(true)),
            (3073, 8, Pressed::Still(true)),
            (3072, 16, Pressed::Left(10)),
            (4096, 17, Pressed::Still(false)),
        ] {
            assert_eq!(pressure.look(&memory, (held, 0), now), expected, "{held}");
        }
        // What is queued to be sent is no part of it, and leaves less for the rest.
        let (queued, pressure) = (3072, Pressure::default());
        for (arrived, now, expected) in [
            (2048, 1, Pressed::Still(false)),
            (2049, 2, Pressed::Entered),
            (1537, 3, Pressed::Still(true)),
            (1536, 5, Pressed::Left(3)),
        ] {
            assert_eq!(pressure.look(&memory, (queued + arrived, queued), now), expected, "{arrived}");
        }
    }

    #[test]
    fn writers_share_half() {
        let memory = SockMem::new(16384);
        let allows = |of_all, taken, own| memory.send_room(of_all).allows(taken, own);
        // Alone; with something queued; with another's; one that comes when two are never done.
        assert_eq!([allows(0, 0, 0), allows(1000, 0, 1000), allows(1000, 0, 0)], [1536, 536, 1036]);
        assert_eq!([allows(2048, 0, 1024), allows(2048, 0, 0), allows(2048, 1024, 0)], [0, 512, 2]);
        // The minimum, however much is queued.
        assert_eq!([0, 1, 2, 3].map(|own| allows(9000, 9000, own)), [2, 1, 0, 0]);
    }

    proptest! {
        /// Packets arrive at sockets, some of which are read now and then: never more wait than all
        /// may hold, and while few enough sockets hold any, an empty one is not refused.
        #[test]
        fn an_empty_socket_gets_something(
            frames in prop::sample::select(vec![128u32, 256, 1024]),
            steps in prop::collection::vec((0usize..200, 1usize..64, prop::bool::weighted(0.2)), 1..600),
        ) {
            let memory = SockMem::new(frames);
            let reserve = frames as usize / 8;
            let mut sockets = vec![0usize; 200];
            for (socket, run, read) in steps {
                let held: usize = sockets.iter().sum();
                prop_assert!(held <= frames as usize / 2);
                let full = sockets.iter().filter(|queued| **queued > 0).count();
                let queued = &mut sockets[socket];
                let got = memory.room(held).allows(0, *queued).min(run);
                prop_assert!(got > 0 || *queued > 0 || full >= reserve / 2, "{full} hold {held}");
                *queued = if read { 0 } else { *queued + got };
            }
        }
    }
}
