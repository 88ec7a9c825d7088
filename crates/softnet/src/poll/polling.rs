//! What a polling thread does with an instance: receives a batch, processes it, and sees to the doorbell when the
//! instance was released. The same in all contexts but for that last step.
//!
//! Owned by the thread that polls. Packets leave by the TX queue with the number of the RX queue they came by, whichever
//! thread polls: so a flow keeps its TX queue, and with it its order, when its instance is switched to another context.

use std::borrow::{Borrow, BorrowMut};
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use softnet_core::SoftnetData;
use softnet_core::gro::{GroMode, GroParams, GroTable};
use softnet_core::gso;
use softnet_core::ip::input::Exceptions;
use softnet_core::ip::tables::Tables;
use softnet_core::napi::{Body, Completion, Driver, Gro, NapiInfo, NetRx, PollList, Released};
use softnet_core::qdisc::Origin;
use softnet_core::skb::{BATCH, Batch, DropReason, FrameBatch, Skb};
use softnet_core::sock::Transport;
use softnet_core::stack::receive::{Receive, ReceiveHost};
use softnet_core::steer::TxChoice;
use softnet_core::sync::Ordering;

use crate::control::Direction;
use crate::device::{OpenCache, TxHint};
use crate::napi::{
    App, EVERY, NapiInstance, Phase, PollThread, Pool, Rx, RxHandler, Steerer, Timeout, ring, ring_shared,
};
use crate::stack::tcp::Caller;
use crate::stack::{CacheShare, StackInner, before_wait};

/// What follows when an instance was released.
pub(crate) enum OnRelease {
    /// Its doorbell is unmasked, for the thread itself to wait for.
    Unmask,
    /// The same, for whichever thread of the pool waits.
    UnmaskFor(Arc<Pool>),
    /// It is scheduled again at once, and its doorbell stays masked.
    Again,
}

/// What polling needs beside the poll list.
pub(crate) struct PollContext {
    pub(crate) shared: Arc<StackInner>,
    pub(crate) ctx: SoftnetData,
    tables: Cache<Arc<ArcSwap<Tables>>, Arc<Tables>>,
    pub(super) lives: OpenCache,
    runs: u32,
    /// By NAPI id, ascending.
    pub(crate) instances: Arc<Vec<Arc<NapiInstance>>>,
    received: Receive,
    on_release: OnRelease,
    /// Applications that were handed packets and are to be woken.
    woken: Vec<Arc<App>>,
    /// Slots of sockets to which packets came while they were empty.
    ready: Vec<u32>,
    /// Polls, to sample one of [`EVERY`].
    polls: u32,
    /// The poll at hand is sampled.
    sampled: bool,
    /// There is one when something has been steered.
    steerer: Option<Box<Steerer>>,
    /// The time in ns; 0 if it must be read.
    pub(crate) now: u64,
    /// It was read for the last release, which is as good as after the poll.
    fresh: bool,
}

impl Borrow<SoftnetData> for PollContext {
    fn borrow(&self) -> &SoftnetData {
        &self.ctx
    }
}

impl BorrowMut<SoftnetData> for PollContext {
    fn borrow_mut(&mut self) -> &mut SoftnetData {
        &mut self.ctx
    }
}

impl PollContext {
    pub(crate) fn new(shared: &Arc<StackInner>, on_release: OnRelease) -> Self {
        PollContext {
            ctx: shared.context(),
            tables: Cache::new(shared.tables.clone()),
            lives: OpenCache::new(&shared.devices),
            runs: 0,
            shared: shared.clone(),
            instances: Arc::default(),
            received: Receive::default(),
            on_release,
            woken: Vec::new(),
            ready: Vec::new(),
            polls: 0,
            sampled: false,
            steerer: None,
            now: 0,
            fresh: false,
        }
    }

    /// Runs the softirq loop once. Returns how many packets there were.
    pub(crate) fn run(&mut self, net_rx: &mut NetRx<Rx>, thread: &PollThread) -> usize {
        if self.now == 0 {
            self.now = self.shared.clock.now();
        }
        self.ctx.purge_deferred();
        self.runs = self.runs.wrapping_add(1);
        if self.runs.is_multiple_of(64) {
            self.lives.refresh();
            self.ctx.note_cached();
        }
        let done = net_rx.run(self.now, self);
        self.wake_apps();
        thread.stats.rounds.add(1);
        thread.stats.packets.add(done.work as u64);
        done.work
    }

