//! The state word of an instance: its bits, and the transitions between them as pure functions.
//!
//! Bits and their numbers are the kernel's (`enum` in `include/linux/netdevice.h`), as are the protocols
//! (`napi_schedule_prep`, `napi_complete_done`, `napi_disable`, `napi_watchdog`, `napi_busy_loop`, `busy_poll_stop` in
//! `net/core/dev.c`). Each
//! function maps a word to its successor and is applied by one compare-exchange; `None` refuses.
//!
//! Invariants: SCHED has one holder. MISSED is set only while SCHED is, and is consumed by the holder in the
//! very exchange that would release SCHED. IN_BUSY_POLL and FIRED are set only while SCHED is. An instance is disabled if,
//! and only if, both SCHED and NPSVC are set.

use std::fmt;

use crate::sync::{Mutant, OWNED, mutated};

/// Ownership: exactly one party may poll or complete.
pub(super) const SCHED: u32 = OWNED;
/// A thread wanted to schedule while SCHED was set: poll again.
pub(super) const MISSED: u32 = 1 << 1;
/// A thread waits to disable the instance: no new schedules, and the running poll must end.
pub(super) const DISABLE: u32 = 1 << 2;
/// Held while disabled: completion does nothing.
pub(super) const NPSVC: u32 = 1 << 3;

/// The owner is a busy poller.
pub(super) const IN_BUSY_POLL: u32 = 1 << 6;
/// A busy poller found the instance owned: an owner that receives without end should give way.
pub(super) const PREFER_BUSY_POLL: u32 = 1 << 7;

/// The timer fired while the instance was owned, and is spent. Only softnet has this bit: an application arms the timer
/// before it releases, since it may lose its CPU in between, and the release must notice that it armed it in vain.
pub(super) const FIRED: u32 = 1 << 8;

const NAMES: [(u32, &str); 7] = [
    (SCHED, "sched"),
    (MISSED, "missed"),
    (DISABLE, "disable"),
    (NPSVC, "npsvc"),
    (IN_BUSY_POLL, "in-busy-poll"),
    (PREFER_BUSY_POLL, "prefer-busy-poll"),
    (FIRED, "timer-fired"),
];

/// Whether a thread waits to disable the instance, so that no thread becomes its owner before that.
fn refuses(word: u32) -> bool {
    word & DISABLE != 0 && !mutated(Mutant::DisableNotRefused)
}

/// Wants the instance polled: takes SCHED, or leaves MISSED for its holder.
///
/// A word that refuses is written as it is, for a mere look may see a disable that is long over, and the poll that
/// follows the enabling must see what the scheduler did before.
pub(super) fn prep(word: u32) -> Option<u32> {
    if refuses(word) {
        return (!mutated(Mutant::RefusalOnlyLooks)).then_some(word);
    }
    if mutated(Mutant::MissedNotRewritten) && word & MISSED != 0 {
        return None;
    }
    Some(if word & SCHED == 0 { word | SCHED } else { word | MISSED })
}

/// The timer wants the instance polled if it is not owned: takes SCHED, never sets MISSED. Else leaves FIRED for its owner.
///
/// A word that is owned is written in any case, for a mere look may see an owner that has left and armed the timer which
/// is now spent. An owner that this write finds arms the timer afterwards, or unmasks; or it has done so already and then
/// sees FIRED when it releases.
pub(super) fn watchdog(word: u32) -> Option<u32> {
    if refuses(word) {
        return (!mutated(Mutant::WatchdogOnlyLooks)).then_some(word);
    }
    if word & SCHED == 0 {
        return Some(word & !PREFER_BUSY_POLL | SCHED);
    }
    (!mutated(Mutant::WatchdogOnlyLooks)).then_some(word | FIRED)
}

/// Takes SCHED for busy polling; or, with `prefer`, asks the holder to give way.
pub(super) fn busy_poll(word: u32, prefer: bool) -> Option<u32> {
    if refuses(word) || word & NPSVC != 0 {
        return None;
    }
    if word & SCHED == 0 {
        return Some(word | SCHED | IN_BUSY_POLL);
    }
    // Written once, for losers may come again and again.
    let ask = prefer && word & PREFER_BUSY_POLL == 0 && !mutated(Mutant::PreferNotSet);
    ask.then_some(word | PREFER_BUSY_POLL)
}

/// Forgets that the timer fired: it is armed next.
pub(super) fn rearm(word: u32) -> u32 {
    word & !FIRED
}

/// Ends a busy poll by releasing SCHED, unless the timer, which was armed before, has fired since: then SCHED stays for an
/// ordinary poll. Otherwise the timer answers schedules that found the instance owned.
/// PREFER_BUSY_POLL, another poller's wish, stays until a completion or the timer.
pub(super) fn stop_deferred(word: u32) -> u32 {
    if word & FIRED != 0 && !mutated(Mutant::FiredNotSeen) {
        return stop_to_poll(word);
    }
    word & !(SCHED | MISSED | IN_BUSY_POLL | FIRED)
}

/// Ends a busy poll, and keeps SCHED for an ordinary poll, which answers schedules that found the instance owned.
pub(super) fn stop_to_poll(word: u32) -> u32 {
    word & !(MISSED | IN_BUSY_POLL | FIRED)
}

