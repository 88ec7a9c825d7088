//! Sockets without threads: which socket receives which datagram, which are dropped and why, and
//! that none is lost.

mod groups;
mod protocols;

use std::collections::HashMap;

use proptest::prelude::*;

use super::key::{ANY, Addr, addr_of, mapped};
use super::scope::scoped;
use super::udp::output::UdpHead;
use super::udp::{Datagram, UdpInbox as Inbox, udp_input, udp_members};
use super::*;
use crate::SoftnetData;
use crate::ip::checksum;
use crate::ip::v4::header::protocol::UDP;
use crate::skb::{Batch, CacheSizes, DropReason, HeapMemory, Region, Skb};
use crate::steer::{scale, skb_get_hash};

/// Sockets with packet memory of their own.
struct World {
    ctx: SoftnetData,
    binder: Binder,
    ready: Vec<u32>,
    room: Room,
    napi_id: u32,
}

fn bind(local: Addr, port: u16) -> Bind {
    Bind { local, port, v4: true, v6: true, dev: None, reuseport: false, limit: 64 }
}

fn v4(text: &str) -> Addr {
    addr_of(text.parse::<std::net::Ipv4Addr>().unwrap().into())
}

fn flow(local: &str, lport: u16, remote: &str, rport: u16) -> Flow {
    let addr = |text: &str| addr_of(text.parse().unwrap());
    Flow { local: addr(local), remote: addr(remote), lport, rport, protocol: UDP }
}

impl World {
    fn new() -> Self {
        World::seeded(7)
    }

    fn seeded(seed: u64) -> Self {
        let (frames, max) = (512, 4096);
        let memory = Box::new(HeapMemory::new(Region::bytes(frames, frames)));
        let region = Region::new(memory, frames, frames).unwrap();
        World {
            ctx: SoftnetData::new(region.clone(), CacheSizes::default()),
            binder: Binder::new(region, max, seed),
            ready: Vec::new(),
            room: SockMem::new(u32::MAX).room(0),
            napi_id: 8193,
        }
    }

    /// A datagram as it was received by `flow`.
    fn datagram(&mut self, flow: &Flow, payload: &[u8]) -> Skb {
        let mut skb = self.ctx.alloc_skb().unwrap();
        let (src, dst) = (flow.remote, flow.local);
        let to = UdpHead { src, dst, sport: flow.rport, dport: flow.lport, ttl: 64, tos: 0 };
        to.write(&mut skb, &[2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 8, 0], payload).unwrap();
        skb
    }

    fn datagram6(&mut self, flow: &Flow, payload: &[u8]) -> Skb {
        let len = (8 + payload.len()) as u16;
        let mut packet = vec![0x60, 0, 0, 0, (len >> 8) as u8, len as u8, 17, 64];
        packet.extend([flow.remote, flow.local].map(u128::to_be_bytes).concat());
        packet.extend([flow.rport, flow.lport, len, 0].map(u16::to_be_bytes).concat());
        packet.extend(payload);
        let pseudo = checksum::add(checksum::sum(&packet[8..40]), checksum::add(17, len));
        let check = !checksum::add(pseudo, checksum::sum(&packet[40..]));
        packet[46..48].copy_from_slice(&check.to_be_bytes());
        let mut skb = self.ctx.alloc_skb().unwrap();
        skb.put(packet.len()).unwrap().copy_from_slice(&packet);
        (skb.head_mut().l4, skb.head_mut().protocol) = (40, 17);
        skb
    }

    /// A datagram in frames with `piece` bytes of what follows its IPv4 header, the last one perhaps with fewer.
    fn chain(&mut self, flow: &Flow, payload: &[u8], piece: usize) -> Skb {
        let mut skb = self.datagram(flow, payload);
        let rest = skb.data()[34..].get(piece..).unwrap_or_default().to_vec();
        skb.trim(34 + piece);
        for part in rest.chunks(piece) {
            let mut more = self.ctx.alloc_skb().unwrap();
            more.put(part.len()).unwrap().copy_from_slice(part);
            skb.append(more).unwrap();
        }
        skb
    }

