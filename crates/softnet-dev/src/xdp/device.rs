//! The shared part of an open device. Any thread may call it.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use softnet_core::skb::DropReason;
use softnet_core::steer::FlowKey;

use super::attach::Attachment;
use super::control::Control;
use super::groups::Groups;
use super::kernel_irq::KernelNapis;
use super::offload::Offloads;
use super::ports::Sharing;
use super::socket::Xsk;
use crate::device::{Device, DeviceInfo, LinkState};
use crate::ethtool_rx::KernelRxClass;
use crate::hand_over::{DeviceFacts, DeviceHandOver, QueueFacts};
use crate::rx_class::{RssChange, RssView, RuleOrder, RuleView, RxClassError};
use crate::snoop::Snoop;
use crate::sys_error::{SysError, SysResult};

/// The shared part of an open device.
pub(super) struct XdpDevice {
    pub(super) info: DeviceInfo,
    pub(super) control: Control,
    pub(super) sockets: Vec<Arc<Xsk>>,
    pub(super) attachment: Arc<Attachment>,
    pub(super) groups: Arc<Groups>,
    pub(super) class: KernelRxClass,
    pub(super) napis: Arc<KernelNapis>,
    /// Slots of each ring.
    pub(super) ring: u32,
    pub(super) native: bool,
    /// What another process told of the queues, until they are this one's.
    pub(super) handed: Mutex<Vec<QueueFacts>>,
    /// Has ports of shared addresses reserved.
    pub(super) _sharing: Arc<Sharing>,
    /// Copies of what the program leaves to the kernel, and neighbours mean for all.
    pub(super) snoop: Snoop,
    /// Puts back what was switched off.
    pub(super) offloads: Offloads,
}

impl Device for XdpDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Also brings the kernel's counts of lost packets into the RX queues' statistics: they are
    /// worth a system call when it is asked for, not on the packets' way.
    fn link(&self) -> LinkState {
        self.sockets.iter().for_each(|socket| socket.refresh());
        self.control.link()
    }

    fn join_group(&self, group: IpAddr) -> io::Result<()> {
        self.groups.join(group).map_err(io::Error::from)
    }

    fn leave_group(&self, group: IpAddr) {
        self.groups.leave(group);
    }

    fn snoop(&self) -> Option<&Snoop> {
        Some(&self.snoop)
    }

    fn closing(&self) {
        if let Some(socket) = self.sockets.first() {
            self.snoop.close(socket.quiet());
        }
    }

    fn losses(&self) -> Vec<(DropReason, u64)> {
        let too_long = self.attachment.too_long();
        vec![(DropReason::RxTooLong, too_long), (DropReason::SnoopOverflow, self.snoop.lost())]
    }

    fn hand_over(&self) -> Option<SysResult<DeviceHandOver>> {
        Some(self.told())
    }

    fn taken_over(&self) -> SysResult<()> {
        let handed = std::mem::take(&mut *self.handed.lock().unwrap_or_else(PoisonError::into_inner));
        self.offloads.taken_over();
        for (queue, facts) in (0..).zip(handed) {
            self.napis.taken_over(queue, facts.knobs.as_ref());
            if let Some(socket) = self.sockets.get(queue as usize) {
                socket.irq.taken_over(facts.polled);
            }
        }
        self.attachment.taken_over()
    }

    fn rss(&self) -> Result<RssView, RxClassError> {
        self.class.rss(&self.control)
    }

    fn set_rss(&self, change: &RssChange) -> Result<Option<u32>, RxClassError> {
        self.class.set_rss(&self.control, change)
    }

    fn rules(&self) -> Result<Vec<RuleView>, RxClassError> {
        self.class.rules(&self.control)
    }

    fn set_rule(&self, order: &RuleOrder) -> Result<u32, RxClassError> {
        self.class.set_rule(&self.control, order)
    }

    fn flow_filters(&self) -> u32 {
        self.class.flow_filters(&self.control)
    }

    fn set_flow_filter(&self, at: u32, to: Option<(&FlowKey, u16)>) -> Result<(), RxClassError> {
        self.class.set_flow_filter(&self.control, at, to)
    }

    fn filters_settled(&self) -> bool {
        self.class.filters_settled()
    }
}

impl XdpDevice {
    /// What another process needs to go on with it.
    fn told(&self) -> SysResult<DeviceHandOver> {
        let dup = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(|error| SysError::new("hand a descriptor over", error))
        };
        // The other would take them for free.
        let lost = self.sockets.first().map_or(0, |socket| socket.umem().lost());
        if lost > 0 {
            let why = format!("the kernel has not let go of {lost} frames of sockets that are closed");
            return Err(SysError::new("hand packet memory over", io::Error::other(why)));
        }
        let queue = |(queue, socket): (u32, &Arc<Xsk>)| QueueFacts {
            sends: socket.tx_fd().is_some(),
            polled: socket.irq.is_polled(),
            knobs: self.napis.mirrored(queue),
        };
        let mut fds = vec![self.attachment.link_fd()?];
        for socket in &self.sockets {
            socket.share()?;
            for fd in std::iter::once(socket.fd()).chain(socket.tx_fd()) {
                fds.push(dup(fd)?);
            }
        }
        let facts = DeviceFacts {
            ifindex: self.info.ifindex,
            mac: self.info.mac,
            mtu: self.info.mtu.into(),
            native: self.native,
            mode: self.info.mode.clone(),
            ring: self.ring,
            frags: self.sockets.first().is_some_and(|socket| socket.has_frags()),
            queues: (0..).zip(&self.sockets).map(queue).collect(),
            offloads: self.offloads.told(),
        };
        Ok(DeviceHandOver { facts, fds })
    }
}
