//! Memberships of multicast groups: keeps the devices' drivers in step with the table of sockets.
//!
//! Called by threads that join, leave and close sockets, and by the housekeeper as devices come and go. The lock of the table's
//! writer is taken inside that of the device's groups (see [`Netdev::update_group`](crate::device::StackDevice)), for the look-up alone.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use softnet_core::sock::key::Addr;

use super::options::of_bind;
use crate::device::group_ip;
use crate::stack::StackInner;
use crate::util::warn;

/// Device `dev` was opened: tells its driver of the groups that have members.
pub(crate) fn opened(shared: &StackInner, dev: u16) {
    let groups: Vec<Addr> = shared.sockets.binder().groups(dev).map(|(group, _)| group).collect();
    for group in groups {
        if let Err(error) = update(shared, group, dev) {
            let name = &shared.netdevs[usize::from(dev)].name;
            warn(format_args!("{name}: members of {} get nothing: {error}", group_ip(group)));
        }
    }
}

/// The groups that have members on device `dev`, and how many, for display.
pub(crate) fn members(shared: &StackInner, dev: u16) -> BTreeMap<IpAddr, usize> {
    shared.sockets.binder().groups(dev).map(|(group, members)| (group_ip(group), members)).collect()
}

/// Makes the socket in slot `index` a member of `group` on device `dev`, which need not be open.
pub(super) fn join(shared: &StackInner, index: u32, group: Addr, dev: u16) -> io::Result<()> {
    let joined = shared.sockets.binder().join(index, group, dev);
    joined.map_err(of_bind)?;
    update(shared, group, dev).inspect_err(|_| _ = leave(shared, index, group, dev))
}

/// Ends the membership of that socket.
pub(super) fn leave(shared: &StackInner, index: u32, group: Addr, dev: u16) -> io::Result<()> {
    let ended = shared.sockets.binder().leave(index, group, dev);
    ended.map_err(of_bind)?;
    left(shared, &[(group, dev)]);
    Ok(())
}

/// These memberships, each in a group on a device, have ended.
pub(super) fn left(shared: &StackInner, memberships: &[(Addr, u16)]) {
    for &(group, dev) in memberships {
        // Only a join can fail, and the socket that asked for it gets the error.
        let _ = update(shared, group, dev);
    }
}

/// Looks whether `group` has members on device `dev`, and tells the driver if that changed.
fn update(shared: &StackInner, group: Addr, dev: u16) -> io::Result<()> {
    let Some(netdev) = shared.netdevs.get(usize::from(dev)) else { return Ok(()) };
    netdev.device.update_group(group, dev, || shared.sockets.binder().has_members(group, dev))
}
