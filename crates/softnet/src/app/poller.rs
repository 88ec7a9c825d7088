//! The application as poller: [`NapiPoller`] waits for packets of one NAPI instance, and polls it itself where that is
//! better than being woken.
//!
//! One call of [`wait`](NapiPoller::wait) goes as the kernel's `epoll_wait` does (`fs/eventpoll.c`, `ep_poll`):
//!
//! 1. What is ready is handed over. If that is anything, the instance's doorbell is *suspended*, that is its timer is armed
//!    with `irq_suspend_timeout`, and no other thread polls as long as the application comes back in time.
//! 2. With a time-out of 0 that was all.
//! 3. With `busy_poll_usecs` or `prefer_busy_poll` the application takes the instance, if it is not owned, and polls
//!    until something is ready or the time is over. One pass, if it only prefers.
//! 4. If there is still nothing, it *resumes* the instance (only with `prefer_busy_poll`): that is polled once more, and
//!    then its doorbell is masked for `gro_flush_timeout` or unmasked, as after any poll. The application sleeps.
//!
//! While it sleeps, and the instance is polled by a worker otherwise (context `softirq`), the application waits for
//! `gro_flush_timeout` itself and polls when it is over, so that one thread is woken and not two; it then sleeps on,
//! unless something came for it. The instance's timer is armed for a little longer meanwhile.
//!
//! The timer belongs to the instance and is waited for by its context, so an application that hangs, or whose thread
//! ends, keeps the queue for `irq_suspend_timeout` at most. Packets that the application does not want are processed
//! as always, whichever thread polls.
//!
//! Any thread may make one and use it; a second one on the same instance sleeps while the first one polls, and is
//! woken when something came for it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnet_core::SoftnetData;
use softnet_core::napi::WEIGHT;
use softnet_core::qdisc::Verdict;
use softnet_core::skb::{Batch, DropReason, SkbList};
use softnet_core::sync::{Ordering, Receiver, mailbox};

use super::{BusyPoll, EpollParams, FOR_EVER, LocalSender, OutOfRange, Waits, WouldBlock};
use crate::control::{ControlError, Target};
use crate::napi::NapiInstance;
use crate::napi::{App, PacketFilter};
use crate::poll::PollContext;
use crate::stack::{Handle, StackInner};

/// How an application polls (the kernel's `struct epoll_params`), and how much may wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerParams {
    /// For how many µs it polls before it sleeps, at most [`MAX_BUSY_POLL_USECS`](super::MAX_BUSY_POLL_USECS). 0: not at all, or, with
    /// `prefer_busy_poll`, once.
    pub busy_poll_usecs: u32,
    /// Packets that one poll may receive, 1 to 64.
    pub busy_poll_budget: u16,
    /// Whether it would rather poll than have others do so: the doorbell stays masked between its polls, if
    /// `napi_defer_hard_irqs` and `gro_flush_timeout` are set.
    pub prefer_busy_poll: bool,
    /// Packets that may wait for it, of one frame each; more are dropped.
    pub rx_queue_len: usize,
}

impl Default for PollerParams {
    /// Does not poll: it is woken.
    fn default() -> Self {
        PollerParams { busy_poll_usecs: 0, busy_poll_budget: 8, prefer_busy_poll: false, rx_queue_len: 1024 }
    }
}

impl PollerParams {
    /// Those of them that an epoll set has, too.
    pub fn epoll(&self) -> EpollParams {
        let PollerParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll, .. } = *self;
        EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll }
    }
}

/// Why there is no poller, or no packets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PollerError {
    /// No instance has that id now.
    #[error(transparent)]
    NoSuchNapi(ControlError),
    /// A parameter is out of range.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The instance is gone with its interface. When that is back it has a new one.
    #[error("{0} is closed: its interface went away, or the stack was stopped")]
    Closed(String),
    /// Packets that wait for applications might take more than three eighths of packet memory, and RX rings would run dry, or
    /// sockets have not even their minimum.
    #[error(
        "rx_queue_len: {wanted} packets, but applications may hold {left} more of the {frames} frames; \
         expected less, or more stack.frames"
    )]
    NoRoom {
        /// What was asked for.
        wanted: usize,
        /// What there is left.
        left: usize,
        /// Frames of packet memory.
        frames: u32,
    },
    /// The operating system refused.
    #[error("descriptors for a poller: {0}")]
    System(#[from] io::Error),
}

