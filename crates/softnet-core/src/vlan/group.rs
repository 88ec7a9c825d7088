//! Which VLANs of a link are received, and by which device (the kernel's `vlan_group`).
//!
//! Asked by the threads that receive what came by the link, batch by batch; another may add VLANs
//! meanwhile. Invariant: a packet that is handed up has neither in its frame nor in its head the tag
//! that it came with, and says that it came by the VLAN's device.

use std::sync::OnceLock;

use super::take_out;
use crate::SoftnetData;
use crate::ip::ethernet::{EthHeader, ethertype};
use crate::skb::{Batch, DropReason, Skb, VlanProto};
use crate::sync::{AtomicU16, Ordering};

/// The VLAN in control information (IEEE 802.1Q section 9.6).
const VID: u16 = 0x0fff;
/// In place of a device: there is none.
const NONE: u16 = u16::MAX;

/// Devices by VLAN id.
type Ids = Box<[AtomicU16]>;

/// The VLANs over one device, by kind and number.
#[derive(Debug, Default)]
pub struct VlanGroup {
    customer: OnceLock<Ids>,
    provider: OnceLock<Ids>,
}

impl VlanGroup {
    /// Without any VLAN.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is one.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.customer.get().is_some() || self.provider.get().is_some()
    }

    /// Leads VLAN `id` (of which 12 bits count) of kind `proto` to device `dev`.
    pub fn insert(&self, proto: VlanProto, id: u16, dev: u16) {
        let ids = match proto {
            VlanProto::None => return,
            VlanProto::Dot1q => &self.customer,
            VlanProto::Dot1ad => &self.provider,
        };
        let none = || (0..=VID).map(|_| AtomicU16::new(NONE)).collect();
        // The index is all that readers get by it: what it leads to they find, or not, by themselves.
        ids.get_or_init(none)[usize::from(id & VID)].store(dev, Ordering::Relaxed);
    }

    /// The device for a tag.
    fn device(&self, proto: VlanProto, tci: u16) -> Option<u16> {
        let ids = match proto {
            VlanProto::None => return None,
            VlanProto::Dot1q => &self.customer,
            VlanProto::Dot1ad => &self.provider,
        };
        let dev = ids.get()?[usize::from(tci & VID)].load(Ordering::Relaxed);
        Some(dev).filter(|dev| *dev != NONE)
    }

    /// Takes out of `batch` the packets of one VLAN, in order, and says which device they came by;
    /// `None` if there are none any more. Packets that have no tag, or one of a priority alone
    /// (IEEE 802.1Q section 6.9), stay; those of another VLAN are freed.
    pub fn next(&self, ctx: &mut SoftnetData, batch: &mut Batch) -> Option<(u16, Batch)> {
        let first = batch.as_slice().iter().position(|skb| vlan_of(skb).is_some())?;
        self.sort(ctx, first, batch)
    }

    #[inline(never)]
    fn sort(&self, ctx: &mut SoftnetData, first: usize, batch: &mut Batch) -> Option<(u16, Batch)> {
        let (mut up, mut rest, mut dev) = (Batch::new(), Batch::new(), None);
        for (at, mut skb) in std::mem::take(batch).drain().enumerate() {
            let to = vlan_of(&skb).filter(|_| at >= first).map(|(proto, tci)| self.device(proto, tci));
            let kept = match to {
                None => rest.push(skb),
                Some(Some(to)) if *dev.get_or_insert(to) == to => {
                    hand_up(&mut skb, to);
                    up.push(skb)
                }
                Some(Some(_)) => rest.push(skb),
                Some(None) => {
                    ctx.free(skb, DropReason::VlanUnknown);
                    Ok(())
                }
            };
            // All batches have as many places.
            if let Err(skb) = kept {
                ctx.free(skb, DropReason::Shutdown);
            }
        }
        *batch = rest;
        dev.map(|dev| (dev, up))
    }
}

