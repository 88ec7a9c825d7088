//! NAT44: translation of IPv4 addresses and ports between a network inside and one outside (RFC
//! 3022, RFC 4787, RFC 5382, RFC 5508).
//!
//! [`Nat`] is the hook of two slots. At `prerouting` all packets of a batch are looked up in
//! [`conntrack`](crate::conntrack), and destinations are translated: of replies, and of what comes
//! to a forwarded port. The head then says which connection a packet is of, so that `postrouting`
//! translates sources without looking it up again; what is of no connection opens one there, when
//! it is known by which device it leaves. Mappings are endpoint-independent; what they let in is
//! [configured](Filtering). ICMP errors are translated as the packets they are about.
//!
//! Called by any thread with a context; [`NatState`] outlives a change of rules. Invariants: no
//! packet leaves with a source that is to be hidden; a connection's two tuples stay what they were
//! until it expires.

mod icmp;
mod mapping;
mod ports;
mod rewrite;
mod rules;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub use mapping::MAX_ADDRESSES;
pub use rules::{Filtering, NatRules, OneToOne, PortForward, SourceNat, TooManyAddresses};

use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::SoftnetData;
use crate::conntrack::entry::{DNAT, SNAT};
use crate::conntrack::{Conntrack, Direction, Found, New, Refused, State, Timeouts, Tuple};
use crate::fold::FoldKey;
use crate::ip::hooks::{Hook, HookContext, Passage, Slot};
use crate::ip::v4::header::{Ipv4Header, protocol};
use crate::ip::{ETH_LEN, Family};
use crate::siphash::SipKey;
use crate::skb::{BATCH, Batch, DropReason, Flags, Skb};
use crate::sync::{AtomicU64, Ordering};
use mapping::{Endpoint, Mappings, NoMapping};
use rewrite::{End, rewrite};
use rules::Compiled;

/// Entries that are looked at for each batch, to see whether they expired: more than a batch can
/// make.
const SWEEP: usize = 2 * BATCH;

/// Connections, mappings and ports: what outlives a change of rules.
pub struct NatState {
    conntrack: Arc<Conntrack>,
    mappings: Mappings,
    random: SipKey,
    drawn: AtomicU64,
}

/// What was counted of mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingCounts {
    /// Mappings that there are.
    pub mappings: u64,
    /// Times that no port was free.
    pub exhausted: u64,
}

impl NatState {
    /// For `capacity` connections. The `key` is secret and random: it says where packets' tuples
    /// lie in tables, and which ports are chosen.
    pub fn new(capacity: u32, key: [u64; 4], timeouts: &Timeouts) -> Self {
        let conntrack = Conntrack::new(capacity, FoldKey::new(derived(key, 0)), timeouts);
        Self::on(conntrack.into(), key)
    }

    /// With `conntrack` for its connections, which others may use, too; its key is another one.
    pub fn on(conntrack: Arc<Conntrack>, key: [u64; 4]) -> Self {
        let derived = |n| derived(key, n);
        let mappings = Mappings::new(conntrack.counts().capacity, FoldKey::new(derived(1)));
        NatState { conntrack, mappings, random: SipKey::new(derived(2)), drawn: AtomicU64::new(0) }
    }

    /// The connections.
    pub fn conntrack(&self) -> &Arc<Conntrack> {
        &self.conntrack
    }

    /// What was counted of mappings.
    pub fn mapping_counts(&self) -> MappingCounts {
        let (mappings, exhausted) = self.mappings.counts();
        MappingCounts { mappings, exhausted }
    }

    /// Ports of `protocol` in use of an external address; `None` if it never was one.
    pub fn ports_in_use(&self, addr: Ipv4Addr, protocol: u8) -> Option<u32> {
        let mut all = (0..=u8::MAX).map_while(|number| self.mappings.ports(number));
        all.find(|set| set.addr == addr.to_bits()).map(|set| set.in_use(protocol))
    }

    /// Bytes that connections and mappings take, all in; external addresses come on top, with 24
    /// KiB each.
    pub fn bytes(&self) -> usize {
        self.conntrack.bytes() + self.mappings.bytes()
    }

    /// Looks at up to `max` entries, and frees those that expired. Returns how many it looked at.
    #[inline]
    pub fn sweep(&self, now: u32, max: usize) -> usize {
        self.conntrack.sweep_with(now, max, |mapping| self.mappings.release(mapping))
    }

    fn draw(&self) -> u64 {
        self.random.hash(&[self.drawn.fetch_add(1, Ordering::Relaxed)])
    }
}

