//! Sending for many sockets: what a thread sends until it flushes leaves together.
//!
//! To take a TX queue and to tell its device costs as much as some datagrams, and with AF_XDP it is a system call: a server that
//! answers each of many sockets once per turn of its loop pays for it once per turn. Invariant: what was taken is sent, stays, or
//! is counted as dropped.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use softnet_core::skb::DropReason;

use super::Handle;
use super::msg::MsgHdr;
use super::options::errno;
use super::send::{Outgoing, tell};
use super::thread::with;
use super::udp::UdpSocket;
use crate::sender::{LocalSender, WouldBlock};
use crate::shared::Shared;

/// Datagrams of sockets of one stack, in packet memory, that are to leave together. They leave when it is
/// [flushed](Self::flush), when no more fit, and when it is dropped; but dropping it waits for nobody: what is held back then
/// is counted as dropped.
///
/// It has a TX queue of its own: what a socket sends by it and what it sends itself may pass each other.
pub struct SendBatch {
    shared: Arc<Shared>,
    sender: LocalSender,
    out: Outgoing,
}

impl SendBatch {
    /// An empty one.
    pub fn new(on: &Handle) -> Self {
        SendBatch { shared: on.0.clone(), sender: LocalSender::default(), out: Outgoing::new() }
    }

    /// How many datagrams it holds.
    pub fn len(&self) -> usize {
        self.out.batch.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.out.batch.is_empty()
    }

    /// Takes a datagram of `socket` to `to`, or (`None`) to its peer; an answer is [`Received::reply`](super::Received::reply) to what
    /// it answers. Those that are there leave first if there is no room for it, or
    /// if it goes another way.
    ///
    /// # Errors
    /// As of [`UdpSocket::send_to`], of this datagram, which was not taken. [`WouldBlock`](io::ErrorKind::WouldBlock): those that
    /// are there had to leave, and could not. Whether the socket blocks does not matter. A socket of another stack is
    /// [`InvalidInput`](io::ErrorKind::InvalidInput).
    pub fn push(&mut self, socket: &UdpSocket, payload: &[u8], to: impl Into<MsgHdr>) -> io::Result<()> {
        if !Arc::ptr_eq(&socket.inner().shared, &self.shared) {
            return Err(errno(Errno::INVAL));
        }
        socket.gather(&mut self.out, &mut self.sender, payload, to.into())
    }

    /// Sends what is there. While it is held back, since too many packets are pending before the TX queue, it waits, but
    /// no longer than `patience`.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock): it was held back for longer, and what is there stays.
    pub fn flush(&mut self, patience: Duration) -> io::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let SendBatch { shared, sender, out } = self;
        let wait = (!patience.is_zero()).then(|| shared.clock.after(patience));
        with(shared, |thread| {
            let flushed = out.flush(shared, thread, sender, wait);
            tell(shared, thread);
            flushed
        })
        .map_err(|WouldBlock| errno(Errno::AGAIN))
    }
}

impl Drop for SendBatch {
    fn drop(&mut self) {
        if self.flush(Duration::ZERO).is_err() {
            let (n, dev) = (self.len() as u64, self.out.dev);
            with(&self.shared, |thread| {
                thread.ctx.originated(n);
                thread.ctx.free_batch_at(&mut self.out.batch, dev, DropReason::QdiscBurstDrop);
                self.out.free_loops(&mut thread.ctx);
            });
        }
    }
}
