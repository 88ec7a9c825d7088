//! ICMP errors about IPv4 packets: which of them, and from which address.

use super::*;
use crate::ip::checksum;
use crate::ip::unserved::tells_of_tcp;

impl RouteSnapshot<'_> {
    /// The address that an error about a packet from `src` to `dst` is sent from: `dst`, if that is
    /// ours, else an address of the interface by which the error leaves (RFC 1812 section 4.3.2.4).
    /// `None` if there is no way to `src`.
    fn error_source(&self, src: Ipv4Addr, dst: Ipv4Addr) -> Option<Ipv4Addr> {
        if self.is_own(dst) {
            return Some(dst);
        }
        let hop = self.tables.v4.route(src);
        let iface = self.iface(hop.dev).filter(|_| hop.is_reachable())?;
        // A link without addresses borrows one of another's.
        let any = || self.ifaces.iter().flatten().find_map(|iface| iface.addresses.first());
        iface.source_for(hop.gateway).or_else(|| any().map(|(addr, _)| *addr))
    }
}

impl SlowPath {
    /// A datagram to softnet, for a protocol that is not served: tells its sender, if that is to be told, and hands it back.
    pub(super) fn unserved_protocol(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        out: &mut Effects,
    ) -> (Skb, DropReason) {
        match tells(&skb) {
            Ok(true) => self.unserved(ctx, view, skb, out),
            Ok(false) => (skb, DropReason::IpNoProto),
            Err(reason) => (skb, reason),
        }
    }

    /// The same for a port, or for a protocol of which nothing else is known.
    pub(super) fn unserved(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        out: &mut Effects,
    ) -> (Skb, DropReason) {
        let header = Ipv4Header::new(skb.data().get(ETH_LEN..).unwrap_or_default());
        let said = header.map_or((0, Ipv4Addr::UNSPECIFIED), |h| (h.protocol(), h.dst().into()));
        let (protocol, dst) = said;
        if !is_unicast(dst.into()) || view.is_broadcast(dst) {
            return (skb, DropReason::IpInvalidDest);
        }
        // TCP has no ports here, as it is not served (RFC 1122 section 3.2.2.1).
        let error = match protocol {
            protocol::UDP => IcmpError::PortUnreachable,
            _ => IcmpError::ProtocolUnreachable,
        };
        self.error(ctx, view, &skb, error, out);
        (skb, DropReason::IpNoProto)
    }

    /// Sends an ICMP error about `skb`, if there may be one and the rate limit allows it.
    pub(super) fn error(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: &Skb,
        error: IcmpError,
        out: &mut Effects,
    ) {
        // There is no error about what softnet itself sent.
        if skb.head().flags & Flags::ORIGINATED != 0 {
            return;
        }
        let header = Ipv4Header::new(skb.data().get(ETH_LEN..).unwrap_or_default());
        let Some(source) = header.and_then(|h| view.error_source(h.src().into(), h.dst().into())) else {
            return;
        };
        let broadcast = |addr| view.is_broadcast(addr);
        let limit = &mut self.limit;
        let Some(message) = build_error(ctx, skb, error, source, broadcast, limit, view.now) else {
            return;
        };
        ctx.originate();
        self.output_own(ctx, view, message, out);
    }
}

/// Whether the sender of a datagram that is not served is told so. `Err` says what is wrong with
/// it.
fn tells(skb: &Skb) -> Result<bool, DropReason> {
    let packet = skb.data().get(ETH_LEN..).and_then(Ipv4Header::new);
    let Some(header) = packet.filter(|header| header.protocol() == protocol::TCP) else {
        return Ok(true);
    };
    // What is behind it is link-layer padding.
    let len = header.total_len().saturating_sub(header.header_len() as u16);
    let pseudo = checksum::pseudo_header_sum(header.src(), header.dst(), protocol::TCP, len);
    tells_of_tcp(pseudo, skb.pieces(ETH_LEN + header.header_len(), len.into()))
}
