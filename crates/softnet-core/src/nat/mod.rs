//! NAT: translation of IPv4 addresses and ports between a network inside and one outside (RFC 3022,
//! RFC 4787, RFC 5382, RFC 5508), of IPv6 to IPv4 (RFC 6146), and of IPv6 prefixes (RFC 6296).
//!
//! [`Nat`] is the hook of two slots. At `prerouting` all packets of a batch are looked up in
//! [`conntrack`](crate::conntrack), and destinations are translated: of replies, and of what comes
//! to a forwarded port. The head then says which connection a packet is of, so that `postrouting`
//! translates sources without looking it up again; what is of no connection opens one there, when
//! it is known by which device it leaves. One that a translated destination opens is not confirmed
//! until the packet has passed: of what rules drop on its way nothing is left, as with the kernel's
//! `nf_conntrack`. (What is forwarded to softnet itself is confirmed by its answer.) Mappings are endpoint-independent; what they let in is
//! [configured](Filtering). ICMP errors are translated as the packets they are about. Fragments are
//! [gathered](HookContext::gather) at `prerouting`, so that a datagram is translated as a whole,
//! whatever order they come in (RFC 4787 REQ-14).
//!
//! Hosts of IPv6 reach those of IPv4 by `nat64`; prefixes of IPv6 stand for one another by
//! `nptv6`.
//!
//! Called by any thread with a context; [`NatState`] outlives a change of rules. Invariants: no
//! packet leaves with a source that is to be hidden; a connection's two tuples stay what they were
//! until it expires.

mod blocks;
#[cfg(all(any(test, fuzzing), not(feature = "loom")))]
pub(crate) mod fuzz;
mod hosts;
mod icmp;
mod mapping;
mod nat64;
mod nptv6;
mod open;
mod ports;
mod rewrite;
mod rules;
mod state;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub use blocks::Blocks;
pub use mapping::MAX_ADDRESSES;
pub use nat64::{POOL6_LENGTHS, embedded};
pub use nptv6::{MAX_PREFIX, PrefixNat};
pub use rules::{Filtering, NatRules, OneToOne, PortForward, SourceNat, TooManyAddresses};
pub use state::{MappingCounts, NatState, seconds};

use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::conntrack::entry::{DNAT, Holds, SNAT, UNCONFIRMED};
use crate::conntrack::packet::{is_answer, tcp_flags};
use crate::conntrack::{Conntrack, Direction, Found, New, Refused, State, Tuple};
use crate::ip::hooks::{Crossing, Hook, HookContext, Layer, Passage, Slot};
use crate::ip::tables::Tables;
use crate::ip::v4::header::{Ipv4Header, protocol};
use crate::ip::{ETH_LEN, Family, is_group};
use crate::skb::{BATCH, Batch, DropReason, Flags, Head, Skb};
use mapping::{Endpoint, NoMapping, Number};
use open::Unknown;
use rewrite::{End, rewrite};
use rules::Compiled;
use state::Reserved;

/// Entries that are looked at for each batch, to see whether they expired: more than a batch can
/// make.
const SWEEP: usize = 2 * BATCH;

/// The hook of `prerouting` and `postrouting`, see the [module](self).
pub struct Nat {
    state: Arc<NatState>,
    rules: Compiled,
    /// Ports of `rules.reserved` that no mapping had, and that this one holds.
    claimed: Vec<Reserved>,
    _named: Names,
}

impl Drop for Nat {
    fn drop(&mut self) {
        self.state.unclaim(&self.claimed);
    }
}

/// Numbers of external addresses that rules name, given back in the end.
struct Names {
    state: Arc<NatState>,
    numbers: Vec<Number>,
}

impl Drop for Names {
    fn drop(&mut self) {
        self.numbers.iter().for_each(|number| self.state.mappings.unname(*number));
    }
}

/// Packets that do not go on as they are, and what becomes of them.
struct Taken {
    which: u64,
    /// Those that wait for the other fragments of their datagrams.
    gathered: u64,
    /// Those that come again, each of their segments by itself.
    again: u64,
    /// Those that are cut to leave as IPv6.
    cut: u64,
    reasons: [DropReason; BATCH],
}

