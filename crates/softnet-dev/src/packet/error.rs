//! Why a device on packet sockets could not be opened.

use std::net::IpAddr;

use crate::sys_error::SysError;

/// Why a device on packet sockets could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// There is no such interface.
    #[error("no interface {name} here; there are: {exist}")]
    NoInterface {
        /// The one asked for.
        name: String,
        /// Those that exist, by name.
        exist: String,
    },
    /// The interface has no MAC address.
    #[error("{name} is no Ethernet interface: softnet takes only those")]
    NotEthernet {
        /// The interface.
        name: String,
    },
    /// Both would answer for what is sent to the interface.
    #[error(
        "{name}: the kernel has {address} on it: packets that are sent there reach softnet as well as the kernel, and both would answer; take it off the interface (`ip addr flush dev {name}`), use `driver = \"xdp\"`, which tells the two apart, or say `force = true` in its [[device]]"
    )]
    KernelAddress {
        /// The interface.
        name: String,
        /// The address.
        address: IpAddr,
    },
    /// An MTU that its packets' lengths have no room for.
    #[error("{name} has an MTU of {mtu}, and {max} is the most: `ip link set {name} mtu {max}`")]
    Mtu {
        /// The interface.
        name: String,
        /// Its MTU.
        mtu: u32,
        /// The largest.
        max: u32,
    },
    /// A request to the kernel failed.
    #[error("{name}: {source}")]
    Kernel {
        /// The interface.
        name: String,
        /// What failed.
        source: SysError,
    },
}
