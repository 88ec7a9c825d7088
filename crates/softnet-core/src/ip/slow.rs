//! The slow path: whatever [`input`](super::input) could not simply forward. ARP, packets for softnet itself,
//! unresolved next hops, TTL and MTU errors, IPv4 options; what is IPv6's is in [`v6::slow`](super::v6).
//!
//! One owner at a time (the runtime keeps it behind a lock). It sends nothing: packets to send and changes of
//! the adjacency snapshot, and what is for sockets, come out in an [`Outbox`]. Every packet handed in ends in the outbox,
//! in a neighbour's queue, or freed with its reason.

mod local;
mod snoop;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::adjacency::{Adjacency, Kind, Tables};
use super::arp::{ArpPacket, BROADCAST};
use super::header::{
    Ipv4Header, is_martian_destination, is_martian_source, is_multicast, is_unicast, protocol, validate,
};
use super::icmp::{IcmpError, RateLimit, build_error, echo_reply};
use super::ident::Idents;
use super::input::Exception;
use super::neigh::{Action, Actions, Heard, NeighParams, NeighState, NeighTable};
use super::pmtu::{PmtuCache, PmtuParams};
use super::reassembly::{FragParams, Reassembly};
use super::v6::icmp::Icmp6Error;
use super::{ETH_LEN, Family, MacAddr, Prefix, Prefix6, is_group};
use crate::SoftnetData;
use crate::siphash::SipKey;
use crate::skb::{DropReason, Flags, Skb};
use crate::sock::{Flow, SocketError, error};

/// A device as the slow path needs to know it.
#[derive(Clone, Debug)]
pub struct Iface {
    /// Its MAC address.
    pub mac: MacAddr,
    /// Largest L3 packet in bytes.
    pub mtu: u16,
    /// softnet's IPv4 addresses on it, each with its connected network.
    pub addresses: Vec<(Ipv4Addr, Prefix)>,
    /// Its IPv6 addresses, link-local ones too; none if it does not speak IPv6.
    pub addresses6: Vec<(Ipv6Addr, Prefix6)>,
}

/// A packet that was not taken, and why.
pub(super) type Refused = (Skb, DropReason);

impl Iface {
    /// Our address to speak to `peer` from: the one on its network, else the first.
    pub fn source_for(&self, peer: Ipv4Addr) -> Option<Ipv4Addr> {
        let on_link = self.addresses.iter().find(|(_, net)| net.contains(peer));
        on_link.or(self.addresses.first()).map(|(addr, _)| *addr)
    }

    fn owns(&self, addr: Ipv4Addr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == addr)
    }
}

/// What the slow path is to work on: the same moment's view that the fast path has.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Time, in ns of the stack's clock.
    pub now: u64,
    /// The forwarding tables.
    pub tables: &'a Tables,
    /// The devices, by index; `None` for one whose interface is not there.
    pub ifaces: &'a [Option<Iface>],
}

impl View<'_> {
    pub(super) fn iface(&self, dev: u16) -> Option<&Iface> {
        self.ifaces.get(usize::from(dev))?.as_ref()
    }

    /// Whether `addr` is that of all on a link, but for 255.255.255.255.
    pub fn is_broadcast(&self, addr: Ipv4Addr) -> bool {
        self.tables.v4.next_hop(self.tables.v4.fib.lookup(addr.into())).kind == Kind::Broadcast
    }

    /// Whether an IPv4 packet that was received says that it is from an address of ours, or from all on a link.
    fn is_from_ourselves(&self, skb: &Skb) -> bool {
        let header = skb.data().get(ETH_LEN..).and_then(Ipv4Header::new);
        header.is_some_and(|header| self.tables.v4.is_martian_source(header.src().into()))
    }
}

