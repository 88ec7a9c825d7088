//! Datagrams that come in fragments are translated as a whole, whatever the order (RFC 4787 REQ-14).

use super::*;
use crate::ip::fragment::split;
use crate::ip::slow::world::set;
use crate::skb::Skb;

/// The frames of the datagram in `frame`, cut to `mtu`.
fn cut(frame: &[u8], mtu: usize, id: u16) -> Vec<Vec<u8>> {
    let frame = mend(set(frame.to_vec(), ETH_LEN + 4, &id.to_be_bytes()));
    let (eth, packet) = frame.split_at(ETH_LEN);
    let (header, payload) = packet.split_at(20);
    let room = (mtu - 20) & !7;
    let pieces = payload.chunks(room).enumerate();
    pieces
        .map(|(n, piece)| {
            let more = (n + 1) * room < payload.len();
            let word = (n * room / 8) as u16 | if more { 0x2000 } else { 0 };
            let mut out = [eth, header, piece].concat();
            out[ETH_LEN + 2..ETH_LEN + 4].copy_from_slice(&(20 + piece.len() as u16).to_be_bytes());
            out[ETH_LEN + 6..ETH_LEN + 8].copy_from_slice(&word.to_be_bytes());
            mend(out)
        })
        .collect()
}

/// What the datagram says whose fragments are `sent`.
fn whole(sent: &[(u16, Vec<u8>)]) -> Said {
    let mut pieces: Vec<_> = sent.iter().map(|(_, frame)| packet(frame)).collect();
    pieces.sort_by_key(|packet| u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff);
    let mut all = pieces[0][..20].to_vec();
    for piece in &pieces {
        let lengths = crate::ip::v4::header::validate_part(piece, piece.len()).expect("a sound header");
        let offset = usize::from(u16::from_be_bytes([piece[6], piece[7]]) & 0x1fff) * 8;
        assert_eq!(offset, all.len() - 20, "no gap, no overlap");
        assert_eq!(piece[4..6], pieces[0][4..6], "one identification");
        all.extend(&piece[20..lengths.total]);
    }
    let total = (all.len() as u16).to_be_bytes();
    all[2..4].copy_from_slice(&total);
    all[6..8].fill(0);
    let frame = mend([&[0; ETH_LEN][..], &all].concat());
    said_by(&frame[ETH_LEN..])
}

fn long(dev: u16, number: u8, src: End4, dst: End4) -> Vec<u8> {
    let payload: Vec<u8> = (0..3000u16).map(|n| (n % 251) as u8).collect();
    frame(dev, number, src, dst, ACK, &payload)
}

/// Both ways, first to last or the other way round; between them comes another host's with the same
/// identification.
#[test]
fn fragments_are_translated_in_any_order() {
    for number in [protocol::UDP, protocol::ICMP, protocol::TCP] {
        for order in 0..3 {
            let mut router = Router::new(&masquerade());
            let (client, server) = ((CLIENT, 5001), service(number, SERVER));
            let datagram = long(0, number, client, server);
            let mut pieces = cut(&datagram, 1500, 7);
            let mut back_pieces = Vec::new();
            let arrange = |pieces: &mut Vec<Vec<u8>>| match order {
                0 => {}
                1 => pieces.reverse(),
                _ => pieces.rotate_left(1),
            };
            arrange(&mut pieces);
            let other = cut(&long(0, number, (Ipv4Addr::host(0, 77), 5001), server), 1500, 7);
            assert!(router.world.one(0, other[0].clone()).is_empty());
            let last = pieces.pop().unwrap();
            for piece in pieces {
                assert!(router.world.one(0, piece).is_empty());
            }
            let sent = router.world.one(0, last);
            // The server's link takes 600 bytes.
            assert!(
                sent.len() == 6 && sent.iter().all(|(dev, frame)| *dev == 1 && packet(frame).len() <= 600)
            );
            let out = whole(&sent);
            let payload = said(&mend(datagram)).payload;
            assert_eq!((out.src.0, out.dst, &out.payload), (OUTSIDE, server, &payload));
            // And the answer.
            back_pieces.extend(cut(&long(1, number, server, out.src), 600, 9));
            arrange(&mut back_pieces);
            let sent: Vec<_> = back_pieces.into_iter().flat_map(|piece| router.world.one(1, piece)).collect();
            let back = whole(&sent);
            assert!(sent.len() == 3 && sent.iter().all(|(dev, _)| *dev == 0));
            assert_eq!((back.src, back.dst, &back.payload), (server, client, &payload));
            // The other host's waits still.
            let rest: Vec<_> =
                other[1..].iter().flat_map(|piece| router.world.one(0, piece.clone())).collect();
            let of_other = whole(&rest);
            assert_ne!(of_other.src, out.src);
            assert_eq!((of_other.dst, router.connections()), (server, 2));
        }
    }
}

