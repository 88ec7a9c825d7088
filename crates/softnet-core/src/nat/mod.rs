//! NAT44: translation of IPv4 addresses and ports between a network inside and one outside (RFC
//! 3022, RFC 4787, RFC 5382, RFC 5508).
//!
//! [`Nat`] is the hook of two slots. At `prerouting` all packets of a batch are looked up in
//! [`conntrack`](crate::conntrack), and destinations are translated: of replies, and of what comes
//! to a forwarded port. The head then says which connection a packet is of, so that `postrouting`
//! translates sources without looking it up again; what is of no connection opens one there, when
//! it is known by which device it leaves. Mappings are endpoint-independent; what they let in is
//! [configured](Filtering). ICMP errors are translated as the packets they are about. Fragments are
//! [gathered](HookContext::gather) at `prerouting`, so that a datagram is translated as a whole,
//! whatever order they come in (RFC 4787 REQ-14).
//!
//! Called by any thread with a context; [`NatState`] outlives a change of rules. Invariants: no
//! packet leaves with a source that is to be hidden; a connection's two tuples stay what they were
//! until it expires.

mod hosts;
mod icmp;
mod mapping;
mod open;
mod ports;
mod rewrite;
mod rules;
mod state;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub use mapping::MAX_ADDRESSES;
pub use rules::{Filtering, NatRules, OneToOne, PortForward, SourceNat, TooManyAddresses};
pub use state::{MappingCounts, NatState, seconds};

use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::conntrack::entry::{DNAT, Holds, SNAT};
use crate::conntrack::{Direction, Found, New, Refused, State, Tuple};
use crate::ip::hooks::{Hook, HookContext, Passage, Slot};
use crate::ip::v4::header::{Ipv4Header, protocol};
use crate::ip::{ETH_LEN, Family, is_group};
use crate::skb::{BATCH, Batch, DropReason, Flags, Skb};
use mapping::{Endpoint, NoMapping};
use open::Unknown;
use rewrite::{End, rewrite};
use rules::Compiled;

/// Entries that are looked at for each batch, to see whether they expired: more than a batch can
/// make.
const SWEEP: usize = 2 * BATCH;

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
struct Taken {
    which: u64,
    /// Those that wait for the other fragments of their datagrams.
    gathered: u64,
    reasons: [DropReason; BATCH],
}

impl Taken {
    fn none() -> Self {
        Taken { which: 0, gathered: 0, reasons: [DropReason::NetfilterDrop; BATCH] }
    }

    /// Notes what became of packet `at`.
    #[inline(always)]
    fn note(&mut self, at: usize, done: Result<(), DropReason>) {
        if let Err(reason) = done {
            self.reasons[at % BATCH] = reason;
            self.which |= 1 << at;
        }
    }

    /// Packet `at` is to be gathered.
    fn gather(&mut self, at: usize) {
        self.which |= 1 << at;
        self.gathered |= 1 << at;
    }

    /// Takes them out of `batch`.
    #[inline(always)]
    fn take_out(self, cx: &mut HookContext<'_>, batch: &mut Batch) {
        if self.which != 0 {
            self.take_out_some(cx, batch);
        }
    }

    #[cold]
    fn take_out_some(self, cx: &mut HookContext<'_>, batch: &mut Batch) {
        let mut some = std::mem::take(batch);
        for (at, skb) in some.drain().enumerate() {
            let left = match self.which >> at & 1 {
                0 => batch.push(skb),
                _ if self.gathered >> at & 1 == 1 => {
                    cx.gather(skb);
                    Ok(())
                }
                _ => Err(skb),
            };
            if let Err(skb) = left {
                cx.ctx.free(skb, self.reasons[at % BATCH]);
            }
        }
    }
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

/// TCP's flags in a packet that has a tuple; 0 of another protocol.
#[inline(always)]
fn tcp_flags(skb: &Skb) -> u8 {
    match skb.head().protocol {
        protocol::TCP => skb.data().get(usize::from(skb.head().l4) + 13).copied().unwrap_or(0),
        _ => 0,
    }
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
    fn prerouting(&self, cx: &mut HookContext<'_>, now: u32, input: Option<u16>, batch: &mut Batch) {
        let NatState { conntrack, .. } = &*self.state;
        self.state.sweep(now, SWEEP);
        let mut packets = [(Tuple::default(), 0); BATCH];
        for (skb, packet) in batch.as_slice().iter().zip(&mut packets) {
            *packet = (Tuple::of(skb).unwrap_or_default(), tcp_flags(skb));
        }
        let mut all = [None; BATCH];
        conntrack.find_batch(now, &packets[..batch.len()], &mut all);
        let mut taken = Taken::none();
        let looked = packets.iter().zip(all);
        for (at, (skb, ((tuple, flags), found))) in batch.as_mut_slice().iter_mut().zip(looked).enumerate() {
            match found {
                Some(found) => {
                    skb.head_mut().conntrack = found.word();
                    if translates(found, End::Destination) {
                        taken.note(at, self.translate(skb, tuple, found, End::Destination));
                    }
                }
                None if *tuple == Tuple::default() && is_fragment(skb) => taken.gather(at),
                None => {
                    let unknown = Unknown { tuple: *tuple, flags: *flags, now };
                    taken.note(at, self.unknown_in(skb, unknown, input));
                }
            }
        }
        taken.take_out(cx, batch);
    }

    #[inline(never)]
    fn postrouting(&self, cx: &mut HookContext<'_>, now: u32, passage: Passage, batch: &mut Batch) {
        let NatState { conntrack, .. } = &*self.state;
        let mut taken = Taken::none();
        for (at, skb) in batch.as_mut_slice().iter_mut().enumerate() {
            let done = match conntrack.of_word(skb.head().conntrack) {
                Some(found) if !translates(found, End::Source) => Ok(()),
                Some(found) => self.translate_source(skb, found),
                None => self.unknown_out(skb, now, passage),
            };
            taken.note(at, done);
        }
        taken.take_out(cx, batch);
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
}

impl Hook for Nat {
    fn run(&self, cx: &mut HookContext<'_>, passage: Passage, batch: &mut Batch) {
        let now = seconds(cx.now);
        match passage.slot {
            Slot::Prerouting => self.prerouting(cx, now, passage.input, batch),
            Slot::Postrouting => self.postrouting(cx, now, passage, batch),
            _ => {}
        }
    }
}