    /// Receives packets. Returns how many had no socket.
    fn receive(&mut self, skbs: impl IntoIterator<Item = Skb>) -> usize {
        let (mut local, mut unserved) = (Batch::new(), Batch::new());
        skbs.into_iter().for_each(|skb| local.push(skb).unwrap());
        let sockets = self.binder.sockets().clone();
        let (napi_id, room) = (self.napi_id, self.room);
        let mut to = Arrivals { sockets: &sockets, napi_id, room, queued: 0, ready: &mut self.ready };
        udp_input(&mut self.ctx, &mut to, &mut local, &mut unserved);
        assert!(local.is_empty());
        let n = unserved.len();
        self.ctx.free_batch(&mut unserved, DropReason::IpNoProto);
        n
    }

    fn one(&mut self, flow: &Flow, payload: &[u8]) -> usize {
        let skb = self.datagram(flow, payload);
        self.receive([skb])
    }

    /// The payloads that wait for a socket, and the remote ends that they came from.
    fn take(&mut self, inbox: &mut Inbox) -> Vec<(Flow, Vec<u8>)> {
        let mut got = Vec::new();
        while let Some(datagram) = inbox.next(&mut self.ctx) {
            let mut payload = vec![0; datagram.len()];
            assert_eq!(datagram.copy_to(&mut payload), payload.len());
            got.push((*datagram.flow(), payload));
            datagram.free(&mut self.ctx);
        }
        got
    }

    fn payloads(&mut self, inbox: &mut Inbox) -> Vec<Vec<u8>> {
        self.take(inbox).into_iter().map(|(_, payload)| payload).collect()
    }

    fn close(&mut self, inbox: Inbox) -> usize {
        let index = inbox.slot().index();
        self.binder.close(index);
        let gone = inbox.close(&mut self.ctx);
        self.binder.release(index);
        gone
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.ctx.stats().drops(0, reason)
    }
}

impl Drop for World {
    /// Nothing may be left over once all sockets are closed.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let stats = self.ctx.stats().clone();
        assert_eq!(stats.sk_queued.get(), stats.sk_taken.get(), "in sockets that are closed");
        self.ctx.drain();
        let region = self.ctx.region();
        assert_eq!(region.frames_free(), u64::from(region.frame_count()));
        assert_eq!(region.heads_free(), u64::from(region.head_count()));
    }
}

#[test]
fn the_most_specific_socket_gets_it() {
    let mut world = World::new();
    let from = flow("10.0.0.1", 7, "10.0.0.9", 999);
    assert_eq!(world.one(&from, b"unbound"), 1);
    let mut any = world.binder.open(&bind(ANY, 7)).unwrap();
    assert_eq!(world.binder.open::<Datagram>(&bind(from.local, 7)).err(), Some(BindError::InUse));
    assert_eq!(world.one(&from, b"any"), 0);
    assert_eq!(world.ready, [any.slot().index()]);
    assert_eq!(any.slot().slot().napi_id(), 8193);
    assert_eq!(world.take(&mut any), [(from, b"any".to_vec())]);
    world.close(any);

    let mut other = world.binder.open(&bind(v4("10.0.0.2"), 7)).unwrap();
    let mut bound = world.binder.open(&bind(from.local, 7)).unwrap();
    let reuse = |local, port| Bind { reuseport: true, ..bind(local, port) };
    assert!(world.binder.open::<Datagram>(&reuse(from.local, 7)).is_err(), "the other does not share");
    assert_eq!(world.one(&from, b"bound"), 0);
    assert_eq!(world.payloads(&mut bound), [b"bound"]);
    assert_eq!(world.payloads(&mut other), [b""; 0]);

    // One that is connected has its peer's datagrams to itself, and no others.
    let mut connected = world.binder.open(&reuse(from.local, 8)).unwrap();
    let mut mate = world.binder.open(&reuse(from.local, 8)).unwrap();
    let to_8 = Flow { lport: 8, ..from };
    let index = connected.slot().index();
    let generation = world.binder.connect(index, from.local, from.remote, from.rport);
    connected.connected(&mut world.ctx, (from.remote, from.rport), generation);
    assert_eq!(world.one(&to_8, b"peer"), 0);
    assert_eq!(world.one(&Flow { rport: 998, ..to_8 }, b"stranger"), 0);
    assert_eq!(world.payloads(&mut connected), [b"peer"]);
    assert_eq!(world.payloads(&mut mate), [b"stranger"]);
    [other, bound, connected, mate].into_iter().for_each(|inbox| _ = world.close(inbox));
    assert_eq!(world.one(&from, b"unbound"), 1);
    assert!(world.binder.is_empty());
}

