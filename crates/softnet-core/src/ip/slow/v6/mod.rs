//! The slow path of IPv6: neighbour discovery, packets for softnet itself, what has no plain way on, and the errors about
//! it. The other half of [`SlowPath`], whose rules and owner are its own.

mod local;

use std::net::Ipv6Addr;

use super::{Effects, Iface, Refused, RouteSnapshot, SlowPath};
use crate::SoftnetData;
use crate::ip::adjacency::{Adjacency, Kind};
use crate::ip::checksum::update16;
use crate::ip::hooks::Slot;
use crate::ip::icmp_error::icmpv6_error;
use crate::ip::input::Exception;
use crate::ip::neigh::Heard;
use crate::ip::unserved::tells_of_tcp;
use crate::ip::v6::addr::{
    ALL_NODES, ALL_ROUTERS, group_scope, is_group_of_link, is_link_local, is_martian_destination,
    never_on_a_wire, solicited_node, subnet_router_anycast,
};
use crate::ip::v6::header::{self, Ipv6Header, Refusal, Upper, check_hop_by_hop, next, receive, validate};
use crate::ip::v6::icmp::{ICMP_LEN, Icmp6Error, build_error, echo_reply, is_echo_request, message_sum};
use crate::ip::v6::nd::{self, Message};
use crate::ip::{ETH_LEN, MacAddr, checksum, is_group};
use crate::skb::{DropReason, Flags, Skb};
use crate::sock::scope::scope_id;

impl Iface {
    /// Our address to speak to `peer` from (RFC 6724 in short): link-local to what is on the link only, else the one on its
    /// network, else the first that is not link-local, else what there is.
    pub fn source_for6(&self, peer: Ipv6Addr) -> Option<Ipv6Addr> {
        let all = || self.addresses6.iter();
        let of_link = is_link_local(peer) || is_group_of_link(peer);
        let same_scope = |own: &&(Ipv6Addr, _)| is_link_local(own.0) == of_link;
        let on_link = all().filter(same_scope).find(|(_, net)| net.contains(peer));
        on_link.or_else(|| all().find(same_scope)).or(self.addresses6.first()).map(|(own, _)| *own)
    }

    /// Whether `addr` is one of ours on this device.
    pub fn owns6(&self, addr: Ipv6Addr) -> bool {
        self.addresses6.iter().any(|(own, _)| *own == addr)
    }

    /// Whether `addr` is one that every router on a link of ours has, and so softnet too.
    pub fn is_anycast6(&self, addr: Ipv6Addr) -> bool {
        self.addresses6.iter().any(|(_, net)| subnet_router_anycast(*net) == Some(addr))
    }

    /// Whether we answer for `addr` on this device.
    fn answers6(&self, addr: Ipv6Addr) -> bool {
        self.owns6(addr) || self.is_anycast6(addr)
    }

    /// Whether `group` is one of those in which others look for the addresses that we answer for.
    fn is_looked_for_in(&self, group: Ipv6Addr) -> bool {
        let mut nets = self.addresses6.iter();
        let anycast = |net| subnet_router_anycast(net).is_some_and(|addr| solicited_node(addr) == group);
        nets.any(|(own, net)| solicited_node(*own) == group || anycast(*net))
    }

    /// Our link-local address.
    pub(in crate::ip) fn link_local(&self) -> Option<Ipv6Addr> {
        self.addresses6.iter().map(|(own, _)| *own).find(|own| is_link_local(*own))
    }

    /// Whether a host at `src` may be told to send what is for `dst` to `first_hop`, which is on this link: it is there, too,
    /// and that is the destination itself or a router's link-local address (RFC 4861 section 8.2).
    pub(in crate::ip) fn may_redirect6(&self, src: Ipv6Addr, dst: Ipv6Addr, first_hop: Ipv6Addr) -> bool {
        let sender = self.on_link6(src) && !self.owns6(src) && src != first_hop;
        sender && (first_hop == dst || is_link_local(first_hop))
    }

