//! Which flow a frame is of: addresses and ports, found behind VLAN tags and IPv6 extension headers, and hashed.
//!
//! The frame is whatever came by the wire; what cannot be read does not count. Invariant: all fragments of a datagram
//! have the same hash, so ports, which only the first of them has, count for none.

use std::net::{IpAddr, Ipv6Addr};

use super::toeplitz::flow_toeplitz;
use crate::ip::v4::header::{Ipv4Header, MIN_LEN, protocol};
use crate::ip::v6::header::upper;
use crate::skb::{Batch, Gfni, Input, Skb};

/// VLAN tags that are looked behind: a provider's and a customer's (IEEE 802.1Q).
const MAX_TAGS: usize = 2;

/// The flow hash of an Ethernet frame: Toeplitz with the [key of the process](super::flow_hkey)
/// over source and destination address, and ports if it is TCP or UDP and no fragment, in network
/// order. 0 if it is not IP (or too damaged to be), and only then.
#[inline]
pub fn flow_hash(frame: &[u8]) -> u32 {
    match (adjacent(behind_tags(frame)), Gfni::detect()) {
        (Some(Input::V4(input)), Some(gfni)) => gfni.hash(&flow_toeplitz().matrices, input).max(1),
        (Some(Input::V6(input)), Some(gfni)) => gfni.hash(&flow_toeplitz().matrices, input).max(1),
        _ => by_tables(frame),
    }
}

/// [`flow_hash`] without the CPU's help.
#[inline(never)]
fn by_tables(frame: &[u8]) -> u32 {
    // As in the kernel's software hash: 0 means that there is none.
    ip_hash(frame).map_or(0, |hash| hash.max(1))
}

/// The same of a flow that no frame is there of yet: from `src` to `dst`, which are of one family, with source and destination
/// port in network order.
pub fn flow_hash_of(src: IpAddr, dst: IpAddr, ports: [u8; 4]) -> u32 {
    let toeplitz = flow_toeplitz();
    let hash = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut ends = [0; 8];
            ends[..4].copy_from_slice(&src.octets());
            ends[4..].copy_from_slice(&dst.octets());
            toeplitz.hash::<0, 8>(&ends) ^ toeplitz.hash::<8, 4>(&ports)
        }
        _ => {
            let mut ends = [0; 32];
            ends[..16].copy_from_slice(&to_v6(src).octets());
            ends[16..].copy_from_slice(&to_v6(dst).octets());
            toeplitz.hash::<0, 32>(&ends) ^ toeplitz.hash::<32, 4>(&ports)
        }
    };
    hash.max(1)
}

fn to_v6(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    }
}

/// The flow hash of `skb`, whose data begins with the Ethernet header: computed if no thread did yet, and kept in its
/// head.
#[inline]
pub fn skb_get_hash(skb: &mut Skb) -> u32 {
    if skb.head().hash == 0 {
        skb.head_mut().hash = flow_hash(skb.data());
    }
    skb.head().hash
}

/// [`skb_get_hash`] of all of `batch`, whose hashes are then in their heads: one after the other
/// costs a call each, and the CPU's better instructions are not used across calls.
pub fn skb_get_hashes(batch: &mut Batch) {
    let skbs = batch.as_mut_slice();
    let Some(gfni) = Gfni::detect() else {
        return skbs.iter_mut().for_each(|skb| _ = skb_get_hash(skb));
    };
    let mut left = false;
    gfni.each(
        &flow_toeplitz().matrices,
        skbs,
        |skb| input(skb, &mut left),
        |skb, hash| skb.head_mut().hash = hash,
    );
    if left {
        let unknown = skbs.iter_mut().filter(|skb| skb.head().hash == 0);
        unknown.for_each(|skb| skb.head_mut().hash = flow_hash(skb.data()));
    }
}

