//! Loom models of the hand-over primitive, the mailbox, the sleep protocol and the ready queue, each with the faults that it must
//! notice.

// Loom's own `Arc` cannot be dropped by a model that has failed, as those with a fault must.
use std::sync::Arc;

use loom::sync::Notify;
use loom::thread;

use super::{
    AtomicBool, AtomicU32, Deadline, Due, Entered, Handover, LinkTable, Mutant, Mutex, Ordering, Owner,
    Ready, ReadyQueue, Receiver, Refused, Sleeper, UnsafeCell, check, left, mailbox, must_fail, mutated,
};

/// What one owner after the other writes, without any lock but ownership.
struct Log(UnsafeCell<Vec<u32>>);

// SAFETY: loom stops the model at the first access that nothing orders.
#[allow(unsafe_code)]
unsafe impl Sync for Log {}

impl Log {
    #[allow(unsafe_code)]
    fn push(&self, value: u32) {
        // SAFETY: loom stops the model at the first access that nothing orders.
        self.0.with_mut(|log| unsafe { (*log).push(value) });
    }

    #[allow(unsafe_code)]
    fn take(&self) -> Vec<u32> {
        // SAFETY: as above.
        self.0.with_mut(|log| unsafe { std::mem::take(&mut *log) })
    }
}

/// Elements 0 and 1 enter in order on one thread, 2 and 3 on another. Each is a cell that its pusher wrote and the
/// owner reads: every one is run once, by one owner at a time, each pusher's in order.
fn enter() {
    let h = Arc::new((
        Handover::new(),
        LinkTable::new(4),
        Log(UnsafeCell::new(Vec::new())),
        [(); 4].map(|()| Log(UnsafeCell::new(Vec::new()))),
    ));
    let enter_two = |first: u32| {
        let h = h.clone();
        move || {
            let (handover, links, log, payload) = &*h;
            let run = |i: u32| payload[i as usize].take().into_iter().for_each(|value| log.push(value));
            for i in [first, first + 1] {
                payload[i as usize].push(i);
                let Entered::Owner(mut owner) = handover.enter(links, i) else { continue };
                run(i);
                while let Err(mut still) = owner.leave() {
                    still.drain(links).for_each(run);
                    owner = still;
                }
            }
        }
    };
    let other = thread::spawn(enter_two(2));
    enter_two(0)();
    other.join().unwrap();
    let order = h.2.take();
    assert_eq!(order.len(), 4, "lost or run twice: {order:?}");
    for pair in [[0, 1], [2, 3]] {
        assert!(order.iter().filter(|i| pair.contains(i)).eq(&pair), "not in order: {order:?}");
    }
}

#[test]
fn handover_loses_nothing_has_one_owner_and_keeps_order() {
    check(3, enter);
    for m in [
        Mutant::LeaveBlind,
        Mutant::LeaveRelaxed,
        Mutant::PushRelaxed,
        Mutant::DetachRelaxed,
        Mutant::NotReversed,
    ] {
        must_fail(m, 3, enter);
    }
}

/// An owner parks with an element left over. Two threads come with one each: the thread that unparks runs what is
/// there and leaves; the other may have pushed too late, so that the run which is owed in the end finds it.
fn park() {
    let h = Arc::new((Handover::new(), LinkTable::new(4), Log(UnsafeCell::new(Vec::new()))));
    let run = |h: &(Handover, LinkTable, Log), mut owner: Owner<&Handover>| {
        owner.drain(&h.1).for_each(|i| h.2.push(i));
        while let Err(mut still) = owner.leave() {
            still.drain(&h.1).for_each(|i| h.2.push(i));
            owner = still;
        }
    };
    let mut owner = Handover::claim(&h.0).ok().unwrap();
    assert_eq!((h.0.push(&h.1, 0), h.0.push(&h.1, 1)), (Ok(true), Ok(false)));
    let threads = [2, 3].map(|i| {
        let h = h.clone();
        thread::spawn(move || match Handover::unpark(&h.0) {
            Ok(owner) => {
                h.2.push(i);
                run(&h, owner);
            }
            Err(_) => {
                if let Entered::Owner(owner) = h.0.enter(&h.1, i) {
                    h.2.push(i);
                    run(&h, owner);
                }
            }
        })
    });
    owner.drain(&h.1).take(1).for_each(|i| h.2.push(i));
    owner.park();
    threads.into_iter().for_each(|t| t.join().unwrap());
    if let Ok(owner) = Handover::unpark(&h.0) {
        run(&h, owner);
    }
    assert!(Handover::claim(&h.0).is_ok(), "let go of");
    let order = h.2.take();
    assert!(order.iter().filter(|i| **i < 2).eq(&[0, 1]), "{order:?}");
    assert!((2..4).all(|i| order.contains(&i)) && order.len() == 4, "lost or run twice: {order:?}");
}