    /// Whether `addr` is on the link, as far as the addresses say.
    fn on_link6(&self, addr: Ipv6Addr) -> bool {
        self.addresses6.iter().any(|(_, net)| net.contains(addr))
    }
}

/// What the header of a received packet says.
#[derive(Clone, Copy)]
pub(super) struct Received {
    pub(super) src: Ipv6Addr,
    pub(super) dst: Ipv6Addr,
    hop_limit: u8,
    /// Bytes from the IPv6 header on.
    total: usize,
}

pub(super) fn packet(skb: &Skb) -> &[u8] {
    skb.data().get(ETH_LEN..).unwrap_or_default()
}

/// What the fast path may not have checked: everything but the extension headers.
fn check(skb: &Skb) -> Result<Received, DropReason> {
    let total = validate(packet(skb))?;
    let header = Ipv6Header::new(packet(skb)).ok_or(DropReason::PktTooSmall)?;
    let (src, dst) = (header.src(), header.dst());
    let group = dst.is_multicast();
    // A question to a group whether an address is free has no source; anything else without one can't be answered (RFC 4291
    // section 2.5.2).
    if src.is_multicast() || never_on_a_wire(src) || src.is_unspecified() && !group {
        return Err(DropReason::IpInvalidSource);
    }
    if [src, dst].iter().any(|addr| scope_id(addr.to_bits()) != 0) {
        return Err(DropReason::Ipv6BadScope);
    }
    let group_frame = skb.data().first_chunk().is_some_and(is_group);
    // To one node may go what is for a group (RFC 6085), but not the other way.
    if is_martian_destination(dst) || group_frame && !group {
        return Err(DropReason::IpInvalidDest);
    }
    Ok(Received { src, dst, hop_limit: header.hop_limit(), total })
}

impl SlowPath {
    /// Processes one packet of the fast path's exceptions that is IPv6.
    pub(in crate::ip) fn ipv6(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        mut skb: Skb,
        exception: Exception,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        let mut received = match check(&skb) {
            Ok(received) => received,
            Err(reason) => return Err((skb, reason)),
        };
        if exception == Exception::Unusual && view.tables.hooks.is_set(Slot::Prerouting) {
            match view.prerouting(ctx, skb) {
                Some(passed) => skb = passed,
                None => return Ok(()),
            }
            received = match check(&skb) {
                Ok(received) => received,
                Err(reason) => return Err((skb, reason)),
            };
        }
        skb.trim(ETH_LEN + received.total);
        let Some(iface) = view.iface(skb.head().dev) else { return Err((skb, DropReason::DevReady)) };
        let (src, dst) = (received.src, received.dst);
        // (A host that asks whether an address is free has none yet; link-local ones have no
        // route.)
        let has_route = !src.is_unspecified() && !is_link_local(src);
        if has_route && !iface.rp_filter.allows(&view.tables.v6, skb.head().dev, src) {
            return Err((skb, DropReason::IpRpFilter));
        }
        if dst.is_multicast() {
            return self.group6(ctx, view, skb, received, out);
        }
        if is_link_local(dst) {
            return match iface.answers6(dst) {
                true => self.local6(ctx, view, skb, received, out),
                false => Err((skb, DropReason::IpInvalidDest)),
            };
        }
        let hop = view.tables.v6.route(dst);
        if hop.kind == Kind::Local {
            return self.local6(ctx, view, skb, received, out);
        }
        self.forward6(ctx, view, skb, received, hop, out)
    }

