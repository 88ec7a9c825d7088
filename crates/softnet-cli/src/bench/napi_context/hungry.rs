//! Threads that only compute, as the rest of a busy machine does: what pollers and applications compete with.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::bench::pin;

/// Memory that one goes through, in bytes: more than its core's L2, so that the next thread on its CPU finds a cold cache.
const FOOTPRINT: usize = 2 << 20;

/// Hungry threads; dropping them ends them.
pub(in crate::bench) struct Hungry {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Hungry {
    /// `n` of them, of the ordinary policy: bound to `cpu`, or anywhere the caller may.
    pub(in crate::bench) fn start(n: usize, cpu: Option<usize>) -> Result<Self, String> {
        // They inherit the place of the thread that starts them.
        let start = || {
            cpu.map(pin).transpose()?;
            Hungry::start_here(n)
        };
        std::thread::scope(|scope| scope.spawn(start).join())
            .map_err(|_| "starting hungry threads panicked")?
    }

    fn start_here(n: usize) -> Result<Self, String> {
        let mut hungry = Hungry { stop: Arc::default(), threads: Vec::new() };
        for _ in 0..n {
            let stop = hungry.stop.clone();
            let thread = std::thread::Builder::new().name("hungry".into()).spawn(move || eat(&stop));
            hungry.threads.push(thread.map_err(|e| format!("a hungry thread: {e}"))?);
        }
        Ok(hungry)
    }
}

impl Drop for Hungry {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn eat(stop: &AtomicBool) {
    let mut memory = vec![0u8; FOOTPRINT];
    while !stop.load(Ordering::Relaxed) {
        memory.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
        black_box(&mut memory);
    }
}
