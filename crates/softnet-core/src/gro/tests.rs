//! Each rule, both ways; the examples of the kernel's limits.

use super::rig::{ACK, CWR, Check, ECE, FIN, PSH, Packet, Rig, URG, is_sound};
use super::{Flushed, GroMode, OLD};
use crate::gso;
use crate::napi::Gro;
use crate::skb::{Csum, GsoType};

const FORMS: [(GroMode, bool); 4] =
    [(GroMode::Frags, true), (GroMode::FragsUdp, false), (GroMode::List, true), (GroMode::List, false)];

/// What is another of the second packet, and how.
type Change<'a> = (&'a str, &'a dyn Fn(&mut Packet));

/// `n` packets of one flow, that follow each other.
fn stream(first: &Packet, n: usize, len: usize) -> Vec<Packet> {
    (0..n)
        .map(|i| Packet {
            id: first.id.wrapping_add(i as u16),
            seq: first.seq.wrapping_add((i * len) as u32),
            payload: (0..len).map(|at| (at * 7 + i) as u8).collect(),
            ..first.clone()
        })
        .collect()
}

/// What comes out of two packets, the second of which is `change`d: whether they were merged, and
/// why not.
fn pair(mode: GroMode, first: &Packet, change: impl Fn(&mut Packet)) -> (Vec<usize>, Option<Flushed>) {
    last_of(2, mode, first, change)
}

/// The same must come of a packet that follows several, and is foreseen or not.
fn second_or_later(
    mode: GroMode,
    first: &Packet,
    change: impl Fn(&mut Packet),
) -> (Vec<usize>, Option<Flushed>) {
    let found = pair(mode, first, &change);
    let (mut counts, why) = last_of(5, mode, first, &change);
    counts[0] -= 3;
    assert_eq!((counts, why), found, "{mode} {first:?}");
    found
}

/// The same of `n` packets, the last of which is `change`d.
fn last_of(
    n: usize,
    mode: GroMode,
    first: &Packet,
    change: impl Fn(&mut Packet),
) -> (Vec<usize>, Option<Flushed>) {
    let mut rig = Rig::new(mode);
    let mut packets = stream(first, n, 100);
    change(&mut packets[n - 1]);
    let mut out = rig.receive(&packets);
    let why = Flushed::ALL.into_iter().find(|why| rig.stats.flushed(*why) > 0);
    out.extend(rig.flush(false));
    (rig.counts(out), why)
}

#[test]
fn packets_of_a_flow_become_one() {
    for (mode, tcp) in FORMS {
        for v6 in [false, true] {
            let mut rig = Rig::new(mode);
            let packets = stream(&Packet::new(v6, tcp), 5, 700);
            assert!(rig.receive(&packets[..3]).is_empty());
            assert_eq!((rig.table.held(), rig.stats.held()), (1, 1));
            assert!(rig.receive(&packets[3..]).is_empty());
            let [skb] = <[_; 1]>::try_from(rig.flush(false)).unwrap();
            let headers = packets[0].bytes().len() - 700;
            assert_eq!((skb.len(), skb.frame_count()), (headers + 5 * 700, 5));
            let head = skb.head();
            assert_eq!((head.gso_size, head.gso_segs, head.l3), (700, 5, 14));
            let kind = match (mode, tcp, v6) {
                (GroMode::List, ..) => GsoType::FragList,
                (_, true, false) => GsoType::TcpV4,
                (_, true, true) => GsoType::TcpV6,
                _ => GsoType::UdpL4,
            };
            assert_eq!(head.gso_type, kind);
            let partial = matches!(head.csum, Csum::Partial { start, .. } if start == head.l4);
            assert_eq!(partial, mode != GroMode::List);
            assert_eq!(gso::pkt_len(&skb), 5 * (headers + 700));
            assert_eq!(gso::network_len(&skb), Some(headers + 700 - 14));
            let cut = rig.cut(skb);
            let sent: Vec<_> = packets.iter().map(|packet| (None, packet.bytes())).collect();
            assert_eq!(cut, sent);
            assert!(cut.iter().all(|(_, frame)| is_sound(frame, 14)));
            let stats = &rig.stats;
            assert_eq!((stats.merged.get(), stats.aggregates.get(), stats.segments.get()), (4, 1, 5));
        }
    }
}

