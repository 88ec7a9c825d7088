//! Loom models of a socket: pollers that push while it is received from, closed and used anew, look-ups while the table is
//! changed, and sleep. Slots, table, inbox and packets are the production ones; what the checker looks at beside their
//! words is a cell for each packet, which its poller writes and the receiver reads. (Region and counters are not loom's.)

// Loom's own `Arc` cannot be dropped by a model that has failed, as those with a fault must.
use std::sync::Arc;

use loom::sync::{Mutex, Notify};
use loom::thread;

use super::key::{ANY, mapped};
use super::udp::UdpInbox as Inbox;
use super::udp::output::UdpHead;
use super::*;
use crate::SoftnetData;
use crate::ip::v4::header::protocol::UDP;
use crate::skb::{Batch, CacheSizes, HeapMemory, Region, Skb};
use crate::sync::{AtomicU32, Mutant, Ordering, Sleeper, UnsafeCell, check, fence, must_fail};

const PEER: Flow =
    Flow { local: mapped(0x0a00_0001), remote: mapped(0x0a00_0002), lport: 7, rport: 9, protocol: UDP };

/// The data that each packet's poller wrote.
#[derive(Default)]
struct Payload([UnsafeCell<u32>; 4]);

// SAFETY: loom stops the model at the first access that nothing orders.
#[allow(unsafe_code)]
unsafe impl Sync for Payload {}

#[allow(unsafe_code)]
impl Payload {
    fn write(&self, skb: &Skb) {
        // SAFETY: as above.
        self.0[skb.index() as usize].with_mut(|p| unsafe { *p = skb.index() + 1 });
    }

    fn read(&self, index: u32) {
        // SAFETY: as above.
        self.0[index as usize].with_mut(|p| assert_eq!(unsafe { *p }, index + 1));
    }
}

struct Model {
    region: Arc<Region>,
    ctx: SoftnetData,
    binder: Binder,
    payload: Arc<Payload>,
    /// Contexts of pollers that have ended, to be drained when all have: the pool is no part of these models.
    ended: Arc<std::sync::Mutex<Vec<SoftnetData>>>,
}

fn context(region: &Arc<Region>) -> SoftnetData {
    SoftnetData::new(region.clone(), CacheSizes::default())
}

impl Model {
    fn new() -> Self {
        let region = Region::new(Box::new(HeapMemory::new(Region::bytes(4, 4))), 4, 4).unwrap();
        let (ctx, binder) = (context(&region), Binder::new(region.clone(), 2, 1));
        Model { region, ctx, binder, payload: Arc::default(), ended: Arc::default() }
    }

    fn open(&mut self) -> Inbox {
        let bind = Bind { local: ANY, port: 7, v4: true, v6: true, dev: None, reuseport: false, limit: 8 };
        self.binder.open(&bind).expect("no socket has it")
    }

    /// A poller pushes a packet that it found to be for the socket of `inbox`. Returns whether
    /// waiters are to be notified. (Look-up is a model of its own, so that neither grows too
    /// large.)
    fn poller(&mut self, inbox: &Inbox) -> impl FnOnce() -> bool + Send + use<> {
        let to = UdpHead { src: PEER.remote, dst: PEER.local, sport: 9, dport: 7, ttl: 1, tos: 0 };
        let mut skb = self.ctx.alloc_skb().unwrap();
        to.write(&mut skb, &[0; 14], b"").unwrap();
        let (slot, payload) = (inbox.slot().clone(), self.payload.clone());
        let generation = slot.slot().generation();
        let (mut ctx, ended) = (context(&self.region), self.ended.clone());
        move || {
            payload.write(&skb);
            let mut run = Batch::new();
            run.push(skb).unwrap();
            let pushed = slot.slot().push(&mut run, generation, 1);
            run.drain().for_each(|skb| ctx.free_skb(skb));
            ended.lock().unwrap().push(ctx);
            pushed.first || pushed.again
        }
    }

    /// Receives everything there is.
    fn receive(&mut self, inbox: &mut Inbox) -> usize {
        let mut n = 0;
        while let Some(datagram) = inbox.next(&mut self.ctx) {
            assert_eq!(*datagram.flow(), PEER);
            self.payload.read(datagram.index());
            datagram.free(&mut self.ctx);
            n += 1;
        }
        n
    }

    fn close(&mut self, inbox: Inbox) {
        let index = inbox.slot().index();
        self.binder.close(index);
        inbox.close(&mut self.ctx);
        self.binder.release(index);
    }

