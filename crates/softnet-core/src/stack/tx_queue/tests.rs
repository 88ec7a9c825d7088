//! Owners that panic.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::*;
use crate::skb::{CacheSizes, Flags, HEADROOM, HeapMemory};

/// Marks the child process of a test.
const CHILD: &str = "SOFTNET_TEST_CHILD";

const SIGABRT: i32 = 6;

/// A ring that breaks, or takes nothing.
struct Broken(bool);

impl TxQueue for Broken {
    fn reap(&mut self, _: &mut SoftnetData) -> Reaped {
        Reaped { freed: 0, held: 0, room: BATCH }
    }

    fn tx_burst(&mut self, _: &mut SoftnetData, _: &mut Batch) -> usize {
        assert!(!self.0, "a bug");
        0
    }

    fn kick(&mut self, _: &mut SoftnetData) -> bool {
        false
    }

    fn stats(&self) -> Arc<QueueStats> {
        Arc::default()
    }

    fn held(&self) -> usize {
        0
    }

    fn close(self: Box<Self>, _: &mut SoftnetData) {}
}

/// No thread waits.
#[derive(Default)]
struct Nothing {
    /// Packets whose senders were told that there was no room.
    told: AtomicUsize,
}

impl TxWake for Nothing {
    fn run_at(&self, _: u64) {}
    fn made_room(&self) {}
    fn dropped(&self, _: &Skb, reason: DropReason) {
        assert_eq!(reason, DropReason::FullRing);
        self.told.fetch_add(1, Ordering::Relaxed);
    }
}

fn queue(breaks: bool) -> (Arc<NetdevQueue<Nothing>>, SoftnetData) {
    let memory = Box::new(HeapMemory::new(Region::bytes(64, 64)));
    let region = Region::new(memory, 64, 64).unwrap();
    let queue = NetdevQueue::new(&region, 0, None, Box::new(Broken(breaks)), 8, Nothing::default());
    (Arc::new(queue), SoftnetData::new(region, CacheSizes::default()))
}

fn send(queue: &NetdevQueue<Nothing>, ctx: &mut SoftnetData) {
    let frame = ctx.alloc_frame().unwrap();
    let mut batch = Batch::new();
    batch.push(ctx.build_skb(frame, HEADROOM, 60).unwrap_or_else(|_| panic!("no head"))).unwrap();
    queue.xmit(ctx, 0, Origin::Local, &mut batch);
}

/// An application's thread panics while it owns the queue. Were it to end without a word, the queue would stay owned, and
/// closing it would wait for ever.
#[test]
fn a_panic_under_ownership_ends_the_process() {
    const NAME: &str = "stack::tx_queue::tests::a_panic_under_ownership_ends_the_process";
    if std::env::var_os(CHILD).is_some() {
        let (queue, mut ctx) = queue(true);
        let sender = queue.clone();
        let ended = std::thread::spawn(move || send(&sender, &mut ctx)).join();
        assert!(ended.is_err());
        std::process::exit(0);
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.signal(), Some(SIGABRT), "{said}");
    assert!(said.contains("which is a bug in softnet; ending the process"), "{said}");
}

/// What is handed over to an owner waits before the device as what is queued does; what finds no room its
/// sender is told of.
#[test]
fn what_is_handed_over_is_counted_and_what_is_dropped_told() {
    let (queue, mut ctx) = queue(false);
    let guard = queue.own();
    for (flags, expected) in [(Flags::ORIGINATED, 60), (0, 60), (Flags::ORIGINATED, 120)] {
        let frame = ctx.alloc_frame().unwrap();
        let mut skb = ctx.build_skb(frame, HEADROOM, 60).unwrap_or_else(|_| panic!("no head"));
        skb.head_mut().flags = flags;
        let mut batch = Batch::new();
        batch.push(skb).unwrap();
        assert_eq!(queue.xmit(&mut ctx, 0, Origin::Forwarded, &mut batch), Sent::Deferred);
        assert_eq!(queue.ring().local_backlog(), expected);
    }
    let mut to_free = ToFree::new();
    guard.finish(&mut XmitContext { ctx: &mut ctx, now: 0 }, 0, &mut to_free);
    queue.let_go(&mut ctx, &mut to_free);
    assert_eq!(queue.ring().local_backlog(), 0);
    assert_eq!(queue.wake().told.load(Ordering::Relaxed), 3, "the ring takes nothing");
    queue.close(&mut ctx);
    ctx.drain();
}

/// It panicked for a reason of its own, and one of its destructors sends.
#[test]
fn a_thread_that_panics_may_send() {
    struct Goodbye(Arc<NetdevQueue<Nothing>>, SoftnetData);

    impl Drop for Goodbye {
        fn drop(&mut self) {
            send(&self.0, &mut self.1);
            self.1.drain();
        }
    }

    let (queue, ctx) = queue(false);
    let mut closes = SoftnetData::new(ctx.region().clone(), CacheSizes::default());
    let goodbye = Goodbye(queue.clone(), ctx);
    let ended = std::thread::spawn(move || {
        let _goodbye = goodbye;
        panic!("the application's own reason");
    });
    assert!(ended.join().is_err());
    queue.close(&mut closes);
    assert_eq!(queue.lock_stats().owned.get(), 2);
}