    /// Wakes applications that were handed packets, threads that wait for sockets which were, and
    /// workers that packets were steered to: after the poll, so that they do not take the CPU from
    /// it.
    pub(crate) fn wake_apps(&mut self) {
        if let Some(steerer) = &mut self.steerer {
            steerer.notify(&self.shared.backlogs);
        }
        if !self.woken.is_empty() {
            self.woken.drain(..).for_each(|app| app.waker.wake());
        }
        if !self.ready.is_empty() {
            self.ready.drain(..).for_each(|slot| self.shared.sockets.arrived(slot));
        }
    }

    /// Before the thread sleeps or yields: lets go of what it must not keep meanwhile.
    pub(crate) fn rest(&mut self, thread: &PollThread) {
        CacheShare::before_sleep(&mut self.ctx);
        self.ctx.note_cached();
        let (heads, frames) = self.ctx.cached();
        thread.stats.cached_heads.store(heads as u64, Ordering::Relaxed);
        thread.stats.cached_frames.store(frames as u64, Ordering::Relaxed);
        self.let_go();
    }

    /// The part of it that any thread does.
    pub(crate) fn let_go(&mut self) {
        // Not to keep old snapshots alive.
        self.tables.load();
        self.lives.refresh();
        self.ctx.leave_taps();
        self.now = 0;
    }

    /// Before an application's thread blocks: lets go of what it must not keep meanwhile, be it here or in the thread's own
    /// context.
    pub(crate) fn before_wait(&mut self) {
        self.rest_parked();
        before_wait(&self.shared);
    }

    /// The same of what is parked while the thread blocks elsewhere.
    pub(crate) fn rest_parked(&mut self) {
        self.let_go();
        self.shared.cache_share.before_wait(&mut self.ctx);
    }

    /// At the end of an application's call.
    #[inline]
    pub(crate) fn after_call(&mut self) {
        self.shared.cache_share.after_call(&mut self.ctx);
    }

    /// Completes what is scheduled on `net_rx` without polling it, so that a thread that waits for that can disable the instances.
    pub(crate) fn give_up(&mut self, net_rx: &mut NetRx<Rx>) {
        for mut napi in net_rx.drain() {
            while let Completion::Again(again) = napi.complete(0, |napi, batch| self.receive(napi, batch)) {
                napi = again;
            }
        }
        self.wake_apps();
    }

    /// Schedules the instances whose timers fired (the kernel's `napi_watchdog`).
    pub(crate) fn fire(&mut self, net_rx: &mut NetRx<Rx>) {
        let mut now = 0;
        for instance in self.instances.iter().filter(|i| i.timer.is_armed()) {
            if now == 0 {
                now = self.shared.clock.now();
            }
            instance.timer.if_due(now, || {
                let napi = instance.napi.watchdog();
                napi.map(|napi| net_rx.schedule(napi)).is_some()
            });
        }
    }

    fn instance(&self, id: u32) -> Option<&Arc<NapiInstance>> {
        self.instances.binary_search_by_key(&id, |i| i.napi.id).ok().map(|at| &self.instances[at])
    }

    /// Processes the packets of one instance.
    pub(crate) fn receive(&mut self, napi: &NapiInfo, batch: &mut Batch) {
        self.ctx.tap_in(self.now, napi.dev, napi.queue, batch);
        let queue = usize::from(napi.queue);
        if let Some(netdev) = self.shared.netdevs.get(usize::from(napi.dev))
            && netdev.ingress.is_set()
        {
            netdev.ingress.act(&mut self.ctx, napi.dev, Direction::Ingress, self.now, queue, batch);
            if batch.is_empty() {
                return;
            }
        }
        self.receive_on(napi, batch);
    }

    /// The same behind the filter at ingress.
    #[inline(always)]
    fn receive_on(&mut self, napi: &NapiInfo, batch: &mut Batch) {
        let PollContext { ctx, shared, instances, woken, steerer, .. } = &mut *self;
        let at = instances.binary_search_by_key(&napi.id, |i| i.napi.id);
        let Ok(instance) = at.map(|at| &instances[at]) else {
            return ctx.free_batch(batch, DropReason::Shutdown);
        };
        if instance.apps.any() {
            if gso::any(batch) {
                return self.receive_cut(napi, batch);
            }
            instance.apps.deliver(ctx, batch, woken);
            if batch.is_empty() {
                return;
            }
        }
        if instance.steering.is_on() {
            let steerer = steerer.get_or_insert_with(|| Steerer::new(&shared.backlogs));
            if instance.steering.steer(&shared.backlogs, ctx, steerer, batch) {
                shared.housekeeper.wake();
            }
            if batch.is_empty() {
                return;
            }
        }
        match (instance.handler, at) {
            (RxHandler::Steered, Ok(at)) => self.receive_steered(at, batch),
            (handler, at) => self.handle(at.unwrap_or(0), (handler, napi.queue, napi.id), batch),
        }
    }

