//! What is UDP's alone of a stack's sockets: its packets' way to them, ports that devices share with the kernel, and where long
//! datagrams went.
//!
//! Called by pollers and by threads that send (packets), and by those that open and close sockets (ports).

use std::sync::Arc;

use rustix::io::Errno;
use softnet_core::SoftnetData;
use softnet_core::fold::FoldKey;
use softnet_core::ip::pmtu::RecentPeers;
use softnet_core::skb::{Batch, Skb};
use softnet_core::sock::route::is_group;
use softnet_core::sock::udp::{udp_input, udp_members};
use softnet_core::sock::{Flow, Hit};
use softnet_dev::xdp::{LocalEnd, Ports};

use super::SocketTable;

/// See the module.
pub(crate) struct UdpTable {
    /// Where devices look up the ports that are open, to leave the kernel the rest.
    pub(crate) ports: Option<Arc<dyn Ports>>,
    /// Where long datagrams went lately.
    pub(crate) recent: RecentPeers,
}

impl UdpTable {
    /// Without ports. `key` hashes destinations.
    pub(super) fn new(key: FoldKey) -> Self {
        UdpTable { ports: None, recent: RecentPeers::new(key) }
    }

    /// A socket has `end` from now on: devices that share its address with the kernel bring what is sent there. Without a lock
    /// that a packet's way takes.
    ///
    /// # Errors
    /// `EADDRINUSE`: the kernel has the port on such an address. `ENOBUFS`: there are too many.
    pub(crate) fn port_opened(&self, end: &LocalEnd) -> Result<(), Errno> {
        let Some(ports) = &self.ports else { return Ok(()) };
        ports.opened(end).map_err(|error| match error.errno().map(Errno::from_raw_os_error) {
            Some(Errno::TOOBIG) | None => Errno::NOBUFS,
            Some(errno) => errno,
        })
    }

    /// It has it no more.
    pub(crate) fn port_closed(&self, end: &LocalEnd) {
        self.ports.iter().for_each(|ports| ports.closed(end));
    }
}

impl SocketTable {
    /// Hands the datagrams of `local`, which came by NAPI instance `napi_id` (0: were sent here), over to their sockets;
    /// those for which there is no socket come out in `unserved`. What waits for the slots in `ready` is to be [woken](Self::arrived)
    /// when the caller has done its work.
    #[inline]
    pub(crate) fn udp_input(
        &self,
        ctx: &mut SoftnetData,
        napi_id: u32,
        local: &mut Batch,
        unserved: &mut Batch,
        ready: &mut Vec<u32>,
    ) {
        self.hand_over(napi_id, local.frames(), ready, |to| udp_input(ctx, to, local, unserved));
    }

    /// Hands the datagram `skb` over to the members of its multicast group on device `dev`, or, if it is to all, to the
    /// sockets that listen; a copy for each. However many they are, no more memory is reserved than one of them takes, so that
    /// the rest is there for other packets meanwhile.
    pub(crate) fn to_many(&self, ctx: &mut SoftnetData, dev: u16, skb: Skb, ready: &mut Vec<u32>) {
        let members = |flow: &Flow| {
            let binder = self.binder();
            match is_group(flow.local) {
                true => binder.members(flow, dev).collect(),
                false => binder.listeners(flow).collect::<Vec<Hit>>(),
            }
        };
        udp_members(ctx, members, skb, |ctx, hit, run| {
            self.hand_over(0, run.frames(), ready, |to| to.hand_over(ctx, hit, run));
        });
    }
}
