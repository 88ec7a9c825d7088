//! What is UDP's alone of a stack's sockets: ports that devices share with the kernel, and where
//! long datagrams went.
//!
//! Called by threads that send (destinations), and by those that open and close sockets (ports).

use std::sync::Arc;

use rustix::io::Errno;
use softnet_core::fold::FoldKey;
use softnet_core::ip::pmtu::RecentPeers;
use softnet_dev::xdp::{LocalEnd, Ports};

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
