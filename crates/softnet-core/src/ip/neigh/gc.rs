//! Garbage collection: how many entries there are of each family on each device, and which of them goes when another
//! one is to come.
//!
//! Called by the [table](super::table) alone. A family on a device is a table of its own to the limits `gc_thresh1..3`, so
//! what happens on one link costs another one nothing. Collection happens when an entry is to come and at the entries'
//! own deadlines, never by a search: those that may go are kept in the order in which they go (RFC 6583 section 7.1 wants
//! unconfirmed entries to make room for confirmed ones).
//!
//! Permanent entries and gateways are configured, so their number is bounded already: they are not counted and never go.
//!
//! Invariant: `evictable` has each counted entry whose state has a [`Rank`], under that rank and the time at which the
//! state was entered.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use super::table::Key;
use super::{NeighParams, NeighState};

/// A stale entry younger than this (ns) is not thrown out even of a full table, as in `neigh_forced_gc`.
const FORCED_GC_AGE: u64 = 5_000_000_000;

/// How long (ns) a packet's neighbour has for an answer before another packet's may take its place.
const ANSWER_TIME: u64 = 100_000_000;

/// This part of a table is for entries that are not confirmed even where the confirmed ones fill it.
const UNCONFIRMED_SHARE: usize = 8;

/// The states whose entries may go; the first goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Failed,
    Incomplete,
    Stale,
    Reachable,
}

fn rank(state: NeighState) -> Option<Rank> {
    match state {
        NeighState::Failed => Some(Rank::Failed),
        NeighState::Incomplete => Some(Rank::Incomplete),
        NeighState::Stale => Some(Rank::Stale),
        NeighState::Reachable => Some(Rank::Reachable),
        // In use, and soon in another state.
        NeighState::Delay | NeighState::Probe | NeighState::None | NeighState::Permanent => None,
    }
}

/// One family on one device.
#[derive(Default)]
struct Table {
    entries: usize,
    /// Of these, failed or incomplete.
    unconfirmed: usize,
    evictable: BTreeSet<(Rank, u64, Key)>,
}

impl Table {
    /// The entry of `rank` that is in its state for the longest time, if that is `age` or more.
    fn oldest(&self, now: u64, rank: Rank, age: u64) -> Option<Key> {
        let first = (rank, 0, (0, IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
        let &(found, since, key) = self.evictable.range(first..).next()?;
        (found == rank && now.saturating_sub(since) >= age).then_some(key)
    }
}

/// The number of entries of each family on each device, and the order in which they go.
#[derive(Default)]
pub(super) struct Gc {
    tables: BTreeMap<(u16, bool), Table>,
}

impl Gc {
    fn table(&mut self, (dev, ip): Key) -> &mut Table {
        self.tables.entry((dev, ip.is_ipv6())).or_default()
    }

    /// How many entries the table of `key` has.
    pub(super) fn entries(&self, (dev, ip): Key) -> usize {
        self.tables.get(&(dev, ip.is_ipv6())).map_or(0, |table| table.entries)
    }

    /// A counted entry changes from state and time `from` to `to`; [`NeighState::None`] is before it came and after it
    /// went.
    pub(super) fn change(&mut self, key: Key, from: (NeighState, u64), to: (NeighState, u64)) {
        let table = self.table(key);
        let unconfirmed = |state| usize::from(matches!(state, NeighState::Failed | NeighState::Incomplete));
        let present = |state| usize::from(state != NeighState::None);
        table.entries = table.entries + present(to.0) - present(from.0);
        table.unconfirmed = table.unconfirmed + unconfirmed(to.0) - unconfirmed(from.0);
        if let Some(rank) = rank(from.0) {
            table.evictable.remove(&(rank, from.1, key));
        }
        if let Some(rank) = rank(to.0) {
            table.evictable.insert((rank, to.1, key));
        }
    }

    /// The entry that goes next before one comes for `key`; `confirmed`: its neighbour was heard. To be asked until there
    /// is none; there is room then if the table [has fewer](Self::entries) than `gc_thresh3`.
    pub(super) fn victim(&self, now: u64, key: Key, confirmed: bool, params: &NeighParams) -> Option<Key> {
        let (dev, ip) = key;
        let table = self.tables.get(&(dev, ip.is_ipv6()))?;
        let oldest = |rank, age| table.oldest(now, rank, age);
        if table.entries >= params.gc_thresh3 {
            let answer_time = if confirmed { 0 } else { ANSWER_TIME };
            let room_for_it = confirmed || table.unconfirmed < params.gc_thresh3.div_ceil(UNCONFIRMED_SHARE);
            let used =
                || oldest(Rank::Stale, FORCED_GC_AGE).or_else(|| oldest(Rank::Reachable, FORCED_GC_AGE));
            let unconfirmed = oldest(Rank::Failed, 0).or_else(|| oldest(Rank::Incomplete, answer_time));
            if let Some(key) = unconfirmed.or_else(|| used().filter(|_| room_for_it)) {
                return Some(key);
            }
        }
        if table.entries >= params.gc_thresh2 {
            // Unconfirmed entries do not count against the confirmed ones: else a scan would have these collected.
            let crowded = table.entries - table.unconfirmed >= params.gc_thresh2;
            let failed = oldest(Rank::Failed, params.retrans_time);
            let old = failed.or_else(|| oldest(Rank::Stale, FORCED_GC_AGE).filter(|_| crowded));
            if old.is_some() {
                return old;
            }
        }
        if table.entries >= params.gc_thresh1 {
            // Their deadline came when there were few.
            let unused = |rank| oldest(rank, params.gc_stale_time);
            return unused(Rank::Failed).or_else(|| unused(Rank::Stale));
        }
        None
    }
}
