//! Whether a packet can be held, whether it is of the flow of a held one, and whether it can be
//! merged with that.

use super::{GroMode, MAX_DATAGRAMS, MAX_SIZE};
use crate::gso::header::{TCP_FLAGS, be16, be32, put, tcp_flags};
use crate::gso::layout::{L4, Layout, UDP_LEN, l3_len};
use crate::ip::checksum;
use crate::ip::v4::header::MIN_LEN;
use crate::skb::{Csum, FrameChain, MAX_FRAMES, Skb};
use crate::vlan;

/// The form of aggregates of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Frags,
    List,
}

impl Form {
    /// In which form packets of `protocol` are merged, if they are.
    #[inline(always)]
    pub(super) fn of(mode: GroMode, protocol: L4) -> Option<Form> {
        match (mode, protocol) {
            (GroMode::Off, _) | (GroMode::Frags, L4::Udp) => None,
            (GroMode::Frags, L4::Tcp) | (GroMode::FragsUdp, _) => Some(Form::Frags),
            (GroMode::List, _) => Some(Form::List),
        }
    }
}

/// A packet that is held.
pub(super) struct Held {
    /// Its first segment, and the further ones: all of one region, none with a chain.
    pub(super) skb: Skb,
    pub(super) more: FrameChain,
    pub(super) hash: u32,
    pub(super) form: Form,
    pub(super) layout: Layout,
    /// When it came, in units of [`OLD`](super::OLD).
    pub(super) age: u64,
    /// Payload of its first segment.
    pub(super) size: u16,
    /// Segments so far.
    pub(super) count: u16,
    /// Bytes so far, from the first one's IP header on.
    pub(super) len: usize,
    /// Whether the L4 checksum of the first was found right, or is not looked at.
    pub(super) verified: bool,
    /// Whether all have the same IPv4 identification.
    pub(super) fixed_id: bool,
}

/// Why a packet was not merged with the held one of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// They differ.
    Mismatch,
    /// There is no room.
    Full,
}

/// Whether a packet can be the first of an aggregate, or a further one: all that does not depend on
/// others, but for the checksum.
#[inline(always)]
pub(super) fn is_mergeable(skb: &Skb, layout: &Layout, form: Form) -> bool {
    let data = skb.data();
    let packet = &data[layout.l3()..];
    let payload = packet.len() - layout.headers();
    let plain = !skb.is_chained() && skb.head().gso_size == 0 && skb.head().flags == 0;
    if !plain || payload == 0 || l3_len(packet, layout.is_v6) != packet.len() {
        return false;
    }
    if !layout.is_v6 {
        let Some(ip) = packet.first_chunk::<MIN_LEN>() else { return false };
        // 0xffff is how a sum of 0 would be written, and none is.
        if checksum::ipv4_header_sum(ip) != 0xffff || ip[10..12] == [0xff; 2] {
            return false;
        }
    }
    let check = be16(data, layout.check());
    match layout.l4_is {
        // The same.
        L4::Tcp => form == Form::List || check != 0xffff,
        L4::Udp => check != 0 && usize::from(be16(data, layout.l4() + 4)) == UDP_LEN + payload,
    }
}

/// TCP flags of a packet; 0 of UDP.
#[inline(always)]
pub(super) fn flags(data: &[u8], layout: &Layout) -> u8 {
    match layout.l4_is {
        L4::Tcp => data[layout.l4() + TCP_FLAGS],
        L4::Udp => 0,
    }
}

/// Flags that end an aggregate.
pub(super) const ENDS: u8 =
    tcp_flags::URG | tcp_flags::PSH | tcp_flags::RST | tcp_flags::SYN | tcp_flags::FIN;

/// The addresses of a packet.
#[inline(always)]
fn addresses<'a>(data: &'a [u8], layout: &Layout) -> &'a [u8] {
    let at = layout.l3() + if layout.is_v6 { 8 } else { 12 };
    &data[at..layout.l4()]
}

impl Held {
    /// Whether a packet with this hash is of the same flow: link header, tag, addresses, protocol,
    /// ports.
    #[inline(always)]
    pub(super) fn is_same_flow(&self, hash: u32, skb: &Skb, layout: &Layout) -> bool {
        let (a, b) = (&self.layout, layout);
        if self.hash != hash || (a.is_v6, a.l4_is, a.l3) != (b.is_v6, b.l4_is, b.l3) {
            return false;
        }
        let (ours, theirs) = (self.skb.data(), skb.data());
        // Addresses and ports are next to each other.
        let ends = a.l3() + if a.is_v6 { 8 } else { 12 }..a.l4() + 4;
        ours[ends.clone()] == theirs[ends]
            && ours[..a.l3()] == theirs[..a.l3()]
            && vlan::get(self.skb.head()) == vlan::get(skb.head())
    }

