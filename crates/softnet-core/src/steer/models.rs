//! Loom models of a backlog: threads that push to it, the instance that polls it, its end, and
//! flows that leave it. Backlog, packets, instance and flow table are the production ones. (Region
//! and counters are not loom's.)

// Loom's own `Arc` cannot be dropped by a model that has failed, as those with a fault must.
use std::sync::{Arc, Mutex};

use loom::thread::{self, JoinHandle};

use super::rfs::{Choice, FlowTable};
use super::{Backlog, BacklogQueue};
use crate::SoftnetData;
use crate::napi::{Completion, Napi, Scheduled};
use crate::skb::{Batch, CacheSizes, HeapMemory, Region, Skb};
use crate::sync::{AtomicU32, Mutant, Ordering, check, must_fail};

/// What is known of each packet: its sender wrote to it, and a worker has processed it. Relaxed, so
/// that it is up to the backlog to order them.
#[derive(Default)]
pub(super) struct Packet {
    written: AtomicU32,
    processed: AtomicU32,
}

pub(super) struct Model {
    pub(super) region: Arc<Region>,
    ctx: SoftnetData,
    pub(super) packets: Arc<[Packet; 4]>,
    /// Packets that are done with, to be freed when all threads have ended: the pool is no part of
    /// these models.
    ended: Arc<Mutex<Vec<Skb>>>,
}

/// What a worker does.
#[derive(Clone)]
pub(super) struct Processing(Arc<[Packet; 4]>, Arc<Mutex<Vec<Skb>>>);

impl Processing {
    pub(super) fn packets(&self) -> &[Packet; 4] {
        &self.0
    }

    /// Takes up to `budget` packets and processes them. Returns how many.
    fn poll(&self, queue: &mut BacklogQueue, budget: usize) -> usize {
        let mut batch = Batch::new();
        let n = queue.take(&mut batch, budget);
        batch.drain().for_each(|skb| self.process(skb));
        queue.done();
        n
    }

    fn process(&self, skb: Skb) {
        let packet = &self.0[skb.head().hash as usize];
        assert_eq!(packet.written.load(Ordering::Relaxed), 1, "not as it was sent");
        assert_eq!(packet.processed.swap(1, Ordering::Relaxed), 0, "twice");
        self.1.lock().unwrap().push(skb);
    }
}

impl Model {
    pub(super) fn new() -> Self {
        let region = Region::new(Box::new(HeapMemory::new(Region::bytes(4, 4))), 4, 4).unwrap();
        let ctx = SoftnetData::new(region.clone(), CacheSizes::default());
        Model { region, ctx, packets: Arc::default(), ended: Arc::default() }
    }

    pub(super) fn processing(&self) -> Processing {
        Processing(self.packets.clone(), self.ended.clone())
    }

    /// A batch of the packet with this number, for a thread that [writes](Self::written) it.
    pub(super) fn packet(&mut self, number: u32) -> Batch {
        let mut skb = self.ctx.alloc_skb().unwrap();
        skb.head_mut().hash = number;
        Batch::from(skb)
    }

    pub(super) fn is_processed(&self, number: usize) -> bool {
        self.packets[number].processed.load(Ordering::Relaxed) == 1
    }

    /// All threads have ended.
    pub(super) fn end(mut self, backlog: &Backlog) {
        assert_eq!((backlog.head(), backlog.len()), (backlog.tail(), 0));
        let ended = std::mem::take(&mut *self.ended.lock().unwrap());
        ended.into_iter().for_each(|skb| self.ctx.free_skb(skb));
        self.ctx.drain();
        assert_eq!((self.region.frames_free(), self.region.heads_free()), (4, 4), "lost");
    }
}

pub(super) fn write(packets: &[Packet; 4], batch: &Batch) {
    batch
        .as_slice()
        .iter()
        .for_each(|skb| packets[skb.head().hash as usize].written.store(1, Ordering::Relaxed));
}

