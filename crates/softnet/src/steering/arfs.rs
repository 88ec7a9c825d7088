//! Accelerated RFS: a flow whose consumer is near another worker than the one that polls its RX queue
//! gets a filter of its device, so that it arrives at a queue of that worker (the kernel's
//! `rx_flow_steer`).
//!
//! Part of the housekeeper, which pollers ask by [`FlowRequest`]s. It is on where RFS is and the
//! device takes filters. Filters that don't fit are not set, and their flows stay with RFS. A filter
//! of a flow that has gone quiet is deleted (the kernel's `rps_may_expire_flow`).
//!
//! Invariant (the switch rule of RFS, for queues): a flow's packets from its new queue are processed
//! when those in its old queue have been. So the new queue is not polled from before a filter is
//! changed until all that the old one held has been processed, as long as that takes no more than
//! [`WAIT`]; if it does, it is counted. One queue waits at a time for others, which are polled all
//! the while, so none waits for itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use softnet_core::SoftnetData;
use softnet_core::steer::{FlowKey, Workers, scale};
use softnet_core::sync::{Ordering, Receiver};
use softnet_dev::Device;

use crate::device::OpenParts;
use crate::napi::{FlowFilterCounts, FlowRequest, FlowSource, Home, NapiInstance, PAUSE};
use crate::stack::StackInner;
use crate::util::warn;

/// Time between two changes of filters, in ns: so a consumer that moves about all the time does not
/// have its queues wait for each other all the time.
const INTERVAL: u64 = Duration::from_millis(50).as_nanos() as u64;
/// How often quiet flows are looked for, in ns, and how often in succession one has to be quiet.
const LOOK: u64 = Duration::from_secs(1).as_nanos() as u64;
const QUIET: u32 = 2;
/// How long packets in an old queue are waited for, in ns.
const WAIT: u64 = Duration::from_millis(200).as_nanos() as u64;

/// A filter that is set.
struct Filter {
    key: FlowKey,
    hash: u32,
    /// Where it sends the flow.
    queue: u16,
    /// The last batch there with packets of the flow, when it was looked at; and how often there had
    /// been no other.
    seen: Option<u64>,
    quiet: u32,
}

/// The filters of a device.
struct Filters {
    /// By number.
    places: Vec<Option<Filter>>,
    /// The device refused the first one: it is not asked again.
    refused: bool,
}

impl Filters {
    fn of(device: &dyn Device) -> Self {
        Filters { places: (0..device.flow_filters()).map(|_| None).collect(), refused: false }
    }

    /// The place of a flow's filter, or a free one.
    fn place(&self, key: &FlowKey) -> Option<usize> {
        let of = |place: &Option<Filter>| place.as_ref().is_some_and(|filter| filter.key == *key);
        let taken = self.places.iter().position(of);
        taken.or_else(|| self.places.iter().position(Option::is_none))
    }
}

/// See the [module](self).
pub(crate) struct Arfs {
    requests: Option<Receiver<FlowRequest>>,
    /// By device; of those that are open.
    filters: BTreeMap<u16, Filters>,
    /// When filters were last changed, and when quiet flows are next looked for.
    changed_at: u64,
    look_at: Option<u64>,
}

impl Arfs {
    /// For a stack: the only one.
    pub(crate) fn new(shared: &StackInner) -> Self {
        let requests = shared.backlogs.requests.as_ref().and_then(|requests| requests.receiver());
        Arfs { requests, filters: BTreeMap::new(), changed_at: 0, look_at: None }
    }

    /// A device is being opened: before its instances have a plan.
    pub(crate) fn opening(shared: &StackInner, device: &dyn Device, napis: &[Arc<NapiInstance>]) {
        if shared.backlogs.requests.is_none() || napis.len() < 2 || device.flow_filters() == 0 {
            return;
        }
        for instance in napis {
            let (dev, queue, worker) = (instance.napi.dev, instance.napi.queue, instance.worker as u16);
            instance.steering.set_source(FlowSource { dev, queue, worker });
        }
    }

    /// A device is being closed: its filters go, too.
    pub(crate) fn closing(&mut self, dev: u16, device: &dyn Device) {
        let Some(filters) = self.filters.remove(&dev) else { return };
        for (at, _) in filters.places.iter().enumerate().filter(|(_, place)| place.is_some()) {
            // What can't be deleted is the interface's.
            let _ = device.set_flow_filter(at as u32, None);
        }
    }

    /// When it is to be called.
    pub(crate) fn next(&self) -> Option<u64> {
        let is_asked = self.requests.as_ref().is_some_and(|requests| requests.has_pending());
        let change = is_asked.then(|| self.changed_at.saturating_add(INTERVAL));
        [change, self.look_at].into_iter().flatten().min()
    }