/// What came of a call.
#[derive(Default)]
pub struct Outbox {
    /// Packets to send, complete, each by its device.
    pub send: Vec<(u16, Skb)>,
    /// Neighbours whose MAC address the fast path may now use, or (`None`) may not any more.
    pub publish: Vec<(u16, IpAddr, Option<MacAddr>)>,
    /// UDP to softnet itself, by address, broadcast or multicast: for sockets. What none of them wants comes back as
    /// [`Exception::NoSocket`].
    pub local: Vec<Skb>,
    /// What became of datagrams that sockets sent.
    pub errors: Vec<(Flow, SocketError)>,
    /// Datagrams that sockets may have sent, and that were too long somewhere.
    pub too_big: Vec<TooBig>,
}

/// An ICMP error says that a datagram was too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig {
    /// Its addresses and ports.
    pub flow: Flow,
    /// Its length, from the IP header on.
    pub len: u16,
    /// What would have fitted, see [`Problem::PacketTooBig`](super::icmp_error::Problem::PacketTooBig).
    pub mtu: u32,
}

/// Neighbours, fragments, ICMP limits, and what else the slow path remembers.
pub struct SlowPath {
    pub(super) neigh: NeighTable,
    pub(super) frags: Reassembly,
    idents: Idents,
    cut: u64,
    pmtu: PmtuCache,
    pub(super) limit: RateLimit,
    pub(super) actions: Actions,
}

impl SlowPath {
    /// An empty neighbour table, no fragments, and a full token bucket. `secret` varies the neighbours' timers, and must be
    /// random for others not to guess what identifications come, or where entries of tables are.
    pub fn new(params: NeighParams, secret: [u64; 2]) -> Self {
        let key = SipKey::new(secret);
        // Each user has a key of its own.
        let key_of = |user: u64| SipKey::new([key.hash(&[user, 0]), key.hash(&[user, 1])]);
        SlowPath {
            neigh: NeighTable::new(params, key.hash(&[0])),
            frags: Reassembly::new(FragParams::default(), key_of(1)),
            idents: Idents::new(key_of(2)),
            cut: 0,
            pmtu: PmtuCache::new(PmtuParams::default(), key_of(3)),
            limit: RateLimit::default(),
            actions: Actions::new(),
        }
    }

    /// The neighbours, for display.
    pub fn neighbours(&self) -> &NeighTable {
        &self.neigh
    }

    /// The datagrams that are not whole, for display.
    pub fn fragments(&self) -> &Reassembly {
        &self.frags
    }

    /// Packets that were too long for the next link, and were cut.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Packets that wait for something: a neighbour, or other fragments.
    pub fn held(&self) -> usize {
        self.neigh.held() + self.frags.held()
    }

    /// Path MTUs, for senders.
    pub fn pmtu(&mut self) -> &mut PmtuCache {
        &mut self.pmtu
    }

    /// ICMP errors that were not sent because of the rate limit.
    pub fn icmp_limited(&self) -> u64 {
        self.limit.limited()
    }

    /// When [`poll`](Self::poll) is to be called next.
    pub fn next_deadline(&self) -> Option<u64> {
        [self.neigh.next_deadline(), self.frags.next_deadline()].into_iter().flatten().min()
    }

    /// Processes one packet of the fast path's exceptions.
    pub fn handle(
        &mut self,
        ctx: &mut SoftnetData,
        view: View<'_>,
        mut skb: Skb,
        exception: Exception,
        out: &mut Outbox,
    ) {
        skb.head_mut().l3 = ETH_LEN as u16;
        let done = match exception {
            Exception::NoSocket if is_ipv6(&skb) => Err(self.nobody6(ctx, view, skb, out)),
            _ if is_ipv6(&skb) => self.ipv6(ctx, view, skb, out),
            Exception::Arp => self.arp(ctx, view, skb, out),
            Exception::Unusual => match check_unusual(&skb, |addr| view.is_broadcast(addr)) {
                Ok(Unusual::Unicast) => self.route(ctx, view, skb, out),
                Ok(Unusual::Group) if view.is_from_ourselves(&skb) => Err((skb, DropReason::IpInvalidSource)),
                Ok(Unusual::Group) => self.local(ctx, view, skb, out),
                Err(reason) => Err((skb, reason)),
            },
            Exception::NoSocket => Err(self.unserved(ctx, view, skb, out)),
            Exception::Ttl | Exception::TooBig | Exception::NextHop => self.route(ctx, view, skb, out),
        };
        if let Err((skb, reason)) = done {
            ctx.free(skb, reason);
        }
        self.act(ctx, view, out);
    }