/// Polls until completion releases. Returns how often something was pending that had not been
/// before.
pub(super) fn serve(mut napi: Scheduled<Option<BacklogQueue>>, processing: &Processing) -> u32 {
    let mut found = 0;
    loop {
        let queue = napi.body().rx.as_mut().expect("open");
        let mut all = 0;
        loop {
            let is_new = !queue.has_rest();
            let n = processing.poll(queue, 1);
            if n == 0 {
                break;
            }
            found += u32::from(is_new);
            all += n;
        }
        match napi.complete(all, |_, _| ()) {
            Completion::Again(again) => napi = again,
            Completion::Released(_) => return found,
        }
    }
}

/// Threads push; the one that finds the backlog empty has the instance polled. As often as the
/// owner finds something, one is told; and nothing is left behind.
fn wake_up(threads: u32) {
    let mut model = Model::new();
    let (backlog, queue) = Backlog::new(&model.region, 4);
    let (napi, disabled) = Napi::new("model", 0, 0, Some(queue));
    let Completion::Released(_) = disabled.enable().complete(0, |_, _| ()) else { panic!("no other thread") };
    let (told, found) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut push = |number| {
        let mut batch = model.packet(number);
        let (packets, processing) = (model.packets.clone(), model.processing());
        let (backlog, napi, told, found) = (backlog.clone(), napi.clone(), told.clone(), found.clone());
        move || {
            write(&packets, &batch);
            if backlog.push(&mut batch).expect("open").was_empty {
                told.fetch_add(1, Ordering::Relaxed);
                if let Some(napi) = napi.schedule_prep() {
                    found.fetch_add(serve(napi, &processing), Ordering::Relaxed);
                }
            }
        }
    };
    let others: Vec<_> = (1..threads).map(|number| thread::spawn(push(number))).collect();
    push(0)();
    others.into_iter().for_each(|thread| thread.join().unwrap());
    assert!((0..threads).all(|number| model.is_processed(number as usize)), "left behind");
    assert_eq!(told.load(Ordering::Relaxed), found.load(Ordering::Relaxed), "told and found");
    let mut napi = napi.schedule_prep().expect("idle");
    napi.body().rx.take().expect("open").close(|_| panic!("left behind"));
    model.end(&backlog);
}

#[test]
fn one_thread_is_told_each_time_and_none_in_vain() {
    check(3, || wake_up(2));
    check(2, || wake_up(3));
    // Told the second in place of the first, two threads would do as well.
    must_fail(Mutant::FirstNotTold, 1, || wake_up(3));
    for m in [Mutant::MissedIgnored, Mutant::PushRelaxed, Mutant::DetachRelaxed] {
        must_fail(m, 3, || wake_up(2));
    }
}

/// A worker goes away while two threads push: what they pushed it processed, or freed at its end,
/// or they still have it.
fn goes_away() {
    let mut model = Model::new();
    let (backlog, mut queue) = Backlog::new(&model.region, 4);
    let mut push = |number| {
        let mut batch = model.packet(number);
        let (packets, backlog) = (model.packets.clone(), backlog.clone());
        let back = model.ended.clone();
        thread::spawn(move || {
            write(&packets, &batch);
            let refused = backlog.push(&mut batch).is_err();
            assert_eq!(refused, !batch.is_empty());
            // The thread goes on with it by itself.
            back.lock().unwrap().extend(batch.drain());
            refused
        })
    };
    let pushers: Vec<JoinHandle<bool>> = vec![push(0), push(1)];
    let processing = model.processing();
    let mut ended = processing.poll(&mut queue, 1);
    queue.close(|skb| {
        ended += 1;
        processing.process(skb);
    });
    let refused = pushers.into_iter().map(|thread| thread.join().unwrap()).filter(|refused| *refused).count();
    assert_eq!(ended + refused, 2, "lost");
    assert!(backlog.is_done(backlog.tail() + 1), "there is nothing to wait for");
    model.end(&backlog);
}

#[test]
fn nothing_is_lost_when_a_worker_goes_away() {
    check(3, goes_away);
    for m in [Mutant::LeaveBlind, Mutant::PushRelaxed] {
        must_fail(m, 3, goes_away);
    }
}

