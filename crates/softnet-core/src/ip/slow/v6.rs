//! The slow path's view of IPv6 packets: addresses and groups of a link, extension headers, and ICMPv6.

use std::net::Ipv6Addr;

use super::family::{Payload, Received, Refusal, SlowFamily};
use super::{Call, Refused, RouteSnapshot, SlowPath, packet};
use crate::SoftnetData;
use crate::ip::adjacency::{Adjacency, Kind};
use crate::ip::checksum::{pseudo_header_sum6, update16};
use crate::ip::echo::echo6_reply_in_fragments;
use crate::ip::fragment::Addresses;
use crate::ip::icmp_error::icmpv6_error;
use crate::ip::iface::Iface;
use crate::ip::reassembly::{AsItCame, Reassembly, apart, parameter_problem};
use crate::ip::redirect::Redirect;
use crate::ip::v6::addr::{
    ALL_NODES, ALL_ROUTERS, group_scope, is_link_local, is_martian_destination, is_unicast, never_on_a_wire,
};
use crate::ip::v6::header::{self, Ipv6Header, Upper, check_hop_by_hop, next, receive, validate_part};
use crate::ip::v6::icmp::{ICMP_LEN, Icmp6Error, build_error, echo_reply, is_echo_request, message_sum};
use crate::ip::v6::nd;
use crate::ip::{ETH_LEN, MacAddr, is_group};
use crate::skb::{DropReason, Flags, Skb, SkbList, Store};
use crate::sock::Transport;
use crate::sock::scope::{scope_id, scoped};

impl From<Upper> for Payload {
    fn from(Upper { protocol, at, said_at }: Upper) -> Self {
        Payload { protocol, at, said_at, is_fragment: protocol == next::FRAGMENT }
    }
}

impl From<header::Refusal> for Refusal<Ipv6Addr> {
    fn from(refusal: header::Refusal) -> Self {
        match refusal {
            header::Refusal::Drop(reason) => reason.into(),
            header::Refusal::Report { code, pointer } => Refusal {
                reason: DropReason::Ipv6BadExthdr,
                error: Some(Icmp6Error::ParameterProblem { code, pointer }),
            },
        }
    }
}

impl SlowFamily for Ipv6Addr {
    type Error = Icmp6Error;
    const ICMP: u8 = next::ICMPV6;
    const TIME_EXCEEDED: Icmp6Error = Icmp6Error::TimeExceeded;
    const REASSEMBLY_TIME_EXCEEDED: Icmp6Error = Icmp6Error::ReassemblyTimeExceeded;
    const NET_UNREACHABLE: Icmp6Error = Icmp6Error::NoRoute;
    const HOST_UNREACHABLE: Icmp6Error = Icmp6Error::AddressUnreachable;
    const PROHIBITED: Icmp6Error = Icmp6Error::AdminProhibited;

    fn too_big(mtu: u16) -> Icmp6Error {
        Icmp6Error::PacketTooBig { mtu }
    }

    fn unserved(payload: Payload) -> Option<Icmp6Error> {
        match payload.protocol {
            next::NONE => None,
            next::UDP => Some(Icmp6Error::PortUnreachable),
            // Of a header that is not known (RFC 4443 section 3.4).
            _ => Some(Icmp6Error::ParameterProblem { code: 1, pointer: payload.said_at as u32 }),
        }
    }

    fn answer(_: RouteSnapshot<'_>, from: Self, to: Self, dev: u16) -> Option<Addresses> {
        (is_unicast(from) && is_unicast(to)).then_some(Addresses::V6 { src: to, dst: from, dev })
    }

    fn allow(call: &mut Call<'_>, to: Self) -> bool {
        call.slow.limit.allow6(call.view.now, 1, to)
    }

    fn build_error(call: &mut Call<'_>, packet: &Skb, error: Icmp6Error, source: Self) -> Option<Skb> {
        build_error(call.ctx, packet, error, source, &mut call.slow.limit, call.view.now)
    }

