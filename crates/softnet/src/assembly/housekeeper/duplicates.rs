//! Addresses that another station on the link has: they are not used until it has them no more.
//!
//! Called by the housekeeper. Invariant: an address that is not used, as another station has it, is
//! among its device's `duplicates`, which show it.

use std::net::IpAddr;

use softnet_core::ip::MacAddr;
use softnet_core::ip::slow::Conflict;

use super::Housekeeper;
use super::live::iface;
use crate::config::{Config, InterfaceAddr, format_mac};
use crate::util::{lock, note, warn};

/// How long, in ns, until those of the configuration are tried again.
const AGAIN: u64 = 60_000_000_000;

/// What was found of duplicates.
#[derive(Default)]
pub(super) struct Duplicates {
    /// Those that were told of, by device.
    told: Vec<(usize, InterfaceAddr)>,
    /// When to try again.
    pub(super) again_at: Option<u64>,
}

impl Housekeeper {
    /// Asks on the link of device `dev` whether another station has `addresses`, which it has from now on.
    pub(super) fn detect_duplicates(&mut self, dev: u16, addresses: &[InterfaceAddr]) {
        lock(&self.shared.devices[usize::from(dev)].duplicates).retain(|own| !addresses.contains(own));
        if self.config.devices[usize::from(dev)].detects_duplicates() {
            let ips: Vec<IpAddr> = addresses.iter().map(|own| own.addr()).collect();
            self.shared.slow_path(&mut self.ctx, |slow, ctx, view, out| {
                slow.detect_duplicates(ctx, view, (dev, &ips), out);
            });
        }
    }

    /// Takes addresses away that other stations were found to have, as if that were done by hand.
    pub(super) fn drop_duplicates(&mut self, now: u64) {
        let found = self.shared.control().slow.take_duplicates();
        for Conflict { dev, ip, mac } in found {
            let at = usize::from(dev);
            let mut config = Config::clone(&self.config);
            let addresses = &mut config.devices[at].addresses;
            let Some(own) = addresses.iter().position(|own| own.addr() == ip) else {
                self.drop_link_local(dev, (ip, mac), now);
                continue;
            };
            let own = addresses.remove(own);
            let (name, mac) = (self.shared.devices[at].name.clone(), format_mac(mac));
            if let Err(error) = self.adopt_addresses(config) {
                warn(format_args!("{name}: a neighbour has {own}, too, at {mac}; it stays: {error}"));
                continue;
            }
            lock(&self.shared.devices[at].duplicates).push(own);
            let configured = self.told.addresses[at].contains(&own);
            if !self.duplicates.told.contains(&(at, own)) {
                let then = match configured {
                    true => "it is tried again each minute".to_owned(),
                    false => format!("when that is mended: softnet addr add {own} dev {name}"),
                };
                warn(format_args!(
                    "{name}: {own} is not used: a neighbour has it, at {mac}; {then}. \
                     `dad = false` in its [[device]] does not ask"
                ));
                self.duplicates.told.push((at, own));
            }
            self.duplicates.again_at.get_or_insert(now + AGAIN);
        }
    }

    /// Does not use the link-local address that follows from a device's MAC address, which another
    /// station was found to have.
    fn drop_link_local(&mut self, dev: u16, (ip, mac): (IpAddr, MacAddr), now: u64) {
        let shared = self.shared.clone();
        let device = &shared.devices[usize::from(dev)];
        let Ok(own) = InterfaceAddr::new(ip, 64) else { return };
        if !self.set_link_local(dev, own, false) {
            return;
        }
        let told = (usize::from(dev), own);
        if !self.duplicates.told.contains(&told) {
            warn(format_args!(
                "{}: its link-local address {ip} is not used: a neighbour has it, at {}, and so perhaps its \
                 MAC address, too; it is tried again each minute",
                device.name,
                format_mac(mac)
            ));
            self.duplicates.told.push(told);
        }
        self.duplicates.again_at.get_or_insert(now + AGAIN);
    }

    /// Has a device use `own`, which follows from its MAC address, or not. Whether it does follow from that.
    fn set_link_local(&mut self, dev: u16, own: InterfaceAddr, used: bool) -> bool {
        let (config, shared) = (self.config.clone(), self.shared.clone());
        let (config, device) = (&config.devices[usize::from(dev)], &shared.devices[usize::from(dev)]);
        let Some(live) = device.live.load_full() else { return false };
        let info = live.device.info();
        if !config.derives(&own, info.mac) {
            return false;
        }
        let mut duplicates = lock(&device.duplicates).clone();
        duplicates.retain(|other| *other != own);
        if !used {
            duplicates.push(own);
        }
        self.set_iface(dev, Some(iface(config, info, &duplicates)));
        *lock(&device.duplicates) = duplicates;
        true
    }

    /// Tries those again that the configuration has: the other station may be gone.
    pub(super) fn try_duplicates(&mut self, now: u64) {
        self.duplicates.again_at = None;
        for (dev, own) in self.duplicates.told.clone() {
            let unused = lock(&self.shared.devices[dev].duplicates).contains(&own);
            if unused && self.set_link_local(dev as u16, own, true) {
                self.shared.slow_path(&mut self.ctx, |slow, ctx, view, out| {
                    slow.detect_duplicates(ctx, view, (dev as u16, &[own.addr()]), out);
                });
                self.duplicates.again_at = Some(now + AGAIN);
                continue;
            }
            let derived = self.shared.devices[dev].live.load_full();
            let derived = derived.is_some_and(|live| {
                self.config.devices[dev].derives(&own, live.device.info().mac)
                    && self.config.devices[dev].speaks_ipv6()
            });
            let has = derived || self.config.devices[dev].addresses.contains(&own);
            let configured = self.told.addresses[dev].contains(&own) && !self.absent[dev];
            if has {
                // Nothing was heard in a minute.
                note(format_args!(
                    "{}: {own} is used, as no neighbour has it now",
                    self.shared.devices[dev].name
                ));
            }
            if has || !configured {
                self.duplicates.told.retain(|told| *told != (dev, own));
                continue;
            }
            let mut config = Config::clone(&self.config);
            config.devices[dev].addresses.push(own);
            // What is refused is so for a reason that others tell; it is tried again, too.
            let _ = self.adopt_addresses(config);
            self.duplicates.again_at = Some(now + AGAIN);
        }
    }
}
