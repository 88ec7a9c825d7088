//! Fragments to softnet.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::errors::segment;
use super::*;
use crate::ip::ETH_LEN;
use crate::ip::v4::header::protocol;
use crate::skb::{BATCH, DropReason};

for_each_family! {
    an_echo_of_any_size_comes_back,
    a_segment_in_fragments_is_told_of_if_it_is_sound,
    what_is_not_served_is_refused_whole,
    time_exceeded_is_said_of_first_fragments_only,
}

/// How a family cuts packets.
pub(super) trait Fragments: TestFamily {
    /// Sizes of echo requests, in how many fragments each comes, and in how many packets its answer.
    const SIZES: &'static [(usize, usize, usize)];
    /// How long fragments wait, in ns.
    const TIME: u64;
    /// That a protocol is not served, of a datagram in fragments.
    const PROTOCOL_UNREACHABLE_IN_FRAGMENTS: Answer;

    /// The packet in `whole`, cut into fragments of identification `id` to fit 1500 bytes.
    fn cut(whole: &[u8], id: u8) -> Vec<Vec<u8>>;
    /// Puts the packets that were sent together by hand, all of them sound and of one identification: the payload.
    fn join(sent: &Sent) -> Vec<u8>;
    /// What an error quotes of a datagram that came in fragments.
    fn quoted(whole: &[u8], fragments: &[Vec<u8>]) -> Vec<u8>;
}

impl Fragments for Ipv4Addr {
    const SIZES: &'static [(usize, usize, usize)] =
        &[(1472, 1, 1), (1473, 2, 2), (1480, 2, 2), (2952, 2, 2), (2953, 3, 3), (65_507, 45, 45)];
    const TIME: u64 = 30 * SECOND;
    const PROTOCOL_UNREACHABLE_IN_FRAGMENTS: Answer = (3, 2, 0);

    fn cut(whole: &[u8], id: u8) -> Vec<Vec<u8>> {
        super::v4::frags::cut(&set(whole.to_vec(), ETH_LEN + 4, &[0, id]), 1500)
    }

    fn join(sent: &Sent) -> Vec<u8> {
        let (payload, headers) = super::v4::frags::join(sent);
        assert!(headers.iter().all(|header| header[4..6] == headers[0][4..6]));
        for header in &headers {
            let header = crate::ip::v4::header::Ipv4Header::new(header).unwrap();
            assert_eq!((header.src(), header.dst()), (Self::OWN[0].into(), Self::CLIENT.into()));
            assert_eq!((header.ttl(), header.protocol()), (64, protocol::ICMP));
        }
        payload
    }

    /// The datagram, as far as it fits: with its length, and not a fragment any more.
    fn quoted(whole: &[u8], fragments: &[Vec<u8>]) -> Vec<u8> {
        super::super::world::v4::mend(set(whole.to_vec(), ETH_LEN + 4, &fragments[0][ETH_LEN + 4..][..2]))
    }
}

impl Fragments for Ipv6Addr {
    const SIZES: &'static [(usize, usize, usize)] =
        &[(1440, 1, 1), (1441, 2, 1), (2888, 2, 2), (2889, 3, 3), (65_527, 46, 46)];
    const TIME: u64 = 60 * SECOND;
    const PROTOCOL_UNREACHABLE_IN_FRAGMENTS: Answer = (4, 1, 40);

    fn cut(whole: &[u8], id: u8) -> Vec<Vec<u8>> {
        super::v6::frags::cut(whole, id)
    }

    fn join(sent: &Sent) -> Vec<u8> {
        super::v6::frags::join(sent)
    }

    /// The first, as it came.
    fn quoted(_: &[u8], fragments: &[Vec<u8>]) -> Vec<u8> {
        fragments[0].clone()
    }
}

/// An echo request with `len` bytes. The header only tells the truth if it is cut.
pub(super) fn ping<F: TestFamily>(src: F, dst: F, len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..len).map(|i| ((i * 7) ^ (i >> 8)) as u8).collect();
    icmp(0, src, dst, 64, &[&[F::ECHO_REQUEST, 0, 0, 0, 0x77, 0x77, 0, 1][..], &payload].concat())
}

