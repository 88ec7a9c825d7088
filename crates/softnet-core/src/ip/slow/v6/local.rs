//! Datagrams of IPv6 to softnet that came in fragments (RFC 8200 section 4.5). Part of [`SlowPath`].

use super::{Effects, Received, Refused, RouteSnapshot, SlowPath, packet};
use crate::SoftnetData;
use crate::ip::echo::echo6_reply_of_run;
use crate::ip::reassembly::parameter_problem;
use crate::ip::v6::header::{next, receive};
use crate::ip::v6::icmp::Icmp6Error;
use crate::ip::v6::nd;
use crate::skb::{DropReason, Skb, SkbList};
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
        let mut run = match self.frags.ipv6(ctx, view.now, skb) {
            Ok(None) => return Ok(()),
            Ok(Some(run)) => run,
            Err((skb, reason)) => {
                if let Some((code, pointer)) = parameter_problem(packet(&skb)) {
                    self.error6(ctx, view, &skb, Icmp6Error::ParameterProblem { code, pointer }, out);
                }
                return Err((skb, reason));
            }
        };
        let Some(first) = run.pop_front() else { return Ok(()) };
        if is_neighbour_discovery(packet(&first)) {
            // Fragments could hide what it says from those who look (RFC 6980 section 5).
            ctx.free_list(run, DropReason::Ipv6NdiscFrag);
            return Err((first, DropReason::Ipv6NdiscFrag));
        }
        if run.is_empty() {
            // It was whole, and is without its Fragment header now. It has no other, else it had been refused.
            return match received.dst.is_multicast() {
                true => self.group6(ctx, view, first, received, out),
                false => self.local6(ctx, view, first, received, out),
            };
        }
        self.run6(ctx, view, (first, run), received, out)
    }

    /// A datagram in several skbs.
    fn run6(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        (mut first, rest): (Skb, SkbList),
        received: Received,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        let (first, reason) = match receive(packet(&first)) {
            Err(refusal) => self.refuse(ctx, view, first, refusal, out),
            Ok(upper) if upper.protocol == next::ICMPV6 => {
                self.answer_as_one(view, &mut first, (received.src, received.dst), upper.at);
                match echo6_reply_of_run((&first, &rest), upper.at) {
                    Ok(reply) => {
                        let payload = (reply.len, reply.pieces6(&first, &rest));
                        let choice = TxChoice::RxQueue(first.head().queue);
                        match self.send_datagram(ctx, view, reply.datagram, choice, payload, out) {
                            Ok(()) => {
                                ctx.deliver(first);
                                ctx.deliver_list(rest);
                                return Ok(());
                            }
                            Err(reason) => (first, reason),
                        }
                    }
                    Err(reason) => (first, reason),
                }
            }
            Ok(upper) if upper.protocol == next::UDP => {
                out.local.push(first);
                let mut rest = rest;
                out.local.extend(std::iter::from_fn(|| rest.pop_front()));
                return Ok(());
            }
            Ok(upper) => self.unserved6(ctx, view, (first, &rest), upper, out),
        };
        ctx.free_list(rest, reason);
        Err((first, reason))
    }
}

/// Whether `packet` is a message of neighbour discovery.
fn is_neighbour_discovery(packet: &[u8]) -> bool {
    receive(packet).is_ok_and(|upper| {
        upper.protocol == next::ICMPV6
            && packet.get(upper.at).is_some_and(|kind| matches!(*kind, nd::SOLICITATION | nd::ADVERTISEMENT))
    })
}