    /// Sends a received packet on its way, if it may go.
    fn forward6(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        mut skb: Skb,
        received: Received,
        hop: Adjacency<Ipv6Addr>,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        if is_from_us(view, &skb, received.src) {
            return Err((skb, DropReason::IpInvalidSource));
        }
        if let Err(refusal) = check_hop_by_hop(packet(&skb)) {
            return Err(self.refuse(ctx, view, skb, refusal, out));
        }
        let error = match hop.kind {
            Kind::Blackhole => return Err((skb, DropReason::IpBlackhole)),
            // It has no business beyond its link (RFC 4291 section 2.5.6).
            _ if is_link_local(received.src) => Some((Icmp6Error::BeyondScope, DropReason::IpInvalidSource)),
            Kind::NoRoute => Some((Icmp6Error::NoRoute, DropReason::IpNoRoute)),
            Kind::Unreachable => Some((Icmp6Error::AddressUnreachable, DropReason::IpNoRoute)),
            _ if received.hop_limit <= 1 => Some((Icmp6Error::TimeExceeded, DropReason::IpTtl)),
            _ => None,
        };
        if let Some((error, reason)) = error {
            self.error6(ctx, view, &skb, error, out);
            return Err((skb, reason));
        }
        let Some(iface) = view.iface(hop.dev) else { return Err((skb, DropReason::DevReady)) };
        if received.total > usize::from(iface.mtu) {
            self.error6(ctx, view, &skb, Icmp6Error::PacketTooBig { mtu: iface.mtu }, out);
            return Err((skb, DropReason::PktTooBig));
        }
        if hop.dev == skb.head().dev {
            self.redirect6(ctx, view, (hop.dev, packet(&skb)), hop.gateway, out);
        }
        if let Some(mut header) = skb.data_mut().get_mut(ETH_LEN..).and_then(Ipv6Header::new_mut) {
            header.decrease_hop_limit();
        }
        if let Some(skb) = view.leaving(ctx, Slot::Forward, hop.dev, skb) {
            self.output(ctx, view, skb, hop, iface.mac, out);
        }
        Ok(())
    }

    /// A packet to a group. softnet itself is in those of its addresses and in that of all, for neighbour discovery, and in
    /// those of routers, to answer echo requests; of any other the sockets know whether they are in it. Nothing is forwarded.
    pub(super) fn group6(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        received: Received,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        let Some(iface) = view.iface(skb.head().dev) else { return Err((skb, DropReason::DevReady)) };
        if iface.is_looked_for_in(received.dst) {
            return self.local6(ctx, view, skb, received, out);
        }
        let reason = match receive(packet(&skb)) {
            _ if iface.addresses6.is_empty() => DropReason::IpInvalidDest,
            // Of scope 0 there is nothing, and what is on an interface only comes from nowhere else (RFC 4291 section 2.7).
            _ if group_scope(received.dst) < 2 => DropReason::IpInvalidDest,
            _ if received.src.is_unspecified() || is_from_us(view, &skb, received.src) => {
                DropReason::IpInvalidSource
            }
            Ok(Upper { protocol: next::UDP, .. }) => {
                out.local.extend(view.input(ctx, skb));
                return Ok(());
            }
            Ok(Upper { protocol: next::FRAGMENT, .. }) => {
                return self.fragment6(ctx, view, skb, received, out);
            }
            // A neighbour that tells all nodes that it has moved tells those that know it (RFC 4861 section 7.2.6).
            Ok(Upper { protocol: next::ICMPV6, at, .. })
                if received.dst == ALL_NODES && packet(&skb).get(at) == Some(&nd::ADVERTISEMENT) =>
            {
                return self.local6(ctx, view, skb, received, out);
            }
            Ok(Upper { protocol: next::ICMPV6, at, .. })
                if ALL_ROUTERS.contains(&received.dst)
                    && packet(&skb).get(at).is_some_and(|kind| is_echo_request(*kind)) =>
            {
                return self.local6(ctx, view, skb, received, out);
            }
            Ok(_) => DropReason::IpInvalidDest,
            Err(Refusal::Drop(reason)) => reason,
            // It is for members to complain.
            Err(Refusal::Report { .. }) => DropReason::Ipv6BadExthdr,
        };
        Err((skb, reason))
    }

    /// A packet addressed to softnet, or to a group of its addresses.
    pub(super) fn local6(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        received: Received,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        // (A host that asks whether an address is free has none yet, and gets past this.)
        if is_from_us(view, &skb, received.src) {
            return Err((skb, DropReason::IpInvalidSource));
        }
        let upper = match receive(packet(&skb)) {
            Ok(upper) => upper,
            Err(refusal) => return Err(self.refuse(ctx, view, skb, refusal, out)),
        };
        if upper.protocol == next::FRAGMENT {
            return self.fragment6(ctx, view, skb, received, out);
        }
        let Some(skb) = view.input(ctx, skb) else { return Ok(()) };
        match upper.protocol {
            next::ICMPV6 => self.icmp6(ctx, view, skb, received, upper.at, out),
            next::UDP => {
                out.local.push(skb);
                Ok(())
            }
            _ => Err(self.unserved6(ctx, view, skb, upper, out)),
        }
    }

