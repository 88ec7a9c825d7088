//! Owners that panic.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::*;
use crate::skb::{CacheSizes, HEADROOM, HeapMemory};

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
struct Nothing;

impl TxWake for Nothing {
    fn run_at(&self, _: u64) {}
    fn made_room(&self) {}
}

fn queue(breaks: bool) -> (Arc<NetdevQueue<Nothing>>, SoftnetData) {
    let memory = Box::new(HeapMemory::new(Region::bytes(64, 64)));
    let region = Region::new(memory, 64, 64).unwrap();
    let queue = NetdevQueue::new(&region, 0, None, Box::new(Broken(breaks)), 8, Nothing);
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