    /// Processes the packets of an instance of which applications get some, aggregates cut: these
    /// take packets as they came.
    #[cold]
    #[inline(never)]
    fn receive_cut(&mut self, napi: &NapiInfo, batch: &mut Batch) {
        gso::segment_batch(self, batch, |this, segments| this.receive_on(napi, segments));
    }

    /// Processes what a poll brought.
    #[inline(always)]
    fn received(&mut self, napi: &NapiInfo, gro: &mut Option<Box<dyn Gro>>, batch: &mut Batch) {
        match napi.gro.mode() == GroMode::Off && gro.is_none() {
            true => self.receive(napi, batch),
            false => self.receive_gro(napi, gro, batch),
        }
    }

    /// A poll brought nothing: GRO and the TX queues get the time.
    #[inline(always)]
    fn nothing_came(&mut self, napi: &NapiInfo, gro: &mut Option<Box<dyn Gro>>) {
        if let Some(gro) = gro {
            gro.tick(self.now);
        }
        self.lives.reap_idle(&mut self.ctx, self.now, napi.queue.into());
    }

    /// How GRO is to look at what an instance brings; `None` if that was merged where it came in.
    fn gro_params(&self, napi: &NapiInfo) -> Option<GroParams> {
        let partial_csum = match self.instance(napi.id)?.handler {
            RxHandler::Ip(ingress) => ingress.partial_csum,
            RxHandler::Patch(_) => false,
            RxHandler::Steered => return None,
        };
        Some(GroParams { mode: napi.gro.mode(), partial_csum, now: self.now })
    }

    /// Has GRO look at what an instance brought, which has some or is to, and processes what goes
    /// on.
    #[inline(never)]
    fn receive_gro(&mut self, napi: &NapiInfo, gro: &mut Option<Box<dyn Gro>>, batch: &mut Batch) {
        let Some(params) = self.gro_params(napi) else { return self.receive(napi, batch) };
        let table = gro.get_or_insert_with(|| Box::new(GroTable::new()));
        table.receive(&mut self.ctx, &napi.stats.gro, &params, batch);
        self.receive_merged(napi, table, batch);
        if params.mode == GroMode::Off {
            // Nothing is held any more.
            *gro = None;
        }
    }

    /// Processes what goes on of what GRO looked at.
    #[inline(always)]
    fn receive_merged(&mut self, napi: &NapiInfo, gro: &mut Box<dyn Gro>, batch: &mut Batch) {
        if !batch.is_empty() {
            self.receive(napi, batch);
        }
        gro.more(batch);
        if !batch.is_empty() {
            self.receive(napi, batch);
        }
    }

    /// One poll of an instance with GRO, whose queue hands out frames without heads: what becomes
    /// part of another packet never gets one. `None` if there is no such queue, or packet.
    #[inline(never)]
    fn poll_frames(&mut self, napi: &NapiInfo, body: &mut Body<Rx>, weight: usize) -> Option<usize> {
        let Body { rx: Some(rx), gro, batch, .. } = body else { return None };
        let params = self.gro_params(napi)?;
        let mut frames = FrameBatch::new(self.ctx.region());
        let n = rx.rx_frames(&mut self.ctx, &mut frames, weight)?;
        if n == 0 {
            self.nothing_came(napi, gro);
            return Some(0);
        }
        let table = gro.get_or_insert_with(|| Box::new(GroTable::new()));
        table.receive_frames(&mut self.ctx, &napi.stats.gro, &params, &mut frames, batch);
        self.receive_merged(napi, table, batch);
        rx.processed();
        Some(n)
    }

    /// Processes packets that were steered to this thread's instance with index `at`: by runs of
    /// those that came by one queue.
    fn receive_steered(&mut self, at: usize, batch: &mut Batch) {
        let of = |skb: &Skb| (skb.head().dev, skb.head().queue);
        while let Some(first) = batch.as_slice().first().map(of) {
            let mut run = Batch::new();
            let n = batch.as_slice().iter().take_while(|skb| of(skb) == first).count();
            if n == batch.len() {
                run.append(batch);
            } else {
                // There is room.
                batch.drain().take(n).for_each(|skb| _ = run.push(skb));
            }
            let (dev, queue) = first;
            let live = self.lives.get(dev).and_then(|live| live.napis.get(usize::from(queue)));
            match live.map(|source| (source.handler, queue, source.napi.id)) {
                Some(source) if self.sampled => self.handle_sampled(at, source, &mut run),
                Some(source) => self.handle(at, source, &mut run),
                // It was closed meanwhile.
                None => self.ctx.free_batch(&mut run, DropReason::DevReady),
            }
        }
    }

