//! Reassembly of both families: what comes out is what was cut, or nothing, and every packet is accounted for.

use proptest::prelude::*;

use super::rig::*;
use super::*;
use crate::ip::v4::header::{protocol, validate_header};

fn part6(id: u32, payload: &[u8], range: std::ops::Range<usize>) -> Vec<u8> {
    let more = u16::from(range.end < payload.len());
    v6(44, &[], 17, id, range.start as u16 | more, &payload[range])
}

#[test]
fn the_largest_datagram_in_any_order() {
    let data = payload(65_515);
    let cuts: Vec<_> = (0..data.len()).step_by(1480).map(|at| at..data.len().min(at + 1480)).collect();
    assert_eq!(cuts.len(), 45);
    for order in [cuts.clone(), cuts.iter().rev().cloned().collect()] {
        let mut rig = Rig::new();
        let (last, before) = order.split_last().unwrap();
        for range in before {
            assert_eq!(rig.feed(&part(5, &data, range.clone())), Ok(None));
        }
        assert_eq!(rig.frags.held(), 44);
        assert_eq!(rig.feed(&part(5, &data, last.clone())), Ok(Some(whole(5, &data))));
    }
}

#[test]
fn the_whole_has_the_first_fragments_header() {
    let mut rig = Rig::new();
    let data = payload(40);
    let options = [7, 4, 4, 0];
    assert_eq!(rig.feed(&v4(1, UDP, &[], 0, 2, &data[16..])), Ok(None));
    let done = rig.feed(&v4(1, UDP, &options, 0x48, 1 << 13, &data[..16])).unwrap().unwrap();
    assert_eq!(done, v4(1, UDP, &options, 0x48, 0, &data));
    assert!(validate_header(&done).is_ok());
    // Padding on the link is none of it.
    let mut padded = part(2, &data, 32..40);
    padded.resize(46, 0xee);
    assert_eq!(rig.feed(&padded), Ok(None));
    assert_eq!(rig.feed(&part(2, &data, 0..32)), Ok(Some(whole(2, &data))));
}

#[test]
fn datagrams_are_told_apart() {
    let mut rig = Rig::new();
    let data = payload(40);
    let mut other_source = part(1, &data, 0..24);
    other_source[15] ^= 7;
    let sum = u16::from_be_bytes([other_source[10], other_source[11]]);
    let old = u16::from_be_bytes([0, 2]);
    let check = crate::ip::checksum::update16(sum, old, old ^ 7);
    other_source[10..12].copy_from_slice(&check.to_be_bytes());
    let other_protocol = v4(1, 132, &[], 0, 1 << 13, &data[..24]);
    for alien in [other_source, other_protocol, part(2, &data, 0..24)] {
        assert_eq!(rig.feed(&alien), Ok(None));
    }
    assert_eq!(rig.feed(&part(1, &data, 24..40)), Ok(None));
    assert_eq!((rig.frags.datagrams(), rig.frags.held()), (4, 4));
    assert_eq!(rig.feed(&part(1, &data, 0..24)), Ok(Some(whole(1, &data))));
    assert_eq!((rig.frags.datagrams(), rig.frags.held()), (3, 3));
}

