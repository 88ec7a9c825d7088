//! What sockets may hold of packet memory: all together (the kernel's `udp_mem`), and each in any case (its
//! `udp_rmem_min`).
//!
//! Half of the frames may wait for applications. The last part of that half is a reserve: a packet comes from it only for
//! a socket that holds less than the minimum. So sockets that are not read fill what is shared and no more, and an empty
//! one gets something as long as fewer sockets than half of the reserve hold anything. Once half of the reserve is used
//! the minimum is one packet, so that what is left is for those that have none.
//!
//! Called by pollers, with the packets that applications hold; no state, so nothing here is shared. Invariant: what is
//! allowed never exceeds what all may hold.

/// Packets that a socket may hold although what is shared is used up: the 4096 bytes of the kernel's `udp_rmem_min`, of
/// which a frame and its head take 2176 each.
pub const RMEM_MIN: usize = 2;

/// The limits, in packets.
#[derive(Clone, Copy, Debug)]
pub struct UdpMem {
    /// What all may hold without regard to which of them does.
    shared: usize,
    /// The same with the reserve.
    all: usize,
}

/// What there is room for at some moment.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    shared: usize,
    all: usize,
    reserve: usize,
}

impl UdpMem {
    /// Of a region of `frames` frames.
    pub fn new(frames: u32) -> Self {
        let (all, reserve) = (frames as usize / 2, frames as usize / 8);
        UdpMem { shared: all - reserve, all }
    }

    /// Packets that applications may hold, or set aside, without the sockets' reserve.
    pub fn shared(&self) -> usize {
        self.shared
    }

    /// What there is room for while applications hold `held` packets.
    #[inline(always)]
    pub fn room(&self, held: usize) -> Room {
        let UdpMem { shared, all } = *self;
        Room { shared: shared.saturating_sub(held), all: all.saturating_sub(held), reserve: all - shared }
    }
}

impl Room {
    /// Whether `packets` more fit what is shared, whoever gets them.
    #[inline(always)]
    pub(super) fn has(&self, packets: usize) -> bool {
        packets <= self.shared
    }

    /// Packets that a socket which holds `queued` may get, after `taken` of the room were.
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
        let memory = UdpMem::new(16384);
        assert_eq!(memory.shared(), 6144);
        // Shared, but for the last packet; used up; the reserve half used; and all of it.
        for (held, expected) in [(6143, [2, 1, 1]), (6144, [2, 1, 0]), (7168, [1, 0, 0]), (8192, [0, 0, 0])] {
            assert_eq!([0, 1, 2].map(|queued| memory.room(held).allows(0, queued)), expected, "{held} held");
        }
        let room = memory.room(6140);
        assert!(room.has(4) && !room.has(5));
        assert_eq!((room.allows(0, 400), room.allows(3, 400), room.allows(4, 400)), (4, 1, 0));
    }

    proptest! {
        /// Packets come to sockets, some of which are read now and then: never more than all may hold wait, and as long as few
        /// enough sockets hold anything, one that holds nothing is not refused.
        #[test]
        fn an_empty_socket_gets_something(
            frames in prop::sample::select(vec![128u32, 256, 1024]),
            steps in prop::collection::vec((0usize..200, 1usize..64, prop::bool::weighted(0.2)), 1..600),
        ) {
            let memory = UdpMem::new(frames);
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
