//! The slow path's lock, and how a thread that polls gets past it while another thread holds it.
//!
//! Threads of an application, the housekeeper and the control thread hold it, too, and any of them may be kept from its CPU. So a
//! thread that polls tries it. If it is held, the exceptions of its batch are *left* to the holder, as packets are to
//! the owner of a TX queue, and the thread goes on polling. The holder sees to them when it lets go; one without packet memory
//! of its own, or that has served others for long enough, has the housekeeper do so. Only if as many are left already as there
//! is room for does a polling thread wait. Then its holder has that thread's priority ([`PiMutex`]).
//!
//! What was left is older than what comes next, and goes first, so that a worker's exceptions stay in order. Packets of the same
//! flows do not overtake it by the fast path: see [`LeftOf`].
//!
//! Invariant: whenever no thread holds the lock nothing is left, or the housekeeper has been woken for it.

use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::ip::input::{Exception, Exceptions};
use softnet_core::ip::slow::{Effects, RouteSnapshot, SlowPath};
use softnet_core::ip::tables::Tables;
use softnet_core::skb::{BATCH, Skb};
use softnet_core::stack::slow::SlowPathState;
use softnet_core::sync::{AbortOnPanic, AtomicU64, Left, Ordering, Receiver, left};
use softnet_dev::{PiGuard, PiMutex};

use super::StackInner;
use crate::napi::LeftOf;

/// Exceptions that may be left, of all threads together, and no more than this part of packet memory.
const ROOM: u32 = 1024;
const PART: u32 = 16;
/// Times that a holder takes the lock again for others before it leaves that to the housekeeper.
const ROUNDS: u32 = 4;

/// An exception that is left.
struct LeftSkb {
    skb: Skb,
    why: Exception,
    /// It is the last one of a batch of this instance.
    last_of: Option<Arc<LeftOf>>,
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

impl std::fmt::Debug for ControlGuard<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlGuard").finish_non_exhaustive()
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

    /// Has the slow path handle exceptions of the calling thread's poll; or its holder, if it is held. They are of a batch of
    /// `instance` that went by `tables`.
    pub(crate) fn handle_exceptions(
        &self,
        ctx: &mut SoftnetData,
        exceptions: &mut Exceptions,
        (instance, tables): (&Arc<LeftOf>, &Arc<Tables>),
    ) {
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
                if let Some(told) = exceptions.redirect.take() {
                    slow.redirect(ctx, view, told, out);
                }
            });
            return self.let_go(ctx, guarded, sooner);
        }
        // Another packet will do as well: senders are told of a better way now and then only.
        exceptions.redirect.take();
        let last = exceptions.len().wrapping_sub(1);
        if !exceptions.is_empty() {
            instance.begin(tables);
        }
        let mut exceptions = exceptions.drain().enumerate();
        while let Some((at, (skb, why))) = exceptions.next() {
            let last_of = (at == last).then(|| instance.clone());
            if let Err(LeftSkb { skb, why, .. }) = self.control.left.leave(LeftSkb { skb, why, last_of }) {
                self.control.waited.fetch_add(1, Ordering::Relaxed);
                // No room: waits, and sees to all that was left, its own among it, before the rest.
                let rest = exceptions.map(|(_, exception)| exception);
                handle_all(&mut [(skb, why)].into_iter().chain(rest), ctx);
                return instance.end();
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
        let mut ended = Vec::new();
        let sooner = control.run(ctx, self, |slow, ctx, view, out| {
            for LeftSkb { skb, why, last_of } in left.drain() {
                slow.handle(ctx, view, skb, why, out);
                ended.extend(last_of);
            }
        });
        ended.iter().for_each(|instance| instance.end());
        sooner
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
    use std::net::IpAddr;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use softnet_core::ip::v4::header::Ipv4Header;
    use softnet_core::skb::Batch;
    use softnet_core::sync::Ordering;
    use softnet_dev::mem::PairConfig;

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

    /// A UDP packet from a host on the first device's link to one on the second's, with a number.
    fn numbered(number: u8) -> Vec<u8> {
        let mut frame = [&[0; 12][..], &[8, 0], &[0; 20], &[0, 7, 0, 9, 0, 9, 0, 0, number]].concat();
        let ends = [[10, 0, 0, 7], [10, 0, 1, 9]].map(u32::from_be_bytes);
        Ipv4Header::new_mut(&mut frame[14..]).unwrap().fill(29, 1, 64, 17, ends[0], ends[1]);
        frame[..6].copy_from_slice(&PairConfig::default().macs[0]);
        frame
    }

    /// Numbers of the packets that leave by the second device.
    fn forwarded(world: &mut World) -> Vec<u8> {
        let mut batch = Batch::new();
        world.ends[1].rx_burst(&mut world.ctx, &mut batch, 64);
        let numbers = batch.as_slice().iter().filter(|skb| skb.data()[12..14] == [8, 0]);
        let numbers = numbers.map(|skb| skb.data()[42]).collect();
        batch.drain().for_each(|skb| world.ctx.free_skb(skb));
        numbers
    }

    /// The holder publishes a neighbour while packets to it are left. Later ones, which the fast path could forward now, do not
    /// overtake them.
    #[test]
    fn what_is_left_is_not_overtaken() {
        let mut world = World::new(2);
        let shared = world.assembly.shared.clone();
        let neighbour = (1, IpAddr::from([10, 0, 1, 9]), [2, 0, 0, 0, 0, 9]);
        for number in 0..3 {
            let mut held = shared.control();
            world.arrive(0, &numbered(3 * number));
            world.work();
            let mut ctx = shared.context();
            held.run(&mut ctx, &*shared, |slow, ctx, view, out| {
                slow.set_permanent(ctx, view, neighbour, out);
            });
            for later in 1..3 {
                world.arrive(0, &numbered(3 * number + later));
                world.work();
            }
            let early = forwarded(&mut world);
            drop(held);
            world.assembly.housekeeper().unwrap().timers();
            let all = if number == 0 { vec![0, 1, 2] } else { vec![] };
            // Once the neighbour is known nothing is left, and packets go by the fast path while the lock is held.
            let at_once: Vec<u8> = (3 * number..3 * number + 3).filter(|_| number > 0).collect();
            assert_eq!((early, forwarded(&mut world)), (at_once, all));
            assert_eq!((shared.has_left(), balance(&world)), (false, (0, 0)));
            ctx.drain();
        }
        world.close();
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
