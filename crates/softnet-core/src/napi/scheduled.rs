//! Ownership of an instance: scheduled (to be polled) or disabled.
//!
//! Each is held by one party at a time, wherever it runs, and gives it `&mut` to the body.

use std::num::NonZeroU64;
use std::ops::Deref;

use super::instance::{Body, Napi, NapiInfo};
use super::mitigation::Deferral;
use super::state::{self, State};
use crate::SoftnetData;
use crate::skb::{Batch, DropReason};
use crate::sync::Guard;

/// An instance that its holder must poll and complete.
///
/// Dropping it gives ownership up without the completion protocol: the doorbell stays masked, and a wish for
/// another poll is forgotten. That is right only for a stack that is being taken down.
#[must_use = "a scheduled instance must be polled"]
pub struct Scheduled<Q>(pub(super) Guard<NapiInfo, Body<Q>>);

/// What a completion came to.
pub enum Completion<Q> {
    /// Ownership was released.
    Released(Released<Q>),
    /// The holder still owns the instance and must poll it once more.
    Again(Scheduled<Q>),
}

/// What to do about the doorbell of an instance that was released. By the time it is done another thread may
/// own the instance; at the worst the doorbell then rings once for nothing.
pub struct Released<Q> {
    /// The instance.
    pub napi: Napi<Q>,
    /// Arm its timer, this many ns from now, in place of what it was armed with; when it fires, call
    /// [`Napi::watchdog`].
    pub timer: Option<NonZeroU64>,
    /// Unmask the doorbell, then look at the ring again: a packet that came before the unmasking does not ring.
    pub unmask: bool,
}

impl<Q> Scheduled<Q> {
    /// What any thread may read, and the body.
    #[inline(always)]
    pub fn parts(&mut self) -> (&NapiInfo, &mut Body<Q>) {
        self.0.parts()
    }

    /// The body.
    #[inline(always)]
    pub fn body(&mut self) -> &mut Body<Q> {
        self.0.parts().1
    }

    /// A handle of the instance.
    pub fn napi(&self) -> Napi<Q> {
        Napi(self.0.cell().clone())
    }

    /// Whether a thread waits to disable it: the poll must end soon.
    #[inline(always)]
    pub fn disable_pending(&self) -> bool {
        State(self.0.cell().word()).is_disable_pending()
    }

    /// Whether a busy poller would rather have it: a poll that used its whole weight must end.
    #[inline(always)]
    pub fn prefers_busy_poll(&self) -> bool {
        State(self.0.cell().word()).prefers_busy_poll()
    }

    /// Hands the packets that GRO gives up to `deliver`, which must take all it is given.
    pub fn flush_gro(&mut self, old_only: bool, mut deliver: impl FnMut(&NapiInfo, &mut Batch)) {
        let (info, body) = self.0.parts();
        let Some(gro) = &mut body.gro else { return };
        // A batch that `deliver` did not empty ends this: what is left in it goes on with the next poll.
        while gro.held() > 0 && body.batch.is_empty() {
            gro.flush(&info.stats.gro, &mut body.batch, old_only);
            if body.batch.is_empty() {
                return;
            }
            deliver(info, &mut body.batch);
        }
    }

    /// As [`complete`](Self::complete), for an owner that may lose its CPU at any time, as an application's thread may:
    /// `apply` is called before ownership is released, so that there is no moment at which a thread that does not go on
    /// leaves the doorbell masked, the timer spent, and the instance to itself. It arms the timer with the time it is given,
    /// if any, and unmasks the doorbell if it is told to; `false`: packets wait already. Then, and if the timer fired or
    /// the doorbell rang in between, the caller still is the owner.
    pub fn complete_applied(
        mut self,
        work: usize,
        deliver: impl FnMut(&NapiInfo, &mut Batch),
        apply: impl FnOnce(Option<NonZeroU64>, bool) -> bool,
    ) -> Completion<Q> {
        if self.0.cell().word() & state::NPSVC != 0 {
            return Completion::Again(self);
        }
        let deferral = self.end_poll(work, deliver);
        let rearmed = self.rearm();
        if !apply(deferral.timer, !deferral.masked) {
            return Completion::Again(rearmed);
        }
        match rearmed.0.release(state::complete_applied) {
            Ok(cell) => Completion::Released(Released { napi: Napi(cell), timer: None, unmask: false }),
            Err(guard) => {
                guard.cell().shared().stats.missed.add(1);
                Completion::Again(Scheduled(guard))
            }
        }
    }

