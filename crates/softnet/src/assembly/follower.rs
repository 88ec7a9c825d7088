//! Follows the kernel's routes, or zebra's: the thread `softnet-routes`, if `stack.follow` says so.
//!
//! It lists routes and fixed neighbours, takes note of what becomes of them, and publishes changes
//! in batches: what has been told until now, or a full [`BATCH`]. A list that is read again is
//! compared with what there is (mark and sweep): so a route that was there before and is there
//! after is never missing. Routes by interfaces that softnet has not taken are counted and left
//! out.
//!
//! Of zebra's routes (FPM) [`FpmMonitor`] keeps what was told; it stands for the list that there is
//! of the kernel's. The kernel then has no more to say than which networks its addresses are in.
//!
//! Invariant: whatever was told before a list began is in the list or undone by it; what is told
//! while it is read is carried out after it.

mod told;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::event::{PollFd, PollFlags, poll};
use softnet_core::SoftnetData;
use softnet_core::ip::MacAddr;
use softnet_core::sync::{AtomicU64, Ordering};
use softnet_dev::netlink::{
    FibEvent, FibMonitor, FpmEvent, FpmMonitor, KernelNeighbour, Netlink, RoutePlace,
};
use softnet_dev::process::trim_heap;
use softnet_dev::{SysError, SysResult};

use crate::config::{Config, FollowConfig};
use crate::stack::StackInner;
use crate::stack::follow::Follow;
use crate::stack::rib::Rib;
use crate::util::{debug, fail, note, timespec, warn};
use told::{Feed, change, insert, remove};

/// Datagrams of notifications, each of one to a few routes, after which changes are published.
const BATCH: usize = 4096;
/// How long a batch may wait until no thread reads the copy of the FIB that is to be changed. Then
/// it is copied.
const PATIENCE: Duration = Duration::from_millis(20);
/// A list is read again no sooner than this after the one before, and after some times what that took.
const LIST_PAUSE: u64 = 100_000_000;
const LIST_SHARE: u64 = 4;
/// Times that a list which changes while it is read is read once more, before routes that are gone
/// are left for later.
const ATTEMPTS: usize = 4;
/// How long nothing is told of routes before memory that a load took is given back.
const QUIET: u64 = 200_000_000;
/// How often lines tell of connections that are no FPM.
const MALFORMED_PAUSE: u64 = 10_000_000_000;
/// How often it is looked whether there is memory for a FIB that could not be published.
const RETRY: u64 = 1_000_000_000;

/// See the [module](self).
pub(crate) struct Follower {
    shared: Arc<StackInner>,
    follow: Arc<Follow>,
    config: Arc<ArcSwap<Config>>,
    settings: FollowConfig,
    monitor: FibMonitor,
    fpm: Option<FpmMonitor>,
    /// When a line told of a connection that was no FPM.
    malformed_at: Option<u64>,
    /// For names of interfaces, in the same namespace.
    requests: Netlink,
    ctx: SoftnetData,
    /// The devices by the kernel's indices.
    devices: HashMap<u32, u16>,
    /// Neighbours that are fixed because the kernel's are.
    neighbours: HashMap<(u16, IpAddr), MacAddr>,
    /// When to list again, in ns of the clock.
    list_at: Option<u64>,
    listed_at: u64,
    /// When to try again to publish.
    retry_at: Option<u64>,
    /// When to give memory back, if nothing is published until then.
    tidy_at: Option<u64>,
    /// All was listed once.
    whole: bool,
    /// The kernel could not be asked the last time.
    failing: bool,
    /// Of monitors before this one.
    overruns: u64,
}

