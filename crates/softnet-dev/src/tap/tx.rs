//! The transmitting half of a TAP's queue: a system call for each packet.
//!
//! Called by the holder of the TX queue's lock only. A packet is the kernel's copy when the call
//! returns, so nothing is held.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::gso::TxOffloads;
use softnet_core::skb::{BATCH, Batch, DropReason, Skb};

use super::is_gone;
use crate::device::{QueueStats, Reaped, TxQueue};
use crate::vnet;

pub(super) struct TapTx {
    fd: Arc<OwnedFd>,
    dev: u16,
    offloads: TxOffloads,
    /// The pieces of the packet at hand.
    iov: Vec<libc::iovec>,
    stats: Arc<QueueStats>,
    /// The interface is down or gone: packets are dropped until one is taken again.
    down: bool,
    /// The kernel had no room for a packet: it is tried again after a while.
    blocked: bool,
}

// SAFETY: `iov` is read within the call that wrote it, and is not kept.
unsafe impl Send for TapTx {}

impl TapTx {
    pub(super) fn new(fd: Arc<OwnedFd>, dev: u16, uso: bool) -> Self {
        let offloads = vnet::offloads(uso);
        TapTx { fd, dev, offloads, iov: Vec::new(), stats: Arc::default(), down: false, blocked: false }
    }

    /// Sends a packet.
    #[inline]
    fn write(&mut self, skb: &Skb) -> Result<(), Refusal> {
        let mut header = vnet::transmit(skb).map_err(Refusal::Drop)?.to_bytes();
        self.iov.clear();
        self.iov.push(libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: vnet::LEN });
        self.iov.extend(
            skb.frames().map(|frame| libc::iovec {
                iov_base: frame.as_ptr().cast_mut().cast(),
                iov_len: frame.len(),
            }),
        );
        loop {
            // SAFETY: the pieces are the header and the packet's frames, live as long as the call,
            // which only reads them.
            let n = unsafe {
                libc::writev(self.fd.as_raw_fd(), self.iov.as_ptr(), self.iov.len() as libc::c_int)
            };
            if n >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Refusal::Later,
                _ if is_gone(&error) => Refusal::Down,
                // Too short for an Ethernet header, or one that is none.
                _ => Refusal::Drop(DropReason::PktTooSmall),
            });
        }
    }
}

/// Why a packet was not sent.
enum Refusal {
    /// There is no room for it now.
    Later,
    /// The interface is down, or gone.
    Down,
    /// It can't be sent.
    Drop(DropReason),
}

impl TxQueue for TapTx {
    fn reap(&mut self, _: &mut SoftnetData) -> Reaped {
        // Once: the next look is after a pause.
        let room = if std::mem::take(&mut self.blocked) { 0 } else { BATCH };
        Reaped { freed: 0, held: 0, room }
    }

    fn offloads(&self) -> TxOffloads {
        self.offloads
    }

    /// What it takes is on the wire at once.
    fn tx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize {
        let (mut done, mut packets, mut bytes) = (0, 0, 0);
        let mut refused = [None; BATCH];
        self.down = false;
        for (skb, refused) in batch.as_slice().iter().zip(&mut refused) {
            match self.write(skb) {
                Ok(()) => {
                    packets += 1;
                    bytes += skb.len() as u64;
                }
                Err(Refusal::Later) => {
                    self.blocked = true;
                    break;
                }
                Err(Refusal::Down) => {
                    self.down = true;
                    break;
                }
                Err(Refusal::Drop(reason)) => *refused = Some(reason),
            }
            done += 1;
        }
        for (skb, refused) in batch.drain().take(done).zip(refused) {
            match refused {
                None => ctx.free_skb(skb),
                Some(reason) => ctx.free_at(skb, self.dev, reason),
            }
        }
        if self.down {
            done += batch.len();
            ctx.free_batch_at(batch, self.dev, DropReason::DevReady);
        }
        self.stats.packets.add(packets);
        self.stats.bytes.add(bytes);
        done
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
