//! The automatic choice (`steering = "auto"`): from where workers' CPUs are and what queues bring,
//! whether an RX queue's packets are processed where they are collected, handed off to one other
//! worker, or spread over several.
//!
//! A pure function of what was measured in an interval and of what it chose before: no clock, no threads. The runtime's
//! housekeeper calls it, and applies a plan that changed under the rule that everything which the
//! old one put on backlogs has been processed.
//!
//! It predicts by one model: a worker has one second of time a second; collecting a packet costs
//! `receive_ns` where the queue is polled, the rest of its way `service_ns` where it is processed;
//! to hand it over costs `HANDOVER_NS` on either side and, for each list that finds its worker
//! asleep, a wake-up. A plan's capacity is what its busiest worker can carry. A queue is steered
//! when its own worker can no longer carry it and the best plan carries clearly more, and no longer
//! when its own worker has long had room for all of it. So a wake-up that costs more than it spares
//! keeps a queue where it is.
//!
//! Invariant: with the same input it chooses the same; a plan changes at most once in [`PATIENCE`] intervals.

use std::collections::BTreeMap;
use std::fmt;

use super::Plan;

/// Share of its time above which a worker can't be said to carry its load.
const HIGH: f64 = 0.85;
/// Share of its time below which a queue's own worker has room for all of it again.
const LOW: f64 = 0.6;
/// How much more another plan has to carry to be worth a change.
const GAIN: f64 = 1.1;
/// Intervals for which a reason to change has to last.
pub const PATIENCE: u32 = 2;
/// Intervals for which there has to be room before a queue is steered to fewer workers.
pub const CALM: u32 = 8;
/// What a packet costs in addition where it is handed over, and again where it is taken: a list's
/// share, and cache misses.
const HANDOVER_NS: f64 = 25.0;
/// What two threads of one core do, each, of what a whole core does.
const SIBLING: f64 = 0.6;
/// The most workers that one queue is spread over.
const WIDEST: usize = 16;
/// Slices of the hash space that flows are counted in.
pub const SLICES: usize = 64;

/// Where the CPU of a worker is. Numbers say only what is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number, as the system has it.
    pub cpu: u16,
    /// The core: threads of one share its units and first caches.
    pub core: u16,
    /// The last cache level that it shares.
    pub llc: u16,
    /// The NUMA node.
    pub node: u16,
}

/// How far from a queue's own worker another one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    Llc,
    Sibling,
    Node,
    Far,
}

impl Place {
    fn distance(&self, other: &Place) -> Distance {
        match () {
            () if self.node != other.node => Distance::Far,
            () if self.core == other.core => Distance::Sibling,
            () if self.llc == other.llc => Distance::Llc,
            () => Distance::Node,
        }
    }
}

/// The machine, as far as the choice depends on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Where the workers are, in their order.
    pub workers: Vec<Place>,
    /// ns that a thread spends on waking one that sleeps on another CPU.
    pub wake_ns: f64,
}

/// What one RX queue brought in an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueLoad {
    /// A number that the queue keeps.
    pub id: u32,
    /// How it is steered now.
    pub plan: Plan,
    /// The worker that polls it; `None`: another thread does, and the queue stays as it is.
    pub home: Option<u16>,
    /// Packets a second.
    pub pps: f64,
    /// ns that collecting a packet takes.
    pub receive_ns: f64,
    /// ns that the rest of its way takes.
    pub service_ns: f64,
    /// Packets that a poll brings.
    pub batch: f64,
    /// Packets seen, by slices of the hash space; all 0: they are of no flows.
    pub slices: [u32; SLICES],
}

