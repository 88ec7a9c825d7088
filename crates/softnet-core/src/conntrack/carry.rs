//! Connections that another process goes on with: each is told as plain bytes, and made there.
//!
//! Told and made by a control thread, while others use the tables. What is told comes from another
//! process, and may be anything: what can't be a connection is refused.

use std::net::Ipv6Addr;

use super::entry::{DNAT, Holds, SNAT, UNCONFIRMED};
use super::table::{Conntrack, New, Refused};
use super::{Direction, State, Tuple};

/// A connection as it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The tuples of both directions; those of IPv6 have hashes in them, and say only ports and
    /// protocol elsewhere.
    pub(crate) tuples: [Tuple; 2],
    /// Source and destination of the first packet, if it was of IPv6.
    pub(crate) ends6: [u128; 2],
    /// The internal and the external endpoint of its mapping, if it holds one.
    pub(crate) mapping: Option<[(u32, u16); 2]>,
    /// Its inside host's connections are counted.
    pub(crate) counted: bool,
    pub(crate) state: State,
    pub(crate) flags: u8,
    /// Seconds until it expires.
    pub(crate) left: u32,
}

const MAPPED: u8 = 1;
const COUNTED: u8 = 2;

impl Carried {
    /// Bytes of one.
    pub const LEN: usize = 4 * 8 + 2 * 16 + 12 + 4 + 3;

    /// As bytes.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        for tuple in self.tuples {
            put(&tuple.addrs.to_le_bytes());
            put(&tuple.rest.to_le_bytes());
        }
        self.ends6.iter().for_each(|addr| put(&addr.to_le_bytes()));
        for (addr, port) in self.mapping.unwrap_or_default() {
            put(&addr.to_le_bytes());
            put(&port.to_le_bytes());
        }
        put(&self.left.to_le_bytes());
        let held = if self.mapping.is_some() { MAPPED } else { 0 } | if self.counted { COUNTED } else { 0 };
        put(&[self.state as u8, self.flags, held]);
        out
    }

    /// What `bytes` say; `None` if that can't be a connection.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let mut rest = &bytes[..];
        let mut u64s = || take(&mut rest).map(u64::from_le_bytes);
        let words = [u64s()?, u64s()?, u64s()?, u64s()?];
        let mut u128s = || take(&mut rest).map(u128::from_le_bytes);
        let ends6 = [u128s()?, u128s()?];
        let mut end = || Some((u32::from_le_bytes(take(&mut rest)?), u16::from_le_bytes(take(&mut rest)?)));
        let ends = [end()?, end()?];
        let left = take(&mut rest).map(u32::from_le_bytes)?;
        let [state, flags, held] = take(&mut rest)?;
        let known = State::from_number(state);
        let sound = known as u8 == state && known != State::Dead && flags & !(SNAT | DNAT) == 0;
        let [a, b, c, d] = words;
        let tuples = [Tuple { addrs: a, rest: b }, Tuple { addrs: c, rest: d }];
        let sound = sound && held & !(MAPPED | COUNTED) == 0 && b != 0 && d != 0;
        sound.then_some(Carried {
            tuples,
            ends6,
            mapping: (held & MAPPED != 0).then_some(ends),
            counted: held & COUNTED != 0,
            state: known,
            flags,
            left,
        })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, others) = rest.split_first_chunk()?;
    *rest = others;
    Some(*first)
}

impl Conntrack {
    /// Tells the connections that there are at `now`, and that `known` does not have in their
    /// state; it has them from then on. It is empty at first.
    pub fn carry(&self, now: u32, known: &mut Vec<u32>, mut tell: impl FnMut(&Carried)) {
        self.carry_held(now, known, |carried, _| tell(carried));
    }

