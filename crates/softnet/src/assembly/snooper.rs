//! What neighbours say to all, heard from devices that do not bring it by their queues ([`Snoop`](softnet_dev::snoop::Snoop)).
//!
//! Owned by the housekeeper, which waits for the devices' descriptors beside its own inputs: so no worker is woken for a
//! frame that is mostly about others. Invariant: a device is read from once in [`PAUSE`] at the most, [`ROUND`] frames at a
//! time, however many come; in between, its descriptor is not waited for, but a time-out is set, so that what came
//! meanwhile is heard then. What the kernel's buffer has no room for is counted.

use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use softnet_core::SoftnetData;

use crate::device::OpenParts;
use crate::stack::StackInner;

/// Frames that are read from a device at a time.
const ROUND: usize = 512;
/// Frames that are looked at under one hold of the slow path's lock.
const CHUNK: usize = 32;
/// ns between two looks at a device that had something to say.
const PAUSE: u64 = 10_000_000;
/// A neighbour message is a few dozen bytes; one that does not fit is cut, and says nothing.
const FRAME: usize = 512;

/// See the module.
#[derive(Default)]
pub(crate) struct Snooper {
    /// Until when each device is left alone, in ns of the clock; by index.
    until: Vec<u64>,
    buffer: Vec<u8>,
}

impl Snooper {
    /// Hears what there is to hear by `now`.
    pub(crate) fn listen(&mut self, shared: &StackInner, ctx: &mut SoftnetData, now: u64) {
        self.until.resize(shared.devices.len(), 0);
        self.buffer.resize(CHUNK * FRAME, 0);
        for (device, until) in shared.devices.iter().zip(&mut self.until) {
            if *until > now {
                continue;
            }
            *until = 0;
            let Some(live) = device.live.load_full() else { continue };
            let mut left = ROUND;
            while left > 0 {
                let heard = hear(shared, ctx, (device.index, &live), &mut self.buffer);
                left -= heard.min(left);
                if heard > 0 {
                    *until = now + PAUSE;
                }
                if heard < CHUNK {
                    break;
                }
            }
        }
    }

    /// When to [listen](Self::listen) again although no descriptor is readable.
    pub(crate) fn next(&self) -> Option<u64> {
        self.until.iter().copied().filter(|until| *until > 0).min()
    }

    /// The devices to be waited for now.
    pub(crate) fn waits_for(&self, shared: &StackInner) -> Vec<Arc<OpenParts>> {
        let waits = |dev: u16| self.until.get(usize::from(dev)).is_none_or(|until| *until == 0);
        let live =
            shared.devices.iter().filter(|dev| waits(dev.index)).filter_map(|dev| dev.live.load_full());
        live.filter(|live| live.device.snoop().is_some()).collect()
    }

    /// Their descriptors.
    pub(crate) fn fds(devices: &[Arc<OpenParts>]) -> impl Iterator<Item = PollFd<'_>> {
        devices
            .iter()
            .filter_map(|live| Some(PollFd::from_borrowed_fd(live.device.snoop()?.fd(), PollFlags::IN)))
    }
}

/// Reads up to [`CHUNK`] frames and learns from them. Returns how many there were.
fn hear(
    shared: &StackInner,
    ctx: &mut SoftnetData,
    (dev, live): (u16, &OpenParts),
    buffer: &mut [u8],
) -> usize {
    let Some(snoop) = live.device.snoop() else { return 0 };
    let mut lengths = [0; CHUNK];
    let mut n = 0;
    for (slot, len) in buffer.chunks_exact_mut(FRAME).zip(&mut lengths) {
        let Some(frame) = snoop.next(slot) else { break };
        *len = frame.len();
        n += 1;
    }
    if n == 0 {
        return 0;
    }
    shared.slow_path(ctx, |slow, ctx, view, out| {
        for (slot, len) in buffer.chunks_exact(FRAME).zip(&lengths[..n]) {
            if let Err(reason) = slow.overhear(ctx, view, (dev, &slot[..*len]), out) {
                // A copy of a packet that the kernel has, and drops as well.
                ctx.originate();
                ctx.count_drops(dev, reason, 1);
            }
        }
    });
    n
}
