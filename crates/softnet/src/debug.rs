//! `Debug` of types of which only little is worth telling, or nothing but their name.

use std::fmt::{Debug, Formatter, Result};

use crate::app::{NapiPoller, RawSender};
use crate::net::{Epoll, EpollCtl, ReadyFd, Received, RecvBatch, SendBatch, Socket};

impl Debug for Epoll {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Epoll").field("params", &self.params()).finish_non_exhaustive()
    }
}

impl<S: Socket + Debug> Debug for ReadyFd<S> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("ReadyFd").field("socket", self.socket()).finish_non_exhaustive()
    }
}

impl Debug for RecvBatch {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("RecvBatch").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Debug for Received<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Received").field("reply", &self.reply()).finish_non_exhaustive()
    }
}

impl Debug for SendBatch {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("SendBatch").field("len", &self.len()).finish_non_exhaustive()
    }
}

macro_rules! opaque {
    ($($name:literal: $type:ty),* $(,)?) => {$(
        impl Debug for $type {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                f.debug_struct($name).finish_non_exhaustive()
            }
        }
    )*};
}

opaque! {
    "EpollCtl": EpollCtl,
    "NapiPoller": NapiPoller,
    "RawSender": RawSender,
}

// Of the parts within.
opaque! {
    "App": crate::napi::App,
    "Apps": crate::napi::Apps,
    "Assembly": crate::assembly::Assembly,
    "Home": crate::napi::Home,
    "Housekeeper": crate::assembly::Housekeeper,
    "Input": crate::napi::Input,
    "NapiInstance": crate::napi::NapiInstance,
    "NapiTimer": crate::napi::NapiTimer,
    "Netdev": crate::device::Netdev,
    "OpenParts": crate::device::OpenParts,
    "PollThread": crate::napi::PollThread,
    "Pool": crate::napi::Pool,
    "QueueWake": crate::tx::QueueWake,
    "Residency": crate::napi::Residency,
    "SocketTable": crate::stack::SocketTable,
    "StackDevice": crate::device::StackDevice,
    "StackInner": crate::stack::StackInner,
    "TxBackpressure": crate::tx::TxBackpressure,
    "TxDue": crate::tx::TxDue,
    "Waker": crate::util::Waker,
    "Worker": crate::poll::Worker,
    "WorkerShared": crate::napi::WorkerShared,
    "XdpOpener": crate::driver::xdp::XdpOpener,
}