    /// A datagram to softnet that no socket wants.
    pub(in crate::ip) fn nobody6(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        out: &mut Effects,
    ) -> Refused {
        match receive(packet(&skb)) {
            Ok(upper) => self.unserved6(ctx, view, skb, upper, out),
            Err(refusal) => self.refuse(ctx, view, skb, refusal, out),
        }
    }

    /// A datagram to softnet for a protocol or port that is not served: tells its sender, if that is to be told, and hands it
    /// back.
    pub(super) fn unserved6(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        upper: Upper,
        out: &mut Effects,
    ) -> Refused {
        let error = match upper.protocol {
            next::NONE => None,
            next::UDP => Some(Icmp6Error::PortUnreachable),
            next::TCP => match tells(&skb, upper.at) {
                // It has no ports here, as it is not served.
                Ok(told) => told.then_some(unknown_header(upper)),
                Err(reason) => return (skb, reason),
            },
            _ => Some(unknown_header(upper)),
        };
        if let Some(error) = error {
            self.error6(ctx, view, &skb, error, out);
        }
        (skb, DropReason::IpNoProto)
    }

    /// An ICMPv6 message to softnet, which begins at `at` of its packet.
    fn icmp6(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        mut skb: Skb,
        received: Received,
        at: usize,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        let Received { src, dst, hop_limit, .. } = received;
        let message = packet(&skb).get(at..).unwrap_or_default();
        // Every message has these eight bytes.
        let Some(&[kind, ..]) = message.first_chunk::<ICMP_LEN>() else {
            return Err((skb, DropReason::IcmpMalformed));
        };
        if message_sum(message, src, dst) != 0xffff {
            return Err((skb, DropReason::IcmpCsum));
        }
        if let Some((problem, quote)) = icmpv6_error(message) {
            return match self.reported(problem, (quote, skb.head().dev), out) {
                true => {
                    ctx.deliver(skb);
                    Ok(())
                }
                false => Err((skb, DropReason::IcmpIgnored)),
            };
        }
        match kind {
            nd::SOLICITATION | nd::ADVERTISEMENT => match nd::parse(message, hop_limit, src, dst) {
                Ok(message) => self.neighbour_discovery(ctx, view, skb, message, src, out),
                Err(reason) => Err((skb, reason)),
            },
            kind if is_echo_request(kind) => {
                self.answer_as_one(view, &mut skb, (src, dst), at);
                match echo_reply(&mut skb, at) {
                    Ok(()) => {
                        ctx.turn_around();
                        self.output_own6(ctx, view, skb, out);
                        Ok(())
                    }
                    Err(reason) => Err((skb, reason)),
                }
            }
            _ => Err((skb, DropReason::IcmpIgnored)),
        }
    }

    /// An echo request to a group, or to an address that others have too, is answered from an address that is ours alone (RFC
    /// 4443 section 4.2): here it becomes one to that. Its message begins at `at`.
    pub(super) fn answer_as_one(
        &self,
        view: RouteSnapshot<'_>,
        skb: &mut Skb,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        at: usize,
    ) {
        let Some(iface) = view.iface(skb.head().dev) else { return };
        let shared = dst.is_multicast() || !iface.owns6(dst) && view_is_anycast(view, dst);
        let Some(own) = iface.source_for6(src).filter(|_| shared) else { return };
        let packet = skb.data_mut().get_mut(ETH_LEN..).unwrap_or_default();
        if let Some(check) = packet.get_mut(at + 2..).and_then(|rest| rest.first_chunk_mut::<2>()) {
            let words = dst.segments().into_iter().zip(own.segments());
            let renewed =
                words.fold(u16::from_be_bytes(*check), |check, (old, new)| update16(check, old, new));
            *check = renewed.to_be_bytes();
        }
        if let Some(mut header) = Ipv6Header::new_mut(packet) {
            header.set_dst(own);
        }
    }