/// A device is closed: no thread brings packets of it any more. When the backlog has come to the
/// tail of that moment, its packet has been processed, whatever another device's thread pushes
/// meanwhile.
fn unregister() {
    let mut model = Model::new();
    let (backlog, mut queue) = Backlog::new(&model.region, 4);
    let mut batch = model.packet(0);
    write(&model.packets, &batch);
    backlog.push(&mut batch).expect("open");
    let other = thread::spawn({
        let (mut batch, packets, backlog) = (model.packet(1), model.packets.clone(), backlog.clone());
        move || {
            write(&packets, &batch);
            backlog.push(&mut batch).expect("open");
        }
    });
    let worker = thread::spawn({
        let processing = model.processing();
        move || {
            processing.poll(&mut queue, 1);
            queue
        }
    });
    let tail = backlog.tail();
    if backlog.is_done(tail) {
        assert!(model.is_processed(0), "a packet of a device that is gone");
    }
    other.join().unwrap();
    let queue = worker.join().unwrap();
    let processing = model.processing();
    queue.close(|skb| processing.process(skb));
    assert!(backlog.is_done(tail));
    model.end(&backlog);
}

#[test]
fn a_device_that_was_flushed_has_no_packet_left() {
    check(3, unregister);
    for m in [Mutant::HeadBeforeWork, Mutant::HeadNotReleased, Mutant::HeadRelaxed] {
        must_fail(m, 3, unregister);
    }
}

/// A thread puts a flow's packet on a backlog that another thread pushes to as well. When it may
/// send the flow elsewhere, the packet has been processed.
fn moves() {
    let mut model = Model::new();
    let (backlog, mut queue) = Backlog::new(&model.region, 4);
    let other = thread::spawn({
        let (mut batch, packets, backlog) = (model.packet(1), model.packets.clone(), backlog.clone());
        move || {
            write(&packets, &batch);
            backlog.push(&mut batch).expect("open");
        }
    });
    let worker = thread::spawn({
        let processing = model.processing();
        move || {
            processing.poll(&mut queue, 1);
            queue
        }
    });
    let mut batch = model.packet(0);
    write(&model.packets, &batch);
    let tail = backlog.push(&mut batch).expect("open").tail;
    if backlog.is_done(tail) {
        assert!(model.is_processed(0), "overtaken");
    }
    other.join().unwrap();
    let queue = worker.join().unwrap();
    let processing = model.processing();
    queue.close(|skb| processing.process(skb));
    assert!(backlog.is_done(tail), "it may move in the end");
    model.end(&backlog);
}

#[test]
fn a_flow_that_moves_does_not_overtake_itself() {
    check(3, moves);
    for m in [
        Mutant::TailReadEarly,
        Mutant::TailCountedLate,
        Mutant::TailNoFence,
        Mutant::HeadBeforeWork,
        Mutant::HeadNotReleased,
        Mutant::HeadRelaxed,
    ] {
        must_fail(m, 3, moves);
    }
}

/// Two packets of a flow in one batch, whose consumer went elsewhere, while the worker comes to the
/// end of its backlog.
fn in_one_batch() {
    let mut model = Model::new();
    let (backlog, mut queue) = Backlog::new(&model.region, 4);
    let mut table = FlowTable::new(1);
    let mut tails = [0, 0];
    let choose = |table: &mut FlowTable, tails: &[u64; 2], wanted| {
        let is_done = |worker, tail| worker != 0 || backlog.is_done(tail);
        table.choose(7, &Choice { rps: 1, wanted: Some(wanted), tails, is_done })
    };
    table.begin();
    assert_eq!(choose(&mut table, &tails, 0), 0);
    let mut batch = model.packet(0);
    write(&model.packets, &batch);
    tails[0] = backlog.push(&mut batch).expect("open").tail;
    table.end(&tails);
    let worker = thread::spawn({
        let processing = model.processing();
        move || {
            processing.poll(&mut queue, 1);
            queue
        }
    });
    table.begin();
    let both = [(); 2].map(|()| choose(&mut table, &tails, 1));
    assert_eq!(both[0], both[1], "the first is on no backlog yet");
    worker.join().unwrap().close(|_| panic!("there was one"));
    model.end(&backlog);
}

#[test]
fn packets_of_one_batch_go_one_way() {
    check(3, in_one_batch);
    must_fail(Mutant::BatchNotPinned, 3, in_one_batch);
}
