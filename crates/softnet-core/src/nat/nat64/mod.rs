//! NAT64: hosts that speak only IPv6 reach those that speak only IPv4 (RFC 6146, RFC 7915, RFC 6052).
//!
//! A packet to an address under the prefix becomes one of IPv4 at `prerouting`, from an address that
//! [stands](hosts) for its host here; what then follows is NAT44: connections, mappings, ports,
//! limits, ICMP errors, hairpins. What that leads back to such an address becomes one of IPv6 at the
//! end of `prerouting`. Either way the packet goes through the slots of its new family, and is routed
//! there. What softnet itself sends to either kind of address, such as an error, is translated at
//! `output`.
//!
//! Fragments are gathered before (RFC 6146 section 3.4). Invariants: no packet leaves with an address
//! of those that stand for hosts, nor comes with one; none crosses twice in the same direction.

mod address;
mod errors;
pub(super) mod hosts;
mod packet;
#[cfg(all(test, not(feature = "loom")))]
pub(super) mod tests;

pub use address::POOL6_LENGTHS;
pub(super) use address::Pool6;
pub(super) use hosts::{Hosts6, NoStandIn, is_stand_in};

use std::net::Ipv6Addr;

use super::rewrite::End;
use super::{Nat, Taken, translates};
use crate::conntrack::packet::tcp_flags;
use crate::conntrack::{Found, Tuple};
use crate::ip::fragment::split;
use crate::ip::hooks::HookContext;
use crate::ip::v4::header::{Ipv4Header, MIN_LEN};
use crate::ip::v6::addr::is_link_local;
use crate::ip::v6::header::{Ipv6Header, LEN, next, upper};
use crate::ip::{ETH_LEN, Prefix6};
use crate::skb::{Batch, DropReason, Flags, GsoType, Skb};
use errors::Inner;
use packet::{Ends, To6, fragment_to_v6, to_v4, to_v6};

/// IPv6's smallest MTU: what may be cut is cut to this, as it is not known what the way takes (RFC
/// 7915 section 4.1).
const MIN_MTU6: usize = 1280;
/// What becomes of a packet that crosses.
enum Crossed {
    Done,
    /// Of a packet that is to be cut first, see [`To6::Cut`].
    Cut,
}

fn header4(skb: &Skb) -> Option<(u32, u32)> {
    let header = skb.data().get(ETH_LEN..).and_then(Ipv4Header::new)?;
    (header.version() == 4).then(|| (header.src(), header.dst()))
}

fn header6(skb: &Skb) -> Option<(Ipv6Addr, Ipv6Addr)> {
    let header = skb.data().get(ETH_LEN..).and_then(Ipv6Header::new)?;
    (header.version() == 6).then(|| (header.src(), header.dst()))
}

/// What a packet is dropped for whose host has no address here.
pub(super) fn refused(why: NoStandIn) -> DropReason {
    match why {
        NoStandIn::Full => DropReason::ConntrackFull,
        NoStandIn::Busy => DropReason::ConntrackBusy,
        NoStandIn::Limit => DropReason::ConntrackLimit,
    }
}

/// Prefix and hosts, of a router that has them.
#[derive(Clone, Copy)]
pub(super) struct Nat64<'a> {
    pool: Pool6,
    hosts: &'a Hosts6,
    now: u32,
}