/// See the module.
pub struct NapiPoller {
    _held: Held,
    busy: BusyPoll,
    inbox: Inbox,
    sender: LocalSender,
    entered: bool,
}

/// What was received for it.
struct Inbox {
    instance: Arc<NapiInstance>,
    app: Arc<App>,
    receiver: Option<Receiver<SkbList>>,
    /// What did not fit the caller's batch.
    pending: SkbList,
}

/// What packets that wait for an application may take of packet memory, as long as it is there.
struct Held {
    shared: Arc<StackInner>,
    packets: usize,
}

impl Held {
    fn new(shared: &Arc<StackInner>, packets: usize, most: usize) -> Result<Self, PollerError> {
        let held = &shared.app_packets;
        let reserve = |held: usize| held.checked_add(packets).filter(|sum| *sum <= most);
        match held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve) {
            Ok(_) => Ok(Held { shared: shared.clone(), packets }),
            Err(held) => Err(PollerError::NoRoom {
                wanted: packets,
                left: most.saturating_sub(held),
                frames: shared.region.frame_count(),
            }),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.app_packets.fetch_sub(self.packets, Ordering::Relaxed);
    }
}

impl NapiPoller {
    /// A poller of instance `napi` of a stack, that is given the packets that `filter` wants and no poller before it
    /// did. `name` is for display.
    pub fn new(
        on: &Handle,
        napi: u32,
        name: &str,
        filter: PacketFilter,
        params: PollerParams,
    ) -> Result<Self, PollerError> {
        let shared = on.shared();
        params.epoll().check()?;
        OutOfRange::check("rx_queue_len", params.rx_queue_len as u64, 1, 1 << 20)?;
        let most = shared.sockets.memory.shared();
        let held = Held::new(shared, params.rx_queue_len, most)?;
        let (_, found) = shared.find(&Target::Napi(napi)).map_err(PollerError::NoSuchNapi)?;
        let [instance] =
            <[_; 1]>::try_from(found).unwrap_or_else(|_| unreachable!("an id is of one instance"));
        // Every list that waits holds a packet at least, and each poller adds one poll's worth at the most.
        let (ready, receiver) = mailbox((params.rx_queue_len + 2 * WEIGHT) as u32);
        let app = Arc::new(App::new(name.into(), filter, params.rx_queue_len, ready)?);
        let mut busy = BusyPoll::new(shared, params.epoll());
        busy.set_instance(Some(instance.clone()));
        instance.apps.add(&app);
        let inbox = Inbox { instance, app, receiver: Some(receiver), pending: SkbList::new() };
        Ok(NapiPoller { _held: held, busy, inbox, sender: LocalSender::default(), entered: false })
    }

    /// The NAPI instance.
    pub fn napi_id(&self) -> u32 {
        self.inbox.instance.napi.id
    }

    /// Packet memory of the calling thread: to make packets, and to free received ones.
    pub fn ctx(&mut self) -> &mut SoftnetData {
        &mut self.busy.env.ctx
    }

    /// Changes how it polls, from the next call on. (`rx_queue_len` stays as it was.)
    pub fn set_params(&mut self, params: PollerParams) -> Result<(), PollerError> {
        Ok(self.busy.set_params(params.epoll())?)
    }

    /// Appends packets to `into` as soon as there are any, and returns how many. 0 after `timeout` (`None`: never), or if
    /// there is no room. See the module for what it does meanwhile.
    pub fn wait(&mut self, into: &mut Batch, timeout: Option<Duration>) -> Result<usize, PollerError> {
        if !self.entered {
            self.entered = true;
            self.busy.enter();
            self.inbox.app.tid.store(self.busy.tid(), Ordering::Relaxed);
        }
        let mut deadline = None;
        loop {
            let n = self.inbox.take(&mut self.busy.env.ctx, into);
            if n > 0 {
                self.busy.suspend(n);
                self.busy.env.after_call();
                return Ok(n);
            }
            let instance = &self.inbox.instance;
            if instance.is_closed() {
                return Err(PollerError::Closed(instance.napi.name.clone()));
            }
            if into.room() == 0 || timeout == Some(Duration::ZERO) {
                return Ok(0);
            }
            // Of the whole call, busy polling included. One beyond the end of time is none.
            let until = *deadline.get_or_insert_with(|| timeout.and_then(|t| Instant::now().checked_add(t)));
            let NapiPoller { busy, inbox, .. } = self;
            if busy.params.polls() {
                busy.busy_loop(inbox, until);
                if inbox.is_ready() {
                    continue;
                }
            }
            if busy.params.prefer_busy_poll {
                busy.resume();
                if inbox.is_ready() {
                    continue;
                }
            }
            if !busy.sleep(inbox, until) {
                return Ok(0);
            }
        }
    }