#[test]
fn families_are_kept_apart_where_that_is_wanted() {
    let mut world = World::new();
    let six = flow("2001:db8::1", 7, "2001:db8::9", 1);
    let four = flow("10.0.0.1", 7, "10.0.0.9", 1);
    let mut dual = world.binder.open(&bind(ANY, 7)).unwrap();
    let skbs = [world.datagram6(&six, b"six"), world.datagram(&four, b"four")];
    assert_eq!(world.receive(skbs), 0);
    assert_eq!(world.take(&mut dual), [(six, b"six".to_vec()), (four, b"four".to_vec())]);
    assert!(world.binder.open::<Datagram>(&Bind { v4: false, ..bind(ANY, 7) }).is_err());
    world.close(dual);
    let mut only_six = world.binder.open(&Bind { v4: false, ..bind(ANY, 7) }).unwrap();
    let mut only_four = world.binder.open(&Bind { v6: false, ..bind(ANY, 7) }).unwrap();
    let skbs = [world.datagram6(&six, b"six"), world.datagram(&four, b"four")];
    assert_eq!(world.receive(skbs), 0);
    assert_eq!(world.payloads(&mut only_six), [b"six".to_vec()]);
    assert_eq!(world.payloads(&mut only_four), [b"four".to_vec()]);
    let key = |inbox: &Inbox| inbox.slot().slot().key();
    assert_eq!(key(&only_six), Some((Key::bound(UDP, ANY, 7), false)));
    assert_eq!(key(&only_four), Some((Key::bound(UDP, ANY, 7), true)));
    world.close(only_six);
    world.close(only_four);
}

#[test]
fn what_is_not_sound_is_dropped_for_its_reason() {
    let mut world = World::new();
    let from = flow("10.0.0.1", 7, "10.0.0.9", 999);
    let mut inbox = world.binder.open(&bind(ANY, 7)).unwrap();
    const UDP: usize = 34;
    for (at, bytes, reason) in [
        (UDP + 4, [0, 7], Some(DropReason::PktTooSmall)),
        (UDP + 4, [0, 200], Some(DropReason::PktTooSmall)),
        (UDP + 6, [1, 2], Some(DropReason::UdpCsum)),
        (UDP + 8, *b"XX", Some(DropReason::UdpCsum)),
        (14, [0x4f, 0], Some(DropReason::PktTooSmall)),
        (14, [0x15, 0], Some(DropReason::PktTooSmall)),
        (UDP + 6, [0, 0], None),
    ] {
        let mut skb = world.datagram(&from, b"sound");
        skb.data_mut()[at..at + 2].copy_from_slice(&bytes);
        // Where the header says.
        skb.head_mut().l4 = 14 + u16::from(skb.data()[14] & 15) * 4;
        assert_eq!(world.receive([skb]), 0);
        let got = world.payloads(&mut inbox);
        match reason {
            Some(reason) => {
                assert_eq!((world.drops(reason) > 0, got), (true, vec![]), "{at} {bytes:?}");
            }
            None => assert_eq!(got, [b"sound"], "no checksum is no wrong one"),
        }
    }
    // Padding is no payload; neither is there more than the link brought.
    let mut padded = world.datagram(&from, b"short");
    padded.put(20).unwrap().fill(0x77);
    let mut cut = world.datagram(&from, b"short");
    cut.trim(cut.len() - 1);
    assert_eq!(world.receive([padded, cut]), 0);
    assert_eq!(world.payloads(&mut inbox), [b"short"]);
    // Over IPv6 there must be a checksum.
    let six = flow("2001:db8::1", 7, "2001:db8::9", 1);
    let mut skb = world.datagram6(&six, b"six");
    skb.data_mut()[46..48].fill(0);
    let before = world.drops(DropReason::UdpCsum);
    assert_eq!(world.receive([skb]), 0);
    assert_eq!(world.drops(DropReason::UdpCsum), before + 1);
    world.close(inbox);
}

