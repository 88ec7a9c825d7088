//! The ports of one external address, for each protocol that has any: which are taken, as bits.
//!
//! Any thread claims and releases, without locks. Invariant: a bit is set by the claim that found
//! it clear, and cleared by its holder alone. Ports are chosen at random (RFC 6056), from the half
//! of them that has the parity of the internal port, and from those below 1024 only for one that is
//! (RFC 4787 REQ-3a, REQ-4).

use crate::ip::v4::header::protocol;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Words of 64 ports.
pub(super) const WORDS: usize = 1 << 16 >> 6;
/// Words of the ports below 1024.
pub(super) const LOW: usize = 1024 >> 6;
const EVEN: u64 = 0x5555_5555_5555_5555;

/// See the [module](self).
pub(super) struct PortSet {
    addr: AtomicU32,
    /// TCP, UDP, identifiers of ICMP.
    used: [Box<[AtomicU64]>; 3],
}

/// Which set of ports those of `number` are in.
fn of(number: u8) -> Option<usize> {
    match number {
        protocol::TCP => Some(0),
        protocol::UDP => Some(1),
        protocol::ICMP => Some(2),
        _ => None,
    }
}

impl PortSet {
    pub(super) fn new(addr: u32) -> Self {
        let used = std::array::from_fn(|_| (0..WORDS).map(|_| AtomicU64::new(0)).collect());
        PortSet { addr: AtomicU32::new(addr), used }
    }

    /// The address: the same while rules name it, or a port is taken.
    #[inline]
    pub(super) fn addr(&self) -> u32 {
        self.addr.load(Ordering::Relaxed)
    }

    /// The ports are those of `addr` from now on. No rules name the address before, and no port is taken.
    pub(super) fn move_to(&self, addr: u32) {
        self.addr.store(addr, Ordering::Relaxed);
    }

    /// Whether no port of any protocol is taken.
    pub(super) fn is_idle(&self) -> bool {
        // What other threads read of the address, they read before they gave back its ports.
        self.used.iter().flatten().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// Claims this very port; says whether it was free.
    pub(super) fn claim(&self, number: u8, port: u16) -> bool {
        let Some(used) = of(number).map(|of| &self.used[of]) else { return false };
        let bit = 1 << (port % 64);
        used[usize::from(port / 64)].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Gives back a port that was claimed.
    pub(super) fn release(&self, number: u8, port: u16) {
        if let Some(of) = of(number) {
            self.used[of][usize::from(port / 64)].fetch_and(!(1 << (port % 64)), Ordering::AcqRel);
        }
    }

    /// Claims a port for an endpoint whose own is `port`; `random` chooses it.
    pub(super) fn claim_for(&self, number: u8, port: u16, random: u64) -> Option<u16> {
        let used = &self.used[of(number)?];
        // An identifier is a number like any other.
        let (words, parity) = match number {
            protocol::ICMP => (0..WORDS, u64::MAX),
            _ if port < 1024 => (0..LOW, EVEN << (port & 1)),
            _ => (LOW..WORDS, EVEN << (port & 1)),
        };
        claim_first(used, &words, parity, random)
    }

    /// The same of a block: a port of these `words`, whatever the internal one is.
    pub(super) fn claim_of(
        &self,
        number: u8,
        words: &std::ops::Range<usize>,
        port: u16,
        random: u64,
    ) -> Option<u16> {
        let used = &self.used[of(number)?];
        let parity = if number == protocol::ICMP { u64::MAX } else { EVEN << (port & 1) };
        claim_first(used, words, parity, random)
    }

    /// Ports of `number` in use.
    pub(super) fn in_use(&self, number: u8) -> u32 {
        let words = of(number).map_or(&[][..], |of| &self.used[of]);
        words.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }
}

/// Claims a bit of `parity` in one of `words`, or else another one.
fn claim_first(used: &[AtomicU64], words: &std::ops::Range<usize>, parity: u64, random: u64) -> Option<u16> {
    let claim = |parity| claim_in(used, words.clone(), parity, random);
    claim(parity).or_else(|| if parity == u64::MAX { None } else { claim(!parity) })
}

/// Claims a bit of `wanted` in one of `words`, from a random one on.
fn claim_in(used: &[AtomicU64], words: std::ops::Range<usize>, wanted: u64, random: u64) -> Option<u16> {
    let n = words.len();
    let first = (((random >> 32) * n as u64) >> 32) as usize;
    let turn = random as u32 % 64;
    for nth in 0..n {
        let at = words.start + (first + nth) % n;
        // Port 0 is none.
        let wanted = if at == 0 { wanted & !1 } else { wanted };
        let mut now = used[at].load(Ordering::Relaxed);
        while let free @ 1.. = !now & wanted {
            // The first free one from a random one on.
            let bit = (free.rotate_right(turn).trailing_zeros() + turn) % 64;
            now = used[at].fetch_or(1 << bit, Ordering::AcqRel);
            if now & 1 << bit == 0 {
                return Some((at * 64) as u16 + bit as u16);
            }
        }
    }
    None
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::siphash::SipKey;

    fn random(n: u64) -> u64 {
        SipKey::new([1, 2]).hash(&[n])
    }

    /// Each port once; first those of the same parity, then the others; those of the other range
    /// never.
    #[test]
    fn all_ports_of_a_range_are_claimed_once() {
        for (number, port, range) in [
            (protocol::UDP, 5000, 1024..=65_535),
            (protocol::TCP, 53, 1..=1023),
            (protocol::ICMP, 7, 1..=65_535),
        ] {
            let set = PortSet::new(1);
            let ports: Vec<u16> = (0..).map_while(|n| set.claim_for(number, port, random(n))).collect();
            let distinct: HashSet<u16> = ports.iter().copied().collect();
            assert_eq!((ports.len(), distinct.len()), (range.clone().count(), range.clone().count()));
            assert!(ports.iter().all(|p| range.contains(p)));
            if number != protocol::ICMP {
                let same = range.filter(|p| p % 2 == port % 2).count();
                assert!(ports[..same].iter().all(|p| p % 2 == port % 2));
            }
            assert_eq!(set.in_use(number), ports.len() as u32);
            set.release(number, ports[3]);
            assert_eq!(set.claim_for(number, port, random(9)), Some(ports[3]));
        }
    }

    #[test]
    fn a_port_is_claimed_once_and_by_protocol() {
        let set = PortSet::new(1);
        assert!(
            set.claim(protocol::TCP, 80) && !set.claim(protocol::TCP, 80) && set.claim(protocol::UDP, 80)
        );
        set.release(protocol::TCP, 80);
        assert!(set.claim(protocol::TCP, 80));
        assert!(!set.claim(47, 80) && set.claim_for(47, 80, 1).is_none());
    }

    /// Successive ports tell nothing of the next.
    #[test]
    fn ports_are_spread() {
        let set = PortSet::new(1);
        let ports: Vec<u16> = (0..64).filter_map(|n| set.claim_for(protocol::UDP, 4000, random(n))).collect();
        let near = ports.windows(2).filter(|two| two[0].abs_diff(two[1]) < 256).count();
        assert!(near < 8, "{ports:?}");
    }
}
