//! Hosts of IPv6 under the IPv4 addresses by which this router knows them while their packets are
//! translated: so that connections, mappings and ports are IPv4's alone.
//!
//! The addresses are of 198.18.0.0/15, are on no wire, and are a slot's number each. Any thread takes
//! a slot for a host, counts its connections there, and reads it back, without locks: its word, with
//! how often it was used before, is compared and exchanged. Invariants: a slot is its host's as long
//! as that has connections, and [`IDLE`] seconds after its last packet; a reader that finds the same
//! use before and after it read the address has read one.

use std::hash::Hasher;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::fold::FoldKey;
use crate::ip::Prefix;
use crate::sync::{AtomicU64, Ordering, fence};

/// Slots of which two sets are looked at for an address.
const SET: usize = 8;
/// Seconds after which a slot without connections may be another's: longer than a packet is on its
/// way through a batch.
const IDLE: u32 = 8;
/// The first address, and how many there are at the most.
const FIRST: u32 = 198 << 24 | 18 << 16;
const MAX: usize = 1 << 17;

/// The network of all those addresses.
pub(in crate::nat) fn network() -> Prefix<Ipv4Addr> {
    let first = Ipv4Addr::from_bits(FIRST);
    Prefix::containing(first, 15).unwrap_or(Prefix::host(first))
}

/// Whether `addr` is one of them.
#[inline(always)]
pub(in crate::nat) fn is_stand_in(addr: u32) -> bool {
    addr >> 17 == FIRST >> 17
}

/// A slot's word: its use (8 bits), the second of its last packet (24), connections (32).
#[derive(Clone, Copy, PartialEq)]
struct Word(u64);

impl Word {
    /// In the hands of the thread that writes the address.
    const TAKEN: u32 = u32::MAX;

    fn new(used: u8, stamp: u32, count: u32) -> Self {
        Word(u64::from(used) << 56 | u64::from(stamp & 0xff_ffff) << 32 | u64::from(count))
    }

    fn used(self) -> u8 {
        (self.0 >> 56) as u8
    }

    fn stamp(self) -> u32 {
        (self.0 >> 32) as u32 & 0xff_ffff
    }

    fn count(self) -> u32 {
        self.0 as u32
    }

    /// Whether another host may have it at `now`.
    fn is_free(self, now: u32) -> bool {
        let idle = (now.wrapping_sub(self.stamp()) << 8) as i32 >> 8;
        self.count() == 0 && (self.used() == 0 || idle >= IDLE as i32)
    }
}

struct Slot {
    word: AtomicU64,
    addr: [AtomicU64; 2],
}