#[test]
fn duplicates_are_ignored_and_overlaps_ruin_the_datagram() {
    let mut rig = Rig::new();
    let data = payload(64);
    for range in [0..24, 0..24, 40..64, 40..64] {
        let before = rig.drops(DropReason::DupFrag);
        let twice = rig.frags.held() > 0 && (range.start == 0) == (rig.frags.held() == 1);
        let want = if twice { Err(DropReason::DupFrag) } else { Ok(None) };
        assert_eq!(rig.feed(&part(1, &data, range)), want);
        assert_eq!(rig.drops(DropReason::DupFrag), before + u64::from(twice));
    }
    assert_eq!(rig.feed(&part(1, &data, 24..40)), Ok(Some(whole(1, &data))));

    let changed: Vec<u8> = data.iter().map(|byte| byte ^ 1).collect();
    // Inside, around, across either end; and the same range with something else in it.
    for (id, bad) in [(10, 24..32), (11, 8..48), (12, 8..24), (13, 32..48)] {
        for range in [0..8, 16..40] {
            assert_eq!(rig.feed(&part(id, &data, range)), Ok(None));
        }
        assert_eq!(rig.feed(&part(id, &data, bad)), Err(DropReason::FragOverlap));
        // What is yet to come goes the same way.
        for range in [8..16, 40..64, 0..8] {
            assert_eq!(rig.feed(&part(id, &data, range)), Err(DropReason::FragOverlap));
        }
    }
    assert_eq!(rig.feed(&part(14, &data, 16..40)), Ok(None));
    assert_eq!(rig.feed(&part(14, &changed, 16..40)), Err(DropReason::FragOverlap));
    assert_eq!((rig.frags.held(), rig.frags.datagrams()), (0, 5));
    // In the end the identifications are free again; there is nothing to report.
    assert_eq!(rig.pass(30), []);
    assert_eq!(rig.frags.datagrams(), 0);
    assert_eq!(rig.feed(&part(10, &data, 0..40)), Ok(None));
    assert_eq!(rig.feed(&part(10, &data, 40..64)), Ok(Some(whole(10, &data))));
}

#[test]
fn fragments_that_contradict_themselves_are_refused_alone() {
    let mut rig = Rig::new();
    let data = payload(1400);
    let more = 1 << 13;
    let tcp = |word: u16, len: usize| v4(1, protocol::TCP, &[], 0, word, &data[..len]);
    let udp = |word: u16, len: usize| v4(1, UDP, &[], 0, word, &data[..len]);
    for bad in [
        // Nothing in it; not cut at a multiple of 8; beyond what a header can say.
        udp(more, 0),
        udp(4, 0),
        udp(more | 4, 12),
        udp(0x1fff, 8),
        udp(more | 0x1f80, 1048),
        // The TCP header is not all in the first, or in the second again.
        tcp(more, 16),
        tcp(1, 24),
        tcp(more | 2, 24),
    ] {
        assert_eq!(rig.feed(&bad), Err(DropReason::FragInvalid));
    }
    assert_eq!(rig.frags.datagrams(), 0);
    for good in [tcp(more, 24), tcp(more | 3, 8), udp(more, 8), udp(0x1ffd, 3), udp(0x1f80, 1000)] {
        assert!(rig.feed(&good).is_ok_and(|done| done.is_none()), "{:?}", &good[..24]);
        let _ = rig.pass(31);
    }
    // Short of the header, or of what it says.
    assert_eq!(rig.feed(&udp(more, 8)[..19]), Err(DropReason::PktTooSmall));
    assert_eq!(rig.feed(&udp(more, 8)[..27]), Err(DropReason::PktTooSmall));
}

#[test]
fn ends_that_contradict_each_other_ruin_the_datagram() {
    let data = payload(64);
    let (short, shorter) = (&data[..48], &data[..40]);
    for (first, second) in [
        // A second end, before or behind the first; more behind the end; an end before what is there.
        (part(1, &data, 48..64), part(1, short, 32..48)),
        (part(1, short, 24..48), part(1, &data, 48..64)),
        (part(1, shorter, 32..40), part(1, &data, 40..48)),
        (part(1, &data, 48..56), part(1, shorter, 32..40)),
    ] {
        let mut rig = Rig::new();
        assert_eq!(rig.feed(&first), Ok(None));
        assert_eq!(rig.feed(&second), Err(DropReason::FragInvalid));
        assert_eq!(rig.feed(&part(1, &data, 0..8)), Err(DropReason::FragInvalid));
        assert_eq!(rig.drops(DropReason::FragInvalid), 3);
    }
}

#[test]
fn a_first_header_that_makes_it_too_long() {
    let mut rig = Rig::new();
    let data = payload(1400);
    let options = [1; 40];
    let mut at = 1400;
    while at < 65_515 {
        let len = (65_515 - at).min(1400);
        let more = u16::from(at + len < 65_515) << 13;
        assert_eq!(rig.feed(&v4(1, UDP, &[], 0, more | (at / 8) as u16, &data[..len])), Ok(None));
        at += len;
    }
    assert_eq!(rig.feed(&v4(1, UDP, &options, 0, 1 << 13, &data)), Ok(None));
    assert_eq!((rig.frags.held(), rig.drops(DropReason::FragInvalid)), (0, 47));
}

