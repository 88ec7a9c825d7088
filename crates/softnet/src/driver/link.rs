//! What can be changed of the interface that a device is on while the stack runs.

use serde::{Deserialize, Serialize};
use softnet_dev::SysResult;
use softnet_dev::netlink::Netlink;

use super::DeviceError;

/// A change of a device's link, in the words of `ip link set`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LinkChange {
    /// In use.
    Up,
    /// Out of use: nothing is sent or received.
    Down,
    /// The largest L3 packet, in bytes.
    Mtu(u32),
}

/// Makes the change of the kernel's interface `name`, in the calling thread's network namespace.
pub(super) fn set_interface(name: &str, change: LinkChange) -> Result<(), DeviceError> {
    let set = || -> SysResult<()> {
        let mut netlink = Netlink::new()?;
        match change {
            LinkChange::Up => netlink.set_up(name),
            LinkChange::Down => netlink.set_down(name),
            LinkChange::Mtu(mtu) => netlink.set_mtu(name, mtu),
        }
    };
    set().map_err(|error| format!("{name}: {error}").into())
}