    fn neighbour_discovery(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        mut skb: Skb,
        message: Message,
        src: Ipv6Addr,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        let dev = skb.head().dev;
        let Some(iface) = view.iface(dev) else { return Err((skb, DropReason::DevReady)) };
        let ignored = DropReason::NdiscIgnored;
        match message {
            Message::Advertisement { target, mac, solicited, overrides } => {
                // Without an address it confirms the one that is known (RFC 4861 section 7.2.5).
                let Some(mac) = mac.or_else(|| self.neigh.mac(dev, target.into())) else {
                    return Err((skb, ignored));
                };
                if iface.owns6(target) {
                    return Err((skb, ignored));
                }
                let heard = Heard::Advert { solicited, overrides };
                self.neigh.input(view.now, dev, target.into(), mac, heard, &mut self.actions);
                ctx.deliver(skb);
            }
            Message::Solicitation { target, mac } => {
                let source = match iface.owns6(target) {
                    true => Some(target),
                    false => iface.source_for6(src).filter(|_| iface.is_anycast6(target)),
                };
                let Some(source) = source else { return Err((skb, ignored)) };
                if let Some(mac) = mac.filter(|_| iface.on_link6(src)) {
                    self.neigh.input(view.now, dev, src.into(), mac, Heard::Request, &mut self.actions);
                }
                // The frame says where it is from, too: the answer must not wait for a question.
                let from: MacAddr = std::array::from_fn(|i| skb.data().get(6 + i).copied().unwrap_or(0));
                let to = mac.unwrap_or(from);
                let ends = (source, target);
                if is_group(&to) || nd::write_advertisement(&mut skb, iface.mac, ends, (src, to)).is_none() {
                    return Err((skb, ignored));
                }
                let head = skb.head_mut();
                (head.flags, head.hash, head.tc_depth) = (Flags::ORIGINATED, 0, 0);
                ctx.turn_around();
                out.send.push((dev, skb));
            }
        }
        Ok(())
    }

    /// Sends a packet made here to its destination; to one that is link-local, on the device that it came in by.
    pub(in crate::ip) fn output_own6(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        mut skb: Skb,
        out: &mut Effects,
    ) {
        let dst = Ipv6Header::new(packet(&skb)).map_or(Ipv6Addr::UNSPECIFIED, |h| h.dst());
        let hop = route6(view, skb.head().dev, dst);
        match view.iface(hop.dev) {
            Some(iface) if hop.is_reachable() => {
                skb.head_mut().dev = hop.dev;
                if let Some(skb) = view.leaving(ctx, Slot::Output, hop.dev, skb) {
                    self.output(ctx, view, skb, hop, iface.mac, out);
                }
            }
            _ => ctx.free(skb, DropReason::IpNoRoute),
        }
    }

    /// Tells the sender what is wrong with its extension headers, if it is to be told.
    pub(super) fn refuse(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        refusal: Refusal,
        out: &mut Effects,
    ) -> Refused {
        match refusal {
            Refusal::Drop(reason) => (skb, reason),
            Refusal::Report { code, pointer } => {
                self.error6(ctx, view, &skb, Icmp6Error::ParameterProblem { code, pointer }, out);
                (skb, DropReason::Ipv6BadExthdr)
            }
        }
    }

    /// Sends an ICMPv6 error about `skb`, if there may be one and the rate limit allows it.
    pub(in crate::ip) fn error6(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: &Skb,
        error: Icmp6Error,
        out: &mut Effects,
    ) {
        let Some(header) = Ipv6Header::new(packet(skb)) else { return };
        let Some(source) = error_source(view, skb.head().dev, (header.src(), header.dst())) else { return };
        let Some(message) = build_error(ctx, skb, error, source, &mut self.limit, view.now) else { return };
        ctx.originate();
        self.output_own6(ctx, view, message, out);
    }
}