#[test]
fn congestion_that_a_fragment_saw_is_the_datagrams() {
    const BAD: Result<Option<u8>, u64> = Err(2);
    let (not, ect1, ect0, ce) = (0, 1, 2, 3);
    for (first, second, want) in [
        (not, not, Ok(Some(not))),
        (ect0, ect0, Ok(Some(ect0))),
        (ect0, ect1, Ok(Some(ect0))),
        (ect0, ce, Ok(Some(ce))),
        (ce, ect1, Ok(Some(ce))),
        (ce, ce, Ok(Some(ce))),
        (not, ce, BAD),
        (ce, not, BAD),
        (ect1, not, BAD),
    ] {
        let mut rig = Rig::new();
        let data = payload(16);
        assert_eq!(rig.feed(&v4(1, UDP, &[], 0x20 | first, 1 << 13, &data[..8])), Ok(None));
        let done = rig.feed(&v4(1, UDP, &[], 0x20 | second, 1, &data[8..])).unwrap();
        assert!(done.iter().all(|packet| packet[1] & 0xfc == 0x20 && validate_header(packet).is_ok()));
        let got = match done {
            Some(packet) => Ok(Some(packet[1] & 3)),
            None => Err(rig.drops(DropReason::FragInvalid)),
        };
        assert_eq!(got, want, "{first} {second}");
    }
}

#[test]
fn too_many_fragments() {
    let mut rig = Rig::new();
    let data = payload(8 * (MAX_FRAGMENTS + 1));
    for at in (8..data.len()).step_by(8) {
        assert_eq!(rig.feed(&part(1, &data, at..at + 8)), Ok(None));
    }
    assert_eq!(rig.feed(&part(1, &data, 0..8)), Err(DropReason::FragLimit));
    assert_eq!(rig.drops(DropReason::FragLimit), MAX_FRAGMENTS as u64 + 1);
    // As many as may be.
    let data = &data[8..];
    for at in (8..data.len()).step_by(8) {
        assert_eq!(rig.feed(&part(2, data, at..at + 8)), Ok(None));
    }
    assert_eq!(rig.feed(&part(2, data, 0..8)), Ok(Some(whole(2, data))));
}

#[test]
fn too_far_from_the_last() {
    let mut rig = Rig::new();
    let data = payload(32);
    assert_eq!(rig.feed(&part(1, &data, 0..16)), Ok(None));
    // Just near enough.
    for id in 100..163 {
        assert_eq!(rig.feed(&part(id, &data, 0..16)), Ok(None));
    }
    assert_eq!(rig.feed(&part(1, &data, 16..32)), Ok(Some(whole(1, &data))));
    assert_eq!(rig.feed(&part(1, &data, 0..16)), Ok(None));
    for id in 200..264 {
        assert_eq!(rig.feed(&part(id, &data, 0..16)), Ok(None));
    }
    // The identification is another datagram's by now.
    rig.now += 20 * SECOND;
    assert_eq!(rig.feed(&part(1, &data, 16..32)), Ok(None));
    assert_eq!(rig.drops(DropReason::FragTooFar), 1);
    assert_eq!(rig.pass(10).len(), 63 + 64);
    // Its time began anew.
    assert_eq!(rig.feed(&part(1, &data, 0..16)), Ok(Some(whole(1, &data))));
}

#[test]
fn time_runs_out() {
    let mut rig = Rig::new();
    let data = payload(48);
    assert_eq!(rig.frags.next_deadline(), None);
    assert_eq!(rig.feed(&part6(1, &data, 0..16)), Ok(None));
    assert_eq!(rig.frags.next_deadline(), Some(60 * SECOND));
    rig.now = 10 * SECOND;
    assert_eq!(rig.feed(&part(1, &data, 0..16)), Ok(None));
    assert_eq!(rig.feed(&part(2, &data, 16..32)), Ok(None));
    assert_eq!(rig.frags.next_deadline(), Some(40 * SECOND));
    // Another fragment does not prolong it.
    rig.now = 20 * SECOND;
    assert_eq!(rig.feed(&part(1, &data, 32..48)), Ok(None));
    assert_eq!(rig.frags.next_deadline(), Some(40 * SECOND));
    assert_eq!(rig.pass(19), []);
    assert_eq!(rig.pass(1), [(2, true), (1, false)]);
    assert_eq!(rig.frags.next_deadline(), Some(60 * SECOND));
    assert_eq!(rig.pass(20), [(1, true)]);
    assert_eq!((rig.frags.next_deadline(), rig.frags.held()), (None, 0));
}

