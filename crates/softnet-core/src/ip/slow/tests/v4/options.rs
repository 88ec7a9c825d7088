//! IPv4 options on the way and in answers.

use super::*;
use crate::ip::v4::options::OptionPolicy;

/// `frame` with what stands at its options replaced.
fn options_are(frame: &[u8], options: &[u8]) -> Vec<u8> {
    mend(set(frame.to_vec(), ETH_LEN + 20, options))
}

/// An echo request of the client to `own` with these options, padded.
fn question(own: Ipv4Addr, options: &[u8]) -> Vec<u8> {
    insert_options(echo(own, 9), options)
}

/// The options of the one reply that was sent, and the message behind them.
fn reply(sent: &Sent) -> (Vec<u8>, Vec<u8>) {
    let [(0, frame)] = &sent[..] else { panic!("{sent:x?}") };
    let packet = &frame[ETH_LEN..];
    let lengths = validate(packet).unwrap();
    assert_eq!(lengths.total, packet.len());
    assert_eq!(checksum::sum(&packet[lengths.header..]), 0xffff);
    (packet[20..lengths.header].to_vec(), packet[lengths.header..].to_vec())
}

#[test]
fn a_router_records_itself() {
    let mut world = World::acquainted();
    world.control.slow.set_midnight(3_600_000_000_000);
    world.now = 1_500_000_000;
    let time = u32::to_be_bytes(3_601_500);
    let out = OWN[1].octets();
    for (options, want) in [
        (vec![7, 7, 4, 0, 0, 0, 0], [&[7, 7, 8][..], &out].concat()),
        (vec![7, 7, 8, 1, 2, 3, 4], vec![7, 7, 8, 1, 2, 3, 4]),
        (vec![68, 8, 5, 0, 0, 0, 0, 0], [&[68, 8, 9, 0][..], &time].concat()),
        ([&[68, 12, 5, 1][..], &[0; 8]].concat(), [&[68, 12, 13, 1][..], &out, &time].concat()),
        // The first that is listed is ours, on either side; then another's.
        (
            [&[68, 12, 5, 3][..], &OWN[0].octets(), &[0; 4]].concat(),
            [&[68, 12, 13, 3][..], &OWN[0].octets(), &time].concat(),
        ),
        (
            [&[68, 12, 5, 3][..], &FAR.octets(), &[0; 4]].concat(),
            [&[68, 12, 5, 3][..], &FAR.octets(), &[0; 4]].concat(),
        ),
        (vec![68, 4, 5, 0], vec![68, 4, 5, 0x10]),
        // Router alert, no-operation, and whatever stands behind the end of the list.
        (vec![148, 4, 0, 0], vec![148, 4, 0, 0]),
        (vec![1, 1, 1, 0], vec![1, 1, 1, 0]),
        (vec![0, 131, 3, 4], vec![0, 0, 0, 0]),
    ] {
        for dst in [SERVER, FAR] {
            let frame = with_options(dst, 9, &options);
            let sent = world.one(0, frame.clone());
            assert_eq!(sent.len(), 1, "{options:?}");
            Ipv4Addr::assert_forwarded(&sent[0], &options_are(&frame, &want), 1, SERVER_MAC);
        }
    }
    // Of a packet that is cut, the first fragment has it.
    let mut long = with_options(FAR, 9, &[7, 7, 4, 0, 0, 0, 0]);
    long.extend([0x33; 1000]);
    let total = (long.len() - ETH_LEN) as u16;
    let sent = world.one(0, mend(set(long, ETH_LEN + 2, &total.to_be_bytes())));
    assert_eq!((sent.len(), &sent[0].1[ETH_LEN + 20..][..7]), (2, &[&[7, 7, 8][..], &out].concat()[..]));
    assert_eq!(sent[1].1[ETH_LEN], 0x45);
    // The time that is known without a clock is marked.
    let mut world = World::acquainted();
    world.now = 1_500_000_000;
    let frame = with_options(SERVER, 9, &[68, 8, 5, 0, 0, 0, 0, 0]);
    let sent = world.one(0, frame.clone());
    Ipv4Addr::assert_forwarded(
        &sent[0],
        &options_are(&frame, &[68, 8, 9, 0, 0x80, 0, 5, 0xdc]),
        1,
        SERVER_MAC,
    );
}

