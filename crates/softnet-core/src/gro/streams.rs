//! Random streams of packets, as strangers' hosts and networks make them: flows that go on, with
//! loss, reordering, duplicates, short segments, other flags, options and tags, wrong checksums,
//! and fragments in between.

use proptest::prelude::*;

use super::rig::{ACK, CWR, Check, ECE, FIN, PSH, Packet, URG};

/// What the next packet of a flow is like, beside following the last one.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Plain,
    Flags(u8),
    Short(usize),
    Long,
    Empty,
    /// Is lost.
    Lost,
    /// Comes twice.
    Twice,
    /// Changes places with the one before it.
    Swapped,
    Options(u8),
    OtherOptions,
    Ack,
    Ttl,
    Tos(u8),
    Window,
    Urgent,
    SameId,
    SkipId,
    NoDf,
    Fragment,
    Wrong,
    Padding(usize),
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    prop_oneof![
        40 => Just(Plain),
        3 => prop::sample::select(vec![PSH, FIN, URG, CWR, ECE, 0x02, 0x04]).prop_map(Flags),
        2 => (1usize..1400).prop_map(Short),
        1 => Just(Long),
        1 => Just(Empty),
        2 => Just(Lost),
        1 => Just(Twice),
        2 => Just(Swapped),
        2 => any::<u8>().prop_map(Options),
        1 => Just(OtherOptions),
        1 => Just(Ack),
        1 => Just(Ttl),
        1 => any::<u8>().prop_map(Tos),
        1 => Just(Window),
        1 => Just(Urgent),
        3 => Just(SameId),
        1 => Just(SkipId),
        1 => Just(NoDf),
        1 => Just(Fragment),
        1 => Just(Wrong),
        1 => (1usize..9).prop_map(Padding),
    ]
}

pub(crate) fn flow() -> impl Strategy<Value = Packet> {
    let tags = prop_oneof![4 => Just(vec![]), 1 => Just(vec![0x2007u16]), 1 => Just(vec![3, 4])];
    let payload = prop::collection::vec(any::<u8>(), 1..1400);
    let one = (
        any::<(bool, bool, u32, u16)>(),
        1u8..3,
        1u16..4,
        prop::option::of(0u16..3),
        tags,
        payload,
        any::<bool>(),
    );
    one.prop_map(|((v6, tcp, seq, id), host, sport, vlan, tags, payload, cwr)| Packet {
        host,
        sport,
        vlan,
        tags,
        seq,
        id,
        payload,
        flags: ACK | if cwr { CWR } else { 0 },
        ..Packet::new(v6, tcp)
    })
}

/// The packets of a flow, after `steps`.
pub(crate) fn packets(first: &Packet, steps: &[Step]) -> Vec<Packet> {
    let mut out: Vec<Packet> = vec![];
    let mut next = first.clone();
    for step in steps {
        let mut packet = next.clone();
        let mut swap = false;
        match step {
            Step::Plain | Step::Twice | Step::Lost => {}
            Step::Flags(flags) => packet.flags |= flags,
            Step::Short(len) => packet.payload.truncate(*len),
            Step::Long => packet.payload.push(1),
            Step::Empty => packet.payload.clear(),
            Step::Swapped => swap = !out.is_empty(),
            Step::Options(byte) => next.options = vec![*byte; 12],
            Step::OtherOptions => next.options = vec![1; 4],
            Step::Ack => next.ack += 100,
            Step::Ttl => next.ttl -= 1,
            Step::Tos(tos) => next.tos = *tos,
            Step::Window => next.window += 1,
            Step::Urgent => next.urgent += 1,
            Step::SameId => packet.id = packet.id.wrapping_sub(1),
            Step::SkipId => packet.id = packet.id.wrapping_add(5),
            Step::NoDf => next.frag ^= 0x4000,
            Step::Fragment => packet.frag = 0x2000,
            Step::Wrong => packet.check = Check::Wrong,
            Step::Padding(n) => {
                // No longer than the others.
                packet.payload.truncate(packet.payload.len().saturating_sub(*n));
                packet.padding = *n;
            }
        }
        next.seq = packet.seq.wrapping_add(packet.payload.len() as u32);
        next.id = packet.id.wrapping_add(1);
        // Payloads differ, so that no two may change places unseen.
        next.payload.rotate_left(1);
        if let Some(byte) = next.payload.first_mut() {
            *byte = byte.wrapping_add(1);
        }
        match step {
            Step::Lost => continue,
            Step::Twice => out.push(packet.clone()),
            _ => {}
        }
        out.push(packet);
        if swap {
            let n = out.len();
            out.swap(n - 1, n - 2);
        }
    }
    out
}

/// What is told apart: packets of one key keep their order.
pub(crate) fn key(tag: Option<u16>, frame: &[u8], l3: usize) -> Vec<u8> {
    let ends = if frame[l3] >> 4 == 6 { l3 + 8..l3 + 44 } else { l3 + 12..l3 + 24 };
    let protocol = frame[l3 + if frame[l3] >> 4 == 6 { 6 } else { 9 }];
    [&frame[..l3], &frame[ends], &[protocol], &tag.map_or([0; 2], |tag| (tag + 1).to_be_bytes())].concat()
}

/// Interleaves flows, a few packets of each at a time.
pub(crate) fn interleave(flows: &[Vec<Packet>], runs: &[usize]) -> Vec<Packet> {
    let mut left: Vec<&[Packet]> = flows.iter().map(Vec::as_slice).collect();
    let mut out = vec![];
    let mut runs = runs.iter().cycle();
    while left.iter().any(|flow| !flow.is_empty()) {
        for flow in &mut left {
            let n = (*runs.next().unwrap()).min(flow.len());
            let (now, later) = flow.split_at(n);
            out.extend_from_slice(now);
            *flow = later;
        }
    }
    out
}