#[test]
fn at_the_bound_of_memory_the_oldest_goes() {
    // Room for four: by the knob, and by the region.
    let knob = FragParams { ipfrag_high_thresh: 4 * TRUESIZE + 1, ..FragParams::default() };
    for (params, frames) in [(knob, 2048), (FragParams::default(), 16)] {
        let mut rig = Rig::with(params, frames);
        let data = payload(40);
        assert_eq!(rig.feed(&part6(1, &data, 0..16)), Ok(None));
        for id in 2..4 {
            rig.now += 1;
            assert_eq!(rig.feed(&part(id, &data, 0..16)), Ok(None));
        }
        assert_eq!(rig.feed(&part(3, &data, 16..32)), Ok(None));
        assert_eq!(rig.drops(DropReason::FragEvicted), 0);
        // The fifth pushes the oldest out, of whichever family, and not itself.
        rig.now += 1;
        assert_eq!(rig.feed(&part(4, &data, 0..16)), Ok(None));
        assert_eq!((rig.drops(DropReason::FragEvicted), rig.frags.held()), (1, 4));
        assert_eq!(rig.feed(&part(3, &data, 32..40)), Ok(Some(whole(3, &data))));
        assert_eq!((rig.drops(DropReason::FragEvicted), rig.frags.held()), (2, 1));
        // Datagrams that were ruined hold no fragments, but are bounded, too.
        for id in 10..30 {
            rig.now += 1;
            assert_eq!(rig.feed(&part(id, &data, 8..24)), Ok(None));
            assert_eq!(rig.feed(&part(id, &data, 16..32)), Err(DropReason::FragOverlap));
            assert!(rig.frags.datagrams() <= 4);
        }
    }
    let mut rig = Rig::with(FragParams { ipfrag_high_thresh: 0, ..FragParams::default() }, 64);
    assert_eq!(rig.feed(&part(1, &payload(40), 0..16)), Err(DropReason::FragEvicted));
}

/// Packets of several frames take as much memory as these.
#[test]
fn each_frame_of_a_fragment_counts() {
    let data = payload(64);
    let knob = FragParams { ipfrag_high_thresh: 4 * TRUESIZE, ..FragParams::default() };
    let mut rig = Rig::with(knob, 64);
    assert_eq!(rig.feed_in(&part(1, &data, 0..32), 1), Ok(None));
    assert_eq!(rig.feed_in(&part(2, &data, 0..32), 3), Ok(None));
    assert_eq!((rig.frags.held(), rig.drops(DropReason::FragEvicted)), (2, 0));
    assert_eq!(rig.feed_in(&part(3, &data, 0..32), 2), Ok(None));
    assert_eq!((rig.frags.held(), rig.drops(DropReason::FragEvicted)), (1, 2));
    // For one that is too much by itself nothing goes.
    assert_eq!(rig.feed_in(&part(4, &data, 0..32), 5), Err(DropReason::FragEvicted));
    assert_eq!(rig.feed_in(&part(3, &data, 32..64), 2), Ok(Some(whole(3, &data))));
    assert_eq!(rig.frags.held(), 0);
}

/// A fragment of IPv6 must be in one frame, or come to one.
#[test]
fn an_ipv6_fragment_that_no_frame_holds_is_refused() {
    let mut rig = Rig::new();
    let data = payload(4000);
    assert_eq!(rig.feed_in(&part6(1, &data, 0..1200), 3), Ok(None));
    assert_eq!(rig.feed_in(&part6(1, &data, 1200..4000), 4), Err(DropReason::Nonlinear));
    assert_eq!((rig.frags.held(), rig.drops(DropReason::Nonlinear)), (1, 1));
}

