//! What a stack tells of itself: fills the rows of [`show`](crate::control::show), for the control socket and for programs that
//! embed the stack. Reads counters that their threads write; takes the slow path's lock for neighbours only.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use serde::ser::SerializeSeq;

use softnet_core::skb::{DropReason, leaked};
use softnet_core::sync::Ordering;
use softnet_dev::{DeviceInfo, LinkState, sched};

use crate::config::{Config, ConfigErrors, Context, DeviceConfig, format_mac};
use crate::control::capture::{self, SetCapture};
use crate::control::commands::{Change, Commander};
use crate::control::hand_over::giver;
use crate::control::show::{
    DevRow, DropRow, FilterRow, NapiRow, NeighRow, NtupleRow, QdiscRow, RouteRow, RssRow, SocketRow, Stats,
    SteeringRow, Table, WorkerRow,
};
use crate::control::{
    ControlError, Handler, LiveAnswer, LiveError, NtupleAnswer, Reloaded, Request, RssAnswer, Set, SetAddr,
    SetFilter, SetKnobs, SetLink, SetNeigh, SetNtuple, SetQdisc, SetRoute, SetRss, SetSteering, TakeOver,
    Target,
};
use crate::device::{StackDevice, filter};
use crate::napi::{NapiInstance, PollThread};
use crate::net::groups;
use crate::stack::StackInner;
use crate::util::{lock, thread_cpu_ns};

mod filters;
mod napi;
mod nat;
mod qdisc;
mod routes;
mod rules;
mod rx_class;
mod skb;
mod sockets;
mod steering;
mod tcp;

/// A window on a stack.
pub struct Introspect {
    shared: Arc<StackInner>,
    config: Arc<ArcSwap<Config>>,
    commander: Commander,
    /// Reads the configuration again.
    reader: Mutex<Option<Reader>>,
}

/// Reads a configuration anew, from wherever it was read first.
type Reader = Box<dyn Fn() -> Result<Config, ConfigErrors> + Send>;

impl fmt::Debug for Introspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = self.config.load();
        let devices: Vec<_> = config.devices.iter().map(|device| &device.name).collect();
        f.debug_struct("Introspect").field("devices", &devices).finish_non_exhaustive()
    }
}

impl Introspect {
    /// On `shared`, which was made from `config`. Changes go by `commander`.
    pub(crate) fn new(shared: Arc<StackInner>, config: Arc<ArcSwap<Config>>, commander: Commander) -> Self {
        Introspect { shared, config, commander, reader: Mutex::new(None) }
    }

    /// Changes something, and returns when that is done, with the NAPI instances it was about. The error says what is
    /// wrong with the request, or why nothing changed.
    pub fn set(&self, set: Set) -> Result<Vec<NapiRow>, ControlError> {
        let ids = self.commander.make(Change::Threaded(set))?;
        Ok(self.napis_of(&ids))
    }

    /// Changes disciplines of a device, and returns when that is done, with all it has then. The error says what is wrong
    /// with the request, and then nothing changed.
    pub fn set_qdisc(&self, set: SetQdisc) -> Result<Vec<QdiscRow>, ControlError> {
        let dev = set.dev.clone();
        self.commander.make(Change::Qdisc(set))?;
        Ok(self.qdiscs().into_iter().filter(|row| row.dev == dev).collect())
    }

    /// Changes steering, and returns when that is done, with what the RX queues it was about do
    /// then. The error says what is wrong with the request, and then nothing changed.
    pub fn set_steering(&self, set: SetSteering) -> Result<Vec<SteeringRow>, ControlError> {
        let ids = self.commander.make(Change::Steering(set))?;
        Ok(self.steering().into_iter().filter(|row| ids.contains(&row.id)).collect())
    }

    /// Changes routes, and returns when packets follow that. The error says what is wrong with the
    /// request, and then nothing changed.
    pub fn set_route(&self, set: SetRoute) -> Result<LiveAnswer, ControlError> {
        self.change_live(Change::Route(set))
    }

