//! What outlives a change of rules: connections, mappings, ports, and what each host has.
//!
//! Used by the hooks of [`nat`](super), by any thread with a context; shown by the runtime.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::hosts::Hosts;
use super::mapping::{Mappings, Number};
use super::nat64::{Hosts6, is_stand_in};
use crate::conntrack::entry::{Holds, NIL};
use crate::conntrack::{Carried, Conntrack, Timeouts};
use crate::fold::FoldKey;
use crate::memory::TableMemory;
use crate::siphash::SipKey;
use crate::sync::{AtomicU64, Ordering};

/// Mappings that there may be beyond connections: of those that are about to have one, which takes
/// the place of another if the table is full.
const SPARE: u32 = 256;

/// In what a connection holds: its host is one of IPv6.
pub(super) const OF_V6: u32 = 1 << 31;

/// Connections, mappings and ports: what outlives a change of rules.
pub struct NatState {
    pub(super) conntrack: Arc<Conntrack>,
    pub(super) mappings: Mappings,
    pub(super) hosts: Hosts,
    /// Of IPv6, once they are translated.
    hosts6: OnceLock<Hosts6>,
    key6: FoldKey,
    random: SipKey,
    drawn: AtomicU64,
    /// Forwarded ports that mappings are kept from, and by how many versions of the rules.
    claims: Mutex<HashMap<Reserved, u32>>,
}

/// A port of an external address: the number of the address, the protocol, the port.
pub(super) type Reserved = (Number, u8, u16);

/// What was counted of mappings and hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingCounts {
    /// Mappings that there are.
    pub mappings: u64,
    /// Times that no port was free.
    pub exhausted: u64,
    /// Connections that were refused because their inside host has as many as it may.
    pub connlimit: u64,
    /// Inside hosts that have connections, as far as those are counted.
    pub hosts: u32,
    /// The most that one of them has.
    pub most: u32,
}

impl NatState {
    /// For `capacity` connections. The `key` is secret and random: it says where packets' tuples
    /// lie in tables, and which ports are chosen.
    pub fn new(capacity: u32, key: [u64; 4], timeouts: &Timeouts, memory: &impl TableMemory) -> Self {
        let conntrack = Conntrack::new(capacity, FoldKey::new(derived(key, 0)), timeouts, memory);
        Self::on(conntrack.into(), key, memory)
    }

    /// With `conntrack` for its connections, which others may use, too; its key is another one.
    pub fn on(conntrack: Arc<Conntrack>, key: [u64; 4], memory: &impl TableMemory) -> Self {
        let derived = |n| derived(key, n);
        let capacity = conntrack.counts().capacity;
        let mappings = (capacity + SPARE).min(Conntrack::MAX);
        NatState {
            conntrack,
            mappings: Mappings::new(mappings, FoldKey::new(derived(1)), memory),
            hosts: Hosts::new(capacity, FoldKey::new(derived(3))),
            hosts6: OnceLock::new(),
            key6: FoldKey::new(derived(4)),
            random: SipKey::new(derived(2)),
            drawn: AtomicU64::new(0),
            claims: Mutex::default(),
        }
    }

    /// The connections.
    pub fn conntrack(&self) -> &Arc<Conntrack> {
        &self.conntrack
    }

    /// What was counted of mappings and hosts.
    pub fn mapping_counts(&self) -> MappingCounts {
        let (mappings, exhausted) = self.mappings.counts();
        let [of_v4, of_v6] = [self.hosts.census(), self.hosts6().map_or((0, 0), Hosts6::census)];
        let (hosts, most) = (of_v4.0 + of_v6.0, of_v4.1.max(of_v6.1));
        MappingCounts { mappings, exhausted, connlimit: self.hosts.refused(), hosts, most }
    }

    /// Ports of `protocol` in use of an external address; `None` if it is none.
    pub fn ports_in_use(&self, addr: Ipv4Addr, protocol: u8) -> Option<u32> {
        self.mappings.ports_of(addr.to_bits()).map(|set| set.in_use(protocol))
    }

    /// Bytes that connections, mappings and hosts take, all in; external addresses come on top, with 24
    /// KiB each.
    pub fn bytes(&self) -> usize {
        let hosts6 = self.hosts6().map_or(0, Hosts6::bytes);
        self.conntrack.bytes() + self.mappings.bytes() + self.hosts.bytes() + hosts6
    }

