//! Connections for rules that ask for states: what NAT has not looked up is looked up here, and what
//! passed the rules opens a connection. Fragments are gathered first, so that rules see datagrams.
//!
//! Called by the filter's [hook](super::hook). The head says which connection a packet is of, in the
//! same word as NAT's.

use std::sync::Arc;

use super::facts::{Facts, L4};
use super::rule::FlowState;
use crate::conntrack::packet::{is_answer, is_error, tcp_flags};
use crate::conntrack::{Conntrack, Direction, Found, Refused, State, Tuple};
use crate::ip::hooks::Slot;
use crate::ip::v4::header::{Ipv4Header, protocol};
use crate::ip::v6::header::{next, upper};
use crate::ip::{ETH_LEN, is_group};
use crate::nat::NatState;
use crate::skb::{BATCH, Batch, DropReason, Flags, Skb};

/// Entries that are looked at for each batch, to see whether they expired: more than a batch can
/// make.
const SWEEP: usize = 2 * BATCH;
/// TCP's RST flag.
const RST: u8 = 4;

/// See the [module](self).
pub(super) struct Tracker {
    conntrack: Arc<Conntrack>,
    /// NAT, if the connections are its: it looks up what comes of IPv4, and sweeps.
    nat: Option<Arc<NatState>>,
}

fn is_ipv4(skb: &Skb) -> bool {
    skb.data().get(ETH_LEN).is_some_and(|first| first >> 4 == 4)
}

/// Whether a packet of IPv6 was one of IPv4: its connection is of that family, as its head says.
#[inline(always)]
fn crossed(skb: &Skb) -> bool {
    skb.head().flags & Flags::CROSSED != 0
}

/// Whether it is a fragment of a datagram to one host.
#[cold]
fn is_part(skb: &Skb) -> bool {
    let packet = skb.data().get(ETH_LEN..).unwrap_or_default();
    let is = match is_ipv4(skb) {
        true => Ipv4Header::new(packet).is_some_and(|header| header.is_fragment()),
        false => upper(packet).is_ok_and(|upper| upper.protocol == next::FRAGMENT),
    };
    is && skb.data().first_chunk().is_some_and(|mac| !is_group(mac))
}

impl Tracker {
    pub(super) fn new(conntrack: Arc<Conntrack>, nat: Option<Arc<NatState>>) -> Self {
        Tracker { conntrack, nat }
    }

    /// Whether the connections are NAT's.
    pub(super) fn has_nat(&self) -> bool {
        self.nat.is_some()
    }

    /// Packets that came: tells their heads which connections they are of. Returns those that are to be
    /// gathered, as what is not whole can't be told.
    pub(super) fn came(&self, now: u32, batch: &mut Batch) -> u64 {
        if self.nat.is_none() {
            self.conntrack.sweep(now, SWEEP);
        }
        self.look_up(now, self.nat.is_some(), batch)
    }

    /// The same of packets that are made here, which are not gathered.
    pub(super) fn made(&self, now: u32, batch: &mut Batch) {
        self.look_up(now, false, batch);
    }

    /// But for those of IPv4, if `only_ipv6`. Returns which are fragments.
    #[inline(never)]
    fn look_up(&self, now: u32, only_ipv6: bool, batch: &mut Batch) -> u64 {
        let table = &*self.conntrack;
        let mut packets = [(Tuple::default(), 0); BATCH];
        let (mut skipped, mut parts, mut any) = (0u64, 0u64, false);
        for (at, (skb, packet)) in batch.as_slice().iter().zip(&mut packets).enumerate() {
            if match is_ipv4(skb) {
                true => only_ipv6,
                false => crossed(skb),
            } {
                skipped |= 1 << at;
                continue;
            }
            any = true;
            parts |= u64::from(skb.head().l4 == 0 && is_part(skb)) << at;
            *packet = (table.tuple_of(skb).unwrap_or_default(), tcp_flags(skb));
        }
        if !any {
            return 0;
        }
        let mut all = [None; BATCH];
        table.find_batch(now, &packets[..batch.len()], &mut all);
        for (at, (skb, found)) in batch.as_mut_slice().iter_mut().zip(all).enumerate() {
            if skipped >> at & 1 != 0 {
                continue;
            }
            let found = found.or_else(|| table.about(now, skb));
            skb.head_mut().conntrack = found.map_or(0, Found::word);
        }
        parts
    }

    /// A packet that passed the rules at `slot`: opens a connection, unless it is of one. What NAT may
    /// translate of IPv4 has the connection that it opens, which is known behind it; of IPv6 nothing is
    /// known of that.
    #[inline(always)]
    pub(super) fn passed(&self, now: u32, slot: Slot, skb: &mut Skb) -> Result<(), DropReason> {
        if self.conntrack.of_word(skb.head().conntrack).is_some() {
            return Ok(());
        }
        let leaves = matches!(slot, Slot::Forward | Slot::Output);
        let here = match is_ipv4(skb) {
            true => !(leaves && self.nat.is_some()),
            false => slot != Slot::Postrouting && !crossed(skb),
        };
        if !here {
            return Ok(());
        }
        let released = |holds| self.nat.iter().for_each(|nat| nat.release(holds));
        let opened = self.conntrack.open(now, skb, released).map_err(|why| match why {
            Refused::Full => DropReason::ConntrackFull,
            Refused::Busy => DropReason::ConntrackBusy,
        })?;
        skb.head_mut().conntrack = opened.map_or(0, Found::word);
        Ok(())
    }

    /// The state of a packet that was looked up.
    #[inline(always)]
    pub(super) fn state(&self, skb: &Skb) -> FlowState {
        match self.conntrack.of_word(skb.head().conntrack) {
            Some(found) => match (found.direction(), found.life.state()) {
                _ if is_error(skb) => FlowState::Related,
                (Direction::Original, State::UdpNew | State::SynSent | State::Icmp) => FlowState::New,
                _ => FlowState::Established,
            },
            None => unknown(skb),
        }
    }
}

/// The state of a packet of no connection.
#[cold]
fn unknown(skb: &Skb) -> FlowState {
    let Ok(Facts { protocol, l4 }) = Facts::of(skb) else { return FlowState::Invalid };
    match (protocol, l4) {
        // All fragments that are not gathered; the first too, as the others would not be known to be
        // of the same.
        _ if skb.head().l4 == 0 => FlowState::Untracked,
        (protocol::UDP, _) => FlowState::New,
        (protocol::TCP, _) if tcp_flags(skb) & RST != 0 => FlowState::Invalid,
        (protocol::TCP, _) => FlowState::New,
        (protocol::ICMP, L4::Icmp(8 | 13 | 15 | 17)) => FlowState::New,
        (next::ICMPV6, L4::Icmp(128)) => FlowState::New,
        _ if is_answer(skb) || is_error(skb) => FlowState::Invalid,
        _ => FlowState::Untracked,
    }
}
