//! Faults that a model plants in the production code, one at a time, to show that it would notice.
//!
//! Outside the models [`mutated`] is the constant `false`, so that a fault's branch is not compiled at all.

use super::Ordering;

/// A fault. Each is named for what goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// Ownership is taken by looking, then storing.
    AcquireNotAtomic,
    /// Ownership is given up by looking at the other bits, then storing.
    ReleaseNotFolded,
    /// Ownership is given up without ordering what was done under it.
    ReleaseRelaxed,
    /// Completion forgets the MISSED bit.
    MissedIgnored,
    /// A schedule that finds MISSED set already does not write.
    MissedNotRewritten,
    /// An instance that a thread waits to disable can still be scheduled and busy polled.
    DisableNotRefused,
    /// A schedule that is refused because of a disable trusts a look.
    RefusalOnlyLooks,
    /// An owner that receives without end does not see that a thread waits to disable the instance.
    DisableNotSeen,
    /// An instance is enabled without the poll that must follow. The poll is the runtime's, so the fault is in the models.
    #[cfg(all(test, feature = "loom"))]
    EnabledUnpolled,
    /// An instance is enabled at its new home while its old one may still watch its doorbell. Fault of the models.
    #[cfg(all(test, feature = "loom"))]
    NotForgotten,
    /// A busy poller that finds the instance owned does not ask for it.
    PreferNotSet,
    /// An application died while it polled, and no thread schedules the instance. Fault of the models.
    #[cfg(all(test, feature = "loom"))]
    DeathUnnoticed,
    /// Completion leaves a busy poller's wish behind.
    PreferNotConsumed,
    /// The timer is armed before ownership is released. The timer is the runtime's, so the fault is in the models.
    #[cfg(all(test, feature = "loom"))]
    ArmedTooEarly,
    /// A timer that fires trusts a look at the owner of the instance.
    WatchdogOnlyLooks,
    /// A poller that stops leaves the timer to what follows. The timer is the runtime's, so the fault is in the models.
    #[cfg(all(test, feature = "loom"))]
    StopNotArmed,
    /// A release after the timer was armed does not see that it has fired since.
    FiredNotSeen,
    /// The owner leaves without looking whether something is pending.
    LeaveBlind,
    /// The owner leaves without ordering what was done under ownership.
    LeaveRelaxed,
    /// The pending list is detached without ordering what the pushers wrote.
    DetachRelaxed,
    /// An element is pushed without ordering what was written to it.
    PushRelaxed,
    /// Ownership is parked without ordering what was done under it.
    ParkRelaxed,
    /// Parked ownership is taken by looking, then storing.
    UnparkNotAtomic,
    /// A sender that takes over a parked TX queue queues its own packets before what is pending.
    OwnBeforePending,
    /// The thread that owns a TX queue does not look whether it was deactivated meanwhile.
    DeactivatedNotSeen,
    /// An owner that took what was pending does not say so.
    DrainNotSaid,
    /// The detached list is handed out as it lies, newest first.
    NotReversed,
    /// The pusher that found the list empty is not told so.
    FirstNotTold,
    /// Announcing sleep has no fence.
    AnnounceNoFence,
    /// Announcing sleep has a fence that does not order a store before later loads.
    AnnounceWeakFence,
    /// The thread that announced sleep, or unmasked a doorbell, does not look at its inputs again. The look is the
    /// caller's, so the fault is in the models.
    #[cfg(all(test, feature = "loom"))]
    NoSecondLook,
    /// A thread that left something to a lock's holder tries the lock without a fence.
    LeftNoFence,
    /// A record of a capture is published without ordering its words.
    TapTailRelaxed,
    /// A holder that let go of its lock looks for what was left without a fence.
    LetGoNoFence,
    /// A holder that let go of its lock does not look for what was left. Fault of the models.
    #[cfg(all(test, feature = "loom"))]
    LeftNotSeen,
    /// A shard's first deadline is left without a fence before the look at the timer thread's time.
    DeadlineNoFence,
    /// The timer thread takes its time back without a fence before it looks at the shards' deadlines.
    DueNoFence,
    /// The timer thread looks at the shards' deadlines before it takes its own time back. The order is the runtime's, so the
    /// fault is in the models.
    #[cfg(all(test, feature = "loom"))]
    DueTakenLate,
    /// A shard's holder lowers the timer thread's time before it leaves the deadline. Fault of the models.
    #[cfg(all(test, feature = "loom"))]
    LoweredEarly,
    /// The timer thread reads its time before it announces that it sleeps. Fault of the models.
    #[cfg(all(test, feature = "loom"))]
    DueReadEarly,
    /// Waking has no fence.
    WakeNoFence,
    /// A thread that is about to block on a socket announces that without a fence.
    TicketNoFence,
    /// A receiver that takes packets says so without ordering it before.
    HeldNoFence,
    /// A receiver says that it has packets after it took them.
    HeldSaidLate,
    /// A set's thread does not fence between unmarking an item and looking at its socket.
    UnmarkNoFence,
    /// A thread that tells the waiters of a socket does not fence before it looks for them.
    NotifyNoFence,
    /// A thread that tells the waiters of a socket does not change what they block on.
    NotifyUncounted,
    /// A thread that was woken for a datagram does not wake the next one for those that it leaves.
    NotPassedOn,
    /// Datagrams that find others waiting are not told to sets of which one is told at a time.
    AgainNotTold,
    /// Of sets of which one is told at a time, the first is, though its thread does not wait.
    ExclusiveStops,
    /// A socket receives what was meant for the one that had its slot before.
    StampNotChecked,
    /// A look-up believes a key without looking at its generation again.
    GenerationNotChecked,
    /// A look-up that found nothing does not look whether the table was changed meanwhile.
    VersionNotChecked,
    /// Senders are told that a path takes less without ordering before where it is.
    PathRelaxed,
    /// Senders are told that a path takes less before it is in the set.
    PathLate,
    /// A thread that found the ready queue empty is counted as idle in a second critical section.
    IdleCountedLate,
    /// Whether a thread is idle is looked at before the element is in the ready queue.
    IdleLookedTooEarly,
    /// No thread is woken for what is pushed to a ready queue that is not empty.
    WakeOnlyIfEmpty,
    /// A backlog's tail counts packets after they are on its list.
    TailCountedLate,
    /// A thread that pushed to a backlog reads its tail before the push.
    TailReadEarly,
    /// A thread that pushed to a backlog reads its tail unordered with the pushes before its own.
    TailNoFence,
    /// A backlog's head counts packets that were taken and not processed yet.
    HeadBeforeWork,
    /// A backlog's head is moved without ordering what became of the packets.
    HeadNotReleased,
    /// A backlog's head is read without ordering what became of the packets.
    HeadRelaxed,
    /// A backlog's head stays where it is when packets were processed.
    HeadNotMoved,
    /// A poll that collects nothing, for want of room, leaves the doorbell masked without a timer.
    HoldUntimed,
    /// A softirq run whose last poll collects nothing does not tell the workers that it pushed to before. Fault of the
    /// models.
    #[cfg(all(test, feature = "loom"))]
    HeldNotTold,
    /// A flow may move between two packets of one batch.
    BatchNotPinned,
    /// A thread that changed a device's filters looks at its senders without a fence.
    RevisionNoFence,
    /// A sender says which filters it goes by without a fence.
    EnterNoFence,
    /// A sender does not look whether filters were changed while it said which it goes by.
    RevisionNotReread,
    /// A sender lets go of the filters that it went by without ordering what it sent.
    RevisionLeftRelaxed,
    /// A look-up of a connection does not look whether its entry was used again meanwhile.
    EntryNotRechecked,
    /// An entry is used again without ordering that after the end of its last use.
    EntryNotFenced,
    /// An entry is said to be alive without ordering what it says.
    EntryRelaxed,
    /// An entry's life word is written without looking whether it is the same still.
    LifeNotExchanged,
    /// The sweep frees an entry that another thread dropped early and uses again.
    DeadExpires,
    /// What a slot of an index stands for is read without ordering after the slot.
    SlotRelaxed,
    /// Whether the owner is to be kicked is looked up after the count was moved.
    KickByLook,
    /// The pool's word carries no tag.
    PoolNoTag,
    /// A chunk is pushed to the pool without ordering what was written.
    PoolPushRelaxed,
}