    /// What every completion begins with: asks mitigation, and lets GRO flush.
    #[inline(always)]
    fn end_poll(&mut self, work: usize, deliver: impl FnMut(&NapiInfo, &mut Batch)) -> Deferral {
        let (info, body) = self.0.parts();
        let gro_holds = body.gro.as_ref().is_some_and(|gro| gro.held() > 0);
        let deferral = body.mitigation.complete(&info.mitigation, work, gro_holds);
        self.flush_gro(deferral.timer.is_some(), deliver);
        self.stats.completions.add(1);
        deferral
    }

    /// Forgets that the timer fired while the instance was owned, for it is armed next.
    pub(super) fn rearm(self) -> Self {
        if self.0.cell().word() & state::FIRED == 0 {
            return self;
        }
        match self.0.release(state::rearm) {
            Err(guard) => Scheduled(guard),
            Ok(_) => unreachable!("SCHED stays"),
        }
    }

    /// Ends a poll that received `work` packets: asks mitigation, lets GRO flush (into `deliver`, which must
    /// take all it is given), and releases ownership, all in the order of the kernel's `napi_complete_done`. Must be
    /// called for polls without work too.
    pub fn complete(mut self, work: usize, deliver: impl FnMut(&NapiInfo, &mut Batch)) -> Completion<Q> {
        if self.0.cell().word() & state::NPSVC != 0 {
            return Completion::Again(self);
        }
        let deferral = self.end_poll(work, deliver);
        match self.0.release(state::complete) {
            Ok(cell) => Completion::Released(Released {
                napi: Napi(cell),
                timer: deferral.timer,
                unmask: !deferral.masked,
            }),
            Err(guard) => {
                guard.cell().shared().stats.missed.add(1);
                Completion::Again(Scheduled(guard))
            }
        }
    }
}

impl<Q> Deref for Scheduled<Q> {
    type Target = NapiInfo;

    #[inline(always)]
    fn deref(&self) -> &NapiInfo {
        self.0.cell().shared()
    }
}

/// An instance that is disabled. Its holder may change the body (replace the queue, install hooks), and alone can
/// enable it. Dropping it leaves the instance disabled for ever, as is right for one that is deleted.
pub struct Disabled<Q>(pub(super) Guard<NapiInfo, Body<Q>>);

impl<Q> Disabled<Q> {
    /// The body.
    pub fn body(&mut self) -> &mut Body<Q> {
        self.0.parts().1
    }

    /// A handle of the instance.
    pub fn napi(&self) -> Napi<Q> {
        Napi(self.0.cell().clone())
    }

    /// Frees what GRO holds, for `reason`: the instance is deleted (`napi_gro_free`).
    pub fn free_gro(&mut self, ctx: &mut SoftnetData, reason: DropReason) {
        let (info, body) = self.0.parts();
        let Some(gro) = &mut body.gro else { return };
        let mut batch = Batch::new();
        while gro.held() > 0 {
            gro.flush(&info.stats.gro, &mut batch, false);
            ctx.free_batch(&mut batch, reason);
        }
    }

    /// Takes out what GRO holds, as much as there is room for in `batch`.
    pub fn take_gro(&mut self, batch: &mut Batch) {
        let (info, body) = self.0.parts();
        if let Some(gro) = &mut body.gro {
            gro.flush(&info.stats.gro, batch, false);
        }
    }

    /// Enables the instance, scheduled: its doorbell is masked, and this first poll finds whatever has come and leads
    /// to the completion that unmasks it.
    pub fn enable(self) -> Scheduled<Q> {
        self.stats.schedules.add(1);
        match self.0.release(state::enable) {
            Err(guard) => Scheduled(guard),
            Ok(_) => unreachable!("enabling keeps SCHED"),
        }
    }
}

impl<Q> Deref for Disabled<Q> {
    type Target = NapiInfo;

