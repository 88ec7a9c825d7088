//! The routes: all that there are, from whichever source, and which of them packets follow. What a
//! FIB is built from, how it is kept up to date, and what is shown.
//!
//! Behind a lock of the stack's ([`Routes`](super::routes::Routes)), for the control side. A prefix
//! may have several routes: own addresses go first, then lower metrics, then what is configured
//! before what the kernel has. A route that no packet can leave by gives way to the next one.
//!
//! Invariant: what was published is what [`best`](RibOf::best) says, but for changes that are
//! [pending](RibOf::is_changed).

mod buckets;
mod paths;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Bound;
use std::sync::Arc;

use softnet_core::ip::fib_twins::{Change, FibTwins};
use softnet_core::ip::iface::Iface;
use softnet_core::ip::tables::Routing;
use softnet_core::ip::{Family, FibError, IpPrefix, LongestMatch, Prefix};
use softnet_dev::hugepage::HugePages;

use paths::Paths;
pub(crate) use paths::{Gateways, Hop, Path};

/// Where a route is from: what is lower goes first at the same metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Source(pub u8);

impl Source {
    /// Own addresses and their networks.
    pub(crate) const OWN: Source = Source(0);
    /// Changes by hand, while the stack runs.
    pub(crate) const MANUAL: Source = Source(1);
    /// The configuration.
    pub(crate) const STATIC: Source = Source(2);

    /// What zebra tells of the tables that are followed comes behind what the kernel has of them.
    const FPM: Source = Source(128);

    /// The kernel's tables that are followed, in their order.
    pub(crate) fn kernel(table: usize) -> Source {
        Source(3 + table.min(120) as u8)
    }

    /// The same tables as zebra has them.
    pub(crate) fn fpm(table: usize) -> Source {
        Source(Source::FPM.0 + table.min(120) as u8)
    }

    /// Whether zebra told it.
    pub(crate) fn is_fpm(self) -> bool {
        self >= Source::FPM
    }

    /// Whether softnet's user set it.
    pub(crate) fn is_configured(self) -> bool {
        self == Source::MANUAL || self == Source::STATIC
    }

    /// Whether it is followed: one of the kernel's or of zebra's.
    pub(crate) fn is_followed(self) -> bool {
        self >= Source::kernel(0)
    }
}

/// A route without its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    path: u32,
    metric: u32,
    source: Source,
    /// The kernel's number of what made it.
    protocol: u8,
    /// The dump that it was seen in last.
    seen: u8,
    /// Its path is all next hops that the kernel has of its kind, see [`Place::Siblings`].
    siblings: bool,
}

/// The routes of a prefix, in the order in which they are used. Nearly all have one.
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "a prefix with one route, as nearly all have, takes 16 bytes")]
enum Entries {
    One(Entry),
    Many(Box<Vec<Entry>>),
}

const _: () = assert!(size_of::<Entries>() == 16);

impl Entries {
    fn all(&self) -> &[Entry] {
        match self {
            Entries::One(entry) => std::slice::from_ref(entry),
            Entries::Many(all) => all,
        }
    }

    fn of(mut all: Vec<Entry>) -> Option<Entries> {
        match all.len() {
            0 => None,
            1 => all.pop().map(Entries::One),
            _ => Some(Entries::Many(Box::new(all))),
        }
    }
}

/// How a route stands to others of its prefix, source and metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the place of the first one that is not of siblings, or else of the first.
    Replace,
    /// Before them.
    First,
    /// Behind them.
    Last,
    /// IPv6's next hops of one metric, which the kernel joins and tells all of whenever one comes: in the place of those
    /// that were told before. If there are none: in the place of the first route if `replace` says so, else behind all.
    Siblings {
        /// The kernel has replaced the first one.
        replace: bool,
    },
    /// A list has it: behind those which that had before, and before all others.
    Listed {
        /// It is as [`Place::Siblings`] are.
        siblings: bool,
    },
}

/// A route.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Route<P = IpPrefix> {
    /// Destinations.
    pub prefix: P,
    /// What becomes of them.
    pub path: Path,
    /// Lower ones go first.
    pub metric: u32,
    /// Where it is from.
    pub source: Source,
    /// The kernel's number of what made it (`rtm_protocol`), 0 if it is not the kernel's.
    pub protocol: u8,
}