impl Follower {
    /// Watches the calling thread's namespace from now on.
    pub(crate) fn new(
        shared: &Arc<StackInner>,
        config: &Arc<ArcSwap<Config>>,
        settings: &FollowConfig,
        follow: &Arc<Follow>,
    ) -> SysResult<Self> {
        Ok(Follower {
            shared: shared.clone(),
            follow: follow.clone(),
            config: config.clone(),
            settings: settings.clone(),
            monitor: watch(settings)?,
            fpm: settings.fpm.map(|fpm| FpmMonitor::listen(fpm.listen, fpm.hold)).transpose()?,
            malformed_at: None,
            requests: Netlink::new()?,
            ctx: shared.context(),
            devices: HashMap::new(),
            neighbours: HashMap::new(),
            list_at: Some(0),
            listed_at: 0,
            retry_at: None,
            tidy_at: None,
            whole: false,
            failing: false,
            overruns: 0,
        })
    }

    /// Works until it is stopped.
    pub(crate) fn run(mut self) {
        while !self.follow.is_stopped() {
            if let Err(error) = self.round() {
                self.recover(&error);
            }
        }
        self.ctx.drain();
    }

    /// Begins again with a list, after a pause.
    fn recover(&mut self, error: &SysError) {
        self.count(|stats| &stats.errors, 1);
        if !std::mem::replace(&mut self.failing, true) {
            fail(format_args!(
                "the kernel's routes can't be read: {error}. Those that are known stay; they are listed again until that succeeds"
            ));
        }
        let until = self.shared.clock.now() + RETRY;
        while self.shared.clock.now() < until && !self.follow.is_stopped() {
            std::thread::sleep(PATIENCE);
        }
        if let Ok(monitor) = watch(&self.settings) {
            self.overruns += self.monitor.overruns();
            self.monitor = monitor;
        }
        self.list_at = Some(self.shared.clock.now());
    }

    fn round(&mut self) -> SysResult<()> {
        let now = self.shared.clock.now();
        if self.follow.take_again() {
            self.list_again();
        }
        if self.list_at.is_some_and(|at| at <= now) {
            self.list_at = None;
            self.list()?;
        }
        if !self.read()? {
            self.tidy();
            self.sleep();
        }
        Ok(())
    }

    /// Gives memory back that a load took, if it was quiet for a while.
    fn tidy(&mut self) {
        if self.tidy_at.is_some_and(|at| at <= self.shared.clock.now()) {
            self.tidy_at = None;
            // They may hold the FIB that is to catch up.
            self.shared.control().forget_retired();
            self.shared.routes.read().tidy();
            trim_heap();
        }
    }

    /// Plans the next list.
    fn list_again(&mut self) {
        let took = self.follow.stats.list_ns.load(Ordering::Relaxed);
        let at = self.listed_at + LIST_PAUSE.max(LIST_SHARE * took);
        self.list_at = Some(self.list_at.unwrap_or(at));
        self.follow.stats.list_due.store(true, Ordering::Relaxed);
    }

    /// Takes note of what has been told, and publishes it. Whether there may be more.
    fn read(&mut self) -> SysResult<bool> {
        let mut events = Vec::new();
        let mut more = true;
        for _ in 0..BATCH {
            more = self.monitor.next(|event| events.push(event))?;
            if !more {
                break;
            }
        }
        let overruns = self.overruns + self.monitor.overruns();
        self.follow.stats.overruns.store(overruns, Ordering::Relaxed);
        more |= self.read_fpm();
        if !events.is_empty() {
            let shared = self.shared.clone();
            let mut rib = shared.routes.read();
            let mut neighbours = Vec::new();
            for event in events {
                match event {
                    FibEvent::ListAgain => self.list_again(),
                    FibEvent::Neighbour(neighbour) => neighbours.push(neighbour),
                    route => {
                        self.count(|stats| &stats.events, 1);
                        self.route(&mut rib, route);
                    }
                }
            }
            drop(rib);
            neighbours.into_iter().for_each(|neighbour| self.neighbour(neighbour));
            self.publish();
        }
        Ok(more)
    }

