//! The slow path's lock, and how a thread that polls gets past it while another thread holds it.
//!
//! Threads of an application, the housekeeper and the control thread hold it, too, and any of them may be kept from its CPU. So a
//! thread that polls tries it. If it is held, the exceptions of its batch are *left* to the holder, as packets are to
//! the owner of a TX queue, and the thread goes on polling. The holder sees to them when it lets go; one without packet memory
//! of its own, or that has served others for long enough, has the housekeeper do so. Only if as many are left already as there
//! is room for does a polling thread wait. Then its holder has that thread's priority ([`PiMutex`]).
//!
//! What was left is older than what comes next, and goes first, so that a worker's exceptions stay in order.
//!
//! Invariant: whenever no thread holds the lock nothing is left, or the housekeeper has been woken for it.

use softnet_core::SoftnetData;
use softnet_core::ip::input::{Exception, Exceptions};
use softnet_core::ip::slow::{Effects, RouteSnapshot, SlowPath};
use softnet_core::skb::{BATCH, Skb};
use softnet_core::stack::slow::SlowPathState;
use softnet_core::sync::{AbortOnPanic, AtomicU64, Left, Ordering, Receiver, left};
use softnet_dev::{PiGuard, PiMutex};

use super::StackInner;

/// Exceptions that may be left, of all threads together, and no more than this part of packet memory.
const ROOM: u32 = 1024;
const PART: u32 = 16;
/// Times that a holder takes the lock again for others before it leaves that to the housekeeper.
const ROUNDS: u32 = 4;

/// An exception that is left.
struct LeftSkb {
    skb: Skb,
    why: Exception,
}

/// What the lock guards.
struct Guarded {
    control: SlowPathState,
    left: Receiver<LeftSkb>,
}

/// See the module.
pub(crate) struct SlowLock {
    guarded: PiMutex<Guarded>,
    left: Left<LeftSkb>,
    /// Times that a polling thread found no room.
    waited: AtomicU64,
}

impl SlowLock {
    /// For a stack with so many `frames` of packet memory.
    pub(crate) fn new(control: SlowPathState, frames: u32) -> Self {
        let (sender, receiver) = left(ROOM.min(frames / PART).max(BATCH as u32));
        SlowLock {
            guarded: PiMutex::new(Guarded { control, left: receiver }),
            left: sender,
            waited: AtomicU64::new(0),
        }
    }
}

/// The slow path, held.
pub struct ControlGuard<'a> {
    shared: &'a StackInner,
    /// `None` while it is being let go.
    guarded: Option<PiGuard<'a, Guarded>>,
}

impl ControlGuard<'_> {
    /// Packets that are left to the holder.
    pub(crate) fn left(&self) -> usize {
        self.shared.control.left.count()
    }
}

impl std::ops::Deref for ControlGuard<'_> {
    type Target = SlowPathState;

    fn deref(&self) -> &SlowPathState {
        &self.guarded.as_ref().expect("held until it is dropped").control
    }
}

impl std::ops::DerefMut for ControlGuard<'_> {
    fn deref_mut(&mut self) -> &mut SlowPathState {
        &mut self.guarded.as_mut().expect("held until it is dropped").control
    }
}

impl Drop for ControlGuard<'_> {
    fn drop(&mut self) {
        self.guarded = None;
        if self.shared.control.left.any() {
            self.shared.housekeeper.wake();
        }
    }
}

