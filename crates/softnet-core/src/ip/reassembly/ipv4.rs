//! Fragments of IPv4 datagrams: what their headers say, and the header of the whole.

use super::{Fragment, Key, Reassembly, Whole};
use crate::SoftnetData;
use crate::ip::checksum;
use crate::ip::v4::header::{Ipv4Header, is_unicast, protocol, validate_part};
use crate::skb::{DropReason, Skb};

/// Largest datagram, header included.
const MAX_LEN: usize = u16::MAX as usize;
/// A TCP header without options.
const TCP_LEN: usize = 20;

impl Reassembly {
    /// Takes a fragment, whose IPv4 header is at [`l3`](crate::skb::Head::l3), at `now` (ns). Hands out the datagram that
    /// it completes, if it does; a fragment that is no use, for its reason.
    pub fn ipv4(
        &mut self,
        ctx: &mut SoftnetData,
        now: u64,
        mut skb: Skb,
    ) -> Result<Option<Skb>, (Skb, DropReason)> {
        let fragment = match describe(&mut skb) {
            Ok(fragment) => fragment,
            Err(reason) => return Err((skb, reason)),
        };
        let Some(whole) = self.insert(ctx, now, &fragment, skb)? else { return Ok(None) };
        Ok(mend(ctx, whole))
    }
}

/// Reads and checks the header, and cuts off link-layer padding.
fn describe(skb: &mut Skb) -> Result<Fragment, DropReason> {
    let l3 = usize::from(skb.head().l3);
    let packet = skb.data().get(l3..).ok_or(DropReason::PktTooSmall)?;
    let lengths = validate_part(packet, skb.len() - l3)?;
    let header = Ipv4Header::new(packet).ok_or(DropReason::PktTooSmall)?;
    let (start, more) = (usize::from(header.fragment_offset()) * 8, header.more_fragments());
    let len = lengths.total - lengths.header;
    // Cut at multiples of 8 but for the last, with something in each, and together no longer than a header can say.
    // With don't-fragment set it may come from a sender of today all the same (the kernel's IP_PMTUDISC_PROBE).
    let malformed = len == 0 || (more && len % 8 != 0) || lengths.header + start + len > MAX_LEN;
    // What filters look at must be in the first fragment, and in that only (RFC 1858 section 3.2.1, RFC 3128). Of other
    // protocols than TCP it fits in the least that a fragment can hold.
    let hides =
        header.protocol() == protocol::TCP && (start > 0 && start < TCP_LEN || start == 0 && len < TCP_LEN);
    if malformed || hides {
        return Err(DropReason::FragInvalid);
    }
    let fragment = Fragment {
        key: Key::V4 {
            src: header.src().into(),
            dst: header.dst().into(),
            id: header.id(),
            protocol: header.protocol(),
            zone: if is_unicast(header.dst()) { 0 } else { skb.head().dev.saturating_add(1) },
        },
        start: start as u32,
        more,
        payload: l3 + lengths.header,
        ecn: header.tos() & 3,
    };
    skb.trim(l3 + lengths.total);
    Ok(fragment)
}

/// Makes the first fragment's header that of the whole datagram. `None`: it is too long, and was freed.
fn mend(ctx: &mut SoftnetData, mut whole: Whole) -> Option<Skb> {
    let Whole { payload, ecn, .. } = whole;
    let l3 = usize::from(whole.first.head().l3);
    let total = (payload - l3) + whole.len as usize;
    let header = whole.first.data_mut().get_mut(l3..payload);
    let Some(header) = header.filter(|_| total <= MAX_LEN) else {
        whole.refuse(ctx);
        return None;
    };
    if let Some(mut fields) = Ipv4Header::new_mut(header) {
        fields.set_total_len(total as u16);
        fields.set_dont_fragment(false);
        let tos = fields.tos();
        fields.set_tos(ecn.map_or(tos, |ecn| tos & !3 | ecn));
        fields.set_check(0);
    }
    let check = checksum::checksum(header);
    if let Some(mut fields) = Ipv4Header::new_mut(header) {
        fields.set_check(check);
    }
    whole.into_packet(ctx)
}