/// The outermost tag of a packet, if that is of a VLAN.
#[inline(always)]
fn vlan_of(skb: &Skb) -> Option<(VlanProto, u16)> {
    let (proto, tci) = super::get(skb.head()).or_else(|| in_frame(skb.data()))?;
    (tci & VID != 0).then_some((proto, tci))
}

/// The outer tag in a frame.
#[inline(always)]
fn in_frame(frame: &[u8]) -> Option<(VlanProto, u16)> {
    let proto = match EthHeader::new(frame)?.ethertype() {
        ethertype::VLAN => VlanProto::Dot1q,
        ethertype::PROVIDER_VLAN => VlanProto::Dot1ad,
        _ => return None,
    };
    let tci = frame.get(crate::ip::ETH_LEN..)?.first_chunk()?;
    Some((proto, u16::from_be_bytes(*tci)))
}

/// Makes of a packet what came by the VLAN's device `dev`: without the outermost tag.
fn hand_up(skb: &mut Skb, dev: u16) {
    take_out(skb);
    let head = skb.head_mut();
    (head.vlan_proto, head.vlan_tci, head.dev) = (VlanProto::None, 0, dev);
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ip::testing::context;
    use crate::skb::{BATCH, Csum};

    const C: [u8; 2] = [0x81, 0x00];
    const S: [u8; 2] = [0x88, 0xa8];

    /// A frame whose last byte is `mark`, with these tags, the outermost first.
    fn packet(ctx: &mut SoftnetData, tags: &[([u8; 2], u16)], mark: u8) -> Skb {
        let mut bytes = vec![2; 12];
        tags.iter().for_each(|(kind, tci)| bytes.extend([*kind, tci.to_be_bytes()].concat()));
        bytes.extend([8, 0, 0x45, mark]);
        let mut skb = ctx.alloc_skb().unwrap();
        skb.put(bytes.len()).unwrap().copy_from_slice(&bytes);
        skb.head_mut().dev = 1;
        skb
    }

    fn group() -> VlanGroup {
        let group = VlanGroup::new();
        group.insert(VlanProto::Dot1q, 5, 10);
        group.insert(VlanProto::Dot1q, 4094, 11);
        group.insert(VlanProto::Dot1ad, 5, 12);
        group
    }

    /// By device what comes up, by marks; at last what stays.
    fn sorted(ctx: &mut SoftnetData, group: &VlanGroup, mut batch: Batch) -> Vec<(u16, Vec<u8>)> {
        let mut all = Vec::new();
        let marks = |ctx: &mut SoftnetData, batch: &mut Batch, dev| {
            let mark = |skb: Skb| {
                assert_eq!((skb.head().dev, skb.head().vlan_proto), (dev, VlanProto::None));
                let mark = *skb.data().last().unwrap();
                ctx.free_skb(skb);
                mark
            };
            batch.drain().map(mark).collect()
        };
        while let Some((dev, mut some)) = group.next(ctx, &mut batch) {
            all.push((dev, marks(ctx, &mut some, dev)));
        }
        all.push((1, marks(ctx, &mut batch, 1)));
        all
    }

    #[test]
    fn packets_go_to_the_devices_of_their_vlans_in_order() {
        let mut ctx = context();
        let mut batch = Batch::new();
        for (mark, tags) in [
            &[][..],
            &[(C, 5)],
            &[(C, 0xe000 | 4094)],
            &[(C, 6)],
            &[(C, 0x2005)],
            &[(S, 5), (C, 5)],
            &[(C, 0xe000)],
            &[(S, 4094)],
            &[(S, 0)],
        ]
        .into_iter()
        .enumerate()
        {
            batch.push(packet(&mut ctx, tags, mark as u8)).unwrap();
        }
        // One whose tag a driver has told beside the frame.
        let mut beside = packet(&mut ctx, &[], 9);
        crate::vlan::set(beside.head_mut(), VlanProto::Dot1q, 5);
        batch.push(beside).unwrap();
        let want = [(10, vec![1, 4, 9]), (11, vec![2]), (12, vec![5]), (1, vec![0, 6, 8])];
        assert_eq!(sorted(&mut ctx, &group(), batch), want);
        assert_eq!(ctx.stats().drops(1, DropReason::VlanUnknown), 2);
        // The inner tag stays, for the next device's group.
        let mut batch = Batch::from(packet(&mut ctx, &[(S, 5), (C, 7)], 0));
        let (_, mut up) = group().next(&mut ctx, &mut batch).unwrap();
        let skb = up.pop().unwrap();
        assert_eq!(in_frame(skb.data()), Some((VlanProto::Dot1q, 7)));
        ctx.free_skb(skb);
        ctx.drain();
    }

    #[test]
    fn offsets_move_with_the_tag() {
        let mut ctx = context();
        let mut skb = packet(&mut ctx, &[(C, 5)], 0);
        let head = skb.head_mut();
        (head.l3, head.l4, head.csum) = (18, 0, Csum::Partial { start: 38, offset: 6 });
        let (_, mut up) = group().next(&mut ctx, &mut Batch::from(skb)).unwrap();
        let skb = up.pop().unwrap();
        let head = skb.head();
        assert_eq!((head.l3, head.l4, head.csum), (14, 0, Csum::Partial { start: 34, offset: 6 }));
        ctx.free_skb(skb);
        ctx.drain();
    }

    proptest! {
        /// Every packet comes up once, stays, or is counted; whatever its bytes are.
        #[test]
        fn none_is_lost(frames in prop::collection::vec(prop::collection::vec(
            prop_oneof![Just(0x81), Just(0x88), Just(0xa8), Just(0), Just(5)], 1..24), 0..BATCH)) {
            let mut ctx = context();
            let mut batch = Batch::new();
            for bytes in &frames {
                // Behind the addresses.
                let mut skb = ctx.alloc_skb().unwrap();
                skb.put(12).unwrap().fill(2);
                skb.put(bytes.len()).unwrap().copy_from_slice(bytes);
                skb.head_mut().dev = 1;
                batch.push(skb).unwrap();
            }
            let out: usize = sorted(&mut ctx, &group(), batch).iter().map(|(_, marks)| marks.len()).sum();
            prop_assert_eq!(out as u64 + ctx.stats().drops(1, DropReason::VlanUnknown), frames.len() as u64);
            ctx.drain();
        }

        /// What is sent by a VLAN over a VLAN is received by the two.
        #[test]
        fn tags_are_put_and_taken_in_turn(inner in 1u16..4095, outer in 1u16..4095) {
            let mut ctx = context();
            let skb = packet(&mut ctx, &[], 7);
            let bytes = skb.data().to_vec();
            let mut batch = Batch::from(skb);
            for tag in [(VlanProto::Dot1q, inner), (VlanProto::Dot1ad, outer)] {
                crate::vlan::push(&mut ctx, 2, tag, &mut batch);
            }
            crate::vlan::put_back_all(&mut ctx, 1, &mut batch);
            let tags = [&S[..], &outer.to_be_bytes(), &C, &inner.to_be_bytes()].concat();
            prop_assert_eq!(&batch.as_slice()[0].data()[12..20], &tags[..]);
            for (proto, id, dev) in [(VlanProto::Dot1ad, outer, 3), (VlanProto::Dot1q, inner, 4)] {
                let group = VlanGroup::new();
                group.insert(proto, id, dev);
                let (to, up) = group.next(&mut ctx, &mut batch).unwrap();
                prop_assert!(to == dev && batch.is_empty());
                batch = up;
            }
            let skb = batch.pop().unwrap();
            prop_assert_eq!(skb.data(), &bytes[..]);
            ctx.free_skb(skb);
            ctx.drain();
        }
    }
}