impl StackInner {
    /// The slow path, for threads that may wait. What is left meanwhile the housekeeper sees to.
    pub fn control(&self) -> ControlGuard<'_> {
        ControlGuard { shared: self, guarded: Some(self.control.guarded.lock()) }
    }

    /// Runs `f` on the slow path, then sends and publishes what came of it. For threads that may wait.
    pub fn slow_path(
        &self,
        ctx: &mut SoftnetData,
        f: impl FnOnce(&mut SlowPath, &mut SoftnetData, RouteSnapshot<'_>, &mut Effects),
    ) {
        let _owner = AbortOnPanic::new();
        let mut guarded = self.control.guarded.lock();
        let mut sooner = self.see_to_left(ctx, &mut guarded);
        sooner |= guarded.control.run(ctx, self, f);
        self.let_go(ctx, guarded, sooner);
    }

    /// Has the slow path handle exceptions of the calling thread's poll; or its holder, if it is held.
    pub(crate) fn handle_exceptions(&self, ctx: &mut SoftnetData, exceptions: &mut Exceptions) {
        let handle_all = |exceptions: &mut dyn Iterator<Item = (Skb, Exception)>, ctx: &mut SoftnetData| {
            self.slow_path(ctx, |slow, ctx, view, out| {
                for (skb, why) in exceptions {
                    slow.handle(ctx, view, skb, why, out);
                }
            });
        };
        if let Some(mut guarded) = self.control.guarded.try_lock() {
            let _owner = AbortOnPanic::new();
            let mut sooner = self.see_to_left(ctx, &mut guarded);
            sooner |= guarded.control.run(ctx, self, |slow, ctx, view, out| {
                for (skb, why) in exceptions.drain() {
                    slow.handle(ctx, view, skb, why, out);
                }
                if let Some((dev, packet)) = exceptions.redirect.take() {
                    slow.redirect(ctx, view, (dev, packet), out);
                }
            });
            return self.let_go(ctx, guarded, sooner);
        }
        // Another packet will do as well: senders are told of a better way now and then only.
        exceptions.redirect.take();
        let mut exceptions = exceptions.drain();
        while let Some((skb, why)) = exceptions.next() {
            if let Err(LeftSkb { skb, why }) = self.control.left.leave(LeftSkb { skb, why }) {
                self.control.waited.fetch_add(1, Ordering::Relaxed);
                // No room: waits, and sees to all that was left, its own among it, before the rest.
                return handle_all(&mut [(skb, why)].into_iter().chain(exceptions), ctx);
            }
        }
        self.control.left.left();
        if let Some(guarded) = self.control.guarded.try_lock() {
            self.take_over(ctx, guarded);
        }
    }

    /// Sees to what was left to a holder that could not: for the housekeeper.
    pub(crate) fn handle_left(&self, ctx: &mut SoftnetData) {
        if self.control.left.any() {
            self.take_over(ctx, self.control.guarded.lock());
        }
    }

    /// Whether something is left, for a look before sleep.
    pub(crate) fn has_left(&self) -> bool {
        self.control.left.any()
    }

    fn take_over(&self, ctx: &mut SoftnetData, mut guarded: PiGuard<'_, Guarded>) {
        let _owner = AbortOnPanic::new();
        let sooner = self.see_to_left(ctx, &mut guarded);
        self.let_go(ctx, guarded, sooner);
    }

    /// Under the lock: handles what was left until now. Returns whether the slow path has an earlier deadline since.
    fn see_to_left(&self, ctx: &mut SoftnetData, guarded: &mut Guarded) -> bool {
        if !guarded.left.has_pending() {
            return false;
        }
        let Guarded { control, left } = guarded;
        control.run(ctx, self, |slow, ctx, view, out| {
            for LeftSkb { skb, why } in left.drain() {
                slow.handle(ctx, view, skb, why, out);
            }
        })
    }

    /// Lets go of the lock, and takes it again for what was left meanwhile, unless another thread has it by then.
    fn let_go<'a>(&'a self, ctx: &mut SoftnetData, mut guarded: PiGuard<'a, Guarded>, mut sooner: bool) {
        for round in 0.. {
            drop(guarded);
            if !self.control.left.any() {
                break;
            }
            if round == ROUNDS {
                sooner = true;
                break;
            }
            let Some(again) = self.control.guarded.try_lock() else { break };
            guarded = again;
            sooner |= self.see_to_left(ctx, &mut guarded);
        }
        if sooner {
            self.housekeeper.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use softnet_core::skb::Batch;
    use softnet_core::sync::Ordering;

    use crate::testing::World;

    /// A request for the address of the world's first device.
    fn arp_request() -> Vec<u8> {
        let mac = [2, 0, 0, 0, 0, 7];
        let header = [&[0xff; 6][..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        let mut packet = [&header[..], &mac, &[10, 0, 0, 7], &[0; 6], &[10, 0, 0, 1]].concat();
        packet.resize(60, 0);
        packet
    }

    fn answers(world: &mut World) -> usize {
        let mut batch = Batch::new();
        let n = world.ends[0].rx_burst(&mut world.ctx, &mut batch, 64);
        batch.drain().for_each(|skb| world.ctx.free_skb(skb));
        n
    }

    /// How many packets the books say are inside, and how many they miss.
    fn balance(world: &World) -> (u64, i64) {
        let stats = world.assembly.view.stats();
        let (came, went) = (
            stats.received + stats.originated,
            stats.transmitted + stats.delivered + stats.dropped + stats.merged,
        );
        (stats.held, came as i64 - (went + stats.held) as i64)
    }

    /// A thread that holds the slow path has lost its CPU. The worker polls on all the same, and what it left is seen to when
    /// the holder lets go: by the housekeeper, or by the next thread that has something for the slow path.
    #[test]
    fn a_worker_does_not_wait_for_the_holder() {
        for housekeeper in [true, false] {
            let mut world = World::new(1);
            let shared = world.assembly.shared.clone();
            let held = shared.control();
            (0..3).for_each(|_| world.arrive(0, &arp_request()));
            let (done, ended) = channel();
            let worker = std::thread::spawn(move || {
                world.work();
                done.send(()).unwrap();
                world
            });
            let waited = ended.recv_timeout(Duration::from_secs(60)).is_err();
            assert!(!shared.housekeeper.sleeper.is_announced());
            drop(held);
            let mut world = worker.join().unwrap();
            assert!(!waited, "the worker waited for a thread that has no CPU");
            assert_eq!((world.received(0), answers(&mut world)), (3, 0));
            assert_eq!(balance(&world), (3, 0), "what is left is in the books");
            assert!(shared.has_left());
            if housekeeper {
                world.assembly.housekeeper().unwrap().timers();
            } else {
                world.arrive(0, &arp_request());
                world.work();
            }
            assert!(!shared.has_left());
            assert_eq!(answers(&mut world), if housekeeper { 3 } else { 4 });
            assert_eq!(balance(&world), (0, 0));
            world.close();
        }
    }

    /// More than there is room for: then it waits, and all are answered in order.
    #[test]
    fn what_there_is_no_room_for_waits() {
        let mut world = World::new(1);
        let shared = world.assembly.shared.clone();
        let held = shared.control();
        let (sent, all) = (super::ROOM as usize + 70, arp_request());
        let worker = std::thread::spawn(move || {
            let mut answered = 0;
            for burst in 0..sent.div_ceil(10) {
                (0..10.min(sent - 10 * burst)).for_each(|_| world.arrive(0, &all));
                world.work();
                answered += answers(&mut world);
            }
            answered += answers(&mut world);
            (world, answered)
        });
        while shared.control.waited.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        drop(held);
        let (mut world, mut answered) = worker.join().unwrap();
        world.assembly.housekeeper().unwrap().timers();
        for _ in 0..100 {
            world.work();
            answered += answers(&mut world);
        }
        let dropped: u64 = world.assembly.view.drops().iter().map(|row| row.packets).sum();
        assert_eq!((answered as u64 + dropped, shared.has_left()), (sent as u64, false));
        assert_eq!(world.received(0), sent as u64);
        world.close();
    }
}
