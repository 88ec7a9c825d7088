//! The receiving half of a queue: frames are copied from the slots of its ring, and slots given
//! back at once.
//!
//! Called by the owner of the queue's NAPI instance only. Invariant: a frame for which there is no
//! packet memory stays in its slot; when all slots are taken the kernel drops, and counts.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::sockopt::socket_error;
use softnet_core::SoftnetData;
use softnet_core::skb::{Batch, DropReason, Skb};

use super::PacketSocket;
use super::device::NOTHING;
use super::ring::{Ring, Slot};
use crate::device::{Doorbell, KernelIrq, QueueStats, RxQueue};
use crate::rx_frames::copied;
use crate::sys_error::SysResult;
use crate::vnet::{self, VnetHdr};
use crate::watched_fd::WatchedFd;

/// Bytes of the addresses, behind which a VLAN tag is.
const ADDRESSES: usize = 12;
const TAG_LEN: u16 = 4;

/// What both halves and the device have of a queue.
pub(super) struct Queue {
    pub(super) socket: Arc<PacketSocket>,
    ring: Ring,
    watched: WatchedFd,
    rx_stats: Arc<QueueStats>,
    /// Held while the kernel's count is added, which it forgets when it is read.
    counting: Mutex<()>,
}

impl Queue {
    pub(super) fn new(socket: PacketSocket, ring: Ring) -> SysResult<Self> {
        let watched = WatchedFd::new(Arc::new(
            socket
                .as_fd()
                .try_clone_to_owned()
                .map_err(|error| crate::SysError::new("make a doorbell", error))?,
        ))?;
        Ok(Queue {
            socket: Arc::new(socket),
            ring,
            watched,
            rx_stats: Arc::default(),
            counting: Mutex::new(()),
        })
    }

    /// Brings the kernel's count of lost frames into the queue's statistics. Any thread may call
    /// it.
    pub(super) fn refresh(&self) {
        let _counting = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        // The lock makes this thread the counter's only writer.
        self.rx_stats.ring_drops.add(self.socket.lost());
    }
}

pub(super) struct PacketRx {
    pub(super) shared: Arc<Queue>,
    offloads: bool,
    /// The last poll found nothing.
    idle: bool,
    dev: u16,
    queue: u16,
}

/// Why a frame did not become a packet.
enum Refusal {
    NoMemory,
    Drop(DropReason),
}

impl PacketRx {
    pub(super) fn new(shared: Arc<Queue>, (dev, queue): (u16, u16), offloads: bool) -> Self {
        PacketRx { shared, offloads, idle: false, dev, queue }
    }

    /// The packet of a slot, with its VLAN tag where it was.
    #[inline]
    fn packet(&self, ctx: &mut SoftnetData, slot: &Slot<'_>) -> Result<Skb, Refusal> {
        if !slot.is_whole {
            return Err(Refusal::Drop(DropReason::RxTooLong));
        }
        let mut header = VnetHdr::from_bytes(slot.vnet);
        let mut tag = [0; TAG_LEN as usize];
        let pieces = match slot.tag {
            Some((tpid, tci)) if slot.data.len() >= ADDRESSES => {
                tag[..2].copy_from_slice(&tpid.to_be_bytes());
                tag[2..].copy_from_slice(&tci.to_be_bytes());
                header = header.shifted(TAG_LEN);
                let (addresses, rest) = slot.data.split_at(ADDRESSES);
                [addresses, &tag, rest]
            }
            _ => [slot.data, &[], &[]],
        };
        let mut skb = copied(ctx, pieces).ok_or(Refusal::NoMemory)?;
        (skb.head_mut().dev, skb.head_mut().queue) = (self.dev, self.queue);
        match vnet::receive(header, &mut skb, self.offloads) {
            Ok(()) => Ok(skb),
            Err(reason) => {
                ctx.free_skb(skb);
                Err(Refusal::Drop(reason))
            }
        }
    }

    /// An interface that was set down leaves an error, and its descriptor is readable until that is
    /// read.
    #[cold]
    fn take_error(&self) {
        let _ = socket_error(&*self.shared.socket);
    }
}

impl RxQueue for PacketRx {
    fn rx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch, budget: usize) -> usize {
        let want = budget.min(batch.room());
        let (mut taken, mut packets, mut bytes, mut starved) = (0, 0, 0, false);
        let shared = self.shared.clone();
        while taken < want
            && let Some(slot) = shared.ring.peek()
        {
            let len = slot.data.len() as u64;
            match self.packet(ctx, &slot) {
                Ok(skb) => match batch.push(skb) {
                    Ok(()) => taken += 1,
                    // Can't be: there was room.
                    Err(skb) => ctx.free(skb, DropReason::NoHead),
                },
                Err(Refusal::NoMemory) => {
                    starved = true;
                    break;
                }
                Err(Refusal::Drop(reason)) => ctx.count_drops(self.dev, reason, 1),
            }
            shared.ring.release();
            packets += 1;
            bytes += len;
        }
        shared.watched.set_starved(starved);
        if packets > 0 {
            shared.rx_stats.packets.add(packets);
            shared.rx_stats.bytes.add(bytes);
        } else if self.idle && want > 0 && !starved {
            self.take_error();
        }
        self.idle = packets == 0;
        taken
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.shared.clone()
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.shared.rx_stats.clone()
    }

    fn held(&self) -> usize {
        0
    }

    fn close(self: Box<Self>, ctx: &mut SoftnetData) {
        // The socket may outlive the queue, by its doorbell.
        let _ = self.shared.socket.attach(&NOTHING);
        self.shared.refresh();
        // Frames that will not be read. One may be under way still.
        let mut unread = 0;
        while self.shared.ring.is_ready() && unread < u64::from(u16::MAX) {
            self.shared.ring.release();
            unread += 1;
        }
        self.shared.rx_stats.packets.add(unread);
        ctx.count_drops(self.dev, DropReason::Shutdown, unread);
    }
}

/// The doorbell is the socket: readable while the ring holds frames, so there is nothing to mask
/// (see `Xsk`).
impl Doorbell for Queue {
    #[inline(always)]
    fn pending(&self) -> bool {
        !self.watched.is_starved() && self.ring.is_ready()
    }

    #[inline(always)]
    fn starved(&self) -> bool {
        self.watched.is_starved()
    }

    fn mask(&self) {}

    fn unmask(&self) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }

    fn kernel_irq(&self) -> KernelIrq {
        KernelIrq::NotMasked("a packet socket leaves the interface's interrupts as they are".into())
    }
}
