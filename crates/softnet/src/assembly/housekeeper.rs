//! The housekeeper: opens and closes devices as their interfaces come and go, and runs the slow path's timers.
//!
//! One thread. It sleeps until a neighbour's timer is due, a neighbour says something to all, the kernel reports a change of
//! a link, a user wants an instance polled in another context, or the stack stops.

mod closing;
mod duplicates;
mod hand_over;
mod kernel_addrs;
mod links;
mod live;
mod reload;
mod reload_devices;
mod set_link;
pub(super) mod take_over;

use std::io;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::event::{PollFd, PollFlags, poll};
use softnet_core::SoftnetData;
use softnet_core::ip::FibError;
use softnet_core::ip::iface::Iface;
use softnet_core::ip::input::Ingress;
use softnet_core::ip::slow::Conflict;
use softnet_core::napi::Napi;
use softnet_core::qdisc::DevParams;
use softnet_core::stack::dev_tx::DevTx;
use softnet_core::sync::{AtomicBool, Ordering};
use softnet_dev::netlink::LinkMonitor;
use softnet_dev::{DeviceInfo, OpenDevice, SysResult};

use super::snooper::Snooper;
use crate::config::{Config, PartialCsum, format_mac};
use crate::control::commands::{Change, Command};
use crate::control::{ControlError, Set, Target};
use crate::device::{OpenParts, StackDevice, vlan};
use crate::driver::{DeviceError, Opener};
use crate::live::Told;
use crate::napi::{Home, Input, NapiInstance, NapiTimer, RxHandler, WorkerShared};
use crate::net::groups;
use crate::poll::Contexts;
use crate::stack::StackInner;
use crate::stack::rib::Rib;
use crate::steering::{Arfs, Auto};
use crate::tx::qdisc::Layout;
use crate::tx::{NetdevQueue, QueueWake, TxBackpressure};
use crate::util::{Spawn, cgroup, lock, note, spawn, timespec, warn};
use kernel_addrs::KernelAddrs;
use reload::Ending;

/// How long to wait before another attempt to open a device whose interface is there.
const RETRY: Duration = Duration::from_secs(1);

/// See the module.
pub struct Housekeeper {
    shared: Arc<StackInner>,
    /// As the stack is configured now; without routes.
    config: Arc<Config>,
    /// The same, for others to read.
    published: Arc<ArcSwap<Config>>,
    /// What was configured last, before it was changed by hand.
    told: Told,
    /// Devices that the configuration does not have any more.
    absent: Vec<bool>,
    opener: Box<dyn Opener>,
    ctx: SoftnetData,
    monitor: Option<LinkMonitor>,
    /// Cross-connects: packets of the first device leave by the second.
    patches: Vec<(u16, u16)>,
    /// When to try again to open what is missing, in ns of the clock.
    retry_at: Option<u64>,
    /// When to look again whether there is memory for routes that are not in force yet.
    routes_at: Option<u64>,
    /// What was told of the control group's memory limit, and when to look at it again.
    memory: cgroup::Watch,
    memory_at: Option<u64>,
    /// Connections that are to end.
    ending: Option<Ending>,
    /// For each device why it could not be opened when that was last tried, which was told then.
    refused: Vec<Option<String>>,
    kernel_addrs: KernelAddrs,
    duplicates: duplicates::Duplicates,
    /// For each device whether its interface was without a link when that was last looked at.
    linkless: Vec<bool>,
    contexts: Contexts,
    snooper: Snooper,
    auto: Auto,
    arfs: Arfs,
    commands: Receiver<Command>,
    stop: Arc<AtomicBool>,
    /// What was offered to another process last.
    offering: hand_over::Offering,
    /// What is being taken over from another.
    taking: Option<take_over::Taking>,
}

