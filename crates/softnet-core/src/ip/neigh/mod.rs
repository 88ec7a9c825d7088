//! The neighbour table: which MAC address a next hop has, whether that still holds, and what waits to know. It serves both
//! families: ARP and neighbour discovery tell it what they heard in the same words.
//!
//! A state machine in virtual time, after RFC 4861 section 7.3 and the kernel's `net/core/neighbour.c`: the
//! owner of the [`NeighTable`] tells it what was sent and heard, with the time, and carries out the [`Action`]s it
//! answers with. It sends nothing itself. The fast path does not come here: it works on what
//! [`Action::Publish`] told it, and asks only when it has no address ([`resolve`](NeighTable::resolve)) or the
//! address is in doubt ([`used`](NeighTable::used)).
//!
//! Invariant: every skb handed in comes out in exactly one action.

mod gc;
#[cfg(all(test, not(feature = "loom")))]
mod gc_tests;
mod newcomers;
#[cfg(all(test, not(feature = "loom")))]
mod newcomers_tests;
mod table;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::net::IpAddr;

pub use table::NeighTable;

use super::MacAddr;
use super::v4::arp::{ArpPacket, Operation};
use crate::skb::{DropReason, SkbList};

/// What is known of a neighbour; the kernel's `NUD_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NeighState {
    /// Not in the table (any more).
    None,
    /// Asked for; no answer has come yet.
    Incomplete,
    /// Confirmed not long ago.
    Reachable,
    /// Was right once; to be confirmed when it is used.
    Stale,
    /// Used while stale; waits for a sign of life before asking.
    Delay,
    /// Being asked, by unicast.
    Probe,
    /// Did not answer.
    Failed,
    /// Configured.
    Permanent,
}

impl NeighState {
    /// Whether packets may be sent to its MAC address.
    #[inline]
    pub fn is_valid(self) -> bool {
        use NeighState::*;
        matches!(self, Reachable | Stale | Delay | Probe | Permanent)
    }

    /// The name that tables and `--json` print: `ip neigh`'s.
    pub fn name(self) -> &'static str {
        match self {
            NeighState::None => "NONE",
            NeighState::Incomplete => "INCOMPLETE",
            NeighState::Reachable => "REACHABLE",
            NeighState::Stale => "STALE",
            NeighState::Delay => "DELAY",
            NeighState::Probe => "PROBE",
            NeighState::Failed => "FAILED",
            NeighState::Permanent => "PERMANENT",
        }
    }
}

/// The kernel's knobs of `net.ipv4.neigh.*`, which are those of `net.ipv6.neigh.*` too, with its names and defaults. Times in
/// ns. The limits `gc_thresh1..3` are for each family on each device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighParams {
    /// How long a confirmation holds, times a random factor of 0.5 to 1.5.
    pub base_reachable_time: u64,
    /// Between two requests; at least 10 ms. Also how long packets to a neighbour that did not answer fail at
    /// once, before it is asked again.
    pub retrans_time: u64,
    /// Broadcast (or multicast) requests before giving up; at least 1.
    pub mcast_solicit: u32,
    /// Unicast requests before giving up; at least 1.
    pub ucast_solicit: u32,
    /// How long a used stale entry waits before it is probed.
    pub delay_first_probe_time: u64,
    /// How long an unused entry stays.
    pub gc_stale_time: u64,
    /// Frames of packets that wait for one neighbour at the most.
    pub unres_qlen: usize,
    /// Frames of packets that wait for all neighbours together at the most: a scan of the link's
    /// addresses must not tie up the packet memory. The kernel has no such knob, as its packets
    /// come from all of its memory.
    pub unres_total: usize,
    /// How long an entry that changed resists being changed by plain replies. Also the time between two MAC addresses that
    /// the fast path is told for it.
    pub locktime: u64,
    /// Fewer entries than this stay, however long they are unused.
    pub gc_thresh1: usize,
    /// With this many, entries that failed and those that are unused for five seconds go when others come.
    pub gc_thresh2: usize,
    /// Entries at the most. Permanent ones and gateways do not count.
    pub gc_thresh3: usize,
}

