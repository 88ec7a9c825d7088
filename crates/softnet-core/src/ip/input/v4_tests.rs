use std::net::Ipv4Addr;
use std::sync::Arc;

use proptest::prelude::*;

use super::super::bench::{Bench, MAC, NEXT, OUT};
use super::*;
use crate::ip::adjacency::Kind;
use crate::ip::tables::host_key;
use crate::ip::v4::fib::Fib;
use crate::ip::v4::header;
use crate::ip::{Prefix, checksum};
use crate::skb::BATCH;

/// 10/8 goes out of device 1 by way of NEXT (MTU 100), 10.9/16 is connected there, 10.8.0.1 is ours.
fn bench() -> Bench {
    let mut b = Bench::new();
    let tables = &mut b.tables;
    let gateway = Adjacency::gateway(1, 100, Ipv4Addr::new(10, 0, 0, 1)).resolved(OUT, NEXT);
    let v4 = Arc::make_mut(&mut tables.v4);
    v4.next_hops.extend([
        gateway,
        Adjacency::connected(1, 100),
        Adjacency::special(Kind::Local),
        Adjacency::gateway(1, 100, Ipv4Addr::new(10, 0, 0, 2)),
    ]);
    let route = |s: &str, hop| (s.parse::<Prefix>().unwrap(), hop);
    let routes =
        [route("10.0.0.0/8", 1), route("10.9.0.0/16", 2), route("10.8.0.1/32", 3), route("11.0.0.0/8", 4)];
    v4.fib = Arc::new(Fib::build(&routes).unwrap());
    v4.hosts.insert(host_key(1, 0x0a09_0005), gateway.resolved(OUT, [2, 0, 0, 0, 0, 5]));
    b
}

fn packet(dst: [u8; 4], ttl: u8, payload: usize) -> Vec<u8> {
    let mut p = vec![0; 14 + 20 + payload];
    p[..6].copy_from_slice(&MAC);
    p[6..12].copy_from_slice(&[2, 0, 0, 0, 7, 7]);
    p[12..15].copy_from_slice(&[8, 0, 0x45]);
    p[16..18].copy_from_slice(&(20 + payload as u16).to_be_bytes());
    p[22..24].copy_from_slice(&[ttl, 17]);
    p[26..30].copy_from_slice(&[192, 168, 0, 1]);
    p[30..34].copy_from_slice(&dst);
    fix(&mut p);
    p
}

fn fix(p: &mut [u8]) {
    p[24..26].copy_from_slice(&[0, 0]);
    let check = checksum::checksum(&p[14..34]);
    p[24..26].copy_from_slice(&check.to_be_bytes());
}

#[test]
fn forwards_through_a_gateway() {
    let mut b = bench();
    let (sent, odd) = b.run(&[packet([10, 1, 2, 3], 64, 26), packet([10, 9, 0, 5], 2, 40)]);
    assert_eq!(odd, []);
    assert_eq!((sent[0].0, &sent[0].1[..12]), (1, &[NEXT, OUT].concat()[..]));
    assert_eq!(sent[1].1[..6], [2, 0, 0, 0, 0, 5]);
    for ((_, bytes), ttl) in sent.iter().zip([63, 1]) {
        assert_eq!(bytes[22], ttl);
        assert!(header::validate(&bytes[14..]).is_ok());
    }
}

#[test]
fn sorts_out_what_is_not_plain() {
    let mut b = bench();
    let mut arp = packet([10, 1, 1, 1], 64, 26);
    arp[..6].fill(0xff);
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut options = packet([10, 1, 1, 1], 64, 26);
    options[14] = 0x46;
    let (sent, odd) = b.run(&[
        arp,
        packet([10, 1, 1, 1], 1, 10),
        packet([10, 1, 1, 1], 64, 81),
        packet([10, 8, 0, 1], 1, 10),
        packet([10, 9, 0, 6], 9, 10),
        packet([11, 0, 0, 1], 9, 10),
        packet([12, 0, 0, 1], 9, 10),
        options,
        packet([10, 1, 1, 1], 64, 80),
    ]);
    use Exception::*;
    assert_eq!(sent.len(), 1);
    // Those found while classifying come first.
    assert_eq!(odd, [Arp, Unusual, Ttl, TooBig, NextHop, NextHop, NextHop]);
    assert_eq!(b.local, 1);
}

#[test]
fn whole_datagrams_to_this_host_are_for_sockets() {
    let mut b = bench();
    let ours = packet([10, 8, 0, 1], 1, 10);
    let change = |at: usize, to: u8| {
        let mut p = ours.clone();
        p[at] = to;
        fix(&mut p);
        p
    };
    let others = [change(23, 132), change(23, 1), change(20, 0x20), change(21, 1)];
    let (sent, odd) = b.run(&[&others[..], &[ours.clone(), change(20, 0x40)]].concat());
    assert_eq!((sent, odd, b.local), (vec![], vec![Exception::NextHop; 4], 2));
}