    /// Does what it was asked for, and looks for quiet flows, if it is time to.
    pub(crate) fn run(&mut self, shared: &StackInner, ctx: &mut SoftnetData, now: u64) {
        if self.next().is_none_or(|at| at > now) {
            return;
        }
        if now >= self.changed_at.saturating_add(INTERVAL) {
            self.serve(shared, ctx);
            self.changed_at = shared.clock.now();
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look(shared, ctx);
            self.look_at = None;
        }
        if self.look_at.is_none() && self.filters.values().any(|of| of.places.iter().any(Option::is_some)) {
            self.look_at = Some(now + LOOK);
        }
    }

    fn serve(&mut self, shared: &StackInner, ctx: &mut SoftnetData) {
        let requests: Vec<_> = self.requests.iter_mut().flat_map(|requests| requests.drain()).collect();
        let mut by_queue: BTreeMap<(u16, u16), Vec<FlowRequest>> = BTreeMap::new();
        for request in requests {
            let dev = request.source.dev;
            if let Some(live) = open(shared, dev)
                && let Some(queue) = target(shared, &live, &request)
            {
                by_queue.entry((dev, queue)).or_default().push(request);
            }
        }
        for ((dev, queue), requests) in by_queue {
            if let Some(live) = open(shared, dev) {
                let filters = self.filters.entry(dev).or_insert_with(|| Filters::of(&*live.device));
                send_to(shared, ctx, &live, filters, queue, &requests);
            }
        }
    }

    /// Deletes filters of flows that have gone quiet.
    fn look(&mut self, shared: &StackInner, ctx: &mut SoftnetData) {
        for (dev, filters) in &mut self.filters {
            let Some(live) = open(shared, *dev) else { continue };
            let mut quiet: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
            for (at, place) in filters.places.iter_mut().enumerate() {
                let Some(filter) = place else { continue };
                let steering = live.napis.get(usize::from(filter.queue)).map(|instance| &instance.steering);
                let seen = steering.and_then(|steering| steering.last_batch(filter.hash));
                let moves = seen.is_some() && seen != filter.seen;
                filter.quiet = if moves { 0 } else { filter.quiet + 1 };
                filter.seen = seen.or(filter.seen);
                if filter.quiet >= QUIET {
                    quiet.entry(filter.queue).or_default().push(at);
                }
            }
            for (queue, places) in quiet {
                expire(shared, ctx, &live, filters, queue, &places);
            }
        }
    }
}

fn open(shared: &StackInner, dev: u16) -> Option<Arc<OpenParts>> {
    shared.devices.get(usize::from(dev))?.live.load_full()
}

fn counts(live: &OpenParts, queue: u16) -> Option<&FlowFilterCounts> {
    Some(&live.napis.get(usize::from(queue))?.steering.filters)
}

/// The queue that a flow should arrive at: one that the worker near its consumer polls, and whose
/// flows follow their consumers. `None` if there is none, the flow arrives at one already, or its
/// consumer has moved on meanwhile.
fn target(shared: &StackInner, live: &OpenParts, FlowRequest { source, ask }: &FlowRequest) -> Option<u16> {
    if shared.backlogs.wanted(ask.hash) != Some(ask.worker) {
        return None;
    }
    let worker = shared.workers.get(usize::from(ask.worker))?;
    let is_its = |instance: &&Arc<NapiInstance>| {
        matches!(instance.home(), Some(Home::Worker(home)) if Arc::ptr_eq(&home, worker))
            && instance.steering.follows()
    };
    let queues: Vec<u16> = live.napis.iter().filter(is_its).map(|instance| instance.napi.queue).collect();
    if queues.contains(&source.queue) {
        return None;
    }
    // Not by the bits that RPS goes by.
    queues.get(scale(ask.hash.rotate_left(16), queues.len())).copied()
}

/// Sends the flows of `requests` to `queue`, as far as there are places.
fn send_to(
    shared: &StackInner,
    ctx: &mut SoftnetData,
    live: &OpenParts,
    filters: &mut Filters,
    queue: u16,
    requests: &[FlowRequest],
) {
    let Some(to) = live.napis.get(usize::from(queue)) else { return };
    let refuse = |source: &FlowSource| {
        counts(live, source.queue).into_iter().for_each(|counts| counts.refused.add(1));
    };
    let fits = |request: &&FlowRequest| filters.place(&request.ask.key).is_some() && !filters.refused;
    let (fitting, others): (Vec<&FlowRequest>, Vec<_>) = requests.iter().partition(fits);
    others.into_iter().for_each(|request| refuse(&request.source));
    // Its packets may have found no other place while it was on its way.
    let leads = |request: &&FlowRequest| {
        let filter = filters.place(&request.ask.key).and_then(|at| filters.places[at].as_ref());
        filter.is_some_and(|filter| filter.queue == queue)
    };
    let fitting: Vec<_> = fitting.into_iter().filter(|request| !leads(request)).collect();
    if fitting.is_empty() {
        return;
    }
    redirect(shared, ctx, live, &[to], queue, || {
        let mut from = BTreeSet::new();
        for FlowRequest { source, ask } in fitting {
            // Another one of them may have taken the last.
            let Some(at) = filters.place(&ask.key) else {
                refuse(source);
                continue;
            };
            if let Err(error) = live.device.set_flow_filter(at as u32, Some((&ask.key, queue))) {
                refuse(source);
                if filters.places.iter().all(Option::is_none) {
                    filters.refused = true;
                    let name = &live.device.info().name;
                    warn(format_args!("{name}: flows stay with RFS, since a filter was refused: {error}"));
                    break;
                }
                continue;
            }
            from.insert(source.queue);
            let filter = Filter { key: ask.key, hash: ask.hash, queue, seen: None, quiet: 0 };
            if let Some(old) = filters.places[at].replace(filter) {
                from.insert(old.queue);
                counts(live, old.queue).into_iter().for_each(|counts| {
                    counts.now.fetch_sub(1, Ordering::Relaxed);
                });
            }
            to.steering.filters.set.add(1);
            to.steering.filters.now.fetch_add(1, Ordering::Relaxed);
        }
        from.remove(&queue);
        from
    });
}

