//! What the housekeeper changes while the stack runs, beside its devices: routes, neighbours,
//! addresses and disciplines.
//!
//! What may be refused is tried before anything is changed. Then a changed set of tables is published
//! at once, so that a packet that a change does not concern always finds its way.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use softnet_core::ip::FibError;
use softnet_core::ip::iface::Iface;
use softnet_core::ip::slow::Announce;
use softnet_core::qdisc::Spec;
use softnet_core::sync::Ordering;
use softnet_dev::DeviceInfo;

use super::Housekeeper;
use crate::config::{Config, DeviceConfig, InterfaceAddr, available_cpus, is_link_local};
use crate::control::commands::Change;
use crate::control::{ControlError, SetAddr, SetQdisc, Target};
use crate::device::OpenParts;
use crate::live::{LiveError, change_neigh, change_route, changed_addresses};
use crate::stack::rib::Rib;
use crate::stack::routes;
use crate::tx::qdisc::Layout;
use crate::util::{lock, warn};

/// What the forwarding tables know of a device with these parameters, of whose addresses these are
/// not used: of its own ones the link-local one may be among them, which is not in its configuration.
pub(super) fn iface(device: &DeviceConfig, info: &DeviceInfo, duplicates: &[InterfaceAddr]) -> Iface {
    let mut addresses6 = device.addresses6(info.mac);
    let unused = |own: Ipv6Addr| {
        let mut others = duplicates.iter().filter(|other| !device.addresses.contains(other));
        others.any(|other| other.addr() == IpAddr::V6(own))
    };
    addresses6.retain(|(own, _)| !unused(*own));
    Iface {
        mac: info.mac,
        mtu: info.mtu,
        addresses: device.addresses4(),
        addresses6,
        send_redirects: device.send_redirects,
        rp_filter: device.rp_filter,
    }
}

impl Housekeeper {
    /// Makes a change of routes, neighbours or addresses. Returns how many there were.
    pub(super) fn change_live(&mut self, change: &Change) -> Result<u64, LiveError> {
        let config = self.config.clone();
        match change {
            Change::Route(set) => {
                let changed = change_route(&self.shared, &config, set);
                if let Err(LiveError::Fib(_)) = &changed {
                    self.routes_at = Some(self.shared.clock.now() + super::RETRY.as_nanos() as u64);
                }
                changed
            }
            Change::Neigh(set) => change_neigh(&self.shared, &mut self.ctx, &config, set),
            Change::Addr(set) => self.change_addr(set),
            Change::Link(set) => self.set_link(set),
            _ => Ok(0),
        }
    }

    fn change_addr(&mut self, set: &SetAddr) -> Result<u64, LiveError> {
        let (dev, addresses) = changed_addresses(&self.config, set)?;
        let before = &self.config.devices[usize::from(dev)].addresses;
        let come = addresses.iter().filter(|own| !before.contains(own)).count();
        let gone = before.iter().filter(|own| !addresses.contains(own)).count();
        let mut config = Config::clone(&self.config);
        config.devices[usize::from(dev)].addresses = addresses;
        self.set_addresses(config)?;
        Ok(come.max(gone) as u64)
    }

    /// Runs by the addresses of `config`, which is otherwise as now. What is refused changes nothing.
    pub(super) fn set_addresses(&mut self, config: Config) -> Result<(), LiveError> {
        let absent = self.absent.clone();
        self.check(&config, &absent)?;
        // The filter is the same, and what its sets were made of is not there any more.
        let nat = self.new_nat(&config)?;
        let routes = self.run_by(config, |_| ());
        self.install(nat, None);
        routes?;
        Ok(())
    }

    /// The same, of which no user waits for an answer: for want of memory routes come into force later, which
    /// is told.
    pub(super) fn adopt_addresses(&mut self, config: Config) -> Result<(), LiveError> {
        match self.set_addresses(config) {
            Err(LiveError::Fib(_)) => Ok(()),
            done => done,
        }
    }