/// A checksum of the whole that a device completes is right: the field has the pseudo-header's sum.
#[test]
fn the_partial_checksum_is_that_of_the_whole() {
    for (mode, tcp) in [(GroMode::Frags, true), (GroMode::FragsUdp, false)] {
        for v6 in [false, true] {
            let mut rig = Rig::new(mode);
            let packets = stream(&Packet::new(v6, tcp), 3, 99);
            rig.receive(&packets);
            let [mut skb] = <[_; 1]>::try_from(rig.flush(false)).unwrap();
            gso::complete(&mut skb);
            let whole: Vec<u8> = skb.frames().flatten().copied().collect();
            assert!(is_sound(&whole, 14), "{mode} {v6}");
            rig.counts(vec![skb]);
        }
    }
}

#[test]
fn what_must_be_equal_ends_the_held_packet() {
    let ecn = |packet: &mut Packet| packet.flags |= ECE;
    let changes: [Change<'_>; 14] = [
        ("tos", &|p| p.tos = 4),
        ("ttl", &|p| p.ttl = 63),
        ("ack", &|p| p.ack += 1),
        ("window", &|p| p.window += 1),
        ("seq", &|p| p.seq += 1),
        ("seq", &|p| p.seq -= 1),
        ("urgent", &|p| p.urgent += 1),
        ("flags", &ecn),
        ("flags", &|p| p.flags |= CWR),
        ("options", &|p| p.options[7] += 1),
        ("options", &|p| p.options = vec![1; 12]),
        ("length", &|p| p.payload.push(0)),
        ("id", &|p| p.id = p.id.wrapping_add(2)),
        ("df", &|p| p.frag = 0),
    ];
    for (mode, tcp) in FORMS {
        for v6 in [false, true] {
            let first = Packet { options: vec![1; 8], ..Packet::new(v6, tcp) };
            assert_eq!(second_or_later(mode, &first, |_| ()), (vec![2], None));
            for (what, change) in &changes {
                let of_tcp = ["ack", "window", "seq", "urgent", "flags", "options"].contains(what);
                if of_tcp && !tcp || ["id", "df"].contains(what) && v6 {
                    continue;
                }
                let expected = (vec![1, 1], Some(Flushed::Mismatch));
                assert_eq!(
                    second_or_later(mode, &first, change),
                    expected,
                    "{what} {mode} v6 {v6} tcp {tcp}"
                );
            }
            if v6 {
                let label = second_or_later(mode, &first, |p| p.flow_label += 1);
                assert_eq!(label, (vec![1, 1], Some(Flushed::Mismatch)));
            }
        }
    }
}

#[test]
fn other_flows_end_nothing() {
    let changes: [Change<'_>; 5] = [
        ("port", &|p| p.sport += 1),
        ("address", &|p| p.host += 1),
        ("tag", &|p| p.vlan = Some(8)),
        ("no tag", &|p| p.vlan = None),
        ("tag in band", &|p| p.tags = vec![7]),
    ];
    for (mode, tcp) in FORMS {
        for (what, change) in &changes {
            let first = Packet { vlan: Some(7), ..Packet::new(false, tcp) };
            assert_eq!(second_or_later(mode, &first, change), (vec![1, 1], None), "{what}");
        }
        let tagged = Packet { tags: vec![5, 6], vlan: Some(7), ..Packet::new(true, tcp) };
        assert_eq!(second_or_later(mode, &tagged, |_| ()), (vec![2], None));
        assert_eq!(second_or_later(mode, &tagged, |p| p.tags[1] = 9), (vec![1, 1], None));
    }
}

#[test]
fn what_cannot_be_merged_ends_its_flow_and_goes_on() {
    let changes: [Change<'_>; 8] = [
        ("padding", &|p| p.padding = 2),
        ("padding", &|p| {
            p.payload.truncate(90);
            p.padding = 6;
        }),
        ("nothing in it", &|p| p.payload.clear()),
        ("wrong sum", &|p| p.check = Check::Wrong),
        ("no sum", &|p| p.check = Check::Zero),
        ("first fragment", &|p| p.frag = 0x2000),
        ("other fragment", &|p| p.frag = 0x0003),
        ("evil bit", &|p| p.frag = 0xc000),
    ];
    for (mode, tcp) in FORMS {
        for (what, change) in changes {
            let list = mode == GroMode::List;
            if *what == *"no sum" && tcp || list && *what == *"wrong sum" {
                continue;
            }
            let (counts, why) = second_or_later(mode, &Packet::new(false, tcp), change);
            assert_eq!((counts, why), (vec![1, 1], Some(Flushed::Mismatch)), "{what} {mode}");
        }
    }
    // Of a list each segment answers for itself.
    assert_eq!(pair(GroMode::List, &Packet::new(false, true), |p| p.check = Check::Wrong), (vec![2], None));
    // The first one's is as bad.
    let wrong = Packet { check: Check::Wrong, ..Packet::new(true, true) };
    let second = pair(GroMode::Frags, &wrong, |p| p.check = Check::Right);
    assert_eq!(second, (vec![1, 1], Some(Flushed::Mismatch)));
}