/// Deletes the filters at `places`, which send quiet flows to `queue`. Where these arrive then is the
/// device's to say.
fn expire(
    shared: &StackInner,
    ctx: &mut SoftnetData,
    live: &OpenParts,
    filters: &mut Filters,
    queue: u16,
    places: &[usize],
) {
    let others: Vec<_> = live.napis.iter().filter(|instance| instance.napi.queue != queue).collect();
    redirect(shared, ctx, live, &others, queue, || {
        for at in places {
            // One that can't be deleted is the interface's from now on.
            let _ = live.device.set_flow_filter(*at as u32, None);
            let Some(filter) = filters.places[*at].take() else { continue };
            others.iter().for_each(|instance| instance.steering.may_ask(filter.hash));
            counts(live, queue).into_iter().for_each(|counts| {
                counts.expired.add(1);
                counts.now.fetch_sub(1, Ordering::Relaxed);
            });
        }
        BTreeSet::from([queue])
    });
}

/// Has `change` change filters, which returns the queues that flows arrived at by then, while the
/// instances `to`, by which they may come now, are not polled; and not before all that those queues
/// held has been processed. `queue` is the one it is counted for.
fn redirect(
    shared: &StackInner,
    ctx: &mut SoftnetData,
    live: &OpenParts,
    to: &[&Arc<NapiInstance>],
    queue: u16,
    change: impl FnOnce() -> BTreeSet<u16>,
) {
    let paused: Vec<_> = to.iter().map(|instance| instance.pause()).collect();
    let from = change();
    let until = shared.clock.now() + WAIT;
    let in_time = from.is_empty()
        || wait(shared, ctx, until, || live.device.filters_settled())
            && from.iter().all(|queue| is_drained(shared, ctx, live, *queue, until));
    to.iter().zip(paused).for_each(|(instance, disabled)| instance.resume(disabled));
    if !in_time {
        counts(live, queue).into_iter().for_each(|counts| counts.late.add(1));
    }
}

/// Waits until all that is in RX queue `queue` now has been processed, or until `until`.
fn is_drained(shared: &StackInner, ctx: &mut SoftnetData, live: &OpenParts, queue: u16, until: u64) -> bool {
    let at = usize::from(queue);
    let (Some(instance), Some(stats)) = (live.napis.get(at), live.rx_stats.get(at)) else { return true };
    // It has none of them any more when it is empty, or has brought as many as it held at first.
    let mut goal = None;
    let is_empty = |goal: Option<u64>| {
        !instance.doorbell.pending() || goal.is_some_and(|goal| stats.packets.get() >= goal)
    };
    let tails = loop {
        // Between polls, so that all it has brought is on backlogs.
        let mut disabled = instance.pause();
        let body = disabled.body();
        let held = body.rx.as_ref().map_or(0, |rx| rx.held()) as u64;
        let waits = body.gro.as_ref().is_some_and(|gro| gro.held() > 0) || !is_empty(goal);
        let tails = instance.steering.tails();
        goal.get_or_insert_with(|| stats.packets.get() + held);
        instance.resume(disabled);
        if !waits {
            break tails;
        }
        if !wait(shared, ctx, until, || is_empty(goal)) {
            return false;
        }
        std::thread::sleep(PAUSE);
    };
    let done = || (0u16..).zip(&tails).all(|(worker, tail)| shared.backlogs.is_done(worker, *tail));
    wait(shared, ctx, until, || done() && !instance.left.any())
}

/// Whether it was done by `until`.
fn wait(shared: &StackInner, ctx: &mut SoftnetData, until: u64, done: impl Fn() -> bool) -> bool {
    loop {
        if done() {
            return true;
        }
        if shared.clock.now() >= until {
            return false;
        }
        // Some of it may be left to this thread.
        shared.handle_left(ctx);
        std::thread::sleep(PAUSE);
    }
}
