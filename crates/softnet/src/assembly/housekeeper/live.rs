//! What the housekeeper changes while the stack runs, beside its devices: routes, neighbours,
//! addresses, and all that a new configuration says otherwise.
//!
//! A new configuration is checked as a whole, and what may be refused is tried, before anything is
//! changed. Then what comes is in force before what goes is gone, so that a packet that neither
//! concerns always finds its way: a changed set of tables is published at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use softnet_core::filter::Filter;
use softnet_core::ip::IpPrefix;
use softnet_core::ip::iface::Iface;
use softnet_core::ip::slow::Announce;
use softnet_core::nat::{Nat, seconds};
use softnet_core::qdisc::Spec;
use softnet_core::sync::Ordering;
use softnet_dev::DeviceInfo;

use super::Housekeeper;
use crate::config::{Config, DeviceConfig, InterfaceAddr, available_cpus, is_link_local};
use crate::control::commands::Change;
use crate::control::{Action, ControlError, Set, SetAddr, SetQdisc, Target};
use crate::live::{LiveError, Merged, change_neigh, change_route, changed_addresses, merge, print_of};
use crate::stack::rib::{Path, Place, Source};
use crate::stack::routes;
use crate::tx::qdisc::Layout;
use crate::util::{lock, note};

/// How long to wait for threads that still go by old tables.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the forwarding tables know of a device with these parameters.
pub(super) fn iface(device: &DeviceConfig, info: &DeviceInfo) -> Iface {
    Iface {
        mac: info.mac,
        mtu: info.mtu,
        addresses: device.addresses4(),
        addresses6: device.addresses6(info.mac),
        send_redirects: device.send_redirects,
        rp_filter: device.rp_filter,
    }
}

