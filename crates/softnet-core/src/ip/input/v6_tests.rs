use std::sync::Arc;

use proptest::prelude::*;

use super::super::bench::{Bench, MAC, NEXT, OUT};
use super::*;
use crate::ip::Family;
use crate::ip::adjacency::Kind;
use crate::ip::v4::fib::Fib;
use crate::ip::v4::header;
use crate::ip::v6::fib::Fib6;
use crate::ip::v6::header::Ipv6Header;
use crate::ip::{Prefix, Prefix6, checksum};
use crate::skb::BATCH;

fn addr(s: &str) -> Ipv6Addr {
    s.parse().unwrap()
}

/// 2001:db8::/32 goes out of device 1 by way of NEXT (MTU 200), 2001:db8:9::/48 is connected there, 2001:db8:8::1 is ours. So
/// does 10/8.
fn bench() -> Bench {
    let mut b = Bench::new();
    let tables = &mut b.tables;
    let gateway = Adjacency::gateway(1, 200, addr("fd00::1")).resolved(OUT, NEXT);
    let v6 = Arc::make_mut(&mut tables.v6);
    v6.next_hops.extend([
        gateway,
        Adjacency::connected(1, 200),
        Adjacency::special(Kind::Local),
        Adjacency::gateway(1, 200, addr("fd00::2")),
    ]);
    let route = |s: &str, hop| (s.parse::<Prefix6>().unwrap(), hop);
    let routes = [
        route("2001:db8::/32", 1),
        route("2001:db8:9::/48", 2),
        route("2001:db8:8::1/128", 3),
        route("2001:db9::/32", 4),
    ];
    v6.fib = Arc::new(Fib6::build(&routes).unwrap());
    let host = Ipv6Addr::host_key(1, addr("2001:db8:9::5"));
    v6.hosts.insert(host, gateway.resolved(OUT, [2, 0, 0, 0, 0, 5]));
    let v4 = Arc::make_mut(&mut tables.v4);
    v4.next_hops.push(Adjacency::gateway(1, 200, [10, 0, 0, 1].into()).resolved(OUT, NEXT));
    let ten: Prefix = "10.0.0.0/8".parse().unwrap();
    v4.fib = Arc::new(Fib::build(&[(ten, 1)]).unwrap());
    b
}

fn packet(dst: &str, hop_limit: u8, payload: usize) -> Vec<u8> {
    let mut p = [&MAC[..], &[2, 0, 0, 0, 7, 7], &[0x86, 0xdd]].concat();
    p.resize(ETH_LEN + LEN + payload, 0x5a);
    let src = addr("2001:db8:7::7");
    Ipv6Header::new_mut(&mut p[ETH_LEN..]).unwrap().fill(
        payload as u16,
        next::UDP,
        hop_limit,
        src,
        addr(dst),
    );
    p
}

fn ipv4(ttl: u8) -> Vec<u8> {
    let mut p = [&MAC[..], &[2, 0, 0, 0, 7, 7], &[8, 0]].concat();
    p.resize(ETH_LEN + 46, 0);
    let dst = u32::from_be_bytes([10, 1, 2, 3]);
    header::Ipv4Header::new_mut(&mut p[ETH_LEN..]).unwrap().fill(46, 1, ttl, 17, 0x0a00_0009, dst);
    p
}

#[test]
fn forwards_through_a_gateway_and_to_a_neighbour() {
    let mut b = bench();
    let packets = [packet("2001:db8:1::3", 64, 26), packet("2001:db8:9::5", 2, 160)];
    let (sent, odd) = b.run(&packets);
    assert_eq!(odd, []);
    for (((dev, bytes), original), to) in sent.iter().zip(&packets).zip([NEXT, [2, 0, 0, 0, 0, 5]]) {
        let mut expected = [&to[..], &OUT, &original[12..]].concat();
        expected[21] -= 1;
        assert_eq!((*dev, bytes), (1, &expected));
    }
}