impl Taken {
    fn none() -> Self {
        Taken { which: 0, gathered: 0, again: 0, cut: 0, reasons: [DropReason::NetfilterDrop; BATCH] }
    }

    /// Notes what became of packet `at`.
    #[inline(always)]
    fn note(&mut self, at: usize, done: Result<(), DropReason>) {
        if let Err(reason) = done {
            self.reasons[at % BATCH] = reason;
            self.which |= 1 << at;
        }
    }

    fn has(&self, at: usize) -> bool {
        self.which >> at & 1 == 1
    }

    fn gather(&mut self, at: usize) {
        self.which |= 1 << at;
        self.gathered |= 1 << at;
    }

    fn again(&mut self, at: usize) {
        self.which |= 1 << at;
        self.again |= 1 << at;
    }

    fn cut(&mut self, at: usize) {
        self.which |= 1 << at;
        self.cut |= 1 << at;
    }
}

/// Whether `batch`, of one family, is of IPv6.
#[inline(always)]
fn is_v6(batch: &Batch) -> bool {
    let first = batch.as_slice().first().and_then(|skb| skb.data().get(ETH_LEN));
    first.is_some_and(|first| first >> 4 == 6)
}

/// Whether it is a fragment of an IPv4 datagram to one host.
#[cold]
fn is_fragment(skb: &Skb) -> bool {
    let ip = skb.data().get(ETH_LEN..).and_then(Ipv4Header::new);
    let to_one = skb.data().first_chunk().is_some_and(|mac| !is_group(mac));
    to_one && ip.is_some_and(|ip| ip.version() == 4 && ip.is_fragment())
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

impl Nat {
    /// By these rules, with the connections that `state` has.
    pub fn new(state: Arc<NatState>, rules: &NatRules) -> Result<Self, TooManyAddresses> {
        let mut named = Names { state: state.clone(), numbers: Vec::new() };
        let rules = Compiled::new(rules, |addr| {
            let number = named.state.mappings.name(addr)?;
            named.numbers.push(number);
            Some(number)
        })?;
        if rules.pool6.is_some() {
            state.translate_hosts6();
        }
        let claimed = state.claim(&rules.reserved);
        Ok(Nat { state, rules, claimed, _named: named })
    }

    /// Puts `self` in the slots of `tables` that it has something to do in, in place of the NAT that
    /// stands there; what else stands there stays. What is open goes on, until
    /// [`end_others`](Self::end_others).
    pub fn install(self: Arc<Self>, tables: &mut Tables) {
        Self::uninstall(tables);
        let hooks = &mut tables.hooks;
        for slot in [Slot::Prerouting, Slot::Postrouting] {
            hooks.set_layer(slot, Layer::Nat, Some(self.clone()));
        }
        hooks.crossing =
            self.rules.pool6.map(|pool| Crossing { v4: nat64::hosts::network(), v6: pool.prefix() });
        if hooks.crossing.is_some() {
            hooks.set_layer(Slot::Output, Layer::Nat, Some(self));
        }
    }

    /// Takes the NAT that stands in the slots of `tables` out of them.
    pub fn uninstall(tables: &mut Tables) {
        tables.hooks.clear(Layer::Nat);
        tables.hooks.crossing = None;
    }

    /// Ends, at second `now`, the connections that these rules do not allow; the others go on. Returns
    /// how many there were. To be called once no thread goes by the tables of earlier rules any more,
    /// or those may make others.
    pub fn end_others(&self, now: u32) -> u64 {
        let NatState { conntrack, mappings, .. } = &*self.state;
        let mapped = |protocol, external| {
            let held = mappings.of_external(protocol, external)?;
            mappings.release(held.index);
            Some(held.other)
        };
        let allows = |tuples: &[Tuple; 2], flags| {
            // Of IPv6 nothing is translated by a connection, and its tuples have no addresses.
            tuples[0].is_ipv6() || self.rules.allows(tuples, flags, mapped)
        };
        conntrack.end_where(now, |tuples, flags| !allows(tuples, flags))
    }

    /// What outlives it.
    pub fn state(&self) -> &Arc<NatState> {
        &self.state
    }

    // Not inlined: its loops have the registers to themselves.
    #[inline(never)]
    fn prerouting(&self, cx: &mut HookContext<'_>, now: u32, input: Option<u16>, batch: &mut Batch) {
        let NatState { conntrack, .. } = &*self.state;
        self.state.sweep(now, SWEEP);
        let mut packets = [(Tuple::default(), 0); BATCH];
        for (skb, packet) in batch.as_slice().iter().zip(&mut packets) {
            *packet = (Tuple::of(skb).unwrap_or_default(), tcp_flags(skb));
        }
        let mut taken = Taken::none();
        if self.rules.pool6.is_some() {
            self.refuse_stand_ins(batch, &mut packets, &mut taken);
        }
        let mut all = [None; BATCH];
        conntrack.find_batch(now, &packets[..batch.len()], &mut all);
        if self.rules.pool6.is_some() {
            self.take_lists_apart(batch, &mut all, &mut taken);
        }
        let looked_up = packets.iter().zip(&all);
        for (at, (skb, ((tuple, flags), found))) in batch.as_mut_slice().iter_mut().zip(looked_up).enumerate()
        {
            match *found {
                Some(found) => {
                    let (head, data) = skb.parts_mut();
                    head.conntrack = found.word();
                    if translates(found, End::Destination) {
                        cx.redirect();
                        taken.note(at, Self::translate(conntrack, (head, data), found, End::Destination));
                    }
                }
                None if taken.has(at) => {}
                None if *tuple == Tuple::default() && is_fragment(skb) => taken.gather(at),
                None => {
                    cx.redirect();
                    let unknown = Unknown { tuple: *tuple, flags: *flags, now };
                    taken.note(at, self.unknown_in(skb, unknown, input, cx.tables));
                }
            }
        }
        if self.rules.pool6.is_some() {
            cx.redirect();
            self.cross_to_v6(now, batch, &mut taken);
        }
        self.take_out(taken, cx, now, batch);
    }

    /// Packets of IPv6 that came by device `input`.
    #[inline(never)]
    fn prerouting6(&self, cx: &mut HookContext<'_>, now: u32, input: Option<u16>, batch: &mut Batch) {
        cx.redirect();
        self.state.sweep(now, SWEEP);
        let mut taken = Taken::none();
        if !self.rules.pairs.is_empty() {
            for (at, skb) in batch.as_mut_slice().iter_mut().enumerate() {
                match nptv6::came(&self.rules.pairs, input, skb) {
                    Ok(true) => skb.head_mut().flags |= Flags::TRANSLATED,
                    Ok(false) => {}
                    Err(reason) => taken.note(at, Err(reason)),
                }
            }
        }
        self.cross_to_v4(now, batch, &mut taken);
        self.take_out(taken, cx, now, batch);
    }

    /// Takes out of `batch` what does not go on.
    #[inline(always)]
    fn take_out(&self, taken: Taken, cx: &mut HookContext<'_>, now: u32, batch: &mut Batch) {
        if taken.which != 0 {
            self.take_out_some(&taken, cx, now, batch);
        }
    }

    #[cold]
    #[inline(never)]
    fn take_out_some(&self, taken: &Taken, cx: &mut HookContext<'_>, now: u32, batch: &mut Batch) {
        for (at, skb) in std::mem::take(batch).drain().enumerate() {
            let is = |mask: u64| mask >> at & 1 == 1;
            if !is(taken.which) {
                // A batch has as many places.
                batch.push(skb).map_err(|skb| cx.ctx.free(skb, DropReason::NetfilterDrop)).ok();
            } else if is(taken.gathered) {
                cx.gather(skb);
            } else if is(taken.again) {
                cx.again(skb);
            } else if is(taken.cut)
                && let Some(nat64) = self.nat64(now)
            {
                nat64.cut(cx, skb);
            } else {
                cx.ctx.free(skb, taken.reasons[at % BATCH]);
            }
        }
    }

    #[inline(never)]
    fn postrouting(&self, cx: &mut HookContext<'_>, now: u32, passage: Passage, batch: &mut Batch) {
        let NatState { conntrack, .. } = &*self.state;
        let mut taken = Taken::none();
        let hides = self.rules.source(passage.output).is_some();
        for (at, skb) in batch.as_mut_slice().iter_mut().enumerate() {
            let (head, data) = skb.parts_mut();
            let found = conntrack.of_word(head.conntrack);
            if let Some(found) = found
                && found.life.flags() & UNCONFIRMED != 0
            {
                self.passed(now, passage, found);
            }
            let done = match found {
                Some(found) if translates(found, End::Source) => match (data.get(ETH_LEN), head.protocol) {
                    // It crossed from the connection that its head names, and is translated.
                    (Some(first), _) if first >> 4 == 6 => Ok(()),
                    (_, protocol::ICMP) => self.translate_icmp(skb, found),
                    _ => Self::translate(conntrack, (head, data), found, End::Source),
                },
                // Of a connection whose packets went another way.
                Some(found) if hides && found.direction() == Direction::Original => {
                    self.plain_out(skb, found, now, passage)
                }
                Some(_) => Ok(()),
                None => self.unknown_out(skb, now, passage),
            };
            taken.note(at, done);
        }
        if !self.rules.pairs.is_empty() {
            for (at, skb) in batch.as_mut_slice().iter_mut().enumerate() {
                if !taken.has(at) {
                    taken.note(at, nptv6::leaves(&self.rules.pairs, passage.output, skb));
                }
            }
        }
        self.take_out(taken, cx, now, batch);
    }

    /// A packet of a connection that is not confirmed has passed. What is made here is an ICMP error
    /// about it.
    #[cold]
    fn passed(&self, now: u32, passage: Passage, found: Found) {
        if passage.input.is_some() {
            self.state.conntrack.confirm(now, found);
        }
    }

    /// Translates the endpoint at `end` of a packet that has a tuple.
    #[inline(always)]
    fn translate(
        conntrack: &Conntrack,
        (head, data): (&mut Head, &mut [u8]),
        found: Found,
        end: End,
    ) -> Result<(), DropReason> {
        let peer = conntrack.peer(found).ok_or(DropReason::ConntrackInvalid)?;
        let new = match end {
            End::Source => peer.dst(),
            End::Destination => {
                head.flags |= Flags::TRANSLATED;
                peer.src()
            }
        };
        rewrite((head, data), end, new);
        Ok(())
    }

    /// Translates the source of a packet whose head says what it is of.
    #[inline(always)]
    fn translate_source(&self, skb: &mut Skb, found: Found) -> Result<(), DropReason> {
        match skb.head().protocol {
            protocol::ICMP => self.translate_icmp(skb, found),
            _ => Self::translate(self.state.conntrack(), skb.parts_mut(), found, End::Source),
        }
    }

    /// The same of ICMP: a query, or an error.
    #[inline(never)]
    fn translate_icmp(&self, skb: &mut Skb, found: Found) -> Result<(), DropReason> {
        match Tuple::of(skb) {
            Some(_) => Self::translate(self.state.conntrack(), skb.parts_mut(), found, End::Source),
            None => icmp::outward(&self.state.conntrack, skb, found),
        }
    }
}

impl Hook for Nat {
    fn run(&self, cx: &mut HookContext<'_>, passage: Passage, batch: &mut Batch) {
        let now = seconds(cx.now);
        match passage.slot {
            Slot::Prerouting if is_v6(batch) => self.prerouting6(cx, now, passage.input, batch),
            Slot::Prerouting => self.prerouting(cx, now, passage.input, batch),
            Slot::Output => self.made(cx, now, batch),
            Slot::Postrouting => self.postrouting(cx, now, passage, batch),
            _ => {}
        }
    }
}
