//! What the tests of all crates share: whether they may use the network, the fuzz corpora, and a contended lock.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_dev::sched::{Policy, set_policy};
use softnet_dev::userns;

/// Whether this process may make network namespaces, and have BPF programs in them: root of a user
/// namespace may not. If not, says so and lets the test end early; under `SOFTNET_REQUIRE_NET=1`
/// that is a failure instead.
///
/// # Panics
/// When the network is required and not permitted.
pub fn net_allowed() -> bool {
    let refused = || io::Error::other("in a user namespace the kernel has no BPF programs");
    match NetNs::new().and_then(|_| if userns::is_inside() { Err(refused()) } else { Ok(()) }) {
        Ok(()) => true,
        Err(error) if std::env::var_os("SOFTNET_REQUIRE_NET").is_some_and(|value| value == "1") => {
            panic!("network tests are required: {error}")
        }
        Err(error) => {
            println!("skipped: {error}");
            false
        }
    }
}

/// Whether the kernel is as new as `since`. If not, says that it lacks `what` and lets the test end
/// early, also where the network is required, since no privilege helps there.
pub fn kernel_has(what: &str, since: (u32, u32)) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    let is_new = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= since;
    if !is_new {
        println!("skipped: no {what} before Linux {}.{}", since.0, since.1);
    }
    is_new
}

/// Sees to it that the loopback interface of the calling thread's network namespace is up: in a new
/// one (`unshare -n`) it is not.
pub fn raise_loopback() {
    // Where that is not permitted the namespace is another's, and as a rule it is up there.
    let _ = Netlink::new().and_then(|mut netlink| netlink.set_up("lo"));
}

/// Runs `target` on every file of its corpus, `fuzz/corpus/<name>` of the repository.
///
/// # Panics
/// If `target` does, or there is no such corpus.
pub fn replay(name: &str, target: fn(&[u8])) {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/");
    let files: Vec<_> = std::fs::read_dir(format!("{corpus}{name}")).expect("a corpus").collect();
    assert!(!files.is_empty(), "the corpus of {name} is empty");
    for file in files {
        target(&std::fs::read(file.expect("a file").path()).expect("a file that can be read"));
    }
}

/// How long a real-time thread hogs a CPU at the most: less than what the kernel grants such threads in a second.
const HOG: Duration = Duration::from_millis(400);

/// An ordinary thread takes a lock; a real-time thread on its CPU keeps it from going on; another of a higher priority
/// wants the lock. Returns whether it got it although the hog still ran; `None`: this user may have no such threads.
///
/// # Panics
/// If a thread can't be bound to a CPU.
pub fn lock_while_holder_is_hogged<G>(lock: impl Fn() -> G + Sync) -> Option<bool> {
    let allowed = std::thread::scope(|scope| scope.spawn(|| set_policy(Policy::Fifo(2))).join().unwrap());
    allowed.ok()?;
    let all = sched_getaffinity(None).unwrap();
    let cpu = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
    let pin = move || {
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(None, &one).unwrap();
    };
    let (stage, got, hogs) = (AtomicU32::new(0), AtomicBool::new(false), AtomicBool::new(true));
    let at_stage = |wanted: u32| {
        while stage.load(Ordering::Acquire) < wanted {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin();
            let held = lock();
            stage.store(1, Ordering::Release);
            // Not before the hog is there, which does not let it go on.
            at_stage(2);
            drop(held);
        });
        scope.spawn(|| {
            at_stage(1);
            pin();
            set_policy(Policy::Fifo(1)).unwrap();
            stage.store(2, Ordering::Release);
            let until = Instant::now() + HOG;
            while Instant::now() < until && !got.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            hogs.store(false, Ordering::Release);
        });
        let waiter = scope.spawn(|| {
            // Before the hog is there, behind which an ordinary thread might be stuck; and asleep, so as not to be one.
            set_policy(Policy::Fifo(2)).unwrap();
            while stage.load(Ordering::Acquire) < 2 {
                std::thread::sleep(Duration::from_micros(100));
            }
            let held = lock();
            let hogged = hogs.load(Ordering::Acquire);
            got.store(true, Ordering::Relaxed);
            drop(held);
            hogged
        });
        Some(waiter.join().unwrap())
    })
}
