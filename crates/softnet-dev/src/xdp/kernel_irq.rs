//! The kernel's own interrupt of a queue. Not reading an AF_XDP socket does not keep the driver from taking its
//! interrupts and filling the ring; so where the kernel lets us, its NAPI instance is deferred by the knobs that softnet's
//! has (`napi_defer_hard_irqs`, `gro_flush_timeout`, `irq_suspend_timeout`), and polled by the thread that polls
//! softnet's (preferred busy polling, Documentation/networking/napi.rst).
//!
//! * **Callers.** Any thread; system calls are made on the control path only. [`QueueIrq::is_polled`] is for the
//!   queues' owners.
//! * **Invariant.** Only an instance for which the kernel reports an interrupt is touched, for what is masked must be able
//!   to ring again: a veth left "masked" has been seen to receive no more. What was set before is put back when the
//!   queue is closed or its knobs become 0, unless another program has set something meanwhile. (A process that is
//!   killed leaves the knobs as they are; without an AF_XDP socket they go on deferring the interface's interrupts.)
//! * **What else lives on the queue.** Packets that softnet leaves to the kernel come by the same instance, and are
//!   deferred with the others.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use softnet_core::napi::MitigationConfig;
use softnet_core::skb::BATCH;

use crate::device::KernelIrq;
use crate::hand_over::KnobFacts;
use crate::netlink::{KernelNapi, Link, NapiKnobs, NetdevFamily};
use crate::sys_error::SysResult;

/// What `SO_BUSY_POLL` is set to, in µs. Any but 0 will do: a call that may not block polls once, and returns.
const BUSY_POLL_USECS: c_int = 20;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kernel's NAPI instances of an interface.
pub(super) struct KernelNapis {
    ifindex: u32,
    /// What is said of an instance without an interrupt.
    silent: String,
    state: Mutex<State>,
}

struct State {
    /// Or why there is no way to it. In the network namespace of the interface.
    family: Result<NetdevFamily, String>,
    /// By RX queue: what is set in the kernel now.
    mirrored: BTreeMap<u32, Mirrored>,
}

/// Knobs that were set in the kernel.
#[derive(Clone, Copy)]
struct Mirrored {
    napi: u32,
    before: NapiKnobs,
    set: NapiKnobs,
}

impl KernelNapis {
    /// Of `link`, an interface of the calling thread's network namespace.
    pub(super) fn new(link: &Link) -> Self {
        let family = NetdevFamily::new().map_err(|error| match error.errno() {
            Some(libc::ENOENT) => "this kernel has no netlink family netdev (Linux 6.8)".into(),
            _ => error.to_string(),
        });
        let silent = match &link.kind {
            Some(kind) => format!("{kind} has no interrupt"),
            None => "the driver reports no interrupt".into(),
        };
        let state = Mutex::new(State { family, mirrored: BTreeMap::new() });
        KernelNapis { ifindex: link.index, silent, state }
    }

    /// Sets the knobs of the instance that polls `queue`, or puts back what was there; if it may be touched.
    fn mirror(&self, queue: u32, wanted: Option<NapiKnobs>) -> KernelIrq {
        let mut state = lock(&self.state);
        let outcome = state.instance(self.ifindex, queue).and_then(|napi| {
            let (napi, now) = usable(napi, &self.silent)?;
            match wanted {
                Some(wanted) => state.set(queue, napi, now, wanted),
                None => {
                    state.put_back(self.ifindex, queue).map_err(|error| error.to_string())?;
                    Err("no deferral is set".into())
                }
            }
        });
        outcome.map_or_else(KernelIrq::NotMasked, |()| KernelIrq::Deferred)
    }
}

fn knobs((defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout): (u32, u64, u64)) -> NapiKnobs {
    NapiKnobs { defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout }
}

impl KernelNapis {
    /// What is set for `queue`, for another process.
    pub(super) fn mirrored(&self, queue: u32) -> Option<KnobFacts> {
        let Mirrored { napi, before, set } = *lock(&self.state).mirrored.get(&queue)?;
        let told =
            |knobs: NapiKnobs| (knobs.defer_hard_irqs, knobs.gro_flush_timeout, knobs.irq_suspend_timeout);
        Some(KnobFacts { napi, before: told(before), set: told(set) })
    }

