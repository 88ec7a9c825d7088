//! Which RX queue a frame goes to that arrives at a device with software behind it: filters first,
//! then RSS.
//!
//! Control threads change an [`RxClass`] and publish it whole; any thread classifies frames with
//! one that it has. Invariant: a verdict names a queue that there is, and all packets of a flow get
//! the same from the same [`RxClass`] (fragments may get another than what is not cut: they have no
//! ports).
//!
//! Changing a table, or adding a filter, moves flows from one queue to another at once. What is
//! still in the old queue may be overtaken by what comes after, as on any NIC.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::flow::{Ends, Flow, dissect};
use super::flow_key::FlowKey;
use super::ntuple::{FLOW_LOCATIONS, Fields, LOCATIONS, Matcher, Rule, RuleAction, RuleOrder};
use super::rss::{ContextChoice, FlowKind, Rss, RssChange, RssError};
use crate::ip::v4::header::protocol;
use crate::sync::{AtomicU64, Ordering};

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to an RX queue.
    Queue {
        /// Which.
        queue: u16,
        /// Its [flow hash](super::flow_hash), if the device computes the same; else 0.
        hash: u32,
    },
    /// A filter drops it.
    Drop,
}

/// Why a filter was not added or deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// There is no such queue.
    #[error("action: queue {queue} is not there: the device has {queues}, numbered from 0; -1 drops")]
    Queue {
        /// The queue.
        queue: u16,
        /// How many there are.
        queues: u16,
    },
    /// There is no such context.
    #[error("context: no context {0}; `softnet set rss DEV context new` makes one")]
    NoContext(u32),
    /// There is no such place.
    #[error("loc: expected a location from 0 to {}, found {}", LOCATIONS - 1, .0)]
    Location(u32),
    /// The place is taken.
    #[error("loc: there is a filter at location {0}: delete that first, or leave `loc` out")]
    Taken(u32),
    /// No place is free.
    #[error("all {LOCATIONS} locations are taken: delete a filter first")]
    Full,
    /// There is nothing to delete.
    #[error("delete: no filter at location {0}; `softnet show ntuple` lists those that there are")]
    NoRule(u32),
    /// The filter is not the user's.
    #[error("delete: the filter at location {0} is RFS's, which deletes it when its flow has gone quiet")]
    OfRfs(u32),
}

#[derive(Clone, Debug)]
struct Filter {
    rule: Rule,
    matcher: Matcher,
    /// Packets that it took; shared by all versions.
    hits: Arc<AtomicU64>,
}

/// Where one flow goes.
#[derive(Clone, Debug)]
struct FlowFilter {
    /// Its number among them.
    at: u32,
    queue: u16,
    hits: Arc<AtomicU64>,
}

/// RSS and filters of a device.
#[derive(Clone, Debug)]
pub struct RxClass {
    rss: Rss,
    /// The table of the main context.
    main: Arc<[u16]>,
    /// By location.
    filters: BTreeMap<u32, Filter>,
    /// Behind those: by flow, so that their number does not matter.
    flows: BTreeMap<FlowKey, FlowFilter>,
}

impl RxClass {
    /// Of a device with so many RX queues: the usual RSS, no filters.
    ///
    /// # Errors
    /// As [`Rss::new`].
    pub fn new(queues: u16) -> Result<Self, RssError> {
        let rss = Rss::new(queues)?;
        let main = rss.contexts.get(&0).map(|table| Arc::from(&**table)).unwrap_or_default();
        Ok(RxClass { rss, main, filters: BTreeMap::new(), flows: BTreeMap::new() })
    }

    /// How flows are spread.
    pub fn rss(&self) -> &Rss {
        &self.rss
    }

    /// The filters, each with its location and how many packets it took.
    pub fn filters(&self) -> impl Iterator<Item = (u32, &Rule, u64)> {
        self.filters.iter().map(|(at, filter)| (*at, &filter.rule, filter.hits.load(Ordering::Relaxed)))
    }

    /// The filters of single flows, likewise, by flow.
    pub fn flow_filters(&self) -> impl Iterator<Item = (u32, Rule, u64)> {
        let of = |(key, filter): (&FlowKey, &FlowFilter)| {
            (LOCATIONS + filter.at, key.rule(filter.queue), filter.hits.load(Ordering::Relaxed))
        };
        self.flows.iter().map(of)
    }

    /// Changes RSS, or nothing. Returns the context that was made, if one was.
    ///
    /// # Errors
    /// As [`Rss::apply`]; and a context that a filter leads to can't be deleted.
    pub fn set_rss(&mut self, change: &RssChange) -> Result<Option<u32>, RssError> {
        if let (ContextChoice::Is(context), true) = (change.context, change.delete) {
            let leads = |(_, filter): &(&u32, &Filter)| filter.rule.action == RuleAction::Context(context);
            if let Some((location, _)) = self.filters.iter().find(leads) {
                return Err(RssError::InUse { context, location: *location });
            }
        }
        let made = self.rss.apply(change)?;
        self.main = self.rss.contexts.get(&0).map(|table| Arc::from(&**table)).unwrap_or_default();
        Ok(made)
    }