#[test]
fn parked_ownership_goes_to_one_and_nothing_is_lost() {
    check(3, park);
    for m in [Mutant::ParkRelaxed, Mutant::UnparkNotAtomic] {
        must_fail(m, 3, park);
    }
}

/// With room for one beyond the first, of three pushed at once to a busy owner one or none is refused, and the drain
/// makes room again.
fn limited() {
    let h = Arc::new((Handover::with_limit(1), LinkTable::new(4)));
    let mut owner = Handover::claim(&h.0).ok().unwrap();
    let push = |i| {
        let h = h.clone();
        thread::spawn(move || h.0.push(&h.1, i))
    };
    let (a, b) = (push(0), push(1));
    let mut got: Vec<u32> = owner.drain(&h.1).collect();
    let results = [a.join().unwrap(), b.join().unwrap(), h.0.push(&h.1, 2)];
    let refused = results.iter().filter(|r| **r == Err(Refused::Full)).count();
    assert!(refused <= 1);
    got.extend(owner.drain(&h.1));
    assert_eq!(got.len() + refused, 3);
    assert_eq!(h.0.push(&h.1, 3), Ok(true), "empty again");
    assert!(owner.drain(&h.1).eq([3]));
    assert!(owner.leave().is_ok());
}

#[test]
fn handover_limit() {
    check(3, limited);
}

/// Two senders and a receiver that sleeps whenever nothing is pending. Only a sender that found the mailbox empty
/// wakes it. A lost wake-up is a deadlock, which loom reports.
fn mail() {
    let (tx, mut rx) = mailbox(2);
    let shared = Arc::new((Sleeper::new(), Notify::new()));
    for value in [1, 2] {
        let (tx, shared) = (tx.clone(), shared.clone());
        thread::spawn(move || {
            if tx.push(value).expect("two slots") && shared.0.wake() {
                shared.1.notify();
            }
        });
    }
    let mut sum = 0;
    loop {
        sum += rx.drain().sum::<u32>();
        if sum == 3 {
            break;
        }
        let announced = shared.0.announce();
        if !rx.has_pending() {
            shared.1.wait();
        }
        announced.awake();
    }
}

#[test]
fn mailbox_wakes_its_receiver_when_it_becomes_non_empty() {
    check(2, mail);
    for m in [Mutant::FirstNotTold, Mutant::PushRelaxed, Mutant::DetachRelaxed, Mutant::WakeNoFence] {
        must_fail(m, 2, mail);
    }
}

/// Two wakers, each with an input of its own; the sleeper sleeps until it has seen both.
fn sleep() {
    let shared = Arc::new((Sleeper::new(), Notify::new(), [AtomicU32::new(0), AtomicU32::new(0)]));
    let written = Arc::new(AtomicU32::new(0));
    for i in 0..2 {
        let (shared, written) = (shared.clone(), written.clone());
        thread::spawn(move || {
            shared.2[i].store(1, Ordering::Relaxed);
            if shared.0.wake() {
                written.fetch_add(1, Ordering::Relaxed);
                shared.1.notify();
            }
        });
    }
    let inputs = || shared.2.iter().map(|input| input.load(Ordering::Relaxed)).sum::<u32>();
    let (mut seen, mut announcements) = (inputs(), 0);
    while seen < 2 {
        let announced = shared.0.announce();
        announcements += 1;
        if mutated(Mutant::NoSecondLook) || inputs() == seen {
            shared.1.wait();
        }
        announced.awake();
        seen = inputs();
    }
    assert!(written.load(Ordering::Relaxed) <= announcements, "written more often than announced");
}

