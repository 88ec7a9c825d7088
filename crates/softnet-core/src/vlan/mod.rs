//! VLAN tags (IEEE 802.1Q): out of a frame into its head, and back.
//!
//! Called where frames come in and where they leave, by the owner of the skb. Invariant: of the tags
//! of a packet, the outermost is in the frame or in the head, never in both.

#[cfg(all(any(test, fuzzing), not(feature = "loom")))]
pub(crate) mod fuzz;
mod group;

pub use group::VlanGroup;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::SoftnetData;
use crate::ip::ETH_LEN;
use crate::ip::ethernet::{EthHeader, TAG_LEN, ethertype};
use crate::skb::{Batch, Csum, DropReason, Head, Skb, VlanProto};

/// Bytes of the addresses, behind which a tag is.
const ADDRESSES: usize = ETH_LEN - 2;

/// Whether any head has been given a tag: as long as none has, none is looked for. What hands a
/// packet over to another thread orders this, too.
static TAGS: AtomicBool = AtomicBool::new(false);

/// Has a packet leave with a tag: of kind `proto`, with this control information (priority, DEI,
/// VLAN id).
pub fn set(head: &mut Head, proto: VlanProto, tci: u16) {
    if !TAGS.load(Relaxed) {
        TAGS.store(true, Relaxed);
    }
    (head.vlan_proto, head.vlan_tci) = (proto, tci);
}

/// The tag that a packet is to leave with: its kind and control information.
pub fn get(head: &Head) -> Option<(VlanProto, u16)> {
    (head.vlan_proto != VlanProto::None).then_some((head.vlan_proto, head.vlan_tci))
}

/// Moves the outer tag of a frame into its head (the kernel's `skb_vlan_untag`). Returns whether
/// there is one, and none in the head yet. Offsets in the head of what is behind it move along.
pub fn take_out(skb: &mut Skb) -> bool {
    let proto = match EthHeader::new(skb.data()).map(|header| header.ethertype()) {
        Some(ethertype::VLAN) => VlanProto::Dot1q,
        Some(ethertype::PROVIDER_VLAN) => VlanProto::Dot1ad,
        _ => return false,
    };
    if skb.head().vlan_proto != VlanProto::None {
        return false;
    }
    let Some(header) = skb.data_mut().get_mut(..ETH_LEN + TAG_LEN) else { return false };
    let tci = u16::from_be_bytes([header[ETH_LEN], header[ETH_LEN + 1]]);
    // The addresses move to where it ends.
    header.copy_within(..ADDRESSES, TAG_LEN);
    // It is that long.
    let _ = skb.pull(TAG_LEN);
    let head = skb.head_mut();
    set(head, proto, tci);
    let behind = |at: u16| at.saturating_sub(TAG_LEN as u16);
    (head.l3, head.l4) = (behind(head.l3), behind(head.l4));
    match &mut head.csum {
        Csum::Partial { start, .. } => *start = behind(*start),
        // It was summed with the tag.
        Csum::Complete { .. } => head.csum = Csum::None,
        Csum::None | Csum::Unnecessary => {}
    }
    true
}

/// Moves the tag that the head has into the frame (the kernel's `__vlan_hwaccel_push_inside`). The
/// reason, if that can't be.
fn put_back(skb: &mut Skb) -> Result<(), DropReason> {
    let proto = match skb.head().vlan_proto {
        VlanProto::None => return Ok(()),
        VlanProto::Dot1q => ethertype::VLAN,
        VlanProto::Dot1ad => ethertype::PROVIDER_VLAN,
    };
    if skb.head_len() < ETH_LEN {
        return Err(DropReason::PktTooSmall);
    }
    let tci = skb.head().vlan_tci;
    skb.push(TAG_LEN).ok_or(DropReason::NoHeadroom)?;
    let data = skb.data_mut();
    data.copy_within(TAG_LEN..TAG_LEN + ADDRESSES, 0);
    data[ADDRESSES..ETH_LEN].copy_from_slice(&proto.to_be_bytes());
    data[ETH_LEN..ETH_LEN + 2].copy_from_slice(&tci.to_be_bytes());
    let head = skb.head_mut();
    head.vlan_proto = VlanProto::None;
    let behind = |at: u16| if at == 0 { 0 } else { at + TAG_LEN as u16 };
    (head.l3, head.l4) = (behind(head.l3), behind(head.l4));
    if let Csum::Partial { start, .. } = &mut head.csum {
        *start += TAG_LEN as u16;
    }
    Ok(())
}