/// What of `skb` is hashed, if its hash is not known. Says so if that does not lie in one piece.
#[inline(always)]
fn input<'a>(skb: &'a Skb, left: &mut bool) -> Option<Input<'a>> {
    if skb.head().hash != 0 {
        return None;
    }
    let frame = skb.data();
    let input = match adjacent(frame) {
        None => adjacent(behind_tags(frame)),
        untagged => untagged,
    };
    *left |= input.is_none();
    input
}

/// What is behind VLAN tags, with something in front of it that is as long as an Ethernet header.
#[inline(always)]
fn behind_tags(mut frame: &[u8]) -> &[u8] {
    for _ in 0..MAX_TAGS {
        match frame {
            [_, _, _, _, _, _, _, _, _, _, _, _, 0x81, 0x00, ..]
            | [_, _, _, _, _, _, _, _, _, _, _, _, 0x88, 0xa8, ..] => frame = &frame[4..],
            _ => break,
        }
    }
    frame
}

/// What is hashed, if it lies in `frame` in one piece: TCP or UDP without VLAN tags, options,
/// extension headers or fragments. That is most of what comes.
#[inline(always)]
fn adjacent(frame: &[u8]) -> Option<Input<'_>> {
    // Ethernet header, IPv4 header without options, ports.
    let start = frame.first_chunk::<{ 14 + MIN_LEN + 4 }>()?;
    let word = |at| -> u32 { start[at..].first_chunk().map_or(0, |four| u32::from_be_bytes(*four)) };
    let has_ports = |protocol| matches!(protocol, protocol::TCP | protocol::UDP);
    // EtherType, version and length of the header; then fragment, time to live, protocol.
    let (kind, more) = (word(12), word(20));
    if kind >> 8 == 0x080045 {
        let is_plain = more & 0x3fff_0000 == 0 && has_ports(more as u8);
        is_plain.then(|| start[26..].first_chunk().map(Input::V4))?
    } else {
        let is_plain = kind >> 12 == 0x86dd6 && has_ports(start[20]);
        is_plain.then(|| frame[22..].first_chunk().map(Input::V6))?
    }
}

/// What a frame says of its flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow<'a> {
    /// The outermost VLAN tag: priority and number.
    pub(super) vlan: Option<u16>,
    pub(super) ends: Ends<'a>,
    /// DSCP and ECN.
    pub(super) tos: u8,
    /// What the IP header, or the last extension header, says of what follows.
    pub(super) protocol: u8,
    /// Source and destination port, of what has ports and is no fragment.
    pub(super) ports: Option<&'a [u8; 4]>,
}

/// Source and destination address.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ends<'a> {
    V4(&'a [u8; 8]),
    V6(&'a [u8; 32]),
}

impl Ends<'_> {
    /// Writes both addresses to `to`, each into 16 bytes, of IPv4 to the first 4. Returns the IP version.
    #[inline(always)]
    pub(super) fn write(self, to: &mut [u8; 32]) -> u8 {
        match self {
            Ends::V4(ends) => {
                to[..4].copy_from_slice(&ends[..4]);
                to[16..20].copy_from_slice(&ends[4..]);
                4
            }
            Ends::V6(ends) => {
                *to = *ends;
                6
            }
        }
    }
}

/// The flow of a frame, if it is IP.
#[inline(always)]
pub(super) fn dissect(frame: &[u8]) -> Option<Flow<'_>> {
    let mut rest = frame.get(12..)?;
    let mut vlan = None;
    for _ in 0..=MAX_TAGS {
        let (ethertype, payload) = rest.split_first_chunk()?;
        match ethertype {
            [0x08, 0x00] => return ipv4(payload, vlan),
            [0x86, 0xdd] => return ipv6(payload, vlan),
            [0x81, 0x00] | [0x88, 0xa8] => {
                let (tag, behind) = payload.split_first_chunk()?;
                vlan = vlan.or(Some(u16::from_be_bytes(*tag)));
                rest = behind;
            }
            _ => return None,
        }
    }
    None
}

