//! Devices, and softnet's way to the kernel. All I/O `unsafe` of the project is here.

pub mod device;
pub mod memfd;
pub mod process;

pub use device::{
    Device, DeviceInfo, Doorbell, Features, LinkState, OpenDevice, QueueStats, RxQueue, TxQueue,
};
