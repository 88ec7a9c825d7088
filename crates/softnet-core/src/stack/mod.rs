//! The composition: which stage follows which.
//!
//! The runtime, the tests' worlds and a simulation run this same code; what differs between them (time, wake-ups, devices)
//! comes in through small traits. Nothing here makes a system call, reads a clock or waits.

pub mod dev_tx;
pub mod device;
pub mod receive;
pub mod slow;
pub mod sockets;
pub mod tx_queue;

#[cfg(all(test, not(feature = "loom")))]
mod chain_tests;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
