//! The loop of the generator's thread: what is due is sent, else it sleeps.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::generator::Progress;

/// Largest burst in frames: half of a veth's receive ring.
const MAX_BURST: u64 = 128;
/// A burst is as many frames as fall due in this time. To sleep and wake costs up to 25 µs of CPU time on a virtual
/// machine, so a generator that slept more often would have less time left than it could.
const BURST_TIME: Duration = Duration::from_micros(200);
/// A schedule further behind than this is given up: what was due is skipped and counted.
const MAX_LAG: Duration = Duration::from_millis(10);
/// Longest time without a look at whether to stop.
const MAX_SLEEP: Duration = Duration::from_millis(20);

/// Frames and the message headers that point to them, made once so that a burst costs one system call and nothing
/// else.
pub(super) struct Sender {
    socket: OwnedFd,
    /// What the I/O vectors point into; never touched again.
    _frames: Vec<Vec<u8>>,
    /// What the messages point into; never touched again.
    _vectors: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    next: usize,
}

impl Sender {
    /// `socket` is bound to an interface; `frames` has at least one.
    pub(super) fn new(socket: OwnedFd, frames: Vec<Vec<u8>>) -> Self {
        let mut vectors: Vec<libc::iovec> = frames
            .iter()
            .map(|frame| libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() })
            .collect();
        // A short list is repeated, so that a burst need not be cut where the list ends.
        let count = frames.len() * (8 * MAX_BURST as usize).div_ceil(frames.len());
        let base = vectors.as_mut_ptr();
        let messages = (0..count)
            .map(|at| {
                // SAFETY: plain numbers and pointers, for which zero is a value.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                message.msg_hdr.msg_iov = base.wrapping_add(at % frames.len());
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        Sender { socket, _frames: frames, _vectors: vectors, messages, next: 0 }
    }

    /// Sends until told to stop, at `rate` frames per second or as fast as possible.
    pub(super) fn run(mut self, progress: &Progress, rate: Option<u64>) -> io::Result<()> {
        let started = Instant::now();
        // Frames tried or skipped: where in its schedule the generator is.
        let mut done = 0u64;
        while !progress.stop.load(Ordering::Relaxed) {
            let Some(rate) = rate else {
                self.send(MAX_BURST, progress)?;
                continue;
            };
            let now = started.elapsed();
            let behind = frames_in(now, rate).saturating_sub(done);
            let burst = frames_in(BURST_TIME, rate).clamp(1, MAX_BURST);
            if behind < burst {
                let wake = Duration::from_nanos(
                    (u128::from(done + burst) * 1_000_000_000).div_ceil(u128::from(rate)) as u64,
                );
                std::thread::sleep(wake.saturating_sub(now).min(MAX_SLEEP));
                progress.slept_ns.add((started.elapsed() - now).as_nanos() as u64);
                continue;
            }
            let limit = frames_in(MAX_LAG, rate).max(MAX_BURST);
            if behind > limit {
                progress.skipped.add(behind - burst);
                done += behind - burst;
            }
            let count = behind.min(MAX_BURST);
            self.send(count, progress)?;
            done += count;
        }
        Ok(())
    }

    /// Tries to send the next `count` frames, each once.
    fn send(&mut self, count: u64, progress: &Progress) -> io::Result<()> {
        let mut left = count as usize;
        while left > 0 {
            let batch = &mut self.messages[self.next..];
            let length = batch.len().min(left);
            // SAFETY: `length` messages within a live array, each pointing to a live I/O vector, and that to a live
            // frame: both vectors are owned by `self` and never changed after `new`. Sending reads them only.
            let sent = unsafe {
                libc::sendmmsg(
                    self.socket.as_raw_fd(),
                    batch.as_mut_ptr(),
                    length as libc::c_uint,
                    libc::MSG_DONTWAIT as _,
                )
            };
            let tried = match usize::try_from(sent) {
                Ok(sent) => {
                    progress.sent.add(sent as u64);
                    sent
                }
                Err(_) => {
                    // The first of them was refused. (Where a later one is, the call returns early, without a word,
                    // and that frame is tried again as the first of the next call.)
                    let error = io::Error::last_os_error();
                    match error.raw_os_error() {
                        Some(libc::ENOBUFS | libc::EAGAIN | libc::EBUSY) => {
                            progress.refused.add(1);
                            1
                        }
                        Some(libc::EINTR) => 0,
                        _ => return Err(error),
                    }
                }
            };
            self.next = (self.next + tried) % self.messages.len();
            left -= tried;
        }
        Ok(())
    }
}

fn frames_in(time: Duration, rate: u64) -> u64 {
    (time.as_nanos() * u128::from(rate) / 1_000_000_000) as u64
}
