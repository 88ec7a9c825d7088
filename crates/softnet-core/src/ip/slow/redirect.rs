//! Redirects: what the slow path says to senders of packets that go back by the device they came by, see
//! [`redirect`](crate::ip::redirect).

use super::*;
use crate::ip::v4::redirect;
use crate::ip::v6::header::Ipv6Header;
use crate::ip::v6::nd;

impl SlowPath {
    /// Tells the sender of `packet`, which came by device `dev` and was sent on by it, of the first hop it went to, if that
    /// is due. `packet` begins at its IP header, as it came in.
    pub fn redirect(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        (dev, packet): (u16, &[u8]),
        out: &mut Effects,
    ) {
        match packet.first().map(|first| first >> 4) {
            Some(6) => {
                if let Some(dst) = Ipv6Header::new(packet).map(|header| header.dst()) {
                    let first_hop = view.tables.v6.route(dst).gateway;
                    self.redirect6(ctx, view, (dev, packet), first_hop, out);
                }
            }
            _ => {
                if let Some(dst) = Ipv4Header::new(packet).map(|header| header.dst()) {
                    let first_hop = view.tables.v4.route(dst.into()).gateway;
                    self.redirect4(ctx, view, (dev, packet), first_hop, out);
                }
            }
        }
        self.act(ctx, view, out);
    }

    /// The same of IPv4, where that first hop is known.
    pub(super) fn redirect4(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        (dev, packet): (u16, &[u8]),
        first_hop: Ipv4Addr,
        out: &mut Effects,
    ) {
        let Some(iface) = view.iface(dev).filter(|iface| iface.send_redirects) else { return };
        let Some(header) = Ipv4Header::new(packet) else { return };
        let src = Ipv4Addr::from(header.src());
        let tellable = iface.shares_network(src, first_hop)
            && may_report(packet, header.header_len(), |addr| view.is_broadcast(addr));
        let Some(source) = iface.source_for(src).filter(|_| tellable) else { return };
        if !self.redirects.allow(view.now, src.into()) {
            return;
        }
        if let Some(mut message) = redirect::build(ctx, packet, first_hop, source) {
            message.head_mut().dev = dev;
            ctx.originate();
            self.output_own(ctx, view, message, out);
        }
    }

    /// The same of IPv6.
    pub(in crate::ip) fn redirect6(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        (dev, packet): (u16, &[u8]),
        first_hop: Ipv6Addr,
        out: &mut Effects,
    ) {
        let Some(iface) = view.iface(dev).filter(|iface| iface.send_redirects) else { return };
        let Some(header) = Ipv6Header::new(packet) else { return };
        let (src, dst) = (header.src(), header.dst());
        // A host believes its first hop only, which it knows by the link-local address (RFC 4861 section 8.1).
        let source = iface.link_local().filter(|_| iface.may_redirect6(src, dst, first_hop));
        let Some(source) = source.filter(|_| self.redirects.allow(view.now, src.into())) else { return };
        let mac = self.neigh.mac(dev, first_hop.into());
        let Some(mut message) = ctx.alloc_skb() else { return };
        if nd::write_redirect(&mut message, (source, src), (first_hop, mac), (dst, packet)).is_none() {
            return ctx.free_skb(message);
        }
        let head = message.head_mut();
        (head.dev, head.flags) = (dev, Flags::ORIGINATED);
        ctx.originate();
        self.output_own6(ctx, view, message, out);
    }
}
