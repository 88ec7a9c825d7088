//! The world as the [composition](crate::stack)'s host: time and tables are its own, its devices only note what leaves,
//! and it has no sockets.

use std::cell::RefCell;
use std::sync::Arc;

use super::{MACS, Sent, TestFamily, World};
use crate::SoftnetData;
use crate::fold::FoldKey;
use crate::gro::{GroParams, GroStats, GroTable};
use crate::gso;
use crate::ip::input::{Exceptions, Ingress};
use crate::ip::pmtu::RecentPeers;
use crate::ip::slow::{Effects, RouteSnapshot, SlowPath};
use crate::ip::tables::Tables;
use crate::napi::Gro;
use crate::qdisc::Origin;
use crate::skb::{Batch, Csum, DropReason, Flags, GsoType, HEADROOM, Head, Region, Skb, VlanProto};
use crate::sock::{Binder, Flow, SocketError, Sockets, Transport};
use crate::stack::receive::{Receive, ReceiveHost};
use crate::stack::slow::{SlowHost, SlowPathState};
use crate::stack::sockets::SocketHost;
use crate::steer::TxChoice;

/// Sockets, of which there are none.
pub(crate) struct NoSockets {
    sockets: Arc<Sockets>,
    recent: RecentPeers,
    /// What they were to be told.
    told: RefCell<Vec<(Flow, SocketError)>>,
}

impl NoSockets {
    pub(crate) fn new(region: &Arc<Region>) -> Self {
        NoSockets {
            sockets: Binder::new(region.clone(), 1, 0).sockets().clone(),
            recent: RecentPeers::new(FoldKey::new([1, 2])),
            told: RefCell::default(),
        }
    }
}

impl SocketHost for NoSockets {
    fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    fn recent(&self) -> &RecentPeers {
        &self.recent
    }

    fn local_input(
        &self,
        _: &mut SoftnetData,
        _: Transport,
        local: &mut Batch,
        unserved: &mut Batch,
        _: &mut Vec<u32>,
    ) {
        std::mem::swap(local, unserved);
    }

    fn input_to_many(&self, ctx: &mut SoftnetData, _: Transport, _: u16, skb: Skb, _: &mut Vec<u32>) {
        ctx.free(skb, DropReason::IpNoProto);
    }

    fn told(&self, _: &crate::sock::tcp::Told) {}

    fn report(&self, flow: &Flow, error: SocketError) {
        self.told.borrow_mut().push((*flow, error));
    }

    fn arrived(&self, _: u32) {}
}

/// For one step.
pub(super) struct Host<'a> {
    now: u64,
    tables: RefCell<Arc<Tables>>,
    sent: RefCell<Sent>,
    choices: RefCell<Vec<TxChoice>>,
    sockets: &'a NoSockets,
    tracked: bool,
}

impl SlowHost for Host<'_> {
    fn now(&self) -> u64 {
        self.now
    }

    fn tables(&self) -> Arc<Tables> {
        self.tables.borrow().clone()
    }

    fn replace(&self, tables: Arc<Tables>) -> Arc<Tables> {
        self.tables.replace(tables)
    }

    fn xmit(&self, ctx: &mut SoftnetData, dev: u16, choice: TxChoice, _: Origin, batch: &mut Batch) {
        for skb in batch.drain() {
            let mut segments = gso::segment(ctx, skb).unwrap_or_else(|(_, why)| panic!("{why:?}"));
            while let Some(skb) = segments.pop_front() {
                assert_metadata(skb.head(), self.tracked);
                self.sent.borrow_mut().push((dev, skb.frames().flatten().copied().collect()));
                self.choices.borrow_mut().push(choice);
                ctx.free_skb(skb);
            }
        }
    }

    fn sockets(&self) -> &impl SocketHost {
        self.sockets
    }
}

/// What others found out of a received packet.
const MARK: u32 = 7;
const CONNTRACK: u32 = 9;
/// The RX queue by which all is received.
pub(crate) const QUEUE: u16 = 5;

/// Sets what the answer to a packet, or an error about it, must not have, and fragments of it must.
fn set_metadata(head: &mut Head) {
    (head.mark, head.conntrack, head.queue) = (MARK, CONNTRACK, QUEUE);
    crate::vlan::set(head, VlanProto::Dot1ad, 5);
    (head.hash, head.tc_depth) = (3, 1);
}

/// Sets what says nothing of a packet that is no aggregate: it has no size of segments.
fn set_useless_metadata(head: &mut Head) {
    (head.csum, head.gso_segs, head.gso_type) = (Csum::Unnecessary, 2, GsoType::UdpL4);
}

fn assert_metadata(head: &Head, tracked: bool) {
    let connection = match tracked {
        // Whatever it is.
        true if head.flags & Flags::ORIGINATED == 0 => CONNTRACK,
        true => 0,
        false => head.conntrack,
    };
    let said = (head.mark, connection, head.vlan_proto, head.tc_depth);
    if head.flags & Flags::ORIGINATED == 0 {
        return assert_eq!(said, (MARK, CONNTRACK, VlanProto::Dot1ad, 1));
    }
    assert_eq!(said, (0, 0, VlanProto::None, 0));
    assert_eq!((head.csum, head.gso_size, head.gso_segs), (Csum::None, 0, 0));
    assert_eq!((head.gso_type, head.hash), (GsoType::None, 0));
}

