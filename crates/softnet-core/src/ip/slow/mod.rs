//! The slow path: whatever [`input`](super::input) could not simply forward. ARP, packets for softnet itself,
//! unresolved next hops, TTL and MTU errors, IPv4 options; what is IPv6's is in the module `v6`.
//!
//! One owner at a time (the runtime keeps it behind a lock). It sends nothing: packets to send and changes of
//! the tables, and what is for sockets, come out in an [`Effects`]. Every packet handed in ends in the outbox,
//! in a neighbour's queue, or freed with its reason.

mod announce;
mod arp;
mod errors;
mod local;
mod redirect;
mod snoop;
mod unusual;
mod v6;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use unusual::Unusual;

use super::adjacency::{Adjacency, Kind};
use super::hooks::Slot;
use super::icmp_limit::{IcmpLimit, IcmpParams};
use super::ident::Idents;
use super::input::Exception;
use super::neigh::{Action, Actions, Heard, NeighParams, NeighTable};
use super::pmtu::{PmtuCache, PmtuParams};
use super::reassembly::{FragParams, Reassembly};
use super::redirect::RedirectLimit;
use super::source::RpFilter;
use super::tables::Tables;
use super::v4::header::{
    Ipv4Header, MIN_LEN, is_link_local, is_martian_destination, is_martian_source, is_multicast, is_unicast,
    protocol, validate,
};
use super::v4::icmp::{IcmpError, build_error, echo_reply, may_report};
use super::v4::options::OptionPolicy;
use super::v6::icmp::Icmp6Error;
use super::{ETH_LEN, Family, MacAddr, Prefix, Prefix6, is_group};
use crate::SoftnetData;
use crate::fold::FoldKey;
use crate::siphash::SipKey;
use crate::skb::{DropReason, Flags, Skb};
use crate::sock::{Flow, SocketError, error};

use announce::Announcements;
use arp::send_arp;

pub use announce::Announce;

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
    /// Whether senders on its link are told of a better first hop there.
    pub send_redirects: bool,
    /// How sources of packets that come by it are asked for their way back.
    pub rp_filter: RpFilter,
}

/// A packet that was not taken, and why.
pub(super) type Refused = (Skb, DropReason);

impl Iface {
    /// Our address to speak to `peer` from: the one on its network, else the first.
    pub fn source_for(&self, peer: Ipv4Addr) -> Option<Ipv4Addr> {
        let on_link = self.addresses.iter().find(|(_, net)| net.contains(peer));
        on_link.or(self.addresses.first()).map(|(addr, _)| *addr)
    }

    pub(super) fn owns(&self, addr: Ipv4Addr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == addr)
    }
}

/// What the slow path is to work on: the same moment's view that the fast path has.
#[derive(Clone, Copy)]
pub struct RouteSnapshot<'a> {
    /// Time, in ns of the stack's clock.
    pub now: u64,
    /// The forwarding tables.
    pub tables: &'a Tables,
    /// The devices, by index; `None` for one whose interface is not there.
    pub ifaces: &'a [Option<Iface>],
}

impl RouteSnapshot<'_> {
    pub(super) fn iface(&self, dev: u16) -> Option<&Iface> {
        self.ifaces.get(usize::from(dev))?.as_ref()
    }

    /// Leads a received packet through [`Slot::Prerouting`]; `None` if it does not go on.
    fn prerouting(&self, ctx: &mut SoftnetData, skb: Skb) -> Option<Skb> {
        let devices = (Some(skb.head().dev), None);
        self.tables.hooks.pass(ctx, Slot::Prerouting, devices, skb)
    }

    /// Leads a received datagram for softnet, whole, through [`Slot::Input`].
    fn input(&self, ctx: &mut SoftnetData, skb: Skb) -> Option<Skb> {
        let devices = (Some(skb.head().dev), None);
        self.tables.hooks.pass(ctx, Slot::Input, devices, skb)
    }

    /// Leads a packet that is about to leave by `dev` through `slot`, which is that of forwarded packets or that of packets made
    /// here, and then through [`Slot::Postrouting`].
    pub(super) fn leaving(&self, ctx: &mut SoftnetData, slot: Slot, dev: u16, skb: Skb) -> Option<Skb> {
        let input = (slot == Slot::Forward).then(|| skb.head().dev);
        let skb = self.tables.hooks.pass(ctx, slot, (input, Some(dev)), skb)?;
        self.tables.hooks.pass(ctx, Slot::Postrouting, (input, Some(dev)), skb)
    }

    /// Whether `addr` is that of all on a link, but for 255.255.255.255.
    pub fn is_broadcast(&self, addr: Ipv4Addr) -> bool {
        self.tables.v4.next_hop(self.tables.v4.fib.lookup(addr.into())).kind == Kind::Broadcast
    }

    /// Whether `addr` is one of softnet's own.
    fn is_own(&self, addr: Ipv4Addr) -> bool {
        self.tables.v4.next_hop(self.tables.v4.fib.lookup(addr.into())).kind == Kind::Local
    }

    /// Whether an IPv4 packet that was received says that it is from an address of ours, or from all on a link.
    fn is_from_ourselves(&self, skb: &Skb) -> bool {
        let header = skb.data().get(ETH_LEN..).and_then(Ipv4Header::new);
        header.is_some_and(|header| self.tables.v4.is_martian_source(header.src().into()))
    }
}

