//! The slow path's view of IPv4 packets: those that are not plain, the options they have, and ICMP.

use std::net::Ipv4Addr;

use super::family::{Payload, Received, Refusal, SlowFamily};
use super::{Call, Refused, RouteSnapshot, SlowPath, packet};
use crate::SoftnetData;
use crate::ip::adjacency::{Adjacency, Kind};
use crate::ip::echo::echo_reply_in_fragments;
use crate::ip::fragment::{Addresses, split};
use crate::ip::icmp_error::icmp_error;
use crate::ip::iface::Iface;
use crate::ip::reassembly::Reassembly;
use crate::ip::redirect::Redirect;
use crate::ip::v4::arp::{ArpPacket, BROADCAST};
use crate::ip::v4::header::{
    Ipv4Header, MIN_LEN, is_link_local, is_martian_destination, is_martian_source, is_multicast, is_unicast,
    protocol, validate_part,
};
use crate::ip::v4::icmp::{ECHO_REPLY, IcmpError, build_error, echo_reply, may_report, renew_check};
use crate::ip::v4::options::{self, EchoOptions, OptionPolicy, Record};
use crate::ip::v4::redirect::build as build_redirect;
use crate::ip::{ETH_LEN, MacAddr, checksum, is_group};
use crate::skb::{DropReason, Flags, Skb, SkbList, Store};
use crate::sock::Transport;

/// Where a header says what its payload is.
const PROTOCOL_AT: usize = 9;

impl SlowFamily for Ipv4Addr {
    type Error = IcmpError;
    const ICMP: u8 = protocol::ICMP;
    const TIME_EXCEEDED: IcmpError = IcmpError::TimeExceeded;
    const REASSEMBLY_TIME_EXCEEDED: IcmpError = IcmpError::ReassemblyTimeExceeded;
    const NET_UNREACHABLE: IcmpError = IcmpError::NetUnreachable;
    const HOST_UNREACHABLE: IcmpError = IcmpError::HostUnreachable;
    const PROHIBITED: IcmpError = IcmpError::AdminProhibited;

    fn too_big(mtu: u16) -> IcmpError {
        IcmpError::FragmentationNeeded { mtu }
    }

    fn unserved(payload: Payload) -> Option<IcmpError> {
        Some(match payload.protocol {
            protocol::UDP => IcmpError::PortUnreachable,
            _ => IcmpError::ProtocolUnreachable,
        })
    }

    fn answer(view: RouteSnapshot<'_>, from: Self, to: Self, _: u16) -> Option<Addresses> {
        let is_host = |addr: Self| is_unicast(addr.to_bits()) && !view.is_broadcast(addr);
        [from, to].into_iter().all(is_host).then_some(Addresses::V4 { src: to, dst: from })
    }

    fn allow(call: &mut Call<'_>, to: Self) -> bool {
        call.slow.limit.allow(call.view.now, (3, 13), to)
    }

    fn build_error(call: &mut Call<'_>, packet: &Skb, error: IcmpError, source: Self) -> Option<Skb> {
        let view = call.view;
        let broadcast = |addr| view.is_broadcast(addr);
        build_error(call.ctx, packet, error, source, broadcast, &mut call.slow.limit, view.now)
    }

    fn check(
        slow: &SlowPath,
        view: RouteSnapshot<'_>,
        skb: &Skb,
        unusual: bool,
    ) -> Result<Received<Self>, Refusal<Self>> {
        let to_many = unusual && slow.check_unusual(view, skb)?;
        let header = Ipv4Header::new(packet(skb)).ok_or(DropReason::PktTooSmall)?;
        Ok(Received {
            src: header.src().into(),
            dst: header.dst().into(),
            ttl: header.ttl(),
            total: header.total_len().into(),
            longest: header.total_len().into(),
            may_fragment: !header.dont_fragment(),
            to_many,
        })
    }

    fn payload(packet: &[u8]) -> Result<Payload, Refusal<Self>> {
        let header = Ipv4Header::new(packet).ok_or(DropReason::PktTooSmall)?;
        Ok(Payload {
            protocol: header.protocol(),
            at: header.header_len(),
            said_at: PROTOCOL_AT,
            is_fragment: header.is_fragment(),
        })
    }

    fn pseudo_header_sum(src: Self, dst: Self, protocol: u8, len: u16) -> u16 {
        checksum::pseudo_header_sum(src.into(), dst.into(), protocol, len)
    }

    fn route(view: RouteSnapshot<'_>, _: u16, dst: Self, hash: u32) -> Adjacency<Self> {
        view.tables.v4.route_flow(dst, || hash)
    }