    /// Does what is due: neighbour timers, fragments that are late.
    pub fn poll(&mut self, ctx: &mut SoftnetData, view: View<'_>, out: &mut Outbox) {
        self.expire_fragments(ctx, view, out);
        self.neigh.poll(view.now, &mut self.actions);
        self.act(ctx, view, out);
    }

    /// Fixes a neighbour's MAC address.
    pub fn set_permanent(
        &mut self,
        ctx: &mut SoftnetData,
        view: View<'_>,
        (dev, ip, mac): (u16, IpAddr, MacAddr),
        out: &mut Outbox,
    ) {
        self.neigh.set_permanent(view.now, dev, ip, mac, &mut self.actions);
        self.act(ctx, view, out);
    }

    /// Forgets the neighbours of a device that is gone.
    pub fn remove_device(&mut self, ctx: &mut SoftnetData, view: View<'_>, dev: u16, out: &mut Outbox) {
        self.neigh.remove_device(dev, &mut self.actions);
        self.act(ctx, view, out);
    }

    /// Forgets everything and frees what is held, for the stack ends.
    pub fn shutdown(&mut self, ctx: &mut SoftnetData) {
        self.frags.shutdown(ctx);
        self.neigh.shutdown(&mut self.actions);
        for action in self.actions.drain() {
            let (Action::Transmit { mut skbs, .. } | Action::Fail { mut skbs, .. }) = action else {
                continue;
            };
            while let Some(skb) = skbs.pop_front() {
                ctx.free(skb, DropReason::Shutdown);
            }
        }
    }

    /// Carries out what the neighbour table asked for. What that leads to (an ICMP error whose way is unknown
    /// too) may ask for more; it ends because there is no error about an error.
    fn act(&mut self, ctx: &mut SoftnetData, view: View<'_>, out: &mut Outbox) {
        while !self.actions.is_empty() {
            let actions: Vec<Action> = self.actions.drain().collect();
            for action in actions {
                match action {
                    Action::Solicit { dev, target: IpAddr::V4(target), unicast_to } => {
                        send_arp(ctx, view, dev, target, unicast_to, out)
                    }
                    Action::Solicit { dev, target: IpAddr::V6(target), unicast_to } => {
                        super::v6::slow::solicit(ctx, view, dev, target, unicast_to, out)
                    }
                    Action::Publish { dev, ip, state, mac } => {
                        // A stale entry's next packet must come by here, to start the probe.
                        let usable = state.is_valid() && state != NeighState::Stale;
                        out.publish.push((dev, ip, mac.filter(|_| usable)));
                    }
                    Action::Transmit { dev, mac, mut skbs } => {
                        while let Some(skb) = skbs.pop_front() {
                            match view.iface(dev) {
                                Some(iface) => transmit(ctx, skb, dev, iface.mac, mac, out),
                                None => ctx.free_at(skb, dev, DropReason::DevReady),
                            }
                        }
                    }
                    Action::Fail { dev, ip, reason, mut skbs } => {
                        while let Some(skb) = skbs.pop_front() {
                            if reason == DropReason::NeighFailed {
                                match ip {
                                    IpAddr::V4(_) => {
                                        self.error(ctx, view, &skb, IcmpError::HostUnreachable, out)
                                    }
                                    IpAddr::V6(_) => {
                                        self.error6(ctx, view, &skb, Icmp6Error::AddressUnreachable, out)
                                    }
                                }
                                let ours = skb.head().flags & Flags::ORIGINATED != 0;
                                let packet = skb.data().get(ETH_LEN..).unwrap_or_default();
                                let flow = error::of_sent(packet, dev);
                                let sent = flow.filter(|_| ours);
                                out.errors.extend(sent.map(|flow| (flow, SocketError::HostUnreachable)));
                            }
                            ctx.free(skb, reason);
                        }
                    }
                }
            }
        }
    }