#[test]
fn ipv6_headers_around_the_fragment_header() {
    let mut rig = Rig::new();
    let data = payload(56);
    // Hop-by-hop and routing headers stay; the destination options behind are part of what was cut.
    let before = [&[43, 0, 1, 4, 0, 0, 0, 0][..], &[44, 0, 0, 0, 0, 0, 0, 0]].concat();
    let inner = [&[17, 0, 1, 4, 0, 0, 0, 0][..], &data].concat();
    assert_eq!(rig.feed(&v6(0, &before, 60, 9, 40, &inner[40..])), Ok(None));
    assert_eq!(rig.feed(&v6(0, &before, 60, 9, 24 | 1, &inner[24..40])), Ok(None));
    let done = rig.feed(&v6(0, &before, 60, 9, 1, &inner[..24])).unwrap().unwrap();
    let mut want = v6(0, &before, 60, 9, 0, &inner);
    // The routing header announces what the Fragment header did, and that is gone.
    want.drain(56..64);
    want[48] = 60;
    let len = (want.len() - 40) as u16;
    want[4..6].copy_from_slice(&len.to_be_bytes());
    assert_eq!(done, want);
    // Without headers before.
    for range in [16..32, 32..56] {
        assert_eq!(rig.feed(&part6(7, &data, range)), Ok(None));
    }
    let mut want = v6(17, &[], 17, 7, 0, &data);
    want.drain(40..48);
    want[5] = 56;
    assert_eq!(rig.feed(&part6(7, &data, 0..16)), Ok(Some(want)));
}

/// RFC 6946: a whole datagram with a Fragment header has nothing to do with fragments of the same identification.
#[test]
fn atomic_fragments_stand_alone() {
    let mut rig = Rig::new();
    let data = payload(32);
    assert_eq!(rig.feed(&part6(7, &data, 0..16)), Ok(None));
    for (next, data) in [(17, &data[..]), (59, &[])] {
        let mut want = v6(next, &[], next, 7, 0, data);
        want.drain(40..48);
        want[5] = data.len() as u8;
        assert_eq!(rig.feed(&v6(44, &[], next, 7, 0, data)), Ok(Some(want)));
    }
    assert_eq!(rig.frags.held(), 1);
    assert!(rig.feed(&part6(7, &data, 16..32)).unwrap().is_some());
}

#[test]
fn ipv6_fragments_that_are_refused() {
    let mut rig = Rig::new();
    let data = payload(1400);
    let destination = [17, 0, 1, 4, 0, 0, 0, 0];
    for bad in [
        // Cut where it may not be; empty; too long.
        v6(44, &[], 17, 1, 1, &data[..12]),
        v6(44, &[], 17, 1, 8, &[]),
        v6(44, &[], 59, 1, 1, &[]),
        v6(44, &[], 17, 1, 0xfff8, &data[..8]),
        // RFC 7112: the chain of headers is not all in the first.
        v6(44, &[], 6, 1, 1, &data[..16]),
        v6(44, &[], 60, 1, 1, &destination),
        v6(44, &[], 60, 1, 1, &[17, 9, 1, 4, 0, 0, 0, 0]),
        // A fragment of a fragment, or no fragment at all.
        v6(44, &[], 44, 1, 1, &data[..16]),
        v6(17, &[], 17, 1, 1, &data[..16]),
        v6(60, &[17, 0, 1, 4, 0, 0, 0, 0], 17, 1, 1, &data[..16]),
    ] {
        assert_eq!(rig.feed(&bad), Err(DropReason::FragInvalid), "{:?}", &bad[40..48]);
    }
    let good = v6(44, &[], 17, 1, 1, &data[..16]);
    for len in [39, 47, 63] {
        assert_eq!(rig.feed(&good[..len]), Err(DropReason::PktTooSmall));
    }
    let beyond = v6(0, &[44, 9, 1, 4, 0, 0, 0, 0], 17, 1, 1, &data[..16]);
    assert_eq!(rig.feed(&beyond), Err(DropReason::FragInvalid));
    assert_eq!(rig.frags.datagrams(), 0);
    assert_eq!(rig.feed(&good), Ok(None));
}