/// Why a queue is steered as it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    /// There is no other worker.
    OneWorker,
    /// Not a worker polls it.
    Elsewhere,
    /// Its own worker has room: it would be busy for this share of its time.
    Fits(f64),
    /// Its own worker is busy for this share of its time, but the best other plan would carry only
    /// so many times as much.
    NoGain {
        /// Share of its worker's time.
        busy: f64,
        /// What the best other plan carries, as a multiple.
        gain: f64,
        /// Share of that plan's cost that is wake-ups.
        wakes: f64,
    },
    /// One worker would be busy for this share of its time, and this plan carries so many times as much as it.
    Overload {
        /// Share of one worker's time.
        busy: f64,
        /// What the plan carries, as a multiple of one worker.
        gain: f64,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| (share * 100.0).round();
        match *self {
            Why::OneWorker => write!(f, "there is one worker"),
            Why::Elsewhere => write!(f, "no worker polls the queue"),
            Why::Fits(busy) => write!(f, "one worker carries it: busy {} %", percent(busy)),
            Why::NoGain { busy, gain, wakes } => write!(
                f,
                "one worker is busy {} %, but others would carry {gain:.2} times as much ({} % of it wake-ups)",
                percent(busy),
                percent(wakes)
            ),
            Why::Overload { busy, gain } => {
                write!(
                    f,
                    "one worker would be busy {} %; this carries {gain:.2} times as much",
                    percent(busy)
                )
            }
        }
    }
}

/// What was chosen for a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The plan.
    pub plan: Plan,
    /// Why it is this.
    pub why: Why,
}

impl Decision {
    /// What it would take for the choice to be another, in words.
    pub fn otherwise(&self) -> String {
        let percent = |share: f64| (share * 100.0).round();
        match (&self.plan, self.why) {
            (_, Why::OneWorker) => "more than one CPU in stack.workers".into(),
            (_, Why::Elsewhere) => "the context softirq".into(),
            (_, Why::Fits(_)) => format!("steered above {} % of one worker", percent(HIGH)),
            (_, Why::NoGain { .. }) => {
                format!(
                    "steered if that carried {GAIN} times as much: cheaper wake-ups, or more work a packet"
                )
            }
            (_, Why::Overload { .. }) => {
                format!("on one worker below {} % of it for {CALM} intervals", percent(LOW))
            }
        }
    }
}

/// What a plan can carry.
#[derive(Clone, Copy)]
struct Capacity {
    /// Packets a second.
    pps: f64,
    /// Share of the costs of its busiest worker that is wake-ups.
    wakes: f64,
}

/// For how long there has been reason to choose otherwise for a queue.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    tight: u32,
    calm: u32,
}

/// The choice for all RX queues of a stack.
#[derive(Debug, Default)]
pub struct Policy {
    queues: BTreeMap<u32, State>,
}

impl Policy {
    /// One decision for each queue; `others` is the share of its time that each worker spends with anything but these.
    pub fn decide(&mut self, machine: &Machine, queues: &[QueueLoad], others: &[f64]) -> Vec<Decision> {
        self.queues.retain(|id, _| queues.iter().any(|queue| queue.id == *id));
        let mut free: Vec<f64> = spent(machine, queues)
            .iter()
            .enumerate()
            .map(|(worker, spent)| 1.0 - spent - others.get(worker).copied().unwrap_or(0.0).clamp(0.0, 1.0))
            .collect();
        // The busiest is asked first.
        let mut order: Vec<usize> = (0..queues.len()).collect();
        order.sort_by(|a, b| demand(&queues[*b]).total_cmp(&demand(&queues[*a])).then(a.cmp(b)));
        let mut decisions = vec![Decision { plan: Plan::None, why: Why::OneWorker }; queues.len()];
        for at in order {
            let queue = &queues[at];
            take(&mut free, queue, &queue.plan, -1.0);
            let state = self.queues.entry(queue.id).or_default();
            decisions[at] = state.decide(machine, queue, &free);
            take(&mut free, queue, &decisions[at].plan, 1.0);
        }
        decisions
    }
}

/// Share of its time that each worker spends with the packets of `queues`, by the model.
pub fn spent(machine: &Machine, queues: &[QueueLoad]) -> Vec<f64> {
    let mut free = vec![0.0; machine.workers.len()];
    queues.iter().for_each(|queue| take(&mut free, queue, &queue.plan, 1.0));
    free.iter().map(|free| -free).collect()
}

