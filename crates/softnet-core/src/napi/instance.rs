//! The NAPI instance: identity and statistics for any thread, the body for its owner.
//!
//! A [`Napi`] is a handle; clones lead to the same instance. Any thread may schedule it. What an owner may do is
//! with [`Scheduled`](super::Scheduled) and [`Disabled`](super::Disabled).

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::hooks::Gro;
use super::mitigation::{Mitigation, MitigationConfig};
use super::scheduled::{Disabled, Scheduled};
use super::state::{self, State};
use crate::gro::{GroConfig, GroStats};
use crate::skb::Batch;
use crate::softnet_data::Counter;
use crate::sync::{Owned, Word};

/// Ids of instances start here; smaller numbers mean "none" (the kernel allocates them above `NR_CPUS`).
pub const MIN_NAPI_ID: u32 = 8193;

static NEXT_ID: AtomicU32 = AtomicU32::new(MIN_NAPI_ID);

/// What any thread may read of an instance.
pub struct NapiInfo {
    /// Unique in the process, never reused, at least [`MIN_NAPI_ID`].
    pub id: u32,
    /// For display: device and queue, such as `eth0-0`.
    pub name: String,
    /// Index of its device.
    pub dev: u16,
    /// Its RX queue in the device.
    pub queue: u16,
    /// The knobs of its interrupt mitigation.
    pub mitigation: MitigationConfig,
    /// What GRO is to do.
    pub gro: GroConfig,
    /// Its counters.
    pub stats: NapiStats,
}

impl Word for NapiInfo {
    fn dropped(word: u32) -> u32 {
        state::dropped(word)
    }
}

/// Counters of an instance, written by the thread that owns it.
#[derive(Default)]
pub struct NapiStats {
    /// Calls of the driver's poll.
    pub polls: Counter,
    /// Those that found nothing.
    pub empty_polls: Counter,
    /// Those that used their whole weight.
    pub full_polls: Counter,
    /// Those whose driver exceeded the weight: a bug of the driver.
    pub over_weight: Counter,
    /// Packets they received.
    pub packets: Counter,
    /// Times it was scheduled.
    pub schedules: Counter,
    /// Completions that had to poll again, because it was scheduled while it was owned.
    pub missed: Counter,
    /// Completions, [`missed`](Self::missed) ones included.
    pub completions: Counter,
    /// What GRO did.
    pub gro: GroStats,
}

impl NapiStats {
    /// Counts a poll that might have received `weight` packets and received `work`.
    #[inline]
    pub fn polled(&self, work: usize, weight: usize) {
        self.polls.add(1);
        self.packets.add(work as u64);
        self.empty_polls.add((work == 0).into());
        self.full_polls.add((work >= weight).into());
        self.over_weight.add((work > weight).into());
    }
}

/// What only the owner of an instance may touch.
pub struct Body<Q> {
    /// The device's RX queue.
    pub rx: Q,
    /// Receive offload, once it was switched on.
    pub gro: Option<Box<dyn Gro>>,
    /// How far interrupt mitigation has come.
    pub mitigation: Mitigation,
    /// Scratch for the packets of one poll; empty between polls.
    pub batch: Batch,
    /// The softirq run that polled it last.
    pub(super) run: u64,
}

pub(super) type Cell<Q> = Owned<NapiInfo, Body<Q>>;

/// An instance; see the [module](super). Cloning it costs a reference count.
pub struct Napi<Q>(pub(super) Arc<Cell<Q>>);

impl<Q> Napi<Q> {
    /// A new instance for queue `queue` of device `dev`, disabled. The second value enables it.
    pub fn new(name: impl Into<String>, dev: u16, queue: u16, rx: Q) -> (Napi<Q>, Disabled<Q>) {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let (mitigation, stats) = (MitigationConfig::default(), NapiStats::default());
        let gro = GroConfig::default();
        let info = NapiInfo { id, name: name.into(), dev, queue, mitigation, gro, stats };
        let body = Body { rx, gro: None, mitigation: Mitigation::default(), batch: Batch::new(), run: 0 };
        let guard = Owned::held(state::NPSVC, info, body);
        (Napi(guard.cell().clone()), Disabled(guard))
    }

    /// Wants the instance polled. The thread that gets the [`Scheduled`] must see to it that it is: put it on a poll
    /// list or hand it to a worker. `None`: a thread owns it already and will poll once more, or it is being disabled.
    ///
    /// Whatever this thread did before (a packet put into the ring) is seen by that poll.
    #[inline]
    pub fn schedule_prep(&self) -> Option<Scheduled<Q>> {
        self.schedule(state::prep)
    }

    /// The instance's timer fired: as [`schedule_prep`](Self::schedule_prep), but leaves an owner alone, and takes back
    /// busy pollers' wish for preference (`napi_watchdog`).
    #[inline]
    pub fn watchdog(&self) -> Option<Scheduled<Q>> {
        self.schedule(state::watchdog)
    }

    fn schedule(&self, f: fn(u32) -> Option<u32>) -> Option<Scheduled<Q>> {
        let guard = Owned::acquire(&self.0, f)?;
        guard.cell().shared().stats.schedules.add(1);
        Some(Scheduled(guard))
    }

    /// Begins to disable the instance: from now on it cannot be scheduled, and its owner ends its poll. Then call
    /// [`try_disable`](Self::try_disable), with pauses, until it succeeds.
    pub fn disable(&self) {
        self.0.set(state::DISABLE);
    }

    /// Disables the instance if no thread owns it. Afterwards it is not polled until it is enabled again. While it is
    /// disabled already, this does not succeed. Its timer may be cancelled then; one that fires finds it disabled.
    pub fn try_disable(&self) -> Option<Disabled<Q>> {
        Owned::acquire(&self.0, state::disable).map(Disabled)
    }

    /// Its state at some moment.
    pub fn state(&self) -> State {
        State(self.0.word())
    }
}

impl<Q> Clone for Napi<Q> {
    fn clone(&self) -> Self {
        Napi(self.0.clone())
    }
}

impl<Q> Deref for Napi<Q> {
    type Target = NapiInfo;

    #[inline(always)]
    fn deref(&self) -> &NapiInfo {
        self.0.shared()
    }
}

// Handles and tokens travel between threads; the queue need not be shareable for that.
const _: () = {
    const fn travels<T: Send + Sync>() {}
    travels::<Napi<std::cell::Cell<u8>>>();
    travels::<Scheduled<std::cell::Cell<u8>>>();
    travels::<Disabled<std::cell::Cell<u8>>>();
};