    fn arp(
        &mut self,
        ctx: &mut SoftnetData,
        view: View<'_>,
        mut skb: Skb,
        out: &mut Outbox,
    ) -> Result<(), (Skb, DropReason)> {
        let dev = skb.head().dev;
        let Some(iface) = view.iface(dev) else { return Err((skb, DropReason::DevReady)) };
        let to_us = skb.data().starts_with(&iface.mac);
        let packet = match ArpPacket::parse(skb.data().get(ETH_LEN..).unwrap_or_default()) {
            Ok(packet) => packet,
            Err(reason) => return Err((skb, reason)),
        };
        let ours = iface.owns(packet.target_ip);
        let on_link = iface.addresses.iter().any(|(_, net)| net.contains(packet.sender_ip));
        if let Some(heard) = Heard::from_arp(&packet, ours, to_us)
            && !iface.owns(packet.sender_ip)
            // A stranger may answer what we asked, for a route may lead straight out of a device; no more than that.
            && (on_link || heard == Heard::Reply)
        {
            let (ip, mac) = (packet.sender_ip, packet.sender_mac);
            self.neigh.input(view.now, dev, ip.into(), mac, heard, &mut self.actions);
        } else if !ours {
            return Err((skb, DropReason::ArpIgnored));
        }
        if ours && packet.operation == super::arp::Operation::Request {
            if packet.reply(iface.mac).write_frame(&mut skb, packet.sender_mac).is_none() {
                return Err((skb, DropReason::PktTooSmall));
            }
            let head = skb.head_mut();
            (head.flags, head.tc_depth) = (Flags::ORIGINATED, 0);
            ctx.turn_around();
            out.send.push((dev, skb));
        } else {
            ctx.deliver(skb);
        }
        Ok(())
    }

    /// Routes a received packet whose header is sound.
    fn route(
        &mut self,
        ctx: &mut SoftnetData,
        view: View<'_>,
        mut skb: Skb,
        out: &mut Outbox,
    ) -> Result<(), (Skb, DropReason)> {
        let Some((dst, ttl, total, may_fragment)) = Ipv4Header::new(&skb.data()[ETH_LEN.min(skb.len())..])
            .map(|h| (Ipv4Addr::from(h.dst()), h.ttl(), h.total_len(), !h.dont_fragment()))
        else {
            return Err((skb, DropReason::PktTooSmall));
        };
        let hop = view.tables.v4.route(dst);
        match hop.kind {
            Kind::Local if view.is_from_ourselves(&skb) => return Err((skb, DropReason::IpInvalidSource)),
            Kind::Local => return self.local(ctx, view, skb, out),
            Kind::Broadcast => return Err((skb, DropReason::IpInvalidDest)),
            Kind::Blackhole => return Err((skb, DropReason::IpBlackhole)),
            Kind::NoRoute => {
                self.error(ctx, view, &skb, IcmpError::NetUnreachable, out);
                return Err((skb, DropReason::IpNoRoute));
            }
            Kind::Unreachable => {
                self.error(ctx, view, &skb, IcmpError::HostUnreachable, out);
                return Err((skb, DropReason::IpNoRoute));
            }
            Kind::Rewrite | Kind::Connected | Kind::Resolve => {}
        }
        if ttl <= 1 {
            self.error(ctx, view, &skb, IcmpError::TimeExceeded, out);
            return Err((skb, DropReason::IpTtl));
        }
        let Some(iface) = view.iface(hop.dev) else { return Err((skb, DropReason::DevReady)) };
        if total > iface.mtu && !may_fragment {
            let error = IcmpError::FragmentationNeeded { mtu: iface.mtu };
            self.error(ctx, view, &skb, error, out);
            return Err((skb, DropReason::PktTooBig));
        }
        skb.trim(ETH_LEN + usize::from(total));
        if let Some(mut header) = Ipv4Header::new_mut(&mut skb.data_mut()[ETH_LEN..]) {
            header.decrease_ttl();
        }
        self.output_cut(ctx, view, skb, hop, (iface.mtu, iface.mac), out)
    }