impl<A: Family> Route<Prefix<A>> {
    /// The same among those of both families.
    fn any(self) -> Route {
        let Route { prefix, path, metric, source, protocol } = self;
        Route { prefix: prefix.any(), path, metric, source, protocol }
    }
}

/// Prefixes that may come or go before it is looked whether a table is loose.
const LOOSE: usize = 1 << 14;

/// The routes of one family.
pub(crate) struct RibOf<A: Family> {
    table: BTreeMap<Prefix<A>, Entries>,
    routes: usize,
    paths: Paths,
    /// `None` until the FIB was first built.
    twins: Option<FibTwins<A>>,
    changes: Vec<Change<A>>,
    /// Number of the dump that is read, or was last.
    dump: u8,
    /// Routes that had no room in the FIB.
    refused: u64,
    /// Prefixes that came or went since the table was packed.
    moved: usize,
}

impl<A: Family> Default for RibOf<A> {
    fn default() -> Self {
        RibOf {
            table: BTreeMap::new(),
            routes: 0,
            paths: Paths::default(),
            twins: None,
            changes: Vec::new(),
            dump: 0,
            refused: 0,
            moved: 0,
        }
    }
}

impl<A: Family> RibOf<A> {
    /// Adds a route. One that is there already, path included, is not added again; see [`Place`] for others.
    pub(crate) fn insert(&mut self, route: &Route<Prefix<A>>, place: Place) {
        let Route { prefix, metric, source, protocol, .. } = *route;
        let before = self.best(prefix);
        let mut all = self.table.get(&prefix).map_or_else(Vec::new, |entries| entries.all().to_vec());
        let siblings = matches!(place, Place::Siblings { .. } | Place::Listed { siblings: true });
        let alike = |entry: &Entry| (entry.metric, entry.source) == (metric, source);
        let kin = |entry: &Entry| alike(entry) && entry.siblings == siblings;
        let first = all.iter().position(alike);
        let like = first.map(|at| all[at].path);
        let path = self.paths.acquire(&route.path, like);
        let entry = Entry { path, metric, source, protocol, seen: self.dump, siblings };
        let same = all.iter().position(|other| alike(other) && other.path == path);
        let of_kind = all.iter().position(kin);
        // In its place as well: one that is told again is no other one.
        let instead = same.or(match place {
            Place::Replace | Place::Siblings { replace: true } => of_kind.or(first),
            Place::Siblings { replace: false } | Place::Listed { siblings: true } => of_kind,
            Place::First | Place::Last | Place::Listed { siblings: false } => None,
        });
        let listed = matches!(place, Place::Listed { .. });
        let key = |entry: &Entry| (entry.source != Source::OWN, entry.metric, entry.source);
        let old = match instead {
            Some(at) if listed => Some(all.remove(at)),
            Some(at) => Some(std::mem::replace(&mut all[at], entry)),
            None => None,
        };
        if listed || old.is_none() {
            let at = match place {
                Place::First => all.partition_point(|other| key(other) < key(&entry)),
                Place::Listed { .. } => {
                    let dump = self.dump;
                    let told = all.iter().rposition(|other| alike(other) && other.seen == dump);
                    told.map_or_else(|| all.partition_point(|other| key(other) < key(&entry)), |at| at + 1)
                }
                _ => all.partition_point(|other| key(other) <= key(&entry)),
            };
            all.insert(at, entry);
        }
        self.routes += usize::from(old.is_none());
        self.set(prefix, all);
        self.changed(prefix, before);
        old.iter().for_each(|old| self.paths.release(old.path));
    }

    /// Takes away the first route of `prefix` for which `is` holds. Whether there was one.
    pub(crate) fn remove(&mut self, prefix: Prefix<A>, is: impl Fn(u32, Source, &Path) -> bool) -> bool {
        let Some(entries) = self.table.get(&prefix) else { return false };
        let of = |entry: &Entry| is(entry.metric, entry.source, &self.paths.get(entry.path));
        let Some(at) = entries.all().iter().position(of) else { return false };
        let before = self.best(prefix);
        let mut all = entries.all().to_vec();
        let gone = all.remove(at);
        self.set(prefix, all);
        self.routes -= 1;
        self.changed(prefix, before);
        self.paths.release(gone.path);
        true
    }

