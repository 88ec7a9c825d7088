//! Redirects: what the slow path says to senders of packets that go back by the device they came by, see
//! [`redirect`](crate::ip::redirect).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::family::SlowFamily;
use super::{Call, Effects, RouteSnapshot, SlowPath};
use crate::SoftnetData;
use crate::ip::redirect::CameBy;
use crate::skb::Flags;

impl SlowPath {
    /// Tells the sender of `packet`, which came by a device and was sent on by it, of the first hop
    /// it went to, if that is due. `packet` begins at its IP header, as it came in.
    pub fn redirect(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        (came_by, packet): (CameBy, &[u8]),
        out: &mut Effects,
    ) {
        self.call(ctx, view, out, |call| match packet.first().map(|first| first >> 4) {
            Some(6) => call.redirect::<Ipv6Addr>(came_by, packet),
            _ => call.redirect::<Ipv4Addr>(came_by, packet),
        });
    }
}

impl Call<'_> {
    fn redirect<F: SlowFamily>(&mut self, came_by: CameBy, packet: &[u8]) {
        if let Some((_, dst)) = F::ends(packet) {
            let first_hop = F::routing(self.view.tables).route(dst).gateway;
            self.redirect_to(came_by, packet, first_hop);
        }
    }

    /// The same where that first hop is known.
    pub(super) fn redirect_to<F: SlowFamily>(&mut self, came_by: CameBy, packet: &[u8], first_hop: F) {
        let CameBy { dev, queue } = came_by;
        let Some(iface) = self.view.iface(dev).filter(|iface| iface.send_redirects) else { return };
        let Some((src, _)) = F::ends(packet) else { return };
        let source = F::redirect_source(self.view, iface, packet, first_hop);
        let Some(source) = source.filter(|_| self.slow.redirects.allow(self.view.now, src.into())) else {
            return;
        };
        let mac = self.slow.neigh.mac(dev, first_hop.into());
        if let Some(mut message) = F::build_redirect(self.ctx, packet, source, (first_hop, mac)) {
            let head = message.head_mut();
            (head.dev, head.queue, head.flags) = (dev, queue, Flags::ORIGINATED);
            self.ctx.originate();
            self.output_own::<F>(message);
        }
    }
}
