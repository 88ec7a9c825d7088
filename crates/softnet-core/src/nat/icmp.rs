//! ICMP errors: an error goes the way of the packets that answer what it is about, and both its own
//! address and the packet that it quotes are translated so (RFC 5508 section 4).
//!
//! Called by the hooks of [`nat`](super). An error keeps no connection alive, and opens none. One
//! that is about nothing that is known is left as it is.

use super::rewrite::{Delta, End, ErrorChange, header, quoted};
use super::translates;
use crate::conntrack::packet::quoted_tuple;
use crate::conntrack::{Conntrack, Found};
use crate::ip::ETH_LEN;
use crate::ip::v4::header::MIN_LEN;
use crate::skb::{DropReason, Skb};

/// An error that came: translates its destination, as of a packet that goes its way.
pub(super) fn inward(conntrack: &Conntrack, skb: &mut Skb, now: u32) -> Result<(), DropReason> {
    let Some(found) = conntrack.about(now, skb) else { return Ok(()) };
    skb.head_mut().conntrack = found.word();
    if !translates(found, End::Destination) {
        return Ok(());
    }
    let peer = conntrack.peer(found).ok_or(DropReason::ConntrackInvalid)?;
    change(skb, End::Destination, peer.src())
}

/// An error that leaves: translates its source, as of a packet that goes its way.
pub(super) fn outward(conntrack: &Conntrack, skb: &mut Skb, found: Found) -> Result<(), DropReason> {
    let peer = conntrack.peer(found).ok_or(DropReason::ConntrackInvalid)?;
    change(skb, End::Source, peer.dst())
}

/// Writes `new` for the address at `end`, and for the endpoint at the other end of the packet that
/// is quoted.
fn change(skb: &mut Skb, end: End, new: (u32, u16)) -> Result<(), DropReason> {
    let (tuple, at) = quoted_tuple(skb).ok_or(DropReason::ConntrackInvalid)?;
    let (inner, old) = match end {
        End::Source => (End::Destination, tuple.dst()),
        End::Destination => (End::Source, tuple.src()),
    };
    let l4 = usize::from(skb.head().l4);
    skb.head_mut().hash = 0;
    let data = skb.data_mut();
    let Some(ip) = data.get_mut(ETH_LEN..).and_then(|ip| ip.first_chunk_mut::<MIN_LEN>()) else {
        return Ok(());
    };
    let field = 12 + 4 * end as usize;
    let outer = u32::from_be_bytes(std::array::from_fn(|i| ip[field + i]));
    header(ip, end, new.0, Delta::new((outer, 0), (new.0, 0)));
    if let Some(message) = data.get_mut(l4..) {
        quoted(message, &ErrorChange { at, protocol: tuple.protocol(), end: inner, old, new });
    }
    Ok(())
}
