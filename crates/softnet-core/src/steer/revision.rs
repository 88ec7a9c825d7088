//! How the thread that changes a device's filters learns that no sender goes by the old ones any
//! more.
//!
//! A change is published by the next number ([`Revision::publish`]). A sender says by which number
//! it goes ([`Follower::enter`]) from before it looks at the filters until what it sent by them can
//! be received ([`Follower::leave`]). So once every sender has left the old number, or was in none,
//! what was sent by it has arrived, and nothing more will.
//!
//! Invariant: the publishing thread makes the number visible, fences, and then looks at the senders;
//! a sender says where it is, fences, and then looks at the number once more. So one of them sees
//! the other.

use crate::sync::{AtomicU64, Mutant, Ordering, fence, mutated, weakened};

/// Of a sender that sends nothing now.
const IDLE: u64 = u64::MAX;

/// The number of the filters that are in force.
pub struct Revision(AtomicU64);

/// Which number a sender goes by. Written by that alone.
pub struct Follower(AtomicU64);

impl Default for Revision {
    fn default() -> Self {
        Revision(AtomicU64::new(0))
    }
}

impl Default for Follower {
    /// Of a sender that sends nothing yet.
    fn default() -> Self {
        Follower(AtomicU64::new(IDLE))
    }
}

impl Revision {
    /// The number now. What it stands for was changed before.
    #[inline]
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// The filters were changed: returns their number. Under the lock that they are changed under.
    pub fn publish(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Release) + 1
    }

    /// Whether no sender goes by older filters than those of now. What `followers` sent by them
    /// then comes before what the caller does next.
    pub fn is_settled<'a>(&self, mut followers: impl Iterator<Item = &'a Follower>) -> bool {
        let now = self.now();
        if !mutated(Mutant::RevisionNoFence) {
            fence(Ordering::SeqCst);
        }
        followers.all(|follower| {
            let at = follower.0.load(Ordering::Acquire);
            at == IDLE || at >= now
        })
    }
}

impl Follower {
    /// The sender begins: returns the number that it has to go by, or a newer one. Nothing that it
    /// sent before is still on its way.
    #[inline]
    pub fn enter(&self, revision: &Revision) -> u64 {
        let mut now = revision.now();
        loop {
            self.0.store(now, Ordering::Release);
            if !mutated(Mutant::EnterNoFence) {
                fence(Ordering::SeqCst);
            }
            let then = std::mem::replace(&mut now, revision.now());
            if now == then || mutated(Mutant::RevisionNotReread) {
                return then;
            }
        }
    }

    /// What the sender sent can be received.
    #[inline]
    pub fn leave(&self) {
        self.0.store(IDLE, weakened(Mutant::RevisionLeftRelaxed, Ordering::Release));
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn settled_when_all_have_left() {
        let (revision, followers) = (Revision::default(), [Follower::default(), Follower::default()]);
        let settled = || revision.is_settled(followers.iter());
        assert!(settled());
        assert_eq!(followers[0].enter(&revision), 0);
        assert!(settled(), "nothing has changed");
        assert_eq!(revision.publish(), 1);
        assert_eq!(followers[1].enter(&revision), 1);
        assert!(!settled());
        followers[0].leave();
        assert!(settled());
        assert_eq!((followers[0].enter(&revision), settled()), (1, true));
    }
}

#[cfg(all(test, feature = "loom"))]
mod models {
    use std::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::sync::{AtomicU32, check, must_fail};

    /// Filters that say which of two queues packets go to, a sender that goes by them, and the
    /// thread that changes them. Relaxed, so that it is up to the revision to order them.
    #[derive(Default)]
    struct World {
        revision: Revision,
        follower: Follower,
        filter: AtomicU32,
        queues: [AtomicU32; 2],
    }

    fn no_late_packet() {
        let world = Arc::new(World::default());
        let sender = thread::spawn({
            let world = world.clone();
            move || {
                let (mut filter, mut known) = (0, 0);
                for _ in 0..2 {
                    let revision = world.follower.enter(&world.revision);
                    if revision != known {
                        (filter, known) = (world.filter.load(Ordering::Relaxed), revision);
                    }
                    let queue = &world.queues[filter as usize];
                    queue.store(queue.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    world.follower.leave();
                }
            }
        });
        world.filter.store(1, Ordering::Relaxed);
        world.revision.publish();
        let settled = world.revision.is_settled(std::iter::once(&world.follower));
        let old = world.queues[0].load(Ordering::Relaxed);
        sender.join().unwrap();
        if settled {
            assert_eq!(world.queues[0].load(Ordering::Relaxed), old, "a packet came late");
        }
        assert!(world.revision.is_settled(std::iter::once(&world.follower)));
    }

    #[test]
    fn once_settled_nothing_comes_by_the_old_filters() {
        check(3, no_late_packet);
        for m in [
            Mutant::RevisionNoFence,
            Mutant::EnterNoFence,
            Mutant::RevisionNotReread,
            Mutant::RevisionLeftRelaxed,
        ] {
            must_fail(m, 3, no_late_packet);
        }
    }
}