/// Keys of which one does not tell the others. Whatever `key` is: the fast hash needs keys without
/// pattern.
fn derived([a, b, c, d]: [u64; 4], n: u64) -> [u64; 2] {
    [2 * n, 2 * n + 1].map(|n| SipKey::new([a, b]).hash(&[c, d, n]))
}

/// The second of the stack's clock that `now`, in ns, is in.
pub fn seconds(now: u64) -> u32 {
    (now / 1_000_000_000) as u32
}

/// The hook of `prerouting` and `postrouting`, see the [module](self).
pub struct Nat {
    state: Arc<NatState>,
    rules: Compiled,
    /// Ports of `rules.reserved` that were free, and are this one's to give back.
    claimed: Vec<(u8, u8, u16)>,
}

impl Drop for Nat {
    fn drop(&mut self) {
        for (number, protocol, port) in &self.claimed {
            if let Some(ports) = self.state.mappings.ports(*number) {
                ports.release(*protocol, *port);
            }
        }
    }
}

/// Packets that do not go on, and why.
struct Dropped {
    which: u64,
    reasons: [DropReason; BATCH],
}

impl Dropped {
    fn none() -> Self {
        Dropped { which: 0, reasons: [DropReason::NetfilterDrop; BATCH] }
    }

    /// Notes what became of packet `at`.
    #[inline(always)]
    fn note(&mut self, at: usize, done: Result<(), DropReason>) {
        if let Err(reason) = done {
            self.reasons[at % BATCH] = reason;
            self.which |= 1 << at;
        }
    }

    /// Takes them out of `batch`.
    #[inline(always)]
    fn take_out(self, ctx: &mut SoftnetData, batch: &mut Batch) {
        if self.which != 0 {
            self.take_out_some(ctx, batch);
        }
    }

    #[cold]
    fn take_out_some(self, ctx: &mut SoftnetData, batch: &mut Batch) {
        let mut some = std::mem::take(batch);
        for (at, skb) in some.drain().enumerate() {
            let left = match self.which >> at & 1 {
                0 => batch.push(skb),
                _ => Err(skb),
            };
            if let Err(skb) = left {
                ctx.free(skb, self.reasons[at % BATCH]);
            }
        }
    }
}

/// Whether packets found in a connection have the endpoint at `end` translated.
#[inline(always)]
fn translates(found: Found, end: End) -> bool {
    let flag = match (found.direction(), end) {
        (Direction::Original, End::Source) | (Direction::Reply, End::Destination) => SNAT,
        (Direction::Original, End::Destination) | (Direction::Reply, End::Source) => DNAT,
    };
    found.life.flags() & flag != 0
}

/// TCP's flags in a packet that has a tuple; 0 of another protocol.
#[inline(always)]
fn tcp_flags(skb: &Skb) -> u8 {
    match skb.head().protocol {
        protocol::TCP => skb.data().get(usize::from(skb.head().l4) + 13).copied().unwrap_or(0),
        _ => 0,
    }
}

/// Why a packet that would open a connection goes no further.
fn refused(why: Refused) -> DropReason {
    match why {
        Refused::Full => DropReason::ConntrackFull,
        Refused::Busy => DropReason::ConntrackBusy,
    }
}

/// A packet of which no connection is known.
struct Unknown {
    tuple: Tuple,
    flags: u8,
    now: u32,
}

impl Nat {
    /// By these rules, with the connections that `state` has.
    pub fn new(state: Arc<NatState>, rules: &NatRules) -> Result<Self, TooManyAddresses> {
        let rules = Compiled::new(rules, &state.mappings)?;
        let claim = |(number, protocol, port): &(u8, u8, u16)| {
            state.mappings.ports(*number).is_some_and(|ports| ports.claim(*protocol, *port))
        };
        let claimed = rules.reserved.iter().copied().filter(claim).collect();
        Ok(Nat { state, rules, claimed })
    }

    /// What outlives it.
    pub fn state(&self) -> &Arc<NatState> {
        &self.state
    }

    // Not inlined: its loops have the registers to themselves.
    #[inline(never)]
    fn prerouting(&self, ctx: &mut SoftnetData, now: u32, input: Option<u16>, batch: &mut Batch) {
        let NatState { conntrack, .. } = &*self.state;
        self.state.sweep(now, SWEEP);
        let mut packets = [(Tuple::default(), 0); BATCH];
        for (skb, packet) in batch.as_slice().iter().zip(&mut packets) {
            *packet = (Tuple::of(skb).unwrap_or_default(), tcp_flags(skb));
        }
        let mut all = [None; BATCH];
        conntrack.find_batch(now, &packets[..batch.len()], &mut all);
        let mut dropped = Dropped::none();
        let looked = packets.iter().zip(all);
        for (at, (skb, ((tuple, flags), found))) in batch.as_mut_slice().iter_mut().zip(looked).enumerate() {
            match found {
                Some(found) => {
                    skb.head_mut().conntrack = found.word();
                    if translates(found, End::Destination) {
                        dropped.note(at, self.translate(skb, tuple, found, End::Destination));
                    }
                }
                None => {
                    let unknown = Unknown { tuple: *tuple, flags: *flags, now };
                    dropped.note(at, self.unknown_in(skb, unknown, input));
                }
            }
        }
        dropped.take_out(ctx, batch);
    }