/// `order`, or no ordering at all under fault `m`.
#[inline(always)]
pub(crate) fn weakened(m: Mutant, order: Ordering) -> Ordering {
    if mutated(m) { Ordering::Relaxed } else { order }
}

/// Whether a model has just failed, so that destructors must not touch loom's objects any more.
#[inline(always)]
pub(crate) fn model_failed() -> bool {
    cfg!(all(test, feature = "loom")) && std::thread::panicking()
}

/// Whether fault `m` is planted.
#[cfg(not(all(test, feature = "loom")))]
#[inline(always)]
pub(crate) const fn mutated(_: Mutant) -> bool {
    false
}

#[cfg(all(test, feature = "loom"))]
mod planted {
    use super::Mutant;
    use std::cell::Cell;

    // Loom runs all threads of a model on the thread of its test, so this is one switch per test.
    std::thread_local!(static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) });

    pub(crate) fn mutated(m: Mutant) -> bool {
        PLANTED.get() == Some(m)
    }

    /// Runs `model` in every interleaving with at most `preemptions` preemptions.
    pub(crate) fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    /// Asserts that `model` fails with fault `m` planted, and not for having grown beyond loom's bounds.
    pub(crate) fn must_fail(m: Mutant, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        PLANTED.set(Some(m));
        let run = std::panic::AssertUnwindSafe(|| check(preemptions, model));
        let result = std::panic::catch_unwind(run);
        PLANTED.set(None);
        let Err(why) = result else { panic!("the model does not notice {m:?}") };
        let why = why.downcast_ref::<String>().map(String::as_str).or(why.downcast_ref().copied());
        assert!(!why.is_some_and(|why| why.contains("exceeded maximum")), "{m:?}: the model grew too large");
    }
}

#[cfg(all(test, feature = "loom"))]
pub(crate) use planted::{check, must_fail, mutated};