    /// Adds or deletes a filter. Returns its location.
    ///
    /// # Errors
    /// What is wrong with it; then nothing was changed.
    pub fn set_rule(&mut self, order: &RuleOrder) -> Result<u32, RuleError> {
        let (rule, location) = match order {
            RuleOrder::Delete(at) if self.flows.values().any(|filter| LOCATIONS + filter.at == *at) => {
                return Err(RuleError::OfRfs(*at));
            }
            RuleOrder::Delete(at) => {
                return self.filters.remove(at).map(|_| *at).ok_or(RuleError::NoRule(*at));
            }
            RuleOrder::Insert { rule, location } => (rule, location),
        };
        let queues = self.rss.queues();
        match rule.action {
            RuleAction::Queue(queue) if queue >= queues => return Err(RuleError::Queue { queue, queues }),
            RuleAction::Context(context) if !self.rss.contexts.contains_key(&context) => {
                return Err(RuleError::NoContext(context));
            }
            _ => {}
        }
        let location = match *location {
            Some(at) if at >= LOCATIONS => return Err(RuleError::Location(at)),
            Some(at) if self.filters.contains_key(&at) => return Err(RuleError::Taken(at)),
            Some(at) => at,
            None => {
                let free = (0..LOCATIONS).rev().find(|at| !self.filters.contains_key(at));
                free.ok_or(RuleError::Full)?
            }
        };
        let hits = Arc::new(AtomicU64::new(0));
        self.filters.insert(location, Filter { rule: *rule, matcher: rule.into(), hits });
        Ok(location)
    }

    /// Has filter number `at` of those of single flows send a flow to a queue, whatever it did
    /// before, or deletes it. The flow had no other.
    ///
    /// # Errors
    /// There is no such number or queue; then nothing was changed.
    pub fn set_flow_filter(&mut self, at: u32, to: Option<(&FlowKey, u16)>) -> Result<(), RuleError> {
        if at >= FLOW_LOCATIONS {
            return Err(RuleError::Location(LOCATIONS.saturating_add(at)));
        }
        let queues = self.rss.queues();
        if let Some((_, queue)) = to.filter(|(_, queue)| *queue >= queues) {
            return Err(RuleError::Queue { queue, queues });
        }
        let old = self.flows.iter().find(|(_, filter)| filter.at == at).map(|(key, _)| *key);
        let old = old.and_then(|key| Some((key, self.flows.remove(&key)?)));
        if let Some((key, queue)) = to {
            let hits = old.filter(|(old, _)| old == key).map(|(_, filter)| filter.hits).unwrap_or_default();
            self.flows.insert(*key, FlowFilter { at, queue, hits });
        }
        Ok(())
    }

    /// Which queue `frame` goes to. One that is not IP has no hash, and goes where entry 0 of the
    /// table says.
    #[inline]
    pub fn classify(&self, frame: &[u8]) -> Verdict {
        let queue_of = |table: &[u16], hash: u32| {
            // A table has a power of two of entries.
            table.get(hash as usize & table.len().wrapping_sub(1)).copied().unwrap_or(0)
        };
        let Some(flow) = dissect(frame) else {
            return Verdict::Queue { queue: queue_of(&self.main, 0), hash: 0 };
        };
        let action = if self.filters.is_empty() { None } else { self.filtered(&flow) };
        if action == Some(RuleAction::Drop) {
            return Verdict::Drop;
        }
        let action = if action.is_none() && !self.flows.is_empty() { self.flow_queue(&flow) } else { action };
        let hash = self.hash_of(&flow);
        let queue = match action {
            Some(RuleAction::Queue(queue)) => queue,
            Some(RuleAction::Context(context)) => {
                queue_of(self.rss.contexts.get(&context).map_or(&self.main, |table| table), hash)
            }
            _ => queue_of(&self.main, hash),
        };
        let is_flow_hash = self.rss.hash.is_flow_hash() && self.rss.ports == [true; 4];
        Verdict::Queue { queue, hash: if is_flow_hash { hash.max(1) } else { 0 } }
    }

    /// The hash of `frame`; 0 if it is not IP.
    #[inline]
    pub fn hash(&self, frame: &[u8]) -> u32 {
        dissect(frame).map_or(0, |flow| self.hash_of(&flow))
    }

    /// What the first filter says that takes the flow.
    fn filtered(&self, flow: &Flow<'_>) -> Option<RuleAction> {
        let fields = Fields::of(flow);
        let filter = self.filters.values().find(|filter| filter.matcher.takes(&fields))?;
        filter.hits.fetch_add(1, Ordering::Relaxed);
        Some(filter.rule.action)
    }

    /// Where the filter of the flow sends it, if there is one.
    fn flow_queue(&self, flow: &Flow<'_>) -> Option<RuleAction> {
        let filter = self.flows.get(&FlowKey::of_flow(flow)?)?;
        filter.hits.fetch_add(1, Ordering::Relaxed);
        Some(RuleAction::Queue(filter.queue))
    }

    #[inline(always)]
    fn hash_of(&self, flow: &Flow<'_>) -> u32 {
        let udp = flow.protocol == protocol::UDP;
        let ports = |kinds: [FlowKind; 2]| match flow.ports {
            Some(ports) if self.rss.ports[kinds[usize::from(udp)] as usize] => *ports,
            _ => [0; 4],
        };
        match flow.ends {
            Ends::V4(ends) => self.rss.hash.hash(ends, ports([FlowKind::Tcp4, FlowKind::Udp4])),
            Ends::V6(ends) => self.rss.hash.hash(ends, ports([FlowKind::Tcp6, FlowKind::Udp6])),
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "class_tests.rs"]
mod tests;