impl Default for NeighParams {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        NeighParams {
            base_reachable_time: 30 * SECOND,
            retrans_time: SECOND,
            mcast_solicit: 3,
            ucast_solicit: 3,
            delay_first_probe_time: 5 * SECOND,
            gc_stale_time: 60 * SECOND,
            unres_qlen: 101,
            unres_total: 4096,
            locktime: SECOND,
            gc_thresh1: 128,
            gc_thresh2: 512,
            gc_thresh3: 1024,
        }
    }
}

/// What an ARP packet, or a message of neighbour discovery, says about its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It asked for one of our addresses, so it is about to talk to us: the one case that makes a new entry
    /// (RFC 826, "packet reception").
    Request,
    /// It answered us alone, so it hears us.
    Reply,
    /// It spoke of itself to all.
    Gratuitous,
    /// It spoke to others.
    Other,
    /// A neighbour advertisement. Unlike an ARP reply it says itself what it is (RFC 4861 section 4.4).
    Advert {
        /// It answers us, so it hears us.
        solicited: bool,
        /// It is to replace what is known.
        overrides: bool,
    },
}

impl Heard {
    /// What `packet` says. `ours`: its target is an address of ours on that device. `unicast`: the frame was
    /// sent to our MAC address. `None` if there is nothing to learn (a probe, RFC 5227).
    pub fn from_arp(packet: &ArpPacket, ours: bool, unicast: bool) -> Option<Self> {
        if packet.sender_ip.is_unspecified() {
            return None;
        }
        Some(match packet.operation {
            Operation::Request if ours => Heard::Request,
            _ if packet.is_gratuitous() => Heard::Gratuitous,
            // As in the kernel's arp_process: a broadcast reply asserts nothing about us being heard.
            Operation::Reply if unicast => Heard::Reply,
            _ => Heard::Other,
        })
    }
}

/// What the table wants done. Actions are to be carried out in order.
pub enum Action {
    /// Send an ARP request, or a neighbour solicitation, for `target`.
    Solicit {
        /// By which device.
        dev: u16,
        /// For which address.
        target: IpAddr,
        /// To this MAC address; `None`: to all (or the group of the hosts that might have it).
        unicast_to: Option<MacAddr>,
    },
    /// An entry changed.
    Publish {
        /// Device of the neighbour.
        dev: u16,
        /// Its address.
        ip: IpAddr,
        /// Its state; [`NeighState::None`] if it was removed.
        state: NeighState,
        /// Its MAC address, in the [valid](NeighState::is_valid) states.
        mac: Option<MacAddr>,
        /// What the fast path is to be told, if that changed: the MAC address that it may use from now on, or none.
        told: Option<Option<MacAddr>>,
    },
    /// Send these packets.
    Transmit {
        /// By which device.
        dev: u16,
        /// To this MAC address.
        mac: MacAddr,
        /// First to last.
        skbs: SkbList,
    },
    /// These packets can't be sent: free them. For [`NeighFailed`](DropReason::NeighFailed) an ICMP host
    /// unreachable is in place.
    Fail {
        /// Device they should have left by.
        dev: u16,
        /// The neighbour they waited for.
        ip: IpAddr,
        /// Why.
        reason: DropReason,
        /// First to last.
        skbs: SkbList,
    },
}

/// A list of [`Action`]s, to be reused from call to call. Its owner must [`drain`](Self::drain) it: packets are
/// in there.
#[derive(Default)]
pub struct Actions(Vec<Action>);

impl Actions {
    /// An empty list.
    pub const fn new() -> Self {
        Actions(Vec::new())
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes out every action, in order.
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = Action> {
        self.0.drain(..)
    }

    fn push(&mut self, action: Action) {
        self.0.push(action);
    }
}

/// One row of the table, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighEntry {
    /// Device it is on.
    pub dev: u16,
    /// Its address.
    pub ip: IpAddr,
    /// Its state.
    pub state: NeighState,
    /// Its MAC address, in the valid states.
    pub mac: Option<MacAddr>,
    /// When the state was entered, in ns of the stack's clock.
    pub since: u64,
    /// Requests sent in this state.
    pub probes: u32,
    /// Packets that wait.
    pub queued: usize,
}
