//! Loom models of deferred enqueue, each with the faults that it must notice. The discipline, the packets and their
//! heads are the production ones; what the checker looks at is the body of the TX queue, and a cell for each packet,
//! which its sender writes and the ring reads.

// Loom's own `Arc` cannot be dropped by a model that has failed, as those with a fault must.
use std::sync::Arc;

use loom::thread;

use super::*;
use crate::skb::{CacheSizes, HeapMemory, Region, Store};
use crate::sync::{AtomicU32, Mutant, Ordering, UnsafeCell, check, fence, must_fail};

/// What a packet's sender wrote.
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

    fn read(&self, skb: &Skb) {
        // SAFETY: as above.
        self.0[skb.index() as usize].with_mut(|p| assert_eq!(unsafe { *p }, skb.index() + 1));
    }
}

/// What was sent, in order. The packets stay here, so that none is sent twice.
struct Wire {
    payload: Arc<Payload>,
    sent: Vec<Skb>,
    closed: bool,
}

impl Ring<()> for Wire {
    fn avail(&mut self, (): &mut ()) -> Quota {
        Quota::BATCH
    }

    fn xmit(&mut self, (): &mut (), batch: &mut Batch) -> (usize, u64) {
        assert!(!self.closed, "the ring was closed");
        let before = self.sent.len();
        for skb in batch.drain() {
            self.payload.read(&skb);
            self.sent.push(skb);
        }
        let sent = &self.sent[before..];
        (sent.len(), sent.iter().map(|skb| skb.len() as u64).sum())
    }
}

struct Model {
    store: Store,
    list: Arc<DeferList<Wire>>,
    payload: Arc<Payload>,
}

impl Model {
    fn new(spec: &str, burst: u32) -> Self {
        let region = Region::new(Box::new(HeapMemory::new(Region::bytes(4, 4))), 4, 4).unwrap();
        let payload = Arc::new(Payload::default());
        let wire = Wire { payload: payload.clone(), sent: Vec::new(), closed: false };
        let qdisc =
            spec.parse::<Spec>().unwrap().build(&DevParams { mtu: 1500, tx_queue_len: 1000 }).unwrap();
        let list = Arc::new(DeferList::new(&region, qdisc, wire, burst));
        Model { store: Store::new(region, CacheSizes::default()), list, payload }
    }

    /// A sender of `batches`, one after the other: what became of each, and what it has to free.
    fn sender(
        &mut self,
        batches: &[usize],
        origin: Origin,
    ) -> impl FnOnce() -> (Vec<Sent>, ToFree) + Send + use<> {
        let (list, payload) = (self.list.clone(), self.payload.clone());
        let skbs = batches.iter().map(|n| (0..*n).map(|_| self.store.alloc_skb().unwrap()).collect());
        let batches: Vec<Vec<Skb>> = skbs.collect();
        move || {
            let (mut results, mut to_free) = (Vec::new(), ToFree::new());
            for skbs in batches {
                let mut batch = Batch::new();
                for skb in skbs {
                    payload.write(&skb);
                    batch.push(skb).unwrap();
                }
                let sent = list.send(&mut (), 0, origin, &mut batch, &mut to_free);
                assert!(batch.is_empty());
                if let Sent::Owned { mut next_run, .. } = sent {
                    while next_run == NextRun::Again {
                        next_run = list.run(&mut (), 0, &mut to_free).unwrap_or(NextRun::Idle);
                    }
                }
                results.push(sent);
            }
            (results, to_free)
        }
    }

    /// Ends the model: indices of the packets that were sent, in order, after all packets were accounted for.
    fn end(mut self, dropped: impl IntoIterator<Item = ToFree>) -> Vec<u32> {
        let mut guard = self.list.own().expect("all threads have let go");
        let sent = std::mem::take(&mut guard.ring().sent);
        let mut late = ToFree::new();
        assert_eq!(guard.finish(&mut (), 0, &mut late), NextRun::Idle);
        let order: Vec<u32> = sent.iter().map(Skb::index).collect();
        let mut all = order.clone();
        sent.into_iter().for_each(|skb| self.store.free_skb(skb));
        for mut to_free in dropped.into_iter().chain([late]) {
            while let Some((skb, _)) = to_free.pop() {
                all.push(skb.index());
                self.store.free_skb(skb);
            }
        }
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3], "lost, or in two places");
        order
    }
}