    /// Ends the model: all packets are home.
    fn end(mut self) {
        self.ctx.drain();
        self.ended.lock().unwrap().iter_mut().for_each(|ctx| ctx.drain());
        assert_eq!((self.region.frames_free(), self.region.heads_free()), (4, 4), "lost");
    }
}

/// Pollers push while a socket is received from, closed, and another opened in its slot: that one receives nothing
/// that was matched with the first, and nothing is lost or freed twice.
fn closed_under(pollers: usize) {
    let mut model = Model::new();
    let mut inbox = model.open();
    let pollers: Vec<_> = (0..pollers).map(|_| thread::spawn(model.poller(&inbox))).collect();
    model.receive(&mut inbox);
    model.close(inbox);
    let mut inbox = model.open();
    assert_eq!(model.receive(&mut inbox), 0, "meant for the first");
    pollers.into_iter().for_each(|poller| _ = poller.join().unwrap());
    assert_eq!(model.receive(&mut inbox), 0, "meant for the first");
    assert_eq!(inbox.slot().slot().queued(), 0);
    model.close(inbox);
    model.end();
}

#[test]
fn nothing_is_lost_or_freed_twice_when_a_socket_is_closed() {
    check(3, || closed_under(1));
    for m in [Mutant::StampNotChecked, Mutant::LeaveBlind] {
        must_fail(m, 3, || closed_under(1));
    }
    // Two preemptions take minutes, and every fault shows with one.
    check(1, || closed_under(2));
    must_fail(Mutant::StampNotChecked, 1, || closed_under(2));
}

/// Receives `n` packets, and sleeps while there are none.
fn receive_asleep(model: &mut Model, inbox: &mut Inbox, asleep: &Notify, n: usize) {
    let mut got = 0;
    while got < n {
        got += model.receive(inbox);
        let slot = inbox.slot().clone();
        let ticket = slot.slot().wait().ticket();
        if got < n && !slot.slot().readiness().readable {
            // As a futex does, which sleeps only as long as the word is what the ticket says.
            while slot.slot().wait().word().load(Ordering::Relaxed) == ticket.value() {
                asleep.wait();
            }
        }
    }
}

/// Two pollers bring a packet each to a socket whose receiver sleeps while there is none. A lost wake-up is a deadlock,
/// which loom reports.
fn asleep() {
    let mut model = Model::new();
    let mut inbox = model.open();
    let asleep = Arc::new(Notify::new());
    let pollers = [(), ()].map(|()| {
        let (poll, slot, asleep) = (model.poller(&inbox), inbox.slot().clone(), asleep.clone());
        thread::spawn(move || {
            if poll() && slot.slot().wait().notify() {
                asleep.notify();
            }
        })
    });
    receive_asleep(&mut model, &mut inbox, &asleep, 2);
    pollers.into_iter().for_each(|poller| poller.join().unwrap());
    model.close(inbox);
    model.end();
}

#[test]
fn a_receiver_that_sleeps_is_woken() {
    check(2, asleep);
    // One preemption is enough here; two take minutes.
    check(1, asleep_while_one_counts);
    for m in [Mutant::TicketNoFence, Mutant::NotifyNoFence, Mutant::NotifyUncounted, Mutant::FirstNotTold] {
        must_fail(m, 2, asleep);
    }
}

/// The same with three packets, of which one poller brings two, and the other one that it may count long after the receiver took
/// it.
fn asleep_while_one_counts() {
    let mut model = Model::new();
    let mut inbox = model.open();
    let asleep = Arc::new(Notify::new());
    let mut poll = || model.poller(&inbox);
    let pollers = [vec![poll(), poll()], vec![poll()]].map(|polls| {
        let (slot, asleep) = (inbox.slot().clone(), asleep.clone());
        thread::spawn(move || {
            for poll in polls {
                if poll() && slot.slot().wait().notify() {
                    asleep.notify();
                }
            }
        })
    });
    receive_asleep(&mut model, &mut inbox, &asleep, 3);
    pollers.into_iter().for_each(|poller| poller.join().unwrap());
    assert_eq!(inbox.slot().slot().queued(), 0);
    model.close(inbox);
    model.end();
}

/// A model of the kernel's futex, on which two threads block. Each is queued before it compares,
/// and fences as the kernel does.
#[derive(Default)]
struct Futex {
    queue: std::sync::Mutex<Vec<usize>>,
    asleep: [Notify; 2],
}

impl Futex {
    fn wait(&self, thread: usize, word: &AtomicU32, value: u32) {
        self.queue.lock().unwrap().push(thread);
        fence(Ordering::SeqCst);
        if word.load(Ordering::Relaxed) == value {
            self.asleep[thread].wait();
        }
        self.queue.lock().unwrap().retain(|other| *other != thread);
    }

