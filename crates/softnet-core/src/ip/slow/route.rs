//! From a received packet to where it goes: to softnet itself, or on.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::family::{Received, Refusal, SlowFamily};
use super::{Call, Refused, is_ipv6, packet};
use crate::ip::adjacency::{Adjacency, Kind};
use crate::ip::hooks::{Passage, Slot};
use crate::ip::input::{Exception, route_step};
use crate::ip::redirect::{CameBy, Quote};
use crate::ip::{ETH_LEN, Family};
use crate::skb::{DropReason, Flags, Skb};
use crate::steer::skb_get_hash;

impl Call<'_> {
    /// A packet that the fast path did not take.
    pub(super) fn receive<F: SlowFamily>(
        &mut self,
        mut skb: Skb,
        exception: Exception,
    ) -> Result<(), Refused> {
        if exception == Exception::NoSocket {
            return Err(self.no_socket::<F>(skb));
        }
        let unusual = exception == Exception::Unusual;
        let mut checked = F::check(self.slow, self.view, &skb, unusual);
        if unusual && checked.is_ok() && self.view.tables.hooks.is_set(Slot::Prerouting) {
            match self.received(Slot::Prerouting, skb) {
                Some(passed) => skb = passed,
                None => return Ok(()),
            }
            if is_ipv6(&skb) != (F::ETHERTYPE == Ipv6Addr::ETHERTYPE) {
                return match is_ipv6(&skb) {
                    true => self.receive::<Ipv6Addr>(skb, exception),
                    false => self.receive::<Ipv4Addr>(skb, exception),
                };
            }
            // Its addresses may be others.
            checked = F::check(self.slow, self.view, &skb, unusual);
        }
        let received = match checked {
            Ok(received) => received,
            Err(refusal) => return Err(self.refuse(skb, refusal)),
        };
        // What is behind it is link-layer padding.
        skb.trim(ETH_LEN + received.total);
        if received.to_many {
            return F::group(self, skb, received);
        }
        let hash = skb_get_hash(&mut skb);
        let hop = F::route(self.view, skb.head().dev, received.dst, hash);
        // Of the others the fast path has said it.
        if matches!(exception, Exception::Unusual | Exception::Fragment) {
            self.trace_route(&skb, received.dst, &hop);
        }
        match hop.kind {
            Kind::Local => self.local(skb, received),
            _ => self.forward(skb, received, hop),
        }
    }

    /// Tells a trace which way was found to `dst`.
    pub(super) fn trace_route<F: SlowFamily>(&mut self, skb: &Skb, dst: F, hop: &Adjacency<F>) {
        if self.ctx.may_trace() {
            self.trace(skb, Some(hop.dev), route_step(F::routing(self.view.tables), dst, hop));
        }
    }

    /// Sends a received packet on its way, if it may go.
    fn forward<F: SlowFamily>(
        &mut self,
        mut skb: Skb,
        received: Received<F>,
        hop: Adjacency<F>,
    ) -> Result<(), Refused> {
        let may_go =
            F::may_forward(self.view, &skb, &received, hop.kind).and_then(|()| passable(&received, hop.kind));
        if let Err(refusal) = may_go {
            return Err(self.refuse(skb, refusal));
        }
        let Some(iface) = self.view.iface(hop.dev) else { return Err((skb, DropReason::DevReady)) };
        if received.longest > usize::from(iface.mtu) && !received.may_fragment {
            let error = Some(F::too_big(iface.mtu));
            return Err(self.refuse::<F>(skb, Refusal { reason: DropReason::PktTooBig, error }));
        }
        let came_by = CameBy::of(skb.head());
        // As it came, for its sender; whether that is told is known behind the next slot.
        let translated = skb.head().flags & Flags::TRANSLATED != 0;
        let back = hop.dev == came_by.dev && iface.send_redirects && !translated;
        let came = back.then(|| Quote::of(packet(&skb)));
        F::hop(self.slow, self.view, &mut skb, iface, hop.gateway);
        let at = |slot| Passage::new(slot, Some(came_by.dev), Some(hop.dev));
        let Some(skb) = self.pass(at(Slot::Forward), skb) else { return Ok(()) };
        if let Some(came) = came {
            self.redirect_to(came_by, came.as_slice(), hop.gateway);
        }
        let Some(skb) = self.pass(at(Slot::Postrouting), skb) else { return Ok(()) };
        self.output_cut(skb, hop, iface)
    }

    /// Tells the sender of a packet that is not taken, if it is to be told. Hands the packet back.
    pub(super) fn refuse<F: SlowFamily>(&mut self, skb: Skb, refusal: Refusal<F>) -> Refused {
        if let Some(error) = refusal.error {
            self.error::<F>(&skb, error);
        }
        (skb, refusal.reason)
    }
}

/// Whether a packet may go on by a way of this kind.
fn passable<F: SlowFamily>(received: &Received<F>, kind: Kind) -> Result<(), Refusal<F>> {
    let (reason, error) = match kind {
        Kind::Broadcast => (DropReason::IpInvalidDest, None),
        Kind::Blackhole => (DropReason::IpBlackhole, None),
        Kind::NoRoute => (DropReason::IpNoRoute, Some(F::NET_UNREACHABLE)),
        Kind::Unreachable => (DropReason::IpNoRoute, Some(F::HOST_UNREACHABLE)),
        Kind::Prohibit => (DropReason::IpNoRoute, Some(F::PROHIBITED)),
        _ if received.ttl <= 1 => (DropReason::IpTtl, Some(F::TIME_EXCEEDED)),
        _ => return Ok(()),
    };
    Err(Refusal { reason, error })
}
