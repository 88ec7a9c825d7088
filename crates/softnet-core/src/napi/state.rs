//! The state word of an instance: its bits, and the transitions between them as pure functions.
//!
//! Bits and their numbers are the kernel's (`enum` in `include/linux/netdevice.h`), as are the protocols
//! (`napi_schedule_prep`, `napi_complete_done`, `napi_disable`, `napi_watchdog` in `net/core/dev.c`). Each
//! function maps a word to its successor and is applied by one compare-exchange; `None` refuses.
//!
//! Invariants: SCHED has one holder. MISSED is set only while SCHED is, and is consumed by the holder in the
//! very exchange that would release SCHED. An instance is disabled if, and only if, whoever disabled it
//! holds both SCHED and NPSVC.

use std::fmt;

use crate::sync::{Mutant, OWNED, mutated};

/// Ownership: exactly one party may poll or complete.
pub(super) const SCHED: u32 = OWNED;
/// Somebody wanted to schedule while SCHED was set: poll again.
pub(super) const MISSED: u32 = 1 << 1;
/// Somebody waits to disable the instance: no new schedules, and the running poll must end.
pub(super) const DISABLE: u32 = 1 << 2;
/// Held while disabled: completion does nothing.
pub(super) const NPSVC: u32 = 1 << 3;

const NAMES: [(u32, &str); 4] =
    [(SCHED, "sched"), (MISSED, "missed"), (DISABLE, "disable"), (NPSVC, "npsvc")];

/// Wants the instance polled: takes SCHED, or leaves MISSED for its holder.
pub(super) fn prep(word: u32) -> Option<u32> {
    if word & DISABLE != 0 {
        return None;
    }
    if mutated(Mutant::MissedNotRewritten) && word & MISSED != 0 {
        return None;
    }
    Some(if word & SCHED == 0 { word | SCHED } else { word | MISSED })
}

/// Wants the instance polled if nobody does so already: takes SCHED, never sets MISSED.
pub(super) fn test_and_set(word: u32) -> Option<u32> {
    (word & (DISABLE | SCHED) == 0).then_some(word | SCHED)
}

/// Ends a poll: releases SCHED, unless MISSED was set; consumes MISSED.
pub(super) fn complete(word: u32) -> u32 {
    let keep = if word & MISSED == 0 || mutated(Mutant::MissedIgnored) { 0 } else { SCHED };
    word & !(SCHED | MISSED) | keep
}

/// The holder dropped its token: a disabled instance stays disabled, a scheduled one is free again, whoever wanted
/// another poll.
pub(super) fn dropped(word: u32) -> u32 {
    if word & NPSVC != 0 { word } else { word & !(SCHED | MISSED) }
}

/// Disables the instance, if nobody owns it.
pub(super) fn disable(word: u32) -> Option<u32> {
    (word & (SCHED | NPSVC) == 0).then_some(word & !DISABLE | SCHED | NPSVC)
}

/// Ends the disabled state. SCHED stays with the caller: the poll that follows sees whatever came meanwhile, which
/// is why MISSED goes.
pub(super) fn enable(word: u32) -> u32 {
    word & !(NPSVC | MISSED) | SCHED
}

/// A state word at some moment, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(pub(super) u32);

impl State {
    /// Somebody owns the instance.
    pub fn is_scheduled(self) -> bool {
        self.0 & SCHED != 0
    }

    /// The owner will poll once more.
    pub fn is_missed(self) -> bool {
        self.0 & MISSED != 0
    }

    /// Somebody waits to disable it.
    pub fn is_disable_pending(self) -> bool {
        self.0 & DISABLE != 0
    }

    /// It is disabled.
    pub fn is_disabled(self) -> bool {
        self.0 & (SCHED | NPSVC) == SCHED | NPSVC
    }
}

/// The names of the set bits, separated by `|`; `idle` if there are none.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut any = false;
        for (_, name) in NAMES.iter().filter(|(bit, _)| self.0 & bit != 0) {
            f.write_str(if any { "|" } else { "" })?;
            f.write_str(name)?;
            any = true;
        }
        f.write_str(if any { "" } else { "idle" })
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn every_transition_of_every_word() {
        for word in 0..16 {
            let sched = word & SCHED != 0;
            match prep(word) {
                None => assert!(word & DISABLE != 0),
                Some(new) => assert_eq!(new, word | SCHED | if sched { MISSED } else { 0 }),
            }
            assert_eq!(test_and_set(word).is_some(), word & (SCHED | DISABLE) == 0);
            assert!(test_and_set(word).is_none_or(|new| new == word | SCHED), "never MISSED");
            assert_eq!(complete(word) & SCHED != 0, word & MISSED != 0);
            assert_eq!(complete(word) & MISSED, 0);
            assert_eq!(complete(word) & (DISABLE | NPSVC), word & (DISABLE | NPSVC));
            assert_eq!(disable(word).is_some(), word & (SCHED | NPSVC) == 0);
            assert!(disable(word).is_none_or(|new| State(new).is_disabled() && new & DISABLE == 0));
            assert_eq!(enable(word) & !DISABLE, SCHED);
            let kept = if word & NPSVC != 0 { word } else { word & DISABLE };
            assert_eq!(dropped(word), kept);
        }
    }

    #[test]
    fn names_its_bits() {
        assert_eq!(State(0).to_string(), "idle");
        assert_eq!(State(SCHED | DISABLE).to_string(), "sched|disable");
    }
}
