//! How calls that block poll: a socket's `SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET`.
//!
//! A thread that would block polls the NAPI instance that the socket's last packet came by, as an
//! [`Epoll`](super::Epoll) does: packets are processed by the thread that waits for them, and no
//! other is woken. Between two calls the instance's doorbell stays masked for `gro_flush_timeout`,
//! with `prefer_busy_poll`. It is not suspended, as the kernel's is not by `SO_PREFER_BUSY_POLL`: a
//! thread may block in many places that know nothing of it, and others may wait for the same
//! instance.
//!
//! What polls belongs to the thread, with [the rest of its context](crate::stack::AppThread).
//! Invariant: it is in use by one call of its thread, or is parked; it is gone when the thread has
//! ended or the stack has stopped.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use softnet_core::sock::{Readiness, Slot};
use softnet_core::sync::{AtomicU32, Ordering};

use super::options::errno;
use super::socket::block;
use crate::app::{BusyPoll, EpollParams, OutOfRange, Waits};
use crate::control::Target;
use crate::stack::{Parked, StackInner, with};

/// The most µs: what has room beside the other two. 33 seconds.
const MAX_USECS: u32 = (1 << USECS_BITS) - 1;
const USECS_BITS: u32 = 25;
const PREFER: u32 = 1 << 31;

/// The option of one socket, in a word: there may be a million. Any thread may set it.
pub(super) struct BusyPollOption(AtomicU32);

impl Default for BusyPollOption {
    fn default() -> Self {
        BusyPollOption(AtomicU32::new(pack(&EpollParams::default())))
    }
}

/// From the top: `prefer_busy_poll`, `busy_poll_budget` less one, `busy_poll_usecs`.
fn pack(params: &EpollParams) -> u32 {
    let prefer = if params.prefer_busy_poll { PREFER } else { 0 };
    prefer | u32::from(params.busy_poll_budget - 1) << USECS_BITS | params.busy_poll_usecs
}

impl BusyPollOption {
    pub(super) fn set(&self, params: &EpollParams) -> Result<(), OutOfRange> {
        params.check()?;
        OutOfRange::check("busy_poll_usecs", params.busy_poll_usecs.into(), 0, MAX_USECS.into())?;
        self.0.store(pack(params), Ordering::Relaxed);
        Ok(())
    }

    /// A socket that comes of this one begins with the same.
    pub(super) fn inherit(&self, from: &Self) {
        self.0.store(from.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> EpollParams {
        let word = self.0.load(Ordering::Relaxed);
        EpollParams {
            busy_poll_usecs: word & MAX_USECS,
            busy_poll_budget: ((word & !PREFER) >> USECS_BITS) as u16 + 1,
            prefer_busy_poll: word & PREFER != 0,
        }
    }
}

impl Parked for BusyPoll {
    fn before_wait(&mut self) {
        self.env.rest_parked();
    }
}

/// A call that waits for its socket.
struct Blocked<'a, F> {
    shared: &'a StackInner,
    slot: &'a Slot,
    ready: F,
}

impl<F: Fn(&Readiness) -> bool> Waits for Blocked<'_, F> {
    fn is_ready(&mut self) -> bool {
        (self.ready)(&self.slot.readiness()) || self.shared.sockets.is_stopped()
    }

    /// Programs that block have many threads, and more of them than CPUs.
    fn is_one_of_many(&self) -> bool {
        true
    }

    fn wait(&mut self, timeout: Option<Duration>) -> bool {
        block(self.shared, self.slot, timeout, &self.ready);
        self.is_ready()
    }
}

/// Polls until the socket in `slot` is `ready` or the stack stops, as `params` say, and blocks as
/// long as that brings nothing; at `until` the error is `EAGAIN`.
pub(super) fn poll_or_block(
    shared: &Arc<StackInner>,
    slot: &Slot,
    params: EpollParams,
    until: Option<Instant>,
    ready: impl Fn(&Readiness) -> bool,
) -> io::Result<()> {
    let parked: Option<Box<dyn Any>> = with(shared, |thread| thread.parked.take()).map(|parked| parked as _);
    let parked = parked.and_then(|parked| parked.downcast().ok());
    let mut busy = parked.unwrap_or_else(|| Box::new(BusyPoll::new(shared, params)));
    let mut waiter = Blocked { shared, slot, ready };
    let ready = wait(&mut busy, &mut waiter, params, until);
    with(shared, |thread| thread.parked = Some(busy));
    if ready { Ok(()) } else { Err(errno(Errno::AGAIN)) }
}

/// Returns whether the socket is ready, or the stack has stopped.
fn wait<F: Fn(&Readiness) -> bool>(
    busy: &mut BusyPoll,
    waiter: &mut Blocked<'_, F>,
    params: EpollParams,
    until: Option<Instant>,
) -> bool {
    if busy.tid() == 0 {
        busy.enter();
    }
    if busy.params != params {
        // They were checked when they were set.
        let _ = busy.set_params(params);
    }
    turn_to(busy, waiter);
    busy.busy_loop(waiter, until);
    if !waiter.is_ready() && params.prefer_busy_poll {
        busy.resume();
    }
    let ready = waiter.is_ready() || busy.sleep(waiter, until);
    busy.waits_no_more();
    busy.env.let_go();
    busy.env.after_call();
    ready
}

/// Has `busy` poll the instance that the socket's last packet came by. One to which nothing came yet
/// tells of none: then it is the thread's last, whose packets may be its, too.
fn turn_to<F>(busy: &mut BusyPoll, waiter: &Blocked<'_, F>) {
    let id = waiter.slot.napi_id();
    let current = busy.instance().filter(|instance| !instance.is_closed()).map(|instance| instance.napi.id);
    if id != 0 && current != Some(id) {
        let found = waiter.shared.find(&Target::Napi(id)).ok();
        busy.turn_to(found.and_then(|(_, found)| found.into_iter().next()));
    } else if current.is_none() && busy.instance().is_some() {
        busy.turn_to(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_all_that_is_in_range() {
        let option = BusyPollOption::default();
        assert_eq!(option.get(), EpollParams::default());
        for busy_poll_usecs in [0, 1, 50, MAX_USECS] {
            for busy_poll_budget in [1, 8, 64] {
                for prefer_busy_poll in [false, true] {
                    let params = EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll };
                    option.set(&params).unwrap();
                    assert_eq!(option.get(), params);
                    let other = BusyPollOption::default();
                    other.inherit(&option);
                    assert_eq!(other.get(), params);
                }
            }
        }
        let all = EpollParams::default();
        for params in [
            EpollParams { busy_poll_usecs: MAX_USECS + 1, ..all },
            EpollParams { busy_poll_budget: 0, ..all },
            EpollParams { busy_poll_budget: 65, ..all },
        ] {
            option.set(&params).unwrap_err();
        }
        assert_eq!(option.get().busy_poll_budget, 64, "what is refused changes nothing");
    }
}
