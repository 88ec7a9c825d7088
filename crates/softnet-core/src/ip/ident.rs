//! Identifications of datagrams that may be fragmented: different for all that are under way between two hosts, and not
//! to be guessed by others (RFC 7739; the kernel's `__ip_select_ident`).
//!
//! Any thread may call it. A bucket of counters, by a keyed hash of addresses and protocol, where the kernel has one
//! for each pair in the limit: pairs that share one see gaps, which tell them nothing. Where the counter stands is
//! secret, and time that passes moves it by a secret step, so that no host can count another's packets.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::siphash::SipKey;

/// Counters; a power of two.
const BUCKETS: usize = 2048;
const NS_PER_MS: u64 = 1_000_000;

/// See the [module](self).
pub struct Idents {
    key: SipKey,
    buckets: Box<[Bucket]>,
}

#[derive(Default)]
struct Bucket {
    next: AtomicU32,
    /// When the counter was used last, in ms.
    used: AtomicU32,
}

impl Idents {
    /// Counters that stand where `key` says.
    pub fn new(key: SipKey) -> Self {
        let bucket = |i: usize| Bucket {
            next: AtomicU32::new(key.hash(&[i as u64]) as u32),
            used: AtomicU32::default(),
        };
        Idents { key, buckets: (0..BUCKETS).map(bucket).collect() }
    }

    /// The identification of the next datagram from `src` to `dst`, sent at `now` (ns). IPv4 uses its lower half.
    pub fn next(&self, src: IpAddr, dst: IpAddr, protocol: u8, now: u64) -> u32 {
        let [s, d] = [src, dst].map(|addr| match addr {
            IpAddr::V4(addr) => u128::from(addr.to_bits()),
            IpAddr::V6(addr) => addr.to_bits(),
        });
        let words = [(s >> 64) as u64, s as u64, (d >> 64) as u64, d as u64, protocol.into()];
        let hash = self.key.hash(&words);
        let Some(bucket) = self.buckets.get(hash as usize % BUCKETS) else { return hash as u32 };
        // Of several threads in one millisecond, one makes the step.
        let ms = (now / NS_PER_MS) as u32;
        let passed = ms.wrapping_sub(bucket.used.swap(ms, Relaxed));
        let step = match passed {
            0 => 0,
            passed => self.key.hash(&[hash, ms.into()]) as u32 % passed,
        };
        bucket.next.fetch_add(step.wrapping_add(1), Relaxed).wrapping_add(step)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const C: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

    /// No number comes back before the others were used, whatever time does.
    #[test]
    fn no_two_alike_in_a_row() {
        let idents = Idents::new(SipKey::new([1, 2]));
        for (src, dst, protocol) in [(A, B, 17), (B, A, 17), (A, B, 1), (C, C, 17)] {
            let mut seen = std::collections::HashSet::new();
            for i in 0..30_000u64 {
                assert!(seen.insert(idents.next(src, dst, protocol, 7 * NS_PER_MS + i % 3 * 100)));
            }
            // Of IPv4, too.
            let halves: std::collections::HashSet<_> = seen.iter().map(|id| *id as u16).collect();
            assert_eq!(halves.len(), seen.len());
        }
    }

    #[test]
    fn other_keys_hosts_and_times_other_numbers() {
        let first =
            |key: u64, src, ms: u64| Idents::new(SipKey::new([key, 0])).next(src, B, 17, ms * NS_PER_MS);
        let numbers = [first(1, A, 0), first(2, A, 0), first(1, C, 0), first(1, A, 1000)];
        for (i, a) in numbers.iter().enumerate() {
            assert!(numbers[..i].iter().all(|b| b.abs_diff(*a) > 1), "{numbers:?}");
        }
        // How far a counter gets in a minute can't be told from where it was.
        let idents = Idents::new(SipKey::new([1, 2]));
        let steps: std::collections::HashSet<_> = (1..50u64)
            .map(|minute| {
                let before = idents.next(A, B, 17, minute * 60_000 * NS_PER_MS);
                idents.next(A, B, 17, (minute + 1) * 60_000 * NS_PER_MS).wrapping_sub(before)
            })
            .collect();
        assert!(steps.len() > 45 && steps.iter().all(|step| (1..=60_000).contains(step)), "{steps:?}");
    }
}