    #[inline(never)]
    fn postrouting(&self, ctx: &mut SoftnetData, now: u32, passage: Passage, batch: &mut Batch) {
        let NatState { conntrack, .. } = &*self.state;
        let mut dropped = Dropped::none();
        for (at, skb) in batch.as_mut_slice().iter_mut().enumerate() {
            let done = match conntrack.of_word(skb.head().conntrack) {
                Some(found) if !translates(found, End::Source) => Ok(()),
                Some(found) => self.translate_source(skb, found),
                None => self.unknown_out(skb, now, passage),
            };
            dropped.note(at, done);
        }
        dropped.take_out(ctx, batch);
    }

    /// Translates the endpoint at `end` of a packet with `tuple`.
    #[inline(always)]
    fn translate(&self, skb: &mut Skb, tuple: &Tuple, found: Found, end: End) -> Result<(), DropReason> {
        let peer = self.state.conntrack.peer(found).ok_or(DropReason::ConntrackInvalid)?;
        let new = match end {
            End::Source => peer.dst(),
            End::Destination => {
                skb.head_mut().flags |= Flags::TRANSLATED;
                peer.src()
            }
        };
        rewrite(skb, tuple, end, new);
        Ok(())
    }

    /// Translates the source of a packet whose head says what it is of.
    #[inline(always)]
    fn translate_source(&self, skb: &mut Skb, found: Found) -> Result<(), DropReason> {
        let NatState { conntrack, .. } = &*self.state;
        if skb.head().protocol == protocol::ICMP && Tuple::of(skb).is_none() {
            return icmp::outward(conntrack, skb, found);
        }
        let [own, peer] = conntrack.pair(found).ok_or(DropReason::ConntrackInvalid)?;
        rewrite(skb, &own, End::Source, peer.dst());
        Ok(())
    }

    /// A packet that came by device `input`: may be for one inside, or an ICMP error.
    #[cold]
    #[inline(never)]
    fn unknown_in(&self, skb: &mut Skb, packet: Unknown, input: Option<u16>) -> Result<(), DropReason> {
        let NatState { conntrack, mappings, .. } = &*self.state;
        let Unknown { tuple, flags, now } = packet;
        skb.head_mut().conntrack = 0;
        if tuple == Tuple::default() {
            return icmp::inward(conntrack, skb, now);
        }
        let Some(device) = self.rules.external(tuple.dst().0) else { return Ok(()) };
        let Some(state) = State::first(tuple.protocol(), flags) else { return Ok(()) };
        let _turn = conntrack.own(&tuple).map_err(refused)?;
        // One before it in the batch may have opened it.
        if let Some(found) = conntrack.find(now, &tuple, flags) {
            return self.found_in(skb, &tuple, found);
        }
        // From inside, to an endpoint outside that stands for one inside (RFC 4787 REQ-9).
        let inside =
            input.is_some() && device.is_some() && device != input && self.rules.source(input).is_none();
        let mapping;
        let target = match self.rules.inward(tuple.protocol(), tuple.dst()) {
            Some(target) => {
                mapping = None;
                target
            }
            None => {
                let Some(held) = mappings.of_external(tuple.protocol(), tuple.dst()) else { return Ok(()) };
                mapping = Some(held.index);
                if held.other == tuple.dst() || !(inside || self.rules.endpoint_independent) {
                    mappings.release(held.index);
                    return Ok(());
                }
                held.other
            }
        };
        let release = |mapping: Option<u32>| mapping.into_iter().for_each(|index| mappings.release(index));
        let mut new = New { flags: DNAT, ..New::plain(tuple, state) };
        let mut source = tuple.src();
        if inside {
            // The connection holds the mapping of its source. That of its destination is held by
            // the other's connections, or by no one else: then it ends with them.
            release(mapping);
            (source, new.mapping) = self.hide(device.unwrap_or_default(), tuple.protocol(), source)?;
            new.flags |= SNAT;
        } else if let Some(index) = mapping {
            new.mapping = index;
        }
        new.tuples[1] = Tuple::new(tuple.protocol(), target, source);
        let found = self.insert(now, &new)?;
        self.found_in(skb, &tuple, found)
    }

