//! A device as the stack sees it: what a driver opens, with its queues and their settings. It keeps its name, index and
//! counters while the interface behind it comes and goes.
//!
//! Opened and closed by the housekeeper; any thread looks at what is open. What routes and addresses name are
//! [netdevs](super::Netdev), which send by a device.
//!
//! Invariant: what is set for a device (context, mitigation, disciplines) holds for its next life too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use softnet_core::SoftnetData;
use softnet_core::napi::MitigationConfig;
use softnet_core::qdisc::{DevParams, Spec};
use softnet_core::skb::{Batch, DropReason};
use softnet_core::stack::dev_tx::DevTx;
use softnet_core::sync::{AtomicBool, AtomicU64, Ordering};
use softnet_dev::{Device, QueueStats};

use super::Groups;
use super::rss::RssSettings;
use super::vlan::VlanParams;
use crate::config::{Config, Context, InterfaceAddr, Knobs, SteeringSettings};
use crate::control::ControlError;
use crate::napi::NapiInstance;
use crate::tx::QueueWake;
use crate::tx::qdisc::{Layout, Settings};
use crate::util::lock;

/// A device of the stack.
pub struct StackDevice {
    /// Its index in the stack, which is also that of the netdev that its packets come in by.
    pub index: u16,
    /// Its name.
    pub name: String,
    /// What there is of it while its interface exists.
    pub live: ArcSwapOption<OpenParts>,
    /// It is closed by hand, and stays so until it is opened by hand.
    down: AtomicBool,
    past: Mutex<Past>,
    threaded: Mutex<Threaded>,
    deferral: Mutex<Deferral>,
    /// Which workers go on with what its queues bring.
    pub(crate) steering: Mutex<SteeringSettings>,
    /// How it spreads flows over its queues.
    pub(crate) rss: Mutex<RssSettings>,
    /// The disciplines that were set.
    pub(crate) qdiscs: Mutex<Settings>,
    /// Bytes that connections are about to send by it, while it is shaped.
    pub(crate) reserved: AtomicU64,
    /// The multicast groups that the driver was told to join.
    pub(crate) groups: Groups,
    /// Addresses that it was to have, and another station has.
    pub(crate) duplicates: Mutex<Vec<InterfaceAddr>>,
    /// If it is a VLAN over another.
    pub(crate) vlan: Option<VlanParams>,
}

/// Knobs of mitigation and GRO of a device's instances; outlives the instances.
#[derive(Clone, Debug, Default)]
struct Deferral {
    device: Knobs,
    /// Those that differ, by RX queue.
    queues: BTreeMap<u16, Knobs>,
}

/// In which contexts a device's instances are polled; outlives the instances.
#[derive(Clone, Debug, Default)]
struct Threaded {
    device: Context,
    /// Those that differ, by RX queue.
    queues: BTreeMap<u16, Context>,
}

/// Former lives of a device.
#[derive(Default)]
struct Past {
    /// What they counted.
    totals: Totals,
    /// Those being closed: their queues may still be in use, and count.
    closing: Vec<Arc<OpenParts>>,
    /// What they lost before any queue counted it.
    losses: BTreeMap<DropReason, u64>,
}

/// Counters of a device over all its queues and lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Received.
    pub rx: QueueTotals,
    /// Sent.
    pub tx: QueueTotals,
    /// Times it was closed because its interface went away.
    pub closed: u64,
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTotals {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// System calls to get it going.
    pub kicks: u64,
    /// Packets lost by the device.
    pub ring_drops: u64,
}

impl Totals {
    fn add(&mut self, live: &OpenParts) {
        live.rx_stats.iter().for_each(|s| self.rx.add(s));
        live.tx.queues.iter().for_each(|q| self.tx.add(q.stats()));
    }
}

impl QueueTotals {
    fn add(&mut self, stats: &QueueStats) {
        self.packets += stats.packets.get();
        self.bytes += stats.bytes.get();
        self.kicks += stats.kicks.get();
        self.ring_drops += stats.ring_drops.get();
    }
}

impl StackDevice {
    /// A device that is not open yet, to be polled in the context `threaded` with the knobs `knobs`, which must be in range,
    /// and to send through `qdisc`.
    pub fn new(index: u16, name: String, threaded: Context, knobs: Knobs, qdisc: Option<Spec>) -> Self {
        let threaded = Mutex::new(Threaded { device: threaded, queues: BTreeMap::new() });
        StackDevice {
            index,
            name,
            live: ArcSwapOption::empty(),
            down: AtomicBool::new(false),
            past: Mutex::default(),
            threaded,
            deferral: Mutex::new(Deferral { device: knobs, queues: BTreeMap::new() }),
            steering: Mutex::default(),
            rss: Mutex::default(),
            qdiscs: Mutex::new(Settings { root: qdisc, children: BTreeMap::new() }),
            reserved: AtomicU64::new(0),
            groups: Groups::default(),
            duplicates: Mutex::default(),
            vlan: None,
        }
    }

    /// The devices of `config` from index `from` on, none of them open yet.
    pub(crate) fn all(config: &Config, from: usize) -> Vec<Arc<Self>> {
        (from..config.devices.len()).map(|index| Arc::new(StackDevice::of(config, index as u16))).collect()
    }

    fn of(config: &Config, index: u16) -> Self {
        let device = &config.devices[usize::from(index)];
        let (name, qdisc) = (device.name.clone(), device.qdisc.clone());
        StackDevice {
            steering: SteeringSettings::new(device).into(),
            rss: RssSettings::new(device.rss.clone()).into(),
            vlan: VlanParams::of(config, index),
            ..StackDevice::new(index, name, device.threaded, device.knobs(), qdisc)
        }
    }