/// What came of a call.
#[derive(Default)]
pub struct Effects {
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

impl Effects {
    /// Whether there is anything for sockets.
    pub fn is_for_sockets(&self) -> bool {
        !self.local.is_empty() || !self.errors.is_empty() || !self.too_big.is_empty()
    }

    /// Takes out of what was added to [`send`](Self::send) since it had `from` packets those whose
    /// [sender chose their TX queue](Flags::TX_QUEUE): for that sender to send, which can wait for room.
    pub fn take_sent(&mut self, from: usize) -> impl Iterator<Item = Skb> {
        let chose = |(_, skb): &mut (u16, Skb)| skb.head().flags & Flags::TX_QUEUE != 0;
        self.send.extract_if(from.., chose).map(|(_, mut skb)| {
            skb.head_mut().flags &= !Flags::HELD;
            skb
        })
    }
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
    pub(super) limit: IcmpLimit,
    option_policy: OptionPolicy,
    /// Time since midnight UT when the stack's clock started, in ns, if that is known.
    midnight: Option<u64>,
    redirects: RedirectLimit,
    announcements: Announcements,
    pub(super) actions: Actions,
}

impl SlowPath {
    /// An empty neighbour table, no fragments, and full buckets for ICMP errors. `secret` varies
    /// the neighbours' timers, and must be random for others not to guess what identifications
    /// come, or where entries of tables are.
    pub fn new(params: NeighParams, secret: [u64; 2]) -> Self {
        let key = SipKey::new(secret);
        // Each user has a key of its own.
        let words_of = |user: u64| [key.hash(&[user, 0]), key.hash(&[user, 1])];
        let key_of = |user: u64| SipKey::new(words_of(user));
        SlowPath {
            neigh: NeighTable::new(params, key.hash(&[0])),
            frags: Reassembly::new(FragParams::default(), key_of(1)),
            idents: Idents::new(key_of(2)),
            cut: 0,
            pmtu: PmtuCache::new(PmtuParams::default(), FoldKey::new(words_of(3))),
            limit: IcmpLimit::new(IcmpParams::default(), key_of(4)),
            option_policy: OptionPolicy::default(),
            midnight: None,
            redirects: RedirectLimit::default(),
            announcements: Announcements::default(),
            actions: Actions::new(),
        }
    }

    /// Routes lead by way of `gateways`, see [`NeighTable::set_gateways`]. To be called before anything else.
    pub fn set_gateways(&mut self, gateways: impl IntoIterator<Item = (u16, IpAddr)>) {
        self.neigh.set_gateways(gateways);
    }

    /// Sets what ICMP messages are limited to, and what is done with IPv4 options.
    pub fn configure(&mut self, icmp: IcmpParams, options: OptionPolicy) {
        self.limit.configure(icmp);
        self.option_policy = options;
    }

