//! What sockets do for RFS: note which worker is near the thread that receives and sends by them.
//!
//! Called by threads of applications, with the socket locked. Invariant: without a table of flows
//! sockets have none of this.

use softnet_core::sock::udp::UdpInbox;
use softnet_core::sync::{AtomicU32, Ordering};

use crate::device::current_cpu;
use crate::stack::StackInner;

/// A socket's part (the kernel's `sk_rxhash`).
pub(crate) struct SockRps {
    /// The flow of its peer, once a datagram of that came; 0: not known.
    peer: AtomicU32,
}

impl SockRps {
    /// For a socket that receives by `inbox`; `None` if RFS is off.
    pub(crate) fn new(shared: &StackInner, inbox: &mut UdpInbox) -> Option<Self> {
        shared.backlogs.sockets.as_ref()?;
        inbox.keep_hashes();
        Some(SockRps { peer: AtomicU32::new(0) })
    }

    /// The calling thread has received from `inbox`.
    pub(crate) fn received(&self, shared: &StackInner, inbox: &mut UdpInbox) {
        let connected = inbox.is_connected();
        let mut last = 0;
        let near = || Some((shared.backlogs.sockets.as_ref()?, shared.backlogs.worker_near(current_cpu())?));
        let mut noted_at = None;
        for hash in inbox.hashes() {
            last = hash;
            if let Some((table, worker)) = *noted_at.get_or_insert_with(near) {
                table.record(hash, worker, connected);
            }
        }
        // One without a peer sends to others than it received from.
        let peer = if connected { last } else { 0 };
        if last != 0 && self.peer.load(Ordering::Relaxed) != peer {
            self.peer.store(peer, Ordering::Relaxed);
        }
    }

    /// The socket has another peer, or none: the flow of the old one is not its any more.
    pub(crate) fn reconnected(&self) {
        self.peer.store(0, Ordering::Relaxed);
    }

    /// The calling thread sends.
    pub(crate) fn sends(&self, shared: &StackInner) {
        let hash = self.peer.load(Ordering::Relaxed);
        if hash != 0
            && let Some(table) = &shared.backlogs.sockets
            && let Some(worker) = shared.backlogs.worker_near(current_cpu())
        {
            table.record(hash, worker, true);
        }
    }
}
