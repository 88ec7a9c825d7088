//! What surrounds the composition in these tests: devices that note what they send, sockets, and a filter.

use super::*;
/// A device that keeps what it sends until it completes.
pub(super) struct Device {
    pub(super) dev: u16,
    pub(super) ring: VecDeque<Frame>,
    pub(super) completes: Arc<Mutex<bool>>,
    pub(super) sent: Arc<Mutex<Sent>>,
    pub(super) stats: Arc<QueueStats>,
}

impl TxQueue for Device {
    fn reap(&mut self, ctx: &mut SoftnetData) -> Reaped {
        let freed = if *self.completes.lock().unwrap() { self.ring.len() } else { 0 };
        ctx.free_frames(self.ring.drain(..freed));
        Reaped { freed, held: self.ring.len(), room: RING - self.ring.len() }
    }

    fn tx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize {
        let n = batch.len().min(RING - self.ring.len());
        ctx.take_frames(self.dev, batch, n, |frame, off, len| {
            self.sent.lock().unwrap().push((self.dev, frame.bytes()[off..off + len].to_vec()));
            self.stats.packets.add(1);
            self.stats.bytes.add(len as u64);
            self.ring.push_back(frame);
        });
        n
    }

    fn kick(&mut self, _: &mut SoftnetData) -> bool {
        false
    }

    fn stats(&self) -> Arc<QueueStats> {
        self.stats.clone()
    }

    fn held(&self) -> usize {
        self.ring.len()
    }

    fn close(mut self: Box<Self>, ctx: &mut SoftnetData) {
        ctx.free_frames(self.ring.drain(..));
    }
}

/// No thread waits.
pub(super) struct Nothing;

impl TxWake for Nothing {
    fn run_at(&self, _: u64) {}
    fn made_room(&self) {}
}

/// A filter that keeps what it redirects, for the world to send.
pub(super) struct Filter {
    pub(super) mode: Mutex<Mode>,
    /// With whether it is to come in again.
    pub(super) kept: Mutex<Vec<(Skb, bool)>>,
}

impl Hook for Filter {
    fn run(&self, cx: &mut HookContext<'_>, _: Passage, batch: &mut Batch) {
        let ctx = &mut *cx.ctx;
        let (mode, mut kept) = (*self.mode.lock().unwrap(), self.kept.lock().unwrap());
        let ingress = matches!(mode, Mode::MirrorIngress | Mode::RedirectIngress);
        match mode {
            Mode::Pass => {}
            Mode::Drop => ctx.free_batch(batch, DropReason::TcIngress),
            Mode::Redirect | Mode::RedirectIngress => kept.extend(batch.drain().map(|skb| (skb, ingress))),
            Mode::Mirror | Mode::MirrorIngress => {
                for skb in batch.as_slice() {
                    if let Some(copy) = ctx.copy(skb) {
                        ctx.originate();
                        kept.push((copy, ingress));
                    }
                }
            }
        }
    }
}

pub(super) struct Host {
    pub(super) now: Cell<u64>,
    pub(super) tables: RefCell<Arc<Tables>>,
    pub(super) tx: [NetdevQueue<Nothing>; 2],
    pub(super) binder: RefCell<Binder>,
    pub(super) sockets: Arc<Sockets>,
    pub(super) recent: RecentPeers,
    pub(super) memory: SockMem,
    /// Frames in sockets.
    pub(super) held: Cell<usize>,
}

impl Host {
    pub(super) fn xmit_on(&self, ctx: &mut SoftnetData, dev: u16, origin: Origin, batch: &mut Batch) {
        self.tx[usize::from(dev)].xmit(ctx, self.now.get(), origin, batch);
        ctx.free_batch_at(batch, dev, DropReason::QdiscBurstDrop);
    }

    pub(super) fn hand_over(
        &self,
        frames: usize,
        ready: &mut Vec<u32>,
        hand_over: impl FnOnce(&mut Arrivals<'_>),
    ) {
        let room = self.memory.room(self.held.get());
        self.held.set(self.held.get() + frames);
        let mut to = Arrivals { sockets: &self.sockets, napi_id: 1, room, queued: 0, ready };
        hand_over(&mut to);
        assert!(to.queued <= frames);
        self.held.set(self.held.get() - (frames - to.queued));
    }
}

impl SlowHost for Host {
    fn now(&self) -> u64 {
        self.now.get()
    }

    fn tables(&self) -> Arc<Tables> {
        self.tables.borrow().clone()
    }

    fn replace(&self, tables: Arc<Tables>) -> Arc<Tables> {
        self.tables.replace(tables)
    }

    fn xmit(&self, ctx: &mut SoftnetData, dev: u16, _: TxChoice, origin: Origin, batch: &mut Batch) {
        self.xmit_on(ctx, dev, origin, batch);
    }

    fn sockets(&self) -> &impl SocketHost {
        self
    }
}

impl SocketHost for Host {
    fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    fn recent(&self) -> &RecentPeers {
        &self.recent
    }

    fn local_input(
        &self,
        ctx: &mut SoftnetData,
        transport: Transport,
        local: &mut Batch,
        unserved: &mut Batch,
        ready: &mut Vec<u32>,
    ) {
        self.hand_over(local.frames(), ready, |to| transport.input(ctx, to, local, unserved));
    }

    fn input_to_many(
        &self,
        ctx: &mut SoftnetData,
        transport: Transport,
        dev: u16,
        skb: Skb,
        ready: &mut Vec<u32>,
    ) {
        let members = |flow: &Flow| self.binder.borrow().members(flow, dev).collect();
        transport.input_to_many(ctx, members, skb, |ctx, hit, run| {
            self.hand_over(run.frames(), ready, |to| to.hand_over(ctx, hit, run));
        });
    }

    fn told(&self, _: &crate::sock::tcp::Told) {}

    fn report(&self, _: &Flow, _: SocketError) {}

    fn arrived(&self, _: u32) {}
}

/// The host while something is received.
pub(super) struct Receiving<'a> {
    pub(super) host: &'a Host,
    pub(super) slow: &'a mut SlowPathState,
}

impl ReceiveHost for Receiving<'_> {
    fn now(&self) -> u64 {
        self.host.now.get()
    }

    fn xmit(&mut self, ctx: &mut SoftnetData, dev: u16, _: TxChoice, origin: Origin, batch: &mut Batch) {
        self.host.xmit_on(ctx, dev, origin, batch);
    }

    fn local_input(
        &mut self,
        ctx: &mut SoftnetData,
        transport: Transport,
        local: &mut Batch,
        unserved: &mut Batch,
    ) {
        SocketHost::local_input(self.host, ctx, transport, local, unserved, &mut Vec::new());
    }

    fn exceptions(&mut self, ctx: &mut SoftnetData, exceptions: &mut Exceptions) {
        self.slow.run(ctx, self.host, |slow, ctx, view, out| {
            for (skb, why) in exceptions.drain() {
                slow.handle(ctx, view, skb, why, out);
            }
            exceptions.redirect.take();
        });
    }
}