impl Nat64<'_> {
    /// The IPv4 address of a host: in the address itself, or one that stands for it.
    fn v4_of(&self, addr: Ipv6Addr) -> Result<u32, DropReason> {
        match self.pool.extract(addr) {
            Some(addr) if self.pool.may_stand_for(addr) => Ok(addr),
            Some(_) => Err(DropReason::Nat64),
            None if is_link_local(addr) || addr.is_multicast() || addr.is_unspecified() => {
                Err(DropReason::Nat64)
            }
            None => self.hosts.stand_in(addr, self.now).map_err(refused),
        }
    }

    /// The reverse.
    fn v6_of(&self, addr: u32) -> Option<Ipv6Addr> {
        match is_stand_in(addr) {
            true => self.hosts.host(addr),
            false => self.pool.may_stand_for(addr).then(|| self.pool.embed(addr)),
        }
    }

    fn inner<R>(&self, with: impl FnOnce(&Inner<'_>) -> R) -> R {
        let v4 = |[src, dst]: [Ipv6Addr; 2]| Some([self.v4_of(src).ok()?, self.v4_of(dst).ok()?]);
        let v6 = |[src, dst]: [u32; 2]| Some([self.v6_of(src)?, self.v6_of(dst)?]);
        with(&Inner { v4: &v4, v6: &v6 })
    }

    /// Makes a packet to the prefix one of IPv4.
    fn cross_to_v4(self, skb: &mut Skb, id: u16) -> Result<(), DropReason> {
        let (src, dst) = header6(skb).ok_or(DropReason::PktTooSmall)?;
        // "If the source address is within the prefix, the packet is silently discarded": it would come
        // back again and again (RFC 6146 section 3.5).
        if self.pool.contains(src) {
            return Err(DropReason::Nat64);
        }
        let dst4 = self.v4_of(dst)?;
        let ends = Ends { v4: [self.v4_of(src)?, dst4], v6: [src, dst] };
        self.inner(|inner| to_v4(skb, &ends, id, inner))
    }

    fn ends4(&self, skb: &Skb) -> Result<Ends, DropReason> {
        let (src, dst) = header4(skb).ok_or(DropReason::PktTooSmall)?;
        let of = |addr| self.v6_of(addr).ok_or(DropReason::Nat64);
        Ok(Ends { v4: [src, dst], v6: [of(src)?, of(dst)?] })
    }

    /// Makes a packet to an address that stands for a host one of IPv6.
    fn cross_to_v6(self, skb: &mut Skb) -> Result<Crossed, DropReason> {
        let ends = self.ends4(skb)?;
        match self.inner(|inner| to_v6(skb, &ends, MIN_MTU6, inner))? {
            To6::Done => Ok(Crossed::Done),
            To6::Cut => Ok(Crossed::Cut),
        }
    }

    /// Has the parts of such a packet that is too long come anew, each as a packet of IPv6.
    pub(super) fn cut(&self, cx: &mut HookContext<'_>, skb: Skb) {
        const FRAGMENT_LEN: usize = 8;
        let ends = match self.ends4(&skb) {
            Ok(ends) => ends,
            Err(reason) => return cx.ctx.free(skb, reason),
        };
        let mut parts = match split(cx.ctx, skb, MIN_MTU6 - LEN - FRAGMENT_LEN + MIN_LEN) {
            Ok(parts) => parts,
            Err((skb, reason)) => return cx.ctx.free(skb, reason),
        };
        // One of them is the packet that was counted already.
        cx.ctx.originated(parts.len() as u64 - 1);
        while let Some(mut part) = parts.pop_front() {
            match fragment_to_v6(&mut part, &ends) {
                Ok(()) => cx.again(part),
                Err(reason) => cx.ctx.free(part, reason),
            }
        }
    }
}

/// The IPv6 address of the host `addr` of IPv4 under the prefix `pool` (RFC 6052); `None` if that
/// can't be one.
pub fn embedded(pool: Prefix6, addr: u32) -> Option<Ipv6Addr> {
    Pool6::new(pool).map(|pool| pool.embed(addr))
}

