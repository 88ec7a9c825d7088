//! Reverse path filter (the kernel's `rp_filter`): on devices that ask for it, the source address of a
//! packet must not be one of softnet's own (RFC 1812 section 5.3.8), and packets to it would have to leave
//! by the device that the packet came by (RFC 3704).
//!
//! Called by `input`, once a batch. Devices without the filter pay nothing: a look-up of every source
//! costs about a tenth of the way of a packet.

use super::adjacency::{Adjacency, Kind};
use super::family::{Family, LongestMatch};
use super::input::Ingress;
use super::tables::Routing;
use crate::SoftnetData;
use crate::skb::{BATCH, Batch, DropReason, Flags};

/// How a device's packets are asked for their way back (the kernel's `rp_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RpFilter {
    /// Not at all.
    #[default]
    Off,
    /// Packets to the source must leave by the device that it came by (RFC 3704 section 2.2).
    Strict,
    /// There must be a route to the source, by whichever device (RFC 3704 section 2.4).
    Loose,
}

impl RpFilter {
    /// Whether a packet from `src` may come by `dev`.
    pub(crate) fn allows<A: Family>(self, tables: &Routing<A>, dev: u16, src: A) -> bool {
        let hop = || tables.next_hop(tables.fib.longest_match(src));
        self == RpFilter::Off || self.allows_by(tables, hop(), dev)
    }

    /// The same, of a source that `hop` leads back to.
    fn allows_by<A: Family>(self, tables: &Routing<A>, hop: &Adjacency<A>, dev: u16) -> bool {
        match self {
            RpFilter::Off => true,
            RpFilter::Strict => tables.any_hop(hop, |hop| hop.is_reachable() && hop.dev == dev),
            RpFilter::Loose => tables.any_hop(hop, Adjacency::is_reachable),
        }
    }
}

/// Drops those packets of `batch` that the device's filter does not allow. `src` reads the source
/// of a packet; `dst` is what the caller knows of each, and stays in step. Returns how many are
/// left.
#[cold]
#[inline(never)]
pub(super) fn reverse_path<A: Family, D: Copy>(
    ctx: &mut SoftnetData,
    tables: &Routing<A>,
    ingress: &Ingress,
    batch: &mut Batch,
    dst: &mut [D; BATCH],
    src: impl Fn(&[u8]) -> Option<A>,
) -> usize {
    let (mut good, known) = (Batch::new(), *dst);
    for (skb, known) in batch.drain().zip(known) {
        let hop = src(skb.data()).map(|src| tables.next_hop(tables.fib.longest_match(src)));
        let refused = match hop {
            _ if skb.head().flags & Flags::CROSSED != 0 => None,
            Some(hop) if hop.kind == Kind::Local => Some(DropReason::IpInvalidSource),
            Some(hop) if ingress.rp_filter.allows_by(tables, hop, ingress.dev) => None,
            _ => Some(DropReason::IpRpFilter),
        };
        if let Some(reason) = refused {
            ctx.free(skb, reason);
            continue;
        }
        if let Some(slot) = dst.get_mut(good.len()) {
            *slot = known;
        }
        // All batches have as many places.
        if let Err(skb) = good.push(skb) {
            ctx.free(skb, DropReason::Shutdown);
        }
    }
    std::mem::swap(batch, &mut good);
    batch.len()
}