/// Share of one worker's time that all of a queue's work takes.
fn demand(queue: &QueueLoad) -> f64 {
    queue.pps * (queue.receive_ns + queue.service_ns) / 1e9
}

/// Takes what `queue` costs under `plan` from the workers' free time, `sign` times.
fn take(free: &mut [f64], queue: &QueueLoad, plan: &Plan, sign: f64) {
    let Some(home) = queue.home else { return };
    let mut spend = |worker: u16, ns: f64| {
        if let Some(free) = free.get_mut(usize::from(worker)) {
            *free -= sign * queue.pps * ns / 1e9;
        }
    };
    match plan.workers() {
        [] => spend(home, queue.receive_ns + queue.service_ns),
        to => {
            spend(home, queue.receive_ns + HANDOVER_NS);
            let shares = shares(queue, to.len());
            to.iter().zip(shares).for_each(|(worker, share)| {
                spend(*worker, share * (queue.service_ns + HANDOVER_NS));
            });
        }
    }
}

/// What share of a queue's packets goes to each of `n` workers.
fn shares(queue: &QueueLoad, n: usize) -> Vec<f64> {
    let all: u32 = queue.slices.iter().sum();
    let mut shares = vec![0.0; n];
    if n <= 1 || all == 0 {
        // Of no flow: they stay in one place.
        shares[..n.min(1)].fill(1.0);
        return shares;
    }
    for (slice, packets) in queue.slices.iter().enumerate() {
        shares[slice * n / SLICES] += f64::from(*packets) / f64::from(all);
    }
    shares
}

/// What `queue` could bring under `plan`.
fn capacity(machine: &Machine, queue: &QueueLoad, home: u16, plan: &Plan, free: &[f64]) -> Capacity {
    let free = |worker: u16| free.get(usize::from(worker)).copied().unwrap_or(0.0).max(0.01);
    let to = plan.workers();
    if to.is_empty() {
        let pps = free(home) * 1e9 / (queue.receive_ns + queue.service_ns).max(1.0);
        return Capacity { pps, wakes: 0.0 };
    }
    let shares = shares(queue, to.len());
    // Lists find a worker asleep for the share of time that it is idle when its queue's worker has all that it can do.
    let own = to.iter().zip(&shares).filter(|(worker, _)| **worker == home).map(|(_, share)| share);
    let service = queue.service_ns + HANDOVER_NS;
    let home_ns = queue.receive_ns + HANDOVER_NS + own.sum::<f64>() * service;
    let others = to.iter().zip(&shares).filter(|(worker, _)| **worker != home);
    let wakes: f64 = others
        .map(|(worker, share)| {
            let idle = (1.0 - free(home) / home_ns * share * service / free(*worker)).max(0.0);
            machine.wake_ns * idle / queue.batch.max(1.0)
        })
        .sum();
    let place = |worker: u16| machine.workers.get(usize::from(worker));
    let sibling = |worker: u16| match (place(home), place(worker)) {
        (Some(a), Some(b)) if worker != home => a.distance(b) == Distance::Sibling,
        _ => false,
    };
    let mut ns = vec![0.0; machine.workers.len().max(usize::from(home) + 1)];
    for (worker, share) in to.iter().zip(&shares) {
        if let Some(ns) = ns.get_mut(usize::from(*worker)) {
            *ns += share * service;
        }
    }
    ns[usize::from(home)] = home_ns + wakes;
    let shared = to.iter().any(|worker| sibling(*worker));
    let mut pps = f64::INFINITY;
    for (worker, ns) in (0u16..).zip(&ns).filter(|(_, ns)| **ns > 0.0) {
        let part = if shared && (worker == home || sibling(worker)) { SIBLING } else { 1.0 };
        pps = pps.min(part * free(worker) * 1e9 / ns);
    }
    Capacity { pps, wakes: wakes / ns[usize::from(home)] }
}

