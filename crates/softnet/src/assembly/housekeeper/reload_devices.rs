//! Devices that another configuration adds, or opens anew.
//!
//! Part of a [reload](super::reload), in this order: what may be refused is tried; new devices become part of
//! the stack, closed; and when routes and rules are those of the new configuration, devices are opened. Invariant: a
//! refusal leaves every device as it is.

use std::sync::Arc;

use softnet_dev::netlink::LinkMonitor;

use super::{Housekeeper, RETRY};
use crate::config::{Config, DeviceConfig};
use crate::device::{StackDevice, vlan};
use crate::driver::{DeviceError, Xdp};
use crate::live::LiveError;
use crate::util::lock;

impl Housekeeper {
    /// Tries what may be refused of devices of `config` that are to be added, which are those from
    /// index `known` on, and of those that are to be opened `anew`.
    pub(super) fn prepare_devices(
        &mut self,
        config: &Config,
        known: usize,
        anew: &[usize],
    ) -> Result<(), LiveError> {
        let refused = |error: DeviceError| LiveError::Impossible(error.to_string());
        let shares = |dev: &usize| config.devices[*dev].driver.get::<Xdp>().is_some_and(|xdp| xdp.shared);
        let with_driver: Vec<usize> = anew.iter().copied().chain(known..config.devices.len()).collect();
        // Sockets tell their ports to what they were told of at the start.
        if let Some(dev) = with_driver.iter().copied().find(shares)
            && !self.shared.sockets.ports().matter()
        {
            let key = format!("device {:?}.shared, where none was of driver xdp", config.devices[dev].name);
            return Err(LiveError::Restart(vec![key]));
        }
        for &dev in &with_driver {
            let (device, request) = (&config.devices[dev], config.request(dev as u16));
            let alike =
                config.devices.iter().filter(|other| other.driver.kind() == device.driver.kind()).count();
            self.opener.prepare(&device.driver, alike).map_err(refused)?;
            let before = self.config.devices.get(dev).map(|device| device.driver.kind());
            if before != Some(device.driver.kind()) {
                device.driver.look(&request).map_err(refused)?;
            } else if self.is_open(dev as u16)
                && let Some((addr, holder)) = self.opener.conflict(&request)
            {
                return Err(LiveError::KernelHas { addr, dev: device.name.clone(), holder });
            }
            let live = self.shared.devices.get(dev).and_then(|device| device.live.load_full());
            if let Some(live) = live {
                let queues = live.tx.queues.len() as u16;
                device
                    .xps(queues)
                    .map_err(|error| LiveError::Impossible(format!("{}: {error}", device.name)))?;
            }
        }
        if with_driver.len() > anew.len() && self.monitor.is_none() {
            let monitor = LinkMonitor::new().map_err(|error| LiveError::Impossible(error.to_string()))?;
            self.monitor = Some(monitor);
        }
        Ok(())
    }

    /// Makes the devices of `config` from index `known` on part of the stack, as such that the
    /// configuration does not have yet: closed, and without addresses.
    pub(super) fn add_devices(&mut self, config: &Config, known: usize) {
        let all = config.devices.len();
        if all == known {
            return;
        }
        let added = StackDevice::all(config, known);
        let before: Vec<_> = self.shared.netdevs.iter().cloned().collect();
        for netdev in vlan::netdevs(&before, &added) {
            self.shared.netdevs.push(netdev);
        }
        for device in added {
            self.opener.assign(device.index, &config.devices[usize::from(device.index)].driver);
            self.shared.devices.push(device);
        }
        self.refused.resize(all, None);
        self.linkless.resize(all, false);
        self.absent.resize(all, true);
        let mut now = Config::clone(&self.config);
        let without_addresses =
            |device: &DeviceConfig| DeviceConfig { addresses: Vec::new(), ..device.clone() };
        now.devices.extend(config.devices[known..].iter().map(without_addresses));
        self.config = Arc::new(now);
        self.published.store(self.config.clone());
    }

    /// Closes devices that are to be opened `anew`, and opens these and those that `came`, of which the ones from
    /// index `known` on are new. Returns what became of each, in words.
    pub(super) fn open_devices(
        &mut self,
        (before, known): (&Config, usize),
        anew: &[usize],
        came: &[usize],
    ) -> Vec<String> {
        let config = self.config.clone();
        let (mut opened, mut done) = (Vec::with_capacity(anew.len() + came.len()), Vec::new());
        for &dev in anew {
            self.close(dev as u16);
            if before.devices[dev].driver != config.devices[dev].driver {
                self.opener.assign(dev as u16, &config.devices[dev].driver);
            }
            match self.is_wanted(dev as u16) {
                _ if came.contains(&dev) => {}
                true => opened.push((dev, self.open_again(dev as u16))),
                false => done.push(format!("{}: opened anew when it is set up", config.devices[dev].name)),
            }
        }
        for &dev in came {
            opened.push((dev, self.open_again(dev as u16)));
        }
        self.choose_steering(known);
        // A VLAN may have been opened by its link, after its turn.
        for (dev, opened) in opened {
            let name = &config.devices[dev].name;
            match opened {
                Ok(()) if !self.is_open(dev as u16) => done.push(format!("{name}: opens with its link")),
                Ok(()) if dev >= known => done.push(format!("{name}: added")),
                Ok(()) if came.contains(&dev) => done.push(format!("{name}: is back")),
                Ok(()) => done.push(format!("{name}: opened anew")),
                // As at any other time that its interface can't be taken.
                Err(error) => {
                    done.push(format!("{name}: is to be taken, but can't be yet: {error}"));
                    self.refused[dev] = Some(error.to_string());
                    self.retry_at = Some(self.shared.clock.now() + RETRY.as_nanos() as u64);
                }
            }
        }
        done
    }

    /// If of devices from index `known` on the steering is to be chosen automatically, has it chosen.
    fn choose_steering(&mut self, known: usize) {
        let is_automatic = |dev: &Arc<StackDevice>| lock(&dev.steering).may_be_automatic();
        if self.shared.devices.iter().skip(known).any(is_automatic) {
            self.shared.enable_auto();
            self.auto.start(&self.shared);
        }
    }

    /// Opens a device that the configuration has again. A VLAN opens with its link, or at once over one that is open.
    fn open_again(&mut self, dev: u16) -> Result<(), DeviceError> {
        let link = self.shared.devices[usize::from(dev)].vlan.map(|vlan| vlan.link);
        let waits = link.is_some_and(|link| !self.is_open(link));
        // Its link may have opened it.
        match waits || self.is_open(dev) {
            true => Ok(()),
            false => self.open(dev),
        }
    }
}