#[test]
fn drops_each_for_its_reason() {
    let mut b = bench();
    let good = packet([10, 1, 1, 1], 64, 26);
    let change = |at: usize, to: u8, mend: bool| {
        let mut p = good.clone();
        p[at] = to;
        if mend {
            fix(&mut p);
        }
        p
    };
    assert_eq!(b.only_drop(change(5, 7, false)), DropReason::OtherHost);
    assert_eq!(b.only_drop(change(12, 0x88, false)), DropReason::UnhandledProto);
    assert_eq!(b.only_drop(change(25, 1, false)), DropReason::IpCsum);
    assert_eq!(b.only_drop(change(17, 19, true)), DropReason::IpInHdr);
    assert_eq!(b.only_drop(change(17, 47, true)), DropReason::IpInHdr);
    for first in [0, 127, 224, 240, 255] {
        assert_eq!(b.only_drop(change(26, first, true)), DropReason::IpInvalidSource);
        assert_eq!(b.only_drop(change(30, first, true)), DropReason::IpInvalidDest);
    }
    assert_eq!(b.only_drop(good[..33].to_vec()), DropReason::PktTooSmall);
    assert_eq!(b.only_drop(good[..10].to_vec()), DropReason::PktTooSmall);
}

fn tagged(frame: &[u8], tci: [u8; 2]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &tci, &frame[12..]].concat()
}

/// A tag without a VLAN says nothing but a priority (IEEE 802.1Q section 6.9).
#[test]
fn a_priority_tag_is_taken_off() {
    let mut b = bench();
    let good = packet([10, 1, 1, 1], 64, 26);
    let (plain, _) = b.run(std::slice::from_ref(&good));
    for tci in [[0, 0], [0xf0, 0]] {
        let (sent, odd) = b.run(&[tagged(&good, tci), good.clone()]);
        assert_eq!((sent, odd), ([plain.clone(), plain.clone()].concat(), vec![]));
    }
    assert_eq!(b.only_drop(tagged(&good, [0, 5])), DropReason::UnhandledProto);
    assert_eq!(b.only_drop(tagged(&tagged(&good, [0, 0]), [0, 0])), DropReason::UnhandledProto);
    assert_eq!(b.only_drop(tagged(&good, [0, 0])[..30].to_vec()), DropReason::UnhandledProto);
}

/// Behind such a tag, too, a checksum that was left to the device is completed.
#[test]
fn a_partial_checksum_behind_a_priority_tag_is_completed() {
    let mut b = bench();
    b.partial_csum = true;
    let mut partial = packet([10, 1, 1, 1], 64, 26);
    let pseudo = checksum::pseudo_header_sum(0xc0a8_0001, 0x0a01_0101, 17, 26);
    partial[40..42].copy_from_slice(&pseudo.to_be_bytes());
    let frames =
        [partial.clone(), tagged(&partial, [0, 0]), tagged(&partial, [0x60, 0]), tagged(&partial, [0x40, 0])];
    let (sent, odd) = b.run(&frames);
    assert_eq!((sent.len(), odd), (frames.len(), vec![]));
    for (_, frame) in sent {
        assert_eq!(checksum::add(pseudo, checksum::sum(&frame[34..60])), 0xffff);
    }
}

#[test]
fn trims_what_the_link_padded() {
    let mut b = bench();
    let mut padded = packet([10, 1, 1, 1], 64, 10);
    padded.resize(80, 0xaa);
    let (sent, _) = b.run(&[padded.clone(), padded[..60].to_vec()]);
    assert_eq!([sent[0].1.len(), sent[1].1.len()], [60, 60]);
}

proptest! {
    /// The incremental update gives what a full computation would, for every TTL and checksum.
    #[test]
    fn ttl_update_matches_full_checksum(id: u16, ttl in 2u8..=255, dst: [u8; 3]) {
        let mut b = bench();
        let mut p = packet([10, dst[0] % 8, dst[1], dst[2]], ttl, 26);
        p[18..20].copy_from_slice(&id.to_be_bytes());
        fix(&mut p);
        let (sent, _) = b.run(&[p]);
        let mut full = sent[0].1.clone();
        fix(&mut full);
        prop_assert_eq!(&full, &sent[0].1);
        prop_assert_eq!(full[22], ttl - 1);
    }

    /// Whatever comes in, every packet ends in exactly one place (`run` asserts it) and nothing panics.
    #[test]
    fn conserves_random_packets(
        packets in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..200), prop::array::uniform8(any::<u16>()), 0u8..16),
            0..=BATCH,
        ),
    ) {
        let mut b = bench();
        let packets: Vec<_> = packets
            .into_iter()
            .map(|(raw, edits, keep)| {
                // Most start as good packets with a few bytes changed; some are noise altogether.
                if keep == 0 {
                    return raw;
                }
                let mut p = packet([10, edits[0] as u8 % 11, 0, edits[1] as u8 % 8], edits[2] as u8, raw.len());
                for edit in edits.iter().take(usize::from(keep) % 4) {
                    let at = usize::from(*edit >> 8) % p.len();
                    p[at] = *edit as u8;
                }
                if keep > 8 {
                    fix(&mut p);
                }
                p
            })
            .collect();
        b.run(&packets);
        b.ctx.drain();
        prop_assert_eq!(b.ctx.region().heads_free(), 256);
        prop_assert_eq!(b.ctx.region().frames_free(), 256);
    }
}