impl Housekeeper {
    /// For the devices of the configuration `published`, whose filter has the print `filter`, none of which is open yet. Does what comes by `commands`.
    pub(crate) fn new(
        shared: Arc<StackInner>,
        published: Arc<ArcSwap<Config>>,
        filter: u64,
        opener: Box<dyn Opener>,
        patches: Vec<(u16, u16)>,
        commands: Receiver<Command>,
    ) -> SysResult<Self> {
        let config = published.load_full();
        // Before the devices are opened, so that nothing that happens to them is missed.
        let on_interfaces = (0..config.devices.len() as u16).any(|dev| opener.on_interface(dev));
        let monitor = on_interfaces.then(LinkMonitor::new).transpose()?;
        let ctx = shared.context();
        let stop = Arc::new(AtomicBool::new(false));
        let contexts = Contexts::new(shared.clone(), config.stack.pool_threads());
        let (retry_at, refused, snooper) = (None, vec![None; config.devices.len()], Snooper::default());
        let (arfs, linkless) = (Arfs::new(&shared), vec![false; config.devices.len()]);
        let (told, absent) = (Told::new(&config, filter), vec![false; config.devices.len()]);
        Ok(Housekeeper {
            shared,
            config,
            published,
            told,
            absent,
            opener,
            ctx,
            monitor,
            patches,
            retry_at,
            routes_at: None,
            memory: cgroup::Watch::default(),
            memory_at: Some(0),
            ending: None,
            refused,
            kernel_addrs: KernelAddrs::default(),
            linkless,
            duplicates: Default::default(),
            contexts,
            snooper,
            auto: Auto::default(),
            arfs,
            commands,
            stop,
            offering: Default::default(),
            taking: None,
        })
    }

    /// Set to end [`run`](Self::run), after which the housekeeper must be woken.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// Opens every device; the first error ends it. What was opened is closed with the housekeeper,
    /// which is to be dropped after workers that do not run any more.
    pub fn open_all(&mut self) -> Result<(), DeviceError> {
        (0..self.config.devices.len() as u16).try_for_each(|dev| match self.is_vlan(dev) {
            true => Ok(()),
            false => self.open(dev),
        })
    }

    fn is_vlan(&self, dev: u16) -> bool {
        self.shared.devices[usize::from(dev)].vlan.is_some()
    }

    /// The VLANs over device `dev`.
    fn vlans(&self, dev: u16) -> Vec<u16> {
        let over = |other: &&Arc<StackDevice>| other.vlan.is_some_and(|vlan| vlan.link == dev);
        self.shared.devices.iter().filter(over).map(|vlan| vlan.index).collect()
    }

    fn is_open(&self, dev: u16) -> bool {
        self.shared.devices[usize::from(dev)].live.load().is_some()
    }

    /// Whether device `dev` is to be open as soon as it can be.
    fn is_wanted(&self, dev: u16) -> bool {
        !self.absent[usize::from(dev)] && !self.shared.devices[usize::from(dev)].is_down()
    }

    /// Opens what device `dev` is on: by its driver, or over its link, if it is a VLAN.
    fn open_parts(&mut self, dev: u16) -> Result<OpenDevice, DeviceError> {
        let (config, device) = (&self.config, &self.shared.devices[usize::from(dev)]);
        let (Some(params), Some(vlan)) = (device.vlan, config.devices[usize::from(dev)].driver.get()) else {
            let (config, name) = (self.config.clone(), device.name.clone());
            let request = config.request(dev);
            return match self.handed(&name) {
                Some(handed) => self.opener.take(&request, &mut self.ctx, handed),
                None => self.opener.open(&request, &mut self.ctx),
            };
        };
        let link = self.shared.devices[usize::from(params.link)].live.load_full();
        let link = link.ok_or_else(|| format!("{}: its link is not open", device.name))?;
        let partial_csum = self.partial_csum(params.link, link.device.info());
        Ok(vlan::open(&device.name, vlan, &params, link.device.clone(), partial_csum))
    }