    /// Whether the stack can run by `config`, which has no routes and whose devices are there but for those
    /// that are `absent`. Changes nothing.
    pub(super) fn check(&mut self, config: &Config, absent: &[bool]) -> Result<(), LiveError> {
        let mut alone = config.clone();
        // Sets were emptied; and neighbours stay that are on no network for a while, as in the kernel.
        (alone.filter, alone.neighbours) = (Default::default(), Vec::new());
        // Devices that the configuration does not have any more.
        let mut absent = absent.iter().copied();
        alone.devices.retain(|_| !absent.next().unwrap_or(false));
        alone.check_running(&available_cpus()).map_err(LiveError::Config)?;
        for (dev, device) in config.devices.iter().enumerate() {
            // One that is to be added is not there yet.
            let Some(before) = self.config.devices.get(dev).map(|device| &device.addresses) else { break };
            let come: Vec<InterfaceAddr> =
                device.addresses.iter().filter(|own| !before.contains(own)).copied().collect();
            let Some(live) = self.shared.devices[dev].live.load_full() else { continue };
            if device.speaks_ipv6() && live.device.info().mtu < 1280 {
                let (name, mtu) = (&device.name, live.device.info().mtu);
                let message = format!("{name}: IPv6 takes an MTU of 1280 or more, and its MTU is {mtu}");
                return Err(LiveError::Impossible(message));
            }
            if come.is_empty() {
                continue;
            }
            let mut asked = config.request(dev as u16);
            asked.addresses.retain(|addr| come.iter().any(|own| own.addr() == *addr));
            if let Some((addr, holder)) = self.opener.conflict(&asked) {
                return Err(LiveError::KernelHas { addr, dev: device.name.clone(), holder });
            }
        }
        Ok(())
    }

    /// From now on the stack's addresses are those of `config`, and all that follows from them. Routes
    /// change together with what `more` changes of them; returns what that does.
    pub(super) fn run_by<T: Default>(
        &mut self,
        config: Config,
        more: impl FnOnce(&mut Rib) -> T,
    ) -> Result<T, FibError> {
        let (before, config) = (self.config.clone(), Arc::new(config));
        self.config = config.clone();
        self.published.store(config.clone());
        let differs = |dev: &usize| {
            let (old, new) = (&before.devices[*dev], &config.devices[*dev]);
            old.addresses != new.addresses || old.send_redirects != new.send_redirects
        };
        let changed: Vec<usize> = (0..config.devices.len()).filter(differs).collect();
        let mut there = Vec::with_capacity(changed.len());
        for &dev in &changed {
            if let Some(live) = self.shared.devices[dev].live.load_full() {
                let duplicates = lock(&self.shared.devices[dev].duplicates).clone();
                self.set_iface(
                    dev as u16,
                    Some(iface(&config.devices[dev], live.device.info(), &duplicates)),
                );
                there.push(dev);
            }
        }
        let (old, new) = (routes::own(&before), routes::own(&config));
        let mut done = T::default();
        let routes = self.change_routes(|rib| {
            routes::change_own(rib, &old, &new);
            done = more(rib);
        });
        for &dev in &there {
            // Of another driver, or by other keys of it, it is about to be opened anew.
            let same = before.devices[dev].driver == config.devices[dev].driver;
            if self.shared.devices[dev].vlan.is_none() && same {
                self.opener.addresses_changed(&config.request(dev as u16));
            }
            self.forget_off_link(dev as u16);
            self.fix_configured(dev as u16);
            let had = &before.devices[dev].addresses;
            let come = config.devices[dev].addresses.iter().filter(|own| !had.contains(own));
            let come: Vec<InterfaceAddr> = come.copied().collect();
            if !come.is_empty() {
                self.announce(dev as u16, &come);
            }
        }
        // A VLAN's are claimed by its link.
        for dev in changed.into_iter().filter_map(|dev| self.shared.devices[dev].vlan).map(|vlan| vlan.link) {
            let mut link = dev;
            while let Some(vlan) = self.shared.devices[usize::from(link)].vlan {
                link = vlan.link;
            }
            if self.is_open(link) {
                self.opener.addresses_changed(&config.request(link));
            }
        }
        // What the kernel has of their networks may mean another thing now.
        self.list_again();
        routes.map(|()| done)
    }