    /// Changes neighbours, and returns when that is done. The error says what is wrong with the
    /// request, and then nothing changed.
    pub fn set_neigh(&self, set: SetNeigh) -> Result<LiveAnswer, ControlError> {
        self.change_live(Change::Neigh(set))
    }

    /// Changes a device's addresses, and returns when all that follows from them is done. The error
    /// says what is wrong with the request, and then nothing changed.
    pub fn set_addr(&self, set: SetAddr) -> Result<LiveAnswer, ControlError> {
        self.change_live(Change::Addr(set))
    }

    /// Changes a device's link, and returns when that is done. The error says what is wrong with the
    /// request, and then nothing changed.
    pub fn set_link(&self, set: SetLink) -> Result<LiveAnswer, ControlError> {
        self.change_live(Change::Link(set))
    }

    /// From now on [`reload`](Self::reload) reads the configuration by `read`.
    pub fn on_reload(&self, read: impl Fn() -> Result<Config, ConfigErrors> + Send + 'static) {
        *lock(&self.reader) = Some(Box::new(read));
    }

    /// From now on another process may take this one's place ([`StackBuilder::take_over`]). When it
    /// runs, `end` is called, or with an error if it failed after it took over: it is to end the
    /// process, and must not drop the stack, whose interfaces are the other's by then.
    ///
    /// [`StackBuilder::take_over`]: crate::StackBuilder::take_over
    pub fn on_hand_over(&self, end: impl Fn(Result<(), String>) + Send + Sync + 'static) {
        self.shared.giving.allow(Box::new(end));
    }

    /// Reads the configuration again, and applies the difference, as [`apply`](Self::apply) does.
    ///
    /// # Errors
    /// What is wrong with the configuration, all of it; or that there is none to read again.
    pub fn reload(&self) -> Result<Reloaded, ControlError> {
        let read = {
            let reader = lock(&self.reader);
            reader.as_ref().map(|read| read())
        };
        let config = read.ok_or(LiveError::NoFile)?;
        self.apply(config.map_err(LiveError::Config)?)
    }

    /// Has the stack be as `config` says, where that differs from what it was told last. What was
    /// changed while it ran stays, unless the new configuration says otherwise of the same thing.
    ///
    /// # Errors
    /// What can't be changed while it runs, by key, or why something can't be done. Nothing was
    /// changed then.
    pub fn apply(&self, config: Config) -> Result<Reloaded, ControlError> {
        let done = Arc::new(Mutex::new(Vec::new()));
        self.commander.make(Change::Reload(Box::new(config), done.clone()))?;
        let changes = std::mem::take(&mut *lock(&done));
        Ok(Reloaded { changes })
    }

    fn change_live(&self, change: Change) -> Result<LiveAnswer, ControlError> {
        let changed = self.commander.make(change)?.into_iter().map(u64::from).sum();
        Ok(LiveAnswer { changed })
    }

    /// Changes a filter, at once. Returns those of its device; the error says what is wrong with it, and then nothing changed.
    pub fn set_filter(&self, set: &SetFilter) -> Result<Vec<FilterRow>, ControlError> {
        filter::set(&self.shared.netdevs, set)?;
        Ok(self.filters().into_iter().filter(|row| row.dev == set.dev).collect())
    }

    /// Sets knobs of instances, at once. Returns the rows of those it was about; the error says what is wrong with it, and
    /// then nothing changed.
    pub fn set_knobs(&self, set: &SetKnobs) -> Result<Vec<NapiRow>, ControlError> {
        let (device, instances) = self.shared.find(&set.target)?;
        let queue = match (&set.target, &instances[..]) {
            (Target::Napi(_), [instance]) => Some(instance.napi.queue),
            _ => None,
        };
        device.set_deferral(queue, set.knobs)?;
        let ids: Vec<u32> = instances.iter().map(|instance| instance.napi.id).collect();
        Ok(self.napis_of(&ids))
    }

    /// Changes how a device spreads flows over its RX queues, at once. The error says what is wrong
    /// with the change, and then nothing changed.
    pub fn set_rss(&self, set: &SetRss) -> Result<RssAnswer, ControlError> {
        rx_class::set_rss(&self.shared, set)
    }