    fn wake_one(&self) {
        fence(Ordering::SeqCst);
        let first = self.queue.lock().unwrap().pop();
        first.into_iter().for_each(|thread| self.asleep[thread].notify());
    }
}

/// Two datagrams arrive at once, with one notification, while two threads wait for one each.
fn one_is_woken() {
    let mut model = Model::new();
    let inbox = model.open();
    let (slot, futex) = (inbox.slot().clone(), Arc::new(Futex::default()));
    let polls = [(), ()].map(|()| model.poller(&inbox));
    let poller = {
        let (slot, futex) = (slot.clone(), futex.clone());
        thread::spawn(move || {
            let first = polls.map(|poll| poll());
            if first.contains(&true) && slot.slot().wait().notify() {
                futex.wake_one();
            }
        })
    };
    let inbox = Arc::new(Mutex::new(Some(inbox)));
    let receiver = |me: usize| {
        let (mut ctx, ended) = (context(&model.region), model.ended.clone());
        let (inbox, payload) = (inbox.clone(), model.payload.clone());
        let (slot, futex) = (slot.clone(), futex.clone());
        move || {
            let mut slept = false;
            loop {
                let next = inbox.lock().unwrap().as_mut().and_then(|inbox| inbox.next(&mut ctx));
                if let Some(datagram) = next {
                    payload.read(datagram.index());
                    datagram.free(&mut ctx);
                    break;
                }
                let ticket = slot.slot().wait().ticket();
                if !slot.slot().readiness().readable {
                    futex.wait(me, slot.slot().wait().word(), ticket.value());
                    slept = true;
                }
            }
            if slept && slot.slot().pass_on() {
                futex.wake_one();
            }
            ended.lock().unwrap().push(ctx);
        }
    };
    let other = thread::spawn(receiver(0));
    receiver(1)();
    other.join().unwrap();
    poller.join().unwrap();
    let inbox = inbox.lock().unwrap().take();
    inbox.into_iter().for_each(|inbox| model.close(inbox));
    model.end();
}

#[test]
fn one_receiver_is_woken_for_an_arrival_and_the_next_by_it() {
    check(2, one_is_woken);
    for m in [Mutant::NotPassedOn, Mutant::TicketNoFence, Mutant::NotifyNoFence] {
        must_fail(m, 2, one_is_woken);
    }
}

/// A receiver takes all that waits and hands out one while another thread looks: there is one more all the time.
fn taken_by_another() {
    let mut model = Model::new();
    let mut inbox = model.open();
    for poll in [(), ()].map(|()| model.poller(&inbox)) {
        poll();
    }
    let slot = inbox.slot().clone();
    let other = {
        let slot = slot.clone();
        thread::spawn(move || assert!(slot.slot().readiness().readable, "one is left"))
    };
    inbox.next(&mut model.ctx).expect("two wait").free(&mut model.ctx);
    other.join().unwrap();
    assert!(slot.slot().readiness().readable, "one is left");
    assert_eq!((model.receive(&mut inbox), slot.slot().readiness().readable), (1, false));
    model.close(inbox);
    model.end();
}

#[test]
fn what_a_receiver_took_others_know_of() {
    check(2, taken_by_another);
    for m in [Mutant::HeldNoFence, Mutant::HeldSaidLate] {
        must_fail(m, 2, taken_by_another);
    }
}

/// A socket is connected while a poller looks for it: it is found, before and after, and never missed between.
fn connected_under_a_poller() {
    let mut model = Model::new();
    let inbox = model.open();
    let (sockets, index) = (model.binder.sockets().clone(), inbox.slot().index());
    let poller = thread::spawn(move || match sockets.lookup(&PEER, 0) {
        Found::Socket(hit) => assert_eq!(hit.slot, index),
        Found::None => panic!("it was there all the time"),
        Found::Contended => {}
    });
    model.binder.connect(index, PEER.local, PEER.remote, PEER.rport);
    poller.join().unwrap();
    model.close(inbox);
    model.end();
}

/// The same of one that is disconnected.
fn disconnected_under_a_poller() {
    let mut model = Model::new();
    let inbox = model.open();
    let (sockets, index) = (model.binder.sockets().clone(), inbox.slot().index());
    model.binder.connect(index, PEER.local, PEER.remote, PEER.rport);
    let poller = thread::spawn(move || match sockets.lookup(&PEER, 0) {
        Found::Socket(hit) => assert_eq!(hit.slot, index),
        Found::None => panic!("it was there all the time"),
        Found::Contended => {}
    });
    assert_eq!(model.binder.disconnect(index).map(|(_, local)| local), Ok(ANY));
    poller.join().unwrap();
    model.close(inbox);
    model.end();
}

