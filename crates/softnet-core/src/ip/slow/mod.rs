//! The slow path: whatever [`input`](super::input) could not simply forward. ARP and neighbour discovery, packets for
//! softnet itself, unresolved next hops, TTL and MTU errors, options.
//!
//! One owner at a time (the runtime keeps it behind a lock). It sends nothing: packets to send and changes of
//! the tables, and what is for sockets, come out in an [`Effects`]. Every packet handed in ends there, in a neighbour's
//! queue, or freed with its reason. What both families do is written once, for a `SlowFamily`; `v4` and `v6` are what they
//! do differently.

mod announce;
mod arp;
mod conflicts;
mod dad;
mod errors;
mod family;
mod local;
mod nd;
mod output;
mod redirect;
mod reject;
mod route;
mod snoop;
mod v4;
mod v6;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::adjacency::{Adjacency, Kind};
use super::hooks::{HookContext, Made, Passage, Slot};
use super::icmp_limit::{IcmpLimit, IcmpParams};
use super::ident::Idents;
use super::iface::Iface;
use super::input::Exception;
use super::neigh::{Action, Actions, Heard, NeighParams, NeighTable};
use super::pmtu::{PmtuCache, PmtuParams};
use super::reassembly::{FragParams, Reassembly};
use super::redirect::RedirectLimit;
use super::tables::Tables;
use super::v4::options::OptionPolicy;
use super::{ETH_LEN, Family, LongestMatch, MacAddr};
use crate::SoftnetData;
use crate::fold::FoldKey;
use crate::gso;
use crate::siphash::SipKey;
use crate::skb::{DropReason, Flags, Skb};
use crate::sock::tcp::packet::of_sent as of_segment;
use crate::sock::tcp::{News, Told};
use crate::sock::udp::error;
use crate::sock::{Flow, SocketError, Transport};
use crate::tap::trace::Step;

use softnet_tcp::conn::Error;

use announce::Announcements;
use conflicts::Conflicts;
use dad::Probes;
use family::SlowFamily;

pub use announce::Announce;
pub use conflicts::Conflict;

/// A packet that was not taken, and why.
type Refused = (Skb, DropReason);

/// What the slow path is to work on: the same moment's view that the fast path has.
#[derive(Clone, Copy)]
pub struct RouteSnapshot<'a> {
    /// Time, in ns of the stack's clock.
    pub now: u64,
    /// The forwarding tables.
    pub tables: &'a Tables,
}

impl<'a> RouteSnapshot<'a> {
    fn iface(self, dev: u16) -> Option<&'a Iface> {
        self.tables.ifaces.get(usize::from(dev))?.as_ref()
    }

    /// The devices whose interfaces are there.
    fn ifaces(self) -> impl Iterator<Item = &'a Iface> {
        self.tables.ifaces.iter().flatten()
    }

    /// What the routes say `addr` is, its neighbour aside.
    fn kind_of<F: Family>(self, addr: F) -> Kind {
        let routing = F::routing(self.tables);
        routing.next_hop(routing.fib.longest_match(addr)).kind
    }

    /// The next hop of a packet made here to `dst`, if a hook makes it one of the other family: any
    /// device with addresses to send from, `dev` first.
    fn crossing<F: Family>(self, dev: u16, dst: F) -> Option<Adjacency<F>> {
        let crossing = self.tables.hooks.crossing?;
        if !crossing.crosses(dst.into()) {
            return None;
        }
        let has = |dev: &u16| self.iface(*dev).filter(|iface| !F::addresses(iface).is_empty());
        let all = std::iter::once(dev).chain(0..self.tables.ifaces.len() as u16);
        all.filter_map(|dev| Some((dev, has(&dev)?)))
            .map(|(dev, iface)| Adjacency::connected(dev, iface.mtu))
            .next()
    }

    /// Whether `addr` is that of all on a link, but for 255.255.255.255.
    pub fn is_broadcast(&self, addr: Ipv4Addr) -> bool {
        self.kind_of(addr) == Kind::Broadcast
    }
}