    /// Everything but the extension headers.
    fn check(
        _: &SlowPath,
        view: RouteSnapshot<'_>,
        skb: &Skb,
        _: bool,
    ) -> Result<Received<Self>, Refusal<Self>> {
        let total = validate_part(packet(skb), skb.len().saturating_sub(ETH_LEN))?;
        let header = Ipv6Header::new(packet(skb)).ok_or(DropReason::PktTooSmall)?;
        let (src, dst) = (header.src(), header.dst());
        let to_many = dst.is_multicast();
        // A question to a group whether an address is free has no source; anything else without one can't be answered (RFC
        // 4291 section 2.5.2).
        if src.is_multicast() || never_on_a_wire(src) || src.is_unspecified() && !to_many {
            return Err(DropReason::IpInvalidSource.into());
        }
        if [src, dst].iter().any(|addr| scope_id(addr.to_bits()) != 0) {
            return Err(DropReason::Ipv6BadScope.into());
        }
        let group_frame = skb.data().first_chunk().is_some_and(is_group);
        // To one node may go what is for a group (RFC 6085), but not the other way.
        if is_martian_destination(dst) || group_frame && !to_many {
            return Err(DropReason::IpInvalidDest.into());
        }
        let dev = skb.head().dev;
        let iface = view.iface(dev).ok_or(DropReason::DevReady)?;
        // (A host that asks whether an address is free has none yet; link-local ones have no route.)
        let has_route = !src.is_unspecified() && !is_link_local(src);
        let crossed = skb.head().flags & Flags::CROSSED != 0;
        if has_route && !crossed && !iface.rp_filter.allows(&view.tables.v6, dev, src) {
            return Err(DropReason::IpRpFilter.into());
        }
        // Its fragments are what leaves again.
        let longest = AsItCame::longest(skb).unwrap_or(total);
        Ok(Received { src, dst, ttl: header.hop_limit(), total, longest, may_fragment: false, to_many })
    }

    fn payload(packet: &[u8]) -> Result<Payload, Refusal<Self>> {
        Ok(receive(packet)?.into())
    }

    fn pseudo_header_sum(src: Self, dst: Self, protocol: u8, len: u16) -> u16 {
        pseudo_header_sum6(src, dst, protocol, len)
    }

    fn route(view: RouteSnapshot<'_>, dev: u16, dst: Self, hash: u32) -> Adjacency<Self> {
        match is_link_local(dst) && view.iface(dev).is_some_and(|iface| iface.answers6(dst)) {
            true => Adjacency::special(Kind::Local),
            false => view.tables.v6.route_flow(dst, || hash),
        }
    }

    fn next_hop(view: RouteSnapshot<'_>, dev: u16, dst: Self) -> Adjacency<Self> {
        match (is_link_local(dst), view.iface(dev)) {
            (true, Some(iface)) => view.tables.v6.on_link(dev, iface.mtu, dst),
            _ => view.crossing(dev, dst).unwrap_or_else(|| view.tables.v6.route(dst)),
        }
    }

    fn scoped(dst: Self, dev: u16) -> Self {
        Ipv6Addr::from_bits(scoped(dst.to_bits(), dev))
    }

    fn is_from_us(view: RouteSnapshot<'_>, dev: u16, src: Self) -> bool {
        view.iface(dev).is_some_and(|iface| iface.owns6(src)) || view.tables.v6.is_martian_source(src)
    }

    fn is_own(view: RouteSnapshot<'_>, dev: u16, addr: Self) -> bool {
        match is_link_local(addr) {
            true => view.iface(dev).is_some_and(|iface| iface.owns6(addr)),
            false => view.ifaces().any(|iface| iface.owns6(addr)),
        }
    }

    fn source_for(iface: &Iface, peer: Self) -> Option<Self> {
        iface.source_for6(peer)
    }

    fn error_source(view: RouteSnapshot<'_>, iface: &Iface, peer: Self, _: Self) -> Option<Self> {
        let own = iface.source_for6(peer)?;
        if is_link_local(own) == is_link_local(peer) {
            return Some(own);
        }
        // A link with none but its link-local address (RFC 7404) borrows one of another's.
        let mut all = view.ifaces().flat_map(|iface| &iface.addresses6).map(|(own, _)| *own);
        all.find(|own| !is_link_local(*own)).or(Some(own))
    }