    /// Whether a packet with these addresses, in the order in which they are in a header, may be of
    /// the same flow.
    pub(super) fn has_ends(&self, ends: &[u8]) -> bool {
        addresses(self.skb.data(), &self.layout) == ends
    }

    /// Whether the packet, which [is mergeable](is_mergeable) and of the same flow, can be the next
    /// segment, its checksum aside.
    #[inline(always)]
    pub(super) fn accepts(&self, skb: &Skb, layout: &Layout, form: Form) -> Result<(), Refusal> {
        let (ours, theirs) = (self.skb.data(), skb.data());
        let payload = theirs.len() - layout.payload();
        let same = self.form == form
            && self.layout.payload == layout.payload
            && self.ip_fits(ours, theirs)
            && payload <= self.size.into()
            && match layout.l4_is {
                L4::Tcp => self.tcp_fits(ours, theirs),
                L4::Udp => true,
            }
            && (form == Form::Frags || self.skb.head().csum == skb.head().csum);
        if !same {
            return Err(Refusal::Mismatch);
        }
        // Of a list, whole packets count.
        let more = if form == Form::List { theirs.len() - layout.l3() } else { payload };
        if self.len + more >= MAX_SIZE { Err(Refusal::Full) } else { Ok(()) }
    }

    /// Segments that it may have.
    pub(super) fn most(&self) -> usize {
        match (self.layout.l4_is, self.form) {
            (L4::Tcp, Form::Frags) => MAX_FRAMES,
            (L4::Udp, _) | (_, Form::List) => MAX_DATAGRAMS,
        }
    }

    /// All of the IP header but lengths, checksum and what makes the flow.
    #[inline(always)]
    fn ip_fits(&self, ours: &[u8], theirs: &[u8]) -> bool {
        let l3 = self.layout.l3();
        if self.layout.is_v6 {
            return be32(ours, l3) == be32(theirs, l3) && ours[l3 + 7] == theirs[l3 + 7];
        }
        let same = ours[l3 + 1] == theirs[l3 + 1]
            && be16(ours, l3 + 6) == be16(theirs, l3 + 6)
            && ours[l3 + 8] == theirs[l3 + 8];
        // The second packet decides whether they count or stay the same.
        let steps = self.layout.id(theirs).wrapping_sub(self.layout.id(ours));
        let next = if self.count > 1 && self.fixed_id { steps == 0 } else { steps == self.count };
        same && (next || self.count == 1 && steps == 0)
    }

    /// All of the TCP header but ports and checksum.
    #[inline(always)]
    fn tcp_fits(&self, ours: &[u8], theirs: &[u8]) -> bool {
        let (l4, payload) = (self.layout.l4(), self.layout.payload());
        let so_far = self.len - self.layout.headers();
        let may_differ = match self.form {
            Form::Frags => tcp_flags::CWR | tcp_flags::FIN | tcp_flags::PSH,
            // It has but one header that is theirs all.
            Form::List => 0,
        };
        let (a, b) = (ours[l4 + TCP_FLAGS], theirs[l4 + TCP_FLAGS]);
        b & tcp_flags::CWR == 0
            && (a ^ b) & !may_differ == 0
            && self.layout.seq(theirs) == self.layout.seq(ours).wrapping_add(so_far as u32)
            // Acknowledgement, header length.
            && ours[l4 + 8..l4 + TCP_FLAGS] == theirs[l4 + 8..l4 + TCP_FLAGS]
            // Window.
            && be16(ours, l4 + 14) == be16(theirs, l4 + 14)
            // Urgent pointer, options.
            && ours[l4 + 18..payload] == theirs[l4 + 18..payload]
    }
}

/// Whether the L4 checksum of a packet is right, of which `csum` is known. A partial one is, if the
/// device says so, or if such may come without a word.
#[inline(always)]
pub(super) fn is_right(data: &[u8], csum: Csum, layout: &Layout, partial_csum: bool) -> bool {
    csum != Csum::None || {
        let pseudo = layout.pseudo(data, data.len() - layout.l4());
        // Whatever the sum is.
        partial_csum && be16(data, layout.check()) == pseudo
            || checksum::add(pseudo, checksum::sum(&data[layout.l4()..])) == 0xffff
    }
}

/// The same, and a partial one that comes without a word is completed.
#[inline(always)]
pub(super) fn is_completed(skb: &mut Skb, layout: &Layout) -> bool {
    let csum = skb.head().csum;
    csum != Csum::None || is_right(skb.data(), csum, layout, false) || complete(skb, layout)
}

#[cold]
fn complete(skb: &mut Skb, layout: &Layout) -> bool {
    let data = skb.data();
    let is_partial = be16(data, layout.check()) == layout.pseudo(data, data.len() - layout.l4());
    if is_partial {
        let check = layout.written(!checksum::sum(&data[layout.l4()..]));
        put(skb.data_mut(), layout.check(), check.to_be_bytes());
    }
    is_partial
}
