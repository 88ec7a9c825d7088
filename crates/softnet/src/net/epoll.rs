//! [`Epoll`]: one thread waits for any number of sockets, and for descriptors of the kernel, and polls its NAPI instance
//! itself where that is better than being woken.
//!
//! A set has a number for each socket in it, and a list of those to be looked at, which pollers put them on ([`ReadyItems`]).
//! Invariant: a socket of the set that is ready is on that list, or its thread has it in hand; a set that watches a slot has an item for it.

mod ctl;

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use softnet_core::sock::ReadyItems;
use softnet_core::sync::{AtomicUsize, Ordering};

pub use ctl::EpollCtl;
use ctl::{FdEvent, Fds};

use super::Handle;
use super::options::errno;
use crate::app::{BusyPoll, EpollParams, OutOfRange, Waits};
use crate::control::Target;
use crate::notify::Set;
use crate::stack::StackInner;
use crate::util::{Waker, lock, timespec};

/// How long the kernel's descriptors may wait while sockets are ready, or the instance is polled, in ns.
const FD_INTERVAL: u64 = 50_000;
/// Marks the set's own descriptor among those of the kernel.
const WAKE: u64 = u64::MAX;
/// Among the items that are to be looked at: the turn of the kernel's descriptors.
const FDS: u32 = u32::MAX;

/// What to wait for, and how to be told: the kernel's `EPOLL*` flags, or-ed together. Errors are always told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(u32);

impl Interest {
    /// Something can be received.
    pub const IN: Interest = Interest(1);
    /// Something can be sent.
    pub const OUT: Interest = Interest(1 << 2);
    /// Told once for each change, not for as long as it lasts (`EPOLLET`).
    pub const EDGE: Interest = Interest(1 << 31);
    /// Told once, and then not until it is [modified](EpollCtl::modify) (`EPOLLONESHOT`).
    pub const ONE_SHOT: Interest = Interest(1 << 30);
    /// Of several sets that watch one socket in this way, one that waits is woken, whenever a poll brings datagrams
    /// (`EPOLLEXCLUSIVE`). Those before it whose threads do not wait find the socket ready when they come, too. For waiting to
    /// receive, and for that alone, time and again; the others are told anyway.
    pub const EXCLUSIVE: Interest = Interest(1 << 28);

    /// The peer of a stream sends no more (`EPOLLRDHUP`).
    pub const RDHUP: Interest = Interest(1 << 13);

    const ERROR: u32 = 1 << 3;
    const HUP: u32 = 1 << 4;

    fn has(self, other: Interest) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether it may do to tell another set instead: not if one that is told might have no use for it.
    fn is_exclusive(self) -> bool {
        self.has(Interest::EXCLUSIVE)
            && self.has(Interest::IN)
            && !self.has(Interest::OUT | Interest::ONE_SHOT)
    }
}

impl std::ops::BitOr for Interest {
    type Output = Interest;

    fn bitor(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }
}

/// What is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it was added with.
    pub token: u64,
    bits: u32,
}

impl Event {
    /// Something can be received, or an error waits.
    pub fn is_readable(&self) -> bool {
        self.bits & (Interest::IN.0 | Interest::ERROR) != 0
    }

    /// The peer of a stream sends no more, if that was asked for.
    pub fn is_peer_closed(&self) -> bool {
        self.bits & Interest::RDHUP.0 != 0
    }

    /// Neither end of a stream sends any more, or the other end of a kernel's descriptor is gone.
    /// Told whether it was asked for or not.
    pub fn is_hung_up(&self) -> bool {
        self.bits & Interest::HUP != 0
    }

    /// Something can be sent.
    pub fn is_writable(&self) -> bool {
        self.bits & Interest::OUT.0 != 0
    }

    /// An error waits. Told whether it was asked for or not.
    pub fn is_error(&self) -> bool {
        self.bits & Interest::ERROR != 0
    }
}