/// The address that an error about a packet from `src` to `dst`, which came by `dev`, is sent from:
/// `dst`, if that is ours, else an address of the interface by which the error leaves (RFC 4443
/// section 2.2). `None` if there is no way to `src`.
fn error_source(view: RouteSnapshot<'_>, dev: u16, (src, dst): (Ipv6Addr, Ipv6Addr)) -> Option<Ipv6Addr> {
    let ours = match is_link_local(dst) {
        true => view.iface(dev)?.owns6(dst),
        false => view.ifaces.iter().flatten().any(|iface| iface.owns6(dst)),
    };
    if ours {
        return Some(dst);
    }
    let hop = route6(view, dev, src);
    let own = view.iface(hop.dev).filter(|_| hop.is_reachable())?.source_for6(src)?;
    if is_link_local(own) == is_link_local(src) {
        return Some(own);
    }
    // A link with none but its link-local address (RFC 7404) borrows one of another's.
    let all = view.ifaces.iter().flatten().flat_map(|iface| &iface.addresses6);
    all.map(|(own, _)| *own).find(|own| !is_link_local(*own)).or(Some(own))
}

/// That the protocol behind the headers is none that is served here (RFC 4443 section 3.4).
fn unknown_header(upper: Upper) -> Icmp6Error {
    Icmp6Error::ParameterProblem { code: 1, pointer: upper.said_at as u32 }
}

/// Whether the sender of a TCP segment, which begins at `at` of its packet, is told that TCP is not
/// served.
fn tells(skb: &Skb, at: usize) -> Result<bool, DropReason> {
    let header = Ipv6Header::new(packet(skb)).ok_or(DropReason::PktTooSmall)?;
    let len = usize::from(header.payload_len()).saturating_sub(at - header::LEN);
    let pseudo = checksum::pseudo_header_sum6(header.src(), header.dst(), next::TCP, len as u16);
    // (What is left of padding behind the packet was cut off.)
    tells_of_tcp(pseudo, skb.pieces(ETH_LEN + at, usize::MAX))
}

/// Whether a received packet says that it is from an address of ours.
fn is_from_us(view: RouteSnapshot<'_>, skb: &Skb, src: Ipv6Addr) -> bool {
    view.iface(skb.head().dev).is_some_and(|iface| iface.owns6(src)) || view.tables.v6.is_martian_source(src)
}

/// Whether `addr` is an address of all routers on one of our links.
fn view_is_anycast(view: RouteSnapshot<'_>, addr: Ipv6Addr) -> bool {
    view.ifaces.iter().flatten().any(|iface| iface.is_anycast6(addr))
}

/// The next hop to `dst`: on `dev`, if it is link-local.
pub(in crate::ip) fn route6(view: RouteSnapshot<'_>, dev: u16, dst: Ipv6Addr) -> Adjacency<Ipv6Addr> {
    match (is_link_local(dst), view.iface(dev)) {
        (true, Some(iface)) => view.tables.v6.on_link(dev, iface.mtu, dst),
        _ => view.tables.v6.route(dst),
    }
}

/// Asks for `target`, see [`Action::Solicit`](crate::ip::neigh::Action::Solicit).
pub(in crate::ip) fn solicit(
    ctx: &mut SoftnetData,
    view: RouteSnapshot<'_>,
    dev: u16,
    target: Ipv6Addr,
    unicast_to: Option<MacAddr>,
    out: &mut Effects,
) {
    let Some((iface, source)) = view.iface(dev).and_then(|i| Some((i, i.source_for6(target)?))) else {
        return;
    };
    ctx.originate();
    let Some(mut skb) = ctx.alloc_skb() else {
        return ctx.count_drops(dev, DropReason::NoFrame, 1);
    };
    if nd::write_solicitation(&mut skb, iface.mac, source, target, unicast_to).is_none() {
        return ctx.free_at(skb, dev, DropReason::PktTooSmall);
    }
    let head = skb.head_mut();
    head.dev = dev;
    head.flags = Flags::ORIGINATED;
    out.send.push((dev, skb));
}
