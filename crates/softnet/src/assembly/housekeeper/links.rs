//! What the housekeeper does when the kernel reports that an interface came, changed or went.

use std::sync::Arc;

use softnet_dev::LinkState;
use softnet_dev::netlink::{LinkEvent, LinkMonitor};

use super::{Housekeeper, RETRY};
use crate::device::StackDevice;
use crate::util::{fail, note, warn};

impl Housekeeper {
    /// Takes note of what happened to the interfaces.
    pub(super) fn links(&mut self) {
        // Programs take a while to be exchanged, and commands are to find what is so by then; but they
        // wait for no more rounds than these.
        for _ in 0..3 {
            let readdressed = self.link_events();
            if readdressed || self.kernel_addrs.take_due() {
                self.follow_addresses();
            }
            if !readdressed {
                return;
            }
            let config = self.config.clone();
            let told = |device: &&Arc<StackDevice>| device.vlan.is_none() && device.live.load().is_some();
            for device in self.shared.devices.iter().filter(told) {
                let dev = device.index;
                self.opener.addresses_changed(&config.request(dev));
            }
        }
    }

    /// Takes note of what has been told. Whether it may have changed the addresses that are the kernel's.
    fn link_events(&mut self) -> bool {
        let mut readdressed = false;
        while let Some(monitor) = &mut self.monitor {
            match monitor.next() {
                Ok(Some(event)) => {
                    // A link-local address counts on what the interface is a port of, which changes
                    // with the interface.
                    readdressed |= matches!(event, LinkEvent::AddressChanged { .. } | LinkEvent::Changed(_));
                    self.link_event(event);
                }
                Ok(None) => break,
                Err(error) => {
                    fail(format_args!("no longer told of interfaces that come and go: {error}"));
                    self.monitor = None;
                }
            }
        }
        readdressed
    }

    fn link_event(&mut self, event: LinkEvent) {
        let of_index = |this: &Self, index: u32| {
            let is = |d: &Arc<StackDevice>| {
                d.live.load().as_ref().is_some_and(|live| live.device.info().ifindex == index)
            };
            this.shared.devices.iter().find(|d| is(d)).map(|d| d.index)
        };
        match event {
            LinkEvent::Removed { index, name } => {
                if let Some(dev) = of_index(self, index) {
                    warn(format_args!("{name} is gone; it will be taken again when it comes back"));
                    self.close(dev);
                }
            }
            LinkEvent::Appeared(link) | LinkEvent::Changed(link) => {
                if let Some(dev) = of_index(self, link.index) {
                    let device = &self.shared.devices[usize::from(dev)];
                    let Some(live) = device.live.load_full() else { return };
                    let info = live.device.info();
                    if info.interface_mac() == link.mac
                        && u32::from(info.mtu) == link.mtu
                        && info.name == link.name
                    {
                        // The kernel makes an interface's NAPI instances anew when it is set up.
                        live.napis.iter().for_each(|instance| device.apply_deferral(instance));
                        return self.link_changed(dev);
                    }
                    note(format_args!("{} changed its name, address or MTU: opening it anew", link.name));
                    self.close(dev);
                }
                if link.up {
                    self.open_missing();
                }
            }
            // Of every device, whichever interface it was.
            LinkEvent::AddressChanged { .. } => {}
        }
    }

    /// Whether packets can pass by device `dev`, which is open; remembered until the next look. A
    /// device that is no interface of the kernel's is not told of, so it always has a link.
    pub(super) fn look_at_link(&mut self, dev: u16) -> bool {
        let below = self.shared.netdevs[usize::from(dev)].device.live.load_full();
        let on_interface = below.is_some_and(|live| live.device.info().ifindex != 0);
        let live = self.shared.devices[usize::from(dev)].live.load_full();
        // Asked now: what was told may be older than the device.
        let up = !on_interface || live.is_some_and(|live| live.device.link() == LinkState::Up);
        self.linkless[usize::from(dev)] = !up;
        up
    }

    /// Takes note of a link that is gone or back: routes by way of the device, and of VLANs over it,
    /// give way to others meanwhile.
    fn link_changed(&mut self, dev: u16) {
        let before = !self.linkless[usize::from(dev)];
        let up = self.look_at_link(dev);
        if up == before {
            return;
        }
        // If there is no memory for it, that is noted, and done later.
        let _ = self.change_routes(|rib| rib.set_open(dev, up));
        if !self.is_vlan(dev) {
            let name = &self.shared.devices[usize::from(dev)].name;
            match up {
                true => note(format_args!("{name}: the link is up; routes by it are in use again")),
                false => warn(format_args!("{name}: the link is down; routes by it are not used meanwhile")),
            }
        }
        if up {
            // What was asked and announced meanwhile reached no station, and those behind another
            // switch than before know nothing of it (RFC 5227 section 2.1, RFC 4862 section 5.4).
            let addresses = self.config.devices[usize::from(dev)].addresses.clone();
            self.announce(dev, &addresses);
        }
        let over: Vec<u16> = self.vlans(dev).into_iter().filter(|vlan| self.is_open(*vlan)).collect();
        over.into_iter().for_each(|vlan| self.link_changed(vlan));
    }

    /// Tries to open every device that is not open and whose interface exists.
    pub(super) fn open_missing(&mut self) {
        let config = self.config.clone();
        for (dev, device) in config.devices.iter().enumerate() {
            let there = |m: &LinkMonitor| m.links().any(|link| link.name == device.name && link.up);
            if self.is_open(dev as u16)
                || !self.is_wanted(dev as u16)
                || self.is_vlan(dev as u16)
                || !self.monitor.as_ref().is_some_and(there)
            {
                continue;
            }
            match self.open(dev as u16) {
                Ok(()) => {
                    self.refused[dev] = None;
                    note(format_args!("{} is back", device.name));
                }
                Err(error) => {
                    let error = error.to_string();
                    // Tried again and again, but told once.
                    if self.refused[dev].as_ref() != Some(&error) {
                        warn(format_args!("{} is there but can't be taken yet: {error}", device.name));
                    }
                    self.refused[dev] = Some(error);
                    self.retry_at = Some(self.shared.clock.now() + RETRY.as_nanos() as u64);
                }
            }
        }
    }
}
