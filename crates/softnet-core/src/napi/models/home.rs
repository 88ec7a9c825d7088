//! The runtime's polling threads as the models have them, over the production loop, mailbox and sleep; what is a device's
//! or the kernel's is written out. A home does what `Worker` in the crate `softnet` does, in the same order: rounds
//! (timer, mailbox, instance list, doorbell, poll list), and sleep when one had nothing to do.

use std::sync::Arc;

use loom::sync::Notify;
use loom::thread::{self, JoinHandle};

use crate::napi::{Body, Budget, Driver, Napi, NapiInfo, NetRx, PollList, Released, Scheduled};
use crate::skb::Batch;
use crate::sync::{AtomicBool, AtomicU32, Mailbox, Mutant, Ordering, Receiver, Sleeper, mailbox, mutated};

/// A thread that sleeps: its announcement, and what it blocks on.
pub(super) struct Waker {
    pub(super) sleeper: Sleeper,
    epoll: Notify,
}

impl Waker {
    fn new() -> Self {
        Waker { sleeper: Sleeper::new(), epoll: Notify::new() }
    }

    pub(super) fn wake(&self) {
        if self.sleeper.wake() {
            self.epoll.notify();
        }
    }

    /// Sleeps, unless the second look finds something or another descriptor is readable.
    pub(super) fn sleep(&self, has_input: impl FnOnce() -> bool, readable: impl FnOnce() -> bool) {
        let announced = self.sleeper.announce();
        if (mutated(Mutant::NoSecondLook) || !has_input()) && !readable() {
            self.epoll.wait();
        }
        announced.awake();
    }
}

/// A thread that polls the instance while it is in its list.
pub(super) struct Home {
    pub(super) waker: Waker,
    pub(super) mailbox: Mailbox<Scheduled<Rx>>,
    receiver: std::sync::Mutex<Option<Receiver<Scheduled<Rx>>>>,
    listed: AtomicBool,
    /// Number of the instance list; and the one the thread has seen.
    wanted: AtomicU32,
    seen: AtomicU32,
    /// The instance's timer is armed, which this thread keeps.
    timer: AtomicBool,
    stop: AtomicBool,
}

impl Home {
    fn new() -> Self {
        let (mailbox, receiver) = mailbox(2);
        Home {
            waker: Waker::new(),
            mailbox,
            receiver: std::sync::Mutex::new(Some(receiver)),
            listed: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            timer: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }
    }

    /// Puts the instance on the list, or takes it off; returns the list's new number.
    pub(super) fn list(&self, listed: bool) -> u32 {
        self.listed.store(listed, Ordering::Relaxed);
        let number = self.wanted.fetch_add(1, Ordering::Release) + 1;
        self.waker.wake();
        number
    }

    pub(super) fn has_seen(&self, number: u32) -> bool {
        self.seen.load(Ordering::Acquire) >= number
    }

    pub(super) fn schedule(&self, napi: Scheduled<Rx>) {
        if self.mailbox.push(napi).unwrap_or_else(|_| panic!("there is room for each instance once")) {
            self.waker.wake();
        }
    }

    /// Another thread arms the timer.
    pub(super) fn arm(&self) {
        self.timer.swap(true, Ordering::Relaxed);
        self.waker.wake();
    }

    /// Ends the thread when it would sleep, and no timer runs.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// The body of the instance.
pub(super) struct Rx {
    /// Packets that polls took.
    pub(super) seen: u32,
    /// The home that may poll.
    pub(super) home: usize,
}

/// What receives the packets of the instance.
pub(super) struct Application {
    pub(super) waker: Waker,
    /// Packets that polls have handed to it.
    pub(super) ready: AtomicU32,
}

/// One instance, its device, two homes, and an application that waits for its packets.
pub(super) struct World {
    pub(super) napi: Napi<Rx>,
    /// Packets that came to the ring, and that were taken from it.
    came: AtomicU32,
    taken: AtomicU32,
    /// The doorbell, as that of in-process devices: unmasked is announced, and a ring makes the descriptor readable, which
    /// may come late.
    doorbell: Sleeper,
    readable: AtomicBool,
    owed: AtomicBool,
    /// Whether it was unmasked, for the home.
    armed: AtomicBool,
    pub(super) homes: [Home; 2],
    pub(super) application: Option<Application>,
    deferral: bool,
}

impl World {
    /// The instance is at home 0 and scheduled there, and `packets` wait.
    pub(super) fn new(deferral: bool, packets: u32) -> Arc<World> {
        Self::build(deferral, packets, None)
    }