    /// The same with what each holds.
    pub(crate) fn carry_held(
        &self,
        now: u32,
        known: &mut Vec<u32>,
        mut tell: impl FnMut(&mut Carried, Holds),
    ) {
        let used = &self.entries[..self.free.used() as usize];
        if known.len() < used.len() {
            known.resize(used.len(), 0);
        }
        for (at, (entry, known)) in used.iter().zip(known).enumerate() {
            let life = entry.life();
            // State in the lowest byte, which is never 0 of a connection.
            let word = u32::from(life.generation()) << 8 | u32::from(life.state_number());
            let is_live = life.is_live() && life.flags() & UNCONFIRMED == 0 && !life.is_over(now);
            if !is_live || *known == word {
                continue;
            }
            let contents = entry.contents();
            let ends6 = self.ends6_of(at).filter(|_| contents.tuples[0].is_ipv6());
            if !entry.is_still(life) {
                continue;
            }
            // Packets keep it alive until it is the other's, which is not told again: there it has
            // all the time of its state at first.
            let left = match std::mem::replace(known, word) {
                0 => self.time_of(life.state_number()),
                _ => life.expires().wrapping_sub(now),
            };
            let mut carried = Carried {
                tuples: contents.tuples,
                ends6: ends6.map_or([0; 2], |ends| ends.map(Ipv6Addr::to_bits)),
                mapping: None,
                counted: false,
                state: life.state(),
                flags: life.flags(),
                left,
            };
            tell(&mut carried, contents.holds);
        }
    }

    /// Its tuples here; `None` if such are not tracked.
    fn tuples_here(&self, carried: &Carried) -> Option<[Tuple; 2]> {
        let [original, _] = carried.tuples;
        if !original.is_ipv6() {
            return (!carried.tuples[1].is_ipv6()).then_some(carried.tuples);
        }
        let [src, dst] = carried.ends6.map(|addr| self.hash6(addr));
        let ports = (original.rest >> 32) as u32;
        let here = Tuple::folded(original.protocol(), ports, src, dst);
        self.tracks_ipv6().then(|| [here, here.inverse()])
    }

    /// Has a connection that there is be in the state that `carried` says. Whether there is one:
    /// one whose other tuple changed meanwhile ends.
    pub(crate) fn update(&self, now: u32, carried: &Carried) -> bool {
        let Some(tuples) = self.tuples_here(carried) else { return false };
        let Some(found) = self.peek(now, &tuples[0]) else { return false };
        let same = found.direction() == Direction::Original && self.peer(found) == Some(tuples[1]);
        match same {
            true => self.expire_in(now, found, carried),
            false => self.end(now, found),
        }
        same
    }

    /// Makes the connection, which holds `holds` from then on. `released` gets what another held
    /// that was dropped for it.
    pub(crate) fn make(
        &self,
        now: u32,
        carried: &Carried,
        holds: Holds,
        released: impl FnMut(Holds),
    ) -> Result<(), Refused> {
        let tuples = self.tuples_here(carried).ok_or(Refused::Full)?;
        let Carried { state, flags, ends6, .. } = *carried;
        let new = New { tuples, state, flags, holds, ends6 };
        let found = self.insert_with(now, &new, released)?;
        self.expire_in(now, found, carried);
        Ok(())
    }