    /// Whether partial checksums arrive by device `dev`.
    fn partial_csum(&self, dev: u16, info: &DeviceInfo) -> bool {
        match self.config.devices[usize::from(dev)].partial_csum {
            PartialCsum::Auto => info.features.partial_csum,
            PartialCsum::On => true,
            PartialCsum::Off => false,
        }
    }

    pub(crate) fn open(&mut self, dev: u16) -> Result<(), DeviceError> {
        let config = self.config.clone();
        let device = &config.devices[usize::from(dev)];
        let OpenDevice { device: shared_part, rx, tx, .. } = self.open_parts(dev)?;
        let info = shared_part.info();
        let watched = self.watch(info);
        let partial_csum = self.partial_csum(dev, info);
        let handler = match self.patches.iter().find(|(from, _)| *from == dev) {
            Some((_, to)) => RxHandler::Patch(*to),
            None => RxHandler::Ip(Ingress { dev, mac: info.mac, partial_csum, rp_filter: device.rp_filter }),
        };
        // The one that follows from its MAC address is asked for again.
        lock(&self.shared.devices[usize::from(dev)].duplicates).retain(|own| !device.derives(own, info.mac));
        let iface = live::iface(device, info, &[]);
        let too_small = device.speaks_ipv6() && info.mtu < 1280;
        let params = DevParams { mtu: info.mtu.into(), tx_queue_len: device.tx_queue_len };
        let timers: Result<Vec<_>, _> = rx.iter().map(|_| NapiTimer::new()).collect();
        let layout = {
            let settings = lock(&self.shared.devices[usize::from(dev)].qdiscs);
            Layout::build(&settings, tx.len(), &config.stack.default_qdisc, &params)
        };
        let name = || device.name.clone();
        let parts = || -> Result<_, DeviceError> {
            watched?;
            if too_small {
                return Err(DeviceError::Mtu { name: name(), mtu: info.mtu });
            }
            let (layout, qdiscs) = layout.map_err(|source| DeviceError::Qdisc { name: name(), source })?;
            let xps =
                device.xps(tx.len() as u16).map_err(|source| DeviceError::Xps { name: name(), source })?;
            let timers = timers.map_err(|source| DeviceError::Timers { name: name(), source })?;
            Ok((layout, qdiscs, xps, timers))
        };
        let (layout, qdiscs, xps, timers) = match parts() {
            Ok(parts) => parts,
            Err(why) => {
                rx.into_iter().for_each(|queue| queue.close(&mut self.ctx));
                tx.into_iter().for_each(|queue| queue.close(&mut self.ctx));
                return Err(why);
            }
        };
        let rx_stats = rx.iter().map(|queue| queue.stats()).collect();
        let mut disabled = Vec::with_capacity(rx.len());
        let mut napis = Vec::with_capacity(rx.len());
        for ((queue, rx), timer) in rx.into_iter().enumerate().zip(timers) {
            let (doorbell, rx) = (rx.doorbell(), Input::new(&self.shared.region, rx));
            let backlog = rx.backlog().clone();
            let name = format!("{}-{queue}", device.name);
            let (napi, guard) = Napi::new(name, dev, queue as u16, Some(rx));
            disabled.push(guard);
            let worker = device.worker_of(queue, self.shared.workers.len());
            let now = self.shared.clock.now();
            let instance = NapiInstance::new(napi, doorbell, backlog, timer, worker, handler, now);
            napis.push(Arc::new(instance));
        }
        Arfs::opening(&self.shared, &*shared_part, &napis);
        napis.iter().for_each(|instance| self.shared.steer_as_set(instance));
        if let Some(warning) = layout.warning(&params) {
            warn(format_args!("{}: {warning}", device.name));
        }
        let homes = self.homes(dev, &napis);
        let mut queues = Vec::with_capacity(tx.len());
        for (number, (queue, qdisc)) in tx.into_iter().zip(qdiscs).enumerate() {
            let worker = self.worker_of(dev, number).clone();
            let qdisc_max_burst = config.stack.qdisc_max_burst;
            let notifier = self.shared.sockets.notifier.clone();
            let held_back = TxBackpressure::new(notifier);
            let (due, drops) = (worker.tx_due.clone(), self.shared.sockets.tcp.drops().clone());
            let wake = QueueWake { due, held_back, drops, number: number as u16 };
            let queue = NetdevQueue::new(&self.shared.region, dev, qdisc, queue, qdisc_max_burst, wake);
            let queue = Arc::new(queue);
            worker.add_tx(queue.clone());
            queues.push(queue);
        }
        let live = OpenParts {
            device: shared_part,
            napis: napis.clone(),
            rx_stats,
            tx: DevTx {
                queues,
                single: AtomicBool::new(layout.is_single()),
                shaped: AtomicBool::new(layout.is_shaped()),
                xps,
            },
            layout: Mutex::new(layout),
            params,
        };
        let live = Arc::new(live);
        self.shared.devices[usize::from(dev)].live.store(Some(live.clone()));
        self.shared.devices[usize::from(dev)].set_down(false);
        // Only now: a knob that is set before finds the device closed, and is only remembered.
        if self.taking.is_none() {
            self.apply_settings(dev, &live);
        }
        groups::opened(&self.shared, dev);
        self.set_iface(dev, Some(iface));
        self.set_open(dev, true);
        for neighbour in config.neighbours.iter().filter(|n| n.dev == device.name) {
            let fixed = (dev, neighbour.address, neighbour.mac);
            self.shared.slow_path(&mut self.ctx, |slow, ctx, view, out| {
                slow.set_permanent(ctx, view, fixed, out);
            });
        }
        // Last: from here on packets flow.
        for ((instance, guard), home) in napis.into_iter().zip(disabled).zip(homes) {
            self.attach(instance, guard, home);
        }
        if self.taking.is_none() {
            self.announce(dev, &device.addresses);
        }
        let there: Vec<u16> = self.vlans(dev).into_iter().filter(|vlan| self.is_wanted(*vlan)).collect();
        there.into_iter().try_for_each(|vlan| self.open(vlan))
    }