    fn may_forward(
        view: RouteSnapshot<'_>,
        skb: &Skb,
        received: &Received<Self>,
        kind: Kind,
    ) -> Result<(), Refusal<Self>> {
        let &Received { src, dst, .. } = received;
        if is_link_local(dst) {
            return Err(DropReason::IpInvalidDest.into());
        }
        if Self::is_from_us(view, skb.head().dev, src) {
            return Err(DropReason::IpInvalidSource.into());
        }
        check_hop_by_hop(packet(skb))?;
        match kind {
            // It has no business beyond its link (RFC 4291 section 2.5.6).
            kind if kind != Kind::Blackhole && is_link_local(src) => {
                Err(Refusal { reason: DropReason::IpInvalidSource, error: Some(Icmp6Error::BeyondScope) })
            }
            _ => Ok(()),
        }
    }

    fn hop(_: &SlowPath, _: RouteSnapshot<'_>, skb: &mut Skb, _: &Iface, _: Self) {
        if let Some(mut header) = skb.data_mut().get_mut(ETH_LEN..).and_then(Ipv6Header::new_mut) {
            header.decrease_hop_limit();
        }
    }

    /// Routers never cut, but for what came in fragments, and was gathered.
    fn is_too_long(skb: &Skb, _: u16) -> bool {
        skb.head().flags & Flags::FRAG != 0
    }

    fn cut(store: &mut Store, skb: Skb, _: u16) -> Result<SkbList, Refused> {
        apart(store, skb)
    }

    /// softnet itself is in the groups of its addresses and in that of all, for neighbour discovery, and in those of routers, to
    /// answer echo requests; of any other the sockets know whether they are in it. Nothing is forwarded.
    fn group(call: &mut Call<'_>, skb: Skb, received: Received<Self>) -> Result<(), Refused> {
        let dev = skb.head().dev;
        let Some(iface) = call.view.iface(dev) else { return Err((skb, DropReason::DevReady)) };
        let Received { src, dst, .. } = received;
        if iface.is_looked_for_in(dst) {
            return call.local(skb, received);
        }
        let reason = match receive(packet(&skb)) {
            _ if iface.addresses6.is_empty() => DropReason::IpInvalidDest,
            // Of scope 0 there is nothing, and what is on an interface only comes from nowhere else (RFC 4291 section 2.7).
            _ if group_scope(dst) < 2 => DropReason::IpInvalidDest,
            _ if src.is_unspecified() || Self::is_from_us(call.view, dev, src) => DropReason::IpInvalidSource,
            Ok(Upper { protocol: next::FRAGMENT, .. }) => return call.local(skb, received),
            Ok(Upper { protocol, .. }) if Transport::is_to_many(protocol) => {
                return call.local(skb, received);
            }
            Ok(Upper { protocol: next::ICMPV6, at, .. }) if is_for_us(dst, packet(&skb).get(at)) => {
                return call.local(skb, received);
            }
            Ok(_) => DropReason::IpInvalidDest,
            Err(header::Refusal::Drop(reason)) => reason,
            // It is for members to complain.
            Err(header::Refusal::Report { .. }) => DropReason::Ipv6BadExthdr,
        };
        Err((skb, reason))
    }

    fn icmp(call: &mut Call<'_>, mut skb: Skb, received: Received<Self>, at: usize) -> Result<(), Refused> {
        let Received { src, dst, ttl, .. } = received;
        if skb.is_chained() {
            answer_as_one(call.view, &mut skb, (src, dst), at);
            let reply = echo6_reply_in_fragments(&skb, at);
            return call.echo_in_fragments(skb, reply);
        }
        let message = packet(&skb).get(at..).unwrap_or_default();
        // Every message has these eight bytes.
        let Some(&[kind, ..]) = message.first_chunk::<ICMP_LEN>() else {
            return Err((skb, DropReason::IcmpMalformed));
        };
        if message_sum(message, src, dst) != 0xffff {
            return Err((skb, DropReason::IcmpCsum));
        }
        if let Some(error) = icmpv6_error(message) {
            return call.reported(skb, error);
        }
        match kind {
            nd::SOLICITATION | nd::ADVERTISEMENT => match nd::parse(message, ttl, src, dst) {
                Ok(message) => call.neighbour_discovery(skb, message, src),
                Err(reason) => Err((skb, reason)),
            },
            kind if is_echo_request(kind) => {
                answer_as_one(call.view, &mut skb, (src, dst), at);
                match echo_reply(&mut skb, at) {
                    Ok(()) => call.turn_around::<Self>(skb),
                    Err(reason) => Err((skb, reason)),
                }
            }
            _ => Err((skb, DropReason::IcmpIgnored)),
        }
    }