/// Two senders: one with two packets one by one, one with two at once. Everything is sent, once, each sender's in its
/// order; a sender that did not own it had an owner that took its packet.
fn send(spec: &str) {
    let mut model = Model::new(spec, 1000);
    let (one, other) = (model.sender(&[1, 1], Origin::Local), model.sender(&[2], Origin::Local));
    let other = thread::spawn(other);
    let (results, to_free) = one();
    let (more, dropped) = other.join().unwrap();
    let owned = results.iter().chain(&more).filter(|sent| matches!(sent, Sent::Owned { .. })).count();
    assert!(owned >= 1 && to_free.is_empty() && dropped.is_empty());
    in_order(&model.end([to_free, dropped]));
}

/// Asserts that the packets of two senders with two each were sent in each one's order.
fn in_order(order: &[u32]) {
    // Heads are handed out from the cache, the last one first.
    for pair in [[3, 2], [1, 0]] {
        let sent = order.iter().filter(|i| pair.contains(i));
        assert!(sent.is_sorted_by(|a, b| a > b), "not in order: {order:?}");
    }
}

#[test]
fn senders_lose_nothing_and_keep_their_order() {
    check(5, || send("pfifo"));
    check(4, || send("noqueue"));
    for m in [Mutant::LeaveBlind, Mutant::LeaveRelaxed, Mutant::PushRelaxed, Mutant::DetachRelaxed] {
        must_fail(m, 3, || send("pfifo"));
    }
    must_fail(Mutant::NotReversed, 3, || send("pfifo"));
}

/// An owner and two senders that come to it, with a bound of one: the owner parks when it has taken a packet and
/// there is another, and what finds the list full is dropped, as forwarded packets are.
fn bounded() {
    let mut model = Model::new("pfifo", 1);
    let mut to_free = ToFree::new();
    let list = model.list.clone();
    let guard = list.own().expect("free");
    let threads = [&[1, 1][..], &[1, 1]].map(|b| thread::spawn(model.sender(b, Origin::Forwarded)));
    thread::yield_now();
    let mut next_run = guard.finish(&mut (), 0, &mut to_free);
    while next_run == NextRun::Again {
        next_run = list.run(&mut (), 0, &mut to_free).unwrap_or(NextRun::Idle);
    }
    assert!(to_free.is_empty());
    let (mut dropped, mut full) = (Vec::new(), 0);
    for thread in threads {
        let (results, to_free) = thread.join().unwrap();
        full += results.iter().filter(|sent| **sent == Sent::Full).count();
        dropped.push(to_free);
    }
    assert_eq!(full, dropped.iter().map(ToFree::len).sum::<usize>(), "told of each drop");
    in_order(&model.end(dropped));
}

/// The same, where one of the senders has what waited for a neighbour: it is never told that the list is full.
fn held() {
    let mut model = Model::new("pfifo", 1);
    let mut to_free = ToFree::new();
    let list = model.list.clone();
    let guard = list.own().expect("free");
    let held = thread::spawn(model.sender(&[1, 1], Origin::Held));
    let forwarded = thread::spawn(model.sender(&[1, 1], Origin::Forwarded));
    thread::yield_now();
    let mut next_run = guard.finish(&mut (), 0, &mut to_free);
    while next_run == NextRun::Again {
        next_run = list.run(&mut (), 0, &mut to_free).unwrap_or(NextRun::Idle);
    }
    let (results, none) = held.join().unwrap();
    assert!(none.is_empty() && !results.contains(&Sent::Full), "held back");
    let (results, dropped) = forwarded.join().unwrap();
    assert_eq!(results.iter().filter(|sent| **sent == Sent::Full).count(), dropped.len());
    in_order(&model.end([to_free, none, dropped]));
}

