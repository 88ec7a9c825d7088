//! Loom model of a queue that collects no more than its target takes: the instance that polls it holds
//! back while the backlog has no room, and the backlog's owner drains that meanwhile. Instances,
//! mitigation and backlog are the production ones; around them is what a device and a runtime are.

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};

use loom::thread::{self, JoinHandle};

use super::models::{Model, Processing, serve, write};
use super::{Backlog, BacklogQueue};
use crate::napi::{Completion, Napi, Scheduled};
use crate::skb::{BATCH, Batch};
use crate::sync::{AtomicBool, AtomicU32, Mutant, Ordering, check, fence, must_fail, mutated};

/// Packets that arrive.
const PACKETS: u32 = 2;

/// A device's queue whose packets all go to one backlog. Polls bring a packet each.
struct Queue {
    /// Its body is the number of packets that were collected.
    napi: Napi<u32>,
    /// Packets that arrived, and those that were not collected.
    ring: AtomicU32,
    waiting: Mutex<Vec<Batch>>,
    unmasked: AtomicBool,
    armed: AtomicBool,
    backlog: Arc<Backlog>,
    owner: Napi<Option<BacklogQueue>>,
    processing: Processing,
    /// Threads of the backlog's worker, one for each time that it was told.
    workers: Mutex<Vec<JoinHandle<()>>>,
}

fn idle<T>(body: T) -> Napi<T> {
    let (napi, disabled) = Napi::new("model", 0, 0, body);
    let Completion::Released(_) = disabled.enable().complete(0, |_, _| ()) else { panic!("no other thread") };
    napi
}

impl Queue {
    fn new(model: &mut Model) -> Arc<Self> {
        // A list gets in if there is nothing.
        let (backlog, queue) = Backlog::new(&model.region, BATCH);
        let batches = (0..PACKETS).rev().map(|number| model.packet(number));
        Arc::new(Queue {
            waiting: Mutex::new(batches.collect()),
            napi: idle(0),
            ring: AtomicU32::new(0),
            unmasked: AtomicBool::new(true),
            armed: AtomicBool::new(false),
            backlog,
            owner: idle(Some(queue)),
            processing: model.processing(),
            workers: Mutex::default(),
        })
    }

    /// A packet arrives; it rings if the doorbell is unmasked, which masks and schedules.
    fn arrive(&self) {
        self.ring.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.unmasked.swap(false, Ordering::Relaxed) {
            self.run(self.napi.schedule_prep());
        }
    }

    /// The timer fires, if it is armed.
    fn fire(&self) {
        if self.armed.swap(false, Ordering::Relaxed) {
            self.run(self.napi.watchdog());
        }
    }

    /// A softirq run: polls until completion releases, and tells the backlog's worker.
    fn run(&self, mut owned: Option<Scheduled<u32>>) {
        let (mut tell, mut held) = (false, false);
        while let Some(mut scheduled) = owned.take() {
            let body = scheduled.body();
            held = !self.backlog.has_room();
            body.mitigation.hold(NonZeroU64::new(u64::from(held)));
            let seen = body.rx;
            if !held && self.ring.load(Ordering::Relaxed) > seen {
                body.rx += 1;
                let mut batch = self.waiting.lock().unwrap().pop().expect("there are as many");
                write(self.processing.packets(), &batch);
                tell |= self.backlog.push(&mut batch).expect("open").was_empty;
                // As much as a poll may bring: it is polled again.
                owned = Some(scheduled);
                continue;
            }
            match scheduled.complete(0, |_, _| ()) {
                Completion::Again(again) => owned = Some(again),
                Completion::Released(released) => {
                    if released.timer.is_some() {
                        self.armed.swap(true, Ordering::Relaxed);
                    }
                    if released.unmask {
                        self.unmasked.swap(true, Ordering::Relaxed);
                        fence(Ordering::SeqCst);
                        if self.ring.load(Ordering::Relaxed) != seen {
                            self.unmasked.swap(false, Ordering::Relaxed);
                            owned = self.napi.schedule_prep();
                        }
                    }
                }
            }
        }
        if tell && !(held && mutated(Mutant::HeldNotTold)) {
            self.tell();
        }
    }

    /// Has the backlog's worker poll it.
    fn tell(&self) {
        let Some(scheduled) = self.owner.schedule_prep() else { return };
        let processing = self.processing.clone();
        let worker = thread::spawn(move || _ = serve(scheduled, &processing));
        self.workers.lock().unwrap().push(worker);
    }

    fn join_workers(&self) {
        let workers = std::mem::take(&mut *self.workers.lock().unwrap());
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    }
}

/// Packets arrive while the worker drains its backlog, and the timer fires at any moment. In the end
/// all were processed, and the doorbell rings again.
fn holds_back() {
    let mut model = Model::new();
    let queue = Queue::new(&mut model);
    let wire = thread::spawn({
        let queue = queue.clone();
        move || (0..PACKETS).for_each(|_| queue.arrive())
    });
    queue.fire();
    wire.join().unwrap();
    for _ in 0..=PACKETS {
        queue.join_workers();
        queue.fire();
    }
    queue.join_workers();
    let all = (0..PACKETS).all(|number| model.is_processed(number as usize));
    assert!(all, "stuck in the ring, or on the backlog");
    assert!(queue.unmasked.load(Ordering::Relaxed), "the doorbell stays masked");
    assert!(!queue.armed.load(Ordering::Relaxed), "polled for nothing, for ever");
    let mut owner = queue.owner.schedule_prep().expect("idle");
    owner.body().rx.take().expect("open").close(|_| panic!("left behind"));
    drop(owner);
    let backlog = queue.backlog.clone();
    drop(queue);
    model.end(&backlog);
}

#[test]
fn a_queue_that_holds_back_goes_on_when_there_is_room() {
    check(3, holds_back);
    for m in [
        Mutant::HoldUntimed,
        Mutant::HeadNotMoved,
        Mutant::HeldNotTold,
        Mutant::MissedIgnored,
        Mutant::FirstNotTold,
    ] {
        must_fail(m, 3, holds_back);
    }
}
