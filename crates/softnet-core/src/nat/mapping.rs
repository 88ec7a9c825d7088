//! Mappings: which external endpoint stands for an internal one, whatever it speaks to (RFC 4787
//! REQ-1, RFC 5382 REQ-1).
//!
//! A mapping lives as long as a connection holds it. Any thread looks one up from either side and
//! takes hold of it; threads that may make one for the same internal endpoint do that in turn, see
//! [`Conntrack::own`](crate::conntrack::Conntrack). Invariant: a mapping that is held does not
//! change; the thread that lets go of it last takes it out of the index, gives its port back, and
//! frees it. An external address has a number as long as rules name it or a port of it is taken;
//! another one gets the number then, and the ports' memory with it.

use std::hash::Hasher;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::blocks::Blocks;
use super::ports::PortSet;
use crate::conntrack::{FreeList, Index};
use crate::fold::FoldKey;
use crate::memory::TableMemory;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// External addresses that rules may have.
pub const MAX_ADDRESSES: usize = 256;

/// Sets of ports that there can be: those of earlier rules' addresses stay until their connections
/// have ended.
const SETS: usize = 2 * MAX_ADDRESSES;

/// The number of an external address.
pub(super) type Number = u16;

/// External addresses that stand for the sources of what leaves by one device.
#[derive(Default)]
pub(super) struct Pool {
    /// Their numbers.
    pub(super) numbers: Box<[Number]>,
    /// Which of their ports are whose; `None`: any are.
    pub(super) blocks: Option<Blocks>,
}

impl Pool {
    /// Whether inside host `host` may have `port` of the address with this number.
    pub(super) fn allows(&self, number: Number, host: u32, port: u16) -> bool {
        let nth = self.numbers.iter().position(|own| *own == number);
        nth.is_some_and(|nth| self.blocks.is_none_or(|blocks| blocks.is_of(nth, port, host)))
    }

    /// Whether there are blocks of ports, and `host` has none: what is made here leaves as it is then.
    pub(super) fn has_no_block(&self, host: u32) -> bool {
        self.blocks.is_some_and(|blocks| !blocks.has(host))
    }
}

/// Which side of a mapping an endpoint is on; the lowest bit of an identifier in the index.
#[derive(Clone, Copy, PartialEq)]
#[repr(u32)]
enum Side {
    Internal = 0,
    External,
}

/// One mapping.
struct Mapping {
    /// Connections that hold it; 0: it is free.
    holds: AtomicU32,
    /// Addresses of both sides.
    addrs: [AtomicU32; 2],
    /// Ports of both sides.
    ports: AtomicU32,
    /// The protocol, and above it the number of the external address.
    meta: AtomicU32,
    /// Link of the free list.
    next: AtomicU32,
}

#[cfg(not(feature = "loom"))]
const _: () = assert!(size_of::<Mapping>() == 24);

/// An endpoint: address and port.
pub(super) type Endpoint = (u32, u16);

/// A mapping that is held, and the endpoint on its other side.
pub(super) struct Held {
    pub(super) index: u32,
    pub(super) other: Endpoint,
}

/// Why an internal endpoint has no external one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoMapping {
    /// All ports are in use.
    Ports,
    /// The table of mappings is full.
    Full,
}

/// See the [module](self).
pub(super) struct Mappings {
    mappings: Box<[Mapping]>,
    index: Index,
    free: FreeList,
    key: FoldKey,
    /// Ports of external addresses, by number.
    sets: Box<[OnceLock<PortSet>]>,
    /// For each number, how often rules name its address.
    named: Mutex<Box<[u32]>>,
    made: AtomicU64,
    ended: AtomicU64,
    exhausted: AtomicU64,
}

impl Mappings {
    /// For `capacity` mappings.
    pub(super) fn new(capacity: u32, key: FoldKey, memory: &impl TableMemory) -> Self {
        let mapping = || Mapping {
            holds: AtomicU32::new(0),
            addrs: [0; 2].map(AtomicU32::new),
            ports: AtomicU32::new(0),
            meta: AtomicU32::new(0),
            next: AtomicU32::new(0),
        };
        Mappings {
            mappings: memory.filled(capacity as usize, mapping),
            index: Index::new(2 * capacity, memory),
            free: FreeList::new(capacity),
            key,
            sets: (0..SETS).map(|_| OnceLock::new()).collect(),
            named: Mutex::new(vec![0; SETS].into()),
            made: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            exhausted: AtomicU64::new(0),
        }
    }