    /// The same with deferral and an application.
    pub(super) fn with_application() -> Arc<World> {
        let application = Application { waker: Waker::new(), ready: AtomicU32::new(0) };
        Self::build(true, 0, Some(application))
    }

    fn build(deferral: bool, packets: u32, application: Option<Application>) -> Arc<World> {
        let (napi, disabled) = Napi::new("model", 0, 0, Rx { seen: 0, home: 0 });
        if deferral {
            napi.mitigation.set_defer_hard_irqs(1).unwrap();
            napi.mitigation.set_gro_flush_timeout(1);
            napi.mitigation.set_irq_suspend_timeout(1);
        }
        let world = World {
            napi,
            came: AtomicU32::new(packets),
            taken: AtomicU32::new(0),
            doorbell: Sleeper::new(),
            readable: AtomicBool::new(false),
            owed: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            homes: [Home::new(), Home::new()],
            application,
            deferral,
        };
        world.homes[0].list(true);
        world.homes[0].schedule(disabled.enable());
        Arc::new(world)
    }

    /// Works as home `me` until it is stopped.
    pub(super) fn run(&self, me: usize) {
        let receiver = self.homes[me].receiver.lock().unwrap().take().expect("once");
        Polling { world: self, me, number: 0, listed: false }.run(receiver);
    }

    pub(super) fn spawn(self: &Arc<Self>, f: impl FnOnce(&World) + 'static) -> JoinHandle<()> {
        let world = self.clone();
        thread::spawn(move || f(&world))
    }

    /// A packet comes, and rings if the doorbell is unmasked. A home that does not wait for the descriptor goes back to
    /// sleep.
    pub(super) fn arrive(&self) {
        self.came.fetch_add(1, Ordering::Relaxed);
        if self.doorbell.wake() {
            // Loom does not put a plain store after the exchange that did not read it.
            self.readable.swap(true, Ordering::Release);
            self.homes.iter().for_each(|home| home.waker.epoll.notify());
        }
    }

    fn pending(&self) -> bool {
        self.came.load(Ordering::Relaxed) != self.taken.load(Ordering::Relaxed)
    }

    /// Receives what waits.
    pub(super) fn poll(&self, body: &mut Rx) -> u32 {
        let work = self.came.load(Ordering::Relaxed) - body.seen;
        body.seen += work;
        self.taken.store(body.seen, Ordering::Relaxed);
        work
    }

    pub(super) fn mask(&self) {
        self.armed.store(false, Ordering::Relaxed);
        if self.doorbell.disarm() || self.owed.load(Ordering::Relaxed) {
            let found = self.readable.swap(false, Ordering::Acquire);
            self.owed.store(!found, Ordering::Relaxed);
        }
    }

    /// The threads have ended: the doorbell is unmasked, and no packet waits.
    pub(super) fn at_rest(&self, home: usize) {
        let state = self.napi.state();
        assert!(!state.is_scheduled() && !state.is_missed() && !state.is_busy_polling(), "{state}");
        assert!(
            self.armed.load(Ordering::Relaxed) && self.doorbell.is_announced(),
            "masked, and no thread owns it"
        );
        let mut scheduled = self.napi.schedule_prep().expect("idle");
        let body = &mut scheduled.body().rx;
        assert_eq!((body.seen, body.home), (self.came.load(Ordering::Relaxed), home), "a packet waits");
    }
}

/// What the thread of a home owns.
struct Polling<'a> {
    world: &'a World,
    me: usize,
    /// Number of the instance list, and whether the instance is on it.
    number: u32,
    listed: bool,
}

