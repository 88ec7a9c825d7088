//! ICMP errors about packets: whether they are sent, and from which address.

use super::family::{Payload, SlowFamily};
use super::{Call, Refused, RouteSnapshot, packet};
use crate::ip::ETH_LEN;
use crate::ip::unserved::tells_of_tcp;
use crate::ip::v4::header::protocol;
use crate::skb::{DropReason, Flags, Skb};

impl RouteSnapshot<'_> {
    /// The address that an error about a packet from `src` to `dst`, which came by `dev`, is sent from: `dst`, if that is
    /// ours, else an address of the interface by which the error leaves (RFC 1812 section 4.3.2.4, RFC 4443 section 2.2).
    /// `None` if there is no way to `src`.
    fn error_source<F: SlowFamily>(self, dev: u16, src: F, dst: F) -> Option<F> {
        if F::is_own(self, dev, dst) {
            return Some(dst);
        }
        let hop = F::next_hop(self, dev, src);
        let iface = self.iface(hop.dev).filter(|_| hop.is_reachable())?;
        F::error_source(self, iface, src, hop.gateway)
    }
}

impl Call<'_> {
    /// Sends an ICMP error about `skb`, if there may be one and the rate limit allows it.
    pub(super) fn error<F: SlowFamily>(&mut self, skb: &Skb, error: F::Error) {
        // There is no error about what softnet itself sent.
        if skb.head().flags & Flags::ORIGINATED != 0 {
            return;
        }
        let Some((src, dst)) = F::ends(packet(skb)) else { return };
        let Some(source) = self.view.error_source(skb.head().dev, src, dst) else { return };
        let Some(message) = F::build_error(self, skb, error, source) else { return };
        self.ctx.originate();
        self.output_own::<F>(message);
    }

    /// A datagram to softnet that no socket wants: tells its sender, if that is to be told, and hands it back.
    pub(super) fn no_socket<F: SlowFamily>(&mut self, skb: Skb) -> Refused {
        match F::payload(packet(&skb)) {
            Ok(payload) => self.unserved::<F>(skb, payload),
            Err(refusal) => self.refuse(skb, refusal),
        }
    }

    /// The same of one for a protocol or port that is not served.
    pub(super) fn unserved<F: SlowFamily>(&mut self, skb: Skb, payload: Payload) -> Refused {
        let told = match payload.protocol {
            // It has no ports here, as it is not served (RFC 1122 section 3.2.2.1).
            protocol::TCP => match tells::<F>(&skb, payload.at) {
                Ok(told) => told,
                Err(reason) => return (skb, reason),
            },
            _ => true,
        };
        if let Some(error) = F::unserved(payload).filter(|_| told) {
            self.error::<F>(&skb, error);
        }
        (skb, DropReason::IpNoProto)
    }
}

/// Whether the sender of a TCP segment, which begins at `at` of its packet, is told that TCP is not served.
pub(super) fn tells<F: SlowFamily>(skb: &Skb, at: usize) -> Result<bool, DropReason> {
    let packet = packet(skb);
    let ((src, dst), total) = F::ends(packet).zip(F::total_len(packet)).ok_or(DropReason::PktTooSmall)?;
    let len = total.saturating_sub(at);
    let pseudo = F::pseudo_header_sum(src, dst, protocol::TCP, len as u16);
    tells_of_tcp(pseudo, skb.pieces(ETH_LEN + at, len))
}