    /// Looks at up to `max` entries, and frees those that expired. Returns how many it looked at.
    #[inline]
    pub fn sweep(&self, now: u32, max: usize) -> usize {
        self.conntrack.sweep_with(now, max, |holds| self.release(holds))
    }

    /// Lets go of what a connection held.
    pub(crate) fn release(&self, holds: Holds) {
        if holds.mapping != NIL {
            self.mappings.release(holds.mapping);
        }
        match holds.host {
            NIL => {}
            number if number & OF_V6 == 0 => self.hosts.release(number),
            number => {
                if let Some(hosts) = self.hosts6() {
                    hosts.release(number & !OF_V6);
                }
            }
        }
    }

    /// As [`Conntrack::carry`], with the mappings of connections.
    pub fn carry(&self, now: u32, known: &mut Vec<u32>, mut tell: impl FnMut(&Carried)) {
        self.conntrack.carry_held(now, known, |carried, holds| {
            carried.mapping = self.mappings.ends_of(holds.mapping);
            carried.counted = holds.host != NIL;
            tell(carried);
        });
    }

    /// Makes a connection that another process had, with its mapping, if the rules have the
    /// external address still. Whether there is such a connection now. One that NAT64 translates is
    /// not taken over: what stands for its host here is another address.
    pub fn take_over(&self, now: u32, carried: &Carried) -> bool {
        let [original, _] = carried.tuples;
        if self.conntrack.update(now, carried) {
            return true;
        }
        let is_v4 = !original.is_ipv6();
        if is_v4 && carried.tuples.iter().any(|tuple| is_stand_in(tuple.src().0)) {
            return false;
        }
        let mut holds = Holds::NOTHING;
        if let Some([internal, external]) = carried.mapping {
            match self.mappings.take_over(original.protocol(), internal, external) {
                Some(index) => holds.mapping = index,
                None => return false,
            }
        }
        if carried.counted && is_v4 {
            // It had its place.
            holds.host = self.hosts.count(original.src().0, u32::MAX).unwrap_or(NIL);
        }
        let made = self.conntrack.make(now, carried, holds, |holds| self.release(holds));
        made.inspect_err(|_| self.release(holds)).is_ok()
    }

    /// Keeps mappings from `ports`, as far as none has them. Returns which these are, to be
    /// [given back](Self::unclaim). Versions of the rules that follow each other may both have them.
    pub(super) fn claim(&self, ports: &[Reserved]) -> Vec<Reserved> {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let mut claim = |key: &Reserved| {
            let (number, protocol, port) = *key;
            let free = || self.mappings.ports(number).is_some_and(|ports| ports.claim(protocol, port));
            let claimed = claims.contains_key(key) || free();
            if claimed {
                *claims.entry(*key).or_default() += 1;
            }
            claimed
        };
        ports.iter().copied().filter(|key| claim(key)).collect()
    }

    /// Gives back what was [claimed](Self::claim).
    pub(super) fn unclaim(&self, ports: &[Reserved]) {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        for key in ports {
            let left = claims.get(key).copied().unwrap_or_default().saturating_sub(1);
            if left > 0 {
                claims.insert(*key, left);
            } else if claims.remove(key).is_some()
                && let (number, protocol, port) = *key
                && let Some(ports) = self.mappings.ports(number)
            {
                ports.release(protocol, port);
            }
        }
    }

    /// The hosts of IPv6, if they are translated.
    pub(super) fn hosts6(&self) -> Option<&Hosts6> {
        self.hosts6.get()
    }

    /// Makes room for hosts of IPv6, which are translated from now on.
    pub(super) fn translate_hosts6(&self) {
        self.hosts6.get_or_init(|| Hosts6::new(self.conntrack.counts().capacity, self.key6));
    }

    /// The host of IPv6 that `addr` stands for in a connection; `None` if it is IPv4's own.
    pub fn host6(&self, addr: u32) -> Option<Ipv6Addr> {
        self.hosts6()?.host(addr)
    }

    pub(super) fn draw(&self) -> u64 {
        self.random.hash(&[self.drawn.fetch_add(1, Ordering::Relaxed)])
    }
}

/// Keys of which one does not tell the others. Whatever `key` is: the fast hash needs keys without
/// pattern.
fn derived([a, b, c, d]: [u64; 4], n: u64) -> [u64; 2] {
    [2 * n, 2 * n + 1].map(|n| SipKey::new([a, b]).hash(&[c, d, n]))
}

/// The second of the stack's clock that `now`, in ns, is in.
pub fn seconds(now: u64) -> u32 {
    (now / 1_000_000_000) as u32
}