    /// Sends a finished packet by `hop`, as soon as the neighbour is known.
    pub(super) fn output<A: Family>(
        &mut self,
        ctx: &mut SoftnetData,
        view: View<'_>,
        skb: Skb,
        hop: Adjacency<A>,
        from: MacAddr,
        out: &mut Outbox,
    ) {
        if hop.kind == Kind::Rewrite {
            let to = hop.rewrite.first_chunk().copied().unwrap_or_default();
            return transmit(ctx, skb, hop.dev, from, to, out);
        }
        self.neigh.resolve(view.now, hop.dev, hop.gateway.into(), skb, &mut self.actions);
    }

    /// Sends a packet that a socket made, headers and all, to its destination: its neighbour is not known yet.
    pub fn send(&mut self, ctx: &mut SoftnetData, view: View<'_>, mut skb: Skb, out: &mut Outbox) {
        let head = skb.head_mut();
        (head.l3, head.flags) = (ETH_LEN as u16, head.flags | Flags::ORIGINATED);
        match is_ipv6(&skb) {
            true => self.output_own6(ctx, view, skb, out),
            false => self.output_own(ctx, view, skb, out),
        }
        self.act(ctx, view, out);
    }

    /// Sends a packet made here to its destination.
    fn output_own(&mut self, ctx: &mut SoftnetData, view: View<'_>, mut skb: Skb, out: &mut Outbox) {
        let dst = Ipv4Header::new(skb.data().get(ETH_LEN..).unwrap_or_default()).map(|h| h.dst());
        let hop = view.tables.v4.route(dst.unwrap_or(0).into());
        match view.iface(hop.dev) {
            Some(iface) if hop.is_reachable() => {
                skb.head_mut().dev = hop.dev;
                let link = (iface.mtu, iface.mac);
                if let Err((skb, reason)) = self.output_cut(ctx, view, skb, hop, link, out) {
                    ctx.free(skb, reason);
                }
            }
            _ => ctx.free(skb, DropReason::IpNoRoute),
        }
    }

    /// A packet to softnet, for a protocol or port that nobody serves.
    fn unserved(
        &mut self,
        ctx: &mut SoftnetData,
        view: View<'_>,
        skb: Skb,
        out: &mut Outbox,
    ) -> (Skb, DropReason) {
        let header = Ipv4Header::new(skb.data().get(ETH_LEN..).unwrap_or_default());
        let said = header.map_or((0, Ipv4Addr::UNSPECIFIED), |h| (h.protocol(), h.dst().into()));
        let (protocol, dst) = said;
        if !is_unicast(dst.into()) || view.is_broadcast(dst) {
            return (skb, DropReason::IpInvalidDest);
        }
        let error = match protocol {
            protocol::TCP | protocol::UDP => IcmpError::PortUnreachable,
            _ => IcmpError::ProtocolUnreachable,
        };
        self.error(ctx, view, &skb, error, out);
        (skb, DropReason::IpNoProto)
    }

