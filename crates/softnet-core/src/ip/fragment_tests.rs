//! What is cut fits, says where it belongs, and can be put together again.

use proptest::prelude::*;

use super::*;
use crate::SoftnetData;
use crate::ip::reassembly::{FragParams, Reassembly};
use crate::ip::testing::context;
use crate::ip::v4::header::{protocol, validate};
use crate::siphash::SipKey;

const V4: Addresses = Addresses::V4 { src: Ipv4Addr::new(10, 0, 0, 1), dst: Ipv4Addr::new(10, 0, 0, 2) };
const V6: Addresses = Addresses::V6 {
    src: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
    dst: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
    dev: 0,
};

fn datagram(addresses: Addresses) -> Datagram {
    Datagram { addresses, protocol: 132, ttl: 63, tos: 0x28, id: 0x12_3456, dont_fragment: false }
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31) ^ (i >> 8)) as u8).collect()
}

/// The packets of a list, as bytes from the IP header on; frees them.
fn packets(ctx: &mut SoftnetData, mut list: SkbList) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while let Some(skb) = list.pop_front() {
        assert_eq!(usize::from(skb.head().l3), ETH_LEN);
        packets.push(skb.data()[ETH_LEN..].to_vec());
        ctx.free_skb(skb);
    }
    packets
}

/// Puts packets together; `None` if nothing comes of it.
fn join(ctx: &mut SoftnetData, packets: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut frags = Reassembly::new(FragParams::default(), SipKey::new([1, 1]));
    let mut done = None;
    for packet in packets {
        let mut skb = ctx.alloc_skb().unwrap();
        skb.put(packet.len()).unwrap().copy_from_slice(packet);
        skb.head_mut().l3 = 0;
        let whole = match packet[0] >> 4 {
            6 => frags.ipv6(ctx, 0, skb),
            _ => frags.ipv4(ctx, 0, skb),
        };
        match whole {
            Ok(None) => {}
            Ok(Some(run)) => {
                done = Some(run.frames().flatten().copied().collect());
                ctx.deliver(run);
            }
            Err((skb, reason)) => panic!("{reason:?}: {:?}", (ctx.free(skb, reason), &packet[..20])),
        }
    }
    frags.shutdown(ctx);
    done
}

#[test]
fn one_packet_if_it_fits() {
    let mut ctx = context();
    for (addresses, header) in [(V4, 20), (V6, 40)] {
        for len in [0, 1, 100, 1500 - header] {
            let data = payload(len);
            let pieces = data.chunks(7);
            let list = emit(&mut ctx, &datagram(addresses), 1500, len, pieces).unwrap();
            assert_eq!(list.data().next().unwrap()[..12], [0; 12]);
            let sent = packets(&mut ctx, list);
            assert_eq!((sent.len(), sent[0].len(), &sent[0][header..]), (1, header + len, &data[..]));
            if header == 20 {
                let fields = Ipv4Header::new(&sent[0]).unwrap();
                assert_eq!(validate(&sent[0]).unwrap().total, 20 + len);
                assert!(!fields.is_fragment() && !fields.dont_fragment());
                assert_eq!((fields.ttl(), fields.tos(), fields.protocol()), (63, 0x28, 132));
                assert_eq!((fields.src(), fields.dst(), fields.id()), (0x0a00_0001, 0x0a00_0002, 0x3456));
            } else {
                assert_eq!(sent[0][..4], [0x62, 0x80, 0, 0]);
                assert_eq!((sent[0][6], sent[0][7]), (132, 63));
                assert_eq!(sent[0][8..24], Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).octets());
            }
        }
    }
}

#[test]
fn what_does_not_fit_and_may_not_be_cut() {
    let mut ctx = context();
    let mut emit_of = |addresses, dont_fragment, mtu, len| {
        let datagram = Datagram { dont_fragment, ..datagram(addresses) };
        let data = payload(len);
        let list = emit(&mut ctx, &datagram, mtu, len, [&data[..]]);
        list.map(|list| packets(&mut ctx, list).len())
    };
    let too_big = Err(DropReason::PktTooBig);
    for (addresses, most, header) in [(V4, MAX_PAYLOAD_V4, 20), (V6, MAX_PAYLOAD_V6, 40)] {
        assert_eq!(emit_of(addresses, true, 1500, 1500 - header), Ok(1));
        assert_eq!(emit_of(addresses, true, 1500, 1501 - header), too_big);
        assert_eq!(emit_of(addresses, false, 1500, 1501 - header), Ok(2));
        assert_eq!(emit_of(addresses, false, 1500, most + 1), too_big);
        // The last piece is what is left, however little.
        assert_eq!(emit_of(addresses, false, 1500, most), Ok(if header == 20 { 45 } else { 46 }));
        // An MTU that not even eight bytes fit into.
        for mtu in [0, 7, header, header + 7] {
            assert_eq!(emit_of(addresses, false, mtu, 100), too_big);
        }
        // One that no skb has room for.
        assert!(emit_of(addresses, false, 9000, 3000).unwrap() == 2);
    }
}

#[test]
fn missing_bytes_are_zero_and_others_are_left() {
    let mut ctx = context();
    let list = emit(&mut ctx, &datagram(V4), 1500, 10, [&[1, 2][..], &[], &[3]]).unwrap();
    assert_eq!(packets(&mut ctx, list)[0][20..], [1, 2, 3, 0, 0, 0, 0, 0, 0, 0]);
    let list = emit(&mut ctx, &datagram(V4), 1500, 2, [&[1, 2, 3, 4][..]]).unwrap();
    assert_eq!(packets(&mut ctx, list)[0][20..], [1, 2]);
}