    /// Bytes that it takes, but for the ports of its addresses.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.mappings) + self.index.bytes()
    }

    /// Mappings that there are, and times that no port was free for one.
    pub(super) fn counts(&self) -> (u64, u64) {
        let [made, ended, exhausted] =
            [&self.made, &self.ended, &self.exhausted].map(|counter| counter.load(Ordering::Relaxed));
        (made.saturating_sub(ended), exhausted)
    }

    /// The number of external address `addr`, which gets one if it has none; `None` if there are
    /// too many. It is that address' until it was [given back](Self::unname) as often as it was asked
    /// for, and all its ports are free.
    pub(super) fn name(&self, addr: u32) -> Option<Number> {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |at: usize| self.sets[at].get();
        let own = (0..SETS).find(|at| of(*at).is_some_and(|set| set.addr() == addr));
        // No thread claims a port of what no rules name, so that it stays idle.
        let idle = || (0..SETS).find(|at| named[*at] == 0 && of(*at).is_none_or(PortSet::is_idle));
        let at = own.or_else(idle)?;
        named[at] += 1;
        let set = self.sets[at].get_or_init(|| PortSet::new(addr));
        if own.is_none() {
            set.move_to(addr);
        }
        Number::try_from(at).ok()
    }

    /// Gives back a number.
    pub(super) fn unname(&self, number: Number) {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = named.get_mut(usize::from(number)) {
            *times = times.saturating_sub(1);
        }
    }

    /// The ports of external address `number`.
    pub(super) fn ports(&self, number: Number) -> Option<&PortSet> {
        self.sets.get(usize::from(number))?.get()
    }

    /// The ports of external address `addr`.
    pub(super) fn ports_of(&self, addr: u32) -> Option<&PortSet> {
        self.sets.iter().filter_map(OnceLock::get).find(|set| set.addr() == addr)
    }

    fn hash(&self, protocol: u8, (addr, port): Endpoint, side: Side) -> u64 {
        let rest = u64::from(port) << 16 | u64::from(protocol) << 8 | side as u64;
        self.key.hash(|hasher| hasher.write_u64(u64::from(addr) << 32 | rest))
    }

    fn link(&self, index: u32) -> &AtomicU32 {
        &self.mappings[index as usize].next
    }

    /// Takes hold of mapping `index`, unless it ended.
    fn hold(&self, index: u32) -> Option<&Mapping> {
        let mapping = self.mappings.get(index as usize)?;
        let mut holds = mapping.holds.load(Ordering::Relaxed);
        while holds > 0 {
            match mapping.holds.compare_exchange_weak(holds, holds + 1, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return Some(mapping),
                Err(now) => holds = now,
            }
        }
        None
    }

    /// Lets go of mapping `index`.
    pub(super) fn release(&self, index: u32) {
        let Some(mapping) = self.mappings.get(index as usize) else { return };
        if mapping.holds.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let ([internal, external], protocol, number) = mapping.ends();
        self.index.remove(self.hash(protocol, internal, Side::Internal), 2 * index);
        self.index.remove(self.hash(protocol, external, Side::External), 2 * index + 1);
        if let Some(ports) = self.ports(number) {
            ports.release(protocol, external.1);
        }
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.free.push(index, |i| self.link(i));
    }

    /// The mapping of this external endpoint, held.
    pub(super) fn of_external(&self, protocol: u8, external: Endpoint) -> Option<Held> {
        self.find(protocol, external, Side::External, |_, _| true)
    }

    /// The mapping of `endpoint` on one side that is `wanted`: by an address with this number, and with
    /// this endpoint on the other side. It is held then.
    fn find(
        &self,
        protocol: u8,
        endpoint: Endpoint,
        side: Side,
        wanted: impl Fn(Number, Endpoint) -> bool,
    ) -> Option<Held> {
        let mut found = None;
        self.index.find(self.hash(protocol, endpoint, side), |id| {
            let index = id >> 1;
            if id & 1 != side as u32 {
                return false;
            }
            let Some(mapping) = self.hold(index) else { return false };
            let (ends, of, number) = mapping.ends();
            let other = ends[1 - side as usize];
            if of != protocol || ends[side as usize] != endpoint || !wanted(number, other) {
                self.release(index);
                return false;
            }
            found = Some(Held { index, other });
            true
        });
        found
    }

    /// The mapping of this internal endpoint, held: made, if there is none, with a port of one of
    /// `pool`. The first address that it tries is the same for all of an internal address (RFC
    /// 4787 REQ-2). One of them that is the internal address itself, as of what is sent here, is
    /// mapped to itself if it can be. `random` is asked for a random number.
    pub(super) fn of_internal(
        &self,
        protocol: u8,
        internal: Endpoint,
        pool: &Pool,
        random: impl FnOnce() -> u64,
    ) -> Result<Held, NoMapping> {
        // One by an address, or in another host's block, that is no more wanted ends with its connections.
        let wanted = |number, external: Endpoint| pool.allows(number, internal.0, external.1);
        if let Some(held) = self.find(protocol, internal, Side::Internal, wanted) {
            return Ok(held);
        }
        let index = self.free.pop(|i| self.link(i)).ok_or(NoMapping::Full)?;
        let Some((number, external)) = self.claim(protocol, internal, pool, random()) else {
            self.free.push(index, |i| self.link(i));
            self.exhausted.fetch_add(1, Ordering::Relaxed);
            return Err(NoMapping::Ports);
        };
        match self.enter(index, protocol, internal, (number, external)) {
            true => Ok(Held { index, other: external }),
            false => Err(NoMapping::Full),
        }
    }

    /// Both endpoints of mapping `index`, which is held; `None` if it is none.
    pub(super) fn ends_of(&self, index: u32) -> Option<[Endpoint; 2]> {
        Some(self.mappings.get(index as usize)?.ends().0)
    }

    /// A mapping that another process had, held: made, if there is none, and its port is free here.
    pub(super) fn take_over(&self, protocol: u8, internal: Endpoint, external: Endpoint) -> Option<u32> {
        let wanted = |_, other| other == external;
        if let Some(held) = self.find(protocol, internal, Side::Internal, wanted) {
            return Some(held.index);
        }
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let of =
            |at: &usize| named[*at] > 0 && self.sets[*at].get().is_some_and(|set| set.addr() == external.0);
        let number = (0..SETS).find(of).and_then(|at| Number::try_from(at).ok())?;
        drop(named);
        let index = self.free.pop(|i| self.link(i))?;
        if !self.ports(number).is_some_and(|set| set.claim(protocol, external.1)) {
            self.free.push(index, |i| self.link(i));
            return None;
        }
        self.enter(index, protocol, internal, (number, external)).then_some(index)
    }

    /// Fills mapping `index`, which is free, and is held then. Whether there was room for it.
    fn enter(
        &self,
        index: u32,
        protocol: u8,
        internal: Endpoint,
        (number, external): (Number, Endpoint),
    ) -> bool {
        self.mappings[index as usize].fill(protocol, internal, external, number);
        let hashes =
            [self.hash(protocol, internal, Side::Internal), self.hash(protocol, external, Side::External)];
        self.made.fetch_add(1, Ordering::Relaxed);
        let entered = self.index.insert(hashes[1], 2 * index + 1) && self.index.insert(hashes[0], 2 * index);
        if !entered {
            // Takes out what went in.
            self.release(index);
        }
        entered
    }

    /// Claims an external endpoint for `internal`: its address' number, and itself.
    fn claim(
        &self,
        protocol: u8,
        internal: Endpoint,
        pool: &Pool,
        random: u64,
    ) -> Option<(Number, Endpoint)> {
        /// Addresses that are tried: a packet must not make softnet look through all ports of many.
        const TRIES: usize = 4;
        let ((addr, port), addresses) = (internal, &pool.numbers);
        if let Some(blocks) = pool.blocks {
            let (nth, words) = blocks.words_of(addr)?;
            let number = *addresses.get(nth)?;
            let set = self.ports(number)?;
            let port = set.claim_of(protocol, &words, port, random)?;
            return Some((number, (set.addr(), port)));
        }
        let sets = || addresses.iter().filter_map(|number| Some((*number, self.ports(*number)?)));
        if let Some((number, own)) = sets().find(|(_, set)| set.addr() == addr) {
            let port =
                if own.claim(protocol, port) { Some(port) } else { own.claim_for(protocol, port, random) };
            return Some((number, (addr, port?)));
        }
        let n = addresses.len().max(1) as u64;
        let paired = self.key.hash(|hasher| hasher.write_u64(addr.into()));
        let first = (((paired >> 32) * n) >> 32) as usize;
        sets().cycle().skip(first).take(TRIES.min(n as usize)).find_map(|(number, set)| {
            let port = set.claim_for(protocol, port, random)?;
            Some((number, (set.addr(), port)))
        })
    }
}