/// What does not become whole goes no further, and its sender is not told: it was not for softnet.
/// What is for softnet is answered.
#[test]
fn fragments_that_stay_alone_are_given_up() {
    let mut router = Router::new(&masquerade());
    let pieces = cut(&long(0, protocol::UDP, (CLIENT, 5001), (SERVER, 53)), 1500, 7);
    assert!(router.world.one(0, pieces[0].clone()).is_empty());
    assert!(router.world.one(0, pieces[2].clone()).is_empty());
    assert_eq!((router.world.held(), router.connections()), (2, 0));
    assert!(router.world.pass(31 * SECOND).is_empty());
    assert_eq!((router.world.held(), router.world.drops(DropReason::FragReasmTimeout)), (0, 2));
    assert!(router.world.one(0, pieces[1].clone()).is_empty());
    let ping = long(0, protocol::ICMP, (CLIENT, 77), (INSIDE, 0));
    let sent: Vec<_> = cut(&ping, 1500, 8).into_iter().flat_map(|piece| router.world.one(0, piece)).collect();
    let pong = whole(&sent);
    assert_eq!((pong.src, pong.dst), ((INSIDE, 0), (CLIENT, 77)));
}

/// Memory for fragments is bounded, as that of those to softnet is: the oldest go.
#[test]
fn fragments_do_not_fill_the_memory() {
    let mut router = Router::new(&masquerade());
    for id in 0..400 {
        let pieces = cut(
            &long(0, protocol::UDP, (Ipv4Addr::host(0, (id % 200) as u8 + 10), 5001), (SERVER, 53)),
            1500,
            id,
        );
        assert!(router.world.one(0, pieces[0].clone()).is_empty());
    }
    assert!(router.world.held() < 200);
    assert!(router.world.drops(DropReason::FragEvicted) > 200);
    router.out(udp(0, (CLIENT, 5001), (SERVER, 53)));
}

/// A fragment that is cut again outside of a router's reach is one datagram still.
#[test]
fn fragments_of_fragments() {
    let mut router = Router::new(&masquerade());
    let datagram = long(0, protocol::UDP, (CLIENT, 5001), (SERVER, 53));
    let mut sent = Vec::new();
    for piece in cut(&datagram, 1500, 7) {
        let mut skb: Skb = router.world.ctx.alloc_skb().unwrap();
        skb.put(piece.len()).unwrap().copy_from_slice(&piece);
        skb.head_mut().l3 = ETH_LEN as u16;
        let mut parts = split(&mut router.world.ctx, skb, 700).unwrap();
        while let Some(part) = parts.pop_front() {
            let bytes = part.data().to_vec();
            router.world.ctx.free_skb(part);
            let frame = [&piece[..ETH_LEN], &bytes[ETH_LEN..]].concat();
            sent.extend(router.world.one(0, frame));
        }
    }
    assert_eq!(whole(&sent).payload.len(), 3000);
}