#[test]
fn a_last_segment_ends_it() {
    for v6 in [false, true] {
        let first = Packet::new(v6, true);
        for flags in [PSH, FIN, PSH | FIN] {
            let mut rig = Rig::new(GroMode::Frags);
            let mut packets = stream(&first, 3, 100);
            packets[1].flags |= flags;
            let out = rig.receive(&packets);
            let frames: Vec<_> =
                out.into_iter().flat_map(|skb| rig.cut(skb)).map(|(_, frame)| frame).collect();
            assert_eq!(frames, [packets[0].bytes(), packets[1].bytes()]);
            assert_eq!((rig.stats.flushed(Flushed::Last), rig.table.held()), (1, 1));
        }
        // A list has all flags of one.
        assert_eq!(pair(GroMode::List, &first, |p| p.flags |= PSH), (vec![1, 1], Some(Flushed::Mismatch)));
        for (mode, tcp) in FORMS {
            let short = pair(mode, &Packet::new(v6, tcp), |p| p.payload.truncate(99));
            assert_eq!(short, (vec![2], Some(Flushed::Last)));
        }
        // A first one with such flags is not held.
        for flags in [PSH, FIN, URG, 0x02, 0x04] {
            let mut rig = Rig::new(GroMode::Frags);
            let packet = Packet { flags: ACK | flags, payload: vec![1; 10], ..first.clone() };
            let out = rig.receive(&[packet]);
            assert_eq!((rig.counts(out), rig.table.held()), (vec![1], 0));
        }
    }
}

#[test]
fn only_the_first_has_cwr() {
    let first = Packet { flags: ACK | CWR, ..Packet::new(false, true) };
    assert_eq!(pair(GroMode::Frags, &first, |p| p.flags = ACK), (vec![2], None));
    assert_eq!(pair(GroMode::Frags, &first, |p| p.flags = ACK | CWR).0, [1, 1]);
    assert_eq!(pair(GroMode::List, &first, |p| p.flags = ACK).0, [1, 1], "a list has all flags of one");
}

/// The second packet decides whether identifications count or stay the same, with "don't fragment"
/// or without.
#[test]
fn identifications_count_or_stay() {
    for (mode, tcp) in FORMS {
        for frag in [0, 0x4000] {
            for steps in [0, 1] {
                let mut rig = Rig::new(mode);
                let mut packets = stream(&Packet { frag, ..Packet::new(false, tcp) }, 4, 10);
                for (i, packet) in packets.iter_mut().enumerate() {
                    packet.id = 0xfffeu16.wrapping_add(i as u16 * steps);
                }
                // It goes on otherwise.
                packets[3].id = packets[2].id.wrapping_add(1 - steps);
                let mut out = rig.receive(&packets);
                assert_eq!(out.len(), 1);
                out.extend(rig.flush(false));
                let frames: Vec<_> = out.into_iter().flat_map(|skb| rig.cut(skb)).collect();
                assert!(
                    frames
                        .iter()
                        .map(|(_, frame)| frame)
                        .eq(&packets.iter().map(Packet::bytes).collect::<Vec<_>>())
                );
                assert_eq!(rig.stats.merged.get(), 2);
            }
        }
    }
}

/// IPv4, TCP with timestamps, 1448 bytes: 45 segments are 65,212 bytes, and the 46th is the next
/// one's first. Datagrams of 1472 bytes: 44.
#[test]
fn an_aggregate_ends_below_64_kib() {
    for (tcp, len, n, total) in [(true, 1448, 45, 65_212), (false, 1472, 44, 28 + 44 * 1472)] {
        let mut rig = Rig::new(GroMode::FragsUdp);
        let packets = stream(&Packet { options: vec![1; 12], ..Packet::new(false, tcp) }, n + 1, len);
        let mut out = rig.receive(&packets);
        assert_eq!((out.len(), rig.table.held(), rig.stats.flushed(Flushed::Full)), (1, 1, 1));
        let data = out[0].data();
        assert_eq!((u16::from_be_bytes([data[16], data[17]]), out[0].len()), (total as u16, 14 + total));
        assert_eq!(out[0].segments(), n);
        out.extend(rig.flush(false));
        let frames: Vec<_> = out.into_iter().flat_map(|skb| rig.cut(skb)).map(|(_, frame)| frame).collect();
        assert_eq!(frames, packets.iter().map(Packet::bytes).collect::<Vec<_>>());
    }
}