    /// Sends an ICMP error about `skb`, if there may be one and the rate limit allows it.
    fn error(
        &mut self,
        ctx: &mut SoftnetData,
        view: View<'_>,
        skb: &Skb,
        error: IcmpError,
        out: &mut Outbox,
    ) {
        // What softnet itself sent concerns nobody else.
        if skb.head().flags & Flags::ORIGINATED != 0 {
            return;
        }
        let src = Ipv4Header::new(skb.data().get(ETH_LEN..).unwrap_or_default()).map(|h| h.src());
        let Some(source) =
            view.iface(skb.head().dev).and_then(|iface| iface.source_for(src.unwrap_or(0).into()))
        else {
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

/// Puts the link header in front and hands the packet over for sending.
fn transmit(ctx: &mut SoftnetData, mut skb: Skb, dev: u16, from: MacAddr, to: MacAddr, out: &mut Outbox) {
    let Some((eth, packet)) = skb.data_mut().split_first_chunk_mut::<ETH_LEN>() else {
        return ctx.free_at(skb, dev, DropReason::PktTooSmall);
    };
    eth[..6].copy_from_slice(&to);
    eth[6..12].copy_from_slice(&from);
    let ethertype = match packet.first() {
        Some(first) if first >> 4 == 6 => Ipv6Addr::ETHERTYPE,
        _ => Ipv4Addr::ETHERTYPE,
    };
    eth[12..].copy_from_slice(&ethertype.to_be_bytes());
    out.send.push((dev, skb));
}

/// Whether `skb`, as it came in, is IPv6.
fn is_ipv6(skb: &Skb) -> bool {
    skb.data().get(12..ETH_LEN) == Some(&Ipv6Addr::ETHERTYPE.to_be_bytes())
}

fn send_arp(
    ctx: &mut SoftnetData,
    view: View<'_>,
    dev: u16,
    target: Ipv4Addr,
    unicast_to: Option<MacAddr>,
    out: &mut Outbox,
) {
    let Some((iface, source)) = view.iface(dev).and_then(|i| Some((i, i.source_for(target)?))) else {
        return;
    };
    ctx.originate();
    let Some(mut skb) = ctx.alloc_skb() else {
        return ctx.count_drops(dev, DropReason::NoFrame, 1);
    };
    let request = ArpPacket::request(iface.mac, source, target);
    if request.write_frame(&mut skb, unicast_to.unwrap_or(BROADCAST)).is_none() {
        return ctx.free_at(skb, dev, DropReason::PktTooSmall);
    }
    let head = skb.head_mut();
    head.dev = dev;
    head.flags = Flags::ORIGINATED;
    out.send.push((dev, skb));
}

/// What a packet is that is not plain.
enum Unusual {
    /// To one host, maybe softnet.
    Unicast,
    /// A datagram to all on the link, or to a multicast group.
    Group,
}

/// What the fast path did not check of an IPv4 packet that is not plain: a broadcast or multicast frame, or a header with
/// options.
fn check_unusual(skb: &Skb, broadcast: impl Fn(Ipv4Addr) -> bool) -> Result<Unusual, DropReason> {
    let data = skb.data();
    let packet = data.get(ETH_LEN..).ok_or(DropReason::PktTooSmall)?;
    let lengths = validate(packet)?;
    let header = Ipv4Header::new(packet).ok_or(DropReason::PktTooSmall)?;
    if is_martian_source(header.src()) {
        return Err(DropReason::IpInvalidSource);
    }
    let dst = header.dst();
    let group_frame = data.first_chunk().is_some_and(is_group);
    let acceptable = match group_frame {
        // A unicast packet in a broadcast frame is not for us (RFC 1122 section 3.3.6), and only sockets are in groups.
        true => {
            let to_many = is_multicast(dst) || dst == u32::MAX || broadcast(dst.into());
            to_many && header.protocol() == protocol::UDP
        }
        false => !is_martian_destination(dst) && !is_multicast(dst),
    };
    if !acceptable {
        return Err(DropReason::IpInvalidDest);
    }
    if has_source_route(packet.get(20..lengths.header).unwrap_or_default())? {
        return Err(DropReason::IpOptions);
    }
    Ok(if group_frame { Unusual::Group } else { Unusual::Unicast })
}

/// Whether options ask for source routing, which no router should do today (RFC 7126 sections 4.3 and 4.4).
fn has_source_route(mut options: &[u8]) -> Result<bool, DropReason> {
    loop {
        match options {
            [] | [0, ..] => return Ok(false),
            [1, rest @ ..] => options = rest,
            [131 | 137, ..] => return Ok(true),
            [_, len, ..] if *len >= 2 => {
                options = options.get(usize::from(*len)..).ok_or(DropReason::IpInHdr)?;
            }
            _ => return Err(DropReason::IpInHdr),
        }
    }
}

#[cfg(all(any(test, fuzzing), not(feature = "loom")))]
pub(crate) mod fuzz;

#[cfg(all(test, not(feature = "loom")))]
#[path = "slow_tests.rs"]
mod tests;

#[cfg(all(any(test, fuzzing), not(feature = "loom")))]
#[cfg_attr(not(test), allow(dead_code))]
#[path = "slow_world.rs"]
mod world;
