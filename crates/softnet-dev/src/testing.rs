//! What the tests of several devices do alike.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnet_core::SoftnetData;
use softnet_core::skb::Region;

use crate::device::{Doorbell, OpenDevice};

/// Closes all halves of all queues.
pub(crate) fn close(open: OpenDevice, ctx: &mut SoftnetData) {
    open.rx.into_iter().for_each(|half| half.close(ctx));
    open.tx.into_iter().for_each(|half| half.close(ctx));
}

/// Whether the doorbell rings now.
pub(crate) fn rings(bell: &dyn Doorbell) -> bool {
    is_ready(bell, PollFlags::IN)
}

/// Whether the doorbell's descriptor is ready for any of `events` now.
pub(crate) fn is_ready(bell: &dyn Doorbell, events: PollFlags) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(bell.fd(), events)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

/// All frames and heads of `region`, of which `ctx` has the last, are where they started.
pub(crate) fn assert_whole(ctx: &mut SoftnetData, region: &Region) {
    ctx.drain();
    assert_eq!(region.frames_free(), u64::from(region.frame_count()), "frames");
    assert_eq!(region.heads_free(), u64::from(region.head_count()), "heads");
}