/// Has the packets of `batch` leave with one more tag, outside those that they have: VLAN `id` of
/// kind `proto`. Those without room are freed, and counted at device `dev`.
pub fn push(ctx: &mut SoftnetData, dev: u16, (proto, id): (VlanProto, u16), batch: &mut Batch) {
    if batch.as_slice().iter().any(|skb| get(skb.head()).is_some()) {
        put_back_some(ctx, dev, batch);
    }
    batch.as_mut_slice().iter_mut().for_each(|skb| set(skb.head_mut(), proto, id));
}

/// Puts the tags of packets that are about to leave by device `dev` into their frames. Those for
/// which there is no room are freed, and counted there. A batch costs a load where there are no
/// tags at all, and a look at each head elsewhere.
#[inline(always)]
pub fn put_back_all(ctx: &mut SoftnetData, dev: u16, batch: &mut Batch) {
    if TAGS.load(Relaxed) && batch.as_slice().iter().any(|skb| skb.head().vlan_proto != VlanProto::None) {
        put_back_some(ctx, dev, batch);
    }
}

#[cold]
#[inline(never)]
fn put_back_some(ctx: &mut SoftnetData, dev: u16, batch: &mut Batch) {
    let mut some = std::mem::take(batch);
    for mut skb in some.drain() {
        let kept = match put_back(&mut skb) {
            Ok(()) => batch.push(skb).map_err(|skb| (skb, DropReason::FullRing)),
            Err(reason) => Err((skb, reason)),
        };
        if let Err((skb, reason)) = kept {
            ctx.free_at(skb, dev, reason);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::ip::testing::context;

    fn frame(ctx: &mut SoftnetData, tag: &[u8]) -> (Skb, Vec<u8>) {
        let bytes = [&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12][..], tag, &[8, 0], &[0x45; 30]].concat();
        let mut skb = ctx.alloc_skb().unwrap();
        skb.put(bytes.len()).unwrap().copy_from_slice(&bytes);
        (skb, bytes)
    }

    #[test]
    fn a_tag_comes_out_and_goes_back() {
        let mut ctx = context();
        for (proto, id) in [(VlanProto::Dot1q, [0x81, 0]), (VlanProto::Dot1ad, [0x88, 0xa8])] {
            let tag = [id[0], id[1], 0x60, 7];
            let (mut skb, bytes) = frame(&mut ctx, &tag);
            let (other, untagged) = frame(&mut ctx, &[]);
            assert!(take_out(&mut skb));
            assert_eq!(get(skb.head()), Some((proto, 0x6007)));
            assert_eq!(skb.data(), untagged);
            assert!(!take_out(&mut skb));
            skb.head_mut().csum = Csum::Partial { start: 34, offset: 6 };
            (skb.head_mut().l3, skb.head_mut().l4) = (14, 0);
            let mut batch = Batch::from(skb);
            batch.push(other).unwrap();
            put_back_all(&mut ctx, 3, &mut batch);
            let packets: Vec<_> = batch.drain().collect();
            assert_eq!((packets[0].data(), packets[1].data()), (&bytes[..], &untagged[..]));
            let head = packets[0].head();
            assert_eq!((head.vlan_proto, head.l3, head.l4), (VlanProto::None, 18, 0));
            assert_eq!(head.csum, Csum::Partial { start: 38, offset: 6 });
            packets.into_iter().for_each(|skb| ctx.free_skb(skb));
        }
        ctx.drain();
    }

    #[test]
    fn a_tag_without_room_is_counted_where_the_packet_was_to_leave() {
        let mut ctx = context();
        let frame = ctx.alloc_frame().unwrap();
        let mut skb = ctx.build_skb(frame, 3, 60).unwrap();
        let mut short = ctx.alloc_skb().unwrap();
        short.put(13).unwrap().fill(0);
        for skb in [&mut skb, &mut short] {
            set(skb.head_mut(), VlanProto::Dot1q, 0);
        }
        let mut batch = Batch::from(skb);
        batch.push(short).unwrap();
        put_back_all(&mut ctx, 3, &mut batch);
        assert!(batch.is_empty());
        let drops = [DropReason::NoHeadroom, DropReason::PktTooSmall].map(|why| ctx.stats().drops(3, why));
        assert_eq!(drops, [1, 1]);
        ctx.drain();
    }
}