/// What came of a call.
#[derive(Default)]
pub struct Effects {
    /// Packets to send, complete, each by its device.
    pub send: Vec<(u16, Skb)>,
    /// Neighbours whose MAC address the fast path may now use, or (`None`) may not any more.
    pub publish: Vec<(u16, IpAddr, Option<MacAddr>)>,
    /// To softnet itself, by address, broadcast or multicast: for sockets. What none of them wants
    /// comes back as [`Exception::NoSocket`].
    pub local: Vec<(Transport, Skb)>,
    /// What became of datagrams that sockets sent.
    pub errors: Vec<(Flow, SocketError)>,
    /// Datagrams that sockets may have sent, and that were too long somewhere.
    pub too_big: Vec<TooBig>,
    /// What became of segments that connections sent.
    pub told: Vec<Told>,
}

impl Effects {
    /// Adds a packet for sockets, whose L4 header begins at `at` of its IP packet.
    fn deliver(&mut self, mut skb: Skb, transport: Transport, at: usize) {
        let head = skb.head_mut();
        (head.l4, head.protocol) = ((ETH_LEN + at) as u16, transport.number());
        self.local.push((transport, skb));
    }

    /// Whether there is anything for sockets.
    pub fn is_for_sockets(&self) -> bool {
        !self.local.is_empty() || !self.errors.is_empty() || !self.too_big.is_empty() || !self.told.is_empty()
    }

    /// Takes out of what was added to [`send`](Self::send) since it had `from` packets those whose
    /// [sender chose their TX queue](Flags::TX_QUEUE): for that sender to send, which can wait for room.
    pub fn take_sent(&mut self, from: usize) -> impl Iterator<Item = Skb> {
        let chose = |(_, skb): &mut (u16, Skb)| skb.head().flags & Flags::TX_QUEUE != 0;
        self.send.extract_if(from.., chose).map(|(_, skb)| skb)
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
    conflicts: Conflicts,
    probes: Probes,
    pub(super) actions: Actions,
    /// What hooks made or took during the call at hand.
    made: Made,
}

/// How often in a row packets that hooks made may have hooks make others.
const MADE_ROUNDS: usize = 4;

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
            conflicts: Conflicts::default(),
            probes: Probes::default(),
            actions: Actions::new(),
            made: Made::default(),
        }
    }

    /// Routes lead by way of `gateways`, see [`NeighTable::set_gateways`]. To be called before anything else.
    pub fn set_gateways(&mut self, gateways: impl IntoIterator<Item = (u16, IpAddr)>) {
        self.neigh.set_gateways(gateways);
    }

    /// Routes lead by way of `gateways`, too, see [`NeighTable::add_gateways`].
    pub fn add_gateways(&mut self, gateways: impl IntoIterator<Item = (u16, IpAddr)>) {
        self.neigh.add_gateways(gateways);
    }

    /// No route leads by way of `gateways` any more, see [`NeighTable::remove_gateways`].
    pub fn remove_gateways(&mut self, gateways: &[(u16, IpAddr)]) {
        self.neigh.remove_gateways(gateways);
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
        let others =
            [self.announcements.next_deadline(), self.pmtu.next_deadline(), self.conflicts.next_deadline()];
        let probes = self.probes.next_deadline();
        [neigh, frags, probes].into_iter().chain(others).flatten().min()
    }

    /// Processes one packet of the fast path's exceptions; of an aggregate each segment, as if it
    /// had come by itself. A checksum that was left is completed.
    pub fn handle(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        exception: Exception,
        out: &mut Effects,
    ) {
        self.call(ctx, view, out, |call| call.handle_any(skb, exception));
    }

    /// Does what is due: neighbour timers, announcements, fragments that are late, path MTUs that have expired.
    pub fn poll(&mut self, ctx: &mut SoftnetData, view: RouteSnapshot<'_>, out: &mut Effects) {
        self.call(ctx, view, out, |call| {
            call.expire_fragments();
            call.announce_again();
            call.slow.pmtu.poll(view.now);
            call.slow.conflicts.polled();
            call.probe_again();
            call.slow.neigh.poll(view.now, &mut call.slow.actions);
        });
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
        self.call(ctx, view, out, |_| ());
    }

    /// A neighbour was known to another process, which this one takes over from: it is stale here,
    /// so that packets go there at once, and it is verified when they do.
    pub fn take_over_neighbour(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        (dev, ip, mac): (u16, IpAddr, MacAddr),
        out: &mut Effects,
    ) {
        self.neigh.input(view.now, dev, ip, mac, Heard::Request, &mut self.actions);
        self.call(ctx, view, out, |_| ());
    }

    /// Lets go of a neighbour's MAC address that was fixed.
    pub fn remove_permanent(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        (dev, ip): (u16, IpAddr),
        out: &mut Effects,
    ) {
        self.neigh.remove_permanent(dev, ip, &mut self.actions);
        self.call(ctx, view, out, |_| ());
    }

    /// Forgets a neighbour, whatever is known of it: when it is needed it is asked for.
    pub fn forget(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        (dev, ip): (u16, IpAddr),
        out: &mut Effects,
    ) {
        self.neigh.forget(dev, ip, &mut self.actions);
        self.call(ctx, view, out, |_| ());
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
        self.probes.forget(dev);
        self.neigh.remove_device(dev, &mut self.actions);
        self.call(ctx, view, out, |_| ());
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

    /// Does `f`, and what the neighbour table then asks for.
    fn call<R>(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        out: &mut Effects,
        f: impl FnOnce(&mut Call<'_>) -> R,
    ) -> R {
        let mut call = Call { slow: self, ctx, view, out };
        let result = f(&mut call);
        call.act();
        result
    }
}

/// One call of the slow path: what it works with.
struct Call<'a> {
    slow: &'a mut SlowPath,
    ctx: &'a mut SoftnetData,
    view: RouteSnapshot<'a>,
    out: &'a mut Effects,
}

