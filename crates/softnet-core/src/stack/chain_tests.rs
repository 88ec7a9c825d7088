//! Packets of several frames on all ways through a stack: none is lost, cut short or counted twice, and one that came in
//! several frames fares as it would have in one.

mod world;

use proptest::prelude::*;

use self::world::*;
use crate::skb::DropReason;

/// What a sender puts into a datagram.
fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => (0u8..2).prop_map(|port| Kind::Udp(7 + u16::from(port))),
        1 => Just(Kind::Udp(99)),
        1 => Just(Kind::ToGroup),
        2 => Just(Kind::Echo),
        1 => Just(Kind::Tcp),
        2 => Just(Kind::Forwarded),
    ]
}

/// A datagram, how it is cut into packets, and what becomes of these on the way.
fn any_train() -> impl Strategy<Value = Train> {
    let fault = prop_oneof![
        3 => Just(Fault::None),
        1 => any::<u8>().prop_map(Fault::Lost),
        1 => any::<u8>().prop_map(Fault::Twice),
        1 => (any::<u8>(), any::<u16>()).prop_map(|(packet, at)| Fault::Damaged(packet, at)),
    ];
    (any::<bool>(), any_kind(), 0usize..6000, 200usize..1500, any::<u64>(), fault, any::<bool>()).prop_map(
        |(v6, kind, len, mtu, order, fault, whole)| Train {
            v6,
            kind,
            // Many are short, and come in one packet.
            len: if whole { len % 1000 } else { len },
            mtu: if whole { 1500 } else { mtu },
            order,
            fault,
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (any_train(), any::<u64>()).prop_map(|(train, cuts)| Step::Train(train, cuts)),
        2 => (0usize..9000, any::<bool>()).prop_map(|(len, v6)| Step::Local { len, v6 }),
        2 => (0u64..40_000).prop_map(Step::Pass),
        2 => any::<bool>().prop_map(Step::Complete),
        2 => (0..2usize, 0..SPECS.len()).prop_map(|(dev, spec)| Step::Graft(dev, spec)),
        2 => (0..2usize, any::<bool>()).prop_map(|(socket, open)| Step::Socket(socket, open)),
        2 => (0..2usize, 1usize..9).prop_map(|(socket, n)| Step::Receive(socket, n)),
        3 => any_mode().prop_map(Step::Filter),
        1 => (0usize..160).prop_map(Step::Scarce),
    ]
}

fn any_mode() -> impl Strategy<Value = Mode> {
    prop::sample::select(vec![
        Mode::Pass,
        Mode::Drop,
        Mode::Mirror,
        Mode::Redirect,
        Mode::MirrorIngress,
        Mode::RedirectIngress,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 384 }, ..ProptestConfig::default() })]

    /// Trains of fragments of both families, whole packets and datagrams from here, to sockets that are open or not, by filters
    /// that drop, mirror and redirect, and disciplines of every kind, with little memory: after each step the books balance
    /// (`World` asserts it), and in the end all frames and heads are at home.
    #[test]
    fn nothing_is_lost(
        frames in prop::sample::select(vec![48u32, 160, 512]),
        steps in prop::collection::vec(any_step(), 1..40),
    ) {
        let mut world = World::new(frames);
        for step in steps {
            world.step(step);
        }
    }

    /// The same packets in one frame each, and cut anywhere behind their headers, come to the same: what is sent, what sockets
    /// receive, and what is dropped.
    #[test]
    fn a_packet_in_several_frames_is_the_same_packet(
        trains in prop::collection::vec((any_train(), any::<u64>()), 1..12),
    ) {
        let fare = |in_one: bool| {
            let mut world = World::new(4096);
            for (train, cuts) in &trains {
                world.step(Step::Train(*train, if in_one { 0 } else { *cuts }));
                // Before their buffers are full, for which frames count.
                (0..2).for_each(|socket| world.step(Step::Receive(socket, usize::MAX)));
            }
            world.step(Step::Pass(70_000));
            world.outcome()
        };
        let (one, several) = (fare(true), fare(false));
        let lens = |fare: &Fare| -> Vec<Vec<usize>> {
            vec![fare.0.iter().map(|(_, packet)| packet.len()).collect(), fare.1.iter().map(Vec::len).collect()]
        };
        prop_assert_eq!((lens(&one), &one.2), (lens(&several), &several.2));
        prop_assert!(one == several, "other bytes");
    }
}

/// A packet in three frames leaves in one, and one that is too long for a link is cut for it.
#[test]
fn a_chain_is_forwarded_and_cut() {
    for v6 in [false, true] {
        let train = Train { v6, kind: Kind::Forwarded, len: 900, mtu: 1500, order: 0, fault: Fault::None };
        let mut world = World::new(64);
        world.step(Step::Train(train, u64::MAX));
        let (sent, ..) = world.outcome();
        let [(1, packet)] = &sent[..] else { panic!("{sent:?}") };
        assert!(packet.len() > 900 && packet.ends_with(&payload(900)));
        let mut world = World::new(64);
        world.step(Step::Train(Train { len: 1400, ..train }, u64::MAX));
        let (sent, ..) = world.outcome();
        match v6 {
            false => {
                let pieces: Vec<u8> = sent.iter().flat_map(|(_, packet)| packet[34..].to_vec()).collect();
                assert_eq!((sent.len(), &pieces[8..]), (2, &payload(1400)[..]));
            }
            // Packet too big.
            true => assert_eq!((sent.len(), sent[0].0, sent[0].1[54]), (1, 0, 2)),
        }
    }
}

/// A reassembled datagram that a filter sends on leaves in one frame if it fits, and else is counted as what it is.
#[test]
fn what_does_not_fit_a_frame_is_not_sent_in_part() {
    for (len, fits) in [(1700, true), (2500, false)] {
        for (spec, kind) in SPECS.iter().enumerate() {
            let mut world = World::new(256);
            world.step(Step::Graft(1, spec));
            world.step(Step::Filter(Mode::Redirect));
            let train = Train { v6: false, kind: Kind::Udp(7), len, mtu: 700, order: 3, fault: Fault::None };
            world.step(Step::Train(train, 0));
            world.step(Step::Pass(1000));
            let dropped = world.drops(DropReason::Nonlinear) + world.drops(DropReason::QdiscDrop);
            let (sent, ..) = world.outcome();
            match fits {
                // (A bucket may be too small for it.)
                true if dropped == 0 => assert!(sent.len() == 1 && sent[0].1.ends_with(&payload(len))),
                _ => assert_eq!((sent.len(), dropped), (0, 1), "{kind}"),
            }
        }
    }
}
