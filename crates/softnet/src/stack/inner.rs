//! What all threads of a stack share, and the locks and orders that go with it.
//!
//! * The forwarding tables are a snapshot: read without a lock, replaced under [`SlowPathState`]'s lock. Old ones are
//!   kept until no worker uses them, and freed by the thread that publishes next, so that none is freed between two packets.
//! * [`SlowPathState`] is the slow path's lock. It may be held while a TX queue is sent by, never the other way. A thread that polls
//!   does not wait for it: while it is held, exceptions are left to its holder, which sees to them when it lets go (see
//!   `slow_lock`).
//!   What the slow path wants sent is sent under it, before what it learned is published: so a flow's queued packets
//!   leave before any that the fast path forwards.

use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use softnet_core::SoftnetData;
use softnet_core::conntrack::Conntrack;
use softnet_core::ip::slow::SlowPath;
use softnet_core::ip::tables::Tables;
use softnet_core::napi::Budget;
use softnet_core::nat::NatState;
use softnet_core::qdisc::Origin;
use softnet_core::skb::{Batch, CacheSizes, DropReason, Region};
use softnet_core::softnet_data::ContextStats;
use softnet_core::stack::slow::{SlowHost, SlowPathState};
use softnet_core::stack::sockets::SocketHost;
use softnet_core::steer::TxChoice;
use softnet_core::sync::AtomicUsize;
use softnet_core::tap::Taps;

use super::follow::Follow;
use super::rib::Rib;
use super::routes::Routes;
use super::{CacheShare, SlowLock, SocketTable};
use crate::config::StackConfig;
use crate::control::hand_over::Giving;
use crate::control::{ControlError, Target};
use crate::device::{Netdev, StackDevice, TxHint, dev_queue_xmit, find_netdev, vlan};
use crate::napi::{AutoWatch, Backlogs, NapiInstance, PollThread, WorkerShared};
use crate::util::{Appended, Clock, Waker, lock};

/// See the module.
pub struct StackInner {
    /// Packet memory.
    pub region: Arc<Region>,
    /// Of every thread context: of heads, and of frames.
    pub caches: [CacheSizes; 2],
    /// What contexts keep while they are not used.
    pub(crate) cache_share: CacheShare,
    /// Limits of a worker's softirq run.
    pub budget: Budget,
    /// The stack's clock.
    pub clock: Clock,
    /// ns after which a sender may choose its TX queue anew; 0: never.
    pub txq_reselection: u64,
    /// The devices, by index. The housekeeper appends to them, and to the netdevs.
    pub devices: Arc<Appended<Arc<StackDevice>>>,
    /// The netdevs, by index: those that the devices' packets come in by, and VLANs. That of a
    /// device is there before the device.
    pub netdevs: Appended<Arc<Netdev>>,
    /// The workers, by index.
    pub workers: Vec<Arc<WorkerShared>>,
    /// Where packets wait for the workers that they were steered to.
    pub(crate) backlogs: Backlogs,
    /// Whether steering is chosen automatically.
    pub(crate) auto: AutoWatch,
    /// The forwarding tables now.
    pub tables: Arc<ArcSwap<Tables>>,
    pub(crate) control: SlowLock,
    /// Wakes the housekeeper, which runs the slow path's timers.
    pub housekeeper: Arc<Waker>,
    /// Packets that may wait for applications, all together.
    pub(crate) app_packets: Arc<AtomicUsize>,
    /// The sockets.
    pub sockets: SocketTable,
    /// All routes, also those that others go before.
    pub(crate) routes: Routes,
    /// The thread that follows the kernel's, if one does.
    pub(crate) follow: Option<Arc<Follow>>,
    /// Connections, if they are tracked.
    pub conntrack: Option<Arc<Conntrack>>,
    /// Their mappings, if addresses are translated.
    pub nat: Option<Arc<NatState>>,
    /// Captures.
    pub(crate) taps: Arc<Taps>,
    /// What it takes to hand it over to another process.
    pub(crate) giving: Giving,
    contexts: Mutex<Vec<Arc<ContextStats>>>,
    threads: Mutex<Vec<Arc<PollThread>>>,
}

impl StackInner {
    /// Everything idle, no device open.
    pub(crate) fn new(
        region: Arc<Region>,
        stack: &StackConfig,
        devices: Vec<Arc<StackDevice>>,
        workers: Vec<Arc<WorkerShared>>,
        (rib, tables): (Rib, Tables),
        slow: SlowPath,
    ) -> std::io::Result<Self> {
        let app_packets = Arc::new(AtomicUsize::new(0));
        let automatic = devices.iter().any(|dev| lock(&dev.steering).may_be_automatic());
        let (clock, mut slow) = (Clock::start(), slow);
        slow.set_midnight(clock.midnight());
        let sockets =
            SocketTable::new(&region, stack.max_sockets, app_packets.clone(), slow.pmtu().paths().clone())?;
        let frames = region.frame_count();
        let control = SlowLock::new(SlowPathState::new(slow), frames);
        Ok(StackInner {
            cache_share: CacheShare::new(region.frame_count()),
            backlogs: Backlogs::new(&region, stack, &workers)?,
            auto: AutoWatch::new(workers.len() > 1 && automatic),
            region,
            caches: [stack.skb_cache, stack.frame_cache.unwrap_or(stack.skb_cache)],
            budget: Budget {
                packets: stack.netdev_budget,
                usecs: stack.netdev_budget_usecs,
                weight: stack.dev_weight,
            },
            clock,
            txq_reselection: u64::from(stack.txq_reselection_ms) * 1_000_000,
            netdevs: vlan::netdevs(&[], &devices).into_iter().collect(),
            devices: Arc::new(devices.into_iter().collect()),
            workers,
            tables: Arc::new(ArcSwap::from_pointee(tables)),
            control,
            housekeeper: Arc::new(Waker::new()?),
            app_packets,
            sockets,
            routes: Routes::new(rib),
            follow: stack.follow.as_ref().map(Follow::new).transpose()?.map(Arc::new),
            conntrack: None,
            nat: None,
            taps: Arc::default(),
            giving: Giving::default(),
            contexts: Mutex::new(vec![Arc::default()]),
            threads: Mutex::default(),
        })
    }