    /// Whether it is closed by hand.
    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Remembers whether it is closed by hand. The housekeeper alone does.
    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// Has the packets of `batch` received as if they had come by RX queue `queue` (modulo how many there are), by the thread that
    /// polls that, and leaves it empty.
    pub(crate) fn netif_rx(&self, ctx: &mut SoftnetData, queue: usize, batch: &mut Batch) {
        match self.live.load().as_deref() {
            Some(live) if !live.napis.is_empty() => {
                live.napis[queue % live.napis.len()].netif_rx(ctx, batch);
            }
            _ => ctx.free_batch_at(batch, self.index, DropReason::DevReady),
        }
    }

    /// In which context RX queue `queue` is to be polled.
    pub fn threaded(&self, queue: u16) -> Context {
        let threaded = lock(&self.threaded);
        threaded.queues.get(&queue).copied().unwrap_or(threaded.device)
    }

    /// Sets knobs of mitigation and GRO, those that are given, of `queue` or of all queues, and
    /// remembers that. Refused, with nothing changed, if a value is out of range.
    pub fn set_deferral(&self, queue: Option<u16>, knobs: Knobs) -> Result<(), ControlError> {
        let checked = MitigationConfig::default();
        let n = knobs.napi_defer_hard_irqs.unwrap_or(0);
        checked.set_defer_hard_irqs(n)?;
        let mut deferral = lock(&self.deferral);
        let device = deferral.device;
        match queue {
            Some(queue) => {
                let old = deferral.queues.get(&queue).copied().unwrap_or(device);
                deferral.queues.insert(queue, knobs.over(old));
            }
            None => {
                deferral.device = knobs.over(device);
                deferral.queues.values_mut().for_each(|old| *old = knobs.over(*old));
            }
        }
        drop(deferral);
        if let Some(live) = self.live.load().as_deref() {
            live.napis.iter().for_each(|instance| self.apply_deferral(instance));
        }
        Ok(())
    }

    /// Gives an instance the knobs that were set for its queue.
    pub fn apply_deferral(&self, instance: &NapiInstance) {
        let deferral = lock(&self.deferral);
        let set = deferral.queues.get(&instance.napi.queue).copied().unwrap_or(deferral.device);
        let knobs = &instance.napi.mitigation;
        // In range: checked when it was set.
        let _ = knobs.set_defer_hard_irqs(set.napi_defer_hard_irqs.unwrap_or(0));
        knobs.set_gro_flush_timeout(set.gro_flush_timeout.unwrap_or(0));
        knobs.set_irq_suspend_timeout(set.irq_suspend_timeout.unwrap_or(0));
        instance.napi.gro.set_mode(set.gro.unwrap_or_default());
        // Still under the lock, so that of two changes the later one is the last in the kernel too.
        instance.doorbell.mitigation_changed(knobs);
    }

    /// Remembers in which context `queue` is to be polled, or all queues, those that were set for themselves included
    /// (as the kernel has it when a device's `threaded` is written).
    pub fn set_threaded(&self, queue: Option<u16>, context: Context) {
        let mut threaded = lock(&self.threaded);
        match queue {
            Some(queue) => _ = threaded.queues.insert(queue, context),
            None => *threaded = Threaded { device: context, queues: BTreeMap::new() },
        }
    }

    /// Its counters.
    pub fn totals(&self) -> Totals {
        let past = self.past();
        let mut totals = past.totals;
        past.closing.iter().for_each(|live| totals.add(live));
        if let Some(live) = &*self.live.load() {
            totals.add(live);
        }
        totals
    }

    /// Packets that were lost before any queue counted them, by reason.
    pub fn losses(&self) -> BTreeMap<DropReason, u64> {
        let past = self.past();
        let mut losses = past.losses.clone();
        let live = self.live.load_full();
        past.closing.iter().chain(&live).for_each(|live| live.add_losses(&mut losses));
        losses
    }

    /// Takes the parts of a device away, to be closed and then [its counters retired](Self::retire_counters).
    pub fn take(&self) -> Option<Arc<OpenParts>> {
        let mut past = self.past();
        let live = self.live.swap(None)?;
        past.closing.push(live.clone());
        past.totals.closed += 1;
        Some(live)
    }

    /// The queues of `live` were closed and count no more: what they counted goes to the past.
    pub fn retire_counters(&self, live: &Arc<OpenParts>) {
        let mut past = self.past();
        past.closing.retain(|other| !Arc::ptr_eq(other, live));
        past.totals.add(live);
        live.add_losses(&mut past.losses);
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parts of an open device.
pub struct OpenParts {
    /// The shared part.
    pub device: Arc<dyn Device>,
    /// One NAPI instance per RX queue.
    pub napis: Vec<Arc<NapiInstance>>,
    /// Counters of the RX queues.
    pub rx_stats: Vec<Arc<QueueStats>>,
    /// The TX queues.
    pub tx: DevTx<QueueWake>,
    /// Their disciplines; changed by the housekeeper.
    pub layout: Mutex<Layout>,
    /// What defaults of disciplines depend on.
    pub(crate) params: DevParams,
}

impl OpenParts {
    fn add_losses(&self, losses: &mut BTreeMap<DropReason, u64>) {
        self.device.losses().into_iter().for_each(|(reason, n)| *losses.entry(reason).or_default() += n);
    }
}