/// A set of sockets, and of descriptors of the kernel, that one thread waits for; others add to it by its [`EpollCtl`].
///
/// The calls are those of `epoll(7)`, and [`wait`](Self::wait) goes as `ep_poll` of the kernel's `fs/eventpoll.c` does:
///
/// 1. What is ready is handed over, level-triggered sockets anew each time. If that is anything, the instance is *suspended*
///    ([`EpollParams::prefer_busy_poll`]).
/// 2. With a time-out of 0 that was all.
/// 3. With `busy_poll_usecs` or `prefer_busy_poll` the thread polls the instance that its sockets' packets came by last.
/// 4. If there is still nothing it resumes the instance, forgets it until the next packet, and sleeps. With both
///    `busy_poll_usecs` and `prefer_busy_poll` the next call polls it again all the same, unlike the kernel's.
///
/// Sockets of one set should receive by one instance, as [`UdpSocket::incoming_napi_id`](super::UdpSocket::incoming_napi_id) tells; else only the last one's is
/// polled. Descriptors of the kernel are looked at whenever nothing else is ready, and every 50 µs while there is; those that
/// are ready have a turn among the sockets. So neither starves the other.
///
/// A set is of one stack, whatever is in it: it takes no sockets of another, and when the stack stops, every thread that waits
/// is woken. What is ready then is still handed over, and told as always; with nothing ready, [`wait`](Self::wait) fails with
/// `ENETDOWN` (`NetworkDown`) from then on, be there sockets, descriptors of the kernel, or nothing in the set.
///
/// An edge-triggered socket is told of when its receive queue was empty, or when all that was there had been taken to be handed
/// out, and of whatever comes if some set watches it exclusively: its user reads until there is nothing more.
pub struct Epoll {
    ctl: EpollCtl,
    busy: BusyPoll,
    waiter: Waiter,
    /// The instance is not polled until a packet came by it again.
    forgotten: bool,
}

/// What is ready, and how to block until something is.
struct Waiter {
    ready: ReadyItems,
    /// Marked items that were taken off the list and are to be looked at; [`FDS`] while there are `fd_events`.
    active: VecDeque<u32>,
    /// Events of the kernel's descriptors that were not handed over yet.
    fd_events: VecDeque<FdEvent>,
    /// When they were last looked for, in ns of the stack's clock.
    fds_at: u64,
    set: Arc<Set>,
    fds: Arc<Fds>,
    shared: Arc<StackInner>,
}

impl Epoll {
    /// An empty set for sockets of a stack, for one thread.
    pub fn new(on: &Handle) -> io::Result<Self> {
        let shared = on.shared().clone();
        let (list, ready) = ReadyItems::new();
        let set = Arc::new(Set { list, waker: Waker::new()? });
        let fds = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&fds, set.waker.fd(), epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let fds = Arc::new(Fds { epoll: fds, count: AtomicUsize::new(0), tokens: Mutex::default() });
        let waiter = Waiter {
            ready,
            active: VecDeque::new(),
            fd_events: VecDeque::new(),
            fds_at: 0,
            set: set.clone(),
            fds: fds.clone(),
            shared: shared.clone(),
        };
        let busy = BusyPoll::new(&shared, EpollParams::default());
        shared.sockets.add_set(&set);
        let ctl = EpollCtl { shared, set, items: Arc::default(), fds };
        Ok(Epoll { ctl, busy, waiter, forgotten: false })
    }

    /// To add sockets by, and to change and remove them.
    pub fn ctl(&self) -> &EpollCtl {
        &self.ctl
    }

    /// How it polls.
    pub fn params(&self) -> EpollParams {
        self.busy.params
    }

    /// Changes how it polls, from the next call of [`wait`](Self::wait) on (`EPIOCSPARAMS`).
    pub fn set_params(&mut self, params: EpollParams) -> Result<(), OutOfRange> {
        self.busy.set_params(params)
    }

