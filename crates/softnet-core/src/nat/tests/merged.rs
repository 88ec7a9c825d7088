//! NAT of aggregates: what GRO merged, NAT translated and GSO cut again is, byte by byte, what
//! comes of the same packets one by one.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::gro::rig::{Packet, is_sound};
use crate::gro::streams::{flow, interleave, packets, step};
use crate::gro::{GroMode, GroParams};
use crate::ip::slow::world::{CLIENT_MAC, MACS, Sent, v6};
use crate::skb::BATCH;

/// Bytes of payload for which there is room in the MTU of the link outside, options included.
const MOST: usize = 500;

/// Packets from the client's link to a server, of one family and untagged.
fn inside(v6: bool, flows: Vec<(Packet, Vec<crate::gro::streams::Step>)>) -> Vec<Vec<Packet>> {
    let flows = flows.into_iter().zip(1000..).map(|((first, steps), sport)| {
        let mut payload = first.payload.clone();
        payload.truncate(MOST);
        let ends: (IpAddr, IpAddr) = if v6 {
            (v6::net(0, 8 + u16::from(first.host)).into(), Ipv6Addr::SERVER.into())
        } else {
            (Ipv4Addr::new(10, 0, 0, 8 + first.host).into(), SERVER.into())
        };
        // Each flow has a port of its own, so that what it is outside tells it from the others.
        let first = Packet { v6, tags: vec![], vlan: None, payload, sport, ends: Some(ends), ..first };
        packets(&first, &steps)
    });
    flows.collect()
}

fn frame_of(packet: &Packet) -> Vec<u8> {
    let mut frame = packet.bytes();
    frame[..6].copy_from_slice(&MACS[0]);
    frame[6..12].copy_from_slice(&CLIENT_MAC);
    frame
}

/// What was sent, in order, by device, protocol, addresses and the first bytes behind the header,
/// which are the ports of what is no fragment.
fn by_flow(sent: Sent) -> BTreeMap<(u16, Vec<u8>), Vec<Vec<u8>>> {
    let mut flows: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (dev, frame) in sent {
        let key = if frame[14] >> 4 == 6 {
            [&frame[20..21], &frame[22..58]].concat()
        } else {
            [&frame[23..24], &frame[26..38]].concat()
        };
        flows.entry((dev, key)).or_default().push(frame);
    }
    flows
}

/// Has `flows` received by a router one by one and by another through GRO, and compares what they
/// send.
fn compare<F: TestFamily>(
    mut router: impl FnMut() -> World<F>,
    flows: &[Vec<Packet>],
    runs: &[usize],
    mode: GroMode,
) -> Result<(), TestCaseError> {
    let (mut plain, mut merging) = (router(), router());
    // The first of each flow opens its connection, at the same time in both.
    let first: Vec<_> = flows.iter().filter_map(|flow| flow.first()).map(frame_of).collect();
    prop_assert_eq!(plain.input(0, &first), merging.input(0, &first));
    let all: Vec<_> = interleave(flows, runs).iter().map(frame_of).collect();
    let params = GroParams { mode, ..GroParams::default() };
    let (mut expected, mut got) = (Sent::new(), Sent::new());
    for frames in all.chunks(BATCH) {
        expected.extend(plain.input(0, frames));
        got.extend(merging.input_merged(0, frames, &params));
    }
    let sound = |sent: &Sent| sent.iter().filter(|(_, frame)| is_sound(frame, ETH_LEN)).count();
    prop_assert_eq!(sound(&got), sound(&expected));
    let (got, expected) = (by_flow(got), by_flow(expected));
    prop_assert!(got == expected, "{:?}", all);
    Ok(())
}

fn sent_and_merged<F: TestFamily>(mut world: World<F>, frames: &[Vec<u8>]) -> (usize, u64) {
    let params = GroParams { mode: GroMode::Frags, ..GroParams::default() };
    let sent = world.input_merged(0, frames, &params).len();
    (sent, world.ctx.stats().merged.get())
}

/// What the property would be true of, too, if nothing were ever merged.
#[test]
fn a_train_is_one_aggregate() {
    for v6 in [false, true] {
        let (step, first) = (crate::gro::streams::Step::Plain, Packet::new(v6, true));
        let first = Packet { payload: vec![7; MOST], ..first };
        let flows = inside(v6, vec![(first, vec![step; 21])]);
        let frames: Vec<_> = flows[0].iter().map(frame_of).collect();
        let counts = if v6 {
            sent_and_merged(prefix::router(), &frames)
        } else {
            sent_and_merged(Router::new(&masquerade()).world, &frames)
        };
        assert_eq!(counts, (21, 20));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn aggregates_are_translated_as_their_segments_are(
        mode in prop::sample::select(vec![GroMode::Frags, GroMode::FragsUdp, GroMode::List]),
        v6: bool,
        flows in prop::collection::vec((flow(), prop::collection::vec(step(), 1..40)), 1..5),
        runs in prop::collection::vec(1usize..20, 1..8),
    ) {
        let flows = inside(v6, flows);
        if v6 {
            compare(prefix::router, &flows, &runs, mode)?;
        } else {
            compare(|| Router::new(&masquerade()).world, &flows, &runs, mode)?;
        }
    }
}
