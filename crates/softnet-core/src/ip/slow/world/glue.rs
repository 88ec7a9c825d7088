//! How the world puts fast path, slow path and tables together, as the runtime does: the steps from a received batch to
//! what is sent.

use super::{MACS, Sent, TestFamily, World};
use crate::SoftnetData;
use crate::ip::input::{Exception, Ingress, Outcome, ip_input};
use crate::ip::slow::{Effects, RouteSnapshot, SlowPath};
use crate::skb::{Batch, HEADROOM};

impl<F: TestFamily> World<F> {
    /// One batch by device `dev`, as a worker processes it: fast path, then exceptions. What memory is left for is
    /// received. Returns the frames sent.
    pub(crate) fn input(&mut self, dev: u16, frames: &[Vec<u8>]) -> Sent {
        let (mut batch, mut outcome) = (Batch::new(), Outcome::default());
        for bytes in frames {
            let Some(mut frame) = self.ctx.alloc_frame() else { continue };
            frame.bytes_mut()[HEADROOM..][..bytes.len()].copy_from_slice(bytes);
            match self.ctx.build_skb(frame, HEADROOM, bytes.len()) {
                Ok(mut skb) => {
                    skb.head_mut().dev = dev;
                    batch.push(skb).unwrap();
                    self.received += 1;
                }
                Err(frame) => self.ctx.free_frame(frame),
            }
        }
        let rp_filter = self.iface(dev).map_or_else(Default::default, |iface| iface.rp_filter);
        let ingress = Ingress { dev, mac: MACS[usize::from(dev)], partial_csum: false, rp_filter };
        ip_input(&mut self.ctx, &self.tables, &ingress, &mut batch, &mut outcome);
        let (sent, ()) = self.call(|slow, ctx, view, out| {
            outcome.tx.flush(|dev, batch| out.send.extend(batch.drain().map(|skb| (dev, skb))));
            for (skb, why) in outcome.slow.drain() {
                slow.handle(ctx, view, skb, why, out);
            }
            if let Some((dev, packet)) = outcome.slow.redirect.take() {
                slow.redirect(ctx, view, (dev, packet), out);
            }
            // There are no sockets.
            for skb in outcome.udp.drain().chain(std::mem::take(&mut out.local)) {
                slow.handle(ctx, view, skb, Exception::NoSocket, out);
            }
        });
        sent
    }

    /// Calls the slow path, and carries out what comes of it. Returns the frames sent, and what `call` did.
    pub(crate) fn call<R>(
        &mut self,
        call: impl FnOnce(&mut SlowPath, &mut SoftnetData, RouteSnapshot<'_>, &mut Effects) -> R,
    ) -> (Sent, R) {
        let mut out = Effects::default();
        let view = RouteSnapshot { now: self.now, tables: &self.tables, ifaces: &self.tables.ifaces };
        let result = call(&mut self.slow, &mut self.ctx, view, &mut out);
        (self.carry_out(out), result)
    }

    fn carry_out(&mut self, mut out: Effects) -> Sent {
        self.sent += out.send.len() as u64;
        self.errors.append(&mut out.errors);
        let mut sent = Sent::new();
        for (dev, skb) in out.send.drain(..) {
            sent.push((dev, skb.data().to_vec()));
            self.ctx.free_skb(skb);
        }
        out.publish.into_iter().for_each(|neighbour| self.tables.set_neighbour(neighbour));
        let stats = self.ctx.stats();
        assert_eq!(
            self.received + stats.originated.get(),
            self.sent + stats.delivered.get() + stats.dropped() + stats.merged.get() + self.held(),
            "received {} sent {} held {}",
            self.received,
            self.sent,
            self.held()
        );
        sent
    }
}
