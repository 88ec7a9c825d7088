//! How far two CPUs are from each other: what a cache line takes from one to the other and back.
//!
//! On a virtual machine that is no constant. A host moves virtual CPUs among its cores, from threads of one core to cores
//! that share no cache, and bytes that one CPU has written and another reads then cost three or four times as much.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::Cpus;
use crate::bench::pin;

/// Round trips: a few milliseconds.
const TRIPS: usize = 10_000;

/// On a cache line of its own.
#[repr(align(128))]
struct Line(AtomicUsize);

/// Nanoseconds of a round trip, the mean of a few ms in which both CPUs spin.
pub(super) fn round_trip_ns(cpus: Cpus) -> Result<f64, String> {
    let line = Line(AtomicUsize::new(0));
    // The one thread makes odd numbers of even ones, and the other even ones of odd ones.
    let bounce = |cpu: usize, first: usize| {
        pin(cpu)?;
        let begin = Instant::now();
        for at in (first..2 * TRIPS).step_by(2) {
            while line.0.load(Ordering::Acquire) != at {
                std::hint::spin_loop();
            }
            line.0.store(at + 1, Ordering::Release);
        }
        Ok::<_, String>(begin.elapsed())
    };
    std::thread::scope(|scope| {
        // It may wait for the other to start, and that is not to be counted.
        let far = scope.spawn(|| bounce(cpus.client, 1));
        let near = scope.spawn(|| {
            pin(cpus.server)?;
            std::thread::sleep(std::time::Duration::from_millis(1));
            bounce(cpus.server, 0)
        });
        let took = near.join().map_err(|_| "a thread panicked")??;
        far.join().map_err(|_| "a thread panicked")??;
        Ok(took.as_nanos() as f64 / TRIPS as f64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_there_and_back() {
        let Ok(cpus) = Cpus::new(crate::bench::cpus()[0]) else { return };
        assert!(round_trip_ns(cpus).unwrap() > 0.0);
    }
}
