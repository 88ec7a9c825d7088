//! What a process tells another that takes an open device over from it: facts, and descriptors.
//!
//! Plain data, sent as text beside descriptors (`SCM_RIGHTS`). What comes from another process is
//! checked where it is used: a number that is out of range, or a descriptor of another kind, is an
//! error there.
//!
//! A frame is the one process's or the other's. The one that hands over stops its queues, says
//! which frames they hold ([`HeldFrames`]), and touches neither frames nor rings from then on; all
//! others are free. The other has opened the device before that, and touched nothing.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

/// An open device, to be taken over.
#[derive(Debug)]
pub struct DeviceHandOver {
    /// What is to be known.
    pub facts: DeviceFacts,
    /// The attachment of its program; then of each queue the socket that receives, and the one that sends.
    pub fds: Vec<OwnedFd>,
}

/// What is to be known of an open AF_XDP device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFacts {
    /// Index of its interface.
    pub ifindex: u32,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its MTU.
    pub mtu: u32,
    /// Whether its program is in the driver.
    pub native: bool,
    /// How it is attached, for the user.
    pub mode: String,
    /// Slots of each ring.
    pub ring: u32,
    /// Whether packets come in several frames.
    pub frags: bool,
    /// Its queues, by number.
    pub queues: Vec<QueueFacts>,
    /// Offloads that are off as long as it is open, and were on before.
    pub offloads: Vec<OffloadFacts>,
}

/// What is to be known of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueFacts {
    /// Whether it sends.
    pub sends: bool,
    /// Whether calls on its socket poll the kernel's instance.
    pub polled: bool,
    /// Knobs of the kernel's instance that were set.
    pub knobs: Option<KnobFacts>,
}

/// Knobs of a NAPI instance of the kernel: `defer-hard-irqs`, `gro-flush-timeout`,
/// `irq-suspend-timeout`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnobFacts {
    /// Its number.
    pub napi: u32,
    /// As they were before.
    pub before: (u32, u64, u64),
    /// As they are.
    pub set: (u32, u64, u64),
}

/// Offloads of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OffloadFacts {
    /// The interface, or a port of it.
    pub interface: String,
    /// Those that were on, by their names in the kernel.
    pub on: Vec<String>,
}

/// The frames that an RX queue holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldFrames {
    /// Their numbers.
    pub frames: Vec<u32>,
    /// The rest of a packet is to come whose beginning was read: it is to be skipped.
    pub is_amid: bool,
}