#[test]
fn sorts_out_what_is_not_plain() {
    let mut b = bench();
    let set = |mut p: Vec<u8>, at: usize, bytes: &[u8]| {
        p[at..at + bytes.len()].copy_from_slice(bytes);
        p
    };
    let plain = packet("2001:db8:1::1", 64, 26);
    use Exception::*;
    for (packet, why) in [
        (packet("2001:db8:1::1", 1, 10), Ttl),
        (packet("2001:db8:1::1", 64, 161), TooBig),
        (set(packet("2001:db8:8::1", 1, 10), 20, &[132]), NextHop),
        (set(packet("2001:db8:8::1", 1, 10), 20, &[next::FRAGMENT]), NextHop),
        (packet("2001:db8:9::6", 9, 10), NextHop),
        (packet("2001:db9::1", 9, 10), NextHop),
        (packet("2001:dba::1", 9, 10), NextHop),
        (packet("fe80::1", 9, 10), Unusual),
        (packet("::1", 9, 10), Unusual),
        (packet("ff02::1", 9, 10), Unusual),
        (set(plain.clone(), 22, &addr("fe80::9").octets()), Unusual),
        (set(plain.clone(), 22, &addr("::").octets()), Unusual),
        (set(plain.clone(), 20, &[next::HOP_BY_HOP]), Unusual),
        (set(plain.clone(), 0, &[0x33, 0x33, 0xff, 0, 0, 1]), Unusual),
        // The slow path looks more closely and finds that it is no IPv6.
        (set(plain.clone(), 14, &[0x45]), Unusual),
    ] {
        let (sent, odd) = b.run(&[plain.clone(), packet.clone()]);
        assert_eq!((sent.len(), odd), (1, vec![why]), "{packet:x?}");
    }
    assert_eq!(b.run(&[packet("2001:db8:1::1", 64, 160)]).0.len(), 1, "just fits");
    assert_eq!((b.run(&[packet("2001:db8:8::1", 1, 10)]), b.local), ((vec![], vec![]), 1), "for a socket");
}

#[test]
fn drops_each_for_its_reason() {
    let mut b = bench();
    let good = packet("2001:db8:1::1", 64, 26);
    let change = |at: usize, to: u8| {
        let mut p = good.clone();
        p[at] = to;
        p
    };
    assert_eq!(b.only_drop(change(5, 7)), DropReason::OtherHost);
    assert_eq!(b.only_drop(change(13, 0xde)), DropReason::UnhandledProto);
    assert_eq!(b.only_drop(change(19, 27)), DropReason::IpInHdr);
    assert_eq!(b.only_drop(good[..53].to_vec()), DropReason::PktTooSmall);
    assert_eq!(b.only_drop(good[..14].to_vec()), DropReason::PktTooSmall);
    assert_eq!(b.only_drop(good[..10].to_vec()), DropReason::PktTooSmall);
    assert_eq!(b.only_drop(change(5, 7)[..20].to_vec()), DropReason::OtherHost);
}

#[test]
fn trims_what_the_link_padded() {
    let mut b = bench();
    let mut padded = packet("2001:db8:1::1", 64, 2);
    padded.resize(80, 0xaa);
    let (sent, _) = b.run(&[padded.clone(), padded[..60].to_vec()]);
    assert_eq!([sent[0].1.len(), sent[1].1.len()], [60, 60]);
}

/// Whichever comes first, each is done as if it were alone, and those of a family keep their order.
#[test]
fn both_families_in_one_batch() {
    let arp = [&[0xff; 6][..], &[2, 0, 0, 0, 7, 7, 8, 6], &[0; 46]].concat();
    let of = |v6: bool, n: u8| if v6 { packet("2001:db8:1::1", n, 26) } else { ipv4(n) };
    for first in [true, false] {
        let mut b = bench();
        let mut packets: Vec<_> = (0..30).map(|n| of((n % 3 == 0) == first, 40 + n)).collect();
        packets.insert(7, arp.clone());
        let (sent, odd) = b.run(&packets);
        assert_eq!(odd, [Exception::Arp]);
        let limits = |ethertype: u8, at: usize| -> Vec<u8> {
            sent.iter().filter(|(_, p)| p[12] == ethertype).map(|(_, p)| p[at]).collect()
        };
        let expected =
            |v6: bool| (0..30).filter(|n| ((n % 3 == 0) == first) == v6).map(|n| 39 + n).collect::<Vec<u8>>();
        assert_eq!((limits(0x86, 21), limits(0x08, 22)), (expected(true), expected(false)));
        for (_, bytes) in sent.iter().filter(|(_, p)| p[12] == 8) {
            assert_eq!(checksum::sum(&bytes[14..34]), 0xffff);
        }
    }
}

proptest! {
    /// Whatever comes in, every packet ends in exactly one place (`run` asserts it) and nothing panics.
    #[test]
    fn conserves_random_packets(
        packets in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..200), prop::array::uniform8(any::<u16>()), 0u8..16, any::<bool>()),
            0..=BATCH,
        ),
    ) {
        let mut b = bench();
        let packets: Vec<_> = packets
            .into_iter()
            .map(|(raw, edits, keep, v6)| {
                // Most start as good packets with a few bytes changed; some are noise altogether.
                if keep == 0 {
                    return raw;
                }
                let to = ["2001:db8:1::1", "2001:db8:9::5", "2001:db8:9::6", "2001:db8:8::1", "fe80::1", "ff02::1"];
                let mut p = match v6 {
                    true => packet(to[usize::from(edits[0]) % 6], edits[2] as u8, raw.len()),
                    false => ipv4(edits[2] as u8),
                };
                for edit in edits.iter().take(usize::from(keep) % 4) {
                    let at = usize::from(*edit >> 8) % p.len();
                    p[at] = *edit as u8;
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