impl Polling<'_> {
    fn home(&self) -> &Home {
        &self.world.homes[self.me]
    }

    fn run(mut self, mut receiver: Receiver<Scheduled<Rx>>) {
        let mut net_rx = NetRx::new(Budget::default());
        loop {
            if self.round(&mut net_rx, &mut receiver) {
                continue;
            }
            let home = self.home();
            let stop = || home.stop.load(Ordering::Acquire);
            if stop() && !self.has_input(&receiver) && !self.readable() {
                return;
            }
            home.waker.sleep(|| self.has_input(&receiver) || stop(), || self.readable());
            if self.readable() {
                self.ring().into_iter().for_each(|napi| net_rx.schedule(napi));
            }
        }
    }

    fn readable(&self) -> bool {
        self.listed && self.world.readable.load(Ordering::Acquire)
    }

    fn round(&mut self, net_rx: &mut NetRx<Rx>, receiver: &mut Receiver<Scheduled<Rx>>) -> bool {
        let world = self.world;
        if world.deferral && self.home().timer.swap(false, Ordering::Relaxed) && self.listed {
            world.napi.watchdog().into_iter().for_each(|napi| net_rx.schedule(napi));
        }
        receiver.drain().for_each(|napi| net_rx.schedule(napi));
        let wanted = self.home().wanted.load(Ordering::Acquire);
        if wanted != self.number {
            self.number = wanted;
            self.listed = self.home().listed.load(Ordering::Relaxed);
            self.home().seen.store(wanted, Ordering::Release);
        }
        if self.listed && world.armed.load(Ordering::Relaxed) && world.pending() {
            self.ring().into_iter().for_each(|napi| net_rx.schedule(napi));
        }
        let busy = !net_rx.is_idle();
        if busy {
            net_rx.run(0, self);
        }
        busy
    }

    fn ring(&self) -> Option<Scheduled<Rx>> {
        self.world.mask();
        self.world.napi.schedule_prep()
    }

    /// An armed timer is one, for its time will come while the thread sleeps.
    fn has_input(&self, receiver: &Receiver<Scheduled<Rx>>) -> bool {
        let home = self.home();
        receiver.has_pending()
            || home.wanted.load(Ordering::Relaxed) != self.number
            || self.world.deferral && home.timer.load(Ordering::Relaxed)
            || self.listed && self.world.armed.load(Ordering::Relaxed) && self.world.pending()
    }
}

impl Driver<Rx> for Polling<'_> {
    fn poll(&mut self, _: &NapiInfo, body: &mut Body<Rx>, _: usize, _: &mut PollList<Rx>) -> usize {
        assert_eq!(body.rx.home, self.me, "polled by a home that it has left");
        let work = self.world.poll(&mut body.rx);
        if work > 0
            && let Some(application) = &self.world.application
        {
            application.ready.fetch_add(work, Ordering::Relaxed);
            application.waker.wake();
        }
        work as usize
    }

    fn deliver(&mut self, _: &NapiInfo, _: &mut Batch) {}

    fn released(&mut self, released: Released<Rx>, list: &mut PollList<Rx>) {
        if self.world.deferral {
            self.home().timer.store(released.timer.is_some(), Ordering::Relaxed);
        }
        if !self.listed || !released.unmask {
            return;
        }
        self.world.doorbell.arm();
        self.world.armed.store(true, Ordering::Relaxed);
        if !mutated(Mutant::NoSecondLook) && self.world.pending() {
            self.ring().into_iter().for_each(|napi| list.push(napi));
        }
    }

    fn now(&mut self) -> u64 {
        0
    }
}
