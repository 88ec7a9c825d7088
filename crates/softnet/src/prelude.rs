//! What most programs need: `use softnet::prelude::*`.

pub use crate::config::{Config, DeviceConfig, InterfaceAddr, StackConfig};
pub use crate::net::{Epoll, EpollParams, Interest, RecvBatch, SendBatch, UdpSocket};
pub use crate::{Handle, Stack, StackBuilder};