    /// Adds or deletes an ntuple filter of a device, at once. The error says what is wrong with it,
    /// and then nothing changed.
    pub fn set_ntuple(&self, set: &SetNtuple) -> Result<NtupleAnswer, ControlError> {
        rx_class::set_ntuple(&self.shared, set)
    }

    fn napis_of(&self, ids: &[u32]) -> Vec<NapiRow> {
        self.napis().into_iter().filter(|row| ids.contains(&row.id)).collect()
    }

    fn dev_name(&self, dev: u16) -> String {
        self.shared.netdevs.get(usize::from(dev)).map_or_else(|| "-".into(), |d| d.name.clone())
    }

    /// The devices.
    pub fn devs(&self) -> Vec<DevRow> {
        let config = self.config.load();
        // One that is being added is in the one before it is in the other.
        self.shared.devices.iter().zip(&config.devices).map(|(dev, config)| self.dev(dev, config)).collect()
    }

    fn dev(&self, dev: &StackDevice, config: &DeviceConfig) -> DevRow {
        let live = dev.live.load_full();
        let closed = if dev.is_down() { LinkState::Down } else { LinkState::Gone };
        let link = live.as_ref().map_or(closed, |live| live.device.link());
        let info = live.as_ref().map(|live| live.device.info());
        let mut totals = dev.totals();
        if let Some(vlan) = &self.shared.netdevs[usize::from(dev.index)].vlan {
            // Its link's queues count them, too, which is what sums are made of.
            vlan.stats.add_to(&mut totals);
        }
        let contexts = self.shared.contexts();
        let drops_for = |reason: &DropReason| {
            contexts.iter().map(|c| c.drops(usize::from(dev.index), *reason)).sum::<u64>()
        };
        let held = live.as_ref().map_or(0, |live| {
            // RX rings are their owners' to look into; what they hold is counted with the frames in use.
            let rings = live.tx.queues.iter().map(|queue| queue.ring().held.load(Ordering::Relaxed) as u64);
            rings.sum::<u64>() + lock(&live.layout).totals().qlen
        });
        let duplicates: Vec<String> = lock(&dev.duplicates).iter().map(|own| own.to_string()).collect();
        DevRow {
            index: dev.index,
            name: dev.name.clone(),
            driver: info.map_or("-", |i| i.driver).into(),
            mode: info.map_or_else(String::new, |i| i.mode.clone()),
            link: match link {
                LinkState::Up => "up",
                LinkState::Down => "down",
                _ => "gone",
            }
            .into(),
            mac: info.map_or_else(|| "-".into(), |i| format_mac(i.mac)),
            mtu: info.map_or(0, |i| i.mtu),
            addresses: addresses(config, info, &duplicates),
            duplicates,
            groups: groups::members(&self.shared, dev.index),
            queues: live.as_ref().map_or(0, |live| live.napis.len() as u16),
            rx_packets: totals.rx.packets,
            rx_bytes: totals.rx.bytes,
            rx_ring_drops: totals.rx.ring_drops,
            rx_kicks: totals.rx.kicks,
            tx_packets: totals.tx.packets,
            tx_bytes: totals.tx.bytes,
            tx_ring_drops: totals.tx.ring_drops,
            tx_kicks: totals.tx.kicks,
            drops: DropReason::ALL.iter().map(drops_for).sum(),
            held,
            snooped: live.as_ref().and_then(|live| Some(live.device.snoop()?.heard())).unwrap_or(0),
            reopened: totals.closed,
        }
    }

    /// The NAPI instances of the devices.
    pub fn napis(&self) -> Vec<NapiRow> {
        let now = self.shared.clock.now();
        let mut rows = Vec::new();
        for dev in self.shared.devices.iter() {
            let Some(live) = dev.live.load_full() else { continue };
            let row = |i: &Arc<NapiInstance>| napi::row(&dev.name, dev.threaded(i.napi.queue), i, now);
            rows.extend(live.napis.iter().map(row));
        }
        rows
    }

    /// The NAPI instances of the workers' backlogs, which steered packets come by.
    pub fn backlogs(&self) -> Vec<NapiRow> {
        let now = self.shared.clock.now();
        let row = |instance: &Arc<NapiInstance>| napi::row("-", Context::Softirq, instance, now);
        self.shared.backlogs.instances().iter().map(row).collect()
    }