#[test]
fn an_aggregate_has_so_many_segments_at_the_most() {
    for (mode, tcp) in FORMS {
        let mut rig = Rig::new(mode);
        let packets = stream(&Packet::new(true, tcp), 300, 10);
        let mut out: Vec<_> = packets.chunks(64).flat_map(|packets| rig.receive(packets)).collect();
        out.extend(rig.flush(false));
        let expected = match (mode, tcp) {
            (GroMode::Frags, true) => vec![256, 44],
            _ => vec![64, 64, 64, 64, 44],
        };
        assert_eq!(rig.counts(out), expected);
    }
}

/// Flows of one bucket.
fn same_bucket(n: usize) -> Vec<Packet> {
    let hash = |packet: &Packet| crate::steer::flow_hash(&packet.bytes());
    let packet = |sport| Packet { sport, payload: vec![1; 50], ..Packet::new(false, true) };
    let bucket = hash(&packet(1)) % 8;
    (1..).map(packet).filter(|packet| hash(packet) % 8 == bucket).take(n).collect()
}

/// Nine flows in one bucket, one packet each: the ninth ends the first.
#[test]
fn a_full_bucket_gives_up_its_oldest() {
    let mut rig = Rig::new(GroMode::Frags);
    let packets = same_bucket(9);
    let out = rig.receive(&packets);
    assert_eq!((out.len(), rig.table.held(), rig.stats.flushed(Flushed::Evicted)), (1, 8, 1));
    assert_eq!(out[0].data(), packets[0].bytes());
    rig.counts(out);
}

#[test]
fn old_ones_are_given_up_and_fresh_ones_kept() {
    let mut rig = Rig::new(GroMode::Frags);
    let flows = same_bucket(4);
    rig.params.now = 10 * OLD;
    rig.receive(&flows[..2]);
    rig.params.now = 11 * OLD;
    rig.receive(&flows[2..3]);
    let old = rig.flush(true);
    assert_eq!(rig.counts(old), [1, 1]);
    assert!(rig.flush(true).is_empty());
    assert_eq!((rig.table.held(), rig.stats.flushed(Flushed::Old)), (1, 2));
    // Nothing comes any more.
    rig.table.tick(12 * OLD);
    let old = rig.flush(true);
    assert_eq!((rig.counts(old), rig.table.held()), (vec![1], 0));
    rig.receive(&flows[3..]);
    let rest = rig.flush(false);
    assert_eq!((rig.counts(rest), rig.stats.flushed(Flushed::PollEnd)), (vec![1], 1));
}

/// All that is held and all that comes goes on at once, if need be.
#[test]
fn more_than_a_batch_may_go_on() {
    let mut rig = Rig::new(GroMode::Frags);
    let flow = |sport| Packet { sport, payload: vec![1; 50], ..Packet::new(false, true) };
    let mut held: Vec<Packet> = Vec::new();
    for sport in 1.. {
        let before = rig.table.held();
        let out = rig.receive(&[flow(sport)]);
        rig.counts(out);
        if rig.table.held() > before {
            held.push(flow(sport));
        }
        if held.len() == 64 {
            break;
        }
    }
    // Some were evicted; of those still held each is ended by its next, which is not held.
    let next: Vec<Packet> =
        held.into_iter().map(|p| Packet { flags: ACK | PSH, seq: p.seq + 9, ..p }).collect();
    let was = rig.table.held();
    let out = rig.receive(&next);
    assert!(out.len() > 64 && out.len() + rig.table.held() == 64 + was, "{} {was}", out.len());
    rig.counts(out);
}

#[test]
fn modes_say_what_is_merged() {
    for (mode, tcp, merged) in [
        (GroMode::Off, true, false),
        (GroMode::Off, false, false),
        (GroMode::Frags, false, false),
        (GroMode::FragsUdp, true, true),
    ] {
        let expected = if merged { vec![2] } else { vec![1, 1] };
        assert_eq!(pair(mode, &Packet::new(false, tcp), |_| ()).0, expected, "{mode}");
    }
    for mode in GroMode::ALL {
        assert_eq!(mode.name().parse(), Ok(mode));
    }
    let refused = "on".parse::<GroMode>().unwrap_err().to_string();
    assert_eq!(refused, "expected off, frags, frags-udp or list, found \"on\"");
}

