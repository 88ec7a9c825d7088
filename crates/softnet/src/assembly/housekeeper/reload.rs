//! Another configuration in the place of the one that the stack runs by.
//!
//! It is checked as a whole, and what may be refused is tried, before anything is changed. Then routes
//! change, all at once, so that a packet that nothing of it concerns always finds its way. Devices
//! that go are closed only when no route leads there any more, and before rules change that guard them;
//! those that come are opened behind the rules that guard them, and before routes lead there.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use softnet_core::filter::Filter;
use softnet_core::ip::IpPrefix;
use softnet_core::nat::{Nat, seconds};

use super::Housekeeper;
use crate::config::{Config, DeviceConfig, available_cpus};
use crate::control::{Action, Set, SetQdisc, Target};
use crate::live::{LiveError, Merged, merge, print_of};
use crate::stack::rib::{Hop, Path, Place, Rib, Route, Source};
use crate::stack::routes;
use crate::tx::qdisc::Settings;
use crate::util::lock;

/// How long a change of rules waits for threads that still go by old tables. Those that poll go by the new ones
/// with their next batch.
const PATIENCE: Duration = Duration::from_millis(20);
/// After that, how often it is looked whether they do, in ns, and when that is not waited for any more.
const LOOK: u64 = 10_000_000;
const AT_LAST: u64 = 1_000_000_000;

/// Connections that are to end, as soon as no thread goes by rules that allow them.
pub(super) struct Ending {
    nat: Arc<Nat>,
    /// When to look next, in ns of the clock.
    pub(super) next: u64,
    at_last: u64,
}

/// Whether some of `path` leads by one of these devices.
fn leads_by(path: &Path, devs: &[usize]) -> bool {
    let by = |hop: &Hop| hop.is_sent() && devs.contains(&usize::from(hop.dev));
    match path {
        Path::Hop(hop) => by(hop),
        Path::Group(members) => members.iter().any(|(hop, _)| by(hop)),
    }
}

/// Has the configuration's routes be `statics`; those that may not be yet stay as they are. Returns how
/// many were added or changed, and removed.
fn change_statics(rib: &mut Rib, statics: &[Route], may: impl Fn(&Route) -> bool) -> (u64, u64) {
    let (mut added, mut removed) = (0, 0);
    let key = |route: &Route| (route.prefix, route.metric);
    let wanted: HashSet<(IpPrefix, u32)> = statics.iter().map(key).collect();
    let there: HashMap<(IpPrefix, u32), Path> =
        rib.routes_from(Source::STATIC).map(|route| (key(&route), route.path)).collect();
    for route in statics {
        if there.get(&key(route)) != Some(&route.path) && may(route) {
            rib.insert(route, Place::Replace);
            added += 1;
        }
    }
    for (prefix, metric) in there.keys().filter(|key| !wanted.contains(key)) {
        rib.remove(*prefix, |of, source, _| (of, source) == (*metric, Source::STATIC));
        removed += 1;
    }
    (added, removed)
}

