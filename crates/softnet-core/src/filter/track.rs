//! Connections for rules that ask for states: what NAT has not looked up is looked up here, and what
//! passed the rules opens a connection when it leaves, or reaches softnet.
//!
//! Called by the filter's [hook](super::hook). The head says which connection a packet is of, in the
//! same word as NAT's.

use std::sync::Arc;

use super::facts::{Facts, L4};
use super::rule::FlowState;
use crate::conntrack::packet::{is_answer, is_error, tcp_flags};
use crate::conntrack::{Conntrack, Direction, Found, Refused, State, Tuple};
use crate::ip::ETH_LEN;
use crate::ip::v4::header::protocol;
use crate::ip::v6::header::next;
use crate::nat::NatState;
use crate::skb::{BATCH, Batch, DropReason, Skb};

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

impl Tracker {
    pub(super) fn new(conntrack: Arc<Conntrack>, nat: Option<Arc<NatState>>) -> Self {
        Tracker { conntrack, nat }
    }

    /// Packets that came: tells their heads which connections they are of.
    pub(super) fn came(&self, now: u32, batch: &mut Batch) {
        if self.nat.is_none() {
            self.conntrack.sweep(now, SWEEP);
        }
        self.look_up(now, self.nat.is_some(), batch);
    }

    /// The same of packets that are made here.
    pub(super) fn made(&self, now: u32, batch: &mut Batch) {
        self.look_up(now, false, batch);
    }

    /// But for those of IPv4, if `only_ipv6`.
    #[inline(never)]
    fn look_up(&self, now: u32, only_ipv6: bool, batch: &mut Batch) {
        let table = &*self.conntrack;
        let mut packets = [(Tuple::default(), 0); BATCH];
        let (mut skipped, mut any) = (0u64, false);
        for (at, (skb, packet)) in batch.as_slice().iter().zip(&mut packets).enumerate() {
            if only_ipv6 && is_ipv4(skb) {
                skipped |= 1 << at;
                continue;
            }
            any = true;
            *packet = (table.tuple_of(skb).unwrap_or_default(), tcp_flags(skb));
        }
        if !any {
            return;
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
    }

    /// A packet that passed: opens a connection, unless it is of one.
    #[inline(always)]
    pub(super) fn passed(&self, now: u32, skb: &mut Skb) -> Result<(), DropReason> {
        if self.conntrack.of_word(skb.head().conntrack).is_some() {
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
        // All fragments; the first too, as the others would not be known to be of the same.
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