    /// Another process has set what `told` says, and this one is to put it back.
    pub(super) fn taken_over(&self, queue: u32, told: Option<&KnobFacts>) {
        if let Some(&KnobFacts { napi, before, set }) = told {
            let mirrored = Mirrored { napi, before: knobs(before), set: knobs(set) };
            lock(&self.state).mirrored.insert(queue, mirrored);
        }
    }
}

/// The number and the knobs of an instance that may be touched, or why it may not. `None`: the driver does not tell which
/// instance it is. `silent`: what to say if it has no interrupt.
fn usable(napi: Option<KernelNapi>, silent: &str) -> Result<(u32, NapiKnobs), String> {
    match napi {
        Some(KernelNapi { id, irq: Some(_), knobs: Some(knobs) }) => Ok((id, knobs)),
        Some(KernelNapi { irq: Some(_), knobs: None, .. }) => {
            Err("this kernel has no knobs for a single NAPI instance (Linux 6.13)".into())
        }
        Some(KernelNapi { irq: None, .. }) | None => Err(silent.into()),
    }
}

impl State {
    fn instance(&mut self, ifindex: u32, queue: u32) -> Result<Option<KernelNapi>, String> {
        let family = self.family.as_mut().map_err(|why| why.clone())?;
        let napi = family.queue_napi(ifindex, queue).and_then(|id| id.map(|id| family.napi(id)).transpose());
        napi.map_err(|error| match error.errno() {
            Some(libc::ENOENT) => "it had no NAPI instance when last tried: was the interface down?".into(),
            Some(libc::EOPNOTSUPP) => "this kernel tells nothing of its NAPI instances (Linux 6.8)".into(),
            _ => error.to_string(),
        })
    }

    /// Sets the knobs of instance `napi`, which has `now`, for `queue`.
    fn set(&mut self, queue: u32, napi: u32, now: NapiKnobs, wanted: NapiKnobs) -> Result<(), String> {
        let shared = self.mirrored.iter().find(|(other, m)| **other != queue && m.napi == napi);
        if let Some((other, _)) = shared {
            return Err(format!("the kernel polls it with queue {other}, by whose knobs it goes"));
        }
        // What is there and is not ours is what has to be put back.
        let ours = self.mirrored.get(&queue).filter(|m| m.set == now);
        let before = ours.map_or(now, |m| m.before);
        let family = self.family.as_mut().map_err(|why| why.clone())?;
        family.set_napi(napi, wanted).map_err(|error| error.to_string())?;
        self.mirrored.insert(queue, Mirrored { napi, before, set: wanted });
        Ok(())
    }

    /// Puts back what the instance of `queue` had before, if what it has now is what was set here.
    fn put_back(&mut self, ifindex: u32, queue: u32) -> SysResult<()> {
        let Some(&Mirrored { napi, before, set }) = self.mirrored.get(&queue) else { return Ok(()) };
        let Ok(family) = &mut self.family else { return Ok(()) };
        // It may have been made anew, with the knobs of the old one (rings were resized, the interface was down).
        let napi = family.queue_napi(ifindex, queue)?.unwrap_or(napi);
        if family.napi(napi)?.knobs == Some(set) {
            family.set_napi(napi, before)?;
        }
        self.mirrored.remove(&queue);
        Ok(())
    }
}

/// The interrupt of one queue.
pub(super) struct QueueIrq {
    napis: Arc<KernelNapis>,
    queue: u32,
    /// What became of it last; `None` once the queue is closed.
    state: Mutex<Option<KernelIrq>>,
    /// The socket prefers busy polling.
    polled: AtomicBool,
}

impl QueueIrq {
    /// Of RX queue `queue`, left as it is.
    pub(super) fn new(napis: Arc<KernelNapis>, queue: u32) -> Self {
        let state = Mutex::new(Some(KernelIrq::NotMasked("no deferral is set".into())));
        QueueIrq { napis, queue, state, polled: AtomicBool::new(false) }
    }

