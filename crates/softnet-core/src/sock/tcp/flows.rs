//! What each flow of a shard leads to.
//!
//! An entry is a hash and a number, eight bytes: the flow itself is with the object that it leads to,
//! which a packet needs anyway. Called by the holder of the shard. Invariant: an object has at most one
//! entry, under the hash of its flow.

use hashbrown::HashTable;

use super::super::key::Flow;
use crate::fold::FoldKey;

/// What a flow leads to, and what a timer is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Conn(u32),
    Request(u32),
    TimeWait(u32),
}

/// An [`Object`] in four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed(u32);

/// Bits of a place: a shard has far fewer objects of a kind than that.
const PLACE: u32 = 30;

impl From<Object> for Packed {
    fn from(object: Object) -> Self {
        let (kind, place) = match object {
            Object::Conn(place) => (0, place),
            Object::Request(place) => (1, place),
            Object::TimeWait(place) => (2, place),
        };
        debug_assert!(place < 1 << PLACE);
        Packed(kind << PLACE | place)
    }
}

impl From<Packed> for Object {
    fn from(Packed(word): Packed) -> Self {
        let place = word & ((1 << PLACE) - 1);
        match word >> PLACE {
            0 => Object::Conn(place),
            1 => Object::Request(place),
            _ => Object::TimeWait(place),
        }
    }
}

#[derive(Clone, Copy)]
struct Entry {
    hash: u32,
    object: Packed,
}

/// See the module.
pub(super) struct Flows {
    table: HashTable<Entry>,
    key: FoldKey,
}

/// The table takes buckets from the low bits, and tags from the high ones.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

impl Flows {
    /// An empty table, keyed by `key`: remote hosts choose flows, and must not choose chains.
    pub(super) fn new(key: FoldKey) -> Self {
        Flows { table: HashTable::new(), key }
    }

    /// What `flow` leads to: of the objects with its hash, the one that has it, as `has` says.
    #[inline]
    pub(super) fn get(&self, flow: &Flow, has: impl Fn(Object) -> bool) -> Option<Object> {
        let hash = flow.secret_hash(&self.key);
        let is_it = |entry: &Entry| entry.hash == hash && has(entry.object.into());
        self.table.find(spread(hash), is_it).map(|entry| entry.object.into())
    }

    /// Adds an object, to whose flow no other is.
    pub(super) fn insert(&mut self, flow: &Flow, object: Object) {
        let hash = flow.secret_hash(&self.key);
        let entry = Entry { hash, object: object.into() };
        self.table.insert_unique(spread(hash), entry, |entry| spread(entry.hash));
    }

    /// Takes an object out, if it is there.
    pub(super) fn remove(&mut self, flow: &Flow, object: Object) {
        let hash = flow.secret_hash(&self.key);
        let wanted = Packed::from(object);
        let is_it = |entry: &Entry| entry.object == wanted;
        if let Ok(entry) = self.table.find_entry(spread(hash), is_it) {
            entry.remove();
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn flow(n: u16) -> Flow {
        Flow { local: 1, remote: 2, lport: 80, rport: n, protocol: 6 }
    }

    #[test]
    fn an_object_survives_packing() {
        for place in [0, 1, (1 << PLACE) - 1] {
            for object in [Object::Conn(place), Object::Request(place), Object::TimeWait(place)] {
                assert_eq!(Object::from(Packed::from(object)), object);
            }
        }
        assert_eq!(size_of::<Entry>(), 8);
    }

    proptest! {
        /// A flow leads to the object that was added last and not taken out.
        #[test]
        fn the_table_is_a_map(steps in prop::collection::vec((0u16..40, any::<bool>()), 1..200)) {
            let mut flows = Flows::new(FoldKey::new([1, 2]));
            let (mut places, mut model) = (Vec::new(), HashMap::new());
            for (n, adds) in steps {
                if adds && !model.contains_key(&n) {
                    let object = Object::Conn(places.len() as u32);
                    places.push(n);
                    flows.insert(&flow(n), object);
                    model.insert(n, object);
                } else if let Some(object) = model.remove(&n) {
                    flows.remove(&flow(n), object);
                    // What is not there is not taken out.
                    flows.remove(&flow(n), object);
                }
                for n in 0..40 {
                    let has = |object| matches!(object, Object::Conn(at) if places[at as usize] == n);
                    prop_assert_eq!(flows.get(&flow(n), has), model.get(&n).copied());
                }
            }
        }
    }
}
