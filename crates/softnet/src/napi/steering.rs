//! The steering step of the receive path: puts what an instance brings on workers' backlogs, by its
//! plan.
//!
//! Any thread that polls does so: workers, an instance's own, the pool's, applications. What it
//! keeps for that is its [`Steerer`]: the lists at hand, and which workers are to be told, once for
//! all lists, when its softirq run ends.
//!
//! Invariant: only the thread that owns an instance steers what that brings, so that its plan and
//! counters have one writer.

use std::num::NonZeroU64;
use std::sync::{Mutex, OnceLock};

use softnet_core::SoftnetData;
use softnet_core::skb::{Batch, DropReason};
use softnet_core::softnet_data::Counter;
use softnet_core::steer::{FlowLimit, Lists, Plan, Steering, Workers, skb_get_hash};
use softnet_core::sync::{AtomicBool, AtomicU32, Ordering};
use softnet_dev::PiMutex;

use super::{Backlogs, Chosen, FlowFilterCounts, FlowSource};

/// What an instance does with what it brings.
#[derive(Default)]
pub(crate) struct QueueSteering {
    /// Whether there is a plan.
    on: AtomicBool,
    /// The one worker that all packets go to, plus one; 0: there is no such plan.
    hand_off: AtomicU32,
    /// Locked by the instance's owner, and by the housekeeper: to change it while the instance is
    /// disabled, else for a moment to look at what it knows of its flows.
    steering: PiMutex<Option<Box<Steering>>>,
    /// For each worker; made with the first plan.
    counts: OnceLock<Box<[SteerCounts]>>,
    /// What was chosen automatically.
    pub(crate) chosen: Mutex<Option<Chosen>>,
    /// Flows that followed their consumers.
    pub(crate) moves: Counter,
    /// Where its flows come from, if the device takes filters that send them elsewhere.
    source: OnceLock<FlowSource>,
    /// What became of those.
    pub(crate) filters: FlowFilterCounts,
}

/// What became of packets that were to go to one worker.
#[derive(Default)]
pub(crate) struct SteerCounts {
    /// Packets that were pushed.
    pub(crate) packets: Counter,
    /// Times that nothing was pending, so that the worker was to be told.
    pub(crate) wakeups: Counter,
    /// Packets that were dropped, since the backlog was full.
    pub(crate) dropped: Counter,
    /// Packets that were dropped, since all backlogs together held too much of packet memory.
    pub(crate) no_memory: Counter,
    /// Packets that were dropped, since their flow had more than its share.
    pub(crate) flow_limited: Counter,
    /// Polls that collected nothing, since the backlog was full or there was no memory for it.
    pub(crate) held: Counter,
}

/// What a thread that polls keeps for steering.
pub(crate) struct Steerer {
    lists: Lists,
    limit: Option<FlowLimit>,
    /// Workers that are to be told of their backlogs.
    notify: Vec<u16>,
}

impl Steerer {
    #[cold]
    pub(crate) fn new(backlogs: &Backlogs) -> Box<Self> {
        let workers = backlogs.instances().len();
        Box::new(Steerer {
            lists: Lists::new(workers),
            limit: FlowLimit::new(backlogs.flow_limit_table_len),
            notify: Vec::with_capacity(workers),
        })
    }

    /// Tells the workers whose backlogs were empty.
    #[inline]
    pub(crate) fn notify(&mut self, backlogs: &Backlogs) {
        self.notify.drain(..).for_each(|worker| backlogs.notify(worker));
    }
}

impl QueueSteering {
    /// Whether the instance steers: one load.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// What is set.
    pub(crate) fn plan(&self) -> Plan {
        self.steering.lock().as_ref().map_or(Plan::None, |steering| steering.plan().clone())
    }

    /// Counts by worker, if there ever was a plan.
    pub(crate) fn counts(&self) -> &[SteerCounts] {
        self.counts.get().map_or(&[], |counts| counts)
    }

    /// Whether everything that it put on backlogs has been processed.
    pub(crate) fn is_done(&self, workers: &impl Workers) -> bool {
        self.steering.lock().as_ref().is_none_or(|steering| steering.is_done(workers))
    }

    /// The device takes filters of single flows. Before there is a plan.
    pub(crate) fn set_source(&self, source: FlowSource) {
        let _ = self.source.set(source);
    }

    /// Where its flows come from, if the device takes filters that send them elsewhere.
    pub(crate) fn source(&self) -> Option<&FlowSource> {
        self.source.get()
    }

    /// Whether its flows follow their consumers.
    pub(crate) fn follows(&self) -> bool {
        self.steering.lock().as_ref().is_some_and(|steering| steering.follows())
    }

    /// The last batch with packets of a flow, as long as that is followed: it changes while the
    /// flow is not quiet.
    pub(crate) fn last_batch(&self, hash: u32) -> Option<u64> {
        self.steering.lock().as_ref()?.last_batch(hash)
    }

    /// A filter of a flow is gone, and may be asked for again.
    pub(crate) fn may_ask(&self, hash: u32) {
        if let Some(steering) = self.steering.lock().as_mut() {
            steering.may_ask(hash);
        }
    }