    /// Sends `batch` out of the instance's device, by the TX queue with the number of its RX queue unless the device's maps
    /// say another, and leaves it empty. Blocks while too many packets are pending there. What can't be sent is dropped and
    /// counted; says the worst that became of it, as far as that is known by then.
    pub fn send(&mut self, batch: &mut Batch) -> Verdict {
        self.send_or(batch, true).unwrap_or(Verdict::Drop)
    }

    /// The same without blocking: the batch stays as it is if it would have to.
    pub fn try_send(&mut self, batch: &mut Batch) -> Result<Verdict, WouldBlock> {
        self.send_or(batch, false)
    }

    fn send_or(&mut self, batch: &mut Batch, wait: bool) -> Result<Verdict, WouldBlock> {
        let PollContext { ctx, shared, .. } = &mut self.busy.env;
        let napi = &self.inbox.instance.napi;
        if self.inbox.instance.is_closed() {
            ctx.originated(batch.len() as u64);
            ctx.free_batch_at(batch, napi.dev, DropReason::DevReady);
            return Ok(Verdict::Drop);
        }
        self.sender.send(
            shared,
            ctx,
            shared.clock.now(),
            (napi.dev, Some(napi.queue)),
            batch,
            wait.then_some(FOR_EVER),
        )
    }
}

impl Inbox {
    /// Hands over what is ready.
    fn take(&mut self, ctx: &mut SoftnetData, into: &mut Batch) -> usize {
        let (before, Some(receiver)) = (into.len(), &mut self.receiver) else { return 0 };
        let mut frames = 0;
        while into.room() > 0 {
            if let Some(skb) = self.pending.pop_front() {
                frames += skb.frame_count();
                let Err(skb) = into.push(skb) else { continue };
                // There was room, so this does not happen.
                ctx.free_skb(skb);
            } else if let Some(list) = receiver.drain().next() {
                self.pending = list;
            } else {
                break;
            }
        }
        if frames > 0 {
            self.app.took(frames);
        }
        into.len() - before
    }
}

impl Waits for Inbox {
    fn is_ready(&mut self) -> bool {
        !self.pending.is_empty() || self.receiver.as_ref().is_some_and(Receiver::has_pending)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> bool {
        let app = self.app.clone();
        let announced = app.waker.sleeper.announce();
        if self.is_ready() || self.instance.is_closed() {
            drop(announced);
            return true;
        }
        app.sleeps.fetch_add(1, Ordering::Relaxed);
        let timeout =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        let mut fds = [PollFd::from_borrowed_fd(app.waker.fd(), PollFlags::IN)];
        // An interrupted wait is a wake-up without a cause.
        let interrupted = poll(&mut fds, timeout.as_ref()).is_err();
        let woken = !fds[0].revents().is_empty();
        if announced.awake() || woken {
            app.waker.clear();
        }
        woken || interrupted
    }
}

impl Drop for NapiPoller {
    /// Goes away: what waits is freed, and the instance is polled by its context from now on.
    fn drop(&mut self) {
        let Inbox { instance, app, receiver, pending } = &mut self.inbox;
        instance.apps.remove(app);
        let ctx = &mut self.busy.env.ctx;
        let mut free = |mut list: SkbList| {
            while let Some(skb) = list.pop_front() {
                ctx.free_skb(skb);
            }
        };
        free(std::mem::take(pending));
        // A thread that still polls with the old list of applications is refused from now on.
        if let Some(receiver) = receiver.take() {
            receiver.close(free);
        }
    }
}

#[cfg(test)]
mod tests;