    /// Says what the time is: `since_midnight` UT when the stack's clock started, in ns. Until
    /// then, IPv4 timestamp options are filled in with that clock's, marked as no standard time.
    pub fn set_midnight(&mut self, since_midnight: u64) {
        self.midnight = Some(since_midnight);
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

    /// Path MTUs, of which senders have [a view](PmtuCache::paths) of their own.
    pub fn pmtu(&mut self) -> &mut PmtuCache {
        &mut self.pmtu
    }

    /// ICMP errors that were not sent because of the rate limit: of that for all hosts, and of
    /// those for each.
    pub fn icmp_limited(&self) -> (u64, u64) {
        self.limit.limited()
    }

    /// When [`poll`](Self::poll) is to be called next.
    pub fn next_deadline(&self) -> Option<u64> {
        let (neigh, frags) = (self.neigh.next_deadline(), self.frags.next_deadline());
        let others = [self.announcements.next_deadline(), self.pmtu.next_deadline()];
        [neigh, frags].into_iter().chain(others).flatten().min()
    }

    /// Processes one packet of the fast path's exceptions.
    pub fn handle(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        mut skb: Skb,
        exception: Exception,
        out: &mut Effects,
    ) {
        skb.head_mut().l3 = ETH_LEN as u16;
        let done = match exception {
            Exception::NoSocket if is_ipv6(&skb) => Err(self.nobody6(ctx, view, skb, out)),
            _ if is_ipv6(&skb) => self.ipv6(ctx, view, skb, exception, out),
            Exception::Arp => self.arp(ctx, view, skb, out),
            Exception::Unusual => self.unusual(ctx, view, skb, out),
            Exception::NoSocket => Err(self.unserved(ctx, view, skb, out)),
            Exception::Ttl | Exception::TooBig | Exception::NextHop => self.route(ctx, view, skb, out),
        };
        if let Err((skb, reason)) = done {
            ctx.free(skb, reason);
        }
        self.act(ctx, view, out);
    }

    /// An IPv4 packet that is not plain.
    fn unusual(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        let to_many = match self.check_unusual(view, &skb) {
            Ok(Unusual::Unicast) => false,
            Ok(Unusual::Group) if view.is_from_ourselves(&skb) => {
                return Err((skb, DropReason::IpInvalidSource));
            }
            Ok(Unusual::Group) => true,
            Ok(Unusual::Malformed(pointer)) => {
                self.error(ctx, view, &skb, IcmpError::ParameterProblem { pointer }, out);
                return Err((skb, DropReason::IpInHdr));
            }
            Err(reason) => return Err((skb, reason)),
        };
        let Some(skb) = view.prerouting(ctx, skb) else { return Ok(()) };
        if to_many { self.local(ctx, view, skb, out) } else { self.route(ctx, view, skb, out) }
    }

    /// Does what is due: neighbour timers, fragments that are late, path MTUs that have expired.
    pub fn poll(&mut self, ctx: &mut SoftnetData, view: RouteSnapshot<'_>, out: &mut Effects) {
        self.expire_fragments(ctx, view, out);
        self.announce_again(ctx, view, out);
        self.pmtu.poll(view.now);
        self.neigh.poll(view.now, &mut self.actions);
        self.act(ctx, view, out);
    }

    /// Fixes a neighbour's MAC address.
    pub fn set_permanent(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        (dev, ip, mac): (u16, IpAddr, MacAddr),
        out: &mut Effects,
    ) {
        self.neigh.set_permanent(view.now, dev, ip, mac, &mut self.actions);
        self.act(ctx, view, out);
    }

    /// Forgets the neighbours of a device that is gone.
    pub fn remove_device(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        dev: u16,
        out: &mut Effects,
    ) {
        self.announcements.forget(dev);
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
    fn act(&mut self, ctx: &mut SoftnetData, view: RouteSnapshot<'_>, out: &mut Effects) {
        while !self.actions.is_empty() {
            let actions: Vec<Action> = self.actions.drain().collect();
            for action in actions {
                match action {
                    Action::Solicit { dev, target: IpAddr::V4(target), unicast_to } => {
                        send_arp(ctx, view, dev, target, unicast_to, out)
                    }
                    Action::Solicit { dev, target: IpAddr::V6(target), unicast_to } => {
                        v6::solicit(ctx, view, dev, target, unicast_to, out)
                    }
                    Action::Publish { dev, ip, told, .. } => {
                        out.publish.extend(told.map(|mac| (dev, ip, mac)));
                    }
                    Action::Transmit { dev, mac, mut skbs } => {
                        while let Some(mut skb) = skbs.pop_front() {
                            skb.head_mut().flags |= Flags::HELD;
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

    /// Routes a received packet whose header is sound.
    fn route(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        mut skb: Skb,
        out: &mut Effects,
    ) -> Result<(), (Skb, DropReason)> {
        let Some(header) = Ipv4Header::new(skb.data().get(ETH_LEN..).unwrap_or_default()) else {
            return Err((skb, DropReason::PktTooSmall));
        };
        let (src, dst) = (Ipv4Addr::from(header.src()), Ipv4Addr::from(header.dst()));
        let (ttl, total, may_fragment) = (header.ttl(), header.total_len(), !header.dont_fragment());
        let has_options = header.header_len() > MIN_LEN;
        let hop = view.tables.v4.route(dst);
        match hop.kind {
            Kind::Local if view.is_from_ourselves(&skb) => return Err((skb, DropReason::IpInvalidSource)),
            Kind::Local => return self.local(ctx, view, skb, out),
            // What follows is not for softnet.
            _ if view.is_own(src) || is_link_local(src.into()) => {
                return Err((skb, DropReason::IpInvalidSource));
            }
            _ if is_link_local(dst.into()) => return Err((skb, DropReason::IpInvalidDest)),
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
        if hop.dev == skb.head().dev {
            self.redirect4(ctx, view, (hop.dev, &skb.data()[ETH_LEN..]), hop.gateway, out);
        }
        if let Some(mut header) = Ipv4Header::new_mut(&mut skb.data_mut()[ETH_LEN..]) {
            header.decrease_ttl();
        }
        if has_options && let Some(addr) = iface.source_for(hop.gateway) {
            self.record_options(view, &mut skb, addr);
        }
        let Some(skb) = view.leaving(ctx, Slot::Forward, hop.dev, skb) else { return Ok(()) };
        self.output_cut(ctx, view, skb, hop, (iface.mtu, iface.mac), out)
    }

    /// Sends a finished packet by `hop`, as soon as the neighbour is known.
    pub(super) fn output<A: Family>(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        hop: Adjacency<A>,
        from: MacAddr,
        out: &mut Effects,
    ) {
        if hop.kind == Kind::Rewrite {
            let to = hop.rewrite.first_chunk().copied().unwrap_or_default();
            return transmit(ctx, skb, hop.dev, from, to, out);
        }
        self.neigh.resolve(view.now, hop.dev, hop.gateway.into(), skb, &mut self.actions);
    }

    /// Sends a packet that a socket made, headers and all, to its destination: its neighbour is not known yet.
    pub fn send(&mut self, ctx: &mut SoftnetData, view: RouteSnapshot<'_>, mut skb: Skb, out: &mut Effects) {
        let head = skb.head_mut();
        (head.l3, head.flags) = (ETH_LEN as u16, head.flags | Flags::ORIGINATED);
        match is_ipv6(&skb) {
            true => self.output_own6(ctx, view, skb, out),
            false => self.output_own(ctx, view, skb, out),
        }
        self.act(ctx, view, out);
    }

    /// Sends a packet made here to its destination.
    fn output_own(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        mut skb: Skb,
        out: &mut Effects,
    ) {
        let dst = Ipv4Header::new(skb.data().get(ETH_LEN..).unwrap_or_default()).map(|h| h.dst());
        let hop = view.tables.v4.route(dst.unwrap_or(0).into());
        match view.iface(hop.dev) {
            Some(iface) if hop.is_reachable() => {
                skb.head_mut().dev = hop.dev;
                let Some(skb) = view.leaving(ctx, Slot::Output, hop.dev, skb) else { return };
                let link = (iface.mtu, iface.mac);
                if let Err((skb, reason)) = self.output_cut(ctx, view, skb, hop, link, out) {
                    ctx.free(skb, reason);
                }
            }
            _ => ctx.free(skb, DropReason::IpNoRoute),
        }
    }
}

/// Puts the link header in front and hands the packet over for sending.
fn transmit(ctx: &mut SoftnetData, mut skb: Skb, dev: u16, from: MacAddr, to: MacAddr, out: &mut Effects) {
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

#[cfg(all(any(test, fuzzing), not(feature = "loom")))]
pub(crate) mod fuzz;

#[cfg(all(test, not(feature = "loom")))]
mod tests;

#[cfg(all(any(test, fuzzing), not(feature = "loom")))]
#[cfg_attr(not(test), allow(dead_code))]
mod world;