    fn found_in(&self, skb: &mut Skb, tuple: &Tuple, found: Found) -> Result<(), DropReason> {
        skb.head_mut().conntrack = found.word();
        match translates(found, End::Destination) {
            true => self.translate(skb, tuple, found, End::Destination),
            false => Ok(()),
        }
    }

    /// A packet that leaves, of no connection so far: opens one, if its source is to be hidden, or
    /// its answers are not to be taken for something new.
    #[cold]
    #[inline(never)]
    fn unknown_out(&self, skb: &mut Skb, now: u32, passage: Passage) -> Result<(), DropReason> {
        let NatState { conntrack, .. } = &*self.state;
        let hides = self.rules.source(passage.output).is_some();
        let Some((src, _)) = skb.data().get(ETH_LEN..).and_then(Ipv4Addr::ends) else { return Ok(()) };
        if skb.data().get(ETH_LEN).is_none_or(|first| first >> 4 != 4) {
            return Ok(());
        }
        // What is sent here may say what it is of.
        let own = passage.input.is_none() || self.rules.external(src.to_bits()).is_some();
        let Some(tuple) = Tuple::of(skb) else {
            if let Some(found) = icmp::about(conntrack, skb, now) {
                return if translates(found, End::Source) {
                    icmp::outward(conntrack, skb, found)
                } else {
                    Ok(())
                };
            }
            let fragment =
                skb.data().get(ETH_LEN..).and_then(Ipv4Header::new).is_some_and(|ip| ip.is_fragment());
            return match (hides && !own, fragment) {
                (false, _) => Ok(()),
                (true, true) => Err(DropReason::NatFragment),
                (true, false) => Err(DropReason::ConntrackInvalid),
            };
        };
        if !hides && self.rules.source(passage.input).is_none() {
            return Ok(());
        }
        let flags = tcp_flags(skb);
        let _turn = conntrack.own(&tuple).map_err(refused)?;
        // One before it in the batch may have opened it.
        if let Some(found) = conntrack.find(now, &tuple, flags) {
            skb.head_mut().conntrack = found.word();
            return match translates(found, End::Source) {
                true => self.translate(skb, &tuple, found, End::Source),
                false => Ok(()),
            };
        }
        let Some(state) = State::first(tuple.protocol(), flags).filter(|_| !icmp::is_answer(skb)) else {
            return if hides && !own { Err(DropReason::ConntrackInvalid) } else { Ok(()) };
        };
        let mut new = New::plain(tuple, state);
        if let Some(dev) = passage.output.filter(|_| hides) {
            let (source, mapping) = self.hide(dev, tuple.protocol(), tuple.src())?;
            new.mapping = mapping;
            new.tuples[1] = Tuple::new(tuple.protocol(), tuple.dst(), source);
            new.flags = if source == tuple.src() { 0 } else { SNAT };
        }
        let found = self.insert(now, &new)?;
        skb.head_mut().conntrack = found.word();
        match new.flags {
            0 => Ok(()),
            _ => self.translate(skb, &tuple, found, End::Source),
        }
    }

    /// The external endpoint behind device `dev` that stands for `source`, and the mapping that it
    /// has of it.
    fn hide(&self, dev: u16, protocol: u8, source: Endpoint) -> Result<(Endpoint, u32), DropReason> {
        if let Some(external) = self.rules.outward(dev, source.0) {
            return Ok(((external, source.1), NONE));
        }
        let addresses = self.rules.source(Some(dev)).unwrap_or_default();
        let held = self.state.mappings.of_internal(protocol, source, addresses, || self.state.draw());
        match held {
            Ok(held) => Ok((held.other, held.index)),
            Err(NoMapping::Ports) => Err(DropReason::NatPorts),
            Err(NoMapping::Full) => Err(DropReason::ConntrackFull),
        }
    }

    /// Makes a connection, which holds `new.mapping` from then on.
    fn insert(&self, now: u32, new: &New) -> Result<Found, DropReason> {
        self.state.conntrack.insert(now, new).map_err(|why| {
            if new.mapping != NONE {
                self.state.mappings.release(new.mapping);
            }
            refused(why)
        })
    }
}

/// No mapping.
const NONE: u32 = crate::conntrack::entry::NIL;

impl Hook for Nat {
    fn run(&self, cx: &mut HookContext<'_>, passage: Passage, batch: &mut Batch) {
        let now = seconds(cx.now);
        match passage.slot {
            Slot::Prerouting => self.prerouting(cx.ctx, now, passage.input, batch),
            Slot::Postrouting => self.postrouting(cx.ctx, now, passage, batch),
            _ => {}
        }
    }
}
