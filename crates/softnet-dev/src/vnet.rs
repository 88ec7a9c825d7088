//! The header in front of each frame of a TAP queue or a packet socket (`struct virtio_net_hdr`,
//! virtio 1.2 section 5.1.6.1, `include/uapi/linux/virtio_net.h`): what is known of the L4
//! checksum, and of which segments a frame consists.
//!
//! Called by the drivers `tap` and `packet`, by the owner of the packet. Invariant: what a [`Head`]
//! says after [`receive`] lies within the packet's first frame, whatever the header said; and a
//! header that [`transmit`] made says of the packet what its head does.

use softnet_core::gso::{self, TxOffloads};
use softnet_core::skb::{Csum, DropReason, GsoType, Head, Skb};

/// Bytes of the header, without the number of buffers that some devices append.
pub(crate) const LEN: usize = 10;

/// The checksum field holds the pseudo-header's sum only (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
const NEEDS_CSUM: u8 = 1;
/// It was found right (`VIRTIO_NET_HDR_F_DATA_VALID`).
const DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// The first of the segments has the TCP flag CWR (`VIRTIO_NET_HDR_GSO_ECN`).
const GSO_ECN: u8 = 0x80;

/// Bytes of a UDP header.
const UDP_LEN: usize = 8;
/// Where a TCP header says how long it is, and which flags it has.
const TCP_OFFSET: usize = 12;
const TCP_FLAGS: usize = 13;
const TCP_CWR: u8 = 0x80;

/// A header as the kernel reads and writes it. All numbers are in the order of this machine
/// (`virtio_legacy_is_little_endian`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VnetHdr {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

