//! GRO and then GSO gives the packets that came, whatever came: with loss, reorder, duplicates,
//! short segments, other flags, options and tags, wrong checksums, fragments; and the same packets
//! rewritten, if the aggregates were rewritten in between.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::rig::{ACK, Packet, Rig, is_sound};
use super::streams::{flow, interleave, key, packets, step};
use super::{GroMode, OLD};
use crate::ip::checksum::{update16, update32};
use crate::napi::Gro;
use crate::skb::{Csum, Skb};

/// What a router with NAT does to a packet: one hop less, another source address and port.
fn rewrite(skb: &mut Skb, l3: usize) {
    let partial = matches!(skb.head().csum, Csum::Partial { .. });
    let data = skb.data_mut();
    let v6 = data[l3] >> 4 == 6;
    let (hops, protocol, src, l4) = if v6 { (7, 6, 8, l3 + 40) } else { (8, 9, 12, l3 + 20) };
    let fragment = !v6 && u16::from_be_bytes([data[l3 + 6], data[l3 + 7]]) & 0x3fff != 0;
    let (tcp, field) = (data[l3 + protocol] == 6, l4 + if data[l3 + protocol] == 6 { 16 } else { 6 });
    data[..6].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    data[l3 + hops] -= 1;
    let word = |data: &[u8], at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
    let long = |data: &[u8], at: usize| u32::from(word(data, at)) << 16 | u32::from(word(data, at + 2));
    let (old, new) = (long(data, l3 + src), 0xc0a8_0102u32);
    let (old_port, new_port) = (word(data, l4), 50_000u16);
    data[l3 + src..l3 + src + 4].copy_from_slice(&new.to_be_bytes());
    data[l4..l4 + 2].copy_from_slice(&new_port.to_be_bytes());
    if !v6 {
        let check = update32(update16(word(data, l3 + 10), 0x100, 0), old, new);
        data[l3 + 10..l3 + 12].copy_from_slice(&check.to_be_bytes());
    }
    let check = word(data, field);
    let check = match () {
        () if partial => !update32(!check, old, new),
        () if check == 0 && !tcp => 0,
        () => match update16(update32(check, old, new), old_port, new_port) {
            0 if !tcp => 0xffff,
            check => check,
        },
    };
    assert!(!fragment || !partial);
    data[field..field + 2].copy_from_slice(&check.to_be_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 192 }))]

    #[test]
    fn gives_back_what_came(
        mode in prop::sample::select(vec![GroMode::Frags, GroMode::FragsUdp, GroMode::List]),
        flows in prop::collection::vec((flow(), prop::collection::vec(step(), 1..50)), 1..6),
        runs in prop::collection::vec(1usize..20, 1..8),
        polls in prop::collection::vec((1usize..=64, 0u8..4), 1..10),
        rewritten: bool,
        bare: bool,
        partial_csum: bool,
    ) {
        let mut rig = Rig::new(mode);
        rig.params.partial_csum = partial_csum;
        let flows: Vec<_> = flows.iter().map(|(first, steps)| packets(first, steps)).collect();
        let all = interleave(&flows, &runs);
        let mut expected: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
        let (mut sound, mut left, mut out) = (0, 0, vec![]);
        for packet in &all {
            let mut skb = rig.skb(packet);
            let key = key(packet.vlan, skb.data(), packet.l3());
            if rewritten {
                rewrite(&mut skb, packet.l3());
            }
            sound += usize::from(is_sound(skb.data(), packet.l3()));
            expected.entry(key).or_default().push(skb.data().to_vec());
            rig.ctx.free_skb(skb);
        }
        let mut rest = &all[..];
        let mut polls = polls.iter().cycle();
        while !rest.is_empty() {
            let (n, then) = *polls.next().unwrap();
            let (now, later) = rest.split_at(n.min(rest.len()));
            rest = later;
            rig.params.now += OLD / 2;
            let bare = bare && now.iter().all(|packet| packet.vlan.is_none());
            out.extend(if bare { rig.receive_bare(now) } else { rig.receive(now) });
            match then {
                0 => out.extend(rig.flush(false)),
                1 => out.extend(rig.flush(true)),
                _ => {}
            }
            prop_assert_eq!(rig.stats.held(), rig.table.held());
        }
        out.extend(rig.flush(false));
        let mut got: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
        for mut skb in out {
            let l3 = skb.data()[12..].chunks(4).position(|tag| tag[0] != 0x81).unwrap() * 4 + 14;
            let tag = crate::vlan::get(skb.head()).map(|(_, tci)| tci);
            let key = key(tag, skb.data(), l3);
            if rewritten {
                rewrite(&mut skb, l3);
            }
            for (of_segment, frame) in rig.cut(skb) {
                prop_assert_eq!(of_segment, tag);
                left += usize::from(is_sound(&frame, l3));
                got.entry(key.clone()).or_default().push(frame);
            }
        }
        prop_assert_eq!(left, sound);
        prop_assert!(got == expected, "{:?}", all.iter().map(|p| (p.sport, p.seq)).collect::<Vec<_>>());
    }

    /// Whatever the frames of an aggregate are like, it is cut into the same segments.
    #[test]
    fn cuts_alike_however_the_frames_are(
        first in flow(),
        n in 1usize..20,
        size in 1usize..1400,
        cut in prop::collection::vec(1usize..1700, 1..8),
    ) {
        let mode = if first.tcp { GroMode::Frags } else { GroMode::FragsUdp };
        let mut rig = Rig::new(mode);
        let packets: Vec<Packet> = (0..n).map(|i| Packet {
            id: first.id.wrapping_add(i as u16),
            seq: first.seq.wrapping_add((i * size) as u32),
            payload: (0..size).map(|at| (at * 3 + i) as u8).collect(),
            ..Packet { flags: ACK, ..first.clone() }
        }).collect();
        let mut out = rig.receive(&packets);
        out.extend(rig.flush(false));
        if out.len() != 1 || n == 1 {
            rig.counts(out);
            return Ok(());
        }
        let skb = out.pop().unwrap();
        // The same bytes in other frames.
        let bytes: Vec<u8> = skb.frames().flatten().copied().collect();
        let (headers, mut rest) = bytes.split_at(packets[0].bytes().len() - size);
        let mut other = rig.ctx.alloc_skb().unwrap();
        other.put(headers.len()).unwrap().copy_from_slice(headers);
        for len in cut.iter().cycle() {
            let (now, later) = rest.split_at((*len).min(rest.len()));
            let mut part = rig.ctx.alloc_skb().unwrap();
            part.put(now.len()).unwrap().copy_from_slice(now);
            if let Err(part) = other.append(part) {
                rig.ctx.free_skb(part);
                break;
            }
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        rig.ctx.originate();
        if rest.is_empty() {
            other.head_mut().copy_metadata(skb.head());
            let (from, to) = (skb.head(), other.head_mut());
            (to.gso_size, to.gso_segs, to.gso_type) = (from.gso_size, from.gso_segs, from.gso_type);
            (to.csum, to.flags) = (from.csum, from.flags);
            let (a, b) = (rig.cut(skb), rig.cut(other));
            prop_assert_eq!(&a, &b);
            prop_assert!(a.iter().all(|(_, frame)| is_sound(frame, first.l3())));
            prop_assert!(a.into_iter().map(|(_, frame)| frame).eq(packets.iter().map(Packet::bytes)));
        } else {
            rig.counts(vec![skb, other]);
        }
    }
}