#[test]
fn a_socket_holds_what_its_buffer_allows_and_all_together_what_memory_does() {
    let mut world = World::new();
    let from = flow("10.0.0.1", 7, "10.0.0.9", 999);
    let mut inbox = world.binder.open(&Bind { limit: 5, ..bind(ANY, 7) }).unwrap();
    let slot = inbox.slot().clone();
    for _ in 0..3 {
        let skbs: Vec<Skb> = (0..8u8).map(|i| world.datagram(&from, &[i])).collect();
        assert_eq!(world.receive(skbs), 0);
    }
    assert_eq!((slot.slot().queued(), slot.slot().drops()), (5, 19));
    assert_eq!(world.drops(DropReason::SocketRcvbuff), 19);
    assert!(slot.slot().readiness().readable);
    assert_eq!(world.ready, [slot.index()], "told once");
    assert_eq!(world.payloads(&mut inbox), [[0], [1], [2], [3], [4]], "the first ones");
    assert_eq!((slot.slot().queued(), inbox.gone(), inbox.gone()), (0, 5, 0));
    assert!(!slot.slot().readiness().readable);
    // Three are shared, and one is in reserve.
    world.room = SockMem::new(8).room(0);
    slot.slot().set_limit(64);
    for n in [3, 4] {
        let skbs: Vec<Skb> = (0..n).map(|i| world.datagram(&from, &[i])).collect();
        assert_eq!(world.receive(skbs), 0);
    }
    assert_eq!(
        (world.drops(DropReason::ProtoMem), slot.slot().drops()),
        (1, 20),
        "of a run, what is too much"
    );
    assert_eq!(slot.slot().queued(), 6);
    assert_eq!(world.close(inbox), 6);
    assert_eq!(world.drops(DropReason::SocketClose), 6);
    assert_eq!((slot.slot().queued(), slot.slot().drops(), slot.slot().limit()), (0, 0, 0));
}

/// Sockets that are not read fill what there is. One that is empty gets its minimum all the same, however often it is read.
#[test]
fn full_sockets_leave_an_empty_one_its_minimum() {
    let mut world = World::new();
    let memory = SockMem::new(512);
    let port = |lport: u16| Flow { lport, ..flow("10.0.0.1", 7, "10.0.0.9", 999) };
    let hogs: Vec<Inbox> = (0..12).map(|i| world.binder.open(&bind(ANY, 100 + i)).unwrap()).collect();
    let mut idle = world.binder.open(&bind(ANY, 7)).unwrap();
    let (mut held, ports) = (0, (100..112).chain([7, 7, 7, 111]));
    let offer = |world: &mut World, lport: u16, n: u8, held: &mut usize| {
        world.room = memory.room(*held);
        let skbs: Vec<Skb> = (0..n).map(|i| world.datagram(&port(lport), &[i])).collect();
        let before = world.ctx.stats().sk_queued.get();
        assert_eq!(world.receive(skbs), 0);
        let queued = (world.ctx.stats().sk_queued.get() - before) as usize;
        *held += queued;
        queued
    };
    let got: Vec<usize> = ports
        .map(|lport| {
            let got = offer(&mut world, lport, 20, &mut held);
            if lport == 7 {
                let read = world.payloads(&mut idle);
                assert_eq!((read.len(), read.first()), (got, Some(&vec![0])), "the first ones");
                held -= idle.gone();
            }
            got
        })
        .collect();
    // 192 are shared: a run that finds room for some of it is taken in part; from then on there is the minimum.
    assert_eq!(got, [20, 20, 20, 20, 20, 20, 20, 20, 20, 12, 2, 2, 2, 2, 2, 0]);
    assert_eq!(world.drops(DropReason::ProtoMem), 16 * 20 - 202);
    assert_eq!(hogs[9].slot().slot().drops() + idle.slot().slot().drops(), 8 + 3 * 18);
    // One that is full is told so, and not that the others are.
    hogs[0].slot().slot().set_limit(20);
    assert_eq!(offer(&mut world, 100, 20, &mut held), 0);
    assert_eq!(world.drops(DropReason::SocketRcvbuff), 20);
    // A datagram in more pieces than the minimum does not get in by it, neither in part nor at the others' expense.
    let before = world.drops(DropReason::ProtoMem);
    world.room = memory.room(held);
    let skb = world.chain(&port(7), &[0; 40], 16);
    assert_eq!((skb.frame_count(), world.receive([skb]), idle.next(&mut world.ctx).is_none()), (3, 0, true));
    assert_eq!(world.drops(DropReason::ProtoMem), before + 1);
    hogs.into_iter().chain([idle]).for_each(|inbox| _ = world.close(inbox));
}

