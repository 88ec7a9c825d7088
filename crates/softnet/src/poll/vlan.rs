//! Packets of VLANs: handed to the VLAN's device by the thread that received them by its link.
//!
//! Stands between the link's stages (its ingress filter, steering) and IP. Invariant: what is left to the link's own IP has no
//! tag of a VLAN; where no VLAN is configured no head is looked at.

use softnet_core::ip::input::Ingress;
use softnet_core::skb::{Batch, DropReason};

use super::PollContext;
use crate::control::Direction;
use crate::napi::RxHandler;

impl PollContext {
    /// Hands up those packets of `batch`, which came by `ingress`, that are of a VLAN. `at`, `queue` and `napi_id` are those of
    /// the link's packets.
    #[inline(never)]
    pub(super) fn receive_vlans(
        &mut self,
        at: usize,
        ingress: &Ingress,
        (queue, napi_id): (u16, u32),
        batch: &mut Batch,
    ) {
        loop {
            let group = self.shared.netdevs.get(usize::from(ingress.dev)).map(|dev| &dev.vlans);
            let Some((dev, mut up)) = group.and_then(|group| group.next(&mut self.ctx, batch)) else {
                return;
            };
            let netdev = self.shared.netdevs.get(usize::from(dev));
            let Some((netdev, vlan)) = netdev.and_then(|dev| Some((dev, dev.vlan.as_ref()?))) else {
                self.ctx.free_batch(&mut up, DropReason::DevReady);
                continue;
            };
            vlan.stats.received(&up);
            self.ctx.tap_in(self.now, dev, queue, &mut up);
            let ingress = vlan.params.ingress(dev, ingress);
            if netdev.ingress.is_set() {
                let (ctx, now) = (&mut self.ctx, self.now);
                netdev.ingress.act(ctx, dev, Direction::Ingress, now, queue.into(), &mut up);
            }
            if self.lives.get(dev).is_none() {
                self.ctx.free_batch(&mut up, DropReason::DevReady);
            }
            if !up.is_empty() {
                self.handle(at, (RxHandler::Ip(ingress), queue, napi_id), &mut up);
            }
        }
    }
}