    /// Has the first route of `prefix` for which `to` says a path lead there.
    pub(crate) fn replace_path(
        &mut self,
        prefix: Prefix<A>,
        to: impl Fn(u32, Source, &Path) -> Option<Path>,
    ) {
        let Some(entries) = self.table.get(&prefix) else { return };
        let before = self.best(prefix);
        let mut all = entries.all().to_vec();
        let of = |entry: &Entry| to(entry.metric, entry.source, &self.paths.get(entry.path));
        let Some((at, path)) = all.iter().enumerate().find_map(|(at, entry)| Some((at, of(entry)?))) else {
            return;
        };
        let old = all[at].path;
        all[at].path = self.paths.acquire(&path, Some(old));
        self.set(prefix, all);
        self.changed(prefix, before);
        self.paths.release(old);
    }

    /// A dump begins: what is inserted from now on is seen in it.
    pub(crate) fn begin_dump(&mut self) {
        self.dump = self.dump.wrapping_add(1);
    }

    /// The dump is complete: takes away the routes that are followed and were not seen.
    pub(crate) fn sweep(&mut self) {
        let dump = self.dump;
        let gone = |entry: &Entry| entry.source.is_followed() && entry.seen != dump;
        let stale: Vec<Prefix<A>> = self
            .table
            .iter()
            .filter(|(_, entries)| entries.all().iter().any(gone))
            .map(|(prefix, _)| *prefix)
            .collect();
        for prefix in stale {
            let before = self.best(prefix);
            let Some(entries) = self.table.get(&prefix) else { continue };
            let (old, kept): (Vec<Entry>, Vec<Entry>) = entries.all().iter().partition(|entry| gone(entry));
            self.set(prefix, kept);
            self.routes -= old.len();
            self.changed(prefix, before);
            old.iter().for_each(|entry| self.paths.release(entry.path));
        }
    }

    /// Has `all` be the routes of a prefix, in their order.
    fn set(&mut self, prefix: Prefix<A>, all: Vec<Entry>) {
        let moved = match Entries::of(all) {
            Some(entries) => self.table.insert(prefix, entries).is_none(),
            None => self.table.remove(&prefix).is_some(),
        };
        self.moved += usize::from(moved);
    }

    /// The path that packets to `prefix` follow by its own routes.
    fn best(&self, prefix: Prefix<A>) -> Option<u32> {
        self.table.get(&prefix).map(|entries| self.first_usable(entries))
    }

    fn first_usable(&self, entries: &Entries) -> u32 {
        let all = entries.all();
        let usable = all.iter().find(|entry| self.paths.is_usable(entry.path));
        // If none can be used, packets are dropped by the first, as its device says.
        usable.or(all.first()).map_or(0, |entry| entry.path)
    }

    /// Notes a change of the FIB, if the best route of `prefix` is another one than before.
    fn changed(&mut self, prefix: Prefix<A>, before: Option<u32>) {
        let now = self.best(prefix);
        if self.twins.is_none() || now == before {
            return;
        }
        let (of_len, nexthop) = match now {
            Some(path) => (prefix.len(), path),
            None => self.cover(prefix).map_or((0, 0), |(cover, path)| (cover.len(), path)),
        };
        self.changes.push(Change { prefix, of_len, nexthop });
    }

    /// The longest prefix that `prefix` is in, itself aside, and its path.
    fn cover(&self, prefix: Prefix<A>) -> Option<(Prefix<A>, u32)> {
        let mut len = prefix.len().checked_sub(1)?;
        loop {
            let bound = Prefix::containing(prefix.addr(), len).ok()?;
            let (other, entries) = self.table.range(..=bound).next_back()?;
            if other.contains(prefix.addr()) {
                return Some((*other, self.first_usable(entries)));
            }
            // Whatever covers both is not longer than what they have in common.
            let differ = other.addr().bits() ^ prefix.addr().bits();
            len = (differ.leading_zeros() as u8).wrapping_sub(128 - prefix.addr().width());
        }
    }

    /// A device is there, or not any more.
    pub(crate) fn set_open(&mut self, dev: u16, open: bool) {
        let several = |(prefix, entries): (&Prefix<A>, &Entries)| {
            matches!(entries, Entries::Many(_)).then(|| (*prefix, self.first_usable(entries)))
        };
        let before: Vec<_> = self.table.iter().filter_map(several).collect();
        if self.paths.set_open(dev, open) {
            before.into_iter().for_each(|(prefix, path)| self.changed(prefix, Some(path)));
        }
    }

