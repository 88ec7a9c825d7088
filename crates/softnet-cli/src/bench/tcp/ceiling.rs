//! What two CPUs can hand to each other without any stack: the ceiling of a stream between two threads.
//!
//! One thread copies pieces into memory that both have, the other copies them out, as a writer and a reader do of any
//! socket; in between there is nothing but a flag for each piece. On a virtual machine that is no constant. A host moves
//! virtual CPUs among its cores, from threads of one core to cores that share no cache, and bytes that one CPU has
//! written then cost the other three or four times as much.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::Cpus;
use crate::bench::pin;

/// Bytes of a piece, as a run of segments has.
const PIECE: usize = 64 << 10;
/// Pieces that may be on the way.
const PIECES: usize = 8;
const TIME: Duration = Duration::from_millis(20);

/// Gbit/s from the client's CPU to the server's.
pub(super) fn copies_gbit_s(cpus: Cpus) -> Result<f64, String> {
    let ring: Vec<Mutex<Vec<u8>>> = (0..PIECES).map(|_| Mutex::new(vec![1; PIECE])).collect();
    let (written, read) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // One copies while the other has another piece: no lock is ever waited for.
    let piece = |at: usize| ring[at % PIECES].lock().map_err(|_| "a thread panicked");
    let end = Instant::now() + TIME;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            pin(cpus.client)?;
            let from = vec![2; PIECE];
            let mut at = 0;
            while Instant::now() < end {
                if at < read.load(Ordering::Acquire) + PIECES {
                    piece(at)?.copy_from_slice(&from);
                    at += 1;
                    written.store(at, Ordering::Release);
                }
            }
            Ok::<_, String>(())
        });
        let reader = scope.spawn(|| {
            pin(cpus.server)?;
            let mut to = vec![0; PIECE];
            let (mut at, mut begin) = (0, None);
            while Instant::now() < end {
                if at < written.load(Ordering::Acquire) {
                    begin.get_or_insert_with(Instant::now);
                    to.copy_from_slice(&piece(at)?);
                    at += 1;
                    read.store(at, Ordering::Release);
                }
            }
            std::hint::black_box(&to);
            Ok::<_, String>((at, begin.map_or(TIME, |begin| begin.elapsed())))
        });
        writer.join().map_err(|_| "a thread panicked")??;
        let (pieces, took) = reader.join().map_err(|_| "a thread panicked")??;
        Ok((pieces * PIECE * 8) as f64 / took.as_nanos().max(1) as f64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_handed_over() {
        let Ok(cpus) = Cpus::new(crate::bench::cpus()[0]) else { return };
        assert!(copies_gbit_s(cpus).unwrap() > 0.0);
    }
}
