//! `SO_REUSEPORT` groups: sockets with one key that share its packets.
//!
//! One member is in the chain of the key; a look-up that finds it chooses among all (the kernel's
//! `reuseport_select_sock`): the member that asked for the NAPI instance that the packet came by,
//! or else one by a secret hash of the flow. Only the table's one writer changes a group; readers
//! take no lock.
//!
//! Invariant: the first `len` places hold slots, each of which is or was a member; the look-up
//! checks the key of the slot that it chose.

use crate::steer::scale;
use crate::sync::{AtomicU32, Ordering};

/// Most members of a group.
pub const MAX_MEMBERS: usize = 128;

/// Most groups of a stack.
pub(super) const MAX_GROUPS: usize = if cfg!(feature = "loom") { 1 } else { 4096 };

/// See the [module](self).
pub(super) struct Group {
    len: AtomicU32,
    /// Whether any member asked for a NAPI instance.
    by_napi: AtomicU32,
    members: [AtomicU32; MAX_MEMBERS],
    napi: [AtomicU32; MAX_MEMBERS],
}

impl Group {
    /// An empty one.
    pub(super) fn new() -> Self {
        let places = || std::array::from_fn(|_| AtomicU32::new(0));
        Group { len: AtomicU32::new(0), by_napi: AtomicU32::new(0), members: places(), napi: places() }
    }

    /// Number of members.
    pub(super) fn len(&self) -> usize {
        (self.len.load(Ordering::Acquire) as usize).min(MAX_MEMBERS)
    }

    /// The members' slots.
    pub(super) fn members(&self) -> impl Iterator<Item = u32> {
        self.members[..self.len()].iter().map(|slot| slot.load(Ordering::Relaxed))
    }

    /// The member for a packet that came by NAPI instance `napi_id`, of a flow with this hash.
    #[inline]
    pub(super) fn select(&self, napi_id: u32, hash: impl FnOnce() -> u32) -> Option<u32> {
        let n = self.len();
        if self.by_napi.load(Ordering::Relaxed) != 0 && napi_id != 0 {
            let mut wanted = self.napi[..n].iter().zip(&self.members);
            if let Some((_, slot)) = wanted.find(|(napi, _)| napi.load(Ordering::Relaxed) == napi_id) {
                return Some(slot.load(Ordering::Relaxed));
            }
        }
        match n {
            0 => None,
            1 => Some(self.members[0].load(Ordering::Relaxed)),
            n => Some(self.members[scale(hash(), n)].load(Ordering::Relaxed)),
        }
    }

    /// Adds a member; `false` if there is no room.
    pub(super) fn add(&self, slot: u32) -> bool {
        let n = self.len();
        if n == MAX_MEMBERS {
            return false;
        }
        self.members[n].store(slot, Ordering::Relaxed);
        self.napi[n].store(0, Ordering::Relaxed);
        self.len.store(n as u32 + 1, Ordering::Release);
        true
    }

    /// Removes a member; the last one takes its place.
    pub(super) fn remove(&self, slot: u32) {
        let n = self.len();
        let Some(at) = self.members().position(|member| member == slot) else { return };
        for places in [&self.members, &self.napi] {
            let last = places[n - 1].load(Ordering::Relaxed);
            places[at].store(last, Ordering::Relaxed);
        }
        self.len.store(n as u32 - 1, Ordering::Release);
        self.look_for_napi();
    }

    /// Member `slot` wants the packets that come by NAPI instance `napi_id`; 0: its share of all.
    pub(super) fn set_napi(&self, slot: u32, napi_id: u32) {
        if let Some(at) = self.members().position(|member| member == slot) {
            self.napi[at].store(napi_id, Ordering::Relaxed);
        }
        self.look_for_napi();
    }

    fn look_for_napi(&self) {
        let any = self.napi[..self.len()].iter().any(|napi| napi.load(Ordering::Relaxed) != 0);
        self.by_napi.store(u32::from(any), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn members_come_and_go_and_share_by_hash_or_napi_id() {
        let group = Group::new();
        assert_eq!(group.select(7, || unreachable!("no member to choose")), None);
        assert!([10, 11, 12].map(|slot| group.add(slot)).iter().all(|added| *added));
        let chosen = [0, 0x6000_0000, u32::MAX].map(|hash| group.select(9000, || hash));
        assert_eq!(chosen, [Some(10), Some(11), Some(12)]);
        group.set_napi(12, 9000);
        assert_eq!(group.select(9000, || 0), Some(12));
        assert_eq!(group.select(9001, || 0), Some(10), "no member asked for that one");
        group.remove(10);
        assert!(group.members().eq([12, 11]));
        assert_eq!(group.select(9000, || u32::MAX), Some(12), "its wish moved along");
        group.remove(12);
        assert_eq!(group.select(9000, || unreachable!("one is left")), Some(11));
        group.remove(12);
        assert_eq!(group.len(), 1);
        assert_eq!((1..MAX_MEMBERS as u32).filter(|slot| group.add(100 + slot)).count(), MAX_MEMBERS - 1);
        assert!(!group.add(99), "full");
    }
}