impl Mapping {
    /// Internal and external endpoint, protocol, and the number of the external address. Of one
    /// mapping while it is held.
    fn ends(&self) -> ([Endpoint; 2], u8, Number) {
        let addr = |side: usize| self.addrs[side].load(Ordering::Relaxed);
        let (ports, meta) = (self.ports.load(Ordering::Relaxed), self.meta.load(Ordering::Relaxed));
        let ends = [(addr(0), (ports >> 16) as u16), (addr(1), ports as u16)];
        (ends, meta as u8, (meta >> 8) as Number)
    }

    fn fill(&self, protocol: u8, internal: Endpoint, external: Endpoint, number: Number) {
        self.addrs[0].store(internal.0, Ordering::Relaxed);
        self.addrs[1].store(external.0, Ordering::Relaxed);
        self.ports.store(u32::from(internal.1) << 16 | u32::from(external.1), Ordering::Relaxed);
        self.meta.store(u32::from(number) << 8 | u32::from(protocol), Ordering::Relaxed);
        self.holds.store(1, Ordering::Release);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const UDP: u8 = 17;

    fn mappings(capacity: u32, addresses: &[u32]) -> (Mappings, Pool) {
        let mappings = Mappings::new(
            capacity,
            FoldKey::new([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344]),
            &crate::memory::Heap,
        );
        let numbers = addresses.iter().map(|addr| mappings.name(*addr).unwrap()).collect();
        (mappings, Pool { numbers, blocks: None })
    }

    #[test]
    fn what_another_process_had_is_had_here_if_the_port_is_free() {
        let (mappings, _) = mappings(4, &[100]);
        let index = mappings.take_over(UDP, (1, 5001), (100, 777)).unwrap();
        assert_eq!(mappings.take_over(UDP, (1, 5001), (100, 777)), Some(index), "held twice");
        assert_eq!(mappings.ends_of(index), Some([(1, 5001), (100, 777)]));
        assert_eq!(mappings.of_external(UDP, (100, 777)).map(|held| held.other), Some((1, 5001)));
        assert_eq!(mappings.take_over(UDP, (2, 5001), (100, 777)), None, "another's port");
        assert_eq!(mappings.take_over(UDP, (2, 5001), (101, 777)), None, "no address of the rules");
        (0..3).for_each(|_| mappings.release(index));
        assert!(mappings.of_external(UDP, (100, 777)).is_none());
        assert!(mappings.take_over(UDP, (2, 5001), (100, 777)).is_some());
    }

    #[test]
    fn an_endpoint_has_one_mapping_as_long_as_it_is_held() {
        let (mappings, pool) = mappings(4, &[100, 200]);
        let first = mappings.of_internal(UDP, (1, 5001), &pool, || 3).unwrap_or_else(|_| panic!());
        assert!(first.other.1 % 2 == 1 && pool.numbers.len() == 2);
        let again =
            mappings.of_internal(UDP, (1, 5001), &pool, || unreachable!()).unwrap_or_else(|_| panic!());
        assert_eq!((again.index, again.other), (first.index, first.other));
        let found = mappings.of_external(UDP, first.other).unwrap();
        assert_eq!((found.index, found.other), (first.index, (1, 5001)));
        assert!(mappings.of_external(6, first.other).is_none());
        (0..3).for_each(|_| mappings.release(first.index));
        assert!(mappings.of_external(UDP, first.other).is_none());
        assert_eq!(mappings.counts(), (0, 0));
        assert!(pool.numbers.iter().all(|number| mappings.ports(*number).unwrap().in_use(UDP) == 0));
    }

    /// All mappings of a host have one external address, while that has ports.
    #[test]
    fn an_address_is_paired() {
        let (mappings, pool) = mappings(1 << 17, &[100, 200, 300]);
        let of =
            |host: u32, port: u16| mappings.of_internal(UDP, (host, port), &pool, || u64::from(port) << 40);
        let addrs: HashSet<u32> = (0..40)
            .map(|host| {
                let all: HashSet<u32> =
                    (2000..2020).map(|port| of(host, port).unwrap_or_else(|_| panic!()).other.0).collect();
                assert_eq!(all.len(), 1);
                all.into_iter().next().unwrap()
            })
            .collect();
        assert_eq!(addrs.len(), 3, "and hosts are spread over all");
    }

    #[test]
    fn what_is_sent_here_keeps_its_port_if_it_can() {
        let (mappings, pool) = mappings(8, &[100]);
        let own = mappings.of_internal(UDP, (100, 5000), &pool, || 0).unwrap_or_else(|_| panic!());
        assert_eq!(own.other, (100, 5000));
        let (mappings, pool) = self::mappings(8, &[100]);
        assert!(mappings.ports(pool.numbers[0]).unwrap().claim(UDP, 5000));
        let other = mappings.of_internal(UDP, (100, 5000), &pool, || 0).unwrap_or_else(|_| panic!());
        assert!(other.other.0 == 100 && other.other.1 != 5000);
    }

    /// A number is another address' once no rules name the address and none of its ports is taken.
    #[test]
    fn a_number_is_given_back() {
        let (mappings, pool) = mappings(8, &[100, 200]);
        let one = Pool { numbers: pool.numbers[..1].into(), blocks: None };
        let held = mappings.of_internal(UDP, (1, 5001), &one, || 3).unwrap_or_else(|_| panic!());
        pool.numbers.iter().for_each(|number| mappings.unname(*number));
        let all: HashSet<Number> = (1000..2000).map_while(|addr| mappings.name(addr)).collect();
        assert!(all.len() == SETS - 1 && !all.contains(&pool.numbers[0]) && all.contains(&pool.numbers[1]));
        assert_eq!(mappings.of_external(UDP, held.other).map(|held| held.other), Some((1, 5001)));
        (0..2).for_each(|_| mappings.release(held.index));
        assert_eq!(mappings.name(3000), Some(pool.numbers[0]));
        assert!(mappings.ports_of(100).is_none());
        let own = mappings.of_internal(UDP, (1, 5001), &one, || 3).unwrap_or_else(|_| panic!());
        assert_eq!(own.other.0, 3000);
        // One that is named twice is given back twice.
        assert_eq!((mappings.name(3000), mappings.name(4000)), (Some(pool.numbers[0]), None));
        mappings.release(own.index);
        mappings.unname(pool.numbers[0]);
        assert_eq!(mappings.name(4000), None);
        mappings.unname(pool.numbers[0]);
        assert_eq!(mappings.name(4000), Some(pool.numbers[0]));
    }

    #[test]
    fn exhaustion_is_counted() {
        let (few, pool) = mappings(2, &[100]);
        assert!((0..2).all(|port| few.of_internal(UDP, (1, 2000 + port), &pool, || 0).is_ok()));
        assert_eq!(few.of_internal(UDP, (1, 3000), &pool, || 0).err(), Some(NoMapping::Full));
        let (many, pool) = mappings(1 << 17, &[100]);
        let made = (0..70_000u32).filter(|n| many.of_internal(UDP, (*n, 3000), &pool, || 0).is_ok()).count();
        assert_eq!((made, many.counts()), (65_536 - 1024, (65_536 - 1024, 70_000 - made as u64)));
        assert_eq!(
            many.of_internal(UDP, (80_000, 3000), &Pool::default(), || 0).err(),
            Some(NoMapping::Ports)
        );
    }

    proptest! {
        /// External endpoints are distinct, and each leads back, whatever was made and let go
        /// before.
        #[test]
        fn mappings_are_one_to_one(steps in prop::collection::vec((any::<bool>(), 0u32..4, 1u16..12), 1..120)) {
            let (mappings, pool) = mappings(16, &[100, 200]);
            let mut model: Vec<(Endpoint, Held)> = Vec::new();
            for (n, (make, host, port)) in steps.into_iter().enumerate() {
                let internal = (host, port);
                if make {
                    match mappings.of_internal(UDP, internal, &pool, || (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
                        Ok(held) => model.push((internal, held)),
                        Err(why) => prop_assert_eq!(why, NoMapping::Full),
                    }
                } else if let Some(at) = model.iter().position(|(of, _)| *of == internal) {
                    mappings.release(model.swap_remove(at).1.index);
                }
                let pairs: HashSet<_> = model.iter().map(|(internal, held)| (*internal, held.other)).collect();
                let externals: HashSet<_> = pairs.iter().map(|(_, external)| *external).collect();
                let internals: HashSet<_> = pairs.iter().map(|(internal, _)| *internal).collect();
                prop_assert_eq!((externals.len(), internals.len()), (pairs.len(), pairs.len()));
                prop_assert_eq!(mappings.counts().0, pairs.len() as u64);
                for (internal, external) in pairs {
                    let held = mappings.of_external(UDP, external).unwrap();
                    prop_assert_eq!(held.other, internal);
                    mappings.release(held.index);
                }
            }
        }
    }
}
