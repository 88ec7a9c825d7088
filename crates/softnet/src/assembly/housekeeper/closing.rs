//! Closing devices: of one whose interface is gone or whose configuration changed, and of all when the stack stops.
//!
//! The housekeeper's thread calls it. Invariant: frames that a queue had are home before its device is open anew.

use std::sync::{Arc, Mutex};

use softnet_core::SoftnetData;
use softnet_core::skb::DropReason;

use super::Housekeeper;
use crate::device::OpenParts;
use crate::napi::Input;
use crate::tx::NetdevQueue;
use crate::util::lock;

impl Housekeeper {
    /// Closes a device: it is not polled any more, its frames go home, its neighbours are forgotten.
    pub(crate) fn close(&mut self, dev: u16) {
        self.vlans(dev).into_iter().for_each(|vlan| self.close(vlan));
        if let Some(closing) = self.detach(dev) {
            self.close_queues(vec![closing]).iter().for_each(|closed| self.closed(closed));
        }
    }

    /// Has no thread poll a device any more. VLANs over it were closed.
    fn detach(&mut self, dev: u16) -> Option<Closing> {
        if self.is_open(dev) {
            // First, so that packets go another way where there is one.
            self.set_open(dev, false);
        }
        let live = self.shared.devices[usize::from(dev)].take()?;
        // Before its sockets are closed: another process that was offered them is to let go of
        // them.
        if self.shared.devices[usize::from(dev)].vlan.is_none() {
            self.shared.giving.withdraw();
        }
        self.shared.devices[usize::from(dev)].groups.closed(&*live.device);
        self.arfs.closing(dev, &*live.device);
        let (mut homes, mut rx) = (Vec::with_capacity(live.napis.len()), Vec::new());
        for instance in &live.napis {
            instance.close();
            let (mut disabled, home) = instance.evict();
            homes.extend(home);
            disabled.free_gro(&mut self.ctx, DropReason::Shutdown);
            rx.extend(disabled.body().rx.take());
        }
        self.contexts.retire(homes);
        // What it steered is dropped as its turn comes, since the device is not open any more.
        self.shared.flush_backlogs(&mut self.ctx);
        Some(Closing { dev, live, rx })
    }

    /// Gives the queues of devices back: frames that the kernel has come home. The kernel has each socket and program
    /// wait until no CPU can use it any more, 10 to 20 ms: side by side these are the time of a few, and a supervisor
    /// that starts softnet again waits for them, as does the next configuration of a device.
    fn close_queues(&mut self, mut closing: Vec<Closing>) -> Vec<Closing> {
        let mut parts = Vec::new();
        for Closing { live, rx, .. } in &mut closing {
            let (mut rx, mut tx) = (rx.drain(..), live.tx.queues.iter().cloned());
            loop {
                match (rx.next(), tx.next()) {
                    (None, None) => break,
                    (rx, tx) => parts.push(Part::Queue(rx, tx)),
                }
            }
            parts.push(Part::Device(live.clone()));
        }
        self.side_by_side(parts, &|part, ctx| match part {
            Part::Device(live) => live.device.closing(),
            Part::Queue(rx, tx) => {
                rx.into_iter().for_each(|rx| rx.close(ctx));
                tx.into_iter().for_each(|tx| tx.close(ctx));
            }
        });
        closing
    }

    /// A device's queues are closed.
    fn closed(&mut self, Closing { dev, live, .. }: &Closing) {
        let dev = *dev;
        // Which one has it, another configuration may say otherwise by now.
        for queue in &live.tx.queues {
            self.shared.workers.iter().for_each(|worker| worker.remove_tx(queue));
        }
        self.shared.devices[usize::from(dev)].retire_counters(live);
        self.set_iface(dev, None);
        // A list that was read meanwhile may have found it.
        self.list_again();
        self.shared.slow_path(&mut self.ctx, |slow, ctx, view, out| slow.remove_device(ctx, view, dev, out));
        // Frames that came home are for all threads.
        self.ctx.drain();
    }

    /// Closes every device and frees what waits for neighbours.
    pub(super) fn close_all(&mut self) {
        self.give_up_taking();
        self.shared.backlogs.close(&mut self.ctx);
        let all = 0..self.config.devices.len() as u16;
        all.clone()
            .filter(|dev| self.is_vlan(*dev))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|vlan| self.close(vlan));
        let closing: Vec<_> = all.filter_map(|dev| self.detach(dev)).collect();
        let closed = self.close_queues(closing);
        closed.iter().for_each(|closed| self.closed(closed));
        self.side_by_side(closed, &|closed, _| drop(closed));
        self.shared.slow_path(&mut self.ctx, |slow, ctx, _, _| slow.shutdown(ctx));
        self.ctx.drain();
    }

    /// Does `one` with each of `all`, in threads of their own as far as there are any to be had; each with a context of its own.
    fn side_by_side<T: Send>(&mut self, all: Vec<T>, one: &(dyn Fn(T, &mut SoftnetData) + Sync)) {
        const THREADS: usize = 32;
        let threads = all.len().min(THREADS);
        let all = Mutex::new(all);
        let next = || lock(&all).pop();
        let work = |ctx: &mut SoftnetData| {
            while let Some(item) = next() {
                one(item, ctx);
            }
        };
        let shared = &self.shared;
        std::thread::scope(|scope| {
            for _ in 1..threads {
                let thread = || {
                    let mut ctx = shared.context();
                    work(&mut ctx);
                    ctx.drain();
                };
                // Without it the others do its part.
                let _ = std::thread::Builder::new().spawn_scoped(scope, thread);
            }
            work(&mut self.ctx);
        });
        self.shared.contexts_ended();
    }
}

/// A device that no thread polls any more.
struct Closing {
    dev: u16,
    live: Arc<OpenParts>,
    rx: Vec<Input>,
}

/// What is done of a device by one thread.
enum Part {
    Device(Arc<OpenParts>),
    /// What comes in by a queue, and what leaves by it.
    Queue(Option<Input>, Option<Arc<NetdevQueue>>),
}