/// Of two links with the same addresses.
#[test]
fn link_local_sources_are_of_their_link() {
    let mut rig = Rig::new();
    let data = payload(32);
    let mut feed = |dev: u16, range: std::ops::Range<usize>| {
        let mut packet = part6(1, &data, range);
        packet[8..10].copy_from_slice(&[0xfe, 0x80]);
        let mut skb = rig.ctx.alloc_skb().unwrap();
        skb.put(packet.len()).unwrap().copy_from_slice(&packet);
        (skb.head_mut().l3, skb.head_mut().dev) = (0, dev);
        let done = rig.frags.ipv6(&mut rig.ctx, 0, skb);
        let Ok(done) = done.map_err(|(skb, reason)| rig.ctx.free(skb, reason)) else { panic!("refused") };
        done.map(|skb| rig.ctx.deliver(skb)).is_some()
    };
    assert!(!feed(1, 0..16) && !feed(2, 16..32));
    assert!(feed(2, 0..16));
}

/// A payload's length, and cuts of it at multiples of 8 into pieces that fit an skb.
fn any_cuts(
    len: impl Strategy<Value = usize>,
) -> impl Strategy<Value = (usize, Vec<std::ops::Range<usize>>)> {
    len.prop_flat_map(|len| {
        prop::collection::btree_set(1..len.div_ceil(8), 1..12).prop_map(move |mut cuts| {
            cuts.extend((200..len.div_ceil(8)).step_by(200));
            let ends = cuts.iter().map(|cut| cut * 8).chain([len]);
            let starts = std::iter::once(0).chain(cuts.iter().map(|cut| cut * 8));
            (len, starts.zip(ends).map(|(start, end)| start..end).collect())
        })
    })
}

proptest! {
    /// However it is cut, in whatever order its parts come, some of them more than once: once all are there, and not
    /// before, it is whole.
    #[test]
    fn cut_shuffled_and_repeated(
        (len, cuts) in any_cuts(100usize..4000),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        six: bool,
    ) {
        let mut rig = Rig::new();
        let data = payload(len);
        let mut missing: std::collections::HashSet<_> = (0..cuts.len()).collect();
        let order = order.iter().map(|index| index.index(cuts.len())).chain(0..cuts.len());
        for at in order {
            let range = cuts[at].clone();
            let done = rig.feed(&if six { part6(1, &data, range) } else { part(1, &data, range) });
            if !missing.remove(&at) {
                prop_assert_eq!(done, Err(DropReason::DupFrag));
            } else if missing.is_empty() {
                prop_assert_eq!(&done.unwrap().unwrap()[if six { 40 } else { 20 }..], &data[..]);
                break;
            } else {
                prop_assert_eq!(done, Ok(None));
            }
        }
        prop_assert!(missing.is_empty());
    }

    /// Parts of the true datagram with one among them that lies: what comes out is the true one or nothing, unless the lie
    /// takes the place of parts exactly, which cannot be noticed here.
    #[test]
    fn intact_or_dropped(
        (_, cuts) in any_cuts(Just(1600)),
        lie in (0usize..200, 1usize..200),
        at: prop::sample::Index,
        order in prop::collection::vec(any::<prop::sample::Index>(), 1..40),
    ) {
        let mut rig = Rig::new();
        let data = payload(1600);
        let forged = vec![0xff; 1600];
        let start = lie.0 * 8;
        let end = (start + lie.1 * 8).min(1600);
        let exact = cuts.iter().any(|cut| cut.start == start) && cuts.iter().any(|cut| cut.end == end);
        prop_assume!(!exact);
        let mut parts: Vec<_> = cuts.iter().map(|cut| part(1, &data, cut.clone())).collect();
        for (i, index) in order.iter().enumerate() {
            let len = parts.len();
            parts.swap(i % len, index.index(len));
        }
        parts.insert(at.index(parts.len()), part(1, &forged, start..end));
        for part in parts {
            if let Ok(Some(done)) = rig.feed(&part) {
                prop_assert!(done == whole(1, &data));
            }
        }
    }
}