#[inline(always)]
fn ip_hash(frame: &[u8]) -> Option<u32> {
    let (flow, toeplitz) = (dissect(frame)?, flow_toeplitz());
    Some(match flow.ends {
        Ends::V4(ends) => toeplitz.hash::<0, 8>(ends) ^ flow.ports.map_or(0, |p| toeplitz.hash::<8, 4>(p)),
        Ends::V6(ends) => toeplitz.hash::<0, 32>(ends) ^ flow.ports.map_or(0, |p| toeplitz.hash::<32, 4>(p)),
    })
}

#[inline(always)]
fn ipv4(packet: &[u8], vlan: Option<u16>) -> Option<Flow<'_>> {
    let header = Ipv4Header::new(packet)?;
    if header.version() != 4 || header.header_len() < MIN_LEN {
        return None;
    }
    let (ends, protocol) = (Ends::V4(packet[12..].first_chunk()?), header.protocol());
    let ports = match header.is_fragment() {
        true => None,
        false => ports(protocol, packet.get(header.header_len()..).unwrap_or_default()),
    };
    Some(Flow { vlan, ends, tos: header.tos(), protocol, ports })
}

#[inline]
fn ipv6(packet: &[u8], vlan: Option<u16>) -> Option<Flow<'_>> {
    let header = packet.first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let tos = header[0] << 4 | header[1] >> 4;
    let (protocol, ports) = ipv6_upper(packet).unwrap_or((header[6], None));
    Some(Flow { vlan, ends: Ends::V6(header[8..].first_chunk()?), tos, protocol, ports })
}

/// What is behind extension headers, and its ports. A fragment has none, also one that is all of
/// its datagram: its fragment header is not looked behind.
fn ipv6_upper(packet: &[u8]) -> Option<(u8, Option<&[u8; 4]>)> {
    let upper = upper(packet).ok()?;
    Some((upper.protocol, packet.get(upper.at..).and_then(|segment| ports(upper.protocol, segment))))
}