    /// The socket is another process's no more, which had it prefer busy polling, or not.
    pub(super) fn taken_over(&self, polled: bool) {
        self.polled.store(polled, Ordering::Relaxed);
    }

    /// softnet's knobs of the queue were set; calls on `sockets` may poll the kernel's instance.
    pub(super) fn changed<'a>(
        &self,
        sockets: impl Iterator<Item = BorrowedFd<'a>> + Clone,
        knobs: &MitigationConfig,
    ) {
        let (n, t) = (knobs.defer_hard_irqs(), knobs.gro_flush_timeout());
        let wanted = (n > 0 && t > 0).then(|| NapiKnobs {
            defer_hard_irqs: n,
            gro_flush_timeout: t,
            irq_suspend_timeout: knobs.irq_suspend_timeout(),
        });
        // Held to the end: of two callers the later has the last word in the kernel too.
        let mut state = lock(&self.state);
        if state.is_some() {
            let irq = self.napis.mirror(self.queue, wanted);
            self.prefer_busy_poll(sockets, irq == KernelIrq::Deferred);
            *state = Some(irq);
        }
    }

    /// The queue is being closed: puts back what was there. Nothing is set from now on.
    pub(super) fn close<'a>(&self, sockets: impl Iterator<Item = BorrowedFd<'a>> + Clone) {
        let mut state = lock(&self.state);
        self.prefer_busy_poll(sockets, false);
        // An interface that is gone has nothing to be put back.
        let _ = lock(&self.napis.state).put_back(self.napis.ifindex, self.queue);
        *state = None;
    }

    /// For display.
    pub(super) fn state(&self) -> KernelIrq {
        lock(&self.state).clone().unwrap_or(KernelIrq::None)
    }

    /// Whether a call on the socket polls the kernel's instance, which stays masked meanwhile and for a while after. The
    /// instance's owner is then to make one when it finds nothing.
    #[inline]
    pub(super) fn is_polled(&self) -> bool {
        self.polled.load(Ordering::Relaxed)
    }

    /// Has calls on `sockets` poll the kernel's instance, or no longer. A kernel that can't (without
    /// `CONFIG_NET_RX_BUSY_POLL`) still polls it by its timer.
    pub(super) fn prefer_busy_poll<'a>(
        &self,
        sockets: impl Iterator<Item = BorrowedFd<'a>> + Clone,
        on: bool,
    ) {
        if on == self.is_polled() {
            return;
        }
        let begin = |socket| {
            set_option(socket, libc::SO_BUSY_POLL_BUDGET, BATCH as c_int)
                .and_then(|()| set_option(socket, libc::SO_PREFER_BUSY_POLL, 1))
                .and_then(|()| set_option(socket, libc::SO_BUSY_POLL, BUSY_POLL_USECS))
        };
        let polled = on && sockets.clone().try_for_each(begin).is_ok();
        if !polled {
            for socket in sockets {
                let _ = set_option(socket, libc::SO_BUSY_POLL, 0);
                let _ = set_option(socket, libc::SO_PREFER_BUSY_POLL, 0);
            }
        }
        self.polled.store(polled, Ordering::Relaxed);
    }
}