    fn next_hop(view: RouteSnapshot<'_>, dev: u16, dst: Self) -> Adjacency<Self> {
        view.crossing(dev, dst).unwrap_or_else(|| view.tables.v4.route(dst))
    }

    fn scoped(dst: Self, _: u16) -> Self {
        dst
    }

    fn is_from_us(view: RouteSnapshot<'_>, _: u16, src: Self) -> bool {
        view.tables.v4.is_martian_source(src)
    }

    fn is_own(view: RouteSnapshot<'_>, _: u16, addr: Self) -> bool {
        view.kind_of(addr) == Kind::Local
    }

    fn source_for(iface: &Iface, peer: Self) -> Option<Self> {
        iface.source_for(peer)
    }

    fn error_source(view: RouteSnapshot<'_>, iface: &Iface, _: Self, first_hop: Self) -> Option<Self> {
        // A link without addresses borrows one of another's.
        let any = || view.ifaces().find_map(|iface| iface.addresses.first());
        iface.source_for(first_hop).or_else(|| any().map(|(addr, _)| *addr))
    }

    fn may_forward(
        view: RouteSnapshot<'_>,
        _: &Skb,
        received: &Received<Self>,
        _: Kind,
    ) -> Result<(), Refusal<Self>> {
        let &Received { src, dst, .. } = received;
        if view.kind_of(src) == Kind::Local || is_link_local(src.into()) {
            return Err(DropReason::IpInvalidSource.into());
        }
        match is_link_local(dst.into()) {
            true => Err(DropReason::IpInvalidDest.into()),
            false => Ok(()),
        }
    }

    fn hop(slow: &SlowPath, view: RouteSnapshot<'_>, skb: &mut Skb, iface: &Iface, first_hop: Self) {
        let packet = skb.data_mut().get_mut(ETH_LEN..).unwrap_or_default();
        if let Some(mut header) = Ipv4Header::new_mut(packet) {
            header.decrease_ttl();
        }
        if let Some(header) = options_of(packet)
            && let Some(addr) = iface.source_for(first_hop)
        {
            slow.record_options(view, header, addr);
        }
    }

    fn is_too_long(skb: &Skb, mtu: u16) -> bool {
        Ipv4Header::new(packet(skb)).is_some_and(|header| header.total_len() > mtu)
    }

    fn cut(store: &mut Store, skb: Skb, mtu: u16) -> Result<SkbList, Refused> {
        split(store, skb, mtu.into())
    }

    /// Only sockets are in groups.
    fn group(call: &mut Call<'_>, skb: Skb, received: Received<Self>) -> Result<(), Refused> {
        call.local(skb, received)
    }

    fn icmp(call: &mut Call<'_>, mut skb: Skb, received: Received<Self>, at: usize) -> Result<(), Refused> {
        let view = call.view;
        let broadcast = |addr| view.is_broadcast(addr);
        if skb.is_chained() {
            let reply = echo_reply_in_fragments(&skb, broadcast);
            return call.echo_in_fragments(skb, reply);
        }
        if let Some(error) = packet(&skb).get(at..).and_then(icmp_error) {
            return call.reported(skb, error);
        }
        let (peer, own) = (received.src, received.dst);
        let options = call.slow.echo_options(view, &mut skb, own);
        let idents = &mut call.slow.idents;
        let ident = || idents.next(own.into(), peer.into(), protocol::ICMP, view.now) as u16;
        match echo_reply(&mut skb, &options, broadcast, ident) {
            // Only if the mask says so.
            Ok(()) if !call.slow.limit.allow(view.now, (ECHO_REPLY, 0), peer) => {
                Err((skb, DropReason::IcmpIgnored))
            }
            Ok(()) => call.turn_around::<Self>(skb),
            Err(reason) => Err((skb, reason)),
        }
    }

    fn reassemble(
        frags: &mut Reassembly,
        ctx: &mut SoftnetData,
        now: u64,
        skb: Skb,
    ) -> Result<Option<Skb>, Refused> {
        frags.ipv4(ctx, now, skb)
    }

    fn fragment_error(_: &[u8]) -> Option<IcmpError> {
        None
    }

    fn must_be_whole(_: &[u8]) -> bool {
        false
    }

    fn redirect_source(
        view: RouteSnapshot<'_>,
        iface: &Iface,
        packet: &[u8],
        first_hop: Self,
    ) -> Option<Self> {
        let header = Ipv4Header::new(packet)?;
        let src = Ipv4Addr::from(header.src());
        let tellable = Self::may_redirect(iface, src, header.dst().into(), first_hop)
            && may_report(packet, header.header_len(), |addr| view.is_broadcast(addr));
        iface.source_for(src).filter(|_| tellable)
    }

