//! Where accelerated RFS has its filters on an interface of the kernel: the last quarter of the
//! driver's table, or wherever the driver puts them.
//!
//! Control path, under a lock of the user's. Invariant: a filter that was set and not deleted is
//! known by its number, so that none is left behind.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The most filters of single flows.
const MOST: u32 = 1024;

/// How long after a change packets may still come by what was set before: they wait in the
/// interface's own rings.
const SETTLES: Duration = Duration::from_millis(2);

pub(crate) struct FlowSlots {
    /// The location of number 0; `None`: the driver chooses.
    first: Option<u32>,
    len: u32,
    /// The locations of those that are set, by number.
    set: BTreeMap<u32, u32>,
    changed: Option<Instant>,
}

impl FlowSlots {
    /// Of a driver with so many places, or one that chooses them, and may not tell how many there
    /// are. `None` if there are too few.
    pub(crate) fn new(places: u32, chooses: bool) -> Option<Self> {
        let len = (places / 4).min(MOST);
        let slots = |first, len| FlowSlots { first, len, set: BTreeMap::new(), changed: None };
        match chooses {
            true if places == 0 => Some(slots(None, MOST)),
            _ if len == 0 => None,
            true => Some(slots(None, len)),
            false => Some(slots(Some(places - len), len)),
        }
    }

    /// How many there may be.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The first of their locations.
    pub(crate) fn first(&self) -> Option<u32> {
        self.first
    }

    /// Whether one of them is at `location`.
    pub(crate) fn has(&self, location: u32) -> bool {
        self.set.values().any(|at| *at == location)
    }

    /// Sets number `at` by `insert`, which is given its location, if that is known, and returns it.
    /// There it replaces what was; elsewhere `delete` deletes that before.
    pub(crate) fn set<E>(
        &mut self,
        at: u32,
        delete: impl Fn(u32) -> Result<(), E>,
        insert: impl FnOnce(Option<u32>) -> Result<u32, E>,
    ) -> Result<(), E> {
        if self.first.is_none() {
            self.delete(at, delete)?;
        }
        let location = insert(self.first.map(|first| first + at))?;
        self.set.insert(at, location);
        Ok(())
    }

    /// Deletes number `at`, if it is set.
    pub(crate) fn delete<E>(&mut self, at: u32, delete: impl Fn(u32) -> Result<(), E>) -> Result<(), E> {
        let Some(location) = self.set.get(&at) else { return Ok(()) };
        delete(*location)?;
        self.set.remove(&at);
        Ok(())
    }

    /// The interface was told something.
    pub(crate) fn changed(&mut self) {
        self.changed = Some(Instant::now());
    }

    /// Whether that was long ago.
    pub(crate) fn is_settled(&self) -> bool {
        self.changed.is_none_or(|at| at.elapsed() >= SETTLES)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn the_last_quarter_of_the_table() {
        let mut slots = FlowSlots::new(64, false).unwrap();
        assert_eq!((slots.first(), slots.len()), (Some(48), 16));
        let deleted = RefCell::new(Vec::new());
        let delete = |location| {
            deleted.borrow_mut().push(location);
            Ok::<_, ()>(())
        };
        let insert = |location: Option<u32>| Ok(location.unwrap());
        slots.set(3, delete, insert).unwrap();
        slots.set(3, delete, insert).unwrap();
        assert!(slots.has(51) && !slots.has(48) && deleted.borrow().is_empty(), "replaced");
        assert_eq!(slots.set(4, delete, |_| Err(())), Err(()));
        assert_eq!(slots.delete(3, |_| Err(())), Err(()));
        assert!(slots.has(51) && !slots.has(52), "as it was");
        slots.delete(3, delete).unwrap();
        slots.delete(4, delete).unwrap();
        assert_eq!((slots.has(51), deleted.into_inner()), (false, vec![51]));
        let len = |places, chooses| FlowSlots::new(places, chooses).map(|slots| slots.len());
        assert_eq!([len(0, false), len(3, false), len(1 << 16, false)], [None, None, Some(1024)]);
        assert_eq!([len(0, true), len(8192, true), len(400, true)], [Some(1024), Some(1024), Some(100)]);
    }

    #[test]
    fn wherever_the_driver_puts_them() {
        let mut slots = FlowSlots::new(0, true).unwrap();
        let next = RefCell::new(7);
        let insert = |location: Option<u32>| {
            assert_eq!(location, None);
            *next.borrow_mut() += 1;
            Ok::<_, ()>(*next.borrow())
        };
        let deleted = RefCell::new(Vec::new());
        let delete = |location| {
            deleted.borrow_mut().push(location);
            Ok(())
        };
        slots.set(0, delete, insert).unwrap();
        slots.set(1, delete, insert).unwrap();
        slots.set(0, delete, insert).unwrap();
        assert_eq!((slots.has(8), slots.has(9), slots.has(10)), (false, true, true));
        slots.delete(0, delete).unwrap();
        assert_eq!(deleted.into_inner(), [8, 10]);
    }

    #[test]
    fn a_change_settles_after_a_while() {
        let mut slots = FlowSlots::new(64, false).unwrap();
        assert!(slots.is_settled());
        slots.changed();
        std::thread::sleep(SETTLES);
        assert!(slots.is_settled());
    }
}
