//! Packets as messages to a packet socket: each with its header of `vnet`, and its frames as they lie.
//!
//! Called by the holder of a TX queue's lock. The kernel copies a packet before the call returns, so
//! nothing is held, and one that the socket had no room for is still here to be sent again.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use softnet_core::SoftnetData;
use softnet_core::skb::{BATCH, Batch, DropReason, Skb};

use super::PacketSocket;
use crate::device::{LinkState, QueueStats};
use crate::vnet;
use crate::xdp::control::Control;

/// Room for the messages of a batch.
pub(crate) struct Messages {
    headers: Box<[[u8; vnet::LEN]; BATCH]>,
    /// The pieces of all packets: the header, and the frames.
    pieces: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: what the pointers in `pieces` and `messages` point to is read within the call that wrote
// them, and not kept.
unsafe impl Send for Messages {}

/// What becomes of a packet that the kernel refused.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// It is to be tried again.
    Again,
    /// The socket has no room now.
    Full,
    /// The kernel has dropped it on its way to the interface, but may be had to send it.
    Dropped,
    /// The interface is down or gone.
    Down,
    /// It is dropped.
    Drop(DropReason),
}

/// Why not all of what was to be sent is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The socket has no room for the rest now.
    Full,
    /// The interface is down or gone.
    Down,
}

/// A packet socket of an interface that packets leave by.
pub(crate) struct Outlet<'a> {
    pub(crate) socket: &'a PacketSocket,
    pub(crate) control: &'a Control,
    /// The device's number, for drops.
    pub(crate) dev: u16,
    pub(crate) stats: &'a QueueStats,
}

impl Messages {
    pub(crate) fn new() -> Self {
        Messages { headers: Box::new([[0; vnet::LEN]; BATCH]), pieces: Vec::new(), messages: Vec::new() }
    }

    /// Sends packets from the start of `packets`, at most a batch. Returns how many the kernel took,
    /// and why it did not take the first, if it took none.
    fn send(&mut self, socket: &PacketSocket, packets: &[Skb]) -> (usize, Option<io::Error>) {
        let Messages { headers, pieces, messages } = self;
        pieces.clear();
        messages.clear();
        let mut ends = [0; BATCH];
        for ((skb, header), end) in packets.iter().zip(headers.iter_mut()).zip(&mut ends) {
            // One that is unfit is the first of a later call, and is dropped there.
            let Ok(told) = vnet::transmit(skb) else { break };
            *header = told.to_bytes();
            pieces.push(libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: vnet::LEN });
            pieces.extend(skb.frames().map(|frame| libc::iovec {
                iov_base: frame.as_ptr().cast_mut().cast(),
                iov_len: frame.len(),
            }));
            *end = pieces.len();
        }
        let mut from = 0;
        for &end in ends.iter().take_while(|end| **end > 0) {
            // SAFETY: plain numbers and pointers, for which zero is a value.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = pieces[from..end].as_mut_ptr();
            message.msg_hdr.msg_iovlen = (end - from) as _;
            messages.push(message);
            from = end;
        }
        if messages.is_empty() {
            return (0, Some(io::ErrorKind::InvalidInput.into()));
        }
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: each message names pieces that are live as long as the call: its header, and
        // frames of a packet of `packets`, which is borrowed. The call reads them only.
        let sent = unsafe {
            libc::sendmmsg(fd, messages.as_mut_ptr(), messages.len() as libc::c_uint, libc::MSG_DONTWAIT as _)
        };
        match usize::try_from(sent) {
            Ok(sent) => (sent, None),
            Err(_) => (0, Some(io::Error::last_os_error())),
        }
    }
}

impl Messages {
    /// Sends the first `n` packets of `batch`, and frees them. What the kernel does not take and never will is dropped;
    /// what it dropped behind the socket is tried once more first, and at once: a rule that drops one flow must not keep
    /// the others waiting. Where it stops, the rest is in `batch` still.
    pub(crate) fn send_first(
        &mut self,
        ctx: &mut SoftnetData,
        to: &Outlet<'_>,
        batch: &mut Batch,
        mut n: usize,
    ) -> Result<(), Stop> {
        let mut retried = false;
        while n > 0 {
            to.stats.kicks.add(1);
            let (sent, error) = self.send(to.socket, &batch.as_slice()[..n]);
            let mut bytes = 0;
            for skb in batch.drain().take(sent) {
                bytes += skb.len() as u64;
                ctx.free_skb(skb);
            }
            to.stats.packets.add(sent as u64);
            to.stats.bytes.add(bytes);
            n -= sent;
            retried &= sent == 0;
            let Some(error) = error else { continue };
            let reason = match refusal(&error, || to.control.link()) {
                Refusal::Again => continue,
                Refusal::Dropped if !std::mem::replace(&mut retried, true) => continue,
                Refusal::Dropped => DropReason::KernelEgress,
                Refusal::Drop(reason) => reason,
                Refusal::Full => return Err(Stop::Full),
                Refusal::Down => return Err(Stop::Down),
            };
            batch.drain().take(1).for_each(|skb| ctx.free_at(skb, to.dev, reason));
            (n, retried) = (n - 1, false);
        }
        Ok(())
    }
}

/// What `error`, with which the kernel refused a packet, means for it; `link` looks at the interface.
fn refusal(error: &io::Error, link: impl FnOnce() -> LinkState) -> Refusal {
    match error.raw_os_error() {
        Some(libc::EINTR) => Refusal::Again,
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => Refusal::Down,
        // Without a carrier it never has room.
        Some(error @ (libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) => match (link(), error) {
            // A discipline of the interface's own, or a rule there. That the socket has no room is EAGAIN.
            (LinkState::Up, libc::ENOBUFS) => Refusal::Dropped,
            (LinkState::Up, _) => Refusal::Full,
            _ => Refusal::Down,
        },
        Some(libc::EMSGSIZE) => Refusal::Drop(DropReason::PktTooBig),
        _ => Refusal::Drop(DropReason::PktTooSmall),
    }
}