    /// Tells the neighbours of a device where its addresses are, of which it has these from now on, or its
    /// link is back; and asks whether they are another's.
    pub(super) fn announce(&mut self, dev: u16, come: &[InterfaceAddr]) {
        let device = &self.config.devices[usize::from(dev)];
        let kinds = Announce { arp: device.arp_notify, nd: device.ndisc_notify };
        let below = self.shared.netdevs[usize::from(dev)].device.live.load_full();
        // In-process devices are at their peer's other end for good, and nothing between them remembers.
        if below.is_some_and(|live| live.device.info().ifindex != 0) {
            self.detect_duplicates(dev, come);
            self.shared.slow_path(&mut self.ctx, |slow, ctx, view, out| {
                slow.announce(ctx, view, dev, kinds, out);
            });
        }
    }

    /// Sets what is set for a device that is open: how it spreads flows, and the knobs of its
    /// instances.
    pub(super) fn apply_settings(&self, dev: u16, live: &OpenParts) {
        let device = &self.shared.devices[usize::from(dev)];
        device.apply_rss(&*live.device);
        live.napis.iter().for_each(|instance| device.apply_deferral(instance));
        if let Some(warning) = live.napis.first().and_then(|instance| instance.napi.mitigation.warning()) {
            warn(format_args!("{}: {warning}", device.name));
        }
    }

    /// Forgets neighbours of a device that are on no network of it any more.
    fn forget_off_link(&mut self, dev: u16) {
        let device = &self.config.devices[usize::from(dev)];
        let on_link = |addr| {
            device.addresses.iter().any(|own| own.has_host(addr))
                || is_link_local(addr) && device.speaks_ipv6()
        };
        let stale: Vec<_> = {
            let control = self.shared.control();
            let of = control.slow.neighbours().entries().filter(|entry| entry.dev == dev);
            of.map(|entry| entry.ip).filter(|addr| !on_link(*addr)).collect()
        };
        for addr in stale {
            self.shared
                .slow_path(&mut self.ctx, |slow, ctx, view, out| slow.forget(ctx, view, (dev, addr), out));
        }
    }

    /// Fixes the configuration's neighbours of a device that are forgotten: their network is back.
    fn fix_configured(&mut self, dev: u16) {
        let config = self.config.clone();
        let device = &config.devices[usize::from(dev)];
        if !self.is_open(dev) {
            return;
        }
        for neighbour in config.neighbours.iter().filter(|neighbour| neighbour.dev == device.name) {
            let ip = neighbour.address;
            let on_link = is_link_local(ip) || device.addresses.iter().any(|own| own.has_host(ip));
            if on_link && !self.shared.control().slow.neighbours().is_permanent(dev, ip) {
                let fixed = (dev, ip, neighbour.mac);
                self.shared.slow_path(&mut self.ctx, |slow, ctx, view, out| {
                    slow.set_permanent(ctx, view, fixed, out);
                });
            }
        }
    }

    /// Changes the disciplines of a device, and remembers that for its next life.
    pub(super) fn set_qdisc(&mut self, set: &SetQdisc) -> Result<(), ControlError> {
        let (dev, _) = self.shared.find(&Target::Dev(set.dev.clone()))?;
        let spec = set.qdisc.as_ref().map(|text| text.parse::<Spec>()).transpose()?;
        let live = dev.live.load_full();
        let Some(live) = live else {
            return Err(ControlError::NotOpen(set.dev.clone()));
        };
        let mut settings = lock(&dev.qdiscs);
        let next = settings.apply(set.action, set.queue, spec, live.tx.queues.len())?;
        let (default_qdisc, now) = (&self.config.stack.default_qdisc, self.shared.clock.now());
        let mut layout = lock(&live.layout);
        // Built before anything is changed, since it may be refused. The switch to one queue comes first and away from
        // one last, so that no packet is sent to a queue whose discipline is gone. (A batch may still come whose sender had
        // chosen its queue before: that is not waited for.)
        let built = Layout::build(&next, live.tx.queues.len(), default_qdisc, &live.params);
        let built = built?;
        let single = built.0.is_single();
        if single {
            live.tx.single.store(true, Ordering::Relaxed);
        }
        layout.change(built, &live.tx.queues, &live.params, &mut self.ctx, now);
        live.tx.single.store(single, Ordering::Relaxed);
        live.tx.shaped.store(layout.is_shaped(), Ordering::Relaxed);
        *settings = next;
        self.ctx.drain();
        Ok(())
    }
}