    fn build_redirect(
        ctx: &mut SoftnetData,
        packet: &[u8],
        source: Self,
        (first_hop, _): (Self, Option<MacAddr>),
    ) -> Option<Skb> {
        build_redirect(ctx, packet, first_hop, source)
    }

    fn write_question(
        skb: &mut Skb,
        (mac, source): (MacAddr, Self),
        target: Self,
        to: Option<MacAddr>,
    ) -> Option<()> {
        ArpPacket::request(mac, source, target).write_frame(skb, to.unwrap_or(BROADCAST))
    }

    fn write_announcement(skb: &mut Skb, mac: MacAddr, own: Self) -> Option<()> {
        ArpPacket::announcement(mac, own).write_frame(skb, BROADCAST)
    }
}

impl SlowPath {
    /// Checks a packet that is not plain: a broadcast or multicast frame, a header with options, or addresses that may not
    /// go everywhere. Returns whether it is a datagram to all on the link, or to a multicast group.
    fn check_unusual(&self, view: RouteSnapshot<'_>, skb: &Skb) -> Result<bool, Refusal<Ipv4Addr>> {
        let packet = packet(skb);
        let lengths = validate_part(packet, skb.len().saturating_sub(ETH_LEN))?;
        let header = Ipv4Header::new(packet).ok_or(DropReason::PktTooSmall)?;
        if is_martian_source(header.src()) {
            return Err(DropReason::IpInvalidSource.into());
        }
        let dst = header.dst();
        let group_frame = skb.data().first_chunk().is_some_and(is_group);
        let acceptable = match group_frame {
            // A unicast packet in a broadcast frame is not for us (RFC 1122 section 3.3.6), and
            // only sockets are in groups.
            true => {
                let to_many = is_multicast(dst) || dst == u32::MAX || view.is_broadcast(dst.into());
                to_many && Transport::is_to_many(header.protocol())
            }
            false => !is_martian_destination(dst) && !is_multicast(dst),
        };
        if !acceptable {
            return Err(DropReason::IpInvalidDest.into());
        }
        let dev = skb.head().dev;
        let filter = view.iface(dev).map_or_else(Default::default, |iface| iface.rp_filter);
        let crossed = skb.head().flags & Flags::CROSSED != 0;
        if !crossed && !filter.allows(&view.tables.v4, dev, Ipv4Addr::from(header.src())) {
            return Err(DropReason::IpRpFilter.into());
        }
        let options = options::parse(packet.get(..lengths.header).unwrap_or_default());
        let options = options.map_err(|pointer| Refusal {
            reason: DropReason::IpInHdr,
            error: Some(IcmpError::ParameterProblem { pointer }),
        })?;
        // No router should do source routing today (RFC 7126 sections 4.3 and 4.4).
        let drops = self.option_policy == OptionPolicy::Drop && options.wants_record();
        if options.has_source_route() || drops {
            return Err(DropReason::IpOptions.into());
        }
        Ok(group_frame)
    }

    /// Does what the options in `header` ask for, whose packet leaves from `addr`.
    fn record_options(&self, view: RouteSnapshot<'_>, header: &mut [u8], addr: Ipv4Addr) {
        if self.option_policy == OptionPolicy::Process
            && let Ok(options) = options::parse(header)
        {
            options.record(header, &self.record(view, addr, &|addr| Ipv4Addr::is_own(view, 0, addr)));
            renew_check(header);
        }
    }

    /// The options of the reply to an echo request to `addr`.
    fn echo_options(&self, view: RouteSnapshot<'_>, skb: &mut Skb, addr: Ipv4Addr) -> EchoOptions {
        let header = skb.data_mut().get_mut(ETH_LEN..).and_then(options_of);
        let header = header.filter(|_| self.option_policy == OptionPolicy::Process);
        let Some((header, Ok(options))) = header.map(|header| (&*header, options::parse(header))) else {
            return EchoOptions::NONE;
        };
        EchoOptions::of(header, &options, &self.record(view, addr, &|addr| Ipv4Addr::is_own(view, 0, addr)))
    }

    fn record<'a>(
        &self,
        view: RouteSnapshot<'_>,
        addr: Ipv4Addr,
        is_own: &'a dyn Fn(Ipv4Addr) -> bool,
    ) -> Record<'a> {
        let utc = self.midnight.map(|since| since.saturating_add(view.now));
        Record { addr, time: options::timestamp(utc, view.now), is_own }
    }
}

/// The header of an IPv4 packet, if it has options.
fn options_of(packet: &mut [u8]) -> Option<&mut [u8]> {
    let len = Ipv4Header::new(packet)?.header_len();
    packet.get_mut(..len).filter(|header| header.len() > MIN_LEN)
}
