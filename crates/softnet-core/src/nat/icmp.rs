//! ICMP errors: an error goes the way of the packets that answer what it is about, and both its own
//! address and the packet that it quotes are translated so (RFC 5508 section 4).
//!
//! Called by the hooks of [`nat`](super). An error keeps no connection alive, and opens none. One
//! that is about nothing that is known is left as it is.

use super::rewrite::{Delta, End, ErrorChange, header, quoted};
use super::translates;
use crate::conntrack::{Conntrack, Found, Tuple};
use crate::ip::ETH_LEN;
use crate::ip::v4::header::{MIN_LEN, protocol};
use crate::skb::{DropReason, Skb};

/// Bytes of an ICMP header.
const ICMP_LEN: usize = 8;

/// The ICMP message in a packet, from its header on.
fn message(skb: &Skb) -> Option<&[u8]> {
    let head = skb.head();
    (head.protocol == protocol::ICMP && head.l4 != 0).then(|| skb.data().get(usize::from(head.l4)..))?
}

/// The tuple of the packet that an error quotes, and where its L4 header begins there.
fn quote(skb: &Skb) -> Option<(Tuple, usize)> {
    let message = message(skb)?;
    // Destination unreachable, source quench, time exceeded, parameter problem.
    matches!(message.first(), Some(3 | 4 | 11 | 12)).then(|| Tuple::quoted(message.get(ICMP_LEN..)?))?
}

/// Whether it is the answer to a query.
pub(super) fn is_answer(skb: &Skb) -> bool {
    message(skb).is_some_and(|message| matches!(message.first(), Some(0 | 14 | 16 | 18)))
}

/// The connection of the packet that an error is about, in the direction in which the error goes.
pub(super) fn about(conntrack: &Conntrack, skb: &Skb, now: u32) -> Option<Found> {
    conntrack.peek(now, &quote(skb)?.0.inverse())
}

/// An error that came: translates its destination, as of a packet that goes its way.
pub(super) fn inward(conntrack: &Conntrack, skb: &mut Skb, now: u32) -> Result<(), DropReason> {
    let Some(found) = about(conntrack, skb, now) else { return Ok(()) };
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
    let (tuple, at) = quote(skb).ok_or(DropReason::ConntrackInvalid)?;
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