    fn reassemble(
        frags: &mut Reassembly,
        ctx: &mut SoftnetData,
        now: u64,
        skb: Skb,
    ) -> Result<Option<Skb>, Refused> {
        frags.ipv6(ctx, now, skb)
    }

    fn fragment_error(packet: &[u8]) -> Option<Icmp6Error> {
        parameter_problem(packet).map(|(code, pointer)| Icmp6Error::ParameterProblem { code, pointer })
    }

    /// Fragments of neighbour discovery could hide what it says from devices that look (RFC 6980 section 5).
    fn must_be_whole(packet: &[u8]) -> bool {
        receive(packet).is_ok_and(|upper| {
            let kind = packet.get(upper.at);
            upper.protocol == next::ICMPV6
                && kind.is_some_and(|kind| matches!(*kind, nd::SOLICITATION | nd::ADVERTISEMENT))
        })
    }

    /// A host believes its first hop only, which it knows by the link-local address (RFC 4861 section 8.1).
    fn redirect_source(_: RouteSnapshot<'_>, iface: &Iface, packet: &[u8], first_hop: Self) -> Option<Self> {
        let header = Ipv6Header::new(packet)?;
        iface.link_local().filter(|_| Self::may_redirect(iface, header.src(), header.dst(), first_hop))
    }

    fn build_redirect(
        ctx: &mut SoftnetData,
        packet: &[u8],
        source: Self,
        first_hop: (Self, Option<MacAddr>),
    ) -> Option<Skb> {
        let header = Ipv6Header::new(packet)?;
        let mut message = ctx.alloc_skb()?;
        let about = (header.dst(), packet);
        if nd::write_redirect(&mut message, (source, header.src()), first_hop, about).is_none() {
            ctx.free_skb(message);
            return None;
        }
        Some(message)
    }

    fn write_question(
        skb: &mut Skb,
        (mac, source): (MacAddr, Self),
        target: Self,
        to: Option<MacAddr>,
    ) -> Option<()> {
        nd::write_solicitation(skb, mac, source, target, to)
    }

    fn write_announcement(skb: &mut Skb, mac: MacAddr, own: Self) -> Option<()> {
        nd::write_announcement(skb, mac, own)
    }
}

/// Whether an ICMPv6 message of type `kind` to the group `dst` is for softnet: as a router it answers echo requests, and a
/// neighbour that tells all nodes that it has moved tells those that know it (RFC 4861 section 7.2.6).
fn is_for_us(dst: Ipv6Addr, kind: Option<&u8>) -> bool {
    match kind {
        Some(&nd::ADVERTISEMENT) => dst == ALL_NODES,
        Some(kind) => ALL_ROUTERS.contains(&dst) && is_echo_request(*kind),
        None => false,
    }
}

/// An echo request to a group, or to an address that others have too, is answered from an address that is ours alone (RFC
/// 4443 section 4.2): here it becomes one to that. Its message begins at `at`.
fn answer_as_one(view: RouteSnapshot<'_>, skb: &mut Skb, (src, dst): (Ipv6Addr, Ipv6Addr), at: usize) {
    let Some(iface) = view.iface(skb.head().dev) else { return };
    let is_anycast = || view.ifaces().any(|iface| iface.is_anycast6(dst));
    let shared = dst.is_multicast() || !iface.owns6(dst) && is_anycast();
    let Some(own) = iface.source_for6(src).filter(|_| shared) else { return };
    let packet = skb.data_mut().get_mut(ETH_LEN..).unwrap_or_default();
    if let Some(check) = packet.get_mut(at + 2..).and_then(|rest| rest.first_chunk_mut::<2>()) {
        let words = dst.segments().into_iter().zip(own.segments());
        let renewed = words.fold(u16::from_be_bytes(*check), |check, (old, new)| update16(check, old, new));
        *check = renewed.to_be_bytes();
    }
    if let Some(mut header) = Ipv6Header::new_mut(packet) {
        header.set_dst(own);
    }
}