    /// What RX queues steer.
    pub fn steering(&self) -> Vec<SteeringRow> {
        steering::rows(&self.shared)
    }

    /// The disciplines of the devices that are open.
    pub fn qdiscs(&self) -> Vec<QdiscRow> {
        let of = |dev: &Arc<StackDevice>| {
            let live = dev.live.load_full();
            live.map_or_else(Vec::new, |live| qdisc::rows(dev, &live))
        };
        self.shared.devices.iter().flat_map(of).collect()
    }

    /// The filters of the devices, whether these are open or not.
    pub fn filters(&self) -> Vec<FilterRow> {
        let name = |dev| self.dev_name(dev);
        self.shared.netdevs.iter().flat_map(|dev| filters::rows(dev, name)).collect()
    }

    /// How the devices spread flows over their RX queues.
    pub fn rss(&self) -> Vec<RssRow> {
        self.shared.devices.iter().flat_map(|dev| rx_class::rss(dev)).collect()
    }

    /// The ntuple filters of the devices that are open.
    pub fn ntuples(&self) -> Vec<NtupleRow> {
        self.shared.devices.iter().flat_map(|dev| rx_class::ntuples(dev).unwrap_or_default()).collect()
    }

    /// The sockets that are open.
    pub fn sockets(&self) -> Vec<SocketRow> {
        sockets::rows(&self.shared)
    }

    /// The threads that poll, first the workers.
    pub fn workers(&self) -> Vec<WorkerRow> {
        let now = self.shared.clock.now();
        let row = |w: Arc<PollThread>| {
            let tid = w.tid.load(Ordering::Relaxed) as i32;
            let cpu_ns = thread_cpu_ns(tid);
            let stats = &w.stats;
            WorkerRow {
                name: w.name.clone(),
                context: w.context,
                cpu: w.cpu,
                policy: sched::policy(tid as u32).map_or_else(|_| "-".into(), |policy| policy.to_string()),
                tid,
                state: if w.asleep.load(Ordering::Relaxed) { "sleeping" } else { "running" }.into(),
                cpu_ns,
                cpu_percent: 100.0 * cpu_ns as f64 / now.saturating_sub(w.since).max(1) as f64,
                rounds: stats.rounds.get(),
                sleeps: stats.sleeps.get(),
                wakeups: BTreeMap::from([
                    ("doorbell".into(), stats.woken_by_doorbell.get()),
                    ("timer".into(), stats.woken_by_timer.get()),
                    ("wake".into(), stats.woken_by_thread.get()),
                ]),
                time_squeeze: w.net_rx.load().time_squeeze.get(),
                packets: stats.packets.get(),
                cached_heads: stats.cached_heads.load(Ordering::Relaxed),
                cached_frames: stats.cached_frames.load(Ordering::Relaxed),
            }
        };
        self.shared.threads().into_iter().map(row).collect()
    }

    /// The neighbours.
    pub fn neighbours(&self) -> Vec<NeighRow> {
        let now = self.shared.clock.now();
        let control = self.shared.control();
        let row = |n: softnet_core::ip::neigh::NeighEntry| NeighRow {
            dev: self.dev_name(n.dev),
            ip: n.ip,
            mac: n.mac.map(format_mac),
            state: n.state.name().to_lowercase(),
            age_s: now.saturating_sub(n.since) as f64 / 1e9,
            queued: n.queued as u64,
        };
        control.slow.neighbours().entries().map(row).collect()
    }

    /// The routes.
    pub fn routes(&self) -> Vec<RouteRow> {
        let mut rows = Vec::new();
        self.each_route(|row| rows.push(row));
        rows
    }
    /// Drops that happened, and what devices lost before any queue counted it.
    pub fn drops(&self) -> Vec<DropRow> {
        let mut drops: BTreeMap<(usize, DropReason), u64> = BTreeMap::new();
        for (dev, reason, packets) in self.shared.contexts().iter().flat_map(|context| context.all_drops()) {
            *drops.entry((dev, reason)).or_default() += packets;
        }
        for (dev, lost) in self.shared.devices.iter().enumerate() {
            for (reason, packets) in lost.losses().into_iter().filter(|(_, packets)| *packets > 0) {
                *drops.entry((dev, reason)).or_default() += packets;
            }
        }
        let row = |((dev, reason), packets): ((usize, DropReason), u64)| DropRow {
            dev: self.dev_name(dev as u16),
            reason: reason.name().into(),
            packets,
            help: reason.help().into(),
        };
        drops.into_iter().map(row).collect()
    }

