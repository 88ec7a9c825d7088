//! Why a device could not be opened.

use crate::sys_error::SysError;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// There is no such interface.
    #[error("no interface {name} here; there are: {exist}")]
    NoInterface {
        /// The one asked for.
        name: String,
        /// Those that exist, by name.
        exist: String,
    },
    /// Taking the interface could cut the machine off.
    #[error(
        "{name} carries a default route: taking it may cut this machine off from the network; if that is meant, use `softnet run --force` or `force = true` in its [[device]]"
    )]
    DefaultRoute {
        /// The interface.
        name: String,
    },
    /// To take an address of the kernel's would take from it whatever is reached there.
    #[error(
        "{name}: the kernel has {address}, too, on {holder}: taking it would cut off what runs there, SSH for one; give softnet another, or say `shared = true` in its [[device]], which leaves the kernel all but the UDP ports that softnet has open, or use `softnet run --force`, which leaves it nothing"
    )]
    KernelAddress {
        /// The interface that was to be opened.
        name: String,
        /// The address.
        address: std::net::IpAddr,
        /// The interface on which the kernel has it.
        holder: String,
    },
    /// Frames of VLANs would pass for frames without.
    #[error(
        "{name}: VLAN tags are taken out of frames before softnet sees them, so that it would take those of VLANs for its own, and {command} was without effect; take an interface whose driver can switch that off, or, if no VLAN is in use there, say `softnet run --force` or `force = true` in its [[device]]"
    )]
    VlanOffload {
        /// The interface.
        name: String,
        /// What it would take, on the interface or a port of it.
        command: String,
    },
    /// Packets of this interface do not fit into a frame.
    #[error(
        "{name} has an MTU of {mtu}; AF_XDP packets here have room for {max}: `ip link set {name} mtu {max}`"
    )]
    Mtu {
        /// The interface.
        name: String,
        /// Its MTU in bytes.
        mtu: u32,
        /// What would do.
        max: u32,
    },
    /// The interface has no Ethernet addresses (a tunnel, loopback).
    #[error("{name} is no Ethernet interface")]
    NotEthernet {
        /// The interface.
        name: String,
    },
    /// A ring size that cannot be.
    #[error("ring size {0}: expected a power of two from {min} to {max}", min = super::MIN_RING, max = super::MAX_RING)]
    RingSize(u32),
    /// The thread context has its memory in another region.
    #[error("the thread context belongs to region {ctx}, the devices to region {umem}")]
    Region {
        /// Region of the context.
        ctx: u32,
        /// Region of the umem.
        umem: u32,
    },
    /// Too few frames are free.
    #[error(
        "{name}: only {posted} frames were free for RX queue {queue}, {ring} are wanted for each: make the region larger or the rings smaller"
    )]
    NoFrames {
        /// The interface.
        name: String,
        /// The queue.
        queue: u32,
        /// Frames that could be posted.
        posted: usize,
        /// Slots of a ring.
        ring: u32,
    },
    /// Another program owns the interface's XDP hook.
    #[error("another XDP program is attached to {name}; `ip link show {name}` tells which: {source}")]
    Occupied {
        /// The interface.
        name: String,
        /// What the kernel said.
        source: SysError,
    },
    /// Another process has the device open, and it can't be taken over from that as it is wanted.
    #[error("{name}: it can't be taken over: {why}")]
    HandOver {
        /// The interface.
        name: String,
        /// Why not.
        why: String,
    },
    /// The kernel refused something; the message says what, and what grants it.
    #[error("{name}: {source}")]
    Kernel {
        /// The interface.
        name: String,
        /// What was asked and what the kernel said.
        source: SysError,
    },
}