    /// [`handle`](Self::handle), and takes note of what the packets cost.
    #[cold]
    #[inline(never)]
    fn handle_sampled(&mut self, at: usize, source: (RxHandler, u16, u32), run: &mut Batch) {
        let (n, start) = (run.len(), self.shared.clock.now());
        let dev = run.as_slice().first().map(|skb| skb.head().dev);
        self.handle(at, source, run);
        let ns = self.shared.clock.now().saturating_sub(start);
        let live = dev.and_then(|dev| self.lives.get(dev));
        if let Some(instance) = live.and_then(|live| live.napis.get(usize::from(source.1))) {
            instance.samples.add_steered(n, ns);
        }
    }

    /// Processes packets that came by `source`: what is done with them, its queue, and its NAPI id.
    /// The polled instance has index `at`.
    #[inline(always)]
    pub(super) fn handle(&mut self, at: usize, source: (RxHandler, u16, u32), batch: &mut Batch) {
        if let RxHandler::Ip(ingress) = &source.0
            && let Some(link) = self.shared.netdevs.get(usize::from(ingress.dev))
            && link.vlans.any()
        {
            self.receive_vlans(at, ingress, (source.1, source.2), batch);
            if batch.is_empty() {
                return;
            }
        }
        let PollContext { ctx, shared, received, lives, ready, now, tables, instances, .. } = self;
        let (instance, (handler, queue, napi_id)) = (&instances[at], source);
        match handler {
            RxHandler::Ip(ingress) => {
                let older = instance.left.tables();
                let tables = older.as_ref().unwrap_or_else(|| tables.load());
                let mut host = Poller { shared, lives, ready, now: *now, instance, napi_id, tables };
                received.ip(ctx, tables, &ingress, queue, batch, &mut host);
            }
            RxHandler::Patch(dev) if shared.netdevs.len() > usize::from(dev) => {
                let to = TxHint::forwarded(queue);
                lives.xmit(ctx, &shared.netdevs[usize::from(dev)], *now, to, batch);
            }
            RxHandler::Patch(_) | RxHandler::Steered => ctx.free_batch(batch, DropReason::Shutdown),
        }
    }
}

/// The thread that polls, as the receive path needs it.
struct Poller<'a> {
    shared: &'a StackInner,
    lives: &'a mut OpenCache,
    ready: &'a mut Vec<u32>,
    now: u64,
    instance: &'a NapiInstance,
    /// The instance that they came by.
    napi_id: u32,
    /// By which the batch goes.
    tables: &'a Arc<Tables>,
}

impl ReceiveHost for Poller<'_> {
    #[inline(always)]
    fn now(&self) -> u64 {
        self.now
    }

    #[inline(always)]
    fn xmit(&mut self, ctx: &mut SoftnetData, dev: u16, choice: TxChoice, origin: Origin, batch: &mut Batch) {
        match self.shared.netdevs.get(usize::from(dev)) {
            Some(dev) => self.lives.xmit(ctx, dev, self.now, TxHint { choice, origin }, batch),
            None => ctx.free_batch(batch, DropReason::DevReady),
        }
    }

    #[inline(always)]
    fn local_input(
        &mut self,
        ctx: &mut SoftnetData,
        transport: Transport,
        local: &mut Batch,
        unserved: &mut Batch,
    ) {
        if transport == Transport::Tcp {
            let Poller { shared, tables, now, napi_id, .. } = *self;
            let caller = Caller { shared, tables, now, napi_id };
            return shared.sockets.tcp.input(ctx, &caller, local);
        }
        let of = (self.napi_id, transport);
        self.shared.sockets.input(ctx, of, local, unserved, self.ready);
    }

    #[cold]
    fn exceptions(&mut self, ctx: &mut SoftnetData, exceptions: &mut Exceptions) {
        self.shared.handle_exceptions(ctx, exceptions, (&self.instance.left, self.tables));
    }
}