    /// Replaces `events` by up to `max` (at least one) that are ready, as soon as there are any, and returns how many. 0 after
    /// `timeout` (`None`: never). [`Epoll`] says what it does meanwhile. An error once the stack has stopped, if nothing
    /// is ready.
    pub fn wait(
        &mut self,
        events: &mut Vec<Event>,
        max: usize,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        events.clear();
        if self.busy.tid() == 0 {
            self.busy.enter();
        }
        let (mut deadline, mut over, mut first) = (None, timeout == Some(Duration::ZERO), true);
        loop {
            let mut n = self.harvest(events, max.max(1));
            let stopped = self.ctl.shared.sockets.is_stopped();
            // Otherwise they are looked at before it sleeps.
            if n == 0 && (stopped || timeout == Some(Duration::ZERO)) && self.waiter.look_now() {
                n = self.harvest(events, max.max(1));
            }
            if n > 0 {
                // One that was forgotten is its context's until a packet has come by it.
                if !self.forgotten {
                    self.busy.suspend(n);
                }
                self.busy.env.after_call();
                return Ok(n);
            }
            if stopped {
                self.busy.env.ctx.drain();
                return Err(errno(Errno::NETDOWN));
            }
            if over {
                return Ok(0);
            }
            // Of the whole call, busy polling included. One beyond the end of time is none.
            let until = *deadline.get_or_insert_with(|| timeout.and_then(|t| Instant::now().checked_add(t)));
            let is_over = || until.is_some_and(|until| until <= Instant::now());
            let Epoll { busy, waiter, .. } = self;
            if busy.instance().is_some_and(|instance| instance.is_closed()) {
                busy.set_instance(None);
            }
            // The doorbell of an application that prefers to poll may stay masked for long after it
            // forgot the instance, so that what comes waits for a timer: two such applications that
            // talk to each other would both sleep that long for each message, and never poll again
            // at the right time. So each call polls.
            let anew =
                std::mem::take(&mut first) && busy.params.prefer_busy_poll && busy.params.busy_poll_usecs > 0;
            if busy.params.polls() && (anew || !self.forgotten) {
                busy.busy_loop(waiter, until);
                if waiter.is_ready() && !is_over() {
                    continue;
                }
                self.forgotten = true;
            }
            if busy.params.prefer_busy_poll {
                busy.resume();
                if waiter.is_ready() && !is_over() {
                    continue;
                }
            }
            // It may have been told of what is of no interest, time and again.
            over = !busy.sleep(waiter, until) || is_over();
        }
    }

    /// Hands over what is ready.
    fn harvest(&mut self, events: &mut Vec<Event>, max: usize) -> usize {
        let waiter = &mut self.waiter;
        let Waiter { ready, active, .. } = waiter;
        ready.drain(|index| active.push_back(index));
        if waiter.has_others() {
            waiter.between_polls(waiter.shared.clock.now());
        }
        let mut napi_id = 0;
        let polled = self.busy.instance().map_or(0, |instance| instance.napi.id);
        let mut items = lock(&self.ctl.items);
        for _ in 0..waiter.active.len() {
            if events.len() == max {
                break;
            }
            items.prefetch(&waiter.set.list, &waiter.active);
            let Some(index) = waiter.active.pop_front() else { break };
            if index == FDS {
                waiter.fd_events(events, max);
                continue;
            }
            let Waiter { active, set, .. } = &mut *waiter;
            let Some(item) = items.table.get_mut(index as usize).and_then(Option::as_mut) else {
                set.list.unmark(index);
                continue;
            };
            if item.socket.strong_count() == 0 {
                items.remove(index);
                set.list.unmark(index);
                continue;
            }
            let level = !item.interest.has(Interest::EDGE | Interest::ONE_SHOT);
            let mut bits = if level { item.bits() } else { 0 };
            if bits != 0 {
                // It stays, to be looked at again by the next call.
                active.push_back(index);
            } else {
                set.list.unmark(index);
                bits = item.bits();
                if bits != 0 && level {
                    // It became ready just now. It is marked again, here or by the thread that made it so.
                    set.list.notify(index);
                }
                item.spent |= item.interest.has(Interest::ONE_SHOT) && bits != 0;
            }
            if bits != 0 {
                events.push(Event { token: item.token, bits });
                let id = item.slot.slot().napi_id();
                if id != 0 && (napi_id == 0 || napi_id != polled) {
                    napi_id = id;
                }
            }
        }
        drop(items);
        if napi_id != 0 && self.busy.params.polls() {
            self.forgotten = false;
            if napi_id != polled
                && let Ok((_, found)) = self.ctl.shared.find(&Target::Napi(napi_id))
            {
                self.busy.set_instance(found.into_iter().next());
            }
        }
        events.len()
    }
}