struct Poller<'a> {
    host: &'a Host<'a>,
    control: &'a mut SlowPathState,
}

impl ReceiveHost for Poller<'_> {
    fn now(&self) -> u64 {
        self.host.now
    }

    fn xmit(&mut self, ctx: &mut SoftnetData, dev: u16, choice: TxChoice, origin: Origin, batch: &mut Batch) {
        self.host.xmit(ctx, dev, choice, origin, batch);
    }

    fn local_input(&mut self, _: &mut SoftnetData, _: Transport, local: &mut Batch, unserved: &mut Batch) {
        std::mem::swap(local, unserved);
    }

    fn exceptions(&mut self, ctx: &mut SoftnetData, exceptions: &mut Exceptions) {
        self.control.run(ctx, self.host, |slow, ctx, view, out| {
            for (skb, why) in exceptions.drain() {
                slow.handle(ctx, view, skb, why, out);
            }
            if let Some(told) = exceptions.redirect.take() {
                slow.redirect(ctx, view, told, out);
            }
        });
    }
}

impl<F: TestFamily> World<F> {
    /// One batch by device `dev`. What memory is left for is received. Returns the frames sent.
    pub(crate) fn input(&mut self, dev: u16, frames: &[Vec<u8>]) -> Sent {
        let batch = self.received(dev, frames, set_useless_metadata);
        self.input_batch(dev, batch)
    }

    /// The same through GRO, which holds none of them back; frames of what is an aggregate when it
    /// is sent are its segments.
    pub(crate) fn input_merged(&mut self, dev: u16, frames: &[Vec<u8>], params: &GroParams) -> Sent {
        let (mut table, stats) = (GroTable::new(), GroStats::default());
        let mut batch = self.received(dev, frames, |_| ());
        table.receive(&mut self.ctx, &stats, params, &mut batch);
        let mut batches = vec![];
        loop {
            if batch.is_empty() {
                table.flush(&stats, &mut batch, false);
            }
            if batch.is_empty() {
                break;
            }
            batches.push(std::mem::take(&mut batch));
            table.more(&mut batch);
        }
        self.waiting = batches.iter().map(|batch| batch.len() as u64).sum();
        let mut sent = Sent::new();
        for batch in batches {
            self.waiting -= batch.len() as u64;
            sent.extend(self.input_batch(dev, batch));
        }
        sent
    }

    fn received(&mut self, dev: u16, frames: &[Vec<u8>], also: fn(&mut Head)) -> Batch {
        let mut batch = Batch::new();
        for bytes in frames {
            let Some(mut frame) = self.ctx.alloc_frame() else { continue };
            frame.bytes_mut()[HEADROOM..][..bytes.len()].copy_from_slice(bytes);
            match self.ctx.build_skb(frame, HEADROOM, bytes.len()) {
                Ok(mut skb) => {
                    set_metadata(skb.head_mut());
                    also(skb.head_mut());
                    skb.head_mut().dev = dev;
                    batch.push(skb).unwrap();
                    self.received += 1;
                }
                Err(frame) => self.ctx.free_frame(frame),
            }
        }
        batch
    }

    fn input_batch(&mut self, dev: u16, mut batch: Batch) -> Sent {
        let rp_filter = self.iface(dev).map_or_else(Default::default, |iface| iface.rp_filter);
        let ingress = Ingress { dev, mac: MACS[usize::from(dev)], partial_csum: false, rp_filter };
        let (sent, ()) = self.step(|ctx, control, host| {
            let tables = host.tables();
            Receive::default().ip(ctx, &tables, &ingress, QUEUE, &mut batch, &mut Poller { host, control });
        });
        sent
    }

    /// Calls the slow path. Returns the frames sent, and what `call` did.
    pub(crate) fn call<R>(
        &mut self,
        call: impl FnOnce(&mut SlowPath, &mut SoftnetData, RouteSnapshot<'_>, &mut Effects) -> R,
    ) -> (Sent, R) {
        self.step(|ctx, control, host| {
            let mut result = None;
            control.run(ctx, host, |slow, ctx, view, out| result = Some(call(slow, ctx, view, out)));
            result.unwrap()
        })
    }

    /// Does one step, and notes what came of it. Returns the frames sent, and what `step` did.
    pub(super) fn step<R>(
        &mut self,
        step: impl FnOnce(&mut SoftnetData, &mut SlowPathState, &Host<'_>) -> R,
    ) -> (Sent, R) {
        let host = Host {
            now: self.now,
            tables: RefCell::new(Arc::new(self.tables.clone())),
            sent: RefCell::default(),
            choices: RefCell::default(),
            sockets: &self.sockets,
            tracked: self.tracked,
        };
        let result = step(&mut self.ctx, &mut self.control, &host);
        self.tables = Tables::clone(&host.tables());
        let sent = host.sent.into_inner();
        self.choices = host.choices.into_inner();
        self.errors.append(&mut self.sockets.told.borrow_mut());
        self.sent += sent.len() as u64;
        let stats = self.ctx.stats();
        assert_eq!(
            self.received + stats.originated.get(),
            self.sent
                + stats.delivered.get()
                + stats.dropped()
                + stats.merged.get()
                + self.held()
                + self.waiting,
            "received {} sent {} held {}",
            self.received,
            self.sent,
            self.held()
        );
        (sent, result)
    }
}