impl Housekeeper {
    /// Has the stack be as `new` says, where that is not what it was told last. Returns what was changed.
    pub(super) fn reload(&mut self, new: &Config) -> Result<Vec<String>, LiveError> {
        new.check(&available_cpus()).map_err(LiveError::Config)?;
        let print = print_of(&new.filter);
        let Merged { mut config, absent, anew, told } = merge(&self.config, &self.told, new, print)?;
        let statics: Vec<_> = routes::configured(&config).collect();
        config.routes = Vec::new();
        self.check(&config, &absent)?;
        let known = self.config.devices.len();
        self.prepare_devices(&config, known, &anew)?;
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
        self.add_devices(&config, known);
        let mut done = Vec::new();
        let before = self.config.clone();
        let gone = |dev: &usize| absent[*dev] && !self.absent[*dev];
        let came = |dev: &usize| !absent[*dev] && self.absent[*dev];
        let (gone, came): (Vec<usize>, Vec<usize>) =
            ((0..absent.len()).filter(gone).collect(), (0..absent.len()).filter(came).collect());
        (self.absent, self.told) = (absent, told);
        done.extend(gone.iter().map(|&dev| format!("{}: removed", before.devices[dev].name)));
        let waits = |route: &Route| leads_by(&route.path, &came);
        let mut routes = self.run_by(config, |rib| change_statics(rib, &statics, |route| !waits(route)));
        let config = self.config.clone();
        let mut neighbours = Vec::new();
        self.reload_neighbours(&before, &mut neighbours);
        for &dev in &gone {
            self.close(dev as u16);
            self.opener.forget(dev as u16);
            self.shared.devices[dev].set_down(false);
        }
        let rules = (nat.is_some(), filter.is_some());
        let ended = self.install(nat, filter);
        let opened = self.open_devices((&before, known), &anew, &came);
        if !came.is_empty() {
            let mut more = (0, 0);
            let changed = self.change_routes(|rib| more = change_statics(rib, &statics, |_| true));
            routes = routes.and_then(|(added, removed)| changed.map(|()| (added + more.0, removed + more.1)));
        }
        for (old, new) in before.devices.iter().zip(&config.devices) {
            let lines =
                [(&old.addresses, &new.addresses, "without"), (&new.addresses, &old.addresses, "with")];
            for (these, others, word) in lines {
                let only = these.iter().filter(|own| !others.contains(own));
                done.extend(only.map(|own| format!("{}: {word} {own}", new.name)));
            }
        }
        match routes {
            Ok((0, 0)) => {}
            Ok((added, removed)) => {
                done.push(format!("routes: {added} added or changed, {removed} removed"));
            }
            Err(error) => done.push(format!("routes: not in force before there is memory for them: {error}")),
        }
        done.extend(neighbours);
        if rules.0 {
            let ended = ended.map_or("connections end".into(), |ended| format!("{ended} connections ended"));
            done.push(format!("nat: its rules ({ended} that they do not allow)"));
        }
        if rules.1 {
            done.push("filter: its rules".into());
        }
        for (dev, (old, new)) in before.devices.iter().zip(&config.devices).enumerate() {
            self.reload_device(dev, old, new, &mut done);
        }
        done.extend(opened);
        Ok(done)
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
            if self.is_open(dev) {
                let fixed = (dev, new.address, new.mac);
                self.shared.slow_path(&mut self.ctx, |slow, ctx, view, out| {
                    slow.set_permanent(ctx, view, fixed, out)
                });
            }
            added += 1;
        }
        if added + removed > 0 {
            // The kernel may have those that the configuration has no more.
            self.list_again();
            done.push(format!("neighbours: {added} added or changed, {removed} removed"));
        }
    }

    /// NAT by `config`, if its rules are others than now.
    pub(super) fn new_nat(&self, config: &Config) -> Result<Option<Arc<Nat>>, LiveError> {
        let (Some(nat), Some(state)) = (&config.nat, &self.shared.nat) else { return Ok(None) };
        let now = self.config.nat.as_ref().map(|nat| format!("{:?}", nat.rules(&self.config)));
        let rules = nat.rules(config);
        if now.as_deref() == Some(&*format!("{rules:?}")) {
            return Ok(None);
        }
        let nat = Nat::new(state.clone(), &rules);
        nat.map(|nat| Some(Arc::new(nat))).map_err(|error| LiveError::Impossible(error.to_string()))
    }

    /// Puts NAT and a filter, in the place of those that there are, into the tables. Returns how many
    /// connections were ended that they do not allow: `None` if threads still go by the rules of before,
    /// and could open some; then [these end](Self::end_connections) later.
    pub(super) fn install(
        &mut self,
        nat: Option<Arc<Nat>>,
        filter: Option<(Filter, softnet_core::filter::Rules)>,
    ) -> Option<u64> {
        if nat.is_none() && filter.is_none() {
            return Some(0);
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
        let Some(nat) = nat else { return Some(0) };
        let began = std::time::Instant::now();
        while began.elapsed() < PATIENCE && self.shared.control().has_retired() {
            self.shared.workers.iter().for_each(|worker| worker.waker.wake());
            std::thread::sleep(Duration::from_millis(1));
        }
        let now = self.shared.clock.now();
        if !self.shared.control().has_retired() {
            self.ending = None;
            return Some(nat.end_others(seconds(now)));
        }
        self.ending = Some(Ending { nat, next: now + LOOK, at_last: now + AT_LAST });
        None
    }

    /// Ends connections that new rules do not allow, once no thread goes by the old ones.
    pub(super) fn end_connections(&mut self, now: u64) {
        let Some(ending) = self.ending.as_mut().filter(|ending| ending.next <= now) else { return };
        ending.next = now + LOOK;
        if now >= ending.at_last || !self.shared.control().has_retired() {
            ending.nat.end_others(seconds(now));
            self.ending = None;
        }
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
        if old.qdisc != new.qdisc && !self.is_open(dev as u16) {
            let settings = Settings { root: new.qdisc.clone(), ..Settings::default() };
            *lock(&self.shared.devices[dev].qdiscs) = settings;
            done.push(format!("{name}: qdisc, as soon as it is open"));
        } else if old.qdisc != new.qdisc {
            let action = if new.qdisc.is_some() { Action::Replace } else { Action::Del };
            let qdisc = new.qdisc.as_ref().map(ToString::to_string);
            match self.set_qdisc(&SetQdisc { dev: name.clone(), queue: None, action, qdisc }) {
                Ok(()) => done.push(format!("{name}: qdisc")),
                Err(error) => done.push(format!("{name}: qdisc stays: {error}")),
            }
        }
    }
}
