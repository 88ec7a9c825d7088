//! The multicast groups that the driver of a device has joined.
//!
//! Called by threads that join, leave and close sockets, and by the housekeeper as devices come and go. A driver's call may wait
//! for the kernel, so it is made under a lock of the device, which no poller takes; whether a group has members is asked inside
//! that lock.
//!
//! Invariant: every change of the memberships, and every opening of a device, is followed by an [update](StackDevice::update_group)
//! of the group, which brings the driver up to date. In whatever order threads arrive, the last update follows the last change,
//! so the driver of an open device knows exactly the groups that have members there (except those it refused: a join returns
//! the error, and opening the device logs it).

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Mutex;

use softnet_core::sock::key::{Addr, is_v4, socket_addr};
use softnet_dev::Device;

use super::StackDevice;
use crate::util::lock;

/// The groups that have members on a device, each with the netdev that they are on; the device's driver has joined these. None
/// while the device is not open.
#[derive(Default)]
pub(crate) struct Groups(Mutex<BTreeSet<(Addr, u16)>>);

impl Groups {
    /// The device is closed, and no look-up finds it any more. A thread that still holds it must
    /// not keep its memberships alive.
    pub(crate) fn closed(&self, device: &dyn Device) {
        let mut joined: Vec<Addr> =
            std::mem::take(&mut *lock(&self.0)).into_iter().map(|(group, _)| group).collect();
        joined.dedup();
        joined.into_iter().for_each(|group| device.leave_group(group_ip(group)));
    }
}

/// The group's address.
pub(crate) fn group_ip(group: Addr) -> IpAddr {
    socket_addr(group, 0, is_v4(group)).ip()
}

impl StackDevice {
    /// Tells the driver of `group`, if the device is open and it changed whether the group has members there. Whether it
    /// `has_members` on `netdev`, which is one of the device's, is asked here.
    pub(crate) fn update_group(
        &self,
        group: Addr,
        netdev: u16,
        has_members: impl FnOnce() -> bool,
    ) -> io::Result<()> {
        let mut joined = lock(&self.groups.0);
        let Some(live) = self.live.load_full() else { return Ok(()) };
        let of_driver = |joined: &BTreeSet<_>| joined.range((group, 0)..=(group, u16::MAX)).next().is_some();
        match (has_members(), joined.contains(&(group, netdev))) {
            (true, false) => {
                if !of_driver(&joined) {
                    live.device.join_group(group_ip(group))?;
                }
                joined.insert((group, netdev));
            }
            (false, true) => {
                joined.remove(&(group, netdev));
                if !of_driver(&joined) {
                    live.device.leave_group(group_ip(group));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
