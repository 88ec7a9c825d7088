//! The emulated NIC with offloads: its segmentation beside the stack's, and what it refuses.

use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::sync::Mutex;

use proptest::prelude::*;
use softnet_core::gso::{self, TxOffloads};
use softnet_core::ip::checksum;
use softnet_core::skb::{Csum, FRAME_SIZE, GsoType, HEADROOM};

use super::*;
use crate::device::Reaped;

const ALL: TxOffloads = TxOffloads { csum: true, tso4: true, tso6: true, uso: true };

/// Keeps what it reads.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Vec<u8>>>>);

impl Sink for Kept {
    fn read(&mut self, packet: &[u8]) {
        self.0.lock().unwrap().push(packet.to_vec());
    }
}

struct Nothing;

impl Source for Nothing {
    fn write(&mut self, _: &mut [u8]) -> usize {
        64
    }
    fn next_len(&self) -> usize {
        64
    }
}

/// An aggregate of `payload` over IPv6 or IPv4, TCP or UDP, with VLAN tags, in frames of `cut`
/// bytes; each segment has `size` bytes.
fn aggregate(
    ctx: &mut SoftnetData,
    (v6, tcp, tags): (bool, bool, usize),
    flags: u8,
    payload: &[u8],
    size: u16,
    cut: usize,
) -> Skb {
    let mut bytes = vec![2; 12];
    (0..tags).for_each(|i| bytes.extend([0x81, 0, 0, i as u8]));
    bytes.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
    let l4_len = if tcp { 32 } else { 8 } + payload.len();
    let protocol = if tcp { 6 } else { 17 };
    let pseudo = if v6 {
        let (src, dst) = (Ipv6Addr::new(1, 2, 3, 4, 5, 6, 7, 8), Ipv6Addr::new(8, 7, 6, 5, 4, 3, 2, 1));
        bytes.extend([0x60, 0, 0, 0, (l4_len >> 8) as u8, l4_len as u8, protocol, 64]);
        bytes.extend(src.octets());
        bytes.extend(dst.octets());
        checksum::pseudo_header_sum6(src, dst, protocol, l4_len as u16)
    } else {
        let len = 20 + l4_len;
        let at = bytes.len();
        bytes.extend([0x45, 0, (len >> 8) as u8, len as u8, 0xff, 0xfd, 0x40, 0, 64, protocol, 0, 0]);
        bytes.extend([10, 0, 0, 1, 10, 9, 8, 7]);
        let check = checksum::checksum(&bytes[at..at + 20]);
        bytes[at + 10..at + 12].copy_from_slice(&check.to_be_bytes());
        checksum::pseudo_header_sum(0x0a00_0001, 0x0a09_0807, protocol, l4_len as u16)
    };
    let start = bytes.len();
    bytes.extend([0x12, 0x34, 0x56, 0x78]);
    let offset = if tcp {
        bytes.extend([0xff, 0xff, 0xfa, 0x00, 0, 0, 0, 7, 8 << 4, flags, 1, 2]);
        bytes.extend(pseudo.to_be_bytes());
        bytes.extend([0, 0, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        16
    } else {
        bytes.extend((l4_len as u16).to_be_bytes());
        bytes.extend(pseudo.to_be_bytes());
        6
    };
    let headers = bytes.len();
    bytes.extend(payload);
    // The first frame has the headers, too, as far as there is room.
    let (first, rest) = bytes.split_at(bytes.len().min(headers + cut).min(FRAME_SIZE - HEADROOM));
    let mut skb = packet(ctx, 0, first.len());
    skb.data_mut().copy_from_slice(first);
    for piece in rest.chunks(cut) {
        let mut part = packet(ctx, 0, piece.len());
        part.data_mut().copy_from_slice(piece);
        skb.append(part).unwrap();
    }
    let head = skb.head_mut();
    head.csum = Csum::Partial { start: start as u16, offset };
    (head.gso_size, head.gso_segs) = (size, payload.len().div_ceil(size.into()) as u16);
    head.gso_type = match (tcp, v6) {
        (false, _) => GsoType::UdpL4,
        (true, false) => GsoType::TcpV4,
        (true, true) => GsoType::TcpV6,
    };
    gso::announce();
    skb
}

proptest! {
    /// The NIC's segments are those of the stack, byte for byte, checksums included.
    #[test]
    fn the_nic_cuts_as_the_stack_does(
        kind: (bool, bool),
        tags in 0usize..3,
        flags: u8,
        payload in prop::collection::vec(any::<u8>(), 2..9000),
        size in 1u16..1500,
        cut in 1usize..1700,
    ) {
        let size = size.max(payload.len().div_ceil(60) as u16);
        let cut = cut.max(300);
        let mut ctx = context();
        let sink = Kept::default();
        let config = NicConfig { offloads: ALL, ..NicConfig::default() };
        let mut nic = nic(1, &config, vec![(Nothing, sink.clone())]).unwrap().open;
        prop_assert_eq!(nic.tx[0].offloads(), ALL);
        let (v6, tcp) = kind;
        let skb = aggregate(&mut ctx, (v6, tcp, tags), flags, &payload, size, cut);
        let copy = ctx.copy(&skb).unwrap();
        let mut batch = Batch::new();
        batch.push(skb).unwrap();
        prop_assert_eq!(nic.tx[0].tx_burst(&mut ctx, &mut batch), 1);
        prop_assert!(sink.0.lock().unwrap().is_empty(), "nothing is on the wire before the kick");
        nic.tx[0].kick(&mut ctx);
        let mut segments = gso::segment(&mut ctx, copy).map_err(|(skb, _)| ctx.free_skb(skb)).unwrap();
        let mut expected = Vec::new();
        while let Some(skb) = segments.pop_front() {
            expected.push(skb.frames().flatten().copied().collect::<Vec<_>>());
            ctx.free_skb(skb);
        }
        prop_assert_eq!(expected.len(), payload.len().div_ceil(size.into()));
        prop_assert_eq!(&*sink.0.lock().unwrap(), &expected);
        prop_assert_eq!(nic.tx[0].reap(&mut ctx).freed, 1);
        close(nic, &mut ctx);
        all_home(ctx);
    }
}

/// A sum of 0 is one as any in TCP, and of UDP would mean that there is none (RFC 768).
#[test]
fn a_sum_of_zero_is_told_as_the_stack_tells_it() {
    for (tcp, zero) in [(true, 0), (false, 0xffff)] {
        let offset = if tcp { 16 } else { 6 };
        let check = |segment: &[u8]| {
            let at = 14 + 20 + offset;
            u16::from_be_bytes([segment[at], segment[at + 1]])
        };
        let segments = |word: u16| {
            let mut ctx = context();
            let mut payload = vec![0; 2000];
            payload[..2].copy_from_slice(&word.to_be_bytes());
            let skb = aggregate(&mut ctx, (false, tcp, 0), 0x10, &payload, 1000, 1200);
            let mut cut = Vec::new();
            Segmenter::default().cut(&skb, |segment| cut.push(segment.to_vec()));
            let mut own = gso::segment(&mut ctx, skb).map_err(|(skb, _)| ctx.free_skb(skb)).unwrap();
            let mut expected = Vec::new();
            while let Some(skb) = own.pop_front() {
                expected.push(skb.frames().flatten().copied().collect::<Vec<_>>());
                ctx.free_skb(skb);
            }
            assert_eq!(cut, expected);
            all_home(ctx);
            cut
        };
        // A word that is what the checksum was makes it 0.
        assert_eq!(check(&segments(check(&segments(0)[0]))[0]), zero);
    }
}

#[test]
fn heads_that_speak_of_bytes_that_are_not_there_are_refused() {
    let mut ctx = context();
    let sink = Kept::default();
    let config = NicConfig { offloads: ALL, tx_ring: 4, ..NicConfig::default() };
    let mut nic = nic(1, &config, vec![(Nothing, sink.clone())]).unwrap().open;
    let mut batch = Batch::new();
    for at in 0..5 {
        let mut skb = aggregate(&mut ctx, (false, true, 1), 0x10, &[7; 3000], 1000, 1400);
        let head = skb.head_mut();
        match at {
            0 => head.csum = Csum::None,
            1 => head.csum = Csum::Partial { start: 2000, offset: 16 },
            2 => head.gso_type = GsoType::FragList,
            3 => head.csum = Csum::Partial { start: 38, offset: 40 },
            _ => {}
        }
        batch.push(skb).unwrap();
    }
    assert_eq!(nic.tx[0].tx_burst(&mut ctx, &mut batch), 4, "as many as the ring has slots");
    assert_eq!(nic.tx[0].stats().ring_drops.get(), 4);
    assert_eq!(ctx.stats().drops(1, softnet_core::skb::DropReason::PktTooSmall), 4);
    assert_eq!(nic.tx[0].tx_burst(&mut ctx, &mut batch), 1);
    nic.tx[0].kick(&mut ctx);
    assert_eq!(sink.0.lock().unwrap().iter().map(Vec::len).collect::<Vec<_>>(), [1070; 3]);
    close(nic, &mut ctx);
    all_home(ctx);
}

#[test]
fn received_checksums_are_right_on_a_nic_that_verifies_them() {
    let mut ctx = context();
    for rx_csum in [false, true] {
        let config = NicConfig { rx_csum, ..NicConfig::default() };
        let mut nic = nic(1, &config, vec![(Nothing, Kept::default())]).unwrap();
        assert_eq!(nic.ports[0].offer(3), 3);
        let mut batch = Batch::new();
        assert_eq!(nic.open.rx[0].rx_burst(&mut ctx, &mut batch, 64), 3);
        let expected = if rx_csum { Csum::Unnecessary } else { Csum::None };
        assert!(batch.as_slice().iter().all(|skb| skb.head().csum == expected));
        batch.drain().for_each(|skb| ctx.free_skb(skb));
        close(nic.open, &mut ctx);
    }
    all_home(ctx);
}

/// A virtio header, and a packet.
type Packet = ([u8; 10], Vec<u8>);

/// A wire on which packets stay as they are, with their headers.
#[derive(Clone, Default)]
struct Wire(Arc<Mutex<VecDeque<Packet>>>);

impl Sink for Wire {
    fn read(&mut self, _: &[u8]) {
        unreachable!("a NIC with offloads does not cut here");
    }
    fn read_offloaded(&mut self, skb: Skb, _: &mut Segmenter) -> Option<Skb> {
        let bytes = skb.frames().flatten().copied().collect();
        self.0.lock().unwrap().push_back((vnet_header(&skb), bytes));
        Some(skb)
    }
}

impl Source for Wire {
    const AGGREGATES: bool = true;

    fn next_len(&self) -> usize {
        self.0.lock().unwrap().front().map_or(0, |(_, bytes)| bytes.len())
    }
    fn write(&mut self, _: &mut [u8]) -> usize {
        unreachable!("packets are shown in pieces");
    }
    fn pieces(&mut self, write: impl FnMut(&[u8])) {
        self.0.lock().unwrap()[0].1.chunks(777).for_each(write);
    }
    fn end_packet(&mut self) -> [u8; 10] {
        self.0.lock().unwrap().pop_front().unwrap().0
    }
}

proptest! {
    /// What leaves one NIC whole comes out of the other as it was: bytes, segments, checksum.
    #[test]
    fn aggregates_pass_whole(
        packets in prop::collection::vec((any::<(bool, bool)>(), 2usize..9000, 1u16..1500), 1..8),
        cut in 300usize..1700,
    ) {
        let mut ctx = context();
        let wire = Wire::default();
        let config = NicConfig { offloads: ALL, rx_csum: true, ..NicConfig::default() };
        let mut nic = nic(1, &config, vec![(wire.clone(), wire.clone())]).unwrap();
        let (mut batch, mut sent) = (Batch::new(), Vec::new());
        for ((v6, tcp), payload, size) in packets {
            let size = size.max(payload.div_ceil(60) as u16).min(payload as u16 - 1);
            let payload = vec![size as u8; payload];
            let skb = aggregate(&mut ctx, (v6, tcp, 0), 0x10, &payload, size, cut);
            let head = skb.head();
            let bytes: Vec<u8> = skb.frames().flatten().copied().collect();
            sent.push((bytes, head.gso_type, head.gso_size, head.gso_segs, head.csum));
            batch.push(skb).unwrap();
        }
        let n = sent.len();
        prop_assert_eq!(nic.open.tx[0].tx_burst(&mut ctx, &mut batch), n);
        nic.open.tx[0].kick(&mut ctx);
        prop_assert_eq!(nic.ports[0].offer(n as u64), n as u64);
        prop_assert_eq!(nic.open.rx[0].rx_burst(&mut ctx, &mut batch, 64), n);
        for (skb, sent) in batch.drain().zip(sent) {
            let head = skb.head();
            let bytes: Vec<u8> = skb.frames().flatten().copied().collect();
            let got = (bytes, head.gso_type, head.gso_size, head.gso_segs, head.csum);
            let same = got == sent;
            ctx.free_skb(skb);
            prop_assert!(same);
        }
        close(nic.open, &mut ctx);
        all_home(ctx);
    }
}

#[test]
fn an_aggregate_for_which_the_ring_has_too_few_frames_waits() {
    let mut ctx = context();
    let wire = Wire::default();
    let config = NicConfig { offloads: ALL, rx_ring: 4, ..NicConfig::default() };
    let mut nic = nic(1, &config, vec![(wire.clone(), wire.clone())]).unwrap();
    let mut batch = Batch::new();
    // Six frames, and two.
    for payload in [9000, 3000] {
        let payload = vec![7; payload];
        batch.push(aggregate(&mut ctx, (false, true, 0), 0x10, &payload, 1000, 1400)).unwrap();
    }
    nic.open.tx[0].tx_burst(&mut ctx, &mut batch);
    nic.open.tx[0].kick(&mut ctx);
    assert_eq!(nic.ports[0].offer(1), 1);
    assert_eq!(nic.open.rx[0].rx_burst(&mut ctx, &mut batch, 64), 0, "it does not fit the ring");
    assert_eq!(wire.0.lock().unwrap().len(), 2);
    wire.0.lock().unwrap().pop_front();
    assert_eq!(nic.open.rx[0].rx_burst(&mut ctx, &mut batch, 64), 1);
    batch.drain().for_each(|skb| ctx.free_skb(skb));
    close(nic.open, &mut ctx);
    all_home(ctx);
}

/// A sink whose DMA is under way until it is told.
#[derive(Clone, Default)]
struct Slow {
    kept: Arc<Mutex<VecDeque<Skb>>>,
    done: Arc<Mutex<VecDeque<Skb>>>,
}

impl Sink for Slow {
    fn read(&mut self, _: &[u8]) {
        unreachable!("what it keeps is not read here");
    }
    fn read_offloaded(&mut self, skb: Skb, _: &mut Segmenter) -> Option<Skb> {
        self.kept.lock().unwrap().push_back(skb);
        None
    }
    fn completed(&mut self, closing: bool) -> Option<Skb> {
        let kept = || if closing { self.kept.lock().unwrap().pop_front() } else { None };
        self.done.lock().unwrap().pop_front().or_else(kept)
    }
}

#[test]
fn what_a_wire_keeps_takes_a_place_in_the_ring_until_it_is_completed() {
    let mut ctx = context();
    let wire = Slow::default();
    let config = NicConfig { offloads: ALL, tx_ring: 4, ..NicConfig::default() };
    let mut nic = nic(1, &config, vec![(Nothing, wire.clone())]).unwrap();
    let tx = &mut nic.open.tx[0];
    let mut batch = Batch::new();
    for _ in 0..6 {
        batch.push(aggregate(&mut ctx, (false, true, 0), 0x10, &[7; 3000], 1000, 700)).unwrap();
    }
    assert_eq!(tx.tx_burst(&mut ctx, &mut batch), 4);
    tx.kick(&mut ctx);
    let Reaped { freed, held, room } = tx.reap(&mut ctx);
    assert_eq!((freed, held, room, tx.held()), (0, 4, 0, 4), "all are on the wire");
    assert_eq!(tx.tx_burst(&mut ctx, &mut batch), 0);
    let first = wire.kept.lock().unwrap().pop_front();
    wire.done.lock().unwrap().extend(first);
    let Reaped { freed, held, room } = tx.reap(&mut ctx);
    assert_eq!((freed, held, room, tx.held()), (1, 3, 1, 3));
    assert_eq!(tx.tx_burst(&mut ctx, &mut batch), 1);
    batch.drain().for_each(|skb| ctx.free_skb(skb));
    // One of which the device was not told, three that it keeps.
    close(nic.open, &mut ctx);
    assert!(wire.kept.lock().unwrap().is_empty());
    all_home(ctx);
}

/// A wire that brings one packet of so many bytes again and again.
struct Long(usize);

impl Source for Long {
    const AGGREGATES: bool = true;

    fn next_len(&self) -> usize {
        self.0
    }
    fn write(&mut self, _: &mut [u8]) -> usize {
        unreachable!("packets are shown in pieces");
    }
    fn pieces(&mut self, write: impl FnMut(&[u8])) {
        let bytes: Vec<u8> = (0..self.0).map(|at| at as u8).collect();
        bytes.chunks(1000).for_each(write);
    }
}

#[test]
fn a_packet_for_which_there_are_not_enough_frames_stays_on_the_wire() {
    let mut ctx = context();
    let config = NicConfig { offloads: ALL, rx_ring: 64, ..NicConfig::default() };
    let mut nic = nic(1, &config, vec![(Long(10_000), Slow::default())]).unwrap();
    let (rx, mut batch) = (&mut nic.open.rx[0], Batch::new());
    nic.ports[0].offer(1);
    assert_eq!(rx.rx_burst(&mut ctx, &mut batch, 64), 1);
    for skb in batch.drain() {
        assert!(skb.frames().flatten().copied().eq((0..10_000).map(|at| at as u8)));
        ctx.free_skb(skb);
    }
    close(nic.open, &mut ctx);
    let mut nic = super::super::nic(1, &config, vec![(Long(1 << 20), Slow::default())]).unwrap();
    nic.ports[0].offer(1);
    assert_eq!(nic.open.rx[0].rx_burst(&mut ctx, &mut batch, 64), 0);
    assert_eq!(nic.ports[0].waiting(), 1);
    close(nic.open, &mut ctx);
    all_home(ctx);
}

#[test]
fn a_packet_without_a_byte_keeps_no_other_waiting() {
    let mut ctx = context();
    let wire = Wire::default();
    for len in [60, 0, 0, 61] {
        wire.0.lock().unwrap().push_back(([0; 10], vec![1; len]));
    }
    let config = NicConfig { offloads: ALL, ..NicConfig::default() };
    let mut nic = nic(1, &config, vec![(wire.clone(), wire.clone())]).unwrap();
    nic.ports[0].offer(4);
    let mut batch = Batch::new();
    assert_eq!(nic.open.rx[0].rx_burst(&mut ctx, &mut batch, 64), 4);
    let lens: Vec<usize> = batch.as_slice().iter().map(softnet_core::skb::Skb::len).collect();
    batch.drain().for_each(|skb| ctx.free_skb(skb));
    assert_eq!((lens, nic.ports[0].waiting()), (vec![60, 61], 0));
    assert_eq!(ctx.stats().drops(1, DropReason::PktTooSmall), 2);
    close(nic.open, &mut ctx);
    all_home(ctx);
}