#[test]
fn what_was_held_is_taken_beyond_the_bound() {
    check(3, held);
    for m in [Mutant::PushRelaxed, Mutant::ParkRelaxed, Mutant::OwnBeforePending] {
        must_fail(m, 3, held);
    }
}

#[test]
fn a_bounded_list_drops_only_what_it_said_and_parked_ownership_is_taken_up() {
    check(3, bounded);
    for m in [Mutant::ParkRelaxed, Mutant::UnparkNotAtomic, Mutant::OwnBeforePending] {
        must_fail(m, 3, bounded);
    }
}

/// Three senders, while one packet may be pending. A sender that is held back counts itself, as the runtime has it,
/// and looks once more: there is room by then, or the thread that makes some finds it counted.
fn held_back() {
    let mut model = Model::new("pfifo", 1);
    let waiting = Arc::new(AtomicU32::new(0));
    let mut sender = |n: usize| {
        let (list, payload, waiting) = (model.list.clone(), model.payload.clone(), waiting.clone());
        let skbs: Vec<Skb> = (0..n).map(|_| model.store.alloc_skb().unwrap()).collect();
        move || {
            let (mut batch, mut to_free) = (Batch::new(), ToFree::new());
            for skb in skbs {
                payload.write(&skb);
                batch.push(skb).unwrap();
            }
            let (mut waits, mut told) = (false, false);
            let mut tell = || {
                fence(Ordering::SeqCst);
                told |= waiting.load(Ordering::Relaxed) > 0;
            };
            match list.send(&mut (), 0, Origin::Local, &mut batch, &mut to_free) {
                Sent::Owned { mut next_run, drained, .. } => {
                    if drained {
                        tell();
                    }
                    while next_run == NextRun::Again {
                        next_run = list.run(&mut (), 0, &mut to_free).map_or(NextRun::Idle, |next_run| {
                            tell();
                            next_run
                        });
                    }
                }
                Sent::Deferred => {}
                Sent::Full => {
                    waiting.fetch_add(1, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    waits = list.is_full();
                    to_free.push_batch(&mut batch, DropReason::QdiscBurstDrop);
                }
            }
            (waits, told, to_free)
        }
    };
    let senders = [sender(2), sender(1), sender(1)];
    let [first, others @ ..] = senders;
    let others = others.map(thread::spawn);
    let mut done = vec![first()];
    done.extend(others.map(|thread| thread.join().unwrap()));
    let (waits, told) = (done.iter().any(|(waits, ..)| *waits), done.iter().any(|(_, told, _)| *told));
    assert!(!waits || told, "there is room, and no thread says so");
    model.end(done.into_iter().map(|(.., to_free)| to_free));
}

#[test]
fn a_sender_held_back_is_told_of_room() {
    check(3, held_back);
    must_fail(Mutant::DrainNotSaid, 2, held_back);
}

/// Two senders, and a third thread that deactivates and closes the ring: each packet is sent before, or dropped once.
fn deactivate() {
    let mut model = Model::new("pfifo", 1000);
    let threads = [[2], [2]].map(|batches| thread::spawn(model.sender(&batches, Origin::Local)));
    let mut to_free = ToFree::new();
    model.list.deactivate();
    let mut closed = false;
    let mut close = |to_free: &mut ToFree| {
        if let Some(mut guard) = model.list.own() {
            guard.ring().closed = true;
            assert_eq!(guard.finish(&mut (), 0, to_free), NextRun::Idle);
            closed = true;
        }
    };
    close(&mut to_free);
    let mut dropped: Vec<_> = threads.into_iter().map(|t| t.join().unwrap().1).collect();
    if !closed {
        let guard = model.list.own().expect("the last owner has let go");
        assert_eq!(guard.finish(&mut (), 0, &mut to_free), NextRun::Idle);
    }
    dropped.push(to_free);
    model.end(dropped);
}

#[test]
fn deactivation_drops_each_packet_once_and_closes_the_ring() {
    check(3, deactivate);
    for m in [Mutant::LeaveRelaxed, Mutant::PushRelaxed, Mutant::DetachRelaxed, Mutant::DeactivatedNotSeen] {
        must_fail(m, 3, deactivate);
    }
}