    fn deref(&self) -> &NapiInfo {
        self.0.cell().shared()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::thread;

    use super::*;
    use crate::gro::{GroParams, GroStats};
    use crate::napi::{Gro, MIN_NAPI_ID};
    use crate::skb::{CacheSizes, HeapMemory, Region};
    use crate::sync::{PushError, mailbox};

    fn release<Q>(scheduled: Scheduled<Q>) -> Released<Q> {
        match scheduled.complete(0, |_, _| unreachable!("nothing is held")) {
            Completion::Released(released) => released,
            Completion::Again(_) => panic!("no thread scheduled it meanwhile"),
        }
    }

    #[test]
    fn a_fresh_instance_is_disabled_until_enabled() {
        let (napi, mut disabled) = Napi::new("eth0-1", 3, 1, 'q');
        let (other, _) = Napi::new("eth0-2", 3, 2, 'q');
        assert!(napi.id >= MIN_NAPI_ID && other.id != napi.id);
        assert_eq!((napi.name.as_str(), napi.dev, napi.queue), ("eth0-1", 3, 1));
        assert!(napi.state().is_disabled());
        assert!(napi.schedule_prep().is_none() && napi.watchdog().is_none());
        assert!(napi.try_disable().is_none(), "it is disabled already");
        disabled.body().rx = 'r';
        let mut scheduled = disabled.enable();
        assert_eq!(scheduled.body().rx, 'r');
        assert_eq!(napi.state().to_string(), "sched", "the wish while disabled is forgotten");
        assert!(release(scheduled).unmask);
        assert_eq!(napi.state().to_string(), "idle");
    }

    #[test]
    fn a_schedule_during_a_poll_leads_to_one_more_and_the_timer_to_none() {
        let (napi, disabled) = Napi::new("t", 0, 0, ());
        let scheduled = disabled.enable();
        assert!(napi.watchdog().is_none());
        assert!(!napi.state().is_missed());
        assert!(napi.schedule_prep().is_none());
        assert!(napi.schedule_prep().is_none());
        let Completion::Again(scheduled) = scheduled.complete(1, |_, _| ()) else {
            panic!("it was scheduled meanwhile");
        };
        release(scheduled);
        release(napi.watchdog().expect("idle"));
        let stats = &napi.stats;
        assert_eq!((stats.schedules.get(), stats.missed.get(), stats.completions.get()), (2, 1, 3));
    }

    #[test]
    fn completion_does_nothing_under_npsvc() {
        let (napi, disabled) = Napi::new("t", 0, 0, ());
        let scheduled = disabled.enable();
        napi.0.set(state::NPSVC);
        let Completion::Again(scheduled) = scheduled.complete(1, |_, _| ()) else { panic!("NPSVC is set") };
        assert_eq!((napi.state().is_disabled(), napi.stats.completions.get()), (true, 0));
        drop(scheduled);
    }

    #[test]
    fn disable_while_scheduled_polled_and_idle() {
        let (napi, disabled) = Napi::new("t", 0, 0, ());
        let scheduled = disabled.enable();
        napi.disable();
        assert!(scheduled.disable_pending() && napi.try_disable().is_none());
        release(scheduled);
        assert!(napi.schedule_prep().is_none(), "no new owner while a disable waits");
        drop(napi.try_disable().expect("released"));
        assert!(napi.state().is_disabled(), "for ever");

        let (napi, disabled) = Napi::new("t", 0, 0, ());
        release(disabled.enable());
        napi.disable();
        assert!(napi.watchdog().is_none());
        assert!(napi.try_disable().is_some(), "idle: at once");

        let (napi, disabled) = Napi::new("t", 0, 0, ());
        drop(disabled.enable());
        assert!(napi.try_disable().is_some(), "its worker died");
    }

    /// Many threads schedule while one polls and another disables and enables. No poll runs while it is disabled, and
    /// what the last scheduler did before it scheduled is seen by a poll.
    #[test]
    fn schedule_poll_and_disable_under_traffic() {
        const ROUNDS: u32 = 10_000;
        let (napi, disabled) = Napi::new("t", 0, 0, 0u32);
        let (tx, mut rx) = mailbox::<Scheduled<u32>>(4);
        let (arrived, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        assert!(tx.push(disabled.enable()).is_ok());
        let mut threads = Vec::new();
        for _ in 0..3 {
            let (napi, tx, arrived) = (napi.clone(), tx.clone(), arrived.clone());
            threads.push(thread::spawn(move || {
                for _ in 0..ROUNDS {
                    arrived.fetch_add(1, Ordering::Relaxed);
                    if let Some(scheduled) = napi.schedule_prep() {
                        let sent = tx.push(scheduled);
                        assert!(!matches!(sent, Err(PushError::Full(_))), "one token per instance");
                    }
                }
            }));
        }
        let worker = thread::spawn({
            let (arrived, done) = (arrived.clone(), done.clone());
            move || {
                let mut again = Vec::new();
                while !done.load(Ordering::Acquire) || rx.has_pending() || !again.is_empty() {
                    again.extend(rx.drain());
                    for mut scheduled in std::mem::take(&mut again) {
                        scheduled.stats.polls.add(1);
                        scheduled.body().rx = arrived.load(Ordering::Relaxed);
                        if let Completion::Again(scheduled) = scheduled.complete(0, |_, _| ()) {
                            again.push(scheduled);
                        }
                    }
                    thread::yield_now();
                }
            }
        });
        while threads.iter().any(|t| !t.is_finished()) {
            napi.disable();
            let disabled = loop {
                match napi.try_disable() {
                    Some(disabled) => break disabled,
                    None => thread::yield_now(),
                }
            };
            let polls = disabled.stats.polls.get();
            thread::yield_now();
            assert_eq!(disabled.stats.polls.get(), polls);
            assert!(tx.push(disabled.enable()).is_ok());
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
        done.store(true, Ordering::Release);
        worker.join().unwrap();
        let mut disabled = napi.try_disable().expect("idle");
        assert_eq!(disabled.body().rx, 3 * ROUNDS, "the last schedule led to a poll");
    }

    /// Holds every packet; the first `old` are old. Flushes at most two at a time.
    struct Hold {
        held: Batch,
        old: usize,
    }

    impl Gro for Hold {
        fn receive_frames(
            &mut self,
            _: &mut SoftnetData,
            _: &GroStats,
            _: &GroParams,
            _: &mut crate::skb::FrameBatch,
            _: &mut Batch,
        ) {
        }
        fn receive(&mut self, _: &mut SoftnetData, _: &GroStats, _: &GroParams, batch: &mut Batch) {
            self.held.append(batch);
        }

        fn more(&mut self, _: &mut Batch) {}

        fn tick(&mut self, _: u64) {}

        fn flush(&mut self, _: &GroStats, out: &mut Batch, old_only: bool) {
            let n = if old_only { self.old } else { self.held.len() }.min(2);
            self.old = self.old.saturating_sub(n);
            self.held.drain().take(n).for_each(|skb| out.push(skb).expect("two fit"));
        }

        fn held(&self) -> usize {
            self.held.len()
        }
    }

    #[test]
    fn completion_asks_mitigation_and_flushes_gro() {
        let memory = Box::new(HeapMemory::new(Region::bytes(64, 64)));
        let mut store = SoftnetData::new(Region::new(memory, 64, 64).unwrap(), CacheSizes::default());
        let (napi, mut disabled) = Napi::new("t", 0, 0, ());
        disabled.body().gro = Some(Box::new(Hold { held: Batch::new(), old: 3 }));
        napi.mitigation.set_defer_hard_irqs(2).unwrap();
        napi.mitigation.set_gro_flush_timeout(20_000);
        let mut scheduled = disabled.enable();
        let (info, body) = scheduled.parts();
        (0..8).for_each(|_| body.batch.push(store.alloc_skb().unwrap()).unwrap());
        let gro = body.gro.as_mut().unwrap();
        gro.receive(&mut store, &info.stats.gro, &GroParams::default(), &mut body.batch);

        let mut delivered = Vec::new();
        let mut complete = |scheduled: Scheduled<()>, work| {
            let done = scheduled.complete(work, |_, batch| {
                delivered.push(batch.len());
                batch.drain().for_each(|skb| store.free_skb(skb));
            });
            let Completion::Released(released) = done else { panic!("no thread scheduled it meanwhile") };
            let held = std::mem::take(&mut delivered);
            (released.timer.map_or(0, NonZeroU64::get), released.unmask, held, released.napi)
        };
        let mut round = |scheduled, work| {
            let (timer, unmask, held, napi) = complete(scheduled, work);
            ((timer, unmask, held), napi.watchdog().expect("idle"))
        };
        let (did, scheduled) = round(scheduled, 5);
        assert_eq!(did, (20_000, false, vec![2, 1]), "only the old packets");
        napi.mitigation.set_defer_hard_irqs(0).unwrap();
        let (did, scheduled) = round(scheduled, 0);
        assert_eq!(did, (20_000, false, vec![]), "the counter runs on");
        let (did, scheduled) = round(scheduled, 3);
        assert_eq!(did, (20_000, true, vec![]), "the timer bounds what GRO holds, the doorbell rings again");
        let (did, mut scheduled) = round(scheduled, 0);
        assert_eq!(did, (0, true, vec![2, 2, 1]), "no timer: all of them");
        assert_eq!(scheduled.body().gro.as_ref().unwrap().held(), 0);
    }
}