impl Call<'_> {
    /// Leads a received packet through `slot`, before it is known by which device it leaves, if
    /// any; `None` if it does not go on.
    fn received(&mut self, slot: Slot, skb: Skb) -> Option<Skb> {
        let passage = Passage::new(slot, Some(skb.head().dev), None);
        self.pass(passage, skb)
    }

    /// Leads a packet that was made here and is about to leave by `dev` through [`Slot::Output`]
    /// and [`Slot::Postrouting`].
    fn leaving(&mut self, dev: u16, skb: Skb) -> Option<Skb> {
        let skb = self.pass(Passage::new(Slot::Output, None, Some(dev)), skb)?;
        self.pass(Passage::new(Slot::Postrouting, None, Some(dev)), skb)
    }

    /// Leads a packet through a slot.
    fn pass(&mut self, passage: Passage, skb: Skb) -> Option<Skb> {
        let RouteSnapshot { now, tables } = self.view;
        HookContext::new(self.ctx, now, tables, &mut self.slow.made).pass(passage, skb)
    }

    /// Tells a trace what is done with `skb`, on `dev` if that is not the device in its head.
    fn trace(&mut self, skb: &Skb, dev: Option<u16>, step: Step) {
        self.ctx.trace(self.view.now, skb, (dev.unwrap_or(skb.head().dev), skb.head().queue), step);
    }

    fn handle_any(&mut self, skb: Skb, exception: Exception) {
        match gso::is_unfinished(&skb) {
            false => self.handle(skb, exception),
            true => self.handle_cut(skb, exception),
        }
    }

    fn handle(&mut self, mut skb: Skb, exception: Exception) {
        skb.head_mut().l3 = ETH_LEN as u16;
        self.trace(&skb, None, Step::Slow(exception));
        let done = match exception {
            Exception::Arp => self.arp(skb),
            Exception::Made => {
                self.output_made(skb);
                Ok(())
            }
            Exception::Fragment if is_ipv6(&skb) => self.gather::<Ipv6Addr>(skb),
            Exception::Fragment => self.gather::<Ipv4Addr>(skb),
            Exception::Rejected if is_ipv6(&skb) => Err(self.rejected::<Ipv6Addr>(skb)),
            Exception::Rejected => Err(self.rejected::<Ipv4Addr>(skb)),
            _ if is_ipv6(&skb) => self.receive::<Ipv6Addr>(skb, exception),
            _ => self.receive::<Ipv4Addr>(skb, exception),
        };
        if let Err((skb, reason)) = done {
            self.ctx.free(skb, reason);
        }
    }

    /// Handles each segment of an aggregate.
    fn handle_cut(&mut self, skb: Skb, exception: Exception) {
        match gso::segment(self.ctx, skb) {
            Ok(mut segments) => {
                while let Some(skb) = segments.pop_front() {
                    self.handle(skb, exception);
                }
            }
            Err((skb, reason)) => self.ctx.free(skb, reason),
        }
    }

    /// Carries out what the neighbour table asked for, and sends what hooks made. What the former
    /// leads to (an ICMP error whose way is unknown too) may ask for more; it ends because there is
    /// no error about an error. Hooks may go on making packets of packets that were made: for a few
    /// rounds.
    fn act(&mut self) {
        let mut rounds = 0;
        while !self.slow.actions.is_empty() || !self.slow.made.is_empty() {
            let actions: Vec<Action> = self.slow.actions.drain().collect();
            actions.into_iter().for_each(|action| self.carry_out(action));
            let made: Vec<_> = self.slow.made.drain().collect();
            rounds += usize::from(!made.is_empty());
            for (skb, exception) in made {
                match rounds {
                    ..=MADE_ROUNDS => self.handle_any(skb, exception),
                    _ => self.ctx.free(skb, DropReason::NetfilterDrop),
                }
            }
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Solicit { dev, target: IpAddr::V4(target), unicast_to } => {
                self.solicit(dev, target, unicast_to)
            }
            Action::Solicit { dev, target: IpAddr::V6(target), unicast_to } => {
                self.solicit(dev, target, unicast_to)
            }
            Action::Publish { dev, ip, told, .. } => {
                self.out.publish.extend(told.map(|mac| (dev, ip, mac)));
            }
            Action::Transmit { dev, mac, mut skbs } => {
                while let Some(skb) = skbs.pop_front() {
                    match self.view.iface(dev) {
                        Some(iface) => self.transmit(skb, dev, iface.mac, mac),
                        None => self.ctx.free_at(skb, dev, DropReason::DevReady),
                    }
                }
            }
            Action::Fail { dev, ip, reason, mut skbs } => {
                while let Some(skb) = skbs.pop_front() {
                    if reason == DropReason::NeighFailed {
                        self.unreachable(&skb, dev, ip);
                    }
                    self.ctx.free(skb, reason);
                }
            }
        }
    }

    /// `skb` was to leave by `dev`, where its neighbour `ip` does not answer: tells its sender.
    fn unreachable(&mut self, skb: &Skb, dev: u16, ip: IpAddr) {
        match ip {
            IpAddr::V4(_) => self.error::<Ipv4Addr>(skb, Ipv4Addr::HOST_UNREACHABLE),
            IpAddr::V6(_) => self.error::<Ipv6Addr>(skb, Ipv6Addr::HOST_UNREACHABLE),
        }
        let ours = skb.head().flags & Flags::ORIGINATED != 0;
        if let Some((flow, seq)) = of_segment(packet(skb), dev).filter(|_| ours) {
            self.out.told.push(Told { flow, seq, what: News::Error(Error::HostUnreachable) });
            return;
        }
        let sent = error::of_sent(packet(skb), dev).filter(|_| ours);
        self.out.errors.extend(sent.map(|flow| (flow, SocketError::HostUnreachable)));
    }
}

/// The IP packet in `skb`.
fn packet(skb: &Skb) -> &[u8] {
    skb.data().get(ETH_LEN..).unwrap_or_default()
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
pub(crate) mod world;