    /// Has it told what becomes of the interface behind a device that was opened, if that has one.
    /// That of a device which the program opens itself is known by now only; it may have gone
    /// meanwhile.
    fn watch(&mut self, info: &DeviceInfo) -> Result<(), DeviceError> {
        if info.ifindex != 0 && self.monitor.is_none() {
            let monitor = LinkMonitor::new().map_err(io::Error::from)?;
            if !monitor.links().any(|link| link.index == info.ifindex) {
                return Err(format!("{}: the interface has just gone", info.name).into());
            }
            self.monitor = Some(monitor);
        }
        Ok(())
    }

    /// Homes for the instances of a device that is being opened, as they were set. If threads are wanting, their workers:
    /// better polled in another way than not at all.
    fn homes(&mut self, dev: u16, napis: &[Arc<NapiInstance>]) -> Vec<Home> {
        let device = &self.shared.devices[usize::from(dev)];
        let set = |instance: &Arc<NapiInstance>| (instance.clone(), device.threaded(instance.napi.queue));
        let wanted: Vec<_> = napis.iter().map(set).collect();
        self.contexts.prepare(&wanted, &mut spawn).unwrap_or_else(|error| {
            warn(format_args!("{}: polled in softirq, for want of threads: {error}", device.name));
            napis.iter().map(|instance| Home::Worker(self.shared.workers[instance.worker].clone())).collect()
        })
    }

    /// Switches instances to another context, and remembers that for their queues. Returns their ids. `spawn` makes the
    /// threads; if it fails, nothing changes.
    pub fn set(&mut self, set: &Set, spawn: Spawn<'_>) -> Result<Vec<u32>, ControlError> {
        let (dev, instances) = self.shared.find(&set.target)?;
        let wanted = instances.iter().map(|instance| (instance.clone(), set.threaded)).collect();
        let switched = self.contexts.switch(wanted, spawn);
        switched.map_err(|source| ControlError::Thread { context: set.threaded, source })?;
        match (&set.target, &instances[..]) {
            (Target::Napi(_), [instance]) => dev.set_threaded(Some(instance.napi.queue), set.threaded),
            _ => dev.set_threaded(None, set.threaded),
        }
        Ok(instances.iter().map(|instance| instance.napi.id).collect())
    }