    /// The same of what zebra has told, if it does.
    fn read_fpm(&mut self) -> bool {
        let Some(fpm) = &mut self.fpm else { return false };
        let (mut changes, mut others) = (Vec::new(), Vec::new());
        let more = fpm.next(self.shared.clock.now(), |event| match event {
            FpmEvent::Changed(before, now) => changes.push((before, now)),
            other => others.push(other),
        });
        if let Some(counters) = &self.follow.fpm {
            counters.set(&fpm.state());
        }
        others.into_iter().for_each(|event| self.tell(&event));
        if !changes.is_empty() {
            self.count(|stats| &stats.events, changes.len() as u64);
            let shared = self.shared.clone();
            let mut rib = shared.routes.read();
            let follower = (&self.settings, &*self.follow);
            for (before, now) in changes {
                change(&mut rib, follower, &self.devices, before.as_ref(), now.as_ref());
            }
            drop(rib);
            self.publish();
        }
        more
    }

    /// Tells what became of zebra's connection.
    fn tell(&mut self, event: &FpmEvent) {
        match event {
            FpmEvent::Connected(peer) => note(format_args!("FPM: a connection from {peer}")),
            FpmEvent::Ended => note(format_args!("FPM: the connection ended; its routes stay")),
            FpmEvent::Malformed(why) => {
                let now = self.shared.clock.now();
                if self.malformed_at.is_none_or(|at| now > at + MALFORMED_PAUSE) {
                    warn(format_args!("FPM: a connection was closed: {why}"));
                    self.malformed_at = Some(now);
                }
            }
            FpmEvent::Expired(routes) => {
                note(format_args!("FPM: {routes} routes are gone that were not told again"));
            }
            _ => {}
        }
    }

    /// Lists all there is, and compares.
    fn list(&mut self) -> SysResult<()> {
        let began = self.shared.clock.now();
        self.find_devices()?;
        let shared = self.shared.clone();
        let (mut fixed, mut whole) = (HashMap::new(), false);
        for _ in 0..ATTEMPTS {
            {
                let mut rib = shared.routes.read();
                rib.v4.begin_dump();
                rib.v6.begin_dump();
            }
            for counter in [&self.follow.stats.other_interface, &self.follow.stats.unsupported] {
                counter.store(0, Ordering::Relaxed);
            }
            fixed.clear();
            let (devices, follower) = (&self.devices, (&self.settings, &*self.follow));
            whole = self.monitor.list(|event| match event {
                FibEvent::Neighbour(KernelNeighbour { ifindex, ip, mac: Some(mac) }) => {
                    fixed.extend(devices.get(&ifindex).map(|dev| ((*dev, ip), mac)));
                }
                FibEvent::Route(route, place) => {
                    insert(&mut shared.routes.read(), (follower, Feed::Kernel), devices, &route, place, true);
                }
                _ => {}
            })?;
            for route in self.fpm.iter().flat_map(FpmMonitor::routes) {
                let (rib, place) = (&mut shared.routes.read(), RoutePlace::Last);
                insert(rib, (follower, Feed::Fpm), devices, &route, place, true);
            }
            if whole {
                let mut rib = shared.routes.read();
                rib.v4.sweep();
                rib.v6.sweep();
                break;
            }
            // What it has is so; what is gone is found the next time.
            self.list_at = Some(self.shared.clock.now() + RETRY);
        }
        let stale = self.neighbours.keys().filter(|key| !fixed.contains_key(key));
        let stale: Vec<_> = stale.filter(|_| whole).copied().collect();
        stale.into_iter().for_each(|key| self.fix(key, None));
        fixed.into_iter().for_each(|(key, mac)| self.fix(key, Some(mac)));
        if std::mem::take(&mut self.failing) {
            note(format_args!("the kernel's routes are read again"));
        }
        self.count(|stats| &stats.lists, 1);
        self.whole |= whole;
        self.publish();
        self.listed_at = self.shared.clock.now();
        self.follow.stats.list_ns.store(self.listed_at - began, Ordering::Relaxed);
        self.follow.stats.list_due.store(self.list_at.is_some(), Ordering::Relaxed);
        debug(format_args!("listed the kernel's routes in {} µs", (self.listed_at - began) / 1000));
        Ok(())
    }