impl Slot {
    /// Its host, and the word that says so; `None` if it is no host's now.
    fn read(&self) -> Option<(Ipv6Addr, Word)> {
        let word = Word(self.word.load(Ordering::Acquire));
        let [high, low] = [0, 1].map(|half| self.addr[half].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let again = Word(self.word.load(Ordering::Relaxed));
        let is = word.used() != 0 && word.used() == again.used() && again.count() != Word::TAKEN;
        let addr = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
        (is && word.count() != Word::TAKEN).then_some((addr, again))
    }

    fn exchange(&self, from: Word, to: Word) -> bool {
        self.word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// See the [module](self).
pub(in crate::nat) struct Hosts6 {
    slots: Box<[Slot]>,
    key: FoldKey,
}

/// Why a host has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nat) enum NoStandIn {
    /// Too many hosts speak.
    Full,
    /// Another thread takes a slot at this moment.
    Busy,
    /// It has as many connections as it may.
    Limit,
}

impl Hosts6 {
    /// For so many connections, a quarter as many hosts at the most.
    pub(in crate::nat) fn new(connections: u32, key: FoldKey) -> Self {
        let slots = (connections as usize / 4).next_multiple_of(SET).clamp(8 * SET, MAX);
        let slot = || Slot { word: AtomicU64::new(0), addr: [0; 2].map(AtomicU64::new) };
        Hosts6 { slots: (0..slots).map(|_| slot()).collect(), key }
    }

    pub(in crate::nat) fn bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// Numbers of the slots that a host may be in.
    fn places(&self, addr: Ipv6Addr) -> impl Iterator<Item = usize> {
        let bits = addr.to_bits();
        let hash = self.key.hash(|hasher| {
            hasher.write_u64((bits >> 64) as u64);
            hasher.write_u64(bits as u64);
        });
        let sets = self.slots.len() / SET;
        let at = |half: u64| (((half & 0xffff_ffff) * sets as u64) >> 32) as usize;
        let (first, second) = (at(hash), at(hash >> 32));
        let second = if second == first { (second + 1) % sets } else { second };
        [first, second].into_iter().flat_map(|set| set * SET..(set + 1) * SET)
    }

    /// The IPv4 address that stands for `addr` at `now`.
    pub(in crate::nat) fn stand_in(&self, addr: Ipv6Addr, now: u32) -> Result<u32, NoStandIn> {
        let (mut free, mut taken) = (None, false);
        for number in self.places(addr) {
            let Some(slot) = self.slots.get(number) else { continue };
            match slot.read() {
                Some((of, word)) if of == addr => {
                    let touched = Word::new(word.used(), now, word.count());
                    // If it is another's meanwhile, its time was over.
                    if word.stamp() == touched.stamp() || slot.exchange(word, touched) {
                        return Ok(FIRST + number as u32);
                    }
                    return Err(NoStandIn::Busy);
                }
                _ => {
                    let word = Word(slot.word.load(Ordering::Relaxed));
                    taken |= word.count() == Word::TAKEN;
                    if free.is_none() && word.is_free(now) {
                        free = Some((number, word));
                    }
                }
            }
        }
        // It may be for this host that another thread takes one.
        if taken {
            return Err(NoStandIn::Busy);
        }
        let (number, word) = free.ok_or(NoStandIn::Full)?;
        let used = word.used().wrapping_add(1).max(1);
        let slot = &self.slots[number];
        if !slot.exchange(word, Word::new(used, now, Word::TAKEN)) {
            return Err(NoStandIn::Busy);
        }
        fence(Ordering::Release);
        let bits = addr.to_bits();
        slot.addr[0].store((bits >> 64) as u64, Ordering::Relaxed);
        slot.addr[1].store(bits as u64, Ordering::Relaxed);
        slot.word.store(Word::new(used, now, 0).0, Ordering::Release);
        Ok(FIRST + number as u32)
    }

    /// The host that `stand_in` stands for.
    pub(in crate::nat) fn host(&self, stand_in: u32) -> Option<Ipv6Addr> {
        self.slots.get(stand_in.wrapping_sub(FIRST) as usize)?.read().map(|(addr, _)| addr)
    }

    /// Counts one more connection of the host of `stand_in`, which may have `limit`. Returns what is
    /// to be [released](Self::release) when it ends.
    pub(in crate::nat) fn count(&self, stand_in: u32, limit: Option<u32>) -> Result<u32, NoStandIn> {
        let number = stand_in.wrapping_sub(FIRST);
        let slot = self.slots.get(number as usize).ok_or(NoStandIn::Full)?;
        let (host, _) = slot.read().ok_or(NoStandIn::Busy)?;
        loop {
            let (_, word) = slot.read().filter(|(of, _)| *of == host).ok_or(NoStandIn::Busy)?;
            if limit.is_some_and(|limit| word.count() >= limit) || word.count() + 1 == Word::TAKEN {
                return Err(NoStandIn::Limit);
            }
            if slot.exchange(word, Word::new(word.used(), word.stamp(), word.count() + 1)) {
                return Ok(number);
            }
        }
    }

    /// Undoes a count.
    pub(in crate::nat) fn release(&self, number: u32) {
        if let Some(slot) = self.slots.get(number as usize) {
            slot.word.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Hosts that have connections, and the most that one of them has.
    pub(in crate::nat) fn census(&self) -> (u32, u32) {
        let counts = self.slots.iter().filter_map(Slot::read).map(|(_, word)| word.count());
        counts.filter(|count| *count > 0).fold((0, 0), |(hosts, most), count| (hosts + 1, most.max(count)))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn hosts(connections: u32) -> Hosts6 {
        Hosts6::new(connections, FoldKey::new([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344]))
    }

    fn addr(n: u128) -> Ipv6Addr {
        Ipv6Addr::from_bits(0x2001_0db8 << 96 | n)
    }

    #[test]
    fn a_host_keeps_its_stand_in_while_it_speaks() {
        let hosts = hosts(1024);
        let first = hosts.stand_in(addr(1), 0).unwrap();
        assert!(is_stand_in(first) && network().contains(Ipv4Addr::from_bits(first)));
        assert_eq!((hosts.stand_in(addr(1), 7), hosts.host(first)), (Ok(first), Some(addr(1))));
        assert_ne!(hosts.stand_in(addr(2), 7), Ok(first));
        assert_eq!(hosts.host(first + 100_000), None);
    }

    /// A host with connections keeps it, whatever comes; one without loses it only to another, and not
    /// at once.
    #[test]
    fn a_flood_of_addresses_takes_it_from_no_connection() {
        let hosts = hosts(64);
        let busy = hosts.stand_in(addr(0), 0).unwrap();
        let held = hosts.count(busy, None).unwrap();
        let mut full = 0;
        for n in 1..1000 {
            match hosts.stand_in(addr(n), 3) {
                Ok(stand_in) => assert_eq!(hosts.host(stand_in), Some(addr(n))),
                Err(why) => {
                    assert_eq!(why, NoStandIn::Full);
                    full += 1;
                }
            }
        }
        assert!(full > 900, "{full}");
        for n in 1000..2000 {
            assert!(hosts.stand_in(addr(n), 3 + IDLE * n as u32).is_ok(), "{n}");
        }
        assert_eq!((hosts.host(busy), hosts.census()), (Some(addr(0)), (1, 1)));
        hosts.release(held);
        assert_eq!(hosts.census(), (0, 0));
    }

    #[test]
    fn connections_are_limited() {
        let hosts = hosts(64);
        let stand_in = hosts.stand_in(addr(9), 0).unwrap();
        let held: Vec<_> = (0..3).map(|_| hosts.count(stand_in, Some(3)).unwrap()).collect();
        assert_eq!(hosts.count(stand_in, Some(3)), Err(NoStandIn::Limit));
        hosts.release(held[0]);
        assert!(hosts.count(stand_in, Some(3)).is_ok());
    }

    /// Threads that take slots for the same hosts, and for others, read what was written, whole.
    #[test]
    fn threads_read_whole_addresses() {
        let hosts = hosts(64);
        std::thread::scope(|scope| {
            for thread in 0..4u128 {
                let hosts = &hosts;
                scope.spawn(move || {
                    for n in 0..20_000u128 {
                        // Both halves say the same.
                        let id = (n * 7 + thread) % 97;
                        let addr = Ipv6Addr::from_bits(id << 64 | id);
                        if let Ok(stand_in) = hosts.stand_in(addr, n as u32 * IDLE)
                            && let Some(host) = hosts.host(stand_in)
                        {
                            assert_eq!((host.to_bits() >> 64) as u64, host.to_bits() as u64);
                        }
                    }
                });
            }
        });
    }
}