    fn execute(&mut self, command: Command) {
        let answer = match &command.change {
            Change::Threaded(set) => self.set(set, &mut spawn),
            Change::Qdisc(set) => self.set_qdisc(set).map(|()| Vec::new()),
            Change::Steering(set) => {
                let set = self.shared.set_steering(&mut self.ctx, set);
                // There may be something to choose for only now.
                self.auto.start(&self.shared);
                set
            }
            Change::Reload(config, done) => match self.reload(config) {
                Ok(changes) => {
                    *lock(done) = changes;
                    Ok(Vec::new())
                }
                Err(error) => Err(error.into()),
            },
            Change::Offer(slot) => self.offer().map(|offered| {
                *lock(slot) = Some(offered);
                Vec::new()
            }),
            Change::HandOver(channel) => Err(self.hand_over(&mut lock(channel))),
            change @ (Change::Route(_) | Change::Neigh(_) | Change::Addr(_) | Change::Link(_)) => {
                let changed = self.change_live(change).map(|n| vec![u32::try_from(n).unwrap_or(u32::MAX)]);
                changed.map_err(ControlError::from)
            }
        };
        // A requester that does not wait for it any more has told its user so.
        let _ = command.answer.send(answer);
    }

    /// Routes by way of a device that is not there, or without a link, give way to others; and the kernel's are by
    /// another interface when it is back.
    fn set_open(&mut self, dev: u16, open: bool) {
        // If there is no memory for it, that is noted, and done later.
        let usable = open && self.look_at_link(dev);
        let _ = self.change_routes(|rib| rib.set_open(dev, usable));
        self.kernel_addrs.look_again();
        self.list_again();
    }

    /// Has the kernel's routes and neighbours listed again, if they are followed.
    fn list_again(&self) {
        if let Some(follow) = &self.shared.follow {
            follow.list_again();
        }
    }

    /// Changes routes. For want of memory that may come into force later.
    fn change_routes(&mut self, change: impl FnOnce(&mut Rib)) -> Result<(), FibError> {
        let changed = self.shared.change_routes(change);
        if let Err(error) = &changed {
            if self.routes_at.is_none() {
                warn(format_args!("changes of routes are not in force yet: {error}"));
            }
            self.routes_at = Some(self.shared.clock.now() + RETRY.as_nanos() as u64);
        }
        changed
    }

    fn set_iface(&mut self, dev: u16, iface: Option<Iface>) {
        let mut control = self.shared.control();
        control.replace_tables(&*self.shared, |tables| tables.set_iface(dev, iface));
    }

    /// The worker that polls RX queue `number` of device `dev` in the context `softirq`, and runs the TX queue of that number.
    fn worker_of(&self, dev: u16, number: usize) -> &Arc<WorkerShared> {
        let workers = &self.shared.workers;
        &workers[self.config.devices[usize::from(dev)].worker_of(number, workers.len())]
    }

    /// Works until it is stopped; then its drop closes everything.
    pub fn run(mut self) {
        self.auto.start(&self.shared);
        while !self.stop.load(Ordering::Acquire) {
            self.links();
            self.timers();
            while let Ok(command) = self.commands.try_recv() {
                self.execute(command);
            }
            self.sleep();
        }
    }

