//! What is UDP's alone of a stack's sockets: where long datagrams went. Called by threads that send.

use softnet_core::fold::FoldKey;
use softnet_core::ip::pmtu::RecentPeers;

/// See the module.
pub(crate) struct UdpTable {
    /// Where long datagrams went lately.
    pub(crate) recent: RecentPeers,
}

impl UdpTable {
    /// `key` hashes destinations.
    pub(super) fn new(key: FoldKey) -> Self {
        UdpTable { recent: RecentPeers::new(key) }
    }
}