/// A slot is closed and opened for another key while a poller looks for a third, of which each of the two has a part.
fn used_anew_under_a_poller() {
    let mut model = Model::new();
    // One slot, and one chain.
    model.binder = Binder::new(model.region.clone(), 1, 1);
    let bind = |local, port| Bind { local, port, v4: true, v6: true, dev: None, reuseport: false, limit: 8 };
    let inbox = model.binder.open(&bind(PEER.local, 8)).unwrap();
    let sockets = model.binder.sockets().clone();
    let poller = thread::spawn(move || {
        let found = sockets.find_exact(&Key::bound(UDP, PEER.local, PEER.lport));
        assert_eq!(found, None, "neither had this key, of which each has a part");
    });
    model.close(inbox);
    let inbox = model.binder.open(&bind(ANY, PEER.lport)).unwrap();
    poller.join().unwrap();
    model.close(inbox);
    model.end();
}

#[test]
fn look_ups_find_what_is_there_and_nothing_else() {
    for model in [connected_under_a_poller, disconnected_under_a_poller] {
        check(2, model);
        must_fail(Mutant::VersionNotChecked, 2, model);
    }
    check(2, used_anew_under_a_poller);
    must_fail(Mutant::GenerationNotChecked, 2, used_anew_under_a_poller);
}

/// A poller changes what a socket is ready for while a set's thread, which was told of it before, looks. What the thread has
/// not seen is on the list.
fn watched() {
    let (list, mut items) = ReadyItems::new();
    list.reserve(0);
    list.notify(0);
    let slot = Arc::new((AtomicU32::new(0), Wait::default()));
    let poller = {
        let (list, slot) = (list.clone(), slot.clone());
        thread::spawn(move || {
            slot.0.store(1, Ordering::Relaxed);
            slot.1.notify();
            list.notify(0);
        })
    };
    let mut seen = 0;
    items.drain(|index| {
        list.unmark(index);
        seen = slot.0.load(Ordering::Relaxed);
    });
    poller.join().unwrap();
    assert!(seen == 1 || items.has_pending(), "not seen, and nothing more to see");
}

#[test]
fn a_set_misses_no_change() {
    check(3, watched);
    for m in [Mutant::UnmarkNoFence, Mutant::NotifyNoFence] {
        must_fail(m, 3, watched);
    }
}

/// Two sets watch a socket exclusively. The thread of the first waits, and does not come back when it is woken for what comes
/// first; the other's waits for two datagrams, which come in a run each. A wake-up that is lost, or wasted on the first once
/// more, is a deadlock.
fn exclusive() {
    let mut model = Model::new();
    let mut inbox = model.open();
    let slot = inbox.slot().clone();
    slot.slot().watch_exclusively();
    let [(first, _first_items), (second, mut items)] = [(); 2].map(|()| ReadyItems::new());
    let sleepers = Arc::new([(); 2].map(|()| (Sleeper::new(), Notify::new())));
    [&first, &second].into_iter().for_each(|list| list.reserve(0));
    sleepers[0].0.arm();
    let polls = [(), ()].map(|()| model.poller(&inbox));
    let poller = {
        let (sleepers, lists) = (sleepers.clone(), [first, second.clone()]);
        thread::spawn(move || {
            for poll in polls {
                if poll() {
                    slot.slot().wait().notify();
                    let sets = lists.iter().zip(&*sleepers);
                    let told = sets.map(|(list, (sleeper, _))| Exclusive { list, index: 0, sleeper });
                    notify_exclusive(told).into_iter().for_each(|place| sleepers[place].1.notify());
                }
            }
        })
    };
    let mut got = 0;
    while got < 2 {
        items.drain(|index| second.unmark(index));
        got += model.receive(&mut inbox);
        let announced = sleepers[1].0.announce();
        if got < 2 && !items.has_pending() {
            sleepers[1].1.wait();
        }
        drop(announced);
    }
    poller.join().unwrap();
    model.close(inbox);
    model.end();
}

#[test]
fn a_set_whose_thread_hangs_keeps_nothing_from_the_others() {
    check(2, exclusive);
    for m in [Mutant::ExclusiveStops, Mutant::AgainNotTold, Mutant::WakeNoFence, Mutant::AnnounceNoFence] {
        must_fail(m, 2, exclusive);
    }
}