    /// Which device each interface is.
    fn find_devices(&mut self) -> SysResult<()> {
        self.devices.clear();
        for device in self.shared.devices.iter() {
            let index = device.live.load().as_ref().map(|live| live.device.info().ifindex);
            if let Some(index) = index.filter(|index| *index != 0) {
                self.devices.insert(index, device.index);
            }
        }
        // Of a VLAN that is softnet's the kernel may have one of the same name.
        for link in self.requests.links()? {
            let device = self.shared.devices.iter().find(|device| device.name == link.name);
            if let Some(device) = device.filter(|device| device.live.load().is_some()) {
                self.devices.entry(link.index).or_insert(device.index);
            }
        }
        Ok(())
    }

    fn route(&mut self, rib: &mut Rib, event: FibEvent) {
        let follower = ((&self.settings, &*self.follow), Feed::Kernel);
        match event {
            FibEvent::Route(route, place) => insert(rib, follower, &self.devices, &route, place, false),
            FibEvent::RouteGone(route) => remove(rib, follower, &self.devices, &route),
            _ => {}
        }
    }

    fn neighbour(&mut self, KernelNeighbour { ifindex, ip, mac }: KernelNeighbour) {
        if let Some(dev) = self.devices.get(&ifindex) {
            self.fix((*dev, ip), mac);
        }
    }

    /// Fixes a neighbour, or lets go of it. One that the configuration fixes, or that was fixed by hand since, is not the
    /// kernel's to change.
    fn fix(&mut self, (dev, ip): (u16, IpAddr), mac: Option<MacAddr>) {
        let device = &self.shared.devices[usize::from(dev)].name;
        let configured = self.config.load().neighbours.iter().any(|n| n.address == ip && n.dev == *device);
        let mac = mac.filter(|_| self.settings.neighbours && !configured);
        let before = match mac {
            Some(mac) => self.neighbours.insert((dev, ip), mac),
            None => self.neighbours.remove(&(dev, ip)),
        };
        let fixed = self.shared.control().slow.neighbours().permanent(dev, ip);
        match fix_step(mac, before, fixed, configured) {
            FixStep::Set(mac) => self.shared.slow_path(&mut self.ctx, |slow, ctx, view, out| {
                slow.set_permanent(ctx, view, (dev, ip, mac), out);
            }),
            FixStep::LetGo => self.shared.slow_path(&mut self.ctx, |slow, ctx, view, out| {
                slow.remove_permanent(ctx, view, (dev, ip), out);
            }),
            FixStep::Leave => {}
        }
    }

    /// Publishes what was changed.
    fn publish(&mut self) {
        let began = std::time::Instant::now();
        let mut pause = Duration::from_micros(50);
        while began.elapsed() < PATIENCE && !self.is_ready() {
            // Those that sleep have the tables of when they fell asleep.
            self.shared.workers.iter().for_each(|worker| worker.waker.wake());
            std::thread::sleep(pause);
            pause *= 2;
            // They hold the FIB that is to be changed.
            self.shared.control().forget_retired();
        }
        let shared = self.shared.clone();
        let mut rib = shared.routes.read();
        if !rib.v4.is_changed() && !rib.v6.is_changed() {
            // What could not be published before, another thread has published.
            self.published();
            return;
        }
        match shared.publish_routes(&mut rib) {
            Ok(()) => {
                self.count(|stats| &stats.published, 1);
                self.published();
                self.tidy_at = rib.is_loose().then(|| self.shared.clock.now() + QUIET);
            }
            Err(error) => {
                if self.retry_at.is_none() {
                    warn(format_args!("routes of the kernel are not in effect yet: {error}"));
                }
                self.retry_at = Some(self.shared.clock.now() + RETRY);
            }
        }
    }