    /// Totals.
    pub fn stats(&self) -> Stats {
        let shared = &self.shared;
        let contexts = shared.contexts();
        let totals: Vec<_> = shared.devices.iter().map(|dev| dev.totals()).collect();
        let routes = {
            let rib = shared.routes.read();
            (rib.len() as u64, rib.fib_bytes() as u64)
        };
        let (
            neighbours,
            neigh_table_fulls,
            in_slow_path,
            [icmp_limited, address_conflicts],
            fragments,
            paths,
        ) = {
            let mut control = shared.control();
            let entered = control.entered;
            let pmtu = control.slow.pmtu();
            let paths = (pmtu.len() as u64, pmtu.ignored(), entered);
            let (slow, frags) = (&control.slow, control.slow.fragments());
            let fragments = crate::control::show::FragStats {
                waiting: frags.datagrams() as u64,
                reassembled: frags.reassembled(),
                cut: slow.cut(),
            };
            let neigh = slow.neighbours();
            let (entries, fulls) = (neigh.entries().len() as u64, neigh.table_fulls());
            let (all, each) = slow.icmp_limited();
            let counted = [all + each, slow.address_conflicts()];
            (entries, fulls, (slow.held() + control.left()) as u64, counted, fragments, paths)
        };
        let open = shared.devices.iter().filter_map(|dev| dev.live.load_full());
        let queued: u64 = open.map(|live| lock(&live.layout).totals().qlen).sum();
        let redirected: usize = shared.napis().iter().map(|instance| instance.backlog.len()).sum();
        let in_gro: usize = shared.napis().iter().map(|instance| instance.napi.stats.gro.held()).sum();
        let redirected = redirected + shared.backlogs.len() + in_gro;
        // Taken first: a packet is taken out of a socket after it was put in.
        let taken: u64 = contexts.iter().map(|c| c.sk_taken.get()).sum();
        let in_sockets = contexts.iter().map(|c| c.sk_queued.get()).sum::<u64>().saturating_sub(taken);
        Stats {
            name: self.config.load().stack.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: shared.clock.now() as f64 / 1e9,
            received: totals.iter().map(|t| t.rx.packets).sum(),
            originated: contexts.iter().map(|c| c.originated.get()).sum(),
            transmitted: totals.iter().map(|t| t.tx.packets).sum(),
            delivered: contexts.iter().map(|c| c.delivered.get()).sum(),
            dropped: contexts.iter().map(|c| c.dropped()).sum(),
            merged: contexts.iter().map(|c| c.merged.get()).sum(),
            held: in_slow_path + queued + redirected as u64 + in_sockets,
            icmp_limited,
            address_conflicts,
            path_mtus: paths.0,
            pmtu_ignored: paths.1,
            slow_path: paths.2,
            fragments,
            exhausted: shared.region.exhausted(),
            leaked: leaked(),
            frames: shared.region.frame_count().into(),
            frames_free: shared.region.frames_free(),
            heads: shared.region.head_count().into(),
            heads_free: shared.region.heads_free(),
            routes: routes.0,
            fib_bytes: routes.1,
            follow: routes::follow(shared),
            neighbours,
            neigh_table_fulls,
            sockets: shared.sockets.len() as u64,
            cpu_ns: process_cpu_ns(),
        }
    }
}