    /// A context for the calling thread, whose counters are part of the stack's from now on.
    pub fn context(&self) -> SoftnetData {
        let [heads, frames] = self.caches;
        let mut ctx = SoftnetData::with_caches(self.region.clone(), heads, frames);
        ctx.set_taps(&self.taps);
        let mut contexts = lock(&self.contexts);
        fold(&mut contexts);
        contexts.push(ctx.stats().clone());
        // The first belongs to no thread.
        self.cache_share.divide(contexts.len() - 1);
        ctx
    }

    /// Contexts have ended: what each of the others may cache is more again.
    pub fn contexts_ended(&self) {
        let mut contexts = lock(&self.contexts);
        fold(&mut contexts);
        self.cache_share.divide(contexts.len().saturating_sub(1));
    }

    /// Counters that together are those of every context there ever was: one entry for each that lives or ended lately,
    /// and one for all others.
    pub fn contexts(&self) -> Vec<Arc<ContextStats>> {
        lock(&self.contexts).clone()
    }

    /// Makes a polling thread known that is no worker.
    pub fn add_thread(&self, thread: &Arc<PollThread>) {
        lock(&self.threads).push(thread.clone());
    }

    /// Forgets a polling thread that ended.
    pub fn remove_thread(&self, thread: &Arc<PollThread>) {
        lock(&self.threads).retain(|other| !Arc::ptr_eq(other, thread));
    }

    /// The NAPI instances of all devices that are open.
    pub fn napis(&self) -> Vec<Arc<NapiInstance>> {
        let of = |dev: &Arc<StackDevice>| {
            dev.live.load().as_ref().map_or_else(Vec::new, |live| live.napis.clone())
        };
        self.devices.iter().flat_map(of).collect()
    }

    /// What `target` names: a device with its instances, none while it is not open, or an instance with its device. The
    /// error says what there is.
    pub fn find(&self, target: &Target) -> Result<(&StackDevice, Vec<Arc<NapiInstance>>), ControlError> {
        let napis = self.napis();
        let of = |index: u16| napis.iter().filter(|i| i.napi.dev == index).cloned().collect();
        match target {
            Target::Dev(name) => {
                let dev = find_netdev(&self.netdevs, name)?;
                match &dev.vlan {
                    None => Ok((&*dev.device, of(dev.device.index))),
                    Some(vlan) => {
                        let (dev, link) = (dev.name.clone(), vlan.link.name.clone());
                        Err(ControlError::NoQueues { dev, link })
                    }
                }
            }
            Target::Napi(id) => match napis.iter().find(|instance| instance.napi.id == *id) {
                Some(instance) => Ok((&self.devices[usize::from(instance.napi.dev)], vec![instance.clone()])),
                None => {
                    let mut exist: Vec<_> =
                        napis.iter().map(|i| format!("{} ({})", i.napi.id, i.napi.name)).collect();
                    exist.sort();
                    Err(ControlError::NoNapi { id: *id, exist })
                }
            },
        }
    }

    /// The threads that poll: first the workers.
    pub fn threads(&self) -> Vec<Arc<PollThread>> {
        let workers = self.workers.iter().map(|worker| worker.thread.clone());
        workers.chain(lock(&self.threads).iter().cloned()).collect()
    }
}

impl SlowHost for StackInner {
    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn tables(&self) -> Arc<Tables> {
        self.tables.load_full()
    }

    fn replace(&self, tables: Arc<Tables>) -> Arc<Tables> {
        self.tables.swap(tables)
    }

    fn xmit(&self, ctx: &mut SoftnetData, dev: u16, choice: TxChoice, origin: Origin, batch: &mut Batch) {
        match self.netdevs.get(usize::from(dev)) {
            Some(dev) => dev_queue_xmit(ctx, dev, self.clock.now(), TxHint { choice, origin }, batch),
            None => ctx.free_batch(batch, DropReason::DevReady),
        }
    }

    fn sockets(&self) -> &impl SocketHost {
        &self.sockets
    }
}

/// Adds the counters of contexts that ended to the first entry, which belongs to no thread: threads come and go, and their counters
/// must stay counted without taking room for ever.
fn fold(contexts: &mut Vec<Arc<ContextStats>>) {
    let Some(total) = contexts.first().cloned() else { return };
    // Of one that only the list has, no reader has seen it beside a total that it is part of, nor will. The total itself
    // is held here.
    contexts.retain_mut(|stats| match Arc::get_mut(stats) {
        Some(ended) => {
            total.absorb(ended);
            false
        }
        None => true,
    });
}