#[test]
fn a_datagram_of_several_frames_is_received_or_dropped_whole() {
    let mut world = World::new();
    let from = flow("10.0.0.1", 7, "10.0.0.9", 999);
    let payload: Vec<u8> = (0..100).collect();
    let mut inbox = world.binder.open(&Bind { limit: 8, ..bind(ANY, 7) }).unwrap();
    for piece in [8, 16, 17, 40, 108, 200] {
        let skb = world.chain(&from, &payload, piece);
        let (frames, after) = (skb.frame_count(), world.datagram(&from, b"after"));
        assert_eq!((world.receive([skb, after]), frames), (0, 108usize.div_ceil(piece)));
        let queued = inbox.slot().slot().queued() as usize;
        let got = world.payloads(&mut inbox);
        match piece {
            // 14 and one more are more than fit, and one of them gets in while there is room for a frame.
            8 => assert_eq!((got, queued), (vec![payload.clone()], 14)),
            _ => assert_eq!((got, queued), (vec![payload.clone(), b"after".to_vec()], frames + 1)),
        }
    }
    assert_eq!(world.drops(DropReason::SocketRcvbuff), 1);
    // Without a socket, broken, or cut off: all of it goes, as the one packet that it is.
    let elsewhere = Flow { lport: 8, ..from };
    let skb = world.chain(&elsewhere, &payload, 16);
    assert_eq!((world.receive([skb]), world.drops(DropReason::IpNoProto)), (1, 1));
    let mut skb = world.chain(&from, &payload, 16);
    let mut rest = world.ctx.take_chain(&mut skb).unwrap();
    while let Some(mut part) = rest.pop_front() {
        part.data_mut()[0] ^= u8::from(rest.len() == 2);
        skb.append(part).unwrap();
    }
    assert_eq!((world.receive([skb]), world.drops(DropReason::UdpCsum)), (0, 1));
    let mut skb = world.chain(&from, &payload, 16);
    skb.trim(skb.len() - 1);
    assert_eq!((world.receive([skb]), world.drops(DropReason::PktTooSmall)), (0, 1));
    let skb = world.chain(&from, &payload, 16);
    world.receive([skb]);
    inbox.gone();
    assert_eq!(inbox.peek(&mut world.ctx).unwrap().len(), 100);
    assert_eq!(inbox.peek(&mut world.ctx).unwrap().parts().count(), 7, "looked at twice");
    assert_eq!((inbox.slot().slot().queued(), world.close(inbox)), (7, 7));
}

#[test]
fn what_came_for_another_socket_is_not_received() {
    let mut world = World::new();
    let from = flow("10.0.0.1", 7, "10.0.0.9", 999);
    let mut inbox = world.binder.open(&bind(ANY, 7)).unwrap();
    let sockets = world.binder.sockets().clone();
    let Found::Socket(old) = sockets.lookup(&from, 0) else { panic!("just bound") };
    world.close(inbox);
    // The poller that found it was held up; meanwhile the slot is closed, and then another's.
    let push = |world: &mut World, hit: Hit| {
        let mut run = Batch::new();
        let skb = world.datagram(&from, b"late");
        run.push(skb).unwrap();
        let pushed = sockets.slot(hit.slot).unwrap().push(&mut run, hit.generation, 0);
        world.ctx.stats().sk_queued.add(pushed.queued as u64);
        world.ctx.free_batch(&mut run, DropReason::SocketClose);
        pushed.queued
    };
    assert_eq!(push(&mut world, old), 0);
    inbox = world.binder.open(&bind(ANY, 7)).unwrap();
    assert_eq!(inbox.slot().index(), old.slot, "used anew");
    assert_eq!(push(&mut world, old), 1);
    let before = world.drops(DropReason::SocketClose);
    assert_eq!(world.payloads(&mut inbox), [b""; 0]);
    assert_eq!(world.drops(DropReason::SocketClose), before + 1);
    assert_eq!(inbox.slot().slot().queued(), 0);

    // What came before it was connected is received if it is the peer's.
    let stranger = Flow { rport: 1, ..from };
    world.one(&stranger, b"stranger");
    world.one(&from, b"peer");
    assert_eq!(inbox.peek(&mut world.ctx).unwrap().flow(), &stranger);
    let generation = world.binder.connect(old.slot, from.local, from.remote, from.rport);
    inbox.connected(&mut world.ctx, (from.remote, from.rport), generation);
    assert_eq!(world.payloads(&mut inbox), [b"peer"]);
    assert_eq!(push(&mut world, old), 1, "still of the first socket");
    assert_eq!(world.payloads(&mut inbox), [b""; 0]);
    world.close(inbox);
}

