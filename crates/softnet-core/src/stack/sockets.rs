//! The hand-over from the slow path to sockets: packets that took the slow path, errors about what
//! sockets sent, and path MTUs.
//!
//! Called by the owner of the slow path. Invariant: a packet goes to the sockets that it is for, or
//! back to the slow path, which tells its sender.

use crate::SoftnetData;
use crate::ip::input::Exception;
use crate::ip::pmtu::RecentPeers;
use crate::ip::slow::{Effects, RouteSnapshot, SlowPath};
use crate::ip::v4::header::{Ipv4Header, is_multicast};
use crate::ip::v6::header::Ipv6Header;
use crate::skb::{Batch, Skb};
use crate::sock::route::is_own;
use crate::sock::tcp::Told;
use crate::sock::{Flow, Found, Key, SocketError, Sockets, Transport};

/// The sockets, as the slow path needs them.
pub trait SocketHost {
    /// The sockets by address and port.
    fn sockets(&self) -> &Sockets;

    /// Where long datagrams were sent lately by sockets that are not connected.
    fn recent(&self) -> &RecentPeers;

    /// Hands packets over to the sockets of `transport`, as [`Transport::input`] does; those
    /// without a socket come out in `unserved`. Slots of sockets that were empty before are added
    /// to `ready`.
    fn local_input(
        &self,
        ctx: &mut SoftnetData,
        transport: Transport,
        local: &mut Batch,
        unserved: &mut Batch,
        ready: &mut Vec<u32>,
    );

    /// Hands the packet `skb` over to the members of its multicast group on device `dev`, or, if it
    /// is to all, to the sockets that listen; a copy for each.
    fn input_to_many(
        &self,
        ctx: &mut SoftnetData,
        transport: Transport,
        dev: u16,
        skb: Skb,
        ready: &mut Vec<u32>,
    );

    /// Leaves an error with the socket that is connected by `flow`, if there is one.
    fn report(&self, flow: &Flow, error: SocketError);

    /// What ICMP said of a segment that a connection sent.
    fn told(&self, told: &Told);

    /// The socket in this slot was handed something while it had nothing: wakes the threads that wait for it.
    fn arrived(&self, slot: u32);
}

/// Hands over what is for sockets in `out`. The slow path gets back what no socket takes.
pub fn hand_over(
    ctx: &mut SoftnetData,
    slow: &mut SlowPath,
    view: RouteSnapshot<'_>,
    out: &mut Effects,
    host: &impl SocketHost,
) {
    let (mut unserved, mut ready) = (Batch::new(), Vec::new());
    for (transport, skb) in std::mem::take(&mut out.local) {
        if is_to_many(view, skb.data().get(usize::from(skb.head().l3)..)) {
            host.input_to_many(ctx, transport, skb.head().dev, skb, &mut ready);
            continue;
        }
        // One by one, for an error about it leaves before the next is looked at.
        host.local_input(ctx, transport, &mut Batch::from(skb), &mut unserved, &mut ready);
        for skb in unserved.drain() {
            slow.handle(ctx, view, skb, Exception::NoSocket, out);
        }
    }
    for (flow, error) in out.errors.drain(..) {
        host.report(&flow, error);
    }
    for told in out.told.drain(..) {
        host.told(&told);
    }
    for report in out.too_big.drain(..) {
        if !may_have_sent(host, view, &report.flow) {
            slow.pmtu().ignore();
        } else if slow.too_big(view, &report) {
            host.report(&report.flow, SocketError::MessageSize);
        }
    }
    ready.into_iter().for_each(|slot| host.arrived(slot));
}

/// Whether a datagram of `flow` that was too long somewhere may have been sent from here: by a socket that is connected by it, or
/// to a destination that something long was sent to lately by one which is not. Else the error about it is made up (RFC 5927
/// section 7): it is easy to name a port that is served, and a host that it may speak to.
fn may_have_sent(host: &impl SocketHost, view: RouteSnapshot<'_>, flow: &Flow) -> bool {
    let sockets = host.sockets();
    sockets.find_exact(&Key::connected(*flow)).is_some()
        || host.recent().contains(flow.remote, view.now)
            && is_own(view.tables, flow.local)
            && matches!(sockets.lookup(flow, 0), Found::Socket(_))
}

/// Whether `packet` is to a multicast group, or to all.
fn is_to_many(view: RouteSnapshot<'_>, packet: Option<&[u8]>) -> bool {
    match packet.and_then(<[u8]>::first).map(|first| first >> 4) {
        Some(4) => packet
            .and_then(Ipv4Header::new)
            .map(|header| header.dst())
            .is_some_and(|dst| is_multicast(dst) || dst == u32::MAX || view.is_broadcast(dst.into())),
        Some(6) => packet.and_then(Ipv6Header::new).is_some_and(|header| header.dst().is_multicast()),
        _ => false,
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::fold::FoldKey;
    use crate::ip::tables::Tables;

    #[test]
    fn what_is_to_many_is_known_by_the_family() {
        let tables = Tables::new(FoldKey::new([1, 2]));
        let view = RouteSnapshot { now: 0, tables: &tables };
        let to = |dst: [u8; 4]| {
            let mut packet = [0; 20];
            let dst = Ipv4Addr::from(dst).to_bits();
            Ipv4Header::new_mut(&mut packet).unwrap().fill(20, 1, 1, 17, 1, dst);
            is_to_many(view, Some(&packet))
        };
        assert_eq!([to([239, 1, 2, 3]), to([223, 1, 2, 3]), to([255; 4])], [true, false, true]);
        assert!(!is_to_many(view, None));
        // Where IPv4 has its destination there is the second half of this source: that of a MAC address e6:….
        let src: Ipv6Addr = "2001:db8::e400:ff:fe00:1".parse().unwrap();
        let mut packet = [0; 40];
        for (dst, many) in [(Ipv6Addr::LOCALHOST, false), ("ff05::1".parse().unwrap(), true)] {
            Ipv6Header::new_mut(&mut packet).unwrap().fill(0, 17, 64, src, dst);
            assert_eq!(is_to_many(view, Some(&packet)), many);
        }
        assert!(!is_to_many(view, Some(&packet[..39])));
    }
}
