//! Packets that a hook refused, and whose senders are told so: of TCP by a reset, as if there were no
//! connection (RFC 9293 section 3.10.7.1), otherwise by an ICMP error, that it is prohibited (RFC
//! 1812 section 5.2.7.1, RFC 4443 section 3.1).
//!
//! Resets are limited like those errors. Nothing is said about what came damaged, about a packet to
//! a group, or about anything but the first fragment of a datagram; of a segment in fragments, an
//! ICMP error tells.

use super::errors::tells;
use super::family::SlowFamily;
use super::{Call, Refused, packet};
use crate::ip::fragment::Datagram;
use crate::ip::unserved::{TCP_LEN, reset};
use crate::ip::v4::header::protocol;
use crate::ip::{checksum, is_group};
use crate::skb::{DropReason, Flags, Skb};
use crate::steer::TxChoice;

/// Where a segment has its flags, and the one of them that is not answered.
const FLAGS_AT: usize = 13;
const RST: u8 = 4;
/// Hop limit of a reset.
const TTL: u8 = 64;

impl Call<'_> {
    /// Tells the sender of `skb`, and hands it back.
    pub(super) fn rejected<F: SlowFamily>(&mut self, skb: Skb) -> Refused {
        // Its sender is here: it learns of it by the drop.
        if skb.head().flags & Flags::ORIGINATED != 0 {
            return (skb, DropReason::NetfilterDrop);
        }
        match F::payload(packet(&skb)) {
            Ok(payload) if payload.protocol == protocol::TCP && !payload.is_fragment => {
                self.reset::<F>(&skb, payload.at);
            }
            _ => self.error::<F>(&skb, F::PROHIBITED),
        }
        (skb, DropReason::NetfilterDrop)
    }

    /// Sends the reset for a segment that is whole, and begins at `at` of its packet.
    fn reset<F: SlowFamily>(&mut self, skb: &Skb, at: usize) {
        let packet = packet(skb);
        let ends = F::ends(packet).zip(F::total_len(packet));
        let header: Option<&[u8; TCP_LEN]> = packet.get(at..).and_then(<[u8]>::first_chunk);
        let (Some(((from, to), total)), Some(header)) = (ends, header) else { return };
        if skb.data().first_chunk().is_some_and(is_group) {
            return;
        }
        let Some(addresses) = F::answer(self.view, from, to, skb.head().dev) else { return };
        // A flood of what is refused costs no more than that, from here on.
        if header[FLAGS_AT] & RST != 0 || !F::allow(self, from) {
            return;
        }
        let Ok(true) = tells::<F>(skb, at) else { return };
        let Some(mut segment) = reset(header, total.saturating_sub(at)) else { return };
        let pseudo = F::pseudo_header_sum(to, from, protocol::TCP, TCP_LEN as u16);
        let check = !checksum::add(pseudo, checksum::sum(&segment));
        segment[16..18].copy_from_slice(&check.to_be_bytes());
        let datagram =
            Datagram { addresses, protocol: protocol::TCP, ttl: TTL, tos: 0, id: 0, dont_fragment: true };
        let choice = TxChoice::RxQueue(skb.head().queue);
        // If there is no way back, or no memory, nothing is said.
        let _ = self.send_datagram(datagram, choice, (TCP_LEN, [&segment[..]]));
    }
}