impl State {
    fn decide(&mut self, machine: &Machine, queue: &QueueLoad, free: &[f64]) -> Decision {
        let none = |why| Decision { plan: Plan::None, why };
        let Some(home) = queue.home.filter(|home| usize::from(*home) < machine.workers.len()) else {
            *self = State::default();
            return none(Why::Elsewhere);
        };
        if machine.workers.len() < 2 {
            return none(Why::OneWorker);
        }
        let alone = capacity(machine, queue, home, &Plan::None, free);
        let busy = queue.pps / alone.pps;
        let steered = !queue.plan.workers().is_empty();
        let now = capacity(machine, queue, home, &queue.plan, free);
        self.tight = if queue.pps > HIGH * now.pps { self.tight + 1 } else { 0 };
        self.calm = if steered && busy < LOW { self.calm + 1 } else { 0 };
        if self.calm >= CALM {
            *self = State::default();
            return none(Why::Fits(busy));
        }
        let keep = |why| Decision { plan: queue.plan.clone(), why };
        let because = |gain: f64| Why::Overload { busy, gain: gain / alone.pps };
        if self.tight >= PATIENCE {
            let (plan, best) = best(machine, queue, home, free);
            if best.pps >= GAIN * now.pps && plan.workers() != queue.plan.workers() {
                *self = State::default();
                return Decision { plan, why: because(best.pps) };
            }
            if !steered {
                return keep(Why::NoGain { busy, gain: best.pps / alone.pps, wakes: best.wakes });
            }
        }
        keep(if steered { because(now.pps) } else { Why::Fits(busy) })
    }
}

/// Of the plans that steer, the one with the fewest and nearest workers that carries what the queue
/// is about to bring, or else the most.
fn best(machine: &Machine, queue: &QueueLoad, home: u16, free: &[f64]) -> (Plan, Capacity) {
    let from = machine.workers[usize::from(home)];
    let room = |worker: u16| free.get(usize::from(worker)).copied().unwrap_or(0.0);
    let mut near: Vec<(Distance, u16)> = (0u16..)
        .zip(&machine.workers)
        .filter(|(worker, _)| *worker != home && room(*worker) > 1.0 - HIGH)
        .map(|(worker, place)| (from.distance(place), worker))
        // A thread of the same core only if that is idle; another node's memory costs more than it gives.
        .filter(|(far, worker)| *far != Distance::Far && (*far != Distance::Sibling || room(*worker) > 0.9))
        .collect();
    // Of equally near ones the freest; workers that are as good as equally free, by their numbers.
    let tenths = |worker: u16| (room(worker) * 10.0).floor() as i32;
    near.sort_by_key(|(far, worker)| (*far, -tenths(*worker), *worker));
    let near: Vec<u16> = near.into_iter().map(|(_, worker)| worker).take(WIDEST).collect();
    // Queues that are at their worker's limit may have more to bring than it shows.
    let wanted = queue.pps * 1.25 / HIGH;
    let spread = |workers: &[u16]| {
        let mut workers = workers.to_vec();
        workers.sort_unstable();
        Plan::Rps { workers: workers.into(), flows: 0 }
    };
    let hand_offs = near.iter().map(|worker| Plan::HandOff(*worker));
    let with_home = |n: usize| {
        let mut workers = near[..n].to_vec();
        workers.push(home);
        spread(&workers)
    };
    let spreads = (1..=near.len()).flat_map(|n| [with_home(n), spread(&near[..n])]);
    let spreads = spreads.filter(|plan| plan.workers().len() > 1);
    let mut best = (Plan::None, Capacity { pps: 0.0, wakes: 0.0 });
    for plan in hand_offs.chain(spreads) {
        if best.1.pps >= wanted {
            break;
        }
        let carries = capacity(machine, queue, home, &plan, free);
        // More workers have to be worth it.
        if carries.pps > best.1.pps * 1.05 {
            best = (plan, carries);
        }
    }
    best
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "policy_tests.rs"]
mod tests;