fn set_option(socket: BorrowedFd<'_>, option: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the option's value is a live int of the stated length.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            std::ptr::from_ref(&value).cast(),
            size_of::<c_int>() as u32,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;
    use crate::netlink::{Netlink, Offload, set_offload};
    use crate::netns::NetNs;
    use softnet_testkit::net_allowed;

    const KNOBS: NapiKnobs =
        NapiKnobs { defer_hard_irqs: 2, gro_flush_timeout: 20_000, irq_suspend_timeout: 0 };

    #[test]
    fn only_an_instance_with_an_interrupt_and_knobs_is_touched() {
        let napi = |irq, knobs| Some(KernelNapi { id: 7, irq, knobs });
        assert_eq!(usable(napi(Some(30), Some(KNOBS)), "none"), Ok((7, KNOBS)));
        let why = |napi| usable(napi, "none").unwrap_err();
        assert_eq!(why(napi(None, Some(KNOBS))), "none");
        assert_eq!(why(napi(None, None)), "none");
        assert_eq!(why(None), "none");
        assert!(why(napi(Some(30), None)).contains("Linux 6.13"));
    }

    /// On an unused veth, whose instances would never qualify, since no others are at hand.
    #[test]
    fn what_was_there_is_put_back_unless_somebody_else_set_something() {
        if !net_allowed() {
            return;
        }
        let ns = NetNs::new().unwrap();
        ns.run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.add_veth("left", "right", (2, 2), None).unwrap();
            set_offload("left", Offload::Gro, true).unwrap();
            netlink.set_up("left").unwrap();
            let link = netlink.existing_link("left").unwrap();
            let index = link.index;
            let napis = KernelNapis::new(&link);
            assert_eq!(napis.mirror(0, Some(KNOBS)), KernelIrq::NotMasked("veth has no interrupt".into()));

            let mut kernel = NetdevFamily::new().unwrap();
            let ids: Vec<_> = kernel.napis(index).unwrap().iter().map(|napi| napi.id).collect();
            let mut of = |id| kernel.napi(id).unwrap().knobs.unwrap();
            let original = NapiKnobs { gro_flush_timeout: 77, ..NapiKnobs::default() };
            let longer = NapiKnobs { gro_flush_timeout: 50_000, ..KNOBS };
            NetdevFamily::new().unwrap().set_napi(ids[0], original).unwrap();

            let mut state = lock(&napis.state);
            let now = of(ids[0]);
            state.set(0, ids[0], now, KNOBS).unwrap();
            assert_eq!(of(ids[0]), KNOBS);
            let why = state.set(1, ids[0], KNOBS, longer).unwrap_err();
            assert_eq!(why, "the kernel polls it with queue 0, by whose knobs it goes");
            state.set(0, ids[0], KNOBS, longer).unwrap();
            assert_eq!(of(ids[0]), longer);
            state.put_back(index, 0).unwrap();
            assert_eq!(of(ids[0]), original, "what was there before the first change");
            assert_eq!(of(ids[1]), NapiKnobs::default(), "not touched");

            // Another program's last word stands, whether it comes between two changes or after the last.
            state.set(0, ids[0], original, KNOBS).unwrap();
            let theirs = NapiKnobs { defer_hard_irqs: 9, ..KNOBS };
            NetdevFamily::new().unwrap().set_napi(ids[0], theirs).unwrap();
            state.set(0, ids[0], theirs, longer).unwrap();
            state.put_back(index, 0).unwrap();
            assert_eq!(of(ids[0]), theirs);
            state.set(0, ids[0], theirs, KNOBS).unwrap();
            NetdevFamily::new().unwrap().set_napi(ids[0], original).unwrap();
            state.put_back(index, 0).unwrap();
            assert_eq!(of(ids[0]), original);
            state.put_back(index, 0).unwrap();

            // Last: without the privilege nothing is set, and the reason names it.
            let mut sets = capabilities(None).unwrap();
            sets.effective -= CapabilitySet::NET_ADMIN;
            set_capabilities(None, sets).unwrap();
            let why = state.set(0, ids[0], original, KNOBS).unwrap_err();
            assert!(why.contains("CAP_NET_ADMIN"), "{why}");
            assert_eq!((of(ids[0]), state.mirrored.len()), (original, 0));
        })
        .unwrap();
    }

    #[test]
    fn a_kernel_without_the_family_is_a_reason_and_no_error() {
        let state = State { family: Err("too old".into()), mirrored: BTreeMap::new() };
        let napis = KernelNapis { ifindex: 1, silent: "none".into(), state: Mutex::new(state) };
        for wanted in [None, Some(KNOBS)] {
            assert_eq!(napis.mirror(0, wanted), KernelIrq::NotMasked("too old".into()));
        }
        lock(&napis.state).put_back(1, 0).unwrap();
    }
}