    /// The same of a table without mappings. Whether there is such a connection now.
    pub fn take_over(&self, now: u32, carried: &Carried) -> bool {
        self.update(now, carried) || self.make(now, carried, Holds::NOTHING, |_| {}).is_ok()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::super::Timeouts;
    use super::*;
    use crate::fold::FoldKey;
    use crate::memory::Heap;

    fn table(key: u64) -> Conntrack {
        let key = FoldKey::new([0x243f_6a88_85a3_08d3 ^ key, 0x1319_8a2e_0370_7344]);
        Conntrack::new(8, key, &Timeouts::default(), &Heap).with_ipv6()
    }

    fn told(table: &Conntrack, now: u32, known: &mut Vec<u32>) -> Vec<Carried> {
        let mut all = Vec::new();
        table.carry(now, known, |carried| all.push(*carried));
        all
    }

    #[test]
    fn what_is_told_is_made_elsewhere_and_told_again_when_it_changes() {
        let (old, new) = (table(1), table(2));
        let tuple = Tuple::new(17, (1, 1000), (2, 53));
        old.insert(100, &New::plain(tuple, State::UdpNew)).unwrap();
        let [a, b] = [7u128, 9];
        let six = Tuple::folded(6, 0x1234_0050, old.hash6(a), old.hash6(b));
        old.insert(100, &New { ends6: [a, b], ..New::plain(six, State::Established) }).unwrap();
        let mut known = Vec::new();
        let all = told(&old, 101, &mut known);
        assert_eq!(all.len(), 2);
        assert!(told(&old, 101, &mut known).is_empty());
        for carried in &all {
            let read = Carried::from_bytes(&carried.to_bytes());
            assert_eq!(read, Some(*carried));
            assert!(new.take_over(5, carried));
        }
        let ours = Tuple::folded(6, 0x1234_0050, new.hash6(a), new.hash6(b));
        assert_ne!(ours, six);
        let left = |table: &Conntrack, now| {
            let of = |c: super::super::Snapshot| (c.tuples[0].protocol(), c.state, c.left);
            let mut all: Vec<_> = table.connections(now).map(of).collect();
            all.sort_by_key(|(protocol, ..)| *protocol);
            all
        };
        // All of its time, since packets may refresh it until it is the other's.
        assert_eq!(left(&new, 5), left(&old, 100));
        assert!(new.find(6, &ours.inverse(), 0x10).is_some());
        // An answer moves it on, which is told, and changes what there is.
        assert_eq!(old.find(102, &tuple.inverse(), 0).unwrap().life.state(), State::Udp);
        let later = told(&old, 102, &mut known);
        assert_eq!(later.len(), 1);
        assert!(new.take_over(6, &later[0]));
        assert_eq!(new.counts().entries, 2);
        assert_eq!(left(&new, 6)[1].1, State::Udp);
    }

    /// Its client opened it anew between the offer and the stop, and was mapped to another port.
    #[test]
    fn one_that_is_translated_otherwise_by_now_takes_the_place_of_the_first() {
        let (old, new) = (table(1), table(2));
        let tuple = Tuple::new(17, (1, 1000), (2, 53));
        old.insert(100, &New::plain(tuple, State::UdpNew)).unwrap();
        let first = told(&old, 100, &mut Vec::new())[0];
        let reply = Tuple::new(17, (2, 53), (9, 777));
        let second = Carried { tuples: [tuple, reply], ..first };
        assert!(new.take_over(5, &first) && new.take_over(5, &second));
        assert!(new.peek(5, &tuple.inverse()).is_none());
        let found = new.peek(5, &reply).unwrap();
        assert_eq!(new.peer(found), Some(tuple));
        assert_eq!(new.peek(5, &tuple).map(|found| found.id >> 1), Some(found.id >> 1));
        // And one that was opened from the other side.
        let turned = Carried { tuples: [reply, tuple], ..first };
        assert!(new.take_over(5, &turned));
        let found = new.peek(5, &reply).unwrap();
        assert_eq!((found.direction(), new.peer(found)), (Direction::Original, Some(tuple)));
    }

    #[test]
    fn without_ipv6_those_are_refused() {
        let (old, new) = (table(1), table(2));
        let six = Tuple::folded(6, 5, old.hash6(1), old.hash6(2));
        old.insert(1, &New::plain(six, State::Established)).unwrap();
        let key = FoldKey::new([1, 2]);
        let v4 = Conntrack::new(8, key, &Timeouts::default(), &Heap);
        let all = told(&old, 1, &mut Vec::new());
        assert!(!v4.take_over(1, &all[0]) && new.take_over(1, &all[0]));
        assert_eq!(v4.counts().entries, 0);
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_a_connection(bytes in prop::array::uniform32(any::<u8>()), tail in any::<u64>(), state in 0u8..20) {
            let mut all = [0; Carried::LEN];
            all.iter_mut().zip(bytes.iter().cycle()).for_each(|(to, byte)| *to = *byte);
            all[64..72].copy_from_slice(&tail.to_le_bytes());
            all[Carried::LEN - 3..].copy_from_slice(&[state, bytes[0] & 3, bytes[1] & 3]);
            let read = Carried::from_bytes(&all);
            prop_assert_eq!(read.is_some(), (1..=10).contains(&state) && bytes[8..16] != [0; 8] && bytes[24..] != [0; 8]);
            if let Some(carried) = read {
                prop_assert_eq!(&carried.to_bytes()[..64], &all[..64]);
                table(3).take_over(4, &carried);
            }
        }
    }
}
