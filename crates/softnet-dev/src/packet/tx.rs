//! The transmitting half of a queue: a batch is sent by one system call (sendmmsg(2)).
//!
//! Called by the holder of the TX queue's lock only. The kernel copies a packet before the call
//! returns, so nothing is held, and one that the interface had no room for is still here to be sent
//! again. (A transmit ring saves that copy, but takes one into its slots instead, which packets of
//! several frames and of many segments would have to fit.)

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::gso::TxOffloads;
use softnet_core::skb::{BATCH, Batch, DropReason};

use super::rx::Queue;
use crate::device::{LinkState, QueueStats, Reaped, TxQueue};
use crate::vnet;
use crate::xdp::control::Control;

pub(super) struct PacketTx {
    queue: Arc<Queue>,
    control: Arc<Control>,
    dev: u16,
    headers: Box<[[u8; vnet::LEN]; BATCH]>,
    /// The pieces of all packets of a batch: its header, and its frames.
    pieces: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    stats: Arc<QueueStats>,
    /// The interface is down or gone: packets are dropped until one is taken again.
    down: bool,
    /// The interface had no room for a packet: it is tried again after a while.
    blocked: bool,
}

// SAFETY: what the pointers in `pieces` and `messages` point to is read within the call that wrote
// them, and not kept.
unsafe impl Send for PacketTx {}

impl PacketTx {
    pub(super) fn new(queue: Arc<Queue>, control: Arc<Control>, dev: u16) -> Self {
        PacketTx {
            queue,
            control,
            dev,
            headers: Box::new([[0; vnet::LEN]; BATCH]),
            pieces: Vec::new(),
            messages: Vec::new(),
            stats: Arc::default(),
            down: false,
            blocked: false,
        }
    }

    /// Sends packets from the start of `batch`, none of which its head makes unfit. Returns how
    /// many the kernel took, and why it did not take the next.
    fn send(&mut self, batch: &Batch) -> (usize, Option<io::Error>) {
        let PacketTx { headers, pieces, messages, queue, .. } = self;
        pieces.clear();
        messages.clear();
        let mut ends = [0; BATCH];
        let packets = batch.as_slice().iter();
        for ((skb, header), end) in packets.zip(headers.iter_mut()).zip(&mut ends) {
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
        let fd = queue.socket.as_fd().as_raw_fd();
        // SAFETY: each message names pieces that are live as long as the call: its header, and
        // frames of a packet of `batch`, which is borrowed. The call reads them only.
        let sent = unsafe {
            libc::sendmmsg(fd, messages.as_mut_ptr(), messages.len() as libc::c_uint, libc::MSG_DONTWAIT as _)
        };
        match usize::try_from(sent) {
            Ok(sent) => (sent, None),
            Err(_) => (0, Some(io::Error::last_os_error())),
        }
    }

    /// What becomes of the first packet of a batch, which the kernel refused with `error`: dropped
    /// for a reason, or tried again.
    fn refused(&mut self, error: &io::Error) -> Option<DropReason> {
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => self.down = true,
            // Without a carrier it never has room.
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => match self.control.link() {
                LinkState::Up => self.blocked = true,
                _ => self.down = true,
            },
            Some(libc::EMSGSIZE) => return Some(DropReason::PktTooBig),
            _ => return Some(DropReason::PktTooSmall),
        }
        None
    }
}

impl TxQueue for PacketTx {
    fn reap(&mut self, _: &mut SoftnetData) -> Reaped {
        // Once: the next look is after a pause.
        let room = if std::mem::take(&mut self.blocked) { 0 } else { BATCH };
        Reaped { freed: 0, held: 0, room }
    }

    /// Whether the kernel knows segments of UDP here is not to be asked for.
    fn offloads(&self) -> TxOffloads {
        vnet::offloads(false)
    }

    /// What it takes is on the wire at once.
    fn tx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize {
        let before = batch.len();
        (self.down, self.blocked) = (false, false);
        while !batch.is_empty() && !self.blocked {
            if self.down {
                ctx.free_batch_at(batch, self.dev, DropReason::DevReady);
                break;
            }
            self.stats.kicks.add(1);
            let (sent, error) = self.send(batch);
            let mut bytes = 0;
            for skb in batch.drain().take(sent) {
                bytes += skb.len() as u64;
                ctx.free_skb(skb);
            }
            self.stats.packets.add(sent as u64);
            self.stats.bytes.add(bytes);
            if let Some(reason) = error.and_then(|error| self.refused(&error)) {
                batch.drain().take(1).for_each(|skb| ctx.free_at(skb, self.dev, reason));
            }
        }
        before - batch.len()
    }

    fn kick(&mut self, _: &mut SoftnetData) -> bool {
        false
    }

    fn down(&self) -> bool {
        self.down
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.stats.clone()
    }

    fn held(&self) -> usize {
        0
    }

    fn close(self: Box<Self>, _: &mut SoftnetData) {}
}
