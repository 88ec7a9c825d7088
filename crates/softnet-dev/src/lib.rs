//! Devices, and softnet's way to the kernel. All I/O `unsafe` of the project is here.

pub mod device;
pub mod hugepage;
pub mod mem;
pub mod memfd;

pub use device::{
    Device, DeviceInfo, Doorbell, Features, LinkState, OpenDevice, QueueStats, RxQueue, TxQueue,
};