#[test]
fn sleeper_misses_no_wake_up() {
    check(3, sleep);
    for m in [Mutant::AnnounceNoFence, Mutant::AnnounceWeakFence, Mutant::WakeNoFence, Mutant::NoSecondLook] {
        must_fail(m, 3, sleep);
    }
}

/// A ready queue, and the semaphore that its takers wait for.
#[derive(Default)]
struct Takers {
    ready: ReadyQueue<u32, Mutex<Ready<u32>>>,
    units: AtomicU32,
    asleep: [Notify; 2],
}

impl Takers {
    fn push(&self, value: u32) {
        if self.ready.push(value) {
            self.units.fetch_add(1, Ordering::Release);
            self.asleep.iter().for_each(Notify::notify);
        }
    }

    /// What taker `me` takes; sleeps until there is something.
    fn take(&self, me: usize) -> u32 {
        loop {
            if let Some(value) = self.ready.take() {
                return value;
            }
            let one_less = |units: u32| units.checked_sub(1);
            while self.units.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_less).is_err() {
                self.asleep[me].wait();
            }
            self.ready.awake();
        }
    }
}

/// Two elements are pushed, and two threads take one each and keep it: a thread that sleeps while an element waits is a
/// deadlock, which loom reports.
fn ready() {
    let takers = Arc::new(Takers::default());
    let threads = [0, 1].map(|me| {
        let takers = takers.clone();
        thread::spawn(move || takers.take(me))
    });
    [0, 1].into_iter().for_each(|value| takers.push(value));
    let [a, b] = threads.map(|t| t.join().unwrap());
    assert_eq!(a + b, 1, "lost or taken twice");
}

/// An element is pushed while a busy thread exchanges the one that it holds, and another thread takes what is left.
fn exchange() {
    let takers = Arc::new(Takers::default());
    let [idle, busy] = [0, 1].map(|role| {
        let takers = takers.clone();
        thread::spawn(move || if role == 0 { takers.take(0) } else { takers.ready.exchange(1) })
    });
    takers.push(0);
    assert_eq!(idle.join().unwrap() + busy.join().unwrap(), 1, "lost or taken twice");
}

#[test]
fn no_thread_sleeps_while_something_is_ready() {
    check(3, ready);
    for m in [Mutant::IdleCountedLate, Mutant::IdleLookedTooEarly, Mutant::WakeOnlyIfEmpty] {
        must_fail(m, 3, ready);
    }
    check(3, exchange);
    for m in [Mutant::IdleCountedLate, Mutant::IdleLookedTooEarly] {
        must_fail(m, 3, exchange);
    }
}

/// A lock with values that are left to its holder. The lock itself orders no more than a lock must.
struct Locked {
    held: AtomicBool,
    left: super::Left<u32>,
    body: UnsafeCell<(Receiver<u32>, u32)>,
}

// SAFETY: loom stops the model at the first access that nothing orders.
#[allow(unsafe_code)]
unsafe impl Sync for Locked {}