impl VnetHdr {
    pub(crate) fn from_bytes(bytes: [u8; LEN]) -> Self {
        let number = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        VnetHdr {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: number(2),
            gso_size: number(4),
            csum_start: number(6),
            csum_offset: number(8),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        (bytes[0], bytes[1]) = (self.flags, self.gso_type);
        let numbers = [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset];
        for (to, number) in bytes[2..].chunks_exact_mut(2).zip(numbers) {
            to.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    /// The frame begins `n` bytes earlier than the header says: a VLAN tag was put back behind its
    /// addresses.
    pub(crate) fn shifted(mut self, n: u16) -> Self {
        if self.flags & NEEDS_CSUM != 0 {
            self.csum_start = self.csum_start.saturating_add(n);
        }
        self
    }
}

/// Whether the checksum of `head` is left to be completed, and lies in the first `head_len` bytes.
fn partial(head: &Head, head_len: usize) -> Option<(usize, usize)> {
    let Csum::Partial { start, offset } = head.csum else { return None };
    let (start, offset) = (usize::from(start), usize::from(offset));
    (start + offset + 2 <= head_len).then_some((start, offset))
}

/// What the kernel does with a packet that comes with a header: cuts it, and completes its checksum, if its way asks for that.
/// Segments of UDP since Linux 6.2.
pub(crate) fn offloads(uso: bool) -> TxOffloads {
    TxOffloads { csum: true, tso4: true, tso6: true, uso }
}

/// Has the head of a received packet say what `header` says. Without `offloads` a checksum that is wanting is completed here,
/// and what is to be cut into segments is refused.
///
/// The reason is [`RxTooLong`](DropReason::RxTooLong) for that, and
/// [`PktTooSmall`](DropReason::PktTooSmall) if the header speaks of bytes that are not in the
/// packet, or of segments that softnet does not know.
pub(crate) fn receive(header: VnetHdr, skb: &mut Skb, offloads: bool) -> Result<(), DropReason> {
    if header == VnetHdr::default() {
        return Ok(());
    }
    if header.flags & NEEDS_CSUM != 0 {
        skb.head_mut().csum = Csum::Partial { start: header.csum_start, offset: header.csum_offset };
        gso::announce();
        if partial(skb.head(), skb.head_len()).is_none() {
            return Err(DropReason::PktTooSmall);
        }
    } else if header.flags & DATA_VALID != 0 {
        skb.head_mut().csum = Csum::Unnecessary;
    }
    let gso_type = match header.gso_type & !GSO_ECN {
        GSO_NONE if offloads => return Ok(()),
        GSO_NONE => {
            gso::complete(skb);
            return Ok(());
        }
        _ if !offloads => return Err(DropReason::RxTooLong),
        GSO_TCPV4 => GsoType::TcpV4,
        GSO_TCPV6 => GsoType::TcpV6,
        GSO_UDP_L4 => GsoType::UdpL4,
        _ => return Err(DropReason::PktTooSmall),
    };
    // The kernel leaves the checksum of what is to be cut to where it is cut.
    let (start, _) = partial(skb.head(), skb.head_len()).ok_or(DropReason::PktTooSmall)?;
    let l4_len = l4_len(gso_type, skb.data(), start).ok_or(DropReason::PktTooSmall)?;
    let payload = skb.len().saturating_sub(start + l4_len);
    if header.gso_size == 0 || payload == 0 {
        return Err(DropReason::PktTooSmall);
    }
    let segments = payload.div_ceil(header.gso_size.into());
    let head = skb.head_mut();
    head.gso_size = header.gso_size;
    head.gso_segs = u16::try_from(segments).unwrap_or(u16::MAX);
    head.gso_type = gso_type;
    Ok(())
}

/// The header that a packet is to leave with.
///
/// The reason is [`PktTooSmall`](DropReason::PktTooSmall) if its head speaks of bytes that are not
/// in its first frame.
pub(crate) fn transmit(skb: &Skb) -> Result<VnetHdr, DropReason> {
    let head = skb.head();
    let mut header = VnetHdr::default();
    if let Csum::Partial { start, offset } = head.csum {
        partial(head, skb.head_len()).ok_or(DropReason::PktTooSmall)?;
        (header.flags, header.csum_start, header.csum_offset) = (NEEDS_CSUM, start, offset);
    }
    let gso_type = match head.gso_type {
        GsoType::None => return Ok(header),
        GsoType::TcpV4 => GSO_TCPV4,
        GsoType::TcpV6 => GSO_TCPV6,
        GsoType::UdpL4 => GSO_UDP_L4,
        // Each segment has headers of its own: it is cut before, by what `offloads` says.
        GsoType::FragList => return Err(DropReason::PktTooSmall),
    };
    let (start, _) = partial(head, skb.head_len()).ok_or(DropReason::PktTooSmall)?;
    let l4_len = l4_len(head.gso_type, skb.data(), start).ok_or(DropReason::PktTooSmall)?;
    if head.gso_size == 0 || skb.len() <= start + l4_len + usize::from(head.gso_size) {
        // One segment, which needs no cutting.
        return Ok(header);
    }
    let is_cwr = head.gso_type != GsoType::UdpL4 && skb.data()[start + TCP_FLAGS] & TCP_CWR != 0;
    header.gso_type = gso_type | if is_cwr { GSO_ECN } else { 0 };
    header.gso_size = head.gso_size;
    header.hdr_len = (start + l4_len) as u16;
    Ok(header)
}

/// Bytes of the L4 header at `start`, if all of them are there.
fn l4_len(gso_type: GsoType, data: &[u8], start: usize) -> Option<usize> {
    let len = match gso_type {
        GsoType::None | GsoType::FragList => return None,
        GsoType::UdpL4 => UDP_LEN,
        GsoType::TcpV4 | GsoType::TcpV6 => {
            let words = usize::from(data.get(start + TCP_OFFSET)? >> 4);
            (words >= 5).then_some(words * 4)?
        }
    };
    (start + len <= data.len()).then_some(len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use softnet_core::SoftnetData;
    use softnet_core::ip::checksum;
    use softnet_core::skb::{CacheSizes, HeapMemory, Region};

    use super::*;

    const FRAMES: u32 = 64;
    /// Ethernet and IPv4.
    const START: usize = 34;

    fn context() -> SoftnetData {
        let memory = HeapMemory::new(Region::bytes(FRAMES, FRAMES));
        SoftnetData::new(Region::new(Box::new(memory), FRAMES, FRAMES).unwrap(), CacheSizes::default())
    }

    /// A packet of these bytes, in frames cut at `cut`.
    fn packet(ctx: &mut SoftnetData, bytes: &[u8], cut: usize) -> Skb {
        let (first, rest) = bytes.split_at(cut.min(bytes.len()));
        let mut skb = ctx.alloc_skb().unwrap();
        skb.put(first.len()).unwrap().copy_from_slice(first);
        for part in rest.chunks(700) {
            let mut more = ctx.alloc_skb().unwrap();
            more.put(part.len()).unwrap().copy_from_slice(part);
            skb.append(more).unwrap();
        }
        skb
    }

    fn tcp(payload: usize, flags: u8) -> Vec<u8> {
        let mut bytes = vec![0x11; START + 20 + payload];
        bytes[START + TCP_OFFSET] = 5 << 4;
        bytes[START + TCP_FLAGS] = flags;
        bytes
    }

    fn header(gso_type: u8, gso_size: u16) -> VnetHdr {
        VnetHdr {
            flags: NEEDS_CSUM,
            gso_type,
            // A hint, which the kernel may well make too large.
            hdr_len: 9999,
            gso_size,
            csum_start: START as u16,
            csum_offset: 16,
        }
    }

    #[test]
    fn segments_come_and_go_as_they_are() {
        let mut ctx = context();
        for (kind, gso_type, flags, segments) in [
            (GSO_TCPV4, GsoType::TcpV4, 0x10, 3),
            (GSO_TCPV6, GsoType::TcpV6, 0x18, 3),
            (GSO_TCPV4 | GSO_ECN, GsoType::TcpV4, 0x90, 3),
            (GSO_UDP_L4, GsoType::UdpL4, 0, 3),
        ] {
            let l4 = if gso_type == GsoType::UdpL4 { 8 } else { 20 };
            let bytes = tcp(2500 - 20 + l4, flags);
            let mut skb = packet(&mut ctx, &bytes, 100);
            receive(header(kind, 1000), &mut skb, true).unwrap();
            let head = skb.head();
            assert_eq!((head.gso_type, head.gso_size, head.gso_segs), (gso_type, 1000, segments));
            assert_eq!(head.csum, Csum::Partial { start: START as u16, offset: 16 });
            assert_eq!(
                transmit(&skb),
                Ok(VnetHdr { hdr_len: (START + l4) as u16, ..header(kind, 1000) }),
                "{gso_type:?}"
            );
            ctx.free_skb(skb);
        }
        // What the sender made one segment of is sent as one.
        let bytes = tcp(1000, 0x10);
        let mut skb = packet(&mut ctx, &bytes, 100);
        receive(header(GSO_TCPV4, 1000), &mut skb, true).unwrap();
        assert_eq!(skb.head().gso_segs, 1);
        assert_eq!(transmit(&skb), Ok(VnetHdr { hdr_len: 0, ..header(GSO_NONE, 0) }));
        ctx.free_skb(skb);
        ctx.drain();
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let mut ctx = context();
        let good = header(GSO_TCPV4, 1000);
        for (bad, len, reason) in [
            (VnetHdr { csum_start: 2000, ..good }, 2500, DropReason::PktTooSmall),
            (VnetHdr { csum_start: u16::MAX, csum_offset: u16::MAX, ..good }, 2500, DropReason::PktTooSmall),
            (VnetHdr { flags: 0, ..good }, 2500, DropReason::PktTooSmall),
            (VnetHdr { gso_size: 0, ..good }, 2500, DropReason::PktTooSmall),
            // UDP fragmentation offload, which was never asked for.
            (VnetHdr { gso_type: 3, ..good }, 2500, DropReason::PktTooSmall),
            (good, 0, DropReason::PktTooSmall),
        ] {
            let bytes = tcp(len, 0);
            let mut skb = packet(&mut ctx, &bytes, 100);
            assert_eq!(receive(bad, &mut skb, true), Err(reason), "{bad:?}");
            ctx.free_skb(skb);
        }
        // A TCP header that says it is longer than what is there.
        let mut bytes = tcp(40, 0);
        bytes[START + TCP_OFFSET] = 0xf0;
        let mut skb = packet(&mut ctx, &bytes, START + 20);
        assert_eq!(receive(good, &mut skb, true), Err(DropReason::PktTooSmall));
        ctx.free_skb(skb);
        let bytes = tcp(2500, 0);
        let mut skb = packet(&mut ctx, &bytes, 100);
        assert_eq!(receive(good, &mut skb, false), Err(DropReason::RxTooLong), "segments were not asked for");
        skb.head_mut().csum = Csum::Partial { start: 90, offset: 9 };
        assert_eq!(transmit(&skb), Err(DropReason::PktTooSmall));
        ctx.free_skb(skb);
        ctx.drain();
    }

    #[test]
    fn what_was_found_right_is_known_to_be() {
        let mut ctx = context();
        let bytes = tcp(10, 0);
        let mut skb = packet(&mut ctx, &bytes, 100);
        receive(VnetHdr { flags: DATA_VALID, ..VnetHdr::default() }, &mut skb, false).unwrap();
        assert_eq!(skb.head().csum, Csum::Unnecessary);
        assert_eq!(transmit(&skb), Ok(VnetHdr::default()));
        ctx.free_skb(skb);
        ctx.drain();
    }

    proptest! {
        #[test]
        fn the_bytes_are_the_header(bytes: [u8; LEN]) {
            prop_assert_eq!(VnetHdr::from_bytes(bytes).to_bytes(), bytes);
        }

        /// Whatever a header says of whatever packet: no panic, and nothing points out of the
        /// packet.
        #[test]
        fn any_header_is_taken_or_refused(
            bytes: [u8; LEN],
            small in 0u16..200,
            data in prop::collection::vec(any::<u8>(), 1..3000),
            cut in 1usize..1700,
            offloads: bool,
        ) {
            let mut ctx = context();
            for csum_start in [VnetHdr::from_bytes(bytes).csum_start, small] {
                let mut skb = packet(&mut ctx, &data, cut);
                let header = VnetHdr { csum_start, ..VnetHdr::from_bytes(bytes) };
                if receive(header, &mut skb, offloads).is_ok() {
                    let told = transmit(&skb);
                    prop_assert!(told.is_ok(), "{:?}", told);
                }
                ctx.free_skb(skb);
            }
            ctx.drain();
        }

        /// A receiver finds it right, in however many frames the packet is.
        #[test]
        fn a_checksum_is_completed(mut data in prop::collection::vec(any::<u8>(), 60..3000), cut in 54usize..1700) {
            let mut ctx = context();
            data[START + 16..START + 18].fill(0);
            let pseudo = 0x1234;
            data[START + 16..START + 18].copy_from_slice(&u16::to_be_bytes(pseudo));
            let mut skb = packet(&mut ctx, &data, cut);
            receive(header(GSO_NONE, 0), &mut skb, false).unwrap();
            prop_assert_eq!(skb.head().csum, Csum::Unnecessary);
            let all: Vec<u8> = skb.frames().flatten().copied().collect();
            prop_assert_eq!(checksum::add(pseudo, checksum::sum(&all[START..])), 0xffff);
            ctx.free_skb(skb);
            ctx.drain();
        }
    }
}