    /// Builds the FIB of all routes there are, for a stack that starts.
    pub(crate) fn build(&mut self, routing: &mut Routing<A>) -> Result<(), FibError> {
        let all = self.table.iter().map(|(prefix, entries)| (*prefix, self.first_usable(entries)));
        let fib = Arc::new(A::Fib::build_in(&all.collect::<Vec<_>>(), &HugePages)?);
        routing.fib = fib.clone();
        self.paths.publish(routing, &[]);
        self.twins = Some(FibTwins::new(fib));
        Ok(())
    }

    /// Whether [`tidy`](Self::tidy) gives back more than it costs.
    pub(crate) fn is_loose(&self) -> bool {
        self.is_scattered() || self.twins.as_ref().is_some_and(FibTwins::is_loose)
    }

    /// Whether most prefixes are new.
    fn is_scattered(&self) -> bool {
        self.moved > LOOSE.max(self.table.len() / 2)
    }

    /// Gives back memory that a load took. Nodes of a table that grew are hardly more than half full;
    /// those of one that is made at once are full.
    pub(crate) fn tidy(&mut self) {
        if self.is_scattered() {
            self.table = std::mem::take(&mut self.table).into_iter().collect();
            self.moved = 0;
        }
        if let Some(twins) = &mut self.twins {
            twins.tidy(&HugePages);
        }
    }

    /// Whether anything is to be published.
    pub(crate) fn is_changed(&self) -> bool {
        !self.changes.is_empty() || self.paths.is_changed()
    }

    /// Whether that costs no copy of the FIB.
    pub(crate) fn is_ready(&self) -> bool {
        self.changes.is_empty() || self.twins.as_ref().is_some_and(FibTwins::is_ready)
    }

    /// A FIB with all changes; `None` if it is the published one. On an error all of them are still
    /// to be made.
    pub(crate) fn next_fib(&mut self) -> Result<Option<Arc<A::Fib>>, FibError> {
        let Some(twins) = self.twins.as_mut().filter(|_| !self.changes.is_empty()) else { return Ok(None) };
        let mut refused = 0;
        let fib = twins.apply(&mut self.changes, &HugePages, |_, _| refused += 1)?;
        self.refused += refused;
        Ok(Some(fib))
    }

    /// Brings next hops up to date. Returns which gateways came and went.
    pub(crate) fn publish(&mut self, routing: &mut Routing<A>, ifaces: &[Option<Iface>]) -> Gateways {
        self.paths.publish(routing, ifaces)
    }

    /// Up to `n` prefixes behind `after`, each with its routes and which one is used.
    pub(crate) fn rows(&self, after: Option<Prefix<A>>, n: usize) -> Vec<(Route<Prefix<A>>, bool)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.table.range((from, Bound::Unbounded)).take(n);
        range.flat_map(|(prefix, entries)| self.rows_of(*prefix, entries)).collect()
    }

    /// The routes of the longest prefix that `addr` is in.
    pub(crate) fn lookup(&self, addr: A) -> Vec<(Route<Prefix<A>>, bool)> {
        let host = Prefix::host(addr);
        let prefix = match self.table.contains_key(&host) {
            true => Some(host),
            false => self.cover(host).map(|(prefix, _)| prefix),
        };
        prefix.and_then(|prefix| Some(self.rows_of(prefix, self.table.get(&prefix)?))).unwrap_or_default()
    }

    /// The routes of `prefix`, in the order in which they are used.
    fn routes_of(&self, prefix: Prefix<A>) -> Vec<Route> {
        let rows = self.table.get(&prefix).map_or_else(Vec::new, |entries| self.rows_of(prefix, entries));
        rows.into_iter().map(|(route, _)| route.any()).collect()
    }

    /// All routes from `source`.
    fn routes_from(&self, source: Source) -> impl Iterator<Item = Route> {
        let has = move |entries: &Entries| entries.all().iter().any(|entry| entry.source == source);
        let prefixes = self.table.iter().filter(move |(_, entries)| has(entries));
        let rows = prefixes.flat_map(|(prefix, entries)| self.rows_of(*prefix, entries));
        rows.map(|(route, _)| route.any()).filter(move |route| route.source == source)
    }

    fn rows_of(&self, prefix: Prefix<A>, entries: &Entries) -> Vec<(Route<Prefix<A>>, bool)> {
        let used = self.first_usable(entries);
        let mut taken = false;
        let row = |entry: &Entry| {
            let path = self.paths.get(entry.path);
            let Entry { metric, source, protocol, .. } = *entry;
            let is_used = !taken && entry.path == used;
            taken |= is_used;
            (Route { prefix, path, metric, source, protocol }, is_used)
        };
        entries.all().iter().map(row).collect()
    }
}

