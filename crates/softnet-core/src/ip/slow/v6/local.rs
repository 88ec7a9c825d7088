//! Datagrams of IPv6 to softnet that came in fragments (RFC 8200 section 4.5). Part of [`SlowPath`].

use super::{Effects, Received, Refused, RouteSnapshot, SlowPath, packet};
use crate::SoftnetData;
use crate::ip::echo::echo6_reply_in_fragments;
use crate::ip::reassembly::parameter_problem;
use crate::ip::v6::header::{next, receive};
use crate::ip::v6::icmp::Icmp6Error;
use crate::ip::v6::nd;
use crate::skb::{DropReason, Skb};
use crate::steer::TxChoice;

impl SlowPath {
    /// A packet to softnet with a Fragment header, and what it completes.
    pub(super) fn fragment6(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        received: Received,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        let skb = match self.frags.ipv6(ctx, view.now, skb) {
            Ok(None) => return Ok(()),
            Ok(Some(whole)) => whole,
            Err((skb, reason)) => {
                if let Some((code, pointer)) = parameter_problem(packet(&skb)) {
                    self.error6(ctx, view, &skb, Icmp6Error::ParameterProblem { code, pointer }, out);
                }
                return Err((skb, reason));
            }
        };
        if is_neighbour_discovery(packet(&skb)) {
            // Fragments could hide what it says from devices that look (RFC 6980 section 5).
            return Err((skb, DropReason::Ipv6NdiscFrag));
        }
        if skb.is_chained() {
            // Its fragments were found to be for softnet.
            return self.protocol6(ctx, view, skb, received, out);
        }
        // It was whole, and is without its Fragment header now. It has no other, else it had been refused.
        match received.dst.is_multicast() {
            true => self.group6(ctx, view, skb, received, out),
            false => self.local6(ctx, view, skb, received, out),
        }
    }

    /// A datagram to softnet, whole: each protocol's way in.
    pub(super) fn protocol6(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        received: Received,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        let Some(skb) = view.input(ctx, skb) else { return Ok(()) };
        let upper = match receive(packet(&skb)) {
            Ok(upper) => upper,
            Err(refusal) => return Err(self.refuse(ctx, view, skb, refusal, out)),
        };
        match upper.protocol {
            next::ICMPV6 if skb.is_chained() => {
                self.echo6_in_fragments(ctx, view, skb, received, upper.at, out)
            }
            next::ICMPV6 => self.icmp6(ctx, view, skb, received, upper.at, out),
            next::UDP => {
                out.deliver_udp(skb, upper.at);
                Ok(())
            }
            _ => Err(self.unserved6(ctx, view, skb, upper, out)),
        }
    }

    /// An echo request that came in fragments is answered in fragments, of what fits the way back.
    fn echo6_in_fragments(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        mut skb: Skb,
        received: Received,
        at: usize,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        self.answer_as_one(view, &mut skb, (received.src, received.dst), at);
        let reply = match echo6_reply_in_fragments(&skb, at) {
            Ok(reply) => reply,
            Err(reason) => return Err((skb, reason)),
        };
        let (choice, pieces) = (TxChoice::RxQueue(skb.head().queue), (reply.len, reply.pieces(&skb)));
        match self.send_datagram(ctx, view, reply.datagram, choice, pieces, out) {
            Ok(()) => {
                ctx.deliver(skb);
                Ok(())
            }
            Err(reason) => Err((skb, reason)),
        }
    }
}

/// Whether `packet` is a message of neighbour discovery.
fn is_neighbour_discovery(packet: &[u8]) -> bool {
    receive(packet).is_ok_and(|upper| {
        upper.protocol == next::ICMPV6
            && packet.get(upper.at).is_some_and(|kind| matches!(*kind, nd::SOLICITATION | nd::ADVERTISEMENT))
    })
}