impl Nat {
    pub(super) fn nat64(&self, now: u32) -> Option<Nat64<'_>> {
        Some(Nat64 { pool: self.rules.pool6?, hosts: self.state.hosts6()?, now })
    }

    /// Packets of IPv6 that came: those to the prefix become IPv4.
    #[inline(never)]
    pub(super) fn cross_to_v4(&self, now: u32, batch: &mut Batch, taken: &mut Taken) {
        let Some(nat64) = self.nat64(now) else { return };
        for (at, skb) in batch.as_mut_slice().iter_mut().enumerate() {
            if !taken.has(at) && header6(skb).is_some_and(|(_, dst)| nat64.pool.contains(dst)) {
                let whole = skb.data().get(ETH_LEN..).and_then(|packet| upper(packet).ok());
                if whole.is_some_and(|upper| upper.protocol == next::FRAGMENT) {
                    taken.gather(at);
                } else if taken.again != 0 || skb.head().gso_type == GsoType::FragList {
                    // What comes behind a list comes again with it, so that it stays behind.
                    taken.again(at);
                } else {
                    taken.note(at, nat64.cross_to_v4(skb, self.state.draw() as u16));
                }
            }
        }
    }

    /// Packets of IPv4 that came: none may say that it is from, or is to, an address that stands for a
    /// host.
    pub(super) fn refuse_stand_ins(&self, batch: &Batch, packets: &mut [(Tuple, u8)], taken: &mut Taken) {
        for (at, (skb, packet)) in batch.as_slice().iter().zip(packets).enumerate() {
            let Some((src, dst)) = header4(skb) else { continue };
            let reason = match skb.head().flags & Flags::CROSSED == 0 {
                true if is_stand_in(src) => DropReason::IpInvalidSource,
                _ if is_stand_in(dst) => DropReason::IpInvalidDest,
                _ => continue,
            };
            taken.note(at, Err(reason));
            // It is of no connection.
            *packet = (Tuple::default(), 0);
        }
    }

    /// Lists of packets that are, or may be, to hosts of IPv6, and what comes behind them to such
    /// hosts, come again one by one: before their destinations are translated, or they would be
    /// refused then.
    pub(super) fn take_lists_apart(&self, batch: &Batch, found: &mut [Option<Found>], taken: &mut Taken) {
        let conntrack = self.state.conntrack();
        for (at, (skb, found)) in batch.as_slice().iter().zip(found).enumerate() {
            let list = skb.head().gso_type == GsoType::FragList;
            if taken.has(at) || !list && taken.again == 0 {
                continue;
            }
            // Of which connection it is may be known when it comes again.
            let to = found.and_then(|found| conntrack.peer(found)).map(|peer| peer.src().0);
            if to.map_or(list, is_stand_in) {
                *found = None;
                taken.again(at);
            }
        }
    }

    /// And those that are to such an address by now become IPv6. None is a list.
    pub(super) fn cross_to_v6(&self, now: u32, batch: &mut Batch, taken: &mut Taken) {
        let Some(nat64) = self.nat64(now) else { return };
        for (at, skb) in batch.as_mut_slice().iter_mut().enumerate() {
            if taken.has(at) || !header4(skb).is_some_and(|(_, dst)| is_stand_in(dst)) {
                continue;
            }
            debug_assert!(skb.head().gso_type != GsoType::FragList);
            // From another host of IPv6, by an address outside: `postrouting` of IPv4 does not see it.
            let source = match self.state.conntrack().of_word(skb.head().conntrack) {
                Some(found) if translates(found, End::Source) => self.translate_source(skb, found),
                _ => Ok(()),
            };
            match source.and_then(|()| nat64.cross_to_v6(skb)) {
                Ok(Crossed::Done) => {}
                Ok(Crossed::Cut) => taken.cut(at),
                Err(reason) => taken.note(at, Err(reason)),
            }
        }
    }

    /// Packets that were made here: those to the prefix, or to an address that stands for a host, are
    /// sent in the other family.
    #[cold]
    pub(super) fn made(&self, cx: &mut HookContext<'_>, now: u32, batch: &mut Batch) {
        let Some(nat64) = self.nat64(now) else { return };
        let to_v4 = |skb: &Skb| header6(skb).is_some_and(|(_, dst)| nat64.pool.contains(dst));
        let to_v6 = |skb: &Skb| header4(skb).is_some_and(|(_, dst)| is_stand_in(dst));
        if !batch.as_slice().iter().any(|skb| to_v4(skb) || to_v6(skb)) {
            return;
        }
        for mut skb in std::mem::take(batch).drain() {
            let crossed = if to_v4(&skb) {
                nat64.cross_to_v4(&mut skb, self.state.draw() as u16)
            } else if to_v6(&skb) {
                // Its connection is of this family.
                let conntrack = self.state.conntrack();
                let tuple = Tuple::of(&skb);
                let found = tuple.and_then(|tuple| conntrack.find(now, &tuple, tcp_flags(&skb)));
                let found = found.or_else(|| conntrack.about_made(now, &skb));
                skb.head_mut().conntrack = found.map_or(0, Found::word);
                match nat64.cross_to_v6(&mut skb) {
                    Ok(Crossed::Done) => Ok(()),
                    // None is so long.
                    Ok(Crossed::Cut) => Err(DropReason::PktTooBig),
                    Err(reason) => Err(reason),
                }
            } else {
                // A batch has as many places.
                batch.push(skb).map_err(|skb| cx.ctx.free(skb, DropReason::NetfilterDrop)).ok();
                continue;
            };
            match crossed {
                Ok(()) => cx.resend(skb),
                Err(reason) => cx.ctx.free(skb, reason),
            }
        }
    }
}