fn an_echo_of_any_size_comes_back<F: Fragments>() {
    let mut world = World::<F>::acquainted();
    for (id, &(len, came, answered)) in (0..).zip(F::SIZES) {
        let request = ping(F::CLIENT, F::OWN[0], len);
        let mut fragments = F::cut(&request, id);
        assert_eq!(fragments.len(), came);
        fragments.reverse();
        let sent: Sent = fragments.chunks(BATCH).flat_map(|batch| world.input(0, batch)).collect();
        assert_eq!(sent.len(), answered, "{len}");
        assert!(sent.iter().all(|(dev, frame)| *dev == 0 && frame[..6] == CLIENT_MAC));
        let message = F::join(&sent);
        assert_eq!((message[0], &message[4..]), (F::ECHO_REPLY, &packet(&request)[F::HEADER + 4..]));
        assert_eq!(F::sum(F::ICMP, F::OWN[0], F::CLIENT, &message), 0xffff);
    }
    let cut = F::SIZES.iter().filter(|(_, came, _)| *came > 1).count();
    assert_eq!(world.control.slow.fragments().reassembled(), cut as u64);
    assert_eq!((world.held(), world.ctx.stats().dropped()), (0, 0));
    // All of each but one became part of that one.
    let merged = F::SIZES.iter().map(|(_, came, _)| *came as u64 - 1).sum::<u64>();
    assert_eq!(world.ctx.stats().merged.get(), merged);
    // One byte that differs, anywhere, and there is no answer.
    let mut damaged = F::cut(&ping(F::CLIENT, F::OWN[0], 3000), 99);
    *damaged[1].last_mut().unwrap() ^= 1;
    assert!(world.input(0, &damaged).is_empty());
    assert_eq!((world.drops(DropReason::IcmpCsum), world.ctx.stats().dropped()), (1, 1));
    assert_eq!(world.ctx.stats().merged.get(), merged + 2);
}

/// TCP in fragments is summed as a whole.
fn a_segment_in_fragments_is_told_of_if_it_is_sound<F: Fragments>() {
    let mut world = World::<F>::acquainted();
    let mut segment = segment::<F>(2, 2000);
    for (id, damaged) in [(1, false), (2, true)] {
        *segment.last_mut().unwrap() ^= u8::from(damaged);
        let whole = F::ip(0, F::CLIENT, F::OWN[0], 64, protocol::TCP, &segment);
        let fragments = F::cut(&whole, id);
        let sent = world.input(0, &fragments);
        let errors: Vec<_> = sent.iter().map(|sent| F::error(sent, &F::quoted(&whole, &fragments))).collect();
        assert_eq!(errors, Vec::from_iter((!damaged).then_some(F::PROTOCOL_UNREACHABLE_IN_FRAGMENTS)));
    }
    assert_eq!((world.drops(DropReason::IpNoProto), world.drops(DropReason::TcpCsum)), (1, 1));
}

fn what_is_not_served_is_refused_whole<F: Fragments>() {
    let mut world = World::<F>::acquainted();
    let original = udp(0, F::CLIENT, F::OWN[0], 64, 3000);
    let fragments = F::cut(&original, 7);
    let sent = world.input(0, &fragments);
    assert_eq!((sent.len(), world.drops(DropReason::IpNoProto)), (1, 1));
    assert_eq!(F::error(&sent[0], &F::quoted(&original, &fragments)), F::PORT_UNREACHABLE);
}

fn time_exceeded_is_said_of_first_fragments_only<F: Fragments>() {
    let mut world = World::<F>::acquainted();
    let [fragments, others] = [1, 2].map(|id| F::cut(&ping(F::CLIENT, F::OWN[0], 4000), id));
    assert!(world.one(0, fragments[1].clone()).is_empty());
    world.pass(1_000_000);
    assert!(world.one(0, others[0].clone()).is_empty());
    assert_eq!((world.held(), world.control.slow.fragments().datagrams()), (2, 2));
    // Neighbours are asked meanwhile.
    let sent = world.pass(F::TIME + SECOND);
    let errors: Vec<_> = sent.iter().filter(|(_, frame)| !F::is_question(frame)).collect();
    assert_eq!(errors.len(), 1);
    assert_eq!(F::error(errors[0], &others[0]), F::REASSEMBLY_TIME_EXCEEDED);
    assert_eq!((world.held(), world.drops(DropReason::FragReasmTimeout)), (0, 2));
}
