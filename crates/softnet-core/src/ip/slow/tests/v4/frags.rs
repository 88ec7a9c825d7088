//! Fragments to softnet, and packets that are cut on their way.

use super::super::frags::ping;
use super::*;
use crate::ip::fragment::{Addresses, Datagram};
use crate::sock::key::addr_of;
use crate::steer::TxChoice;

/// A frame of the client to `dst`, cut to fit `mtu`.
pub(in super::super) fn cut(whole: &[u8], mtu: usize) -> Vec<Vec<u8>> {
    let (header, payload) = whole.split_at(ETH_LEN + 20);
    let room = (mtu - 20) & !7;
    let pieces = payload.chunks(room).enumerate().map(|(i, piece)| {
        let word = (i * room / 8) as u16 | u16::from((i + 1) * room < payload.len()) << 13;
        let mut frame = [header, piece].concat();
        let total = (20 + piece.len()) as u16;
        frame[ETH_LEN + 2..][..2].copy_from_slice(&total.to_be_bytes());
        frame[ETH_LEN + 6..][..2].copy_from_slice(&word.to_be_bytes());
        mend(frame)
    });
    pieces.collect()
}

/// Puts fragments together, by hand: the IPv4 payload, and the header of each.
pub(in super::super) fn join(frames: &Sent) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut payload = Vec::new();
    let mut headers = Vec::new();
    for (i, (_, frame)) in frames.iter().enumerate() {
        let packet = &frame[ETH_LEN..];
        let lengths = validate(packet).unwrap();
        let header = Ipv4Header::new(packet).unwrap();
        assert_eq!(usize::from(header.fragment_offset()) * 8, payload.len());
        assert_eq!(header.more_fragments(), i + 1 < frames.len());
        headers.push(packet[..lengths.header].to_vec());
        payload.extend(&packet[lengths.header..lengths.total]);
    }
    (payload, headers)
}

/// What is known of the way back counts.
#[test]
fn an_echo_in_fragments_fits_the_path() {
    let mut world = World::acquainted();
    let request = cut(&ping(CLIENT, OWN[0], 2000), 1500);
    assert_eq!(world.input(0, &request).len(), 2);
    assert_eq!(world.control.slow.fragments().reassembled(), 1);
    assert!(world.control.slow.pmtu().update(world.now, addr_of(CLIENT.into()), (1500, 1500), 1000));
    let sent = world.input(0, &request);
    assert!(sent.len() == 3 && sent.iter().all(|(_, frame)| frame.len() <= ETH_LEN + 1000));
    assert_eq!(checksum::sum(&join(&sent).0), 0xffff);
}

/// The sum of nothing but zeros, in several fragments.
#[test]
fn an_echo_of_zeros_has_the_right_checksum() {
    let mut world = World::acquainted();
    let mut zeros = ping(CLIENT, OWN[0], 3000);
    zeros[ETH_LEN + 24..].fill(0);
    zeros[ETH_LEN + 22..][..2].copy_from_slice(&[0xf7, 0xff]);
    let (message, _) = join(&world.input(0, &cut(&zeros, 1500)));
    assert_eq!((&message[..4], checksum::sum(&message)), (&[0, 0, 0xff, 0xff][..], 0xffff));
    // One bit more, and it is 0 that is right for the sum of the rest.
    (zeros[ETH_LEN + 1000], zeros[ETH_LEN + 1001]) = (0xff, 0xff);
    let (message, _) = join(&world.input(0, &cut(&zeros, 1500)));
    assert_eq!((&message[..4], checksum::sum(&message)), (&[0; 4][..], 0xffff));
}

