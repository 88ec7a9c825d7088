//! A running stack: from configuration to threads, and back.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rustix::thread::CpuSet;
use softnet_core::fold::FoldKey;
use softnet_core::ip::neigh::NeighParams;
use softnet_core::ip::slow::SlowPath;
use softnet_core::skb::{FRAME_SIZE, Region, RegionMemory};
use softnet_core::sync::{AtomicBool, Ordering};
use softnet_dev::flow_hkey;
use softnet_dev::memfd::MemfdMemory;
use softnet_dev::process::{raise_files_limit, trim_heap};
use softnet_dev::sys_error::files_hint;
use softnet_dev::topology;

use super::housekeeper::take_over::Taking;
use super::{Follower, Housekeeper, Introspect, StackBuilder};
use crate::app::{NapiPoller, PollerError, PollerParams, RawSender};
use crate::config::{Config, ConfigErrors, Context, MetricsConfig, MetricsListen};
use crate::control::commands::commands;
use crate::control::hand_over::{Predecessor, TakeOverError};
use crate::control::{BindError, ControlError, Listener, Server};
use crate::device::StackDevice;
use crate::driver::{DeviceError, Opener};
use crate::live::print_of;
use crate::metrics;
use crate::napi::{PacketFilter, PollThread, WorkerShared};
use crate::poll::Worker;
use crate::stack::{Handle, StackInner, nat, routes, rules};
use crate::util::{Spawn, spawn};

