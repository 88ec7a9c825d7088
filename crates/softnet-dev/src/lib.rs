//! Devices, and softnet's way to the kernel. All I/O `unsafe` of the stack is here.

#![warn(missing_debug_implementations)]

pub mod bpf;
pub mod closer;
pub mod confine;
mod debug;
pub mod device;
pub mod ethtool;
mod ethtool_rx;
pub mod flow_hkey;
mod flow_slots;
pub mod hand_over;
pub mod hugepage;
pub mod mem;
pub mod memfd;
pub mod netlink;
pub mod netns;
pub mod packet;
mod patience;
pub mod pi_mutex;
pub mod process;
pub mod rx_class;
mod rx_frames;
pub mod sched;
pub mod snoop;
pub mod sys_error;
pub mod tap;
#[cfg(test)]
mod testing;
pub mod topology;
pub mod userns;
mod vnet;
mod watched_fd;
pub mod xdp;

pub use device::{
    Device, DeviceInfo, Doorbell, Features, KernelIrq, LinkState, OpenDevice, QueueStats, Reaped, RxQueue,
    TxQueue,
};
pub use pi_mutex::{PiGuard, PiMutex};
pub use sys_error::{SysError, SysResult};
