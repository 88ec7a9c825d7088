//! Addresses that a shared device has because the kernel's interface has them, if
//! [`FollowConfig::addresses`](crate::config::FollowConfig::addresses) says so.
//!
//! Called by the housekeeper. All are listed whenever the kernel tells of a change, and compared
//! with what is known, so a notification that was lost costs nothing. Invariant: an address of the
//! configuration, or one that was added by hand, is never taken away here.

use crate::config::{Config, DeviceConfig, InterfaceAddr, is_link_local};
use crate::util::{fail, warn};

use super::Housekeeper;

/// What is known of the kernel's addresses.
#[derive(Default)]
pub(super) struct KernelAddrs {
    /// By device, those that it has because the kernel has them.
    followed: Vec<Vec<InterfaceAddr>>,
    /// Those that it can't have, which was told.
    refused: Vec<(u16, InterfaceAddr)>,
    /// The kernel could not be asked the last time, which was told.
    failing: bool,
    /// They are to be listed: a device was opened or closed.
    due: bool,
}

impl KernelAddrs {
    /// They are to be listed before the housekeeper sleeps again.
    pub(super) fn look_again(&mut self) {
        self.due = true;
    }

    /// Whether they are.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// The same; they are not any more.
    pub(super) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.due)
    }
}

impl Housekeeper {
    /// Gives devices the addresses that the kernel's interfaces have by now, and takes those away that
    /// they do not have any more.
    pub(super) fn follow_addresses(&mut self) {
        let config = self.config.clone();
        if !config.devices.iter().any(|device| device.follows_addresses(config.stack.follow.as_ref())) {
            return;
        }
        let Some(monitor) = &mut self.monitor else { return };
        let all = match monitor.addresses() {
            Ok(all) => all,
            Err(error) => {
                if !std::mem::replace(&mut self.kernel_addrs.failing, true) {
                    fail(format_args!(
                        "the kernel's addresses can't be read: {error}. Those that are known stay"
                    ));
                }
                return;
            }
        };
        self.kernel_addrs.failing = false;
        let names: Vec<(u32, String)> = monitor.links().map(|link| (link.index, link.name.clone())).collect();
        let wanted = |dev: usize| -> Vec<InterfaceAddr> {
            let device = &config.devices[dev];
            let index = names.iter().find(|(_, name)| *name == device.name).map(|(index, _)| *index);
            let Some(index) =
                index.filter(|_| !self.absent[dev] && device.follows_addresses(config.stack.follow.as_ref()))
            else {
                return Vec::new();
            };
            let of_it = all.iter().filter(|own| own.index == index && !is_link_local(own.addr));
            of_it.filter_map(|own| InterfaceAddr::new(own.addr, own.len).ok()).collect()
        };
        let wanted: Vec<Vec<InterfaceAddr>> = (0..config.devices.len()).map(wanted).collect();
        self.kernel_addrs.followed.resize(wanted.len(), Vec::new());
        self.drop_followed(&wanted);
        self.kernel_addrs.refused.retain(|(dev, own)| wanted[usize::from(*dev)].contains(own));
        for (dev, wanted) in wanted.into_iter().enumerate() {
            wanted.into_iter().for_each(|own| self.add_followed(dev, own));
        }
    }

    /// Takes away what is not `wanted` any more.
    fn drop_followed(&mut self, wanted: &[Vec<InterfaceAddr>]) {
        let mut config = Config::clone(&self.config);
        let mut left = Vec::new();
        for (dev, followed) in self.kernel_addrs.followed.iter_mut().enumerate() {
            // What a configuration names since then is not the kernel's to take away.
            followed.retain(|own| !self.told.addresses[dev].contains(own));
            let (stay, gone): (Vec<_>, Vec<_>) = followed.iter().partition(|own| wanted[dev].contains(own));
            config.devices[dev].addresses.retain(|own| !gone.contains(own));
            left.push(stay);
        }
        let changed = |(new, old): (&DeviceConfig, &DeviceConfig)| new.addresses != old.addresses;
        if config.devices.iter().zip(&self.config.devices).any(changed)
            && let Err(error) = self.adopt_addresses(config)
        {
            // To be taken away later.
            return warn(format_args!("addresses that the kernel has no more stay: {error}"));
        }
        self.kernel_addrs.followed = left;
    }

    /// Gives device `dev` an address of its interface, unless a device has it already.
    fn add_followed(&mut self, dev: usize, own: InterfaceAddr) {
        let has = |device: &DeviceConfig| device.addresses.iter().any(|other| other.addr() == own.addr());
        // One that was taken away by hand since is followed, and stays away.
        if self.kernel_addrs.followed[dev].contains(&own) || self.config.devices.iter().any(has) {
            return;
        }
        let mut config = Config::clone(&self.config);
        config.devices[dev].addresses.push(own);
        let key = (dev as u16, own);
        match self.adopt_addresses(config) {
            Ok(()) => {
                self.kernel_addrs.followed[dev].push(own);
                self.kernel_addrs.refused.retain(|refused| *refused != key);
            }
            Err(error) if !self.kernel_addrs.refused.contains(&key) => {
                let name = &self.config.devices[dev].name;
                warn(format_args!("{name}: {own} is the kernel's alone: {error}"));
                self.kernel_addrs.refused.push(key);
            }
            Err(_) => {}
        }
    }
}