/// The routes of both families.
#[derive(Default)]
pub(crate) struct Rib {
    /// Those of IPv4.
    pub v4: RibOf<Ipv4Addr>,
    /// Those of IPv6.
    pub v6: RibOf<Ipv6Addr>,
}

impl Rib {
    /// As [`RibOf::insert`].
    pub(crate) fn insert(&mut self, route: &Route, place: Place) {
        let Route { path, metric, source, protocol, .. } = route.clone();
        match (route.prefix.of(), route.prefix.of()) {
            (Some(prefix), _) => self.v4.insert(&Route { prefix, path, metric, source, protocol }, place),
            (_, Some(prefix)) => self.v6.insert(&Route { prefix, path, metric, source, protocol }, place),
            _ => {}
        }
    }

    /// As [`RibOf::remove`].
    pub(crate) fn remove(&mut self, prefix: IpPrefix, is: impl Fn(u32, Source, &Path) -> bool) -> bool {
        match (prefix.of(), prefix.of()) {
            (Some(prefix), _) => self.v4.remove(prefix, is),
            (_, Some(prefix)) => self.v6.remove(prefix, is),
            _ => false,
        }
    }

    /// As [`RibOf::replace_path`].
    pub(crate) fn replace_path(&mut self, prefix: IpPrefix, to: impl Fn(u32, Source, &Path) -> Option<Path>) {
        match (prefix.of(), prefix.of()) {
            (Some(prefix), _) => self.v4.replace_path(prefix, to),
            (_, Some(prefix)) => self.v6.replace_path(prefix, to),
            _ => {}
        }
    }

    /// As [`RibOf::routes_of`].
    pub(crate) fn routes_of(&self, prefix: IpPrefix) -> Vec<Route> {
        match (prefix.of(), prefix.of()) {
            (Some(prefix), _) => self.v4.routes_of(prefix),
            (_, Some(prefix)) => self.v6.routes_of(prefix),
            _ => Vec::new(),
        }
    }

    /// All routes from `source`.
    pub(crate) fn routes_from(&self, source: Source) -> impl Iterator<Item = Route> {
        self.v4.routes_from(source).chain(self.v6.routes_from(source))
    }

    /// As [`RibOf::set_open`].
    pub(crate) fn set_open(&mut self, dev: u16, open: bool) {
        self.v4.set_open(dev, open);
        self.v6.set_open(dev, open);
    }

    /// Whether memory can be given back.
    pub(crate) fn is_loose(&self) -> bool {
        self.v4.is_loose() || self.v6.is_loose()
    }

    /// Gives it back, see [`RibOf::tidy`].
    pub(crate) fn tidy(&mut self) {
        self.v4.tidy();
        self.v6.tidy();
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.v4.routes + self.v6.routes
    }

    /// The gateways, by device and address.
    pub(crate) fn gateways(&self) -> impl Iterator<Item = (u16, IpAddr)> {
        self.v4.paths.gateways().chain(self.v6.paths.gateways())
    }

    /// Times that a FIB was copied as a whole, and routes that had no room in one.
    pub(crate) fn fib_counters(&self) -> [u64; 2] {
        let copies = self.v4.twins.as_ref().map_or(0, FibTwins::copies);
        let copies = copies + self.v6.twins.as_ref().map_or(0, FibTwins::copies);
        [copies, self.v4.refused + self.v6.refused]
    }

    /// Bytes of the FIBs.
    pub(crate) fn fib_bytes(&self) -> usize {
        self.v4.twins.as_ref().map_or(0, FibTwins::bytes) + self.v6.twins.as_ref().map_or(0, FibTwins::bytes)
    }
}
