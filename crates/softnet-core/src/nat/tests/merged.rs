//! NAT of aggregates: what GRO merged, NAT translated and GSO cut again is, byte by byte, what
//! comes of the same packets one by one.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::gro::rig::{FIN, Packet, is_sound};
use crate::gro::streams::{Step, flow, interleave, packets, step};
use crate::gro::{GroMode, GroParams};
use crate::ip::slow::world::{CLIENT_MAC, MACS, Sent, v6};
use crate::nat::nat64::tests as nat64;
use crate::skb::BATCH;

/// Bytes of payload for which there is room in the MTU of the link outside, options included.
const MOST: usize = 500;

const RST: u8 = 4;

/// What translates.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Nat44,
    Nptv6,
    Nat64,
}

/// Packets from the client's link to a server, of one family and untagged.
fn inside(kind: Kind, flows: Vec<(Packet, Vec<Step>)>) -> Vec<Vec<Packet>> {
    let flows = flows.into_iter().zip(1000..).map(|((first, steps), sport)| {
        let mut payload = first.payload.clone();
        payload.truncate(MOST);
        let client = v6::net(0, 8 + u16::from(first.host)).into();
        let ends: (IpAddr, IpAddr) = match kind {
            Kind::Nat44 => (Ipv4Addr::new(10, 0, 0, 8 + first.host).into(), SERVER.into()),
            Kind::Nptv6 => (client, Ipv6Addr::SERVER.into()),
            Kind::Nat64 => (client, nat64::under(SERVER).into()),
        };
        let v6 = kind != Kind::Nat44;
        // Each flow has a port of its own, so that what it is outside tells it from the others.
        let first = Packet { v6, tags: vec![], vlan: None, payload, sport, ends: Some(ends), ..first };
        // NAT64 puts fragments together, and they pass what GRO holds of their flow, as fragments
        // may. And it draws an identification for each packet, so that the port of a connection
        // which opens later is another.
        let is_kept = |step: &Step| match step {
            Step::Fragment => kind != Kind::Nat64,
            Step::Flags(flags) => kind != Kind::Nat64 || flags & (FIN | RST) == 0,
            _ => true,
        };
        packets(&first, &steps.into_iter().filter(is_kept).collect::<Vec<_>>())
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

/// Without the identifications that NAT64 draws for packets that may be fragmented (RFC 7915, 5.1),
/// and the header's checksum.
fn unnumbered(mut sent: Sent) -> Sent {
    for (_, frame) in sent.iter_mut().filter(|(_, frame)| frame[14] >> 4 == 4 && frame[20] & 0x40 == 0) {
        for at in [18, 19, 24, 25] {
            frame[at] = 0;
        }
    }
    sent
}

/// Without what the link padded them with, which some ways through the router keep.
fn trimmed(mut sent: Sent) -> Sent {
    for (_, frame) in &mut sent {
        let len = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
        let len = if frame[14] >> 4 == 6 { 40 + len(18) } else { len(16) };
        frame.truncate(ETH_LEN + len);
    }
    sent
}

/// Length and checksum of each packet.
fn brief(flows: &BTreeMap<(u16, Vec<u8>), Vec<Vec<u8>>>) -> Vec<Vec<(usize, &[u8])>> {
    flows.values().map(|of| of.iter().map(|frame| (frame.len(), &frame[40..42])).collect()).collect()
}

/// Has `flows` received by a router one by one and by another through GRO, and compares what they
/// send.
fn compare<F: TestFamily>(
    kind: Kind,
    mut router: impl FnMut() -> World<F>,
    flows: &[Vec<Packet>],
    runs: &[usize],
    mode: GroMode,
) -> Result<(), TestCaseError> {
    let (mut plain, mut merging) = (router(), router());
    // The first of each flow opens its connection, at the same time in both.
    let first: Vec<_> = flows.iter().filter_map(|flow| flow.first()).map(frame_of).collect();
    let seen = |sent: Sent| if kind == Kind::Nat64 { unnumbered(sent) } else { sent };
    prop_assert_eq!(seen(plain.input(0, &first)), seen(merging.input(0, &first)));
    let all: Vec<_> = interleave(flows, runs).iter().map(frame_of).collect();
    let params = GroParams { mode, ..GroParams::default() };
    let (mut expected, mut got) = (Sent::new(), Sent::new());
    for frames in all.chunks(BATCH) {
        expected.extend(trimmed(plain.input(0, frames)));
        got.extend(trimmed(merging.input_merged(0, frames, &params)));
    }
    let sound = |sent: &Sent| sent.iter().filter(|(_, frame)| is_sound(frame, ETH_LEN)).count();
    prop_assert_eq!(sound(&got), sound(&expected));
    let (got, expected) = (by_flow(seen(got)), by_flow(seen(expected)));
    // Lengths and checksums first: they tell what is missing, or out of order.
    prop_assert_eq!(brief(&got), brief(&expected));
    prop_assert_eq!(got, expected);
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
    for kind in [Kind::Nat44, Kind::Nptv6, Kind::Nat64] {
        let (step, first) = (Step::Plain, Packet::new(kind != Kind::Nat44, true));
        let first = Packet { payload: vec![7; MOST], ..first };
        let flows = inside(kind, vec![(first, vec![step; 21])]);
        let frames: Vec<_> = flows[0].iter().map(frame_of).collect();
        let counts = match kind {
            Kind::Nat44 => sent_and_merged(Router::new(&masquerade()).world, &frames),
            Kind::Nptv6 => sent_and_merged(prefix::router(), &frames),
            Kind::Nat64 => sent_and_merged(nat64::router(), &frames),
        };
        assert_eq!(counts, (21, 20));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn aggregates_are_translated_as_their_segments_are(
        mode in prop::sample::select(vec![GroMode::Frags, GroMode::FragsUdp, GroMode::List]),
        kind in prop::sample::select(vec![Kind::Nat44, Kind::Nptv6, Kind::Nat64]),
        flows in prop::collection::vec((flow(), prop::collection::vec(step(), 1..40)), 1..5),
        runs in prop::collection::vec(1usize..20, 1..8),
    ) {
        let flows = inside(kind, flows);
        match kind {
            Kind::Nat44 => compare(kind, || Router::new(&masquerade()).world, &flows, &runs, mode)?,
            Kind::Nptv6 => compare(kind, prefix::router, &flows, &runs, mode)?,
            Kind::Nat64 => compare(kind, nat64::router, &flows, &runs, mode)?,
        }
    }
}
