//! Devices that are set up and down by hand, and their MTU.
//!
//! One that is down is closed, so that routes by way of it give way to others, and stays so whatever
//! becomes of its interface.

use super::{Housekeeper, RETRY};
use crate::config::Config;
use crate::control::SetLink;
use crate::driver::{DeviceError, LinkChange};
use crate::live::{LiveError, device};
use crate::util::warn;

impl Housekeeper {
    /// Makes a change of a device's link. Returns how many there were.
    pub(super) fn set_link(&mut self, set: &SetLink) -> Result<u64, LiveError> {
        let config = self.config.clone();
        let (dev, _) = device(&config, &set.dev)?;
        if self.absent[usize::from(dev)] {
            return refuse(format!("{}: the configuration does not have it any more", set.dev));
        }
        // What is so by now, and not as it was told last.
        self.links();
        match set.change {
            LinkChange::Down => self.link_down(&config, dev),
            LinkChange::Up => self.link_up(&config, dev),
            LinkChange::Mtu(mtu) => self.link_mtu(&config, dev, mtu),
        }
    }

    fn mtu(&self, dev: u16) -> Option<u32> {
        let live = self.shared.devices[usize::from(dev)].live.load();
        live.as_ref().map(|live| live.device.info().mtu.into())
    }

    fn link_down(&mut self, config: &Config, dev: u16) -> Result<u64, LiveError> {
        let device = self.shared.devices[usize::from(dev)].clone();
        if device.is_down() {
            return Ok(0);
        }
        let open = self.is_open(dev);
        if open {
            // First, so that packets go another way where there is one.
            self.set_open(dev, false);
        }
        if let Err(error) = self.opener.set_link(&config.request(dev), LinkChange::Down) {
            self.set_open(dev, open);
            return refuse(error);
        }
        device.set_down(true);
        self.close(dev);
        self.links();
        Ok(1)
    }

    fn link_up(&mut self, config: &Config, dev: u16) -> Result<u64, LiveError> {
        let device = self.shared.devices[usize::from(dev)].clone();
        let (was_down, was_open) = (device.is_down(), self.is_open(dev));
        if let Err(error) = self.opener.set_link(&config.request(dev), LinkChange::Up) {
            return refuse(error);
        }
        device.set_down(false);
        // It may be opened for that.
        self.links();
        if self.is_open(dev) {
            return Ok(u64::from(was_down || !was_open));
        }
        if device.vlan.is_some_and(|vlan| !self.is_open(vlan.link)) {
            // It comes with its link.
            return Ok(u64::from(was_down));
        }
        let Err(error) = self.open(dev) else { return Ok(1) };
        if was_down {
            device.set_down(true);
            if let Err(error) = self.opener.set_link(&config.request(dev), LinkChange::Down) {
                warn(format_args!("{}: stays up, but is not open: {error}", device.name));
            }
        }
        refuse(error)
    }

    fn link_mtu(&mut self, config: &Config, dev: u16, mtu: u32) -> Result<u64, LiveError> {
        let device = &config.devices[usize::from(dev)];
        let before = self.mtu(dev);
        if before == Some(mtu) {
            return Ok(0);
        }
        let over = self.vlans(dev).into_iter().map(|vlan| &config.devices[usize::from(vlan)]);
        let speaks = std::iter::once(device).chain(over).find(|device| device.speaks_ipv6());
        if let Some(speaker) = speaks.filter(|_| mtu < 1280) {
            let name = &speaker.name;
            return refuse(format!("{name}: IPv6 takes an MTU of 1280 or more, and this is {mtu}"));
        }
        if let Err(error) = self.opener.set_link(&config.request(dev), LinkChange::Mtu(mtu)) {
            return refuse(error);
        }
        let Some(before) = before else { return Ok(1) };
        match self.open_anew(dev, mtu) {
            Ok(()) => Ok(1),
            Err(error) => {
                let back = self.opener.set_link(&config.request(dev), LinkChange::Mtu(before));
                if let Err(error) = back.and_then(|()| self.open_anew(dev, before)) {
                    warn(format_args!("{}: closed, and tried again: {error}", device.name));
                    self.retry_at = Some(self.shared.clock.now() + RETRY.as_nanos() as u64);
                }
                refuse(error)
            }
        }
    }

    /// Has a device open by this MTU, which its interface has now.
    fn open_anew(&mut self, dev: u16, mtu: u32) -> Result<(), DeviceError> {
        // What is told of the interface opens it, as when its MTU was changed by others.
        self.links();
        if self.mtu(dev) == Some(mtu) {
            return Ok(());
        }
        self.close(dev);
        self.open(dev)
    }
}

fn refuse<T>(why: impl ToString) -> Result<T, LiveError> {
    Err(LiveError::Impossible(why.to_string()))
}