    /// What is known is in effect.
    fn published(&mut self) {
        self.retry_at = None;
        if self.whole {
            self.follow.set_complete();
        }
    }

    fn is_ready(&self) -> bool {
        let rib = self.shared.routes.read();
        rib.v4.is_ready() && rib.v6.is_ready()
    }

    fn count(&self, counter: impl Fn(&crate::stack::follow::FollowCounters) -> &AtomicU64, n: u64) {
        counter(&self.follow.stats).fetch_add(n, Ordering::Relaxed);
    }

    fn sleep(&mut self) {
        let waker = &self.follow.waker;
        let announced = waker.sleeper.announce();
        if self.follow.is_stopped() || self.follow.take_again() {
            drop(announced);
            return self.list_again();
        }
        let now = self.shared.clock.now();
        let fpm_at = self.fpm.as_ref().and_then(FpmMonitor::due);
        let next = [self.list_at, self.retry_at, self.tidy_at, fpm_at].into_iter().flatten().min();
        let timeout = next.map(|at| timespec(at.saturating_sub(now) + 100_000));
        let own = [waker.fd(), self.monitor.fd()].into_iter();
        let fds = own.chain(self.fpm.iter().flat_map(FpmMonitor::fds));
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let _ = poll(&mut fds, timeout.as_ref());
        let woken = !fds[0].revents().is_empty();
        if announced.awake() || woken {
            waker.clear();
        }
        if self.retry_at.is_some_and(|at| at <= self.shared.clock.now()) {
            self.publish();
        }
    }
}

/// What is done about a neighbour.
#[derive(Debug, PartialEq)]
enum FixStep {
    Set(MacAddr),
    LetGo,
    Leave,
}

/// A neighbour that the kernel has fixed at `mac`, or not any more; that was fixed at `before` for that reason, and is
/// `fixed` at a MAC address now.
fn fix_step(
    mac: Option<MacAddr>,
    before: Option<MacAddr>,
    fixed: Option<MacAddr>,
    configured: bool,
) -> FixStep {
    match mac {
        // Nothing new, and another fixed it elsewhere since.
        Some(_) if before == mac && fixed.is_some() => FixStep::Leave,
        Some(mac) => FixStep::Set(mac),
        None if !configured && before.is_some() && fixed == before => FixStep::LetGo,
        None => FixStep::Leave,
    }
}

/// Watches what is followed of the kernel's.
fn watch(settings: &FollowConfig) -> SysResult<FibMonitor> {
    match settings.fpm {
        // What zebra puts into its tables, zebra tells.
        Some(_) => FibMonitor::of_kernel(),
        None => FibMonitor::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_fixed_for_the_kernel_is_let_go() {
        let (a, b) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        for (mac, before, fixed, configured, step) in [
            (Some(a), None, None, false, FixStep::Set(a)),
            (Some(a), Some(a), Some(a), false, FixStep::Leave),
            (Some(b), Some(a), Some(a), false, FixStep::Set(b)),
            // The device was closed meanwhile.
            (Some(a), Some(a), None, false, FixStep::Set(a)),
            // Fixed by hand since.
            (Some(a), Some(a), Some(b), false, FixStep::Leave),
            (None, Some(a), Some(b), false, FixStep::Leave),
            (None, Some(a), Some(a), false, FixStep::LetGo),
            (None, Some(a), None, false, FixStep::Leave),
            // By the configuration since, or never by the kernel.
            (None, Some(a), Some(a), true, FixStep::Leave),
            (None, None, Some(a), false, FixStep::Leave),
        ] {
            assert_eq!(fix_step(mac, before, fixed, configured), step, "{mac:?} {before:?} {fixed:?}");
        }
    }
}
