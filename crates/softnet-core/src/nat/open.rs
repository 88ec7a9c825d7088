//! Packets of no connection so far: whether they open one, and what is translated in it.
//!
//! Called by the hooks of [`nat`](super). Invariant: what a connection holds of mappings and counts
//! is let go of when it ends, or at once if it can't be made.

use super::hosts::NotCounted;
use super::nat64::{self, is_stand_in};
use super::rewrite::End;
use super::state::OF_V6;
use super::*;
use crate::ip::adjacency::Kind;
use crate::ip::tables::Tables;

/// A packet of which no connection is known.
pub(super) struct Unknown {
    pub(super) tuple: Tuple,
    pub(super) flags: u8,
    pub(super) now: u32,
}

/// Why a packet that would open a connection goes no further.
fn refused(why: Refused) -> DropReason {
    match why {
        Refused::Full => DropReason::ConntrackFull,
        Refused::Busy => DropReason::ConntrackBusy,
    }
}

impl Nat {
    /// A packet that came by device `input`: may be for one inside, or an ICMP error.
    #[cold]
    #[inline(never)]
    pub(super) fn unknown_in(
        &self,
        skb: &mut Skb,
        packet: Unknown,
        input: Option<u16>,
        tables: &Tables,
    ) -> Result<(), DropReason> {
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
            return self.found_in(skb, found);
        }
        // From inside, to an endpoint outside that stands for one inside (RFC 4787 REQ-9).
        let inside =
            input.is_some() && device.is_some() && device != input && self.rules.source(input).is_none();
        let mut holds = Holds::NOTHING;
        let target = match self.rules.inward(tuple.protocol(), tuple.dst()) {
            Some(target) => target,
            None => {
                let Some(held) = mappings.of_external(tuple.protocol(), tuple.dst()) else { return Ok(()) };
                holds.mapping = held.index;
                if held.other == tuple.dst() || !(inside || self.rules.endpoint_independent) {
                    self.state.release(holds);
                    return Ok(());
                }
                held.other
            }
        };
        // What is for sockets here passes no slot that would confirm it.
        let here = tables.v4.next_hop(tables.v4.fib.lookup(target.0)).kind == Kind::Local;
        let unconfirmed = if here { 0 } else { UNCONFIRMED };
        let mut new = New { flags: DNAT | unconfirmed, ..New::plain(tuple, state) };
        let mut source = tuple.src();
        if inside {
            // The connection holds the mapping of its source. That of its destination is held by
            // the other's connections, or by no one else: then it ends with them.
            self.state.release(holds);
            (source, holds) = self.hide(device.unwrap_or_default(), tuple.protocol(), source, false)?;
            new.flags |= SNAT;
        }
        new.holds = holds;
        new.tuples[1] = Tuple::new(tuple.protocol(), target, source);
        let found = self.insert(now, &new)?;
        self.found_in(skb, found)
    }

    fn found_in(&self, skb: &mut Skb, found: Found) -> Result<(), DropReason> {
        skb.head_mut().conntrack = found.word();
        match translates(found, End::Destination) {
            true => Self::translate(self.state.conntrack(), skb.parts_mut(), found, End::Destination),
            false => Ok(()),
        }
    }

    /// A packet that leaves, of no connection so far: opens one, if its source is to be hidden, or
    /// its answers are not to be taken for something new.
    #[cold]
    #[inline(never)]
    pub(super) fn unknown_out(&self, skb: &mut Skb, now: u32, passage: Passage) -> Result<(), DropReason> {
        let NatState { conntrack, .. } = &*self.state;
        let hides = self.rules.source(passage.output).is_some();
        let Some((src, _)) = skb.data().get(ETH_LEN..).and_then(Ipv4Addr::ends) else { return Ok(()) };
        if skb.data().get(ETH_LEN).is_none_or(|first| first >> 4 != 4) {
            return Ok(());
        }
        // That it would be seen is no use to any host.
        let stands_in = self.rules.pool6.is_some() && is_stand_in(src.to_bits());
        if stands_in && !hides {
            return Err(DropReason::Nat64);
        }
        // What is sent here may say what it is of.
        let own = passage.input.is_none() || self.rules.external(src.to_bits()).is_some();
        let Some(tuple) = Tuple::of(skb) else {
            if let Some(found) = conntrack.about(now, skb) {
                return match translates(found, End::Source) {
                    true => icmp::outward(conntrack, skb, found),
                    false if stands_in => Err(DropReason::Nat64),
                    false => Ok(()),
                };
            }
            let fragment =
                skb.data().get(ETH_LEN..).and_then(Ipv4Header::new).is_some_and(|ip| ip.is_fragment());
            return match (stands_in || hides && !own, fragment) {
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
                true => Self::translate(conntrack, skb.parts_mut(), found, End::Source),
                false => Ok(()),
            };
        }
        let Some(state) = State::first(tuple.protocol(), flags).filter(|_| !is_answer(skb)) else {
            return if stands_in || hides && !own { Err(DropReason::ConntrackInvalid) } else { Ok(()) };
        };
        let mut new = New::plain(tuple, state);
        if let Some(dev) = passage.output.filter(|_| hides) {
            let (source, holds) = self.hide(dev, tuple.protocol(), tuple.src(), passage.input.is_none())?;
            new.holds = holds;
            new.tuples[1] = Tuple::new(tuple.protocol(), tuple.dst(), source);
            new.flags = if source == tuple.src() { 0 } else { SNAT };
        }
        let found = self.insert(now, &new)?;
        skb.head_mut().conntrack = found.word();
        match new.flags {
            0 => Ok(()),
            _ => Self::translate(conntrack, skb.parts_mut(), found, End::Source),
        }
    }

    /// A packet of a connection that hides no source, from the side that opened it, which leaves by a
    /// device that hides sources: if its route changed, the connection is ended, and another one is
    /// opened.
    #[cold]
    #[inline(never)]
    pub(super) fn plain_out(
        &self,
        skb: &mut Skb,
        found: Found,
        now: u32,
        passage: Passage,
    ) -> Result<(), DropReason> {
        let Some((src, _)) = skb.data().get(ETH_LEN..).and_then(Ipv4Addr::ends) else { return Ok(()) };
        let is_v4 = skb.data().get(ETH_LEN).is_some_and(|first| first >> 4 == 4);
        // Of what is sent to a forwarded port the destination is translated: its answers would not be known
        // by another connection.
        let plain = found.life.flags() & (SNAT | DNAT) == 0;
        if !is_v4 || !plain || self.rules.external(src.to_bits()).is_some() {
            return Ok(());
        }
        // So are those of softnet itself, which leave as they are.
        let made = passage.input.is_none();
        if made && self.rules.source(passage.output).is_some_and(|pool| pool.has_no_block(src.to_bits())) {
            return Ok(());
        }
        // An error is of the connection, and opens none.
        if Tuple::of(skb).is_some() {
            self.state.conntrack.end(now, found);
            skb.head_mut().conntrack = 0;
        }
        self.unknown_out(skb, now, passage)
    }

    /// The external endpoint behind device `dev` that stands for `source`, and what a connection
    /// from there holds: the mapping, and a place among those that its host may have. `made`: the
    /// packet was made here.
    fn hide(
        &self,
        dev: u16,
        protocol: u8,
        source: Endpoint,
        made: bool,
    ) -> Result<(Endpoint, Holds), DropReason> {
        let mut holds = Holds::NOTHING;
        let pool = self.rules.source(Some(dev));
        if made && pool.is_some_and(|pool| pool.has_no_block(source.0)) {
            return Ok((source, holds));
        }
        if let Some(hosts) = self.state.hosts6().filter(|_| is_stand_in(source.0)) {
            holds.host = OF_V6 | hosts.count(source.0, self.rules.connlimit).map_err(nat64::refused)?;
        } else if let Some(limit) = self.rules.connlimit
            // What is sent here is not limited.
            && self.rules.external(source.0).is_none()
        {
            holds.host = self.state.hosts.count(source.0, limit).map_err(|why| match why {
                NotCounted::Limit => DropReason::ConntrackLimit,
                NotCounted::Full => DropReason::ConntrackFull,
            })?;
        }
        if let Some(external) = self.rules.outward(dev, source.0) {
            return Ok(((external, source.1), holds));
        }
        let held = match pool {
            Some(pool) => self.state.mappings.of_internal(protocol, source, pool, || self.state.draw()),
            None => Err(NoMapping::Ports),
        };
        match held {
            Ok(held) => Ok((held.other, Holds { mapping: held.index, ..holds })),
            Err(why) => {
                self.state.release(holds);
                Err(match why {
                    NoMapping::Ports => DropReason::NatPorts,
                    NoMapping::Full => DropReason::ConntrackFull,
                })
            }
        }
    }

    /// Makes a connection, which holds what `new` says from then on.
    fn insert(&self, now: u32, new: &New) -> Result<Found, DropReason> {
        let made = self.state.conntrack.insert_with(now, new, |holds| self.state.release(holds));
        made.map_err(|why| {
            self.state.release(new.holds);
            refused(why)
        })
    }
}