/// A wrong header checksum would be made right.
#[test]
fn a_wrong_header_checksum_stays_wrong() {
    for (mode, tcp) in FORMS {
        let mut rig = Rig::new(mode);
        let packets = stream(&Packet::new(false, tcp), 2, 100);
        rig.receive(&packets[..1]);
        let mut skb = rig.skb(&packets[1]);
        skb.data_mut()[24] ^= 1;
        let out = rig.receive_skbs(skb.into());
        assert_eq!((rig.counts(out), rig.stats.merged.get()), (vec![1, 1], 0));
    }
}

/// What is held of a protocol goes on before packets of it that are not looked at any more.
#[test]
fn a_change_of_mode_ends_what_is_held() {
    for mode in [GroMode::Frags, GroMode::Off] {
        let mut rig = Rig::new(GroMode::FragsUdp);
        let packets = stream(&Packet::new(false, false), 2, 100);
        rig.receive(&packets[..1]);
        rig.params.mode = mode;
        let out = rig.receive(&packets[1..]);
        let frames: Vec<_> = out.into_iter().flat_map(|skb| rig.cut(skb)).map(|(_, frame)| frame).collect();
        assert_eq!(frames, [packets[0].bytes(), packets[1].bytes()]);
    }
}

/// The mode changes while a packet is held: its next does not become part of it.
#[test]
fn one_aggregate_has_one_form() {
    let mut rig = Rig::new(GroMode::Frags);
    let packets = stream(&Packet::new(false, true), 2, 100);
    rig.receive(&packets[..1]);
    rig.params.mode = GroMode::List;
    let out = rig.receive(&packets[1..]);
    assert_eq!((rig.counts(out), rig.table.held()), (vec![1], 1));
}

/// Where partial checksums come without a word, they are right, and a list's are completed.
#[test]
fn partial_checksums_are_right_where_they_may_come() {
    for (mode, tcp) in FORMS {
        for v6 in [false, true] {
            let first = Packet { check: Check::Partial, ..Packet::new(v6, tcp) };
            let expected = if mode == GroMode::List { vec![2] } else { vec![1, 1] };
            assert_eq!(pair(mode, &first, |_| ()).0, expected, "not expected");
            let mut rig = Rig::new(mode);
            rig.params.partial_csum = true;
            let mut packets = stream(&first, 3, 100);
            packets[1].check = Check::Right;
            rig.receive(&packets);
            let [skb] = <[_; 1]>::try_from(rig.flush(false)).unwrap();
            let frames = rig.cut(skb);
            assert!(frames.iter().all(|(_, frame)| is_sound(frame, 14)), "{mode}");
            packets.iter_mut().for_each(|packet| packet.check = Check::Right);
            assert!(frames.into_iter().map(|(_, frame)| frame).eq(packets.iter().map(Packet::bytes)));
        }
    }
}

/// Flows that take turns, in trains and one by one, come out as if each came alone; so the place of
/// what is foreseen is right however flows end and others take it.
#[test]
fn flows_that_take_turns_are_kept_apart() {
    for (mode, tcp) in FORMS {
        for (train, flows) in [(1, 3), (4, 8), (3, 40)] {
            let mut rig = Rig::of(mode, 4000);
            let streams: Vec<_> = (0..flows)
                .map(|flow| {
                    let first = Packet { sport: 100 + flow, id: 65_530, ..Packet::new(flow % 2 == 1, tcp) };
                    stream(&first, 24, 200)
                })
                .collect();
            let (mut sent, mut got, mut segments) = (vec![], vec![], 0);
            for at in (0..24).step_by(train) {
                for packets in &streams {
                    let mut train = packets[at..at + train].to_vec();
                    if mode != GroMode::List && tcp && at == 12 {
                        train[0].flags |= PSH;
                    }
                    sent.extend(train.iter().map(|packet| (None, packet.bytes())));
                    for skb in rig.receive(&train) {
                        segments += usize::from(skb.head().gso_segs > 1);
                        got.extend(rig.cut(skb));
                    }
                }
            }
            for skb in rig.flush(false) {
                segments += usize::from(skb.head().gso_segs > 1);
                got.extend(rig.cut(skb));
            }
            assert!(segments >= usize::from(flows), "{mode}: some were merged of each flow");
            sent.sort();
            got.sort();
            assert_eq!(got, sent, "{mode} {train} {flows}");
        }
    }
}