    /// What each worker's backlog has to have come to for all that was put there.
    pub(crate) fn tails(&self) -> Box<[u64]> {
        self.steering.lock().as_ref().map_or(Box::default(), |steering| steering.tails().into())
    }

    /// Replaces the plan of an instance that is disabled, when everything of the old one [is
    /// done](Self::is_done).
    pub(crate) fn replace(&self, plan: Plan, workers: usize) {
        let on = plan != Plan::None;
        if on {
            self.counts.get_or_init(|| (0..workers).map(|_| SteerCounts::default()).collect());
        }
        let to = match &plan {
            Plan::HandOff(worker) => u32::from(*worker) + 1,
            _ => 0,
        };
        let steering = on.then(|| {
            let mut steering = Steering::new(plan, workers);
            if let Some(source) = self.source.get() {
                steering.ask_for_filters(source.worker);
            }
            Box::new(steering)
        });
        *self.steering.lock() = steering;
        // The owner to come is ordered behind this by the instance's word.
        self.hand_off.store(to, Ordering::Relaxed);
        self.on.store(on, Ordering::Relaxed);
    }

    /// Whether all that the instance brings is for a worker whose backlog has no room for another list: then it is to collect
    /// nothing for so many ns. Packets wait in the device's ring meanwhile, and if need be are lost there, where that costs nothing;
    /// a worker that went on to collect would use its CPU, and the cache that it shares with the other worker, for packets that are
    /// freed right away. (Mogul and Ramakrishnan, "Eliminating receive livelock in an interrupt-driven kernel", 1997.)
    #[inline]
    pub(crate) fn held_back(&self, backlogs: &Backlogs) -> Option<NonZeroU64> {
        let to = (self.hand_off.load(Ordering::Relaxed) as usize).checked_sub(1)?;
        let backlog = &backlogs.instances().get(to)?.backlog;
        if backlog.has_room() && backlogs.have_memory(backlog) {
            return None;
        }
        if let Some(counts) = self.counts.get().and_then(|counts| counts.get(to)) {
            counts.held.add(1);
        }
        // Not long enough for the worker to run out of packets, if one takes it 100 ns.
        NonZeroU64::new((backlog.max() as u64 * 100).clamp(10_000, 100_000))
    }

    /// Puts the packets of `batch` that are for workers on their backlogs; the others stay, for the
    /// calling thread. The workers are to be [told](Steerer::notify) then; and the housekeeper, if
    /// this says so.
    #[inline(never)]
    #[must_use = "the housekeeper may have to be woken"]
    pub(crate) fn steer(
        &self,
        backlogs: &Backlogs,
        ctx: &mut SoftnetData,
        steerer: &mut Steerer,
        batch: &mut Batch,
    ) -> bool {
        let mut steering = self.steering.lock();
        let (Some(steering), Some(counts)) = (steering.as_mut(), self.counts.get()) else { return false };
        let moves = steering.moves();
        let Steerer { lists, limit, notify } = steerer;
        steering.sort(batch, lists, backlogs);
        lists.drain(|worker, list| {
            let at = usize::from(worker);
            let (counts, backlog) = (&counts[at], &backlogs.instances()[at].backlog);
            let (len, max) = (backlog.len(), backlog.max());
            // The whole list, by what there was before it.
            if len > max {
                counts.dropped.add(list.len() as u64);
                return ctx.free_batch(list, DropReason::CpuBacklog);
            }
            if !backlogs.have_memory(backlog) {
                counts.no_memory.add(list.len() as u64);
                return ctx.free_batch(list, DropReason::BacklogMem);
            }
            if let Some(limit) = limit
                && len + list.len() > max / 2
            {
                limit_flows(ctx, limit, list, (len, max), counts);
                if list.is_empty() {
                    return;
                }
            }
            let n = list.len() as u64;
            match backlog.push(list) {
                Ok(pushed) => {
                    counts.packets.add(n);
                    steering.pushed(worker, pushed.tail);
                    if pushed.was_empty {
                        counts.wakeups.add(1);
                        if !notify.contains(&worker) {
                            notify.push(worker);
                        }
                    }
                }
                // The worker is gone: what was for it stays. There is room, since it came from
                // there.
                Err(_) => batch.append(list),
            }
        });
        steering.end();
        self.moves.add(steering.moves() - moves);
        match (self.source.get(), &backlogs.requests) {
            (Some(source), Some(requests)) => source.ask(requests, steering),
            _ => false,
        }
    }
}

/// Frees packets of flows that have more than their share of a backlog.
#[cold]
fn limit_flows(
    ctx: &mut SoftnetData,
    limit: &mut FlowLimit,
    list: &mut Batch,
    (len, max): (usize, usize),
    counts: &SteerCounts,
) {
    let (mut kept, mut dropped) = (Batch::new(), Batch::new());
    for mut skb in list.drain() {
        let hash = skb_get_hash(&mut skb);
        let exceeds = limit.exceeds(hash, len + kept.len(), max);
        // Each has room for all of them.
        let _ = if exceeds { &mut dropped } else { &mut kept }.push(skb);
    }
    list.append(&mut kept);
    counts.flow_limited.add(dropped.len() as u64);
    ctx.free_batch(&mut dropped, DropReason::FlowLimit);
}