/// The addresses of a device: as configured, and the link-local one once its MAC address is known.
fn addresses(config: &DeviceConfig, info: Option<&DeviceInfo>, duplicates: &[String]) -> Vec<String> {
    let mut all: Vec<String> = config.addresses.iter().map(|own| own.to_string()).collect();
    if let Some(info) = info {
        let with_derived = config.addresses6(info.mac).into_iter();
        all.extend(
            with_derived
                .map(|(addr, net)| format!("{addr}/{}", net.len()))
                .filter(|text| !all.contains(text) && !duplicates.contains(text))
                .collect::<Vec<_>>(),
        );
    }
    all
}

impl Handler for Introspect {
    fn request(&self, request: Request) -> Result<serde_json::Value, String> {
        let text = |error: ControlError| error.to_string();
        let table = match request {
            Request::Show(table) => table,
            Request::Set(set) => return value(self.set(set).map_err(text)?),
            Request::Qdisc(set) => return value(self.set_qdisc(set).map_err(text)?),
            Request::Filter(set) => return value(self.set_filter(&set).map_err(text)?),
            Request::Steering(set) => return value(self.set_steering(set).map_err(text)?),
            Request::Rss(set) => return value(self.set_rss(&set).map_err(text)?),
            Request::Ntuple(set) => return value(self.set_ntuple(&set).map_err(text)?),
            Request::Knobs(set) => return value(self.set_knobs(&set).map_err(text)?),
            Request::Route(set) => return value(self.set_route(set).map_err(text)?),
            Request::Addr(set) => return value(self.set_addr(set).map_err(text)?),
            Request::Link(set) => return value(self.set_link(set).map_err(text)?),
            Request::Reload => return value(self.reload().map_err(text)?),
            Request::Lookup(addr) => return value(self.lookup(addr)),
            Request::Neigh(set) => return value(self.set_neigh(set).map_err(text)?),
            Request::Capture(_) => return Err("a capture takes a connection of its own".into()),
            Request::TakeOver(_) => return Err("a process takes over by a connection of its own".into()),
        };
        match table {
            Table::Dev => value(self.devs()),
            Table::Napi => value([self.napis(), self.backlogs()].concat()),
            Table::Worker => value(self.workers()),
            Table::Neigh => value(self.neighbours()),
            Table::Route => value(self.routes()),
            Table::Drops => value(self.drops()),
            Table::Qdisc => value(self.qdiscs()),
            Table::Filter => value(self.filters()),
            Table::Socket => value(self.sockets()),
            Table::Tcp => value(self.tcp()),
            Table::Steering => value(self.steering()),
            Table::Rss => value(self.rss()),
            Table::Ntuple => value(self.ntuples()),
            Table::Conntrack => value(self.connections()),
            Table::Nat => value(self.nat()),
            Table::Rule => value(self.rules()),
            Table::Skb => value(self.skb()),
            Table::Stats => value(self.stats()),
        }
    }

    fn capture(&self, set: &SetCapture, stream: &UnixStream) -> Result<(), String> {
        capture::start(&self.shared, set, stream)
    }

    fn take_over(&self, ask: &TakeOver, stream: &UnixStream) -> Result<(), String> {
        giver::start(&self.shared, &self.commander, ask, stream)
    }

    fn is_handed_over(&self) -> bool {
        self.shared.giving.is_given()
    }

    fn answer(&self, request: Request) -> Result<String, String> {
        let text = match request {
            Request::Show(Table::Route) => serde_json::to_string(&RouteRows(self)),
            _ => serde_json::to_string(&self.request(request)?),
        };
        text.map_err(|error| error.to_string())
    }
}

fn value(rows: impl serde::Serialize) -> Result<serde_json::Value, String> {
    serde_json::to_value(rows).map_err(|error| error.to_string())
}

/// The routes of a stack, each row made when it is written: there may be a million.
struct RouteRows<'a>(&'a Introspect);

impl serde::Serialize for RouteRows<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sequence = serializer.serialize_seq(None)?;
        let mut result = Ok(());
        self.0.each_route(|row| {
            if result.is_ok() {
                result = sequence.serialize_element(&row);
            }
        });
        result?;
        sequence.end()
    }
}

/// CPU time of all threads of this process that run now, in ns.
pub(crate) fn process_cpu_ns() -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    tasks.flatten().filter_map(|t| Some(thread_cpu_ns(t.file_name().to_str()?.parse().ok()?))).sum()
}