#[test]
fn ports_that_are_not_asked_for_are_free_ones() {
    let mut world = World::new();
    let mut inboxes = Vec::new();
    let mut ports = HashMap::new();
    for _ in 0..500 {
        let inbox = world.binder.open(&bind(v4("10.0.0.1"), 0)).unwrap();
        let (key, _) = inbox.slot().slot().key().unwrap();
        assert!(EPHEMERAL.contains(&key.flow.lport));
        *ports.entry(key.flow.lport).or_insert(0) += 1;
        inboxes.push(inbox);
    }
    assert!(ports.values().all(|n| *n == 1));
    // Neighbouring numbers for neighbouring sockets would be easy to guess.
    let in_a_row = ports.keys().filter(|port| ports.contains_key(&(**port + 1))).count();
    assert!(in_a_row < 50, "{in_a_row} of 500");
    inboxes.into_iter().for_each(|inbox| _ = world.close(inbox));
}

#[test]
fn there_are_no_more_than_may_be_and_slots_are_used_anew() {
    let mut world = World::new();
    world.binder = Binder::new(world.ctx.region().clone(), 3, 1);
    for _ in 0..3 {
        let inboxes: Vec<Inbox> = (1..=3).map(|i| world.binder.open(&bind(ANY, i)).unwrap()).collect();
        assert_eq!(world.binder.open::<Datagram>(&bind(ANY, 4)).err(), Some(BindError::TooMany));
        assert_eq!(world.binder.len(), 3);
        inboxes.into_iter().for_each(|inbox| _ = world.close(inbox));
    }
    assert!(world.binder.sockets().slots().filter(|(_, slot)| slot.key().is_some()).count() == 0);
}

/// Two links with the same addresses: what is sent on one has no scope in it, and comes to the socket there, and there alone.
#[test]
fn link_local_flows_are_told_apart_by_the_device() {
    let mut world = World::new();
    let flows = [0, 1].map(|dev| {
        let Flow { local, remote, lport, rport, .. } = flow("fe80::1", 7, "fe80::9", 9);
        Flow { local: scoped(local, dev), remote: scoped(remote, dev), lport, rport, protocol: UDP }
    });
    let mut bound = flows.map(|flow| world.binder.open(&bind(flow.local, 7)).unwrap());
    assert!(world.binder.open::<Datagram>(&bind(flows[0].local, 7)).is_err());
    for (dev, flow) in flows.iter().enumerate() {
        let skb = world.datagram(flow, b"by this link");
        assert_eq!(usize::from(skb.head().dev), dev);
        assert_eq!(
            (&skb.data()[22..26], &skb.data()[38..42]),
            (&[0xfe, 0x80, 0, 0][..], &[0xfe, 0x80, 0, 0][..])
        );
        let sent = Flow {
            local: flow.remote,
            remote: flow.local,
            lport: flow.rport,
            rport: flow.lport,
            protocol: UDP,
        };
        assert_eq!(udp::error::of_sent(&skb.data()[14..], dev as u16), Some(sent));
        world.receive(vec![skb]);
        assert_eq!(world.payloads(&mut bound[1 - dev]), [[0; 0]; 0]);
        assert_eq!(bound[dev].peek(&mut world.ctx).map(|datagram| *datagram.flow()), Some(*flow));
        assert_eq!(world.payloads(&mut bound[dev]), [b"by this link"]);
    }
    bound.into_iter().for_each(|inbox| _ = world.close(inbox));
}

#[test]
fn an_error_waits_until_it_is_taken() {
    let mut world = World::new();
    let inbox = world.binder.open(&bind(ANY, 7)).unwrap();
    let slot = inbox.slot().clone();
    assert_eq!(slot.slot().take_error(), None);
    slot.slot().set_error(SocketError::HostUnreachable);
    slot.slot().set_error(SocketError::ConnectionRefused);
    assert!(slot.slot().readiness().error);
    assert_eq!(slot.slot().take_error(), Some(SocketError::ConnectionRefused));
    assert_eq!((slot.slot().take_error(), slot.slot().readiness().error), (None, false));
    slot.slot().set_error(SocketError::MessageSize);
    world.close(inbox);
    assert_eq!(slot.slot().take_error(), None, "not the next one's");
}