#[test]
fn nothing_of_an_echo_is_sent_that_memory_does_not_suffice_for() {
    let mut world = World::with_frames(200);
    world.one(0, Ipv4Addr::question(0, CLIENT, CLIENT_MAC));
    let mut sent = Sent::new();
    for batch in cut(&ping(CLIENT, OWN[0], 65_507), 1500).chunks(20) {
        sent.extend(world.input(0, batch));
    }
    assert_eq!(sent.len(), 45);
    // Room for the request, but not for all of the answer.
    let mut taken = Vec::new();
    while taken.len() < 140 {
        taken.push(world.ctx.alloc_frame().unwrap());
    }
    for batch in cut(&ping(CLIENT, OWN[0], 65_507), 1500).chunks(20) {
        assert!(world.input(0, batch).is_empty());
    }
    assert_eq!((world.drops(DropReason::NoFrame), world.ctx.stats().merged.get()), (1, 2 * 44));
    taken.into_iter().for_each(|frame| world.ctx.free_frame(frame));
}

/// Of each device, since the same may come by several; and no error says what becomes of it.
#[test]
fn datagrams_to_a_group_are_put_together() {
    let mut world = World::acquainted();
    let to_group = |dev: u16| {
        let frame = udp(dev, CLIENT, Ipv4Addr::new(239, 1, 2, 3), 1, 3000);
        cut(&set(frame, 0, &[1, 0, 0x5e, 1, 2, 3]), 1500)
    };
    let [on_0, on_1] = [0, 1].map(to_group);
    for (a, b) in on_0.iter().zip(&on_1) {
        assert_eq!((world.one(0, a.clone()).len(), world.one(1, b.clone()).len()), (0, 0));
    }
    assert_eq!((world.control.slow.fragments().reassembled(), world.control.slow.held()), (2, 0));
    // Without members the two are dropped, each in one.
    let drops = [DropReason::IpInvalidDest, DropReason::IpNoProto].map(|reason| world.drops(reason));
    assert_eq!((drops, world.ctx.stats().merged.get()), ([0, 2], 4));
    assert!(world.one(0, on_0[0].clone()).is_empty());
    assert!(world.pass(31_000_000_000).is_empty());
    assert_eq!((world.control.slow.held(), world.drops(DropReason::FragReasmTimeout)), (0, 1));
}

#[test]
fn a_packet_too_long_for_the_next_link_is_cut() {
    let mut world = World::acquainted();
    for len in [573, 1000, 1400] {
        let mut original = udp(0, CLIENT, FAR, 64, len);
        original[ETH_LEN + 1] = 0x48;
        let original = mend(original);
        let (originated, cut) = (world.ctx.stats().originated.get(), world.control.slow.cut());
        let sent = world.one(0, original.clone());
        assert_eq!(world.control.slow.cut(), cut + 1);
        assert_eq!(world.ctx.stats().originated.get(), originated + sent.len() as u64 - 1);
        let (payload, headers) = join(&sent);
        assert_eq!(payload, original[ETH_LEN + 20..]);
        for ((dev, frame), header) in sent.iter().zip(&headers) {
            assert_eq!((*dev, &frame[..ETH_LEN]), (1, &eth(SERVER_MAC, MACS[1], 0x0800)[..]));
            assert!(frame.len() <= ETH_LEN + usize::from(MTUS[1]));
            let header = Ipv4Header::new(header).unwrap();
            assert_eq!((header.src(), header.dst(), header.id()), (CLIENT.into(), FAR.into(), 7));
            assert_eq!((header.ttl(), header.tos()), (63, 0x48));
        }
    }
    // A fragment is cut further, and what is behind it is still to come.
    let first = &cut(&udp(0, CLIENT, FAR, 64, 2800), 1500)[1];
    let sent = world.one(0, first.clone());
    assert_eq!(sent.len(), 3);
    for (i, (_, frame)) in sent.iter().enumerate() {
        let header = Ipv4Header::new(&frame[ETH_LEN..]).unwrap();
        assert_eq!(usize::from(header.fragment_offset()) * 8, 1480 + i * 576);
        assert_eq!(header.more_fragments(), i < 2);
    }
    // Not one that would end beyond what an offset can say.
    let beyond = mend(set(udp(0, CLIENT, FAR, 64, 1000), ETH_LEN + 6, &[0x1f, 0xff]));
    world.refused(beyond, DropReason::FragInvalid, None);
}

