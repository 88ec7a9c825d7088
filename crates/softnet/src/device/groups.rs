//! Memberships of multicast groups: keeps the devices' drivers in step with the table of sockets.
//!
//! Called by threads that join, leave and close sockets, and by the housekeeper as devices come and
//! go. A driver's call may wait for the kernel, so it is made under a lock of the device, which no
//! poller takes; the lock of the table's writer is taken inside that one, for the look-up alone.
//!
//! Invariant: every change of the table, and every opening of a device, is followed by a look at
//! the group under the device's lock, which brings the driver up to date. In whatever order threads
//! arrive, the last look follows the last change, so the driver of an open device knows exactly the
//! groups that have members there (except those it refused: a join returns the error, and opening
//! the device logs it).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Mutex;

use softnet_core::sock::key::{Addr, is_v4, socket_addr};
use softnet_dev::Device;

use crate::net::of_bind;
use crate::stack::StackInner;
use crate::util::{lock, note};

/// The groups that a device's driver has joined; none while the device is not open.
#[derive(Default)]
pub(crate) struct Groups(Mutex<BTreeSet<Addr>>);

impl Groups {
    /// Device `dev` was opened: tells its driver of the groups that have members.
    pub(crate) fn opened(shared: &StackInner, dev: u16) {
        let groups: Vec<Addr> = shared.sockets.binder().groups(dev).map(|(group, _)| group).collect();
        for group in groups {
            if let Err(error) = tell(shared, group, dev) {
                let name = &shared.devices[usize::from(dev)].name;
                note(format_args!("{name}: members of {} get nothing: {error}", ip(group)));
            }
        }
    }

    /// The groups that have members on device `dev`, and how many, for display.
    pub(crate) fn members(shared: &StackInner, dev: u16) -> BTreeMap<IpAddr, usize> {
        shared.sockets.binder().groups(dev).map(|(group, members)| (ip(group), members)).collect()
    }

    /// The device is closed, and no look-up finds it any more. A thread that still holds it must
    /// not keep its memberships alive.
    pub(crate) fn closed(&self, device: &dyn Device) {
        std::mem::take(&mut *lock(&self.0)).into_iter().for_each(|group| device.leave_group(ip(group)));
    }
}

fn ip(group: Addr) -> IpAddr {
    socket_addr(group, 0, is_v4(group)).ip()
}

/// Makes the socket in slot `index` a member of `group` on device `dev`, which need not be open.
pub(crate) fn join(shared: &StackInner, index: u32, group: Addr, dev: u16) -> io::Result<()> {
    let joined = shared.sockets.binder().join(index, group, dev);
    joined.map_err(of_bind)?;
    tell(shared, group, dev).inspect_err(|_| _ = leave(shared, index, group, dev))
}

/// Ends the membership of that socket.
pub(crate) fn leave(shared: &StackInner, index: u32, group: Addr, dev: u16) -> io::Result<()> {
    let left = shared.sockets.binder().leave(index, group, dev);
    left.map_err(of_bind)?;
    self::left(shared, &[(group, dev)]);
    Ok(())
}

/// These memberships, each in a group on a device, have ended.
pub(crate) fn left(shared: &StackInner, memberships: &[(Addr, u16)]) {
    for &(group, dev) in memberships {
        // Only a join can fail, and the socket that asked for it gets the error.
        let _ = tell(shared, group, dev);
    }
}

/// Looks whether `group` has members on device `dev`, and tells the driver if that changed.
fn tell(shared: &StackInner, group: Addr, dev: u16) -> io::Result<()> {
    let Some(netdev) = shared.devices.get(usize::from(dev)) else { return Ok(()) };
    let mut told = lock(&netdev.groups.0);
    let Some(live) = netdev.live.load_full() else { return Ok(()) };
    let wanted = shared.sockets.binder().has_members(group, dev);
    match (wanted, told.contains(&group)) {
        (true, false) => {
            live.device.join_group(ip(group))?;
            told.insert(group);
        }
        (false, true) => {
            live.device.leave_group(ip(group));
            told.remove(&group);
        }
        _ => {}
    }
    Ok(())
}
