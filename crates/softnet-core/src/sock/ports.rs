//! Which sockets are bound to which port, so that a conflict is found in constant time, however
//! many there are. Used by the table's one writer.
//!
//! Invariant: a tally counts exactly the sockets that were added and not removed since.

use std::collections::{BTreeSet, HashMap};

use super::key::{ANY, Addr};
use super::slot::BindFlags;

/// The properties that decide whether two sockets may share a port: local address and port,
/// families, and whether the socket shares them with sockets that also ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bound {
    pub(super) local: Addr,
    pub(super) port: u16,
    /// Without a group, with the protocol: each has ports of its own.
    pub(super) flags: BindFlags,
    /// For a group: its device; `None`: any.
    pub(super) dev: Option<u16>,
    pub(super) reuseport: bool,
    /// It was accepted by a listener of that port, and is told from others by its peer: it is in
    /// the way of none that asks for the port.
    pub(super) accepted: bool,
}

impl Bound {
    /// Its protocol and port.
    fn place(&self) -> (u8, u16) {
        (self.flags.protocol(), self.port)
    }
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Ports(HashMap<(u8, u16), Port>);

#[derive(Default)]
struct Port {
    slots: BTreeSet<u32>,
    /// Accepted ones among these.
    accepted: usize,
    locals: HashMap<Addr, Tally>,
}

/// Sockets of one address and port, by families, device, and whether they share.
#[derive(Default)]
struct Tally(HashMap<(BindFlags, Option<u16>, bool), usize>);

impl Tally {
    fn conflicts(&self, new: &Bound) -> bool {
        self.0.keys().any(|(flags, dev, reuseport)| {
            let same_device = dev.zip(new.dev).is_none_or(|(dev, other)| dev == other);
            flags.overlaps(new.flags) && same_device && !(*reuseport && new.reuseport)
        })
    }
}

impl Ports {
    /// Adds the socket in `slot`, which is bound like this. It is added once.
    pub(super) fn add(&mut self, slot: u32, bound: &Bound) {
        let port = self.0.entry(bound.place()).or_default();
        port.slots.insert(slot);
        if bound.accepted {
            port.accepted += 1;
            return;
        }
        let tally = port.locals.entry(bound.local).or_default();
        *tally.0.entry((bound.flags, bound.dev, bound.reuseport)).or_default() += 1;
    }

    /// Removes it.
    pub(super) fn remove(&mut self, slot: u32, bound: &Bound) {
        let Some(port) = self.0.get_mut(&bound.place()) else { return };
        if !port.slots.remove(&slot) {
            return;
        }
        port.accepted -= usize::from(bound.accepted);
        if !bound.accepted
            && let Some(tally) = port.locals.get_mut(&bound.local)
        {
            let alike = (bound.flags, bound.dev, bound.reuseport);
            if let Some(count) = tally.0.get_mut(&alike) {
                *count -= 1;
                if *count == 0 {
                    tally.0.remove(&alike);
                }
            }
            if tally.0.is_empty() {
                port.locals.remove(&bound.local);
            }
        }
        if port.slots.is_empty() {
            self.0.remove(&bound.place());
        }
    }

    /// Whether accepted sockets have the port of `new`, which then is none to choose.
    pub(super) fn has_accepted(&self, new: &Bound) -> bool {
        self.0.get(&new.place()).is_some_and(|port| port.accepted > 0)
    }

    /// Whether a socket that is bound like this conflicts with those that are there.
    pub(super) fn conflicts(&self, new: &Bound) -> bool {
        if new.accepted {
            return false;
        }
        let Some(port) = self.0.get(&new.place()) else { return false };
        if new.local == ANY {
            return port.locals.values().any(|tally| tally.conflicts(new));
        }
        [new.local, ANY].iter().filter_map(|local| port.locals.get(local)).any(|tally| tally.conflicts(new))
    }

    /// The sockets of `protocol` that are bound to `port`.
    pub(super) fn of(&self, protocol: u8, port: u16) -> impl Iterator<Item = u32> {
        self.0.get(&(protocol, port)).into_iter().flat_map(|port| port.slots.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bound() -> impl Strategy<Value = Bound> {
        let flags = prop::sample::select(vec![
            BindFlags::new(6, true, false),
            BindFlags::new(17, true, false),
            BindFlags::new(17, false, true),
            BindFlags::new(17, true, true),
        ]);
        let dev = prop::sample::select(vec![None, Some(0), Some(1)]);
        let accepted = prop_oneof![3 => Just(false), 1 => Just(true)];
        (prop::sample::select(vec![ANY, 1, 2]), 1u16..3, flags, dev, any::<bool>(), accepted).prop_map(
            |(local, port, flags, dev, reuseport, accepted)| Bound {
                local,
                port,
                flags,
                dev,
                reuseport,
                accepted,
            },
        )
    }

    /// The rule, for one socket against another.
    fn collide(a: &Bound, b: &Bound) -> bool {
        a.port == b.port
            && a.flags.protocol() == b.flags.protocol()
            && (a.local == b.local || a.local == ANY || b.local == ANY)
            && a.flags.overlaps(b.flags)
            && (a.dev.is_none() || b.dev.is_none() || a.dev == b.dev)
            && !(a.reuseport && b.reuseport)
            && !(a.accepted || b.accepted)
    }

    proptest! {
        #[test]
        fn is_what_comparing_with_each_says(steps in prop::collection::vec((bound(), any::<prop::sample::Index>(), any::<bool>()), 1..60)) {
            let (mut ports, mut all) = (Ports::default(), Vec::<(u32, Bound)>::new());
            for (slot, (new, which, add)) in (0u32..).zip(steps) {
                prop_assert_eq!(ports.conflicts(&new), all.iter().any(|(_, other)| collide(&new, other)));
                let accepted = all.iter().any(|(_, other)| other.accepted && other.place() == new.place());
                prop_assert_eq!(ports.has_accepted(&new), accepted);
                if add || all.is_empty() {
                    ports.add(slot, &new);
                    all.push((slot, new));
                } else {
                    let (slot, bound) = all.swap_remove(which.index(all.len()));
                    ports.remove(slot, &bound);
                }
                let mut of: Vec<u32> = all.iter().filter(|(_, b)| b.place() == new.place()).map(|(s, _)| *s).collect();
                of.sort_unstable();
                prop_assert_eq!(ports.of(new.flags.protocol(), new.port).collect::<Vec<_>>(), of);
            }
            all.iter().for_each(|(slot, bound)| ports.remove(*slot, bound));
            prop_assert!(ports.0.is_empty());
        }
    }
}