impl PollContext {
    /// One poll of an instance that the caller owns. Returns how many packets there were.
    #[inline(always)]
    pub(crate) fn poll_once(&mut self, napi: &NapiInfo, body: &mut Body<Rx>, weight: usize) -> usize {
        let weight = weight.min(BATCH);
        if self.steerer.is_some() && self.holds_back(napi, body) {
            return 0;
        }
        if self.shared.auto.samples() {
            self.polls = self.polls.wrapping_add(1);
            if self.polls.is_multiple_of(EVERY) {
                return self.poll_sampled(napi, body, weight);
            }
        }
        if napi.gro.mode() != GroMode::Off
            && let Some(n) = self.poll_frames(napi, body, weight)
        {
            return n;
        }
        let Body { rx: Some(rx), gro, batch, .. } = body else { return 0 };
        let n = rx.rx_burst(&mut self.ctx, batch, weight);
        if n > 0 {
            self.received(napi, gro, batch);
            rx.processed();
        } else {
            self.nothing_came(napi, gro);
        }
        n
    }
}

impl PollContext {
    /// Whether the instance collects nothing now, since the worker that all its packets go to has no room.
    #[inline(never)]
    fn holds_back(&mut self, napi: &NapiInfo, body: &mut Body<Rx>) -> bool {
        let held = self.instance(napi.id).and_then(|of| of.steering.held_back(&self.shared.backlogs));
        body.mitigation.hold(held);
        if held.is_some() {
            self.lives.reap_idle(&mut self.ctx, self.now, napi.queue.into());
        }
        held.is_some()
    }

    /// The same, and takes note of what the packets cost.
    #[cold]
    #[inline(never)]
    fn poll_sampled(&mut self, napi: &NapiInfo, body: &mut Body<Rx>, weight: usize) -> usize {
        let Body { rx: Some(rx), gro, batch, .. } = body else { return 0 };
        let start = self.shared.clock.now();
        let n = rx.rx_burst(&mut self.ctx, batch, weight);
        let received = self.shared.clock.now();
        if n == 0 {
            self.nothing_came(napi, gro);
            return 0;
        }
        if let Some(instance) = self.instance(napi.id)
            && !matches!(instance.handler, RxHandler::Steered)
        {
            instance.samples.look_at(batch);
            if n == weight {
                self.shared.auto.is_busy(&self.shared.housekeeper);
            }
        }
        let before = self.shared.clock.now();
        self.sampled = true;
        self.received(napi, gro, batch);
        self.sampled = false;
        rx.processed();
        let after = self.shared.clock.now();
        if let Some(instance) = self.instance(napi.id) {
            instance.samples.add(n, received.saturating_sub(start), after.saturating_sub(before));
        }
        n
    }
}

impl Driver<Rx> for PollContext {
    fn poll(&mut self, napi: &NapiInfo, body: &mut Body<Rx>, weight: usize, _: &mut PollList<Rx>) -> usize {
        let now = self.now;
        if let Some(instance) = self.instance(napi.id)
            && !instance.residency.is(Phase::Polled)
        {
            instance.residency.enter(Phase::Polled, now);
        }
        self.poll_once(napi, body, weight)
    }

    fn deliver(&mut self, napi: &NapiInfo, batch: &mut Batch) {
        self.receive(napi, batch);
    }

    fn released(&mut self, released: Released<Rx>, list: &mut PollList<Rx>) {
        if let OnRelease::Again = self.on_release {
            return released.napi.schedule_prep().into_iter().for_each(|napi| list.push(napi));
        }
        self.now = self.shared.clock.now();
        self.fresh = true;
        let Some(instance) = self.instance(released.napi.id) else { return };
        let phase = if released.unmask { Phase::Irq } else { Phase::Deferred };
        instance.residency.enter(phase, self.now);
        match released.timer {
            Some(ns) => instance.timer.arm(self.now, ns, Timeout::GroFlush),
            None => instance.timer.disarm(),
        }
        if !released.unmask {
            return;
        }
        instance.set_unmasked();
        instance.released_untimed(self.now);
        let pending = instance.doorbell.pending();
        match &self.on_release {
            OnRelease::UnmaskFor(pool) if pending || !pool.arm(instance) => {
                ring_shared(instance).into_iter().for_each(|napi| list.push(napi));
            }
            OnRelease::Unmask if pending => ring(instance, |napi| list.push(napi)),
            _ => {}
        }
    }

    fn now(&mut self) -> u64 {
        if !std::mem::take(&mut self.fresh) {
            self.now = self.shared.clock.now();
        }
        self.now
    }
}