/// RFC 1812 section 4.3.3.5; the pointers are the kernel's.
#[test]
fn malformed_options_are_a_parameter_problem() {
    let mut world = World::acquainted();
    for (options, pointer) in [
        (&[7, 0, 4, 0][..], 20),
        (&[7, 9, 4, 0], 20),
        (&[1, 1, 1, 7], 23),
        (&[1, 7, 7, 3, 0, 0, 0, 0], 23),
        (&[68, 3, 5, 0], 21),
        (&[68, 8, 9, 0xf0, 0, 0, 0, 0], 23),
        (&[7, 3, 4, 7, 3, 4], 23),
        (&[131, 2, 4, 0], 21),
    ] {
        for dst in [SERVER, OWN[0], FAR, NOWHERE] {
            world.refused(with_options(dst, 1, options), DropReason::IpInHdr, Some((12, 0, pointer)));
        }
    }
    // Not about what is to many, nor about an error.
    let group = set(with_options([255; 4].into(), 1, &[7, 0, 4, 0]), 0, &BROADCAST);
    world.refused(group, DropReason::IpInHdr, None);
    let error = set(with_options(SERVER, 1, &[7, 0, 4, 0]), ETH_LEN + 9, &[1]);
    world.refused(set(mend(error), ETH_LEN + 24, &[3]), DropReason::IpInHdr, None);
    world.control.slow.configure(unlimited(), OptionPolicy::Ignore);
    world.refused(with_options(SERVER, 9, &[7, 0, 4, 0]), DropReason::IpInHdr, Some((12, 0, 20)));
}

/// A way that the packet chooses for itself is not taken, whatever is done with other options. (As
/// the kernel does, without a word.)
#[test]
fn source_routes_do_not_pass() {
    for policy in [OptionPolicy::Process, OptionPolicy::Ignore, OptionPolicy::Drop] {
        let mut world = World::acquainted();
        world.control.slow.configure(unlimited(), policy);
        for options in [&[131, 3, 4][..], &[137, 3, 4], &[1, 131, 7, 4, 1, 1, 1, 1]] {
            world.refused(with_options(SERVER, 9, options), DropReason::IpOptions, None);
            world.refused(with_options(OWN[0], 9, options), DropReason::IpOptions, None);
        }
    }
}

/// RFC 1122 section 3.2.2.6. Softnet stands there twice, as with the kernel: it was reached, and it
/// answers.
#[test]
fn an_echo_reply_brings_the_options_back() {
    let mut world = World::acquainted();
    world.control.slow.set_midnight(0);
    world.now = 7_000_000;
    for own in OWN {
        let me = own.octets();
        for (options, want) in [
            (
                [&[7, 15, 8, 9, 9, 9, 9][..], &[0; 8]].concat(),
                [&[7, 15, 16, 9, 9, 9, 9][..], &me, &me, &[0]].concat(),
            ),
            (vec![7, 7, 8, 9, 9, 9, 9], vec![7, 7, 8, 9, 9, 9, 9, 0]),
            (
                [&[68, 20, 5, 1][..], &[0; 16]].concat(),
                [&[68, 20, 21, 1][..], &me, &[0, 0, 0, 7], &me, &[0, 0, 0, 7]].concat(),
            ),
            (vec![1, 1, 1, 0], vec![]),
            (vec![148, 4, 0, 0, 7, 3, 4], vec![7, 3, 4, 0]),
        ] {
            let asked = question(own, &options);
            let (answered, message) = reply(&world.one(0, asked.clone()));
            assert_eq!(answered, want, "{options:?}");
            let payload = &asked[asked.len() - b"are you there?".len()..];
            assert_eq!((message[0], &message[8..]), (0, payload));
        }
    }
}

/// The knob of RFC 7126 sections 4.5 and 4.6.
#[test]
fn options_may_be_ignored_or_dropped() {
    let mut world = World::acquainted();
    let (route, alert) = ([7, 7, 4, 0, 0, 0, 0], [148, 4, 0, 0]);
    world.control.slow.configure(unlimited(), OptionPolicy::Ignore);
    for options in [&route[..], &[68, 4, 5, 0], &alert] {
        let frame = with_options(SERVER, 9, options);
        Ipv4Addr::assert_forwarded(&world.one(0, frame.clone())[0], &frame, 1, SERVER_MAC);
    }
    assert_eq!(reply(&world.one(0, question(OWN[0], &route))).0, []);
    world.control.slow.configure(unlimited(), OptionPolicy::Drop);
    for options in [&route[..], &[68, 4, 5, 0]] {
        world.refused(with_options(SERVER, 9, options), DropReason::IpOptions, None);
        world.refused(question(OWN[0], options), DropReason::IpOptions, None);
    }
    let frame = with_options(SERVER, 9, &alert);
    Ipv4Addr::assert_forwarded(&world.one(0, frame.clone())[0], &frame, 1, SERVER_MAC);
}

/// What is quoted is what came: nothing that softnet wrote.
#[test]
fn errors_quote_options_as_they_came() {
    let mut world = World::acquainted();
    let route = [7, 7, 4, 0, 0, 0, 0];
    world.refused(with_options(SERVER, 1, &route), DropReason::IpTtl, Some((11, 0, 0)));
    world.refused(with_options(OWN[0], 9, &route), DropReason::IpNoProto, Some((3, 3, 0)));
    let mut long = with_options(FAR, 9, &route);
    long.extend([0x33; 1000]);
    let total = (long.len() - ETH_LEN) as u16;
    let long = set(set(long, ETH_LEN + 2, &total.to_be_bytes()), ETH_LEN + 6, &[0x40]);
    world.refused(mend(long), DropReason::PktTooBig, Some(Ipv4Addr::too_big(MTUS[1])));
}
