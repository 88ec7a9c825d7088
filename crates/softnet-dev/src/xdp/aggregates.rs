//! Aggregates leave by a packet socket beside the AF_XDP socket, as they are (TSO).
//!
//! AF_XDP has no segmentation offload: a run of TCP segments would be as many descriptors, each of
//! which the kernel copies into an skb of its own and takes through the driver. Where it copies
//! anyway, a packet socket does the same by one skb, which the interface cuts, or the kernel before
//! it, or on a virtual one nothing at all. (Not with `PACKET_QDISC_BYPASS`: by that way the kernel
//! drops what it has to cut itself.) In zero-copy mode descriptors cost less than that copy.
//!
//! Called by the holder of the TX queue's lock. Invariant: nothing is held; what the kernel does not
//! take stays in the batch. The caller sees to it that no packet of the transmit ring is overtaken.

use softnet_core::SoftnetData;
use softnet_core::gso::{self, TxOffloads};
use softnet_core::skb::{Batch, Skb};

use super::control::Control;
use crate::device::QueueStats;
use crate::packet::{Messages, Outlet, PacketSocket, Stop};
use crate::sys_error::SysResult;
use crate::vnet;

/// Bytes that may be under way in the interface's own ring, as the kernel accounts them.
const SEND_BUFFER: i32 = 4 << 20;

pub(super) struct Aggregates {
    socket: PacketSocket,
    control: Control,
    messages: Messages,
    dev: u16,
    /// The interface had no room: it is tried again after a while.
    pub(super) blocked: bool,
}

impl Aggregates {
    /// Those of device `dev`, whose interface has the index `ifindex` in the calling thread's network
    /// namespace.
    pub(super) fn new(ifindex: u32, dev: u16) -> SysResult<Self> {
        let (socket, control) = (PacketSocket::sender(ifindex, SEND_BUFFER)?, Control::new(ifindex)?);
        Ok(Aggregates { socket, control, messages: Messages::new(), dev, blocked: false })
    }

    /// What a queue announces that has this.
    pub(super) fn offloads() -> TxOffloads {
        vnet::offloads(false)
    }

    /// How many packets at the start of `packets` are aggregates.
    pub(super) fn leading(packets: &[Skb]) -> usize {
        packets.iter().take_while(|skb| gso::is_aggregate(skb)).count()
    }

    /// Sends the first `n` packets of `batch`. Returns whether the interface is up: if not, none of
    /// the rest will be taken. What it had no room for stays.
    pub(super) fn send(
        &mut self,
        ctx: &mut SoftnetData,
        batch: &mut Batch,
        n: usize,
        stats: &QueueStats,
    ) -> bool {
        let to = Outlet { socket: &self.socket, control: &self.control, dev: self.dev, stats };
        let stopped = self.messages.send_first(ctx, &to, batch, n).err();
        self.blocked = stopped == Some(Stop::Full);
        stopped != Some(Stop::Down)
    }
}
