//! Sending for many sockets: the datagrams that a thread sends between two flushes leave together.
//!
//! Owning a TX queue and kicking its device costs as much as several datagrams, and with AF_XDP it
//! is a system call. A server that answers on many sockets in each turn of its loop pays for it
//! once per turn. Invariant: an accepted datagram is sent, stays in the batch, or is counted as
//! dropped.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use softnet_core::skb::{BATCH, DropReason};

use super::Handle;
use super::msg::MsgHdr;
use super::options::errno;
use super::send::{Outgoing, wake_arrived};
use super::udp::UdpSocket;
use crate::app::{LocalSender, WouldBlock};
use crate::stack::StackInner;
use crate::stack::with;

/// Datagrams of sockets of one stack, in packet memory, that leave together. They leave when the
/// batch is [flushed](Self::flush), when it is full, and when it is dropped; dropping never blocks:
/// datagrams that are held back then are counted as dropped.
///
/// The batch chooses a TX queue of its own, so datagrams that a socket sends by the batch and
/// directly may overtake each other.
pub struct SendBatch {
    shared: Arc<StackInner>,
    sender: LocalSender,
    out: Outgoing,
    /// Slots of the sockets whose datagrams are in the batch.
    slots: Vec<u32>,
}

impl SendBatch {
    /// An empty one.
    pub fn new(on: &Handle) -> Self {
        let (sender, out) = (LocalSender::default(), Outgoing::new());
        SendBatch { shared: on.shared().clone(), sender, out, slots: Vec::with_capacity(BATCH) }
    }

    /// How many datagrams it holds.
    pub fn len(&self) -> usize {
        self.out.batch.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.out.batch.is_empty()
    }

    /// Adds a datagram of `socket` to `to`, or (`None`) to its peer; for an answer, `to` is the
    /// request's [`Received::reply`](super::Received::reply). If the batch is full, or the datagram
    /// leaves by another device, the batch is sent first.
    ///
    /// # Errors
    /// Those of [`UdpSocket::send_to`]; this datagram was not added.
    /// [`WouldBlock`](io::ErrorKind::WouldBlock): the batch had to be sent first, and is held back.
    /// Whether the socket blocks does not matter; it is not writable until there is room. A socket
    /// of another stack is [`InvalidInput`](io::ErrorKind::InvalidInput).
    pub fn push(&mut self, socket: &UdpSocket, payload: &[u8], to: impl Into<MsgHdr>) -> io::Result<()> {
        if !Arc::ptr_eq(&socket.inner().shared, &self.shared) {
            return Err(errno(Errno::INVAL));
        }
        let before = self.len();
        socket.gather(&mut self.out, &mut self.sender, payload, to.into())?;
        // The batch was sent first, if it is no longer than before.
        if self.len() <= before {
            self.slots.clear();
        }
        let slot = socket.inner().slot.index();
        if !self.is_empty() && self.slots.last() != Some(&slot) {
            self.slots.push(slot);
        }
        Ok(())
    }

    /// Sends the batch. While the sender is held back, since too many packets are pending before
    /// the TX queue, the call blocks, but no longer than `patience`.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock): the sender was held back for longer, and the
    /// datagrams stay in the batch. The sockets that they are from are not writable until there is
    /// room: an [`Epoll`](super::Epoll) or a [`ReadyFd`](super::ReadyFd) of any of them tells when
    /// to try again.
    pub fn flush(&mut self, patience: Duration) -> io::Result<()> {
        self.send(patience).map_err(|WouldBlock| {
            self.slots.iter().for_each(|slot| self.sender.wake_when_room(&self.shared, *slot));
            errno(Errno::AGAIN)
        })
    }

    fn send(&mut self, patience: Duration) -> Result<(), WouldBlock> {
        if self.is_empty() {
            return Ok(());
        }
        let SendBatch { shared, sender, out, slots } = self;
        let wait = (!patience.is_zero()).then(|| shared.clock.after(patience));
        with(shared, |thread| {
            let flushed = out.flush(shared, thread, sender, wait);
            wake_arrived(shared, thread);
            flushed
        })?;
        slots.clear();
        Ok(())
    }
}

impl Drop for SendBatch {
    fn drop(&mut self) {
        if self.send(Duration::ZERO).is_err() {
            let (n, dev) = (self.len() as u64, self.out.dev);
            with(&self.shared, |thread| {
                thread.ctx.originated(n);
                thread.ctx.free_batch_at(&mut self.out.batch, dev, DropReason::QdiscBurstDrop);
                self.out.free_loops(&mut thread.ctx);
            });
        }
    }
}
