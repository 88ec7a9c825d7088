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
            return self.whole6(ctx, view, skb, received, out);
        }
        // It was whole, and is without its Fragment header now. It has no other, else it had been refused.
        match received.dst.is_multicast() {
            true => self.group6(ctx, view, skb, received, out),
            false => self.local6(ctx, view, skb, received, out),
        }
    }

    /// A datagram of several fragments that are together.
    fn whole6(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        received: Received,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        let Some(mut skb) = view.input(ctx, skb) else { return Ok(()) };
        match receive(packet(&skb)) {
            Err(refusal) => Err(self.refuse(ctx, view, skb, refusal, out)),
            Ok(upper) if upper.protocol == next::ICMPV6 => {
                self.answer_as_one(view, &mut skb, (received.src, received.dst), upper.at);
                let reply = match echo6_reply_in_fragments(&skb, upper.at) {
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
            Ok(upper) if upper.protocol == next::UDP => {
                out.local.push(skb);
                Ok(())
            }
            Ok(upper) => Err(self.unserved6(ctx, view, skb, upper, out)),
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