/// Why a stack did not start. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// Its control socket can't be bound.
    #[error(transparent)]
    Control(#[from] BindError),
    /// Metrics can't be told where they are to be.
    #[error("metrics on {listen}: {why} (metrics.listen)")]
    Metrics {
        /// Where.
        listen: MetricsListen,
        /// Why not.
        why: String,
    },
    /// A device can't be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The operating system refused something else.
    #[error("{what}: {source}{}", files_hint(.source))]
    System {
        /// What was to be done.
        what: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// The routes don't fit a table.
    #[error(transparent)]
    Routes(#[from] softnet_core::ip::FibError),
    /// The prefixes of filter rules don't fit a table.
    #[error("addresses of [[rule]] and [[set]]: {0}")]
    Filter(#[source] softnet_core::ip::FibError),
    /// NAT has more external addresses than there may be.
    #[error(transparent)]
    Nat(#[from] softnet_core::nat::TooManyAddresses),
    /// Another process's place can't be taken.
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
    /// Packet memory can't be laid out.
    #[error(transparent)]
    Region(#[from] softnet_core::skb::RegionError),
}

/// Where metrics will be told.
pub(super) fn bind_metrics(config: &MetricsConfig) -> Result<metrics::Bound, StartError> {
    let why = |why| StartError::Metrics { listen: config.listen.clone(), why };
    metrics::Bound::new(config).map_err(why)
}

/// How long the end of another process may take, once it has begun.
const GONE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(5);

/// How long a list of the kernel's routes is waited for before another process's place is taken.
const LISTED: Duration = Duration::from_secs(60);

fn system(what: &'static str) -> impl Fn(std::io::Error) -> StartError {
    move |source| StartError::System { what, source }
}

/// All parts of a stack, with its devices open, before any worker runs: for programs that run the workers themselves. (Devices
/// that are configured to be polled in another context than `softirq` are, from now on.)
/// Field order matters: workers go before the housekeeper closes the devices.
pub struct Assembly {
    /// One per configured CPU.
    pub workers: Vec<Worker>,
    /// What is shared.
    pub shared: Arc<StackInner>,
    /// For display.
    pub view: Arc<Introspect>,
    housekeeper: Option<Housekeeper>,
    follower: Option<Follower>,
}

impl Assembly {
    /// Makes packet memory, tables and workers, and opens the devices by what `opener` makes of the region. `patches`:
    /// pairs of device indices; what the first receives leaves by the second, unrouted.
    pub fn new<O: Opener + 'static>(
        config: Config,
        patches: Vec<(u16, u16)>,
        opener: impl FnOnce(&Arc<Region>) -> Result<O, DeviceError>,
    ) -> Result<Self, StartError> {
        Self::make(config, patches, opener, None)
    }

    /// As [`new`](Self::new), to take the place of `predecessor`, if there is one: its devices are
    /// open then, and stand still.
    pub(super) fn make<O: Opener + 'static>(
        mut config: Config,
        patches: Vec<(u16, u16)>,
        opener: impl FnOnce(&Arc<Region>) -> Result<O, DeviceError>,
        mut predecessor: Option<&mut Predecessor>,
    ) -> Result<Self, StartError> {
        // Whatever CPUs the calling thread is pinned to now: workers pin themselves.
        let cpus: Vec<u32> = (0..CpuSet::MAX_CPU as u32).collect();
        config.check(&cpus)?;
        raise_files_limit();
        flow_hkey::draw();
        let mut rib = routes::routes(&config);
        // From here on they are in the tables alone, and in what these are built from.
        config.routes = Vec::new();
        let secret = || std::array::from_fn(|_| RandomState::new().hash_one(std::process::id()));
        let mut tables = routes::compile(&mut rib, FoldKey::new(secret()))?;
        let conntrack = nat::conntrack(&config);
        let nat = nat::start(&config, conntrack.as_ref(), &mut tables)?;
        rules::start(&config, conntrack.as_ref(), nat.as_ref(), &mut tables).map_err(StartError::Filter)?;
        let filter_print = print_of(&config.filter);
        // Compiled, they are in the tables.
        config.filter.sets.iter_mut().for_each(|set| set.prefixes = Vec::new());
        let stack = &config.stack;
        // A head per frame: an skb always has one frame, and frames in rings need none.
        let bytes = Region::bytes(stack.frames, stack.frames);
        let nodes = topology::nodes(&stack.workers);
        let handed = predecessor.as_mut().and_then(|predecessor| predecessor.memory.take());
        let frame_bytes = stack.frames as usize * FRAME_SIZE;
        let is_handed = handed.is_some();
        let memory = match handed {
            Some(fd) => MemfdMemory::handed_over(fd, frame_bytes, bytes, &nodes),
            None => MemfdMemory::on_nodes(bytes, &nodes),
        };
        let memory = memory.map_err(system("packet memory"))?;
        let memory_fd = memory.as_fd().try_clone_to_owned().map_err(system("packet memory"))?;
        let memory: Box<dyn RegionMemory> = Box::new(memory);
        let (frames, defer) = (stack.frames, stack.skb_defer_max);
        let (region, handed_frames) = match is_handed {
            true => {
                Region::handed_over(memory, frames, frames, defer).map(|(region, all)| (region, Some(all)))?
            }
            false => (Region::with_defer(memory, frames, frames, defer)?, None),
        };
        let devices = StackDevice::all(&config, 0);
        let mut workers = Vec::new();
        for (index, cpu) in stack.workers.iter().enumerate() {
            let thread = PollThread {
                policy: stack.worker_policy,
                ..PollThread::new(format!("softnet/{index}"), Context::Softirq, Some(*cpu), 0)
            };
            workers.push(Arc::new(WorkerShared::new(thread).map_err(system("worker"))?));
        }
        // Packets that wait for neighbours must not take the memory that the answers need.
        let defaults = NeighParams::default();
        let unres_total = defaults.unres_total.min(stack.frames as usize / 8);
        let [gc_thresh1, gc_thresh2, gc_thresh3] = stack.gc_thresh.map(|n| n as usize);
        let neigh = NeighParams { unres_total, gc_thresh1, gc_thresh2, gc_thresh3, ..defaults };
        let mut slow = SlowPath::new(neigh, secret());
        slow.set_gateways(rib.gateways());
        slow.configure(stack.icmp.clone(), stack.ip_options);
        let opener = opener(&region)?;
        let shared = StackInner::new(region, stack, devices, workers, (rib, tables), slow);
        let mut shared = shared.map_err(system("descriptors"))?;
        shared.sockets.tell_ports(opener.ports());
        shared.sockets.tcp.configure(config.tcp.clone());
        (shared.conntrack, shared.nat) = (conntrack, nat);
        let _ = shared.giving.memory.set(memory_fd);
        let shared = Arc::new(shared);
        let filter = filter_print;
        let config = Arc::new(ArcSwap::from_pointee(config));
        let (commander, commands) = commands(&shared.housekeeper);
        let view = Arc::new(Introspect::new(shared.clone(), config.clone(), commander));
        let started = config.load_full();
        let follower = match (&started.stack.follow, &shared.follow) {
            (Some(settings), Some(follow)) => Some(Follower::new(&shared, &config, settings, follow)),
            _ => None,
        };
        let follower = follower.transpose().map_err(|error| system("watching routes")(error.into()))?;
        let mut housekeeper =
            Housekeeper::new(shared.clone(), config, filter, Box::new(opener), patches, commands)
                .map_err(|error| system("watching interfaces")(error.into()))?;
        if let (Some(predecessor), Some(frames)) = (predecessor, handed_frames) {
            housekeeper.prepare_take_over(Taking::new(predecessor, frames));
        }
        // Before the devices: if one of them can't be opened, the instances of the others are with their workers, whose
        // drop gives them up to be closed.
        let workers = shared.workers.iter().map(|me| Worker::new(&shared, me)).collect::<Result<_, _>>();
        let workers = workers.map_err(system("worker"))?;
        let mut assembly = Assembly { workers, shared, view, housekeeper: Some(housekeeper), follower };
        if let Some(housekeeper) = &mut assembly.housekeeper {
            housekeeper.open_all()?;
        }
        // What reading a large configuration and building its tables took.
        trim_heap();
        Ok(assembly)
    }

    /// Leads to it, for [sockets](crate::net).
    pub fn handle(&self) -> Handle {
        Handle::new(&self.shared)
    }

    /// The housekeeper, for programs that run its timers themselves.
    pub fn housekeeper(&mut self) -> Option<&mut Housekeeper> {
        self.housekeeper.as_mut()
    }
}

impl Drop for Assembly {
    fn drop(&mut self) {
        self.workers.clear();
        self.follower = None;
        if let Some(housekeeper) = self.housekeeper.take() {
            drop(housekeeper);
            self.shared.sockets.stop();
            self.shared.sockets.tcp.stop(&self.shared);
        }
    }
}

/// A running stack. Dropping it stops it: packets in flight are finished or freed and counted, devices given back.
pub struct Stack {
    /// Answers on the control socket, if there is one.
    server: Option<Server>,
    /// Tells metrics, if they are configured.
    metrics: Option<metrics::Server>,
    view: Arc<Introspect>,
    shared: Arc<StackInner>,
    workers: Vec<JoinHandle<()>>,
    housekeeper: Option<JoinHandle<()>>,
    follower: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    /// The process whose place it has taken, and where metrics are to be told when that has ended.
    pub(super) after: Option<Box<(Predecessor, Option<MetricsConfig>)>>,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack").field("view", &self.view).finish_non_exhaustive()
    }
}

impl Stack {
    /// Starts from nothing but what the builder is told.
    pub fn builder() -> StackBuilder {
        StackBuilder::default()
    }

    /// Checks `config`, takes its interfaces in the calling thread's network namespace, and runs.
    pub fn start(config: Config) -> Result<Stack, StartError> {
        Self::builder().config(config).start()
    }

    /// From now on it answers on `control`, until it is dropped.
    pub(super) fn serve(&mut self, control: Listener) -> Result<(), StartError> {
        let again = control.as_fd().try_clone_to_owned().map_err(system("the control socket"))?;
        let _ = self.shared.giving.listener.set(again);
        let server = control.serve(self.view.clone()).map_err(system("starting the control thread"))?;
        self.server = Some(server);
        Ok(())
    }

    /// From now on it tells its metrics on `bound`, until it is dropped.
    pub(super) fn tell_metrics(&mut self, bound: metrics::Bound) -> Result<(), StartError> {
        let view = self.view.clone();
        let server =
            bound.serve(move || metrics::text(&view)).map_err(system("starting the metrics thread"))?;
        self.metrics = Some(server);
        Ok(())
    }

    /// The process whose place it has taken, until that has ended; and for how long no packet was
    /// forwarded.
    pub fn predecessor(&self) -> Option<(u32, Duration)> {
        self.after.as_ref().map(|after| (after.0.pid, Duration::from_nanos(after.0.paused)))
    }

    /// It has taken another process's place ([`StackBuilder::take_over`]), and all is well: that
    /// one ends now. Does nothing otherwise.
    ///
    /// # Errors
    /// It has not ended, or metrics can't be told; the stack runs all the same.
    pub fn end_predecessor(&mut self) -> Result<(), StartError> {
        let Some(after) = self.after.take() else { return Ok(()) };
        let (predecessor, metrics) = *after;
        let what = "waiting for the end of the instance that was taken over";
        let ended = predecessor.done().map_err(system(what));
        // However it ended.
        let told = metrics.map_or(Ok(()), |metrics| self.tell_metrics_after(&metrics));
        ended.and(told)
    }

    /// Tells metrics as soon as the process before this has let go of where they are told.
    fn tell_metrics_after(&mut self, metrics: &MetricsConfig) -> Result<(), StartError> {
        let until = Instant::now() + GONE;
        loop {
            match bind_metrics(metrics) {
                // The last descriptor of a process that ends may be closed a little later.
                Err(_) if Instant::now() < until => std::thread::sleep(LOOK),
                bound => return self.tell_metrics(bound?),
            }
        }
    }

    /// Where it tells its metrics, if that is by TCP: with the port that was free, if none was configured.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref()?.address()
    }

    /// Runs what was assembled.
    #[doc(hidden)]
    pub fn run(assembly: Assembly) -> Result<Stack, StartError> {
        Self::run_by(assembly, &mut spawn, None)
    }

    /// The same in the place of `predecessor`, which has stopped when this succeeds, and goes on if
    /// it does not.
    pub(super) fn run_instead(
        assembly: Assembly,
        predecessor: &mut Predecessor,
    ) -> Result<Stack, StartError> {
        Self::run_by(assembly, &mut spawn, Some(predecessor))
    }

    /// The same, with threads that `spawn` makes. If one cannot be made, the others are ended and
    /// everything is closed.
    fn run_by(
        mut assembly: Assembly,
        spawn: Spawn<'_>,
        predecessor: Option<&mut Predecessor>,
    ) -> Result<Stack, StartError> {
        let (shared, view) = (assembly.shared.clone(), assembly.view.clone());
        let mut stack = Stack {
            server: None,
            metrics: None,
            view,
            shared,
            workers: Vec::new(),
            housekeeper: None,
            follower: None,
            stop: Arc::default(),
            after: None,
        };
        for (worker, me) in std::mem::take(&mut assembly.workers).into_iter().zip(&stack.shared.workers) {
            let body = Box::new(move || worker.run());
            stack.workers.push(spawn(&me.thread.name, body).map_err(system("thread"))?);
        }
        if let Some(follower) = assembly.follower.take() {
            let body = Box::new(move || follower.run());
            stack.follower = Some(spawn("softnet-routes", body).map_err(system("thread"))?);
        }
        if let (Some(predecessor), Some(housekeeper)) = (predecessor, &mut assembly.housekeeper) {
            // What it forwards by is complete before the other stops.
            if let Some(follow) = &stack.shared.follow {
                follow.wait_complete(LISTED).map_err(TakeOverError::Routes)?;
            }
            housekeeper.take_over(predecessor)?;
        }
        if let Some(housekeeper) = assembly.housekeeper.take() {
            stack.stop = housekeeper.stop_flag();
            let body = Box::new(move || housekeeper.run());
            stack.housekeeper = Some(spawn("softnet-keeper", body).map_err(system("thread"))?);
        }
        Ok(stack)
    }

    /// What it can tell of itself.
    pub fn view(&self) -> &Arc<Introspect> {
        &self.view
    }

    /// A poller of NAPI instance `napi`, see [`NapiPoller`].
    pub fn poller(
        &self,
        napi: u32,
        name: &str,
        filter: PacketFilter,
        params: PollerParams,
    ) -> Result<NapiPoller, PollerError> {
        NapiPoller::new(&self.handle(), napi, name, filter, params)
    }

    /// A sender of raw frames on device `dev`, for one thread. The error says which devices there are.
    pub fn sender(&self, dev: &str) -> Result<RawSender, ControlError> {
        RawSender::new(&self.handle(), dev)
    }

    /// Leads to it, for [sockets](crate::net).
    pub fn handle(&self) -> Handle {
        Handle::new(&self.shared)
    }

    /// What its threads share.
    #[doc(hidden)]
    pub fn shared(&self) -> &Arc<StackInner> {
        &self.shared
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // It is another process's, and this one is about to end.
        while self.shared.giving.is_given() {
            std::thread::park();
        }
        // First: what is being taken apart answers no questions.
        self.server = None;
        self.metrics = None;
        if let Some(follow) = &self.shared.follow {
            follow.stop();
        }
        if let Some(thread) = self.follower.take() {
            let _ = thread.join();
        }
        self.shared.taps.close();
        for worker in &self.shared.workers {
            worker.stop();
        }
        for thread in self.workers.drain(..) {
            let _ = thread.join();
        }
        self.stop.store(true, Ordering::Release);
        self.shared.housekeeper.wake();
        if let Some(thread) = self.housekeeper.take() {
            let _ = thread.join();
        }
        self.shared.sockets.stop();
        self.shared.sockets.tcp.stop(&self.shared);
    }
}

#[cfg(test)]
mod tests {
    use softnet_core::SoftnetData;
    use softnet_dev::OpenDevice;
    use softnet_dev::mem::{PairConfig, pair};

    use super::*;
    use crate::config::DeviceConfig;
    use crate::driver::OpenRequest;

    fn config() -> Config {
        let device = |name: &str, address: &str| DeviceConfig {
            addresses: vec![address.parse().unwrap()],
            ..DeviceConfig::new(name)
        };
        let devices = vec![device("a", "10.0.0.1/24"), device("b", "10.0.1.1/24")];
        Config { devices, ..Config::default() }
    }

    /// The first device is open, and its instance scheduled on a worker that does not run yet, when the second fails.
    #[test]
    fn a_device_that_cannot_be_opened_ends_the_start() {
        let opener = move |&OpenRequest { dev, .. }: &OpenRequest<'_>,
                           ctx: &mut SoftnetData|
              -> Result<OpenDevice, String> {
            if dev == 1 {
                return Err("b: no such interface".into());
            }
            let [a, _] = pair(ctx.region(), [0, 9], &PairConfig::default()).map_err(|e| e.to_string())?;
            Ok(a)
        };
        let error = Assembly::new(config(), vec![], move |_| Ok(opener)).expect_err("b failed");
        assert_eq!(error.to_string(), "b: no such interface");
    }

    #[test]
    fn configured_knobs_are_set_when_a_device_is_opened() {
        let mut config = config();
        config.devices.truncate(1);
        let device = &mut config.devices[0];
        (device.napi_defer_hard_irqs, device.gro_flush_timeout, device.irq_suspend_timeout) = (2, 20_000, 3);
        let opener = |_: &OpenRequest<'_>, ctx: &mut SoftnetData| -> Result<OpenDevice, String> {
            let [a, _] = pair(ctx.region(), [0, 9], &PairConfig::default()).map_err(|e| e.to_string())?;
            Ok(a)
        };
        let assembly = Assembly::new(config, vec![], move |_| Ok(opener)).unwrap();
        let row = &assembly.view.napis()[0];
        let knobs = (row.napi_defer_hard_irqs, row.gro_flush_timeout, row.irq_suspend_timeout);
        assert_eq!(knobs, (2, 20_000, 3));
        let warning = row.warning.as_deref().unwrap_or_default();
        assert!(warning.starts_with("irq_suspend_timeout has no effect without an application"), "{warning}");
    }

    #[test]
    fn a_configuration_that_contradicts_itself_opens_nothing() {
        let mut config = config();
        config.devices[1].workers = vec![7];
        let opener = |_: &OpenRequest<'_>, _: &mut SoftnetData| -> Result<OpenDevice, String> {
            panic!("opened a device")
        };
        assert!(matches!(Assembly::new(config, vec![], |_| Ok(opener)), Err(StartError::Config(_))));
    }

    /// A stack with one device of `queues` queues, polled in `context`.
    fn one_device(context: Context, queues: usize) -> Assembly {
        let mut config = config();
        config.devices.truncate(1);
        config.devices[0].threaded = context;
        config.stack.workers.truncate(1);
        let opener = move |_: &OpenRequest<'_>, ctx: &mut SoftnetData| -> Result<OpenDevice, String> {
            let pairs = PairConfig { queues, ring: 2, ..PairConfig::default() };
            let [a, _] = pair(ctx.region(), [0, 9], &pairs).map_err(|e| e.to_string())?;
            Ok(a)
        };
        Assembly::new(config, vec![], move |_| Ok(opener)).unwrap()
    }

    #[test]
    fn a_start_without_a_thread_closes_what_it_opened() {
        for missing in ["softnet/0", "softnet-keeper"] {
            for context in [Context::Softirq, Context::Threaded, Context::Workqueue] {
                let assembly = one_device(context, 2);
                let shared = assembly.shared.clone();
                let polling = shared.threads().len();
                assert_eq!(polling > 1, context != Context::Softirq, "the worker is one");
                let error = Stack::run_by(
                    assembly,
                    &mut |name, body| match name == missing {
                        true => Err(std::io::ErrorKind::WouldBlock.into()),
                        false => spawn(name, body),
                    },
                    None,
                );
                assert!(error.is_err());
                assert!(shared.devices[0].live.load().is_none(), "{missing}: the device is open");
                assert_eq!(shared.threads().len(), 1, "{missing}: threads of {context:?} are left");
                let (region, all) = (&shared.region, shared.region.frame_count().into());
                assert_eq!((region.frames_free(), region.heads_free()), (all, all));
            }
        }
    }

    /// All of them are scheduled before the worker runs, and there are more than its mailbox has
    /// room for.
    #[test]
    fn a_worker_has_any_number_of_instances() {
        const QUEUES: usize = 40;
        let mut assembly = one_device(Context::Softirq, QUEUES);
        while assembly.workers[0].round() {}
        let polled = |instance: &Arc<crate::napi::NapiInstance>| instance.napi.stats.polls.get() > 0;
        let napis = assembly.shared.napis();
        assert_eq!((napis.len(), napis.iter().filter(|napi| polled(napi)).count()), (QUEUES, QUEUES));
        drop(assembly);
        // And while they wait.
        drop(one_device(Context::Softirq, QUEUES));
    }
}
