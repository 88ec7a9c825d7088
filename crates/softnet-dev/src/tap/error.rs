//! Why a TAP could not be opened.

use crate::sys_error::SysError;

/// Why a TAP could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The kernel offers no TAPs here.
    #[error(
        "{name}: /dev/net/tun is missing: load its module (`sudo modprobe tun`), or, in a container, pass the device in (`--device /dev/net/tun`)"
    )]
    NoTun {
        /// The TAP.
        name: String,
    },
    /// The name is that of another interface.
    #[error(
        "{name}: there is an interface of this name already, which is no TAP ({what}): give the device another name, or delete that (`ip link del {name}`)"
    )]
    NameTaken {
        /// The TAP.
        name: String,
        /// What has the name.
        what: String,
    },
    /// Another process has the TAP open.
    #[error(
        "{name}: another program has this TAP open, such as a virtual machine or a second softnet: end that, or give the device another name"
    )]
    Busy {
        /// The TAP.
        name: String,
    },
    /// An existing TAP was made with one queue.
    #[error(
        "{name}: this TAP was made with one queue, and {queues} are configured: say `queues = 1`, or make it anew (`ip tuntap del {name} mode tap; ip tuntap add {name} mode tap multi_queue`)"
    )]
    OneQueue {
        /// The TAP.
        name: String,
        /// How many were asked for.
        queues: u32,
    },
    /// An existing TAP has another MTU.
    #[error(
        "{name}: this TAP exists, with an MTU of {found}, and is left as it is: leave out `mtu = {wanted}`, or set it (`ip link set {name} mtu {wanted}`)"
    )]
    Mtu {
        /// The TAP.
        name: String,
        /// What it has.
        found: u32,
        /// What was asked for.
        wanted: u32,
    },
    /// The MAC address is that of the kernel's end.
    #[error("{name}: {} is the MAC address of the kernel's end of this TAP: give softnet's end another", mac_text(.mac))]
    SameMac {
        /// The TAP.
        name: String,
        /// The address.
        mac: [u8; 6],
    },
    /// There is too little packet memory for its queues.
    #[error("{name}: no packet memory left for queue {queue}: raise `frames` in [stack]")]
    NoFrames {
        /// The TAP.
        name: String,
        /// The queue.
        queue: u32,
    },
    /// A request to the kernel failed.
    #[error("{name}: {source}")]
    Kernel {
        /// The TAP.
        name: String,
        /// What failed.
        source: SysError,
    },
}

fn mac_text(mac: &[u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