/// Ends a poll: releases SCHED, unless MISSED was set; consumes MISSED and PREFER_BUSY_POLL.
pub(super) fn complete(word: u32) -> u32 {
    let keep = if word & MISSED == 0 || mutated(Mutant::MissedIgnored) { 0 } else { SCHED };
    let prefer = if mutated(Mutant::PreferNotConsumed) { 0 } else { PREFER_BUSY_POLL };
    word & !(SCHED | MISSED | FIRED | prefer) | keep
}

/// The same after the timer was armed or the doorbell unmasked: SCHED stays as well if the timer has fired since.
pub(super) fn complete_applied(word: u32) -> u32 {
    let fired = word & FIRED != 0 && !mutated(Mutant::FiredNotSeen);
    complete(word) | if fired { SCHED } else { 0 }
}

/// The holder dropped its token: a disabled instance stays disabled, a scheduled one is free again, whatever wanted
/// another poll.
pub(super) fn dropped(word: u32) -> u32 {
    if word & NPSVC != 0 { word } else { word & !(SCHED | MISSED | IN_BUSY_POLL | FIRED) }
}

/// Disables the instance, if no thread owns it.
pub(super) fn disable(word: u32) -> Option<u32> {
    (word & (SCHED | NPSVC) == 0).then_some(word & !(DISABLE | PREFER_BUSY_POLL) | SCHED | NPSVC)
}

/// Ends the disabled state. SCHED stays with the caller: the poll that follows sees whatever came meanwhile, which
/// is why MISSED goes.
pub(super) fn enable(word: u32) -> u32 {
    word & !(NPSVC | MISSED | FIRED) | SCHED
}

/// A state word at some moment, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(pub(super) u32);

impl State {
    /// A thread owns the instance.
    pub fn is_scheduled(self) -> bool {
        self.0 & SCHED != 0
    }

    /// The owner will poll once more.
    pub fn is_missed(self) -> bool {
        self.0 & MISSED != 0
    }

    /// A thread waits to disable it.
    pub fn is_disable_pending(self) -> bool {
        self.0 & DISABLE != 0 && !mutated(Mutant::DisableNotSeen)
    }

    /// The owner is a busy poller.
    pub fn is_busy_polling(self) -> bool {
        self.0 & IN_BUSY_POLL != 0
    }

    /// A busy poller would rather have it.
    pub fn prefers_busy_poll(self) -> bool {
        self.0 & PREFER_BUSY_POLL != 0
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
        let bits = SCHED | MISSED | DISABLE | NPSVC | IN_BUSY_POLL | PREFER_BUSY_POLL | FIRED;
        for word in (0..=bits).filter(|word| word & !bits == 0) {
            let sched = word & SCHED != 0;
            match prep(word) {
                Some(new) if word & DISABLE != 0 => assert_eq!(new, word),
                new => assert_eq!(new, Some(word | SCHED | if sched { MISSED } else { 0 })),
            }
            let free = word & (SCHED | DISABLE) == 0;
            let fired = if word & DISABLE != 0 { word } else { word | FIRED };
            assert_eq!(watchdog(word), Some(if free { word & !PREFER_BUSY_POLL | SCHED } else { fired }));
            assert_eq!(complete(word) & SCHED != 0, word & MISSED != 0);
            assert_eq!(complete(word) & (MISSED | PREFER_BUSY_POLL | FIRED), 0);
            let kept = if word & (MISSED | FIRED) != 0 { SCHED } else { 0 };
            assert_eq!(complete_applied(word), complete(word) & !SCHED | kept);
            assert_eq!(rearm(word), word & !FIRED);
            let others = DISABLE | NPSVC | IN_BUSY_POLL;
            assert_eq!(complete(word) & others, word & others);
            assert_eq!(disable(word).is_some(), word & (SCHED | NPSVC) == 0);
            let disabled = |new| State(new).is_disabled() && new & (DISABLE | PREFER_BUSY_POLL) == 0;
            assert!(disable(word).is_none_or(disabled));
            assert_eq!(enable(word), word & !(NPSVC | MISSED | FIRED) | SCHED);
            let kept = if word & NPSVC != 0 { word } else { word & (DISABLE | PREFER_BUSY_POLL) };
            assert_eq!(dropped(word), kept);

            let free = word & (SCHED | DISABLE | NPSVC) == 0;
            let taken = free.then_some(word | SCHED | IN_BUSY_POLL);
            assert_eq!(busy_poll(word, false), taken);
            let asks = sched && word & (DISABLE | NPSVC | PREFER_BUSY_POLL) == 0;
            assert_eq!(busy_poll(word, true), taken.or(asks.then_some(word | PREFER_BUSY_POLL)));
            let stopped = word & (DISABLE | NPSVC | PREFER_BUSY_POLL);
            let kept = if word & FIRED != 0 { word & SCHED } else { 0 };
            assert_eq!(stop_deferred(word), stopped | kept, "what was armed before is spent");
            assert_eq!(stop_to_poll(word), stopped | word & SCHED);
        }
    }

    #[test]
    fn names_its_bits() {
        assert_eq!(State(0).to_string(), "idle");
        assert_eq!(State(SCHED | DISABLE).to_string(), "sched|disable");
    }
}