    /// Does what the slow path's timers want done by now, and hears what neighbours said.
    pub fn timers(&mut self) {
        let now = self.shared.clock.now();
        self.snooper.listen(&self.shared, &mut self.ctx, now);
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.open_missing();
        }
        if self.routes_at.is_some_and(|at| at <= now) && self.change_routes(|_| ()).is_ok() {
            self.routes_at = None;
        }
        if self.memory_at.is_some_and(|at| at <= now) {
            self.look_at_memory(now);
        }
        self.end_connections(now);
        self.auto.run(&self.shared, &mut self.ctx, now);
        self.arfs.run(&self.shared, &mut self.ctx, now);
        self.shared.handle_left(&mut self.ctx);
        let due = self.shared.control().slow.next_deadline().is_some_and(|at| at <= now);
        if due {
            // The machine's clock may have been set meanwhile.
            let midnight = self.shared.clock.midnight();
            self.shared.slow_path(&mut self.ctx, |slow, ctx, view, out| {
                slow.set_midnight(midnight);
                slow.poll(ctx, view, out);
            });
            self.tell_conflicts();
        }
        if self.duplicates.again_at.is_some_and(|at| at <= now) {
            self.try_duplicates(now);
        }
        self.drop_duplicates(now);
    }

    /// Tells when the limit of the control group is near, and when it is not any more.
    fn look_at_memory(&mut self, now: u64) {
        let usage = cgroup::own();
        match self.memory.news(usage.as_ref()) {
            Some(cgroup::News::Near(text)) => warn(format_args!("{text}")),
            Some(cgroup::News::Far(text)) => note(format_args!("{text}")),
            None => {}
        }
        self.memory_at = Some(now + cgroup::Watch::interval(usage.as_ref()));
    }

    /// Tells of neighbours that claim addresses of softnet's.
    fn tell_conflicts(&mut self) {
        let conflicts = self.shared.control().slow.take_conflicts();
        for Conflict { dev, ip, mac } in conflicts {
            let (name, mac) = (&self.shared.devices[usize::from(dev)].name, format_mac(mac));
            warn(format_args!("{name}: a neighbour has {ip}, too, at {mac}; softnet keeps it"));
        }
    }

    fn sleep(&mut self) {
        let waker = &self.shared.housekeeper;
        // Announced before the deadline is read: a thread that sets an earlier one then wakes the housekeeper.
        let announced = waker.sleeper.announce();
        let next = {
            let mut control = self.shared.control();
            let slow = control.slow.next_deadline().unwrap_or(u64::MAX);
            let ending = self.ending.as_ref().map(|ending| ending.next);
            let own = [self.retry_at, self.routes_at, self.memory_at, self.duplicates.again_at, ending];
            let others =
                own.into_iter().chain([self.snooper.next(), self.auto.next(&self.shared), self.arfs.next()]);
            control.deadline = others.flatten().fold(slow, u64::min);
            control.deadline
        };
        let more = self.shared.has_left() || self.kernel_addrs.is_due();
        if self.stop.load(Ordering::Acquire) || more {
            return;
        }
        if let Ok(command) = self.commands.try_recv() {
            drop(announced);
            return self.execute(command);
        }
        let now = self.shared.clock.now();
        let timeout = (next != u64::MAX).then(|| {
            // Timers here count in seconds: a millisecond more saves a second wake-up.
            timespec(next.saturating_sub(now) + 1_000_000)
        });
        let heard = self.snooper.waits_for(&self.shared);
        let mut fds = vec![PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN)];
        if let Some(monitor) = &self.monitor {
            fds.push(PollFd::from_borrowed_fd(monitor.fd(), PollFlags::IN));
        }
        fds.extend(Snooper::fds(&heard));
        let _ = poll(&mut fds, timeout.as_ref());
        let woken = !fds[0].revents().is_empty();
        drop(fds);
        if announced.awake() || woken {
            waker.clear();
        }
    }
}

impl Drop for Housekeeper {
    /// Also for the one whose thread could not be started: no other part knows what it opened.
    fn drop(&mut self) {
        // After a panic the process ends, and what the panic left half done may be waited for in
        // vain.
        if !std::thread::panicking() {
            self.close_all();
        }
    }
}