/// RFC 791 section 3.1: options with the copied flag are in every fragment, the others in the first only.
#[test]
fn options_are_copied_as_they_say() {
    let mut world = World::acquainted();
    // Record route (7), router alert (148, copied), no operation, stream id (136, copied).
    let options = [7, 3, 4, 148, 4, 0, 0, 1, 136, 4, 1, 2];
    let mut original = with_options(FAR, 64, &options);
    original.extend(vec![0x33; 1000]);
    let total = (original.len() - ETH_LEN) as u16;
    original[ETH_LEN + 2..][..2].copy_from_slice(&total.to_be_bytes());
    let original = mend(original);
    let sent = world.one(0, original.clone());
    let (payload, headers) = join(&sent);
    assert_eq!(payload, original[ETH_LEN + 32..]);
    assert_eq!(headers[0][20..], options);
    for header in &headers[1..] {
        assert_eq!(header[20..], [148, 4, 0, 0, 136, 4, 1, 2]);
    }
    assert!(headers.len() == 2);
}

#[test]
fn without_memory_nothing_is_cut() {
    let mut world = World::with_frames(8);
    world.tables.set_neighbour((1, GATEWAY.into(), Some(SERVER_MAC)));
    let mut taken: Vec<_> = std::iter::from_fn(|| world.ctx.alloc_frame()).collect();
    // One for what comes in, one for the second part, none for the third.
    for _ in 0..2 {
        world.ctx.free_frame(taken.pop().unwrap());
    }
    assert!(world.one(0, udp(0, CLIENT, FAR, 64, 1400)).is_empty());
    assert_eq!(world.drops(DropReason::NoFrame), 1);
    world.ctx.free_frames(taken.into_iter());
}

/// What a sender here gives is cut to what the path takes, goes out when the neighbour is known, or not at all.
#[test]
fn a_senders_datagram_is_cut_for_its_path() {
    let mut world = World::new();
    let send = |world: &mut World, dst: Ipv4Addr, len: usize, dont_fragment: bool| {
        let datagram = Datagram {
            addresses: Addresses::V4 { src: OWN[1], dst },
            protocol: protocol::UDP,
            ttl: 9,
            tos: 0,
            id: 0,
            dont_fragment,
        };
        let payload = vec![0x77; len];
        let (choice, pieces) = (TxChoice::RxQueue(0), (len, [&payload[..]]));
        let (sent, done) =
            world.call(|slow, ctx, view, out| slow.send_datagram(ctx, view, datagram, choice, pieces, out));
        done.map(|()| sent)
    };
    let asked = send(&mut world, SERVER, 2000, false).unwrap();
    assert_eq!((heard(&asked[0]).2.target_ip, world.held()), (SERVER, 4));
    let sent = world.one(1, Ipv4Addr::answer(1, SERVER, SERVER_MAC));
    assert_eq!(join(&sent).0, [0x77; 2000]);
    assert!(sent.iter().all(|(dev, frame)| *dev == 1 && frame.len() <= ETH_LEN + 600));
    // One packet as long as it fits; what is known of the path counts.
    assert_eq!(send(&mut world, SERVER, 580, true).unwrap().len(), 1);
    assert_eq!(send(&mut world, SERVER, 581, true), Err(DropReason::PktTooBig));
    assert!(world.control.slow.pmtu().update(world.now, addr_of(SERVER.into()), (600, 600), 560));
    assert_eq!(send(&mut world, SERVER, 541, true), Err(DropReason::PktTooBig));
    assert_eq!(send(&mut world, SERVER, 541, false).unwrap().len(), 2);
    for nowhere in [NOWHERE, Ipv4Addr::BLACKHOLE, OWN[0]] {
        assert_eq!(send(&mut world, nowhere, 10, false), Err(DropReason::IpNoRoute));
    }
}