/// A packet in an skb, whose options are `options` as they are.
fn packet(ctx: &mut SoftnetData, options: &[u8], word: u16, len: usize) -> Skb {
    let header = 20 + options.len();
    let mut skb = ctx.alloc_skb().unwrap();
    let data = skb.put(ETH_LEN + header + len).unwrap();
    data[..ETH_LEN].fill(0);
    let ip = &mut data[ETH_LEN..];
    let total = ip.len() as u16;
    Ipv4Header::new_mut(ip).unwrap().fill(total, 9, 64, protocol::UDP, 1 << 24, 2 << 24);
    ip[0] = 0x40 | (header / 4) as u8;
    ip[6..8].copy_from_slice(&word.to_be_bytes());
    ip[20..header].copy_from_slice(options);
    ip[header..].copy_from_slice(&payload(len));
    ip[10..12].fill(0);
    let check = checksum::checksum(&ip[..header]);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    let head = skb.head_mut();
    (head.l3, head.dev, head.queue, head.hash) = (ETH_LEN as u16, 3, 2, 77);
    skb
}

#[test]
fn options_that_are_damaged_are_copied_no_further() {
    let mut ctx = context();
    for (options, copied) in [
        // Longer than there is room for; without a length; of length 0 and 1, which is taken for the least there is.
        ([0x88, 4, 1, 2, 0x94, 9, 0, 0], &[0x88, 4, 1, 2][..]),
        ([0x88, 4, 1, 2, 1, 1, 1, 0x94], &[0x88, 4, 1, 2]),
        ([0x94, 0, 1, 1, 0, 0x88, 4, 1], &[0x94, 0, 0, 0]),
        ([7, 8, 4, 0, 0, 0, 0, 0], &[]),
    ] {
        let skb = packet(&mut ctx, &options, 0, 800);
        let list = split(&mut ctx, skb, 600).map_err(|_| ()).unwrap();
        let sent = packets(&mut ctx, list);
        assert_eq!(sent[0][20..28], options);
        let header = validate(&sent[1]).unwrap().header;
        assert_eq!(sent[1][20..header], *copied, "{options:?}");
    }
}

#[test]
fn pieces_are_of_the_same_flow_and_not_made_here() {
    let mut ctx = context();
    let skb = packet(&mut ctx, &[], 0, 1400);
    let mut list = split(&mut ctx, skb, 600).map_err(|_| ()).unwrap();
    assert_eq!(list.len(), 3);
    while let Some(skb) = list.pop_front() {
        let head = skb.head();
        assert_eq!((head.dev, head.queue, head.hash, head.flags), (3, 2, 0, 0));
        ctx.free_skb(skb);
    }
}

proptest! {
    #[test]
    fn emitted_and_put_together(six: bool, mtu in 68usize..1790, len in 0usize..20_000, step in 1usize..3000) {
        let mut ctx = context();
        let mtu = if six { mtu.max(1280) } else { mtu.max(len / 64 + 28 + 8) };
        let data = payload(len);
        let addresses = if six { V6 } else { V4 };
        let list = emit(&mut ctx, &datagram(addresses), mtu, len, data.chunks(step)).unwrap();
        let sent = packets(&mut ctx, list);
        prop_assert!(sent.iter().all(|packet| packet.len() <= mtu));
        if sent.len() > 1 {
            let whole = join(&mut ctx, &sent).unwrap();
            let header = if six { 40 } else { 20 };
            prop_assert_eq!(&whole[header..], &data[..]);
            // The header is that of a datagram which did not have to be cut.
            prop_assert_eq!(whole[1], if six { 0x80 } else { 0x28 });
            prop_assert_eq!(whole[if six { 6 } else { 9 }], 132);
        }
    }

    #[test]
    fn split_and_put_together(
        options in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0x88), any::<u8>()], 0..40),
        len in 0usize..1600,
        mtu in 0usize..1700,
        word in prop_oneof![4 => Just(0u16), 1 => any::<u16>()],
    ) {
        let mut ctx = context();
        let options = &options[..options.len() / 4 * 4];
        let skb = packet(&mut ctx, options, word, len);
        let original = skb.data()[ETH_LEN..].to_vec();
        match split(&mut ctx, skb, mtu) {
            Ok(list) => {
                let sent = packets(&mut ctx, list);
                let mut at = usize::from(word & 0x1fff) * 8;
                let mut data: Vec<u8> = Vec::new();
                for (i, packet) in sent.iter().enumerate() {
                    let lengths = validate(packet).unwrap();
                    let fields = Ipv4Header::new(packet).unwrap();
                    prop_assert!(packet.len() <= mtu && lengths.total == packet.len());
                    prop_assert_eq!(usize::from(fields.fragment_offset()) * 8, at);
                    prop_assert_eq!(fields.more_fragments(), i + 1 < sent.len() || word >> 13 & 1 != 0);
                    at += lengths.total - lengths.header;
                    data.extend(&packet[lengths.header..]);
                }
                prop_assert_eq!(&data[..], &original[20 + options.len()..]);
                if word == 0 && sent.len() > 1 && sent.len() <= 64 {
                    prop_assert_eq!(join(&mut ctx, &sent), Some(original));
                }
            }
            Err((skb, reason)) => {
                prop_assert_eq!(&skb.data()[ETH_LEN..], &original[..]);
                prop_assert!(
                    word & 0x4000 != 0 || mtu < 28 + options.len() || usize::from(word & 0x1fff) * 8 + original.len() > 65_535,
                    "{:?}",
                    reason
                );
                ctx.free_skb(skb);
            }
        }
    }
}
