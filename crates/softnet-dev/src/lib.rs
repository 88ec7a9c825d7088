//! Devices, and softnet's way to the kernel. All I/O `unsafe` of the project is here.

pub mod bpf;
pub mod device;
pub mod memfd;
pub mod netlink;
pub mod netns;
pub mod sys_error;
#[cfg(test)]
mod testing;
pub mod traffic;
pub mod xdp;

pub use device::{
    Device, DeviceInfo, Doorbell, Features, LinkState, OpenDevice, QueueStats, RxQueue, TxQueue,
};
pub use sys_error::{SysError, SysResult};