impl Waiter {
    /// Hands over events of the kernel's descriptors. What there is no room for gets another turn; an event
    /// of a descriptor that was deleted or modified meanwhile is discarded.
    fn fd_events(&mut self, events: &mut Vec<Event>, max: usize) {
        let tokens = lock(&self.fds.tokens);
        while events.len() < max
            && let Some(FdEvent { fd, serial, bits }) = self.fd_events.pop_front()
        {
            let token = tokens.of.get(&fd).filter(|(_, last)| *last == serial);
            events.extend(token.map(|(token, _)| Event { token: *token, bits }));
        }
        if !self.fd_events.is_empty() {
            self.active.push_back(FDS);
        }
    }

    /// Whether there may be events of the kernel's descriptors beside those that wait to be handed over.
    fn has_others(&self) -> bool {
        self.fds.count.load(Ordering::Relaxed) > 0 && self.fd_events.is_empty()
    }

    /// Looks for events of the kernel's descriptors. Returns whether there are any.
    fn look_now(&mut self) -> bool {
        if self.has_others() {
            self.look_at_fds(Some(Duration::ZERO));
        }
        !self.active.is_empty()
    }

    /// Waits for the kernel's descriptors, the set's own among them. Returns whether that was it, or a signal came.
    fn look_at_fds(&mut self, timeout: Option<Duration>) -> bool {
        let mut buffer = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 64];
        let ns = |t: Duration| timespec(u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
        let Ok((found, _)) = epoll::wait(&self.fds.epoll, &mut buffer, timeout.map(ns).as_ref()) else {
            return true;
        };
        self.fds_at = self.shared.clock.now();
        let mut woken = false;
        for event in &*found {
            let data = event.data.u64();
            match data {
                WAKE => woken = true,
                _ => self.fd_events.push_back(FdEvent {
                    fd: data as u32 as RawFd,
                    serial: (data >> 32) as u32,
                    bits: { event.flags }.bits(),
                }),
            }
        }
        if !self.fd_events.is_empty() {
            self.active.push_back(FDS);
        }
        woken
    }
}

impl Waits for Waiter {
    fn is_ready(&mut self) -> bool {
        self.ready.has_pending() || !self.active.is_empty() || self.shared.sockets.is_stopped()
    }

    fn between_polls(&mut self, now: u64) {
        if self.has_others() && now.saturating_sub(self.fds_at) >= FD_INTERVAL {
            self.look_now();
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> bool {
        let set = self.set.clone();
        let announced = set.waker.sleeper.announce();
        if self.is_ready() {
            drop(announced);
            return true;
        }
        let woken = self.look_at_fds(timeout);
        if announced.awake() || woken {
            set.waker.clear();
        }
        woken || !self.active.is_empty()
    }
}

impl Drop for Epoll {
    /// Its sockets stay open; the instance that it polled is polled by its context from now on.
    fn drop(&mut self) {
        let mut items = lock(&self.ctl.items);
        items.closed = true;
        items.by_slot.keys().for_each(|slot| self.ctl.unwatch(*slot));
        drop(items);
        self.ctl.shared.sockets.remove_set(&self.ctl.set);
    }
}