/// Source and destination port, which TCP and UDP both begin with.
#[inline(always)]
fn ports(of: u8, segment: &[u8]) -> Option<&[u8; 4]> {
    matches!(of, protocol::TCP | protocol::UDP).then(|| segment.first_chunk())?
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::super::toeplitz::tests::naive_default;
    use super::*;

    /// The verification suite of Microsoft's RSS specification: source, destination, hash of the addresses, with
    /// ports.
    const IPV4: [(&str, u16, &str, u16, u32, u32); 5] = [
        ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e_8fc2, 0x51cc_c178),
        ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718_262a, 0xc626_b0ea),
        ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0_a5de, 0x5c2b_394a),
        ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x8298_9176, 0xafc7_327f),
        ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d18_09c5, 0x10e8_28a2),
    ];
    const IPV6: [(&str, u16, &str, u16, u32, u32); 3] = [
        ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
        ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
        (
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            44251,
            "fe80::200:f8ff:fe21:67cf",
            38024,
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];

    fn ports_of(source: u16, destination: u16) -> Vec<u8> {
        [source.to_be_bytes(), destination.to_be_bytes()].concat()
    }

    fn ethernet(tags: &[u16], ethertype: u16, packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for tag in tags {
            frame.extend([tag.to_be_bytes(), [0x20, 0x07]].concat());
        }
        frame.extend(ethertype.to_be_bytes());
        frame.extend(packet);
        frame
    }

    fn ipv4(protocol: u8, source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; MIN_LEN];
        let of = |addr: &str| addr.parse::<Ipv4Addr>().unwrap().to_bits();
        let total = (MIN_LEN + payload.len()) as u16;
        Ipv4Header::new_mut(&mut packet).unwrap().fill(total, 1, 64, protocol, of(source), of(destination));
        packet.extend(payload);
        packet
    }

    fn ipv6(next: u8, source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, next, 64];
        for addr in [source, destination] {
            packet.extend(addr.parse::<Ipv6Addr>().unwrap().octets());
        }
        packet.extend(payload);
        packet
    }

    const TAGS: [&[u16]; 3] = [&[], &[0x8100], &[0x88a8, 0x8100]];

    #[test]
    fn verification_vectors() {
        for tags in TAGS {
            for (source, sp, destination, dp, l3, l4) in IPV4 {
                for (protocol, hash) in [(6, l4), (17, l4), (1, l3), (47, l3)] {
                    let packet = ipv4(protocol, source, destination, &ports_of(sp, dp));
                    assert_eq!(flow_hash(&ethernet(tags, 0x0800, &packet)), hash, "{source} {protocol}");
                }
            }
            for (source, sp, destination, dp, l3, l4) in IPV6 {
                for (next, hash) in [(6, l4), (17, l4), (58, l3), (59, l3)] {
                    let packet = ipv6(next, source, destination, &ports_of(sp, dp));
                    assert_eq!(flow_hash(&ethernet(tags, 0x86dd, &packet)), hash, "{source} {next}");
                }
            }
        }
    }

    #[test]
    fn ipv4_options_are_skipped_and_what_is_cut_off_does_not_count() {
        let (source, sp, destination, dp, l3, l4) = IPV4[0];
        let mut packet = ipv4(6, source, destination, &[&[1; 8][..], &ports_of(sp, dp)].concat());
        packet[0] = 0x47;
        let whole = ethernet(&[], 0x0800, &packet);
        assert_eq!(flow_hash(&whole), l4);
        assert_eq!(flow_hash(&whole[..whole.len() - 1]), l3, "half a port");
        assert_eq!(flow_hash(&whole[..34]), l3, "no port");
        assert_eq!(flow_hash(&whole[..33]), 0, "half a header");
    }

    #[test]
    fn fragments_have_the_hash_of_their_addresses() {
        let (source, sp, destination, dp, l3, _) = IPV4[1];
        for word in [0x2000u16, 0x2001, 0x0001, 0x1fff] {
            let mut packet = ipv4(17, source, destination, &ports_of(sp, dp));
            packet[6..8].copy_from_slice(&word.to_be_bytes());
            assert_eq!(flow_hash(&ethernet(&[], 0x0800, &packet)), l3, "{word:#x}");
        }
        let mut whole = ipv4(17, source, destination, &ports_of(sp, dp));
        whole[6] = 0x40;
        assert_ne!(flow_hash(&ethernet(&[], 0x0800, &whole)), l3, "don't fragment");

        let (source, sp, destination, dp, l3, _) = IPV6[1];
        for word in [0x0001u16, 0x0009, 0x0008, 0x0000] {
            let fragment = [&[17, 0][..], &word.to_be_bytes(), &[0; 4], &ports_of(sp, dp)].concat();
            let packet = ipv6(44, source, destination, &fragment);
            assert_eq!(flow_hash(&ethernet(&[], 0x86dd, &packet)), l3, "{word:#x}");
            let behind_options =
                ipv6(60, source, destination, &[&[44, 0, 1, 4, 0, 0, 0, 0], &fragment[..]].concat());
            assert_eq!(flow_hash(&ethernet(&[], 0x86dd, &behind_options)), l3);
        }
    }

    #[test]
    fn extension_headers_are_looked_behind_as_far_as_they_go() {
        let (source, sp, destination, dp, l3, l4) = IPV6[0];
        let options = |next: u8, len: u8| [vec![next, len], vec![0; usize::from(len) * 8 + 6]].concat();
        let chain = [options(43, 0), options(60, 1), options(6, 2), ports_of(sp, dp)].concat();
        let frame = ethernet(&[], 0x86dd, &ipv6(0, source, destination, &chain));
        assert_eq!(flow_hash(&frame), l4);
        for len in 54..frame.len() {
            assert_eq!(flow_hash(&frame[..len]), l3, "{len}");
        }
        for (n, hash) in [(8, l4), (9, l3)] {
            let chain = [options(60, 0).repeat(n - 1), options(6, 0), ports_of(sp, dp)].concat();
            let frame = ethernet(&[], 0x86dd, &ipv6(60, source, destination, &chain));
            assert_eq!(flow_hash(&frame), hash, "{n} headers");
        }
    }

    #[test]
    fn what_is_not_ip_has_no_hash() {
        let (source, sp, destination, dp, _, l4) = IPV4[2];
        let packet = ipv4(6, source, destination, &ports_of(sp, dp));
        assert_eq!(flow_hash(&ethernet(&[0x8100; 3], 0x0800, &packet)), 0, "three tags");
        assert_eq!(flow_hash(&ethernet(&[], 0x0806, &packet)), 0, "ARP");
        assert_eq!(flow_hash(&ethernet(&[], 0x86dd, &packet)), 0, "version 4 in IPv6");
        for first in [0x65, 0x44] {
            let odd = [&[first], &packet[1..]].concat();
            assert_eq!(flow_hash(&ethernet(&[], 0x0800, &odd)), 0, "{first:#x}");
        }
        assert_eq!(flow_hash(&ethernet(&[], 0x0800, &packet)), l4);
        let unspecified = ipv4(1, "0.0.0.0", "0.0.0.0", &[]);
        assert_eq!(flow_hash(&ethernet(&[], 0x0800, &unspecified)), 1, "a flow, though its bits are all 0");
    }

    #[test]
    fn an_skb_is_hashed_once() {
        let mut ctx = crate::ip::testing::context();
        let (source, sp, destination, dp, _, l4) = IPV4[3];
        let mut skb = ctx.alloc_skb().unwrap();
        let frame = ethernet(&[], 0x0800, &ipv4(6, source, destination, &ports_of(sp, dp)));
        skb.put(frame.len()).unwrap().copy_from_slice(&frame);
        assert_eq!(skb_get_hash(&mut skb), l4);
        skb.data_mut().fill(0);
        assert_eq!((skb_get_hash(&mut skb), skb.head().hash), (l4, l4), "kept");
        ctx.free_skb(skb);
        // The head that is handed out next is the one that was freed.
        let mut skb = ctx.alloc_skb().unwrap();
        assert_eq!((skb.head().hash, skb_get_hash(&mut skb)), (0, 0), "not inherited");
        ctx.free_skb(skb);
    }

    /// `frames` as skbs whose heads say `known`.
    fn skbs(ctx: &mut crate::SoftnetData, frames: &[Vec<u8>], known: u32) -> Batch {
        let mut batch = Batch::new();
        for frame in frames {
            let mut skb = ctx.alloc_skb().unwrap();
            skb.put(frame.len()).unwrap().copy_from_slice(frame);
            skb.head_mut().hash = known;
            batch.push(skb).unwrap();
        }
        batch
    }

    #[test]
    fn hashes_of_a_batch_that_are_known_stay() {
        let mut ctx = crate::ip::testing::context();
        let (source, sp, destination, dp, _, l4) = IPV4[3];
        let frame = ethernet(&[], 0x0800, &ipv4(6, source, destination, &ports_of(sp, dp)));
        for (known, hash) in [(0, l4), (7, 7)] {
            let mut batch = skbs(&mut ctx, &[frame.clone(), frame.clone()], known);
            skb_get_hashes(&mut batch);
            assert!(batch.as_slice().iter().all(|skb| skb.head().hash == hash), "{known}");
            batch.drain().for_each(|skb| ctx.free_skb(skb));
        }
    }

    proptest! {
        /// However a hash is computed, alone or among others, it is the same: of packets and of
        /// what is nearly one.
        #[test]
        fn hashes_of_a_batch_are_those_of_its_frames(
            kinds in prop::collection::vec(
                (any::<(bool, [u8; 16], u16, u16)>(), 0usize..3, 6u8..18, 0usize..64, any::<u8>(), 0usize..100),
                0..20,
            ),
        ) {
            let mut ctx = crate::ip::testing::context();
            let frame = |((v6, addr, sp, dp), tags, protocol, at, value, len)| -> Vec<u8> {
                let [a, b, c, d, ..]: [u8; 16] = addr;
                let (v4, addr) = (Ipv4Addr::from([a, b, c, d]).to_string(), Ipv6Addr::from(addr).to_string());
                let mut frame = match v6 {
                    true => ethernet(TAGS[tags], 0x86dd, &ipv6(protocol, &addr, IPV6[0].2, &ports_of(sp, dp))),
                    false => ethernet(TAGS[tags], 0x0800, &ipv4(protocol, &v4, IPV4[0].2, &ports_of(sp, dp))),
                };
                let at: usize = at;
                if at.is_multiple_of(2) && let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
                frame.truncate(if usize::is_multiple_of(len, 2) { len } else { usize::MAX });
                frame
            };
            let frames: Vec<_> = kinds.into_iter().map(frame).collect();
            let mut batch = skbs(&mut ctx, &frames, 0);
            skb_get_hashes(&mut batch);
            let of_batch: Vec<_> = batch.as_slice().iter().map(|skb| skb.head().hash).collect();
            batch.drain().for_each(|skb| ctx.free_skb(skb));
            let alone: Vec<_> = frames.iter().map(|frame| flow_hash(frame)).collect();
            let tables: Vec<_> = frames.iter().map(|frame| by_tables(frame)).collect();
            prop_assert_eq!(&of_batch, &tables);
            prop_assert_eq!(&alone, &tables);
        }

        #[test]
        fn no_frame_panics(frame in prop::collection::vec(any::<u8>(), 0..200)) {
            flow_hash(&frame);
        }

        #[test]
        fn no_mangled_packet_panics(
            v6: bool,
            tags in 0usize..3,
            payload in prop::collection::vec(prop_oneof![Just(0u8), Just(44), Just(60), any::<u8>()], 0..80),
            next in prop_oneof![Just(0u8), Just(6), Just(43), Just(44), Just(60), any::<u8>()],
            at in 0usize..100,
            value: u8,
            len in 0usize..200,
        ) {
            let (ethertype, packet) = match v6 {
                true => (0x86dd, ipv6(next, IPV6[0].0, IPV6[0].2, &payload)),
                false => (0x0800, ipv4(next, IPV4[0].0, IPV4[0].2, &payload)),
            };
            let mut frame = ethernet(TAGS[tags], ethertype, &packet);
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
            frame.truncate(len);
            flow_hash(&frame);
        }

        /// What a sender knows of a flow before there is a packet gives the hash that its packets have.
        #[test]
        fn a_flow_has_the_hash_of_its_frames(
            (s4, d4) in any::<(u32, u32)>(),
            (s6, d6) in any::<(u128, u128)>(),
            (sp, dp) in any::<(u16, u16)>(),
            tcp: bool,
            tags in 0usize..3,
        ) {
            let (protocol, ports) = (if tcp { 6 } else { 17 }, ports_of(sp, dp));
            let of = |src: IpAddr, dst: IpAddr| flow_hash_of(src, dst, ports[..].try_into().unwrap());
            let (s, d) = (Ipv4Addr::from(s4), Ipv4Addr::from(d4));
            let packet = ipv4(protocol, &s.to_string(), &d.to_string(), &ports);
            prop_assert_eq!(of(s.into(), d.into()), flow_hash(&ethernet(TAGS[tags], 0x0800, &packet)));
            let (s, d) = (Ipv6Addr::from(s6), Ipv6Addr::from(d6));
            let packet = ipv6(protocol, &s.to_string(), &d.to_string(), &ports);
            prop_assert_eq!(of(s.into(), d.into()), flow_hash(&ethernet(TAGS[tags], 0x86dd, &packet)));
        }

        #[test]
        fn a_tcp_segment_has_the_naive_hash(source: u32, destination: u32, sp: u16, dp: u16) {
            let (s, d) = (Ipv4Addr::from(source).to_string(), Ipv4Addr::from(destination).to_string());
            let frame = ethernet(&[], 0x0800, &ipv4(6, &s, &d, &ports_of(sp, dp)));
            let input = [&source.to_be_bytes()[..], &destination.to_be_bytes(), &ports_of(sp, dp)].concat();
            prop_assert_eq!(flow_hash(&frame), naive_default(&input).max(1));
        }
    }
}