impl Locked {
    fn try_lock(&self) -> bool {
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Under the lock: does what was left, and lets go; again for what was left meanwhile.
    #[allow(unsafe_code)]
    fn hold(&self, own: u32) {
        let mut own = own;
        loop {
            self.body.with_mut(|body| {
                // SAFETY: as above.
                let (receiver, done) = unsafe { &mut *body };
                *done += own + receiver.drain().sum::<u32>();
            });
            own = 0;
            self.held.store(false, Ordering::Release);
            if mutated(Mutant::LeftNotSeen) || !self.left.any() || !self.try_lock() {
                return;
            }
        }
    }

    /// A thread that must not wait.
    fn leave_or_hold(&self, value: u32) {
        if self.try_lock() {
            return self.hold(value);
        }
        self.left.leave(value).expect("there is room");
        self.left.left();
        if self.try_lock() {
            self.hold(0);
        }
    }
}

/// A holder, and two threads that find the lock held or not: everything is done when all have gone.
fn leave() {
    let (sender, receiver) = left(2);
    let body = UnsafeCell::new((receiver, 0));
    let locked = Arc::new(Locked { held: AtomicBool::new(true), left: sender, body });
    let spawn = |value: u32| {
        let locked = locked.clone();
        thread::spawn(move || locked.leave_or_hold(value))
    };
    let threads = [spawn(1), spawn(2)];
    locked.hold(4);
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(locked.try_lock(), "not held");
    #[allow(unsafe_code)]
    // SAFETY: as above.
    let done = locked.body.with_mut(|body| unsafe { (*body).1 });
    assert_eq!(done, 7, "left, and not seen to");
}

#[test]
fn what_is_left_to_a_holder_is_done() {
    check(2, leave);
    for m in [Mutant::LeftNoFence, Mutant::LetGoNoFence, Mutant::LeftNotSeen] {
        must_fail(m, 2, leave);
    }
}

/// TCP's timer thread and a shard: what is due, and who knows of it. Time is 10 all the while.
struct Timers {
    due: Due,
    sleeper: Sleeper,
    woken: Notify,
    shard: Deadline,
    /// What the shard has to do and when, under its lock.
    has: Mutex<Option<u64>>,
    done: AtomicU32,
}

impl Timers {
    fn wake(&self) {
        if self.sleeper.wake() {
            self.woken.notify();
        }
    }

    /// As `TcpTable::run` ends.
    fn let_go(&self, has: Option<u64>) {
        let first = has.unwrap_or(u64::MAX);
        let lower = || {
            if self.due.lower(first) {
                self.wake();
            }
        };
        if mutated(Mutant::LoweredEarly) {
            lower();
            self.shard.leave(first);
        } else {
            self.shard.leave(first);
            lower();
        }
    }

    /// The thread, until it has done something.
    fn run(&self) {
        while self.done.load(Ordering::Relaxed) == 0 {
            let early = mutated(Mutant::DueTakenLate).then(|| self.shard.get());
            if self.due.take(10) {
                let at = early.unwrap_or_else(|| self.shard.get());
                if at > 10 {
                    self.due.lower(at);
                } else {
                    let mut has = self.has.lock().unwrap();
                    if has.take_if(|at| *at <= 10).is_some() {
                        self.done.store(1, Ordering::Relaxed);
                    }
                    self.let_go(*has);
                }
            }
            let early = mutated(Mutant::DueReadEarly).then(|| self.due.get());
            let announced = self.sleeper.announce();
            if early.unwrap_or_else(|| self.due.get()) <= 10 || self.done.load(Ordering::Relaxed) == 1 {
                drop(announced);
                continue;
            }
            // For ever: time does not pass. A thread that has something waits to be woken, or the model deadlocks.
            self.woken.wait();
            announced.awake();
        }
    }
}

/// A holder leaves a deadline that is due while the thread looks at the shard, or is about to sleep.
fn due(first: u64) {
    let timers = Arc::new(Timers {
        due: Due::default(),
        sleeper: Sleeper::new(),
        woken: Notify::new(),
        shard: Deadline::default(),
        has: Mutex::new(None),
        done: AtomicU32::new(0),
    });
    // What the thread was to look for, and that had been done by a packet meanwhile.
    timers.due.lower(first);
    let holder = {
        let timers = timers.clone();
        thread::spawn(move || {
            let mut has = timers.has.lock().unwrap();
            *has = Some(7);
            timers.let_go(*has);
        })
    };
    timers.run();
    holder.join().unwrap();
    assert_eq!(*timers.has.lock().unwrap(), None, "it was due, and was not done");
}

#[test]
fn no_deadline_of_tcp_is_slept_through() {
    for first in [5, 20] {
        check(3, move || due(first));
    }
    for m in [Mutant::DueTakenLate, Mutant::LoweredEarly, Mutant::DueNoFence, Mutant::DeadlineNoFence] {
        must_fail(m, 3, || due(5));
    }
    must_fail(Mutant::DueReadEarly, 3, || due(20));
}