impl Housekeeper {
    /// Makes a change of routes, neighbours or addresses. Returns how many there were.
    pub(super) fn change_live(&mut self, change: &Change) -> Result<u64, LiveError> {
        let config = self.config.clone();
        match change {
            Change::Route(set) => change_route(&self.shared, &config, set),
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
        self.check(&config)?;
        // The filter is the same, and what its sets were made of is not there any more.
        let nat = self.new_nat(&config)?;
        self.run_by(config);
        self.install(nat, None);
        Ok(come.max(gone) as u64)
    }

    /// Whether the stack can run by `config`, which has no routes. Changes nothing.
    fn check(&mut self, config: &Config) -> Result<(), LiveError> {
        let mut alone = config.clone();
        // Sets were emptied; and neighbours stay that are on no network for a while, as in the kernel.
        (alone.filter, alone.neighbours) = (Default::default(), Vec::new());
        // Devices that the configuration does not have any more; and one whose last address was taken
        // away by hand, as `ip` would.
        alone.devices.retain(|device| !device.addresses.is_empty());
        alone.check(&available_cpus()).map_err(LiveError::Config)?;
        for (dev, device) in config.devices.iter().enumerate() {
            let before = &self.config.devices[dev].addresses;
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

    /// From now on the stack's addresses are those of `config`, and all that follows from them.
    fn run_by(&mut self, config: Config) {
        let (before, config) = (self.config.clone(), Arc::new(config));
        self.config = config.clone();
        self.published.store(config.clone());
        let differs = |dev: &usize| {
            let (old, new) = (&before.devices[*dev], &config.devices[*dev]);
            old.addresses != new.addresses || old.send_redirects != new.send_redirects
        };
        let changed: Vec<usize> = (0..config.devices.len()).filter(differs).collect();
        for &dev in &changed {
            if let Some(live) = self.shared.devices[dev].live.load_full() {
                self.set_iface(dev as u16, Some(iface(&config.devices[dev], live.device.info())));
            }
        }
        let (old, new) = (routes::own(&before), routes::own(&config));
        if let Err(error) = self.shared.change_routes(|rib| routes::change_own(rib, &old, &new)) {
            note(format_args!("routes do not follow what became of addresses yet: {error}"));
        }
        for &dev in &changed {
            let device = &self.shared.devices[dev];
            if device.vlan.is_none() && device.live.load().is_some() {
                self.opener.addresses_changed(&config.request(dev as u16));
            }
            self.forget_off_link(dev as u16);
            self.fix_configured(dev as u16);
            let had = &before.devices[dev].addresses;
            if config.devices[dev].addresses.iter().any(|own| !had.contains(own)) {
                self.announce(dev as u16);
            }
        }
        // A VLAN's are claimed by its link.
        for dev in changed.into_iter().filter_map(|dev| self.shared.devices[dev].vlan).map(|vlan| vlan.link) {
            let mut link = dev;
            while let Some(vlan) = self.shared.devices[usize::from(link)].vlan {
                link = vlan.link;
            }
            if self.shared.devices[usize::from(link)].live.load().is_some() {
                self.opener.addresses_changed(&config.request(link));
            }
        }
    }

    /// Tells the neighbours of a device where its addresses are.
    fn announce(&mut self, dev: u16) {
        let device = &self.config.devices[usize::from(dev)];
        let kinds = Announce { arp: device.arp_notify, nd: device.ndisc_notify };
        let below = self.shared.netdevs[usize::from(dev)].device.live.load_full();
        // In-process devices are at their peer's other end for good.
        if below.is_some_and(|live| live.device.info().ifindex != 0) {
            self.shared.slow_path(&mut self.ctx, |slow, ctx, view, out| {
                slow.announce(ctx, view, dev, kinds, out);
            });
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
        if self.shared.devices[usize::from(dev)].live.load().is_none() {
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

    /// NAT by `config`, if its rules are others than now.
    fn new_nat(&self, config: &Config) -> Result<Option<Arc<Nat>>, LiveError> {
        let (Some(nat), Some(state)) = (&config.nat, &self.shared.nat) else { return Ok(None) };
        let now = self.config.nat.as_ref().map(|nat| format!("{:?}", nat.rules(&self.config)));
        let rules = nat.rules(config);
        if now.as_deref() == Some(&*format!("{rules:?}")) {
            return Ok(None);
        }
        let nat = Nat::new(state.clone(), &rules);
        nat.map(|nat| Some(Arc::new(nat))).map_err(|error| LiveError::Impossible(error.to_string()))
    }

    /// Puts NAT and a filter, in the place of those that there are, into the tables, and ends what
    /// they do not allow. Returns how many connections that were.
    fn install(
        &mut self,
        nat: Option<Arc<Nat>>,
        filter: Option<(Filter, softnet_core::filter::Rules)>,
    ) -> u64 {
        if nat.is_none() && filter.is_none() {
            return 0;
        }
        {
            let mut control = self.shared.control();
            control.replace_tables(&*self.shared, |tables| {
                if let Some(nat) = &nat {
                    nat.clone().install(tables);
                }
                if let Some((filter, rules)) = filter {
                    filter.stand(&rules, &mut tables.hooks);
                }
            });
        }
        let Some(nat) = nat else { return 0 };
        // Threads that go by the rules before could open connections that these do not allow.
        let began = std::time::Instant::now();
        while began.elapsed() < PATIENCE && self.shared.control().has_retired() {
            self.shared.workers.iter().for_each(|worker| worker.waker.wake());
            std::thread::sleep(Duration::from_millis(1));
        }
        nat.end_others(seconds(self.shared.clock.now()))
    }

    /// Has the stack be as `new` says, where that is not what it was told last. Returns what was changed.
    pub(super) fn reload(&mut self, new: &Config) -> Result<Vec<String>, LiveError> {
        new.check(&available_cpus()).map_err(LiveError::Config)?;
        let print = print_of(&new.filter);
        let Merged { mut config, absent, told } = merge(&self.config, &self.told, new, print)?;
        let statics: Vec<_> = routes::configured(&config).collect();
        config.routes = Vec::new();
        self.check(&config)?;
        let nat = self.new_nat(&config)?;
        let filter = match print == self.told.filter {
            true => None,
            false => {
                let rules = config.filter.rules(&config);
                let tracked = self.shared.conntrack.as_ref().filter(|_| rules.ask_for_states()).cloned();
                let filter = Filter::new(&rules, tracked.map(|table| (table, self.shared.nat.clone())));
                let filter = filter.map_err(|error| {
                    LiveError::Impossible(format!("addresses of [[rule]] and [[set]]: {error}"))
                })?;
                Some((filter, rules))
            }
        };
        config.filter.sets.iter_mut().for_each(|set| set.prefixes = Vec::new());
        // Nothing is refused from here on.
        let mut done = Vec::new();
        let before = self.config.clone();
        let gone = |dev: &usize| absent[*dev] && !self.absent[*dev];
        let came = |dev: &usize| !absent[*dev] && self.absent[*dev];
        let (gone, came): (Vec<usize>, Vec<usize>) =
            ((0..absent.len()).filter(gone).collect(), (0..absent.len()).filter(came).collect());
        (self.absent, self.told) = (absent, told);
        for &dev in &gone {
            self.close(dev as u16);
            self.shared.devices[dev].set_down(false);
            done.push(format!("{}: removed", before.devices[dev].name));
        }
        self.run_by(config);
        let config = self.config.clone();
        for (old, new) in before.devices.iter().zip(&config.devices) {
            let lines =
                [(&old.addresses, &new.addresses, "without"), (&new.addresses, &old.addresses, "with")];
            for (these, others, word) in lines {
                let only = these.iter().filter(|own| !others.contains(own));
                done.extend(only.map(|own| format!("{}: {word} {own}", new.name)));
            }
        }
        self.reload_routes(&statics, &mut done);
        self.reload_neighbours(&before, &mut done);
        let rules = (nat.is_some(), filter.is_some());
        let ended = self.install(nat, filter);
        if rules.0 {
            done.push(format!("nat: its rules ({ended} connections ended that they do not allow)"));
        }
        if rules.1 {
            done.push("filter: its rules".into());
        }
        for (dev, (old, new)) in before.devices.iter().zip(&config.devices).enumerate() {
            self.reload_device(dev, old, new, &mut done);
        }
        for &dev in &came {
            let name = &config.devices[dev].name;
            match if self.is_vlan(dev as u16) { self.reopen_vlan(dev as u16) } else { self.open(dev as u16) }
            {
                Ok(()) => done.push(format!("{name}: is back")),
                // As at any other time that its interface can't be taken.
                Err(error) => {
                    done.push(format!("{name}: is to be taken, but can't be yet: {error}"));
                    self.refused[dev] = Some(error.to_string());
                    self.retry_at = Some(self.shared.clock.now() + super::RETRY.as_nanos() as u64);
                }
            }
        }
        Ok(done)
    }

    /// A VLAN opens with its link, or at once over one that is open.
    fn reopen_vlan(&mut self, dev: u16) -> Result<(), crate::driver::DeviceError> {
        let link = self.shared.devices[usize::from(dev)].vlan.map(|vlan| vlan.link);
        let open = link.is_some_and(|link| self.shared.devices[usize::from(link)].live.load().is_some());
        if open { self.open(dev) } else { Ok(()) }
    }

    /// Has the configuration's routes be `statics`.
    fn reload_routes(&mut self, statics: &[crate::stack::rib::Route], done: &mut Vec<String>) {
        let (mut added, mut removed) = (0, 0);
        let changed = self.shared.change_routes(|rib| {
            let wanted: HashMap<(IpPrefix, u32), &Path> =
                statics.iter().map(|route| ((route.prefix, route.metric), &route.path)).collect();
            let there: HashMap<(IpPrefix, u32), Path> = rib
                .routes_from(Source::STATIC)
                .map(|route| ((route.prefix, route.metric), route.path))
                .collect();
            for route in statics {
                if there.get(&(route.prefix, route.metric)) != Some(&route.path) {
                    rib.insert(route, Place::Replace);
                    added += 1;
                }
            }
            for (prefix, metric) in there.keys().filter(|key| !wanted.contains_key(key)) {
                rib.remove(*prefix, |of, source, _| (of, source) == (*metric, Source::STATIC));
                removed += 1;
            }
        });
        if let Err(error) = changed {
            note(format_args!("routes of the configuration are not in effect yet: {error}"));
        }
        if added + removed > 0 {
            done.push(format!("routes: {added} added or changed, {removed} removed"));
        }
    }

    fn reload_neighbours(&mut self, before: &Config, done: &mut Vec<String>) {
        let now = self.config.clone();
        let index =
            |name: &str| now.devices.iter().position(|device| device.name == name).map(|dev| dev as u16);
        let (mut added, mut removed) = (0, 0);
        for old in before.neighbours.iter().filter(|old| !now.neighbours.contains(old)) {
            let Some(dev) = index(&old.dev) else { continue };
            let other = now.neighbours.iter().any(|new| (&new.dev, new.address) == (&old.dev, old.address));
            if !other {
                let key = (dev, old.address);
                self.shared.slow_path(&mut self.ctx, |slow, ctx, view, out| {
                    slow.remove_permanent(ctx, view, key, out)
                });
                removed += 1;
            }
        }
        for new in now.neighbours.iter().filter(|new| !before.neighbours.contains(new)) {
            let Some(dev) = index(&new.dev) else { continue };
            // When it is opened it gets them all.
            if self.shared.devices[usize::from(dev)].live.load().is_some() {
                let fixed = (dev, new.address, new.mac);
                self.shared.slow_path(&mut self.ctx, |slow, ctx, view, out| {
                    slow.set_permanent(ctx, view, fixed, out)
                });
            }
            added += 1;
        }
        if added + removed > 0 {
            done.push(format!("neighbours: {added} added or changed, {removed} removed"));
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
        *settings = next;
        self.ctx.drain();
        Ok(())
    }

    /// Knobs, the context and the discipline of a device, where they are configured otherwise.
    fn reload_device(&mut self, dev: usize, old: &DeviceConfig, new: &DeviceConfig, done: &mut Vec<String>) {
        let name = &new.name;
        if old.knobs() != new.knobs() {
            match self.shared.devices[dev].set_deferral(None, new.knobs()) {
                Ok(()) => done.push(format!("{name}: knobs of polling")),
                Err(error) => done.push(format!("{name}: knobs of polling stay: {error}")),
            }
        }
        if old.threaded != new.threaded {
            let set = Set { target: Target::Dev(name.clone()), threaded: new.threaded };
            match self.set(&set, &mut crate::util::spawn) {
                Ok(_) => done.push(format!("{name}: threaded = {}", new.threaded)),
                Err(error) => done.push(format!("{name}: threaded stays: {error}")),
            }
        }
        if old.qdisc != new.qdisc {
            let action = if new.qdisc.is_some() { Action::Replace } else { Action::Del };
            let qdisc = new.qdisc.as_ref().map(ToString::to_string);
            match self.set_qdisc(&SetQdisc { dev: name.clone(), queue: None, action, qdisc }) {
                Ok(()) => done.push(format!("{name}: qdisc")),
                Err(error) => done.push(format!("{name}: qdisc stays: {error}")),
            }
        }
    }
}