/// What a table of a few sockets must say, by looking at all of them.
fn naive(sockets: &HashMap<u32, Key>, packet: &Flow) -> Option<u32> {
    let with = |key: Key| sockets.iter().find(|(_, other)| **other == key).map(|(slot, _)| *slot);
    let bound = |local| Key::bound(UDP, local, packet.lport);
    with(Key::connected(*packet)).or_else(|| with(bound(packet.local))).or_else(|| with(bound(ANY)))
}

proptest! {
    #[test]
    fn the_table_is_the_naive_one(
        steps in prop::collection::vec((0u8..4, 0u32..3, 1u16..4, 0u32..3, 1u16..3), 1..80)
    ) {
        let mut world = World::new();
        let mut inboxes: HashMap<u32, Inbox> = HashMap::new();
        let mut model: HashMap<u32, Key> = HashMap::new();
        for (what, local, lport, remote, rport) in steps {
            let local = if local == 0 { ANY } else { mapped(0x0a00_0000 + local) };
            let remote = mapped(0x0b00_0000 + remote);
            let some = model.keys().copied().min_by_key(|slot| (slot * 7 + u32::from(lport)) % 5);
            match (what, some) {
                (0 | 1, _) => {
                    let taken = model.values().any(|Key { flow: key, .. }| {
                        key.lport == lport && (key.local == local || key.local == ANY || local == ANY)
                    });
                    let opened = world.binder.open(&bind(local, lport));
                    prop_assert_eq!(opened.as_ref().err(), taken.then_some(&BindError::InUse));
                    if let Ok(inbox) = opened {
                        model.insert(inbox.slot().index(), Key::bound(UDP, local, lport));
                        inboxes.insert(inbox.slot().index(), inbox);
                    }
                }
                (2, Some(slot)) => {
                    let key = &mut inboxes.get_mut(&slot).map(|inbox| (inbox, model[&slot].flow)).unwrap();
                    let local = if key.1.local == ANY { mapped(0x0a00_0001) } else { key.1.local };
                    let generation = world.binder.connect(slot, local, remote, rport);
                    key.0.connected(&mut world.ctx, (remote, rport), generation);
                    model.insert(slot, Key::connected(Flow { local, remote, rport, ..key.1 }));
                }
                (3, Some(slot)) => {
                    model.remove(&slot);
                    let inbox = inboxes.remove(&slot).unwrap();
                    world.close(inbox);
                }
                _ => {}
            }
            for local in 1..3 {
                for lport in 1..4 {
                    let packet = Flow { local: mapped(0x0a00_0000 + local), remote, lport, rport, protocol: UDP };
                    let found = match world.binder.sockets().lookup(&packet, 0) {
                        Found::Socket(hit) => Some(hit.slot),
                        Found::None => None,
                        Found::Contended => panic!("no thread writes"),
                    };
                    prop_assert_eq!(found, naive(&model, &packet), "{:?}", packet);
                }
            }
        }
        for (_, inbox) in inboxes {
            world.close(inbox);
        }
    }

    #[test]
    fn no_packet_panics_and_none_is_lost(
        packets in prop::collection::vec((any::<bool>(), 0usize..60, any::<u8>(), 0usize..100, any::<bool>()), 1..20)
    ) {
        let mut world = World::new();
        let mut inbox = world.binder.open(&bind(ANY, 7)).unwrap();
        let n = packets.len() as u64;
        let skbs: Vec<Skb> = packets.into_iter().map(|(six, at, value, len, more)| {
            let mut skb = match six {
                true => world.datagram6(&flow("2001:db8::1", 7, "2001:db8::9", 1), &[7; 30]),
                false => world.datagram(&flow("10.0.0.1", 7, "10.0.0.9", 999), &[7; 30]),
            };
            if let Some(byte) = skb.data_mut().get_mut(at) {
                *byte = value;
            }
            skb.trim(len);
            if more {
                skb.append(world.ctx.alloc_skb().unwrap()).unwrap();
            }
            skb
        }).collect();
        world.receive(skbs);
        world.payloads(&mut inbox);
        let stats = world.ctx.stats();
        prop_assert_eq!(stats.delivered.get() + stats.dropped(), n);
        world.close(inbox);
    }
}
